//! What comes in on a connection, and what is answered.

use super::held::Put;
use super::route::Incoming;
use super::{ACKNOWLEDGE_EVERY, CONGESTION_EXPERIENCED, ECN, LastWord, Link, Taken};
use crate::batch::Batch;
use crate::endpoint::{Endpoint, Host, TURN, Via};
use crate::host::{NOWHERE, Requests, Responses};
use crate::local::{self, Channel, Outlet};
use crate::socket::Arrival;
use crate::sweep::Sweep;
use crate::{lock, observer, time};
use adverb_core::counters::Counters;
use adverb_core::event::AsyncEventKind;
use adverb_core::heard::{self, Heard};
use adverb_core::memory::{self, Span};
use adverb_core::qp::{Queues, SendCursor, SendQueue};
use adverb_core::{log, watch};
use adverb_proto::ib::{
    Dropped, Owes, PACKET_COST, ReadSource, Refusal, Service, Verdict, goes_to_requester,
};
use adverb_samehost::Terms;
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, MAX_HEADER, NakCode};
use adverb_wire::ib::icrc::FlowCrc;
use adverb_wire::ib::opcode::Opcode as WireOpcode;
use adverb_wire::ib::packet::Packet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause between congestion notifications to a peer (annex A17.9.3 leaves it to the implementation; adapters use about this).
const NOTIFICATION_PAUSE: Duration = Duration::from_micros(50);

impl Link {
    /// Sends up to `most` packets that the peer waits for. Returns whether there are more.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        endpoint: &Endpoint,
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> bool {
        let more = self.respond_with(endpoint, batch, most, now, space);
        if !self.kept.is_empty() && !self.responder.keeps() {
            self.kept.clear();
        }
        more || self.has_held()
    }

    /// Whether requests wait for reads before them: [`Link::receive_held`] takes them in once something has been answered.
    #[inline]
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    #[inline]
    fn respond_with(
        &mut self,
        endpoint: &Endpoint,
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> bool {
        let queues = &endpoint.queues;
        if !self.notify && self.responder.owes() == Owes::Nothing {
            return false;
        }
        let channel = self.channel.clone();
        let mut outlet = Outlet::new(batch, channel.as_ref());
        if self.notify {
            self.notify = false;
            self.notified = now;
            let count = {
                let mut head = HeaderWriter::new(space);
                // ROCE-34
                let bth = Bth::new(WireOpcode::CONGESTION_NOTIFICATION, DEFAULT_PKEY, self.destination, 0)
                    .with_becn();
                // 16 reserved bytes follow (annex A17.9.3).
                head.put(&bth).put(&[0u8; 16]);
                head.len()
            };
            if outlet.has_room() {
                let _ = outlet.add(&self.way, &space[..count], 0, |_| Ok::<(), ()>(()));
                queues.counters.congestion_sent.add(1);
            }
        }
        for _ in 0..most {
            // An acknowledgement is short.
            let short = self.responder.owes() == Owes::Acknowledgement;
            if !(if short { outlet.has_room_for(MAX_HEADER) } else { outlet.has_room() }) {
                drop(outlet);
                let waits = channel.is_some_and(|channel| channel.wait(endpoint));
                return !waits && self.responder.owes() != Owes::Nothing;
            }
            let Some(reply) = self.responder.poll_transmit(space) else { return false };
            self.unacknowledged = 0;
            let head = &space[..reply.header];
            let added = match reply.payload {
                None => outlet.add(&self.way, head, 0, |_| Ok(())),
                Some(source) if let Some(place) = source.kept => {
                    let added = outlet.add(&self.way, head, source.length as usize, |target| {
                        let bytes = self.kept.at(place, source.length).ok_or(Refusal::Operational)?;
                        target.copy_from_slice(bytes);
                        Ok(())
                    });
                    self.kept.sent(place.wrapping_add(source.length));
                    added
                }
                Some(source) if source.length as usize > local::LONGEST_HERE => {
                    outlet.refer(queues, &self.way, head, source.length as usize, |take| {
                        take(open(queues, &source)?);
                        Ok(())
                    })
                }
                Some(source) => outlet.add(&self.way, head, source.length as usize, |target| {
                    open(queues, &source)?.read(0, target).map_err(|_| Refusal::Access)
                }),
            };
            match added {
                Ok(()) => {
                    queues.counters.tx_frames.add(1);
                    queues.counters.tx_local.add(outlet.is_channel().into());
                    let payload = reply.payload.map_or(0, |source| u64::from(source.length));
                    queues.counters.tx_bytes.add(payload);
                }
                Err(refusal) => {
                    let verdict = self.responder.read_failed(&reply, refusal);
                    self.note(endpoint, verdict, true);
                }
            }
        }
        self.responder.owes() == Owes::Response
    }

    /// Whether the peer waits for anything.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.responder.owes() != Owes::Nothing
    }

