//! A connected queue pair (RC, UC): its requester and responder, the way to its peer, and what is told to whom. What comes in, and the answers to it,
//! are in [`receive`]; what waits there for reads before it, in [`held`]; what most messages between processes of one host are, in [`short`].

mod held;
mod receive;
mod request;
mod short;

use crate::batch::{Batch, Way};
use crate::endpoint::{Carried, Endpoint, Turn};
use crate::host::{Kept, NOWHERE, Requests, Responses, status};
use crate::lane::Lane;
use crate::local::{self, Channel, Direct, Lending, Outlet, Published, Step};
use crate::locate::Place;
use crate::lock;
use crate::peer::{Peer, Sent};
use crate::route::Route;
use adverb_core::busy::Busy;
use adverb_core::error::Result;
use adverb_core::event::AsyncEventKind;
use adverb_core::log;
use adverb_core::memory::{self, Reader, process};
use adverb_core::qp::{
    Attributes, Path, Queues, ReceiveWork, SendCursor, SendWork, Service, State, Transition,
};
use adverb_core::request::{SendFlags, Status};
use adverb_proto::ib::{
    Access, CompletionStatus, Feedback, Loss, Request, Requester, RequesterOptions, Responder,
    ResponderOptions,
};
use adverb_wire::ib::header::{DEFAULT_PKEY, MAX_HEADER};
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use held::Held;
use request::{length, operation};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that are copied to or from memory of the peer's process before others get their turn: what a post does itself.
const TURN: u32 = 1 << 20;
/// Packets by a channel that are not answered before another long request follows. The peer acknowledges before it has taken in all of them; and they
/// leave room in the channel, since to wait for some costs more. One-sided requests that have not begun may soon be carried out from here.
const AHEAD: u32 = ACKNOWLEDGE_EVERY + 16;
/// A longer read goes out as several, so that its responses come at the pace of the window; by a channel, in packets of that.
const READ_CHUNK: u32 = 64 << 10;
/// Pause between congestion notifications to a peer (annex A17.9.3 leaves it to the implementation; adapters use about this).
const NOTIFICATION_PAUSE: Duration = Duration::from_micros(50);
/// The explicit congestion notification bits of a traffic class (RFC 3168 section 5).
const ECN: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;
/// "Not yet said."
const ECN_CAPABLE: u8 = 2;

/// What a link is made of.
pub(crate) struct LinkOptions<'a> {
    pub(crate) service: Service,
    pub(crate) attributes: &'a Attributes,
}

/// What a packet has brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// There is something to send now.
    pub(crate) transmit: bool,
    /// An acknowledgement is owed, which may wait for company.
    pub(crate) owes: bool,
    /// The queue pair is in error.
    pub(crate) failed: bool,
    /// It was the first packet of the peer.
    pub(crate) first: bool,
    /// No deadline has come closer.
    pub(crate) brings_no_deadline: bool,
    /// It took a receive for an unreliable message, and cost so much of a window.
    pub(crate) took_receive: Option<u32>,
}

/// Where the peer's queue pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whereabouts {
    /// It is being looked for.
    Sought,
    /// At the other end of a channel.
    Channel,
    /// Behind a UDP port of the peer's address.
    Network(Place),
}

impl Whereabouts {
    /// Whether packets that come by the network from this UDP port may be the peer's. Kernels and adapters send from whatever port they like.
    fn admits(self, port: u16) -> bool {
        match self {
            Self::Sought => true,
            Self::Channel => false,
            Self::Network(place) => place.room.is_none() || place.port == port,
        }
    }
}

