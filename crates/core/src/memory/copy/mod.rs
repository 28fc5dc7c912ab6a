//! The only code that touches application memory: copies and atomics that survive a bad address.
//!
//! Registered memory belongs to the program, which may unmap it whenever it likes. The routines below are a
//! few instructions of assembly between two labels; a chained SIGSEGV/SIGBUS handler that finds the faulting
//! program counter between them resumes at the error exit, and passes every other fault on to the earlier
//! handler. A thread to which the handler would not come copies in another way ([`means`]). Each architecture
//! has its own routines, and so a way to be atomic with the program and with other processes; there is no
//! build for an architecture without.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod arch;
mod deferred;
mod handler;
mod kernel;
mod means;

use means::{Means, Open};
use std::sync::Once;

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
compile_error!(
    "adverb runs on x86-64 and on AArch64: other architectures need routines of their own in memory/copy"
);

unsafe extern "C" {
    /// Copies `length` bytes, the last word after everything before it; 0, or 1 if an address was bad.
    fn adverb_fault_copy(target: usize, source: usize, length: usize) -> u32;
}

/// The address range could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Copies `source` to application memory at `target`, in ascending order, the last word after everything
/// before it: a program that sees the last byte sees all of them.
///
/// # Safety
/// The range must be one that the program registered for writing, or otherwise gave for it: whatever lies
/// there is overwritten.
// RFC5041-8.3.2-1
pub unsafe fn copy_to(target: usize, source: &[u8]) -> Result<(), Fault> {
    if source.is_empty() {
        return Ok(());
    }
    // SAFETY: `source` is a live slice of its length; the caller vouches for the right to write at `target`,
    // and a bad address there ends in the routine's error exit.
    unsafe { copy_between(target, source.as_ptr() as usize, source.len()) }
}

/// Copies application memory at `source` into `target`.
///
/// # Safety
/// The range must be one that the program registered or gave for reading.
pub unsafe fn copy_from(target: &mut [u8], source: usize) -> Result<(), Fault> {
    if target.is_empty() {
        return Ok(());
    }
    // SAFETY: `target` is a live, exclusive slice of its length; a bad address at `source` ends in the error
    // exit.
    unsafe { copy_between(target.as_mut_ptr() as usize, source, target.len()) }
}

/// Copies `length` bytes at `source` to `target`, in ascending order, the last word last.
///
/// # Safety
/// As [`copy_to`] for the target and [`copy_from`] for the source.
pub(crate) unsafe fn copy_between(target: usize, source: usize, length: usize) -> Result<(), Fault> {
    let means = means::means();
    if means == Means::Handler {
        // SAFETY: the caller vouches for the two ranges, and the routine touches nothing else; a bad address
        // ends in its error exit.
        return check(unsafe { arch::copy(target, source, length) });
    }
    // SAFETY: the caller's promise.
    unsafe { copy_carefully(means, target, source, length) }
}

/// Copies `length` bytes at `source` to `target`, as [`copy_between`] does, in a thread whose faults our
/// handler does not hear of by itself.
///
/// # Safety
/// As of [`copy_between`].
#[cold]
unsafe fn copy_carefully(means: Means, target: usize, source: usize, length: usize) -> Result<(), Fault> {
    if means == Means::Kernel {
        // SAFETY: the caller's promise.
        if let Some(copied) = unsafe { kernel::copy(target, source, length) } {
            return copied;
        }
    }
    let _open = Open::new();
    // SAFETY: the caller vouches for the two ranges. A bad address ends in the routine's error exit, or where
    // the handler of the program takes it.
    check(unsafe { arch::copy(target, source, length) })
}

/// Has an atomic operation done at `address` by the routine `change`, as the calling thread can.
fn atomically(address: usize, change: impl FnOnce() -> u32) -> Result<(), Fault> {
    match means::means() {
        Means::Handler => check(change()),
        Means::Kernel if !kernel::can_be_changed(address) => Err(Fault),
        _ => {
            let _open = Open::new();
            check(change())
        }
    }
}

