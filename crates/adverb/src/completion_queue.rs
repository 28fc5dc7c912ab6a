//! Completion queues: where the buffers of finished requests come back.

use crate::flight::{Flights, shared_queue};
use crate::{Completion, Context, Error, Result, SharedReceiveQueue};
use adverb_core::cq::{self, CompletionChannel};
use adverb_core::lock::{Lock, LockGuard};
use adverb_core::memory::moved::safe_point;
use adverb_core::request;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Completions that one look at the queue takes.
const AT_ONCE: usize = 16;

/// Where requests of one or more queue pairs complete. Cheap to clone, thread-safe.
///
/// A program either polls ([`CompletionQueue::poll`]), which is fastest and takes a processor, or sleeps
/// ([`CompletionQueue::wait`]), or lets an event loop watch the descriptor ([`CompletionQueue::arm`]).
/// Requests in flight plus completions that nobody has taken never exceed the capacity: posting more is
/// refused, so completions are never lost.
///
/// # Flushed requests
///
/// The end of a connection brings all its requests back. Those that were not carried out have the status
/// [`Flushed`](crate::Status::Flushed). So each end of a connection brings the receives that no message has
/// taken, also where several connections complete on one queue. That is no error:
/// [`Completion::unless_flushed`] tells it from one. [`Completion::queue_pair`] says whose request it was.
///
/// ```
/// # use adverb::{CompletionQueue, Connection};
/// # use std::time::Duration;
/// /// Serves one client until it has gone.
/// fn serve(connection: &Connection, completions: &CompletionQueue) -> adverb::Result<()> {
///     loop {
///         let completion = completions.wait(Duration::from_secs(60))?;
///         let Some(message) = completion.unless_flushed()? else { return Ok(()) };
///         println!("{:?}", message.message());
///         connection.post_receive(0, message.into_buffer())?;
///     }
/// }
/// ```
#[derive(Clone)]
pub struct CompletionQueue(Arc<Inner>);

struct Inner {
    core: Arc<cq::CompletionQueue>,
    channel: Arc<CompletionChannel>,
    flights: Lock<Flights>,
    sleeper: Mutex<Sleeper>,
    role_passed: Condvar,
}

#[derive(Default)]
struct Sleeper {
    /// Whether a thread sleeps on the channel; the others wait for it to pass the role on.
    asleep: bool,
    /// The queue was armed and the event was not taken: so it is armed still, or the event waits.
    armed: bool,
}

