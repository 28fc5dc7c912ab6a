//! Receiving: the byte stream is taken apart and placed.
//!
//! Without CRC, what follows a head is read from the socket straight to where it belongs, all but the last few bytes, which are copied, so
//! that the end of a message never becomes visible before its beginning. With CRC or markers a frame is collected and checked first, and
//! then copied. What is left over between two calls is kept by the connection; the buffer itself is the thread's.

use crate::endpoint::{By, Cause, Endpoint, ReadSink, Received};
use crate::lock;
use crate::socket::{Socket, would_block};
use crate::transmit::{execute, fault_of, open_element};
use adverb_core::log;
use adverb_core::memory::{Access, Span};
use adverb_core::qp::ReceiveWork;
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Status};
use adverb_proto::iwarp::{Arrival, Fault, InboundRequest, ReadRequest, Receiver, Segment, Step};
use arrayvec::ArrayVec;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The thread's buffer: room for what was left over, a whole frame with markers, and more.
const BUFFER: usize = 192 << 10;
/// Bytes asked for when the next thing is a head and messages are small: as many as gathered messages bring together.
const ASK: usize = 64 << 10;
/// Payloads of this length are large, and read straight to their place.
const LARGE: usize = 16 << 10;
/// Bytes asked for behind a large payload: the next heads, the rest of a message of 64 KiB, which does not fit one frame, and little more, so
/// that little is copied.
const ASK_BEHIND: usize = 1 << 10;
/// So many frames after a large one the next large one is expected.
const BETWEEN: u8 = 4;
/// Payloads with at least this much left are read straight to their place.
const DIRECT: usize = 4 << 10;
/// The end of a payload that is copied though the rest was read in place.
const TAIL: usize = 8;
/// A call takes in no more than about this much, so that others get their turn.
const SLICE: usize = 512 << 10;
/// Parts of a scattered read.
const PARTS: usize = 40;

thread_local! {
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The receiving side of a connection.
pub(crate) struct Rx {
    socket: Arc<Socket>,
    receiver: Receiver,
    /// Bytes that were received and belong to a frame that is not complete.
    carry: Vec<u8>,
    /// The payload being placed.
    placing: Option<Placing>,
    /// Bytes of padding and CRC still to be passed over.
    skip: usize,
    /// The receive that the Send under way has taken.
    receive: Option<ReceiveWork>,
    /// Bytes of the RDMA Write under way, or of the last one.
    written: u32,
    write_open: bool,
    /// Frames since the last one with a large payload, up to [`BETWEEN`].
    since_large: u8,
    /// Bytes of the frame that is being collected; not before its length has come.
    collecting: usize,
    first: bool,
    /// A segment whose turn has not come yet.
    next: Option<Arrival>,
    /// What was received waits until this round has ended ([`Endpoint::rounds`]), or the bytes of reads have been taken.
    postponed: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Placing {
    segment: Segment,
    target: Target,
    /// Placed so far.
    done: u32,
    /// Payload of the segment.
    length: u32,
}

/// Where the payload of a segment goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Write { stag: u32, to: u64 },
    Send { offset: u32 },
    Read { sink: ReadSink, offset: u32, complete: bool },
}

/// What [`Rx::take_in`] did.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) received: Received,
    /// The first frame of all came.
    pub(crate) first: bool,
    /// There is something to send: an answer, or a request that waited for a read to complete.
    pub(crate) transmit: bool,
    /// The slice is used up and the socket may have more.
    pub(crate) more: bool,
    /// The connection ends.
    pub(crate) cause: Option<Cause>,
}

impl Rx {
    pub(crate) fn new(socket: Arc<Socket>, receiver: Receiver, early: &[u8]) -> Self {
        Self {
            socket,
            receiver,
            carry: early.to_vec(),
            placing: None,
            skip: 0,
            receive: None,
            written: 0,
            write_open: false,
            since_large: BETWEEN,
            collecting: 0,
            first: true,
            next: None,
            postponed: None,
        }
    }

