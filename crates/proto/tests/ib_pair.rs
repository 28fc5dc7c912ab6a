//! Two queue pairs and a network that loses, repeats, reorders, damages and delays packets: random work of every kind,
//! with every byte checked, each request complete exactly once and in order, and each atomic executed exactly once.
//!
//! Every run is determined by its seed, which a failing test prints; `ADVERB_SEED` runs that one alone.

#[path = "support/ib.rs"]
mod ib;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use adverb_proto::ib::{
    Access, CompletionStatus, Delivery, DeliveryKind, Operation, ReceiveFault, Service, psn,
};
use adverb_wire::ib::header::Feth;
use ib::{End, Options, Random, Region, Work};

/// Each write has a place of its own here, so what it leaves can be checked at the end.
const WRITABLE: u32 = 0x11;
const READABLE: u32 = 0x22;
const COUNTERS: u32 = 0x33;
/// A region without rights for the peer.
const PRIVATE: u32 = 0x44;
const BASE: u64 = 0x7f00_0000_0000;
const READABLE_SIZE: usize = 50_000;

/// What the network does, each per mille of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lose: usize,
    repeat: usize,
    delay: usize,
    damage: usize,
    /// Nothing arrives for this long, soon after the start.
    outage: Duration,
}

/// A packet on its way: when it arrives, a number that keeps those of one moment in order, to whom, and the bytes.
type Flight = Reverse<(Duration, u64, usize, Vec<u8>)>;

struct Pair {
    ends: [End; 2],
    options: Options,
    faults: Faults,
    flights: BinaryHeap<Flight>,
    start: Duration,
    launched: u64,
    now: Duration,
    /// Receives that are posted little by little.
    receives: [Vec<usize>; 2],
    /// What each end was given to do.
    operations: [Vec<Operation>; 2],
    post_at: Duration,
    /// Packets that fit the buffer of a receiver, who takes one in a microsecond; and when that of each end is empty.
    buffer: Option<u32>,
    busy_until: [Duration; 2],
    overrun: usize,
}

/// Prints the seed if a test fails with it.
struct Seed(u64);

impl Drop for Seed {
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
        let seed = Seed(seed);
        test(&mut Random(seed.0));
    }
}

/// True this often in a thousand times.
fn often(random: &mut Random, per_mille: usize) -> bool {
    random.below(1000) < per_mille
}

fn options(service: Service, random: &mut Random) -> Options {
    let mtu = [256, 512, 1024, 2048, 4096][random.below(5)];
    let psn = [0, 1].map(|_| {
        let psn = random.next() as u32 & psn::MASK;
        if often(random, 300) { psn | 0xff_ffe0 } else { psn }
    });
    Options {
        service,
        mtu,
        psn,
        max_reads: [1, 2, 4, 16][random.below(4)],
        read_chunk: if random.chance(2) { u32::MAX } else { mtu * (1 + random.below(8) as u32) },
        room: [1, 2, 8, 64][random.below(4)],
        retry_count: 7,
        rnr_retry: 7,
        timeout: [0, 10, 12, 14][random.below(4)],
    }
}

impl Pair {
    fn new(options: Options, faults: Faults, random: &mut Random) -> Pair {
        let mut ends = [End::new(&options, 0), End::new(&options, 1)];
        for end in &mut ends {
            let all = Access { write: true, read: true, atomic: true, flush: true };
            let mut add = |key, bytes, rights| {
                end.program.regions.insert(key, Region { base: BASE, bytes, rights });
            };
            add(WRITABLE, Vec::new(), Access { read: true, flush: true, ..all });
            add(READABLE, random.bytes(READABLE_SIZE), Access { write: false, ..all });
            add(COUNTERS, vec![0; 64], all);
            add(PRIVATE, vec![0; 64], Access::default());
            end.program.most_kept = [None, Some(0), Some(random.below(10_000))][random.below(3)];
        }
        let start = Duration::from_millis(random.next() % 1000);
        Pair {
            ends,
            options,
            faults,
            flights: BinaryHeap::new(),
            start,
            launched: 0,
            now: start,
            receives: [Vec::new(), Vec::new()],
            operations: [Vec::new(), Vec::new()],
            post_at: Duration::ZERO,
            buffer: None,
            busy_until: [Duration::ZERO; 2],
            overrun: 0,
        }
    }

