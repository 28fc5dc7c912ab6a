//! A queue pair over memory that is a few vectors: everything that a driver does around requester and
//! responder, without sockets, clocks and threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::Random;
use adverb_proto::ib::{
    Access, CompletionStatus, Delivery, Keep, LocalFault, Loss, Operation, PendingReply, ReadSource,
    ReceiveFault, Refusal, Remote, Request, Requester, RequesterHost, RequesterOptions, Responder,
    ResponderHost, ResponderOptions, Service, Verdict, Window, goes_to_requester,
};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, ICRC_LEN, MAX_HEADER, padding};
use adverb_wire::ib::opcode::{Opcode, Operation as WireOperation, Service as WireService};
use adverb_wire::ib::packet::{Packet, Payload};

/// A tick of the system, by which its coarse clock goes.
const TICK: Duration = Duration::from_millis(4);

/// Memory of a program under a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyedMemory {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) rights: Access,
}

/// A request of a program, and the place for its result.
#[derive(Clone, Debug)]
pub(crate) struct SendWork {
    pub(crate) operation: Operation,
    /// What is sent, or what has been read.
    pub(crate) data: Vec<u8>,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
}

/// What goes from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Parcel {
    Packet(Vec<u8>),
    /// By the shared memory of two processes of one host: a Send without headers.
    Straight(Straight),
    /// By shared memory: all packets up to this number are acknowledged.
    Acknowledgement(u32),
}

impl Parcel {
    /// The bytes of a packet with its headers.
    pub(crate) fn len(&self) -> usize {
        match self {
            Parcel::Packet(packet) => packet.len(),
            Parcel::Straight(straight) => straight.data.len(),
            Parcel::Acknowledgement(_) => 0,
        }
    }

    /// The queue pair that a packet names.
    pub(crate) fn destination(&self) -> Option<u32> {
        let Parcel::Packet(packet) = self else { return None };
        let bytes = packet.get(5..8)?;
        Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }
}

/// A Send of one packet that goes without headers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Straight {
    number: u32,
    data: Vec<u8>,
    immediate: Option<u32>,
    solicited: bool,
    /// This packet of the receiver's, and all before it, are acknowledged.
    acknowledged: Option<u32>,
}

impl Straight {
    /// The packet that it stands for.
    fn to_packet(&self, destination: u32) -> Vec<u8> {
        let operation = match self.immediate {
            Some(_) => WireOperation::SendOnlyImmediate,
            None => WireOperation::SendOnly,
        };
        let opcode = Opcode::new(WireService::Rc, operation).expect("connections send");
        let bth = Bth::new(opcode, DEFAULT_PKEY, destination, self.number)
            .with_pad_for(self.data.len())
            .with_solicited(self.solicited)
            .with_ack_request(true);
        let mut buffer = [0; MAX_HEADER];
        let mut writer = HeaderWriter::new(&mut buffer);
        writer.put(&bth);
        if let Some(immediate) = self.immediate {
            writer.put(&immediate.to_be_bytes());
        }
        let length = writer.len();
        let mut packet = buffer[..length].to_vec();
        packet.extend_from_slice(&self.data);
        packet.resize(packet.len() + padding(self.data.len()) + ICRC_LEN, 0);
        packet
    }
}

/// The shared receive queue that a request of XRC is for.
pub(crate) fn shared_queue(sequence: u64) -> u32 {
    (sequence % 3) as u32 + 0xff_fffd
}

impl SendWork {
    fn request(&self, sequence: u64) -> Request {
        let length = match self.operation {
            Operation::Flush { .. } => 64,
            _ => self.data.len() as u32,
        };
        Request {
            sequence,
            operation: self.operation,
            length,
            solicited: self.solicited,
            fence: self.fence,
            shared_queue: shared_queue(sequence),
        }
    }
}

