mod xrc;

use super::*;
use crate::ib::timer;
use adverb_wire::ib::header::{
    AtomicEth, Bth, DEFAULT_PKEY, Feth, HeaderWriter, ICRC_LEN, MAX_HEADER, Reth, Syndrome, padding,
};
use adverb_wire::ib::opcode::{Opcode as WireOpcode, Service as WireService};
use adverb_wire::zerocopy::byteorder::big_endian::U32;

const MTU: usize = 256;
const PSN: u32 = 0xff_fffd;
const KEY: u32 = 7;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Placed(u32, usize),
    Delivered(Delivery),
    Failed(ReceiveFault),
    Written(u64, usize),
    Atomic(u64),
    Flushed(u8, u8),
    Invalidated(u32),
}

#[derive(Default)]
struct Host {
    receives: VecDeque<u64>,
    events: Vec<Event>,
    refusal: Option<Refusal>,
    value: u64,
    checks: usize,
    /// The length of each Read that it was told of.
    reads: Vec<u32>,
    /// XRC: the queue of the last packet.
    queue: u32,
    /// Bytes of reads that it keeps, and whether it refuses to.
    kept: u32,
    is_full: bool,
}

impl Host {
    fn allowed(&self) -> Result<(), Refusal> {
        self.refusal.map_or(Ok(()), Err)
    }
}

impl ResponderHost for Host {
    fn choose_queue(&mut self, number: u32) -> Result<(), Refusal> {
        self.queue = number;
        if number == xrc::NOBODYS { Err(Refusal::Invalid) } else { Ok(()) }
    }

    fn keep(&mut self, source: &ReadSource) -> Keep {
        if self.is_full {
            return Keep::Later;
        }
        self.kept += source.length;
        Keep::At(self.kept - source.length)
    }

    fn take_receive(&mut self) -> Option<u64> {
        self.receives.pop_front()
    }

    fn place_receive(&mut self, offset: u32, payload: Payload<'_>) -> Result<(), Refusal> {
        self.allowed()?;
        self.events.push(Event::Placed(offset, payload.len()));
        Ok(())
    }

    fn complete_receive(&mut self, delivered: Delivery) {
        self.events.push(Event::Delivered(delivered));
    }

    fn fail_receive(&mut self, fault: ReceiveFault) {
        self.events.push(Event::Failed(fault));
    }

    fn check_remote(&mut self, key: u32, address: u64, _: u32, _: Remote) -> Result<(), Refusal> {
        self.checks += 1;
        if key != KEY || address < 8 { Err(Refusal::Access) } else { Ok(()) }
    }

    fn accept_read(&mut self, length: u32) {
        self.reads.push(length);
    }

    fn write(&mut self, _: u32, address: u64, payload: Payload<'_>) -> Result<(), Refusal> {
        self.allowed()?;
        self.events.push(Event::Written(address, payload.len()));
        Ok(())
    }

    fn fetch_add(&mut self, _: u32, _: u64, add: u64) -> Result<u64, Refusal> {
        self.allowed()?;
        let original = self.value;
        self.value += add;
        self.events.push(Event::Atomic(self.value));
        Ok(original)
    }

    fn compare_swap(&mut self, _: u32, _: u64, compare: u64, swap: u64) -> Result<u64, Refusal> {
        let original = self.value;
        if original == compare {
            self.value = swap;
        }
        self.events.push(Event::Atomic(self.value));
        Ok(original)
    }

    fn atomic_write(&mut self, _: u32, _: u64, value: [u8; 8]) -> Result<(), Refusal> {
        self.value = u64::from_ne_bytes(value);
        self.events.push(Event::Atomic(self.value));
        Ok(())
    }

    fn flush(&mut self, _: u32, _: u64, _: u32, placement: u8, selectivity: u8) -> Result<(), Refusal> {
        self.events.push(Event::Flushed(placement, selectivity));
        Ok(())
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        self.events.push(Event::Invalidated(key));
        self.allowed()
    }
}

/// A request packet in the making.
struct Ask {
    code: Opcode,
    number: u32,
    asks: bool,
    solicited: bool,
    headers: Vec<u8>,
    payload: usize,
}

fn ask(code: Opcode, number: u32, payload: usize) -> Ask {
    Ask { code, number, asks: true, solicited: false, headers: Vec::new(), payload }
}

fn word(code: Opcode, number: u32, word: u32, payload: usize) -> Ask {
    Ask { headers: word.to_be_bytes().to_vec(), ..ask(code, number, payload) }
}

fn reth(code: Opcode, number: u32, address: u64, length: u32, payload: usize) -> Ask {
    let mut buffer = [0; MAX_HEADER];
    let len = HeaderWriter::new(&mut buffer).put(&Reth::new(address, KEY, length)).len();
    Ask { headers: buffer[..len].to_vec(), ..ask(code, number, payload) }
}

fn atomic(code: Opcode, number: u32, address: u64, swap_or_add: u64, compare: u64) -> Ask {
    let header = AtomicEth {
        address: address.into(),
        rkey: KEY.into(),
        swap_or_add: swap_or_add.into(),
        compare: compare.into(),
    };
    let mut buffer = [0; MAX_HEADER];
    let len = HeaderWriter::new(&mut buffer).put(&header).len();
    Ask { headers: buffer[..len].to_vec(), ..ask(code, number, 0) }
}

struct Bench {
    responder: Responder,
    host: Host,
    service: WireService,
}

/// A packet of the responder: opcode, number, syndrome, message sequence number, bytes of payload.
type PacketFields = (Opcode, u32, Option<Syndrome>, Option<u32>, u32);

impl Bench {
    fn new(service: Service) -> Bench {
        let responder = Responder::new(ResponderOptions {
            service,
            mtu: MTU as u32,
            expected_psn: PSN,
            destination: 3,
            pkey: DEFAULT_PKEY,
            max_reads: 2,
            min_rnr_timer: 12,
            access: Access { write: true, read: true, atomic: true, flush: true },
        });
        Bench { responder, host: Host::default(), service: service.wire() }
    }

