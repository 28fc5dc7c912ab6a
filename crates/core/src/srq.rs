//! Shared receive queues: receives that several queue pairs take (ibv_create_srq(3)).

use crate::cq::{CompletionQueue, Lane};
use crate::device::Context;
use crate::error::{Error, PostError, Result};
use crate::event::AsyncEventKind;
use crate::fork::ForkGeneration;
use crate::lock::{Lock, LockGuard};
use crate::memory::{RingAllocator, RingKind};
use crate::qp::{GrowingSlots, ReceiveWork};
use crate::region::ProtectionDomain;
use crate::request::{ReceiveRequest, Sge};
use crate::users::DependentCount;
use crate::xrc::XrcDomain;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Sizes of a shared receive queue, and its limit (struct ibv_srq_attr).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedReceiveQueueAttributes {
    /// Outstanding receives.
    pub max_wr: u32,
    /// Elements per receive.
    pub max_sge: u32,
    /// Fewer waiting receives than this raise an event, once; 0: none.
    pub limit: u32,
}

/// A shared receive queue. Thread-safe.
///
/// Messages on many queue pairs take its receives at once and finish in any order. So places go from the free
/// ones to the waiting ones, to a message, and back. The lock covers only these lists, never a copy or a call
/// of other code.
pub struct SharedReceiveQueue {
    domain: Arc<ProtectionDomain>,
    number: u32,
    slots: GrowingSlots,
    places: Lock<Places>,
    /// How many receives wait, and how many may be taken: for a look by another process, which must not take
    /// the lock from the threads that use it.
    waiting: AtomicU32,
    room: AtomicU32,
    users: DependentCount,
    /// The further parts of queues of XRC and of work queues.
    extended: Option<Extension>,
    /// A work queue that is not ready: nothing takes its receives.
    is_paused: AtomicBool,
    cookie: AtomicU64,
    retired: AtomicBool,
    born: ForkGeneration,
}

/// The parts of a queue whose receives complete on a completion queue of its own.
struct Extension {
    /// The domain of a queue of XRC (annex A14).
    domain: Option<Arc<XrcDomain>>,
    /// The completion queue of the receives.
    cq: Arc<CompletionQueue>,
}

struct Places {
    free: Vec<u32>,
    /// How many there are.
    made: u32,
    /// How many may be taken.
    capacity: u32,
    /// Posted and not taken, oldest first.
    waiting: VecDeque<u32>,
    limit: u32,
}

impl SharedReceiveQueue {
    /// A queue for at least `max_wr` receives of `max_sge` elements. The limit is not armed by creation, as
    /// the man page says.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device has none; EINVAL for sizes that it does not have; ENOMEM when it is full.
    pub fn new(domain: &Arc<ProtectionDomain>, sizes: SharedReceiveQueueAttributes) -> Result<Arc<Self>> {
        Self::new_in(domain, sizes, None)
    }

    /// A queue with its receives in memory of `allocator`, otherwise as of [`SharedReceiveQueue::new`].
    /// `allocator` has the memory back when [`SharedReceiveQueue::retire`] succeeds.
    ///
    /// # Errors
    /// As [`SharedReceiveQueue::new`]; ENOMEM also where `allocator` has none.
    pub fn new_in(
        domain: &Arc<ProtectionDomain>,
        sizes: SharedReceiveQueueAttributes,
        allocator: RingAllocator,
    ) -> Result<Arc<Self>> {
        Self::build(domain, sizes, None, allocator)
    }

    /// A queue of XRC, for the messages of target queue pairs in `xrc_domain` that name it; its receives
    /// complete on `cq`.
    ///
    /// # Errors
    /// As [`SharedReceiveQueue::new_in`]; EINVAL for objects of another context.
    // IB-XRC-12
    pub fn new_extended(
        domain: &Arc<ProtectionDomain>,
        sizes: SharedReceiveQueueAttributes,
        xrc_domain: &Arc<XrcDomain>,
        cq: &Arc<CompletionQueue>,
        allocator: RingAllocator,
    ) -> Result<Arc<Self>> {
        let context = domain.context();
        if !Arc::ptr_eq(cq.context(), context) || !Arc::ptr_eq(xrc_domain.context(), context) {
            return Err(Error::invalid(
                "completion queue, XRC domain and protection domain are of different contexts",
            ));
        }
        let extended = Extension { domain: Some(xrc_domain.clone()), cq: cq.clone() };
        let queue = Self::build(domain, sizes, Some(extended), allocator)?;
        cq.users().enter();
        xrc_domain.users().enter();
        xrc_domain.members().add_queue(&queue);
        let lane: Arc<dyn Lane> = xrc_domain.members().clone();
        cq.attach_lane(&lane);
        Ok(queue)
    }

