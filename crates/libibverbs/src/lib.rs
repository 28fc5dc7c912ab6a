//! The C interface `libibverbs` on top of the access layer.
//!
//! This crate holds the C structures and the functions; the `cdylib` crate beside it exports them under their versioned
//! names. A function that takes pointers from C trusts them as the manual page of its name says.
//!
//! Nothing happens before the first call: the library may be preloaded into every child of a shell.

pub mod abi;
pub mod errno;
pub mod marshall;
pub mod rates;
pub mod strings;
pub mod sysfs;
pub mod unsupported;