    fn take(&mut self, ask: Ask) -> Verdict {
        let opcode = WireOpcode::new(self.service, ask.code).unwrap();
        let bth = Bth::new(opcode, DEFAULT_PKEY, 3, psn::add(PSN, ask.number))
            .with_pad_for(ask.payload)
            .with_ack_request(ask.asks)
            .with_solicited(ask.solicited);
        let mut buffer = [0; MAX_HEADER];
        let len = HeaderWriter::new(&mut buffer).put(&bth).len();
        let mut bytes = buffer[..len].to_vec();
        bytes.extend_from_slice(&ask.headers);
        bytes.resize(bytes.len() + ask.payload + padding(ask.payload) + ICRC_LEN, 1);
        self.responder.receive(&Packet::parse(&bytes).unwrap(), &mut self.host)
    }

    fn accept(&mut self, ask: Ask) {
        assert_eq!(self.take(ask), Verdict::Accepted);
    }

    fn reply(&mut self) -> Option<(Reply, Vec<u8>)> {
        let mut buffer = [0; MAX_HEADER];
        let reply = self.responder.poll_transmit(&mut buffer)?;
        let mut bytes = buffer[..reply.header].to_vec();
        bytes.resize(reply.wire_len(), 0);
        Some((reply, bytes))
    }

    /// Everything that the responder has to say.
    fn said(&mut self) -> Vec<PacketFields> {
        let said = std::iter::from_fn(|| self.reply()).map(|(_, bytes)| {
            let packet = Packet::parse(&bytes).unwrap();
            // IB-RC-RSP-59
            let bth = packet.bth();
            assert_eq!((bth.destination(), bth.pkey()), (3, DEFAULT_PKEY));
            assert!(!bth.ack_request() && !bth.solicited());
            let aeth = packet.aeth();
            (
                packet.opcode().operation(),
                psn::distance(PSN, packet.bth().psn()),
                aeth.map(|aeth| aeth.syndrome()),
                aeth.map(|aeth| aeth.msn()),
                packet.payload().len() as u32,
            )
        });
        said.collect()
    }
}

fn ack(number: u32, msn: u32) -> PacketFields {
    let credits = adverb_wire::ib::header::CREDITS_UNLIMITED;
    (Opcode::Acknowledge, number, Some(Syndrome::Ack { credits }), Some(msn), 0)
}

fn nak(number: u32, code: NakCode, msn: u32) -> PacketFields {
    (Opcode::Acknowledge, number, Some(Syndrome::Nak(code)), Some(msn), 0)
}

fn delivered(length: u32) -> Delivery {
    Delivery { length, immediate: None, invalidated: None, kind: DeliveryKind::Send, solicited: false }
}

// IB-RC-RSP-1, IB-RC-RSP-33, IB-RC-RSP-37, IB-RC-RSP-39, IB-RC-RSP-45, IB-RC-RSP-48, IB-RC-RSP-55,
// IB-RC-RSP-57
#[test]
fn sends_are_delivered_and_acknowledged_together() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.extend([1000, 1000, 0]);
    bench.accept(Ask { asks: false, ..ask(Opcode::SendFirst, 0, MTU) });
    assert_eq!(bench.responder.pending_reply(), PendingReply::Nothing);
    assert!(bench.responder.holds_receive());
    bench.accept(ask(Opcode::SendMiddle, 1, MTU));
    assert_eq!(bench.responder.pending_reply(), PendingReply::Response);
    bench.accept(Ask { solicited: true, ..word(Opcode::SendLastImmediate, 2, 9, 5) });
    bench.accept(word(Opcode::SendOnlyInvalidate, 3, 44, 1));
    bench.accept(ask(Opcode::SendOnly, 4, 0));
    let total = 2 * MTU as u32 + 5;
    assert_eq!(
        bench.host.events,
        [
            Event::Placed(0, MTU),
            Event::Placed(256, MTU),
            Event::Placed(512, 5),
            Event::Delivered(Delivery { immediate: Some(9), solicited: true, ..delivered(total) }),
            Event::Placed(0, 1),
            Event::Invalidated(44),
            Event::Delivered(Delivery { invalidated: Some(44), ..delivered(1) }),
            Event::Delivered(delivered(0)),
        ]
    );
    assert_eq!(bench.said(), [ack(4, 3)]);
    assert_eq!(bench.responder.pending_reply(), PendingReply::Nothing);
    assert!(!bench.responder.holds_receive());
}

// IB-RC-RSP-48
#[test]
fn an_acknowledgement_that_ends_a_message_may_wait() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.push_back(10);
    bench.accept(ask(Opcode::SendOnly, 0, 4));
    assert_eq!(bench.responder.pending_reply(), PendingReply::Acknowledgement);
}

// IB-RC-RSP-22, IB-RC-RSP-34, IB-RC-RSP-35, IB-RC-RSP-38
#[test]
fn writes_need_no_receive_until_their_immediate_data() {
    let mut bench = Bench::new(Service::Rc);
    let length = MTU as u32 + 3;
    bench.accept(reth(Opcode::WriteFirst, 0, 0x100, length, MTU));
    assert_eq!(bench.take(word(Opcode::WriteLastImmediate, 1, 5, 3)), Verdict::NotReady);
    assert_eq!(bench.host.events, [Event::Written(0x100, MTU)]);
    bench.host.receives.push_back(0);
    bench.accept(word(Opcode::WriteLastImmediate, 1, 5, 3));
    let kind = DeliveryKind::WriteWithImmediate;
    assert_eq!(
        bench.host.events[1..],
        [
            Event::Written(0x100 + MTU as u64, 3),
            Event::Delivered(Delivery { immediate: Some(5), kind, ..delivered(length) }),
        ]
    );
    assert_eq!(bench.host.checks, 1);
    assert_eq!(bench.said(), [ack(1, 1)]);
    // Nothing is checked of a write of nothing.
    bench.accept(reth(Opcode::WriteOnly, 2, 0, 0, 0));
    assert_eq!(bench.host.checks, 1);
}

