//! The key table: which bytes a key opens, for which protection domain, and whether a thread is using it at
//! this instant.
//!
//! A key (lkey, rkey, STag) is 32 bits: 24 bits of index and 8 bits that differ from one use of the index to
//! the next. The index is a slot number and a generation, put through a secret permutation, so that a peer
//! that has seen one key learns nothing about another (RFC5040-8.1.1-2) and yet a look-up is one indexed
//! load. Using a key counts it; taking it back waits until the count is zero, so that after a deregistration
//! has returned no thread touches the memory.

use super::copy::{self, Fault};
use super::lending::Lenders;
use super::nothing::{self, NULL_LENGTH};
use super::process;
use super::published::{Publication, Publisher};
use super::reader::Readers;
use super::source::{CopyError, Source};
use crate::array;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Cell, Mutex, Ordering, yield_now};
use bitflags::bitflags;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::window::Windows;

bitflags! {
    /// The rights of a memory region or window, with the values of `enum ibv_access_flags` (ibv_reg_mr(3)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The local side may write: receives, read responses, atomic results.
        const LOCAL_WRITE = 1;
        /// Peers may write. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Zero-based: remote addresses are offsets from the first byte, not virtual addresses.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned. No pages ever are here, so this changes nothing.
        const ON_DEMAND = 1 << 6;
        /// Huge pages: a hint without effect.
        const HUGETLB = 1 << 7;
        /// Flush to global visibility permitted.
        const FLUSH_GLOBAL = 1 << 8;
        /// Flush to persistence permitted.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Flags that a provider may ignore: relaxed ordering.
        const RELAXED_ORDERING = 1 << 20;
        /// The whole range of optional flags (IBV_ACCESS_OPTIONAL_RANGE).
        const OPTIONAL = 0x3ff0_0000;
    }
}

impl Access {
    /// Everything that lets a peer in.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);
}

/// Why a key does not open the bytes asked for. The transports turn it into their protocol's own error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// No such key, or no longer.
    Key,
    /// The key belongs to another protection domain.
    ProtectionDomain,
    /// The range begins before the region or ends after it.
    Bounds,
    /// Address plus length passes the end of the address space.
    Wrap,
    /// The region does not permit this.
    Rights,
}

/// The bytes that a key opens, and the rights on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// First byte in this process.
    pub(crate) address: usize,
    /// The length in bytes.
    pub(crate) length: u64,
    /// The address that a peer or a scatter/gather element calls the first byte by.
    pub(crate) iova: u64,
    /// The rights.
    pub(crate) access: Access,
    /// Number of the protection domain.
    pub(crate) domain: u32,
    /// Of a memory window: what it is bound to.
    pub(crate) window: Option<Binding>,
    /// The owner of the bytes.
    pub(crate) kind: Kind,
}

/// The owner of the bytes behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program's, which may do with them what it likes.
    Program,
    /// No bytes: every address is as good as another, and leads nowhere.
    Null,
    /// Ours, and no thread changes them while a request in flight reads them.
    Immutable,
}

/// The region and the rights that a memory window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// Key of the region that it opens a part of.
    pub(crate) region: u32,
    /// The queue pair whose peer alone may use it, if it is of type 2.
    pub(crate) queue_pair: Option<u32>,
}

/// No page is smaller.
const LEAST_PAGE: usize = 4096;

const CHUNK: usize = if cfg!(loom) { 2 } else { 1024 };
const CHUNKS: usize = 1024;
const GENERATION_BITS: u32 = 4;

/// Slots that were given back and are left alone until more are.
const RESTING: usize = 256;

/// The most keys that exist at once.
pub(crate) const MAX_KEYS: usize = CHUNK * CHUNKS;

// state: key in the upper half, then VALID, then the number of users.
const VALID: u64 = 1 << 31;
const USERS: u64 = VALID - 1;

#[repr(align(64))]
pub(super) struct Slot {
    state: AtomicU64,
    entry: Cell<Entry>,
    /// How often it has been filled.
    fillings: AtomicU32,
    /// A reader remembers it, or has: it may be announced.
    pub(super) is_remembered: AtomicBool,
    pub(super) publication: Publication,
}

