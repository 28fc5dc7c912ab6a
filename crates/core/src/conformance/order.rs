//! The order in which programs see things, beyond the standards (`specs/practice.md`).

use super::fixture::{Memory, Pair, Shape, Side, Site, TEST_TIMEOUT, signalled};
use crate::cq::CompletionQueue;
use crate::request::{Completion, CompletionOpcode, Opcode, SendFlags, SendRequest, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One end of a conversation: everything of it completes in one queue.
pub struct End<'a> {
    /// The completion queue of all requests of this end.
    pub queue: &'a CompletionQueue,
    /// Posts a receive.
    pub receive: &'a (dyn Fn() + Sync),
    /// Posts a message of which one signalled Send is the last part.
    pub send: &'a (dyn Fn() + Sync),
}

/// After so many polls that find nothing, the polling thread sleeps for a moment. On a busy machine a thread
/// that yields waits for the slices of all others; a thread that wakes runs first.
const POLLS: u32 = 50;
/// How long the polling thread sleeps after [`POLLS`] polls that find nothing.
const MOMENT: Duration = Duration::from_micros(20);

/// The next completion; none if the other thread has failed.
fn next(queue: &CompletionQueue, failed: &AtomicBool) -> Option<Completion> {
    let limit = Instant::now() + TEST_TIMEOUT;
    let (mut found, mut polls) = (None, 0);
    while queue.poll(1, |entry| found = Some(*entry)).unwrap() == 0 {
        assert!(Instant::now() < limit, "a completion does not come");
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        polls += 1;
        if polls % POLLS == 0 {
            std::thread::sleep(MOMENT);
        }
    }
    found
}

/// Tells the others when its thread panics.
struct Tell<'a>(&'a AtomicBool);

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Speaks at one end of a conversation: messages there and back, one after the other. Returns how many times
/// this end has found the other's message before it found that its own, which that one answers, is complete.
/// The end that does not begin has posted a receive.
pub fn speak(end: &End<'_>, begins: bool, rounds: u32) -> u32 {
    speak_until(end, begins, rounds, &AtomicBool::new(false))
}

fn speak_until(end: &End<'_>, begins: bool, rounds: u32, failed: &AtomicBool) -> u32 {
    let _tell = Tell(failed);
    let mut early = 0;
    for round in 0..rounds {
        let is_answered = begins || round > 0;
        if begins {
            (end.receive)();
            (end.send)();
        }
        for step in 0..=u32::from(is_answered) {
            let Some(found) = next(end.queue, failed) else { return early };
            assert_eq!(found.status, Status::Success);
            early += u32::from(is_answered && step == 0 && found.opcode == CompletionOpcode::Receive);
        }
        if !begins {
            if round + 1 < rounds {
                (end.receive)();
            }
            (end.send)();
        }
    }
    if !begins {
        next(end.queue, failed);
    }
    early
}

/// A conversation whose ends are threads of this process. Returns what [`speak`] does, of both ends together.
pub fn converse(ends: [End<'_>; 2], rounds: u32) -> u32 {
    let failed = AtomicBool::new(false);
    let [first, second] = ends;
    (second.receive)();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| speak_until(&second, false, rounds, &failed));
        speak_until(&first, true, rounds, &failed) + other.join().unwrap()
    })
}

/// Two sides that are connected, each with one completion queue.
pub fn pair_with_one_queue_each(site: &Site) -> Pair {
    Pair::shaped(site, Shape { one_queue: true, ..Shape::default() })
}

/// A conversation of messages of so many bytes, each of which comes behind a write of as many if `writes`.
/// Returns what [`converse`] does.
pub fn replies(pair: &Pair, length: usize, writes: bool, rounds: u32) -> u32 {
    let memory = |side: &Side| Memory::open(&side.domain, 3 * length.max(1));
    let (here, there) = (memory(&pair.client), memory(&pair.server));
    fn part(memory: &Memory, index: usize, length: usize) -> [crate::request::Sge; 1] {
        [memory.sge(index * length, length)]
    }
    let receive = |side: &Side, memory: &Memory| side.post_receive(1, &part(memory, 0, length));
    let send = |side: &Side, memory: &Memory, peer: &Memory| {
        let sges = part(memory, 1, length);
        if writes {
            let write = SendRequest {
                opcode: Opcode::Write,
                flags: SendFlags::empty(),
                ..signalled(&sges, (peer.address(2 * length), peer.region.key()))
            };
            side.queue_pair.post_send(&write).unwrap();
        }
        side.post(2, Opcode::Send, &sges, (0, 0));
    };
    let ends = [
        End {
            queue: &pair.client.sends,
            receive: &|| receive(&pair.client, &here),
            send: &|| send(&pair.client, &here, &there),
        },
        End {
            queue: &pair.server.sends,
            receive: &|| receive(&pair.server, &there),
            send: &|| send(&pair.server, &there, &here),
        },
    ];
    converse(ends, rounds)
}

/// A program that sees the peer's reaction to a message has seen before that the message is complete.
// PRACTICE-ORDER-1
pub fn a_send_is_complete_before_its_reply(site: &Site) {
    let pair = pair_with_one_queue_each(site);
    for (length, writes) in [(64, false), (0, false), (1, false), (4096, false), (10_000, false), (64, true)]
    {
        let early = replies(&pair, length, writes, 300);
        assert_eq!(early, 0, "replies of {length} bytes that came before (writes: {writes})");
    }
}

