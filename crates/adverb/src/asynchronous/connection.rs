//! Async connections, and the messages that come by them.

use super::driver::{Driver, Ticket};
use super::endpoint::duplicate;
use super::runtime::{Runtime, readable};
use super::watcher::Watcher;
use super::{AsyncOptions, failed_wait};
use crate::{
    Buffer, Completion, CompletionQueue, Connection, End, Error, Payload, ProtectionDomain, RemoteMemory,
    Result, Segments, WorkRequest,
};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A connection whose requests are futures. Thread-safe: any number of tasks use it at once, by reference or in an [`Arc`].
///
/// Requests begin in the order in which their futures are first polled, and complete in that order. Dropping the connection ends it.
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
        connection: Connection,
        queue: CompletionQueue,
        options: &AsyncOptions,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self> {
        let descriptor = duplicate(&queue)?;
        let watch = runtime.watch(descriptor).map_err(|error| failed_wait("completions", &error))?;
        let driver = Arc::new(Driver::new(connection, queue, options.max_sends, options.spin));
        runtime.spawn(Box::pin(Watcher::new(driver.clone(), &runtime, watch)));
        Ok(Self { driver, runtime, options: options.clone() })
    }

    /// The private data with which the peer asked for or accepted the connection. Transports may append zeros.
    pub fn private_data(&self) -> &[u8] {
        self.driver.connection.private_data()
    }

    /// The peer's address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.driver.connection.peer_address()
    }

    /// The protection domain of the connection, where memory comes from.
    pub fn domain(&self) -> &ProtectionDomain {
        self.driver.connection.domain()
    }

    /// A buffer of `length` bytes for a request: one that a future has left behind or that was [recycled](AsyncConnection::recycle), or a new one. It has
    /// any bytes.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        self.driver.buffer(length)
    }

    /// Keeps a buffer for [`AsyncConnection::buffer`]. A new one costs a registration.
    pub fn recycle(&self, buffer: Buffer) {
        self.driver.recycle(buffer);
    }

    /// Carries out any request, and brings its completion, whether it ended well or not. An [unsignalled](WorkRequest::unsignalled) request reports its
    /// end, too.
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
    /// The request was not accepted ([`Error::Post`]), and its buffers are gone. ENODEV in a child of fork.
    pub async fn perform(&self, request: WorkRequest<'_>) -> Result<Completion> {
        self.driver.place().await?.post(request)?.await
    }

    /// Send: a message that takes the oldest receive of the peer. Ready when the peer has it. Brings the buffer back, if there was one.
    ///
    /// A slice is copied, and has at most [`inline_bytes`](AsyncOptions::inline_bytes), or is sent from a buffer of the connection's.
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
        let payload = match payload.into() {
            Payload::Inline(bytes) if bytes.len() > self.options.inline_bytes as usize => {
                let mut buffer = self.buffer(bytes.len())?;
                buffer.copy_from_slice(bytes);
                let buffer = self.perform(WorkRequest::send(buffer)).await?.success()?.into_buffer();
                self.recycle(buffer);
                return Ok(None);
            }
            payload => payload,
        };
        Ok(self.perform(WorkRequest::send(payload)).await?.success()?.buffer)
    }

    /// RDMA Write: puts the bytes at the beginning of `remote`. Ready when the peer's device has them. Brings the buffer back, if there was one.
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

    /// Puts `swap` into the 8 bytes at the beginning of `remote` if they equal `compare`, atomically. What was there before.
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

    /// The oldest message that nobody has taken. Waits until there is one. None after the end of the connection, when all messages are taken.
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
    /// A message was longer than [`message_bytes`](AsyncOptions::message_bytes), or could not be taken for another reason ([`Error::Request`]): that
    /// ends the connection. ENODEV in a child of fork.
    pub async fn receive(&self) -> Result<Option<Message>> {
        Ok(self.driver.message().await?.and_then(|completion| self.message(completion)))
    }

    fn message(&self, completion: Completion) -> Option<Message> {
        let Completion { bytes, immediate, invalidated, buffer, .. } = completion;
        Some(Message { driver: self.driver.clone(), buffer: Some(buffer?), bytes, immediate, invalidated })
    }

    /// Polls for the oldest message, as [`AsyncConnection::receive`] does, for a task that keeps its place among those that wait.
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
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn disconnect(&self) -> Result<()> {
        self.driver.connection.disconnect()
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
        let connection = &self.driver.connection;
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
    pub fn ended(&self) -> Option<End> {
        self.driver.connection.ended()
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
            .field("queue_pair", self.driver.connection.queue_pair())
            .finish_non_exhaustive()
    }
}

/// A message that has come: use it as a `[u8]`. Its drop lets another message have its place.
///
/// ```
/// use adverb::asynchronous::AsyncConnection;
///
/// /// Prints messages until the peer ends the connection.
/// async fn print(connection: &AsyncConnection) -> adverb::Result<()> {
///     while let Some(message) = connection.receive().await? {
///         println!("{} bytes, number {:?}", message.len(), message.immediate());
///     }
///     Ok(())
/// }
/// ```
pub struct Message {
    driver: Arc<Driver>,
    /// None when it is dropped.
    buffer: Option<Buffer>,
    bytes: usize,
    immediate: Option<u32>,
    invalidated: Option<u32>,
}

impl Message {
    /// The number that came with the message.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// The key of one of this side's regions that the peer gave up with the message.
    pub fn invalidated(&self) -> Option<u32> {
        self.invalidated
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.get(..self.bytes)).unwrap_or_default()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.driver.post_receive(buffer);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("bytes", &self.bytes).field("immediate", &self.immediate).finish()
    }
}
