use super::recovery::INITIAL_PROBE;
use super::*;
use crate::ib::{Operation, PACKET_COST, Source, timer};
use adverb_wire::ib::header::{
    Aeth, AtomicAckEth, Bth, CREDITS_UNLIMITED, DEFAULT_PKEY, HeaderWriter, MAX_HEADER, NakCode, Syndrome,
    padding,
};
use adverb_wire::ib::opcode::{Opcode, Operation as Code, Service as WireService};
use proptest::collection::vec;
use proptest::prelude::*;

const MTU: u32 = 256;
const PSN: u32 = 0xff_fffe;
const ACK: Syndrome = Syndrome::Ack { credits: CREDITS_UNLIMITED };
const SEND: Operation = Operation::Send { immediate: None, invalidate: None };
const READ: Operation = Operation::Read { address: 0x1000, rkey: 7 };
const ADD: Operation = Operation::FetchAdd { address: 0x2000, rkey: 7, add: 1 };
/// How long a requester with code 14 waits.
const TIMEOUT: Duration = Duration::from_nanos(4 * (4096 << 14));

fn options() -> RequesterOptions {
    RequesterOptions {
        service: Service::Rc,
        mtu: MTU,
        first_psn: PSN,
        destination: 5,
        pkey: DEFAULT_PKEY,
        timeout: 14,
        retry_count: 2,
        rnr_retry: 2,
        max_reads: 2,
        room: 16,
        read_chunk: u32::MAX,
    }
}

#[derive(Default)]
struct Host {
    completions: Vec<(u64, CompletionStatus)>,
    placed: Vec<(u64, u32, usize)>,
    originals: Vec<u64>,
    fault: Option<LocalFault>,
}

impl RequesterHost for Host {
    fn place(&mut self, sequence: u64, offset: u32, payload: Payload<'_>) -> Result<(), LocalFault> {
        self.placed.push((sequence, offset, payload.len()));
        self.fault.map_or(Ok(()), Err)
    }

    fn place_atomic(&mut self, _: u64, original: u64) -> Result<(), LocalFault> {
        self.originals.push(original);
        self.fault.map_or(Ok(()), Err)
    }

    fn complete(&mut self, sequence: u64, status: CompletionStatus) {
        self.completions.push((sequence, status));
    }

    fn recall(&mut self, sequence: u64) -> Request {
        short_send(sequence)
    }
}

/// A requester with a host, and a clock that stands unless it is moved.
struct Bench {
    requester: Requester,
    host: Host,
    now: Duration,
    next: u64,
}

/// What a packet of the requester looks like.
#[derive(Debug, PartialEq, Eq)]
struct PacketView {
    code: Code,
    psn: u32,
    asks: bool,
    sequence: u64,
    offset: u32,
    length: u32,
}

impl Bench {
    fn new(options: RequesterOptions) -> Bench {
        let requester = Requester::new(options);
        Bench { requester, host: Host::default(), now: Duration::from_secs(1), next: 0 }
    }

    fn push(&mut self, operation: Operation, length: u32) {
        self.push_fenced(operation, length, false);
    }

    fn push_fenced(&mut self, operation: Operation, length: u32, fence: bool) {
        let sequence = self.next;
        self.next += 1;
        self.requester.push(Request {
            sequence,
            operation,
            length,
            solicited: false,
            fence,
            shared_queue: 5,
        });
    }

    fn raw(&mut self) -> Option<(Outbound, Vec<u8>)> {
        let mut buffer = [0; MAX_HEADER];
        let outbound = self.requester.poll_transmit(self.now, u32::MAX, &mut buffer)?;
        let mut bytes = buffer[..outbound.header].to_vec();
        bytes.resize(outbound.wire_len(), 0);
        Some((outbound, bytes))
    }

    fn poll(&mut self) -> Option<PacketView> {
        let (outbound, bytes) = self.raw()?;
        let packet = Packet::parse(&bytes).unwrap();
        // IB-RC-REQ-17
        assert_eq!((packet.bth().destination(), packet.bth().pkey()), (5, DEFAULT_PKEY));
        let length = match packet.reth() {
            Some(reth) if packet.opcode().operation() == Code::ReadRequest => reth.length.get(),
            _ => packet.payload().len() as u32,
        };
        Some(PacketView {
            code: packet.opcode().operation(),
            psn: psn::distance(PSN, packet.bth().psn()),
            asks: packet.bth().ack_request(),
            sequence: outbound.sequence,
            offset: outbound.payload.map_or(0, |source| source.offset),
            length,
        })
    }

    /// Everything that may go out: opcodes and numbers.
    fn drain(&mut self) -> Vec<(Code, u32)> {
        std::iter::from_fn(|| self.poll()).map(|seen| (seen.code, seen.psn)).collect()
    }

    fn answer(&mut self, code: Code, number: u32, syndrome: Syndrome, msn: u32, payload: usize) -> Feedback {
        let opcode = Opcode::new(WireService::Rc, code).unwrap();
        let mut buffer = [0; MAX_HEADER];
        let bth = Bth::new(opcode, DEFAULT_PKEY, 9, psn::add(PSN, number)).with_pad_for(payload);
        let mut writer = HeaderWriter::new(&mut buffer);
        writer.put(&bth);
        if code != Code::ReadResponseMiddle {
            writer.put(&Aeth::new(syndrome, msn));
        }
        if code == Code::AtomicAcknowledge {
            writer.put(&AtomicAckEth { original: 42.into() });
        }
        let len = writer.len();
        let mut bytes = buffer[..len].to_vec();
        bytes.resize(len + payload + padding(payload) + ICRC_LEN, 0);
        self.requester.receive(&Packet::parse(&bytes).unwrap(), self.now, &mut self.host)
    }

    fn acknowledge(&mut self, number: u32) -> Feedback {
        self.answer(Code::Acknowledge, number, ACK, 0, 0)
    }

    fn refuse(&mut self, number: u32, code: NakCode) -> Feedback {
        self.answer(Code::Acknowledge, number, Syndrome::Nak(code), 0, 0)
    }

    fn wait(&mut self, time: Duration) -> Feedback {
        self.now += time;
        self.requester.handle_timeout(self.now, &mut self.host)
    }

