//! What is accepted, what is refused, and that no bytes do harm.

use proptest::prelude::*;

use super::*;
use crate::iwarp::{AtomicOperation, Outbound, Sender};

fn parameters() -> Parameters {
    Parameters {
        initiator: false,
        revision: 2,
        crc: false,
        markers_tx: false,
        markers_rx: false,
        ird: None,
        ord: None,
        rtr: None,
        large_fpdu: false,
        extensions: true,
    }
}

fn receiver() -> Receiver {
    Receiver::new(&parameters())
}

/// A frame from its ULPDU, with a trailer that nobody may look at.
fn frame(ulpdu: &[u8]) -> Vec<u8> {
    let mut frame = (ulpdu.len() as u16).to_be_bytes().to_vec();
    frame.extend_from_slice(ulpdu);
    frame.resize(fpdu_len(ulpdu.len()), 0xdb);
    frame
}

fn untagged(control: [u8; 2], queue: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let fields = [0, queue, msn, mo].map(u32::to_be_bytes).concat();
    frame(&[&control[..], &fields, payload].concat())
}

fn tagged(control: [u8; 2], stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    frame(&[&control[..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat())
}

fn segment(receiver: &mut Receiver, frame: &[u8]) -> Segment {
    match receiver.next(frame) {
        Ok(Step::Segment(arrival)) => {
            assert_eq!(arrival.total_len(), frame.len());
            arrival.segment
        }
        other => panic!("{other:?}"),
    }
}

fn fault(receiver: &mut Receiver, frame: &[u8]) -> Fault {
    let error = receiver.next(frame).unwrap_err();
    // RFC5041-7.1-12, RFC5044-8-5: the stream is dead after the first error.
    assert_eq!(receiver.next(&untagged(SEND, 0, 1, 0, b"")), Err(error));
    error.fault
}

const SEND: [u8; 2] = [0x41, 0x43];
const SEND_MORE: [u8; 2] = [0x01, 0x43];
const WRITE: [u8; 2] = [0xc1, 0x40];
const WRITE_MORE: [u8; 2] = [0x81, 0x40];
const READ_RESPONSE: [u8; 2] = [0xc1, 0x42];
const READ_REQUEST: [u8; 2] = [0x41, 0x41];
const TERMINATE: [u8; 2] = [0x41, 0x47];
const IMMEDIATE: [u8; 2] = [0x41, 0x48];
const ATOMIC_REQUEST: [u8; 2] = [0x41, 0x4a];
const ATOMIC_RESPONSE: [u8; 2] = [0x41, 0x4b];

// RFC5041-5.4-2, RFC5040-5.3-8, RFC5041-4.3-5
#[test]
fn sends_in_order() {
    let mut receiver = receiver();
    assert!(!receiver.has_received());
    let send =
        |msn, mo, first, last| Segment::Send { msn, mo, first, last, invalidate: None, solicited: false };
    assert_eq!(segment(&mut receiver, &untagged(SEND_MORE, 0, 1, 0, b"abc")), send(1, 0, true, false));
    assert!(receiver.has_received());
    assert_eq!(segment(&mut receiver, &untagged(SEND_MORE, 0, 1, 3, b"de")), send(1, 3, false, false));
    assert_eq!(segment(&mut receiver, &untagged(SEND, 0, 1, 5, b"f")), send(1, 5, false, true));
    assert_eq!(segment(&mut receiver, &untagged(SEND, 0, 2, 0, b"")), send(2, 0, true, true));
    receiver.msn[0] = u32::MAX;
    segment(&mut receiver, &untagged(SEND, 0, u32::MAX, 0, b""));
    assert_eq!(segment(&mut receiver, &untagged(SEND, 0, 0, 0, b"")), send(0, 0, true, true));
}

// RFC5041-7.1-1, RFC5041-7.1-3, RFC5041-7.1-5, RFC5041-5.2-2, RFC5040-7.2-1
#[test]
fn untagged_order_is_enforced() {
    assert_eq!(fault(&mut receiver(), &untagged(SEND, 1, 1, 0, b"")), Fault::InvalidQueue);
    assert_eq!(fault(&mut receiver(), &untagged(SEND, 4, 1, 0, b"")), Fault::InvalidQueue);
    assert_eq!(fault(&mut receiver(), &untagged(READ_REQUEST, 0, 1, 0, &[0; 28])), Fault::InvalidQueue);
    assert_eq!(fault(&mut receiver(), &untagged(TERMINATE, 0, 1, 0, &[0; 4])), Fault::InvalidQueue);
    assert_eq!(fault(&mut receiver(), &untagged(ATOMIC_RESPONSE, 1, 1, 0, &[0; 12])), Fault::InvalidQueue);
    assert_eq!(fault(&mut receiver(), &untagged(SEND, 0, 2, 0, b"")), Fault::MsnRange);
    assert_eq!(fault(&mut receiver(), &untagged(SEND, 0, 0, 0, b"")), Fault::MsnRange);
    assert_eq!(fault(&mut receiver(), &untagged(SEND, 0, 1, 1, b"x")), Fault::InvalidOffset);
    assert_eq!(fault(&mut receiver(), &untagged(READ_REQUEST, 1, 1, 1, &[0; 28])), Fault::InvalidOffset);
    for mo in [2, 4] {
        let mut receiver = receiver();
        segment(&mut receiver, &untagged(SEND_MORE, 0, 1, 0, b"abc"));
        assert_eq!(fault(&mut receiver, &untagged(SEND, 0, 1, mo, b"x")), Fault::InvalidOffset);
    }
    let mut receiver = receiver();
    segment(&mut receiver, &untagged(SEND_MORE, 0, 1, 0, b"abc"));
    receiver.send.as_mut().unwrap().mo = u32::MAX;
    assert_eq!(fault(&mut receiver, &untagged(SEND, 0, 1, u32::MAX, b"x")), Fault::MessageTooLong);
}

#[test]
fn a_message_keeps_its_opcode_and_invalidated_tag() {
    let mut one = receiver();
    segment(&mut one, &untagged(SEND_MORE, 0, 1, 0, b"a"));
    assert_eq!(fault(&mut one, &untagged([0x41, 0x45], 0, 1, 1, b"b")), Fault::UnexpectedOpcode);
    let mut two = receiver();
    segment(&mut two, &untagged(SEND_MORE, 0, 1, 0, b"a"));
    assert_eq!(fault(&mut two, &untagged(IMMEDIATE, 0, 1, 0, &[0; 8])), Fault::UnexpectedOpcode);
    let mut three = receiver();
    let mut with_tag = untagged([0x01, 0x44], 0, 1, 0, b"a");
    with_tag[7] = 1;
    segment(&mut three, &with_tag);
    assert_eq!(fault(&mut three, &untagged([0x41, 0x44], 0, 1, 1, b"b")), Fault::UnexpectedOpcode);
    // Where nothing is invalidated, the field is ignored (RFC5040-4.1-7).
    let mut four = receiver();
    let mut with_tag = untagged(SEND, 0, 1, 0, b"a");
    with_tag[7] = 1;
    assert!(matches!(segment(&mut four, &with_tag), Segment::Send { invalidate: None, .. }));
}

// RFC5040-7.2-2, RFC5040-7.2-3, RFC5041-4.1-6, RFC7306-8.2-1, RFC5044-C.1-1
#[test]
fn versions_and_opcodes_are_checked() {
    for (control, expected) in [
        ([0x40, 0x43], Fault::DdpVersion),
        ([0x42, 0x43], Fault::DdpVersion),
        ([0x41, 0x03], Fault::RdmapVersion),
        ([0x41, 0x83], Fault::RdmapVersion),
        ([0x41, 0x4c], Fault::UnexpectedOpcode),
        ([0x41, 0x4f], Fault::UnexpectedOpcode),
        // Untagged write and read response, tagged send.
        ([0x41, 0x40], Fault::UnexpectedOpcode),
        ([0x41, 0x42], Fault::UnexpectedOpcode),
        ([0xc1, 0x43], Fault::UnexpectedOpcode),
    ] {
        assert_eq!(fault(&mut receiver(), &untagged(control, 0, 1, 0, b"payload")), expected, "{control:x?}");
    }
    for control in [IMMEDIATE, [0x41, 0x49], ATOMIC_REQUEST, ATOMIC_RESPONSE] {
        let mut receiver = Receiver::new(&Parameters { extensions: false, ..parameters() });
        assert_eq!(fault(&mut receiver, &untagged(control, 0, 1, 0, &[0; 8])), Fault::UnexpectedOpcode);
    }
    // Reserved bits are not looked at (RFC5041-4.1-5, RFC5040-4.1-6).
    segment(&mut receiver(), &untagged([0x7d, 0x73], 0, 1, 0, b""));
}

// RFC5041-4.4-1, RFC7306-6.3-6
#[test]
fn lengths_must_fit() {
    for len in 0..18 {
        assert_eq!(
            fault(&mut receiver(), &frame(&untagged(SEND, 0, 1, 0, b"")[2..2 + len])),
            Fault::Malformed
        );
    }
    for len in 2..14 {
        assert_eq!(fault(&mut receiver(), &frame(&tagged(WRITE, 0, 0, b"")[2..2 + len])), Fault::Malformed);
    }
    for (control, queue, right) in [
        (READ_REQUEST, 1, 28),
        (IMMEDIATE, 0, 8),
        ([0x41, 0x49], 0, 8),
        (ATOMIC_REQUEST, 1, 52),
        (ATOMIC_RESPONSE, 3, 12),
    ] {
        for len in 0..60 {
            let frame = untagged(control, queue, 1, 0, &vec![0; len]);
            if len == right {
                segment(&mut receiver(), &frame);
            } else {
                assert_eq!(fault(&mut receiver(), &frame), Fault::Malformed);
            }
            if len != right {
                // Known from the header: nothing more is waited for.
                assert!(receiver().next(&frame[..20]).is_err());
            }
            let more = untagged([control[0] & !0x40, control[1]], queue, 1, 0, &vec![0; len]);
            assert_eq!(fault(&mut receiver(), &more), Fault::Malformed);
        }
    }
    // RFC7306-5.2.1-5: only two atomic operations exist.
    for operation in [1, 3, 15] {
        let mut body = [0; 52];
        body[3] = operation;
        assert_eq!(fault(&mut receiver(), &untagged(ATOMIC_REQUEST, 1, 1, 0, &body)), Fault::Malformed);
    }
}

// RFC5041-7.1-10, RFC5041-5.2-8, RFC5040-5.1-4, RFC5040-5.2.2-5
#[test]
fn tagged_segments() {
    let mut one = receiver();
    assert_eq!(
        segment(&mut one, &tagged(WRITE_MORE, 5, 100, b"abc")),
        Segment::Write { stag: 5, to: 100, last: false }
    );
    // Untagged messages may come between, other tagged ones may not.
    segment(&mut one, &untagged(SEND, 0, 1, 0, b""));
    assert_eq!(
        segment(&mut one, &tagged(WRITE, 5, 103, b"d")),
        Segment::Write { stag: 5, to: 103, last: true }
    );
    segment(&mut one, &tagged(WRITE_MORE, 5, 100, b"abc"));
    assert_eq!(fault(&mut one, &tagged(READ_RESPONSE, 5, 103, b"d")), Fault::UnexpectedOpcode);
    let mut two = receiver();
    segment(&mut two, &tagged(WRITE_MORE, 5, 100, b"abc"));
    assert_eq!(fault(&mut two, &tagged(WRITE, 6, 103, b"d")), Fault::InvalidStag);
    assert_eq!(fault(&mut receiver(), &tagged(WRITE, 5, u64::MAX, b"d")), Fault::ToWrap);
    segment(&mut receiver(), &tagged(WRITE, 5, u64::MAX - 1, b"d"));
    segment(&mut receiver(), &tagged(WRITE, 5, u64::MAX, b""));
}

// RFC5040-5.4-1, RFC5040-5.4-2, RFC5040-5.4-3
#[test]
fn a_terminate_is_the_last_message() {
    let mut one = receiver();
    let body = [0x01, 0x02, 0, 0];
    let Segment::Terminate(terminate) = segment(&mut one, &untagged(TERMINATE, 2, 1, 0, &body)) else {
        panic!()
    };
    assert_eq!((terminate.layer(), terminate.error_type(), terminate.code()), (0, 1, 2));
    assert_eq!(one.end_of_stream(0), Ok(()));
    assert_eq!(fault(&mut one, &untagged(SEND, 0, 1, 0, b"")), Fault::UnexpectedOpcode);
    // It may break off a message.
    let mut two = receiver();
    segment(&mut two, &untagged(SEND_MORE, 0, 1, 0, b"abc"));
    segment(&mut two, &untagged(TERMINATE, 2, 1, 0, &body));
    assert_eq!(two.end_of_stream(0), Ok(()));
    assert_eq!(fault(&mut receiver(), &untagged(TERMINATE, 2, 2, 0, &body)), Fault::MsnRange);
    assert_eq!(fault(&mut receiver(), &untagged(TERMINATE, 2, 1, 0, &[0; 3])), Fault::Malformed);
    assert_eq!(fault(&mut receiver(), &untagged(TERMINATE, 2, 1, 0, &[0, 0, 0xe0, 0])), Fault::Malformed);
    assert_eq!(fault(&mut receiver(), &untagged(TERMINATE, 2, 1, 0, &[0; 53])), Fault::MessageTooLong);
}

// RFC5041-7.1-13, RFC5040-7.1-5
#[test]
fn errors_have_the_headers_of_the_segment() {
    let frame = untagged(SEND, 0, 5, 0, b"payload");
    let error = receiver().next(&frame).unwrap_err();
    assert_eq!(error.terminate.ddp_header(), Some(&frame[2..20]));
    assert_eq!(error.terminate.segment_len(), Some(25));
    let frame = tagged(WRITE, 5, u64::MAX, b"payload");
    let error = receiver().next(&frame).unwrap_err();
    assert_eq!(error.terminate.ddp_header(), Some(&frame[2..16]));
    assert_eq!(error.terminate.segment_len(), Some(21));
    let mut one = receiver();
    let Ok(Step::Segment(arrival)) = one.next(&tagged(WRITE, 5, 6, b"payload")) else { panic!() };
    let terminate = arrival.terminate(Fault::BaseBounds);
    assert_eq!(terminate.ddp_header(), Some(&tagged(WRITE, 5, 6, b"payload")[2..16]));
    assert_eq!(terminate.segment_len(), Some(21));
}

// RFC5044-7.2-1, RFC5041-6.2.1-5, RFC5044-8-1, RFC5041-3-2
#[test]
fn a_stream_may_end_between_messages_only() {
    let mut one = receiver();
    assert_eq!(one.end_of_stream(0), Ok(()));
    assert_eq!(one.end_of_stream(1), Err(Fault::StreamLost));
    segment(&mut one, &untagged(SEND_MORE, 0, 1, 0, b"abc"));
    assert_eq!(one.end_of_stream(0), Err(Fault::StreamLost));
    segment(&mut one, &untagged(SEND, 0, 1, 3, b"abc"));
    assert_eq!(one.end_of_stream(0), Ok(()));
    segment(&mut one, &tagged(WRITE_MORE, 0, 1, b"abc"));
    assert_eq!(one.end_of_stream(0), Err(Fault::StreamLost));
}

#[test]
fn a_send_that_says_ready_takes_no_buffer() {
    let expecting = Receiver::new(&Parameters { rtr: Some(RtrKind::Send), ..parameters() });
    let mut one = expecting.clone();
    assert_eq!(segment(&mut one, &untagged(SEND, 0, 1, 0, b"")), Segment::ReadyToReceive);
    assert!(matches!(segment(&mut one, &untagged(SEND, 0, 2, 0, b"")), Segment::Send { msn: 2, .. }));
    // An FPDU without anything in it says the same, once.
    let mut two = expecting.clone();
    assert_eq!(segment(&mut two, &frame(b"")), Segment::ReadyToReceive);
    assert_eq!(fault(&mut two, &frame(b"")), Fault::Malformed);
    // A Send with payload is one.
    let mut three = expecting.clone();
    assert!(matches!(segment(&mut three, &untagged(SEND, 0, 1, 0, b"x")), Segment::Send { .. }));
    // Only a responder expects it.
    let parameters = Parameters { rtr: Some(RtrKind::Send), initiator: true, ..parameters() };
    assert!(matches!(
        segment(&mut Receiver::new(&parameters), &untagged(SEND, 0, 1, 0, b"")),
        Segment::Send { .. }
    ));
}

// RFC5044-6-1, RFC5044-4.4-9, RFC5044-8-2, RFC5044-8-6
#[test]
fn a_damaged_frame_is_not_looked_at() {
    let checked = Parameters { crc: true, markers_tx: true, markers_rx: true, ..parameters() };
    let mut sender = Sender::new(&checked, 9000);
    let fpdu = sender.only(Outbound::Write { stag: 1, to: 2, len: 3000 }).unwrap().unwrap();
    let mut frame = Vec::new();
    sender.seal(&fpdu, &[3; 3000], &mut frame);
    let Ok(Step::Segment(arrival)) = Receiver::new(&checked).next_checked(&mut frame.clone()) else {
        panic!()
    };
    assert_eq!(arrival.total_len(), frame.len());
    // Not the length field: that says how much to wait for.
    for at in (0..4).chain(6..frame.len()) {
        let mut bad = frame.clone();
        bad[at] ^= 0x10;
        let error = Receiver::new(&checked).next_checked(&mut bad).unwrap_err();
        assert_eq!(error.fault, Fault::Crc);
        assert_eq!((error.terminate.layer(), error.terminate.code()), (2, 2));
    }
}

/// A stream of valid frames of every kind, and what they are.
fn valid_stream(parameters: &Parameters, emss: usize, messages: &[(Outbound, u8)]) -> (Vec<u8>, usize) {
    let mut sender = Sender::new(parameters, emss);
    let (mut stream, mut frames) = (Vec::new(), 0);
    for (message, fill) in messages {
        sender.begin(*message).unwrap();
        while let Some(fpdu) = sender.next_fpdu() {
            sender.seal(&fpdu, &vec![*fill; fpdu.payload_len()], &mut stream);
            frames += 1;
        }
    }
    (stream, frames)
}

/// A segment and its payload.
type SegmentAndPayload = (Segment, Vec<u8>);

/// Everything that a receiver makes of a stream that comes in pieces of the given sizes, over and over. The
/// payloads are collected as they would be placed.
fn receive_in_pieces(
    receiver: &mut Receiver,
    stream: &[u8],
    pieces: &[usize],
    checked: bool,
) -> (Vec<SegmentAndPayload>, Option<StreamError>, usize) {
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    let mut pieces = pieces.iter().cycle();
    let mut at = 0;
    let mut wanted = 0;
    loop {
        if buffer.len() < wanted {
            if at == stream.len() {
                return (found, None, buffer.len());
            }
            let piece = (*pieces.next().unwrap()).min(stream.len() - at);
            buffer.extend_from_slice(&stream[at..at + piece]);
            at += piece;
            continue;
        }
        let step = if checked { receiver.next_checked(&mut buffer) } else { receiver.next(&buffer) };
        match step {
            Ok(Step::Need(n)) => {
                assert!(n > buffer.len(), "asks for what is there");
                assert!(n <= if checked { Receiver::MAX_FPDU_LEN } else { Receiver::MAX_HEAD_LEN });
                wanted = n;
            }
            Ok(Step::Segment(arrival)) => {
                // A streaming user would read the rest of the frame from the socket.
                while buffer.len() < arrival.total_len() {
                    if at == stream.len() {
                        return (found, None, buffer.len());
                    }
                    buffer.push(stream[at]);
                    at += 1;
                }
                let payload = buffer[arrival.head_len..arrival.head_len + arrival.payload_len].to_vec();
                found.push((arrival.segment, payload));
                buffer.drain(..arrival.total_len());
                wanted = 1;
            }
            Err(error) => return (found, Some(error), 0),
        }
        if wanted == 1 && buffer.is_empty() && at == stream.len() {
            return (found, None, 0);
        }
    }
}

fn any_message() -> impl Strategy<Value = Outbound> {
    let stag = any::<u32>();
    prop_oneof![
        (0u32..5000, any::<Option<u32>>(), any::<bool>())
            .prop_map(|(len, invalidate, solicited)| Outbound::Send { len, invalidate, solicited }),
        (stag, 0..u64::MAX - 5000, 0u32..5000).prop_map(|(stag, to, len)| Outbound::Write { stag, to, len }),
        (stag, 0..u64::MAX - 5000, 0u32..5000).prop_map(|(sink_stag, sink_to, len)| Outbound::ReadResponse {
            sink_stag,
            sink_to,
            len
        }),
        (stag, any::<u64>(), any::<u32>(), stag, any::<u64>()).prop_map(
            |(sink_stag, sink_to, len, source_stag, source_to)| Outbound::ReadRequest(ReadRequest {
                sink_stag,
                sink_to,
                len,
                source_stag,
                source_to
            })
        ),
        (any::<[u8; 8]>(), any::<bool>())
            .prop_map(|(data, solicited)| Outbound::Immediate { data, solicited }),
        (any::<u32>(), stag, any::<u64>(), any::<u64>()).prop_map(|(id, stag, to, value)| {
            let operation = AtomicOperation::swap(value);
            Outbound::AtomicRequest(AtomicRequest { id, stag, to, operation })
        }),
        (any::<u32>(), any::<u64>())
            .prop_map(|(id, original)| Outbound::AtomicResponse(AtomicResponse { id, original })),
    ]
}

proptest! {
    // RFC5041-4.2-3, RFC5041-4.2-6, RFC5041-4.3-3
    // RFC5044-5.1-1, RFC5044-5.2-1, RFC5044-6-2, RFC5044-4.3-7, RFC5044-4.3-8, RFC5044-3-5, RFC5044-4.3-1
    #[test]
    fn any_division_of_a_stream_gives_the_same_segments(
        messages in proptest::collection::vec((any_message(), any::<u8>()), 1..12),
        emss in 200usize..9000,
        crc: bool,
        markers: bool,
        large_fpdu: bool,
        pieces in proptest::collection::vec(1usize..3000, 1..20),
    ) {
        let parameters =
            Parameters { crc, markers_tx: markers, markers_rx: markers, large_fpdu, ..parameters() };
        let (stream, frames) = valid_stream(&parameters, emss, &messages);
        let (whole, error, left) =
            receive_in_pieces(&mut Receiver::new(&parameters), &stream, &[usize::MAX], true);
        prop_assert_eq!((error, left, whole.len()), (None, 0, frames));
        for pieces in [&pieces[..], &[1][..]] {
            let (parts, error, left) = receive_in_pieces(&mut Receiver::new(&parameters), &stream, pieces, true);
            prop_assert_eq!((error, left), (None, 0));
            prop_assert!(parts == whole);
            if !crc && !markers {
                let (parts, error, left) =
                    receive_in_pieces(&mut Receiver::new(&parameters), &stream, pieces, false);
                prop_assert_eq!((error, left), (None, 0));
                prop_assert!(parts == whole);
            }
        }
        // Message by message, what was sent.
        let mut segments = whole.iter();
        for (message, fill) in &messages {
            let mut len = 0;
            loop {
                let (segment, payload) = segments.next().unwrap();
                prop_assert_eq!(segment.opcode(), message.opcode());
                prop_assert!(payload.iter().all(|byte| byte == fill));
                let (offset_is_right, last) = match (*segment, *message) {
                    (Segment::Send { mo, first, last, .. }, _) => (mo == len && first == (len == 0), last),
                    (Segment::Write { to, last, stag }, Outbound::Write { to: start, stag: right, .. })
                    | (
                        Segment::ReadResponse { to, last, stag },
                        Outbound::ReadResponse { sink_to: start, sink_stag: right, .. },
                    ) => (stag == right && to == start + len as u64, last),
                    (Segment::ReadRequest { request, .. }, Outbound::ReadRequest(sent)) => (request == sent, true),
                    (Segment::Immediate { data, .. }, Outbound::Immediate { data: sent, .. }) => (data == sent, true),
                    (Segment::AtomicRequest { request, .. }, Outbound::AtomicRequest(sent)) => (request == sent, true),
                    (Segment::AtomicResponse { response, .. }, Outbound::AtomicResponse(sent)) => {
                        (response == sent, true)
                    }
                    _ => (false, true),
                };
                prop_assert!(offset_is_right, "{:?} for {:?}", segment, message);
                len += payload.len() as u32;
                if last {
                    break;
                }
            }
            prop_assert_eq!(len, message.payload_len());
        }
        prop_assert!(segments.next().is_none());
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        pieces in proptest::collection::vec(1usize..500, 1..5),
        crc: bool,
        markers: bool,
    ) {
        let parameters = Parameters { crc, markers_rx: markers, ..parameters() };
        let mut receiver = Receiver::new(&parameters);
        receive_in_pieces(&mut receiver, &bytes, &pieces, true);
        receive_in_pieces(&mut self::receiver(), &bytes, &pieces, false);
    }

    #[test]
    fn any_change_of_a_valid_stream_is_survived(
        messages in proptest::collection::vec((any_message(), any::<u8>()), 1..8),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        markers: bool,
    ) {
        let parameters = Parameters { markers_tx: markers, markers_rx: markers, ..parameters() };
        let (mut stream, _) = valid_stream(&parameters, 1448, &messages);
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        let (found, error, _) = receive_in_pieces(&mut Receiver::new(&parameters), &stream, &[700], true);
        if let Some(error) = error {
            prop_assert!(!error.terminate.to_string().is_empty());
            // What is sent in answer is a message that a peer understands.
            let (answer, _) =
                valid_stream(&parameters, 1448, &[(Outbound::Terminate(error.terminate), 0)]);
            let (answer, error, _) = receive_in_pieces(&mut Receiver::new(&parameters), &answer, &[700], true);
            prop_assert_eq!(error, None);
            prop_assert!(matches!(answer[..], [(Segment::Terminate(_), _)]));
        }
        prop_assert!(found.len() <= stream.len() / 8);
    }

    #[test]
    fn with_crc_any_change_of_a_frame_is_found(
        messages in proptest::collection::vec((any_message(), any::<u8>()), 1..5),
        at: proptest::sample::Index,
        flip in 1u8..,
    ) {
        let parameters = Parameters { crc: true, ..parameters() };
        let (mut stream, frames) = valid_stream(&parameters, 1448, &messages);
        let (whole, ..) = receive_in_pieces(&mut Receiver::new(&parameters), &stream, &[999], true);
        let at = at.index(stream.len());
        stream[at] ^= flip;
        let (found, error, left) = receive_in_pieces(&mut Receiver::new(&parameters), &stream, &[999], true);
        // Nothing is reported but what came before the damage.
        prop_assert!(found.len() < frames);
        prop_assert!(found[..] == whole[..found.len()]);
        prop_assert!(error.is_some_and(|error| error.fault == Fault::Crc) || left > 0);
    }
}
