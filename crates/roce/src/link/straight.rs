//! The straight way of most messages between processes of one host: a Send of one packet, with nothing before it that waits. It goes from the post into the
//! channel, and from the channel into its receive, and no headers are written on the way ([`Straight`]). Requester and responder count it all the same.
//! So whatever is out of the ordinary is left to the ways that all packets take, at any moment and on either side.

use super::{ACKNOWLEDGE_EVERY, Link, Taken};
use crate::endpoint::Endpoint;
use crate::host::{NOWHERE, Requests};
use crate::local::{self, Channel, Straight, straight};
use crate::sweep::Sweep;
use crate::time;
use adverb_core::memory::Source;
use adverb_core::qp::SendCursor;
use adverb_core::request::{
    Completion, CompletionFlags, CompletionOpcode, Data, Opcode, SendFlags, SendRequest,
};
use adverb_core::transport::TakenOver;
use adverb_core::watch;
use adverb_proto::ib::{Operation, Request, Service};
use std::time::Duration;

impl Link {
    /// Sends a request that is being posted, if it can go straight. The poster has the posts' lock. `follows`: the peer sleeps, and this thread alone is told; it is to ring.
    #[inline(always)]
    pub(crate) fn post_straight(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
    ) -> TakenOver {
        let queues = &endpoint.queues;
        let (Some(requester), Some(channel)) = (&mut self.requester, &self.channel) else {
            return TakenOver::No;
        };
        // A fence holds nothing back where no Read is without an answer.
        let is_fenced = request.flags.contains(SendFlags::FENCE) && !requester.is_idle() && !requester.runs();
        if self.service != Service::Rc
            || !requester.is_clear()
            || is_fenced
            || channel.is_dead()
            || watch::packets()
        {
            return TakenOver::No;
        }
        let length = match request.data {
            Data::Registered([sge]) | Data::InlineAt([sge]) => sge.length as usize,
            Data::Registered(sges) | Data::InlineAt(sges) => {
                sges.iter().fold(0, |sum, sge| sge.length as usize + sum)
            }
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| slice.len() + sum),
        };
        if length > local::LONGEST_HERE {
            return TakenOver::No;
        }
        let Some(sequence) = queues.send.place(cursor, request) else { return TakenOver::No };
        let mut tx = channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(straight::START + length) else { return TakenOver::No };
        match request.data {
            _ if length == 0 => {}
            Data::Registered(sges) => {
                // SAFETY: the slot has room for so much behind the first words, and is written by pointer alone.
                let gathered = unsafe {
                    let target = slot.as_mut_ptr().add(straight::START);
                    match sges {
                        [sge] => queues.gather_element_to(&mut self.reader, sge, target),
                        _ => queues.gather_to(&mut self.reader, &queues.send.read(sequence), target),
                    }
                };
                // A fault is not reported here: the request is queued, and the way of all packets finds and reports the fault.
                if gathered.is_err() {
                    return TakenOver::No;
                }
            }
            Data::InlineAt(_) | Data::Inline(_) => {
                slot.write_words_from(straight::WORDS, queues.send.inline_words(sequence, length));
            }
        }
        let acknowledged = self.responder.take_acknowledgement();
        if acknowledged.is_some() {
            self.unacknowledged = 0;
        }
        let immediate = (request.opcode == Opcode::SendWithImmediate).then_some(request.immediate);
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let as_request = || Request {
            sequence,
            operation: Operation::Send { immediate: immediate.map(u32::from_be), invalidate: None },
            length: length as u32,
            solicited,
            fence: false,
            shared_queue: 0,
        };
        let straight = Straight {
            destination: self.destination,
            number: requester.send_at_once(sequence, time::late, as_request),
            length: length as u32,
            immediate,
            solicited,
            acknowledged,
        };
        slot.write_words(straight.words());
        slot.publish();
        let follows = tx.producer.peer_sleeps();
        let (counters, alone) = (queues.counters, channel.counts_alone());
        counters.tx_messages.count(1, alone);
        counters.tx_bytes.count(length as u64, alone);
        counters.tx_frames.count(1, alone);
        counters.tx_local.count(1, alone);
        drop(tx);
        queues.send.enter_sent(cursor);
        TakenOver::Sent { follows }
    }

    /// Takes in a message that has come straight, if it comes next, nothing on this side is under way or has failed, and there is a receive with room
    /// for it. `None`: it is still to be taken in, as a packet. `has_work`: whether the program has posted what is not entered yet.
    #[inline]
    pub(crate) fn receive_straight(
        &mut self,
        endpoint: &Endpoint,
        straight: &Straight,
        (channel, payload): (&Channel, &Source<'_>),
        has_work: impl FnOnce() -> bool,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Option<Taken> {
        if self.service != Service::Rc
            || !self.responder.is_clear_for(straight.number, straight.length)
            || !self.heard
            || self.refused.is_some()
            || self.has_held()
            || !self.goes_by(channel)
            || watch::packets()
        {
            return None;
        }
        let queues = &endpoint.queues;
        let mut taken = Taken { brings_no_deadline: true, owes: true, ..Taken::default() };
        // The order is that of all packets: first the acknowledgement, then the debt, then the bytes, since a program may poll the bytes. Where this function gives up, the way of all
        // packets does the first two once more, without effect.
        if let Some(number) = straight.acknowledged
            && let Some(requester) = &mut self.requester
        {
            let mut host = Requests { queues, elsewhere: &NOWHERE, channel: Some(channel) };
            let feedback = requester.acknowledged(number, now, &mut host);
            taken.transmit = has_work() || requester.has_unsent();
            self.learn(endpoint, feedback, now, &mut sweep.ready);
            if feedback.failed {
                taken.failed = true;
                return Some(taken);
            }
        }
        // What the program sends by another queue pair, once it sees what this message brings, waits for the lock.
        // PRACTICE-ORDER-1
        endpoint.owe();
        let work = queues.take_receive()?;
        let fits = u64::from(straight.length) <= work.room;
        if !fits || queues.scatter_receive(&mut self.receives, &work, 0, payload).is_err() {
            // The way of all packets takes the same receive, finds the same, and tells the peer and the program.
            self.responder.give_receive(work.room);
            self.taken = Some(work);
            return None;
        }
        let alone = sweep.counts_alone;
        let counters = queues.counters;
        counters.rx_frames.count(1, alone);
        counters.rx_bytes.count(straight.length.into(), alone);
        counters.rx_messages.count(1, alone);
        counters.rx_sends.count(1, alone);
        // IB-RC-RSP-37
        let completion = Completion {
            wr_id: work.wr_id,
            opcode: CompletionOpcode::Receive,
            flags: straight.immediate.map_or(CompletionFlags::empty(), |_| CompletionFlags::WITH_IMMEDIATE),
            byte_length: straight.length,
            immediate: straight.immediate.unwrap_or(0),
            queue_pair: queues.number,
            ..Completion::EMPTY
        };
        queues.complete_receive(&work, completion, straight.solicited);
        self.responder.took_send();
        self.unacknowledged += 1;
        taken.transmit |= self.unacknowledged >= ACKNOWLEDGE_EVERY;
        Some(taken)
    }
}
