//! The C library's functions behind ours.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of a name: the next after ours in the dynamic linker's order, or, unless `NEXT`, the first.
/// Thread-safe and, once found, async-signal-safe.
pub(crate) struct Original<const NEXT: bool = true> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl<const NEXT: bool> Original<NEXT> {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; null if there is none. Looks it up when called for the first time, which this
    /// library's initialiser does; initialisers of other libraries may be earlier.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let from = if NEXT { libc::RTLD_NEXT } else { libc::RTLD_DEFAULT };
        // SAFETY: the name is a C string; RTLD_NEXT is for libraries such as this one.
        let found = unsafe { libc::dlsym(from, self.name.as_ptr()) };
        // All threads find the same.
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// What a C function returns when it fails.
pub(crate) trait Failure {
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for isize {
    const FAILED: Self = -1;
}

impl<T> Failure for *mut T {
    const FAILED: Self = null_mut();
}

/// The answer of a function that this C library does not have.
pub(crate) fn missing<R: Failure>() -> R {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    R::FAILED
}
