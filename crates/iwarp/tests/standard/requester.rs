//! What the device asks of its peer: work requests on the wire, and what completes them.

use crate::host::{Connection, DEPTHS, Host, Region, Target};
use crate::peer::{PLAIN, Peer};
use crate::{ALL, FRAMINGS, codes, pattern};
use adverb_core::cm::ConnectionParameters;
use adverb_core::error::PostError;
use adverb_core::memory::Access;
use adverb_core::request::{Data, Opcode, SendFlags, SendRequest, Status};
use adverb_proto::iwarp::mpa::Config;
use adverb_proto::iwarp::{AtomicOperation, AtomicResponse, Outbound, ReadRequest, Segment};

const AT: Target = Target { address: 0x1000, key: 0x2000, immediate: 0, compare_add: 0, swap: 0 };

fn read_request(peer: &mut Peer) -> ReadRequest {
    match peer.segment() {
        (Segment::ReadRequest { request, .. }, _) => request,
        other => panic!("{other:?}"),
    }
}

fn answer(peer: &mut Peer, request: &ReadRequest, bytes: &[u8]) {
    assert_eq!(request.len as usize, bytes.len());
    let ReadRequest { sink_stag, sink_to, len, .. } = *request;
    peer.send(Outbound::ReadResponse { sink_stag, sink_to, len }, bytes);
}

// RFC5040-5.1-3, RFC5040-5.2.1-4, RFC5040-5.2.1-6, RFC5040-5.3-4, RFC5040-5.5-4, RFC5040-5.5-6, RFC5040-5.5-7
// RFC5041-5.3-1, RFC5044-4.4-3
#[test]
fn requests_leave_and_complete_in_the_order_of_posting() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.active(&config);
        let memory = host.region(9000, ALL);
        let bytes = pattern(9000);
        memory.fill(&bytes);
        let sink = host.region(100, Access::LOCAL_WRITE);
        connection.post(1, Opcode::Write, &AT, &[memory.sge(0, 4000), memory.sge(4000, 5000)]);
        connection.post(2, Opcode::Send, &AT, &[memory.sge(0, 10)]);
        connection.post(3, Opcode::Read, &AT, &[sink.sge(0, 100)]);
        connection.post(4, Opcode::Write, &AT, &[memory.sge(10, 10)]);
        connection.post(5, Opcode::Send, &AT, &[]);

        let (first, payload) = peer.message();
        assert!(matches!(first, Segment::Write { stag: 0x2000, to: 0x1000, .. }), "{first:?}");
        assert!(payload == bytes);
        let (second, payload) = peer.message();
        assert!(matches!(second, Segment::Send { msn: 1, .. }), "{second:?}");
        assert_eq!(payload, bytes[..10]);
        let request = read_request(&mut peer);
        assert_eq!((request.source_stag, request.source_to, request.len), (0x2000, 0x1000, 100));
        assert_eq!(peer.message().1, bytes[10..20]);
        let (fifth, payload) = peer.message();
        assert!(matches!(fifth, Segment::Send { msn: 2, .. }), "{fifth:?}");
        assert_eq!(payload, b"");

        // What is behind the read waits for it, though it has left.
        assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success)]);
        host.stays_idle();
        answer(&mut peer, &request, &bytes[..100]);
        assert_eq!(host.completions(), [(3, Status::Success), (4, Status::Success), (5, Status::Success)]);
        assert_eq!(sink.bytes(), bytes[..100]);
    }
}

// RFC5040-5.5-5
#[test]
fn a_send_is_complete_only_when_it_is_on_its_way() {
    const EACH: usize = 1 << 20;
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let memory = host.region(EACH, Access::empty());
    for wr_id in 0..48 {
        connection.post(wr_id, Opcode::Send, &AT, &[memory.sge(0, EACH)]);
    }
    // TCP takes some of it and then no more, as the peer takes nothing.
    let mut complete = 0;
    for _ in 0..10_000 {
        complete += host.cq.poll(64, |completion| assert_eq!(completion.status, Status::Success)).unwrap();
    }
    assert!(complete < 48);
    for _ in 0..48 {
        assert_eq!(peer.message().1.len(), EACH);
    }
    for wr_id in complete as u64..48 {
        assert_eq!(host.completions(), [(wr_id, Status::Success)]);
    }
}

