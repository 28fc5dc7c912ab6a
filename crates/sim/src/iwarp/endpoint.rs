//! An endpoint of an iWARP connection over memory that is a few vectors: everything that a driver does around
//! the state machines, without sockets, clocks and threads.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::Random;
use adverb_proto::iwarp::mpa::Parameters;
use adverb_proto::iwarp::{
    Arrival, AtomicOperation, AtomicRequest, AtomicResponse, Fault, Fpdu, InboundReads, InboundRequest,
    Outbound, OutstandingReads, ReadRequest, Receiver, Segment, Sender, Step, Terminate,
};

/// Memory with an STag. Its tagged offsets start at `base`.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) write: bool,
    pub(crate) read: bool,
}

impl Region {
    fn range(&self, to: u64, len: usize) -> Result<Range<usize>, Fault> {
        if to.checked_add(len as u64).is_none() {
            return Err(Fault::ToWrap);
        }
        let start = to.checked_sub(self.base).ok_or(Fault::BaseBounds)? as usize;
        let end = start.checked_add(len).ok_or(Fault::BaseBounds)?;
        if end > self.bytes.len() { Err(Fault::BaseBounds) } else { Ok(start..end) }
    }
}

/// What a program asks for.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Send { payload: Vec<u8>, invalidate: Option<u32>, solicited: bool },
    Write { payload: Vec<u8>, stag: u32, to: u64 },
    Read { len: u32, stag: u32, to: u64 },
    Atomic { stag: u32, to: u64, operation: AtomicOperation },
    Immediate { data: [u8; 8], solicited: bool },
}

/// What a program gets to see, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Received { payload: Vec<u8>, invalidated: Option<u32>, solicited: bool },
    Immediate { data: [u8; 8], solicited: bool },
    ReadDone { data: Vec<u8> },
    AtomicDone { original: u64 },
    Ready,
    Terminated(Terminate),
}

/// A read or atomic operation under way. A read has a sink region of its own until it is done.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    sink: Option<u32>,
}

/// Payload on its way to its place.
struct Placing {
    arrival: Arrival,
    target: Target,
    done: usize,
}

#[derive(Clone, Copy)]
enum Target {
    Region { stag: u32, start: usize },
    Receive { start: usize },
    Nowhere,
}

pub(crate) struct Endpoint {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) reads: OutstandingReads<Pending>,
    pub(crate) inbound: InboundReads,
    pub(crate) regions: BTreeMap<u32, Region>,
    /// Sizes of the posted receives.
    pub(crate) receives: VecDeque<usize>,
    pub(crate) work: VecDeque<Work>,
    pub(crate) events: Vec<Event>,
    /// Bytes for the peer.
    pub(crate) wire: VecDeque<u8>,
    /// Set when the stream has ended in error at this end.
    pub(crate) failed: Option<Terminate>,
    /// Whether the initiator's first FPDU is still awaited.
    pub(crate) silent: bool,
    /// Payload of the message that is being sent.
    outgoing: Vec<u8>,
    /// The message that is being sent answers the request at the front of `inbound`.
    answering: bool,
    input: Vec<u8>,
    placing: Option<Placing>,
    /// The message that is being received.
    receiving: Vec<u8>,
    next_stag: u32,
    pub(crate) fpdus: usize,
}

impl Endpoint {
    pub(crate) fn new(parameters: &Parameters, emss: usize) -> Endpoint {
        let depth = |depth: Option<u16>| depth.map_or(4, usize::from);
        let mut endpoint = Endpoint {
            sender: Sender::new(parameters, emss),
            receiver: Receiver::new(parameters),
            reads: OutstandingReads::new(depth(parameters.ord)),
            inbound: InboundReads::new(depth(parameters.ird)),
            regions: BTreeMap::new(),
            receives: VecDeque::new(),
            work: VecDeque::new(),
            events: Vec::new(),
            wire: VecDeque::new(),
            failed: None,
            silent: !parameters.initiator,
            outgoing: Vec::new(),
            answering: false,
            input: Vec::new(),
            placing: None,
            receiving: Vec::new(),
            next_stag: 0x8000_0000,
            fpdus: 0,
        };
        if let Some(message) = parameters.rtr_message() {
            if let Outbound::ReadRequest(request) = &message {
                endpoint.reads.push_read(request, Pending { sink: None }).unwrap();
            }
            endpoint.sender.begin(message).unwrap();
        }
        endpoint
    }

    pub(crate) fn add_region(&mut self, stag: u32, region: Region) {
        self.regions.insert(stag, region);
    }