// IB-RC-RSP-5, IB-RC-RSP-11
#[test]
fn duplicates_are_acknowledged_and_touch_nothing() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.push_back(10);
    bench.accept(ask(Opcode::SendOnly, 0, 4));
    bench.accept(reth(Opcode::WriteOnly, 1, 0x100, 4, 4));
    bench.said();
    let events = bench.host.events.clone();
    assert_eq!(bench.take(ask(Opcode::SendOnly, 0, 4)), Verdict::Duplicate);
    assert_eq!(bench.take(reth(Opcode::WriteOnly, 1, 0x100, 4, 4)), Verdict::Duplicate);
    assert_eq!(bench.responder.pending_reply(), PendingReply::Response);
    assert_eq!(bench.said(), [ack(1, 2)]);
    assert_eq!(bench.host.events, events);
}

#[test]
fn a_first_request_far_from_the_expected_one_shows_a_wrong_start() {
    let mut bench = Bench::new(Service::Rc);
    let is_wrong = |bench: &Bench, number| bench.responder.has_wrong_start(psn::add(PSN, number));
    // One that comes again, or behind a loss, is as it should be.
    let numbers = [0, 1, 0xffff, 0x1_0000, psn::WINDOW, psn::MASK];
    assert_eq!(numbers.map(|number| is_wrong(&bench, number)), [false, false, false, true, true, true]);
    assert_eq!(bench.take(ask(Opcode::SendOnly, psn::MASK, 4)), Verdict::Duplicate);
    assert!(is_wrong(&bench, psn::MASK));
    bench.accept(reth(Opcode::WriteOnly, 0, 0x100, 4, 4));
    assert!(numbers.iter().all(|number| !is_wrong(&bench, *number)), "it has begun");
}

// PRACTICE-ORDER-1
#[test]
fn the_last_acknowledgement_is_repeated_where_there_was_one() {
    let mut bench = Bench::new(Service::Rc);
    bench.responder.repeat_acknowledgement();
    assert_eq!(
        bench.responder.pending_reply(),
        PendingReply::Nothing,
        "nothing has come that could be acknowledged"
    );
    bench.host.receives.push_back(10);
    bench.accept(ask(Opcode::SendOnly, 0, 4));
    assert_eq!(bench.said(), [ack(0, 1)]);
    bench.responder.repeat_acknowledgement();
    assert_eq!(bench.said(), [ack(0, 1)]);
    assert_eq!(bench.said(), []);
    bench.accept(reth(Opcode::ReadRequest, 1, 0x100, 4, 0));
    bench.said();
    bench.responder.repeat_acknowledgement();
    assert_eq!(bench.said(), [], "the answer to the read may be under way");

    let mut unreliable = Bench::new(Service::Uc);
    unreliable.host.receives.push_back(10);
    unreliable.accept(ask(Opcode::SendOnly, 0, 4));
    unreliable.responder.repeat_acknowledgement();
    assert_eq!(unreliable.said(), []);
}

// IB-RC-RSP-3, IB-RC-RSP-4, IB-RC-RSP-58
#[test]
fn a_gap_is_told_once_and_again_when_packets_repeat() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.extend([10; 8]);
    bench.accept(ask(Opcode::SendOnly, 0, 4));
    for number in [2, 3, 5] {
        assert_eq!(bench.take(ask(Opcode::SendOnly, number, 4)), Verdict::OutOfSequence);
    }
    assert_eq!(bench.said(), [nak(1, NakCode::PsnSequenceError, 1)]);
    assert_eq!(bench.take(ask(Opcode::SendOnly, 6, 4)), Verdict::OutOfSequence);
    assert_eq!(bench.said(), []);
    let quiet = Ask { asks: false, ..ask(Opcode::SendOnly, 3, 4) };
    assert_eq!(bench.take(quiet), Verdict::OutOfSequence);
    assert_eq!(bench.said(), []);
    assert_eq!(bench.take(ask(Opcode::SendOnly, 3, 4)), Verdict::OutOfSequence);
    assert_eq!(bench.said(), [nak(1, NakCode::PsnSequenceError, 1)]);
    // What follows in this round says nothing new: each NAK would cost the requester one of its few retries.
    for number in 4..8 {
        assert_eq!(bench.take(ask(Opcode::SendOnly, number, 4)), Verdict::OutOfSequence);
        assert_eq!(bench.said(), []);
    }
    assert_eq!(bench.take(ask(Opcode::SendOnly, 7, 4)), Verdict::OutOfSequence);
    assert_eq!(bench.said(), [nak(1, NakCode::PsnSequenceError, 1)]);
    bench.accept(ask(Opcode::SendOnly, 1, 4));
    assert_eq!(bench.take(ask(Opcode::SendOnly, 3, 4)), Verdict::OutOfSequence);
    assert_eq!(bench.said(), [nak(2, NakCode::PsnSequenceError, 2)]);
    assert_eq!(bench.host.events.len(), 4);
}

#[test]
fn a_gap_that_closes_before_it_is_told_is_none() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.extend([10; 8]);
    assert_eq!(bench.take(ask(Opcode::SendOnly, 1, 4)), Verdict::OutOfSequence);
    bench.accept(ask(Opcode::SendOnly, 0, 4));
    assert_eq!(bench.said(), [ack(0, 1)]);
}

