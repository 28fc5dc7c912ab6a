//! The entry points of version IBVERBS_1.0, the ABI of 2007, which differ from the current ones in the
//! structures that they exchange. Programs of that age see no device; everything else of that version is in
//! [`crate::unsupported`].

use core::ffi::{c_int, c_void};

use crate::errno::fail_null;

/// No device: NULL, `ENOSYS`, and a count of zero (`ibv_get_device_list(3)`).
///
/// # Safety
/// `count` is NULL or valid.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut c_void {
    // SAFETY: the caller's promise.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 0;
    }
    fail_null(libc::ENOSYS)
}
