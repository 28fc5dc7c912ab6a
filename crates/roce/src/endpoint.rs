//! The endpoint: the transport's half of one queue pair.
//!
//! One lock holds the protocol's state. It is held while packets are built or taken in, never across a system call: packets are copied into
//! the lane's batch, which leaves under the lane's own lock.

mod gather;
mod groups;
mod whereabouts;

use crate::batch::Batch;
use crate::datagram::DatagramLink;
use crate::gid::Gids;
use crate::lane::Lane;
use crate::link::{LastWord, Link, LinkOptions, Taken};
use crate::local::Channel;
use crate::locate::Place;
use crate::lock;
use crate::net::Net;
use crate::numbers::block_of;
use crate::socket::Arrival;
use crate::sweep::Sweep;
use crate::time;
use adverb_core::busy::Busy;
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::Result;
use adverb_core::event::AsyncEventKind;
use adverb_core::lock::{Guard, Lock};
use adverb_core::log;
use adverb_core::memory::{self, Source};
use adverb_core::qp::{Attributes, Queues, SendCursor, Service, State, Transition};
use adverb_core::rings::Turns;
use adverb_core::transport;
use adverb_proto::ib::{PACKET_COST, goes_to_requester};
use adverb_wire::ib::header::MAX_HEADER;
use adverb_wire::ib::opcode::Service as WireService;
use adverb_wire::ib::packet::Packet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Packets that one turn at the lane lets a queue pair send, so that others get theirs.
pub(crate) const TURN: usize = 16;

/// How long messages wait for a program that has more to do with those before than it has receives.
const PATIENCE: Duration = Duration::from_millis(200);
/// Nothing has waited, and nothing does: the program has not received anything so far.
const NEVER: u64 = u64::MAX;

/// See the module.
pub(crate) struct Endpoint {
    this: Weak<Endpoint>,
    pub(crate) net: Arc<Net>,
    /// The addresses of its device.
    pub(crate) gids: Arc<Gids>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) queues: Arc<Queues>,
    /// Waits in the lane for its turn to send.
    is_queued: AtomicBool,
    /// Listed in the lane because of a deadline.
    is_timed: AtomicBool,
    /// Its packets go by a channel.
    is_bound: AtomicBool,
    /// That channel: for those who do not wait for the queue pair's lock, which is held while the kernel copies.
    channel: Mutex<Option<Arc<Channel>>>,
    /// Listed as short of receives ([`crate::pace`]).
    pub(crate) is_short: AtomicBool,
    /// An unreliable message that comes by the network has taken a receive, and is not complete.
    pub(crate) is_receiving: AtomicBool,
    /// Packets of such messages so far. Changed with the lock.
    pub(crate) message_packets: AtomicU64,
    /// Requests have been carried out in memory of the peer's process.
    pub(crate) is_direct: AtomicBool,
    /// Since when messages that came by a channel wait for the program, in nanoseconds; see [`Endpoint::is_behind`].
    behind: AtomicU64,
    /// They go on beside its posters ([`local::Copies`]).
    copying: Turns,
    /// Its lock is held while the kernel copies.
    pub(crate) busy: Busy,
    /// The lane counts it among those who owe an acknowledgement. Changed with the lock.
    owes: AtomicBool,
    /// The lane has it in its list of those who may owe one. Changed with the lock.
    is_listed: AtomicBool,
    /// Which of its posts wait for company.
    gather: gather::Gather,
    inner: Lock<Inner>,
    /// Told what happens: the connection manager.
    observer: Mutex<Option<Arc<dyn Observer>>>,
}

/// Told what happens to a queue pair. Only takes note: the caller may hold a lane.
pub(crate) trait Observer: Send + Sync {
    /// The first packet of the peer has come (volume 1, section 12.9.7).
    fn heard(&self);
    /// It has failed, or is destroyed.
    fn ended(&self);
}

/// What the protocol knows of the queue pair.
struct Inner {
    /// As the program last set it, or as the protocol changed it.
    state: State,
    cursor: SendCursor,
    kind: Kind,
}

enum Kind {
    /// Without a peer yet, or no more.
    Nothing,
    Connected(Box<Link>),
    Datagram(Box<DatagramLink>),
}

