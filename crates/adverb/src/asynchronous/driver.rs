//! The state that the futures of one connection share: its requests in flight, its messages that nobody has
//! taken yet, and the tasks that wait. Queue pairs of datagrams and shared receive queues have such a state,
//! too ([`WorkQueues`]).
//!
//! Any future that is polled takes completions out of the queue, under the lock, and wakes the tasks that
//! they concern. If its own is not among them, it leaves its waker and arms the queue. One task of the
//! connection, the *watcher*, waits for the queue's descriptor. The watcher takes completions in the same
//! way, and arms the queue again while tasks wait that it has not woken. So no future depends on another one
//! that is dropped, or that nobody polls.
//!
//! The watcher of the only async connection of a process is *on duty*: packets that arrive wake it directly,
//! and the background thread sleeps on ([`TaskDutyGuard`]). The task that it wakes is often about to send an
//! answer, and the acknowledgement goes with it. So a future takes in the other packets only when it waits
//! again.

use super::queues::{ConnectionQueues, WorkQueues};
use super::runtime::{Runtime, Watch};
use super::watcher::{WakeCause, WatcherEnd};
use crate::request::buffers_of_completion;
use crate::{Buffer, Completion, CompletionQueue, Error, Payload, RequestError, Result, SharedReceiveQueue};
use adverb_core::engine;
use adverb_core::failure::FailureListener;
use adverb_core::reactor::TaskDutyGuard;
use std::any::Any;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::hint::spin_loop;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The number of each receive. Requests of the send queue have the index of their place.
pub(super) const RECEIVE: u64 = u64::MAX;

/// A watcher gives up the duty when it was woken so many times in a row without a completion of its own. Such
/// are packets of others, of long messages, and of one-sided requests.
const MOST_IN_VAIN: u32 = 64;

/// Connections of the process that have futures, and what else has.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Whether the process has one such connection.
fn is_alone() -> bool {
    CONNECTIONS.load(Ordering::Relaxed) == 1
}

/// A window or a region that a request in flight needs. Its drop comes behind the end of the request.
pub(super) type RequestObject = Arc<dyn Any + Send + Sync>;

/// A connection, or what else has requests, and the state that its futures share. Thread-safe.
pub(super) struct Driver<Q: WorkQueues = ConnectionQueues> {
    pub(super) queues: Q,
    queue: CompletionQueue,
    /// How long a future looks for completions before its task sleeps.
    spin: Duration,
    state: Mutex<DriverState>,
    watcher_end: WatcherEnd,
}

struct DriverState {
    requests: Vec<Request>,
    free: Vec<usize>,
    /// Requests that may be posted.
    room: usize,
    posters: Waiters,
    /// Messages that nobody has taken.
    messages: VecDeque<Completion>,
    readers: Waiters,
    /// Why there are no more messages. None while there may be some.
    end: Option<Result<()>>,
    /// Whether no more messages come after a receive that has failed so.
    is_end: fn(&RequestError) -> bool,
    /// Requests in flight for which a task waits.
    awaited: usize,
    /// The descriptor will be readable at the next completion, or is so already.
    armed: bool,
    duty: DutyState,
    /// The queue cannot be watched any more.
    failure: Option<Error>,
    /// Buffers of requests whose futures were dropped, and of atomics.
    spare: Vec<Buffer>,
    /// The windows and regions that requests in flight need, by their places.
    needed: Vec<(usize, RequestObject)>,
}

/// The connection's part in taking in packets, its own ones and those of others.
enum DutyState {
    /// None: the background thread takes them in, or another connection.
    None,
    /// Packets wake the watcher. `is_due`: they have woken it, and some may not be taken in yet. `in_vain`:
    /// how often in a row nothing has come for this connection.
    OnDuty { task_duty: TaskDutyGuard, is_due: bool, in_vain: u32 },
}

/// A place in the table of requests.
enum Request {
    Free,
    /// With the task that waits for the end.
    InFlight(Option<Waker>),
    /// Nobody waits for the end any more.
    Detached,
    Done(Completion),
}

