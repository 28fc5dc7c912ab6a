//! How long tests wait for another thread, another process or the kernel to do something that it does soon.

use std::time::{Duration, Instant};

/// Nothing takes nearly as long, on the busiest machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The instant at which a test gives up.
pub(super) struct Limit(Instant);

impl Limit {
    pub(super) fn new() -> Self {
        Self(Instant::now() + LIMIT)
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Waits until that is so. False if it is not so after [`LIMIT`]: the caller lets others end before it
/// panics.
#[must_use]
pub(super) fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let limit = Limit::new();
    while !is_so() {
        if limit.is_over() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
