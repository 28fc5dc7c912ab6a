//! Shared receives for async programs.

use super::Message;
use super::driver::{Driver, Receives};
use super::runtime::Runtime;
use crate::{Error, ProtectionDomain, Result, SharedReceiveQueue};
use std::fmt;
use std::sync::Arc;

/// Receives for the messages of several connections, as futures
/// ([`AsyncEndpoint::shared_receive_queue`](super::AsyncEndpoint::shared_receive_queue)). Thread-safe.
///
/// The connections come from
/// [`AsyncEndpoint::with_shared_receive_queue`](super::AsyncEndpoint::with_shared_receive_queue). Each
/// message says by which of them it came ([`Message::queue_pair`],
/// [`AsyncConnection::number`](super::AsyncConnection::number)). It may come before the future that makes its
/// connection is ready.
///
/// A message waits at its sender while all receives hold messages that the program has not dropped: on
/// `iwarp0` for two seconds, then its connection ends ([back-pressure](super#back-pressure)). The end of a
/// connection takes no receive along. Messages that came before are still received.
///
/// After the drop of the queue, nobody takes the messages of its connections any more.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # mod with_tokio {
/// use adverb::Context;
/// use adverb::asynchronous::{AsyncEndpoint, Tokio};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # pub(super) async fn main() -> adverb::Result<()> {
/// let domain = Context::open_default()?.protection_domain()?;
/// let clients = AsyncEndpoint::new(&domain, Tokio::current());
/// let shared = clients.shared_receive_queue()?;
/// let servers = clients.clone().with_shared_receive_queue(&shared);
/// let mut listener = servers.listen(([127, 0, 0, 1], 0).into(), 16)?;
/// let address = listener.local_address();
///
/// let mut ends = Vec::new();
/// for number in 0..3_u8 {
///     let (client, server) = tokio::join!(clients.connect(address, &[]), async {
///         Ok::<_, adverb::Error>(listener.accept().await?.accept(&[]).await?)
///     });
///     let (client, server) = (client?, server?);
///     client.send(&[number]).await?;
///     ends.push((client, server));
/// }
/// for _ in 0..3 {
///     let message = shared.receive().await?;
///     let (_, server) = &ends[usize::from(message[0])];
///     assert_eq!(message.queue_pair(), server.number());
/// }
/// # Ok(())
/// # }
/// # }
/// # fn main() -> adverb::Result<()> {
/// # #[cfg(feature = "tokio")]
/// # with_tokio::main()?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncSharedReceiveQueue {
    driver: Arc<Driver<SharedReceiveQueue>>,
    /// Runs the watcher.
    _runtime: Arc<dyn Runtime>,
}

impl AsyncSharedReceiveQueue {
    pub(super) fn new(driver: Arc<Driver<SharedReceiveQueue>>, runtime: Arc<dyn Runtime>) -> Self {
        Self { driver, _runtime: runtime }
    }

    pub(super) fn driver(&self) -> &Arc<Driver<SharedReceiveQueue>> {
        &self.driver
    }

    /// The queue's protection domain.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let shared = endpoint.shared_receive_queue()?;
    /// // The connections that bring it messages are of the same domain.
    /// let servers = AsyncEndpoint::new(shared.domain(), Tokio::current());
    /// let servers = servers.with_shared_receive_queue(&shared);
    /// # let mut listener = servers.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// let server = listener.accept().await?.accept(b"").await?;
    /// assert!(server.ended().is_none());
    /// # client.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        self.driver.queues.domain()
    }

    /// The oldest message of all connections that nobody has taken. Waits until there is one, also while
    /// there is no connection.
    ///
    /// A future that is dropped takes none: the message is for the next call. Receives stay posted, into
    /// memory that the program does not have.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use std::time::Duration;
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
    /// # let _server = listener.accept().await?.accept(b"").await?;
    /// # let client = client.await.unwrap()?;
    /// // A time-out loses no message.
    /// assert!(tokio::time::timeout(Duration::from_millis(10), shared.receive()).await.is_err());
    /// client.send(b"the last words").await?;
    /// drop(client);
    /// // It came before the end of its connection, so it is received.
    /// assert_eq!(&shared.receive().await?[..], b"the last words");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A message was longer than [`message_bytes`](super::AsyncOptions::message_bytes), or could not be taken
    /// for another reason: that ends its connection, which the [`Error::Request`] names by number. The next
    /// call brings messages of the others. ENODEV in a child of fork; ECANCELED after the [end of the
    /// runtime](super::Runtime#the-end-of-a-runtime); EIO after a failure of the engine; ECONNRESET after one
    /// of the device.
    pub async fn receive(&self) -> Result<Message> {
        loop {
            let Some(mut completion) = self.driver.message().await? else {
                return Err(Error::new(
                    libc::ECONNRESET,
                    "the shared receive queue has failed: make another one",
                ));
            };
            let Some(error) = completion.error() else {
                match Message::new(&self.driver, completion, 0) {
                    Some(message) => return Ok(message),
                    None => continue,
                }
            };
            completion.buffer.take().into_iter().for_each(|buffer| self.driver.post_receive(buffer));
            // A connection has ended amid a message.
            if !error.is_flushed() {
                return Err(error.into());
            }
        }
    }
}

impl Drop for AsyncSharedReceiveQueue {
    fn drop(&mut self) {
        // Connections keep the rest, and messages that the program still has.
        self.driver.watcher_end().come();
    }
}

impl fmt::Debug for AsyncSharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSharedReceiveQueue").field("queue", &self.driver.queues).finish_non_exhaustive()
    }
}
