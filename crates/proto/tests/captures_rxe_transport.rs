//! What the Linux rxe driver says to itself in `tests/captures/`: a requester makes the same packets for the
//! same requests, and understands the answers; a responder gives the same answers to the same packets.

#[path = "support/pcapng.rs"]
mod pcapng;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use adverb_proto::ib::{
    Access, CompletionStatus, Delivery, Keep, LocalFault, Operation, ReadSource, ReceiveFault, Refusal,
    Remote, Request, Requester, RequesterHost, RequesterOptions, Responder, ResponderHost, ResponderOptions,
    Service, Verdict, goes_to_requester,
};
use adverb_wire::ib::header::{Aeth, DEFAULT_PKEY, MAX_HEADER};
use adverb_wire::ib::mad::GSI_QPN;
use adverb_wire::ib::opcode::{Operation as Opcode, Service as WireService};
use adverb_wire::ib::packet::{Packet, Payload};

const PORT: u16 = 4791;

/// The packets to a queue pair, by its number, from one address to another, in order.
type Directions = BTreeMap<(u32, Vec<u8>, Vec<u8>), Vec<Vec<u8>>>;

fn directions(name: &str) -> Directions {
    const UDP: u8 = 17;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found = Directions::new();
    for packet in pcapng::packets(&file).filter_map(pcapng::ip) {
        if packet.protocol() != UDP || packet.body[2..4] != PORT.to_be_bytes() {
            continue;
        }
        let bytes = packet.body[8..].to_vec();
        let destination = Packet::parse(&bytes).expect("a packet of the kernel").bth().destination();
        found.entry((destination, packet.from.to_vec(), packet.to.to_vec())).or_default().push(bytes);
    }
    found
}

/// A host that has everything and allows everything.
#[derive(Default)]
struct Host {
    completed: Vec<CompletionStatus>,
    delivered: usize,
    value: u64,
}

impl RequesterHost for Host {
    fn place(&mut self, _: u64, _: u32, _: Payload<'_>) -> Result<(), LocalFault> {
        Ok(())
    }

    fn place_atomic(&mut self, _: u64, _: u64) -> Result<(), LocalFault> {
        Ok(())
    }

    fn complete(&mut self, _: u64, status: CompletionStatus) {
        self.completed.push(status);
    }
}

impl ResponderHost for Host {
    fn keep(&mut self, _: &ReadSource) -> Keep {
        Keep::At(0)
    }

    fn take_receive(&mut self) -> Option<u64> {
        Some(1 << 31)
    }

