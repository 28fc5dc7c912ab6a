//! The only code that touches application memory: copies and atomics that survive a bad address.
//!
//! Registered memory belongs to the program, which may unmap it whenever it likes. The routines below are a few
//! instructions of assembly between two labels; a chained SIGSEGV/SIGBUS handler that finds the faulting program
//! counter between them resumes at the error exit, and passes every other fault on to whoever had the signal before.
//! Where there is no such routine for the architecture, the kernel copies (`process_vm_*` on oneself).

use std::sync::Once;

/// The address range could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Copies `source` to application memory at `target`, in ascending order, the last word after everything before it:
/// a program that sees the last byte sees all of them.
///
/// # Safety
/// The range must be one that the program registered for writing, or otherwise gave for it: whatever lies there is overwritten.
// RFC5041-8.3.2-1
pub unsafe fn copy_to(target: usize, source: &[u8]) -> Result<(), Fault> {
    if source.is_empty() {
        return Ok(());
    }
    // SAFETY: `source` is a live slice of its length; the caller vouches for the right to write at `target`, and a bad
    // address there ends in the routine's error exit.
    unsafe { arch::copy(target, source.as_ptr() as usize, source.len()) }
}

/// Copies application memory at `source` into `target`.
///
/// # Safety
/// The range must be one that the program registered or gave for reading.
pub unsafe fn copy_from(target: &mut [u8], source: usize) -> Result<(), Fault> {
    if target.is_empty() {
        return Ok(());
    }
    // SAFETY: `target` is a live, exclusive slice of its length; a bad address at `source` ends in the error exit.
    unsafe { arch::copy(target.as_mut_ptr() as usize, source, target.len()) }
}

/// Copies `length` bytes at `source` to `target`, in ascending order, the last word last.
///
/// # Safety
/// As [`copy_to`] for the target and [`copy_from`] for the source.
pub(crate) unsafe fn copy_between(target: usize, source: usize, length: usize) -> Result<(), Fault> {
    // SAFETY: handed on to the caller; a bad address on either side ends in the routine's error exit.
    unsafe { arch::copy(target, source, length) }
}

/// Adds to the 8 bytes at `address` (aligned to 8) atomically; returns what was there.
///
/// # Safety
/// As [`copy_to`].
pub(crate) unsafe fn fetch_add(address: usize, value: u64) -> Result<u64, Fault> {
    // SAFETY: handed on to the caller.
    unsafe { arch::fetch_add(address, value) }
}

/// Replaces the 8 bytes at `address` (aligned to 8) by `swap` if they equal `compare`, atomically; returns what was there.
///
/// # Safety
/// As [`copy_to`].
pub(crate) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
    // SAFETY: handed on to the caller.
    unsafe { arch::compare_swap(address, compare, swap) }
}

