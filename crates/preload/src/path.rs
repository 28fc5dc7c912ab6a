//! Paths as bytes, in memory of their own on the stack.

use std::ffi::CStr;

/// Longest path that is looked at, and longest text that links may make of it. What is longer is left alone.
pub(crate) const LONGEST: usize = 1023;

/// A path, always with its terminator.
pub(crate) struct Path {
    bytes: [u8; LONGEST + 1],
    length: usize,
}

impl Path {
    /// The empty path.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LONGEST + 1], length: 0 }
    }

    /// Puts bytes behind the path; None, and nothing has changed, if there is no room.
    pub(crate) fn add(&mut self, more: &[u8]) -> Option<()> {
        let end = self.length.checked_add(more.len()).filter(|&end| end <= LONGEST)?;
        self.bytes.get_mut(self.length..end)?.copy_from_slice(more);
        self.cut_at(end);
        Some(())
    }

    /// Cuts it off behind so many bytes.
    pub(crate) fn cut(&mut self, length: usize) {
        if length < self.length {
            self.cut_at(length);
        }
    }

    fn cut_at(&mut self, length: usize) {
        self.length = length.min(LONGEST);
        if let Some(end) = self.bytes.get_mut(self.length) {
            *end = 0;
        }
    }

    /// Takes the last component away, but nothing of the first `kept` bytes.
    pub(crate) fn up(&mut self, kept: usize) {
        let slash = self.after(kept).iter().rposition(|&byte| byte == b'/');
        self.cut(kept + slash.unwrap_or_default());
    }

    /// Takes `count` bytes out that stand behind the first `kept`.
    pub(crate) fn take_out(&mut self, kept: usize, count: usize) {
        if kept + count <= self.length {
            self.bytes.copy_within(kept + count..self.length, kept);
            self.cut_at(self.length - count);
        }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The path's bytes behind the first ones, without the terminator.
    pub(crate) fn after(&self, start: usize) -> &[u8] {
        self.bytes.get(start..self.length).unwrap_or_default()
    }

    /// The path's bytes behind the first ones, as a C string.
    pub(crate) fn c_str(&self, start: usize) -> &CStr {
        self.bytes.get(start..).and_then(|bytes| CStr::from_bytes_until_nul(bytes).ok()).unwrap_or_default()
    }

    /// Room behind the first bytes for a text that somebody else writes, with what [`Self::has`] then says.
    pub(crate) fn room(&mut self, start: usize) -> &mut [u8] {
        self.bytes.get_mut(start..LONGEST).unwrap_or_default()
    }

    /// Sets the length of the path.
    pub(crate) fn has(&mut self, length: usize) {
        self.cut_at(length);
    }
}

/// What of a path has still to be walked: at the end of its memory, so that the text of a link has room in
/// front.
pub(crate) struct Rest {
    bytes: [u8; LONGEST],
    start: usize,
}

impl Rest {
    /// A path of which nothing is left to walk.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LONGEST], start: LONGEST }
    }

    /// The whole path; none if it is too long.
    pub(crate) fn begin(&mut self, path: &[u8]) -> Option<()> {
        self.start = LONGEST.checked_sub(path.len())?;
        self.bytes.get_mut(self.start..)?.copy_from_slice(path);
        Some(())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Keeps only so many bytes at the end.
    pub(crate) fn keep(&mut self, length: usize) {
        self.start = LONGEST.saturating_sub(length);
    }

    /// Room for the text of a link.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.start).unwrap_or_default()
    }

    /// The link's text, so many bytes of the room, comes first; None if it fills the room.
    pub(crate) fn follow(&mut self, length: usize) -> Option<()> {
        let slash = self.start.checked_sub(1)?;
        let start = slash.checked_sub(length)?;
        self.bytes.copy_within(..length, start);
        *self.bytes.get_mut(slash)? = b'/';
        self.start = start;
        Some(())
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
