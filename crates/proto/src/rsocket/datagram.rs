//! Datagrams: what stands in front of them, and the UDP packets by which two sides find each other's queue
//! pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The most bytes of what stands in front of a datagram.
pub const MAX_SOURCE: usize = 24;
const SOURCE_V4: usize = 8;

/// The sender of a datagram, and where its bytes begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender's address.
    pub address: SocketAddr,
    /// Bytes in front of the data.
    pub length: usize,
}

/// Writes what stands in front of the datagrams of `address`; returns how many bytes it has.
pub fn write_source(address: SocketAddr, out: &mut [u8; MAX_SOURCE]) -> usize {
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            (out[0], out[1]) = (4, SOURCE_V4 as u8);
            out[4..8].copy_from_slice(&v4.ip().octets());
            SOURCE_V4
        }
        SocketAddr::V6(v6) => {
            (out[0], out[1]) = (6, MAX_SOURCE as u8);
            // As sin6_flowinfo has it: network order already.
            out[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            out[8..].copy_from_slice(&v6.ip().octets());
            MAX_SOURCE
        }
    }
}

/// Reads what stands in front of a datagram; `None` if that is nothing of ours.
pub fn read_source(datagram: &[u8]) -> Option<Source> {
    let head: &[u8; SOURCE_V4] = datagram.first_chunk()?;
    let port = u16::from_be_bytes([head[2], head[3]]);
    match (head[0], usize::from(head[1])) {
        (4, SOURCE_V4) => {
            let ip = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
            Some(Source { address: SocketAddrV4::new(ip, port).into(), length: SOURCE_V4 })
        }
        (6, MAX_SOURCE) => {
            let whole: &[u8; MAX_SOURCE] = datagram.first_chunk()?;
            let octets: [u8; 16] = *whole.last_chunk()?;
            let flow = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            let address = SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, 0);
            Some(Source { address: address.into(), length: MAX_SOURCE })
        }
        _ => None,
    }
}

/// The most bytes in front of the data of a UDP packet.
pub const MAX_HELLO: usize = 28;
const HELLO_V4: usize = 16;
const TAG: [u8; 4] = [0x55; 4];
const DATA: u8 = 0;
const ANSWER: u8 = 7;

/// Which IP a socket speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl SourceFamily {
    /// The family of an address.
    pub fn of(address: &SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// What a UDP packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloKind {
    /// A datagram whose sender does not know our queue pair yet, and wants to.
    Data,
    /// The answer.
    Answer,
}

/// A UDP packet that names a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The kind of the packet.
    pub kind: HelloKind,
    /// The sender's queue pair.
    pub queue_pair: u32,
    /// The sender's address as it sees it itself.
    pub address: IpAddr,
}

/// Writes what stands in front of the data of a UDP packet; returns how many bytes it has.
pub fn write_hello(hello: &Hello, out: &mut [u8; MAX_HELLO]) -> usize {
    out[..4].copy_from_slice(&TAG);
    out[5] = match hello.kind {
        HelloKind::Data => DATA,
        HelloKind::Answer => ANSWER,
    };
    out[7] = 0;
    out[8..12].copy_from_slice(&(hello.queue_pair & 0xff_ffff).to_be_bytes());
    let length = match hello.address {
        IpAddr::V4(ip) => {
            out[4] = 4;
            out[12..16].copy_from_slice(&ip.octets());
            HELLO_V4
        }
        IpAddr::V6(ip) => {
            out[4] = 6;
            out[12..].copy_from_slice(&ip.octets());
            MAX_HELLO
        }
    };
    out[6] = length as u8;
    length
}

/// Reads a UDP packet that came over IP of `family`, and where its data begins; `None` if it is nothing of
/// ours.
pub fn read_hello(packet: &[u8], family: SourceFamily) -> Option<(Hello, usize)> {
    let head: &[u8; 12] = packet.first_chunk()?;
    if head[..4] != TAG {
        return None;
    }
    let kind = match head[5] {
        DATA => HelloKind::Data,
        ANSWER => HelloKind::Answer,
        _ => return None,
    };
    let length = usize::from(head[6]);
    let address = match (head[4], length, family) {
        (4, HELLO_V4, SourceFamily::V4) => {
            let octets: [u8; 4] = packet.get(12..HELLO_V4)?.try_into().ok()?;
            IpAddr::from(octets)
        }
        (6, MAX_HELLO, SourceFamily::V6) => {
            let octets: [u8; 16] = packet.get(12..MAX_HELLO)?.try_into().ok()?;
            IpAddr::from(octets)
        }
        _ => return None,
    };
    let queue_pair = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) & 0xff_ffff;
    Some((Hello { kind, queue_pair, address }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_those_of_linux() {
        let mut out = [0; MAX_SOURCE];
        let v4: SocketAddr = "192.0.2.7:258".parse().unwrap();
        assert_eq!(write_source(v4, &mut out), 8);
        assert_eq!(out[..8], [4, 8, 1, 2, 192, 0, 2, 7]);
        assert_eq!(read_source(&out[..8]), Some(Source { address: v4, length: 8 }));
        let v6: SocketAddr = "[2001:db8::1]:7".parse().unwrap();
        assert_eq!(write_source(v6, &mut out), 24);
        assert_eq!(out[..8], [6, 24, 0, 7, 0, 0, 0, 0]);
        assert_eq!(read_source(&out), Some(Source { address: v6, length: 24 }));
        assert_eq!(read_source(&out[..23]), None);
        for bad in [[4, 24], [6, 8], [5, 8], [0, 0]] {
            out[..2].copy_from_slice(&bad);
            assert_eq!(read_source(&out), None);
        }
    }

    #[test]
    fn hellos_are_those_of_linux() {
        let mut out = [0; MAX_HELLO];
        let v4 = Hello { kind: HelloKind::Data, queue_pair: 0x12_3456, address: [10, 1, 2, 3].into() };
        assert_eq!(write_hello(&v4, &mut out), 16);
        let wire = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 1, 2, 3];
        assert_eq!(out[..16], wire);
        assert_eq!(read_hello(&wire, SourceFamily::V4), Some((v4, 16)));
        assert_eq!(read_hello(&wire, SourceFamily::V6), None);
        assert_eq!(read_hello(&wire[..15], SourceFamily::V4), None);
        let v6 = Hello { kind: HelloKind::Answer, queue_pair: 9, address: Ipv6Addr::LOCALHOST.into() };
        assert_eq!(write_hello(&v6, &mut out), 28);
        assert_eq!((out[4], out[5], out[6]), (6, 7, 28));
        assert_eq!(read_hello(&out, SourceFamily::V6), Some((v6, 28)));
        out[0] = 0;
        assert_eq!(read_hello(&out, SourceFamily::V6), None);
    }
}
