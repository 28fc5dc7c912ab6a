//! A peer's frames to a queue pair with keys and memory, and reads and atomics under way both ways: a model
//! says which bytes each frame changes, what completes and what is answered, and everything else stays.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_iwarp::fuzz::effect(bytes));
