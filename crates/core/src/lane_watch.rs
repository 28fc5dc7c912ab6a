//! Which thread watches a lane: the background thread, or the program's own polls.
//!
//! The background thread watches every lane, so that one-sided operations are served while the program does
//! not poll. But while a program polls busily and everything that arrives is two-sided, to wake that thread
//! for each message would only cost. Then the lane is *disarmed*: the thread's interest is switched off, and
//! a short timer looks whether the polls go on. With one-sided traffic the lane is disarmed, too, but only
//! after the thread has been woken in the middle of polls many times, and the looks are closer.
//!
//! Where the polling thread is in a call of ours (rsockets), the first poll that finds something disarms the
//! lane. A thread that sleeps, a *sleeper*, does so on the lane's own descriptors, and takes in packets
//! itself. To wake the background thread, and have it wake that one, would cost more than the message.

use crate::clock;
use crate::reactor::{Source, Timers};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, fence_behind};
use std::sync::Arc;
use std::time::Duration;

/// So many messages in a row must be found by polls, and be two-sided, before the lane is disarmed.
const STREAK: u32 = 32;
/// The first look after disarming, and the longest pause between looks.
const LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_micros(400);

/// So many polls while another thread has the processor, or for an instant, are those of a program that does
/// nothing but poll.
const BUSY_POLLS: u32 = 4;
/// A poll so recent means that the next one is about to come.
const RECENT: Duration = Duration::from_micros(4);
/// So many wake-ups in a row must have been in the middle of polls before the lane is disarmed in spite of
/// one-sided traffic.
const COINCIDENCES: u32 = 8;
/// When polls soon stop after such a disarming, twice as many are wanted, up to this number. On a busy
/// machine, polls seem to stop where their thread is kept from its processor.
const MOST_COINCIDENCES: u32 = 256;
/// So many looks make a disarming worthwhile.
const WORTHWHILE: u32 = 64;
/// So many looks in a row may find a thread in the middle of one and the same poll. After that it counts as
/// kept from it, by a debugger, say.
const LONGEST_POLL: u32 = 32;

/// A lane that a [`LaneWatch`] switches.
pub trait WatchedLane: Send + Sync {
    /// Puts the lane's descriptors into the background thread's sight, or out of it.
    fn watch(&self, on: bool);
    /// Whether the lane may go out of sight.
    fn may_rest(&self) -> bool {
        true
    }
    /// Whether a thread of the program is in the middle of a poll, or of a post that takes in packets. It may
    /// last long: the poll takes in much.
    fn is_being_polled(&self) -> bool {
        false
    }
    /// Whether something waits for room to send, which a thread that sleeps may not have asked the
    /// descriptors for.
    fn waits_for_room(&self) -> bool {
        false
    }
    /// A look has found that the polls do not go on: the lane does the work that they would have done.
    fn abandoned(&self) {}
}

/// Decides whether the background thread watches a lane. Thread-safe.
pub struct LaneWatch {
    lane: std::sync::Weak<dyn WatchedLane>,
    timers: &'static dyn Timers,
    /// Whether the background thread watches.
    armed: AtomicBool,
    /// Two-sided messages in a row that polls have found.
    streak: AtomicU32,
    /// Polls so far.
    polls: AtomicU32,
    /// When the last one was, in ticks of the processor's; kept while armed.
    last_poll: AtomicU64,
    /// Wake-ups in the middle of polls, of which one elsewhere takes back [`COINCIDENCES`]; and how many are
    /// wanted.
    coincidences: AtomicU32,
    wanted: AtomicU32,
    /// Disarmed though there is one-sided traffic.
    polls_serve: AtomicBool,
    /// The background thread was last woken in the middle of polls.
    is_coincidence: AtomicBool,
    /// Threads that poll serve one-sided traffic, and want the background thread to keep off.
    served: AtomicBool,
    /// Threads that sleep on the lane's own descriptors.
    sleepers: AtomicU32,
    timer: Mutex<LookTimer>,
}

/// The timer by which the background thread looks whether polls go on.
struct LookTimer {
    seen: u32,
    pause: Duration,
    /// Looks since the lane was disarmed.
    looks: u32,
    /// Looks in a row that have found a thread in the middle of the same poll.
    same: u32,
    /// Whether a timer runs: there is one at most.
    looking: bool,
}

impl LaneWatch {
    /// The watch over a lane that the background thread watches already.
    pub fn new(lane: std::sync::Weak<dyn WatchedLane>, timers: &'static dyn Timers) -> Arc<Self> {
        Arc::new(Self {
            lane,
            timers,
            armed: AtomicBool::new(true),
            streak: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            last_poll: AtomicU64::new(0),
            coincidences: AtomicU32::new(0),
            wanted: AtomicU32::new(COINCIDENCES),
            polls_serve: AtomicBool::new(false),
            is_coincidence: AtomicBool::new(false),
            served: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            timer: Mutex::new(LookTimer { seen: 0, pause: LOOK, looks: 0, same: 0, looking: false }),
        })
    }

