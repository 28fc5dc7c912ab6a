//! Ranges of a buffer that is used round and round.

/// Bytes of a ring: its part up to the end of the buffer, and the rest from its beginning. Offset and length
/// of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// The first part.
    pub first: (usize, usize),
    /// The second part, from offset 0 on; mostly empty.
    pub second: (usize, usize),
}

impl Pieces {
    pub(super) fn new(size: usize, start: usize, length: usize) -> Self {
        let before_end = length.min(size - start);
        Self { first: (start, before_end), second: (0, length - before_end) }
    }

    /// The parts that are not empty.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        [self.first, self.second].into_iter().filter(|(_, length)| *length > 0)
    }
}

/// Hands out the bytes of a buffer in turn, and takes them back in the same order.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    size: usize,
    next: usize,
    free: usize,
}

impl Ring {
    pub(super) fn new(size: usize) -> Self {
        Self { size, next: 0, free: size }
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free == self.size
    }

    /// The next `length` bytes, which must be free.
    pub(super) fn peek(&self, length: usize) -> Pieces {
        Pieces::new(self.size, self.next, length.min(self.free))
    }

    pub(super) fn take(&mut self, length: usize) {
        let length = length.min(self.free);
        self.free -= length;
        self.next = (self.next + length) % self.size;
    }

    pub(super) fn give_back(&mut self, length: usize) {
        self.free = (self.free + length).min(self.size);
        if self.is_empty() {
            // The bytes used last are still in the cache.
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_and_round() {
        let mut ring = Ring::new(10);
        assert_eq!(ring.peek(7), Pieces { first: (0, 7), second: (0, 0) });
        ring.take(7);
        assert_eq!(ring.free(), 3);
        ring.give_back(6);
        let pieces = ring.peek(8);
        assert_eq!(pieces, Pieces { first: (7, 3), second: (0, 5) });
        assert_eq!(pieces.iter().collect::<Vec<_>>(), [(7, 3), (0, 5)]);
        ring.take(8);
        assert_eq!((ring.peek(9), ring.free()), (Pieces { first: (5, 1), second: (0, 0) }, 1));
        // All given back: it begins anew.
        ring.give_back(9);
        assert!(ring.is_empty());
        assert_eq!(ring.peek(3).first, (0, 3));
    }
}
