//! A lock for what is done in a few dozen nanoseconds, most of them with nobody else about. It costs half of what a mutex does: letting go is a plain
//! store. Who comes meanwhile spins for a moment, then sleeps; that he sleeps, who lets go may miss once in a long while, and so sleeps are short.

use crate::sync::{AtomicU32, Ordering};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// Looks before a thread sleeps.
const SPINS: u32 = if cfg!(loom) { 1 } else { 100 };
/// How long it does so at a time, in nanoseconds.
#[cfg(not(loom))]
const SLEEP: libc::c_long = 100_000;

const FREE: u32 = 0;
const TAKEN: u32 = 1;

fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// See the module. A panic leaves it free: what it protects is consistent between any two statements.
#[derive(Default)]
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the one guard that there is at a time, by whichever thread has it.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that is free.
    pub fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), sleepers: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// The value, once nobody else has it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard(self)
    }

    /// The value, unless somebody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().then(|| Guard(self))
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: what the last holder did to the value. The model checker does not know that nothing comes between the two halves of a swap: it gets an
        // exchange that writes nothing where a swap would write what is there.
        #[cfg(loom)]
        return self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        #[cfg(not(loom))]
        return self.state.swap(TAKEN, Ordering::Acquire) == FREE;
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            pause();
            if self.state.load(Ordering::Relaxed) == FREE && self.take() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.take() {
            #[cfg(loom)]
            pause();
            #[cfg(not(loom))]
            self.sleep();
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(not(loom))]
    fn sleep(&self) {
        let most = libc::timespec { tv_sec: 0, tv_nsec: SLEEP };
        // SAFETY: futex(2) on a live word, with a live time.
        unsafe {
            let (wait, state) = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, self.state.as_ptr());
            libc::syscall(libc::SYS_futex, state, wait, TAKEN, &raw const most);
        }
    }

    #[cold]
    fn wake(&self) {
        // In a model nobody sleeps.
        #[cfg(not(loom))]
        // SAFETY: futex(2) on a live word.
        unsafe {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.state.as_ptr(), wake, 1);
        }
    }
}

/// Holds a [`Lock`].
#[must_use = "the lock is free again when this is dropped"]
pub struct Guard<'a, T>(&'a Lock<T>);

// SAFETY: shared, it gives shared references to the value alone.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: who made the guard found the lock free, and nobody else does while it lives.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard itself is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
        if self.0.sleepers.load(Ordering::Relaxed) > 0 {
            self.0.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        // An interpreter takes long.
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 5000 };
        let lock = Lock::new(0u64);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "who did not get it has not set it free");
        drop(held);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut value = lock.lock();
                        let seen = *value;
                        if (round + thread) % 1000 == 0 {
                            // So that others come to sleep.
                            std::thread::yield_now();
                        }
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.try_lock().unwrap(), 4 * u64::from(ROUNDS));
    }

    #[test]
    fn who_sleeps_gets_it_in_the_end() {
        let lock = Lock::new(());
        let held = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while lock.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert!(lock.try_lock().is_some());
    }
}
