//! Operations that are too long for a post: they go on beside whoever has posted them, and end with what they
//! need.

use super::agent::{bytes, direct, hash};
use super::other::{DIRECT, Other, Pair, Remote, Tier};
use super::turn;
use adverb_core::conformance::fixture::{Memory, signalled};
use adverb_core::event::AsyncEventKind;
use adverb_core::qp::{AttributeMask, Attributes, State};
use adverb_core::request::{Opcode, SendRequest, Status};
use std::time::{Duration, Instant};

const LENGTH: usize = 3 << 20;
/// With a page at each edge, which cannot be shared.
const ROOM: usize = LENGTH + (2 << 12);

fn scene(tier: Tier) -> (Other, Remote, Pair, Memory) {
    let mut other = Other::of(tier);
    let remote = other.open_region(ROOM);
    let pair = Pair::open(&mut other);
    pair.reach(&mut other, Opcode::Read, remote.middle());
    let memory = Memory::open(&pair.side.domain, LENGTH);
    (other, remote, pair, memory)
}

fn post(pair: &Pair, wr_id: u64, opcode: Opcode, memory: &Memory, remote: (u64, u32)) {
    let sges = [memory.all()];
    let request = SendRequest { wr_id, opcode, ..signalled(&sges, remote) };
    pair.side.queue_pair.post_send(&request).unwrap();
}

#[test]
fn long_operations_keep_their_order() {
    let _turn = turn();
    for tier in DIRECT {
        let (mut other, remote, pair, memory) = scene(tier);
        let back = Memory::open(&pair.side.domain, LENGTH);
        let sent = hash(&memory.fill(5));
        let before = direct(&pair.side);
        other.ask("receive", &[pair.index]);
        post(&pair, 1, Opcode::Write, &memory, remote.at(4096));
        pair.side.post(2, Opcode::Send, &[], (0, 0));
        post(&pair, 3, Opcode::Read, &back, remote.at(4096));
        pair.side.post(4, Opcode::Write, &[back.sge(0, 8)], remote.at(4096 + LENGTH - 8));
        assert_eq!(other.ask("received", &[pair.index])[0], Status::Success as u64);
        for wr_id in 1..=4 {
            pair.side.sent_well(wr_id);
        }
        assert_eq!(hash(&bytes(&back, 0, LENGTH)), sent);
        let but_the_last = (LENGTH - 8) as u64;
        let found = other.ask("hash", &[remote.index, 4096, but_the_last]);
        assert_eq!(found, [hash(&bytes(&memory, 0, LENGTH - 8))]);
        assert_eq!(direct(&pair.side), before + 3);
    }
}

/// Whether there is a processor beside the one on which a test runs.
fn has_processors() -> bool {
    // SAFETY: a set is plain bits, for which zero is a valid value; its size goes along, and the call fills
    // it.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed), 0);
        libc::CPU_COUNT(&allowed) > 1
    }
}

/// Who computes after a long post has it carried out meanwhile by another thread, if there is a processor for
/// that: when the post returns, it is not done.
#[test]
fn a_thread_that_computes_leaves_long_operations_to_another_thread() {
    const ROUNDS: usize = 300;
    const AWAY: Duration = Duration::from_micros(300);
    let _turn = turn();
    for tier in DIRECT {
        let (_other, remote, pair, memory) = scene(tier);
        // What a post carries out by itself, where nobody helps.
        let (length, before) = (1 << 20, vec![0xff; 1 << 20]);
        let mut left = 0;
        for round in 0..ROUNDS as u64 {
            memory.set(&before);
            let sges = [memory.sge(0, length)];
            let read =
                SendRequest { wr_id: round, opcode: Opcode::Read, ..signalled(&sges, remote.at(4096)) };
            pair.side.queue_pair.post_send(&read).unwrap();
            left += usize::from(bytes(&memory, length - 1, 1) == [0xff]);
            if left > 0 {
                pair.side.sent_well(round);
                break;
            }
            // It computes.
            let begin = Instant::now();
            while begin.elapsed() < AWAY {
                std::hint::spin_loop();
            }
            pair.side.sent_well(round);
        }
        assert_eq!(left > 0, has_processors(), "{tier:?}");
        // A thread that polls at once carries the operation out itself again.
        for round in 0..3 {
            post(&pair, round, Opcode::Write, &memory, remote.at(4096));
            pair.side.sent_well(round);
        }
    }
}

