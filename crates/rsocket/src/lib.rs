//! rsockets (rsocket(7)): sockets over queue pairs, with the calls that sockets have.
//!
//! A socket is known by the number of a descriptor that it holds, as the C interface wants it. [`Socket`] is
//! what the number stands for: [`find`] leads to it, and [`poll`] waits for any number of them and of
//! ordinary descriptors together.
//!
//! The protocol is [`adverb_proto::rsocket`]; here are its sockets, on the access layer's queue pairs and
//! connection manager. A thread that waits sleeps on the descriptors of the sockets that it waits for; the
//! background thread takes new connections in.

mod configuration;
mod datagram;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod options;
mod poll;
mod process;
mod stream;
mod vector;
mod wait;

pub use datagram::Datagram;
pub use options::{PATH_LENGTH, SOL_RDMA};
pub use poll::poll;
pub use process::{Socket, close, find, socket};
pub use stream::Stream;
pub use vector::Vector;
