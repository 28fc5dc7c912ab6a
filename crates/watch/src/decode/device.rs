//! What a device and its port say of themselves.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;
use std::net::Ipv6Addr;

pub(crate) fn found_count(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { writer.signed(read::<i32>(address).into()) }
}

pub(crate) fn found_number(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { writer.hex(read::<u32>(address).into()) }
}

pub(crate) fn found_half(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { writer.hex(u16::from_be(read::<u16>(address)).into()) }
}

pub(crate) fn found_wide(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { writer.unsigned(read::<u64>(address)) }
}

pub(crate) fn found_gid(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { gid(writer, address) }
}

pub(crate) fn found_gid_type(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    // The kernel's numbers: none for RoCE version 1.
    if seen.failed { writer.null() } else { writer.unsigned(read::<u32>(address).into()) }
}

pub(crate) fn found_gid_entry(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { gid_entry(writer, address) }
}

pub(super) fn gid_entry(writer: &mut Writer, address: usize) {
    let forms = [("gid", Form::Inside(gid)), ("gid_type", Form::Name(names::GID_TYPE))];
    fields::<ibv_gid_entry>(writer, address, &forms, all);
}

pub(crate) fn found_gid_table(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    writer.open(b'[');
    for index in 0..usize::try_from(seen.value as isize).unwrap_or(0) {
        gid_entry(writer.item(), address + index * seen.arguments[4]);
    }
    writer.close(b']');
}

pub(crate) fn found_device_attributes(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { device_attributes(writer, address) }
}

fn device_attributes(writer: &mut Writer, address: usize) {
    let forms = [
        ("fw_ver", Form::Inside(firmware)),
        ("node_guid", Form::Guid),
        ("sys_image_guid", Form::Guid),
        ("max_mr_size", Form::Address),
        ("page_size_cap", Form::Address),
        ("device_cap_flags", Form::Hex),
        ("atomic_cap", Form::Name(names::ATOMIC_CAP)),
    ];
    fields::<ibv_device_attr>(writer, address, &forms, all);
}

fn firmware(writer: &mut Writer, address: usize) {
    array(writer, &read::<[c_char; 64]>(address));
}

pub(crate) fn found_device_attributes_ex(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed {
        return writer.null();
    }
    writer.open(b'{');
    device_attributes(writer.key("orig_attr"), address);
    writer.close(b'}');
}

pub(crate) fn found_port(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    // Callers say how much of the structure they have; all have what is shown.
    let forms = [
        ("state", Form::Name(names::PORT_STATE)),
        ("max_mtu", Form::Name(names::MTU)),
        ("active_mtu", Form::Name(names::MTU)),
        ("port_cap_flags", Form::Hex),
        ("link_layer", Form::Name(names::LINK_LAYER)),
        ("port_cap_flags2", Form::Skip),
        ("active_speed_ex", Form::Skip),
    ];
    if seen.failed {
        return writer.null();
    }
    // The two newest fields may not be there: they are not read either.
    let mut copy = ibv_port_attr::zeroed();
    // SAFETY: every caller has as much of the structure, and the copy is larger.
    unsafe {
        core::ptr::copy_nonoverlapping(address as *const u8, (&raw mut copy).cast(), COMPAT_PORT_ATTR_SIZE);
    }
    fields::<ibv_port_attr>(writer, &raw const copy as usize, &forms, all);
}

pub(crate) fn found_ethernet(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed {
        return writer.null();
    }
    let bytes = read::<[u8; 6]>(address);
    let shown: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writer.word(&shown.join(":"));
}

pub(crate) fn found_time(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed {
        return writer.null();
    }
    let time = read::<ibv_values_ex>(address).raw_clock;
    writer.open(b'{');
    writer.key("tv_sec").signed(time.tv_sec);
    writer.key("tv_nsec").signed(time.tv_nsec);
    writer.close(b'}');
}

pub(crate) fn gid(writer: &mut Writer, address: usize) {
    writer.word(&Ipv6Addr::from(read::<[u8; 16]>(address)).to_string());
}
