//! Writes, reads, atomics, and the protection of memory. The target's program never calls the library.

use super::fixture::{Memory, Pair, Shape, Site, TEST_TIMEOUT, signalled};
use crate::attributes::TransportType;
use crate::memory::Access;
use crate::qp::{AttributeMask, Attributes};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::{CompletionOpcode, Opcode, SendFlags, SendRequest, Sge, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const SIZES: [usize; 11] = [0, 1, 3, 8, 64, 1459, 1460, 4096, 10_001, 65_536, 70_000];

/// Writes from two elements to odd places; the bytes around stay.
// IB-RC-REQ-11, IB-RC-RSP-34
pub fn writes_of_every_size(site: &Site) {
    const ROOM: usize = 70_016;
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, ROOM), Memory::open(&pair.server.domain, ROOM));
    let bytes = from.fill(1);
    for (round, length) in SIZES.into_iter().enumerate() {
        let before = to.fill(round as u64 + 100);
        let (cut, at) = (length / 3, 1 + round % 7);
        let sges = [from.sge(0, cut), from.sge(cut, length - cut)];
        pair.client.post(round as u64, Opcode::Write, &sges, (to.address(at), to.region.key()));
        assert_eq!(pair.client.sent_well(round as u64).opcode, CompletionOpcode::Write);
        // A write may complete before it is placed; a read after it sees it.
        let probe = Memory::open(&pair.client.domain, 1);
        pair.client.post(99, Opcode::Read, &[probe.all()], (to.address(0), to.region.key()));
        pair.client.sent_well(99);
        let found = to.bytes();
        assert_eq!(found[at..at + length], bytes[..length], "{length} bytes");
        assert_eq!((&found[..at], &found[at + length..]), (&before[..at], &before[at + length..]));
    }
    // Nothing is written without a key, too.
    pair.client.post(1, Opcode::Write, &[], (0, 0));
    pair.client.sent_well(1);
}

/// Reads from odd places, to two elements where the device can.
// IB-RC-REQ-30, IB-RC-RSP-52
pub fn reads_of_every_size(site: &Site) {
    const ROOM: usize = 70_016;
    let pair = Pair::connect(site);
    let (here, there) = (Memory::open(&pair.client.domain, ROOM), Memory::open(&pair.server.domain, ROOM));
    let bytes = there.fill(2);
    let elements = pair.client.context.attributes().max_sge_rd.min(2);
    for (round, length) in SIZES.into_iter().enumerate() {
        let before = here.fill(round as u64 + 200);
        let (cut, at) = (if elements == 2 { length / 3 } else { length }, 1 + round % 7);
        let sges = [here.sge(0, cut), here.sge(cut, length - cut)];
        let sges = &sges[..elements as usize];
        pair.client.post(round as u64, Opcode::Read, sges, (there.address(at), there.region.key()));
        let done = pair.client.sent_well(round as u64);
        assert_eq!((done.opcode, done.byte_length as usize), (CompletionOpcode::Read, length));
        let found = here.bytes();
        assert_eq!(found[..length], bytes[at..at + length], "{length} bytes");
        assert_eq!(found[length..], before[length..]);
    }
}

/// Several MiB by every operation, both directions at once.
pub fn long_messages(site: &Site) {
    const LENGTH: usize = (3 << 20) + 5;
    let pair = Pair::connect(site);
    std::thread::scope(|scope| {
        for (own, peer) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
            let source = Memory::open(&own.domain, LENGTH);
            let targets: Vec<Memory> = (0..2).map(|_| Memory::open(&peer.domain, LENGTH)).collect();
            let back = Memory::open(&own.domain, LENGTH);
            peer.post_receive(1, &[targets[0].all()]);
            scope.spawn(move || {
                let bytes = source.fill(3);
                let remote = (targets[1].address(0), targets[1].region.key());
                own.post(1, Opcode::Send, &[source.all()], (0, 0));
                own.post(2, Opcode::Write, &[source.all()], remote);
                own.post(3, Opcode::Read, &[back.all()], remote);
                for wr_id in 1..=3 {
                    own.sent_well(wr_id);
                }
                assert_eq!(peer.received_well(1).byte_length as usize, LENGTH);
                assert!(targets[0].bytes() == bytes, "the message differs");
                assert!(targets[1].bytes() == bytes, "what was written differs");
                assert!(back.bytes() == bytes, "what was read back differs");
            });
        }
    });
}

