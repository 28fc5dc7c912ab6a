//! Extended reliable connections (XRC): one connection from process to process, and a message names the
//! shared receive queue that it is for.

use crate::raw::{self, RawAddress};
use crate::request::{Rejected, WorkRequest};
use crate::{
    CompletionQueue, ConnectError, ConnectionOptions, Context, NotConnected, ProtectionDomain, QueuePair,
    Result, SharedReceiveQueue,
};
use adverb_core::qp::{self, AttributeMask, Attributes, Service, State};
use adverb_core::xrc;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A domain in which XRC targets and shared receive queues come together. Cheap to clone, thread-safe.
///
/// ```
/// use adverb::{ConnectionOptions, Context, QueuePairOptions, WorkRequest};
/// use std::time::Duration;
///
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// # if !context.attributes().services.contains(&adverb::Service::XrcSend) {
/// #     return Ok(());
/// # }
/// let domain = context.protection_domain()?;
/// let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(64)?);
/// // The side that receives: a target, and queues that messages name.
/// let xrc = context.xrc_domain()?;
/// let queues = [xrc.receive_queue(&domain, &receives, 16, 1)?, xrc.receive_queue(&domain, &receives, 16, 1)?];
/// queues[1].post_receive(7, domain.buffer(64)?)?;
/// let target = xrc.target()?;
/// // The side that sends:
/// let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
/// let local = "127.0.0.1".parse().unwrap();
/// let (here, there) = (initiator.raw_address(local)?, target.raw_address(local)?);
/// target.connect_raw(&there, &here, &ConnectionOptions::new())?;
/// let connection = initiator.connect_raw(&here, &there, &ConnectionOptions::new())?;
/// connection.post_send(queues[1].number(), WorkRequest::send(b"for the second queue"))?;
/// let received = receives.wait(Duration::from_secs(10))?.success()?;
/// assert_eq!((received.id, received.message()), (7, &b"for the second queue"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct XrcDomain {
    core: Arc<xrc::XrcDomain>,
    context: Context,
}

impl XrcDomain {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let core = xrc::XrcDomain::open(&context.0, xrc::XrcDomainOptions::default())?;
        Ok(Self { core, context: context.clone() })
    }

    /// A shared receive queue for messages that name it by its [number](SharedReceiveQueue::number). Its
    /// receives complete on `completions`.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let context = domain.context();
    /// # let receives = context.completion_queue(64)?;
    /// let xrc = context.xrc_domain()?;
    /// let orders = xrc.receive_queue(&domain, &receives, 16, 1)?;
    /// orders.post_receive(0, domain.buffer(64)?)?;
    /// // The completion queue has room for the receives of all its queues: these are too many.
    /// assert!(xrc.receive_queue(&domain, &receives, 1024, 1).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ProtectionDomain::shared_receive_queue`]; EINVAL for objects of another context, and for a
    /// completion queue that is too small.
    pub fn receive_queue(
        &self,
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        max_receives: u32,
        max_scatter: u32,
    ) -> Result<SharedReceiveQueue> {
        SharedReceiveQueue::extended(domain, &self.core, completions, max_receives, max_scatter)
    }

    /// A target: the end of an XRC connection that receives. It has no queues of its own.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let context = domain.context();
    /// let xrc = context.xrc_domain()?;
    /// // One for each process that sends. Their messages name queues of the same domain.
    /// let targets = [xrc.target()?, xrc.target()?];
    /// assert_ne!(targets[0].number(), targets[1].number());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOMEM when the device is full.
    pub fn target(&self) -> Result<XrcTarget> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let core = qp::QueuePair::new_target(&self.core)?;
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        core.enter_handle(handle, &self.core, true)?;
        let target = XrcTarget { core, handle, context: self.context.clone() };
        target.core.set_cookie(target.core.number().into());
        crate::queue_pair::begin(&target.core, crate::Rights::all())?;
        Ok(target)
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").finish_non_exhaustive()
    }
}

/// The end of an XRC connection that receives. Dropping it ends the connection.
///
/// ```
/// use adverb::{ConnectionOptions, QueuePairOptions};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
/// #     return Ok(());
/// # }
/// # let sends = domain.context().completion_queue(16)?;
/// # let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
/// # let sender = initiator.raw_address("127.0.0.1".parse().unwrap())?;
/// let target = domain.context().xrc_domain()?.target()?;
/// // Its numbers go to the sender, and those of the sender come back.
/// let own = target.raw_address("127.0.0.1".parse().unwrap())?;
/// target.connect_raw(&own, &sender, &ConnectionOptions::new())?;
/// assert_eq!(target.number(), own.number);
/// # Ok(())
/// # }
/// ```
pub struct XrcTarget {
    core: Arc<qp::QueuePair>,
    handle: u64,
    context: Context,
}

