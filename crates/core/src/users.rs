//! Counts the objects that depend on another, so that destroying in the wrong order answers EBUSY, and a
//! limit is one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many objects depend on this one.
#[derive(Debug)]
pub struct DependentCount(AtomicUsize);

impl DependentCount {
    pub(crate) fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one unless there are `limit` already; returns whether it did.
    pub(crate) fn enter_below(&self, limit: u32) -> bool {
        let below = |count| (count < limit as usize).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_ok()
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The number now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}
