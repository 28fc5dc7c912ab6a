//! Processes that end in the middle of operations in each other's memory.

use super::other::{DIRECT, OPEN, Pair, Tier};
use super::turn;
use adverb_core::cm::EventKind;
use adverb_core::conformance::fixture::{TEST_TIMEOUT, signalled};
use adverb_core::request::{Opcode, SendRequest, Status};
use std::time::Instant;

const LENGTH: usize = 1 << 20;

#[test]
fn a_target_that_is_killed_ends_the_connection() {
    let _turn = turn();
    for tier in DIRECT {
        let mut pair = Pair::of(tier);
        let remote = pair.region(LENGTH, OPEN);
        pair.reach(Opcode::Write, remote.middle());
        let begin = pair.direct();
        let (side, other) = (&pair.side, &mut pair.other);
        let sges = [pair.memory.sge(0, LENGTH / 4)];
        let request = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(LENGTH / 2)) };
        let direct = || side.context.device().counters().tx_direct.get();
        let status = std::thread::scope(|scope| {
            let stream = scope.spawn(|| {
                loop {
                    if side.queue_pair.post_send(&request).is_err() {
                        return Status::Flushed;
                    }
                    let status = side.sent().status;
                    if status != Status::Success {
                        return status;
                    }
                }
            });
            let deadline = Instant::now() + TEST_TIMEOUT;
            while direct() <= begin + 20 {
                assert!(Instant::now() < deadline, "nothing is written");
                std::thread::yield_now();
            }
            other.kill();
            stream.join().unwrap()
        });
        assert_eq!(status, Status::Flushed, "{tier:?}");
        side.expect(EventKind::Disconnected);
    }
}

/// What an initiator was at when it ended keeps nobody from taking the memory away.
#[test]
fn an_initiator_that_is_killed_leaves_the_memory_to_its_owner() {
    let _turn = turn();
    let mut pair = Pair::of(Tier::Kernel);
    let theirs = pair.region(LENGTH, OPEN);
    let (address, key) = (pair.memory.address(0), u64::from(pair.memory.region.key()));
    let write = [pair.index, theirs.index, Opcode::Write as u64, 8, address, key];
    let deadline = Instant::now() + TEST_TIMEOUT;
    while pair.other.ask("operate", &write)[1] == 0 {
        assert!(Instant::now() < deadline, "all goes by TCP");
    }
    pair.other.ask("stream", &[pair.index, theirs.index, LENGTH as u64, address, key]);
    pair.other.kill();
    pair.side.expect(EventKind::Disconnected);
    pair.memory.region.deregister();
    let seen = super::agent::bytes(&pair.memory, 0, LENGTH);
    assert_eq!(super::agent::bytes(&pair.memory, 0, LENGTH), seen);
}
