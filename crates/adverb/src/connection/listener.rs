//! Listeners, and the requests for connections that peers send to them.

use super::{Connection, ConnectionAttempt, ConnectionOptions, FAILURE, NotConnected, Progress};
use crate::completion_queue::{left_until, milliseconds};
use crate::{ConnectError, Context, Error, QueuePair, Result};
use adverb_core::cm::{self, AddressOptions, IncomingConnection, ListenSink, PrivateDataLimits};
use adverb_core::event::EventQueue;
use adverb_core::failure::FailureListener;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Takes connections on a local address. Dropping it stops listening. Thread-safe.
///
/// ```
/// use adverb::{Context, Listener, QueuePairOptions};
/// use std::time::Duration;
///
/// # const SOON: Duration = Duration::from_secs(10);
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 16)?;
/// # let address = listener.local_address();
/// # let domain = context.protection_domain()?;
/// # let completions = context.completion_queue(16)?;
/// # let client = domain.queue_pair(QueuePairOptions::new(&completions))?;
/// # let client = std::thread::spawn(move || client.connect(address, b"who I am", SOON));
/// let request = listener.accept(SOON)?;
/// assert!(request.private_data().starts_with(b"who I am"));
/// let queue_pair = domain.queue_pair(QueuePairOptions::new(&completions))?;
/// let connection = request.accept(queue_pair, b"welcome", SOON)?;
/// # let client = client.join().unwrap()?;
/// # assert!(client.private_data().starts_with(b"welcome"));
/// # drop((client, connection));
/// # Ok(())
/// # }
/// ```
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

impl FailureListener for Waiting {
    fn engine_failed(&self) {
        self.0.push(Err(Error::new(libc::EIO, FAILURE)));
    }
}

