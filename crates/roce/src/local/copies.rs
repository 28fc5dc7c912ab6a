//! Long operations in memory of other processes, which go on beside the thread that has posted them.
//!
//! A post carries out so much and no more; the rest is done by the background thread, and by whoever polls meanwhile: each takes a turn at a queue pair
//! that nobody else is at.

use crate::endpoint::{Carried, Endpoint};
use crate::lock;
use crate::net::Net;
use adverb_core::reactor::{Readiness, Source};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Turns of the background thread before it looks after others.
const TURNS: usize = 16;
/// When it comes back if somebody else is at it.
const LATER: Duration = Duration::from_micros(100);

/// Queue pairs with long operations under way. Thread-safe.
#[derive(Default)]
pub(crate) struct Copies {
    under_way: Mutex<VecDeque<Arc<Endpoint>>>,
    any: AtomicBool,
    /// The background thread comes, or is there.
    is_called: AtomicBool,
}

impl Copies {
    /// The operations of a queue pair go on from here. With no lock held.
    #[cold]
    pub(crate) fn add(&self, net: &Arc<Net>, endpoint: Arc<Endpoint>) {
        {
            let mut under_way = lock(&self.under_way);
            if !under_way.iter().any(|known| Arc::ptr_eq(known, &endpoint)) {
                under_way.push_back(endpoint);
            }
            self.any.store(true, Ordering::SeqCst);
        }
        self.call(net, Duration::ZERO);
    }

    fn call(&self, net: &Arc<Net>, after: Duration) {
        if self.is_called.swap(true, Ordering::SeqCst) {
            return;
        }
        let called =
            net.engine().and_then(|engine| engine.reactor.set_timer(after, Arc::new(Beside(net.clone()))));
        if called.is_err() {
            self.is_called.store(false, Ordering::SeqCst);
            while self.go_on() {}
        }
    }

    /// Whoever polls takes a turn, if there is something to do. Returns whether there was.
    #[inline]
    pub(crate) fn poll(&self) -> bool {
        self.any.load(Ordering::Relaxed) && self.go_on()
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
                Some(Carried::All | Carried::Packets) => {
                    self.retain(|known| !Arc::ptr_eq(known, &endpoint) || known.is_copying())
                }
            }
            return true;
        }
        false
    }

    /// A queue pair goes.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        self.retain(|known| !std::ptr::eq(&**known, endpoint));
    }

    fn retain(&self, stays: impl Fn(&Arc<Endpoint>) -> bool) {
        let mut under_way = lock(&self.under_way);
        under_way.retain(stays);
        self.any.store(!under_way.is_empty(), Ordering::SeqCst);
    }
}

/// The background thread's turns.
struct Beside(Arc<Net>);

impl Source for Beside {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let copies = &self.0.local.copies;
        copies.is_called.store(false, Ordering::SeqCst);
        let mut worked = true;
        for _ in 0..TURNS {
            worked = copies.go_on();
            if !worked {
                break;
            }
        }
        if copies.any.load(Ordering::SeqCst) {
            copies.call(&self.0, if worked { Duration::ZERO } else { LATER });
        }
    }
}
