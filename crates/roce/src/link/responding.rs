//! What is answered on a connection: acknowledgements, the data of reads, notifications of congestion.

use super::{FinalReply, Link};
use crate::batch::Batch;
use crate::endpoint::{Endpoint, MOST_PACKETS_AT_ONCE};
use crate::local::PacketSink;
use adverb_core::memory::{self, Span};
use adverb_core::qp::{Queues, SendCursor, SendQueue};
use adverb_proto::ib::{PendingReply, ReadSource, Refusal, Reply};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, MAX_HEADER};
use adverb_wire::ib::opcode::Opcode as WireOpcode;
use std::time::Duration;

impl Link {
    /// Sends up to `most` packets that the peer waits for. Returns whether there are more.
    #[inline]
    pub(crate) fn respond(
        &mut self,
        endpoint: &Endpoint,
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> bool {
        let more = 'more: {
            let queues = &endpoint.queues;
            if !self.notify && self.responder.pending_reply() == PendingReply::Nothing {
                break 'more false;
            }
            let carrier = self.location.carrier();
            let mut sink = carrier.sink(batch);
            if self.notify {
                self.notify(&mut sink, &endpoint.queues, now, space);
            }
            for _ in 0..most {
                // An acknowledgement is short.
                let short = self.responder.pending_reply() == PendingReply::Acknowledgement;
                if !(if short { sink.has_room_for(MAX_HEADER) } else { sink.has_room() }) {
                    drop(sink);
                    break 'more !carrier.waits(endpoint, true)
                        && self.responder.pending_reply() != PendingReply::Nothing;
                }
                let Some(reply) = self.responder.poll_transmit(space) else { break 'more false };
                self.unacknowledged = 0;
                let head = &space[..reply.header];
                let added = match reply.payload {
                    None => sink.add(&self.packet_route, head, 0, |_| Ok(())),
                    Some(source) if let Some(place) = source.kept => {
                        self.add_kept(&mut sink, head, place, source.length)
                    }
                    Some(source) => sink.add_payload(
                        queues,
                        (&self.packet_route, head, source.length as usize),
                        |target| open(queues, &source)?.read(0, target).map_err(|_| Refusal::Access),
                        |take| {
                            take(open(queues, &source)?);
                            Ok(())
                        },
                    ),
                };
                match added {
                    Ok(()) => {
                        queues.counters.tx_frames.add(1);
                        queues.counters.tx_local.add(carrier.is_within_host().into());
                    }
                    Err(refusal) => self.read_failed(endpoint, &reply, refusal),
                }
            }
            self.responder.pending_reply() == PendingReply::Response
        };
        if !self.kept.is_empty() && !self.responder.keeps() {
            self.kept.clear();
        }
        more || self.has_held()
    }

    // ROCE-34
    /// Tells the peer of congestion. As the next two, a function of its own, so that `respond` takes less of
    /// the stack.
    #[cold]
    #[inline(never)]
    fn notify(
        &mut self,
        sink: &mut PacketSink<'_>,
        queues: &Queues,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) {
        self.notify = false;
        self.notified = now;
        let mut head = HeaderWriter::new(space);
        let bth =
            Bth::new(WireOpcode::CONGESTION_NOTIFICATION, DEFAULT_PKEY, self.destination, 0).with_becn();
        // 16 reserved bytes follow (annex A17.9.3).
        head.put(&bth).put(&[0u8; 16]);
        let count = head.len();
        if sink.has_room() {
            let _ = sink.add(&self.packet_route, &space[..count], 0, |_| Ok::<(), ()>(()));
            queues.counters.congestion_sent.add(1);
        }
    }

    /// The bytes of a read cannot be sent.
    #[cold]
    #[inline(never)]
    fn read_failed(&mut self, endpoint: &Endpoint, reply: &Reply, refusal: Refusal) {
        let verdict = self.responder.read_failed(reply, refusal);
        self.note(endpoint, verdict, true);
    }

    /// Sends bytes of a read that have been taken already.
    #[inline(never)]
    fn add_kept(
        &mut self,
        sink: &mut PacketSink<'_>,
        head: &[u8],
        place: u32,
        length: u32,
    ) -> Result<(), Refusal> {
        let added = sink.add(&self.packet_route, head, length as usize, |target| {
            target.copy_from_slice(self.kept.at(place, length).ok_or(Refusal::Operational)?);
            Ok(())
        });
        self.kept.sent(place.wrapping_add(length));
        added
    }

    /// Whether requests wait for reads before them: [`Link::receive_held`] takes them in once something has
    /// been answered.
    #[inline]
    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether the peer waits for anything.
    #[inline]
    pub(crate) fn has_pending_reply(&self) -> bool {
        self.responder.pending_reply() != PendingReply::Nothing
    }

    /// How many pending packets go before the next request, as with adapters.
    ///
    /// Within the host one, an acknowledgement as a rule: perftest with events counts on the order of
    /// completions. By the network an acknowledgement behind the data is one segment more of the same system
    /// call. There it stays if it is seen first all the same: behind a single packet, in one train that the
    /// peer receives whole.
    // PRACTICE-ORDER-1
    #[inline]
    pub(crate) fn answers_first(
        &self,
        requests: &SendQueue,
        cursor: &mut SendCursor,
        batch: &mut Batch,
    ) -> usize {
        if !self.has_pending_reply() {
            return 0;
        }
        if self.near().is_some() {
            return 1;
        }
        let is_followed = self.responder.pending_reply() == PendingReply::Acknowledgement
            && self.is_whole()
            && batch.forms_trains()
            && !self.notify
            && self.requester.as_ref().is_some_and(|requester| !requester.has_unsent())
            && requests.peek(cursor).is_some_and(|next| {
                // Shorter than an acknowledgement is only a packet without payload.
                let is_one = !next.opcode.is_local() && (1..=self.mtu).contains(&next.length);
                is_one && !requests.has_more_than_one(cursor)
            });
        if is_followed {
            batch.begin_train();
            return 0;
        }
        MOST_PACKETS_AT_ONCE
    }

    /// What is pending as the queue pair goes, up to the data of a read, which may be long: packets without
    /// their CRC.
    pub(crate) fn final_replies(&mut self) -> Vec<FinalReply> {
        let mut words = Vec::new();
        let mut packet = [0; MAX_HEADER];
        while let Some(reply) = self.responder.poll_transmit(&mut packet)
            && reply.payload.is_none()
        {
            words.push(FinalReply {
                packet_route: self.packet_route,
                carrier: self.location.carrier(),
                packet,
                length: reply.header,
            });
        }
        words
    }

    /// Whether the queue pair is in error because the peer's request was refused, and the peer has been told.
    pub(crate) fn has_ended(&self) -> bool {
        self.refused.is_some() && self.responder.pending_reply() == PendingReply::Nothing
    }
}

/// The bytes that a response to a read carries.
fn open<'a>(queues: &'a Queues, source: &ReadSource) -> std::result::Result<Span<'a>, Refusal> {
    // IB-XRC-6
    let domain = match queues.shared_queues() {
        None => queues.domain,
        Some(held) => Queues::shared_queue_domain(&held, source.shared_queue).ok_or(Refusal::Access)?,
    };
    let rights = memory::Access::REMOTE_READ;
    let (key, address, length) = (source.key, source.address, source.length.into());
    // IB-RC-RSP-6, IB-RC-RSP-54
    let span = queues.engine.keys.open_for_peer(key, address, length, rights, domain, queues.number);
    span.map_err(|error| {
        queues.refuse_memory(key, address, length, rights, domain, error);
        Refusal::Access
    })
}
