//! Work requests, and the completions in which their buffers come back.

use crate::flight::Flight;
use crate::{
    AddressHandle, Buffer, DATAGRAM_HEADER, Error, MemoryRegion, RemoteMemory, RequestError, Segment,
    Segments,
};
use adverb_core::error::PostError;
use adverb_core::request::{self, Cause, CompletionFlags, CompletionOpcode, Opcode, SendFlags, Status};
use std::fmt;

/// What a send request sends.
///
/// ```
/// use adverb::{Payload, WorkRequest};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// // Registered memory, which the completion brings back; and bytes that are copied.
/// assert!(matches!(Payload::from(domain.buffer(64)?), Payload::Memory(_)));
/// assert!(matches!(Payload::from(b"copied"), Payload::Inline(b"copied")));
/// // Each function of a request that sends takes both.
/// let requests = [WorkRequest::send(domain.buffer(64)?), WorkRequest::send(b"copied")];
/// # drop(requests);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Payload<'a> {
    /// Registered memory, gathered in order. Buffers come back in the completion.
    Memory(Segments),
    /// Bytes that are copied before the post returns; at most `inline_bytes` of
    /// [`QueuePairOptions`](crate::QueuePairOptions).
    Inline(&'a [u8]),
}

impl From<Segments> for Payload<'_> {
    #[inline]
    fn from(segments: Segments) -> Self {
        Self::Memory(segments)
    }
}

impl From<Segment> for Payload<'_> {
    #[inline]
    fn from(segment: Segment) -> Self {
        Self::Memory(segment.into())
    }
}

impl From<Buffer> for Payload<'_> {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self::Memory(buffer.into())
    }
}

impl From<&MemoryRegion> for Payload<'_> {
    #[inline]
    fn from(region: &MemoryRegion) -> Self {
        Self::Memory(region.into())
    }
}

impl<S: Into<Segment>> From<Vec<S>> for Payload<'_> {
    fn from(segments: Vec<S>) -> Self {
        Self::Memory(segments.into())
    }
}

impl<S: Into<Segment>, const N: usize> From<[S; N]> for Payload<'_> {
    fn from(segments: [S; N]) -> Self {
        Self::Memory(segments.into())
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Payload<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Inline(bytes)
    }
}

/// A request for the send queue: what to do, on which bytes, and how. Hand it to
/// [`Connection::post_send`](crate::Connection::post_send).
///
/// ```
/// use adverb::{Buffer, Connection, RemoteMemory, WorkRequest};
///
/// /// Writes a record into the peer's memory, and tells the peer its number.
/// fn publish(connection: &Connection, record: Buffer, place: &RemoteMemory, number: u32) -> adverb::Result<()> {
///     let request = WorkRequest::write(record, place).immediate(number).id(number.into());
///     Ok(connection.post_send(request)?)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct WorkRequest<'a> {
    pub(crate) id: u64,
    pub(crate) opcode: Opcode,
    pub(crate) flags: SendFlags,
    pub(crate) payload: Payload<'a>,
    pub(crate) remote: RemoteMemory,
    pub(crate) immediate: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
}

impl<'a> WorkRequest<'a> {
    fn new(opcode: Opcode, payload: Payload<'a>, remote: RemoteMemory) -> Self {
        let (flags, compare_add, swap) = (SendFlags::SIGNALED, 0, 0);
        Self { id: 0, opcode, flags, payload, remote, immediate: 0, compare_add, swap }
    }

