//! Memory that the engine provides: device memory, mappings of descriptors, and the memory behind a null
//! region.

use super::{MemoryRegion, ProtectionDomain};
use crate::device::{Context, Device, Seat};
use crate::error::{Error, Result};
use crate::export::Watch;
use crate::memory::moved::{InChild, Own, Place, View};
use crate::memory::{self, Access, Mapping};
use crate::users::DependentCount;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Memory that a region keeps while it is registered.
pub(crate) enum Backing {
    /// The program's own pages.
    Program,
    /// The engine's own pages, which no thread changes while a request in flight reads them.
    Immutable,
    /// The null memory, which stays for ever.
    Null,
    /// The engine's own pages, which peers map from here.
    Own(Place),
    /// Device memory.
    Device(Arc<DeviceMemory>),
    /// Pages of another process, whose end is watched for.
    Imported(#[expect(dead_code, reason = "held for its end")] View, Arc<Watch>),
    /// A mapping of a descriptor.
    Mapped(#[expect(dead_code, reason = "held for its end")] Mapping),
}

/// Device memory (ibv_alloc_dm(3)): here ordinary memory that belongs to the engine, which programs reach by
/// copies and peers by regions. A child of fork shares what its parent allocated, and may allocate its own.
pub struct DeviceMemory {
    seat: Seat,
    number: u32,
    pages: Pages,
    length: usize,
    users: DependentCount,
}

/// Where the device memory lies.
enum Pages {
    /// Where peers of this host can map it.
    Own(Own),
    /// Where only the kernel gets at it.
    Anonymous(Mapping),
}

impl Pages {
    fn new(device: &Device, length: usize) -> Result<Self> {
        if let Some(own) = Own::new(device.transport().has_peers_that_map(), length, InChild::Same) {
            return Ok(Self::Own(own));
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        Mapping::new(length, protection, flags, -1, 0).map(Self::Anonymous)
    }

    fn address(&self) -> usize {
        match self {
            Self::Own(own) => own.address(),
            Self::Anonymous(mapping) => mapping.address,
        }
    }
}

/// Offsets and lengths of copies are multiples of this, as adapters want it.
const GRAIN: u64 = 4;

impl DeviceMemory {
    /// Allocates `length` bytes, `number` being the front end's name for them.
    ///
    /// # Errors
    /// EINVAL for no bytes, or an alignment beyond that of pages; EOPNOTSUPP if the device has none; ENOMEM
    /// when it has not so much left.
    pub fn new(context: &Arc<Context>, length: u64, log_alignment: u32, number: u32) -> Result<Arc<Self>> {
        let most = context.attributes().max_dm_size;
        if most == 0 {
            return Err(Error::unsupported(format!("{} has no device memory", context.device().name())));
        }
        if length == 0 || log_alignment > 12 {
            return Err(Error::invalid(format!(
                "{length} bytes of device memory, aligned to 2^{log_alignment}: at least 1, and at most 2^12 are allowed"
            )));
        }
        let used = &context.device().device_memory;
        let enter = |used: u64| used.checked_add(length).filter(|sum| *sum <= most);
        if used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_err() {
            return Err(Error::exhausted(format!("{length} bytes: the device has {most} bytes in all")));
        }
        let pages = Pages::new(context.device(), length as usize).inspect_err(|_| {
            used.fetch_sub(length, Ordering::Relaxed);
        })?;
        let memory = Arc::new(Self {
            seat: Seat::take(context),
            number,
            pages,
            length: length as usize,
            users: DependentCount::new(),
        });
        // In a child of fork the lock may be one that a thread of the parent held.
        if context.is_here() {
            context.shared().device_memory.insert(number, Arc::downgrade(&memory));
        }
        Ok(memory)
    }

    /// The length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The front end's name for it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Address of `length` bytes at `offset`.
    ///
    /// # Errors
    /// EFAULT for bytes that are not there; EINVAL for an offset or length that is not a multiple of 4.
    fn place(&self, offset: u64, length: usize) -> Result<usize> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.length as u64) {
            let what = format!("{length} bytes at {offset}: the device memory has {}", self.length);
            return Err(Error::new(libc::EFAULT, what));
        }
        if !offset.is_multiple_of(GRAIN) || !(length as u64).is_multiple_of(GRAIN) {
            return Err(Error::invalid(format!("{length} bytes at {offset}: not multiples of {GRAIN}")));
        }
        Ok(self.pages.address() + offset as usize)
    }

    /// Where peers map `length` bytes at `address` from, if they can.
    pub(super) fn lends(&self, address: usize, length: usize) -> Option<Place> {
        match &self.pages {
            Pages::Own(own) => own.place(address, length),
            Pages::Anonymous(_) => None,
        }
    }

    /// Copies into it.
    ///
    /// # Errors
    /// EFAULT for bytes that are not there; EINVAL for an offset or length that is not a multiple of 4.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let address = self.place(offset, source.len())?;
        // SAFETY: inside the mapping, which peers may change as well.
        unsafe { memory::copy_to(address, source) }.map_err(|_| Error::new(libc::EFAULT, "device memory"))
    }

