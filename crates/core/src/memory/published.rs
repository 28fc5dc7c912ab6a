//! Keys that processes of the same host use by themselves.
//!
//! A [`Publisher`], which the transport installs, can tell other processes which bytes a key opens
//! ([`Keys::publish`]). They may use the bytes without asking from then on, as long as the key is valid.
//! Taking a key back takes it from them, too, and waits until none of them is using it ([`Keys::remove`]).

use super::common;
use super::keys::{Access, Keys, Slot};
use super::moved::{Place, Refusal};
use super::process;
use super::ways;
use crate::sync::{AtomicU16, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Shows other processes which bytes keys open. Thread-safe. Only a thread that takes in a packet calls it
/// with a lock of the transport's held.
pub trait Publisher: Send + Sync {
    /// Key `key`, whose number is `number`, opens this.
    fn publish(&self, number: u32, key: u32, opened: &PublishedBytes);
    /// The key opens nothing any more for a process that looks from now on.
    fn retract(&self, number: u32);
    /// Waits until the processes that have looked before do not use it any more. Bounded: false if one of
    /// them still does.
    fn wait(&self, number: u32) -> bool;
    /// Whether another process uses the key still, for which that has been waited for so long. Does not wait.
    /// Processes that have had the time that [`Publisher::wait`] gives them do not count any more, and are
    /// blamed.
    fn is_used(&self, number: u32, waited: Duration) -> bool;
    /// Waits a few milliseconds at most, as [`Publisher::wait`] does, until no process uses the key any more.
    /// No process is blamed if that takes longer.
    fn wait_a_moment(&self, number: u32) -> bool {
        self.wait(number)
    }
    /// Moves memory, `length` bytes at `address`, while no process is in its pages: all that is published of
    /// them is taken back for that time. At a safe point.
    fn alone(
        &self,
        address: usize,
        length: u64,
        share: &mut dyn FnMut() -> Result<Place, Refusal>,
    ) -> Result<Place, Refusal> {
        let _ = (address, length);
        share()
    }
}

/// The bytes that a key opens for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedBytes {
    /// The address by which peers name the first of the bytes.
    pub first: u64,
    /// The length in bytes.
    pub length: u64,
    /// Address of the first of the bytes in this process.
    pub address: u64,
    /// The rights of the region.
    pub access: Access,
    /// Number of its protection domain.
    pub domain: u32,
    /// Whether the memory file of the process may be used for them ([`process`]): the pages permit what the
    /// region does.
    pub by_file: bool,
    /// The part of the bytes that others can map.
    pub mapped: Option<MappableBytes>,
    /// The program shares them by itself: others may look whether they can map them as they are
    /// ([`super::common`]).
    pub is_common: bool,
}

/// Bytes that others can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableBytes {
    /// Bytes of the region before them: less than a page.
    pub skip: u32,
    /// The length in bytes.
    pub length: u64,
    /// Where the bytes begin in the descriptor that [`Place`] names.
    pub offset: u64,
}

/// A key's state towards other processes.
#[derive(Default)]
pub(super) struct Publication(AtomicU16);

/// The key is, or was, shown to others: they may be using it.
const SHOWN: u16 = 1;
/// A peer has asked for it, once.
const ASKED: u16 = 2;
/// The shown bytes can be mapped.
const MAPPED: u16 = 4;
/// The key has been withdrawn, and a process is using it still.
const HIDDEN: u16 = 8;
/// One request to share that could not be met. The bits from this one on count such requests.
const TRY: u16 = 16;
const MOST_TRIES: u16 = 16;

impl Publication {
    /// Another region begins.
    pub(super) fn begin(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn is_shown(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SHOWN != 0
    }

    fn is_seen(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (SHOWN | HIDDEN) == SHOWN
    }
}

impl Keys {
    /// Installs the publisher, which shows keys to others. The first call counts.
    pub fn set_publisher(&self, publisher: Arc<dyn Publisher>) {
        let _ = self.publisher.set(publisher);
    }

