//! Lists that a thread uses again for each call, so that a post or poll allocates nothing.

use std::cell::Cell;
use std::thread::LocalKey;

/// A list of a thread, while it is not in use.
pub(super) struct Spare<T>(Cell<Vec<T>>);

/// A list of more elements is not kept.
const MOST: usize = 16 << 10;

impl<T> Spare<T> {
    pub(super) const fn new() -> Self {
        Self(Cell::new(Vec::new()))
    }
}

/// The list, which is empty. A thread that ends has none any more, and makes one.
pub(super) fn take<T>(spare: &'static LocalKey<Spare<T>>) -> Vec<T> {
    spare.try_with(|spare| spare.0.take()).unwrap_or_default()
}

/// Keeps the list for the next call.
pub(super) fn keep<T>(spare: &'static LocalKey<Spare<T>>, mut list: Vec<T>) {
    list.clear();
    if list.capacity() <= MOST {
        // A thread that ends keeps no memory.
        let _ = spare.try_with(|spare| spare.0.set(list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static LIST: Spare<u8> = const { Spare::new() };
    }

    #[test]
    fn a_list_is_the_same_and_empty_and_a_long_one_goes() {
        let mut list = take(&LIST);
        list.extend([1, 2, 3]);
        let place = list.as_ptr();
        keep(&LIST, list);
        let list = take(&LIST);
        assert_eq!((list.as_ptr(), list.len()), (place, 0));
        keep(&LIST, Vec::with_capacity(MOST + 1));
        assert_eq!(take(&LIST).capacity(), 0);
    }
}
