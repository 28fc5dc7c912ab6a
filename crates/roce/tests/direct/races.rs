//! Operations in a target's memory while that is taken back, or while its program uses it, too.

use super::agent::direct;
use super::death::{connect, reach, until};
use super::other::{DIRECT, OPEN, Other, Pair, Tier};
use super::turn;
use adverb_core::conformance::fixture::signalled;
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};

const LENGTH: usize = 64 << 10;

/// Writes without an end while something is taken back. Once it has been, no byte changes any more. Returns
/// how that ended.
fn taken_back(other: &mut Other, revoke: &str, by_pair: bool, delay: usize) -> Status {
    let remote = other.open_region(LENGTH);
    let pair = Pair::open(other);
    pair.memory.set(&[0xFF; LENGTH]);
    pair.reach(other, Opcode::Write, remote.middle());
    let begin = direct(&pair.side);
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            // Zeros, and others, alternately.
            for round in 0.. {
                let sges = [pair.memory.sge(round % 2 * LENGTH, LENGTH - 8192)];
                let request = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(4096)) };
                pair.side.queue_pair.post_send(&request).unwrap();
                let status = pair.side.sent().status;
                if status != Status::Success {
                    return status;
                }
            }
            unreachable!()
        });
        until("nothing is written", || direct(&pair.side) > begin + 5);
        // At another moment of the stream each time.
        (0..delay * 50).for_each(|_| std::hint::spin_loop());
        let mut numbers = vec![if by_pair { pair.index } else { remote.index }];
        let (name, more) = revoke.split_once(' ').unwrap_or((revoke, ""));
        numbers.extend(more.split_whitespace().map(|word| word.parse::<u64>().unwrap()));
        if name == "invalidate" {
            numbers.push(remote.index);
        }
        let numbers: String = numbers.iter().map(|number| format!(" {number}")).collect();
        let changes = other.ask(&format!("{name}{numbers};watch {} 20", remote.index), &[]);
        assert_eq!(changes, [0], "a write has come after {revoke}");
        stream.join().unwrap()
    })
}

#[test]
fn no_byte_changes_once_a_right_has_been_taken_back() {
    let _turn = turn();
    for tier in DIRECT {
        let mut other = Other::of(tier);
        for delay in 0..8 {
            assert_eq!(taken_back(&mut other, "deregister", false, delay), Status::RemoteAccess);
            assert_eq!(taken_back(&mut other, "restrict", false, delay), Status::RemoteAccess);
        }
        for delay in 0..4 {
            assert_eq!(taken_back(&mut other, "invalidate", true, delay), Status::RemoteAccess);
            let permit = format!("permit {}", Access::REMOTE_READ.bits());
            assert_eq!(taken_back(&mut other, &permit, true, delay), Status::RemoteInvalidRequest);
        }
        for gone in ["destroy", "state 6"] {
            assert_eq!(taken_back(&mut other, gone, true, 0), Status::RetryExceeded);
        }
    }
}

/// From here, from a third process by whatever way, and by the target's own processor: none is lost.
#[test]
fn atomics_are_atomic_against_everybody() {
    const TIMES: u64 = 400;
    let _turn = turn();
    for (tier, environment) in [
        (Tier::Mapped, &[][..]),
        (Tier::Mapped, &[("ADVERB_LOCAL", "strict")]),
        (Tier::Mapped, &[("ADVERB_LOCAL", "off")]),
    ] {
        let mut target = Other::of(tier);
        let remote = target.open_region(LENGTH);
        let pair = Pair::open(&mut target);
        pair.reach(&mut target, Opcode::FetchAdd, remote.middle());
        let mut third = Other::start(environment);
        third.ask("domain", &[]);
        let own = third.region(0, 4096, OPEN);
        let [_, its] = connect(&mut target, &mut third);
        if environment.is_empty() {
            reach(&mut target, &mut third, its, &own, Opcode::FetchAdd, remote.middle());
        }
        let offset = 8192;
        let (address, key) = remote.at(offset);
        let how = Opcode::CompareSwap as u64;
        third.say("count", &[its, own.index, how, TIMES, address, key.into()]);
        target.say("add", &[remote.index, offset as u64, 1000 * TIMES]);
        for _ in 0..TIMES {
            assert_eq!(pair.run(Opcode::FetchAdd, 8, (address, key)), Status::Success);
        }
        third.hear();
        target.hear();
        assert_eq!(target.ask("word", &[remote.index, offset as u64]), [1002 * TIMES]);
    }
}