/// See the module.
pub(crate) struct Link {
    requester: Option<Requester>,
    responder: Responder,
    /// As the program gave it.
    path: Path,
    way: Way,
    peer: Arc<Peer>,
    /// The channel by which it goes, if its peer lives on this host.
    channel: Option<Arc<Channel>>,
    /// What it does in memory of the peer's process by itself.
    direct: Direct,
    /// By these it opens what it sends from, and where it receives.
    reader: Reader,
    receives: Reader,
    /// What it sends from time and again.
    lending: Lending,
    /// By this the peer's process does the same here.
    published: Option<Published>,
    /// What the peer may do: bits of [`memory::Access`].
    permitted: u32,
    /// Whether it may have a read of its own under way.
    reads: bool,
    /// The peer's queue pair.
    destination: u32,
    /// Where that lives: until it is known nothing is sent, lest later packets overtake earlier ones.
    whereabouts: Whereabouts,
    /// The flow that packets last came by, and its CRC.
    incoming: (Flow, FlowCrc),
    /// The receive that the message now coming in has taken.
    taken: Option<ReceiveWork>,
    /// What reads of the peer have been kept of its memory.
    kept: Kept,
    /// Requests behind those of which nothing more can be kept.
    held: Held,
    mtu: u32,
    service: adverb_proto::ib::Service,
    reliable: bool,
    heard: bool,
    /// A request of the peer was refused: once the NAK has left, the queue pair is in error, and the program is told this.
    refused: Option<AsyncEventKind>,
    /// Packets that came in without an acknowledgement going out.
    unacknowledged: u32,
    notified: Duration,
    notify: bool,
}

/// A packet that leaves after its queue pair has gone.
pub(crate) struct LastWord {
    way: Way,
    channel: Option<Arc<Channel>>,
    packet: [u8; MAX_HEADER],
    length: usize,
}

impl LastWord {
    /// Sends it. It may wait for the lane.
    pub(crate) fn send(&self, lane: &Lane) {
        lane.send_packet(&self.way, self.channel.as_ref(), &self.packet[..self.length]);
    }
}

/// So many packets are acknowledged at once at the latest.
const ACKNOWLEDGE_EVERY: u32 = 64;

fn access(attributes: &Attributes) -> Access {
    let bits = memory::Access::from_bits_truncate(attributes.access);
    Access {
        write: bits.contains(memory::Access::REMOTE_WRITE),
        read: bits.contains(memory::Access::REMOTE_READ),
        atomic: bits.contains(memory::Access::REMOTE_ATOMIC),
        flush: bits.intersects(memory::Access::FLUSH_GLOBAL | memory::Access::FLUSH_PERSISTENT),
    }
}

/// What a peer may do without a packet.
fn permitted(attributes: &Attributes) -> u32 {
    let access = memory::Access::from_bits_truncate(attributes.access) & memory::Access::REMOTE;
    // Without room for reads there are none.
    let reads = memory::Access::REMOTE_READ | memory::Access::REMOTE_ATOMIC;
    (if attributes.max_dest_rd_atomic == 0 { access - reads } else { access }).bits()
}

fn service(service: Service) -> adverb_proto::ib::Service {
    match service {
        Service::Uc => adverb_proto::ib::Service::Uc,
        Service::Rc | Service::Ud | Service::RawPacket => adverb_proto::ib::Service::Rc,
        Service::XrcSend | Service::XrcReceive => adverb_proto::ib::Service::Xrc,
    }
}

