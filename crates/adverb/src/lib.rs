//! RDMA from Rust, on any machine: no RDMA hardware, no kernel module, no privileges. The stack is in the
//! program itself: start it and its tests as any other program, without `adverb run`.
//!
//! The [guide] has a chapter for each subject:
//!
//! - [connections, and flushed requests](guide::connections)
//! - [receives and flow control](guide::flow_control)
//! - [polls, sleeps and event loops](guide::waiting)
//! - [order, fences and visibility](guide::ordering)
//! - [atomics](guide::atomics)
//! - [errors](guide::errors)
//! - [tests, logs and captures](guide::testing)
//! - [tuning](guide::tuning)
//! - [the names of verbs beside those of this crate](guide::from_c)
//!
//! # RDMA in one page
//!
//! *Remote direct memory access* lets a program put bytes into the memory of a program on another machine, or
//! fetch bytes from it, without that program doing anything. Beside that there are messages, as with sockets
//! but with boundaries. It is fast because nothing is copied on the way that need not be, and because nobody
//! waits. A program *posts* requests, goes on with its work, and later learns how they ended. These are the
//! parts:
//!
//! * A [`Device`] carries the bytes; opened it is a [`Context`], from which everything else comes. This build
//!   has `roce0`, RoCE v2 over UDP, and `iwarp0`, iWARP over TCP.
//! * A [`ProtectionDomain`] holds memory and queue pairs that belong together.
//! * Memory must be *registered*, so that the device knows what it may touch. A [`Buffer`] is registered
//!   memory of the program's own. A [`MemoryRegion`] is offered to peers, with [`Rights`] that say what they
//!   may do; its token, [`RemoteMemory`], names it on the other side. A peer that uses a wrong token, passes
//!   the end, or does what it may not, is refused, and nothing is touched.
//! * A [`QueuePair`] is one end of a connection: a queue of requests to send and a queue of receives.
//!   [`QueuePair::connect`] makes a [`Connection`] of it, or on the other side a [`Listener`] and
//!   [`ConnectionRequest::accept`].
//! * A [`CompletionQueue`] says how requests ended, in [`Completion`]s.
//!
//! And these are the requests:
//!
//! | request | what it does | who must do something there |
//! |---|---|---|
//! | [`WorkRequest::send`] | carries a message to the oldest receive of the peer | the peer posts receives |
//! | [`WorkRequest::write`] | puts bytes into a region of the peer | nobody |
//! | [`WorkRequest::read`] | fetches bytes from a region of the peer | nobody |
//! | [`WorkRequest::fetch_add`], [`WorkRequest::compare_swap`] | change a word of the peer atomically | nobody |
//! | [`WorkRequest::atomic_write`], [`WorkRequest::flush`] | write a word in one piece; make writes visible | nobody |
//! | [`MemoryWindow::bind`], [`WorkRequest::take_back`] | open a part of a region of this side, and close it | nobody |
//!
//! Requests of one queue pair begin and complete in the order in which they were posted. A completed write or
//! send says that the bytes have been taken; that the peer has them, one knows from its answer, or from a
//! read posted behind a write.
//!
//! # Services
//!
//! A [`QueuePair`] is of the reliable service (RC). Each other service has types of its own, which take only
//! the requests that the service has:
//!
//! | service | type | connected by | requests |
//! |---|---|---|---|
//! | RC | [`QueuePair`] | [`QueuePair::connect`], [`ConnectionRequest::accept`], [`QueuePair::connect_raw`] | [`WorkRequest`] |
//! | UC | [`UnreliableQueuePair`] | [`UnreliableQueuePair::connect_raw`] | [`UnreliableRequest`]: Sends and Writes |
//! | UD | [`DatagramQueuePair`] | nothing: each datagram says where to ([`AddressHandle`]) | [`DatagramRequest`]: Sends |
//! | XRC | [`XrcInitiator`], [`XrcTarget`] | [`XrcInitiator::connect_raw`] | [`WorkRequest`], with the number of a [`SharedReceiveQueue`] |
//!
//! `roce0` has all of them, and `iwarp0` has RC. `connect_raw` connects by numbers that the programs exchange
//! themselves. The peer may then be a program in C, such as `ibv_rc_pingpong`.
//!
//! # Who owns the bytes
//!
//! A request takes its buffer with it, and the completion brings it back. So a program cannot change bytes
//! that are being sent, or look at bytes that are being received. A [`MemoryRegion`] is shared with peers
//! that may change it at any moment. So its bytes are copied in and out, or accessed as atomic words, and
//! there is never a `&[u8]` of them.
//!
//! | memory | from | who uses it | how the program has it back |
//! |---|---|---|---|
//! | [`Buffer`] of this crate | [`ProtectionDomain::buffer`] | this program's requests | drop |
//! | [`Buffer`] of the program's memory | [`ProtectionDomain::register_buffer`] | this program's requests | [`Buffer::deregister`] |
//! | [`MemoryRegion`] of this crate | [`ProtectionDomain::memory_region`] | peers, and this program's requests | drop |
//! | [`MemoryRegion`] of the program's memory | [`ProtectionDomain::register`] | peers, and this program's requests | [`MemoryRegion::deregister`] |
//!
//! The program's memory is a `Vec<u8>`, a `Box<[u8]>`, a [`Mapping`] (also of huge pages) or a
//! [`FileMapping`]. Other types implement [`StableMemory`].
//!
//! # Why it is safe
//!
//! Dropping objects in any order is safe, and so is leaking them with [`std::mem::forget`]. These rules make
//! it so:
//!
//! - Registered bytes live as long as their registration. The last [`Buffer`], [`MemoryRegion`] or request
//!   that has a part ends the registration. That waits until the engine and the peers let go of the bytes.
//!   Only then are they freed, or given back.
//! - A request in flight owns its part of the memory. The owner is a table in the [`CompletionQueue`], not
//!   the program. So the program can neither free nor change the bytes.
//! - A completion takes its request out of the table, once. Its name there is never used again.
//! - A [`SharedReceiveQueue`] has such a table for its receives, which a completion names.
//! - A [`QueuePair`] keeps its completion queues, and each object keeps the context that it comes from. The
//!   drop of a queue pair ends its requests, and frees their memory afterwards.
//! - A leaked object keeps all of this for ever. A leaked [`Connection`] goes on with its receives, into
//!   memory that stays mapped.
//! - The engine checks each access by key, bounds, rights and protection domain. Nothing that a peer sends
//!   reaches other bytes.
//!
//! The compiler refuses a program that uses a buffer in flight:
//!
//! ```compile_fail,E0382
//! # fn post(connection: &adverb::Connection, mut buffer: adverb::Buffer) -> adverb::Result<()> {
//! connection.post_send(adverb::WorkRequest::send(buffer))?;
//! buffer[0] = 1;
//! # Ok(())
//! # }
//! ```
//!
//! It refuses one that drops memory in flight:
//!
//! ```compile_fail,E0505
//! # fn post(domain: &adverb::ProtectionDomain, connection: &adverb::Connection) -> adverb::Result<()> {
//! let vector = vec![0; 64];
//! let bytes = &vector[..];
//! let buffer = domain.register_buffer(vector)?;
//! connection.post_receive(0, buffer)?;
//! println!("{bytes:?}");
//! # Ok(())
//! # }
//! ```
//!
//! It refuses memory that is borrowed, since its owner could free it too early:
//!
//! ```compile_fail
//! # fn register(domain: &adverb::ProtectionDomain) -> adverb::Result<()> {
//! let array = [0; 64];
//! let buffer = domain.register_buffer(&array[..])?;
//! # Ok(())
//! # }
//! ```
//!
//! Memory of another protection domain, and so of another device, is refused when it is posted:
//! [`PostError::OtherDomain`].
//!
//! # A server and a client
//!
//! The server offers 4096 bytes, and waits for a message. The client learns from the private data of the
//! connection where the bytes are, writes into them, and says so.
//!
//! ```
//! use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest};
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! const SOON: Duration = Duration::from_secs(10);
//!
//! fn serve(context: &Context, listener: &Listener) -> adverb::Result<Vec<u8>> {
//!     let domain = context.protection_domain()?;
//!     let region = domain.memory_region(4096, Rights::WRITE)?;
//!     let completions = context.completion_queue(16)?;
//!     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
//!     queue_pair.post_receive(0, domain.buffer(64)?)?;
//!     let request = listener.accept(SOON)?;
//!     let _connection = request.accept(queue_pair, &region.remote().to_bytes(), SOON)?;
//!     let message = completions.wait(SOON)?.success()?;
//!     assert_eq!(message.message(), b"look");
//!     Ok(region.to_vec(..11))
//! }
//!
//! fn run(server: SocketAddr) -> adverb::Result<()> {
//!     let context = Context::open_default()?;
//!     let domain = context.protection_domain()?;
//!     let completions = context.completion_queue(16)?;
//!     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
//!     let connection = queue_pair.connect(server, b"", SOON)?;
//!     let offered = RemoteMemory::from_bytes(connection.private_data()).expect("a token");
//!
//!     let mut buffer = domain.buffer(11)?;
//!     buffer.copy_from_slice(b"hello there");
//!     connection.post_send(WorkRequest::write(buffer, &offered))?;
//!     connection.post_send(WorkRequest::send(b"look"))?;
//!     let written = completions.wait(SOON)?.success()?;
//!     assert_eq!(&written.into_buffer()[..], b"hello there");
//!     completions.wait(SOON)?.success()?;
//!     // The server closes when it has seen the message.
//!     connection.wait_disconnected(SOON);
//!     Ok(())
//! }
//!
//! # fn main() -> adverb::Result<()> {
//! let context = Context::open_default()?;
//! let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
//! let address = listener.local_address();
//! let client = std::thread::spawn(move || run(address));
//! assert_eq!(serve(&context, &listener)?, b"hello there");
//! client.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Choices that the environment makes
//!
//! `ADVERB_DEVICE` names the devices that a program sees. `ADVERB_LOG` (`error`, `warn`, `info`, `packets`)
//! has the engine say what it does on standard error. `ADVERB_PCAP` writes what goes over the connections to
//! a file for Wireshark. `adverb devices` shows the effect. adverb reports an invalid value on standard
//! error, once.
//!
//! # Threads, fork, and waiting
//!
//! Everything is thread-safe. An engine with one background thread starts with the first device that is
//! opened; it serves peers while the program does something else. In a child of `fork` inherited objects
//! answer with ENODEV and may be dropped; the child opens the device anew. All waiting in this crate is
//! bounded by a time-out that the caller gives. An event loop of any kind can watch the descriptors of a
//! [`CompletionQueue`] and a [`Listener`] instead. Programs on tokio, smol or another runtime have the
//! futures of [`asynchronous`].

