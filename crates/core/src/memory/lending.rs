//! Uses of a key that last longer than a span: the memory is lent to a peer on this host, which reads it
//! later.
//!
//! A thread that lends bytes stays a user of their key until they are given back. A deregistration that finds
//! users has every [`Lender`] take back its loans of that key. Where nothing is lent, it costs nothing.

use super::keys::{Keys, Slot, Span};
use crate::sync::Mutex;
use std::mem::ManuallyDrop;
use std::sync::Weak;

/// A use of a key, to be given back by [`Keys::give_back`]. Until then a thread that takes the key away
/// waits.
#[derive(Debug)]
#[must_use = "the key stays in use until it is given back"]
pub struct KeyUse {
    key: u32,
    /// The key of the region under the window, if `key` is a window's.
    under: Option<u32>,
}

/// A lender of memory: it keeps the uses of keys that it has lent, and can take them back.
pub trait Lender: Send + Sync {
    /// Takes back all uses that `is_wanted` is true of, and gives them back to the table. A use that it does
    /// not find is on its way to it, or from it: the lender is asked again. The caller may hold any lock. So
    /// this takes only a lock of its own, under which no thread waits for another.
    fn recall(&self, is_wanted: &dyn Fn(&KeyUse) -> bool);
}

/// All lenders of an engine.
pub(super) type Lenders = Mutex<Vec<Weak<dyn Lender>>>;

impl Span<'_> {
    /// Stays a user of the bytes beyond its own life.
    #[inline]
    pub fn lend(self) -> KeyUse {
        assert!(self.announced.is_none(), "a use that is lent is counted");
        let kept = ManuallyDrop::new(self);
        KeyUse { key: kept.slot.key(), under: kept.under.map(Slot::key) }
    }
}

impl KeyUse {
    /// The key of the region that it is of, if it was not lent through a window.
    pub fn region(&self) -> Option<u32> {
        self.under.is_none().then_some(self.key)
    }
}

impl Keys {
    /// The lent memory is not used any more.
    #[inline]
    pub fn give_back(&self, lent: KeyUse) {
        for key in [Some(lent.key), lent.under].into_iter().flatten() {
            if let Some(slot) = self.slot(key) {
                slot.leave();
            }
        }
    }

    /// From now on, asks this lender when lent memory is wanted back, as long as the lender exists.
    pub fn add_lender(&self, lender: Weak<dyn Lender>) {
        let mut lenders = self.lenders.lock().unwrap_or_else(|e| e.into_inner());
        lenders.retain(|known| known.strong_count() > 0);
        lenders.push(lender);
    }

    /// Has every lender take back its loans of a slot.
    #[cold]
    pub(super) fn recall(&self, slot: &Slot) {
        let lenders = self.lenders.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let is_of = |key: u32| self.slot(key).is_some_and(|known| std::ptr::eq(known, slot));
        for lender in lenders.iter().filter_map(Weak::upgrade) {
            lender.recall(&|lent| is_of(lent.key) || lent.under.is_some_and(is_of));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Access, Entry, Kind};
    use super::*;
    use std::sync::Arc;

    struct Shelf(Arc<Keys>, Mutex<Vec<KeyUse>>);

    impl Lender for Shelf {
        fn recall(&self, is_wanted: &dyn Fn(&KeyUse) -> bool) {
            for lent in self.1.lock().unwrap().extract_if(.., |lent| is_wanted(lent)) {
                self.0.give_back(lent);
            }
        }
    }

    #[test]
    fn the_end_of_a_key_takes_back_what_is_lent_of_it_alone() {
        let keys = Arc::new(Keys::new());
        let memory = [0u8; 16];
        let entry = Entry {
            address: memory.as_ptr() as usize,
            length: 16,
            iova: 0,
            access: Access::empty(),
            domain: 1,
            window: None,
            kind: Kind::Program,
        };
        let shelf = Arc::new(Shelf(keys.clone(), Mutex::default()));
        let weak: Weak<Shelf> = Arc::downgrade(&shelf);
        keys.add_lender(weak);
        let made = [keys.insert(entry).unwrap(), keys.insert(entry).unwrap()];
        for key in made {
            let span = keys.open_span(key, 0, 8, Access::empty(), 1).ok().unwrap();
            shelf.1.lock().unwrap().push(span.lend());
        }
        keys.remove(made[0]);
        assert_eq!(shelf.1.lock().unwrap().len(), 1);
        assert!(keys.open_span(made[1], 0, 8, Access::empty(), 1).is_ok());
        keys.remove(made[1]);
        assert!(shelf.1.lock().unwrap().is_empty());
    }
}
