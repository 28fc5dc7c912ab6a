//! Segments: where the payload of each one goes, and the completion when all of it is there.

use super::{Placing, Rx, TakeEffect, Target};
use crate::behind::Wait;
use crate::endpoint::{Cause, Endpoint, ReadSink};
use crate::lock;
use crate::payload::{execute, fault_of, open_element};
use adverb_core::clock;
use adverb_core::heard::{self, EngineFinding};
use adverb_core::memory::{Access, Span};
use adverb_core::qp::ReceiveWork;
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Status};
use adverb_proto::iwarp::{Arrival, Fault, InboundRequest, ReadRequest, Segment};
use std::sync::atomic::Ordering;

impl Rx {
    /// Takes the receive of a message that begins. False if there is none and the program still has time to
    /// post one.
    pub(super) fn take_receive(&mut self, endpoint: &Endpoint) -> bool {
        self.receive = endpoint.queues.take_receive();
        if self.receive.is_some() {
            self.behind = None;
            return true;
        }
        heard::tell(endpoint.queues.number, EngineFinding::NoReceiveHere);
        !self.has_time_left()
    }

    /// Whether the program still has time to post a receive for the message that waits. The time begins with
    /// the first call.
    pub(super) fn has_time_left(&mut self) -> bool {
        let now = clock::device();
        let wait = self.behind.get_or_insert(Wait::begin(now));
        wait.look(now);
        !wait.is_over()
    }

    /// Begins a segment: checks where its payload may go. A segment without payload is carried out.
    pub(super) fn begin(
        &mut self,
        endpoint: &Endpoint,
        arrival: &Arrival,
        taken: &mut TakeEffect,
    ) -> Result<(), Cause> {
        let queues = &endpoint.queues;
        let refuse = |fault| Cause::Fault(fault, arrival.terminate(fault));
        let length = arrival.payload_len as u32;
        let permitted = |right: Access| queues.access() & right.bits() != 0;
        let target = match arrival.segment {
            Segment::Write { stag, to, last } => {
                taken.received.one_sided = true;
                // RFC5041-5.2-8
                if length > 0 {
                    // RFC5041-7.1-6, RFC5041-7.1-11, RFC5041-4.2-4: all of it is checked before any of it is
                    // placed.
                    if !permitted(Access::REMOTE_WRITE) {
                        queues.refuse_right(Access::REMOTE_WRITE);
                        return Err(refuse(Fault::AccessRights));
                    }
                    queues
                        .open_for_peer(stag, to, length.into(), Access::REMOTE_WRITE)
                        .map_err(|error| refuse(fault_of(error)))?;
                    self.served(endpoint, stag);
                }
                self.written = if self.write_open { self.written.wrapping_add(length) } else { length };
                self.write_open = !last;
                Target::Write { stag, to }
            }
            Segment::Send { mo, .. } => {
                // RFC5041-7.1-2, RFC5040-5.3-2
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
                let work = self.receive.take().ok_or_else(|| refuse(Fault::NoBuffer))?;
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
    pub(super) fn admit(
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
            self.served(endpoint, stag);
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
    pub(super) fn place(
        &mut self,
        endpoint: &Endpoint,
        placing: &Placing,
        bytes: &[u8],
    ) -> Result<(), Cause> {
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
    pub(super) fn open(
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

    /// The memory of a payload is not there, or no longer. A Write's memory was named by the peer, which gets
    /// a Terminate; a Read's or a receive's by this program, whose request fails.
    pub(super) fn refuse(&mut self, endpoint: &Endpoint, placing: &Placing, fault: Fault) -> Cause {
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
    pub(super) fn finish(
        &mut self,
        endpoint: &Endpoint,
        placing: &Placing,
        taken: &mut TakeEffect,
    ) -> Result<(), Cause> {
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
                    // RFC5040-5.3-6, RFC5040-7.2-4, RFC5040-7.2-5: invalidated before the message is
                    // delivered.
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

    pub(super) fn completion(&self, endpoint: &Endpoint, work: &ReceiveWork, status: Status) -> Completion {
        Completion {
            wr_id: work.wr_id,
            status,
            opcode: CompletionOpcode::Receive,
            queue_pair: endpoint.queues.number,
            ..Completion::default()
        }
    }

    /// The receive under way ends badly; the flush will end the others.
    pub(super) fn fail_receive(&mut self, endpoint: &Endpoint, status: Status) {
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
