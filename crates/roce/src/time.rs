//! The clock of the protocol.

use adverb_core::clock;
use std::time::Duration;

/// Now, on the device's clock.
#[inline]
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock::device())
}

/// Now, but for some milliseconds in either direction: for packets of a channel, where no packet is lost, so
/// that no thread waits to repeat one.
#[inline]
pub(crate) fn late() -> Duration {
    Duration::from_nanos(clock::late())
}
