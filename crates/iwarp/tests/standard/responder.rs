//! What the device does for its peer: it is written to, read from, sent to.

use crate::host::{Host, Region, region};
use crate::peer::{PLAIN, Peer, send};
use crate::{ALL, FRAMINGS, codes, pattern};
use adverb_core::event::AsyncEventKind;
use adverb_core::memory::Access;
use adverb_core::region::ProtectionDomain;
use adverb_core::request::{CompletionFlags, CompletionOpcode, Status};
use adverb_proto::iwarp::{AtomicOperation, AtomicRequest, Outbound, ReadRequest, Segment};
use std::sync::Arc;

fn write(region: &Region, offset: u64, length: usize) -> Outbound {
    Outbound::Write { stag: region.key(), to: region.address() + offset, len: length as u32 }
}

fn read(source_stag: u32, source_to: u64, len: u32) -> Outbound {
    Outbound::ReadRequest(ReadRequest { sink_stag: 0xabcd, sink_to: 77, len, source_stag, source_to })
}

fn atomic(id: u32, region: &Region, offset: u64, operation: AtomicOperation) -> Outbound {
    Outbound::AtomicRequest(AtomicRequest {
        id,
        stag: region.key(),
        to: region.address() + offset,
        operation,
    })
}

const ADD_ONE: AtomicOperation = AtomicOperation::FetchAdd { add: 1, mask: 0 };

// RFC5040-5.1-2, RFC5040-5.5-1, RFC5041-4.1-1, RFC5041-4.1-4, RFC5041-5.2-4, RFC5041-5.4-1, RFC5044-4.4-3
#[test]
fn a_write_is_placed_and_not_delivered() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&config);
        let (target, inbox) = (host.region(10_000, ALL), host.region(16, Access::LOCAL_WRITE));
        connection.receive(7, &[inbox.sge(0, 16)]);
        let bytes = pattern(9000);
        peer.send(write(&target, 500, 9000), &bytes);
        peer.send(send(5), b"after");
        let completion = host.completion();
        assert_eq!((completion.wr_id, completion.status, completion.byte_length), (7, Status::Success, 5));
        assert_eq!(completion.opcode, CompletionOpcode::Receive);
        let seen = target.bytes();
        assert!(seen[500..9500] == bytes, "the write is not whole when the send behind it is delivered");
        assert!(seen[..500].iter().chain(&seen[9500..]).all(|byte| *byte == 0));
        assert_eq!(inbox.bytes()[..6], *b"after\0");
        host.stays_idle();
    }
}

// RFC5040-5.3-2, RFC5040-5.3-3, RFC5040-5.3-8, RFC5041-5.3-2, RFC5041-5.4-2
#[test]
fn sends_are_delivered_in_order_each_into_a_buffer_of_its_own() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&config);
        let inbox = host.region(30_000, Access::LOCAL_WRITE);
        connection.receive(1, &[inbox.sge(0, 5000), inbox.sge(5000, 5000)]);
        connection.receive(2, &[inbox.sge(10_000, 10_000)]);
        connection.receive(3, &[inbox.sge(20_000, 10_000)]);
        let (long, short) = (pattern(10_000), b"third");
        peer.send(send(10_000), &long);
        peer.send(send(0), b"");
        peer.send(send(5), short);
        for (wr_id, length) in [(1, 10_000), (2, 0), (3, 5)] {
            let completion = host.completion();
            assert_eq!((completion.wr_id, completion.status), (wr_id, Status::Success));
            assert_eq!(completion.byte_length, length);
        }
        let seen = inbox.bytes();
        assert!(seen[..10_000] == long);
        assert!(seen[10_000..20_000].iter().all(|byte| *byte == 0));
        assert_eq!(seen[20_000..20_005], *short);
    }
}

// RFC5040-5.3-7, RFC5041-7.1-4, RFC5041-7.1-11, RFC5041-7.1-13, RFC5041-7.1-14, RFC5041-6.2.2-1,
// RFC5041-6.2.2-4
#[test]
fn a_send_that_is_too_long_is_refused_before_it_is_placed() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let inbox = host.region(16, Access::LOCAL_WRITE);
    connection.receive(1, &[inbox.sge(0, 4)]);
    peer.send(send(5), b"12345");
    let terminate = peer.terminate();
    assert_eq!(codes(&terminate), (1, 2, 5));
    assert_eq!((terminate.segment_len(), terminate.ddp_header().map(<[u8]>::len)), (Some(23), Some(18)));
    connection.ended();
    assert_eq!(host.completions(), [(1, Status::LocalLength)]);
    assert_eq!(inbox.bytes(), [0; 16]);
}