/// The program of an end, and its memory.
#[derive(Default)]
pub(crate) struct Program {
    /// Requests that are not complete, by their sequence number.
    pub(crate) works: BTreeMap<u64, SendWork>,
    /// Requests that are, in order, with what they have read.
    pub(crate) completions: Vec<(u64, CompletionStatus, Vec<u8>)>,
    /// Sizes of the posted receives.
    pub(crate) receives: VecDeque<usize>,
    /// XRC: the shared receive queue that the packet is for, and where each receive was taken.
    chosen: Option<u32>,
    pub(crate) taken_from: Vec<u32>,
    receiving: Option<Vec<u8>>,
    pub(crate) deliveries: Vec<(Delivery, Vec<u8>)>,
    pub(crate) receive_faults: Vec<ReceiveFault>,
    pub(crate) regions: BTreeMap<u32, KeyedMemory>,
    pub(crate) invalidated: BTreeSet<u32>,
    pub(crate) flushes: usize,
    /// Bytes of reads that were taken before something behind them, and how many there may be.
    kept: Vec<u8>,
    pub(crate) most_kept: Option<usize>,
    /// Longer reads are not kept: nothing is carried out behind them before they are answered.
    pub(crate) longest_kept: Option<u32>,
}

impl Program {
    fn part(&mut self, key: u32, address: u64, length: usize) -> Result<&mut [u8], Refusal> {
        let region = self.regions.get_mut(&key).ok_or(Refusal::Access)?;
        let start = usize::try_from(address.checked_sub(region.base).ok_or(Refusal::Access)?).unwrap();
        region.bytes.get_mut(start..).and_then(|rest| rest.get_mut(..length)).ok_or(Refusal::Access)
    }

    fn word(&mut self, key: u32, address: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Refusal> {
        let word = self.part(key, address, 8)?;
        let original = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&change(original).to_ne_bytes());
        Ok(original)
    }
}

impl RequesterHost for Program {
    fn place(&mut self, sequence: u64, offset: u32, payload: Payload<'_>) -> Result<(), LocalFault> {
        let work = self.works.get_mut(&sequence).expect("data for a request that is not complete");
        assert!(matches!(work.operation, Operation::Read { .. }));
        work.data[offset as usize..][..payload.len()]
            .copy_from_slice(payload.bytes().expect("in the packet"));
        Ok(())
    }

    fn place_atomic(&mut self, sequence: u64, original: u64) -> Result<(), LocalFault> {
        let work = self.works.get_mut(&sequence).expect("a result for a request that is not complete");
        assert!(matches!(work.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. }));
        work.data = original.to_ne_bytes().to_vec();
        Ok(())
    }

    fn complete(&mut self, sequence: u64, status: CompletionStatus) {
        let (first, work) = self.works.pop_first().expect("a request that is not complete");
        assert_eq!(first, sequence, "requests complete in order");
        self.completions.push((sequence, status, work.data));
    }

    fn recall(&mut self, sequence: u64) -> Request {
        self.works[&sequence].request(sequence)
    }
}

impl ResponderHost for Program {
    fn choose_queue(&mut self, number: u32) -> Result<(), Refusal> {
        self.chosen = Some(number);
        if number < shared_queue(0) { Err(Refusal::Invalid) } else { Ok(()) }
    }

    fn keep(&mut self, source: &ReadSource) -> Keep {
        if self.longest_kept.is_some_and(|longest| source.length > longest) {
            return Keep::Needless;
        }
        if self.most_kept.is_some_and(|most| self.kept.len() + source.length as usize > most) {
            return Keep::Later;
        }
        let Ok(bytes) = self.part(source.key, source.address, source.length as usize) else {
            return Keep::Later;
        };
        let bytes = bytes.to_vec();
        self.kept.extend(bytes);
        Keep::At((self.kept.len() - source.length as usize) as u32)
    }

    fn take_receive(&mut self) -> Option<u64> {
        assert!(self.receiving.is_none(), "one receive for a message");
        let size = self.receives.pop_front()?;
        self.receiving = Some(vec![0; size]);
        self.taken_from.extend(self.chosen);
        Some(size as u64)
    }

    fn place_receive(&mut self, offset: u32, payload: Payload<'_>) -> Result<(), Refusal> {
        let buffer = self.receiving.as_mut().expect("a receive was taken");
        buffer[offset as usize..][..payload.len()].copy_from_slice(payload.bytes().expect("in the packet"));
        Ok(())
    }

    fn complete_receive(&mut self, delivered: Delivery) {
        let mut buffer = self.receiving.take().expect("a receive was taken");
        if delivered.kind == adverb_proto::ib::DeliveryKind::Send {
            buffer.truncate(delivered.length as usize);
        } else {
            buffer.clear();
        }
        self.deliveries.push((delivered, buffer));
    }

