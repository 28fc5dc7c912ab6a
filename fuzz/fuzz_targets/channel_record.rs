//! Records of a channel between two processes: parts lie within them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::record(bytes));