// RFC5041-7.1-2, RFC7306-6.3-2
#[test]
fn a_message_that_finds_no_buffer_is_refused() {
    for message in [send(0), send(3), Outbound::Immediate { data: [1; 8], solicited: false }] {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&PLAIN);
        let inbox = host.region(16, Access::LOCAL_WRITE);
        connection.receive(1, &[inbox.sge(0, 16)]);
        peer.send(send(1), b"x");
        assert_eq!(host.completions(), [(1, Status::Success)]);
        peer.send(message, &b"abc"[..message.payload_len() as usize]);
        assert_eq!(codes(&peer.terminate()), (1, 2, 2));
        connection.ended();
    }
}

// RFC5040-5.2-1, RFC5040-5.2.1-2, RFC5040-5.2.1-3, RFC5040-5.2.1-5, RFC5040-5.2.1-7, RFC5040-5.2.1-9,
// RFC5040-5.2.2-1 RFC5040-5.2.2-4, RFC5040-4.4-2, RFC5040-4.4-3, RFC5041-5.2-8
#[test]
fn reads_are_answered_in_order_without_the_program() {
    for config in FRAMINGS {
        let host = Host::new();
        let (_connection, mut peer) = host.passive(&config);
        let source = host.region(8000, Access::REMOTE_READ);
        let bytes = pattern(8000);
        source.fill(&bytes);
        peer.send(read(source.key(), source.address(), 8000), b"");
        // Of a read of nothing, not even the key is looked at.
        peer.send(read(!source.key(), u64::MAX, 0), b"");
        peer.send(read(source.key(), source.address() + 100, 3), b"");
        for range in [0..8000, 0..0, 100..103] {
            let (segment, payload) = peer.message();
            assert!(matches!(segment, Segment::ReadResponse { stag: 0xabcd, to: 77, .. }), "{segment:?}");
            assert!(payload == bytes[range]);
        }
        host.stays_idle();
    }
}

// RFC5040-5.5-3, RFC5040-5.5-1
#[test]
fn a_read_sees_what_was_written_before_it() {
    let host = Host::new();
    let (_connection, mut peer) = host.passive(&PLAIN);
    let target = host.region(70_000, ALL);
    for round in 1..=20 {
        let bytes = vec![round; 70_000];
        let mut stream = peer.frames(write(&target, 0, bytes.len()), &bytes);
        stream.extend(peer.frames(read(target.key(), target.address(), 70_000), b""));
        peer.raw(&stream);
        assert!(peer.message().1 == bytes);
    }
}

