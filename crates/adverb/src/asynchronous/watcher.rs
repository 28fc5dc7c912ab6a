//! The task of a connection that waits for the runtime's descriptors, in place of the tasks that wait for
//! completions.

use super::driver::Driver;
use super::endpoint::duplicate;
use super::queues::WorkQueues;
use super::runtime::{Runtime, Watch};
use super::{AsyncOptions, failed_wait};
use crate::{CompletionQueue, Error, Result};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

/// The cause for which the watcher was woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WakeCause {
    /// The queue has raised the event that it was armed for.
    pub(super) event: bool,
    /// Packets have arrived, for this connection or for others.
    pub(super) arrival: bool,
}

/// Tells the watcher to end. Thread-safe.
#[derive(Default)]
pub(super) struct WatcherEnd(Mutex<EndState>);

#[derive(Default)]
struct EndState {
    has_come: bool,
    waker: Option<Waker>,
}

impl WatcherEnd {
    /// Ends the watcher.
    pub(super) fn come(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_come = true;
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Does something, unless the watcher is to end: then None. A thread that ends the watcher waits until
    /// that is done.
    fn unless_come<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!state.has_come).then(act)
    }

    /// Whether the watcher is to end. Otherwise the task of `context` is woken then.
    fn has_come(&self, context: &Context<'_>) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        state.has_come
    }
}

/// Wake-ups that the watcher serves in a row, before other tasks of its thread get their turn.
const MOST_WAKE_UPS_AT_ONCE: usize = 16;

/// The task of a connection that waits for its queue's descriptor. It also waits for packets, while it is on
/// duty.
pub(super) struct Watcher<Q: WorkQueues> {
    driver: Arc<Driver<Q>>,
    /// The runtime has this task. So the task does not keep the runtime: neither would ever end.
    runtime: Weak<dyn Runtime>,
    /// Ready after an event of the queue.
    watch: Box<dyn Watch>,
    /// Ready after packets have arrived. None while the task is not on duty.
    arrivals: Option<Box<dyn Watch>>,
}

impl<Q: WorkQueues> Watcher<Q> {
    /// The driver of these queues, whose requests all complete on `queue`; with its watcher, which `runtime`
    /// runs.
    pub(super) fn start(
        queues: Q,
        queue: CompletionQueue,
        options: &AsyncOptions,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Arc<Driver<Q>>> {
        let descriptor = duplicate(&queue)?;
        let watch = runtime.watch(descriptor).map_err(|error| failed_wait("completions", &error))?;
        let driver = Arc::new(Driver::new(queues, queue, options.max_sends, options.spin));
        let this = Self { driver: driver.clone(), runtime: Arc::downgrade(runtime), watch, arrivals: None };
        runtime.spawn(Box::pin(this));
        Ok(driver)
    }

    /// Ready with the cause of the wake-up, if there is one.
    fn poll_cause(&mut self, context: &mut Context<'_>) -> Poll<io::Result<WakeCause>> {
        let mut cause = WakeCause::default();
        if let Poll::Ready(ready) = self.watch.poll_readable(context) {
            ready?;
            cause.event = true;
        }
        if let Some(Poll::Ready(ready)) = self.arrivals.as_mut().map(|it| it.poll_readable(context)) {
            cause.arrival = ready.is_ok();
            if ready.is_err() {
                // The background thread takes the packets in.
                self.end_duty();
            }
        }
        if cause == WakeCause::default() { Poll::Pending } else { Poll::Ready(Ok(cause)) }
    }

    fn end_duty(&mut self) {
        if self.arrivals.take().is_some() {
            self.driver.end_duty();
        }
    }
}

impl<Q: WorkQueues> Future for Watcher<Q> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.arrivals.is_none() {
            let (driver, runtime) = (&this.driver, &this.runtime);
            // Whoever keeps the runtime ends the watcher first. So the runtime is not dropped here, in a task
            // of its own.
            let begin = || runtime.upgrade().and_then(|runtime| driver.begin_duty(&*runtime));
            this.arrivals = driver.watcher_end().unless_come(begin).flatten();
        }
        for _ in 0..MOST_WAKE_UPS_AT_ONCE {
            if this.driver.watcher_end().has_come(context) {
                return Poll::Ready(());
            }
            match this.poll_cause(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(cause)) => {
                    if !this.driver.tend(cause) {
                        this.end_duty();
                    }
                }
                Poll::Ready(Err(error)) => {
                    this.driver.lose(failed_wait("a completion", &error));
                    return Poll::Ready(());
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<Q: WorkQueues> Drop for Watcher<Q> {
    fn drop(&mut self) {
        // Messages that the program still has keep the driver.
        self.end_duty();
        // Without this task nobody wakes those that wait. After the end of the connection nobody waits.
        self.driver.lose(runtime_ended());
    }
}

/// The runtime has dropped the task of a connection that some other task still uses.
fn runtime_ended() -> Error {
    let text = "waiting for a completion: the runtime has ended. A connection needs its runtime as long as it is used, as a queue pair of datagrams \
                and a shared receive queue do: keep the runtime, or make these on another one";
    Error::new(libc::ECANCELED, text)
}
