//! Completions and asynchronous events.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;

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

pub(crate) fn found_async_event(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.null() } else { async_event(writer, address) }
}

pub(crate) fn found_completions(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
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

pub(crate) fn bad_request(writer: &mut Writer, address: usize, seen: CallOutcome<'_>) {
    if seen.failed { writer.pointer(read::<usize>(address)) } else { writer.pointer(0) }
}