    /// Takes in what the socket has, up to a slice.
    pub(crate) fn take_in(&mut self, endpoint: &Endpoint, by: By) -> Taken {
        let mut taken = Taken::default();
        let mut buffer =
            SPARE.try_with(Cell::take).ok().flatten().unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice());
        if let Err(cause) = self.take_in_through(endpoint, by, &mut buffer, &mut taken) {
            taken.cause = Some(cause);
            taken.received.worked = true;
        }
        let _ = SPARE.try_with(|spare| spare.set(Some(buffer)));
        taken
    }

    fn take_in_through(
        &mut self,
        endpoint: &Endpoint,
        by: By,
        buffer: &mut [u8],
        taken: &mut Taken,
    ) -> Result<(), Cause> {
        let counters = endpoint.queues.counters;
        let streaming = self.receiver.is_streaming();
        let (mut start, mut end) = (0, self.carry.len());
        buffer[..end].copy_from_slice(&self.carry);
        let early = end > 0 && self.first;
        let mut budget = SLICE;
        let mut drained = false;
        let mut eof = false;
        if let Some(round) = self.postponed {
            if !endpoint.rounds.have_ended(round) {
                return Ok(());
            }
            self.postponed = None;
            taken.received.worked = true;
            self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
        } else if early {
            self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
        }
        while !drained && !eof && budget > 0 && self.postponed.is_none() {
            let (count, wanted) = self.read(endpoint, buffer, &mut start, &mut end, streaming).or_else(
                |error| match error {
                    ReadError::Socket(error) if would_block(&error) => Ok((usize::MAX, 0)),
                    ReadError::Socket(error) => Err(Cause::Lost(error)),
                    ReadError::Cause(cause) => Err(cause),
                },
            )?;
            if count == usize::MAX {
                break;
            }
            taken.received.worked = true;
            counters.rx_calls.add(1);
            match by {
                By::Poll => counters.rx_by_polls.add(1),
                By::Background => counters.rx_by_background.add(1),
            }
            eof = count == 0;
            // A short read says that the socket is empty now; a later arrival wakes somebody, but nothing does after the end.
            drained = count < wanted && !endpoint.is_ending.load(Ordering::SeqCst);
            budget = budget.saturating_sub(count);
            // What has come may answer what is being sent at this instant, and is complete in a moment.
            // PRACTICE-ORDER-1
            let round = endpoint.rounds.begun();
            if endpoint.rounds.have_ended(round) {
                self.work_off(endpoint, buffer, &mut start, &mut end, taken)?;
            } else {
                self.postponed = Some(round);
            }
        }
        taken.more = (budget == 0 || self.postponed.is_some()) && !drained;
        self.carry.clear();
        self.carry.extend_from_slice(&buffer[start..end]);
        if self.carry.is_empty() && self.carry.capacity() > 256 {
            self.carry = Vec::new();
        }
        if eof {
            // RFC5041-6.2.1-5: whatever was complete has been delivered.
            let left = end - start + self.placing.map_or(0, |p| (p.length - p.done) as usize) + self.skip;
            return Err(match self.receiver.end_of_stream(left) {
                Ok(()) => Cause::Closed,
                Err(_) => Cause::Lost(io::Error::from_raw_os_error(libc::ECONNRESET)),
            });
        }
        Ok(())
    }

    /// One receive call, to the payload's place and the buffer behind `end`. Returns the bytes received and asked for.
    fn read(
        &mut self,
        endpoint: &Endpoint,
        buffer: &mut [u8],
        start: &mut usize,
        end: &mut usize,
        streaming: bool,
    ) -> Result<(usize, usize), ReadError> {
        if *start == *end {
            (*start, *end) = (0, 0);
        } else if *start > 0 && (buffer.len() - *end < ASK || !streaming) {
            buffer.copy_within(*start..*end, 0);
            (*start, *end) = (0, *end - *start);
        }
        let mut parts = ArrayVec::<libc::iovec, PARTS>::new();
        let mut spans = ArrayVec::<Span<'static>, PARTS>::new();
        let mut direct = 0;
        if let Some(placing) = &self.placing
            && *start == *end
            && (placing.length - placing.done) as usize >= DIRECT
        {
            let wanted = (placing.length - placing.done) as usize - TAIL;
            let placing = *placing;
            self.open(endpoint, &placing, placing.done, wanted as u32, |span| {
                if spans.is_full() || parts.len() + 1 >= PARTS {
                    return Ok(false);
                }
                parts.push(span.iovec(0, span.len()));
                direct += span.len();
                spans.push(span);
                Ok(true)
            })
            .map_err(ReadError::Cause)?;
            if direct < wanted {
                // More parts than fit: the buffer must not follow.
                return self.finish_read(endpoint, &mut parts, &mut spans, direct, end, 0);
            }
        }
        let room = buffer.len() - *end;
        let ask = match (streaming, direct) {
            (true, 0) if self.since_large == BETWEEN => ASK.min(room),
            (true, _) => ASK_BEHIND.min(room),
            // A large frame is collected alone: what came of the one behind it would have to make room for the rest.
            (false, _) => match self.collecting.saturating_sub(*end - *start) {
                rest if rest >= LARGE => (rest + ASK_BEHIND).min(room),
                _ if self.since_large < BETWEEN && *start == *end => ASK_BEHIND,
                _ => room,
            },
        };
        parts.push(libc::iovec { iov_base: buffer[*end..].as_mut_ptr().cast(), iov_len: ask });
        self.finish_read(endpoint, &mut parts, &mut spans, direct, end, ask)
    }

    fn finish_read(
        &mut self,
        endpoint: &Endpoint,
        parts: &mut ArrayVec<libc::iovec, PARTS>,
        spans: &mut ArrayVec<Span<'static>, PARTS>,
        direct: usize,
        end: &mut usize,
        ask: usize,
    ) -> Result<(usize, usize), ReadError> {
        // SAFETY: the parts are spans opened for writing, which live in `spans`, and the thread's own buffer.
        let result = unsafe { self.socket.receive(parts) };
        spans.clear();
        let count = match result {
            Ok(count) => count,
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                let placing = self.placing;
                return Err(ReadError::Cause(match placing {
                    Some(placing) => self.refuse(endpoint, &placing, Fault::BaseBounds),
                    None => Cause::Lost(error),
                }));
            }
            Err(error) => return Err(ReadError::Socket(error)),
        };
        if let Some(placing) = &mut self.placing {
            placing.done += count.min(direct) as u32;
        }
        *end += count.saturating_sub(direct);
        Ok((count, direct + ask))
    }

    /// Takes apart and places what lies in the buffer from `start` to `end`.
    fn work_off(
        &mut self,
        endpoint: &Endpoint,
        buffer: &mut [u8],
        start: &mut usize,
        end: &mut usize,
        taken: &mut Taken,
    ) -> Result<(), Cause> {
        let counters = endpoint.queues.counters;
        loop {
            if let Some(mut placing) = self.placing {
                let here = (*end - *start).min((placing.length - placing.done) as usize);
                self.place(endpoint, &placing, &buffer[*start..*start + here])?;
                *start += here;
                placing.done += here as u32;
                self.placing = Some(placing);
                if placing.done < placing.length {
                    return Ok(());
                }
                self.placing = None;
                self.finish(endpoint, &placing, taken)?;
            }
            if let Some(arrival) = self.next {
                // PRACTICE-ORDER-2
                if changes_memory(&arrival.segment) && !endpoint.take_reads(&mut taken.transmit) {
                    self.postponed = Some(0);
                    return Ok(());
                }
                self.next = None;
                self.skip = arrival.trailer_len;
                self.begin(endpoint, &arrival, taken)?;
                continue;
            }
            let skipped = self.skip.min(*end - *start);
            *start += skipped;
            self.skip -= skipped;
            if self.skip > 0 || *start == *end {
                return Ok(());
            }
            let window = &mut buffer[*start..*end];
            // RFC5044-4.4-3
            let step = if self.receiver.is_streaming() {
                self.receiver.next(window)
            } else {
                self.receiver.next_checked(window)
            };
            let arrival = match step {
                Ok(Step::Need(length)) => {
                    self.collecting = length;
                    return Ok(());
                }
                Ok(Step::Segment(arrival)) => arrival,
                Err(error) => return Err(Cause::Fault(error.fault, error.terminate)),
            };
            counters.rx_frames.add(1);
            log!(
                Packets,
                "queue pair {:#x} <- {}, {} bytes",
                endpoint.queues.number,
                arrival.segment,
                arrival.payload_len
            );
            if std::mem::take(&mut self.first) {
                endpoint.may_send.store(true, Ordering::SeqCst);
                taken.first = true;
                taken.transmit = true;
            }
            *start += arrival.head_len;
            self.collecting = 0;
            self.since_large =
                if arrival.payload_len >= LARGE { 0 } else { BETWEEN.min(self.since_large + 1) };
            self.next = Some(arrival);
        }
    }

    /// Looks at a segment: checks where its payload may go, or does what it says if it has none.
    fn begin(&mut self, endpoint: &Endpoint, arrival: &Arrival, taken: &mut Taken) -> Result<(), Cause> {
        let queues = &endpoint.queues;
        let refuse = |fault| Cause::Fault(fault, arrival.terminate(fault));
        let length = arrival.payload_len as u32;
        let permitted = |right: Access| queues.access() & right.bits() != 0;
        let target = match arrival.segment {
            Segment::Write { stag, to, last } => {
                taken.received.one_sided = true;
                // RFC5041-5.2-8
                if length > 0 {
                    // RFC5041-7.1-6, RFC5041-7.1-11, RFC5041-4.2-4: all of it is checked before any of it is placed.
                    if !permitted(Access::REMOTE_WRITE) {
                        queues.refuse_right(Access::REMOTE_WRITE);
                        return Err(refuse(Fault::AccessRights));
                    }
                    queues
                        .open_for_peer(stag, to, length.into(), Access::REMOTE_WRITE)
                        .map_err(|error| refuse(fault_of(error)))?;
                }
                self.written = if self.write_open { self.written.wrapping_add(length) } else { length };
                self.write_open = !last;
                Target::Write { stag, to }
            }
            Segment::Send { mo, first, .. } => {
                // RFC5041-7.1-2, RFC5040-5.3-2
                if first {
                    self.receive = Some(queues.take_receive().ok_or_else(|| refuse(Fault::NoBuffer))?);
                }
                let Some(work) = self.receive else { return Err(refuse(Fault::NoBuffer)) };
                // RFC5041-7.1-4, RFC5040-5.3-7
                if u64::from(mo) + u64::from(length) > work.room {
                    let is_whole = matches!(arrival.segment, Segment::Send { last: true, .. });
                    queues.refuse_length(u64::from(mo) + u64::from(length), is_whole, work.room);
                    self.fail_receive(endpoint, Status::LocalLength);
                    return Err(refuse(Fault::MessageTooLong));
                }
                Target::Send { offset: mo }
            }
            Segment::ReadResponse { stag, to, last } => {
                let mut reads = lock(&endpoint.reads);
                // RFC5041-8.2-2
                let place = reads.read_response(stag, to, length as usize, last).map_err(refuse)?;
                let sink = *reads.front().ok_or_else(|| refuse(Fault::InvalidStag))?;
                Target::Read { sink, offset: place.offset, complete: place.complete }
            }
            Segment::ReadRequest { msn, request } => {
                taken.received.one_sided = true;
                taken.transmit = true;
                let inbound = InboundRequest::Read { msn, request };
                self.admit(endpoint, inbound, arrival)?;
                return Ok(());
            }
            Segment::AtomicRequest { msn, request } => {
                taken.received.one_sided = true;
                taken.transmit = true;
                let inbound = InboundRequest::Atomic { msn, request, original: 0 };
                self.admit(endpoint, inbound, arrival)?;
                return Ok(());
            }
            Segment::AtomicResponse { response, .. } => {
                let mut reads = lock(&endpoint.reads);
                reads.atomic_response(&response).map_err(refuse)?;
                let sink = reads.pop();
                drop(reads);
                taken.transmit = true;
                if let Some(ReadSink { sequence: Some(sequence), sge }) = sink {
                    let placed = open_element(endpoint, sge, 0, None, Access::LOCAL_WRITE, queues.domain)
                        .is_ok_and(|span| {
                            span.is_none_or(|span| span.write(0, &response.original.to_ne_bytes()).is_ok())
                        });
                    if !placed {
                        return Err(Cause::Request { sequence, status: Status::LocalProtection });
                    }
                    queues.complete_send(sequence, Status::Success);
                }
                return Ok(());
            }
            Segment::Immediate { data, solicited, .. } => {
                // RFC7306-6.3-2, RFC7306-6.3-3, RFC7306-6.4-1
                let work = queues.take_receive().ok_or_else(|| refuse(Fault::NoBuffer))?;
                let immediate = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]);
                let completion = Completion {
                    opcode: CompletionOpcode::ReceiveWriteWithImmediate,
                    flags: CompletionFlags::WITH_IMMEDIATE,
                    byte_length: self.written,
                    immediate,
                    ..self.completion(endpoint, &work, Status::Success)
                };
                queues.counters.rx_messages.add(1);
                queues.complete_receive(&work, completion, solicited);
                return Ok(());
            }
            Segment::Terminate(terminate) => {
                queues.counters.terminates_received.add(1);
                // RFC5040-5.4-3
                return Err(Cause::Terminated(terminate));
            }
            Segment::ReadyToReceive => return Ok(()),
        };
        self.placing = Some(Placing { segment: arrival.segment, target, done: 0, length });
        Ok(())
    }

    /// Checks a read or atomic of the peer and queues it for the sending side (RFC5040-6.1-4).
    fn admit(
        &mut self,
        endpoint: &Endpoint,
        mut inbound: InboundRequest,
        arrival: &Arrival,
    ) -> Result<(), Cause> {
        let queues = &endpoint.queues;
        let refuse = |fault| Cause::Fault(fault, arrival.terminate(fault));
        let (stag, to, length, right) = match inbound {
            InboundRequest::Read { request: ReadRequest { source_stag, source_to, len, .. }, .. } => {
                (source_stag, source_to, len, Access::REMOTE_READ)
            }
            InboundRequest::Atomic { request, .. } => (request.stag, request.to, 8, Access::REMOTE_ATOMIC),
        };
        // RFC5040-5.2.1-8, RFC5040-5.2.1-9
        if length > 0 {
            if queues.access() & right.bits() == 0 {
                queues.refuse_right(right);
                return Err(refuse(Fault::AccessRights));
            }
            let span = queues
                .open_for_peer(stag, to, length.into(), right)
                .map_err(|error| refuse(fault_of(error)))?;
            // RFC7306-5.1.1-1, RFC7306-5.1.1-2, RFC7306-5.1.2-2, RFC7306-5.1.2-3, RFC7306-8.2-2
            if right == Access::REMOTE_ATOMIC && !span.address().is_multiple_of(8) {
                return Err(refuse(Fault::CatastrophicStream));
            }
        }
        // RFC5040-5.5-3, RFC5040-5.2.1-2, RFC5040-5.2.1-3, RFC7306-5.2.1-3, RFC7306-5.2.1-4, RFC7306-5.4-1
        let mut waiting = lock(&endpoint.inbound);
        waiting.check_room().map_err(refuse)?;
        match &mut inbound {
            // In its place: before anything that comes behind it.
            InboundRequest::Atomic { request, original, .. } => {
                *original = execute(endpoint, request).map_err(refuse)?;
                queues.counters.rx_atomics.add(1);
            }
            InboundRequest::Read { .. } => endpoint.has_untaken.store(true, Ordering::Relaxed),
        }
        waiting.push(inbound).map_err(refuse)?;
        drop(waiting);
        endpoint.has_inbound.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Copies part of the payload to its place.
    // RFC5041-5.2-4
    fn place(&mut self, endpoint: &Endpoint, placing: &Placing, bytes: &[u8]) -> Result<(), Cause> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut rest = bytes;
        let mut fault = false;
        self.open(endpoint, placing, placing.done, bytes.len() as u32, |span| {
            let (here, after) = rest.split_at(span.len());
            rest = after;
            fault |= span.write(0, here).is_err();
            Ok(!fault)
        })?;
        if fault { Err(self.refuse(endpoint, placing, Fault::BaseBounds)) } else { Ok(()) }
    }

    /// Opens the memory of `length` bytes of the payload from `done` on, in order, until `take` says no.
    fn open(
        &mut self,
        endpoint: &Endpoint,
        placing: &Placing,
        done: u32,
        length: u32,
        mut take: impl FnMut(Span<'static>) -> Result<bool, Cause>,
    ) -> Result<(), Cause> {
        let queues = &endpoint.queues;
        match placing.target {
            Target::Write { stag, to } => {
                let address = to.wrapping_add(done.into());
                let opened = queues.open_for_peer(stag, address, length.into(), Access::REMOTE_WRITE);
                match opened {
                    Ok(span) => take(span).map(drop),
                    Err(error) => Err(self.refuse(endpoint, placing, fault_of(error))),
                }
            }
            Target::Read { sink, offset, .. } => {
                match open_element(
                    endpoint,
                    sink.sge,
                    offset + done,
                    Some(length),
                    Access::LOCAL_WRITE,
                    queues.domain,
                ) {
                    Ok(Some(span)) => take(span).map(drop),
                    Ok(None) => Ok(()),
                    Err(_) => Err(self.refuse(endpoint, placing, Fault::InvalidStag)),
                }
            }
            Target::Send { offset } => {
                let Some(work) = self.receive else { return Ok(()) };
                let (mut offset, mut length) = (offset + done, length);
                for index in 0..work.sges {
                    if length == 0 {
                        break;
                    }
                    let sge = queues.receive_sge(&work, index);
                    if offset >= sge.length {
                        offset -= sge.length;
                        continue;
                    }
                    let here = (sge.length - offset).min(length);
                    match open_element(endpoint, sge, offset, Some(here), Access::LOCAL_WRITE, work.domain) {
                        Ok(Some(span)) => {
                            if !take(span)? {
                                break;
                            }
                        }
                        Ok(None) => {}
                        Err(_) => return Err(self.refuse(endpoint, placing, Fault::InvalidStag)),
                    }
                    length -= here;
                    offset = 0;
                }
                Ok(())
            }
        }
    }

    /// The memory of a payload is not there, or no longer: whose mistake it is depends on whose memory it is.
    fn refuse(&mut self, endpoint: &Endpoint, placing: &Placing, fault: Fault) -> Cause {
        match placing.target {
            Target::Write { .. } => {
                Cause::Fault(fault, placing.segment.terminate(fault, placing.length as usize))
            }
            Target::Read { sink: ReadSink { sequence: Some(sequence), .. }, .. } => {
                Cause::Request { sequence, status: Status::LocalProtection }
            }
            Target::Read { .. } => Cause::Here,
            Target::Send { .. } => {
                self.fail_receive(endpoint, Status::LocalProtection);
                let fault = Fault::LocalCatastrophic;
                Cause::Fault(fault, placing.segment.terminate(fault, placing.length as usize))
            }
        }
    }

    /// All payload of a segment is placed.
    fn finish(&mut self, endpoint: &Endpoint, placing: &Placing, taken: &mut Taken) -> Result<(), Cause> {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        counters.rx_bytes.add(placing.length.into());
        match (placing.target, placing.segment) {
            // RFC5040-5.1-2
            (Target::Write { .. }, Segment::Write { last: true, .. }) => {
                counters.rx_messages.add(1);
                counters.rx_writes.add(1);
            }
            // RFC5040-5.2.2-3, RFC5040-5.5-2, RFC5040-5.5-7
            (Target::Read { complete: true, sink, offset }, _) => {
                lock(&endpoint.reads).pop();
                endpoint.reading.fetch_sub(u64::from(offset) + u64::from(placing.length), Ordering::Relaxed);
                taken.transmit = true;
                if let Some(sequence) = sink.sequence {
                    queues.complete_send(sequence, Status::Success);
                }
            }
            // RFC5040-5.3-3, RFC5040-5.5-1, RFC5041-4.1-4, RFC5041-5.3-2, RFC5041-5.4-1
            (Target::Send { offset }, Segment::Send { last: true, invalidate, solicited, .. }) => {
                let Some(work) = self.receive else { return Ok(()) };
                let mut completion = self.completion(endpoint, &work, Status::Success);
                if let Some(stag) = invalidate {
                    // RFC5040-5.3-6, RFC5040-7.2-4, RFC5040-7.2-5: invalidated before the message is delivered.
                    if let Err(error) = queues.invalidate_for_peer(stag, queues.domain) {
                        let fault = match fault_of(error) {
                            Fault::AccessRights | Fault::StagNotAssociated => Fault::CannotInvalidate,
                            fault => fault,
                        };
                        self.fail_receive(endpoint, Status::RemoteInvalidRequest);
                        let terminate = placing.segment.terminate(fault, placing.length as usize);
                        return Err(Cause::Fault(fault, terminate));
                    }
                    completion.flags = CompletionFlags::WITH_INVALIDATE;
                    completion.immediate = stag;
                }
                // RFC5041-5.4-2, RFC5040-5.3-8
                completion.byte_length = offset + placing.length;
                self.receive = None;
                counters.rx_messages.add(1);
                counters.rx_sends.add(1);
                queues.complete_receive(&work, completion, solicited);
            }
            _ => {}
        }
        Ok(())
    }

    fn completion(&self, endpoint: &Endpoint, work: &ReceiveWork, status: Status) -> Completion {
        Completion {
            wr_id: work.wr_id,
            status,
            opcode: CompletionOpcode::Receive,
            queue_pair: endpoint.queues.number,
            ..Completion::default()
        }
    }

    /// The receive under way ends badly; the flush will end the others.
    fn fail_receive(&mut self, endpoint: &Endpoint, status: Status) {
        if let Some(work) = self.receive.take() {
            let completion = self.completion(endpoint, &work, status);
            endpoint.queues.complete_receive(&work, completion, false);
        }
    }

    /// The connection ends: a receive under way is flushed with the others, which have not been taken.
    pub(crate) fn give_up(mut self, endpoint: &Endpoint) {
        self.fail_receive(endpoint, Status::Flushed);
    }
}

/// Whether a segment changes memory, or lets the program do so, since it is told.
fn changes_memory(segment: &Segment) -> bool {
    matches!(
        segment,
        Segment::Write { .. }
            | Segment::Send { .. }
            | Segment::AtomicRequest { .. }
            | Segment::Immediate { .. }
    )
}

enum ReadError {
    Socket(io::Error),
    Cause(Cause),
}
