//! A channel: what two processes of one host send each other without the network, in both directions.
//!
//! It carries the packets of all connections between them. Like a lane it is drained by whoever polls and gets its lock, or else by the
//! background thread, which is on guard as it is at a socket ([`adverb_core::guard`]): while it watches, the other side rings a doorbell.

use super::record::{self, Copied, Lease, Parts as Carried};
use crate::endpoint::{Endpoint, Host};
use crate::lane::Lane;
use crate::lock;
use crate::net::Net;
use crate::seqpacket::Connection;
use crate::sweep::Sweep;
use crate::time;
use adverb_core::error::Result;
use adverb_core::guard::{Guard, Guarded};
use adverb_core::lock::Lock;
use adverb_core::log;
use adverb_core::memory::{Claim, Source};
use adverb_core::reactor::{self, Readiness, Token};
use adverb_core::rings::Overlooked;
use adverb_local::doorbell::CHANGES;
use adverb_local::{Consumer, Glance, Producer};
use adverb_samehost::{Acquainted, Bell, Life, Neighbour, Parts, Spoken};
use adverb_wire::ib::packet::{self, Packet};
use arrayvec::ArrayVec;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Records that are taken in at most before others get their turn.
const TURN: usize = 64;
/// Bytes that are fetched at most, and a packet more.
const MOST_FETCHED: usize = 256 << 10;
/// Turns that empty any channel, even if others take some.
const ENOUGH: usize = 256;
/// How long after the other process's end its silence becomes an error: about as long as most programs have requests repeated. Some count on that, and
/// end while their peer still has a request under way that nobody needs any more.
const MOURNING: Duration = Duration::from_millis(500);

/// How long unreliable senders wait for room.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often the background thread looks whether a program has caught up; polls look by themselves.
const LOOK: Duration = Duration::from_millis(1);

/// See the module. Its locks are held while records are copied. Nobody who posts or polls waits for the receiving one, under which payload is fetched,
/// from a map or by the kernel, nor, while the kernel copies, for the lock of the queue pair that this is for ([`Busy`](adverb_core::busy::Busy)).
pub(crate) struct Channel {
    this: Weak<Channel>,
    net: Arc<Net>,
    /// The other process, or this one.
    pub(crate) neighbour: Neighbour,
    /// Reliable connections that go by it.
    reliable: AtomicU32,
    pub(crate) tx: Lock<Tx>,
    rx: Lock<Rx>,
    /// Somebody unreliable waits for room, for so long at most: a timer runs.
    is_timed: AtomicBool,
    /// How often waiting has come to an end.
    woken: AtomicU64,
    /// It alone counts packets and messages under its locks: the first channel.
    counts_alone: bool,
    /// By which polls see that there is nothing, without the receiving lock: a look, and where.
    glance: Glance,
    position: AtomicU64,
    theirs: Bell,
    ours: Bell,
    connection: Option<Arc<Connection>>,
    /// Nothing was taken out by the other side while somebody waited for it: nobody waits like that again before something is.
    is_stuck: AtomicBool,
    /// Somebody found the receiving lock taken: its holder has the background thread look again.
    overlooked: Overlooked,
    /// Queue pairs that wait for room.
    waiting: Mutex<Vec<Arc<Endpoint>>>,
    is_waited_for: AtomicBool,
    guard: OnceLock<Arc<Guard>>,
    token: OnceLock<Token>,
}

/// The sending half.
pub(crate) struct Tx {
    pub(crate) producer: Producer,
    /// Payload on its way into the channel.
    pub(crate) scratch: Box<[u8]>,
}

/// What has been taken in at once.
#[derive(Default)]
struct Drained {
    /// Anything.
    worked: bool,
    /// Something that a program expects to be served without its taking part.
    one_sided: bool,
    /// So much that others were to get their turn.
    long: bool,
}

struct Rx {
    consumer: Consumer,
    sweep: Sweep,
    copied: Copied,
    spoken: Spoken,
    /// The next record waits for a program that is behind.
    held: bool,
    known: Known,
}

/// Queue pairs that packets were for, as long as the table does not change.
#[derive(Default)]
struct Known {
    changes: u64,
    list: ArrayVec<(u32, Arc<Endpoint>), 8>,
}

