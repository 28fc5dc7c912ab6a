//! select(2) with rsockets: a list for poll, made of the sets. They may be longer than the C library's.

use crate::barrier::Barrier;
use crate::{errno, library, poll, signals, table};
use libc::{c_int, fd_set, pollfd, sigset_t, timespec, timeval};
use std::time::{Duration, Instant};

/// A set of descriptors: what makes one ready that is in it.
#[derive(Clone, Copy)]
struct Set {
    words: *mut u64,
    events: i16,
    shown: i16,
}

const BITS: usize = u64::BITS as usize;

impl Set {
    /// Whether a descriptor is in it.
    ///
    /// # Safety
    /// The set is NULL or has room for the descriptor.
    unsafe fn has(&self, fd: c_int) -> bool {
        // SAFETY: the caller's promise.
        !self.words.is_null()
            && unsafe { *self.words.add(fd as usize / BITS) } >> (fd as usize % BITS) & 1 != 0
    }

    /// Takes a descriptor out.
    ///
    /// # Safety
    /// The set has room for it.
    unsafe fn remove(&self, fd: c_int) {
        // SAFETY: the caller's promise.
        unsafe { *self.words.add(fd as usize / BITS) &= !(1 << (fd as usize % BITS)) };
    }
}

fn sets(readable: *mut fd_set, writable: *mut fd_set, exceptional: *mut fd_set) -> [Set; 3] {
    let ends = libc::POLLHUP | libc::POLLERR;
    [
        Set { words: readable.cast(), events: libc::POLLIN, shown: libc::POLLIN | ends },
        Set { words: writable.cast(), events: libc::POLLOUT, shown: libc::POLLOUT | libc::POLLERR },
        Set { words: exceptional.cast(), events: libc::POLLPRI, shown: libc::POLLPRI },
    ]
}

/// The descriptors that the kernel's table has room for, beyond which it looks into no set: programs may ask
/// for as many as there could ever be.
fn room() -> c_int {
    let status = errno::kept(|| std::fs::read_to_string("/proc/thread-self/status")).unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok());
    size.unwrap_or(libc::FD_SETSIZE as c_int)
}

/// A list for poll of what is in the sets, if there is an rsocket.
///
/// # Safety
/// The sets have room for `count` descriptors, or for as many as the kernel's table.
unsafe fn list(count: c_int, sets: &[Set]) -> Option<Vec<pollfd>> {
    // SAFETY: the caller's promise: open descriptors are in the kernel's table.
    if !table::below(count).any(|fd| sets.iter().any(|set| unsafe { set.has(fd) })) {
        return None;
    }
    // A set of the C library has that much in any case.
    let count = if count > libc::FD_SETSIZE as c_int { count.min(room()) } else { count };
    let mut list = Vec::new();
    for fd in 0..count {
        let mut entry = pollfd { fd, events: 0, revents: 0 };
        for set in sets {
            // SAFETY: the caller's promise.
            if unsafe { set.has(fd) } {
                entry.events |= set.events;
            }
        }
        if entry.events != 0 {
            list.push(entry);
        }
    }
    Some(list)
}

/// Waits, and leaves in the sets what is ready: how many.
///
/// # Safety
/// As [`list`]; `mask` is NULL or valid.
unsafe fn wait(list: &mut [pollfd], sets: &[Set], milliseconds: c_int, mask: *const sigset_t) -> c_int {
    // SAFETY: the caller's promise.
    let ready = unsafe { poll::wait(list, milliseconds, mask) };
    if ready < 0 {
        return ready;
    }
    if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return errno::fail(libc::EBADF);
    }
    let mut found = 0;
    for set in sets {
        for entry in &*list {
            // SAFETY: the list was made of these sets.
            unsafe {
                if set.has(entry.fd) {
                    match entry.revents & set.shown {
                        0 => set.remove(entry.fd),
                        _ => found += 1,
                    }
                }
            }
        }
    }
    found
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let _barrier = Barrier;
    let sets = sets(readable, writable, exceptional);
    // SAFETY: the caller's arguments.
    unsafe {
        let Some(mut list) = list(count, &sets) else {
            return library::select(count, readable, writable, exceptional, timeout);
        };
        let start = Instant::now();
        let whole = timeout.as_ref().map(signals::as_timespec);
        let whole_pointer = whole.as_ref().map_or(std::ptr::null(), |time| &raw const *time);
        let ready = wait(&mut list, &sets, signals::milliseconds(whole_pointer), std::ptr::null());
        // As Linux does: what is left of the time.
        if let Some(timeout) = timeout.as_mut() {
            let whole = Duration::new(timeout.tv_sec.max(0) as u64, 0)
                + Duration::from_micros(timeout.tv_usec.max(0) as u64);
            let left = whole.saturating_sub(start.elapsed());
            timeout.tv_sec = left.as_secs() as libc::time_t;
            timeout.tv_usec = left.subsec_micros().into();
        }
        ready
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let _barrier = Barrier;
    let sets = sets(readable, writable, exceptional);
    // SAFETY: the caller's arguments.
    unsafe {
        match list(count, &sets) {
            Some(mut list) => wait(&mut list, &sets, signals::milliseconds(timeout), mask),
            None => library::pselect(count, readable, writable, exceptional, timeout, mask),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn no_more_of_a_set_is_read_than_the_kernel_reads() {
        let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (fd, other) = (socket.as_raw_fd(), other.as_raw_fd());
        // What follows is none of the set's.
        let words = room() as usize / BITS;
        let mut memory = vec![0u64; words];
        memory.resize((1 << 19) / BITS, u64::MAX);
        for fd in [fd, other] {
            memory[fd as usize / BITS] |= 1 << (fd as usize % BITS);
        }
        let sets = sets(memory.as_mut_ptr().cast(), std::ptr::null_mut(), std::ptr::null_mut());
        let descriptors = || {
            // SAFETY: there is room for more.
            let list = unsafe { list(1 << 19, &sets) };
            list.map(|list| list.iter().map(|entry| (entry.fd, entry.events)).collect::<Vec<_>>())
        };
        assert_eq!(descriptors(), None);
        assert!(table::insert(fd, 500_200));
        let mut both = [(fd, libc::POLLIN), (other, libc::POLLIN)];
        both.sort_unstable();
        assert_eq!(descriptors().as_deref(), Some(&both[..]));
        assert_eq!(table::remove(fd), Some(500_200));
    }
}
