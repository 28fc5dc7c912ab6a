//! The C interface `librdmacm` on top of the access layer's connection manager.
//!
//! The functions here are linked into libibverbs.so.1, so that a process has one engine; the `cdylib` crate
//! beside this one is the `librdmacm.so.1` that leads to them. All have the names, and answer as the manual
//! pages, of rdma_cm(7).

pub mod abi;
mod address;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod qp;
mod retired;
mod route;
mod socket;

pub use connect::*;
pub use device::{rdma_free_devices, rdma_get_devices};
pub use endpoint::*;
pub use event::{rdma_ack_cm_event, rdma_event_str, rdma_get_cm_event};
pub use id::{
    rdma_bind_addr, rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id, rdma_resolve_addr, rdma_resolve_route,
    rdma_set_option,
};
pub use qp::*;
pub use socket::*;
