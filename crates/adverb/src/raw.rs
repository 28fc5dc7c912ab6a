//! Queue pairs that are connected by numbers, without a connection manager: as programs in C do that exchange
//! them over a socket.

use crate::connection::NotConnected;
use crate::request::{Rejected, UnreliableRequest, WorkRequest};
use crate::{ConnectError, ConnectionOptions, Context, Error, QueuePair, Result};
use adverb_core::attributes::TransportType;
use adverb_core::cm::Agreement;
use adverb_core::qp::{self, Path, Service, State};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Deref;
use std::str::FromStr;

/// Hop limit of packets: what Linux gives to IP packets.
pub(crate) const HOP_LIMIT: u8 = 64;

/// The numbers by which a peer reaches a queue pair: queue pair number, first packet sequence number (PSN)
/// and GID.
///
/// [`RawAddress::write_to`] and [`RawAddress::read_from`] exchange them over a socket in the form of
/// `ibv_rc_pingpong` and its like.
///
/// ```
/// use adverb::RawAddress;
///
/// let address: RawAddress = "0000:000123:abcdef:00000000000000000000ffff7f000001".parse().unwrap();
/// assert_eq!((address.number, address.first_packet, address.ip()), (0x123, 0xabcdef, "127.0.0.1".parse().unwrap()));
/// assert_eq!(address.to_string(), "0000:000123:abcdef:00000000000000000000ffff7f000001");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawAddress {
    /// Number of the queue pair.
    pub number: u32,
    /// The sequence number of its first packet, below 2^24.
    pub first_packet: u32,
    /// The GID of its port: an IPv6 address, or an IPv4 address mapped into one.
    pub gid: [u8; 16],
}

impl RawAddress {
    /// Bytes of the form on a socket: the text, and a zero.
    ///
    /// ```
    /// use adverb::RawAddress;
    ///
    /// let address = RawAddress { number: 17, first_packet: 4, gid: [0; 16] };
    /// let mut sent = Vec::new();
    /// address.write_to(&mut sent).unwrap();
    /// // A program that reads from its socket itself reads so many bytes.
    /// assert_eq!((sent.len(), sent.last()), (RawAddress::BYTES, Some(&0)));
    /// ```
    pub const BYTES: usize = 52;

    /// The GID as an IP address.
    ///
    /// ```
    /// use adverb::RawAddress;
    ///
    /// /// For a log: who the peer is.
    /// fn name(peer: &RawAddress) -> String {
    ///     format!("queue pair {:#x} of {}", peer.number, peer.ip())
    /// }
    ///
    /// let peer = "0000:000123:abcdef:00000000000000000000ffffc0000207".parse().unwrap();
    /// assert_eq!(name(&peer), "queue pair 0x123 of 192.0.2.7");
    /// ```
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }

    /// Sends it as text with a zero behind it.
    ///
    /// ```
    /// use adverb::RawAddress;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let own = RawAddress { number: 17, first_packet: 4, gid: [7; 16] };
    /// // In place of a socket:
    /// let mut stream = Vec::new();
    /// own.write_to(&mut stream).unwrap();
    /// assert_eq!(stream.len(), RawAddress::BYTES);
    /// assert_eq!(RawAddress::read_from(&mut &stream[..]).unwrap(), own);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write_to(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = self.to_string().into_bytes();
        bytes.push(0);
        stream.write_all(&bytes)
    }

    /// Receives what [`RawAddress::write_to`] sends.
    ///
    /// ```
    /// use adverb::RawAddress;
    /// use std::io::ErrorKind;
    ///
    /// # let peer = RawAddress { number: 17, first_packet: 4, gid: [7; 16] };
    /// # let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
    /// peer.write_to(&mut there).unwrap();
    /// assert_eq!(RawAddress::read_from(&mut here).unwrap(), peer);
    /// // Some other program has called:
    /// let request = [b'x'; RawAddress::BYTES];
    /// assert_eq!(RawAddress::read_from(&mut &request[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    /// ```
    ///
    /// # Errors
    /// Those of the stream; [`io::ErrorKind::InvalidData`] for something else than an address.
    pub fn read_from(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; Self::BYTES];
        stream.read_exact(&mut bytes)?;
        let text = std::str::from_utf8(&bytes[..Self::BYTES - 1]).map_err(|_| NoAddress);
        text.and_then(str::parse).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl fmt::Display for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0000:{:06x}:{:06x}:", self.number, self.first_packet)?;
        self.gid.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text that is no [`RawAddress`].
