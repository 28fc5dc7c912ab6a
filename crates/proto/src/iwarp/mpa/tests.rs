//! Start-up: every negotiation, every refusal, and any bytes at all.

use std::time::Duration;

use adverb_wire::mpa::Flags;
use proptest::prelude::*;

use super::*;
use crate::iwarp::{Receiver, Segment, Step};

const NOW: Duration = Duration::from_secs(1000);
const TIMEOUT: Duration = Duration::from_secs(5);

fn plain() -> Config {
    Config { crc: false, large_fpdu: false, extensions: false, ..Config::default() }
}

fn initiator(config: &Config, private_data: &[u8]) -> Initiator {
    Initiator::new(config, private_data, NOW, TIMEOUT).unwrap()
}

fn offer(request: &[u8]) -> Offer {
    match Responder::new(NOW, TIMEOUT).receive(request).unwrap() {
        Request::Complete { offer, consumed, .. } => {
            assert_eq!(consumed, request.len());
            offer
        }
        Request::Need(n) => panic!("needs {n}"),
    }
}

/// Both ends of a start-up.
fn negotiate(
    initiator_config: &Config,
    responder_config: &Config,
) -> Result<(Parameters, Parameters), StartError> {
    let initiator = initiator(initiator_config, b"hello");
    let (reply, responder) = offer(initiator.request()).accept(responder_config, b"there").unwrap();
    match initiator.receive(&reply)? {
        Reply::Accepted { parameters, private_data, consumed, .. } => {
            assert_eq!(private_data, b"there");
            assert_eq!(consumed, reply.len());
            Ok((parameters, responder))
        }
        other => panic!("{other:?}"),
    }
}

// RFC5044-7.1.1-1, RFC5044-7.1.1-10, RFC5044-7.1.1-12, RFC6581-6-1, RFC6581-6-3, RFC6581-6-4, RFC6581-9-1,
// RFC5044-7.1.2-1
#[test]
fn a_request_has_the_bytes_of_siws() {
    let config = Config { ird: 1, ord: 2, large_fpdu: true, ..plain() };
    let initiator = initiator(&config, b"ab");
    assert_eq!(initiator.request(), b"MPA ID Req Frame\x18\x02\0\x06\0\x01\0\x02ab");
}

// RFC5044-7.1.1-3, RFC6581-10-1
#[test]
fn a_reply_has_the_bytes_of_siws() {
    let config = Config { ird: 1, ord: 2, large_fpdu: true, ..plain() };
    let (reply, _) = offer(initiator(&config, b"").request()).accept(&config, b"xyz").unwrap();
    // ORD is lowered to the IRD of the initiator, IRD raised to its ORD.
    assert_eq!(reply, b"MPA ID Rep Frame\x18\x02\0\x07\0\x02\0\x01xyz");
}

// RFC5044-7.1.1-9: without the two private options the reserved bits are zero, and those of a peer are not
// looked at.
#[test]
fn reserved_bits_are_ignored() {
    let initiator = initiator(&plain(), b"");
    assert_eq!(initiator.request()[16] & 0x0f, 0);
    let mut request = initiator.request().to_vec();
    request[16] |= 0x03;
    let (mut reply, _) = offer(&request).accept(&plain(), b"").unwrap();
    assert_eq!(reply[16] & 0x0f, 0);
    reply[16] |= 0x05;
    assert!(matches!(initiator.receive(&reply), Ok(Reply::Accepted { .. })));
}

// RFC5044-4.4-2: without being told otherwise, CRCs are asked for.
#[test]
fn crcs_are_the_default() {
    assert!(Config::default().crc);
    assert_eq!(initiator(&Config::default(), b"").request()[16] & 0x40, 0x40);
}

