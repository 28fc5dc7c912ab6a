//! Where a datagram goes, and the address from which it is sent.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The UDP port of RoCE v2 (ROCE annex A17.3.2).
// ROCE-1
pub(crate) const PORT: u16 = 4791;

/// All that a packet needs to find its way. Addresses are never IPv4-mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Our address.
    pub(crate) source: IpAddr,
    /// Index of the interface that `source` belongs to; only link-local addresses need it.
    pub(crate) interface: u32,
    /// The peer.
    pub(crate) destination: IpAddr,
    /// The peer's UDP port: 4791, or the private port of its process.
    pub(crate) port: u16,
    /// Traffic class.
    pub(crate) class: u8,
    /// Hop limit; 0: the system's.
    pub(crate) hops: u8,
}

impl Route {
    /// The peer as a socket address.
    pub(crate) fn peer(&self) -> SocketAddr {
        match self.destination {
            IpAddr::V4(v4) => (v4, self.port).into(),
            IpAddr::V6(v6) => {
                let scope = if v6.is_unicast_link_local() || v6.is_multicast() { self.interface } else { 0 };
                SocketAddrV6::new(v6, self.port, 0, scope).into()
            }
        }
    }
}

/// The address of a GID (RFC 4291 section 2.5.5.2 for IPv4).
// ROCE-19
pub(crate) fn address_of(gid: &[u8; 16]) -> IpAddr {
    canonical(Ipv6Addr::from(*gid).into())
}

/// An address, as IPv4 if it is IPv4-mapped.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}
