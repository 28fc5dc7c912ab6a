//! The page of counters of another process, and the lines there: plain text of bounded length, and each
//! device once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_core::fuzz::counter_page(bytes));
