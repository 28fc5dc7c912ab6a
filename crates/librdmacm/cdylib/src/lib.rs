//! The drop-in `librdmacm.so.1`: every name jumps to the code of the same name in libibverbs.so.1, so that a
//! process has one engine. Nothing else is in here.

/// Exports `name@@NODE` as a jump to `adverb_name` of libibverbs.so.1.
macro_rules! rdmacm_exports {
    ($($kind:ident $node:literal: $($name:ident)*;)*) => {
        $($(trampoline!(stringify!($name), $node);)*)*
    };
}

macro_rules! trampoline {
    ($name:expr, $node:literal) => {
        #[cfg(target_arch = "x86_64")]
        trampoline!(@emit $name, $node, "endbr64", "jmp");
        #[cfg(target_arch = "aarch64")]
        trampoline!(@emit $name, $node, "bti c", "b");
    };
    (@emit $name:expr, $node:literal, $landing:literal, $jump:literal) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name, ".", $node),
            concat!(".type ", $name, ".", $node, ",@function"),
            concat!($name, ".", $node, ":"),
            $landing,
            concat!($jump, " adverb_", $name),
            concat!(".size ", $name, ".", $node, ", . - ", $name, ".", $node),
            concat!(".symver ", $name, ".", $node, ", ", $name, "@@", $node),
            ".popsection",
        );
    };
}

include!("../exports.rs");
