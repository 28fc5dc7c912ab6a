//! The C interface `libibverbs` on top of the access layer.
//!
//! This crate holds the C structures and the functions; the `cdylib` crate beside it exports them under their
//! versioned names. A function that takes pointers from C trusts them as the manual page of its name says.
//!
//! Nothing happens before the first call: the library may be preloaded into every child of a shell.

pub mod abi;
pub mod address;
pub mod allocator;
pub mod context;
pub mod cq;
mod cq_ex;
pub mod device;
pub mod device_memory;
pub mod domain;
pub mod errno;
pub mod event;
pub mod flow;
pub mod fork;
pub mod grow_list;
pub mod host;
pub mod import;
pub mod legacy;
pub mod marshall;
pub mod memory;
pub mod object;
pub mod port;
mod post;
pub mod qp;
pub mod qp_ex;
pub mod rates;
mod refused;
pub mod seam;
pub mod srq;
pub mod strings;
pub mod sysfs;
pub mod unsupported;
pub mod window;
pub mod wq;
pub mod xrc;

/// The transports of this build, in their default order.
pub const TRANSPORTS: &[adverb_core::transport::TransportFactory] =
    &[adverb_roce::FACTORY, adverb_iwarp::FACTORY];