impl Link {
    pub(crate) fn new(endpoint: &Endpoint, options: &LinkOptions<'_>, route: Route) -> Self {
        let attributes = options.attributes;
        let reliable = options.service != Service::Uc;
        let route = marked(route, reliable);
        Self {
            requester: None,
            responder: Responder::new(ResponderOptions {
                service: service(options.service),
                mtu: attributes.path_mtu.max(256),
                expected_psn: attributes.rq_psn,
                destination: attributes.destination,
                pkey: DEFAULT_PKEY,
                max_reads: attributes.max_dest_rd_atomic,
                min_rnr_timer: attributes.min_rnr_timer,
                access: access(attributes),
            }),
            path: attributes.path,
            // ROCE-3
            way: endpoint.way(route),
            peer: endpoint.net.peers.of(route.destination, route.port),
            channel: None,
            direct: Direct::default(),
            reader: Reader::default(),
            receives: Reader::default(),
            lending: Lending::default(),
            published: None,
            permitted: permitted(attributes),
            reads: false,
            destination: attributes.destination,
            whereabouts: Whereabouts::Sought,
            incoming: incoming(endpoint, &route),
            taken: None,
            kept: Kept::new(),
            held: Held::default(),
            mtu: attributes.path_mtu.max(256),
            service: service(options.service),
            reliable,
            heard: false,
            refused: None,
            unacknowledged: 0,
            notified: Duration::ZERO,
            notify: false,
        }
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Packets of requests without an answer, whether they have been sent or not, where they go by the network and are acknowledged.
    #[inline]
    pub(crate) fn unanswered_by_network(&self) -> u32 {
        match &self.requester {
            Some(requester) if self.reliable && self.channel.is_none() => requester.unanswered(),
            _ => 0,
        }
    }

    /// The peer's queue pair.
    pub(crate) fn destination(&self) -> u32 {
        self.destination
    }

    /// Packets go by a channel from now on. False if it is known already how they go, or the peer is another one.
    pub(crate) fn bind(&mut self, queues: &Queues, number: u32, channel: &Arc<Channel>) -> bool {
        if self.whereabouts != Whereabouts::Sought || number != self.destination {
            return false;
        }
        self.whereabouts = Whereabouts::Channel;
        self.channel = Some(channel.clone());
        let keys = &queues.engine.keys;
        (self.reader, self.receives) = (Reader::new(keys), Reader::new(keys));
        if self.reliable {
            channel.count_reliable(true);
        }
        // What is not acknowledged is complete as soon as it is sent, and its memory the program's again.
        let fetches = self.reliable && channel.fetches();
        self.mtu = if fetches { local::MTU } else { local::LONGEST_HERE as u32 };
        self.responder.set_mtu(self.mtu);
        if fetches {
            // Longer payloads are lent.
            self.kept.longest = local::LONGEST_HERE as u32;
        }
        if let Some(requester) = &mut self.requester {
            requester.set_mtu(self.mtu);
            follow_channel(requester);
        }
        true
    }

    /// Whether the peer receives in one train what leaves here in one.
    #[inline]
    fn is_whole(&self) -> bool {
        matches!(self.whereabouts, Whereabouts::Network(place) if place.is_whole())
    }

    /// Whether packets go by a channel.
    pub(crate) fn goes_by_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// The channel by which packets go, if there is one.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        self.channel.clone()
    }

    /// Whether packets go by this channel.
    pub(crate) fn goes_by(&self, channel: &Channel) -> bool {
        self.channel.as_ref().is_some_and(|own| std::ptr::eq(&**own, channel))
    }

