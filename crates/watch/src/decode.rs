//! Arguments and results by what they mean.
//!
//! Programs pass structures by pointer. They are read as the function itself reads them, so a pointer that kills the program here would have killed it
//! there.

use crate::names::{self, Values};
use crate::writer::Writer;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{Arguments, MOST_ELEMENTS, MOST_REQUESTS};
use adverb_librdmacm::abi::*;
use core::ffi::{CStr, c_char};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

/// A call that has ended.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) value: usize,
    pub(crate) failed: bool,
}

/// What an argument, a result or a field is.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Signed,
    /// Of 32 bits, or as wide as the field.
    Unsigned,
    Byte,
    Half,
    Wide,
    Hex,
    /// Of 64 bits, hexadecimal.
    Address,
    /// The same in network order, with the digits of `ibv_devices`.
    Guid,
    /// A pointer that is not followed.
    Pointer,
    Name(Values),
    Flags(Values),
    /// Flags in 64 bits.
    WideFlags(Values),
    /// A C string.
    Text,
    /// A pointer that is followed, before the call.
    Of(fn(&mut Writer, usize)),
    /// What depends on other arguments.
    With(fn(&mut Writer, usize, &Arguments)),
    /// A result, which is looked at after the call.
    After(fn(&mut Writer, usize, Seen<'_>)),
    /// A structure inside a structure: its address is given.
    Inside(fn(&mut Writer, usize)),
    /// Not shown.
    Skip,
}

impl Form {
    /// Whether it is known only after the call.
    pub(crate) fn is_result(&self) -> bool {
        matches!(self, Self::After(_))
    }

    /// Writes a word.
    pub(crate) fn write(&self, writer: &mut Writer, word: usize, seen: Seen<'_>) {
        match *self {
            Self::Signed => writer.signed(i64::from(word as i32)),
            Self::Unsigned => writer.unsigned(u64::from(word as u32)),
            Self::Byte => writer.unsigned(u64::from(word as u8)),
            Self::Half => writer.unsigned(u64::from(word as u16)),
            Self::Wide => writer.unsigned(word as u64),
            Self::Hex => writer.hex(u64::from(word as u32)),
            Self::Address => writer.hex(word as u64),
            Self::Guid => writer.word(&format!("{:016x}", u64::from_be(word as u64))),
            Self::Pointer => writer.pointer(word),
            Self::Name(values) => writer.name(values, u64::from(word as u32)),
            Self::Flags(values) => writer.flags(values, u64::from(word as u32)),
            Self::WideFlags(values) => writer.flags(values, word as u64),
            Self::Text => text(writer, word),
            Self::Of(_) if word == 0 => writer.null(),
            Self::Of(write) | Self::Inside(write) => write(writer, word),
            Self::With(write) => write(writer, word, seen.arguments),
            Self::After(_) if word == 0 => writer.null(),
            Self::After(write) => write(writer, word, seen),
            Self::Skip => {}
        }
    }
}

/// Reads a value of C.
///
/// The address is one that the program passed for such a value, and not NULL: what the function was given, it may read.
fn read<T: Copy>(address: usize) -> T {
    // SAFETY: as above.
    unsafe { (address as *const T).read_unaligned() }
}

/// Writes the fields of a structure, in their order, that `shown` accepts; as `forms` say, otherwise as numbers. The others are not read: a program of an
/// older header may not have them.
fn fields<T: Layout>(
    writer: &mut Writer,
    address: usize,
    forms: &[(&str, Form)],
    shown: impl Fn(&str) -> bool,
) {
    const NONE: Arguments = [0; 6];
    let seen = Seen { arguments: &NONE, value: 0, failed: false };
    writer.open(b'{');
    for (name, offset, size) in T::FIELDS {
        let name = name.trim_start_matches("r#");
        let form = forms.iter().find(|(known, _)| *known == name).map(|(_, form)| form);
        if matches!(form, Some(Form::Skip)) || !shown(name) {
            continue;
        }
        let place = address + offset;
        if let Some(Form::Inside(write)) = form {
            write(writer.key(name), place);
            continue;
        }
        let word = match size {
            1 => usize::from(read::<u8>(place)),
            2 => usize::from(read::<u16>(place)),
            4 => read::<u32>(place) as usize,
            8 => read::<usize>(place),
            _ => continue,
        };
        match form {
            Some(form) => form.write(writer.key(name), word, seen),
            None => writer.key(name).unsigned(word as u64),
        }
    }
    writer.close(b'}');
}

fn all(_: &str) -> bool {
    true
}

fn text(writer: &mut Writer, address: usize) {
    if address == 0 {
        return writer.null();
    }
    // SAFETY: a C string, as the function wants it.
    writer.string(unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes());
}

/// A name in an array of characters.
fn array(writer: &mut Writer, characters: &[c_char]) {
    let end = characters.iter().position(|c| *c == 0).unwrap_or(characters.len());
    let bytes: Vec<u8> = characters[..end].iter().map(|c| *c as u8).collect();
    writer.string(&bytes);
}

// Objects.

pub(crate) fn device(writer: &mut Writer, address: usize) {
    let device = read::<ibv_device>(address);
    array(writer, &device.name);
}

pub(crate) fn context(writer: &mut Writer, address: usize) {
    match read::<ibv_context>(address).device as usize {
        0 => writer.pointer(address),
        found => device(writer, found),
    }
}

macro_rules! handles {
    ($($name:ident: $structure:ty = $field:ident $form:ident;)*) => {
        $(pub(crate) fn $name(writer: &mut Writer, address: usize) {
            let word = address + core::mem::offset_of!($structure, $field);
            writer.$form(u64::from(read::<u32>(word)));
        })*
    };
}

handles! {
    domain: ibv_pd = handle unsigned;
    window: ibv_mw = handle unsigned;
    completion_queue: ibv_cq = handle unsigned;
    shared_queue: ibv_srq = handle unsigned;
    address_handle: ibv_ah = handle unsigned;
    device_memory: ibv_dm = handle unsigned;
    work_queue: ibv_wq = wq_num hex;
    pair: ibv_qp = qp_num hex;
}

pub(crate) fn region(writer: &mut Writer, address: usize) {
    let region = read::<ibv_mr>(address);
    writer.open(b'{');
    writer.key("lkey").hex(region.lkey.into());
    writer.key("rkey").hex(region.rkey.into());
    writer.close(b'}');
}

pub(crate) fn channel(writer: &mut Writer, address: usize) {
    let fd = read::<ibv_comp_channel>(address).fd;
    writer.open(b'{');
    writer.key("fd").signed(fd.into());
    writer.close(b'}');
}

pub(crate) fn event_channel(writer: &mut Writer, address: usize) {
    let fd = read::<rdma_event_channel>(address).fd;
    writer.open(b'{');
    writer.key("fd").signed(fd.into());
    writer.close(b'}');
}

macro_rules! followed {
    ($($name:ident = $write:ident;)*) => {
        $(/// An object whose pointer the function has written.
        pub(crate) fn $name(writer: &mut Writer, address: usize, seen: Seen<'_>) {
            let found = if seen.failed { 0 } else { read::<usize>(address) };
            if found == 0 { writer.null() } else { $write(writer, found) }
        })*
    };
}

followed! {
    new_id = identifier;
    found_queue = completion_queue;
    found_event = cm_event;
    found_addresses = addresses;
    found_pointer = pointer;
}

fn pointer(writer: &mut Writer, address: usize) {
    writer.pointer(address);
}

// What programs get.

pub(crate) fn found_count(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { writer.signed(read::<i32>(address).into()) }
}

pub(crate) fn found_number(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { writer.hex(read::<u32>(address).into()) }
}

pub(crate) fn found_half(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { writer.hex(u16::from_be(read::<u16>(address)).into()) }
}

pub(crate) fn found_wide(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { writer.unsigned(read::<u64>(address)) }
}

pub(crate) fn found_gid(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { gid(writer, address) }
}

pub(crate) fn found_gid_type(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    // The kernel's numbers: none for RoCE version 1.
    if seen.failed { writer.null() } else { writer.unsigned(read::<u32>(address).into()) }
}

pub(crate) fn found_gid_entry(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { gid_entry(writer, address) }
}

fn gid_entry(writer: &mut Writer, address: usize) {
    let forms = [("gid", Form::Inside(gid)), ("gid_type", Form::Name(names::GID_TYPE))];
    fields::<ibv_gid_entry>(writer, address, &forms, all);
}

pub(crate) fn found_gid_table(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    writer.open(b'[');
    for index in 0..usize::try_from(seen.value as isize).unwrap_or(0) {
        gid_entry(writer.item(), address + index * seen.arguments[4]);
    }
    writer.close(b']');
}

pub(crate) fn found_device_attributes(writer: &mut Writer, address: usize, seen: Seen<'_>) {
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

pub(crate) fn found_device_attributes_ex(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed {
        return writer.null();
    }
    writer.open(b'{');
    device_attributes(writer.key("orig_attr"), address);
    writer.close(b'}');
}

pub(crate) fn found_port(writer: &mut Writer, address: usize, seen: Seen<'_>) {
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

pub(crate) fn found_pair_attributes(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { masked_attributes(writer, address, seen.arguments[2] as u32) }
}

pub(crate) fn found_pair_init(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { pair_init(writer, address) }
}

pub(crate) fn found_init_attributes(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed {
        return writer.null();
    }
    masked_attributes(writer, address, read::<u32>(seen.arguments[2]));
}

pub(crate) fn found_mask(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { writer.flags(names::QP_MASK, read::<u32>(address).into()) }
}

pub(crate) fn found_srq_attributes(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { fields::<ibv_srq_attr>(writer, address, &[], all) }
}

pub(crate) fn found_address(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { address_attributes(writer, address) }
}

pub(crate) fn async_event(writer: &mut Writer, address: usize) {
    let event = read::<ibv_async_event>(address);
    writer.open(b'{');
    writer.key("event_type").name(names::ASYNC_EVENT, event.event_type.into());
    // SAFETY: every member is as wide as a pointer, or a number.
    let subject = unsafe { event.element.cq } as usize;
    match event.event_type {
        IBV_EVENT_CQ_ERR => completion_queue(writer.key("cq"), subject),
        IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => shared_queue(writer.key("srq"), subject),
        IBV_EVENT_WQ_FATAL => work_queue(writer.key("wq"), subject),
        1..=7 | IBV_EVENT_QP_LAST_WQE_REACHED => pair(writer.key("qp"), subject),
        _ => writer.key("port_num").signed(i64::from(subject as i32)),
    }
    writer.close(b'}');
}

pub(crate) fn found_async_event(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.null() } else { async_event(writer, address) }
}

pub(crate) fn found_completions(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    writer.open(b'[');
    for index in 0..usize::try_from(seen.value as i32).unwrap_or(0) {
        completion(writer.item(), address + index * size_of::<ibv_wc>());
    }
    writer.close(b']');
}

pub(crate) fn completion(writer: &mut Writer, address: usize) {
    let wc = read::<ibv_wc>(address);
    writer.open(b'{');
    writer.key("wr_id").unsigned(wc.wr_id);
    writer.key("status").name(names::WC_STATUS, wc.status.into());
    if wc.status == IBV_WC_SUCCESS {
        writer.key("opcode").name(names::WC_OPCODE, wc.opcode.into());
        if wc.opcode & IBV_WC_RECV != 0 {
            writer.key("byte_len").unsigned(wc.byte_len.into());
        }
    } else {
        writer.key("vendor_err").hex(wc.vendor_err.into());
    }
    writer.key("qp_num").hex(wc.qp_num.into());
    if wc.status == IBV_WC_SUCCESS && wc.wc_flags != 0 {
        writer.key("wc_flags").flags(names::WC_FLAGS, wc.wc_flags.into());
        // As programs read it: one is in network order.
        if wc.wc_flags & IBV_WC_WITH_IMM != 0 {
            writer.key("imm_data").hex(u32::from_be(wc.imm_data).into());
        } else if wc.wc_flags & IBV_WC_WITH_INV != 0 {
            writer.key("invalidated_rkey").hex(wc.imm_data.into());
        }
        if wc.wc_flags & IBV_WC_GRH != 0 {
            writer.key("src_qp").hex(wc.src_qp.into());
        }
    }
    writer.close(b'}');
}

pub(crate) fn found_ethernet(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed {
        return writer.null();
    }
    let bytes = read::<[u8; 6]>(address);
    let shown: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writer.word(&shown.join(":"));
}

pub(crate) fn bad_request(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed { writer.pointer(read::<usize>(address)) } else { writer.pointer(0) }
}

pub(crate) fn found_time(writer: &mut Writer, address: usize, seen: Seen<'_>) {
    if seen.failed {
        return writer.null();
    }
    let time = read::<ibv_values_ex>(address).raw_clock;
    writer.open(b'{');
    writer.key("tv_sec").signed(time.tv_sec);
    writer.key("tv_nsec").signed(time.tv_nsec);
    writer.close(b'}');
}

// What programs give.

pub(crate) fn gid(writer: &mut Writer, address: usize) {
    writer.word(&Ipv6Addr::from(read::<[u8; 16]>(address)).to_string());
}

fn route(writer: &mut Writer, address: usize) {
    let forms = [("dgid", Form::Inside(gid)), ("flow_label", Form::Hex)];
    fields::<ibv_global_route>(writer, address, &forms, all);
}

pub(crate) fn address_attributes(writer: &mut Writer, address: usize) {
    let is_global = read::<ibv_ah_attr>(address).is_global != 0;
    let forms = [("grh", Form::Inside(route))];
    fields::<ibv_ah_attr>(writer, address, &forms, |name| name != "grh" || is_global);
}

pub(crate) fn capacities(writer: &mut Writer, address: usize) {
    fields::<ibv_qp_cap>(writer, address, &[], all);
}

/// Which fields each bit of the mask is about.
const MASKED: &[(u32, &[&str])] = &[
    (1, &["qp_state"]),
    (2, &["cur_qp_state"]),
    (4, &["en_sqd_async_notify"]),
    (8, &["qp_access_flags"]),
    (16, &["pkey_index"]),
    (32, &["port_num"]),
    (64, &["qkey"]),
    (128, &["ah_attr"]),
    (0x100, &["path_mtu"]),
    (0x200, &["timeout"]),
    (0x400, &["retry_cnt"]),
    (0x800, &["rnr_retry"]),
    (0x1000, &["rq_psn"]),
    (0x2000, &["max_rd_atomic"]),
    (0x4000, &["alt_ah_attr", "alt_pkey_index", "alt_port_num", "alt_timeout"]),
    (0x8000, &["min_rnr_timer"]),
    (0x1_0000, &["sq_psn"]),
    (0x2_0000, &["max_dest_rd_atomic"]),
    (0x4_0000, &["path_mig_state"]),
    (0x8_0000, &["cap"]),
    (0x10_0000, &["dest_qp_num"]),
];

pub(crate) fn pair_attributes(writer: &mut Writer, address: usize, arguments: &Arguments) {
    if address == 0 { writer.null() } else { masked_attributes(writer, address, arguments[2] as u32) }
}

fn masked_attributes(writer: &mut Writer, address: usize, mask: u32) {
    let forms = [
        ("qp_state", Form::Name(names::QP_STATE)),
        ("cur_qp_state", Form::Name(names::QP_STATE)),
        ("path_mtu", Form::Name(names::MTU)),
        ("path_mig_state", Form::Name(names::MIG_STATE)),
        ("qkey", Form::Hex),
        ("dest_qp_num", Form::Hex),
        ("qp_access_flags", Form::Flags(names::ACCESS)),
        ("cap", Form::Inside(capacities)),
        ("ah_attr", Form::Inside(address_attributes)),
        ("alt_ah_attr", Form::Inside(address_attributes)),
    ];
    fields::<ibv_qp_attr>(writer, address, &forms, |name| {
        MASKED.iter().any(|(bit, fields)| mask & bit != 0 && fields.contains(&name))
    });
}

const PAIR_INIT: [(&str, Form); 7] = [
    ("qp_context", Form::Pointer),
    ("send_cq", Form::Of(completion_queue)),
    ("recv_cq", Form::Of(completion_queue)),
    ("srq", Form::Of(shared_queue)),
    ("cap", Form::Inside(capacities)),
    ("qp_type", Form::Name(names::QP_TYPE)),
    ("sq_sig_all", Form::Signed),
];

/// Whether the function reads this field: of the kinds of XRC it leaves queues alone, and they may hold anything.
fn is_used(kind: u32, name: &str) -> bool {
    match name {
        "send_cq" => kind != IBV_QPT_XRC_RECV,
        "recv_cq" | "srq" => kind != IBV_QPT_XRC_RECV && kind != IBV_QPT_XRC_SEND,
        _ => true,
    }
}

pub(crate) fn pair_init(writer: &mut Writer, address: usize) {
    let kind = read::<u32>(address + core::mem::offset_of!(ibv_qp_init_attr, qp_type));
    fields::<ibv_qp_init_attr>(writer, address, &PAIR_INIT, |name| is_used(kind, name));
}

pub(crate) fn pair_init_ex(writer: &mut Writer, address: usize) {
    let mask = read::<u32>(address + core::mem::offset_of!(ibv_qp_init_attr_ex, comp_mask));
    let kind = read::<u32>(address + core::mem::offset_of!(ibv_qp_init_attr_ex, qp_type));
    let extended = [
        ("comp_mask", Form::Flags(names::QP_INIT_MASK)),
        ("pd", Form::Of(domain)),
        ("xrcd", Form::Pointer),
        ("create_flags", Form::Hex),
        ("rwq_ind_tbl", Form::Pointer),
        ("send_ops_flags", Form::WideFlags(names::SEND_OPS)),
    ];
    let forms: Vec<_> = PAIR_INIT.into_iter().chain(extended).collect();
    // A program of an older header has no more than its mask says.
    fields::<ibv_qp_init_attr_ex>(writer, address, &forms, |name| match name {
        "pd" => mask & 1 != 0,
        "xrcd" => mask & 2 != 0,
        "create_flags" => mask & 4 != 0,
        "max_tso_header" => mask & 8 != 0,
        "rwq_ind_tbl" => mask & 16 != 0,
        "send_ops_flags" => mask & 64 != 0,
        "source_qpn" => false,
        _ => is_used(kind, name),
    });
}

pub(crate) fn queue_init(writer: &mut Writer, address: usize) {
    let mask = read::<u32>(address + core::mem::offset_of!(ibv_cq_init_attr_ex, comp_mask));
    let forms = [
        ("cq_context", Form::Pointer),
        ("channel", Form::Of(channel)),
        ("wc_flags", Form::WideFlags(names::WC_EX)),
        ("comp_mask", Form::Flags(names::CQ_INIT_MASK)),
        ("flags", Form::Flags(names::CQ_FLAGS)),
        ("parent_domain", Form::Of(domain)),
    ];
    fields::<ibv_cq_init_attr_ex>(writer, address, &forms, |name| match name {
        "flags" => mask & 1 != 0,
        "parent_domain" => mask & 2 != 0,
        _ => true,
    });
}

pub(crate) fn queue_change(writer: &mut Writer, address: usize) {
    let change = read::<ibv_modify_cq_attr>(address);
    writer.open(b'{');
    writer.key("attr_mask").flags(names::CQ_MASK, change.attr_mask.into());
    writer.key("cq_count").unsigned(change.moderate.cq_count.into());
    writer.key("cq_period").unsigned(change.moderate.cq_period.into());
    writer.close(b'}');
}

fn srq_attributes(writer: &mut Writer, address: usize) {
    fields::<ibv_srq_attr>(writer, address, &[], all);
}

pub(crate) fn srq_init(writer: &mut Writer, address: usize) {
    let forms = [("srq_context", Form::Pointer), ("attr", Form::Inside(srq_attributes))];
    fields::<ibv_srq_init_attr>(writer, address, &forms, all);
}

pub(crate) fn srq_init_ex(writer: &mut Writer, address: usize) {
    let mask = read::<u32>(address + core::mem::offset_of!(ibv_srq_init_attr_ex, comp_mask));
    let forms = [
        ("srq_context", Form::Pointer),
        ("attr", Form::Inside(srq_attributes)),
        ("comp_mask", Form::Flags(names::SRQ_INIT_MASK)),
        ("srq_type", Form::Name(names::SRQ_TYPE)),
        ("pd", Form::Of(domain)),
        ("xrcd", Form::Pointer),
        ("cq", Form::Of(completion_queue)),
    ];
    fields::<ibv_srq_init_attr_ex>(writer, address, &forms, |name| match name {
        "srq_type" => mask & 1 != 0,
        "pd" => mask & 2 != 0,
        "xrcd" => mask & 4 != 0,
        "cq" => mask & 8 != 0,
        "tm_cap" => false,
        _ => true,
    });
}

pub(crate) fn srq_change(writer: &mut Writer, address: usize, arguments: &Arguments) {
    let mask = arguments[2] as u32;
    if address == 0 {
        return writer.null();
    }
    fields::<ibv_srq_attr>(writer, address, &[], |name| match name {
        "max_wr" => mask & 1 != 0,
        "srq_limit" => mask & 2 != 0,
        _ => false,
    });
}

pub(crate) fn region_init(writer: &mut Writer, address: usize) {
    let init = read::<ibv_mr_init_attr>(address);
    writer.open(b'{');
    writer.key("length").unsigned(init.length as u64);
    writer.key("access").flags(names::ACCESS, (init.access as u32).into());
    writer.key("comp_mask").flags(names::MR_INIT_MASK, init.comp_mask);
    if init.comp_mask & IBV_REG_MR_MASK_IOVA != 0 {
        writer.key("iova").hex(init.iova);
    }
    if init.comp_mask & IBV_REG_MR_MASK_ADDR != 0 {
        writer.key("addr").pointer(init.addr as usize);
    }
    writer.close(b'}');
}

fn element(writer: &mut Writer, address: usize) {
    let forms = [("addr", Form::Address), ("lkey", Form::Hex)];
    fields::<ibv_sge>(writer, address, &forms, all);
}

/// A list of elements. One of more than a request can have on any device here is not read: the function refuses it by its length.
fn element_list(writer: &mut Writer, list: usize, count: i64) {
    if list == 0 && count != 0 {
        return writer.null();
    }
    if !(0..=i64::from(MOST_ELEMENTS)).contains(&count) {
        return writer.pointer(list);
    }
    writer.open(b'[');
    for index in 0..count {
        element(writer.item(), list + index as usize * size_of::<ibv_sge>());
    }
    writer.close(b']');
}

pub(crate) fn advised(writer: &mut Writer, list: usize, arguments: &Arguments) {
    element_list(writer, list, i64::from(arguments[4] as u32));
}

pub(crate) fn builder_elements(writer: &mut Writer, list: usize, arguments: &Arguments) {
    element_list(writer, list, arguments[1] as i64);
}

pub(crate) fn send_list(writer: &mut Writer, list: usize) {
    writer.open(b'[');
    let (mut next, mut count) = (list, 0);
    while next != 0 && count < MOST_REQUESTS {
        let wr = read::<ibv_send_wr>(next);
        count += 1;
        send_request(writer.item(), &wr);
        next = wr.next as usize;
    }
    writer.close(b']');
}

fn send_request(writer: &mut Writer, wr: &ibv_send_wr) {
    writer.open(b'{');
    writer.key("wr_id").unsigned(wr.wr_id);
    writer.key("opcode").name(names::WR_OPCODE, wr.opcode.into());
    writer.key("send_flags").flags(names::SEND_FLAGS, wr.send_flags.into());
    if wr.opcode != IBV_WR_BIND_MW {
        element_list(writer.key("sg_list"), wr.sg_list as usize, wr.num_sge.into());
    }
    // SAFETY: all members are integers and pointers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    match wr.opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ | IBV_WR_ATOMIC_WRITE => {
            writer.key("remote_addr").hex(rdma.remote_addr);
            writer.key("rkey").hex(rdma.rkey.into());
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            writer.key("remote_addr").hex(atomic.remote_addr);
            writer.key("rkey").hex(atomic.rkey.into());
            writer.key("compare_add").unsigned(atomic.compare_add);
            if wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP {
                writer.key("swap").unsigned(atomic.swap);
            }
        }
        IBV_WR_BIND_MW => {
            match wr.bind_mw.mw as usize {
                0 => writer.key("mw").null(),
                mw => window(writer.key("mw"), mw),
            }
            writer.key("rkey").hex(wr.bind_mw.rkey.into());
            bind_info(writer.key("bind_info"), &raw const wr.bind_mw.bind_info as usize);
        }
        _ => {}
    }
    match wr.opcode {
        IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => {
            writer.key("imm_data").hex(u32::from_be(wr.imm_data).into());
        }
        IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV => writer.key("invalidate_rkey").hex(wr.imm_data.into()),
        _ => {}
    }
    writer.close(b'}');
}

