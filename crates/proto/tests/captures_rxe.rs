//! Every RoCE packet of the Linux rxe driver in `tests/captures/` is understood and made again, byte for
//! byte, and has the ICRC that it should have.

#[path = "support/pcapng.rs"]
mod pcapng;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use adverb_wire::ib::cm::{
    IpAddresses, Message, RejectReason, interval, port_of, port_space, service, sidr_status,
};
use adverb_wire::ib::header::{
    Aeth, AtomicAckEth, AtomicEth, Bth, DEFAULT_PKEY, Deth, HeaderWriter, MAX_HEADER, NakCode, Reth, Syndrome,
};
use adverb_wire::ib::icrc::{Flow, FlowCrc, HiddenFields};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN, Mad};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use adverb_wire::ib::packet::Packet;
use adverb_wire::zerocopy::IntoBytes;
use pcapng::{Ip, ip, packets};

const UDP: u8 = 17;
const ROCE_PORT: u16 = 4791;

/// A RoCE packet.
struct CapturedPacket {
    ip_header: Vec<u8>,
    udp_header: [u8; 8],
    flow: Flow,
    bytes: Vec<u8>,
}

fn address(bytes: &[u8]) -> IpAddr {
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    }
}

/// The RoCE packets of a capture.
fn capture(name: &str) -> Vec<CapturedPacket> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Vec::new();
    for packet in packets(&file).filter_map(ip) {
        if packet.protocol() == UDP {
            let Ip { header, from, to, body } = packet;
            let (udp, bytes) = body.split_first_chunk::<8>().unwrap();
            let [source_port, destination_port] = [0, 2].map(|at| u16::from_be_bytes([udp[at], udp[at + 1]]));
            let flow =
                Flow { source: address(from), destination: address(to), source_port, destination_port };
            if destination_port == ROCE_PORT {
                found.push(CapturedPacket {
                    ip_header: header.to_vec(),
                    udp_header: *udp,
                    flow,
                    bytes: bytes.to_vec(),
                });
            }
        }
    }
    found
}

/// The ICRC as the standard describes it, bit by bit, from the headers as they were captured.
// ROCE-12, ROCE-13, ROCE-14, ROCE-15, ROCE-16, ROCE-17
fn icrc(captured: &CapturedPacket) -> [u8; 4] {
    let mut ip = captured.ip_header.clone();
    if ip[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            ip[at] = 0xff;
        }
    } else {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    let mut udp = captured.udp_header;
    udp[6..].fill(0xff);
    let mut packet = captured.bytes[..captured.bytes.len() - 4].to_vec();
    packet[4] = 0xff;
    let mut remainder = !0u32;
    for byte in [&[0xff; 8][..], &ip, &udp, &packet].concat() {
        for bit in 0..8 {
            let carry = (remainder & 1) as u8 ^ (byte >> bit & 1);
            remainder = remainder >> 1 ^ if carry != 0 { 0xedb8_8320 } else { 0 };
        }
    }
    (!remainder).to_le_bytes()
}

/// What the receiver of a packet is not told.
fn hidden(captured: &CapturedPacket) -> HiddenFields {
    let ip = &captured.ip_header;
    if ip[0] >> 4 == 4 {
        HiddenFields { identification: u16::from_be_bytes([ip[4], ip[5]]), dont_fragment: ip[6] & 0x40 != 0 }
    } else {
        HiddenFields { identification: 0, dont_fragment: true }
    }
}

fn check_icrc(captured: &CapturedPacket) {
    let CapturedPacket { flow, bytes, .. } = captured;
    assert_eq!(icrc(captured), bytes[bytes.len() - 4..]);
    let flow = FlowCrc::new(flow);
    let hidden = hidden(captured);
    // ROCE-18
    assert_eq!(flow.identify(bytes), Some(hidden));
    if hidden.dont_fragment {
        let mut again = flow.seed(hidden.identification, bytes.len());
        again.begin(&bytes[..bytes.len() - 4]);
        assert_eq!(again.finish().to_le_bytes(), bytes[bytes.len() - 4..]);
    }
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(flow.identify(&damaged), None);
}

