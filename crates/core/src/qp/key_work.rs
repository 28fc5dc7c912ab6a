//! Requests that concern the keys of this process alone: a memory window is bound, a key is invalidated.
//!
//! Neither completes while a use of the bytes goes on that the key opened before. Such uses last for
//! microseconds, unless a thread copies to or from a page that a peer withholds. The thread that carries such
//! a request out sends for other queue pairs, too. So it waits for nobody: it tries again later, and in the
//! end the request fails.

use super::queues::Queues;
use super::send::SendWork;
use crate::memory::{Access, Bind, BindOutcome};
use crate::reactor::{Source, Timer};
use crate::request::{Opcode, Status};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For how long a request is tried again while its former bytes are in use.
const USE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pauses between two tries: the first one, and the longest one. Each is twice as long as the one before it.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// How a try at a request ended that concerns keys alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalOutcome {
    /// The request ends with this status.
    Done(Status),
    /// The bytes that the key opened before are in use. The request is to be tried again when the timer calls
    /// `again`, or sooner. Requests behind it do not begin before.
    Later,
}

/// Where the request stands that concerns keys alone: at most one of a queue pair has begun, and is not
/// complete. For the thread with the transport's transmit lock.
#[derive(Default)]
pub(super) struct KeyWork(Mutex<Option<Waiting>>);

/// A request that is tried again.
struct Waiting {
    attempt: Attempt,
    /// The time of the next try, and the timer for that.
    next: Instant,
    timer: Timer,
}

/// A request that has been tried.
#[derive(Clone, Copy)]
struct Attempt {
    /// The number of the request in the send queue.
    sequence: u64,
    /// The time of the first try.
    since: Instant,
    /// The pause until the next try.
    pause: Duration,
}

impl Attempt {
    fn new(sequence: u64, now: Instant) -> Self {
        Self { sequence, since: now, pause: Duration::ZERO }
    }

    /// The attempt after one that found the bytes in use. None if the request has been tried for long enough.
    fn next(self, now: Instant) -> Option<Self> {
        let left = USE_TIMEOUT.checked_sub(now - self.since).filter(|left| !left.is_zero())?;
        // The last try is at the end.
        Some(Self { pause: (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE).min(left), ..self })
    }
}

impl KeyWork {
    fn lock(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Queues {
    /// Tries to carry out a request that concerns the keys of this process alone (see
    /// [`crate::request::Opcode::is_local`]), once no earlier request needs those keys. Does not wait.
    /// `again`: what the background thread calls when the request is to be tried again. The caller may try
    /// sooner, and as often as it likes: the background thread may be the one that uses the bytes.
    ///
    /// Caller: the thread with the transport's transmit lock.
    pub fn execute_locally(&self, work: &SendWork, again: impl FnOnce() -> Arc<dyn Source>) -> LocalOutcome {
        let mut waiting = self.key_work.lock();
        let (now, reactor) = (Instant::now(), &self.engine.reactor);
        let mut before = None;
        if let Some(Waiting { attempt, next, timer }) = &*waiting {
            before = Some(*attempt).filter(|attempt| attempt.sequence == work.sequence);
            if before.is_some() && now < *next {
                return LocalOutcome::Later;
            }
            reactor.cancel_timer(*timer);
            *waiting = None;
        }
        let attempt = before.unwrap_or_else(|| Attempt::new(work.sequence, now));
        let status = match work.opcode {
            Opcode::BindWindow => self.try_to_bind(work),
            _ => self.try_to_invalidate(work, before.is_none(), now - attempt.since),
        };
        if let Some(status) = status {
            return LocalOutcome::Done(status);
        }
        *waiting = attempt.next(now).and_then(|attempt| {
            let timer = reactor.set_timer(attempt.pause, again()).ok()?;
            Some(Waiting { attempt, next: now + attempt.pause, timer })
        });
        if waiting.is_some() { LocalOutcome::Later } else { LocalOutcome::Done(self.fail_in_use(work)) }
    }

    /// The queue pair has ended, or begins anew: no request is tried again.
    pub(super) fn forget_key_work(&self) {
        if let Some(Waiting { timer, .. }) = self.key_work.lock().take() {
            self.engine.reactor.cancel_timer(timer);
        }
    }

    /// Whether a request that concerns keys alone has begun, and waits for uses of its former bytes.
    pub fn waits_for_uses(&self) -> bool {
        self.key_work.lock().is_some()
    }

    /// Tries to bind a window. None if its former bytes are in use.
    fn try_to_bind(&self, work: &SendWork) -> Option<Status> {
        let bind = Bind {
            key: work.rkey,
            region: work.immediate,
            address: work.remote_address,
            length: work.compare_add,
            access: Access::from_bits_truncate(work.swap as u32),
        };
        match self.engine.keys.bind(self.domain, self.number, &bind) {
            Ok(BindOutcome::Bound) => Some(Status::Success),
            Ok(BindOutcome::InUse) => None,
            Err(why) => {
                crate::log!(Warn, "queue pair {:#x}: a memory window was not bound: {why}", self.number);
                Some(Status::WindowBind)
            }
        }
    }

    /// Invalidates a key, at the first try, and looks whether its uses have ended, after `waited`. None if
    /// some have not.
    fn try_to_invalidate(&self, work: &SendWork, is_first: bool, waited: Duration) -> Option<Status> {
        let (keys, key) = (&self.engine.keys, work.immediate);
        if is_first && keys.invalidate_locally(key, self.domain, self.number).is_err() {
            return Some(Status::LocalQpOperation);
        }
        // The program may use the bytes for something else afterwards.
        (!keys.has_uses_left(key, waited)).then_some(Status::Success)
    }

    /// The request has been tried for long enough.
    #[cold]
    fn fail_in_use(&self, work: &SendWork) -> Status {
        let number = self.number;
        if work.opcode == Opcode::BindWindow {
            let why = "bytes that the window opened before are still in use";
            crate::log!(Warn, "queue pair {number:#x}: a memory window was not bound: {why}");
            return Status::WindowBind;
        }
        let key = work.immediate;
        crate::log!(
            Warn,
            "queue pair {number:#x}: key {key:#x} opens nothing any more, but its bytes are still in use"
        );
        Status::LocalQpOperation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_tried_often_at_first_and_for_the_last_time_at_the_end() {
        let start = Instant::now();
        let mut attempt = Attempt::new(5, start);
        let (mut now, mut pauses) = (start, Vec::new());
        while let Some(next) = attempt.next(now) {
            attempt = next;
            now += attempt.pause;
            pauses.push(attempt.pause);
        }
        assert_eq!((pauses[0], now - start), (FIRST_PAUSE, USE_TIMEOUT));
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE) && pauses.len() < 150, "{pauses:?}");
        // A thread that comes late tries once more.
        assert!(Attempt::new(5, start).next(start + USE_TIMEOUT * 2).is_none());
    }
}
