//! Abstract Unix sockets between the processes of one network namespace: found by name, gone with their process, without a trace in
//! the file system.

use crate::descriptor;
use crate::fork::{self, ForkGeneration};
use arrayvec::ArrayVec;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// The abstract name of something of ours.
pub fn name(of: &str) -> Vec<u8> {
    format!("\0adverb/{of}").into_bytes()
}

fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero is a valid address.
    let mut raw: libc::sockaddr_un = unsafe { zeroed() };
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in raw.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let length = offset_of!(libc::sockaddr_un, sun_path) + name.len().min(raw.sun_path.len());
    (raw, length as libc::socklen_t)
}

fn socket() -> io::Result<ForkClosedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers.
    ForkClosedFd::new(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// A descriptor that a child of fork closes.
struct ForkClosedFd(RawFd, ForkGeneration);

impl ForkClosedFd {
    fn new(fd: RawFd) -> io::Result<Self> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh, and nobody else's.
        let fd = descriptor::out_of_the_way(unsafe { OwnedFd::from_raw_fd(fd) }).into_raw_fd();
        fork::own_descriptor(fd);
        Ok(Self(fd, ForkGeneration::now()))
    }
}

impl Drop for ForkClosedFd {
    fn drop(&mut self) {
        if self.1.is_here() {
            fork::disown_descriptor(self.0);
            // SAFETY: ours; nobody uses it any more.
            unsafe { libc::syscall(libc::SYS_close, self.0) };
        }
    }
}

/// Processes that wait to be let in at most; the system may allow fewer.
const BACKLOG: libc::c_int = 4096;

/// A name that this process holds.
pub struct Listener(ForkClosedFd);

impl Listener {
    /// Holds a name.
    ///
    /// # Errors
    /// EADDRINUSE while another process, of whatever user, holds it.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        let socket = socket()?;
        let (raw, length) = address(name);
        // SAFETY: a filled address of its length.
        if unsafe { libc::bind(socket.0, (&raw const raw).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Connections have it from the listener: one that is let in may have got a message before anything is said of it.
        learn_senders(socket.0);
        // SAFETY: our descriptor.
        if unsafe { libc::listen(socket.0, BACKLOG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(socket))
    }

    /// The listener's descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.0
    }
}

/// The user that stands for all those that have no number here.
fn overflow() -> libc::uid_t {
    static OVERFLOW: std::sync::OnceLock<libc::uid_t> = std::sync::OnceLock::new();
    *OVERFLOW.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        text.trim().parse().unwrap_or(65_534)
    })
}

/// Whether a process has the rights of its user, and not those in a namespace that it has made. Of who may not be looked at (ptrace(2)) it is not known.
fn is_in_our_user_namespace(process: libc::pid_t) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user"));
    match namespace("self") {
        Ok(own) => namespace(&process.to_string()).is_ok_and(|theirs| theirs == own),
        // A kernel without such namespaces has the folder all the same.
        Err(_) => std::fs::exists("/proc/self/ns").unwrap_or(false),
    }
}

/// Has the system say of each message who its sender is at that time, by his real user.
fn learn_senders(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: a descriptor of ours, and a live local of the length that is given. Without this nobody is trusted.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Accepts a process that has connected to a listening descriptor, if one has.
pub(crate) fn accept(listener: RawFd) -> io::Result<Connection> {
    let kind = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: our descriptor; the address is not asked for.
    let fd = unsafe {
        libc::syscall(libc::SYS_accept4, listener, std::ptr::null::<u8>(), std::ptr::null::<u8>(), kind)
    };
    Ok(Connection(ForkClosedFd::new(fd as RawFd)?))
}

/// Descriptors that came with a message.
pub type Descriptors = ArrayVec<OwnedFd, MOST_DESCRIPTORS>;
/// The most descriptors that go with a message.
const MOST_DESCRIPTORS: usize = 3;
/// Room for control messages with so many descriptors, and with who has sent them.
const CONTROL: usize = 64;

/// What a message comes with.
#[derive(Debug, Default)]
pub struct Along {
    /// Descriptors, which are the receiver's now.
    pub descriptors: Descriptors,
    /// Whether the sender was our user as it sent it: it may have been another one when it connected. Only told of connections that have come to us, and
    /// of those that [learn their senders](Connection::learn_senders).
    pub is_same_user: bool,
}

/// The owner of the process at the other end: most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// Our own user.
    Ourselves,
    /// Root, who may do what everybody may.
    Root,
    /// Somebody else.
    Other,
}

/// A connection to another process.
pub struct Connection(ForkClosedFd);

