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
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// The header in front of the bytes, if the message has one of so many.
    pub(super) fn header<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buffer.as_ref()?.first_chunk()
    }

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
