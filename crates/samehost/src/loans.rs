//! Memory of the program that is lent to another process: messages to that process refer to it
//! ([`adverb_local::Loan`]).
//!
//! It is taken back when the queue pair fails or goes, and when the program takes the memory's key away. Both
//! wait while the other process copies from it: as long as one copy of at most 256 KiB takes, but no longer
//! than [`READER_TIMEOUT`], and not for a process that has ended, perhaps in the middle of a copy. Bytes that
//! it reads after that are void, as it finds out.

use crate::lock;
use adverb_core::clock;
use adverb_core::memory::{KeyUse, Keys, Lender};
use adverb_local::{Loan, Slot, Withdrawal};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long another process that reads is waited for.
const READER_TIMEOUT: Duration = Duration::from_millis(200);

/// Now, on the engine's clock.
fn now() -> Duration {
    Duration::from_nanos(clock::device())
}

/// The loans of one neighbour. Thread-safe; its lock is held for a look at them, and nothing else is locked
/// under it.
pub struct Loans {
    ring: adverb_local::Loans,
    keys: &'static Keys,
    /// In the order in which they went into the ring; a record of several pieces has several.
    lent: Mutex<VecDeque<Piece>>,
    /// The other process has ended.
    ended: AtomicBool,
}

struct Piece {
    loan: Loan,
    /// The number of the queue pair that lends the piece.
    number: u32,
    lent: KeyUse,
}

impl Loans {
    pub(crate) fn new(ring: adverb_local::Loans, keys: &'static Keys) -> Self {
        Self { ring, keys, lent: Mutex::default(), ended: AtomicBool::new(false) }
    }

    /// Publishes a record, which speaks of these pieces of a queue pair's program.
    pub fn add(&self, number: u32, slot: Slot<'_>, pieces: impl IntoIterator<Item = KeyUse>) {
        let mut lent = lock(&self.lent);
        self.settle(&mut lent);
        // Under the lock: a thread that takes loans back finds this one as soon as the other process can read
        // it.
        let loan = slot.publish_loan();
        lent.extend(pieces.into_iter().map(|lent| Piece { loan, number, lent }));
    }

    /// Gives back the loans that the other process has done with.
    pub(crate) fn tidy(&self) {
        self.settle(&mut lock(&self.lent));
    }

    fn settle(&self, lent: &mut VecDeque<Piece>) {
        while lent.front().is_some_and(|piece| self.ring.is_over(piece.loan)) {
            if let Some(piece) = lent.pop_front() {
                self.keys.give_back(piece.lent);
            }
        }
    }

    /// A queue pair has failed, or goes: its packets count as never sent.
    pub fn withdraw(&self, number: u32) {
        self.take_back(Withdrawal::Lost, |piece| piece.number == number);
    }

    /// The other process has gone, and reads nothing any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.take_back(Withdrawal::Lost, |_| true);
    }

    #[cold]
    fn take_back(&self, why: Withdrawal, is_wanted: impl Fn(&Piece) -> bool) {
        let mut wanted = Vec::new();
        {
            let mut lent = lock(&self.lent);
            for piece in std::mem::take(&mut *lent) {
                if is_wanted(&piece) { wanted.push(piece) } else { lent.push_back(piece) }
            }
        }
        let until = now() + READER_TIMEOUT;
        for piece in wanted {
            while !self.ring.withdraw(piece.loan, why) {
                if self.ended.load(Ordering::SeqCst) || now() >= until {
                    self.ring.revoke(piece.loan, why);
                    break;
                }
                std::thread::yield_now();
            }
            self.keys.give_back(piece.lent);
        }
    }
}

impl Lender for Loans {
    fn recall(&self, is_wanted: &dyn Fn(&KeyUse) -> bool) {
        self.take_back(Withdrawal::Revoked, |piece| is_wanted(&piece.lent));
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.end();
    }
}
