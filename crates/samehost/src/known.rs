//! What records of a channel were for, by number: so that for most of them no table is searched that others
//! use.

use arrayvec::ArrayVec;

/// The receivers of the last records of a channel, by number: at most eight entries, so that for most records
/// no table is searched.
pub struct LookupCache<E> {
    /// How often the table had changed.
    changes: u64,
    /// The place of the one that was found last.
    last: usize,
    list: ArrayVec<(u32, E), 8>,
}

impl<E> Default for LookupCache<E> {
    fn default() -> Self {
        Self { changes: 0, last: 0, list: ArrayVec::new() }
    }
}

impl<E> LookupCache<E> {
    /// The entry with this number in a table that has changed so often, or as `search` finds it there.
    #[inline]
    pub fn find(&mut self, changes: u64, number: u32, search: impl FnOnce() -> Option<E>) -> Option<&E> {
        if self.changes != changes {
            self.changes = changes;
            self.list.clear();
        }
        // Messages come in series.
        if self.list.get(self.last).is_some_and(|(known, _)| *known == number) {
            return Some(&self.list[self.last].1);
        }
        let found = match self.list.iter().position(|(known, _)| *known == number) {
            Some(found) => found,
            None => {
                let new = search()?;
                if self.list.is_full() {
                    self.list.remove(0);
                }
                self.list.push((number, new));
                self.list.len() - 1
            }
        };
        self.last = found;
        Some(&self.list[found].1)
    }
}