///
/// ```
/// use adverb::{NoAddress, RawAddress};
///
/// // A number of the command line that was not copied whole:
/// let text = "0000:000123:abcdef";
/// assert_eq!(text.parse::<RawAddress>(), Err(NoAddress));
/// assert!(NoAddress.to_string().contains("GID are wanted"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress;

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no address of a queue pair: LID, number, first PSN and GID are wanted, in hexadecimal digits with colons between them")
    }
}

impl std::error::Error for NoAddress {}

impl FromStr for RawAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let mut parts = text.split(':');
        let mut next = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hexadecimal = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hexadecimal.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (lid, number, first_packet, gid) = (next(4), next(6), next(6), next(32));
        match (lid, number, first_packet, gid, parts.next()) {
            (Some(_), Some(number), Some(first_packet), Some(gid), None) => {
                Ok(Self { number: number as u32, first_packet: first_packet as u32, gid: gid.to_be_bytes() })
            }
            _ => Err(NoAddress),
        }
    }
}

/// A queue pair that [`QueuePair::connect_raw`] has connected. Dropping it ends it; the peer learns of that
/// by its own requests alone.
///
/// ```
/// use adverb::{ConnectionOptions, QueuePair, RawAddress, RawConnection};
/// use std::net::TcpStream;
///
/// /// Exchanges numbers over a socket, and connects.
/// fn connect(queue_pair: QueuePair, socket: &mut TcpStream) -> Result<RawConnection, Box<dyn std::error::Error>> {
///     let own = queue_pair.raw_address(socket.local_addr()?.ip())?;
///     own.write_to(socket)?;
///     let peer = RawAddress::read_from(socket)?;
///     Ok(queue_pair.connect_raw(&own, &peer, &ConnectionOptions::new())?)
/// }
/// ```
pub struct RawConnection(QueuePair);

impl RawConnection {
    /// Posts a request to the send queue, as [`Connection::post_send`](crate::Connection::post_send).
    ///
    /// ```
    /// use adverb::{ConnectionOptions, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if domain.context().attributes().transport == adverb::TransportType::Iwarp {
    /// #     return Ok(());
    /// # }
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let (of_client, of_server) = (client.raw_address(local)?, server.raw_address(local)?);
    /// # server.post_receive(0, domain.buffer(64)?)?;
    /// # let server = server.connect_raw(&of_server, &of_client, &ConnectionOptions::new())?;
    /// let client = client.connect_raw(&of_client, &of_server, &ConnectionOptions::new())?;
    /// // No manager tells that the peer is there: a request that ends well does.
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// client.send_queue().wait(SOON)?.success()?;
    /// assert_eq!(server.receive_queue().wait(SOON)?.success()?.message(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError); the buffer comes back.
    #[inline]
    pub fn post_send(&self, request: WorkRequest<'_>) -> Result<(), Rejected> {
        self.0.post(request)
    }

    /// The queue pair, in error: its requests come back as flushed. [`QueuePair::reset`] makes it new.
    ///
    /// ```
    /// use adverb::ConnectionOptions;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if domain.context().attributes().transport == adverb::TransportType::Iwarp {
    /// #     return Ok(());
    /// # }
    /// # let (client, server) = (queue_pair(&domain)?, queue_pair(&domain)?);
    /// # let local = "127.0.0.1".parse().unwrap();
    /// # let (own, peer) = (client.raw_address(local)?, server.raw_address(local)?);
    /// # client.post_receive(0, domain.buffer(64)?)?;
    /// let connection = client.connect_raw(&own, &peer, &ConnectionOptions::new())?;
    /// // The peer is gone. The same queue pair, with its buffers, is for the next one.
    /// let mut queue_pair = connection.into_queue_pair();
    /// let buffers = queue_pair.reset()?;
    /// assert_eq!((buffers.len(), queue_pair.is_connected()), (1, false));
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_queue_pair(self) -> QueuePair {
        self.0.fail();
        self.0
    }
}

impl Deref for RawConnection {
    type Target = QueuePair;

    #[inline]
    fn deref(&self) -> &QueuePair {
        &self.0
    }
}

impl fmt::Debug for RawConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawConnection").field(&self.0).finish()
    }
}

