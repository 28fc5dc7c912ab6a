//! Both sides of a segment in one process.

use std::collections::VecDeque;

use super::*;
use crate::membarrier::Registration;
use crate::segment::Segment;

/// The first side's producer and the second's consumer, then the other direction.
fn pair() -> ((Producer, Consumer), (Producer, Consumer)) {
    let (creator, descriptor) = Segment::create().unwrap();
    let opener = Segment::open_with(descriptor, Registration::take()).unwrap();
    let ((there, back), (answer, question)) = (creator.split(), opener.split());
    ((there, question), (answer, back))
}

fn send(producer: &mut Producer, bytes: &[u8]) -> bool {
    let Some(mut slot) = producer.reserve(bytes.len()) else { return false };
    assert_eq!(slot.len(), bytes.len());
    slot.write_at(0, bytes);
    slot.publish();
    true
}

fn receive(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let record = consumer.peek().unwrap()?;
    let mut bytes = vec![0; record.len()];
    record.read_at(0, &mut bytes).unwrap();
    record.consume();
    Some(bytes)
}

/// A small generator of numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % limit
    }
}

#[test]
fn records_come_out_in_order() {
    let ((mut producer, mut consumer), _back) = pair();
    let mut random = Random(1);
    let mut expected = VecDeque::new();
    let mut sent = 0u32;
    // An interpreter takes long.
    let phase = if cfg!(miri) { 3 } else { 1000 };
    for round in 0..20 * phase {
        // Phases in which the ring is mostly full, and mostly empty.
        if random.below(4) < if round / phase % 2 == 0 { 3 } else { 1 } {
            let len = if random.below(3) == 0 { random.below(MAX_RECORD + 1) } else { random.below(200) };
            let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 ^ sent) as u8).collect();
            if let Some(first) = bytes.first_chunk_mut() {
                // What looks like a ready word where a later lap may look for one.
                *first = sent.to_ne_bytes();
            }
            let room = producer.room();
            assert_eq!(room.is_some_and(|room| room >= len), producer.reserve(len).is_some(), "{room:?}");
            if send(&mut producer, &bytes) {
                expected.push_back(bytes);
                sent += 1;
            }
        } else {
            assert_eq!(consumer.is_ready(), !expected.is_empty());
            assert_eq!(receive(&mut consumer), expected.pop_front());
        }
    }
    assert!(sent > 5 * phase);
    producer.check().unwrap();
}

#[test]
fn the_longest_record_fits_wherever_an_empty_ring_stands() {
    let ((mut producer, mut consumer), _back) = pair();
    let longest = vec![7; MAX_RECORD];
    let rounds = if cfg!(miri) { 3 } else { 2 * CAPACITY };
    for _ in 0..rounds {
        assert!(send(&mut producer, &longest));
        assert!(!send(&mut producer, &longest));
        assert_eq!(receive(&mut consumer).as_deref(), Some(&longest[..]));
        // Finding it empty gives all slots back.
        assert_eq!(receive(&mut consumer), None);
        assert!(send(&mut producer, &[1]));
        assert_eq!(receive(&mut consumer).as_deref(), Some(&[1][..]));
        assert_eq!(receive(&mut consumer), None);
    }
}

#[test]
fn a_full_ring_takes_no_more_and_loses_nothing() {
    let ((mut producer, mut consumer), _back) = pair();
    let mut sent = 0u64;
    while send(&mut producer, &sent.to_ne_bytes()) {
        sent += 1;
    }
    // One slot stays free.
    assert_eq!(sent, CAPACITY - 1);
    assert_eq!(producer.room(), None);
    for number in 0..sent {
        assert_eq!(receive(&mut consumer).as_deref(), Some(&number.to_ne_bytes()[..]));
    }
    assert_eq!(receive(&mut consumer), None);
}

#[test]
fn a_reservation_that_is_dropped_leaves_nothing() {
    let ((mut producer, mut consumer), _back) = pair();
    let rounds = if cfg!(miri) { 4 } else { 4 * CAPACITY };
    for number in 0..rounds {
        let mut slot = producer.reserve(500).unwrap();
        slot.write_at(0, &[0xFF; 500]);
        drop(slot);
        assert_eq!(receive(&mut consumer), None);
        assert!(send(&mut producer, &number.to_ne_bytes()));
        // One that is only looked at stays.
        assert_eq!(consumer.peek().unwrap().unwrap().len(), 8);
        assert_eq!(receive(&mut consumer).as_deref(), Some(&number.to_ne_bytes()[..]));
    }
}

#[test]
fn bytes_may_be_copied_by_pointer() {
    let ((mut producer, mut consumer), _back) = pair();
    for len in (0..600).step_by(if cfg!(miri) { 97 } else { 1 }) {
        let bytes: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
        let mut slot = producer.reserve(len).unwrap();
        // SAFETY: the slot has `len` bytes, and nobody else is there.
        unsafe { slot.as_mut_ptr().copy_from(bytes.as_ptr(), len) };
        slot.publish();
        let record = consumer.peek().unwrap().unwrap();
        let mut back = vec![0; len];
        // SAFETY: the record has `len` bytes, and nobody else is there.
        unsafe { back.as_mut_ptr().copy_from(record.as_ptr(), len) };
        assert_eq!(record.read_at(len, &mut [0]), Err(Corrupt));
        assert_eq!(record.read_at(len + 1, &mut []), Err(Corrupt));
        record.consume();
        assert_eq!(back, bytes);
    }
}

