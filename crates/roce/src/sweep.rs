//! What a burst of arrivals leaves to be done once all of it has been taken in.

use crate::endpoint::Endpoint;
use crate::handover::Stray;
use std::sync::Arc;

/// See the module. Kept from burst to burst, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct Sweep {
    /// Queue pairs that have something to send now.
    pub(crate) ready: Vec<Arc<Endpoint>>,
    /// Management datagrams, with whom they come from.
    pub(crate) management: Vec<Stray>,
    /// A peer did what its program expects to be served without ours.
    pub(crate) one_sided: bool,
    /// The address of the lane that is being polled: acknowledgements of its queue pairs may wait for company. Others leave at once, since nobody may
    /// poll theirs. Of a burst from a socket, none.
    pub(crate) polled: usize,
    /// Nobody else counts what comes in as this does ([`adverb_core::counters::Counter::count`]).
    pub(crate) counts_alone: bool,
    /// The socket has lost datagrams: the senders should slow down.
    pub(crate) overflowed: bool,
}
