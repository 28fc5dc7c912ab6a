//! What comes to a datagram socket by UDP, from anybody: peers have a bound, and an answer that nobody asked
//! for changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_rsocket::fuzz::datagram(bytes));
