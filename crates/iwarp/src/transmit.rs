//! Sending: work requests and the peer's reads become frames, and frames leave in gathered writes.
//!
//! A *burst* is what goes to the socket in one call: the heads of its frames (and small payloads, and with CRC all that a program could
//! change meanwhile) lie in one buffer, larger payloads stay where they are, and their keys are opened for the call alone. When the socket
//! takes only part, the burst stays and goes on later.

use crate::endpoint::{Cause, Endpoint, ReadSink};
use crate::kept::{self, Kept};
use crate::lock;
use crate::socket::{Socket, would_block};
use adverb_core::engine::Engine;
use adverb_core::log;
use adverb_core::memory::{Access, AccessError, Span};
use adverb_core::qp::{PayloadError, SendCursor, SendWork};
use adverb_core::random;
use adverb_core::request::{Opcode, SendFlags, Sge, Status};
use adverb_proto::iwarp::{
    AtomicOperation, AtomicRequest, AtomicResponse, Fault, Fpdu, InboundRequest, Outbound, OutstandingReads,
    ReadRequest, Sender, Terminate, ZERO_TRAILER,
};
use adverb_proto::keyed;
use arrayvec::ArrayVec;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most frames of a burst.
const FRAMES: usize = 16;
/// A burst is full once it has this many bytes.
const BURST: usize = 256 << 10;
/// Payloads up to this length are copied beside their heads: cheaper than one more part to gather.
const SMALL: usize = 256;
/// Most parts of one gathered write: head and payload of each frame, the trailer of the last, and more elements of some.
const PARTS: usize = 64;

/// Where the payload of the current message comes from.
#[derive(Clone, Copy, Debug)]
enum Payload {
    /// It has none.
    None,
    /// A work request's elements or inline data.
    Request(SendWork),
    /// The region that the peer reads.
    Read(InboundRequest, ReadRequest),
}

/// What is done once a frame has left.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Complete(u64),
}

struct Frame {
    /// In the burst's bytes: head, and payload if it was copied.
    head: (u32, u32),
    /// Payload that stays where it is: source, offset, length.
    payload: Option<(Payload, u32, u32)>,
    /// In the burst's bytes: what follows the payload.
    tail: (u32, u32),
    then: Then,
}

impl Frame {
    fn len(&self) -> usize {
        (self.head.1 - self.head.0) as usize
            + self.payload.map_or(0, |(_, _, len)| len as usize)
            + (self.tail.1 - self.tail.0) as usize
    }
}

#[derive(Default)]
struct Burst {
    bytes: Vec<u8>,
    frames: ArrayVec<Frame, FRAMES>,
    total: usize,
    sent: usize,
    /// Frames whose sending was followed up.
    followed: usize,
    /// Bytes of those frames.
    followed_bytes: usize,
}

thread_local! {
    /// A burst for reuse: only one that could not be sent whole belongs to its connection.
    static SPARE: Cell<Option<Box<Burst>>> = const { Cell::new(None) };
}

fn take_burst() -> Box<Burst> {
    SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()
}

fn give_burst(mut burst: Box<Burst>) {
    burst.bytes.clear();
    burst.frames.clear();
    (burst.total, burst.sent, burst.followed, burst.followed_bytes) = (0, 0, 0, 0);
    // A thread that is ending has no such place any more; the burst is freed then.
    let _ = SPARE.try_with(|spare| spare.set(Some(burst)));
}

/// The sending side of a connection.
pub(crate) struct Tx {
    socket: Arc<Socket>,
    sender: Sender,
    cursor: SendCursor,
    /// Source of the message that the sender is in the middle of, and what its last frame completes.
    current: (Payload, Then),
    /// The immediate data that follow the current message.
    immediate: Option<u32>,
    unsent: Option<Box<Burst>>,
    /// The socket was full; the background thread says when it is not.
    full: bool,
    /// Whether reads and atomics may be sent at all (ORD is not zero).
    may_read: bool,
    /// Whether a response goes first, so that neither side starves.
    responses_first: bool,
    closing: bool,
    /// The initiator's indication goes out once more.
    indicate_again: bool,
    /// Whether the burst being filled has frames, whose memory is opened only when they are sent.
    filling: bool,
    /// The next request waits for them to be sent.
    held: bool,
    /// What sink STags come from, and how many have: each is told to the peer, and none tells the next.
    sink_key: keyed::Key,
    sinks: u64,
    /// Bytes of the current message that frames have been made of.
    framed: u32,
    /// What was taken from memory for the peer's reads before it is sent.
    kept: Kept,
}

