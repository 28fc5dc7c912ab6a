//! Blocks of queue pair numbers that nobody owns, as far as was found: nobody looks for their owners again
//! for a while.

use crate::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// Blocks whose owners were not found, and when. They rest for a certain time each. There are no more blocks
/// than fit. Thread-safe.
pub(crate) struct LostBlocks {
    lost: Mutex<HashMap<u16, Duration>>,
    rest: Duration,
}

impl LostBlocks {
    /// None is lost yet.
    pub(crate) fn new(rest: Duration) -> Self {
        Self { lost: Mutex::default(), rest }
    }

    /// Whether nobody is to look for the owner of a block now.
    pub(crate) fn rests(&self, block: u16, now: Duration) -> bool {
        lock(&self.lost).get(&block).is_some_and(|since| now < *since + self.rest)
    }

    /// The owner of a block was not found.
    pub(crate) fn add(&self, block: u16, now: Duration) {
        lock(&self.lost).insert(block, now);
    }

    /// Blocks that rest, or have rested.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.lost).len()
    }
}
