//! Completion queues and completion channels.

mod channel;
mod lane;

pub use channel::CompletionChannel;
pub(crate) use lane::are_finds_told;
pub use lane::{Lane, tell_of_finds};

use crate::arming::{Arming, UnnotifiedKinds};
use crate::clock;
use crate::device::{Context, Seat};
use crate::error::{Error, Result};
use crate::event::AsyncEventKind;
use crate::fork::ForkGeneration;
use crate::inspect::{AnswerLine, Kind};
use crate::late::Late;
use crate::lock::{Lock, LockGuard};
use crate::memory::{RingAllocator, RingKind, Storage};
use crate::moderation::Moderation;
use crate::request::{Completion, Status};
use crate::users::DependentCount;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock, Weak};

/// Room that every queue has. perftest's latency tests ask for one entry, and with events they sometimes
/// leave one behind for a while.
const LEAST_ENTRIES: u32 = 16;

/// A completion queue (ibv_create_cq(3)). Thread-safe.
pub struct CompletionQueue {
    seat: Seat,
    channel: Option<Arc<CompletionChannel>>,
    ring: Lock<Ring>,
    /// Entries in the ring, readable without its lock.
    length: AtomicU32,
    arming: Arming,
    allocator: RingAllocator,
    moderation: Moderation,
    lanes: RwLock<Vec<(Arc<dyn Lane>, usize)>>,
    /// The first lane that lasts, and whether it is the only one: then polls take no lock.
    first: OnceLock<Arc<dyn Lane>>,
    is_alone: AtomicBool,
    /// [`OVERRUN`] and [`LATE`]: one look tells of both.
    unusual: AtomicU8,
    /// Completions that come late, if any may.
    late: Option<Box<Late>>,
    timestamps: AtomicBool,
    /// Polls in a row that found nothing; not exact when several threads poll.
    vain: AtomicU32,
    /// All polls; not exact when several threads poll.
    polls: AtomicU32,
    users: DependentCount,
    delivered: AtomicU32,
    cookie: AtomicU64,
    number: u32,
    /// Entries that fit, readable without the lock of the ring.
    room: AtomicU32,
    this: Weak<CompletionQueue>,
    born: ForkGeneration,
}

/// In [`CompletionQueue::unusual`]: completions were lost.
const OVERRUN: u8 = 1;
/// Completions may come late.
const LATE: u8 = 2;

struct Ring {
    entries: Storage<Completion>,
    first: usize,
    length: usize,
    unheard: UnnotifiedKinds,
    sleepers: u32,
}

/// A thread's sleep by [`CompletionQueue::begin_sleep`]. It ends when this is dropped; after the last one the
/// queue is not armed.
pub struct SleepGuard(Arc<CompletionQueue>);

impl Drop for SleepGuard {
    fn drop(&mut self) {
        self.0.end_sleep();
    }
}

fn ring_of(room: usize, allocator: &RingAllocator) -> Result<Storage<Completion>> {
    Storage::new(room, Completion::default, allocator, RingKind::CompletionQueue)
}

