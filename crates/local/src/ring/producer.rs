//! The half that puts records in.

use super::claim::{self, Loan};
use super::{CAPACITY, Corrupt, FILLER, MAX_RECORD, ready_word, slots};
use crate::bytes;
use crate::sleep;
use crate::sync::{Ordering::Acquire, Ordering::Release, Word};
use crate::view::{View, index};

/// So many slots ahead of the next record are fetched: as many short records as a program posts while a cache
/// line comes from the other processor.
const AHEAD: u64 = 8;

/// Puts records into one direction of a segment.
pub struct Producer {
    view: View,
    /// Where the next record begins, in slots since the beginning.
    position: u64,
    /// Where the consumer was when we last looked.
    consumed: u64,
    /// The consumer claims to have consumed what was not there.
    corrupt: bool,
}

/// Room for a record, for its bytes to be written. Dropped without being published, it leaves nothing behind.
#[must_use = "a record that is not published is not sent"]
pub struct Slot<'a> {
    producer: &'a mut Producer,
    /// Where the record begins, behind a filler if there is one.
    start: u64,
    /// Behind it.
    end: u64,
    len: usize,
}

impl Producer {
    pub(crate) fn new(view: View) -> Producer {
        Producer { view, position: 0, consumed: 0, corrupt: false }
    }

    /// Room for a record of `len` bytes, or `None` while there is none. Some may come with the consumer's
    /// progress, unless [`check`](Self::check) says otherwise.
    ///
    /// # Panics
    /// If `len` is more than [`MAX_RECORD`].
    #[inline(always)]
    pub fn reserve(&mut self, len: usize) -> Option<Slot<'_>> {
        assert!(len <= MAX_RECORD, "a record of {len} bytes");
        let slots = slots(len);
        let start = self.start(slots);
        let end = start + slots;
        // The slot behind the record, too: its first word is zeroed.
        if end + 1 - self.consumed > CAPACITY && !self.refresh(end + 1) {
            return None;
        }
        Some(Slot { producer: self, start, end, len })
    }

    /// How many bytes a record may have for [`reserve`](Self::reserve) to find room now; `None` if not even
    /// an empty one fits.
    pub fn room(&mut self) -> Option<usize> {
        self.refresh(self.position);
        // A record that goes up to the end of the ring, or one behind a filler.
        let free = CAPACITY - (self.position - self.consumed);
        let rest = CAPACITY - index(self.position) as u64;
        let longest = (free.saturating_sub(1)).min(rest).max(free.saturating_sub(1 + rest));
        (longest > 0).then(|| (longest as usize * crate::layout::SLOT_WORDS * 8 - 8).min(MAX_RECORD))
    }

    /// An error once the consumer has claimed to have consumed records that were never published.
    #[inline]
    pub fn check(&self) -> Result<(), Corrupt> {
        if self.corrupt { Err(Corrupt) } else { Ok(()) }
    }

    /// To be asked after records have been published: whether the consumer sleeps, and its doorbell must be
    /// rung. It is said once for each time that the consumer prepares to sleep.
    #[inline]
    pub fn peer_sleeps(&self) -> bool {
        sleep::take(&self.view.sides, |flags| &flags.sleeps)
    }

    /// Before waiting for room for a record of `len` bytes: asks the consumer to ring this side's doorbell
    /// when it has given slots back, and looks once more. `false`: there is room now (or there never will be:
    /// see [`check`](Self::check)), and nothing has been asked.
    ///
    /// # Panics
    /// If `len` is more than [`MAX_RECORD`].
    pub fn prepare_to_wait(&mut self, len: usize) -> bool {
        if self.reserve(len).is_some()
            || self.corrupt
            || !sleep::raise(&self.view.sides, |flags| &flags.waits)
        {
            return false;
        }
        if self.reserve(len).is_some() || self.corrupt {
            self.awake();
            return false;
        }
        true
    }

    /// This side does not wait for room any more.
    pub fn awake(&mut self) {
        sleep::lower(&self.view.sides, |flags| &flags.waits);
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    /// Has the processor fetch a slot that is written before long, for writing: the consumer's processor read
    /// it in the last lap, and has to give it up. A store would wait for that, and each one behind it.
    #[inline]
    fn fetch_ahead(&self) {
        let ahead = self.position + AHEAD;
        // Slots that the consumer may still read stay where they are.
        if ahead - self.consumed < CAPACITY {
            self.view.fetch_for_writing(ahead);
        }
    }

    /// Where a record of so many slots would begin.
    #[inline(always)]
    fn start(&self, slots: u64) -> u64 {
        let rest = CAPACITY - index(self.position) as u64;
        if slots <= rest { self.position } else { self.position + rest }
    }

    /// Looks how far the consumer is. Are the slots before `end` free?
    #[cold]
    fn refresh(&mut self, end: u64) -> bool {
        // Acquire: the consumer has read its slots before we overwrite them.
        let consumed = self.view.sides.peer().credit.0.load(Acquire);
        // A true count lies between the consumer's last count and the last record that we have put in.
        if consumed.wrapping_sub(self.consumed) > self.position - self.consumed {
            self.corrupt = true;
        } else {
            self.consumed = consumed;
        }
        end - self.consumed <= CAPACITY
    }
}