    /// Lets so much time pass, with one look before.
    fn silence(&mut self, time: Duration) -> Feedback {
        let _ = self.wait(INITIAL_PROBE);
        self.wait(time - INITIAL_PROBE)
    }

    fn completed(&self) -> Vec<u64> {
        assert!(self.host.completions.iter().all(|(_, status)| *status == CompletionStatus::Success));
        self.host.completions.iter().map(|(sequence, _)| *sequence).collect()
    }
}

// IB-RC-REQ-1, IB-RC-REQ-7, IB-RC-REQ-8, IB-RC-REQ-9, IB-RC-REQ-10, IB-RC-REQ-13, IB-PKT-39, IB-PKT-40
#[test]
fn messages_are_cut_at_the_mtu() {
    let mut bench = Bench::new(options());
    let write = Operation::Write { address: 0, rkey: 1, immediate: Some(3) };
    bench.push(SEND, 2 * MTU + 1);
    bench.push(write, MTU);
    bench.push(SEND, 0);
    bench.push(Operation::Send { immediate: None, invalidate: Some(4) }, MTU + 1);
    let seen: Vec<PacketView> = std::iter::from_fn(|| bench.poll()).collect();
    let expected = [
        (Code::SendFirst, 0, false, 0, 0, MTU),
        (Code::SendMiddle, 1, false, 0, MTU, MTU),
        (Code::SendLast, 2, true, 0, 2 * MTU, 1),
        (Code::WriteOnlyImmediate, 3, true, 1, 0, MTU),
        (Code::SendOnly, 4, true, 2, 0, 0),
        (Code::SendFirst, 5, false, 3, 0, MTU),
        (Code::SendLastInvalidate, 6, true, 3, MTU, 1),
    ];
    let expected = expected.map(|(code, psn, asks, sequence, offset, length)| PacketView {
        code,
        psn,
        asks,
        sequence,
        offset,
        length,
    });
    assert_eq!(seen, expected);
    assert_eq!(bench.requester.in_flight(), 7 * PACKET_COST + 4 * MTU + 2);
}

#[test]
fn no_more_requests_are_entered_than_there_is_room_for() {
    let mut bench = Bench::new(RequesterOptions { room: 2, ..options() });
    bench.push(SEND, 1);
    assert!(bench.requester.has_room());
    bench.push(SEND, 1);
    assert!(!bench.requester.has_room());
    assert_eq!(bench.requester.unanswered(), 2);
    bench.drain();
    assert_eq!(bench.requester.unanswered(), 2);
    let _ = bench.acknowledge(0);
    assert!(bench.requester.has_room());
    assert_eq!(bench.requester.unanswered(), 1);
}

// IB-RC-REQ-22, IB-RC-REQ-26, IB-RC-REQ-27, IB-RC-REQ-41
#[test]
fn acknowledgements_are_cumulative_and_old_ones_are_ignored() {
    let mut bench = Bench::new(options());
    for _ in 0..3 {
        bench.push(SEND, 2 * MTU);
    }
    assert_eq!(bench.drain().len(), 6);
    // In the middle of the second message.
    assert_eq!(bench.acknowledge(2).acknowledged, 3 * (MTU + PACKET_COST));
    assert_eq!(bench.completed(), [0]);
    for old in [0, 1, 2, 0xff_ffff, 6, 100] {
        assert_eq!(bench.acknowledge(old), Feedback::default());
    }
    let _ = bench.acknowledge(5);
    assert_eq!(bench.completed(), [0, 1, 2]);
    assert!(bench.requester.is_idle() && bench.requester.in_flight() == 0);
    assert_eq!(bench.requester.deadline(), None);
    assert_eq!(bench.acknowledge(5), Feedback::default());
}

#[test]
fn the_round_trip_is_measured_on_what_was_sent_once() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.drain();
    bench.now += Duration::from_micros(80);
    assert_eq!(bench.acknowledge(0).round_trip, Some(Duration::from_micros(80)));
    bench.push(SEND, 1);
    bench.drain();
    let _ = bench.silence(TIMEOUT);
    bench.drain();
    assert_eq!(bench.acknowledge(1).round_trip, None);
    assert_eq!(bench.requester.round_trip(), Some(Duration::from_micros(80)));
}

// IB-RC-REQ-6, IB-RC-REQ-34, IB-RC-REQ-46
#[test]
fn a_sequence_error_goes_back_to_the_gap() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 4 * MTU);
    bench.push(SEND, 1);
    bench.drain();
    let feedback = bench.refuse(2, NakCode::PsnSequenceError);
    assert_eq!(feedback.loss, Loss::Gap);
    assert_eq!(feedback.acknowledged, 2 * (MTU + PACKET_COST));
    assert_eq!(feedback.rewound, 2 * (MTU + PACKET_COST) + 1 + PACKET_COST);
    assert_eq!(bench.requester.in_flight(), 0);
    // Said twice before anything is sent again, it is heard once.
    assert_eq!(bench.refuse(2, NakCode::PsnSequenceError), Feedback::default());
    let (outbound, _) = bench.raw().unwrap();
    assert!(outbound.repeated);
    assert_eq!(outbound.payload, Some(Source { sequence: 0, offset: 2 * MTU, length: MTU }));
    assert_eq!(bench.drain(), [(Code::SendLast, 3), (Code::SendOnly, 4)]);
    let _ = bench.acknowledge(4);
    assert_eq!(bench.completed(), [0, 1]);
}

#[test]
fn an_acknowledgement_may_overtake_what_is_sent_again() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 2 * MTU);
    bench.push(SEND, 2 * MTU);
    bench.drain();
    let _ = bench.refuse(1, NakCode::PsnSequenceError);
    // The gap was none: everything has arrived after all.
    let feedback = bench.acknowledge(2);
    assert_eq!((feedback.acknowledged, bench.requester.in_flight()), (0, 0));
    assert_eq!(bench.completed(), [0]);
    assert_eq!(bench.drain(), [(Code::SendLast, 3)]);
}

