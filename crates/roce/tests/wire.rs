//! Packets made by hand and sent to queue pairs of the device: what counts, what is dropped, what is told.
//!
//! The peer is a plain UDP socket on an address of the loopback.

#[path = "support/packets.rs"]
mod packets;

use adverb_core::attributes::{Gid, gid_of};
use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{
    Home, Memory, Pair, QKEY, Shape, Side, TEST_TIMEOUT, path, signalled,
};
use adverb_core::counters::Counters;
use adverb_core::error::PostError;
use adverb_core::event::AsyncEventKind;
use adverb_core::qp::{AttributeMask as M, Attributes, Path, Service, State};
use adverb_core::request::{CompletionFlags, Datagram, Opcode as RequestOpcode, SendRequest, Status};
use adverb_core::transport::TransportFactory;
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, ICRC_LEN, MAX_HEADER, Reth};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN};
use adverb_wire::ib::opcode::{Opcode, Operation, Service as WireService};
use packets::{Peer, ROCE, datagram, opcode, packet, question, send_only};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

const TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// The peer's queue pair.
const NUMBER: u32 = 0x77;
/// The first packet that a queue pair expects of the peer.
const PSN: u32 = 0xff_ffff;

/// The device's counters belong to the whole process, so one test runs at a time.
fn alone() -> (MutexGuard<'static, ()>, Site) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(|e| e.into_inner());
    // Queue pairs of one process would leave the network alone.
    // SAFETY: one test runs at a time, and the engine begins with the next line.
    unsafe { std::env::set_var("ADVERB_LOCAL", "off") };
    (guard, Site::new(|| adverb_core::engine::install(TRANSPORTS), "roce0", "127.0.0.1"))
}

fn counters(side: &Side) -> &'static Counters {
    side.context.device().counters()
}

/// Polls until something holds.
#[track_caller]
fn until(side: &Side, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        assert_eq!(side.receives.poll(0, |_| ()).unwrap(), 0);
        std::thread::yield_now();
    }
}

/// A queue pair in INIT that attributes connect to the peer, and these.
fn towards_the_peer(site: &Site, service: Service) -> (Side, M, Attributes) {
    let side = Side::unconnected(&Home::new(site), Shape::default(), service);
    side.begin();
    let attributes = Attributes {
        path: Path { gid: gid_of(PEER.into()), ..path(&side.context, site.address) },
        path_mtu: 1024,
        destination: NUMBER,
        rq_psn: PSN,
        max_dest_rd_atomic: 1,
        ..Attributes::default()
    };
    let mut mask = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    if service == Service::Rc {
        mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    }
    (side, mask, attributes)
}

/// Whatever is wrong with a packet, it is as if it had not come; and what may differ does no harm.
// IB-PKT-4, IB-PKT-10, IB-PKT-20, IB-PKT-38, IB-PKT-43, IB-PKT-46, IB-PKT-47, IB-PKT-49, IB-PKT-50,
// IB-PKT-52, ROCE-5, ROCE-6
#[test]
fn only_packets_for_a_queue_pair_reach_it() {
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.to(State::Rtr, mask, &attributes);
    let (peer, stranger) = (Peer::at(PEER), Peer::at(STRANGER));
    let to = peer.find(&side, &site);
    let memory = Memory::open(&side.domain, 8);
    for wr_id in 1..=3 {
        side.post_receive(wr_id, &[memory.all()]);
    }
    let wrong = send_only(&side, PSN, b"wrong");
    let changed = |at: usize, value: u8| {
        let mut packet = wrong.clone();
        packet[at] = value;
        packet
    };
    let counters = counters(&side);
    let partition = counters.wrong_pkey.get();
    stranger.send(to, &wrong);
    for (at, value, what) in [
        (0, 0x24, "the opcode of an unreliable send"),
        (0, 0x15, "an opcode that is reserved"),
        (1, 0x31, "version 1 of the headers"),
        (2, 0x12, "another partition"),
        (0, 0x11, "an acknowledgement of nothing"),
    ] {
        assert_ne!(wrong[at], value, "{what}");
        peer.send(to, &changed(at, value));
    }
    // For nobody: 2 is never given out.
    peer.send(to, &[&wrong[..5], &[0, 0, 2], &wrong[8..]].concat());
    peer.send_raw(to, &wrong[..8]);
    let mut sealed = wrong.clone();
    sealed.extend_from_slice(&[0; ICRC_LEN]);
    // One CRC in 2^15 is right by chance, because the receiver is not told the identification.
    while peer.crc(to).verify(&sealed) {
        sealed[wrong.len()] += 1;
    }
    peer.send_raw(to, &sealed);

    peer.send(to, &send_only(&side, PSN, b"good"));
    assert_eq!(side.received_well(1).byte_length, 4);
    assert_eq!(memory.bytes()[..4], *b"good");
    assert_eq!(counters.wrong_pkey.get(), partition + 1);
    // Another source port, no UDP checksum, partial membership, no migration bit.
    let other = Peer::at(PEER);
    other.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
    let mut next = send_only(&side, 0, b"next");
    (next[1], next[2]) = (0, 0x7f);
    other.send(to, &next);
    side.received_well(2);
    assert_eq!(memory.bytes()[..4], *b"next");
}

