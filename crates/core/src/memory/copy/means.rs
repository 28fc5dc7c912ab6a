//! How a thread finds out that an address is bad.
//!
//! Usually the handler of SIGSEGV and SIGBUS finds the bad address. The kernel ends a process whose faulting
//! thread blocks the signal. So such a thread unblocks the signal for the copy, and the handler keeps signals
//! that are no fault. A later handler of the program may not pass faults on. Then the kernel copies, and
//! answers with an error. Neither the mask nor the handler can be seen without a system call, so a thread
//! looks once, and again after some copies ([`LOOKS_AFTER`]). A thread that registers memory or makes a queue
//! pair looks for the handler at once, for all threads.

use super::deferred::Keeper;
use super::handler;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// What keeps a fault from ending the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// The handler.
    Handler,
    /// The handler, once the signal is let in.
    LetIn,
    /// The kernel copies.
    Kernel,
}

/// Copies after which a thread looks again: what it costs is no part of what they cost.
const LOOKS_AFTER: u32 = 256;

/// Another handler is in the place of ours.
static IS_LOST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What the thread has found, and for how many copies more that counts.
    static FOUND: Cell<(Means, u32)> = const { Cell::new((Means::Handler, 0)) };
}

/// The means of the calling thread.
#[inline]
pub(super) fn means() -> Means {
    let (means, left) = FOUND.get();
    if left == 0 {
        return look();
    }
    FOUND.set((means, left - 1));
    if IS_LOST.load(Ordering::Relaxed) { Means::Kernel } else { means }
}

/// Looks for the handler, for all threads; the calling one looks at its mask when it copies next.
pub(super) fn look_for_handler() {
    IS_LOST.store(!handler::is_installed(), Ordering::Relaxed);
    FOUND.set((Means::Handler, 0));
}

#[cold]
fn look() -> Means {
    // PRACTICE-FAULT-1, PRACTICE-FAULT-2
    let is_lost = !handler::is_installed();
    IS_LOST.store(is_lost, Ordering::Relaxed);
    let means = if blocks() { Means::LetIn } else { Means::Handler };
    FOUND.set((means, LOOKS_AFTER));
    if is_lost { Means::Kernel } else { means }
}

/// Whether the calling thread blocks one of the signals.
fn blocks() -> bool {
    // SAFETY: a signal set is plain data, filled before it is read.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        handler::SIGNALS.iter().any(|signal| libc::sigismember(&raw const mask, *signal) == 1)
    }
}

/// Faults come to the calling thread while this lives. Signals that were sent (kill(2)) still wait, if our
/// handler is installed.
// PRACTICE-FAULT-4
pub(super) struct Open {
    before: libc::sigset_t,
    // Dropped when the mask is what it was.
    _keeper: Keeper,
}

impl Open {
    pub(super) fn new() -> Self {
        // First: a signal that waits comes in the moment in which it is let in.
        let keeper = Keeper::new();
        // SAFETY: signal sets are plain data, filled before use.
        unsafe {
            let (mut ours, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut ours);
            for signal in handler::SIGNALS {
                libc::sigaddset(&raw mut ours, signal);
            }
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const ours, &raw mut before);
            Self { before, _keeper: keeper }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that blocks the signals, or no longer does, finds out within so many copies, and not earlier.
    // PRACTICE-FAULT-1
    #[test]
    fn a_thread_looks_again_after_so_many_copies() {
        // Whether the handler is in its place is another matter, which other tests change.
        let found = || {
            means();
            FOUND.get().0
        };
        std::thread::spawn(move || {
            assert_eq!(found(), Means::Handler, "the first copy looks");
            for (how, before, after) in [
                (libc::SIG_BLOCK, Means::Handler, Means::LetIn),
                (libc::SIG_UNBLOCK, Means::LetIn, Means::Handler),
            ] {
                // SAFETY: a signal set is plain data, filled before it is read.
                unsafe {
                    let mut signals: libc::sigset_t = std::mem::zeroed();
                    libc::sigemptyset(&raw mut signals);
                    libc::sigaddset(&raw mut signals, libc::SIGSEGV);
                    libc::pthread_sigmask(how, &raw const signals, std::ptr::null_mut());
                }
                assert!((0..LOOKS_AFTER).all(|_| found() == before));
                assert_eq!(found(), after);
            }
        })
        .join()
        .unwrap();
    }
}