    /// Send: a message that takes the oldest receive of the peer. A message longer than the receive breaks
    /// the connection.
    ///
    /// A slice is copied when the request is posted, and has at most
    /// [`inline_bytes`](crate::QueuePairOptions::inline_bytes): 64, unless the queue pair was made with
    /// another number. For a longer message take a [`Buffer`].
    ///
    /// Several segments are gathered into one message, if the queue pair was made for so many
    /// ([`max_gather`](crate::QueuePairOptions::max_gather)):
    /// `WorkRequest::send([head.slice(..8), body.slice(..)])`.
    ///
    /// If the peer has posted no receive, a Send on `roce0` waits for one without a limit, and does not
    /// complete before. On `iwarp0` it may complete at once; two seconds without a receive end the
    /// connection.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// // A slice is copied:
    /// client.post_send(WorkRequest::send(b"short"))?;
    /// // A buffer goes along, and comes back with the completion:
    /// let mut buffer = client.domain().buffer(64)?;
    /// buffer.fill(7);
    /// client.post_send(WorkRequest::send(buffer))?;
    ///
    /// let receives = server.receive_queue();
    /// assert_eq!(receives.wait(SOON)?.success()?.message(), b"short");
    /// assert_eq!(receives.wait(SOON)?.success()?.message(), [7; 64]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(payload: impl Into<Payload<'a>>) -> Self {
        Self::new(Opcode::Send, payload.into(), RemoteMemory::new(0, 0, 0))
    }

    /// RDMA Write: puts the bytes at the beginning of `remote`, which must have room for all of them, without
    /// the peer's program taking part. A slice is copied when the request is posted, as for
    /// [`WorkRequest::send`].
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server, region, there) = ends_with_region(Rights::WRITE)?;
    /// let part = there.slice(100..105).expect("the region has so much");
    /// client.post_send(WorkRequest::write(b"hello", &part))?;
    /// client.post_send(WorkRequest::send(b"look"))?;
    /// // When the peer has the message, it has the bytes of before.
    /// server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(region.to_vec(100..105), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(payload: impl Into<Payload<'a>>, remote: &RemoteMemory) -> Self {
        Self::new(Opcode::Write, payload.into(), *remote)
    }

    /// RDMA Read: fills `target` with the bytes at the beginning of `remote`, which must have as many,
    /// without the peer's program taking part.
    ///
    /// A Read takes no lock. If somebody writes to these bytes meanwhile, the Read may bring old bytes beside
    /// new ones, also within one number. [`WorkRequest::fetch_add`] of 0 reads 8 bytes at once. For more, the
    /// owner says by a message when the bytes are ready.
    ///
    /// ```
    /// use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest};
    /// # use std::time::Duration;
    ///
    /// # const SOON: Duration = Duration::from_secs(10);
    /// # fn main() -> adverb::Result<()> {
    /// # let context = Context::open_default()?;
    /// # let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let owner = context.clone();
    /// # let owner = std::thread::spawn(move || -> adverb::Result<()> {
    /// #     let domain = owner.protection_domain()?;
    /// #     let completions = owner.completion_queue(16)?;
    /// #     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    /// // The owner:
    /// let region = domain.memory_region(4096, Rights::READ)?;
    /// region.write(0, b"good morning");
    /// let token = region.remote().to_bytes();
    /// let connection = listener.accept(SOON)?.accept(queue_pair, &token, SOON)?;
    /// #     connection.wait_disconnected(SOON);
    /// #     Ok(())
    /// # });
    ///
    /// // The reader:
    /// # let domain = context.protection_domain()?;
    /// # let completions = context.completion_queue(16)?;
    /// # let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    /// let connection = queue_pair.connect(address, &[], SOON)?;
    /// let offered = RemoteMemory::from_bytes(connection.private_data()).expect("a token");
    /// let target = domain.buffer(12)?;
    /// connection.post_send(WorkRequest::read(target, &offered))?;
    /// let buffer = completions.wait(SOON)?.success()?.into_buffer();
    /// assert_eq!(&buffer[..], b"good morning");
    /// # connection.disconnect()?;
    /// # owner.join().unwrap()
    /// # }
    /// ```
    pub fn read(target: impl Into<Segments>, remote: &RemoteMemory) -> Self {
        Self::new(Opcode::Read, Payload::Memory(target.into()), *remote)
    }

    /// Adds `value` to the 8 bytes at the beginning of `remote`, atomically. `result` (8 bytes) takes what
    /// was there, as a number in this machine's byte order. The address of these bytes must be a multiple of
    /// 8, and the region needs [`Rights::ATOMIC`](crate::Rights::ATOMIC).
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// use std::sync::atomic::Ordering;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::ATOMIC)?;
    /// region.words()[0].store(5, Ordering::Release);
    /// let result = client.domain().buffer(8)?;
    /// client.post_send(WorkRequest::fetch_add(result, &there, 2))?;
    /// let result = client.send_queue().wait(SOON)?.success()?.into_buffer();
    /// assert_eq!(result[..], 5_u64.to_ne_bytes());
    /// assert_eq!(region.words()[0].load(Ordering::Acquire), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fetch_add(result: impl Into<Segments>, remote: &RemoteMemory, value: u64) -> Self {
        let request = Self::new(Opcode::FetchAdd, Payload::Memory(result.into()), *remote);
        Self { compare_add: value, ..request }
    }

    /// Puts `swap` into the 8 bytes at the beginning of `remote` if they equal `compare`, atomically.
    /// `result` (8 bytes) takes what was there, as a number in this machine's byte order. Address and rights
    /// are as for [`WorkRequest::fetch_add`].
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::ATOMIC)?;
    /// let mut take = |number: u64| -> adverb::Result<bool> {
    ///     let result = client.domain().buffer(8)?;
    ///     client.post_send(WorkRequest::compare_swap(result, &there, 0, number))?;
    ///     let result = client.send_queue().wait(SOON)?.success()?.into_buffer();
    ///     Ok(result[..] == [0; 8])
    /// };
    /// // The first one finds the place free.
    /// assert!(take(17)?);
    /// assert!(!take(18)?);
    /// # assert_eq!(region.to_vec(..8), 17_u64.to_ne_bytes());
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_swap(result: impl Into<Segments>, remote: &RemoteMemory, compare: u64, swap: u64) -> Self {
        let request = Self::new(Opcode::CompareSwap, Payload::Memory(result.into()), *remote);
        Self { compare_add: compare, swap, ..request }
    }

    /// Takes the key of a [`MemoryRegion`](crate::MemoryRegion) out of use, for ever. When the request is
    /// complete, the device refuses every request with this key, of peers and of this program. The bytes
    /// stay, and [`MemoryRegion::read`](crate::MemoryRegion::read) still has them.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// let region = client.domain().memory_region(64, Rights::READ)?;
    /// region.write(0, b"for a while");
    /// client.post_send(WorkRequest::local_invalidate(&region))?;
    /// client.send_queue().wait(SOON)?.success()?;
    /// // From here on, no peer reads it. This program does.
    /// assert_eq!(region.to_vec(..11), b"for a while");
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_invalidate(region: &crate::MemoryRegion) -> Self {
        let request = Self::new(Opcode::LocalInvalidate, Payload::Inline(&[]), RemoteMemory::new(0, 0, 0));
        Self { immediate: region.remote().key(), ..request }
    }

    /// Writes `value` to the 8 bytes at the beginning of `remote`, in one piece: a peer that reads the word
    /// sees the old value or the new one. The address of these bytes must be a multiple of 8. `roce0` has it,
    /// and `iwarp0` has not. `value` is in this machine's byte order.
    ///
    /// `source` (8 bytes) carries the value to the device.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// use std::sync::atomic::Ordering;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::WRITE)?;
    /// # if !client.domain().context().attributes().operations.contains(&adverb::Opcode::AtomicWrite) {
    /// #     return Ok(());
    /// # }
    /// let source = client.domain().buffer(8)?;
    /// client.post_send(WorkRequest::atomic_write(source, &there, 42))?;
    /// client.send_queue().wait(SOON)?.success()?;
    /// assert_eq!(region.words()[0].load(Ordering::Acquire), 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn atomic_write(mut source: Buffer, remote: &RemoteMemory, value: u64) -> Self {
        let length = source.len().min(8);
        source[..length].copy_from_slice(&value.to_ne_bytes()[..length]);
        Self::new(Opcode::AtomicWrite, source.into(), *remote)
    }

    /// Waits until earlier Writes to the bytes of `remote` are where every reader of the peer's memory finds
    /// them. The region there, and the queue pair there, need [`Rights::FLUSH`](crate::Rights::FLUSH).
    /// `roce0` has it, and `iwarp0` has not.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::WRITE | Rights::FLUSH)?;
    /// # if !client.domain().context().attributes().operations.contains(&adverb::Opcode::Flush) {
    /// #     return Ok(());
    /// # }
    /// let record = there.slice(..4).expect("the region has so much");
    /// client.post_send(WorkRequest::write(b"kept", &record).unsignalled())?;
    /// client.post_send(WorkRequest::flush(&record))?;
    /// client.send_queue().wait(SOON)?.success()?;
    /// assert_eq!(region.to_vec(..4), b"kept");
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(remote: &RemoteMemory) -> Self {
        let request = Self::new(Opcode::Flush, Payload::Inline(&[]), *remote);
        // To global visibility (`IBV_FLUSH_GLOBAL`), of this range.
        Self { compare_add: remote.len(), swap: 1, ..request }
    }

    /// Opens a window: `token` has the key that it is to have.
    pub(crate) fn bind(token: RemoteMemory, region: u32, access: u32) -> WorkRequest<'static> {
        let request = WorkRequest::new(Opcode::BindWindow, Payload::Inline(&[]), token);
        let (compare_add, swap) = (token.len(), access.into());
        WorkRequest { immediate: region, compare_add, swap, ..request }
    }

    /// Closes a [`MemoryWindow`](crate::MemoryWindow), whose token this is. When the request is complete, the
    /// token opens nothing. It is posted on the connection on which the window was bound.
    ///
    /// ```
    /// use adverb::{Rights, Status, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// # let region = server.domain().memory_region(4096, Rights::BIND)?;
    /// # let window = server.domain().memory_window()?;
    /// # let (bind, token) = window.bind(&region, ..64, Rights::READ);
    /// # server.post_send(bind)?;
    /// # server.send_queue().wait(SOON)?.success()?;
    /// # client.post_send(WorkRequest::read(client.domain().buffer(64)?, &token))?;
    /// # client.send_queue().wait(SOON)?.success()?;
    /// // The client has read what it was to read.
    /// server.post_send(WorkRequest::take_back(&token))?;
    /// server.send_queue().wait(SOON)?.success()?;
    /// // Another Read of the client, by the same token:
    /// client.post_send(WorkRequest::read(client.domain().buffer(64)?, &token))?;
    /// assert_eq!(client.send_queue().wait(SOON)?.status, Status::RemoteAccess);
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_back(token: &RemoteMemory) -> Self {
        let request = Self::new(Opcode::LocalInvalidate, Payload::Inline(&[]), RemoteMemory::new(0, 0, 0));
        Self { immediate: token.key(), ..request }
    }

    /// Tells this request from others in its completion.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// client.post_send(WorkRequest::send(b"hello").id(7))?;
    /// assert_eq!(client.send_queue().wait(SOON)?.id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`RequestIds`](crate::RequestIds) has numbers for values of any type.
    pub fn id(self, id: u64) -> Self {
        Self { id, ..self }
    }

    /// For sends and writes: carries a number to the peer, in the completion of the receive that the message
    /// takes (a write with a number takes one, too).
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// # if !client.domain().context().attributes().operations.contains(&adverb::Opcode::SendWithImmediate) {
    /// #     return Ok(());
    /// # }
    /// client.post_send(WorkRequest::send(b"with a number").immediate(7))?;
    /// let message = server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!((message.message(), message.immediate), (&b"with a number"[..], Some(7)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// For other operations.
    pub fn immediate(self, number: u32) -> Self {
        let opcode = match self.opcode {
            Opcode::Send | Opcode::SendWithImmediate => Opcode::SendWithImmediate,
            Opcode::Write | Opcode::WriteWithImmediate => Opcode::WriteWithImmediate,
            other => panic!("{other:?} carries no immediate data"),
        };
        Self { opcode, immediate: number.to_be(), ..self }
    }

    /// For sends: takes back the right to a region of the peer, which the peer granted us by this token, when
    /// the message is received.
    ///
    /// On `iwarp0`, no other peer may reach the region: the protection domain there has this connection
    /// alone. Otherwise the connection ends.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server, _region, there) = ends_with_region(Rights::WRITE)?;
    /// // The client has used the region, and needs it no more.
    /// client.post_send(WorkRequest::send(b"done").invalidate(&there))?;
    /// let message = server.receive_queue().wait(SOON)?.success()?;
    /// assert_eq!(message.invalidated, Some(there.key()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// For other operations, or together with immediate data.
    pub fn invalidate(self, granted: &RemoteMemory) -> Self {
        assert_eq!(self.opcode, Opcode::Send, "only a plain send invalidates a key of the peer");
        Self { opcode: Opcode::SendWithInvalidate, immediate: granted.key(), ..self }
    }

    /// Begins only when all earlier reads and atomics of the queue pair are complete.
    ///
    /// Completions come in order, but a later request begins while a read is still under way. So a request
    /// needs the fence if it sends bytes that an earlier read, or an atomic, brings into the same
    /// [`MemoryRegion`](crate::MemoryRegion). Without the fence, it may send the bytes that were there
    /// before.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server, region, there) = ends_with_region(Rights::READ)?;
    /// # region.write(0, b"eight by");
    /// let copy = client.domain().memory_region(8, Rights::empty())?;
    /// let source = there.slice(..8).expect("the region has so much");
    /// client.post_send(WorkRequest::read(&copy, &source))?;
    /// // It sends what the Read brings.
    /// client.post_send(WorkRequest::send(&copy).fence())?;
    /// assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"eight by");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fence(self) -> Self {
        Self { flags: self.flags | SendFlags::FENCE, ..self }
    }

    /// Reports nothing if the request ends well: there is no completion of it. If it fails, there is one, as
    /// ever.
    ///
    /// A request of the same send queue that reports, and was posted later, is complete only when this one
    /// is. So its completion brings the buffers of this one back, in [`Completion::earlier`]. The place in
    /// the completion queue is free again then, too: so let a request report at least once for each
    /// `max_sends` requests.
    ///
    /// ```
    /// # use adverb::{Context, Listener, QueuePairOptions, RemoteMemory, Rights, WorkRequest};
    /// # use std::time::Duration;
    /// # const SOON: Duration = Duration::from_secs(10);
    /// # fn main() -> adverb::Result<()> {
    /// # let context = Context::open_default()?;
    /// # let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let owner = context.clone();
    /// # let owner = std::thread::spawn(move || -> adverb::Result<()> {
    /// #     let domain = owner.protection_domain()?;
    /// #     let completions = owner.completion_queue(16)?;
    /// #     let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    /// #     let region = domain.memory_region(4096, Rights::WRITE)?;
    /// #     let connection = listener.accept(SOON)?.accept(queue_pair, &region.remote().to_bytes(), SOON)?;
    /// #     connection.wait_disconnected(SOON);
    /// #     Ok(())
    /// # });
    /// # let domain = context.protection_domain()?;
    /// # let completions = context.completion_queue(16)?;
    /// # let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    /// # let connection = queue_pair.connect(address, &[], SOON)?;
    /// # let offered = RemoteMemory::from_bytes(connection.private_data()).expect("a token");
    /// let (first, second) = (domain.buffer(100)?, domain.buffer(100)?);
    /// connection.post_send(WorkRequest::write(first, &offered).unsignalled())?;
    /// connection.post_send(WorkRequest::write(second, &offered))?;
    /// let second = completions.wait(SOON)?.success()?;
    /// assert_eq!((second.earlier.len(), completions.poll()?.is_none()), (1, true));
    /// # connection.disconnect()?;
    /// # owner.join().unwrap()
    /// # }
    /// ```
    pub fn unsignalled(self) -> Self {
        Self { flags: self.flags - SendFlags::SIGNALED, ..self }
    }

    /// Wakes a peer that waits for solicited completions only.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// // The peer's descriptor is not to be readable before the second message.
    /// server.receive_queue().arm_solicited()?;
    /// client.post_send(WorkRequest::send(b"no hurry"))?;
    /// client.post_send(WorkRequest::send(b"look now").solicited())?;
    /// # for text in [&b"no hurry"[..], b"look now"] {
    /// #     assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), text);
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    pub fn solicited(self) -> Self {
        Self { flags: self.flags | SendFlags::SOLICITED, ..self }
    }
}

