//! What goes out, byte by byte.

use proptest::prelude::*;

use super::*;
use crate::iwarp::{AtomicOperation, AtomicRequest, AtomicResponse, Fault, ReadRequest, Terminate};

fn parameters() -> Parameters {
    Parameters {
        initiator: true,
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

fn sender(emss: usize) -> Sender {
    Sender::new(&parameters(), emss)
}

fn send(len: u32) -> Outbound {
    Outbound::Send { len, invalidate: None, solicited: false }
}

/// The whole frame of a message without payload.
fn frame(message: Outbound) -> Vec<u8> {
    let fpdu = sender(1448).only(message).unwrap().unwrap();
    assert!(fpdu.is_last());
    fpdu.without_payload().unwrap().to_vec()
}

// RFC5044-4.5-1, RFC5044-4.5-2, RFC5044-4.5-3, RFC5044-3-2, RFC5044-3-3, RFC5044-3-4
#[test]
fn the_greatest_ulpdu_follows_the_emss() {
    let with = |emss, markers_tx, large_fpdu| {
        Sender::new(&Parameters { markers_tx, large_fpdu, ..parameters() }, emss).max_ulpdu
    };
    assert_eq!(with(1448, false, false), 1448 - 6);
    assert_eq!(with(1461, false, false), 1461 - 7);
    assert_eq!(with(1448, true, false), 1448 - 6 - 12);
    assert_eq!(with(9000, true, false), 9000 - 6 - 72);
    for markers in [false, true] {
        assert_eq!(with(0, markers, false), 130);
        assert_eq!(with(100, markers, false), 130);
        assert_eq!(with(1448, markers, true), 64766);
        assert_eq!(with(usize::MAX / 8, markers, false), 64766);
    }
}

// RFC5041-3-5
#[test]
fn a_new_emss_holds_from_the_next_fpdu_on() {
    let mut sender = sender(1448);
    sender.begin(send(3000)).unwrap();
    let first = sender.next_fpdu().unwrap();
    sender.set_emss(500);
    let second = sender.next_fpdu().unwrap();
    assert_eq!((first.payload(), second.payload()), (0..1424, 1424..1424 + 494 - 18));
}

// RFC5040-4.1-2, RFC5040-4.1-3, RFC5040-4.1-4, RFC5040-4.1-7, RFC5040-5.3-1, RFC5040-5.3-5
#[test]
fn sends_of_all_kinds() {
    for (invalidate, solicited, opcode) in
        [(None, false, 3), (Some(0xa1b2_c3d4), false, 4), (None, true, 5), (Some(0xa1b2_c3d4), true, 6)]
    {
        let bytes = frame(Outbound::Send { len: 0, invalidate, solicited });
        let stag = invalidate.unwrap_or(0).to_be_bytes();
        let expected =
            [&[0, 18, 0x41, 0x40 | opcode], &stag[..], &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[0; 4]];
        assert_eq!(bytes, expected.concat());
    }
}

// RFC5040-4.4-1, RFC5040-5.2.1-1
#[test]
fn a_read_request_is_all_head() {
    let request = ReadRequest { sink_stag: 1, sink_to: 2, len: 3, source_stag: 4, source_to: 5 };
    let bytes = frame(Outbound::ReadRequest(request));
    let header = [0, 46, 0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let body = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5];
    assert_eq!(bytes, [&header[..], &body, &[0; 4]].concat());
}

// RFC7306-4.1-1, RFC7306-6.3-1, RFC7306-6.3-4
#[test]
fn immediate_data() {
    let bytes = frame(Outbound::Immediate { data: *b"immediat", solicited: false });
    let header = [0, 26, 0x41, 0x48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(bytes, [&header[..], b"immediat", &[0; 4]].concat());
    assert_eq!(frame(Outbound::Immediate { data: [0; 8], solicited: true })[3], 0x49);
}

// RFC7306-5.2-2, RFC7306-5.2.1-1, RFC7306-5.2.1-2, RFC7306-5.2.1-9, RFC7306-5.2.2-1, RFC7306-5.2.2-2
#[test]
fn atomic_operations() {
    let request = |operation| Outbound::AtomicRequest(AtomicRequest { id: 1, stag: 2, to: 8, operation });
    let bytes = frame(request(AtomicOperation::FetchAdd { add: 3, mask: 4 }));
    let header = [0, 70, 0x41, 0x4a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let body = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 8];
    let word = |value: u64| value.to_be_bytes();
    let operands = [word(3), word(4), word(0), word(u64::MAX)].concat();
    assert_eq!(bytes, [&header[..], &body, &operands, &[0; 4]].concat());
    let bytes =
        frame(request(AtomicOperation::CompareSwap { compare: 5, compare_mask: 6, swap: 7, swap_mask: 8 }));
    assert_eq!(bytes[20..24], [0, 0, 0, 2]);
    assert_eq!(bytes[40..72], [word(7), word(8), word(5), word(6)].concat());

    let bytes = frame(Outbound::AtomicResponse(AtomicResponse { id: 9, original: 10 }));
    let header = [0, 30, 0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(bytes, [&header[..], &[0, 0, 0, 9], &word(10), &[0; 4]].concat());
}

// RFC5044-4.1-2, RFC5044-4.1-3, RFC5044-4.4-6
#[test]
fn padding_and_an_unused_crc_are_zero() {
    for len in 0..8 {
        let mut sender = sender(1448);
        let fpdu = sender.only(send(len)).unwrap().unwrap();
        assert_eq!(fpdu.len() % 4, 0);
        assert_eq!(fpdu.payload_len(), len as usize);
        assert_eq!(fpdu.trailer_len(), 4 + (4 - len as usize % 4) % 4);
        let mut frame = Vec::new();
        sender.seal(&fpdu, &vec![0xff; len as usize], &mut frame);
        assert_eq!(frame[..20], *fpdu.head());
        assert!(frame[20..20 + len as usize].iter().all(|byte| *byte == 0xff));
        assert!(frame[20 + len as usize..].iter().all(|byte| *byte == 0));
        assert_eq!(frame.len(), sender.sealed_len(&fpdu));
    }
}

// RFC5041-4.3-5, RFC5041-4.3-6, RFC5040-3.1-1
#[test]
fn each_queue_counts_its_messages() {
    let mut sender = sender(200);
    sender.msn = [u32::MAX, 10, 20, 30];
    let msn = |fpdu: &Fpdu| u32::from_be_bytes(fpdu.head()[12..16].try_into().unwrap());
    let mut all = |message| {
        sender.begin(message).unwrap();
        let mut numbers = Vec::new();
        while let Some(fpdu) = sender.next_fpdu() {
            numbers.push(msn(&fpdu));
        }
        numbers
    };
    assert_eq!(all(send(500)), [u32::MAX; 3]);
    assert_eq!(all(send(0)), [0]);
    assert_eq!(all(Outbound::Immediate { data: [0; 8], solicited: false }), [1]);
    let request = ReadRequest { sink_stag: 0, sink_to: 0, len: 0, source_stag: 0, source_to: 0 };
    assert_eq!(all(Outbound::ReadRequest(request)), [10]);
    let operation = AtomicOperation::swap(0);
    assert_eq!(all(Outbound::AtomicRequest(AtomicRequest { id: 0, stag: 0, to: 0, operation })), [11]);
    assert_eq!(all(Outbound::AtomicResponse(AtomicResponse { id: 0, original: 0 })), [30]);
    assert_eq!(all(Outbound::Terminate(Terminate::local(Fault::LocalCatastrophic))), [20]);
}

// RFC5040-5.4-4, RFC5041-6.2.1-1
#[test]
fn nothing_follows_a_terminate_or_the_end() {
    let mut one = sender(1448);
    one.begin(send(5000)).unwrap();
    one.next_fpdu().unwrap();
    assert_eq!(one.begin(send(1)), Err(BeginError::Busy));
    assert_eq!(one.finish(), Err(BeginError::Busy));
    one.abandon();
    one.begin(Outbound::Terminate(Terminate::local(Fault::LocalCatastrophic))).unwrap();
    assert!(one.next_fpdu().unwrap().is_last());
    assert_eq!(one.begin(send(1)), Err(BeginError::Closed));
    assert!(one.next_fpdu().is_none());
    let mut two = sender(1448);
    assert_eq!(two.finish(), Ok(()));
    assert_eq!(two.begin(send(1)), Err(BeginError::Closed));
}

#[test]
fn extensions_are_refused_unless_agreed() {
    let mut sender = Sender::new(&Parameters { extensions: false, ..parameters() }, 1448);
    let operation = AtomicOperation::swap(0);
    for message in [
        Outbound::Immediate { data: [0; 8], solicited: true },
        Outbound::AtomicRequest(AtomicRequest { id: 0, stag: 0, to: 0, operation }),
        Outbound::AtomicResponse(AtomicResponse { id: 0, original: 0 }),
    ] {
        assert_eq!(sender.only(message).unwrap_err(), BeginError::NotNegotiated);
    }
    assert!(!sender.is_busy());
}

#[test]
fn only_takes_what_fits_one_fpdu() {
    let mut sender = sender(1448);
    assert!(sender.only(send(sender.max_payload() as u32 + 1)).unwrap().is_none());
    assert!(!sender.is_busy());
    let fpdu = sender.only(send(sender.max_payload() as u32)).unwrap().unwrap();
    assert!(fpdu.is_last() && fpdu.len() <= 1448);
}

#[test]
fn a_checksum_over_parts_is_that_of_the_whole() {
    let crc = Parameters { crc: true, ..parameters() };
    for length in [257, 1000, 1001, 1002, 1003] {
        let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let mut sender = Sender::new(&crc, 1448);
        let fpdu = sender.only(send(length)).unwrap().unwrap();
        let mut checksum = sender.checksum(&fpdu).unwrap();
        payload.chunks(300).for_each(|part| checksum.update(part));
        let trailer = checksum.trailer();
        let mut whole = Vec::new();
        sender.seal(&fpdu, &payload, &mut whole);
        assert_eq!([fpdu.head(), &payload, &trailer[..fpdu.trailer_len()]].concat(), whole);
    }
    for other in [parameters(), Parameters { markers_tx: true, ..crc }] {
        let mut sender = Sender::new(&other, 1448);
        let fpdu = sender.only(send(8)).unwrap().unwrap();
        assert!(sender.checksum(&fpdu).is_none());
    }
}

#[test]
fn a_failed_seal_can_be_done_again() {
    let mut sender = Sender::new(&Parameters { crc: true, markers_tx: true, ..parameters() }, 1448);
    let fpdu = sender.only(send(1000)).unwrap().unwrap();
    let mut out = vec![0; sender.sealed_len(&fpdu)];
    let mut calls = 0;
    let failed = sender.seal_with(&fpdu, &mut out, |_, _| {
        calls += 1;
        if calls == 2 { Err("fault") } else { Ok(()) }
    });
    assert_eq!(failed, Err("fault"));
    let written = sender.seal_with(&fpdu, &mut out, |offset, piece| {
        piece.fill(offset as u8);
        Ok::<(), ()>(())
    });
    assert_eq!(written, Ok(out.len()));
    assert_eq!(out[..4], [0; 4]);
}

proptest! {
    // RFC5041-5.2-1, RFC5041-5.2-3, RFC5041-5.2-5, RFC5041-5.2-6, RFC5041-5.2-7, RFC5041-5.3-3,
    // RFC5041-4.1-2, RFC5041-4.1-3, RFC5041-4.2-2, RFC5041-4.2-5, RFC5041-4.3-2, RFC5041-4.3-7, RFC5044-3-1,
    // RFC5044-3-7, RFC5044-4.5-4, RFC5041-4.3-4, RFC5040-5.1-1, RFC5040-6.1-1
    #[test]
    fn segments_cover_the_message(len in 0u32..200_000, emss in 0usize..20_000, kind in 0..3, to: u64, markers_tx: bool) {
        let message = match kind {
            0 => Outbound::Send { len, invalidate: Some(7), solicited: true },
            1 => Outbound::Write { stag: 7, to, len },
            _ => Outbound::ReadResponse { sink_stag: 7, sink_to: to, len },
        };
        let mut sender = Sender::new(&Parameters { markers_tx, ..parameters() }, emss);
        let max_ulpdu = sender.max_ulpdu as usize;
        sender.begin(message).unwrap();
        let (mut next, mut last) = (0, false);
        while let Some(fpdu) = sender.next_fpdu() {
            prop_assert!(!last);
            prop_assert_eq!(fpdu.payload().start, next);
            prop_assert!(fpdu.payload_len() > 0 || len == 0);
            let ulpdu_len = fpdu.len() - 2 - fpdu.trailer_len();
            prop_assert_eq!(&fpdu.head()[..2], &(ulpdu_len as u16).to_be_bytes());
            prop_assert!(ulpdu_len <= max_ulpdu);
            prop_assert!(fpdu.is_last() || ulpdu_len == max_ulpdu);
            if emss >= 256 {
                prop_assert!(sender.sealed_len(&fpdu) <= emss);
            }
            next = fpdu.payload().end;
            last = fpdu.is_last();
            let head = fpdu.head();
            prop_assert_eq!(head[2] & 0x40 != 0, last);
            prop_assert_eq!(&head[4..8], &[0, 0, 0, 7]);
            prop_assert_eq!(head[3] & 0x0f, message.opcode() as u8);
            prop_assert_eq!(head[2] & 0x80 != 0, kind != 0);
            if kind == 0 {
                prop_assert_eq!(&head[8..16], &[0, 0, 0, 0, 0, 0, 0, 1]);
                prop_assert_eq!(&head[16..20], &(fpdu.payload().start as u32).to_be_bytes());
            } else {
                prop_assert_eq!(&head[8..16], &to.wrapping_add(fpdu.payload().start).to_be_bytes());
            }
        }
        prop_assert!(last && next == len as u64);
        prop_assert!(!sender.is_busy());
    }
}
