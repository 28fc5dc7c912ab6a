//! Arming a completion queue: no completion is slept through, and no arming raises two events.

use super::Bell;
use crate::arming::{Arming, UnnotifiedKinds};
use crate::sync::{AtomicU32, Ordering};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;
use std::sync::Arc;

#[derive(Default)]
struct Ring {
    length: u32,
    unheard: UnnotifiedKinds,
}

// As `cq::CompletionQueue` uses the two: entries that are numbers, and a channel that is a bell. Its lock has
// a model of its own.
#[derive(Default)]
struct Queue {
    ring: Mutex<Ring>,
    arming: Arming,
    events: Bell,
    raised: AtomicU32,
}

impl Queue {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap()
    }

    fn raise(&self) {
        self.raised.fetch_add(1, Ordering::Relaxed);
        self.events.ring();
    }

    fn push(&self, urgent: bool) {
        let mut ring = self.ring();
        ring.length += 1;
        let wakes = self.arming.completed(&mut ring.unheard, urgent);
        drop(ring);
        if wakes && self.arming.take() {
            self.raise();
        }
    }

    fn arm(&self, urgent_only: bool) {
        let due = self.arming.arm(&mut self.ring().unheard, urgent_only);
        if due {
            self.raise();
        }
    }

    fn poll(&self) -> u32 {
        let mut ring = self.ring();
        ring.unheard.forget();
        std::mem::take(&mut ring.length)
    }

    /// Waits as `CompletionChannel::wait` does.
    fn wait(&self) {
        self.events.wait();
        self.ring().unheard.forget();
    }
}

/// A program that sleeps whenever it has armed the queue, with a last poll in between or without, takes the
/// completions that `pushers` threads push.
fn run(pushers: u32, last_poll: bool, urgent_only: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = (pushers > 1).then_some(2);
    model.check(move || {
        let queue = Arc::new(Queue::default());
        let threads: Vec<_> = (0..pushers)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.push(urgent_only))
            })
            .collect();
        let (mut got, mut armings) = (0, 0);
        while got < pushers {
            queue.arm(urgent_only);
            armings += 1;
            if last_poll {
                got += queue.poll();
            }
            if got < pushers {
                queue.wait();
                got += queue.poll();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(got, pushers);
        assert!(queue.raised.load(Ordering::Relaxed) <= armings, "more events than were asked for");
    });
}

#[test]
fn no_completion_is_slept_through() {
    for urgent_only in [false, true] {
        run(1, true, urgent_only);
        run(1, false, urgent_only);
    }
    run(2, true, false);
}

/// A completion that is not urgent raises no event in a queue that is armed for urgent ones. The next arming
/// for all finds it.
#[test]
fn a_completion_without_an_event_is_found_by_the_next_arming() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let other = queue.clone();
        let thread = thread::spawn(move || other.push(false));
        queue.arm(true);
        queue.arm(false);
        queue.wait();
        assert_eq!(queue.poll(), 1);
        thread.join().unwrap();
        assert_eq!(queue.raised.load(Ordering::Relaxed), 1);
    });
}