// RFC5044-7.1.1-5, RFC5044-7.1.1-6, RFC5044-7.1.1-7, RFC5044-4.4-4, RFC5044-4.4-5
#[test]
fn crc_is_on_if_either_end_wants_it_and_markers_where_the_receiver_wants_them() {
    for bits in 0..16 {
        let on = |bit: i32| bits & 1 << bit != 0;
        let (i, r) = negotiate(
            &Config { crc: on(0), markers: on(1), ..plain() },
            &Config { crc: on(2), markers: on(3), ..plain() },
        )
        .unwrap();
        assert_eq!((i.crc, r.crc), (on(0) || on(2), on(0) || on(2)));
        assert_eq!((i.markers_rx, r.markers_tx), (on(1), on(1)));
        assert_eq!((r.markers_rx, i.markers_tx), (on(3), on(3)));
        assert!(i.initiator && !r.initiator);
    }
}

#[test]
fn options_need_both_ends() {
    for bits in 0..16 {
        let on = |bit: i32| bits & 1 << bit != 0;
        let (i, r) = negotiate(
            &Config { large_fpdu: on(0), extensions: on(1), ..plain() },
            &Config { large_fpdu: on(2), extensions: on(3), ..plain() },
        )
        .unwrap();
        assert_eq!((i.large_fpdu, r.large_fpdu), (on(0) && on(2), on(0) && on(2)));
        assert_eq!((i.extensions, r.extensions), (on(1) && on(3), on(1) && on(3)));
    }
}

#[test]
fn an_echo_of_the_flags_is_no_acceptance() {
    // siw makes its reply in the memory of the request: all flags of the request come back.
    let initiator = initiator(&Config { extensions: true, ..plain() }, b"");
    let mut reply = initiator.request().to_vec();
    reply[..16].copy_from_slice(&adverb_wire::mpa::REPLY_KEY);
    // Nor are all flags that there are.
    for more in [0, 0x02] {
        reply[16] |= more;
        match initiator.receive(&reply).unwrap() {
            Reply::Accepted { parameters, .. } => assert!(!parameters.extensions),
            other => panic!("{other:?}"),
        }
    }
}

// RFC6581-6-2, RFC6581-10-2, RFC6581-10-3, RFC5044-3-6
#[test]
fn a_plain_request_gets_a_plain_reply_of_its_revision() {
    let config = Config { revision: Revision::One, ..plain() };
    let initiator = initiator(&config, b"hi");
    assert_eq!(initiator.request(), b"MPA ID Req Frame\0\x01\0\x02hi");
    for revision in 0..=2 {
        let mut request = initiator.request().to_vec();
        request[17] = revision;
        let (reply, parameters) = offer(&request).accept(&plain(), b"yo").unwrap();
        assert_eq!(reply, [b"MPA ID Rep Frame\0", &[revision][..], b"\0\x02yo"].concat());
        assert_eq!((parameters.ird, parameters.ord, parameters.rtr), (None, None, None));
        assert_eq!(parameters.revision, revision);
        let Ok(Reply::Accepted { parameters, peer: None, .. }) = initiator.receive(&reply) else { panic!() };
        assert_eq!((parameters.ird, parameters.ord), (None, None));
    }
    // The S flag is a reserved bit before revision 2.
    let mut request = initiator.request().to_vec();
    request[16] |= 0x10;
    assert_eq!(offer(&request).depths, None);
}

// RFC6581-9.1-2, RFC6581-9.1-3
#[test]
fn depths_fit_each_other() {
    let (i, r) = negotiate(
        &Config { ird: 4, ord: 30, ird_limit: 64, ..plain() },
        &Config { ird: 8, ord: 100, ird_limit: 20, ..plain() },
    )
    .unwrap();
    // The responder raises its IRD as far as it may, and lowers its ORD.
    assert_eq!((r.ird, r.ord), (Some(20), Some(4)));
    assert_eq!((i.ird, i.ord), (Some(4), Some(20)));
}

// RFC6581-9.1-1
#[test]
fn each_end_learns_what_the_other_sent() {
    let initiator = initiator(&Config { ird: 3, ord: 5, ..plain() }, b"");
    let offer = offer(initiator.request());
    assert_eq!(offer.depths, Some(Depths { ird: Some(3), ord: Some(5) }));
    let (reply, _) = offer.accept(&Config { ird: 9, ord: 1, ..plain() }, b"").unwrap();
    let Ok(Reply::Accepted { peer, .. }) = initiator.receive(&reply) else { panic!() };
    assert_eq!(peer, Some(Depths { ird: Some(9), ord: Some(1) }));
    let reply = offer.reject(b"no").unwrap();
    let Ok(Reply::Rejected { peer, private_data: b"no", .. }) = initiator.receive(&reply) else { panic!() };
    assert_eq!(peer, Some(Depths { ird: Some(5), ord: Some(3) }));
}

