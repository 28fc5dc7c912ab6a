//! Datagrams (the service UD): one queue pair sends to many, and receives from all.

use crate::raw::{HOP_LIMIT, random_24_bits};
use crate::request::{DatagramRequest, Rejected};
use crate::route_header;
use crate::{Completion, Error, ProtectionDomain, QueuePair, QueuePairOptions, Result, Segments};
use adverb_core::address_handle;
use adverb_core::attributes::gid_of;
use adverb_core::cm::{MULTICAST_QUEUE_PAIR, multicast_gid};
use adverb_core::error::PostError;
use adverb_core::qp::{AttributeMask, Attributes, Path, Service, State};
use adverb_core::request::Datagram;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes in front of each datagram that is received: the header of its route. A receive needs room for them.
///
/// ```
/// use adverb::{AddressHandle, DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
/// #     return Ok(());
/// # }
/// # let completions = [domain.context().completion_queue(16)?, domain.context().completion_queue(16)?];
/// # let sender = domain.datagram_queue_pair(QueuePairOptions::new(&completions[0]), 7)?;
/// # let receiver = domain.datagram_queue_pair(QueuePairOptions::new(&completions[1]), 7)?;
/// # let local = "127.0.0.1".parse().unwrap();
/// # let way = adverb::AddressHandle::new(&domain, local, local)?;
/// // For datagrams of up to 64 bytes:
/// receiver.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
/// sender.post_send(DatagramRequest::send(b"hello", &way, receiver.number(), 7))?;
/// let received = completions[1].wait(std::time::Duration::from_secs(10))?.success()?;
/// assert_eq!(received.bytes, DATAGRAM_HEADER + 5);
/// assert_eq!(&received.into_buffer()[DATAGRAM_HEADER..][..5], b"hello");
/// # Ok(())
/// # }
/// ```
pub const DATAGRAM_HEADER: usize = 40;

/// A way to a host (`ibv_create_ah`). Cheap to clone, thread-safe.
///
/// ```
/// use adverb::AddressHandle;
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
/// #     return Ok(());
/// # }
/// let here = "127.0.0.1".parse().unwrap();
/// let way = AddressHandle::new(&domain, here, here)?;
/// assert!(format!("{way:?}").contains("127.0.0.1"));
/// // An address of another host cannot be the source.
/// assert!(AddressHandle::new(&domain, "192.0.2.1".parse().unwrap(), here).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AddressHandle(Arc<address_handle::AddressHandle>);

impl AddressHandle {
    /// The way from the local address `from` to the host at `to`.
    ///
    /// ```
    /// use adverb::AddressHandle;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// // A way stays good for any number of datagrams: a program makes one for each host that it knows.
    /// let here = "127.0.0.1".parse().unwrap();
    /// let ways = [here, "127.0.0.2".parse().unwrap()].map(|host| AddressHandle::new(&domain, here, host));
    /// assert!(ways.iter().all(|way| way.is_ok()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `from` is no address of the device; EOPNOTSUPP if that has no datagrams; ENOMEM when
    /// it is full.
    pub fn new(domain: &ProtectionDomain, from: IpAddr, to: IpAddr) -> Result<Self> {
        Self::to_gid(domain, domain.context().gid_index(&gid_of(from))?, gid_of(to))
    }

    /// The way to the members of a multicast group. [`AddressHandle::EVERYBODY`] is their queue pair number.
    ///
    /// ```
    /// use adverb::{AddressHandle, DatagramQueuePair, DatagramRequest, ProtectionDomain};
    /// use std::net::IpAddr;
    ///
    /// /// Asks everybody who has joined the group.
    /// fn ask(queue_pair: &DatagramQueuePair, domain: &ProtectionDomain, here: IpAddr) -> adverb::Result<()> {
    ///     let group = AddressHandle::multicast(domain, here, "239.1.2.3".parse().unwrap())?;
    ///     let question = DatagramRequest::send(b"who is there?", &group, AddressHandle::EVERYBODY, 0x1234);
    ///     Ok(queue_pair.post_send(question)?)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`AddressHandle::new`]; EINVAL if `group` is no multicast address.
    pub fn multicast(domain: &ProtectionDomain, from: IpAddr, group: IpAddr) -> Result<Self> {
        Self::to_gid(domain, domain.context().gid_index(&gid_of(from))?, multicast_gid(group)?)
    }

