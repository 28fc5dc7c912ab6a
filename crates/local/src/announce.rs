//! Announcements in the segment that two processes share: each says which entries of the other's table it
//! uses now.
//!
//! Hazard pointers. A process that is about to use another's memory writes into the segment which entries of
//! the other's [`table`](crate::table) it will do so by, passes a fence, and looks whether they are there.
//! The owner withdraws an entry, passes a fence, and looks whether it is announced. So either the first finds
//! the entry withdrawn, or the second finds it announced, and waits. [`crate::membarrier`] says which side
//! executes the fence.
//!
//! A side has a few words for announcements, each on a cache line of its own. Which of them are in use is the
//! announcing process's own knowledge: the other cannot have two threads use the same.

use std::ops::Range;
use std::sync::Arc;

use crate::entry::Kind;
use crate::layout::{HAZARD_SLOTS, Line};
use crate::sync::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::view::{Sides, heavy_fence};

/// Words that any thread may take for one announcement. The others have holders.
const SHARED: usize = HAZARD_SLOTS / 2;

/// In place of an index: nothing of this kind is announced.
pub const NOTHING: u32 = u32::MAX;

/// The word that announces a key and a queue pair by their indices.
#[inline]
fn word(key: u32, pair: u32) -> u64 {
    u64::from(pair.wrapping_add(1)) << 32 | u64::from(key.wrapping_add(1))
}

/// Announces what this process uses of the other's table. Any number of threads may do so, several at once.
pub struct HazardSlots {
    sides: Sides,
    /// Zero, or one: the word is in use in this process.
    taken: [Line<AtomicU64>; HAZARD_SLOTS],
}

/// A word for announcements that its holder has for itself: announcing takes no locked instruction.
pub struct HazardSlot {
    slots: Arc<HazardSlots>,
    index: usize,
}

/// An announcement, until it is dropped.
#[must_use = "an announcement that is dropped says nothing any more"]
pub struct HazardGuard<'a> {
    announcement: &'a AtomicU64,
    /// To be given back with it.
    taken: Option<&'a AtomicU64>,
}

impl HazardSlots {
    pub(crate) fn new(sides: Sides) -> HazardSlots {
        HazardSlots { sides, taken: Default::default() }
    }

    /// Announces that an entry for a key and one for a queue pair are about to be used, either of which may
    /// be [`NOTHING`]. `None` while too many announcements are being made at once.
    ///
    /// Look-ups of the two that follow ([`Foreign::get`](crate::Foreign::get)) find what the owner keeps as
    /// it is until the announcement is dropped; what was looked up before counts for nothing. Everything that
    /// is done to the owner's memory must be over before the drop: stores that go around the cache want a
    /// store fence first. Meanwhile the owner may be waiting, so it should be soon.
    #[inline]
    pub fn announce(&self, key: u32, pair: u32) -> Option<HazardGuard<'_>> {
        let announced = self.announce_without_fence(key, pair);
        self.sides.light_fence();
        announced
    }

    /// An announcement that the owner may still miss while the announcing thread finds what has been
    /// withdrawn.
    #[inline]
    pub(crate) fn announce_without_fence(&self, key: u32, pair: u32) -> Option<HazardGuard<'_>> {
        // Queue pairs that are used at the same time begin at different words.
        let first = pair as usize % SHARED;
        let slot = if self.take(first) { first } else { self.take_one_of(0..SHARED)? };
        let taken = Some(&self.taken[slot].0);
        Some(HazardGuard { announcement: self.say(slot, key, pair), taken })
    }

    /// A word of the caller's own, if there is one left. There are always some for
    /// [`announce`](Self::announce), too.
    pub fn reserve(self: &Arc<Self>) -> Option<HazardSlot> {
        let index = self.take_one_of(SHARED..HAZARD_SLOTS)?;
        Some(HazardSlot { slots: self.clone(), index })
    }

    #[inline(always)]
    fn say(&self, slot: usize, key: u32, pair: u32) -> &AtomicU64 {
        let announcement = &self.sides.own().announced[slot].0;
        // Release: an owner that sees this word in place of an earlier announcement sees that the earlier
        // operation has been done.
        announcement.store(word(key, pair), Release);
        announcement
    }

    /// Takes a word, unless another thread of this process has it.
    #[inline]
    fn take(&self, slot: usize) -> bool {
        let taken = &self.taken[slot].0;
        // Acquire: the announcement of the thread that had the word last has gone before ours comes.
        taken.load(Relaxed) == 0 && taken.swap(1, Acquire) == 0
    }

    #[cold]
    fn take_one_of(&self, mut slots: Range<usize>) -> Option<usize> {
        slots.find(|slot| self.take(*slot))
    }
}

impl HazardSlot {
    /// Announces in this slot that an entry for a key and one for a queue pair are about to be used, as
    /// [`HazardSlots::announce`]. The slot is always free.
    #[inline(always)]
    pub fn announce(&mut self, key: u32, pair: u32) -> HazardGuard<'_> {
        let announcement = self.slots.say(self.index, key, pair);
        self.slots.sides.light_fence();
        HazardGuard { announcement, taken: None }
    }
}

impl Drop for HazardSlot {
    fn drop(&mut self) {
        self.slots.taken[self.index].0.store(0, Release);
    }
}

impl Drop for HazardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: all that the announcement was for has been done.
        self.announcement.store(0, Release);
        if let Some(taken) = self.taken {
            taken.store(0, Release);
        }
    }
}

/// Reads what the other process announces.
pub struct HazardView(Sides);

