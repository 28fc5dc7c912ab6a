//! A channel: what two processes of one host send each other without the network, in both directions.
//!
//! It carries records of a transport's ([`Traffic`]): of all its connections between the two. It is drained
//! by a thread that polls and gets its lock, or else by the background thread, which watches it as it does a
//! socket ([`adverb_core::lane_watch`]). While the background thread watches, the other side rings a
//! doorbell.

mod all;
#[cfg(test)]
pub(crate) mod counted;
mod payload;
mod waiting;

pub use all::{ChannelSnapshot, Channels};
pub use payload::{SHORT, Words, take_apart};

use crate::bell::Bell;
use crate::neighbour::{Life, Neighbour, NeighbourLink};
use crate::parts::Parts;
use adverb_core::counters::Counters;
use adverb_core::engine::Engine;
use adverb_core::error::Result;
use adverb_core::lane_watch::{LaneWatch, WatchedLane};
use adverb_core::lock::Lock;
use adverb_core::log;
use adverb_core::reactor::{self, Readiness, Token};
use adverb_core::seqpacket::Connection;
use adverb_core::work_notes::RareWorkNote;
use adverb_local::doorbell::CHANGES;
use adverb_local::{Consumer, Glance, Producer};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Turns that empty any channel, even if others take some.
const ENOUGH: usize = 256;
/// How long after the other process's end its silence becomes an error: about as long as most programs have
/// requests repeated. Some count on that, and end while their peer still has a request under way that neither
/// program needs any more.
const DEAD_PEER_GRACE: Duration = Duration::from_millis(500);

/// A sender of records.
pub trait Sender: Send + Sync + 'static {
    /// There may be room: it sends what waits.
    fn ring(&self);
    /// This, for a list of those who wait.
    fn this(&self) -> Arc<Self>;
}

/// A transport whose records a channel carries: their meaning, and their effects. All functions but
/// [`take_in`](Traffic::take_in) and [`settle`](Traffic::settle) are called with no lock of the channel.
pub trait Traffic: Send + Sync + Sized + 'static {
    /// A sender, which may wait for room.
    type Sender: Sender;
    /// State of the transport under the lock for putting records in.
    type Outgoing: Send;
    /// What belongs to the lock under which records are taken out.
    type Incoming: Send;
    /// The work that is left to be done when the receiving lock is free again.
    type Rest;
    /// Bytes of the longest record.
    const LONGEST: usize;

    /// The engine.
    ///
    /// # Errors
    /// As [`adverb_core::engine::engine`].
    fn engine(&self) -> Result<&'static Engine>;
    /// Where system calls are counted.
    fn counters(&self) -> &'static Counters;
    /// Takes records out and does what they say, until others are to get their turn. `lane`: the address of
    /// the one that is being polled, or zero.
    fn take_in(
        channel: &Channel<Self>,
        consumer: &mut Consumer,
        incoming: &mut Self::Incoming,
        lane: usize,
    ) -> Intake;
    /// Ends the turn of [`take_in`](Traffic::take_in), under the receiving lock. The other process knows what
    /// has been taken out.
    fn settle(&self, incoming: &mut Self::Incoming) -> Self::Rest;
    /// Does the work that [`settle`](Traffic::settle) has left.
    fn finish(&self, rest: Self::Rest);
    /// Does the work that [`settle`](Traffic::settle) has left, in a thread that holds a lock of this sender.
    /// What other senders need, another thread does soon. This thread looks after its own sender itself.
    fn put_off(&self, rest: Self::Rest, _: &Self::Sender) {
        self.finish(rest);
    }
    /// The background thread was woken for something that a poll has taken in.
    fn found_nothing(&self) {}
    /// No polls follow: what they would have done is due.
    fn abandoned(&self) {}
    /// Sends the other process descriptors: see [`NeighbourLink::send`].
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn tell(&self, connection: &Connection, descriptors: &[RawFd]) -> io::Result<()>;
    /// The other process has gone, or broke the rules (`is_distrusted`). The records that it has sent before
    /// are taken in.
    fn ended(channel: &Channel<Self>, is_distrusted: bool);
    /// Forgets the other process, some time after its end: its memory is unknown again, and requests that it
    /// has not answered fail. Called with the lock of `incoming`.
    fn forget(&self, incoming: &mut Self::Incoming);
    /// Has the requests fail that the other process has not answered, some time after its end. Called without
    /// the lock of `incoming`, after [`forget`](Traffic::forget).
    fn failed(channel: &Channel<Self>);
}

/// The kinds of records that were taken out in a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Intake {
    /// Anything.
    pub worked: bool,
    /// Something that a program expects to be served without its taking part.
    pub one_sided: bool,
    /// Records came so long that others were to get their turn.
    pub long: bool,
    /// The next record waits for a program, or a thread, that is behind.
    pub held: bool,
}