impl Tx {
    pub(crate) fn new(socket: Arc<Socket>, sender: Sender, may_read: bool) -> Self {
        Self {
            socket,
            sender,
            cursor: SendCursor::default(),
            current: (Payload::None, Then::Nothing),
            immediate: None,
            unsent: None,
            full: false,
            may_read,
            responses_first: true,
            closing: false,
            indicate_again: false,
            filling: false,
            held: false,
            sink_key: [random::word(), random::word()],
            sinks: 0,
            framed: 0,
            kept: Kept::default(),
        }
    }

    /// Puts the initiator's indication in front of everything.
    pub(crate) fn indicate(&mut self, message: Outbound, reads: &mut OutstandingReads<ReadSink>) {
        if let Outbound::ReadRequest(request) = &message {
            let _ = reads.push_read(request, ReadSink { sequence: None, sge: Sge::default() });
        }
        let _ = self.sender.begin(message);
    }

    /// Puts a zero-length Write between two messages, as the initiator's indication is one.
    pub(crate) fn indicate_again(&mut self) {
        self.indicate_again = true;
    }

    /// The socket may have room again. Returns whether anything waited for that.
    pub(crate) fn has_room(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }

    /// Ends the connection as soon as everything is sent.
    pub(crate) fn close_when_idle(&mut self) {
        self.closing = true;
        // Drain with patience: a full socket may have room by now.
        self.full = false;
    }

    /// The first request that has not been begun.
    pub(crate) fn next(&self) -> u64 {
        self.cursor.sequence()
    }

    /// Sends what can be sent now.
    pub(crate) fn run(&mut self, endpoint: &Endpoint) -> Result<(), Cause> {
        if self.full || !endpoint.may_send.load(Ordering::SeqCst) {
            if self.closing && !endpoint.may_send.load(Ordering::SeqCst) {
                return Err(Cause::Here);
            }
            return Ok(());
        }
        loop {
            let mut burst = match self.unsent.take() {
                Some(burst) => burst,
                None => take_burst(),
            };
            let mut failure = None;
            let mut last = false;
            if burst.frames.is_empty() {
                match self.fill(endpoint, &mut burst) {
                    Ok(all) => last = all && !self.closing,
                    Err(cause) => failure = Some(cause),
                }
                if burst.frames.is_empty() {
                    give_burst(burst);
                    return match failure {
                        Some(cause) => Err(cause),
                        None if self.closing => Err(Cause::Here),
                        None => Ok(()),
                    };
                }
            }
            let outcome = self.send(endpoint, &mut burst);
            if burst.sent < burst.total {
                self.unsent = Some(burst);
            } else {
                give_burst(burst);
                self.forget_kept(endpoint);
            }
            outcome?;
            if let Some(cause) = failure {
                return Err(cause);
            }
            endpoint.is_full.store(self.full, Ordering::Relaxed);
            // Full: the background thread is told when there is room. Last: whoever has posted meanwhile has rung.
            if self.full || last {
                return Ok(());
            }
        }
    }

    /// Sends a Terminate behind what is on its way, as far as the socket takes it, and nothing after.
    // RFC5040-5.4-4
    pub(crate) fn send_terminate(&mut self, endpoint: &Endpoint, terminate: Terminate) {
        let mut burst = self.unsent.take().unwrap_or_else(take_burst);
        if burst.sent < burst.total {
            let _ = self.send(endpoint, &mut burst);
        }
        if burst.sent < burst.total {
            // The peer is in the middle of a frame that we cannot complete: a Terminate would be taken for its payload.
            return;
        }
        burst.bytes.clear();
        burst.frames.clear();
        (burst.total, burst.sent, burst.followed, burst.followed_bytes) = (0, 0, 0, 0);
        self.sender.abandon();
        if self.sender.begin(Outbound::Terminate(terminate)).is_ok()
            && let Some(fpdu) = self.sender.next_fpdu()
        {
            self.sender.seal(&fpdu, &[], &mut burst.bytes);
            let _ = self.socket.send_all(&burst.bytes);
            endpoint.queues.counters.tx_frames.add(1);
        }
        give_burst(burst);
    }

