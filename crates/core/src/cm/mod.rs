//! Connection management: the generic part, with the semantics of rdma_cm(7).
//!
//! An [`Identifier`] is a `struct rdma_cm_id`: it is bound to an address, resolves a peer, connects or
//! listens, and reports events on an [`EventChannel`]. The differences between transports stand behind
//! [`ConnectionBackend`].
//!
//! Locks: an identifier's own lock is held while an event is put into its channel, never while a transport is
//! called that may call back. So a transport may deliver events from its own thread or from within any call.

mod address;
mod connect;
mod crowd;
mod ending;
mod event;
mod failed;
mod identifier;
#[cfg(test)]
mod infiniband_tests;
mod lookup;
mod multicast;
mod options;
mod path;
mod queue_pair;
mod route;
#[cfg(test)]
mod tests;

pub use crate::transport::connections::{
    AddressOptions, Agreement, ConnectRequest, ConnectionBackend, ConnectionEvent, ConnectionParameters,
    ConnectionSink, IncomingConnection, ListenSink, Listener, OutgoingConnection, PortSpace,
    PrivateDataLimits, Reservation,
};
pub use connect::{MAX_BACKLOG, MAXIMUM, Parameters};
pub use crowd::{first_to_go, oldest_of_the_busiest, subnet};
pub use event::{Event, EventChannel, EventKind};
pub use identifier::{Identifier, IdentifierState};
pub use lookup::{AddressFlags, AddressHints, AddressInfo, LookupError, lookup};
pub use multicast::MULTICAST_QUEUE_PAIR;
pub use path::{DEFAULT_PKEY, DatagramPeer, PACKET_LIFE_TIME, PathRecord, multicast_gid, path_to};
pub use queue_pair::UDP_QKEY;
pub use route::source_for;