// SAFETY: `entry` is written only by `Slot::fill`, on a slot that is not VALID and has no users, before the
// store that makes it valid. It is read only by a thread that counted itself as a user while it was VALID, or
// by a reader that is waited for (`super::reader`).
unsafe impl Sync for Slot {}

impl Slot {
    /// Counts the caller as a user, if the slot is valid under this key.
    #[inline]
    fn enter(&self, key: u32) -> std::result::Result<(), AccessError> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state >> 32 != u64::from(key) || state & VALID == 0 {
                return Err(AccessError::Key);
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => state = now,
            }
        }
    }

    /// Whether the slot is valid under this key.
    pub(super) fn is_valid(&self, key: u32) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state >> 32 == u64::from(key) && state & VALID != 0
    }

    /// Which filling it has. It stays for a thread that is counted as a user.
    pub(super) fn filling(&self) -> u32 {
        self.fillings.load(Ordering::Relaxed)
    }

    /// Whether the slot is valid under this key with a certain filling.
    #[inline]
    pub(super) fn is_still(&self, key: u32, filling: u32) -> bool {
        // Acquire: of a slot that was filled anew, that it was.
        let state = self.state.load(Ordering::Acquire);
        state >> 32 == u64::from(key) && state & VALID != 0 && self.filling() == filling
    }

    /// Counts the caller as a user, and says what the key opens.
    pub(super) fn look(&self, key: u32) -> std::result::Result<Entry, AccessError> {
        self.enter(key)?;
        // SAFETY: we are counted as a user of a valid slot, so no thread writes the entry.
        Ok(unsafe { self.entry.get() })
    }

    /// Gives a use back.
    #[inline]
    pub(super) fn leave(&self) {
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// The key that it is, or was last, valid under.
    pub(super) fn key(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Whether a thread is using it.
    pub(super) fn is_used(&self) -> bool {
        self.state.load(Ordering::Acquire) & USERS != 0
    }
}

/// All keys of one engine. Thread-safe; look-ups take no lock.
pub struct Keys {
    /// On the heap, and made there: the thread that asks for the engine first may have a small stack.
    chunks: Box<[OnceLock<Box<[Slot]>>; CHUNKS]>,
    free: Mutex<Free>,
    secret: [u32; 4],
    pub(super) publisher: OnceLock<Arc<dyn Publisher>>,
    /// Memory windows, valid or not.
    pub(super) windows: Mutex<Windows>,
    pub(super) lenders: Lenders,
    pub(super) readers: Readers,
}

struct Free {
    /// The slots given back, oldest first.
    slots: VecDeque<u32>,
    used: u32,
    random: u64,
}

impl Keys {
    #[inline(never)]
    pub(crate) fn new() -> Self {
        let mut seed = [0u64; 3];
        crate::random::fill(&mut seed);
        let [a, b, random] = seed;
        Self {
            chunks: array::on_heap(OnceLock::new),
            free: Mutex::new(Free { slots: VecDeque::new(), used: 0, random }),
            secret: [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32],
            publisher: OnceLock::new(),
            windows: Mutex::default(),
            lenders: Lenders::default(),
            readers: Readers::default(),
        }
    }

    /// Waits until every thread that was using a slot has finished. Uses are short (one copy of at most 256
    /// KiB, one non-blocking system call), and loans are taken back, so waiting is short, too.
    pub(super) fn wait_for_users(&self, slot: &Slot) {
        while slot.is_used() {
            self.recall(slot);
            if slot.is_used() {
                yield_now();
            }
        }
    }

    /// Whether a thread is using a slot. Recalls loans of the slot first. Does not wait.
    pub(super) fn is_used_still(&self, slot: &Slot) -> bool {
        if slot.is_used() {
            self.recall(slot);
        }
        slot.is_used()
    }

    /// Makes a slot valid under `key`.
    ///
    /// # Safety
    /// It is not valid, and belongs to the caller: no other thread fills it meanwhile.
    pub(super) unsafe fn fill(&self, slot: &Slot, key: u32, entry: Entry) {
        self.wait_for_users(slot);
        // SAFETY: not valid by the caller's promise, so no user comes any more; and none is there.
        unsafe { slot.entry.set(entry) };
        slot.fillings.fetch_add(1, Ordering::Relaxed);
        slot.is_remembered.store(false, Ordering::Relaxed);
        slot.publication.begin();
        slot.state.store(u64::from(key) << 32 | VALID, Ordering::Release);
    }

    /// Makes a key for `entry`.
    pub(crate) fn insert(&self, entry: Entry) -> Result<u32> {
        let (slot, key) = self.reserve()?;
        // SAFETY: just reserved.
        unsafe { self.fill(slot, key, entry) };
        Ok(key)
    }

    #[cfg(all(test, loom))]
    fn entry_for_model(domain: u32) -> Entry {
        // On demand: nothing asks the kernel for its pages.
        let access = Access::ON_DEMAND;
        Entry { address: 0x1000, length: 8, iova: 0, access, domain, window: None, kind: Kind::Program }
    }

    /// A key for 8 bytes that are nowhere.
    #[cfg(all(test, loom))]
    pub(crate) fn insert_for_model(&self, domain: u32) -> Result<u32> {
        self.insert(Self::entry_for_model(domain))
    }

    /// Puts 8 bytes of another protection domain, which are nowhere, behind a key ([`Keys::replace`]). Only
    /// the caller has the key.
    #[cfg(all(test, loom))]
    pub(crate) fn replace_for_model(&self, key: u32, domain: u32) {
        // SAFETY: the caller's promise; and nothing is ever at the address.
        unsafe { self.replace(key, Self::entry_for_model(domain)) };
    }

    /// A slot for a new key. It is not valid, and the caller's alone until [`Keys::remove`].
    pub(super) fn reserve(&self) -> Result<(&Slot, u32)> {
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        // RFC5042-6.1.1-1: a key that was given back comes again late.
        let reuse = free.slots.len() > RESTING || free.used as usize == MAX_KEYS;
        let number = if reuse {
            // RFC5042-6.4.1-1
            let exhausted = || Error::exhausted(format!("all {MAX_KEYS} memory keys are in use"));
            free.slots.pop_front().ok_or_else(exhausted)?
        } else {
            free.used += 1;
            free.used - 1
        };
        free.random = crate::random::next(free.random);
        let chunk = self.chunks[number as usize / CHUNK].get_or_init(|| {
            let nothing = Entry {
                address: 0,
                length: 0,
                iova: 0,
                access: Access::empty(),
                domain: 0,
                window: None,
                kind: Kind::Program,
            };
            let slot = || Slot {
                state: AtomicU64::new(0),
                entry: Cell::new(nothing),
                fillings: AtomicU32::new(0),
                is_remembered: AtomicBool::new(false),
                publication: Publication::default(),
            };
            (0..CHUNK).map(|_| slot()).collect()
        });
        let slot = &chunk[number as usize % CHUNK];
        let last = (slot.state.load(Ordering::Relaxed) >> 32) as u32;
        let generation =
            if last == 0 { free.random >> 40 } else { u64::from(self.open(last >> 8)) + 1 } as u32;
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        let mut tag = (free.random >> 20) as u32 & 0xff;
        // Keys 0 and 0xffffffff are what programs write for "none"; a key is never used twice in a row.
        let index = self.close((number << GENERATION_BITS) | generation);
        while matches!(index << 8 | tag, 0 | 0xffff_ffff) || index << 8 | tag == last {
            tag = (tag + 1) & 0xff;
        }
        let key = index << 8 | tag;
        slot.state.store(u64::from(key) << 32, Ordering::Relaxed);
        Ok((slot, key))
    }

    /// Puts another entry behind a key, once every user of the old one has finished.
    ///
    /// # Safety
    /// The key is a region's, and the caller's: no other thread replaces or removes it meanwhile.
    pub(crate) unsafe fn replace(&self, key: u32, entry: Entry) {
        self.invalidate(key);
        if let Some(slot) = self.slot(key) {
            self.end_uses(slot, key);
            // SAFETY: just made invalid, and the caller's.
            unsafe { self.fill(slot, key, entry) };
        }
    }

    /// Makes the key useless for all uses that begin now (invalidation). Its slot stays taken until
    /// [`Keys::remove`]. Returns whether it was valid.
    pub(crate) fn invalidate(&self, key: u32) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        let was_valid = slot
            .state
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |state| {
                (state >> 32 == u64::from(key) && state & VALID != 0).then_some(state & !VALID)
            })
            .is_ok();
        if was_valid {
            self.retract(slot, key);
        }
        was_valid
    }

    /// Takes the key back: no thread can begin to use it any more, and every user has finished when this
    /// returns.
    pub(crate) fn remove(&self, key: u32) {
        self.invalidate(key);
        let Some(slot) = self.slot(key) else { return };
        self.end_uses(slot, key);
        let mut free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        free.slots.push_back(self.number(key));
    }

    /// Opens `length` bytes at `address` for a local use that needs `rights`, on behalf of protection domain
    /// `domain`. The order of the checks is that of the standards: key, domain, rights, wrap, bounds. The
    /// bytes stay usable until the span is dropped. A length of zero checks the key and rights and nothing
    /// else.
    #[inline]
    pub fn open_span(
        &self,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
    ) -> std::result::Result<Span<'_>, AccessError> {
        let (span, entry) = self.enter(key, domain)?;
        // A window is for peers.
        if entry.window.is_some() {
            return Err(AccessError::Key);
        }
        span.narrow(&entry, address, length, rights)
    }

    /// Opens bytes as [`Keys::open_span`] does, for the peer of queue pair `queue_pair`.
    #[inline]
    pub fn open_for_peer(
        &self,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
        queue_pair: u32,
    ) -> std::result::Result<Span<'_>, AccessError> {
        let (mut span, entry) = self.enter(key, domain)?;
        if let Some(window) = entry.window {
            // IB-MW-6
            if window.queue_pair.is_some_and(|own| own != queue_pair) {
                return Err(AccessError::ProtectionDomain);
            }
            let under = self.slot(window.region).ok_or(AccessError::Key)?;
            under.enter(window.region)?;
            span.under = Some(under);
        }
        span.narrow(&entry, address, length, rights)
    }

    /// An empty span that keeps a valid key in use, and the entry of the key.
    #[inline]
    pub(crate) fn enter(&self, key: u32, domain: u32) -> std::result::Result<(Span<'_>, Entry), AccessError> {
        // RFC5041-7.1-6, RFC5041-8.3-3, RFC5040-7.2-4, RFC5040-7.2-6
        let slot = self.slot(key).ok_or(AccessError::Key)?;
        let entry = slot.look(key)?;
        // From here the drop of `span` gives the use back.
        let span = Span { slot, under: None, announced: None, address: entry.address, length: 0 };
        // IB-QP-42
        // RFC5041-8.2-1, RFC5041-8.2-3, RFC5040-7.2-5, RFC5040-7.2-7
        if entry.domain != domain {
            return Err(AccessError::ProtectionDomain);
        }
        Ok((span, entry))
    }

    /// Invalidates `key` because the peer of queue pair `queue_pair` says so (RFC5040-5.3-6). A region must
    /// let peers in, and `alone` says whether no other peer has it; a window must be of type 2.
    pub fn invalidate_for_peer(
        &self,
        key: u32,
        domain: u32,
        queue_pair: u32,
        alone: bool,
    ) -> std::result::Result<(), AccessError> {
        let may = |access: Access| alone && access.intersects(Access::REMOTE);
        self.check_then_invalidate(key, domain, queue_pair, may)?;
        // The program is about to learn that it has its memory to itself again.
        if let Some(slot) = self.slot(key) {
            self.wait_for_others(slot, key);
        }
        Ok(())
    }

    /// Whether a thread has bytes of a key in use at this instant, or some are lent.
    pub(crate) fn is_in_use(&self, key: u32) -> bool {
        self.slot(key).is_some_and(Slot::is_used)
    }

    /// Invalidates `key` on behalf of a local work request of queue pair `queue_pair`. No use of its bytes
    /// begins from now on; [`Keys::has_uses_left`] says when the earlier uses have ended.
    pub fn invalidate_locally(
        &self,
        key: u32,
        domain: u32,
        queue_pair: u32,
    ) -> std::result::Result<(), AccessError> {
        self.check_then_invalidate(key, domain, queue_pair, |_| true)
    }

    /// Whether a thread of this process, or another process, still uses bytes of a key that has been
    /// invalidated. Does not wait. `waited`: for how long the caller has waited for them; another process has
    /// no more time than the end of a registration gives it.
    pub fn has_uses_left(&self, key: u32, waited: Duration) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        // The thread that has given the slot another key, or made this one valid again, has waited.
        slot.key() == key && !slot.is_valid(key) && self.are_uses_left(slot, key, waited)
    }

    fn check_then_invalidate(
        &self,
        key: u32,
        domain: u32,
        queue_pair: u32,
        may: impl Fn(Access) -> bool,
    ) -> std::result::Result<(), AccessError> {
        let (span, entry) = self.enter(key, domain)?;
        if entry.window.is_some() {
            drop(span);
            return self.unbind(key, queue_pair);
        }
        if !may(entry.access) {
            return Err(AccessError::Rights);
        }
        if self.invalidate(key) { Ok(()) } else { Err(AccessError::Key) }
    }

    /// The entry of a key, if it is valid.
    pub(super) fn entry(&self, key: u32) -> Option<Entry> {
        let slot = self.slot(key)?;
        let entry = slot.look(key).ok()?;
        slot.leave();
        Some(entry)
    }

    /// A valid key whose entry is like this. It looks at all of them.
    pub(super) fn find_key(&self, is_like: impl Fn(&Entry) -> bool) -> Option<u32> {
        let slots = self.chunks.iter().map_while(OnceLock::get).flat_map(|chunk| chunk.iter());
        slots.map(Slot::key).find(|key| self.entry(*key).is_some_and(|entry| is_like(&entry)))
    }

    #[inline]
    pub(super) fn slot(&self, key: u32) -> Option<&Slot> {
        let number = self.number(key) as usize;
        self.chunks[number / CHUNK].get().map(|chunk| &chunk[number % CHUNK])
    }

    /// The slot's number, below [`MAX_KEYS`].
    #[inline]
    pub(super) fn number(&self, key: u32) -> u32 {
        number(self.secret, key)
    }

    /// What [`number`] needs to know. Only for processes that may read our memory anyway.
    pub fn secret(&self) -> [u32; 4] {
        self.secret
    }

    // A four-round Feistel permutation of 24 bits under the secret.
    fn close(&self, index: u32) -> u32 {
        let (mut left, mut right) = (index >> 12 & 0xfff, index & 0xfff);
        for secret in self.secret {
            (left, right) = (right, left ^ round(right, secret));
        }
        left << 12 | right
    }

    fn open(&self, index: u32) -> u32 {
        open(self.secret, index)
    }
}

