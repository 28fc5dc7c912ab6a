//! Memory lent to somebody beyond the life of a span: to a peer on this host, which reads it when it comes to it.
//!
//! Whoever lends bytes stays a user of their key. A deregistration that finds users has every [`Lender`] take back what it has lent of that key; where
//! nothing is lent, it costs nothing.

use super::keys::{Keys, Slot, Span};
use crate::sync::Mutex;
use std::mem::ManuallyDrop;
use std::sync::Weak;

/// A use of a key, to be given back by [`Keys::give_back`]; until then nobody takes the key away.
#[derive(Debug)]
#[must_use = "the key stays in use until it is given back"]
pub struct KeyUse {
    key: u32,
    /// The key of the region under the window, if `key` is a window's.
    under: Option<u32>,
}

/// Somebody who lends memory.
pub trait Lender: Send + Sync {
    /// Takes back, and gives back to the table, all that `is_wanted` is true of. What it does not find is on its way to it, or from it: it is
    /// asked again. The caller may hold any lock, so this takes none but one of its own, under which it waits for nobody.
    fn recall(&self, is_wanted: &dyn Fn(&KeyUse) -> bool);
}

/// All lenders of an engine.
pub(super) type Lenders = Mutex<Vec<Weak<dyn Lender>>>;

impl Span<'_> {
    /// Stays a user of the bytes beyond its own life.
    #[inline]
    pub fn lend(self) -> KeyUse {
        assert!(self.announced.is_none(), "who lends is counted");
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
    /// What was lent is not used any more.
    #[inline]
    pub fn give_back(&self, lent: KeyUse) {
        for key in [Some(lent.key), lent.under].into_iter().flatten() {
            if let Some(slot) = self.slot(key) {
                slot.leave();
            }
        }
    }

    /// Asks somebody when lent memory is wanted back, as long as he exists.
    pub fn add_lender(&self, lender: Weak<dyn Lender>) {
        let mut lenders = self.lenders.lock().unwrap_or_else(|e| e.into_inner());
        lenders.retain(|known| known.strong_count() > 0);
        lenders.push(lender);
    }

    /// Has everybody take back what is lent of a slot.
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
