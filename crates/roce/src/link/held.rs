//! Requests that have come by the network and wait until long reads before them have been answered, as they wait in an adapter or in rxe, whose responders
//! go on only then. So what is put off costs the peer no retry.
// PRACTICE-ORDER-2

use adverb_proto::ib::PACKET_COST;
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

/// The packets of one queue pair that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct Held {
    packets: VecDeque<Waiting>,
    cost: usize,
    /// Some behind them found no room.
    is_short: bool,
}

impl Held {
    /// They count so much at most. Another adverb never has more under way; what else finds no room is lost, as in a full socket.
    const MOST: usize = 1 << 20;

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Puts a packet behind the others. False if there is no room.
    pub(super) fn push(&mut self, bytes: &[u8], marked: bool) -> bool {
        let waiting = Waiting { bytes: bytes.into(), marked };
        let fits = !self.is_short && self.cost + waiting.cost() <= Self::MOST;
        if fits {
            self.cost += waiting.cost();
            self.packets.push_back(waiting);
        } else {
            self.is_short = true;
        }
        fits
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

    /// Its time has not come yet.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        self.cost += waiting.cost();
        self.packets.push_front(waiting);
    }

    /// Nothing waits any more. Returns whether something behind it was lost.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_has_a_bound_and_an_order() {
        let mut held = Held::default();
        let count = (0u32..).take_while(|number| held.push(&number.to_be_bytes(), false)).count() as u32;
        assert!(count > 1000 && count as usize * (4 + PACKET_COST as usize) <= Held::MOST);
        let first = held.pop().unwrap();
        held.put_back(first);
        assert_eq!(held.pop().unwrap().bytes[..], 0u32.to_be_bytes());
        assert!(!held.push(b"late", true), "behind one that was lost");
        for number in 1..count {
            assert_eq!(held.pop().unwrap().bytes[..], number.to_be_bytes());
        }
        assert!(held.pop().is_none() && held.is_empty() && held.cost == 0);
        assert!(held.end() && !held.end());
        assert!(held.push(b"next", true));
    }
}
