//! Fewer events for many completions (ibv_modify_cq(3)): an armed completion queue tells its channel only
//! after so many completions, or so long after the first of them.

use crate::cq::CompletionQueue;
use crate::reactor::{Readiness, Source};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How a completion queue spares events. Of the values that a program sets, 0 and 0 mean that it does not.
#[derive(Default)]
pub(crate) struct Moderation {
    /// Completions per event, and from bit 16 on the longest time in microseconds.
    limits: AtomicU32,
    /// Completions since the last event.
    held: AtomicU32,
    /// Whether a timer runs.
    timed: AtomicBool,
}

impl Moderation {
    /// Sets both limits; 0 for the one that is not to count.
    pub(crate) fn set(&self, count: u16, period: u16) {
        self.limits.store(u32::from(count) | u32::from(period) << 16, Ordering::Release);
    }

    /// Whether the event for a completion is to wait; `queue` hears of it when the time is over.
    #[inline]
    pub(crate) fn holds(&self, queue: &Weak<CompletionQueue>) -> bool {
        let limits = self.limits.load(Ordering::Acquire);
        limits != 0 && self.holds_within(limits & 0xffff, limits >> 16, queue)
    }

    #[cold]
    fn holds_within(&self, count: u32, period: u32, queue: &Weak<CompletionQueue>) -> bool {
        let held = self.held.fetch_add(1, Ordering::AcqRel) + 1;
        if count > 0 && held >= count {
            self.held.store(0, Ordering::Release);
            return false;
        }
        if period > 0 && !self.timed.swap(true, Ordering::AcqRel) {
            let timer = queue.upgrade().map(|queue| {
                let engine = queue.context().engine();
                let later = Arc::new(Later(Arc::downgrade(&queue)));
                engine.reactor.set_timer(Duration::from_micros(period.into()), later)
            });
            if !matches!(timer, Some(Ok(_))) {
                // Without a timer there is no other time than now.
                self.timed.store(false, Ordering::Release);
                return false;
            }
        }
        true
    }

    /// The time is over. Returns whether an event is due.
    fn expire(&self) -> bool {
        self.timed.store(false, Ordering::Release);
        self.held.swap(0, Ordering::AcqRel) > 0
    }
}

/// The end of a queue's period.
struct Later(Weak<CompletionQueue>);

impl Source for Later {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade()
            && queue.moderation().expire()
        {
            queue.tell();
        }
    }
}
