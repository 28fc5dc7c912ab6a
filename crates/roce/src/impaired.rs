//! Faults of the wire ([`adverb_core::wire`]) at a lane's socket: packets that leave, and packets that have
//! come, are lost, kept for a while, repeated or damaged. There is none of this in processes without such
//! faults.

use crate::handover::OwnedArrival;
use crate::lane::Lane;
use crate::lock;
use crate::observer;
use crate::route::Route;
use crate::socket::Arrival;
use crate::time;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::wire::{self, Direction, Fate, Kind, Medium, Passing, Wire};
use adverb_wire::ib::header::{BTH_LEN, ICRC_LEN};
use adverb_wire::ib::mad::GSI_QPN;
use adverb_wire::ib::packet::{self, Packet};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Packets that are kept for a while in each direction, at most. Any beyond are lost.
const MOST: usize = 1 << 16;

/// The faults of a lane.
pub(crate) struct LaneFaults {
    wire: &'static dyn Wire,
    leaving: Mutex<DelayQueue<Parcel>>,
    coming: Mutex<DelayQueue<OwnedArrival>>,
    /// The source that looks at both queues when the next packet is due, and the time of that look.
    alarm: Arc<Alarm>,
    armed: Mutex<Option<Duration>>,
}

/// A packet that leaves later.
pub(crate) struct Parcel {
    pub(crate) route: Route,
    pub(crate) bytes: Vec<u8>,
}

impl LaneFaults {
    /// The faults of the wire for a lane; None in a process without such faults.
    pub(crate) fn of(lane: &Weak<Lane>) -> Option<Self> {
        let wire = wire::get()?;
        let alarm = Arc::new(Alarm(lane.clone()));
        let (leaving, coming, armed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Some(Self { wire, leaving, coming, alarm, armed })
    }

    /// The fate of a packet that is about to leave. A packet that waits is kept here, and counts as lost for
    /// its sender.
    pub(crate) fn leaves(&self, lane: &Lane, route: &Route, bytes: &mut [u8], now: Duration) -> Fate {
        let mut fate =
            ask(self.wire, Direction::Out, [route.source, route.destination], kind(bytes), bytes.len());
        if let Some(word) = fate.damage {
            damage(bytes, word);
        }
        if !fate.is_lost && !fate.wait.is_zero() {
            for _ in 0..=fate.copies {
                let parcel = Parcel { route: *route, bytes: bytes.to_vec() };
                self.keep(lane, &self.leaving, parcel, fate.wait, now);
            }
            fate.is_lost = true;
        }
        fate
    }

    /// Takes a packet that has come. [`LaneFaults::due`] returns it, its copies, or nothing, each at its
    /// time. Packets that are only handed on to another process are left alone.
    pub(crate) fn comes(&self, lane: &Lane, arrival: &Arrival<'_>, is_ours: bool, now: Duration) {
        let fate = if is_ours {
            let ends = [arrival.local, arrival.source];
            ask(self.wire, Direction::In, ends, kind(arrival.bytes), arrival.bytes.len())
        } else {
            Fate::default()
        };
        if fate.is_lost {
            return;
        }
        let owned = match fate.damage {
            Some(word) => {
                let mut bytes = arrival.bytes.to_vec();
                damage(&mut bytes, word);
                OwnedArrival::of(&Arrival { bytes: &bytes, ..*arrival })
            }
            None => OwnedArrival::of(arrival),
        };
        for _ in 0..=fate.copies {
            self.keep(lane, &self.coming, owned.clone(), fate.wait, now);
        }
    }

    /// Whether a packet that another process hands over, a management datagram or not, is lost. It is not
    /// kept.
    pub(crate) fn loses(&self, arrival: &Arrival<'_>, is_management: bool) -> bool {
        let kind = if is_management { Kind::Management } else { kind(arrival.bytes) };
        ask(self.wire, Direction::In, [arrival.local, arrival.source], kind, arrival.bytes.len()).is_lost
    }

    /// The packets that have come and whose time has come, too.
    pub(crate) fn due(&self, now: Duration) -> Vec<OwnedArrival> {
        lock(&self.coming).due(now)
    }

    /// The packets whose time to leave has come.
    pub(crate) fn due_to_leave(&self, now: Duration) -> Vec<Parcel> {
        lock(&self.leaving).due(now)
    }

    fn keep<T>(&self, lane: &Lane, held: &Mutex<DelayQueue<T>>, packet: T, wait: Duration, now: Duration) {
        // It waits for ever.
        if wait == Duration::MAX {
            return;
        }
        lock(held).add(packet, now + wait);
        if !wait.is_zero() {
            self.arm(lane, now);
        }
    }

    /// Sets the timer of the alarm for the next packet that is due.
    fn arm(&self, lane: &Lane, now: Duration) {
        let Some(next) = self.next() else { return };
        let mut armed = lock(&self.armed);
        if armed.is_some_and(|time| time <= next) {
            return;
        }
        if let Ok(engine) = lane.net.engine()
            && engine.reactor.set_timer(next.saturating_sub(now), self.alarm.clone()).is_ok()
        {
            *armed = Some(next);
        }
    }

    fn next(&self) -> Option<Duration> {
        [self.next_to_leave(), lock(&self.coming).next()].into_iter().flatten().min()
    }

    /// When the next packet leaves of those that are kept.
    pub(crate) fn next_to_leave(&self) -> Option<Duration> {
        lock(&self.leaving).next()
    }
}

/// The fate of a packet between our address and the peer's.
pub(crate) fn ask(
    wire: &dyn Wire,
    direction: Direction,
    ends: [IpAddr; 2],
    kind: Kind,
    length: usize,
) -> Fate {
    let [local, peer] = ends;
    wire.pass(&Passing { direction, peer, local, kind, length, medium: Medium::Datagrams })
}

/// The kind of a packet.
fn kind(bytes: &[u8]) -> Kind {
    if packet::destination(bytes) == Some(GSI_QPN) {
        return Kind::Management;
    }
    Packet::parse(bytes).map_or(Kind::Other, |packet| observer::kind(&packet))
}

/// Changes one bit that the invariant CRC covers: of some bytes in front of it, it does not.
fn damage(bytes: &mut [u8], word: u64) {
    let from = if bytes.len() > BTH_LEN { BTH_LEN } else { bytes.len().saturating_sub(ICRC_LEN) };
    let bits = (bytes.len() - from) * 8;
    if bits > 0 {
        let bit = word as usize % bits;
        bytes[from + bit / 8] ^= 1 << (bit % 8);
    }
}

/// Packets by the time at which they go on. Those of one time go in the order in which they have come.
pub(crate) struct DelayQueue<T> {
    packets: BTreeMap<(Duration, u64), T>,
    number: u64,
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self { packets: BTreeMap::new(), number: 0 }
    }
}

