//! Two processes that do RDMA with each other: what `demo` and `bench` have in common.

pub(crate) mod child;
pub(crate) mod link;
pub(crate) mod pattern;
pub(crate) mod table;
