//! Memory that the program names in a call: the parts of an I/O vector, one after the other.

use adverb_core::error::{Error, Result};
use adverb_core::memory::{copy_from, copy_to};
use adverb_core::region::Pages;
use adverb_proto::rsocket::Pieces;

/// Parts of memory, used up from the front. It may be bad: then copying says EFAULT.
pub struct Vector<'a> {
    parts: &'a [libc::iovec],
    /// Bytes of the first part that are used.
    used: usize,
    left: usize,
}

impl<'a> Vector<'a> {
    /// All bytes of the parts. EINVAL if their number does not fit into what calls return.
    ///
    /// # Safety
    /// The program gave this memory to be read, or if the vector is filled, to be written, until the call
    /// ends.
    pub unsafe fn new(parts: &'a [libc::iovec]) -> Result<Self> {
        let mut left = 0usize;
        for part in parts {
            left = left
                .checked_add(part.iov_len)
                .filter(|sum| *sum <= isize::MAX as usize)
                .ok_or_else(|| Error::invalid("the I/O vector is longer than memory can be"))?;
        }
        Ok(Self { parts, used: 0, left })
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Where the next `length` bytes lie, if they are in one part.
    pub(crate) fn contiguous(&mut self, length: usize) -> Option<usize> {
        self.skip_empty();
        let part = self.parts.first()?;
        (part.iov_len - self.used >= length).then(|| part.iov_base as usize + self.used)
    }

    fn skip_empty(&mut self) {
        while let Some(part) = self.parts.first()
            && self.used >= part.iov_len
        {
            self.parts = &self.parts[1..];
            self.used = 0;
        }
    }

    /// Passes over bytes.
    pub(crate) fn advance(&mut self, mut length: usize) {
        length = length.min(self.left);
        self.left -= length;
        while length > 0 {
            self.skip_empty();
            let Some(part) = self.parts.first() else { return };
            let here = length.min(part.iov_len - self.used);
            self.used += here;
            length -= here;
        }
    }

    /// Calls `act` for the parts of the next `length` bytes: address and length.
    fn each(
        &self,
        mut length: usize,
        mut act: impl FnMut(usize, usize) -> std::result::Result<(), adverb_core::memory::Fault>,
    ) -> Result<()> {
        let mut used = self.used;
        for part in self.parts {
            let here = length.min(part.iov_len - used);
            if here > 0 {
                act(part.iov_base as usize + used, here).map_err(|_| bad_address())?;
            }
            length -= here;
            used = 0;
            if length == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Copies the next bytes to `place` of `pages`. Nothing is used up.
    ///
    /// # Safety
    /// Nobody has a reference to these bytes of `pages`.
    pub(crate) unsafe fn copy_to(&self, pages: &Pages, place: Pieces) -> Result<()> {
        let mut walk = Walk(place);
        let length = place.first.1 + place.second.1;
        self.each(length, |address, length| {
            walk.each(length, |done, at, length| {
                // SAFETY: the program gave the source; the caller vouches for the target.
                unsafe { pages.copy_in(at, address + done, length) }
            })
        })
    }

    /// Copies `place` of `pages` to the next bytes. Nothing is used up.
    pub(crate) fn copy_from(&self, pages: &Pages, place: Pieces) -> Result<()> {
        let mut walk = Walk(place);
        let length = place.first.1 + place.second.1;
        self.each(length, |address, length| {
            walk.each(length, |done, at, length| {
                // SAFETY: the program gave the target.
                unsafe { pages.copy_out(at, address + done, length) }
            })
        })
    }

    /// Reads the next bytes into `target`, as many as it has. Nothing is used up.
    pub(crate) fn read(&self, target: &mut [u8]) -> Result<()> {
        let mut done = 0;
        self.each(target.len(), |address, length| {
            // SAFETY: the program gave the source.
            unsafe { copy_from(&mut target[done..done + length], address)? };
            done += length;
            Ok(())
        })
    }

    /// Writes `source` to the next bytes. Nothing is used up.
    pub(crate) fn write(&self, source: &[u8]) -> Result<()> {
        let mut done = 0;
        self.each(source.len(), |address, length| {
            // SAFETY: the program gave the target.
            unsafe { copy_to(address, &source[done..done + length])? };
            done += length;
            Ok(())
        })
    }
}

fn bad_address() -> Error {
    Error::new(libc::EFAULT, "the program's buffer is not memory that it has")
}

/// Goes through pieces.
struct Walk(Pieces);

impl Walk {
    /// Calls `act` for the parts of the next `length` bytes: what is done before, offset, length.
    fn each<E>(
        &mut self,
        length: usize,
        mut act: impl FnMut(usize, usize, usize) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut done = 0;
        for piece in [&mut self.0.first, &mut self.0.second] {
            let here = piece.1.min(length - done);
            if here > 0 {
                act(done, piece.0, here)?;
                *piece = (piece.0 + here, piece.1 - here);
                done += here;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(address: usize, length: usize) -> libc::iovec {
        libc::iovec { iov_base: address as *mut _, iov_len: length }
    }

    #[test]
    fn parts_are_used_up_in_order() {
        let parts = [part(100, 3), part(0, 0), part(200, 10)];
        // SAFETY: no byte is touched.
        let mut vector = unsafe { Vector::new(&parts) }.unwrap();
        assert_eq!((vector.left(), vector.contiguous(3), vector.contiguous(4)), (13, Some(100), None));
        vector.advance(2);
        assert_eq!(vector.contiguous(1), Some(102));
        let mut seen = Vec::new();
        vector
            .each(5, |address, length| {
                seen.push((address, length));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [(102, 1), (200, 4)]);
        vector.advance(1);
        assert_eq!((vector.contiguous(10), vector.left()), (Some(200), 10));
        vector.advance(10);
        assert_eq!((vector.contiguous(1), vector.left()), (None, 0));
        let too_long = [part(1, isize::MAX as usize), part(1, 1)];
        // SAFETY: as above.
        assert_eq!(unsafe { Vector::new(&too_long) }.err().unwrap().errno(), libc::EINVAL);
    }

    #[test]
    fn pieces_and_parts_need_not_fit() {
        let mut walk = Walk(Pieces { first: (90, 10), second: (0, 20) });
        let mut seen = Vec::new();
        for length in [4, 8, 18] {
            let ok: std::result::Result<(), ()> = walk.each(length, |done, at, length| {
                seen.push((done, at, length));
                Ok(())
            });
            ok.unwrap();
        }
        assert_eq!(seen, [(0, 90, 4), (0, 94, 6), (6, 0, 2), (0, 2, 18)]);
    }
}
