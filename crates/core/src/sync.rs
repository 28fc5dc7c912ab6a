//! The atomics and fences of what `model` checks: the processor's, or those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// A full fence behind a read-modify-write, or a store in the one order of all, of the same thread. On x86-64 that is a fence by itself.
#[inline]
pub(crate) fn fence_behind() {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}
