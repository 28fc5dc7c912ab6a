//! Which posts wait to be gathered: those behind packets of the same queue pair that are not acknowledged
//! yet.
//!
//! A post leaves at once while fewer than [`UNDER_WAY`] packets are unacknowledged: so a message and its
//! answer take no longer. With more of them under way the program streams, and a packet that leaves a little
//! later arrives no later than the peer can take it in. A program that has posted more than [`ROW`] requests
//! since its last poll streams, too, though its peer is faster and has acknowledged everything. Posts that
//! wait leave when they fill a train. They also leave when the program polls or arms a completion queue of
//! the lane, or changes or destroys the queue pair. An acknowledgement has them leave, since the thread that
//! takes it in looks for work; or else the timer of [`Gathering`](adverb_core::gathering::Gathering). Posts
//! do not wait within a host, nor while the completion queue of the sends is armed. Unreliable messages do
//! not wait, since they are not acknowledged.

use super::Endpoint;
use crate::batch::Load;
use crate::link::Link;
use adverb_core::gathering::Gathering;
use adverb_core::qp::Queues;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The posts wait only while so many packets are unacknowledged.
const UNDER_WAY: u32 = 2;
/// Or the program must have posted more than this since it polled last. While the timer runs that sends
/// waiting posts, one is enough.
const ROW: u32 = 4;

/// The posts of a queue pair, as the posting thread counts them. Not exact where two threads post: a train
/// then leaves with one packet more or less.
#[derive(Default)]
pub(super) struct Gather {
    /// Packets by the network without an acknowledgement. Changed with the queue pair's lock.
    unanswered: AtomicU32,
    /// Packets go by the network, and are acknowledged. Changed with the queue pair's lock.
    is_answered: AtomicBool,
    /// The number of polls at the last post, and the posts since.
    polls: AtomicU32,
    row: AtomicU32,
    /// The [`Load`] of the posts that wait.
    load: AtomicU32,
    /// The number behind the last request of that load.
    counted: AtomicU64,
    /// The endpoint is queued because a post waits: no thread is about to send for it. The posting thread
    /// sets this before it queues the endpoint. A thread that takes the endpoint out of the queue clears it
    /// first. If that falls between the two steps of the posting thread, the word is lost: an answer then
    /// waits for the next visit of the lane, or for the timer.
    is_put_off: AtomicBool,
}

impl Gather {
    /// Packets are being built of the requests before `until`: posts that wait from now on are for another
    /// train.
    #[inline]
    pub(super) fn begin(&self, until: u64) {
        self.load.store(0, Ordering::Relaxed);
        self.counted.store(until, Ordering::Relaxed);
    }

    /// Packets have been sent or acknowledged, or are to be sent again. With the queue pair's lock.
    #[inline]
    pub(super) fn learn(&self, link: &Link) {
        self.unanswered.store(link.unanswered_by_network().unwrap_or(0), Ordering::Relaxed);
        self.is_answered.store(link.unanswered_by_network().is_some(), Ordering::Relaxed);
    }

    /// Whether the program streams, with its newest post.
    #[inline]
    fn streams(&self, queues: &Queues, gathering: &Gathering) -> bool {
        let polls = queues.send_cq.polls().wrapping_add(queues.receive_cq.polls());
        let has_polled = self.polls.load(Ordering::Relaxed) != polls;
        let row = if has_polled { 1 } else { self.row.load(Ordering::Relaxed).saturating_add(1) };
        self.polls.store(polls, Ordering::Relaxed);
        self.row.store(row, Ordering::Relaxed);
        self.unanswered.load(Ordering::Relaxed) >= UNDER_WAY
            || self.is_answered.load(Ordering::Relaxed) && (row > ROW || row > 1 && gathering.is_looking())
    }

    /// Whether the endpoint may be queued though no thread is about to send for it.
    #[inline]
    pub(super) fn is_put_off(&self) -> bool {
        self.is_put_off.load(Ordering::SeqCst)
    }

    /// A thread is about to send for the endpoint.
    #[inline]
    pub(super) fn taken(&self) {
        self.is_put_off.store(false, Ordering::Relaxed);
    }

    /// There is no peer any more.
    pub(super) fn forget(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
        self.is_answered.store(false, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Sends the requests that have been posted, or puts them off.
    #[inline]
    pub(super) fn send_or_put_off(&self) {
        if !self.gather.streams(&self.queues, self.lane.gathering())
            || !self.lane.gathering().expects_polls()
            || self.queues.send_cq.is_armed()
        {
            self.lane.transmit_for(self);
        } else if self.fills_train() {
            // A thread that posts whole trains takes in acknowledgements itself, so that the background
            // thread is not woken for each.
            self.lane.transmit_train(self);
        } else {
            // Before it is queued. A thread that takes in a packet and finds the endpoint queued leaves the
            // answer to the thread that sends, unless this word says that no thread will.
            self.gather.is_put_off.store(true, Ordering::SeqCst);
            self.enqueue();
            self.lane.gathering().put_off();
        }
    }

    /// Whether the posts that wait fill a train, with the newest one.
    fn fills_train(&self) -> bool {
        let queue = &self.queues.send;
        let posted = queue.posted();
        let counted = self.gather.counted.load(Ordering::Relaxed);
        self.gather.counted.store(posted, Ordering::Relaxed);
        let mut load = Load::from_bits(self.gather.load.load(Ordering::Relaxed));
        // More requests than that fill any train.
        let first = counted.max(posted.saturating_sub(Load::MOST));
        for sequence in first..posted {
            load.add(queue.length_of(sequence));
        }
        self.gather.load.store(load.bits(), Ordering::Relaxed);
        load.fills_train()
    }
}
