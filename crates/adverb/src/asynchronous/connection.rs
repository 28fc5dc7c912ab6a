//! Async connections.

use super::driver::{Driver, Ticket};
use super::endpoint::duplicate;
use super::queues::{ConnectionQueues, WorkQueues};
use super::runtime::{Runtime, readable};
use super::watcher::Watcher;
use super::{AsyncOptions, Message, failed_wait};
use crate::{
    Buffer, Completion, CompletionQueue, Connection, End, Error, MemoryRegion, MemoryWindow, Payload,
    ProtectionDomain, RemoteMemory, Result, Rights, Segments, WorkRequest,
};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A connection whose requests are futures. Thread-safe: any number of tasks use it at once, by reference or
/// in an [`Arc`].
///
/// Requests begin in the order in which their futures are first polled, and complete in that order. Dropping
/// the connection ends it.
///
/// ```
/// use adverb::asynchronous::AsyncConnection;
/// use adverb::{Buffer, RemoteMemory};
///
/// /// Asks for a record of the peer's table, and counts the visit.
/// async fn visit(connection: &AsyncConnection, table: &RemoteMemory) -> adverb::Result<Buffer> {
///     let visits = connection.fetch_add(table, 1).await?;
///     println!("{visits} visits before");
///     let record = table.slice(64..128).expect("the table has so much");
///     connection.read(connection.buffer(64)?, &record).await
/// }
/// ```
pub struct AsyncConnection {
    driver: Arc<Driver>,
    runtime: Arc<dyn Runtime>,
    options: AsyncOptions,
}

impl AsyncConnection {
    pub(super) fn new(
        queues: ConnectionQueues,
        queue: CompletionQueue,
        options: &AsyncOptions,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let driver = Watcher::start(queues, queue, options, &runtime)?;
        Ok(Self { driver, runtime, options: options.clone() })
    }

    fn connection(&self) -> &Connection {
        &self.driver.queues.connection
    }

