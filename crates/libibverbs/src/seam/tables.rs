//! Functions that `verbs.h` calls through tables: those of a context, and those that stand in queue pairs
//! with builders, in completion queues that are polled entry by entry, and in work queues.

use core::mem::offset_of;

use super::{Address, Function, around, is_watched};
use crate::abi::{ibv_context, ibv_context_ops, ibv_cq_ex, ibv_qp_ex, ibv_wq, verbs_context};
use crate::{
    cq, cq_ex, device, device_memory, domain, flow, memory, port, post, qp, qp_ex, srq, window, wq, xrc,
};

/// A structure with functions that can be watched.
pub trait Table: Sized + 'static {
    /// The functions, each with the place of its field.
    const FUNCTIONS: &'static [(usize, &'static str, Address)];

    /// Puts watched functions into the fields that are not empty.
    fn watch(&mut self) {
        let base = std::ptr::from_mut(self);
        for (place, _, watched) in Self::FUNCTIONS {
            // SAFETY: a field of the structure, which is a pointer to a function or NULL.
            unsafe {
                let field = base.byte_add(*place).cast::<usize>();
                if *field != 0 {
                    *field = *watched as usize;
                }
            }
        }
    }
}

macro_rules! table {
    ($table:ident, $watched:ident, $structure:ty: $($index:literal $name:literal $($field:ident).+ = $function:expr;)*) => {
        static $table: [Function; [$($index),*].len()] = [$(Function::new($name, $function as *const ())),*];

        /// What stands in the place of a function.
        ///
        /// # Safety
        /// As of the function.
        unsafe extern "C" fn $watched<const INDEX: usize>(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> usize {
            // SAFETY: the caller's promise.
            unsafe { around(&$table[INDEX], &[a, b, c, d, e, f]) }
        }

        impl Table for $structure {
            const FUNCTIONS: &'static [(usize, &'static str, Address)] =
                &[$((offset_of!($structure, $($field).+), $name, $watched::<$index>)),*];
        }
    };
}

const _: () = assert!(offset_of!(ibv_context, ops) < size_of::<ibv_context>() - size_of::<ibv_context_ops>());

table! { CONTEXT, context_function, verbs_context:
    0 "ibv_post_send" context.ops.post_send = post::post_send;
    1 "ibv_post_recv" context.ops.post_recv = post::post_recv;
    2 "ibv_post_srq_recv" context.ops.post_srq_recv = post::post_srq_recv;
    3 "ibv_poll_cq" context.ops.poll_cq = cq::poll_cq;
    4 "ibv_req_notify_cq" context.ops.req_notify_cq = cq::req_notify_cq;
    5 "ibv_alloc_mw" context.ops.alloc_mw = window::alloc_mw;
    6 "ibv_bind_mw" context.ops.bind_mw = window::bind_mw;
    7 "ibv_dealloc_mw" context.ops.dealloc_mw = window::dealloc_mw;
    8 "ibv_query_port" query_port = port::query_port;
    9 "ibv_query_device_ex" query_device_ex = device::query_device_ex;
    10 "ibv_modify_cq" modify_cq = cq::modify_cq;
    11 "ibv_create_cq_ex" create_cq_ex = cq_ex::create_cq_ex;
    12 "ibv_create_qp_ex" create_qp_ex = qp::create_qp_ex;
    13 "ibv_create_srq_ex" create_srq_ex = srq::create_srq_ex;
    14 "ibv_create_flow" ibv_create_flow = flow::create_flow;
    15 "ibv_destroy_flow" ibv_destroy_flow = flow::destroy_flow;
    16 "ibv_create_wq" create_wq = wq::create_wq;
    17 "ibv_modify_wq" modify_wq = wq::modify_wq;
    18 "ibv_destroy_wq" destroy_wq = wq::destroy_wq;
    19 "ibv_create_rwq_ind_table" create_rwq_ind_table = wq::create_rwq_ind_table;
    20 "ibv_destroy_rwq_ind_table" destroy_rwq_ind_table = wq::destroy_rwq_ind_table;
    21 "ibv_open_xrcd" open_xrcd = xrc::open_xrcd;
    22 "ibv_close_xrcd" close_xrcd = xrc::close_xrcd;
    23 "ibv_open_qp" open_qp = xrc::open_qp;
    24 "ibv_query_rt_values_ex" query_rt_values = device::query_rt_values;
    25 "ibv_get_srq_num" get_srq_num = srq::get_srq_num;
    26 "ibv_alloc_dm" alloc_dm = device_memory::alloc_dm;
    27 "ibv_free_dm" free_dm = device_memory::free_dm;
    28 "ibv_reg_dm_mr" reg_dm_mr = device_memory::reg_dm_mr;
    29 "ibv_alloc_null_mr" alloc_null_mr = memory::alloc_null_mr;
    30 "ibv_advise_mr" advise_mr = memory::advise_mr;
    31 "ibv_alloc_td" alloc_td = domain::alloc_td;
    32 "ibv_dealloc_td" dealloc_td = domain::dealloc_td;
    33 "ibv_alloc_parent_domain" alloc_parent_domain = domain::alloc_parent_domain;
}

