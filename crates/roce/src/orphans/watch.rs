//! The parent's look at the processes that write into the record.

use super::{Page, disconnect};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

/// The parent's end of a record. Nothing is watched before [`Watch::start`].
pub struct Watch {
    page: &'static Page,
    socket: UnixDatagram,
}

/// A thread that sends the disconnect requests of processes that end.
pub struct Watching {
    thread: JoinHandle<()>,
    /// What is sent by it ends the thread.
    stop: UnixDatagram,
}

/// A process that writes into the record.
struct Process {
    /// The name of the process in the record.
    owner: u32,
    pid: libc::pid_t,
    /// Readable when it has ended; none where the system has no such thing.
    descriptor: Option<OwnedFd>,
}

/// Tells the parent of a process, by its name in the record.
pub(super) fn announce(socket: &UnixDatagram, owner: u32) {
    let bytes = owner.to_ne_bytes();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // The system adds who sends. A parent that does not listen has ended, or is stopped.
    // SAFETY: a live local of the length given; no address. A system call of its own: no cancellation point.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            flags,
            std::ptr::null::<u8>(),
            0,
        )
    };
}

/// Has the system say which process a datagram is from, in this process's numbers.
pub(super) fn learn_senders(socket: &UnixDatagram) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: our descriptor, and a live local of the length that is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Watch {
    pub(super) fn new(page: &'static Page, socket: UnixDatagram) -> Self {
        Self { page, socket }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn page(&self) -> &'static Page {
        self.page
    }

    /// Watches from now on, with a thread that takes no signal.
    ///
    /// # Errors
    /// Where there is no thread to be had.
    pub fn start(self) -> io::Result<Watching> {
        let (stop, stopped) = UnixDatagram::pair()?;
        // SAFETY: signal sets are plain data, filled before use; the old mask is restored.
        unsafe {
            let (mut all, mut old) = (zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            let thread =
                std::thread::Builder::new().name("farewell".into()).spawn(move || self.run(&stopped));
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
            Ok(Watching { thread: thread?, stop })
        }
    }

    fn run(&self, stopped: &UnixDatagram) {
        let mut processes = Vec::new();
        loop {
            let others = [self.socket.as_raw_fd(), stopped.as_raw_fd()];
            let watched = processes.iter().filter_map(|process: &Process| process.descriptor.as_ref());
            let mut polled: Vec<libc::pollfd> = others
                .into_iter()
                .chain(watched.map(AsRawFd::as_raw_fd))
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .collect();
            // SAFETY: a live array of its length.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
            self.take_announcements(&mut processes);
            let gone: Vec<u32> =
                processes.iter().filter(|process| process.is_gone()).map(|p| p.owner).collect();
            processes.retain(|process| !gone.contains(&process.owner));
            if !gone.is_empty() {
                disconnect::say(&self.page.take(&gone));
            } else if polled[1].revents != 0 {
                return;
            }
        }
    }

    fn take_announcements(&self, processes: &mut Vec<Process>) {
        while let Some((owner, pid)) = receive(&self.socket) {
            if pid > 0 {
                processes.push(Process { owner, pid, descriptor: open(pid) });
            }
        }
    }
}

impl Watching {
    /// Returns when all disconnect requests of processes that have ended are sent.
    pub fn end(self) {
        if self.stop.send(&[0]).is_ok() {
            let _ = self.thread.join();
        }
    }
}

impl Process {
    fn is_gone(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            // SAFETY: signal 0 only asks whether there is such a process.
            return unsafe { libc::kill(self.pid, 0) } != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        };
        let mut polled = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a live local.
        unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
    }
}

/// A descriptor that tells of the end of a process.
fn open(pid: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a new descriptor, nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The next announcement: the name of a process in the record, and its number. Never waits.
fn receive(socket: &UnixDatagram) -> Option<(u32, libc::pid_t)> {
    let mut bytes = [0; 4];
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid header; it names live locals of the lengths given. What is read of the control message is inside it,
    // as its header says.
    unsafe {
        let mut head: libc::msghdr = zeroed();
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        head.msg_control = control.as_mut_ptr().cast();
        head.msg_controllen = size_of_val(&control);
        if libc::recvmsg(socket.as_raw_fd(), &raw mut head, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) != 4
        {
            return None;
        }
        let message = libc::CMSG_FIRSTHDR(&raw const head);
        if message.is_null()
            || (*message).cmsg_type != libc::SCM_CREDENTIALS
            || (*message).cmsg_len < libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize
        {
            return None;
        }
        let sender: libc::ucred = std::ptr::read_unaligned(libc::CMSG_DATA(message).cast());
        Some((u32::from_ne_bytes(bytes), sender.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_is_noticed_whoever_started_it() {
        let (here, there) = UnixDatagram::pair().unwrap();
        learn_senders(&here).unwrap();
        announce(&there, 77);
        assert_eq!(receive(&here), Some((77, std::process::id() as libc::pid_t)));
        assert_eq!(receive(&here), None);
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        let process = Process { owner: 1, pid, descriptor: open(pid) };
        assert!(!process.is_gone());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.is_gone() && Process { owner: 1, pid, descriptor: None }.is_gone());
    }
}
