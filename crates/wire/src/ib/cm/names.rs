//! What librdmacm makes of service IDs and private data.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::field::Field;

/// Port spaces of librdmacm: the upper part of a service ID.
// IB-CM-51, IB-CM-52
pub mod port_space {
    /// Connections, RC or UC.
    pub const TCP: u16 = 0x0106;
    /// Datagrams.
    pub const UDP: u16 = 0x0111;
    /// Datagrams over IP over InfiniBand.
    pub const IPOIB: u16 = 0x0002;
    /// Either.
    pub const IB: u16 = 0x013f;
}

/// The service ID that librdmacm gives to a port.
pub const fn service_id(port_space: u16, port: u16) -> u64 {
    (port_space as u64) << 16 | port as u64
}

/// Port space and port of a service ID of librdmacm; `None` for any other.
pub const fn port_of(service_id: u64) -> Option<(u16, u16)> {
    if service_id >> 32 == 0 { Some(((service_id >> 16) as u16, service_id as u16)) } else { None }
}

/// Bytes of [`IpAddresses`].
// IB-CM-53, IB-CM-54, IB-SIDR-7
pub const IP_ADDRESSES_LEN: usize = 36;

/// What librdmacm puts at the start of the private data of REQ and SIDR_REQ: the addresses of a connection by
/// IP (volume 1, annex A11). The port that is connected to is in the service ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpAddresses {
    /// Port of the sender.
    pub source_port: u16,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver, of the same kind.
    pub destination: IpAddr,
}

impl IpAddresses {
    /// The addresses at the start of private data; `None` if the version is not known.
    // IB-CM-55
    pub fn read(private_data: &[u8]) -> Option<IpAddresses> {
        let bytes = private_data.first_chunk::<IP_ADDRESSES_LEN>()?;
        let address = |at: usize| {
            let octets = <[u8; 16]>::get(bytes, 8 * at, 128);
            match bytes[1] >> 4 {
                4 => Some(IpAddr::V4(Ipv4Addr::from(u32::get(&octets, 96, 32)))),
                6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
                _ => None,
            }
        };
        let source_port = u16::get(bytes, 16, 16);
        (bytes[0] == 0).then_some(IpAddresses { source_port, source: address(4)?, destination: address(20)? })
    }

    /// The bytes. If the kinds of the addresses differ, both become IPv6.
    pub fn to_bytes(&self) -> [u8; IP_ADDRESSES_LEN] {
        let mut bytes = [0; IP_ADDRESSES_LEN];
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            bytes[1] = 4 << 4;
            bytes[16..20].copy_from_slice(&source.octets());
            bytes[32..36].copy_from_slice(&destination.octets());
        } else {
            bytes[1] = 6 << 4;
            bytes[4..20].copy_from_slice(&gid(self.source));
            bytes[20..36].copy_from_slice(&gid(self.destination));
        }
        bytes
    }
}

/// The GID that RoCEv2 gives to an IP address: IPv4 addresses are mapped to IPv6 (annex A17).
// ROCE-19
pub const fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Private data that fills its field: what the program gave, and zeros. `None` if it is too long.
// IB-CM-54: too long is refused; IB-CM-57: short is filled with zeros.
pub fn private_data<const N: usize>(given: &[u8]) -> Option<[u8; N]> {
    let mut data = [0; N];
    data.get_mut(..given.len())?.copy_from_slice(given);
    Some(data)
}
