//! Packets handed from process to process of one network namespace.
//!
//! The process that holds UDP port 4791 receives the packets of kernels and adapters for all processes. It
//! hands each one over through the owner's socket ([`crate::seqpacket`]): a head with its kind and its
//! addresses, then the packet. A process of another user may only ask where a queue pair or service lives.

#[cfg(any(test, fuzzing))]
mod effect;

use crate::socket::Arrival;
use std::net::{IpAddr, Ipv6Addr};

#[cfg(any(test, fuzzing))]
pub(crate) use effect::try_effect;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandoverKind {
    /// A packet for the receiver, from its own user only.
    Packet = 1,
    /// Another process asks where a queue pair or service of the receiver lives.
    Locate = 2,
    /// The sender's queue pairs join a multicast group: a head without a packet, the group as `local`.
    Join = 3,
    /// The sender's queue pairs leave a multicast group: a head without a packet, the group as `local`.
    Leave = 4,
    /// A management datagram without its packet, which the sender has checked; from the receiver's own user
    /// only.
    Management = 5,
    /// An answer to [`HandoverKind::Join`]: from now on the group's packets are handed over.
    Joined = 6,
    /// About a channel ([`crate::local`]).
    Channel = 7,
    /// An answer to [`HandoverKind::Join`]: the group's packets cannot be had. The reason is in
    /// `source_port`, an errno.
    NotJoined = 8,
}

impl HandoverKind {
    fn from_number(number: u8) -> Option<Self> {
        [
            Self::Packet,
            Self::Locate,
            Self::Join,
            Self::Leave,
            Self::Management,
            Self::Joined,
            Self::Channel,
            Self::NotJoined,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// Bytes of the head.
pub(crate) const HEAD: usize = 44;
/// The longest message.
pub(crate) const LONGEST: usize = HEAD + (1 << 16);

/// A copy of an [`Arrival`], to be handed over or dealt with later.
#[derive(Clone, Debug)]
pub(crate) struct OwnedArrival {
    head: Head,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    source: IpAddr,
    source_port: u16,
    local: IpAddr,
    local_port: u16,
    interface: u32,
    class: u8,
    hops: u8,
}

impl OwnedArrival {
    /// Copies an arrival.
    pub(crate) fn of(arrival: &Arrival<'_>) -> Self {
        Self {
            head: Head {
                source: arrival.source,
                source_port: arrival.source_port,
                local: arrival.local,
                local_port: arrival.local_port,
                interface: arrival.interface,
                class: arrival.class,
                hops: arrival.hops,
            },
            bytes: arrival.bytes.to_vec(),
        }
    }

    /// The arrival again.
    pub(crate) fn arrival(&self) -> Arrival<'_> {
        self.head.with(&self.bytes)
    }
}

impl Head {
    fn with<'a>(&self, bytes: &'a [u8]) -> Arrival<'a> {
        Arrival {
            source: self.source,
            source_port: self.source_port,
            local: self.local,
            local_port: self.local_port,
            interface: self.interface,
            class: self.class,
            hops: self.hops,
            bytes,
        }
    }
}

/// The head of a message about an arrival.
pub(crate) fn head(kind: HandoverKind, arrival: &Arrival<'_>) -> [u8; HEAD] {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut head = [0; HEAD];
    head[0] = kind as u8;
    head[1] = arrival.class;
    head[2] = arrival.hops;
    head[4..8].copy_from_slice(&arrival.interface.to_ne_bytes());
    head[8..10].copy_from_slice(&arrival.source_port.to_ne_bytes());
    head[10..12].copy_from_slice(&arrival.local_port.to_ne_bytes());
    head[12..28].copy_from_slice(&octets(arrival.source));
    head[28..44].copy_from_slice(&octets(arrival.local));
    head
}

/// Takes a message apart. None if it is not one.
pub(crate) fn parse(message: &[u8]) -> Option<(HandoverKind, Arrival<'_>)> {
    let (head, bytes) = message.split_first_chunk::<HEAD>()?;
    let address = |at: usize| {
        let octets: [u8; 16] = head[at..at + 16].try_into().expect("16 bytes");
        crate::route::canonical(Ipv6Addr::from(octets).into())
    };
    let number = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    let parsed = Head {
        source: address(12),
        source_port: number(8),
        local: address(28),
        local_port: number(10),
        interface: u32::from_ne_bytes(head[4..8].try_into().expect("4 bytes")),
        class: head[1],
        hops: head[2],
    };
    Some((HandoverKind::from_number(head[0])?, parsed.with(bytes)))
}

/// Tries any bytes. They are no message, or one that reads the same when it is made again. The datagram in it
/// is looked at as one from a socket is.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    let Some((kind, arrival)) = parse(bytes) else { return };
    let again = [&head(kind, &arrival)[..], arrival.bytes].concat();
    let (kind_again, arrival_again) = parse(&again).expect("the same");
    assert_eq!((kind, arrival.bytes), (kind_again, arrival_again.bytes));
    assert_eq!(OwnedArrival::of(&arrival).head, OwnedArrival::of(&arrival_again).head);
    assert!(!matches!(arrival.source, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()));
    match kind {
        HandoverKind::Locate | HandoverKind::Management => drop(crate::gsi::Gsi::handed_over(&arrival)),
        HandoverKind::Packet => crate::datagram::try_arrival(&arrival),
        HandoverKind::Join
        | HandoverKind::Leave
        | HandoverKind::Joined
        | HandoverKind::NotJoined
        | HandoverKind::Channel => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (source, local) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let arrival = Arrival {
                source: source.parse().unwrap(),
                source_port: 49_152,
                local: local.parse().unwrap(),
                local_port: 4791,
                interface: 7,
                class: 2,
                hops: 63,
                bytes: b"packet",
            };
            let mut message = head(HandoverKind::Locate, &arrival).to_vec();
            message.extend_from_slice(arrival.bytes);
            let (kind, parsed) = parse(&message).unwrap();
            assert_eq!((kind, parsed.bytes), (HandoverKind::Locate, arrival.bytes));
            assert_eq!(OwnedArrival::of(&parsed).head, OwnedArrival::of(&arrival).head);
            message[0] = 77;
            assert!(parse(&message).is_none() && parse(&message[..HEAD - 1]).is_none());
        }
    }
}