/// A request of an [`UnreliableConnection`](crate::UnreliableConnection): a Send or a Write, each with or
/// without a number.
///
/// ```
/// use adverb::{UnreliableConnection, UnreliableRequest};
///
/// /// Sends a reading with its number. A reading that is lost is missed by nobody.
/// fn publish(connection: &UnreliableConnection, reading: f64, number: u32) -> adverb::Result<()> {
///     let bytes = reading.to_be_bytes();
///     let request = UnreliableRequest::send(&bytes).immediate(number).unsignalled();
///     Ok(connection.post_send(request)?)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct UnreliableRequest<'a>(pub(crate) WorkRequest<'a>);

impl<'a> UnreliableRequest<'a> {
    /// Send: a message that takes the oldest receive of the peer, as [`WorkRequest::send`]. A message that
    /// finds no receive is lost.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// // Only the newest reading matters, so nobody repeats one that is lost.
    /// connection.post_send(UnreliableRequest::send(b"21.5 degrees").unsignalled())?;
    /// let message = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(message.message(), b"21.5 degrees");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(payload: impl Into<Payload<'a>>) -> Self {
        Self(WorkRequest::send(payload))
    }

    /// RDMA Write: puts the bytes at the beginning of `remote`, as [`WorkRequest::write`].
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, Rights, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// # let region = domain.memory_region(64, Rights::WRITE)?;
    /// # let there = region.remote();
    /// // The newest reading stands at a fixed place. The number wakes the peer's program.
    /// connection.post_send(UnreliableRequest::write(b"21.5", &there).immediate(1).unsignalled())?;
    /// let message = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!((message.immediate, region.to_vec(..4)), (Some(1), b"21.5".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(payload: impl Into<Payload<'a>>, remote: &RemoteMemory) -> Self {
        Self(WorkRequest::write(payload, remote))
    }

    /// Tells this request from others in its completion, by a number: [`Completion::id`].
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// for id in [1, 2] {
    ///     connection.post_send(UnreliableRequest::send(b"a reading").id(id))?;
    /// }
    /// let ended = [(); 2].map(|()| completions.wait(std::time::Duration::from_secs(10)).map(|end| end.id));
    /// assert!(matches!(ended, [Ok(1), Ok(2)]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(self, id: u64) -> Self {
        Self(self.0.id(id))
    }

    /// Carries a number to the peer, as [`WorkRequest::immediate`]. Both a Send and a Write may carry one.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// // By the numbers, the peer sees that readings were lost in between.
    /// connection.post_send(UnreliableRequest::send(b"21.5").immediate(17).unsignalled())?;
    /// let message = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(message.immediate, Some(17));
    /// # Ok(())
    /// # }
    /// ```
    pub fn immediate(self, number: u32) -> Self {
        Self(self.0.immediate(number))
    }

    /// Reports nothing if the request ends well, as [`WorkRequest::unsignalled`].
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// // One completion for three readings:
    /// connection.post_send(UnreliableRequest::send(b"21.4").unsignalled())?;
    /// connection.post_send(UnreliableRequest::send(b"21.5").unsignalled())?;
    /// connection.post_send(UnreliableRequest::send(b"21.6").id(3))?;
    /// assert_eq!(completions.wait(std::time::Duration::from_secs(10))?.success()?.id, 3);
    /// assert!(completions.poll()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn unsignalled(self) -> Self {
        Self(self.0.unsignalled())
    }
}

