//! A panic in a thread of the engine: a mistake of ours. The program is not to wait for ever for what that thread would have done, and nothing
//! goes on as if it had been done: it is said once, on standard error or in the log, all queue pairs go to error, so that their requests are
//! flushed, each context reports `IBV_EVENT_DEVICE_FATAL`, each identifier `RDMA_CM_EVENT_DEVICE_REMOVAL`, and nothing new begins.
//!
//! A panic in a thread of a C program ends the process where it would leave our code ([`Barrier`]).

use crate::engine;
use crate::error::{Error, Result};
use crate::event::AsyncEventKind;
use crate::log;
use crate::registry::Registry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Something that a program may wait for, and that needs the engine's threads.
pub trait Concerned: Send + Sync {
    /// They are no more: who waits is told, and who comes later, too. Called once, in any thread, with no lock held.
    fn engine_failed(&self);

    /// What another process may be told of it ([`crate::inspect`]), if anything. Waits for no lock that may be held for long.
    fn describe(&self) -> Option<String> {
        None
    }
}

/// Whether a thread of the engine has failed, and whom that concerns. Thread-safe.
#[derive(Default)]
pub struct Failure {
    failed: AtomicBool,
    concerned: Registry<dyn Concerned>,
}

impl Failure {
    /// EIO once a thread of the engine has failed: nothing new begins.
    pub fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(Error::new(libc::EIO, "a thread of adverb in this process has failed"));
        }
        Ok(())
    }

    /// Those whom it would concern now.
    pub(crate) fn concerned(&self) -> Vec<Arc<dyn Concerned>> {
        self.concerned.all()
    }

    /// One more that it concerns. EIO if it has come to pass already.
    pub fn concerns(&self, whom: Weak<dyn Concerned>) -> Result<()> {
        self.concerned.add(whom);
        // Whoever fails says so before looking for those whom it concerns.
        self.check()
    }
}

/// Does `work` in a thread of the engine called `thread`. Returns false if it panicked.
pub(crate) fn contain(thread: &str, work: impl FnOnce()) -> bool {
    // What the locks of the engine protect is consistent between any two statements, and after this the program gets errors from it only.
    if catch_unwind(AssertUnwindSafe(work)).is_ok() {
        return true;
    }
    if catch_unwind(AssertUnwindSafe(|| fail(thread))).is_err() {
        log::say(format_args!("the engine cannot be stopped, so the process ends"));
        std::process::abort();
    }
    false
}

/// Does `work` in a thread of the engine for which threads of the program may sleep, so that they would sleep for ever without it: after a panic it begins
/// once more, and after a second one the process ends.
pub fn insist(thread: &str, mut work: impl FnMut()) -> ! {
    for _ in 0..2 {
        contain(thread, &mut work);
    }
    log::say(format_args!(
        "the thread `{thread}` of adverb has failed twice, and threads of the program would wait for it for ever, so the process ends"
    ));
    std::process::abort();
}

fn fail(thread: &str) {
    let Some(engine) = engine::existing() else { return };
    if engine.failure.failed.swap(true, Ordering::SeqCst) {
        return;
    }
    log::say(format_args!(
        "the thread `{thread}` of adverb has failed (a mistake of adverb's: please report it with the lines above). All queue pairs are in error now, \
         and no new ones can be made"
    ));
    for concerned in engine.failure.concerned.all() {
        concerned.engine_failed();
    }
    for device in engine.devices() {
        device.raise(AsyncEventKind::DeviceFatal);
    }
}

/// Keeps a panic of ours from going on into the C program that called: its functions have no way to deal with it. Where a function may be left by
/// pthread_cancel(3), as some here may, the compiler does not see to that itself.
pub struct Barrier;

impl Drop for Barrier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::say(format_args!("a panic would have gone on into the program, so the process ends"));
            std::process::abort();
        }
    }
}
