//! Memory that a queue pair sends from in many long messages. It is shared with the receiver, which then
//! copies without the kernel.

use crate::neighbour::NeighbourLink;
use crate::sharing::Sharing;
use adverb_core::qp::Queues;
use adverb_core::region::MemoryRegion;
use std::sync::Arc;

/// The region that a queue pair has lent last, and how often.
pub struct Lending {
    key: u32,
    times: u32,
    next: u32,
    bytes: u64,
}

impl Default for Lending {
    fn default() -> Self {
        Self { key: 0, times: 0, next: Self::FIRST, bytes: 0 }
    }
}

impl Lending {
    /// Loans of a region before the first check. Each later check is after twice as many, up to
    /// [`Lending::LAST`]: a region that cannot be shared now seldom can later.
    const FIRST: u32 = 16;
    /// No check is after more loans than this.
    const LAST: u32 = 4096;
    /// A region is moved once it was lent for this many times its length. About then, moving it costs less
    /// than copies by the kernel.
    const WORTH: u64 = 16;

    /// Counts a loan of `length` bytes of a region. Returns whether the region is to be
    /// [checked](Self::look).
    #[inline]
    pub fn count(&mut self, key: u32, length: u32) -> bool {
        if key != self.key {
            *self = Self { key, ..Self::default() };
        }
        self.times = self.times.saturating_add(1);
        self.bytes = self.bytes.saturating_add(length.into());
        if self.times != self.next || self.next > Self::LAST {
            return false;
        }
        self.next *= 2;
        true
    }

    /// Has the region shared with the other process, if that is worth it.
    #[cold]
    pub fn look(&self, sharing: &Arc<Sharing>, with: &dyn NeighbourLink, queues: &Queues) {
        let neighbour = with.neighbour();
        if !neighbour.may_share() {
            return;
        }
        let keys = &queues.engine.keys;
        let is_mapped = keys.is_mapped(self.key);
        if is_mapped && neighbour.knows_what_to_map() {
            return;
        }
        let times = |region: &MemoryRegion| self.bytes / region.length().max(1);
        let is_worth_it = queues.region(self.key).is_some_and(|region| times(&region) >= Self::WORTH);
        if is_worth_it && (is_mapped || keys.asks(self.key)) {
            sharing.ask(with, queues, self.key, true);
        }
    }
}
