//! The port, its GID table and its P_Key table.

use core::ffi::{c_int, c_void};

use adverb_core::attributes::{DeviceAttributes, Gid, GidKind, PortAttributes, TransportType, shown};
use adverb_core::description::Rate;

use crate::abi::{
    COMPAT_PORT_ATTR_SIZE, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_DEVICE_MGMT_SUP, IBV_PORT_DOWN, IBV_PORT_IP_BASED_GIDS, ibv_context, ibv_gid,
    ibv_gid_entry, ibv_port_attr,
};
use crate::context::{ContextObject, context};
use crate::errno::{Call, fail, refusal};

/// The only P_Key: the default partition, full membership.
// ROCE-25
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// `phys_state` values of `ibv_query_port(3)`.
const PHYSICAL_DISABLED: u8 = 3;
const PHYSICAL_LINK_UP: u8 = 5;

/// `ibv_query_port` as the header calls it: fills as much as the caller has room for.
pub(crate) unsafe extern "C" fn query_port(
    pointer: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(context), false) = (unsafe { context(pointer) }, attr.is_null()) else { return libc::EINVAL };
    let _call = Call::new();
    let core = match context.inner.core.port(port) {
        Ok(core) => core,
        Err(error) => return refusal(&error),
    };
    let rate = context.inner.core.device().rate();
    let full = attributes(&core, &context.inner.core.attributes(), rate);
    // SAFETY: the caller has room for `size` bytes; what is beyond our structure becomes zero.
    unsafe {
        let filled = size.min(size_of::<ibv_port_attr>());
        attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast::<u8>(), filled);
        attr.cast::<u8>().add(filled).write_bytes(0, size - filled);
    }
    0
}

/// State and limits of a port, for programs built before the size was negotiated (`ibv_query_port(3)`).
///
/// # Safety
/// `pointer` is NULL or an open context; `attr` is NULL or has room for the structure of those programs.
pub unsafe extern "C" fn ibv_query_port(pointer: *mut ibv_context, port: u8, attr: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { query_port(pointer, port, attr.cast(), COMPAT_PORT_ATTR_SIZE) }
}

fn attributes(core: &PortAttributes, device: &DeviceAttributes, rate: Rate) -> ibv_port_attr {
    let mut c = ibv_port_attr::zeroed();
    c.state = if core.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    c.phys_state = if core.active { PHYSICAL_LINK_UP } else { PHYSICAL_DISABLED };
    c.max_mtu = mtu_number(core.max_mtu);
    c.active_mtu = mtu_number(core.active_mtu);
    c.gid_tbl_len = core.gid_table_length as c_int;
    c.pkey_tbl_len = core.pkey_table_length;
    c.max_msg_sz = device.max_message;
    // As the kernel's drivers of either family say.
    c.port_cap_flags = match device.transport {
        TransportType::Ib => IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        TransportType::Iwarp => IBV_PORT_CM_SUP | IBV_PORT_DEVICE_MGMT_SUP,
    };
    c.max_vl_num = 1;
    c.active_width = rate.width;
    c.active_speed = rate.speed;
    // ROCE-24
    c.link_layer = IBV_LINK_LAYER_ETHERNET;
    c
}

/// `enum ibv_mtu` of a number of bytes: 256 is 1, 4096 is 5.
pub(crate) fn mtu_number(bytes: u32) -> u32 {
    bytes.clamp(256, 4096).ilog2() - 7
}

/// The link's speed in steps of 100 Mb/s (`ibv_query_port_speed(3)`).
///
/// # Safety
/// `pointer` is NULL or an open context; `speed` is NULL or valid.
pub unsafe extern "C" fn ibv_query_port_speed(
    pointer: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(context), Some(speed)) = (unsafe { context(pointer) }, unsafe { speed.as_mut() }) else {
        return libc::EINVAL;
    };
    if port != 1 {
        return libc::EINVAL;
    }
    *speed = u64::from(context.inner.core.device().rate().gigabits) * 10;
    0
}

enum Lookup {
    Found(Gid),
    Empty,
    Invalid,
}

fn look_up(context: &ContextObject, port: u32, index: u32) -> Lookup {
    let Some(attr) = u8::try_from(port).ok().and_then(|port| context.inner.core.port(port).ok()) else {
        return Lookup::Invalid;
    };
    if index >= attr.gid_table_length {
        return Lookup::Invalid;
    }
    let gids = shown(context.inner.core.gids());
    gids.into_iter().find(|gid| gid.index == index).map_or(Lookup::Empty, Lookup::Found)
}

