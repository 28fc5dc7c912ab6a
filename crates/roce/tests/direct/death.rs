//! Processes that end, or stop, in the middle of operations in each other's memory.

use super::agent::direct;
use super::other::{DIRECT, OPEN, Other, Pair, Remote, Tier};
use super::support::StoppedProcess;
use super::turn;
use adverb_core::conformance::fixture::{TEST_TIMEOUT, signalled};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::time::Instant;

const LENGTH: usize = 1 << 20;

/// Waits for something that another process does.
#[track_caller]
pub(crate) fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !happens() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_target_that_is_killed_fails_what_is_under_way() {
    let _turn = turn();
    for tier in DIRECT {
        let mut other = Other::of(tier);
        let remote = other.open_region(LENGTH);
        let pair = Pair::open(&mut other);
        pair.reach(&mut other, Opcode::Write, remote.middle());
        let begin = direct(&pair.side);
        let sges = [pair.memory.sge(0, LENGTH / 4)];
        let request = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(LENGTH / 2)) };
        const DEPTH: usize = 8;
        let statuses = std::thread::scope(|scope| {
            let stream = scope.spawn(|| {
                loop {
                    let posted = (0..DEPTH).map(|_| pair.side.queue_pair.post_send(&request));
                    assert!(posted.collect::<Vec<_>>().iter().all(|posted| posted.is_ok()));
                    let statuses: Vec<_> = (0..DEPTH).map(|_| pair.side.sent().status).collect();
                    if statuses.iter().any(|status| *status != Status::Success) {
                        return statuses;
                    }
                }
            });
            until("nothing is written", || direct(&pair.side) > begin + 20);
            other.kill();
            stream.join().unwrap()
        });
        let well = statuses.iter().take_while(|status| **status == Status::Success).count();
        let (first, rest) = statuses[well..].split_first().unwrap();
        assert_eq!(*first, Status::RetryExceeded);
        assert!(rest.iter().all(|status| *status == Status::Flushed), "{statuses:?}");
    }
}

/// A process that writes to memory of the first without an end, and the memory.
pub(crate) fn writer(target: &mut Other) -> (Other, u64, Remote) {
    let mut writer = Other::of(Tier::Mapped);
    let remote = target.open_region(LENGTH);
    let pair = connect(target, &mut writer);
    let own = writer.region(0, LENGTH, OPEN);
    writer.ask("fill", &[own.index, 7]);
    reach(target, &mut writer, pair[1], &own, Opcode::Write, remote.middle());
    let (address, key) = remote.at(8192);
    let length = LENGTH as u64 - 16_384;
    assert_eq!(writer.ask("stream", &[pair[1], own.index, length, address, key.into()]), [0]);
    until("nothing is written", || target.ask("word", &[remote.index, LENGTH as u64 - 8192 - 24]) != [0]);
    (writer, pair[0], remote)
}

/// A queue pair in each of two processes, connected.
pub(crate) fn connect(first: &mut Other, second: &mut Other) -> [u64; 2] {
    let access = u64::from(Access::REMOTE.bits());
    let (one, two) = (first.ask("pair", &[0, access]), second.ask("pair", &[0, access]));
    first.ask("join", &[one[0], two[1]]);
    second.ask("join", &[two[0], one[1]]);
    [one[0], two[0]]
}

/// Has the second process's requests to the first succeed until they need no packet.
#[track_caller]
pub(crate) fn reach(
    target: &mut Other,
    second: &mut Other,
    pair: u64,
    own: &Remote,
    opcode: Opcode,
    (address, key): (u64, u32),
) {
    let before = second.ask("direct", &[])[0];
    until("all that goes through packets", || {
        target.ask("rest", &[]);
        let answer = second.ask("operate", &[pair, own.index, opcode as u64, 8, address, key.into()]);
        assert_eq!(answer[0], Status::Success as u64);
        answer[1] > before
    });
}

/// The target's program goes on, and so do its other connections.
pub(crate) fn goes_on(target: &mut Other, pair: &Pair, remote: &Remote) {
    let before = direct(&pair.side);
    assert_eq!(pair.run(Opcode::Write, 64, remote.middle()), Status::Success);
    assert_eq!(direct(&pair.side), before + 1);
    target.ask("deregister", &[remote.index]);
    assert_eq!(pair.run(Opcode::Write, 64, remote.middle()), Status::RemoteAccess);
}

#[test]
fn an_initiator_that_is_killed_keeps_nobody() {
    let _turn = turn();
    for tier in DIRECT {
        let mut target = Other::of(tier);
        let (mine, pair) = (target.open_region(LENGTH), Pair::open(&mut target));
        pair.reach(&mut target, Opcode::Write, mine.middle());
        let (mut writer, its_pair, remote) = writer(&mut target);
        writer.kill();
        target.ask("deregister", &[remote.index]);
        assert_eq!(target.ask("watch", &[remote.index, 10]), [0]);
        target.ask("destroy", &[its_pair]);
        goes_on(&mut target, &pair, &mine);
    }
}

/// One that is stopped may be in the middle of an operation for ever: its target does not wait for ever, and
/// what it does when it goes on is lost.
#[test]
fn an_initiator_that_is_stopped_keeps_nobody_for_long() {
    let _turn = turn();
    for tier in DIRECT {
        let mut target = Other::of(tier);
        let (mine, pair) = (target.open_region(LENGTH), Pair::open(&mut target));
        pair.reach(&mut target, Opcode::Write, mine.middle());
        let (writer, _, remote) = writer(&mut target);
        let stopped = StoppedProcess::new(writer.process);
        target.ask("deregister", &[remote.index]);
        let before = target.ask("hash", &[remote.index, 0, LENGTH as u64]);
        drop(stopped);
        assert_eq!(writer.hear(), [Status::RemoteAccess as u64]);
        assert_eq!(target.ask("hash", &[remote.index, 0, LENGTH as u64]), before);
        goes_on(&mut target, &pair, &mine);
    }
}

/// Who checks everything in the process whose memory it is, or writes down what goes by, has packets for all.
#[test]
fn strictness_and_captures_need_packets() {
    let _turn = turn();
    let (strict, capture) = (("ADVERB_LOCAL", "strict"), ("ADVERB_PCAP", "/dev/null"));
    for (target, initiator) in
        [(Some(strict), None), (None, Some(strict)), (Some(capture), None), (None, Some(capture))]
    {
        let (mut target, mut other) = (Other::start(target.as_slice()), Other::start(initiator.as_slice()));
        target.ask("domain", &[]);
        other.ask("domain", &[]);
        let (remote, own) = (target.open_region(LENGTH), other.open_region(4096));
        let [_, pair] = connect(&mut target, &mut other);
        let (address, key) = remote.middle();
        for opcode in [Opcode::Write, Opcode::Read, Opcode::FetchAdd].repeat(20) {
            target.ask("rest", &[]);
            let answer = other.ask("operate", &[pair, own.index, opcode as u64, 8, address, key.into()]);
            assert_eq!(answer, [Status::Success as u64, 0]);
        }
    }
}