impl CompletionQueue {
    /// A queue with room for at least `entries` completions, reporting on `channel` when armed.
    ///
    /// # Errors
    /// EINVAL for no entries, or more than the device's `max_cqe`; ENOMEM when the device has `max_cq`
    /// queues.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<Self>> {
        Self::new_in(context, entries, channel, None)
    }

    /// A queue with its completions in memory of `allocator`, otherwise as of [`CompletionQueue::new`].
    /// `allocator` has the memory back when [`CompletionQueue::retire`] succeeds.
    ///
    /// # Errors
    /// As [`CompletionQueue::new`]; ENOMEM also where `allocator` has none.
    pub fn new_in(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        allocator: RingAllocator,
    ) -> Result<Arc<Self>> {
        context.born.check()?;
        let ring = ring_of(Self::check_size(context, entries)?, &allocator)?;
        // RFC5042-6.4.1-1, RFC5040-8.1.2-1
        let most = context.attributes().max_cq;
        if !context.device().completion_queues.enter_below(most) {
            return Err(Error::exhausted(format!("all {most} completion queues of the device are in use")));
        }
        if let Some(channel) = &channel {
            channel.users.enter();
        }
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let late = Late::of_queue();
        let made = Arc::new_cyclic(|this| Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            room: AtomicU32::new(ring.len() as u32),
            seat: Seat::take(context),
            channel,
            ring: Lock::new(Ring {
                entries: ring,
                first: 0,
                length: 0,
                unheard: UnnotifiedKinds::default(),
                sleepers: 0,
            }),
            length: AtomicU32::new(0),
            arming: Arming::default(),
            allocator,
            moderation: Moderation::default(),
            lanes: RwLock::default(),
            first: OnceLock::new(),
            is_alone: AtomicBool::new(false),
            unusual: AtomicU8::new(if late.is_some() { LATE } else { 0 }),
            late,
            timestamps: AtomicBool::new(false),
            vain: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            users: DependentCount::new(),
            delivered: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
            this: this.clone(),
            born: ForkGeneration::now(),
        });
        context.engine().inspection.completion_queues().add(Arc::downgrade(&made));
        Ok(made)
    }

    // RFC5040-8.1.2-1
    fn check_size(context: &Context, entries: u32) -> Result<usize> {
        let most = context.attributes().max_cqe;
        if entries == 0 || entries > most {
            return Err(Error::invalid(format!(
                "a completion queue of {entries} entries: 1 to {most} are allowed"
            )));
        }
        Ok(entries.max(LEAST_ENTRIES).next_power_of_two().min(most) as usize)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.seat.context()
    }

    /// The channel it reports on.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Room, in completions.
    pub fn capacity(&self) -> u32 {
        self.lock().entries.len() as u32
    }

    /// Changes the room (ibv_resize_cq(3)); EINVAL if more completions wait than would fit.
    pub fn resize(&self, entries: u32) -> Result<()> {
        self.born.check()?;
        let mut new = ring_of(Self::check_size(self.seat.context(), entries)?, &self.allocator)?;
        let late = self.late().map_or(0, Late::count);
        let mut ring = self.lock();
        // The number that the program asked for decides, though the ring may have more room.
        let waiting = ring.length + late;
        if waiting > entries as usize {
            return Err(Error::invalid(format!(
                "{waiting} completions wait: they do not fit into {entries} entries"
            )));
        }
        for (index, entry) in new.iter_mut().enumerate().take(ring.length) {
            *entry = ring.entries[(ring.first + index) % ring.entries.len()];
        }
        self.room.store(new.len() as u32, Ordering::Relaxed);
        let old = std::mem::replace(&mut ring.entries, new);
        ring.first = 0;
        drop(ring);
        // The program may have it back.
        drop(old);
        Ok(())
    }

    /// The completion queue's number in the process.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The queue as another process is told of it ([`crate::inspect`]); nothing once the program has
    /// destroyed it.
    pub(crate) fn describe(&self) -> Option<String> {
        (!self.seat.is_left()).then(|| {
            AnswerLine::of(Kind::CompletionQueue)
                .with("device", self.seat.context().device().name())
                .with("number", self.number)
                .with("waiting", self.length.load(Ordering::Relaxed))
                .with("room", self.room.load(Ordering::Relaxed))
                .with("users", self.users.count())
                .text()
        })
    }

    /// A word of the front end: the C libraries keep the address of their structure here.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    /// Sets [`CompletionQueue::cookie`].
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Release);
    }

    /// From now on completions carry the time when they were reported (ibv_create_cq_ex(3)).
    pub fn want_timestamps(&self) {
        self.timestamps.store(true, Ordering::Relaxed);
    }

    /// Events that [`CompletionChannel::wait`] has returned for this queue.
    pub fn delivered_events(&self) -> u32 {
        self.delivered.load(Ordering::Acquire)
    }

    /// Queue pairs and shared receive queues that complete here.
    pub fn users(&self) -> &DependentCount {
        &self.users
    }

    /// Takes up to `most` completions, oldest first (ibv_poll_cq(3)). When none waits, takes in first the
    /// packets that have arrived on the queue pairs that complete here. Never waits, allocates or logs.
    ///
    /// # Errors
    /// ENODEV in a child of fork; EIO once the queue has overrun and its remaining entries are taken.
    #[inline]
    pub fn poll(&self, most: usize, mut take: impl FnMut(&Completion)) -> Result<usize> {
        if !self.born.is_here() {
            return Err(Error::forked());
        }
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.length.load(Ordering::Acquire) == 0 {
            let worked = self.progress();
            if self.length.load(Ordering::Acquire) == 0 {
                if worked {
                    self.settle();
                }
                if self.has_overrun() {
                    return Err(Error::new(
                        libc::EIO,
                        "the completion queue has overrun: completions were lost",
                    ));
                }
                self.found_nothing();
                return Ok(0);
            }
        }
        self.vain.store(0, Ordering::Relaxed);
        let mut ring = self.lock();
        let Ring { entries, first, length, unheard, .. } = &mut *ring;
        let count = most.min(*length);
        for _ in 0..count {
            take(&entries[*first]);
            *first = if *first + 1 == entries.len() { 0 } else { *first + 1 };
        }
        *length -= count;
        if *length == 0 {
            unheard.forget();
        }
        self.length.store(*length as u32, Ordering::Release);
        LockGuard::release(ring);
        if are_finds_told() {
            self.found();
        }
        Ok(count)
    }

    /// A program whose last polls found nothing lets other threads run now and then. On a busy machine the
    /// peer may be among them, and would otherwise wait for the end of this thread's time slice. While
    /// messages come and go it does not yield.
    #[inline]
    fn found_nothing(&self) {
        const POLLS_BEFORE_YIELD: u32 = 256;
        const POLLS_PER_YIELD: u32 = 32;
        let vain = self.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.vain.store(vain, Ordering::Relaxed);
        if vain >= POLLS_BEFORE_YIELD && vain.is_multiple_of(POLLS_PER_YIELD) {
            std::thread::yield_now();
        }
    }

    /// A number that another poll changes.
    #[inline]
    pub fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Whether the program has armed the queue, and no completion has raised the event since: the program may
    /// be asleep.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.arming.is_armed()
    }

    /// Whether completions wait that have arrived already.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.length.load(Ordering::Acquire) > 0
    }

    /// How many completions wait that have arrived already.
    pub fn waiting(&self) -> u32 {
        self.length.load(Ordering::Acquire)
    }

    /// Whether the program has seen that it is empty: it has dealt with all that it took before, or means to
    /// leave it.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0 && self.vain.load(Ordering::Relaxed) != 0
    }

    /// Asks for one event on the channel at the next completion, or the next solicited or failed one
    /// (ibv_req_notify_cq(3)). As with adapters, one that is in the queue already counts if no event has told
    /// of it: programs such as UCX sleep without a last poll.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        self.born.check()?;
        let unheard = self.arming.arm(&mut self.lock().unheard, solicited_only);
        self.tell_of(unheard);
        self.each_lane(|lane| lane.arm());
        Ok(())
    }

    /// No thread waits for the event that the queue is armed for. It may come nevertheless, if a completion
    /// has come at this instant.
    pub fn disarm(&self) {
        // In a child of fork, no thread may have let go of the lock.
        if self.born.is_here() {
            let ring = self.lock();
            // A thread in its sleep on the lane's descriptors waits for the event, too.
            if ring.sleepers == 0 {
                self.arming.disarm();
            }
        }
    }

    /// The owner of the queue is a part of this engine and no program: its polls serve one-sided requests,
    /// too, and its threads may sleep on the lane's descriptors.
    pub fn serve(&self) {
        self.each_lane(|lane| lane.serve());
    }

    /// Arms the queue for a thread that sleeps until its channel *or one of its
    /// [descriptors](CompletionQueue::descriptors)* is ready, and then polls. No other thread need take in
    /// packets that arrive there.
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn begin_sleep(self: &Arc<Self>) -> Result<SleepGuard> {
        self.born.check()?;
        let mut ring = self.lock();
        ring.sleepers += 1;
        let unheard = self.arming.arm(&mut ring.unheard, false);
        drop(ring);
        self.tell_of(unheard);
        self.each_lane(|lane| lane.begin_sleep());
        Ok(SleepGuard(self.clone()))
    }

    fn end_sleep(&self) {
        let mut ring = self.lock();
        ring.sleepers -= 1;
        if ring.sleepers == 0 {
            self.arming.disarm();
        }
        drop(ring);
        self.each_lane(|lane| lane.end_sleep());
    }

    /// Appends the descriptors at which packets arrive, each with the events to wait for.
    pub fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        self.each_lane(|lane| lane.descriptors(list));
    }

    fn tell_of(&self, unheard: bool) {
        if let (true, Some(channel)) = (unheard, &self.channel) {
            channel.events.push(self.this.clone());
        }
    }

    /// Adds a completion. `solicited`: its sender asked for attention. Overrunning loses it, raises the event
    /// and puts the queue into error.
    pub fn push(&self, completion: Completion, solicited: bool) {
        self.add(completion, solicited);
    }

    /// Adds one that is late no more.
    pub(crate) fn give(&self, completion: Completion, solicited: bool) {
        self.add_unless(OVERRUN, completion, solicited);
    }

    /// Adds a completion, as [`CompletionQueue::push`] does, but in line: the fields of the completion are
    /// written to their place and nowhere else.
    #[inline(always)]
    pub(crate) fn add(&self, completion: Completion, solicited: bool) {
        self.add_unless(OVERRUN | LATE, completion, solicited);
    }

    #[inline(always)]
    fn add_unless(&self, unusual: u8, completion: Completion, solicited: bool) {
        let mut ring = self.lock();
        let Ring { entries, first, length, unheard, .. } = &mut *ring;
        let place = *first + *length;
        let room = entries.len();
        let place = if place >= room { place - room } else { place };
        // IB-QP-36
        // RFC5040-8.1.1-3
        // After a loss nothing follows, though there may be room again: the program must not miss the gap.
        let is_unusual = *length == room || self.unusual.load(Ordering::Relaxed) & unusual != 0;
        let Some(entry) = entries.get_mut(place).filter(|_| !is_unusual) else {
            // Field by field: handed on as a whole, it would have to lie in memory in the usual case, too.
            let completion = Completion {
                wr_id: completion.wr_id,
                status: completion.status,
                opcode: completion.opcode,
                flags: completion.flags,
                byte_length: completion.byte_length,
                immediate: completion.immediate,
                queue_pair: completion.queue_pair,
                source_queue_pair: completion.source_queue_pair,
                vendor_error: completion.vendor_error,
                service_level: completion.service_level,
                path_bits: completion.path_bits,
                timestamp: completion.timestamp,
            };
            return self.add_unusually(unusual, ring, completion, solicited);
        };
        *entry = completion;
        if self.timestamps.load(Ordering::Relaxed) {
            entry.timestamp = clock::device();
        }
        *length += 1;
        self.length.store(*length as u32, Ordering::Release);
        // IB-QP-37, IB-RC-RSP-45
        // RFC5040-5.3-9
        let has_failed = completion.status != Status::Success;
        let wakes = self.arming.completed(unheard, solicited || has_failed);
        LockGuard::release(ring);
        if wakes {
            self.wake(has_failed);
        }
    }

    /// A completion that may be late, or has no place.
    #[cold]
    #[inline(never)]
    fn add_unusually(&self, unusual: u8, ring: LockGuard<'_, Ring>, completion: Completion, solicited: bool) {
        match &self.late {
            Some(late) if unusual & LATE != 0 && !self.has_overrun() => {
                drop(ring);
                late.comes(self, completion, solicited);
            }
            _ => self.lose(ring),
        }
    }

    fn has_overrun(&self) -> bool {
        self.unusual.load(Ordering::Relaxed) & OVERRUN != 0
    }

    /// A completion has no place, those that are late counted.
    pub(crate) fn overrun(&self) {
        self.lose(self.lock());
    }

    /// A completion has no place: it is lost.
    #[cold]
    fn lose(&self, ring: LockGuard<'_, Ring>) {
        let room = ring.entries.len();
        let first = self.unusual.fetch_or(OVERRUN, Ordering::Relaxed) & OVERRUN == 0;
        drop(ring);
        if first {
            crate::log!(
                Warn,
                "a completion queue of {room} entries overran: poll more often, or make it larger"
            );
            self.seat.context().raise(AsyncEventKind::CqError, self.cookie());
        }
    }

    /// A completion has come that the program has armed the queue for.
    #[cold]
    fn wake(&self, has_failed: bool) {
        // A failure does not wait to be gathered.
        if has_failed || !self.moderation.holds(&self.this) {
            self.tell();
        }
    }

    /// Reports an event, if the queue is armed.
    pub(crate) fn tell(&self) {
        if let Some(channel) = &self.channel
            && self.arming.take()
        {
            channel.events.push(self.this.clone());
        }
    }

    /// From now on an armed queue reports only after `count` completions, or `period` microseconds after the
    /// first of them (ibv_modify_cq(3)). 0 means that this one of the two does not count. Failed requests are
    /// reported at once.
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        self.born.check()?;
        self.moderation.set(count, period);
        Ok(())
    }

    pub(crate) fn moderation(&self) -> &Moderation {
        &self.moderation
    }

    /// The late completions of this queue. `None` where no completion may be late.
    pub(crate) fn late(&self) -> Option<&Late> {
        self.late.as_deref()
    }

    /// Itself.
    pub(crate) fn this(&self) -> Weak<Self> {
        self.this.clone()
    }

    /// Entries that fit.
    pub(crate) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed) as usize
    }

    /// Whether requests of a queue pair have succeeded whose completions the program has not polled.
    pub(crate) fn has_results_of(&self, number: u32) -> bool {
        if self.late().is_some_and(|late| late.has_results_of(number)) {
            return true;
        }
        let ring = self.lock();
        let room = ring.entries.len();
        (0..ring.length).any(|index| {
            let entry = &ring.entries[(ring.first + index) % room];
            entry.queue_pair == number && entry.status == Status::Success
        })
    }

    /// Forgets the completions of a queue pair that is destroyed or reset.
    pub(crate) fn forget_queue_pair(&self, number: u32) {
        self.withdraw(|completion| completion.queue_pair == number, |_| ());
    }

    /// Takes out the completions that `wanted` picks, wherever they stand: those of a queue that ends, which
    /// the program is not to see.
    pub fn withdraw(&self, wanted: impl Fn(&Completion) -> bool, mut taken: impl FnMut(&Completion)) {
        if let Some(late) = self.late() {
            late.withdraw(&wanted, &mut taken);
        }
        let mut ring = self.lock();
        let (first, length, room) = (ring.first, ring.length, ring.entries.len());
        let mut kept = 0;
        for index in 0..length {
            let entry = ring.entries[(first + index) % room];
            if wanted(&entry) {
                taken(&entry);
            } else {
                ring.entries[(first + kept) % room] = entry;
                kept += 1;
            }
        }
        ring.length = kept;
        if kept == 0 {
            ring.unheard.forget();
        }
        self.length.store(kept as u32, Ordering::Release);
    }

    /// The program destroys the queue (ibv_destroy_cq(3)). Events that the program has not fetched are
    /// withdrawn. Channel, context and device may go, though a connection that is still ending may hold the
    /// queue a little longer.
    ///
    /// # Errors
    /// EBUSY while queue pairs complete here.
    pub fn retire(&self) -> Result<()> {
        if self.born.is_here() && self.users.count() > 0 {
            return Err(Error::busy(format!(
                "{} queues still complete on the completion queue: destroy them first",
                self.users.count()
            )));
        }
        if let Some(late) = self.late().filter(|_| self.born.is_here()) {
            late.clear();
        }
        // In a child of fork a thread may have it that is not there.
        let ring = if self.born.is_here() { Some(self.lock()) } else { self.ring.try_lock() };
        let back = ring.map(|mut ring| {
            // No poll gets blank entries while the program waits for acknowledgements.
            ring.length = 0;
            ring.unheard.forget();
            self.length.store(0, Ordering::Release);
            // SAFETY: the lock.
            unsafe { ring.entries.give_back() }
        });
        // The program's allocator, without the lock.
        drop(back);
        self.leave();
        Ok(())
    }

    /// Leaves everything that counts it, once. A queue that no program sees does so at once.
    pub(crate) fn leave(&self) {
        if !self.seat.leave() {
            return;
        }
        self.context().device().completion_queues.leave();
        if let Some(channel) = &self.channel {
            if self.born.is_here() {
                channel.events.withdraw(|event| std::ptr::eq(event.as_ptr(), self));
            }
            channel.users.leave();
        }
    }

    fn lock(&self) -> LockGuard<'_, Ring> {
        self.ring.lock()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.leave();
    }
}
