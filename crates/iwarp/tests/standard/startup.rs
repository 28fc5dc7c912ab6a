//! How a connection begins, in order and otherwise.

use crate::host::{DEPTHS, Events, Host, Target};
use crate::peer::{PLAIN, Peer, TEST_TIMEOUT, open, send};
use crate::{ALL, codes};
use adverb_core::cm::ConnectionEvent;
use adverb_core::request::Opcode;
use adverb_proto::iwarp::mpa::{Config, Parameters, Request, Responder, RtrKind, RtrKinds};
use adverb_proto::iwarp::{Outbound, Receiver, Segment, Step};
use std::io::{Read, Write};
use std::net::TcpListener;

// RFC5044-7.1.2-8, RFC5044-7.1-2
#[test]
fn a_responder_is_silent_until_the_initiator_has_sent() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&PLAIN);
    let memory = host.region(8, ALL);
    connection.established();
    connection.post(1, Opcode::Send, &Target::default(), &[memory.sge(0, 8)]);
    host.stays_idle();
    assert!(peer.is_silent());
    peer.send(Outbound::Write { stag: 0, to: 0, len: 0 }, b"");
    assert_eq!(peer.message().1, [0; 8]);
}

// RFC6581-5-1, RFC6581-9.2-1, RFC6581-9.2-5
#[test]
fn an_initiator_says_first_that_it_is_ready() {
    for kind in [RtrKind::Send, RtrKind::Write, RtrKind::Read] {
        let host = Host::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = host.connect(listener.local_addr().unwrap(), DEPTHS);
        let mut peer = Peer::accept(&listener, &Config { rtr: RtrKinds::only(kind), ..PLAIN });
        connection.established();
        let memory = host.region(8, ALL);
        connection.post(1, Opcode::Send, &Target::default(), &[memory.sge(0, 8)]);
        let (segment, payload) = peer.segment();
        match (kind, segment) {
            (RtrKind::Send, Segment::ReadyToReceive) => {}
            (RtrKind::Write, Segment::Write { last: true, .. }) => assert_eq!(payload, b""),
            (RtrKind::Read, Segment::ReadRequest { request, .. }) => {
                assert_eq!(request.len, 0);
                let (sink_stag, sink_to) = (request.sink_stag, request.sink_to);
                peer.send(Outbound::ReadResponse { sink_stag, sink_to, len: 0 }, b"");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(peer.message().1, [0; 8]);
        assert_eq!(host.completion().wr_id, 1);
    }
}

// RFC6581-9.2-2, RFC6581-9.2-3, RFC6581-9.2-4
#[test]
fn a_responder_waits_for_the_indication_of_the_initiator() {
    for kind in [RtrKind::Send, RtrKind::Write, RtrKind::Read] {
        let host = Host::new();
        let (connection, mut peer) = host.passive(&Config { rtr: RtrKinds::only(kind), ..PLAIN });
        let inbox = host.region(8, ALL);
        connection.receive(1, &[inbox.sge(0, 8)]);
        let indication = peer.parameters.rtr_message().unwrap();
        peer.send(indication, b"");
        connection.established();
        if kind == RtrKind::Read {
            assert!(matches!(peer.segment().0, Segment::ReadResponse { last: true, .. }));
        }
        // It takes no buffer of the program.
        peer.send(send(3), b"abc");
        assert_eq!(host.completion().byte_length, 3);
    }
}

// RFC5042-6.4.1-1
#[test]
fn a_peer_that_has_its_answer_and_is_silent_is_given_up() {
    let host = Host::new();
    let (connection, mut peer) = host.passive(&Config { rtr: RtrKinds::ALL, ..PLAIN });
    let event = connection.event();
    assert!(
        matches!(event, ConnectionEvent::Unreachable { status } if status == -libc::ETIMEDOUT),
        "{event:?}"
    );
    peer.end();
}

// RFC5042-6.4.1-1
#[test]
fn silent_connections_keep_nobody_out() {
    let host = Host::new();
    // It lets 8 requests wait.
    let listening = host.listen();
    let silent = std::array::from_fn::<_, 100, _>(|_| open(listening.address));
    let address = listening.address;
    let peer = std::thread::spawn(move || Peer::connect(address, &PLAIN));
    let request = listening.requests.recv_timeout(TEST_TIMEOUT).unwrap();
    let (sink, _events) = Events::new();
    let _handle = request.accept(&host.queue_pair(), DEPTHS, b"", sink).unwrap();
    peer.join().unwrap();
    // Nor does it hold any number of them: the oldest was closed without a word, not by its time limit.
    let mut answer = Vec::new();
    let _ = (&silent[0]).read_to_end(&mut answer);
    assert_eq!(answer, b"");
    assert!(silent[99].set_nonblocking(true).is_ok() && (&silent[99]).read(&mut [0]).is_err());
}

// RFC5044-7.1.1-2, RFC5044-7.1.1-11, RFC5044-7.1.1-13, RFC5044-7.1.2-2, RFC5044-7.1.2-3, RFC5044-7.1.2-9,
// RFC5044-8-4
#[test]
fn a_malformed_request_closes_the_connection() {
    let host = Host::new();
    let listening = host.listen();
    for request in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"MPA ID Rep Frame\0\x01\0\0",
        b"MPA ID Req Frame\0\x03\0\0",
        b"MPA ID Req Frame\0\x01\x02\x01",
        b"MPA ID Req Frame\x10\x02\0\x03abc",
    ] {
        let mut stream = open(listening.address);
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        // A reset, where bytes were left unread, is a close too.
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    assert!(listening.requests.try_recv().is_err());
}

// RFC5044-7.1.2-4, RFC5044-7.1.1-8, RFC6581-10-1, RFC6581-10-2
#[test]
fn a_refused_request_is_answered() {
    let host = Host::new();
    let listening = host.listen();
    for (request, expected) in [
        (&b"MPA ID Req Frame\0\x01\0\0"[..], &b"MPA ID Rep Frame\x20\x01\0\x02no"[..]),
        (b"MPA ID Req Frame\x10\x02\0\x04\0\x01\0\x02", b"MPA ID Rep Frame\x30\x02\0\x06\0\x02\0\x01no"),
    ] {
        let mut stream = open(listening.address);
        stream.write_all(request).unwrap();
        listening.requests.recv_timeout(TEST_TIMEOUT).unwrap().reject(b"no").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, expected);
    }
}

/// Connects and answers with `reply`, made from the right one; shows the event, and what else the initiator
/// sent.
fn answered_by(reply: impl FnOnce(Vec<u8>) -> Vec<u8>) -> (ConnectionEvent, Vec<u8>, Parameters) {
    let host = Host::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = host.connect(listener.local_addr().unwrap(), DEPTHS);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let responder = Responder::new(Default::default(), TEST_TIMEOUT);
    let mut request = Vec::new();
    let offer = loop {
        match responder.receive(&request).unwrap() {
            Request::Complete { offer, .. } => break offer,
            Request::Need(n) => {
                let from = request.len();
                request.resize(n, 0);
                stream.read_exact(&mut request[from..]).unwrap();
            }
        }
    };
    let (good, parameters) = offer.accept(&PLAIN, b"").unwrap();
    stream.write_all(&reply(good)).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    (connection.event(), rest, parameters)
}

// RFC5044-7.1.1-4, RFC5044-7.1.2-5, RFC5044-7.1.2-6, RFC5044-7.1.2-9, RFC5044-8-4
#[test]
fn a_malformed_reply_closes_the_connection() {
    let replies: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        |mut reply| {
            reply[..16].copy_from_slice(b"MPA ID Req Frame");
            reply
        },
        |mut reply| {
            reply[17] = 3;
            reply
        },
        |mut reply| {
            reply[18] = 3;
            reply
        },
    ];
    for reply in replies {
        let (event, rest, _) = answered_by(reply);
        assert!(matches!(event, ConnectionEvent::Failed { .. }), "{event:?}");
        assert_eq!(rest, b"");
    }
}

// RFC5044-7.1.2-7, RFC6581-9.1-1
#[test]
fn a_rejection_is_reported_with_its_private_data() {
    let (event, rest, _) = answered_by(|_| b"MPA ID Rep Frame\x30\x02\0\x06\0\x01\0\x01no".to_vec());
    let ConnectionEvent::Rejected { private_data, .. } = event else { panic!("{event:?}") };
    assert_eq!((private_data, rest), (b"no".to_vec(), Vec::new()));
}

// RFC6581-9.1-4, RFC6581-8-1
#[test]
fn a_responder_that_wants_too_many_reads_gets_a_terminate() {
    let (event, rest, parameters) = answered_by(|mut reply| {
        reply[23] = 0xff;
        reply
    });
    assert!(matches!(event, ConnectionEvent::Failed { .. }), "{event:?}");
    let Ok(Step::Segment(arrival)) = Receiver::new(&parameters).next(&rest) else { panic!("{rest:02x?}") };
    let Segment::Terminate(terminate) = arrival.segment else { panic!("{arrival:?}") };
    assert_eq!(codes(&terminate), (2, 0, 6));
}