pub(crate) fn receive_list(writer: &mut Writer, list: usize) {
    writer.open(b'[');
    let (mut next, mut count) = (list, 0);
    while next != 0 && count < MOST_REQUESTS {
        let wr = read::<ibv_recv_wr>(next);
        count += 1;
        writer.item().open(b'{');
        writer.key("wr_id").unsigned(wr.wr_id);
        element_list(writer.key("sg_list"), wr.sg_list as usize, wr.num_sge.into());
        writer.close(b'}');
        next = wr.next as usize;
    }
    writer.close(b']');
}

pub(crate) fn bind_info(writer: &mut Writer, address: usize) {
    let forms =
        [("mr", Form::Of(region)), ("addr", Form::Address), ("mw_access_flags", Form::Flags(names::ACCESS))];
    fields::<ibv_mw_bind_info>(writer, address, &forms, all);
}

pub(crate) fn bind(writer: &mut Writer, address: usize) {
    let forms = [("send_flags", Form::Flags(names::SEND_FLAGS)), ("bind_info", Form::Inside(bind_info))];
    fields::<ibv_mw_bind>(writer, address, &forms, all);
}

pub(crate) fn memory_init(writer: &mut Writer, address: usize) {
    fields::<ibv_alloc_dm_attr>(writer, address, &[], all);
}

