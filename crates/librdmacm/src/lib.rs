//! The C interface `librdmacm` on top of the access layer's connection manager.
//!
//! The functions here are linked into libibverbs.so.1, so that a process has one engine; the `cdylib` crate beside this
//! one is the `librdmacm.so.1` that leads to them.

pub mod abi;
