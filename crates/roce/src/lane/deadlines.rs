//! The deadlines of a lane's queue pairs. Polls look at them; the background thread looks a little later.

use super::{Lane, ReceivingThread};
use crate::endpoint::Endpoint;
use crate::{lock, time};
use adverb_core::reactor::{Readiness, Source, Timer};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How much later than a deadline the background thread looks: polls are usually there before.
const SLACK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct TimedEndpoints {
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// When the background thread looks, and its timer.
    tick: Option<(Duration, Timer)>,
}

impl Lane {
    /// An endpoint has a deadline from now on; it stays in the list until a look finds it without one.
    pub(crate) fn time(&self, endpoint: Arc<Endpoint>, deadline: Duration) {
        let mut timed = lock(&self.timed);
        timed.endpoints.push(endpoint);
        self.expect(&mut timed, deadline);
    }

    /// A listed endpoint's deadline has come nearer.
    #[inline]
    pub(crate) fn hasten(&self, deadline: Duration) {
        if (deadline.as_nanos() as u64) < self.earliest.load(Ordering::Relaxed) {
            self.expect(&mut lock(&self.timed), deadline);
        }
    }

    pub(super) fn expect(&self, timed: &mut TimedEndpoints, deadline: Duration) {
        self.earliest.fetch_min(deadline.as_nanos() as u64, Ordering::Relaxed);
        let look = deadline + SLACK;
        if timed.tick.is_some_and(|(when, _)| when <= look + SLACK) {
            return;
        }
        let Ok(engine) = self.net.engine() else { return };
        let Some(this) = self.this.upgrade() else { return };
        if let Some((_, timer)) = timed.tick.take() {
            engine.reactor.cancel_timer(timer);
        }
        let after = look.saturating_sub(time::now());
        if let Ok(timer) =
            engine.reactor.set_timer(after, self.tick.get_or_init(|| Arc::new(Tick(this))).clone())
        {
            timed.tick = Some((look, timer));
        }
    }

    /// Serves the deadlines that have passed. The caller holds `looking`, the lock of the list that this
    /// function goes through.
    pub(super) fn serve_deadlines(&self, now: Duration, mut looking: MutexGuard<'_, Vec<Arc<Endpoint>>>) {
        self.earliest.store(u64::MAX, Ordering::Relaxed);
        std::mem::swap(&mut lock(&self.timed).endpoints, &mut *looking);
        let mut earliest = None::<Duration>;
        let mut transmit = false;
        let mut ready = Vec::new();
        looking.retain(|endpoint| {
            let served = endpoint.serve_deadline(now, &mut ready);
            transmit |= served.transmit;
            if let Some(deadline) = served.deadline {
                earliest = Some(earliest.map_or(deadline, |least| least.min(deadline)));
            }
            served.deadline.is_some()
        });
        {
            let mut timed = lock(&self.timed);
            timed.endpoints.append(&mut looking);
            if let Some(deadline) = earliest {
                self.expect(&mut timed, deadline);
            }
        }
        drop(looking);
        if transmit {
            self.transmit();
        }
        ready.iter().for_each(|other| other.ring());
    }
}

/// The background thread's look at the deadlines.
pub(super) struct Tick(Arc<Lane>);

impl Source for Tick {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        // Where no thread could look for a while, the answer is there, too.
        if self.0.by_network.load(Ordering::Relaxed) > 0 && self.0.receive(ReceivingThread::Background) {
            self.0.settle();
        }
        // A poll that is looking at this instant may count on this tick: so it takes its turn after it, and
        // does not leave it out.
        let looking = lock(&self.0.looking);
        lock(&self.0.timed).tick = None;
        self.0.serve_deadlines(time::now(), looking);
    }
}