    fn launch(&mut self, to: usize, packet: Vec<u8>, random: &mut Random) {
        let mut arrival = self.now + Duration::from_micros(20);
        if often(random, self.faults.delay) {
            arrival += Duration::from_micros(random.below(100) as u64);
        }
        if let Some(buffer) = self.buffer {
            let waiting = self.busy_until[to].saturating_sub(arrival);
            if waiting >= Duration::from_micros(buffer.into()) {
                self.overrun += 1;
                return;
            }
            arrival += waiting + Duration::from_micros(1);
            self.busy_until[to] = arrival;
        }
        self.launched += 1;
        self.flights.push(Reverse((arrival, self.launched, to, packet)));
    }

    fn transmit(&mut self, random: &mut Random) {
        let since = self.now.saturating_sub(self.start + Duration::from_micros(200));
        let outage = !since.is_zero() && since < self.faults.outage;
        for side in 0..2 {
            let mut packets = Vec::new();
            self.ends[side].transmit(self.now, random, &mut packets);
            for packet in packets {
                // What is damaged does not pass the check of the invariant CRC.
                if outage || often(random, self.faults.lose) || often(random, self.faults.damage) {
                    continue;
                }
                if often(random, self.faults.repeat) {
                    self.launch(1 - side, packet.clone(), random);
                }
                self.launch(1 - side, packet, random);
            }
        }
    }

    /// Goes on to the next moment at which something happens. False if nothing ever will.
    fn step(&mut self, random: &mut Random) -> bool {
        self.transmit(random);
        let pending = self.receives.iter().any(|receives| !receives.is_empty());
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let deadlines = self.ends.iter().filter_map(End::deadline).min();
        let Some(next) = [arrival, deadlines, pending.then_some(self.post_at)].into_iter().flatten().min()
        else {
            return false;
        };
        self.now = self.now.max(next);
        while self.flights.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Reverse((_, _, to, packet)) = self.flights.pop().unwrap();
            self.ends[to].receive(&packet, self.now);
        }
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        if pending && self.post_at <= self.now {
            for (end, receives) in self.ends.iter_mut().zip(&mut self.receives) {
                let count = random.below(4).min(receives.len());
                end.program.receives.extend(receives.drain(..count));
            }
            self.post_at = self.now + Duration::from_micros(random.below(200) as u64);
        }
        true
    }

    fn run(&mut self, random: &mut Random) {
        // With a loss of a few percent a packet needs a few attempts; the bound only makes a livelock a failure.
        for _ in 0..200_000 {
            if !self.step(random) {
                return;
            }
        }
        panic!("the two ends never come to rest: {:?} {:?}", self.options, self.faults);
    }
}

/// What must be found when everything is done.
#[derive(Default)]
struct Expectations {
    /// Of the peer: what is delivered to it, its memory, the keys that it loses.
    deliveries: Vec<(Delivery, Vec<u8>)>,
    writable: Vec<u8>,
    counters: Vec<u8>,
    invalidated: usize,
    flushes: usize,
    /// Where writes with these immediate data go.
    announced: BTreeMap<u32, (usize, usize)>,
    /// The bytes that requests of this end read.
    results: Vec<Vec<u8>>,
}

fn length(mtu: u32, random: &mut Random) -> usize {
    let mtu = mtu as usize;
    match random.below(6) {
        0 => 0,
        1 => 1 + random.below(16),
        2 => random.below(mtu),
        3 => mtu * (1 + random.below(4)),
        4 => random.below(4 * mtu),
        _ => random.below(20_000),
    }
}