/// Adds to the 8 bytes at `address` (aligned to 8) atomically; returns what was there.
///
/// # Safety
/// As [`copy_to`].
pub unsafe fn fetch_add(address: usize, value: u64) -> Result<u64, Fault> {
    let mut old = 0;
    // SAFETY: handed on to the caller; `old` is a live local.
    atomically(address, || unsafe { arch::fetch_add(address, value, &raw mut old) }).map(|()| old)
}

/// Replaces the 8 bytes at `address` (aligned to 8) by `swap` if they equal `compare`, atomically; returns
/// what was there.
///
/// # Safety
/// As [`copy_to`].
pub unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Fault> {
    let mut old = 0;
    // SAFETY: handed on to the caller; `old` is a live local.
    atomically(address, || unsafe { arch::compare_swap(address, compare, swap, &raw mut old) }).map(|()| old)
}

/// Installs the fault handler, once per process, in front of the program's own.
pub fn install_handler() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(handler::install);
}

/// Looks whether a fault of any thread would come to the handler, and has the calling one look whether it
/// blocks the signals.
pub(crate) fn look_again() {
    means::look_for_handler();
}

/// In a child of fork: stores alone.
pub(crate) fn forget() {
    deferred::forget();
}

fn check(result: u32) -> Result<(), Fault> {
    if result == 0 { Ok(()) } else { Err(Fault) }
}

