//! Lanes: a UDP socket, the packets that arrive on it, and the packets that wait to leave by it.
//!
//! The queue pairs whose receives complete on one completion queue share a lane, so a poll of that queue
//! drains only their socket. The thread that gets the receive try-lock takes in packets. The thread that gets
//! the transmit try-lock sends for all threads. Each of the two looks again after it lets go, for threads
//! that found its lock taken; these do not wait. While no thread polls, the background thread does both
//! ([`adverb_core::lane_watch`]).

use crate::batch::{Batch, FlushOutcome, PacketRoute};
use crate::endpoint::Endpoint;
use crate::handover::Stray;
use crate::impaired::LaneFaults;
use crate::local::{Carrier, ChannelSnapshot};
use crate::net::{Net, Table};
use crate::order;
use crate::pending_acks;
use crate::socket::{Buffers, Socket, TrainReceipt};
use crate::sweep::Sweep;
use crate::time;
use crate::{lock, lock_until};
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::{Error, Result};
use adverb_core::gathering::{GatheredLane, Gathering};
use adverb_core::lane_watch::{LaneWatch, WatchedLane};
use adverb_core::lock::Lock;
use adverb_core::reactor::{EDGE, READABLE, Readiness, Source, Timer, Token, WRITABLE};
use adverb_core::rings::{Rings, WorkNote};
use adverb_wire::ib::packet;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// Bursts that one poll takes in at most, so that a poll ends.
const BURSTS: usize = 4;
/// System calls' worth that the end of the process looks at, at most.
const LAST_BURSTS: usize = 256;
/// How long an acknowledgement may be delayed when no thread polls.
// IB-RC-RSP-49
const ACKNOWLEDGE_AFTER: Duration = Duration::from_micros(20);
/// How much later than a deadline the background thread looks: polls are usually there before.
const SLACK: Duration = Duration::from_millis(1);
/// How long threads that are at work on a lane are waited for: at the end of a connection or of the process.
pub(crate) const LAST: Duration = Duration::from_millis(100);
/// How long the last answers of a queue pair that goes wait for room in a channel.
const LAST_WORD: Duration = Duration::from_millis(200);
/// So many polls in a row that find nothing last as long as a message and the next one of a stream are apart.
const MOMENT: u32 = 4;
/// A poll that finds nothing looks at the deadlines every so often.
const LOOK_EVERY: u32 = 16;

/// A lane: a UDP socket, the packets that arrive on it, and the packets that wait to leave by it.
pub(crate) struct Lane {
    this: Weak<Lane>,
    pub(crate) net: Arc<Net>,
    pub(crate) socket: Socket,
    /// Among all lanes of the process.
    place: OnceLock<usize>,
    rx: Mutex<Rx>,
    tx: Mutex<Batch>,
    /// The channels as the lane's polls have last seen them.
    channels: Lock<ChannelSnapshot>,
    /// Queue pairs that want to send.
    ready: Mutex<VecDeque<Arc<Endpoint>>>,
    /// Queue pairs that may have a pending acknowledgement.
    ack_candidates: Mutex<VecDeque<Arc<Endpoint>>>,
    /// How many queue pairs of the lane have a pending acknowledgement at this instant.
    pending_acks: AtomicU32,
    /// Queue pairs that have a deadline.
    timed: Mutex<TimedEndpoints>,
    /// Queue pairs from `timed` whose deadlines a thread is looking at.
    looking: Mutex<Vec<Arc<Endpoint>>>,
    /// The earliest deadline of these queue pairs in nanoseconds, or more.
    earliest: AtomicU64,
    /// Counts the calls of [`Lane::transmit`].
    rings: Rings,
    /// A thread found the receive lock taken: its holder looks again.
    missed: WorkNote,
    /// Packets to be sent wait for room in the socket.
    is_full: AtomicBool,
    /// A thread sends at this instant, or has left packets that wait for room: acknowledgements that are not
    /// pending any more may still be here.
    is_sending: AtomicBool,
    vain: AtomicU32,
    /// A thread of the program is in the middle of a poll, or of a post that takes in packets; not exact
    /// where two are.
    is_being_polled: AtomicBool,
    /// Queue pairs whose packets come by the socket.
    by_network: AtomicU32,
    lane_watch: OnceLock<Arc<LaneWatch>>,
    /// Posts that wait to be gathered.
    gathering: OnceLock<Arc<Gathering>>,
    token: OnceLock<Token>,
    acknowledging: AtomicBool,
    /// Faults of the wire.
    pub(crate) impaired: Option<LaneFaults>,
    /// The sources that the timers call, made once.
    tick: OnceLock<Arc<Tick>>,
    acknowledge: OnceLock<Arc<Acknowledge>>,
}

