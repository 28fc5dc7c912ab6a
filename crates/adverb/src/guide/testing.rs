//! Tests with two ends in one process, logs and captures.
//!
//! # Tests
//!
//! The stack is a part of the program, so `cargo test` needs no set-up. Each test opens the device, listens
//! on port 0 and connects to itself. Tests run beside each other.
//!
//! ```
//! use adverb::{Connection, Device, Listener, ProtectionDomain, QueuePair, QueuePairOptions, WorkRequest};
//! use std::time::Duration;
//!
//! const SOON: Duration = Duration::from_secs(30);
//!
//! fn queue_pair(domain: &ProtectionDomain) -> adverb::Result<QueuePair> {
//!     let completions = domain.context().completion_queue(64)?;
//!     domain.queue_pair(QueuePairOptions::new(&completions))
//! }
//!
//! /// Connects two queue pairs of this process. `b` is the side that listens.
//! fn connected(a: QueuePair, b: QueuePair) -> adverb::Result<(Connection, Connection)> {
//!     let listener = Listener::bind(a.domain().context(), "127.0.0.1:0".parse().unwrap(), 1)?;
//!     let address = listener.local_address();
//!     // Each side waits for the other one, so there are two threads.
//!     let accepted = std::thread::spawn(move || listener.accept(SOON)?.accept(b, b"", SOON).map_err(adverb::Error::from));
//!     let a = a.connect(address, b"", SOON)?;
//!     Ok((a, accepted.join().unwrap()?))
//! }
//!
//! # fn main() -> adverb::Result<()> {
//! for device in Device::all()? {
//!     let domain = device.open()?.protection_domain()?;
//!     let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
//!     server.post_receive(0, domain.buffer(64)?)?;
//!     let (client, server) = connected(client, server)?;
//!     client.post_send(WorkRequest::send(b"hello"))?;
//!     assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"hello");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Device::all`](crate::Device::all) has the devices that the process sees: `roce0`, or both with
//! `ADVERB_DEVICE=roce0,iwarp0`. A test of failures provokes them, as [`errors`](super::errors) does: a
//! missing right, a token that is too long, a peer that is dropped.
//!
//! # Looking on
//!
//! Environment variables tell the engine what to show. A program needs no change for them:
//!
//! | variable | effect |
//! |---|---|
//! | `ADVERB_LOG=warn` | a line on standard error for each failed request, with the reason |
//! | `ADVERB_LOG=info` | also connections, the reasons of other refusals, and the counters at the end |
//! | `ADVERB_LOG=packets` | also every packet |
//! | `ADVERB_PCAP=FILE` | everything sent and received, for Wireshark; `%p` in the name is the process ID |
//! | `ADVERB_LOCAL=off` | connections within the host go by the network, as between two hosts |
//! | `ADVERB_DEVICE=iwarp0` | another device |
//!
//! [`Device::counters`](crate::Device::counters) has the counters at any time, and `adverb top` shows those
//! of running programs.
//!
//! # `adverb run --check`, `--trace` and `--fault`
//!
//! These options are for programs of the C libraries, libibverbs and librdmacm: they watch calls there.
//! Programs of this crate make no such calls. A program of this crate with `ADVERB_FAULT` set gets a warning
//! in the log.
//!
//! Many mistakes that `--check` looks for do not compile here, or are refused. A peer in C can run with all
//! three options:
//!
//! ```sh
//! adverb run --check --trace calls.txt -- ./peer-in-c
//! adverb run --fault 'RULES' --seed 1 -- ./peer-in-c     # adverb fault list explains the rules
//! ```
//!
//! The pages [check](https://github.com/adverb-rdma/adverb/blob/main/docs/how-to/check.md),
//! [calls](https://github.com/adverb-rdma/adverb/blob/main/docs/how-to/calls.md) and
//! [faults](https://github.com/adverb-rdma/adverb/blob/main/docs/how-to/faults.md) describe them.