impl HazardView {
    pub(crate) fn new(sides: Sides) -> HazardView {
        HazardView(sides)
    }

    /// Whether the other process may be using an entry of this one's table, which has been withdrawn, and for
    /// which [`barrier`] has been called since. Once this has said no, no thread of that process uses the
    /// entry. A thread that announces the entry later finds it withdrawn.
    ///
    /// A process that dies or is stopped in the middle announces for ever, and so does one that writes
    /// garbage: the caller limits how long it waits.
    pub fn is_announced(&self, kind: Kind, index: usize) -> bool {
        // Acquire: once we see an announcement gone, the operation that it was for has been done.
        let announced = self.0.peer().announced.iter().map(|announced| announced.0.load(Acquire));
        let half = |word: u64| match kind {
            Kind::Key => word as u32,
            Kind::Pair => (word >> 32) as u32,
        };
        announced.into_iter().any(|word| half(word) as usize == index + 1)
    }
}

/// Between withdrawing entries and the first [`HazardView::is_announced`] about them: for the views of all
/// processes that may use them. One system call, or none, whatever their number.
///
/// Views that are added meanwhile are not missed: a process that is sent the table only once its view is
/// where the caller looks finds the entries withdrawn.
pub fn barrier<'a>(views: impl Iterator<Item = &'a HazardView> + Clone) {
    let sides = views.map(|hazard_view| &hazard_view.0);
    if !heavy_fence(sides.clone()) {
        // Once in a process's life. An announcement that was on its way without a fence is visible long
        // before this is over; all later ones have fences.
        #[cfg(not(loom))]
        std::thread::sleep(std::time::Duration::from_millis(1));
        heavy_fence(sides);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::membarrier::Registration;
    use crate::segment::{Parts, Segment};
    use std::iter::once;

    fn pair(creator: Registration, opener: Registration) -> (Parts, Parts) {
        let (creator, descriptor) = Segment::create_with(creator).unwrap();
        (creator.parts(), Segment::open_with(descriptor, opener).unwrap().parts())
    }

    #[test]
    fn the_other_side_sees_what_is_announced_as_long_as_it_is() {
        let (with, without) = (Registration::take(), Registration::none());
        for (creator, opener) in [(with, with), (without, without), (with, without), (without, with)] {
            let (first, second) = pair(creator, opener);
            let announced = |kind, index| second.hazard_view.is_announced(kind, index);
            let one = first.hazard_slots.announce(0, 7).unwrap();
            barrier([&second.hazard_view, &first.hazard_view].into_iter());
            assert!(announced(Kind::Key, 0) && announced(Kind::Pair, 7));
            assert!(!announced(Kind::Key, 7) && !announced(Kind::Pair, 0));
            // Not what the own side announces.
            assert!(!first.hazard_view.is_announced(Kind::Key, 0));
            let other = first.hazard_slots.announce(NOTHING, 7).unwrap();
            drop(one);
            assert!(!announced(Kind::Key, 0) && announced(Kind::Pair, 7));
            assert!(!announced(Kind::Key, NOTHING as usize));
            drop(other);
            assert!(!announced(Kind::Pair, 7));
        }
    }

    #[test]
    fn there_are_as_many_announcements_as_words() {
        let (first, second) = pair(Registration::take(), Registration::take());
        let hazard_slots = Arc::new(first.hazard_slots);
        let announce = |key| hazard_slots.announce(key, 3);
        let mut all: Vec<_> = (0..SHARED as u32).map(|key| announce(key).unwrap()).collect();
        assert!(announce(100).is_none());
        let seen = |key| second.hazard_view.is_announced(Kind::Key, key);
        assert!((0..SHARED).all(seen));
        drop(all.remove(5));
        assert!(!seen(5));
        all.push(announce(100).unwrap());
        assert!(announce(101).is_none() && seen(100) && !seen(101));

        let mut own: Vec<_> = (SHARED..HAZARD_SLOTS).map(|_| hazard_slots.reserve().unwrap()).collect();
        assert!(hazard_slots.reserve().is_none());
        let mut last = own.pop().unwrap();
        let announced = last.announce(200, 200);
        assert!(seen(200) && second.hazard_view.is_announced(Kind::Pair, 200));
        drop(announced);
        assert!(!seen(200) && seen(100) && hazard_slots.reserve().is_none());
        drop(last);
        assert!(hazard_slots.reserve().is_some());
    }

    /// What the other side writes into this side's words confuses that side alone.
    #[test]
    fn garbage_in_the_words_takes_none_away() {
        let (first, second) = pair(Registration::take(), Registration::take());
        for announced in &first.hazard_slots.sides.own().announced {
            announced.0.store(u64::MAX, Relaxed);
        }
        assert!(second.hazard_view.is_announced(Kind::Key, u32::MAX as usize - 1));
        let all: Vec<_> =
            (0..SHARED as u32).map(|key| first.hazard_slots.announce(key, 0).unwrap()).collect();
        assert_eq!(all.len(), SHARED);
    }

    #[test]
    fn fences_are_passed_whatever_the_words_say() {
        let (first, second) = pair(Registration::none(), Registration::none());
        for says in [0, 1, u64::MAX] {
            for side in [first.hazard_slots.sides.own(), first.hazard_slots.sides.peer()] {
                side.flags.0.membarrier.store(says, Relaxed);
            }
            barrier(once(&second.hazard_view));
            drop(second.hazard_slots.announce(1, 1).unwrap());
        }
    }
}