// IB-RC-RSP-35, IB-RC-RSP-36
#[test]
fn without_a_receive_the_peer_is_told_to_wait() {
    let mut bench = Bench::new(Service::Rc);
    let told = (Opcode::Acknowledge, 0, Some(Syndrome::ReceiverNotReady { timer: 12 }), Some(0), 0);
    for _ in 0..2 {
        assert_eq!(bench.take(ask(Opcode::SendFirst, 0, MTU)), Verdict::NotReady);
        // What follows is dropped without another word.
        for _ in 0..2 {
            assert_eq!(bench.take(ask(Opcode::SendLast, 1, 4)), Verdict::OutOfSequence);
        }
        assert_eq!(bench.said(), [told]);
        assert_eq!(bench.take(ask(Opcode::SendLast, 1, 4)), Verdict::OutOfSequence);
        assert_eq!(bench.said(), []);
    }
    assert!(timer::not_ready(12) > std::time::Duration::ZERO);
    bench.host.receives.push_back(1000);
    bench.accept(ask(Opcode::SendFirst, 0, MTU));
    bench.accept(ask(Opcode::SendLast, 1, 4));
    assert_eq!(bench.said(), [ack(1, 1)]);
}

/// What a responder makes of packets of which only the last is refused.
// IB-RC-RSP-12, IB-RC-RSP-29, IB-RC-RSP-31, IB-RC-RSP-58
fn refused(prepare: impl FnOnce(&mut Bench), last: Ask) -> (NakCode, Vec<Event>) {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.extend([300]);
    prepare(&mut bench);
    let before = bench.host.events.len();
    let number = last.number;
    let Verdict::Refused(code) = bench.take(last) else { panic!("not refused") };
    let said = bench.said();
    assert_eq!(said.last().map(|said| (said.1, said.2)), Some((number, Some(Syndrome::Nak(code)))));
    // It is over.
    assert!(bench.responder.has_failed() && !bench.responder.holds_receive());
    assert_eq!(bench.take(ask(Opcode::SendOnly, number, 0)), Verdict::Dropped(DropReason::Failed));
    assert_eq!(bench.said(), []);
    (code, bench.host.events.split_off(before))
}

// IB-RC-RSP-13, IB-RC-RSP-28
#[test]
fn packets_out_of_their_place_in_a_message_are_invalid() {
    for last in [Opcode::SendMiddle, Opcode::SendLast, Opcode::WriteMiddle, Opcode::WriteLast] {
        let payload = if last == Opcode::SendLast { 4 } else { MTU };
        assert_eq!(refused(|_| (), ask(last, 0, payload)), (NakCode::InvalidRequest, vec![]));
    }
    let amid_send = |bench: &mut Bench| bench.accept(ask(Opcode::SendFirst, 0, MTU));
    let failed = vec![Event::Failed(ReceiveFault::InvalidRequest)];
    for last in [Opcode::SendFirst, Opcode::SendOnly, Opcode::WriteMiddle, Opcode::WriteLast] {
        assert_eq!(refused(amid_send, ask(last, 1, MTU)), (NakCode::InvalidRequest, failed.clone()));
    }
    let read = reth(Opcode::ReadRequest, 1, 0x100, 4, 0);
    assert_eq!(refused(amid_send, read), (NakCode::InvalidRequest, failed));
    let amid_write =
        |bench: &mut Bench| bench.accept(reth(Opcode::WriteFirst, 0, 0x100, 2 * MTU as u32, MTU));
    for last in [Opcode::SendOnly, Opcode::SendLast] {
        assert_eq!(refused(amid_write, ask(last, 1, MTU)), (NakCode::InvalidRequest, vec![]));
    }
    assert_eq!(
        refused(amid_write, reth(Opcode::WriteOnly, 1, 0x100, 4, 4)),
        (NakCode::InvalidRequest, vec![])
    );
}

// IB-RC-RSP-15, IB-RC-RSP-16, IB-RC-RSP-17, IB-RC-RSP-24, IB-RC-RSP-26
#[test]
fn packets_of_a_wrong_length_are_invalid() {
    let failed = |fault| (NakCode::InvalidRequest, vec![Event::Failed(fault)]);
    let invalid = || failed(ReceiveFault::InvalidRequest);
    assert_eq!(refused(|_| (), ask(Opcode::SendFirst, 0, MTU - 4)), invalid());
    assert_eq!(refused(|_| (), ask(Opcode::SendOnly, 0, MTU + 4)), invalid());
    let amid_send = |bench: &mut Bench| bench.accept(ask(Opcode::SendFirst, 0, MTU));
    assert_eq!(refused(amid_send, ask(Opcode::SendMiddle, 1, 4)), invalid());
    assert_eq!(refused(amid_send, ask(Opcode::SendLast, 1, 0)), invalid());
    // Longer than the receive, which has 300 bytes.
    assert_eq!(refused(amid_send, ask(Opcode::SendLast, 1, 45)), failed(ReceiveFault::Length));
    // Not the length that was announced.
    let nothing = (NakCode::InvalidRequest, vec![]);
    assert_eq!(refused(|_| (), reth(Opcode::WriteOnly, 0, 0x100, 5, 4)), nothing);
    assert_eq!(refused(|_| (), reth(Opcode::WriteFirst, 0, 0x100, MTU as u32, MTU)), nothing);
    let amid_write =
        |bench: &mut Bench| bench.accept(reth(Opcode::WriteFirst, 0, 0x100, MTU as u32 + 4, MTU));
    assert_eq!(refused(amid_write, ask(Opcode::WriteMiddle, 1, MTU)), nothing);
    assert_eq!(refused(amid_write, ask(Opcode::WriteLast, 1, 5)), nothing);
    assert_eq!(refused(|_| (), reth(Opcode::ReadRequest, 0, 0x100, (1 << 31) + 1, 0)), nothing);
    assert_eq!(refused(|_| (), reth(Opcode::WriteFirst, 0, 0x100, (1 << 31) + 1, MTU)), nothing);
    assert_eq!(refused(|_| (), reth(Opcode::AtomicWrite, 0, 0x100, 16, 8)), nothing);
    assert_eq!(refused(|_| (), reth(Opcode::AtomicWrite, 0, 0x104, 8, 8)), nothing);
    assert_eq!(refused(|_| (), atomic(Opcode::FetchAdd, 0, 0x104, 1, 0)), nothing);
}