/// Tasks that wait for the same thing, in the order in which they came.
#[derive(Default)]
struct Waiters {
    last: u64,
    queue: VecDeque<(u64, Waker)>,
}

/// The place of a task among [`Waiters`], if it has one.
pub(super) type Ticket = Option<u64>;

impl Waiters {
    /// How many tasks come before this one.
    fn before(&self, ticket: Ticket) -> usize {
        let place = ticket.and_then(|ticket| self.queue.iter().position(|(it, _)| *it == ticket));
        place.unwrap_or(self.queue.len())
    }

    fn enter(&mut self, ticket: &mut Ticket, waker: &Waker) {
        let place = self.before(*ticket);
        match self.queue.get_mut(place) {
            Some((_, old)) => old.clone_from(waker),
            None => {
                self.last += 1;
                *ticket = Some(self.last);
                self.queue.push_back((self.last, waker.clone()));
            }
        }
    }

    fn leave(&mut self, ticket: &mut Ticket) {
        if let Some(ticket) = ticket.take() {
            self.queue.retain(|(it, _)| *it != ticket);
        }
    }

    /// The wakers of the first `count` tasks, which stay until they leave.
    fn first(&self, count: usize) -> impl Iterator<Item = Waker> {
        self.queue.iter().take(count).map(|(_, waker)| waker.clone())
    }
}