/// How a peer can misuse a key: which one, what it names, and what is wrong with that, for a write and for a
/// read.
type Misuse = (&'static str, fn(&Keys) -> (u32, u64, u32), (u8, u8, u8), (u8, u8, u8));

struct Keys {
    good: Region,
    closed: Region,
    foreign: Region,
    revoked: Region,
}

const MISUSES: [Misuse; 8] = [
    ("no such key", |k| (k.good.key() ^ 1, k.good.address(), 8), (1, 1, 0), (0, 1, 0)),
    ("a key taken back", |k| (k.revoked.key(), k.revoked.address(), 8), (1, 1, 0), (0, 1, 0)),
    ("another domain's key", |k| (k.foreign.key(), k.foreign.address(), 8), (1, 1, 2), (0, 1, 3)),
    ("a right not given", |k| (k.closed.key(), k.closed.address(), 8), (1, 1, 0), (0, 1, 2)),
    ("before the first byte", |k| (k.good.key(), k.good.address() - 1, 8), (1, 1, 1), (0, 1, 1)),
    ("behind the last byte", |k| (k.good.key(), k.good.address() + 64, 1), (1, 1, 1), (0, 1, 1)),
    ("across the last byte", |k| (k.good.key(), k.good.address() + 57, 8), (1, 1, 1), (0, 1, 1)),
    ("around the end", |k| (k.good.key(), u64::MAX - 3, 8), (1, 1, 3), (0, 1, 4)),
];

fn keys(host: &Host) -> Keys {
    let other = ProtectionDomain::new(&host.context).unwrap();
    let keys = Keys {
        good: host.region(64, ALL),
        closed: host.region(64, Access::LOCAL_WRITE),
        foreign: region(&other, 64, ALL),
        revoked: host.region(64, ALL),
    };
    keys.revoked.region.deregister();
    keys
}

// RFC5041-7.1-6, RFC5041-7.1-7, RFC5041-7.1-8, RFC5041-7.1-9, RFC5041-7.1-10, RFC5041-7.1-11, RFC5041-4.2-4
// RFC5041-8.2-1, RFC5041-8.3-1, RFC5041-8.3-2, RFC5041-8.3-3, RFC5041-8.3.1-1, RFC5041-8.3.1-2, RFC5040-7.1-3
#[test]
fn a_write_that_the_key_does_not_grant_touches_nothing() {
    for config in [FRAMINGS[0], FRAMINGS[1]] {
        for (what, misuse, expected, _) in MISUSES {
            let host = Host::new();
            let (connection, mut peer) = host.passive(&config);
            let keys = keys(&host);
            let (stag, to, len) = misuse(&keys);
            peer.send(Outbound::Write { stag, to, len }, &vec![0xff; len as usize]);
            let terminate = peer.terminate();
            assert_eq!(codes(&terminate), expected, "{what}");
            assert_eq!(terminate.segment_len(), Some(14 + len as u16), "{what}");
            assert_eq!(terminate.ddp_header().map(<[u8]>::len), Some(14), "{what}");
            connection.ended();
            assert_eq!(host.context.events().wait().unwrap().kind, AsyncEventKind::QpAccessError, "{what}");
            for region in [&keys.good, &keys.closed, &keys.foreign, &keys.revoked] {
                assert_eq!(region.bytes(), [0; 64], "{what}");
            }
        }
    }
}

// RFC5040-5.2.1-8, RFC5040-7.2-6, RFC5040-7.2-7, RFC5040-7.2-8, RFC5040-7.2-9, RFC5040-7.2-10, RFC5040-7.1-4
// RFC5040-4.8-6, RFC5040-6.2.1-1
#[test]
fn a_read_that_the_key_does_not_grant_gets_nothing() {
    for (what, misuse, _, expected) in MISUSES {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&PLAIN);
        let keys = keys(&host);
        let (stag, to, len) = misuse(&keys);
        peer.send(read(stag, to, len), b"");
        let terminate = peer.terminate();
        assert_eq!(codes(&terminate), expected, "{what}");
        let Outbound::ReadRequest(request) = read(stag, to, len) else { unreachable!() };
        assert_eq!(terminate.read_request(), Some(request), "{what}");
        connection.ended();
    }
}

// RFC7306-5.1.1-3, RFC7306-5.1.1-4, RFC7306-5.1.2-1, RFC7306-5.2.1-3, RFC7306-5.2.1-4, RFC7306-5.2.1-7,
// RFC7306-5.2.1-8 RFC7306-5.2.2-1, RFC7306-5.2.2-6, RFC7306-5.4-1
#[test]
fn atomics_are_done_in_order_without_the_program() {
    let host = Host::new();
    let (_connection, mut peer) = host.passive(&PLAIN);
    let target = host.region(16, ALL);
    let start = 0x0000_0001_ffff_ffff_u64;
    peer.send(write(&target, 8, 8), &start.to_ne_bytes());
    let half = 1 << 31 | 1 << 63;
    let operations = [
        (ADD_ONE, start),
        (AtomicOperation::FetchAdd { add: u64::MAX, mask: 0 }, start + 1),
        // Two fields: nothing is carried from the lower one to the upper one.
        (AtomicOperation::FetchAdd { add: 1, mask: half }, start),
        (
            AtomicOperation::CompareSwap { compare: 5, compare_mask: u64::MAX, swap: 9, swap_mask: u64::MAX },
            1 << 32,
        ),
        (
            AtomicOperation::CompareSwap { compare: 0, compare_mask: 0xff, swap: 0xabcd, swap_mask: 0xff },
            1 << 32,
        ),
        (AtomicOperation::swap(42), 1 << 32 | 0xcd),
    ];
    for (id, (operation, _)) in operations.iter().enumerate() {
        peer.send(atomic(id as u32, &target, 8, *operation), b"");
    }
    for (id, (_, original)) in operations.iter().enumerate() {
        let (Segment::AtomicResponse { response, .. }, _) = peer.segment() else { panic!() };
        assert_eq!((response.id, response.original), (id as u32, *original));
    }
    assert_eq!(target.bytes(), [0u64.to_ne_bytes(), 42u64.to_ne_bytes()].concat());
    host.stays_idle();
}

