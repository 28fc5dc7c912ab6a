//! Counters and locks in memory that many programs share.
//!
//! An atomic changes 8 bytes of a region of the peer in one piece, and brings what was there before. The
//! peer's program takes no part.
//!
//! | request | changes the word | needs |
//! |---|---|---|
//! | [`WorkRequest::fetch_add`](crate::WorkRequest::fetch_add) | adds a number; the sum wraps | [`Rights::ATOMIC`](crate::Rights::ATOMIC) |
//! | [`WorkRequest::compare_swap`](crate::WorkRequest::compare_swap) | replaces an expected value by another one | [`Rights::ATOMIC`](crate::Rights::ATOMIC) |
//! | [`WorkRequest::atomic_write`](crate::WorkRequest::atomic_write) | writes a value in one piece (`roce0` alone) | [`Rights::WRITE`](crate::Rights::WRITE) |
//!
//! - The address is a multiple of 8. Regions of
//!   [`ProtectionDomain::memory_region`](crate::ProtectionDomain::memory_region) begin at a whole page, so
//!   offsets that are multiples of 8 will do.
//! - Values are numbers in the byte order of the machine: `u64::from_ne_bytes` reads a result.
//! - The owner uses the word by [`MemoryRegion::word`](crate::MemoryRegion::word) or
//!   [`MemoryRegion::words`](crate::MemoryRegion::words).
//! - A `fetch_add` of 0 reads a word.
//!
//! # A counter
//!
//! Each program that adds 1 has a number of its own. Peers and the owner count together:
//!
//! ```
//! use adverb::{RemoteMemory, Rights, WorkRequest};
//! use std::sync::atomic::Ordering;
//! use std::time::Duration;
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! let region = domain.memory_region(4096, Rights::ATOMIC)?;
//! # let (client, server) = connected(client, server, &region.remote().to_bytes())?;
//! region.words()[0].store(100, Ordering::Release);
//!
//! // A peer:
//! let counter = RemoteMemory::from_bytes(client.private_data()).expect("a token");
//! client.post_send(WorkRequest::fetch_add(domain.buffer(8)?, &counter, 1))?;
//! let result = client.send_queue().wait(SOON)?.success()?.into_buffer();
//! let ours = u64::from_ne_bytes(result[..].try_into().unwrap());
//! assert_eq!(ours, 100);
//!
//! // The owner:
//! assert_eq!(region.words()[0].load(Ordering::Acquire), 101);
//! # Ok(())
//! # }
//! ```
//!
//! # A lock
//!
//! A `compare_swap` from 0 to the program's own number takes a lock, if the old value is 0. The holder writes
//! under the lock, and gives it back by a `compare_swap` from its number to 0, on the same connection. So the
//! writes are carried out before the lock is free.
//!
//! ```
//! use adverb::{Connection, RemoteMemory, Rights, WorkRequest};
//! use std::time::Duration;
//!
//! fn compare_swap(connection: &Connection, word: &RemoteMemory, old: u64, new: u64) -> adverb::Result<bool> {
//!     let result = connection.domain().buffer(8)?;
//!     connection.post_send(WorkRequest::compare_swap(result, word, old, new))?;
//!     let result = connection.send_queue().wait(Duration::from_secs(10))?.success()?.into_buffer();
//!     Ok(result[..] == old.to_ne_bytes())
//! }
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
//! # fn main() -> adverb::Result<()> {
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = adverb::Context::open_default()?.protection_domain()?;
//! # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//! # let region = domain.memory_region(4096, Rights::ATOMIC)?;
//! # let (connection, server) = connected(client, server, &region.remote().to_bytes())?;
//! # let lock = RemoteMemory::from_bytes(connection.private_data()).expect("a token");
//! const OURS: u64 = 7;
//! assert!(compare_swap(&connection, &lock, 0, OURS)?);
//! assert!(!compare_swap(&connection, &lock, 0, 8)?, "somebody has it");
//! assert!(compare_swap(&connection, &lock, OURS, 0)?);
//! # Ok(())
//! # }
//! ```
//!
//! A program that ends with the lock leaves it taken. The example
//! [`noticeboard`](https://github.com/adverb-rdma/adverb/blob/main/examples/noticeboard.rs) needs no lock:
//! `fetch_add` gives each client a line of its own.
