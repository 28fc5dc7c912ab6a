//! The deadlines of the background thread, and until when it sleeps.
//!
//! The background thread says under the lock up to which deadline it sleeps. A thread that sets an earlier
//! one finds that there, and wakes it. So a deadline that is set while the background thread is about to
//! sleep is either one that it sees, or one that wakes it. `model` checks it.

use crate::sync::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

/// Names a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer(Instant, u64);

/// Deadlines, each with the source that is called when it passes. Thread-safe.
pub(crate) struct Deadlines<S>(Mutex<Inner<S>>);

struct Inner<S> {
    /// Earliest first. Those that are not in `wanted` any more were cancelled.
    all: BinaryHeap<Reverse<Timer>>,
    /// By number. Two tables that keep their room, rather than a tree: setting a timer again and again
    /// allocates nothing.
    wanted: HashMap<u64, S>,
    next: u64,
    /// The deadline up to which the thread sleeps; None while it is awake.
    asleep_until: Option<Option<Instant>>,
}

impl<S> Default for Deadlines<S> {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            all: BinaryHeap::new(),
            wanted: HashMap::new(),
            next: 0,
            asleep_until: None,
        }))
    }
}

impl<S> Deadlines<S> {
    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds one. True: the thread sleeps past it, and the caller has to wake it.
    pub(crate) fn set(&self, when: Instant, who: S) -> (Timer, bool) {
        let mut inner = self.lock();
        inner.next += 1;
        let timer = Timer(when, inner.next);
        inner.all.push(Reverse(timer));
        inner.wanted.insert(timer.1, who);
        let wakes = matches!(inner.asleep_until, Some(until) if until.is_none_or(|until| when < until));
        (timer, wakes)
    }

    /// Forgets one. Returns its source, to be dropped without the lock.
    pub(crate) fn cancel(&self, timer: Timer) -> Option<S> {
        let mut inner = self.lock();
        let dropped = inner.wanted.remove(&timer.1);
        let Inner { all, wanted, .. } = &mut *inner;
        if all.len() > 2 * wanted.len() + 64 {
            all.retain(|Reverse(timer)| wanted.contains_key(&timer.1));
        }
        dropped
    }

    /// Appends the sources of those that have passed by `now`, which is asked at most once.
    pub(crate) fn take_due(&self, due: &mut Vec<S>, now: impl FnOnce() -> Instant + Copy) {
        let mut inner = self.lock();
        let mut asked = None;
        while let Some(&Reverse(first)) = inner.all.peek() {
            let cancelled = !inner.wanted.contains_key(&first.1);
            if !cancelled && first.0 > *asked.get_or_insert_with(now) {
                break;
            }
            inner.all.pop();
            due.extend(inner.wanted.remove(&first.1));
        }
    }

    /// The background thread is about to sleep until another thread wakes it, or until this, the first of
    /// them.
    pub(crate) fn sleep(&self) -> Option<Instant> {
        let mut inner = self.lock();
        let first = inner.all.peek().map(|Reverse(timer)| timer.0);
        inner.asleep_until = Some(first);
        first
    }

    /// The thread sleeps no more.
    pub(crate) fn awake(&self) {
        self.lock().asleep_until = None;
    }
}
