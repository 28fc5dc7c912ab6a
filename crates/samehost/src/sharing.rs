//! The target's side of operations that processes of this host carry out by themselves, in memory of ours.
//!
//! It begins with an ordinary request. The engine that serves it, from a process of this host, asks to have
//! its memory shared ([`Sharing::ask`]). So does one that lends the other process long payloads of the same
//! memory ([`crate::lending`]): the other process copies shared memory without the kernel, with any rights of
//! the key. Its key and the queue pair are published in a table ([`adverb_local::Table`]), of which the other
//! process is told. From then on it looks there, and does without us:
//!
//! - For memory that it has no map of, it has the kernel copy ([`adverb_core::memory::process`]). Any key can
//!   be published for that, and is at once.
//! - Pages that have been moved to where others can map them ([`adverb_core::memory::moved`]) it copies by
//!   itself. A thread of the program moves them, when it comes by. No process copies to pages that are being
//!   moved: their keys are withdrawn before, and published anew.
//!
//! A program whose thread sleeps from then on comes by no more. So when a queue pair gets a peer that lives
//! on this host, the thread that connects it moves the memory that this peer may reach
//! ([`Sharing::foresee`]), as far as that is short.
//!
//! Entries are taken back before they change: a key by the key table, a queue pair by its link. Both wait
//! until no process uses the entry that announced it before.

use crate::bell::ForkClosedFd;
use crate::lock;
use crate::neighbour::{Neighbour, NeighbourLink};
use crate::shown::to_words;
use adverb_core::engine::{self, Engine};
use adverb_core::error::Error;
use adverb_core::fork::ForkGeneration;
use adverb_core::log;
use adverb_core::memory::moved::{self, Place, Refusal};
use adverb_core::memory::ways::{Facts, Memory, Together};
use adverb_core::memory::{Access, Keys, PublishedBytes, Publisher};
use adverb_core::qp::Queues;
use adverb_core::reactor::{Readiness, Source};
use adverb_core::region::MemoryRegion;
use adverb_local::announce::barrier;
use adverb_local::table::PAIRS;
use adverb_local::{Kind, Table};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long the end of a registration waits for a process that says it is in the middle of an operation: one
/// that is stopped there, or lies. Its later writes go to memory that is not registered any more. Each time
/// the limit is half as long, and after [`MOST_DELAYS`] times that process is a peer no more.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(1);
const MOST_DELAYS: u32 = 4;
/// How long a thread of the program, on its way to move pages, waits for other processes to end their use of
/// them. After this time, the pages stay, and so does the use.
const MOMENT: Duration = Duration::from_millis(3);
/// Requests to share memory that wait at once.
const MOST_WAITING: usize = 4096;

/// Regions that are moved before a peer has asked: so many of a protection domain, and so many bytes of them
/// for a connection, in about 13 ms.
const MOST_FORESEEN: usize = 64;
const MOST_FORESEEN_BYTES: u64 = 16 << 20;

/// The keys and queue pairs of this process that processes of this host may use by themselves, and requests
/// for more. Thread-safe.
#[derive(Default)]
pub struct Sharing {
    table: OnceLock<Option<Arc<SharedTable>>>,
    waiting: Mutex<Waiting>,
    later: Mutex<Later>,
    /// Processes that memory may be shared with.
    neighbours: Mutex<Vec<Weak<dyn NeighbourLink>>>,
    /// The published regions. Held by the thread that publishes or moves.
    shown: Mutex<Vec<PublishedRegion>>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<ShareRequest>,
    /// A thread is at it.
    is_served: bool,
}

/// Memory that a process of this host has used, or that is lent to it.
struct ShareRequest {
    with: Weak<dyn NeighbourLink>,
    region: Weak<MemoryRegion>,
    is_lent: bool,
}

impl ShareRequest {
    fn is_alive(&self) -> bool {
        self.with.strong_count() > 0 && self.region.strong_count() > 0
    }
}

/// What waits for a thread of the program. It may never come: one in rsockets does not.
#[derive(Default)]
struct Later {
    requests: Vec<ShareRequest>,
    /// Regions that a peer may reach, which no peer has used yet.
    foreseen: Vec<Weak<MemoryRegion>>,
    /// The next thread that comes by looks here.
    is_called: bool,
}

/// A queue pair that is published, until dropped.
pub struct PublishedPair {
    book: Arc<SharedTable>,
    index: u32,
}