impl QueuePair {
    /// The numbers by which a peer reaches this queue pair, at the local address `ip`. The first packet
    /// number is a new one each time: keep the result, and hand it to [`QueuePair::connect_raw`].
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if domain.context().attributes().transport == adverb::TransportType::Iwarp {
    /// #     return Ok(());
    /// # }
    /// # let queue_pair = queue_pair(&domain)?;
    /// // At the address by which the peer is to reach this host, such as that of a socket to the peer.
    /// let here = "127.0.0.1".parse().unwrap();
    /// let own = queue_pair.raw_address(here)?;
    /// assert_eq!((own.number, own.ip()), (queue_pair.number(), here));
    /// // An address of another host is refused.
    /// assert!(queue_pair.raw_address("192.0.2.7".parse().unwrap()).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `ip` is no address of the device; EOPNOTSUPP on a device that connects by its manager
    /// alone, as `iwarp0`.
    pub fn raw_address(&self, ip: IpAddr) -> Result<RawAddress> {
        address(self.domain().context(), self.number(), ip)
    }

    /// Connects to the queue pair at `peer` without a connection manager (`ibv_modify_qp`, to RTR and RTS).
    /// Nothing is sent. The peer does the same with the two addresses exchanged. On `roce0` alone: TCP
    /// connections of `iwarp0` need the manager.
    ///
    /// Of `options` count retries, depths, answer time, traffic class and path MTU. The peer may run in C,
    /// for instance `ibv_rc_pingpong -g`.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, Context, QueuePairOptions, WorkRequest};
    /// use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = Context::open_default()?;
    /// # if context.attributes().transport == adverb::TransportType::Iwarp {
    /// #     return Ok(());
    /// # }
    /// let domain = context.protection_domain()?;
    /// let completions = context.completion_queue(16)?;
    /// let [a, b] = [(); 2].map(|()| domain.queue_pair(QueuePairOptions::new(&completions)));
    /// let (a, b) = (a?, b?);
    /// let local = "127.0.0.1".parse().unwrap();
    /// let (of_a, of_b) = (a.raw_address(local)?, b.raw_address(local)?);
    /// let options = ConnectionOptions::new();
    /// b.post_receive(7, domain.buffer(64)?)?;
    /// let a = a.connect_raw(&of_a, &of_b, &options)?;
    /// let b = b.connect_raw(&of_b, &of_a, &options)?;
    /// a.post_send(WorkRequest::send(b"by numbers"))?;
    /// let both = [(); 2].map(|()| completions.wait(Duration::from_secs(10)));
    /// assert!(both.into_iter().any(|end| end.is_ok_and(|end| end.message() == b"by numbers")));
    /// # drop(b);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for values that the device does not have, or a device that connects by its manager alone. The
    /// queue pair comes back in the error.
    pub fn connect_raw(
        self,
        own: &RawAddress,
        peer: &RawAddress,
        options: &ConnectionOptions,
    ) -> Result<RawConnection, NotConnected> {
        match self.to_connected(Service::Rc, own, peer, options) {
            Ok(()) => Ok(RawConnection(self)),
            Err(error) => Err(self.not_connected(error)),
        }
    }

    fn not_connected(self, error: Error) -> NotConnected {
        self.fail();
        NotConnected { error: ConnectError::Failed(error), queue_pair: self }
    }

    fn to_connected(
        &self,
        service: Service,
        own: &RawAddress,
        peer: &RawAddress,
        options: &ConnectionOptions,
    ) -> Result<()> {
        connect(self.core(), self.domain().context(), service, own, peer, options)
    }
}

/// The numbers of a queue pair at a local address, with a new number of its first packet.
pub(crate) fn address(context: &Context, number: u32, ip: IpAddr) -> Result<RawAddress> {
    if context.attributes().transport == TransportType::Iwarp {
        let device = context.device();
        let text = format!(
            "{} connects queue pairs by its connection manager alone: QueuePair::connect, and a Listener",
            device.name()
        );
        return Err(Error::new(libc::EOPNOTSUPP, text));
    }
    let gid = adverb_core::attributes::gid_of(ip);
    context.gid_index(&gid)?;
    Ok(RawAddress { number, first_packet: random_24_bits(), gid })
}

/// Brings a queue pair to RTS.
pub(crate) fn connect(
    queue_pair: &qp::QueuePair,
    context: &Context,
    service: Service,
    own: &RawAddress,
    peer: &RawAddress,
    options: &ConnectionOptions,
) -> Result<()> {
    let parameters = options.parameters(context, None)?;
    let address_options = options.address_options()?;
    let active = context.port()?.active_mtu;
    let agreement = Agreement {
        service,
        path: Path {
            gid: peer.gid,
            source_gid_index: context.gid_index(&own.gid)?,
            hop_limit: HOP_LIMIT,
            traffic_class: address_options.type_of_service.unwrap_or(0),
            is_global: true,
            port: 1,
            ..Path::default()
        },
        path_mtu: address_options.path_mtu.unwrap_or(1024).min(active),
        destination: peer.number,
        rq_psn: peer.first_packet,
        sq_psn: own.first_packet,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        ack_timeout: address_options.ack_timeout.unwrap_or(14),
        retry_count: parameters.retry_count,
        rnr_retry_count: parameters.rnr_retry_count,
    };
    for state in [State::Rtr, State::Rts] {
        let (attributes, mask) = agreement.attributes(state)?;
        queue_pair.modify(&attributes, mask)?;
    }
    Ok(())
}

/// A queue pair of the service UC: Sends and Writes without acknowledgements. What the network loses is lost.
///
/// It is connected by numbers alone ([`UnreliableQueuePair::connect_raw`]), and has no Reads and atomics:
///
/// ```compile_fail,E0308
/// # fn post(connection: &adverb::UnreliableConnection, buffer: adverb::Buffer, there: &adverb::RemoteMemory) {
/// let _ = connection.post_send(adverb::WorkRequest::read(buffer, there));
/// # }
/// ```
///
/// ```
/// use adverb::{ConnectionOptions, QueuePairOptions};
///
/// # fn main() -> adverb::Result<()> {
/// # let domain = adverb::Context::open_default()?.protection_domain()?;
/// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
/// #     return Ok(());
/// # }
/// # let completions = domain.context().completion_queue(256)?;
/// let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
/// let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
/// // Its numbers go to the peer, and those of the peer come back. Here it is its own peer.
/// let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
/// assert_eq!(connection.number(), own.number);
/// # Ok(())
/// # }
/// ```
pub struct UnreliableQueuePair(pub(crate) QueuePair);

impl UnreliableQueuePair {
    /// Connects to the queue pair at `peer` without a connection manager, as [`QueuePair::connect_raw`]. The
    /// peer's queue pair is of the service UC, too.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let [a, b] = [(); 2].map(|()| domain.unreliable_queue_pair(QueuePairOptions::new(&completions)));
    /// # let (a, b) = (a?, b?);
    /// let local = "127.0.0.1".parse().unwrap();
    /// // Each side hands the numbers that it has told the peer, and those that the peer has told it.
    /// let (of_a, of_b) = (a.raw_address(local)?, b.raw_address(local)?);
    /// let a = a.connect_raw(&of_a, &of_b, &ConnectionOptions::new())?;
    /// let b = b.connect_raw(&of_b, &of_a, &ConnectionOptions::new())?;
    /// assert_eq!((a.number(), b.number()), (of_a.number, of_b.number));
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
    ) -> Result<UnreliableConnection, NotConnected> {
        match self.0.to_connected(Service::Uc, own, peer, options) {
            Ok(()) => Ok(UnreliableConnection(self.0)),
            Err(error) => Err(self.0.not_connected(error)),
        }
    }

