//! The atomics, fences, locks and cells of the code that `model` checks: the processor's and the system's, or
//! those of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// A full fence behind a read-modify-write, or a store in the one order of all, of the same thread. On x86-64
/// that is a fence by itself.
#[inline]
pub(crate) fn fence_behind() {
    if cfg!(all(target_arch = "x86_64", not(loom))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The cheap half of an asymmetric fence: keeps the compiler from moving a later load before an earlier
/// store. That the processor does not either, the other half sees to, a barrier that the kernel has every
/// thread pass. A model has no such pair, and gets full fences on both sides.
#[inline]
pub(crate) fn light_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A value that its users keep one another from by other means. A model says when they do not.
pub(crate) struct Cell<T> {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<T>,
    #[cfg(not(loom))]
    cell: std::cell::UnsafeCell<T>,
}

impl<T: Copy> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(loom)]
        let cell = loom::cell::UnsafeCell::new(value);
        #[cfg(not(loom))]
        let cell = std::cell::UnsafeCell::new(value);
        Self { cell }
    }

    /// The value.
    ///
    /// # Safety
    /// No other thread writes it meanwhile.
    #[inline]
    pub(crate) unsafe fn get(&self) -> T {
        #[cfg(loom)]
        // SAFETY: the caller's promise, of which loom says whether it is kept.
        return self.cell.with(|value| unsafe { *value });
        #[cfg(not(loom))]
        // SAFETY: the caller's promise.
        return unsafe { *self.cell.get() };
    }

    /// Puts another value into the cell.
    ///
    /// # Safety
    /// No other thread reads or writes it meanwhile.
    #[inline]
    pub(crate) unsafe fn set(&self, new: T) {
        #[cfg(loom)]
        // SAFETY: the caller's promise, of which loom says whether it is kept.
        self.cell.with_mut(|value| unsafe { *value = new });
        #[cfg(not(loom))]
        // SAFETY: the caller's promise.
        unsafe {
            *self.cell.get() = new;
        }
    }
}