/// A channel: records of a transport between two processes of one host, in both directions. Its locks are
/// held while records are copied.
///
/// No thread that posts or polls waits for the receiving lock, under which payload is fetched, from a map or
/// by the kernel. Nor does it wait, while the kernel copies, for the lock of the queue pair that the payload
/// is for ([`Busy`](adverb_core::busy::Busy)).
pub struct Channel<T: Traffic> {
    this: Weak<Channel<T>>,
    traffic: T,
    /// The other process, or this one.
    pub neighbour: Neighbour,
    /// To put records in.
    pub tx: Lock<Tx<T::Outgoing>>,
    rx: Lock<Rx<T::Incoming>>,
    /// A sender waits for room with a time limit ([`Channel::wait_briefly`]): a timer runs.
    is_timed: AtomicBool,
    /// How often waiting has come to an end.
    woken: AtomicU64,
    /// This channel alone counts packets and messages under its locks: it is the first one.
    counts_alone: bool,
    /// By these, a poll sees without the receiving lock that the ring is empty: a view of the ready words,
    /// and the position of the next record.
    glance: Glance,
    position: AtomicU64,
    theirs: Bell,
    ours: Bell,
    connection: Option<Arc<Connection>>,
    /// The other side took nothing out while a sender waited for it. No sender waits like that again before
    /// something is taken.
    is_stuck: AtomicBool,
    /// The other side has broken the rules.
    is_distrusted: AtomicBool,
    /// A thread found the receiving lock taken: its holder has the background thread look again.
    overlooked: RareWorkNote,
    /// Queue pairs that wait for room.
    waiting: Mutex<Vec<Arc<T::Sender>>>,
    is_waited_for: AtomicBool,
    lane_watch: OnceLock<Arc<LaneWatch>>,
    token: OnceLock<Token>,
}

/// The sending half.
pub struct Tx<O> {
    /// Puts records into the ring.
    pub producer: Producer,
    /// The transport's own.
    pub outgoing: O,
}

struct Rx<I> {
    consumer: Consumer,
    /// On the heap: the thread that makes a channel may have little stack.
    incoming: Box<I>,
    /// The next record waits for a program that is behind.
    held: bool,
}

impl<T: Traffic> Channel<T> {
    /// A channel, watched by the background thread from now on. `counts_alone`: only it counts under its
    /// locks.
    ///
    /// # Errors
    /// Those of the engine, and of epoll_ctl(2).
    pub fn new(
        traffic: T,
        (outgoing, incoming): (T::Outgoing, Box<T::Incoming>),
        parts: Parts,
        counts_alone: bool,
    ) -> Result<Arc<Self>> {
        let channel = Self::build(traffic, (outgoing, incoming), parts, counts_alone)?;
        let reactor = &channel.traffic.engine()?.reactor;
        let weak: Weak<Self> = channel.this.clone();
        let _ = channel.lane_watch.set(LaneWatch::new(weak, reactor));
        let token = reactor.add_arrival(channel.ours.as_fd().as_raw_fd(), CHANGES, channel.clone())?;
        let _ = channel.token.set(token);
        channel.watch(true);
        Ok(channel)
    }

