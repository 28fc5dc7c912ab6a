//! Questions of other processes for the other end of an iWARP connection, and their answers: read, and made
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_iwarp::fuzz::question(bytes));