/// In INIT packets are dropped; the first one in RTR is an event; in ERROR they are dropped again.
// IB-PKT-48, IB-QP-3, IB-QP-4, IB-QP-5, IB-QP-9, IB-QP-38, IB-RC-RSP-61
#[test]
fn states_decide_what_is_taken() {
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.queue_pair.set_cookie(4);
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    side.post_receive(1, &[]);
    side.post_receive(2, &[]);
    let dropped = || counters(&side).dropped.get();
    let before = dropped();
    peer.send(to, &send_only(&side, PSN, b""));
    until(&side, "a packet in INIT is not counted", || dropped() > before);
    side.to(State::Rtr, mask, &attributes);
    assert_eq!(side.queue_pair.post_send(&signalled(&[], (0, 0))), Err(PostError::State));
    peer.send(to, &send_only(&side, PSN, b""));
    side.received_well(1);
    side.raised(AsyncEventKind::CommunicationEstablished, 4);
    peer.send(to, &send_only(&side, 0, b""));
    side.received_well(2);
    assert!(!side.context.events().ready(0).unwrap(), "told once");
    let to_send = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    side.to(State::Rts, to_send, &attributes);
    side.post_receive(3, &[]);
    peer.send(to, &send_only(&side, 1, b""));
    side.received_well(3);
    side.post_receive(4, &[]);
    side.to(State::Error, M::empty(), &Attributes::default());
    assert_eq!(side.received().status, Status::Flushed);
    let before = dropped();
    peer.send(to, &send_only(&side, 2, b""));
    until(&side, "a packet in ERROR is not counted", || dropped() > before);
}

/// A request that is not allowed is an event, and the end.
// IB-RC-RSP-21, IB-RC-RSP-29, IB-RC-RSP-30, IB-RC-RSP-31
#[test]
fn a_violation_is_told_and_ends_the_queue_pair() {
    let (_guard, site) = alone();
    for kind in [AsyncEventKind::QpRequestError, AsyncEventKind::QpAccessError] {
        let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
        side.queue_pair.set_cookie(6);
        side.to(State::Rtr, mask, &attributes);
        let peer = Peer::at(PEER);
        let to = peer.find(&side, &site);
        side.post_receive(1, &[]);
        side.post_receive(2, &[]);
        peer.send(to, &send_only(&side, PSN, b""));
        side.received_well(1);
        side.raised(AsyncEventKind::CommunicationEstablished, 6);
        let memory = Memory::open(&side.domain, 8);
        // Either of five bytes only four come, or the key is wrong.
        let (mask, bytes) = match kind {
            AsyncEventKind::QpRequestError => (0, &b"four"[..]),
            _ => (0x5a5a_5a00, &b"fives"[..]),
        };
        let key = memory.region.key() ^ mask;
        let mut buffer = [0; MAX_HEADER];
        let length = HeaderWriter::new(&mut buffer).put(&Reth::new(memory.address(0), key, 5)).len();
        let number = side.queue_pair.number();
        let bth = Bth::new(opcode(WireService::Rc, Operation::WriteOnly), DEFAULT_PKEY, number, 0);
        peer.send(to, &packet(bth, &buffer[..length], bytes));
        side.raised(kind, 6);
        assert_eq!(side.queue_pair.state(), State::Error, "told too early");
        assert_eq!(side.received().status, Status::Flushed);
        assert_eq!(memory.bytes(), [0; 8]);
    }
}

