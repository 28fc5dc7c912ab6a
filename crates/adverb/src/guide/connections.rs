//! The life of a connection, its end, and flushed requests.
//!
//! # From a queue pair to a connection
//!
//! | step | the side that asks | the side that listens |
//! |---|---|---|
//! | 1 | [`ProtectionDomain::queue_pair`] | [`Listener::bind`] |
//! | 2 | [`QueuePair::post_receive`] | [`Listener::accept`], [`ProtectionDomain::queue_pair`], [`QueuePair::post_receive`] |
//! | 3 | [`QueuePair::connect`] | [`ConnectionRequest::accept`], or [`ConnectionRequest::reject`] |
//! | 4 | [`Connection::post_send`] | [`Connection::post_send`] |
//!
//! A new queue pair takes receives, but no sends. Post the receives of the first messages before step 3: the
//! peer may send as soon as the connection stands. The request for a connection and its answer carry private
//! data, such as the token of a region.
//!
//! A failed attempt consumes the queue pair of `connect`. [`QueuePair::connect_with`] gives it back in
//! [`NotConnected`]. Then [`QueuePair::reset`] makes the queue pair new, and returns the buffers of its
//! receives.
//!
//! # The end
//!
//! A connection ends when either side drops its [`Connection`] or calls [`Connection::disconnect`], when a
//! process ends, or when a request fails. [`Connection::ended`] says how, [`Connection::wait_ended`] waits
//! for it, and an event loop watches [`Connection::end_descriptor`].
//!
//! # Flushed requests
//!
//! Every posted request comes back once. At the end of the connection, those that were not carried out come
//! back with the status [`Flushed`](crate::Status::Flushed): posted receives, and sends behind a failed one.
//! A flushed request is no error of its own. The first failed completion of the queue pair, or
//! [`Connection::ended`], has the reason. [`Completion::unless_flushed`] returns `None` for a flushed
//! request.
//!
//! ```
//! use adverb::{Connection, End, Status, WorkRequest};
//! use std::time::Duration;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! server.post_receive(1, domain.buffer(64)?)?;
//! server.post_receive(2, domain.buffer(64)?)?;
//! # let (client, server) = connected(client, server, b"")?;
//! client.post_send(WorkRequest::send(b"the only message"))?;
//! client.send_queue().wait(SOON)?.success()?;
//! let message = server.receive_queue().wait(SOON)?.success()?;
//! assert_eq!((message.id, message.message()), (1, &b"the only message"[..]));
//!
//! client.disconnect()?;
//! assert_eq!(server.wait_ended(SOON), Some(End::Peer));
//! let left = server.receive_queue().wait(SOON)?;
//! assert_eq!((left.id, left.status), (2, Status::Flushed));
//! // The memory of a flushed receive comes back, too.
//! assert_eq!(left.buffer.as_ref().map(|buffer| buffer.len()), Some(64));
//! assert!(left.unless_flushed()?.is_none());
//! # Ok(())
//! # }
//! ```
//!
//! [`QueuePair::in_flight`] says how many requests have not come back. To drain a connection, end it and take
//! completions until there are none. A program that drops the connection instead needs no drain: the drop
//! frees the memory of all its requests.
//!
//! # Another life
//!
//! [`Connection::into_queue_pair`] ends a connection and keeps the queue pair. [`QueuePair::reset`] makes it
//! ready for another `connect`.

// The links of this chapter.
use crate::*;
