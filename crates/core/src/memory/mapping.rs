//! Mappings of the engine's own.

use crate::error::{Error, Result};
use std::os::fd::RawFd;

/// A mapping of ours.
pub(crate) struct Mapping {
    pub(crate) address: usize,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes.
    pub(crate) fn new(
        length: usize,
        protection: i32,
        flags: i32,
        descriptor: RawFd,
        offset: i64,
    ) -> Result<Self> {
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, descriptor, offset) };
        if address == libc::MAP_FAILED {
            return Err(Error::system("mmap"));
        }
        Ok(Self { address: address as usize, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and all users of it are gone.
        unsafe { libc::munmap(self.address as *mut _, self.length) };
    }
}
