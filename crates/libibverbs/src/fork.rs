//! Fork support (`ibv_fork_init(3)`). The engine never pins pages, and children get copies of those that it
//! moves, so nothing is needed to survive a fork.

use core::ffi::{c_int, c_uint, c_void};

use crate::host;

/// `IBV_FORK_UNNEEDED`.
const FORK_UNNEEDED: c_uint = 2;

/// Succeeds, unless the host's library fails.
pub extern "C" fn ibv_fork_init() -> c_int {
    host::fork_init().unwrap_or(0)
}

/// Says that fork support is not needed, unless the host's library says otherwise.
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    host::is_fork_initialized().unwrap_or(FORK_UNNEEDED)
}

/// Succeeds: a child may inherit every page.
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Succeeds: nothing was kept from a child.
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
