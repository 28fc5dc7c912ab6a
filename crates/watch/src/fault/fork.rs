//! Faults in a child of fork: what the locks protect is whole, and what is due at times has a thread there,
//! too. What is counted goes on from where the parent was.

use super::{FAULTS, Faults, network};
use std::cell::UnsafeCell;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often this process is a child of fork, counted from the one in which the faults began.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The locks of a thread that forks.
struct HeldLocks(UnsafeCell<Option<Vec<Box<dyn Lock>>>>);

// SAFETY: the thread that forks has it, from when it has the first lock until it lets go of that.
unsafe impl Sync for HeldLocks {}

static HELD: HeldLocks = HeldLocks(UnsafeCell::new(None));

trait Lock {}

impl<T> Lock for MutexGuard<'static, T> {}

impl Faults {
    /// Keeps the locks whole over forks: they are taken while the process is copied.
    pub(super) fn survive_forks() {
        // SAFETY: static functions that may run at a fork: they take and leave locks, and count.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }

    /// In the order in which other threads take them.
    fn locks(&'static self) -> Vec<Box<dyn Lock>> {
        let (carriers, states) = self.device.locks();
        let mut all: Vec<Box<dyn Lock>> =
            vec![Box::new(carriers), Box::new(states), Box::new(self.pairs.lock())];
        for counted in &self.rules {
            all.push(Box::new(network::lock(&counted.flows)));
        }
        all
    }
}

extern "C" fn before_fork() {
    if let Some(faults) = FAULTS.get() {
        let locks = faults.locks();
        // SAFETY: the locks are held.
        unsafe { *HELD.0.get() = Some(locks) };
    }
}

/// The guard that was taken last goes first: the first one protects what holds them.
fn let_go() {
    // SAFETY: the locks are held since `before_fork`.
    let locks = unsafe { (*HELD.0.get()).take() };
    locks.into_iter().flatten().rev().for_each(drop);
}

extern "C" fn in_parent() {
    let_go();
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let_go();
}