pub(crate) fn parent_init(writer: &mut Writer, address: usize) {
    let forms = [
        ("pd", Form::Of(domain)),
        ("td", Form::Pointer),
        ("comp_mask", Form::Hex),
        ("alloc", Form::Pointer),
        ("free", Form::Pointer),
        ("pd_context", Form::Pointer),
    ];
    let mask = read::<u32>(address + core::mem::offset_of!(ibv_parent_domain_init_attr, comp_mask));
    fields::<ibv_parent_domain_init_attr>(writer, address, &forms, |name| match name {
        "alloc" | "free" => mask & 1 != 0,
        "pd_context" => mask & 2 != 0,
        _ => true,
    });
}

pub(crate) fn work_queue_init(writer: &mut Writer, address: usize) {
    let forms = [
        ("wq_context", Form::Pointer),
        ("wq_type", Form::Name(names::WQ_TYPE)),
        ("pd", Form::Of(domain)),
        ("cq", Form::Of(completion_queue)),
        ("comp_mask", Form::Hex),
        ("create_flags", Form::Skip),
    ];
    fields::<ibv_wq_init_attr>(writer, address, &forms, |name| name != "create_flags");
}

pub(crate) fn work_queue_change(writer: &mut Writer, address: usize) {
    let mask = read::<u32>(address);
    let forms = [
        ("attr_mask", Form::Flags(names::WQ_MASK)),
        ("wq_state", Form::Name(names::WQ_STATE)),
        ("curr_wq_state", Form::Name(names::WQ_STATE)),
    ];
    fields::<ibv_wq_attr>(writer, address, &forms, |name| match name {
        "wq_state" => mask & 1 != 0,
        "curr_wq_state" => mask & 2 != 0,
        "flags" | "flags_mask" => mask & 4 != 0,
        _ => true,
    });
}

