//! Every operation puts the right bytes into the right places, in order.

use super::agent::{bytes, direct, hash, word};
use super::death::until;
use super::other::{DIRECT, LOCAL, Other, Pair, Remote, Tier, Way};
use super::turn;
use adverb_core::conformance::agent::scribble;
use adverb_core::conformance::fixture::signalled;
use adverb_core::error::PostError;
use adverb_core::memory::Access;
use adverb_core::request::{Data, Opcode, SendFlags, SendRequest, Sge, Status};
use std::sync::atomic::Ordering;

const ROOM: usize = (1 << 20) + (5 << 12);
const SIZES: [usize; 20] = [
    1, 2, 7, 8, 9, 63, 64, 65, 255, 257, 4095, 4096, 4097, 65_535, 65_537, 262_143, 262_144, 262_145,
    1_048_575, 1_048_576,
];

/// What the other process's memory should hold.
struct Shadow {
    remote: Remote,
    bytes: Vec<u8>,
}

impl Shadow {
    /// The shadow of fresh memory.
    fn new(other: &mut Other) -> Self {
        Self { remote: other.open_region(ROOM), bytes: vec![0; ROOM] }
    }

    /// The bytes from `at` on have been written; the rest, around them at least, is as before.
    #[track_caller]
    fn written(&mut self, other: &mut Other, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.check(other, at.saturating_sub(64), (at + bytes.len() + 64).min(ROOM));
    }

    #[track_caller]
    fn check(&self, other: &mut Other, from: usize, end: usize) {
        let found = other.ask("hash", &[self.remote.index, from as u64, (end - from) as u64]);
        assert_eq!(found, [hash(&self.bytes[from..end])], "{from} to {end}");
    }
}

/// A target, memory of its, and a queue pair that reaches that.
fn scene(tier: Tier) -> (Other, Shadow, Pair) {
    let mut other = Other::of(tier);
    let shadow = Shadow::new(&mut other);
    let pair = Pair::open(&mut other);
    pair.reach(&mut other, Opcode::Read, shadow.remote.middle());
    (other, shadow, pair)
}

/// Carries out a request in the middle of a region, which must go as it should in this tier.
#[track_caller]
fn rightly(tier: Tier, pair: &Pair, request: &SendRequest<'_>) {
    assert_eq!(pair.observe(request), (Status::Success, tier.way(request.opcode)), "{tier:?}: {request:?}");
}

/// As perftest's targets of a bandwidth test do: connected by their only thread, which then waits for
/// something else than the device.
#[test]
fn a_region_of_a_program_that_connects_and_sleeps_is_mapped_for_its_peer() {
    let _turn = turn();
    let mut other = Other::of(Tier::Mapped);
    until("the target's pages are not mapped", || {
        // Of its own: what follows here is a safe moment for the regions before.
        let remote = other.open_region(ROOM);
        let pair = Pair::open(&mut other);
        // The end of the call that connects. A thread of the engine that has no processor just then keeps the
        // pages where they are.
        other.ask("rest", &[]);
        let sges = [pair.memory.sge(0, 8)];
        let write = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.middle()) };
        (0..100).any(|_| {
            let (status, way) = pair.observe(&write);
            assert_eq!(status, Status::Success);
            way == Way::Map
        })
    });
}

/// A queue pair that lets its peer do nothing is no reason to move the regions of its protection domain.
#[test]
fn a_region_that_no_peer_may_reach_is_not_moved() {
    let _turn = turn();
    let mut other = Other::of(Tier::Mapped);
    let is_moved = |other: &Other, remote: Remote| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.process)).unwrap();
        let (middle, _) = remote.middle();
        let holds = |line: &&str| {
            let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [begin, end] = [begin, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            (begin..end).contains(&middle)
        };
        maps.lines().find(holds).unwrap().contains("/memfd:adverb")
    };
    let remote = other.open_region(ROOM);
    let _pair = Pair::new(&mut other, 0, Access::empty());
    other.ask("rest", &[]);
    assert!(!is_moved(&other, remote));
    until("what a peer may reach is not moved either", || {
        let remote = other.open_region(ROOM);
        let _pair = Pair::open(&mut other);
        other.ask("rest", &[]);
        is_moved(&other, remote)
    });
}