impl XrcTarget {
    /// The queue pair's number, as completions carry it.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// let target = domain.context().xrc_domain()?.target()?;
    /// // The address that the initiator is told has the same number.
    /// let address = target.raw_address("127.0.0.1".parse().unwrap())?;
    /// assert_eq!(address.number, target.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.core.number()
    }

    /// The numbers by which the initiator reaches this target, at the local address `ip`, as
    /// [`QueuePair::raw_address`].
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// let target = domain.context().xrc_domain()?.target()?;
    /// // At the address by which the initiator is to reach this host. As text, for a file or a socket:
    /// let own = target.raw_address("127.0.0.1".parse().unwrap())?;
    /// assert_eq!(own.to_string().parse(), Ok(own));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `ip` is no address of the device.
    pub fn raw_address(&self, ip: IpAddr) -> Result<RawAddress> {
        raw::address(&self.context, self.number(), ip)
    }

    /// Connects it to the initiator at `peer`, as [`QueuePair::connect_raw`]. Again: an error.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let sends = domain.context().completion_queue(16)?;
    /// # let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// # let target = domain.context().xrc_domain()?.target()?;
    /// let local = "127.0.0.1".parse().unwrap();
    /// // The initiator does the same, with the two exchanged.
    /// let (own, peer) = (target.raw_address(local)?, initiator.raw_address(local)?);
    /// target.connect_raw(&own, &peer, &ConnectionOptions::new())?;
    /// // It is connected once and for all.
    /// assert!(target.connect_raw(&own, &peer, &ConnectionOptions::new()).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for values that the device does not have.
    pub fn connect_raw(
        &self,
        own: &RawAddress,
        peer: &RawAddress,
        options: &ConnectionOptions,
    ) -> Result<()> {
        raw::connect(&self.core, &self.context, Service::XrcReceive, own, peer, options)
    }
}

impl Drop for XrcTarget {
    fn drop(&mut self) {
        let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
        // A message that has taken a receive gives it back.
        let _ = self.core.modify(&attributes, AttributeMask::STATE);
        if self.core.leave_handle(self.handle) {
            self.core.destroy();
        }
    }
}

impl fmt::Debug for XrcTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcTarget").field("number", &self.number()).finish()
    }
}

/// The end of an XRC connection that sends, before it is connected. It has no receives.
///
/// ```
/// use adverb::{ConnectionOptions, QueuePairOptions};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
/// #     return Ok(());
/// # }
/// # let target = domain.context().xrc_domain()?.target()?;
/// # let there = target.raw_address("127.0.0.1".parse().unwrap())?;
/// let sends = domain.context().completion_queue(128)?;
/// let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
/// // Its numbers go to the target, and those of the target come back.
/// let own = initiator.raw_address("127.0.0.1".parse().unwrap())?;
/// let connection = initiator.connect_raw(&own, &there, &ConnectionOptions::new())?;
/// assert_eq!(connection.number(), own.number);
/// # Ok(())
/// # }
/// ```
pub struct XrcInitiator(pub(crate) QueuePair);

impl XrcInitiator {
    /// The numbers by which the target reaches this initiator, at the local address `ip`, as
    /// [`QueuePair::raw_address`].
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let sends = domain.context().completion_queue(16)?;
    /// let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// let here = "127.0.0.1".parse().unwrap();
    /// let own = initiator.raw_address(here)?;
    /// // The first packet number is a new one each time: the target is told the one that connects.
    /// assert_eq!((own.ip(), own.number), (here, initiator.raw_address(here)?.number));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `ip` is no address of the device.
    pub fn raw_address(&self, ip: IpAddr) -> Result<RawAddress> {
        self.0.raw_address(ip)
    }

    /// Connects it to the target at `peer`, as [`QueuePair::connect_raw`].
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let sends = domain.context().completion_queue(16)?;
    /// # let target = domain.context().xrc_domain()?.target()?;
    /// let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// let local = "127.0.0.1".parse().unwrap();
    /// let (own, there) = (initiator.raw_address(local)?, target.raw_address(local)?);
    /// let connection = initiator.connect_raw(&own, &there, &ConnectionOptions::new())?;
    /// assert_eq!(connection.number(), own.number);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`QueuePair::connect_raw`].
    pub fn connect_raw(
        self,
        own: &RawAddress,
        peer: &RawAddress,
        options: &ConnectionOptions,
    ) -> Result<XrcConnection, NotConnected> {
        let context = self.0.domain().context();
        match raw::connect(self.0.core(), context, Service::XrcSend, own, peer, options) {
            Ok(()) => Ok(XrcConnection(self.0)),
            Err(error) => {
                self.0.fail();
                Err(NotConnected { error: ConnectError::Failed(error), queue_pair: self.0 })
            }
        }
    }
}