// IB-RC-RSP-19
#[test]
fn a_request_that_the_attributes_do_not_allow_is_invalid() {
    let forbid = |bench: &mut Bench| bench.responder.reconfigure(Access::default(), 2, 12);
    let flush = || {
        let mut ask = reth(Opcode::Flush, 0, 0x100, 4, 0);
        ask.headers.splice(0..0, [0, 0, 0, 1]);
        ask
    };
    for last in [
        reth(Opcode::WriteOnly, 0, 0x100, 4, 4),
        reth(Opcode::ReadRequest, 0, 0x100, 4, 0),
        atomic(Opcode::CompareSwap, 0, 0x100, 1, 0),
        reth(Opcode::AtomicWrite, 0, 0x100, 8, 8),
        flush(),
    ] {
        assert_eq!(refused(forbid, last), (NakCode::InvalidRequest, vec![]));
    }
}

// IB-RC-RSP-21, IB-RC-RSP-25
#[test]
fn keys_are_checked_before_anything_is_touched() {
    let nothing = (NakCode::RemoteAccessError, vec![]);
    for last in [
        reth(Opcode::WriteFirst, 0, 0, 1000, MTU),
        reth(Opcode::ReadRequest, 0, 0, 4, 0),
        atomic(Opcode::FetchAdd, 0, 0, 1, 0),
        reth(Opcode::AtomicWrite, 0, 0, 8, 8),
    ] {
        assert_eq!(refused(|_| (), last), nothing);
    }
    // Revoked in the middle.
    let revoke = |bench: &mut Bench| {
        bench.accept(reth(Opcode::WriteFirst, 0, 0x100, 2 * MTU as u32, MTU));
        bench.host.refusal = Some(Refusal::Access);
    };
    assert_eq!(refused(revoke, ask(Opcode::WriteLast, 1, MTU)), nothing);
}

// IB-RC-RSP-27, IB-RC-RSP-28, IB-RC-RSP-40
#[test]
fn faults_of_this_end_are_operational_errors() {
    let fault = |bench: &mut Bench| bench.host.refusal = Some(Refusal::Operational);
    let expected = (NakCode::RemoteOperationalError, vec![Event::Failed(ReceiveFault::Protection)]);
    assert_eq!(refused(fault, ask(Opcode::SendOnly, 0, 4)), expected);
    let expected = (NakCode::RemoteOperationalError, vec![]);
    assert_eq!(refused(fault, atomic(Opcode::FetchAdd, 0, 0x100, 1, 0)), expected);
    // A key that cannot be invalidated is the peer's fault, and the message is not delivered.
    let fault = |bench: &mut Bench| bench.host.refusal = Some(Refusal::Access);
    let expected = (
        NakCode::RemoteAccessError,
        vec![Event::Invalidated(9), Event::Failed(ReceiveFault::InvalidRequest)],
    );
    assert_eq!(refused(fault, word(Opcode::SendOnlyInvalidate, 0, 9, 0)), expected);
}

// IB-RC-RSP-44, IB-RC-RSP-51, IB-RC-RSP-52, IB-RC-RSP-53, IB-RC-RSP-56, IB-RC-RSP-60
#[test]
fn read_responses_come_in_order_and_before_later_acknowledgements() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.receives.push_back(10);
    bench.accept(reth(Opcode::WriteOnly, 0, 0x100, 4, 4));
    bench.accept(reth(Opcode::ReadRequest, 1, 0x200, 2 * MTU as u32 + 1, 0));
    bench.accept(atomic(Opcode::FetchAdd, 4, 0x100, 5, 0));
    bench.accept(ask(Opcode::SendOnly, 5, 4));
    assert_eq!(bench.responder.pending_reply(), PendingReply::Response);
    let credits = adverb_wire::ib::header::CREDITS_UNLIMITED;
    let ok = Some(Syndrome::Ack { credits });
    assert_eq!(
        bench.said(),
        [
            (Opcode::ReadResponseFirst, 1, ok, Some(2), 256),
            (Opcode::ReadResponseMiddle, 2, None, None, 256),
            (Opcode::ReadResponseLast, 3, ok, Some(2), 1),
            (Opcode::AtomicAcknowledge, 4, ok, Some(3), 0),
            ack(5, 4),
        ]
    );
}

#[test]
fn read_responses_name_the_memory_of_each_packet() {
    let mut bench = Bench::new(Service::Rc);
    bench.accept(reth(Opcode::ReadRequest, 0, 0x200, MTU as u32 + 1, 0));
    let source =
        |address, length| Some(ReadSource { key: KEY, address, length, shared_queue: 0, kept: None });
    assert_eq!(bench.reply().unwrap().0.payload, source(0x200, 256));
    let (last, _) = bench.reply().unwrap();
    assert_eq!((last.payload, last.pad), (source(0x300, 1), 3));
    bench.accept(reth(Opcode::ReadRequest, 2, 0, 0, 0));
    assert_eq!(bench.reply().unwrap().0.payload, None);
}