impl Slot<'_> {
    /// Bytes of the record.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "it is as long as the caller has asked for")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes whole words, in the order of bytes of this machine, at the beginning of the record.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline(always)]
    pub fn write_words<const N: usize>(&mut self, words: [u64; N]) {
        assert!(N <= super::words(self.len), "words beyond the end of a record");
        let room = self.producer.view.from(self.start)[1..].first_chunk::<N>();
        let room = room.expect("words beyond the end of the ring");
        // By their places: so the compiler has no loop, and the values are in no memory.
        (0..N).for_each(|place| room[place].set(words[place]));
    }

    /// Writes one word at word `place` of the record.
    ///
    /// # Panics
    /// If it does not fit.
    #[inline(always)]
    pub fn write_word(&mut self, place: usize, word: u64) {
        assert!(place < super::words(self.len), "a word beyond the end of a record");
        self.producer.view.from(self.start)[1 + place].set(word);
    }

    /// Writes whole words from word `first` of the record on: as many as `words` has, or as fit.
    #[inline]
    pub fn write_words_from(&mut self, first: usize, words: impl Iterator<Item = u64>) {
        let room = self.payload().get(first..).unwrap_or_default();
        for (word, value) in room.iter().zip(words) {
            word.set(value);
        }
    }

    /// Writes `bytes` at byte `offset` of the record.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "bytes beyond the end of a record");
        bytes::store(self.payload(), offset, bytes);
    }

    /// Where the record's bytes are, aligned to 8: the caller may write [`len`](Self::len) bytes there as
    /// long as the slot lives. The other process may change them at any time, so they are to be written by
    /// pointer, never through a reference.
    #[inline]
    #[cfg(not(loom))]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.producer.view.from(self.start)[1..].as_ptr().cast_mut().cast()
    }

    /// Makes a record visible that speaks of memory of ours: the consumer may claim that from now on.
    #[inline]
    pub fn publish_loan(self) -> Loan {
        let loan = claim::offer(&self.producer.view, self.start);
        self.publish();
        loan
    }

    /// Makes the record visible to the consumer.
    #[inline(always)]
    pub fn publish(self) {
        let Slot { producer, start, end, len } = self;
        let view = &producer.view;
        view.ready(end).set(0);
        view.ready(start).atomic.store(ready_word(start, len as u32), Release);
        if start != producer.position {
            // The consumer comes upon the record by way of the filler, so that this store publishes both.
            view.ready(producer.position).atomic.store(ready_word(producer.position, FILLER), Release);
        }
        producer.position = end;
        producer.fetch_ahead();
    }

    #[inline(always)]
    fn payload(&self) -> &[Word] {
        self.producer.view.payload(self.start, self.len)
    }
}
