//! The straight way of most messages between processes of one host: a Send of one packet, with nothing before
//! it that waits. It goes from the post to the peer's process, and from there into its receive, and no
//! headers are written on the way ([`Straight`]). Requester and responder count it all the same. So whatever
//! is out of the ordinary is left to the ways that all packets take, at any moment and on either side.

use super::requesting::Requesting;
use super::{ACKNOWLEDGE_EVERY, Link, PacketEffect, PeerLocation};
use crate::endpoint::Endpoint;
use crate::local::{Head, Straight};
use crate::observer::{self, Direction};
use crate::rx_burst::RxBurst;
use adverb_core::memory::Source;
use adverb_core::qp::SendCursor;
use adverb_core::request::{Completion, CompletionFlags, CompletionOpcode, Opcode, SendFlags, SendRequest};
use adverb_core::transport::Takeover;
use adverb_core::watch;
use adverb_proto::ib::{Operation, Request, Responder, Service};
use std::time::Duration;

/// Has requester and responder count a Send that goes straight.
struct Counting<'a> {
    endpoint: &'a Endpoint,
    request: &'a SendRequest<'a>,
    requester: &'a mut Requesting,
    responder: &'a mut Responder,
    unacknowledged: &'a mut u32,
    destination: u32,
    to: Direction,
}

impl Head for Counting<'_> {
    #[inline(always)]
    fn make(self, sequence: u64, length: u32) -> Option<Straight> {
        let Self { request, destination, .. } = self;
        let immediate = (request.opcode == Opcode::SendWithImmediate).then_some(request.immediate);
        let solicited = request.flags.contains(SendFlags::SOLICITED);
        let as_request = || Request {
            sequence,
            operation: Operation::Send { immediate: immediate.map(u32::from_be), invalidate: None },
            length,
            solicited,
            fence: false,
            shared_queue: 0,
        };
        let number = self.requester.send(sequence, as_request)?;
        let acknowledged = self.responder.take_acknowledgement();
        if acknowledged.is_some() {
            *self.unacknowledged = 0;
        }
        let straight = Straight { destination, number, length, immediate, solicited, acknowledged };
        if watch::packets() {
            observer::straight(self.to, &straight, Some((self.endpoint.number(), sequence)));
        }
        Some(straight)
    }
}

impl Link {
    /// Sends a request that is being posted, if it can go straight. The poster has the posts' lock.
    /// `follows`: the peer sleeps, and this thread alone is told; it is to ring.
    #[inline(always)]
    pub(crate) fn post_straight(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
    ) -> Takeover {
        let Self { location: PeerLocation::Near(near), requester, responder, unacknowledged, .. } = self
        else {
            return Takeover::No;
        };
        if !requester.lets_go(self.service, request.flags.contains(SendFlags::FENCE)) {
            return Takeover::No;
        }
        let (destination, to) = (self.destination, Direction::To(self.packet_route.route.destination));
        let head = Counting { endpoint, request, requester, responder, unacknowledged, destination, to };
        near.post(endpoint, cursor, request, head)
    }

    /// Whether messages that come straight may be taken in as such, as far as that does not depend on each of
    /// them.
    #[inline(always)]
    pub(crate) fn takes_straight(&self) -> bool {
        self.service == Service::Rc
            && self.heard
            && self.refused.is_none()
            && !self.has_held()
            && !(watch::packets() && watch::frames())
    }

    /// Takes in such a message, if it comes next, nothing on this side is under way or has failed, and there
    /// is a receive with room for it. False: it is still to be taken in, as a packet. `has_work`: whether the
    /// program has posted what is not entered yet. `taken`: what this and the messages before it have
    /// brought.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "it is a part of its only caller's loop")]
    pub(crate) fn receive_straight(
        &mut self,
        endpoint: &Endpoint,
        straight: &Straight,
        payload: &Source<'_>,
        has_work: impl FnOnce() -> bool,
        taken: &mut PacketEffect,
        now: Duration,
        burst: &mut RxBurst,
    ) -> bool {
        if !self.responder.is_clear_for(straight.number, straight.length) {
            return false;
        }
        let queues = &*endpoint.queues;
        // As for every packet: first the acknowledgement, then the note of the pending answer, then the
        // bytes, which the program may poll. If this function gives up, the packet path repeats the first two
        // without effect.
        if let Some(number) = straight.acknowledged {
            self.take_acknowledgement(endpoint, number, has_work, now, burst, taken);
            if taken.failed {
                return true;
            }
        }
        // From here on, a thread that sends by another queue pair of the lane waits for this lock, and
        // acknowledges first. So a reply to these bytes cannot leave before the acknowledgement.
        // PRACTICE-ORDER-1
        endpoint.delay_ack();
        let Some(work) = queues.take_receive() else { return false };
        let fits = u64::from(straight.length) <= work.room;
        if watch::packets() && fits {
            observer::straight(Direction::From(self.packet_route.route.destination), straight, None);
        }
        if !fits || queues.fill_receive(&mut self.receives, &work, payload).is_err() {
            // The packet path takes the same receive, finds the same, and tells the peer and the program.
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
}
