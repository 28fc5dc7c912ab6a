//! The record of connections that a program left which was killed, or is hostile: nobody is told but whom it
//! names, and only an answer says where that lives.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::farewell(bytes));
