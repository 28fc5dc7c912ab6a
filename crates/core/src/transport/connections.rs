//! Connection management of a transport, as the generic part calls it.

use crate::error::{Error, Result};
use crate::qp::{Path, QueuePair, Service};
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Port spaces (`enum rdma_port_space`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PortSpace {
    /// Datagrams with the Q_Key of IP over InfiniBand.
    Ipoib = 0x0002,
    /// Reliable connections.
    #[default]
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any service, by InfiniBand service ID.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space of a number of the C interface.
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0x0002 => Self::Ipoib,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }

    /// The port space's name in the kernel's words.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ipoib => "IPoIB",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        }
    }

    /// The service of queue pairs that rdma_create_id(3) assumes for it.
    pub fn service(self) -> Service {
        match self {
            Self::Tcp | Self::Ib => Service::Rc,
            Self::Udp | Self::Ipoib => Service::Ud,
        }
    }
}

/// The terms of both sides of a connection, as far as the attributes of our queue pair follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Service of the queue pairs.
    pub service: Service,
    /// The way to the peer.
    pub path: Path,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// The peer's queue pair number.
    pub destination: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// First PSN to send.
    pub sq_psn: u32,
    /// Reads and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// Reads and atomics that we may have outstanding there.
    pub initiator_depth: u8,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries when the peer is not ready.
    pub rnr_retry_count: u8,
}

/// The terms of a connection (struct rdma_conn_param).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// Inbound reads and atomics that this side takes at once (IRD); in an event: those that the peer can
    /// use.
    pub responder_resources: u8,
    /// Outbound reads and atomics that this side starts at once (ORD).
    pub initiator_depth: u8,
    /// Whether the hardware flow control is on.
    pub flow_control: bool,
    /// Retries (IB).
    pub retry_count: u8,
    /// RNR retries (IB).
    pub rnr_retry_count: u8,
    /// Whether the queue pair is on a shared receive queue.
    pub srq: bool,
    /// The peer's, or for a user-managed queue pair the own, queue pair number.
    pub qp_number: u32,
    /// The Q_Key of that queue pair (datagrams only).
    pub qkey: u32,
}

/// An event of a connection.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
    /// The peer agreed, and waits until the program, which manages the queue pair itself, has made it ready
    /// and calls [`OutgoingConnection::establish`] (InfiniBand only).
    Response {
        /// The peer's.
        parameters: ConnectionParameters,
        /// The peer's.
        private_data: Vec<u8>,
    },
    /// The connection stands. For the initiator with the peer's parameters and private data; the queue pair
    /// is in RTS. For datagrams: the peer has said which queue pair serves.
    Established {
        /// The peer's.
        parameters: ConnectionParameters,
        /// The peer's.
        private_data: Vec<u8>,
    },
    /// The peer refused it, or no process listens.
    Rejected {
        /// No process listens.
        nobody_listens: bool,
        /// A reason: an errno, negative as in struct rdma_cm_event, or a transport's reject code.
        status: i32,
        /// The peer's.
        private_data: Vec<u8>,
    },
    /// The peer cannot be reached or did not answer in time.
    Unreachable {
        /// A negative errno.
        status: i32,
    },
    /// Setting up failed for another reason.
    Failed {
        /// A negative errno.
        status: i32,
    },
    /// An established connection has ended, by either side and for any reason. The queue pair is in error.
    /// The last event, but for [`ConnectionEvent::TimewaitExit`].
    Disconnected,
    /// Late packets of the ended connection can no longer arrive (InfiniBand only).
    TimewaitExit,
}

impl ConnectionEvent {
    /// Why there is no connection, or none any more, for a person.
    pub fn failure(&self) -> String {
        match self {
            Self::Rejected { status, .. } if *status > 0 => format!("refused with reason {status}"),
            Self::Rejected { status, .. } | Self::Unreachable { status } | Self::Failed { status } => {
                std::io::Error::from_raw_os_error(-status).to_string()
            }
            Self::Disconnected | Self::TimewaitExit => "it has ended".to_owned(),
            Self::Response { .. } | Self::Established { .. } => "it stands".to_owned(),
        }
    }
}

/// Takes the events of a connection. Called from the background thread or from within a call of the
/// transport, with no lock of the transport held.
pub trait ConnectionSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: ConnectionEvent);
}

/// Takes connection requests; called as [`ConnectionSink`] is.
pub trait ListenSink: Send + Sync {
    /// A peer asks for a connection. Dropping it without an answer refuses it.
    fn request(&self, request: Box<dyn IncomingConnection>);
}

/// A local address and port held for a listener or a connection (rdma_bind_addr(3)). Dropping it lets it go.
pub trait Reservation: Send + Sync {
    /// The address, with the port that was chosen.
    fn local(&self) -> SocketAddr;

    /// Itself, for the transport that has made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;

    /// Listens on it (rdma_listen(3)); at most `backlog` requests wait unanswered.
    fn listen(self: Box<Self>, backlog: u32, sink: Arc<dyn ListenSink>) -> Result<Box<dyn Listener>>;
}

/// Listens until dropped; then no further request comes.
pub trait Listener: Send + Sync {
    /// The address, with the port.
    fn local(&self) -> SocketAddr;
}

