//! Connections between two processes of one host: one-sided operations need no TCP, where the two may share
//! memory, and all is as it is by TCP.

mod agent;
mod death;
mod doors;
mod messages;
mod operations;
mod order;
mod other;
mod races;
mod refusals;
mod users;

use adverb_core::conformance::agent::{is_agent, serve, turn};

/// Processes of this test are what the others talk to.
#[test]
fn an_agent_answers() {
    if is_agent() {
        return serve(agent::Agent::default);
    }
    let mut other = other::Other::start(&[]);
    assert_eq!(other.ask("rest;rest", &[]), []);
}
