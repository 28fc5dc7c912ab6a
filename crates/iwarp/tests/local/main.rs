//! Connections between two processes of one host: one-sided operations need no TCP, where the two may share memory, and all is as it is by TCP.

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

use std::sync::{Mutex, MutexGuard};

/// One test at a time: they look at counters of this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Processes of this test are what the others talk to.
#[test]
fn an_agent_answers() {
    if std::env::var_os(other::AGENT).is_some() {
        return agent::serve();
    }
    let mut other = other::Other::start(&[]);
    assert_eq!(other.ask("rest;rest", &[]), []);
}