// IB-RC-REQ-25, IB-RC-REQ-35, IB-RC-REQ-51, IB-RC-REQ-55
#[test]
fn naks_end_the_request_that_they_name_and_all_before_it_are_done() {
    for (code, status) in [
        (NakCode::InvalidRequest, CompletionStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, CompletionStatus::RemoteAccess),
        (NakCode::RemoteOperationalError, CompletionStatus::RemoteOperation),
        (NakCode::InvalidRdRequest, CompletionStatus::BadResponse),
    ] {
        let mut bench = Bench::new(options());
        bench.push(SEND, MTU);
        bench.push(SEND, 3 * MTU);
        bench.push(SEND, MTU);
        bench.drain();
        let feedback = bench.refuse(2, code);
        assert!(feedback.failed);
        assert_eq!(bench.host.completions, [(0, CompletionStatus::Success), (1, status)]);
        // Nothing more comes of it.
        assert!(bench.requester.has_failed() && !bench.requester.has_room());
        bench.push(SEND, MTU);
        assert_eq!((bench.poll(), bench.requester.deadline()), (None, None));
        assert_eq!(bench.acknowledge(4), Feedback::default());
        assert_eq!(bench.host.completions.len(), 2);
    }
}

// IB-RC-REQ-37, IB-PKT-31
#[test]
fn reserved_syndromes_are_bad_responses() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.drain();
    assert!(bench.answer(Code::Acknowledge, 0, Syndrome::Reserved(0x45), 0, 0).failed);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::BadResponse)]);
}

// IB-RC-REQ-36, IB-RC-REQ-44, IB-RC-REQ-45
#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.push(SEND, 1);
    let not_ready = Syndrome::ReceiverNotReady { timer: 12 };
    let wait = timer::not_ready(12);
    for _ in 0..2 {
        assert_eq!(bench.drain(), [(Code::SendOnly, 0), (Code::SendOnly, 1)]);
        let feedback = bench.answer(Code::Acknowledge, 0, not_ready, 0, 0);
        assert_eq!((feedback.loss, feedback.rewound), (Loss::NotReady, 2 * (PACKET_COST + 1)));
        assert_eq!(bench.requester.deadline(), Some(bench.now + wait));
        assert_eq!(bench.poll(), None);
        // What the responder says of packets behind it changes nothing.
        assert_eq!(bench.refuse(0, NakCode::PsnSequenceError), Feedback::default());
        assert_eq!(bench.answer(Code::Acknowledge, 0, not_ready, 0, 0), Feedback::default());
        let _ = bench.wait(wait);
    }
    bench.drain();
    assert!(bench.answer(Code::Acknowledge, 0, not_ready, 0, 0).failed);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::RnrRetryExceeded)]);
}

// IB-RC-REQ-44
#[test]
fn a_receiver_is_waited_for_for_ever_if_so_wanted() {
    let mut bench = Bench::new(RequesterOptions { rnr_retry: timer::RETRY_FOREVER, ..options() });
    bench.push(SEND, 1);
    for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
        assert_eq!(bench.drain().len(), 1);
        let feedback = bench.answer(Code::Acknowledge, 0, Syndrome::ReceiverNotReady { timer: 1 }, 0, 0);
        assert!(!feedback.failed);
        bench.now += timer::not_ready(1);
    }
}

// IB-RC-REQ-40, IB-RC-REQ-41, IB-RC-REQ-42
#[test]
fn silence_is_asked_about_then_repeated_then_fatal() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 3 * MTU);
    bench.drain();
    // The last packet first, then the oldest; neither counts.
    let probe = bench.requester.deadline().unwrap();
    assert_eq!(probe, bench.now + INITIAL_PROBE);
    let _ = bench.wait(INITIAL_PROBE);
    let flight = bench.requester.in_flight();
    let (probe, _) = bench.raw().unwrap();
    assert_eq!((probe.cost, probe.repeated), (0, true));
    assert_eq!(probe.payload, Some(Source { sequence: 0, offset: 2 * MTU, length: MTU }));
    let _ = bench.wait(2 * INITIAL_PROBE);
    let seen = bench.poll().unwrap();
    assert_eq!((seen.code, seen.psn, seen.asks), (Code::SendFirst, 0, true));
    assert_eq!((bench.poll(), bench.requester.in_flight()), (None, flight));
    for _ in 0..2 {
        let feedback = bench.silence(TIMEOUT);
        assert_eq!((feedback.loss, feedback.rewound), (Loss::Timeout, flight));
        assert_eq!(bench.drain().len(), 3);
    }
    assert!(bench.silence(TIMEOUT).failed);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::RetryExceeded)]);
}

/// Neither a probe nor a repetition comes early where what goes out has the time of a clock that lags; both
/// come.
// IB-RC-REQ-40, IB-RC-REQ-41
#[test]
fn a_clock_that_lags_makes_nobody_impatient() {
    let mut bench = Bench::new(options());
    bench.requester.set_clock_lags();
    bench.push(SEND, MTU);
    bench.drain();
    let start = bench.now + 2 * TIMEOUT;
    assert_eq!(bench.wait(2 * TIMEOUT).loss, Loss::None);
    assert_eq!((bench.poll(), bench.requester.deadline()), (None, Some(start + INITIAL_PROBE)));
    let _ = bench.wait(INITIAL_PROBE);
    assert!(bench.poll().is_some());
    bench.now = start + TIMEOUT;
    assert_eq!(bench.wait(Duration::ZERO).loss, Loss::Timeout);
    // What is repeated is sent by the same clock.
    bench.now -= INITIAL_PROBE;
    bench.drain();
    assert_eq!(bench.wait(2 * TIMEOUT).loss, Loss::None);
    assert_eq!(bench.wait(TIMEOUT).loss, Loss::Timeout);
}

