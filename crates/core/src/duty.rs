//! Which thread takes in packets that arrive: the background thread, or a thread of the program that sleeps
//! for an event.
//!
//! An arrival wakes the thread on duty. Were that always the background thread, it would only go on to wake
//! the thread of the program that the event is for: two wake-ups for one event. So a thread of the program
//! that is about to sleep *takes* the duty, and sleeps on the descriptors at which packets arrive as well as
//! on its own. Woken, it takes in all packets itself, for any thread. One thread has the duty at a time: only
//! its own event wakes another thread that sleeps for one. When the thread sleeps no more, the background
//! thread is on duty again at once.
//!
//! A signal handler or a debugger may keep the thread on duty from its work. Then it loses the duty: the
//! background thread *looks* from time to time, and takes it. The other thread may sleep on nevertheless, and
//! arrivals wake it as before, beside the background thread.
//!
//! A task of an async program takes the duty in the same way, when it is about to wait. Its thread may run
//! other tasks for a while, so the background thread looks earlier.

use crate::reactor::{Readiness, Source, Timers};
use crate::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// The duty is taken from a thread that has had it for so long without being woken once, or for twice as
/// long.
const LOOK: Duration = Duration::from_millis(5);
/// The duty is taken from a task after so long, or twice as long. Its thread may run other tasks, so nothing
/// says that it sleeps.
const TASK_LOOK: Duration = Duration::from_micros(400);

/// What waits for an event, and takes in packets meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A thread, which does nothing but sleep.
    Thread,
    /// A task of an async program.
    Task,
}

impl Waiter {
    fn look(self) -> Duration {
        match self {
            Self::Thread => LOOK,
            Self::Task => TASK_LOOK,
        }
    }
}

/// The number of a turn. A new one begins each time that a thread takes the duty, or goes on with it after it
/// has been woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn(u64);

/// The descriptors at which things arrive.
pub(crate) trait Arrivals: Send + Sync {
    /// Puts the descriptors into the background thread's sight, or out of it. Events that are there already
    /// are reported.
    fn watch(&self, on: bool);
}

/// Which thread takes in packets that arrive: the background thread, or a thread of the program that sleeps
/// for an event. Thread-safe.
pub(crate) struct Duty {
    arrivals: &'static dyn Arrivals,
    timers: &'static dyn Timers,
    state: Mutex<State>,
}

struct State {
    /// The turn of the thread that is on duty; the background thread is if there is none.
    on_duty: Option<Turn>,
    /// What has, or last had, that turn.
    waiter: Waiter,
    latest: Turn,
    /// The latest turn when the background thread last looked, if it is to look again.
    seen: Option<Turn>,
}

impl Duty {
    /// The background thread is on duty.
    pub(crate) fn new(arrivals: &'static dyn Arrivals, timers: &'static dyn Timers) -> Arc<Self> {
        let state = State { on_duty: None, waiter: Waiter::Thread, latest: Turn(0), seen: None };
        Arc::new(Self { arrivals, timers, state: Mutex::new(state) })
    }

    /// The caller is about to sleep on the descriptors, and is on duty until [`Duty::end`]. None: another
    /// thread of the program is.
    pub(crate) fn take(self: &Arc<Self>, waiter: Waiter) -> Option<Turn> {
        let mut state = self.lock();
        if state.on_duty.is_some() {
            return None;
        }
        state.waiter = waiter;
        if !self.look_later(&mut state) {
            return None;
        }
        self.arrivals.watch(false);
        Some(state.begin())
    }

    /// The caller has been woken, and is about to sleep again. None: another thread of the program is on duty
    /// now.
    pub(crate) fn go_on(self: &Arc<Self>, turn: Turn, waiter: Waiter) -> Option<Turn> {
        let mut state = self.lock();
        if state.on_duty == Some(turn) {
            return Some(state.begin());
        }
        drop(state);
        self.take(waiter)
    }

    /// The caller sleeps no more.
    pub(crate) fn end(&self, turn: Turn) {
        let mut state = self.lock();
        if state.on_duty == Some(turn) {
            self.relieve(&mut state);
        }
    }

    fn relieve(&self, state: &mut State) {
        state.on_duty = None;
        self.arrivals.watch(true);
    }