/// Of a first packet that is refused the program hears in the order of things.
// IB-QP-38, IB-QP-39
#[test]
fn the_first_packet_is_refused() {
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.queue_pair.set_cookie(9);
    side.to(State::Rtr, mask, &attributes);
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    // The middle of a message that has not begun.
    let mut middle = send_only(&side, PSN, &[0; 1024]);
    middle[0] = 0x01;
    peer.send(to, &middle);
    side.raised(AsyncEventKind::CommunicationEstablished, 9);
    side.raised(AsyncEventKind::QpRequestError, 9);
    assert_eq!(side.queue_pair.state(), State::Error);
}

/// In SQD a queue pair can be given another path, and what has not arrived by the old one goes by the new
/// one.
// IB-QP-18
#[test]
fn a_path_changes_in_sqd() {
    let (_guard, site) = alone();
    let Pair { client, server } = Pair::of(&site, Service::Rc, Shape::default(), &Home::new(&site));
    let right = client.queue_pair.attributes().path;
    let lead = |path| {
        client.to(State::Sqd, M::empty(), &Attributes::default());
        client.to(State::Sqd, M::AV, &Attributes { path, ..Attributes::default() });
        client.to(State::Rts, M::empty(), &Attributes::default());
        assert_eq!(client.queue_pair.attributes().path, path);
    };
    server.post_receive(1, &[]);
    // To an address as which the server does not hear its peer.
    lead(Path { gid: gid_of(PEER.into()), ..right });
    let misaddressed = counters(&server).misaddressed.get();
    client.post(1, RequestOpcode::Send, &[], (0, 0));
    until(&server, "nothing takes the new path", || counters(&server).misaddressed.get() > misaddressed);
    lead(right);
    client.sent_well(1);
    server.received_well(1);
}

/// From RTR on: a reliable queue pair that gives up after a few timeouts.
fn ready_to_send(side: &Side, timeout: u8, retry_count: u8) {
    let attributes = Attributes { timeout, retry_count, ..Attributes::default() };
    let mask = M::SQ_PSN | M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    side.to(State::Rts, mask, &attributes);
}

/// Queue pairs that share a congestion window, on lanes of their own: when one of them fails, or goes, those
/// that wait for room go on.
#[test]
fn a_queue_pair_that_waits_for_room_goes_on_when_others_fail() {
    const LONG: usize = 1 << 20;
    let (_guard, site) = alone();
    // Nobody is there, so nothing is acknowledged.
    let sides = [(); 3].map(|()| {
        let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
        side.to(State::Rtr, mask, &attributes);
        side
    });
    let memory = sides.each_ref().map(|side| Memory::open(&side.domain, LONG));
    for (side, (timeout, memory)) in sides.iter().zip([14, 1, 1].into_iter().zip(&memory)) {
        ready_to_send(side, timeout, 1);
        side.post(1, RequestOpcode::Send, &[memory.all()], (0, 0));
    }
    for side in &sides {
        let done = side.sent();
        assert_eq!((done.wr_id, done.status), (1, Status::RetryExceeded));
    }
    // The same when the one that fills the window is destroyed.
    let [(first, ..), (second, mask, attributes)] = [(); 2].map(|()| towards_the_peer(&site, Service::Rc));
    for side in [&first, &second] {
        side.to(State::Rtr, mask, &attributes);
    }
    ready_to_send(&first, 31, 7);
    ready_to_send(&second, 1, 0);
    let memory = Memory::open(&first.domain, LONG);
    first.post(1, RequestOpcode::Send, &[memory.all()], (0, 0));
    second.post(1, RequestOpcode::Send, &[], (0, 0));
    first.queue_pair.destroy();
    assert_eq!(second.sent().status, Status::RetryExceeded);
}

