//! Two queue pairs and a network that loses, repeats, reorders, damages and delays packets; and their
//! programs, which do random work of every kind.
//!
//! Every byte is checked: each request completes exactly once and in order, and each atomic is executed
//! exactly once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use adverb_proto::ib::{Access, CompletionStatus, Operation, Service, psn};
use adverb_wire::ib::opcode::Operation as Opcode;
use adverb_wire::ib::packet::Packet;

use super::end::{End, KeyedMemory, Options, Parcel, SendWork, shared_queue};
use super::faults::{Faults, Nearness, Turn};
use super::work::Expectations;
use crate::Random;

/// Each write has a place of its own here, so that its bytes can be checked at the end.
pub(crate) const WRITABLE: u32 = 0x11;
pub(crate) const READABLE: u32 = 0x22;
pub(crate) const COUNTERS: u32 = 0x33;
/// A region without rights for the peer.
pub(crate) const PRIVATE: u32 = 0x44;
pub(crate) const BASE: u64 = 0x7f00_0000_0000;
pub(super) const READABLE_SIZE: usize = 50_000;
/// The longest message.
pub(crate) const LONGEST: usize = 20_000;
/// The way through the network, for a packet that nothing delays.
const LATENCY: Duration = Duration::from_micros(20);
/// The packets that an end may keep behind reads that it has not answered yet.
const MOST_HELD: usize = 100_000;

/// The way of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Network,
    Channel,
}

/// A parcel on its way: when it arrives, a number that keeps those of one moment in order, to which end,
/// which way, and the parcel.
type Flight = Reverse<(Duration, u64, usize, Way, Parcel)>;

