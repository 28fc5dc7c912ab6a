//! The endpoint: the transport's half of one queue pair.
//!
//! One lock holds the protocol's state. It is held while packets are built or taken in, never across a system
//! call: packets are copied into the lane's batch, which leaves under the lane's own lock.

mod ending;
mod gather;
mod groups;
mod receiving;
mod sending;
mod verbs;

pub(crate) use sending::TryAgain;

use crate::datagram::DatagramLink;
use crate::gid::Gids;
use crate::lane::Lane;
use crate::link::Link;
use crate::local::{Beside, Delivery, WaitingSince};
use crate::locate::{Location, LocationQuery, Place};
use crate::lock;
use crate::net::Net;
use crate::route::Route;
use crate::socket::Arrival;
use adverb_core::busy::Busy;
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::Result;
use adverb_core::lock::{Lock, LockGuard};
use adverb_core::qp::{Attributes, Queues, SendCursor, Service, State};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Packets that one turn at the lane lets a queue pair send, so that others get theirs.
pub(crate) const MOST_PACKETS_AT_ONCE: usize = 16;

/// The transport's half of one queue pair. One lock protects the state of its protocol.
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
    /// The state for threads that work beside the lane where the peer is on this host, and since when
    /// messages from there wait for the program.
    pub(crate) beside: Beside,
    pub(crate) behind: WaitingSince,
    /// Listed as short of receives ([`crate::pace`]).
    pub(crate) is_short: AtomicBool,
    /// An unreliable message that comes by the network has taken a receive, and is not complete.
    pub(crate) is_receiving: AtomicBool,
    /// Packets of such messages so far. Changed with the lock.
    pub(crate) message_packets: AtomicU64,
    /// Whether the queue pair's lock is held while the kernel copies.
    pub(crate) busy: Busy,
    /// The lane counts it among those with a pending acknowledgement. Changed with the lock.
    is_ack_pending: AtomicBool,
    /// The lane has it in its list of those that may have one. Changed with the lock.
    is_listed: AtomicBool,
    /// Which posts of the queue pair wait to be gathered.
    gather: gather::Gather,
    inner: Lock<EndpointState>,
    /// The observer of the queue pair's events: the connection manager.
    observer: Mutex<Option<Arc<dyn Observer>>>,
}

/// Hears of the events of a queue pair. Only takes note: the calling thread may hold a lane.
pub(crate) trait Observer: Send + Sync {
    /// The first packet of the peer has come (volume 1, section 12.9.7).
    fn heard(&self);
    /// The queue pair has failed, or is destroyed.
    fn ended(&self);
}

/// The protocol's state of the queue pair.
pub(crate) struct EndpointState {
    /// The state as the program last set it, or as the protocol changed it.
    pub(crate) state: State,
    pub(crate) cursor: SendCursor,
    pub(crate) kind: EndpointKind,
}

pub(crate) enum EndpointKind {
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
    /// From a process of this host.
    Host(&'a Delivery<'a>),
}

/// The outcome of a look at the deadlines.
pub(crate) struct DeadlineScan {
    /// The next one.
    pub(crate) deadline: Option<Duration>,
    /// There is something to send.
    pub(crate) transmit: bool,
}

/// The outcome of a turn at sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// There is more to send, and nothing that it waits for.
    pub(crate) more: bool,
    /// A request failed: the queue pair is in error.
    pub(crate) failed: bool,
    /// A request failed: the send queue is in error (SQE).
    pub(crate) stopped: bool,
    /// An operation goes on beside the lane.
    pub(crate) goes_on_beside: bool,
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
            beside: Beside::default(),
            behind: WaitingSince::default(),
            is_short: AtomicBool::new(false),
            is_receiving: AtomicBool::new(false),
            message_packets: AtomicU64::new(0),
            busy: Busy::default(),
            is_ack_pending: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            gather: gather::Gather::default(),
            inner: Lock::new(EndpointState {
                state: State::Reset,
                cursor: SendCursor::default(),
                kind: EndpointKind::Nothing,
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

    pub(crate) fn lock(&self) -> LockGuard<'_, EndpointState> {
        self.inner.lock()
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, EndpointState>> {
        self.inner.try_lock()
    }

    /// The lock, for a thread that posts or polls. None: its holder is in the middle of a system call, and
    /// does this thread's work afterwards ([`Busy`]).
    #[inline]
    pub(crate) fn lock_unless_busy(&self) -> Option<LockGuard<'_, EndpointState>> {
        self.inner.try_lock().or_else(|| self.lock_in_time())
    }

    #[cold]
    fn lock_in_time(&self) -> Option<LockGuard<'_, EndpointState>> {
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

    /// Has the observer told of the queue pair's events from now on.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        *lock(&self.observer) = Some(observer);
    }

    /// Packets go by the network: finds out behind which port the peer's queue pair lives.
    pub(crate) fn locate(&self, route: Route, number: u32) {
        // The entry from before may be of another process by now.
        let wanted = LocationQuery { local: route.source, peer: route.peer(), number };
        let known = self.net.locator.find(&self.net, &self.lane, wanted, self.number(), true);
        if let Location::At(place) = known {
            self.located(number, place);
        }
    }

    /// The way to the peer of a connection, and its number.
    pub(crate) fn peer(&self) -> Option<(Route, u32)> {
        match &self.lock().kind {
            EndpointKind::Connected(link) => Some((link.packet_route().route, link.destination())),
            _ => None,
        }
    }

    /// Whether the word of a packet from the network counts that the peer, with this queue pair, has lost the
    /// connection. Does not wait: while another thread has the lock, no such word counts, and the peer will
    /// say it again.
    pub(crate) fn may_have_lost(&self, number: u32) -> bool {
        self.try_lock().is_some_and(|inner| match &inner.kind {
            EndpointKind::Connected(link) => link.destination() != number || link.is_foreign(),
            // Nothing stands here.
            _ => true,
        })
    }

    /// The peer's queue pair lives here.
    pub(crate) fn located(&self, number: u32, place: Place) {
        let mut ready = Vec::new();
        if let EndpointKind::Connected(link) = &mut self.lock().kind {
            link.located(self, number, place, &mut ready);
        }
        ready.iter().for_each(|other| other.ring());
    }

    /// To RTR: packets of the peer are taken in from now on.
    fn begin(&self, inner: &mut EndpointState, attributes: &Attributes) -> Result<()> {
        inner.kind = match self.queues.service {
            Service::Rc | Service::Uc | Service::XrcSend | Service::XrcReceive => {
                let route = self.gids.route_of(&attributes.path)?;
                EndpointKind::Connected(Box::new(Link::new(self, attributes, route)))
            }
            Service::Ud => {
                let mtu = self.gids.active_mtu().unwrap_or(1024);
                EndpointKind::Datagram(Box::new(DatagramLink::new(attributes.qkey, mtu)))
            }
            Service::RawPacket => return Ok(()),
        };
        self.lane.count_network(true);
        Ok(())
    }
}
