//! Connections for async programs, on any runtime.
//!
//! An [`AsyncEndpoint`] makes [`AsyncConnection`]s, an [`AsyncDatagramQueuePair`], or an
//! [`AsyncSharedReceiveQueue`] for several connections. Their functions are futures:
//! `connection.send(b"hello").await`. A future takes what has completed when it is polled. Otherwise its task
//! sleeps until the descriptor of the connection's completion queue is readable. There is no thread for an
//! operation or a connection, and one task for each connection, queue pair of datagrams and shared receive
//! queue.
//!
//! The runtime is that of tokio (`Tokio`, with the feature `tokio`), that of smol (`Smol`, with the feature
//! `smol`), or any other that implements [`Runtime`].
//!
//! # Futures that are dropped
//!
//! A future may be dropped at any time, as `select!` and a time-out do:
//!
//! | future | what its drop does |
//! |---|---|
//! | a request that waits for a place in the send queue | the request is never posted |
//! | a request that was posted | it is carried out, and its buffer is kept for [`AsyncConnection::buffer`] |
//! | [`AsyncConnection::receive`], [`AsyncSharedReceiveQueue::receive`] | nothing: the message is for the next call |
//! | [`AsyncDatagramQueuePair::receive`] | nothing: the datagram is for the next call |
//! | [`AsyncConnection::bind`] | the window is closed, or open by a token that nobody has: drop it |
//! | [`AsyncListener::accept`] | nothing: the request is for the next call |
//! | [`AsyncEndpoint::connect`], [`AsyncConnectionRequest::accept`] | the connection is given up |
//!
//! # Back-pressure
//!
//! A request waits for its turn while [`max_sends`](AsyncOptions::max_sends) requests are in flight. A
//! message waits at the peer while all [`receives`](AsyncOptions::receives) hold messages that the program
//! has not dropped: on `iwarp0` for two seconds, then the connection ends ([flow
//! control](crate::guide::flow_control)).
//!
//! # Latency
//!
//! A task that sleeps is woken by the kernel, which takes several microseconds. A message for the only async
//! connection of a process wakes its task directly, and not first a thread of the engine.
//! [`AsyncOptions::spin`] lets a future look for its completion for a while before its task sleeps. No other
//! task of this thread runs meanwhile.

mod connection;
mod datagram;
mod driver;
mod endpoint;
mod message;
mod queues;
mod runtime;
mod shared;
// Without an adapter a stream has no trait by which a program reads or writes it.
#[cfg_attr(
    not(any(feature = "tokio", feature = "smol")),
    expect(dead_code, reason = "only the traits need it")
)]
mod stream;
mod watcher;

pub use connection::AsyncConnection;
pub use datagram::{AsyncDatagramQueuePair, Datagram};
pub use endpoint::{AsyncConnectionRequest, AsyncEndpoint, AsyncListener, AsyncOptions};
pub use message::Message;
#[cfg(feature = "smol")]
pub use runtime::Smol;
#[cfg(feature = "tokio")]
pub use runtime::Tokio;
pub use runtime::{Runtime, Task, Watch};
pub use shared::AsyncSharedReceiveQueue;
pub use stream::ByteStream;

use crate::Error;

/// The runtime could not wait for something.
fn failed_wait(what: &str, error: &std::io::Error) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("waiting for {what}: {error}"))
}
