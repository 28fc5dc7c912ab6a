//! What a process says of its objects, to `adverb top` and `rdma resource` of its user or of root: plain
//! text, and no more of it than has come.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_core::fuzz::objects(bytes));