/// A request of a peer that waits for an answer.
pub trait IncomingConnection: Send + Sync {
    /// Our address.
    fn local(&self) -> SocketAddr;
    /// The peer's.
    fn peer(&self) -> SocketAddr;
    // IB-CM-58
    /// The peer's parameters: its ORD as our `responder_resources`, its IRD as our `initiator_depth`.
    fn parameters(&self) -> ConnectionParameters;
    /// The peer's private data.
    fn private_data(&self) -> &[u8];
    /// The service that the peer asks for.
    fn service(&self) -> Service {
        Service::Rc
    }
    /// The terms from which the attributes of our queue pair follow, on a transport where a program can set
    /// them itself (InfiniBand).
    fn agreement(&self) -> Option<Agreement> {
        None
    }
    /// Accepts it onto a queue pair in INIT (rdma_accept(3)); events follow on `sink`.
    fn accept(
        self: Box<Self>,
        queue_pair: &Arc<QueuePair>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>>;
    /// Accepts it for the queue pair with the number in `parameters`, which the program manages itself; or
    /// names the queue pair that serves datagrams, and then no event follows.
    fn accept_unmanaged(
        self: Box<Self>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let _ = (parameters, private_data, sink);
        Err(unmanaged())
    }
    /// Refuses it (rdma_reject(3)).
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}

/// Our handle on a connection that we started or accepted. Dropping it gives it up.
pub trait OutgoingConnection: Send + Sync {
    /// Our address.
    fn local(&self) -> Option<SocketAddr>;
    /// Ends it in order (rdma_disconnect(3)): requests that were posted before still go out, then the queue
    /// pair goes to error. [`ConnectionEvent::Disconnected`] follows, or if it does not stand yet,
    /// [`ConnectionEvent::Failed`]. Again: no effect.
    fn disconnect(&self) -> Result<()>;
    /// The terms from which the attributes of the queue pair follow, once the peer has answered (InfiniBand).
    fn agreement(&self) -> Option<Agreement> {
        None
    }
    /// Tells the peer that the queue pair is ready, after [`ConnectionEvent::Response`] (rdma_establish(3)).
    ///
    /// # Errors
    /// EINVAL if there was no response, or it is too late.
    fn establish(&self) -> Result<()> {
        Err(Error::invalid("the connection does not wait to be established: there was no connect response"))
    }
    /// The peer's first message has come (rdma_notify(3)): the connection stands, though the peer's own word
    /// to that effect may be lost.
    // IB-CM-63
    fn notify(&self) -> Result<()> {
        Ok(())
    }
}

fn unmanaged() -> Error {
    Error::invalid("the transport connects queue pairs of its own alone: there must be one on the identifier")
}

/// A connection to be made.
pub struct ConnectRequest<'a> {
    /// The local address, if one was bound.
    pub source: Option<Box<dyn Reservation>>,
    /// The peer.
    pub destination: SocketAddr,
    /// Options of the address.
    pub options: AddressOptions,
    /// Our parameters.
    pub parameters: ConnectionParameters,
    /// For the peer.
    pub private_data: &'a [u8],
}

/// A transport's connection management.
pub trait ConnectionBackend: Send + Sync {
    /// Longest private data of a request, an answer and a refusal.
    fn private_data_limits(&self) -> PrivateDataLimits;

    /// Holds a local address; port 0 chooses one.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES as bind(2); EADDRNOTAVAIL also where the port of one address is held
    /// for all.
    fn reserve(&self, local: SocketAddr, options: AddressOptions) -> Result<Box<dyn Reservation>>;

    /// Connects a queue pair in INIT (rdma_connect(3)); events follow on `sink`. Returns at once. The queue
    /// pair is in error when the connection has ended.
    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>>;

    /// Connects the queue pair with the number in the request's parameters, which the program manages itself
    /// ([`ConnectionEvent::Response`]); or, for datagrams, asks which queue pair serves at the peer's port.
    fn connect_unmanaged(
        &self,
        service: Service,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let _ = (service, request, sink);
        Err(unmanaged())
    }

    /// Longest private data where datagrams are looked up by port (rdma_connect(3) on RDMA_PS_UDP). None: the
    /// transport has no datagrams.
    fn datagram_limits(&self) -> Option<PrivateDataLimits> {
        None
    }

    /// The path MTU in bytes of packets that leave from `local`, on a transport whose queue pairs have one
    /// (InfiniBand).
    fn path_mtu(&self, local: IpAddr) -> Option<u32> {
        let _ = local;
        None
    }
}

/// The longest private data that a connection of a device can carry, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataLimits {
    /// The most bytes of a request.
    pub request: usize,
    /// The most bytes of an answer.
    pub accept: usize,
    /// The most bytes of a refusal.
    pub reject: usize,
}

impl PrivateDataLimits {
    /// EINVAL if `data` is longer than `limit`.
    ///
    /// ```
    /// # use adverb_core::cm::PrivateDataLimits;
    /// # let limits = PrivateDataLimits { request: 56, accept: 196, reject: 148 };
    /// // An answer may have more than a request.
    /// let greeting = [7; 100];
    /// assert!(PrivateDataLimits::check(&greeting, limits.request).is_err());
    /// assert!(PrivateDataLimits::check(&greeting, limits.accept).is_ok());
    /// ```
    pub fn check(data: &[u8], limit: usize) -> Result<()> {
        if data.len() <= limit {
            return Ok(());
        }
        Err(Error::invalid(format!("{} bytes of private data: {limit} are allowed", data.len())))
    }
}

/// Options of an address (rdma_set_option(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressOptions {
    /// Where the port counts.
    pub port_space: PortSpace,
    /// RDMA_OPTION_ID_TOS.
    pub type_of_service: Option<u8>,
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse_address: bool,
    /// RDMA_OPTION_ID_AFONLY.
    pub v6_only: Option<bool>,
    /// RDMA_OPTION_ID_ACK_TIMEOUT: the local ACK timeout code.
    pub ack_timeout: Option<u8>,
    /// The largest path MTU in bytes (Rust API; InfiniBand).
    pub path_mtu: Option<u32>,
}
