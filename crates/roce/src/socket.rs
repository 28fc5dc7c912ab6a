//! Unprivileged UDP sockets for RoCE. They are unconnected, so that the IP identification of their packets is
//! known: zero, or the place in a segmented send. They never fragment. The system calls here that threads of
//! the program make are no cancellation points.

use crate::observer;
use crate::route::{Route, canonical};
use adverb_core::fork::{self, ForkGeneration};
use adverb_core::{clock, setting, watch};
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr;

/// Datagrams, or trains of equal datagrams, that one system call sends or receives.
pub(crate) const BURST: usize = 8;
/// After trains of so many bytes a call receives only [`FEW`], so that the bytes are still in the processor's
/// cache when they are looked at.
const LONG: usize = 16 << 10;
const FEW: usize = 2;
/// Room for a train: the longest that the kernel joins.
const TRAIN: usize = 1 << 16;
/// Room for the control messages of a datagram, in words.
const CONTROL: usize = 20;

// The names that libc lacks.
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;
const UDP_NO_CHECK6_RX: i32 = 102;
const IP_PMTUDISC_PROBE: i32 = 3;

/// A UDP socket of the engine.
pub(crate) struct Socket {
    fd: RawFd,
    /// Whether the socket speaks IPv6, and IPv4 through mapped addresses; else IPv4 alone.
    dual: bool,
    port: u16,
    segments: bool,
    joins: bool,
    takes: u32,
    born: ForkGeneration,
}

/// Datagrams to be sent together: `count` of `segment` bytes, the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    pub(crate) route: Route,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) segment: usize,
    pub(crate) count: usize,
}

/// A datagram that has arrived.
pub(crate) struct Arrival<'a> {
    /// The address of the sender.
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    /// The address that it was sent to.
    pub(crate) local: IpAddr,
    pub(crate) local_port: u16,
    /// Index of the interface that it came in by.
    pub(crate) interface: u32,
    /// Traffic class.
    pub(crate) class: u8,
    /// The hop limit that the packet has left.
    pub(crate) hops: u8,
    pub(crate) bytes: &'a [u8],
}

impl Arrival<'_> {
    /// Shows the datagram to the capture, the log or a watcher.
    #[cold]
    pub(crate) fn show(&self) {
        let from = SocketAddr::new(self.source, self.source_port);
        observer::received(from, SocketAddr::new(self.local, self.local_port), self.bytes);
    }
}

