//! Faults of the wire: what becomes of each packet of the process.

use super::completions::part_of;
use super::rule::{OnWire, Subject};
use super::when::{Point, Span};
use super::{Faults, RuleCounter};
use adverb_core::wire::{Direction, Fate, Kind, Medium, Passing, Wire};
use adverb_core::{clock, log, random};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

/// TCP repeats a lost segment after this time, at the earliest.
const REPEATED_AFTER: Duration = Duration::from_millis(200);
/// Packets wait no longer in front of a slow link: then its queue is full.
const LONGEST_QUEUE: Duration = Duration::from_millis(200);
/// Peers of which it is known when the last packet goes on.
const MOST_FLOWS: usize = 1 << 12;
/// How long a stream waits before it asks again whether the port is up.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// What a rule knows of the packets that it has kept.
#[derive(Default)]
pub(super) struct Flows {
    /// When the last one goes on, by direction and peer.
    last: HashMap<(Direction, IpAddr), u64>,
}

impl Flows {
    /// When a packet goes on that may do so at `time` at the earliest, and not in front of those before it.
    fn behind(&mut self, passing: &Passing, time: u64) -> u64 {
        // Packets may come from any address.
        if self.last.len() >= MOST_FLOWS {
            self.last.retain(|_, last| *last > time);
        }
        let last = self.last.entry((passing.direction, passing.peer)).or_default();
        *last = (*last).max(time);
        *last
    }
}

/// What a rule does to a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Happens {
    Lost,
    Waits(Duration),
    Copied(u32),
    Damaged(u64),
    Cut,
}

/// Why a rule has no effect on any packet of this kind and direction (of all, where it is None) on this
/// medium, and what it is for; None if it has one.
pub(super) fn idle(
    what: OnWire,
    kind: Option<Kind>,
    direction: Option<Direction>,
    medium: Medium,
) -> Option<&'static str> {
    use OnWire::{Corrupt, Cut, Duplicate, Reorder};
    let is_start = kind == Some(Kind::Management);
    match (medium, what, kind) {
        (Medium::Datagrams, Cut, _) => Some(
            "RoCE has no connection below its queue pairs that could be cut; it is for devices of iWARP, as iwarp0, and peer:cut for all",
        ),
        (Medium::Datagrams, _, Some(Kind::Immediate | Kind::Terminate)) => Some(
            "RoCE has no such packets: immediate data are in packets of SEND and RDMA_WRITE, and ends of connections in those of CM; it is for devices of iWARP, as iwarp0",
        ),
        (Medium::Stream, Reorder(_) | Duplicate(_), _) => Some(
            "TCP puts everything in order and drops what comes twice; it is for devices of RoCE, as roce0",
        ),
        (Medium::Stream, _, Some(Kind::Acknowledgement | Kind::Flush)) => {
            Some("iWARP has no such packets; it is for devices of RoCE, as roce0")
        }
        (Medium::Stream, Corrupt | Cut, _) if is_start => {
            Some("messages that start a connection of iWARP can only be late, as by wire:delay=5ms")
        }
        (Medium::Stream, ..) if is_start && direction == Some(Direction::In) => {
            Some("messages that start a connection of iWARP meet rules only as they leave: direction=out")
        }
        _ => None,
    }
}

impl Wire for Faults {
    fn pass(&self, passing: &Passing) -> Fate {
        let mut fate = Fate::default();
        let now = clock::device();
        if self.device.is_down(passing) {
            match passing.medium {
                Medium::Datagrams => fate.is_lost = true,
                Medium::Stream => (fate.wait, fate.asks_again) = (ASK_AGAIN, true),
            }
        }
        for (place, counted) in self.rules.iter().enumerate() {
            let Subject::Wire { what, of } = &counted.rule.subject else { continue };
            let is_of_device = || match &counted.rule.of.device {
                Some(device) => self.device.carries(device, passing),
                None => true,
            };
            let is_idle = idle(*what, Some(passing.kind), Some(passing.direction), passing.medium).is_some();
            if !of.has(passing) || is_idle || !is_of_device() {
                continue;
            }
            let Some(count) = self.strikes_at(place, now) else { continue };
            let happens = self.happens(place, *what, passing, count, now);
            match happens {
                Happens::Lost => fate.is_lost = true,
                Happens::Waits(time) => fate.wait = fate.wait.saturating_add(time),
                Happens::Copied(copies) => fate.copies += copies,
                Happens::Damaged(word) => fate.damage = Some(word),
                Happens::Cut => fate.is_cut = true,
            }
            self.tell(counted, *what, passing, count, happens);
        }
        fate
    }