    /// A work queue (ibv_create_wq(3)), not ready: its receives complete on `cq`.
    ///
    /// # Errors
    /// As [`SharedReceiveQueue::new_in`]; EINVAL for a completion queue of another context.
    pub fn new_work_queue(
        domain: &Arc<ProtectionDomain>,
        sizes: SharedReceiveQueueAttributes,
        cq: &Arc<CompletionQueue>,
        allocator: RingAllocator,
    ) -> Result<Arc<Self>> {
        if !Arc::ptr_eq(cq.context(), domain.context()) {
            return Err(Error::invalid("completion queue and protection domain are of different contexts"));
        }
        let extended = Extension { domain: None, cq: cq.clone() };
        let queue = Self::build(domain, sizes, Some(extended), allocator)?;
        cq.users().enter();
        queue.set_ready(false);
        Ok(queue)
    }

    /// A work queue becomes ready, or ceases to be.
    pub fn set_ready(&self, ready: bool) {
        self.is_paused.store(!ready, Ordering::Release);
    }

    fn build(
        domain: &Arc<ProtectionDomain>,
        sizes: SharedReceiveQueueAttributes,
        extended: Option<Extension>,
        allocator: RingAllocator,
    ) -> Result<Arc<Self>> {
        let context = domain.context();
        context.born.check()?;
        let limits = context.attributes();
        if limits.max_srq == 0 {
            return Err(Error::unsupported(format!(
                "{} has no shared receive queues",
                context.device().name()
            )));
        }
        let room = Self::check_size(context, sizes.max_wr)?;
        if sizes.max_sge > limits.max_srq_sge {
            return Err(Error::invalid(format!(
                "max_sge {}: the device allows {}",
                sizes.max_sge, limits.max_srq_sge
            )));
        }
        let kind = match &extended {
            Some(Extension { domain: None, .. }) => RingKind::WorkQueue,
            _ => RingKind::SharedReceiveQueue,
        };
        let slots = GrowingSlots::new(room, sizes.max_sge as usize, allocator, kind)?;
        let all = &context.device().shared_receive_queues;
        if !all.enter_below(limits.max_srq) {
            return Err(Error::exhausted(format!(
                "all {} shared receive queues of the device are in use",
                limits.max_srq
            )));
        }
        domain.users().enter();
        Ok(Arc::new(Self {
            domain: domain.clone(),
            number: context.engine().next_shared_receive_queue(),
            slots,
            // Places are handed out from the end: the first receives come to lie at the beginning.
            places: Lock::new(Places {
                free: (0..room as u32).rev().collect(),
                made: room as u32,
                capacity: room as u32,
                waiting: VecDeque::with_capacity(room),
                limit: 0,
            }),
            waiting: AtomicU32::new(0),
            room: AtomicU32::new(room as u32),
            users: DependentCount::new(),
            extended,
            is_paused: AtomicBool::new(false),
            cookie: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            born: ForkGeneration::now(),
        }))
    }

    /// The room that is made for `max_wr` receives.
    fn check_size(context: &Context, max_wr: u32) -> Result<usize> {
        let most = context.attributes().max_srq_wr;
        if max_wr == 0 || max_wr > most {
            return Err(Error::invalid(format!("max_wr {max_wr}: the device allows 1 to {most}")));
        }
        Ok(max_wr.next_power_of_two().min(most) as usize)
    }

    /// The queue's number (ibv_get_srq_num(3)).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The queue's protection domain, which the keys of its receives belong to.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Queue pairs that take receives here.
    pub fn users(&self) -> &DependentCount {
        &self.users
    }

