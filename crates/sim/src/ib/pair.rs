//! Two queue pairs and a network that loses, repeats, reorders, damages and delays packets; and their programs, which do random work of every kind.
//!
//! Every byte is checked: each request completes exactly once and in order, and each atomic is executed exactly once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use adverb_proto::ib::{Access, CompletionStatus, Delivery, DeliveryKind, Operation, Service, psn};
use adverb_wire::ib::header::Feth;
use adverb_wire::ib::opcode::Operation as Opcode;
use adverb_wire::ib::packet::Packet;

use super::end::{End, KeyedMemory, Options, Parcel, SendWork, shared_queue};
use crate::Random;

/// Each write has a place of its own here, so that its bytes can be checked at the end.
pub(crate) const WRITABLE: u32 = 0x11;
pub(crate) const READABLE: u32 = 0x22;
pub(crate) const COUNTERS: u32 = 0x33;
/// A region without rights for the peer.
pub(crate) const PRIVATE: u32 = 0x44;
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
const READABLE_SIZE: usize = 50_000;
/// The longest message.
pub(crate) const LONGEST: usize = 20_000;
/// The packets that an end may keep behind reads that it has not answered yet.
const MOST_HELD: usize = 100_000;

/// A time in which something does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The beginning of the time, since the start of the run.
    pub(crate) start: Duration,
    pub(crate) length: Duration,
}

impl Span {
    fn end(self) -> Duration {
        self.start + self.length
    }

    fn has(self, time: Duration) -> bool {
        self.start <= time && time < self.end()
    }
}

/// The packets of which end get lost in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) span: Span,
    /// True for an end whose packets get lost.
    pub(crate) from: [bool; 2],
}

/// An end that does nothing for a time, as a process that has been stopped. Packets wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freeze {
    pub(crate) span: Span,
    pub(crate) end: usize,
}

/// What the network and the machines do. Numbers are per mille of packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) lose: usize,
    pub(crate) repeat: usize,
    /// Packets that come up to 100 µs later.
    pub(crate) delay: usize,
    /// Packets that come up to 20 ms later, behind others that were sent much later.
    pub(crate) late: usize,
    /// A packet that is damaged does not pass the check of the invariant CRC.
    pub(crate) damage: usize,
    /// Acknowledgements that somebody repeats with the number of a packet that was never sent.
    pub(crate) forge: usize,
    pub(crate) outages: Vec<Outage>,
    pub(crate) freezes: Vec<Freeze>,
    pub(crate) nearness: Option<Nearness>,
}

impl Faults {
    /// Whether each packet comes exactly once, and in order.
    pub(crate) fn lets_all_through(&self) -> bool {
        [self.lose, self.repeat, self.delay, self.late, self.damage] == [0; 5]
            && self.outages.is_empty()
            && self.nearness.is_none()
    }
}

/// The time in which both ends are processes of one host that have a channel in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nearness {
    pub(crate) span: Span,
    /// Whether what is in the channel at the end is lost.
    pub(crate) loses: bool,
}

/// A parcel on its way: when it arrives, a number that keeps those of one moment in order, to which end, and the parcel.
type Flight = Reverse<(Duration, u64, usize, Parcel)>;

pub(crate) struct QueuePairs {
    pub(crate) ends: [End; 2],
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    flights: BinaryHeap<Flight>,
    start: Duration,
    /// Packets that have left.
    pub(crate) launched: u64,
    pub(crate) now: Duration,
    /// The end, and the number of its request, that its peer is to refuse.
    pub(crate) refused: Option<(usize, usize)>,
    /// Whether requests are posted little by little, and those that are to come.
    pub(crate) paced: bool,
    works: [VecDeque<SendWork>; 2],
    work_at: Duration,
    /// Receives that are posted little by little.
    pub(crate) receives: [Vec<usize>; 2],
    /// The operations of the requests of each end.
    pub(crate) operations: [Vec<Operation>; 2],
    post_at: Duration,
    /// Packets that fit the buffer of a receiver, which takes one in a microsecond; and when that of each end is empty.
    pub(crate) buffer: Option<u32>,
    busy_until: [Duration; 2],
    /// Packets that found the buffer full.
    pub(crate) overrun: usize,
    /// Packets that came, timers that ran out, and receives that were posted.
    pub(crate) events: u64,
    /// Completions and deliveries of each end that have been compared.
    checked: [(usize, usize); 2],
    /// The bytes of the region that nobody may write to.
    pub(crate) readable: [Vec<u8>; 2],
}

