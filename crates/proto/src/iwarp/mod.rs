//! iWARP: RDMAP (RFC 5040) over DDP (RFC 5041) over MPA (RFC 5044) on TCP, with enhanced connection
//! establishment (RFC 6581), immediate data and atomics (RFC 7306).
//!
//! A connection lives in three phases:
//!
//! 1. **Start-up.** [`mpa::Initiator`] or [`mpa::Responder`] exchange one frame each and yield
//!    [`mpa::Parameters`].
//! 2. **Full operation.** [`Sender`] cuts messages into FPDUs; [`Receiver`] takes the byte stream apart into
//!    [`Segment`]s and checks their order. They share nothing, so each may live under its own lock.
//!    [`OutstandingReads`] and [`InboundReads`] keep the two ends of RDMA Reads and atomic operations.
//! 3. **Teardown.** Gracefully, a direction at a time, by [`Sender::finish`] and [`Receiver::end_of_stream`];
//!    or by a [`Terminate`] message, sent for a [`Fault`] that this crate or its user has found.
//!
//! A responder must not send before [`Receiver::has_received`] is true (RFC 5044 section 7.1.2, rule 4).

mod display;
mod fault;
mod framing;
mod message;
pub mod mpa;
mod reads;
mod receiver;
mod sender;

pub use fault::{Fault, StreamError, Terminate};
pub use framing::Checksum;
pub use message::{Arrival, AtomicOperation, AtomicRequest, AtomicResponse, Outbound, ReadRequest, Segment};
pub use reads::{InboundReads, InboundRequest, OutstandingReads, ReadPlacement};
pub use receiver::{Receiver, Step};
pub use sender::{BeginError, Fpdu, Sender, ZERO_TRAILER};