    /// The program may have changed the path. Returns whether the peer is to be located anew. `ready`: others that may send now.
    ///
    /// # Errors
    /// When the path leads nowhere.
    // IB-QP-18
    pub(crate) fn redirect(
        &mut self,
        endpoint: &Endpoint,
        path: &Path,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> Result<bool> {
        if self.path == *path {
            return Ok(false);
        }
        let mut route = marked(endpoint.gids.route_of(path)?, self.reliable);
        self.path = *path;
        // A channel leads to a process, whatever its address.
        let moved = self.channel.is_none() && route.destination != self.way.route.destination;
        if moved {
            self.whereabouts = Whereabouts::Sought;
        } else {
            route.port = self.way.route.port;
        }
        self.incoming = incoming(endpoint, &route);
        self.go_by(endpoint, route, ready);
        Ok(moved)
    }

    /// Packets take this way from now on; what is in flight counts in the window of whoever is at its end.
    fn go_by(&mut self, endpoint: &Endpoint, route: Route, ready: &mut Vec<Arc<Endpoint>>) {
        self.way = endpoint.way(route);
        let peer = endpoint.net.peers.of(route.destination, route.port);
        if Arc::ptr_eq(&peer, &self.peer) {
            return;
        }
        let in_flight = self.requester.as_ref().map_or(0, Requester::in_flight);
        lock(&self.peer.window).released(in_flight);
        lock(&peer.window).sent(in_flight);
        self.peer.forget(endpoint);
        self.peer.wake(ready);
        self.peer = peer;
    }

    /// The program moves the queue pair from state to state. Returns whether its send queue is drained.
    pub(crate) fn modify(&mut self, transition: Transition, attributes: &Attributes) -> bool {
        self.responder.reconfigure(
            access(attributes),
            attributes.max_dest_rd_atomic,
            attributes.min_rnr_timer,
        );
        if permitted(attributes) != self.permitted {
            self.permitted = permitted(attributes);
            self.published = None;
        }
        self.reads = attributes.max_rd_atomic > 0;
        let (timeout, retries) = (attributes.timeout, attributes.retry_count);
        let (rnr_retries, reads) = (attributes.rnr_retry, attributes.max_rd_atomic);
        match (transition.to, &mut self.requester) {
            (State::Rts, None) => {
                let mut requester = Requester::new(RequesterOptions {
                    service: self.service,
                    mtu: self.mtu,
                    first_psn: attributes.sq_psn,
                    destination: self.destination,
                    pkey: DEFAULT_PKEY,
                    timeout,
                    retry_count: retries,
                    rnr_retry: rnr_retries,
                    max_reads: reads,
                    room: u32::MAX,
                    read_chunk: READ_CHUNK,
                });
                if self.channel.is_some() {
                    follow_channel(&mut requester);
                }
                self.requester = Some(requester);
                false
            }
            (State::Rts, Some(requester)) => {
                requester.reconfigure(timeout, retries, rnr_retries, reads);
                requester.resume();
                false
            }
            (State::Sqd, Some(requester)) => {
                requester.reconfigure(timeout, retries, rnr_retries, reads);
                // A request that has begun ends before the queue is drained.
                // IB-QP-7
                transition.from != State::Sqd && requester.suspend() && !self.direct.has_begun()
            }
            _ => false,
        }
    }

    /// The sequence numbers that are next.
    pub(crate) fn query(&self, attributes: &mut Attributes) {
        attributes.rq_psn = self.responder.expected_psn();
        if let Some(requester) = &self.requester {
            attributes.sq_psn = requester.next_psn();
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.requester.as_ref()?.deadline()
    }

    /// Enters what the program has posted before `until`, as far as it may begin.
    fn enter(&mut self, endpoint: &Endpoint, cursor: &mut SendCursor, until: u64) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        let mut copied = 0;
        // PRACTICE-ORDER-1
        while let Some(work) = queues.send.peek(cursor).filter(|work| work.sequence < until) {
            let Some(requester) = &mut self.requester else { return turn };
            if self.service == adverb_proto::ib::Service::Rc
                && let Some(channel) = &self.channel
                && !self.direct.has_failed(work.sequence)
                && self.direct.suits(channel, self.destination, &work, self.reads)
            {
                endpoint.is_direct.store(true, Ordering::Relaxed);
                // In order: what was posted before comes first.
                if !requester.is_idle() {
                    break;
                }
                if copied >= TURN || endpoint.is_copying() {
                    turn.copies = true;
                    break;
                }
                copied += self.direct.left(&work);
                // Others wait for the lane: long copies go on beside it.
                let busy = (work.length as usize <= process::SHORT).then_some(&endpoint.busy);
                let about = (self.destination, &work);
                match self.direct.execute(&mut self.reader, channel, queues, about, busy) {
                    Step::Done => {
                        carried_out(queues, cursor, &work);
                        continue;
                    }
                    Step::More => continue,
                    Step::Kernel => {
                        turn.copies = true;
                        break;
                    }
                    Step::Packet => {}
                }
            }
            if !requester.has_room() {
                break;
            }
            if requester.unanswered() >= AHEAD
                && work.length as usize > local::LONGEST_HERE
                && self.reliable
                && self.channel.is_some()
            {
                break;
            }
            if work.opcode.is_local() {
                // What was posted before may still be sent again, out of the memory that the key opens.
                // IB-RC-REQ-54, IB-QP-46
                if !queues.send.is_oldest(work.sequence) {
                    break;
                }
                cursor.advance();
                let end = queues.execute_locally(&work);
                queues.complete_send(work.sequence, end);
                if end != Status::Success {
                    turn.failed = true;
                    return turn;
                }
                continue;
            }
            cursor.advance();
            self.direct.begin_anew();
            let (operation, fault) = operation(endpoint, &work);
            let fault = if self.direct.has_failed(work.sequence) {
                Some(CompletionStatus::LocalProtection)
            } else {
                fault
            };
            requester.push(Request {
                sequence: work.sequence,
                operation,
                length: length(&work),
                solicited: work.flags.contains(SendFlags::SOLICITED),
                fence: work.flags.contains(SendFlags::FENCE),
                shared_queue: work.shared_queue,
            });
            queues.counters.tx_messages.add(1);
            if !work.opcode.is_read_or_atomic() {
                queues.counters.tx_bytes.add(work.length.into());
            }
            if let Some(fault) = fault {
                turn.failed |= self.fail(endpoint, cursor, work.sequence, fault, &mut turn);
            }
        }
        turn
    }

    /// Whether no request is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.direct.has_begun() && self.requester.as_ref().is_none_or(Requester::is_idle)
    }

