//! Which posts wait for company: those behind the first since a poll ([`adverb_core::gathering`]), until there are enough for a good write.
//!
//! What has been handed to TCP and not acknowledged would say the same of a stream, but the system would have to be asked at each post.

use adverb_core::gathering::Gathering;
use adverb_core::qp::{Queues, SendQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// So many bytes make a good write.
const BYTES: u64 = 64 << 10;
/// So do so many requests: the frames of two bursts.
pub(crate) const REQUESTS: usize = 32;

/// Waking the background thread, which is to look, is worth while for a program that has posted so many times in a row.
const ROW: u32 = 4;
/// After so many looks in a row without a poll, or a full write, between them the program does not poll any more.
pub(crate) const LOOKS: u32 = 8;

/// A number that polls of the queue pair's completion queues change.
#[inline]
pub(crate) fn polls(queues: &Queues) -> u32 {
    queues.send_cq.polls().wrapping_add(queues.receive_cq.polls())
}

/// The posts of one queue pair. Not exact where two threads post.
#[derive(Default)]
pub(crate) struct Posts {
    /// The number of polls at the last post.
    polls: AtomicU32,
    /// Posts since the last poll.
    row: AtomicU32,
    /// The first request that the sender has not begun.
    next: AtomicU64,
}

impl Posts {
    /// With the transmit lock: all requests before this one have been begun.
    #[inline]
    pub(crate) fn begun(&self, next: u64) {
        self.next.store(next, Ordering::Release);
    }

    /// Whether there are requests that nobody has begun to send.
    #[inline]
    pub(crate) fn wait(&self, queue: &SendQueue) -> bool {
        queue.posted() != self.next.load(Ordering::Acquire)
    }

    /// Whether the post follows others since the last poll, and another poll is expected.
    #[inline]
    fn is_in_company(&self, queues: &Queues, gathering: &Gathering) -> bool {
        let polls = polls(queues);
        if self.polls.load(Ordering::Relaxed) != polls {
            self.polls.store(polls, Ordering::Relaxed);
            self.row.store(1, Ordering::Relaxed);
            gathering.visited();
            return false;
        }
        if !gathering.expects_polls() || queues.send_cq.is_armed() {
            return false;
        }
        let row = self.row.load(Ordering::Relaxed).saturating_add(1);
        self.row.store(row, Ordering::Relaxed);
        row > ROW || gathering.is_looking()
    }

    /// Puts off what has just been posted, or says that it is to leave now.
    #[inline]
    pub(crate) fn put_off(&self, queues: &Queues, gathering: &Arc<Gathering>) -> bool {
        if !self.is_in_company(queues, gathering) {
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
            || waiting >= REQUESTS as u64
            || waiting * u64::from(queue.length_of(posted - 1)) >= BYTES;
        if is_enough {
            gathering.visited();
        } else {
            gathering.put_off();
        }
        !is_enough
    }
}
