//! The watch of a lane: some thread takes in each packet that has arrived, though the polls stop at any
//! moment.

use super::Bell;
use crate::deadlines::{Deadlines, Timer};
use crate::error::Result;
use crate::lane_watch::{LaneWatch, WatchedLane};
use crate::reactor::{Source, Timers};
use crate::sync::{AtomicBool, Ordering};
use loom::sync::Mutex;
use loom::thread;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Descriptor and interest of the lane, as the kernel has them, and the timers of the background thread, all
/// of which pass at some moment.
#[derive(Default)]
struct Kernel {
    state: Mutex<State>,
    /// The background thread sleeps on it.
    bell: Bell,
}

#[derive(Default)]
struct State {
    is_watched: bool,
    has_data: bool,
    timers: Vec<Arc<dyn Source>>,
}

impl Timers for Kernel {
    fn set_timer(&'static self, _: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        self.state.lock().unwrap().timers.push(source);
        self.bell.ring();
        let some = *START.get_or_init(Instant::now);
        Ok(Deadlines::default().set(some, ()).0)
    }
}

static START: OnceLock<Instant> = OnceLock::new();

struct Lane {
    kernel: &'static Kernel,
    is_full: AtomicBool,
}

impl WatchedLane for Lane {
    fn watch(&self, on: bool) {
        self.kernel.state.lock().unwrap().is_watched = on;
        // Events that are there already are reported.
        self.kernel.bell.ring();
    }

    fn waits_for_room(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
}

struct World {
    kernel: &'static Kernel,
    lane: Arc<Lane>,
    watch: Arc<LaneWatch>,
}

impl World {
    fn new() -> Arc<Self> {
        let kernel: &'static Kernel = Box::leak(Box::default());
        kernel.state.lock().unwrap().is_watched = true;
        let lane = Arc::new(Lane { kernel, is_full: AtomicBool::new(false) });
        let weak: Weak<Lane> = Arc::downgrade(&lane);
        Arc::new(Self { kernel, lane, watch: LaneWatch::new(weak, kernel) })
    }

    fn arrive(&self) {
        self.kernel.state.lock().unwrap().has_data = true;
        self.kernel.bell.ring();
    }

    /// The background thread, until it has taken in the packets. It ends with an error of loom's if they
    /// never come to its sight.
    fn serve(&self) {
        loop {
            let mut state = self.kernel.state.lock().unwrap();
            if state.is_watched && state.has_data {
                state.has_data = false;
                return;
            }
            let due = state.timers.pop();
            drop(state);
            match due {
                Some(timer) => timer.timeout(),
                None => self.kernel.bell.wait(),
            }
        }
    }

    /// All timers pass.
    fn look(&self) {
        while let Some(timer) = { self.kernel.state.lock().unwrap().timers.pop() } {
            timer.timeout();
        }
    }

    /// The thread's interest is as the watch says.
    fn check(&self) {
        assert_eq!(self.kernel.state.lock().unwrap().is_watched, self.watch.is_armed());
    }
}

/// One or two threads of the program do something, and never come again; something arrives, and the
/// background thread takes it in.
fn run(first: fn(&World), second: Option<fn(&World)>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if second.is_some() { 2 } else { 3 });
    model.check(move || {
        let world = World::new();
        let threads: Vec<_> = [Some(first), second]
            .into_iter()
            .flatten()
            .map(|act| {
                let world = world.clone();
                thread::spawn(move || act(&world))
            })
            .collect();
        world.arrive();
        world.serve();
        for thread in threads {
            thread.join().unwrap();
        }
        world.check();
    });
}

/// Polls that find something, of a lane that is disarmed by the first of them.
fn polls(world: &World) {
    world.watch.serve();
    world.watch.polled();
    world.watch.weigh(false);
}

/// A sleep on the lane's own descriptors that something else ends.
fn sleeps(world: &World) {
    world.watch.begin_sleep();
    world.watch.end_sleep();
}

fn arms(world: &World) {
    world.watch.arm();
}

#[test]
fn a_lane_that_nobody_polls_any_more_is_watched() {
    run(polls, None);
    run(polls, Some(polls));
}

#[test]
fn a_lane_at_which_nobody_sleeps_any_more_is_watched() {
    run(sleeps, None);
    run(sleeps, Some(sleeps));
    run(sleeps, Some(polls));
}

#[test]
fn threads_that_arm_and_disarm_leave_the_lane_as_the_watch_says() {
    run(polls, Some(arms));
    run(sleeps, Some(arms));
}

/// Something comes to wait for room while a thread goes to sleep: that thread has asked the descriptors for
/// it, or the background thread does.
#[test]
fn room_is_waited_for_by_who_sleeps_or_in_the_background() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new();
        // Disarmed, and the background thread is to look.
        sleeps(&world);
        let (sender, background) = (world.clone(), world.clone());
        let threads = [
            thread::spawn(move || {
                sender.lane.is_full.store(true, Ordering::Relaxed);
                sender.watch.waits_for_room();
            }),
            thread::spawn(move || background.look()),
        ];
        world.watch.begin_sleep();
        let asked = world.lane.is_full.load(Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        world.look();
        assert!(asked || world.watch.is_armed(), "nobody waits for room");
    });
}