impl Socket {
    /// A socket on `port` (0: any) of all addresses.
    ///
    /// # Errors
    /// Of socket(2) and bind(2): EADDRINUSE, EMFILE.
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        if !setting::without("ipv6") {
            match Self::bind_family(libc::AF_INET6, port) {
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL | libc::EINVAL)
                    ) => {}
                other => return other,
            }
        }
        Self::bind_family(libc::AF_INET, port)
    }

    fn bind_family(family: i32, port: u16) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain numbers.
        let fd = unsafe { libc::socket(family, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        fork::own_descriptor(fd);
        let dual = family == libc::AF_INET6;
        let mut socket =
            Self { fd, dual, port, segments: false, joins: false, takes: 0, born: ForkGeneration::now() };
        if dual {
            socket.set(libc::SOL_IPV6, libc::IPV6_V6ONLY, 0)?;
            socket.set(libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE)?;
            socket.set(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            for option in [libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT] {
                let _ = socket.set(libc::SOL_IPV6, option, 1);
            }
            let _ = socket.set(libc::SOL_IPV6, libc::IPV6_MULTICAST_ALL, 0);
            // Peers may leave the UDP checksum out: the invariant CRC is there (ROCE annex A17.3.2).
            // ROCE-6
            let _ = socket.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1);
        }
        // ROCE-8
        // Never a fragment, and always the identification zero.
        socket.set(libc::SOL_IP, libc::IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)?;
        if !dual {
            socket.set(libc::SOL_IP, libc::IP_PKTINFO, 1)?;
        }
        for option in [libc::IP_RECVTOS, libc::IP_RECVTTL] {
            let _ = socket.set(libc::SOL_IP, option, 1);
        }
        let _ = socket.set(libc::SOL_IP, libc::IP_MULTICAST_ALL, 0);
        let _ = socket.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            // As much as an ordinary user gets.
            let _ = socket.set(libc::SOL_SOCKET, option, 4 << 20);
        }
        socket.takes = socket.get(libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0) / 32 * 27;
        socket.joins = !setting::without("gro") && socket.set(libc::SOL_UDP, UDP_GRO, 1).is_ok();
        socket.segments = !setting::without("gso") && socket.set(libc::SOL_UDP, UDP_SEGMENT, 0).is_ok();
        let any = if dual { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let mut address = Address::new(SocketAddr::new(any, port), dual);
        // SAFETY: a filled address of its length.
        if unsafe { libc::bind(fd, address.pointer(), address.length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if port == 0 {
            // SAFETY: a live local and its length.
            if unsafe { libc::getsockname(fd, address.pointer().cast_mut(), &raw mut address.length) } != 0 {
                return Err(io::Error::last_os_error());
            }
            socket.port = address.get().map_or(0, |address| address.port());
        }
        Ok(socket)
    }

    /// Most bytes that may be in flight to this socket, in the unit of congestion windows, so that its buffer
    /// holds them. The kernel also counts its own memory for each packet there.
    pub(crate) fn takes(&self) -> u32 {
        self.takes
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// The UDP port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether the kernel cuts trains into datagrams.
    pub(crate) fn segments(&self) -> bool {
        self.segments
    }

    /// Whether the socket receives trains as they were sent, if nothing on the way has cut them up.
    pub(crate) fn joins(&self) -> bool {
        self.joins
    }

    /// Whether the socket can send to `address`.
    #[cfg(test)]
    pub(crate) fn reaches(&self, address: &IpAddr) -> bool {
        self.dual || address.is_ipv4()
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: four bytes of a live local.
        let result = unsafe { libc::setsockopt(self.fd, level, option, (&raw const value).cast(), length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn get(&self, level: i32, option: i32) -> io::Result<u32> {
        let (mut value, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
        // SAFETY: four bytes of a live local, and their count.
        let result =
            unsafe { libc::getsockopt(self.fd, level, option, (&raw mut value).cast(), &raw mut length) };
        if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    /// Joins or leaves a multicast group on an interface (0: the system's choice). Joining again has no
    /// effect.
    // ROCE-26
    pub(crate) fn multicast(&self, group: IpAddr, interface: u32, join: bool) -> io::Result<()> {
        let result = match group {
            IpAddr::V4(group) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from(group).to_be() },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: interface as i32,
                };
                let option = if join { libc::IP_ADD_MEMBERSHIP } else { libc::IP_DROP_MEMBERSHIP };
                let length = size_of::<libc::ip_mreqn>() as libc::socklen_t;
                // SAFETY: a live local of the length given.
                unsafe {
                    libc::setsockopt(self.fd, libc::SOL_IP, option, (&raw const request).cast(), length)
                }
            }
            IpAddr::V6(group) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: interface,
                };
                let option = if join { libc::IPV6_ADD_MEMBERSHIP } else { libc::IPV6_DROP_MEMBERSHIP };
                let length = size_of::<libc::ipv6_mreq>() as libc::socklen_t;
                // SAFETY: as above.
                unsafe {
                    libc::setsockopt(self.fd, libc::SOL_IPV6, option, (&raw const request).cast(), length)
                }
            }
        };
        match (result, io::Error::last_os_error()) {
            (0, _) => Ok(()),
            // It was joined already, as a new holder of the port.
            (_, error) if join && error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()),
            (_, error) => Err(error),
        }
    }

    /// Sends trains out of `bytes`; returns how many went. Never waits.
    ///
    /// # Errors
    /// That of the first train: EAGAIN when the socket is full.
    pub(crate) fn send(&self, bytes: &[u8], trains: &[Train]) -> io::Result<usize> {
        let trains = &trains[..trains.len().min(BURST)];
        let mut messages: [MaybeUninit<Message>; BURST] = [const { MaybeUninit::uninit() }; BURST];
        let mut heads: [MaybeUninit<libc::mmsghdr>; BURST] = [const { MaybeUninit::uninit() }; BURST];
        for ((train, message), head) in trains.iter().zip(&mut messages).zip(&mut heads) {
            let piece = &bytes[train.start..train.end];
            let message = message.write(Message {
                name: Address::new(train.route.peer(), self.dual),
                part: libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() },
                control: Control::EMPTY,
            });
            message.control.describe(train, self.dual);
            // SAFETY: plain numbers and null pointers.
            let mut all: libc::mmsghdr = unsafe { zeroed() };
            all.msg_hdr.msg_name = message.name.pointer().cast_mut().cast();
            all.msg_hdr.msg_namelen = message.name.length;
            all.msg_hdr.msg_iov = &raw mut message.part;
            all.msg_hdr.msg_iovlen = 1;
            all.msg_hdr.msg_control = message.control.words.as_mut_ptr().cast();
            all.msg_hdr.msg_controllen = message.control.used;
            head.write(all);
        }
        let before = watch::packets().then(clock::device);
        // SAFETY: as many headers as there are trains are written; each names live locals and bytes of
        // `bytes`.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                self.fd,
                heads.as_mut_ptr(),
                trains.len() as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let sent = sent as usize;
        if let Some(before) = before {
            trains[..sent].iter().for_each(|train| self.show(before, bytes, train));
        }
        Ok(sent)
    }

    #[cold]
    fn show(&self, time: u64, bytes: &[u8], train: &Train) {
        let from = SocketAddr::new(train.route.source, self.port);
        let to = SocketAddr::new(train.route.destination, train.route.port);
        for (index, datagram) in bytes[train.start..train.end].chunks(train.segment).enumerate() {
            observer::sent(time, from, to, index as u16, datagram);
        }
    }

    /// Receives up to [`BURST`] trains that have arrived into the buffers, in place of those before. Never
    /// waits.
    pub(crate) fn receive(&self, buffers: &mut Buffers) -> io::Result<TrainReceipt> {
        buffers.trains = 0;
        // SAFETY: each header names a buffer of its own, all of which live as long as `buffers`; no time
        // limit.
        let count = unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                self.fd,
                buffers.heads.as_mut_ptr(),
                buffers.wanted as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut::<libc::timespec>(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        let trains = count as usize;
        let mut received = TrainReceipt { trains, more: trains == buffers.wanted, ..TrainReceipt::default() };
        let bytes: usize = buffers.heads[..trains].iter().map(|head| head.msg_len as usize).sum();
        buffers.wanted = if bytes >= LONG * trains.max(1) { FEW } else { BURST };
        buffers.trains = trains;
        for index in 0..trains {
            let head = &mut buffers.heads[index];
            let truncated = head.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            let length = std::mem::replace(&mut head.msg_hdr.msg_controllen, CONTROL * 8);
            head.msg_hdr.msg_namelen = NAME;
            let known = buffers.controls[index].read(length);
            let source = buffers.names[index].get();
            if source.is_some()
                && let Some(lost) = known.lost
                && lost != buffers.lost
            {
                received.overflowed = lost.wrapping_sub(buffers.lost);
                buffers.lost = lost;
            }
            // Without the address that it was sent to, its checksum cannot be computed.
            buffers.envelopes[index] = match (source, known.local) {
                (Some(source), Some(local)) if !truncated => Some(Envelope {
                    source: canonical(source.ip()),
                    // ROCE-5
                    source_port: source.port(),
                    local: canonical(local),
                    local_port: self.port,
                    interface: known.interface,
                    class: known.class,
                    hops: known.hops,
                    segment: known.segment,
                }),
                _ => None,
            };
        }
        Ok(received)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.born.is_here() {
            fork::disown_descriptor(self.fd);
            // SAFETY: ours; no other thread uses it any more.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}

/// The name and the control messages with which a train is sent.
struct Message {
    name: Address,
    part: libc::iovec,
    control: Control,
}

/// The outcome of a receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrainReceipt {
    /// Trains, each with an element of its own of the call's.
    pub(crate) trains: usize,
    /// There may be more.
    pub(crate) more: bool,
    /// Datagrams that the socket has lost for want of room since the last time.
    pub(crate) overflowed: u32,
}

/// The addresses and header fields that all datagrams of a train have in common.
#[derive(Clone, Copy)]
struct Envelope {
    source: IpAddr,
    source_port: u16,
    local: IpAddr,
    local_port: u16,
    interface: u32,
    class: u8,
    hops: u8,
    /// Length of its datagrams but for the last; zero: there is only one.
    segment: usize,
}

/// Memory for received datagrams, and the headers by which the system call finds it.
pub(crate) struct Buffers {
    bytes: Vec<u8>,
    /// Trains that the last call has received, and an envelope for each; none for one that is of no use.
    trains: usize,
    envelopes: [Option<Envelope>; BURST],
    names: Box<[Address; BURST]>,
    controls: Box<[Control; BURST]>,
    /// Read through `heads` alone.
    _parts: Box<[libc::iovec; BURST]>,
    heads: Box<[libc::mmsghdr; BURST]>,
    /// How many trains the next call receives.
    wanted: usize,
    /// Datagrams that the socket has lost so far, as it last said.
    lost: u32,
}

// SAFETY: the pointers in the headers lead to the other fields, which own what they point to and go along.
unsafe impl Send for Buffers {}

const NAME: libc::socklen_t = size_of::<libc::sockaddr_in6>() as libc::socklen_t;

impl Buffers {
    /// Memory is taken only as it is used.
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; BURST * TRAIN];
        let mut names = Box::new([Address::NONE; BURST]);
        let mut controls = Box::new([Control::EMPTY; BURST]);
        // SAFETY: plain numbers and null pointers.
        let (mut heads, mut parts): (Box<[libc::mmsghdr; BURST]>, Box<[libc::iovec; BURST]>) =
            unsafe { (Box::new(zeroed()), Box::new(zeroed())) };
        for (index, piece) in bytes.chunks_exact_mut(TRAIN).enumerate() {
            parts[index] = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: TRAIN };
            let head = &mut heads[index].msg_hdr;
            head.msg_name = (&raw mut names[index].raw).cast();
            head.msg_namelen = NAME;
            head.msg_iov = &raw mut parts[index];
            head.msg_iovlen = 1;
            head.msg_control = controls[index].words.as_mut_ptr().cast();
            head.msg_controllen = CONTROL * 8;
        }
        let (trains, envelopes) = (0, [None; BURST]);
        Self { bytes, trains, envelopes, names, controls, _parts: parts, heads, wanted: BURST, lost: 0 }
    }

    /// The datagrams that the last call has received, in order.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>> {
        (0..self.trains).filter_map(|index| Some((index, self.envelopes[index]?))).flat_map(
            |(index, train)| {
                let length = (self.heads[index].msg_len as usize).min(TRAIN);
                let bytes = &self.bytes[index * TRAIN..][..length];
                let segment = if train.segment == 0 { length.max(1) } else { train.segment };
                bytes.chunks(segment).map(move |bytes| Arrival {
                    source: train.source,
                    source_port: train.source_port,
                    local: train.local,
                    local_port: train.local_port,
                    interface: train.interface,
                    class: train.class,
                    hops: train.hops,
                    bytes,
                })
            },
        )
    }
}