/// A region that is published.
#[derive(Clone)]
struct PublishedRegion {
    region: Weak<MemoryRegion>,
    /// Where the region is to be mapped from, if it can be.
    place: Option<Place>,
}

impl PublishedRegion {
    fn publish(&self, keys: &Keys) -> bool {
        let Some(region) = self.region.upgrade() else { return false };
        keys.publish(region.key(), self.place.as_ref(), || !region.has_ended())
    }

    fn withdraw(&self, keys: &Keys) -> bool {
        self.region.upgrade().is_none_or(|region| region.has_ended() || keys.withdraw(region.key()))
    }
}

/// What moves pages of regions.
type Share = fn(&[Arc<MemoryRegion>]) -> Vec<Result<Place, Refusal>>;

/// Memory of a region: its first address, and its length.
type Bytes = (usize, u64);

fn bytes_of(region: &MemoryRegion) -> Bytes {
    (region.address(), region.length())
}

/// Whether two have bytes in common.
fn overlap(one: Bytes, other: Bytes) -> bool {
    let end = |(address, length): Bytes| (address as u64).saturating_add(length);
    (one.0 as u64) < end(other) && (other.0 as u64) < end(one)
}

/// The table of published entries.
struct SharedTable {
    sharing: Weak<Sharing>,
    _noted: ForkClosedFd,
    table: Table,
    pairs: Mutex<Pairs>,
}

/// Which of the places for queue pairs are free.
#[derive(Default)]
struct Pairs {
    free: Vec<u32>,
    used: u32,
}

/// The rights that a queue pair gives its peer.
pub struct Terms {
    /// The name that the peer looks it up by: its number, which a transport may tell from those of others by
    /// a bit.
    pub number: u32,
    /// The number of the peer's queue pair.
    pub peer: u32,
    /// The queue pair's protection domain.
    pub domain: u32,
    /// Bits of [`adverb_core::memory::Access`].
    pub access: u32,
}

impl Sharing {
    /// The [`Sharing`] of this process. All transports have the same one, because a process has one table of
    /// keys. A child of fork has another one.
    pub fn of_process() -> Arc<Self> {
        static OWN: AtomicPtr<(ForkGeneration, Arc<Sharing>)> = AtomicPtr::new(std::ptr::null_mut());
        let known = OWN.load(Ordering::Acquire);
        // SAFETY: null, or leaked below and never freed.
        if let Some((born, sharing)) = unsafe { known.as_ref() }
            && born.is_here()
        {
            return sharing.clone();
        }
        let made = Box::into_raw(Box::new((ForkGeneration::now(), Arc::default())));
        let own = match OWN.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
        // SAFETY: leaked here or by another thread, and never freed.
        unsafe { &*own }.1.clone()
    }

    /// A queue pair has served a one-sided request that another process has sent it about memory of ours:
    /// before long that process does without us. It is published, if it is not (`published`) and anything
    /// else is; and the memory is shared.
    #[inline]
    pub fn served(
        self: &Arc<Self>,
        with: &dyn NeighbourLink,
        queues: &Queues,
        key: u32,
        published: &mut Option<PublishedPair>,
        terms: impl FnOnce() -> Terms,
    ) {
        let neighbour = with.neighbour();
        if !neighbour.may_share() {
            return;
        }
        if published.is_none() {
            *published = self.publish(&terms());
        }
        let keys = &queues.engine.keys;
        let is_news = || {
            !neighbour.has_been_told() && keys.is_published(key)
                || !neighbour.knows_what_to_map() && keys.is_mapped(key)
        };
        if keys.asks(key) || is_news() {
            self.ask(with, queues, key, false);
        }
    }

    /// Memory may be shared with another process from now on.
    pub fn enter(&self, with: Weak<dyn NeighbourLink>) {
        lock(&self.neighbours).push(with);
    }

    /// Not any more.
    pub fn leave(&self, with: &dyn NeighbourLink) {
        lock(&self.neighbours).retain(|known| !std::ptr::addr_eq(known.as_ptr(), with));
    }

    fn neighbours(&self) -> Vec<Arc<dyn NeighbourLink>> {
        lock(&self.neighbours).iter().filter_map(Weak::upgrade).collect()
    }