    /// Carries out what has been posted, as far as it needs no packet and nothing is before it. `busy`: by the kernel's copy, too.
    #[inline]
    pub(crate) fn carry_out(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        busy: Option<&Busy>,
    ) -> Carried {
        let queues = &endpoint.queues;
        let Some(channel) = &self.channel else { return Carried::Packets };
        if self.requester.as_ref().is_none_or(|requester| !requester.is_idle()) {
            return Carried::Packets;
        }
        let mut copied = 0;
        while let Some(work) = queues.send.peek(cursor) {
            // IB-QP-7
            if queues.state() == State::Sqd && !self.direct.has_begun() {
                queues.send_queue_drained();
                return Carried::All;
            }
            if self.service != adverb_proto::ib::Service::Rc
                || self.direct.has_failed(work.sequence)
                || !self.direct.suits(channel, self.destination, &work, self.reads)
            {
                return Carried::Packets;
            }
            // It may be about a message that has come since, to whichever thread has posted it: the lane acknowledges that first.
            // PRACTICE-ORDER-1
            if endpoint.lane.owes() && !self.direct.has_begun() {
                return Carried::Packets;
            }
            if copied >= TURN {
                return Carried::Part;
            }
            copied += self.direct.left(&work);
            match self.direct.execute(&mut self.reader, channel, queues, (self.destination, &work), busy) {
                Step::Done => carried_out(queues, cursor, &work),
                Step::More => {}
                Step::Kernel => return Carried::Kernel,
                Step::Packet => return Carried::Packets,
            }
        }
        Carried::All
    }

    /// A request fails on this side. Returns whether the queue pair is in error.
    fn fail(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        sequence: u64,
        end: CompletionStatus,
        turn: &mut Turn,
    ) -> bool {
        let queues = &endpoint.queues;
        let Some(requester) = &mut self.requester else { return false };
        if !self.reliable {
            queues.fail_send(cursor, sequence, status(end));
            turn.stopped = true;
            // Back in RTS it begins anew, behind what it has sent.
            let psn = requester.next_psn();
            self.requester = None;
            self.restart(psn);
            return false;
        }
        let feedback = requester.fail(sequence, end, &mut requests(queues, self.channel.as_deref()));
        if self.channel.is_none() {
            lock(&self.peer.window).released(feedback.rewound);
        }
        feedback.failed
    }

    /// Whether the process of the peer has gone: nothing will be answered any more.
    fn is_cut_off(&self) -> bool {
        self.reliable && self.channel.as_ref().is_some_and(|channel| channel.is_dead())
    }

