//! What most messages between processes of one host are: a Send of one short packet, with nothing before it that waits. It goes straight from the post
//! into the channel, together with the acknowledgement that is due. Whatever is out of the ordinary is left to [`Link::send`], which would have done
//! the same.

use super::Link;
use crate::endpoint::Endpoint;
use crate::local::{self, record};
use crate::time;
use adverb_core::qp::SendCursor;
use adverb_core::request::{Opcode, SendFlags};
use adverb_core::watch;
use adverb_proto::ib::{Operation, Request};
use adverb_wire::ib::header::MAX_HEADER;

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
        let mut space = [0; MAX_HEADER];
        let mut tx = channel.tx.lock();
        let local::Tx { producer, scratch } = &mut *tx;
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
            let Some(mut slot) = producer.reserve(record::LONGEST_HEAD + length) else { break false };
            let payload = &mut scratch[..length];
            // A fault is found again, and told, by who looks next.
            if length > 0 && queues.gather_with(&mut self.reader, &work, 0, payload).is_err() {
                break false;
            }
            let immediate = (work.opcode == Opcode::SendWithImmediate).then(|| u32::from_be(work.immediate));
            let request = Request {
                sequence: work.sequence,
                operation: Operation::Send { immediate, invalidate: None },
                length: work.length,
                solicited: work.flags.contains(SendFlags::SOLICITED),
                fence: false,
                shared_queue: work.shared_queue,
            };
            let header = requester.send_at_once(request, now, &mut space);
            cursor.advance();
            let acknowledged = self.responder.take_acknowledgement();
            if acknowledged.is_some() {
                self.unacknowledged = 0;
            }
            let headers = &space[..header];
            let start = record::here(header, length, acknowledged);
            let behind = record::START + header;
            slot.shorten(behind + length);
            if behind + length <= record::SHORT {
                // Whole words at once.
                let mut whole = [0; record::SHORT];
                whole[..record::START].copy_from_slice(&start);
                whole[record::START..behind].copy_from_slice(headers);
                whole[behind..behind + length].copy_from_slice(payload);
                slot.write_at(0, &whole[..behind + length]);
            } else {
                slot.write_at(0, &start);
                slot.write_at(record::START, headers);
                slot.write_at(behind, payload);
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
}
