//! The routines for x86-64.

use std::arch::global_asm;

// copy(target rdi, source rsi, length rdx) -> 0, or 1 on a fault. The tail, the longest word of up to 8 bytes
// that ends where the range ends and lies at a multiple of its size, is stored by one plain move after
// everything else, and x86 shows stores in their order. So a word that a program polls is never seen in
// parts. No byte is stored twice: a program may change what it has seen. The three routines differ in what
// moves the body, which is what comes before the tail:
//   copy          pairs of SSE registers up to 511 bytes, the string instruction beyond
//   copy_avx2     AVX registers, for at least 64 bytes
//   copy_avx512   AVX-512 registers that have no lower halves in common with SSE's, for at least 128 bytes
// Both of the latter store whole registers at multiples of their size. A fault leaves AVX's upper halves in
// use: copy_long puts that right. add(address rdi, value rsi, old rdx) and cas(address rdi, compare rsi, swap
// rdx, old rcx) -> 0 or 1.
global_asm!(
    // r8: bytes of the tail; rcx: bytes of the body.
    ".macro adverb_split_off_tail",
    "lea ecx, [rdi + rdx]",
    "or ecx, 8",
    "mov r8d, ecx",
    "neg r8d",
    "and r8d, ecx",
    "mov rcx, rdx",
    "sub rcx, r8",
    ".endm",
    // One word of `size` bytes, if `bits` have that bit.
    ".macro adverb_word bits, size, register",
    "test \\bits, \\size",
    "jz .Ladverb_word_\\@",
    "mov \\register, [rsi]",
    "mov [rdi], \\register",
    "add rsi, \\size",
    "add rdi, \\size",
    ".Ladverb_word_\\@:",
    ".endm",
    // The same for 16 bytes, and for 32.
    ".macro adverb_16 bits",
    "test \\bits, 16",
    "jz .Ladverb_16_\\@",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    ".Ladverb_16_\\@:",
    ".endm",
    ".macro adverb_32 bits",
    "test \\bits, 32",
    "jz .Ladverb_32_\\@",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    ".Ladverb_32_\\@:",
    ".endm",
    // Up to 31 bytes until rdi is a multiple of 32: r9 has how many.
    ".macro adverb_align_target",
    "adverb_word r9b, 1, al",
    "adverb_word r9b, 2, ax",
    "adverb_word r9b, 4, eax",
    "adverb_word r9b, 8, rax",
    "adverb_16 r9b",
    ".endm",
    ".pushsection .text.adverb_copy,\"ax\",@progbits",
    ".p2align 5",
    ".globl adverb_fault_begin",
    ".hidden adverb_fault_begin",
    ".hidden adverb_fault_end",
    ".hidden adverb_fault_exit",
    ".hidden adverb_fault_copy",
    ".hidden adverb_fault_copy_avx2",
    ".hidden adverb_fault_copy_avx512",
    ".hidden adverb_fault_add",
    ".hidden adverb_fault_cas",
    ".globl adverb_fault_copy",
    ".globl adverb_fault_copy_avx2",
    ".globl adverb_fault_copy_avx512",
    ".globl adverb_fault_add",
    ".globl adverb_fault_cas",
    ".globl adverb_fault_end",
    ".globl adverb_fault_exit",
    "adverb_fault_begin:",
    "adverb_fault_copy:",
    "cmp rdx, 8",
    "jb 5f",
    "adverb_split_off_tail",
    "jz 8f",
    "cmp rcx, 512",
    "jae 9f",
    "2:",
    "sub rcx, 64",
    "jb 3f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "jmp 2b",
    // Fewer than 64 bytes before the tail: the low six bits of rcx.
    "3:",
    "adverb_32 cl",
    "adverb_16 cl",
    "adverb_word cl, 8, rax",
    "adverb_word cl, 4, eax",
    "adverb_word cl, 2, ax",
    "adverb_word cl, 1, al",
    // The tail.
    "8:",
    "test r8b, 8",
    "jz 15f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "15:",
    "test r8b, 4",
    "jz 16f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    "16:",
    "test r8b, 2",
    "jz 17f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "xor eax, eax",
    "ret",
    "17:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "xor eax, eax",
    "ret",
    "9:",
    "rep movsb",
    "jmp 8b",
    // Up to 7 bytes: a word of 4, of 2, of 1.
    "5:",
    "adverb_word dl, 4, eax",
    "adverb_word dl, 2, ax",
    "adverb_word dl, 1, al",
    "xor eax, eax",
    "ret",
    "adverb_fault_copy_avx2:",
    "adverb_split_off_tail",
    "mov r9d, edi",
    "neg r9d",
    "and r9d, 31",
    "sub rcx, r9",
    "adverb_align_target",
    "sub rcx, 128",
    "jb 22f",
    "21:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "vmovdqa [rdi], ymm0",
    "vmovdqa [rdi + 32], ymm1",
    "vmovdqa [rdi + 64], ymm2",
    "vmovdqa [rdi + 96], ymm3",
    "add rsi, 128",
    "add rdi, 128",
    "sub rcx, 128",
    "jae 21b",
    "22:",
    "vzeroupper",
    "add rcx, 128",
    "jmp 2b",
    "adverb_fault_copy_avx512:",
    "adverb_split_off_tail",
    "mov r9d, edi",
    "neg r9d",
    "and r9d, 63",
    "sub rcx, r9",
    "adverb_align_target",
    "adverb_32 r9b",
    "sub rcx, 256",
    "jb 25f",
    "24:",
    "vmovdqu64 zmm16, [rsi]",
    "vmovdqu64 zmm17, [rsi + 64]",
    "vmovdqu64 zmm18, [rsi + 128]",
    "vmovdqu64 zmm19, [rsi + 192]",
    "vmovdqa64 [rdi], zmm16",
    "vmovdqa64 [rdi + 64], zmm17",
    "vmovdqa64 [rdi + 128], zmm18",
    "vmovdqa64 [rdi + 192], zmm19",
    "add rsi, 256",
    "add rdi, 256",
    "sub rcx, 256",
    "jae 24b",
    "25:",
    "add rcx, 256",
    "26:",
    "sub rcx, 64",
    "jb 3b",
    "vmovdqu64 zmm16, [rsi]",
    "vmovdqa64 [rdi], zmm16",
    "add rsi, 64",
    "add rdi, 64",
    "jmp 26b",
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

/// From as many bytes on, AVX registers pay.
const WIDE: usize = 192;
/// From as many bytes on, the string instruction is the fastest where the processor says that it is made for
/// that.
const STRING: usize = 16 << 10;

unsafe extern "C" {
    fn adverb_fault_copy_avx2(target: usize, source: usize, length: usize) -> u32;
    fn adverb_fault_copy_avx512(target: usize, source: usize, length: usize) -> u32;
    fn adverb_fault_add(address: usize, value: u64, old: *mut u64) -> u32;
    fn adverb_fault_cas(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
}

/// Copies by the fastest routine that the processor has for so many bytes; the result says whether that
/// faulted.
///
/// # Safety
/// As [`super::copy_between`].
#[inline]
pub(super) unsafe fn copy(target: usize, source: usize, length: usize) -> u32 {
    if length < WIDE || length >= STRING && is_x86_feature_detected!("ermsb") {
        // SAFETY: handed on to the caller; a bad address ends in the error exit.
        return unsafe { super::adverb_fault_copy(target, source, length) };
    }
    // SAFETY: handed on to the caller.
    unsafe { copy_long(target, source, length) }
}

/// # Safety
/// As [`copy`], for at least [`WIDE`] bytes.
unsafe fn copy_long(target: usize, source: usize, length: usize) -> u32 {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: handed on to the caller; a bad address ends in the error exit. The processor and the system
        // have the registers.
        return unsafe { adverb_fault_copy_avx512(target, source, length) };
    }
    if !is_x86_feature_detected!("avx2") {
        // SAFETY: handed on to the caller; a bad address ends in the error exit.
        return unsafe { super::adverb_fault_copy(target, source, length) };
    }
    // SAFETY: as above, with AVX's registers.
    let result = unsafe { adverb_fault_copy_avx2(target, source, length) };
    if result != 0 {
        // SAFETY: the processor has the instruction, and the compiler knows that the registers change.
        unsafe { std::arch::asm!("vzeroupper", clobber_abi("C"), options(nomem, nostack)) };
    }
    result
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

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;

    type Routine = unsafe extern "C" fn(usize, usize, usize) -> u32;

    // Those that this processor has.
    fn routines() -> Vec<Routine> {
        let mut routines: Vec<Routine> = vec![super::super::adverb_fault_copy];
        if is_x86_feature_detected!("avx2") {
            routines.push(adverb_fault_copy_avx2);
        }
        if is_x86_feature_detected!("avx512f") {
            routines.push(adverb_fault_copy_avx512);
        }
        routines
    }

    #[test]
    fn every_routine_copies_all_bytes_and_no_others() {
        let given: Vec<u8> = (0..1200).map(|i| (i * 31 + i / 256 * 7 + 1) as u8).collect();
        for routine in routines() {
            let places = (0..65).step_by(3).flat_map(|to| [0, 1, 8, 37].map(|from| (to, from)));
            for ((to, from), length) in
                places.flat_map(|place| (WIDE..1000).step_by(13).map(move |n| (place, n)))
            {
                let mut around = vec![0xee; 1200];
                // SAFETY: both ranges lie in live vectors.
                let result = unsafe {
                    routine(around.as_mut_ptr() as usize + to, given.as_ptr() as usize + from, length)
                };
                assert_eq!(result, 0);
                assert!(around[..to].iter().all(|byte| *byte == 0xee), "{to} {from} {length}");
                assert_eq!(around[to..to + length], given[from..from + length], "{to} {from} {length}");
                assert!(around[to + length..].iter().all(|byte| *byte == 0xee), "{to} {from} {length}");
            }
        }
    }

    // Wherever in a routine the page ends: in the words before the first whole register, in the registers,
    // behind them.
    #[test]
    fn every_routine_ends_with_an_error_at_a_page_that_may_not_be_touched() {
        super::super::install_handler();
        let page = page();
        // SAFETY: the second page is ours and unused.
        assert_eq!(unsafe { libc::mprotect((page + 4096) as *mut _, 4096, libc::PROT_NONE) }, 0);
        let mut other = vec![0u8; 1200];
        let other = other.as_mut_ptr() as usize;
        for routine in routines() {
            for (there, length) in (1..700).flat_map(|there| [701, 1000].map(|length| (there, length))) {
                // SAFETY: the pages are ours; that one of them may not be touched is the subject of the test.
                unsafe {
                    assert_eq!(routine(page + 4096 - there, other, length), 1, "{there} {length}");
                    assert_eq!(routine(other, page + 4096 - there, length), 1, "{there} {length}");
                }
            }
        }
    }
}