    /// What is not answered fails as if it had been repeated in vain.
    #[cold]
    fn give_up(&mut self, endpoint: &Endpoint, mut turn: Turn) -> Turn {
        if let Some(requester) = &mut self.requester
            && let Some(sequence) = requester.oldest()
        {
            let mut host = requests(&endpoint.queues, self.channel.as_deref());
            let feedback = requester.fail(sequence, CompletionStatus::RetryExceeded, &mut host);
            turn.failed |= feedback.failed;
        }
        turn.more = false;
        turn
    }

    fn restart(&mut self, psn: u32) {
        self.requester = Some(Requester::new(RequesterOptions {
            service: adverb_proto::ib::Service::Uc,
            mtu: self.mtu,
            first_psn: psn,
            destination: self.destination,
            pkey: DEFAULT_PKEY,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_reads: 0,
            room: u32::MAX,
            read_chunk: READ_CHUNK,
        }));
    }

    /// Packets are on their way to the peer.
    #[inline]
    fn charge(&self, endpoint: &Endpoint, batch: &mut Batch, sent: Sent, now: Duration) {
        if self.channel.is_some() {
            // The channel itself says when it is full.
        } else if self.reliable {
            lock(&self.peer.window).sent(sent.cost);
        } else {
            self.peer.charge(&endpoint.net, batch, &self.way, sent, now);
        }
    }

    /// What may be in flight to the peer now.
    fn room(&self) -> u32 {
        if self.channel.is_some() {
            u32::MAX
        } else if self.reliable {
            lock(&self.peer.window).room()
        } else {
            self.peer.unreliable_room()
        }
    }

    /// Sends up to `most` packets of requests, of those that were posted before `until`.
    #[inline]
    pub(crate) fn send(
        &mut self,
        endpoint: &Endpoint,
        (cursor, until): (&mut SendCursor, u64),
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        let (mut full, mut lends_often) = (false, false);
        if self.whereabouts == Whereabouts::Sought {
            return turn;
        }
        if self.is_cut_off() {
            self.direct.forget();
        }
        if queues.state() != State::Sqd {
            turn = self.enter(endpoint, cursor, until);
            if turn.failed || turn.stopped {
                return turn;
            }
        }
        if self.requester.as_ref().is_none_or(Requester::is_idle) {
            return turn;
        }
        if self.is_cut_off() {
            return self.give_up(endpoint, turn);
        }
        let mut room = self.room();
        let (mut spent, mut sent) = (Sent::default(), 0);
        let counts_receives = !self.reliable && self.channel.is_none();
        turn.more = true;
        let channel = self.channel.clone();
        let mut outlet = Outlet::new(batch, channel.as_ref());
        // What does not fit is lost, then.
        let stuck = channel.as_ref().filter(|channel| !self.reliable && channel.is_stuck());
        let lossy = stuck.is_some_and(|channel| {
            let has_room = outlet.has_room();
            if has_room {
                channel.is_moving();
            }
            !has_room
        });
        for _ in 0..most {
            if !outlet.has_room() && !lossy {
                full = outlet.is_channel();
                break;
            }
            let Some(requester) = &mut self.requester else { break };
            // Nobody would tell that a message has found no receive: the packet that takes one leaves when there is one ([`crate::pace`]).
            let begins = counts_receives && room > 0 && requester.is_to_take_receive();
            let has_begun = begins && self.peer.begin();
            let waits = room == 0 || begins && !has_begun;
            // Without room, too: a probe goes in any case.
            let Some(outbound) = requester.poll_transmit(now, if waits { 0 } else { room }, space) else {
                if has_begun {
                    self.peer.not_begun(endpoint, self.way.route);
                }
                turn.more = false;
                if !waits {
                    break;
                }
                self.peer.wait(endpoint, self.way.route);
                // An acknowledgement that came meanwhile has found nobody waiting.
                room = self.room().saturating_sub(spent.cost);
                if room == 0 || begins && !self.peer.may_begin() {
                    break;
                }
                turn.more = true;
                continue;
            };
            let head = &space[..outbound.header];
            let added = match outbound.payload {
                None => outlet.add(&self.way, head, 0, |_| Ok(())),
                Some(source) => {
                    let work = queues.send.read(source.sequence);
                    let length = source.length as usize;
                    if length > local::LONGEST_HERE {
                        // What is sent again may be what the receiver could not read.
                        let look = outbound.repeated;
                        lends_often |=
                            !look && self.lending.count(queues.send.sge(&work, 0).lkey, source.length);
                        outlet.refer(queues, &self.way, head, length, |take| {
                            queues.locate(&work, source.offset, source.length, look, take)
                        })
                    } else {
                        outlet.add(&self.way, head, length, |target| {
                            queues.gather(&work, source.offset, target)
                        })
                    }
                }
            };
            spent.cost += outbound.cost;
            spent.begun += u32::from(has_begun);
            if added.is_err() {
                drop(outlet);
                self.charge(endpoint, batch, std::mem::take(&mut spent), now);
                outlet = Outlet::new(batch, channel.as_ref());
                let end = CompletionStatus::LocalProtection;
                turn.failed |= self.fail(endpoint, cursor, outbound.sequence, end, &mut turn);
                if turn.failed || turn.stopped {
                    break;
                }
                continue;
            }
            sent += 1;
            room = room.saturating_sub(outbound.cost);
            if outbound.repeated {
                queues.counters.tx_repeated.add(1);
            }
            if outbound.finished {
                // IB-UC-3
                queues.complete_send(outbound.sequence, Status::Success);
            }
        }
        if !self.reliable
            && queues.state() == State::Sqd
            && self.requester.as_mut().is_some_and(Requester::drain)
        {
            // What was under way is complete as soon as it is sent.
            // IB-QP-7
            queues.send_queue_drained();
        }
        drop(outlet);
        self.charge(endpoint, batch, spent, now);
        if let Some(channel) = &channel {
            queues.counters.tx_local.add(sent);
            if lends_often {
                self.lending.look(&endpoint.net, channel, queues);
            }
            // Its turn comes when there is room again.
            let wait = if self.reliable { Channel::wait } else { Channel::wait_briefly };
            if full && wait(channel, endpoint) {
                turn.more = false;
            }
        }
        queues.counters.tx_frames.add(sent);
        // Without acknowledgements nothing else will say that a request about keys, which waited for those before it, can be carried out.
        turn.more |= !self.reliable
            && !turn.stopped
            && queues.state() == State::Rts
            && self.requester.as_ref().is_some_and(Requester::is_idle)
            && queues.send.has_work(cursor);
        turn
    }

