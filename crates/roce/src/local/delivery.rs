//! The ways from a channel to a queue pair: packets, and messages that have come [straight](super::straight).

use super::channel::Channel;
use super::record::take_straight;
use crate::endpoint::{Endpoint, EndpointKind, EndpointState, Via};
use crate::link::PacketEffect;
use crate::rx_burst::RxBurst;
use crate::time;
use adverb_core::memory::Source;
use adverb_core::qp::{Service, State};
use adverb_local::Record;
use adverb_wire::ib::header::MAX_HEADER;
use adverb_wire::ib::packet::{Packet, Payload};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long messages wait for a program that has more to do with those before than it has receives.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(200);

/// A packet or a straight message that has come by a channel, on its way to its queue pair.
pub(crate) struct Delivery<'a> {
    pub(super) channel: &'a Channel,
    /// The memory that has the payload, if that does not lie in a packet.
    pub(crate) elsewhere: &'a Source<'a>,
    /// Of a message that has come straight: a packet of ours that is acknowledged beside it, and all before
    /// that.
    pub(crate) acknowledged: Option<u32>,
}

/// Since when messages wait for the program, in nanoseconds; zero where none does.
pub(crate) struct WaitingSince(AtomicU64);

impl Default for WaitingSince {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NEVER))
    }
}

impl WaitingSince {
    /// Nothing has waited, and nothing does: the program has not received anything so far.
    const NEVER: u64 = u64::MAX;

    /// Whether an unreliable message had better wait for a moment: there is no receive for it, and the
    /// program has not dealt with earlier ones. The sender would not learn that it is lost ([`crate::pace`]).
    #[inline]
    pub(super) fn holds(&self, endpoint: &Endpoint, packet: &Packet<'_>, now: Duration) -> bool {
        matches!(endpoint.queues.service, Service::Uc | Service::Ud)
            && self.waits_for_program(endpoint, packet, now)
    }

    fn waits_for_program(&self, endpoint: &Endpoint, packet: &Packet<'_>, now: Duration) -> bool {
        let queues = &endpoint.queues;
        // A message that is dropped anyway need not wait.
        if !matches!(queues.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            return false;
        }
        let opcode = packet.opcode();
        let takes_receive = opcode.operation().is_send() && opcode.position().starts()
            || opcode.operation().is_write() && packet.immediate().is_some();
        if !takes_receive {
            return false;
        }
        if queues.receives_left() > 0 || queues.receive_cq.is_exhausted() {
            self.0.store(0, Ordering::Relaxed);
            return false;
        }
        match self.0.load(Ordering::Relaxed) {
            Self::NEVER => false,
            0 => {
                // The wait begins now. The message that is being taken in may have been here for long.
                self.0.store(time::now().as_nanos() as u64, Ordering::Relaxed);
                true
            }
            since => now < Duration::from_nanos(since) + RECEIVE_TIMEOUT,
        }
    }
}

impl Delivery<'_> {
    /// The queue pair takes in a packet. False: it has to wait in the channel, as the queue pair is busy.
    #[inline]
    pub(super) fn reach(
        &self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        now: Duration,
        burst: &mut RxBurst,
    ) -> bool {
        let Some(inner) = endpoint.lock_unless_busy() else {
            return false;
        };
        endpoint.queues.counters.rx_local.count(1, burst.counts_alone);
        if !matches!(self.elsewhere, Source::Process { .. }) {
            endpoint.take(inner, packet, Via::Host(self), now, burst);
            return true;
        }
        endpoint.busy.during(|| endpoint.take(inner, packet, Via::Host(self), now, burst));
        // The lock is free again.
        if endpoint.busy.take_note() {
            burst.ready.push(endpoint.this());
        }
        true
    }
}

/// So many messages one behind the other make it likely that more have come.
const TRAIN: usize = 2;
/// So many bytes end a turn: others wait for the queue pair meanwhile.
const LONG: u64 = 16 << 10;
/// How far behind a message of such a train the processor fetches: as many messages as are taken in while a
/// cache line comes from the other processor.
const AHEAD: u64 = 3;

/// The queue pair takes in messages that have come straight by a channel: this one, and at most so many
/// behind it that are for this queue pair, too. If the first cannot be taken in so, the packet that it stands
/// for is. Returns how many were taken in; none if the queue pair is busy, and they have to wait.
#[inline]
pub(super) fn reach_straight(
    endpoint: &Endpoint,
    channel: &Channel,
    first: Record<'_>,
    most: usize,
    now: Duration,
    burst: &mut RxBurst,
) -> usize {
    let Some(mut inner) = endpoint.lock_unless_busy() else {
        return 0;
    };
    let cursor = inner.cursor;
    let mut left = Some(first);
    if let EndpointState {
        state: State::Rtr | State::Rts | State::Sqd,
        kind: EndpointKind::Connected(link),
        ..
    } = &mut *inner
        && link.near().is_some_and(|near| near.goes_by(channel))
        && link.takes_straight()
    {
        let has_work = || endpoint.queues.send.has_work(&cursor);
        let mut all = PacketEffect { brings_no_deadline: true, delays_ack: true, ..PacketEffect::default() };
        let (mut count, mut bytes) = (0, 0);
        while let Some(record) = left.take() {
            record.fetch_behind(0);
            if count >= TRAIN {
                record.fetch_behind(AHEAD);
            }
            let Some((straight, payload)) = take_straight(&record) else { break };
            let is_ours = straight.destination == endpoint.queues.number;
            if !is_ours
                || !link.receive_straight(endpoint, &straight, &payload, has_work, &mut all, now, burst)
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
            burst.count(endpoint.queues.counters, count as u32, bytes);
            // Most messages leave nothing to do but an acknowledgement, which is delayed where the lane of
            // the queue pair is polled.
            let is_timed = endpoint.is_timed() || link.deadline().is_none();
            if !is_timed || all.transmit || all.failed || burst.polled != endpoint.lane.address() {
                endpoint.conclude(inner, all, false, now, burst);
            }
            return done;
        }
    }
    let Some(record) = left else { return 0 };
    endpoint.queues.counters.rx_local.count(1, burst.counts_alone);
    if let Some((straight, payload)) = take_straight(&record) {
        let mut space = [0; MAX_HEADER];
        let headers = straight.write_headers(&mut space);
        let from = Delivery { channel, elsewhere: &payload, acknowledged: straight.acknowledged };
        match Packet::assemble(&space[..headers], Payload::Elsewhere(payload.len())) {
            Ok(packet) => endpoint.take(inner, &packet, Via::Host(&from), now, burst),
            Err(_) => endpoint.queues.counters.damaged.add(1),
        }
    }
    record.consume();
    1
}
