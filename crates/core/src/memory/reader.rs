//! A cache for the key that a caller opened last. A use through the cache takes no atomic read-modify-write.
//!
//! A reader announces in a word of its own which slot it is about to use, and then looks whether the slot is
//! still what it remembers. The thread that takes a key away makes it invalid, has all threads of the process
//! pass a barrier, and then waits until no reader announces the slot. So either the reader finds the key
//! gone, or that thread waits for it. That thread alone pays for the fence, and only for a key that a reader
//! has remembered. (Processes of one host do so with each other's keys: `adverb_local::announce`, of which
//! there is a model.)

use super::keys::{Access, AccessError, Entry, Keys, Kind, Slot, Span};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, light_fence, yield_now};
use std::sync::{Arc, OnceLock};

/// The cache of one caller, used by one thread at a time. `Reader::default()` caches nothing: the slot counts
/// each use.
#[derive(Default)]
pub struct Reader {
    announced: Option<Arc<AtomicUsize>>,
    known: Option<CachedKey>,
}

/// The slot and the entry that were found when a key was opened last.
struct CachedKey {
    key: u32,
    slot: &'static Slot,
    filling: u32,
    entry: Entry,
}

/// All readers of an engine.
#[derive(Default)]
pub(super) struct Readers {
    /// A word of each.
    list: Mutex<Vec<Arc<AtomicUsize>>>,
    barrier: OnceLock<fn() -> bool>,
    /// The barrier has failed: all readers count their uses.
    is_over: AtomicBool,
}

/// In the word of a reader that exists no more: it is in the list until another one comes.
const GONE: usize = usize::MAX;

/// The word by which a reader announces a slot; never zero, nor [`GONE`].
#[inline]
fn name(slot: &Slot) -> usize {
    std::ptr::from_ref(slot) as usize
}

impl Reader {
    /// A reader that need not count, if the keys have a barrier.
    pub fn new(keys: &'static Keys) -> Self {
        let readers = &keys.readers;
        if readers.barrier.get().is_none() {
            return Self::default();
        }
        let word = Arc::new(AtomicUsize::new(0));
        let mut list = readers.list.lock().unwrap_or_else(|e| e.into_inner());
        list.retain(|known| known.load(Ordering::Relaxed) != GONE);
        list.push(word.clone());
        Self { announced: Some(word), known: None }
    }

    /// Announces the use of a key that is known. False if it is not the same any more: nothing is announced.
    #[inline(always)]
    fn announce(&self, keys: &Keys, key: u32) -> bool {
        let (Some(announced), Some(known)) = (&self.announced, &self.known) else { return false };
        // Release: a thread that sees this in place of an earlier announcement sees that the earlier use has
        // ended.
        announced.store(name(known.slot), Ordering::Release);
        // Between this store and these looks, a thread that takes the key away has every thread pass a
        // barrier.
        light_fence();
        if known.slot.is_still(key, known.filling) && !keys.readers.is_over.load(Ordering::Relaxed) {
            return true;
        }
        announced.store(0, Ordering::Release);
        false
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(announced) = &self.announced {
            // Release: all that it was ever announced for has been done. No lock: this may be a child of
            // fork.
            announced.store(GONE, Ordering::Release);
        }
    }
}

impl Keys {
    /// Installs a function that has all threads of this process pass a full memory barrier, or says that it
    /// could not. The first call counts.
    pub fn set_barrier(&self, barrier: fn() -> bool) {
        let _ = self.readers.barrier.set(barrier);
    }

