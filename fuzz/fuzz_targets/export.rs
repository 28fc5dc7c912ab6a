//! Questions and answers of processes that import what others export.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_core::fuzz::export(bytes));
