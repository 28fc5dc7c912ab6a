//! Every iWARP frame of the Linux siw driver in `tests/captures/` is understood and made again, byte for
//! byte, padding aside.

#[path = "support/capture.rs"]
mod capture;

use std::path::PathBuf;
use std::time::Duration;

use adverb_proto::iwarp::mpa::{Config, Depths, Initiator, Parameters, Reply, Request, Responder, RtrKinds};
use adverb_proto::iwarp::{Arrival, Outbound, Receiver, Segment, Sender, Step};
use adverb_wire::mpa::CRC_LEN;
use adverb_wire::rdmap::Opcode;
use capture::{Flow, flows};

/// What siw wants of a connection; depths are filled in.
fn siw(depths: Depths) -> Config {
    Config {
        crc: false,
        ird: depths.ird.unwrap(),
        ord: depths.ord.unwrap(),
        rtr: RtrKinds::NONE,
        large_fpdu: false,
        extensions: false,
        ..Config::default()
    }
}

/// Number of FPDUs of each opcode.
type Counts = [usize; 12];

fn capture(name: &str) -> Vec<Flow> {
    flows(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name))
}

/// Goes through a whole capture; returns the number of connections and of FPDUs of each opcode.
fn check(name: &str) -> (usize, Counts) {
    let flows = capture(name);
    let (mut connections, mut counts) = (0, [0; 12]);
    for request in flows.iter().filter(|flow| flow.bytes.starts_with(b"MPA ID Req Frame")) {
        let reply = flows.iter().find(|flow| flow.from == request.to && flow.to == request.from).unwrap();
        connections += 1;
        let (initiator, responder, request_len, reply_len) = start_up(&request.bytes, &reply.bytes);
        check_stream(&initiator, &responder, &request.bytes[request_len..], &mut counts);
        check_stream(&responder, &initiator, &reply.bytes[reply_len..], &mut counts);
    }
    (connections, counts)
}

/// Both frames, read and made again.
fn start_up(request: &[u8], reply: &[u8]) -> (Parameters, Parameters, usize, usize) {
    let (now, timeout) = (Duration::ZERO, Duration::from_secs(1));
    let Request::Complete { offer, private_data, consumed: request_len } =
        Responder::new(now, timeout).receive(request).unwrap()
    else {
        panic!("incomplete request")
    };
    let initiator = Initiator::new(&siw(offer.depths.unwrap()), private_data, now, timeout).unwrap();
    assert_eq!(initiator.request(), &request[..request_len]);

    let Reply::Accepted { parameters, peer, private_data, consumed: reply_len } =
        initiator.receive(reply).unwrap()
    else {
        panic!("not accepted")
    };
    let (again, responder) = offer.accept(&siw(peer.unwrap()), private_data).unwrap();
    assert_eq!(again, &reply[..reply_len]);
    (parameters, responder, request_len, reply_len)
}

/// All FPDUs of one direction, read and made again.
fn check_stream(from: &Parameters, to: &Parameters, stream: &[u8], counts: &mut Counts) {
    let mut receiver = Receiver::new(to);
    let mut sender = Sender::new(from, 1448);
    let arrivals = read(&mut receiver, stream);
    assert_eq!(receiver.end_of_stream(0), Ok(()));
    let mut at = 0;
    for (index, arrival) in arrivals.iter().enumerate() {
        counts[arrival.segment.opcode() as usize] += 1;
        if !sender.is_busy() {
            sender.begin(message(&arrivals[index..])).unwrap();
        }
        if arrival.payload_len > 0 && !is_last(&arrival.segment) {
            // The FPDU was as large as it could be.
            sender.set_emss(arrival.total_len());
        }
        let fpdu = sender.next_fpdu().unwrap();
        let payload = &stream[at + arrival.head_len..][..arrival.payload_len];
        let mut frame = Vec::new();
        sender.seal(&fpdu, payload, &mut frame);
        let mut original = stream[at..at + arrival.total_len()].to_vec();
        // siw leaves old bytes in the padding, where the standard wants zeros.
        let padding = original.len() - arrival.trailer_len..original.len() - CRC_LEN;
        original[padding].fill(0);
        assert_eq!(frame, original, "{:?}", arrival.segment);
        at += arrival.total_len();
        sender.set_emss(1448);
    }
    assert!(!sender.is_busy() && at == stream.len());
}