    /// Builds the channel on the heap. A function by itself: the channel is large before it is on the heap,
    /// and the thread that makes it may have little stack for what comes next.
    #[inline(never)]
    fn build(
        traffic: T,
        (outgoing, incoming): (T::Outgoing, Box<T::Incoming>),
        parts: Parts,
        counts_alone: bool,
    ) -> Result<Arc<Self>> {
        let Parts { process, producer, consumer, hazard_slots, hazard_view, theirs, ours, reads, connection } =
            parts;
        let (keys, of) = (&traffic.engine()?.keys, (process, connection.is_none()));
        let neighbour = Neighbour::new(of, reads, (hazard_slots, hazard_view), producer.loans(), keys);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            traffic,
            neighbour,
            tx: Lock::new(Tx { producer, outgoing }),
            counts_alone,
            glance: consumer.glance(),
            position: AtomicU64::new(consumer.position()),
            rx: Lock::new(Rx { consumer, incoming, held: false }),
            is_timed: AtomicBool::new(false),
            woken: AtomicU64::new(0),
            theirs,
            ours,
            connection,
            is_stuck: AtomicBool::new(false),
            is_distrusted: AtomicBool::new(false),
            overlooked: RareWorkNote::default(),
            waiting: Mutex::default(),
            is_waited_for: AtomicBool::new(false),
            lane_watch: OnceLock::new(),
            token: OnceLock::new(),
        }))
    }

    fn lane_watch(&self) -> &Arc<LaneWatch> {
        self.lane_watch.get().expect("set when the channel was made")
    }

    /// The transport's part of the channel.
    #[inline]
    pub fn traffic(&self) -> &T {
        &self.traffic
    }

    /// Whether both ends are this process.
    pub fn is_to_oneself(&self) -> bool {
        self.connection.is_none()
    }

    /// Whether no thread but holders of its locks counts under such a lock
    /// ([`adverb_core::counters::Counter::count`]).
    #[inline]
    pub fn counts_alone(&self) -> bool {
        self.counts_alone
    }

    /// Whether the other process has gone for good.
    pub fn is_dead(&self) -> bool {
        self.neighbour.life() == Life::Dead
    }

    /// Whether the other process has gone. It may have broken the rules, too.
    pub fn has_gone(&self) -> bool {
        self.neighbour.life() >= Life::Ended
    }

    /// Has the other side look, if it sleeps.
    pub fn wake_peer(&self) {
        let sleeps = self.tx.lock().producer.peer_sleeps();
        if sleeps {
            self.ring();
        }
    }

    /// Has the background thread take in the records that another thread has left.
    pub fn look_again(&self) {
        self.stir();
    }

    /// Has the background thread look at the channel, as if the other side had rung. That side has no part in
    /// it.
    fn stir(&self) {
        if let (Some(token), Ok(engine)) = (self.token.get(), self.traffic.engine()) {
            let _ = engine.reactor.modify(*token, self.ours.as_fd().as_raw_fd(), CHANGES);
        }
    }

    /// Wakes the other side.
    pub fn ring(&self) {
        self.traffic.counters().tx_calls.add(1);
        self.theirs.ring();
    }

    /// A poll looks at the channel. `lane`: the address of the lane that is polled. Returns whether anything
    /// had come.
    #[inline]
    pub fn poll(&self, lane: usize) -> bool {
        self.lane_watch().polled();
        let mut worked = false;
        if self.glance.is_wanted(self.position.load(Ordering::Relaxed)) {
            let taken = self.drain(lane);
            worked = taken.worked;
            if worked {
                self.lane_watch().weigh(taken.one_sided);
            }
        }
        if self.is_waited_for.load(Ordering::Relaxed) {
            self.wake(false);
        }
        worked
    }

    /// Takes in as many records as make a turn. `lane`: see [`Traffic::take_in`].
    #[inline]
    fn drain(&self, lane: usize) -> Intake {
        self.drain_with(lane, T::finish)
    }

    #[inline]
    fn drain_with(&self, lane: usize, finish: impl FnOnce(&T, T::Rest)) -> Intake {
        let Some(mut rx) = self.rx.try_lock() else { return Intake::default() };
        let Rx { consumer, incoming, held } = &mut *rx;
        *held = false;
        if !consumer.is_ready() {
            // A producer that waits for room is told when there is nothing left.
            let waits = consumer.peer_waits();
            drop(rx);
            self.released();
            if waits {
                self.ring();
            }
            return Intake::default();
        }
        let taken = T::take_in(self, consumer, incoming, lane);
        *held = taken.held;
        let waits = consumer.peer_waits();
        self.position.store(consumer.position(), Ordering::Relaxed);
        let rest = self.traffic.settle(incoming);
        drop(rx);
        self.released();
        // First: what is left may take long.
        if waits {
            self.ring();
        }
        finish(&self.traffic, rest);
        taken
    }

    /// The receiving lock is free again: a thread that missed it looks anew.
    fn released(&self) {
        if self.overlooked.is_noted() && self.overlooked.begin() {
            self.stir();
        }
    }

    /// The other side has broken the rules: the background thread ends the channel.
    #[cold]
    pub fn break_off(&self) {
        self.is_distrusted.store(true, Ordering::SeqCst);
        if self.neighbour.comes_to(Life::Distrusted) <= Life::Here {
            self.stir();
        }
    }

    /// Every queue pair that waited for the channel goes by it: from now on records are taken out. A thread
    /// of the program that sleeps in the background thread's place may have been woken before; it has left
    /// all records there.
    pub(crate) fn begin(&self) {
        self.neighbour.comes_to(Life::Here);
        self.stir();
    }

    /// Has the background thread watch the channel: the program is about to sleep.
    pub fn arm(&self) {
        self.lane_watch().arm();
    }

    /// Takes in the records that came before this call, even if another thread does so, too. Bounded: the
    /// other side may say for ever that there is more.
    pub fn receive_all(&self) {
        self.receive_all_with(T::finish);
    }

    /// Takes in the records that came before this call, as [`Channel::receive_all`], in a thread that holds a
    /// lock of this sender ([`Traffic::put_off`]).
    pub fn receive_all_within(&self, sender: &T::Sender) {
        self.receive_all_with(|traffic, rest| traffic.put_off(rest, sender));
    }

    fn receive_all_with(&self, finish: impl Fn(&T, T::Rest)) {
        for _ in 0..ENOUGH {
            let ready = self.rx.lock().consumer.is_ready();
            self.released();
            if !ready {
                break;
            }
            self.drain_with(0, &finish);
        }
    }

    /// The other process has gone, or cannot be trusted: its records are taken in, and requests that it has
    /// not answered fail in a moment.
    pub fn end(&self) {
        let before = self.neighbour.comes_to(Life::Ended);
        if before >= Life::Ended {
            return;
        }
        // Records that came before the end count.
        self.receive_all();
        // The other side hears of it, if it is there.
        if let Some(connection) = &self.connection {
            connection.hang_up();
        }
        if let (Some(token), Ok(engine)) = (self.token.get(), self.traffic.engine()) {
            engine.reactor.remove(*token, self.ours.as_fd().as_raw_fd());
        }
        // That may have come out just now.
        T::ended(self, self.is_distrusted.load(Ordering::SeqCst));
        let Some(this) = self.this.upgrade() else { return };
        let later = self.traffic.engine().and_then(|engine| engine.reactor.set_timer(DEAD_PEER_GRACE, this));
        if later.is_err() {
            self.fail();
        }
    }

    /// Requests that the other process has not answered fail.
    fn fail(&self) {
        self.neighbour.comes_to(Life::Dead);
        self.neighbour.forget();
        self.traffic.forget(&mut self.rx.lock().incoming);
        self.released();
        T::failed(self);
        self.tell_waiting();
    }

    /// The other side has rung, or a thread of this one has. `leave`: whether to leave what has come to
    /// polls.
    fn rung(self: &Arc<Self>, leave: impl FnOnce() -> bool) {
        match self.neighbour.life() {
            Life::Here => {}
            // `Channel::begin` looks.
            Life::Arriving => return,
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
        let taken = self.drain(0);
        if taken.worked {
            self.lane_watch().received_in_background();
            if taken.long && !taken.one_sided && self.lane_watch().yield_to_polls() {
                return;
            }
        } else {
            self.traffic.found_nothing();
        }
        self.lane_watch().hold(|armed| {
            if armed {
                self.watch(true);
            }
        });
    }

    /// The descriptor that hangs up, if there is one.
    pub fn connection(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.fd())
    }
}

