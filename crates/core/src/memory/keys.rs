//! The key table: which bytes a key opens, for which protection domain, and whether a thread is using it at
//! this instant.
//!
//! A key (lkey, rkey, STag) is 32 bits: 24 bits of index and 8 bits that differ from one use of the index to
//! the next. The index is a slot number and a generation, put through a secret permutation, so that a peer
//! that has seen one key learns nothing about another (RFC5040-8.1.1-2) and yet a look-up is one indexed
//! load. Using a key counts it; taking it back waits until the count is zero, so that after a deregistration
//! has returned no thread touches the memory.

mod span;
#[cfg(test)]
mod tests;

pub use span::Span;

use super::lending::Lenders;
use super::published::{Publication, Publisher};
use super::reader::Readers;
use crate::array;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Cell, Mutex, Ordering, yield_now};
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
        let span = Span::counted(slot, &entry);
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
