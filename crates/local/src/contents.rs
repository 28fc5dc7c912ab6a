//! What stands in a table, and how it is written and read.

use crate::entry::{Entry, Kind, Stamp, WORDS};
use crate::layout::Line;
use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Entries for memory keys.
pub const KEYS: usize = if cfg!(loom) {
    1
} else if cfg!(miri) {
    64
} else {
    1 << 20
};
/// Entries for queue pairs.
pub const PAIRS: usize = if cfg!(loom) {
    2
} else if cfg!(miri) {
    32
} else {
    1 << 18
};
/// Words about the whole table.
pub const SECRETS: usize = 4;

#[derive(Default)]
#[cfg_attr(not(loom), repr(C, align(4096)))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) secrets: [AtomicU64; SECRETS],
    /// No queue pair has been published at this index, or behind it.
    pub(crate) pairs_end: AtomicU64,
}

/// The whole memory. All zeros but for the header: nothing is published.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct Contents {
    pub(crate) header: Header,
    keys: [Entry; KEYS],
    pairs: [Entry; PAIRS],
    /// What the queue pair at each index has taken in from its peer.
    taken: [Line<AtomicU64>; PAIRS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 4096 && size_of::<Contents>() == 4096 + 64 * (KEYS + 2 * PAIRS));

impl Contents {
    #[inline]
    fn entries(&self, kind: Kind) -> &[Entry] {
        match kind {
            Kind::Key => &self.keys,
            Kind::Pair => &self.pairs,
        }
    }

    /// For [`Table::publish`](crate::Table::publish).
    pub(crate) fn publish(&self, kind: Kind, index: usize, name: u32, words: [u64; WORDS]) {
        if kind == Kind::Pair {
            self.header.pairs_end.fetch_max(index as u64 + 1, Relaxed);
        }
        self.entries(kind)[index].publish(name, words);
    }

    /// For [`Table::withdraw`](crate::Table::withdraw).
    pub(crate) fn withdraw(&self, kind: Kind, index: usize) {
        self.entries(kind)[index].withdraw();
    }

    /// For [`Foreign::get`](crate::Foreign::get).
    #[inline]
    pub(crate) fn get(&self, kind: Kind, index: usize, name: u32) -> Option<(Stamp, [u64; WORDS])> {
        self.entries(kind).get(index)?.get(name)
    }

    /// For [`Foreign::stands`](crate::Foreign::stands).
    #[inline]
    pub(crate) fn stands(&self, kind: Kind, index: usize, stamp: Stamp) -> bool {
        self.entries(kind).get(index).is_some_and(|entry| entry.is(stamp))
    }

    /// For [`Table::tell_taken`](crate::Table::tell_taken).
    #[inline]
    pub(crate) fn tell_taken(&self, index: usize, count: u64) {
        // Release: a process that sees the count sees the bytes that were taken in before it.
        self.taken[index].0.store(count, Release);
    }

    /// For [`Foreign::taken`](crate::Foreign::taken).
    #[inline]
    pub(crate) fn taken(&self, index: usize) -> u64 {
        self.taken.get(index).map_or(0, |taken| taken.0.load(Acquire))
    }

    /// For [`Foreign::find`](crate::Foreign::find).
    pub(crate) fn find(&self, name: u32) -> Option<usize> {
        let end = self.header.pairs_end.load(Relaxed).min(PAIRS as u64) as usize;
        (0..end).find(|index| self.get(Kind::Pair, *index, name).is_some())
    }
}