/// The number of the slot that a key is in. Only a process that knows the secret of the table can tell.
#[inline]
pub fn number(secret: [u32; 4], key: u32) -> u32 {
    open(secret, key >> 8) >> GENERATION_BITS
}

#[inline]
fn open(secret: [u32; 4], index: u32) -> u32 {
    let (mut left, mut right) = (index >> 12 & 0xfff, index & 0xfff);
    for secret in secret.into_iter().rev() {
        (left, right) = (right ^ round(left, secret), left);
    }
    left << 12 | right
}

fn round(half: u32, secret: u32) -> u32 {
    let mixed = (half ^ secret).wrapping_mul(0x9e37_79b1);
    (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b) >> 20
}

/// Bytes that a key opened, in use until dropped.
pub struct Span<'a> {
    pub(super) slot: &'a Slot,
    /// The region under a window.
    pub(super) under: Option<&'a Slot>,
    /// Where the use is announced, if it is not counted.
    pub(super) announced: Option<&'a AtomicUsize>,
    address: usize,
    length: usize,
}

impl<'a> Span<'a> {
    /// An empty span that keeps a slot in use by an announcement of it.
    #[inline]
    pub(super) fn announced(slot: &'a Slot, announced: &'a AtomicUsize, entry: &Entry) -> Self {
        Self { slot, under: None, announced: Some(announced), address: entry.address, length: 0 }
    }
}

