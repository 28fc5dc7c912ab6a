//! Fairness between peers that connect, and between those that talk and those that do not.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Which connection gives its place to a newcomer, of many that are being made and whose peers these are, oldest first: the oldest one of
/// the peer that has the most. So a peer that begins connections and lets them lie is in its own way. None if there are none.
///
/// The addresses of one IPv6 subnet (64 bits) are one peer: a single host may have all of them.
pub fn first_to_go(peers: impl Iterator<Item = IpAddr>) -> Option<usize> {
    oldest_of_the_busiest(peers.map(subnet))
}

/// Of a number of things, oldest first, each with its owner: the oldest one of the owner that has the most. None if there are none.
pub fn oldest_of_the_busiest<Owner: Eq + Hash>(owners: impl Iterator<Item = Owner>) -> Option<usize> {
    /// How many things an owner has, and the place of the oldest.
    struct Share {
        count: usize,
        oldest: usize,
    }
    let mut shares = HashMap::<Owner, Share>::new();
    for (place, owner) in owners.enumerate() {
        shares.entry(owner).or_insert(Share { count: 0, oldest: place }).count += 1;
    }
    let share = shares.into_values().max_by_key(|share| (share.count, std::cmp::Reverse(share.oldest)));
    share.map(|share| share.oldest)
}

fn subnet(peer: IpAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    match peer.to_canonical() {
        // No IPv6 address of a host begins like this.
        IpAddr::V4(v4) => bytes[4..].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes.copy_from_slice(&v6.octets()[..8]),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peers: &[&str]) -> Option<usize> {
        first_to_go(peers.iter().map(|peer| peer.parse().unwrap()))
    }

    #[test]
    fn the_oldest_of_the_busiest_peer_gives_way() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["192.0.2.1"]), Some(0));
        assert_eq!(of(&["192.0.2.1", "192.0.2.2", "192.0.2.2"]), Some(1));
        assert_eq!(of(&["192.0.2.2", "192.0.2.1"]), Some(0));
        // A mapped address is that of IPv4, and a subnet of IPv6 is one peer.
        assert_eq!(of(&["192.0.2.3", "::ffff:192.0.2.1", "192.0.2.1"]), Some(1));
        assert_eq!(of(&["192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8:1::1"]), Some(1));
    }
}
