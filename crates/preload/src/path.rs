//! Paths as bytes, in memory of their own on the stack.

use std::ffi::c_char;

/// Longest path that is looked at, and longest text that links may make of it. What is longer is left alone.
pub(crate) const LONGEST: usize = 1023;

/// A path, always with its terminator.
#[derive(Clone)]
pub(crate) struct Path {
    bytes: [u8; LONGEST + 1],
    length: usize,
}

impl Path {
    /// The empty path.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LONGEST + 1], length: 0 }
    }

    /// These pieces, one behind the other; none if they are too long.
    pub(crate) fn of(pieces: &[&[u8]]) -> Option<Self> {
        let mut path = Self::new();
        pieces.iter().try_for_each(|piece| path.add(piece))?;
        Some(path)
    }

    /// Puts bytes behind; None, and nothing has changed, if there is no room.
    pub(crate) fn add(&mut self, more: &[u8]) -> Option<()> {
        let end = self.length.checked_add(more.len()).filter(|&end| end <= LONGEST)?;
        self.bytes.get_mut(self.length..end)?.copy_from_slice(more);
        self.length = end;
        Some(())
    }

    /// Cuts it off behind so many bytes.
    pub(crate) fn cut(&mut self, length: usize) {
        if let Some(rest) = self.bytes.get_mut(length..self.length) {
            rest.fill(0);
            self.length = length;
        }
    }

    /// Takes the last component away; the root has none.
    pub(crate) fn up(&mut self) {
        let slash = self.as_bytes().iter().rposition(|&byte| byte == b'/');
        self.cut(slash.unwrap_or_default());
    }

    /// Its bytes, without the terminator.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The path as a C string, as long as `self` lives.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Room for a text that somebody else writes, with what [`Self::has`] then says.
    pub(crate) fn room(&mut self) -> (*mut c_char, usize) {
        self.cut(0);
        (self.bytes.as_mut_ptr().cast(), LONGEST)
    }

    /// As many bytes were written to the room.
    pub(crate) fn has(&mut self, length: usize) {
        self.length = length.min(LONGEST);
        self.bytes[self.length..].fill(0);
    }
}

/// The components of a path: not the empty ones, and not `.`.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Splits the first component off: it, and what follows. None where there is none.
pub(crate) fn first(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = path;
    loop {
        let start = rest.iter().position(|&byte| byte != b'/')?;
        let (_, name) = rest.split_at(start);
        let end = name.iter().position(|&byte| byte == b'/').unwrap_or(name.len());
        let (name, behind) = name.split_at(end);
        if name != b"." {
            return Some((name, behind));
        }
        rest = behind;
    }
}
