//! The table of another process, and requests for its memory: they stay within it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_samehost::fuzz::table(bytes));