    /// Has `act` use the bytes of the key that the reader knows, at their address in this process, as
    /// [`Keys::open_again`] and a [`Span`] would, but in a few instructions. None for another key, and for
    /// all that `open_again` refuses, or finds in another way.
    #[inline(always)]
    pub(crate) fn with_known<T>(
        &self,
        reader: &Reader,
        (key, address, length): (u32, u64, u32),
        rights: Access,
        domain: u32,
        act: impl FnOnce(usize) -> T,
    ) -> Option<T> {
        let (Some(announced), Some(known)) = (&reader.announced, &reader.known) else { return None };
        let entry = &known.entry;
        // IB-QP-42, and as `Span::narrow` has it.
        let offset = address.checked_sub(entry.iova)?;
        let last = entry.length.checked_sub(length.into())?;
        let is_permitted = entry.domain == domain && entry.access.contains(rights);
        if known.key != key || offset > last || !is_permitted || entry.kind == Kind::Null {
            return None;
        }
        // As in `Reader::announce`.
        announced.store(name(known.slot), Ordering::Release);
        light_fence();
        let stands = known.slot.is_still(key, known.filling) && !self.readers.is_over.load(Ordering::Relaxed);
        let done = stands.then(|| act(entry.address + offset as usize));
        // Release: all that it was announced for has been done.
        announced.store(0, Ordering::Release);
        done
    }

    /// Opens bytes, as [`Keys::open_span`] does, for a caller that remembers the key in `reader`.
    ///
    /// # Errors
    /// As of [`Keys::open_span`].
    #[inline(always)]
    pub fn open_again<'a>(
        &'static self,
        reader: &'a mut Reader,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
    ) -> Result<Span<'a>, AccessError> {
        if reader.announced.is_none() {
            return self.open_span(key, address, length, rights, domain);
        }
        if reader.known.as_ref().is_none_or(|known| known.key != key) {
            self.remember(reader, key);
        }
        if !reader.announce(self, key) {
            return self.open_uncached(reader, key, address, length, rights, domain);
        }
        let (Some(announced), Some(known)) = (&reader.announced, &reader.known) else {
            unreachable!("it has been announced")
        };
        let span = Span::announced(known.slot, announced, &known.entry);
        // IB-QP-42
        if known.entry.domain != domain {
            return Err(AccessError::ProtectionDomain);
        }
        span.narrow(&known.entry, address, length, rights)
    }

    #[cold]
    fn open_uncached(
        &'static self,
        reader: &mut Reader,
        key: u32,
        address: u64,
        length: u64,
        rights: Access,
        domain: u32,
    ) -> Result<Span<'static>, AccessError> {
        reader.known = None;
        self.open_span(key, address, length, rights, domain)
    }

    /// Remembers the entry of a key, if it is a region's.
    #[cold]
    fn remember(&'static self, reader: &mut Reader, key: u32) {
        reader.known = None;
        let Some(slot) = self.slot(key) else { return };
        // Counted as a user: no thread fills it meanwhile.
        let Ok(entry) = slot.look(key) else { return };
        if entry.window.is_none() {
            // Visible to each thread that has seen that there are no users any more.
            slot.is_remembered.store(true, Ordering::Relaxed);
            reader.known = Some(CachedKey { key, slot, filling: slot.filling(), entry });
        }
        slot.leave();
    }

    /// Waits until no reader uses a slot that has become invalid and has no users. A reader that announces it
    /// later finds it invalid.
    pub(super) fn wait_for_readers(&self, slot: &Slot) {
        let list = self.readers_of(slot);
        while is_announced(&list, slot) {
            yield_now();
        }
    }

    /// Whether a reader uses such a slot. Does not wait.
    pub(super) fn has_readers(&self, slot: &Slot) -> bool {
        is_announced(&self.readers_of(slot), slot)
    }

    /// The readers that may use a slot which has become invalid and has no users: what they announce is
    /// visible.
    fn readers_of(&self, slot: &Slot) -> Vec<Arc<AtomicUsize>> {
        // No reader remembers it from now on. So no thread has to pass a barrier for most registered memory.
        if !slot.is_remembered.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let readers = &self.readers;
        let Some(barrier) = readers.barrier.get() else { return Vec::new() };
        // A reader that is not in the list yet finds the key invalid.
        let list = readers.list.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if !list.is_empty() && !barrier() {
            readers.is_over.store(true, Ordering::SeqCst);
            // Rare: the system refuses the barrier, which it granted before. Readers that look from now on
            // count their uses. The store of an earlier announcement becomes visible long before this sleep
            // is over.
            #[cfg(not(loom))]
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        list
    }
}

