//! Every operation puts the right bytes into the right places.

use super::agent::{bytes, hash, word};
use super::other::{ALL, OPEN, Pair, Tier};
use super::turn;
use adverb_core::conformance::agent::scribble;
use adverb_core::conformance::fixture::{TEST_TIMEOUT, signalled};
use adverb_core::request::{Opcode, SendRequest, Status};
use std::sync::atomic::Ordering;
use std::time::Instant;

const ROOM: usize = (8 << 20) + (5 << 12);
const SIZES: [usize; 14] =
    [1, 2, 7, 8, 9, 63, 255, 257, 4096, 4097, 65_537, 262_145, 1_048_576, (8 << 20) - 3];

#[test]
fn writes_and_reads_of_every_size() {
    let _turn = turn();
    for tier in ALL {
        let mut pair = Pair::of(tier);
        let remote = pair.region(ROOM, OPEN);
        pair.reach(Opcode::Write, remote.middle());
        pair.reach(Opcode::Read, remote.middle());
        let mut shadow = vec![0; ROOM];
        pair.other.ask("fill", &[remote.index, 7]);
        let expected = pair.other.ask("hash", &[remote.index, 0, ROOM as u64]);
        // All of what is there, by Reads.
        for from in (0..ROOM).step_by(1 << 20) {
            let length = (ROOM - from).min(1 << 20);
            let sges = [pair.memory.sge(0, length)];
            let request = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.at(from)) };
            assert_eq!(pair.observe(&request).0, Status::Success);
            shadow[from..from + length].copy_from_slice(&bytes(&pair.memory, 0, length));
        }
        assert_eq!([hash(&shadow)][..], expected, "{tier:?}");
        for (round, length) in SIZES.into_iter().enumerate() {
            // To an odd place behind the first page, of which the region has only a part.
            let at = 4096 + round * 3;
            let sent = scribble(&pair.memory, round as u64, length);
            let sges = [pair.memory.sge(0, length)];
            let request = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(at)) };
            assert_eq!(
                pair.observe(&request),
                (Status::Success, tier.is_direct(Opcode::Write)),
                "{tier:?}: {length} bytes"
            );
            shadow[at..at + length].copy_from_slice(&sent);
            // Behind it, so that it is there: by TCP a Write is complete when it has left.
            let back = SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.at(at)) };
            scribble(&pair.memory, u64::MAX, length);
            assert_eq!(pair.observe(&back), (Status::Success, tier.is_direct(Opcode::Read)), "{tier:?}");
            assert_eq!(bytes(&pair.memory, 0, length), sent, "{tier:?}: {length} bytes");
            assert_eq!(pair.other.ask("hash", &[remote.index, 0, ROOM as u64]), [hash(&shadow)]);
        }
    }
}

#[test]
fn atomic_operations() {
    let _turn = turn();
    for tier in ALL {
        let mut pair = Pair::of(tier);
        let remote = pair.region(ROOM, OPEN);
        let at = (remote.middle().0 - remote.address).to_owned();
        pair.reach(Opcode::FetchAdd, remote.middle());
        let before = pair.other.ask("word", &[remote.index, at])[0];
        let sges = [pair.memory.sge(0, 8)];
        let add = SendRequest {
            opcode: Opcode::FetchAdd,
            compare_add: 1 << 40,
            ..signalled(&sges, remote.middle())
        };
        assert_eq!(pair.observe(&add), (Status::Success, tier.is_direct(Opcode::FetchAdd)));
        assert_eq!(word(&pair.memory, 0).load(Ordering::Acquire), before);
        for (compare, found) in [(before, before + (1 << 40)), (before + (1 << 40), 99)] {
            let swap = SendRequest { opcode: Opcode::CompareSwap, compare_add: compare, swap: 99, ..add };
            assert_eq!(pair.observe(&swap), (Status::Success, tier.is_direct(Opcode::CompareSwap)));
            assert_eq!(word(&pair.memory, 0).load(Ordering::Acquire), before + (1 << 40));
            assert_eq!(pair.other.ask("word", &[remote.index, at]), [found], "{tier:?}");
        }
    }
}

/// Each side reaches the other's memory: the one that has begun the connection, and the one that has accepted
/// it.
#[test]
fn the_side_that_accepted_reaches_memory_without_tcp_too() {
    let _turn = turn();
    let mut pair = Pair::of(Tier::Kernel);
    let theirs = pair.region(4096, OPEN);
    pair.other.ask("fill", &[theirs.index, 3]);
    let (address, key) = (pair.memory.address(1 << 20), u64::from(pair.memory.region.key()));
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let numbers = [pair.index, theirs.index, Opcode::Write as u64, 4096, address, key];
        let answer = pair.other.ask("operate", &numbers);
        assert_eq!(answer[0], Status::Success as u64);
        if answer[1] > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "all goes by TCP");
    }
    let found = hash(&bytes(&pair.memory, 1 << 20, 4096));
    assert_eq!(pair.other.ask("hash", &[theirs.index, 0, 4096]), [found]);
}

/// Many at a time, of which the program looks at none until they are all posted: long ones go on beside it.
#[test]
fn long_operations_in_a_row() {
    let _turn = turn();
    for tier in ALL {
        let mut pair = Pair::of(tier);
        let remote = pair.region(ROOM, OPEN);
        pair.reach(Opcode::Write, remote.middle());
        let sent = scribble(&pair.memory, 5, 8 << 20);
        for count in 1..=3 {
            const PIECE: usize = 2 << 20;
            for part in 0..4 {
                let sges = [pair.memory.sge(part * PIECE, PIECE)];
                let at = remote.at(4096 * count + part * PIECE);
                let request = SendRequest { opcode: Opcode::Write, ..signalled(&sges, at) };
                pair.side.queue_pair.post_send(&request).unwrap();
            }
            let sges = [pair.memory.sge(8 << 20, 8)];
            let last = SendRequest { wr_id: 9, opcode: Opcode::Read, ..signalled(&sges, remote.at(0)) };
            pair.side.queue_pair.post_send(&last).unwrap();
            (0..4).for_each(|_| assert_eq!(pair.side.sent().status, Status::Success));
            pair.side.sent_well(9);
            let found = pair.other.ask("hash", &[remote.index, 4096 * count as u64, 8 << 20]);
            assert_eq!(found, [hash(&sent)], "{tier:?}");
        }
    }
}