/// An answer that nobody gives to a request is the end of it, and the completion says so.
// IB-RC-REQ-35, IB-RC-REQ-37
#[test]
fn an_impossible_answer_fails_the_request() {
    let (_guard, site) = alone();
    // To a datagram of a service that the queue pair does not have; a syndrome that is reserved.
    for syndrome in [0x64, 0x40] {
        let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
        side.to(State::Rtr, mask, &attributes);
        // It asks for ever.
        ready_to_send(&side, 0, 7);
        let peer = Peer::at(PEER);
        let to = peer.find(&side, &site);
        side.post(1, RequestOpcode::Send, &[], (0, 0));
        let number = side.queue_pair.number();
        let bth = Bth::new(opcode(WireService::Rc, Operation::Acknowledge), DEFAULT_PKEY, number, 0);
        let answer = packet(bth, &[syndrome, 0, 0, 0], &[]);
        let mut done = None;
        until(&side, "the request goes on", || {
            // Before the request has left, there is nothing that it answers.
            peer.send(to, &answer);
            side.sends.poll(1, |completion| done = Some(*completion)).unwrap() > 0
        });
        let done = done.unwrap();
        assert_eq!((done.wr_id, done.status, done.vendor_error), (1, Status::BadResponse, 0x305));
    }
}

/// Whether anything has come for the peer. What was sent on this host before is there already.
fn hears_nothing(peer: &Peer) -> bool {
    peer.socket.set_nonblocking(true).unwrap();
    let heard = peer.socket.recv_from(&mut [0; 2048]);
    heard.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// A process that can send from an address may ask in the name of a queue pair there. The datagrams of that
/// queue pair do not go to the process.
#[test]
fn a_question_diverts_no_datagrams() {
    const ASKER: u32 = NUMBER + 1;
    let (_guard, site) = alone();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Ud);
    side.begin();
    let peer = Peer::at(PEER);
    let send = |wr_id: u64| {
        let peer_path = Path { gid: gid_of(PEER.into()), ..path(&side.context, site.address) };
        let datagram = Some(Datagram { path: &peer_path, queue_pair: ASKER, qkey: QKEY });
        side.queue_pair.post_send(&SendRequest { wr_id, datagram, ..signalled(&[], (0, 0)) }).unwrap();
    };
    let ask = || {
        let question = question(side.queue_pair.number(), ASKER, 1);
        peer.send(site.at(ROCE), &datagram(GSI_QPN, GSI_QKEY, &question));
        peer.answer();
    };
    // Before anything is known of it, while it is looked for, and after nobody has answered.
    ask();
    send(1);
    ask();
    side.sent_well(1);
    ask();
    for wr_id in 2..10 {
        send(wr_id);
        side.sent_well(wr_id);
    }
    assert!(hears_nothing(&peer), "a datagram has come to the asker");
}

/// A question in the name of a connection's peer brings none of the connection's packets to the asker. The
/// device asks port 4791 once more where the peer's queue pair lives, and does not believe the asker.
#[test]
fn a_question_diverts_no_connection() {
    const ASKER: u32 = NUMBER + 2;
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.to(State::Rtr, mask, &Attributes { destination: ASKER, ..attributes });
    ready_to_send(&side, 8, 7);
    let peer = Peer::at(PEER);
    let question = question(side.queue_pair.number(), ASKER, 1);
    peer.send(site.at(ROCE), &datagram(GSI_QPN, GSI_QKEY, &question));
    peer.answer();
    side.post(1, RequestOpcode::Send, &[], (0, 0));
    assert_eq!(side.sent().status, Status::RetryExceeded);
    assert!(hears_nothing(&peer), "a packet has come to the asker");
}

/// Once it is known where the peer's queue pair lives, packets count from there alone: another process of its
/// host, which has its address, is not it.
// IB-PKT-50
#[test]
fn packets_count_from_where_the_peer_lives() {
    let (_guard, site) = alone();
    let Pair { client, server } = Pair::of(&site, Service::Rc, Shape::default(), &Home::new(&site));
    let other = Peer::at(Ipv4Addr::LOCALHOST);
    let to = other.find(&server, &site);
    let memory = Memory::open(&server.domain, 16);
    server.post_receive(1, &[memory.all()]);
    let counters = counters(&server);
    let (misaddressed, slowed) = (counters.misaddressed.get(), counters.congestion_received.get());
    other.send(to, &send_only(&server, server.queue_pair.attributes().rq_psn, b"FORGED"));
    let number = server.queue_pair.number();
    let notice = Bth::new(Opcode::CONGESTION_NOTIFICATION, DEFAULT_PKEY, number, 0).with_becn();
    other.send(to, &packet(notice, &[], &[0; 16]));
    until(&server, "forged packets are not dropped", || counters.misaddressed.get() >= misaddressed + 2);
    let genuine = Memory::open(&client.domain, 7);
    genuine.set(b"genuine");
    client.post(1, RequestOpcode::Send, &[genuine.all()], (0, 0));
    client.sent_well(1);
    assert_eq!(server.received_well(1).byte_length, 7);
    assert_eq!(memory.bytes()[..7], *b"genuine");
    assert_eq!(counters.congestion_received.get(), slowed);
}

