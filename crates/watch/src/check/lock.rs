//! The mutex of the check. Its holder never calls a function that is watched, and loads no library.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The thread is busy with the check. A call that the handler of a signal makes meanwhile is not seen.
pub(super) struct Inside;

/// A call was not seen: from now on, nothing is said that depends on having seen all calls.
static MISSED: AtomicBool = AtomicBool::new(false);

impl Inside {
    /// From now on, unless it is so already.
    pub(super) fn enter() -> Option<Self> {
        if INSIDE.replace(true) {
            MISSED.store(true, Ordering::Relaxed);
            return None;
        }
        Some(Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Whether a call was not seen.
pub(super) fn has_missed() -> bool {
    MISSED.load(Ordering::Relaxed)
}

/// How often this process is a child of fork, counted from the one that began the check.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// What all threads share.
pub(super) struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value belongs to the thread that holds the mutex.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Does something with the value. The caller is [`Inside`], so that no handler of a signal comes here
    /// meanwhile.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: initialized, and it lives as long as the process; the value is this thread's while it holds
        // the mutex, and `work` does not come here.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            let result = work(&mut *self.value.get());
            libc::pthread_mutex_unlock(self.mutex.get());
            result
        }
    }

    /// Keeps the value whole over forks: it is locked while the process is copied.
    pub(super) fn survive_forks(&'static self) {
        SURVIVOR.store(self.mutex.get(), Ordering::Release);
        // SAFETY: static functions that may run at a fork: they take and leave one mutex, and count.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    }
}

static SURVIVOR: AtomicPtr<libc::pthread_mutex_t> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The thread forks, and has the mutex.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn before_fork() {
    let mutex = SURVIVOR.load(Ordering::Acquire);
    // The handler of a signal may fork while the thread has the mutex.
    if !mutex.is_null() && !INSIDE.get() {
        INSIDE.set(true);
        // SAFETY: initialized, and it lives as long as the process.
        unsafe { libc::pthread_mutex_lock(mutex) };
        FORKING.set(true);
    }
}

extern "C" fn in_parent() {
    if FORKING.replace(false) {
        // SAFETY: the mutex is held since `before_fork`.
        unsafe { libc::pthread_mutex_unlock(SURVIVOR.load(Ordering::Acquire)) };
        INSIDE.set(false);
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if FORKING.replace(false) {
        // SAFETY: this is the only thread, and the mutex is plain data.
        unsafe { SURVIVOR.load(Ordering::Acquire).write(libc::PTHREAD_MUTEX_INITIALIZER) };
        INSIDE.set(false);
    }
}
