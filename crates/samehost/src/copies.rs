//! Long operations in memory of other processes, which go on beside the thread that has posted them.
//!
//! A post carries out so much and no more. Threads that poll meanwhile do the rest: each takes a turn at a
//! queue pair that no other thread works on. Or else the background thread does. That keeps off while there
//! are polls: on the same processor the two would only be in each other's way.
//!
//! Where the program computes once it has posted ([`Habit`]), a post calls the background thread at once, and
//! leaves long operations to it as soon as it comes. Not so where that thread has no processor but the
//! poster's ([`Processor`]), nor where the poster is about to sleep until the end: then nothing goes on
//! beside it.

use crate::habit::Habit;
use crate::lock;
use crate::processor::Processor;
use adverb_core::engine;
use adverb_core::reactor::{Readiness, Source};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Turns of the background thread before it looks after others.
const TURNS: usize = 16;
/// When the background thread looks first whether there are polls, and the longest pause until it looks
/// again.
const LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_micros(400);

/// So long a poll takes that takes a turn, or less.
const PER_POLL: Duration = Duration::from_micros(128);

/// From so many bytes on, an operation is worth a thread that is woken for it.
pub const LONG: u32 = 512 << 10;

/// What polls find: there are operations under way.
const UNDER_WAY: u32 = 1;
/// No thread has polled since a long operation was posted.
const LEFT: u32 = 2;

const AWAY: u8 = 0;
/// The background thread takes turns, as threads that poll do.
const BESIDE: u8 = 1;
/// The background thread carries on, and others wait for it.
const THROUGH: u8 = 2;
/// So long it takes for a turn, as a rule. One that takes longer may have no processor.
const LATEST: Duration = Duration::from_micros(500);

/// How far the requests that need no packet have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyProgress {
    /// All requests that need no packet have been carried out.
    All,
    /// As many requests as one may before others get their turn.
    Part,
    /// As many requests as a post that leaves the others to the background thread, which has been called.
    Shared,
    /// All but some that have to take their turn as packets.
    Packets,
    /// All but some that the kernel has to copy.
    Kernel,
}

/// A queue pair with long operations.
pub trait Copier: Send + Sync {
    /// Takes a turn. None if another thread is at the queue pair.
    fn carry_on(&self) -> Option<CopyProgress>;
    /// Whether the queue pair has long operations under way.
    fn is_copying(&self) -> bool;
}

/// Queue pairs with long operations under way. Thread-safe.
#[derive(Default)]
pub struct Copies {
    under_way: Mutex<VecDeque<Arc<dyn Copier>>>,
    /// [`UNDER_WAY`], [`LEFT`].
    looks: AtomicU32,
    /// How often the background thread has been called: the last call counts.
    calls: AtomicU64,
    /// Whether the background thread is at a queue pair: [`AWAY`], [`BESIDE`], [`THROUGH`].
    presence: AtomicU8,
    /// When the background thread has last taken a turn, in nanoseconds.
    beat: AtomicU64,
    /// Counts polls. That it changes is all that counts, even where two polls meet.
    polls: AtomicU32,
    habit: Habit,
    /// The background thread's.
    processor: Processor,
    began: OnceLock<Instant>,
}

impl Copies {
    /// A long operation of `endpoint` is being posted, of which the post carries out `most` bytes. Returns
    /// how many of them it is to carry out if it leaves the rest to the background thread, which has been
    /// called, and waits for the end of the post ([`Copies::posted`]). None where that is not worth it: where
    /// the poster sleeps until the operation is complete (`will_sleep`), for example.
    #[cold]
    pub fn takes(
        self: &Arc<Self>,
        endpoint: impl FnOnce() -> Arc<dyn Copier>,
        (length, most): (u32, u32),
        will_sleep: bool,
    ) -> Option<u32> {
        self.habit.posts(self.now(), length.min(most));
        if will_sleep || self.processor.is_this() {
            return None;
        }
        let share = self.habit.share(length)?;
        self.enlist(endpoint());
        self.call(Duration::ZERO, Errand::Called(self.now()));
        Some(share.min(most))
    }

    /// A post ends.
    #[inline]
    pub fn posted(&self) {
        if self.habit.is_posting() {
            self.posted_long();
        }
    }

    #[cold]
    fn posted_long(&self) {
        self.habit.leaves(self.now());
        self.looks.fetch_or(LEFT, Ordering::SeqCst);
    }