/// The packet without its ICRC, made from what was read.
fn again(packet: &Packet<'_>) -> Vec<u8> {
    let (bth, payload) = (packet.bth(), packet.payload().bytes().unwrap());
    let mut header = Bth::new(packet.opcode(), bth.pkey(), bth.destination(), bth.psn())
        .with_solicited(bth.solicited())
        .with_pad_for(payload.len())
        .with_ack_request(bth.ack_request());
    if !bth.migrated() {
        // rxe never sets it, adapters always.
        header.as_mut_bytes()[1] &= !0x40;
    }
    let mut buffer = [0; MAX_HEADER];
    let mut writer = HeaderWriter::new(&mut buffer);
    writer.put(&header);
    if let Some(deth) = packet.deth() {
        writer.put(&Deth::new(deth.qkey.get(), deth.source()));
    }
    if let Some(reth) = packet.reth() {
        writer.put(&Reth::new(reth.address.get(), reth.rkey.get(), reth.length.get()));
    }
    if let Some(&AtomicEth { address, rkey, swap_or_add, compare }) = packet.atomic_eth() {
        writer.put(&AtomicEth { address, rkey, swap_or_add, compare });
    }
    if let Some(aeth) = packet.aeth() {
        writer.put(&Aeth::new(aeth.syndrome(), aeth.msn()));
    }
    if let Some(original) = packet.atomic_ack() {
        writer.put(&AtomicAckEth { original: original.into() });
    }
    if let Some(immediate) = packet.immediate() {
        writer.put(&immediate.to_be_bytes());
    }
    if let Some(key) = packet.ieth() {
        writer.put(&key.to_be_bytes());
    }
    let len = writer.len();
    let mut bytes = [&buffer[..len], payload].concat();
    bytes.resize(bytes.len() + header.pad(), 0);
    bytes
}

/// A packet, read and made again.
fn packet(captured: &CapturedPacket) -> Packet<'_> {
    let bytes = &captured.bytes;
    let packet = Packet::parse(bytes).unwrap();
    assert_eq!(again(&packet), bytes[..bytes.len() - 4], "{packet:?}");
    assert_eq!((packet.wire_len(), packet.bth().pkey()), (bytes.len(), DEFAULT_PKEY));
    packet
}

/// The message of connection management in a packet, read and made again.
// IB-PKT-58
fn message(captured: &CapturedPacket) -> Option<(u64, Message)> {
    let packet = Packet::parse(&captured.bytes).unwrap();
    let deth = packet.deth().filter(|_| packet.bth().destination() == GSI_QPN)?;
    assert_eq!((deth.qkey.get(), deth.source()), (GSI_QKEY, GSI_QPN));
    let mad = Mad::parse(packet.payload().bytes().unwrap()).unwrap();
    let transaction_id = mad.header.transaction_id.get();
    let message = Message::parse(mad).unwrap();
    assert_eq!(
        message.to_mad(transaction_id).to_bytes()[..],
        *packet.payload().bytes().unwrap(),
        "{message:?}"
    );
    if let Message::Req(req) = message {
        let addresses = IpAddresses::read(&req.private_data).unwrap();
        assert_eq!(
            (addresses.source, addresses.destination),
            (captured.flow.source, captured.flow.destination)
        );
        assert_eq!(addresses.to_bytes(), req.private_data[..36]);
    }
    Some((transaction_id, message))
}

/// Goes through a capture, and counts the packets of each opcode.
fn check(name: &str, counts: &mut BTreeMap<u8, usize>) {
    for captured in &capture(name) {
        check_icrc(captured);
        let opcode = packet(captured).opcode();
        message(captured);
        *counts.entry(opcode.to_u8()).or_default() += 1;
    }
}

fn messages(name: &str) -> Vec<(u64, Message)> {
    capture(name).iter().filter_map(message).collect()
}