    /// Another process has used memory of ours, or it is lent to it: it is shared with it, if that can be,
    /// before long.
    #[cold]
    pub fn ask(self: &Arc<Self>, with: &dyn NeighbourLink, queues: &Queues, key: u32, is_lent: bool) {
        let Some(region) = queues.region(key) else { return };
        {
            let mut waiting = lock(&self.waiting);
            if waiting.requests.len() == MOST_WAITING {
                queues.engine.keys.may_ask_again(key);
                return;
            }
            waiting.requests.push_back(ShareRequest {
                with: with.this(),
                region: Arc::downgrade(&region),
                is_lent,
            });
            if std::mem::replace(&mut waiting.is_served, true) {
                return;
            }
        }
        if let Err(error) = Soon::call(self) {
            log!(Warn, "memory is not shared with other processes: {error}");
            lock(&self.waiting).is_served = false;
        }
    }

    /// A queue pair has got a peer in another process of this host. The thread that connects moves what the
    /// peer may reach once it comes by a safe point, which is soon: later it may sleep for good. Each region
    /// once: whether that is refused or not, the peer asks when it uses it.
    pub fn foresee(self: &Arc<Self>, queues: &Queues) {
        let is_straight = Together::now().is_straight();
        let Some(regions) = is_straight.then(|| queues.regions_if_few(MOST_FORESEEN)).flatten() else {
            return;
        };
        let is_worth_it = |region: &&Arc<MemoryRegion>| {
            let is_free = matches!(region.memory(), Memory::Own(_) | Memory::Unmoved(Refusal::Later));
            is_free && region.access().intersects(Access::REMOTE)
        };
        let mut room = MOST_FORESEEN_BYTES;
        let has_room = |region: &&Arc<MemoryRegion>| {
            let costs = if region.may_be_moved() { region.length() } else { 0 };
            let fits = costs <= room;
            room -= if fits { costs } else { 0 };
            fits
        };
        let regions = regions.iter().filter(is_worth_it).filter(has_room).filter(|region| region.foresee());
        let regions: Vec<_> = regions.map(Arc::downgrade).collect();
        if regions.is_empty() {
            return;
        }
        self.call_program(|later| {
            later.foreseen.retain(|region| region.strong_count() > 0);
            let room = MOST_FORESEEN.saturating_sub(later.foreseen.len());
            later.foreseen.extend(regions.into_iter().take(room));
        });
    }

    /// Adds to what the next thread of the program does that comes by a safe point.
    fn call_program(self: &Arc<Self>, add: impl FnOnce(&mut Later)) {
        {
            let mut later = lock(&self.later);
            add(&mut later);
            if std::mem::replace(&mut later.is_called, true) {
                return;
            }
        }
        let Ok(engine) = engine::engine() else { return };
        let this = self.clone();
        moved::at_safe_point(&engine.safe_points, Box::new(move || this.come_by()));
    }

    /// A thread of the program is at a safe point.
    fn come_by(self: &Arc<Self>) {
        let Later { requests, foreseen, .. } = std::mem::take(&mut *lock(&self.later));
        let mut shown = lock(&self.shown);
        self.move_ahead(&foreseen, &mut shown);
        for request in requests {
            self.grant(&request, Some(moved::share), &mut shown);
        }
    }

    /// Moves regions that no peer has used yet, and publishes those, and the engine's own.
    fn move_ahead(self: &Arc<Self>, foreseen: &[Weak<MemoryRegion>], shown: &mut Vec<PublishedRegion>) {
        // Where others are in the same pages, the move waits until they ask.
        let is_free = |region: &Arc<MemoryRegion>| {
            let is_here = |shown: &PublishedRegion| {
                shown.region.upgrade().is_some_and(|it| overlap(bytes_of(&it), bytes_of(region)))
            };
            region.place().is_none() && !shown.iter().any(is_here)
        };
        let regions = foreseen.iter().filter_map(Weak::upgrade);
        let (own, regions): (Vec<_>, Vec<_>) =
            regions.partition(|region| matches!(region.memory(), Memory::Own(_)));
        let regions: Vec<_> = regions.into_iter().filter(is_free).collect();
        let Ok(engine) = engine::engine() else { return };
        let moved = if regions.is_empty() { Vec::new() } else { moved::share(&regions) };
        let moved = regions.iter().zip(moved.into_iter().map(memory_of));
        for (region, memory) in own.iter().map(|own| (own, own.memory())).chain(moved) {
            let choice = Facts::of(memory, false).choose();
            // Where nothing is mapped, it waits until they ask.
            if let Some(place) = choice.way.place() {
                region.settle(choice);
                self.show(engine, region, Some(place), None, shown);
            }
        }
    }

