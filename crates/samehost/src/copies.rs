//! Long operations in memory of other processes, which go on beside the thread that has posted them.
//!
//! A post carries out so much and no more; the rest is done by whoever polls meanwhile, each of whom takes a turn at a queue pair that nobody else is
//! at, or else by the background thread. That keeps off while there are polls: on the same processor the two would only be in each other's way.

use crate::lock;
use adverb_core::engine;
use adverb_core::reactor::{Readiness, Source};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Turns of the background thread before it looks after others.
const TURNS: usize = 16;
/// When it looks first whether there are polls, and the longest pause until it looks again.
const LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_micros(400);

/// So long a poll takes that takes a turn, or less.
const PER_POLL: Duration = Duration::from_micros(128);

/// What has been carried out of the requests that need no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// All there are.
    All,
    /// As many as one may before others get their turn.
    Part,
    /// All but some that have to take their turn as packets.
    Packets,
    /// All but some that the kernel has to copy.
    Kernel,
}

/// A queue pair with long operations.
pub trait Copier: Send + Sync {
    /// Takes a turn. None if another thread is at the queue pair.
    fn carry_on(&self) -> Option<Carried>;
    /// Whether it has long operations under way.
    fn is_copying(&self) -> bool;
}

/// Queue pairs with long operations under way. Thread-safe.
#[derive(Default)]
pub struct Copies {
    under_way: Mutex<VecDeque<Arc<dyn Copier>>>,
    any: AtomicBool,
    /// How often the background thread has been called: the last call counts.
    calls: AtomicU64,
    /// It is at a queue pair.
    is_beside: AtomicBool,
    /// Counts polls. That it changes is all that counts, even where two polls meet.
    polls: AtomicU32,
}

impl Copies {
    /// The operations of a queue pair go on from here. With no lock held.
    #[cold]
    pub fn add(self: &Arc<Self>, endpoint: Arc<dyn Copier>) {
        {
            let mut under_way = lock(&self.under_way);
            if !under_way.iter().any(|known| Arc::ptr_eq(known, &endpoint)) {
                under_way.push_back(endpoint);
            }
            self.any.store(true, Ordering::SeqCst);
        }
        self.call(LOOK);
    }

    fn call(self: &Arc<Self>, after: Duration) {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let polls = self.polls.load(Ordering::Relaxed);
        let beside = Arc::new(Beside { copies: self.clone(), call, polls, after });
        let called = engine::engine().and_then(|engine| engine.reactor.set_timer(after, beside));
        if called.is_err() {
            while self.go_on() {}
        }
    }

    /// Whoever polls takes a turn, if there is something to do. Returns whether there was.
    #[inline]
    pub fn poll(&self) -> bool {
        self.any.load(Ordering::Relaxed) && self.take_turn()
    }

    #[cold]
    fn take_turn(&self) -> bool {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let worked = self.go_on();
        if !worked && self.is_beside.load(Ordering::Relaxed) {
            // It may have been interrupted in the middle of a turn, for this very thread.
            std::thread::yield_now();
        }
        worked
    }

    /// A turn at one queue pair that nobody else is at. Returns whether anything was done.
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
                Some(Carried::Part) => {}
                // Unless it has begun anew.
                Some(Carried::All | Carried::Packets | Carried::Kernel) => {
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
        self.any.store(!under_way.is_empty(), Ordering::SeqCst);
    }
}

/// The background thread's turns.
struct Beside {
    copies: Arc<Copies>,
    /// Which call it is.
    call: u64,
    /// Polls when it was called.
    polls: u32,
    /// How long ago that was.
    after: Duration,
}

impl Source for Beside {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let copies = &self.copies;
        let is_last = || copies.calls.load(Ordering::SeqCst) == self.call;
        if !is_last() {
            return;
        }
        // Whoever looks now and then only does not carry on as fast as this thread could.
        let enough = (self.after.as_micros() / PER_POLL.as_micros()).max(1) as u32;
        let is_polled = || copies.polls.load(Ordering::Relaxed).wrapping_sub(self.polls) >= enough;
        let mut worked = true;
        copies.is_beside.store(true, Ordering::Relaxed);
        for _ in 0..TURNS {
            if is_polled() || !worked {
                break;
            }
            worked = copies.go_on();
        }
        copies.is_beside.store(false, Ordering::Relaxed);
        if copies.any.load(Ordering::SeqCst) && is_last() {
            let more = worked && !is_polled();
            let pause = if more { Duration::ZERO } else { (self.after * 2).clamp(LOOK, LONGEST_LOOK) };
            copies.call(pause);
        }
    }
}
