//! The routines for x86-64.

use std::arch::global_asm;

// copy(target rdi, source rsi, length rdx) -> 0, or 1 on a fault. The tail, the longest word of up to 8 bytes that ends where
// the range ends and lies at a multiple of its size, is stored by one plain move after the string instruction, which x86 keeps
// behind all of its stores. So a word that a program polls is never seen in parts.
// add(address rdi, value rsi, old rdx) and cas(address rdi, compare rsi, swap rdx, old rcx) -> 0 or 1.
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
    ".globl adverb_fault_copy",
    ".globl adverb_fault_add",
    ".globl adverb_fault_cas",
    ".globl adverb_fault_end",
    ".globl adverb_fault_exit",
    "adverb_fault_begin:",
    "adverb_fault_copy:",
    "cmp rdx, 8",
    "jb 5f",
    "lea rcx, [rdi + rdx]",
    "test cl, 7",
    "jnz 2f",
    "lea rcx, [rdx - 8]",
    "rep movsb",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    // The end lies at a multiple of 1, 2 or 4 only.
    "2:",
    "test cl, 1",
    "jnz 4f",
    "test cl, 2",
    "jnz 3f",
    "lea rcx, [rdx - 4]",
    "rep movsb",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    "3:",
    "lea rcx, [rdx - 2]",
    "rep movsb",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "xor eax, eax",
    "ret",
    "4:",
    "lea rcx, [rdx - 1]",
    "rep movsb",
    "mov al, [rsi]",
    "mov [rdi], al",
    "xor eax, eax",
    "ret",
    // Up to 7 bytes: a word of 4, of 2, of 1.
    "5:",
    "test dl, 4",
    "jz 6f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "6:",
    "test dl, 2",
    "jz 7f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "7:",
    "test dl, 1",
    "jz 8f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "8:",
    "xor eax, eax",
    "ret",
    "adverb_fault_add:",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    "adverb_fault_cas:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    "adverb_fault_end:",
    "adverb_fault_exit:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn adverb_fault_add(address: usize, value: u64, old: *mut u64) -> u32;
    fn adverb_fault_cas(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
}

/// Adds atomically; the routine's result says whether that faulted.
///
/// # Safety
/// As [`super::fetch_add`]; `old` is to be written.
pub(super) unsafe fn fetch_add(address: usize, value: u64, old: *mut u64) -> u32 {
    // SAFETY: handed on to the caller; a bad address ends in the error exit.
    unsafe { adverb_fault_add(address, value, old) }
}

/// Compares and swaps atomically; the routine's result says whether that faulted.
///
/// # Safety
/// As [`super::compare_swap`]; `old` is to be written.
pub(super) unsafe fn compare_swap(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32 {
    // SAFETY: handed on to the caller; a bad address ends in the error exit.
    unsafe { adverb_fault_cas(address, compare, swap, old) }
}

/// The program counter at which the interrupted thread goes on.
pub(super) fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}