/// A datagram to be sent, for [`DatagramQueuePair::post_send`](crate::DatagramQueuePair::post_send).
///
/// ```
/// use adverb::{AddressHandle, Completion, DatagramQueuePair, DatagramRequest, ProtectionDomain};
///
/// const QKEY: u32 = 0x1234;
///
/// /// Answers a datagram, if its sender can be reached.
/// fn answer(
///     queue_pair: &DatagramQueuePair,
///     domain: &ProtectionDomain,
///     question: &Completion,
/// ) -> adverb::Result<()> {
///     let way = AddressHandle::of_sender(domain, question);
///     let (Some(way), Some(number)) = (way, question.sender) else { return Ok(()) };
///     let request = DatagramRequest::send(b"here I am", &way, number, QKEY).id(1);
///     Ok(queue_pair.post_send(request)?)
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct DatagramRequest<'a> {
    pub(crate) request: WorkRequest<'a>,
    pub(crate) way: &'a AddressHandle,
    pub(crate) number: u32,
    pub(crate) qkey: u32,
}

impl<'a> DatagramRequest<'a> {
    /// A datagram by `way` to the queue pair `number` there, which has the key `qkey`. A slice is copied, as
    /// for [`WorkRequest::send`].
    ///
    /// ```
    /// use adverb::{AddressHandle, DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # queue_pair.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// # let here = "127.0.0.1".parse().unwrap();
    /// // Way, number and key are those of the queue pair that receives: here of this one itself.
    /// let way = AddressHandle::new(&domain, here, here)?;
    /// let request = DatagramRequest::send(b"to me", &way, queue_pair.number(), 7);
    /// queue_pair.post_send(request.unsignalled())?;
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(received.datagram(), Some(&b"to me"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(payload: impl Into<Payload<'a>>, way: &'a AddressHandle, number: u32, qkey: u32) -> Self {
        Self { request: WorkRequest::send(payload), way, number, qkey }
    }

    /// Tells this datagram from other requests in its completion, by a number: [`Completion::id`].
    ///
    /// ```
    /// use adverb::{DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let request = DatagramRequest::send(b"hello", &way, queue_pair.number(), 7);
    /// queue_pair.post_send(request.id(17))?;
    /// // The datagram has left, and the program knows which one.
    /// assert_eq!(completions.wait(std::time::Duration::from_secs(10))?.success()?.id, 17);
    /// # Ok(())
    /// # }
    /// ```
    pub fn id(self, id: u64) -> Self {
        Self { request: self.request.id(id), ..self }
    }

    /// Carries a number to the peer with the datagram, as [`WorkRequest::immediate`].
    ///
    /// ```
    /// use adverb::{DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # queue_pair.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // By the numbers, the peer sees that datagrams were lost in between.
    /// let request = DatagramRequest::send(b"21.5 degrees", &way, queue_pair.number(), 7);
    /// queue_pair.post_send(request.immediate(17).unsignalled())?;
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(received.immediate, Some(17));
    /// # Ok(())
    /// # }
    /// ```
    pub fn immediate(self, number: u32) -> Self {
        Self { request: self.request.immediate(number), ..self }
    }

    /// Reports nothing if the request ends well, as [`WorkRequest::unsignalled`].
    ///
    /// ```
    /// use adverb::{DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let number = queue_pair.number();
    /// queue_pair.post_send(DatagramRequest::send(domain.buffer(64)?, &way, number, 7).unsignalled())?;
    /// queue_pair.post_send(DatagramRequest::send(domain.buffer(64)?, &way, number, 7))?;
    /// // One completion, with the buffers of both.
    /// let end = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!((end.earlier.len(), end.buffer.is_some()), (1, true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn unsignalled(self) -> Self {
        Self { request: self.request.unsignalled(), ..self }
    }
}

/// A request that was not accepted. Nothing happened, and its buffers are back.
///
/// ```
/// use adverb::{Buffer, Connection, PostError, WorkRequest};
///
/// /// Sends a buffer if there is room. Otherwise the buffer comes back.
/// fn try_send(connection: &Connection, buffer: Buffer) -> adverb::Result<Option<Buffer>> {
///     match connection.post_send(WorkRequest::send(buffer)) {
///         Ok(()) => Ok(None),
///         Err(rejected) if rejected.reason == PostError::QueueFull => Ok(rejected.buffer),
///         Err(rejected) => Err(rejected.into()),
///     }
/// }
/// ```
#[non_exhaustive]
pub struct Rejected {
    /// Why the request was not accepted.
    pub reason: PostError,
    /// The buffer of the request, if it had one.
    pub buffer: Option<Buffer>,
    /// The buffers of the request, if it had a list of them.
    pub buffers: Vec<Buffer>,
}

impl Rejected {
    #[cold]
    pub(crate) fn of(reason: PostError, request: WorkRequest<'_>) -> Self {
        match request.payload {
            Payload::Memory(segments) => Self::new(reason, Some(segments)),
            Payload::Inline(_) => Self::new(reason, None),
        }
    }

