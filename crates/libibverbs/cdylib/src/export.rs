//! Versioned symbols.
//!
//! rustc cannot give a function a version, so each exported `name@NODE` is one assembly trampoline that jumps to the
//! Rust function and carries a `.symver` directive. Several names and nodes can lead to one function.

/// Exports `$function` as `$name$at$node`: `@@` makes it the default version of the name, `@` a further one.
macro_rules! trampoline {
    ($name:expr, $at:literal, $node:literal, $function:path) => {
        #[cfg(target_arch = "x86_64")]
        export::trampoline!(@emit $name, $at, $node, $function, "endbr64", "jmp {function}");
        #[cfg(target_arch = "aarch64")]
        export::trampoline!(@emit $name, $at, $node, $function, "bti c", "b {function}");
    };
    (@emit $name:expr, $at:literal, $node:literal, $function:path, $landing:literal, $jump:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ".", $node, ",\"ax\",@progbits"),
            concat!(".globl ", $name, ".", $node),
            concat!(".type ", $name, ".", $node, ",@function"),
            concat!($name, ".", $node, ":"),
            $landing,
            $jump,
            concat!(".size ", $name, ".", $node, ", . - ", $name, ".", $node),
            concat!(".symver ", $name, ".", $node, ", ", $name, $at, $node),
            ".popsection",
            function = sym $function,
        );
    };
}

/// Functions of public nodes: `"NODE" "@@": name = path, …;`.
macro_rules! exports {
    ($($node:literal $at:literal: $($name:ident = $function:path),* $(,)?;)*) => {
        $($(export::trampoline!(stringify!($name), $at, $node, $function);)*)*
    };
}

/// Names that stand in several private nodes and share one function: `since_34 path: name name …;`.
macro_rules! private_exports {
    ($($since:ident $function:path: $($name:ident)*;)*) => {
        $($(export::private_exports!(@$since $name, $function);)*)*
    };
    (@since_34 $name:ident, $function:path) => {
        export::private_exports!(@only_34 $name, $function);
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_57", $function);
        export::private_exports!(@since_59 $name, $function);
    };
    (@only_34 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@@", "IBVERBS_PRIVATE_34", $function);
    };
    (@since_59 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_59", $function);
        export::private_exports!(@since_64 $name, $function);
    };
    (@since_64 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_64", $function);
        export::private_exports!(@since_65 $name, $function);
    };
    (@since_65 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_65", $function);
    };
}

/// A `bool` variable, false at first, in each of the nodes.
macro_rules! export_flag {
    ($name:ident: $($at:literal $node:literal),*) => {
        $(core::arch::global_asm!(
            concat!(".pushsection .bss.", stringify!($name), ".", $node, ",\"aw\",@nobits"),
            concat!(".globl ", stringify!($name), ".", $node),
            concat!(".type ", stringify!($name), ".", $node, ",@object"),
            concat!(stringify!($name), ".", $node, ":"),
            ".zero 1",
            concat!(".size ", stringify!($name), ".", $node, ", 1"),
            concat!(".symver ", stringify!($name), ".", $node, ", ", stringify!($name), $at, $node),
            ".popsection",
        );)*
    };
}

pub(crate) use {export_flag, exports, private_exports, trampoline};