    fn fail_receive(&mut self, fault: ReceiveFault) {
        assert!(self.receiving.take().is_some(), "a receive was taken");
        self.receive_faults.push(fault);
    }

    fn check_remote(&mut self, key: u32, address: u64, length: u32, access: Remote) -> Result<(), Refusal> {
        let rights = self.regions.get(&key).ok_or(Refusal::Access)?.rights;
        let allowed = match access {
            Remote::Write => rights.write,
            Remote::Read => rights.read,
            Remote::Atomic => rights.atomic,
            Remote::Flush { .. } => rights.flush,
        };
        if !allowed {
            return Err(Refusal::Access);
        }
        self.part(key, address, length as usize).map(|_| ())
    }

    fn write(&mut self, key: u32, address: u64, payload: Payload<'_>) -> Result<(), Refusal> {
        self.part(key, address, payload.len())?.copy_from_slice(payload.bytes().expect("in the packet"));
        Ok(())
    }

    fn fetch_add(&mut self, key: u32, address: u64, add: u64) -> Result<u64, Refusal> {
        self.word(key, address, |word| word.wrapping_add(add))
    }

    fn compare_swap(&mut self, key: u32, address: u64, compare: u64, swap: u64) -> Result<u64, Refusal> {
        self.word(key, address, |word| if word == compare { swap } else { word })
    }

    fn atomic_write(&mut self, key: u32, address: u64, value: [u8; 8]) -> Result<(), Refusal> {
        self.word(key, address, |_| u64::from_ne_bytes(value)).map(|_| ())
    }

    fn flush(&mut self, key: u32, address: u64, length: u32, _: u8, _: u8) -> Result<(), Refusal> {
        self.flushes += 1;
        self.part(key, address, length as usize).map(|_| ())
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        if self.invalidated.insert(key) { Ok(()) } else { Err(Refusal::Access) }
    }
}

/// Attributes that both ends of a pair share.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) service: Service,
    /// The smaller number of the two queue pairs.
    pub(crate) number: u32,
    pub(crate) mtu: u32,
    pub(crate) psn: [u32; 2],
    pub(crate) max_reads: u8,
    pub(crate) read_chunk: u32,
    pub(crate) room: u32,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: u8,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    reliable: bool,
    service: Service,
    pub(crate) mtu: u32,
    /// The number of this end's queue pair.
    pub(crate) number: u32,
    /// Whether the other end is a process of this host, with a channel in shared memory.
    pub(crate) is_near: bool,
    /// How far the ticks of the coarse clock are late by which a near end works. None if it works by the
    /// exact one.
    pub(crate) tick_lag: Option<Duration>,
    pub(crate) window: Window,
    /// Whether the window limits what is in flight.
    pub(crate) has_window: bool,
    pub(crate) program: Program,
    /// Requests that are not entered yet.
    pub(crate) posted: VecDeque<u64>,
    next_sequence: u64,
    pub(crate) acknowledge_at: Option<Duration>,
    /// Requests that wait for reads before them.
    held: VecDeque<Vec<u8>>,
    pub(crate) repeated: usize,
    pub(crate) losses: usize,
}

impl End {
    /// End `side` of a connection.
    pub(crate) fn new(options: &Options, side: usize) -> End {
        let access = Access { write: true, read: true, atomic: true, flush: true };
        End {
            requester: Requester::new(RequesterOptions {
                service: options.service,
                mtu: options.mtu,
                first_psn: options.psn[side],
                destination: options.number + side as u32,
                pkey: DEFAULT_PKEY,
                timeout: options.timeout,
                retry_count: options.retry_count,
                rnr_retry: options.rnr_retry,
                max_reads: options.max_reads,
                room: options.room,
                read_chunk: options.read_chunk,
            }),
            responder: Responder::new(ResponderOptions {
                service: options.service,
                mtu: options.mtu,
                expected_psn: options.psn[1 - side],
                destination: options.number + side as u32,
                pkey: DEFAULT_PKEY,
                max_reads: options.max_reads,
                min_rnr_timer: 1,
                access,
            }),
            reliable: options.service.is_reliable(),
            service: options.service,
            mtu: options.mtu,
            number: options.number + 1 - side as u32,
            is_near: false,
            tick_lag: None,
            window: Window::new(1 << 20),
            has_window: true,
            program: Program::default(),
            posted: VecDeque::new(),
            next_sequence: 0,
            acknowledge_at: None,
            held: VecDeque::new(),
            repeated: 0,
            losses: 0,
        }
    }

