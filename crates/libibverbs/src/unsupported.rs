//! Exports that exist so that programs and other libraries load, for things that no device here has.
//!
//! Each of the shapes says "not supported" as the manual pages do for its return type. One function serves
//! all names of one shape: the arguments are never looked at.

use core::ffi::{c_int, c_void};

use crate::errno::set_errno;

/// `EOPNOTSUPP` as the return value.
pub extern "C" fn error_number() -> c_int {
    libc::EOPNOTSUPP
}

/// -1 with `errno` set to `EOPNOTSUPP`.
pub extern "C" fn minus_one() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// NULL with `errno` set to `EOPNOTSUPP`.
pub extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// A function that does nothing at all.
pub extern "C" fn nothing() {}

/// Zero: no capability, no bit set.
pub extern "C" fn zero() -> c_int {
    0
}
