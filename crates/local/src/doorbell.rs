//! An event descriptor by which one side wakes the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An eventfd(2), shared by the side that sleeps on it and the side that rings it.
///
/// Both share its flags and its count, and either may do with them as it likes: have writes wait, and fill
/// it. So neither side goes by the count. The sleeper watches it in an epoll(7) set of its own,
/// edge-triggered, for [`CHANGES`]; to ring is to add nothing to the count, for which there is always room,
/// and which the set reports all the same.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// What an epoll set is to report of a doorbell, of which one or the other always holds: that there is room,
/// so that each ring is reported whatever the other side has done with the count; and that there is something
/// to read, which is how a ring shows.
pub const CHANGES: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;

impl Doorbell {
    /// A new one, which has not rung.
    pub fn new() -> io::Result<Doorbell> {
        // SAFETY: eventfd(2) with plain values.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, and that has no other owner.
        Ok(Doorbell(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The doorbell that another process has passed; none if it is no event descriptor.
    pub fn from_descriptor(descriptor: OwnedFd) -> Option<Doorbell> {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind = std::fs::read_link(link).ok()?;
        (kind.as_os_str() == "anon_inode:[eventfd]").then_some(Doorbell(descriptor))
    }

    /// Wakes the side that watches it. That side can keep the ring from working by its own use of the
    /// doorbell: the loss is its own.
    pub fn ring(&self) {
        // No write fills it so far that nothing has no room, but the kernel itself may, for asynchronous I/O:
        // then there is an error to be seen, and no room.
        let mut room =
            libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, as it says; no waiting.
        let known = unsafe { libc::poll(&raw mut room, 1, 0) } == 1;
        if !known || room.revents & libc::POLLERR != 0 {
            return;
        }
        let nothing = 0u64;
        // SAFETY: eight bytes of a live local.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const nothing).cast(), 8) };
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoll set that watches a bell as its sleeper does.
    struct Sleeper(OwnedFd);

    impl Sleeper {
        fn at(bell: &Doorbell) -> Self {
            let mut event = libc::epoll_event { events: CHANGES, u64: 0 };
            // SAFETY: plain values, an open descriptor and a live local.
            let set = unsafe {
                let set = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
                let fd = bell.as_fd().as_raw_fd();
                assert_eq!(libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
                set
            };
            let sleeper = Self(set);
            sleeper.is_woken();
            sleeper
        }

        fn is_woken(&self) -> bool {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: room for one event.
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, 0) == 1 }
        }
    }

    fn write(bell: &Doorbell, count: u64) {
        // SAFETY: eight bytes of a live local.
        unsafe { libc::write(bell.as_fd().as_raw_fd(), (&raw const count).cast(), 8) };
    }

    fn read(bell: &Doorbell) {
        let mut count = 0u64;
        // SAFETY: eight bytes of a live local.
        unsafe { libc::read(bell.as_fd().as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    fn have_it_wait(bell: &Doorbell, waits: bool) {
        let flags = if waits { 0 } else { libc::O_NONBLOCK };
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fcntl(bell.as_fd().as_raw_fd(), libc::F_SETFL, flags) }, 0);
    }

    fn other_end(bell: &Doorbell) -> Doorbell {
        Doorbell::from_descriptor(bell.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn each_ring_wakes_once() {
        let bell = Doorbell::new().unwrap();
        let (other, sleeper) = (other_end(&bell), Sleeper::at(&bell));
        assert!(!sleeper.is_woken());
        for _ in 0..3 {
            other.ring();
            assert!(sleeper.is_woken() && !sleeper.is_woken());
        }
    }

    #[test]
    fn a_ring_wakes_the_sleeper_though_a_side_changes_the_count() {
        let bell = Doorbell::new().unwrap();
        let (other, sleeper) = (other_end(&bell), Sleeper::at(&bell));
        for _ in 0..3 {
            write(&bell, u64::MAX - 1);
            sleeper.is_woken();
            other.ring();
            assert!(sleeper.is_woken(), "it is full");
            read(&bell);
            sleeper.is_woken();
            other.ring();
            assert!(sleeper.is_woken(), "it is empty");
        }
    }

    /// The other side shares the descriptor's flags, and changes them and the count while it is rung.
    #[test]
    fn a_ringer_never_waits_though_the_other_side_fills_the_bell() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};
        let bell = Doorbell::new().unwrap();
        let (other, full) = (other_end(&bell), other_end(&bell));
        // Full, and to be waited for: never anything else, until the rings are done.
        write(&full, u64::MAX - 1);
        have_it_wait(&full, true);
        let done = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let ended = done.clone();
        let hostile = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                // Of these, the reads find something, and the writes room: nobody else does either.
                read(&other);
                write(&other, u64::MAX - 1);
            }
        });
        std::thread::spawn(move || {
            (0..20_000).for_each(|_| bell.ring());
            tell.send(()).unwrap();
        });
        let in_time = told.recv_timeout(std::time::Duration::from_secs(30));
        done.store(true, Ordering::Relaxed);
        assert_eq!(in_time, Ok(()));
        hostile.join().unwrap();
    }
}
