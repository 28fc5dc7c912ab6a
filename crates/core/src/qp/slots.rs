//! Receive requests in memory: places of atomic words, for the ring of a queue pair and for shared receive
//! queues.
//!
//! The queue around a place says which thread may read or write it; the words are atomic for the same reason
//! as in the send queue.

use super::ReceiveWork;
use crate::array;
use crate::error::{PostError, Result};
use crate::memory::{RingAllocator, RingKind, RingRelease, Storage};
use crate::request::{ReceiveRequest, Sge};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 2;

/// Places for receive requests.
pub(crate) struct Slots {
    heads: Storage<AtomicU64>,
    elements: Storage<AtomicU64>,
    max_sges: usize,
}

impl Slots {
    /// # Errors
    /// ENOMEM where `allocator` has no memory.
    pub(crate) fn new(
        places: usize,
        max_sges: usize,
        allocator: &RingAllocator,
        kind: RingKind,
    ) -> Result<Self> {
        let words = |n: usize| Storage::new(n, AtomicU64::default, allocator, kind);
        Ok(Self { heads: words(places * WORDS)?, elements: words(places * max_sges * 2)?, max_sges })
    }

    /// The program has its memory back when the result is dropped.
    ///
    /// # Safety
    /// No other thread uses places meanwhile.
    pub(crate) unsafe fn give_back(&self) -> [RingRelease; 2] {
        // SAFETY: the caller's promise.
        unsafe { [self.heads.give_back(), self.elements.give_back()] }
    }

    pub(crate) fn max_sges(&self) -> usize {
        self.max_sges
    }

    #[inline(always)]
    pub(crate) fn write(
        &self,
        place: usize,
        request: &ReceiveRequest<'_>,
    ) -> std::result::Result<(), PostError> {
        // Most have one element.
        if let [sge] = request.sges
            && let Some([address, rest]) =
                self.elements.get(place * self.max_sges * 2..).and_then(|all| all.first_chunk())
            && let Some([id, room]) = self.heads.get(place * WORDS..).and_then(|all| all.first_chunk())
            && self.max_sges > 0
        {
            address.store(sge.address, Ordering::Relaxed);
            rest.store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Ordering::Relaxed);
            id.store(request.wr_id, Ordering::Relaxed);
            room.store(u64::from(sge.length) | 1 << 48, Ordering::Relaxed);
            return Ok(());
        }
        self.write_all(place, request)
    }

    #[inline(never)]
    fn write_all(&self, place: usize, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        // Looked for once.
        let (elements, max_sges) = (&*self.elements, self.max_sges);
        if request.sges.len() > max_sges {
            return Err(PostError::TooManySges);
        }
        let mut room = 0;
        for (n, sge) in request.sges.iter().enumerate() {
            let at = (place * max_sges + n) * 2;
            let packed = u64::from(sge.length) | u64::from(sge.lkey) << 32;
            elements[at].store(sge.address, Ordering::Relaxed);
            elements[at + 1].store(packed, Ordering::Relaxed);
            room += u64::from(sge.length);
        }
        let head = &self.heads[place * WORDS..];
        head[0].store(request.wr_id, Ordering::Relaxed);
        head[1].store(room | (request.sges.len() as u64) << 48, Ordering::Relaxed);
        Ok(())
    }

    /// The request at a place; its sequence is the place.
    #[inline]
    pub(crate) fn read(&self, place: usize, domain: u32) -> ReceiveWork {
        let head = &self.heads[place * WORDS..];
        let packed = head[1].load(Ordering::Relaxed);
        ReceiveWork {
            sequence: place as u64,
            wr_id: head[0].load(Ordering::Relaxed),
            sges: (packed >> 48) as usize,
            room: packed & ((1 << 48) - 1),
            domain,
        }
    }

    #[inline]
    pub(crate) fn sge(&self, place: usize, index: usize) -> Sge {
        let at = (place * self.max_sges + index) * 2;
        let packed = self.elements[at + 1].load(Ordering::Relaxed);
        Sge {
            address: self.elements[at].load(Ordering::Relaxed),
            length: packed as u32,
            lkey: (packed >> 32) as u32,
        }
    }
}

