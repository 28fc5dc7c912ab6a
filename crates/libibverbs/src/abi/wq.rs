//! Work queues, and tables of them.

use core::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::{ibv_context, ibv_cq, ibv_pd, ibv_recv_wr};

pub const IBV_WQT_RQ: c_uint = 0;
pub const IBV_WQS_RESET: c_uint = 0;
pub const IBV_WQS_RDY: c_uint = 1;
pub const IBV_WQS_ERR: c_uint = 2;
pub const IBV_WQ_INIT_ATTR_FLAGS: u32 = 1;
pub const IBV_WQ_ATTR_STATE: u32 = 1;
pub const IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;
pub const IBV_WQ_ATTR_FLAGS: u32 = 1 << 2;
pub const IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1;

c_struct! {
    /// Attributes of a new work queue.
    ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }
}

c_struct! {
    /// A change of a work queue.
    ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }
}

c_struct! {
    /// A work queue.
    ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
}

c_struct! {
    /// Attributes of a new table of work queues.
    ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
}

c_struct! {
    /// A table of work queues.
    ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
}