#[test]
fn all_packets() {
    let names = [
        "atomic-cmp-swap",
        "atomic-fetch-add",
        "rc-pingpong",
        "read-bw",
        "reject",
        "rping",
        "rping-large-ipv6",
        "srq-pingpong",
        "uc-pingpong",
        "ucmatose",
        "ud-pingpong",
        "udaddy",
        "write-bw",
    ];
    let mut counts = BTreeMap::new();
    for name in names {
        check(&format!("rxe-{name}.pcapng"), &mut counts);
    }
    let of = |service, operation| Opcode::new(service, operation).unwrap().to_u8();
    let rc = |operation, count| (of(Service::Rc, operation), count);
    // As tshark counts them.
    let expected = BTreeMap::from([
        rc(Operation::SendFirst, 10),
        rc(Operation::SendMiddle, 20),
        rc(Operation::SendLast, 10),
        rc(Operation::SendOnly, 52),
        rc(Operation::WriteFirst, 7),
        rc(Operation::WriteMiddle, 86),
        rc(Operation::WriteLast, 7),
        rc(Operation::WriteOnly, 3),
        rc(Operation::ReadRequest, 10),
        rc(Operation::ReadResponseFirst, 7),
        rc(Operation::ReadResponseMiddle, 86),
        rc(Operation::ReadResponseLast, 7),
        rc(Operation::ReadResponseOnly, 3),
        rc(Operation::Acknowledge, 72),
        rc(Operation::AtomicAcknowledge, 10),
        rc(Operation::CompareSwap, 5),
        rc(Operation::FetchAdd, 5),
        (of(Service::Uc, Operation::SendFirst), 10),
        (of(Service::Uc, Operation::SendMiddle), 20),
        (of(Service::Uc, Operation::SendLast), 10),
        (of(Service::Ud, Operation::SendOnly), 29),
        (of(Service::Ud, Operation::SendOnlyImmediate), 20),
    ]);
    assert_eq!(counts, expected);
    assert_eq!(counts.values().sum::<usize>(), 489);
}

/// Each capture that `make-captures` makes has what it is there to show: an opcode, or a syndrome of an
/// acknowledgement.
#[test]
fn all_packets_that_are_made_again() {
    let shown = |service, operation| Opcode::new(service, operation).unwrap().to_u8();
    let rc = |operation| shown(Service::Rc, operation);
    let expected: &[(&str, &[u8])] = &[
        ("atomics", &[rc(Operation::FetchAdd), rc(Operation::CompareSwap), rc(Operation::AtomicAcknowledge)]),
        ("connection-loss", &[shown(Service::Ud, Operation::SendOnly)]),
        ("invalidate", &[rc(Operation::SendOnlyInvalidate), rc(Operation::Acknowledge)]),
        ("killed", &[rc(Operation::WriteOnly), rc(Operation::ReadRequest)]),
        ("loss-atomics", &[rc(Operation::FetchAdd), rc(Operation::AtomicAcknowledge)]),
        ("loss-read", &[rc(Operation::ReadRequest), rc(Operation::ReadResponseOnly)]),
        ("loss-write", &[rc(Operation::WriteLastImmediate), rc(Operation::WriteOnlyImmediate)]),
        ("nak-access", &[rc(Operation::WriteFirst), rc(Operation::ReadRequest)]),
        ("nak-invalid-request", &[rc(Operation::FetchAdd)]),
        ("receiver-not-ready", &[rc(Operation::SendOnly)]),
        ("send-immediate", &[rc(Operation::SendOnlyImmediate), rc(Operation::SendLastImmediate)]),
        ("silence", &[rc(Operation::SendOnly)]),
        ("uc-immediate", &[shown(Service::Uc, Operation::WriteOnlyImmediate)]),
        ("ud-immediate", &[shown(Service::Ud, Operation::SendOnlyImmediate)]),
        ("ud-immediate-ipv6", &[shown(Service::Ud, Operation::SendOnlyImmediate)]),
        ("write-immediate", &[rc(Operation::WriteOnlyImmediate), rc(Operation::WriteLastImmediate)]),
    ];
    for (name, opcodes) in expected {
        let mut counts = BTreeMap::new();
        check(&format!("rxe-{name}.pcapng"), &mut counts);
        for opcode in *opcodes {
            assert!(counts.contains_key(opcode), "{name} has no {opcode:#x}: {counts:x?}");
        }
    }
    let naks = |name: &str| -> Vec<Syndrome> {
        let packets = capture(&format!("rxe-{name}.pcapng"));
        packets
            .iter()
            .filter_map(|captured| Some(Packet::parse(&captured.bytes).unwrap().aeth()?.syndrome()))
            .collect()
    };
    let nak = |code| Syndrome::Nak(code);
    assert!(naks("nak-access").contains(&nak(NakCode::RemoteAccessError)));
    assert!(naks("nak-invalid-request").contains(&nak(NakCode::InvalidRequest)));
    let lossy = ["loss-write", "loss-read", "loss-atomics"].map(naks).concat();
    assert!(lossy.contains(&nak(NakCode::PsnSequenceError)));
    assert!(
        naks("receiver-not-ready")
            .iter()
            .any(|syndrome| matches!(syndrome, Syndrome::ReceiverNotReady { .. }))
    );
}

