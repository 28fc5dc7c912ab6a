//! A panic in a thread of the engine: a mistake of ours. The program is not to wait for ever for the work of
//! that thread, and nothing goes on as if it had been done. The failure is said once, on standard error or in
//! the log. All queue pairs go to error, so that their requests are flushed, each context reports
//! `IBV_EVENT_DEVICE_FATAL`, each identifier `RDMA_CM_EVENT_DEVICE_REMOVAL`, and nothing new begins.
//!
//! [`crate::containment`] catches it.

use crate::engine;
use crate::error::{Error, Result};
use crate::event::AsyncEventKind;
use crate::log;
use crate::registry::Registry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Something that a program may wait for, and that needs the engine's threads.
pub trait FailureListener: Send + Sync {
    /// Tells all threads that wait for this object, now or later, that a thread of the engine has failed.
    /// Called once, in any thread, with no lock held.
    fn engine_failed(&self);

    /// The device with this name has been taken away. Called in any thread, with no lock held.
    fn device_removed(&self, device: &str) {
        let _ = device;
    }

    /// The object as another process is told of it ([`crate::inspect`]), if at all. Waits for no lock that
    /// may be held for long.
    fn describe(&self) -> Option<String> {
        None
    }
}

/// Whether a thread of the engine has failed, and the objects that this concerns. Thread-safe.
#[derive(Default)]
pub struct Failure {
    failed: AtomicBool,
    concerned: Registry<dyn FailureListener>,
}

impl Failure {
    /// EIO once a thread of the engine has failed: nothing new begins.
    pub fn check(&self) -> Result<()> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(Error::new(libc::EIO, "a thread of adverb in this process has failed"));
        }
        Ok(())
    }

    /// The listeners that a failure of the engine would concern now.
    pub(crate) fn concerned(&self) -> Vec<Arc<dyn FailureListener>> {
        self.concerned.all()
    }

    /// A device has been taken away, as by its driver: identifiers on it report
    /// `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    pub fn device_removed(&self, device: &str) {
        self.concerned.all().iter().for_each(|concerned| concerned.device_removed(device));
    }

    /// Adds an object that the failure concerns. EIO if the engine has failed already.
    pub fn concerns(&self, whom: Weak<dyn FailureListener>) -> Result<()> {
        self.concerned.add(whom);
        // The failing thread stores `failed` before it looks for the objects concerned.
        self.check()
    }
}

/// The thread of this name has panicked.
pub(crate) fn fail(thread: &str) {
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
