//! What processes of this user and of another one hand over to a process with queue pairs: only a datagram
//! with the right key, from a process of this user, takes a receive, and nothing else changes memory; tables
//! stay small.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::handover_effect(bytes));