/// What the peer has been told of one sink does not tell it the next.
// RFC5041-8.2-2
#[test]
fn one_sink_does_not_tell_the_next() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let memory = host.region(100, Access::LOCAL_WRITE);
    let sinks: Vec<u64> = (0..8)
        .map(|wr_id| {
            connection.post(wr_id, Opcode::Read, &AT, &[memory.sge(0, 100)]);
            let request = read_request(&mut peer);
            answer(&mut peer, &request, &[7; 100]);
            assert_eq!(host.completions(), [(wr_id, Status::Success)]);
            request.sink_to << 32 | u64::from(request.sink_stag)
        })
        .collect();
    assert!(sinks.windows(2).all(|pair| adverb_core::random::next(pair[0]) != pair[1]));
}

fn post_reads(connection: &Connection, sink: &Region, count: u64) {
    for wr_id in 1..=count {
        connection.post(wr_id, Opcode::Read, &AT, &[sink.sge(8 * (wr_id as usize - 1), 8)]);
    }
}

// RFC5040-6.1-3, RFC5040-5.5-2, RFC6581-9.1-3
#[test]
fn no_more_reads_leave_than_the_peer_takes() {
    for (ours, theirs) in [(1, 8), (8, 1)] {
        let host = Host::new();
        let depths = ConnectionParameters { initiator_depth: ours, ..DEPTHS };
        let (connection, mut peer) =
            host.active_with(&Config { ird: theirs, ird_limit: theirs, ..PLAIN }, depths);
        let sink = host.region(64, Access::LOCAL_WRITE);
        post_reads(&connection, &sink, 3);
        for wr_id in 1..=3 {
            let request = read_request(&mut peer);
            assert!(peer.is_silent(), "a second read before the first was answered");
            answer(&mut peer, &request, &[wr_id as u8; 8]);
            assert_eq!(host.completions(), [(wr_id, Status::Success)]);
        }
        assert_eq!(sink.bytes()[..24], [[1; 8], [2; 8], [3; 8]].concat());
    }
}

// RFC5040-5.5-9
#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let sink = host.region(64, ALL);
    post_reads(&connection, &sink, 2);
    connection.post_with(3, Opcode::Send, &AT, &[sink.sge(0, 8)], SendFlags::FENCE);
    let (first, second) = (read_request(&mut peer), read_request(&mut peer));
    assert!(peer.is_silent());
    answer(&mut peer, &first, &[1; 8]);
    assert_eq!(host.completions(), [(1, Status::Success)]);
    assert!(peer.is_silent());
    answer(&mut peer, &second, &[2; 8]);
    // It sends what the read has brought.
    assert_eq!(peer.message().1, [1; 8]);
}

// RFC5041-8.2-2, RFC5041-8.2-3, RFC5040-5.2.2-6
#[test]
fn a_response_goes_nowhere_but_where_it_was_asked_for() {
    let wrong: [fn(&mut ReadRequest, &Region); 3] = [
        |request, _| request.sink_stag ^= 1,
        |request, _| request.sink_to += 1,
        // The key of the memory itself opens nothing to a response.
        |request, sink| (request.sink_stag, request.sink_to) = (sink.key(), sink.address()),
    ];
    for change in wrong {
        let host = Host::new();
        let (connection, mut peer) = host.active(&PLAIN);
        let sink = host.region(64, Access::LOCAL_WRITE);
        post_reads(&connection, &sink, 1);
        let mut request = read_request(&mut peer);
        change(&mut request, &sink);
        answer(&mut peer, &request, &[0xff; 8]);
        assert_eq!(codes(&peer.terminate()).0, 1);
        connection.ended();
        assert_ne!(host.completion().status, Status::Success);
        assert_eq!(sink.bytes(), [0; 64]);
    }
    // Nor can a write use the tag of a read.
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let sink = host.region(64, ALL);
    post_reads(&connection, &sink, 1);
    let request = read_request(&mut peer);
    peer.send(Outbound::Write { stag: request.sink_stag, to: request.sink_to, len: 8 }, &[0xff; 8]);
    assert_eq!(codes(&peer.terminate()), (1, 1, 0));
    connection.ended();
    assert_eq!(sink.bytes(), [0; 64]);
}

