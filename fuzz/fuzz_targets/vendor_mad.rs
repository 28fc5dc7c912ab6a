//! Management datagrams of our own: what is understood is understood the same when it is made again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::vendor_mad(bytes));