    /// Fills a burst. Returns whether it holds all that there is to send. An error ends the connection once the frames before it are sent.
    fn fill(&mut self, endpoint: &Endpoint, burst: &mut Burst) -> Result<bool, Cause> {
        while burst.frames.len() < FRAMES && burst.total < BURST {
            self.filling = !burst.frames.is_empty();
            if !self.sender.is_busy() && !self.begin_next(endpoint)? {
                return Ok(!std::mem::take(&mut self.held));
            }
            if let Some(fpdu) = self.sender.next_fpdu() {
                self.add(endpoint, burst, &fpdu)?;
            }
        }
        Ok(false)
    }

    /// Begins the next message, if there is one that may go.
    fn begin_next(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
        if let Some(data) = self.immediate.take() {
            let Then::Complete(sequence) = self.current.1 else { return Ok(false) };
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&data.to_ne_bytes());
            let solicited = endpoint.queues.send.read(sequence).flags.contains(SendFlags::SOLICITED);
            return self.begin(
                endpoint,
                Outbound::Immediate { data: bytes, solicited },
                Payload::None,
                Then::Complete(sequence),
            );
        }
        if std::mem::take(&mut self.indicate_again) {
            return self.begin(
                endpoint,
                Outbound::Write { stag: 0, to: 0, len: 0 },
                Payload::None,
                Then::Nothing,
            );
        }
        self.responses_first = !self.responses_first;
        if self.responses_first && self.begin_response(endpoint)? {
            return Ok(true);
        }
        Ok(self.begin_request(endpoint)? || self.begin_response(endpoint)?)
    }

    fn begin(
        &mut self,
        endpoint: &Endpoint,
        message: Outbound,
        payload: Payload,
        then: Then,
    ) -> Result<bool, Cause> {
        log!(Packets, "queue pair {:#x} -> {message}", endpoint.queues.number);
        match self.sender.begin(message) {
            Ok(()) => {
                self.current = (payload, then);
                self.framed = 0;
                Ok(true)
            }
            // Refused only in ways that were ruled out before the request was queued, or after the end.
            Err(_) => match then {
                Then::Complete(sequence) => {
                    Err(Cause::Request { sequence, status: Status::LocalQpOperation })
                }
                Then::Nothing => Err(Cause::Here),
            },
        }
    }

    /// Answers the peer's oldest read or atomic.
    // RFC5040-5.2-1, RFC5040-5.2.1-7, RFC5040-5.2.2-4, RFC7306-5.2.1-8, RFC7306-5.2.2-6
    fn begin_response(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
        if !endpoint.has_inbound.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let inbound = {
            let mut waiting = lock(&endpoint.inbound);
            let first = waiting.pop();
            endpoint.has_inbound.store(!waiting.is_empty(), Ordering::SeqCst);
            first
        };
        let Some(inbound) = inbound else { return Ok(false) };
        let counters = endpoint.queues.counters;
        match inbound {
            InboundRequest::Read { request, .. } => {
                counters.rx_reads.add(1);
                counters.tx_bytes.add(request.len.into());
                let message = Outbound::ReadResponse {
                    sink_stag: request.sink_stag,
                    sink_to: request.sink_to,
                    len: request.len,
                };
                self.begin(endpoint, message, Payload::Read(inbound, request), Then::Nothing)
            }
            InboundRequest::Atomic { request, original, .. } => {
                let response = AtomicResponse { id: request.id, original };
                self.begin(endpoint, Outbound::AtomicResponse(response), Payload::None, Then::Nothing)
            }
        }
    }

    /// Takes the next work request.
    // RFC5040-5.5-4, RFC5040-5.1-3, RFC5040-5.2.1-4, RFC5040-5.3-4, RFC5041-5.3-1, RFC7306-5.2.1-6,
    // RFC7306-6.3-5
    fn begin_request(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
        let queues = &endpoint.queues;
        loop {
            let Some(work) = queues.send.peek(&self.cursor) else { return Ok(false) };
            let sequence = work.sequence;
            let fail = |status| Err(Cause::Request { sequence, status });
            // More than the peer keeps of its own accord.
            // PRACTICE-ORDER-2
            if work.opcode != Opcode::Read && endpoint.reading.load(Ordering::Relaxed) > kept::MOST {
                return Ok(false);
            }
            // RFC5040-5.5-9: a fence waits for the reads and atomics before it.
            if work.flags.contains(SendFlags::FENCE) && !lock(&endpoint.reads).is_empty() {
                return Ok(false);
            }
            let then = Then::Complete(sequence);
            let solicited = work.flags.contains(SendFlags::SOLICITED);
            let message = match work.opcode {
                Opcode::Send => Outbound::Send { len: work.length, invalidate: None, solicited },
                Opcode::SendWithInvalidate => {
                    Outbound::Send { len: work.length, invalidate: Some(work.immediate), solicited }
                }
                Opcode::Write | Opcode::WriteWithImmediate => {
                    Outbound::Write { stag: work.rkey, to: work.remote_address, len: work.length }
                }
                Opcode::LocalInvalidate | Opcode::BindWindow => {
                    // What was posted before it may use the key.
                    if self.filling {
                        self.held = true;
                        return Ok(false);
                    }
                    let status = queues.execute_locally(&work);
                    if status != Status::Success {
                        return fail(status);
                    }
                    self.cursor.advance();
                    queues.complete_send(sequence, Status::Success);
                    continue;
                }
                Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {
                    if !self.may_read || work.sges > 1 {
                        return fail(Status::LocalQpOperation);
                    }
                    self.sinks += 1;
                    let nonce = keyed::word(self.sink_key, self.sinks);
                    let mut reads = lock(&endpoint.reads);
                    // RFC5040-6.1-3
                    if reads.is_full() {
                        return Ok(false);
                    }
                    let message = match read_message(endpoint, &work, &mut reads, nonce) {
                        Ok(message) => message,
                        Err(status) => return fail(status),
                    };
                    drop(reads);
                    self.cursor.advance();
                    queues.counters.tx_messages.add(1);
                    return self.begin(endpoint, message, Payload::None, Then::Nothing);
                }
                Opcode::SendWithImmediate | Opcode::Flush | Opcode::AtomicWrite => {
                    return fail(Status::LocalQpOperation);
                }
            };
            // Before the first frame leaves, every element is known to be good; what is copied at once is checked by the copy.
            let checked_by_copy = work.length as usize <= SMALL;
            for index in 0..if checked_by_copy { 0 } else { work.sges } {
                if open_element(
                    endpoint,
                    queues.send.sge(&work, index),
                    0,
                    None,
                    Access::empty(),
                    queues.domain,
                )
                .is_err()
                {
                    return fail(Status::LocalProtection);
                }
            }
            self.cursor.advance();
            queues.counters.tx_messages.add(1);
            queues.counters.tx_bytes.add(work.length.into());
            let payload = if work.length == 0 { Payload::None } else { Payload::Request(work) };
            let begun = self.begin(endpoint, message, payload, then)?;
            if work.opcode == Opcode::WriteWithImmediate {
                self.immediate = Some(work.immediate);
            }
            return Ok(begun);
        }
    }

    /// Takes the bytes of all reads of the peer that have not been handed to the system.
    // PRACTICE-ORDER-2
    pub(crate) fn keep_reads(&mut self, endpoint: &Endpoint) {
        let Self { kept, unsent, .. } = self;
        let mut take = |inbound: &InboundRequest, from: u32| {
            let InboundRequest::Read { msn, request } = inbound else { return };
            kept.take(*msn, request, from, |bytes| {
                let span = open_source(endpoint, request, from, bytes.len() as u32);
                span.is_ok_and(|span| span.read(0, bytes).is_ok())
            });
        };
        // Each read from the first of its frames that have not left whole on.
        let frames = unsent.iter().flat_map(|burst| &burst.frames[burst.followed..]);
        for (payload, offset, _) in frames.filter_map(|frame| frame.payload) {
            if let Payload::Read(inbound, _) = payload {
                take(&inbound, offset);
            }
        }
        if let (Payload::Read(inbound, _), true) = (self.current.0, self.sender.is_busy()) {
            take(&inbound, self.framed);
        }
        lock(&endpoint.inbound).iter().for_each(|inbound| take(inbound, 0));
    }

    /// Everything that frames have been made of has left.
    fn forget_kept(&mut self, endpoint: &Endpoint) {
        if self.kept.is_empty() {
            return;
        }
        let current = match self.current.0 {
            Payload::Read(InboundRequest::Read { msn, .. }, _) if self.sender.is_busy() => Some(msn),
            _ => None,
        };
        let waiting = lock(&endpoint.inbound);
        let waits = |number: u32| {
            waiting
                .iter()
                .any(|inbound| matches!(inbound, InboundRequest::Read { msn, .. } if *msn == number))
        };
        self.kept.retain(|number| current == Some(number) || waits(number));
    }

    /// Puts one frame into the burst.
    fn add(&mut self, endpoint: &Endpoint, burst: &mut Burst, fpdu: &Fpdu) -> Result<(), Cause> {
        let (payload, then) = self.current;
        // The immediate data, if any, carry the completion.
        let then = if fpdu.is_last() && self.immediate.is_none() { then } else { Then::Nothing };
        let start = burst.bytes.len();
        let length = fpdu.payload_len();
        self.framed = fpdu.payload().end as u32;
        let kept = &self.kept;
        let failed = |fault: Failure| fault.cause(&payload, fpdu.payload().start as u32);
        // What would change under the checksum is checksummed as a copy.
        let steady = if length > SMALL { self.steady_trailer(endpoint, &payload, fpdu) } else { None };
        if !self.sender.is_plain() && steady.is_none() {
            let room = start + self.sender.sealed_len(fpdu);
            burst.bytes.resize(room, 0);
            let sealed = self.sender.seal_with(fpdu, &mut burst.bytes[start..], |offset, piece| {
                copy_payload(endpoint, kept, &payload, offset as u32, piece)
            });
            if let Err(fault) = sealed {
                burst.bytes.truncate(start);
                return Err(failed(fault));
            }
            let head = (start as u32, room as u32);
            burst.frames.push(Frame { head, payload: None, tail: (0, 0), then });
        } else {
            burst.bytes.extend_from_slice(fpdu.head());
            let kept = length > SMALL;
            if !kept && length > 0 {
                let from = burst.bytes.len();
                burst.bytes.resize(from + length, 0);
                let offset = fpdu.payload().start as u32;
                if let Err(fault) =
                    copy_payload(endpoint, &self.kept, &payload, offset, &mut burst.bytes[from..])
                {
                    burst.bytes.truncate(start);
                    return Err(failed(fault));
                }
            }
            let middle = burst.bytes.len();
            burst.bytes.extend_from_slice(&steady.unwrap_or(ZERO_TRAILER)[..fpdu.trailer_len()]);
            let end = burst.bytes.len();
            burst.frames.push(Frame {
                head: (start as u32, middle as u32),
                payload: kept.then_some((payload, fpdu.payload().start as u32, length as u32)),
                tail: (middle as u32, end as u32),
                then,
            });
        }
        burst.total += burst.frames.last().map_or(0, Frame::len);
        Ok(())
    }

    /// The trailer with the checksum of a frame whose payload can be sent from where it lies.
    fn steady_trailer(
        &self,
        endpoint: &Endpoint,
        payload: &Payload,
        fpdu: &Fpdu,
    ) -> Option<[u8; ZERO_TRAILER.len()]> {
        let mut checksum = self.sender.checksum(fpdu)?;
        let Payload::Request(work) = payload else { return None };
        if work.flags.contains(SendFlags::INLINE) {
            return None;
        }
        let add = |span: Span<'static>| {
            let Some(bytes) = span.steady() else { return Ok(false) };
            checksum.update(bytes);
            Ok(true)
        };
        let all = each_element(endpoint, work, fpdu.payload().start as u32, fpdu.payload_len() as u32, add);
        matches!(all, Ok(true)).then(|| checksum.trailer())
    }

    /// Writes the burst to the socket until it is sent or the socket is full, and follows up the frames that have left.
    fn send(&mut self, endpoint: &Endpoint, burst: &mut Burst) -> Result<(), Cause> {
        let counters = endpoint.queues.counters;
        while burst.sent < burst.total {
            let mut spans = ArrayVec::<Span<'static>, PARTS>::new();
            let mut parts = ArrayVec::<libc::iovec, PARTS>::new();
            gather(endpoint, &self.kept, burst, &mut parts, &mut spans)?;
            let wanted: usize = parts.iter().map(|part| part.iov_len).sum();
            // The peer may answer before this call returns.
            // PRACTICE-ORDER-1
            let round = endpoint.rounds.begin();
            let result = self.socket.send(&parts);
            // Not dropped: that would copy the whole array first.
            spans.clear();
            counters.tx_calls.add(1);
            match &result {
                &Ok(sent) => {
                    burst.sent += sent;
                    follow_up(endpoint, burst);
                    endpoint.rounds.end(round);
                    if sent < wanted {
                        // Full, or a page of the payload is gone: the next call tells which.
                        continue;
                    }
                }
                Err(_) => endpoint.rounds.end(round),
            }
            match result {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if would_block(&error) => {
                    // Said before the last attempt: room that comes after it is an edge at which the background thread finds this said.
                    if !endpoint.is_full.swap(true, Ordering::SeqCst) {
                        continue;
                    }
                    self.full = true;
                    return Ok(());
                }
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    let frame = burst.frames.get(burst.followed).and_then(|frame| frame.payload);
                    return Err(match frame {
                        Some((payload, offset, _)) => Failure::Memory.cause(&payload, offset),
                        None => Cause::Lost(error),
                    });
                }
                Err(error) => return Err(Cause::Lost(error)),
            }
        }
        Ok(())
    }
}

