//! The half that takes records out.

use super::claim::{Claim, Withdrawal};
use super::{CAPACITY, Corrupt, FILLER, MAX_RECORD, ready_word, slots, words};
use crate::bytes;
use crate::sleep;
use crate::sync::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Word};
use crate::view::{View, index};

/// Takes records out of one direction of a segment.
pub struct Consumer {
    view: View,
    /// Where the next record begins, in slots since the beginning.
    position: u64,
    /// What the producer knows of that.
    returned: u64,
}

/// A look at the ring by a thread that does not have the consumer, without the lock around the consumer.
pub struct Glance {
    view: View,
}

impl Glance {
    /// Whether there is a record at a position where the next one begins ([`Consumer::position`]), or the
    /// producer waits for room.
    #[inline]
    pub fn is_wanted(&self, position: u64) -> bool {
        self.view.ready(position).atomic.load(Relaxed) != 0
            || self.view.sides.peer().flags.0.waits.load(Relaxed) != 0
    }
}

/// The next record. Dropped without being consumed, it stays the next.
pub struct Record<'a> {
    consumer: &'a mut Consumer,
    len: usize,
}

impl Consumer {
    pub(crate) fn new(view: View) -> Consumer {
        Consumer { view, position: 0, returned: 0 }
    }

    /// A look at the ring for a thread that has read the consumer's [`position`](Self::position).
    pub fn glance(&self) -> Glance {
        Glance { view: self.view.clone() }
    }

    /// Where the next record begins.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether [`peek`](Self::peek) will find something.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.view.ready(self.position).atomic.load(Relaxed) != 0
    }

    /// The next record, if there is one.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, Corrupt> {
        let len = match self.next() {
            // There is no filler of a whole ring: a second one in a row is corrupt.
            Ok(Some(FILLER)) => {
                let rest = CAPACITY - index(self.position) as u64;
                if rest == CAPACITY {
                    return Err(Corrupt);
                }
                self.advance(rest);
                self.next()?
            }
            other => other?,
        };
        match len.map(|len| len as usize) {
            None => Ok(None),
            Some(len) if len <= MAX_RECORD && slots(len) <= CAPACITY - index(self.position) as u64 => {
                Ok(Some(Record { consumer: self, len }))
            }
            Some(_) => Err(Corrupt),
        }
    }

    /// The ready word at our position, read once: nothing, or a length, which may be any number.
    #[inline]
    fn next(&mut self) -> Result<Option<u32>, Corrupt> {
        // Acquire: the bytes of the record were written before.
        let word = self.view.ready(self.position).atomic.load(Acquire);
        if word == 0 {
            self.return_credit();
            return Ok(None);
        }
        let len = (word >> 32) as u32;
        if word == ready_word(self.position, len) { Ok(Some(len)) } else { Err(Corrupt) }
    }

    /// Before sleeping: gives back all slots, asks the producer to have this side's doorbell rung for the
    /// next record, and looks once more. `false`: there is something, or it has to be tried again; nothing
    /// has been asked.
    ///
    /// The doorbell is to be cleared before this call, never between it and the sleep.
    pub fn prepare_to_sleep(&mut self) -> bool {
        self.return_credit();
        if self.is_ready() || !sleep::raise(&self.view.sides, |flags| &flags.sleeps) {
            return false;
        }
        if self.is_ready() {
            self.awake();
            return false;
        }
        true
    }

    /// This side polls again.
    pub fn awake(&mut self) {
        sleep::lower(&self.view.sides, |flags| &flags.sleeps);
    }

    /// Gives back all slots, and says whether the producer waits for room and its doorbell must be rung. To
    /// be asked after records have been consumed, before turning to something else. It is said once for each
    /// time that the producer prepares to wait; one that then finds too little room prepares again.
    #[inline]
    pub fn peer_waits(&mut self) -> bool {
        self.return_credit();
        sleep::take(&self.view.sides, |flags| &flags.waits)
    }

    #[inline]
    fn advance(&mut self, slots: u64) {
        self.position += slots;
        if self.position - self.returned >= CAPACITY / 4 {
            self.return_credit();
        }
    }

    /// Tells the producer how far we are.
    #[inline]
    fn return_credit(&mut self) {
        if self.returned != self.position {
            self.returned = self.position;
            // Release: the records have been read before their slots are given back.
            self.view.sides.own().credit.0.store(self.position, Release);
        }
    }
}