/// Who sends or receives may have read the clock and then been kept from its processor, while the background
/// thread saw a timeout.
// IB-RC-REQ-40, IB-RC-REQ-41, IB-RC-REQ-42
#[test]
fn an_old_time_does_not_start_a_timer_in_the_past() {
    let mut bench = Bench::new(options());
    bench.push(SEND, MTU);
    bench.drain();
    let old = bench.now;
    assert_eq!(bench.silence(2 * TIMEOUT).loss, Loss::Timeout);
    let late = std::mem::replace(&mut bench.now, old);
    assert_eq!(bench.drain().len(), 1);
    bench.now = late;
    assert_eq!(bench.requester.deadline(), Some(late + INITIAL_PROBE));
    assert_eq!(bench.wait(TIMEOUT / 2).loss, Loss::None);
    assert_eq!(bench.wait(TIMEOUT / 2).loss, Loss::Timeout);
    // An answer that was taken in long ago says as little.
    bench.push(SEND, MTU);
    bench.drain();
    let late = std::mem::replace(&mut bench.now, old);
    assert_eq!(bench.acknowledge(0).acknowledged, MTU + PACKET_COST);
    bench.now = late;
    assert_eq!(bench.wait(TIMEOUT / 2).loss, Loss::None);
    assert_eq!(bench.acknowledge(1).acknowledged, MTU + PACKET_COST);
    // Nor does what is sent when nothing was heard for long: the first look starts the timer, if it comes
    // that late.
    bench.push(SEND, MTU);
    bench.drain();
    assert_eq!(bench.wait(2 * TIMEOUT).loss, Loss::None);
    assert_eq!(bench.requester.deadline(), Some(bench.now + INITIAL_PROBE));
    assert_eq!(bench.wait(INITIAL_PROBE).loss, Loss::None);
    assert_eq!(bench.wait(TIMEOUT).loss, Loss::Timeout);
}

/// Nor does a round trip that was as long as somebody was stopped keep a lost packet from being found.
#[test]
fn a_probe_is_never_far_away() {
    let mut bench = Bench::new(RequesterOptions { timeout: 0, ..options() });
    bench.push(SEND, MTU);
    bench.drain();
    bench.now += Duration::from_secs(60);
    let _ = bench.acknowledge(0);
    bench.push(SEND, MTU);
    bench.drain();
    for _ in 0..20 {
        let next = bench.requester.deadline().unwrap() - bench.now;
        assert!(next <= Duration::from_secs(2), "{next:?}");
        let _ = bench.wait(next);
        assert!(bench.raw().is_some());
    }
}

/// A peer that only ever complains is given up, too.
// IB-RC-REQ-47
#[test]
fn sequence_errors_count_as_repetitions() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    for _ in 0..2 {
        bench.drain();
        assert!(!bench.refuse(0, NakCode::PsnSequenceError).failed);
    }
    bench.drain();
    assert!(bench.refuse(0, NakCode::PsnSequenceError).failed);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::RetryExceeded)]);
}

/// Solicited is said in the last packet of what takes a receive, and nowhere else.
// IB-PKT-11, IB-RC-REQ-16
#[test]
fn the_last_packet_says_solicited() {
    let mut bench = Bench::new(options());
    let write = |immediate| Operation::Write { address: 0, rkey: 1, immediate };
    for (sequence, operation) in [SEND, write(Some(1)), write(None)].into_iter().enumerate() {
        let sequence = sequence as u64;
        let length = 2 * MTU;
        bench.requester.push(Request {
            sequence,
            operation,
            length,
            solicited: true,
            fence: false,
            shared_queue: 0,
        });
    }
    let solicited: Vec<bool> = std::iter::from_fn(|| bench.raw())
        .map(|(_, bytes)| Packet::parse(&bytes).unwrap().bth().solicited())
        .collect();
    assert_eq!(solicited, [false, true, false, true, false, false]);
}

// IB-RC-REQ-43
#[test]
fn progress_starts_the_count_of_repetitions_anew() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 10 * MTU);
    for number in 0..10 {
        bench.drain();
        assert!(!bench.wait(TIMEOUT).failed);
        bench.drain();
        assert!(!bench.wait(TIMEOUT).failed);
        bench.drain();
        let _ = bench.acknowledge(number);
    }
    assert_eq!(bench.completed(), [0]);
}

/// A software peer may be kept from its processor for a while.
// IB-RC-REQ-40
#[test]
fn short_timeouts_take_the_time_that_the_standard_leaves_them() {
    let waits = |code| {
        let mut bench = Bench::new(RequesterOptions { timeout: code, ..options() });
        bench.push(SEND, 1);
        bench.drain();
        let begin = bench.now;
        while bench.wait(Duration::ZERO).loss == Loss::None {
            bench.drain();
            bench.now = bench.requester.deadline().unwrap();
        }
        bench.now - begin
    };
    for code in 9..=if cfg!(miri) { 10 } else { 31 } {
        let least = timer::acknowledgement(code).unwrap();
        assert!((least..=4 * least).contains(&waits(code)), "{code}: {:?}", waits(code));
    }
    assert_eq!(waits(14), TIMEOUT);
    assert_eq!(waits(17), timer::acknowledgement(17).unwrap(), "long enough");
}

// IB-RC-REQ-39
#[test]
fn a_timeout_of_zero_is_never() {
    let mut bench = Bench::new(RequesterOptions { timeout: 0, ..options() });
    bench.push(SEND, 1);
    bench.drain();
    for _ in 0..if cfg!(miri) { 10 } else { 100 } {
        bench.now = bench.requester.deadline().unwrap();
        assert_eq!(bench.wait(Duration::ZERO).loss, Loss::None);
        assert_eq!(bench.drain().len(), 1);
    }
}

#[test]
fn a_probe_goes_out_without_room() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.push(SEND, 1);
    let mut buffer = [0; MAX_HEADER];
    assert_eq!(bench.requester.poll_transmit(bench.now, 0, &mut buffer), None);
    assert!(bench.requester.poll_transmit(bench.now, 1, &mut buffer).is_some());
    let _ = bench.wait(INITIAL_PROBE);
    let probe = bench.requester.poll_transmit(bench.now, 0, &mut buffer).unwrap();
    assert_eq!((probe.sequence, probe.cost), (0, 0));
    assert_eq!(bench.requester.poll_transmit(bench.now, 0, &mut buffer), None);
}

// IB-RC-REQ-13, IB-RC-REQ-21
#[test]
fn acknowledgements_are_asked_for_before_the_window_is_full() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1000 * MTU);
    let mut buffer = [0; MAX_HEADER];
    let mut room = 16 * (MTU + PACKET_COST);
    let mut asked = Vec::new();
    while let Some(outbound) = bench.requester.poll_transmit(bench.now, room, &mut buffer) {
        room -= outbound.cost;
        asked.push(buffer[8] & 0x80 != 0);
    }
    let expected = [8, 12, 14, 15, 16].map(|number| number - 1);
    let asked: Vec<usize> = (0..asked.len()).filter(|&number| asked[number]).collect();
    assert_eq!(asked, expected);
}

