//! Questions and answers of ours in any order: only an answer to our own question, from whom it went to,
//! changes what is known.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::vendor_effect(bytes));
