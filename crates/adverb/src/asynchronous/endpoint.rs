//! Where async connections come from: those that this side asks for, and those of a listener.

use super::driver::{Driver, RECEIVE};
use super::queues::ConnectionQueues;
use super::runtime::{Runtime, Watch, readable};
use super::watcher::Watcher;
use super::{AsyncConnection, AsyncDatagramQueuePair, AsyncSharedReceiveQueue, failed_wait};
use crate::connection::ConnectionAttempt;
use crate::request::Rejected;
use crate::{
    Buffer, CompletionQueue, ConnectError, ConnectionOptions, ConnectionRequest, DATAGRAM_HEADER, Error,
    Listener, NotConnected, ProtectionDomain, QueuePair, QueuePairOptions, Result, SharedReceiveQueue,
};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

/// The parts of an async connection.
///
/// ```
/// use adverb::asynchronous::AsyncOptions;
/// use std::time::Duration;
///
/// let options = AsyncOptions {
///     receives: 64,
///     message_bytes: 16384,
///     spin: Duration::from_micros(20),
///     ..AsyncOptions::default()
/// };
/// assert_eq!(options.max_sends, 128);
/// ```
#[derive(Clone, Debug)]
pub struct AsyncOptions {
    /// Requests in flight at once: 128. More wait.
    pub max_sends: u32,
    /// Messages that may come before the program takes one: 16.
    pub receives: u32,
    /// Most bytes of a message that comes: 4096. A longer one ends the connection.
    pub message_bytes: usize,
    /// Most bytes that one request can take along by copy ([`Payload::Inline`](crate::Payload::Inline)): 64.
    pub inline_bytes: u32,
    /// How long a future looks for its completion before its task sleeps: 0.
    pub spin: Duration,
}

impl Default for AsyncOptions {
    fn default() -> Self {
        Self { max_sends: 128, receives: 16, message_bytes: 4096, inline_bytes: 64, spin: Duration::ZERO }
    }
}

/// Where async connections come from: a protection domain, a runtime, and the parts of each connection. Cheap
/// to clone, thread-safe.
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
/// let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
/// let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
/// let address = listener.local_address();
///
/// let server = tokio::spawn(async move {
///     let connection = listener.accept().await?.accept(&[]).await?;
///     while let Some(message) = connection.receive().await? {
///         connection.send(&message[..]).await?;
///     }
///     adverb::Result::Ok(())
/// });
///
/// let connection = endpoint.connect(address, &[]).await?;
/// connection.send(b"hello").await?;
/// let answer = connection.receive().await?.expect("the server answers");
/// assert_eq!(&answer[..], b"hello");
/// drop((connection, answer));
/// server.await.unwrap()
/// # }
/// # }
/// # fn main() -> adverb::Result<()> {
/// # #[cfg(feature = "tokio")]
/// # with_tokio::main()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncEndpoint {
    domain: ProtectionDomain,
    runtime: Arc<dyn Runtime>,
    options: AsyncOptions,
    /// The receiver of the connections' messages, if they do not receive themselves.
    shared: Option<Arc<Driver<SharedReceiveQueue>>>,
}

