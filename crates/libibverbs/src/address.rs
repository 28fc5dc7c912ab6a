//! Address handles (`ibv_create_ah(3)`), and the conversions around them.

use core::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use adverb_core::address_handle::AddressHandle;
use adverb_core::attributes::{Gid, GidKind};
use adverb_core::qp::Path;

use crate::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_wc};
use crate::domain::DomainObject;
use crate::errno::{Call, fail, fail_null, refusal};
use crate::memory::next_handle;
use crate::object::Object;

/// `next_hdr` of a global route header: UDP for RoCE v2, InfiniBand's own number for v1.
const NEXT_UDP: u8 = 17;
const NEXT_INFINIBAND: u8 = 0x1b;

/// No VLAN.
const NO_VLAN: u16 = 0xffff;

/// An address handle as C sees it.
pub type HandleObject = Object<ibv_ah, Arc<AddressHandle>>;

/// A new address handle (`ibv_create_ah(3)`): NULL and `errno` on failure, `EOPNOTSUPP` where there are no
/// datagrams.
///
/// # Safety
/// The pointers are NULL or live.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(domain), Some(attr)) = (unsafe { DomainObject::get(pd) }, unsafe { attr.as_ref() }) else {
        return fail_null(libc::EINVAL);
    };
    match AddressHandle::new(&domain.inner.core, path(attr)) {
        Ok(core) => {
            // SAFETY: a live object.
            let context = unsafe { (*domain.c()).context };
            HandleObject::allocate(ibv_ah { context, pd, handle: next_handle() }, core).cast()
        }
        Err(error) => fail_null(refusal(&error)),
    }
}

/// Ends an address handle (`ibv_create_ah(3)`): an error number. Requests that were posted with it go their
/// way.
///
/// # Safety
/// `ah` is NULL or a handle that is not used any more.
// IB-UD-21
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(object) = (unsafe { HandleObject::get(ah) }) else { return libc::EINVAL };
    // SAFETY: nothing refers to it any more.
    unsafe { Object::free(object) };
    0
}

/// The path that a C structure describes.
pub(crate) fn path(c: &ibv_ah_attr) -> Path {
    Path {
        gid: c.grh.dgid.raw,
        flow_label: c.grh.flow_label,
        source_gid_index: c.grh.sgid_index,
        hop_limit: c.grh.hop_limit,
        traffic_class: c.grh.traffic_class,
        lid: c.dlid,
        service_level: c.sl,
        source_path_bits: c.src_path_bits,
        static_rate: c.static_rate,
        is_global: c.is_global != 0,
        port: c.port_num,
    }
}

/// An address handle for the sender of a message (`ibv_create_ah_from_wc(3)`).
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let _call = Call::new();
    let mut attr = ibv_ah_attr::zeroed();
    // SAFETY: the caller's promise.
    let Some(domain) = (unsafe { pd.as_ref() }) else { return fail_null(libc::EINVAL) };
    // SAFETY: the caller's promise.
    if unsafe { ibv_init_ah_from_wc(domain.context, port, wc, grh, &mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { ibv_create_ah(pd, &mut attr) }
}

/// The address of the sender of a message (`ibv_create_ah_from_wc(3)`): -1 and `errno` on failure.
///
/// # Safety
/// The pointers are NULL or valid; with `IBV_WC_GRH` in the completion, `grh` points to the 40 bytes in front
/// of the data.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(wc), Some(grh), Some(attr)) = (unsafe { (wc.as_ref(), grh.as_ref(), attr.as_mut()) }) else {
        return fail(libc::EINVAL);
    };
    *attr = ibv_ah_attr::zeroed();
    (attr.dlid, attr.sl, attr.src_path_bits, attr.port_num) = (wc.slid, wc.sl, wc.dlid_path_bits, port);
    attr.grh.flow_label = u32::from_be(grh.version_tclass_flow) & 0xf_ffff;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return 0;
    }
    attr.is_global = 1;
    // SAFETY: 40 bytes, as long as the structure.
    let bytes = unsafe { &*std::ptr::from_ref(grh).cast::<[u8; 40]>() };
    let Some(sender) = sender(bytes) else { return fail(libc::EPROTONOSUPPORT) };
    if is_multicast(&sender.local) {
        return fail(libc::EINVAL);
    }
    // IB-UD-18
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { crate::context::context(context) }) else { return fail(libc::EINVAL) };
    if let Err(error) = context.inner.core.port(port) {
        return fail(refusal(&error));
    }
    // In the whole table: what has come over the loopback is answered over it.
    let own = |gid: &Gid| gid.bytes == sender.local && gid.kind == sender.kind;
    let Some(own) = context.inner.core.gids().into_iter().find(own) else { return fail(libc::EINVAL) };
    attr.grh.dgid = ibv_gid { raw: sender.peer };
    (attr.grh.sgid_index, attr.grh.hop_limit) = (own.index as u8, sender.hop_limit);
    attr.grh.traffic_class = sender.traffic_class;
    0
}

/// Who sent a message to whom, from its route header.
struct Sender {
    peer: [u8; 16],
    local: [u8; 16],
    kind: GidKind,
    hop_limit: u8,
    traffic_class: u8,
}