/// Work for the time when the lock is free again: a waker and a drop may run any code.
#[derive(Default)]
struct Afterwards {
    wakers: Vec<Waker>,
    buffers: Vec<Buffer>,
    needed: Vec<RequestObject>,
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl DriverState {
    /// Takes all completions out of the queue. How many there were.
    fn drain(&mut self, queue: &CompletionQueue, afterwards: &mut Afterwards) -> Result<usize> {
        let mut count = 0;
        while let Some(completion) = queue.poll()? {
            count += 1;
            match completion.id {
                RECEIVE => self.received(completion, afterwards),
                place => self.sent(place as usize, completion, afterwards),
            }
        }
        Ok(count)
    }

    fn received(&mut self, completion: Completion, afterwards: &mut Afterwards) {
        match completion.error().filter(self.is_end) {
            None => {
                self.messages.push_back(completion);
                afterwards.wakers.extend(self.readers.first(self.messages.len()));
            }
            Some(error) => {
                // The first failure has the reason: the others are flushed.
                let end = if error.is_flushed() { Ok(()) } else { Err(error.into()) };
                self.end.get_or_insert(end);
                afterwards.buffers.extend(completion.buffer);
                afterwards.wakers.extend(self.readers.first(usize::MAX));
            }
        }
    }

    fn sent(&mut self, place: usize, completion: Completion, afterwards: &mut Afterwards) {
        self.release(place, afterwards);
        let Some(request) = self.requests.get_mut(place) else { return };
        match std::mem::replace(request, Request::Done(completion)) {
            Request::InFlight(waker) => {
                self.awaited -= usize::from(waker.is_some());
                afterwards.wakers.extend(waker);
            }
            _ => {
                if let Request::Done(completion) = std::mem::replace(request, Request::Free) {
                    self.keep(buffers_of_completion(completion), afterwards);
                }
                self.free.push(place);
            }
        }
        self.room += 1;
        afterwards.wakers.extend(self.posters.first(self.room));
    }

    /// The request of this place has ended, or is not posted.
    fn release(&mut self, place: usize, afterwards: &mut Afterwards) {
        if let Some(found) = self.needed.iter().position(|(of, _)| *of == place) {
            afterwards.needed.push(self.needed.swap_remove(found).1);
        }
    }

    /// Keeps buffers for other requests, one for each that can be in flight.
    fn keep(&mut self, buffers: impl IntoIterator<Item = Buffer>, afterwards: &mut Afterwards) {
        for buffer in buffers {
            match self.spare.len() < self.requests.len() {
                true => self.spare.push(buffer),
                false => afterwards.buffers.push(buffer),
            }
        }
    }

    /// Arms the queue, and takes what has completed before. A task is about to wait.
    fn arm(&mut self, queue: &CompletionQueue, afterwards: &mut Afterwards) -> Result<()> {
        if !self.armed {
            queue.core().arm(false)?;
            self.armed = true;
            self.drain(queue, afterwards)?;
        }
        self.serve_before_wait();
        Ok(())
    }

    /// Takes in packets that have arrived, if that is this connection's part. A completion of an armed queue
    /// raises its event.
    fn serve_before_wait(&mut self) {
        if let DutyState::OnDuty { task_duty, is_due, .. } = &mut self.duty
            && std::mem::take(is_due)
        {
            task_duty.serve_before_wait();
        }
    }

    /// Whether a task waits that nothing has woken.
    fn waits(&self) -> bool {
        self.awaited > 0
            || self.posters.queue.len() > self.room
            || self.end.is_none() && self.readers.queue.len() > self.messages.len()
    }

    /// Takes the completions that have woken the watcher, and arms the queue again if a task still waits.
    fn tend(
        &mut self,
        queue: &CompletionQueue,
        cause: WakeCause,
        is_alone: bool,
        afterwards: &mut Afterwards,
    ) -> Result<()> {
        if cause.event {
            queue.take_events()?;
            self.armed = false;
        }
        if cause.arrival && self.armed {
            // This thread looks by itself, without an event.
            queue.core().disarm();
            self.armed = false;
        }
        let found = self.drain(queue, afterwards)?;
        if let DutyState::OnDuty { is_due, in_vain, .. } = &mut self.duty {
            *is_due |= cause.arrival;
            *in_vain = if cause.arrival && found == 0 { *in_vain + 1 } else { 0 };
        }
        if self.waits() {
            return self.arm(queue, afterwards);
        }
        // A task that was woken here takes in the rest when it waits again. Other connections may not wait
        // for that.
        if afterwards.wakers.is_empty() || !is_alone {
            self.serve_before_wait();
        }
        Ok(())
    }

    fn fail(&mut self, error: Error, afterwards: &mut Afterwards) {
        // The first failure has the reason.
        self.failure.get_or_insert(error);
        afterwards.wakers.extend(self.readers.first(usize::MAX).chain(self.posters.first(usize::MAX)));
        for request in &mut self.requests {
            if let Request::InFlight(waker) = request {
                self.awaited -= usize::from(waker.is_some());
                afterwards.wakers.extend(waker.take());
            }
        }
    }
}

impl<Q: WorkQueues> Driver<Q> {
    /// Of queues whose requests all complete on `queue`, at most `sends` of the send queue at once.
    pub(super) fn new(queues: Q, queue: CompletionQueue, sends: u32, spin: Duration) -> Self {
        let state = DriverState {
            requests: Vec::new(),
            free: Vec::new(),
            room: sends as usize,
            posters: Waiters::default(),
            messages: VecDeque::new(),
            readers: Waiters::default(),
            end: queues.no_messages().map(Err),
            is_end: Q::is_end,
            awaited: 0,
            armed: false,
            duty: DutyState::None,
            failure: None,
            spare: Vec::new(),
            needed: Vec::new(),
        };
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Self { queues, queue, spin, state: Mutex::new(state), watcher_end: WatcherEnd::default() }
    }

    fn lock(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes completions until `take` finds what the future waits for. If there is none, `wait` leaves the
    /// waker.
    fn poll_for<T>(
        &self,
        context: &Context<'_>,
        ticket: &mut Ticket,
        mut take: impl FnMut(&mut DriverState, &mut Ticket) -> Option<T>,
        wait: impl FnOnce(&mut DriverState, &mut Ticket, &Waker),
    ) -> Poll<Result<T>> {
        // Dropped after the guard of the lock.
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        let mut began = None;
        loop {
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            state.drain(&self.queue, &mut afterwards)?;
            if let Some(found) = take(&mut state, ticket) {
                return Poll::Ready(Ok(found));
            }
            if self.spin.is_zero() || began.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                break;
            }
            drop(state);
            drop(std::mem::take(&mut afterwards));
            spin_loop();
            state = self.lock();
        }
        wait(&mut state, ticket, context.waker());
        state.arm(&self.queue, &mut afterwards)?;
        match take(&mut state, ticket) {
            Some(found) => Poll::Ready(Ok(found)),
            None => Poll::Pending,
        }
    }

