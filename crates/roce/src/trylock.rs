//! A lock that nobody waits for: who does not get it goes on without. It costs half of what a mutex does.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Default)]
pub(crate) struct TryLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the one guard that there is at a time, by whichever thread has it.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    /// The value, unless somebody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        // Acquire: what the last holder did to the value.
        (!self.taken.swap(true, Ordering::Acquire)).then_some(TryGuard(self))
    }
}

/// Holds a [`TryLock`].
pub(crate) struct TryGuard<'a, T>(&'a TryLock<T>);

impl<T> Deref for TryGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: who made the guard found the lock free, and nobody else does while it lives.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for TryGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard itself is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for TryGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let lock = TryLock::<u64>::default();
        let held = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        drop(held);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut left = 1000;
                    while left > 0 {
                        match lock.try_lock() {
                            Some(mut value) => {
                                *value += 1;
                                left -= 1;
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.try_lock().unwrap(), 4000);
    }
}
