//! Receives that several queue pairs share.

use crate::flight::{Flight, Flights, MOST_SHARED, NOTHING, shared_queue};
use crate::request::Rejected;
use crate::{CompletionQueue, Error, ProtectionDomain, Result, Segments};
use adverb_core::error::PostError;
use adverb_core::lock::{Lock, LockGuard};
use adverb_core::request::ReceiveRequest;
use adverb_core::srq::{self, SharedReceiveQueueAttributes};
use adverb_core::xrc::XrcDomain;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};

/// Receives for the messages of several queue pairs, which take them in the order of their arrival. Cheap to
/// clone, thread-safe.
///
/// A queue pair gets it by
/// [`QueuePairOptions::shared_receive_queue`](crate::QueuePairOptions::shared_receive_queue), and has no
/// receives of its own then. The completion of a receive comes out of the receive queue of the queue pair
/// that has taken it ([`Completion::queue_pair`](crate::Completion::queue_pair)). The end of a connection
/// flushes no shared receives.
///
/// A request in flight belongs to the shared receive queue, with its memory, until its completion was taken.
/// Each of the completion queues keeps room for all of its receives: so completions are never lost.
///
/// ```
/// use adverb::QueuePairOptions;
///
/// # fn main() -> adverb::Result<()> {
/// # let context = adverb::Context::open_default()?;
/// # let domain = context.protection_domain()?;
/// let shared = domain.shared_receive_queue(64, 1)?;
/// for buffer in domain.buffers(64, 4096)? {
///     shared.post_receive(0, buffer)?;
/// }
/// let completions = context.completion_queue(256)?;
/// let options =
///     QueuePairOptions { shared_receive_queue: Some(shared.clone()), ..QueuePairOptions::new(&completions) };
/// let queue_pairs = [domain.queue_pair(options.clone())?, domain.queue_pair(options)?];
/// # drop(queue_pairs);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

struct Inner {
    core: Arc<srq::SharedReceiveQueue>,
    flights: Lock<Flights>,
    domain: ProtectionDomain,
    /// The queue's number in the list of all, which names of requests carry.
    identity: u32,
    /// Completion queues that keep room for its receives.
    room: Lock<Vec<CompletionQueue>>,
    /// Whether a receive is posted again that a queue pair would take along at its end.
    keeps_receives: AtomicBool,
}

/// All shared receive queues of the process. A completion names by its number the queue whose receive has
/// ended.
static ALL: LazyLock<RwLock<HashMap<u32, Weak<Inner>>>> = LazyLock::new(RwLock::default);

impl SharedReceiveQueue {
    pub(crate) fn new(domain: &ProtectionDomain, max_receives: u32, max_scatter: u32) -> Result<Self> {
        let sizes = SharedReceiveQueueAttributes { max_wr: max_receives, max_sge: max_scatter, limit: 0 };
        Self::of(domain, srq::SharedReceiveQueue::new(&domain.core, sizes)?)
    }

    /// A queue of XRC, whose receives complete on `completions`.
    pub(crate) fn extended(
        domain: &ProtectionDomain,
        xrc: &Arc<XrcDomain>,
        completions: &CompletionQueue,
        max_receives: u32,
        max_scatter: u32,
    ) -> Result<Self> {
        let sizes = SharedReceiveQueueAttributes { max_wr: max_receives, max_sge: max_scatter, limit: 0 };
        let queue = completions.core();
        let core = srq::SharedReceiveQueue::new_extended(&domain.core, sizes, xrc, queue, None)?;
        let shared = Self::of(domain, core)?;
        shared.reserve(completions)?;
        Ok(shared)
    }