impl AsyncEndpoint {
    /// Connections of `domain` whose tasks `runtime` runs, with the options of [`AsyncOptions::default`].
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // One for the whole program: tasks have clones.
    /// let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// assert_eq!(endpoint.options().message_bytes, 4096);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(domain: &ProtectionDomain, runtime: impl Runtime) -> Self {
        let (domain, runtime) = (domain.clone(), Arc::new(runtime));
        Self { domain, runtime, options: AsyncOptions::default(), shared: None }
    }

    /// An endpoint with other options, for the connections that come.
    ///
    /// ```
    /// use adverb::ProtectionDomain;
    /// use adverb::asynchronous::{AsyncEndpoint, AsyncOptions, Runtime};
    ///
    /// /// Connections for long messages.
    /// fn endpoint(domain: &ProtectionDomain, runtime: impl Runtime) -> AsyncEndpoint {
    ///     let options = AsyncOptions { message_bytes: 1 << 20, ..AsyncOptions::default() };
    ///     AsyncEndpoint::new(domain, runtime).with_options(options)
    /// }
    /// ```
    pub fn with_options(self, options: AsyncOptions) -> Self {
        Self { options, ..self }
    }

    /// The protection domain of the connections, where memory comes from.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use adverb::{RemoteMemory, Rights};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// // A region for all clients, before the first one has come:
    /// let board = endpoint.domain().memory_region(4096, Rights::READ)?;
    /// let token = board.remote().to_bytes();
    /// let server = tokio::spawn(async move { listener.accept().await.unwrap().accept(&token).await });
    /// let client = endpoint.connect(address, &[]).await?;
    /// assert_eq!(RemoteMemory::from_bytes(client.private_data()), Some(board.remote()));
    /// # server.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The options of its connections.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, AsyncOptions, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let options = AsyncOptions { message_bytes: 1 << 14, ..AsyncOptions::default() };
    /// let endpoint = endpoint.with_options(options);
    /// // A long text goes in parts that fit into the receives of a peer with the same options.
    /// let text = "once upon a time ".repeat(2000);
    /// let parts = text.as_bytes().chunks(endpoint.options().message_bytes);
    /// assert_eq!(parts.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> &AsyncOptions {
        &self.options
    }

    /// Connects to the program that listens at `peer`, with `private_data` for it. Gives up after 10 seconds.
    ///
    /// ```
    /// use adverb::ConnectError;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = tokio::spawn(async move { listener.accept().await.unwrap().accept(b"").await });
    /// let client = endpoint.connect(address, b"who I am").await?;
    /// assert!(client.ended().is_none());
    /// # server.await.unwrap()?;
    /// // The server listens no more.
    /// let refused = endpoint.connect(address, b"who I am").await;
    /// assert!(matches!(refused, Err(ConnectError::NobodyListens)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`QueuePair::connect`].
    pub async fn connect(
        &self,
        peer: SocketAddr,
        private_data: &[u8],
    ) -> Result<AsyncConnection, ConnectError> {
        self.connect_with(peer, &ConnectionOptions::new().private_data(private_data)).await
    }

    /// Connects to the program that listens at `peer`. Gives up after the time that `options` say.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use adverb::{ConnectionOptions, Error};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// // The server listens, and accepts nobody. This client does not wait for 10 seconds.
    /// let options = ConnectionOptions::new().timeout(Duration::from_millis(50));
    /// let failed = endpoint.connect_with(address, &options).await.unwrap_err();
    /// assert!(Error::from(failed).is_timeout());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`QueuePair::connect_with`].
    pub async fn connect_with(
        &self,
        peer: SocketAddr,
        options: &ConnectionOptions,
    ) -> Result<AsyncConnection, ConnectError> {
        self.establish(options, |queue_pair| queue_pair.attempt(peer, options)).await
    }

    /// Listens on `address` (port 0 chooses one); at most `backlog` requests wait for
    /// [`AsyncListener::accept`].
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
    /// let address = listener.local_address();
    /// // Both sides in one task:
    /// let accepts = async { listener.accept().await?.accept(b"").await.map_err(adverb::Error::from) };
    /// let (client, server) = tokio::join!(endpoint.connect(address, b""), accepts);
    /// client?.send(b"hello").await?;
    /// assert_eq!(&server?.receive().await?.expect("the client is there")[..], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Listener::bind`]; those of the runtime.
    pub fn listen(&self, address: SocketAddr, backlog: u32) -> Result<AsyncListener> {
        let listener = Listener::bind(self.domain.context(), address, backlog)?;
        let descriptor = duplicate(&listener)?;
        let watch = self.runtime.watch(descriptor).map_err(|error| failed_wait("requests", &error))?;
        Ok(AsyncListener { listener, watch, endpoint: self.clone() })
    }

    /// A queue pair of datagrams with the key `qkey`, which its senders need. It has
    /// [`receives`](AsyncOptions::receives) for datagrams of [`message_bytes`](AsyncOptions::message_bytes).
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, AsyncOptions, Tokio};
    ///
    /// # const QKEY: u32 = 0x1234;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // A server that many clients ask at once has many receives, for short datagrams.
    /// let options = AsyncOptions { receives: 256, message_bytes: 64, ..AsyncOptions::default() };
    /// let server = endpoint.clone().with_options(options).datagram_queue_pair(QKEY)?;
    /// let client = endpoint.datagram_queue_pair(QKEY)?;
    /// client.send(b"who is there?", &way, server.number(), QKEY).await?;
    /// assert_eq!(&server.receive().await?[..], b"who is there?");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::datagram_queue_pair`]: EOPNOTSUPP if the device has no datagrams. Those of the
    /// runtime.
    pub fn datagram_queue_pair(&self, qkey: u32) -> Result<AsyncDatagramQueuePair> {
        let AsyncOptions { receives, message_bytes, .. } = self.options;
        let (queue, options) = self.parts(receives)?;
        let queue_pair = self.domain.datagram_queue_pair(options, qkey)?;
        let bytes = message_bytes.checked_add(DATAGRAM_HEADER);
        let bytes = bytes.ok_or_else(|| Error::invalid("message_bytes is too large"))?;
        self.offer(receives, bytes, |buffer| queue_pair.post_receive(RECEIVE, buffer))?;
        let driver = Watcher::start(queue_pair, queue, &self.options, &self.runtime)?;
        Ok(AsyncDatagramQueuePair::new(driver, self.options.inline_bytes, self.runtime.clone()))
    }

    /// Receives for the messages of several connections: [`receives`](AsyncOptions::receives) of
    /// [`message_bytes`](AsyncOptions::message_bytes) for all of them together.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, AsyncOptions, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// // 256 receives for all clients together, however many there are:
    /// let endpoint = endpoint.with_options(AsyncOptions { receives: 256, ..AsyncOptions::default() });
    /// let shared = endpoint.shared_receive_queue()?;
    /// let servers = endpoint.clone().with_shared_receive_queue(&shared);
    /// # let mut listener = servers.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let server = tokio::spawn(async move { listener.accept().await.unwrap().accept(b"").await });
    /// let client = endpoint.connect(address, b"").await?;
    /// client.send(b"hello").await?;
    /// assert_eq!(&shared.receive().await?[..], b"hello");
    /// # server.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::shared_receive_queue`]; those of the runtime.
    pub fn shared_receive_queue(&self) -> Result<AsyncSharedReceiveQueue> {
        let AsyncOptions { receives, message_bytes, .. } = self.options;
        let shared = self.domain.shared_receive_queue(receives, 1)?;
        shared.keep_receives();
        let queue = self.domain.context().completion_queue(shared.capacity())?;
        self.offer(receives, message_bytes, |buffer| shared.post_receive(RECEIVE, buffer))?;
        let driver = Watcher::start(shared, queue, &self.options, &self.runtime)?;
        // No queue pair flushes shared receives.
        let listener: Weak<Driver<SharedReceiveQueue>> = Arc::downgrade(&driver);
        self.domain.context().0.engine().failure.concerns(listener)?;
        Ok(AsyncSharedReceiveQueue::new(driver, self.runtime.clone()))
    }

    /// An endpoint whose connections have no receives of their own: their messages come by
    /// [`AsyncSharedReceiveQueue::receive`]. [`AsyncConnection::receive`] fails with EINVAL.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// let shared = endpoint.shared_receive_queue()?;
    /// let servers = endpoint.clone().with_shared_receive_queue(&shared);
    /// let mut listener = servers.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// let server = listener.accept().await?.accept(b"").await?;
    /// // One task takes the messages of all connections. A connection itself has none.
    /// assert_eq!(server.receive().await.unwrap_err().errno(), libc::EINVAL);
    /// # client.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_shared_receive_queue(self, queue: &AsyncSharedReceiveQueue) -> Self {
        Self { shared: Some(queue.driver().clone()), ..self }
    }

    /// A connection that `begin` begins on a new queue pair.
    async fn establish(
        &self,
        options: &ConnectionOptions,
        begin: impl FnOnce(QueuePair) -> Result<ConnectionAttempt, NotConnected>,
    ) -> Result<AsyncConnection, ConnectError> {
        let (queue_pair, queue) = self.queue_pair()?;
        let attempt = begin(queue_pair)?;
        let changed = duplicate(&attempt.descriptor()?)?;
        let mut changed =
            self.runtime.watch(changed).map_err(|error| failed_wait("the peer's answer", &error))?;
        let timeout = options.timeout;
        let mut deadline = self.after(timeout)?;
        let outcome = loop {
            if let Some(outcome) = attempt.outcome() {
                break Some(outcome);
            }
            let in_time = poll_fn(|context| {
                if let Poll::Ready(result) = changed.poll_readable(context) {
                    return Poll::Ready(result.map(|()| true));
                }
                match &mut deadline {
                    Some(deadline) => deadline.poll_readable(context).map_ok(|()| false),
                    None => Poll::Pending,
                }
            });
            let in_time = in_time.await.map_err(|error| failed_wait("the peer's answer", &error))?;
            if !in_time {
                break attempt.outcome();
            }
        };
        // The descriptor is nobody's before the connection's own end can make it readable.
        drop(changed);
        let connection = attempt.end(outcome, timeout)?;
        connection.queue_pair().answer_soon_without_receive();
        let queues = ConnectionQueues { connection, shared: self.shared.clone() };
        Ok(AsyncConnection::new(queues, queue, &self.options, self.runtime.clone())?)
    }

    /// A queue pair with its receives, and the queue where all its requests complete. Shared receives
    /// complete elsewhere.
    fn queue_pair(&self) -> Result<(QueuePair, CompletionQueue)> {
        let AsyncOptions { receives, message_bytes, .. } = self.options;
        let Some(shared) = &self.shared else {
            let (queue, options) = self.parts(receives)?;
            let queue_pair = self.domain.queue_pair(options)?;
            self.offer(receives, message_bytes, |buffer| queue_pair.post_receive(RECEIVE, buffer))?;
            return Ok((queue_pair, queue));
        };
        let (queue, options) = self.parts(0)?;
        let options = QueuePairOptions {
            receive_queue: shared.completion_queue().clone(),
            shared_receive_queue: Some(shared.queues.clone()),
            ..options
        };
        Ok((self.domain.queue_pair(options)?, queue))
    }

    /// A completion queue with room for all sends and so many receives, and the options of a queue pair on
    /// it.
    fn parts(&self, receives: u32) -> Result<(CompletionQueue, QueuePairOptions)> {
        let AsyncOptions { max_sends, inline_bytes, .. } = self.options;
        let capacity = max_sends.checked_add(receives);
        let capacity =
            capacity.ok_or_else(|| Error::invalid("max_sends and receives: their sum is too large"))?;
        let queue = self.domain.context().completion_queue(capacity)?;
        let options = QueuePairOptions {
            max_sends,
            max_receives: receives,
            inline_bytes,
            ..QueuePairOptions::new(&queue)
        };
        Ok((queue, options))
    }

    /// Posts so many receives of `bytes` each.
    fn offer(
        &self,
        receives: u32,
        bytes: usize,
        post: impl Fn(Buffer) -> Result<(), Rejected>,
    ) -> Result<()> {
        // One registration for all.
        let all = bytes.checked_mul(receives as usize);
        let all = all.ok_or_else(|| Error::invalid("message_bytes times receives is too large"))?;
        if all > 0 {
            let mut rest = self.domain.buffer(all)?;
            for _ in 0..receives {
                let behind = rest.split_off(bytes);
                post(std::mem::replace(&mut rest, behind))?;
            }
        }
        Ok(())
    }

    /// Readable after `time`. None for a time that never ends.
    fn after(&self, time: Duration) -> Result<Option<Box<dyn Watch>>> {
        let Some(timer) = timer(time).map_err(|error| failed_wait("a deadline", &error))? else {
            return Ok(None);
        };
        let watch = self.runtime.watch(timer).map_err(|error| failed_wait("a deadline", &error))?;
        Ok(Some(watch))
    }
}

