//! What a child of fork(2) finds: nothing. Its copy of the engine has no threads and its sockets belong to the parent.
//!
//! The child's handler takes no lock and frees nothing: it closes the engine's own descriptors, forgets the engine and counts up a
//! generation. Objects remember the generation that they were born in; in the child they answer with an error and may be
//! destroyed without effect. The next call that opens a device builds a fresh engine.
//!
//! Memory that was moved for peers has handlers of its own ([`crate::memory::moved`]).

use crate::error::{Error, PostError, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process generation in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born(u32);

impl Born {
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

    /// The same for the fast path.
    #[inline]
    pub fn check_post(self) -> std::result::Result<(), PostError> {
        if self.is_here() { Ok(()) } else { Err(PostError::Forked) }
    }
}

// One bit for each descriptor that a child must close. Descriptors above the table stay open in a child until it calls exec.
const WORDS: usize = 1024;
static DESCRIPTORS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

fn bit(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((DESCRIPTORS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Marks a descriptor as the engine's own: a child of fork closes it.
pub fn own_descriptor(fd: i32) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Takes the mark back, before the descriptor is closed.
pub fn disown_descriptor(fd: i32) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Registers the child's handler, once per process.
pub(crate) fn install_handler() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        crate::memory::moved::install_handlers();
        // SAFETY: the handler is a static function that is safe between fork and exec (it only loads, stores and closes).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    crate::engine::forget();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for (index, word) in DESCRIPTORS.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            // SAFETY: the bit says that this process's copy of the descriptor is the engine's.
            unsafe { libc::close(fd as i32) };
            bits &= bits - 1;
        }
    }
}
