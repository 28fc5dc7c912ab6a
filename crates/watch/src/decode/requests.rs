//! Work requests and their elements.

use super::*;
use crate::names;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{MOST_ELEMENTS, MOST_REQUESTS};

fn element(writer: &mut Writer, address: usize) {
    let forms = [("addr", Form::Address), ("lkey", Form::Hex)];
    fields::<ibv_sge>(writer, address, &forms, all);
}

/// A list of elements. One of more than a request can have on any device here is not read: the function
/// refuses it by its length.
pub(super) fn element_list(writer: &mut Writer, list: usize, count: i64) {
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