    /// Everything that was asked for has been sent and answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_empty() && self.reads.is_empty() && self.inbound.is_empty() && !self.sender.is_busy()
    }

    /// Sends one FPDU, if there is anything to send.
    pub(crate) fn transmit(&mut self, random: &mut Random) -> bool {
        if self.silent {
            return false;
        }
        if !self.sender.is_busy() && !self.start_message(random) {
            return false;
        }
        let fpdu = self.sender.next_fpdu().unwrap();
        let payload = &self.outgoing[fpdu.payload().start as usize..fpdu.payload().end as usize];
        let mut frame = Vec::new();
        if self.sender.is_plain() && random.chance(2) {
            plain(&fpdu, payload, &mut frame);
        } else {
            self.sender.seal(&fpdu, payload, &mut frame);
        }
        self.wire.extend(frame);
        self.fpdus += 1;
        if fpdu.is_last() && std::mem::take(&mut self.answering) {
            self.inbound.pop();
        }
        true
    }

    fn start_message(&mut self, random: &mut Random) -> bool {
        self.outgoing.clear();
        if self.failed.is_some() {
            return false;
        }
        let has_answers = !self.inbound.is_empty();
        if has_answers && random.chance(2) {
            return self.start_answer();
        }
        // The next request may have to wait for answers of the peer.
        self.start_work() || has_answers && self.start_answer()
    }

    fn start_answer(&mut self) -> bool {
        let request = *self.inbound.front().unwrap();
        match self.answer(&request) {
            Ok((message, payload)) => {
                self.outgoing = payload;
                self.sender.begin(message).unwrap();
                self.answering = true;
                true
            }
            Err(fault) => {
                self.fail(request.terminate(fault, 0));
                true
            }
        }
    }

    fn answer(&mut self, request: &InboundRequest) -> Result<(Outbound, Vec<u8>), Fault> {
        match request {
            InboundRequest::Read { request: read, .. } => {
                let mut payload = Vec::new();
                if read.len != 0 {
                    let region = self.regions.get(&read.source_stag).ok_or(Fault::InvalidStag)?;
                    let range = region.range(read.source_to, read.len as usize)?;
                    if !region.read {
                        return Err(Fault::AccessRights);
                    }
                    payload = region.bytes[range].to_vec();
                }
                Ok((request.read_response().unwrap(), payload))
            }
            InboundRequest::Atomic { request, .. } => {
                let region = self.regions.get_mut(&request.stag).ok_or(Fault::InvalidStag)?;
                let range = region.range(request.to, 8)?;
                if !(region.read && region.write) {
                    return Err(Fault::AccessRights);
                }
                if request.to % 8 != 0 {
                    return Err(Fault::CatastrophicStream);
                }
                let target = &mut region.bytes[range];
                let original = u64::from_ne_bytes(target.try_into().unwrap());
                target.copy_from_slice(&request.operation.apply(original).to_ne_bytes());
                Ok((Outbound::AtomicResponse(AtomicResponse { id: request.id, original }), Vec::new()))
            }
        }
    }

    fn start_work(&mut self) -> bool {
        let Some(work) = self.work.front() else { return false };
        let is_read = matches!(work, Work::Read { .. } | Work::Atomic { .. });
        if is_read && self.reads.is_full() {
            return false;
        }
        let message = match self.work.pop_front().unwrap() {
            Work::Send { payload, invalidate, solicited } => {
                self.outgoing = payload;
                Outbound::Send { len: self.outgoing.len() as u32, invalidate, solicited }
            }
            Work::Write { payload, stag, to } => {
                self.outgoing = payload;
                Outbound::Write { stag, to, len: self.outgoing.len() as u32 }
            }
            Work::Read { len, stag, to } => {
                let sink_stag = self.next_stag;
                self.next_stag += 1;
                let base = 0x1_0000_0000 + sink_stag as u64;
                let bytes = vec![0; len as usize];
                self.add_region(sink_stag, Region { base, bytes, write: false, read: false });
                let request = ReadRequest { sink_stag, sink_to: base, len, source_stag: stag, source_to: to };
                self.reads.push_read(&request, Pending { sink: Some(sink_stag) }).unwrap();
                Outbound::ReadRequest(request)
            }
            Work::Atomic { stag, to, operation } => {
                let request = AtomicRequest { id: self.next_stag, stag, to, operation };
                self.next_stag += 1;
                self.reads.push_atomic(&request, Pending { sink: None }).unwrap();
                Outbound::AtomicRequest(request)
            }
            Work::Immediate { data, solicited } => Outbound::Immediate { data, solicited },
        };
        self.sender.begin(message).unwrap();
        true
    }

    fn fail(&mut self, terminate: Terminate) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(terminate);
        // The message under way is broken off; the Terminate is the last thing that is sent.
        self.sender.abandon();
        self.answering = false;
        self.outgoing.clear();
        self.sender.begin(Outbound::Terminate(terminate)).unwrap();
    }

    /// Takes bytes from the peer.
    pub(crate) fn receive(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.input.extend(bytes);
        while self.failed.is_none() && self.advance() {}
    }

    /// Bytes of an incomplete FPDU.
    pub(crate) fn unfinished(&self) -> usize {
        self.input.len() + self.placing.is_some() as usize
    }

    fn advance(&mut self) -> bool {
        if let Some(placing) = self.placing.take() {
            return self.place(placing);
        }
        let step = if self.receiver.is_streaming() {
            self.receiver.next(&self.input)
        } else {
            self.receiver.next_checked(&mut self.input)
        };
        match step {
            Ok(Step::Need(n)) => {
                assert!(n > self.input.len());
                false
            }
            Ok(Step::Segment(arrival)) => {
                self.silent &= !self.receiver.has_received();
                match self.target(&arrival) {
                    Ok(target) => {
                        self.input.drain(..arrival.head_len);
                        self.placing = Some(Placing { arrival, target, done: 0 });
                    }
                    Err(fault) => self.fail(arrival.terminate(fault)),
                }
                true
            }
            Err(error) => {
                self.silent &= !self.receiver.has_received();
                self.fail(error.terminate);
                false
            }
        }
    }

    /// Where the payload goes: all checks of keys and bounds, before the first byte is placed.
    fn target(&mut self, arrival: &Arrival) -> Result<Target, Fault> {
        let len = arrival.payload_len;
        match arrival.segment {
            Segment::Write { .. } if len == 0 => Ok(Target::Nowhere),
            Segment::Write { stag, to, .. } => {
                let region = self.regions.get(&stag).ok_or(Fault::InvalidStag)?;
                let start = region.range(to, len)?.start;
                if region.write { Ok(Target::Region { stag, start }) } else { Err(Fault::AccessRights) }
            }
            Segment::ReadResponse { stag, to, last } => {
                let placement = self.reads.read_response(stag, to, len, last)?;
                Ok(match self.reads.front().unwrap().sink {
                    Some(stag) => Target::Region { stag, start: placement.offset as usize },
                    None => Target::Nowhere,
                })
            }
            Segment::Send { mo, first, .. } => {
                let room = *self.receives.front().ok_or(Fault::NoBuffer)?;
                if first {
                    self.receiving.clear();
                }
                if mo as usize + len > room {
                    return Err(Fault::MessageTooLong);
                }
                self.receiving.resize(mo as usize + len, 0);
                Ok(Target::Receive { start: mo as usize })
            }
            _ => Ok(Target::Nowhere),
        }
    }

    /// Places what is there of a payload; true if the FPDU is complete.
    fn place(&mut self, mut placing: Placing) -> bool {
        let arrival = &placing.arrival;
        let len = self.input.len().min(arrival.payload_len - placing.done);
        let piece = self.input.drain(..len);
        match placing.target {
            Target::Region { stag, start } => {
                let region = self.regions.get_mut(&stag).unwrap();
                region.bytes[start + placing.done..][..len].copy_from_slice(piece.as_slice());
            }
            Target::Receive { start } => {
                self.receiving[start + placing.done..][..len].copy_from_slice(piece.as_slice());
            }
            Target::Nowhere => {}
        }
        drop(piece);
        placing.done += len;
        if placing.done < arrival.payload_len || self.input.len() < arrival.trailer_len {
            self.placing = Some(placing);
            return false;
        }
        self.input.drain(..arrival.trailer_len);
        if let Err(fault) = self.deliver(&placing.arrival) {
            self.fail(placing.arrival.terminate(fault));
        }
        true
    }

    /// An FPDU is there and in its place.
    fn deliver(&mut self, arrival: &Arrival) -> Result<(), Fault> {
        match arrival.segment {
            Segment::Write { .. }
            | Segment::ReadResponse { last: false, .. }
            | Segment::Send { last: false, .. } => {}
            Segment::ReadResponse { .. } => {
                if let Some(stag) = self.reads.pop().unwrap().sink {
                    let data = self.regions.remove(&stag).unwrap().bytes;
                    self.events.push(Event::ReadDone { data });
                }
            }
            Segment::Send { invalidate, solicited, .. } => {
                if let Some(stag) = invalidate {
                    self.regions.remove(&stag).ok_or(Fault::CannotInvalidate)?;
                }
                self.receives.pop_front();
                let payload = std::mem::take(&mut self.receiving);
                self.events.push(Event::Received { payload, invalidated: invalidate, solicited });
            }
            Segment::Immediate { data, solicited, .. } => {
                self.receives.pop_front().ok_or(Fault::NoBuffer)?;
                self.events.push(Event::Immediate { data, solicited });
            }
            Segment::ReadRequest { msn, request } => {
                self.inbound.push(InboundRequest::Read { msn, request })?
            }
            Segment::AtomicRequest { msn, request } => {
                self.inbound.push(InboundRequest::Atomic { msn, request, original: 0 })?;
            }
            Segment::AtomicResponse { response, .. } => {
                self.reads.atomic_response(&response)?;
                self.reads.pop();
                self.events.push(Event::AtomicDone { original: response.original });
            }
            Segment::Terminate(terminate) => self.events.push(Event::Terminated(terminate)),
            Segment::ReadyToReceive => self.events.push(Event::Ready),
        }
        Ok(())
    }
}

/// A frame as a gathered write makes it.
fn plain(fpdu: &Fpdu, payload: &[u8], frame: &mut Vec<u8>) {
    frame.extend_from_slice(fpdu.head());
    frame.extend_from_slice(payload);
    frame.extend_from_slice(&adverb_proto::iwarp::ZERO_TRAILER[..fpdu.trailer_len()]);
    if let Some(whole) = fpdu.without_payload() {
        assert_eq!(whole, frame);
    }
}
