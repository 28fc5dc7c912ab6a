//! Abstract Unix sockets between the processes of one network namespace: found by name, gone with their
//! process, without a trace in the file system.
//!
//! Any process of the network namespace connects, and passes any descriptor. To close one may take as long as
//! its sender wishes, and to close a socket closes the descriptors of the messages that wait in it. So
//! sockets take in no descriptors where none are expected, from Linux 6.16 on. Nothing is received from other
//! users that comes with descriptors. Sockets with such messages, and descriptors that are not wanted, go to
//! the closing thread ([`crate::closing`]).

use crate::closing;
use crate::descriptor;
use crate::fork::{self, ForkGeneration};
use arrayvec::ArrayVec;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

mod message;
mod user;

pub use crate::closing::PassedFd;
use message::{NextMessage, peek, receive_message};
use user::own_user;

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

/// A socket that a child of fork closes. No thread waits for its close, also if other processes have sent
/// descriptors.
struct Socket {
    fd: RawFd,
    born: ForkGeneration,
    role: SocketRole,
}

/// The kind of things that may wait in a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketRole {
    /// Nothing: it is not connected.
    Unused,
    /// Connections.
    Listens,
    /// Messages.
    Connected,
}

impl Socket {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain numbers.
        Self::of(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }, SocketRole::Unused)
    }

    fn of(fd: RawFd, role: SocketRole) -> io::Result<Self> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fresh, and no other part of the process has it. Its close does not wait: it stays open
        // under its new number.
        let fd = descriptor::out_of_the_way(unsafe { OwnedFd::from_raw_fd(fd) }).into_raw_fd();
        fork::own_descriptor(fd);
        Ok(Self { fd, born: ForkGeneration::now(), role })
    }

    /// Whether the close may wait. Nothing comes in any more, and messages without descriptors are gone.
    fn may_wait(&self) -> bool {
        if self.role == SocketRole::Unused {
            return false;
        }
        // SAFETY: our descriptor.
        unsafe { libc::shutdown(self.fd, libc::SHUT_RDWR) };
        match self.role {
            SocketRole::Unused => false,
            SocketRole::Listens => self.turn_all_away(),
            SocketRole::Connected => {
                // The end is told from an empty message by this: it has no sender.
                learn_senders(self.fd);
                !self.drain()
            }
        }
    }

    /// Lets go of the connections that wait. Returns whether there may be more.
    fn turn_all_away(&self) -> bool {
        for _ in 0..2 * BACKLOG {
            if closing::is_full() {
                return true;
            }
            if let Err(error) = accept_any(self.fd) {
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    // The socket is empty. EINVAL: no process can connect any more.
                    Some(libc::EAGAIN | libc::EINVAL) => return false,
                    _ => return true,
                }
            }
        }
        true
    }

    /// Takes out the messages without descriptors. Returns whether nothing is left.
    fn drain(&self) -> bool {
        for _ in 0..MOST_MESSAGES {
            match peek(self.fd) {
                Ok(NextMessage::None) => return true,
                Ok(NextMessage::WithDescriptors) => return false,
                Ok(NextMessage::Plain) => {
                    // Without room for control messages. There are no descriptors.
                    let _ = receive_message(self.fd, &mut [0; 1], &mut [], 0);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return true,
                // An error of the connection is told once.
                Err(_) => {}
            }
        }
        false
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return;
        }
        if self.may_wait() {
            return closing::hand_over(self.fd);
        }
        fork::disown_descriptor(self.fd);
        // SAFETY: ours; no other thread uses it any more.
        unsafe { libc::syscall(libc::SYS_close, self.fd) };
    }
}

/// More messages than the buffer of an ordinary sender has room for.
const MOST_MESSAGES: usize = 4096;

/// Processes that wait to be let in at most; the system may allow fewer.
const BACKLOG: libc::c_int = 4096;

/// A name that this process holds.
pub struct Listener(Socket);