impl Record<'_> {
    /// Bytes of the record: at most [`MAX_RECORD`].
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "emptiness means nothing")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies what is at byte `offset` of the record; an error if there is not as much. Between two reads of
    /// the same bytes a hostile producer may change them: what must be judged is to be read once.
    #[inline]
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<(), Corrupt> {
        if offset > self.len || target.len() > self.len - offset {
            return Err(Corrupt);
        }
        bytes::load(self.payload(), offset, target);
        Ok(())
    }

    /// The first words of the record, in the order of bytes of this machine; none if it has fewer.
    #[inline(always)]
    pub fn first_words<const N: usize>(&self) -> Option<[u64; N]> {
        let from = self.consumer.view.from(self.consumer.position);
        (N <= words(self.len)).then(|| std::array::from_fn(|place| from[1 + place].get()))
    }

    /// Copies the first words of the record, in the order of bytes of this machine: as many as it has and
    /// `target` has room for. The last one may have bytes that mean nothing.
    #[inline]
    pub fn read_words(&self, target: &mut [u64]) {
        for (word, from) in target.iter_mut().zip(self.payload()) {
            *word = from.get();
        }
    }

    /// Where the record's bytes are, aligned to 8: [`len`](Self::len) of them may be read as long as the
    /// record lives. The other process may change them at any time, so they are to be read by pointer, by a
    /// routine that does not mind, never through a reference.
    #[inline]
    #[cfg(not(loom))]
    pub fn as_ptr(&self) -> *const u8 {
        self.consumer.view.from(self.consumer.position)[1..].as_ptr().cast()
    }

    /// Claims the memory of the producer that the record speaks of, before that memory is read.
    ///
    /// # Errors
    /// It must not be read any more, or the record speaks of none.
    pub fn claim(&self) -> Result<(), Withdrawal> {
        self.claims().begin()
    }

    /// Whether the producer has not taken the claim away meanwhile: to be asked after [`Record::claim`] and
    /// the reading. The record stays claimed.
    ///
    /// # Errors
    /// What was read is void.
    pub fn check_claim(&self) -> Result<(), Withdrawal> {
        self.claims().check()
    }

    /// Ends the claim: the payload is not, or will not be, read any more.
    pub fn end_claim(&self) {
        self.claims().end();
    }

    fn claims(&self) -> Claim<'_> {
        Claim::new(&self.consumer.view, self.consumer.position)
    }

    /// Makes the record behind it the next.
    #[inline]
    pub fn consume(self) {
        self.consumer.advance(slots(self.len));
    }

    /// Makes the record behind this one the next, and returns that record, if it is there. The next
    /// [`peek`](Consumer::peek) finds a fault of the ring.
    #[inline(always)]
    pub fn consume_and_peek(self) -> Option<Self> {
        let Self { consumer, len } = self;
        consumer.advance(slots(len));
        consumer.peek().ok().flatten()
    }

    /// Has the processor fetch the slot that is so many behind this record: the lines of those that have come
    /// wait at the other processor, and a look at each would wait for its line.
    #[inline(always)]
    pub fn fetch_behind(&self, distance: u64) {
        self.consumer.view.fetch_for_reading(self.consumer.position + slots(self.len) + distance);
    }

    #[inline]
    fn payload(&self) -> &[Word] {
        self.consumer.view.payload(self.consumer.position, self.len)
    }
}
