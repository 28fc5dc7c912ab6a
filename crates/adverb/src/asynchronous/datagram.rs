//! Datagrams for async programs.

use super::Message;
use super::driver::{Driver, Receives};
use super::runtime::Runtime;
use crate::{
    AddressHandle, Buffer, Completion, DATAGRAM_HEADER, DatagramQueuePair, DatagramRequest, Error, Payload,
    ProtectionDomain, Result,
};
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// A queue pair of datagrams whose requests are futures
/// ([`AsyncEndpoint::datagram_queue_pair`](super::AsyncEndpoint::datagram_queue_pair)). Thread-safe: any
/// number of tasks use it at once, by reference or in an [`Arc`].
///
/// A datagram has at most the path MTU ([`PortAttributes::active_mtu`](crate::PortAttributes::active_mtu)),
/// and can be lost. One is always lost that comes while all receives hold datagrams that the program has not
/// dropped, or that is longer than [`message_bytes`](super::AsyncOptions::message_bytes).
///
/// Dropping the queue pair ends it. Datagrams that have not left are lost.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # mod with_tokio {
/// use adverb::asynchronous::{AsyncEndpoint, Tokio};
/// use adverb::{AddressHandle, Context};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # pub(super) async fn main() -> adverb::Result<()> {
/// const QKEY: u32 = 0x1234;
/// let domain = Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
/// #     return Ok(());
/// # }
/// let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
/// let (asks, answers) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
///
/// let local = "127.0.0.1".parse().unwrap();
/// let way = AddressHandle::new(&domain, local, local)?;
/// asks.send(b"who is there?", &way, answers.number(), QKEY).await?;
///
/// let question = answers.receive().await?;
/// assert_eq!(&question[..], b"who is there?");
/// if let Some(way) = answers.way_back(&question) {
///     answers.send(b"I am", &way, question.sender(), QKEY).await?;
/// }
/// assert_eq!(&asks.receive().await?[..], b"I am");
/// # Ok(())
/// # }
/// # }
/// # fn main() -> adverb::Result<()> {
/// # #[cfg(feature = "tokio")]
/// # with_tokio::main()?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncDatagramQueuePair {
    driver: Arc<Driver<DatagramQueuePair>>,
    inline_bytes: u32,
    /// Runs the watcher.
    _runtime: Arc<dyn Runtime>,
}

impl AsyncDatagramQueuePair {
    pub(super) fn new(
        driver: Arc<Driver<DatagramQueuePair>>,
        inline_bytes: u32,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        Self { driver, inline_bytes, _runtime: runtime }
    }

