//! Events of connection management, and the channels that report them (rdma_get_cm_event(3)).

use super::identifier::Identifier;
use super::path::DatagramPeer;
use crate::error::{Error, Result};
use crate::event::EventQueue;
use crate::transport::connections::ConnectionParameters;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// The kind of an event (`enum rdma_cm_event_type`, same numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// The peer's address is resolved; the identifier has a device.
    AddressResolved = 0,
    /// The peer's address could not be resolved.
    AddressError = 1,
    /// The route is resolved.
    RouteResolved = 2,
    /// The route could not be resolved.
    RouteError = 3,
    /// A peer asks for a connection; the event's identifier is a new one.
    ConnectRequest = 4,
    /// The peer accepted, and the program itself has to establish the connection (its queue pair is not the
    /// identifier's).
    ConnectResponse = 5,
    /// Setting up a connection failed.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refused.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device went away.
    DeviceRemoval = 11,
    /// Joined a multicast group.
    MulticastJoin = 12,
    /// Joining failed.
    MulticastError = 13,
    /// The hardware address of the interface below the device changed. Linux raises it at the failover of a
    /// bonded interface alone, whose hardware address its drivers had written into their routes. Here the
    /// system finds the way of every packet: it never occurs.
    AddressChange = 14,
    /// The queue pair may be used for another connection (InfiniBand).
    TimewaitExit = 15,
}

impl EventKind {
    /// The event's name in rdma_cma.h, as rdma_event_str(3) gives it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            Self::AddressError => "RDMA_CM_EVENT_ADDR_ERROR",
            Self::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            Self::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            Self::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            Self::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            Self::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            Self::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            Self::Rejected => "RDMA_CM_EVENT_REJECTED",
            Self::Established => "RDMA_CM_EVENT_ESTABLISHED",
            Self::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            Self::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            Self::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            Self::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            Self::AddressChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            Self::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        }
    }
}

/// An event that was fetched from a channel. Dropping it acknowledges it (rdma_ack_cm_event(3)); until then
/// [`Identifier::destroy`] of the identifier that it counts on waits.
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// 0, a negative errno, or a transport's reject reason.
    pub status: i32,
    /// The identifier that the event concerns; for [`EventKind::ConnectRequest`] a new identifier, with
    /// [`Identifier::cookie`] 0, which the program accepts, rejects or destroys.
    pub identifier: Arc<Identifier>,
    /// The listener, for [`EventKind::ConnectRequest`].
    pub listener: Option<Arc<Identifier>>,
    /// The peer's parameters, for requests, [`EventKind::Established`] and [`EventKind::ConnectResponse`].
    pub parameters: ConnectionParameters,
    /// The peer's private data. A transport that pads private data gives it padded.
    pub private_data: Vec<u8>,
    /// On an identifier for datagrams: where to send them, for [`EventKind::Established`] and
    /// [`EventKind::MulticastJoin`].
    pub datagram: Option<Box<DatagramPeer>>,
    /// For [`EventKind::MulticastJoin`] and [`EventKind::MulticastError`]: the context of
    /// [`Identifier::join_multicast`].
    pub context: u64,
}

impl Event {
    /// The event as the result of a synchronous call, with the errno that librdmacm gives: ECONNREFUSED for a
    /// refusal, otherwise the status without its sign.
    pub fn outcome(&self) -> Result<()> {
        let errno = match (self.status, self.kind) {
            (0, _) => return Ok(()),
            (_, EventKind::Rejected) => libc::ECONNREFUSED,
            (status, _) => status.saturating_abs(),
        };
        let reason = match self.status {
            ..0 => std::io::Error::from_raw_os_error(self.status.saturating_abs()).to_string(),
            // A number of the transport's protocol.
            _ => "the peer's reason".to_owned(),
        };
        Err(Error::new(errno, format!("{} with status {} ({reason})", self.kind.name(), self.status)))
    }

    /// The identifier that counts the event as unacknowledged: of a connection request it is the listener.
    fn counted_on(&self) -> &Arc<Identifier> {
        self.listener.as_ref().unwrap_or(&self.identifier)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.counted_on().acknowledge();
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} status {} {:?} {:02x?}",
            self.kind.name(),
            self.status,
            self.parameters,
            self.private_data
        )
    }
}

/// An event that the program has not fetched. It keeps no identifier alive but a new one, which belongs to it
/// alone.
pub(super) struct Pending {
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) subject: Weak<Identifier>,
    pub(super) request: Option<Arc<Identifier>>,
    pub(super) details: Details,
}

/// The values of an event that only some kinds have.
#[derive(Default)]
pub(super) struct Details {
    pub(super) parameters: ConnectionParameters,
    pub(super) private_data: Vec<u8>,
    pub(super) datagram: Option<Box<DatagramPeer>>,
    pub(super) context: u64,
}

/// A queue of events on one descriptor (rdma_create_event_channel(3)). Thread-safe.
pub struct EventChannel {
    pub(super) queue: EventQueue<Pending>,
}

impl EventChannel {
    /// A new channel. EMFILE when the process is out of descriptors.
    pub fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: EventQueue::new()? }))
    }

    /// A new channel whose descriptor has a greater number than all open descriptors, if there is such a
    /// number. EMFILE when the process is out of descriptors.
    pub fn new_above_all() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: EventQueue::new_above_all()? }))
    }

    /// The descriptor that is readable while an event waits. A program may poll it and make it non-blocking.
    pub fn descriptor(&self) -> RawFd {
        self.queue.descriptor()
    }

    /// Takes the oldest event (rdma_get_cm_event(3)); see [`EventQueue::wait`] for how it blocks.
    ///
    /// # Errors
    /// EAGAIN on a non-blocking descriptor without an event, EINTR, ENODEV in a child of fork.
    pub fn get(&self) -> Result<Event> {
        loop {
            if let Some(event) = Identifier::deliver(self.queue.wait()?) {
                return Ok(event);
            }
        }
    }

    /// Takes the oldest event if there is one, and never waits.
    pub fn try_get(&self) -> Result<Option<Event>> {
        while let Some(pending) = self.queue.try_next()? {
            if let Some(event) = Identifier::deliver(pending) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Whether an event waits, after at most `milliseconds` (negative: no bound).
    pub fn ready(&self, milliseconds: i32) -> Result<bool> {
        self.queue.ready(milliseconds)
    }
}