    /// The numbers by which a peer reaches this queue pair, at the local address `ip`, as
    /// [`QueuePair::raw_address`].
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// // As text, for a file or a socket:
    /// assert_eq!(own.to_string().parse(), Ok(own));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EADDRNOTAVAIL if `ip` is no address of the device.
    pub fn raw_address(&self, ip: IpAddr) -> Result<RawAddress> {
        self.0.raw_address(ip)
    }

    /// Offers memory for a message of the peer, as [`QueuePair::post_receive`].
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// // Before it is connected: a message that finds no receive is lost.
    /// queue_pair.post_receive(7, domain.buffer(64)?)?;
    /// // Here it is connected to itself.
    /// let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// connection.post_send(UnreliableRequest::send(b"to me").unsignalled())?;
    /// let message = completions.wait(std::time::Duration::from_secs(10))?.success()?;
    /// assert_eq!((message.id, message.message()), (7, &b"to me"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError); the buffer comes back.
    pub fn post_receive(&self, id: u64, target: impl Into<crate::Segments>) -> Result<(), Rejected> {
        self.0.post_receive(id, target)
    }
}

impl fmt::Debug for UnreliableQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnreliableQueuePair").field(&self.0).finish()
    }
}

/// A connected queue pair of the service UC.
///
/// ```
/// use adverb::{ConnectionOptions, Context, QueuePairOptions, UnreliableRequest};
///
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// # if !context.attributes().services.contains(&adverb::Service::Uc) {
/// #     return Ok(());
/// # }
/// let domain = context.protection_domain()?;
/// let completions = context.completion_queue(16)?;
/// let [a, b] = [(); 2].map(|()| domain.unreliable_queue_pair(QueuePairOptions::new(&completions)));
/// let (a, b) = (a?, b?);
/// let local = "127.0.0.1".parse().unwrap();
/// let (of_a, of_b) = (a.raw_address(local)?, b.raw_address(local)?);
/// b.post_receive(0, domain.buffer(64)?)?;
/// let a = a.connect_raw(&of_a, &of_b, &ConnectionOptions::new())?;
/// let b = b.connect_raw(&of_b, &of_a, &ConnectionOptions::new())?;
/// a.post_send(UnreliableRequest::send(b"it may be lost").unsignalled())?;
/// # let message = completions.wait(std::time::Duration::from_secs(10))?.success()?;
/// # assert_eq!((message.queue_pair, message.message()), (b.number(), &b"it may be lost"[..]));
/// # Ok(())
/// # }
/// ```
pub struct UnreliableConnection(QueuePair);

