//! The peers that a datagram socket knows. Any sender of a UDP packet becomes a peer, so their number has a
//! bound. Beyond it, the socket forgets the peers that it met longest ago. If such a peer sends again, that
//! costs another introduction.

use adverb_core::qp::Path;
use adverb_proto::rsocket::{Hello, HelloKind, SourceFamily, read_hello};
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
    /// When the peer was met last, in meetings.
    met: u64,
}

/// The peers that a datagram socket knows, by their addresses: [`MAX_PEERS`] at most. It forgets those met
/// longest ago.
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

    /// What a packet says that `peer` has sent by UDP, and where its data begins, if it is to be heeded.
    pub(super) fn heeds(&self, packet: &[u8], peer: &SocketAddr) -> Option<(Hello, usize)> {
        let (hello, start) = read_hello(packet, SourceFamily::of(peer))?;
        // An answer to nothing that was asked, or so late that the peer is forgotten: then it is asked again.
        (hello.kind == HelloKind::Data || self.get(peer).is_some()).then_some((hello, start))
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

/// Packets of anybody to a socket that few know.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_packets(bytes: &[u8]) {
    use adverb_proto::rsocket::{MAX_HELLO, MAX_SOURCE, read_source, write_hello, write_source};
    let mut peers = Peers::default();
    let mut rest = bytes;
    while let [length, which, port, more @ ..] = rest {
        let (packet, after) = more.split_at(more.len().min(usize::from(*length)));
        rest = after;
        let ip: std::net::IpAddr = match which & 1 {
            0 => [127, 0, 0, *which].into(),
            _ => std::net::Ipv6Addr::from(u128::from(*which)).into(),
        };
        let peer = SocketAddr::new(ip, u16::from(*port));
        // As a datagram begins that came by a queue pair.
        if let Some(source) = read_source(packet) {
            let mut head = [0; MAX_SOURCE];
            assert_eq!(write_source(source.address, &mut head), source.length);
            assert_eq!(packet[..source.length], head[..source.length]);
        }
        let (before, is_known) = (peers.known.len(), peers.get(&peer).is_some());
        let Some((hello, start)) = peers.heeds(packet, &peer) else { continue };
        assert!(hello.kind == HelloKind::Data || is_known, "nobody asked");
        assert!(start <= packet.len() && hello.queue_pair < 1 << 24);
        assert_eq!(hello.address.is_ipv4(), peer.is_ipv4());
        let mut head = [0; MAX_HELLO];
        let length = write_hello(&hello, &mut head);
        assert_eq!(length, start);
        assert_eq!(read_hello(&head[..length], SourceFamily::of(&peer)), Some((hello, start)));
        match is_known {
            true => drop(peers.meet(&peer)),
            false => drop(peers.add(peer, 0)),
        }
        // One more at most, and never more than there is room for.
        assert!(peers.known.len() <= MAX_PEERS.min(before + 1));
        assert!(peers.get(&peer).is_some());
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
