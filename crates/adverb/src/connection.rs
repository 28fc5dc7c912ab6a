//! Connections: who listens, who connects, and what they tell each other on the way.

use crate::completion_queue::{left_until, milliseconds};
use crate::{Context, QueuePair, Result};
use adverb_core::cm::{
    self, AddressOptions, ConnectRequest, ConnectionEvent, ConnectionParameters, ConnectionSink,
    IncomingConnection, ListenSink, OutgoingConnection, PrivateDataLimits,
};
use adverb_core::error::Error;
use adverb_core::event::EventQueue;
use adverb_core::failure::Concerned;
use adverb_core::interfaces;
use adverb_core::memory::moved::safe_point;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The error of a wait for a connection after a panic in a thread of the engine.
const FAILURE: &str = "a thread of adverb in this process has failed";

/// Why there is no connection.
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens at this address and port, on a device of the same kind. Listeners on `iwarp0` are not reached from `roce0`, nor the
    /// other way round.
    NobodyListens,
    /// The peer refused.
    Rejected {
        /// The peer's reason: a negative errno, or a code of the transport.
        status: i32,
        /// The private data of the peer's refusal. Transports may append zeros.
        private_data: Vec<u8>,
    },
    /// The peer cannot be reached, did not answer in time, or the call was wrong.
    Failed(Error),
}

impl ConnectError {
    fn from_status(what: &str, status: i32) -> Self {
        let errno = status.unsigned_abs() as i32;
        let hint = if errno == libc::ENETUNREACH { interfaces::hint() } else { "" };
        let why = std::io::Error::from_raw_os_error(errno);
        Self::Failed(Error::new(errno, format!("{what}: {why}{hint}")))
    }
}

/// Private data without the zeros that the transport may have appended.
fn said(private_data: &[u8]) -> &[u8] {
    let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &private_data[..end]
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens => f.write_str("NobodyListens"),
            Self::Rejected { status, private_data } => {
                let mut shown = f.debug_struct("Rejected");
                shown.field("status", status).field("private_data", &said(private_data)).finish()
            }
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens => {
                f.write_str("the connection was refused: nobody listens at this address and port")
            }
            Self::Rejected { status, private_data } => {
                write!(f, "the peer refused the connection (reason {status}")?;
                match said(private_data).len() {
                    0 => f.write_str(")"),
                    count => write!(f, ", with {count} bytes of private data)"),
                }
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Failed(error) => error,
            rejected => Error::new(libc::ECONNREFUSED, rejected.to_string()),
        }
    }
}

/// The fate of a connection, as the transport reports it.
#[derive(Default)]
struct Progress {
    state: Mutex<Reported>,
    changed: Condvar,
}

#[derive(Default)]
struct Reported {
    /// The peer's private data, or why there is no connection.
    answer: Option<Result<Vec<u8>, ConnectError>>,
    /// An established connection has ended.
    ended: bool,
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Some(answer) => state.answer = Some(answer),
            None => state.ended = true,
        }
        self.changed.notify_all();
    }
}

impl Concerned for Progress {
    fn engine_failed(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.answer.get_or_insert(Err(ConnectError::Failed(Error::new(libc::EIO, FAILURE))));
        state.ended = true;
        self.changed.notify_all();
    }
}

impl Progress {
    /// Of a new connection on a device of `context`.
    fn begin(context: &Context) -> Result<Arc<Self>> {
        let progress = Arc::new(Self::default());
        let concerned: Weak<Self> = Arc::downgrade(&progress);
        context.0.engine().failure.concerns(concerned)?;
        Ok(progress)
    }

    /// Waits until `done` finds what it waits for; nothing at the deadline.
    fn wait<T>(&self, timeout: Duration, mut done: impl FnMut(&mut Reported) -> Option<T>) -> Option<T> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A connected queue pair. Dropping it ends the connection in order: what was posted still goes out as far as the transport can, and
/// the peer sees the end.
pub struct Connection {
    // Dropped in this order: first the connection's own handle, then the queue pair.
    handle: Box<dyn OutgoingConnection>,
    queue_pair: QueuePair,
    progress: Arc<Progress>,
    private_data: Vec<u8>,
}

impl Connection {
    fn establish(
        queue_pair: QueuePair,
        progress: Arc<Progress>,
        handle: Box<dyn OutgoingConnection>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let closed = || ConnectError::from_status("the peer closed the connection at once", libc::ECONNRESET);
        let outcome = progress.wait(timeout, |reported| {
            reported.answer.take().or_else(|| reported.ended.then(|| Err(closed())))
        });
        // The thread may sleep from here on.
        safe_point();
        match outcome {
            Some(Ok(private_data)) => Ok(Self { handle, queue_pair, progress, private_data }),
            Some(Err(error)) => Err(error),
            None => Err(ConnectError::Failed(Error::new(
                libc::ETIMEDOUT,
                format!("the peer did not answer within {timeout:?}"),
            ))),
        }
    }

    /// The private data with which the peer asked for or accepted the connection. Transports may append zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Ends the connection in order. Requests that are not complete come back as flushed.
    pub fn disconnect(&self) -> Result<()> {
        self.handle.disconnect()
    }

    /// Waits until the connection has ended, by either side and for any reason. Whether it has.
    pub fn wait_disconnected(&self, timeout: Duration) -> bool {
        self.progress.wait(timeout, |reported| reported.ended.then_some(())).is_some()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A connection that has ended already has nothing to say.
        let _ = self.handle.disconnect();
    }
}

impl Deref for Connection {
    type Target = QueuePair;

