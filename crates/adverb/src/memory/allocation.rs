//! Pages that are mapped, registered, and unmapped when nobody can touch them any more.

use super::ProtectionDomain;
use crate::Result;
use adverb_core::error::Error;
use adverb_core::memory::{Access, MemoryRegion};
use std::ptr::NonNull;
use std::sync::Arc;

/// Registered pages of its own.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    length: usize,
    mapped: usize,
    region: Arc<MemoryRegion>,
}

// SAFETY: the pages belong to the allocation alone, wherever it is; how their bytes are accessed is up to `Buffer` (exclusively)
// and `MemoryRegion` (atomically).
unsafe impl Send for Allocation {}
// SAFETY: as above; the allocation itself hands out addresses only.
unsafe impl Sync for Allocation {}

impl Allocation {
    pub(crate) fn new(domain: &ProtectionDomain, length: usize, access: Access) -> Result<Arc<Self>> {
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
        // SAFETY: the pages are ours, and unmapped only after the region has been deregistered. Local requests write to them only
        // while a `Segment` in flight holds the allocation; peers only if `access` lets them in, and then every access of the
        // program is atomic.
        let region = unsafe {
            MemoryRegion::register(&domain.core, pages as usize, length as u64, pages as u64, access)
        };
        match (region, NonNull::new(pages.cast::<u8>())) {
            (Ok(region), Some(start)) => Ok(Arc::new(Self { start, length, mapped, region })),
            (region, _) => {
                // SAFETY: mapped above, and not registered.
                unsafe { libc::munmap(pages, mapped) };
                Err(region.err().unwrap_or_else(|| Error::exhausted("no memory at a usable address")))
            }
        }
    }

    /// Address of the first byte. Valid for reads and writes of all bytes, up to the next multiple of 8, while `self` lives.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn key(&self) -> u32 {
        self.region.key()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.region.deregister();
        // SAFETY: our own mapping. Nobody touches it any more: no buffer or region of the program refers to it (each holds the
        // allocation), and deregistration has ended what the engine was doing with it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}
