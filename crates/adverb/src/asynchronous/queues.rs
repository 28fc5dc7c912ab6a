//! The queues that futures post to: those of a connection, of datagrams, and of shared receives.

use super::driver::{Driver, RECEIVE};
use crate::request::Rejected;
use crate::{
    Buffer, Connection, DatagramQueuePair, DatagramRequest, Error, ProtectionDomain, RequestError,
    SharedReceiveQueue, WorkRequest,
};
use adverb_core::request::SendFlags;
use std::convert::Infallible;
use std::sync::Arc;

/// Queues of requests. A driver has them, and takes their completions. Thread-safe.
pub(super) trait WorkQueues: Send + Sync + 'static {
    /// A request of the send queue.
    type Request<'a>: Send;

    /// The domain where memory comes from.
    fn domain(&self) -> &ProtectionDomain;

    /// Posts a request with this number to the send queue. Its end is waited for, so it reports that.
    ///
    /// # Errors
    /// As [`Connection::post_send`].
    fn post_send(&self, id: u64, request: Self::Request<'_>) -> Result<(), Rejected>;

    /// Posts a receive.
    ///
    /// # Errors
    /// As [`Connection::post_receive`].
    fn post_receive(&self, buffer: Buffer) -> Result<(), Rejected>;

    /// Whether no more messages come after a receive that has failed so.
    fn is_end(error: &RequestError) -> bool;

    /// Why no message ever comes. None if some may come.
    fn no_messages(&self) -> Option<Error> {
        None
    }
}

/// The queues of a connection.
pub(super) struct ConnectionQueues {
    pub(super) connection: Connection,
    /// The receiver of its messages, if it does not receive itself.
    pub(super) shared: Option<Arc<Driver<SharedReceiveQueue>>>,
}

impl WorkQueues for ConnectionQueues {
    type Request<'a> = WorkRequest<'a>;

    fn domain(&self) -> &ProtectionDomain {
        self.connection.domain()
    }

    fn post_send(&self, id: u64, mut request: WorkRequest<'_>) -> Result<(), Rejected> {
        request.flags |= SendFlags::SIGNALED;
        self.connection.post_send(request.id(id))
    }

    fn post_receive(&self, buffer: Buffer) -> Result<(), Rejected> {
        self.connection.post_receive(RECEIVE, buffer)
    }

    fn is_end(_: &RequestError) -> bool {
        true
    }

    fn no_messages(&self) -> Option<Error> {
        self.shared.as_ref()?;
        let text = "the connection has no receives of its own: its messages come by AsyncSharedReceiveQueue::receive";
        Some(Error::invalid(text))
    }
}

impl Drop for ConnectionQueues {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            // Otherwise the drop of the queue pair would take shared receives along, with the messages in
            // them. In error, it takes no more of them.
            self.connection.queue_pair().fail();
            shared.take_completions();
        }
    }
}

impl WorkQueues for DatagramQueuePair {
    type Request<'a> = DatagramRequest<'a>;

    fn domain(&self) -> &ProtectionDomain {
        self.queue_pair().domain()
    }

    fn post_send(&self, id: u64, mut request: DatagramRequest<'_>) -> Result<(), Rejected> {
        request.request.flags |= SendFlags::SIGNALED;
        self.post_send(request.id(id))
    }

    fn post_receive(&self, buffer: Buffer) -> Result<(), Rejected> {
        self.post_receive(RECEIVE, buffer)
    }

    fn is_end(error: &RequestError) -> bool {
        // Any sender can make a datagram that is too long. The queue pair goes on.
        error.is_flushed()
    }
}

impl WorkQueues for SharedReceiveQueue {
    type Request<'a> = Infallible;

    fn domain(&self) -> &ProtectionDomain {
        self.domain()
    }

    fn post_send(&self, _: u64, request: Infallible) -> Result<(), Rejected> {
        match request {}
    }

    fn post_receive(&self, buffer: Buffer) -> Result<(), Rejected> {
        self.post_receive(RECEIVE, buffer)
    }

    fn is_end(_: &RequestError) -> bool {
        // One of the connections has ended, and the others go on.
        false
    }
}
