//! Arrays that are made where they stay: one that is made in a variable first needs its length of stack, and
//! the program's threads may have little.

/// An array of things that `make` makes one by one.
pub(crate) fn on_heap<T, const N: usize>(make: impl FnMut() -> T) -> Box<[T; N]> {
    let made: Box<[T]> = std::iter::repeat_with(make).take(N).collect();
    // The same bytes under another name, since the length is right.
    made.try_into().unwrap_or_else(|_| unreachable!("{N} were made"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_array_has_what_was_made_for_it_in_order() {
        let mut next = 0..;
        let made: Box<[u32; 5]> = super::on_heap(|| next.next().unwrap_or(0));
        assert_eq!(*made, [0, 1, 2, 3, 4]);
    }
}