/// A packet with another sequence number than the one that is expected says nothing of the peer: neither that
/// it is there, nor that it is to be spared.
// IB-RC-RSP-61, IB-QP-38
#[test]
fn the_sequence_number_is_looked_at_first() {
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.queue_pair.set_cookie(5);
    side.to(State::Rtr, mask, &attributes);
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    side.post_receive(1, &[]);
    let counters = counters(&side);
    let (taken, slowed) = (counters.rx_frames.get(), counters.congestion_received.get());
    let notified = counters.congestion_sent.get();
    peer.set(libc::SOL_IP, libc::IP_TOS, 3);
    for psn in [PSN - 1, 1, 77, 0x7f_fff0] {
        let mut packet = send_only(&side, psn, b"");
        packet[4] |= 0x40;
        peer.send(to, &packet);
    }
    until(&side, "they do not come", || counters.rx_frames.get() >= taken + 4);
    assert!(!side.context.events().ready(0).unwrap(), "a guess is taken for the peer");
    peer.set(libc::SOL_IP, libc::IP_TOS, 0);
    peer.send(to, &send_only(&side, PSN, b""));
    side.received_well(1);
    side.raised(AsyncEventKind::CommunicationEstablished, 5);
    assert_eq!(counters.congestion_received.get(), slowed);
    assert_eq!(counters.congestion_sent.get(), notified);
}

/// Kernels and adapters ask for all of a long read at once, and send what is behind it without waiting. It is
/// taken in once, in its place, and not asked for again.
// PRACTICE-ORDER-2
#[test]
fn packets_behind_a_long_read_are_taken_in_and_not_asked_for_again() {
    const LONG: usize = 8 << 20;
    let (_guard, site) = alone();
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.to(State::Rtr, mask, &attributes);
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    let memory = Memory::open(&side.domain, LONG);
    let placed = Memory::open(&side.domain, 16);
    let mut buffer = [0; MAX_HEADER];
    let reth = Reth::new(memory.address(0), memory.region.key(), LONG as u32);
    let count = HeaderWriter::new(&mut buffer).put(&reth).len();
    let read = opcode(WireService::Rc, Operation::ReadRequest);
    let bth = Bth::new(read, DEFAULT_PKEY, side.queue_pair.number(), PSN).with_ack_request(true);
    let behind = LONG as u32 / attributes.path_mtu - 1;
    let packets = [
        packet(bth, &buffer[..count], &[]),
        send_only(&side, behind, &[1; 16]),
        // One that is repeated, and one before which some are missing.
        send_only(&side, behind, &[3; 16]),
        send_only(&side, behind + 7, &[4; 16]),
        send_only(&side, behind + 1, &[2; 16]),
    ];
    // In one train, which arrives as a whole.
    let length = packets[0].len() + ICRC_LEN;
    let sealed = |(place, packet): (usize, &Vec<u8>)| {
        assert_eq!(packet.len() + ICRC_LEN, length);
        let mut crc = peer.crc(to).seed(place as u16, length);
        crc.begin(packet);
        [&packet[..], &crc.finish().to_le_bytes()].concat()
    };
    peer.set(libc::SOL_UDP, libc::UDP_SEGMENT, length as i32);
    for wr_id in 1..=2 {
        side.post_receive(wr_id, &[placed.all()]);
    }
    let told = counters(&side).out_of_sequence.get();
    peer.send_raw(to, &packets.iter().enumerate().flat_map(sealed).collect::<Vec<_>>());
    side.received_well(1);
    side.received_well(2);
    assert_eq!(placed.bytes(), [2; 16]);
    assert_eq!(counters(&side).out_of_sequence.get(), told, "what has no place does not wait");
}

