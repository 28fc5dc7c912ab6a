//! The way in of a message that has come [straight](Straight). What the straight way does not take, goes on as the packet that it stands for.

use super::{Endpoint, Host, Kind, Via};
use crate::local::{Channel, Straight};
use crate::sweep::Sweep;
use adverb_core::memory::Source;
use adverb_core::qp::State;
use adverb_wire::ib::header::MAX_HEADER;
use adverb_wire::ib::packet::{Packet, Payload};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Endpoint {
    /// Takes in a message that has come straight by a channel. False: it has to wait there, as the queue pair is busy.
    #[inline]
    pub(crate) fn arrived_straight(
        &self,
        channel: &Channel,
        straight: &Straight,
        payload: &Source<'_>,
        now: Duration,
        sweep: &mut Sweep,
    ) -> bool {
        let Some(mut inner) = self.lock_unless_busy() else {
            return false;
        };
        let cursor = inner.cursor;
        if matches!(inner.state, State::Rtr | State::Rts | State::Sqd)
            && let Kind::Connected(link) = &mut inner.kind
        {
            let has_work = || self.queues.send.has_work(&cursor);
            if let Some(taken) =
                link.receive_straight(self, straight, (channel, payload), has_work, now, sweep)
            {
                let is_timed = self.is_timed.load(Ordering::Relaxed) || link.deadline().is_none();
                // Most messages leave nothing to do but to owe an acknowledgement, which waits for company where the lane of the queue pair is polled.
                if !is_timed || taken.transmit || taken.failed || sweep.polled != self.lane.address() {
                    self.conclude(inner, taken, false, now, sweep);
                }
                return true;
            }
        }
        self.queues.counters.rx_local.count(1, sweep.counts_alone);
        let mut space = [0; MAX_HEADER];
        let headers = straight.write_headers(&mut space);
        let from = Host { channel, elsewhere: payload, acknowledged: straight.acknowledged };
        match Packet::assemble(&space[..headers], Payload::Elsewhere(payload.len())) {
            Ok(packet) => self.take(inner, &packet, Via::Host(&from), now, sweep),
            Err(_) => self.queues.counters.damaged.add(1),
        }
        true
    }
}
