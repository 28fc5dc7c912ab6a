//! Unreliable packets to a peer and echoes of marks in any order: only a mark that is outstanding, from whom
//! it went to, makes room.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::mark_effect(bytes));