impl Span<'_> {
    /// The span of `length` bytes at `address` of what the key opens.
    #[inline(always)]
    pub(super) fn narrow(
        mut self,
        entry: &Entry,
        address: u64,
        length: u64,
        rights: Access,
    ) -> std::result::Result<Self, AccessError> {
        // RFC5041-7.1-7, RFC5041-8.3.1-1
        if !entry.access.contains(rights) {
            return Err(AccessError::Rights);
        }
        if length == 0 {
            return Ok(self);
        }
        // IB-RC-RSP-23
        // RFC5041-7.1-10, RFC5040-7.2-10
        address.checked_add(length - 1).ok_or(AccessError::Wrap)?;
        // RFC5041-7.1-8, RFC5041-7.1-9, RFC5040-7.2-8, RFC5040-7.2-9
        let offset = address.checked_sub(entry.iova).ok_or(AccessError::Bounds)?;
        if offset.checked_add(length).is_none_or(|end| end > entry.length) {
            return Err(AccessError::Bounds);
        }
        self.address = if entry.kind == Kind::Null {
            let null = nothing::null().filter(|_| length <= NULL_LENGTH).ok_or(AccessError::Bounds)?;
            if rights.contains(Access::LOCAL_WRITE) { null.sink } else { null.zeros }
        } else {
            entry.address + offset as usize
        };
        self.length = length as usize;
        Ok(self)
    }

    /// Bytes in the span.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the span has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Address of the first byte in this process.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The bytes, if no thread changes them while a request in flight reads them: a transport that checksums
    /// its payload need not copy them.
    pub fn immutable(&self) -> Option<&[u8]> {
        // SAFETY: we are counted as a user, or waited for as one, so no thread writes the entry.
        let entry = unsafe { self.slot.entry.get() };
        if entry.kind != Kind::Immutable {
            return None;
        }
        // SAFETY: the owner of the region has promised that they are mapped, and that no thread writes to
        // them while a request reads them; the span lies inside.
        Some(unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) })
    }

    /// Copies `source` to the bytes from `offset` on; the last word becomes visible last.
    ///
    /// # Panics
    /// If the range passes the end of the span: a mistake in the transport.
    pub fn write(&self, offset: usize, source: &[u8]) -> std::result::Result<(), Fault> {
        assert!(offset <= self.length && source.len() <= self.length - offset, "write past the span");
        // SAFETY: the range lies inside what the program registered, with the rights that the opener asked
        // for.
        unsafe { copy::copy_to(self.address + offset, source) }
    }

    /// Fills the span with bytes of `source` from `from` on; the last word becomes visible last.
    ///
    /// # Panics
    /// If there are fewer: a mistake in the transport.
    pub fn place(&self, source: &Source<'_>, from: usize) -> std::result::Result<(), CopyError> {
        // SAFETY: as in `write`.
        unsafe { source.copy_to(self.address, from, self.length) }
    }

    /// Copies the bytes from `offset` on into `target`.
    ///
    /// # Panics
    /// If the range passes the end of the span: a mistake in the transport.
    pub fn read(&self, offset: usize, target: &mut [u8]) -> std::result::Result<(), Fault> {
        assert!(offset <= self.length && target.len() <= self.length - offset, "read past the span");
        // SAFETY: as in `write`.
        unsafe { copy::copy_from(target, self.address + offset) }
    }

    /// Whether all of it can be read: a look at each page.
    pub fn is_readable(&self) -> bool {
        let mut byte = [0];
        let last = self.length.saturating_sub(1);
        (0..self.length)
            .step_by(LEAST_PAGE)
            .chain([last].into_iter().filter(|_| self.length > 0))
            .all(|offset| self.read(offset, &mut byte).is_ok())
    }

    /// Whether the system says that all of it can be written. True where the system does not say.
    pub fn may_be_written(&self) -> bool {
        process::may_be_copied(self.address, self.length as u64, true) || !process::tells_protection()
    }

    /// Adds to the 8 bytes of the span atomically; returns what was there. The span must be 8 aligned bytes.
    pub fn fetch_add(&self, value: u64) -> std::result::Result<u64, Fault> {
        assert!(self.length == 8 && self.address.is_multiple_of(8), "atomics are on 8 aligned bytes");
        // SAFETY: as in `write`.
        unsafe { copy::fetch_add(self.address, value) }
    }

    /// Swaps the 8 bytes of the span if they equal `compare`; returns what was there. The span must be 8
    /// aligned bytes.
    // IB-RC-RSP-41, IB-RC-RSP-42
    pub fn compare_swap(&self, compare: u64, swap: u64) -> std::result::Result<u64, Fault> {
        assert!(self.length == 8 && self.address.is_multiple_of(8), "atomics are on 8 aligned bytes");
        // SAFETY: as in `write`.
        unsafe { copy::compare_swap(self.address, compare, swap) }
    }

    /// The part of the span from `offset` on, at most `length` bytes, for a system call that is made while
    /// the span lives. The kernel checks the address again and answers EFAULT.
    pub fn iovec(&self, offset: usize, length: usize) -> libc::iovec {
        assert!(offset <= self.length && length <= self.length - offset, "iovec past the span");
        libc::iovec { iov_base: (self.address + offset) as *mut libc::c_void, iov_len: length }
    }
}