/// An acknowledgement with another packet sequence number; none of a packet of another kind.
fn with_number(parcel: &Parcel, number: u32) -> Option<Parcel> {
    let Parcel::Packet(packet) = parcel else { return None };
    let is_acknowledgement =
        Packet::parse(packet).is_ok_and(|packet| packet.opcode().operation() == Opcode::Acknowledge);
    is_acknowledgement.then(|| {
        let mut forged = packet.to_vec();
        forged[9..12].copy_from_slice(&number.to_be_bytes()[1..]);
        Parcel::Packet(forged)
    })
}

/// True this often in a thousand times.
pub(crate) fn often(random: &mut Random, per_mille: usize) -> bool {
    random.below(1000) < per_mille
}

pub(crate) fn options(service: Service, random: &mut Random) -> Options {
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

impl QueuePairs {
    pub(crate) fn new(options: Options, faults: Faults, random: &mut Random) -> QueuePairs {
        let mut ends = [End::new(&options, 0), End::new(&options, 1)];
        for end in &mut ends {
            let all = Access { write: true, read: true, atomic: true, flush: true };
            let mut add = |key, bytes, rights| {
                end.program.regions.insert(key, KeyedMemory { base: BASE, bytes, rights });
            };
            add(WRITABLE, Vec::new(), Access { read: true, flush: true, ..all });
            add(READABLE, random.bytes(READABLE_SIZE), Access { write: false, ..all });
            add(COUNTERS, vec![0; 64], all);
            add(PRIVATE, vec![0; 64], Access::default());
            end.program.most_kept = [None, Some(0), Some(random.below(10_000))][random.below(3)];
        }
        let readable = ends.each_ref().map(|end| end.program.regions[&READABLE].bytes.clone());
        let start = Duration::from_millis(random.next() % 1000);
        QueuePairs {
            ends,
            options,
            faults,
            flights: BinaryHeap::new(),
            start,
            launched: 0,
            now: start,
            refused: None,
            paced: false,
            works: Default::default(),
            work_at: Duration::ZERO,
            receives: [Vec::new(), Vec::new()],
            operations: [Vec::new(), Vec::new()],
            post_at: Duration::ZERO,
            buffer: None,
            busy_until: [Duration::ZERO; 2],
            overrun: 0,
            events: 0,
            checked: [(0, 0); 2],
            readable,
        }
    }

    fn launch(&mut self, to: usize, packet: Parcel, random: &mut Random) {
        let mut arrival = self.now + Duration::from_micros(20);
        if often(random, self.faults.delay) {
            arrival += Duration::from_micros(random.below(100) as u64);
        }
        if self.faults.late > 0 && often(random, self.faults.late) {
            arrival += Duration::from_micros(random.below(20_000) as u64);
        }
        // A packet that comes later than those behind it has taken another way.
        if let Some(buffer) = self.buffer.filter(|_| arrival == self.now + Duration::from_micros(20)) {
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

    /// When an end goes on that does nothing now.
    fn thaw(&self, side: usize) -> Option<Duration> {
        let since = self.now.saturating_sub(self.start);
        let frozen = self.faults.freezes.iter().filter(|freeze| freeze.end == side && freeze.span.has(since));
        frozen.map(|freeze| self.start + freeze.span.end()).max()
    }

    fn transmit(&mut self, random: &mut Random) {
        let since = self.now.saturating_sub(self.start);
        for side in 0..2 {
            if self.thaw(side).is_some() {
                continue;
            }
            let near = self.faults.nearness.filter(|nearness| nearness.span.has(since));
            self.ends[side].is_near = near.is_some();
            let is_cut = |outage: &Outage| outage.from[side] && outage.span.has(since);
            let outage = self.faults.outages.iter().any(is_cut);
            let mut packets = Vec::new();
            self.ends[side].transmit(self.now, random, &mut |parcel| packets.push(parcel));
            if let Some(Nearness { span, loses }) = near {
                let arrival = self.now + Duration::from_nanos(300);
                if loses && arrival >= self.start + span.end() {
                    continue;
                }
                for parcel in packets {
                    self.launched += 1;
                    self.flights.push(Reverse((arrival, self.launched, 1 - side, parcel)));
                }
                continue;
            }
            for packet in packets {
                if outage || often(random, self.faults.lose) || often(random, self.faults.damage) {
                    continue;
                }
                if often(random, self.faults.repeat) {
                    self.launch(1 - side, packet.clone(), random);
                }
                if self.faults.forge > 0 && often(random, self.faults.forge) {
                    let beyond = 100_000 + random.below(1_000_000) as u32;
                    let number = psn::add(self.ends[1 - side].requester.next_psn(), beyond);
                    if let Some(forged) = with_number(&packet, number) {
                        self.launch(1 - side, forged, random);
                    }
                }
                self.launch(1 - side, packet, random);
            }
        }
    }

    /// Goes on to the next moment at which something happens. False if nothing ever will.
    fn step(&mut self, random: &mut Random) -> bool {
        self.transmit(random);
        let receives = self.receives.iter().any(|receives| !receives.is_empty());
        let works = self.works.iter().any(|works| !works.is_empty());
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let thaws = [0, 1].map(|side| self.thaw(side));
        let of_end = |side: usize| match (self.ends[side].deadline(), thaws[side]) {
            (Some(deadline), Some(thaw)) => Some(deadline.max(thaw)),
            // It may have something to send.
            (None, thaw) => thaw,
            (deadline, None) => deadline,
        };
        let posts = [receives.then_some(self.post_at), works.then_some(self.work_at)];
        let all = [arrival, of_end(0), of_end(1)].into_iter().chain(posts);
        let Some(next) = all.flatten().min() else { return false };
        self.now = self.now.max(next);
        let thaws = [0, 1].map(|side| self.thaw(side));
        while self.flights.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Reverse((_, number, to, packet)) = self.flights.pop().expect("one was seen");
            if let Some(thaw) = thaws[to] {
                self.flights.push(Reverse((thaw, number, to, packet)));
                continue;
            }
            self.events += 1;
            self.ends[to].receive(&packet, self.now);
        }
        for (end, thaw) in self.ends.iter_mut().zip(thaws) {
            if thaw.is_none() {
                self.events += u64::from(end.deadline().is_some_and(|deadline| deadline <= self.now));
                end.handle_timeout(self.now);
            }
        }
        if receives && self.post_at <= self.now {
            for (end, receives) in self.ends.iter_mut().zip(&mut self.receives) {
                let count = random.below(4).min(receives.len());
                self.events += count as u64;
                end.program.receives.extend(receives.drain(..count));
            }
            self.post_at = self.now + Duration::from_micros(random.below(200) as u64);
        }
        if works && self.work_at <= self.now {
            for (end, works) in self.ends.iter_mut().zip(&mut self.works) {
                let count = random.below(4).min(works.len());
                works.drain(..count).for_each(|work| {
                    end.post(work);
                });
            }
            self.work_at = self.now + Duration::from_micros(random.below(500) as u64);
        }
        true
    }

    /// The time since the start of the run.
    pub(crate) fn passed(&self) -> Duration {
        self.now.saturating_sub(self.start)
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(&mut self, random: &mut Random) {
        self.run_with(random, |_| {});
    }

    /// Runs until nothing happens any more, with a check after every step.
    pub(crate) fn run_with(&mut self, random: &mut Random, mut check: impl FnMut(&mut QueuePairs)) {
        // With a loss of a few percent a packet needs a few attempts; the bound only makes a livelock a failure.
        for _ in 0..1_000_000 {
            if !self.step(random) {
                return;
            }
            check(self);
        }
        let ends = self.ends.each_ref().map(End::summary);
        panic!(
            "the two ends never come to rest: {ends:?}, {:?} after the start, {} parcels, {:?} {:?}",
            self.passed(),
            self.launched,
            self.options,
            self.faults
        );
    }

    /// Receives were taken from the queues that the requests of an end name.
    fn check_queues(&self, side: usize) {
        let takes = |operation: &Operation| {
            matches!(operation, Operation::Send { .. } | Operation::Write { immediate: Some(_), .. })
        };
        let takers = (0..).zip(&self.operations[side]).filter(|(_, operation)| takes(operation));
        let mut named = takers.map(|(sequence, _)| shared_queue(sequence));
        let taken = &self.ends[1 - side].program.taken_from;
        assert!(taken.iter().all(|queue| named.next() == Some(*queue)), "a receive of another queue");
    }

    /// Everything that is new since the last call is as it must be, and nothing grows without bound.
    pub(crate) fn check(&mut self, expected: &[Expectations; 2]) {
        for (side, expected) in expected.iter().enumerate() {
            let (completions, deliveries) = self.checked[side];
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let new = end.program.completions.iter().zip(0..).skip(completions);
            for ((sequence, status, data), number) in new {
                assert_eq!(*sequence, number, "requests complete once and in order");
                let is_good = *status == CompletionStatus::Success;
                assert!(!is_good || *data == expected.results[number as usize], "result of request {number}");
            }
            let new = peer.program.deliveries.iter().zip(&expected.deliveries).skip(deliveries);
            for (found, wanted) in new {
                assert!(
                    found == wanted,
                    "a delivery that is not the next one: {:?}, not {:?}",
                    found.0,
                    wanted.0
                );
            }
            if self.options.service == Service::Xrc {
                self.check_queues(side);
            }
            let delivered = peer.program.deliveries.len();
            assert!(delivered <= expected.deliveries.len(), "a message is delivered twice");
            // A failure is the last one.
            let completions = &end.program.completions;
            let has_failed =
                completions.last().is_some_and(|(_, status, _)| *status != CompletionStatus::Success);
            let done = completions.len() - usize::from(has_failed);
            let due = expected.states[done].deliveries;
            assert!(delivered >= due, "request {done} is complete before the peer has its message");
            self.checked[side] = (end.program.completions.len(), delivered);
            assert_eq!(end.program.regions[&PRIVATE].bytes, [0; 64]);
            assert!(end.held() <= MOST_HELD, "{} packets are held", end.held());
        }
    }
}

/// What must be found when everything is done.
#[derive(Default)]
pub(crate) struct Expectations {
    /// Of the peer: the messages that are delivered to it, its memory, the keys that it loses.
    pub(crate) deliveries: Vec<(Delivery, Vec<u8>)>,
    pub(crate) writable: Vec<u8>,
    pub(crate) counters: Vec<u8>,
    pub(crate) invalidated: usize,
    pub(crate) flushes: usize,
    /// Where writes with these immediate data go.
    pub(crate) announced: BTreeMap<u32, (usize, usize)>,
    /// The bytes that requests of this end read.
    pub(crate) results: Vec<Vec<u8>>,
    /// The peer before each request, and after the last one.
    pub(crate) states: Vec<State>,
}

/// The peer when so many requests have been carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) deliveries: usize,
    /// Bytes that were written.
    pub(crate) written: usize,
    pub(crate) counters: Vec<u8>,
    pub(crate) invalidated: usize,
    pub(crate) flushes: usize,
}

impl Expectations {
    fn note_state(&mut self) {
        self.states.push(State {
            deliveries: self.deliveries.len(),
            written: self.writable.len(),
            counters: self.counters.clone(),
            invalidated: self.invalidated,
            flushes: self.flushes,
        });
    }
}

fn length(mtu: u32, random: &mut Random) -> usize {
    let mtu = mtu as usize;
    match random.below(6) {
        0 => 0,
        1 => 1 + random.below(16),
        2 => random.below(mtu),
        3 => mtu * (1 + random.below(4)),
        4 => random.below(4 * mtu),
        _ => random.below(LONGEST),
    }
}

/// Posts random work at one end and says what must come of it.
// IB-RC-REQ-8, IB-RC-REQ-9, IB-RC-REQ-10, IB-RC-RSP-43
pub(crate) fn load(pair: &mut QueuePairs, side: usize, count: usize, random: &mut Random) -> Expectations {
    let mut expected = Expectations { counters: vec![0; 64], ..Expectations::default() };
    let readable = pair.ends[1 - side].program.regions[&READABLE].bytes.clone();
    let reliable = pair.options.service.is_reliable();
    for number in 0..count {
        expected.note_state();
        let len = length(pair.options.mtu, random);
        let (solicited, fence) = (often(random, 300), often(random, 150));
        let immediate = often(random, 300).then(|| random.next() as u32);
        let mut data = Vec::new();
        let mut result = None;
        let operation = match random.below(if reliable { 10 } else { 5 }) {
            _ if pair.refused == Some((side, number)) => {
                data = vec![1; 1 + random.below(64)];
                match random.below(3) {
                    0 => Operation::Read { address: BASE, rkey: PRIVATE },
                    1 => Operation::Write { address: BASE, rkey: READABLE, immediate: None },
                    _ => Operation::Write { address: BASE, rkey: PRIVATE, immediate: None },
                }
            }
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
                // Behind a repetition it may read what later requests have left.
                if random.chance(4) && pair.faults.lets_all_through() && pair.buffer.is_none() {
                    data = vec![0; 64];
                    result = Some(expected.counters.clone());
                    Operation::Read { address: BASE, rkey: COUNTERS }
                } else if random.chance(3) && written >= len {
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
        let work = SendWork { operation, data, solicited, fence };
        if pair.paced {
            pair.works[side].push_back(work);
        } else {
            pair.ends[side].post(work);
        }
    }
    expected.note_state();
    let region = pair.ends[1 - side].program.regions.get_mut(&WRITABLE).unwrap();
    region.bytes = vec![0; expected.writable.len()];
    region.rights.write = true;
    expected
}
