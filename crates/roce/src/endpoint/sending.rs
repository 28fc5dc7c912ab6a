//! Sending: turns at the lane, requests that are carried out without a packet, acknowledgements, and what a deadline has sent.

use super::{Endpoint, Inner, Kind, Served, TURN, Turn};
use crate::batch::Batch;
use crate::link::Link;
use crate::lock;
use adverb_core::lock::Guard;
use adverb_core::qp::State;
use adverb_core::request::{Opcode, SendRequest};
use adverb_core::transport::TakenOver;
use adverb_samehost::{Carried, Copier};
use adverb_wire::ib::header::MAX_HEADER;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Copier for Endpoint {
    fn carry_on(&self) -> Option<Carried> {
        let inner = self.inner.try_lock()?;
        Some(self.carry_on_with(inner))
    }

    fn is_copying(&self) -> bool {
        self.copying.go_on()
    }
}

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

    /// Whether it owes an acknowledgement that waits for company.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Its turn has come: what happens from now on needs another one.
    pub(crate) fn dequeued(&self) {
        self.gather.taken();
        // A swap and no plain store: a posting thread that found the endpoint queued has posted before, and this thread sees that post from now on.
        self.is_queued.swap(false, Ordering::SeqCst);
    }

    /// The same for who has the lock.
    #[cold]
    pub(super) fn carry_on_with(&self, mut inner: Guard<'_, Inner>) -> Carried {
        let mut channel = None;
        let carried = match &mut *inner {
            // IB-QP-7: in SQD, too, since what has begun ends.
            Inner { state: State::Rts | State::Sqd, cursor, kind: Kind::Connected(link), .. }
                if matches!(self.queues.state(), State::Rts | State::Sqd) =>
            {
                let carried = link.carry_out(self, cursor, Some(&self.busy));
                channel = link.channel();
                // What had begun has ended, or begins anew as a packet.
                if carried != Carried::Part && self.queues.state() == State::Sqd && link.is_quiet() {
                    self.queues.send_queue_drained();
                }
                carried
            }
            _ => Carried::Packets,
        };
        let left = carried != Carried::Part && {
            self.copying.end();
            // What was posted before that, its poster has left to us.
            self.queues.send.has_work(&inner.cursor)
        };
        drop(inner);
        if left {
            self.ring();
        }
        self.catch_up(channel.as_deref());
        carried
    }

    /// What was posted last is carried out by the kernel, as far as a post goes. Returns whether nothing of it is left to its lane.
    #[cold]
    pub(super) fn carry_out_by_kernel(&self, inner: Guard<'_, Inner>) -> bool {
        // Whoever posts meanwhile leaves it to this thread.
        self.copying.begin();
        if self.carry_on_with(inner) == Carried::Part {
            self.net.local.copies.add(self.this());
        }
        true
    }

    /// Builds packets into the batch, of requests that were posted before `until`. Returns whether there are more.
    #[inline]
    pub(crate) fn fill(&self, batch: &mut Batch, now: Duration, until: u64) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else {
            return false;
        };
        let Inner { state, cursor, kind, .. } = &mut *inner;
        let mut turn = Turn::default();
        match kind {
            Kind::Nothing => return false,
            Kind::Connected(link) => {
                self.gather.begin(until);
                let first = link.answers_first(&self.queues.send, cursor, batch);
                if first > 0 {
                    turn.more |= link.respond(self, batch, first, now, &mut space);
                }
                if matches!(state, State::Rts | State::Sqd) {
                    let more = turn.more;
                    turn = link.send(self, (cursor, until), batch, TURN, now, &mut space);
                    turn.more |= more || self.queues.send.posted() > until;
                }
                // Also when a request of ours has just failed: what the peer has sent was received, and it must learn that.
                turn.more |= link.respond(self, batch, TURN, now, &mut space);
                self.settled(link);
                self.gather.learn(link);
                turn.failed |= link.has_ended();
                let deadline = link.deadline();
                if let Some(deadline) = deadline {
                    self.expect(deadline);
                }
            }
            Kind::Datagram(link) => {
                if *state == State::Rts {
                    turn = link.send(self, (cursor, until), batch, TURN, now, &mut space);
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
        let has_held = matches!(&inner.kind, Kind::Connected(link) if link.has_held());
        let begins = turn.copies && self.copying.begin();
        drop(inner);
        if begins {
            self.net.local.copies.add(self.this());
        }
        if has_held {
            turn.more |= self.take_held(now);
        }
        // The lane goes on with what it finds queued.
        if self.busy.take_note() {
            self.enqueue();
            self.look_for_packets();
        }
        turn.more
    }

    /// Packets may have been left in the channel.
    #[cold]
    pub(super) fn look_for_packets(&self) {
        let channel = lock(&self.channel).clone();
        if let Some(channel) = channel {
            channel.look_again();
        }
    }

    /// Adds the acknowledgement that is owed. False: not now, as the queue pair is busy.
    pub(crate) fn acknowledge(&self, batch: &mut Batch, now: Duration) -> bool {
        let mut space = [0; MAX_HEADER];
        let Some(mut inner) = self.lock_unless_busy() else {
            return false;
        };
        self.is_listed.store(false, Ordering::Relaxed);
        if let Kind::Connected(link) = &mut inner.kind {
            let more = link.respond(self, batch, 1, now, &mut space);
            // Who finds nothing owed may send at once.
            self.count_debt(false);
            if more {
                self.enqueue();
            }
            if link.has_ended() {
                self.fail_and_ring(inner);
            }
        } else {
            self.count_debt(false);
        }
        true
    }

    /// An acknowledgement may have left.
    #[inline(always)]
    pub(super) fn settled(&self, link: &Link) {
        if self.owes() && !link.owes() {
            self.count_debt(false);
        }
    }

    /// The lane counts it among those who owe an acknowledgement, or not. With the lock.
    #[inline]
    pub(super) fn count_debt(&self, owes: bool) {
        if self.owes() != owes {
            self.owes.store(owes, Ordering::Relaxed);
            self.lane.count_debt(owes);
        }
    }

    /// Sends a Send that is being posted, if nothing is in the way.
    #[inline]
    pub(super) fn take_over_beside(&self, request: &SendRequest<'_>) -> TakenOver {
        // Who owes an acknowledgement may owe it for what this request is about. The request brings that of its own queue pair along.
        // PRACTICE-ORDER-1
        let is_send = matches!(request.opcode, Opcode::Send | Opcode::SendWithImmediate);
        if !is_send || !self.is_bound.load(Ordering::Relaxed) || self.lane.others_owe(self) {
            return TakenOver::No;
        }
        let Some(mut inner) = self.inner.try_lock() else { return TakenOver::No };
        let Inner { state: State::Rts, cursor, kind: Kind::Connected(link), .. } = &mut *inner else {
            return TakenOver::No;
        };
        if self.queues.state() != State::Rts || self.copying.go_on() {
            return TakenOver::No;
        }
        let TakenOver::Sent { follows: rings } = link.post_straight(self, cursor, request) else {
            return TakenOver::No;
        };
        if rings && let Some(channel) = link.channel() {
            // The queue pair may end before its poster rings, and no other thread of this process rings for this sleep.
            lock(&self.to_ring).push(channel);
        }
        self.settled(link);
        // A deadline that is there is no later.
        let is_to_be_timed = !self.is_timed.load(Ordering::Relaxed) && link.deadline().is_some();
        inner.release();
        TakenOver::Sent { follows: rings || is_to_be_timed }
    }

    /// Does for posts that went straight what takes system calls: wakes the process at the other end, and sets a timer.
    #[cold]
    pub(super) fn follow_up_post(&self) {
        let to_ring = std::mem::take(&mut *lock(&self.to_ring));
        to_ring.iter().for_each(|channel| channel.ring());
        // A thread that is in the middle of a system call with the lock has the lane look afterwards, which sets the timer.
        if !self.is_timed.load(Ordering::Relaxed)
            && let Some(inner) = self.lock_unless_busy()
            && let Kind::Connected(link) = &inner.kind
            && let Some(deadline) = link.deadline()
        {
            self.expect(deadline);
        }
    }

    /// Carries out what has just been posted beside its lane, if it needs no packet, as far as nothing is in the way. False if the lane has to look.
    #[inline]
    pub(super) fn send_beside(&self) -> bool {
        if !self.is_bound.load(Ordering::Relaxed) || self.lane.others_owe(self) {
            return false;
        }
        let Some(mut inner) = self.inner.try_lock() else {
            // Its fence is also the one between the post and the look at the state, as between what ends the queue pair and its look for posts.
            return self.copying.will_find() && self.queues.state() == State::Rts;
        };
        let Inner { state: State::Rts, cursor, kind: Kind::Connected(link), .. } = &mut *inner else {
            return false;
        };
        if self.queues.state() != State::Rts {
            return false;
        }
        // It ends under the lock, with a look for what has been posted.
        if self.copying.go_on() {
            // PRACTICE-ORDER-1
            return !self.owes();
        }
        let copies = &self.net.local.copies;
        let is_done = self.is_direct.load(Ordering::Relaxed)
            && match link.carry_out(self, cursor, None) {
                Carried::All => true,
                Carried::Kernel => self.carry_out_by_kernel(inner),
                Carried::Part => {
                    self.copying.begin();
                    drop(inner);
                    copies.add(self.this());
                    true
                }
                Carried::Shared => {
                    self.copying.begin();
                    drop(inner);
                    true
                }
                Carried::Packets => false,
            };
        copies.posted();
        is_done
    }

    /// A deadline counts from now on. With the lock.
    #[inline]
    pub(super) fn expect(&self, deadline: Duration) {
        if !self.is_timed.load(Ordering::Relaxed) && !self.is_timed.swap(true, Ordering::SeqCst) {
            self.lane.time(self.this(), deadline);
        } else {
            self.lane.hasten(deadline);
        }
    }

    /// Looks at its deadline. Without one it leaves the lane's list. `ready`: others that may send now.
    pub(crate) fn serve_deadline(&self, now: Duration, ready: &mut Vec<Arc<Endpoint>>) -> Served {
        const SOON: Duration = Duration::from_micros(100);
        let Some(mut inner) = self.lock_unless_busy() else {
            return Served { deadline: Some(now + SOON), transmit: false };
        };
        let Kind::Connected(link) = &mut inner.kind else {
            self.is_timed.store(false, Ordering::SeqCst);
            return Served { deadline: None, transmit: false };
        };
        let mut transmit = false;
        if link.deadline().is_some_and(|deadline| deadline <= now) {
            let failed = link.handle_timeout(self, now, ready);
            if failed {
                self.is_timed.store(false, Ordering::SeqCst);
                self.fail(inner, ready);
                return Served { deadline: None, transmit: false };
            }
            transmit = true;
            self.gather.learn(link);
            self.enqueue();
        }
        let Kind::Connected(link) = &inner.kind else { unreachable!("it was a moment ago") };
        let deadline = link.deadline();
        if deadline.is_none() {
            self.is_timed.store(false, Ordering::SeqCst);
        }
        Served { deadline, transmit }
    }
}
