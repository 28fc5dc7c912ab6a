//! The parent's look at the processes that write into the record.

use super::{SharedRecord, disconnect};
use adverb_core::log;
use adverb_core::seqpacket::Connection;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

/// Most numbers of a process in the record. A program that executes another one gets a new number with it.
const MOST_NUMBERS: usize = 16;
/// Processes that are watched at a time. Each costs a descriptor.
const MOST_PROCESSES: usize = 4096;
/// Announcements that are taken before the thread looks at the processes again.
const MOST_ANNOUNCEMENTS_AT_ONCE: usize = 256;

/// The parent's end of a record. Nothing is watched before [`Watch::start`].
pub struct Watch {
    shared: &'static SharedRecord,
    socket: Connection,
}

/// A thread that sends the disconnect requests of processes that end.
pub struct Watching {
    thread: JoinHandle<()>,
    /// A datagram sent by this socket ends the thread.
    stop: UnixDatagram,
}

/// A process that writes into the record.
struct Process {
    pid: libc::pid_t,
    /// The numbers of the process in the record.
    numbers: Vec<u32>,
    /// The pidfd. None before Linux 5.3, or where no descriptor is left: then no event wakes the thread. It
    /// asks kill(2) when it wakes for another reason.
    descriptor: Option<OwnedFd>,
}

/// The processes that are watched. Any process can announce itself, so their number has a bound.
#[derive(Default)]
struct Processes {
    all: Vec<Process>,
    has_warned: bool,
}

/// Tells the parent of this process, by its number in the record.
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

impl Watch {
    pub(super) fn new(shared: &'static SharedRecord, socket: UnixDatagram) -> io::Result<Self> {
        Ok(Self { shared, socket: Connection::of_datagrams(socket.into())? })
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn shared(&self) -> &'static SharedRecord {
        self.shared
    }

    /// Watches from now on, with a thread that takes no signal.
    ///
    /// # Errors
    /// Those of socketpair(2) and of a new thread.
    pub fn start(self) -> io::Result<Watching> {
        let (stop, stopped) = UnixDatagram::pair()?;
        // SAFETY: signal sets are plain data, filled before use; the old mask is restored.
        unsafe {
            let (mut all, mut old) = (zeroed(), zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            let thread =
                std::thread::Builder::new().name("orphan-reaper".into()).spawn(move || self.run(&stopped));
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
            Ok(Watching { thread: thread?, stop })
        }
    }

    fn run(&self, stopped: &UnixDatagram) {
        let mut processes = Processes::default();
        let mut socket = self.socket.fd();
        loop {
            let others = [socket, stopped.as_raw_fd()];
            let watched = processes.all.iter().filter_map(|process| process.descriptor.as_ref());
            let mut polled: Vec<libc::pollfd> = others
                .into_iter()
                .chain(watched.map(AsRawFd::as_raw_fd))
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .collect();
            // SAFETY: a live array of its length.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
            if let Err(TooManyDescriptors) = processes.add_all(|| receive(&self.socket)) {
                log!(Warn, "a process passes descriptors that do not close: no more processes are watched");
                // poll(2) passes over it.
                socket = -1;
            }
            let gone = processes.take_gone();
            if !gone.is_empty() {
                disconnect::send_all(&self.shared.take(&gone));
            } else if polled[1].revents != 0 {
                return;
            }
        }
    }
}

impl Processes {
    /// Takes announcements, a bounded number of them: process numbers, and the processes that sent them.
    fn add_all(
        &mut self,
        mut announced: impl FnMut() -> Result<Option<Announcement>, TooManyDescriptors>,
    ) -> Result<(), TooManyDescriptors> {
        for _ in 0..MOST_ANNOUNCEMENTS_AT_ONCE {
            let Some((owner, pid)) = announced()? else { break };
            if pid > 0 {
                self.add(owner, pid);
            }
        }
        Ok(())
    }