/// No capture of rxe is left out by the two tests above.
#[test]
fn no_capture_is_left_out() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("rxe-")).count(), 13 + 16);
}

/// A connection is made and released as rdma_cm does it.
// IB-CM-2, IB-CM-51
#[test]
fn connection() {
    let messages = messages("rxe-rping.pcapng");
    let [
        (transaction, Message::Req(req)),
        (rep_transaction, Message::Rep(rep)),
        (rtu_transaction, Message::Rtu(rtu)),
        (dreq_transaction, Message::Dreq(dreq)),
        (drep_transaction, Message::Drep(drep)),
    ] = messages[..]
    else {
        panic!("{messages:#?}")
    };
    assert_eq!((rep_transaction, rtu_transaction), (transaction, transaction));
    assert_eq!(drep_transaction, dreq_transaction);
    let (active, passive) = (req.local_communication_id, rep.local_communication_id);
    assert_eq!(rep.remote_communication_id, active);
    assert_eq!((rtu.local_communication_id, rtu.remote_communication_id), (active, passive));
    assert_eq!(dreq.local_communication_id, drep.remote_communication_id);
    assert_eq!(port_of(req.service_id), Some((port_space::TCP, 7174)));
    assert_eq!((req.transport_service, req.path_mtu, req.pkey), (service::RC, 3, 0xffff));
    assert_eq!((req.max_cm_retries, req.retry_count, req.rnr_retry_count), (15, 7, 7));
    assert_eq!((req.local_response_timeout, req.remote_response_timeout), (20, 20));
    assert_eq!(interval(req.primary.local_ack_timeout), interval(19));
}

#[test]
fn refusal() {
    let messages = messages("rxe-reject.pcapng");
    let [(_, Message::Req(req)), (_, Message::Rej(rej))] = messages[..] else { panic!("{messages:#?}") };
    assert_eq!(rej.remote_communication_id, req.local_communication_id);
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
}

// IB-SIDR-1, IB-SIDR-7
#[test]
fn datagram_service() {
    let messages = messages("rxe-udaddy.pcapng");
    let [(transaction, Message::SidrReq(request)), (rep_transaction, Message::SidrRep(reply)), ..] =
        messages[..]
    else {
        panic!("{messages:#?}")
    };
    assert_eq!(rep_transaction, transaction);
    assert_eq!(port_of(request.service_id), Some((port_space::UDP, 7174)));
    assert!(IpAddresses::read(&request.private_data).is_some());
    assert_eq!((reply.request_id, reply.service_id), (request.request_id, request.service_id));
    assert_eq!((reply.status, reply.qkey), (sidr_status::SUCCESS, 0x0123_4567));
}
