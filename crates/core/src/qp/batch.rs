//! Requests that a thread of the program posts: each is carried out or sent at once where that can be, and
//! the others are appended to the send queue.

use super::Queues;
use super::send::Posting;
use super::state::{Service, State};
use crate::cq::are_finds_told;
use crate::error::PostError;
use crate::lock::LockGuard;
use crate::request::{Opcode, SendRequest};
use crate::transport::{AtPost, Endpoint, Takeover};
use std::sync::atomic::{Ordering, fence};

/// Requests being posted together: visible to the transmitter, and on their way, when the post ends.
pub struct SendBatch<'a> {
    queues: &'a Queues,
    endpoint: &'a dyn Endpoint,
    guard: LockGuard<'a, Posting>,
    /// The number of the first request of the post.
    start: u64,
    /// The number of the first one that is queued, and not visible yet.
    first: u64,
    next: u64,
    /// Requests that were carried out without a place in the queue.
    passed: u64,
    /// The endpoint has to follow one of these up.
    follows: bool,
    allowed: u32,
    max_message: u32,
}

impl<'a> SendBatch<'a> {
    #[inline(always)]
    pub(super) fn new(
        queues: &'a Queues,
        allowed: u32,
        max_message: u32,
        endpoint: &'a dyn Endpoint,
    ) -> Self {
        // Before another thread can see, and send, a post; and without the lock, since it may make a system
        // call. Where polls do not tell lanes of finds, nothing is pending. PRACTICE-ORDER-1
        if are_finds_told() {
            endpoint.before_post();
        }
        let guard = queues.send.post.lock();
        let next = queues.send.posted.load(Ordering::Relaxed);
        Self {
            queues,
            endpoint,
            guard,
            start: next,
            first: next,
            next,
            passed: 0,
            follows: false,
            allowed,
            max_message,
        }
    }

    /// Carries a request out or sends it, if that can be done at once; otherwise appends it. On an error it,
    /// and it alone, is not posted. For callers that do not [abort](SendBatch::abort).
    // IB-QP-28
    #[inline(always)]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.check(request)?;
        let is_gone = self.next == self.first
            && match request.opcode {
                Opcode::Write | Opcode::Read => self.carry_out(request) || self.take_over(request),
                Opcode::Send | Opcode::SendWithImmediate => self.take_over(request),
                _ => false,
            };
        if !is_gone {
            return self.append(request);
        }
        self.next += 1;
        self.first = self.next;
        Ok(())
    }

    /// Carries out a one-sided request, if the peer's memory is within reach of this process and nothing is
    /// in the way.
    #[inline(always)]
    fn carry_out(&mut self, request: &SendRequest<'_>) -> bool {
        let queues = self.queues;
        let Posting { one_sided: Some(one_sided) } = &mut *self.guard else { return false };
        // Every earlier request is complete. The thread that has completed the last one may still be
        // reporting it: `SendQueue::pass` waits for that. A thread that flushes has the same lock, and finds
        // nothing to flush.
        if queues.send.retired.load(Ordering::Acquire) != self.next || queues.state() != State::Rts {
            return false;
        }
        let is_reported = queues.reports(request.flags);
        // To wake a thread that waits for the completion takes a system call, for which no other poster is to
        // wait.
        if is_reported && queues.send_cq.is_armed() {
            return false;
        }
        match one_sided.carry_out(queues, request) {
            AtPost::Done(length) => {
                queues.send.pass(queues, self.next, is_reported.then_some((request, length)));
                self.passed += 1;
                true
            }
            AtPost::No => false,
            AtPost::Over => {
                self.forget_one_sided();
                false
            }
        }
    }

    #[cold]
    fn forget_one_sided(&mut self) {
        self.queues.send.forget(&mut self.guard);
    }

    #[inline]
    fn take_over(&mut self, request: &SendRequest<'_>) -> bool {
        match self.endpoint.take_over(request) {
            Takeover::No => return false,
            Takeover::Done => self.passed += 1,
            Takeover::Sent { follows } => self.follows |= follows,
        }
        true
    }

    /// Appends a request. On an error it, and it alone, is not queued.
    // IB-QP-28
    #[inline]
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.check(request)?;
        self.append(request)
    }

    #[inline]
    fn check(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let queue = &self.queues.send;
        // Those that have passed count, too: their completions may still be unread, and programs stop at a
        // full queue to read them.
        if self.passed + self.next - queue.retired.load(Ordering::Acquire) > queue.mask {
            // IB-QP-29
            return Err(PostError::QueueFull);
        }
        if self.allowed & 1 << request.opcode as u32 == 0 {
            // IB-QP-30, IB-UC-1, IB-UD-1
            return Err(PostError::Unsupported);
        }
        // A datagram says where to, and nothing else does.
        // IB-UD-3
        if request.datagram.is_some() != (self.queues.service == Service::Ud) {
            return Err(PostError::Invalid);
        }
        Ok(())
    }

    #[inline]
    fn append(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.queues.send.write(self.next, request, self.max_message)?;
        self.next += 1;
        Ok(())
    }

    /// Forgets the requests that were [pushed](SendBatch::push).
    pub fn abort(&mut self) {
        self.next = self.first;
    }
    /// Ends the post: the requests that are queued become visible, and are on their way.
    #[inline(always)]
    pub(super) fn finish(self) {
        let Self { queues, endpoint, guard, start, first, next, follows, .. } = self;
        let is_queued = next != first;
        if is_queued {
            queues.send.posted.store(next, Ordering::Release);
        }
        if next != start {
            // With the lock: one thread counts.
            queues.counters.sends_posted.count(next - start, queues.counts_alone.has());
        }
        LockGuard::release(guard);
        if follows {
            endpoint.follow_up();
        }
        if is_queued {
            send_off(queues, endpoint);
        }
    }
}

/// Sends the requests that have been queued.
fn send_off(queues: &Queues, endpoint: &dyn Endpoint) {
    if endpoint.transmit_at_once() {
        return;
    }
    // Another thread may end the queue pair, or stop its sending: it changes the state, and then looks for
    // posts. This thread has posted, passes a fence, and then looks at the state. So the other thread finds
    // the post, or this one finds the new state.
    fence(Ordering::SeqCst);
    if matches!(queues.state(), State::Error | State::Sqe) {
        queues.flush_late_posts();
    } else {
        endpoint.transmit();
    }
}
