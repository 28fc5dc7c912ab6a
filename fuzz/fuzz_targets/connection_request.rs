//! Requests for connections and what comes back: what a program is told of them is its part of the private
//! data, and numbers that fit.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::connection_request(bytes));