// RFC7306-5-1: every value is handed out once.
#[test]
fn atomics_of_two_peers_do_not_mix() {
    const EACH: u64 = 500;
    let host = Host::new();
    let target = host.region(8, ALL);
    let connections = [host.passive(&PLAIN), host.passive(&PLAIN)];
    let mut seen = std::thread::scope(|scope| {
        let workers = connections.map(|(connection, mut peer)| {
            let target = &target;
            let message = |id| atomic(id, target, 0, ADD_ONE);
            let [first, second] = [message(1), message(2)];
            scope.spawn(move || {
                let _connection = connection;
                let mut seen = Vec::new();
                for _ in 0..EACH / 2 {
                    peer.send(first, b"");
                    peer.send(second, b"");
                    for _ in 0..2 {
                        let (Segment::AtomicResponse { response, .. }, _) = peer.segment() else { panic!() };
                        seen.push(response.original);
                    }
                }
                seen
            })
        });
        workers.map(|worker| worker.join().unwrap()).concat()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..2 * EACH));
    assert_eq!(target.bytes(), (2 * EACH).to_ne_bytes());
}

// RFC7306-5.1.1-1, RFC7306-5.1.1-2, RFC7306-5.1.2-2, RFC7306-5.1.2-3, RFC7306-8.2-2, RFC7306-8.1-2
#[test]
fn a_misaligned_atomic_changes_nothing() {
    for operation in [ADD_ONE, AtomicOperation::swap(7)] {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&PLAIN);
        let target = host.region(16, ALL);
        peer.send(atomic(1, &target, 4, operation), b"");
        let terminate = peer.terminate();
        assert_eq!(codes(&terminate), (0, 2, 7));
        assert_eq!((terminate.ddp_header().map(<[u8]>::len), terminate.read_request()), (Some(18), None));
        connection.ended();
        assert_eq!(target.bytes(), [0; 16]);
    }
}

#[test]
fn an_atomic_that_the_key_does_not_grant_changes_nothing() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let target = host.region(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
    peer.send(atomic(1, &target, 0, ADD_ONE), b"");
    assert_eq!(codes(&peer.terminate()), (0, 1, 2));
    connection.ended();
    assert_eq!(target.bytes(), [0; 16]);
}

// RFC7306-6.3-2, RFC7306-6.3-3, RFC7306-6.4-1
#[test]
fn immediate_data_is_delivered_in_order_behind_its_write() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&config);
        let (target, inbox) = (host.region(3000, ALL), host.region(16, Access::LOCAL_WRITE));
        for wr_id in 1..=3 {
            connection.receive(wr_id, &[inbox.sge(0, 16)]);
        }
        let bytes = pattern(3000);
        peer.send(send(1), b"a");
        peer.send(write(&target, 0, 3000), &bytes);
        peer.send(Outbound::Immediate { data: *b"1234....", solicited: false }, b"");
        peer.send(send(1), b"b");
        assert_eq!(host.completions(), [(1, Status::Success)]);
        let completion = host.completion();
        assert!(target.bytes() == bytes);
        assert_eq!((completion.wr_id, completion.status), (2, Status::Success));
        assert_eq!(completion.opcode, CompletionOpcode::ReceiveWriteWithImmediate);
        assert_eq!(completion.flags, CompletionFlags::WITH_IMMEDIATE);
        assert_eq!((completion.immediate.to_ne_bytes(), completion.byte_length), (*b"1234", 3000));
        assert_eq!(host.completions(), [(3, Status::Success)]);
        assert_eq!(inbox.bytes()[..2], *b"b\0");
    }
}

fn send_invalidating(peer: &mut Peer, stag: u32) {
    peer.send(Outbound::Send { len: 1, invalidate: Some(stag), solicited: false }, b"i");
}

// RFC5040-5.3-6, RFC5040-7.2-4
#[test]
fn a_key_that_the_peer_invalidated_opens_nothing() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let (target, inbox) = (host.region(16, ALL), host.region(16, Access::LOCAL_WRITE));
    connection.receive(1, &[inbox.sge(0, 16)]);
    send_invalidating(&mut peer, target.key());
    let completion = host.completion();
    assert_eq!((completion.status, completion.flags), (Status::Success, CompletionFlags::WITH_INVALIDATE));
    assert_eq!(completion.immediate, target.key());
    peer.send(write(&target, 0, 8), &[0xff; 8]);
    assert_eq!(codes(&peer.terminate()), (1, 1, 0));
    connection.ended();
    assert_eq!(target.bytes(), [0; 16]);
}

