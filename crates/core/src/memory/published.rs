//! Keys that processes of the same host use by themselves.
//!
//! What a key opens may be told to others ([`Keys::publish`]): a [`Publisher`], which the transport installs, shows it to them. They may use the
//! bytes without asking from then on, as long as the key is valid. Taking a key back takes it from them, too, and waits until none of them
//! is using it ([`Keys::remove`]).

use super::keys::{Access, Keys, Kind, Slot};
use super::moved::Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Shows other processes what keys open. Thread-safe; called with no lock of the transport's held but by whoever takes in a packet.
pub trait Publisher: Send + Sync {
    /// Key `key`, whose number is `number`, opens this.
    fn publish(&self, number: u32, key: u32, opened: &Opened);
    /// It opens nothing any more for whoever looks from now on.
    fn retract(&self, number: u32);
    /// Waits until nobody uses it who has looked before that. Bounded.
    fn wait(&self, number: u32);
}

/// What a key opens for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What peers call the first of the bytes.
    pub first: u64,
    /// Bytes.
    pub length: u64,
    /// Where they begin in the descriptor that [`Place`] names.
    pub offset: u64,
    /// Their first one in this process.
    pub address: u64,
    /// What the region permits.
    pub access: Access,
    /// Number of its protection domain.
    pub domain: u32,
}

/// A key's state towards other processes.
#[derive(Default)]
pub(super) struct Publication(AtomicU8);

/// It is, or was, shown to others: they may be using it.
const SHOWN: u8 = 1;
/// Somebody has asked for it, once.
const ASKED: u8 = 2;
/// Counts in the bits above how often it was asked for in vain.
const TRY: u8 = 4;
const MOST_TRIES: u8 = 16;

impl Publication {
    /// Another region begins.
    pub(super) fn begin(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    fn is_shown(&self) -> bool {
        self.0.load(Ordering::SeqCst) & SHOWN != 0
    }
}

impl Keys {
    /// Installs who shows keys to others. The first call counts.
    pub fn set_publisher(&self, publisher: Arc<dyn Publisher>) {
        let _ = self.publisher.set(publisher);
    }

    /// Whether it would be worth it to have this key published, and nobody has asked that before.
    #[inline]
    pub fn asks(&self, key: u32) -> bool {
        let is_idle = |slot: &Slot| slot.publication.0.load(Ordering::Relaxed) & (SHOWN | ASKED) == 0;
        self.slot(key).is_some_and(|slot| is_idle(slot) && slot.is_valid(key) && slot.ask())
    }

    /// What was asked for could not be done for a reason that may pass: [`Keys::asks`] says yes once more, so many times in all.
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

    /// Shows others what a region's key opens of these pages, if `is_so`: that the region which has given them is still registered. False if the key has
    /// gone, or stands for something else by now. For one thread at a time.
    pub fn publish(&self, key: u32, place: &Place, is_so: impl FnOnce() -> bool) -> bool {
        let (Some(publisher), Some(slot)) = (self.publisher.get(), self.slot(key)) else { return false };
        // Counted as a user: nobody fills it with something else meanwhile.
        let Ok(entry) = slot.look(key) else { return false };
        // A region that has been changed keeps its key, and has left its pages. If that begins now, it waits for us.
        if !is_so() {
            slot.leave();
            return false;
        }
        if slot.publication.is_shown() {
            slot.leave();
            return true;
        }
        let before = (place.address as u64).checked_sub(entry.address as u64);
        let inside = before
            .filter(|before| before.checked_add(place.length as u64).is_some_and(|end| end <= entry.length));
        let opens = match inside {
            Some(before) if entry.window.is_none() && entry.kind == Kind::Program => {
                let number = self.number(key);
                publisher.publish(
                    number,
                    key,
                    &Opened {
                        first: entry.iova + before,
                        length: place.length as u64,
                        offset: place.offset,
                        address: place.address as u64,
                        access: entry.access,
                        domain: entry.domain,
                    },
                );
                slot.publication.0.fetch_or(SHOWN, Ordering::SeqCst);
                // Whoever has invalidated it meanwhile may have found nothing to take back.
                let valid = slot.is_valid(key);
                if !valid {
                    publisher.retract(number);
                }
                valid
            }
            _ => false,
        };
        slot.leave();
        opens
    }

    /// Waits until no other process uses a key that has been taken from it.
    pub(super) fn wait_for_others(&self, slot: &Slot, key: u32) {
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.wait(self.number(key));
        }
    }

    /// The key has just become invalid: others are told.
    pub(super) fn retract(&self, slot: &Slot, key: u32) {
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.retract(self.number(key));
        }
    }

    /// Waits until nobody uses an invalid key any more, in this process or another.
    pub(super) fn end_uses(&self, slot: &Slot, key: u32) {
        // In this order: whoever remembers a key counts as a user for that.
        self.wait_for_users(slot);
        self.wait_for_readers(slot);
        // Not forgotten before the next use of the slot: whoever comes while another thread waits here waits, too.
        if slot.publication.is_shown()
            && let Some(publisher) = self.publisher.get()
        {
            publisher.retract(self.number(key));
        }
        self.wait_for_others(slot, key);
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
    use super::super::keys::Entry;
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Book(Mutex<Vec<String>>);

    impl Publisher for Book {
        fn publish(&self, number: u32, _: u32, opened: &Opened) {
            let Opened { first, length, offset, address, .. } = opened;
            self.0.lock().unwrap().push(format!("{number}: {first:#x} {length} {offset} {address:#x}"));
        }
        fn retract(&self, number: u32) {
            self.0.lock().unwrap().push(format!("{number} retracted"));
        }
        fn wait(&self, number: u32) {
            self.0.lock().unwrap().push(format!("{number} waited for"));
        }
    }

    #[test]
    fn what_is_published_is_taken_back_with_its_key() {
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
            !keys.publish(key, &place(0xf000, 0x1000), here)
                && !keys.publish(key, &place(0x1_1000, 0x3000), here)
        );
        assert!(!keys.publish(key, &place(0x1_1000, 0x2000), || false), "another region has the key");
        assert!(said().is_empty());
        assert!(keys.publish(key, &place(0x1_1000, 0x2000), here));
        assert_eq!(said(), ["0: 0x1500 8192 28672 0x11000"]);
        assert!(!keys.asks(key));

        // Whoever takes it back, waits.
        assert_eq!(keys.invalidate_for_peer(key, 1, 9, true), Ok(()));
        assert_eq!(said(), ["0 retracted", "0 waited for"]);
        assert!(!keys.publish(key, &place(0x1_1000, 0x2000), here) && said().is_empty());
        keys.remove(key);
        assert_eq!(said(), ["0 retracted", "0 waited for"]);

        let key = keys.insert(entry).unwrap();
        assert!(keys.asks(key));
        keys.remove(key);
        assert!(said().is_empty(), "what was not shown need not be taken back");

        let key = keys.insert(entry).unwrap();
        assert!(keys.publish(key, &place(0x1_1000, 0x2000), here));
        said();
        // SAFETY: nobody uses the key.
        unsafe { keys.replace(key, entry) };
        assert_eq!(said(), ["2 retracted", "2 retracted", "2 waited for"]);
        assert!(keys.asks(key), "what is there now has not been asked for");
        for _ in 0..MOST_TRIES {
            keys.may_ask_again(key);
            assert!(keys.asks(key));
        }
        keys.may_ask_again(key);
        assert!(!keys.asks(key), "not for ever");
    }
}
