//! Tests of signals that somebody sends while a thread copies: they are no faults.

use super::tests::{alone, in_a_child, shared_page};
use super::*;
use crate::memory::until::until;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    // SAFETY: a filled structure.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (counts as *const () as usize, libc::SA_SIGINFO);
        for signal in handler::SIGNALS {
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
    }
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
