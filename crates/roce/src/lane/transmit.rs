//! A lane sends: what its queue pairs have to send, their acknowledgements, and single packets.

use super::Lane;
use crate::batch::{Batch, FlushOutcome, PacketRoute};
use crate::endpoint::Endpoint;
use crate::impaired::LaneFaults;
use crate::local::Carrier;
use crate::{lock, time};
use adverb_core::reactor::{EDGE, READABLE};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How long the last answers of a queue pair that goes wait for room in a channel.
const LAST_WORD: Duration = Duration::from_millis(200);

impl Lane {
    pub(super) fn send_due(&self, impaired: &LaneFaults, batch: &mut Batch) {
        for parcel in impaired.due_to_leave(time::now()) {
            if !batch.has_room() {
                let _ = self.flush(batch);
            }
            // One that finds no room is lost, as on a full link.
            let _ = batch.add_judged(&parcel.route, &parcel.bytes);
        }
        let _ = self.flush(batch);
    }

    /// The process exits: packets on a slow wire still arrive.
    #[cold]
    pub(super) fn send_kept(&self, impaired: &LaneFaults, batch: &mut Batch) {
        let until = time::now() + LAST_WORD;
        while let Some(next) = impaired.next_to_leave().filter(|next| *next <= until) {
            std::thread::sleep(next.saturating_sub(time::now()));
            self.send_due(impaired, batch);
        }
    }

    /// Asks the wire about packets that are about to leave.
    #[cold]
    pub(super) fn judge(&self, impaired: &LaneFaults, batch: &mut Batch) {
        let now = time::now();
        batch.judge(|route, bytes| {
            let fate = impaired.leaves(self, route, bytes, now);
            if fate.is_lost { 0 } else { 1 + fate.copies as usize }
        });
    }

    /// Queues an endpoint that wants to send; [`Lane::transmit`] follows.
    pub(crate) fn enqueue(&self, endpoint: Arc<Endpoint>) {
        lock(&self.ready).push_back(endpoint);
    }

    /// Lists an endpoint that may have a pending acknowledgement, until it is looked at.
    pub(crate) fn list_ack_candidate(&self, endpoint: Arc<Endpoint>) {
        lock(&self.ack_candidates).push_back(endpoint);
    }

    /// One more listed endpoint has a pending acknowledgement, which goes with the next thing that is sent;
    /// or (`false`) one fewer.
    #[inline]
    pub(crate) fn count_pending_ack(&self, more: bool) {
        if more {
            self.pending_acks.fetch_add(1, Ordering::Release);
        } else {
            self.pending_acks.fetch_sub(1, Ordering::Release);
        }
    }

    /// Whether any endpoint has a pending acknowledgement.
    #[inline]
    pub(crate) fn has_pending_acks(&self) -> bool {
        self.pending_acks.load(Ordering::Acquire) > 0
    }

    /// Sends packets that are due, unless another thread is sending: then that thread looks again.
    #[inline]
    pub(crate) fn transmit(&self) {
        self.work_count.note();
        self.transmit_until_idle(None);
    }

    /// Sends packets that are due, as [`Lane::transmit`] does, but begins with `first`, to which the calling
    /// thread has posted.
    #[inline]
    pub(crate) fn transmit_for(&self, first: &Endpoint) {
        self.work_count.note();
        self.transmit_until_idle(Some(first));
    }

    pub(super) fn transmit_until_idle(&self, mut first: Option<&Endpoint>) {
        loop {
            let Ok(batch) = self.tx.try_lock() else {
                // The thread with the lock finds the endpoint in the queue, and looks there after the note.
                if let Some(endpoint) = first.take() {
                    endpoint.enqueue();
                    self.work_count.note();
                    continue;
                }
                return;
            };
            if !self.take_turn(batch, first.take()) {
                return;
            }
        }
    }

    /// Sends packets that are due. Returns whether another thread has noted work meanwhile: it may have found
    /// the lock taken.
    #[inline]
    pub(super) fn take_turn(&self, mut batch: MutexGuard<'_, Batch>, first: Option<&Endpoint>) -> bool {
        let seen = self.work_count.noted();
        self.gathering().take();
        self.is_sending.store(true, Ordering::Relaxed);
        self.send_all(&mut batch, first);
        self.is_sending.store(!batch.is_empty(), Ordering::Release);
        drop(batch);
        self.work_count.since(seen)
    }

    /// Sends the pending acknowledgements, and returns when they have left, even where another thread sends
    /// them: packets that its caller sends by another lane go behind them. Not held up by a socket that is
    /// full, nor by the kernel's copy for a queue pair.
    // PRACTICE-ORDER-1
    #[cold]
    pub(crate) fn settle_first(&self) {
        if self.has_pending_acks() || self.is_sending.load(Ordering::Acquire) {
            self.send_now();
        }
    }

    /// Sends packets that are due, and returns when they have left, even where another thread sends them;
    /// except for packets without room in the socket.
    pub(crate) fn send_now(&self) {
        if self.take_turn(lock(&self.tx), None) {
            self.transmit_until_idle(None);
        }
    }

