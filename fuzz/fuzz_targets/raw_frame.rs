//! Frames as a raw packet queue pair receives them: headers lie within them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_core::fuzz::raw_frame(bytes));
