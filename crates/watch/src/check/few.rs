//! Short lists, of which one element needs no allocation: most requests have one.

use std::ops::Deref;

/// A list of values.
#[derive(Clone, Debug)]
pub(super) struct Few<T> {
    /// The only one.
    one: Option<T>,
    /// All values, if there are more than one.
    more: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { one: None, more: Vec::new() }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.more.is_empty() { self.one.as_slice() } else { &self.more }
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        for value in values {
            if self.is_empty() {
                self.one = Some(value);
            } else {
                self.more.extend(self.one.take());
                self.more.push(value);
            }
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut few = Self::default();
        few.extend(values);
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_was_put_there() {
        for count in 0..5 {
            let few: Few<usize> = (0..count).collect();
            assert_eq!(few.to_vec(), (0..count).collect::<Vec<_>>());
            assert_eq!(few.more.capacity() > 0, count > 1);
        }
    }
}
