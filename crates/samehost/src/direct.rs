//! The initiator's side: one-sided operations carried out by this process in memory of another.
//!
//! The other process publishes the rights of its keys and queue pairs ([`crate::sharing`]); all that is
//! checked here as it would be there. Before it looks, the initiator announces the entries that it is going
//! to use, so that the other process does not take the memory away meanwhile. Requests that are not
//! permitted, or not in reach, go as packets: then the other engine reports the error.
//!
//! This process copies to and from memory of the other that is mapped here. For the rest, the kernel copies
//! ([`Process`]): a system call, in which the thread may have to wait for a page of the other process. So no
//! thread that posts or polls waits for it ([`Busy`]).

use crate::at_once::AtOnce;
use crate::neighbour::Neighbour;
use crate::neighbour_memory::{NeighbourMemory, Pair, Region};
use crate::place::Place;
use crate::tally::{self, Tally};
use adverb_core::busy::Busy;
use adverb_core::log;
use adverb_core::memory::moved::View;
use adverb_core::memory::process::Process;
use adverb_core::memory::ways::kernel_does;
use adverb_core::memory::{Access, Reader, Source};
use adverb_core::qp::{Queues, SendWork};
use adverb_core::request::Opcode;
use adverb_local::HazardGuard;
use std::sync::Arc;

/// Bytes that are copied under one announcement.
const SLICE: u32 = 256 << 10;
/// Requests that go as packets before a queue pair that was not published is looked for again: one, then each
/// time twice as many, up to so many. As a rule the peer publishes it with the next packet of ours.
const MOST_PAUSE: u32 = 64;

/// What one queue pair remembers of its peer's process.
#[derive(Default)]
pub struct Direct {
    neighbour_memory: Option<Arc<NeighbourMemory>>,
    /// The published entry of the peer's queue pair.
    pair: Option<Pair>,
    /// Requests before it is looked for again, and how many there were before the last look.
    pause: u32,
    paused: u32,
    /// A place for announcements of its own, where there was one.
    place: Option<Place>,
    /// The region that was used last.
    region: Option<Arc<Region>>,
    /// Bytes of the oldest request that have been copied.
    done: u32,
    /// This request is done, and its result has found no place.
    fault: Option<u64>,
    /// The kernel has not carried out this request.
    refused: Option<u64>,
    tally: Tally,
}

/// The result of a step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The request is carried out.
    Done,
    /// More of the request is to be carried out.
    More,
    /// The kernel has to copy.
    Kernel,
    /// The request has to go as a packet.
    Packet,
}

/// The region with this key, if it is published.
#[inline(always)]
fn find<'a>(
    last: &'a mut Option<Arc<Region>>,
    neighbour_memory: &NeighbourMemory,
    key: u32,
) -> Option<&'a Region> {
    if last.as_ref().is_none_or(|region| region.key != key) {
        *last = neighbour_memory.region(key);
    }
    last.as_deref()
}

/// The right that an operation needs, if it can be carried out from here.
#[inline]
pub(crate) fn right(work: &SendWork) -> Option<Access> {
    match work.opcode {
        // Without bytes there is nothing to do, and yet something to check.
        Opcode::Write if work.length > 0 => Some(Access::REMOTE_WRITE),
        Opcode::Read if work.length > 0 => Some(Access::REMOTE_READ),
        Opcode::CompareSwap | Opcode::FetchAdd
            if work.length == 8 && work.remote_address.is_multiple_of(8) =>
        {
            Some(Access::REMOTE_ATOMIC)
        }
        _ => None,
    }
}

impl Direct {
    /// Whether a request to queue pair `peer` would be carried out from here, as it seems. `reads`: the queue
    /// pair may have reads under way.
    #[inline]
    pub fn suits(&mut self, neighbour: &Neighbour, peer: u32, work: &SendWork, reads: bool) -> bool {
        let Some(right) = right(work) else { return false };
        if !(reads || right == Access::REMOTE_WRITE) || !self.reaches(neighbour, peer) {
            return false;
        }
        let Some(neighbour_memory) = &self.neighbour_memory else { return false };
        let Some(region) = find(&mut self.region, neighbour_memory, work.rkey) else { return false };
        region.mapped(work, right).is_some() || self.suits_kernel(work)
    }