struct Rx {
    buffers: Buffers,
    sweep: Sweep,
}

#[derive(Default)]
struct TimedEndpoints {
    endpoints: Vec<Arc<Endpoint>>,
    /// When the background thread looks, and its timer.
    tick: Option<(Duration, Timer)>,
}

/// The thread that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivingThread {
    /// A poll of a completion queue.
    Poll,
    /// A thread that posts. It takes in one burst at most.
    Post,
    /// The background thread.
    Background,
}

impl Lane {
    /// A lane on a socket, watched by the background thread from now on.
    pub(crate) fn new(net: &Arc<Net>, socket: Socket) -> Result<Arc<Self>> {
        let lane = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            net: net.clone(),
            place: OnceLock::new(),
            rx: Mutex::new(Rx { buffers: Buffers::new(), sweep: Sweep::default() }),
            tx: Mutex::new(Batch::new(&socket)),
            channels: Lock::default(),
            socket,
            ready: Mutex::default(),
            ack_candidates: Mutex::default(),
            pending_acks: AtomicU32::new(0),
            timed: Mutex::default(),
            looking: Mutex::default(),
            earliest: AtomicU64::new(u64::MAX),
            rings: Rings::default(),
            missed: WorkNote::default(),
            is_full: AtomicBool::new(false),
            is_sending: AtomicBool::new(false),
            vain: AtomicU32::new(0),
            is_being_polled: AtomicBool::new(false),
            by_network: AtomicU32::new(0),
            lane_watch: OnceLock::new(),
            gathering: OnceLock::new(),
            token: OnceLock::new(),
            acknowledging: AtomicBool::new(false),
            impaired: LaneFaults::of(this),
            tick: OnceLock::new(),
            acknowledge: OnceLock::new(),
        });
        let reactor = &net.engine()?.reactor;
        let weak: Weak<Lane> = Arc::downgrade(&lane);
        let _ = lane.lane_watch.set(LaneWatch::new(weak.clone(), reactor));
        let _ = lane.gathering.set(Gathering::new(weak, reactor, 1));
        let token = reactor.add_arrival(lane.socket.fd(), READABLE | EDGE, lane.clone())?;
        let _ = lane.token.set(token);
        Ok(lane)
    }

    /// One more queue pair's packets come by the socket, or (`false`) one fewer. When there is none, the
    /// background thread alone watches it.
    pub(crate) fn count_network(&self, more: bool) {
        if more {
            self.by_network.fetch_add(1, Ordering::Relaxed);
        } else if self.by_network.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.lane_watch().arm();
        }
    }

    /// A channel has ended: a lane that no thread polls does not hold it either.
    pub(crate) fn forget_channels(&self) {
        if let Some(mut channels) = self.channels.try_lock() {
            *channels = ChannelSnapshot::default();
        }
    }

    /// The number by which the lane is told from others: lanes live as long as their process.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Gives the lane its place among all lanes.
    pub(crate) fn enter(&self, place: usize) {
        let _ = self.place.set(place);
    }

    /// The lane's place among all lanes that queue pairs have.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.place.get().copied().unwrap_or(0)
    }

    fn lane_watch(&self) -> &Arc<LaneWatch> {
        self.lane_watch.get().expect("set when the lane was made")
    }

    /// Posts of its queue pairs that wait to be gathered.
    #[inline]
    pub(crate) fn gathering(&self) -> &Arc<Gathering> {
        self.gathering.get().expect("set when the lane was made")
    }

    /// The route `route` for packets that leave from this lane.
    pub(crate) fn packet_route(&self, route: crate::route::Route) -> PacketRoute {
        PacketRoute::new(route, self.socket.port())
    }

    /// Takes in packets that have arrived. Returns whether any had, unless another thread takes them in: then
    /// that thread looks again afterwards.
    pub(crate) fn receive(&self, by: ReceivingThread) -> bool {
        self.receive_and(by, |management| self.net.manage(management))
    }

    /// Takes in packets that have arrived, as [`Lane::receive`] does. `manage` handles the management
    /// datagrams that have come, with no lock held.
    fn receive_and(&self, by: ReceivingThread, manage: impl Fn(Vec<Stray>)) -> bool {
        let mut worked = false;
        loop {
            if by == ReceivingThread::Background {
                self.missed.note();
            }
            let Ok(mut rx) = self.rx.try_lock() else { return worked };
            self.missed.begin();
            let Rx { buffers, sweep } = &mut *rx;
            let mut more = true;
            for _ in 0..if by == ReceivingThread::Post { 1 } else { BURSTS } {
                let received = self.burst(buffers, sweep, by);
                worked |= received.trains > 0;
                more = received.more;
                // Answers that are due go out between bursts, so that the peers go on.
                self.net.follow_up(sweep, self);
                if !more {
                    break;
                }
            }
            let one_sided = std::mem::take(&mut sweep.one_sided);
            sweep.overflowed = false;
            let management = std::mem::take(&mut sweep.management);
            drop(rx);
            self.net.strays.hand_over(&self.net);
            if !management.is_empty() {
                manage(management);
            }
            if worked && by != ReceivingThread::Background {
                self.lane_watch().weigh(one_sided);
            }
            if more && self.lane_watch().is_armed() {
                // Others get their turn first; the rest is reported anew.
                self.set_interest(READABLE | EDGE);
            }
            if !self.missed.is_noted() {
                return worked;
            }
        }
    }

    /// The calling thread has posted a whole train to `endpoint`: it sends that, and takes in packets that
    /// have arrived, as a poll does.
    pub(crate) fn transmit_train(&self, endpoint: &Endpoint) {
        // The background thread is not to take in meanwhile the packets that this thread is about to.
        self.is_being_polled.store(true, Ordering::Relaxed);
        self.transmit_for(endpoint);
        self.visit(ReceivingThread::Post);
    }

    /// A thread of the program visits the lane: it sends posts that wait to be gathered, and takes in packets
    /// that have arrived. Returns whether there were any.
    #[inline]
    fn visit(&self, by: ReceivingThread) -> bool {
        self.is_being_polled.store(true, Ordering::Relaxed);
        self.lane_watch().polled();
        if self.gathering().polled() {
            self.transmit();
        }
        let worked = self.receive(by);
        self.is_being_polled.store(false, Ordering::Relaxed);
        worked
    }

    /// Takes in all that has arrived before this call, even if another thread takes packets in, too. That can
    /// last while that thread has no processor. Only with no lock held.
    pub(crate) fn receive_all(&self) {
        self.receive_all_and(|management| self.net.manage(management));
    }

    /// Takes in everything that has arrived before this call, and leaves the management datagrams to the
    /// background thread. Called by a thread that is about to send a management datagram.
    pub(crate) fn receive_all_but_management(&self) {
        self.receive_all_and(|management| self.net.manage_later(management));
    }

    fn receive_all_and(&self, manage: impl Fn(Vec<Stray>)) {
        let until = time::now() + LAST;
        loop {
            self.receive_and(ReceivingThread::Background, &manage);
            drop(lock_until(&self.rx, until));
            // Another thread has taken the note of this one: it has looked since, or is about to, with the
            // lock.
            if !self.missed.is_noted() || time::now() >= until {
                return self.wait_for_receiver(until, manage);
            }
        }
    }

    /// Returns when the packets that another thread is taking in at this instant are taken in, at the latest
    /// at `until`.
    fn wait_for_receiver(&self, until: Duration, manage: impl Fn(Vec<Stray>)) {
        drop(lock_until(&self.rx, until));
        // The background thread may have found the lock taken by this thread, which has to look for it.
        if self.missed.is_noted() {
            self.receive_and(ReceivingThread::Background, manage);
        }
    }

    /// One system call's worth.
    fn burst(&self, buffers: &mut Buffers, sweep: &mut Sweep, by: ReceivingThread) -> TrainReceipt {
        let table = self.net.endpoints();
        let mut received = self.socket.receive(buffers);
        if let Some(impaired) = &self.impaired {
            self.take_in_impaired(impaired, &table, buffers, &mut received, sweep);
        } else if received.as_ref().is_ok_and(|received| received.trains > 0) {
            let now = time::now();
            order::take_in(|| buffers.arrivals(), |arrival| self.net.arrived(&table, arrival, now, sweep));
        }
        drop(table);
        let counters = self.net.counters();
        match received {
            Ok(received) => {
                counters.rx_calls.add(1);
                match by {
                    ReceivingThread::Poll | ReceivingThread::Post => counters.rx_by_polls.add(1),
                    ReceivingThread::Background => counters.rx_by_background.add(1),
                }
                if received.overflowed > 0 {
                    counters.overflowed.add(received.overflowed.into());
                    sweep.overflowed = true;
                }
                received
            }
            Err(_) => TrainReceipt::default(),
        }
    }

    /// Takes in the received packets that the wire lets through, and those that it has kept.
    #[cold]
    fn take_in_impaired(
        &self,
        impaired: &LaneFaults,
        table: &Table,
        buffers: &Buffers,
        received: &mut io::Result<TrainReceipt>,
        sweep: &mut Sweep,
    ) {
        let now = time::now();
        if received.is_ok() {
            for arrival in buffers.arrivals() {
                let is_ours = packet::destination(arrival.bytes).is_none_or(|to| !self.net.is_stray(to));
                impaired.comes(self, &arrival, is_ours, now);
            }
        }
        let due = impaired.due(now);
        order::take_in(
            || due.iter().map(Stray::arrival),
            |arrival| self.net.arrived(table, arrival, now, sweep),
        );
        if let (false, Err(_)) = (due.is_empty(), &received) {
            *received = Ok(TrainReceipt { trains: due.len(), ..TrainReceipt::default() });
        }
    }

    /// The time of packets has come that the wire has kept.
    #[cold]
    pub(crate) fn release(&self) {
        let Some(impaired) = &self.impaired else { return };
        self.send_due(impaired, &mut lock(&self.tx));
        self.transmit();
        if self.receive(ReceivingThread::Background) {
            self.settle();
        }
    }

    fn send_due(&self, impaired: &LaneFaults, batch: &mut Batch) {
        for parcel in impaired.due_to_leave(time::now()) {
            if !batch.has_room() {
                let _ = self.flush(batch);
            }
            // One that finds no room is lost, as on a full link.
            let _ = batch.add_judged(&parcel.route, &parcel.bytes);
        }
        let _ = self.flush(batch);
    }

    /// The process exits: packets on a slow wire still arrive.
    #[cold]
    fn send_kept(&self, impaired: &LaneFaults, batch: &mut Batch) {
        let until = time::now() + LAST_WORD;
        while let Some(next) = impaired.next_to_leave().filter(|next| *next <= until) {
            std::thread::sleep(next.saturating_sub(time::now()));
            self.send_due(impaired, batch);
        }
    }

    /// Asks the wire about packets that are about to leave.
    #[cold]
    fn judge(&self, impaired: &LaneFaults, batch: &mut Batch) {
        let now = time::now();
        batch.judge(|route, bytes| {
            let fate = impaired.leaves(self, route, bytes, now);
            if fate.is_lost { 0 } else { 1 + fate.copies as usize }
        });
    }

    /// Queues an endpoint that wants to send; [`Lane::transmit`] follows.
    pub(crate) fn enqueue(&self, endpoint: Arc<Endpoint>) {
        lock(&self.ready).push_back(endpoint);
    }

    /// Lists an endpoint that may have a pending acknowledgement, until it is looked at.
    pub(crate) fn list_ack_candidate(&self, endpoint: Arc<Endpoint>) {
        lock(&self.ack_candidates).push_back(endpoint);
    }

    /// One more listed endpoint has a pending acknowledgement, which goes with the next thing that is sent;
    /// or (`false`) one fewer.
    #[inline]
    pub(crate) fn count_pending_ack(&self, more: bool) {
        if more {
            self.pending_acks.fetch_add(1, Ordering::Release);
        } else {
            self.pending_acks.fetch_sub(1, Ordering::Release);
        }
    }

    /// Whether any endpoint has a pending acknowledgement.
    #[inline]
    pub(crate) fn has_pending_acks(&self) -> bool {
        self.pending_acks.load(Ordering::Acquire) > 0
    }

    /// Sends packets that are due, unless another thread is sending: then that thread looks again.
    #[inline]
    pub(crate) fn transmit(&self) {
        self.rings.ring();
        self.transmit_until_idle(None);
    }

    /// Sends packets that are due, as [`Lane::transmit`] does, but begins with `first`, to which the calling
    /// thread has posted.
    #[inline]
    pub(crate) fn transmit_for(&self, first: &Endpoint) {
        self.rings.ring();
        self.transmit_until_idle(Some(first));
    }

    fn transmit_until_idle(&self, mut first: Option<&Endpoint>) {
        loop {
            let Ok(batch) = self.tx.try_lock() else {
                // The thread with the lock finds the endpoint in the queue, and looks there after the ring.
                if let Some(endpoint) = first.take() {
                    endpoint.enqueue();
                    self.rings.ring();
                    continue;
                }
                return;
            };
            if !self.take_turn(batch, first.take()) {
                return;
            }
        }
    }

    /// Sends packets that are due. Returns whether another thread has rung meanwhile, which may have found
    /// the lock taken.
    #[inline]
    fn take_turn(&self, mut batch: MutexGuard<'_, Batch>, first: Option<&Endpoint>) -> bool {
        let seen = self.rings.heard();
        self.gathering().take();
        self.is_sending.store(true, Ordering::Relaxed);
        self.send_all(&mut batch, first);
        self.is_sending.store(!batch.is_empty(), Ordering::Release);
        drop(batch);
        self.rings.since(seen)
    }

    /// Sends the pending acknowledgements, and returns when they have left, even where another thread sends
    /// them: packets that its caller sends by another lane go behind them. Not held up by a socket that is
    /// full, nor by the kernel's copy for a queue pair.
    // PRACTICE-ORDER-1
    #[cold]
    pub(crate) fn settle_first(&self) {
        if self.has_pending_acks() || self.is_sending.load(Ordering::Acquire) {
            self.send_now();
        }
    }

    /// Sends packets that are due, and returns when they have left, even where another thread sends them;
    /// except for packets without room in the socket.
    pub(crate) fn send_now(&self) {
        if self.take_turn(lock(&self.tx), None) {
            self.transmit_until_idle(None);
        }
    }

    fn send_all(&self, batch: &mut Batch, first: Option<&Endpoint>) {
        let mut next = first.map(Endpoint::this);
        if !batch.is_empty() && !self.flush(batch) {
            // Nothing more fits into the socket: the endpoints stay queued.
            if let Some(endpoint) = next {
                endpoint.enqueue();
            }
            return;
        }
        loop {
            // The clock is read anew for each batch: to send one takes time, and more where processors are
            // few.
            let mut read = None;
            let mut now = || *read.get_or_insert_with(time::now);
            while batch.has_room() {
                let Some(endpoint) = next.take().or_else(|| lock(&self.ready).pop_front()) else { break };
                // Requests that are posted behind this may be about messages that come in from now on. They
                // go when those are acknowledged.
                let until = endpoint.queues.send.posted();
                if self.others_have_pending_acks(&endpoint) {
                    self.acknowledge(batch, Some(&endpoint), now());
                }
                endpoint.dequeued();
                if endpoint.fill(batch, now(), until) {
                    // It has more, but others get their turn first.
                    endpoint.enqueue();
                }
            }
            if batch.has_room() && self.has_pending_acks() {
                self.acknowledge(batch, None, now());
            }
            batch.ring();
            if batch.is_empty() {
                return;
            }
            if !self.flush(batch) {
                return;
            }
        }
    }

    /// Whether another endpoint than this one has a pending acknowledgement.
    #[inline]
    pub(crate) fn others_have_pending_acks(&self, endpoint: &Endpoint) -> bool {
        self.pending_acks.load(Ordering::Acquire) > u32::from(endpoint.has_pending_ack())
    }

    /// Adds the pending acknowledgements. `next`: all but those of this endpoint, which sends next; the
    /// messages that the program sends by it may be about those that the other endpoints have received.
    // PRACTICE-ORDER-1
    fn acknowledge(&self, batch: &mut Batch, next: Option<&Endpoint>, now: Duration) {
        let is_next = |endpoint: &Endpoint| next.is_some_and(|next| std::ptr::eq(endpoint, next));
        let mut left = lock(&self.ack_candidates).len();
        while left > 0 && batch.has_room() {
            let Some(endpoint) = lock(&self.ack_candidates).pop_front() else { return };
            left -= 1;
            // A busy one finds a note when it is free, and has the lane look again. Those behind it do not
            // wait for that.
            if is_next(&endpoint) || !endpoint.acknowledge(batch, now) {
                self.list_ack_candidate(endpoint);
            }
        }
    }

    /// Sends the batch; false if the socket is full.
    fn flush(&self, batch: &mut Batch) -> bool {
        if let Some(impaired) = &self.impaired {
            self.judge(impaired, batch);
        }
        let counters = self.net.counters();
        loop {
            let (flushed, calls) = batch.flush(&self.socket);
            counters.tx_calls.add(calls);
            if flushed == FlushOutcome::All {
                if self.is_full.swap(false, Ordering::SeqCst) {
                    self.set_interest(READABLE | EDGE);
                }
                return true;
            }
            // Said before the last attempt: room that comes after it is an edge at which the background
            // thread finds this said.
            if self.is_full.swap(true, Ordering::SeqCst) {
                return false;
            }
            self.lane_watch().arm();
            self.set_interest(READABLE | EDGE);
        }
    }

    fn set_interest(&self, interest: Readiness) {
        let full = self.is_full.load(Ordering::SeqCst);
        let interest = interest | if full { WRITABLE } else { 0 };
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            let _ = engine.reactor.modify(*token, self.socket.fd(), interest);
        }
    }

    /// Sends one packet of its own, behind those that wait. For management datagrams: it may wait for the
    /// lock.
    pub(crate) fn send_packet(&self, packet_route: &PacketRoute, carrier: &Carrier, packet: &[u8]) {
        let until = time::now() + LAST_WORD;
        while !self.try_packet(packet_route, carrier, packet) {
            // It waits for the other process to take in the records before it, unless that was in vain a
            // moment ago.
            if !carrier.urge(time::now() < until) {
                break;
            }
            std::thread::yield_now();
        }
        self.transmit();
    }

    /// False if there is no room.
    fn try_packet(&self, packet_route: &PacketRoute, carrier: &Carrier, packet: &[u8]) -> bool {
        let mut batch = lock(&self.tx);
        if !batch.has_room() {
            let _ = self.flush(&mut batch);
        }
        let mut sink = carrier.sink(&mut batch);
        let has_room = sink.has_room_for(packet.len());
        if has_room {
            let _ = sink.add(packet_route, packet, 0, |_| Ok::<(), ()>(()));
            sink.is_moving();
            self.net.counters().tx_frames.add(1);
        }
        drop(sink);
        batch.ring();
        let _ = self.flush(&mut batch);
        has_room
    }

    /// Returns when the packets that another thread is sending at this instant have left.
    pub(crate) fn wait_for_sender(&self) {
        drop(lock(&self.tx));
        // A thread that had something to send meanwhile may have found the lock taken by this one, which has
        // to send for it.
        self.transmit();
    }

    /// An endpoint has a deadline from now on; it stays in the list until a look finds it without one.
    pub(crate) fn time(&self, endpoint: Arc<Endpoint>, deadline: Duration) {
        let mut timed = lock(&self.timed);
        timed.endpoints.push(endpoint);
        self.expect(&mut timed, deadline);
    }

    /// A listed endpoint's deadline has come nearer.
    #[inline]
    pub(crate) fn hasten(&self, deadline: Duration) {
        if (deadline.as_nanos() as u64) < self.earliest.load(Ordering::Relaxed) {
            self.expect(&mut lock(&self.timed), deadline);
        }
    }

    fn expect(&self, timed: &mut TimedEndpoints, deadline: Duration) {
        self.earliest.fetch_min(deadline.as_nanos() as u64, Ordering::Relaxed);
        let look = deadline + SLACK;
        if timed.tick.is_some_and(|(when, _)| when <= look + SLACK) {
            return;
        }
        let Ok(engine) = self.net.engine() else { return };
        let Some(this) = self.this.upgrade() else { return };
        if let Some((_, timer)) = timed.tick.take() {
            engine.reactor.cancel_timer(timer);
        }
        let after = look.saturating_sub(time::now());
        if let Ok(timer) =
            engine.reactor.set_timer(after, self.tick.get_or_init(|| Arc::new(Tick(this))).clone())
        {
            timed.tick = Some((look, timer));
        }
    }

    /// Serves the deadlines that have passed. The caller holds `looking`, the lock of the list that this
    /// function goes through.
    fn serve_deadlines(&self, now: Duration, mut looking: MutexGuard<'_, Vec<Arc<Endpoint>>>) {
        self.earliest.store(u64::MAX, Ordering::Relaxed);
        std::mem::swap(&mut lock(&self.timed).endpoints, &mut *looking);
        let mut earliest = None::<Duration>;
        let mut transmit = false;
        let mut ready = Vec::new();
        looking.retain(|endpoint| {
            let served = endpoint.serve_deadline(now, &mut ready);
            transmit |= served.transmit;
            if let Some(deadline) = served.deadline {
                earliest = Some(earliest.map_or(deadline, |least| least.min(deadline)));
            }
            served.deadline.is_some()
        });
        {
            let mut timed = lock(&self.timed);
            timed.endpoints.append(&mut looking);
            if let Some(deadline) = earliest {
                self.expect(&mut timed, deadline);
            }
        }
        drop(looking);
        if transmit {
            self.transmit();
        }
        ready.iter().for_each(|other| other.ring());
    }

    /// Forgets an endpoint that is being destroyed.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        let other = |member: &Arc<Endpoint>| !std::ptr::eq(&**member, endpoint);
        lock(&self.ready).retain(other);
        lock(&self.ack_candidates).retain(other);
        lock(&self.timed).endpoints.retain(other);
        lock(&self.looking).retain(other);
    }

    /// Sends the pending acknowledgements, now.
    pub(crate) fn settle(&self) {
        if self.has_pending_acks() || self.gathering().waits() {
            self.transmit();
        }
    }

    /// Sends posts that wait to be gathered and the pending acknowledgements when the process exits, and
    /// other threads may have been stopped anywhere.
    pub(crate) fn at_exit(&self) {
        let until = time::now() + LAST;
        // The program may have seen a message that a thread takes in at this instant; an acknowledgement of
        // it is pending in a moment.
        drop(lock_until(&self.rx, until));
        if let Some(mut batch) = lock_until(&self.tx, until) {
            self.send_all(&mut batch, None);
            if let Some(impaired) = &self.impaired {
                self.send_kept(impaired, &mut batch);
            }
        }
    }

    /// Hands over packets in this lane's socket for queue pairs of other processes, as the process exits:
    /// acknowledgements that it has sent to port 4791 may be among them. Packets for this process are lost
    /// with it.
    pub(crate) fn hand_over_last(&self) {
        for _ in 0..LAST_BURSTS {
            let Some(mut rx) = lock_until(&self.rx, time::now() + LAST) else { return };
            let received = self.socket.receive(&mut rx.buffers);
            if received.is_ok() {
                rx.buffers.arrivals().for_each(|arrival| self.net.note_stray(&arrival));
            }
            drop(rx);
            self.net.strays.hand_over_all(&self.net);
            if !received.is_ok_and(|received| received.more) {
                return;
            }
        }
    }

    /// Another thread has taken in the packets that the background thread was woken for: that thread, or soon
    /// the background thread, acknowledges.
    pub(crate) fn acknowledge_soon(self: &Arc<Self>) {
        if !self.has_pending_acks() || self.acknowledging.swap(true, Ordering::SeqCst) {
            return;
        }
        let set = self.net.engine().and_then(|engine| {
            let source = self.acknowledge.get_or_init(|| Arc::new(Acknowledge(self.clone())));
            engine.reactor.set_timer(ACKNOWLEDGE_AFTER, source.clone())
        });
        if set.is_err() {
            self.acknowledging.store(false, Ordering::SeqCst);
            self.settle();
        }
    }

    /// `leave`: whether to leave arrived packets to polls.
    fn is_ready(self: &Arc<Self>, readiness: Readiness, leave: impl FnOnce() -> bool) {
        if readiness & WRITABLE != 0 && self.is_full.load(Ordering::SeqCst) {
            self.transmit();
        }
        if readiness & READABLE == 0 || leave() {
            return;
        }
        if self.receive(ReceivingThread::Background) {
            self.lane_watch().received_in_background();
            self.settle();
        } else {
            self.acknowledge_soon();
        }
    }

    /// EMFILE and the like as an error of a call.
    pub(crate) fn cannot_open(error: &std::io::Error) -> Error {
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("opening a UDP socket: {error}"))
    }
}

