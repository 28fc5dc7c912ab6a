//! Memory that peers reach.

use super::{ProtectionDomain, RemoteMemory, Segment, resolve};
use crate::Result;
use adverb_core::memory::Access;
use adverb_core::region::Pages;
use bitflags::bitflags;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

bitflags! {
    /// The rights of peers: with a [`MemoryRegion`], or over a [`QueuePair`](crate::QueuePair). A request must be permitted by both.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// RDMA Read.
        const READ = 1;
        /// RDMA Write.
        const WRITE = 1 << 1;
        /// Atomic operations.
        const ATOMIC = 1 << 2;
    }
}

impl Rights {
    pub(crate) fn access(self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, self.contains(Self::READ));
        access.set(Access::REMOTE_WRITE, self.contains(Self::WRITE));
        access.set(Access::REMOTE_ATOMIC, self.contains(Self::ATOMIC));
        access
    }
}

/// Registered bytes that peers may read, write or update at any moment, as far as its [`Rights`] go, without this program taking
/// part. Clones are the same region; peers are refused from the moment when the last clone is dropped.
///
/// Since the bytes may change under the program's eyes there is no `&[u8]` of them: they are copied in and out, or accessed as
/// atomic words. Bytes that a peer writes become visible in ascending order within one message, and everything of an earlier message
/// before anything of a later one. So a program that sees the last word (with [`Ordering::Acquire`]) sees all before it. Thread-safe.
///
/// ```
/// use adverb::Rights;
/// use std::sync::atomic::Ordering;
///
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let region = domain.memory_region(4096, Rights::READ | Rights::ATOMIC)?;
/// region.write(100, b"peers may read this");
/// region.words()[0].store(42, Ordering::Release);
/// assert_eq!(region.to_vec(100..105), b"peers");
///
/// // What a peer needs to know, to be sent to it somehow:
/// let token = region.remote().to_bytes();
/// assert_eq!(token.len(), adverb::RemoteMemory::BYTES);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryRegion {
    allocation: Arc<Pages>,
    rights: Rights,
}

impl MemoryRegion {
    pub(super) fn new(domain: &ProtectionDomain, length: usize, rights: Rights) -> Result<Self> {
        let allocation = Pages::for_peers(&domain.core, length, Access::LOCAL_WRITE | rights.access())?;
        Ok(Self { allocation, rights })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.allocation.length()
    }

    /// Whether there are none: never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What peers may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The token by which peers name the region: send it to those who may use it.
    pub fn remote(&self) -> RemoteMemory {
        let address = self.allocation.start().as_ptr() as u64;
        RemoteMemory::new(address, self.len() as u64, self.allocation.key())
    }

    /// Part of the region, as the local bytes of a request of this side.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Segment {
        let (start, length) = resolve(range, self.len());
        Segment::of_region(&self.allocation, start, length)
    }

    /// The bytes as atomic words of 8, in the machine's byte order; the last word may have bytes past [`MemoryRegion::len`].
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the pages are live as long as `self`, initialised, aligned, and mapped up to a multiple of 8. Nothing in this
        // program accesses them but through these atomic words; the engine's copies are not Rust accesses.
        unsafe {
            let words = self.allocation.start().as_ptr().cast::<AtomicU64>();
            std::slice::from_raw_parts(words, self.len().div_ceil(8))
        }
    }

    /// Copies the bytes from `offset` on into `target`. A peer that writes meanwhile may be seen half way, never within an aligned
    /// word of 8.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        resolve(offset..offset.saturating_add(target.len()), self.len());
        let words = self.words();
        let mut at = offset;
        let mut rest = target;
        while !rest.is_empty() {
            let inside = at % 8;
            let count = rest.len().min(8 - inside);
            let (part, others) = rest.split_at_mut(count);
            let word = words[at / 8].load(Ordering::Acquire).to_ne_bytes();
            part.copy_from_slice(&word[inside..inside + count]);
            rest = others;
            at += count;
        }
    }

    /// Copies `source` to the bytes from `offset` on, in ascending order. Nothing beside them is touched, even if a peer changes
    /// their neighbours meanwhile.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn write(&self, offset: usize, source: &[u8]) {
        resolve(offset..offset.saturating_add(source.len()), self.len());
        let words = self.words();
        let mut at = offset;
        let mut rest = source;
        while !rest.is_empty() {
            let inside = at % 8;
            let count = rest.len().min(8 - inside);
            let (part, others) = rest.split_at(count);
            if count == 8 {
                let mut word = [0; 8];
                word.copy_from_slice(part);
                words[at / 8].store(u64::from_ne_bytes(word), Ordering::Release);
            } else {
                let merge = |old: u64| {
                    let mut word = old.to_ne_bytes();
                    word[inside..inside + count].copy_from_slice(part);
                    Some(u64::from_ne_bytes(word))
                };
                let _ = words[at / 8].fetch_update(Ordering::AcqRel, Ordering::Acquire, merge);
            }
            rest = others;
            at += count;
        }
    }

    /// A copy of the bytes of `range`.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Vec<u8> {
        let (start, length) = resolve(range, self.len());
        let mut bytes = vec![0; length];
        self.read(start, &mut bytes);
        bytes
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("length", &self.len()).field("rights", &self.rights).finish()
    }
}