    fn place_receive(&mut self, _: u32, _: Payload<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn complete_receive(&mut self, _: Delivery) {
        self.delivered += 1;
    }

    fn fail_receive(&mut self, fault: ReceiveFault) {
        panic!("{fault:?}");
    }

    fn check_remote(&mut self, _: u32, _: u64, _: u32, _: Remote) -> Result<(), Refusal> {
        Ok(())
    }

    fn write(&mut self, _: u32, _: u64, _: Payload<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn fetch_add(&mut self, _: u32, _: u64, add: u64) -> Result<u64, Refusal> {
        let original = self.value;
        self.value = original.wrapping_add(add);
        Ok(original)
    }

    fn compare_swap(&mut self, _: u32, _: u64, _: u64, _: u64) -> Result<u64, Refusal> {
        Ok(self.value)
    }

    fn atomic_write(&mut self, _: u32, _: u64, _: [u8; 8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn flush(&mut self, _: u32, _: u64, _: u32, _: u8, _: u8) -> Result<(), Refusal> {
        Ok(())
    }

    fn invalidate(&mut self, _: u32) -> Result<(), Refusal> {
        Ok(())
    }
}

fn service(packet: &Packet<'_>) -> Service {
    match packet.opcode().service() {
        WireService::Rc => Service::Rc,
        WireService::Uc => Service::Uc,
        other => panic!("{other:?}"),
    }
}

/// The path MTU that a sequence of requests shows.
fn mtu<'a>(packets: impl Iterator<Item = &'a Packet<'a>>) -> u32 {
    packets.map(|packet| packet.payload().len() as u32).max().unwrap_or(0).next_power_of_two().max(1024)
}

/// The parts of an answer that do not depend on memory.
fn outline(bytes: &[u8]) -> (Opcode, u32, Option<Aeth>, usize) {
    let packet = Packet::parse(bytes).unwrap();
    let length = packet.payload().len();
    (packet.opcode().operation(), packet.bth().psn(), packet.aeth().copied(), length)
}

/// Gives the requests to a responder, which must answer as the kernel did. Returns the number of messages
/// delivered.
// IB-RC-RSP-48, IB-RC-RSP-52, IB-RC-RSP-55, IB-RC-RSP-56, IB-RC-RSP-57, IB-SRQ-12
fn respond(requests: &[Packet<'_>], answers: &[Vec<u8>], destination: u32) -> usize {
    let mut responder = Responder::new(ResponderOptions {
        service: service(&requests[0]),
        mtu: mtu(requests.iter().chain(&[])),
        expected_psn: requests[0].bth().psn(),
        destination,
        pkey: DEFAULT_PKEY,
        max_reads: 16,
        min_rnr_timer: 0,
        access: Access { write: true, read: true, atomic: true, flush: true },
    });
    let mut host = Host::default();
    let mut said = Vec::new();
    for packet in requests {
        assert_eq!(responder.receive(packet, &mut host), Verdict::Accepted);
        let mut buffer = [0; MAX_HEADER];
        while let Some(reply) = responder.poll_transmit(&mut buffer) {
            let mut bytes = buffer[..reply.header].to_vec();
            bytes.resize(reply.wire_len(), 0);
            said.push(outline(&bytes));
        }
    }
    let expected: Vec<_> = answers.iter().map(|bytes| outline(bytes)).collect();
    assert_eq!(said, expected);
    host.delivered
}

/// The requests that the kernel must have had to make these packets.
fn requests_of(packets: &[Packet<'_>]) -> Vec<Request> {
    let mut requests: Vec<Request> = Vec::new();
    for packet in packets {
        let operation = packet.opcode().operation();
        let reth = packet.reth().map(|reth| (reth.address.get(), reth.rkey.get(), reth.length.get()));
        if packet.opcode().position().starts() {
            let atomic = packet
                .atomic_eth()
                .map(|eth| (eth.address.get(), eth.rkey.get(), eth.swap_or_add.get(), eth.compare.get()));
            let (operation, length) = match (operation, reth, atomic) {
                (Opcode::ReadRequest, Some((address, rkey, length)), _) => {
                    (Operation::Read { address, rkey }, length)
                }
                (_, Some((address, rkey, _)), _) => (Operation::Write { address, rkey, immediate: None }, 0),
                (Opcode::CompareSwap, _, Some((address, rkey, swap, compare))) => {
                    (Operation::CompareSwap { address, rkey, compare, swap }, 8)
                }
                (_, _, Some((address, rkey, add, _))) => (Operation::FetchAdd { address, rkey, add }, 8),
                _ => (Operation::Send { immediate: None, invalidate: None }, 0),
            };
            let sequence = requests.len() as u64;
            requests.push(Request {
                sequence,
                operation,
                length,
                solicited: false,
                fence: false,
                shared_queue: 0,
            });
        }
        let last = requests.last_mut().expect("a message begins");
        last.length += packet.payload().len() as u32;
        last.solicited |= packet.bth().solicited();
    }
    requests
}

/// Makes the packets again from what they must have been made of, and gives the answers to the requester.
fn request(packets: &[Packet<'_>], answers: &[Packet<'_>], originals: &[&Vec<u8>]) -> usize {
    let mtu = mtu(packets.iter().chain(answers));
    let reliable = service(&packets[0]) == Service::Rc;
    let mut requester = Requester::new(RequesterOptions {
        service: service(&packets[0]),
        mtu,
        first_psn: packets[0].bth().psn(),
        destination: packets[0].bth().destination(),
        pkey: DEFAULT_PKEY,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        max_reads: 128,
        room: u32::MAX,
        read_chunk: u32::MAX,
    });
    let requests = requests_of(packets);
    let (mut host, now) = (Host::default(), Duration::from_secs(1));
    for request in &requests {
        requester.push(*request);
    }
    for original in originals {
        let mut buffer = [0; MAX_HEADER];
        let outbound = requester.poll_transmit(now, u32::MAX, &mut buffer).expect("another packet");
        assert_eq!(outbound.wire_len(), original.len());
        // The kernel never says that a path is in the state MIGRATED.
        buffer[1] &= !0x40;
        // How often acknowledgements are asked for is up to the requester, but both do at the end.
        buffer[8] |= original[8];
        assert_eq!(buffer[..outbound.header], original[..outbound.header]);
        if outbound.finished {
            host.complete(outbound.sequence, CompletionStatus::Success);
        }
    }
    for answer in answers {
        let feedback = requester.receive(answer, now, &mut host);
        assert!(!feedback.failed);
    }
    assert!(host.completed.iter().all(|status| *status == CompletionStatus::Success));
    if reliable || answers.is_empty() {
        assert!(requester.is_idle());
    }
    assert_eq!(host.completed.len(), requests.len());
    requests.len()
}

/// Goes through a whole capture; returns the number of requests, and of those that were delivered to a
/// receive.
fn check(name: &str) -> (usize, usize) {
    let directions = directions(name);
    let (mut made, mut delivered) = (0, 0);
    let is_answer = |bytes: &&Vec<u8>| goes_to_requester(&Packet::parse(bytes).unwrap());
    for ((queue_pair, from, to), bytes) in &directions {
        if *queue_pair == GSI_QPN {
            continue;
        }
        // Both ends of these connections have the same number.
        let back = directions.get(&(*queue_pair, to.clone(), from.clone()));
        let back: Vec<Vec<u8>> = back.into_iter().flatten().filter(is_answer).cloned().collect();
        let originals: Vec<&Vec<u8>> = bytes.iter().filter(|bytes| !is_answer(bytes)).collect();
        if originals.is_empty() {
            continue;
        }
        let requests: Vec<Packet<'_>> = originals.iter().map(|bytes| Packet::parse(bytes).unwrap()).collect();
        let answers: Vec<Packet<'_>> = back.iter().map(|bytes| Packet::parse(bytes).unwrap()).collect();
        delivered += respond(&requests, &back, *queue_pair);
        made += request(&requests, &answers, &originals);
    }
    (made, delivered)
}

#[test]
fn rping_as_rxe_does_it() {
    assert_eq!(check("rxe-rping.pcapng"), (18, 12));
    assert_eq!(check("rxe-rping-large-ipv6.pcapng"), (12, 8));
}

// IB-RC-REQ-11
#[test]
fn perftest_as_rxe_does_it() {
    assert_eq!(check("rxe-write-bw.pcapng"), (5, 0));
    assert_eq!(check("rxe-read-bw.pcapng"), (5, 0));
    assert_eq!(check("rxe-atomic-fetch-add.pcapng"), (5, 0));
    assert_eq!(check("rxe-atomic-cmp-swap.pcapng"), (5, 0));
}

// IB-RC-REQ-8, IB-RC-REQ-10, IB-UC-4
#[test]
fn pingpongs_as_rxe_does_them() {
    assert_eq!(check("rxe-rc-pingpong.pcapng"), (10, 10));
    assert_eq!(check("rxe-uc-pingpong.pcapng"), (10, 10));
    assert_eq!(check("rxe-srq-pingpong.pcapng"), (12, 12));
    assert_eq!(check("rxe-ucmatose.pcapng"), (20, 20));
}