pub(crate) fn table_init(writer: &mut Writer, address: usize) {
    let forms = [("ind_tbl", Form::Pointer), ("comp_mask", Form::Hex)];
    fields::<ibv_rwq_ind_table_init_attr>(writer, address, &forms, all);
}

pub(crate) fn xrc_init(writer: &mut Writer, address: usize) {
    let forms = [("comp_mask", Form::Flags(names::XRCD_MASK)), ("fd", Form::Signed), ("oflags", Form::Hex)];
    fields::<ibv_xrcd_init_attr>(writer, address, &forms, all);
}

pub(crate) fn open_init(writer: &mut Writer, address: usize) {
    let forms = [
        ("comp_mask", Form::Flags(names::QP_OPEN_MASK)),
        ("qp_num", Form::Hex),
        ("xrcd", Form::Pointer),
        ("qp_context", Form::Pointer),
        ("qp_type", Form::Name(names::QP_TYPE)),
    ];
    fields::<ibv_qp_open_attr>(writer, address, &forms, all);
}

// rdma_cm.

pub(crate) fn identifier(writer: &mut Writer, address: usize) {
    writer.pointer(address);
}

pub(crate) fn socket_address(writer: &mut Writer, address: usize) {
    match i32::from(read::<u16>(address)) {
        libc::AF_INET => {
            let v4 = read::<libc::sockaddr_in>(address);
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            writer.word(&SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).to_string());
        }
        libc::AF_INET6 => {
            let v6 = read::<libc::sockaddr_in6>(address);
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let shown = SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id);
            writer.word(&shown.to_string());
        }
        family => {
            writer.open(b'{');
            writer.key("sa_family").signed(family.into());
            writer.close(b'}');
        }
    }
}