    #[cold]
    pub(crate) fn new(reason: PostError, segments: Option<Segments>) -> Self {
        let (buffer, buffers) = segments.map(Segments::into_buffers).unwrap_or_default();
        Self { reason, buffer, buffers }
    }
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejected({:?}: {})", self.reason, self.reason)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Rejected {}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        rejected.reason.into()
    }
}

/// The end of a request.
///
/// ```
/// use adverb::{Buffer, CompletionOpcode, CompletionQueue};
///
/// /// Takes one completion, and keeps its buffers for later requests.
/// fn take(completions: &CompletionQueue, free: &mut Vec<Buffer>) -> adverb::Result<()> {
///     let Some(completion) = completions.poll()? else { return Ok(()) };
///     match completion.error() {
///         Some(error) => eprintln!("{error}"),
///         None if completion.operation == CompletionOpcode::Receive => println!("{:?}", completion.message()),
///         None => println!("request {} is done", completion.id),
///     }
///     free.extend(completion.buffer);
///     free.extend(completion.earlier);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The number that the request was given: [`WorkRequest::id`], or the first argument of
    /// [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    pub id: u64,
    /// How the request ended.
    pub status: Status,
    /// Why the request failed, as far as adverb knows. The numbers of the variants are the C interface's
    /// `vendor_err`.
    pub cause: Cause,
    /// The operation of the request. Says something only if the request ended well.
    pub operation: CompletionOpcode,
    /// Bytes received, read or sent. Says something only if the request ended well.
    pub bytes: usize,
    /// The number that came with the message.
    pub immediate: Option<u32>,
    /// The key of one of this side's regions that the peer gave up with the message.
    pub invalidated: Option<u32>,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Number of the sender's queue pair, of a datagram that was received.
    pub sender: Option<u32>,
    /// The buffer of the request, if it had one, whether it ended well or not.
    pub buffer: Option<Buffer>,
    /// The buffers of the request, if it had a list of them ([`Segments`]), in its order.
    pub buffers: Vec<Buffer>,
    /// The buffers of [unsignalled](WorkRequest::unsignalled) requests that were posted before on the same
    /// queue pair, in the order of the posts.
    pub earlier: Vec<Buffer>,
}