    /// A word of the front end, which asynchronous events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    /// Sets [`SharedReceiveQueue::cookie`].
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Release);
    }

    /// Real sizes, and the limit that is still armed (ibv_query_srq(3)).
    // IB-SRQ-10
    pub fn attributes(&self) -> SharedReceiveQueueAttributes {
        let places = self.lock();
        SharedReceiveQueueAttributes {
            max_wr: places.capacity,
            max_sge: self.slots.max_sges() as u32,
            limit: places.limit,
        }
    }

    /// Changes the room to at least `max_wr` receives, and arms the limit (ibv_modify_srq(3)): one event when
    /// fewer than `limit` receives wait; 0 disarms. If fewer wait already, the event comes at once.
    ///
    /// # Errors
    /// EINVAL for a limit beyond the queue's size, and for a size that the device does not have. EINVAL also
    /// for a size below the armed limit or the count of incomplete receives. ENOMEM where the queue's
    /// allocator has no memory. Nothing has changed then.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        self.born.check()?;
        let room = max_wr.map(|max_wr| Self::check_size(self.context(), max_wr)).transpose()?;
        // Without the lock: the program may be asked for memory.
        let grown = room.map(|room| self.slots.grow(room)).transpose()?;
        let mut places = self.lock();
        let capacity = room.map_or(places.capacity, |room| room as u32);
        // IB-SRQ-5
        let armed = limit.unwrap_or(places.limit);
        if armed > capacity {
            return Err(Error::invalid(format!(
                "limit {armed}: the shared receive queue holds {capacity} receives"
            )));
        }
        // IB-SRQ-6
        let taken = places.made - places.free.len() as u32;
        if max_wr.is_some_and(|max_wr| max_wr < taken) {
            return Err(Error::invalid(format!("{taken} receives are posted and not complete")));
        }
        if let Some(grown) = grown {
            let made = places.made.max(grown as u32);
            let (first, waiting) = (places.made, places.waiting.len());
            places.free.extend((first..made).rev());
            // So that nothing is allocated when receives come and go.
            places.waiting.reserve(made as usize - waiting);
            places.free.reserve(taken as usize);
            (places.made, places.capacity) = (made, capacity);
            self.room.store(capacity, Ordering::Relaxed);
        }
        let Some(limit) = limit else { return Ok(()) };
        places.limit = limit;
        let reached = places.reached_limit();
        drop(places);
        self.report(reached);
        Ok(())
    }

    /// Posts one receive (ibv_post_srq_recv(3)).
    #[inline]
    pub fn post_receive(&self, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        self.born.check_post()?;
        let mut places = self.lock();
        if places.made - places.free.len() as u32 >= places.capacity {
            return Err(PostError::QueueFull);
        }
        let place = *places.free.last().ok_or(PostError::QueueFull)?;
        self.slots.write(place as usize, request)?;
        places.free.pop();
        places.waiting.push_back(place);
        self.waiting.store(places.waiting.len() as u32, Ordering::Relaxed);
        drop(places);
        self.context().device().counters().receives_posted.add(1);
        Ok(())
    }

    /// Receives that no message has taken.
    pub(crate) fn left(&self) -> usize {
        self.lock().waiting.len()
    }

    /// How many receives wait, and how many may, as it was a moment ago. Without the lock.
    pub fn fill(&self) -> (u32, u32) {
        (self.waiting.load(Ordering::Relaxed), self.room.load(Ordering::Relaxed))
    }

    /// Takes the oldest receive for a message.
    pub(crate) fn take(&self) -> Option<ReceiveWork> {
        if self.is_paused.load(Ordering::Acquire) {
            return None;
        }
        let mut places = self.lock();
        // IB-SRQ-1, IB-SRQ-11
        let place = places.waiting.pop_front()?;
        let reached = places.reached_limit();
        self.waiting.store(places.waiting.len() as u32, Ordering::Relaxed);
        drop(places);
        self.report(reached);
        // IB-SRQ-1
        Some(self.slots.read(place as usize, self.domain.number()))
    }

    /// An element of a receive that is taken and not complete.
    pub(crate) fn sge(&self, work: &ReceiveWork, index: usize) -> Sge {
        self.slots.sge(work.sequence as usize, index)
    }

    /// The place of a receive that was taken is free again.
    pub(crate) fn give_back(&self, work: &ReceiveWork) {
        self.lock().free.push(work.sequence as u32);
    }

    /// Where receives complete, if that is the queue's own: of XRC, and of work queues. None once the program
    /// has destroyed it.
    pub fn completion_queue(&self) -> Option<&Arc<CompletionQueue>> {
        self.extended.as_ref().filter(|_| !self.retired.load(Ordering::Acquire)).map(|extended| &extended.cq)
    }

    /// The program destroys the queue (ibv_destroy_srq(3)); receives that wait vanish.
    ///
    /// # Errors
    /// EBUSY while queue pairs take receives here.
    pub fn retire(&self) -> Result<()> {
        // IB-SRQ-9
        if self.born.is_here() && self.users.count() > 0 {
            return Err(Error::busy(format!(
                "{} queue pairs still use the shared receive queue: destroy them first",
                self.users.count()
            )));
        }
        let here = self.born.is_here();
        // In a child of fork a thread may have the locks that is not there.
        if let Some(Extension { domain: Some(domain), cq }) = self.extended.as_ref().filter(|_| here) {
            // IB-XRC-14
            domain.members().remove_queue(self.number);
            let lane: Arc<dyn Lane> = domain.members().clone();
            cq.detach_lane(&lane);
        }
        // A message of XRC may have taken a receive and wait for its next packet.
        let domain = self.extended.as_ref().and_then(|extended| extended.domain.as_ref());
        let _quiet = domain.filter(|_| here).map(|domain| domain.members().exclude());
        // Posters come with the lock.
        let places = here.then(|| self.lock());
        // SAFETY: no queue pair has the queue, or takes in a packet for it at this instant; and a child of
        // fork only ever comes here.
        let back = unsafe { self.slots.give_back() };
        drop((places, _quiet));
        drop(back);
        self.leave();
        Ok(())
    }

    fn report(&self, reached: bool) {
        if reached {
            self.context().raise(AsyncEventKind::SrqLimitReached, self.cookie());
        }
    }

    /// Leaves everything that counts it, once.
    fn leave(&self) {
        if !self.retired.swap(true, Ordering::AcqRel) {
            self.context().device().shared_receive_queues.leave();
            self.domain.users().leave();
            if let Some(Extension { domain, cq }) = &self.extended {
                cq.users().leave();
                if let Some(domain) = domain {
                    domain.users().leave();
                }
            }
        }
    }

    fn lock(&self) -> LockGuard<'_, Places> {
        self.places.lock()
    }
}

impl Places {
    /// Whether an armed limit is passed; it is disarmed then.
    fn reached_limit(&mut self) -> bool {
        // IB-SRQ-4, RFC5042-6.4.3.1-1
        let reached = self.waiting.len() < self.limit as usize;
        if reached {
            self.limit = 0;
        }
        reached
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.leave();
    }
}
