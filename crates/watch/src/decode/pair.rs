//! Queue pairs and addresses.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;

pub(crate) fn found_pair_attributes(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { masked_attributes(writer, address, seen.arguments[2] as u32) }
}

pub(crate) fn found_pair_init(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { pair_init(writer, address) }
}

pub(crate) fn found_init_attributes(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed {
        return writer.null();
    }
    masked_attributes(writer, address, read::<u32>(seen.arguments[2]));
}

pub(crate) fn found_mask(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { writer.flags(names::QP_MASK, read::<u32>(address).into()) }
}

pub(crate) fn found_address(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { address_attributes(writer, address) }
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

pub(super) fn masked_attributes(writer: &mut Writer, address: usize, mask: u32) {
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

/// Whether the function reads this field: of the kinds of XRC it leaves queues alone, and they may hold
/// anything.
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