    /// Whether the kernel would copy for a request, as it seems.
    #[cold]
    fn suits_kernel(&mut self, work: &SendWork) -> bool {
        let Some(neighbour_memory) = &self.neighbour_memory else { return false };
        if self.region.as_ref().is_some_and(|region| region.misses_view(neighbour_memory)) {
            self.region = neighbour_memory.region(work.rkey);
        }
        let Some((right, region)) = right(work).zip(self.region.as_deref()) else { return false };
        // It may have been looked up anew.
        let suits = region.mapped(work, right).is_some()
            || self.refused != Some(work.sequence)
                && (region.common(work, right).is_some()
                    || by_kernel(neighbour_memory, region, work).is_some());
        if !suits {
            self.ask_for_common();
        }
        suits
    }

    /// Whether the peer's queue pair is known.
    #[inline(always)]
    fn reaches(&mut self, neighbour: &Neighbour, peer: u32) -> bool {
        if neighbour.has_ended() {
            self.forget();
            return false;
        }
        if self.pair.is_some() {
            return true;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if self.neighbour_memory.is_none() {
            self.neighbour_memory = neighbour.memory();
        }
        self.pair = self.neighbour_memory.as_ref().and_then(|neighbour_memory| neighbour_memory.pair(peer));
        let is_missing = self.neighbour_memory.is_some() && self.pair.is_none();
        self.paused = if is_missing { (2 * self.paused).clamp(1, MOST_PAUSE) } else { 0 };
        self.pause = self.paused;
        self.pair.is_some()
    }

    /// Whether queue pair `peer` is known to have taken in so much
    /// ([`PublishedPair::tell_taken`](crate::PublishedPair::tell_taken)), so that all this is done to its
    /// memory.
    #[inline]
    pub fn has_taken(&mut self, neighbour: &Neighbour, peer: u32, count: u64) -> bool {
        if !self.reaches(neighbour, peer) {
            return false;
        }
        // The place may be another queue pair's by now: then nothing is carried out by it either.
        let Some((neighbour_memory, pair)) = self.neighbour_memory.as_ref().zip(self.pair) else {
            return false;
        };
        neighbour_memory.table.taken(pair.index as usize) >= count
    }

    /// The other process has gone, or the queue pair gets another peer.
    pub fn forget(&mut self) {
        (self.neighbour_memory, self.pair, self.region) = (None, None, None);
        self.begin_anew();
    }

    /// The next request begins with its first byte.
    pub fn begin_anew(&mut self) {
        self.done = 0;
    }

    /// Whether some of a request has been carried out.
    pub fn has_begun(&self) -> bool {
        self.done > 0
    }

    /// Whether a request has ended with a result that found no place.
    pub fn has_failed(&self, sequence: u64) -> bool {
        self.fault == Some(sequence)
    }

    /// The budget that the next step of a request takes, in bytes: a little more than it copies.
    #[inline]
    pub fn left(&self, work: &SendWork) -> u32 {
        const OVERHEAD: u32 = 256;
        (work.length - self.done.min(work.length)).min(SLICE) + OVERHEAD
    }

    /// The queue pair goes.
    pub fn end(&mut self, queues: &Queues) {
        self.tally.count(queues.counters);
    }

    /// Carries out a request to queue pair `peer` of the other process, or a slice of it; everything before
    /// it must be complete. `by_kernel`: how others are kept from waiting while the kernel copies, if it may.
    #[inline]
    pub fn execute(
        &mut self,
        reader: &mut Reader,
        neighbour: &Neighbour,
        queues: &Queues,
        work: &SendWork,
        by_kernel: Option<&Busy>,
    ) -> Step {
        match self.try_execute(reader, neighbour, queues, work) {
            Some(done) => self.came_to(done, neighbour, queues, work),
            None => self.execute_otherwise(reader, neighbour, queues, work, by_kernel),
        }
    }

    /// What carries out short requests as they are posted, if the last one that this has carried out was in
    /// memory that is mapped. `reads`: the queue pair may have reads under way.
    pub fn at_once(&self, neighbour: &Neighbour, queues: &Queues, reads: bool) -> Option<AtOnce> {
        let (neighbour_memory, pair, region) =
            (self.neighbour_memory.as_ref()?, self.pair?, self.region.as_ref()?);
        region.is_mapped().then(|| AtOnce::new(neighbour, queues, (neighbour_memory, pair, region), reads))
    }

    #[inline(always)]
    fn came_to(&mut self, done: u32, neighbour: &Neighbour, queues: &Queues, work: &SendWork) -> Step {
        if done < work.length {
            self.done = done;
            return Step::More;
        }
        self.done = 0;
        let (is_reported, kind) = (queues.is_reported(work), work.opcode.into());
        if self.tally.add(kind, work.length) || is_reported {
            self.tally.count(queues.counters);
        }
        if log::enabled(log::Level::Packets) {
            let about = (work.opcode, work.length, work.remote_address, work.rkey);
            tally::carried_out(queues.number, neighbour.process(), about);
        }
        Step::Done
    }

    /// Memory that is not mapped: by the kernel, or else as a packet.
    #[cold]
    fn execute_otherwise(
        &mut self,
        reader: &mut Reader,
        neighbour: &Neighbour,
        queues: &Queues,
        work: &SendWork,
        busy: Option<&Busy>,
    ) -> Step {
        let is_first = self.refused != Some(work.sequence) && self.fault != Some(work.sequence);
        if is_first && self.pair.is_some() && self.suits_kernel(work) {
            let Some(busy) = busy else { return Step::Kernel };
            if let Some(done) = self.try_common(reader, neighbour, queues, work, busy) {
                return self.came_to(done, neighbour, queues, work);
            }
            // An atomic operation whose result has found no place is not done twice.
            if self.fault == Some(work.sequence) {
                self.done = 0;
                return Step::Packet;
            }
            if let Some(done) = self.try_kernel(reader, neighbour, queues, work, busy) {
                if done == work.length {
                    self.tally.note_kernel();
                }
                return self.came_to(done, neighbour, queues, work);
            }
            self.refused = Some(work.sequence);
        }
        // From the beginning, since it is not known how far the copy has come.
        self.done = 0;
        Step::Packet
    }

    /// Returns the bytes that are done by now.
    #[inline]
    fn try_execute(
        &mut self,
        reader: &mut Reader,
        neighbour: &Neighbour,
        queues: &Queues,
        work: &SendWork,
    ) -> Option<u32> {
        let right = right(work)?;
        let from = self.done;
        let Self { neighbour_memory, pair, place, region, .. } = self;
        let stands = announce(neighbour_memory, pair, place, region, (neighbour, queues), work, right)?;
        let (view, at) = stands.region.mapped(work, right)?;
        let slice = (work.length - from).min(SLICE);
        match in_view(reader, queues, (work, from, slice), (view, at + from as usize)) {
            InView::Done => Some(from + slice),
            InView::Not => None,
            InView::Lost => {
                self.fault = Some(work.sequence);
                None
            }
        }
    }

    /// Carries out a slice of a request in memory that the other program shares by itself, if it is there
    /// still. Returns the bytes that are done by now.
    fn try_common(
        &mut self,
        reader: &mut Reader,
        neighbour: &Neighbour,
        queues: &Queues,
        work: &SendWork,
        busy: &Busy,
    ) -> Option<u32> {
        let right = right(work)?;
        let from = self.done;
        let Self { neighbour_memory, pair, place, region, .. } = self;
        let stands = announce(neighbour_memory, pair, place, region, (neighbour, queues), work, right)?;
        let (common, at) = stands.region.common(work, right)?;
        let process = stands.neighbour_memory.process.as_ref()?;
        let slice = (work.length - from).min(SLICE);
        let to_write = right != Access::REMOTE_READ;
        // The look is a system call, and a page may have to be read back from where it has been swapped to.
        let done = busy.during(|| {
            let Some((view, at)) = common.at(process, at + from as usize, slice as usize, to_write) else {
                return InView::Not;
            };
            in_view(reader, queues, (work, from, slice), (view, at))
        });
        match done {
            InView::Done => return Some(from + slice),
            // Something else is there, or the file is shorter by now, or our own bytes are not there: the
            // kernel finds out which.
            InView::Not => stands.region.leave_common(),
            InView::Lost => self.fault = Some(work.sequence),
        }
        None
    }

    /// A request has gone another way than by the memory that the other program shares by itself: it may be
    /// worth it to map that.
    fn ask_for_common(&self) {
        if let Some((neighbour_memory, region)) = self.neighbour_memory.as_ref().zip(self.region.as_ref())
            && region.asks_for_common()
        {
            neighbour_memory.join(region);
        }
    }

    /// Has the kernel carry out a slice of a request. Returns the bytes that are done by now.
    fn try_kernel(
        &mut self,
        reader: &mut Reader,
        neighbour: &Neighbour,
        queues: &Queues,
        work: &SendWork,
        busy: &Busy,
    ) -> Option<u32> {
        let right = right(work)?;
        let from = self.done;
        let Self { neighbour_memory, pair, place, region, .. } = self;
        let stands = announce(neighbour_memory, pair, place, region, (neighbour, queues), work, right)?;
        let (process, address) = by_kernel(stands.neighbour_memory, stands.region, work)?;
        let slice = (work.length - from).min(SLICE);
        let target = (process, address + u64::from(from), stands.region.by_file());
        let copied = busy.during(|| match work.opcode {
            Opcode::Write => queues.write_to_process(reader, work, (from, slice), target),
            _ => queues.read_from_process(reader, work, (from, slice), target),
        });
        copied.ok()?;
        drop(stands);
        self.ask_for_common();
        Some(from + slice)
    }
}

/// The result of a slice of a request in memory that is mapped.
enum InView {
    Done,
    /// Bytes are not there, here or at the other program's: it may be done in another way.
    Not,
    /// The slice is done, and its result has found no place: it is not done twice, and the request fails as
    /// it would after the peer's answer.
    Lost,
}

/// Carries out `slice` bytes of a request from `from` on, at a place in memory that is mapped.
#[inline(always)]
fn in_view(
    reader: &mut Reader,
    queues: &Queues,
    (work, from, slice): (&SendWork, u32, u32),
    (view, at): (&View, usize),
) -> InView {
    let is_done = match work.opcode {
        Opcode::Write => queues.write_to(reader, work, from, slice, view, at).is_ok(),
        Opcode::Read => queues.read_from(reader, work, from, slice, view, at).is_ok(),
        _ => {
            let before = match work.opcode {
                Opcode::FetchAdd => view.fetch_add(at, work.compare_add),
                _ => view.compare_swap(at, work.compare_add, work.swap),
            };
            let Ok(before) = before else { return InView::Not };
            if queues.scatter_result(work, 0, &Source::Buffer(&before.to_ne_bytes())).is_err() {
                return InView::Lost;
            }
            true
        }
    };
    if is_done { InView::Done } else { InView::Not }
}

/// The entries that the owner keeps as they are, until this is dropped.
struct Stands<'a> {
    neighbour_memory: &'a NeighbourMemory,
    region: &'a Region,
    _announced: HazardGuard<'a>,
}

