//! A list that only grows, for things of which a process has a handful and never gives one back.
//!
//! It needs no lock: a child of fork would inherit a lock that another thread held, for ever locked.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

/// The list. Entries are never freed.
pub struct GrowList<T: 'static> {
    first: AtomicPtr<Node<T>>,
}

impl<T> GrowList<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()) }
    }

    /// The first entry that `wanted` picks.
    pub fn find(&'static self, wanted: impl Fn(&T) -> bool) -> Option<&'static T> {
        search(self.first.load(Ordering::Acquire), &wanted)
    }

    /// The entry that `wanted` picks, or a new one from `make`. If two threads make one, one of them is
    /// dropped again.
    pub fn find_or_add<E>(
        &'static self,
        wanted: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        let mut seen = self.first.load(Ordering::Acquire);
        if let Some(found) = search(seen, &wanted) {
            return Ok(found);
        }
        let new = Box::into_raw(Box::new(Node { value: make()?, next: seen }));
        loop {
            match self.first.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just leaked, and never freed.
                Ok(_) => return Ok(unsafe { &(*new).value }),
                Err(other) => seen = other,
            }
            if let Some(found) = search(seen, &wanted) {
                // SAFETY: nobody has seen the new node.
                drop(unsafe { Box::from_raw(new) });
                return Ok(found);
            }
            // SAFETY: nobody has seen the new node.
            unsafe { (*new).next = seen };
        }
    }
}

impl<T> Default for GrowList<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn search<T>(mut at: *mut Node<T>, wanted: &impl Fn(&T) -> bool) -> Option<&'static T> {
    // SAFETY: nodes are published complete and never freed.
    while let Some(node) = unsafe { at.as_ref() } {
        if wanted(&node.value) {
            return Some(&node.value);
        }
        at = node.next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_entry_for_each_value_whoever_adds_it() {
        static LIST: GrowList<u32> = GrowList::new();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    (0..100u32)
                        .map(|n| {
                            let entry = LIST.find_or_add(|value| *value == n, || Ok::<_, ()>(n));
                            std::ptr::from_ref(entry.expect("no error")) as usize
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let mut seen = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let first = seen.next().expect("four threads");
        assert!(seen.all(|other| other == first));
        assert_eq!(LIST.find_or_add(|_| false, || Err::<u32, _>(7)), Err(7));
        assert_eq!((LIST.find(|value| *value == 7), LIST.find(|value| *value == 100)), (Some(&7), None));
    }
}