/// Reads a route header: an IPv6 header, or an IPv4 header in the last 20 of its 40 bytes (RoCE v2 over
/// IPv4).
fn sender(header: &[u8; 40]) -> Option<Sender> {
    let (_, v4) = header.split_at(20);
    let mapped =
        |at: usize| Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]).to_ipv6_mapped().octets();
    let is_v6 = header[0] >> 4 == 6;
    // The first 20 bytes of the IPv4 form are undefined and may look like IPv6; then the header checksum
    // decides.
    if v4[0] >> 4 == 4 && (!is_v6 || (v4[0] == 0x45 && ones_complement_sum(v4) == 0xffff)) {
        return Some(Sender {
            peer: mapped(12),
            local: mapped(16),
            kind: GidKind::RoceV2,
            hop_limit: v4[8],
            traffic_class: v4[1],
        });
    }
    if !is_v6 {
        return None;
    }
    let kind = match header[6] {
        NEXT_UDP => GidKind::RoceV2,
        NEXT_INFINIBAND => GidKind::IbOrRoceV1,
        _ => return None,
    };
    Some(Sender {
        peer: header[8..24].try_into().ok()?,
        local: header[24..40].try_into().ok()?,
        kind,
        hop_limit: header[7],
        traffic_class: header[0] << 4 | header[1] >> 4,
    })
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn address(gid: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}

fn is_multicast(gid: &[u8; 16]) -> bool {
    address(gid).is_multicast()
}

/// The Ethernet address and VLAN that a GID leads to, as far as they follow from it: multicast, and
/// link-local addresses made from an Ethernet address. Otherwise a negative error number.
///
/// # Safety
/// The pointers are NULL or valid.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    ethernet: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(attr), Some(ethernet)) = (unsafe { (attr.as_ref(), ethernet.as_mut()) }) else {
        return -libc::EINVAL;
    };
    let Some(found) = ethernet_address(&attr.grh.dgid.raw) else { return -libc::EHOSTUNREACH };
    *ethernet = found;
    // SAFETY: the caller's promise.
    if let Some(vlan) = unsafe { vlan.as_mut() } {
        *vlan = NO_VLAN;
    }
    0
}

fn ethernet_address(gid: &[u8; 16]) -> Option<[u8; 6]> {
    const V4_MULTICAST_GID: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let tail = |n: usize| gid[16 - n];
    if gid[..12] == V4_MULTICAST_GID || matches!(address(gid), IpAddr::V4(v4) if v4.is_multicast()) {
        return Some([0x01, 0x00, 0x5e, tail(3) & 0x7f, tail(2), tail(1)]);
    }
    if gid[0] == 0xff {
        return Some([0x33, 0x33, tail(4), tail(3), tail(2), tail(1)]);
    }
    let link_local = gid[0] == 0xfe && gid[1] & 0xc0 == 0x80;
    (link_local && gid[11..13] == [0xff, 0xfe])
        .then(|| [gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]])
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-UD-13, IB-UD-18
    #[test]
    fn an_ipv4_header_behind_rubbish_is_told_by_its_checksum() {
        let mut header = [0u8; 40];
        header[0] = 0x60;
        header[20..40].copy_from_slice(&[
            0x45, 0x02, 0, 0x54, 0, 0, 0x40, 0, 0x40, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
        ]);
        let sum = !ones_complement_sum(&header[20..]);
        header[30..32].copy_from_slice(&sum.to_be_bytes());
        let found = sender(&header).expect("an IPv4 header");
        assert_eq!(address(&found.peer), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(address(&found.local), IpAddr::from([192, 0, 2, 2]));
        assert_eq!((found.kind, found.hop_limit, found.traffic_class), (GidKind::RoceV2, 0x40, 2));
        header[30] ^= 1;
        assert!(sender(&header).is_none(), "neither a checksum nor a known next header");
    }

    #[test]
    fn an_ipv6_header_says_which_version() {
        let mut header = [0u8; 40];
        header[0] = 0x6a;
        header[1] = 0xb0;
        header[6] = NEXT_INFINIBAND;
        header[7] = 9;
        header[23] = 1;
        header[39] = 2;
        let found = sender(&header).expect("an IPv6 header");
        assert_eq!((found.kind, found.hop_limit, found.traffic_class), (GidKind::IbOrRoceV1, 9, 0xab));
        assert_eq!((found.peer[15], found.local[15]), (1, 2));
        header[0] = 0x50;
        assert!(sender(&header).is_none());
    }

    #[test]
    fn ethernet_addresses_follow_from_some_gids() {
        let gid = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
        assert_eq!(
            ethernet_address(&gid("fe80::211:22ff:fe33:4455")),
            Some([0, 0x11, 0x22, 0x33, 0x44, 0x55])
        );
        assert_eq!(ethernet_address(&gid("ff02::1:2")), Some([0x33, 0x33, 0, 1, 0, 2]));
        assert_eq!(ethernet_address(&gid("::ffff:239.129.2.3")), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(ethernet_address(&gid("ff0e::ffff:239.129.2.3")), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(ethernet_address(&gid("2001:db8::1")), None);
    }
}
