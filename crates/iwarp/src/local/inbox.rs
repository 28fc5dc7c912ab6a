//! The messages through shared memory of one connection: those that have come and wait, and how many are
//! under way in each direction.
//!
//! A message waits here if its place in the stream by TCP has not come, or if it is behind a message without
//! a receive. So it holds up no other connection of the two processes. Each side bounds the messages under
//! way that the other has not taken in ([`WINDOW`]). Beyond that, messages go by TCP, which has a bound of
//! its own.

use super::record::RecordHead;
use crate::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// A side sends no more than this weight of messages that the other one has not taken in. A ring holds less,
/// so most of them wait at the receiver.
pub(crate) const WINDOW: u32 = 256 << 10;
/// The peer is told of progress after so much of it, if there is no message that says so.
const WORTH_TELLING: u32 = WINDOW / 4;

/// The weight of a message with so many bytes: the bytes, and a share for the record.
#[inline]
pub(crate) fn weight(length: u32) -> u32 {
    64 + length
}

/// A message that waits, and its bytes.
pub(crate) type Waiting = (RecordHead, Vec<u8>);

/// The messages through shared memory of one connection: those that have come and wait, and how many are
/// under way in each direction. Thread-safe.
pub(crate) struct Inbox {
    /// The number by which the peer names this end.
    pub(crate) number: u32,
    /// The peer's process; zero until it is known.
    peer: AtomicI32,
    /// The process that has said that it takes in messages through shared memory; zero before. Any process
    /// may say so before the peer's is known.
    greeted: AtomicI32,
    /// The weight of our messages that the peer has taken in, and of the peer's that this end has, modulo
    /// 2^32.
    peer_took: AtomicU32,
    took: AtomicU32,
    /// The last that the peer was told.
    told: AtomicU32,
    /// The channel had no room to tell it, and nothing may follow that does.
    is_progress_pending: AtomicBool,
    waiting: Mutex<Queue>,
    /// Some messages wait.
    has_waiting: AtomicBool,
}

#[derive(Default)]
struct Queue {
    list: VecDeque<Waiting>,
    weight: u32,
}

impl Inbox {
    pub(crate) fn new(number: u32) -> Self {
        Self {
            number,
            peer: AtomicI32::new(0),
            greeted: AtomicI32::new(0),
            peer_took: AtomicU32::new(0),
            took: AtomicU32::new(0),
            told: AtomicU32::new(0),
            is_progress_pending: AtomicBool::new(false),
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
        }
    }

    /// The peer is in this process. Before that process is told of this end: so before it sends anything but
    /// a greeting.
    pub(crate) fn meets(&self, process: libc::pid_t) {
        self.peer.store(process, Ordering::SeqCst);
    }

    /// Whether the peer is in this process.
    #[inline]
    pub(super) fn is_from(&self, process: libc::pid_t) -> bool {
        self.peer.load(Ordering::Acquire) == process
    }

    /// This process says that it knows this end.
    pub(super) fn greet(&self, process: libc::pid_t) {
        let peer = self.peer.load(Ordering::SeqCst);
        if peer == 0 || peer == process {
            self.greeted.store(process, Ordering::SeqCst);
        }
    }

    /// Whether messages may go to the peer through shared memory.
    #[inline]
    pub(crate) fn is_greeted(&self) -> bool {
        let greeted = self.greeted.load(Ordering::Relaxed);
        greeted != 0 && greeted == self.peer.load(Ordering::Relaxed)
    }

    /// The peer has taken in messages of this weight, all together. Its threads may say so out of order, so a
    /// smaller value than before changes nothing. The calling thread has the channel's receiving lock.
    #[inline]
    pub(super) fn peer_took(&self, weight: u32) {
        let before = self.peer_took.load(Ordering::Relaxed);
        if weight.wrapping_sub(before) as i32 > 0 {
            self.peer_took.store(weight, Ordering::Relaxed);
        }
    }

    /// Whether a message may follow after so much has been sent, all together.
    #[inline]
    pub(crate) fn has_room(&self, sent: u32, length: u32) -> bool {
        let under_way = sent.wrapping_sub(self.peer_took.load(Ordering::Relaxed));
        under_way.saturating_add(weight(length)) <= WINDOW
    }

    /// How much has been taken in. The peer is told at once: with the sending lock of the channel, so that it
    /// is told in order.
    #[inline]
    pub(crate) fn tell(&self) -> u32 {
        let took = self.took.load(Ordering::Relaxed);
        self.told.store(took, Ordering::Relaxed);
        took
    }

    /// The peer is still to be told.
    pub(crate) fn put_off_progress(&self) {
        self.is_progress_pending.store(true, Ordering::SeqCst);
    }

    /// Whether the peer is still to be told. If so, the caller has to tell it from now on.
    #[inline]
    pub(crate) fn takes_pending_progress(&self) -> bool {
        self.is_progress_pending.load(Ordering::Relaxed)
            && self.is_progress_pending.swap(false, Ordering::SeqCst)
    }

