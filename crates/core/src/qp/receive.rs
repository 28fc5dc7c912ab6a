//! The receive queue: a ring that any thread fills and the receiving side of the transport empties in order.

use super::slots::Slots;
use super::{Queues, State};
use crate::error::{PostError, Result};
use crate::lock::{Lock, LockGuard};
use crate::memory::{RingAllocator, RingKind, RingRelease};
use crate::request::{Cause, Completion, CompletionOpcode, ReceiveRequest, Sge, Status};
use std::sync::atomic::{AtomicU64, Ordering};

/// The receive queue of a queue pair. Thread-safe.
pub struct ReceiveQueue {
    slots: Slots,
    mask: u64,
    posted: AtomicU64,
    taken: AtomicU64,
    retired: AtomicU64,
    post: Lock<()>,
}

/// A receive that a message has taken.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWork {
    /// The receive's place in the queue's history; of a shared receive queue, its place in memory.
    pub sequence: u64,
    /// The request's name in the program.
    pub wr_id: u64,
    /// Scatter/gather elements.
    pub sges: usize,
    /// Bytes that they hold.
    pub room: u64,
    /// Number of the protection domain that the keys of its elements must belong to.
    pub domain: u32,
}

impl ReceiveQueue {
    pub(super) fn new(requests: u32, max_sges: u32, allocator: &RingAllocator) -> Result<Self> {
        let room = (requests.max(1) as usize).next_power_of_two();
        Ok(Self {
            slots: Slots::new(room, max_sges as usize, allocator, RingKind::QueuePair)?,
            mask: room as u64 - 1,
            posted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            post: Lock::default(),
        })
    }

    /// The program has its memory back when the result is dropped.
    ///
    /// # Safety
    /// No transport uses the queue any more. If it `is_here` no more, no thread does.
    pub(super) unsafe fn give_back(&self, is_here: bool) -> [RingRelease; 2] {
        // Threads that post or flush take the lock. In a child of fork, a thread that is not there may have
        // it.
        let _post = is_here.then(|| self.post.lock());
        // SAFETY: the lock, and the caller's promise.
        unsafe { self.slots.give_back() }
    }

    /// Requests that fit.
    pub fn capacity(&self) -> u32 {
        self.mask as u32 + 1
    }

    /// Elements per request.
    pub fn max_sges(&self) -> u32 {
        self.slots.max_sges() as u32
    }

    /// How many receives have been posted, and how many of these messages have taken.
    pub(super) fn progress(&self) -> (u64, u64) {
        let taken = self.taken.load(Ordering::Acquire);
        (self.posted.load(Ordering::Acquire), taken)
    }

    /// Receives that no message has taken. A thread that sees one as taken also sees all that the taker wrote
    /// before.
    pub(super) fn left(&self) -> usize {
        self.posted.load(Ordering::Acquire).saturating_sub(self.taken.load(Ordering::Acquire)) as usize
    }

    /// Takes the oldest receive for a message. Only one message at a time is received on a queue pair, by the
    /// thread with the transport's receive lock.
    pub(super) fn take(&self, domain: u32) -> Option<ReceiveWork> {
        let sequence = self.taken.load(Ordering::Relaxed);
        if sequence == self.posted.load(Ordering::Acquire) {
            return None;
        }
        // IB-RC-RSP-33
        self.taken.store(sequence + 1, Ordering::Release);
        Some(ReceiveWork { sequence, ..self.slots.read(self.place(sequence), domain) })
    }

    /// An element of a receive that is taken and not complete.
    pub(super) fn sge(&self, work: &ReceiveWork, index: usize) -> Sge {
        self.slots.sge(self.place(work.sequence), index)
    }

    fn place(&self, sequence: u64) -> usize {
        (sequence & self.mask) as usize
    }

    pub(super) fn retire(&self, work: &ReceiveWork) {
        self.retired.store(work.sequence + 1, Ordering::Release);
    }

    /// Ends all receives that are left as flushed.
    pub(super) fn flush(&self, queues: &Queues) {
        let guard = self.post.lock();
        let mut head = self.retired.load(Ordering::Acquire);
        while head < self.posted.load(Ordering::SeqCst) {
            let completion = Completion {
                wr_id: self.slots.read(self.place(head), queues.domain).wr_id,
                // IB-QP-31
                status: Status::Flushed,
                opcode: CompletionOpcode::Receive,
                queue_pair: queues.number,
                vendor_error: Cause::Flushed as u32,
                ..Completion::default()
            };
            queues.report_flushed(&queues.receive_cq, completion);
            head += 1;
        }
        self.taken.store(head, Ordering::Release);
        self.retired.store(head, Ordering::Release);
        drop(guard);
    }

    /// Forgets everything; only while nothing is received and no thread posts.
    pub(super) fn reset(&self) {
        let _guard = self.post.lock();
        for counter in [&self.posted, &self.taken, &self.retired] {
            counter.store(0, Ordering::SeqCst);
        }
    }
}

/// Receives being posted together: they count when the post ends.
pub struct ReceiveBatch<'a> {
    queues: &'a Queues,
    queue: &'a ReceiveQueue,
    next: u64,
    first: u64,
    guard: LockGuard<'a, ()>,
}

impl<'a> ReceiveBatch<'a> {
    #[inline(always)]
    pub(super) fn new(queues: &'a Queues, queue: &'a ReceiveQueue) -> Self {
        let guard = queue.post.lock();
        let next = queue.posted.load(Ordering::Relaxed);
        Self { queues, queue, next, first: next, guard }
    }

    /// Appends a request. On an error it, and it alone, is not queued.
    #[inline(always)]
    pub fn push(&mut self, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        if self.next - self.queue.retired.load(Ordering::Acquire) > self.queue.mask {
            // IB-QP-29
            return Err(PostError::QueueFull);
        }
        self.queue.slots.write(self.queue.place(self.next), request)?;
        self.next += 1;
        Ok(())
    }

    /// Ends the post.
    #[inline(always)]
    pub(super) fn finish(self) {
        let Self { queues, queue, next, first, guard } = self;
        if next == first {
            return;
        }
        queue.posted.store(next, Ordering::Release);
        // With the lock: one thread counts.
        queues.counters.receives_posted.count(next - first, queues.counts_alone.has());
        LockGuard::release(guard);
        // Without a fence: a thread that flushes the queue takes the lock. Either it finds these receives, or
        // this thread finds the queue pair in error here.
        if queues.state() == State::Error {
            queues.flush_late_posts();
        }
    }
}
