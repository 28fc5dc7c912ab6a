//! Incast: many queue pairs write to one host at once, whose link and buffer they share.

use std::collections::BTreeMap;
use std::time::Duration;

use adverb_proto::ib::{Access, CompletionStatus, Operation, Service};

use super::end::{End, KeyedMemory, Options, Parcel, SendWork};
use crate::Random;

const KEY: u32 = 0x11;
const BASE: u64 = 0x7f00_0000_0000;
/// Bytes of a write.
const WRITE: usize = 64 << 10;
/// Bytes that the link of the host carries in a microsecond: 100 Gbit/s.
const BYTES_PER_US: f64 = 12_500.0;
/// Bytes that the buffer in front of the link has room for.
const BUFFER: usize = 1 << 20;
/// The time that a packet is on its way where nothing waits.
const TRIP: Duration = Duration::from_micros(10);
/// A run ends here, in simulated time.
const LIMIT: Duration = Duration::from_secs(60);

/// What becomes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncastOutcome {
    /// The time until the last write was complete.
    pub(crate) time: Duration,
    /// The part of the link's rate that the bytes of writes had.
    pub(crate) use_of_link: f64,
    /// Packets towards the host, and those that found no room.
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    /// Queue pairs that have given up.
    pub(crate) failed: usize,
    /// The time of the first queue pair that was done, as a part of that of the last one: 1 is fair.
    pub(crate) fairness: f64,
}

enum Event {
    Arrival { pair: usize, side: usize, parcel: Parcel },
    Timer { pair: usize, side: usize },
}

struct Incast {
    pairs: Vec<[End; 2]>,
    agenda: Agenda,
    now: Duration,
    /// When the link has carried everything that waits.
    link_until: Duration,
    packets: u64,
    dropped: u64,
}

/// Events to come: by time, and in the order in which they were planned.
#[derive(Default)]
struct Agenda {
    events: BTreeMap<(Duration, u64), Event>,
    planned: u64,
}

impl Agenda {
    fn plan(&mut self, at: Duration, event: Event) {
        self.events.insert((at, self.planned), event);
        self.planned += 1;
    }
}

impl Incast {
    /// Sends what an end has to send. A packet that finds no room is gone at once: there may be millions.
    fn transmit(&mut self, pair: usize, side: usize, random: &mut Random) {
        let Self { pairs, agenda, now, link_until, packets, dropped } = self;
        let now = *now;
        pairs[pair][side].transmit(now, random, &mut |parcel| {
            let Parcel::Packet(packet) = &parcel else { unreachable!("the ends are on different hosts") };
            // The way back is free.
            let mut at = now + TRIP;
            if side == 0 {
                *packets += 1;
                let waiting = link_until.saturating_sub(now).as_secs_f64() * 1e6 * BYTES_PER_US;
                if waiting as usize + packet.len() > BUFFER {
                    *dropped += 1;
                    return;
                }
                let takes = Duration::from_secs_f64(packet.len() as f64 / BYTES_PER_US / 1e6);
                *link_until = (*link_until).max(now) + takes;
                at = *link_until + TRIP;
            }
            agenda.plan(at, Event::Arrival { pair, side: 1 - side, parcel });
        });
        if let Some(deadline) = pairs[pair][side].deadline() {
            agenda.plan(deadline.max(now + Duration::from_nanos(1)), Event::Timer { pair, side });
        }
    }
}

