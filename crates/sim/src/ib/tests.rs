//! Every run is determined by its seed, which a failing test prints; `ADVERB_SEED` runs that one alone.

use std::time::Duration;

use adverb_proto::ib::{CompletionStatus, Operation, ReceiveFault, Service};

use super::end::{self, SendWork};
use super::faults::{Faults, Outage, Span};
use super::pair::{BASE, COUNTERS, PRIVATE, QueuePairs, READABLE, WRITABLE, options};
use super::scenario::{Scenario, run_reliable, run_unreliable};
use super::work::load;
use crate::Random;

/// Prints the seed if a test fails with it.
struct SeedOnFailure(u64);

impl Drop for SeedOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with ADVERB_SEED={}", self.0);
        }
    }
}

/// Runs a test with many seeds, or with the one of the environment.
fn with_seeds(first: u64, count: u64, test: impl Fn(&mut Random)) {
    let seeds = match std::env::var("ADVERB_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("ADVERB_SEED is a number");
            seed..seed + 1
        }
        Err(_) => first..first + count,
    };
    for seed in seeds {
        let seed = SeedOnFailure(seed);
        test(&mut Random(seed.0));
    }
}

/// Nothing gets through in either direction for this long, soon after the start.
fn outage(length: Duration) -> Faults {
    let span = Span { start: Duration::from_micros(201), length };
    Faults { outages: vec![Outage { span, from: [true; 2] }], ..Faults::default() }
}

/// Runs a reliable connection to its end: all is done, whatever the network does.
fn reliable(service: Service, faults: Faults, random: &mut Random) -> QueuePairs {
    let mut pair = QueuePairs::new(options(service, random), faults, random);
    let count = 4 + random.below(24);
    let expected = [0, 1].map(|side| load(&mut pair, side, count, random));
    run_reliable(&mut pair, &expected, count, random);
    for end in &pair.ends {
        let completions = &end.program.completions;
        assert_eq!(completions.last().map(|(_, status, _)| *status), Some(CompletionStatus::Success));
    }
    pair
}

/// Runs an unreliable connection: whole messages in order, or nothing.
fn unreliable(faults: Faults, random: &mut Random) {
    let mut pair = QueuePairs::new(options(Service::Uc, random), faults, random);
    let count = 4 + random.below(24);
    let expected = [0, 1].map(|side| load(&mut pair, side, count, random));
    run_unreliable(&mut pair, &expected, count, random);
}

// IB-RC-RSP-49
#[test]
fn a_good_network_needs_no_repetition() {
    with_seeds(0, 300, |random| {
        let mut pair = QueuePairs::new(options(Service::Rc, random), Faults::default(), random);
        pair.options.timeout = 0;
        let count = 4 + random.below(24);
        for side in 0..2 {
            load(&mut pair, side, count, random);
            // All receives are there before anything is sent.
            let receives = std::mem::take(&mut pair.receives[1 - side]);
            pair.ends[1 - side].program.receives.extend(receives);
        }
        pair.run(random);
        for end in &pair.ends {
            assert_eq!((end.repeated, end.losses), (0, 0), "{:?}", pair.options);
            assert_eq!(end.program.completions.len(), count);
        }
    });
}

// IB-RC-REQ-36, IB-RC-RSP-35, IB-RC-RSP-36
#[test]
fn reliable_connections_survive_a_receiver_that_is_not_ready() {
    with_seeds(1_000, 300, |random| {
        reliable(Service::Rc, Faults::default(), random);
    });
}

// IB-RC-REQ-24, IB-RC-REQ-28, IB-RC-REQ-34, IB-RC-REQ-40, IB-RC-RSP-3
#[test]
fn reliable_connections_survive_loss() {
    with_seeds(10_000, 500, |random| {
        reliable(
            Service::Rc,
            Faults { lose: 1 + random.below(50), damage: random.below(10), ..Faults::default() },
            random,
        );
    });
}

