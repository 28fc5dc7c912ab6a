//! A ring of records with one producer and one consumer, in memory that two processes share.
//!
//! The ring is slots of 64 bytes. A record takes consecutive ones and never goes across the end; a filler
//! takes what is left there. The first word of a record is its *ready word*: its length, and a tag that says
//! which position since the beginning it stands at. It is stored last, with release ordering, and its tag is
//! never zero; the consumer looks at this word alone, so that a short record moves one cache line from core
//! to core. Before the ready word is stored, the word where the next record will begin is zeroed: what
//! carried bytes in an earlier lap is never taken for a ready word. So one slot at least is always free.
//!
//! The consumer gives slots back by a count in a line of its own, each quarter of the ring and when it finds
//! the ring empty; the producer looks at it only when it runs out of slots that it knows to be free.
//!
//! A record may speak of memory of its producer's, which the consumer reads by other means: a [`Loan`].
//! Beside the ring stands a word for each slot, by which the two agree on that ([`claim`]).

mod claim;
mod consumer;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;

pub use claim::{Loan, Loans, Withdrawal};
pub use consumer::{Consumer, Glance, Record};
pub use producer::{Producer, Slot};

/// Bytes of the longest record.
pub const MAX_RECORD: usize = crate::layout::MAX_RECORD;

use crate::layout::{SLOT_WORDS, SLOTS};

/// The other process has written to the segment what it must not. The ring cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl std::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the shared ring holds what its producer or consumer cannot have written")
    }
}

impl std::error::Error for Corrupt {}

/// The length that makes a record a filler up to the end of the ring.
const FILLER: u32 = u32::MAX;
const CAPACITY: u64 = SLOTS as u64;

/// Words of `len` bytes, rounded up.
#[inline(always)]
pub(crate) fn words(len: usize) -> usize {
    (len + 7) >> 3
}

/// Slots of a record of `len` bytes.
#[inline]
fn slots(len: usize) -> u64 {
    // With the ready word, rounded up.
    ((words(len) + SLOT_WORDS) / SLOT_WORDS) as u64
}

/// The ready word of a record of `len` bytes at a position.
#[inline]
fn ready_word(position: u64, len: u32) -> u64 {
    u64::from(len) << 32 | u64::from((position as u32) << 1 | 1)
}