/// Announces what a request is about, and looks whether the other process permits it to this queue pair.
#[inline(always)]
fn announce<'a>(
    neighbour_memory: &'a Option<Arc<NeighbourMemory>>,
    pair: &mut Option<Pair>,
    place: &'a mut Option<Place>,
    region: &'a mut Option<Arc<Region>>,
    (neighbour, queues): (&Neighbour, &Queues),
    work: &SendWork,
    right: Access,
) -> Option<Stands<'a>> {
    let neighbour_memory = neighbour_memory.as_deref()?;
    let told = pair.as_ref()?;
    let number = find(region, neighbour_memory, work.rkey)?.number;
    let announced = place.get_or_insert_with(|| Place::find(neighbour)).announce(number, told.index)?;
    // Entries that were found before count only if they still stand after the announcement.
    if !neighbour_memory.says(told) {
        *pair = None;
        return None;
    }
    if !region.as_ref().is_some_and(|region| region.is_published()) {
        *region = None;
        return None;
    }
    let region = region.as_deref()?;
    let is_permitted = told.allowed.contains(right);
    let stands = told.back == queues.number && region.domain() == told.domain && is_permitted;
    stands.then_some(Stands { neighbour_memory, region, _announced: announced })
}

/// The process by which, and the address at which, the kernel would carry out a request.
fn by_kernel<'a>(
    neighbour_memory: &'a NeighbourMemory,
    region: &Region,
    work: &SendWork,
) -> Option<(&'a Process, u64)> {
    let right = right(work).filter(|right| kernel_does(*right))?;
    let process = neighbour_memory.process.as_ref().filter(|process| process.copies(region.by_file()))?;
    Some((process, region.address(work, right)?))
}
