//! The atomics and fences of the rings: the processor's, or those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The cheap half of an asymmetric fence: keeps the compiler from moving a later load before an earlier
/// store. The other side's [`crate::membarrier::barrier`] keeps the processor from it. A model has no such
/// pair, and gets full fences on both sides.
#[inline]
pub(crate) fn light_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A word of a ring. Its side uses it alone while it holds the slot, by [`get`](Self::get) and
/// [`set`](Self::set), which a model checks. A side that only looks for a ready word uses the atomic.
#[derive(Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Word {
    pub(crate) atomic: AtomicU64,
    #[cfg(loom)]
    holder: loom::cell::UnsafeCell<()>,
}

impl Word {
    /// The value of the word. A relaxed access: what another process does to it meanwhile is no data race,
    /// and the compiler can neither read it again after it has been judged, nor write it on its own account.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        #[cfg(loom)]
        self.holder.with(|_| ());
        self.atomic.load(Ordering::Relaxed)
    }

    /// Writes it, as [`get`](Self::get) reads it.
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        #[cfg(loom)]
        self.holder.with_mut(|_| ());
        self.atomic.store(value, Ordering::Relaxed);
    }
}