    /// The queue pair's number, which senders need.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // The client knows the number from elsewhere, such as a file.
    /// let number = server.number();
    /// client.send(b"hello", &way, number, QKEY).await?;
    /// assert_eq!(&server.receive().await?[..], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.driver.queues.number()
    }

    /// The protection domain of the queue pair, where memory and [ways](AddressHandle) come from.
    ///
    /// ```
    /// use adverb::AddressHandle;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let here = "127.0.0.1".parse().unwrap();
    /// // A way of another domain would be refused.
    /// let way = AddressHandle::new(client.domain(), here, here)?;
    /// client.send(b"hello", &way, server.number(), QKEY).await?;
    /// assert_eq!(&server.receive().await?[..], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        self.driver.queues.queue_pair().domain()
    }

    /// A buffer of `length` bytes for a datagram: one that a future has left behind or that was
    /// [recycled](Self::recycle), or a new one. It has any bytes.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let mut buffer = client.buffer(512)?;
    /// // It may have the bytes of an earlier datagram.
    /// buffer.fill(7);
    /// client.send(buffer, &way, server.number(), QKEY).await?;
    /// assert_eq!(server.receive().await?[..], [7; 512]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        self.driver.buffer(length)
    }

    /// Keeps a buffer for [`AsyncDatagramQueuePair::buffer`]. A new one costs a registration.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let buffer = client.buffer(512)?;
    /// let place = buffer.as_ptr();
    /// let buffer = client.send(buffer, &way, server.number(), QKEY).await?;
    /// client.recycle(buffer.expect("the request had one"));
    /// // The next datagram has the same memory, without a registration.
    /// assert_eq!(client.buffer(512)?.as_ptr(), place);
    /// # Ok(())
    /// # }
    /// ```
    pub fn recycle(&self, buffer: Buffer) {
        self.driver.recycle(buffer);
    }

    /// Sends any datagram, such as one with a number, and brings its completion, whether it ended well or
    /// not. An [unsignalled](DatagramRequest::unsignalled) one reports its end, too.
    ///
    /// A future that is dropped before the datagram was posted sends nothing. Afterwards the datagram is
    /// sent. Its buffer is then kept for [`AsyncDatagramQueuePair::buffer`].
    ///
    /// ```
    /// use adverb::DatagramRequest;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // A datagram with a number, by which the server sees that others were lost:
    /// let request = DatagramRequest::send(b"21.5 degrees", &way, server.number(), QKEY);
    /// let completion = client.perform(request.immediate(17)).await?;
    /// assert!(completion.error().is_none());
    /// assert_eq!(server.receive().await?.immediate(), Some(17));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The request was not accepted ([`Error::Post`]), and its buffers are gone. ENODEV in a child of fork;
    /// ECANCELED after the [end of the runtime](super::Runtime#the-end-of-a-runtime).
    pub async fn perform(&self, request: DatagramRequest<'_>) -> Result<Completion> {
        self.driver.perform(request).await
    }

    /// Sends a datagram by `way` to the queue pair `number` there, which has the key `qkey`. Ready when it
    /// has left. Brings the buffer back, if there was one. Dropping the future is as for
    /// [`AsyncDatagramQueuePair::perform`].
    ///
    /// A slice is copied, and has at most [`inline_bytes`](super::AsyncOptions::inline_bytes), or is sent
    /// from a buffer of the queue pair's.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // The server has another key, so the first datagram is lost. It has left all the same.
    /// client.send(b"lost", &way, server.number(), QKEY + 1).await?;
    /// client.send(b"found", &way, server.number(), QKEY).await?;
    /// assert_eq!(&server.receive().await?[..], b"found");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`AsyncDatagramQueuePair::perform`]; [`Error::Request`] if the request has failed.
    pub async fn send(
        &self,
        payload: impl Into<Payload<'_>>,
        way: &AddressHandle,
        number: u32,
        qkey: u32,
    ) -> Result<Option<Buffer>> {
        let (payload, is_copy) = self.driver.sendable(payload.into(), self.inline_bytes)?;
        let completion = self.perform(DatagramRequest::send(payload, way, number, qkey)).await?.success()?;
        Ok(self.driver.sent_buffer(completion, is_copy))
    }

    /// The oldest datagram that nobody has taken. Waits until there is one.
    ///
    /// A future that is dropped takes none: the datagram is for the next call. Receives stay posted, into
    /// memory that the program does not have.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use std::time::Duration;
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // A datagram may be lost, so a program waits with a time-out. That loses no datagram.
    /// assert!(tokio::time::timeout(Duration::from_millis(10), server.receive()).await.is_err());
    /// client.send(b"hello", &way, server.number(), QKEY).await?;
    /// assert_eq!(&server.receive().await?[..], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork; ECANCELED after the [end of the
    /// runtime](super::Runtime#the-end-of-a-runtime); ECONNRESET after a failure of the device.
    pub async fn receive(&self) -> Result<Datagram> {
        loop {
            let Some(mut completion) = self.driver.message().await? else {
                return Err(Error::new(
                    libc::ECONNRESET,
                    "the queue pair of datagrams has failed: make another one",
                ));
            };
            match (completion.error(), completion.sender) {
                (None, Some(sender)) => {
                    if let Some(message) = Message::new(&self.driver, completion, DATAGRAM_HEADER) {
                        return Ok(Datagram { message, sender });
                    }
                }
                // Lost, and its receive takes another one.
                _ => completion.buffer.take().into_iter().for_each(|buffer| self.driver.post_receive(buffer)),
            }
        }
    }

    /// The way back to the sender of a datagram. None if it came by multicast, or to an address that the
    /// device has no more.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// client.send(b"who is there?", &way, server.number(), QKEY).await?;
    /// let question = server.receive().await?;
    /// let way = server.way_back(&question).expect("it came to an address of this host");
    /// server.send(b"I am", &way, question.sender(), QKEY).await?;
    /// assert_eq!(&client.receive().await?[..], b"I am");
    /// # Ok(())
    /// # }
    /// ```
    pub fn way_back(&self, datagram: &Datagram) -> Option<AddressHandle> {
        AddressHandle::of_header(self.domain(), datagram.message.header()?)
    }

    /// Receives what is sent to a multicast group, too, from now on.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let datagrams = endpoint.datagram_queue_pair(0x1234)?;
    /// // Questions to all servers go to this group.
    /// datagrams.join("239.1.2.3".parse().unwrap())?;
    /// // The address of one host is no group.
    /// assert!(datagrams.join("192.0.2.7".parse().unwrap()).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL if `group` is no multicast address.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        self.driver.queues.join(group)
    }

    /// Leaves a multicast group.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let datagrams = endpoint.datagram_queue_pair(0x1234)?;
    /// let group = "239.1.2.3".parse().unwrap();
    /// datagrams.join(group)?;
    /// // This server takes no more questions, and goes on with its answers.
    /// datagrams.leave(group)?;
    /// assert!(datagrams.leave(group).is_err(), "it is no member any more");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for a group that it has not joined.
    pub fn leave(&self, group: IpAddr) -> Result<()> {
        self.driver.queues.leave(group)
    }
}

