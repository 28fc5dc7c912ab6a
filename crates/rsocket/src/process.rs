//! What a process has once: its sockets by number, and the devices that they have opened. A child of fork
//! begins with nothing.

use crate::configuration::Configuration;
use crate::datagram::Datagram;
use crate::stream::Stream;
use crate::vector::Vector;
use adverb_core::cancel::CancellationGuard;
use adverb_core::device::Device;
use adverb_core::error::{Error, Result};
use adverb_core::fork::ForkGeneration;
use adverb_core::region::ProtectionDomain;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// A socket.
#[derive(Clone)]
pub enum Socket {
    /// SOCK_STREAM.
    Stream(Arc<Stream>),
    /// SOCK_DGRAM.
    Datagram(Arc<Datagram>),
}

impl Socket {
    /// Binds to an address (bind(2)).
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.bind(address),
            Self::Datagram(datagram) => datagram.bind(address),
        }
    }

    /// Listens (listen(2)).
    pub fn listen(&self, backlog: i32) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.listen(backlog),
            Self::Datagram(_) => Err(no_connections()),
        }
    }

    /// Takes a connection (accept(2)): the number of its socket, and who is there.
    pub fn accept(&self) -> Result<(i32, SocketAddr)> {
        match self {
            Self::Stream(stream) => {
                let (number, new) = stream.accept()?;
                Ok((number, new.peer_address()?))
            }
            Self::Datagram(_) => Err(no_connections()),
        }
    }

    /// Connects (connect(2)).
    pub fn connect(&self, peer: SocketAddr) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.connect(peer),
            Self::Datagram(datagram) => datagram.connect(peer),
        }
    }

    /// Ends directions (shutdown(2)).
    pub fn shutdown(&self, how: i32) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.shutdown(how),
            Self::Datagram(_) => Err(no_connections()),
        }
    }

    /// Receives (recv(2)): how many bytes, and from whom.
    pub fn receive(&self, data: &mut Vector<'_>, flags: i32) -> Result<(usize, Option<SocketAddr>)> {
        match self {
            Self::Stream(stream) => Ok((stream.receive(data, flags)?, stream.peer_address().ok())),
            Self::Datagram(datagram) => {
                datagram.receive(data, flags).map(|(length, source)| (length, Some(source)))
            }
        }
    }

    /// Sends (sendto(2)): how many bytes. EISCONN for a stream and an address.
    pub fn send(&self, data: &mut Vector<'_>, flags: i32, to: Option<SocketAddr>) -> Result<usize> {
        match (self, to) {
            (Self::Stream(stream), None) => stream.send(data, flags),
            (Self::Stream(_), Some(_)) => Err(Error::new(libc::EISCONN, "a stream has one peer only")),
            (Self::Datagram(datagram), to) => datagram.send(data, flags, to),
        }
    }

    /// The socket's own address (getsockname(2)).
    pub fn local_address(&self) -> Result<SocketAddr> {
        match self {
            Self::Stream(stream) => Ok(stream.local_address()),
            Self::Datagram(datagram) => datagram.local_address(),
        }
    }

    /// The peer's address (getpeername(2)).
    pub fn peer_address(&self) -> Result<SocketAddr> {
        match self {
            Self::Stream(stream) => stream.peer_address(),
            Self::Datagram(datagram) => datagram.peer_address(),
        }
    }

    /// Sets an option (setsockopt(2)).
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        match self {
            Self::Stream(stream) => stream.set_option(level, name, value),
            Self::Datagram(datagram) => datagram.set_option(level, name, value),
        }
    }

    /// An option's value (getsockopt(2)).
    pub fn option(&self, level: i32, name: i32) -> Result<Vec<u8>> {
        match self {
            Self::Stream(stream) => stream.option(level, name),
            Self::Datagram(datagram) => datagram.option(level, name),
        }
    }

    /// Flags (fcntl(2)).
    pub fn control(&self, command: i32, argument: i32) -> Result<i32> {
        match self {
            Self::Stream(stream) => stream.control(command, argument),
            Self::Datagram(datagram) => datagram.control(command, argument),
        }
    }
}

fn no_connections() -> Error {
    Error::new(libc::EOPNOTSUPP, "a datagram socket has no connections")
}