    /// Has memory moved to where others can map it, by `share`, while no process is in its pages: `length`
    /// bytes at `address`. At a safe point.
    pub(crate) fn alone(
        &self,
        address: usize,
        length: u64,
        mut share: impl FnMut() -> Result<Place, Refusal>,
    ) -> Result<Place, Refusal> {
        match self.publisher.get() {
            Some(publisher) => publisher.alone(address, length, &mut share),
            None => share(),
        }
    }

    /// Whether others had better map the memory of this key, and no peer has asked for that before.
    #[inline]
    pub fn asks(&self, key: u32) -> bool {
        let is_idle = |slot: &Slot| slot.publication.0.load(Ordering::Relaxed) & (MAPPED | ASKED) == 0;
        self.slot(key).is_some_and(|slot| is_idle(slot) && slot.is_valid(key) && slot.ask())
    }

    /// The request could not be met for a reason that may pass: [`Keys::asks`] says yes once more, so many
    /// times in all.
    pub fn may_ask_again(&self, key: u32) {
        if let Some(slot) = self.slot(key) {
            let again = |state| (state < TRY * MOST_TRIES).then_some((state & !ASKED) + TRY);
            let _ = slot.publication.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, again);
        }
    }

    /// Whether a key has been published, and not been taken back.
    pub fn is_published(&self, key: u32) -> bool {
        self.slot(key).is_some_and(|slot| slot.is_valid(key) && slot.publication.is_shown())
    }

    /// Whether other processes can map the bytes of a key.
    pub fn is_mapped(&self, key: u32) -> bool {
        let is_mapped = |slot: &Slot| slot.publication.0.load(Ordering::SeqCst) & MAPPED != 0;
        self.slot(key).is_some_and(|slot| slot.is_valid(key) && is_mapped(slot))
    }

    /// Shows other processes the bytes of a region's key. `place` has the pages of it that they can map, if
    /// any; `is_so` says whether the region which has given them is still registered. No effect if it is
    /// shown already. False if the key has gone, or stands for other bytes by now. For one thread at a time.
    pub fn publish(&self, key: u32, place: Option<&Place>, is_so: impl FnOnce() -> bool) -> bool {
        let (Some(publisher), Some(slot)) = (self.publisher.get(), self.slot(key)) else { return false };
        // Counted as a user: no thread fills it with something else meanwhile.
        let Ok(entry) = slot.look(key) else { return false };
        // A region that has been changed keeps its key, and has left its pages. If that begins now, it waits
        // for us.
        if !is_so() {
            slot.leave();
            return false;
        }
        if slot.publication.is_seen() {
            slot.leave();
            return true;
        }
        let mapped = place.map(|place| {
            let skip = (place.address as u64).checked_sub(entry.address as u64)?;
            let is_inside = skip.checked_add(place.length as u64).is_some_and(|end| end <= entry.length);
            let skip = u32::try_from(skip).ok().filter(|_| is_inside)?;
            Some(MappableBytes { skip, length: place.length as u64, offset: place.offset })
        });
        // A place that holds none of the key's bytes belongs to another region.
        let is_strange = matches!(mapped, Some(None));
        if is_strange || !ways::may_be_shown(entry.kind, entry.window.is_some()) {
            slot.leave();
            return false;
        }
        let number = self.number(key);
        let to_write = entry.access.contains(Access::REMOTE_WRITE);
        let opened = PublishedBytes {
            first: entry.iova,
            length: entry.length,
            address: entry.address as u64,
            access: entry.access,
            domain: entry.domain,
            by_file: ways::by_file(entry.access, || {
                process::may_be_copied(entry.address, entry.length, to_write)
            }),
            mapped: mapped.flatten(),
            is_common: ways::by_common(entry.access, place.is_some(), || {
                common::is_shared(entry.address, entry.length).is_ok()
            }),
        };
        publisher.publish(number, key, &opened);
        let shown = if opened.mapped.is_some() { SHOWN | MAPPED } else { SHOWN };
        slot.publication.0.fetch_or(shown, Ordering::SeqCst);
        slot.publication.0.fetch_and(!HIDDEN, Ordering::SeqCst);
        // A thread that has invalidated the key meanwhile may have found nothing to take back.
        let valid = slot.is_valid(key);
        if !valid {
            publisher.retract(number);
        }
        slot.leave();
        valid
    }

