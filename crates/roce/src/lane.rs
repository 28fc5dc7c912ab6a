//! Lanes: a UDP socket, the packets that arrive on it, and the packets that wait to leave by it.
//!
//! The queue pairs whose receives complete on one completion queue share a lane, so a poll of that queue
//! drains only their socket. The thread that gets the receive try-lock takes in packets. The thread that gets
//! the transmit try-lock sends for all threads. Each of the two looks again after it lets go, for threads
//! that found its lock taken; these do not wait. While no thread polls, the background thread does both
//! ([`adverb_core::lane_watch`]).

mod deadlines;
mod receive;
mod transmit;

use deadlines::{Tick, TimedEndpoints};

use crate::batch::{Batch, PacketRoute};
use crate::endpoint::Endpoint;
use crate::impaired::LaneFaults;
use crate::local::ChannelSnapshot;
use crate::net::Net;
use crate::pending_acks;
use crate::rx_burst::RxBurst;
use crate::socket::{Buffers, Socket};
use crate::time;
use crate::{lock, lock_until};
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::{Error, Result};
use adverb_core::gathering::{GatheredLane, Gathering};
use adverb_core::lane_watch::{LaneWatch, WatchedLane};
use adverb_core::lock::Lock;
use adverb_core::reactor::{EDGE, READABLE, Readiness, Source, Token, WRITABLE};
use adverb_core::work_notes::{WorkCount, WorkNote};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// System calls' worth that the end of the process looks at, at most.
const LAST_BURSTS: usize = 256;
/// How long an acknowledgement may be delayed when no thread polls.
// IB-RC-RSP-49
const ACKNOWLEDGE_AFTER: Duration = Duration::from_micros(20);
/// How long threads that are at work on a lane are waited for: at the end of a connection or of the process.
pub(crate) const LAST: Duration = Duration::from_millis(100);
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
    work_count: WorkCount,
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
    burst: RxBurst,
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
            rx: Mutex::new(Rx { buffers: Buffers::new(), burst: RxBurst::default() }),
            tx: Mutex::new(Batch::new(&socket)),
            channels: Lock::default(),
            socket,
            ready: Mutex::default(),
            ack_candidates: Mutex::default(),
            pending_acks: AtomicU32::new(0),
            timed: Mutex::default(),
            looking: Mutex::default(),
            earliest: AtomicU64::new(u64::MAX),
            work_count: WorkCount::default(),
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

    fn set_interest(&self, interest: Readiness) {
        let full = self.is_full.load(Ordering::SeqCst);
        let interest = interest | if full { WRITABLE } else { 0 };
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            let _ = engine.reactor.modify(*token, self.socket.fd(), interest);
        }
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
                rx.buffers.arrivals().for_each(|arrival| self.net.note_handover(&arrival));
            }
            drop(rx);
            self.net.handover_queue.hand_over_all(&self.net);
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

    fn ready_on_duty(self: Arc<Self>, readiness: Readiness) {
        self.is_ready(readiness, || false);
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
