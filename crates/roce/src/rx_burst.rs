//! The work that a burst of arrivals leaves, to be done once all of the burst has been taken in.

use crate::endpoint::Endpoint;
use crate::handover::OwnedArrival;
use crate::link::Tally;
use adverb_core::counters::Counters;
use std::sync::Arc;

/// The work that a burst of arrivals leaves, to be done once all of the burst has been taken in. Kept from
/// burst to burst, so that nothing is allocated.
#[derive(Default)]
pub(crate) struct RxBurst {
    /// Queue pairs that have something to send now.
    pub(crate) ready: Vec<Arc<Endpoint>>,
    /// Management datagrams, with their addresses.
    pub(crate) management: Vec<OwnedArrival>,
    /// A peer has sent a request that its program expects to be served without ours.
    pub(crate) one_sided: bool,
    /// The address of the lane that is being polled: acknowledgements of its queue pairs may be delayed.
    /// Others leave at once, since perhaps no thread polls their lanes. Zero for a burst from a socket.
    pub(crate) polled: usize,
    /// No other thread counts packets that come in with these counters
    /// ([`adverb_core::counters::Counter::count`]).
    pub(crate) counts_alone: bool,
    /// Messages that have come straight and are not counted yet, and by which counters they are.
    straight: (Tally, Option<&'static Counters>),
    /// The socket has lost datagrams: the senders should slow down.
    pub(crate) overflowed: bool,
}

impl RxBurst {
    /// A burst of records from a channel. `alone`: no other thread counts packets that come in with these
    /// counters.
    pub(crate) fn counting(alone: bool) -> Self {
        Self { counts_alone: alone, ..Self::default() }
    }

    /// Messages of so many bytes have come straight.
    #[inline]
    pub(crate) fn count(&mut self, counters: &'static Counters, messages: u32, bytes: u64) {
        let before = self.straight.1;
        if before.is_none_or(|before| !std::ptr::eq(before, counters)) {
            self.count_all();
            self.straight.1 = Some(counters);
        }
        self.straight.0.add_all(messages, bytes);
    }

    /// Counts those messages.
    pub(crate) fn count_all(&mut self) {
        if let (tally, Some(counters)) = &mut self.straight {
            tally.count_received(counters, self.counts_alone);
        }
    }
}