// IB-RC-RSP-20
#[test]
fn more_reads_than_agreed_on_are_invalid() {
    let two = |bench: &mut Bench| {
        bench.accept(reth(Opcode::ReadRequest, 0, 0x200, 4, 0));
        bench.accept(reth(Opcode::ReadRequest, 1, 0x200, 4, 0));
    };
    let invalid = (NakCode::InvalidRequest, vec![]);
    assert_eq!(refused(two, reth(Opcode::ReadRequest, 2, 0x200, 4, 0)), invalid);
    assert_eq!(refused(two, atomic(Opcode::FetchAdd, 2, 0x200, 4, 0)), invalid);
    // An answer that has gone out makes room.
    let mut bench = Bench::new(Service::Rc);
    two(&mut bench);
    bench.reply();
    bench.accept(reth(Opcode::ReadRequest, 2, 0x200, 4, 0));
}

// IB-RC-RSP-6, IB-RC-RSP-7
#[test]
fn duplicate_reads_are_answered_again_in_full_or_in_part() {
    let mut bench = Bench::new(Service::Rc);
    bench.accept(reth(Opcode::ReadRequest, 0, 0x200, 3 * MTU as u32, 0));
    // It is about to be answered anyway.
    let again = || reth(Opcode::ReadRequest, 0, 0x200, 3 * MTU as u32, 0);
    assert_eq!(bench.take(again()), Verdict::Dropped(DropReason::Unanswerable));
    assert_eq!(bench.said().len(), 3);
    assert_eq!(bench.take(again()), Verdict::Duplicate);
    assert_eq!(bench.said().len(), 3);
    let part = reth(Opcode::ReadRequest, 1, 0x300, 2 * MTU as u32, 0);
    assert_eq!(bench.take(part), Verdict::Duplicate);
    let (reply, bytes) = bench.reply().unwrap();
    assert_eq!(Packet::parse(&bytes).unwrap().opcode().operation(), Opcode::ReadResponseFirst);
    assert_eq!(reply.payload.map(|source| source.address), Some(0x300));
    // Sent in part, it is asked for again: the rest does not go out twice.
    assert_eq!(bench.take(again()), Verdict::Duplicate);
    let numbers: Vec<u32> = bench.said().iter().map(|said| said.1).collect();
    assert_eq!(numbers, [0, 1, 2]);
    // More than the past has, and what may no longer be read.
    let late = reth(Opcode::ReadRequest, 1, 0x300, 3 * MTU as u32, 0);
    assert_eq!(bench.take(late), Verdict::Dropped(DropReason::Unanswerable));
    let revoked = reth(Opcode::ReadRequest, 1, 0, 4, 0);
    assert_eq!(bench.take(revoked), Verdict::Dropped(DropReason::Unanswerable));
    assert_eq!(bench.said(), []);
    assert_eq!(bench.host.reads, [3 * MTU as u32]);
}

// ROCE-40
#[test]
fn duplicates_cannot_fill_memory() {
    let mut bench = Bench::new(Service::Rc);
    for number in 0..100 {
        bench.accept(reth(Opcode::ReadRequest, number, 0x200, 4, 0));
        bench.said();
    }
    let taken = (0..100)
        .filter(|&number| bench.take(reth(Opcode::ReadRequest, number, 0x200, 4, 0)) == Verdict::Duplicate)
        .count();
    assert!(taken <= 3, "{taken}");
}

#[test]
fn duplicate_answers_go_out_in_their_place() {
    let mut bench = Bench::new(Service::Rc);
    bench.accept(reth(Opcode::ReadRequest, 0, 0x200, 4, 0));
    bench.said();
    bench.accept(reth(Opcode::ReadRequest, 1, 0x200, 4, 0));
    assert_eq!(bench.take(reth(Opcode::ReadRequest, 0, 0x200, 4, 0)), Verdict::Duplicate);
    let numbers: Vec<u32> = bench.said().iter().map(|said| said.1).collect();
    assert_eq!(numbers, [0, 1]);
}

// IB-RC-RSP-8, IB-RC-RSP-9, IB-RC-RSP-10, IB-RC-RSP-42
#[test]
fn atomics_are_executed_once_and_their_results_remembered() {
    let mut bench = Bench::new(Service::Rc);
    let originals = |bench: &mut Bench| -> Vec<u64> {
        std::iter::from_fn(|| bench.reply())
            .filter_map(|(_, bytes)| Packet::parse(&bytes).unwrap().atomic_ack())
            .collect()
    };
    bench.accept(atomic(Opcode::FetchAdd, 0, 0x100, 5, 0));
    bench.accept(atomic(Opcode::CompareSwap, 1, 0x100, 9, 5));
    assert_eq!(originals(&mut bench), [0, 5]);
    assert_eq!(bench.take(atomic(Opcode::FetchAdd, 0, 0x100, 5, 0)), Verdict::Duplicate);
    assert_eq!(bench.take(atomic(Opcode::CompareSwap, 1, 0x100, 9, 5)), Verdict::Duplicate);
    assert_eq!(originals(&mut bench), [0, 5]);
    assert_eq!(bench.host.value, 9);
    // Only as many as may be outstanding.
    bench.accept(atomic(Opcode::FetchAdd, 2, 0x100, 1, 0));
    let forgotten = atomic(Opcode::FetchAdd, 0, 0x100, 5, 0);
    assert_eq!(bench.take(forgotten), Verdict::Dropped(DropReason::Unanswerable));
    assert_eq!(bench.host.events.len(), 3);
}

fn flush(placement: u8, selectivity: u8) -> Ask {
    let mut ask = reth(Opcode::Flush, 0, 0x100, 64, 0);
    let mut buffer = [0; MAX_HEADER];
    let len = HeaderWriter::new(&mut buffer).put(&Feth::new(placement, selectivity)).len();
    ask.headers.splice(0..0, buffer[..len].iter().copied());
    ask
}

// IB-RC-RSP-46
#[test]
fn a_flush_to_nowhere_is_invalid() {
    for (placement, selectivity) in [(0, 0), (0, 1), (4, 0), (9, 1), (1, 2), (3, 3)] {
        let nothing = (NakCode::InvalidRequest, vec![]);
        assert_eq!(refused(|_| (), flush(placement, selectivity)), nothing, "{placement} {selectivity}");
    }
    for placement in 1..=3 {
        Bench::new(Service::Rc).accept(flush(placement, Feth::RANGE));
    }
}