    /// The oldest message. None after the end of the connection.
    pub(super) fn poll_message(
        &self,
        ticket: &mut Ticket,
        context: &Context<'_>,
    ) -> Poll<Result<Option<Completion>>> {
        let take = |state: &mut DriverState, ticket: &mut Ticket| {
            let message = match state.readers.before(*ticket) < state.messages.len() {
                true => Ok(state.messages.pop_front()),
                // Tasks that came before take the messages that are left.
                false => state.end.clone()?.map(|()| None),
            };
            state.readers.leave(ticket);
            Some(message)
        };
        let found =
            self.poll_for(context, ticket, take, |state, ticket, waker| state.readers.enter(ticket, waker));
        found.map(Result::flatten)
    }

    /// A task that had left its waker waits for a message no more.
    pub(super) fn leave_readers(&self, ticket: &mut Ticket) {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        state.readers.leave(ticket);
        afterwards.wakers.extend(state.readers.first(state.messages.len()));
    }

    /// A place for a request of the send queue, which the caller posts at once.
    pub(super) fn poll_place(
        self: &Arc<Self>,
        ticket: &mut Ticket,
        context: &Context<'_>,
    ) -> Poll<Result<Place<Q>>> {
        let take = |state: &mut DriverState, ticket: &mut Ticket| {
            if state.posters.before(*ticket) >= state.room {
                return None;
            }
            state.posters.leave(ticket);
            state.room -= 1;
            let index = state.free.pop().unwrap_or_else(|| {
                state.requests.push(Request::Free);
                state.requests.len() - 1
            });
            state.requests[index] = Request::InFlight(None);
            Some(index)
        };
        let found =
            self.poll_for(context, ticket, take, |state, ticket, waker| state.posters.enter(ticket, waker));
        found.map(|found| found.map(|index| Place { driver: self.clone(), index: Some(index) }))
    }

    /// A task that had left its waker waits for a place no more.
    pub(super) fn leave_posters(&self, ticket: &mut Ticket) {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        state.posters.leave(ticket);
        afterwards.wakers.extend(state.posters.first(state.room));
    }

    /// Waits for a place for a request of the send queue.
    pub(super) async fn place(self: &Arc<Self>) -> Result<Place<Q>> {
        let mut turn = Turn { driver: self, ticket: None, leave: Self::leave_posters };
        poll_fn(|context| self.poll_place(&mut turn.ticket, context)).await
    }

    /// Waits for the oldest message. None after the end of the connection.
    pub(super) async fn message(&self) -> Result<Option<Completion>> {
        let mut turn = Turn { driver: self, ticket: None, leave: Self::leave_readers };
        poll_fn(|context| self.poll_message(&mut turn.ticket, context)).await
    }

    /// Carries out a request of the send queue.
    pub(super) async fn perform(self: &Arc<Self>, request: Q::Request<'_>) -> Result<Completion> {
        self.place().await?.post(request)?.await
    }

    /// Carries out a request that needs the window or the region that `needed` is, until it ends: also where
    /// its future is dropped.
    pub(super) async fn perform_with(
        self: &Arc<Self>,
        needed: RequestObject,
        request: impl FnOnce() -> Q::Request<'static>,
    ) -> Result<Completion> {
        self.place().await?.post_with(needed, request())?.await
    }

    /// Takes all completions out of the queue. A queue pair that ends takes along those that are left.
    pub(super) fn take_completions(&self) {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        if let Err(error) = state.drain(&self.queue, &mut afterwards) {
            state.fail(error, &mut afterwards);
        }
    }

