//! Registered bytes, in pages of this crate or in memory that the program gave.

use super::program::StableMemory;
use crate::{Error, ProtectionDomain, Result};
use adverb_core::memory::Access;
use adverb_core::region::{self, Pages};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that are registered from the construction of this to its drop.
///
/// Buffers, regions and requests in flight hold it by `Arc`. The last of them ends the registration, and only
/// then are the bytes freed or given back. If one of them is leaked, the bytes stay registered, and mapped,
/// for ever. So there is no order of drops in which the engine uses freed bytes.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    length: usize,
    key: u32,
    /// Number of the protection domain.
    domain: u32,
    keeper: Keeper,
}

/// What keeps the bytes.
enum Keeper {
    /// Pages of the engine. Their own drop ends the registration before they are unmapped.
    Pages { _pages: Arc<Pages> },
    /// Memory of the program.
    Program { region: Arc<region::MemoryRegion>, memory: Option<Box<dyn Any + Send>> },
}

// SAFETY: the bytes may be used from any thread: they lie in pages of the engine, or in memory that is `Send`
// by the bound of `StableMemory`, or by the promise of `register_raw`. How they are accessed is up to
// `Buffer` (exclusively) and `MemoryRegion` (atomically).
unsafe impl Send for Allocation {}
// SAFETY: as above; a shared reference gives out addresses only, never the program's value in `keeper`.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// `length` bytes of pages that peers of this host map, all zero.
    pub(super) fn new(domain: &ProtectionDomain, length: usize, access: Access) -> Result<Arc<Self>> {
        let pages = Pages::for_peers(&domain.core, length, access)?;
        Ok(Arc::new(Self {
            start: pages.start(),
            length: pages.length(),
            key: pages.key(),
            domain: domain.core.number(),
            keeper: Keeper::Pages { _pages: pages },
        }))
    }

    /// Memory of the program, or that memory again with the reason.
    pub(super) fn of<M: StableMemory>(
        domain: &ProtectionDomain,
        memory: M,
        access: Access,
    ) -> std::result::Result<Arc<Self>, (adverb_core::error::Error, M)> {
        // In its final place before anybody takes its address: to move a box makes older pointers to its
        // bytes stale.
        let mut memory = Box::new(memory);
        let (start, length) = memory.bytes();
        // SAFETY: the value is kept until the registration has ended, and `StableMemory` promises that its
        // bytes stay where they are, readable and writable, as long as the value lives. Nobody has a
        // reference to them: `Buffer` is the only way to one, and peers have no access to it.
        match unsafe { Self::registered(domain, start, length, access) } {
            Ok(mut allocation) => {
                if let Keeper::Program { memory: place, .. } = &mut allocation.keeper {
                    *place = Some(memory);
                }
                Ok(Arc::new(allocation))
            }
            Err(error) => Err((error, *memory)),
        }
    }

    /// Bytes that somebody else keeps.
    ///
    /// # Safety
    /// The bytes stay mapped, readable and writable until this is dropped, and nobody has a Rust reference to
    /// them that these uses would break.
    pub(super) unsafe fn raw(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise.
        Ok(Arc::new(unsafe { Self::registered(domain, start, length, access)? }))
    }

    /// # Safety
    /// As [`Allocation::raw`].
    unsafe fn registered(
        domain: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> std::result::Result<Self, adverb_core::error::Error> {
        let address = start.as_ptr().expose_provenance();
        // SAFETY: the caller's promise.
        let region = unsafe {
            region::MemoryRegion::register(&domain.core, address, length as u64, address as u64, access)?
        };
        Ok(Self {
            start,
            length,
            key: region.key(),
            domain: domain.core.number(),
            keeper: Keeper::Program { region, memory: None },
        })
    }

    /// The first byte.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The key, both of this side and of peers.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Number of its protection domain.
    #[inline]
    pub(crate) fn domain(&self) -> u32 {
        self.domain
    }

    /// Bytes behind the last one, up to the next multiple of 8, are there, too, and nobody else's.
    pub(super) fn is_padded(&self) -> bool {
        matches!(self.keeper, Keeper::Pages { .. })
    }

    /// Ends the registration and gives the program its memory back.
    ///
    /// # Errors
    /// The allocation again, if somebody else holds it, too, or if the memory is of another type.
    pub(super) fn give_back<M: StableMemory>(self: Arc<Self>) -> std::result::Result<M, Arc<Self>> {
        let is_of_type = match &self.keeper {
            Keeper::Program { memory: Some(memory), .. } => memory.is::<M>(),
            _ => false,
        };
        if !is_of_type {
            return Err(self);
        }
        let mut allocation = Arc::try_unwrap(self)?;
        allocation.end();
        let memory = match &mut allocation.keeper {
            Keeper::Program { memory, .. } => memory.take(),
            Keeper::Pages { .. } => None,
        };
        match memory.map(<Box<dyn Any + Send>>::downcast::<M>) {
            Some(Ok(memory)) => Ok(*memory),
            // Looked at above.
            _ => unreachable!("memory of the type has been found"),
        }
    }

    /// Changes the access to memory of the program.
    ///
    /// # Errors
    /// The allocation again, which is as it was.
    pub(super) fn change(self: Arc<Self>, access: Access) -> Result<Arc<Self>, (Error, Arc<Self>)> {
        let busy = "other clones of the memory region, or requests in flight, use it: drop them first";
        let mut allocation = Arc::try_unwrap(self).map_err(|shared| (Error::Busy(busy.into()), shared))?;
        let changed = match &mut allocation.keeper {
            Keeper::Pages { .. } => {
                Err(Error::Unsupported("only memory that the program has registered can be changed".into()))
            }
            Keeper::Program { region, .. } => {
                let change = region::Reregistration { access: Some(access), ..Default::default() };
                // SAFETY: the same bytes; what holds for them holds whatever peers may do.
                match unsafe { region.reregister(&change) } {
                    Ok(new) => {
                        *region = new;
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                }
            }
        };
        match changed {
            Ok(()) => Ok(Arc::new(allocation)),
            Err(error) => Err((error, Arc::new(allocation))),
        }
    }

    /// When this returns, no request and no peer touches the bytes.
    fn end(&self) {
        if let Keeper::Program { region, .. } = &self.keeper {
            region.deregister();
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Before the program's value, which is dropped behind this as a field.
        self.end();
    }
}
