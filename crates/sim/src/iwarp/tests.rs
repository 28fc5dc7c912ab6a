//! Work of all kinds; and peers that do what they may not.

use std::time::Duration;

use adverb_proto::iwarp::AtomicOperation;
use adverb_proto::iwarp::Terminate;
use adverb_proto::iwarp::mpa::{Config, Initiator, Request, Responder, RtrKinds};

use super::endpoint::{Event, Region, Work};
use super::pair::{BASE, COUNTERS, PRIVATE, Pair, READABLE, WRITABLE, damage, work};
use crate::Random;

#[test]
fn random_work_both_ways() {
    for seed in 0..40 {
        println!("seed {seed}");
        work(seed);
    }
}

#[test]
fn a_damaged_byte() {
    for seed in 1000..1120 {
        println!("seed {seed}");
        damage(seed);
    }
}

/// A connection for the cases below: plain, with everything agreed.
fn simple(random: &mut Random) -> Pair {
    let config = Config { crc: false, ird: 2, ord: 2, ird_limit: 2, ..Config::default() };
    let mut pair = Pair::connect(&config, &config, random);
    let region = |write, read| Region { base: BASE, bytes: vec![0x5a; 4096], write, read };
    let end = &mut pair.ends[1];
    end.add_region(WRITABLE, region(true, false));
    end.add_region(READABLE, region(false, true));
    end.add_region(COUNTERS, region(true, true));
    end.add_region(PRIVATE, region(false, false));
    pair
}

/// Does one thing that the peer refuses; returns the Terminate as the culprit sees it. The peer's memory is
/// unchanged.
fn refused(work: impl IntoIterator<Item = Work>, receives: &[usize]) -> Terminate {
    let mut random = Random(7);
    let mut pair = simple(&mut random);
    pair.ends[1].receives.extend(receives);
    pair.ends[0].work.extend(work);
    pair.run(&mut random);
    let sent = pair.ends[1].failed.expect("a refusal");
    let Some(Event::Terminated(seen)) = pair.ends[0].events.last() else {
        panic!("{:?}", pair.ends[0].events)
    };
    assert_eq!(*seen, sent);
    for stag in [WRITABLE, READABLE, COUNTERS, PRIVATE] {
        assert!(pair.ends[1].regions[&stag].bytes.iter().all(|byte| *byte == 0x5a));
    }
    sent
}

fn write(stag: u32, to: u64) -> Work {
    Work::Write { payload: vec![1; 100], stag, to }
}

fn read(stag: u32, to: u64) -> Work {
    Work::Read { len: 100, stag, to }
}

fn send(len: usize) -> Work {
    Work::Send { payload: vec![1; len], invalidate: None, solicited: false }
}

fn codes(terminate: Terminate) -> (u8, u8, u8) {
    (terminate.layer(), terminate.error_type(), terminate.code())
}

// RFC5041-7.1-6, RFC5041-7.1-7, RFC5041-7.1-8, RFC5041-7.1-9, RFC5041-7.1-11, RFC5041-7.1-14, RFC5041-6.2.2-4
#[test]
fn writes_that_are_refused() {
    assert_eq!(codes(refused([write(0x99, BASE)], &[])), (1, 1, 0));
    assert_eq!(codes(refused([write(PRIVATE, BASE)], &[])), (1, 1, 0));
    assert_eq!(codes(refused([write(READABLE, BASE)], &[])), (1, 1, 0));
    assert_eq!(codes(refused([write(WRITABLE, BASE + 4000)], &[])), (1, 1, 1));
    assert_eq!(codes(refused([write(WRITABLE, BASE - 1)], &[])), (1, 1, 1));
    assert_eq!(codes(refused([write(WRITABLE, u64::MAX - 50)], &[])), (1, 1, 3));
}

// RFC5040-7.2-6, RFC5040-7.2-8, RFC5040-7.2-9, RFC5040-7.2-10, RFC5040-5.2.1-8, RFC5040-6.2.1-1
#[test]
fn reads_that_are_refused() {
    for (work, expected) in [
        (read(0x99, BASE), (0, 1, 0)),
        (read(WRITABLE, BASE), (0, 1, 2)),
        (read(READABLE, BASE + 4000), (0, 1, 1)),
        (read(READABLE, BASE - 1), (0, 1, 1)),
        (read(READABLE, u64::MAX - 50), (0, 1, 4)),
    ] {
        let terminate = refused([work], &[]);
        assert_eq!(codes(terminate), expected);
        assert_eq!(terminate.read_request().unwrap().len, 100);
    }
}

// RFC5041-5.2-8, RFC5040-5.2.1-9
#[test]
fn empty_operations_need_no_rights() {
    let mut random = Random(8);
    let mut pair = simple(&mut random);
    pair.ends[0].work.push_back(Work::Write { payload: Vec::new(), stag: 0x99, to: 5 });
    pair.ends[0].work.push_back(Work::Read { len: 0, stag: 0x99, to: 5 });
    pair.run(&mut random);
    assert_eq!((pair.ends[0].failed, pair.ends[1].failed), (None, None));
    assert_eq!(pair.ends[0].events, [Event::ReadDone { data: Vec::new() }]);
}

