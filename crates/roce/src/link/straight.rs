//! The straight way of most messages between processes of one host: a Send of one packet, with nothing before it that waits. It goes from the post into the
//! channel, and from the channel into its receive, and no headers are written on the way ([`Straight`]). Requester and responder count it all the same.
//! So whatever is out of the ordinary is left to the ways that all packets take, at any moment and on either side.

use super::{ACKNOWLEDGE_EVERY, Link, Taken};
use crate::endpoint::Endpoint;
use crate::host::{NOWHERE, Requests};
use crate::local::{self, Channel, Straight, straight};
use crate::observer::{self, Direction};
use crate::sweep::Sweep;
use adverb_core::memory::{Reader, Source};
use adverb_core::qp::{Queues, SendCursor};
use adverb_core::request::{
    Completion, CompletionFlags, CompletionOpcode, Data, Opcode, SendFlags, SendRequest, Sge,
};
use adverb_core::transport::TakenOver;
use adverb_core::watch;
use adverb_local::Slot;
use adverb_proto::ib::{Operation, Request, Service};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a request that is being posted sends. Most requests have one element, or a few bytes that need no key: each of the two has a way of its own all along, which is short.
trait Body {
    /// What is known of the request once it has its place in the queue.
    type Placed;

    /// Bytes.
    fn length(&self) -> usize;

    /// Writes the request to its place in the queue. Returns its number, too.
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, Self::Placed)>;

    /// Writes the bytes into a slot, behind its first words. False after a fault.
    fn fill(&self, placed: Self::Placed, slot: &mut Slot<'_>, reader: &mut Reader) -> bool;
}

/// One element.
struct Element<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
    sge: &'a Sge,
}

impl Body for Element<'_> {
    type Placed = ();

    #[inline(always)]
    fn length(&self) -> usize {
        self.sge.length as usize
    }

    #[inline(always)]
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, ())> {
        Some((self.queues.send.place_element(cursor, self.request, self.sge)?, ()))
    }

    #[inline(always)]
    fn fill(&self, (): (), slot: &mut Slot<'_>, reader: &mut Reader) -> bool {
        // SAFETY: the slot has room for so much behind the first words, and is written by pointer alone.
        let gathered = unsafe {
            let target = slot.as_mut_ptr().add(straight::START);
            self.queues.gather_element_to(reader, self.sge, target)
        };
        gathered.is_ok()
    }
}

/// Bytes that need no key.
struct Bare<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
    address: usize,
    length: usize,
}

impl<'a> Body for Bare<'a> {
    type Placed = &'a [AtomicU64];

    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, &'a [AtomicU64])> {
        self.queues.send.place_bare(cursor, self.request, (self.address, self.length))
    }

    #[inline(always)]
    fn fill(&self, words: &'a [AtomicU64], slot: &mut Slot<'_>, _: &mut Reader) -> bool {
        match words {
            [word] => slot.write_word(straight::WORDS, word.load(Ordering::Relaxed)),
            words => {
                slot.write_words_from(straight::WORDS, words.iter().map(|word| word.load(Ordering::Relaxed)))
            }
        }
        true
    }
}

/// Several elements, or several slices.
struct Pieces<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
}

impl Body for Pieces<'_> {
    type Placed = u64;

    fn length(&self) -> usize {
        match self.request.data {
            Data::Registered(sges) | Data::InlineAt(sges) => {
                sges.iter().fold(0, |sum, sge| sge.length as usize + sum)
            }
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| slice.len() + sum),
        }
    }

    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, u64)> {
        let sequence = self.queues.send.place(cursor, self.request)?;
        Some((sequence, sequence))
    }

    fn fill(&self, sequence: u64, slot: &mut Slot<'_>, reader: &mut Reader) -> bool {
        // SAFETY: as for one element.
        let gathered = unsafe {
            let target = slot.as_mut_ptr().add(straight::START);
            self.queues.gather_to(reader, &self.queues.send.read(sequence), target)
        };
        gathered.is_ok()
    }
}

impl Link {
    /// Sends a request that is being posted, if it can go straight. The poster has the posts' lock. `follows`: the peer sleeps, and this thread alone is told; it is to ring.
    #[inline(always)]
    pub(crate) fn post_straight(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
    ) -> TakenOver {
        let queues = &*endpoint.queues;
        let (address, length) = match request.data {
            Data::Registered([sge]) => {
                return self.send_straight((endpoint, cursor, request), Element { queues, request, sge });
            }
            Data::InlineAt([Sge { address, length, .. }]) => (*address as usize, *length as usize),
            Data::Inline([bytes]) => (bytes.as_ptr() as usize, bytes.len()),
            Data::Inline([]) | Data::InlineAt([]) | Data::Registered([]) => (0, 0),
            _ => return self.post_pieces(endpoint, cursor, request),
        };
        self.send_straight((endpoint, cursor, request), Bare { queues, request, address, length })
    }

    /// The same of several elements, or several slices.
    #[inline(never)]
    fn post_pieces(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
    ) -> TakenOver {
        let pieces = Pieces { queues: &endpoint.queues, request };
        self.send_straight((endpoint, cursor, request), pieces)
    }

