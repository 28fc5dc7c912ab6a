//! Names of enumeration values (`ibv_node_type_str(3)`, `ibv_event_type_str(3)`, `ibv_wc_status_str(3)`).
//! Programs print them and tests compare them, so the wording is that of rdma-core.

use core::ffi::{CStr, c_char, c_int, c_uint};

/// The entry at `index`, or "unknown".
fn lookup(table: &'static [&'static CStr], index: c_int) -> *const c_char {
    let found = usize::try_from(index).ok().and_then(|index| table.get(index)).copied();
    found.filter(|name| !name.is_empty()).unwrap_or(c"unknown").as_ptr()
}

/// Name of a node type.
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    lookup(NAMES, node_type)
}

/// Name of a port state.
pub extern "C" fn ibv_port_state_str(port_state: c_uint) -> *const c_char {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    lookup(NAMES, port_state as c_int)
}

/// Name of an asynchronous event.
pub extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    lookup(NAMES, event as c_int)
}

/// Name of a completion status.
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    lookup(NAMES, status as c_int)
}

/// Name of a work request opcode.
pub extern "C" fn ibv_wr_opcode_str(opcode: c_uint) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"",
        c"",
        c"flush",
        c"atomic-write",
    ];
    lookup(NAMES, opcode as c_int)
}
