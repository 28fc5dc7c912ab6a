//! Posts that wait for company: while a program polls, what it posts in between may leave together.
//!
//! A transport decides which posts may be *put off*. Whoever comes by next sends them: a poll, another post, whoever takes in an acknowledgement. That costs a
//! look at one word, and no system call tells anybody of it. A timer of the background thread runs from the first post that is put off until none has
//! been for a while. Where it finds that nobody has come by, it sends what was put off itself; and where it has found that as often in a row as the transport
//! wants it, nothing more is put off until the program polls again: so a program that does not come back does not wait for the timer for long. `model` checks
//! that nothing stays behind.

use crate::reactor::{Readiness, Source, Timers};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// So soon the timer looks for the first time, and at the latest after so long, once it has found again and again that somebody comes by.
const LOOK: Duration = Duration::from_micros(40);
const LONGEST_LOOK: Duration = Duration::from_micros(160);

/// No timer runs, and nothing is put off.
const IDLE: u8 = 0;
/// The timer runs; nothing has been put off since it looked.
const QUIET: u8 = 1;
/// The timer runs; what was put off has been taken.
const TAKEN: u8 = 2;
/// Something is put off, and the timer runs, or is being set.
const WAITING: u8 = 3;

/// Who puts posts off: the lane.
pub trait Gathers: Send + Sync {
    /// Sends everything that has been posted.
    fn send_off(&self);
}

/// Of a lane. Thread-safe.
pub struct Gathering {
    lane: Weak<dyn Gathers>,
    timers: &'static dyn Timers,
    state: AtomicU8,
    /// How often somebody has come by; not exact where two threads do.
    visits: AtomicU32,
    /// Of these the timer knows.
    seen: AtomicU32,
    /// After so many it was found that no more come, or the program said so.
    last: AtomicU32,
    /// Microseconds between two looks.
    pause: AtomicU32,
    /// Looks in a row by which nobody had come, and how many are wanted.
    vain: AtomicU32,
    wanted: u32,
    /// What is put off was so at the last look.
    is_old: AtomicBool,
}

impl Gathering {
    /// For a lane that nobody has polled yet. After `looks` in vain nobody is expected any more; at least one.
    pub fn new(lane: Weak<dyn Gathers>, timers: &'static dyn Timers, looks: u32) -> Arc<Self> {
        Arc::new(Self {
            lane,
            timers,
            state: AtomicU8::new(IDLE),
            visits: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            last: AtomicU32::new(0),
            pause: AtomicU32::new(0),
            vain: AtomicU32::new(0),
            wanted: looks,
            is_old: AtomicBool::new(false),
        })
    }

    /// A poll comes by, or a post that leaves at once. Returns whether it is to send what was put off.
    #[inline]
    #[must_use]
    pub fn polled(&self) -> bool {
        self.visited();
        self.take()
    }

    /// Somebody comes by who sends posts of his own alone.
    #[inline]
    pub fn visited(&self) {
        // That it changes is all that counts, even where two meet.
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The program is about to sleep: posts leave at once until it polls again. Returns whether the caller is to send what was put off.
    #[must_use]
    pub fn rest(&self) -> bool {
        self.last.store(self.visits.load(Ordering::Relaxed), Ordering::Relaxed);
        self.take()
    }

    /// Whether the caller is to send what was put off. Or, by who sends already: before it looks what there is.
    #[inline]
    pub fn take(&self) -> bool {
        let takes = self.waits() && self.change(WAITING, TAKEN);
        if takes {
            self.is_old.store(false, Ordering::Relaxed);
        }
        takes
    }

    /// Whether something is put off.
    #[inline]
    #[must_use]
    pub fn waits(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WAITING
    }

    /// Whether the timer runs already, so that a post that is put off wakes nobody.
    #[inline]
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IDLE
    }

    /// Whether somebody is expected to come by, so that a post may be put off.
    #[inline]
    #[must_use]
    pub fn expects_polls(&self) -> bool {
        self.last.load(Ordering::Relaxed) != self.visits.load(Ordering::Relaxed)
    }