fn read(receiver: &mut Receiver, stream: &[u8]) -> Vec<Arrival> {
    let (mut arrivals, mut at) = (Vec::new(), 0);
    while at < stream.len() {
        match receiver.next(&stream[at..]).unwrap() {
            Step::Need(n) => panic!("{n} bytes needed, {} there", stream.len() - at),
            Step::Segment(arrival) => {
                at += arrival.total_len();
                arrivals.push(arrival);
            }
        }
    }
    arrivals
}

fn is_last(segment: &Segment) -> bool {
    match *segment {
        Segment::Write { last, .. } | Segment::ReadResponse { last, .. } | Segment::Send { last, .. } => last,
        _ => true,
    }
}

/// The message that starts with the first of these segments.
fn message(arrivals: &[Arrival]) -> Outbound {
    let end = arrivals.iter().position(|arrival| is_last(&arrival.segment)).unwrap();
    let len = arrivals[..=end].iter().map(|arrival| arrival.payload_len as u32).sum();
    match arrivals[0].segment {
        Segment::Write { stag, to, .. } => Outbound::Write { stag, to, len },
        Segment::ReadResponse { stag, to, .. } => {
            Outbound::ReadResponse { sink_stag: stag, sink_to: to, len }
        }
        Segment::Send { invalidate, solicited, .. } => Outbound::Send { len, invalidate, solicited },
        Segment::ReadRequest { request, .. } => Outbound::ReadRequest(request),
        other => panic!("siw does not send {other:?}"),
    }
}

fn counts(of: &[(Opcode, usize)]) -> Counts {
    let mut counts = [0; 12];
    for (opcode, count) in of {
        counts[*opcode as usize] = *count;
    }
    counts
}

// RFC5044-7.1.1-1, RFC5044-7.1.1-3, RFC6581-9-1, RFC5044-4.1-1, RFC5041-4.3-1, RFC5040-4.2-1
#[test]
fn rping() {
    let expected = counts(&[
        (Opcode::ReadRequest, 3),
        (Opcode::ReadResponse, 3),
        (Opcode::Write, 3),
        (Opcode::Send, 12),
    ]);
    assert_eq!(check("siw-rping.pcapng"), (1, expected));
}

// RFC5041-5.2-1, RFC5041-5.2-6, RFC5041-4.2-1
#[test]
fn rping_with_long_messages_over_ipv6() {
    let expected = counts(&[
        (Opcode::ReadRequest, 2),
        (Opcode::ReadResponse, 16),
        (Opcode::Write, 16),
        (Opcode::Send, 8),
    ]);
    assert_eq!(check("siw-rping-large-ipv6.pcapng"), (1, expected));
}

#[test]
fn ucmatose() {
    assert_eq!(check("siw-ucmatose.pcapng"), (1, counts(&[(Opcode::Send, 20)])));
}

#[test]
fn write_bandwidth() {
    let expected = counts(&[(Opcode::Write, 60), (Opcode::Send, 32)]);
    assert_eq!(check("siw-write-bw.pcapng"), (2, expected));
}

#[test]
fn read_bandwidth() {
    let expected = counts(&[(Opcode::ReadRequest, 5), (Opcode::ReadResponse, 60), (Opcode::Send, 32)]);
    assert_eq!(check("siw-read-bw.pcapng"), (2, expected));
}

#[test]
fn a_refused_connection_has_no_mpa() {
    assert_eq!(check("siw-reject.pcapng"), (0, [0; 12]));
    assert_eq!(capture("siw-reject.pcapng").iter().map(|flow| flow.bytes.len()).sum::<usize>(), 0);
}