    /// How many packets of what is owed go before the next request, as with adapters.
    ///
    /// By a channel one, an acknowledgement as a rule: perftest with events counts on the order of completions. By the network an acknowledgement
    /// behind the data is one segment more of the same system call. There it stays if it is seen first all the same: behind a single packet, in one
    /// train that the peer receives whole.
    // PRACTICE-ORDER-1
    #[inline]
    pub(crate) fn answers_first(
        &self,
        requests: &SendQueue,
        cursor: &mut SendCursor,
        batch: &mut Batch,
    ) -> usize {
        if !self.owes() {
            return 0;
        }
        if self.goes_by_channel() {
            return 1;
        }
        let is_followed = self.responder.owes() == Owes::Acknowledgement
            && self.is_whole()
            && batch.forms_trains()
            && !self.notify
            && self.requester.as_ref().is_some_and(|requester| !requester.has_unsent())
            && requests.peek(cursor).is_some_and(|next| {
                // Shorter than an acknowledgement is only a packet without payload.
                let is_one = !next.opcode.is_local() && (1..=self.mtu).contains(&next.length);
                is_one && !requests.has_more_than_one(cursor)
            });
        if is_followed {
            batch.begin_train();
            return 0;
        }
        TURN
    }

    /// What is owed as the queue pair goes, up to the data of a read, which may be long: packets without their CRC.
    pub(crate) fn last_words(&mut self) -> Vec<LastWord> {
        let mut words = Vec::new();
        let mut packet = [0; MAX_HEADER];
        while let Some(reply) = self.responder.poll_transmit(&mut packet)
            && reply.payload.is_none()
        {
            words.push(LastWord {
                way: self.way,
                channel: self.channel.clone(),
                packet,
                length: reply.header,
            });
        }
        words
    }

    /// Whether the queue pair is in error because the peer's request was refused, and the peer has been told.
    pub(crate) fn has_ended(&self) -> bool {
        self.refused.is_some() && self.responder.owes() == Owes::Nothing
    }