impl Known {
    #[inline]
    fn find(&mut self, net: &Net, number: u32) -> Option<&Endpoint> {
        if self.changes != net.changes() {
            self.changes = net.changes();
            self.list.clear();
        }
        let found = match self.list.iter().position(|(known, _)| *known == number) {
            Some(found) => found,
            None => {
                let endpoint = net.endpoint(number)?;
                if self.list.is_full() {
                    self.list.remove(0);
                }
                self.list.push((number, endpoint));
                self.list.len() - 1
            }
        };
        Some(&self.list[found].1)
    }
}

impl Channel {
    /// A channel, watched by the background thread from now on.
    pub(crate) fn new(net: &Arc<Net>, parts: Parts) -> Result<Arc<Self>> {
        let channel = Self::build(net, parts)?;
        let reactor = &net.engine()?.reactor;
        let weak: Weak<Channel> = channel.this.clone();
        let _ = channel.guard.set(Guard::new(weak, reactor));
        let token = reactor.add_arrival(channel.ours.as_fd().as_raw_fd(), CHANGES, channel.clone())?;
        let _ = channel.token.set(token);
        channel.watch(true);
        Ok(channel)
    }

    /// By itself: it is large before it is on the heap, and whoever makes it may have little stack for what comes next.
    #[inline(never)]
    fn build(net: &Arc<Net>, parts: Parts) -> Result<Arc<Self>> {
        let Parts { process, producer, consumer, announcer, witness, theirs, ours, reads, connection } =
            parts;
        let (keys, of) = (&net.engine()?.keys, (process, connection.is_none()));
        let neighbour = Neighbour::new(of, reads, (announcer, witness), producer.loans(), keys);
        let counts_alone = net.local.counts_alone();
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            net: net.clone(),
            neighbour,
            reliable: AtomicU32::new(0),
            tx: Lock::new(Tx { producer, scratch: vec![0; record::LONGEST_HERE].into() }),
            counts_alone,
            glance: consumer.glance(),
            position: AtomicU64::new(consumer.position()),
            rx: Lock::new(Rx {
                consumer,
                sweep: Sweep { counts_alone, ..Sweep::default() },
                copied: Copied::new(),
                spoken: Spoken::default(),
                held: false,
                known: Known::default(),
            }),
            is_timed: AtomicBool::new(false),
            woken: AtomicU64::new(0),
            theirs,
            ours,
            connection,
            is_stuck: AtomicBool::new(false),
            overlooked: Overlooked::default(),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
            guard: OnceLock::new(),
            token: OnceLock::new(),
        }))
    }

    fn guard(&self) -> &Arc<Guard> {
        self.guard.get().expect("set when the channel was made")
    }

    /// One more reliable connection goes by it, or (`false`) one fewer.
    pub(crate) fn count_reliable(&self, more: bool) {
        if more {
            self.reliable.fetch_add(1, Ordering::Relaxed);
        } else {
            self.reliable.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether nobody but holders of its locks counts under such a lock ([`adverb_core::counters::Counter::count`]).
    #[inline]
    pub(crate) fn counts_alone(&self) -> bool {
        self.counts_alone
    }

    /// Whether the other process has gone for good.
    pub(crate) fn is_dead(&self) -> bool {
        self.neighbour.life() == Life::Dead
    }

    /// Whether it has gone: it may have broken the rules, too.
    fn has_gone(&self) -> bool {
        self.neighbour.life() >= Life::Ended
    }

    /// Whether it makes sense to wait for room here a little longer, in a thread that has `time` for it.
    pub(crate) fn hopes(&self, time: bool) -> bool {
        if !time {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
        time && !self.has_gone() && !self.is_stuck.load(Ordering::Relaxed)
    }

    /// There was room again.
    pub(crate) fn is_moving(&self) {
        self.is_stuck.store(false, Ordering::Relaxed);
    }

    /// Has the other side look, if it sleeps.
    pub(crate) fn nudge(&self) {
        let sleeps = self.tx.lock().producer.peer_sleeps();
        if sleeps {
            self.ring();
        }
    }

    /// Has the background thread take in what somebody has left.
    pub(crate) fn look_again(&self) {
        self.stir();
    }

    /// Has the background thread look at the channel, as if the other side had rung. That side has no part in it.
    fn stir(&self) {
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            let _ = engine.reactor.modify(*token, self.ours.as_fd().as_raw_fd(), CHANGES);
        }
    }

    /// Wakes the other side.
    pub(crate) fn ring(&self) {
        self.net.counters().tx_calls.add(1);
        self.theirs.ring();
    }

    /// A poll looks at the channel. Returns whether anything had come.
    #[inline]
    pub(crate) fn poll(&self, lane: &Lane) -> bool {
        self.guard().polled();
        let mut worked = false;
        if self.glance.is_wanted(self.position.load(Ordering::Relaxed)) {
            let drained = self.drain(Some(lane));
            worked = drained.worked;
            if worked {
                self.guard().weigh(drained.one_sided);
            }
        }
        if self.is_waited_for.load(Ordering::Relaxed) {
            self.wake(false);
        }
        worked
    }

    /// Takes in up to [`TURN`] records. `lane`: the one that is being polled, where acknowledgements may wait for company.
    fn drain(&self, lane: Option<&Lane>) -> Drained {
        let Some(mut rx) = self.rx.try_lock() else { return Drained::default() };
        let Rx { consumer, sweep, copied, spoken, held, known } = &mut *rx;
        *held = false;
        if !consumer.is_ready() {
            // Whoever waits for room is told when there is nothing left.
            let waits = consumer.peer_waits();
            drop(rx);
            self.released();
            if waits {
                self.ring();
            }
            return Drained::default();
        }
        sweep.polled = lane.map_or(0, Lane::address);
        let (mut taken, mut fetched) = (0, 0);
        let now = time::late();
        let has_gone = self.has_gone();
        // Nobody who is to be acknowledged waits behind somebody who is not.
        let may_hold = !has_gone && self.reliable.load(Ordering::Relaxed) == 0;
        // Another program may be in the process of one that has gone.
        let process = (self.neighbour.reads() && !has_gone).then_some(self.neighbour.process());
        {
            while taken < TURN && fetched < MOST_FETCHED {
                match consumer.peek() {
                    Ok(None) => break,
                    Err(_) => {
                        self.break_off();
                        break;
                    }
                    Ok(Some(record)) => {
                        if let Some((straight, payload)) = copied.straight(&record) {
                            match known.find(&self.net, straight.destination) {
                                Some(endpoint) => {
                                    if !endpoint.arrived_straight(self, &straight, &payload, now, sweep) {
                                        *held = true;
                                        break;
                                    }
                                }
                                None => self.net.counters().unknown.add(1),
                            }
                            record.consume();
                            taken += 1;
                            continue;
                        }
                        let lease = Lease::new(&record);
                        if let Some(Carried { head, payload, source }) =
                            copied.parse(&lease, process, |key| spoken.find(&self.neighbour, key))
                            && let Some(number) = packet::destination(head)
                            && let Ok(packet) = Packet::assemble(head, payload)
                        {
                            // Found with no lock that others wait for: the kernel may copy, and wait for a page.
                            match known.find(&self.net, number) {
                                Some(endpoint) if may_hold && endpoint.is_behind(&packet, now) => {
                                    *held = true;
                                    break;
                                }
                                Some(endpoint) => {
                                    let from = Host { channel: self, elsewhere: &source, acknowledged: None };
                                    if !endpoint.arrived_here(&packet, &from, now, sweep) {
                                        *held = true;
                                        break;
                                    }
                                    if matches!(source, Source::Process { .. }) {
                                        fetched += source.len();
                                    }
                                }
                                None => self.net.counters().unknown.add(1),
                            }
                        } else {
                            self.net.counters().damaged.add(1);
                        }
                        if lease.was_mapped() {
                            self.net.counters().rx_mapped.add(1);
                        }
                        lease.end();
                        drop(lease);
                        record.consume();
                        taken += 1;
                    }
                }
            }
        }
        let waits = consumer.peer_waits();
        self.position.store(consumer.position(), Ordering::Relaxed);
        for endpoint in sweep.ready.drain(..) {
            endpoint.ring();
        }
        let one_sided = std::mem::take(&mut sweep.one_sided);
        drop(rx);
        self.released();
        if waits {
            self.ring();
        }
        Drained { worked: taken > 0, one_sided, long: fetched >= MOST_FETCHED }
    }

    /// The receiving lock is free again: whoever missed it looks anew.
    fn released(&self) {
        if self.overlooked.is_noted() && self.overlooked.begin() {
            self.stir();
        }
    }

    /// A queue pair waits for room. False: there is some now, and it does not.
    pub(crate) fn wait(&self, endpoint: &Endpoint) -> bool {
        {
            let mut waiting = lock(&self.waiting);
            if !waiting.iter().any(|known| std::ptr::eq(&**known, endpoint)) {
                waiting.push(endpoint.this());
            }
            self.is_waited_for.store(true, Ordering::SeqCst);
        }
        let mut tx = self.tx.lock();
        let waits = tx.producer.prepare_to_wait(record::LONGEST);
        if tx.producer.check().is_err() {
            // It waits for the end of the channel.
            self.break_off();
            return true;
        }
        waits
    }

    /// The same for somebody who does not wait for long: then the channel is [stuck](Self::is_stuck), and all are told.
    pub(crate) fn wait_briefly(&self, endpoint: &Endpoint) -> bool {
        let waits = self.wait(endpoint);
        if waits && !self.is_timed.swap(true, Ordering::SeqCst) {
            self.time();
        }
        waits
    }

    fn time(&self) {
        let woken = self.woken.load(Ordering::SeqCst);
        let timer = self.this.upgrade().map(|this| Arc::new(Impatience(this, woken)));
        let set = timer.is_some_and(|timer| {
            self.net.engine().is_ok_and(|engine| engine.reactor.set_timer(PATIENCE, timer).is_ok())
        });
        if !set {
            self.is_timed.store(false, Ordering::SeqCst);
        }
    }

    /// Whether the other side takes nothing out: what is unreliable is lost, then.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// Has the background thread look at what it could not take in. False if that cannot be had.
    fn look_later(&self) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        self.net.engine().is_ok_and(|engine| engine.reactor.set_timer(LOOK, Arc::new(Look(this))).is_ok())
    }

    /// The other side has broken the rules: the background thread ends the channel.
    #[cold]
    pub(crate) fn break_off(&self) {
        if self.neighbour.comes_to(Life::Distrusted) == Life::Here {
            self.stir();
        }
    }

    /// Those who waited go on, if there is room. `told`: the other side has rung, as it was asked to.
    fn wake(&self, told: bool) {
        {
            let held = if told { Some(self.tx.lock()) } else { self.tx.try_lock() };
            let Some(mut tx) = held else { return };
            let room = tx.producer.room().is_some_and(|room| room >= record::LONGEST);
            // What was asked of the other side was asked for once.
            let waits = !room && !self.is_dead() && tx.producer.check().is_ok();
            if waits && (!told || tx.producer.prepare_to_wait(record::LONGEST)) {
                return;
            }
        }
        self.is_moving();
        self.tell_waiting();
    }

    fn tell_waiting(&self) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        let waiting = {
            let mut waiting = lock(&self.waiting);
            self.is_waited_for.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        waiting.iter().for_each(|endpoint| endpoint.ring());
    }

    /// A queue pair is gone.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        lock(&self.waiting).retain(|known| !std::ptr::eq(&**known, endpoint));
    }

    /// Puts the background thread on guard: the program is about to sleep.
    pub(crate) fn arm(&self) {
        self.guard().arm();
    }

    /// Takes in whatever has come before this call, though somebody else be at it. Bounded: somebody may say for ever that there is more.
    pub(crate) fn receive_all(&self) {
        for _ in 0..ENOUGH {
            let ready = self.rx.lock().consumer.is_ready();
            self.released();
            if !ready {
                break;
            }
            self.drain(None);
        }
    }

    /// The other process has gone, or cannot be trusted: what it has sent is taken in, and what it has not answered fails in a moment.
    pub(crate) fn end(&self) {
        if self.neighbour.comes_to(Life::Ended) >= Life::Ended {
            return;
        }
        // What it has said, it has said.
        self.receive_all();
        // The other side hears of it, if it is there.
        if let Some(connection) = &self.connection {
            connection.hang_up();
        }
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            engine.reactor.remove(*token, self.ours.as_fd().as_raw_fd());
        }
        self.net.local.forget(self);
        self.net.all_lanes().for_each(|lane| lane.forget_channels());
        let Some(this) = self.this.upgrade() else { return };
        let later = self.net.engine().and_then(|engine| engine.reactor.set_timer(MOURNING, this));
        if later.is_err() {
            self.fail();
        }
    }

    /// What the other process has not answered fails.
    fn fail(&self) {
        self.neighbour.comes_to(Life::Dead);
        self.neighbour.forget();
        self.rx.lock().spoken.forget();
        self.released();
        // Not with the table's lock: this waits for those of queue pairs.
        let all: Vec<Arc<Endpoint>> = self.net.endpoints().values().cloned().collect();
        all.iter().filter(|endpoint| endpoint.goes_by(self)).for_each(|endpoint| endpoint.ring());
        self.tell_waiting();
    }

    /// The other side has rung, or somebody of this one has. `leave`: whether to leave what has come to polls.
    fn rung(self: &Arc<Self>, leave: impl FnOnce() -> bool) {
        match self.neighbour.life() {
            Life::Here => {}
            Life::Distrusted => {
                let process = self.neighbour.process();
                log!(Warn, "process {process} has broken the rules of the memory shared with it");
                return self.end();
            }
            Life::Ended | Life::Dead => return,
        }
        if self.is_waited_for.load(Ordering::SeqCst) {
            self.wake(true);
        }
        if leave() {
            return;
        }
        let free = self.rx.try_lock().or_else(|| {
            self.overlooked.note();
            self.rx.try_lock()
        });
        let Some(rx) = free else { return };
        self.overlooked.begin();
        drop(rx);
        let drained = self.drain(None);
        if drained.worked {
            self.guard().received_in_background();
            if drained.long && !drained.one_sided && self.guard().give_way() {
                return;
            }
        } else {
            // A poll has taken it in, and may owe an answer.
            self.net.all_lanes().for_each(|lane| lane.acknowledge_soon());
        }
        self.guard().hold(|armed| {
            if armed {
                self.watch(true);
            }
        });
    }

    /// The descriptor that hangs up, if there is one.
    pub(crate) fn connection(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.fd())
    }
}