// IB-RC-REQ-26, IB-RC-REQ-27, IB-RC-RSP-2, IB-RC-RSP-5, IB-RC-RSP-6, IB-RC-RSP-8
#[test]
fn reliable_connections_survive_reordering_and_repetition() {
    with_seeds(20_000, 500, |random| {
        let faults = Faults { delay: random.below(100), repeat: random.below(100), ..Faults::default() };
        reliable(Service::Rc, faults, random);
    });
}

#[test]
fn reliable_connections_survive_everything_at_once() {
    with_seeds(30_000, 500, |random| {
        let faults = Faults {
            lose: random.below(30),
            repeat: random.below(50),
            delay: random.below(50),
            damage: random.below(10),
            ..Faults::default()
        };
        reliable(Service::Rc, faults, random);
    });
}

// IB-UC-3, IB-UC-6, IB-UC-7, IB-UC-8, IB-UC-9, IB-UC-13, IB-UC-15
#[test]
fn reliable_connections_survive_an_outage() {
    with_seeds(35_000, 200, |random| {
        let outage = outage(Duration::from_millis(random.below(25) as u64));
        reliable(Service::Rc, Faults { lose: random.below(10), ..outage }, random);
    });
}

// IB-XRC-1, IB-XRC-2, IB-XRC-3, IB-XRC-5
#[test]
fn extended_reliable_connections_survive_everything_and_name_their_queues() {
    with_seeds(80_000, 500, |random| {
        let faults = match random.below(3) {
            0 => Faults::default(),
            _ => Faults {
                lose: random.below(30),
                repeat: random.below(50),
                delay: random.below(50),
                damage: random.below(10),
                ..Faults::default()
            },
        };
        let pair = reliable(Service::Xrc, faults, random);
        for side in 0..2 {
            let takes = |operation: &Operation| {
                matches!(operation, Operation::Send { .. } | Operation::Write { immediate: Some(_), .. })
            };
            let posted = &pair.operations[side];
            let named = (0..).zip(posted).filter(|(_, operation)| takes(operation));
            let named: Vec<u32> = named.map(|(sequence, _)| end::shared_queue(sequence)).collect();
            assert_eq!(pair.ends[1 - side].program.taken_from, named);
        }
    });
}

#[test]
fn unreliable_connections_deliver_whole_messages_in_order_or_nothing() {
    with_seeds(40_000, 700, |random| {
        let faults = match random.below(3) {
            0 => Faults::default(),
            1 => Faults { lose: 1 + random.below(60), ..Faults::default() },
            _ => Faults {
                lose: 5,
                repeat: random.below(30),
                delay: random.below(30),
                damage: 5,
                ..Faults::default()
            },
        };
        unreliable(faults, random);
    });
}

#[test]
fn all_faults_at_once_break_no_promise() {
    with_seeds(90_000, 50, |random| {
        for service in [Service::Rc, Service::Xrc, Service::Uc] {
            Scenario::new(service, random).run(random);
        }
        Scenario::many(random).run(random);
    });
}

/// Lets end 0 make one request of end 1 and returns how it ended, and what the receive of end 1 got.
fn refused(work: SendWork, receives: &[usize], random: &mut Random) -> (CompletionStatus, Vec<ReceiveFault>) {
    let mut options = options(Service::Rc, random);
    options.rnr_retry = 3;
    let mut pair = QueuePairs::new(options, Faults::default(), random);
    pair.ends[1].program.receives.extend(receives);
    pair.ends[0].post(work);
    pair.run(random);
    let program = &pair.ends[0].program;
    assert_eq!(program.completions.len(), 1);
    let before = QueuePairs::new(pair.options.clone(), Faults::default(), &mut Random(0));
    for key in [WRITABLE, COUNTERS, PRIVATE] {
        assert_eq!(pair.ends[1].program.regions[&key].bytes, before.ends[1].program.regions[&key].bytes);
    }
    (program.completions[0].1, pair.ends[1].program.receive_faults.clone())
}