// IB-RC-REQ-2, IB-RC-REQ-30
#[test]
fn a_read_takes_a_number_for_each_packet_of_its_response() {
    let mut bench = Bench::new(options());
    bench.push(READ, 2 * MTU + 5);
    bench.push(SEND, 1);
    let read = bench.poll().unwrap();
    assert_eq!((read.code, read.psn, read.length), (Code::ReadRequest, 0, 2 * MTU + 5));
    assert_eq!(bench.drain(), [(Code::SendOnly, 3)]);
    let _ = bench.answer(Code::ReadResponseFirst, 0, ACK, 1, MTU as usize);
    let _ = bench.answer(Code::ReadResponseMiddle, 1, ACK, 1, MTU as usize);
    let _ = bench.answer(Code::ReadResponseLast, 2, ACK, 1, 5);
    assert_eq!(bench.completed(), [0]);
    assert_eq!(bench.host.placed, [(0, 0, 256), (0, 256, 256), (0, 512, 5)]);
    assert_eq!(bench.requester.in_flight(), PACKET_COST + 1);
    let _ = bench.acknowledge(3);
    assert_eq!(bench.completed(), [0, 1]);
}

// IB-RC-REQ-3, IB-RC-REQ-23, IB-RC-REQ-32
#[test]
fn a_response_acknowledges_what_was_before_it() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 3 * MTU);
    bench.push(ADD, 0);
    bench.push(READ, 0);
    assert_eq!(
        bench.drain(),
        [
            (Code::SendFirst, 0),
            (Code::SendMiddle, 1),
            (Code::SendLast, 2),
            (Code::FetchAdd, 3),
            (Code::ReadRequest, 4)
        ]
    );
    let _ = bench.answer(Code::AtomicAcknowledge, 3, ACK, 2, 0);
    assert_eq!((bench.completed(), &bench.host.originals[..]), (vec![0, 1], &[42][..]));
    let _ = bench.answer(Code::ReadResponseOnly, 4, ACK, 3, 0);
    assert_eq!(bench.completed(), [0, 1, 2]);
}

// IB-RC-REQ-3, IB-RC-REQ-38, IB-PKT-29, IB-PKT-30
#[test]
fn flushes_and_atomic_writes_are_answered_by_empty_read_responses() {
    let mut bench = Bench::new(options());
    bench.push(Operation::Flush { address: 8, rkey: 1, placement: 1, selectivity: 0 }, 64);
    bench.push(Operation::AtomicWrite { address: 8, rkey: 1, value: *b"12345678" }, 8);
    let (_, flush) = bench.raw().unwrap();
    let flush = Packet::parse(&flush).unwrap();
    assert_eq!((flush.feth().unwrap().placement(), flush.reth().unwrap().length.get()), (1, 64));
    let (_, write) = bench.raw().unwrap();
    assert_eq!(Packet::parse(&write).unwrap().payload().bytes(), Some(&b"12345678"[..]));
    let _ = bench.answer(Code::ReadResponseOnly, 0, ACK, 1, 0);
    let _ = bench.answer(Code::ReadResponseOnly, 1, ACK, 1, 0);
    assert_eq!(bench.completed(), [0, 1]);
}

// IB-RC-REQ-6, IB-RC-REQ-24, IB-RC-REQ-28
#[test]
fn an_answer_that_skips_a_read_means_that_its_response_is_lost() {
    let mut bench = Bench::new(options());
    bench.push(READ, 4 * MTU);
    bench.push(SEND, 1);
    bench.drain();
    let _ = bench.answer(Code::ReadResponseFirst, 0, ACK, 1, MTU as usize);
    assert_eq!(bench.answer(Code::ReadResponseMiddle, 2, ACK, 1, MTU as usize).loss, Loss::Gap);
    // More of the same burst is no other loss.
    assert_eq!(bench.answer(Code::ReadResponseLast, 3, ACK, 1, MTU as usize), Feedback::default());
    let (outbound, bytes) = bench.raw().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    let reth = packet.reth().unwrap();
    assert_eq!((reth.address.get(), reth.length.get()), (0x1000 + u64::from(MTU), 3 * MTU));
    assert_eq!((packet.bth().psn(), outbound.sequence), (psn::add(PSN, 1), 0));
    assert_eq!(bench.acknowledge(4), Feedback::default());
    assert_eq!(bench.drain(), [(Code::SendOnly, 4)]);
    // The rest may be answered as a read of its own, or as the rest.
    let _ = bench.answer(Code::ReadResponseFirst, 1, ACK, 1, MTU as usize);
    let _ = bench.answer(Code::ReadResponseMiddle, 2, ACK, 1, MTU as usize);
    let _ = bench.answer(Code::ReadResponseLast, 3, ACK, 1, MTU as usize);
    let _ = bench.acknowledge(4);
    assert_eq!(bench.completed(), [0, 1]);
    assert_eq!(bench.host.placed.len(), 4);
}

#[test]
fn late_responses_to_a_lost_read_do_not_lift_the_limit() {
    let mut bench = Bench::new(options());
    for _ in 0..4 {
        bench.push(READ, 1);
    }
    assert_eq!(bench.drain().len(), 2);
    let _ = bench.silence(TIMEOUT);
    // The first answer was only late.
    let _ = bench.answer(Code::ReadResponseOnly, 0, ACK, 1, 1);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 1), (Code::ReadRequest, 2)]);
    assert_eq!(bench.requester.in_flight(), 2 * (PACKET_COST + 1));
}

#[test]
fn long_reads_go_out_in_pieces() {
    let mut bench = Bench::new(RequesterOptions { read_chunk: 2 * MTU + 7, ..options() });
    bench.push(READ, 5 * MTU);
    let sizes: Vec<(u32, u32)> = std::iter::from_fn(|| bench.poll()).map(|s| (s.psn, s.length)).collect();
    assert_eq!(sizes, [(0, 2 * MTU), (2, 2 * MTU)]);
    let _ = bench.answer(Code::ReadResponseFirst, 0, ACK, 1, MTU as usize);
    assert_eq!(bench.poll(), None);
    let _ = bench.answer(Code::ReadResponseLast, 1, ACK, 1, MTU as usize);
    let last = bench.poll().unwrap();
    assert_eq!((last.psn, last.length), (4, MTU));
    let _ = bench.answer(Code::ReadResponseFirst, 2, ACK, 2, MTU as usize);
    let _ = bench.answer(Code::ReadResponseLast, 3, ACK, 2, MTU as usize);
    let _ = bench.answer(Code::ReadResponseOnly, 4, ACK, 3, MTU as usize);
    assert_eq!((bench.completed(), bench.requester.in_flight()), (vec![0], 0));
}