/// At most so many bytes of private data are shown.
const MOST_DATA: usize = 64;

fn private_data(writer: &mut Writer, data: usize, length: usize) {
    if data == 0 {
        return writer.null();
    }
    // SAFETY: the program, or the engine, says that there are as many.
    let bytes = unsafe { std::slice::from_raw_parts(data as *const u8, length.min(MOST_DATA)) };
    writer.string(bytes);
}

pub(crate) fn rejected_data(writer: &mut Writer, data: usize, arguments: &Arguments) {
    private_data(writer, data, usize::from(arguments[2] as u8));
}

pub(crate) fn connection(writer: &mut Writer, address: usize) {
    let parameters = read::<rdma_conn_param>(address);
    let forms = [("private_data", Form::Skip), ("private_data_len", Form::Skip), ("qp_num", Form::Hex)];
    fields::<rdma_conn_param>(writer, address, &forms, all);
    // Inside of the brackets that were written last.
    writer.bytes.pop();
    private_data(
        writer.key("private_data"),
        parameters.private_data as usize,
        parameters.private_data_len.into(),
    );
    writer.close(b'}');
}

pub(crate) fn cm_event(writer: &mut Writer, address: usize) {
    let event = read::<rdma_cm_event>(address);
    writer.open(b'{');
    writer.key("event").name(names::CM_EVENT, event.event.into());
    writer.key("status").signed(event.status.into());
    identifier(writer.key("id"), event.id as usize);
    if !event.listen_id.is_null() {
        identifier(writer.key("listen_id"), event.listen_id as usize);
    }
    // SAFETY: every member begins with the private data.
    let connection = unsafe { event.param.conn };
    let is_of_peer = matches!(
        event.event,
        RDMA_CM_EVENT_CONNECT_REQUEST
            | RDMA_CM_EVENT_CONNECT_RESPONSE
            | RDMA_CM_EVENT_REJECTED
            | RDMA_CM_EVENT_ESTABLISHED
    );
    if is_of_peer && !connection.private_data.is_null() {
        private_data(
            writer.key("private_data"),
            connection.private_data as usize,
            connection.private_data_len.into(),
        );
    }
    writer.close(b'}');
}

