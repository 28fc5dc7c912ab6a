//! Shared receive queues (`ibv_create_srq(3)`): no device here has any yet, and each says so (`max_srq` is 0).

use core::ffi::c_int;

use crate::abi::{ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::errno::fail_null;

/// NULL and `EOPNOTSUPP`.
pub extern "C" fn ibv_create_srq(_pd: *mut ibv_pd, _attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    fail_null(libc::EOPNOTSUPP)
}

/// NULL and `EOPNOTSUPP`.
pub(crate) extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    _attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    fail_null(libc::EOPNOTSUPP)
}

/// `EOPNOTSUPP`: there is no queue to change.
pub extern "C" fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    libc::EOPNOTSUPP
}

/// `EOPNOTSUPP`: there is no queue to ask.
pub extern "C" fn ibv_query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    libc::EOPNOTSUPP
}

/// `EOPNOTSUPP`: there is no queue to end.
pub extern "C" fn ibv_destroy_srq(_srq: *mut ibv_srq) -> c_int {
    libc::EOPNOTSUPP
}

/// `EOPNOTSUPP`: there is no queue with a number.
pub(crate) extern "C" fn get_srq_num(_srq: *mut ibv_srq, _number: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}
