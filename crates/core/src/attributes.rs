//! The abilities of a device, in the terms of ibv_query_device(3) and ibv_query_port(3). Transports fill
//! these in; each number is true.

use crate::description::Description;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// The family of protocols a device speaks (`enum ibv_transport_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportType {
    /// InfiniBand's transport, here over Ethernet (RoCE v2).
    Ib,
    /// iWARP.
    Iwarp,
}

/// Limits and abilities of a device. Counts are of objects or elements, sizes in bytes.
#[derive(Clone, Debug)]
pub struct DeviceAttributes {
    /// Protocol family.
    pub transport: TransportType,
    /// Unique per network namespace, the same for all its processes (host byte order).
    pub node_guid: u64,
    /// Largest memory region.
    pub max_mr_size: u64,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most outstanding work requests on one queue.
    pub max_qp_wr: u32,
    /// Most scatter/gather elements of a send or receive.
    pub max_sge: u32,
    /// Most scatter/gather elements of an RDMA Read.
    pub max_sge_rd: u32,
    /// Most bytes of inline data.
    pub max_inline_data: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of one.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most memory windows.
    pub max_mw: u32,
    /// Bytes of device memory (0: none).
    pub max_dm_size: u64,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most inbound reads and atomics outstanding per queue pair (IRD).
    pub max_qp_rd_atom: u32,
    /// Most outbound reads and atomics outstanding per queue pair (ORD).
    pub max_qp_init_rd_atom: u32,
    /// Whether atomics are offered, atomic with respect to every access of this engine.
    pub atomics: bool,
    /// Most shared receive queues (0: none).
    pub max_srq: u32,
    /// Most requests of one.
    pub max_srq_wr: u32,
    /// Most scatter/gather elements in one of its requests.
    pub max_srq_sge: u32,
    /// Most address handles (0: no UD).
    pub max_ah: u32,
    /// Most multicast groups (0: none).
    pub max_mcast_grp: u32,
    /// Most attachments of queue pairs to one group.
    pub max_mcast_qp_attach: u32,
    /// Longest message.
    pub max_message: u32,
    /// Services of queue pairs that can be made.
    pub services: &'static [crate::qp::Service],
    /// Send work requests that some queue pair of the device can take.
    pub operations: &'static [crate::request::Opcode],
}

/// State and limits of the one port.
#[derive(Clone, Debug)]
pub struct PortAttributes {
    /// Whether the port can carry anything.
    pub active: bool,
    /// Largest MTU, and the one in use, in bytes of payload (256, 512, 1024, 2048, 4096).
    pub max_mtu: u32,
    /// The MTU in use.
    pub active_mtu: u32,
    /// Size of the GID table.
    pub gid_table_length: u32,
    /// Size of the P_Key table.
    pub pkey_table_length: u16,
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The entry's place in the table.
    pub index: u32,
    /// The 16 bytes.
    pub bytes: [u8; 16],
    /// Index of the network interface that it belongs to; 0: none.
    pub interface: u32,
    /// The kind of the GID.
    pub kind: GidKind,
}

/// The entries of a GID table that programs see: those of the loopback only if there is no other address, or
/// link-local ones alone. A program can use the others all the same, by index, as connections to 127.0.0.1
/// do.
// PRACTICE-DEVICES-4
pub fn shown(mut gids: Vec<Gid>) -> Vec<Gid> {
    let leads_out = |gid: &Gid| !is_loopback(&gid.bytes) && gid.bytes[..2] != [0xfe, 0x80];
    if gids.iter().any(leads_out) {
        gids.retain(|gid| !is_loopback(&gid.bytes));
    }
    gids
}

fn is_loopback(gid: &[u8; 16]) -> bool {
    Ipv6Addr::from(*gid).to_canonical().is_loopback()
}

/// Kinds of GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, RoCE v1, or a device where the question has no meaning (iWARP).
    IbOrRoceV1,
    /// RoCE v2.
    RoceV2,
}

/// The GID of an IP address: itself, or mapped for IPv4.
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A GUID for the node: from the machine and its network namespace, so all processes there agree.
pub fn node_guid() -> u64 {
    // Part of the attributes, which every new object is checked against: the files are read once.
    static GUID: OnceLock<u64> = OnceLock::new();
    *GUID.get_or_init(compute_node_guid)
}

/// A number to mix into [`node_guid`] for a device, so that each device of a node has its own GUID, the same
/// in all processes. Zero for one of this build's own devices.
pub fn guid_salt(device: &Description) -> u64 {
    use std::hash::{Hash, Hasher};
    if device.name == device.like {
        return 0;
    }
    #[expect(deprecated, reason = "the hash must be the same in every build of every process of the host")]
    let mut hasher = std::hash::SipHasher::new();
    device.name.hash(&mut hasher);
    // The bits of the first byte stay what they are.
    hasher.finish() >> 8
}

fn compute_node_guid() -> u64 {
    use std::hash::{Hash, Hasher};
    use std::os::unix::fs::MetadataExt;
    #[expect(deprecated, reason = "the hash must be the same in every build of every process of the host")]
    let mut hasher = std::hash::SipHasher::new();
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino()).hash(&mut hasher);
    // The locally administered bit of the OUI part is set, the group bit is not.
    hasher.finish() & !(0x03 << 56) | 0x02 << 56
}

#[cfg(test)]
mod tests {
    use super::*;

    // PRACTICE-DEVICES-4
    #[test]
    fn the_loopback_is_shown_only_where_nothing_leads_out() {
        let table = |addresses: &[&str]| -> Vec<Gid> {
            let gid = |(index, address): (usize, &&str)| Gid {
                index: index as u32,
                bytes: gid_of(address.parse().unwrap()),
                interface: 1,
                kind: GidKind::RoceV2,
            };
            addresses.iter().enumerate().map(gid).collect()
        };
        let indices = |addresses: &[&str]| -> Vec<u32> {
            shown(table(addresses)).iter().map(|gid| gid.index).collect()
        };
        assert_eq!(indices(&["127.0.0.1", "::1"]), [0, 1]);
        assert_eq!(indices(&["fe80::1", "127.0.0.1"]), [0, 1]);
        assert_eq!(indices(&["10.0.0.1", "fe80::1", "127.0.0.1", "::1"]), [0, 1]);
        assert_eq!(indices(&["2001:db8::1", "127.0.0.2"]), [0]);
    }
}
