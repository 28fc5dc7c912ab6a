//! What comes in on a connection.

use super::held::HoldOutcome;
use super::route::Incoming;
use super::{ACKNOWLEDGE_EVERY, CONGESTION_EXPERIENCED, ECN, Link, PacketEffect, PeerLocation, requests};
use crate::endpoint::{Endpoint, Via};
use crate::host::{NOWHERE, Requests, Responses};
use crate::rx_burst::RxBurst;
use crate::socket::Arrival;
use crate::{lock, observer, time};
use adverb_core::counters::Counters;
use adverb_core::event::AsyncEventKind;
use adverb_core::heard::{self, EngineFinding};
use adverb_core::memory::Source;
use adverb_core::{log, watch};
use adverb_proto::ib::{DropReason, PACKET_COST, PendingReply, Verdict, goes_to_requester};
use adverb_wire::ib::header::NakCode;
use adverb_wire::ib::icrc::FlowCrc;
use adverb_wire::ib::opcode::Opcode as WireOpcode;
use adverb_wire::ib::packet::Packet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause between congestion notifications to a peer (annex A17.9.3 leaves it to the implementation; adapters
/// use about this).
const NOTIFICATION_PAUSE: Duration = Duration::from_micros(50);

impl Link {
    /// Counts, logs and reports what has become of a request of the peer. `is_told`: the log knows already
    /// what is wrong with it.
    pub(super) fn note(&mut self, endpoint: &Endpoint, verdict: Verdict, is_told: bool) {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        match verdict {
            Verdict::Accepted => {}
            Verdict::Duplicate => counters.duplicates.add(1),
            Verdict::OutOfSequence => counters.out_of_sequence.add(1),
            Verdict::NotReady => {
                counters.not_ready_sent.add(1);
                heard::tell(queues.number, EngineFinding::NoReceiveHere);
            }
            // IB-PKT-52
            Verdict::Dropped(DropReason::NoReceive) => counters.no_receive.add(1),
            Verdict::Dropped(_) => counters.dropped.add(1),
            // It is counted where it cannot be held.
            Verdict::Postponed => {}
            Verdict::Refused(code) => {
                counters.naks_sent.add(u64::from(self.reliable));
                if !is_told {
                    log!(Warn, "queue pair {:#x}: a request of the peer was refused: {code}", queues.number);
                }
                // IB-RC-RSP-30
                self.refused = Some(match code {
                    NakCode::RemoteAccessError => AsyncEventKind::QpAccessError,
                    NakCode::RemoteOperationalError => AsyncEventKind::QpFatal,
                    _ => AsyncEventKind::QpRequestError,
                });
            }
        }
    }

    /// Takes in a packet, whose service and partition are right. `has_work`: the program has posted what is
    /// not entered yet.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        via: Via<'_>,
        has_work: bool,
        now: Duration,
        burst: &mut RxBurst,
    ) -> PacketEffect {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        let mut taken = PacketEffect::default();
        let (marked, elsewhere) = match via {
            Via::Network(arrival) => {
                let route = &self.packet_route.route;
                // IB-PKT-50
                if arrival.source != route.destination
                    || arrival.local != route.source
                    || !self.location.admits(arrival.source_port)
                {
                    counters.misaddressed.add(1);
                    return taken;
                }
                // IB-PKT-43, ROCE-5
                if !self.verify(arrival) {
                    counters.damaged.add(1);
                    return taken;
                }
                (arrival.class & ECN == CONGESTION_EXPERIENCED || burst.overflowed, &NOWHERE)
            }
            Via::Host(from) => {
                // Only the process of the peer comes this way.
                if !self.near().is_some_and(|near| near.has_sent(from)) {
                    counters.misaddressed.add(1);
                    return taken;
                }
                if watch::packets() {
                    observer::received_within(&self.packet_route.route, packet, from.elsewhere);
                }
                (false, from.elsewhere)
            }
        };
        // ROCE-35, ROCE-36, ROCE-37: it has no sequence number of its own.
        if packet.opcode() == WireOpcode::CONGESTION_NOTIFICATION {
            self.slow_down(counters, now);
            return taken;
        }
        if goes_to_requester(packet) {
            let Some(requester) = &mut *self.requester else { return taken };
            let is_expected = requester.expects(packet);
            let near = self.location.near();
            // Within a host, packets other than acknowledgements may start a timer: reads the clock.
            let now = if near.is_some() { time::now() } else { now };
            let feedback = requester.receive(packet, now, &mut Requests { queues, elsewhere, near });
            elsewhere.finish();
            // What waited for a read, for room in the window, or for an earlier request, may begin.
            taken.transmit |= has_work || requester.has_unsent();
            self.learn(endpoint, feedback, now, &mut burst.ready);
            taken.failed = feedback.failed;
            if is_expected {
                self.believe(packet, marked, counters, now, &mut taken);
            }
            return taken;
        }
        if let Via::Host(from) = via
            && let Some(number) = from.acknowledged
        {
            self.take_acknowledgement(endpoint, number, || has_work, now, burst, &mut taken);
            if taken.failed {
                return taken;
            }
        }
        taken.brings_no_deadline = matches!(via, Via::Host(_));
        if !self.has_held() || self.responder.is_past(packet) {
            let verdict = self.serve(endpoint, packet, elsewhere, marked, now, burst, &mut taken);
            if verdict != Verdict::Postponed {
                return taken;
            }
        }
        // The reads before it are being answered.
        taken.transmit = true;
        match via {
            Via::Network(arrival) => {
                let numbers = (packet.bth().psn(), self.responder.number_behind(packet));
                match self.held.put(numbers, arrival.bytes, marked) {
                    HoldOutcome::Behind => {}
                    HoldOutcome::Repeated => counters.duplicates.add(1),
                    HoldOutcome::Lost => counters.dropped.add(1),
                }
            }
            // Another adverb does not send it so soon.
            Via::Host(_) => {
                counters.dropped.add(1);
                self.responder.ask_again();
            }
        }
        taken
    }

    /// The peer says, beside a message of its own, that this packet and all before it have come.
    #[inline(never)]
    pub(super) fn take_acknowledgement(
        &mut self,
        endpoint: &Endpoint,
        number: u32,
        has_work: impl FnOnce() -> bool,
        now: Duration,
        burst: &mut RxBurst,
        taken: &mut PacketEffect,
    ) {
        let Some(requester) = &mut *self.requester else { return };
        let mut host = requests(&endpoint.queues, self.location.near());
        let feedback = requester.acknowledged(number, now, &mut host);
        taken.transmit |= has_work() || requester.has_unsent();
        self.learn(endpoint, feedback, now, &mut burst.ready);
        taken.failed = feedback.failed;
    }

    /// Takes in the request that has been held longest, if enough of the reads before it has been answered.
    #[cold]
    pub(crate) fn receive_held(
        &mut self,
        endpoint: &Endpoint,
        now: Duration,
        burst: &mut RxBurst,
    ) -> Option<PacketEffect> {
        let waiting = self.held.pop()?;
        let mut taken = PacketEffect::default();
        if let Ok(packet) = Packet::parse(&waiting.bytes) {
            let verdict = self.serve(endpoint, &packet, &NOWHERE, waiting.marked, now, burst, &mut taken);
            if verdict == Verdict::Postponed {
                self.held.put_back(waiting);
                return None;
            }
            if verdict != Verdict::Accepted {
                endpoint.queues.counters.dropped.add(self.held.give_up() as u64);
            }
        }
        if self.held.is_empty() && self.held.end() && !self.responder.has_failed() {
            // What comes behind it would show that something is missing. Perhaps nothing comes.
            self.responder.ask_again();
            taken.transmit = true;
        }
        Some(taken)
    }

    /// Carries out a request of the peer, whose payload may lie `elsewhere`. Nothing has happened where it is
    /// postponed.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what a packet comes with, and what it brings")]
    fn serve(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        elsewhere: &Source<'_>,
        marked: bool,
        now: Duration,
        burst: &mut RxBurst,
        taken: &mut PacketEffect,
    ) -> Verdict {
        let queues = &endpoint.queues;
        // From here on, a thread that sends by another queue pair of the lane waits for this lock, and
        // acknowledges first. So a reply to these bytes cannot leave before the acknowledgement.
        // PRACTICE-ORDER-1
        if packet.bth().ack_request() && self.responder.is_next(packet) {
            endpoint.delay_ack();
        }
        let was_receiving = self.taken.is_some();
        if !self.reliable && !was_receiving {
            // Before a receive is missing.
            endpoint.is_receiving.store(true, Ordering::SeqCst);
        }
        let mut host = Responses::new(queues, elsewhere, &mut self.taken, &mut self.receives, &mut self.kept);
        host.counts_alone = burst.counts_alone;
        let verdict = self.responder.receive(packet, &mut host);
        let (used, has_completed, is_told) = (host.used, host.has_completed, host.is_told.get());
        drop(host);
        elsewhere.finish();
        if verdict == Verdict::Postponed {
            return verdict;
        }
        if let Some(key) = used {
            burst.one_sided = true;
            if let PeerLocation::Near(near) = &mut self.location {
                near.used(endpoint, key);
            }
        }
        if !self.reliable {
            let is_receiving = self.taken.is_some();
            if !is_receiving {
                endpoint.is_receiving.store(false, Ordering::SeqCst);
            } else if verdict == Verdict::Accepted {
                let packets = endpoint.message_packets.load(Ordering::Relaxed);
                endpoint.message_packets.store(packets + 1, Ordering::Relaxed);
            }
            if !was_receiving && (is_receiving || has_completed) {
                taken.took_receive = Some(packet.payload().len() as u32 + PACKET_COST);
            }
        }
        self.unacknowledged += 1;
        if verdict != Verdict::Accepted {
            self.note(endpoint, verdict, is_told);
            let number = packet.bth().psn();
            if self.reliable && heard::is_heard() && self.responder.has_wrong_start(number) {
                let wanted = self.responder.expected_psn();
                heard::tell(queues.number, EngineFinding::WrongPsn { has: number, wanted });
            }
        }
        // Others have a sequence number that anybody guesses.
        if matches!(verdict, Verdict::Accepted | Verdict::NotReady | Verdict::Refused(_)) {
            self.believe(packet, marked, queues.counters, now, taken);
        }
        match self.responder.pending_reply() {
            // IB-UC-14
            PendingReply::Nothing => taken.failed |= self.has_ended(),
            // IB-RC-RSP-49
            PendingReply::Acknowledgement if self.unacknowledged < ACKNOWLEDGE_EVERY => {
                taken.delays_ack = true
            }
            PendingReply::Acknowledgement | PendingReply::Response => taken.transmit = true,
        }
        verdict
    }

    /// A packet had the sequence number that was expected of the peer: what else it says counts, too.
    #[inline]
    fn believe(
        &mut self,
        packet: &Packet<'_>,
        marked: bool,
        counters: &Counters,
        now: Duration,
        taken: &mut PacketEffect,
    ) {
        if !self.heard {
            self.heard = true;
            taken.first = true;
        }
        // ROCE-38
        if packet.bth().becn() {
            self.slow_down(counters, now);
        }
        // ROCE-33
        if marked && now >= self.notified + NOTIFICATION_PAUSE {
            self.notify = true;
            taken.transmit = true;
        }
    }

    /// What is sent to the peer meets with congestion.
    #[cold]
    fn slow_down(&self, counters: &Counters, now: Duration) {
        counters.congestion_received.add(1);
        lock(&self.peer.window).congestion(now);
    }

    #[inline]
    fn verify(&mut self, arrival: &Arrival<'_>) -> bool {
        let Incoming { flow, crc, guess } = &mut self.incoming;
        // The addresses have been checked: only ports may differ.
        if flow.source_port != arrival.source_port || flow.destination_port != arrival.local_port {
            flow.source_port = arrival.source_port;
            flow.destination_port = arrival.local_port;
            *crc = FlowCrc::new(flow);
        }
        // The datagrams of a train are numbered from 0 on.
        let hidden = crc.identify_near(arrival.bytes, *guess);
        *guess = hidden.map_or(0, |hidden| hidden.identification.wrapping_add(1));
        hidden.is_some()
    }
}