// RFC5040-4.8-8, RFC5040-6.2.1-2: the read that was refused is the one that fails so.
#[test]
fn a_refused_read_fails_with_the_reason() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let sink = host.region(64, Access::LOCAL_WRITE);
    post_reads(&connection, &sink, 2);
    let request = read_request(&mut peer);
    read_request(&mut peer);
    let segment = Segment::ReadRequest { msn: 1, request };
    let terminate = segment.terminate(adverb_proto::iwarp::Fault::InvalidStag, 0);
    peer.send(Outbound::Terminate(terminate), b"");
    connection.ended();
    assert_eq!(host.completions(), [(1, Status::RemoteAccess), (2, Status::Flushed)]);
}

// RFC7306-5.2.1-6, RFC7306-5.2.2-5, RFC7306-5.4-2, RFC7306-5.1.1-4
#[test]
fn atomics_bring_back_the_value_before() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let sink = host.region(16, Access::LOCAL_WRITE);
    connection.post(1, Opcode::FetchAdd, &Target { compare_add: 5, ..AT }, &[sink.sge(0, 8)]);
    connection.post(2, Opcode::CompareSwap, &Target { compare_add: 6, swap: 7, ..AT }, &[sink.sge(8, 8)]);
    let swap =
        AtomicOperation::CompareSwap { compare: 6, compare_mask: u64::MAX, swap: 7, swap_mask: u64::MAX };
    let operations = [AtomicOperation::FetchAdd { add: 5, mask: 0 }, swap];
    let requests = operations.map(|operation| {
        let (Segment::AtomicRequest { request, .. }, _) = peer.segment() else { panic!() };
        assert_eq!((request.stag, request.to, request.operation), (0x2000, 0x1000, operation));
        request
    });
    host.stays_idle();
    for (request, original) in requests.into_iter().zip([100, 200]) {
        peer.send(Outbound::AtomicResponse(AtomicResponse { id: request.id, original }), b"");
    }
    assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(sink.bytes(), [100u64.to_ne_bytes(), 200u64.to_ne_bytes()].concat());
}

// RFC7306-6.3-4, RFC7306-6.3-5
#[test]
fn immediate_data_follow_their_write() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let memory = host.region(3000, Access::empty());
    let at = Target { immediate: u32::from_ne_bytes(*b"imm!"), ..AT };
    connection.post(1, Opcode::WriteWithImmediate, &at, &[memory.sge(0, 3000)]);
    connection.post(2, Opcode::WriteWithImmediate, &at, &[]);
    connection.post(3, Opcode::Send, &at, &[]);
    for length in [3000, 0] {
        let (segment, payload) = peer.message();
        assert!(matches!(segment, Segment::Write { .. }), "{segment:?}");
        assert_eq!(payload.len(), length);
        let (Segment::Immediate { data, .. }, _) = peer.segment() else { panic!() };
        assert_eq!(data[..4], *b"imm!");
    }
    assert!(matches!(peer.message().0, Segment::Send { msn: 3, .. }));
    assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
}

#[test]
fn a_peer_without_the_extensions_is_not_asked_for_them() {
    let host = Host::new();
    let (connection, _peer) = host.active(&Config { extensions: false, ..PLAIN });
    let memory = host.region(8, ALL);
    for opcode in [Opcode::WriteWithImmediate, Opcode::FetchAdd, Opcode::CompareSwap] {
        let request = SendRequest {
            wr_id: 1,
            opcode,
            flags: SendFlags::empty(),
            data: Data::Registered(&[memory.sge(0, 8)]),
            ..SendRequest::default()
        };
        assert_eq!(connection.queue_pair.post_send(&request), Err(PostError::Unsupported), "{opcode:?}");
    }
}