pub mod asynchronous;
mod attributes;
mod completion_queue;
mod connection;
mod datagram;
mod device;
mod error;
mod event;
mod flight;
// Documentation alone: no build has it.
#[cfg(doc)]
pub mod guide;
mod memory;
mod queue_pair;
mod raw;
mod request;
mod request_ids;
mod route_header;
mod shared_receive_queue;
mod xrc;

/// The limits and abilities of a device ([`Context::attributes`]).
///
/// ```
/// use adverb::QueuePairOptions;
///
/// # fn main() -> adverb::Result<()> {
/// # let context = adverb::Context::open_default()?;
/// # let completions = context.completion_queue(16)?;
/// // Messages of eight parts, if the device gathers so many.
/// let max_gather = context.attributes().max_sge.min(8);
/// let options = QueuePairOptions { max_gather, ..QueuePairOptions::new(&completions) };
/// let queue_pair = context.protection_domain()?.queue_pair(options)?;
/// assert!(queue_pair.attributes().max_gather >= max_gather);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::attributes::DeviceAttributes;
/// An address by which peers reach a port ([`Context::gids`]).
///
/// ```
/// use adverb::GidKind;
/// use std::net::Ipv6Addr;
///
/// # fn main() -> adverb::Result<()> {
/// let context = adverb::Context::open_default()?;
/// // On `roce0`, they are IP addresses, which a server may tell its clients.
/// let gids = context.gids();
/// for gid in gids.iter().filter(|gid| gid.kind == GidKind::RoceV2) {
///     let address = Ipv6Addr::from(gid.bytes).to_canonical();
///     assert!(!address.is_unspecified(), "{}: {address}", gid.index);
/// }
/// assert!(!gids.is_empty());
/// # Ok(())
/// # }
/// ```
pub use adverb_core::attributes::Gid;
/// The protocol of packets that come from an address ([`Gid`]).
///
/// ```
/// use adverb::{GidKind, TransportType};
///
/// # fn main() -> adverb::Result<()> {
/// let context = adverb::Context::open_default()?;
/// // A program in C on the other host wants the index of such an entry here: `ibv_rc_pingpong -g`.
/// let of_roce = context.gids().into_iter().find(|gid| gid.kind == GidKind::RoceV2);
/// assert_eq!(of_roce.is_some(), context.attributes().transport == TransportType::Ib);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::attributes::GidKind;
/// The state of a port ([`Context::port`]).
///
/// ```
/// use adverb::DATAGRAM_HEADER;
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// // A datagram fits into one packet, so a receive for any datagram is so long:
/// let port = domain.context().port()?;
/// let receive = domain.buffer(DATAGRAM_HEADER + port.active_mtu as usize)?;
/// assert!(port.active && receive.len() >= DATAGRAM_HEADER + 256);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::attributes::PortAttributes;
/// The protocols of a device ([`DeviceAttributes::transport`]).
///
/// ```
/// use adverb::TransportType;
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # let queue_pair = queue_pair(&domain)?;
/// // Queue pairs of iWARP are connected by the connection manager alone.
/// let has_numbers = domain.context().attributes().transport != TransportType::Iwarp;
/// assert_eq!(queue_pair.raw_address("127.0.0.1".parse().unwrap()).is_ok(), has_numbers);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::attributes::TransportType;
/// What [`Context::private_data_limits`] returns.
///
/// ```
/// # fn main() -> adverb::Result<()> {
/// let limits = adverb::Context::open_default()?.private_data_limits();
/// let greeting = vec![7; 4096];
/// // A greeting that is too long for the request goes in a message, once the connection stands.
/// let (in_request, in_message) = greeting.split_at(limits.request.min(greeting.len()));
/// assert!(in_request.len() >= 56 && !in_message.is_empty());
/// # Ok(())
/// # }
/// ```
pub use adverb_core::cm::PrivateDataLimits;
/// Why a request was not accepted ([`Rejected::reason`], [`Error::Post`]).
///
/// ```
/// use adverb::{PostError, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, _server) = ends()?;
/// // Too long to be copied. The text of the reason says what to change.
/// let refused = client.post_send(WorkRequest::send(&[7; 4096])).unwrap_err();
/// assert_eq!(refused.reason, PostError::InlineTooLong);
/// assert!(refused.reason.to_string().contains("more inline data than the queue pair was created with"));
/// # Ok(())
/// # }
/// ```
pub use adverb_core::error::PostError;
/// The kind of an [`AsyncEvent`].
///
/// ```
/// use adverb::{AsyncEvent, AsyncEventKind, QueuePairOptions, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # let shared = domain.shared_receive_queue(64, 1)?;
/// # for buffer in domain.buffers(16, 64)? {
/// #     shared.post_receive(0, buffer)?;
/// # }
/// # let receives = domain.context().completion_queue(256)?;
/// # let shared_receive_queue = Some(shared.clone());
/// # let options = QueuePairOptions { shared_receive_queue, ..QueuePairOptions::new(&receives) };
/// # let (client, _server) = connected(queue_pair(&domain)?, domain.queue_pair(options)?, b"")?;
/// shared.arm_limit(16)?;
/// client.post_send(WorkRequest::send(b"hello"))?;
/// // Fewer than 16 receives are left: the program posts more.
/// let event = domain.context().next_event(SOON)?.expect("the message takes a receive");
/// let AsyncEvent::SharedReceiveQueue { number, kind } = event else { panic!("{event}") };
/// assert_eq!((number, kind), (shared.number(), AsyncEventKind::SrqLimitReached));
/// # Ok(())
/// # }
/// ```
pub use adverb_core::event::AsyncEventKind;
/// A service: [each has types of its own](crate#services).
///
/// ```
/// use adverb::{Opcode, Service};
///
/// # fn main() -> adverb::Result<()> {
/// let services = adverb::Context::open_default()?.attributes().services;
/// // For readings of which only the newest matters: no repetitions, where the device has such a service.
/// let service = if services.contains(&Service::Uc) { Service::Uc } else { Service::Rc };
/// assert!(service.has(Opcode::Write));
/// // Datagrams have no Writes.
/// assert!(!Service::Ud.has(Opcode::Write));
/// # Ok(())
/// # }
/// ```
pub use adverb_core::qp::Service;
/// The state of a queue pair ([`QueuePairAttributes::state`]).
///
/// ```
/// use adverb::QueuePairState;
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, _server) = ends()?;
/// assert_eq!(client.attributes().state, QueuePairState::Rts);
/// client.disconnect()?;
/// assert!(client.wait_ended(SOON).is_some());
/// // No request is carried out any more.
/// assert_eq!(client.attributes().state, QueuePairState::Error);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::qp::State as QueuePairState;
/// Why a request has failed, in more detail than its [`Status`] ([`Completion::cause`]).
///
/// ```
/// use adverb::{Cause, Status, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, server) = ends()?;
/// // The receives of the server are of 64 bytes.
/// client.post_send(WorkRequest::send(client.domain().buffer(100)?))?;
/// let end = server.receive_queue().wait(SOON)?;
/// assert_eq!((end.status, end.cause), (Status::LocalLength, Cause::ReceiveTooSmall));
/// # Ok(())
/// # }
/// ```
pub use adverb_core::request::Cause;
/// The operation of a request that has ended ([`Completion::operation`]).
///
/// ```
/// use adverb::{CompletionOpcode, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, server) = ends()?;
/// client.post_send(WorkRequest::send(b"hello"))?;
/// // Where sends and receives complete on one queue, it tells them apart.
/// let ends = [client.send_queue().wait(SOON)?.success()?, server.receive_queue().wait(SOON)?.success()?];
/// let operations = ends.map(|end| end.operation);
/// assert_eq!(operations, [CompletionOpcode::Send, CompletionOpcode::Receive]);
/// # Ok(())
/// # }
/// ```
pub use adverb_core::request::CompletionOpcode;
/// An operation: [`DeviceAttributes::operations`] says which of them a device has.
///
/// ```
/// use adverb::{Opcode, Rights, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE | Rights::FLUSH)?;
/// let operations = client.domain().context().attributes().operations;
/// client.post_send(WorkRequest::write(b"a record", &there).unsignalled())?;
/// // A Flush where there is one. Elsewhere a message of the peer confirms the Write.
/// let flush = client.post_send(WorkRequest::flush(&there));
/// assert_eq!(flush.is_ok(), operations.contains(&Opcode::Flush));
/// # Ok(())
/// # }
/// ```
pub use adverb_core::request::Opcode;
/// How a request has ended ([`Completion::status`]).
///
/// ```
/// use adverb::{Rights, Status, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
/// # fn main() -> adverb::Result<()> {
/// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE)?;
/// client.post_send(WorkRequest::read(client.domain().buffer(8)?, &there))?;
/// match client.send_queue().wait(SOON)?.status {
///     Status::Success => panic!("the peer has not allowed it"),
///     // Its text is for the user.
///     status => assert!(status.to_string().contains("a missing right"), "{status:?}"),
/// }
/// # Ok(())
/// # }
/// ```
pub use adverb_core::request::Status;
pub use attributes::{PathAttributes, QueuePairAttributes};
pub use completion_queue::CompletionQueue;
pub use connection::{
    ConnectError, Connection, ConnectionOptions, ConnectionRequest, End, Listener, NotConnected,
};
pub use datagram::{AddressHandle, DATAGRAM_HEADER, DatagramQueuePair};
pub use device::{Context, Device};
pub use error::{Error, RequestError};
pub use event::AsyncEvent;
pub use memory::{
    Buffer, ExclusiveMemory, FileMapping, Mapping, MemoryRegion, MemoryWindow, NotRegistered,
    ProtectionDomain, RemoteMemory, Rights, Segment, Segments, StableMemory,
};
pub use queue_pair::{QueuePair, QueuePairOptions};
pub use raw::{NoAddress, RawAddress, RawConnection, UnreliableConnection, UnreliableQueuePair};
pub use request::{Completion, DatagramRequest, Payload, Rejected, UnreliableRequest, WorkRequest};
pub use request_ids::RequestIds;

pub use shared_receive_queue::SharedReceiveQueue;
pub use xrc::{XrcConnection, XrcDomain, XrcInitiator, XrcTarget};

/// The result of a call of this crate.
///
/// ```
/// use adverb::{Context, MemoryRegion, Rights};
///
/// /// A table for peers. Each error of this crate becomes an [`adverb::Error`] by `?`.
/// fn table(bytes: usize) -> adverb::Result<MemoryRegion> {
///     let domain = Context::open_default()?.protection_domain()?;
///     domain.memory_region(bytes, Rights::READ)
/// }
///
/// assert!(table(4096).is_ok());
/// assert_eq!(table(0).unwrap_err().errno(), libc::EINVAL);
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;
