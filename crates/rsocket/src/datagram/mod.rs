//! Datagram sockets: UD queue pairs, and a UDP socket at the same address by which the two sides find each
//! other's.

mod introduce;
mod pair;
mod peers;
mod transfer;

use crate::options::{Flags, Options};
use crate::process::Process;
use crate::wait::{CAN_READ, CAN_WRITE, Waitable, Waiters, pollfd, sleep_until};
use adverb_core::attributes::TransportType;
use adverb_core::cancel::CancellationGuard;
use adverb_core::cq::SleepGuard;
use adverb_core::descriptor::above_all;
use adverb_core::device::Device;
use adverb_core::engine::engine;
use adverb_core::error::{Error, Result};
use adverb_core::failure::FailureListener;
use adverb_core::reactor::{READABLE, Token};
use introduce::Introductions;
use pair::{ArrivedDatagram, Pair, Queue, Sizes};
use peers::Peers;
#[cfg(any(test, fuzzing))]
pub(crate) use peers::try_packets;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A datagram socket. Thread-safe: nothing is locked while a call waits.
pub struct Datagram {
    /// The UDP socket, whose descriptor is the socket's number.
    udp: UdpSocket,
    pub(crate) flags: Flags,
    waiters: Waiters,
    inner: Mutex<DatagramState>,
    this: Weak<Datagram>,
}

/// What the lock of a datagram socket guards.
pub(crate) struct DatagramState {
    pub(crate) options: Options,
    sizes: Sizes,
    /// From the first bind, connect or send on: the background thread looks at the UDP socket.
    token: Option<Token>,
    /// From the first queue pair on.
    queue: Option<Queue>,
    /// A queue pair for each address of this host that is used.
    pairs: Vec<Pair>,
    peers: Peers,
    arrived: VecDeque<ArrivedDatagram>,
    /// Nothing comes and goes any more.
    has_failed: bool,
    /// Not all that has come has been taken in.
    has_more: bool,
    closed: bool,
}

/// A result of the UDP socket.
fn udp<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Error::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string()))
}

impl Datagram {
    /// A new socket. ENOTSUP if no device has datagrams: said here, it lets a program take an ordinary socket
    /// instead.
    pub(crate) fn new(domain: i32, flags: i32) -> Result<Arc<Self>> {
        let carries =
            |device: &Arc<Device>| device.transport().attributes().transport != TransportType::Iwarp;
        if !Device::all()?.iter().any(carries) {
            return Err(Error::new(libc::ENOTSUP, "no device has datagrams"));
        }
        // SAFETY: plain numbers.
        let fd =
            unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
        if fd < 0 {
            return Err(Error::system("socket"));
        }
        // SAFETY: just made, and nobody else's.
        let udp = above_all(unsafe { OwnedFd::from_raw_fd(fd) }).into();
        let inner = DatagramState {
            options: Options::new(domain, &Process::get().configuration),
            sizes: Sizes::default(),
            token: None,
            queue: None,
            pairs: Vec::new(),
            peers: Peers::default(),
            arrived: VecDeque::new(),
            has_failed: false,
            has_more: false,
            closed: false,
        };
        Ok(Arc::new_cyclic(|this| Self {
            udp,
            flags: Flags::new(flags),
            waiters: Waiters::default(),
            inner: Mutex::new(inner),
            this: this.clone(),
        }))
    }

    /// The number by which the program knows it.
    pub(crate) fn number(&self) -> i32 {
        self.udp.as_raw_fd()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DatagramState> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on the background thread answers who wants to know the queue pairs.
    fn start(&self, inner: &mut DatagramState) -> Result<()> {
        if inner.has_failed {
            return Err(Error::new(libc::EIO, "the device has gone"));
        }
        if inner.token.is_none() {
            inner.sizes = Sizes::of(&mut inner.options);
            let introductions = Arc::new(Introductions(self.this.clone()));
            let engine = engine()?;
            engine.failure.concerns(self.this.clone())?;
            inner.token = Some(engine.reactor.add(self.number(), READABLE, introductions)?);
        }
        Ok(())
    }

    /// Binds to an address (bind(2)).
    ///
    /// # Errors
    /// Those of the UDP socket.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        self.bind_udp(address)?;
        self.start(&mut inner)
    }

    fn bind_udp(&self, address: SocketAddr) -> Result<()> {
        let (storage, length) = storage(address);
        // SAFETY: a live local of that length.
        match unsafe { libc::bind(self.number(), (&raw const storage).cast(), length) } {
            0 => Ok(()),
            _ => Err(Error::system("bind")),
        }
    }

