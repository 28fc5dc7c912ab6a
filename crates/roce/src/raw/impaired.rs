//! Faults of the wire ([`adverb_core::wire`]) of a raw packet queue pair: frames are lost, kept for a while,
//! or repeated. One that is damaged is lost: its checksum would be wrong at the next port. There is none of
//! this in processes without such faults.

use super::RawEndpoint;
use crate::impaired::{DelayQueue, ask};
use crate::lock;
use crate::time;
use adverb_core::reactor::{Reactor, Readiness, Source};
use adverb_core::wire::{self, Direction, Kind, Wire};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The faults of a queue pair.
pub(super) struct RawFaults {
    wire: &'static dyn Wire,
    /// An address of the interface.
    local: IpAddr,
    reactor: &'static Reactor,
    alarm: Arc<Alarm>,
    kept: Mutex<DelayedFrames>,
}

#[derive(Default)]
struct DelayedFrames {
    frames: DelayQueue<Frame>,
    armed: Option<Duration>,
}

/// A frame that goes on later.
pub(super) struct Frame {
    pub(super) direction: Direction,
    pub(super) bytes: Vec<u8>,
}

impl RawFaults {
    /// The faults of the wire for a queue pair; None in a process without such faults.
    pub(super) fn of(endpoint: &Weak<RawEndpoint>, local: IpAddr, reactor: &'static Reactor) -> Option<Self> {
        let alarm = Arc::new(Alarm(endpoint.clone()));
        Some(Self { wire: wire::get()?, local, reactor, alarm, kept: Mutex::default() })
    }

    /// Whether a frame goes on now. If not, it is lost, or kept here.
    pub(super) fn passes(&self, direction: Direction, frame: &[u8]) -> bool {
        let ends = [self.local, peer_of(direction, frame)];
        let fate = ask(self.wire, direction, ends, Kind::Send, frame.len());
        if fate.is_lost || fate.damage.is_some() || fate.wait == Duration::MAX {
            return false;
        }
        let waits = !fate.wait.is_zero();
        let now = time::now();
        for _ in 0..fate.copies + u32::from(waits) {
            let kept = Frame { direction, bytes: frame.to_vec() };
            lock(&self.kept).frames.add(kept, now + fate.wait);
        }
        self.arm(now);
        !waits
    }

    /// The frames whose time has come.
    pub(super) fn due(&self) -> Vec<Frame> {
        let now = time::now();
        let mut kept = lock(&self.kept);
        kept.armed = None;
        let due = kept.frames.due(now);
        drop(kept);
        self.arm(now);
        due
    }

    /// Forgets those that are kept.
    pub(super) fn clear(&self) {
        *lock(&self.kept) = DelayedFrames::default();
    }

    fn arm(&self, now: Duration) {
        let mut kept = lock(&self.kept);
        let Some(next) = kept.frames.next() else { return };
        let is_armed = kept.armed.is_some_and(|armed| armed <= next);
        if !is_armed && self.reactor.set_timer(next.saturating_sub(now), self.alarm.clone()).is_ok() {
            kept.armed = Some(next);
        }
    }
}

/// The time of a kept frame has come.
struct Alarm(Weak<RawEndpoint>);

impl Source for Alarm {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.go_on();
        }
    }
}

/// The peer that a frame goes to, or comes from, if it says so.
fn peer_of(direction: Direction, frame: &[u8]) -> IpAddr {
    const ADDRESSES: usize = 12;
    let kind = |at: usize| frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let mut at = ADDRESSES;
    while matches!(kind(at), Some(0x8100 | 0x88a8)) {
        at += 4;
    }
    let is_out = direction == Direction::Out;
    let field = |offset: usize, length: usize| frame.get(at + 2 + offset..at + 2 + offset + length);
    let found = match kind(at) {
        Some(0x0800) => {
            let bytes: Option<[u8; 4]> =
                field(if is_out { 16 } else { 12 }, 4).and_then(|b| b.try_into().ok());
            bytes.map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)))
        }
        Some(0x86dd) => {
            let bytes: Option<[u8; 16]> =
                field(if is_out { 24 } else { 8 }, 16).and_then(|b| b.try_into().ok());
            bytes.map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)))
        }
        _ => None,
    };
    found.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_says_whose_it_is() {
        let mut frame = vec![0; 12];
        frame.extend([0x81, 0, 0, 7, 8, 0]);
        frame.extend([0; 12]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(peer_of(Direction::Out, &frame), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(peer_of(Direction::In, &frame), IpAddr::from([10, 0, 0, 1]));
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd]);
        frame.extend([0; 8]);
        frame.extend(Ipv6Addr::LOCALHOST.octets());
        frame.extend(Ipv6Addr::UNSPECIFIED.octets());
        assert_eq!(peer_of(Direction::In, &frame), IpAddr::from(Ipv6Addr::LOCALHOST));
        for length in 0..frame.len() {
            let _ = (peer_of(Direction::In, &frame[..length]), peer_of(Direction::Out, &frame[..length]));
        }
        assert_eq!(peer_of(Direction::Out, &[0; 64]), IpAddr::from([0, 0, 0, 0]));
    }
}
