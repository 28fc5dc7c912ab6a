//! The rings: four slots, of one word of bytes each.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::layout::{SegmentLayout, Which};
use crate::membarrier::Registration;
use crate::ring::{Consumer, MAX_RECORD, Producer, Withdrawal};
use crate::view::{Sides, View};

/// In place of the event descriptor: loom ends with an error when everybody waits for ever.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Waits until it has been rung, and clears it.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn halves(creator: Registration, opener: Registration) -> (Producer, Consumer) {
    let memory = Arc::new(SegmentLayout::default());
    let view =
        |which, registration| View::new(Sides::new(&memory, which, registration), &memory, Which::Creator);
    (Producer::new(view(Which::Creator, creator)), Consumer::new(view(Which::Opener, opener)))
}

/// A pair whose ring has been used for some slots, so that what follows goes across its end.
fn pair(used: usize) -> (Producer, Consumer) {
    let (mut producer, mut consumer) = halves(Registration::none(), Registration::none());
    for _ in 0..used {
        // All ones, which are not to be taken for anything later.
        send(&mut producer, &[0xFF; 8]).unwrap();
        receive(&mut consumer).unwrap();
    }
    assert!(receive(&mut consumer).is_none());
    (producer, consumer)
}

fn send(producer: &mut Producer, bytes: &[u8]) -> Option<()> {
    let mut slot = producer.reserve(bytes.len())?;
    slot.write_at(0, bytes);
    slot.publish();
    Some(())
}

fn receive(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let record = consumer.peek().expect("nobody is hostile here")?;
    let mut bytes = vec![0; record.len()];
    record.read_at(0, &mut bytes).unwrap();
    record.consume();
    Some(bytes)
}

/// The records of a run: all the same byte, never that of another one.
fn records(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(number, len)| vec![number as u8 + 1; *len]).collect()
}

/// One thread sends, the other receives, both by trying again.
fn stream(used: usize, lengths: &'static [usize]) {
    loom::model(move || {
        let (mut producer, mut consumer) = pair(used);
        let sender = thread::spawn(move || {
            for record in records(lengths) {
                while send(&mut producer, &record).is_none() {
                    thread::yield_now();
                }
            }
            producer.check().unwrap();
        });
        for expected in records(lengths) {
            let record = loop {
                match receive(&mut consumer) {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(record, expected);
        }
        assert!(receive(&mut consumer).is_none());
        sender.join().unwrap();
    });
}

#[test]
fn records_that_fit() {
    for used in 0..4 {
        stream(used, &[8, 0]);
        stream(used, &[MAX_RECORD]);
    }
}

#[test]
fn records_that_must_wait_for_room() {
    for used in 0..4 {
        stream(used, &[16, 24, 8]);
    }
}

#[test]
fn more_records_than_slots() {
    stream(0, &[8, 8, 8, 8]);
}

/// A consumer that sleeps whenever it finds nothing is woken for each record.
fn sleeper(lengths: &'static [usize], creator: Registration, opener: Registration) {
    let mut model = loom::model::Builder::new();
    // One record in every order that there is; more in those with a few changes of thread that nobody waited
    // for, for the sake of time.
    model.preemption_bound = (lengths.len() > 1).then_some(4);
    model.check(move || {
        let (mut producer, mut consumer) = halves(creator, opener);
        let doorbell = Arc::new(Doorbell::default());
        let ringer = doorbell.clone();
        let sender = thread::spawn(move || {
            for record in records(lengths) {
                send(&mut producer, &record).unwrap();
                if producer.peer_sleeps() {
                    ringer.ring();
                }
            }
        });
        for expected in records(lengths) {
            while consumer.prepare_to_sleep() {
                doorbell.wait();
                consumer.awake();
            }
            assert_eq!(receive(&mut consumer), Some(expected));
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_consumer_that_sleeps_is_woken() {
    let (with, without) = (Registration::model(), Registration::none());
    for (creator, opener) in [(without, without), (with, with), (with, without), (without, with)] {
        sleeper(&[8], creator, opener);
        sleeper(&[8, 8], creator, opener);
    }
}

/// A producer that sleeps when it finds no room is woken when there is some.
#[test]
fn a_producer_that_waits_for_room_is_woken() {
    loom::model(|| {
        let (mut producer, mut consumer) = pair(0);
        send(&mut producer, &[1; 24]).unwrap();
        let doorbell = Arc::new(Doorbell::default());
        let ringer = doorbell.clone();
        let receiver = thread::spawn(move || {
            for expected in [vec![1; 24], vec![2; 24]] {
                let record = loop {
                    if let Some(record) = receive(&mut consumer) {
                        break record;
                    }
                    if consumer.peer_waits() {
                        ringer.ring();
                    }
                    thread::yield_now();
                };
                assert_eq!(record, expected);
            }
        });
        while send(&mut producer, &[2; 24]).is_none() {
            if producer.prepare_to_wait(24) {
                doorbell.wait();
                producer.awake();
            }
        }
        receiver.join().unwrap();
    });
}

/// Lends a cell, and takes it back while the consumer may be at it.
fn lend(used: usize, patient: bool) {
    loom::model(move || {
        let (mut producer, mut consumer) = pair(used);
        let lent = Arc::new(loom::sync::atomic::AtomicU64::new(1));
        let alone = Arc::new(loom::cell::UnsafeCell::new(()));
        let loans = producer.loans();
        let mut slot = producer.reserve(8).unwrap();
        slot.write_at(0, &[7; 8]);
        let loan = slot.publish_loan();
        let (seen, held) = (lent.clone(), alone.clone());
        let receiver = thread::spawn(move || {
            let record = consumer.peek().unwrap().expect("it was there before");
            if record.claim().is_ok() {
                // If the sender is patient, it does not write the memory meanwhile.
                if patient {
                    held.with(|_| ());
                }
                let value = seen.load(loom::sync::atomic::Ordering::Relaxed);
                match record.check_claim() {
                    Ok(()) => assert_eq!(value, 1, "what was read was there when it was lent"),
                    Err(why) => assert!(!patient && why == Withdrawal::Revoked),
                }
            }
            record.end_claim();
            record.consume();
            assert!(receive(&mut consumer).is_none());
        });
        if patient {
            while !loans.withdraw(loan, Withdrawal::Revoked) {
                thread::yield_now();
            }
            alone.with_mut(|_| ());
        } else {
            loans.revoke(loan, Withdrawal::Revoked);
        }
        assert!(loans.is_over(loan));
        lent.store(2, loom::sync::atomic::Ordering::Relaxed);
        receiver.join().unwrap();
    });
}

#[test]
fn lent_memory_is_taken_back() {
    for used in [0, 3] {
        lend(used, true);
        lend(used, false);
    }
}
