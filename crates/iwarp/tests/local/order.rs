//! Requests keep their order, whichever of them go by TCP.

use super::other::{OPEN, Pair, Tier};
use super::turn;
use adverb_core::conformance::fixture::{TEST_TIMEOUT, signalled};
use adverb_core::request::{Opcode, SendFlags, SendRequest, Status};
use std::sync::atomic::Ordering;
use std::time::Instant;

const ROUNDS: u64 = 20_000;

/// In each round a Write, a message, and a Write behind the message. The number of the round is in each of
/// them.
fn rounds(tier: Tier, toggles: bool, depth: u64) -> u64 {
    let mut pair = Pair::of(tier);
    let remote = pair.region(5 << 12, OPEN);
    let inbox = pair.region(64, OPEN);
    pair.other.ask("expect", &[pair.index, inbox.index]);
    let numbers = [pair.index, remote.index, inbox.index, ROUNDS, toggles.into()];
    pair.other.say("follow", &numbers);
    let before = pair.direct();
    let mut under_way = 0;
    for round in 1..=ROUNDS {
        // Where each round puts its number, until it has gone.
        let place = (round % 64) as usize * 8;
        super::agent::word(&pair.memory, place).store(round, Ordering::Release);
        let sges = [pair.memory.sge(place, 8)];
        let write = |at: usize, flags| SendRequest {
            opcode: Opcode::Write,
            flags,
            ..signalled(&sges, remote.at(at))
        };
        let queue_pair = &pair.side.queue_pair;
        if round == ROUNDS / 2 && tier.is_direct(Opcode::Write) {
            // The ends find each other late where a background thread gets no processor.
            // Half of the rounds come behind that.
            let deadline = Instant::now() + TEST_TIMEOUT;
            while pair.direct() == before && Instant::now() < deadline {
                queue_pair.post_send(&write(0, SendFlags::SIGNALED)).unwrap();
                under_way += 1;
                while under_way > 0 {
                    assert_eq!(pair.side.sent().status, Status::Success);
                    under_way -= 1;
                }
            }
        }
        queue_pair.post_send(&write(0, SendFlags::empty())).unwrap();
        let send = SendRequest { flags: SendFlags::empty(), ..signalled(&sges, (0, 0)) };
        queue_pair.post_send(&send).unwrap();
        queue_pair.post_send(&write(8, SendFlags::SIGNALED)).unwrap();
        under_way += 1;
        while under_way >= depth {
            assert_eq!(pair.side.sent().status, Status::Success);
            under_way -= 1;
        }
    }
    let answer = pair.other.hear();
    assert_eq!(answer[..2], [0, 0], "{tier:?}: messages that came too early, and Writes");
    assert_eq!(answer[2], 1, "the messages have bytes");
    pair.direct() - before
}

// RFC5040-5.5
#[test]
fn messages_and_writes_keep_their_order_when_the_way_changes() {
    let _turn = turn();
    for (tier, toggles) in
        [(Tier::Mapped, false), (Tier::Mapped, true), (Tier::Kernel, true), (Tier::Off, false)]
    {
        for depth in [1, 8] {
            let direct = rounds(tier, toggles, depth);
            let is_some = tier.is_direct(Opcode::Write);
            assert_eq!(direct > 0, is_some, "{tier:?}: {direct} Writes needed no TCP");
            assert!(!is_some || direct < 2 * ROUNDS, "{tier:?}: all Writes, also those at the beginning");
        }
    }
}
