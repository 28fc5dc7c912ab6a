//! RDMA from Rust.

mod completion_queue;
mod connection;
mod device;
mod flight;
mod memory;
mod queue_pair;
mod request;

pub use adverb_core::attributes::{DeviceAttributes, PortAttributes, TransportType};
pub use adverb_core::error::{Error, PostError};
pub use adverb_core::request::{CompletionOpcode, Opcode, Status};
pub use completion_queue::CompletionQueue;
pub use connection::{ConnectError, Connection, ConnectionRequest, Listener};
pub use device::{Context, Device};
pub use memory::{Buffer, MemoryRegion, ProtectionDomain, RemoteMemory, Rights, Segment};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use request::{Completion, Payload, Rejected, WorkRequest};

/// The result of a call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
