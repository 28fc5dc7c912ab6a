//! One half's way into the segment.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::layout::{Claims, SLOT_WORDS, SLOTS, SegmentLayout, Side, Slots, Which};
use crate::membarrier::{self, Registration};
use crate::ring::words;
use crate::sync::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, Word, fence, light_fence};

#[cfg(not(loom))]
type Memory = crate::memory::MappedMemory<SegmentLayout>;
#[cfg(loom)]
type Memory = SegmentLayout;

/// The words that the two sides of a segment write, as one of the sides sees them.
#[derive(Clone)]
pub(crate) struct Sides {
    own: NonNull<Side>,
    peer: NonNull<Side>,
    /// Keeps the two alive.
    _memory: Arc<Memory>,
}

// SAFETY: the pointers lead to atomic words that live as long as the memory, which any thread may use and
// release.
unsafe impl Send for Sides {}
// SAFETY: as above.
unsafe impl Sync for Sides {}

impl Sides {
    /// Seen by side `which`.
    pub(crate) fn new(memory: &Arc<Memory>, which: Which, registration: Registration) -> Sides {
        let shared: &SegmentLayout = memory;
        let own = &shared.sides[which as usize];
        own.flags.0.membarrier.store(registration.is_taken().into(), Relaxed);
        // See `heavy_fence`.
        fence(SeqCst);
        Sides {
            own: NonNull::from(own),
            peer: NonNull::from(&shared.sides[which.other() as usize]),
            _memory: memory.clone(),
        }
    }

    /// The words that this side writes.
    #[inline]
    pub(crate) fn own(&self) -> &Side {
        // SAFETY: a part of the segment, which `_memory` keeps; all atomics.
        unsafe { self.own.as_ref() }
    }

    /// The words that the other side writes.
    #[inline]
    pub(crate) fn peer(&self) -> &Side {
        // SAFETY: as in `own`.
        unsafe { self.peer.as_ref() }
    }

    /// Whether the rare side of a fence calls membarrier(2), and the busy one does nothing. Both sides must
    /// have said so. (A peer that changes our word for it harms itself alone: we tell it too little.)
    #[inline]
    fn has_membarrier(&self) -> bool {
        let says = |side: &Side| side.flags.0.membarrier.load(Relaxed) != 0;
        says(self.own()) && says(self.peer())
    }

    /// The fence of the side that stores and then looks often. With the other side's [`heavy_fence`] between
    /// its store and its look, one of the two at least sees what the other has stored.
    #[inline]
    pub(crate) fn light_fence(&self) {
        if self.has_membarrier() {
            light_fence();
        } else {
            fence(SeqCst);
        }
    }
}

/// The fence of the side that stores and then looks seldom, for any number of segments. `false` if it cannot
/// be promised this time: all has to be tried again.
#[cold]
pub(crate) fn heavy_fence<'a>(all: impl Iterator<Item = &'a Sides> + Clone) -> bool {
    // A busy side that passes a light fence only has passed a full one since it said that it is registered
    // (`Sides::new`). If that fence came after this one, the busy side sees our stores. If it came before,
    // this side sees here that the other is registered.
    fence(SeqCst);
    if !all.clone().any(Sides::has_membarrier) || membarrier::barrier() {
        return true;
    }
    // The kernel has come to refuse it, as under a seccomp filter that was put in place later. From now on
    // both use full fences; the other may be between its store and its look now, and so only the next attempt
    // counts.
    for sides in all {
        sides.own().flags.0.membarrier.store(0, Relaxed);
    }
    false
}

/// One direction of a segment.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) sides: Sides,
    /// Lives as long as the sides.
    slots: NonNull<Slots>,
    claims: NonNull<Claims>,
}

// SAFETY: the pointers lead to atomic words that live as long as the sides, which any thread may use and
// release.
unsafe impl Send for View {}
// SAFETY: as above; nothing in it changes but those words.
unsafe impl Sync for View {}

impl View {
    /// The view of a side into the ring that `producer` writes.
    pub(crate) fn new(sides: Sides, memory: &Arc<Memory>, producer: Which) -> View {
        let shared: &SegmentLayout = memory;
        let (slots, claims) = (&shared.rings[producer as usize], &shared.claims[producer as usize]);
        View { sides, slots: NonNull::from(slots), claims: NonNull::from(claims) }
    }

    #[inline]
    fn words(&self) -> &[Word; SLOTS * SLOT_WORDS] {
        // SAFETY: a part of the segment, which `sides` keeps; all atomics.
        unsafe { &self.slots.as_ref().0 }
    }

    /// Has the processor fetch the slot at a position, for writing.
    #[inline]
    pub(crate) fn fetch_for_writing(&self, position: u64) {
        #[cfg(not(any(loom, miri)))]
        let slot = std::ptr::from_ref(self.ready(position));
        #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
        // SAFETY: it changes nothing, and cannot fault; processors that do not know it take it for no
        // operation.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) slot, options(nostack, preserves_flags, readonly));
        }
        #[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) slot, options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(loom, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = position;
    }

    /// Has the processor fetch the slot at a position, for reading.
    #[inline(always)]
    pub(crate) fn fetch_for_reading(&self, position: u64) {
        #[cfg(not(any(loom, miri)))]
        let slot = std::ptr::from_ref(self.ready(position));
        #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
        // SAFETY: it changes nothing, and cannot fault.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) slot, options(nostack, preserves_flags, readonly));
        }
        #[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) slot, options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(loom, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = position;
    }

    /// The first word of the slot at a position, which counts slots since the beginning.
    #[inline]
    pub(crate) fn ready(&self, position: u64) -> &Word {
        &self.words()[index(position) * SLOT_WORDS]
    }

    /// All words from the slot at a position to the end of the ring: the ready word, and what is behind it.
    #[inline(always)]
    pub(crate) fn from(&self, position: u64) -> &[Word] {
        &self.words()[index(position) * SLOT_WORDS..]
    }

    /// The word that says which side may use the memory that the record at a position speaks of.
    #[inline]
    pub(crate) fn claim(&self, position: u64) -> &AtomicU64 {
        // SAFETY: as in `words`.
        let claims = unsafe { self.claims.as_ref() };
        &claims.0[index(position)]
    }

    /// The words behind the ready word of a record of `len` bytes.
    #[inline(always)]
    pub(crate) fn payload(&self, position: u64, len: usize) -> &[Word] {
        &self.words()[index(position) * SLOT_WORDS + 1..][..words(len)]
    }
}

/// Where in the ring a position is, in slots.
#[inline]
pub(crate) fn index(position: u64) -> usize {
    position as usize % SLOTS
}