#[test]
fn writes_and_reads_of_every_size() {
    let _turn = turn();
    for tier in LOCAL {
        let (mut other, mut shadow, pair) = scene(tier);
        let remote = shadow.remote;
        for (round, length) in SIZES.into_iter().enumerate() {
            // To an odd place behind the first page, of which the region has only a part.
            let (from, at) = (round % 11, 4096 + round * 3);
            let sent = scribble(&pair.memory, round as u64, from + length)[from..].to_vec();
            let (cut, cut2) = (length / 3, length / 2);
            let sges = [
                pair.memory.sge(from, cut),
                pair.memory.sge(from + cut, cut2 - cut),
                pair.memory.sge(0, 0),
                pair.memory.sge(from + cut2, length - cut2),
            ];
            let write = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(at)) };
            rightly(tier, &pair, &write);
            shadow.written(&mut other, at, &sent);

            let before = scribble(&pair.memory, 99, from + length + 64);
            let sges = [pair.memory.sge(from, cut), pair.memory.sge(from + cut, length - cut)];
            rightly(tier, &pair, &SendRequest { opcode: Opcode::Read, ..signalled(&sges, remote.at(at)) });
            assert!(bytes(&pair.memory, from, length) == sent, "a read of {length} bytes");
            let after = bytes(&pair.memory, 0, before.len());
            assert!(after[..from] == before[..from] && after[from + length..] == before[from + length..]);
        }
        shadow.check(&mut other, 0, ROOM);
    }
}

/// The kernel copies all bytes, since there is no page that could be mapped.
#[test]
fn regions_of_less_than_a_page() {
    let _turn = turn();
    for tier in LOCAL {
        for length in [1, 8, 24, 500, 3000] {
            let mut other = Other::of(tier);
            let remote = other.open_region(length);
            let pair = Pair::open(&mut other);
            let sges = [pair.memory.sge(0, length)];
            let write = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(0)) };
            let read = SendRequest { opcode: Opcode::Read, ..write };
            until("it goes another way", || {
                other.ask("rest", &[]);
                let (status, way) = pair.observe(&write);
                assert_eq!(status, Status::Success);
                way == tier.way_at_edges()
            });
            let sent = scribble(&pair.memory, length as u64, length);
            assert_eq!(pair.observe(&write), (Status::Success, tier.way_at_edges()));
            assert_eq!(other.ask("hash", &[remote.index, 0, length as u64]), [hash(&sent)]);
            scribble(&pair.memory, 77, length);
            assert_eq!(pair.observe(&read), (Status::Success, tier.way_at_edges()));
            assert!(bytes(&pair.memory, 0, length) == sent, "{tier:?}: {length} bytes");
        }
    }
}

#[test]
fn inline_data_is_what_it_was_when_it_was_posted() {
    let _turn = turn();
    for tier in LOCAL {
        let (mut other, mut shadow, pair) = scene(tier);
        for length in [1, 8, 33, 64] {
            let data: Vec<u8> = (0..length).map(|byte| byte + 1).collect();
            let (one, two) = data.split_at(data.len() / 3);
            let parts = [one, two];
            let at = 8193 + usize::from(length) * 5;
            let (remote_address, rkey) = shadow.remote.at(at);
            let request = SendRequest {
                opcode: Opcode::Write,
                flags: SendFlags::SIGNALED | SendFlags::INLINE,
                data: Data::Inline(&parts),
                remote_address,
                rkey,
                ..SendRequest::default()
            };
            rightly(tier, &pair, &request);
            shadow.written(&mut other, at, &data);
            // The same at an address, which needs no key.
            let data: Vec<u8> = data.iter().map(|byte| byte ^ 0x80).collect();
            let sges = [Sge { address: data.as_ptr() as u64, length: length.into(), lkey: 0 }];
            rightly(tier, &pair, &SendRequest { data: Data::InlineAt(&sges), ..request });
            shadow.written(&mut other, at, &data);
        }
    }
}