    /// The time by which the end sends and receives: that of the system's coarse clock within a host. It is a
    /// tick late, or early where ticks are late.
    fn working_time(&self, now: Duration) -> Duration {
        let Some(lag) = self.tick_lag.filter(|_| self.is_near) else { return now };
        let ticks = now.as_nanos() / TICK.as_nanos() + 1;
        (TICK * ticks as u32).saturating_sub(lag)
    }

    /// How far it is, for a failure.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} requests done, {} posted, {} receives, deadline {:?}, reply {:?}, held {}",
            self.program.completions.len(),
            self.posted.len(),
            self.program.receives.len(),
            self.deadline(),
            self.responder.pending_reply(),
            self.held.len()
        )
    }

    /// Packets that wait for reads before them.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn post(&mut self, work: SendWork) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.program.works.insert(sequence, work);
        self.posted.push_back(sequence);
        sequence
    }

    /// Whether a Send may go without headers: nothing before it waits.
    fn goes_straight(&self, work: &SendWork) -> bool {
        let requester = &self.requester;
        self.is_near
            && self.service == Service::Rc
            && matches!(work.operation, Operation::Send { invalidate: None, .. })
            && work.data.len() <= self.mtu as usize
            && requester.is_clear()
            && (!work.fence || requester.is_idle() || requester.runs())
    }

    fn enter(&mut self, now: Duration, wire: &mut dyn FnMut(Parcel)) {
        while self.requester.has_room() && !self.requester.has_failed() {
            let Some(sequence) = self.posted.pop_front() else { break };
            let work = &self.program.works[&sequence];
            if self.goes_straight(work) {
                let number = if self.requester.may_follow() > 0 {
                    self.requester.send_next(sequence)
                } else {
                    self.requester.send_at_once(sequence, || now, || work.request(sequence))
                };
                let Operation::Send { immediate, .. } = work.operation else { unreachable!("a Send") };
                let acknowledged = self.responder.take_acknowledgement();
                let (data, solicited) = (work.data.clone(), work.solicited);
                wire(Parcel::Straight(Straight { number, data, immediate, solicited, acknowledged }));
                continue;
            }
            let request = work.request(sequence);
            self.requester.write_out(&mut self.program);
            self.requester.push(request);
        }
    }

    /// Enters requests, and gives all parcels that may leave to `wire`.
    pub(crate) fn transmit(&mut self, now: Duration, random: &mut Random, wire: &mut dyn FnMut(Parcel)) {
        let mut buffer = [0; MAX_HEADER];
        let time = self.working_time(now);
        loop {
            self.enter(time, wire);
            let room = if self.has_window { self.window.room() } else { u32::MAX };
            let Some(outbound) = self.requester.poll_transmit(time, room, &mut buffer) else {
                break;
            };
            let mut packet = buffer[..outbound.header].to_vec();
            if let Some(source) = outbound.payload {
                let data = &self.program.works[&source.sequence].data;
                packet.extend_from_slice(&data[source.offset as usize..][..source.length as usize]);
            }
            packet.resize(packet.len() + outbound.pad + ICRC_LEN, 0);
            assert_eq!(packet.len(), outbound.wire_len());
            wire(Parcel::Packet(packet));
            self.repeated += usize::from(outbound.repeated);
            if outbound.finished {
                self.program.complete(outbound.sequence, CompletionStatus::Success);
            } else if self.reliable {
                self.window.sent(outbound.cost);
            }
        }
        let due = match self.responder.pending_reply() {
            PendingReply::Nothing => {
                self.acknowledge_at = None;
                false
            }
            PendingReply::Response => true,
            PendingReply::Acknowledgement => {
                let wait = Duration::from_micros(random.below(3) as u64 * 10);
                now >= *self.acknowledge_at.get_or_insert(now + wait)
            }
        };
        if due && self.is_near && random.chance(2) {
            self.responder
                .take_acknowledgement()
                .map(Parcel::Acknowledgement)
                .into_iter()
                .for_each(&mut *wire);
            self.acknowledge_at = None;
        }
        while let Some(reply) = due.then(|| self.responder.poll_transmit(&mut buffer)).flatten() {
            let mut packet = buffer[..reply.header].to_vec();
            if let Some(source) = reply.payload {
                let kept = source.kept.map(|place| place as usize);
                if let Some(place) = kept {
                    packet.extend_from_slice(&self.program.kept[place..][..source.length as usize]);
                } else {
                    match self.program.part(source.key, source.address, source.length as usize) {
                        Ok(bytes) => packet.extend_from_slice(bytes),
                        Err(refusal) => {
                            let _ = self.responder.read_failed(&reply, refusal);
                            continue;
                        }
                    }
                }
            }
            packet.resize(packet.len() + reply.pad + ICRC_LEN, 0);
            assert_eq!(packet.len(), reply.wire_len());
            wire(Parcel::Packet(packet));
            self.acknowledge_at = None;
            if !self.responder.keeps() {
                self.program.kept.clear();
            }
        }
        if !self.held.is_empty() {
            self.take_held();
            self.transmit(now, random, wire);
        }
    }

    pub(crate) fn receive(&mut self, parcel: &Parcel, now: Duration) {
        let now = self.working_time(now);
        match parcel {
            Parcel::Packet(bytes) => self.receive_packet(bytes, now),
            Parcel::Acknowledgement(number) => self.acknowledged(*number, now),
            Parcel::Straight(straight) => {
                if let Some(number) = straight.acknowledged {
                    self.acknowledged(number, now);
                }
                if !self.receive_straight(straight) {
                    self.receive_packet(&straight.to_packet(self.number), now);
                }
            }
        }
    }

    fn acknowledged(&mut self, number: u32, now: Duration) {
        let feedback = self.requester.acknowledged(number, now, &mut self.program);
        self.losses += usize::from(feedback.loss != Loss::None);
        self.window.learn(&feedback, now);
    }

    /// Takes in a Send without headers, if it comes next and there is a receive with room for it. False: it
    /// is to be taken in as a packet.
    fn receive_straight(&mut self, straight: &Straight) -> bool {
        let length = straight.data.len() as u32;
        if !self.held.is_empty() || !self.responder.is_clear_for(straight.number, length) {
            return false;
        }
        let Some(room) = self.program.take_receive() else { return false };
        if u64::from(length) > room {
            self.responder.give_receive(room);
            return false;
        }
        self.program.receiving.as_mut().expect("a receive was taken")[..straight.data.len()]
            .copy_from_slice(&straight.data);
        let (immediate, solicited) = (straight.immediate, straight.solicited);
        let kind = adverb_proto::ib::DeliveryKind::Send;
        self.program.complete_receive(Delivery { length, immediate, invalidated: None, kind, solicited });
        self.responder.took_send();
        true
    }

    fn receive_packet(&mut self, bytes: &[u8], now: Duration) {
        let packet = Packet::parse(bytes).expect("a packet of the other end");
        if goes_to_requester(&packet) {
            let feedback = self.requester.receive(&packet, now, &mut self.program);
            self.losses += usize::from(feedback.loss != Loss::None);
            self.window.learn(&feedback, now);
        } else if !self.held.is_empty() && !self.responder.is_past(&packet)
            || self.responder.receive(&packet, &mut self.program) == Verdict::Postponed
        {
            self.held.push_back(bytes.to_vec());
        }
    }

    /// Takes in what waits for reads before it.
    fn take_held(&mut self) {
        while let Some(bytes) = self.held.front() {
            let packet = Packet::parse(bytes).expect("it was one");
            if self.responder.receive(&packet, &mut self.program) == Verdict::Postponed {
                return;
            }
            self.held.pop_front();
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        [self.requester.deadline(), self.acknowledge_at].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        let feedback = self.requester.handle_timeout(now, &mut self.program);
        self.losses += usize::from(feedback.loss != Loss::None);
        self.window.learn(&feedback, now);
    }
}
