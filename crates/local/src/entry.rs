//! An entry of a process's table: a name and some words, there or not.
//!
//! Its owner changes the words only while the entry is withdrawn and nobody has it announced, so a reader that has announced it and then found
//! it published reads words of one publication, and may use what they stand for until it takes the announcement back.

use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Words that an entry carries.
pub const WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// What an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memory key.
    Key,
    /// A queue pair.
    Pair,
}

/// A cache line of the table. All zeros: withdrawn.
#[derive(Default)]
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Entry {
    /// Zero, or [`published`].
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The state of an entry under this name.
#[inline]
fn published(name: u32) -> u64 {
    u64::from(name) << 32 | 1
}

impl Entry {
    /// Puts words there, under a name. It is withdrawn, and nobody has it announced.
    pub(crate) fn publish(&self, name: u32, words: [u64; WORDS]) {
        debug_assert_eq!(self.state.load(Relaxed), 0, "the entry is there already");
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Relaxed);
        }
        // Release: who sees it sees its words.
        self.state.store(published(name), Release);
    }

    /// From now on it is not there for who looks. Who has looked may still use it.
    pub(crate) fn withdraw(&self) {
        self.state.store(0, Relaxed);
    }

    /// Whether just these words are there under a name.
    #[inline(always)]
    pub(crate) fn is(&self, name: u32, words: &[u64; WORDS]) -> bool {
        let state = self.state.load(Acquire);
        let difference = (0..WORDS).map(|index| self.words[index].load(Relaxed) ^ words[index]);
        state == published(name) && difference.fold(0, |all, one| all | one) == 0
    }

    /// What is there under a name.
    #[inline]
    pub(crate) fn get(&self, name: u32) -> Option<[u64; WORDS]> {
        (self.state.load(Acquire) == published(name))
            .then(|| std::array::from_fn(|index| self.words[index].load(Relaxed)))
    }
}