pub(crate) struct QueuePairs {
    pub(crate) ends: [End; 2],
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    flights: BinaryHeap<Flight>,
    pub(super) start: Duration,
    /// Packets that have left.
    pub(crate) launched: u64,
    pub(crate) now: Duration,
    /// The end, and the number of its request, that its peer is to refuse.
    pub(crate) refused: Option<(usize, usize)>,
    /// Whether most requests are short Sends.
    pub(crate) talks: bool,
    /// The most microseconds between posts, if requests are posted little by little; and those that are to
    /// come.
    pub(crate) pace: Option<usize>,
    pub(super) works: [VecDeque<SendWork>; 2],
    work_at: Duration,
    /// Receives that are posted little by little.
    pub(crate) receives: [Vec<usize>; 2],
    /// The operations of the requests of each end.
    pub(crate) operations: [Vec<Operation>; 2],
    post_at: Duration,
    /// Packets that fit the buffer of a receiver, which takes one in a microsecond; and when that of each end
    /// is empty.
    pub(crate) buffer: Option<u32>,
    pub(super) busy_until: [Duration; 2],
    /// When each end has taken all records out of the channel.
    channel_until: [Duration; 2],
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
        number: 100,
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
        let other = Options { mtu: faults.other_mtu.unwrap_or(options.mtu), ..options.clone() };
        let mut ends = [End::new(&options, 0), End::new(&other, 1)];
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
            talks: false,
            pace: None,
            works: Default::default(),
            work_at: Duration::ZERO,
            receives: [Vec::new(), Vec::new()],
            operations: [Vec::new(), Vec::new()],
            post_at: Duration::ZERO,
            buffer: None,
            busy_until: [Duration::ZERO; 2],
            channel_until: [Duration::ZERO; 2],
            overrun: 0,
            events: 0,
            checked: [(0, 0); 2],
            readable,
        }
    }

    /// Whether no packet overtakes another one, or comes twice.
    pub(super) fn keeps_order(&self) -> bool {
        // A packet that is on its way for longer than the two ends are near comes behind all that went by the
        // channel.
        let in_buffer = self.buffer.map_or(Duration::ZERO, |room| Duration::from_micros(u64::from(room) + 1));
        let longest_way = LATENCY + in_buffer;
        let is_overtaken =
            |nearness: Nearness| !nearness.span.start.is_zero() && nearness.span.length <= longest_way;
        self.faults.keeps_order() && !self.faults.nearness.is_some_and(is_overtaken)
    }

    fn launch(&mut self, to: usize, packet: Parcel, random: &mut Random) {
        let mut arrival = self.now + LATENCY;
        if often(random, self.faults.delay) {
            arrival += Duration::from_micros(random.below(100) as u64);
        }
        if self.faults.late > 0 && often(random, self.faults.late) {
            arrival += Duration::from_micros(random.below(20_000) as u64);
        }
        // A packet that comes later than those behind it has taken another way.
        if let Some(buffer) = self.buffer.filter(|_| arrival == self.now + LATENCY) {
            let waiting = self.busy_until[to].saturating_sub(arrival);
            if waiting >= Duration::from_micros(buffer.into()) {
                self.overrun += 1;
                return;
            }
            arrival += waiting + Duration::from_micros(1);
            self.busy_until[to] = arrival;
        }
        self.launched += 1;
        self.flights.push(Reverse((arrival, self.launched, to, Way::Network, packet)));
    }

    /// Puts a record into the channel. Its receiver takes records out in order, some time later.
    fn launch_near(&mut self, to: usize, parcel: Parcel, nearness: Nearness, random: &mut Random) {
        let wait = Duration::from_nanos(300 + random.below(nearness.wait + 1) as u64);
        let arrival = (self.now + wait).max(self.channel_until[to]);
        self.channel_until[to] = arrival;
        if nearness.loses && arrival >= self.start + nearness.span.end() {
            return;
        }
        self.launched += 1;
        self.flights.push(Reverse((arrival, self.launched, to, Way::Channel, parcel)));
    }

    /// The channel, while both ends are processes of one host.
    fn nearness(&self) -> Option<Nearness> {
        let since = self.passed();
        self.faults.nearness.filter(|nearness| nearness.span.has(since))
    }

    /// When an end has its next turn for a part of its work, if it has none now.
    fn next_turn(&self, side: usize, turn: Turn) -> Option<Duration> {
        self.faults.next_turn(side, turn, self.passed()).map(|since| self.start + since)
    }

    /// The time by the clock of an end.
    fn clock(&self, side: usize) -> Duration {
        self.now + self.faults.leapt(side, self.passed())
    }

    pub(super) fn transmit(&mut self, random: &mut Random) {
        let since = self.passed();
        for side in 0..2 {
            if self.next_turn(side, Turn::Send).is_some() {
                continue;
            }
            let (near, clock) = (self.nearness(), self.clock(side));
            self.ends[side].is_near = near.is_some();
            let mut packets = Vec::new();
            self.ends[side].transmit(clock, random, &mut |parcel| packets.push(parcel));
            for packet in packets {
                let peer = self.ends[1 - side].number;
                assert!(
                    packet.destination().is_none_or(|number| number == peer),
                    "a packet for another queue pair"
                );
                if let Some(nearness) = near {
                    self.launch_near(1 - side, packet, nearness, random);
                    continue;
                }
                let is_stopped = self.faults.stops(side, packet.len(), since);
                if is_stopped || often(random, self.faults.lose) || often(random, self.faults.damage) {
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

    /// The times at which something happens at an end by itself.
    fn times_of(&self, side: usize) -> impl Iterator<Item = Duration> {
        let since = self.passed();
        let leapt = self.faults.leapt(side, since);
        let by_turn = |deadline: Option<Duration>, turn| {
            let at = deadline?.saturating_sub(leapt);
            Some(at.max(self.next_turn(side, turn).unwrap_or_default()))
        };
        let end = &self.ends[side];
        let timer = by_turn(end.requester.deadline(), Turn::Timers);
        let acknowledgement = by_turn(end.acknowledge_at, Turn::Send);
        let leap = self.faults.next_leap(side, since).map(|leap| self.start + leap);
        let leap = leap.filter(|_| timer.is_some() || acknowledgement.is_some());
        // An end that gets its turn may have something to send.
        [timer, acknowledgement, leap, self.next_turn(side, Turn::Send)].into_iter().flatten()
    }

    /// The next moment at which something happens. None if nothing ever will.
    pub(super) fn next(&self) -> Option<Duration> {
        let receives = self.receives.iter().any(|receives| !receives.is_empty());
        let works = self.works.iter().any(|works| !works.is_empty());
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let posts = [arrival, receives.then_some(self.post_at), works.then_some(self.work_at)];
        posts.into_iter().flatten().chain(self.times_of(0)).chain(self.times_of(1)).min()
    }

    /// Goes on to a moment, and lets everything happen that happens then.
    pub(super) fn advance(&mut self, next: Duration, random: &mut Random) {
        self.now = self.now.max(next);
        let is_near = self.nearness().is_some();
        while self.flights.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Reverse((_, number, to, way, packet)) = self.flights.pop().expect("one was seen");
            if let Some(turn) = self.next_turn(to, Turn::Receive) {
                self.flights.push(Reverse((turn, number, to, way, packet)));
                continue;
            }
            // The product's ends take in what comes by their way alone. Reliable ones do not depend on that.
            let is_own_way = is_near == (way == Way::Channel);
            if is_own_way || self.options.service.is_reliable() {
                self.events += 1;
                let clock = self.clock(to);
                self.ends[to].receive(&packet, clock);
            }
        }
        for side in 0..2 {
            if self.next_turn(side, Turn::Timers).is_none() {
                let clock = self.clock(side);
                let end = &mut self.ends[side];
                self.events += u64::from(end.deadline().is_some_and(|deadline| deadline <= clock));
                end.handle_timeout(clock);
            }
        }
        if self.receives.iter().any(|receives| !receives.is_empty()) && self.post_at <= self.now {
            for (end, receives) in self.ends.iter_mut().zip(&mut self.receives) {
                let count = random.below(4).min(receives.len());
                self.events += count as u64;
                end.program.receives.extend(receives.drain(..count));
            }
            self.post_at = self.now + Duration::from_micros(random.below(200) as u64);
        }
        if self.works.iter().any(|works| !works.is_empty()) && self.work_at <= self.now {
            for (end, works) in self.ends.iter_mut().zip(&mut self.works) {
                let count = random.below(4).min(works.len());
                works.drain(..count).for_each(|work| {
                    end.post(work);
                });
            }
            let pace = self.pace.unwrap_or_default();
            self.work_at = self.now + Duration::from_micros(random.below(pace + 1) as u64);
        }
    }

    /// Goes on to the next moment at which something happens. False if nothing ever will.
    fn step(&mut self, random: &mut Random) -> bool {
        self.transmit(random);
        let Some(next) = self.next() else { return false };
        self.advance(next, random);
        true
    }

    /// The shorter path MTU, if the ends have different ones.
    pub(crate) fn shorter_mtu(&self) -> Option<u32> {
        let other = self.faults.other_mtu.filter(|other| *other != self.options.mtu)?;
        Some(other.min(self.options.mtu))
    }

    /// The longer path MTU of both ends.
    pub(crate) fn longer_mtu(&self) -> u32 {
        self.faults.other_mtu.unwrap_or_default().max(self.options.mtu)
    }

    /// Whether a message of this length can be carried out. If the path MTUs differ, it must be a packet of
    /// both ends.
    pub(crate) fn fits_both(&self, length: u32) -> bool {
        self.shorter_mtu().is_none_or(|shorter| length <= shorter)
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
        // With a loss of a few percent a packet needs a few attempts; the bound only makes a livelock a
        // failure.
        for _ in 0..200_000 {
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
