//! Connections: how queue pairs come together, and how they part.

mod error;
mod listener;
mod options;

pub use error::{ConnectError, End, NotConnected};
pub use listener::{ConnectionRequest, Listener};
pub use options::ConnectionOptions;

use crate::completion_queue::left_until;
use crate::request::{Rejected, WorkRequest};
use crate::{Context, Error, QueuePair, Result};
use adverb_core::cm::{
    ConnectRequest, ConnectionEvent, ConnectionSink, OutgoingConnection, PrivateDataLimits,
};
use adverb_core::failure::FailureListener;
use adverb_core::memory::moved::safe_point;
use adverb_core::request::Status;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The error of a wait for a connection after a panic in a thread of the engine.
const FAILURE: &str = "a thread of adverb in this process has failed";

/// The fate of a connection, as the transport reports it.
#[derive(Default)]
struct Progress {
    state: Mutex<ConnectionReport>,
    changed: Condvar,
    /// Readable once the connection has ended, and while a task waits for the answer. Made when the program
    /// first asks for it.
    descriptor: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct ConnectionReport {
    /// The peer's private data, or why there is no connection.
    answer: Option<Result<Vec<u8>, ConnectError>>,
    /// The connection has ended.
    ended: bool,
    /// This side has accepted the peer's request. The peer learns of that before it ends the connection: the
    /// connection has stood, though its own word of that may be lost.
    accepts: bool,
    /// This side has asked for the end, before there was one.
    by_us: bool,
    /// A thread of the engine has failed.
    failed: bool,
}

impl ConnectionReport {
    /// The peer's answer, or why there is no connection. Once.
    fn outcome(&mut self) -> Option<Result<Vec<u8>, ConnectError>> {
        let closed = || match self.accepts {
            true => Ok(Vec::new()),
            false => {
                Err(ConnectError::from_status("the peer closed the connection at once", libc::ECONNRESET))
            }
        };
        self.answer.take().or_else(|| self.ended.then(closed))
    }
}

impl ConnectionSink for Progress {
    fn event(&self, event: ConnectionEvent) {
        let answer = match event {
            ConnectionEvent::Established { private_data, .. } => Some(Ok(private_data)),
            ConnectionEvent::Rejected { nobody_listens: true, .. } => Some(Err(ConnectError::NobodyListens)),
            ConnectionEvent::Rejected { status, private_data, .. } => {
                Some(Err(ConnectError::Rejected { status, private_data }))
            }
            ConnectionEvent::Unreachable { status } => {
                Some(Err(ConnectError::from_status("the peer did not answer", status)))
            }
            ConnectionEvent::Failed { status } => {
                Some(Err(ConnectError::from_status("setting up the connection failed", status)))
            }
            // Queue pairs here are connected by the transport, so nothing waits for an answer to a response.
            ConnectionEvent::Response { .. } | ConnectionEvent::TimewaitExit => return,
            ConnectionEvent::Disconnected => None,
        };
        let mut state = self.lock();
        match answer {
            Some(answer) => state.answer = Some(answer),
            None => state.ended = true,
        }
        self.tell();
        self.changed.notify_all();
    }
}

impl FailureListener for Progress {
    fn engine_failed(&self) {
        let mut state = self.lock();
        state.answer.get_or_insert(Err(ConnectError::Failed(Error::new(libc::EIO, FAILURE))));
        (state.ended, state.failed) = (true, true);
        self.tell();
        self.changed.notify_all();
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, ConnectionReport> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable, if there is one. With the lock, so that a program that makes it
    /// meanwhile finds the end.
    fn tell(&self) {
        if let Some(descriptor) = self.descriptor.get() {
            let one = 1u64;
            // SAFETY: eight bytes of a live local, to an open descriptor. The counter cannot overflow, and if
            // it did, it would be readable.
            unsafe { libc::write(descriptor.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// The outcome, if there is one. From then on, only the end makes the descriptor readable.
    fn outcome(&self) -> Option<Result<Vec<u8>, ConnectError>> {
        let mut state = self.lock();
        let outcome = state.outcome()?;
        if let Some(descriptor) = self.descriptor.get().filter(|_| !state.ended) {
            let mut count = 0u64;
            // SAFETY: eight bytes of a live local, from an open descriptor that never waits.
            unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        Some(outcome)
    }

    /// The descriptor that [`Progress::tell`] makes readable.
    fn descriptor(&self) -> Result<&OwnedFd> {
        let state = self.lock();
        if self.descriptor.get().is_none() {
            // SAFETY: eventfd(2) takes plain numbers.
            let new = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if new < 0 {
                return Err(adverb_core::error::Error::system("eventfd").into());
            }
            // SAFETY: fresh, and nobody else's.
            self.descriptor.get_or_init(|| unsafe { OwnedFd::from_raw_fd(new) });
            if state.ended || state.answer.is_some() {
                self.tell();
            }
        }
        drop(state);
        self.descriptor.get().ok_or_else(|| Error::invalid("there is no descriptor"))
    }

    /// The progress of a new connection on a device of `context`, for which the peer has asked (`accepts`) or
    /// this side asks.
    fn begin(context: &Context, accepts: bool) -> Result<Arc<Self>> {
        let progress = Arc::new(Self::default());
        progress.lock().accepts = accepts;
        let concerned: Weak<Self> = Arc::downgrade(&progress);
        context.0.engine().failure.concerns(concerned)?;
        Ok(progress)
    }

    /// Waits until `done` finds what it waits for; nothing at the deadline.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut done: impl FnMut(&mut ConnectionReport) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            if let Some(found) = done(&mut state) {
                return Some(found);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left.unwrap_or(Duration::MAX));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connected queue pair. Dropping it ends the connection in order: what was posted still goes out as far as
/// the transport can, and the peer sees the end.
///
/// ```
/// use adverb::{Connection, WorkRequest};
/// use std::time::Duration;
///
/// /// Sends a question, and returns the answer. A receive for it was posted before.
/// fn ask(connection: &Connection, question: &[u8]) -> adverb::Result<Vec<u8>> {
///     let mut buffer = connection.domain().buffer(question.len())?;
///     buffer.copy_from_slice(question);
///     connection.post_send(WorkRequest::send(buffer).unsignalled())?;
///     let answer = connection.receive_queue().wait(Duration::from_secs(10))?.success()?;
///     Ok(answer.message().to_vec())
/// }
/// ```
pub struct Connection {
    // Dropped in this order: first the connection's own handle, then the queue pair.
    handle: Handle,
    queue_pair: QueuePair,
    progress: Arc<Progress>,
    private_data: Vec<u8>,
    peer: Option<SocketAddr>,
}

/// The transport's handle. Its drop ends the connection.
struct Handle(Box<dyn OutgoingConnection>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A connection that has ended already has nothing to say.
        let _ = self.0.disconnect();
    }
}

/// A connection that has begun, and has no outcome yet. Its drop gives it up.
pub(crate) struct ConnectionAttempt {
    handle: Handle,
    queue_pair: QueuePair,
    progress: Arc<Progress>,
    peer: Option<SocketAddr>,
    /// The private data of the peer's request. Empty if this side asks.
    asked: Vec<u8>,
}

impl ConnectionAttempt {
    /// An attempt that has begun, or the reason why it could not.
    fn new(
        queue_pair: QueuePair,
        begun: Result<(Box<dyn OutgoingConnection>, Arc<Progress>)>,
        peer: Option<SocketAddr>,
        asked: Vec<u8>,
    ) -> Result<Self, NotConnected> {
        match begun {
            Ok((handle, progress)) => Ok(Self { handle: Handle(handle), queue_pair, progress, peer, asked }),
            Err(error) => Err(NotConnected::of(ConnectError::Failed(error), queue_pair)),
        }
    }

    /// The outcome, if there is one. Once.
    pub(crate) fn outcome(&self) -> Option<Result<Vec<u8>, ConnectError>> {
        self.progress.outcome()
    }

    /// A descriptor that is readable while there is an outcome that nobody has taken.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.progress.descriptor()?.as_fd())
    }

    /// The connection, or why there is none. No outcome: the peer did not answer within `timeout`.
    pub(crate) fn end(
        self,
        outcome: Option<Result<Vec<u8>, ConnectError>>,
        timeout: Duration,
    ) -> Result<Connection, NotConnected> {
        let Self { handle, queue_pair, progress, peer, asked } = self;
        let error = match outcome {
            Some(Ok(answer)) => {
                let private_data = if asked.is_empty() { answer } else { asked };
                return Ok(Connection { handle, queue_pair, progress, private_data, peer });
            }
            Some(Err(error)) => error,
            None => ConnectError::Failed(Error::new(
                libc::ETIMEDOUT,
                format!("the peer did not answer within {timeout:?}"),
            )),
        };
        // Before the queue pair has another life.
        drop(handle);
        Err(NotConnected::of(error, queue_pair))
    }
}

impl Connection {
    /// Waits for the outcome of a connection that has begun, or could not begin.
    fn establish(
        begun: Result<ConnectionAttempt, NotConnected>,
        timeout: Duration,
    ) -> Result<Self, NotConnected> {
        let attempt = begun?;
        let outcome = attempt.progress.wait(timeout, ConnectionReport::outcome);
        // The thread may sleep from here on.
        safe_point();
        attempt.end(outcome, timeout)
    }

    /// The private data with which the peer asked for or accepted the connection. Transports may append
    /// zeros.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let (client, _server) = connected(client, server, b"welcome")?;
    /// assert!(client.private_data().starts_with(b"welcome"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The peer's address.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// let (here, there) = (client.local_address(), client.peer_address());
    /// assert!([here, there].iter().all(|it| it.is_some_and(|it| it.ip().is_loopback())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// This side's address, once the transport has chosen one.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// // The kernel has chosen the address by which this host reaches the peer.
    /// let here = client.local_address().expect("the connection stands");
    /// assert!(here.ip().is_loopback());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.handle.0.local()
    }

    /// The queue pair.
    ///
    /// ```
    /// use adverb::QueuePair;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    ///
    /// /// Posts two receives, before there is a connection or afterwards.
    /// fn offer(queue_pair: &QueuePair) -> adverb::Result<()> {
    ///     for buffer in queue_pair.domain().buffers(2, 64)? {
    ///         queue_pair.post_receive(0, buffer)?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// offer(client.queue_pair())?;
    /// assert_eq!(client.in_flight(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Puts a request on its way. Returns at once: the end of the request, and with it its buffer, come out
    /// of [`QueuePair::send_queue`]. In the steady state it allocates nothing.
    ///
    /// A queue pair that is not connected has no such function:
    ///
    /// ```compile_fail,E0599
    /// # fn post(queue_pair: &adverb::QueuePair) {
    /// let _ = queue_pair.post_send(adverb::WorkRequest::send(b"to nobody"));
    /// # }
    /// ```
    ///
    /// ```
    /// use adverb::{PostError, Rights, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::WRITE)?;
    /// let mut buffer = client.domain().buffer(64)?;
    /// buffer.fill(7);
    /// // A request that is refused gives its buffer back at once. One that is accepted gives it back when it ends.
    /// let token = there.slice(..32).expect("the region has so much");
    /// let refused = client.post_send(WorkRequest::write(buffer, &token)).unwrap_err();
    /// assert_eq!(refused.reason, PostError::PastToken);
    /// let buffer = refused.buffer.expect("the request had one");
    /// client.post_send(WorkRequest::write(buffer, &there))?;
    /// assert_eq!(client.send_queue().wait(SOON)?.success()?.into_buffer()[..], [7; 64]);
    /// # drop(region);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError), such as `PastToken` for more bytes than the token names; the
    /// buffer comes back. `QueueFull` also when the completion queue has no room.
    #[inline]
    pub fn post_send(&self, request: WorkRequest<'_>) -> Result<(), Rejected> {
        self.queue_pair.post(request)
    }

    /// Ends the connection in order. Requests that are not complete come back as flushed.
    ///
    /// ```
    /// use adverb::End;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.disconnect()?;
    /// assert_eq!(client.wait_ended(SOON), Some(End::Here));
    /// assert_eq!(server.wait_ended(SOON), Some(End::Peer));
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect(&self) -> Result<()> {
        let mut state = self.progress.lock();
        state.by_us |= !state.ended;
        drop(state);
        Ok(self.handle.0.disconnect()?)
    }

    /// Waits until the connection has ended, by either side and for any reason. Whether it has.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// # drop(client);
    /// // A server that only offers memory has nothing else to do until its client has gone.
    /// let has_gone = server.wait_disconnected(SOON);
    /// assert!(has_gone);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_disconnected(&self, timeout: Duration) -> bool {
        self.wait_ended(timeout).is_some()
    }

    /// Waits until the connection has ended, at most `timeout`, and says how. None if it stands.
    ///
    /// The receives that no message has taken come back as completions with the status `Flushed`. That is no
    /// error of this program.
    ///
    /// ```
    /// use adverb::End;
    /// use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// // It stands:
    /// assert_eq!(server.wait_ended(Duration::from_millis(1)), None);
    /// client.disconnect()?;
    /// assert_eq!(server.wait_ended(Duration::from_secs(10)), Some(End::Peer));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_ended(&self, timeout: Duration) -> Option<End> {
        self.progress.wait(timeout, |reported| self.end_of(reported))
    }

    /// How the connection has ended. None while it stands.
    ///
    /// ```
    /// use adverb::End;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// assert!(client.ended().is_none());
    /// drop(server);
    /// assert_eq!(client.wait_ended(SOON), Some(End::Peer));
    /// assert_eq!(client.ended(), Some(End::Peer));
    /// # Ok(())
    /// # }
    /// ```
    pub fn ended(&self) -> Option<End> {
        self.end_of(&self.progress.lock())
    }

    fn end_of(&self, reported: &ConnectionReport) -> Option<End> {
        let failure = || self.queue_pair.core().queues().last_failure().filter(|it| *it != Status::Flushed);
        let end = || match (reported.failed, reported.by_us) {
            (true, _) => End::Engine,
            (_, true) => End::Here,
            _ => failure().map_or(End::Peer, End::Failed),
        };
        reported.ended.then(end)
    }

    /// A descriptor that is readable once the connection has ended, and stays so. Only for poll(2) and its
    /// like. The first call makes it.
    ///
    /// ```
    /// use adverb::Connection;
    /// use std::os::fd::AsRawFd;
    ///
    /// /// An entry for poll(2), which is readable once the connection has ended.
    /// fn entry(connection: &Connection) -> adverb::Result<libc::pollfd> {
    ///     let descriptor = connection.end_descriptor()?.as_raw_fd();
    ///     Ok(libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 })
    /// }
    /// ```
    ///
    /// # Errors
    /// EMFILE and ENFILE when descriptors have run out.
    pub fn end_descriptor(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.progress.descriptor()?.as_fd())
    }