    /// Acts on what the requester has learnt.
    #[inline]
    fn learn(
        &mut self,
        endpoint: &Endpoint,
        feedback: Feedback,
        now: Duration,
        ready: &mut Vec<Arc<Endpoint>>,
    ) {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        match feedback.loss {
            Loss::None => {}
            Loss::Gap => counters.naks_received.add(1),
            Loss::Timeout => counters.timeouts.add(1),
            Loss::NotReady => counters.not_ready_received.add(1),
        }
        if self.channel.is_none() {
            lock(&self.peer.window).learn(&feedback, now);
            if feedback.acknowledged > 0 || feedback.rewound > 0 {
                self.peer.wake(ready);
            }
        }
        if feedback.drained {
            queues.send_queue_drained();
        }
        if feedback.failed {
            let why = match feedback.loss {
                Loss::None => "",
                Loss::Gap => ": packets were lost again and again",
                Loss::Timeout => ": nobody answered in time, however often it was repeated",
                Loss::NotReady => ": the peer had no receive ready, however often it was repeated",
            };
            let peer = self.way.route.destination;
            // What was never acknowledged was not lost: the two do not fit.
            let first = self.requester.as_ref().and_then(Requester::never_acknowledged);
            let never = first.filter(|_| matches!(feedback.loss, Loss::Gap | Loss::Timeout));
            let destination = self.destination;
            let hint = never.map_or_else(String::new, |first| {
                format!(
                    "; the peer has never acknowledged anything: is its queue pair {destination:#x} (dest_qp_num), does that name {:#x}, \
                     and is its rq_psn {first:#x}, as sq_psn is here?",
                    queues.number
                )
            });
            log!(Warn, "queue pair {:#x}: a request to {peer} failed{why}{hint}", queues.number);
        }
    }

