//! A message that has come before the program has posted its receive waits for that, for a bounded time.
//!
//! Nothing behind the message is taken in meanwhile, so TCP's window closes and the peer waits, too. Posting
//! a receive is to cost nothing. So the background thread looks for the receive, by the timer here; polls
//! look, too, but not those of lanes with many connections.

use crate::endpoint::Endpoint;
use adverb_core::reactor::{READABLE, Readiness, Source};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a message waits for its receive; then the connection ends. The fuzzer's program posts none later.
const RECEIVE_TIMEOUT: Duration =
    if cfg!(any(test, fuzzing)) { Duration::ZERO } else { Duration::from_secs(2) };
/// More time than this does not count between two looks: the process was stopped, and its program could post
/// nothing.
const MOST_BETWEEN: Duration = Duration::from_millis(20);
/// The pauses between the background thread's looks: the first, and the longest. The longer a message has
/// waited, the longer they are.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(16)];

/// How long a message has waited so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The last look, in nanoseconds of the device's clock.
    looked: u64,
    so_far: Duration,
}

impl Wait {
    /// A message begins to wait.
    pub(crate) fn begin(now: u64) -> Self {
        Self { looked: now, so_far: Duration::ZERO }
    }

    /// A look has found no receive.
    pub(crate) fn look(&mut self, now: u64) {
        self.so_far += Duration::from_nanos(now.saturating_sub(self.looked)).min(MOST_BETWEEN);
        self.looked = now;
    }

    /// Whether the program has had its time.
    pub(crate) fn is_over(&self) -> bool {
        self.so_far >= RECEIVE_TIMEOUT
    }

    fn pause(&self) -> Duration {
        (self.so_far / 4).clamp(PAUSES[0], PAUSES[1])
    }
}

/// The background thread's looks at one queue pair on whose connection a message waits.
pub(crate) struct Behind {
    endpoint: Weak<Endpoint>,
    /// A timer runs: there is one at most.
    looks: AtomicBool,
}

impl Behind {
    pub(crate) fn new(endpoint: Weak<Endpoint>) -> Arc<Self> {
        Arc::new(Self { endpoint, looks: AtomicBool::new(false) })
    }

    /// A message of `endpoint` waits: the background thread looks in a moment. Called by a thread that has
    /// taken in the message.
    #[cold]
    pub(crate) fn look_soon(self: &Arc<Self>, endpoint: &Endpoint, wait: Wait) {
        if self.looks.swap(true, Ordering::SeqCst) {
            return;
        }
        // The timer may run out on the background thread before this thread goes on. `timeout` has set
        // `looks` to false then, so success stores nothing here.
        if endpoint.queues.engine.reactor.set_timer(wait.pause(), self.clone()).is_err() {
            // Polls and the next arrival remain.
            self.looks.store(false, Ordering::SeqCst);
        }
    }
}

impl Source for Behind {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.looks.store(false, Ordering::SeqCst);
        if let Some(endpoint) = self.endpoint.upgrade() {
            // As if more had come.
            endpoint.ready(READABLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let mut wait = Wait::begin(5);
        wait.look(5 + 3_000_000);
        assert_eq!(wait.so_far, Duration::from_millis(3));
        wait.look(60_000_000_000);
        assert_eq!(wait.so_far, Duration::from_millis(23));
        assert_eq!(wait.pause(), Duration::from_micros(5750));
        wait.look(0);
        assert_eq!(wait.so_far, Duration::from_millis(23));
        assert_eq!(Wait::begin(7).pause(), PAUSES[0]);
    }
}
