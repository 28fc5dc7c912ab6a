//! An entry of a process's table: a name and some words, there or not.
//!
//! Its owner changes the words only while the entry is withdrawn and no process has it announced. A reader
//! that has announced it and then found it published reads words of one publication. It may use the memory
//! that they stand for until it takes the announcement back.

use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Words that an entry carries.
pub const WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory key.
    Key,
    /// A queue pair.
    Pair,
}

/// Which publication of an entry it is. An entry has had 2^31 others before a stamp comes again.
///
/// A reader that has found words and their stamp, and finds that [the stamp stands](crate::Foreign::stands)
/// later, knows the words for those of that publication, whenever and however it has read them: as long as a
/// publication stands no process writes the words, and another publication has another stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

/// The lowest bit of a state: the entry is there.
const PUBLISHED: u64 = 1;
/// Bits of a state that count publications, and what they count by.
const COUNT: u64 = u32::MAX as u64 - 1;
const ONE_MORE: u64 = 2;

/// A cache line of the table. All zeros: never published.
#[derive(Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Entry {
    /// The name, in the upper half; a count of publications; and [`PUBLISHED`], or not.
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Entry {
    /// Puts words into the entry, under a name. The entry is withdrawn, and no process has it announced.
    pub(crate) fn publish(&self, name: u32, words: [u64; WORDS]) {
        let before = self.state.load(Relaxed);
        debug_assert_eq!(before & PUBLISHED, 0, "the entry is there already");
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Relaxed);
        }
        let count = before.wrapping_add(ONE_MORE) & COUNT;
        // Release: a process that sees the state sees the words.
        self.state.store(u64::from(name) << 32 | count | PUBLISHED, Release);
    }

    /// Withdraws the entry: a process that looks from now on does not find it. A process that has looked
    /// before may still use it.
    pub(crate) fn withdraw(&self) {
        self.state.store(self.state.load(Relaxed) & !PUBLISHED, Relaxed);
    }

    /// Whether this publication stands.
    #[inline(always)]
    pub(crate) fn is(&self, stamp: Stamp) -> bool {
        self.state.load(Acquire) == stamp.0
    }

    /// The words under a name, if the entry is there, and which publication they are of.
    #[inline]
    pub(crate) fn get(&self, name: u32) -> Option<(Stamp, [u64; WORDS])> {
        let state = self.state.load(Acquire);
        (state & PUBLISHED != 0 && (state >> 32) as u32 == name)
            .then(|| (Stamp(state), std::array::from_fn(|index| self.words[index].load(Relaxed))))
    }
}
