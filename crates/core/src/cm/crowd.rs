//! Fairness between peers that connect, and between those that talk and those that do not.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// Of many connections that are being made, the one that gives its place to a newcomer: the oldest one of the
/// peer that has the most. `peers` are their peers, oldest first. So a peer that begins connections and lets
/// them lie is in its own way. None if there are none.
///
/// The addresses of one [subnet] are one peer.
pub fn first_to_go(peers: impl Iterator<Item = IpAddr>) -> Option<usize> {
    oldest_of_the_busiest(peers.map(subnet))
}

/// Chooses the oldest thing of the owner that has the most. The things come oldest first, each with its
/// owner. None if there are none.
pub fn oldest_of_the_busiest<Owner: Eq + Hash>(owners: impl Iterator<Item = Owner>) -> Option<usize> {
    /// How many things an owner has, and the place of the oldest.
    struct Share {
        count: usize,
        oldest: usize,
    }
    // Each owner may have one.
    let mut shares = HashMap::<Owner, Share>::with_capacity(owners.size_hint().0);
    for (place, owner) in owners.enumerate() {
        shares.entry(owner).or_insert(Share { count: 0, oldest: place }).count += 1;
    }
    let share = shares.into_values().max_by_key(|share| (share.count, std::cmp::Reverse(share.oldest)));
    share.map(|share| share.oldest)
}

/// The peer that an address counts as. The addresses of one IPv6 subnet (64 bits) are one peer, as which the
/// first of them stands: a single host may have all of them. An IPv4 address is a peer of its own.
pub fn subnet(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
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
    #[test]
    fn a_host_cannot_be_many_by_its_subnet() {
        for (address, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            assert_eq!(subnet(address.parse().unwrap()).to_string(), expected);
        }
    }
}
