//! Sending: turns at the lane, acknowledgements, and packets that a deadline calls for.

use super::{DeadlineScan, Endpoint, EndpointKind, EndpointState, MOST_PACKETS_AT_ONCE, Turn};
use crate::batch::Batch;
use crate::link::Link;
use crate::time;
use adverb_core::qp::State;
use adverb_core::reactor::{Readiness, Source};
use adverb_wire::ib::header::MAX_HEADER;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How soon polls try again to carry out a request about keys.
const TRY_AGAIN: Duration = Duration::from_millis(1);

impl Endpoint {
    /// Queues it in the lane for a turn at sending.
    pub(crate) fn enqueue(&self) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            self.lane.enqueue(self.this());
        }
    }

    /// Queues it, and has its lane send. With no queue pair's lock held, and not the table's.
    pub(crate) fn ring(&self) {
        self.enqueue();
        self.lane.transmit();
    }

    /// Whether the queue pair has a delayed acknowledgement.
    #[inline]
    pub(crate) fn has_pending_ack(&self) -> bool {
        self.is_ack_pending.load(Ordering::Relaxed)
    }

    /// The queue pair's turn has come: a post from now on needs another turn.
    pub(crate) fn dequeued(&self) {
        self.gather.taken();
        // A swap and no plain store: a posting thread that found the endpoint queued has posted before, and
        // this thread sees that post from now on.
        self.is_queued.swap(false, Ordering::SeqCst);
    }

    /// Builds packets into the batch, of requests that were posted before `until`. Returns whether there are
    /// more.
    #[inline]
    pub(crate) fn fill(&self, batch: &mut Batch, now: Duration, until: u64) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else {
            return false;
        };
        let EndpointState { state, cursor, kind, .. } = &mut *inner;
        let mut turn = Turn::default();
        match kind {
            EndpointKind::Nothing => return false,
            EndpointKind::Connected(link) => {
                self.gather.begin(until);
                let first = link.answers_first(&self.queues.send, cursor, batch);
                if first > 0 {
                    turn.more |= link.respond(self, batch, first, now, &mut space);
                }
                if matches!(state, State::Rts | State::Sqd) {
                    let more = turn.more;
                    turn = link.send(self, (cursor, until), batch, MOST_PACKETS_AT_ONCE, now, &mut space);
                    turn.more |= more || self.queues.send.posted() > until;
                }
                // Also when a request of ours has failed in this turn: messages of the peer were received,
                // and it must learn that.
                turn.more |= link.respond(self, batch, MOST_PACKETS_AT_ONCE, now, &mut space);
                self.settled(link);
                self.gather.learn(link);
                turn.failed |= link.has_ended();
                let deadline = link.deadline();
                if let Some(deadline) = deadline {
                    self.expect(deadline);
                }
            }
            EndpointKind::Datagram(link) => {
                if *state == State::Rts {
                    turn = link.send(self, (cursor, until), batch, MOST_PACKETS_AT_ONCE, now, &mut space);
                    turn.more |= self.queues.send.posted() > until;
                }
            }
        }
        // IB-UC-16, IB-UD-9
        if turn.stopped {
            *state = State::Sqe;
            return false;
        }
        if turn.failed {
            self.fail_and_ring(inner);
            return false;
        }
        let has_held = matches!(&inner.kind, EndpointKind::Connected(link) if link.has_held());
        let begins = turn.goes_on_beside && self.beside.copying.begin();
        drop(inner);
        if begins {
            self.beside.go_on(self);
        }
        if has_held {
            turn.more |= self.take_held(now);
        }
        // The lane finds it queued, and goes on.
        if self.busy.take_note() {
            self.enqueue();
            self.beside.look_again();
        }
        turn.more
    }

    /// Adds the pending acknowledgement. False: not now, as the queue pair is busy.
    pub(crate) fn acknowledge(&self, batch: &mut Batch, now: Duration) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else {
            return false;
        };
        self.is_listed.store(false, Ordering::Relaxed);
        if let EndpointKind::Connected(link) = &mut inner.kind {
            let more = link.respond(self, batch, 1, now, &mut space);
            // A thread that finds no pending acknowledgement may send at once.
            self.set_pending_ack(false);
            if more {
                self.enqueue();
            }
            if link.has_ended() {
                self.fail_and_ring(inner);
            }
        } else {
            self.set_pending_ack(false);
        }
        true
    }

    /// An acknowledgement may have left.
    #[inline(always)]
    pub(crate) fn settled(&self, link: &Link) {
        if self.has_pending_ack() && !link.has_pending_reply() {
            self.set_pending_ack(false);
        }
    }

    /// The lane counts it among those with a pending acknowledgement, or not. With the lock.
    #[inline]
    pub(super) fn set_pending_ack(&self, is_pending: bool) {
        if self.has_pending_ack() != is_pending {
            self.is_ack_pending.store(is_pending, Ordering::Relaxed);
            self.lane.count_pending_ack(is_pending);
        }
    }

    /// Posts that went beside the lane have brought deadlines.
    #[cold]
    pub(super) fn expect_after_post(&self) {
        // A thread that is in the middle of a system call with the lock has the lane look afterwards, which
        // sets the timer.
        if !self.is_timed()
            && let Some(inner) = self.lock_unless_busy()
            && let EndpointKind::Connected(link) = &inner.kind
            && let Some(deadline) = link.deadline()
        {
            self.expect(deadline);
        }
    }

    /// Whether the lane looks at its deadline.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.is_timed.load(Ordering::Relaxed)
    }

    /// A deadline counts from now on. With the lock.
    #[inline]
    pub(super) fn expect(&self, deadline: Duration) {
        if !self.is_timed() && !self.is_timed.swap(true, Ordering::SeqCst) {
            self.lane.time(self.this(), deadline);
        } else {
            self.lane.hasten(deadline);
        }
    }

    /// A request about keys is to be tried again: by polls, too, since the background thread may be the one
    /// that is waited for. With the lock.
    #[cold]
    pub(crate) fn tries_again(&self) {
        self.expect(time::now() + TRY_AGAIN);
    }

    /// Looks at its deadline. Without one it leaves the lane's list. `ready`: others that may send now.
    pub(crate) fn serve_deadline(&self, now: Duration, ready: &mut Vec<Arc<Endpoint>>) -> DeadlineScan {
        const SOON: Duration = Duration::from_micros(100);
        let Some(mut inner) = self.lock_unless_busy() else {
            return DeadlineScan { deadline: Some(now + SOON), transmit: false };
        };
        let EndpointKind::Connected(link) = &mut inner.kind else {
            self.is_timed.store(false, Ordering::SeqCst);
            return DeadlineScan { deadline: None, transmit: false };
        };
        let mut transmit = false;
        if link.deadline().is_some_and(|deadline| deadline <= now) {
            let failed = link.handle_timeout(self, now, ready);
            if failed {
                self.is_timed.store(false, Ordering::SeqCst);
                self.fail(inner, ready);
                return DeadlineScan { deadline: None, transmit: false };
            }
            transmit = true;
            self.gather.learn(link);
            self.enqueue();
        }
        let EndpointKind::Connected(link) = &inner.kind else { unreachable!("it was a moment ago") };
        let mut deadline = link.deadline();
        if deadline.is_none() && self.queues.state() == State::Rts && self.queues.waits_for_uses() {
            deadline = Some(now + TRY_AGAIN);
            transmit = true;
            self.enqueue();
        }
        if deadline.is_none() {
            self.is_timed.store(false, Ordering::SeqCst);
        }
        DeadlineScan { deadline, transmit }
    }
}

/// The background thread tries a request about keys again.
pub(crate) struct TryAgain(Weak<Endpoint>);

impl TryAgain {
    pub(crate) fn of(endpoint: &Endpoint) -> Arc<dyn Source> {
        Arc::new(Self(endpoint.weak()))
    }
}

impl Source for TryAgain {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.ring();
        }
    }
}