/// Datagrams from a stranger's stack: who sent them is seen in front of them; what does not fit touches
/// nothing behind the receive.
// IB-UD-10, IB-UD-12, IB-UD-13, IB-UD-14, IB-UD-15, IB-UD-16, IB-UD-17, IB-PKT-52, IB-PKT-53
#[test]
fn datagrams_of_others() {
    let (_guard, site) = alone();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Ud);
    side.begin();
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    let number = side.queue_pair.number();
    let memory = Memory::open(&side.domain, 64);
    side.post_receive(1, &[memory.sge(0, 44)]);
    side.post_receive(2, &[memory.sge(0, 44)]);
    let counters = counters(&side);
    let before = [counters.wrong_qkey.get(), counters.misaddressed.get()];
    peer.send(to, &datagram(number, QKEY ^ 1, b"no"));
    // To the number of groups, but to no group.
    peer.send(to, &datagram(0xff_ffff, QKEY, b"no"));
    peer.send(to, &datagram(number, QKEY, b"good"));
    let done = side.received_well(1);
    assert_eq!([counters.wrong_qkey.get(), counters.misaddressed.get()], before.map(|count| count + 1));
    assert_eq!((done.byte_length, done.source_queue_pair), (44, GSI_QPN));
    assert!(done.flags.contains(CompletionFlags::GRH));
    // UDP behind an IPv4 header, as adapters tell it.
    assert_eq!(done.service_level, 8 | 2);
    let bytes = memory.bytes();
    assert_eq!(bytes[40..44], *b"good");
    assert_eq!((bytes[20], &bytes[32..36]), (0x45, &PEER.octets()[..]));
    let sum: u32 = bytes[20..40].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's checksum");
    peer.send(to, &datagram(number, QKEY, b"too long"));
    peer.send(to, &datagram(number, QKEY, b"last"));
    let mut done = side.received();
    if done.status == Status::LocalLength {
        side.post_receive(3, &[memory.sge(0, 44)]);
        peer.send(to, &datagram(number, QKEY, b"last"));
        done = side.received();
    }
    assert_eq!(done.status, Status::Success);
    assert_eq!(memory.bytes()[40..], *b"last\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
}

/// Datagrams are numbered from the attribute on.
// IB-UD-7
#[test]
fn datagrams_are_numbered() {
    let (_guard, site) = alone();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Ud);
    side.begin();
    let first = side.queue_pair.attributes().sq_psn;
    assert_ne!(first, 0);
    let peer_path = path(&side.context, site.address);
    for count in 1..20 {
        let datagram = Some(Datagram { path: &peer_path, queue_pair: side.queue_pair.number(), qkey: QKEY });
        let request = SendRequest { wr_id: count, datagram, ..signalled(&[], (0, 0)) };
        side.queue_pair.post_send(&request).unwrap();
        side.sent_well(count);
        assert_eq!(side.queue_pair.attributes().sq_psn, (first + count as u32) & 0xff_ffff);
    }
}

/// A datagram to a group has the number of groups; with another one it is nobody's.
// IB-PKT-53
#[test]
fn a_group_has_a_number() {
    let (_guard, site) = alone();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Ud);
    side.begin();
    let group = Ipv4Addr::new(239, 129, 2, 7);
    side.queue_pair.attach_multicast(&gid_of(group.into())).unwrap();
    // Some loopbacks have no multicast.
    let gids = side.context.gids();
    let address = |gid: &Gid| Ipv6Addr::from(gid.bytes).to_ipv4_mapped();
    let from = gids.iter().find_map(address).expect("an IPv4 address");
    let peer = Peer::at(from);
    peer.set(libc::SOL_IP, libc::IP_MULTICAST_IF, i32::from_ne_bytes(from.octets()));
    let memory = Memory::open(&side.domain, 44);
    side.post_receive(1, &[memory.all()]);
    let to = SocketAddr::from((group, ROCE));
    let counters = counters(&side);
    let (before, received) = (counters.misaddressed.get(), counters.rx_messages.get());
    // Another process may hold the port, and takes a moment to join the group.
    until(&side, "nothing arrives", || {
        peer.send(to, &datagram(side.queue_pair.number(), QKEY, b"no"));
        peer.send(to, &datagram(0xff_ffff, QKEY, b"good"));
        counters.rx_messages.get() > received && counters.misaddressed.get() > before
    });
    assert_eq!(side.received_well(1).byte_length, 44);
    assert_eq!(memory.bytes()[40..], *b"good");
}