    fn of(domain: &ProtectionDomain, core: Arc<srq::SharedReceiveQueue>) -> Result<Self> {
        // No number is given a second time, so a name never leads to another queue.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let identity = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < MOST_SHARED).then_some(next + 1)
        });
        let Ok(identity) = identity else {
            let text = format!("a process makes at most {MOST_SHARED} shared receive queues");
            return Err(Error::Exhausted(text.into()));
        };
        core.set_cookie(core.number().into());
        let most = core.attributes().max_wr as usize;
        let inner = Arc::new(Inner {
            core,
            flights: Lock::new(Flights::of_shared(most, identity)),
            domain: domain.clone(),
            identity,
            room: Lock::default(),
            keeps_receives: AtomicBool::new(false),
        });
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(identity, Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// The queue with this number in the names of requests. None if it is gone.
    #[cold]
    pub(crate) fn of_identity(identity: u32) -> Option<Self> {
        let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&identity)?.upgrade().map(Self)
    }

    /// The queue's number, as events carry it.
    ///
    /// ```
    /// use adverb::{AsyncEvent, AsyncEventKind, SharedReceiveQueue};
    ///
    /// /// Whether an event says that this queue has run low.
    /// fn is_low(event: &AsyncEvent, queue: &SharedReceiveQueue) -> bool {
    ///     let AsyncEvent::SharedReceiveQueue { number, kind } = event else { return false };
    ///     *number == queue.number() && *kind == AsyncEventKind::SrqLimitReached
    /// }
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let (low, other) = (domain.shared_receive_queue(64, 1)?, domain.shared_receive_queue(64, 1)?);
    /// # let kind = AsyncEventKind::SrqLimitReached;
    /// let event = AsyncEvent::SharedReceiveQueue { number: low.number(), kind };
    /// assert!(is_low(&event, &low) && !is_low(&event, &other));
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(&self) -> u32 {
        self.0.core.number()
    }

    /// The queue's protection domain.
    ///
    /// ```
    /// use adverb::SharedReceiveQueue;
    ///
    /// /// Posts as many receives as the queue takes.
    /// fn fill(queue: &SharedReceiveQueue) -> adverb::Result<()> {
    ///     for buffer in queue.domain().buffers(queue.capacity() as usize, 64)? {
    ///         queue.post_receive(0, buffer)?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let shared = domain.shared_receive_queue(64, 1)?;
    /// fill(&shared)?;
    /// assert!(shared.post_receive(0, domain.buffer(64)?).is_err(), "it is full");
    /// # Ok(())
    /// # }
    /// ```
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// Most receives that are posted, and whose completions nobody has taken.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let shared = domain.shared_receive_queue(50, 1)?;
    /// // Each completion queue of its queue pairs has room for all of them.
    /// let completions = domain.context().completion_queue(128 + shared.capacity())?;
    /// assert!(shared.capacity() >= 50 && completions.capacity() >= 128 + 50);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(&self) -> u32 {
        self.0.core.attributes().max_wr
    }

    /// Offers memory for a message of any of the queue pairs.
    ///
    /// ```
    /// use adverb::{QueuePairOptions, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # let client = queue_pair(&domain)?;
    /// # let receives = domain.context().completion_queue(256)?;
    /// let shared = domain.shared_receive_queue(64, 1)?;
    /// shared.post_receive(7, domain.buffer(64)?)?;
    /// let shared_receive_queue = Some(shared.clone());
    /// let server =
    ///     domain.queue_pair(QueuePairOptions { shared_receive_queue, ..QueuePairOptions::new(&receives) })?;
    /// # let (client, server) = connected(client, server, b"")?;
    /// // The message of any client takes it.
    /// client.post_send(WorkRequest::send(b"hello"))?;
    /// let message = receives.wait(SOON)?.success()?;
    /// assert_eq!((message.id, message.queue_pair), (7, server.number()));
    /// shared.post_receive(7, message.into_buffer())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`QueuePair::post_receive`](crate::QueuePair::post_receive).
    #[inline]
    pub fn post_receive(&self, id: u64, target: impl Into<Segments>) -> Result<(), Rejected> {
        let segments = target.into();
        let elements = match segments.elements(self.0.domain.number()) {
            Ok(elements) => elements,
            Err(reason) => return Err(Rejected::new(reason, Some(segments))),
        };
        let flight = Flight { id, queue_pair: NOTHING, segments: Some(segments), previous: NOTHING };
        let entered = self.flights().enter(flight);
        let name = entered.map_err(|flight| Rejected::new(PostError::QueueFull, flight.segments))?;
        let request = ReceiveRequest { wr_id: name, sges: elements.as_slice() };
        self.0.core.post_receive(&request).map_err(|reason| {
            let flight = self.flights().leave(name);
            Rejected::new(reason, flight.and_then(|flight| flight.segments))
        })
    }

    /// Raises [`AsyncEventKind::SrqLimitReached`](crate::AsyncEventKind::SrqLimitReached) once, when fewer
    /// than `receives` wait ([`Context::next_event`](crate::Context::next_event)).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// # let domain = context.protection_domain()?;
    /// let shared = domain.shared_receive_queue(64, 1)?;
    /// for buffer in domain.buffers(64, 4096)? {
    ///     shared.post_receive(0, buffer)?;
    /// }
    /// // The program posts more when 16 are left.
    /// shared.arm_limit(16)?;
    /// assert!(context.next_event(Duration::ZERO)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EINVAL for more than the capacity; ENODEV in a child of fork.
    pub fn arm_limit(&self, receives: u32) -> Result<()> {
        Ok(self.0.core.modify(None, Some(receives))?)
    }

    /// Posts receives again, from now on, that a queue pair would take along at its end: with messages that
    /// nobody has taken.
    pub(crate) fn keep_receives(&self) {
        self.0.keeps_receives.store(true, Ordering::Relaxed);
    }

    /// A queue pair ends, and these receives were its own. They are posted again, if the queue keeps them.
    pub(crate) fn post_again(&self, receives: Vec<Flight>) {
        if !self.0.keeps_receives.load(Ordering::Relaxed) {
            return;
        }
        for Flight { id, segments, .. } in receives {
            // One that is refused is freed.
            let _ = segments.map(|segments| self.post_receive(id, segments));
        }
    }

    pub(crate) fn core(&self) -> &Arc<srq::SharedReceiveQueue> {
        &self.0.core
    }

    #[inline]
    pub(crate) fn flights(&self) -> LockGuard<'_, Flights> {
        self.0.flights.lock()
    }

    /// Keeps room in a completion queue for all receives, from now until the end of this queue.
    ///
    /// # Errors
    /// EINVAL if it has not so much.
    pub(crate) fn reserve(&self, queue: &CompletionQueue) -> Result<()> {
        let mut room = self.0.room.lock();
        if room.iter().any(|known| known.is(queue)) {
            return Ok(());
        }
        let (receives, capacity) = (self.capacity(), queue.capacity());
        if !queue.flights().reserve(receives as usize) {
            return Err(Error::invalid(format!(
                "a completion queue of {capacity} entries has no room for the {receives} receives of the shared receive queue: make it larger"
            )));
        }
        room.push(queue.clone());
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No queue pair takes receives here any more: each holds a clone. A target of XRC holds none, and
        // finds the key of a receive gone when the drop of the table has ended its registration.
        let _ = self.core.retire();
        for queue in self.room.lock().drain(..) {
            // Otherwise they would take the room that others get.
            queue.core().withdraw(|completion| shared_queue(completion.wr_id) == Some(self.identity), |_| ());
            queue.flights().release(self.core.attributes().max_wr as usize);
        }
        ALL.write().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("capacity", &self.capacity()).finish()
    }
}