impl CqLane for Lane {
    #[inline]
    fn poll(&self) -> bool {
        // A thread that finds the channels taken leaves them to the thread that polls them now.
        let mut worked = self.net.local.hub.channels.any() && {
            let channels = self.channels.try_lock();
            channels.is_some_and(|mut channels| channels.poll(&self.net.local.hub.channels, self.address()))
        };
        worked |= self.net.local.hub.copies.poll();
        // Without connections by the network nothing comes here that a poll would wait for.
        if self.by_network.load(Ordering::Relaxed) > 0 {
            worked |= self.visit(ReceivingThread::Poll);
        }
        if worked {
            self.vain.store(0, Ordering::Relaxed);
            return true;
        }
        let vain = self.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        // Within a host the next message of a stream is often there a moment later: one acknowledgement is
        // for both.
        let expects_more = vain < MOMENT && self.by_network.load(Ordering::Relaxed) == 0;
        if self.has_pending_acks() && !expects_more || self.is_full.load(Ordering::Relaxed) {
            self.transmit();
        }
        self.net.pace.polled(&self.net);
        if vain.is_multiple_of(LOOK_EVERY) && self.earliest.load(Ordering::Relaxed) != u64::MAX {
            let now = time::now();
            if now.as_nanos() as u64 >= self.earliest.load(Ordering::Relaxed)
                && let Ok(looking) = self.looking.try_lock()
            {
                self.serve_deadlines(now, looking);
            }
        }
        false
    }

