//! What most messages between processes of one host are: a Send of one short packet, with nothing before it that waits. It goes straight from the post
//! into the channel, together with the acknowledgement that is due. Whatever is out of the ordinary is left to [`Link::send`], which would have done
//! the same.

use super::{ACKNOWLEDGE_EVERY, Link, Taken};
use crate::endpoint::{Endpoint, Host};
use crate::host::{NOWHERE, Requests, source};
use crate::local::{self, record};
use crate::sweep::Sweep;
use crate::time;
use adverb_core::qp::SendCursor;
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Opcode, SendFlags};
use adverb_core::watch;
use adverb_proto::ib::{self, Request, SendHead};
use adverb_wire::ib::header::DEFAULT_PKEY;
use adverb_wire::ib::opcode::{Operation, Service as WireService};
use adverb_wire::ib::packet::Packet;
use std::time::Duration;

/// What has become of what was posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// All of it has been sent.
    pub(crate) all: bool,
    /// The other side sleeps, and is to be woken.
    pub(crate) rings: bool,
}

impl Link {
    /// Sends what was posted before `until`, up to the first request that is not short and simple.
    #[inline]
    pub(crate) fn send_short(&mut self, endpoint: &Endpoint, cursor: &mut SendCursor, until: u64) -> Sent {
        let queues = &endpoint.queues;
        let mut sent = Sent::default();
        let (Some(requester), Some(channel)) = (&mut self.requester, &self.channel) else { return sent };
        if !self.reliable || !requester.is_clear() || channel.is_dead() || watch::packets() {
            return sent;
        }
        let now = time::late();
        let mut count = 0;
        let mut bytes = 0;
        let mut tx = channel.tx.lock();
        let producer = &mut tx.producer;
        sent.all = loop {
            let Some(work) = queues.send.peek(cursor) else { break true };
            let length = work.length as usize;
            if !matches!(work.opcode, Opcode::Send | Opcode::SendWithImmediate)
                || work.flags.contains(SendFlags::FENCE)
                || length > local::LONGEST_HERE
                || work.sequence >= until
                || !requester.is_clear()
            {
                break false;
            }
            let immediate = (work.opcode == Opcode::SendWithImmediate).then(|| u32::from_be(work.immediate));
            let headers = SendHead::length_of(self.service, immediate.is_some());
            let behind = record::START + headers;
            let Some(mut slot) = producer.reserve(behind + length) else { break false };
            if length > 0 {
                // SAFETY: the slot has room for so much behind the headers, and is written by pointer alone.
                let gathered = unsafe {
                    let target = slot.as_mut_ptr().add(behind);
                    queues.gather_to(&mut self.reader, &work, target)
                };
                // A fault is found again, and told, by who looks next.
                if gathered.is_err() {
                    break false;
                }
            }
            let request = Request {
                sequence: work.sequence,
                operation: ib::Operation::Send { immediate, invalidate: None },
                length: work.length,
                solicited: work.flags.contains(SendFlags::SOLICITED),
                fence: false,
                shared_queue: work.shared_queue,
            };
            let head = requester.send_at_once(request, now);
            cursor.advance();
            let acknowledged = self.responder.take_acknowledgement();
            if acknowledged.is_some() {
                self.unacknowledged = 0;
            }
            slot.write_words(record::words(headers, length, acknowledged, &head.base));
            if !head.extensions().is_empty() {
                slot.write_at(record::START + head.base.len(), head.extensions());
            }
            slot.publish();
            count += 1;
            bytes += u64::from(work.length);
        };
        sent.rings = count > 0 && producer.peer_sleeps();
        if count > 0 {
            let (counters, alone) = (queues.counters, channel.counts_alone());
            counters.tx_messages.count(count, alone);
            counters.tx_bytes.count(bytes, alone);
            counters.tx_frames.count(count, alone);
            counters.tx_local.count(count, alone);
        }
        sent
    }

    /// Takes in a Send of one packet that comes next, if nothing on this side is under way or has failed, and there is a receive with room for it. None: it is still to be taken in.
    #[inline]
    pub(crate) fn receive_short(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        from: &Host<'_>,
        has_work: bool,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Option<Taken> {
        let (bth, opcode) = (packet.bth(), packet.opcode());
        if !matches!(opcode.operation(), Operation::SendOnly | Operation::SendOnlyImmediate)
            || opcode.service() != WireService::Rc
            || bth.pkey() != DEFAULT_PKEY
            || bth.becn()
            || !self.responder.is_clear_for(packet)
            || !self.heard
            || self.refused.is_some()
            || self.has_held()
            || !self.goes_by(from.channel)
            || watch::packets()
        {
            return None;
        }
        let queues = &endpoint.queues;
        let mut taken = Taken { brings_no_deadline: true, ..Taken::default() };
        // The order is that of all packets: first the acknowledgement, then the debt, then the bytes, since a program may poll the bytes. Where this function gives up, the way of all
        // packets does the first two once more, without effect.
        if let Some(number) = from.acknowledged
            && let Some(requester) = &mut self.requester
        {
            let mut host = Requests { queues, elsewhere: &NOWHERE, channel: Some(from.channel) };
            let feedback = requester.acknowledged(number, now, &mut host);
            taken.transmit = has_work || requester.has_unsent();
            self.learn(endpoint, feedback, now, &mut sweep.ready);
            if feedback.failed {
                taken.failed = true;
                return Some(taken);
            }
        }
        // What the program sends by another queue pair, once it sees what this packet brings, waits for the lock.
        // PRACTICE-ORDER-1
        taken.owes = bth.ack_request();
        if taken.owes {
            endpoint.owe();
        }
        let work = queues.take_receive()?;
        let length = packet.payload().len();
        let payload = source(packet.payload(), from.elsewhere);
        let fits = length as u64 <= work.room;
        if !fits || queues.scatter_receive(&mut self.receives, &work, 0, &payload).is_err() {
            // The way of all packets takes the same receive, finds the same, and tells the peer and the program.
            self.responder.give_receive(work.room);
            self.taken = Some(work);
            return None;
        }
        let alone = sweep.counts_alone;
        let counters = queues.counters;
        counters.rx_frames.count(1, alone);
        counters.rx_bytes.count(length as u64, alone);
        counters.rx_messages.count(1, alone);
        counters.rx_sends.count(1, alone);
        // IB-RC-RSP-37
        let immediate = packet.immediate();
        let completion = Completion {
            wr_id: work.wr_id,
            opcode: CompletionOpcode::Receive,
            flags: immediate.map_or(CompletionFlags::empty(), |_| CompletionFlags::WITH_IMMEDIATE),
            byte_length: length as u32,
            immediate: immediate.map_or(0, u32::to_be),
            queue_pair: queues.number,
            ..Completion::default()
        };
        queues.complete_receive(&work, completion, bth.solicited());
        self.responder.took_send(packet);
        self.unacknowledged += 1;
        taken.transmit |= taken.owes && self.unacknowledged >= ACKNOWLEDGE_EVERY;
        Some(taken)
    }
}
