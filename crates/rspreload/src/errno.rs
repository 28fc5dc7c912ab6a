//! The thread's `errno`.

use libc::c_int;

pub(crate) fn get() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}

/// A call that fails: -1, and why.
pub(crate) fn fail(number: c_int) -> c_int {
    set(number);
    -1
}

/// Does something on the way that leaves `errno` alone.
pub(crate) fn kept<T>(act: impl FnOnce() -> T) -> T {
    let before = get();
    let result = act();
    set(before);
    result
}