/// Completes what the frames that have left complete.
// RFC5040-5.5-5
fn follow_up(endpoint: &Endpoint, burst: &mut Burst) {
    while let Some(frame) = burst.frames.get(burst.followed) {
        let end = burst.followed_bytes + frame.len();
        if end > burst.sent {
            break;
        }
        if let Then::Complete(sequence) = frame.then {
            endpoint.queues.complete_send(sequence, Status::Success);
        }
        endpoint.queues.counters.tx_frames.add(1);
        burst.followed += 1;
        burst.followed_bytes = end;
    }
}

/// Collects the unsent rest of the burst, as far as the parts suffice. The spans stay open as long as they live.
fn gather(
    endpoint: &Endpoint,
    kept: &Kept,
    burst: &Burst,
    parts: &mut ArrayVec<libc::iovec, PARTS>,
    spans: &mut ArrayVec<Span<'static>, PARTS>,
) -> Result<(), Cause> {
    let mut skip = burst.sent - burst.followed_bytes;
    let own = |parts: &mut ArrayVec<libc::iovec, PARTS>, (from, to): (u32, u32), skip: &mut usize| {
        let bytes = &burst.bytes[from as usize..to as usize];
        let passed = bytes.len().min(*skip);
        *skip -= passed;
        push_part(parts, bytes[passed..].as_ptr() as usize, bytes.len() - passed)
    };
    for frame in &burst.frames[burst.followed..] {
        if !own(parts, frame.head, &mut skip) {
            return Ok(());
        }
        if let Some((payload, offset, length)) = frame.payload {
            let passed = (length as usize).min(skip);
            skip -= passed;
            let (offset, length) = (offset + passed as u32, length - passed as u32);
            if length > 0 {
                let complete = match &payload {
                    Payload::Request(work) if work.flags.contains(SendFlags::INLINE) => {
                        let address = endpoint.queues.send.inline_address(work) as usize + offset as usize;
                        push_part(parts, address, length as usize)
                    }
                    Payload::Request(work) => each_element(endpoint, work, offset, length, |span| {
                        let part = span.iovec(0, span.len());
                        let pushed = spans.try_push(span).is_ok()
                            && push_part(parts, part.iov_base as usize, part.iov_len);
                        Ok(pushed)
                    })
                    .map_err(|fault| fault.cause(&payload, offset))?,
                    Payload::Read(InboundRequest::Read { msn, .. }, _)
                        if let Some(bytes) = kept.find(*msn, offset, length as usize) =>
                    {
                        push_part(parts, bytes.as_ptr() as usize, bytes.len())
                    }
                    Payload::Read(_, request) => {
                        let span = open_source(endpoint, request, offset, length)
                            .map_err(|fault| fault.cause(&payload, offset))?;
                        let part = span.iovec(0, span.len());
                        spans.try_push(span).is_ok() && push_part(parts, part.iov_base as usize, part.iov_len)
                    }
                    Payload::None => true,
                };
                if !complete {
                    return Ok(());
                }
            }
        }
        if !own(parts, frame.tail, &mut skip) {
            return Ok(());
        }
    }
    Ok(())
}