    pub(super) fn send_all(&self, batch: &mut Batch, first: Option<&Endpoint>) {
        let mut next = first.map(Endpoint::this);
        if !batch.is_empty() && !self.flush(batch) {
            // Nothing more fits into the socket: the endpoints stay queued.
            if let Some(endpoint) = next {
                endpoint.enqueue();
            }
            return;
        }
        loop {
            // The clock is read anew for each batch: to send one takes time, and more where processors are
            // few.
            let mut read = None;
            let mut now = || *read.get_or_insert_with(time::now);
            while batch.has_room() {
                let Some(endpoint) = next.take().or_else(|| lock(&self.ready).pop_front()) else { break };
                // Requests that are posted behind this may be about messages that come in from now on. They
                // go when those are acknowledged.
                let until = endpoint.queues.send.posted();
                if self.others_have_pending_acks(&endpoint) {
                    self.acknowledge(batch, Some(&endpoint), now());
                }
                endpoint.dequeued();
                if endpoint.fill(batch, now(), until) {
                    // It has more, but others get their turn first.
                    endpoint.enqueue();
                }
            }
            if batch.has_room() && self.has_pending_acks() {
                self.acknowledge(batch, None, now());
            }
            batch.ring();
            if batch.is_empty() {
                return;
            }
            if !self.flush(batch) {
                return;
            }
        }
    }

    /// Whether another endpoint than this one has a pending acknowledgement.
    #[inline]
    pub(crate) fn others_have_pending_acks(&self, endpoint: &Endpoint) -> bool {
        self.pending_acks.load(Ordering::Acquire) > u32::from(endpoint.has_pending_ack())
    }

    /// Adds the pending acknowledgements. `next`: all but those of this endpoint, which sends next; the
    /// messages that the program sends by it may be about those that the other endpoints have received.
    // PRACTICE-ORDER-1
    pub(super) fn acknowledge(&self, batch: &mut Batch, next: Option<&Endpoint>, now: Duration) {
        let is_next = |endpoint: &Endpoint| next.is_some_and(|next| std::ptr::eq(endpoint, next));
        let mut left = lock(&self.ack_candidates).len();
        while left > 0 && batch.has_room() {
            let Some(endpoint) = lock(&self.ack_candidates).pop_front() else { return };
            left -= 1;
            // A busy one finds a note when it is free, and has the lane look again. Those behind it do not
            // wait for that.
            if is_next(&endpoint) || !endpoint.acknowledge(batch, now) {
                self.list_ack_candidate(endpoint);
            }
        }
    }

    /// Sends the batch; false if the socket is full.
    pub(super) fn flush(&self, batch: &mut Batch) -> bool {
        if let Some(impaired) = &self.impaired {
            self.judge(impaired, batch);
        }
        let counters = self.net.counters();
        loop {
            let (flushed, calls) = batch.flush(&self.socket);
            counters.tx_calls.add(calls);
            if flushed == FlushOutcome::All {
                if self.is_full.swap(false, Ordering::SeqCst) {
                    self.set_interest(READABLE | EDGE);
                }
                return true;
            }
            // Said before the last attempt: room that comes after it is an edge at which the background
            // thread finds this said.
            if self.is_full.swap(true, Ordering::SeqCst) {
                return false;
            }
            self.lane_watch().arm();
            self.set_interest(READABLE | EDGE);
        }
    }

    /// Sends one packet of its own, behind those that wait. For management datagrams: it may wait for the
    /// lock.
    pub(crate) fn send_packet(&self, packet_route: &PacketRoute, carrier: &Carrier, packet: &[u8]) {
        let until = time::now() + LAST_WORD;
        while !self.try_packet(packet_route, carrier, packet) {
            // It waits for the other process to take in the records before it, unless that was in vain a
            // moment ago.
            if !carrier.urge(time::now() < until) {
                break;
            }
            std::thread::yield_now();
        }
        self.transmit();
    }

    /// False if there is no room.
    pub(super) fn try_packet(&self, packet_route: &PacketRoute, carrier: &Carrier, packet: &[u8]) -> bool {
        let mut batch = lock(&self.tx);
        if !batch.has_room() {
            let _ = self.flush(&mut batch);
        }
        let mut sink = carrier.sink(&mut batch);
        let has_room = sink.has_room_for(packet.len());
        if has_room {
            let _ = sink.add(packet_route, packet, 0, |_| Ok::<(), ()>(()));
            sink.is_moving();
            self.net.counters().tx_frames.add(1);
        }
        drop(sink);
        batch.ring();
        let _ = self.flush(&mut batch);
        has_room
    }

    /// Returns when the packets that another thread is sending at this instant have left.
    pub(crate) fn wait_for_sender(&self) {
        drop(lock(&self.tx));
        // A thread that had something to send meanwhile may have found the lock taken by this one, which has
        // to send for it.
        self.transmit();
    }
}
