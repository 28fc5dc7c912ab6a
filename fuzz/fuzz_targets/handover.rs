//! What other processes of the host say: packets handed over, and how two come to share memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    adverb_roce::fuzz::handover(bytes);
    adverb_samehost::fuzz::message(bytes);
});
