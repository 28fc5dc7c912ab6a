//! What the generic part of connection management asks of a transport.

use crate::error::{Error, Result};
use crate::qp::QueuePair;
use std::net::SocketAddr;
use std::sync::Arc;

/// What both sides of a connection agree on (struct rdma_conn_param).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// Inbound reads and atomics that this side takes at once (IRD); in an event: what the peer can use.
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
}

/// What happened on a connection.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
    /// It stands. For the initiator with the peer's parameters and private data; the queue pair is in RTS.
    Established {
        /// The peer's.
        parameters: ConnectionParameters,
        /// The peer's.
        private_data: Vec<u8>,
    },
    /// The peer refused it, or (with ECONNREFUSED and no private data) nobody listens.
    Rejected {
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
    /// An established connection has ended, whoever ended it and however. The queue pair is in error. The last event, but for
    /// [`ConnectionEvent::TimewaitExit`].
    Disconnected,
    /// Late packets of the ended connection can no longer arrive (InfiniBand only).
    TimewaitExit,
}

/// Takes the events of a connection. Called from the background thread or from within a call of the transport, with no lock of the transport held.
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
    /// The peer's parameters: its ORD as our `responder_resources`, its IRD as our `initiator_depth`.
    fn parameters(&self) -> ConnectionParameters;
    /// The peer's private data.
    fn private_data(&self) -> &[u8];
    /// Accepts it onto a queue pair in INIT (rdma_accept(3)); events follow on `sink`.
    fn accept(
        self: Box<Self>,
        queue_pair: &Arc<QueuePair>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>>;
    /// Refuses it (rdma_reject(3)).
    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()>;
}

/// Our handle on a connection that we started or accepted. Dropping it gives it up.
pub trait OutgoingConnection: Send + Sync {
    /// Our address.
    fn local(&self) -> Option<SocketAddr>;
    /// Ends it in order (rdma_disconnect(3)): what was posted before still goes out, the queue pair goes to error, and
    /// [`ConnectionEvent::Disconnected`] follows, or if it does not stand yet, [`ConnectionEvent::Failed`]. Again: no effect.
    fn disconnect(&self) -> Result<()>;
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
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES as bind(2).
    fn reserve(&self, local: SocketAddr, options: AddressOptions) -> Result<Box<dyn Reservation>>;

    /// Connects a queue pair in INIT (rdma_connect(3)); events follow on `sink`. Returns at once.
    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>>;

    /// Name resolution for datagrams (rdma_connect(3) on RDMA_PS_UDP), where the transport has it.
    fn supports_datagrams(&self) -> bool {
        false
    }
}

/// See [`ConnectionBackend::private_data_limits`]. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataLimits {
    /// Of a request.
    pub request: usize,
    /// Of an answer.
    pub accept: usize,
    /// Of a refusal.
    pub reject: usize,
}

impl PrivateDataLimits {
    /// EINVAL if `data` is longer than `limit`.
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
    /// RDMA_OPTION_ID_TOS.
    pub type_of_service: Option<u8>,
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse_address: bool,
    /// RDMA_OPTION_ID_AFONLY.
    pub v6_only: Option<bool>,
}