    /// A deadline has passed. Returns whether the queue pair is in error.
    pub(crate) fn handle_timeout(
        &mut self,
        endpoint: &Endpoint,
        now: Duration,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> bool {
        let Some(requester) = &mut self.requester else { return false };
        let mut host = requests(&endpoint.queues, self.channel.as_deref());
        let feedback = requester.handle_timeout(now, &mut host);
        self.learn(endpoint, feedback, now, ready);
        feedback.failed
    }

    /// The peer's queue pair lives here. `ready`: others that may send now.
    pub(crate) fn located(
        &mut self,
        endpoint: &Endpoint,
        number: u32,
        place: Place,
        ready: &mut Vec<Arc<Endpoint>>,
    ) {
        if number != self.destination || self.channel.is_some() {
            return;
        }
        self.whereabouts = Whereabouts::Network(place);
        if self.way.route.port != place.port {
            self.go_by(endpoint, Route { port: place.port, ..self.way.route }, ready);
        }
        self.peer.learn_place(place);
    }

    /// What lets the peer's process carry out operations here by itself, which ends when that is dropped.
    pub(crate) fn unpublish(&mut self) -> Option<Published> {
        self.published.take()
    }

    /// The queue pair goes to error or away: nothing is sent or taken in any more. Returns what the program is to be told when it is there.
    /// `ready`: others that may send now.
    pub(crate) fn stop(
        &mut self,
        endpoint: &Endpoint,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> Option<AsyncEventKind> {
        self.peer.forget(endpoint);
        self.published = None;
        self.direct.end(&endpoint.queues);
        if let Some(channel) = &self.channel {
            if self.reliable {
                channel.count_reliable(false);
            }
            channel.forget(endpoint);
            // Before the program hears that its requests are flushed.
            channel.loans.withdraw(endpoint.number());
            self.requester = None;
        }
        if let Some(requester) = self.requester.take() {
            lock(&self.peer.window).released(requester.in_flight());
            self.peer.wake(ready);
        }
        let mut host =
            Responses::new(&endpoint.queues, &NOWHERE, &mut self.taken, &mut self.receives, &mut self.kept);
        host.give_up(Status::Flushed);
        drop(host);
        // Nobody waits for the rest of a message.
        endpoint.is_receiving.store(false, Ordering::SeqCst);
        self.refused.take()
    }
}

/// A request has been carried out in memory of the peer's process.
#[inline]
fn carried_out(queues: &Queues, cursor: &mut SendCursor, work: &SendWork) {
    cursor.advance();
    queues.complete_oldest_send(work);
}

/// Routers may mark what is answered instead of dropping it: marks come back as notifications.
fn marked(mut route: Route, reliable: bool) -> Route {
    // ROCE-32
    if reliable && route.class & ECN == 0 {
        route.class |= ECN_CAPABLE;
    }
    route
}

/// A requester's packets go by a channel.
fn follow_channel(requester: &mut Requester) {
    // As times are taken there.
    requester.set_clock_lags();
    // The peer lends what it answers longer reads with; or could not keep all of them, where it lends nothing.
    requester.set_longest_overtaken(local::LONGEST_HERE as u32);
}

/// What a requester needs where nothing has come in.
fn requests<'a>(queues: &'a Queues, channel: Option<&'a Channel>) -> Requests<'a> {
    Requests { queues, elsewhere: &NOWHERE, channel }
}

/// The flow by which packets of the peer are expected first.
fn incoming(endpoint: &Endpoint, route: &Route) -> (Flow, FlowCrc) {
    let flow = Flow {
        source: route.destination,
        destination: route.source,
        source_port: route.port,
        destination_port: endpoint.lane.socket.port(),
    };
    (flow, FlowCrc::new(&flow))
}
