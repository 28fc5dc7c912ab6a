//! Two processes with shared memory between them and nothing else: this one and a copy of it.

use crate::pair::link::PEER_TIMEOUT;
use std::io::{Error, Result};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Words in a cache line, and a neighbour that may be fetched along with it.
pub(super) const APART: usize = 16;

/// Memory that both processes have.
pub(super) struct SharedMemory {
    start: *mut u8,
    length: usize,
}

impl SharedMemory {
    /// So many bytes, all of them there.
    pub(super) fn new(length: usize) -> Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            Err(Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), length })
        }
    }

    /// The word of this index.
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.length);
        // SAFETY: inside of the mapping, which lives as long as `self` and begins at a page; both processes
        // use its words atomically.
        unsafe { &*self.start.cast::<AtomicU64>().add(index) }
    }

    /// Copies bytes to a place that the other process does not use meanwhile.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.length));
        // SAFETY: inside of the mapping, of which no reference to bytes exists.
        unsafe { self.start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points into it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Runs `theirs` in a copy of this process, on a processor of its own, and `ours` here meanwhile. In the copy
/// nothing but system calls and memory may be used: other threads of this process do not exist there, but
/// their locks do.
pub(super) fn run<T>(theirs: impl FnOnce() -> Option<()>, ours: impl FnOnce() -> Option<T>) -> Result<T> {
    crate::bench::processors::keep(Some(0));
    // SAFETY: the copy keeps to what a child of a process with threads may do, as demanded above, and ends
    // without any clean-up.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(Error::last_os_error());
    }
    if child == 0 {
        // SAFETY: plain numbers. Nobody would wait for the copy when its parent has gone.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        crate::bench::processors::keep(Some(1));
        let status = i32::from(theirs().is_none());
        // SAFETY: ends the copy at once.
        unsafe { libc::_exit(status) };
    }
    let result = ours();
    crate::bench::processors::keep(None);
    // SAFETY: the child is ours and has not been waited for; a null pointer for a status that nobody wants.
    unsafe {
        if result.is_none() {
            libc::kill(child, libc::SIGKILL);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    result.ok_or_else(|| Error::other("the copy of this process does not answer"))
}

/// Looks again and again until it is so; none if it takes too long.
pub(super) fn spin(mut done: impl FnMut() -> bool) -> Option<()> {
    let mut until = None;
    loop {
        for _ in 0..10_000 {
            if done() {
                return Some(());
            }
            std::hint::spin_loop();
        }
        if Instant::now() > *until.get_or_insert_with(|| Instant::now() + PEER_TIMEOUT) {
            return None;
        }
    }
}