/// How the requests behind a read are posted.
const READ: u64 = 1;
const LATER: u64 = 2;

/// A read brings nothing of later requests, without a fence: of a write to the same bytes, or of an atomic
/// operation on them. It brings nothing either of the target program's stores after that program has received
/// a message posted behind the read. A read that has to be repeated, since its answer was lost or late,
/// brings the bytes of that later time, as it does with adapters: such rounds prove nothing.
// PRACTICE-ORDER-2
pub fn a_read_brings_nothing_of_later_requests(site: &Site) {
    let proofs = reads_before_later_requests(site);
    // Tests beside this one may repeat packets of the same device.
    assert!(proofs.iter().all(|[yes, _]| *yes > 0), "packets were repeated: {proofs:?}");
}

/// A read brings nothing of later requests, in a process where no other test runs: few packets are repeated.
pub fn reads_alone_bring_nothing_of_later_requests(site: &Site) {
    let proofs = reads_before_later_requests(site);
    let (yes, no) = proofs.iter().fold((0, 0), |(yes, no), part| (yes + part[0], no + part[1]));
    assert!(yes > no && proofs.iter().all(|[yes, _]| *yes > 0), "packets were repeated: {proofs:?}");
}

/// Returns for each kind of rounds how many prove something, and how many do not, since packets were
/// repeated.
fn reads_before_later_requests(site: &Site) -> Vec<[u32; 2]> {
    const ROOM: usize = 64 << 10;
    let pair = Pair::connect(site);
    let (from, back) = (Memory::open(&pair.client.domain, ROOM), Memory::open(&pair.client.domain, ROOM));
    let there = Memory::open(&pair.server.domain, ROOM);
    let remote = (there.address(0), there.region.key());
    let counters = pair.client.context.device().counters();
    let repeated = || counters.tx_repeated.get() + counters.duplicates.get();
    let proved = std::cell::Cell::new([0; 2]);
    let mut proofs = Vec::new();
    let since = |before: u64| {
        let (is_repeated, [yes, no]) = (repeated() > before, proved.get());
        proved.set(if is_repeated { [yes, no + 1] } else { [yes + 1, no] });
        is_repeated
    };
    for (length, rounds) in [(1, 300), (8, 100), (4096, 200), (ROOM, 100)] {
        for round in 0..rounds {
            let (old, before) = (there.fill_first(length, 2 * round), repeated());
            let new = from.fill_first(length, 2 * round + 1);
            pair.client.post(READ, Opcode::Read, &[back.sge(0, length)], remote);
            pair.client.post(LATER, Opcode::Write, &[from.sge(0, length)], remote);
            finished(&pair.client);
            let is_repeated = since(before);
            assert!(
                back.first(length) == old || is_repeated,
                "{length} bytes, round {round}: not what was there"
            );
            // A write may complete before it is placed; a read after it sees it.
            pair.client.post(READ, Opcode::Read, &[back.sge(0, length)], remote);
            pair.client.sent_well(READ);
            assert!(back.first(length) == new, "{length} bytes, round {round}: not what was written");
        }
        proofs.push(proved.take());
    }
    for round in 0..100 {
        let (old, before) = (there.fill(round), repeated());
        pair.server.post_receive(round, &[]);
        pair.client.post(READ, Opcode::Read, &[back.all()], remote);
        pair.client.post(LATER, Opcode::Send, &[], (0, 0));
        pair.server.received_well(round);
        there.set(&[]);
        finished(&pair.client);
        let is_repeated = since(before);
        assert!(
            back.bytes() == old || is_repeated,
            "round {round}: what was there after the message had been received"
        );
    }
    proofs.push(proved.take());
    if site.can(&[Opcode::FetchAdd]) {
        for round in 0..100 {
            there.set(&u64::to_ne_bytes(round));
            let before = repeated();
            pair.client.post(READ, Opcode::Read, &[back.sge(0, 8)], remote);
            let sges = [back.sge(8, 8)];
            let add = SendRequest {
                wr_id: LATER,
                opcode: Opcode::FetchAdd,
                compare_add: 1000,
                ..signalled(&sges, remote)
            };
            pair.client.queue_pair.post_send(&add).unwrap();
            pair.client.post(LATER, Opcode::Write, &[from.sge(0, 8)], remote);
            finished(&pair.client);
            pair.client.sent_well(LATER);
            let found = back.first(16);
            let is_repeated = since(before);
            assert!(found[..8] == round.to_ne_bytes() || is_repeated, "round {round}: the read");
            assert_eq!(found[8..16], round.to_ne_bytes(), "round {round}: the atomic operation");
            // As above: the write is placed before the next round begins.
            pair.client.post(READ, Opcode::Read, &[back.sge(0, 8)], remote);
            pair.client.sent_well(READ);
            assert_eq!(back.first(8), from.first(8), "round {round}: the write behind it");
        }
        proofs.push(proved.take());
    }
    proofs
}

/// The read and the requests behind it are complete, in this order where the transport completes in order.
fn finished(side: &Side) {
    let mut done = [side.sent(), side.sent()].map(|done| {
        assert_eq!(done.status, Status::Success);
        done.wr_id
    });
    done.sort_unstable();
    assert_eq!(done, [READ, LATER]);
}