    fn beat(&self) {
        self.beat.store(self.now().as_nanos() as u64, Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        self.began.get_or_init(Instant::now).elapsed()
    }

    /// The operations of a queue pair go on from here. With no lock held.
    #[cold]
    pub fn add(self: &Arc<Self>, endpoint: Arc<dyn Copier>) {
        self.enlist(endpoint);
        self.call(LOOK, Errand::Look);
    }

    fn enlist(&self, endpoint: Arc<dyn Copier>) {
        let mut under_way = lock(&self.under_way);
        if !under_way.iter().any(|known| Arc::ptr_eq(known, &endpoint)) {
            under_way.push_back(endpoint);
        }
        self.looks.fetch_or(UNDER_WAY, Ordering::SeqCst);
    }

    fn call(self: &Arc<Self>, after: Duration, errand: Errand) {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let polls = self.polls.load(Ordering::Relaxed);
        let beside = Arc::new(Beside { copies: self.clone(), call, polls, after, errand });
        let called = engine::engine().and_then(|engine| engine.reactor.set_timer(after, beside));
        if called.is_err() {
            while self.go_on() {}
        }
    }

    /// A thread that polls takes a turn, if there is something to do. Returns whether there was.
    #[inline]
    pub fn poll(&self) -> bool {
        self.looks.load(Ordering::Relaxed) != 0 && self.take_turn()
    }

    #[cold]
    fn take_turn(&self) -> bool {
        if self.looks.load(Ordering::Relaxed) & LEFT != 0 {
            let looks = self.looks.fetch_and(!LEFT, Ordering::SeqCst);
            self.habit.comes(self.now());
            if looks & UNDER_WAY == 0 {
                return false;
            }
        }
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let presence = self.presence.load(Ordering::Relaxed);
        let beat = Duration::from_nanos(self.beat.load(Ordering::Relaxed));
        let waits = presence == THROUGH && self.now().saturating_sub(beat) < LATEST;
        let worked = !waits && self.go_on();
        if !worked && presence != AWAY {
            // It may have been interrupted in the middle of a turn, for this very thread.
            std::thread::yield_now();
        }
        worked
    }

    /// A turn at one queue pair that no other thread works on. Returns whether anything was done.
    #[cold]
    fn go_on(&self) -> bool {
        let most = lock(&self.under_way).len();
        for _ in 0..most {
            let next = {
                let mut under_way = lock(&self.under_way);
                let next = under_way.pop_front();
                under_way.extend(next.clone());
                next
            };
            let Some(endpoint) = next else { break };
            match endpoint.carry_on() {
                None => continue,
                Some(CopyProgress::Part | CopyProgress::Shared) => {}
                // Unless it has begun anew.
                Some(CopyProgress::All | CopyProgress::Packets | CopyProgress::Kernel) => {
                    self.retain(|known| !Arc::ptr_eq(known, &endpoint) || known.is_copying())
                }
            }
            return true;
        }
        false
    }

    /// A queue pair goes.
    pub fn forget(&self, endpoint: &dyn Copier) {
        self.retain(|known| !std::ptr::addr_eq(&raw const **known, endpoint));
    }

    fn retain(&self, stays: impl Fn(&Arc<dyn Copier>) -> bool) {
        let mut under_way = lock(&self.under_way);
        under_way.retain(stays);
        if under_way.is_empty() {
            self.looks.fetch_and(!UNDER_WAY, Ordering::SeqCst);
        }
    }
}

/// Why the background thread comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// To look whether no thread polls.
    Look,
    /// A post has called it, at this instant.
    Called(Duration),
    /// The background thread goes on with what a post has left to it.
    Through,
}

/// The background thread's turns.
struct Beside {
    copies: Arc<Copies>,
    /// Which call it is.
    call: u64,
    /// Polls when it was called.
    polls: u32,
    /// After how long it was to come.
    after: Duration,
    errand: Errand,
}

/// How often the background thread looks whether a post has ended that has called it.
const MOST_LOOKS: u32 = 10_000;
/// How often the background thread finds others at everything that is under way before it comes back later.
const VAIN: u32 = 4;

impl Beside {
    fn is_polled(&self) -> bool {
        // A thread that polls only now and then does not carry on as fast as this thread could.
        let enough = (self.after.as_micros() / PER_POLL.as_micros()).max(1) as u32;
        self.copies.polls.load(Ordering::Relaxed).wrapping_sub(self.polls) >= enough
    }

    /// Whether the background thread carries on to the end, and threads that poll wait: a post has left the
    /// operations to it, and it has come before any thread polled. The bytes are in the caches of its
    /// processor then, where they are the next time as well.
    fn goes_through(&self) -> bool {
        match self.errand {
            Errand::Look => false,
            Errand::Through => true,
            Errand::Called(at) => {
                let copies = &self.copies;
                copies.habit.came(copies.now().saturating_sub(at));
                (0..MOST_LOOKS)
                    .take_while(|_| copies.habit.is_posting())
                    .for_each(|_| std::hint::spin_loop());
                !self.is_polled()
            }
        }
    }
}

impl Source for Beside {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let copies = &self.copies;
        let is_last = || copies.calls.load(Ordering::SeqCst) == self.call;
        if !is_last() {
            return;
        }
        copies.processor.learn();
        copies.beat();
        let through = self.goes_through();
        let presence = if through { THROUGH } else { BESIDE };
        copies.presence.store(presence, Ordering::Relaxed);
        let (mut worked, mut vain) = (true, 0);
        for _ in 0..TURNS {
            if !through && self.is_polled() || !worked {
                break;
            }
            worked = copies.go_on();
            copies.beat();
            // A thread that posts may be at the queue pair, for a moment.
            if !worked && through && vain < VAIN {
                vain += 1;
                std::thread::yield_now();
                worked = true;
            }
        }
        copies.presence.store(AWAY, Ordering::Relaxed);
        if copies.looks.load(Ordering::SeqCst) & UNDER_WAY != 0 && is_last() {
            let more = worked && (through || !self.is_polled());
            let pause = if more { Duration::ZERO } else { (self.after * 2).clamp(LOOK, LONGEST_LOOK) };
            copies.call(pause, if more && through { Errand::Through } else { Errand::Look });
        }
    }
}