impl Listener {
    /// Holds a name. Processes that connect pass no descriptors, where the system can prevent that.
    ///
    /// # Errors
    /// EADDRINUSE while another process, of any user, holds it.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        let mut socket = Socket::new()?;
        take_descriptors(socket.fd, false);
        Self::listen(&mut socket, name)?;
        Ok(Self(socket))
    }

    /// Holds a name. Processes of this user that connect may pass descriptors.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_for_descriptors(name: &[u8]) -> io::Result<Self> {
        let mut socket = Socket::new()?;
        Self::listen(&mut socket, name)?;
        Ok(Self(socket))
    }

    fn listen(socket: &mut Socket, name: &[u8]) -> io::Result<()> {
        let (raw, length) = address(name);
        // SAFETY: a filled address of its length.
        if unsafe { libc::bind(socket.fd, (&raw const raw).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Connections have it from the listener: one that is let in may have got a message before anything is
        // said of it.
        learn_senders(socket.fd);
        // SAFETY: our descriptor.
        if unsafe { libc::listen(socket.fd, BACKLOG) } != 0 {
            return Err(io::Error::last_os_error());
        }
        socket.role = SocketRole::Listens;
        Ok(())
    }

    /// The listener's descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.fd
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

/// Whether a process has the rights of its user, and not those in a namespace that it has made. False for a
/// process that this one may not look at (ptrace(2)).
fn is_in_our_user_namespace(process: libc::pid_t) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user"));
    match namespace("self") {
        Ok(own) => namespace(&process.to_string()).is_ok_and(|theirs| theirs == own),
        // A kernel without such namespaces has the folder all the same.
        Err(_) => std::fs::exists("/proc/self/ns").unwrap_or(false),
    }
}

/// Has the system name the sender of each message, as of the time of sending, by its real user.
fn learn_senders(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: a descriptor of ours, and a live local of the length that is given. Without this no process is
    // trusted.
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

/// Of Linux 6.16: whether descriptors can be sent to a socket. Connections have it from the listener.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has a Unix socket take descriptors in, or not: senders find EPERM then. Does nothing before Linux 6.16.
pub fn take_descriptors(fd: RawFd, takes: bool) {
    let takes = libc::c_int::from(takes);
    // SAFETY: a descriptor of ours, and a live local of the length that is given.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const takes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// Whether descriptors can be sent to a socket.
fn takes_descriptors(fd: RawFd) -> bool {
    let (mut takes, mut length): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: a descriptor of ours, and a live local of the length that is given.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw mut takes).cast(), &raw mut length)
    };
    result != 0 || takes != 0
}

/// Accepts a process that has connected to a listening descriptor, if one has.
///
/// # Errors
/// Those of accept(2); ENOBUFS while so many descriptors wait for their close that the process must bring no
/// more.
pub(crate) fn accept(listener: RawFd) -> io::Result<Connection> {
    if closing::is_full() && takes_descriptors(listener) {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    accept_any(listener)
}

fn accept_any(listener: RawFd) -> io::Result<Connection> {
    let kind = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: our descriptor; the address is not asked for.
    let fd = unsafe {
        libc::syscall(libc::SYS_accept4, listener, std::ptr::null::<u8>(), std::ptr::null::<u8>(), kind)
    };
    let mut connection = Connection::of(Socket::of(fd as RawFd, SocketRole::Connected)?);
    connection.distrust_others();
    Ok(connection)
}

/// Descriptors that came with a message.
pub type Descriptors = ArrayVec<PassedFd, MOST_DESCRIPTORS>;
/// The most descriptors that go with a message.
const MOST_DESCRIPTORS: usize = 3;
/// Room for control messages with so many descriptors, in words.
const CONTROL: usize = 8;
/// Room, in words, for control messages with as many descriptors as the system passes (`SCM_MAX_FD`, 253),
/// and with the sender's identity. In the receiving thread, the system closes descriptors that find no room.
const WHOLE_CONTROL: usize = 136;
/// Room, in words, for the sender's identity alone.
const SENDER_CONTROL: usize = 4;

// SAFETY: arithmetic of lengths.
const _: () = unsafe {
    const SENDER: usize = size_of::<libc::ucred>();
    const PASSED: usize = 253 * size_of::<RawFd>();
    let sender = libc::CMSG_SPACE(SENDER as libc::c_uint) as usize;
    assert!(sender == 8 * SENDER_CONTROL);
    assert!(sender + libc::CMSG_SPACE(PASSED as libc::c_uint) as usize <= 8 * WHOLE_CONTROL);
};

/// The descriptors and the sender of a message.
#[derive(Debug, Default)]
pub struct Along {
    /// Descriptors, which are the receiver's now.
    pub descriptors: Descriptors,
    /// Whether the sender was our user as it sent it: it may have been another one when it connected. Only
    /// told of connections that have come to us, and of those that [learn their
    /// senders](Connection::learn_senders).
    pub is_same_user: bool,
    /// The number of the process that has sent the message, if the system has named it; 0 if it has none
    /// here.
    pub sender: Option<libc::pid_t>,
}

/// The owner of the process at the other end: most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// Our own user.
    Ourselves,
    /// Root, which has the rights of every user.
    Root,
    /// Any other user.
    Other,
}

/// A connection to another process.
pub struct Connection {
    socket: Socket,
    /// Messages with descriptors are not received: another user's process is at the other end.
    refuses_descriptors: bool,
}