// IB-RC-REQ-29, IB-RC-REQ-33
#[test]
fn a_response_that_does_not_match_the_request_is_a_bad_response() {
    let mtu = MTU as usize;
    for (operation, length, code, payload) in [
        (READ, 2 * MTU, Code::ReadResponseFirst, mtu - 4),
        (READ, 2 * MTU, Code::ReadResponseOnly, mtu),
        (READ, 2 * MTU, Code::ReadResponseMiddle, mtu),
        (READ, 4, Code::ReadResponseOnly, 8),
        (READ, 4, Code::ReadResponseFirst, 4),
        (READ, 4, Code::AtomicAcknowledge, 0),
        (ADD, 0, Code::ReadResponseOnly, 0),
        (SEND, 4, Code::ReadResponseOnly, 0),
        (SEND, 4, Code::AtomicAcknowledge, 0),
    ] {
        let mut bench = Bench::new(options());
        bench.push(operation, length);
        bench.drain();
        assert!(bench.answer(code, 0, ACK, 1, payload).failed, "{code:?} {payload}");
        assert_eq!(bench.host.completions, [(0, CompletionStatus::BadResponse)]);
        assert!(bench.host.placed.is_empty() && bench.host.originals.is_empty());
    }
    let mut bench = Bench::new(options());
    bench.push(READ, 4);
    bench.drain();
    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
    assert!(bench.answer(Code::ReadResponseOnly, 0, nak, 1, 4).failed);
}

// IB-RC-REQ-31
#[test]
fn a_result_that_cannot_be_placed_fails_the_request() {
    for (fault, status) in [
        (LocalFault::Protection, CompletionStatus::LocalProtection),
        (LocalFault::Length, CompletionStatus::LocalLength),
    ] {
        let mut bench = Bench::new(options());
        bench.host.fault = Some(fault);
        bench.push(READ, 4);
        bench.drain();
        assert!(bench.answer(Code::ReadResponseOnly, 0, ACK, 1, 4).failed);
        assert_eq!(bench.host.completions, [(0, status)]);
    }
}

// IB-RC-REQ-14, IB-RC-REQ-15
#[test]
fn reads_are_limited_and_fences_wait_for_them() {
    let mut bench = Bench::new(options());
    for _ in 0..2 {
        bench.push(READ, 1);
    }
    bench.push(ADD, 0);
    bench.push_fenced(SEND, 1, true);
    bench.push(SEND, 1);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 0), (Code::ReadRequest, 1)]);
    let _ = bench.answer(Code::ReadResponseOnly, 0, ACK, 1, 1);
    assert_eq!(bench.drain(), [(Code::FetchAdd, 2)]);
    let _ = bench.answer(Code::ReadResponseOnly, 1, ACK, 1, 1);
    assert_eq!(bench.drain(), []);
    let _ = bench.answer(Code::AtomicAcknowledge, 2, ACK, 1, 0);
    assert_eq!(bench.drain(), [(Code::SendOnly, 3), (Code::SendOnly, 4)]);
}

// PRACTICE-ORDER-2
#[test]
fn behind_a_long_read_nothing_that_changes_memory_is_sent_before_its_answer() {
    let mut bench = Bench::new(RequesterOptions { max_reads: 8, ..options() });
    bench.requester.set_longest_overtaken(4);
    bench.push(READ, 5);
    bench.push(READ, 4);
    bench.push(ADD, 0);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 0), (Code::ReadRequest, 1)]);
    // The same holds for what is sent again.
    let _ = bench.silence(TIMEOUT);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 0), (Code::ReadRequest, 1)]);
    // A short read is overtaken.
    let _ = bench.answer(Code::ReadResponseOnly, 0, ACK, 1, 5);
    assert_eq!(bench.drain(), [(Code::FetchAdd, 2)]);
    bench.push(READ, 5);
    bench.push(SEND, 1);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 3)]);
    // Sent again, the requests before the long read do not wait for it.
    let _ = bench.silence(TIMEOUT);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 1), (Code::FetchAdd, 2), (Code::ReadRequest, 3)]);
    let _ = bench.answer(Code::ReadResponseOnly, 1, ACK, 2, 4);
    let _ = bench.answer(Code::AtomicAcknowledge, 2, ACK, 3, 0);
    assert_eq!(bench.drain(), []);
    let _ = bench.answer(Code::ReadResponseOnly, 3, ACK, 4, 5);
    assert_eq!(bench.drain(), [(Code::SendOnly, 4)]);
}

proptest! {
    // PRACTICE-ORDER-2
    #[test]
    fn the_last_long_read_is_known_whatever_is_lost(steps in vec((0..9u8, 1..4u32), 1..200)) {
        const LONGEST: u32 = MTU;
        let is_read = |entry: &Entry| entry.request.operation.answer() == Answer::Data;
        let mut bench =
            Bench::new(RequesterOptions { max_reads: 8, retry_count: 7, read_chunk: MTU, ..options() });
        bench.requester.set_longest_overtaken(LONGEST);
        for (step, packets) in steps {
            let has_room = bench.requester.has_room();
            let oldest = psn::distance(PSN, bench.requester.oldest);
            match step {
                0 if has_room => bench.push(SEND, packets * MTU),
                1 if has_room => bench.push(READ, packets * MTU),
                2 | 3 => drop(bench.poll()),
                4 => _ = bench.silence(TIMEOUT),
                5 => _ = bench.refuse(oldest, NakCode::PsnSequenceError),
                _ if bench.requester.entries.front().is_some_and(is_read) => {
                    _ = bench.answer(Code::ReadResponseOnly, oldest, ACK, 0, MTU as usize);
                }
                _ => _ = bench.acknowledge(oldest),
            }
            let requester = &bench.requester;
            let mut sent = requester.entries.iter().take(requester.cursor.index);
            let is_long = |entry: &Entry| is_read(entry) && entry.request.length > LONGEST;
            prop_assert_eq!(requester.has_long_read(), sent.any(is_long));
        }
    }
}

