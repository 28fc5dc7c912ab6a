//! When the end of a connection is reported.
//!
//! Programs look for completions and for events in turn, and some (libfabric) destroy the queue pair as soon
//! as they hear that the peer has left. With an adapter that news takes the long way through the kernel, and
//! the program has polled completions from before it by then. Here both are there in the same microsecond. So
//! the event waits, for a short time, until the completions before it have been polled.

use super::event::EventKind;
use super::identifier::{Identifier, IdentifierState, Inner};
use crate::engine;
use crate::reactor::{Readiness, Source};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The first and the longest pause before looking whether the completions have been polled, and how many
/// looks. They are 0.2 s in all: a busy machine lets the program run by then, and a program that does not
/// mean to poll does not wait longer.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
const LOOKS: u32 = 16;

impl Identifier {
    /// The connection has ended: the event, or the wait for it.
    pub(super) fn push_ended(&self, inner: &mut Inner) {
        if !inner.ending && !inner.end_is_held && has_unpolled(inner) && self.look_later(0) {
            inner.end_is_held = true;
        } else {
            self.push(inner, EventKind::Disconnected, 0);
        }
    }

    /// The event if it waits, because something follows it.
    pub(super) fn push_held_end(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.end_is_held) {
            self.push(inner, EventKind::Disconnected, 0);
        }
    }

    fn look_later(&self, looks: u32) -> bool {
        let pause = (FIRST_PAUSE * (1 << looks)).min(LONGEST_PAUSE);
        let look = Arc::new(Look { identifier: self.this.clone(), looks: looks + 1 });
        looks < LOOKS && engine::engine().is_ok_and(|engine| engine.reactor.set_timer(pause, look).is_ok())
    }
}

/// Whether the program has yet to hear of something that its queue pair has done.
fn has_unpolled(inner: &Inner) -> bool {
    inner.queue_pair.as_ref().is_some_and(|queue_pair| {
        let queues = queue_pair.queues();
        [&queues.send_cq, &queues.receive_cq].into_iter().any(|cq| cq.has_results_of(queue_pair.number()))
    })
}

struct Look {
    identifier: Weak<Identifier>,
    looks: u32,
}

impl Source for Look {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Some(identifier) = self.identifier.upgrade() else { return };
        let mut inner = identifier.lock();
        if !inner.end_is_held || inner.state != IdentifierState::Disconnect {
            return;
        }
        if inner.ending || !has_unpolled(&inner) || !identifier.look_later(self.looks) {
            identifier.push_held_end(&mut inner);
        }
    }
}
