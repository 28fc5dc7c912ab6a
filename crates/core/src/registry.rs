//! Objects that are alive, for when all of them are to be told something.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A list of objects that other parts own. Thread-safe. Adding one takes constant time, on average.
pub(crate) struct Registry<T: ?Sized>(Mutex<List<T>>);

struct List<T: ?Sized> {
    known: Vec<Weak<T>>,
    /// Dead ones are looked for when there are so many.
    look_at: usize,
}

impl<T: ?Sized> Default for Registry<T> {
    fn default() -> Self {
        Self(Mutex::new(List { known: Vec::new(), look_at: 0 }))
    }
}

impl<T: ?Sized> Registry<T> {
    fn lock(&self) -> MutexGuard<'_, List<T>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds an object. It is there until its last owner lets go of it.
    pub(crate) fn add(&self, new: Weak<T>) {
        const FEW: usize = 16;
        let mut list = self.lock();
        if list.known.len() >= list.look_at {
            list.known.retain(|known| known.strong_count() > 0);
            list.look_at = 2 * list.known.len().max(FEW);
        }
        list.known.push(new);
    }

    /// All objects. Let go of them with no lock held: the last owner may go right then.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().known.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_gone_take_no_room() {
        let registry = Registry::default();
        let kept = Arc::new(7);
        registry.add(Arc::downgrade(&kept));
        for number in 0..1000 {
            registry.add(Arc::downgrade(&Arc::new(number)));
        }
        assert_eq!(registry.all(), [kept]);
        assert!(registry.lock().known.len() <= 32);
    }
}
