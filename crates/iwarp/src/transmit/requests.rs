//! Which request or response goes out next, and the checks before that.

use super::direct::{DirectOutcome, Extent};
use super::{SMALL, Then, Tx};
use crate::endpoint::{Cause, Endpoint};
use crate::payload::{Payload, open_element, open_source, read_message};
use crate::{kept, lock};
use adverb_core::memory::Access;
use adverb_core::qp::LocalOutcome;
use adverb_core::request::{Opcode, SendFlags, Status};
use adverb_proto::iwarp::{AtomicResponse, InboundRequest, Outbound};
use adverb_proto::keyed;
use std::sync::atomic::Ordering;

impl Tx {
    /// Begins the next message, if there is one that may go.
    pub(super) fn begin_next(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
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

    pub(super) fn begin(
        &mut self,
        endpoint: &Endpoint,
        message: Outbound,
        payload: Payload,
        then: Then,
    ) -> Result<bool, Cause> {
        if let Some(observed) = &self.observed {
            observed.begins(endpoint, &message);
        }
        self.is_asking = matches!(message, Outbound::ReadRequest(_) | Outbound::AtomicRequest(_));
        self.is_response = matches!(message, Outbound::ReadResponse { .. } | Outbound::AtomicResponse(_));
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
    pub(super) fn begin_response(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
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
    pub(super) fn begin_request(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
        let queues = &endpoint.queues;
        loop {
            let Some(work) = queues.send.peek(&mut self.cursor) else { return Ok(false) };
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
            let went = match work.opcode {
                Opcode::Send | Opcode::SendWithInvalidate => self.go_by_channel(endpoint, &work),
                Opcode::WriteWithImmediate => self.go_with_immediate(endpoint, &work)?,
                _ => self.go_direct(endpoint, &work, Extent::Request)?,
            };
            match went {
                DirectOutcome::Done => continue,
                DirectOutcome::Tcp => {}
                DirectOutcome::Later => return Ok(false),
                DirectOutcome::Fence => return self.begin_fence(endpoint),
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
                    // Requests before it may use the key, so their frames leave first.
                    if self.filling {
                        self.held = true;
                        return Ok(false);
                    }
                    let again = || endpoint.catches_up();
                    let outcome = queues.execute_locally(&work, again);
                    // While it waits, polls come by here as they do for a full socket.
                    endpoint.is_full.store(self.full || outcome == LocalOutcome::Later, Ordering::SeqCst);
                    let LocalOutcome::Done(status) = outcome else { return Ok(false) };
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
                    self.show_request(endpoint, sequence);
                    return self.begin(endpoint, message, Payload::None, Then::Nothing);
                }
                Opcode::SendWithImmediate | Opcode::Flush | Opcode::AtomicWrite => {
                    return fail(Status::LocalQpOperation);
                }
            };
            // Every element is checked before the first frame leaves. The copy checks those of a payload that
            // is copied at once.
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
            self.show_request(endpoint, sequence);
            let begun = self.begin(endpoint, message, payload, then)?;
            if work.opcode == Opcode::WriteWithImmediate {
                self.immediate = Some(work.immediate);
            }
            return Ok(begun);
        }
    }

    /// The request at this place of the queue begins with the next frame.
    #[inline]
    fn show_request(&self, endpoint: &Endpoint, place: u64) {
        if let Some(observed) = &self.observed {
            observed.request_begins(endpoint, place, self.progress.made());
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
    pub(super) fn forget_kept(&mut self, endpoint: &Endpoint) {
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
}