impl Connection {
    /// Connects to whoever holds a name.
    ///
    /// # Errors
    /// ECONNREFUSED when nobody does; EAGAIN when he does not accept.
    pub fn open(name: &[u8]) -> io::Result<Self> {
        let socket = socket()?;
        let (raw, length) = address(name);
        // SAFETY: a filled address of its length. A system call of its own: no cancellation point.
        if unsafe { libc::syscall(libc::SYS_connect, socket.0, &raw const raw, length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(socket))
    }

    /// Both ends of a connection of this process to itself. Each tells who sends.
    ///
    /// # Errors
    /// Those of socketpair(2).
    #[cfg(any(fuzzing, feature = "conformance"))]
    pub fn pair() -> io::Result<[Self; 2]> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let mut ends = [-1; 2];
        // SAFETY: room for both descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let [one, other] = ends.map(|fd| {
            learn_senders(fd);
            ForkClosedFd::new(fd).map(Self)
        });
        Ok([one?, other?])
    }

    /// The connection's descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.0
    }

    /// The other process finds that we have gone.
    pub fn hang_up(&self) {
        // SAFETY: our descriptor.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }

    /// Whether the other process has gone, or has hung up.
    pub fn has_hung_up(&self) -> bool {
        let mut polled = libc::pollfd { fd: self.fd(), events: 0, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: one pollfd and a time, live locals; no signal mask. A system call of its own: no cancellation point.
        let count = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                &raw mut polled,
                1usize,
                &raw const now,
                std::ptr::null::<u8>(),
                0usize,
            )
        };
        count > 0 && polled.revents & (libc::POLLHUP | libc::POLLERR) != 0
    }

    /// The identity of the other process.
    fn credentials(&self) -> Option<libc::ucred> {
        // SAFETY: all zero is a valid value; the length is that of the local.
        let (result, peer) = unsafe {
            let mut peer: libc::ucred = zeroed();
            let mut length = size_of::<libc::ucred>() as libc::socklen_t;
            let result = libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            );
            (result, peer)
        };
        (result == 0).then_some(peer)
    }

    /// Whether the other process runs as our user.
    pub fn is_same_user(&self) -> bool {
        self.owner() == Owner::Ourselves
    }

    /// The user of the process at the other end: as he was when it began to listen, or connected.
    pub fn user(&self) -> Option<libc::uid_t> {
        self.credentials().map(|peer| peer.uid)
    }

    /// The owner of the process at the other end: as it was when it began to listen, or connected.
    pub fn owner(&self) -> Owner {
        // SAFETY: no arguments.
        let own = unsafe { libc::geteuid() };
        match self.credentials() {
            Some(peer) if peer.uid == own => Owner::Ourselves,
            Some(peer) if peer.uid == 0 => Owner::Root,
            _ => Owner::Other,
        }
    }

    /// Whether memory may be shared with it: it runs as our user, which is not the one that stands for all those that have no number here, and in
    /// our user namespace, as far as we may look.
    pub fn may_share(&self) -> bool {
        // A process without a number is in a namespace that we do not see.
        self.is_same_user()
            && self.credentials().is_some_and(|peer| {
                peer.uid != overflow() && peer.pid > 0 && is_in_our_user_namespace(peer.pid)
            })
    }

    /// The number of the other process; 0 if it has none here.
    pub fn process(&self) -> libc::pid_t {
        self.credentials().map_or(0, |peer| peer.pid)
    }

    /// Messages tell from now on who has sent them.
    pub fn learn_senders(&self) {
        learn_senders(self.fd());
    }

    /// Sends a message of several parts, or nothing. Never waits.
    ///
    /// # Errors
    /// EAGAIN when the other does not keep up, EPIPE when it has gone.
    pub fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        self.send_with(parts, &[])
    }

    /// Sends a message of several parts, and descriptors of which the other process gets copies, or nothing. Never waits.
    /// Errors are those of [`Connection::send`].
    ///
    /// # Panics
    /// If there are too many.
    pub fn send_with(&self, parts: &[&[u8]], descriptors: &[RawFd]) -> io::Result<()> {
        assert!(descriptors.len() <= MOST_DESCRIPTORS, "they do not fit");
        let mut control = [0u64; CONTROL / 8];
        let mut vectors: [libc::iovec; 4] = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4];
        for (vector, part) in vectors.iter_mut().zip(parts) {
            *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        // SAFETY: all zero is a valid header; it names live locals and the parts. No cancellation point.
        let sent = unsafe {
            let mut head: libc::msghdr = zeroed();
            head.msg_iov = vectors.as_mut_ptr();
            head.msg_iovlen = parts.len().min(vectors.len());
            if !descriptors.is_empty() {
                let bytes = size_of_val(descriptors) as libc::c_uint;
                head.msg_control = control.as_mut_ptr().cast();
                head.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
                let message = libc::CMSG_FIRSTHDR(&raw const head);
                (*message).cmsg_level = libc::SOL_SOCKET;
                (*message).cmsg_type = libc::SCM_RIGHTS;
                (*message).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                std::ptr::copy_nonoverlapping(
                    descriptors.as_ptr().cast(),
                    libc::CMSG_DATA(message),
                    bytes as usize,
                );
            }
            libc::syscall(
                libc::SYS_sendmsg,
                self.fd(),
                &raw const head,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a message into `buffer`, and what came with it; an empty one says that the other has gone. Never waits.
    pub fn receive_with<'a>(&self, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], Along)> {
        let mut control = [0u64; CONTROL / 8];
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut along = Along::default();
        // SAFETY: the header names live locals. What the kernel says of control messages lies within the buffer that it was given; the
        // descriptors in them are new and nobody's.
        let count = unsafe {
            let mut head: libc::msghdr = zeroed();
            head.msg_iov = &raw mut vector;
            head.msg_iovlen = 1;
            head.msg_control = control.as_mut_ptr().cast();
            head.msg_controllen = CONTROL;
            let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
            let count = libc::syscall(libc::SYS_recvmsg, self.fd(), &raw mut head, flags);
            let mut message =
                if count < 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&raw const head) };
            while !message.is_null() {
                if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(message).cast::<RawFd>();
                    for index in 0..bytes / size_of::<RawFd>() {
                        let descriptor = OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                        // One too many closes at once.
                        let _ = along.descriptors.try_push(descriptor);
                    }
                }
                if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_CREDENTIALS
                {
                    let sender: libc::ucred = std::ptr::read_unaligned(libc::CMSG_DATA(message).cast());
                    // Somebody without a number here, of a user without one, may be anybody.
                    along.is_same_user =
                        sender.uid == libc::getuid() && (sender.pid > 0 || sender.uid != overflow());
                }
                message = libc::CMSG_NXTHDR(&raw const head, message);
            }
            count
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((&buffer[..count as usize], along))
    }

    /// Receives a message into `buffer`; an empty one says that the other has gone. Never waits.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        // SAFETY: a live slice; no address is asked for. No cancellation point.
        let count = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                self.fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                std::ptr::null::<u8>(),
                std::ptr::null::<u8>(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(&buffer[..count as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whenever it comes: before the connection is let in, at that instant, or later.
    #[test]
    fn every_message_tells_who_has_sent_it() {
        const COUNT: usize = 3000;
        let own = name(&format!("test/senders/{}", std::process::id()));
        let listener = Listener::bind(&own).unwrap();
        let sender = std::thread::spawn(move || {
            for _ in 0..COUNT {
                let connection = Connection::open(&own).unwrap();
                connection.send(&[b"message"]).unwrap();
                while !connection.has_hung_up() {
                    std::thread::yield_now();
                }
            }
        });
        let mut buffer = [0; 64];
        for count in 0..COUNT {
            let connection = loop {
                match accept(listener.fd()) {
                    Ok(connection) => break connection,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let along = loop {
                match connection.receive_with(&mut buffer) {
                    Ok((message, along)) => {
                        assert_eq!(message, b"message");
                        break along;
                    }
                    Err(_) => std::thread::yield_now(),
                }
            };
            assert!(along.is_same_user, "message {count}");
        }
        sender.join().unwrap();
    }

    #[test]
    fn messages_and_the_end() {
        let own = name(&format!("test/{}", std::process::id()));
        let listener = Listener::bind(&own).unwrap();
        assert_eq!(Listener::bind(&own).err().and_then(|error| error.raw_os_error()), Some(libc::EADDRINUSE));
        let here = Connection::open(&own).unwrap();
        let there = accept(listener.fd()).unwrap();
        assert!(accept(listener.fd()).is_err());
        assert!(here.is_same_user() && there.is_same_user());
        here.send(&[b"one ", b"message"]).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(there.receive(&mut buffer).unwrap(), b"one message");
        assert_eq!(there.receive(&mut buffer).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(!there.has_hung_up());
        drop(here);
        assert!(there.has_hung_up());
        assert_eq!(there.receive(&mut buffer).unwrap(), b"");
        drop((listener, there));
        assert_eq!(
            Connection::open(&own).err().and_then(|error| error.raw_os_error()),
            Some(libc::ECONNREFUSED)
        );
    }
}
