//! Operations between two processes of one host in memory of the other's: one-sided ones straight into the
//! target's, and long sends straight from the sender's.

mod agent;
mod areas;
mod common;
mod death;
mod fork;
mod hostile;
mod kernel;
mod long;
mod operations;
mod other;
mod own;
mod peer;
mod races;
mod rights;
mod sends;
#[path = "../support/mod.rs"]
mod support;
mod ways;
mod withheld;

use adverb_core::conformance::agent::{is_agent, serve, turn};

/// Processes of this test are what the others talk to.
#[test]
fn an_agent_answers() {
    if is_agent() {
        return serve(agent::Agent::default);
    }
    let mut other = other::Other::start(&[]);
    assert_eq!(other.ask("domain", &[]), [0]);
    assert_eq!(other.ask("rest;domain;domain", &[]), [2]);
}
