//! In which order things are seen, with checksums and without: 100,000 messages there and back, and reads with writes behind them. Whether there are
//! checksums is decided once in a process, so each way has one of its own.

use adverb_core::conformance::{Site, pair_with_one_queue_each, replies};
use adverb_core::transport::TransportFactory;
use std::process::Command;

/// Says to a child that it is one.
const CHILD: &str = "ADVERB_TEST_ORDER";
const ROUNDS: u32 = 100_000;

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_iwarp::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "iwarp0", "127.0.0.1")
}

/// Runs a test of this name in a process with checksums, and in one without.
fn on_both_ways(test: &str) {
    for checksums in ["off", "on"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .env("ADVERB_CRC", checksums)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "checksums {checksums}: {said}");
    }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

#[test]
fn conversation() {
    if is_child() {
        let pair = pair_with_one_queue_each(&site());
        assert_eq!(replies(&pair, 64, false, ROUNDS), 0, "replies that came before");
    }
}

#[test]
fn conversations_of_all_kinds() {
    if is_child() {
        adverb_core::conformance::a_send_is_complete_before_its_reply(&site());
    }
}

#[test]
fn reads() {
    if is_child() {
        adverb_core::conformance::a_read_brings_nothing_of_later_requests(&site());
    }
}

// PRACTICE-ORDER-1
#[test]
fn a_send_is_complete_before_its_reply() {
    if !is_child() {
        on_both_ways("conversation");
        on_both_ways("conversations_of_all_kinds");
    }
}

// PRACTICE-ORDER-2
#[test]
fn a_read_brings_nothing_of_later_requests() {
    if !is_child() {
        on_both_ways("reads");
    }
}
