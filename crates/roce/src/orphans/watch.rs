//! The parent's look at the processes that write into the record.

use super::{Page, disconnect};
use adverb_core::{log, seqpacket};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

/// Names that a process may have in the record. A program that executes another one gets a new name with it.
const MOST_NAMES: usize = 16;
/// Processes that are watched at a time. Each costs a descriptor.
const MOST_PROCESSES: usize = 4096;
/// Announcements that are taken before the thread looks at the processes again.
const MOST_ANNOUNCEMENTS_AT_ONCE: usize = 256;
/// Bytes of control messages: who the sender is, and nothing else. Descriptors that come along find no room.
const SENDER_CONTROL: usize = 32;

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
    pid: libc::pid_t,
    /// The names of the process in the record.
    owners: Vec<u32>,
    /// Readable when it has ended; none where the system has no such thing.
    descriptor: Option<OwnedFd>,
}

/// The processes that are watched. They say themselves that they are there, so their number has a bound.
#[derive(Default)]
struct Processes {
    all: Vec<Process>,
    has_warned: bool,
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
    // The thread must not wait for the close of what a process passes.
    seqpacket::take_descriptors(socket.as_raw_fd(), false);
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
        let mut processes = Processes::default();
        loop {
            let others = [self.socket.as_raw_fd(), stopped.as_raw_fd()];
            let watched = processes.all.iter().filter_map(|process| process.descriptor.as_ref());
            let mut polled: Vec<libc::pollfd> = others
                .into_iter()
                .chain(watched.map(AsRawFd::as_raw_fd))
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .collect();
            // SAFETY: a live array of its length.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
            processes.add_all(std::iter::from_fn(|| receive(&self.socket)));
            let gone = processes.take_gone();
            if !gone.is_empty() {
                disconnect::say(&self.page.take(&gone));
            } else if polled[1].revents != 0 {
                return;
            }
        }
    }
}

impl Processes {
    /// Takes announcements, a bounded number of them: names, and who has sent them.
    fn add_all(&mut self, announced: impl Iterator<Item = (u32, libc::pid_t)>) {
        for (owner, pid) in announced.take(MOST_ANNOUNCEMENTS_AT_ONCE).filter(|(_, pid)| *pid > 0) {
            self.add(owner, pid);
        }
    }

    /// A process has said that this is a name of it. What is beyond the bounds is left out: peers find out by themselves that such a process has ended.
    fn add(&mut self, owner: u32, pid: libc::pid_t) {
        let known = self.all.iter_mut().find(|process| process.pid == pid && !process.is_gone());
        let has_room = match known {
            Some(process) if process.owners.contains(&owner) => true,
            Some(process) => {
                let has_room = process.owners.len() < MOST_NAMES;
                process.owners.extend(has_room.then_some(owner));
                has_room
            }
            None => {
                let has_room = self.all.len() < MOST_PROCESSES;
                let process = || Process { pid, owners: vec![owner], descriptor: open(pid) };
                self.all.extend(has_room.then(process));
                has_room
            }
        };
        if !has_room && !std::mem::replace(&mut self.has_warned, true) {
            log!(
                Warn,
                "process {pid} is not watched, or not under all its names: its connections do not end with it"
            );
        }
    }

    /// Forgets the processes that have ended. Returns their names in the record.
    fn take_gone(&mut self) -> Vec<u32> {
        let gone = self.all.extract_if(.., |process| process.is_gone());
        gone.flat_map(|process| process.owners).collect()
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
    let mut control = [0u64; SENDER_CONTROL / size_of::<u64>()];
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
    use std::io::Read;
    use std::os::fd::RawFd;
    use std::process::{Child, Command, Stdio};

    fn child() -> (Child, libc::pid_t) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        (child, pid)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_ends_is_noticed_whoever_started_it() {
        let (here, there) = UnixDatagram::pair().unwrap();
        learn_senders(&here).unwrap();
        announce(&there, 77);
        assert_eq!(receive(&here), Some((77, std::process::id() as libc::pid_t)));
        assert_eq!(receive(&here), None);
        let (child, pid) = child();
        let process = Process { owners: vec![1], pid, descriptor: open(pid) };
        assert!(!process.is_gone());
        end(child);
        assert!(process.is_gone() && Process { owners: vec![1], pid, descriptor: None }.is_gone());
    }

    /// One process announces itself without end: the parent keeps one descriptor for it, a few names, and the names of others.
    #[test]
    fn a_process_that_announces_without_end_is_one_process() {
        let ((greedy, pid), (other, of_other)) = (child(), child());
        let mut processes = Processes::default();
        for owner in 1..=1000 {
            processes.add(owner, pid);
            processes.add(1, pid);
        }
        assert!(processes.has_warned);
        processes.add(2000, of_other);
        let names: Vec<_> = processes.all.iter().map(|process| process.owners.len()).collect();
        assert_eq!(names, [MOST_NAMES, 1]);
        end(greedy);
        assert_eq!(processes.take_gone(), (1..=MOST_NAMES as u32).collect::<Vec<_>>());
        end(other);
        assert_eq!(processes.take_gone(), [2000]);
        assert_eq!(processes.all.len(), 0);
    }

    /// The thread looks at the processes, and at its end, however many announcements come.
    #[test]
    fn announcements_keep_the_thread_from_nothing() {
        let own = std::process::id() as libc::pid_t;
        let mut announced = std::iter::repeat_n((1, own), 10 * MOST_ANNOUNCEMENTS_AT_ONCE);
        Processes::default().add_all(&mut announced);
        assert_eq!(announced.len(), 9 * MOST_ANNOUNCEMENTS_AT_ONCE);
    }

    /// A process passes a descriptor with its announcement: the parent does not keep it.
    #[test]
    fn a_descriptor_that_comes_along_is_closed() {
        let (here, there) = UnixDatagram::pair().unwrap();
        learn_senders(&here).unwrap();
        // As before Linux 6.16, where such a message cannot be refused.
        seqpacket::take_descriptors(here.as_raw_fd(), true);
        let (mut end, passed) = std::io::pipe().unwrap();
        let mut bytes = 77u32.to_ne_bytes();
        let mut control = [0u64; 3];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zero is a valid header; it names live locals, with room for one descriptor.
        let sent = unsafe {
            let mut head: libc::msghdr = zeroed();
            (head.msg_iov, head.msg_iovlen) = (&raw mut part, 1);
            (head.msg_control, head.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
            let message = libc::CMSG_FIRSTHDR(&raw const head);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(message).cast::<RawFd>().write_unaligned(passed.as_raw_fd());
            libc::sendmsg(there.as_raw_fd(), &raw const head, 0)
        };
        assert_eq!(sent, 4);
        drop(passed);
        assert_eq!(receive(&here), Some((77, std::process::id() as libc::pid_t)));
        // Nothing can come any more once nobody has the other end.
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
    }
}
