//! The peers that a datagram socket knows. Whoever sends it a packet by UDP becomes one, so their number has a bound: beyond it those are
//! forgotten that were met longest ago. That costs nothing but another introduction, should they have anything to say once more.

use adverb_core::qp::Path;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Peers that a socket remembers at most.
const MAX_PEERS: usize = 4096;
/// Peers that are forgotten at once, so that looking for them is seldom.
const FORGOTTEN: usize = MAX_PEERS / 4;

/// What is known of a peer.
pub(super) struct Peer {
    /// The queue pair of ours that reaches it.
    pub(super) pair: usize,
    /// The way to its queue pair, once it has told.
    pub(super) found: Option<(Path, u32)>,
    /// When it was met last, in meetings.
    met: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Peers {
    known: HashMap<SocketAddr, Peer>,
    meetings: u64,
}

impl Peers {
    /// What is known of a peer.
    pub(super) fn get(&self, address: &SocketAddr) -> Option<&Peer> {
        self.known.get(address)
    }

    /// What is known of a peer with which there is something to do now.
    pub(super) fn meet(&mut self, address: &SocketAddr) -> Option<&mut Peer> {
        let peer = self.known.get_mut(address)?;
        self.meetings += 1;
        peer.met = self.meetings;
        Some(peer)
    }

    /// A new peer, which the queue pair `pair` reaches.
    pub(super) fn add(&mut self, address: SocketAddr, pair: usize) -> &mut Peer {
        if self.known.len() >= MAX_PEERS {
            let mut met: Vec<u64> = self.known.values().map(|peer| peer.met).collect();
            let (_, &mut last, _) = met.select_nth_unstable(FORGOTTEN - 1);
            self.known.retain(|_, peer| peer.met > last);
            adverb_core::log!(Info, "a datagram socket has forgotten the {FORGOTTEN} peers met longest ago");
        }
        self.meetings += 1;
        let peer = Peer { pair, found: None, met: self.meetings };
        self.known.entry(address).insert_entry(peer).into_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> SocketAddr {
        ([10, 0, (number >> 8) as u8, number as u8], 7).into()
    }

    #[test]
    fn there_is_a_bound_and_those_that_are_met_stay() {
        let mut peers = Peers::default();
        for number in 0..20_000 {
            peers.add(address(number), 0);
            assert!(peers.known.len() <= MAX_PEERS);
            assert!(peers.get(&address(number)).is_some());
            // With this one there is something to do all the time.
            assert!(peers.meet(&address(3.min(number))).is_some());
        }
        assert!(peers.get(&address(2)).is_none() && peers.get(&address(19_999 - 2000)).is_some());
    }
}