impl<T> DelayQueue<T> {
    /// Keeps a packet, if there is room.
    pub(crate) fn add(&mut self, packet: T, time: Duration) {
        if self.packets.len() < MOST {
            self.number += 1;
            self.packets.insert((time, self.number), packet);
        }
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.packets.first_key_value().map(|((time, _), _)| *time)
    }

    pub(crate) fn due(&mut self, now: Duration) -> Vec<T> {
        let mut due = Vec::new();
        while let Some(first) = self.packets.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due
    }
}

/// The time of a kept packet has come.
struct Alarm(Weak<Lane>);

impl Source for Alarm {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Some(lane) = self.0.upgrade() else { return };
        let Some(impaired) = &lane.impaired else { return };
        *lock(&impaired.armed) = None;
        lane.release();
        impaired.arm(&lane, time::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_go_on_by_their_times_and_then_in_their_order() {
        let mut held = DelayQueue::default();
        let after = Duration::from_millis;
        held.add('c', after(3));
        held.add('a', after(1));
        held.add('b', after(1));
        assert_eq!(held.due(Duration::ZERO), [] as [char; 0]);
        assert_eq!(held.due(after(2)), ['a', 'b']);
        assert_eq!((held.next(), held.due(after(9))), (Some(after(3)), vec!['c']));
        for _ in 0..MOST {
            held.add('x', after(1));
        }
        held.add('y', Duration::ZERO);
        let due = held.due(after(1));
        assert_eq!((due.len(), due.contains(&'y')), (MOST, false));
    }

    #[test]
    fn damage_is_one_bit_behind_the_base_header() {
        for length in [4, 12, 16, 40] {
            for word in [0, 7, u64::MAX] {
                let mut bytes = vec![0; length];
                damage(&mut bytes, word);
                let bits: u32 = bytes.iter().map(|byte: &u8| byte.count_ones()).sum();
                assert_eq!(bits, 1, "{length} bytes");
                assert!(length <= 12 || bytes[..12].iter().all(|byte| *byte == 0));
            }
        }
        damage(&mut [], 1);
    }
}
