//! Posts that are put off: a thread sends them, though no thread visits the lane any more.

use super::Bell;
use crate::deadlines::{Deadlines, Timer};
use crate::error::Result;
use crate::gathering::{GatheredLane, Gathering};
use crate::reactor::{Source, Timers};
use crate::sync::{AtomicU32, Ordering};
use loom::sync::Mutex;
use loom::thread;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The timers of the background thread, all of which pass at some moment.
#[derive(Default)]
pub(super) struct Clock {
    pub(super) timers: Mutex<Vec<Arc<dyn Source>>>,
    /// The background thread sleeps on it.
    bell: Bell,
}

static START: OnceLock<Instant> = OnceLock::new();

impl Timers for Clock {
    fn set_timer(&'static self, _: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        self.timers.lock().unwrap().push(source);
        self.bell.ring();
        let some = *START.get_or_init(Instant::now);
        Ok(Deadlines::default().set(some, ()).0)
    }
}

/// Each of two threads posts something: as a lane of RoCE, which is a queue behind a lock.
struct Lane {
    posted: Mutex<u32>,
    sent: AtomicU32,
}

impl GatheredLane for Lane {
    fn send_off(&self) {
        let mut posted = self.posted.lock().unwrap();
        self.sent.fetch_add(std::mem::take(&mut *posted), Ordering::Relaxed);
    }
}

struct World {
    clock: &'static Clock,
    lane: Arc<Lane>,
    gathering: Arc<Gathering>,
}

impl World {
    fn new() -> Arc<Self> {
        let clock: &'static Clock = Box::leak(Box::default());
        let lane = Arc::new(Lane { posted: Mutex::new(0), sent: AtomicU32::new(0) });
        let weak: Weak<Lane> = Arc::downgrade(&lane);
        let gathering = Gathering::new(weak, clock, 1);
        assert!(!gathering.expects_polls());
        assert!(!gathering.polled(), "nothing is put off");
        Arc::new(Self { clock, lane, gathering })
    }

    fn post(&self) {
        *self.lane.posted.lock().unwrap() += 1;
        if self.gathering.expects_polls() {
            self.gathering.put_off();
        } else {
            self.lane.send_off();
        }
    }

    /// The background thread, until everything has left. It ends with an error of loom's if that never comes.
    fn serve(&self, posts: u32) {
        while self.lane.sent.load(Ordering::Relaxed) < posts {
            let due = self.clock.timers.lock().unwrap().pop();
            match due {
                Some(timer) => timer.timeout(),
                None => self.clock.bell.wait(),
            }
        }
    }
}

/// Two threads of the program do something, and never come again.
fn run(first: fn(&World), second: fn(&World), posts: u32) {
    let mut model = loom::model::Builder::new();
    // With more posts, fewer changes of thread without a wait.
    model.preemption_bound = Some(if posts > 2 { 1 } else { 2 });
    model.check(move || {
        let world = World::new();
        let threads = [first, second].map(|act| {
            let world = world.clone();
            thread::spawn(move || {
                act(&world);
                // A thread that sends its own posts wakes no other.
                world.clock.bell.ring();
            })
        });
        world.serve(posts);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

fn post(world: &World) {
    world.post();
}

fn poll(world: &World) {
    if world.gathering.polled() {
        world.lane.send_off();
    }
}

fn rest(world: &World) {
    if world.gathering.rest() {
        world.lane.send_off();
    }
}

fn post_again(world: &World) {
    world.post();
    poll(world);
    world.post();
}

fn post_twice(world: &World) {
    world.post();
    world.post();
}

#[test]
fn posts_that_are_put_off_leave_though_no_thread_comes_by() {
    run(post, post, 2);
    run(post, poll, 1);
    run(post, rest, 1);
}

#[test]
fn later_posts_that_are_put_off_leave_too() {
    run(post_again, post, 3);
    run(post_twice, poll, 2);
}
