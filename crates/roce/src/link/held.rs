//! Requests that have come by the network and wait until long reads before them have been answered, as they
//! wait in an adapter or in rxe, whose responders go on only then. So what is put off costs the peer no
//! retry.
// PRACTICE-ORDER-2

use adverb_proto::ib::{PACKET_COST, psn};
use std::collections::VecDeque;

/// A packet, as it came.
pub(super) struct Waiting {
    pub(super) bytes: Box<[u8]>,
    /// A router has marked it.
    pub(super) marked: bool,
}

impl Waiting {
    fn cost(&self) -> usize {
        self.bytes.len() + PACKET_COST as usize
    }
}

/// What has become of a packet that came while others waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldOutcome {
    /// The packet waits behind the others.
    Behind,
    /// The packet waits already.
    Repeated,
    /// There was no room for the packet, or one before it is missing.
    Lost,
}

/// The packets of one queue pair that wait, one behind the other without a gap.
#[derive(Default)]
pub(super) struct HeldPackets {
    packets: VecDeque<Waiting>,
    cost: usize,
    /// The sequence number behind them.
    next: u32,
    /// Some behind them were lost, and have not been sent again.
    is_short: bool,
}

impl HeldPackets {
    /// The most that the waiting packets may cost together: their bytes, and [`PACKET_COST`] for each.
    /// Another adverb never has more under way. A packet that finds no room is lost, as in a full socket.
    const MOST: usize = 1 << 20;

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Puts a packet behind the others, if it is the next one. `numbers`: its own sequence number, and the
    /// one behind it.
    pub(super) fn put(&mut self, numbers: (u32, u32), bytes: &[u8], marked: bool) -> HoldOutcome {
        let (number, behind) = numbers;
        if !self.is_empty() && psn::precedes(number, self.next) {
            return HoldOutcome::Repeated;
        }
        let is_next = self.is_empty() || number == self.next;
        let cost = bytes.len() + PACKET_COST as usize;
        self.is_short = !is_next || self.cost + cost > Self::MOST;
        if self.is_short {
            return HoldOutcome::Lost;
        }
        self.next = behind;
        self.put_in(Waiting { bytes: bytes.into(), marked }, VecDeque::push_back);
        HoldOutcome::Behind
    }

    fn put_in(&mut self, waiting: Waiting, put: fn(&mut VecDeque<Waiting>, Waiting)) {
        self.cost += waiting.cost();
        put(&mut self.packets, waiting);
    }

    /// The packet that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.cost -= waiting.cost();
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
        Some(waiting)
    }

    /// Puts a packet back whose time has not come yet.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        self.put_in(waiting, VecDeque::push_front);
    }

    /// Forgets the waiting packets, since the one before them has not been carried out: they come again
    /// behind it. Returns how many there were.
    pub(super) fn give_up(&mut self) -> usize {
        let count = std::mem::take(&mut self.packets).len();
        self.cost = 0;
        self.is_short |= count > 0;
        count
    }

    /// Nothing waits any more. Returns whether something behind it was lost.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(held: &mut HeldPackets, number: u32) -> HoldOutcome {
        held.put((number, psn::add(number, 1)), &number.to_be_bytes(), false)
    }

    #[test]
    fn held_packets_have_a_bound_and_an_order() {
        let mut held = HeldPackets::default();
        let count =
            (0u32..).take_while(|number| put(&mut held, *number) == HoldOutcome::Behind).count() as u32;
        assert!(count > 1000 && count as usize * (4 + PACKET_COST as usize) <= HeldPackets::MOST);
        let first = held.pop().unwrap();
        held.put_back(first);
        assert_eq!(held.pop().unwrap().bytes[..], 0u32.to_be_bytes());
        assert_eq!(put(&mut held, count + 1), HoldOutcome::Lost, "behind one that was lost");
        for number in 1..count {
            assert_eq!(held.pop().unwrap().bytes[..], number.to_be_bytes());
        }
        assert!(held.pop().is_none() && held.is_empty() && held.cost == 0);
        assert!(held.end() && !held.end());
        assert_eq!(put(&mut held, count), HoldOutcome::Behind);
    }

    #[test]
    fn only_the_next_one_waits() {
        let mut held = HeldPackets::default();
        const FIRST: u32 = 0xff_fffe;
        assert_eq!(put(&mut held, FIRST), HoldOutcome::Behind);
        // A read takes several numbers.
        assert_eq!(held.put((0xff_ffff, 9), b"read", false), HoldOutcome::Behind);
        for number in [FIRST, 0xff_ffff, 0, 8] {
            assert_eq!(put(&mut held, number), HoldOutcome::Repeated, "{number}");
        }
        assert_eq!(put(&mut held, 10), HoldOutcome::Lost);
        assert!(held.is_short);
        assert_eq!(put(&mut held, 9), HoldOutcome::Behind);
        assert!(!held.is_short, "what was lost comes behind this again");
        assert_eq!(held.packets.len(), 3);
        assert_eq!(held.give_up(), 3);
        assert!(held.is_empty() && held.cost == 0 && held.end());
        assert!(held.give_up() == 0 && !held.end());
    }
}