/// A program that receives a message finds all bytes that were written before it.
// IB-RC-RSP-32, IB-RC-RSP-37
pub fn a_message_comes_after_the_writes_before_it(site: &Site) {
    const LENGTH: usize = 30_000;
    let pair = Pair::connect(site);
    let (from, to) = (Memory::open(&pair.client.domain, LENGTH), Memory::open(&pair.server.domain, LENGTH));
    for round in 0..20 {
        let bytes = from.fill(round);
        pair.server.post_receive(round, &[]);
        let sges = [from.all()];
        let write = SendRequest {
            opcode: Opcode::Write,
            flags: SendFlags::empty(),
            ..signalled(&sges, (to.address(0), to.region.key()))
        };
        pair.client.queue_pair.post_send(&write).unwrap();
        pair.client.post(round, Opcode::Send, &[], (0, 0));
        pair.server.received_well(round);
        assert!(to.bytes() == bytes, "round {round}");
        pair.client.sent_well(round);
    }
}

/// A fenced request begins when the reads before it are complete.
// IB-RC-REQ-15
pub fn a_fence_waits_for_reads(site: &Site) {
    const LENGTH: usize = 9000;
    let pair = Pair::connect(site);
    let here = Memory::open(&pair.client.domain, LENGTH);
    let (source, target) =
        (Memory::open(&pair.server.domain, LENGTH), Memory::open(&pair.server.domain, LENGTH));
    for round in 0..20 {
        let bytes = source.fill(round + 1);
        here.set(&[]);
        pair.server.post_receive(round, &[target.all()]);
        pair.client.post(1, Opcode::Read, &[here.all()], (source.address(0), source.region.key()));
        let sges = [here.all()];
        let send = SendRequest {
            wr_id: 2,
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
            ..signalled(&sges, (0, 0))
        };
        pair.client.queue_pair.post_send(&send).unwrap();
        pair.server.received_well(round);
        assert!(target.bytes() == bytes, "round {round}");
        pair.client.sent_well(1);
        pair.client.sent_well(2);
    }
}

/// Every way to ask for memory that is not granted. `access` has the right that the request would need.
// IB-RC-RSP-21, IB-RC-RSP-31
fn refused(site: &Site, opcode: Opcode, access: Access) {
    const LENGTH: usize = 256;
    for case in [
        "wrong key",
        "guessed key",
        "before",
        "behind",
        "far",
        "wrap",
        "rights",
        "domain",
        "gone",
        "queue pair",
    ] {
        let pair = Pair::connect(site);
        let (client, server) = (&pair.client, &pair.server);
        let here = Memory::open(&client.domain, LENGTH);
        let mine = here.fill(1);
        let other_domain = ProtectionDomain::new(&server.context).unwrap();
        // A neighbour that must not be reached through the region's key.
        let domain = if case == "domain" { &other_domain } else { &server.domain };
        let impossible = Access::ZERO_BASED | Access::FLUSH_PERSISTENT;
        let rights = if case == "rights" { Access::all() & !access & !impossible } else { access };
        let there = Memory::new(domain, LENGTH, rights | Access::LOCAL_WRITE);
        let theirs = there.fill(2);
        let (mut address, mut key) = (there.address(0), there.region.key());
        let mut length = LENGTH;
        match case {
            "wrong key" => key ^= 1 << 31,
            "guessed key" => key = key.wrapping_add(0x100),
            "before" => address -= 1,
            "behind" => address += 1,
            "far" => (address, length) = (address + LENGTH as u64, 1),
            "wrap" => address = u64::MAX - 8,
            "gone" => there.region.deregister(),
            "queue pair" => {
                let none = Attributes { access: Access::LOCAL_WRITE.bits(), ..Attributes::default() };
                server.queue_pair.modify(&none, AttributeMask::ACCESS_FLAGS).unwrap();
            }
            _ => {}
        }
        client.post(1, opcode, &[here.sge(0, length)], (address, key));
        let done = client.sent();
        let acceptable = done.status != Status::Success
            || opcode == Opcode::Write && client.context.attributes().transport == TransportType::Iwarp;
        assert!(acceptable && done.wr_id == 1, "{case}: {done:?}");
        pair.ended();
        assert_eq!(there.bytes(), theirs, "{case}: the target was touched");
        assert_eq!(here.bytes(), mine, "{case}: the initiator's memory was touched");
        client.post(2, Opcode::Send, &[], (0, 0));
        let flushed = client.sent();
        assert_eq!((flushed.wr_id, flushed.status), (2, Status::Flushed), "{case}");
    }
}