#[cfg(test)]
mod sent;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::far::far_address;
    use crate::memory::until::{Limit, until};

    /// Two pages that nobody else has, nor gets when one is unmapped.
    pub(super) fn page() -> usize {
        // SAFETY: a fresh anonymous mapping.
        let page = unsafe {
            libc::mmap(
                far_address(),
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

    // Every alignment of both sides, with nothing changed beside the target.
    #[test]
    fn copies_from_and_to_every_alignment() {
        install_handler();
        let (target, source) = (page(), page());
        let given: Vec<u8> = (0..300).map(|i| (i * 31 + 7) as u8).collect();
        for (to, from, length) in
            (0..9).flat_map(|to| (0..9).flat_map(move |from| (0..150).map(move |length| (to, from, length))))
        {
            let mut around = vec![0; 300];
            // SAFETY: the pages are ours.
            unsafe {
                copy_to(source, &given).unwrap();
                copy_to(target, &[0xee; 300]).unwrap();
                copy_between(target + 16 + to, source + from, length).unwrap();
                copy_from(&mut around, target).unwrap();
            }
            let (before, copied) = around.split_at(16 + to);
            assert!(before.iter().all(|&byte| byte == 0xee), "{to} {from} {length}");
            assert_eq!(copied[..length], given[from..from + length], "{to} {from} {length}");
            assert!(copied[length..].iter().all(|&byte| byte == 0xee), "{to} {from} {length}");
        }
    }

    // A page shared with the processes that this one forks.
    pub(super) fn shared_page() -> &'static [std::sync::atomic::AtomicU64; 512] {
        // SAFETY: a fresh shared mapping of zeros, which stays.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            &*page.cast()
        }
    }

    // Runs `work` in a child of fork, which ends without a trace in this process.
    pub(super) fn in_a_child(work: impl FnOnce()) -> libc::pid_t {
        // SAFETY: the child does nothing but `work`, which neither allocates nor takes a lock, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                work();
                libc::_exit(0);
            }
            assert!(child > 0);
            child
        }
    }

    pub(super) fn wait_for(child: libc::pid_t) {
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    // Both atomics, of two processes, and the program's own additions.
    #[test]
    fn two_processes_and_the_program_count_in_one_word() {
        const COUNT: u64 = 500_000;
        install_handler();
        let page = shared_page();
        let (word, arrived) = (&page[1], &page[2]);
        let address = word.as_ptr() as usize;
        // All at once: one after the other they would count without atomics, too.
        let start = || {
            arrived.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(until(|| arrived.load(std::sync::atomic::Ordering::Relaxed) == 5));
        };
        let add = || {
            start();
            // SAFETY: the word is ours.
            (0..COUNT).for_each(|_| assert!(unsafe { fetch_add(address, 1) }.is_ok()));
        };
        let swap = || {
            start();
            for _ in 0..COUNT {
                let mut seen = 0;
                // SAFETY: the word is ours.
                while let old = unsafe { compare_swap(address, seen, seen + 1) }.unwrap()
                    && old != seen
                {
                    seen = old;
                }
            }
        };
        let children = [in_a_child(add), in_a_child(swap)];
        std::thread::scope(|threads| {
            threads.spawn(add);
            threads.spawn(swap);
            start();
            for _ in 0..COUNT {
                word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        children.into_iter().for_each(wait_for);
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 5 * COUNT);
    }

    // What a program polls for: a counter that is written over and over is never seen in parts.
    fn is_never_torn<T: Copy + PartialEq + std::fmt::Debug>(values: [T; 2], offset: usize, before: usize) {
        install_handler();
        let page = shared_page();
        let address = page.as_ptr() as usize + offset;
        let length = before + size_of::<T>();
        let sources = values.map(|value| {
            let mut source = vec![0u8; length];
            // SAFETY: plain bytes of an integer, into a slice of its length.
            unsafe { source.as_mut_ptr().add(before).cast::<T>().write_unaligned(value) };
            source
        });
        // Also ends the child when this thread panics.
        struct Ends(&'static std::sync::atomic::AtomicU64);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.store(1, std::sync::atomic::Ordering::Release);
            }
        }
        let ends = Ends(&page[511]);
        let child = in_a_child(|| {
            while page[511].load(std::sync::atomic::Ordering::Acquire) == 0 {
                for source in &sources {
                    // SAFETY: the page is ours.
                    let _ = unsafe { copy_to(address - before, source) };
                }
            }
        });
        let (mut reads, mut changes, mut last) = (0, 0, values[0]);
        let limit = Limit::new();
        while reads < 2_000_000 || changes < 100 {
            assert!(reads % 2_000_000 != 1 || !limit.is_over(), "{changes} changes in {reads} reads");
            // SAFETY: an aligned word of the page.
            let now = unsafe { (address as *const T).read_volatile() };
            assert!(values.contains(&now), "{now:?}");
            reads += 1;
            changes += usize::from(now != last);
            last = now;
        }
        drop(ends);
        wait_for(child);
    }

    #[test]
    fn a_word_that_is_polled_is_never_seen_in_parts() {
        is_never_torn([0u64, u64::MAX], 64, 0);
        is_never_torn([0u32, u32::MAX], 64, 0);
        is_never_torn([0u16, u16::MAX], 64, 0);
        // The last word of a longer message, at the beginning of a cache line.
        is_never_torn([0u32, u32::MAX], 64, 32);
        is_never_torn([0u64, u64::MAX], 64, 60);
    }

    /// What a bad address, a good one, and one that may only be read answer, by every routine.
    fn every_answer() {
        for length in [1, 2, 4, 8, 16, 24, 4096, 5000] {
            let (target, held) = (page(), page());
            // SAFETY: the second page of the first mapping, and the second mapping, are ours.
            unsafe {
                assert_eq!(libc::munmap((target + 4096) as *mut _, 4096), 0);
                assert_eq!(libc::mprotect(held as *mut _, 8192, libc::PROT_READ), 0);
            }
            let mut bytes: Vec<u8> = (0..length).map(|at| at as u8 | 1).collect();
            // SAFETY: what lies there is ours, or nobody's.
            unsafe {
                assert_eq!(copy_to(target + 4096, &bytes), Err(Fault));
                assert_eq!(copy_to(target + 4096 - length.min(4096) / 2, &bytes), Err(Fault));
                assert_eq!(copy_to(held, &bytes), Err(Fault));
                assert_eq!(copy_from(&mut bytes, target + 4096 - length.min(4096) / 2), Err(Fault));
                assert_eq!(fetch_add(target + 4096, 1), Err(Fault));
                assert_eq!(compare_swap(held, 0, 1), Err(Fault));
                assert_eq!(fetch_add(target, 5), Ok(0));
                assert_eq!(compare_swap(target, 5, 0), Ok(5));
            }
            let mut back = vec![0; length.min(4096)];
            // SAFETY: the first page is ours.
            unsafe {
                copy_to(target, &bytes[..back.len()]).unwrap();
                copy_from(&mut back, target).unwrap();
            }
            assert_eq!(back, bytes[..back.len()]);
        }
    }

    // PRACTICE-FAULT-1
    #[test]
    fn a_bad_address_is_an_error_in_a_thread_that_blocks_the_signals_too() {
        install_handler();
        let worker = std::thread::spawn(|| {
            // SAFETY: a signal set is plain data, filled before use.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
                every_answer();
                // The thread's mask is what it was.
                libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut all);
                assert!(
                    handler::SIGNALS.iter().all(|signal| libc::sigismember(&raw const all, *signal) == 1)
                );
            }
        });
        worker.join().unwrap();
    }

    /// Runs a test again in a process of its own, where the handlers of signals are nobody else's. False in
    /// that process.
    pub(super) fn alone(test: &str) -> bool {
        const ALONE: &str = "ADVERB_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return false;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", &format!("memory::copy::{test}")]).env(ALONE, "1").output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{:?} {said}", output.status);
        true
    }

    fn set(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
        // SAFETY: a filled structure.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as *const () as usize, flags);
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }

    extern "C" fn gives_up(_: libc::c_int) {
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(3) };
    }

    // PRACTICE-FAULT-2
    #[test]
    fn a_bad_address_is_an_error_where_a_later_handler_passes_nothing_on() {
        if alone("tests::a_bad_address_is_an_error_where_a_later_handler_passes_nothing_on") {
            return;
        }
        install_handler();
        every_answer();
        handler::SIGNALS.iter().for_each(|signal| set(*signal, gives_up, 0));
        look_again();
        every_answer();
        // A thread that has not looked since finds out by itself.
        handler::install();
        look_again();
        let target = page();
        for round in 0..2000 {
            // SAFETY: the page is ours.
            unsafe { copy_to(target, &[1; 8]).unwrap() };
            if round == 100 {
                set(libc::SIGSEGV, gives_up, 0);
            }
        }
        every_answer();
    }

    static WHERE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

    extern "C" fn notes_its_stack(_: libc::c_int) {
        let here = 0u8;
        WHERE.store(&raw const here as usize, std::sync::atomic::Ordering::SeqCst);
    }

    // PRACTICE-FAULT-3
    #[test]
    fn an_earlier_handler_runs_on_the_stack_that_it_asked_for() {
        if alone("tests::an_earlier_handler_runs_on_the_stack_that_it_asked_for") {
            return;
        }
        let mut stack = vec![0u8; 64 << 10];
        let alternate = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        let range = stack.as_ptr() as usize..stack.as_ptr() as usize + stack.len();
        // SAFETY: the memory stays until the process ends this test, and the thread with it.
        assert_eq!(unsafe { libc::sigaltstack(&raw const alternate, std::ptr::null_mut()) }, 0);
        set(libc::SIGSEGV, notes_its_stack, 0);
        set(libc::SIGBUS, notes_its_stack, libc::SA_ONSTACK);
        install_handler();
        for (signal, is_alternate) in [(libc::SIGSEGV, false), (libc::SIGBUS, true)] {
            // SAFETY: there is a handler.
            unsafe { libc::raise(signal) };
            let at = WHERE.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(range.contains(&at), is_alternate, "signal {signal}");
        }
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: the thread is on its own stack.
        unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
    }
}
