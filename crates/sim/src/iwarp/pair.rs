//! Two endpoints and a wire between them: random work of every kind, in pieces of random size, with every
//! byte checked; then the same with damage.

use std::collections::VecDeque;
use std::time::Duration;

use adverb_proto::iwarp::mpa::{
    Config, Initiator, Parameters, Reply, Request, Responder, Revision, RtrKinds,
};
use adverb_proto::iwarp::{AtomicOperation, Fault, Terminate};

use super::endpoint::{Endpoint, Event, Region, Work};
use crate::Random;

/// The region that a peer may write to, at both ends.
pub(crate) const WRITABLE: u32 = 0x11;
/// The region that a peer may read from.
pub(crate) const READABLE: u32 = 0x22;
/// The region for atomic operations.
pub(crate) const COUNTERS: u32 = 0x33;
/// A region without rights for the peer.
pub(crate) const PRIVATE: u32 = 0x44;
/// STags above this are invalidated by Sends.
pub(crate) const INVALIDATED: u32 = 0x1000;
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
pub(crate) const SIZE: usize = 200_000;

pub(crate) struct Pair {
    pub(crate) ends: [Endpoint; 2],
    pub(crate) parameters: [Parameters; 2],
    /// Pieces that were moved.
    pub(crate) steps: u64,
}

impl Pair {
    /// A connection by way of a start-up whose frames come in pieces.
    pub(crate) fn connect(a: &Config, b: &Config, random: &mut Random) -> Pair {
        let (now, timeout) = (Duration::from_millis(random.next() % 1000), Duration::from_secs(2));
        let initiator = Initiator::new(a, b"request", now, timeout).unwrap();
        let responder = Responder::new(now, timeout);
        let mut received = 0;
        let offer = loop {
            let Request::Complete { offer, private_data, consumed } =
                responder.receive(&initiator.request()[..received]).unwrap()
            else {
                received += 1 + random.below(initiator.request().len() - received);
                continue;
            };
            assert_eq!((private_data, consumed), (&b"request"[..], received));
            break offer;
        };
        let (reply, theirs) = offer.accept(b, b"reply").unwrap();
        let mut received = 0;
        let ours = loop {
            let Reply::Accepted { parameters, private_data, .. } =
                initiator.receive(&reply[..received]).unwrap()
            else {
                received += 1 + random.below(reply.len() - received);
                continue;
            };
            assert_eq!(private_data, b"reply");
            break parameters;
        };
        let emss = [256, 1448, 8948, 65483][random.below(4)];
        let ends = [Endpoint::new(&ours, emss), Endpoint::new(&theirs, emss)];
        Pair { ends, parameters: [ours, theirs], steps: 0 }
    }

    /// One random step. False if nothing can happen any more.
    fn step(&mut self, random: &mut Random) -> bool {
        let side = random.below(2);
        for side in [side, 1 - side] {
            let carry_first = random.chance(2);
            let moved = carry_first && self.carry(side, random)
                || self.ends[side].transmit(random)
                || self.carry(side, random);
            if moved {
                self.steps += 1;
                return true;
            }
        }
        false
    }

    /// Moves some bytes from one end to the other.
    fn carry(&mut self, from: usize, random: &mut Random) -> bool {
        let wire = &mut self.ends[from].wire;
        if wire.is_empty() {
            return false;
        }
        let limit = if random.chance(3) { 40 } else { 5000 };
        let len = 1 + random.below(limit.min(wire.len()));
        let bytes: Vec<u8> = wire.drain(..len).collect();
        self.ends[1 - from].receive(bytes);
        true
    }

    pub(crate) fn run(&mut self, random: &mut Random) {
        // Every step moves at least a byte or an FPDU; the bound only makes a livelock a failure.
        for _ in 0..2_000_000 {
            if !self.step(random) {
                return;
            }
        }
        panic!("the two ends never come to rest");
    }
}

fn config(random: &mut Random) -> Config {
    let rtr = RtrKinds { send: random.chance(2), write: random.chance(2), read: random.chance(2) };
    Config {
        revision: if random.chance(4) { Revision::One } else { Revision::Two },
        crc: random.chance(2),
        markers: random.chance(3),
        ird: random.below(6) as u16,
        ird_limit: 8,
        ord: 1 + random.below(6) as u16,
        rtr: if random.chance(2) { RtrKinds::NONE } else { rtr },
        large_fpdu: random.chance(3),
        extensions: true,
    }
}

/// What must be found at an end when everything is done.
#[derive(Default)]
struct Expectations {
    writable: Vec<u8>,
    counters: Vec<u8>,
    events: VecDeque<Event>,
    answers: VecDeque<Event>,
}

