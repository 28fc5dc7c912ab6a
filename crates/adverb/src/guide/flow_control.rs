//! Receives, messages that find none, and queues that are full.
//!
//! # A message needs a receive
//!
//! Each Send takes the oldest receive that the peer has posted, also a Write with a number
//! ([`WorkRequest::immediate`](crate::WorkRequest::immediate)). Other Writes, Reads and atomics take none.
//! The receive must be as long as the message: a longer message breaks the connection.
//!
//! A message that finds no receive waits, and how long depends on the device:
//!
//! | device | a Send without a receive |
//! |---|---|
//! | `roce0` | The sender repeats it, as often as the receiver has said by [`ConnectionOptions::no_receive_retries`](crate::ConnectionOptions::no_receive_retries): by default without a limit. |
//! | `iwarp0` | It may complete at once at the sender. After two seconds without a receive, the connection ends. |
//!
//! So a program keeps receives posted, and agrees with its peer on how many messages may be under way.
//!
//! # Credits
//!
//! The usual agreement: the receiver posts N receives, and the sender sends at most N messages before it
//! hears from the receiver. Here, each answer is such a credit. The server posts its receive again *before*
//! it answers, so the next message always finds one.
//!
//! ```
//! use adverb::{Connection, WorkRequest};
//! use std::time::Duration;
//!
//! const SOON: Duration = Duration::from_secs(10);
//!
//! fn serve(connection: &Connection) -> adverb::Result<()> {
//!     loop {
//!         let Some(request) = connection.receive_queue().wait(SOON)?.unless_flushed()? else { return Ok(()) };
//!         let number = request.message()[0];
//!         connection.post_receive(0, request.into_buffer())?;
//!         connection.post_send(WorkRequest::send(&[number + 1]))?;
//!         connection.send_queue().wait(SOON)?.success()?;
//!     }
//! }
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! server.post_receive(0, domain.buffer(8)?)?;
//! # client.post_receive(0, domain.buffer(8)?)?;
//! # let (client, server) = connected(client, server, b"")?;
//! # let server = std::thread::spawn(move || serve(&server));
//! for number in 1..=5 {
//!     client.post_send(WorkRequest::send(&[number]))?;
//!     client.send_queue().wait(SOON)?.success()?;
//!     let answer = client.receive_queue().wait(SOON)?.success()?;
//!     assert_eq!(answer.message(), [number + 1]);
//!     client.post_receive(0, answer.into_buffer())?;
//! }
//! drop(client);
//! # server.join().unwrap()
//! # }
//! ```
//!
//! [`SharedReceiveQueue`](crate::SharedReceiveQueue) lets many connections take receives from one queue.
//! [`ByteStream`](crate::asynchronous::ByteStream) has credits of its own.
//! [`AsyncConnection`](crate::asynchronous::AsyncConnection) posts its receives itself.
//!
//! # Full queues
//!
//! A queue pair has room for [`max_sends`](crate::QueuePairOptions::max_sends) sends and
//! [`max_receives`](crate::QueuePairOptions::max_receives) receives. The completion queue has room for its
//! capacity: requests in flight and completions that nobody has taken count together. A post beyond either is
//! refused with [`PostError::QueueFull`](crate::PostError::QueueFull). Nothing has happened then, and
//! [`Rejected`](crate::Rejected) has the buffer. Take completions, and post again:
//!
//! ```
//! use adverb::{PostError, QueuePairOptions};
//!
//! # fn main() -> adverb::Result<()> {
//! let context = adverb::Context::open_default()?;
//! let domain = context.protection_domain()?;
//! let completions = context.completion_queue(4)?;
//! let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
//! let mut posted = 0;
//! let rejected = loop {
//!     match queue_pair.post_receive(0, domain.buffer(64)?) {
//!         Ok(()) => posted += 1,
//!         Err(rejected) => break rejected,
//!     }
//! };
//! assert_eq!((posted, rejected.reason), (completions.capacity(), PostError::QueueFull));
//! assert_eq!(rejected.buffer.map(|buffer| buffer.len()), Some(64));
//! # Ok(())
//! # }
//! ```
