//! The clock of the protocol.

use adverb_core::clock;
use std::time::Duration;

/// Now, on the device's clock.
#[inline]
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock::device())
}