// IB-RC-RSP-47
#[test]
fn flushes_and_atomic_writes_have_empty_answers() {
    let mut bench = Bench::new(Service::Rc);
    bench.accept(flush(Feth::PERSISTENCE, Feth::REGION));
    bench.accept(reth(Opcode::AtomicWrite, 1, 0x100, 8, 8));
    assert_eq!(bench.host.events, [Event::Flushed(2, 1), Event::Atomic(0x0101_0101_0101_0101)]);
    let numbers = |bench: &mut Bench| -> Vec<(Opcode, u32)> {
        bench.said().into_iter().map(|said| (said.0, said.1)).collect()
    };
    assert_eq!(numbers(&mut bench), [(Opcode::ReadResponseOnly, 0), (Opcode::ReadResponseOnly, 1)]);
    assert_eq!(bench.take(reth(Opcode::AtomicWrite, 1, 0x100, 8, 8)), Verdict::Duplicate);
    assert_eq!(numbers(&mut bench), [(Opcode::ReadResponseOnly, 1)]);
    assert_eq!(bench.host.events.len(), 2);
}

// IB-RC-RSP-54
#[test]
fn a_read_that_fails_at_last_is_refused_unless_it_is_a_duplicate() {
    let mut bench = Bench::new(Service::Rc);
    bench.accept(reth(Opcode::ReadRequest, 0, 0x200, 3 * MTU as u32, 0));
    bench.said();
    assert_eq!(bench.take(reth(Opcode::ReadRequest, 0, 0x200, 3 * MTU as u32, 0)), Verdict::Duplicate);
    let (reply, _) = bench.reply().unwrap();
    let verdict = bench.responder.read_failed(&reply, Refusal::Access);
    assert_eq!(verdict, Verdict::Dropped(DropReason::Unanswerable));
    assert_eq!(bench.said(), []);
    bench.accept(reth(Opcode::ReadRequest, 3, 0x200, 3 * MTU as u32, 0));
    bench.host.receives.push_back(1000);
    bench.accept(ask(Opcode::SendFirst, 6, MTU));
    bench.reply();
    let (reply, _) = bench.reply().unwrap();
    let verdict = bench.responder.read_failed(&reply, Refusal::Access);
    assert_eq!(verdict, Verdict::Refused(NakCode::RemoteAccessError));
    assert!(bench.responder.has_failed() && bench.responder.holds_receive());
    assert_eq!(bench.said(), [nak(4, NakCode::RemoteAccessError, 2)]);
}

// IB-UC-2, IB-UC-6, IB-UC-7, IB-UC-8, IB-UC-9, IB-UC-15
#[test]
fn an_unreliable_message_with_a_gap_is_dropped() {
    let mut bench = Bench::new(Service::Uc);
    bench.host.receives.extend([1000, 1000]);
    bench.accept(ask(Opcode::SendFirst, 0, MTU));
    assert_eq!(bench.take(ask(Opcode::SendMiddle, 2, MTU)), Verdict::Dropped(DropReason::Gap));
    assert_eq!(bench.take(ask(Opcode::SendLast, 3, 4)), Verdict::Dropped(DropReason::Gap));
    // The next one gets the receive that was taken.
    bench.accept(word(Opcode::SendOnlyImmediate, 4, 6, 4));
    assert_eq!(bench.host.receives.len(), 1);
    // A message may begin amid another one whose end is lost.
    bench.accept(ask(Opcode::SendFirst, 5, MTU));
    bench.accept(ask(Opcode::SendOnly, 6, 4));
    bench.accept(reth(Opcode::WriteFirst, 7, 0x100, 1000, MTU));
    bench.accept(reth(Opcode::WriteOnly, 100, 0x100, 4, 4));
    assert_eq!(
        bench.host.events,
        [
            Event::Placed(0, MTU),
            Event::Placed(0, 4),
            Event::Delivered(Delivery { immediate: Some(6), ..delivered(4) }),
            Event::Placed(0, MTU),
            Event::Placed(0, 4),
            Event::Delivered(delivered(4)),
            Event::Written(0x100, MTU),
            Event::Written(0x100, 4),
        ]
    );
    assert_eq!((bench.responder.pending_reply(), bench.said()), (PendingReply::Nothing, vec![]));
}

// IB-UC-2, IB-UC-7, IB-UC-10, IB-UC-11, IB-UC-12
#[test]
fn unreliable_requests_are_never_refused_only_dropped() {
    let mut bench = Bench::new(Service::Uc);
    assert_eq!(bench.take(ask(Opcode::SendFirst, 0, MTU)), Verdict::Dropped(DropReason::NoReceive));
    assert_eq!(bench.take(ask(Opcode::SendLast, 1, 4)), Verdict::Dropped(DropReason::Gap));
    assert_eq!(bench.take(reth(Opcode::WriteOnly, 2, 0, 4, 4)), Verdict::Dropped(DropReason::Access));
    assert_eq!(bench.take(reth(Opcode::WriteOnly, 3, 0x100, 5, 4)), Verdict::Dropped(DropReason::Invalid));
    assert_eq!(bench.take(ask(Opcode::WriteMiddle, 4, MTU)), Verdict::Dropped(DropReason::Gap));
    bench.host.receives.push_back(3);
    assert_eq!(bench.take(ask(Opcode::SendOnly, 5, 4)), Verdict::Dropped(DropReason::NoReceive));
    assert!(bench.responder.holds_receive());
    bench.accept(ask(Opcode::SendOnly, 6, 3));
    assert!(!bench.responder.holds_receive());
    assert_eq!((bench.said(), bench.responder.has_failed()), (vec![], false));
}

