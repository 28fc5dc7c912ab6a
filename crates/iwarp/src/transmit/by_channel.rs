//! Messages that go through memory which both processes of a connection have, instead of TCP.
//!
//! The peer has said that it takes them in. Each message says how many bytes of the stream come before it, so
//! the receiver keeps the order between both ways. A message is complete once it is in the shared memory, as
//! a message by TCP is once the socket has it.

use super::Tx;
use super::direct::{DirectOutcome, Extent, Near};
use crate::endpoint::{Cause, Endpoint};
use crate::local::record::{LONGEST_HERE, RecordHead, RecordKind, START};
use crate::local::{Channel, RecordOutcome, tell, weight};
use adverb_core::qp::SendWork;
use adverb_core::request::{Data, Opcode, SendFlags, SendRequest, Status};
use adverb_core::transport::Takeover;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So many messages go by TCP after the channel was full. TCP holds more for a receiver that is behind, and a
/// sender gathers them.
const FOLLOWING: u32 = 64;

impl Near {
    /// Tells the peer that this end takes in messages of the channel. Tells it of progress, too, if the
    /// channel had no room for that before.
    #[inline]
    pub(super) fn greet(&mut self, endpoint: &Endpoint) {
        if !self.has_greeted && !endpoint.lane.has_sleepers() {
            self.has_greeted = self.say(endpoint, RecordKind::Greeting);
        }
        if self.inbox.takes_pending_progress() && !self.say(endpoint, RecordKind::Progress) {
            self.inbox.put_off_progress();
        }
    }

    /// Puts a record without a message into the channel. False: the channel has no room. Once it has, it
    /// calls the endpoint, whose next turn begins.
    #[cold]
    fn say(&self, endpoint: &Endpoint, kind: RecordKind) -> bool {
        // The loop goes round when the channel had no room, and then had some before this thread could begin
        // to wait for it.
        loop {
            if self.channel.neighbour.has_ended() {
                return false;
            }
            match tell(&self.channel, kind, self.peer.serial, &self.inbox) {
                RecordOutcome::Polls => return true,
                RecordOutcome::Sleeps => {
                    self.channel.ring();
                    return true;
                }
                RecordOutcome::Full if self.channel.wait(endpoint) => return false,
                RecordOutcome::Full => {}
            }
        }
    }

    /// Whether a message with so many bytes may go to the peer now, if the channel has room.
    #[inline]
    fn takes(&self, length: u32) -> bool {
        length as usize <= LONGEST_HERE
            && self.by_tcp == 0
            && self.inbox.is_greeted()
            && !self.channel.neighbour.has_ended()
            && self.inbox.has_room(self.sent, length)
    }

    /// The head of a message that leaves. The calling thread has the channel's sending lock
    /// ([`Inbox::tell`](crate::local::Inbox::tell)).
    #[inline]
    fn said(&self, behind: u64, opcode: Opcode, length: u32, data: u32, flags: SendFlags) -> RecordHead {
        let (kind, length, written) = match opcode {
            Opcode::WriteWithImmediate => (RecordKind::Immediate, 0, length),
            _ => (RecordKind::Send, length, 0),
        };
        RecordHead {
            kind,
            to: self.peer.serial,
            length,
            solicited: flags.contains(SendFlags::SOLICITED),
            invalidates: opcode == Opcode::SendWithInvalidate,
            data,
            behind,
            taken: self.inbox.tell(),
            written,
        }
    }
}

impl Tx {
    /// Whether the peer is at the other end of this channel.
    pub(crate) fn goes_by(&self, channel: &Channel) -> bool {
        self.near.as_ref().is_some_and(|near| std::ptr::eq(&*near.channel, channel))
    }

    /// Whether one of the two sides has spoken by TCP: until then the peer may wait for a first frame.
    #[inline]
    fn has_begun(&self, endpoint: &Endpoint) -> bool {
        self.progress.has_made() || endpoint.has_heard()
    }

    /// A message goes by TCP.
    fn leave_to_tcp(&mut self, endpoint: &Endpoint) -> DirectOutcome {
        if let Some(near) = &mut self.near {
            near.by_tcp = near.by_tcp.saturating_sub(1);
            // A part of its Write may be done. By TCP all of it goes, and the next one begins with its first
            // byte.
            near.direct.begin_anew();
        }
        endpoint.goes_by_tcp();
        DirectOutcome::Tcp
    }

    /// There is no room in the channel: others go by TCP, too.
    #[cold]
    fn find_full(&mut self, endpoint: &Endpoint) -> DirectOutcome {
        if let Some(near) = &mut self.near {
            near.by_tcp = FOLLOWING;
        }
        self.leave_to_tcp(endpoint)
    }

    /// Carries out a Write, and then sends its immediate data, if neither needs TCP.
    pub(super) fn go_with_immediate(
        &mut self,
        endpoint: &Endpoint,
        work: &SendWork,
    ) -> Result<DirectOutcome, Cause> {
        let has_begun = self.has_begun(endpoint);
        let Some(near) = self.near.as_ref().filter(|near| has_begun && near.takes(0)) else {
            return Ok(self.leave_to_tcp(endpoint));
        };
        // Without bytes, there is nothing to be checked either.
        // RFC5041-5.2-8
        if work.length > 0 && near.written != Some(work.sequence) {
            // Before the Write: without room, all of it would be done twice.
            let has_room = near.channel.tx.lock().producer.reserve(START).is_some();
            if !has_room {
                return Ok(self.find_full(endpoint));
            }
            let write = SendWork { opcode: Opcode::Write, ..*work };
            match self.go_direct(endpoint, &write, Extent::Part)? {
                DirectOutcome::Done => {}
                went => return Ok(went),
            }
            if let Some(near) = &mut self.near {
                near.written = Some(work.sequence);
            }
        }
        Ok(self.go_by_channel(endpoint, work))
    }

