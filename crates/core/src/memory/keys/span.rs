//! Spans: bytes that a key opened.

use super::{Access, AccessError, Entry, Kind, LEAST_PAGE, Slot};
use crate::memory::copy::{self, Fault};
use crate::memory::nothing::{self, NULL_LENGTH};
use crate::memory::process;
use crate::memory::source::{CopyError, Source};
use crate::sync::{AtomicUsize, Ordering};

/// Bytes that a key opened, in use until dropped.
pub struct Span<'a> {
    pub(in crate::memory) slot: &'a Slot,
    /// The region under a window.
    pub(in crate::memory) under: Option<&'a Slot>,
    /// Where the use is announced, if it is not counted.
    pub(in crate::memory) announced: Option<&'a AtomicUsize>,
    address: usize,
    length: usize,
}

impl<'a> Span<'a> {
    /// An empty span that keeps a slot in use, which its user has counted.
    #[inline(always)]
    pub(super) fn counted(slot: &'a Slot, entry: &Entry) -> Self {
        Self { slot, under: None, announced: None, address: entry.address, length: 0 }
    }

    /// An empty span that keeps a slot in use by an announcement of it.
    #[inline]
    pub(in crate::memory) fn announced(slot: &'a Slot, announced: &'a AtomicUsize, entry: &Entry) -> Self {
        Self { slot, under: None, announced: Some(announced), address: entry.address, length: 0 }
    }
}

impl Span<'_> {
    /// The span of `length` bytes at `address` of what the key opens.
    #[inline(always)]
    pub(in crate::memory) fn narrow(
        mut self,
        entry: &Entry,
        address: u64,
        length: u64,
        rights: Access,
    ) -> std::result::Result<Self, AccessError> {
        // RFC5041-7.1-7, RFC5041-8.3.1-1
        if !entry.access.contains(rights) {
            return Err(AccessError::Rights);
        }
        if length == 0 {
            return Ok(self);
        }
        // IB-RC-RSP-23
        // RFC5041-7.1-10, RFC5040-7.2-10
        address.checked_add(length - 1).ok_or(AccessError::Wrap)?;
        // RFC5041-7.1-8, RFC5041-7.1-9, RFC5040-7.2-8, RFC5040-7.2-9
        let offset = address.checked_sub(entry.iova).ok_or(AccessError::Bounds)?;
        if offset.checked_add(length).is_none_or(|end| end > entry.length) {
            return Err(AccessError::Bounds);
        }
        self.address = if entry.kind == Kind::Null {
            let null = nothing::null().filter(|_| length <= NULL_LENGTH).ok_or(AccessError::Bounds)?;
            if rights.contains(Access::LOCAL_WRITE) { null.sink } else { null.zeros }
        } else {
            entry.address + offset as usize
        };
        self.length = length as usize;
        Ok(self)
    }

    /// Bytes in the span.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The bytes, if no thread changes them while a request in flight reads them: a transport that checksums
    /// its payload need not copy them.
    pub fn immutable(&self) -> Option<&[u8]> {
        // SAFETY: we are counted as a user, or waited for as one, so no thread writes the entry.
        let entry = unsafe { self.slot.entry.get() };
        if entry.kind != Kind::Immutable {
            return None;
        }
        // SAFETY: the owner of the region has promised that they are mapped, and that no thread writes to
        // them while a request reads them; the span lies inside.
        Some(unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) })
    }

    /// Copies `source` to the bytes from `offset` on; the last word becomes visible last.
    ///
    /// # Panics
    /// If the range passes the end of the span: a mistake in the transport.
    pub fn write(&self, offset: usize, source: &[u8]) -> std::result::Result<(), Fault> {
        assert!(offset <= self.length && source.len() <= self.length - offset, "write past the span");
        // SAFETY: the range lies inside what the program registered, with the rights that the opener asked
        // for.
        unsafe { copy::copy_to(self.address + offset, source) }
    }

    /// Fills the span with bytes of `source` from `from` on; the last word becomes visible last.
    ///
    /// # Panics
    /// If there are fewer: a mistake in the transport.
    pub fn place(&self, source: &Source<'_>, from: usize) -> std::result::Result<(), CopyError> {
        // SAFETY: as in `write`.
        unsafe { source.copy_to(self.address, from, self.length) }
    }

    /// Copies the bytes from `offset` on into `target`.
    ///
    /// # Panics
    /// If the range passes the end of the span: a mistake in the transport.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> std::result::Result<(), Fault> {
        assert!(offset <= self.length && target.len() <= self.length - offset, "read past the span");
        // SAFETY: as in `write`.
        unsafe { copy::copy_from(target, self.address + offset) }
    }

    /// Whether all of it can be read: a look at each page.
    pub fn is_readable(&self) -> bool {
        let mut byte = [0];
        let last = self.length.saturating_sub(1);
        (0..self.length)
            .step_by(LEAST_PAGE)
            .chain([last].into_iter().filter(|_| self.length > 0))
            .all(|offset| self.read(offset, &mut byte).is_ok())
    }

    /// Whether the system says that all of it can be written. True where the system does not say.
    pub fn may_be_written(&self) -> bool {
        process::may_be_copied(self.address, self.length as u64, true) || !process::tells_protection()
    }

    /// Adds to the 8 bytes of the span atomically; returns what was there. The span must be 8 aligned bytes.
    pub fn fetch_add(&self, value: u64) -> std::result::Result<u64, Fault> {
        assert!(self.length == 8 && self.address.is_multiple_of(8), "atomics are on 8 aligned bytes");
        // SAFETY: as in `write`.
        unsafe { copy::fetch_add(self.address, value) }
    }

    /// Swaps the 8 bytes of the span if they equal `compare`; returns what was there. The span must be 8
    /// aligned bytes.
    // IB-RC-RSP-41, IB-RC-RSP-42
    pub fn compare_swap(&self, compare: u64, swap: u64) -> std::result::Result<u64, Fault> {
        assert!(self.length == 8 && self.address.is_multiple_of(8), "atomics are on 8 aligned bytes");
        // SAFETY: as in `write`.
        unsafe { copy::compare_swap(self.address, compare, swap) }
    }

    /// The part of the span from `offset` on, at most `length` bytes, for a system call that is made while
    /// the span lives. The kernel checks the address again and answers EFAULT.
    pub fn iovec(&self, offset: usize, length: usize) -> libc::iovec {
        assert!(offset <= self.length && length <= self.length - offset, "iovec past the span");
        libc::iovec { iov_base: (self.address + offset) as *mut libc::c_void, iov_len: length }
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.announced {
            // Release: all that it was announced for has been done.
            Some(announced) => announced.store(0, Ordering::Release),
            None => self.slot.leave(),
        }
        if let Some(under) = self.under {
            under.leave();
        }
    }
}