/// Lets so many queue pairs write so many times 64 KiB, each with the congestion window or without.
pub(crate) fn run(pairs: usize, writes: usize, has_window: bool, seed: u64) -> IncastOutcome {
    let mut random = Random(seed);
    let options = Options {
        service: Service::Rc,
        number: 100,
        mtu: 4096,
        psn: [0, 0],
        max_reads: 1,
        read_chunk: u32::MAX,
        room: 64,
        retry_count: 7,
        rnr_retry: 7,
        timeout: 14,
    };
    let new_pair = |random: &mut Random| {
        let mut ends = [End::new(&options, 0), End::new(&options, 1)];
        ends[0].has_window = has_window;
        let rights = Access { write: true, ..Access::default() };
        ends[1].program.regions.insert(KEY, KeyedMemory { base: BASE, bytes: vec![0; WRITE], rights });
        let data = random.bytes(WRITE);
        for _ in 0..writes {
            let operation = Operation::Write { address: BASE, rkey: KEY, immediate: None };
            ends[0].post(SendWork { operation, data: data.clone(), solicited: false, fence: false });
        }
        ends
    };
    let mut incast = Incast {
        pairs: (0..pairs).map(|_| new_pair(&mut random)).collect(),
        agenda: Agenda::default(),
        now: Duration::ZERO,
        link_until: Duration::ZERO,
        packets: 0,
        dropped: 0,
    };
    // They begin within 100 µs.
    for pair in 0..pairs {
        let at = Duration::from_nanos(random.next() % 100_000);
        incast.agenda.plan(at, Event::Timer { pair, side: 0 });
    }
    let (mut first, mut last) = (None, Duration::ZERO);
    let mut is_done = vec![false; pairs];
    while let Some(((at, _), event)) = incast.agenda.events.pop_first() {
        if at > LIMIT {
            break;
        }
        incast.now = at;
        let (pair, side) = match event {
            Event::Arrival { pair, side, parcel } => {
                incast.pairs[pair][side].receive(&parcel, at);
                (pair, side)
            }
            Event::Timer { pair, side } => {
                // One that was planned before something else happened.
                let end = &mut incast.pairs[pair][side];
                if at > Duration::from_micros(100) && end.deadline().is_none_or(|deadline| deadline > at) {
                    continue;
                }
                end.handle_timeout(at);
                (pair, side)
            }
        };
        incast.transmit(pair, side, &mut random);
        let completions = &incast.pairs[pair][0].program.completions;
        if !is_done[pair] && completions.len() == writes {
            is_done[pair] = true;
            first.get_or_insert(at);
            last = at;
        }
    }
    let failed = |ends: &&[End; 2]| {
        ends[0].program.completions.iter().any(|(_, status, _)| *status != CompletionStatus::Success)
    };
    let failed = incast.pairs.iter().filter(failed).count();
    let bytes = is_done.iter().filter(|is| **is).count() * writes * WRITE;
    IncastOutcome {
        time: last,
        use_of_link: bytes as f64 / (last.as_secs_f64() * 1e6 * BYTES_PER_US),
        packets: incast.packets,
        dropped: incast.dropped,
        failed,
        fairness: first.map_or(0.0, |first| first.as_secs_f64() / last.as_secs_f64()),
    }
}

/// Lines of a table of runs, with the window and without. They are the same on every machine.
pub(crate) fn table() -> String {
    let mut text = String::from(
        "| queue pairs | window | time | use of the link | packets | dropped | first done, of the time |\n|---|---|---|---|---|---|---|\n",
    );
    for pairs in [1, 10, 100, 1000] {
        for has_window in [true, false] {
            let outcome = run(pairs, 16, has_window, 1);
            assert_eq!(outcome.failed, 0, "queue pairs have given up");
            text += &format!(
                "| {pairs} | {} | {:.1} ms | {:.0} % | {} | {:.0} % | {:.0} % |\n",
                if has_window { "on" } else { "off" },
                outcome.time.as_secs_f64() * 1e3,
                outcome.use_of_link * 100.0,
                outcome.packets,
                outcome.dropped as f64 / outcome.packets as f64 * 100.0,
                outcome.fairness * 100.0
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_the_window_incast_loses_little_and_fails_nobody() {
        let outcome = run(50, 4, true, 1);
        assert_eq!(outcome.failed, 0, "{outcome:?}");
        assert!(outcome.dropped * 4 < outcome.packets, "{outcome:?}");
    }
}