    /// Ends the connection, and keeps the queue pair: it is in error then, and its requests come back as
    /// flushed. [`QueuePair::reset`] makes it new.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (_client, server) = ends()?;
    /// let mut queue_pair = server.into_queue_pair();
    /// // Four receives were posted.
    /// assert_eq!(queue_pair.reset()?.len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_queue_pair(self) -> QueuePair {
        let Self { handle, queue_pair, .. } = self;
        drop(handle);
        queue_pair.fail();
        queue_pair
    }
}

impl Deref for Connection {
    type Target = QueuePair;

    #[inline]
    fn deref(&self) -> &QueuePair {
        &self.queue_pair
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("queue_pair", &self.queue_pair).finish_non_exhaustive()
    }
}

impl QueuePair {
    /// Connects to the program that listens at `peer`, with `private_data` for it. Waits for the answer, at
    /// most `timeout`.
    ///
    /// ```
    /// use adverb::{ConnectError, QueuePairOptions};
    /// use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// let completions = context.completion_queue(16)?;
    /// let queue_pair = context.protection_domain()?.queue_pair(QueuePairOptions::new(&completions))?;
    /// # let listener = adverb::Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let server = listener.local_address();
    /// # drop(listener);
    /// let result = queue_pair.connect(server, b"who I am", Duration::from_secs(10));
    /// // The server has gone.
    /// assert!(matches!(result, Err(ConnectError::NobodyListens)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for more private data than the transport carries. The queue pair is gone
    /// then, with its buffers: [`QueuePair::connect_with`] gives it back.
    pub fn connect(
        self,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let options = ConnectionOptions::new().private_data(private_data).timeout(timeout);
        Ok(self.connect_with(peer, &options)?)
    }

