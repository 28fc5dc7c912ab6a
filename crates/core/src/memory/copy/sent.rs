//! Tests of signals that somebody sends while a thread copies: they are no faults.

use super::tests::{alone, in_a_child, page, shared_page, wait_for};
use super::*;
use crate::memory::until::until;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// How often a signal has come in the middle of a routine, and at all.
static CAME: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

extern "C" fn counts(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid ucontext.
    let counter = unsafe { *arch::program_counter(&mut *context.cast()) } as usize;
    let came = |at: usize| CAME[at].fetch_add(1, Ordering::SeqCst);
    if handler::routines().contains(&counter) {
        came(0);
    }
    came(1);
}

/// The bytes that a copy in one go has: nearly all of the time passes in the routine.
const LONG: usize = 1 << 20;

// PRACTICE-FAULT-4
#[test]
fn a_signal_that_is_sent_in_the_middle_of_a_copy_is_the_programs() {
    if alone("sent::a_signal_that_is_sent_in_the_middle_of_a_copy_is_the_programs") {
        return;
    }
    take_over(counts);
    install_handler();
    let ends = Arc::new(AtomicBool::new(false));
    let seen = ends.clone();
    let copies = std::thread::spawn(move || {
        let (source, mut target) = (vec![7u8; LONG], vec![0u8; LONG]);
        while !seen.load(Ordering::SeqCst) {
            target.fill(0);
            // SAFETY: both are ours.
            unsafe { copy_between(target.as_mut_ptr() as usize, source.as_ptr() as usize, LONG) }?;
            assert!(target == source, "it goes on where it was interrupted");
        }
        Ok::<(), Fault>(())
    });
    let came = |at: usize| CAME[at].load(Ordering::SeqCst);
    for round in 1.. {
        if came(0) >= 20 || copies.is_finished() {
            break;
        }
        // SAFETY: a thread that has not been joined. There is a handler.
        unsafe { libc::pthread_kill(copies.as_pthread_t(), handler::SIGNALS[round % 2]) };
        assert!(until(|| came(1) >= round || copies.is_finished()));
    }
    ends.store(true, Ordering::SeqCst);
    assert_eq!(copies.join().unwrap(), Ok(()), "no address was bad");
}

// PRACTICE-FAULT-4
#[test]
fn a_signal_that_is_sent_in_the_middle_of_a_copy_ends_a_process_without_a_handler() {
    if alone("sent::a_signal_that_is_sent_in_the_middle_of_a_copy_ends_a_process_without_a_handler") {
        return;
    }
    for signal in handler::SIGNALS {
        // SAFETY: a plain number. The C library's and Rust's handlers are of no use here.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    install_handler();
    let (source, mut target) = (vec![7u8; LONG], vec![0u8; LONG]);
    let word = &shared_page()[3];
    for round in 0..20 {
        word.store(0, Ordering::SeqCst);
        // It ends with status 0 where a copy fails.
        let child = in_a_child(|| {
            // SAFETY: both are ours.
            while unsafe { copy_between(target.as_mut_ptr() as usize, source.as_ptr() as usize, LONG) }
                .is_ok()
            {
                word.fetch_add(1, Ordering::SeqCst);
            }
        });
        let copies = until(|| word.load(Ordering::SeqCst) >= 2);
        let (signal, mut status) = (handler::SIGNALS[round % 2], 0);
        // SAFETY: our child, and a live local.
        unsafe {
            assert_eq!(libc::kill(child, signal), 0);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        assert!(copies, "it copies");
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{status:#x}");
    }
}

/// The last signal's cause, as si_code has it.
static CAUSE: AtomicI32 = AtomicI32::new(i32::MAX);

extern "C" fn notes_its_cause(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid one.
    CAUSE.store(unsafe { (*info).si_code }, Ordering::SeqCst);
    CAME[1].fetch_add(1, Ordering::SeqCst);
}

fn take_over(function: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: a filled structure.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (function as *const () as usize, libc::SA_SIGINFO);
        for signal in handler::SIGNALS {
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
}

fn change_mask(how: libc::c_int) -> libc::sigset_t {
    // SAFETY: a signal set is plain data, filled before use.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in handler::SIGNALS {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
        signals
    }
}

fn is_pending(signal: libc::c_int) -> bool {
    // SAFETY: a signal set is plain data, filled before it is read.
    unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&raw mut pending);
        libc::sigismember(&raw const pending, signal) == 1
    }
}

/// Copies to a page, and to where none is: whether both went as they should.
fn copies(page: usize) -> bool {
    // SAFETY: the page is ours, and the second one is nobody's.
    unsafe {
        copy_to(page, &[1; 64]).is_ok()
            && copy_to(page + 4096, &[1; 64]) == Err(Fault)
            && fetch_add(page, 1).is_ok()
    }
}

/// A page, with nothing behind it.
fn lone_page() -> usize {
    let page = page();
    // SAFETY: the second page is ours and unused.
    assert_eq!(unsafe { libc::munmap((page + 4096) as *mut _, 4096) }, 0);
    page
}

// PRACTICE-FAULT-4
#[test]
fn a_signal_that_is_sent_to_a_thread_that_blocks_it_waits_while_the_thread_copies() {
    if alone("sent::a_signal_that_is_sent_to_a_thread_that_blocks_it_waits_while_the_thread_copies") {
        return;
    }
    take_over(notes_its_cause);
    install_handler();
    let page = lone_page();
    let came = || CAME[1].load(Ordering::SeqCst);
    let blocks = move || {
        change_mask(libc::SIG_BLOCK);
        for (round, signal) in handler::SIGNALS.into_iter().enumerate() {
            // SAFETY: there is a handler.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
            assert!(copies(page) && copies(page));
            assert_eq!(came(), round, "the thread blocks it");
            assert!(is_pending(signal));
            change_mask(libc::SIG_UNBLOCK);
            assert_eq!(
                (came(), CAUSE.load(Ordering::SeqCst)),
                (round + 1, libc::SI_TKILL),
                "once, as it was sent"
            );
            change_mask(libc::SIG_BLOCK);
        }
    };
    std::thread::spawn(blocks).join().unwrap();
}

/// A signal to the process is for any thread, also for one that waits for it.
// PRACTICE-FAULT-4
#[test]
fn a_signal_that_is_sent_to_a_process_and_blocked_by_all_threads_stays_the_processs() {
    if alone("sent::a_signal_that_is_sent_to_a_process_and_blocked_by_all_threads_stays_the_processs") {
        return;
    }
    take_over(notes_its_cause);
    install_handler();
    let page = lone_page();
    let test = |in_first_thread: bool| {
        let signals = change_mask(libc::SIG_BLOCK);
        let sender = std::process::id();
        // SAFETY: a plain number; there is a handler.
        unsafe { libc::kill(sender as libc::pid_t, libc::SIGSEGV) };
        let copied = match in_first_thread {
            true => copies(page),
            false => std::thread::spawn(move || copies(page)).join().is_ok_and(|copied| copied),
        };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: live locals.
        let (taken, cause) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&raw const signals, &raw mut info, &raw const now), info.si_code)
        };
        copied && CAME[1].load(Ordering::SeqCst) == 0 && (taken, cause) == (libc::SIGSEGV, libc::SI_USER)
    };
    for in_first_thread in [true, false] {
        // The only other thread sleeps: no lock of the C library's is held that its fork does not free.
        wait_for(in_a_child(|| {
            if !test(in_first_thread) {
                // SAFETY: ends the child.
                unsafe { libc::_exit(1) };
            }
        }));
    }
}
