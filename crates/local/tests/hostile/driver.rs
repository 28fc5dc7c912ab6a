//! Both sides of a segment, and a hostile process that writes anything to any word of it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adverb_local::{Corrupt, Kind, MAX_RECORD, Parts, Registration, Segment, Withdrawal};

/// Words of a segment.
pub(crate) const WORDS: usize = Segment::SIZE / 8;
/// Bytes in front of the rings.
const HEADER: usize = 4096;
/// Slots of each of the two rings, of 64 bytes.
const SLOTS: usize = 256;

/// A mapping of a segment beside those of its two sides.
pub(crate) struct Intruder(NonNull<[AtomicU64; WORDS]>);

// SAFETY: nothing but atomic words, mapped until it is dropped.
unsafe impl Send for Intruder {}

impl Intruder {
    fn new(segment: &File) -> Intruder {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (anywhere, fd) = (std::ptr::null_mut(), segment.as_raw_fd());
        // SAFETY: a new mapping of a file that is as long as it says.
        let address = unsafe { libc::mmap(anywhere, Segment::SIZE, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Intruder(NonNull::new(address.cast()).unwrap())
    }

    /// One of the segment's words.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: mapped as long as we are; atomics bear every change.
        let words = unsafe { self.0.as_ref() };
        &words[index % WORDS]
    }
}

impl Drop for Intruder {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody borrows from us.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Segment::SIZE) };
    }
}

/// A fresh segment, opened by its two sides, and the intruder.
pub(crate) fn segment() -> ([Parts; 2], Intruder) {
    let (creator, descriptor) = Segment::create().unwrap();
    let file = File::from(descriptor.as_fd().try_clone_to_owned().unwrap());
    let opener = Segment::open_with(descriptor, Registration::none()).unwrap();
    ([creator.parts(), opener.parts()], Intruder::new(&file))
}

/// What has come of reading.
#[derive(Default)]
pub(crate) struct ReadCount {
    pub(crate) records: u64,
    pub(crate) corrupt: u64,
}

/// What one byte chooses of what a side can do. Whatever stands in the segment, it comes back, and lengths
/// are within bounds.
pub(crate) fn step(parts: &mut Parts, choice: u8, len: usize, seen: &mut ReadCount) {
    let Parts { producer, consumer, hazard_slots, hazard_view } = parts;
    let mut bytes = [0x5A; MAX_RECORD + 1];
    // Mostly short ones, of which there are more in a ring.
    let len = len % if choice & 16 == 0 { 200 } else { MAX_RECORD + 1 };
    match choice % 8 {
        0..=1 => {
            if let Some(mut slot) = producer.reserve(len) {
                slot.write_at(0, &bytes[..len]);
                if choice & 32 == 0 {
                    slot.publish();
                } else {
                    let loan = slot.publish_loan();
                    let loans = producer.loans();
                    if choice & 64 == 0 && !loans.withdraw(loan, Withdrawal::Lost) {
                        loans.revoke(loan, Withdrawal::Revoked);
                    }
                }
            }
            producer.peer_sleeps();
        }
        2 => assert!(producer.room().is_none_or(|room| room <= MAX_RECORD)),
        3 => {
            if producer.prepare_to_wait(len) {
                producer.awake();
            }
            // There is a word for it, whatever the other side has written there.
            let announced = hazard_slots.announce(len as u32, choice.into()).unwrap();
            hazard_view.is_announced(if choice & 8 == 0 { Kind::Key } else { Kind::Pair }, len);
            drop(announced);
        }
        4 => {
            if consumer.prepare_to_sleep() {
                consumer.awake();
            }
            consumer.peer_waits();
        }
        _ => {
            let record = match consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(Corrupt) => {
                    seen.corrupt += 1;
                    return;
                }
            };
            seen.records += 1;
            let all = record.len();
            record.read_at(0, &mut bytes[..all]).unwrap();
            assert!(record.read_at(0, &mut bytes[..all + 1]).is_err());
            let from = len % (all + 1);
            record.read_at(from, &mut bytes[..all - from]).unwrap();
            if choice & 64 == 0 && record.claim().is_ok() {
                let _ = record.check_claim();
                record.end_claim();
            }
            if choice & 8 == 0 {
                record.consume();
            }
        }
    }
}

/// The word of a segment that a number stands for: more often one that matters than not.
pub(crate) fn interesting(intruder: &Intruder, number: u16) -> usize {
    let index = usize::from(number >> 2);
    match number & 3 {
        // The header: what the sides say of themselves.
        0 => index % (HEADER / 8),
        // The next that is, or was, the ready word of a record; it says at which slot that begins.
        1 => {
            let slot = |slot: usize| HEADER / 8 + slot % (2 * SLOTS) * 8;
            let is_ready = |at: &usize| {
                let tag = intruder.word(slot(*at)).load(Relaxed) as u32;
                tag & 1 == 1 && tag as usize / 2 % SLOTS == at % SLOTS
            };
            slot((index..index + SLOTS).find(is_ready).unwrap_or(index))
        }
        // The first word of any slot.
        2 => HEADER / 8 + index % (2 * SLOTS) * 8,
        _ => index % WORDS,
    }
}

/// What the intruder makes of a word.
pub(crate) fn spoil(word: &AtomicU64, choice: u8, value: u64) {
    let old = word.load(Relaxed);
    let new = match choice % 6 {
        0 => value,
        // A ready word keeps its tag, and has another length: up to that of the ring, or any, or that of a
        // filler.
        1 => old & 0xFFFF_FFFF | (value % (2 * MAX_RECORD as u64 + 16)) << 32,
        2 if value.is_multiple_of(2) => old | 0xFFFF_FFFF << 32,
        2 => old & 0xFFFF_FFFF | value << 32,
        3 => old.wrapping_add(value % 256),
        4 => old.wrapping_sub(value % 256),
        _ => 0,
    };
    word.store(new, Relaxed);
}

/// A run that the bytes choose.
pub(crate) fn run(input: &[u8], seen: &mut ReadCount) {
    let (mut sides, intruder) = segment();
    for step_of in input.chunks_exact(8) {
        let &[choice, kind, a, b, c, d, e, f] = step_of else { continue };
        let value = u64::from_le_bytes([c, d, e, f, c ^ kind, d, 0, e]);
        if choice & 0x40 != 0 {
            spoil(intruder.word(interesting(&intruder, u16::from_le_bytes([a, b]))), kind, value);
        } else {
            step(&mut sides[usize::from(choice >> 7)], choice, usize::from(u16::from_le_bytes([a, b])), seen);
        }
    }
}
