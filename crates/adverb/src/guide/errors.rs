//! Refused calls, failed requests, and their remedies.
//!
//! An operation can fail at three places:
//!
//! | place | type | what has happened |
//! |---|---|---|
//! | a call | [`Error`] | nothing: its text names the object, the limit, and the remedy where there is one |
//! | a post | [`Rejected`], with a [`PostError`] | nothing: the buffer is in [`Rejected::buffer`] |
//! | a completion | [`RequestError`], with [`Status`] and [`Cause`] | the connection ends, and later requests are flushed |
//!
//! All of them become an [`Error`] by `?`, and an [`Error`] becomes an [`std::io::Error`]. [`ConnectError`]
//! says why there is no connection.
//!
//! Every enum of errors is `#[non_exhaustive]`, so a `match` ends with `other =>`.
//!
//! # A failed request
//!
//! [`Completion::success`] makes an error of a failed request. [`Completion::error`] leaves the completion,
//! with its buffers, as it is. `Status` is the verbs' own status. `Cause` says more: whether this side or the
//! peer is at fault, and why.
//!
//! ```
//! use adverb::{Cause, End, RemoteMemory, Rights, Status, WorkRequest};
//! use std::time::Duration;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! // The peer lets nobody read this region.
//! let region = domain.memory_region(4096, Rights::WRITE)?;
//! # let (client, server) = connected(client, server, &region.remote().to_bytes())?;
//! let there = RemoteMemory::from_bytes(client.private_data()).expect("a token");
//! client.post_send(WorkRequest::read(domain.buffer(16)?, &there).id(7))?;
//! let completion = client.send_queue().wait(SOON)?;
//! let error = completion.error().expect("the peer refuses");
//! assert_eq!((error.id, error.status, error.cause), (7, Status::RemoteAccess, Cause::PeerAccess));
//! // The buffer is here all the same, and the connection has ended.
//! assert!(completion.buffer.is_some());
//! assert_eq!(client.wait_ended(SOON), Some(End::Failed(Status::RemoteAccess)));
//! # Ok(())
//! # }
//! ```
//!
//! On `iwarp0`, a refused Send or Write may complete well, since TCP has taken it. Then the connection ends,
//! and later requests are flushed.
//!
//! # A refused post
//!
//! ```
//! use adverb::{PostError, RemoteMemory, Rights, WorkRequest};
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # let region = domain.memory_region(16, Rights::WRITE)?;
//! # let (client, server) = connected(client, server, &region.remote().to_bytes())?;
//! // The token is of 16 bytes.
//! let there = RemoteMemory::from_bytes(client.private_data()).expect("a token");
//! let rejected = client.post_send(WorkRequest::write(domain.buffer(17)?, &there)).unwrap_err();
//! assert_eq!(rejected.reason, PostError::PastToken);
//! let buffer = rejected.buffer.expect("the buffer comes back");
//! client.post_send(WorkRequest::write(buffer.slice(..16), &there))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Time-outs
//!
//! [`Error::is_timeout`] tells a wait that is over from a failure. The object is as it was, and the request
//! is still in flight.
//!
//! `ADVERB_LOG=warn` writes a line for each failed request, with addresses and bounds.
//! [`testing`](super::testing) has more.

// The links of this chapter.
use crate::*;
