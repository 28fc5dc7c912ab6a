//! Repeats the initiator's ready-to-receive indication while the peer is silent.
//!
//! Linux's siw, as a responder, sends its MPA reply and later begins to wait for the indication. It misses
//! one that arrives in between, and looks again only when more comes. A program whose server speaks first
//! would wait for ever. A zero-length Write changes nothing at its receiver, so it may be repeated.

use crate::endpoint::Endpoint;
use adverb_core::reactor::{Readiness, Source};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// After how long the first repetition goes out. Each further one waits three times as long.
const FIRST: Duration = Duration::from_millis(20);
/// Repetitions: the last goes out after 2.4 seconds.
const MOST: u32 = 5;

struct RtrRetransmit {
    endpoint: Weak<Endpoint>,
    repetitions: AtomicU32,
}

/// Begins to repeat the indication of `endpoint`, until its peer speaks or the repetitions are used up.
pub(crate) fn start(endpoint: &Arc<Endpoint>) {
    let retransmit =
        Arc::new(RtrRetransmit { endpoint: Arc::downgrade(endpoint), repetitions: AtomicU32::new(0) });
    // Without a timer the connection is as good as with most peers.
    let _ = endpoint.queues.engine.reactor.set_timer(FIRST, retransmit);
}

impl Source for RtrRetransmit {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        if !endpoint.repeat_indication() {
            return;
        }
        let repetitions = self.repetitions.fetch_add(1, Ordering::Relaxed) + 1;
        if repetitions < MOST {
            let _ = endpoint.queues.engine.reactor.set_timer(FIRST * 3_u32.pow(repetitions), self);
        }
    }
}
