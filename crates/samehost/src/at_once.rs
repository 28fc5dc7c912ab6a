//! Short Writes and Reads, carried out as the program posts them.
//!
//! Most operations within a host are of this kind, so it is kept short: one element, memory of the peer that
//! is mapped here, and everything known already from [`Direct`](crate::Direct), which carries out all others.
//! The checks are the same: the peer's queue pair and key stand as they were published, the domain and rights
//! fit, the bytes are inside, and our own key opens the element.

use crate::neighbour::Neighbour;
use crate::neighbour_memory::{NeighbourMemory, Pair, Region};
use crate::place::Place;
use crate::tally::{self, Direction, Tally};
use adverb_core::counters::Counters;
use adverb_core::log;
use adverb_core::memory::{Access, Reader};
use adverb_core::qp::Queues;
use adverb_core::request::{Data, Opcode, SendRequest};
use adverb_core::transport::AtPost;
use std::sync::Arc;

/// Bytes of a request at most: other posters wait meanwhile.
const LONGEST: u32 = 4096;

/// What one queue pair knows of its peer's process, for requests that are being posted.
pub struct AtOnce {
    neighbour_memory: Arc<NeighbourMemory>,
    pair: Pair,
    place: Place,
    /// The region that was used last, and what the queue pair may do there.
    region: Arc<Region>,
    rights: Access,
    /// The queue pair may have reads under way.
    reads: bool,
    reader: Reader,
    counters: &'static Counters,
    tally: Tally,
}

impl AtOnce {
    pub(crate) fn new(
        neighbour: &Neighbour,
        queues: &Queues,
        (neighbour_memory, pair, region): (&Arc<NeighbourMemory>, Pair, &Arc<Region>),
        reads: bool,
    ) -> Self {
        let mut new = Self {
            neighbour_memory: neighbour_memory.clone(),
            pair,
            place: Place::find(neighbour),
            region: region.clone(),
            rights: Access::empty(),
            reads,
            reader: Reader::new(&queues.engine.keys),
            counters: queues.counters,
            tally: Tally::default(),
        };
        new.judge(queues);
        new
    }

    /// Finds what the queue pair may do in the region.
    fn judge(&mut self, queues: &Queues) {
        let Self { pair, region, .. } = self;
        let is_its = pair.back == queues.number && region.domain() == pair.domain;
        self.rights = if is_its { pair.allowed & region.access() } else { Access::empty() };
    }

    /// Turns to another region than the last one, or to another region with the same key. The region is in
    /// the cache, or the request is queued: a look-up may take a system call, and other posters would wait.
    #[cold]
    fn turn_to(&mut self, queues: &Queues, key: u32) {
        if let Some(region) = self.neighbour_memory.known(key) {
            self.region = region;
            self.judge(queues);
        }
    }

    /// Carries out a request, before which everything is complete, in memory of `neighbour`, which is the
    /// process that this was made for.
    #[inline(always)]
    pub fn carry_out(&mut self, neighbour: &Neighbour, queues: &Queues, request: &SendRequest<'_>) -> AtPost {
        match self.try_to(neighbour, queues, request) {
            Some(length) => AtPost::Done(length),
            None => self.left(neighbour),
        }
    }

    /// What becomes of a request that is to be queued.
    #[cold]
    fn left(&self, neighbour: &Neighbour) -> AtPost {
        let is_over = neighbour.has_ended() || !self.neighbour_memory.says(&self.pair);
        if is_over { AtPost::Over } else { AtPost::No }
    }

    /// Returns how many bytes that were.
    #[inline(always)]
    fn try_to(&mut self, neighbour: &Neighbour, queues: &Queues, request: &SendRequest<'_>) -> Option<u32> {
        let (needed, is_read) = match request.opcode {
            Opcode::Write => (Access::REMOTE_WRITE, false),
            Opcode::Read if self.reads => (Access::REMOTE_READ, true),
            _ => return None,
        };
        let (sge, is_inline) = match request.data {
            Data::Registered([sge]) => (sge, false),
            Data::InlineAt([sge]) if !is_read && sge.length <= queues.send.max_inline() => (sge, true),
            _ => return None,
        };
        // Without bytes there is nothing to do, and yet something to check.
        if sge.length == 0 || sge.length > LONGEST || neighbour.has_ended() {
            return None;
        }
        if self.region.key != request.rkey {
            self.turn_to(queues, request.rkey);
            if self.region.key != request.rkey {
                return None;
            }
        }
        let announced = self.place.announce(self.region.number, self.pair.index)?;
        // Entries that were found before count only if they still stand after the announcement.
        if !self.region.is_published() {
            drop(announced);
            self.turn_to(queues, request.rkey);
            return None;
        }
        if !self.neighbour_memory.says(&self.pair) || !self.rights.contains(needed) {
            return None;
        }
        let target = self.region.inside(request.remote_address, sge.length)?;
        let copied = if is_inline {
            queues.copy_inline_element(sge, target)
        } else {
            queues.copy_element(&mut self.reader, sge, is_read, target)
        };
        drop(announced);
        copied.ok()?;
        let direction = if is_read { Direction::In } else { Direction::Out };
        if self.tally.add(direction, sge.length) || queues.reports(request.flags) {
            self.tally.count(self.counters);
        }
        if log::enabled(log::Level::Packets) {
            let about = (request.opcode, sge.length, request.remote_address, request.rkey);
            tally::carried_out(queues.number, neighbour.process(), about);
        }
        Some(sge.length)
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        self.tally.count(self.counters);
    }
}