    // PRACTICE-ORDER-1
    #[inline]
    fn found(&self) {
        if self.has_pending_acks() || self.is_sending.load(Ordering::Acquire) {
            pending_acks::note(self.place());
        }
    }

    fn settle(&self) {
        Lane::settle(self);
    }

    fn lasts(&self) -> bool {
        true
    }

    fn arm(&self) {
        self.lane_watch().arm();
        self.net.local.hub.channels.arm();
        if self.gathering().rest() {
            self.transmit();
        }
        Lane::settle(self);
    }
}

impl GatheredLane for Lane {
    fn send_off(&self) {
        self.transmit();
    }
}

impl WatchedLane for Lane {
    fn watch(&self, on: bool) {
        let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) else { return };
        if on {
            let full = self.is_full.load(Ordering::SeqCst);
            let interest = READABLE | EDGE | if full { WRITABLE } else { 0 };
            let _ = engine.reactor.resume(*token, self.socket.fd(), interest);
        } else {
            engine.reactor.suspend(*token, self.socket.fd());
        }
    }

    fn may_rest(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }

    fn is_being_polled(&self) -> bool {
        self.is_being_polled.load(Ordering::Relaxed)
    }

    fn abandoned(&self) {
        self.settle();
    }
}

impl Source for Lane {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        // A lane that the polls serve is looked at again when they stop, and packets that have arrived
        // meanwhile are reported anew.
        self.is_ready(readiness, || self.lane_watch().switch_to_polls());
    }

    fn attended(self: Arc<Self>, readiness: Readiness) {
        self.is_ready(readiness, || false);
    }
}