impl fmt::Debug for AsyncEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEndpoint").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A copy of a descriptor, which a runtime may watch beside others of the same object.
pub(super) fn duplicate(descriptor: &impl AsFd) -> Result<OwnedFd> {
    let copy = descriptor.as_fd().try_clone_to_owned();
    copy.map_err(|error| {
        Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("a descriptor: {error}"))
    })
}

/// A descriptor that is readable after `time`. None for a time that timerfd_create(2) cannot say.
fn timer(time: Duration) -> io::Result<Option<OwnedFd>> {
    let Ok(seconds) = libc::time_t::try_from(time.as_secs()) else { return Ok(None) };
    // 0 would be no time at all.
    let time = time.max(Duration::from_nanos(1));
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos() as libc::c_long };
    let once = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: timerfd_create(2) takes plain numbers.
    let descriptor =
        unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fresh, and nobody else's.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: timerfd_settime(2) reads a live local, and writes nothing to NULL.
    match unsafe { libc::timerfd_settime(descriptor.as_raw_fd(), 0, &once, std::ptr::null_mut()) } {
        0 => Ok(Some(descriptor)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes connections on a local address. Dropping it stops listening.
///
/// ```
/// use adverb::asynchronous::{AsyncConnection, AsyncEndpoint};
///
/// async fn serve(endpoint: &AsyncEndpoint) -> adverb::Result<()> {
///     let mut listener = endpoint.listen(([127, 0, 0, 1], 7471).into(), 128)?;
///     loop {
///         let request = listener.accept().await?;
///         tokio::spawn(async move {
///             match request.accept(&[]).await {
///                 Ok(connection) => answer(connection).await,
///                 Err(error) => eprintln!("a client has gone: {error}"),
///             }
///         });
///     }
/// }
/// # async fn answer(_: AsyncConnection) {}
/// ```
pub struct AsyncListener {
    listener: Listener,
    watch: Box<dyn Watch>,
    endpoint: AsyncEndpoint,
}

impl AsyncListener {
    /// The address, with the port that was chosen.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// // A test that runs beside others leaves the choice of the port to the kernel.
    /// let listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
    /// let address = listener.local_address();
    /// assert_ne!(address.port(), 0);
    /// assert!(endpoint.listen(address, 16).is_err(), "the port is in use");
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// The oldest request for a connection. Waits until there is one.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// // A time-out loses no request.
    /// assert!(tokio::time::timeout(Duration::from_millis(10), listener.accept()).await.is_err());
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"who I am").await });
    /// let request = listener.accept().await?;
    /// assert!(request.private_data().starts_with(b"who I am"));
    /// # drop(request);
    /// # assert!(client.await.unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork; EIO after a thread of adverb has failed; those of the runtime.
    pub async fn accept(&mut self) -> Result<AsyncConnectionRequest> {
        loop {
            if let Some(request) = self.listener.try_accept()? {
                return Ok(AsyncConnectionRequest { request, endpoint: self.endpoint.clone() });
            }
            readable(&mut *self.watch).await.map_err(|error| failed_wait("a request", &error))?;
        }
    }
}

