//! The list of sockets, in which anybody can write names: for each block of queue pair numbers, a few of its
//! own.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::numbers(bytes));
