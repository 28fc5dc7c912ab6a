//! The way in of messages that have come [straight](crate::local::straight). What the straight way does not take, goes on as the packet that it stands for.

use super::{Endpoint, Host, Kind, Via};
use crate::link::Taken;
use crate::local::{Channel, take_straight};
use crate::sweep::Sweep;
use adverb_core::qp::State;
use adverb_local::Record;
use adverb_wire::ib::header::MAX_HEADER;
use adverb_wire::ib::packet::{Packet, Payload};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So many messages one behind the other make it likely that more have come.
const TRAIN: usize = 2;
/// So many bytes end a turn: others wait for the queue pair meanwhile.
const LONG: u64 = 16 << 10;
/// How far behind a message of such a train the processor fetches: as many messages as are taken in while a cache line comes from the other processor.
const AHEAD: u64 = 3;

impl Endpoint {
    /// Takes in messages that have come straight by a channel: this one, and those behind it that are for this queue pair, too, at most so many. Returns how many; none,
    /// if they have to wait there, as the queue pair is busy.
    #[inline]
    pub(crate) fn arrived_straight(
        &self,
        channel: &Channel,
        first: Record<'_>,
        most: usize,
        now: Duration,
        sweep: &mut Sweep,
    ) -> usize {
        let Some(mut inner) = self.lock_unless_busy() else {
            return 0;
        };
        let cursor = inner.cursor;
        let mut left = Some(first);
        if matches!(inner.state, State::Rtr | State::Rts | State::Sqd)
            && let Kind::Connected(link) = &mut inner.kind
            && link.takes_straight(channel)
        {
            let has_work = || self.queues.send.has_work(&cursor);
            let mut all = Taken { brings_no_deadline: true, owes: true, ..Taken::default() };
            let (mut count, mut bytes) = (0, 0);
            while let Some(record) = left.take() {
                record.fetch_behind(0);
                if count >= TRAIN {
                    record.fetch_behind(AHEAD);
                }
                let Some((straight, payload)) = take_straight(&record) else { break };
                let is_ours = straight.destination == self.queues.number;
                if !is_ours
                    || !link.receive_straight(
                        self,
                        &straight,
                        (channel, &payload),
                        has_work,
                        &mut all,
                        now,
                        sweep,
                    )
                {
                    left = Some(record);
                    break;
                }
                if all.failed {
                    record.consume();
                    break;
                }
                count += 1;
                bytes += u64::from(straight.length);
                if count == most || bytes >= LONG {
                    record.consume();
                    break;
                }
                left = record.consume_and_peek();
            }
            let done = count + usize::from(all.failed);
            if done > 0 {
                sweep.count(self.queues.counters, count as u32, bytes);
                // Most messages leave nothing to do but to owe an acknowledgement, which waits for company where the lane of the queue pair is polled.
                let is_timed = self.is_timed.load(Ordering::Relaxed) || link.deadline().is_none();
                if !is_timed || all.transmit || all.failed || sweep.polled != self.lane.address() {
                    self.conclude(inner, all, false, now, sweep);
                }
                return done;
            }
        }
        let Some(record) = left else { return 0 };
        self.queues.counters.rx_local.count(1, sweep.counts_alone);
        if let Some((straight, payload)) = take_straight(&record) {
            let mut space = [0; MAX_HEADER];
            let headers = straight.write_headers(&mut space);
            let from = Host { channel, elsewhere: &payload, acknowledged: straight.acknowledged };
            match Packet::assemble(&space[..headers], Payload::Elsewhere(payload.len())) {
                Ok(packet) => self.take(inner, &packet, Via::Host(&from), now, sweep),
                Err(_) => self.queues.counters.damaged.add(1),
            }
        }
        record.consume();
        1
    }
}