    /// Chooses the peer (connect(2)).
    ///
    /// # Errors
    /// Those of the UDP socket; without datagrams on the device, EOPNOTSUPP.
    pub fn connect(&self, peer: SocketAddr) -> Result<()> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        self.start(&mut inner)?;
        udp(self.udp.connect(peer))?;
        self.peer(&mut inner, peer).map(drop)
    }

    /// The socket's own address (getsockname(2)).
    pub fn local_address(&self) -> Result<SocketAddr> {
        udp(self.udp.local_addr())
    }

    /// The peer's address (getpeername(2)).
    pub fn peer_address(&self) -> Result<SocketAddr> {
        udp(self.udp.peer_addr())
    }

    pub(crate) fn set_udp_option(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        // SAFETY: a live slice.
        let set = unsafe {
            libc::setsockopt(self.number(), level, name, value.as_ptr().cast(), value.len() as u32)
        };
        if set == 0 { Ok(()) } else { Err(Error::system("setsockopt")) }
    }

    /// Lets what was sent leave, before the socket is closed.
    pub(crate) fn shut_for_close(&self) {
        let step = || {
            let _whole = CancellationGuard::new();
            let mut inner = self.lock();
            inner.process();
            inner.all_sent().then_some(())
        };
        while step().is_none() {
            match sleep_until(std::slice::from_ref(&self), &mut [], None, |_| step()) {
                Err(error) if error.errno() != libc::EINTR => return,
                _ => {}
            }
        }
    }

    /// Gives everything back.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        if let (Some(token), Ok(engine)) = (inner.token.take(), engine()) {
            engine.reactor.remove(token, self.number());
        }
        inner.pairs.drain(..).for_each(Pair::end);
        inner.arrived.clear();
        drop(inner);
        self.waiters.wake();
    }
}

/// An address as bind(2) takes it.
fn storage(address: SocketAddr) -> (libc::sockaddr_in6, libc::socklen_t) {
    // SAFETY: all zero is a valid address; the structure for IPv6 has room for one of IPv4.
    let mut storage: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V6(v6) => {
            storage.sin6_family = libc::AF_INET6 as u16;
            storage.sin6_port = v6.port().to_be();
            storage.sin6_flowinfo = v6.flowinfo();
            storage.sin6_addr.s6_addr = v6.ip().octets();
            storage.sin6_scope_id = v6.scope_id();
            (storage, size_of::<libc::sockaddr_in6>() as u32)
        }
        SocketAddr::V4(v4) => {
            storage.sin6_family = libc::AF_INET as u16;
            storage.sin6_port = v4.port().to_be();
            // The address of IPv4 lies where IPv6 has its flow information.
            storage.sin6_flowinfo = u32::from_ne_bytes(v4.ip().octets());
            (storage, size_of::<libc::sockaddr_in>() as u32)
        }
    }
}

impl FailureListener for Datagram {
    fn engine_failed(&self) {
        self.lock().has_failed = true;
        self.waiters.wake();
    }
}

impl DatagramState {
    pub(crate) fn is_started(&self) -> bool {
        self.token.is_some()
    }
}

impl Waitable for &Datagram {
    fn look(&self, events: i16) -> i16 {
        Datagram::look(self, events)
    }

    fn arm(&self) -> Option<SleepGuard> {
        Datagram::arm(self)
    }

    fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        Datagram::descriptors(self, list);
    }

    fn take_event(&self, _: &[libc::pollfd]) {
        Datagram::take_event(self);
    }

    fn has_more(&self) -> bool {
        Datagram::has_more(self)
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl Datagram {
    pub(crate) fn has_more(&self) -> bool {
        self.lock().has_more
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub(crate) fn look(&self, events: i16) -> i16 {
        let mut inner = self.lock();
        inner.process();
        // As with other errors, a call does not wait, and says what it is.
        let failed = if inner.has_failed { CAN_READ | CAN_WRITE | libc::POLLERR } else { 0 };
        let readable = if inner.arrived.is_empty() { 0 } else { CAN_READ };
        let writable = if inner.can_send() { CAN_WRITE } else { 0 };
        (events | libc::POLLERR) & (readable | writable | failed)
    }

    pub(crate) fn arm(&self) -> Option<SleepGuard> {
        // In a child of fork nothing comes any more, and looking says so.
        self.lock().queue.as_ref().and_then(|queue| queue.completions.begin_sleep().ok())
    }

    pub(crate) fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        // Without a queue pair, the background thread wakes who waits when there is one.
        if let Some(queue) = &self.lock().queue {
            list.push(pollfd(queue.events.descriptor()));
            queue.completions.descriptors(list);
        }
    }

    pub(crate) fn take_event(&self) {
        if let Some(queue) = &self.lock().queue {
            let _ = queue.events.wait();
        }
    }
}
