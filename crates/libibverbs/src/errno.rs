//! `errno`.

use std::cell::Cell;

use adverb_core::cancel::CancellationGuard;
use adverb_core::error::Error;
use adverb_core::log;
use core::ffi::c_int;

thread_local! {
    /// Whether the thread's present call has set `errno` for the program.
    static SET: Cell<bool> = const { Cell::new(false) };
}

/// Sets the calling thread's `errno` for the program.
pub fn set_errno(number: c_int) {
    SET.set(true);
    write(number);
}

pub(crate) fn write(number: c_int) {
    // SAFETY: the pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() = number }
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// A call that does not wait. While it lives, a cancellation of the thread waits ([`CancellationGuard`]); at
/// its end `errno` is what it was before, whatever the engine's own system calls have made of it, unless the
/// call has set it. Calls may be nested.
pub struct Call {
    before: c_int,
    /// Whether the call around this one had set it.
    outer: bool,
    _whole: CancellationGuard,
}

impl Call {
    /// The call begins.
    pub fn new() -> Self {
        Self { before: errno(), outer: SET.replace(false), _whole: CancellationGuard::new() }
    }
}

impl Default for Call {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !SET.get() {
            write(self.before);
        }
        SET.set(SET.get() || self.outer);
    }
}

/// A call that may wait begins. It must not leave anything on the stack that has to be dropped, since its
/// thread may be cancelled; so it says itself that it has succeeded.
#[derive(Clone, Copy)]
pub struct Waiting {
    before: c_int,
}

impl Waiting {
    /// The call begins.
    pub fn begin() -> Self {
        Self { before: errno() }
    }

    /// Ends a call that has succeeded: `errno` is what it was before. Returns 0.
    pub fn succeeded(self) -> c_int {
        write(self.before);
        0
    }
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