    fn damages(&self) -> bool {
        let is_corruption = |counted: &RuleCounter| {
            matches!(counted.rule.subject, Subject::Wire { what: OnWire::Corrupt, .. })
        };
        self.rules.iter().any(is_corruption)
    }
}

impl Faults {
    fn happens(&self, place: usize, what: OnWire, passing: &Passing, count: u64, now: u64) -> Happens {
        let counted = &self.rules[place];
        let is_stream = passing.medium == Medium::Stream;
        let until = |time: u64| Happens::Waits(Duration::from_nanos(time.saturating_sub(now)));
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // One more number of the same packet, so that it says nothing about whether the rule strikes.
        let drawn = random::next(self.drawn(place, count));
        match what {
            OnWire::Loss if is_stream => Happens::Waits(REPEATED_AFTER),
            OnWire::Partition if is_stream => match counted.rule.when.span {
                Span::From(_, Some(Point::Time(end))) => until(self.began.saturating_add(nanoseconds(end))),
                _ => Happens::Waits(Duration::MAX),
            },
            OnWire::Loss | OnWire::Partition => Happens::Lost,
            OnWire::Delay { time, jitter } => {
                let more = nanoseconds(part_of(jitter, drawn));
                let due = now.saturating_add(nanoseconds(time)).saturating_add(more);
                until(lock(&counted.flows).behind(passing, due))
            }
            OnWire::Rate(rate) => {
                let takes = (passing.length as f64 * 8e9 / rate) as u64;
                let mut flows = lock(&counted.flows);
                let begins = flows.behind(passing, now);
                if !is_stream && begins - now > nanoseconds(LONGEST_QUEUE) {
                    return Happens::Lost;
                }
                until(flows.behind(passing, begins + takes))
            }
            OnWire::Corrupt => Happens::Damaged(drawn),
            OnWire::Cut => Happens::Cut,
            OnWire::Reorder(time) => Happens::Waits(time),
            OnWire::Duplicate(copies) => Happens::Copied(copies),
        }
    }

    /// A line of the log. Of a rule that is about every packet, only the first one.
    fn tell(&self, counted: &RuleCounter, what: OnWire, passing: &Passing, count: u64, happens: Happens) {
        let becomes = match happens {
            Happens::Lost => "is lost".to_owned(),
            Happens::Waits(Duration::MAX) => "waits for ever".to_owned(),
            Happens::Waits(_) if passing.medium == Medium::Stream && what == OnWire::Loss => {
                "comes 0.2 s later, as TCP repeats it".to_owned()
            }
            Happens::Waits(_) => "waits".to_owned(),
            Happens::Copied(1) => "comes twice".to_owned(),
            Happens::Copied(copies) => format!("comes {} times", copies + 1),
            Happens::Damaged(_) => "is damaged".to_owned(),
            Happens::Cut => "cuts the connection".to_owned(),
        };
        let way = match passing.direction {
            Direction::Out => "to",
            Direction::In => "from",
        };
        let (kind, peer) = (passing.kind.name(), passing.peer);
        self.say_some(counted, |number, text| {
            log!(Warn, "fault {number}: packet {count} {way} {peer}, {kind}, {becomes} ({text})");
        });
    }
}

