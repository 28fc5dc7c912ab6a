//! How the segment is laid out. Everything in it is an atomic word: the other process may change any of it at
//! any time.

use crate::sync::{AtomicU64, Word};
#[cfg(not(loom))]
use std::mem::offset_of;

/// Words of a slot: a cache line. The first word of a record's first slot is its ready word. The rest of its
/// slots carries the record's bytes.
pub(crate) const SLOT_WORDS: usize = if cfg!(loom) { 2 } else { 8 };
/// Slots of a ring, a power of two.
pub(crate) const SLOTS: usize = if cfg!(loom) { 4 } else { 256 };
/// Bytes of the longest record: with its ready word, half of the ring, so that one fits into an empty ring
/// wherever that stands.
pub(crate) const MAX_RECORD: usize = (SLOTS / 2 * SLOT_WORDS - 1) * 8;

/// Announcements that a side can have made at once.
pub(crate) const HAZARD_SLOTS: usize = if cfg!(loom) { 2 } else { 16 };

/// The first word of a segment.
#[cfg(not(loom))]
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"adverbSM");
/// Changes whenever the layout or the meaning of the segment does.
#[cfg(not(loom))]
pub(crate) const VERSION: u64 = 7;
/// Bytes of a segment.
#[cfg(not(loom))]
pub(crate) const SIZE: usize = size_of::<SegmentLayout>();

/// A value with cache lines of its own: two, because processors fetch lines in pairs.
#[derive(Default)]
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Alone<T>(pub(crate) T);

/// A value with a cache line of its own.
#[derive(Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Line<T>(pub(crate) T);

/// What one side says about itself.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Side {
    /// Looked at by the other side after each record; seldom written.
    pub(crate) flags: Alone<Flags>,
    /// How many slots of the other side's ring this side's consumer has given back since the beginning,
    /// modulo 2^64.
    pub(crate) credit: Alone<AtomicU64>,
    /// The entries of the other's table that this side uses now: see [`crate::announce`].
    pub(crate) announced: [Line<AtomicU64>; HAZARD_SLOTS],
}

/// Each is zero or one.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Flags {
    /// This side can have others pass a memory barrier, and is registered to pass those of others.
    pub(crate) membarrier: AtomicU64,
    /// This side's consumer wants its doorbell rung for the next record.
    pub(crate) sleeps: AtomicU64,
    /// This side's producer wants its doorbell rung when there is room again.
    pub(crate) waits: AtomicU64,
}

/// The slots of one direction, as words.
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub(crate) struct Slots(pub(crate) [Word; SLOTS * SLOT_WORDS]);

impl Default for Slots {
    fn default() -> Self {
        Slots(std::array::from_fn(|_| Word::default()))
    }
}

/// For each slot of a ring, which side may use the memory that the record beginning there speaks of: see
/// [`crate::ring`].
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Claims(pub(crate) [AtomicU64; SLOTS]);

impl Default for Claims {
    fn default() -> Self {
        Claims(std::array::from_fn(|_| AtomicU64::default()))
    }
}

/// The whole segment. A fresh one is all zeros but for its first two words.
#[derive(Default)]
#[repr(C)]
pub(crate) struct SegmentLayout {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Not zero once the second side is taken.
    pub(crate) opened: AtomicU64,
    /// By [`Which`].
    pub(crate) sides: [Side; 2],
    /// By the side that produces.
    pub(crate) rings: [Slots; 2],
    /// By the side that produces.
    pub(crate) claims: [Claims; 2],
}

#[cfg(not(loom))]
const _: () = assert!(SIZE == 40 * 1024);

/// Where the announcements of both sides lie in a segment, in bytes: for tests that lie there.
#[cfg(not(loom))]
pub const ANNOUNCEMENTS: [[usize; HAZARD_SLOTS]; 2] = {
    let mut places = [[0; HAZARD_SLOTS]; 2];
    let (mut side, step) = (0, size_of::<Line<AtomicU64>>());
    while side < 2 {
        let first = offset_of!(SegmentLayout, sides) + side * size_of::<Side>() + offset_of!(Side, announced);
        let mut slot = 0;
        while slot < HAZARD_SLOTS {
            places[side][slot] = first + slot * step;
            slot += 1;
        }
        side += 1;
    }
    places
};

/// A side of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Creator = 0,
    Opener = 1,
}

impl Which {
    pub(crate) fn other(self) -> Which {
        match self {
            Which::Creator => Which::Opener,
            Which::Opener => Which::Creator,
        }
    }
}