// IB-UC-14
#[test]
fn a_receive_that_cannot_be_written_ends_an_unreliable_connection() {
    let mut bench = Bench::new(Service::Uc);
    bench.host.receives.extend([1000, 1000]);
    bench.accept(ask(Opcode::SendFirst, 0, MTU));
    bench.host.refusal = Some(Refusal::Operational);
    let refused = Verdict::Refused(NakCode::RemoteOperationalError);
    assert_eq!(bench.take(ask(Opcode::SendLast, 1, 4)), refused);
    assert_eq!(bench.host.events, [Event::Placed(0, MTU), Event::Failed(ReceiveFault::Protection)]);
    assert!(bench.responder.has_failed() && !bench.responder.holds_receive());
    assert_eq!((bench.said(), bench.host.receives.len()), (vec![], 1));
}

// IB-PKT-47
#[test]
fn packets_of_another_service_and_responses_are_dropped() {
    let mut bench = Bench::new(Service::Rc);
    bench.service = WireService::Uc;
    assert_eq!(bench.take(ask(Opcode::SendOnly, 0, 4)), Verdict::Dropped(DropReason::Opcode));
    bench.service = WireService::Rc;
    let response = Ask { headers: U32::ZERO.get().to_be_bytes().to_vec(), ..ask(Opcode::Acknowledge, 0, 0) };
    assert_eq!(bench.take(response), Verdict::Dropped(DropReason::Opcode));
}

#[test]
fn an_idle_responder_is_small() {
    assert!(size_of::<Responder>() <= 256, "{}", size_of::<Responder>());
}

fn told(number: u32, syndrome: Syndrome, msn: u32) -> PacketFields {
    (Opcode::Acknowledge, number, Some(syndrome), Some(msn), 0)
}

// PRACTICE-ORDER-2
#[test]
fn the_bytes_of_a_read_are_taken_before_anything_behind_it_is_carried_out() {
    let length = 2 * MTU as u32 + 3;
    let read = || reth(Opcode::ReadRequest, 0, 64, length, 0);
    for later in [
        reth(Opcode::WriteOnly, 3, 64, 1, 1),
        ask(Opcode::SendOnly, 3, 0),
        atomic(Opcode::FetchAdd, 3, 64, 1, 0),
        atomic(Opcode::CompareSwap, 3, 64, 1, 0),
    ] {
        let mut bench = Bench::new(Service::Rc);
        bench.host.receives.push_back(8);
        bench.accept(read());
        assert_eq!(bench.host.kept, 0, "nothing is copied as long as nothing follows");
        assert!(!bench.responder.keeps());
        let code = later.code;
        bench.accept(later);
        assert_eq!(bench.host.kept, length, "{code:?}");
        let mut places = Vec::new();
        for packet in 0..3 {
            assert!(bench.responder.keeps(), "packet {packet}");
            places.push(bench.reply().unwrap().0.payload.unwrap().kept);
        }
        assert_eq!(places, [Some(0), Some(MTU as u32), Some(2 * MTU as u32)]);
        assert!(!bench.responder.keeps());
    }
    // Reads behind reads change nothing.
    let mut bench = Bench::new(Service::Rc);
    bench.accept(read());
    bench.accept(reth(Opcode::ReadRequest, 3, 64, 8, 0));
    assert_eq!(bench.said().len(), 4);
    assert_eq!(bench.host.kept, 0);
}

// PRACTICE-ORDER-2
#[test]
fn a_request_that_is_not_kept_is_asked_for_behind_earlier_answers() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.is_full = true;
    bench.accept(reth(Opcode::ReadRequest, 0, 64, 8, 0));
    assert_eq!(bench.take(reth(Opcode::WriteOnly, 1, 64, 1, 1)), Verdict::Postponed);
    bench.responder.ask_again();
    assert_eq!(bench.take(reth(Opcode::WriteOnly, 2, 64, 1, 1)), Verdict::OutOfSequence);
    assert!(bench.host.events.is_empty());
    let said = bench.said();
    assert_eq!(said.len(), 2);
    assert_eq!((said[0].0, said[0].1), (Opcode::ReadResponseOnly, 0));
    assert_eq!(said[1], told(1, Syndrome::Nak(NakCode::PsnSequenceError), 1));
    // The peer sends them again.
    bench.accept(reth(Opcode::WriteOnly, 1, 64, 1, 1));
    bench.accept(reth(Opcode::WriteOnly, 2, 64, 1, 1));
    assert_eq!(bench.said(), [ack(2, 3)]);
}

// PRACTICE-ORDER-2
#[test]
fn a_peer_that_is_told_to_wait_for_a_receive_gets_no_sequence_error() {
    let mut bench = Bench::new(Service::Rc);
    assert_eq!(bench.take(ask(Opcode::SendOnly, 0, 8)), Verdict::NotReady);
    bench.responder.ask_again();
    let said = bench.said();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].2, Some(Syndrome::ReceiverNotReady { timer: 12 }));
    // Nor is it later, before it has sent it again.
    bench.responder.ask_again();
    assert!(bench.said().is_empty());
}

// PRACTICE-ORDER-2
#[test]
fn a_postponed_request_is_taken_later_and_costs_no_retry() {
    let mut bench = Bench::new(Service::Rc);
    bench.host.is_full = true;
    bench.accept(reth(Opcode::ReadRequest, 0, 64, 8, 0));
    for _ in 0..2 {
        assert_eq!(bench.take(reth(Opcode::WriteOnly, 1, 64, 1, 1)), Verdict::Postponed);
        assert!(bench.host.events.is_empty());
    }
    assert_eq!(bench.said().len(), 1, "the answer, and no word of what waits");
    bench.accept(reth(Opcode::WriteOnly, 1, 64, 1, 1));
    assert_eq!(bench.said(), [ack(1, 2)]);
}