// RFC6581-9.1-5, RFC6581-9.1-6
#[test]
fn a_depth_of_all_ones_is_left_alone() {
    let none = u16::MAX;
    let initiator = initiator(&Config { ird: none, ord: none, ..plain() }, b"");
    assert_eq!(initiator.request()[20..], [0x3f, 0xff, 0x3f, 0xff]);
    let (reply, r) = offer(initiator.request()).accept(&plain(), b"").unwrap();
    assert_eq!(reply[20..], [0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!((r.ird, r.ord), (None, None));
    let Ok(Reply::Accepted { parameters: i, .. }) = initiator.receive(&reply) else { panic!() };
    assert_eq!((i.ird, i.ord), (None, None));
    let (i, r) = negotiate(&plain(), &Config { ird: none, ..plain() }).unwrap();
    assert_eq!((i.ord, r.ird), (None, None));
    assert_eq!((i.ird, r.ord), (Some(16), Some(16)));
}

// RFC6581-9.1-4, RFC6581-8-1
#[test]
fn too_many_reads_are_answered_by_a_terminate() {
    let initiator = initiator(&Config { ird: 2, ird_limit: 10, ..plain() }, b"");
    let mut reply = offer(initiator.request()).accept(&plain(), b"").unwrap().0;
    reply[23] = 10;
    assert!(initiator.receive(&reply).is_ok());
    reply[23] = 11;
    let error = initiator.receive(&reply).unwrap_err();
    assert!(matches!(error, StartError::InsufficientIrd { wanted: 11, limit: 10, .. }));
    assert_terminate(&error, 6);
}

fn assert_terminate(error: &StartError, code: u8) {
    let frame = error.terminate_frame().unwrap();
    let parameters = Parameters {
        initiator: false,
        revision: 2,
        crc: false,
        markers_tx: false,
        markers_rx: false,
        ird: None,
        ord: None,
        rtr: None,
        large_fpdu: false,
        extensions: false,
    };
    let Ok(Step::Segment(arrival)) = Receiver::new(&parameters).next(&frame) else { panic!() };
    let Segment::Terminate(terminate) = arrival.segment else { panic!() };
    assert_eq!((terminate.layer(), terminate.error_type(), terminate.code()), (2, 0, code));
    assert_eq!(terminate.ddp_header(), None);
}

// RFC6581-9.3-1
#[test]
fn a_local_failure_has_its_own_code() {
    let (parameters, _) = negotiate(&Config { crc: true, markers: true, ..plain() }, &plain()).unwrap();
    let frame = terminate_frame(Fault::MpaLocal, &parameters);
    // Terminate Control: layer 2, type 0, code 5.
    assert_eq!(frame[20..24], [0x20, 5, 0, 0]);
}

// RFC6581-9.2-1, RFC6581-9.2-2, RFC6581-9.2-3, RFC6581-9.2-4, RFC6581-9.2-5, RFC6581-9.2-7
#[test]
fn every_pair_of_indications() {
    let kinds = |bits: i32| RtrKinds { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 };
    for ours in 0..8 {
        for theirs in 0..8 {
            let config = Config { rtr: kinds(ours), ..plain() };
            let initiator = initiator(&config, b"");
            let (a, b) = (initiator.request()[20] & 0x80 != 0, initiator.request()[20] & 0x40 != 0);
            let (c, d) = (initiator.request()[22] & 0x80 != 0, initiator.request()[22] & 0x40 != 0);
            assert_eq!((a, b, c, d), (ours != 0, ours & 1 != 0, ours & 2 != 0, ours & 4 != 0));
            let result = negotiate(&config, &Config { rtr: kinds(theirs), ..plain() });
            // A responder without any has Write.
            let theirs = if theirs == 0 { 2 } else { theirs };
            if ours == 0 {
                let (i, r) = result.unwrap();
                assert_eq!((i.rtr, r.rtr, i.rtr_message()), (None, None, None));
            } else if ours & theirs == 0 {
                // RFC6581-9.2-6
                assert_terminate(&result.unwrap_err(), 7);
            } else {
                let (i, r) = result.unwrap();
                let kind = i.rtr.unwrap();
                assert_eq!(r.rtr, Some(kind));
                assert!(!RtrKinds::only(kind).and(kinds(ours & theirs)).is_empty());
                assert!(i.rtr_message().is_some_and(|message| message.payload_len() == 0));
                assert_eq!(r.rtr_message(), None);
            }
        }
    }
}

// RFC6581-9.2-8
#[test]
fn kinds_without_the_peer_to_peer_flag_are_ignored() {
    let mut request = initiator(&plain(), b"").request().to_vec();
    request[20] |= 0x40;
    request[22] |= 0xc0;
    let offer = offer(&request);
    assert!(!offer.peer_to_peer && offer.rtr.is_empty());
    let (reply, parameters) = offer.accept(&plain(), b"").unwrap();
    assert_eq!((reply[20] & 0xc0, reply[22] & 0xc0), (0, 0));
    assert_eq!(parameters.rtr, None);
}

// RFC6581-9.1-7
#[test]
fn an_indication_by_read_makes_room_for_one() {
    let config = Config { ird: 0, ord: 0, rtr: RtrKinds::only(RtrKind::Read), ..plain() };
    let (i, r) = negotiate(&config, &config).unwrap();
    assert_eq!((r.ird, i.ord), (Some(1), Some(1)));
}

// RFC5044-7.1.1-8, RFC5044-7.1.2-4, RFC5044-7.1.2-7
#[test]
fn a_rejection_carries_private_data() {
    for revision in [Revision::One, Revision::Two] {
        let mut request = initiator(&Config { revision, ..plain() }, b"").request().to_vec();
        // R means nothing in a request.
        request[16] |= 0x20;
        let reply = offer(&request).reject(b"busy").unwrap();
        let initiator = initiator(&Config { revision, ..plain() }, b"");
        let Ok(Reply::Rejected { private_data, consumed, .. }) = initiator.receive(&reply) else { panic!() };
        assert_eq!((private_data, consumed), (&b"busy"[..], reply.len()));
    }
    // siw rejects some requests with a frame that has no enhanced data.
    let reply = b"MPA ID Rep Frame\x20\x02\0\0";
    assert!(matches!(
        initiator(&plain(), b"").receive(reply),
        Ok(Reply::Rejected { peer: None, private_data: b"", .. })
    ));
    let mut request = initiator(&Config { revision: Revision::One, ..plain() }, b"").request().to_vec();
    request[17] = 0;
    assert_eq!(offer(&request).reject(b"x").unwrap(), b"");
}

// RFC5044-7.1.1-2, RFC5044-7.1.1-4, RFC5044-7.1.1-11, RFC5044-7.1.1-13, RFC5044-7.1.2-3, RFC5044-7.1.2-6,
// RFC5044-7.1.2-9, RFC5044-7.1.2-10, RFC5044-8-4
#[test]
fn malformed_frames_are_refused() {
    let initiator = initiator(&plain(), b"");
    let request = initiator.request();
    let responder = Responder::new(NOW, TIMEOUT);
    assert!(matches!(responder.receive(b"GET / HTTP/1.1"), Err(StartError::NotMpa(_))));
    assert!(matches!(initiator.receive(b"X"), Err(StartError::NotMpa(_))));
    assert!(matches!(initiator.receive(request), Err(StartError::SameRole { peer: "initiator" })));
    let (reply, _) = offer(request).accept(&plain(), b"").unwrap();
    assert!(matches!(responder.receive(&reply), Err(StartError::SameRole { peer: "responder" })));

    let with = |frame: &[u8], at: usize, value: u8| {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    };
    assert_eq!(responder.receive(&with(request, 17, 3)), Err(StartError::Revision(3)));
    assert_eq!(initiator.receive(&with(&reply, 17, 3)), Err(StartError::Revision(3)));
    assert_eq!(responder.receive(&with(request, 18, 3)), Err(StartError::PrivateDataLength(0x304)));
    assert_eq!(initiator.receive(&with(&reply, 18, 3)), Err(StartError::PrivateDataLength(0x304)));
    assert_eq!(responder.receive(&with(request, 19, 3)), Err(StartError::PrivateDataLength(3)));
    assert_eq!(initiator.receive(&with(&reply, 19, 3)), Err(StartError::PrivateDataLength(3)));
    // An enhanced request must have an enhanced reply.
    assert_eq!(initiator.receive(&with(&reply, 16, 0)), Err(StartError::NotEnhanced { revision: 2 }));
    assert_eq!(initiator.receive(&with(&reply, 17, 1)), Err(StartError::NotEnhanced { revision: 1 }));
    let error = initiator.receive(&with(&reply, 17, 1)).unwrap_err();
    assert_eq!(error.fault(), Fault::BadStart);
    assert_eq!(error.terminate_frame(), None);
}

// RFC5044-7.1.1-14
#[test]
fn private_data_are_limited() {
    let two = plain();
    let one = Config { revision: Revision::One, ..plain() };
    assert_eq!(initiator(&two, &[1; 508]).request().len(), MAX_START_LEN);
    assert_eq!(initiator(&one, &[1; 512]).request().len(), MAX_START_LEN);
    for (config, max) in [(two, 508), (one, 512)] {
        let error = Initiator::new(&config, &vec![1; max + 1], NOW, TIMEOUT).unwrap_err();
        assert_eq!(error, StartError::PrivateDataTooLong { len: max + 1, max });
        let offer = offer(initiator(&config, b"").request());
        assert_eq!(offer.accept(&config, &vec![1; max + 1]).unwrap_err(), error);
        assert_eq!(offer.reject(&vec![1; max + 1]).unwrap_err(), error);
        assert!(offer.accept(&config, &vec![1; max]).is_ok());
    }
}

// RFC5044-7.1.2-11
#[test]
fn start_up_has_a_deadline() {
    let initiator = initiator(&plain(), b"");
    let responder = Responder::new(NOW, TIMEOUT);
    assert_eq!((initiator.deadline(), responder.deadline()), (NOW + TIMEOUT, NOW + TIMEOUT));
    let before = NOW + TIMEOUT - Duration::from_nanos(1);
    assert_eq!((initiator.handle_timeout(before), responder.handle_timeout(before)), (Ok(()), Ok(())));
    let late = NOW + TIMEOUT;
    assert_eq!(initiator.handle_timeout(late), Err(StartError::Timeout));
    assert_eq!(responder.handle_timeout(late), Err(StartError::Timeout));
    // The end of time is no overflow.
    assert_eq!(Responder::new(NOW, Duration::MAX).deadline(), Duration::MAX);
}

// RFC5044-7.1-1, RFC5044-7.1.2-2, RFC5044-7.1.2-5
#[test]
fn frames_may_come_in_pieces_and_with_what_follows() {
    let initiator = initiator(&plain(), b"private");
    let responder = Responder::new(NOW, TIMEOUT);
    let request = [initiator.request(), b"first FPDU"].concat();
    let frame_len = initiator.request().len();
    for len in 0..=request.len() {
        match responder.receive(&request[..len]).unwrap() {
            Request::Need(n) => assert!(len < frame_len && n > len && n <= frame_len),
            Request::Complete { private_data, consumed, .. } => {
                assert_eq!((private_data, consumed), (&b"private"[..], frame_len));
                assert!(len >= frame_len);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600), key in 0..3, crc: bool) {
        let mut bytes = bytes;
        let key = match key { 0 => &adverb_wire::mpa::REQUEST_KEY, 1 => &adverb_wire::mpa::REPLY_KEY, _ => &[0; 16] };
        let n = bytes.len().min(16);
        bytes[..n].copy_from_slice(&key[..n]);
        let config = Config { crc, rtr: RtrKinds::ALL, ..plain() };
        match Responder::new(NOW, TIMEOUT).receive(&bytes) {
            Ok(Request::Need(n)) => prop_assert!(n > bytes.len() && n <= MAX_START_LEN),
            Ok(Request::Complete { offer, consumed, private_data }) => {
                prop_assert!(consumed <= bytes.len() && private_data.len() <= consumed);
                // What we answer, an initiator of the same kind understands.
                let (reply, parameters) = offer.accept(&config, b"ok").unwrap();
                prop_assert!(reply.len() <= MAX_START_LEN);
                prop_assert!(parameters.ird.is_none_or(|ird| ird <= config.ird_limit));
                prop_assert!(offer.reject(b"no").is_ok());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        for revision in [Revision::One, Revision::Two] {
            let initiator = initiator(&Config { revision, ..config }, b"");
            match initiator.receive(&bytes) {
                Ok(Reply::Need(n)) => prop_assert!(n > bytes.len() && n <= MAX_START_LEN),
                Ok(Reply::Accepted { parameters, consumed, .. }) => {
                    prop_assert!(consumed <= bytes.len());
                    prop_assert!(parameters.ord.is_none_or(|ord| ord <= config.ord.max(1)));
                    prop_assert!(parameters.ird.is_none_or(|ird| ird <= config.ird_limit));
                    prop_assert!(!parameters.extensions);
                }
                Ok(Reply::Rejected { consumed, .. }) => prop_assert!(consumed <= bytes.len()),
                Err(error) => {
                    prop_assert!(!error.to_string().is_empty());
                    let terminates =
                        matches!(error, StartError::InsufficientIrd { .. } | StartError::NoRtr { .. });
                    prop_assert_eq!(error.terminate_frame().is_some(), terminates);
                }
            }
        }
    }

    #[test]
    fn any_two_ends_agree(
        a in config(),
        b in config(),
        data in proptest::collection::vec(any::<u8>(), 0..508),
    ) {
        let initiator = initiator(&a, &data);
        let offer = offer(initiator.request());
        let (reply, r) = offer.accept(&b, &data).unwrap();
        match initiator.receive(&reply) {
            Ok(Reply::Accepted { parameters: i, private_data, .. }) => {
                prop_assert_eq!(private_data, &data[..]);
                prop_assert_eq!((i.crc, i.markers_tx, i.markers_rx), (r.crc, r.markers_rx, r.markers_tx));
                prop_assert_eq!((i.rtr, i.large_fpdu, i.extensions), (r.rtr, r.large_fpdu, r.extensions));
                // RFC 6581 section 9.1: ORD at most the IRD of the other end.
                prop_assert_eq!(i.ord.is_some(), r.ird.is_some());
                prop_assert_eq!(r.ord.is_some(), i.ird.is_some());
                prop_assert!(i.ord <= r.ird && r.ord <= i.ird);
            }
            Ok(other) => prop_assert!(false, "{other:?}"),
            Err(error) => prop_assert_eq!(error.fault(), Fault::NoRtr),
        }
    }
}

fn config() -> impl Strategy<Value = Config> {
    let kinds = any::<(bool, bool, bool)>().prop_map(|(send, write, read)| RtrKinds { send, write, read });
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (flags, 0u16..0x4100, 0u16..0x4100, 0u16..300, kinds).prop_map(|(flags, ird, ord, ird_limit, rtr)| {
        Config {
            revision: if flags.0 { Revision::One } else { Revision::Two },
            crc: flags.1,
            markers: flags.2,
            ird,
            ird_limit,
            ord,
            rtr,
            large_fpdu: flags.3,
            extensions: flags.4,
        }
    })
}

#[test]
fn flags_do_not_overlap() {
    let all = [
        Flags::MARKERS,
        Flags::CRC,
        Flags::REJECT,
        Flags::ENHANCED,
        Flags::LARGE_FPDU,
        Flags::EXTENSIONS_OFFERED,
        Flags::EXTENSIONS_ACCEPTED,
        0x00ff,
    ];
    assert_eq!(all.iter().fold(0, |sum, flag| sum | flag).count_ones(), 7 + 8);
}
