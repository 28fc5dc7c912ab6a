//! The receive queue: a ring that any thread fills and the receiving side of the transport empties in order.

use super::Queues;
use crate::error::PostError;
use crate::request::{Completion, CompletionFlags, CompletionOpcode, ReceiveRequest, Sge, Status};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

const WORDS: usize = 2;

/// The receive queue of a queue pair. Thread-safe. The words are atomic for the same reason as in the send queue.
pub struct ReceiveQueue {
    slots: Box<[AtomicU64]>,
    data: Box<[AtomicU64]>,
    max_sges: usize,
    mask: u64,
    posted: AtomicU64,
    taken: AtomicU64,
    retired: AtomicU64,
    post: Mutex<()>,
}

/// A receive that a message has taken.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWork {
    /// Its place in the queue's history.
    pub sequence: u64,
    /// Of the request.
    pub wr_id: u64,
    /// Scatter/gather elements.
    pub sges: usize,
    /// Bytes that they hold.
    pub room: u64,
}

impl ReceiveQueue {
    pub(super) fn new(requests: u32, max_sges: u32) -> Self {
        let room = (requests.max(1) as usize).next_power_of_two();
        let words = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            slots: words(room * WORDS),
            data: words(room * max_sges as usize * 2),
            max_sges: max_sges as usize,
            mask: room as u64 - 1,
            posted: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            post: Mutex::new(()),
        }
    }

    /// Requests that fit.
    pub fn capacity(&self) -> u32 {
        self.mask as u32 + 1
    }

    /// Elements per request.
    pub fn max_sges(&self) -> u32 {
        self.max_sges as u32
    }

    /// Takes the oldest receive for a message. Only one message at a time is received on a queue pair, by whoever holds the transport's receive lock.
    pub fn take(&self) -> Option<ReceiveWork> {
        let sequence = self.taken.load(Ordering::Relaxed);
        if sequence == self.posted.load(Ordering::Acquire) {
            return None;
        }
        self.taken.store(sequence + 1, Ordering::Relaxed);
        Some(self.read(sequence))
    }

    fn read(&self, sequence: u64) -> ReceiveWork {
        let place = (sequence & self.mask) as usize * WORDS;
        let packed = self.slots[place + 1].load(Ordering::Relaxed);
        ReceiveWork {
            sequence,
            wr_id: self.slots[place].load(Ordering::Relaxed),
            sges: (packed >> 48) as usize,
            room: packed & ((1 << 48) - 1),
        }
    }

    /// An element of a receive that is taken and not complete.
    pub fn sge(&self, work: &ReceiveWork, index: usize) -> Sge {
        let place = ((work.sequence & self.mask) as usize * self.max_sges + index) * 2;
        let packed = self.data[place + 1].load(Ordering::Relaxed);
        Sge {
            address: self.data[place].load(Ordering::Relaxed),
            length: packed as u32,
            lkey: (packed >> 32) as u32,
        }
    }

    pub(super) fn retire(&self, work: &ReceiveWork) {
        self.retired.store(work.sequence + 1, Ordering::Release);
    }

    /// Ends all receives that are left as flushed.
    pub(super) fn flush(&self, queues: &Queues) {
        let guard = self.lock();
        let mut head = self.retired.load(Ordering::Acquire);
        while head < self.posted.load(Ordering::SeqCst) {
            let work = self.read(head);
            let completion = Completion {
                wr_id: work.wr_id,
                status: Status::Flushed,
                opcode: CompletionOpcode::Receive,
                flags: CompletionFlags::empty(),
                byte_length: 0,
                immediate: 0,
                queue_pair: queues.number,
                source_queue_pair: 0,
                vendor_error: 0,
            };
            queues.report_flushed(&queues.receive_cq, completion);
            head += 1;
        }
        self.taken.store(head, Ordering::Relaxed);
        self.retired.store(head, Ordering::Release);
        drop(guard);
    }

    /// Forgets everything; only while nothing is received and nobody posts.
    pub(super) fn reset(&self) {
        let _guard = self.lock();
        for counter in [&self.posted, &self.taken, &self.retired] {
            counter.store(0, Ordering::SeqCst);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.post.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Receives being posted together: they count when this is dropped.
pub struct ReceiveBatch<'a> {
    queues: &'a Queues,
    next: u64,
    first: u64,
    guard: Option<MutexGuard<'a, ()>>,
    doorbell: &'a dyn Fn(),
}

impl<'a> ReceiveBatch<'a> {
    pub(super) fn new(queues: &'a Queues, doorbell: &'a dyn Fn()) -> Self {
        let guard = queues.receive.lock();
        let next = queues.receive.posted.load(Ordering::Relaxed);
        Self { queues, next, first: next, guard: Some(guard), doorbell }
    }

    /// Appends a request. On an error it, and it alone, is not queued.
    #[inline]
    pub fn push(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let queue = &self.queues.receive;
        if self.next - queue.retired.load(Ordering::Acquire) > queue.mask {
            return Err(PostError::QueueFull);
        }
        if request.sges.len() > queue.max_sges {
            return Err(PostError::TooManySges);
        }
        let index = (self.next & queue.mask) as usize;
        let mut room = 0;
        for (n, sge) in request.sges.iter().enumerate() {
            let place = (index * queue.max_sges + n) * 2;
            queue.data[place].store(sge.address, Ordering::Relaxed);
            queue.data[place + 1].store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Ordering::Relaxed);
            room += u64::from(sge.length);
        }
        queue.slots[index * WORDS].store(request.wr_id, Ordering::Relaxed);
        queue.slots[index * WORDS + 1].store(room | (request.sges.len() as u64) << 48, Ordering::Relaxed);
        self.next += 1;
        Ok(())
    }
}

impl Drop for ReceiveBatch<'_> {
    fn drop(&mut self) {
        let count = self.next - self.first;
        if count > 0 {
            self.queues.receive.posted.store(self.next, Ordering::SeqCst);
        }
        self.guard = None;
        if count > 0 {
            self.queues.counters.receives_posted.add(count);
            (self.doorbell)();
        }
    }
}