impl Drop for AsyncDatagramQueuePair {
    fn drop(&mut self) {
        // Datagrams that the program still has keep the rest.
        self.driver.queues.queue_pair().fail();
        self.driver.watcher_end().come();
    }
}

impl fmt::Debug for AsyncDatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDatagramQueuePair").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// A datagram that has come: use it as a `[u8]`. Its drop lets another datagram have its place.
///
/// ```
/// use adverb::asynchronous::AsyncDatagramQueuePair;
///
/// /// Prints where datagrams come from.
/// async fn print(datagrams: &AsyncDatagramQueuePair) -> adverb::Result<()> {
///     loop {
///         let datagram = datagrams.receive().await?;
///         let way = datagrams.way_back(&datagram);
///         println!("{} bytes of queue pair {} by {way:?}", datagram.len(), datagram.sender());
///     }
/// }
/// ```
pub struct Datagram {
    message: Message,
    sender: u32,
}

impl Datagram {
    /// The number of the sender's queue pair.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// client.send(b"who is there?", &way, server.number(), QKEY).await?;
    /// // The answer goes to the queue pair that has asked.
    /// let question = server.receive().await?;
    /// assert_eq!(question.sender(), client.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn sender(&self) -> u32 {
        self.sender
    }

    /// The number that came with the datagram.
    ///
    /// ```
    /// use adverb::DatagramRequest;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let (client, server) = (endpoint.datagram_queue_pair(QKEY)?, endpoint.datagram_queue_pair(QKEY)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// for number in [1, 2] {
    ///     let request = DatagramRequest::send(b"21.5 degrees", &way, server.number(), QKEY);
    ///     client.perform(request.immediate(number)).await?;
    /// }
    /// // No number is missing between the two.
    /// let numbers = (server.receive().await?.immediate(), server.receive().await?.immediate());
    /// assert_eq!(numbers, (Some(1), Some(2)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn immediate(&self) -> Option<u32> {
        self.message.immediate()
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.message
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("sender", &self.sender).field("bytes", &self.len()).finish()
    }
}
