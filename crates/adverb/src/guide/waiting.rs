//! Polls, sleeps, event loops and async programs.
//!
//! | way | call | its cost |
//! |---|---|---|
//! | poll | [`CompletionQueue::poll`](crate::CompletionQueue::poll), [`poll_many`](crate::CompletionQueue::poll_many) | a processor, while the thread polls; the least latency |
//! | sleep | [`CompletionQueue::wait`](crate::CompletionQueue::wait), [`wait_many`](crate::CompletionQueue::wait_many) | the kernel wakes the thread, which takes several microseconds |
//! | event loop | [`CompletionQueue::arm`](crate::CompletionQueue::arm), and a descriptor | as a sleep; one thread for many objects |
//! | async | [`asynchronous`](crate::asynchronous) | as an event loop, which the runtime has |
//!
//! The engine's background thread takes in what arrives while the program does something else. So a program
//! that does not poll loses nothing, and its peers write to its regions meanwhile.
//!
//! # Poll for a while, then sleep
//!
//! Most completions of a busy connection come soon. A thread that polls for some microseconds before it
//! sleeps has the low latency of polls while there is work, and costs nothing while there is none:
//!
//! ```
//! use adverb::{Completion, CompletionQueue};
//! use std::time::{Duration, Instant};
//!
//! fn next(completions: &CompletionQueue, spin: Duration, timeout: Duration) -> adverb::Result<Completion> {
//!     let start = Instant::now();
//!     while start.elapsed() < spin {
//!         if let Some(completion) = completions.poll()? {
//!             return Ok(completion);
//!         }
//!         std::hint::spin_loop();
//!     }
//!     completions.wait(timeout)
//! }
//!
//! # fn main() -> adverb::Result<()> {
//! let completions = adverb::Context::open_default()?.completion_queue(16)?;
//! // Nothing was posted, so nothing completes.
//! let result = next(&completions, Duration::from_micros(20), Duration::from_millis(1));
//! assert!(result.is_err_and(|error| error.is_timeout()));
//! # Ok(())
//! # }
//! ```
//!
//! After a time-out, the requests are still in flight. Another wait may bring them.
//!
//! # Which request has ended
//!
//! | a program with | tells completions apart by |
//! |---|---|
//! | Sends and receives on one queue | [`Completion::operation`](crate::Completion::operation), or a queue for each ([`QueuePairOptions`](crate::QueuePairOptions::new)) |
//! | many connections | [`Completion::queue_pair`](crate::Completion::queue_pair) |
//! | a few kinds of requests | a number for each kind: [`WorkRequest::id`](crate::WorkRequest::id) |
//! | a state for each request | [`RequestIds`](crate::RequestIds), a table that has a number for each value |
//!
//! # Event loops
//!
//! Each of these descriptors becomes readable. Only poll(2), epoll(7) and their like may use them:
//!
//! | descriptor | readable | then call |
//! |---|---|---|
//! | [`CompletionQueue`](crate::CompletionQueue), by `AsFd` | after a completion, once the queue was armed | [`arm`](crate::CompletionQueue::arm), then [`poll`](crate::CompletionQueue::poll) until it finds none |
//! | [`Listener`](crate::Listener), by `AsFd` | while a request for a connection waits | [`try_accept`](crate::Listener::try_accept) |
//! | [`Connection::end_descriptor`](crate::Connection::end_descriptor) | once the connection has ended | [`ended`](crate::Connection::ended) |
//! | [`Context::event_descriptor`](crate::Context::event_descriptor) | while an event waits | [`next_event`](crate::Context::next_event) |
//!
//! Arm the queue first, and poll afterwards. A completion that came before the arming raises no event, and
//! the poll finds it. The other way round, the loop would sleep through a completion between the two.
//!
//! ```
//! use adverb::{Completion, CompletionQueue, Connection, WorkRequest};
//! use std::os::fd::AsRawFd;
//!
//! /// Sleeps in poll(2), where a real loop has other descriptors, too.
//! fn sleep_until_readable(completions: &CompletionQueue) {
//!     let mut entry = libc::pollfd { fd: completions.as_raw_fd(), events: libc::POLLIN, revents: 0 };
//!     // SAFETY: poll(2) gets one live entry.
//!     unsafe { libc::poll(&mut entry, 1, 10_000) };
//! }
//!
//! fn next(completions: &CompletionQueue) -> adverb::Result<Completion> {
//!     loop {
//!         completions.arm()?;
//!         if let Some(completion) = completions.poll()? {
//!             return Ok(completion);
//!         }
//!         sleep_until_readable(completions);
//!     }
//! }
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # server.post_receive(0, domain.buffer(64)?)?;
//! # let (client, server) = connected(client, server, b"")?;
//! client.post_send(WorkRequest::send(b"wake up"))?;
//! let message = next(server.receive_queue())?.success()?;
//! assert_eq!(message.message(), b"wake up");
//! # Ok(())
//! # }
//! ```
//!
//! [`CompletionQueue::arm_solicited`](crate::CompletionQueue::arm_solicited) wakes the loop for failed
//! requests, and for messages whose sender has asked for it
//! ([`WorkRequest::solicited`](crate::WorkRequest::solicited)).
//!
//! # Async programs
//!
//! [`AsyncEndpoint`](crate::asynchronous::AsyncEndpoint) has an example of a server and a client on tokio. A
//! future may be dropped at any time: the page of [`asynchronous`](crate::asynchronous) says what happens to
//! its request.