    /// Grants all requests: in the background thread as far as the kernel's copy goes, and the rest in a
    /// thread of the program's.
    fn serve(self: &Arc<Self>) {
        loop {
            let request = {
                let mut waiting = lock(&self.waiting);
                let request = waiting.requests.pop_front();
                waiting.is_served = request.is_some();
                request
            };
            let Some(request) = request else { return };
            // A thread of the program that moves pages meanwhile waits for the background thread to keep
            // still.
            let Ok(mut shown) = self.shown.try_lock() else {
                lock(&self.waiting).requests.push_front(request);
                if Soon::call(self).is_err() {
                    lock(&self.waiting).is_served = false;
                }
                return;
            };
            self.grant(&request, None, &mut shown);
            drop(shown);
            let is_done = |region: Arc<MemoryRegion>| {
                !region.may_be_moved() || region.look_at_memory() == Memory::Common
            };
            if request.region.upgrade().is_none_or(is_done) {
                continue;
            }
            self.call_program(|later| {
                if later.requests.len() >= MOST_WAITING {
                    later.requests.retain(ShareRequest::is_alive);
                }
                if later.requests.len() < MOST_WAITING {
                    later.requests.push(request);
                }
            });
        }
    }

    /// Publishes a region: mapped, if `share` moves its pages, else for the kernel's copy.
    fn grant(
        self: &Arc<Self>,
        request: &ShareRequest,
        share: Option<Share>,
        shown: &mut Vec<PublishedRegion>,
    ) {
        let (Some(with), Some(region)) = (request.with.upgrade(), request.region.upgrade()) else { return };
        let Ok(engine) = engine::engine() else { return };
        let keys = &engine.keys;
        shown.retain(|shown| shown.region.upgrade().is_some_and(|region| !region.has_ended()));
        // Processes that have the kernel copy to the same pages end that before they are moved.
        let mut others = Vec::new();
        let mut memory = region.look_at_memory();
        if let Some(share) = share.filter(|_| memory == Memory::Unmoved(Refusal::Later)) {
            with.neighbour().loans().tidy();
            let moved;
            // No other process is disturbed for a region that cannot be moved.
            (others, moved) = match moved::might(&region) {
                Ok(()) => share_alone(shown, keys, bytes_of(&region), &mut || {
                    share(std::slice::from_ref(&region)).pop().unwrap_or(Err(Refusal::Busy))
                }),
                Err(refusal) => (Vec::new(), Err(refusal)),
            };
            // A peer that wants to write there may be served in other ways.
            if moved.is_err_and(|refusal| refusal.may_pass() || request.is_lent) {
                keys.may_ask_again(region.key());
            }
            memory = memory_of(moved);
        }
        let choice = Facts::of(memory, request.is_lent).choose();
        // A process that is lent it only fetches it otherwise: this says nothing of processes that reach it
        // by its key.
        if choice.way.is_straight() || !request.is_lent {
            region.settle(choice);
        }
        if choice.way.is_straight() {
            self.show(engine, &region, choice.way.place(), Some(&*with), shown);
        }
        // As they were, unless it is this region.
        for other in &others {
            other.publish(keys);
        }
    }

    /// Publishes a region, and tells the other process of it, by `with`. Others that know of our memory hear
    /// where to map it from.
    fn show(
        self: &Arc<Self>,
        engine: &'static Engine,
        region: &Arc<MemoryRegion>,
        place: Option<Place>,
        with: Option<&dyn NeighbourLink>,
        shown: &mut Vec<PublishedRegion>,
    ) {
        let Some(book) = self.book(engine) else { return };
        let one = PublishedRegion { region: Arc::downgrade(region), place };
        if !one.publish(&engine.keys) {
            return;
        }
        shown.retain(|shown| !shown.region.ptr_eq(&one.region));
        shown.push(one);
        if let Some(with) = with {
            with.tell(&book.table, place.as_ref());
        }
        if place.is_some() {
            // Others that have the key have the kernel copy until they know where to map it from.
            let others = self.neighbours();
            let told = others.iter().filter(|other| other.neighbour().has_been_told());
            told.for_each(|other| other.tell(&book.table, place.as_ref()));
        }
    }