    /// The private data with which the peer asked for or accepted the connection. Transports may append
    /// zeros.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = tokio::spawn(async move {
    /// #     Ok::<_, adverb::Error>(listener.accept().await?.accept(b"version 2").await?)
    /// # });
    /// let connection = endpoint.connect(address, b"").await?;
    /// // The server has said its version when it accepted.
    /// assert!(connection.private_data().starts_with(b"version 2"));
    /// # server.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data(&self) -> &[u8] {
        self.connection().private_data()
    }

    /// The peer's address.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// // For a log: who has come.
    /// let peer = server.peer_address().expect("the transport knows it");
    /// println!("a client at {peer}");
    /// assert!(peer.ip().is_loopback());
    /// # drop(client);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.connection().peer_address()
    }

    /// The number of this side's queue pair, as [`Message::queue_pair`] says it.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// // The clients of a server, found by the number that a message brings:
    /// let names = HashMap::from([(server.number(), "Ada")]);
    /// client.send(b"hello").await?;
    /// let message = server.receive().await?.expect("the client is there");
    /// assert_eq!(names.get(&message.queue_pair()), Some(&"Ada"));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.connection().number()
    }

    /// The protection domain of the connection, where memory comes from.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// // Memory that the peer is to reach:
    /// let region = server.domain().memory_region(64, Rights::READ)?;
    /// region.write(0, b"good morning");
    /// let there = region.remote().slice(..12).expect("the region has so much");
    /// let copy = client.read(client.buffer(12)?, &there).await?;
    /// assert_eq!(&copy[..], b"good morning");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        self.connection().domain()
    }

    /// A buffer of `length` bytes for a request: one that a future has left behind or that was
    /// [recycled](AsyncConnection::recycle), or a new one. It has any bytes.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let mut buffer = client.buffer(1000)?;
    /// // It may have the bytes of an earlier request.
    /// buffer.fill(7);
    /// client.send(buffer).await?;
    /// assert_eq!(server.receive().await?.expect("the client is there")[..], [7; 1000]);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        self.driver.buffer(length)
    }

    /// Keeps a buffer for [`AsyncConnection::buffer`]. A new one costs a registration.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let buffer = client.buffer(64)?;
    /// let place = buffer.as_ptr();
    /// let buffer = client.send(buffer).await?.expect("the request had one");
    /// client.recycle(buffer);
    /// // The next request has the same memory, without a registration.
    /// assert_eq!(client.buffer(64)?.as_ptr(), place);
    /// # drop(server);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn recycle(&self, buffer: Buffer) {
        self.driver.recycle(buffer);
    }

    /// Carries out any request, and brings its completion, whether it ended well or not. An
    /// [unsignalled](WorkRequest::unsignalled) request reports its end, too.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// // Requests beyond those with functions of their own:
    /// let completion = client.perform(WorkRequest::send(b"look now").solicited()).await?;
    /// assert!(completion.error().is_none());
    /// assert_eq!(&server.receive().await?.expect("the client is there")[..], b"look now");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The request was not accepted ([`Error::Post`]), and its buffers are gone. ENODEV in a child of fork;
    /// ECANCELED after the [end of the runtime](Runtime#the-end-of-a-runtime).
    pub async fn perform(&self, request: WorkRequest<'_>) -> Result<Completion> {
        self.driver.perform(request).await
    }

    /// Send: a message that takes the oldest receive of the peer. Ready when the peer has it. Brings the
    /// buffer back, if there was one.
    ///
    /// A slice is copied, and has at most [`inline_bytes`](AsyncOptions::inline_bytes), or is sent from a
    /// buffer of the connection's.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// client.send(b"a question").await?;
    /// let question = server.receive().await?.expect("the client is there");
    /// assert_eq!(&question[..], b"a question");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::perform`]; [`Error::Request`] if the request has failed.
    pub async fn send(&self, payload: impl Into<Payload<'_>>) -> Result<Option<Buffer>> {
        let (payload, is_copy) = self.driver.sendable(payload.into(), self.options.inline_bytes)?;
        let completion = self.perform(WorkRequest::send(payload)).await?.success()?;
        Ok(self.driver.sent_buffer(completion, is_copy))
    }

    /// RDMA Write: puts the bytes at the beginning of `remote`. Ready when the peer's device has them. Brings
    /// the buffer back, if there was one.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(64, Rights::WRITE)?;
    /// let there = region.remote();
    /// client.write(b"hello", &there).await?;
    /// // The message says that the bytes are there.
    /// client.send(b"look").await?;
    /// server.receive().await?;
    /// assert_eq!(region.to_vec(..5), b"hello");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::send`].
    pub async fn write(
        &self,
        payload: impl Into<Payload<'_>>,
        remote: &RemoteMemory,
    ) -> Result<Option<Buffer>> {
        Ok(self.perform(WorkRequest::write(payload, remote)).await?.success()?.buffer)
    }

    /// RDMA Read: fills `target` with the bytes at the beginning of `remote`, and brings it back.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(64, Rights::READ)?;
    /// region.write(0, b"good morning");
    /// let there = region.remote().slice(..12).expect("the region has so much");
    /// let buffer = client.read(client.buffer(12)?, &there).await?;
    /// assert_eq!(&buffer[..], b"good morning");
    /// client.recycle(buffer);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::send`].
    pub async fn read(&self, target: Buffer, remote: &RemoteMemory) -> Result<Buffer> {
        Ok(self.perform(WorkRequest::read(target, remote)).await?.success()?.into_buffer())
    }

    /// Adds `value` to the 8 bytes at the beginning of `remote`, atomically. What was there before.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(8, Rights::ATOMIC)?;
    /// let counter = region.remote();
    /// assert_eq!(client.fetch_add(&counter, 5).await?, 0);
    /// assert_eq!(client.fetch_add(&counter, 1).await?, 5);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::send`]. The address and the rights are as for [`WorkRequest::fetch_add`].
    pub async fn fetch_add(&self, remote: &RemoteMemory, value: u64) -> Result<u64> {
        self.change_word(|result| WorkRequest::fetch_add(result, remote, value)).await
    }

    /// Puts `swap` into the 8 bytes at the beginning of `remote` if they equal `compare`, atomically. What
    /// was there before.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(8, Rights::ATOMIC)?;
    /// let lock = region.remote();
    /// // It was free, and is 17 now.
    /// assert_eq!(client.compare_swap(&lock, 0, 17).await?, 0);
    /// assert_eq!(client.compare_swap(&lock, 0, 18).await?, 17);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::fetch_add`].
    pub async fn compare_swap(&self, remote: &RemoteMemory, compare: u64, swap: u64) -> Result<u64> {
        self.change_word(|result| WorkRequest::compare_swap(result, remote, compare, swap)).await
    }

    async fn change_word(&self, request: impl FnOnce(Segments) -> WorkRequest<'static>) -> Result<u64> {
        let result = self.buffer(8)?;
        let result = self.perform(request(result.into())).await?.success()?.into_buffer();
        let word = result.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        self.recycle(result);
        word.ok_or_else(|| Error::invalid("the result of an atomic has 8 bytes"))
    }

    /// Opens `range` of `region` to the peer of this connection, by `window`, as `rights` say. Brings the
    /// token for the peer.
    ///
    /// A window that is open must be taken back first ([`AsyncConnection::take_back`]): otherwise the request
    /// fails, which ends the connection.
    ///
    /// A future that is dropped leaves the window closed, or open by a token that nobody has. The drop of the
    /// window closes it, after the request.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(4096, Rights::BIND)?;
    /// let window = server.domain().memory_window()?;
    /// let token = server.bind(&window, &region, 1024..2048, Rights::WRITE).await?;
    /// // The peer has the token, by a message.
    /// client.write(b"within", &token).await?;
    /// client.send(b"done").await?;
    /// server.receive().await?;
    /// assert_eq!(region.to_vec(1024..1030), b"within");
    /// server.take_back(&window).await?;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL if `range` passes the end of the region; otherwise as [`AsyncConnection::send`].
    pub async fn bind(
        &self,
        window: &MemoryWindow,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        rights: Rights,
    ) -> Result<RemoteMemory> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        // Before there is a place, which a panic would keep.
        if region.remote().slice(bounds).is_none() {
            let length = region.len();
            let text = format!(
                "the window {bounds:?} of a region of {length} bytes: a window lies within its region"
            );
            return Err(Error::invalid(text));
        }
        let mut token = None;
        let needed = Arc::new((window.keep(), region.clone()));
        let binds = self.driver.perform_with(needed, || {
            // A future that is dropped before its post leaves the window's key as it is.
            let (request, new) = window.bind(region, bounds, rights);
            token = Some(new);
            request
        });
        binds.await?.success()?;
        token.ok_or_else(|| Error::invalid("a request that has ended was made"))
    }

    /// Closes a window that was [bound](AsyncConnection::bind) on this connection. Ready when the token of
    /// the bind opens nothing any more.
    ///
    /// A future that is dropped after the request was posted closes the window all the same. The drop of the
    /// window closes it in any case, as soon as no request of a dropped future is about it any more.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(4096, Rights::BIND)?;
    /// let window = server.domain().memory_window()?;
    /// let token = server.bind(&window, &region, ..8, Rights::READ).await?;
    /// client.read(client.buffer(8)?, &token).await?;
    /// // The client has read what it was to read. Another Read by the same token is refused.
    /// server.take_back(&window).await?;
    /// assert!(client.read(client.buffer(8)?, &token).await.is_err());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::send`]. A window that is not open makes the request fail, which ends the
    /// connection.
    pub async fn take_back(&self, window: &MemoryWindow) -> Result<()> {
        let request = || WorkRequest::take_back(&window.last_token());
        self.driver.perform_with(window.keep(), request).await?.success().map(drop)
    }

    /// Takes the key of `region` out of use, for ever, as [`WorkRequest::local_invalidate`]. Ready when no
    /// peer reaches the region any more.
    ///
    /// A future that is dropped after the request was posted does so all the same.
    ///
    /// ```
    /// use adverb::Rights;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// let region = server.domain().memory_region(64, Rights::READ)?;
    /// server.local_invalidate(&region).await?;
    /// assert!(client.read(client.buffer(8)?, &region.remote()).await.is_err());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncConnection::send`].
    pub async fn local_invalidate(&self, region: &MemoryRegion) -> Result<()> {
        let request = || WorkRequest::local_invalidate(region);
        self.driver.perform_with(Arc::new(region.clone()), request).await?.success().map(drop)
    }

    /// The oldest message that nobody has taken. Waits until there is one. None after the end of the
    /// connection, when all messages are taken.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// client.send(b"the last words").await?;
    /// drop(client);
    /// let mut messages = 0;
    /// while let Some(message) = server.receive().await? {
    ///     assert_eq!(&message[..], b"the last words");
    ///     messages += 1;
    /// }
    /// assert_eq!(messages, 1);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// A message was longer than [`message_bytes`](AsyncOptions::message_bytes), or could not be taken for
    /// another reason ([`Error::Request`]): that ends the connection. ENODEV in a child of fork; ECANCELED
    /// after the [end of the runtime](Runtime#the-end-of-a-runtime); EINVAL for a connection with a [shared
    /// receive queue](super::AsyncEndpoint::with_shared_receive_queue).
    pub async fn receive(&self) -> Result<Option<Message>> {
        Ok(self.driver.message().await?.and_then(|completion| self.message(completion)))
    }

    /// Why no message ever comes by [`AsyncConnection::receive`]. None if some may come.
    pub(super) fn no_messages(&self) -> Option<Error> {
        self.driver.queues.no_messages()
    }

    fn message(&self, completion: Completion) -> Option<Message> {
        Message::new(&self.driver, completion, 0)
    }

    /// Polls for the oldest message, as [`AsyncConnection::receive`] does, for a task that keeps its place
    /// among those that wait.
    pub(super) fn poll_receive(
        &self,
        ticket: &mut Ticket,
        context: &Context<'_>,
    ) -> Poll<Result<Option<Message>>> {
        let completion = self.driver.poll_message(ticket, context);
        completion.map_ok(|completion| completion.and_then(|completion| self.message(completion)))
    }

    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(super) fn options(&self) -> &AsyncOptions {
        &self.options
    }

    /// Ends the connection in order. Requests that are not complete fail as flushed.
    ///
    /// ```
    /// use adverb::End;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// // Beside other tasks that hold the connection: those that wait for a message have none.
    /// client.disconnect()?;
    /// assert!(client.receive().await?.is_none());
    /// assert_eq!(client.closed().await?, End::Here);
    /// # drop(server);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn disconnect(&self) -> Result<()> {
        self.connection().disconnect()
    }

    /// Waits until the connection has ended, by either side and for any reason, and says how.
    ///
    /// ```
    /// use adverb::End;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// assert!(server.ended().is_none());
    /// client.disconnect()?;
    /// assert_eq!(server.closed().await?, End::Peer);
    /// assert_eq!(client.closed().await?, End::Here);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// EMFILE and ENFILE when descriptors have run out; those of the runtime.
    pub async fn closed(&self) -> Result<End> {
        let connection = self.connection();
        let descriptor = duplicate(&connection.end_descriptor()?)?;
        let watched = self.runtime.watch(descriptor);
        let mut watch = watched.map_err(|error| failed_wait("the end of a connection", &error))?;
        loop {
            if let Some(end) = connection.ended() {
                return Ok(end);
            }
            readable(&mut *watch).await.map_err(|error| failed_wait("the end of a connection", &error))?;
        }
    }

    /// How the connection has ended. None while it stands.
    ///
    /// ```
    /// use adverb::End;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// assert_eq!(client.ended(), None);
    /// drop(server);
    /// // No message comes any more, and a program asks why.
    /// assert!(client.receive().await?.is_none());
    /// client.closed().await?;
    /// assert_eq!(client.ended(), Some(End::Peer));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn ended(&self) -> Option<End> {
        self.connection().ended()
    }
}

impl Drop for AsyncConnection {
    fn drop(&mut self) {
        // Messages that the program still has keep the rest.
        let _ = self.disconnect();
        self.driver.watcher_end().come();
    }
}

impl fmt::Debug for AsyncConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncConnection")
            .field("queue_pair", self.connection().queue_pair())
            .finish_non_exhaustive()
    }
}