    /// Copies out of it.
    ///
    /// # Errors
    /// As [`DeviceMemory::write`].
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let address = self.place(offset, target.len())?;
        // SAFETY: as in `write`.
        unsafe { memory::copy_from(target, address) }.map_err(|_| Error::new(libc::EFAULT, "device memory"))
    }

    /// Registers a part of it (ibv_reg_dm_mr(3)).
    ///
    /// # Errors
    /// EINVAL for bytes that are not there, and for access without [`Access::ZERO_BASED`], as the kernel has
    /// it; else as [`MemoryRegion::register`].
    pub fn register(
        self: &Arc<Self>,
        domain: &Arc<ProtectionDomain>,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<Arc<MemoryRegion>> {
        if offset.checked_add(length).is_none_or(|end| end > self.length as u64) {
            return Err(Error::invalid(format!(
                "{length} bytes at {offset}: the device memory has {}",
                self.length
            )));
        }
        if !access.contains(Access::ZERO_BASED) {
            return Err(Error::invalid("regions of device memory are zero-based (IBV_ACCESS_ZERO_BASED)"));
        }
        let address = self.pages.address() + offset as usize;
        MemoryRegion::backed(domain, address, length, 0, access, Backing::Device(self.clone()))
    }

    /// Regions of it.
    pub(crate) fn users(&self) -> &DependentCount {
        &self.users
    }

    /// The program frees it (ibv_free_dm(3)).
    ///
    /// # Errors
    /// EBUSY while regions of it are registered.
    pub fn retire(&self) -> Result<()> {
        if self.seat.context().is_here() && self.users.count() > 0 {
            return Err(Error::busy("regions of the device memory are registered: deregister them first"));
        }
        self.leave();
        Ok(())
    }

    /// Leaves everything that counts it, once.
    fn leave(&self) {
        if self.seat.leave() {
            if self.seat.context().is_here() {
                self.seat.context().shared().device_memory.remove(&self.number);
            }
            self.seat.context().device().device_memory.fetch_sub(self.length as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Registers `length` bytes at `offset` of the file of `descriptor` (ibv_reg_dmabuf_mr(3)): a DMA buffer that
/// the CPU can reach, or any other file that can be mapped.
///
/// # Errors
/// EOPNOTSUPP for a descriptor that cannot be mapped, as a device without such buffers answers; EINVAL for
/// bytes that are not there; and else as [`MemoryRegion::register`].
pub fn register_descriptor(
    domain: &Arc<ProtectionDomain>,
    descriptor: RawFd,
    offset: u64,
    length: u64,
    iova: u64,
    access: Access,
) -> Result<Arc<MemoryRegion>> {
    domain.context().born.check()?;
    // SAFETY: asks for the size; a file without a position, such as a DMA buffer of old kernels, answers with
    // an error.
    let size = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
    // PRACTICE-CALL-3
    let cannot = |why: &dyn std::fmt::Display| {
        Error::unsupported(format!(
            "descriptor {descriptor} cannot be mapped, so its memory cannot be registered: {why}"
        ))
    };
    if size < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) {
        return Err(cannot(&"it is not open"));
    }
    let past = |end: u64| size >= 0 && end > size as u64;
    if length == 0 || offset.checked_add(length).is_none_or(past) {
        return Err(Error::invalid(format!("{length} bytes at {offset}: the buffer has {size}")));
    }
    // SAFETY: sysconf takes a plain number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let skipped = offset % page;
    let writes = if access.contains(Access::LOCAL_WRITE) { libc::PROT_WRITE } else { 0 };
    let mapping = Mapping::new(
        (skipped + length) as usize,
        libc::PROT_READ | writes,
        libc::MAP_SHARED,
        descriptor,
        (offset - skipped) as i64,
    );
    let mapping =
        mapping.map_err(|error| if error.errno() == libc::ENOMEM { error } else { cannot(&error) })?;
    let address = mapping.address + skipped as usize;
    MemoryRegion::backed(domain, address, length, iova, access, Backing::Mapped(mapping))
}
