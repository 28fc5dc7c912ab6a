//! The memory behind null regions (ibv_alloc_null_mr(3)).

use super::mapping::Mapping;
use crate::descriptor::set_length;
use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Bytes that the null memory has in one piece: the longest message.
pub(crate) const NULL_LENGTH: u64 = 1 << 31;

/// Memory behind null regions: reads find zeros, and writes go where no read finds them.
pub(crate) struct Null {
    pub(crate) zeros: usize,
    pub(crate) sink: usize,
}

/// The process's null memory, once it has been asked for.
pub(crate) fn null() -> Option<&'static Null> {
    NULL.get()
}

static NULL: OnceLock<Null> = OnceLock::new();

/// Makes the null memory. It costs address space: pages that are only read are all the kernel's one page of
/// zeros, and those that are written a piece that is mapped again and again.
pub(crate) fn make_null() -> Result<()> {
    const PIECE: u64 = 2 << 20;
    if NULL.get().is_some() {
        return Ok(());
    }
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let zeros = Mapping::new(NULL_LENGTH as usize, libc::PROT_READ, anonymous, -1, 0)?;
    let sink = Mapping::new(NULL_LENGTH as usize, libc::PROT_NONE, anonymous, -1, 0)?;
    // SAFETY: a C string, and flags that exist.
    let piece = unsafe { libc::memfd_create(c"adverb-null".as_ptr(), libc::MFD_CLOEXEC) };
    if piece < 0 {
        return Err(Error::system("memfd_create"));
    }
    // SAFETY: a fresh descriptor.
    let piece = unsafe { OwnedFd::from_raw_fd(piece) };
    set_length(piece.as_raw_fd(), PIECE as usize)?;
    for at in (0..NULL_LENGTH).step_by(PIECE as usize) {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let address = (sink.address + at as usize) as *mut _;
        // SAFETY: replaces a part of our own mapping, which no other thread knows yet.
        let mapped = unsafe { libc::mmap(address, PIECE as usize, protection, flags, piece.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::system("mmap"));
        }
    }
    let made = Null { zeros: zeros.address, sink: sink.address };
    if NULL.set(made).is_ok() {
        // They stay for ever.
        std::mem::forget((zeros, sink));
    }
    Ok(())
}
