//! Calls into librdmacm.

use crate::errno;
use std::cell::Cell;

thread_local! {
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread is in such a call: what librdmacm itself opens is ordinary, and a signal handler that
/// ends the program there ends no rsockets.
pub(crate) fn is_within() -> bool {
    WITHIN.try_with(Cell::get).unwrap_or(true)
}

/// Until this goes, the thread is in a call. It may go because the thread is cancelled.
struct Stay(bool);

impl Drop for Stay {
    fn drop(&mut self) {
        let _ = WITHIN.try_with(|within| within.set(self.0));
    }
}

/// Calls librdmacm. Where that succeeds, `errno` is left alone, as system calls do.
pub(crate) fn librdmacm<T: PartialOrd + Default>(call: impl FnOnce() -> T) -> T {
    let _stay = Stay(WITHIN.try_with(|within| within.replace(true)).unwrap_or(true));
    let before = errno::get();
    let result = call();
    if result >= T::default() {
        errno::set(before);
    }
    result
}