/// Whether a reader announces a slot.
fn is_announced(list: &[Arc<AtomicUsize>], slot: &Slot) -> bool {
    // Acquire: the uses that were announced before have ended, and this thread sees their effects.
    list.iter().any(|announced| announced.load(Ordering::Acquire) == name(slot))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::fence;

    /// A barrier for tests in which readers pass full ones between announcing and looking.
    fn barrier() -> bool {
        fence(Ordering::SeqCst);
        true
    }

    fn keys() -> &'static Keys {
        let keys = Box::leak(Box::new(Keys::new()));
        keys.set_barrier(barrier);
        keys
    }

    fn entry(memory: &[u8], domain: u32) -> Entry {
        Entry {
            address: memory.as_ptr() as usize,
            length: memory.len() as u64,
            iova: 0x1000,
            access: Access::LOCAL_WRITE,
            domain,
            window: None,
            kind: Kind::Program,
        }
    }

    #[test]
    fn a_remembered_key_is_checked_as_at_its_first_use() {
        let keys = keys();
        let memory = [0u8; 64];
        let key = keys.insert(entry(&memory, 7)).unwrap();
        for mut reader in [Reader::new(keys), Reader::default()] {
            let mut open = |key, address, length, rights, domain| {
                keys.open_again(&mut reader, key, address, length, rights, domain).map(|span| span.address())
            };
            let none = Access::empty();
            let start = memory.as_ptr() as usize;
            for _ in 0..2 {
                assert_eq!(open(key, 0x1000, 64, Access::LOCAL_WRITE, 7), Ok(start));
                assert_eq!(open(key, 0x1008, 8, none, 7), Ok(start + 8));
                assert_eq!(open(key, 0x1001, 64, none, 7), Err(AccessError::Bounds));
                assert_eq!(open(key, 0xfff, 1, none, 7), Err(AccessError::Bounds));
                assert_eq!(open(key, u64::MAX, 2, none, 7), Err(AccessError::Wrap));
                assert_eq!(open(key, 0x1000, 1, Access::REMOTE_READ, 7), Err(AccessError::Rights));
                assert_eq!(open(key, 0x1000, 1, none, 8), Err(AccessError::ProtectionDomain));
                assert_eq!(open(key ^ 1, 0x1000, 1, none, 7), Err(AccessError::Key));
            }
        }
        // In a few instructions, nothing else is found than in many.
        let mut reader = Reader::new(keys);
        let other = keys.insert(Entry { kind: Kind::Null, ..entry(&memory, 7) }).unwrap();
        for (key, address, length, rights, domain) in [
            (key, 0x1000, 64, Access::LOCAL_WRITE, 7),
            (key, 0x1008, 8, Access::empty(), 7),
            (key, 0x1001, 64, Access::empty(), 7),
            (key, 0xfff, 1, Access::empty(), 7),
            (key, u64::MAX, 2, Access::empty(), 7),
            (key, 0x1000, 65, Access::empty(), 7),
            (key, 0x1000, 1, Access::REMOTE_READ, 7),
            (key, 0x1000, 1, Access::empty(), 8),
            (key ^ 1, 0x1000, 1, Access::empty(), 7),
        ] {
            let at =
                |reader: &Reader| {
                    keys.with_known(reader, (key, address, length), rights, domain, |address| {
                        assert!(
                            keys.readers.list.lock().unwrap().iter().any(|word| {
                                word.load(Ordering::Relaxed) == name(keys.slot(key).unwrap())
                            })
                        );
                        address
                    })
                };
            let opened = keys.open_again(&mut reader, key, address, length.into(), rights, domain);
            let opened = opened.map(|span| span.address()).ok();
            assert_eq!(at(&reader), opened);
            assert!(keys.readers.list.lock().unwrap().iter().all(|word| word.load(Ordering::Relaxed) == 0));
            // It knows nothing of another key, and a reader that counts knows nothing at all.
            assert_eq!(at(&Reader::default()), None);
        }
        let null = |reader: &Reader| keys.with_known(reader, (other, 0x1000, 8), Access::empty(), 7, |_| ());
        let _ = keys.open_again(&mut reader, other, 0x1000, 8, Access::empty(), 7).map(drop);
        assert!(reader.known.as_ref().is_some_and(|known| known.key == other));
        assert_eq!(null(&reader), None, "its bytes are elsewhere");
        let mut reader = Reader::new(keys);
        let address = |reader: &mut Reader| {
            keys.open_again(reader, key, 0x1000, 8, Access::empty(), 7).map(|span| span.address())
        };
        assert_eq!(address(&mut reader), Ok(memory.as_ptr() as usize));
        // SAFETY: no other thread has the key.
        unsafe { keys.replace(key, entry(&memory[8..], 7)) };
        assert_eq!(address(&mut reader), Ok(memory.as_ptr() as usize + 8), "not what it was before");
        assert_eq!(address(&mut reader), Ok(memory.as_ptr() as usize + 8));
        keys.remove(key);
        assert_eq!(address(&mut reader), Err(AccessError::Key));
    }

    #[test]
    fn removal_waits_for_who_reads() {
        let keys = keys();
        let memory = [0u8; 64];
        let key = keys.insert(entry(&memory, 7)).unwrap();
        let (mut reader, mut other) = (Reader::new(keys), Reader::new(keys));
        let other_key = keys.insert(entry(&memory, 7)).unwrap();
        let of_other = keys.open_again(&mut other, other_key, 0x1000, 8, Access::empty(), 7).ok().unwrap();
        let span = keys.open_again(&mut reader, key, 0x1000, 8, Access::empty(), 7).ok().unwrap();
        let removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                keys.remove(key);
                removed.store(true, Ordering::SeqCst);
            });
            while keys.open_span(key, 0x1000, 8, Access::empty(), 7).is_ok() {
                std::thread::yield_now();
            }
            assert!(!removed.load(Ordering::SeqCst));
            drop(span);
        });
        assert!(removed.load(Ordering::SeqCst));
        drop(of_other);
    }

    #[test]
    fn nobody_passes_a_barrier_for_what_no_reader_knows() {
        static PASSED: AtomicUsize = AtomicUsize::new(0);
        let keys = Box::leak(Box::new(Keys::new()));
        keys.set_barrier(|| PASSED.fetch_add(1, Ordering::SeqCst) < usize::MAX);
        let memory = [0u8; 64];
        let mut reader = Reader::new(keys);
        let [known, unknown] = [(); 2].map(|()| keys.insert(entry(&memory, 7)).unwrap());
        assert!(keys.open_again(&mut reader, known, 0x1000, 8, Access::empty(), 7).is_ok());
        keys.remove(unknown);
        assert_eq!(PASSED.load(Ordering::SeqCst), 0);
        // SAFETY: no other thread has the key.
        unsafe { keys.replace(known, entry(&memory, 7)) };
        assert_eq!(PASSED.load(Ordering::SeqCst), 1);
        keys.remove(known);
        assert_eq!(PASSED.load(Ordering::SeqCst), 1, "it stands for something else by now");
    }

    #[test]
    fn without_a_barrier_everybody_counts() {
        let keys = Box::leak(Box::new(Keys::new()));
        keys.set_barrier(|| false);
        let memory = [0u8; 64];
        let mut reader = Reader::new(keys);
        let first = keys.insert(entry(&memory, 7)).unwrap();
        assert!(keys.open_again(&mut reader, first, 0x1000, 8, Access::empty(), 7).is_ok());
        let key = keys.insert(entry(&memory, 7)).unwrap();
        keys.remove(first);
        for _ in 0..2 {
            let span = keys.open_again(&mut reader, key, 0x1000, 8, Access::empty(), 7).ok().unwrap();
            assert!(keys.is_in_use(key));
            drop(span);
            assert!(!keys.is_in_use(key));
        }
    }
}