// IB-RC-REQ-48, IB-RC-REQ-49
#[test]
fn credits_hold_back_what_needs_a_receive() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    assert_eq!(bench.drain().len(), 1);
    for _ in 0..3 {
        bench.push(SEND, 1);
    }
    let write = Operation::Write { address: 0, rkey: 1, immediate: None };
    // One message complete, one more may come.
    let _ = bench.answer(Code::Acknowledge, 0, Syndrome::Ack { credits: 1 }, 1, 0);
    assert_eq!(bench.drain(), [(Code::SendOnly, 1)]);
    // None may, but one always goes.
    let _ = bench.answer(Code::Acknowledge, 1, Syndrome::Ack { credits: 0 }, 2, 0);
    assert_eq!(bench.drain(), [(Code::SendOnly, 2)]);
    // The responder tells of new ones.
    let _ = bench.answer(Code::Acknowledge, 1, Syndrome::Ack { credits: 2 }, 2, 0);
    assert_eq!(bench.drain(), [(Code::SendOnly, 3)]);
    // Others need none.
    bench.push(write, 1);
    assert_eq!(bench.drain(), [(Code::WriteOnly, 4)]);
}

// IB-RC-REQ-4
#[test]
fn no_more_numbers_are_outstanding_than_can_be_told_apart() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.push(READ, crate::ib::MAX_MESSAGE);
    assert_eq!(bench.drain(), [(Code::SendOnly, 0)]);
    let _ = bench.acknowledge(0);
    assert_eq!(bench.drain(), [(Code::ReadRequest, 1)]);
    bench.push(SEND, 1);
    assert_eq!(bench.drain(), []);
    let _ = bench.answer(Code::ReadResponseFirst, 1, ACK, 1, MTU as usize);
    assert_eq!(bench.drain(), [(Code::SendOnly, 1 + psn::WINDOW)]);
}

// IB-RC-REQ-50
#[test]
fn a_suspended_requester_ends_what_it_has_begun() {
    let mut bench = Bench::new(options());
    assert!(bench.requester.suspend());
    bench.push(SEND, 2 * MTU);
    bench.push(SEND, 1);
    assert_eq!(bench.poll(), None);
    bench.requester.resume();
    assert_eq!(bench.poll().unwrap().code, Code::SendFirst);
    assert!(!bench.requester.suspend());
    assert!(!bench.acknowledge(0).drained);
    assert_eq!(bench.drain(), [(Code::SendLast, 1)]);
    let _ = bench.refuse(1, NakCode::PsnSequenceError);
    assert_eq!(bench.drain(), [(Code::SendLast, 1)]);
    assert!(bench.acknowledge(1).drained);
    assert!(!bench.acknowledge(1).drained);
    assert_eq!(bench.poll(), None);
    bench.requester.resume();
    assert_eq!(bench.drain(), [(Code::SendOnly, 2)]);
}

// IB-UC-3, IB-UC-4
#[test]
fn unreliable_requests_are_complete_when_sent() {
    let mut bench = Bench::new(RequesterOptions { service: Service::Uc, ..options() });
    bench.push(SEND, 2 * MTU);
    bench.push(SEND, 1);
    let packets: Vec<(Outbound, Vec<u8>)> = std::iter::from_fn(|| bench.raw()).collect();
    // IB-UC-5
    assert!(packets.iter().all(|(_, bytes)| !Packet::parse(bytes).unwrap().bth().ack_request()));
    let finished: Vec<(u64, bool)> =
        packets.iter().map(|(packet, _)| (packet.sequence, packet.finished)).collect();
    assert_eq!(finished, [(0, false), (0, true), (1, true)]);
    assert!(bench.requester.is_idle());
    assert_eq!(bench.requester.deadline(), None);
    assert_eq!(bench.requester.next_psn(), psn::add(PSN, 3));
    assert_eq!(bench.acknowledge(0), Feedback::default());
}

#[test]
fn a_send_takes_its_receive_with_the_first_packet_and_a_write_with_the_last() {
    let write = |immediate| Operation::Write { address: 0, rkey: 1, immediate };
    let mut bench = Bench::new(RequesterOptions { service: Service::Uc, ..options() });
    for operation in [SEND, write(None), write(Some(5))] {
        bench.push(operation, 3 * MTU);
    }
    bench.push(write(Some(5)), 0);
    let takes: Vec<bool> = std::iter::from_fn(|| {
        let takes = bench.requester.is_to_take_receive();
        bench.raw().map(|_| takes)
    })
    .collect();
    assert_eq!(takes, [true, false, false, false, false, false, false, false, true, true]);
}

// IB-RC-REQ-18
#[test]
fn a_fault_at_this_end_waits_for_those_before_it() {
    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.push(SEND, 3 * MTU);
    bench.push(SEND, 1);
    for _ in 0..3 {
        bench.poll();
    }
    let feedback = bench.requester.fail(1, CompletionStatus::LocalProtection, &mut bench.host);
    assert!(!feedback.failed);
    assert_eq!(feedback.rewound, 2 * (MTU + PACKET_COST));
    assert_eq!(bench.poll(), None);
    assert!(bench.acknowledge(0).failed);
    let expected = [(0, CompletionStatus::Success), (1, CompletionStatus::LocalProtection)];
    assert_eq!(bench.host.completions, expected);

    let mut bench = Bench::new(options());
    bench.push(SEND, 1);
    bench.poll();
    assert!(bench.requester.fail(0, CompletionStatus::LocalProtection, &mut bench.host).failed);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::LocalProtection)]);
}

#[test]
fn an_idle_requester_is_small() {
    assert!(size_of::<Requester>() <= 320, "{}", size_of::<Requester>());
    assert!(size_of::<Entry>() <= 96, "{}", size_of::<Entry>());
}

/// A short Send, by its number alone, as a queue would know it.
fn short_send(sequence: u64) -> Request {
    let immediate = (sequence % 3 == 1).then_some(sequence as u32);
    Request {
        sequence,
        operation: Operation::Send { immediate, invalidate: None },
        length: sequence as u32 % MTU,
        solicited: sequence % 5 == 2,
        fence: false,
        shared_queue: 0,
    }
}

