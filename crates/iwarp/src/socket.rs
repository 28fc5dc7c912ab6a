//! Non-blocking TCP sockets that a child of fork closes.
//!
//! Where the C library's function is a cancellation point, threads of the program make the system call itself
//! instead. A thread must not be cancelled in the middle of a poll, with locks held, and cancellation cannot
//! unwind through Rust frames.

use adverb_core::error::{Error, Result};
use adverb_core::fork::{self, ForkGeneration};
use adverb_core::pcap::{self, TcpTrace};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;
use std::sync::Mutex;

/// A socket of the engine.
pub(crate) struct Socket {
    fd: RawFd,
    born: ForkGeneration,
    /// The connection in the capture of packets, if one is being written: begun with its first bytes.
    trace: Option<Mutex<Trace>>,
}

struct Trace {
    initiator: bool,
    tcp: Option<TcpTrace>,
}

/// An address of a socket, for the log.
pub(crate) fn name(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string())
}

impl Socket {
    /// A TCP socket for addresses like `address`.
    pub(crate) fn tcp(address: &SocketAddr) -> Result<Self> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: plain numbers.
        let fd =
            unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(Error::system("socket"));
        }
        Ok(Self::own(fd))
    }

    /// A descriptor that is the engine's from now on.
    pub(crate) fn own(fd: RawFd) -> Self {
        fork::own_descriptor(fd);
        let trace = pcap::enabled().then(|| Mutex::new(Trace { initiator: false, tcp: None }));
        Self { fd, born: ForkGeneration::now(), trace }
    }

    /// Adds bytes that have moved to the capture.
    #[inline]
    fn capture(&self, outbound: bool, parts: &[libc::iovec], moved: isize) {
        if let Some(trace) = &self.trace
            && moved > 0
        {
            self.capture_some(trace, outbound, parts, moved as usize);
        }
    }

    #[cold]
    fn capture_some(&self, trace: &Mutex<Trace>, outbound: bool, parts: &[libc::iovec], count: usize) {
        let mut trace = trace.lock().unwrap_or_else(|e| e.into_inner());
        if trace.tcp.is_none()
            && let (Some(local), Some(peer)) = (self.local(), self.peer())
        {
            trace.tcp = Some(TcpTrace::new(local, peer, trace.initiator));
        }
        if let Some(tcp) = &mut trace.tcp {
            // SAFETY: the parts are those of the call before, which has moved the bytes.
            unsafe { tcp.moved(outbound, parts, count) };
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    pub(crate) fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: four bytes of a live local.
        let result = unsafe {
            libc::setsockopt(
                self.fd,
                level,
                option,
                (&raw const value).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn get(&self, level: i32, option: i32) -> io::Result<i32> {
        let mut value = 0i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: four bytes of a live local, and their length.
        let result =
            unsafe { libc::getsockopt(self.fd, level, option, (&raw mut value).cast(), &raw mut length) };
        if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn bind(&self, address: &SocketAddr) -> io::Result<()> {
        let (raw, length) = to_raw(address);
        // SAFETY: a filled sockaddr of its length.
        let result = unsafe { libc::bind(self.fd, (&raw const raw).cast(), length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Starts connecting. `Ok(false)`: under way.
    pub(crate) fn connect(&self, address: &SocketAddr) -> io::Result<bool> {
        if let Some(trace) = &self.trace {
            trace.lock().unwrap_or_else(|e| e.into_inner()).initiator = true;
        }
        let (raw, length) = to_raw(address);
        // SAFETY: a filled sockaddr of its length.
        let result = unsafe { libc::syscall(libc::SYS_connect, self.fd, &raw const raw, length) };
        if result == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINPROGRESS) => Ok(false),
            _ => Err(error),
        }
    }

    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        // SAFETY: plain numbers.
        let result = unsafe { libc::listen(self.fd, backlog.min(i32::MAX as u32) as i32) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The next connection, if one waits.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        // SAFETY: no address is asked for.
        let fd = unsafe {
            libc::accept4(
                self.fd,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            )
        };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self::own(fd)) }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.name(libc::getsockname)
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.name(libc::getpeername)
    }

    fn name(
        &self,
        call: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    ) -> Option<SocketAddr> {
        let mut raw = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: room for any address, zeroed, so it is initialised also where the kernel writes nothing.
        unsafe {
            if call(self.fd, raw.as_mut_ptr().cast(), &raw mut length) != 0 {
                return None;
            }
            from_raw(&raw.assume_init())
        }
    }

    /// The error of a connection under way.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        match self.get(libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => None,
            Ok(code) => Some(io::Error::from_raw_os_error(code)),
            Err(error) => Some(error),
        }
    }

    /// Payload of a TCP segment now (the EMSS).
    pub(crate) fn emss(&self) -> usize {
        self.get(libc::IPPROTO_TCP, libc::TCP_MAXSEG).map_or(536, |value| value.max(128) as usize)
    }

    /// Sends without waiting and without SIGPIPE.
    #[inline]
    pub(crate) fn send(&self, parts: &[libc::iovec]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = if let [only] = parts {
            let nobody = std::ptr::null::<libc::sockaddr>();
            // SAFETY: the iovec is vouched for by its maker; the kernel answers EFAULT for memory that is not
            // there.
            unsafe { libc::syscall(libc::SYS_sendto, self.fd, only.iov_base, only.iov_len, flags, nobody, 0) }
        } else {
            // SAFETY: all zero is a valid msghdr.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_ptr().cast_mut();
            message.msg_iovlen = parts.len();
            // SAFETY: as above, for each part; sendmsg does not write to the iovecs.
            unsafe { libc::syscall(libc::SYS_sendmsg, self.fd, &raw const message, flags) }
        } as isize;
        self.capture(true, parts, sent);
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Receives without waiting, filling `parts` in order.
    ///
    /// # Safety
    /// Each part names memory that may be overwritten: a buffer of the caller's, or a span that is open for
    /// writing.
    #[inline]
    pub(crate) unsafe fn receive(&self, parts: &mut [libc::iovec]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT;
        let received = if let [only] = parts {
            let nobody = std::ptr::null_mut::<libc::sockaddr>();
            let length = std::ptr::null_mut::<libc::socklen_t>();
            // SAFETY: the caller's.
            unsafe {
                libc::syscall(libc::SYS_recvfrom, self.fd, only.iov_base, only.iov_len, flags, nobody, length)
            }
        } else {
            // SAFETY: all zero is a valid msghdr.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = parts.len();
            // SAFETY: the caller's.
            unsafe { libc::syscall(libc::SYS_recvmsg, self.fd, &raw mut message, flags) }
        } as isize;
        self.capture(false, parts, received);
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(received as usize) }
    }

    /// Receives into a buffer.
    pub(crate) fn receive_into(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut part = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }];
        // SAFETY: an exclusive slice.
        unsafe { self.receive(&mut part) }
    }

    /// Sends all of a small buffer; a socket without room for it counts as failed.
    pub(crate) fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let part = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        match self.send(&part)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
        }
    }

    /// Ends the connection at once: the peer finds it reset (connect(2), AF_UNSPEC).
    #[cold]
    pub(crate) fn reset(&self) {
        // SAFETY: all zero is a valid address: of no family.
        let nobody: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let length = size_of::<libc::sockaddr_storage>();
        // SAFETY: a live local and its length.
        unsafe { libc::syscall(libc::SYS_connect, self.fd, &raw const nobody, length) };
    }

    /// Ends our direction.
    pub(crate) fn shut_down(&self) {
        // SAFETY: plain numbers.
        unsafe { libc::shutdown(self.fd, libc::SHUT_WR) };
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // In a child of fork the descriptor is closed already, and its number may be another's.
        if !self.born.is_here() {
            return;
        }
        close(self.fd);
    }
}

/// Closes a descriptor of the engine's.
pub(crate) fn close(fd: RawFd) {
    fork::disown_descriptor(fd);
    // SAFETY: plain numbers. The caller owns the descriptor and drops it.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Whether an error says "not now".
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Whether an address belongs to this host: one can bind to it.
pub(crate) fn is_local(address: IpAddr) -> bool {
    let any_port = SocketAddr::new(address, 0);
    address.is_loopback() || Socket::tcp(&any_port).is_ok_and(|socket| socket.bind(&any_port).is_ok())
}

fn to_raw(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage has room and alignment for every sockaddr.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn from_raw(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which kind of address it is; storage is large and aligned enough.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                u16::from_be(raw.sin6_port),
                raw.sin6_flowinfo,
                raw.sin6_scope_id,
            )))
        }
        _ => None,
    }
}
