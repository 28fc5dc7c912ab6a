//! Completion queues, shared receive queues, work queues.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;

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

pub(crate) fn found_srq_attributes(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { fields::<ibv_srq_attr>(writer, address, &[], all) }
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