/// Asks for random work at one end and says what it does to the other, and what comes back.
fn load(pair: &mut Pair, from: usize, work: usize, random: &mut Random, expected: &mut [Expectations; 2]) {
    let extensions = pair.parameters[from].extensions;
    let reads = pair.parameters[from].ord != Some(0) && pair.parameters[1 - from].ird != Some(0);
    let readable = pair.ends[1 - from].regions[&READABLE].bytes.clone();
    let [mine, theirs] = expected.get_disjoint_mut([from, 1 - from]).unwrap();
    for number in 0..work {
        let len = match random.below(4) {
            0 => random.below(20),
            1 => random.below(1000),
            2 => random.below(5000),
            _ => random.below(70_000),
        };
        let solicited = random.chance(2);
        let work = match random.below(if extensions { 6 } else { 4 }) {
            0 => {
                let payload = random.bytes(len);
                let at = random.below(SIZE - len);
                theirs.writable[at..at + len].copy_from_slice(&payload);
                Work::Write { payload, stag: WRITABLE, to: BASE + at as u64 }
            }
            1 if reads => {
                let at = random.below(SIZE - len);
                mine.answers.push_back(Event::ReadDone { data: readable[at..at + len].to_vec() });
                Work::Read { len: len as u32, stag: READABLE, to: BASE + at as u64 }
            }
            4 => {
                let data = random.next().to_ne_bytes();
                theirs.events.push_back(Event::Immediate { data, solicited });
                pair.ends[1 - from].receives.push_back(len);
                Work::Immediate { data, solicited }
            }
            5 if reads => {
                let at = random.below(8) * 8;
                let target = &mut theirs.counters[at..at + 8];
                let original = u64::from_ne_bytes(target.try_into().unwrap());
                let operation = match random.below(3) {
                    0 => AtomicOperation::FetchAdd { add: random.next(), mask: random.next() },
                    1 => AtomicOperation::swap(random.next()),
                    _ => AtomicOperation::CompareSwap {
                        compare: original,
                        compare_mask: random.next(),
                        swap: random.next(),
                        swap_mask: random.next(),
                    },
                };
                target.copy_from_slice(&operation.apply(original).to_ne_bytes());
                mine.answers.push_back(Event::AtomicDone { original });
                Work::Atomic { stag: COUNTERS, to: BASE + at as u64, operation }
            }
            _ => {
                let payload = random.bytes(len);
                let invalidate = random.chance(3).then_some(INVALIDATED + number as u32);
                if let Some(stag) = invalidate {
                    let region = Region { base: 0, bytes: vec![0; 8], write: true, read: true };
                    pair.ends[1 - from].add_region(stag, region);
                }
                pair.ends[1 - from].receives.push_back(len + random.below(10));
                let event = Event::Received { payload: payload.clone(), invalidated: invalidate, solicited };
                theirs.events.push_back(event);
                Work::Send { payload, invalidate, solicited }
            }
        };
        pair.ends[from].work.push_back(work);
    }
}

/// A connection with regions at both ends, and what they hold.
fn prepared(random: &mut Random) -> (Pair, [Expectations; 2]) {
    let mut a = config(random);
    let mut b = config(random);
    // Where nothing is negotiated, programs agree: here, on four.
    (a.ird_limit, b.ird_limit) = (8, 8);
    if !a.rtr.is_empty() {
        b.rtr = if random.chance(2) { RtrKinds::ALL } else { a.rtr };
    }
    let mut pair = Pair::connect(&a, &b, random);
    let mut expected = <[Expectations; 2]>::default();
    for (end, expected) in pair.ends.iter_mut().zip(&mut expected) {
        let region = |bytes: Vec<u8>, write, read| Region { base: BASE, bytes, write, read };
        let writable = random.bytes(SIZE);
        let counters = random.bytes(64);
        end.add_region(WRITABLE, region(writable.clone(), true, false));
        end.add_region(READABLE, region(random.bytes(SIZE), false, true));
        end.add_region(COUNTERS, region(counters.clone(), true, true));
        end.add_region(PRIVATE, region(random.bytes(64), false, false));
        (expected.writable, expected.counters) = (writable, counters);
    }
    (pair, expected)
}

/// Any responder with a program that wants to send first would wait for ever without an indication: the
/// initiator's program sends something.
fn first_message(pair: &mut Pair, expected: &mut [Expectations; 2]) {
    if pair.parameters[0].rtr.is_none() {
        pair.ends[0].work.push_back(Work::Send { payload: vec![1], invalidate: None, solicited: false });
        pair.ends[1].receives.push_back(1);
        let event = Event::Received { payload: vec![1], invalidated: None, solicited: false };
        expected[1].events.push_back(event);
    }
}