#[test]
fn a_consumer_that_sleeps_is_told_once() {
    for registration in [Registration::take(), Registration::none()] {
        let (creator, descriptor) = Segment::create_with(registration).unwrap();
        let (mut producer, _back) = creator.split();
        let (_answer, mut consumer) = Segment::open(descriptor).unwrap().split();
        assert!(!producer.peer_sleeps());
        for _ in 0..3 {
            assert!(consumer.prepare_to_sleep());
            assert!(send(&mut producer, &[]));
            assert!(producer.peer_sleeps());
            assert!(!producer.peer_sleeps());
            // There is something, and so the flag stays down.
            assert!(!consumer.prepare_to_sleep());
            assert!(!producer.peer_sleeps());
            assert_eq!(receive(&mut consumer), Some(vec![]));
            assert!(consumer.prepare_to_sleep());
            consumer.awake();
            assert!(!producer.peer_sleeps());
        }
    }
}

#[test]
fn a_producer_that_waits_for_room_is_told_once() {
    let ((mut producer, mut consumer), _back) = pair();
    assert!(!producer.prepare_to_wait(MAX_RECORD));
    assert!(!consumer.peer_waits());
    for _ in 0..3 {
        while send(&mut producer, &[1; 300]) {}
        assert!(producer.prepare_to_wait(300));
        while receive(&mut consumer).is_some() {}
        assert!(consumer.peer_waits());
        assert!(!consumer.peer_waits());
        assert!(!producer.prepare_to_wait(300));
        assert!(!consumer.peer_waits());
    }
}

#[test]
fn a_consumer_that_stops_before_the_ring_is_empty_gives_slots_back() {
    let ((mut producer, mut consumer), _back) = pair();
    while send(&mut producer, &[1]) {}
    assert!(producer.prepare_to_wait(8));
    // Less than what makes the consumer give slots back by itself.
    assert!(receive(&mut consumer).is_some());
    assert!(!send(&mut producer, &[1; 8]));
    assert!(consumer.peer_waits());
    assert!(!producer.prepare_to_wait(8));
    // Two slots, behind a filler of one.
    assert!(producer.prepare_to_wait(100));
    assert!(receive(&mut consumer).is_some());
    assert!(consumer.peer_waits());
    assert!(producer.prepare_to_wait(100));
    assert!(receive(&mut consumer).is_some());
    assert!(consumer.peer_waits());
    assert!(!producer.prepare_to_wait(100));
}

#[test]
fn two_threads() {
    let ((mut producer, mut consumer), _back) = pair();
    const RECORDS: u64 = if cfg!(miri) { 50 } else { 200_000 };
    let sender = std::thread::spawn(move || {
        let mut random = Random(2);
        for number in 0..RECORDS {
            let len = 8 + random.below(120);
            loop {
                if let Some(mut slot) = producer.reserve(len) {
                    slot.write_at(0, &number.to_ne_bytes());
                    slot.write_at(len - 1, &[number as u8]);
                    slot.publish();
                    break;
                }
                std::thread::yield_now();
            }
        }
    });
    let mut random = Random(2);
    for number in 0..RECORDS {
        let len = 8 + random.below(120);
        let bytes = loop {
            if let Some(bytes) = receive(&mut consumer) {
                break bytes;
            }
            std::thread::yield_now();
        };
        assert_eq!(bytes.len(), len);
        assert_eq!(bytes[len - 1], number as u8);
        assert!(len == 8 || bytes[..8] == number.to_ne_bytes());
    }
    sender.join().unwrap();
}

#[test]
fn a_loan_is_claimed_finished_or_withdrawn() {
    let ((mut producer, mut consumer), _) = pair();
    let loans = producer.loans();
    let mut lend = || {
        let mut slot = producer.reserve(8).unwrap();
        slot.write_at(0, &[1; 8]);
        slot.publish_loan()
    };
    let (read, lost, revoked, late, ignored) = (lend(), lend(), lend(), lend(), lend());
    assert!(loans.withdraw(lost, Withdrawal::Lost) && loans.withdraw(revoked, Withdrawal::Revoked));

    let record = consumer.peek().unwrap().unwrap();
    assert!(!loans.is_over(read));
    record.claim().unwrap();
    assert!(!loans.withdraw(read, Withdrawal::Lost), "it is being read");
    record.check_claim().unwrap();
    record.end_claim();
    assert!(loans.is_over(read) && loans.withdraw(read, Withdrawal::Lost));
    record.consume();

    for why in [Withdrawal::Lost, Withdrawal::Revoked] {
        let record = consumer.peek().unwrap().unwrap();
        assert_eq!(record.claim(), Err(why));
        record.consume();
    }

    let record = consumer.peek().unwrap().unwrap();
    record.claim().unwrap();
    loans.revoke(late, Withdrawal::Revoked);
    assert_eq!(record.check_claim(), Err(Withdrawal::Revoked));
    record.end_claim();
    record.consume();

    let record = consumer.peek().unwrap().unwrap();
    assert!(!loans.is_over(ignored));
    record.end_claim();
    assert!(loans.is_over(ignored));
    record.consume();

    // The word of a slot belongs to the last record that began there.
    send(&mut producer, &[0; 8]);
    let record = consumer.peek().unwrap().unwrap();
    assert!(record.claim().is_err(), "it speaks of no memory");
    record.consume();
}