/// Posts random work at one end and says what must come of it.
// IB-RC-REQ-8, IB-RC-REQ-9, IB-RC-REQ-10, IB-RC-RSP-43
fn load(pair: &mut Pair, side: usize, count: usize, random: &mut Random) -> Expectations {
    let mut expected = Expectations { counters: vec![0; 64], ..Expectations::default() };
    let readable = pair.ends[1 - side].program.regions[&READABLE].bytes.clone();
    let reliable = pair.options.service.is_reliable();
    for _ in 0..count {
        let len = length(pair.options.mtu, random);
        let (solicited, fence) = (often(random, 300), often(random, 150));
        let immediate = often(random, 300).then(|| random.next() as u32);
        let mut data = Vec::new();
        let mut result = None;
        let operation = match random.below(if reliable { 10 } else { 5 }) {
            0..=2 => {
                data = random.bytes(len);
                let invalidate = (reliable && immediate.is_none() && often(random, 200)).then(|| {
                    expected.invalidated += 1;
                    1000 + expected.invalidated as u32
                });
                expected.deliveries.push((
                    Delivery {
                        length: len as u32,
                        immediate,
                        invalidated: invalidate,
                        kind: DeliveryKind::Send,
                        solicited,
                    },
                    data.clone(),
                ));
                pair.receives[1 - side].push(len + random.below(20));
                Operation::Send { immediate, invalidate }
            }
            3 | 4 => {
                data = random.bytes(len);
                let start = expected.writable.len();
                let address = BASE + start as u64;
                expected.writable.extend_from_slice(&data);
                if let Some(immediate_data) = immediate {
                    expected.announced.insert(immediate_data, (start, start + len));
                    let kind = DeliveryKind::WriteWithImmediate;
                    let delivered =
                        Delivery { length: len as u32, immediate, invalidated: None, kind, solicited };
                    expected.deliveries.push((delivered, Vec::new()));
                    pair.receives[1 - side].push(0);
                }
                Operation::Write { address, rkey: WRITABLE, immediate }
            }
            5 | 6 => {
                // Either something that never changes, or what a request before has just written.
                let written = expected.writable.len();
                data = vec![0; len];
                if random.chance(3) && written >= len {
                    let start = random.below(written - len + 1);
                    result = Some(expected.writable[start..start + len].to_vec());
                    Operation::Read { address: BASE + start as u64, rkey: WRITABLE }
                } else {
                    let start = random.below(READABLE_SIZE - len);
                    result = Some(readable[start..start + len].to_vec());
                    Operation::Read { address: BASE + start as u64, rkey: READABLE }
                }
            }
            7 | 8 => {
                let index = random.below(8) * 8;
                let address = BASE + index as u64;
                let word: &mut [u8; 8] = (&mut expected.counters[index..index + 8]).try_into().unwrap();
                let original = u64::from_ne_bytes(*word);
                match random.below(3) {
                    0 => {
                        let add = random.next();
                        *word = original.wrapping_add(add).to_ne_bytes();
                        result = Some(original.to_ne_bytes().to_vec());
                        Operation::FetchAdd { address, rkey: COUNTERS, add }
                    }
                    1 => {
                        let compare = if often(random, 700) { original } else { random.next() };
                        let swap = random.next();
                        if compare == original {
                            *word = swap.to_ne_bytes();
                        }
                        result = Some(original.to_ne_bytes().to_vec());
                        Operation::CompareSwap { address, rkey: COUNTERS, compare, swap }
                    }
                    _ => {
                        let value = random.next().to_ne_bytes();
                        *word = value;
                        Operation::AtomicWrite { address, rkey: COUNTERS, value }
                    }
                }
            }
            _ => {
                expected.flushes += 1;
                let (placement, selectivity) = (Feth::GLOBAL_VISIBILITY, Feth::RANGE);
                Operation::Flush { address: BASE, rkey: COUNTERS, placement, selectivity }
            }
        };
        expected.results.push(result.unwrap_or_else(|| data.clone()));
        pair.operations[side].push(operation);
        pair.ends[side].post(Work { operation, data, solicited, fence });
    }
    let region = pair.ends[1 - side].program.regions.get_mut(&WRITABLE).unwrap();
    region.bytes = vec![0; expected.writable.len()];
    region.rights.write = true;
    expected
}

// IB-RC-REQ-7, IB-RC-REQ-25, IB-RC-REQ-46, IB-RC-RSP-8, IB-RC-RSP-11, IB-RC-RSP-32, IB-RC-RSP-33, IB-RC-RSP-39
fn reliable(service: Service, faults: Faults, random: &mut Random) -> Pair {
    let mut pair = Pair::new(options(service, random), faults, random);
    let count = 4 + random.below(24);
    let expected = [0, 1].map(|side| load(&mut pair, side, count, random));
    pair.run(random);
    for (side, expected) in expected.into_iter().enumerate() {
        let context = format!("{:?} {:?}", pair.options, pair.faults);
        let program = &pair.ends[side].program;
        assert_eq!(program.completions.len(), count, "{context}");
        for (number, ((sequence, status, data), expected)) in
            program.completions.iter().zip(expected.results).enumerate()
        {
            assert_eq!((*sequence, *status), (number as u64, CompletionStatus::Success), "{context}");
            assert!(*data == expected, "result of request {number}");
        }
        assert!(pair.ends[side].requester.is_idle());
        assert_eq!(pair.ends[side].requester.in_flight(), 0);
        assert_eq!(pair.ends[side].window.in_flight(), 0);
        let peer = &pair.ends[1 - side].program;
        assert!(peer.deliveries == expected.deliveries, "deliveries");
        assert!(peer.regions[&WRITABLE].bytes == expected.writable, "writes");
        assert!(peer.regions[&COUNTERS].bytes == expected.counters, "atomics");
        assert_eq!(peer.regions[&PRIVATE].bytes, [0; 64]);
        assert_eq!(peer.invalidated.len(), expected.invalidated);
        assert_eq!(peer.flushes, expected.flushes);
    }
    pair
}

