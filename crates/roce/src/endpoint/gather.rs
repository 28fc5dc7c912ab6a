//! Which posts wait for company: those behind packets of the same queue pair that are not acknowledged yet.
//!
//! A first post leaves at once, and so does the second, a header and its payload, say: a message and its answer take no longer. With more under way the program
//! streams, and a packet that leaves a little later arrives no later than it could be taken in. What is put off leaves when it fills a train; when the program polls
//! or arms a completion queue of the lane, or changes or destroys the queue pair; with an acknowledgement, since whoever takes that in looks for work;
//! or by the timer of [`Gathering`](adverb_core::gathering::Gathering), which also says whether the program polls at all. By a channel within a host nothing waits, nor do unreliable messages,
//! of which nothing is acknowledged.

use super::Endpoint;
use crate::batch::Load;
use crate::link::Link;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// So many packets must be unacknowledged.
const UNDER_WAY: u32 = 2;

/// What a queue pair knows of its posts. Not exact where two threads post: then a train leaves with one packet more or less.
#[derive(Default)]
pub(super) struct Gather {
    /// Packets by the network without an acknowledgement. Changed with the queue pair's lock.
    unanswered: AtomicU32,
    /// What has been put off since packets were last built.
    load: AtomicU32,
    /// Behind the last request that is in it.
    counted: AtomicU64,
    /// It is queued since something was put off: nobody is about to send for it.
    is_put_off: AtomicBool,
}

impl Gather {
    /// Packets are being built of what was posted before `until`: what is put off from now on is for another train.
    #[inline]
    pub(super) fn begin(&self, until: u64) {
        self.load.store(0, Ordering::Relaxed);
        self.counted.store(until, Ordering::Relaxed);
    }

    /// With the queue pair's lock, when something has been sent, acknowledged, or is to be sent again.
    #[inline]
    pub(super) fn learn(&self, link: &Link) {
        self.unanswered.store(link.unanswered_by_network(), Ordering::Relaxed);
    }

    /// Whether it may be queued without anybody who is about to send.
    #[inline]
    pub(super) fn is_put_off(&self) -> bool {
        self.is_put_off.load(Ordering::SeqCst)
    }

    /// Somebody is about to send.
    #[inline]
    pub(super) fn taken(&self) {
        self.is_put_off.store(false, Ordering::Relaxed);
    }

    /// There is no peer any more.
    pub(super) fn forget(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Something has been posted: it leaves, or is put off.
    #[inline]
    pub(super) fn send_or_put_off(&self) {
        if self.gather.unanswered.load(Ordering::Relaxed) < UNDER_WAY
            || !self.lane.gathering().expects_polls()
            || self.queues.send_cq.is_armed()
        {
            self.lane.transmit_for(self);
        } else if self.fills_train() {
            self.lane.transmit_for(self);
            // Whoever posts so much need not be interrupted by the background thread for each acknowledgement.
            self.lane.take_in_with_post();
        } else {
            // First: who finds it queued sends for it, unless this says that it waits.
            self.gather.is_put_off.store(true, Ordering::SeqCst);
            self.enqueue();
            self.lane.gathering().put_off();
        }
    }

    /// Whether what has been posted had better leave, as it fills a train.
    fn fills_train(&self) -> bool {
        let queue = &self.queues.send;
        let posted = queue.posted();
        let counted = self.gather.counted.load(Ordering::Relaxed);
        self.gather.counted.store(posted, Ordering::Relaxed);
        let mut load = Load::from_bits(self.gather.load.load(Ordering::Relaxed));
        // More fill any train.
        let first = counted.max(posted.saturating_sub(Load::MOST));
        for sequence in first..posted {
            load.add(queue.length_of(sequence));
        }
        self.gather.load.store(load.bits(), Ordering::Relaxed);
        load.fills_train()
    }
}
