//! What the other process of an iWARP connection within a host tells through shared memory: read, and made
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_iwarp::fuzz::beside(bytes));