    #[inline(always)]
    fn send_straight(
        &mut self,
        (endpoint, cursor, request): (&Endpoint, &mut SendCursor, &SendRequest<'_>),
        body: impl Body,
    ) -> TakenOver {
        let (queues, length) = (&endpoint.queues, body.length());
        let is_watched = watch::packets();
        let Some(channel) = &self.channel else { return TakenOver::No };
        if length > local::LONGEST_HERE
            || !self.requester.lets_go(self.service, request.flags.contains(SendFlags::FENCE))
            || channel.is_dead()
            || is_watched && watch::frames()
        {
            return TakenOver::No;
        }
        let Some((sequence, placed)) = body.place(cursor) else { return TakenOver::No };
        let mut tx = channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(straight::START + length) else { return TakenOver::No };
        // A fault is not reported here: the request is queued, and the way of all packets finds and reports the fault.
        if length > 0 && !body.fill(placed, &mut slot, &mut self.reader) {
            return TakenOver::No;
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
        let Some(number) = self.requester.send(sequence, as_request) else { return TakenOver::No };
        let acknowledged = self.responder.take_acknowledgement();
        if acknowledged.is_some() {
            self.unacknowledged = 0;
        }
        let straight = Straight {
            destination: self.destination,
            number,
            length: length as u32,
            immediate,
            solicited,
            acknowledged,
        };
        slot.write_words(straight.words());
        if is_watched {
            observer::straight(
                Direction::To(self.way.route.destination),
                &straight,
                Some((queues.number, sequence)),
            );
        }
        slot.publish();
        let follows = tx.producer.peer_sleeps();
        if self.sent.add(length as u32) || queues.reports(request.flags) {
            self.sent.count_sent(queues.counters, channel.counts_alone());
        }
        tx.release();
        queues.send.enter_sent(cursor);
        TakenOver::Sent { follows }
    }

    /// Whether messages that have come straight by this channel may be taken in as such, as far as that does not depend on each of them.
    #[inline(always)]
    pub(crate) fn takes_straight(&self, channel: &Channel) -> bool {
        self.service == Service::Rc
            && self.heard
            && self.refused.is_none()
            && !self.has_held()
            && self.goes_by(channel)
            && !(watch::packets() && watch::frames())
    }

    /// Takes in such a message, if it comes next, nothing on this side is under way or has failed, and there is a receive with room
    /// for it. False: it is still to be taken in, as a packet. `has_work`: whether the program has posted what is not entered yet. `taken`: what this and the messages before it have brought.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "it is a part of its only caller's loop")]
    pub(crate) fn receive_straight(
        &mut self,
        endpoint: &Endpoint,
        straight: &Straight,
        (channel, payload): (&Channel, &Source<'_>),
        has_work: impl FnOnce() -> bool,
        taken: &mut Taken,
        now: Duration,
        sweep: &mut Sweep,
    ) -> bool {
        if !self.responder.is_clear_for(straight.number, straight.length) {
            return false;
        }
        let queues = &*endpoint.queues;
        // The order is that of all packets: first the acknowledgement, then the debt, then the bytes, since a program may poll the bytes. Where this function gives up, the way of all
        // packets does the first two once more, without effect.
        if let Some(number) = straight.acknowledged {
            taken.transmit |=
                self.take_acknowledged(endpoint, (channel, number), has_work, taken, now, sweep);
            if taken.failed {
                return true;
            }
        }
        // What the program sends by another queue pair, once it sees what this message brings, waits for the lock.
        // PRACTICE-ORDER-1
        endpoint.owe();
        let Some(work) = queues.take_receive() else { return false };
        let fits = u64::from(straight.length) <= work.room;
        if watch::packets() && fits {
            observer::straight(Direction::From(self.way.route.destination), straight, None);
        }
        if !fits || queues.fill_receive(&mut self.receives, &work, payload).is_err() {
            // The way of all packets takes the same receive, finds the same, and tells the peer and the program.
            self.responder.give_receive(work.room);
            self.taken = Some(work);
            return false;
        }
        // IB-RC-RSP-37
        let report = || Completion {
            wr_id: work.wr_id,
            opcode: CompletionOpcode::Receive,
            flags: straight.immediate.map_or(CompletionFlags::empty(), |_| CompletionFlags::WITH_IMMEDIATE),
            byte_length: straight.length,
            immediate: straight.immediate.unwrap_or(0),
            queue_pair: queues.number,
            ..Completion::EMPTY
        };
        queues.succeed_receive(&work, report, straight.solicited);
        self.responder.took_send();
        self.unacknowledged += 1;
        taken.transmit |= self.unacknowledged >= ACKNOWLEDGE_EVERY;
        true
    }

    /// What comes beside such a message: packets of ours are acknowledged. Returns whether there is something to send.
    #[inline(never)]
    fn take_acknowledged(
        &mut self,
        endpoint: &Endpoint,
        (channel, number): (&Channel, u32),
        has_work: impl FnOnce() -> bool,
        taken: &mut Taken,
        now: Duration,
        sweep: &mut Sweep,
    ) -> bool {
        let Some(requester) = &mut *self.requester else { return false };
        let mut host = Requests { queues: &endpoint.queues, elsewhere: &NOWHERE, channel: Some(channel) };
        let feedback = requester.acknowledged(number, now, &mut host);
        let transmit = has_work() || requester.has_unsent();
        self.learn(endpoint, feedback, now, &mut sweep.ready);
        taken.failed = feedback.failed;
        transmit
    }
}
