//! Posts that need no TCP, beside what has to go by it on the same connection.

use super::other::{OPEN, Pair, Tier};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::sync::atomic::{AtomicBool, Ordering};

/// One thread carries out Writes one after the other. Whoever finds the transmit lock taken by it has left it
/// something to send: answers to the peer.
#[test]
fn the_peer_is_answered_beside_posts_that_need_no_tcp() {
    const TIMES: usize = 2000;
    let _turn = turn();
    let mut pair = Pair::of(Tier::Mapped);
    let remote = pair.region(5 << 12, OPEN);
    let theirs = pair.region(64, OPEN);
    pair.reach(Opcode::Write, remote.middle());
    let (address, key) = (pair.memory.address(1 << 20), u64::from(pair.memory.region.key()));
    // This process has several threads, so its memory is not mapped, and atomic operations there go by TCP.
    let add = [pair.index, theirs.index, Opcode::FetchAdd as u64, 8, address, key];
    let is_over = AtomicBool::new(false);
    let (side, other) = (&pair.side, &mut pair.other);
    let sges = [pair.memory.sge(0, 8)];
    let write = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.middle()) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                side.queue_pair.post_send(&write).unwrap();
                let mut found = 0;
                while found == 0 {
                    side.sends
                        .poll(1, |done| assert_eq!(done.status, Status::Success))
                        .map(|n| found = n)
                        .unwrap();
                }
            }
        });
        for _ in 0..TIMES {
            let answer = other.ask("operate", &add);
            assert_eq!(answer[0], Status::Success as u64);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(super::agent::word(&pair.memory, 1 << 20).load(Ordering::Acquire), TIMES as u64);
}
