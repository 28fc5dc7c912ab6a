//! Which posts wait to be gathered ([`adverb_core::gathering`]), until there are enough for a good write.
//! These are the posts behind the first one since a poll. If a program takes completions of earlier requests
//! one by one, the first one waits, too, while more completions are there.
//!
//! Bytes that TCP holds without an acknowledgement would be another sign of a stream, but each post would
//! need a system call to learn of them.

use adverb_core::gathering::Gathering;
use adverb_core::qp::{Queues, SendQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The bytes that make a good write.
const BYTES: u64 = 64 << 10;
/// The requests that make a good write, too: the frames of two bursts.
const REQUESTS: u64 = 32;

/// The background thread, which runs the timer, is worth waking for a program that has posted more times than
/// this in a row.
const ROW: u32 = 4;
/// After so many looks of the timer in a row without a poll or a full write between them, no more polls are
/// expected.
pub(crate) const LOOKS: u32 = 8;

/// A number that polls of the queue pair's completion queues change.
#[inline]
fn polls(queues: &Queues) -> u32 {
    queues.send_cq.polls().wrapping_add(queues.receive_cq.polls())
}

/// The posts of one queue pair. Not exact where two threads post.
#[derive(Default)]
pub(crate) struct Posts {
    /// The number of polls at the last post.
    polls: AtomicU32,
    /// The number of polls of the completion queue of the sends, at the first post behind the last poll.
    sends: AtomicU32,
    /// Posts in a row that might have waited.
    row: AtomicU32,
    /// The first request that no thread has begun to send.
    next: AtomicU64,
}

impl Posts {
    /// With the transmit lock: all requests before this one have been begun.
    #[inline]
    pub(crate) fn begun(&self, next: u64) {
        self.next.store(next, Ordering::Release);
    }

    /// Whether there are requests that no thread has begun to send.
    #[inline]
    pub(crate) fn wait(&self, queue: &SendQueue) -> bool {
        queue.posted() != self.next.load(Ordering::Acquire)
    }

    /// Whether the post follows others since the last poll, or completions wait that the program takes before
    /// it waits for anything; and another poll is expected.
    #[inline]
    fn follows_others(&self, queues: &Queues, gathering: &Gathering) -> bool {
        let polls = polls(queues);
        let has_polled = self.polls.load(Ordering::Relaxed) != polls;
        if has_polled {
            self.polls.store(polls, Ordering::Relaxed);
            gathering.visited();
            // A program that does not look at completions of its sends would not notice the delay, but its
            // messages may be answers.
            let sends = queues.send_cq.polls();
            let looks_at_sends = self.sends.load(Ordering::Relaxed) != sends;
            self.sends.store(sends, Ordering::Relaxed);
            if !looks_at_sends || !queues.send_cq.has_completions() {
                self.row.store(1, Ordering::Relaxed);
                return false;
            }
        }
        if !gathering.expects_polls() || queues.send_cq.is_armed() {
            return false;
        }
        let row = self.row.load(Ordering::Relaxed).saturating_add(1);
        self.row.store(row, Ordering::Relaxed);
        row > ROW || gathering.is_looking()
    }

    /// Puts off the newest post and returns true; or returns false, and the post is to leave now.
    #[inline]
    pub(crate) fn put_off(&self, queues: &Queues, gathering: &Arc<Gathering>) -> bool {
        if !self.follows_others(queues, gathering) {
            return false;
        }
        let queue = &queues.send;
        let posted = queue.posted();
        let Some(waiting) = posted.checked_sub(self.next.load(Ordering::Relaxed)) else { return false };
        if waiting == 0 {
            // Another thread has sent it already.
            return true;
        }
        // As if all were like the last one.
        let is_enough = waiting.max(2) * 2 > u64::from(queue.capacity())
            || waiting >= REQUESTS
            || waiting * u64::from(queue.length_of(posted - 1)) >= BYTES;
        if is_enough {
            gathering.visited();
        } else {
            gathering.put_off();
        }
        !is_enough
    }
}
