//! The atomics and fences of the rings: the processor's, or those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The cheap half of an asymmetric fence: keeps the compiler from moving a later load before an earlier store. That the processor does not
/// either is what the other side's [`crate::membarrier::barrier`] sees to. A model has no such pair, and gets full fences on both sides.
#[inline]
pub(crate) fn light_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}
