//! In which order things are seen, with checksums and without, by TCP alone and with operations that need
//! none: thousands of messages there and back, and reads with writes behind them. The way is decided once in
//! a process, so each has one of its own.

use adverb_core::conformance::{self, Site, a_long_conversation, rounds, runs_again};
use adverb_core::transport::TransportFactory;

/// Messages there and back before each change. A mistake of the order that programs have met showed in one of
/// a hundred.
const SOME: u32 = 10_000;
/// Messages there and back in the night, when [`LONG`] is set.
const MANY: u32 = 100_000;
const LONG: &str = "ADVERB_TEST_LONG";

fn site() -> Site {
    const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_iwarp::FACTORY }];
    Site::new(|| adverb_core::engine::install(TRANSPORTS), "iwarp0", "127.0.0.1")
}

/// Runs a test of this name in a process with checksums, and in one without; all of it by TCP, where another
/// way is not `also`.
fn on_both_ways(test: &str, also: Option<&str>) {
    let rounds = if std::env::var_os(LONG).is_some() { MANY } else { SOME };
    for local in ["off"].into_iter().chain(also) {
        for checksums in ["off", "on"] {
            runs_again(test, &[("ADVERB_CRC", checksums), ("ADVERB_LOCAL", local)], rounds);
        }
    }
}

#[test]
fn conversation() {
    a_long_conversation(&site());
}

#[test]
fn conversations_of_all_kinds() {
    if rounds().is_some() {
        conformance::a_send_is_complete_before_its_reply(&site());
    }
}

#[test]
fn reads() {
    if rounds().is_some() {
        conformance::reads_alone_bring_nothing_of_later_requests(&site());
    }
}

// PRACTICE-ORDER-1
#[test]
fn a_send_is_complete_before_its_reply() {
    if rounds().is_none() {
        on_both_ways("conversation", Some("auto"));
        on_both_ways("conversations_of_all_kinds", Some("auto"));
    }
}

// PRACTICE-ORDER-2
#[test]
fn a_read_brings_nothing_of_later_requests() {
    if rounds().is_none() {
        on_both_ways("reads", Some("auto"));
    }
}
