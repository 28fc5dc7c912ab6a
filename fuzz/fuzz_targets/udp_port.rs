//! What other processes say to the one that holds UDP port 4791, or is one of the others, in any order:
//! members and wishes are as they say, each for itself, and the socket leaves the groups that nobody is in.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_roce::fuzz::udp_port(bytes));
