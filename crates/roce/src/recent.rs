//! A bounded memory of entries in use. New entries, however many come, push out only those that no thread has
//! asked for meanwhile.

use std::collections::HashMap;
use std::hash::Hash;

/// A bounded memory of entries in use, in two generations. When the younger one is full, the older one goes.
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// Entries of a generation.
    most: usize,
}

impl<K: Eq + Hash + Copy, V: Copy> Recent<K, V> {
    /// A set that remembers at least the last `most` that were in use, and never more than twice as many.
    pub(crate) fn new(most: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), most }
    }

    /// The value of `key`, which is in use.
    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(*value);
        }
        let value = self.old.remove(key)?;
        self.insert(*key, value);
        Some(value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.most && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_in_use_stays_though_many_others_come() {
        let mut recent = Recent::new(100);
        recent.insert(0, 7);
        for other in 1..10_000 {
            recent.insert(other, 0);
            if other % 50 == 0 {
                assert_eq!(recent.get(&0), Some(7), "{other}");
            }
            assert!(recent.young.len() + recent.old.len() <= 200);
        }
        assert_eq!((recent.get(&9_999), recent.get(&1)), (Some(0), None));
        assert_eq!((recent.remove(&0), recent.get(&0)), (Some(7), None));
    }
}
