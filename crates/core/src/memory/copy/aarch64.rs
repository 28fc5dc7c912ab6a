//! The routines for AArch64, which may show stores of one thread to others in any order unless told.

use std::arch::{global_asm, is_aarch64_feature_detected};

// copy(target x0, source x1, length x2) -> 0, or 1 on a fault. Every store goes to a multiple of its own
// size, so that no other thread sees part of it. The tail, of x4 bytes, is the longest word of up to 8 bytes
// that ends where the range ends and can be stored so. It is stored after everything that came before it, in
// this copy or earlier ones, has become visible; and whatever the caller reads afterwards, it reads after the
// source. add(address x0, value x1, old x2) and cas(address x0, compare x1, swap x2, old x3) -> 0 or 1. A
// comparison that fails stores what was there: memory that may not be written is a fault in any case.
global_asm!(
    ".pushsection .text.adverb_copy,\"ax\",@progbits",
    ".p2align 5",
    ".globl adverb_fault_begin",
    ".hidden adverb_fault_begin",
    ".hidden adverb_fault_end",
    ".hidden adverb_fault_exit",
    ".hidden adverb_fault_copy",
    ".hidden adverb_fault_add",
    ".hidden adverb_fault_cas",
    ".hidden adverb_fault_add_lse",
    ".hidden adverb_fault_cas_lse",
    ".globl adverb_fault_copy",
    ".globl adverb_fault_add",
    ".globl adverb_fault_cas",
    ".globl adverb_fault_add_lse",
    ".globl adverb_fault_cas_lse",
    ".globl adverb_fault_end",
    ".globl adverb_fault_exit",
    "adverb_fault_begin:",
    "adverb_fault_copy:",
    "cbz x2, 13f",
    // The lowest bit of the end's address, at most 8, and no more than the length.
    "add x4, x0, x2",
    "orr x4, x4, #8",
    "neg x5, x4",
    "and x4, x4, x5",
    "2:",
    "cmp x4, x2",
    "b.ls 3f",
    "lsr x4, x4, #1",
    "b 2b",
    "3:",
    "sub x2, x2, x4",
    // Up to a multiple of 8 of the target.
    "tbz x0, #0, 4f",
    "cbz x2, 9f",
    "ldrb w5, [x1], #1",
    "strb w5, [x0], #1",
    "sub x2, x2, #1",
    "4:",
    "tbz x0, #1, 5f",
    "cmp x2, #2",
    "b.lo 8f",
    "ldrh w5, [x1], #2",
    "strh w5, [x0], #2",
    "sub x2, x2, #2",
    "5:",
    "tbz x0, #2, 6f",
    "cmp x2, #4",
    "b.lo 8f",
    "ldr w5, [x1], #4",
    "str w5, [x0], #4",
    "sub x2, x2, #4",
    "6:",
    "subs x2, x2, #64",
    "b.lo 15f",
    "14:",
    "ldp x5, x6, [x1]",
    "ldp x7, x8, [x1, #16]",
    "ldp x9, x10, [x1, #32]",
    "ldp x11, x12, [x1, #48]",
    "add x1, x1, #64",
    "stp x5, x6, [x0]",
    "stp x7, x8, [x0, #16]",
    "stp x9, x10, [x0, #32]",
    "stp x11, x12, [x0, #48]",
    "add x0, x0, #64",
    "subs x2, x2, #64",
    "b.hs 14b",
    "15:",
    "add x2, x2, #64",
    "7:",
    "subs x2, x2, #8",
    "b.lo 16f",
    "ldr x5, [x1], #8",
    "str x5, [x0], #8",
    "b 7b",
    "16:",
    "add x2, x2, #8",
    // Fewer than 8 bytes before the tail.
    "8:",
    "tbz x2, #2, 17f",
    "ldr w5, [x1], #4",
    "str w5, [x0], #4",
    "17:",
    "tbz x2, #1, 18f",
    "ldrh w5, [x1], #2",
    "strh w5, [x0], #2",
    "18:",
    "tbz x2, #0, 9f",
    "ldrb w5, [x1], #1",
    "strb w5, [x0], #1",
    "9:",
    "dmb ish",
    "tbnz x4, #3, 10f",
    "tbnz x4, #2, 11f",
    "tbnz x4, #1, 12f",
    "ldrb w5, [x1]",
    "strb w5, [x0]",
    "b 13f",
    "12:",
    "ldrh w5, [x1]",
    "strh w5, [x0]",
    "b 13f",
    "11:",
    "ldr w5, [x1]",
    "str w5, [x0]",
    "b 13f",
    "10:",
    "ldr x5, [x1]",
    "str x5, [x0]",
    "13:",
    "dmb ishld",
    "mov w0, wzr",
    "ret",
    "adverb_fault_add:",
    "ldaxr x3, [x0]",
    "add x4, x3, x1",
    "stlxr w5, x4, [x0]",
    "cbnz w5, adverb_fault_add",
    "str x3, [x2]",
    "mov w0, wzr",
    "ret",
    "adverb_fault_cas:",
    "ldaxr x4, [x0]",
    "cmp x4, x1",
    "csel x5, x2, x4, eq",
    "stlxr w6, x5, [x0]",
    "cbnz w6, adverb_fault_cas",
    "str x4, [x3]",
    "mov w0, wzr",
    "ret",
    ".arch_extension lse",
    "adverb_fault_add_lse:",
    "ldaddal x1, x3, [x0]",
    "str x3, [x2]",
    "mov w0, wzr",
    "ret",
    "adverb_fault_cas_lse:",
    "casal x1, x2, [x0]",
    "str x1, [x3]",
    "mov w0, wzr",
    "ret",
    ".arch_extension nolse",
    "adverb_fault_end:",
    "adverb_fault_exit:",
    "mov w0, #1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn adverb_fault_add(address: usize, value: u64, old: *mut u64) -> u32;
    fn adverb_fault_cas(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
    fn adverb_fault_add_lse(address: usize, value: u64, old: *mut u64) -> u32;
    fn adverb_fault_cas_lse(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
}

/// Copies; the routine's result says whether that faulted.
///
/// # Safety
/// As [`super::copy_between`].
#[inline]
pub(super) unsafe fn copy(target: usize, source: usize, length: usize) -> u32 {
    // SAFETY: handed on to the caller; a bad address ends in the error exit.
    unsafe { super::adverb_fault_copy(target, source, length) }
}

/// Adds atomically; the routine's result says whether that faulted.
///
/// # Safety
/// As [`super::fetch_add`]; `old` is to be written.
pub(super) unsafe fn fetch_add(address: usize, value: u64, old: *mut u64) -> u32 {
    // SAFETY: handed on to the caller; a bad address ends in the error exit. The processor has the
    // instruction.
    unsafe {
        if is_aarch64_feature_detected!("lse") {
            adverb_fault_add_lse(address, value, old)
        } else {
            adverb_fault_add(address, value, old)
        }
    }
}

/// Compares and swaps atomically; the routine's result says whether that faulted.
///
/// # Safety
/// As [`super::compare_swap`]; `old` is to be written.
pub(super) unsafe fn compare_swap(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32 {
    // SAFETY: handed on to the caller; a bad address ends in the error exit. The processor has the
    // instruction.
    unsafe {
        if is_aarch64_feature_detected!("lse") {
            adverb_fault_cas_lse(address, compare, swap, old)
        } else {
            adverb_fault_cas(address, compare, swap, old)
        }
    }
}

/// The program counter at which the interrupted thread goes on.
pub(super) fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}
