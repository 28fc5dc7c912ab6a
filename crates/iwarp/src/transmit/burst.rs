//! Frames that leave in one system call.

use super::{BURST, Burst, FRAMES, Frame, PARTS, SMALL, Then, Tx};
use crate::endpoint::{Cause, Endpoint};
use crate::impaired::{self, Resume, kind_of_frame};
use crate::kept::KeptReads;
use crate::payload::{Failure, Payload, copy_payload, each_element, open_source};
use crate::socket::would_block;
use adverb_core::memory::Span;
use adverb_core::request::{SendFlags, Status};
use adverb_core::wire::Direction;
use adverb_proto::iwarp::{Fpdu, InboundRequest, ZERO_TRAILER};
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering;

impl Tx {
    /// Fills a burst. Returns whether it holds all that there is to send. An error ends the connection once
    /// the frames before it are sent.
    pub(super) fn fill(&mut self, endpoint: &Endpoint, burst: &mut Burst) -> Result<bool, Cause> {
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

    /// Puts one frame into the burst.
    pub(super) fn add(&mut self, endpoint: &Endpoint, burst: &mut Burst, fpdu: &Fpdu) -> Result<(), Cause> {
        let (payload, then) = self.current;
        // The immediate data, if any, carry the completion.
        let then = if fpdu.is_last() && self.immediate.is_none() { then } else { Then::Nothing };
        let start = burst.bytes.len();
        let length = fpdu.payload_len();
        self.framed = fpdu.payload().end as u32;
        let kept = &self.kept;
        let failed = |fault: Failure| fault.cause(&payload, fpdu.payload().start as u32);
        // Payload that the program could change under the checksum is checksummed as a copy.
        let steady = if length > SMALL { self.immutable_trailer(endpoint, &payload, fpdu) } else { None };
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
        let length = burst.frames.last().map_or(0, Frame::len);
        burst.total += length;
        self.progress.add(length, !self.is_response, self.is_asking && fpdu.is_last());
        Ok(())
    }

    /// The trailer with the checksum of a frame whose payload can be sent from where it lies.
    pub(super) fn immutable_trailer(
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
            let Some(bytes) = span.immutable() else { return Ok(false) };
            checksum.update(bytes);
            Ok(true)
        };
        let all = each_element(endpoint, work, fpdu.payload().start as u32, fpdu.payload_len() as u32, add);
        matches!(all, Ok(true)).then(|| checksum.trailer())
    }

    /// Writes the burst to the socket until it is sent or the socket is full, and follows up the frames that
    /// have left.
    pub(super) fn send(&mut self, endpoint: &Endpoint, burst: &mut Burst) -> Result<(), Cause> {
        if self.impaired.is_some() && !self.may_leave(endpoint, burst)? {
            return Ok(());
        }
        let counters = endpoint.queues.counters;
        while burst.sent < burst.total {
            let mut parts = ArrayVec::<libc::iovec, PARTS>::new();
            if let Err(cause) = gather(endpoint, &self.kept, burst, &mut parts) {
                burst.spans.clear();
                return Err(cause);
            }
            let wanted: usize = parts.iter().map(|part| part.iov_len).sum();
            // The peer may answer before this call returns.
            // PRACTICE-ORDER-1
            let round = endpoint.rounds.begin();
            let begins = self.observed.as_ref().map_or(0, |observed| observed.now());
            let result = self.socket.send(&parts);
            burst.spans.clear();
            counters.tx_calls.add(1);
            match &result {
                &Ok(sent) => {
                    burst.sent += sent;
                    let shown = burst.followed;
                    follow_up(endpoint, burst);
                    if self.observed.is_some() {
                        self.show(endpoint, burst, shown, begins);
                    }
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
                    // Set before the last attempt. Room that comes after that attempt is an edge, at which
                    // the background thread finds it set.
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

    /// Shows the frames that have left since this time: those of the burst from this one on.
    #[cold]
    fn show(&mut self, endpoint: &Endpoint, burst: &Burst, from: usize, since: u64) {
        let Some(observed) = &mut self.observed else { return };
        // The burst has the last frames of the stream.
        let mut offset = self.progress.made() - burst.total as u64;
        for (index, frame) in burst.frames[..burst.followed].iter().enumerate() {
            if index >= from {
                let (from, to) = (frame.head.0 as usize, frame.head.1 as usize);
                observed.left(endpoint, since, offset, &burst.bytes[from..to]);
            }
            offset += frame.len() as u64;
        }
    }

    /// Asks the wire about the frames of a burst. Whether it goes on now; if not, it is as if the socket were
    /// full.
    #[cold]
    fn may_leave(&mut self, endpoint: &Endpoint, burst: &mut Burst) -> Result<bool, Cause> {
        let Some(impaired) = &mut self.impaired else { return Ok(true) };
        if impaired.left().is_none() && std::mem::take(&mut impaired.asks_again) {
            burst.judged = false;
        }
        let is_new = !std::mem::replace(&mut burst.judged, true);
        for frame in burst.frames.iter().filter(|_| is_new) {
            let (from, to) = (frame.head.0 as usize, frame.head.1 as usize);
            let kind = kind_of_frame(&burst.bytes[from..to]);
            let fate = impaired.pass(Direction::Out, kind, frame.len());
            if fate.is_cut {
                return Err(impaired::cut(&self.socket));
            }
            if let Some(word) = fate.damage {
                // Of its checksum, which stands at its end, so that no memory of the program changes.
                let end = if frame.tail.1 > frame.tail.0 { frame.tail.1 as usize } else { to };
                burst.bytes[end - 1 - word as usize % 4] ^= 1 << (word >> 32 & 7);
            }
        }
        let Some(left) = impaired.left() else { return Ok(true) };
        endpoint.is_full.store(true, Ordering::SeqCst);
        self.full = true;
        Resume::after(endpoint, left);
        Ok(false)
    }
}

/// Completes the requests whose last frames have left.
// RFC5040-5.5-5
pub(super) fn follow_up(endpoint: &Endpoint, burst: &mut Burst) {
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

/// Collects the unsent rest of the burst, as far as the parts suffice. Their memory stays open until the
/// spans of the burst are cleared.
pub(super) fn gather(
    endpoint: &Endpoint,
    kept: &KeptReads,
    burst: &mut Burst,
    parts: &mut ArrayVec<libc::iovec, PARTS>,
) -> Result<(), Cause> {
    let mut skip = burst.sent - burst.followed_bytes;
    let Burst { bytes, frames, spans, followed, .. } = burst;
    let own = |parts: &mut ArrayVec<libc::iovec, PARTS>, (from, to): (u32, u32), skip: &mut usize| {
        let bytes = &bytes[from as usize..to as usize];
        let passed = bytes.len().min(*skip);
        *skip -= passed;
        push_part(parts, bytes[passed..].as_ptr() as usize, bytes.len() - passed)
    };
    for frame in &frames[*followed..] {
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
pub(super) fn push_part(parts: &mut ArrayVec<libc::iovec, PARTS>, address: usize, length: usize) -> bool {
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