impl Drop for Span<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.announced {
            // Release: all that it was announced for has been done.
            Some(announced) => announced.store(0, Ordering::Release),
            None => self.slot.leave(),
        }
        if let Some(under) = self.under {
            under.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::until::until;
    use super::*;

    fn entry(memory: &mut [u8], access: Access) -> Entry {
        Entry {
            address: memory.as_mut_ptr() as usize,
            length: memory.len() as u64,
            iova: 0x1000,
            access,
            domain: 7,
            window: None,
            kind: Kind::Program,
        }
    }

    #[test]
    fn the_permutation_is_one() {
        let keys = Keys::new();
        for index in (0..1 << 24).step_by(997) {
            assert_eq!(keys.open(keys.close(index)), index);
        }
    }

    // RFC5041-7.1-6, RFC5041-7.1-7, RFC5041-7.1-8, RFC5041-7.1-9, RFC5041-7.1-10, RFC5041-8.2-1, RFC5041-8.3.1-1
    // RFC5040-7.2-6, RFC5040-7.2-7, RFC5040-7.2-8, RFC5040-7.2-9, RFC5040-7.2-10
    // IB-QP-42, IB-RC-RSP-23
    #[test]
    fn every_check_refuses() {
        let keys = Keys::new();
        let mut memory = [0u8; 64];
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = keys.insert(entry(&mut memory, rights)).unwrap();
        let open = |key, address, length, rights, domain| {
            keys.open_span(key, address, length, rights, domain).map(|s| s.len())
        };
        assert_eq!(open(key, 0x1000, 64, rights, 7), Ok(64));
        assert_eq!(open(key, 0x1040, 0, rights, 7), Ok(0));
        assert_eq!(open(key ^ 1, 0x1000, 64, rights, 7), Err(AccessError::Key));
        assert_eq!(open(!key, 0x1000, 64, rights, 7), Err(AccessError::Key));
        assert_eq!(open(key, 0x1000, 64, rights, 8), Err(AccessError::ProtectionDomain));
        assert_eq!(open(key, 0x1000, 64, Access::REMOTE_READ, 7), Err(AccessError::Rights));
        assert_eq!(open(key, 0xfff, 2, rights, 7), Err(AccessError::Bounds));
        assert_eq!(open(key, 0x1000, 65, rights, 7), Err(AccessError::Bounds));
        assert_eq!(open(key, 0x103f, 2, rights, 7), Err(AccessError::Bounds));
        assert_eq!(open(key, 0x1000, u64::MAX, rights, 7), Err(AccessError::Wrap));
        assert_eq!(open(key, u64::MAX, 1, rights, 7), Err(AccessError::Bounds));
        assert_eq!(open(key, u64::MAX, 2, rights, 7), Err(AccessError::Wrap));
        keys.remove(key);
        assert_eq!(open(key, 0x1000, 64, rights, 7), Err(AccessError::Key));
    }

    // RFC5042-6.4.1-1
    #[test]
    fn keys_have_a_bound() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        // As if all but two had been given out.
        keys.free.lock().unwrap().used = MAX_KEYS as u32 - 2;
        let mut insert = || keys.insert(entry(&mut memory, Access::empty())).map_err(|error| error.errno());
        let [first, _] = [insert().unwrap(), insert().unwrap()];
        assert_eq!(insert(), Err(libc::ENOMEM));
        keys.remove(first);
        insert().unwrap();
        assert_eq!(insert(), Err(libc::ENOMEM));
    }

    // RFC5042-6.1.1-1
    #[test]
    fn a_key_comes_again_late() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        let mut seen = std::collections::HashSet::new();
        for _ in 0..RESTING << GENERATION_BITS {
            let key = keys.insert(entry(&mut memory, Access::empty())).unwrap();
            assert!(seen.insert(key));
            keys.remove(key);
        }
    }

    // RFC5040-8.1.1-2
    #[test]
    fn keys_are_spread_over_the_whole_range() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        let made: Vec<u32> =
            (0..2000).map(|_| keys.insert(entry(&mut memory, Access::empty())).unwrap()).collect();
        let distinct =
            |of: &dyn Fn(&u32) -> u32| made.iter().map(of).collect::<std::collections::HashSet<_>>().len();
        assert_eq!(distinct(&|key| *key), 2000);
        assert!(distinct(&|key| key >> 24) > 200, "highest octets");
        assert!(distinct(&|key| key & 0xff) > 200, "tags");
        let steps: std::collections::HashSet<u32> =
            made.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
        assert!(steps.len() > 1900, "one key does not tell the next");
    }

    // RFC5041-8.3-2, RFC5041-8.3.1-2
    #[test]
    fn removal_waits_for_the_last_user() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        let key = keys.insert(entry(&mut memory, Access::empty())).unwrap();
        let span = keys.open_span(key, 0x1000, 8, Access::empty(), 7).ok().unwrap();
        let removed = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                keys.remove(key);
                removed.store(true, Ordering::SeqCst);
            });
            let is_shut = until(|| keys.open_span(key, 0x1000, 8, Access::empty(), 7).is_err());
            let is_early = removed.load(Ordering::SeqCst);
            drop(span);
            assert!(is_shut && !is_early);
        });
        assert!(removed.load(Ordering::SeqCst));
    }

    // RFC5040-5.3-6, RFC5040-7.2-4, RFC5040-7.2-5
    #[test]
    fn peers_invalidate_only_what_lets_them_in() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        let local = keys.insert(entry(&mut memory, Access::LOCAL_WRITE)).unwrap();
        let remote = keys.insert(entry(&mut memory, Access::REMOTE_READ)).unwrap();
        assert_eq!(keys.invalidate_for_peer(local, 7, 1, true), Err(AccessError::Rights));
        assert_eq!(keys.invalidate_for_peer(remote, 6, 1, true), Err(AccessError::ProtectionDomain));
        assert_eq!(keys.invalidate_for_peer(remote, 7, 1, true), Ok(()));
        assert_eq!(keys.invalidate_for_peer(remote, 7, 1, true), Err(AccessError::Key));
        assert_eq!(keys.invalidate_locally(local, 7, 1), Ok(()));
    }

    #[test]
    fn uses_of_an_invalidated_key_are_seen_until_they_end() {
        let keys = Keys::new();
        let mut memory = [0u8; 8];
        let key = keys.insert(entry(&mut memory, Access::LOCAL_WRITE)).unwrap();
        let open = || keys.open_span(key, 0x1000, 8, Access::empty(), 7).ok();
        let span = open();
        assert!(span.is_some());
        assert_eq!(keys.invalidate_locally(key, 7, 1), Ok(()));
        assert!(open().is_none());
        assert!(keys.has_uses_left(key, Duration::ZERO) && keys.has_uses_left(key, Duration::MAX));
        drop(span);
        assert!(!keys.has_uses_left(key, Duration::ZERO));
        // Uses of what has the key now are no business of the request.
        // SAFETY: nobody else has the key.
        unsafe { keys.replace(key, entry(&mut memory, Access::LOCAL_WRITE)) };
        let span = open();
        assert!(span.is_some() && !keys.has_uses_left(key, Duration::ZERO));
        drop(span);
    }
}
