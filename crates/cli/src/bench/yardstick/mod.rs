//! What operations are compared with, measured in the same run.

pub(super) mod event;
pub(super) mod libfabric;
pub(super) mod memory;
pub(super) mod programs;
pub(super) mod tcp;
pub(super) mod twin;
pub(super) mod ucx;
pub(super) mod udp;
