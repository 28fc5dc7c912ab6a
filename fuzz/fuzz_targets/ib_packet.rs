//! Any bytes are a packet that reads well, or malformed; and what reads well is written the same again.
#![no_main]

use adverb_proto::ib::{DropReason, check_datagram, goes_to_requester};
use adverb_wire::ib::header::{Aeth, BTH_LEN, HeaderWriter, ICRC_LEN, MAX_HEADER};
use adverb_wire::ib::packet::{Packet, destination};
use adverb_wire::zerocopy::IntoBytes;
use adverb_wire::zerocopy::byteorder::big_endian::{U32, U64};
use libfuzzer_sys::fuzz_target;

// IB-PKT-38, ROCE-40
fuzz_target!(|bytes: &[u8]| {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(malformed) => return assert!(!malformed.to_string().is_empty()),
    };
    let bth = packet.bth();
    assert_eq!(packet.wire_len(), bytes.len());
    assert_eq!(destination(bytes), Some(bth.destination()));
    assert_eq!(bth.opcode(), Some(packet.opcode()));

    let mut buffer = [0; MAX_HEADER];
    let mut writer = HeaderWriter::new(&mut buffer);
    writer.put(bth);
    packet.xrceth().map(|header| writer.put(header).len());
    packet.deth().map(|header| writer.put(header).len());
    packet.feth().map(|header| writer.put(header).len());
    packet.reth().map(|header| writer.put(header).len());
    packet.atomic_eth().map(|header| writer.put(header).len());
    packet.aeth().map(|header| writer.put(header).len());
    packet.atomic_ack().map(|original| writer.put(&U64::new(original)).len());
    packet.immediate().or(packet.ieth()).map(|word| writer.put(&U32::new(word)).len());
    let header = writer.len();
    assert_eq!(header, BTH_LEN + packet.opcode().extensions().len());
    assert_eq!(buffer[..header], bytes[..header]);
    assert_eq!(packet.payload().bytes().unwrap(), &bytes[header..bytes.len() - ICRC_LEN - bth.pad()]);
    if let Some(aeth) = packet.aeth() {
        let again = Aeth::new(aeth.syndrome(), aeth.msn());
        // The highest bit is reserved.
        assert_eq!(again.as_bytes()[0], aeth.as_bytes()[0] & 0x7f);
        assert!(packet.deth().is_none());
    }
    assert!(!goes_to_requester(&packet) || packet.reth().is_none());
    match (packet.deth(), check_datagram(&packet, 7)) {
        (None, found) => assert_eq!(found, Err(DropReason::Opcode)),
        (Some(deth), found) => assert_eq!(found.is_ok(), deth.qkey.get() == 7),
    }
});