pub(super) fn lock(flows: &Mutex<Flows>) -> std::sync::MutexGuard<'_, Flows> {
    flows.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(direction: Direction, medium: Medium, kind: Kind) -> Passing {
        let [peer, local] = [1, 9].map(|last| IpAddr::from([10, 0, 0, last]));
        Passing { direction, peer, local, kind, length: 1000, medium }
    }

    fn fates(text: &str, seed: &str, passing: &Passing, count: usize) -> Vec<Fate> {
        let faults = Faults::begin(text, Some(seed)).expect("rules");
        (0..count).map(|_| faults.pass(passing)).collect()
    }

    #[test]
    fn the_same_seed_takes_the_same_packets() {
        let out = packet(Direction::Out, Medium::Datagrams, Kind::Send);
        let lost = |seed| -> Vec<usize> {
            let fates = fates("wire:loss%10", seed, &out, 1000);
            fates.iter().enumerate().filter(|(_, fate)| fate.is_lost).map(|(place, _)| place).collect()
        };
        assert_eq!(lost("3"), lost("3"));
        assert_ne!(lost("3"), lost("4"));
        assert!((50..200).contains(&lost("3").len()));
    }

    #[test]
    fn only_the_packets_that_a_rule_is_about_are_counted() {
        let faults = Faults::begin("wire:loss:direction=out:opcode=SEND@2", None).expect("rules");
        let send = packet(Direction::Out, Medium::Datagrams, Kind::Send);
        let others =
            [Passing { direction: Direction::In, ..send }, Passing { kind: Kind::Acknowledgement, ..send }];
        let lost: Vec<bool> =
            [send, others[0], others[1], send, send].iter().map(|one| faults.pass(one).is_lost).collect();
        assert_eq!(lost, [false, false, false, true, false]);
    }

    #[test]
    fn packets_of_which_a_rule_makes_nothing_are_not_counted() {
        let datagram = packet(Direction::Out, Medium::Datagrams, Kind::Send);
        let stream = Passing { medium: Medium::Stream, ..datagram };
        let faults = Faults::begin("wire:cut@2,wire:duplicate@2", None).expect("rules");
        let fates: Vec<_> = [datagram, stream, datagram, stream].iter().map(|one| faults.pass(one)).collect();
        assert_eq!(fates.iter().map(|fate| fate.is_cut).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(fates.iter().map(|fate| fate.copies).collect::<Vec<_>>(), [0, 0, 1, 0]);
        // A message that starts a connection is no packet that could be cut.
        let start = Passing { kind: Kind::Management, ..stream };
        let faults = Faults::begin("wire:cut@1", None).expect("rules");
        assert_eq!([start, stream].map(|one| faults.pass(&one).is_cut), [false, true]);
        let faults = Faults::begin("wire:cut", None).expect("rules");
        faults.pass(&datagram);
        let counted = &faults.rules[0];
        assert_eq!((counted.struck(), counted.count.load(std::sync::atomic::Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn each_kind_has_its_effect_and_on_a_stream_another() {
        let datagram = packet(Direction::Out, Medium::Datagrams, Kind::Send);
        let stream = Passing { medium: Medium::Stream, ..datagram };
        let one = |text, passing| fates(text, "1", passing, 1)[0];
        assert!(one("wire:loss", &datagram).is_lost && !one("wire:loss", &stream).is_lost);
        assert_eq!(one("wire:loss", &stream).wait, REPEATED_AFTER);
        assert!(one("wire:partition", &datagram).is_lost);
        assert_eq!(one("wire:partition", &stream).wait, Duration::MAX);
        assert_eq!(one("wire:duplicate=3", &datagram).copies, 3);
        assert_eq!(one("wire:duplicate", &stream), Fate::default());
        assert_eq!(one("wire:reorder=2ms", &datagram).wait, Duration::from_millis(2));
        assert!(one("wire:corrupt", &datagram).damage.is_some());
        assert!(one("wire:cut", &stream).is_cut && !one("wire:cut", &datagram).is_cut);
        let wait = one("wire:partition@0s..5s", &stream).wait;
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(5), "{wait:?}");
        assert_eq!(one("wire:partition@100s..", &datagram), Fate::default());
    }

    #[test]
    fn delayed_packets_stay_in_order_and_a_rate_makes_them_queue() {
        let out = packet(Direction::Out, Medium::Datagrams, Kind::Send);
        let faults = Faults::begin("wire:delay=50ms:jitter=50ms", Some("5")).expect("rules");
        let mut last = 0;
        for _ in 0..100 {
            let before = clock::device();
            let wait = faults.pass(&out).wait;
            assert!(wait <= Duration::from_millis(100), "{wait:?}");
            let due = clock::device() + wait.as_nanos() as u64;
            assert!(due >= last, "overtakes");
            last = before + wait.as_nanos() as u64;
        }
        // A packet takes 80 ms. Five come at one instant, and the third waits longer than the queue is.
        let faults = Faults::begin("wire:rate=100kbit", None).expect("rules");
        let Subject::Wire { what, .. } = &faults.rules[0].rule.subject else { panic!("a rule of packets") };
        let now = clock::device();
        let happens = [1, 2, 3, 4, 5].map(|count| faults.happens(0, *what, &out, count, now));
        let [one, two, three] = [80, 160, 240].map(|time| Happens::Waits(Duration::from_millis(time)));
        assert_eq!(happens, [one, two, three, Happens::Lost, Happens::Lost]);
    }
}