table! { BUILDERS, builder_function, ibv_qp_ex:
    0 "ibv_wr_start" wr_start = qp_ex::start;
    1 "ibv_wr_complete" wr_complete = qp_ex::complete;
    2 "ibv_wr_abort" wr_abort = qp_ex::abort;
    3 "ibv_wr_send" wr_send = qp_ex::send;
    4 "ibv_wr_send_imm" wr_send_imm = qp_ex::send_imm;
    5 "ibv_wr_send_inv" wr_send_inv = qp_ex::send_inv;
    6 "ibv_wr_send_tso" wr_send_tso = qp_ex::send_tso;
    7 "ibv_wr_rdma_write" wr_rdma_write = qp_ex::rdma_write;
    8 "ibv_wr_rdma_write_imm" wr_rdma_write_imm = qp_ex::rdma_write_imm;
    9 "ibv_wr_rdma_read" wr_rdma_read = qp_ex::rdma_read;
    10 "ibv_wr_atomic_cmp_swp" wr_atomic_cmp_swp = qp_ex::atomic_cmp_swp;
    11 "ibv_wr_atomic_fetch_add" wr_atomic_fetch_add = qp_ex::atomic_fetch_add;
    12 "ibv_wr_atomic_write" wr_atomic_write = qp_ex::atomic_write;
    13 "ibv_wr_flush" wr_flush = qp_ex::flush;
    14 "ibv_wr_bind_mw" wr_bind_mw = qp_ex::bind_mw;
    15 "ibv_wr_local_inv" wr_local_inv = qp_ex::local_inv;
    16 "ibv_wr_set_ud_addr" wr_set_ud_addr = qp_ex::set_ud_addr;
    17 "ibv_wr_set_xrc_srqn" wr_set_xrc_srqn = qp_ex::set_xrc_srqn;
    18 "ibv_wr_set_inline_data" wr_set_inline_data = qp_ex::set_inline_data;
    19 "ibv_wr_set_inline_data_list" wr_set_inline_data_list = qp_ex::set_inline_data_list;
    20 "ibv_wr_set_sge" wr_set_sge = qp_ex::set_sge;
    21 "ibv_wr_set_sge_list" wr_set_sge_list = qp_ex::set_sge_list;
}

table! { POLLS, poll_function, ibv_cq_ex:
    0 "ibv_start_poll" start_poll = cq_ex::start_poll;
    1 "ibv_next_poll" next_poll = cq_ex::next_poll;
    2 "ibv_end_poll" end_poll = cq_ex::end_poll;
}

table! { WORK_QUEUES, work_queue_function, ibv_wq:
    0 "ibv_post_wq_recv" post_recv = wq::post_wq_recv;
}

/// Watches what is called through the tables of a new context, if anybody watches.
pub(crate) fn watch_context(context: &mut verbs_context) {
    if is_watched() {
        context.watch();
    }
}

/// Watches the builders of a new queue pair, if anybody watches.
pub(crate) fn watch_builders(pair: &mut ibv_qp_ex) {
    if is_watched() {
        pair.watch();
    }
}

/// Watches the polls of a new completion queue, if anybody watches.
pub(crate) fn watch_polls(queue: &mut ibv_cq_ex) {
    if is_watched() {
        queue.watch();
    }
}

/// Watches the calls of a new work queue, if anybody watches.
pub(crate) fn watch_work_queue(queue: &mut ibv_wq) {
    if is_watched() {
        queue.watch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_stands_once_in_a_table_and_empty_fields_stay_empty() {
        let mut names: Vec<_> = verbs_context::FUNCTIONS
            .iter()
            .chain(ibv_qp_ex::FUNCTIONS)
            .chain(ibv_cq_ex::FUNCTIONS)
            .chain(ibv_wq::FUNCTIONS)
            .map(|(_, name, _)| *name)
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let mut queue = ibv_cq_ex::zeroed();
        queue.end_poll = Some(cq_ex::end_poll);
        queue.watch();
        assert!(queue.start_poll.is_none());
        assert_eq!(queue.end_poll.map(|poll| poll as usize), Some(poll_function::<2> as *const () as usize));
    }
}