/// How a packet has come.
#[derive(Clone, Copy)]
pub(crate) enum Via<'a> {
    /// By the network.
    Network(&'a Arrival<'a>),
    /// By a channel.
    Host(&'a Host<'a>),
}

/// How a packet has come by a channel.
pub(crate) struct Host<'a> {
    pub(crate) channel: &'a Channel,
    /// Where its payload is that does not lie in it.
    pub(crate) elsewhere: &'a Source<'a>,
    /// A packet of ours that is acknowledged beside it, and all before that.
    pub(crate) acknowledged: Option<u32>,
}

/// What has been carried out of the requests that need no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// All there are.
    All,
    /// As many as one may before others get their turn.
    Part,
    /// All but some that have to take their turn as packets.
    Packets,
    /// All but some that the kernel has to copy.
    Kernel,
}

/// What a look at the deadlines has found.
pub(crate) struct Served {
    /// The next one.
    pub(crate) deadline: Option<Duration>,
    /// There is something to send.
    pub(crate) transmit: bool,
}

/// What a turn at sending leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// There is more to send, and nothing that it waits for.
    pub(crate) more: bool,
    /// A request failed: the queue pair is in error.
    pub(crate) failed: bool,
    /// A request failed: the send queue is in error (SQE).
    pub(crate) stopped: bool,
    /// There are long operations, which go on beside whoever sends.
    pub(crate) copies: bool,
}

