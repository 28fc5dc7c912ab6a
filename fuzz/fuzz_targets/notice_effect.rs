//! Word of others where a service lives, to a process that has asked for connections: a request goes to the
//! port in a notice that knows its transaction and its name and comes from its receiver, and nothing else is
//! sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::notice_effect(bytes));