    /// A poll looks at the lane.
    #[inline]
    pub fn polled(&self) {
        // That it changes is all that counts, even where two polls meet.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.armed.load(Ordering::Relaxed) {
            self.last_poll.store(clock::ticks(), Ordering::Relaxed);
        }
    }

    /// The background thread has been woken: whether it had better leave the lane to the polls, which it has
    /// met here many times in a row. Then the lane is disarmed: it must leave it.
    pub fn switch_to_polls(self: &Arc<Self>) -> bool {
        let since = clock::ticks().saturating_sub(self.last_poll.load(Ordering::Relaxed));
        let is_being_polled = || self.lane.upgrade().is_some_and(|lane| lane.is_being_polled());
        let met = self.coincidences.load(Ordering::Relaxed);
        if !clock::is_within(since, RECENT) && !is_being_polled() {
            // The thread that polls may have been kept from its processor at this instant: of many others,
            // some still count.
            self.coincidences.store(met.saturating_sub(COINCIDENCES), Ordering::Relaxed);
            self.is_coincidence.store(false, Ordering::Relaxed);
            return false;
        }
        self.is_coincidence.store(true, Ordering::Relaxed);
        self.coincidences.store(met + 1, Ordering::Relaxed);
        // The messages that the polls have found lately say whether one-sided requests are among them, for
        // which the looks are closer.
        let one_sided = self.streak.load(Ordering::Relaxed) < COINCIDENCES;
        met + 1 >= self.wanted.load(Ordering::Relaxed) && self.disarm(one_sided, LOOK)
    }

    /// The background thread is at something that takes long: if there are polls as soon as it lets them, it
    /// had better leave the rest to them. Then the lane is disarmed: the background thread must leave it. A
    /// thread that polls and sleeps in between is not fast enough.
    pub fn yield_to_polls(self: &Arc<Self>) -> bool {
        let seen = self.polls.load(Ordering::Relaxed);
        std::thread::yield_now();
        let polls = self.polls.load(Ordering::Relaxed).wrapping_sub(seen);
        polls >= BUSY_POLLS && self.disarm(false, LOOK)
    }

    /// The background thread has received something. In the middle of polls it has only been faster, which
    /// says nothing about them.
    pub fn received_in_background(&self) {
        if !self.is_coincidence.load(Ordering::Relaxed) {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// Weighs a poll's find: one-sided requests want the background thread, a streak of two-sided ones does
    /// not.
    #[inline]
    pub fn weigh(self: &Arc<Self>, one_sided: bool) {
        if self.served.load(Ordering::Relaxed) {
            if self.armed.load(Ordering::Relaxed) {
                self.disarm(true, LONGEST_LOOK);
            }
        } else if one_sided {
            self.streak.store(0, Ordering::Relaxed);
            if !self.polls_serve.load(Ordering::Relaxed) {
                self.arm();
            }
        } else if self.armed.load(Ordering::Relaxed)
            && self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= STREAK
        {
            self.disarm(false, LOOK);
        }
    }

    /// From now on polls serve one-sided requests, too: the lane is disarmed with the first poll that finds
    /// something, until they stop.
    pub fn serve(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    /// The caller is about to sleep until one of the lane's descriptors is ready, and polls then: the lane is
    /// disarmed. Until [`LaneWatch::end_sleep`].
    pub fn begin_sleep(self: &Arc<Self>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Before the caller looks which descriptors to wait for, and whether for room: see `waits_for_room`.
        fence_behind();
        if self.armed.load(Ordering::Relaxed) {
            self.disarm(true, LONGEST_LOOK);
        }
    }

    /// The caller sleeps no more. If no polls follow, the background thread watches again.
    pub fn end_sleep(self: &Arc<Self>) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.look_soon();
    }

    /// Something waits for room to send now. Threads that sleep already have not asked for that, so if no
    /// polls follow, the background thread watches again. With no lock of the lane held.
    pub fn waits_for_room(self: &Arc<Self>) {
        // Either a sleeper that comes now finds that something waits for room, or this thread finds the
        // sleeper.
        fence(Ordering::SeqCst);
        // Without sleepers the timer looks anyway.
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.look_soon();
        }
    }

    /// Sets the timer, if it does not run, so that the background thread looks whether polls go on.
    fn look_soon(self: &Arc<Self>) {
        let mut timer = self.lock();
        if !self.armed.load(Ordering::SeqCst) && !timer.looking {
            timer.seen = self.polls.load(Ordering::Relaxed);
            timer.looking = self.timers.set_timer(timer.pause, self.clone()).is_ok();
            if !timer.looking {
                self.arm_locked(&timer);
            }
        }
    }

    /// Whether the background thread watches.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    /// Calls `look` with whether the background thread watches, which does not change meanwhile.
    pub fn hold(&self, look: impl FnOnce(bool)) {
        let _unchanging = self.lock();
        look(self.is_armed());
    }

    /// Has the background thread watch the lane.
    #[inline]
    pub fn arm(&self) {
        if !self.armed.load(Ordering::SeqCst) {
            self.arm_locked(&self.lock());
        }
    }

    /// The lock keeps two threads from arming and disarming in different orders.
    fn arm_locked(&self, _: &LookTimer) {
        self.streak.store(0, Ordering::Relaxed);
        self.coincidences.store(0, Ordering::Relaxed);
        self.polls_serve.store(false, Ordering::Relaxed);
        if !self.armed.swap(true, Ordering::SeqCst)
            && let Some(lane) = self.lane.upgrade()
        {
            lane.watch(true);
        }
    }

    /// Takes the lane out of the background thread's sight, if it may be. `polls_serve`: one-sided requests
    /// included. The first look comes after `pause`.
    fn disarm(self: &Arc<Self>, polls_serve: bool, pause: Duration) -> bool {
        let mut timer = self.lock();
        let Some(lane) = self.lane.upgrade() else { return false };
        if !lane.may_rest() || !self.armed.load(Ordering::SeqCst) {
            return false;
        }
        timer.seen = self.polls.load(Ordering::Relaxed);
        timer.pause = pause;
        (timer.looks, timer.same) = (0, 0);
        if !timer.looking {
            if self.timers.set_timer(pause, self.clone()).is_err() {
                return false;
            }
            timer.looking = true;
        }
        self.polls_serve.store(polls_serve, Ordering::Relaxed);
        self.armed.store(false, Ordering::SeqCst);
        lane.watch(false);
        true
    }

    fn lock(&self) -> MutexGuard<'_, LookTimer> {
        self.timer.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Source for LaneWatch {
    fn ready(self: Arc<Self>, _: crate::reactor::Readiness) {}

    /// Looks whether the program still polls.
    fn timeout(self: Arc<Self>) {
        let mut timer = self.lock();
        timer.looking = false;
        if self.armed.load(Ordering::SeqCst) {
            return;
        }
        let polls = self.polls.load(Ordering::Relaxed);
        timer.same = if timer.seen != polls { 0 } else { timer.same + 1 };
        let lasts = || self.lane.upgrade().is_some_and(|lane| lane.is_being_polled());
        if timer.same == 0 || timer.same <= LONGEST_POLL && lasts() {
            timer.seen = polls;
            timer.looks += 1;
            if !self.polls_serve.load(Ordering::Relaxed) {
                timer.pause = (timer.pause * 2).min(LONGEST_LOOK);
            }
            if self.timers.set_timer(timer.pause, self.clone()).is_ok() {
                timer.looking = true;
                return;
            }
        } else if self.sleepers.load(Ordering::SeqCst) > 0
            && !self.lane.upgrade().is_some_and(|lane| lane.waits_for_room())
        {
            // The thread that sleeps there takes in all that comes. It asks for the next look itself.
            return;
        }
        if self.polls_serve.load(Ordering::Relaxed) {
            let wanted = self.wanted.load(Ordering::Relaxed);
            let wanted =
                if timer.looks < WORTHWHILE { (wanted * 2).min(MOST_COINCIDENCES) } else { COINCIDENCES };
            self.wanted.store(wanted, Ordering::Relaxed);
        }
        self.arm_locked(&timer);
        drop(timer);
        if let Some(lane) = self.lane.upgrade() {
            lane.abandoned();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::reactor::Reactor;
    use std::time::Instant;

    #[derive(Default)]
    struct Lane {
        watched: AtomicBool,
        full: AtomicBool,
        polled: AtomicBool,
    }

    impl WatchedLane for Lane {
        fn watch(&self, on: bool) {
            self.watched.store(on, Ordering::SeqCst);
        }

        fn is_being_polled(&self) -> bool {
            self.polled.load(Ordering::SeqCst)
        }

        fn waits_for_room(&self) -> bool {
            self.full.load(Ordering::SeqCst)
        }
    }

    /// Timers that pass when a test says so.
    struct Never;

    impl Timers for Never {
        fn set_timer(
            &'static self,
            _: Duration,
            _: Arc<dyn Source>,
        ) -> crate::error::Result<crate::reactor::Timer> {
            Ok(crate::deadlines::Deadlines::default().set(Instant::now(), ()).0)
        }
    }

    #[test]
    fn a_lane_is_left_to_a_poll_that_lasts_long_but_not_for_ever() {
        let lane = Arc::new(Lane { watched: AtomicBool::new(true), ..Lane::default() });
        let known: Arc<dyn WatchedLane> = lane.clone();
        let watch = LaneWatch::new(Arc::downgrade(&known), &Never);
        // No poll so far.
        assert!((0..2 * COINCIDENCES).all(|_| !watch.switch_to_polls()));
        lane.polled.store(true, Ordering::SeqCst);
        assert!((0..COINCIDENCES).any(|_| watch.switch_to_polls()), "time and again in the middle of a poll");
        assert!(!lane.watched.load(Ordering::SeqCst));
        for look in 0..LONGEST_POLL {
            watch.clone().timeout();
            assert!(!watch.is_armed(), "look {look}");
        }
        watch.polled();
        watch.clone().timeout();
        assert!(!watch.is_armed(), "another poll");
        (0..=LONGEST_POLL).for_each(|_| watch.clone().timeout());
        assert!(watch.is_armed() && lane.watched.load(Ordering::SeqCst), "kept from going on");
    }

    #[test]
    fn a_wake_up_that_meets_no_poll_takes_back_some_of_those_that_do() {
        let lane = Arc::new(Lane::default());
        let known: Arc<dyn WatchedLane> = lane.clone();
        let watch = LaneWatch::new(Arc::downgrade(&known), &Never);
        watch.wanted.store(4 * COINCIDENCES, Ordering::Relaxed);
        let wake = |meets: bool| {
            lane.polled.store(meets, Ordering::SeqCst);
            watch.switch_to_polls()
        };
        assert!((0..2 * COINCIDENCES).all(|_| !wake(true)));
        assert!(!wake(false));
        assert!((1..3 * COINCIDENCES).all(|_| !wake(true)));
        assert!(wake(true));
    }

    #[test]
    fn a_streak_goes_on_where_the_background_thread_was_only_faster() {
        for amid_polls in [true, false] {
            let lane = Arc::new(Lane::default());
            lane.polled.store(amid_polls, Ordering::SeqCst);
            let known: Arc<dyn WatchedLane> = lane.clone();
            let watch = LaneWatch::new(Arc::downgrade(&known), &Never);
            (1..STREAK).for_each(|_| watch.weigh(false));
            assert!(!watch.switch_to_polls());
            watch.received_in_background();
            assert!(watch.is_armed());
            watch.weigh(false);
            assert_eq!(watch.is_armed(), !amid_polls);
        }
    }

    #[test]
    fn long_work_is_left_to_polls_where_there_are_polls() {
        let reactor: &'static Reactor = Box::leak(Box::new(Reactor::new().unwrap()));
        let lane = Arc::new(Lane { watched: AtomicBool::new(true), ..Lane::default() });
        let known: Arc<dyn WatchedLane> = lane.clone();
        let watch = LaneWatch::new(Arc::downgrade(&known), reactor);
        assert!(!watch.yield_to_polls() && watch.is_armed() && lane.watched.load(Ordering::SeqCst));
        let ended = AtomicBool::new(false);
        let end = Instant::now() + Duration::from_secs(20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) && Instant::now() < end {
                    watch.polled();
                }
            });
            while !watch.yield_to_polls() && Instant::now() < end {}
            ended.store(true, Ordering::SeqCst);
        });
        assert!(Instant::now() < end, "there were polls");
    }

    #[test]
    fn a_sleeping_thread_has_the_lane_alone_unless_posts_wait_for_room() {
        let reactor: &'static Reactor = Box::leak(Box::new(Reactor::new().unwrap()));
        let lane = Arc::new(Lane::default());
        let known: Arc<dyn WatchedLane> = lane.clone();
        let watch = LaneWatch::new(Arc::downgrade(&known), reactor);
        let armed_soon = || {
            let end = Instant::now() + Duration::from_secs(20);
            // It is watched a moment after the watch says that it is armed.
            let is_watched = || watch.is_armed() && lane.watched.load(Ordering::SeqCst);
            while !is_watched() && Instant::now() < end {
                std::thread::yield_now();
            }
            is_watched()
        };
        watch.begin_sleep();
        watch.clone().timeout();
        assert!(!watch.is_armed());
        lane.full.store(true, Ordering::SeqCst);
        watch.waits_for_room();
        assert!(armed_soon());
        // Another thread comes and goes.
        watch.begin_sleep();
        watch.end_sleep();
        assert!(armed_soon());
        lane.full.store(false, Ordering::SeqCst);
        watch.begin_sleep();
        watch.clone().timeout();
        assert!(!watch.is_armed());
        watch.end_sleep();
        watch.end_sleep();
        assert!(armed_soon(), "nobody sleeps, and nobody polls");
    }
}