    /// Sends a message, if it needs no TCP. Of a Write with immediate data, those data.
    pub(super) fn go_by_channel(&mut self, endpoint: &Endpoint, work: &SendWork) -> DirectOutcome {
        let has_begun = self.has_begun(endpoint);
        let length = if work.opcode == Opcode::WriteWithImmediate { 0 } else { work.length };
        let Some(near) = self.near.as_mut().filter(|near| has_begun && near.takes(length)) else {
            return self.leave_to_tcp(endpoint);
        };
        if self.filling {
            // The frames of the burst come before it, and leave first.
            self.held = true;
            return DirectOutcome::Later;
        }
        let queues = &endpoint.queues;
        let mut tx = near.channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(START + length as usize) else {
            drop(tx);
            return self.find_full(endpoint);
        };
        if length > 0 {
            // SAFETY: the slot has room for so much behind the first words, and is written by pointer alone.
            let gathered = unsafe {
                let target = slot.as_mut_ptr().add(START);
                queues.gather_to(&mut near.reader, work, target)
            };
            if gathered.is_err() {
                // By TCP, the fault is found again, and reported.
                return DirectOutcome::Tcp;
            }
        }
        let said = near.said(self.progress.made(), work.opcode, work.length, work.immediate, work.flags);
        if let Some(observed) = &mut self.observed {
            observed.leaves_by_channel(endpoint, &said, work.sequence, self.progress.by_channel());
        }
        // The peer's answer is taken in after the completion is reported.
        // PRACTICE-ORDER-1
        let round = endpoint.rounds.begin();
        slot.write_words(said.words());
        slot.publish();
        let sleeps = tx.producer.peer_sleeps();
        drop(tx);
        near.sent = near.sent.wrapping_add(weight(length));
        self.progress.add_message();
        self.cursor.advance();
        count(endpoint, &said);
        endpoint.is_by_channel.store(true, Ordering::Relaxed);
        queues.complete_send(work.sequence, Status::Success);
        endpoint.rounds.end(round);
        if sleeps {
            near.channel.ring();
        }
        DirectOutcome::Done
    }

    /// Sends a message that is being posted, if it needs no TCP and nothing before it waits.
    #[inline]
    pub(crate) fn send_at_once(&mut self, endpoint: &Endpoint, request: &SendRequest<'_>) -> Takeover {
        let queues = &endpoint.queues;
        // To wake a thread that waits for the completion takes a system call, for which no other poster is to
        // wait.
        let wakes = queues.send_cq.is_armed() && queues.reports(request.flags);
        let is_free = self.is_idle(endpoint) && !wakes && self.has_begun(endpoint);
        let is_reading = endpoint.reading.load(Ordering::Relaxed) > 0;
        if !is_free || is_reading || request.flags.contains(SendFlags::FENCE) {
            return Takeover::No;
        }
        let length = match request.data {
            Data::Registered(sges) | Data::InlineAt(sges) => {
                sges.iter().fold(0, |sum, sge| sge.length as usize + sum)
            }
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| slice.len() + sum),
        };
        let Some(near) = &mut self.near else { return Takeover::No };
        if length > LONGEST_HERE || !near.takes(length as u32) {
            return Takeover::No;
        }
        let Some(sequence) = queues.send.place(&mut self.cursor, request) else { return Takeover::No };
        let mut tx = near.channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(START + length) else { return Takeover::No };
        if length > 0 {
            // SAFETY: the slot has room for so much behind the first words, and is written by pointer alone.
            let gathered = unsafe {
                let target = slot.as_mut_ptr().add(START);
                match request.data {
                    Data::Registered([sge]) => queues.gather_element_to(&mut near.reader, sge, target),
                    _ => queues.gather_to(&mut near.reader, &queues.send.read(sequence), target),
                }
            };
            if gathered.is_err() {
                return Takeover::No;
            }
        }
        let said =
            near.said(self.progress.made(), request.opcode, length as u32, request.immediate, request.flags);
        if let Some(observed) = &mut self.observed {
            observed.leaves_by_channel(endpoint, &said, sequence, self.progress.by_channel());
        }
        // PRACTICE-ORDER-1
        let round = endpoint.rounds.begin();
        slot.write_words(said.words());
        slot.publish();
        let follows = tx.producer.peer_sleeps();
        drop(tx);
        near.sent = near.sent.wrapping_add(weight(length as u32));
        self.progress.add_message();
        count(endpoint, &said);
        queues.send.enter_sent(&mut self.cursor);
        queues.complete_send(sequence, Status::Success);
        endpoint.rounds.end(round);
        Takeover::Sent { follows }
    }

    /// The channel to the peer's process.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        self.near.as_ref().map(|near| near.channel.clone())
    }
}

#[inline]
fn count(endpoint: &Endpoint, said: &RecordHead) {
    let counters = endpoint.queues.counters;
    // A Write that was carried out has been counted.
    counters.tx_messages.add(u64::from(said.written == 0));
    counters.tx_bytes.add(said.length.into());
    counters.tx_frames.add(1);
    counters.tx_local.add(1);
}