impl Completion {
    #[inline]
    pub(crate) fn new(completion: &request::Completion, flight: Flight, earlier: Vec<Segments>) -> Self {
        let (buffer, buffers) = flight.segments.map(Segments::into_buffers).unwrap_or_default();
        let well = completion.status == Status::Success;
        let has = |flag| well && completion.flags.contains(flag);
        Self {
            id: flight.id,
            status: completion.status,
            cause: Cause::from_number(completion.vendor_error).unwrap_or(Cause::Other),
            operation: completion.opcode,
            bytes: if well { completion.byte_length as usize } else { 0 },
            immediate: has(CompletionFlags::WITH_IMMEDIATE).then(|| u32::from_be(completion.immediate)),
            invalidated: has(CompletionFlags::WITH_INVALIDATE).then_some(completion.immediate),
            queue_pair: completion.queue_pair,
            sender: has(CompletionFlags::GRH).then_some(completion.source_queue_pair),
            buffer,
            buffers,
            earlier: earlier.into_iter().flat_map(buffers_of).collect(),
        }
    }

    /// The completion if the request ended well, else an error that says why ([`Error::Request`]). The
    /// buffers are dropped then: [`Completion::error`] keeps them.
    ///
    /// ```
    /// use adverb::{Rights, Status, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, _region, there) = ends_with_region(Rights::WRITE)?;
    /// // The peer's region may not be read.
    /// client.post_send(WorkRequest::read(client.domain().buffer(8)?, &there))?;
    /// let error = client.send_queue().wait(SOON)?.success().unwrap_err();
    /// assert_eq!(error.status(), Some(Status::RemoteAccess));
    /// # Ok(())
    /// # }
    /// ```
    pub fn success(self) -> Result<Self, Error> {
        match self.error() {
            None => Ok(self),
            Some(error) => Err(error.into()),
        }
    }

