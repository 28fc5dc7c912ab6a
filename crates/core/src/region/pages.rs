//! Pages that are mapped, registered, and unmapped when no thread and no peer can touch them any more.

use super::backing::Backing;
use super::{MemoryRegion, ProtectionDomain};
use crate::error::{Error, Result};
use crate::memory::moved::{InChild, Own};
use crate::memory::{self, Access, Fault};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Registered pages of an owner in this process other than the program: the Rust API, rsockets. All zero at
/// first. Thread-safe.
pub struct Pages {
    start: NonNull<u8>,
    length: usize,
    region: Arc<MemoryRegion>,
    /// Behind the region, which ends first.
    _memory: Memory,
}

/// Where the bytes of an allocation lie.
enum Memory {
    /// Where peers of this host can map them.
    Own(Own),
    /// Private memory.
    Private(Private),
}

/// Private pages of a process and its children.
struct Private {
    start: *mut libc::c_void,
    length: usize,
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: our own mapping. No thread touches it any more: no buffer or region of the program refers
        // to it (each holds the allocation), and deregistration has ended the engine's uses of it.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

// SAFETY: the pages belong to the allocation alone, wherever it is; how their bytes are accessed is up to
// `Buffer` (exclusively) and `MemoryRegion` (atomically).
unsafe impl Send for Pages {}
// SAFETY: as above; the allocation itself hands out addresses only.
unsafe impl Sync for Pages {}

impl Pages {
    /// `length` bytes that are registered for `access`, and that processes of this host map, where they are
    /// let in.
    ///
    /// # Errors
    /// As [`Pages::new`].
    pub fn for_peers(domain: &Arc<ProtectionDomain>, length: usize, access: Access) -> Result<Arc<Self>> {
        match Own::new(domain.context().device().transport().has_peers_that_map(), length, InChild::Copy) {
            Some(own) => {
                let place = own.place(own.address(), length);
                let backing = place.map_or(Backing::Program, Backing::Own);
                Self::registered(domain, length, access, backing, Memory::Own(own))
            }
            None => Self::new(domain, length, access),
        }
    }

    /// `length` bytes that are registered for `access`.
    ///
    /// # Errors
    /// EINVAL for no bytes or more than the device's `max_mr_size`; ENOMEM when memory or keys have run out.
    pub fn new(domain: &Arc<ProtectionDomain>, length: usize, access: Access) -> Result<Arc<Self>> {
        Self::backed(domain, length, access, Backing::Program)
    }

    /// `length` bytes that only requests of this side use, and that no thread changes while a request reads
    /// them.
    ///
    /// # Errors
    /// As [`Pages::new`].
    ///
    /// # Safety
    /// So it is: bytes that a request in flight names are written neither by [`Pages::write`] and
    /// [`Pages::copy_in`] nor by another request.
    pub unsafe fn immutable(domain: &Arc<ProtectionDomain>, length: usize) -> Result<Arc<Self>> {
        Self::backed(domain, length, Access::empty(), Backing::Immutable)
    }

    fn backed(
        domain: &Arc<ProtectionDomain>,
        length: usize,
        access: Access,
        backing: Backing,
    ) -> Result<Arc<Self>> {
        // Whole words, so that the last bytes can be accessed as part of one.
        let mapped = length.max(1).checked_next_multiple_of(8);
        let mapped = mapped.filter(|mapped| *mapped <= isize::MAX as usize);
        let mapped = mapped
            .ok_or_else(|| Error::exhausted(format!("{length} bytes are more than the address space has")))?;
        // SAFETY: a fresh anonymous mapping somewhere; nothing that exists is touched.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if pages == libc::MAP_FAILED {
            return Err(Error::system("mmap").context(&format!("allocating {length} bytes")));
        }
        let memory = Memory::Private(Private { start: pages, length: mapped });
        Self::registered(domain, length, access, backing, memory)
    }

    fn registered(
        domain: &Arc<ProtectionDomain>,
        length: usize,
        access: Access,
        backing: Backing,
        memory: Memory,
    ) -> Result<Arc<Self>> {
        let address = match &memory {
            Memory::Own(own) => own.address(),
            Memory::Private(private) => private.start as usize,
        };
        // The pages are ours, and unmapped only after the region has been deregistered. Local requests write
        // to them only while a `Segment` in flight holds the allocation; peers only if `access` lets them in,
        // and then every access of the program is atomic.
        let region = MemoryRegion::backed(domain, address, length as u64, address as u64, access, backing)?;
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        let start = start.ok_or_else(|| Error::exhausted("no memory at a usable address"))?;
        Ok(Arc::new(Self { start, length, region, _memory: memory }))
    }

    /// Address of the first byte. Valid for reads and writes of all bytes, up to the next multiple of 8,
    /// while `self` lives.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The key of the registration.
    pub fn key(&self) -> u32 {
        self.region.key()
    }

    /// Address of the byte at `offset`, after checking that `length` bytes are there.
    fn at(&self, offset: usize, length: usize) -> usize {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        assert!(inside, "{length} bytes at {offset} of {}", self.length);
        self.start.as_ptr() as usize + offset
    }

    /// Copies the bytes from `offset` on into `target`. Bytes that a peer changes meanwhile may be seen half
    /// way.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let source = self.at(offset, target.len());
        // SAFETY: our own pages, which are mapped as long as `self`.
        let _never_fails = unsafe { memory::copy_from(target, source) };
    }

    /// Copies the bytes from `offset` on into `target`, the last eight before the others. A peer's bytes
    /// become visible in ascending order, the last word last: where that is new, so is everything before it.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn read_last_word_first(&self, offset: usize, target: &mut [u8]) {
        let before = target.len().saturating_sub(8);
        let (others, last) = target.split_at_mut(before);
        self.read(offset + before, last);
        fence(Ordering::Acquire);
        self.read(offset, others);
    }

    /// Copies `source` to the bytes from `offset` on.
    ///
    /// # Panics
    /// If the range passes the end.
    ///
    /// # Safety
    /// There is no reference to these bytes.
    pub unsafe fn write(&self, offset: usize, source: &[u8]) {
        let target = self.at(offset, source.len());
        // SAFETY: our own pages, which are mapped as long as `self`; the caller vouches that the bytes are
        // not borrowed.
        let _never_fails = unsafe { memory::copy_to(target, source) };
    }

    /// Copies `length` bytes from `offset` on to memory of the program, which may be bad.
    ///
    /// # Panics
    /// If the range passes the end.
    ///
    /// # Safety
    /// The program gave the memory at `target` to be written.
    pub unsafe fn copy_out(
        &self,
        offset: usize,
        target: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        let source = self.at(offset, length);
        // SAFETY: the source is our own; the caller vouches for the target.
        unsafe { memory::copy_between(target, source, length) }
    }

    /// Copies `length` bytes of memory of the program, which may be bad, to `offset`.
    ///
    /// # Panics
    /// If the range passes the end.
    ///
    /// # Safety
    /// There is no reference to the bytes here; the program gave the memory at `source` to be read.
    pub unsafe fn copy_in(
        &self,
        offset: usize,
        source: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        let target = self.at(offset, length);
        // SAFETY: the target is our own, not borrowed; the caller vouches for the source.
        unsafe { memory::copy_between(target, source, length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.region.deregister();
    }
}