/// Requests of one element are carried out without a place in the queue, as long as nothing else waits there.
#[test]
fn requests_of_one_element_among_others() {
    let _turn = turn();
    for tier in LOCAL {
        let (mut other, mut shadow, pair) = scene(tier);
        let remote = shadow.remote;
        for (round, length) in [1, 7, 8, 9, 255, 256, 257, 4095, 4096, 4097].into_iter().enumerate() {
            let at = 4096 + round * 3;
            let sent = scribble(&pair.memory, round as u64, length);
            let (one, two) =
                ([pair.memory.sge(0, length)], [pair.memory.sge(0, 1), pair.memory.sge(1, length - 1)]);
            let write = SendRequest { opcode: Opcode::Write, ..signalled(&one, remote.at(at)) };
            rightly(tier, &pair, &write);
            shadow.written(&mut other, at, &sent);
            // Unsignalled, of two elements, and the first kind again: only the last one, which follows, is
            // reported.
            let quiet = SendRequest { flags: SendFlags::empty(), ..write };
            for data in [&one[..], &two, &one] {
                let request = SendRequest { data: Data::Registered(data), ..quiet };
                assert!(pair.side.queue_pair.post_send(&request).is_ok());
            }
            rightly(tier, &pair, &write);
            shadow.written(&mut other, at, &sent);
            scribble(&pair.memory, 99, length);
            rightly(tier, &pair, &SendRequest { opcode: Opcode::Read, ..write });
            assert!(bytes(&pair.memory, 0, length) == sent, "{tier:?}: a read of {length} bytes");
            // A list that is longer than the queue meets its end, however fast its requests are done.
            let full: Result<(), PostError> =
                pair.side.queue_pair.post_sends(|batch| (0..1 << 16).try_for_each(|_| batch.post(&quiet)));
            assert_eq!(full, Err(PostError::QueueFull));
            until("the requests are not done", || {
                assert_eq!(pair.side.sends.poll(1, |_| ()).ok(), Some(0));
                pair.side.queue_pair.queues().send.outstanding() == 0
            });
            rightly(tier, &pair, &write);
            // What is taken back has not happened.
            scribble(&pair.memory, 98, length);
            let taken_back: Result<(), PostError> = pair.side.queue_pair.post_sends(|batch| {
                batch.push(&write)?;
                batch.abort();
                Ok(())
            });
            assert_eq!(taken_back, Ok(()));
            shadow.check(&mut other, at, at + length);
        }
        shadow.check(&mut other, 0, ROOM);
    }
}

/// What may not be done ends as it does for a request that has its place.
#[test]
fn a_refused_request_of_one_element_ends_the_queue_pair() {
    let _turn = turn();
    for tier in LOCAL {
        for opcode in [Opcode::Write, Opcode::Read] {
            for (key, status) in [(1 << 8, Status::LocalProtection), (0, Status::RemoteAccess)] {
                let mut other = Other::of(tier);
                let remote = other.open_region(ROOM);
                let pair = Pair::open(&mut other);
                pair.reach(&mut other, opcode, remote.middle());
                let sge = pair.memory.sge(0, 8);
                let sges = [Sge { lkey: sge.lkey ^ key, ..sge }];
                let (address, rkey) = remote.middle();
                // The peer's end of the region, or within it.
                let address = if key == 0 { remote.address + ROOM as u64 - 4 } else { address };
                let request = SendRequest { opcode, ..signalled(&sges, (address, rkey)) };
                assert_eq!(pair.observe(&request).0, status, "{tier:?}: {opcode:?}");
            }
        }
    }
}

/// Only whole pages can be mapped: for what reaches into those at the edges the kernel copies, and it is
/// right, too.
#[test]
fn edges_of_a_region() {
    let _turn = turn();
    for tier in LOCAL {
        let (mut other, mut shadow, pair) = scene(tier);
        let remote = shadow.remote;
        let first = (remote.address.next_multiple_of(4096) - remote.address) as usize;
        let end = ((remote.address + ROOM as u64) / 4096 * 4096 - remote.address) as usize;
        assert!(first > 0 && end < ROOM, "the allocator begins regions at pages");
        for (round, (at, length, is_inside)) in [
            (0, ROOM.min(1 << 20), false),
            (0, 8, false),
            (first - 1, 1, false),
            (first - 1, 2, false),
            (first, 1, true),
            (first, 5000, true),
            (first - 4, 70_000, false),
            (end - 1, 1, true),
            (end - 1, 2, false),
            (end, 1, false),
            (ROOM - 1, 1, false),
            (ROOM - 100_000, 100_000, false),
            (end - 100_000, 100_000, true),
        ]
        .into_iter()
        .enumerate()
        {
            let sent = scribble(&pair.memory, round as u64, length);
            let sges = [pair.memory.sge(0, length)];
            let way = if is_inside { tier.way(Opcode::Write) } else { tier.way_at_edges() };
            let write = SendRequest { opcode: Opcode::Write, ..signalled(&sges, remote.at(at)) };
            assert_eq!(pair.observe(&write), (Status::Success, way), "{tier:?}: {length} bytes at {at}");
            shadow.written(&mut other, at, &sent);
            scribble(&pair.memory, 77, length);
            let read = SendRequest { opcode: Opcode::Read, ..write };
            assert_eq!(pair.observe(&read), (Status::Success, way), "{tier:?}: {length} bytes at {at}");
            assert!(bytes(&pair.memory, 0, length) == sent, "{length} bytes at {at}");
        }
        shadow.check(&mut other, 0, ROOM);
    }
}

