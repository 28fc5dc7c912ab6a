//! Messages that have come.

use super::driver::{Driver, Receives};
use super::queues::WorkQueues;
use crate::{Buffer, Completion};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

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
    /// Where the buffer goes back to.
    receives: Arc<dyn Receives>,
    /// None when it is dropped.
    buffer: Option<Buffer>,
    /// Where the bytes lie in the buffer.
    range: Range<usize>,
    queue_pair: u32,
    immediate: Option<u32>,
    invalidated: Option<u32>,
}

impl Message {
    /// The message of a completion, behind `header` bytes. None if it has no buffer.
    pub(super) fn new<Q: WorkQueues>(
        driver: &Arc<Driver<Q>>,
        completion: Completion,
        header: usize,
    ) -> Option<Self> {
        let Completion { bytes, immediate, invalidated, buffer, queue_pair, .. } = completion;
        let (receives, range) = (driver.clone(), header..bytes);
        Some(Self { receives, buffer: Some(buffer?), range, queue_pair, immediate, invalidated })
    }

    /// The number of this side's queue pair that has received it
    /// ([`AsyncConnection::number`](super::AsyncConnection::number)).
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let shared = endpoint.shared_receive_queue()?;
    /// # let servers = endpoint.clone().with_shared_receive_queue(&shared);
    /// # let mut listener = servers.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// # let server = listener.accept().await?.accept(b"").await?;
    /// # let client = client.await.unwrap()?;
    /// client.send(b"a question").await?;
    /// // With shared receives, the answer goes over the connection that has brought the question.
    /// let question = shared.receive().await?;
    /// assert_eq!(question.queue_pair(), server.number());
    /// server.send(b"an answer").await?;
    /// assert_eq!(&client.receive().await?.expect("the server is there")[..], b"an answer");
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// The header in front of the bytes, if the message has one of so many.
    pub(super) fn header<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buffer.as_ref()?.first_chunk()
    }

    /// The number that came with the message.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// # let operations = client.domain().context().attributes().operations;
    /// # if !operations.contains(&adverb::Opcode::SendWithImmediate) {
    /// #     return Ok(());
    /// # }
    /// // The number is for the kind of the message: so the bytes need no header.
    /// client.perform(WorkRequest::send(b"two of them").immediate(7)).await?;
    /// let message = server.receive().await?.expect("the client is there");
    /// assert_eq!((message.immediate(), &message[..]), (Some(7), &b"two of them"[..]));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// The key of one of this side's regions that the peer gave up with the message.
    ///
    /// ```
    /// use adverb::{Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example_async.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # with_ends(async |(client, server)| {
    /// # // On `iwarp0`, the two ends need protection domains of their own.
    /// # if client.domain().context().attributes().transport == adverb::TransportType::Iwarp {
    /// #     return Ok(());
    /// # }
    /// // The server has lent a region, and learns by its key that it comes back.
    /// let lent = server.domain().memory_region(64, Rights::READ)?;
    /// let token = lent.remote();
    /// client.perform(WorkRequest::send(b"done").invalidate(&token)).await?;
    /// let message = server.receive().await?.expect("the client is there");
    /// assert_eq!(message.invalidated(), Some(token.key()));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn invalidated(&self) -> Option<u32> {
        self.invalidated
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.get(self.range.clone())).unwrap_or_default()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.receives.post_receive(buffer);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("bytes", &self.len()).field("immediate", &self.immediate).finish()
    }
}