/// A socket address for the system.
#[derive(Clone, Copy)]
struct Address {
    raw: libc::sockaddr_in6,
    length: libc::socklen_t,
}

impl Address {
    // SAFETY: all zero is a valid address: of no family.
    const NONE: Self = Self { raw: unsafe { zeroed() }, length: 0 };

    fn new(address: SocketAddr, dual: bool) -> Self {
        let mut all = Self::NONE;
        match address {
            SocketAddr::V4(v4) if !dual => {
                // SAFETY: an IPv4 address fits where an IPv6 one does, with less alignment.
                let raw = unsafe { &mut *(&raw mut all.raw).cast::<libc::sockaddr_in>() };
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                all.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            address => {
                let (ip, scope) = match address {
                    SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
                    SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
                };
                all.raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                all.raw.sin6_port = address.port().to_be();
                all.raw.sin6_addr.s6_addr = ip.octets();
                all.raw.sin6_scope_id = scope;
                all.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        all
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.raw).cast()
    }

    fn get(&self) -> Option<SocketAddr> {
        match i32::from(self.raw.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the family says so, and it is not longer.
                let raw = unsafe { &*(&raw const self.raw).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                Some((ip, u16::from_be(raw.sin_port)).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(self.raw.sin6_addr.s6_addr);
                Some((ip, u16::from_be(self.raw.sin6_port)).into())
            }
            _ => None,
        }
    }
}

/// Control messages of one datagram.
#[derive(Clone, Copy)]
struct Control {
    words: [u64; CONTROL],
    used: usize,
}

/// The contents of the control messages of an arrival.
#[derive(Default)]
struct ControlInfo {
    local: Option<IpAddr>,
    interface: u32,
    class: u8,
    hops: u8,
    segment: usize,
    lost: Option<u32>,
}

const HEAD: usize = size_of::<libc::cmsghdr>();

impl Control {
    const EMPTY: Self = Self { words: [0; CONTROL], used: 0 };

    /// Appends a message.
    fn push<T: Copy>(&mut self, level: i32, kind: i32, value: T) {
        let space = (HEAD + size_of::<T>()).next_multiple_of(8);
        assert!(self.used + space <= CONTROL * 8, "the longest set of control messages fits");
        let head = libc::cmsghdr { cmsg_len: HEAD + size_of::<T>(), cmsg_level: level, cmsg_type: kind };
        // SAFETY: checked above that both fit into the words, which are aligned for the header; the value is
        // written unaligned.
        unsafe {
            let place = self.words.as_mut_ptr().cast::<u8>().add(self.used);
            place.cast::<libc::cmsghdr>().write(head);
            place.add(HEAD).cast::<T>().write_unaligned(value);
        }
        self.used += space;
    }

    /// Describes the destination, the header fields and the pieces of a train.
    fn describe(&mut self, train: &Train, dual: bool) {
        let route = &train.route;
        // ROCE-22
        match route.source {
            IpAddr::V4(v4) => {
                // The interface follows from the address and the routes.
                let source = libc::in_addr { s_addr: u32::from(v4).to_be() };
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: source,
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                if !v4.is_unspecified() {
                    self.push(libc::SOL_IP, libc::IP_PKTINFO, info);
                }
            }
            IpAddr::V6(v6) => {
                let interface = if v6.is_unicast_link_local() { route.interface } else { 0 };
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: v6.octets() },
                    ipi6_ifindex: interface,
                };
                if dual && !v6.is_unspecified() {
                    self.push(libc::SOL_IPV6, libc::IPV6_PKTINFO, info);
                }
            }
        }
        let v4 = route.destination.is_ipv4();
        // ROCE-28
        if route.class != 0 {
            let (level, kind) =
                if v4 { (libc::SOL_IP, libc::IP_TOS) } else { (libc::SOL_IPV6, libc::IPV6_TCLASS) };
            self.push(level, kind, i32::from(route.class));
        }
        // ROCE-29
        if route.hops != 0 {
            let (level, kind) =
                if v4 { (libc::SOL_IP, libc::IP_TTL) } else { (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) };
            self.push(level, kind, i32::from(route.hops));
        }
        if train.count > 1 {
            self.push(libc::SOL_UDP, UDP_SEGMENT, train.segment as u16);
        }
    }

    /// Reads the control messages that the kernel wrote: `length` bytes.
    fn read(&self, length: usize) -> ControlInfo {
        let mut known = ControlInfo::default();
        let mut at = 0;
        let length = length.min(CONTROL * 8);
        while at + HEAD <= length {
            // SAFETY: inside the words, and aligned to 8 as they are.
            let (place, head) = unsafe {
                let place = self.words.as_ptr().cast::<u8>().add(at);
                (place.add(HEAD), place.cast::<libc::cmsghdr>().read())
            };
            if head.cmsg_len < HEAD || at + head.cmsg_len > length {
                break;
            }
            let room = head.cmsg_len - HEAD;
            let number = || {
                if room < 4 {
                    return i32::from(self.byte(at + HEAD));
                }
                // SAFETY: four bytes of the message.
                unsafe { place.cast::<i32>().read_unaligned() }
            };
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_IP, libc::IP_PKTINFO) if room >= size_of::<libc::in_pktinfo>() => {
                    // SAFETY: the message is as long as that.
                    let info = unsafe { place.cast::<libc::in_pktinfo>().read_unaligned() };
                    known.local = Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                    known.interface = info.ipi_ifindex as u32;
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) if room >= size_of::<libc::in6_pktinfo>() => {
                    // SAFETY: the message is as long as that.
                    let info = unsafe { place.cast::<libc::in6_pktinfo>().read_unaligned() };
                    known.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    known.interface = info.ipi6_ifindex;
                }
                (libc::SOL_IP, libc::IP_TOS) => known.class = self.byte(at + HEAD),
                (libc::SOL_IPV6, libc::IPV6_TCLASS) => known.class = number() as u8,
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    known.hops = number() as u8;
                }
                (libc::SOL_UDP, UDP_GRO) => known.segment = number() as usize & 0xffff,
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => known.lost = Some(number() as u32),
                _ => {}
            }
            at += head.cmsg_len.next_multiple_of(8);
        }
        known
    }

    fn byte(&self, at: usize) -> u8 {
        self.words.get(at / 8).map_or(0, |word| word.to_ne_bytes()[at % 8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;
    use std::time::{Duration, Instant};

    fn route(to: &str, port: u16) -> Route {
        let address: IpAddr = to.parse().unwrap();
        Route { source: address, interface: 0, destination: address, port, class: 0x20, hops: 9 }
    }

    // ROCE-22, ROCE-28, ROCE-29
    fn exchange(address: &str) {
        let (from, to) = (Socket::bind(0).unwrap(), Socket::bind(0).unwrap());
        let bytes: Vec<u8> = (0..3000).map(|n| n as u8).collect();
        let trains = [
            Train { route: route(address, to.port()), start: 0, end: 100, segment: 100, count: 1 },
            Train { route: route(address, to.port()), start: 100, end: 3000, segment: 1000, count: 3 },
        ];
        let trains = if from.segments() { &trains[..] } else { &trains[..1] };
        assert_eq!(from.send(&bytes, trains).unwrap(), trains.len());
        let mut buffers = Buffers::new();
        let mut got = Vec::new();
        let mut sizes = Vec::new();
        let wanted: usize = trains.iter().map(|train| train.end - train.start).sum();
        let end = Instant::now() + Duration::from_secs(20);
        while got.len() < wanted {
            assert!(Instant::now() < end, "{} of {wanted} bytes arrived", got.len());
            let _ = to.receive(&mut buffers);
            for arrival in buffers.arrivals() {
                got.extend_from_slice(arrival.bytes);
                sizes.push(arrival.bytes.len());
                assert_eq!(arrival.source, address.parse::<IpAddr>().unwrap());
                assert_eq!(arrival.local, arrival.source);
                assert_eq!((arrival.source_port, arrival.class, arrival.hops), (from.port(), 0x20, 9));
            }
        }
        assert_eq!(got, bytes[..wanted]);
        assert_eq!(sizes, [100, 1000, 1000, 900][..sizes.len()]);
    }

    #[test]
    fn datagrams_and_trains_on_ipv4() {
        exchange("127.0.0.1");
    }

    #[test]
    fn and_on_ipv6() {
        assert!(Socket::bind(0).unwrap().dual, "this host has no IPv6");
        exchange("::1");
    }
}
