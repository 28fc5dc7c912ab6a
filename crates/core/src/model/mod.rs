//! Models of the words and locks that threads share, under loom. The code is the library's own. Built with
//! `--cfg loom`.
//!
//! loom tries the orders in which threads can run, and the values that its memory model lets them read. Some
//! proofs are bounded, and some behaviour has no model:
//!
//! - Many models bound the preemptions of a run, to at most 1 to 3 (`preemption_bound`).
//! - loom's memory model has no load buffering: it never delays a load past a later store of its thread.
//! - Asymmetric fences are full fences on both sides. So membarrier(2) itself has no model.
//! - How a thread waits in the kernel for a lock has no model.

use crate::lock::Lock;
use crate::sync::{AtomicU32, Ordering};
use crate::work_notes::{RareWorkNote, WorkCount, WorkNote};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

mod completion;
mod duty;
mod gathering;
mod keys;
mod lane_watch;
mod posts;
mod rounds;
mod sleep;
mod turns;

// A counter. loom reports two accesses at once.
#[derive(Default)]
struct SharedWord(loom::cell::UnsafeCell<u64>);

// SAFETY: loom ends with an error if it is used by two at once.
unsafe impl Sync for SharedWord {}
// SAFETY: as above.
unsafe impl Send for SharedWord {}

impl SharedWord {
    fn add(&self) -> u64 {
        // SAFETY: as for `Sync`.
        self.0.with_mut(|value| unsafe {
            *value += 1;
            *value
        })
    }
}

#[test]
fn one_thread_at_a_time_has_the_lock() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(SharedWord::default()));
        let other = lock.clone();
        let thread = thread::spawn(move || {
            let _ = other.try_lock().map(|shared| shared.add());
        });
        let got = lock.try_lock().map(|shared| shared.add());
        thread.join().unwrap();
        // No thread has it now. One of the two tries has succeeded, since neither waits.
        assert!(lock.try_lock().expect("free").add() >= 2);
        assert!(got.is_none_or(|value| value <= 2));
    });
}

/// A favourite and another thread exclude each other, and each sees the other's changes. The favourite takes
/// the lock twice while the other thread tries it.
#[test]
fn a_favourite_and_another_thread_have_the_lock_in_turn() {
    loom::model(|| {
        let lock = Arc::new(Lock::favouring(SharedWord::default()));
        // Makes this thread the favourite.
        let mut tries = 0;
        for _ in 0..3 {
            lock.lock().add();
            tries += 1;
        }
        let other = lock.clone();
        let thread = thread::spawn(move || other.try_lock().map(|shared| shared.add()).is_some());
        for _ in 0..2 {
            tries += u64::from(lock.try_lock().map(|shared| shared.add()).is_some());
        }
        tries += u64::from(thread.join().unwrap());
        assert_eq!(lock.try_lock().expect("free").add(), tries + 1);
    });
}

/// A former favourite that resumes late does not break mutual exclusion. It stops in the middle of an
/// attempt, and another thread takes the lock so often that it becomes the favourite.
#[test]
fn a_late_former_favourite_breaks_no_exclusion() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(Lock::favouring(SharedWord::default()));
        let take = |lock: &Lock<SharedWord>| u64::from(lock.try_lock().map(|shared| shared.add()).is_some());
        let mut taken: u64 = (0..3).map(|_| take(&lock)).sum();
        let other = lock.clone();
        let thread = thread::spawn(move || (0..6).map(|_| take(&other)).sum::<u64>());
        taken += take(&lock);
        taken += thread.join().unwrap();
        assert_eq!(lock.try_lock().expect("free").add(), taken + 1);
    });
}

/// Two threads that try a favourite's lock at once exclude each other and the favourite.
#[test]
fn two_threads_and_a_favourite_exclude_each_other() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(Lock::favouring(SharedWord::default()));
        (0..3).for_each(|_| {
            lock.lock().add();
        });
        let take = |lock: &Lock<SharedWord>| u64::from(lock.try_lock().map(|shared| shared.add()).is_some());
        let others: [_; 2] = std::array::from_fn(|_| {
            let other = lock.clone();
            thread::spawn(move || take(&other))
        });
        let mut taken = 3 + take(&lock);
        taken += others.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>();
        assert_eq!(lock.try_lock().expect("free").add(), taken + 1);
    });
}

/// A counting semaphore on which a thread sleeps. loom ends with an error when all threads sleep for ever.
#[derive(Default)]
struct Bell {
    rung: Mutex<u32>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    /// Waits until the count is not zero, and takes one.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung -= 1;
    }
}

/// Two threads post work; each tries the lock, and its holder does all work that it finds. All work is done
/// when both threads have returned.
struct WorkPost {
    lock: Lock<SharedWord>,
    posted: [AtomicU32; 2],
    done: [AtomicU32; 2],
    work_count: WorkCount,
    note: WorkNote,
    rare_note: RareWorkNote,
}

impl WorkPost {
    fn new(lock: Lock<SharedWord>) -> Arc<Self> {
        let none = || [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Self {
            lock,
            posted: none(),
            done: none(),
            work_count: WorkCount::default(),
            note: WorkNote::default(),
            rare_note: RareWorkNote::default(),
        })
    }

    fn work(&self, shared: &SharedWord) {
        shared.add();
        for (posted, done) in self.posted.iter().zip(&self.done) {
            done.store(posted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn post_by_count(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        self.work_count.note();
        while let Some(shared) = self.lock.try_lock() {
            let heard = self.work_count.noted();
            self.work(&shared);
            drop(shared);
            if !self.work_count.since(heard) {
                return;
            }
        }
    }

    fn post_with_note(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        self.note.note();
        while let Some(shared) = self.lock.try_lock() {
            self.note.begin();
            self.work(&shared);
            drop(shared);
            if !self.note.is_noted() {
                return;
            }
        }
    }

    fn post_with_rare_note(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        let mut taken = self.lock.try_lock();
        if taken.is_none() {
            self.rare_note.note();
            taken = self.lock.try_lock();
        }
        while let Some(shared) = taken {
            self.rare_note.begin();
            self.work(&shared);
            drop(shared);
            if !self.rare_note.is_noted() {
                return;
            }
            taken = self.lock.try_lock();
        }
    }
}

fn no_work_is_left_by(lock: fn(SharedWord) -> Lock<SharedWord>, post: fn(&WorkPost, usize)) {
    loom::model(move || {
        let work = WorkPost::new(lock(SharedWord::default()));
        let other = work.clone();
        // Where there are favourites, this thread becomes one.
        (0..2).for_each(|_| drop(work.lock.lock()));
        let thread = thread::spawn(move || post(&other, 1));
        post(&work, 0);
        thread.join().unwrap();
        assert_eq!(work.done.each_ref().map(|done| done.load(Ordering::Relaxed)), [1, 1]);
    });
}

fn no_work_is_left(post: fn(&WorkPost, usize)) {
    no_work_is_left_by(Lock::new, post);
    no_work_is_left_by(Lock::favouring, post);
}

#[test]
fn no_ring_is_lost() {
    no_work_is_left(WorkPost::post_by_count);
}

#[test]
fn no_note_is_lost() {
    no_work_is_left(WorkPost::post_with_note);
}

#[test]
fn no_rare_note_is_lost() {
    no_work_is_left(WorkPost::post_with_rare_note);
}
