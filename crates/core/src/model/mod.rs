//! What threads share under loom: every order in which threads can run, and every value that the memory model lets them read, with the very code that
//! runs. Built with `--cfg loom`. How a thread waits for a lock has no model: that takes the kernel.

use crate::lock::Lock;
use crate::rings::{Missed, Rings};
use crate::sync::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

mod completion;
mod gathering;
mod guard;
mod keys;
mod posts;
mod rounds;
mod sleep;
mod turns;

// Of which loom says when two use it at once.
#[derive(Default)]
struct Shared(loom::cell::UnsafeCell<u64>);

// SAFETY: loom ends with an error if it is used by two at once.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
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
        let lock = Arc::new(Lock::new(Shared::default()));
        let other = lock.clone();
        let thread = thread::spawn(move || {
            let _ = other.try_lock().map(|shared| shared.add());
        });
        let got = lock.try_lock().map(|shared| shared.add());
        thread.join().unwrap();
        // Nobody has it now, and somebody has had it.
        assert!(lock.try_lock().expect("free").add() >= 2);
        assert!(got.is_none_or(|value| value <= 2));
    });
}

/// What a thread sleeps on: loom ends with an error when everybody sleeps for ever.
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

/// Work for whoever has the lock: each of two threads posts something, and one of them has done it when both are back.
struct Desk {
    lock: Lock<Shared>,
    posted: [AtomicU32; 2],
    done: [AtomicU32; 2],
    rings: Rings,
    missed: Missed,
}

impl Desk {
    fn new() -> Arc<Self> {
        let none = || [AtomicU32::new(0), AtomicU32::new(0)];
        let (rings, missed) = (Rings::default(), Missed::default());
        Arc::new(Self { lock: Lock::new(Shared::default()), posted: none(), done: none(), rings, missed })
    }

    fn work(&self, shared: &Shared) {
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

fn nothing_is_left(post: fn(&Desk, usize)) {
    loom::model(move || {
        let desk = Desk::new();
        let other = desk.clone();
        let thread = thread::spawn(move || post(&other, 1));
        post(&desk, 0);
        thread.join().unwrap();
        assert_eq!(desk.done.each_ref().map(|done| done.load(Ordering::Relaxed)), [1, 1]);
    });
}

#[test]
fn who_rings_is_heard() {
    nothing_is_left(Desk::by_rings);
}

#[test]
fn who_notes_is_heard() {
    nothing_is_left(Desk::by_note);
}