    /// A post, which is visible to whoever sends, waits for company.
    #[inline]
    pub fn put_off(self: &Arc<Self>) {
        // No plain store, though it may say so already: whoever takes it sees the post then.
        if self.state.swap(WAITING, Ordering::SeqCst) == IDLE {
            self.begin_looking();
        }
    }

    #[cold]
    fn begin_looking(self: &Arc<Self>) {
        let visits = self.visits.load(Ordering::Relaxed);
        // Who posts now and then, and does not poll, is found out all the same.
        if self.seen.swap(visits, Ordering::Relaxed) != visits {
            self.vain.store(0, Ordering::Relaxed);
        }
        self.is_old.store(false, Ordering::Relaxed);
        self.pause.store(LOOK.as_micros() as u32, Ordering::Relaxed);
        if self.timers.set_timer(LOOK, self.clone()).is_err() {
            self.stop_looking();
        }
    }

    /// Without a timer nothing may wait.
    fn stop_looking(&self) {
        if self.state.swap(IDLE, Ordering::SeqCst) == WAITING
            && let Some(lane) = self.lane.upgrade()
        {
            lane.send_off();
        }
    }

    #[inline]
    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

impl Source for Gathering {
    fn ready(self: Arc<Self>, _: Readiness) {}

    /// Looks whether somebody still comes by.
    fn timeout(self: Arc<Self>) {
        let visits = self.visits.load(Ordering::Relaxed);
        let visited = self.seen.swap(visits, Ordering::Relaxed) != visits;
        let vain = if visited { 0 } else { self.vain.load(Ordering::Relaxed) + 1 };
        self.vain.store(vain, Ordering::Relaxed);
        match self.state.load(Ordering::Relaxed) {
            WAITING if vain >= self.wanted => {
                self.last.store(visits, Ordering::Relaxed);
                return self.stop_looking();
            }
            // Whoever comes by sends posts of his own alone, or nobody does.
            WAITING if vain > 0 || self.is_old.swap(true, Ordering::Relaxed) => {
                if self.take()
                    && let Some(lane) = self.lane.upgrade()
                {
                    lane.send_off();
                }
            }
            // It waits until the next look at the latest.
            WAITING => self.pause.store(LOOK.as_micros() as u32 / 2, Ordering::Relaxed),
            // Should something be put off at this instant, the timer goes on.
            QUIET if self.change(QUIET, IDLE) => return,
            TAKEN => drop(self.change(TAKEN, QUIET)),
            _ => {}
        }
        let pause = (self.pause.load(Ordering::Relaxed) * 2).min(LONGEST_LOOK.as_micros() as u32);
        self.pause.store(pause, Ordering::Relaxed);
        if self.timers.set_timer(Duration::from_micros(pause.into()), self.clone()).is_err() {
            self.stop_looking();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::deadlines::Deadlines;
    use crate::error::Result;
    use crate::reactor::Timer;
    use std::sync::Mutex;
    use std::time::Instant;

    #[derive(Default)]
    struct Clock(Mutex<Vec<Arc<dyn Source>>>);

    impl Timers for Clock {
        fn set_timer(&'static self, _: Duration, source: Arc<dyn Source>) -> Result<Timer> {
            self.0.lock().unwrap().push(source);
            Ok(Deadlines::default().set(Instant::now(), ()).0)
        }
    }

    impl Clock {
        /// The timer passes, if one is set.
        fn pass(&self) -> bool {
            let timer = self.0.lock().unwrap().pop();
            timer.map(Source::timeout).is_some()
        }
    }

    struct Lane;

    impl Gathers for Lane {
        fn send_off(&self) {}
    }

    #[test]
    fn who_polls_no_more_and_posts_now_and_then_is_found_out() {
        const LOOKS: u32 = 8;
        let (clock, lane): (&'static Clock, _) = (Box::leak(Box::default()), Arc::new(Lane));
        let weak: Weak<Lane> = Arc::downgrade(&lane);
        let gathering = Gathering::new(weak, clock, LOOKS);
        assert!(!gathering.polled() && gathering.expects_polls());
        // So long after each other that the timer has come to rest.
        for _ in 0..LOOKS {
            gathering.put_off();
            while clock.pass() {}
        }
        assert!(!gathering.expects_polls());
        assert!(!gathering.polled() && gathering.expects_polls(), "until the next poll");
    }
}