impl fmt::Debug for AsyncListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncListener").field("local_address", &self.local_address()).finish()
    }
}

/// A peer that asks for a connection. Dropping it refuses.
///
/// [`AsyncConnectionRequest::accept`] waits for the peer. So a server with many clients hands each request to
/// a task of its own.
///
/// ```
/// use adverb::asynchronous::{AsyncConnection, AsyncConnectionRequest};
///
/// /// Accepts a client that knows the word.
/// async fn accept(request: AsyncConnectionRequest) -> adverb::Result<Option<AsyncConnection>> {
///     if !request.private_data().starts_with(b"sesame") {
///         request.reject(b"no")?;
///         return Ok(None);
///     }
///     Ok(Some(request.accept(b"welcome").await?))
/// }
/// ```
#[derive(Debug)]
pub struct AsyncConnectionRequest {
    request: ConnectionRequest,
    endpoint: AsyncEndpoint,
}

impl AsyncConnectionRequest {
    /// The peer's address.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// let request = listener.accept().await?;
    /// // This server is for programs of its own host.
    /// let is_from_here = request.peer_address().ip().is_loopback();
    /// assert!(is_from_here);
    /// # drop(request);
    /// # assert!(client.await.unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_address(&self) -> SocketAddr {
        self.request.peer_address()
    }

    /// What the peer said. Transports may append zeros.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"\x03Ada").await });
    /// let request = listener.accept().await?;
    /// // The zeros behind it are not the peer's, so the peer says the length of its name.
    /// // Any peer may say a length that is wrong.
    /// let (length, rest) = request.private_data().split_first().unwrap_or((&0, &[]));
    /// assert_eq!(rest.get(..usize::from(*length)), Some(&b"Ada"[..]));
    /// # drop(request);
    /// # assert!(client.await.unwrap().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Accepts the connection, telling the peer `private_data`. Waits until it stands. Gives up after 10
    /// seconds.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// let request = listener.accept().await?;
    /// let server = request.accept(b"welcome").await?;
    /// # let client = client.await.unwrap()?;
    /// // The client:
    /// assert!(client.private_data().starts_with(b"welcome"));
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ConnectionRequest::accept`].
    pub async fn accept(self, private_data: &[u8]) -> Result<AsyncConnection, ConnectError> {
        self.accept_with(&ConnectionOptions::new().private_data(private_data)).await
    }

    /// Accepts the connection. Waits until it stands, as long as `options` say.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// // A client that asks and then is silent takes five seconds of this server, and not ten.
    /// let options = ConnectionOptions::new().timeout(Duration::from_secs(5)).private_data(b"welcome");
    /// let server = listener.accept().await?.accept_with(&options).await?;
    /// # let client = client.await.unwrap()?;
    /// assert!(server.ended().is_none() && client.private_data().starts_with(b"welcome"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ConnectionRequest::accept_with`].
    pub async fn accept_with(self, options: &ConnectionOptions) -> Result<AsyncConnection, ConnectError> {
        let Self { request, endpoint } = self;
        endpoint.establish(options, |queue_pair| request.attempt(queue_pair, options)).await
    }

    /// Refuses the connection, telling the peer `private_data`.
    ///
    /// ```
    /// use adverb::ConnectError;
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    /// # let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 1)?;
    /// # let address = listener.local_address();
    /// # let client = tokio::spawn(async move { endpoint.connect(address, b"").await });
    /// listener.accept().await?.reject(b"not today")?;
    /// # let answer = client.await.unwrap();
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
        self.request.reject(private_data)
    }
}