/// Writes that are not granted break the connection and touch nothing.
// IB-RC-RSP-19, IB-RC-RSP-25
pub fn refused_writes_touch_nothing(site: &Site) {
    refused(site, Opcode::Write, Access::REMOTE_WRITE);
}

/// Reads that are not granted break the connection and bring nothing.
pub fn refused_reads_touch_nothing(site: &Site) {
    refused(site, Opcode::Read, Access::REMOTE_READ);
}

/// Fetch-and-add from two peers at once on one counter, and compare-and-swap.
// IB-RC-REQ-32, IB-RC-RSP-41, IB-RC-RSP-42
pub fn atomics(site: &Site) {
    const ROUNDS: u64 = 200;
    if !site.open().attributes().atomics || !site.can(&[Opcode::FetchAdd, Opcode::CompareSwap]) {
        return;
    }
    let pairs = [Pair::connect(site), Pair::connect(site)];
    let counter = Memory::open(&pairs[0].server.domain, 8);
    // The same word under a key of the other server's protection domain.
    let again = counter.share(&pairs[1].server.domain);
    let keys = [counter.region.key(), again.key()];
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .iter()
            .zip(keys)
            .map(|(pair, key)| {
                let address = counter.address(0);
                scope.spawn(move || {
                    let result = Memory::open(&pair.client.domain, 8);
                    let sges = [result.all()];
                    let add = |wr_id| {
                        let add = SendRequest {
                            wr_id,
                            opcode: Opcode::FetchAdd,
                            compare_add: 3,
                            ..signalled(&sges, (address, key))
                        };
                        pair.client.queue_pair.post_send(&add).unwrap();
                        assert_eq!(pair.client.sent_well(wr_id).opcode, CompletionOpcode::FetchAdd);
                        u64::from_ne_bytes(result.bytes().try_into().unwrap())
                    };
                    (0..ROUNDS).map(add).collect::<Vec<u64>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq((0..2 * ROUNDS).map(|n| 3 * n)), "additions were lost");
    let [pair, _] = &pairs;
    let result = Memory::open(&pair.client.domain, 8);
    let sges = [result.all()];
    let total = 6 * ROUNDS;
    for (compare, swap, before) in [(1, 5, total), (total, 5, total), (5, 6, 5)] {
        let exchange = SendRequest {
            wr_id: 1,
            opcode: Opcode::CompareSwap,
            compare_add: compare,
            swap,
            ..signalled(&sges, (counter.address(0), counter.region.key()))
        };
        pair.client.queue_pair.post_send(&exchange).unwrap();
        assert_eq!(pair.client.sent_well(1).opcode, CompletionOpcode::CompareSwap);
        assert_eq!(result.bytes(), u64::to_ne_bytes(before));
    }
    assert_eq!(counter.bytes(), 6u64.to_ne_bytes());
    // An address that is not aligned is refused.
    let counter = Memory::open(&pair.server.domain, 16);
    let add = SendRequest {
        opcode: Opcode::FetchAdd,
        compare_add: 1,
        ..signalled(&sges, (counter.address(4), counter.region.key()))
    };
    pair.client.queue_pair.post_send(&add).unwrap();
    assert_ne!(pair.client.sent().status, Status::Success);
    pair.ended();
    assert_eq!(counter.bytes(), [0; 16]);
}

/// Eight bytes written in one piece, and other data in their place.
// IB-RC-RSP-47
pub fn atomic_writes(site: &Site) {
    if !site.can(&[Opcode::AtomicWrite]) {
        return;
    }
    let write = |pair: &Pair, target: &Memory, offset: usize, source: &[Sge]| {
        let to = (target.address(offset), target.region.key());
        pair.client.post(1, Opcode::AtomicWrite, source, to);
        pair.client.sent().status
    };
    for (offset, length, expected) in [
        (8, 8, Status::Success),
        (4, 8, Status::RemoteInvalidRequest),
        (16, 8, Status::RemoteAccess),
        (0, 4, Status::LocalLength),
    ] {
        let pair = Pair::connect(site);
        let (source, target) = (Memory::open(&pair.client.domain, 8), Memory::open(&pair.server.domain, 16));
        source.set(b"in piece");
        assert_eq!(
            write(&pair, &target, offset, &[source.sge(0, length)]),
            expected,
            "{length} bytes at {offset}"
        );
        let written = if expected == Status::Success { *b"in piece" } else { [0; 8] };
        assert_eq!(target.bytes(), [[0; 8], written].concat());
    }
}

/// Flushes of a range and of a whole region. A flush that the region or the queue pair does not permit is
/// refused.
// IB-RC-RSP-46
pub fn flushes(site: &Site) {
    const LENGTH: u64 = 64;
    if !site.can(&[Opcode::Flush]) {
        return;
    }
    let granted = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    let flush = |pair: &Pair, target: &Memory, offset: usize, length: u64, kind: u64| {
        let request = SendRequest {
            opcode: Opcode::Flush,
            compare_add: length,
            swap: kind,
            ..signalled(&[], (target.address(0) + offset as u64, target.region.key()))
        };
        pair.client.queue_pair.post_send(&request).unwrap();
        pair.client.sent().status
    };
    let permitting = || {
        let pair = Pair::connect(site);
        let attributes = Attributes { access: granted.bits(), ..Attributes::default() };
        pair.server.queue_pair.modify(&attributes, AttributeMask::ACCESS_FLAGS).unwrap();
        let target = Memory::new(&pair.server.domain, LENGTH as usize, granted);
        (pair, target)
    };
    let (pair, target) = permitting();
    assert_eq!(flush(&pair, &target, 8, LENGTH - 8, 1), Status::Success);
    // From bit 8 on: the whole region, also if the request names a range.
    assert_eq!(flush(&pair, &target, 1 << 20, u32::MAX.into(), 1 | 1 << 8), Status::Success);
    for (length, kind, expected) in [
        (LENGTH + 1, 1, Status::RemoteAccess),
        (LENGTH, 2, Status::RemoteAccess),
        (LENGTH, 3, Status::RemoteAccess),
        (LENGTH, 3 | 1 << 8, Status::RemoteAccess),
        (1 << 32, 1, Status::LocalLength),
        (LENGTH, 0, Status::LocalQpOperation),
        (LENGTH, 5, Status::LocalQpOperation),
        (LENGTH, 1 | 2 << 8, Status::LocalQpOperation),
    ] {
        let (pair, target) = permitting();
        assert_eq!(flush(&pair, &target, 0, length, kind), expected, "{length} bytes, {kind:#x}");
    }
    let (pair, _) = permitting();
    let closed = Memory::open(&pair.server.domain, 8);
    assert_eq!(flush(&pair, &closed, 0, 8, 1), Status::RemoteAccess);
    let pair = Pair::connect(site);
    let target = Memory::new(&pair.server.domain, 8, granted);
    assert_eq!(flush(&pair, &target, 0, 8, 1), Status::RemoteInvalidRequest);
    // Ordinary memory does not persist.
    let access = granted | Access::FLUSH_PERSISTENT;
    let address = target.address(0);
    // SAFETY: the bytes of `target`, if this registers them, which live until the result is dropped.
    let refused =
        unsafe { MemoryRegion::register(&pair.server.domain, address as usize, 8, address, access) };
    assert_eq!(refused.err().expect("no persistence").errno(), libc::EINVAL);
}

/// After a deregistration has returned, not a byte of the region changes, though the peer goes on writing.
pub fn a_deregistered_region_is_left_alone(site: &Site) {
    /// A deregistration that does not wait for a write under way meets one in some rounds only.
    const ROUNDS: usize = 15;
    (0..ROUNDS).for_each(|_| deregister_amid_writes(site));
}

fn deregister_amid_writes(site: &Site) {
    const LENGTH: usize = 100_000;
    let pair = Pair::shaped(site, Shape { sends: 4, ..Shape::default() });
    let target = Arc::new(Memory::open(&pair.server.domain, LENGTH));
    let sources: Vec<Memory> = (0..2).map(|_| Memory::open(&pair.client.domain, LENGTH)).collect();
    let patterns: Vec<Vec<u8>> =
        sources.iter().enumerate().map(|(n, source)| source.fill(n as u64 + 1)).collect();
    let started = AtomicBool::new(false);
    let deadline = Instant::now() + TEST_TIMEOUT;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0u64.. {
                let source = &sources[round as usize % 2];
                pair.client.post(
                    round,
                    Opcode::Write,
                    &[source.all()],
                    (target.address(0), target.region.key()),
                );
                let done = pair.client.sent();
                started.store(true, Ordering::SeqCst);
                if done.status != Status::Success {
                    break;
                }
                assert!(Instant::now() < deadline, "the peer may write for ever");
            }
        });
        while !started.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "no write completes");
            std::thread::yield_now();
        }
        target.region.deregister();
        let then = target.bytes();
        pair.ended();
        assert!(target.bytes() == then, "written after the deregistration");
        let intact = then
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == 0 || patterns.iter().any(|pattern| pattern[at] == *byte));
        assert!(intact, "bytes that nobody wrote");
    });
}
