//! One half's way into the segment.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::layout::{SLOT_WORDS, SLOTS, Shared, Side, Slots, Which};
use crate::membarrier::Registration;
#[cfg(loom)]
pub(crate) use crate::model::Memory;
#[cfg(not(loom))]
pub(crate) use crate::segment::Memory;
use crate::sync::{Ordering::Relaxed, Ordering::SeqCst, Word, fence};

/// The parts of a segment that a half needs, found once.
pub(crate) struct View {
    slots: NonNull<Slots>,
    own: NonNull<Side>,
    peer: NonNull<Side>,
    registered: bool,
    /// Keeps the three alive.
    _memory: Arc<Memory>,
}

// SAFETY: the pointers lead to atomic words that live as long as the memory, which any thread may use and release.
unsafe impl Send for View {}

impl View {
    /// The view of side `which`, into the ring that `producer` writes.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        which: Which,
        producer: Which,
        registration: Registration,
    ) -> View {
        let shared: &Shared = memory.shared();
        let own = &shared.sides[which as usize];
        own.flags.0.membarrier.store(registration.is_taken().into(), Relaxed);
        // See `sleep::raise`.
        fence(SeqCst);
        View {
            slots: NonNull::from(&shared.rings[producer as usize]),
            own: NonNull::from(own),
            peer: NonNull::from(&shared.sides[which.other() as usize]),
            registered: registration.is_taken(),
            _memory: memory.clone(),
        }
    }

    /// What this side says.
    #[inline]
    pub(crate) fn own(&self) -> &Side {
        // SAFETY: a part of the segment, which `_memory` keeps; all atomics.
        unsafe { self.own.as_ref() }
    }

    /// What the other side says.
    #[inline]
    pub(crate) fn peer(&self) -> &Side {
        // SAFETY: as in `own`.
        unsafe { self.peer.as_ref() }
    }

    /// Whether this side is registered for membarrier(2).
    #[inline]
    pub(crate) fn is_registered(&self) -> bool {
        self.registered
    }

    #[inline]
    fn words(&self) -> &[Word; SLOTS * SLOT_WORDS] {
        // SAFETY: as in `own`.
        unsafe { &self.slots.as_ref().0 }
    }

    /// The first word of the slot at a position, which counts slots since the beginning.
    #[inline]
    pub(crate) fn ready(&self, position: u64) -> &Word {
        &self.words()[index(position) * SLOT_WORDS]
    }

    /// The words behind the ready word of a record of `len` bytes.
    #[inline]
    pub(crate) fn payload(&self, position: u64, len: usize) -> &[Word] {
        &self.words()[index(position) * SLOT_WORDS + 1..][..len.div_ceil(8)]
    }
}

/// Where in the ring a position is, in slots.
#[inline]
pub(crate) fn index(position: u64) -> usize {
    position as usize % SLOTS
}
