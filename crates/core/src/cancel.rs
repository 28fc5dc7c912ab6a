//! Cancellation of the program's threads (pthread_cancel(3)).
//!
//! Only the calls that wait for an event are cancellation points. Many functions of the C library are, too,
//! even inside the standard library; a cancellation there would unwind through frames that hold locks or do
//! not permit it. So the calls of the C libraries that do not wait run under a [`CancellationGuard`], and the
//! fast path has a system call of its own.

use core::ffi::c_int;

const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Keeps a cancellation of the calling thread waiting, until the guard is dropped. Guards may be nested.
pub struct CancellationGuard {
    before: c_int,
}

impl CancellationGuard {
    /// From now on.
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the old state goes into a live local.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Default for CancellationGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CancellationGuard {
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: as above. It is no cancellation point: a request that came meanwhile is acted on at the
        // next one.
        unsafe { pthread_setcancelstate(self.before, &raw mut ignored) };
    }
}