/// Appends a part, joined to the last one if it follows it in memory. False: there is no place left.
fn push_part(parts: &mut ArrayVec<libc::iovec, PARTS>, address: usize, length: usize) -> bool {
    if length == 0 {
        return true;
    }
    if let Some(last) = parts.last_mut()
        && last.iov_base as usize + last.iov_len == address
    {
        last.iov_len += length;
        return true;
    }
    parts.try_push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length }).is_ok()
}

/// Why payload cannot be had.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Key(AccessError),
    Memory,
}

impl Failure {
    /// What that means for the connection, when it happens at `offset` of the message.
    fn cause(self, payload: &Payload, offset: u32) -> Cause {
        match payload {
            Payload::Request(work) => {
                Cause::Request { sequence: work.sequence, status: Status::LocalProtection }
            }
            Payload::Read(inbound, _) => {
                let fault = match self {
                    Self::Key(error) => fault_of(error),
                    Self::Memory => Fault::BaseBounds,
                };
                Cause::Fault(fault, inbound.terminate(fault, offset))
            }
            Payload::None => Cause::Here,
        }
    }
}

/// The protocol's word for a refusal.
pub(crate) fn fault_of(error: AccessError) -> Fault {
    match error {
        AccessError::Key => Fault::InvalidStag,
        AccessError::ProtectionDomain => Fault::StagNotAssociated,
        AccessError::Bounds => Fault::BaseBounds,
        AccessError::Wrap => Fault::ToWrap,
        AccessError::Rights => Fault::AccessRights,
    }
}

