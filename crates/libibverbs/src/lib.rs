//! libibverbs.
