//! Work that takes many turns, or long, and posts that are left to the thread with that work.

use super::SharedWord;
use crate::busy::Busy;
use crate::lock::{Lock, LockGuard};
use crate::sync::{AtomicU32, Ordering};
use crate::work_notes::Turns;
use loom::thread;
use std::sync::Arc;

/// Posts of two threads, and a third at long work already.
#[derive(Default)]
struct Desk {
    lock: Lock<SharedWord>,
    posted: [AtomicU32; 2],
    done: [AtomicU32; 2],
    turns: Turns,
    busy: Busy,
}

impl Desk {
    fn post(&self, who: usize) {
        self.posted[who].store(1, Ordering::Release);
    }

    /// With the lock.
    fn work(&self, shared: &SharedWord) {
        shared.add();
        for (posted, done) in self.posted.iter().zip(&self.done) {
            done.store(posted.load(Ordering::Acquire), Ordering::Relaxed);
        }
    }

    /// Posts as a queue pair does whose requests may be being copied. True: the post is done, or left to a
    /// thread that does it.
    fn post_beside(&self, who: usize) -> bool {
        self.post(who);
        let Some(shared) = self.lock.try_lock() else { return self.turns.will_find() };
        if !self.turns.go_on() {
            self.work(&shared);
        }
        true
    }

    fn last_turn(&self, shared: LockGuard<'_, SharedWord>) {
        shared.add();
        self.turns.end();
        self.work(&shared);
    }

    /// Posts as a thread that sends or takes in packets and does not wait for the lock. True: the post is
    /// done, or left to a thread that does it.
    fn post_unless_busy(&self, who: usize) -> bool {
        self.post(who);
        let Some(shared) = self.lock.try_lock() else { return self.busy.leave_note() };
        self.work(&shared);
        true
    }

    fn long_work(&self, shared: LockGuard<'_, SharedWord>) {
        self.busy.during(|| shared.add());
        drop(shared);
        if self.busy.take_note() {
            self.work(&self.lock.lock());
        }
    }
}

fn run(post: fn(&Desk, usize) -> bool, beside: fn(&Desk, LockGuard<'_, SharedWord>), posters: usize) {
    let mut model = loom::model::Builder::new();
    // Two threads in every order that there is; three in those with few changes of thread without a wait.
    model.preemption_bound = (posters > 1).then_some(2);
    model.check(move || {
        let desk = Arc::new(Desk::default());
        let shared = desk.lock.lock();
        desk.turns.begin();
        let threads: Vec<_> = (0..posters)
            .map(|who| {
                let desk = desk.clone();
                thread::spawn(move || post(&desk, who))
            })
            .collect();
        beside(&desk, shared);
        for (who, thread) in threads.into_iter().enumerate() {
            let promised = thread.join().unwrap();
            assert!(!promised || desk.done[who].load(Ordering::Relaxed) == 1, "forgotten");
        }
    });
}

#[test]
fn a_thread_that_takes_the_last_turn_finds_the_remaining_posts() {
    run(Desk::post_beside, Desk::last_turn, 1);
    run(Desk::post_beside, Desk::last_turn, 2);
}

#[test]
fn a_thread_that_ends_long_work_finds_the_remaining_posts() {
    run(Desk::post_unless_busy, Desk::long_work, 1);
    run(Desk::post_unless_busy, Desk::long_work, 2);
}