/// One entry of the GID table (`ibv_query_gid(3)`); an empty entry is all zero.
///
/// # Safety
/// `pointer` is NULL or an open context; `gid` is NULL or valid.
pub unsafe extern "C" fn ibv_query_gid(
    pointer: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), Some(gid)) = (unsafe { context(pointer) }, unsafe { gid.as_mut() }) else {
        return fail(libc::EINVAL);
    };
    let Ok(index) = u32::try_from(index) else { return fail(libc::EINVAL) };
    *gid = match look_up(context, port.into(), index) {
        Lookup::Found(found) => ibv_gid { raw: found.bytes },
        Lookup::Empty => ibv_gid::default(),
        Lookup::Invalid => return fail(libc::EINVAL),
    };
    0
}

/// Whether the entry is RoCE v2 (1) or not (0), as the file of sysfs says it. Programs use this private
/// function to print the table.
///
/// # Safety
/// `pointer` is NULL or an open context; `kind` is NULL or valid.
pub unsafe extern "C" fn ibv_query_gid_type(
    pointer: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut core::ffi::c_uint,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), Some(kind)) = (unsafe { context(pointer) }, unsafe { kind.as_mut() }) else {
        return fail(libc::EINVAL);
    };
    *kind = match look_up(context, port.into(), index) {
        Lookup::Found(found) => (found.kind == GidKind::RoceV2).into(),
        Lookup::Empty => 0,
        Lookup::Invalid => return fail(libc::EINVAL),
    };
    0
}

fn entry(gid: &Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.bytes },
        gid_index: gid.index,
        port_num: 1,
        gid_type: match gid.kind {
            GidKind::IbOrRoceV1 => IBV_GID_TYPE_IB,
            GidKind::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: gid.interface,
    }
}

/// One entry with its kind and interface (`ibv_query_gid_ex(3)`): an error number, `ENODATA` for an empty
/// entry.
///
/// # Safety
/// `pointer` is NULL or an open context; `target` is NULL or has room for `size` bytes.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    pointer: *mut ibv_context,
    port: u32,
    index: u32,
    target: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let (Some(context), false) = (unsafe { context(pointer) }, target.is_null()) else { return libc::EINVAL };
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    match look_up(context, port, index) {
        Lookup::Found(found) => {
            // SAFETY: the caller's promise.
            unsafe { put_entry(target, &found, size) };
            0
        }
        Lookup::Empty => libc::ENODATA,
        Lookup::Invalid => libc::EINVAL,
    }
}

/// Writes an entry for a caller whose structure has `size` bytes.
unsafe fn put_entry(target: *mut ibv_gid_entry, gid: &Gid, size: usize) {
    let full = entry(gid);
    let filled = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller has room for `size` bytes.
    unsafe {
        target.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast::<u8>(), filled);
        target.cast::<u8>().add(filled).write_bytes(0, size - filled);
    }
}

/// All entries that are not empty (`ibv_query_gid_table(3)`): their number, or a negative error number.
///
/// # Safety
/// `pointer` is NULL or an open context; `entries` has room for `most` structures of `size` bytes.
pub unsafe extern "C" fn _ibv_query_gid_table(
    pointer: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let _call = Call::new();
    // SAFETY: the caller's promise.
    let Some(context) = (unsafe { context(pointer) }) else { return -(libc::EINVAL as isize) };
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    let gids = shown(context.inner.core.gids());
    if gids.len() > most || (entries.is_null() && !gids.is_empty()) {
        return -(libc::EINVAL as isize);
    }
    for (place, gid) in gids.iter().enumerate() {
        // SAFETY: `place` is below `most`, so the structure is inside the caller's array.
        unsafe { put_entry(entries.wrapping_byte_add(place * size), gid, size) };
    }
    gids.len() as isize
}

/// One entry of the P_Key table, in network order (`ibv_query_pkey(3)`).
///
/// # Safety
/// `pointer` is NULL or an open context; `pkey` is NULL or valid.
pub unsafe extern "C" fn ibv_query_pkey(
    pointer: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(context), Some(pkey)) = (unsafe { context(pointer) }, unsafe { pkey.as_mut() }) else {
        return fail(libc::EINVAL);
    };
    let length = context.inner.core.port(port).map_or(0, |attr| attr.pkey_table_length);
    if index < 0 || index >= length.into() {
        return fail(libc::EINVAL);
    }
    *pkey = DEFAULT_PKEY.to_be();
    0
}

/// The index of a P_Key (`ibv_get_pkey_index(3)`), or -1.
///
/// # Safety
/// `pointer` is NULL or an open context.
pub unsafe extern "C" fn ibv_get_pkey_index(pointer: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let mut index = 0;
    loop {
        let mut found = 0;
        // SAFETY: the caller's promise.
        if unsafe { ibv_query_pkey(pointer, port, index, &mut found) } != 0 {
            return -1;
        }
        if found == pkey {
            return index;
        }
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_numbers_are_those_of_the_header() {
        assert_eq!([256, 512, 1024, 2048, 4096, 9000, 0].map(mtu_number), [1, 2, 3, 4, 5, 5, 1]);
    }
}
