//! Posts that wait to be gathered: while a program polls, its posts between two polls may leave together.
//!
//! A transport decides which posts are *put off*. The next thread that visits the lane sends them: a thread
//! that polls, that posts, or that takes in an acknowledgement. For that it looks at one word, `state`; no
//! system call is made. A timer of the background thread runs from the first post that is put off until none
//! has been put off for a while. When the timer finds that no thread has visited the lane, the background
//! thread sends. When it has found that as many times in a row as the transport wants, posts leave at once
//! until the program polls again.
//!
//! The posting thread makes its post visible, and then swaps `state` to `WAITING`. The sending thread changes
//! `state` from `WAITING` to `TAKEN`, and then looks for posts: so it sees every post whose thread it has
//! taken `state` from. The posting thread that has found `IDLE` sets the timer. Only the timer goes back to
//! `IDLE`, or that thread where it can set none. If it finds `WAITING` as it goes back, it sends the posts.
//! `model` checks that no post stays behind.

use crate::reactor::{Readiness, Source, Timers};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Until the first look of the timer, and the longest time between two looks: that doubles as long as threads
/// visit the lane.
const LOOK: Duration = Duration::from_micros(40);
const LONGEST_LOOK: Duration = Duration::from_micros(160);

/// No timer runs, and nothing is put off.
const IDLE: u8 = 0;
/// The timer runs; nothing has been put off since it looked.
const QUIET: u8 = 1;
/// The timer runs; the posts that were put off have been taken.
const TAKEN: u8 = 2;
/// Something is put off, and the timer runs, or is being set.
const WAITING: u8 = 3;

/// The lane, whose posts are put off.
pub trait GatheredLane: Send + Sync {
    /// Sends everything that has been posted.
    fn send_off(&self);
}

/// The posts of one lane that wait to be gathered. Thread-safe.
pub struct Gathering {
    lane: Weak<dyn GatheredLane>,
    timers: &'static dyn Timers,
    state: AtomicU8,
    /// How many times threads have visited the lane; not exact where two do at once.
    visits: AtomicU32,
    /// The number of visits at the last look of the timer.
    seen: AtomicU32,
    /// The number of visits after which no more are expected: the timer has found so, or the program arms a
    /// completion queue.
    last: AtomicU32,
    /// Microseconds between two looks.
    pause: AtomicU32,
    /// Looks in a row without a visit before them, and how many of these end the expectation.
    vain: AtomicU32,
    wanted: u32,
    /// The posts that wait have waited at the last look already.
    is_old: AtomicBool,
}

impl Gathering {
    /// For a lane that no thread has polled yet. After `looks` looks of the timer in a row without a visit,
    /// no more are expected; at least one.
    pub fn new(lane: Weak<dyn GatheredLane>, timers: &'static dyn Timers, looks: u32) -> Arc<Self> {
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

    /// The calling thread polls, or posts a request that leaves at once. Returns whether it is to send the
    /// posts that wait.
    #[inline]
    #[must_use]
    pub fn polled(&self) -> bool {
        self.visited();
        self.take()
    }

    /// The calling thread sends its own posts, and no others.
    #[inline]
    pub fn visited(&self) {
        // The timer asks only whether the number has changed: a lost count does no harm.
        self.visits.store(self.visits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The program is about to sleep: posts leave at once until it polls again. Returns whether the calling
    /// thread is to send the posts that wait.
    #[must_use]
    pub fn rest(&self) -> bool {
        self.last.store(self.visits.load(Ordering::Relaxed), Ordering::Relaxed);
        self.take()
    }

    /// Whether the calling thread is to send the posts that wait. A thread that sends anyway calls this
    /// before it looks for posts.
    #[inline]
    pub fn take(&self) -> bool {
        let takes = self.waits() && self.change(WAITING, TAKEN);
        if takes {
            self.is_old.store(false, Ordering::Relaxed);
        }
        takes
    }

    /// Whether posts wait.
    #[inline]
    #[must_use]
    pub fn waits(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WAITING
    }

    /// Whether the timer runs already, so that a post that is put off wakes no thread.
    #[inline]
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IDLE
    }

    /// Whether a visit is expected, so that a post may be put off.
    #[inline]
    #[must_use]
    pub fn expects_polls(&self) -> bool {
        self.last.load(Ordering::Relaxed) != self.visits.load(Ordering::Relaxed)
    }

    /// A post waits to be gathered. It is visible to other threads already.
    #[inline]
    pub fn put_off(self: &Arc<Self>) {
        // A swap even where the word is WAITING already: the thread that takes it then sees this post, too.
        if self.state.swap(WAITING, Ordering::SeqCst) == IDLE {
            self.begin_looking();
        }
    }

    #[cold]
    fn begin_looking(self: &Arc<Self>) {
        let visits = self.visits.load(Ordering::Relaxed);
        // A new run of the timer keeps the count of empty looks, unless there was a visit. So the engine
        // recognises a program that posts rarely and never polls.
        if self.seen.swap(visits, Ordering::Relaxed) != visits {
            self.vain.store(0, Ordering::Relaxed);
        }
        self.is_old.store(false, Ordering::Relaxed);
        self.pause.store(LOOK.as_micros() as u32, Ordering::Relaxed);
        if self.timers.set_timer(LOOK, self.clone()).is_err() {
            self.stop_looking();
        }
    }

    /// No timer runs from now on, so no post may wait.
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

    /// Looks whether threads still visit the lane.
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
            // No thread has visited, or the visitors have sent their own posts alone.
            WAITING if vain > 0 || self.is_old.swap(true, Ordering::Relaxed) => {
                if self.take()
                    && let Some(lane) = self.lane.upgrade()
                {
                    lane.send_off();
                }
            }
            // Younger than a look: the next one comes soon, and sends it.
            WAITING => self.pause.store(LOOK.as_micros() as u32 / 2, Ordering::Relaxed),
            // If a post is put off at this instant, the change fails, and the timer goes on.
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

    impl GatheredLane for Lane {
        fn send_off(&self) {}
    }

    #[test]
    fn a_program_that_polls_no_more_and_posts_now_and_then_is_found_out() {
        const LOOKS: u32 = 8;
        let (clock, lane): (&'static Clock, _) = (Box::leak(Box::default()), Arc::new(Lane));
        let weak: Weak<Lane> = Arc::downgrade(&lane);
        let gathering = Gathering::new(weak, clock, LOOKS);
        assert!(!gathering.polled() && gathering.expects_polls());
        // There is so much time between two posts that the timer has stopped.
        for _ in 0..LOOKS {
            gathering.put_off();
            while clock.pass() {}
        }
        assert!(!gathering.expects_polls());
        assert!(!gathering.polled() && gathering.expects_polls(), "until the next poll");
    }
}
