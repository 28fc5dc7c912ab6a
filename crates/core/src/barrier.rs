//! A memory barrier of which one side pays nothing.
//!
//! Two threads each store a word and then look at the other's word. At least one is to see the other's store,
//! and for that both need a full fence between store and look. If one thread runs often and the other rarely,
//! the rare one pays for both fences. [`heavy`] has the kernel make every running thread of the process pass
//! a full barrier (membarrier(2)). The frequent thread only keeps the compiler from changing the order
//! ([`light`]).

use crate::sync::{fence, light_fence};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// No thread has asked the kernel yet.
const UNKNOWN: u8 = 0;
/// Both sides use full fences.
const SYMMETRIC: u8 = 1;
/// [`heavy`] works.
const ASYMMETRIC: u8 = 2;

static KIND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Registers the process, if the kernel offers that and lets it. Until then both sides use full fences.
/// Thread-safe; all calls but the first cost nothing.
pub(crate) fn set_up() -> bool {
    if KIND.load(Ordering::Relaxed) == UNKNOWN {
        let kind = if register() { ASYMMETRIC } else { SYMMETRIC };
        // A thread in the middle of a pair of full fences is as well served by a barrier.
        let _ = KIND.compare_exchange(UNKNOWN, kind, Ordering::SeqCst, Ordering::SeqCst);
    }
    is_asymmetric()
}

/// Whether [`heavy`] spares the other side its fence. Once it does, it always does.
#[inline]
pub(crate) fn is_asymmetric() -> bool {
    // Acquire: a look behind this is not made before the answer is known.
    cfg!(loom) || KIND.load(Ordering::Acquire) == ASYMMETRIC
}

/// The frequent side's fence, between its store and its look.
#[inline]
pub(crate) fn light() {
    if is_asymmetric() { light_fence() } else { fence(Ordering::SeqCst) }
}

/// The seldom side's fence, between its store and its look: a system call of some microseconds. Behind it,
/// each other thread of the process has either made its own store visible, or sees the caller's with its next
/// look.
#[cold]
pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
    if !cfg!(loom) && is_asymmetric() && !barrier() {
        // A filter of the program's forbids the call now, or the kernel has no memory for it. No processor
        // keeps a store to itself for so long.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn register() -> bool {
    let wanted = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    let offered = membarrier(libc::MEMBARRIER_CMD_QUERY).is_some_and(|mask| mask & wanted == wanted);
    offered && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_some() && barrier()
}

/// Has every running thread of this process pass a full barrier. False if the kernel does not.
pub(crate) fn barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_some()
}

fn membarrier(command: libc::c_int) -> Option<libc::c_int> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: membarrier(2) takes two integers here and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0) };
    (result >= 0).then_some(result as libc::c_int)
}
