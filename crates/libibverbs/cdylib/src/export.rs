//! Versioned symbols.
//!
//! rustc cannot give a function a version, so each exported `name@NODE` is one assembly trampoline that jumps
//! to the Rust function and carries a `.symver` directive. Several names and nodes can lead to one function.

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

/// Functions of public nodes: `"NODE" "@@": name = path, …;`. Behind `=>` stands `watched` of a function that
/// can be watched ([`adverb_libibverbs::seam`]). Of one that is passed on to the host's library
/// ([`adverb_libibverbs::host`]), too, there stands what it answers where that library has none, and behind
/// `of` what its object is, if not its first argument.
macro_rules! exports {
    ($($node:literal $at:literal: $($name:ident = $function:path $(=> $missing:ident $(of $subject:path)?)?),* $(,)?;)*) => {
        $($(export::exports!(@one $name, $at, $node, $function $(, $missing $(, $subject)?)?);)*)*
    };
    (@one $name:ident, $at:literal, $node:literal, $function:path) => {
        export::trampoline!(stringify!($name), $at, $node, $function);
    };
    (@one $name:ident, $at:literal, $node:literal, $function:path, watched) => {
        mod $name {
            use super::*;
            static WATCHED: verbs::seam::Function =
                verbs::seam::Function::new(stringify!($name), $function as *const ());
            export::passing!(stringify!($name), $at, $node, $function, WATCHED);
        }
    };
    (@one $name:ident, $at:literal, $node:literal, $function:path, $missing:ident) => {
        export::exports!(@one $name, $at, $node, $function, $missing, verbs::host::itself);
    };
    (@one $name:ident, $at:literal, $node:literal, $function:path, $missing:ident, $subject:path) => {
        mod $name {
            use super::*;
            export::exports!(@passed $name, $function, $missing, $subject, $at $node);
        }
    };
    (@passed $name:ident, $function:path, $missing:ident, $subject:path, $($at:literal $node:literal),+) => {
        static PASSED: verbs::seam::Function = verbs::seam::Function::passed(
            stringify!($name),
            $function as *const (),
            verbs::host::ForwardedFunction::new(
                stringify!($name),
                [$($node),+][0],
                verbs::unsupported::$missing as *const (),
                $subject,
            ),
        );
        $(export::passing!(stringify!($name), $at, $node, $function, PASSED);)+
    };
}

/// The trampoline of a function that can be watched or passed on. It jumps to `$function` unless somebody
/// watches, or the host's library is loaded. Then [`pass`] has the last word: it finds `$passed` in a
/// register in which no caller keeps anything.
macro_rules! passing {
    ($name:expr, $at:literal, $node:literal, $function:path, $passed:path) => {
        #[cfg(target_arch = "x86_64")]
        export::passing!(@emit $name, $at, $node, $function, $passed,
            "endbr64", "cmpb $0, {active}(%rip)", "jne 1f", "jmp {function}",
            "1: lea {passed}(%rip), %r11", "jmp {pass}", att_syntax);
        #[cfg(target_arch = "aarch64")]
        export::passing!(@emit $name, $at, $node, $function, $passed,
            "bti c", "adrp x16, {active}", "ldrb w16, [x16, :lo12:{active}]", "cbnz w16, 1f", "b {function}",
            "1: adrp x16, {passed}", "add x16, x16, :lo12:{passed}", "b {pass}");
    };
    (@emit $name:expr, $at:literal, $node:literal, $function:path, $passed:path, $($line:literal),* $(, $option:ident)?) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", $name, ".", $node, ",\"ax\",@progbits"),
            concat!(".globl ", $name, ".", $node),
            concat!(".type ", $name, ".", $node, ",@function"),
            concat!($name, ".", $node, ":"),
            $($line,)*
            concat!(".size ", $name, ".", $node, ", . - ", $name, ".", $node),
            concat!(".symver ", $name, ".", $node, ", ", $name, $at, $node),
            ".popsection",
            function = sym $function,
            active = sym verbs::seam::ACTIVE,
            passed = sym $passed,
            pass = sym export::pass,
            $(options($option),)?
        );
    };
}

unsafe extern "C" {
    /// Where such a function goes on, with a [`verbs::seam::Function`] in r11 or x16: calls [`crate::pass`]
    /// with that and the arguments.
    #[link_name = "adverb_pass"]
    pub(crate) fn pass();
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.adverb_pass,\"ax\",@progbits",
    ".globl adverb_pass",
    ".hidden adverb_pass",
    ".type adverb_pass,@function",
    "adverb_pass:",
    ".cfi_startproc",
    "sub $56, %rsp",
    ".cfi_adjust_cfa_offset 56",
    "mov %rdi, (%rsp)",
    "mov %rsi, 8(%rsp)",
    "mov %rdx, 16(%rsp)",
    "mov %rcx, 24(%rsp)",
    "mov %r8, 32(%rsp)",
    "mov %r9, 40(%rsp)",
    "mov %r11, %rdi",
    "mov %rsp, %rsi",
    "call {pass}",
    "add $56, %rsp",
    ".cfi_adjust_cfa_offset -56",
    "ret",
    ".cfi_endproc",
    ".size adverb_pass, . - adverb_pass",
    ".popsection",
    pass = sym crate::pass,
    options(att_syntax),
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.adverb_pass,\"ax\",@progbits",
    ".globl adverb_pass",
    ".hidden adverb_pass",
    ".type adverb_pass,@function",
    "adverb_pass:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-64]!",
    ".cfi_def_cfa_offset 64",
    ".cfi_offset x29, -64",
    ".cfi_offset x30, -56",
    "mov x29, sp",
    "stp x0, x1, [sp, #16]",
    "stp x2, x3, [sp, #32]",
    "stp x4, x5, [sp, #48]",
    "mov x0, x16",
    "add x1, sp, #16",
    "bl {pass}",
    "ldp x29, x30, [sp], #64",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size adverb_pass, . - adverb_pass",
    ".popsection",
    pass = sym crate::pass,
);

/// Names that stand in several private nodes and share one function: `since_25 path: name name …;`. The nodes
/// are those of rdma-core 25 to 28 (Ubuntu 20.04), 33 (Debian 11), 34 and newer.
macro_rules! private_exports {
    ($($since:ident $function:path: $($name:ident)*;)*) => {
        $($(export::private_exports!(@$since $name, $function);)*)*
    };
    (@since_25 $name:ident, $function:path) => {
        export::private_exports!(@until_34 $name, $function);
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_57", $function);
        export::private_exports!(@since_59 $name, $function);
    };
    (@only_25 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@@", "IBVERBS_PRIVATE_25", $function);
    };
    (@until_34 $name:ident, $function:path) => {
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_25", $function);
        export::trampoline!(stringify!($name), "@", "IBVERBS_PRIVATE_33", $function);
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

pub(crate) use {export_flag, exports, passing, private_exports, trampoline};
