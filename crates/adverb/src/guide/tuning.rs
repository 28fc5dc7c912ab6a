//! The settings that make a program faster.
//!
//! Measure first: `adverb bench` measures this machine, and [`Device::counters`](crate::Device::counters)
//! says what the device has done. Then, in the order of their effect:
//!
//! | measure | when |
//! |---|---|
//! | Build with `--release`. | always |
//! | Keep many requests in flight. | throughput: one request at a time waits for each answer |
//! | Poll instead of a sleep ([`waiting`](super::waiting)). | latency, if a processor is free |
//! | Use memory of this crate: [`buffer`](crate::ProtectionDomain::buffer), [`memory_region`](crate::ProtectionDomain::memory_region). | peers on the same host: they map it as it is |
//! | Register once, and use buffers again. | always: each call that makes a buffer maps and registers whole pages |
//! | Send short messages inline, from a slice. | messages of up to [`inline_bytes`](crate::QueuePairOptions::inline_bytes) |
//! | Let most requests report nothing: [`unsignalled`](crate::WorkRequest::unsignalled). | many short Writes |
//! | Take completions in groups: [`poll_many`](crate::CompletionQueue::poll_many). | many short requests |
//! | Gather: one message of several segments ([`max_gather`](crate::QueuePairOptions::max_gather)). | a header and a body that lie apart |
//! | Let peers write into a region, in place of messages. | the receiver needs no receive and no completion |
//!
//! # Many requests in flight
//!
//! This program keeps a window of Writes in flight. One in 16 reports its end, and brings the buffers of the
//! others back:
//!
//! ```
//! use adverb::{Buffer, RemoteMemory, Rights, WorkRequest};
//! use std::time::Duration;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # let region = domain.memory_region(4096, Rights::WRITE)?;
//! # let (connection, server) = connected(client, server, &region.remote().to_bytes())?;
//! # let there = RemoteMemory::from_bytes(connection.private_data()).expect("a token");
//! let mut free: Vec<Buffer> = domain.buffers(32, 64)?;
//! let mut done = Vec::with_capacity(16);
//! for number in 1..=320 {
//!     let buffer = match free.pop() {
//!         Some(buffer) => buffer,
//!         None => {
//!             connection.send_queue().wait_many(16, &mut done, SOON)?;
//!             for completion in done.drain(..) {
//!                 let completion = completion.success()?;
//!                 free.extend(completion.earlier);
//!                 free.extend(completion.buffer);
//!             }
//!             free.pop().expect("a completion brings 16 buffers")
//!         }
//!     };
//!     let request = WorkRequest::write(buffer, &there);
//!     connection.post_send(if number % 16 == 0 { request } else { request.unsignalled() })?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Settings of the engine
//!
//! | setting | effect |
//! |---|---|
//! | `ADVERB_SPIN=MICROSECONDS` | how long a thread of the engine may spin after work: by default 20, and 0 on up to two processors |
//! | [`AsyncOptions::spin`](crate::asynchronous::AsyncOptions::spin) | how long a future looks for its completion before its task sleeps |
//! | [`ConnectionOptions::path_mtu`](crate::ConnectionOptions::path_mtu) | larger packets on `roce0`, where the interface carries them |
//! | [`ConnectionOptions::outbound_reads`](crate::ConnectionOptions::outbound_reads) | more Reads and atomics under way at once |
//!
//! [Memory within a host](https://github.com/adverb-rdma/adverb/blob/main/docs/memory.md) says which way the
//! bytes go between processes of one host, and `adverb devices -v` shows the way of each region.