    /// The completion if the request ended well, as [`Completion::success`]. None if the connection ended
    /// before the request was carried out ([flushed requests](crate::CompletionQueue#flushed-requests)).
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.disconnect()?;
    /// // No message has come for this receive, and none will.
    /// assert!(server.receive_queue().wait(SOON)?.unless_flushed()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn unless_flushed(self) -> Result<Option<Self>, Error> {
        match self.status {
            Status::Flushed => Ok(None),
            _ => self.success().map(Some),
        }
    }

    /// Why the request has failed. None if it ended well.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.disconnect()?;
    /// let completion = server.receive_queue().wait(SOON)?;
    /// assert!(completion.error().is_some_and(|error| error.is_flushed()));
    /// // The buffer is here all the same.
    /// assert_eq!(completion.into_buffer().len(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn error(&self) -> Option<RequestError> {
        let Self { id, queue_pair, status, cause, .. } = *self;
        (status != Status::Success).then_some(RequestError { id, queue_pair, status, cause })
    }

    /// The buffer, with the bytes that were received or read.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// let completion = server.receive_queue().wait(SOON)?.success()?;
    /// println!("{:?}", completion.message());
    /// // The same buffer takes another message.
    /// server.post_receive(0, completion.into_buffer())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the request had none: it was inline, or used a [`MemoryRegion`](crate::MemoryRegion).
    #[track_caller]
    pub fn into_buffer(self) -> Buffer {
        self.buffer.expect("the request had no buffer")
    }

    /// The bytes of a datagram, behind its [header](crate::DATAGRAM_HEADER). None if this is none, or its
    /// receive had a list of buffers.
    ///
    /// ```
    /// use adverb::{DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # queue_pair.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// # queue_pair.post_send(DatagramRequest::send(b"to me", &way, queue_pair.number(), 7).unsignalled())?;
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!(received.datagram(), Some(&b"to me"[..]));
    /// // All that was received, with the header in front:
    /// assert_eq!(received.message().len(), DATAGRAM_HEADER + 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn datagram(&self) -> Option<&[u8]> {
        self.sender?;
        self.buffer.as_ref()?.get(DATAGRAM_HEADER..self.bytes)
    }

    /// The header of the route of a datagram.
    pub(crate) fn header(&self) -> Option<&[u8; DATAGRAM_HEADER]> {
        self.buffer.as_ref()?.first_chunk()
    }

    /// The received bytes: the first [`Completion::bytes`] of the buffer, which must have been posted whole.
    /// Empty without a buffer.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// let completion = server.receive_queue().wait(SOON)?.success()?;
    /// // The buffer of the receive is longer.
    /// assert_eq!((completion.message(), completion.bytes), (&b"hello"[..], 5));
    /// assert_eq!(completion.into_buffer().len(), 64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn message(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[..self.bytes.min(buffer.len())],
            None => &[],
        }
    }
}

/// The buffers of a request.
pub(crate) fn buffers_of(segments: Segments) -> impl Iterator<Item = Buffer> {
    let (one, many) = segments.into_buffers();
    one.into_iter().chain(many)
}

/// All buffers that came back with a completion.
pub(crate) fn buffers_of_completion(completion: Completion) -> impl Iterator<Item = Buffer> {
    completion.buffer.into_iter().chain(completion.buffers).chain(completion.earlier)
}
