//! The rings of two processes, and garbage in any word of them: nothing panics, hangs, or goes beyond the
//! ring.
#![no_main]

#[path = "../../crates/local/tests/hostile/driver.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| driver::run(input, &mut driver::ReadCount::default()));
