//! Completion channels.

use super::CompletionQueue;
use crate::cancel::CancellationGuard;
use crate::device::{Context, Seat};
use crate::engine;
use crate::error::{Error, Result};
use crate::event::EventQueue;
use crate::signals::{Interruption, Interruptions, SignalMask};
use crate::users::DependentCount;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A channel that reports events of completion queues on one descriptor (ibv_create_comp_channel(3)).
pub struct CompletionChannel {
    seat: Seat,
    pub(super) events: EventQueue<Weak<CompletionQueue>>,
    interruptions: Interruptions,
    pub(super) users: DependentCount,
}

impl CompletionChannel {
    /// A new channel.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        context.born.check()?;
        Ok(Arc::new(Self {
            seat: Seat::take(context),
            events: EventQueue::new()?,
            interruptions: Interruptions::default(),
            users: DependentCount::new(),
        }))
    }

    /// The descriptor that is readable while an event waits.
    // PRACTICE-EVENT-2
    pub fn descriptor(&self) -> i32 {
        self.events.descriptor()
    }

    /// Waits for the next event (ibv_get_cq_event(3)); see [`EventQueue::wait`] for how it blocks. A thread
    /// that sleeps takes in packets in the background thread's place
    /// ([`Reactor::begin_duty`](crate::reactor::Reactor::begin_duty)).
    pub fn wait(self: &Arc<Self>) -> Result<Arc<CompletionQueue>> {
        // Before any lock: in a child of fork, a thread of the parent may hold it for ever.
        self.context().born.check()?;
        // Arrivals wake the thread also after the program has destroyed the channel.
        let this = self.clone();
        loop {
            // The queue is counted while its event cannot be withdrawn any more, and dropped, if it is,
            // outside of the lock.
            let mut found = None;
            let mut taken = |event: &Weak<CompletionQueue>| {
                found = event.upgrade();
                if let Some(queue) = &found {
                    queue.delivered.fetch_add(1, Ordering::AcqRel);
                }
            };
            if !this.wait_on_duty(&mut taken)? {
                this.events.wait_with(&mut taken)?;
            }
            if let Some(queue) = found {
                // The thread that takes an event polls, and finds all completions until now.
                queue.lock().unheard.forget();
                return Ok(queue);
            }
        }
    }

    /// Waits until an event is there, and takes it; meanwhile the thread takes in packets. False: there may
    /// be an event already, or another thread takes in packets, or the program wants no thread to wait.
    ///
    /// Signal handlers run in its sleep alone: elsewhere the signal would not end the sleep that follows, and
    /// a handler that forks or jumps out would leave locks behind.
    ///
    /// # Errors
    /// EINTR, by a handler without SA_RESTART. ENODEV in a child of fork.
    fn wait_on_duty(&self, taken: &mut dyn FnMut(&Weak<CompletionQueue>)) -> Result<bool> {
        /// A ready descriptor ends a sleep before signals do, so after so many sleeps signals come first.
        const SLEEPS: u32 = 16;
        // PRACTICE-EVENT-1
        // ppoll(2) does not say which handler has run, so no thread waits by it where that matters.
        if !self.events.is_empty()
            || !self.events.blocks()
            || self.interruptions.lately() == Interruption::Depends
        {
            return Ok(false);
        }
        let signals = SignalMask::new();
        let begin = || engine::existing().and_then(|engine| engine.reactor.begin_duty());
        let Some(mut on_duty) = deferred(begin) else { return Ok(false) };
        let mut sleeps = 0u32;
        loop {
            sleeps = sleeps.wrapping_add(1);
            let mask = signals.before();
            let heeded = if sleeps.is_multiple_of(SLEEPS) { self.events.heed_signals(mask) } else { Ok(()) };
            let slept = heeded.and_then(|()| self.events.sleep_beside(on_duty.descriptor(), mask));
            let woken = match slept {
                Err(error)
                    if error.errno() == libc::EINTR
                        && self.interruptions.anew(mask) == Interruption::Never =>
                {
                    continue;
                }
                woken => woken?,
            };
            let serve = || self.events.take_after(|| on_duty.serve(), &mut *taken);
            if woken.by_other && deferred(serve) {
                return Ok(true);
            }
            let found =
                if woken.by_event { deferred(|| self.events.take_with(&mut *taken)) } else { Ok(false) };
            if let Ok(true) = found {
                return Ok(true);
            }
            if found.is_err() {
                return Ok(false);
            }
            deferred(|| on_duty.go_on());
        }
    }

    /// Whether an event waits, after at most `milliseconds` (negative: no bound).
    pub fn ready(&self, milliseconds: i32) -> Result<bool> {
        self.events.ready(milliseconds)
    }

    /// Completion queues that still report here.
    pub fn queues(&self) -> usize {
        self.users.count()
    }

    /// The context it was made on.
    pub fn context(&self) -> &Arc<Context> {
        self.seat.context()
    }

    /// The program destroys the channel (ibv_destroy_comp_channel(3)): the context may go, though a
    /// connection that is still ending may hold the channel a little longer.
    ///
    /// # Errors
    /// EBUSY while completion queues report here.
    pub fn retire(&self) -> Result<()> {
        if self.queues() > 0 {
            return Err(Error::busy(format!(
                "{} completion queues still report on the channel: destroy them first",
                self.queues()
            )));
        }
        self.seat.leave();
        Ok(())
    }
}

/// Does it, without a cancellation of the calling thread in between.
fn deferred<T>(act: impl FnOnce() -> T) -> T {
    let _whole = CancellationGuard::new();
    act()
}