impl Acquainted for Channel {
    fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    fn this(&self) -> Weak<dyn Acquainted> {
        self.this.clone()
    }

    fn send(&self, descriptors: &[RawFd]) -> io::Result<()> {
        let Some(connection) = &self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
        self.net.local.meetings.tell(connection, descriptors)
    }

    fn break_off(&self) {
        Self::break_off(self);
    }
}

impl Guarded for Channel {
    fn watch(&self, on: bool) {
        let mut rx = self.rx.lock();
        if !on {
            rx.consumer.awake();
        } else if !rx.consumer.prepare_to_sleep() {
            // Something is there: the background thread takes it, and tries again.
            if !(rx.held && self.look_later()) {
                self.stir();
            }
        }
        drop(rx);
        self.released();
    }

    fn abandoned(&self) {
        self.net.all_lanes().for_each(|lane| lane.settle());
    }
}

impl reactor::Source for Channel {
    fn ready(self: Arc<Self>, _: Readiness) {
        self.rung(|| self.guard().leave_to_polls());
    }

    fn attended(self: Arc<Self>, _: Readiness) {
        self.rung(|| false);
    }

    /// Some time after the end of the other process.
    fn timeout(self: Arc<Self>) {
        self.fail();
    }
}

/// The end of some waiting, as of so many that had come before.
struct Impatience(Arc<Channel>, u64);

impl reactor::Source for Impatience {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Self(channel, woken) = &*self;
        if !channel.is_waited_for.load(Ordering::SeqCst) {
            channel.is_timed.store(false, Ordering::SeqCst);
            // Who began to wait meanwhile has counted on this.
            if channel.is_waited_for.load(Ordering::SeqCst) && !channel.is_timed.swap(true, Ordering::SeqCst)
            {
                channel.time();
            }
        } else if channel.woken.load(Ordering::SeqCst) != *woken {
            channel.time();
        } else {
            channel.is_timed.store(false, Ordering::SeqCst);
            channel.is_stuck.store(true, Ordering::Relaxed);
            channel.tell_waiting();
        }
    }
}

/// A look at what waits for a program.
struct Look(Arc<Channel>);

impl reactor::Source for Look {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.stir();
    }
}