/// Opens `length` bytes (all that is left, if not given) of an element from `offset` on.
pub(crate) fn open_element(
    endpoint: &Endpoint,
    sge: Sge,
    offset: u32,
    length: Option<u32>,
    rights: Access,
    domain: u32,
) -> Result<Option<Span<'static>>, AccessError> {
    if sge.length == 0 {
        return Ok(None);
    }
    let length = length.unwrap_or(sge.length - offset);
    let address = sge.address.checked_add(offset.into()).ok_or(AccessError::Wrap)?;
    let engine: &'static Engine = endpoint.queues.engine;
    engine.keys.open_span(sge.lkey, address, length.into(), rights, domain).map(Some)
}

/// Opens the elements of a request that hold `length` bytes from `offset` on, in order, until `take` says no. Returns what it said last.
fn each_element(
    endpoint: &Endpoint,
    work: &SendWork,
    mut offset: u32,
    mut length: u32,
    mut take: impl FnMut(Span<'static>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    for index in 0..work.sges {
        if length == 0 {
            break;
        }
        let sge = endpoint.queues.send.sge(work, index);
        if offset >= sge.length {
            offset -= sge.length;
            continue;
        }
        let here = (sge.length - offset).min(length);
        if let Some(span) =
            open_element(endpoint, sge, offset, Some(here), Access::empty(), endpoint.queues.domain)
                .map_err(Failure::Key)?
            && !take(span)?
        {
            return Ok(false);
        }
        length -= here;
        offset = 0;
    }
    Ok(true)
}

