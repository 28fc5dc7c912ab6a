//! Packets that arrive while a thread is sending: they are put off until that has ended, and not forgotten.

use super::SharedWord;
use crate::lock::Lock;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
use crate::work_notes::{Rounds, WorkCount, WorkNote};
use loom::thread;
use std::sync::Arc;

/// A connection on which a request leaves and its answer comes. As in iWARP.
#[derive(Default)]
struct Connection {
    sending: Lock<SharedWord>,
    receiving: Lock<SharedWord>,
    rounds: Rounds,
    missed: WorkNote,
    has_answer: AtomicBool,
    /// With the receiving lock: the round, plus one, for whose end the answer waits.
    put_off: AtomicU32,
    /// The request is complete: its sender is told.
    is_complete: AtomicBool,
    is_taken_in: AtomicBool,
}

impl Connection {
    /// The peer answers before the call that sends returns.
    fn send(&self) {
        if let Some(shared) = self.sending.try_lock() {
            shared.add();
            let round = self.rounds.begin();
            self.has_answer.store(true, Ordering::Release);
            self.is_complete.store(true, Ordering::Relaxed);
            self.rounds.end(round);
        }
    }

    fn take_in(&self) {
        let round = match self.put_off.load(Ordering::Relaxed) {
            0 if !self.has_answer.load(Ordering::Acquire) => return,
            0 => self.rounds.begun() as u32,
            put_off => put_off - 1,
        };
        if self.rounds.have_ended(round.into()) {
            assert!(self.is_complete.load(Ordering::Relaxed), "the answer comes before the completion");
            self.put_off.store(0, Ordering::Relaxed);
            self.is_taken_in.store(true, Ordering::Relaxed);
        } else {
            self.put_off.store(round + 1, Ordering::Relaxed);
        }
    }

    /// `notes`: whether a lock that is taken is a reason to leave a note, as for the background thread.
    fn receive(&self, notes: bool) {
        loop {
            if notes {
                self.missed.note();
            }
            let Some(shared) = self.receiving.try_lock() else { return };
            self.missed.begin();
            shared.add();
            self.take_in();
            drop(shared);
            if !self.missed.is_noted() {
                return;
            }
        }
    }
}

/// A program sends, and goes on with packets that were put off. Meanwhile the background thread receives the
/// answer, which wakes it.
#[test]
fn packets_that_are_put_off_are_taken_in() {
    loom::model(|| {
        let connection = Arc::new(Connection::default());
        let other = connection.clone();
        let background = thread::spawn(move || {
            let is_woken = other.has_answer.load(Ordering::Acquire);
            if is_woken {
                other.receive(true);
            }
            is_woken
        });
        connection.send();
        if connection.rounds.go_on(&connection.missed) {
            connection.receive(false);
        }
        let is_woken = background.join().unwrap();
        assert!(!is_woken || connection.is_taken_in.load(Ordering::Relaxed), "the answer is left lying");
    });
}

/// A thread that receives needs the lock of the sending side, finds it taken, and puts its work off, as iWARP
/// does for the peer's reads. Meanwhile a posting thread has that lock without a round. It lets go, looks for
/// noted work, and then for work that was put off.
#[test]
fn work_that_waits_for_the_lock_alone_is_gone_on_with() {
    loom::model(|| {
        let shared = Arc::new((Mutex::new(()), Rounds::default(), WorkCount::default()));
        let other = shared.clone();
        let receiver = thread::spawn(move || {
            let (sending, rounds, _) = &*other;
            let takes = || sending.try_lock().is_ok();
            takes() || {
                rounds.put_off();
                takes()
            }
        });
        let (sending, rounds, work_count) = &*shared;
        let seen = work_count.noted();
        let Ok(guard) = sending.try_lock() else { return drop(receiver.join()) };
        drop(guard);
        // In the order of iWARP: the fence of this look is also behind the end of the lock. The model checker
        // takes the look of `go_on` for a fence itself, so it would find no fault with the other order.
        let _has_more = work_count.since(seen);
        let goes_on = rounds.go_on(&WorkNote::default());
        assert!(receiver.join().unwrap() || goes_on, "the reads are left lying");
    });
}