    fn deref(&self) -> &QueuePair {
        &self.queue_pair
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("queue_pair", &self.queue_pair).finish()
    }
}

impl QueuePair {
    /// Connects to the program that listens at `peer`, with `private_data` for it. Waits for the answer, at most `timeout`.
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for more private data than the transport carries. The queue pair is gone then, with its buffers.
    pub fn connect(
        self,
        peer: SocketAddr,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let backend = self.domain().context().0.transport().clone();
        let backend = backend.connections();
        PrivateDataLimits::check(private_data, backend.private_data_limits().request)?;
        let progress = Progress::begin(self.domain().context())?;
        let request = ConnectRequest {
            source: None,
            destination: peer,
            options: AddressOptions::default(),
            parameters: own_parameters(self.domain().context()),
            private_data,
        };
        let handle = backend.connect(self.core(), request, progress.clone())?;
        Connection::establish(self, progress, handle, timeout)
    }
}

/// The most reads and atomics that the device can have outstanding, both ways.
fn own_parameters(context: &Context) -> ConnectionParameters {
    let limits = context.attributes();
    ConnectionParameters {
        responder_resources: limits.max_qp_rd_atom.min(255) as u8,
        initiator_depth: limits.max_qp_init_rd_atom.min(255) as u8,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnectionParameters::default()
    }
}

/// Takes connections on a local address. Dropping it stops listening. Thread-safe.
pub struct Listener {
    listening: Box<dyn cm::Listener>,
    waiting: Arc<Waiting>,
    context: Context,
}

struct Waiting(EventQueue<Result<Box<dyn IncomingConnection>>>);

impl ListenSink for Waiting {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        self.0.push(Ok(request));
    }
}

impl Concerned for Waiting {
    fn engine_failed(&self) {
        self.0.push(Err(Error::new(libc::EIO, FAILURE)));
    }
}

impl Listener {
    /// Listens on `address` (port 0 chooses one) on the device of `context`; at most `backlog` requests wait for
    /// [`Listener::accept`].
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES as bind(2). EADDRNOTAVAIL also where another program listens on this port of all addresses.
    pub fn bind(context: &Context, address: SocketAddr, backlog: u32) -> Result<Listener> {
        let waiting = Arc::new(Waiting(EventQueue::new()?));
        // SAFETY: fcntl(2) on a descriptor that `waiting` holds; plain numbers.
        unsafe { libc::fcntl(waiting.0.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
        let concerned: Weak<Waiting> = Arc::downgrade(&waiting);
        context.0.engine().failure.concerns(concerned)?;
        let backend = context.0.transport().connections();
        let reservation = backend.reserve(address, AddressOptions::default())?;
        let listening = reservation.listen(backlog, waiting.clone())?;
        Ok(Self { listening, waiting, context: context.clone() })
    }

    /// The address, with the port that was chosen.
    pub fn local_address(&self) -> SocketAddr {
        self.listening.local()
    }

    /// The oldest request for a connection; sleeps until there is one, at most `timeout`.
    ///
    /// # Errors
    /// ETIMEDOUT ([`Error::is_timeout`]) when nobody has asked; ENODEV in a child of fork; EIO after a thread of adverb has failed.
    pub fn accept(&self, timeout: Duration) -> Result<ConnectionRequest> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.waiting.0.wait() {
                Ok(Ok(request)) => return Ok(ConnectionRequest { request, context: self.context.clone() }),
                Ok(Err(error)) => {
                    // Whoever else waits, or comes later, is told, too.
                    self.waiting.engine_failed();
                    return Err(error);
                }
                Err(error) if matches!(error.errno(), libc::EAGAIN | libc::EINTR) => {}
                Err(error) => return Err(error),
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                let text = format!("nobody has asked for a connection within {timeout:?}");
                return Err(Error::new(libc::ETIMEDOUT, text));
            }
            match self.waiting.0.ready(milliseconds(left)) {
                Err(error) if error.errno() != libc::EINTR => return Err(error),
                _ => {}
            }
        }
    }
}

impl AsFd for Listener {
    /// A descriptor that is readable while a request waits. Only for poll(2) and its like.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue, and so its descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.waiting.0.descriptor()) }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_address", &self.local_address()).finish()
    }
}

/// A peer that asks for a connection. Dropping it refuses.
///
/// [`ConnectionRequest::accept`] waits for the peer. So a server with many clients hands each request to a thread of its own.
pub struct ConnectionRequest {
    request: Box<dyn IncomingConnection>,
    context: Context,
}

impl ConnectionRequest {
    /// The peer's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.request.peer()
    }

    /// What the peer said. Transports may append zeros.
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Accepts the connection onto `queue_pair`, telling the peer `private_data`. Waits until it stands, at most `timeout`.
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for more private data than the transport carries. The queue pair is gone then, with its buffers.
    pub fn accept(
        self,
        queue_pair: QueuePair,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let limits = self.context.0.transport().connections().private_data_limits();
        PrivateDataLimits::check(private_data, limits.accept)?;
        let (own, asked) = (own_parameters(&self.context), self.request.parameters());
        let parameters = ConnectionParameters {
            responder_resources: own.responder_resources.min(asked.responder_resources),
            initiator_depth: own.initiator_depth.min(asked.initiator_depth),
            ..own
        };
        let progress = Progress::begin(&self.context)?;
        let handle = self.request.accept(queue_pair.core(), parameters, private_data, progress.clone())?;
        Connection::establish(queue_pair, progress, handle, timeout)
    }

    /// Refuses the connection, telling the peer `private_data`.
    ///
    /// # Errors
    /// EINVAL for more private data than the transport carries.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let limits = self.context.0.transport().connections().private_data_limits();
        PrivateDataLimits::check(private_data, limits.reject)?;
        self.request.reject(private_data)
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest").field("peer_address", &self.peer_address()).finish()
    }
}