fn open_source(
    endpoint: &Endpoint,
    request: &ReadRequest,
    offset: u32,
    length: u32,
) -> Result<Span<'static>, Failure> {
    let address = request.source_to.wrapping_add(offset.into());
    endpoint
        .queues
        .open_for_peer(request.source_stag, address, length.into(), Access::REMOTE_READ)
        .map_err(Failure::Key)
}

/// Copies payload of the current message from `offset` on.
fn copy_payload(
    endpoint: &Endpoint,
    kept: &Kept,
    payload: &Payload,
    offset: u32,
    target: &mut [u8],
) -> Result<(), Failure> {
    match payload {
        Payload::None => Ok(()),
        Payload::Request(work) => endpoint.queues.gather(work, offset, target).map_err(|error| match error {
            PayloadError::Key(error) => Failure::Key(error),
            PayloadError::Fault | PayloadError::Room | PayloadError::Missing(_) => Failure::Memory,
        }),
        Payload::Read(InboundRequest::Read { msn, .. }, _)
            if let Some(bytes) = kept.find(*msn, offset, target.len()) =>
        {
            target.copy_from_slice(bytes);
            Ok(())
        }
        Payload::Read(_, request) => open_source(endpoint, request, offset, target.len() as u32)?
            .read(0, target)
            .map_err(|_| Failure::Memory),
    }
}

