//! The initiator's side: one-sided operations carried out by this process in memory of another.
//!
//! The other process publishes what its keys and queue pairs permit ([`super::sharing`]); all that is checked here as it would be there. Before it
//! looks, the initiator announces what it is going to use, so that the other does not take it away under its hands. What is
//! not permitted, or not in reach, goes as a packet: then the other engine says what is wrong with it.

use super::channel::Channel;
use super::reach::{Reach, Region};
use crate::observer;
use adverb_core::memory::{Access, Reader, Source};
use adverb_core::qp::{Queues, SendWork};
use adverb_core::request::Opcode;
use adverb_local::{Announced, Announcer, Kind, Lane};
use std::sync::Arc;

/// Bytes that are copied under one announcement.
const SLICE: u32 = 256 << 10;
/// Requests that go as packets before a queue pair that was not published is looked for again.
const PAUSE: u32 = 64;

/// What one queue pair remembers of its peer's process.
#[derive(Default)]
pub(crate) struct Direct {
    reach: Option<Arc<Reach>>,
    /// Where the peer's queue pair is published, and what was found there.
    pair: Option<(u32, [u64; 7])>,
    /// Requests before it is looked for again.
    pause: u32,
    /// A place for announcements of its own, where there was one.
    place: Option<Place>,
    /// The region that was used last.
    region: Option<Arc<Region>>,
    /// Bytes of the oldest request that have been copied.
    done: u32,
    /// This request is done, and its result has found no place.
    fault: Option<u64>,
    tally: Tally,
}

/// What has been carried out and not been counted yet: counters are shared by all, which costs as much as the operation itself.
#[derive(Default)]
struct Tally {
    operations: u32,
    bytes: u64,
}

impl Tally {
    /// Operations are counted so many at a time, and when one is to be reported.
    const TOGETHER: u32 = 32;

    #[inline]
    fn add(&mut self, queues: &Queues, work: &SendWork) {
        self.operations += 1;
        self.bytes += u64::from(work.length);
        if self.operations == Self::TOGETHER || queues.is_reported(work) {
            self.count(queues);
        }
    }

    fn count(&mut self, queues: &Queues) {
        let Self { operations, bytes } = std::mem::take(self);
        queues.counters.tx_direct.add(operations.into());
        queues.counters.tx_messages.add(operations.into());
        queues.counters.tx_bytes.add(bytes);
    }
}

/// Where a queue pair announces what it uses.
enum Place {
    Own(Lane),
    Shared(Arc<Announcer>),
}

impl Place {
    fn find(channel: &Channel) -> Self {
        let announcer = channel.announcer();
        announcer.reserve().map_or_else(|| Self::Shared(announcer.clone()), Self::Own)
    }

    /// None if too many announce at once.
    #[inline]
    fn announce(&mut self, key: u32, pair: u32) -> Option<Announced<'_>> {
        match self {
            Self::Own(lane) => Some(lane.announce(key, pair)),
            Self::Shared(announcer) => announcer.announce(key, pair),
        }
    }
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is carried out.
    Done,
    /// There is more of it.
    More,
    /// It has to go as a packet.
    Packet,
}

/// The region with this key, if it is published.
#[inline]
fn find<'a>(last: &'a mut Option<Arc<Region>>, reach: &Reach, key: u32) -> Option<&'a Region> {
    if last.as_ref().is_none_or(|region| region.key != key) {
        *last = reach.region(key);
    }
    last.as_deref()
}

/// Where in a region the bytes of a request begin, if it has them and permits this.
#[inline]
fn place_in(opened: &[u64; 7], work: &SendWork, right: Access) -> Option<usize> {
    let [first, length, _, access, ..] = *opened;
    let at = work.remote_address.checked_sub(first)?;
    let is_inside = at.checked_add(work.length.into()).is_some_and(|end| end <= length);
    (is_inside && Access::from_bits_truncate(access as u32).contains(right)).then_some(at as usize)
}