    /// Connects to the program that listens at `peer`. Waits for the answer, as long as `options` say.
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for options that the device does not have. The queue pair comes back in
    /// the error, and may try again:
    ///
    /// ```
    /// use adverb::{ConnectError, ConnectionOptions, Context, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = Context::open_default()?;
    /// # let nobody = adverb::Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 1)?.local_address();
    /// let completions = context.completion_queue(16)?;
    /// let domain = context.protection_domain()?;
    /// let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
    /// queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// let failed = queue_pair.connect_with(nobody, &ConnectionOptions::new()).unwrap_err();
    /// assert!(matches!(failed.error, ConnectError::NobodyListens));
    /// let mut queue_pair = failed.queue_pair;
    /// let buffers = queue_pair.reset()?;
    /// assert_eq!(buffers.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_with(
        self,
        peer: SocketAddr,
        options: &ConnectionOptions,
    ) -> Result<Connection, NotConnected> {
        Connection::establish(self.attempt(peer, options), options.timeout)
    }

    /// Begins to connect to the program that listens at `peer`.
    pub(crate) fn attempt(
        self,
        peer: SocketAddr,
        options: &ConnectionOptions,
    ) -> Result<ConnectionAttempt, NotConnected> {
        let begun = self.begin(peer, options);
        ConnectionAttempt::new(self, begun, Some(peer), Vec::new())
    }

    fn begin(
        &self,
        peer: SocketAddr,
        options: &ConnectionOptions,
    ) -> Result<(Box<dyn OutgoingConnection>, Arc<Progress>)> {
        let context = self.domain().context();
        let backend = context.0.transport().clone();
        let backend = backend.connections();
        PrivateDataLimits::check(&options.private_data, backend.private_data_limits().request)?;
        let address_options = options.address_options()?;
        let source = options.source.map(|source| backend.reserve(source, address_options)).transpose()?;
        let request = ConnectRequest {
            source,
            destination: peer,
            options: address_options,
            parameters: options.parameters(context, None)?,
            private_data: &options.private_data,
        };
        let progress = Progress::begin(context, false)?;
        Ok((backend.connect(self.core(), request, progress.clone())?, progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server with RoCE: the client's word that the connection stands is lost, and the client ends the
    /// connection at once.
    #[test]
    fn an_accepted_connection_that_ends_at_once_has_stood() {
        for accepts in [true, false] {
            let progress = Progress::default();
            progress.lock().accepts = accepts;
            assert!(progress.outcome().is_none());
            progress.event(ConnectionEvent::Disconnected);
            assert_eq!(progress.outcome().expect("it has ended").is_ok(), accepts);
            assert!(progress.lock().ended);
        }
    }
}