    /// A process has announced a number of its own. Processes and numbers beyond the bounds are left out:
    /// peers find out by themselves that such a process has ended.
    fn add(&mut self, owner: u32, pid: libc::pid_t) {
        let known = self.all.iter_mut().find(|process| process.pid == pid && !process.is_gone());
        let has_room = match known {
            Some(process) if process.numbers.contains(&owner) => true,
            Some(process) => {
                let has_room = process.numbers.len() < MOST_NUMBERS;
                process.numbers.extend(has_room.then_some(owner));
                has_room
            }
            None => {
                let has_room = self.all.len() < MOST_PROCESSES;
                let process = || Process { pid, numbers: vec![owner], descriptor: pidfd_open(pid) };
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

    /// Forgets the processes that have ended. Returns their numbers in the record.
    fn take_gone(&mut self) -> Vec<u32> {
        let gone = self.all.extract_if(.., |process| process.is_gone());
        gone.flat_map(|process| process.numbers).collect()
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

/// A descriptor that becomes readable when the process ends (pidfd_open(2)).
fn pidfd_open(pid: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a new descriptor, nobody else's.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The number of a process in the record, and its process ID; 0 where it has none here.
type Announcement = (u32, libc::pid_t);

/// Too many passed descriptors do not close: nothing more is received.
#[derive(Debug, PartialEq, Eq)]
struct TooManyDescriptors;

/// The next announcement, if there is one. Never waits: the closing thread closes descriptors that come
/// along.
fn receive(socket: &Connection) -> Result<Option<Announcement>, TooManyDescriptors> {
    let mut bytes = [0; 5];
    match socket.receive_with(&mut bytes) {
        Ok((said, along)) => {
            // A message of another length is no announcement, and there may be more behind it.
            let owner = said.try_into().map_or(0, u32::from_ne_bytes);
            Ok(Some((owner, along.sender.filter(|_| said.len() == 4).unwrap_or(0))))
        }
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Err(TooManyDescriptors),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::conformance::lingering::Lingering;
    use adverb_core::seqpacket;
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

    fn watched() -> (Connection, UnixDatagram) {
        let (here, there) = UnixDatagram::pair().unwrap();
        (Connection::of_datagrams(here.into()).unwrap(), there)
    }

    #[test]
    fn the_end_of_any_process_is_noticed() {
        let (here, there) = watched();
        there.send(b"longer than an announcement").unwrap();
        announce(&there, 77);
        assert_eq!(receive(&here), Ok(Some((0, 0))));
        assert_eq!(receive(&here), Ok(Some((77, std::process::id() as libc::pid_t))));
        assert_eq!(receive(&here), Ok(None));
        let (child, pid) = child();
        let process = Process { numbers: vec![1], pid, descriptor: pidfd_open(pid) };
        assert!(!process.is_gone());
        end(child);
        assert!(process.is_gone() && Process { numbers: vec![1], pid, descriptor: None }.is_gone());
    }

    /// One process announces itself without end: the parent keeps one descriptor for it, a few numbers, and
    /// the numbers of others.
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
        let counts: Vec<_> = processes.all.iter().map(|process| process.numbers.len()).collect();
        assert_eq!(counts, [MOST_NUMBERS, 1]);
        end(greedy);
        assert_eq!(processes.take_gone(), (1..=MOST_NUMBERS as u32).collect::<Vec<_>>());
        end(other);
        assert_eq!(processes.take_gone(), [2000]);
        assert_eq!(processes.all.len(), 0);
    }

    /// The thread looks at the processes, and at its end, however many announcements come.
    #[test]
    fn announcements_keep_the_thread_from_nothing() {
        let own = std::process::id() as libc::pid_t;
        let mut announced = 0;
        let next = || {
            announced += 1;
            Ok(Some((1, own)))
        };
        assert_eq!(Processes::default().add_all(next), Ok(()));
        assert_eq!(announced, MOST_ANNOUNCEMENTS_AT_ONCE);
    }

    /// Announces a process, and passes a descriptor with that.
    fn pass(by: &UnixDatagram, passed: OwnedFd) {
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
            libc::sendmsg(by.as_raw_fd(), &raw const head, 0)
        };
        assert_eq!(sent, 4);
    }

    /// A process passes descriptors with its announcements: the parent keeps none, and no thread waits for
    /// their close but the closing one.
    #[test]
    fn a_descriptor_that_comes_along_is_closed_by_a_thread_that_may_wait() {
        let (here, there) = watched();
        // As before Linux 6.16, where such a message cannot be refused.
        seqpacket::take_descriptors(here.fd(), true);
        let announced = Ok(Some((77, std::process::id() as libc::pid_t)));
        let (mut end, passed) = std::io::pipe().unwrap();
        pass(&there, passed.into());
        assert_eq!(receive(&here), announced);
        // Nothing can come any more once nobody has the other end.
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
        let (lingering, passed) = Lingering::new();
        pass(&there, passed);
        assert_eq!(receive(&here), announced);
        lingering.wait();
        announce(&there, 77);
        assert_eq!(receive(&here), announced);
        assert!(lingering.closes_now(), "the announcement came while a thread was in close(2)");
        lingering.end();
    }
}