// IB-RC-REQ-35, IB-RC-REQ-44, IB-RC-RSP-21, IB-RC-RSP-24, IB-RC-RSP-26, IB-RC-RSP-31
#[test]
fn requests_that_are_not_allowed_are_refused_and_change_no_memory() {
    with_seeds(50_000, 50, |random| {
        let work =
            |operation, len| SendWork { operation, data: vec![1; len], solicited: false, fence: false };
        let len = 1 + random.below(10_000);
        let private = Operation::Write { address: BASE, rkey: PRIVATE, immediate: None };
        let (status, _) = refused(work(private, 8), &[], random);
        assert_eq!(status, CompletionStatus::RemoteAccess);
        let past = Operation::Write { address: BASE + 60, rkey: COUNTERS, immediate: None };
        let (status, _) = refused(work(past, 4 + len), &[], random);
        assert_eq!(status, CompletionStatus::RemoteAccess);
        let unknown = Operation::Read { address: BASE, rkey: 0x999 };
        assert_eq!(refused(work(unknown, len), &[], random).0, CompletionStatus::RemoteAccess);
        let crooked = Operation::FetchAdd { address: BASE + 4, rkey: COUNTERS, add: 1 };
        assert_eq!(refused(work(crooked, 0), &[], random).0, CompletionStatus::RemoteInvalidRequest);
        let send = Operation::Send { immediate: None, invalidate: None };
        let (status, faults) = refused(work(send, len), &[len - 1], random);
        assert_eq!(
            (status, &faults[..]),
            (CompletionStatus::RemoteInvalidRequest, &[ReceiveFault::Length][..])
        );
        let (status, faults) = refused(work(send, len), &[], random);
        assert_eq!((status, faults.len()), (CompletionStatus::RnrRetryExceeded, 0));
    });
}

// IB-RC-REQ-39, IB-RC-REQ-40, IB-RC-REQ-42
/// Moves megabytes through a small buffer; returns the packets that were lost there, of how many.
fn through_a_small_buffer(operation: Operation, random: &mut Random) -> (usize, u64) {
    const LEN: usize = 4 << 20;
    let mut options = options(Service::Rc, random);
    (options.mtu, options.max_reads, options.read_chunk) = (4096, 16, 16 * 4096);
    let mut pair = QueuePairs::new(options, Faults::default(), random);
    pair.buffer = Some(50);
    for key in [WRITABLE, READABLE] {
        pair.ends[1].program.regions.get_mut(&key).unwrap().bytes = vec![0; LEN];
    }
    pair.ends[1].program.regions.get_mut(&WRITABLE).unwrap().rights.write = true;
    pair.ends[0].post(SendWork { operation, data: random.bytes(LEN), solicited: false, fence: false });
    pair.run(random);
    assert_eq!(pair.ends[0].program.completions[0].1, CompletionStatus::Success);
    (pair.overrun, pair.launched)
}

#[test]
fn the_window_finds_the_size_of_the_peers_buffer() {
    with_seeds(70_000, 5, |random| {
        let write = Operation::Write { address: BASE, rkey: WRITABLE, immediate: None };
        let (lost, sent) = through_a_small_buffer(write, random);
        assert!(lost * 10 < sent as usize, "{lost} of {sent}");
        let read = Operation::Read { address: BASE, rkey: READABLE };
        let (lost, sent) = through_a_small_buffer(read, random);
        assert!(lost * 10 < sent as usize, "{lost} of {sent}");
    });
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    with_seeds(60_000, 20, |random| {
        let mut options = options(Service::Rc, random);
        options.timeout = 10;
        options.retry_count = random.below(8) as u8;
        let retry_count = options.retry_count;
        let mut pair = QueuePairs::new(options, Faults { lose: 1000, ..Faults::default() }, random);
        load(&mut pair, 0, 5, random);
        let start = pair.now;
        pair.run(random);
        let program = &pair.ends[0].program;
        assert_eq!(program.completions.len(), 1);
        assert_eq!(program.completions[0].1, CompletionStatus::RetryExceeded);
        // Four times a timeout of 4.2 ms, once for the first attempt and once for each repetition.
        let expected = 4 * Duration::from_nanos(4096 << 10) * (u32::from(retry_count) + 1);
        assert!(pair.now - start >= expected && pair.now - start <= expected + Duration::from_millis(1));
    });
}