    /// Sets the timer by which the background thread looks. False if there can be none.
    fn look_later(self: &Arc<Self>, state: &mut State) -> bool {
        if state.seen.is_none() && self.timers.set_timer(state.waiter.look(), self.clone()).is_ok() {
            state.seen = Some(state.latest);
        }
        state.seen.is_some()
    }

    // The thread with the lock waits only until the kernel has confirmed that a descriptor is watched.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl State {
    fn begin(&mut self) -> Turn {
        self.latest = Turn(self.latest.0 + 1);
        self.on_duty = Some(self.latest);
        self.latest
    }
}

impl Source for Duty {
    fn ready(self: Arc<Self>, _: Readiness) {}

    /// The background thread looks.
    fn timeout(self: Arc<Self>) {
        let mut state = self.lock();
        let has_come = state.seen.take() != Some(state.latest);
        let stays = has_come && self.look_later(&mut state);
        if !stays && state.on_duty.is_some() {
            self.relieve(&mut state);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::deadlines::{Deadlines, Timer};
    use crate::error::Result;
    use std::time::Instant;

    /// Whether the background thread sees arrivals, and its timers, which pass when a test says so.
    #[derive(Default)]
    struct World {
        is_watched: std::sync::Mutex<Option<bool>>,
        timers: std::sync::Mutex<Vec<Arc<dyn Source>>>,
    }

    impl Arrivals for World {
        fn watch(&self, on: bool) {
            assert_ne!(self.is_watched.lock().unwrap().replace(on), Some(on));
        }
    }

    impl Timers for World {
        fn set_timer(&'static self, _: Duration, source: Arc<dyn Source>) -> Result<Timer> {
            self.timers.lock().unwrap().push(source);
            Ok(Deadlines::default().set(Instant::now(), ()).0)
        }
    }

    impl World {
        fn new() -> (&'static Self, Arc<Duty>) {
            let world: &'static Self = Box::leak(Box::default());
            (world, Duty::new(world, world))
        }

        fn is_watched(&self) -> bool {
            *self.is_watched.lock().unwrap() != Some(false)
        }

        /// How many timers have passed.
        fn look(&self) -> usize {
            let passed = std::mem::take(&mut *self.timers.lock().unwrap());
            passed.iter().for_each(|timer| timer.clone().timeout());
            passed.len()
        }
    }

    #[test]
    fn one_thread_is_on_duty_until_it_ends() {
        let (world, duty) = World::new();
        let turn = duty.take(Waiter::Thread).unwrap();
        assert!(!world.is_watched() && duty.take(Waiter::Thread).is_none());
        let turn = duty.go_on(turn, Waiter::Thread).unwrap();
        assert!(!world.is_watched());
        duty.end(turn);
        assert!(world.is_watched() && duty.take(Waiter::Thread).is_some());
    }

    #[test]
    fn a_thread_that_is_kept_away_loses_the_duty_and_may_take_it_again() {
        let (world, duty) = World::new();
        let kept = duty.take(Waiter::Thread).unwrap();
        world.look();
        assert!(!world.is_watched(), "it may have begun a moment ago");
        world.look();
        assert!(world.is_watched());
        let other = duty.take(Waiter::Thread).unwrap();
        assert!(duty.go_on(kept, Waiter::Thread).is_none(), "it is the other's");
        duty.end(kept);
        assert!(!world.is_watched());
        duty.end(other);
        let again = duty.go_on(kept, Waiter::Thread).unwrap();
        assert!(!world.is_watched());
        duty.end(again);
        assert!(world.is_watched());
    }

    #[test]
    fn a_thread_that_is_woken_again_and_again_keeps_the_duty() {
        let (world, duty) = World::new();
        let mut turn = duty.take(Waiter::Thread).unwrap();
        for _ in 0..10 {
            turn = duty.go_on(turn, Waiter::Thread).unwrap();
            assert_eq!(world.look(), 1);
            assert!(!world.is_watched());
        }
        duty.end(turn);
    }

    #[test]
    fn no_timer_runs_for_threads_that_do_not_come() {
        let (world, duty) = World::new();
        for _ in 0..3 {
            duty.end(duty.take(Waiter::Thread).unwrap());
        }
        assert_eq!([world.look(), world.look(), world.look()], [1, 1, 0]);
        assert!(world.is_watched());
    }
}
