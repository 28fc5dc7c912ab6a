//! A ring of a trace, of which a program can write each word, and may be killed while it does: read, and
//! written in every format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    adverb_watch::fuzz::ring(bytes, |line| {
        matches!(serde_json::from_str(line), Ok(serde_json::Value::Object(_)))
    });
});
