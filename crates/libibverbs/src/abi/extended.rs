//! The extended interfaces: `ibv_qp_ex`, `ibv_cq_ex` and the attributes that create them.

use core::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp,
    ibv_qp_cap, ibv_rwq_ind_table, ibv_sge, ibv_srq, ibv_xrcd,
};

pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub const IBV_QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
pub const IBV_QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
pub const IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
pub const IBV_QP_EX_WITH_BIND_MW: u64 = 1 << 8;
pub const IBV_QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;
pub const IBV_QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub const IBV_QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

c_struct! {
    /// Receive hash configuration.
    ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
}

c_struct! {
    /// Attributes of a new queue pair, extended.
    ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
}

pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;
pub const IBV_QP_OPEN_ATTR_RESERVED: u32 = 1 << 4;

c_struct! {
    /// Which queue pair is opened.
    ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
}

type Qp = *mut ibv_qp_ex;

c_struct! {
    /// A queue pair with the work request builders. `wr_flush` is the newest member.
    ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qp, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qp, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(Qp, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
        wr_local_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(Qp)>,
        wr_send_imm: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(Qp, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(Qp, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(Qp)>,
        wr_complete: Option<unsafe extern "C" fn(Qp) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(Qp)>,
        wr_atomic_write: Option<unsafe extern "C" fn(Qp, u32, u64, *const c_void)>,
        wr_flush: Option<unsafe extern "C" fn(Qp, u32, u64, usize, u8, u8)>,
    }
}

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;

pub const IBV_WC_EX_WITH_BYTE_LEN: u64 = 1;
pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub const IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2;
pub const IBV_WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub const IBV_WC_EX_WITH_SLID: u64 = 1 << 4;
pub const IBV_WC_EX_WITH_SL: u64 = 1 << 5;
pub const IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;

c_struct! {
    /// Attributes of a new extended completion queue.
    ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
}

c_struct! {
    /// Attributes of `ibv_start_poll`.
    ibv_poll_cq_attr {
        comp_mask: u32,
    }
}

c_struct! {
    /// Tag matching information of a completion.
    ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }
}

pub const IBV_CQ_ATTR_MODERATE: u32 = 1;

/// Completion moderation, the second half of [`ibv_modify_cq_attr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}

c_struct! {
    /// Attributes of `ibv_modify_cq`.
    ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }
}

type Cq = *mut ibv_cq_ex;

c_struct! {
    /// A completion queue that is polled entry by entry. It begins as [`ibv_cq`] does.
    ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(Cq, *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(Cq) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(Cq)>,
        read_opcode: Option<unsafe extern "C" fn(Cq) -> c_uint>,
        read_vendor_err: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(Cq) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_sl: Option<unsafe extern "C" fn(Cq) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(Cq) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(Cq) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(Cq) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(Cq) -> u32>,
        read_tm_info: Option<unsafe extern "C" fn(Cq, *mut ibv_wc_tm_info)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(Cq) -> u64>,
    }
}