    fn book(self: &Arc<Self>, engine: &'static Engine) -> Option<&Arc<SharedTable>> {
        let make = || match Table::create(engine.keys.secret().map(u64::from)) {
            Ok(table) => {
                let _noted = ForkClosedFd::of(table.descriptor().as_raw_fd());
                let (sharing, pairs) = (Arc::downgrade(self), Mutex::default());
                let book = Arc::new(SharedTable { sharing, _noted, table, pairs });
                engine.keys.set_publisher(book.clone());
                Some(book)
            }
            Err(error) => {
                log!(Warn, "memory is not shared with other processes: {error}");
                None
            }
        };
        self.table.get_or_init(make).as_ref()
    }

    /// Publishes a queue pair, if anything is published.
    pub fn publish(&self, terms: &Terms) -> Option<PublishedPair> {
        let book = self.table.get()?.as_ref()?;
        let index = lock(&book.pairs).take()?;
        let Terms { number, peer, domain, access } = *terms;
        let words = [u64::from(peer), u64::from(domain), u64::from(access), 0, 0, 0, 0];
        // The old count is of the queue pair that had the place before.
        book.table.tell_taken(index as usize, 0);
        book.table.publish(Kind::Pair, index as usize, number, words);
        Some(PublishedPair { book: book.clone(), index })
    }
}

/// The state of memory that was to be moved.
fn memory_of(moved: Result<Place, Refusal>) -> Memory {
    moved.map_or_else(Memory::Unmoved, Memory::Moved)
}

/// Takes back all that is published of some memory, and has it moved if no process is in its pages any more.
/// Returns the regions to be published again.
fn share_alone(
    shown: &[PublishedRegion],
    keys: &Keys,
    bytes: Bytes,
    share: &mut dyn FnMut() -> Result<Place, Refusal>,
) -> (Vec<PublishedRegion>, Result<Place, Refusal>) {
    let of_same_pages =
        |shown: &&PublishedRegion| shown.region.upgrade().is_some_and(|it| overlap(bytes_of(&it), bytes));
    let others: Vec<_> = shown.iter().filter(of_same_pages).cloned().collect();
    let are_free = others.iter().all(|other| other.withdraw(keys));
    (others, if are_free { share() } else { Err(Refusal::Busy) })
}

/// The background thread looks at requests.
struct Soon(Arc<Sharing>);

impl Soon {
    /// A moment that a thread of the program may need.
    const AFTER: Duration = Duration::from_micros(20);

    fn call(sharing: &Arc<Sharing>) -> Result<(), Error> {
        engine::engine()?.reactor.set_timer(Self::AFTER, Arc::new(Self(sharing.clone()))).map(|_| ())
    }
}

impl Source for Soon {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.serve();
    }
}

impl Pairs {
    fn take(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = self.used;
        let is_there = (index as usize) < PAIRS;
        self.used += u32::from(is_there);
        is_there.then_some(index)
    }
}

impl PublishedPair {
    /// Says how much the queue pair has taken in from its peer ([`crate::Direct::has_taken`]).
    #[inline]
    pub fn tell_taken(&self, count: u64) {
        self.book.table.tell_taken(self.index as usize, count);
    }
}

impl Drop for PublishedPair {
    fn drop(&mut self) {
        self.book.table.withdraw(Kind::Pair, self.index as usize);
        // A place that another process may still use is not used again.
        if self.book.wait(Kind::Pair, self.index, long) {
            lock(&self.book.pairs).free.push(self.index);
        }
    }
}

/// How long a process is waited for, and whether that was its last chance.
struct WaitLimit {
    length: Duration,
    is_last: bool,
}

/// At the end of a registration.
fn long(neighbour: &Neighbour) -> WaitLimit {
    WaitLimit { length: withdrawal_timeout(neighbour.delays()), is_last: true }
}

/// The time limit for a process that has exceeded it `delays` times.
fn withdrawal_timeout(delays: u32) -> Duration {
    WITHDRAWAL_TIMEOUT / (1 << delays.min(MOST_DELAYS))
}

/// Before pages are moved.
fn short(_: &Neighbour) -> WaitLimit {
    WaitLimit { length: MOMENT, is_last: false }
}

impl SharedTable {
    /// The processes that know of the table. Runs a barrier: afterwards each of them has announced its use of
    /// the withdrawn entry, or sees that the entry is withdrawn.
    fn told(&self) -> Vec<Arc<dyn NeighbourLink>> {
        let Some(sharing) = self.sharing.upgrade() else { return Vec::new() };
        let mut told = sharing.neighbours();
        told.retain(|with| with.neighbour().has_been_told());
        barrier(told.iter().map(|with| with.neighbour().hazard_view()));
        told
    }