impl fmt::Debug for XrcInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XrcInitiator").field(&self.0).finish()
    }
}

/// The end of an XRC connection that sends. It has no receives:
///
/// ```compile_fail,E0599
/// # fn post(connection: &adverb::XrcConnection, buffer: adverb::Buffer) {
/// let _ = connection.post_receive(0, buffer);
/// # }
/// ```
///
/// ```
/// use adverb::{WorkRequest, XrcConnection};
///
/// /// Asks the part of a process that has the queue with this number. All parts share one connection.
/// fn ask(connection: &XrcConnection, questions: u32) -> adverb::Result<()> {
///     Ok(connection.post_send(questions, WorkRequest::send(b"how much?"))?)
/// }
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
/// #     return Ok(());
/// # }
/// # let context = domain.context();
/// # let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(64)?);
/// # let xrc = context.xrc_domain()?;
/// # let questions = xrc.receive_queue(&domain, &receives, 16, 1)?;
/// # questions.post_receive(0, domain.buffer(64)?)?;
/// # let target = xrc.target()?;
/// # let initiator = domain.xrc_initiator(adverb::QueuePairOptions::new(&sends))?;
/// # let local = "127.0.0.1".parse().unwrap();
/// # let (here, there) = (initiator.raw_address(local)?, target.raw_address(local)?);
/// # target.connect_raw(&there, &here, &adverb::ConnectionOptions::new())?;
/// # let connection = initiator.connect_raw(&here, &there, &adverb::ConnectionOptions::new())?;
/// ask(&connection, questions.number())?;
/// let question = receives.wait(std::time::Duration::from_secs(10))?.success()?;
/// assert_eq!(question.message(), b"how much?");
/// # Ok(())
/// # }
/// ```
pub struct XrcConnection(QueuePair);

impl XrcConnection {
    /// Posts a request to the send queue, as [`Connection::post_send`](crate::Connection::post_send). A
    /// message is for the peer's shared receive queue with the number `receive_queue`. For requests without a
    /// message, such as Writes, the number means nothing.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, WorkRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let context = domain.context();
    /// # let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(64)?);
    /// # let xrc = context.xrc_domain()?;
    /// # let [orders, questions] = [(); 2].map(|()| xrc.receive_queue(&domain, &receives, 16, 1));
    /// # let (orders, questions) = (orders?, questions?);
    /// # let target = xrc.target()?;
    /// # let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let (here, there) = (initiator.raw_address(local)?, target.raw_address(local)?);
    /// # target.connect_raw(&there, &here, &ConnectionOptions::new())?;
    /// # let connection = initiator.connect_raw(&here, &there, &ConnectionOptions::new())?;
    /// orders.post_receive(1, domain.buffer(64)?)?;
    /// questions.post_receive(2, domain.buffer(64)?)?;
    /// // Each message takes a receive of the queue that it names.
    /// connection.post_send(questions.number(), WorkRequest::send(b"how much?"))?;
    /// connection.post_send(orders.number(), WorkRequest::send(b"two of them"))?;
    /// let taken = [(); 2].map(|()| receives.wait(std::time::Duration::from_secs(10)).map(|it| it.id));
    /// assert!(matches!(taken, [Ok(2), Ok(1)]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError); the buffer comes back.
    #[inline]
    pub fn post_send(&self, receive_queue: u32, request: WorkRequest<'_>) -> Result<(), Rejected> {
        self.0.post_extended(request, receive_queue)
    }

    /// The queue pair's number, as completions carry it.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, WorkRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let context = domain.context();
    /// # let (sends, receives) = (context.completion_queue(16)?, context.completion_queue(64)?);
    /// # let xrc = context.xrc_domain()?;
    /// # let queue = xrc.receive_queue(&domain, &receives, 16, 1)?;
    /// # queue.post_receive(1, domain.buffer(64)?)?;
    /// # let target = xrc.target()?;
    /// # let initiator = domain.xrc_initiator(QueuePairOptions::new(&sends))?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let (here, there) = (initiator.raw_address(local)?, target.raw_address(local)?);
    /// # target.connect_raw(&there, &here, &ConnectionOptions::new())?;
    /// # let connection = initiator.connect_raw(&here, &there, &ConnectionOptions::new())?;
    /// connection.post_send(queue.number(), WorkRequest::send(b"hello"))?;
    /// // Where several connections share a completion queue, it says whose request has ended.
    /// let end = sends.wait(std::time::Duration::from_secs(10))?;
    /// assert_eq!(end.queue_pair, connection.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.0.number()
    }
}

impl fmt::Debug for XrcConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("XrcConnection").field(&self.0).finish()
    }
}