/// The request of a read or atomic, entered among the outstanding ones.
fn read_message(
    endpoint: &Endpoint,
    work: &SendWork,
    reads: &mut OutstandingReads<ReadSink>,
    nonce: u64,
) -> Result<Outbound, Status> {
    let sge = if work.sges == 0 { Sge::default() } else { endpoint.queues.send.sge(work, 0) };
    open_element(endpoint, sge, 0, None, Access::LOCAL_WRITE, endpoint.queues.domain)
        .map_err(|_| Status::LocalProtection)?;
    let sink = ReadSink { sequence: Some(work.sequence), sge };
    // A sink STag for this response alone: unpredictable, and never a key of the table (RFC5041-8.2-2, RFC5040-8.1.1-2).
    if work.opcode == Opcode::Read {
        let request = ReadRequest {
            sink_stag: nonce as u32,
            sink_to: nonce >> 32,
            len: work.length,
            source_stag: work.rkey,
            source_to: work.remote_address,
        };
        reads.push_read(&request, sink).map_err(|_| Status::LocalQpOperation)?;
        endpoint.reading.fetch_add(work.length.into(), Ordering::Relaxed);
        return Ok(Outbound::ReadRequest(request));
    }
    if work.length != 8 {
        return Err(Status::LocalLength);
    }
    let operation = match work.opcode {
        Opcode::FetchAdd => AtomicOperation::FetchAdd { add: work.compare_add, mask: 0 },
        _ => AtomicOperation::CompareSwap {
            compare: work.compare_add,
            compare_mask: u64::MAX,
            swap: work.swap,
            swap_mask: u64::MAX,
        },
    };
    let request = AtomicRequest { id: nonce as u32, stag: work.rkey, to: work.remote_address, operation };
    reads.push_atomic(&request, sink).map_err(|_| Status::LocalQpOperation)?;
    Ok(Outbound::AtomicRequest(request))
}

/// Does an atomic operation of the peer.
// RFC7306-5-1
pub(crate) fn execute(endpoint: &Endpoint, request: &AtomicRequest) -> Result<u64, Fault> {
    let span = endpoint
        .queues
        .open_for_peer(request.stag, request.to, 8, Access::REMOTE_ATOMIC)
        .map_err(fault_of)?;
    // RFC7306-5.1.1-1, RFC7306-5.1.2-2
    if !span.address().is_multiple_of(8) {
        return Err(Fault::CatastrophicStream);
    }
    let memory = |_| Fault::BaseBounds;
    match request.operation {
        AtomicOperation::FetchAdd { add, mask: 0 } => span.fetch_add(add).map_err(memory),
        AtomicOperation::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX } => {
            span.compare_swap(compare, swap).map_err(memory)
        }
        // With masks: a loop of compare-and-swap does it in one atomic step.
        operation => {
            let mut seen = span.fetch_add(0).map_err(memory)?;
            loop {
                let before = span.compare_swap(seen, operation.apply(seen)).map_err(memory)?;
                if before == seen {
                    return Ok(before);
                }
                seen = before;
            }
        }
    }
}