/// The background thread's look at the deadlines.
struct Tick(Arc<Lane>);

impl Source for Tick {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        // Where no thread could look for a while, the answer is there, too.
        if self.0.by_network.load(Ordering::Relaxed) > 0 && self.0.receive(ReceivingThread::Background) {
            self.0.settle();
        }
        // A poll that is looking at this instant may count on this tick: so it takes its turn after it, and
        // does not leave it out.
        let looking = lock(&self.0.looking);
        lock(&self.0.timed).tick = None;
        self.0.serve_deadlines(time::now(), looking);
    }
}

/// Acknowledgements that no thread has sent meanwhile.
struct Acknowledge(Arc<Lane>);

impl Source for Acknowledge {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.acknowledging.store(false, Ordering::SeqCst);
        self.0.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;
    use std::net::Ipv4Addr;

    fn lane() -> Arc<Lane> {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        Lane::new(&net, Socket::bind(0).expect("a socket")).expect("a lane")
    }

    /// A thread that waits for the sender has the lock for a moment. Another thread that has something to
    /// send finds it taken then, and goes away.
    #[test]
    fn a_thread_that_has_waited_for_the_sender_sends_for_others() {
        let lane = lane();
        let address = Ipv4Addr::LOCALHOST.into();
        let port = lane.socket.port();
        let route = Route { source: address, interface: 0, destination: address, port, class: 0, hops: 1 };
        assert!(lock(&lane.tx).add_judged(&route, &[0; 64]));
        lane.wait_for_sender();
        assert!(lock(&lane.tx).is_empty());
    }

    /// A thread that waits for the receiver has the lock for a moment. The background thread, which leaves a
    /// note, finds it taken then.
    #[test]
    fn a_thread_that_has_waited_for_the_receiver_looks_for_notes() {
        let lane = lane();
        lane.missed.note();
        lane.wait_for_receiver(time::now() + LAST, drop);
        assert!(!lane.missed.is_noted());
    }
}