    /// Counts, logs and reports what has become of a request of the peer. `is_told`: the log knows already what is wrong with it.
    fn note(&mut self, endpoint: &Endpoint, verdict: Verdict, is_told: bool) {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        match verdict {
            Verdict::Accepted => {}
            Verdict::Duplicate => counters.duplicates.add(1),
            Verdict::OutOfSequence => counters.out_of_sequence.add(1),
            Verdict::NotReady => {
                counters.not_ready_sent.add(1);
                heard::tell(queues.number, Heard::NoReceiveHere);
            }
            // IB-PKT-52
            Verdict::Dropped(Dropped::NoReceive) => counters.no_receive.add(1),
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

    /// Takes in a packet, whose service and partition are right. `has_work`: the program has posted what is not entered yet.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        via: Via<'_>,
        has_work: bool,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Taken {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        let mut taken = Taken::default();
        let (marked, elsewhere) = match via {
            Via::Network(arrival) => {
                let route = &self.way.route;
                // IB-PKT-50
                if arrival.source != route.destination
                    || arrival.local != route.source
                    || !self.whereabouts.admits(arrival.source_port)
                {
                    counters.misaddressed.add(1);
                    return taken;
                }
                // IB-PKT-43, ROCE-5
                if !self.verify(arrival) {
                    counters.damaged.add(1);
                    return taken;
                }
                (arrival.class & ECN == CONGESTION_EXPERIENCED || sweep.overflowed, &NOWHERE)
            }
            Via::Host(from) => {
                // Only the process of the peer has this channel.
                if !self.goes_by(from.channel) {
                    counters.misaddressed.add(1);
                    return taken;
                }
                if watch::packets() {
                    observer::received_within(&self.way.route, packet, from.elsewhere);
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
            // What comes by a channel beside an acknowledgement may say for how long to wait.
            let now = if self.channel.is_some() { time::now() } else { now };
            let feedback = {
                let channel = self.channel.as_deref();
                requester.receive(packet, now, &mut Requests { queues, elsewhere, channel })
            };
            elsewhere.finish();
            // What waited for a read, for room in the window, or for an earlier request, may begin.
            taken.transmit |= has_work || requester.has_unsent();
            self.learn(endpoint, feedback, now, &mut sweep.ready);
            taken.failed = feedback.failed;
            if is_expected {
                self.believe(packet, marked, counters, now, &mut taken);
            }
            return taken;
        }
        if let Via::Host(from) = via
            && let Some(number) = from.acknowledged
            && let Some(requester) = &mut *self.requester
        {
            let feedback = {
                let channel = self.channel.as_deref();
                let mut host = Requests { queues, elsewhere: &NOWHERE, channel };
                requester.acknowledged(number, now, &mut host)
            };
            taken.transmit |= has_work || requester.has_unsent();
            self.learn(endpoint, feedback, now, &mut sweep.ready);
            if feedback.failed {
                taken.failed = true;
                return taken;
            }
        }
        taken.brings_no_deadline = matches!(via, Via::Host(_));
        let from = match via {
            Via::Host(from) => Some(from),
            Via::Network(_) => None,
        };
        if !self.has_held() || self.responder.is_past(packet) {
            let verdict = self.serve(endpoint, packet, from, marked, now, sweep, &mut taken);
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
                    Put::Behind => {}
                    Put::Repeated => counters.duplicates.add(1),
                    Put::Lost => counters.dropped.add(1),
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

    /// Takes in the request that has been held longest, if enough of the reads before it has been answered.
    #[cold]
    pub(crate) fn receive_held(
        &mut self,
        endpoint: &Endpoint,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Option<Taken> {
        let waiting = self.held.pop()?;
        let mut taken = Taken::default();
        if let Ok(packet) = Packet::parse(&waiting.bytes) {
            let verdict = self.serve(endpoint, &packet, None, waiting.marked, now, sweep, &mut taken);
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

    /// Carries out a request of the peer, which has come by a channel or `from` the network. Nothing has happened where it is postponed.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "what a packet comes with, and what it brings")]
    fn serve(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        from: Option<&Host<'_>>,
        marked: bool,
        now: Duration,
        sweep: &mut Sweep,
        taken: &mut Taken,
    ) -> Verdict {
        let queues = &endpoint.queues;
        let elsewhere = from.map_or(&NOWHERE, |from| from.elsewhere);
        // What the program sends by another queue pair, once it sees what this packet brings, waits for the lock.
        // PRACTICE-ORDER-1
        if packet.bth().ack_request() && self.responder.is_next(packet) {
            endpoint.owe();
        }
        let was_receiving = self.taken.is_some();
        if !self.reliable && !was_receiving {
            // Before a receive is missing.
            endpoint.is_receiving.store(true, Ordering::SeqCst);
        }
        let mut host = Responses::new(queues, elsewhere, &mut self.taken, &mut self.receives, &mut self.kept);
        host.counts_alone = sweep.counts_alone;
        let verdict = self.responder.receive(packet, &mut host);
        let (used, has_completed, is_told) = (host.used, host.has_completed, host.is_told.get());
        drop(host);
        elsewhere.finish();
        if verdict == Verdict::Postponed {
            return verdict;
        }
        if let Some(key) = used {
            sweep.one_sided = true;
            if let Some(from) = from {
                self.share(endpoint, from.channel, key);
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
        }
        // Others have a sequence number that anybody guesses.
        if matches!(verdict, Verdict::Accepted | Verdict::NotReady | Verdict::Refused(_)) {
            self.believe(packet, marked, queues.counters, now, taken);
        }
        match self.responder.owes() {
            // IB-UC-14
            Owes::Nothing => taken.failed |= self.has_ended(),
            // IB-RC-RSP-49
            Owes::Acknowledgement if self.unacknowledged < ACKNOWLEDGE_EVERY => taken.owes = true,
            Owes::Acknowledgement | Owes::Response => taken.transmit = true,
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
        taken: &mut Taken,
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

    /// The peer has used memory of ours by a channel: before long it does so without us.
    #[inline]
    fn share(&mut self, endpoint: &Endpoint, channel: &Channel, key: u32) {
        if !channel.neighbour.may_share() || self.service != Service::Rc {
            return;
        }
        let keys = &endpoint.queues.engine.keys;
        if self.published.is_none() {
            let (number, domain) = (endpoint.number(), endpoint.queues.domain);
            let terms = Terms { number, peer: self.destination, domain, access: self.permitted };
            self.published = endpoint.net.local.sharing.publish(&terms);
        }
        let is_news = || {
            !channel.neighbour.has_been_told() && keys.is_published(key)
                || !channel.neighbour.knows_what_to_map() && keys.is_mapped(key)
        };
        if keys.asks(key) || is_news() {
            endpoint.net.local.sharing.ask(channel, &endpoint.queues, key, false);
        }
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

/// The bytes that a response to a read carries.
fn open<'a>(queues: &'a Queues, source: &ReadSource) -> std::result::Result<Span<'a>, Refusal> {
    // IB-XRC-6
    let domain = match queues.shared_queues() {
        None => queues.domain,
        Some(held) => Queues::shared_queue_domain(&held, source.shared_queue).ok_or(Refusal::Access)?,
    };
    let rights = memory::Access::REMOTE_READ;
    let (key, address, length) = (source.key, source.address, source.length.into());
    // IB-RC-RSP-6, IB-RC-RSP-54
    let span = queues.engine.keys.open_for_peer(key, address, length, rights, domain, queues.number);
    span.map_err(|error| {
        queues.refuse_memory(key, address, length, rights, domain, error);
        Refusal::Access
    })
}
