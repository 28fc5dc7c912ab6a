//! The route that a `struct rdma_cm_id` shows: addresses, GIDs, path record.

use std::ptr::null_mut;

use adverb_core::attributes::gid_of;
use adverb_core::cm::{DEFAULT_PKEY, Identifier, PathRecord};
use adverb_core::qp::{Attributes, Path};
use adverb_libibverbs::abi::{ibv_ah_attr, ibv_gid, ibv_sa_path_rec};
use adverb_libibverbs::qp::c_attributes;

use crate::abi::rdma_cm_id;
use crate::address;

/// In a path record: exactly this MTU or time, and a rate of at least 10 Gbit/s, which no program of a
/// software device can rely on.
const EXACTLY: u8 = 2;
const RATE_10_GBPS: u8 = 3;

/// The address vector of C.
pub(crate) fn c_address(path: &Path) -> ibv_ah_attr {
    c_attributes(&Attributes { path: *path, ..Attributes::default() }).ah_attr
}

/// Brings the route up to what the identifier knows.
///
/// # Safety
/// `c` is a live structure that no other thread uses at this instant.
pub(crate) unsafe fn refresh_route(c: *mut rdma_cm_id, core: &Identifier) {
    let (local, peer) = (core.local_address(), core.peer_address());
    // SAFETY: fields of a live structure.
    let addr = unsafe { &mut (*c).route.addr };
    if let Some(local) = local {
        addr.src = address::storage(local).0;
        addr.ibaddr.sgid = ibv_gid { raw: gid_of(local.ip()) };
    }
    if let Some(peer) = peer {
        addr.dst = address::storage(peer).0;
        addr.ibaddr.dgid = ibv_gid { raw: gid_of(peer.ip()) };
    }
    let Some(record) = core.path_record() else { return };
    addr.ibaddr.pkey = DEFAULT_PKEY.to_be();
    // SAFETY: as above; the record is the structure's own and was allocated below.
    unsafe {
        if (*c).route.path_rec.is_null() {
            (*c).route.path_rec = Box::into_raw(Box::new(ibv_sa_path_rec::zeroed()));
        }
        *(*c).route.path_rec = c_record(&record);
        (*c).route.num_paths = 1;
    }
}

/// Frees the path record.
///
/// # Safety
/// As for [`refresh_route`]; nobody uses the record any more.
pub(crate) unsafe fn drop_route(c: *mut rdma_cm_id) {
    // SAFETY: the caller's promise; a record is always one that `refresh_route` allocated.
    unsafe {
        let record = std::mem::replace(&mut (*c).route.path_rec, null_mut());
        if !record.is_null() {
            drop(Box::from_raw(record));
        }
        (*c).route.num_paths = 0;
    }
}

fn c_record(record: &PathRecord) -> ibv_sa_path_rec {
    let mut c = ibv_sa_path_rec::zeroed();
    c.sgid = ibv_gid { raw: record.source };
    c.dgid = ibv_gid { raw: record.destination };
    (c.hop_limit, c.traffic_class) = (record.hop_limit, record.traffic_class);
    (c.reversible, c.numb_path) = (1, 1);
    c.pkey = record.pkey.to_be();
    c.mtu_selector = EXACTLY;
    c.mtu = c_attributes(&Attributes { path_mtu: record.mtu, ..Attributes::default() }).path_mtu as u8;
    (c.rate_selector, c.rate) = (EXACTLY, RATE_10_GBPS);
    (c.packet_life_time_selector, c.packet_life_time) = (EXACTLY, record.life_time);
    c
}
