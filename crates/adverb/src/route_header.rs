//! The header of the route in front of a datagram: who has sent it, and to which address.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The GIDs of sender and receiver. None for a header that is none, or a datagram that came by multicast.
pub(crate) fn sender(header: &[u8; 40]) -> Option<([u8; 16], [u8; 16])> {
    let v4 = &header[20..];
    let mapped =
        |at: usize| Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]).to_ipv6_mapped().octets();
    let is_v6 = header[0] >> 4 == 6;
    // The first 20 bytes of the IPv4 form are undefined and may look like IPv6; then the header's checksum
    // decides.
    let is_v4 = v4[0] >> 4 == 4 && (!is_v6 || (v4[0] == 0x45 && ones_complement_sum(v4) == 0xffff));
    let (peer, local) = match (is_v4, is_v6) {
        (true, _) => (mapped(12), mapped(16)),
        (false, true) => (header[8..24].try_into().ok()?, header[24..40].try_into().ok()?),
        (false, false) => return None,
    };
    (!Ipv6Addr::from(local).to_canonical().is_multicast()).then_some((peer, local))
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_others_are_none() {
        let mut header = [0; 40];
        assert_eq!(sender(&header), None);
        header[20] = 0x45;
        header[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let gid = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        assert_eq!(sender(&header), Some((gid(1), gid(2))));
        header[36] = 224;
        assert_eq!(sender(&header), None, "a group");
        let mut header = [0; 40];
        header[0] = 0x60;
        header[8..24].fill(0x20);
        header[24..40].fill(0x21);
        assert_eq!(sender(&header), Some(([0x20; 16], [0x21; 16])));
    }
}