    /// The number that stands for the queue pairs of all members of a multicast group.
    ///
    /// ```
    /// use adverb::{AddressHandle, DatagramRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let here = "127.0.0.1".parse().unwrap();
    /// let group = AddressHandle::multicast(&domain, here, "239.1.2.3".parse().unwrap())?;
    /// // A group has no queue pair of its own. This number stands in its place.
    /// let question = DatagramRequest::send(b"who is there?", &group, AddressHandle::EVERYBODY, 0x1234);
    /// assert_eq!(AddressHandle::EVERYBODY, 0xff_ffff);
    /// # drop(question);
    /// # Ok(())
    /// # }
    /// ```
    pub const EVERYBODY: u32 = MULTICAST_QUEUE_PAIR;

    /// The way back to the sender of a datagram. None if the completion is not of a datagram that was
    /// received, or if the datagram came by multicast, or to an address that the device has no more.
    ///
    /// ```
    /// use adverb::{AddressHandle, DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    /// # use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = [domain.context().completion_queue(16)?, domain.context().completion_queue(16)?];
    /// # let asks = domain.datagram_queue_pair(QueuePairOptions::new(&completions[0]), 7)?;
    /// # let answers = domain.datagram_queue_pair(QueuePairOptions::new(&completions[1]), 7)?;
    /// # answers.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// # asks.post_send(DatagramRequest::send(b"who is there?", &way, answers.number(), 7))?;
    /// let question = completions[1].wait(Duration::from_secs(10))?.success()?;
    /// let way = AddressHandle::of_sender(&domain, &question).expect("it came to an address of this host");
    /// let number = question.sender.expect("it is a datagram");
    /// answers.post_send(DatagramRequest::send(b"I am", &way, number, 7))?;
    /// assert_eq!(number, asks.number());
    /// # completions[1].wait(Duration::from_secs(10))?.success()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_sender(domain: &ProtectionDomain, completion: &Completion) -> Option<Self> {
        completion.sender?;
        Self::of_header(domain, completion.header()?)
    }

    /// The way back to the sender of a datagram with this header.
    pub(crate) fn of_header(domain: &ProtectionDomain, header: &[u8; DATAGRAM_HEADER]) -> Option<Self> {
        let (peer, local) = route_header::sender(header)?;
        Self::to_gid(domain, domain.context().gid_index(&local).ok()?, peer).ok()
    }

    fn to_gid(domain: &ProtectionDomain, source_gid_index: u8, gid: [u8; 16]) -> Result<Self> {
        let path =
            Path { gid, source_gid_index, hop_limit: HOP_LIMIT, is_global: true, port: 1, ..Path::default() };
        Ok(Self(address_handle::AddressHandle::new(&domain.core, path)?))
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = std::net::Ipv6Addr::from(self.0.path().gid).to_canonical();
        f.debug_struct("AddressHandle").field("to", &to).finish()
    }
}

/// A queue pair of datagrams (UD): ready from the start, without a connection. A datagram has at most the
/// path MTU ([`PortAttributes::active_mtu`](crate::PortAttributes::active_mtu)), and can be lost.
///
/// ```
/// use adverb::{AddressHandle, Context, DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
/// use std::time::Duration;
///
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// # if !context.attributes().services.contains(&adverb::Service::Ud) {
/// #     return Ok(());
/// # }
/// let domain = context.protection_domain()?;
/// let completions = context.completion_queue(16)?;
/// const QKEY: u32 = 0x1234;
/// let receiver = domain.datagram_queue_pair(QueuePairOptions::new(&completions), QKEY)?;
/// let sends = context.completion_queue(16)?;
/// let sender = domain.datagram_queue_pair(QueuePairOptions::new(&sends), QKEY)?;
/// receiver.post_receive(1, domain.buffer(DATAGRAM_HEADER + 64)?)?;
/// let local = "127.0.0.1".parse().unwrap();
/// let way = AddressHandle::new(&domain, local, local)?;
/// sender.post_send(DatagramRequest::send(b"found you", &way, receiver.number(), QKEY))?;
/// let received = completions.wait(Duration::from_secs(10))?.success()?;
/// assert_eq!(received.datagram(), Some(&b"found you"[..]));
/// assert_eq!(received.sender, Some(sender.number()));
/// // The way back:
/// assert!(AddressHandle::of_sender(&domain, &received).is_some());
/// # Ok(())
/// # }
/// ```
///
/// It has Sends alone. The compiler refuses a Read, and every other request of a connection:
///
/// ```compile_fail,E0308
/// # fn post(pair: &adverb::DatagramQueuePair, buffer: adverb::Buffer, there: &adverb::RemoteMemory) {
/// let _ = pair.post_send(adverb::WorkRequest::read(buffer, there));
/// # }
/// ```
pub struct DatagramQueuePair(QueuePair);

