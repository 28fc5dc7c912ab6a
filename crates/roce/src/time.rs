//! The clock of the protocol.

use adverb_core::clock;
use std::time::Duration;

/// Now, on the device's clock.
#[inline]
pub(crate) fn now() -> Duration {
    Duration::from_nanos(clock::device())
}

/// Now, but for some milliseconds, in either direction: for what goes by a channel, where nothing is lost and so nothing is waited for.
#[inline]
pub(crate) fn late() -> Duration {
    Duration::from_nanos(clock::late())
}