/// The right that an operation needs, if it can be carried out from here.
#[inline]
fn right(work: &SendWork) -> Option<Access> {
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
    /// Whether a request to queue pair `peer` would be carried out from here, as it seems. `reads`: the queue pair may have reads under way.
    #[inline]
    pub(crate) fn suits(&mut self, channel: &Channel, peer: u32, work: &SendWork, reads: bool) -> bool {
        let Some(right) = right(work) else { return false };
        if !(reads || right == Access::REMOTE_WRITE) || !self.reaches(channel, peer) {
            return false;
        }
        let Some(reach) = &self.reach else { return false };
        find(&mut self.region, reach, work.rkey)
            .is_some_and(|region| place_in(&region.opened, work, right).is_some())
    }

    /// Whether the peer's queue pair is known.
    #[inline]
    fn reaches(&mut self, channel: &Channel, peer: u32) -> bool {
        if channel.has_ended() {
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
        if self.reach.is_none() {
            self.reach = channel.reach();
        }
        self.pair = self.reach.as_ref().and_then(|reach| reach.pair(peer));
        self.pause = if self.reach.is_some() && self.pair.is_none() { PAUSE } else { 0 };
        self.pair.is_some()
    }

    /// The other process has gone, or the queue pair goes to somebody else.
    pub(crate) fn forget(&mut self) {
        (self.reach, self.pair, self.region) = (None, None, None);
        self.begin_anew();
    }

    /// The next request begins with its first byte.
    pub(crate) fn begin_anew(&mut self) {
        self.done = 0;
    }

    /// Whether some of a request has been carried out.
    pub(crate) fn has_begun(&self) -> bool {
        self.done > 0
    }

    /// Whether a request has ended with a result that found no place.
    pub(crate) fn has_failed(&self, sequence: u64) -> bool {
        self.fault == Some(sequence)
    }

    /// What the next step of a request takes, in bytes: a little more than it copies.
    #[inline]
    pub(crate) fn left(&self, work: &SendWork) -> u32 {
        const OVERHEAD: u32 = 256;
        (work.length - self.done.min(work.length)).min(SLICE) + OVERHEAD
    }

    /// The queue pair goes.
    pub(crate) fn end(&mut self, queues: &Queues) {
        self.tally.count(queues);
    }

    /// Carries out a request to queue pair `peer` of the other process, or a slice of it; everything before it must be complete.
    #[inline]
    pub(crate) fn execute(
        &mut self,
        reader: &mut Reader,
        channel: &Channel,
        queues: &Queues,
        peer: u32,
        work: &SendWork,
    ) -> Step {
        let done = self.try_execute(reader, channel, queues, peer, work);
        match done {
            Some(done) if done < work.length => {
                self.done = done;
                Step::More
            }
            Some(_) => {
                self.done = 0;
                if observer::sees_operations() {
                    observer::carried_out(queues.number, channel.process, work);
                }
                self.tally.add(queues, work);
                Step::Done
            }
            // From the beginning, since nobody can tell how far it has come.
            None => {
                self.done = 0;
                Step::Packet
            }
        }
    }

    /// Returns the bytes that are done by now.
    #[inline]
    fn try_execute(
        &mut self,
        reader: &mut Reader,
        channel: &Channel,
        queues: &Queues,
        peer: u32,
        work: &SendWork,
    ) -> Option<u32> {
        let right = right(work)?;
        let (reach, (pair, told)) = (self.reach.as_ref()?, self.pair.as_ref()?);
        let from = self.done;
        let region = find(&mut self.region, reach, work.rkey)?;
        let place = self.place.get_or_insert_with(|| Place::find(channel));
        let _announced = place.announce(region.number, *pair)?;
        // What was found before is judged, once it is sure that it still stands there.
        if !reach.table.says(Kind::Pair, *pair as usize, peer, told) {
            self.pair = None;
            return None;
        }
        if !region.is_published() {
            self.region = None;
            return None;
        }
        let [back, domain, allowed, ..] = *told;
        let is_permitted = Access::from_bits_truncate(allowed as u32).contains(right);
        if back as u32 != queues.number || region.opened[4] != domain || !is_permitted {
            return None;
        }
        let at = place_in(&region.opened, work, right)? + from as usize;
        let slice = (work.length - from).min(SLICE);
        let view = &region.view;
        match work.opcode {
            Opcode::Write => queues.write_to(reader, work, from, slice, view, at).ok()?,
            Opcode::Read => queues.read_from(reader, work, from, slice, view, at).ok()?,
            _ => {
                let before = match work.opcode {
                    Opcode::FetchAdd => view.fetch_add(at, work.compare_add),
                    _ => view.compare_swap(at, work.compare_add, work.swap),
                };
                let before = before.ok()?.to_ne_bytes();
                if queues.scatter_result(work, 0, &Source::Buffer(&before)).is_err() {
                    // It is not done twice: the request fails, as it would after the peer's answer.
                    self.fault = Some(work.sequence);
                    return None;
                }
            }
        }
        Some(from + slice)
    }
}
