//! An event descriptor by which one side wakes the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An eventfd(2), shared by the side that sleeps on it and the side that rings it.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new one, which has not rung.
    pub fn new() -> io::Result<Doorbell> {
        // SAFETY: eventfd(2) with plain values.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, owned by nobody else.
        Ok(Doorbell(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The one that another process has passed; none if it is no event descriptor.
    pub fn from_descriptor(descriptor: OwnedFd) -> Option<Doorbell> {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind = std::fs::read_link(link).ok()?;
        (kind.as_os_str() == "anon_inode:[eventfd]").then_some(Doorbell(descriptor))
    }

    /// Makes the descriptor readable. Failure to do so, on a descriptor that is none of an event, is the loss of who passed it.
    pub fn ring(&self) {
        // Whoever shares it may have filled it, and have it wait: then it is readable already.
        let mut room = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, as it says; no waiting.
        if unsafe { libc::poll(&raw mut room, 1, 0) } != 1 {
            return;
        }
        let one = 1u64;
        // SAFETY: eight bytes of a live local. EAGAIN means that it is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable until it is rung again. Never waits: whoever shares the descriptor may have it do so, and so the call itself says that it does not.
    pub fn clear(&self) {
        let (fd, mut count) = (self.0.as_raw_fd(), 0u64);
        let part = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        let (parts, here) = (1usize, -1 as libc::c_long);
        // SAFETY: eight bytes of a live local. EAGAIN means that it has not been rung.
        let read = unsafe {
            libc::syscall(libc::SYS_preadv2, fd, &raw const part, parts, here, here, libc::RWF_NOWAIT)
        };
        let known = [Some(libc::EAGAIN), Some(libc::EINTR)];
        if read >= 0 || known.contains(&io::Error::last_os_error().raw_os_error()) {
            return;
        }
        // Before Linux 5.8. Nobody but us reads it.
        let mut rung = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as it says, without waiting; then eight bytes of a live local.
        unsafe {
            if libc::poll(&raw mut rung, 1, 0) == 1 {
                libc::read(fd, (&raw mut count).cast(), 8);
            }
        }
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

    fn rings(bell: &Doorbell) -> bool {
        let mut poll = libc::pollfd { fd: bell.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as it says.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// The other side shares the descriptor's flags.
    #[test]
    fn whoever_has_it_wait_makes_nobody_wait() {
        let bell = Doorbell::new().unwrap();
        let other = Doorbell::from_descriptor(bell.as_fd().try_clone_to_owned().unwrap()).unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::fcntl(other.as_fd().as_raw_fd(), libc::F_SETFL, 0) }, 0);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            bell.clear();
            // Full, as far as the other can fill it.
            let most = u64::MAX - 1;
            // SAFETY: eight bytes of a live local.
            unsafe { libc::write(bell.as_fd().as_raw_fd(), (&raw const most).cast(), 8) };
            bell.ring();
            let rang = rings(&bell);
            bell.clear();
            tell.send((rang, rings(&bell)))
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(30)), Ok((true, false)));
    }

    #[test]
    fn rings_until_it_is_cleared() {
        let bell = Doorbell::new().unwrap();
        let other = Doorbell::from_descriptor(bell.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(!rings(&bell));
        bell.clear();
        other.ring();
        other.ring();
        assert!(rings(&bell));
        bell.clear();
        assert!(!rings(&bell) && !rings(&other));
    }
}