// RFC5040-5.3-6, RFC5040-7.2-4, RFC5040-7.2-5
#[test]
fn a_peer_invalidates_only_what_is_open_to_its_stream() {
    for (what, expected) in [("foreign", (0, 1, 9)), ("closed", (0, 1, 9)), ("revoked", (0, 1, 0))] {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&PLAIN);
        let (keys, inbox) = (keys(&host), host.region(16, Access::LOCAL_WRITE));
        connection.receive(1, &[inbox.sge(0, 16)]);
        send_invalidating(
            &mut peer,
            match what {
                "foreign" => keys.foreign.key(),
                "closed" => keys.closed.key(),
                _ => keys.revoked.key(),
            },
        );
        assert_eq!(codes(&peer.terminate()), expected, "{what}");
        connection.ended();
        assert_ne!(host.completion().status, Status::Success, "{what}");
    }
}

// RFC5040-8.1.1-1
#[test]
fn a_peer_does_not_invalidate_what_other_streams_use() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let (_other, mut other_peer) = host.passive(&PLAIN);
    let (target, inbox) = (host.region(16, ALL), host.region(16, Access::LOCAL_WRITE));
    connection.receive(1, &[inbox.sge(0, 16)]);
    send_invalidating(&mut peer, target.key());
    assert_eq!(codes(&peer.terminate()), (0, 1, 9));
    connection.ended();
    other_peer.send(write(&target, 0, 4), b"open");
    other_peer.send(read(target.key(), target.address(), 4), b"");
    assert_eq!(other_peer.message().1, b"open");
}

// RFC5040-6.1-4, RFC5040-8.1.1-4
#[test]
fn more_reads_than_agreed_are_refused() {
    let host = Host::new();
    let depths = adverb_core::cm::ConnectionParameters { responder_resources: 2, ..crate::host::DEPTHS };
    let (connection, mut peer) = host.passive_with(&PLAIN, depths);
    assert_eq!(peer.parameters.ord, Some(2));
    let source = host.region(1 << 20, Access::REMOTE_READ);
    // Long answers that nobody takes, so that the requests pile up.
    let mut stream = Vec::new();
    for _ in 0..64 {
        stream.extend(peer.frames(read(source.key(), source.address(), 1 << 20), b""));
    }
    peer.raw(&stream);
    connection.ended();
}

// RFC5040-5.3-9
#[test]
fn a_solicited_send_wakes_who_waits_for_one() {
    let host = Host::with_queue(16, true);
    let (connection, mut peer) = host.passive(&PLAIN);
    let (inbox, channel) = (host.region(16, Access::LOCAL_WRITE), host.cq.channel().unwrap());
    for wr_id in 1..=3 {
        connection.receive(wr_id, &[inbox.sge(0, 16)]);
    }
    host.cq.arm(true).unwrap();
    peer.send(send(1), b"a");
    assert_eq!(host.completions(), [(1, Status::Success)]);
    assert!(!channel.ready(0).unwrap(), "a plain send");
    peer.send(Outbound::Send { len: 1, invalidate: None, solicited: true }, b"b");
    assert!(Arc::ptr_eq(&channel.wait().unwrap(), &host.cq));
    assert_eq!(host.completions(), [(2, Status::Success)]);
    host.cq.arm(false).unwrap();
    peer.send(send(1), b"c");
    assert!(Arc::ptr_eq(&channel.wait().unwrap(), &host.cq));
}

// RFC5040-8.1.1-3
#[test]
fn a_completion_queue_that_overflows_harms_nobody_else() {
    let (small, good) = (Host::with_queue(2, false), Host::new());
    let (connection, mut peer) = small.passive(&PLAIN);
    let (good_connection, mut good_peer) = good.passive(&PLAIN);
    let (inbox, good_inbox) = (small.region(16, Access::LOCAL_WRITE), good.region(16, Access::LOCAL_WRITE));
    // One more than the smallest queue holds.
    for wr_id in 1..=17 {
        connection.receive(wr_id, &[inbox.sge(0, 16)]);
        peer.send(send(1), b"x");
    }
    assert_eq!(small.context.events().wait().unwrap().kind, AsyncEventKind::CqError);
    for wr_id in 1..=4 {
        good_connection.receive(wr_id, &[good_inbox.sge(0, 16)]);
        good_peer.send(send(1), b"y");
        assert_eq!(good.completions(), [(wr_id, Status::Success)]);
    }
}