    /// Waits until no process uses the withdrawn entry, for each process as long as `limit` says. False if
    /// one still uses it.
    fn wait(&self, which: Kind, index: u32, limit: impl Fn(&Neighbour) -> WaitLimit) -> bool {
        let mut ended = true;
        for with in &self.told() {
            let neighbour = with.neighbour();
            let mut until = None;
            while is_in_use(neighbour, which, index) {
                let WaitLimit { length, is_last } = limit(neighbour);
                let until = *until.get_or_insert_with(|| Instant::now() + length);
                if Instant::now() > until {
                    if is_last {
                        blame(&**with);
                    }
                    ended = false;
                    break;
                }
                std::thread::yield_now();
            }
        }
        ended
    }
}

/// Whether a process announces that it uses this entry.
fn is_in_use(neighbour: &Neighbour, which: Kind, index: u32) -> bool {
    neighbour.hazard_view().is_announced(which, index as usize) && !neighbour.has_ended()
}

/// A process has exceeded its time limit.
fn blame(with: &dyn NeighbourLink) {
    let neighbour = with.neighbour();
    log!(Warn, "process {} does not end an operation in memory of this one", neighbour.process());
    if neighbour.delay() == MOST_DELAYS {
        with.break_off();
    }
}

/// Whether the time limit of some user of the entry has not passed yet. `delays`: how often each user has
/// exceeded a limit before.
fn have_time(waited: Duration, mut delays: impl Iterator<Item = u32>) -> bool {
    delays.any(|delays| waited < withdrawal_timeout(delays))
}

impl Publisher for SharedTable {
    fn alone(
        &self,
        address: usize,
        length: u64,
        share: &mut dyn FnMut() -> Result<Place, Refusal>,
    ) -> Result<Place, Refusal> {
        let Some(sharing) = self.sharing.upgrade() else { return Err(Refusal::Ended) };
        let engine = engine::engine().map_err(|_| Refusal::Ended)?;
        let shown = lock(&sharing.shown);
        let (others, moved) = share_alone(&shown, &engine.keys, (address, length), share);
        others.iter().for_each(|other| {
            other.publish(&engine.keys);
        });
        moved
    }

    fn publish(&self, number: u32, key: u32, opened: &PublishedBytes) {
        self.table.publish(Kind::Key, number as usize, key, to_words(opened));
    }

    fn retract(&self, number: u32) {
        self.table.withdraw(Kind::Key, number as usize);
    }

    fn wait(&self, number: u32) -> bool {
        self.wait(Kind::Key, number, long)
    }

    fn is_used(&self, number: u32, waited: Duration) -> bool {
        let told = self.told();
        let is_user = |with: &&Arc<dyn NeighbourLink>| is_in_use(with.neighbour(), Kind::Key, number);
        let users: Vec<_> = told.iter().filter(is_user).collect();
        if have_time(waited, users.iter().map(|with| with.neighbour().delays())) {
            return true;
        }
        // All at the end, so that each is blamed once.
        users.iter().for_each(|with| blame(&***with));
        false
    }

    fn wait_a_moment(&self, number: u32) -> bool {
        self.wait(Kind::Key, number, short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_never_ends_its_operations_costs_two_seconds_at_most() {
        let waits: Vec<Duration> = (0..MOST_DELAYS).map(withdrawal_timeout).collect();
        assert!(waits.is_sorted_by(|one, next| *next == *one / 2), "{waits:?}");
        assert!(waits.iter().sum::<Duration>() < 2 * WITHDRAWAL_TIMEOUT);
    }

    #[test]
    fn a_wait_in_steps_lasts_until_the_time_of_each_user_has_passed() {
        let [none, one, both] = [&[][..], &[1], &[1, 0]];
        let have_time = |waited, delays: &[u32]| have_time(waited, delays.iter().copied());
        for (waited, expected) in [
            (Duration::ZERO, [false, true, true]),
            (WITHDRAWAL_TIMEOUT / 4, [false, true, true]),
            (WITHDRAWAL_TIMEOUT / 2, [false, false, true]),
            (WITHDRAWAL_TIMEOUT, [false, false, false]),
        ] {
            assert_eq!([none, one, both].map(|delays| have_time(waited, delays)), expected, "{waited:?}");
        }
    }
}