pub(crate) fn addresses(writer: &mut Writer, address: usize) {
    writer.open(b'[');
    let mut next = address;
    while next != 0 {
        let info = read::<rdma_addrinfo>(next);
        address_info(writer.item(), &info);
        next = info.ai_next as usize;
    }
    writer.close(b']');
}

/// What a program wants of addresses: the function reads one of the list, and an address only as far as its length says.
pub(crate) fn hints(writer: &mut Writer, address: usize) {
    writer.open(b'[');
    address_info(writer.item(), &read::<rdma_addrinfo>(address));
    writer.close(b']');
}

fn address_info(writer: &mut Writer, info: &rdma_addrinfo) {
    writer.open(b'{');
    writer.key("ai_flags").flags(names::RAI_FLAGS, (info.ai_flags as u32).into());
    writer.key("ai_family").signed(info.ai_family.into());
    writer.key("ai_qp_type").name(names::QP_TYPE, info.ai_qp_type as u64);
    writer.key("ai_port_space").name(names::PORT_SPACE, info.ai_port_space as u64);
    let addresses = [
        ("ai_src_addr", info.ai_src_addr as usize, info.ai_src_len as usize),
        ("ai_dst_addr", info.ai_dst_addr as usize, info.ai_dst_len as usize),
    ];
    for (name, place, length) in addresses {
        if place == 0 || length < size_of::<u16>() {
            continue;
        }
        let wanted = match i32::from(read::<u16>(place)) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => size_of::<u16>(),
        };
        if length >= wanted {
            socket_address(writer.key(name), place);
        }
    }
    writer.close(b'}');
}

