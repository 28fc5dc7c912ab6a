//! The target's side of operations that processes of this host carry out by themselves, in memory of ours.
//!
//! It begins with an ordinary request: the engine that serves one by a channel asks to have the memory shared that it is about ([`Sharing::ask`]). So does one that
//! lends the other process long payloads of the same memory ([`Lending`]): what is shared, that process copies without the kernel, whatever rights its key gives.
//! Its pages are then moved to where others can map them ([`adverb_core::memory::moved`]), by a thread of the program's that comes by, its key and the queue pair are published
//! in a table ([`adverb_local::Table`]), and the other process is sent the descriptors of both. From then on it looks there, and does without us.
//!
//! What is published is taken back before it changes: a key by the key table, a queue pair by its link. Both wait until nobody uses it who announced
//! that before.

use super::bell::Noted;
use super::channel::Channel;
use crate::lock;
use crate::net::Net;
use adverb_core::engine::Engine;
use adverb_core::log;
use adverb_core::memory::moved;
use adverb_core::memory::{MemoryRegion, Opened, Publisher};
use adverb_core::qp::Queues;
use adverb_local::announce::barrier;
use adverb_local::table::PAIRS;
use adverb_local::{Kind, Table};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long the end of a registration waits for a process that says it is in the middle of an operation: one that is stopped there, or lies. What
/// it writes afterwards comes into memory that is not registered any more. Each time it is half as long, and after some times that process is a peer no more.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_DELAYS: u32 = 4;
/// Requests to share memory that wait at once.
const MOST_WAITING: usize = 4096;

/// See the module. Thread-safe.
#[derive(Default)]
pub(crate) struct Sharing {
    table: OnceLock<Option<Arc<Book>>>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wishes: VecDeque<Wish>,
    /// A thread is at it.
    is_served: bool,
}

/// Memory that a process of this host has used, or that is lent to it.
struct Wish {
    channel: Weak<Channel>,
    region: Weak<MemoryRegion>,
    is_lent: bool,
}

/// The memory that a queue pair lends time and again.
pub(crate) struct Lending {
    key: u32,
    times: u32,
    next: u32,
    bytes: u64,
}

impl Default for Lending {
    fn default() -> Self {
        Self { key: 0, times: 0, next: Self::FIRST, bytes: 0 }
    }
}

impl Lending {
    /// It is looked at after so many times, and then each time after twice as many, up to the last: what cannot be shared now can be hardly ever.
    const FIRST: u32 = 16;
    const LAST: u32 = 4096;
    /// To move a region there and back costs about as much as the kernel's way costs more than a map's for so many times its length.
    const WORTH: u64 = 16;

    /// Counts bytes of a region that are lent. Returns whether it is to be [looked at](Self::look).
    #[inline]
    pub(crate) fn count(&mut self, key: u32, length: u32) -> bool {
        if key != self.key {
            *self = Self { key, ..Self::default() };
        }
        self.times = self.times.saturating_add(1);
        self.bytes = self.bytes.saturating_add(length.into());
        if self.times != self.next || self.next > Self::LAST {
            return false;
        }
        self.next *= 2;
        true
    }

    /// Has the region shared with the other process of a channel, if that is worth it.
    #[cold]
    pub(crate) fn look(&self, net: &Arc<Net>, channel: &Channel, queues: &Queues) {
        if !channel.may_share() {
            return;
        }
        let keys = &queues.engine.keys;
        let is_published = keys.is_published(self.key);
        if is_published && channel.has_been_told() {
            return;
        }
        let times = |region: &MemoryRegion| self.bytes / region.length().max(1);
        let is_worth_it = queues.region(self.key).is_some_and(|region| times(&region) >= Self::WORTH);
        if is_worth_it && (is_published || keys.asks(self.key)) {
            net.local.sharing.ask(net, channel, queues, self.key, true);
        }
    }
}

/// A queue pair that is published, until dropped.
pub(crate) struct Published {
    book: Arc<Book>,
    index: u32,
}

/// What is published.
struct Book {
    net: Weak<Net>,
    _noted: Noted,
    table: Table,
    pairs: Mutex<Pairs>,
}

/// Which of the places for queue pairs are free.
#[derive(Default)]
struct Pairs {
    free: Vec<u32>,
    used: u32,
}

/// What a queue pair lets its peer do.
pub(crate) struct Terms {
    pub(crate) number: u32,
    /// The peer's queue pair.
    pub(crate) peer: u32,
    pub(crate) domain: u32,
    /// Bits of [`adverb_core::memory::Access`].
    pub(crate) access: u32,
}

