//! The doors by which processes find the other ends of their connections.

use super::agent::all;
use super::other::{OPEN, Other, Pair, Tier};
use super::turn;
use adverb_core::request::Opcode;
use adverb_core::seqpacket::{Connection, Listener, name};
use std::time::Instant;

/// Somebody else holds the name of the address.
#[test]
fn a_name_that_is_taken_keeps_nobody_apart() {
    let _turn = turn();
    let mut other = Other::start(&[]);
    let port = other.ask("accept", &[all()])[0] as u16;
    let _taken = Listener::bind(&name(&format!("iwarp/127.0.0.1/{port}"))).unwrap();
    let mut pair = Pair::at(other, port, Tier::Kernel);
    let remote = pair.region(5 << 12, OPEN);
    pair.reach(Opcode::Write, remote.middle());
}

/// Who asks for what is not there is told so, and who says what nobody understands does no harm.
#[test]
fn questions_that_lead_nowhere() {
    let _turn = turn();
    let mut other = Other::start(&[]);
    let port = other.ask("accept", &[all()])[0] as u16;
    let mut pair = Pair::at(other, port, Tier::Kernel);
    let asks = Connection::open(&name(&format!("iwarp/127.0.0.1/{port}"))).unwrap();
    for garbage in [&[1u8][..], &[1; 47], &[1; 49], &[2; 12], &[0; 33], &[9; 200]] {
        asks.send(&[garbage]).unwrap();
    }
    asks.send(&[&[1; 48]]).unwrap();
    let mut buffer = [7; 64];
    let deadline = Instant::now() + adverb_core::conformance::fixture::TEST_TIMEOUT;
    let answer = loop {
        match asks.receive(&mut buffer) {
            Ok(answer) => break answer,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EAGAIN)),
        }
        assert!(Instant::now() < deadline, "no answer");
        std::thread::yield_now();
    };
    assert_eq!(answer, [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "such a connection is not there");
    let remote = pair.region(5 << 12, OPEN);
    pair.reach(Opcode::Write, remote.middle());
}