pub(crate) fn joined(writer: &mut Writer, address: usize) {
    let forms = [
        ("comp_mask", Form::Flags(names::MC_MASK)),
        ("join_flags", Form::Hex),
        ("addr", Form::Of(socket_address)),
    ];
    fields::<rdma_cm_join_mc_attr_ex>(writer, address, &forms, all);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(write: impl FnOnce(&mut Writer)) -> String {
        let mut writer = Writer::new(true);
        write(&mut writer);
        String::from_utf8_lossy(&writer.bytes).into_owned()
    }

    /// No program may read there.
    const NOWHERE: usize = 16;

    #[test]
    fn hints_are_read_as_far_as_the_function_reads_them() {
        // SAFETY: plain data.
        let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_next = NOWHERE as *mut rdma_addrinfo;
        hints.ai_src_addr = NOWHERE as *mut _;
        let text = shown(|writer| super::hints(writer, &raw const hints as usize));
        assert!(text.contains("ai_port_space") && !text.contains("ai_src_addr"), "{text}");
    }

    #[test]
    fn queues_of_a_target_of_xrc_are_not_read() {
        // SAFETY: plain data.
        let mut init: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        (init.send_cq, init.recv_cq) = (NOWHERE as *mut ibv_cq, NOWHERE as *mut ibv_cq);
        (init.srq, init.qp_type) = (NOWHERE as *mut ibv_srq, IBV_QPT_XRC_RECV);
        let text = shown(|writer| pair_init_ex(writer, &raw const init as usize));
        assert!(text.contains("XRC_RECV") && !text.contains("send_cq"), "{text}");
        let text = shown(|writer| pair_init(writer, &raw const init as usize));
        assert!(!text.contains("srq"), "{text}");
    }

    #[test]
    fn a_list_that_no_request_can_have_is_not_read() {
        for count in [-1, i64::from(MOST_ELEMENTS) + 1, i64::from(i32::MAX)] {
            assert!(shown(|writer| element_list(writer, NOWHERE, count)).contains("0x10"), "{count}");
        }
    }

    #[test]
    fn a_list_of_requests_that_goes_round_ends() {
        // SAFETY: plain data.
        let mut receive: ibv_recv_wr = unsafe { std::mem::zeroed() };
        receive.next = &raw mut receive;
        let text = shown(|writer| receive_list(writer, &raw const receive as usize));
        assert_eq!(text.matches("wr_id").count(), MOST_REQUESTS);
    }
}