impl Sharing {
    /// The peer of a channel has used memory of ours, or it is lent to it: it is shared with it, if that can be, before long.
    #[cold]
    pub(crate) fn ask(&self, net: &Arc<Net>, channel: &Channel, queues: &Queues, key: u32, is_lent: bool) {
        let region = queues.region(key);
        let (Some(region), Some(channel)) = (region, channel.this()) else { return };
        {
            let mut waiting = lock(&self.waiting);
            if waiting.wishes.len() == MOST_WAITING {
                queues.engine.keys.may_ask_again(key);
                return;
            }
            let (channel, region) = (Arc::downgrade(&channel), Arc::downgrade(&region));
            waiting.wishes.push_back(Wish { channel, region, is_lent });
            if std::mem::replace(&mut waiting.is_served, true) {
                return;
            }
        }
        let net = net.clone();
        moved::at_safe_point(Box::new(move || net.local.sharing.serve(&net)));
    }

    /// Grants all wishes, in a thread of the program's.
    fn serve(&self, net: &Arc<Net>) {
        let Ok(engine) = net.engine() else { return };
        loop {
            let wish = {
                let mut waiting = lock(&self.waiting);
                let wish = waiting.wishes.pop_front();
                waiting.is_served = wish.is_some();
                wish
            };
            let Some(Wish { channel, region, is_lent }) = wish else { return };
            let (Some(channel), Some(region)) = (channel.upgrade(), region.upgrade()) else { continue };
            let regions = [region];
            channel.loans.tidy();
            let answers = moved::share(&regions);
            let place = match answers.first() {
                Some(Ok(place)) => place,
                // Who wants to write there may be served in other ways.
                Some(Err(refusal)) if refusal.may_pass() || is_lent => {
                    engine.keys.may_ask_again(regions[0].key());
                    continue;
                }
                _ => continue,
            };
            if let Some(book) = self.book(net, engine)
                && engine.keys.publish(regions[0].key(), place, || !regions[0].has_ended())
            {
                channel.tell(&book.table, place);
            }
        }
    }

    fn book(&self, net: &Arc<Net>, engine: &'static Engine) -> Option<&Arc<Book>> {
        let make = || match Table::create(engine.keys.secret().map(u64::from)) {
            Ok(table) => {
                let _noted = Noted::of(table.descriptor().as_raw_fd());
                let (net, pairs) = (Arc::downgrade(net), Mutex::default());
                let book = Arc::new(Book { net, _noted, table, pairs });
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
    pub(crate) fn publish(&self, terms: &Terms) -> Option<Published> {
        let book = self.table.get()?.as_ref()?;
        let index = lock(&book.pairs).take()?;
        let Terms { number, peer, domain, access } = *terms;
        let words = [u64::from(peer), u64::from(domain), u64::from(access), 0, 0, 0, 0];
        book.table.publish(Kind::Pair, index as usize, number, words);
        Some(Published { book: book.clone(), index })
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

impl Drop for Published {
    fn drop(&mut self) {
        self.book.table.withdraw(Kind::Pair, self.index as usize);
        // A place that somebody may still be at is not used again.
        if self.book.wait(Kind::Pair, self.index) {
            lock(&self.book.pairs).free.push(self.index);
        }
    }
}

impl Book {
    /// Waits until no process uses what has been withdrawn. False if one has not ended that.
    fn wait(&self, which: Kind, index: u32) -> bool {
        let Some(net) = self.net.upgrade() else { return true };
        let mut channels = net.local.all();
        channels.retain(|channel| channel.has_been_told());
        barrier(channels.iter().map(|channel| channel.witness()));
        let mut ended = true;
        for channel in &channels {
            let mut until = None;
            while channel.witness().is_announced(which, index as usize) && !channel.has_ended() {
                let patience = PATIENCE / (1 << channel.delays().min(MOST_DELAYS));
                let until = *until.get_or_insert_with(|| Instant::now() + patience);
                if Instant::now() > until {
                    log!(Warn, "process {} does not end an operation in memory of this one", channel.process);
                    if channel.delay() == MOST_DELAYS {
                        channel.break_off();
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

impl Publisher for Book {
    fn publish(&self, number: u32, key: u32, opened: &Opened) {
        let Opened { first, length, offset, address, access, domain } = *opened;
        let words = [first, length, offset, access.bits().into(), domain.into(), address, 0];
        self.table.publish(Kind::Key, number as usize, key, words);
    }

    fn retract(&self, number: u32) {
        self.table.withdraw(Kind::Key, number as usize);
    }

    fn wait(&self, number: u32) {
        let _ = self.wait(Kind::Key, number);
    }
}