impl Listener {
    /// Listens on `address` (port 0 chooses one) on the device of `context`; at most `backlog` requests wait
    /// for [`Listener::accept`].
    ///
    /// ```
    /// use adverb::{Context, Listener};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = Context::open_default()?;
    /// let listener = Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 16)?;
    /// let address = listener.local_address();
    /// assert_ne!(address.port(), 0);
    /// assert!(Listener::bind(&context, address, 16).is_err(), "the port is in use");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES as bind(2). EADDRNOTAVAIL also where another program listens on this
    /// port of all addresses.
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
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 16)?;
    /// // The clients need the port that the kernel has chosen.
    /// let address = listener.local_address();
    /// let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// let server = listener.accept(SOON)?.accept(server, b"", SOON)?;
    /// assert!(server.is_connected());
    /// # client.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_address(&self) -> SocketAddr {
        self.listening.local()
    }

    /// The oldest request for a connection, if one waits. Never sleeps.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// let listener = adverb::Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 16)?;
    /// assert!(listener.try_accept()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork; EIO after a thread of adverb has failed.
    pub fn try_accept(&self) -> Result<Option<ConnectionRequest>> {
        match self.accept(Duration::ZERO) {
            Ok(request) => Ok(Some(request)),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The oldest request for a connection; sleeps until there is one, at most `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// let listener = adverb::Listener::bind(&context, "127.0.0.1:0".parse().unwrap(), 16)?;
    /// let nobody = listener.accept(Duration::from_millis(1));
    /// assert!(nobody.is_err_and(|error| error.is_timeout()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ETIMEDOUT ([`Error::is_timeout`]) when nobody has asked; ENODEV in a child of fork; EIO after a thread
    /// of adverb has failed.
    pub fn accept(&self, timeout: Duration) -> Result<ConnectionRequest> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.waiting.0.wait() {
                Ok(Ok(request)) => return Ok(ConnectionRequest { request, context: self.context.clone() }),
                Ok(Err(error)) => {
                    // Other threads that wait, or that come later, get the error, too.
                    self.waiting.engine_failed();
                    return Err(error);
                }
                Err(error) if matches!(error.errno(), libc::EAGAIN | libc::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                let text = format!("nobody has asked for a connection within {timeout:?}");
                return Err(Error::new(libc::ETIMEDOUT, text));
            }
            match self.waiting.0.ready(milliseconds(left)) {
                Err(error) if error.errno() != libc::EINTR => return Err(error.into()),
                _ => {}
            }
        }
    }
}

impl AsRawFd for Listener {
    /// The number of the descriptor that [`AsFd`] lends. It is readable while a request waits.
    fn as_raw_fd(&self) -> RawFd {
        self.waiting.0.descriptor()
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
/// [`ConnectionRequest::accept`] waits for the peer. So a server with many clients hands each request to a
/// thread of its own.
///
/// ```
/// use adverb::{ConnectError, Connection, ConnectionRequest, QueuePair};
/// use std::time::Duration;
///
/// /// Accepts clients that know the word. Others are refused, with the reason.
/// fn admit(request: ConnectionRequest, queue_pair: QueuePair) -> adverb::Result<Option<Connection>> {
///     if !request.private_data().starts_with(b"sesame") {
///         request.reject(b"the word is wrong")?;
///         return Ok(None);
///     }
///     Ok(Some(request.accept(queue_pair, b"", Duration::from_secs(10))?))
/// }
/// ```
pub struct ConnectionRequest {
    request: Box<dyn IncomingConnection>,
    context: Context,
}

impl ConnectionRequest {
    /// The peer's address.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let client = queue_pair(&domain)?;
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// let request = listener.accept(SOON)?;
    /// // This server is for programs of its own host.
    /// let is_from_here = request.peer_address().ip().is_loopback();
    /// assert!(is_from_here);
    /// # drop(request);
    /// # assert!(client.join().unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_address(&self) -> SocketAddr {
        self.request.peer()
    }

    /// What the peer said. Transports may append zeros.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let client = queue_pair(&domain)?;
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || client.connect(address, b"\x03Ada", SOON));
    /// let request = listener.accept(SOON)?;
    /// // The zeros behind it are not the peer's, so the peer says the length of its name.
    /// // Any peer may say a length that is wrong.
    /// let (length, rest) = request.private_data().split_first().unwrap_or((&0, &[]));
    /// assert_eq!(rest.get(..usize::from(*length)), Some(&b"Ada"[..]));
    /// # drop(request);
    /// # assert!(client.join().unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// This side's address, to which the peer has come.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let client = queue_pair(&domain)?;
    /// let listener = adverb::Listener::bind(domain.context(), "0.0.0.0:0".parse().unwrap(), 1)?;
    /// # let address = std::net::SocketAddr::from(([127, 0, 0, 1], listener.local_address().port()));
    /// # let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// let request = listener.accept(SOON)?;
    /// // A listener of all addresses learns from it by which network the peer has come.
    /// assert!(request.local_address().ip().is_loopback());
    /// assert_eq!(request.local_address().port(), listener.local_address().port());
    /// # drop(request);
    /// # assert!(client.join().unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_address(&self) -> SocketAddr {
        self.request.local()
    }

    /// Accepts the connection onto `queue_pair`, telling the peer `private_data`. Waits until it stands, at
    /// most `timeout`.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// let request = listener.accept(SOON)?;
    /// // The receives are there before the peer can send.
    /// server.post_receive(0, domain.buffer(64)?)?;
    /// let server = request.accept(server, b"welcome", SOON)?;
    /// # let client = client.join().unwrap()?;
    /// // The client:
    /// assert!(client.private_data().starts_with(b"welcome"));
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for more private data than the transport carries. The queue pair is gone
    /// then, with its buffers.
    pub fn accept(
        self,
        queue_pair: QueuePair,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let options = ConnectionOptions::new().private_data(private_data).timeout(timeout);
        Ok(self.accept_with(queue_pair, &options)?)
    }

    /// Accepts the connection onto `queue_pair`. Waits until it stands, as long as `options` say.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || client.connect(address, b"", SOON));
    /// let request = listener.accept(SOON)?;
    /// // A peer has at most four Reads under way in the memory of this side.
    /// let server = request.accept_with(server, &ConnectionOptions::new().inbound_reads(4))?;
    /// assert!(server.attributes().path.is_none_or(|path| path.inbound_reads <= 4));
    /// # client.join().unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ConnectError`]; EINVAL for options that the device does not have. The queue pair comes back in
    /// the error.
    pub fn accept_with(
        self,
        queue_pair: QueuePair,
        options: &ConnectionOptions,
    ) -> Result<Connection, NotConnected> {
        Connection::establish(self.attempt(queue_pair, options), options.timeout)
    }

    /// Begins to accept the connection onto `queue_pair`.
    pub(crate) fn attempt(
        self,
        queue_pair: QueuePair,
        options: &ConnectionOptions,
    ) -> Result<ConnectionAttempt, NotConnected> {
        let limits = self.context.0.transport().connections().private_data_limits();
        let (peer, said) = (Some(self.request.peer()), self.request.private_data().to_vec());
        let asked = self.request.parameters();
        let begun = PrivateDataLimits::check(&options.private_data, limits.accept);
        let begun = begun.map_err(Error::from).and_then(|()| {
            let parameters = options.parameters(&self.context, Some(asked))?;
            let progress = Progress::begin(&self.context, true)?;
            let sink = progress.clone();
            let data = &options.private_data;
            Ok((self.request.accept(queue_pair.core(), parameters, data, sink)?, progress))
        });
        ConnectionAttempt::new(queue_pair, begun, peer, said)
    }

    /// Refuses the connection, telling the peer `private_data`.
    ///
    /// ```
    /// use adverb::ConnectError;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let queue_pair = queue_pair(&domain)?;
    /// # let listener = adverb::Listener::bind(domain.context(), "127.0.0.1:0".parse().unwrap(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = std::thread::spawn(move || queue_pair.connect(address, b"who I am", SOON));
    /// let request = listener.accept(SOON)?;
    /// assert!(request.peer_address().ip().is_loopback());
    /// request.reject(b"not today")?;
    /// # let answer = client.join().unwrap();
    /// // The client:
    /// let Err(ConnectError::Rejected { private_data, .. }) = answer else { panic!("{answer:?}") };
    /// assert!(private_data.starts_with(b"not today"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for more private data than the transport carries.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let limits = self.context.0.transport().connections().private_data_limits();
        PrivateDataLimits::check(private_data, limits.reject)?;
        Ok(self.request.reject(private_data)?)
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest").field("peer_address", &self.peer_address()).finish()
    }
}