    /// Hides a key, which stays valid, from other processes, and waits a moment until none of them uses it.
    /// False if one has not ended its use: then the key is to be published again as it was.
    pub fn withdraw(&self, key: u32) -> bool {
        let (Some(publisher), Some(slot)) = (self.publisher.get(), self.slot(key)) else { return true };
        // As above. A thread that takes the key away waits for this one.
        if slot.look(key).is_err() {
            return true;
        }
        let mut ended = true;
        if slot.publication.is_shown() {
            let number = self.number(key);
            publisher.retract(number);
            ended = publisher.wait_a_moment(number);
            if ended {
                slot.publication.0.fetch_and(!(SHOWN | MAPPED), Ordering::SeqCst);
            } else {
                // A thread that takes the key away waits for that process.
                slot.publication.0.fetch_or(HIDDEN, Ordering::SeqCst);
            }
        }
        slot.leave();
        ended
    }

    /// Waits until no other process uses a key that has been taken from it.
    pub(super) fn wait_for_others(&self, slot: &Slot, key: u32) {
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.wait(self.number(key));
        }
    }

    /// The key is invalid from now on: the publisher tells others.
    pub(super) fn retract(&self, slot: &Slot, key: u32) {
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.retract(self.number(key));
        }
    }

    /// Waits until no thread uses an invalid key any more, in this process or another.
    pub(super) fn end_uses(&self, slot: &Slot, key: u32) {
        // In this order: a thread that remembers a key in a reader counts as a user meanwhile.
        self.wait_for_users(slot);
        self.wait_for_readers(slot);
        // The word stays until the next use of the slot. So a second thread that comes while this one waits
        // here waits, too.
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.retract(self.number(key));
        }
        self.wait_for_others(slot, key);
    }
}

impl Keys {
    /// Whether anybody uses an invalid key still, in this process or another: as [`Keys::end_uses`], but
    /// nobody is waited for. `waited`: for how long the caller has been asking.
    pub(super) fn are_uses_left(&self, slot: &Slot, key: u32, waited: Duration) -> bool {
        if self.is_used_still(slot) || self.has_readers(slot) {
            return true;
        }
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            let number = self.number(key);
            publisher.retract(number);
            return publisher.is_used(number, waited);
        }
        false
    }
}

impl Slot {
    #[cold]
    fn ask(&self) -> bool {
        self.publication.0.fetch_or(ASKED, Ordering::Relaxed) & ASKED == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Entry, Kind};
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Book(Mutex<Vec<String>>, std::sync::atomic::AtomicBool);

    impl Publisher for Book {
        fn publish(&self, number: u32, _: u32, opened: &PublishedBytes) {
            let PublishedBytes { first, length, address, mapped, .. } = opened;
            let mapped = mapped.map(|MappableBytes { skip, length, offset }| (skip, length, offset));
            self.0.lock().unwrap().push(format!("{number}: {first:#x} {length} {address:#x} {mapped:?}"));
        }
        fn retract(&self, number: u32) {
            self.0.lock().unwrap().push(format!("{number} retracted"));
        }
        fn wait(&self, number: u32) -> bool {
            self.0.lock().unwrap().push(format!("{number} waited for"));
            true
        }
        fn is_used(&self, number: u32, waited: Duration) -> bool {
            self.0.lock().unwrap().push(format!("{number} looked for"));
            waited.is_zero()
        }
        fn wait_a_moment(&self, number: u32) -> bool {
            self.0.lock().unwrap().push(format!("{number} waited for a moment"));
            !self.1.load(Ordering::SeqCst)
        }
    }