impl Endpoint {
    pub(crate) fn new(net: &Arc<Net>, gids: &Arc<Gids>, queues: Arc<Queues>, lane: Arc<Lane>) -> Arc<Self> {
        let as_lane: Arc<dyn CqLane> = lane.clone();
        for cq in [&queues.send_cq, &queues.receive_cq] {
            cq.attach_lane(&as_lane);
        }
        let endpoint = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            net: net.clone(),
            gids: gids.clone(),
            lane,
            queues,
            is_queued: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            is_bound: AtomicBool::new(false),
            channel: Mutex::default(),
            is_short: AtomicBool::new(false),
            is_receiving: AtomicBool::new(false),
            message_packets: AtomicU64::new(0),
            behind: AtomicU64::new(NEVER),
            is_direct: AtomicBool::new(false),
            copying: Turns::default(),
            busy: Busy::default(),
            owes: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            gather: gather::Gather::default(),
            inner: Lock::new(Inner {
                state: State::Reset,
                cursor: SendCursor::default(),
                kind: Kind::Nothing,
            }),
            observer: Mutex::default(),
        });
        net.enter(endpoint.clone());
        endpoint
    }

    pub(crate) fn number(&self) -> u32 {
        self.queues.number
    }

    pub(crate) fn this(&self) -> Arc<Endpoint> {
        self.this.upgrade().expect("somebody calls it")
    }

    pub(crate) fn weak(&self) -> Weak<Endpoint> {
        self.this.clone()
    }

    fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    /// The lock, for who posts or polls. None: its holder is in the middle of a system call, and does afterwards what there is to do
    /// ([`Endpoint::catch_up`]).
    #[inline]
    fn lock_unless_busy(&self) -> Option<Guard<'_, Inner>> {
        self.inner.try_lock().or_else(|| self.lock_in_time())
    }

    #[cold]
    fn lock_in_time(&self) -> Option<Guard<'_, Inner>> {
        // Otherwise it is held for moments only.
        const SPINS: u32 = 100;
        for round in 0u32.. {
            if self.busy.leave_note() {
                return None;
            }
            if let Some(inner) = self.inner.try_lock() {
                return Some(inner);
            }
            if round < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        unreachable!("the rounds have no end")
    }

    /// Does what others have left, who did not get the lock. With no lock held.
    #[cold]
    fn catch_up(&self, channel: Option<&Channel>) {
        if self.busy.take_note() {
            self.ring();
            // It may have been a packet, which is still in the channel.
            if let Some(channel) = channel {
                channel.look_again();
            }
        }
    }

    /// Has somebody told what happens from now on.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        *lock(&self.observer) = Some(observer);
    }

    fn tell_end(&self) {
        let observer = lock(&self.observer).take();
        if let Some(observer) = observer {
            observer.ended();
        }
    }

    /// Queues it in the lane for a turn at sending.
    pub(crate) fn enqueue(&self) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            self.lane.enqueue(self.this());
        }
    }

    /// Queues it, and has its lane send. With no queue pair's lock held, and not the table's.
    pub(crate) fn ring(&self) {
        self.enqueue();
        self.lane.transmit();
    }

    /// Whether it owes an acknowledgement that waits for company.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Its turn has come: what happens from now on needs another one.
    pub(crate) fn dequeued(&self) {
        self.gather.taken();
        // A swap and no plain store: a posting thread that found the endpoint queued has posted before, and this thread sees that post from now on.
        self.is_queued.swap(false, Ordering::SeqCst);
    }

    /// Whether requests are being carried out beside their posters.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.go_on()
    }

    /// Takes a turn at what is left. None: somebody else is at it.
    pub(crate) fn carry_on(&self) -> Option<Carried> {
        let inner = self.inner.try_lock()?;
        Some(self.carry_on_with(inner))
    }

    /// The same for who has the lock.
    #[cold]
    fn carry_on_with(&self, mut inner: Guard<'_, Inner>) -> Carried {
        let mut channel = None;
        let carried = match &mut *inner {
            // IB-QP-7: in SQD, too, since what has begun ends.
            Inner { state: State::Rts | State::Sqd, cursor, kind: Kind::Connected(link), .. }
                if matches!(self.queues.state(), State::Rts | State::Sqd) =>
            {
                let carried = link.carry_out(self, cursor, Some(&self.busy));
                channel = link.channel();
                // What had begun has ended, or begins anew as a packet.
                if carried != Carried::Part && self.queues.state() == State::Sqd && link.is_quiet() {
                    self.queues.send_queue_drained();
                }
                carried
            }
            _ => Carried::Packets,
        };
        let left = carried != Carried::Part && {
            self.copying.end();
            // What was posted before that, its poster has left to us.
            self.queues.send.has_work(&inner.cursor)
        };
        drop(inner);
        if left {
            self.ring();
        }
        self.catch_up(channel.as_deref());
        carried
    }

    /// What was posted last is carried out by the kernel, as far as a post goes. Returns whether nothing of it is left to its lane.
    #[cold]
    fn carry_out_by_kernel(&self, inner: Guard<'_, Inner>) -> bool {
        // Whoever posts meanwhile leaves it to this thread.
        self.copying.begin();
        if self.carry_on_with(inner) == Carried::Part {
            self.net.local.copies.add(&self.net, self.this());
        }
        true
    }

    /// Builds packets into the batch, of requests that were posted before `until`. Returns whether there are more.
    #[inline]
    pub(crate) fn fill(&self, batch: &mut Batch, now: Duration, until: u64) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else { return false };
        let Inner { state, cursor, kind, .. } = &mut *inner;
        let mut turn = Turn::default();
        match kind {
            Kind::Nothing => return false,
            Kind::Connected(link) => {
                self.gather.begin(until);
                let first = link.answers_first(&self.queues.send, cursor, batch);
                if first > 0 {
                    turn.more |= link.respond(self, batch, first, now, &mut space);
                }
                if matches!(state, State::Rts | State::Sqd) {
                    let more = turn.more;
                    turn = link.send(self, (cursor, until), batch, TURN, now, &mut space);
                    turn.more |= more || self.queues.send.posted() > until;
                }
                // Also when a request of ours has just failed: what the peer has sent was received, and it must learn that.
                turn.more |= link.respond(self, batch, TURN, now, &mut space);
                self.settled(link);
                self.gather.learn(link);
                turn.failed |= link.has_ended();
                let deadline = link.deadline();
                if let Some(deadline) = deadline {
                    self.expect(deadline);
                }
            }
            Kind::Datagram(link) => {
                if *state == State::Rts {
                    turn = link.send(self, (cursor, until), batch, TURN, now, &mut space);
                    turn.more |= self.queues.send.posted() > until;
                }
            }
        }
        // IB-UC-16, IB-UD-9
        if turn.stopped {
            *state = State::Sqe;
            return false;
        }
        if turn.failed {
            self.fail_and_ring(inner);
            return false;
        }
        let has_held = matches!(&inner.kind, Kind::Connected(link) if link.has_held());
        let begins = turn.copies && self.copying.begin();
        drop(inner);
        if begins {
            self.net.local.copies.add(&self.net, self.this());
        }
        if has_held {
            turn.more |= self.take_held(now);
        }
        // The lane goes on with what it finds queued.
        if self.busy.take_note() {
            self.enqueue();
            self.look_for_packets();
        }
        turn.more
    }

    /// Packets may have been left in the channel.
    #[cold]
    fn look_for_packets(&self) {
        let channel = lock(&self.channel).clone();
        if let Some(channel) = channel {
            channel.look_again();
        }
    }

    /// Adds the acknowledgement that is owed. False: not now, as the queue pair is busy.
    pub(crate) fn acknowledge(&self, batch: &mut Batch, now: Duration) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else { return false };
        self.is_listed.store(false, Ordering::Relaxed);
        if let Kind::Connected(link) = &mut inner.kind {
            let more = link.respond(self, batch, 1, now, &mut space);
            // Who finds nothing owed may send at once.
            self.count_debt(false);
            if more {
                self.enqueue();
            }
            if link.has_ended() {
                self.fail_and_ring(inner);
            }
        } else {
            self.count_debt(false);
        }
        true
    }

    /// An acknowledgement may have left.
    #[inline]
    fn settled(&self, link: &Link) {
        if self.owes() && !link.owes() {
            self.count_debt(false);
        }
    }

    /// The lane counts it among those who owe an acknowledgement, or not. With the lock.
    #[inline]
    fn count_debt(&self, owes: bool) {
        if self.owes() != owes {
            self.owes.store(owes, Ordering::Relaxed);
            self.lane.count_debt(owes);
        }
    }

    /// Deals with what has just been posted beside its lane, if it needs no packet or is sent by a channel, as far as nothing is in the way. False if the
    /// lane has to look.
    #[inline]
    fn send_beside(&self) -> bool {
        let until = self.queues.send.posted();
        if !self.is_bound.load(Ordering::Relaxed) || self.lane.others_owe(self) {
            return false;
        }
        let Some(mut inner) = self.inner.try_lock() else {
            // Its fence is also the one between the post and the look at the state, as between what ends the queue pair and its look for posts.
            return self.copying.will_find() && self.queues.state() == State::Rts;
        };
        let Inner { state: State::Rts, cursor, kind: Kind::Connected(link), .. } = &mut *inner else {
            return false;
        };
        if self.queues.state() != State::Rts {
            return false;
        }
        // It ends under the lock, with a look for what has been posted.
        if self.copying.go_on() {
            // PRACTICE-ORDER-1
            return !self.owes();
        }
        if self.is_direct.load(Ordering::Relaxed) {
            match link.carry_out(self, cursor, None) {
                Carried::All => return true,
                Carried::Kernel => return self.carry_out_by_kernel(inner),
                Carried::Part => {
                    self.copying.begin();
                    drop(inner);
                    self.net.local.copies.add(&self.net, self.this());
                    return true;
                }
                Carried::Packets => {}
            }
        }
        let sent = link.send_short(self, cursor, until);
        self.settled(link);
        // One that is there is no later.
        if !self.is_timed.load(Ordering::Relaxed)
            && let Some(deadline) = link.deadline()
        {
            self.expect(deadline);
        }
        let channel = if sent.rings { link.channel() } else { None };
        drop(inner);
        if let Some(channel) = channel {
            channel.ring();
        }
        sent.all
    }

    /// A deadline counts from now on. With the lock.
    #[inline]
    fn expect(&self, deadline: Duration) {
        if !self.is_timed.load(Ordering::Relaxed) && !self.is_timed.swap(true, Ordering::SeqCst) {
            self.lane.time(self.this(), deadline);
        } else {
            self.lane.hasten(deadline);
        }
    }

    /// Looks at its deadline. Without one it leaves the lane's list. `ready`: others that may send now.
    pub(crate) fn serve_deadline(&self, now: Duration, ready: &mut Vec<Arc<Endpoint>>) -> Served {
        const SOON: Duration = Duration::from_micros(100);
        let Some(mut inner) = self.lock_unless_busy() else {
            return Served { deadline: Some(now + SOON), transmit: false };
        };
        let Kind::Connected(link) = &mut inner.kind else {
            self.is_timed.store(false, Ordering::SeqCst);
            return Served { deadline: None, transmit: false };
        };
        let mut transmit = false;
        if link.deadline().is_some_and(|deadline| deadline <= now) {
            let failed = link.handle_timeout(self, now, ready);
            if failed {
                self.is_timed.store(false, Ordering::SeqCst);
                self.fail(inner, ready);
                return Served { deadline: None, transmit: false };
            }
            transmit = true;
            self.gather.learn(link);
            self.enqueue();
        }
        let Kind::Connected(link) = &inner.kind else { unreachable!("it was a moment ago") };
        let deadline = link.deadline();
        if deadline.is_none() {
            self.is_timed.store(false, Ordering::SeqCst);
        }
        Served { deadline, transmit }
    }

    /// A datagram for this queue pair has come.
    // The order of checks: number (the caller), service and state, partition, address, CRC, then the protocol's own.
    #[inline]
    pub(crate) fn arrived(&self, arrival: &Arrival<'_>, now: Duration, sweep: &mut Sweep) {
        // IB-PKT-38
        let Ok(packet) = Packet::parse(arrival.bytes) else {
            self.queues.counters.damaged.add(1);
            return;
        };
        // While the kernel copies for this queue pair, its packets are lost, as in a full socket: whoever takes in for all waits for nobody's page.
        let Some(inner) = self.lock_unless_busy() else { return self.queues.counters.dropped.add(1) };
        self.take(inner, &packet, Via::Network(arrival), now, sweep);
    }

    /// Whether an unreliable message that has come by a channel had better wait for a moment: there is no receive for it, and the program has not
    /// dealt with what came before. Nobody would tell the sender that it is lost ([`crate::pace`]).
    #[inline]
    pub(crate) fn is_behind(&self, packet: &Packet<'_>, now: Duration) -> bool {
        matches!(self.queues.service, Service::Uc | Service::Ud) && self.waits_for_program(packet, now)
    }

    fn waits_for_program(&self, packet: &Packet<'_>, now: Duration) -> bool {
        // What is dropped anyway need not wait.
        if !matches!(self.queues.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            return false;
        }
        let opcode = packet.opcode();
        let takes_receive = opcode.operation().is_send() && opcode.position().starts()
            || opcode.operation().is_write() && packet.immediate().is_some();
        if !takes_receive {
            return false;
        }
        if self.queues.receives_left() > 0 || self.queues.receive_cq.is_exhausted() {
            self.behind.store(0, Ordering::Relaxed);
            return false;
        }
        match self.behind.load(Ordering::Relaxed) {
            NEVER => false,
            0 => {
                // From now on: what is being taken in may have been here for long.
                self.behind.store(time::now().as_nanos() as u64, Ordering::Relaxed);
                true
            }
            since => now < Duration::from_nanos(since) + PATIENCE,
        }
    }

    /// A packet has come by a channel. False: it has to wait there, as the queue pair is busy.
    #[inline]
    pub(crate) fn arrived_here(
        &self,
        packet: &Packet<'_>,
        from: &Host<'_>,
        now: Duration,
        sweep: &mut Sweep,
    ) -> bool {
        let Some(inner) = self.lock_unless_busy() else { return false };
        self.queues.counters.rx_local.count(1, sweep.counts_alone);
        if !matches!(from.elsewhere, Source::Process { .. }) {
            self.take(inner, packet, Via::Host(from), now, sweep);
            return true;
        }
        self.busy.during(|| self.take(inner, packet, Via::Host(from), now, sweep));
        // The lock is free again.
        if self.busy.take_note() {
            sweep.ready.push(self.this());
        }
        true
    }

    #[inline]
    fn take(
        &self,
        mut inner: Guard<'_, Inner>,
        packet: &Packet<'_>,
        via: Via<'_>,
        now: Duration,
        sweep: &mut Sweep,
    ) {
        let counters = self.queues.counters;
        counters.rx_frames.count(1, sweep.counts_alone);
        // IB-PKT-47
        let fits = match (packet.opcode().service(), self.queues.service) {
            (WireService::Rc, Service::Rc)
            | (WireService::Uc, Service::Uc)
            | (WireService::Ud, Service::Ud)
            | (WireService::Congestion, Service::Rc | Service::Uc | Service::XrcSend | Service::XrcReceive) => {
                true
            }
            // IB-XRC-7, IB-XRC-8
            (WireService::Xrc, Service::XrcSend) => goes_to_requester(packet),
            (WireService::Xrc, Service::XrcReceive) => !goes_to_requester(packet),
            _ => false,
        };
        // IB-PKT-52
        if !fits {
            counters.dropped.add(1);
            return;
        }
        // The one partition that there is (volume 1, section 10.9.3): at least one side is a full member, and we are.
        // IB-PKT-49
        if packet.bth().pkey() & 0x7fff != 0x7fff {
            counters.wrong_pkey.add(1);
            return;
        }
        // IB-PKT-48, IB-QP-5
        if !matches!(inner.state, State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            counters.dropped.add(1);
            return;
        }
        let has_work = self.queues.send.has_work(&inner.cursor);
        let taken = match &mut inner.kind {
            Kind::Nothing => {
                counters.dropped.add(1);
                return;
            }
            Kind::Datagram(link) => {
                link.receive(self, packet, via);
                if matches!(via, Via::Network(_)) {
                    self.net.pace.took_receive(self, packet.payload().len() as u32 + PACKET_COST, now);
                }
                return;
            }
            Kind::Connected(link) => link.receive(self, packet, via, has_work, now, sweep),
        };
        self.conclude(inner, taken, matches!(via, Via::Network(_)), now, sweep);
    }

    /// Takes in requests that waited for reads before them, as far as those have been answered. Returns whether there may be more to send then.
    // PRACTICE-ORDER-2
    #[cold]
    fn take_held(&self, now: Duration) -> bool {
        let mut sweep = Sweep::default();
        let mut goes_on = true;
        for _ in 0..TURN {
            let Some(mut inner) = self.lock_unless_busy() else { break };
            let Kind::Connected(link) = &mut inner.kind else { break };
            let Some(taken) = link.receive_held(self, now, &mut sweep) else {
                goes_on = link.owes();
                break;
            };
            self.conclude(inner, taken, true, now, &mut sweep);
        }
        sweep.ready.iter().for_each(|other| other.ring());
        goes_on
    }

    /// Does what follows from a packet for a connection.
    #[inline]
    fn conclude(
        &self,
        inner: Guard<'_, Inner>,
        taken: Taken,
        by_network: bool,
        now: Duration,
        sweep: &mut Sweep,
    ) {
        if taken.first {
            // Before anything that this packet brings about is told.
            // IB-RC-RSP-61, IB-QP-38
            self.queues.communication_established();
        }
        if taken.failed {
            self.fail(inner, &mut sweep.ready);
            return;
        }
        // By a channel a request brings no deadline closer, nor does the acknowledgement beside it.
        let same = self.is_timed.load(Ordering::Relaxed) && taken.brings_no_deadline;
        if !same
            && let Kind::Connected(link) = &inner.kind
            && let Some(deadline) = link.deadline()
        {
            self.expect(deadline);
        }
        // What comes by a channel may be taken in by a poll of another lane; and a target queue pair never sends anything by itself: the reply, which
        // comes from another one, is not to be there first.
        if by_network && let Kind::Connected(link) = &inner.kind {
            self.gather.learn(link);
        }
        let company =
            by_network || sweep.polled == self.lane.address() && self.queues.service != Service::XrcReceive;
        // A thread is about to send for a queued endpoint, unless it is queued because posts wait.
        let sends = (taken.transmit || taken.owes && !company)
            && (!self.is_queued.load(Ordering::SeqCst) || self.gather.is_put_off());
        if taken.owes && !sends {
            self.owe();
        } else if !sends && let Kind::Connected(link) = &inner.kind {
            self.settled(link);
        }
        drop(inner);
        if let Some(cost) = taken.took_receive
            && by_network
        {
            self.net.pace.took_receive(self, cost, now);
        }
        if taken.first {
            self.heard();
        }
        if sends {
            sweep.ready.push(self.this());
        }
    }

    /// An acknowledgement waits for company. With the lock.
    #[inline]
    pub(crate) fn owe(&self) {
        if !self.is_listed.load(Ordering::Relaxed) {
            self.is_listed.store(true, Ordering::Relaxed);
            self.lane.list_debtor(self.this());
        }
        self.count_debt(true);
    }

    /// The first packet of a connection has come.
    #[cold]
    fn heard(&self) {
        let observer = lock(&self.observer).clone();
        if let Some(observer) = observer {
            observer.heard();
        }
    }

    /// The queue pair goes to error because of what has happened on it; its requests are flushed. `ready`: others that may send now.
    #[cold]
    fn fail(&self, mut inner: Guard<'_, Inner>, ready: &mut Vec<Arc<Endpoint>>) {
        inner.state = State::Error;
        let published = match &mut inner.kind {
            Kind::Connected(link) => link.unpublish(),
            _ => None,
        };
        let event = self.stop(&mut inner, ready);
        // With the lock: the program may reset the queue pair as soon as it is free, and an error after that would be a new one.
        self.queues.enter_error();
        // Who is in the middle of an operation here ends it before the program is told, and before it can begin anew.
        drop(published);
        self.queues.counters.connections_lost.add(1);
        // With the lock, too: what is posted after a reset is not to be flushed.
        self.queues.flush();
        drop(inner);
        // IB-QP-39
        if let Some(event) = event {
            self.queues.raise(event);
        }
        self.tell_end();
    }

    /// The same where nobody else rings those that may send now.
    #[cold]
    fn fail_and_ring(&self, inner: Guard<'_, Inner>) {
        let mut ready = Vec::new();
        self.fail(inner, &mut ready);
        ready.iter().for_each(|other| other.ring());
    }

    /// Nothing is sent or taken in any more. Returns what the program is to be told when the queue pair is in error. `ready`: others that
    /// may send now.
    fn stop(&self, inner: &mut Inner, ready: &mut Vec<Arc<Endpoint>>) -> Option<AsyncEventKind> {
        self.count_debt(false);
        self.gather.forget();
        match std::mem::replace(&mut inner.kind, Kind::Nothing) {
            Kind::Nothing => None,
            Kind::Connected(mut link) => {
                if self.is_bound.swap(false, Ordering::Relaxed) {
                    // Nothing comes by the network.
                    *lock(&self.channel) = None;
                } else {
                    self.lane.count_network(false);
                }
                link.stop(self, ready)
            }
            Kind::Datagram(link) => {
                self.lane.count_network(false);
                link.stop(self);
                None
            }
        }
    }

    /// The same when the program ends it. Returns also what is to be sent: what came from the peer before is acknowledged, or it
    /// would try again in vain until it fails.
    // IB-RC-RSP-49
    fn end(
        &self,
        inner: &mut Inner,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> (Option<AsyncEventKind>, Vec<LastWord>) {
        let words = match &mut inner.kind {
            Kind::Connected(link) => link.last_words(),
            _ => Vec::new(),
        };
        (self.stop(inner, ready), words)
    }

    /// Sends what is left to be said. Afterwards the process may vanish.
    fn say(&self, words: &[LastWord]) {
        words.iter().for_each(|word| word.send(&self.lane));
        if words.is_empty() {
            // Somebody may have taken it over, and be about to send it.
            self.lane.wait_for_sender();
        }
    }

    /// The peer's queue pair lives here.
    pub(crate) fn located(&self, number: u32, place: Place) {
        let mut ready = Vec::new();
        if let Kind::Connected(link) = &mut self.lock().kind {
            link.located(self, number, place, &mut ready);
        }
        ready.iter().for_each(|other| other.ring());
    }

    fn link(&self, attributes: &Attributes) -> Result<Box<Link>> {
        let route = self.gids.route_of(&attributes.path)?;
        let options = LinkOptions { service: self.queues.service, attributes };
        Ok(Box::new(Link::new(self, &options, route)))
    }

    /// To RTR: packets of the peer are taken in from now on.
    fn begin(&self, inner: &mut Inner, attributes: &Attributes) -> Result<()> {
        inner.kind = match self.queues.service {
            Service::Rc | Service::Uc | Service::XrcSend | Service::XrcReceive => {
                Kind::Connected(self.link(attributes)?)
            }
            Service::Ud => {
                let mtu = self.gids.active_mtu().unwrap_or(1024);
                Kind::Datagram(Box::new(DatagramLink::new(attributes.qkey, mtu)))
            }
            Service::RawPacket => return Ok(()),
        };
        self.lane.count_network(true);
        Ok(())
    }
}

