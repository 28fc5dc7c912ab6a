//! Counts the objects that depend on another, so that destroying in the wrong order answers EBUSY.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many objects depend on this one.
#[derive(Debug)]
pub struct Users(AtomicUsize);

impl Users {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The number now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}
