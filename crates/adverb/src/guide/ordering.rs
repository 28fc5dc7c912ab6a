//! The order of requests, fences, and when bytes become visible.
//!
//! # Within one queue pair
//!
//! - Requests begin, and complete, in the order in which they were posted.
//! - Messages arrive in the order of their Sends, and take receives in the order of the posts.
//! - A Read or an atomic is carried out at its place among the requests, but the answer takes a while. Later
//!   Sends and Writes begin meanwhile.
//! - Requests of two queue pairs have no order, even between the same two programs.
//!
//! # The fence
//!
//! A request that uses bytes that an earlier Read brings must wait for them.
//! [`WorkRequest::fence`](crate::WorkRequest::fence) lets it begin only when all earlier Reads and atomics
//! are complete. A [`Buffer`](crate::Buffer) never needs the fence: it belongs to the Read until that is
//! complete. A [`MemoryRegion`](crate::MemoryRegion) can be part of several requests at once, and there the
//! fence counts:
//!
//! ```
//! use adverb::{RemoteMemory, Rights, WorkRequest};
//! use std::time::Duration;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # let table = domain.memory_region(64, Rights::READ | Rights::WRITE)?;
//! # table.write(0, b"from here");
//! # let (client, server) = connected(client, server, &table.remote().to_bytes())?;
//! let there = RemoteMemory::from_bytes(client.private_data()).expect("a token");
//! let (from, to) = (there.slice(..9).expect("9 bytes"), there.slice(16..25).expect("9 bytes"));
//! // The second request passes on the bytes that the first one brings.
//! let local = domain.memory_region(9, Rights::empty())?;
//! client.post_send(WorkRequest::read(&local, &from))?;
//! client.post_send(WorkRequest::write(&local, &to).fence())?;
//! client.send_queue().wait(SOON)?.success()?;
//! client.send_queue().wait(SOON)?.success()?;
//! // Nothing says yet that the peer has the Write, on every device: a Read behind it does.
//! let copy = domain.buffer(9)?;
//! client.post_send(WorkRequest::read(copy, &to))?;
//! assert_eq!(&client.send_queue().wait(SOON)?.success()?.into_buffer()[..], b"from here");
//! # Ok(())
//! # }
//! ```
//!
//! # What a completion says
//!
//! | request | device | its completion says |
//! |---|---|---|
//! | Send, Write | `roce0` (RC) | The peer's device has acknowledged the bytes. |
//! | Send, Write | `iwarp0`; UC and UD | The system has taken the bytes. The peer may not have them. |
//! | Read, atomic | both | The bytes of the answer are here. |
//!
//! A program that runs on both devices takes an answer of the peer, or a Read behind a Write, as the proof of
//! arrival.
//!
//! # When the owner sees the bytes
//!
//! The owner of a region learns of a Write in one of two ways:
//!
//! - A message comes behind it: a Send, or the number of a Write
//!   ([`WorkRequest::immediate`](crate::WorkRequest::immediate)). When the receive has completed, all bytes
//!   of earlier requests are in memory.
//! - The owner looks at a word of the region. The last word of a message becomes visible last, and all of an
//!   earlier message before anything of a later one.
//!
//! Load that word with `Acquire`. All bytes before it are there once it has changed:
//!
//! ```
//! use adverb::{RemoteMemory, Rights, WorkRequest};
//! use std::sync::atomic::Ordering;
//! # use std::time::{Duration, Instant};
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! let region = domain.memory_region(64, Rights::WRITE)?;
//! # let (client, server) = connected(client, server, &region.remote().to_bytes())?;
//! // The peer writes 8 bytes of text, and behind them a word that says so.
//! let there = RemoteMemory::from_bytes(client.private_data()).expect("a token");
//! let mut message = domain.buffer(16)?;
//! message[..8].copy_from_slice(b"all here");
//! message[8..].copy_from_slice(&1u64.to_ne_bytes());
//! client.post_send(WorkRequest::write(message, &there))?;
//!
//! // The owner:
//! # let start = Instant::now();
//! while region.words()[1].load(Ordering::Acquire) == 0 {
//!     std::hint::spin_loop();
//! #   assert!(start.elapsed() < Duration::from_secs(60));
//! }
//! assert_eq!(region.to_vec(..8), b"all here");
//! # Ok(())
//! # }
//! ```
//!
//! A Read takes no lock. If somebody writes to its bytes meanwhile, the Read may bring old bytes beside new
//! ones.