impl<T: Traffic> NeighbourLink for Channel<T> {
    fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    fn this(&self) -> Weak<dyn NeighbourLink> {
        self.this.clone()
    }

    fn send(&self, descriptors: &[RawFd]) -> io::Result<()> {
        let Some(connection) = &self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
        self.traffic.tell(connection, descriptors)
    }

    fn break_off(&self) {
        Self::break_off(self);
    }
}

impl<T: Traffic> WatchedLane for Channel<T> {
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
        self.traffic.abandoned();
    }
}

impl<T: Traffic> reactor::Source for Channel<T> {
    fn ready(self: Arc<Self>, _: Readiness) {
        self.rung(|| self.lane_watch().switch_to_polls());
    }

    fn ready_on_duty(self: Arc<Self>, _: Readiness) {
        self.rung(|| false);
    }

    /// Some time after the end of the other process.
    fn timeout(self: Arc<Self>) {
        self.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::counted::CountedRecords;
    use super::*;
    use adverb_core::engine;

    #[test]
    fn nothing_is_taken_out_before_those_who_wait_go_by_the_channel() {
        engine::install(&[adverb_core::null::FACTORY]);
        let parts = Parts::to_oneself().unwrap();
        let channel = Channel::new(CountedRecords::default(), ((), Box::new(())), *parts, false).unwrap();
        let taken = || channel.traffic.0.load(Ordering::SeqCst);
        let put = || {
            let mut tx = channel.tx.lock();
            let mut slot = tx.producer.reserve(8).unwrap();
            slot.write_at(0, &[7; 8]);
            slot.publish();
        };
        put();
        // A thread of the program that sleeps in the background thread's place is woken: the descriptor is
        // new, and the other side has rung.
        reactor::Source::ready_on_duty(channel.clone(), Readiness::default());
        assert_eq!(taken(), 0, "the record is for somebody who does not know the channel yet");
        channel.begin();
        put();
        reactor::Source::ready_on_duty(channel.clone(), Readiness::default());
        // Either by this thread, or by the background thread, which may have the lock now.
        while taken() < 2 {
            std::thread::yield_now();
        }
        channel.end();
    }
}