// RFC5041-7.1-2, RFC5041-7.1-4, RFC5040-5.3-2, RFC5040-5.3-6, RFC5040-5.3-7, RFC7306-6.3-2
#[test]
fn sends_that_are_refused() {
    assert_eq!(codes(refused([send(10)], &[])), (1, 2, 2));
    assert_eq!(codes(refused([send(0)], &[])), (1, 2, 2));
    assert_eq!(codes(refused([send(10), send(0), send(10)], &[10, 10])), (1, 2, 2));
    assert_eq!(codes(refused([send(11)], &[10])), (1, 2, 5));
    assert_eq!(codes(refused([send(100_000)], &[70_000])), (1, 2, 5));
    let invalidate = Work::Send { payload: vec![1], invalidate: Some(0x99), solicited: false };
    assert_eq!(codes(refused([invalidate], &[10])), (0, 1, 9));
    assert_eq!(codes(refused([Work::Immediate { data: [0; 8], solicited: false }], &[])), (1, 2, 2));
}

// RFC7306-5.1.1-1, RFC7306-5.1.1-2, RFC7306-5.1.2-2, RFC7306-5.1.2-3, RFC7306-8.2-2, RFC7306-8.1-2
#[test]
fn atomic_operations_that_are_refused() {
    let atomic = |stag, to, operation| Work::Atomic { stag, to, operation };
    for operation in [AtomicOperation::swap(1), AtomicOperation::FetchAdd { add: 1, mask: 0 }] {
        assert_eq!(codes(refused([atomic(0x99, BASE, operation)], &[])), (0, 1, 0));
        assert_eq!(codes(refused([atomic(WRITABLE, BASE, operation)], &[])), (0, 1, 2));
        assert_eq!(codes(refused([atomic(COUNTERS, BASE + 4096, operation)], &[])), (0, 1, 1));
        let terminate = refused([atomic(COUNTERS, BASE + 4, operation)], &[]);
        assert_eq!(codes(terminate), (0, 2, 7));
        assert_eq!((terminate.ddp_header().is_some(), terminate.read_request()), (true, None));
    }
}

// RFC5040-6.1-4, RFC5040-5.2.2-2, RFC7306-5.2.2-3
#[test]
fn more_reads_than_agreed() {
    let mut random = Random(9);
    let mut pair = simple(&mut random);
    // A peer that does not keep to the ORD, and an answering side that does not get to answer.
    pair.ends[0].reads = adverb_proto::iwarp::OutstandingReads::new(3);
    pair.ends[0].work.extend([read(READABLE, BASE), read(READABLE, BASE), read(READABLE, BASE)]);
    while pair.ends[0].transmit(&mut random) {}
    let bytes: Vec<u8> = pair.ends[0].wire.drain(..).collect();
    pair.ends[1].receive(bytes);
    assert_eq!(pair.ends[1].failed.map(codes), Some((0, 2, 7)));
}

// RFC5040-5.4-4, RFC5041-6.2.2-1, RFC5044-8-5
#[test]
fn nothing_is_taken_after_an_error() {
    let mut random = Random(10);
    let mut pair = simple(&mut random);
    pair.ends[1].receives.push_back(100);
    pair.ends[0].work.extend([write(0x99, BASE), write(WRITABLE, BASE), send(5)]);
    pair.run(&mut random);
    assert!(pair.ends[1].failed.is_some());
    assert_eq!(pair.ends[1].events, []);
    assert!(pair.ends[1].regions[&WRITABLE].bytes.iter().all(|byte| *byte == 0x5a));
    // And the end that failed has sent its Terminate as the last thing.
    assert!(!pair.ends[1].transmit(&mut random));
    assert_eq!(pair.ends[0].events.len(), 1);
}

#[test]
fn extensions_are_not_agreed_with_a_peer_that_has_none() {
    let mut random = Random(11);
    let with = Config::default();
    let without = Config { extensions: false, ..with };
    for (a, b) in [(with, without), (without, with)] {
        let pair = Pair::connect(&a, &b, &mut random);
        assert!(!pair.parameters[0].extensions && !pair.parameters[1].extensions);
    }
}

/// Start-up with a peer that stalls is over at the deadline, however the bytes trickle.
// RFC5044-7.1.2-11
#[test]
fn a_stalling_peer_runs_into_the_deadline() {
    let timeout = Duration::from_secs(3);
    let mut now = Duration::from_secs(50);
    let initiator = Initiator::new(&Config::default(), b"data", now, timeout).unwrap();
    let responder = Responder::new(now, timeout);
    let mut received = 0;
    loop {
        now += Duration::from_millis(700);
        if now >= responder.deadline() {
            break;
        }
        assert_eq!((responder.handle_timeout(now), initiator.handle_timeout(now)), (Ok(()), Ok(())));
        received += 5;
        assert!(matches!(responder.receive(&initiator.request()[..received]), Ok(Request::Need(_))));
    }
    assert!(responder.handle_timeout(now).is_err() && initiator.handle_timeout(now).is_err());
}

// RFC6581-5-1, RFC5044-7.1.2-8: a responder says nothing before the indication, whichever it is.
#[test]
fn a_responder_waits_for_the_indication() {
    let kinds = [
        RtrKinds { send: true, ..RtrKinds::NONE },
        RtrKinds { write: true, ..RtrKinds::NONE },
        RtrKinds { read: true, ..RtrKinds::NONE },
    ];
    for rtr in kinds {
        let mut random = Random(12);
        let config = Config { rtr, ..Config::default() };
        let mut pair = Pair::connect(&config, &config, &mut random);
        pair.ends[1].work.push_back(send(3));
        pair.ends[0].receives.push_back(3);
        assert!(!pair.ends[1].transmit(&mut random));
        assert!(!pair.ends[1].receiver.has_received());
        pair.run(&mut random);
        assert_eq!(pair.ends[0].events.len(), 1);
        assert_eq!((pair.ends[0].failed, pair.ends[1].failed), (None, None));
        assert!(pair.ends[0].is_idle() && pair.ends[1].is_idle());
        assert!(pair.ends[0].fpdus > 0);
    }
}
