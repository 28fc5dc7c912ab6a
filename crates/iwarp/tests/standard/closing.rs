//! How a connection ends: in order, by a Terminate, by damage, by loss.

use crate::host::{Host, Target};
use crate::peer::{PLAIN, send};
use crate::{ALL, FRAMINGS, codes, pattern};
use adverb_core::memory::Access;
use adverb_core::request::{Opcode, Status};
use adverb_proto::iwarp::mpa::Config;
use adverb_proto::iwarp::{Fault, Outbound, ReadRequest, Segment, Terminate};

// RFC5044-4.4-9, RFC5044-6-1, RFC5044-8-2, RFC5044-8-6, RFC5041-6.2.2-1, RFC5041-6.2.2-2, RFC5041-6.2.2-4
#[test]
fn nothing_of_a_damaged_frame_is_placed() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&Config { crc: true, ..PLAIN });
    let target = host.region(1000, ALL);
    let message = Outbound::Write { stag: target.key(), to: target.address(), len: 1000 };
    let mut frame = peer.frames(message, &pattern(1000));
    frame[500] ^= 1;
    peer.raw(&frame);
    assert_eq!(codes(&peer.terminate()), (2, 0, 2));
    connection.ended();
    assert!(target.bytes().iter().all(|byte| *byte == 0));
}

// RFC5044-4.1-3, RFC5044-7.1.1-6
#[test]
fn without_crcs_their_field_is_not_looked_at() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let inbox = host.region(16, Access::LOCAL_WRITE);
    connection.receive(1, &[inbox.sge(0, 16)]);
    connection.receive(2, &[inbox.sge(0, 16)]);
    let mut frame = peer.frames(send(1), b"x");
    let padding_and_crc = frame.len() - 7;
    frame[padding_and_crc..].fill(0xee);
    peer.raw(&frame);
    peer.send(send(1), b"y");
    assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success)]);
}

// RFC5040-5.4-3, RFC5040-5.4-5, RFC5040-6.2.1-2, RFC5041-6.2.2-3, RFC5041-3-4
#[test]
fn a_terminate_of_the_peer_ends_everything() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let memory = host.region(64, ALL);
    connection.receive(1, &[memory.sge(0, 8)]);
    let at = Target { address: 5, key: 6, ..Target::default() };
    connection.post(2, Opcode::Read, &at, &[memory.sge(0, 8)]);
    connection.post(3, Opcode::Send, &at, &[memory.sge(0, 8)]);
    let (Segment::ReadRequest { .. }, _) = peer.segment() else { panic!() };
    let (Segment::Send { .. }, _) = peer.segment() else { panic!() };
    peer.send(Outbound::Terminate(Terminate::local(Fault::LocalCatastrophic)), b"");
    // It is not answered by another.
    peer.end();
    connection.ended();
    let mut ends: [(u64, Status); 3] = host.completions();
    ends.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ends[0], (1, Status::Flushed));
    assert_ne!(ends[1].1, Status::Success);
    host.stays_idle();
}

// RFC5044-7.2-1, RFC5041-6.2.1-3, RFC5041-6.2.1-5, RFC5041-3-2, RFC5041-3-4, RFC5041-6.2-1
#[test]
fn a_close_of_the_peer_ends_the_connection_in_order() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&config);
        let inbox = host.region(16, Access::LOCAL_WRITE);
        connection.receive(1, &[inbox.sge(0, 16)]);
        connection.receive(2, &[inbox.sge(0, 16)]);
        // What came before the close still counts.
        peer.send(send(4), b"last");
        peer.finish();
        peer.end();
        connection.ended();
        assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Flushed)]);
        assert_eq!(inbox.bytes()[..4], *b"last");
    }
}

// RFC5044-8-1, RFC5041-6.2.2-1, RFC5041-6.2.2-3, RFC5041-3-1
#[test]
fn a_connection_lost_amid_a_message_fails_what_was_under_way() {
    for keep in [1, 20, 25] {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&PLAIN);
        let inbox = host.region(16, Access::LOCAL_WRITE);
        connection.receive(1, &[inbox.sge(0, 16)]);
        let frame = peer.frames(send(16), &[7; 16]);
        peer.raw(&frame[..keep]);
        peer.finish();
        connection.ended();
        assert_eq!(host.completions(), [(1, Status::Flushed)]);
    }
}

// RFC5041-6.2.1-1, RFC5041-6.2.1-4, RFC5041-3-1, RFC5041-3-4
#[test]
fn a_disconnect_sends_first_what_was_posted() {
    for config in FRAMINGS {
        let host = Host::new();
        let (connection, mut peer) = host.active(&config);
        let memory = host.region(300_000, Access::empty());
        let bytes = pattern(300_000);
        memory.fill(&bytes);
        connection.post(1, Opcode::Send, &Target::default(), &[memory.sge(0, 300_000)]);
        connection.post(2, Opcode::Send, &Target::default(), &[memory.sge(0, 5)]);
        connection.handle.disconnect().unwrap();
        assert!(peer.message().1 == bytes);
        assert_eq!(peer.message().1, bytes[..5]);
        peer.end();
        connection.ended();
        assert_eq!(host.completions(), [(1, Status::Success), (2, Status::Success)]);
        // From now on there is no connection to send on.
        connection.post(3, Opcode::Send, &Target::default(), &[memory.sge(0, 5)]);
        assert_eq!(host.completions(), [(3, Status::Flushed)]);
    }
}

// RFC5040-7.1-1, RFC5040-7.1-2, RFC5040-6.2.1-1, RFC5040-6.2.1-3, RFC5040-5.4-4
#[test]
fn a_local_error_is_told_to_both_sides() {
    let host = Host::new();
    let (connection, mut peer) = host.active(&PLAIN);
    let memory = host.region(64, Access::empty());
    let mut bad = memory.sge(0, 8);
    bad.lkey ^= 1;
    connection.post(1, Opcode::Send, &Target::default(), &[memory.sge(0, 8)]);
    connection.post(2, Opcode::Send, &Target::default(), &[bad]);
    assert_eq!(peer.message().1, [0; 8]);
    let terminate = peer.terminate();
    assert_eq!(
        (terminate.segment_len(), terminate.ddp_header(), terminate.read_request()),
        (None, None, None)
    );
    connection.ended();
    assert_eq!(host.completions(), [(1, Status::Success), (2, Status::LocalProtection)]);
}

// RFC5040-7.1-5, RFC5041-7.1-12, RFC5044-8-5
#[test]
fn the_first_error_counts_and_nothing_behind_it() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let target = host.region(16, ALL);
    let write = |stag| Outbound::Write { stag, to: target.address(), len: 4 };
    let mut stream = peer.frames(write(target.key() ^ 1), b"evil");
    stream.extend(peer.frames(write(target.key()), b"late"));
    let read = ReadRequest { sink_stag: 1, sink_to: 1, len: 4, source_stag: target.key() ^ 1, source_to: 0 };
    stream.extend(peer.frames(Outbound::ReadRequest(read), b""));
    peer.raw(&stream);
    assert_eq!(codes(&peer.terminate()), (1, 1, 0));
    connection.ended();
    assert_eq!(target.bytes(), [0; 16]);
}
