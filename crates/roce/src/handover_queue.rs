//! Packets that have come to UDP port 4791 for queue pairs of other processes.
//!
//! They are handed over in their order, by one thread at a time, with no lock that receiving needs. A packet
//! has to have the right CRC. If no process of our user owns the queue pair, the look-up rests for [`REST`],
//! so that packets without an owner cost little.

use crate::handover::{HandoverKind, OwnedArrival};
use crate::lane::LAST;
use crate::limit::Limit;
use crate::lost::LostBlocks;
use crate::net::Net;
use crate::numbers::block_of;
use crate::socket::Arrival;
use crate::time;
use crate::{lock, lock_until};
use adverb_core::watch;
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use adverb_wire::ib::packet;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

/// Packets that wait at most: what comes with one look at the socket.
const MOST: usize = 1024;
/// Pause before an owner that was not found is looked up again.
const REST: Duration = Duration::from_millis(20);
/// How often processes are looked for, for the packets from a share of all addresses: in a second, and at
/// once.
pub(crate) const LOOKS: (u32, u32) = (1024, 256);

/// Packets that have come to UDP port 4791 for queue pairs of other processes, until they are handed over.
/// Thread-safe.
pub(crate) struct HandoverQueue {
    waiting: Mutex<VecDeque<OwnedArrival>>,
    turn: Mutex<()>,
    /// Blocks of queue pair numbers whose owners were not found.
    lost: LostBlocks,
    looks: Limit,
}

impl Default for HandoverQueue {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            turn: Mutex::default(),
            lost: LostBlocks::new(REST),
            looks: Limit::new(LOOKS.0, LOOKS.1),
        }
    }
}

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteOutcome {
    /// The packet will be handed over.
    Kept,
    /// The packet's CRC is wrong.
    Damaged,
    /// The packet is dropped: as many wait as may.
    TooMany,
}

impl HandoverQueue {
    /// Takes note of a packet.
    pub(crate) fn note(&self, arrival: &Arrival<'_>) -> NoteOutcome {
        let flow = Flow {
            source: arrival.source,
            destination: arrival.local,
            source_port: arrival.source_port,
            destination_port: arrival.local_port,
        };
        // IB-PKT-43
        if !FlowCrc::new(&flow).verify(arrival.bytes) {
            return NoteOutcome::Damaged;
        }
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= MOST {
            return NoteOutcome::TooMany;
        }
        waiting.push_back(OwnedArrival::of(arrival));
        NoteOutcome::Kept
    }

    /// Hands over the waiting packets. If another thread is doing that, it looks again before it ends. The
    /// caller holds no lock.
    pub(crate) fn hand_over(&self, net: &Net) {
        while !lock(&self.waiting).is_empty() {
            let Ok(_turn) = self.turn.try_lock() else { return };
            let next = || lock(&self.waiting).pop_front();
            while let Some(owned) = next() {
                let arrival = owned.arrival();
                if self.give(net, &arrival) {
                    net.counters().handed_over.add(1);
                } else {
                    if watch::packets() {
                        arrival.show();
                    }
                    net.counters().unknown.add(1);
                }
            }
        }
    }

    /// Hands over all packets that were noted before this call. If another thread is doing that, waits for
    /// it, at most for [`LAST`]. The caller holds no lock.
    pub(crate) fn hand_over_all(&self, net: &Net) {
        self.hand_over(net);
        // The other thread may have taken the last one, and not given it yet.
        drop(lock_until(&self.turn, time::now() + LAST));
        // A thread that noted one meanwhile may have found the turn taken by this thread, which has to hand
        // it over.
        self.hand_over(net);
    }

    /// Gives a packet to the process that owns its queue pair.
    fn give(&self, net: &Net, arrival: &Arrival<'_>) -> bool {
        let Some(block) = packet::destination(arrival.bytes).map(block_of) else { return false };
        let now = time::now();
        if self.lost.rests(block, now) {
            return false;
        }
        if !net.knows(block) && !self.looks.allows(&arrival.source, now) {
            return false;
        }
        let told = net.tell(block, HandoverKind::Packet, arrival);
        if !told && !net.knows(block) {
            self.lost.add(block, now);
        }
        told
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use adverb_wire::ib::header::ICRC_LEN;
    use std::net::IpAddr;

    fn packet(number: u32) -> Vec<u8> {
        let mut packet = vec![0x04, 0, 0xff, 0xff];
        packet.extend_from_slice(&number.to_be_bytes());
        packet.extend_from_slice(&[0; 4]);
        packet
    }

    pub(crate) fn arrival(bytes: &[u8]) -> Arrival<'_> {
        let host = IpAddr::from([127, 0, 0, 1]);
        Arrival {
            source: host,
            source_port: 7,
            local: host,
            local_port: 4791,
            interface: 1,
            class: 0,
            hops: 64,
            bytes,
        }
    }

    /// A packet with its invariant CRC behind it.
    pub(crate) fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
        let host = IpAddr::from([127, 0, 0, 1]);
        let flow = Flow { source: host, destination: host, source_port: 7, destination_port: 4791 };
        let mut crc = FlowCrc::new(&flow).seed(0, packet.len() + ICRC_LEN);
        crc.begin(&packet);
        packet.extend_from_slice(&crc.finish().to_le_bytes());
        packet
    }

    #[test]
    fn damaged_packets_are_not_handed_over_and_few_wait() {
        let queue = HandoverQueue::default();
        let good = sealed(packet(0x12_3456));
        let mut bad = good.clone();
        while FlowCrc::new(&Flow {
            source: arrival(&bad).source,
            destination: arrival(&bad).local,
            source_port: 7,
            destination_port: 4791,
        })
        .verify(&bad)
        {
            *bad.last_mut().unwrap() += 1;
        }
        bad[9] ^= 1;
        assert_eq!(queue.note(&arrival(&bad)), NoteOutcome::Damaged);
        assert!((0..MOST).all(|_| queue.note(&arrival(&good)) == NoteOutcome::Kept));
        assert_eq!(queue.note(&arrival(&good)), NoteOutcome::TooMany);
    }

    /// Packets for a queue pair without an owner cost one look-up, and not one each.
    #[test]
    fn nobody_is_looked_for_time_and_again() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let queue = HandoverQueue::default();
        // The last block belongs to nobody.
        let good = sealed(packet(0xff_f456));
        for _ in 0..100 {
            assert_eq!(queue.note(&arrival(&good)), NoteOutcome::Kept);
        }
        queue.hand_over(&net);
        assert!(lock(&queue.waiting).is_empty());
        assert_eq!(queue.lost.count(), 1);
    }
}
