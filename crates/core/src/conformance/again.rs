//! Tests of a process's decisions that it makes once, such as the way of its packets: each way has a process
//! of its own.

use super::{Site, pair_with_one_queue_each, replies};
use std::process::Command;

/// Says to a process that it is one, and how long its part is.
const ROUNDS: &str = "ADVERB_TEST_ROUNDS";

/// Runs a test of this program, and it alone, in a process with these variables. It must pass there.
pub fn runs_again(test: &str, environment: &[(&str, &str)], rounds: u32) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env_remove("ADVERB_WITHOUT")
        .env(ROUNDS, rounds.to_string())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{environment:?}: {said}");
}

/// In such a process, how long its part is.
pub fn rounds() -> Option<u32> {
    std::env::var(ROUNDS).ok().map(|rounds| rounds.parse().unwrap())
}

/// Messages there and back, as many as such a process is told: each Send is complete before its reply is
/// seen.
pub fn a_long_conversation(site: &Site) {
    if let Some(rounds) = rounds() {
        let pair = pair_with_one_queue_each(site);
        assert_eq!(replies(&pair, 64, false, rounds), 0, "replies that came before");
    }
}