    /// A message has been taken in, by the thread that has the receive lock. Returns whether the peer is to
    /// be told.
    #[inline]
    pub(crate) fn take(&self, length: u32) -> bool {
        let took = self.took.load(Ordering::Relaxed).wrapping_add(weight(length));
        self.took.store(took, Ordering::Relaxed);
        took.wrapping_sub(self.told.load(Ordering::Relaxed)) >= WORTH_TELLING
    }

    /// Whether messages wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::SeqCst)
    }

    /// A message waits behind those that do. False: the peer has sent more than it may.
    pub(crate) fn put(&self, waiting: Waiting) -> bool {
        let mut queue = lock(&self.waiting);
        let sum = queue.weight.saturating_add(weight(waiting.0.length));
        if sum > WINDOW {
            return false;
        }
        queue.weight = sum;
        queue.list.push_back(waiting);
        self.has_waiting.store(true, Ordering::SeqCst);
        true
    }

    /// Takes the first message out, if its place is not behind this one of the stream.
    pub(crate) fn take_due(&self, position: u64) -> Option<Waiting> {
        let mut queue = lock(&self.waiting);
        let first = queue.list.pop_front_if(|(said, _)| said.behind <= position)?;
        queue.weight -= weight(first.0.length);
        self.has_waiting.store(!queue.list.is_empty(), Ordering::SeqCst);
        Some(first)
    }

    /// Puts a message back before all others that wait, after [`Inbox::take_due`] has taken it out.
    pub(crate) fn put_back(&self, waiting: Waiting) {
        let mut queue = lock(&self.waiting);
        queue.weight += weight(waiting.0.length);
        queue.list.push_front(waiting);
        self.has_waiting.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::RecordKind;
    use super::*;

    fn message(behind: u64, length: u32) -> Waiting {
        (RecordHead { behind, length, ..RecordHead::bare(RecordKind::Send, 1, 0) }, vec![0; length as usize])
    }

    #[test]
    fn messages_wait_for_their_place() {
        let inbox = Inbox::new(1);
        assert!(!inbox.has_waiting() && inbox.take_due(u64::MAX).is_none());
        assert!(inbox.put(message(5, 8)) && inbox.put(message(9, 8)));
        assert!(inbox.take_due(4).is_none() && inbox.has_waiting());
        let first = inbox.take_due(5).unwrap();
        assert_eq!(first.0.behind, 5);
        inbox.put_back(first);
        assert_eq!(inbox.take_due(9).unwrap().0.behind, 5);
        assert_eq!(inbox.take_due(9).unwrap().0.behind, 9);
        assert!(!inbox.has_waiting());
    }

    #[test]
    fn a_sender_that_exceeds_its_window_finds_no_place_in_the_inbox() {
        let inbox = Inbox::new(1);
        let fits = WINDOW / weight(4096);
        assert!((0..fits).all(|_| inbox.put(message(0, 4096))));
        assert!(!inbox.put(message(0, 4096)));
        assert!(inbox.take_due(0).is_some() && inbox.put(message(0, 4096)));
    }

    #[test]
    fn the_window_opens_with_the_word_of_the_peer() {
        let inbox = Inbox::new(1);
        let half = 1 << 31;
        let sent = u32::MAX - 100;
        inbox.peer_took(half - 1);
        inbox.peer_took(sent);
        assert!(inbox.has_room(sent, 4096));
        let sent = sent.wrapping_add(WINDOW);
        assert!(!inbox.has_room(sent, 0));
        inbox.peer_took(sent.wrapping_sub(WINDOW - 64));
        assert!(inbox.has_room(sent, 0) && !inbox.has_room(sent, 1));
        // One that takes back what it has said.
        inbox.peer_took(sent.wrapping_sub(WINDOW));
        assert!(inbox.has_room(sent, 0));
        // One that has taken in more than there was.
        inbox.peer_took(sent.wrapping_add(1));
        assert!(!inbox.has_room(sent, 0));
    }

    #[test]
    fn a_process_says_nothing_for_the_peer_of_another_one() {
        let inbox = Inbox::new(1);
        inbox.greet(7);
        assert!(!inbox.is_greeted() && !inbox.is_from(7) && !inbox.is_from(8));
        // The greeting may come before the peer's process is known.
        inbox.meets(7);
        assert!(inbox.is_greeted() && inbox.is_from(7) && !inbox.is_from(8));
        inbox.greet(8);
        assert!(inbox.is_greeted());
        let inbox = Inbox::new(1);
        inbox.greet(8);
        inbox.meets(7);
        assert!(!inbox.is_greeted());
        inbox.greet(7);
        assert!(inbox.is_greeted());
    }

    #[test]
    fn progress_is_told_now_and_then() {
        let inbox = Inbox::new(1);
        let times = (1..).find(|_| inbox.take(4032)).unwrap();
        assert_eq!(times, WORTH_TELLING / 4096);
        assert_eq!(inbox.tell(), WORTH_TELLING);
        assert!(!inbox.take(4032));
    }
}