/// The sockets and devices of this process.
pub(crate) struct Process {
    born: ForkGeneration,
    pub(crate) configuration: Configuration,
    sockets: RwLock<HashMap<i32, Socket>>,
    domains: Mutex<Vec<(Arc<Device>, Arc<ProtectionDomain>)>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

impl Process {
    /// The sockets and devices of this process, made by the first call.
    pub(crate) fn get() -> &'static Self {
        Self::existing().unwrap_or_else(Self::make)
    }

    fn existing() -> Option<&'static Self> {
        // SAFETY: null, or leaked below and never freed.
        let found = unsafe { PROCESS.load(Ordering::Acquire).as_ref() };
        // The parent's: its locks may be held for ever by threads that are not here.
        found.filter(|process| process.born.is_here())
    }

    fn make() -> &'static Self {
        let old = PROCESS.load(Ordering::Acquire);
        let made = Box::into_raw(Box::new(Self {
            born: ForkGeneration::now(),
            configuration: Configuration::read(),
            sockets: RwLock::default(),
            domains: Mutex::default(),
        }));
        match PROCESS.compare_exchange(old, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked, and never freed.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: nobody has seen `made`; another thread of this process published `other`, which is
                // never freed.
                unsafe {
                    drop(Box::from_raw(made));
                    &*other
                }
            }
        }
    }

    /// The protection domain of all sockets on a device.
    pub(crate) fn domain(&self, device: &Arc<Device>) -> Result<Arc<ProtectionDomain>> {
        let mut domains = self.domains.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, domain)) = domains.iter().find(|(known, _)| Arc::ptr_eq(known, device)) {
            return Ok(domain.clone());
        }
        let domain = ProtectionDomain::new(&device.open()?)?;
        domains.push((device.clone(), domain.clone()));
        Ok(domain)
    }

    pub(crate) fn insert(&self, number: i32, socket: Socket) {
        self.sockets.write().unwrap_or_else(|e| e.into_inner()).insert(number, socket);
    }

    fn remove(&self, number: i32) -> Option<Socket> {
        self.sockets.write().unwrap_or_else(|e| e.into_inner()).remove(&number)
    }
}

/// The socket of a number; EBADF if it is none of this process.
pub fn find(number: i32) -> Result<Socket> {
    lookup(number).ok_or_else(|| Error::new(libc::EBADF, format!("descriptor {number} is no rsocket")))
}

pub(crate) fn lookup(number: i32) -> Option<Socket> {
    let _whole = CancellationGuard::new();
    let process = Process::existing()?;
    process.sockets.read().unwrap_or_else(|e| e.into_inner()).get(&number).cloned()
}

/// A new socket (socket(2)): its number.
///
/// # Errors
/// ENOTSUP for other families than IPv4 and IPv6, and other types and protocols than TCP's and UDP's; EMFILE;
/// ENODEV without a device.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<i32> {
    let _whole = CancellationGuard::new();
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let fits = |own: i32| protocol == 0 || protocol == own;
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(Error::new(libc::ENOTSUP, format!("rsockets have no address family {domain}")));
    }
    let socket = match kind & !flags {
        libc::SOCK_STREAM if fits(libc::IPPROTO_TCP) => Socket::Stream(Stream::new(domain, flags)?),
        libc::SOCK_DGRAM if fits(libc::IPPROTO_UDP) => Socket::Datagram(Datagram::new(domain, flags)?),
        _ => {
            let text = format!("rsockets have no type {kind} with protocol {protocol}");
            return Err(Error::new(libc::ENOTSUP, text));
        }
    };
    let number = match &socket {
        Socket::Stream(stream) => stream.number(),
        Socket::Datagram(datagram) => datagram.number(),
    };
    Process::get().insert(number, socket);
    Ok(number)
}

/// Ends a socket (close(2)): what was sent still reaches the peer. Waits until it has left.
///
/// # Errors
/// EBADF if the number is none of this process.
pub fn close(number: i32) -> Result<()> {
    let socket = find(number)?;
    match &socket {
        Socket::Stream(stream) => stream.shut_for_close(),
        Socket::Datagram(datagram) => datagram.shut_for_close(),
    }
    let _whole = CancellationGuard::new();
    Process::get().remove(number);
    match &socket {
        Socket::Stream(stream) => stream.close(),
        Socket::Datagram(datagram) => datagram.close(),
    }
    Ok(())
}
