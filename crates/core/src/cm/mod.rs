//! Connection management: the generic part, with the semantics of rdma_cm(7).

mod backend;

pub use backend::{
    AddressOptions, ConnectRequest, ConnectionBackend, ConnectionEvent, ConnectionParameters, ConnectionSink,
    IncomingConnection, ListenSink, Listener, OutgoingConnection, PrivateDataLimits, Reservation,
};