    /// A process that is in the middle of an operation, and stopped.
    #[test]
    fn a_key_in_use_is_shown_again_and_waited_for_in_the_end() {
        let keys = Keys::new();
        let book = Arc::new(Book::default());
        keys.set_publisher(book.clone());
        let said = || std::mem::take(&mut *book.0.lock().unwrap());
        let (access, kind) = (Access::REMOTE_WRITE, Kind::Program);
        let entry =
            Entry { address: 0x1_0000, length: 0x1000, iova: 0, access, domain: 1, window: None, kind };
        let key = keys.insert(entry).unwrap();
        assert!(keys.publish(key, None, || true));
        let first = said();
        book.1.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            assert!(!keys.withdraw(key));
            assert_eq!(said(), ["0 retracted", "0 waited for a moment"]);
            assert!(keys.publish(key, None, || true));
            assert_eq!(said(), first, "as it was");
            assert!(keys.publish(key, None, || true) && said().is_empty(), "once");
        }
        assert!(!keys.withdraw(key));
        said();
        keys.remove(key);
        assert_eq!(said().last().map(String::as_str), Some("0 waited for"), "until that has ended");
    }

    #[test]
    fn published_bytes_are_taken_back_with_their_key() {
        let keys = Keys::new();
        let book = Arc::new(Book::default());
        keys.set_publisher(book.clone());
        let said = || std::mem::take(&mut *book.0.lock().unwrap());
        let entry = Entry {
            address: 0x1_0000,
            length: 0x3000,
            iova: 0x500,
            access: Access::REMOTE_WRITE,
            domain: 1,
            window: None,
            kind: Kind::Program,
        };
        let key = keys.insert(entry).unwrap();
        assert!(keys.asks(key) && !keys.asks(key));
        let here = || true;
        let place = |address, length| Place { descriptor: -1, offset: 0x7000, length, address };
        assert!(
            !keys.publish(key, Some(&place(0xf000, 0x1000)), here)
                && !keys.publish(key, Some(&place(0x1_1000, 0x3000)), here)
        );
        assert!(!keys.publish(key, Some(&place(0x1_1000, 0x2000)), || false), "another region has the key");
        assert!(said().is_empty());
        // First for the kernel's copy, then to be mapped.
        assert!(keys.publish(key, None, here));
        assert_eq!(said(), ["0: 0x500 12288 0x10000 None"]);
        assert!(keys.is_published(key) && !keys.is_mapped(key));
        keys.may_ask_again(key);
        assert!(keys.asks(key));
        assert!(keys.withdraw(key) && !keys.is_published(key));
        assert_eq!(said(), ["0 retracted", "0 waited for a moment"]);
        assert!(keys.publish(key, Some(&place(0x1_1000, 0x2000)), here));
        assert_eq!(said(), ["0: 0x500 12288 0x10000 Some((4096, 8192, 28672))"]);
        assert!(!keys.asks(key) && keys.is_mapped(key));

        // A thread that takes it back waits.
        assert_eq!(keys.invalidate_for_peer(key, 1, 9, true), Ok(()));
        assert_eq!(said(), ["0 retracted", "0 waited for"]);
        assert!(!keys.publish(key, Some(&place(0x1_1000, 0x2000)), here) && said().is_empty());
        keys.remove(key);
        assert_eq!(said(), ["0 retracted", "0 waited for"]);

        let key = keys.insert(entry).unwrap();
        assert!(keys.asks(key));
        keys.remove(key);
        assert!(said().is_empty(), "what was not shown need not be taken back");

        // A request does not wait, and looks again.
        let key = keys.insert(entry).unwrap();
        assert!(keys.publish(key, None, here));
        said();
        assert_eq!(keys.invalidate_locally(key, 1, 9), Ok(()));
        assert_eq!(said(), ["2 retracted"]);
        assert!(keys.has_uses_left(key, Duration::ZERO));
        assert_eq!(said(), ["2 retracted", "2 looked for"]);
        assert!(!keys.has_uses_left(key, Duration::from_secs(1)));
        assert_eq!(said(), ["2 retracted", "2 looked for"]);
        keys.remove(key);
        said();

        let key = keys.insert(entry).unwrap();
        assert!(keys.publish(key, Some(&place(0x1_1000, 0x2000)), here));
        said();
        // SAFETY: no thread uses the key.
        unsafe { keys.replace(key, entry) };
        assert_eq!(said(), ["3 retracted", "3 retracted", "3 waited for"]);
        assert!(keys.asks(key), "what is there now has not been asked for");
        for _ in 0..MOST_TRIES {
            keys.may_ask_again(key);
            assert!(keys.asks(key));
        }
        keys.may_ask_again(key);
        assert!(!keys.asks(key), "not for ever");
    }
}