/// Installs the fault handler, once per process, in front of the program's own.
pub(crate) fn install_handler() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(arch::install);
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::Fault;
    use std::arch::global_asm;
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;

    // copy(target rdi, source rsi, length rdx) -> 0, or 1 on a fault. The last 8 bytes (or fewer) are stored by
    // plain moves after the string instruction, which x86 keeps behind all of its stores.
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
        "jb 3f",
        "je 2f",
        "lea rcx, [rdx - 8]",
        "rep movsb",
        "2:",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "xor eax, eax",
        "ret",
        "3:",
        "test rdx, rdx",
        "jz 5f",
        "4:",
        "mov al, [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jnz 4b",
        "5:",
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
        fn adverb_fault_begin();
        fn adverb_fault_end();
        fn adverb_fault_exit();
        fn adverb_fault_copy(target: usize, source: usize, length: usize) -> u32;
        fn adverb_fault_add(address: usize, value: u64, old: *mut u64) -> u32;
        fn adverb_fault_cas(address: usize, compare: u64, swap: u64, old: *mut u64) -> u32;
    }

    fn check(result: u32) -> Result<(), Fault> {
        if result == 0 { Ok(()) } else { Err(Fault) }
    }

    pub(super) unsafe fn copy(target: usize, source: usize, length: usize) -> Result<(), Fault> {
        // SAFETY: the routine reads and writes just the two ranges; a fault in it resumes at its error exit.
        check(unsafe { adverb_fault_copy(target, source, length) })
    }

    pub(super) unsafe fn fetch_add(address: usize, value: u64) -> Result<u64, Fault> {
        let mut old = 0;
        // SAFETY: as in `copy`; `old` is a live local.
        check(unsafe { adverb_fault_add(address, value, &raw mut old) }).map(|()| old)
    }

    pub(super) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut old = 0;
        // SAFETY: as in `copy`; `old` is a live local.
        check(unsafe { adverb_fault_cas(address, compare, swap, &raw mut old) }).map(|()| old)
    }

    struct Previous([UnsafeCell<MaybeUninit<libc::sigaction>>; 2]);
    // SAFETY: written once before the handler that reads it is installed, never again.
    unsafe impl Sync for Previous {}
    static PREVIOUS: Previous = Previous([const { UnsafeCell::new(MaybeUninit::zeroed()) }; 2]);

    fn slot(signal: libc::c_int) -> *mut libc::sigaction {
        PREVIOUS.0[usize::from(signal == libc::SIGBUS)].get().cast()
    }

    pub(super) fn install() {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: plain sigaction(2) calls on zeroed, then filled structures; `slot` is a static.
            unsafe {
                libc::sigaction(signal, std::ptr::null(), slot(signal));
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_mask = (*slot(signal)).sa_mask;
                // The program's own choice of alternate stack and restarting stays; NODEFER lets a fault inside a
                // chained handler behave as it did without us.
                action.sa_flags = libc::SA_SIGINFO
                    | ((*slot(signal)).sa_flags & (libc::SA_RESTART | libc::SA_NODEFER))
                    | libc::SA_ONSTACK;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }

    extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid ucontext to an SA_SIGINFO handler; only the program counter is changed, and
        // only when it lies in our routine, whose error exit needs no register or stack but what the call left.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let counter = registers[libc::REG_RIP as usize] as usize;
            if (adverb_fault_begin as *const () as usize..adverb_fault_end as *const () as usize)
                .contains(&counter)
            {
                registers[libc::REG_RIP as usize] = adverb_fault_exit as *const () as i64;
                return;
            }
            let previous = &*slot(signal);
            // No fault, but kill(2) or the like: it does not come again by itself.
            let was_sent = (*info).si_code <= 0;
            match previous.sa_sigaction {
                libc::SIG_IGN if was_sent => {}
                // The default or nothing: restore it and let the instruction fault again, so that the process ends as it
                // would have without us. An ignored synchronous fault ends the process too.
                libc::SIG_DFL | libc::SIG_IGN => {
                    libc::sigaction(signal, previous, std::ptr::null_mut());
                    if was_sent {
                        libc::raise(signal);
                    }
                }
                function if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                    let function: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(function);
                    function(signal, info, context);
                }
                function => {
                    let function: extern "C" fn(libc::c_int) = std::mem::transmute(function);
                    function(signal);
                }
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use super::Fault;
    use std::sync::Mutex;

    pub(super) fn install() {}

    pub(super) unsafe fn copy(target: usize, source: usize, length: usize) -> Result<(), Fault> {
        // The tail goes in a second copy, so that it is visible last.
        let tail = length.min(8);
        for (offset, part) in [(0, length - tail), (length - tail, tail)] {
            if part == 0 {
                continue;
            }
            let local = libc::iovec { iov_base: (source + offset) as *mut _, iov_len: part };
            let remote = libc::iovec { iov_base: (target + offset) as *mut _, iov_len: part };
            // SAFETY: process_vm_writev on oneself checks both ranges itself.
            let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
            if copied != part as isize {
                return Err(Fault);
            }
        }
        Ok(())
    }

    static ATOMICS: Mutex<()> = Mutex::new(());

    unsafe fn update(address: usize, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        let _exclusive = ATOMICS.lock().unwrap_or_else(|e| e.into_inner());
        let mut old = 0u64;
        // SAFETY: `old` is a live local; the address is checked by the kernel.
        unsafe { copy(&raw mut old as usize, address, 8)? };
        let new = change(old);
        // SAFETY: as above.
        unsafe { copy(address, &raw const new as usize, 8)? };
        Ok(old)
    }

    pub(super) unsafe fn fetch_add(address: usize, value: u64) -> Result<u64, Fault> {
        // SAFETY: handed on.
        unsafe { update(address, |old| old.wrapping_add(value)) }
    }

    pub(super) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: handed on.
        unsafe { update(address, |old| if old == compare { swap } else { old }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> usize {
        // SAFETY: a fresh anonymous mapping.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        page as usize
    }

    #[test]
    fn copies_every_length() {
        install_handler();
        let target = page();
        for length in (0..40).chain([4096, 8191]) {
            let source: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
            let mut back = vec![0; length];
            // SAFETY: the page is ours.
            unsafe {
                copy_to(target, &source).unwrap();
                copy_from(&mut back, target).unwrap();
            }
            assert_eq!(source, back);
        }
    }

    #[test]
    // RFC5041-8.3.2-1
    fn an_unmapped_page_is_an_error() {
        install_handler();
        let target = page();
        // SAFETY: the second page is ours and unused.
        unsafe { libc::munmap((target + 4096) as *mut _, 4096) };
        let mut back = [0; 64];
        // SAFETY: the first page is ours, the second is nobody's: faults are the subject of the test.
        unsafe {
            assert_eq!(copy_to(target + 4096, &[1; 64]), Err(Fault));
            assert_eq!(copy_to(target + 4090, &[1; 64]), Err(Fault));
            assert_eq!(copy_to(target + 4092, &[1; 8]), Err(Fault));
            assert_eq!(copy_from(&mut back, target + 4096), Err(Fault));
            assert_eq!(fetch_add(target + 4096, 1), Err(Fault));
            assert_eq!(compare_swap(target + 4096, 0, 1), Err(Fault));
            copy_to(target, &[2; 64]).unwrap();
            copy_from(&mut back, target).unwrap();
        }
        assert_eq!(back, [2; 64]);
    }

    // RFC5041-8.3.2-1
    #[test]
    fn a_page_that_may_only_be_read_is_not_written() {
        install_handler();
        let target = page();
        // SAFETY: the page is ours.
        assert_eq!(unsafe { libc::mprotect(target as *mut _, 4096, libc::PROT_READ) }, 0);
        let mut back = [1; 64];
        // SAFETY: the page is ours and may be read; that it may not be written is the subject of the test.
        unsafe {
            assert_eq!(copy_to(target, &[1; 64]), Err(Fault));
            assert_eq!(fetch_add(target, 1), Err(Fault));
            copy_from(&mut back, target).unwrap();
        }
        assert_eq!(back, [0; 64]);
    }

    #[test]
    fn atomics() {
        install_handler();
        let target = page();
        // SAFETY: the page is ours.
        unsafe {
            assert_eq!(fetch_add(target, 5), Ok(0));
            assert_eq!(fetch_add(target, 5), Ok(5));
            assert_eq!(compare_swap(target, 9, 1), Ok(10));
            assert_eq!(compare_swap(target, 10, 1), Ok(10));
            assert_eq!(fetch_add(target, 0), Ok(1));
        }
    }
}
