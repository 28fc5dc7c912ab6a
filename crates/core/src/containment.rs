//! Catches a panic where it happens. In a thread of the engine, the engine is told of it. In a thread of the
//! program, it ends within our code.

use crate::log;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The function that is called with the name of a thread that has panicked.
static TOLD: OnceLock<fn(&str)> = OnceLock::new();

/// Has this called after each panic in a thread of the engine, in that thread. The first call counts.
pub(crate) fn tell_of_panics(whom: fn(&str)) {
    TOLD.get_or_init(|| whom);
}

fn tell(thread: &str) {
    if let Some(told) = TOLD.get() {
        told(thread);
    }
}

/// Does `work` in a thread of the engine called `thread`. Returns false if it panicked.
pub(crate) fn contain(thread: &str, work: impl FnOnce()) -> bool {
    // The values under the engine's locks are consistent between any two statements, and after this the
    // program gets errors from it only.
    if catch_unwind(AssertUnwindSafe(work)).is_ok() {
        return true;
    }
    if catch_unwind(AssertUnwindSafe(|| tell(thread))).is_err() {
        log::say(format_args!("the engine cannot be stopped, so the process ends"));
        std::process::abort();
    }
    false
}

/// Does `work` in a thread of the engine for which threads of the program may sleep, and without which they
/// would sleep for ever. After a panic the work begins once more, and after a second one the process ends.
pub fn insist(thread: &str, mut work: impl FnMut()) -> ! {
    for _ in 0..2 {
        contain(thread, &mut work);
    }
    log::say(format_args!(
        "the thread `{thread}` of adverb has failed twice, and threads of the program would wait for it for ever, so the process ends"
    ));
    std::process::abort();
}

/// Keeps a panic of ours from going on into the C program that called: its functions have no way to deal with
/// it. Where a function may be left by pthread_cancel(3), as some here may, the compiler does not see to that
/// itself.
pub struct Barrier;

impl Drop for Barrier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::say(format_args!("a panic would have gone on into the program, so the process ends"));
            std::process::abort();
        }
    }
}
