//! Posts that are put off, as over iWARP: a thread that finds the transmit lock taken does not wait, and each
//! post leaves, though the polls stop at any moment.

use super::SharedWord;
use super::gathering::Clock;
use crate::gathering::{GatheredLane, Gathering};
use crate::lock::Lock;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::work_notes::WorkCount;
use loom::thread;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Connection {
    posted: AtomicU32,
    begun: AtomicU32,
    sending: Lock<SharedWord>,
    work_count: WorkCount,
}

impl Connection {
    fn send(&self) {
        self.work_count.note();
        while let Some(shared) = self.sending.try_lock() {
            let heard = self.work_count.noted();
            shared.add();
            self.begun.store(self.posted.load(Ordering::Acquire), Ordering::Release);
            drop(shared);
            if !self.work_count.since(heard) {
                return;
            }
        }
    }

    fn post(&self) {
        self.posted.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl GatheredLane for Connection {
    fn send_off(&self) {
        if self.posted.load(Ordering::Acquire) != self.begun.load(Ordering::Acquire) {
            self.send();
        }
    }
}

struct World {
    clock: &'static Clock,
    connection: Arc<Connection>,
    gathering: Arc<Gathering>,
}

impl World {
    fn new() -> Arc<Self> {
        let clock: &'static Clock = Box::leak(Box::default());
        let connection = Arc::new(Connection::default());
        let weak: Weak<Connection> = Arc::downgrade(&connection);
        Arc::new(Self { clock, gathering: Gathering::new(weak, clock, 2), connection })
    }

    fn puts_off(&self) {
        self.connection.post();
        self.gathering.put_off();
    }

    fn puts_off_twice(&self) {
        self.puts_off();
        self.puts_off();
    }

    fn sends(&self) {
        self.gathering.visited();
        self.connection.post();
        self.connection.send();
    }

    fn polls(&self) {
        if self.gathering.polled() {
            self.connection.send_off();
        }
    }

    /// The timer passes, if one is set.
    fn looks(&self) {
        let timer = self.clock.timers.lock().unwrap().pop();
        if let Some(timer) = timer {
            timer.timeout();
        }
    }
}

/// Two threads of the program and the background thread do this at once. Then no thread visits the lane any
/// more, and the timers pass.
fn nothing_stays_behind(first: fn(&World), second: fn(&World)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = World::new();
        let threads = [first, second].map(|act| {
            let world = world.clone();
            thread::spawn(move || act(&world))
        });
        world.looks();
        for thread in threads {
            thread.join().unwrap();
        }
        let timers = || world.clock.timers.lock().unwrap().len();
        assert!(timers() <= 1, "two timers");
        for _ in 0..6 {
            world.looks();
        }
        assert_eq!(timers(), 0, "somebody looks though nothing is put off");
        let connection = &world.connection;
        assert_eq!(connection.begun.load(Ordering::Relaxed), connection.posted.load(Ordering::Relaxed));
    });
}

#[test]
fn a_post_that_is_put_off_leaves_by_a_poll_or_by_the_timer() {
    nothing_stays_behind(World::puts_off, World::polls);
    nothing_stays_behind(World::puts_off_twice, World::polls);
}

#[test]
fn posts_of_two_threads_leave() {
    nothing_stays_behind(World::puts_off, World::puts_off);
    nothing_stays_behind(World::puts_off, World::sends);
}