#[test]
fn atomics() {
    let _turn = turn();
    for tier in LOCAL {
        let mut other = Other::of(tier);
        let remote = other.open_region(ROOM);
        let pair = Pair::open(&mut other);
        pair.reach(&mut other, Opcode::Read, remote.middle());
        let at = 8192;
        other.ask("put", &[remote.index, at, u64::MAX - 1]);
        let sges = [pair.memory.sge(16, 8)];
        let request = signalled(&sges, remote.at(at as usize));
        let atomic = |opcode, compare_add, swap, expected| {
            word(&pair.memory, 16).store(12345, Ordering::SeqCst);
            rightly(tier, &pair, &SendRequest { opcode, compare_add, swap, ..request });
            assert_eq!(word(&pair.memory, 16).load(Ordering::SeqCst), expected);
        };
        atomic(Opcode::FetchAdd, 5, 0, u64::MAX - 1);
        atomic(Opcode::FetchAdd, u64::MAX, 0, 3);
        atomic(Opcode::CompareSwap, 3, 99, 2);
        atomic(Opcode::CompareSwap, 2, 1 << 63 | 7, 2);
        atomic(Opcode::FetchAdd, 0, 0, 1 << 63 | 7);
        assert_eq!(other.ask("word", &[remote.index, at]), [1 << 63 | 7]);
    }
}

/// Requests that need packets and others, one behind the other without a wait: a message says that all before
/// it is there.
#[test]
fn writes_posted_before_a_message_are_placed_when_the_message_comes() {
    const ROUNDS: u64 = 300;
    const LENGTH: usize = 5000;
    let _turn = turn();
    for tier in DIRECT {
        let mut other = Other::of(tier);
        let remote = other.open_region(ROOM);
        let pair = Pair::open(&mut other);
        pair.reach(&mut other, Opcode::Read, remote.middle());
        let before = direct(&pair.side);
        other.say("follow", &[pair.index, remote.index, ROUNDS, LENGTH as u64]);
        for round in 1..=ROUNDS {
            for at in (0..LENGTH).step_by(8) {
                word(&pair.memory, at).store(round, Ordering::SeqCst);
            }
            // The first begins at the edge: another way for some of them.
            let long = [pair.memory.sge(0, LENGTH)];
            let short = [pair.memory.sge(0, 8)];
            let back = [pair.memory.sge(8192, 8)];
            let at =
                |offset| signalled(if offset == 16_384 { &short[..] } else { &long[..] }, remote.at(offset));
            let post = |wr_id, request: SendRequest<'_>| {
                pair.side.queue_pair.post_send(&SendRequest { wr_id, ..request }).unwrap();
            };
            post(1, SendRequest { opcode: Opcode::Write, ..at(0) });
            post(2, SendRequest { opcode: Opcode::Write, ..at(8192) });
            post(3, SendRequest { opcode: Opcode::Write, ..at(16_384) });
            post(4, SendRequest { opcode: Opcode::Send, ..signalled(&[], (0, 0)) });
            post(5, SendRequest { opcode: Opcode::Write, ..at(24_576) });
            post(6, SendRequest { opcode: Opcode::Read, ..signalled(&back, remote.at(24_576)) });
            for wr_id in 1..=6 {
                pair.side.sent_well(wr_id);
            }
            assert_eq!(word(&pair.memory, 8192).load(Ordering::SeqCst), round);
        }
        assert_eq!(other.hear(), [0], "what was written before a message has come after it");
        assert!(direct(&pair.side) >= before + 3 * ROUNDS, "most of it has gone as packets");
    }
}