impl UnreliableConnection {
    /// Posts a request to the send queue, as [`Connection::post_send`](crate::Connection::post_send).
    /// [`UnreliableRequest`] has the requests of the service UC. A request is complete when its packets have
    /// left.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// // The peer has no receive, and does not say so: the request ends well when its packets have left.
    /// connection.post_send(UnreliableRequest::send(b"a reading").id(7))?;
    /// let end = completions.wait(std::time::Duration::from_secs(10))?;
    /// assert_eq!(end.success()?.id, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError); the buffer comes back.
    #[inline]
    pub fn post_send(&self, request: UnreliableRequest<'_>) -> Result<(), Rejected> {
        self.0.post(request.0)
    }

    /// Offers memory for a message of the peer, as [`QueuePair::post_receive`]. A message that finds no
    /// receive is lost.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    /// # use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # queue_pair.post_receive(0, domain.buffer(64)?)?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// for number in 0..3_u8 {
    ///     connection.post_send(UnreliableRequest::send(&[number]).unsignalled())?;
    ///     let reading = completions.wait(Duration::from_secs(10))?.success()?;
    ///     assert_eq!(reading.message(), [number]);
    ///     // At once, so that the next reading is not lost.
    ///     connection.post_receive(0, reading.into_buffer())?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`PostError`](crate::PostError); the buffer comes back.
    #[inline]
    pub fn post_receive(&self, id: u64, target: impl Into<crate::Segments>) -> Result<(), Rejected> {
        self.0.post_receive(id, target)
    }

    /// The queue pair's number, as completions carry it.
    ///
    /// ```
    /// use adverb::{ConnectionOptions, QueuePairOptions, UnreliableRequest};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::Uc) {
    /// #     return Ok(());
    /// # }
    /// # let completions = domain.context().completion_queue(16)?;
    /// # let queue_pair = domain.unreliable_queue_pair(QueuePairOptions::new(&completions))?;
    /// # let own = queue_pair.raw_address("127.0.0.1".parse().unwrap())?;
    /// # let connection = queue_pair.connect_raw(&own, &own, &ConnectionOptions::new())?;
    /// connection.post_send(UnreliableRequest::send(b"a reading"))?;
    /// // Where several connections share a completion queue, it says whose request has ended.
    /// let end = completions.wait(std::time::Duration::from_secs(10))?;
    /// assert_eq!(end.queue_pair, connection.number());
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.0.number()
    }
}

impl fmt::Debug for UnreliableConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnreliableConnection").field(&self.0).finish()
    }
}

/// A number that nobody can foresee, below 2^24.
pub(crate) fn random_24_bits() -> u32 {
    adverb_core::random::word() as u32 & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_journey_and_nonsense_is_refused() {
        let address = RawAddress { number: 0xabcdef, first_packet: 1, gid: [7; 16] };
        let mut bytes = Vec::new();
        address.write_to(&mut bytes).unwrap();
        assert_eq!(bytes.len(), RawAddress::BYTES);
        assert_eq!(RawAddress::read_from(&mut &bytes[..]).unwrap(), address);
        assert_eq!(RawAddress::read_from(&mut &bytes[1..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let text = address.to_string();
        for wrong in [
            "",
            "0000:1:1:1",
            &text[1..],
            &format!("{text}:"),
            &text.replace('a', "+"),
            &text.replace('a', "é"),
        ] {
            assert_eq!(wrong.parse::<RawAddress>(), Err(NoAddress), "{wrong}");
        }
        bytes[3] = 0xff;
        assert_eq!(RawAddress::read_from(&mut &bytes[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
