//! A peer that stops talking costs bounded time: each wait for it ends by itself. The table in
//! ARCHITECTURE.md has the waits.

use crate::host::{DEPTHS, Host, Target};
use crate::peer::{PLAIN, TEST_TIMEOUT};
use adverb_core::cm::ConnectionEvent;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, Status};
use std::io::Write;
use std::net::TcpListener;
use std::time::Instant;

// RFC5042-6.4.1-1
#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let host = Host::new();
    // The system takes the connection, and nobody answers the request.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = host.connect(listener.local_addr().unwrap(), DEPTHS);
    let event = connection.event();
    assert!(
        matches!(event, ConnectionEvent::Unreachable { status } if status == -libc::ETIMEDOUT),
        "{event:?}"
    );
}

#[test]
fn a_peer_that_reads_nothing_does_not_keep_a_disconnect() {
    const SENDS: usize = 8;
    const LENGTH: usize = 4 << 20;
    let host = Host::new();
    let (connection, peer) = host.active(&PLAIN);
    let memory = host.region(LENGTH, Access::empty());
    for wr_id in 0..SENDS as u64 {
        connection.post(wr_id, Opcode::Send, &Target::default(), &[memory.sge(0, LENGTH)]);
    }
    connection.handle.disconnect().unwrap();
    connection.ended();
    let ends: [(u64, Status); SENDS] = host.completions();
    assert_eq!(ends[SENDS - 1], (SENDS as u64 - 1, Status::Flushed), "the socket has no room for so much");
    drop(peer);
}

#[test]
fn a_peer_that_does_not_close_its_end_does_not_keep_the_connection() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    connection.handle.disconnect().unwrap();
    connection.ended();
    peer.end();
    // What the peer sends is read and thrown away, until the rest of the connection is closed, too.
    peer.stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while peer.stream.write(b"more").is_ok() {
        assert!(Instant::now() < deadline, "the connection is kept for ever");
        std::thread::yield_now();
    }
}