impl CompletionQueue {
    pub(crate) fn new(context: &Context, capacity: u32) -> Result<Self> {
        let channel = CompletionChannel::new(&context.0)?;
        let descriptor = channel.descriptor();
        // SAFETY: fcntl(2) on a descriptor that the channel holds; plain numbers.
        unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) };
        let core = cq::CompletionQueue::new(&context.0, capacity, Some(channel.clone()))?;
        let flights = Lock::new(Flights::new(core.capacity() as usize));
        Ok(Self(Arc::new(Inner {
            core,
            channel,
            flights,
            sleeper: Mutex::default(),
            role_passed: Condvar::new(),
        })))
    }

    /// Whether both are clones of one queue.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let completions = adverb::Context::open_default()?.completion_queue(16)?;
    /// assert!(completions.is(&completions.clone()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Most requests in flight and completions not taken, together.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// // There is perhaps more room than was asked for, and so room for more queue pairs.
    /// let completions = context.completion_queue(1000)?;
    /// let queue_pairs = completions.capacity() / 256;
    /// assert!(completions.capacity() >= 1000 && queue_pairs >= 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(&self) -> u32 {
        self.0.core.capacity()
    }

    /// The oldest completion, if there is one. Never waits; in the steady state it allocates nothing.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// // The least latency, for a processor of its own.
    /// let message = loop {
    ///     if let Some(completion) = server.receive_queue().poll()? {
    ///         break completion.success()?;
    ///     }
    ///     std::hint::spin_loop();
    /// };
    /// assert_eq!(message.message(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    #[inline]
    pub fn poll(&self) -> Result<Option<Completion>> {
        safe_point();
        loop {
            let mut found = None;
            self.0.core.poll(1, |completion| found = Some(*completion))?;
            let Some(completion) = found else { return Ok(None) };
            // Requests of a queue pair that was dropped meanwhile are nobody's.
            if let Some(completion) = self.complete(&completion) {
                return Ok(Some(completion));
            }
        }
    }

    /// Takes the request of a completion out of its table.
    #[inline]
    fn complete(&self, completion: &request::Completion) -> Option<Completion> {
        let complete = match shared_queue(completion.wr_id) {
            None => self.flights().complete(completion.wr_id),
            // Its drop, if this was the last clone, comes without a lock.
            Some(identity) => {
                let queue = SharedReceiveQueue::of_identity(identity)?;
                queue.flights().complete(completion.wr_id)
            }
        };
        let (flight, earlier) = complete?;
        Some(Completion::new(completion, flight, earlier))
    }

    /// Appends up to `most` completions to `list`, the oldest first, and says how many. Never waits. Several
    /// at once cost less than each by itself.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// let completions = context.completion_queue(64)?;
    /// let mut list = Vec::with_capacity(16);
    /// completions.poll_many(16, &mut list)?;
    /// for completion in list.drain(..) {
    ///     println!("request {} has ended: {}", completion.id, completion.status);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn poll_many(&self, most: usize, list: &mut Vec<Completion>) -> Result<usize> {
        safe_point();
        let before = list.len();
        while list.len() - before < most {
            let mut found = [request::Completion::EMPTY; AT_ONCE];
            let mut places = found.iter_mut();
            let wanted = (most + before - list.len()).min(AT_ONCE);
            let count = self.0.core.poll(wanted, |completion| {
                if let Some(place) = places.next() {
                    *place = *completion;
                }
            })?;
            list.extend(found[..count].iter().filter_map(|completion| self.complete(completion)));
            if count < wanted {
                break;
            }
        }
        Ok(list.len() - before)
    }

    /// Appends up to `most` completions to `list`, as [`CompletionQueue::poll_many`], and says how many. If
    /// there are none, the calling thread sleeps until one comes, at most `timeout`.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// for number in 0..3_u8 {
    ///     client.post_send(WorkRequest::send(&[number]))?;
    /// }
    /// let mut messages = Vec::new();
    /// while messages.len() < 3 {
    ///     server.receive_queue().wait_many(16, &mut messages, SOON)?;
    /// }
    /// let numbers: Vec<_> = messages.iter().map(|message| message.message()[0]).collect();
    /// assert_eq!(numbers, [0, 1, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`CompletionQueue::wait`].
    pub fn wait_many(&self, most: usize, list: &mut Vec<Completion>, timeout: Duration) -> Result<usize> {
        match self.poll_many(most, list)? {
            0 if most > 0 => {
                list.push(self.wait(timeout)?);
                Ok(1 + self.poll_many(most - 1, list)?)
            }
            count => Ok(count),
        }
    }

    /// The oldest completion; sleeps until there is one, at most `timeout`.
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let receives = server.receive_queue();
    /// // No message has been sent.
    /// assert!(receives.wait(Duration::from_millis(1)).is_err_and(|error| error.is_timeout()));
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// assert_eq!(receives.wait(Duration::from_secs(10))?.success()?.message(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ETIMEDOUT ([`Error::is_timeout`]) when nothing has completed: the requests are still in flight, and
    /// may complete later. ENODEV in a child of fork.
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        if let Some(completion) = self.poll()? {
            return Ok(completion);
        }
        let deadline = Instant::now().checked_add(timeout);
        let mut sleeper = lock(&self.0.sleeper);
        while sleeper.asleep {
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Err(timed_out(timeout));
            }
            let passed = self.0.role_passed.wait_timeout(sleeper, left.unwrap_or(Duration::MAX));
            sleeper = passed.unwrap_or_else(PoisonError::into_inner).0;
        }
        sleeper.asleep = true;
        let mut armed = sleeper.armed;
        drop(sleeper);
        let result = self.sleep(&mut armed, deadline, timeout);
        *lock(&self.0.sleeper) = Sleeper { asleep: false, armed };
        self.0.role_passed.notify_one();
        result
    }

    fn sleep(&self, armed: &mut bool, deadline: Option<Instant>, timeout: Duration) -> Result<Completion> {
        loop {
            if !*armed {
                self.0.core.arm(false)?;
                *armed = true;
            }
            // What completed before it was armed raises no event.
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Err(timed_out(timeout));
            }
            match self.0.channel.ready(milliseconds(left)) {
                Ok(true) => {
                    self.take_events()?;
                    *armed = false;
                }
                Err(error) if error.errno() != libc::EINTR => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// Makes the descriptor ([`CompletionQueue::as_fd`]) readable at the next completion. An earlier
    /// completion is not announced, so poll once more after arming; and arm again after each event.
    ///
    /// ```
    /// use adverb::CompletionQueue;
    ///
    /// /// What an event loop does when the descriptor is readable, and once before it first sleeps.
    /// fn take(completions: &CompletionQueue) -> adverb::Result<()> {
    ///     completions.arm()?;
    ///     while let Some(completion) = completions.poll()? {
    ///         println!("request {} has ended", completion.id);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn arm(&self) -> Result<()> {
        self.arm_for(false)
    }

    /// Makes the descriptor ([`CompletionQueue::as_fd`]) readable at the next completion of a failed request,
    /// or of a message for which the peer asked attention
    /// ([`WorkRequest::solicited`](crate::WorkRequest::solicited)). Otherwise as [`CompletionQueue::arm`].
    ///
    /// ```
    /// use adverb::WorkRequest;
    /// # use std::os::fd::AsRawFd;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn wait_readable(queue: &adverb::CompletionQueue) -> bool {
    /// #     let mut entry = libc::pollfd { fd: queue.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    /// #     // SAFETY: one entry, which lives.
    /// #     unsafe { libc::poll(&mut entry, 1, 10_000) == 1 }
    /// # }
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, server) = ends()?;
    /// let receives = server.receive_queue();
    /// receives.arm_solicited()?;
    /// client.post_send(WorkRequest::send(b"no hurry"))?;
    /// client.post_send(WorkRequest::send(b"look now").solicited())?;
    /// // poll(2) returns at the second message, when both are there.
    /// assert!(wait_readable(receives));
    /// assert_eq!(receives.poll_many(16, &mut Vec::new())?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn arm_solicited(&self) -> Result<()> {
        self.arm_for(true)
    }

    fn arm_for(&self, solicited: bool) -> Result<()> {
        let mut sleeper = lock(&self.0.sleeper);
        // The event that a sleeping thread waits for is its own.
        if !sleeper.asleep {
            self.take_events()?;
            sleeper.armed = false;
        }
        Ok(self.0.core.arm(solicited)?)
    }

    /// Takes all events, so that the descriptor is not readable any more.
    pub(crate) fn take_events(&self) -> Result<()> {
        while self.0.channel.ready(0)? {
            match self.0.channel.wait() {
                Ok(_) => {}
                Err(error) if matches!(error.errno(), libc::EAGAIN | libc::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn core(&self) -> &Arc<cq::CompletionQueue> {
        &self.0.core
    }

    #[inline]
    pub(crate) fn flights(&self) -> LockGuard<'_, Flights> {
        self.0.flights.lock()
    }
}

impl AsRawFd for CompletionQueue {
    /// The number of the descriptor that [`AsFd`] lends. It is readable after a completion for which the
    /// queue was armed.
    fn as_raw_fd(&self) -> RawFd {
        self.0.channel.descriptor()
    }
}

impl AsFd for CompletionQueue {
    /// A descriptor that is readable after a completion for which the queue was armed. Only for poll(2) and
    /// its like.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.channel.descriptor()) }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("capacity", &self.capacity()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn timed_out(timeout: Duration) -> Error {
    Error::new(libc::ETIMEDOUT, format!("nothing has completed within {timeout:?}"))
}

/// The time that is left until `deadline`; none: for ever.
pub(crate) fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// For poll(2), rounded up; -1: for ever.
pub(crate) fn milliseconds(left: Option<Duration>) -> i32 {
    left.map_or(-1, |left| left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32)
}