// RFC5041-5.3-1, RFC5041-5.3-2, RFC5041-4.1-4, RFC5041-5.4-1, RFC5041-5.2-4, RFC5041-3-3, RFC5040-5.5-1,
// RFC5040-5.5-4, RFC5040-5.3-3, RFC5040-5.3-4, RFC5040-5.2.1-4, RFC5040-5.2.1-7, RFC5040-5.2.2-4,
// RFC7306-5.2.1-6, RFC7306-5.2.1-7, RFC7306-5.2.1-8, RFC7306-5.2.2-6, RFC7306-6.3-3, RFC7306-6.3-5,
// RFC5044-4.4-3, RFC5044-7.1.2-8, RFC6581-9.2-5, RFC5040-6.1-1
/// Random work in both directions, in pieces of random size, with every byte checked. Returns the steps that
/// it took.
pub(crate) fn work(seed: u64) -> u64 {
    let mut random = Random(seed);
    let (mut pair, mut expected) = prepared(&mut random);
    first_message(&mut pair, &mut expected);
    for side in 0..2 {
        let amount = random.below(40);
        load(&mut pair, side, amount, &mut random, &mut expected);
    }
    pair.run(&mut random);
    for (side, mut expected) in expected.into_iter().enumerate() {
        let end = &pair.ends[side];
        assert_eq!(end.failed, None);
        assert!(
            end.is_idle() && end.unfinished() == 0,
            "end {side} has not come to rest: {} requests, {} reads, {} answers, silent {}, {:?}",
            end.work.len(),
            end.reads.len(),
            end.inbound.len(),
            end.silent,
            pair.parameters
        );
        assert_eq!(end.receiver.end_of_stream(end.unfinished()), Ok(()));
        assert!(end.regions[&WRITABLE].bytes == expected.writable, "memory that was written to");
        assert!(end.regions[&COUNTERS].bytes == expected.counters, "memory of atomic operations");
        assert!(end.regions.keys().all(|stag| *stag <= PRIVATE), "regions that were invalidated or read to");
        assert_eq!(end.receives, []);
        // What arrives is in order, what is answered is in order; the two mix.
        for event in &end.events {
            match event {
                Event::ReadDone { .. } | Event::AtomicDone { .. } => {
                    assert!(Some(event) == expected.answers.pop_front().as_ref(), "{event:?}");
                }
                Event::Ready => {}
                _ => assert!(Some(event) == expected.events.pop_front().as_ref(), "{event:?}"),
            }
        }
        assert!(expected.events.is_empty() && expected.answers.is_empty());
    }
    pair.steps
}

/// Random work, while a byte of the wire is changed. With CRCs the receiver notices before any byte of that
/// FPDU is placed; without, it may not, but nothing is touched that the peer has no right to.
pub(crate) fn damage(seed: u64) -> u64 {
    let mut random = Random(seed);
    let (mut pair, mut expected) = prepared(&mut random);
    first_message(&mut pair, &mut expected);
    for side in 0..2 {
        load(&mut pair, side, 12, &mut random, &mut expected);
    }
    let untouchable: Vec<Vec<u8>> = pair
        .ends
        .iter()
        .flat_map(|end| [PRIVATE, READABLE].map(|stag| end.regions[&stag].bytes.clone()))
        .collect();
    let victim = random.below(2);
    let mut countdown = random.below(60);
    let mut damaged = false;
    for _ in 0..2_000_000 {
        if countdown == 0 && !damaged && !pair.ends[victim].wire.is_empty() {
            let at = random.below(pair.ends[victim].wire.len());
            pair.ends[victim].wire[at] ^= 1 << random.below(8);
            damaged = true;
        }
        countdown = countdown.saturating_sub(1);
        if !pair.step(&mut random) {
            break;
        }
    }
    let left: Vec<Vec<u8>> = pair
        .ends
        .iter()
        .flat_map(|end| [PRIVATE, READABLE].map(|stag| end.regions[&stag].bytes.clone()))
        .collect();
    assert!(untouchable == left);
    let receiver = &pair.ends[1 - victim];
    if damaged && pair.parameters[0].crc {
        // Noticed, unless the stream ended before a frame that was made longer by the damage was complete.
        let noticed = receiver.failed.is_some_and(|terminate| terminate == Terminate::local(Fault::Crc));
        assert!(noticed || receiver.unfinished() > 0 || receiver.silent, "{:?}", receiver.failed);
        for event in receiver.events.iter() {
            let known = match event {
                Event::ReadDone { .. } | Event::AtomicDone { .. } => {
                    expected[1 - victim].answers.pop_front().as_ref() == Some(event)
                }
                Event::Ready | Event::Terminated(_) => true,
                _ => expected[1 - victim].events.pop_front().as_ref() == Some(event),
            };
            assert!(known, "{event:?}");
        }
    }
    pair.steps
}
