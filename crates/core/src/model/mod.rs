//! Models of the words and locks that threads share, under loom. Every order in which threads can run is tried, and every value that the memory model lets
//! them read, with the very code that runs. Built with `--cfg loom`. How a thread waits for a lock has no model: that takes the kernel.

use crate::lock::Lock;
use crate::rings::{RareWorkNote, Rings, WorkNote};
use crate::sync::{AtomicU32, Ordering};
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

// Of which loom says when two use it at once.
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
fn one_at_a_time_has_the_lock() {
    loom::model(|| {
        let lock = Arc::new(Lock::new(SharedWord::default()));
        let other = lock.clone();
        let thread = thread::spawn(move || {
            let _ = other.try_lock().map(|shared| shared.add());
        });
        let got = lock.try_lock().map(|shared| shared.add());
        thread.join().unwrap();
        // No thread has it now, and at least one has had it.
        assert!(lock.try_lock().expect("free").add() >= 2);
        assert!(got.is_none_or(|value| value <= 2));
    });
}

/// A favourite that takes the lock twice, while another thread comes: each finds the value free of the other, and sees the other's changes.
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

/// A favourite that is kept from its processor in the middle of an attempt, while another thread takes the lock so often that it becomes the favourite.
#[test]
fn a_former_favourite_disturbs_the_next_one_by_nothing() {
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

/// Two threads that come to a favourite's lock at once.
#[test]
fn two_threads_come_to_a_favourite() {
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

/// A thread sleeps on this: loom ends with an error when all threads sleep for ever.
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

    /// Waits until it has been rung, and clears one ring.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung -= 1;
    }
}

/// Work for the holder of the lock: each of two threads posts something, and one of them has done it when both are back.
struct Desk {
    lock: Lock<SharedWord>,
    posted: [AtomicU32; 2],
    done: [AtomicU32; 2],
    rings: Rings,
    missed: WorkNote,
    overlooked: RareWorkNote,
}

impl Desk {
    fn new(lock: Lock<SharedWord>) -> Arc<Self> {
        let none = || [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Self {
            lock,
            posted: none(),
            done: none(),
            rings: Rings::default(),
            missed: WorkNote::default(),
            overlooked: RareWorkNote::default(),
        })
    }

    fn work(&self, shared: &SharedWord) {
        shared.add();
        for (posted, done) in self.posted.iter().zip(&self.done) {
            done.store(posted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn by_rings(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        self.rings.ring();
        while let Some(shared) = self.lock.try_lock() {
            let heard = self.rings.heard();
            self.work(&shared);
            drop(shared);
            if !self.rings.since(heard) {
                return;
            }
        }
    }

    fn by_note(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        self.missed.note();
        while let Some(shared) = self.lock.try_lock() {
            self.missed.begin();
            self.work(&shared);
            drop(shared);
            if !self.missed.is_noted() {
                return;
            }
        }
    }
}

impl Desk {
    fn when_overlooked(&self, who: usize) {
        self.posted[who].store(1, Ordering::Relaxed);
        let mut taken = self.lock.try_lock();
        if taken.is_none() {
            self.overlooked.note();
            taken = self.lock.try_lock();
        }
        while let Some(shared) = taken {
            self.overlooked.begin();
            self.work(&shared);
            drop(shared);
            if !self.overlooked.is_noted() {
                return;
            }
            taken = self.lock.try_lock();
        }
    }
}

fn nothing_is_left_of(lock: fn(SharedWord) -> Lock<SharedWord>, post: fn(&Desk, usize)) {
    loom::model(move || {
        let desk = Desk::new(lock(SharedWord::default()));
        let other = desk.clone();
        // Where there are favourites, this thread becomes one.
        (0..2).for_each(|_| drop(desk.lock.lock()));
        let thread = thread::spawn(move || post(&other, 1));
        post(&desk, 0);
        thread.join().unwrap();
        assert_eq!(desk.done.each_ref().map(|done| done.load(Ordering::Relaxed)), [1, 1]);
    });
}

fn nothing_is_left(post: fn(&Desk, usize)) {
    nothing_is_left_of(Lock::new, post);
    nothing_is_left_of(Lock::favouring, post);
}

#[test]
fn who_rings_is_heard() {
    nothing_is_left(Desk::by_rings);
}

#[test]
fn who_notes_is_heard() {
    nothing_is_left(Desk::by_note);
}

#[test]
fn who_is_overlooked_is_heard() {
    nothing_is_left(Desk::when_overlooked);
}