/// Enough for any number of places.
const PARTS: usize = 32;

/// Places that can become more, without a lock for threads that use those that are there: each part holds as
/// many as all before it.
pub(crate) struct GrowingSlots {
    base: usize,
    parts: Box<[OnceLock<Slots>; PARTS]>,
    max_sges: usize,
    allocator: RingAllocator,
    kind: RingKind,
}

impl GrowingSlots {
    /// # Errors
    /// ENOMEM where `allocator` has no memory.
    pub(crate) fn new(
        places: usize,
        max_sges: usize,
        allocator: RingAllocator,
        kind: RingKind,
    ) -> Result<Self> {
        let parts = array::on_heap(OnceLock::new);
        let slots = Self { base: places.max(1), parts, max_sges, allocator, kind };
        slots.grow(places)?;
        Ok(slots)
    }

    pub(crate) fn max_sges(&self) -> usize {
        self.max_sges
    }

    /// Makes at least so many places; returns how many there are then.
    ///
    /// # Errors
    /// As of [`GrowingSlots::new`].
    pub(crate) fn grow(&self, places: usize) -> Result<usize> {
        let mut made = 0;
        for part in self.parts.iter() {
            let size = if made == 0 { self.base } else { made };
            if part.get().is_none() {
                if made >= places {
                    break;
                }
                let new = Slots::new(size, self.max_sges, &self.allocator, self.kind)?;
                part.get_or_init(|| new);
            }
            made += size;
        }
        Ok(made)
    }

    /// The program has its memory back when the result is dropped.
    ///
    /// # Safety
    /// No other thread uses places meanwhile.
    pub(crate) unsafe fn give_back(&self) -> Vec<[RingRelease; 2]> {
        // SAFETY: the caller's promise.
        self.parts.iter().filter_map(OnceLock::get).map(|part| unsafe { part.give_back() }).collect()
    }

    /// The part that a place is in, and where.
    #[inline]
    fn part(&self, place: usize) -> (&Slots, usize) {
        let (index, first) = match place / self.base {
            0 => (0, 0),
            times => (times.ilog2() as usize + 1, self.base << times.ilog2()),
        };
        (self.parts[index].get().expect("the place was handed out"), place - first)
    }

    #[inline]
    pub(crate) fn write(
        &self,
        place: usize,
        request: &ReceiveRequest<'_>,
    ) -> std::result::Result<(), PostError> {
        let (part, at) = self.part(place);
        part.write(at, request)
    }

    /// The request at a place; its sequence is the place.
    #[inline]
    pub(crate) fn read(&self, place: usize, domain: u32) -> ReceiveWork {
        let (part, at) = self.part(place);
        ReceiveWork { sequence: place as u64, ..part.read(at, domain) }
    }

    #[inline]
    pub(crate) fn sge(&self, place: usize, index: usize) -> Sge {
        let (part, at) = self.part(place);
        part.sge(at, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_what_they_are_while_more_come() {
        for base in [1, 3, 4] {
            let slots = GrowingSlots::new(base, 1, None, RingKind::SharedReceiveQueue).unwrap();
            let mut places = base;
            for target in [base, base + 1, 10, 100] {
                let grown = slots.grow(target).unwrap();
                assert!(grown >= target && grown >= places);
                for place in places..grown {
                    slots.write(place, &ReceiveRequest { wr_id: place as u64, sges: &[] }).unwrap();
                }
                for place in base..grown {
                    let work = slots.read(place, 7);
                    assert_eq!((work.wr_id, work.sequence), (place as u64, place as u64));
                }
                places = grown;
            }
        }
    }
}