#[test]
fn a_run_that_is_written_out_is_what_would_have_been_entered() {
    let now = Duration::from_millis(7);
    let mut bench = Bench::new(options());
    let mut slow = bench.requester.clone();
    for sequence in 0..4 {
        assert!(bench.requester.is_clear());
        let mut buffer = [0; MAX_HEADER];
        slow.push(short_send(sequence));
        let outbound = slow.poll_transmit(now, u32::MAX, &mut buffer).unwrap();
        let mut bytes = buffer[..outbound.header].to_vec();
        bytes.resize(outbound.wire_len(), 0);
        let number = Packet::parse(&bytes).unwrap().bth().psn();
        let sent = match bench.requester.may_follow() {
            0 => bench.requester.send_at_once(sequence, || now, || short_send(sequence)),
            _ => bench.requester.send_next(sequence),
        };
        assert_eq!((sent, bench.requester.may_follow() > 0), (number, true));
        let mut written = bench.requester.clone();
        written.write_out(&mut bench.host);
        assert_eq!(format!("{slow:?}"), format!("{written:?}"));
    }
}

#[test]
fn a_run_completes_in_order_and_goes_on() {
    let mut bench = Bench::new(options());
    for sequence in 0..3 {
        bench.requester.send_at_once(sequence, || Duration::ZERO, || short_send(sequence));
    }
    assert!(bench.requester.runs() && !bench.requester.is_idle());
    assert_eq!(bench.requester.oldest(), Some(0));
    let _ = bench.acknowledge(1);
    assert_eq!(bench.host.completions, [(0, CompletionStatus::Success), (1, CompletionStatus::Success)]);
    assert_eq!(bench.requester.oldest(), Some(2));
    bench.requester.send_at_once(3, || Duration::ZERO, || short_send(3));
    let _ = bench.acknowledge(3);
    assert_eq!(bench.host.completions.len(), 4);
    assert!(bench.requester.is_idle() && !bench.requester.runs());
}

/// What can happen to two requesters that are asked for the same.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// So many short Sends are posted.
    Sends(u8),
    /// A Send of several packets, a Write, or a Read is posted.
    Other(u8),
    /// Part of what is on its way is acknowledged, and what follows is missing, or finds no receive.
    Answer(u8, u8),
    /// Time passes.
    Time(u16),
    /// The program stops the queue pair from sending, or has it go on.
    Suspend(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..6u8).prop_map(Event::Sends),
        1 => (0..3u8).prop_map(Event::Other),
        4 => (any::<u8>(), 0..6u8).prop_map(|(part, kind)| Event::Answer(part, kind)),
        1 => (1..2000u16).prop_map(Event::Time),
        1 => any::<bool>().prop_map(Event::Suspend),
    ]
}

proptest! {
    /// Sends by runs complete as those by entries, whatever happens to them.
    #[test]
    fn runs_are_nothing_but_a_shorter_way(events in vec(event(), 1..60)) {
        let options = RequesterOptions { room: u32::MAX, retry_count: 7, rnr_retry: 7, ..options() };
        let (mut fast, mut slow) = (Bench::new(options), Bench::new(options));
        // All that may go out goes out.
        let send_all = |bench: &mut Bench| while bench.raw().is_some() {};
        for event in events {
            match event {
                Event::Sends(count) => {
                    let mut following = 0;
                    for _ in 0..count {
                        let sequence = slow.next;
                        (slow.next, fast.next) = (sequence + 1, sequence + 1);
                        if following > 0 {
                            following -= 1;
                            fast.requester.send_next(sequence);
                        } else if fast.requester.is_clear() {
                            fast.requester.send_at_once(sequence, || fast.now, || short_send(sequence));
                            following = fast.requester.may_follow();
                        } else {
                            fast.requester.write_out(&mut fast.host);
                            fast.requester.push(short_send(sequence));
                            send_all(&mut fast);
                        }
                        slow.requester.push(short_send(sequence));
                        send_all(&mut slow);
                    }
                }
                Event::Other(kind) => for bench in [&mut fast, &mut slow] {
                    bench.requester.write_out(&mut bench.host);
                    match kind {
                        0 => bench.push(SEND, 3 * MTU),
                        1 => bench.push(Operation::Write { address: 0, rkey: 7, immediate: None }, 5),
                        _ => bench.push(ADD, 8),
                    }
                    send_all(bench);
                },
                Event::Answer(part, kind) => {
                    let (oldest, sent) = (slow.requester.oldest, slow.requester.cursor.psn);
                    prop_assert_eq!((fast.requester.oldest, fast.requester.cursor.psn), (oldest, sent));
                    let count = psn::distance(oldest, sent);
                    if count == 0 { continue }
                    let number = psn::distance(PSN, psn::add(oldest, u32::from(part) % count));
                    let syndrome = match kind {
                        0..3 => ACK,
                        3 => Syndrome::Nak(NakCode::PsnSequenceError),
                        4 => Syndrome::ReceiverNotReady { timer: 1 },
                        _ => Syndrome::Nak(NakCode::RemoteAccessError),
                    };
                    // A run measures fewer round trips than entries do. So one of the two may have sent a
                    // probe that the other has not sent yet, and looks out for a gap anew.
                    let are_alike = fast.requester.gap == slow.requester.gap;
                    let answers = [&mut fast, &mut slow].map(|bench| {
                        let feedback = bench.answer(Code::Acknowledge, number, syndrome, 0, 0);
                        send_all(bench);
                        (feedback.failed, feedback.drained, are_alike.then_some(feedback.loss))
                    });
                    prop_assert_eq!(answers[0], answers[1]);
                }
                Event::Time(micros) => for bench in [&mut fast, &mut slow] {
                    bench.now += Duration::from_micros(micros.into());
                    let _ = bench.requester.handle_timeout(bench.now, &mut bench.host);
                    send_all(bench);
                },
                Event::Suspend(on) => for bench in [&mut fast, &mut slow] {
                    if on { bench.requester.suspend(); } else { bench.requester.resume(); send_all(bench); }
                },
            }
            prop_assert_eq!(&fast.host.completions, &slow.host.completions);
            prop_assert_eq!(fast.requester.next_psn(), slow.requester.next_psn());
            prop_assert_eq!(fast.requester.has_failed(), slow.requester.has_failed());
            prop_assert_eq!(fast.requester.is_idle(), slow.requester.is_idle());
            if slow.requester.has_failed() { break }
        }
    }
}