// IB-RC-RSP-49
#[test]
fn a_good_network_needs_no_repetition() {
    with_seeds(0, 300, |random| {
        let mut pair = Pair::new(options(Service::Rc, random), Faults::default(), random);
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
        let outage = Duration::from_millis(random.below(25) as u64);
        reliable(Service::Rc, Faults { outage, lose: random.below(10), ..Faults::default() }, random);
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
            let named: Vec<u32> = named.map(|(sequence, _)| ib::shared_queue(sequence)).collect();
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
        let mut pair = Pair::new(options(Service::Uc, random), faults, random);
        let count = 4 + random.below(24);
        let expected = [0, 1].map(|side| load(&mut pair, side, count, random));
        for side in 0..2 {
            // Receives are taken in order, so each must do for any message.
            let count = pair.receives[side].len();
            pair.receives[side].clear();
            pair.ends[side].program.receives.extend(std::iter::repeat_n(20_000, count * 2));
        }
        pair.run(random);
        for (side, expected) in expected.into_iter().enumerate() {
            let program = &pair.ends[side].program;
            let complete: Vec<u64> = program.completions.iter().map(|(sequence, ..)| *sequence).collect();
            assert_eq!(complete, Vec::from_iter(0..count as u64));
            let peer = &pair.ends[1 - side].program;
            for (delivery, _) in &peer.deliveries {
                if delivery.kind == DeliveryKind::WriteWithImmediate {
                    let (start, end) = expected.announced[&delivery.immediate.unwrap()];
                    assert!(peer.regions[&WRITABLE].bytes[start..end] == expected.writable[start..end]);
                }
            }
            // What was delivered is a part of what was sent, in the order of sending (a repeated message that is a
            // packet on its own counts as another one).
            let delivered = &peer.deliveries;
            if faults.lose == 0 {
                assert!(*delivered == expected.deliveries, "all delivered");
            } else if faults.repeat == 0 && faults.delay == 0 {
                let mut sent = expected.deliveries.iter();
                for delivery in delivered {
                    assert!(sent.any(|sent| sent == delivery), "delivered in order");
                }
            } else {
                assert!(delivered.iter().all(|delivery| expected.deliveries.contains(delivery)));
            }
        }
    });
}

/// Lets end 0 make one request of end 1 and returns how it ended, and what the receive of end 1 got.
fn refused(work: Work, receives: &[usize], random: &mut Random) -> (CompletionStatus, Vec<ReceiveFault>) {
    let mut options = options(Service::Rc, random);
    options.rnr_retry = 3;
    let mut pair = Pair::new(options, Faults::default(), random);
    pair.ends[1].program.receives.extend(receives);
    pair.ends[0].post(work);
    pair.run(random);
    let program = &pair.ends[0].program;
    assert_eq!(program.completions.len(), 1);
    let before = Pair::new(pair.options.clone(), Faults::default(), &mut Random(0));
    for key in [WRITABLE, COUNTERS, PRIVATE] {
        assert_eq!(pair.ends[1].program.regions[&key].bytes, before.ends[1].program.regions[&key].bytes);
    }
    (program.completions[0].1, pair.ends[1].program.receive_faults.clone())
}

// IB-RC-REQ-35, IB-RC-REQ-44, IB-RC-RSP-21, IB-RC-RSP-24, IB-RC-RSP-26, IB-RC-RSP-31
#[test]
fn what_is_not_allowed_is_refused_and_touches_nothing() {
    with_seeds(50_000, 50, |random| {
        let work = |operation, len| Work { operation, data: vec![1; len], solicited: false, fence: false };
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
    let mut pair = Pair::new(options, Faults::default(), random);
    pair.buffer = Some(50);
    for key in [WRITABLE, READABLE] {
        pair.ends[1].program.regions.get_mut(&key).unwrap().bytes = vec![0; LEN];
    }
    pair.ends[1].program.regions.get_mut(&WRITABLE).unwrap().rights.write = true;
    pair.ends[0].post(Work { operation, data: random.bytes(LEN), solicited: false, fence: false });
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
        let mut pair = Pair::new(options, Faults { lose: 1000, ..Faults::default() }, random);
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
