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
    pub fn number(&self) -> u32 {
        self.driver.queues.number()
    }

    /// The protection domain of the queue pair, where memory and [ways](AddressHandle) come from.
    pub fn domain(&self) -> &ProtectionDomain {
        self.driver.queues.queue_pair().domain()
    }

    /// A buffer of `length` bytes for a datagram: one that a future has left behind or that was
    /// [recycled](Self::recycle), or a new one. It has any bytes.
    ///
    /// # Errors
    /// As [`ProtectionDomain::buffer`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        self.driver.buffer(length)
    }

    /// Keeps a buffer for [`AsyncDatagramQueuePair::buffer`]. A new one costs a registration.
    pub fn recycle(&self, buffer: Buffer) {
        self.driver.recycle(buffer);
    }

    /// Sends any datagram, such as one with a number, and brings its completion, whether it ended well or
    /// not. An [unsignalled](DatagramRequest::unsignalled) one reports its end, too.
    ///
    /// A future that is dropped before the datagram was posted sends nothing. Afterwards the datagram is
    /// sent. Its buffer is then kept for [`AsyncDatagramQueuePair::buffer`].
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
    pub fn way_back(&self, datagram: &Datagram) -> Option<AddressHandle> {
        AddressHandle::of_header(self.domain(), datagram.message.header()?)
    }

    /// Receives what is sent to a multicast group, too, from now on.
    ///
    /// # Errors
    /// EINVAL if `group` is no multicast address.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        self.driver.queues.join(group)
    }

    /// Leaves a multicast group.
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
    pub fn sender(&self) -> u32 {
        self.sender
    }

    /// The number that came with the datagram.
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