    /// The payload that a request sends in place of `payload`, and whether it is a copy: bytes that are too
    /// long for the post are in a buffer then.
    pub(super) fn sendable<'a>(
        &self,
        payload: Payload<'a>,
        inline_bytes: u32,
    ) -> Result<(Payload<'a>, bool)> {
        match payload {
            Payload::Inline(bytes) if bytes.len() > inline_bytes as usize => {
                let mut buffer = self.buffer(bytes.len())?;
                buffer.copy_from_slice(bytes);
                Ok((buffer.into(), true))
            }
            payload => Ok((payload, false)),
        }
    }

    /// The buffer of a Send that has ended well. One with a [copy](Self::sendable) is kept.
    pub(super) fn sent_buffer(&self, completion: Completion, is_copy: bool) -> Option<Buffer> {
        let buffer = completion.buffer?;
        if !is_copy {
            return Some(buffer);
        }
        self.recycle(buffer);
        None
    }

    /// A buffer of this length that was used before, or a new one.
    pub(super) fn buffer(&self, length: usize) -> Result<Buffer> {
        let mut state = self.lock();
        let spare = state.spare.iter().position(|buffer| buffer.len() == length);
        let spare = spare.map(|place| state.spare.swap_remove(place));
        drop(state);
        spare.map_or_else(|| self.queues.domain().buffer(length), Ok)
    }

    /// Keeps a buffer for other requests.
    pub(super) fn recycle(&self, buffer: Buffer) {
        let mut afterwards = Afterwards::default();
        self.lock().keep([buffer], &mut afterwards);
    }

    /// The watcher was woken. Whether it is to go on with its duty.
    pub(super) fn tend(&self, cause: WakeCause) -> bool {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        let is_alone = is_alone();
        if let Err(error) = state.tend(&self.queue, cause, is_alone, &mut afterwards) {
            state.fail(error, &mut afterwards);
        }
        is_alone && matches!(state.duty, DutyState::OnDuty { in_vain, .. } if in_vain < MOST_IN_VAIN)
    }

    /// Puts the connection's watcher on duty, if the connection is the only one, and if `runtime` watches a
    /// descriptor more.
    pub(super) fn begin_duty(&self, runtime: &dyn Runtime) -> Option<Box<dyn Watch>> {
        // The tasks of several connections may run on several threads: the background thread serves them
        // better.
        if !is_alone() {
            return None;
        }
        let engine = self.queues.domain().context().0.engine();
        // In a child of fork, another thread may have a lock of this engine.
        let task_duty =
            engine::existing().filter(|it| std::ptr::eq(*it, engine))?.reactor.begin_task_duty()?;
        let watch = runtime.watch(task_duty.descriptor().ok()?).ok()?;
        // Something may have arrived before.
        self.lock().duty = DutyState::OnDuty { task_duty, is_due: true, in_vain: 0 };
        Some(watch)
    }

    pub(super) fn end_duty(&self) {
        let duty = std::mem::replace(&mut self.lock().duty, DutyState::None);
        drop(duty);
    }

    /// Where all requests complete.
    pub(super) fn completion_queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Tells the watcher to end.
    pub(super) fn watcher_end(&self) -> &WatcherEnd {
        &self.watcher_end
    }

    /// The runtime cannot wait for completions any more.
    pub(super) fn lose(&self, error: Error) {
        let mut afterwards = Afterwards::default();
        self.lock().fail(error, &mut afterwards);
    }
}

impl FailureListener for Driver<SharedReceiveQueue> {
    fn engine_failed(&self) {
        self.lose(Error::new(libc::EIO, "a thread of the engine has failed: no more messages come"));
    }
}

/// A future that waits among others. Its drop lets the next one go on.
struct Turn<'a, Q: WorkQueues> {
    driver: &'a Driver<Q>,
    ticket: Ticket,
    leave: fn(&Driver<Q>, &mut Ticket),
}

impl<Q: WorkQueues> Drop for Turn<'_, Q> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            (self.leave)(self.driver, &mut self.ticket);
        }
    }
}