impl Connection {
    fn of(socket: Socket) -> Self {
        Self { socket, refuses_descriptors: false }
    }

    /// Another user's process can pass no descriptors from now on. Messages from before are looked at as they
    /// are received.
    fn distrust_others(&mut self) {
        if !self.is_same_user() {
            take_descriptors(self.fd(), false);
            learn_senders(self.fd());
            self.refuses_descriptors = true;
        }
    }

    /// Connects to the process that holds a name.
    ///
    /// # Errors
    /// ECONNREFUSED when no process does; EAGAIN when that process does not accept.
    pub fn open(name: &[u8]) -> io::Result<Self> {
        let mut socket = Socket::new()?;
        // Another user may hold the name, and sends what it likes as soon as this process is connected.
        take_descriptors(socket.fd, false);
        let (raw, length) = address(name);
        // SAFETY: a filled address of its length. A system call of its own: no cancellation point.
        if unsafe { libc::syscall(libc::SYS_connect, socket.fd, &raw const raw, length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        socket.role = SocketRole::Connected;
        let mut connection = Self::of(socket);
        connection.distrust_others();
        if !connection.refuses_descriptors {
            // They come with answers, and so not before something is sent.
            take_descriptors(connection.fd(), true);
        }
        Ok(connection)
    }

    /// This process's end of a pair of sockets for datagrams, whose other end other processes inherit. Each
    /// message names its sender. None passes descriptors, where the system can prevent that.
    ///
    /// # Errors
    /// None, as long as the socket is open.
    pub fn of_datagrams(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::of(socket.into_raw_fd(), SocketRole::Connected)?;
        learn_senders(socket.fd);
        take_descriptors(socket.fd, false);
        Ok(Self::of(socket))
    }

    /// Both ends of a connection of this process to itself. Each names the senders of messages.
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
            Socket::of(fd, SocketRole::Connected).map(Self::of)
        });
        Ok([one?, other?])
    }

    /// The connection's descriptor.
    pub fn fd(&self) -> RawFd {
        self.socket.fd
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
        // SAFETY: one pollfd and a time, live locals; no signal mask. A system call of its own: no
        // cancellation point.
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

    /// The user of the process at the other end, as of the time when it began to listen, or connected.
    pub fn user(&self) -> Option<libc::uid_t> {
        self.credentials().map(|peer| peer.uid)
    }

    /// The owner of the process at the other end, as of the time when it began to listen, or connected. If
    /// this process may have more rights than its user, no process counts as [`Owner::Ourselves`].
    pub fn owner(&self) -> Owner {
        match self.credentials() {
            Some(peer) if Some(peer.uid) == own_user() => Owner::Ourselves,
            Some(peer) if peer.uid == 0 => Owner::Root,
            _ => Owner::Other,
        }
    }

    /// Whether memory may be shared with it. It must run as our user and in our user namespace, as far as we
    /// may look. The user must not be the one that stands for all users without a number here.
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

    /// From now on, messages name their senders.
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

    /// Sends a message of several parts, and descriptors of which the other process gets copies, or nothing.
    /// Never waits. Errors are those of [`Connection::send`].
    ///
    /// # Panics
    /// If there are too many.
    pub fn send_with(&self, parts: &[&[u8]], descriptors: &[RawFd]) -> io::Result<()> {
        assert!(descriptors.len() <= MOST_DESCRIPTORS, "they do not fit");
        let mut control = [0u64; CONTROL];
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

    /// Receives a message into `buffer`, with its descriptors and its sender. An empty message means that the
    /// other process has gone. Never waits.
    ///
    /// # Errors
    /// EAGAIN if there is none now. ECONNABORTED if it comes with descriptors and none are taken: another
    /// user's process has sent them, or too many wait for their close. The connection has hung up then.
    pub fn receive_with<'a>(&self, buffer: &'a mut [u8]) -> io::Result<(&'a [u8], Along)> {
        if (self.refuses_descriptors || closing::is_full())
            && peek(self.fd())? == NextMessage::WithDescriptors
        {
            self.hang_up();
            return Err(io::Error::from_raw_os_error(libc::ECONNABORTED));
        }
        let (count, _, along) = receive_message(self.fd(), buffer, &mut [0; WHOLE_CONTROL], 0)?;
        Ok((&buffer[..count], along))
    }

    /// Receives a message into `buffer`; an empty one says that the other has gone. Never waits. Errors are
    /// those of [`Connection::receive_with`].
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.receive_with(buffer).map(|(message, _)| message)
    }
}

#[cfg(test)]
mod tests;