impl DatagramQueuePair {
    pub(crate) fn new(domain: &ProtectionDomain, options: QueuePairOptions, qkey: u32) -> Result<Self> {
        let pair = QueuePair::new(domain, options, Service::Ud, |core| {
            let to = |state| Attributes {
                state: Some(state),
                port: 1,
                qkey,
                sq_psn: random_24_bits(),
                ..Attributes::default()
            };
            use AttributeMask as M;
            core.modify(&to(State::Init), M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY)?;
            core.modify(&to(State::Rtr), M::STATE)?;
            Ok(core.modify(&to(State::Rts), M::STATE | M::SQ_PSN)?)
        })?;
        Ok(Self(pair))
    }

    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.0
    }

    /// The queue pair's number, which senders need.
    ///
    /// ```
    /// use adverb::{DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # queue_pair.post_receive(0, domain.buffer(DATAGRAM_HEADER + 64)?)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // The number travels by another way, such as a file. Here the queue pair sends to itself.
    /// let number = queue_pair.number();
    /// queue_pair.post_send(DatagramRequest::send(b"to me", &way, number, 7).unsignalled())?;
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!((received.datagram(), received.sender), (Some(&b"to me"[..]), Some(number)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// Puts a datagram on its way. It is complete when it has left.
    ///
    /// ```
    /// use adverb::{DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// let mut buffer = domain.buffer(16)?;
    /// buffer.fill(7);
    /// // Nobody receives it. The request ends well all the same: the datagram has left.
    /// queue_pair.post_send(DatagramRequest::send(buffer, &way, queue_pair.number(), 7))?;
    /// let buffer = completions.wait(std::time::Duration::from_secs(10))?.success()?.into_buffer();
    /// assert_eq!(buffer[..], [7; 16]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Connection::post_send`](crate::Connection::post_send).
    #[inline]
    pub fn post_send(&self, request: DatagramRequest<'_>) -> Result<(), Rejected> {
        let DatagramRequest { request, way, number, qkey } = request;
        if way.0.domain().number() != self.0.domain().number() {
            return Err(Rejected::of(PostError::OtherDomain, request));
        }
        self.0.post_to(request, Some(Datagram { path: way.0.path(), queue_pair: number, qkey }), 0)
    }

    /// Offers memory for a datagram, with [`DATAGRAM_HEADER`] bytes of room in front. A datagram that finds
    /// none is lost.
    ///
    /// ```
    /// use adverb::{DATAGRAM_HEADER, DatagramRequest, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let way = adverb::AddressHandle::new(&domain, local, local)?;
    /// // The first datagram takes the first receive.
    /// for (id, buffer) in (0..).zip(domain.buffers(4, DATAGRAM_HEADER + 1024)?) {
    ///     queue_pair.post_receive(id, buffer)?;
    /// }
    /// # queue_pair.post_send(DatagramRequest::send(b"to me", &way, queue_pair.number(), 7).unsignalled())?;
    /// let received = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!((received.id, received.datagram()), (0, Some(&b"to me"[..])));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`QueuePair::post_receive`].
    #[inline]
    pub fn post_receive(&self, id: u64, target: impl Into<Segments>) -> Result<(), Rejected> {
        self.0.post_receive(id, target)
    }

    /// Receives what is sent to a multicast group, too, from now on.
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// # if !context.attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let (domain, completions) = (context.protection_domain()?, context.completion_queue(256)?);
    /// let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 0x1234)?;
    /// let group = "239.1.2.3".parse().unwrap();
    /// queue_pair.join(group)?;
    /// queue_pair.leave(group)?;
    /// assert!(queue_pair.leave(group).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL if `group` is no multicast address.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        Ok(self.0.core().attach_multicast(&multicast_gid(group)?)?)
    }

    /// Leaves a multicast group.
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Ud) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.datagram_queue_pair(QueuePairOptions::new(&completions), 7)?;
    /// let group = "239.1.2.3".parse().unwrap();
    /// queue_pair.join(group)?;
    /// // Its receives are for datagrams to the queue pair alone from here on.
    /// queue_pair.leave(group)?;
    /// assert!(queue_pair.leave(group).is_err(), "it is no member any more");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for a group that it has not joined.
    pub fn leave(&self, group: IpAddr) -> Result<()> {
        self.0.core().detach_multicast(&multicast_gid(group)?).map_err(Error::from)
    }
}

impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatagramQueuePair").field(&self.0).finish()
    }
}