/// A place for one request of the send queue. Its drop leaves the request to itself: the buffers of a request
/// in flight are kept for others when it ends.
pub(super) struct Place<Q: WorkQueues = ConnectionQueues> {
    driver: Arc<Driver<Q>>,
    /// None once the end of the request was taken.
    index: Option<usize>,
}

impl<Q: WorkQueues> Place<Q> {
    /// Posts a request. The result waits for its end.
    pub(super) fn post(mut self, request: Q::Request<'_>) -> Result<Self> {
        let Some(index) = self.index else { return Ok(self) };
        let posted = self.driver.queues.post_send(index as u64, request);
        posted.map_err(|rejected| {
            self.index = None;
            self.driver.give_back(index);
            Error::from(rejected)
        })?;
        Ok(self)
    }

    /// Posts a request that needs an object until it ends.
    fn post_with(self, needed: RequestObject, request: Q::Request<'_>) -> Result<Self> {
        if let Some(index) = self.index {
            self.driver.lock().needed.push((index, needed));
        }
        self.post(request)
    }

    /// Leaves the place to another request: nothing was posted.
    pub(super) fn give_up(mut self) {
        if let Some(index) = self.index.take() {
            self.driver.give_back(index);
        }
    }

    /// The end of the request.
    pub(super) fn poll_end(&mut self, context: &Context<'_>) -> Poll<Result<Completion>> {
        let Some(index) = self.index else {
            return Poll::Ready(Err(Error::invalid("the end of the request was taken")));
        };
        let take = |state: &mut DriverState, _: &mut Ticket| match std::mem::replace(
            &mut state.requests[index],
            Request::Free,
        ) {
            Request::Done(completion) => {
                state.free.push(index);
                Some(completion)
            }
            other => {
                state.requests[index] = other;
                None
            }
        };
        let end = self.driver.poll_for(context, &mut None, take, |state, _, waker| {
            if let Request::InFlight(old) = &mut state.requests[index] {
                state.awaited += usize::from(old.is_none());
                *old = Some(waker.clone());
            }
        });
        if matches!(end, Poll::Ready(Ok(_))) {
            self.index = None;
        }
        end
    }
}

/// Where the buffer of a message goes back to. Thread-safe.
pub(super) trait Receives: Send + Sync {
    /// Posts the buffer of a message again. Queues that have ended take none.
    fn post_receive(&self, buffer: Buffer);
}

impl<Q: WorkQueues> Receives for Driver<Q> {
    fn post_receive(&self, buffer: Buffer) {
        if self.queues.post_receive(buffer).is_err() {
            let mut afterwards = Afterwards::default();
            let mut state = self.lock();
            state.end.get_or_insert(Ok(()));
            afterwards.wakers.extend(state.readers.first(usize::MAX));
        }
    }
}

impl<Q: WorkQueues> Drop for Driver<Q> {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<Q: WorkQueues> Driver<Q> {
    /// Frees the place of a request that was not posted.
    fn give_back(&self, index: usize) {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        state.release(index, &mut afterwards);
        state.requests[index] = Request::Free;
        state.free.push(index);
        state.room += 1;
        afterwards.wakers.extend(state.posters.first(state.room));
    }

    /// Leaves a request to itself.
    fn detach(&self, index: usize) {
        let mut afterwards = Afterwards::default();
        let mut state = self.lock();
        match std::mem::replace(&mut state.requests[index], Request::Detached) {
            Request::InFlight(waker) => state.awaited -= usize::from(waker.is_some()),
            Request::Done(completion) => {
                state.requests[index] = Request::Free;
                state.free.push(index);
                state.keep(buffers_of_completion(completion), &mut afterwards);
            }
            other => state.requests[index] = other,
        }
    }
}

impl<Q: WorkQueues> Future for Place<Q> {
    type Output = Result<Completion>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_end(context)
    }
}

impl<Q: WorkQueues> Drop for Place<Q> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.driver.detach(index);
        }
    }
}
