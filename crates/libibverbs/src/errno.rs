//! `errno`.

use adverb_core::error::Error;
use adverb_core::log;
use core::ffi::c_int;

/// Sets the calling thread's `errno`.
pub fn set_errno(number: c_int) {
    // SAFETY: the pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() = number }
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` and returns -1.
pub fn fail(number: c_int) -> c_int {
    set_errno(number);
    -1
}

/// Sets `errno` and returns NULL.
pub fn fail_null<T>(number: c_int) -> *mut T {
    set_errno(number);
    core::ptr::null_mut()
}

/// The error number of a control call that has failed. A program has nothing but that, so the log says why.
pub fn refusal(error: &Error) -> c_int {
    // Of a descriptor that does not wait, and of a wait that a signal ends, it is no failure.
    if !matches!(error.errno(), libc::EAGAIN | libc::EINTR) {
        log!(Info, "refused: {error}");
    }
    error.errno()
}
