//! The drop-in libibverbs.so.1.