/// A mark of congestion comes back as a notification, which slows down whoever it is for, and is never
/// answered.
// ROCE-33, ROCE-34, ROCE-35, ROCE-36, ROCE-37, ROCE-38
#[test]
fn congestion_is_notified() {
    let (_guard, site) = alone();
    let Pair { client, server } = Pair::of(&site, Service::Rc, Shape::default(), &Home::new(&site));
    // As if a router on the way had marked what the client sends.
    let marked = Path { traffic_class: 3, ..client.queue_pair.attributes().path };
    client.to(State::Sqd, M::empty(), &Attributes::default());
    client.to(State::Sqd, M::AV, &Attributes { path: marked, ..Attributes::default() });
    client.to(State::Rts, M::empty(), &Attributes::default());
    server.post_receive(1, &[]);
    let device = counters(&server);
    let (sent, received) = (device.congestion_sent.get(), device.congestion_received.get());
    client.post(1, RequestOpcode::Send, &[], (0, 0));
    client.sent_well(1);
    server.received_well(1);
    until(&server, "no notification is sent", || device.congestion_sent.get() > sent);
    until(&client, "no notification arrives", || device.congestion_received.get() > received);

    // Of a peer that is no adverb, and sends from any port.
    let (side, mask, attributes) = towards_the_peer(&site, Service::Rc);
    side.to(State::Rtr, mask, &attributes);
    let peer = Peer::at(PEER);
    let to = peer.find(&side, &site);
    let notification = |number: u32| {
        let bth = Bth::new(Opcode::CONGESTION_NOTIFICATION, DEFAULT_PKEY, number, 0).with_becn();
        packet(bth, &[], &[0; 16])
    };
    let (sent, received) = (device.congestion_sent.get(), device.congestion_received.get());
    let (misaddressed, unknown) = (device.misaddressed.get(), device.unknown.get());
    Peer::at(STRANGER).send(to, &notification(side.queue_pair.number()));
    peer.send(to, &notification(2));
    peer.send(to, &notification(side.queue_pair.number()));
    until(&side, "a notification is not heard", || device.congestion_received.get() > received);
    assert_eq!(device.congestion_received.get(), received + 1);
    assert!(device.misaddressed.get() > misaddressed);
    // Whether it is another process's is looked up after the others have been taken in.
    until(&side, "a number of nobody's is not counted", || device.unknown.get() > unknown);
    assert_eq!(device.congestion_sent.get(), sent, "a notification is answered by another");
    // In any other packet of the peer the bit says the same.
    let mut marked = send_only(&side, PSN, b"");
    marked[4] |= 0x40;
    side.post_receive(2, &[]);
    peer.send(to, &marked);
    side.received_well(2);
    assert_eq!(device.congestion_received.get(), received + 2);
}

/// Queue pair 1 hears management datagrams alone, and answers to where the question came from.
// IB-PKT-51, IB-PKT-54, IB-PKT-57, IB-PKT-58, IB-PKT-59, IB-PKT-60, IB-PKT-61, ROCE-1
#[test]
fn management_datagrams() {
    let (_guard, site) = alone();
    let (side, ..) = towards_the_peer(&site, Service::Rc);
    let number = side.queue_pair.number();
    let peer = Peer::at(PEER);
    let to = site.at(ROCE);
    let good = Peer::ask(number, 2, GSI_QKEY);
    let mut reliable = good.clone();
    reliable[0] = 0x04;
    let mut class = good.clone();
    class[21] = 0x3c;
    for wrong in [&Peer::ask(number, 1, QKEY), &good[..good.len() - 4], &reliable, &class] {
        peer.send(to, wrong);
    }
    // Queue pair 0.
    peer.send(to, &[&good[..5], &[0, 0, 0], &good[8..]].concat());
    peer.send(to, &Peer::ask(number, 3, GSI_QKEY));
    let (transaction, port) = peer.answer();
    assert_eq!(transaction, 3, "something wrong was answered");
    assert_ne!(port, 0);
    assert!(matches!(peer.address.ip(), IpAddr::V4(PEER)));
}