/// A program that sees what the peer wrote about a message finds that message's Send complete. That also
/// holds where the peer writes it behind a long write that goes on beside its poster.
// PRACTICE-ORDER-1
#[test]
fn an_answer_behind_a_long_write_shows_after_the_send_is_complete() {
    const ROUNDS: u64 = 100;
    let _turn = turn();
    let (mut other, remote, pair, memory) = scene(Tier::Mapped);
    let answer = Memory::open(&pair.side.domain, 8);
    let mut early = 0;
    for round in 1..=ROUNDS {
        memory.set(&round.to_ne_bytes());
        answer.set(&round.to_ne_bytes());
        pair.side.post_receive(round, &[]);
        let end = (4096 + LENGTH - 8) as u64;
        other.say("ask", &[pair.index, remote.index, 4096, end, round, std::process::id().into()]);
        let sges = [memory.sge(0, LENGTH - 8)];
        let long = SendRequest { wr_id: 1, opcode: Opcode::Write, ..signalled(&sges, remote.at(4096)) };
        pair.side.queue_pair.post_send(&long).unwrap();
        pair.side.received_well(round);
        pair.side.post(2, Opcode::Write, &[answer.all()], remote.at(end as usize));
        // Without a poll of this process's, which would acknowledge what has come.
        early += 1 - other.hear()[0];
        pair.side.sent_well(1);
        pair.side.sent_well(2);
    }
    assert_eq!(early, 0, "answers of {ROUNDS} that came before");
}

/// What has begun ends in SQD, and then the program is told.
// IB-QP-7
#[test]
fn the_send_queue_drains_in_the_middle_of_one() {
    let _turn = turn();
    let (mut other, remote, pair, memory) = scene(Tier::Mapped);
    let sent = hash(&memory.fill(7));
    pair.side.queue_pair.set_cookie(8);
    let notify = Attributes { sqd_notify: true, ..Attributes::default() };
    for round in 0..20 {
        post(&pair, round, Opcode::Write, &memory, remote.at(4096));
        pair.side.to(State::Sqd, AttributeMask::SQD_NOTIFY, &notify);
        pair.side.raised(AsyncEventKind::SendQueueDrained, 8);
        pair.side.to(State::Rts, AttributeMask::empty(), &Attributes::default());
        pair.side.sent_well(round);
        assert_eq!(other.ask("hash", &[remote.index, 4096, LENGTH as u64]), [sent]);
    }
}

/// What the initiator ends in the middle is over when that returns.
#[test]
fn operations_that_their_initiator_ends_in_the_middle_are_over() {
    let _turn = turn();
    let (mut other, remote, _pair, _) = scene(Tier::Mapped);
    for how in ["error", "reset", "destroy"] {
        let pair = Pair::open(&mut other);
        pair.reach(&mut other, Opcode::Read, remote.middle());
        let memory = Memory::open(&pair.side.domain, LENGTH);
        memory.fill(6);
        (0..4).for_each(|wr_id| post(&pair, wr_id, Opcode::Write, &memory, remote.at(4096)));
        match how {
            "error" => {
                pair.side.to(State::Error, AttributeMask::empty(), &Attributes::default());
                let statuses: Vec<_> = (0..4).map(|_| pair.side.sent().status).collect();
                let is_right = |status: &Status| matches!(status, Status::Success | Status::Flushed);
                assert!(
                    statuses.iter().all(is_right) && statuses.is_sorted_by_key(|status| *status as u8),
                    "{statuses:?}"
                );
            }
            "reset" => pair.side.to(State::Reset, AttributeMask::empty(), &Attributes::default()),
            _ => pair.side.queue_pair.destroy(),
        }
        assert_eq!(other.ask("watch", &[remote.index, 5]), [0], "{how}");
    }
}

/// Memory of the initiator's that is deregistered in the middle is neither read nor written any more.
#[test]
fn memory_that_is_deregistered_in_the_middle_is_left_alone() {
    let _turn = turn();
    let (mut other, remote, _pair, _) = scene(Tier::Mapped);
    for opcode in [Opcode::Write, Opcode::Read] {
        let pair = Pair::open(&mut other);
        pair.reach(&mut other, Opcode::Read, remote.middle());
        let memory = Memory::open(&pair.side.domain, LENGTH);
        memory.set(&vec![1; LENGTH]);
        (0..3).for_each(|wr_id| post(&pair, wr_id, opcode, &memory, remote.at(4096)));
        memory.region.deregister();
        memory.set(&vec![2; LENGTH]);
        let statuses: Vec<_> = (0..3).map(|_| pair.side.sent().status).collect();
        let is_right =
            |status: &Status| matches!(status, Status::Success | Status::LocalProtection | Status::Flushed);
        assert!(statuses.iter().all(is_right), "{opcode:?}: {statuses:?}");
        assert!(
            bytes(&memory, 0, LENGTH).iter().all(|byte| *byte == 2),
            "{opcode:?} into memory that is the program's"
        );
        assert_eq!(other.ask("has", &[remote.index, 2]), [0], "{opcode:?} of memory that is the program's");
    }
}
