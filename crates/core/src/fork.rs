//! A child of fork(2) has no engine: its copy of the engine has no threads, and its sockets belong to the
//! parent.
//!
//! The child's handler takes no lock and frees nothing: it closes the engine's own descriptors, forgets the
//! engine and counts up a generation. Objects remember the generation that they were born in; in the child
//! they answer with an error and may be destroyed without effect. The next call that opens a device builds a
//! fresh engine.
//!
//! Memory that was moved for peers has handlers of its own (`memory::moved`).

use crate::error::{Error, PostError, Result};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process generation in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u32);

impl ForkGeneration {
    /// This process.
    pub fn now() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the object was made by this process and not by the one it was forked from.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }

    /// An error for an object of the parent process.
    pub fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::forked()) }
    }

    /// [`PostError::Forked`] for an object of the parent process. For posts, on the fast path.
    #[inline]
    pub fn check_post(self) -> std::result::Result<(), PostError> {
        if self.is_here() { Ok(()) } else { Err(PostError::Forked) }
    }
}

// One bit for each descriptor that a child must close. Descriptors above the table stay open in a child until
// it calls exec.
const WORDS: usize = 1024;
static DESCRIPTORS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The identity of each marked descriptor, at the time of the mark. Programs close all descriptors that they
/// do not know, and their numbers become those of other files.
static IDENTITIES: [AtomicU64; WORDS * 64] = [const { AtomicU64::new(0) }; WORDS * 64];

/// Tells files apart; 0 if nothing is open under the number. A descriptor without an inode of its own (an
/// eventfd, an epoll set) is told from files that have one. Because ours are closed by exec, it is also told
/// from those that are not. For a child's handler, too: two system calls.
fn identity(fd: i32) -> u64 {
    // SAFETY: all zero is a valid value; the calls take a number and a live local.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut status) != 0 || libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC == 0 {
            return 0;
        }
        // Both numbers in one word, which is not 0.
        status.st_ino ^ status.st_dev.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
    }
}

fn bit(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((DESCRIPTORS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Marks a descriptor as the engine's own: a child of fork closes it.
pub fn own_descriptor(fd: i32) {
    if let Some((word, bit)) = bit(fd) {
        IDENTITIES[fd as usize].store(identity(fd), Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Takes the mark back, before the descriptor is closed.
pub fn disown_descriptor(fd: i32) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// A function that the child's handler calls besides: it has the child forget more. Set by
/// [`install_handler`].
static FORGOTTEN: OnceLock<fn()> = OnceLock::new();

/// Registers the child's handler, once per process. The child calls `forget` in it, which may only load and
/// store.
pub(crate) fn install_handler(forget: fn()) {
    FORGOTTEN.get_or_init(|| forget);
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: the handler is a static function that is safe between fork and exec (it only loads, stores
        // and closes).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    if let Some(forget) = FORGOTTEN.get() {
        forget();
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for (index, word) in DESCRIPTORS.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            if IDENTITIES[fd].load(Ordering::Relaxed) == identity(fd as i32) {
                // SAFETY: the bit says that this process's copy of the descriptor is the engine's, and its
                // identity is unchanged.
                unsafe { libc::close(fd as i32) };
            }
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    fn file() -> i32 {
        // SAFETY: a constant C string, and a flag.
        let fd = unsafe { libc::memfd_create(c"fork".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        fd
    }

    #[test]
    fn a_child_closes_the_descriptors_of_the_engine_and_no_others_that_have_their_numbers_by_now() {
        install_handler(crate::engine::forget);
        let (ours, taken, inherited) = (file(), file(), file());
        for fd in [ours, taken, inherited] {
            own_descriptor(fd);
        }
        // As programs do that close everything, and then open files of their own.
        let (theirs, other) = std::io::pipe().unwrap();
        // SAFETY: descriptors of ours.
        unsafe {
            assert_eq!(libc::dup3(theirs.as_raw_fd(), taken, libc::O_CLOEXEC), taken);
            assert_eq!(libc::dup3(other.into_raw_fd(), inherited, 0), inherited);
        }
        let is_open = |fd| {
            // SAFETY: a number.
            unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
        };
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = !is_open(ours) && is_open(taken) && is_open(inherited);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: our child, and a live local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        for fd in [ours, taken, inherited] {
            disown_descriptor(fd);
            // SAFETY: ours.
            unsafe { libc::close(fd) };
        }
    }
}