impl transport::Endpoint for Endpoint {
    fn transmit(&self) {
        self.send_or_put_off();
    }

    fn send_off(&self) {
        if self.is_queued.load(Ordering::SeqCst) {
            self.lane.send_now();
        }
    }

    // PRACTICE-ORDER-1
    #[inline]
    fn before_post(&self) {
        self.net.settle_others(&self.lane);
    }

    #[inline]
    fn transmit_at_once(&self) -> bool {
        self.send_beside()
    }

    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()> {
        let mut inner = self.lock();
        let (mut event, mut words, mut locate, mut ready) = (None, Vec::new(), false, Vec::new());
        match (transition.from, transition.to) {
            (_, State::Error) => (event, words) = self.end(&mut inner, &mut ready),
            (_, State::Reset) => {
                // What was to be told is forgotten with everything else.
                (_, words) = self.end(&mut inner, &mut ready);
                inner.cursor = SendCursor::default();
            }
            (State::Init, State::Rtr) => {
                self.begin(&mut inner, attributes)?;
                if let Kind::Connected(link) = &inner.kind {
                    locate = true;
                    let route = link.way().route;
                    log!(
                        Info,
                        "queue pair {:#x}: peer {} queue pair {:#x}, path MTU {}",
                        self.number(),
                        route.destination,
                        attributes.destination,
                        attributes.path_mtu
                    );
                    self.queues.counters.connections.add(1);
                }
            }
            (from, to) => {
                if (from, to) == (State::Sqe, State::Rts) {
                    inner.cursor = self.queues.send.resume_at();
                }
                if let Kind::Datagram(link) = &mut inner.kind {
                    link.modify(transition, attributes);
                }
                if let Kind::Connected(link) = &mut inner.kind {
                    if (from, to) == (State::Sqd, State::Sqd) {
                        locate = link.redirect(self, &attributes.path, &mut ready)?;
                    }
                    let drained = link.modify(transition, attributes);
                    if drained {
                        self.queues.send_queue_drained();
                    }
                } else if transition.to == State::Sqd {
                    // Datagrams are complete as soon as they are sent: nothing is under way.
                    self.queues.send_queue_drained();
                }
            }
        }
        inner.state = transition.to;
        let asks = match &inner.kind {
            Kind::Connected(link) if locate => Some(link.way().route),
            _ => None,
        };
        drop(inner);
        ready.iter().for_each(|other| other.ring());
        if let Some(event) = event {
            self.queues.raise(event);
        }
        if let Some(route) = asks {
            if transition.from == State::Init {
                let is_here = self.seek(route, attributes.destination);
                let lets_in =
                    memory::Access::from_bits_truncate(attributes.access).intersects(memory::Access::REMOTE);
                if is_here
                    && lets_in
                    && self.queues.service == Service::Rc
                    && !self.net.owns(block_of(attributes.destination))
                {
                    self.net.local.sharing.foresee(&self.net, &self.queues);
                }
            } else {
                // With requests under way, whose packets have a length already, it does not go over to a channel.
                self.locate(route, attributes.destination);
            }
        }
        if matches!(transition.to, State::Error | State::Reset) {
            self.say(&words);
        }
        Ok(())
    }

    fn query(&self, attributes: &mut Attributes) {
        match &self.lock().kind {
            Kind::Nothing => {}
            Kind::Connected(link) => link.query(attributes),
            Kind::Datagram(link) => link.query(attributes),
        }
    }

    fn is_connected_by_manager(&self) -> bool {
        false
    }

    fn close(&self) {
        self.net.leave(self.number());
        let mut ready = Vec::new();
        let (_, words) = {
            let mut inner = self.lock();
            inner.state = State::Error;
            self.end(&mut inner, &mut ready)
        };
        ready.iter().for_each(|other| other.ring());
        self.say(&words);
        self.tell_end();
        self.lane.forget(self);
        self.net.local.copies.forget(self);
        let lane: Arc<dyn CqLane> = self.lane.clone();
        for cq in [&self.queues.send_cq, &self.queues.receive_cq] {
            cq.detach_lane(&lane);
        }
    }

    fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.multicast(group, true)
    }

    fn detach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.multicast(group, false)
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}
