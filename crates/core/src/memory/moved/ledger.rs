//! Where shared pages are in the program's memory. The guard goes by it ([`super::guard`]), so it is a fixed
//! table under a lock of its own. The holder of that lock allocates nothing, and makes no system call that
//! could wait for the guard.

use super::file::GAP;
use crate::signals::SignalMask;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most pieces: those that may be shared, and those that a program makes of them by moving parts
/// elsewhere.
const MOST: usize = 1024;

/// Pages of the file, in one piece of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) base: usize,
    pub(super) length: usize,
    /// The offset of the first page in the file.
    pub(super) offset: u64,
}

impl Piece {
    fn end(&self) -> usize {
        self.base + self.length
    }

    fn has_any(&self, start: usize, end: usize) -> bool {
        start < end && self.base < end && self.end() > start
    }

    fn line(&self) -> Line {
        Line::of(self.base, self.offset)
    }

    /// The rest of the piece, which begins `gone` bytes further on.
    fn without(&self, gone: usize) -> Self {
        Self { base: self.base + gone, length: self.length - gone, offset: self.offset + gone as u64 }
    }
}

/// The distance from addresses to offsets, which is the same in all parts of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line(u64);

impl Line {
    pub(super) fn of(base: usize, offset: u64) -> Self {
        Self(offset.wrapping_sub(base as u64))
    }

    pub(super) fn offset(self, address: usize) -> u64 {
        self.0.wrapping_add(address as u64)
    }
}

/// Where a range of the program's memory is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePlace {
    /// Nowhere: none of it is shared.
    Nowhere,
    /// The whole range is in the file, from this offset on.
    At(u64),
    /// Some of the range is in the file, or the program has taken away the memory that was there.
    Partly,
}

/// All pieces.
pub(super) struct Pieces {
    count: usize,
    /// There was no room for a piece: it is somewhere, and the ledger does not know where. From then on,
    /// bytes that might be of that piece are not taken out of the file.
    has_lost_some: bool,
    all: [Piece; MOST],
}

const NONE: Piece = Piece { base: 0, length: 0, offset: 0 };

impl Pieces {
    const fn new() -> Self {
        Self { count: 0, has_lost_some: false, all: [NONE; MOST] }
    }

    fn used(&self) -> &[Piece] {
        self.all.get(..self.count).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> usize {
        self.used().iter().map(|piece| piece.length).sum()
    }

    /// Whether there are pieces that are not known.
    pub(super) fn has_lost_some(&self) -> bool {
        self.has_lost_some
    }

    /// Whether something of the range of the file that begins at `offset`, or was cut from it, may still be
    /// there.
    pub(super) fn has_any_near(&self, offset: u64) -> bool {
        self.has_lost_some || self.used().iter().any(|piece| piece.offset.abs_diff(offset) < GAP)
    }

    /// Adds a piece. False if there is no room. Pieces that continue each other become one.
    pub(super) fn add(&mut self, mut piece: Piece) -> bool {
        let is_beside = |other: &Piece| other.end() == piece.base || piece.end() == other.base;
        let beside =
            |at: &usize| self.used().get(*at).is_some_and(|o| is_beside(o) && o.line() == piece.line());
        if let Some(at) = (0..self.count).find(beside) {
            let other = self.remove(at);
            let (base, offset) = (piece.base.min(other.base), piece.offset.min(other.offset));
            piece = Piece { base, length: piece.length + other.length, offset };
            return self.add(piece);
        }
        let Some(place) = self.all.get_mut(self.count) else { return false };
        *place = piece;
        self.count += 1;
        true
    }

    fn remove(&mut self, at: usize) -> Piece {
        self.count -= 1;
        self.all.swap(at, self.count);
        self.all[self.count]
    }

    /// The program has one more.
    fn note(&mut self, piece: Piece) {
        self.has_lost_some |= !self.add(piece);
    }

    pub(super) fn find(&self, start: usize, end: usize) -> FilePlace {
        let whole = |piece: &&Piece| piece.base <= start && piece.end() >= end;
        match self.used().iter().find(whole) {
            Some(piece) => FilePlace::At(piece.offset + (start - piece.base) as u64),
            None if self.used().iter().any(|piece| piece.has_any(start, end)) => FilePlace::Partly,
            None => FilePlace::Nowhere,
        }
    }

    /// Calls `each` with the parts of the file, as offset and length, that memory in [`start`, `end`) shows.
    /// A part that a program has made longer goes on behind its piece in the file, up to the next piece.
    /// Where the program has not done that, such a part is empty. Parts on the line `but` are left out.
    pub(super) fn parts(&self, start: usize, end: usize, but: Option<Line>, mut each: impl FnMut(u64, u64)) {
        let mut left = end.saturating_sub(start);
        let mut part = |piece: &Piece, from: usize, to: usize| {
            let (from, to) = (from.max(start), to.min(end));
            if from < to && but != Some(piece.line()) {
                each(piece.offset + (from - piece.base) as u64, (to - from) as u64);
                left = left.saturating_sub(to - from);
            }
            left > 0
        };
        let is_more = self.used().iter().fold(true, |_, piece| part(piece, piece.base, piece.end()));
        if is_more && !self.has_lost_some {
            self.used().iter().for_each(|piece| {
                part(piece, piece.end(), piece.end().saturating_add(self.room_behind(piece)));
            });
        }
    }

    /// Bytes of the file behind a piece that no other piece shows.
    fn room_behind(&self, piece: &Piece) -> usize {
        let behind = piece.offset + piece.length as u64;
        let others = self.used().iter().map(|other| other.offset).filter(|offset| *offset >= behind);
        others.map(|offset| offset - behind).min().unwrap_or(GAP).min(GAP) as usize
    }

    /// The program has nothing of it in [`start`, `end`) any more, except on the line `but`, if one is given.
    pub(super) fn forget(&mut self, start: usize, end: usize, but: Option<Line>) {
        let mut at = 0;
        while let Some(piece) = self.used().get(at).copied() {
            if !piece.has_any(start, end) || but == Some(piece.line()) {
                at += 1;
                continue;
            }
            // The parts before and behind come back, behind this place in the table or in it, and have
            // nothing there.
            self.remove(at);
            if piece.base < start {
                self.note(Piece { length: start - piece.base, ..piece });
            }
            if piece.end() > end {
                self.note(piece.without(end - piece.base));
            }
            at = 0;
        }
    }

    /// The system says that this is mapped: a part that the program has made longer is known from now on.
    pub(super) fn learn(&mut self, start: usize, end: usize, line: Line) {
        let is_known = |piece: &Piece| piece.line() == line && piece.base <= start && piece.end() >= end;
        if self.used().iter().any(is_known) {
            return;
        }
        self.forget(start, end, None);
        self.note(Piece { base: start, length: end - start, offset: line.offset(start) });
    }

    /// The program has moved `length` bytes elsewhere; they are on this line there, as the system says, if it
    /// does.
    pub(super) fn relocate(&mut self, from: usize, to: usize, length: usize, line: Option<Line>) {
        let end = from.saturating_add(length);
        // The bytes of one move are one mapping, and so on one line.
        let known = || self.used().iter().find(|piece| piece.has_any(from, end));
        let offset = match (line, known()) {
            (Some(line), _) => line.offset(to),
            (None, Some(piece)) => piece.line().offset(from),
            (None, None) => {
                self.has_lost_some = true;
                return;
            }
        };
        self.forget(from, end, None);
        self.learn(to, to.saturating_add(length), Line::of(to, offset));
    }
}

/// The table of the shared pages in the program's memory, with its lock.
pub(super) struct Ledger {
    is_locked: AtomicBool,
    pieces: UnsafeCell<Pieces>,
}

// SAFETY: the pieces are touched by the holder of the lock alone.
unsafe impl Sync for Ledger {}

pub(super) static LEDGER: Ledger =
    Ledger { is_locked: AtomicBool::new(false), pieces: UnsafeCell::new(Pieces::new()) };

impl Ledger {
    /// No signal comes to its holder: a handler may make calls that wait for the guard.
    pub(super) fn lock(&self) -> LedgerGuard<'_> {
        let signals = SignalMask::new();
        while self.is_locked.swap(true, Ordering::Acquire) {
            let moment = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
            // SAFETY: sleeps; a live structure.
            unsafe { libc::syscall(libc::SYS_nanosleep, &raw const moment, 0) };
        }
        LedgerGuard { ledger: self, _signals: signals }
    }

    /// A child of fork has nothing that is shared, and none of the threads that may have held the lock.
    pub(super) fn reset(&self) {
        // SAFETY: the only thread of the child.
        unsafe {
            (*self.pieces.get()).count = 0;
            (*self.pieces.get()).has_lost_some = false;
        }
        self.is_locked.store(false, Ordering::Release);
    }
}

/// The lock, held.
pub(super) struct LedgerGuard<'a> {
    ledger: &'a Ledger,
    _signals: SignalMask,
}

impl Deref for LedgerGuard<'_> {
    type Target = Pieces;
    fn deref(&self) -> &Pieces {
        // SAFETY: the lock is held.
        unsafe { &*self.ledger.pieces.get() }
    }
}

impl DerefMut for LedgerGuard<'_> {
    fn deref_mut(&mut self) -> &mut Pieces {
        // SAFETY: the lock is held.
        unsafe { &mut *self.ledger.pieces.get() }
    }
}

impl Drop for LedgerGuard<'_> {
    fn drop(&mut self) {
        self.ledger.is_locked.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(all: &[(usize, usize, u64)]) -> Pieces {
        let mut pieces = Pieces::new();
        for (base, length, offset) in all {
            let (base, length, offset) = (*base, *length, *offset);
            assert!(pieces.add(Piece { base, length, offset }));
        }
        pieces
    }

    impl Pieces {
        fn parts_of(&self, start: usize, end: usize) -> Vec<(u64, u64)> {
            let mut found = Vec::new();
            self.parts(start, end, None, |offset, length| found.push((offset, length)));
            found
        }
    }

    fn parts(pieces: &Pieces, start: usize, end: usize) -> Vec<(u64, u64)> {
        pieces.parts_of(start, end)
    }

    #[test]
    fn shared_pages_are_found_and_no_other_pages() {
        let pieces = pieces(&[(0x1000, 0x2000, 0), (0x4000, 0x2000, 1 << 40)]);
        assert_eq!(pieces.find(0x1000, 0x3000), FilePlace::At(0));
        assert_eq!(pieces.find(0x5000, 0x6000), FilePlace::At((1 << 40) + 0x1000));
        assert_eq!(pieces.find(0x5000, 0x6001), FilePlace::Partly);
        assert_eq!(pieces.find(0x2000, 0x5000), FilePlace::Partly);
        assert_eq!(pieces.find(0x3000, 0x4000), FilePlace::Nowhere);
        assert_eq!((pieces.len(), pieces.bytes()), (2, 0x4000));
    }

    #[test]
    fn pages_that_the_program_takes_away_are_shared_no_more() {
        let mut pieces = pieces(&[(0x1000, 0x8000, 0x1000)]);
        pieces.forget(0, 0x2000, None);
        assert_eq!(pieces.find(0x2000, 0x9000), FilePlace::At(0x2000), "the beginning");
        pieces.forget(0x8000, 0xf000, None);
        assert_eq!(pieces.find(0x2000, 0x8000), FilePlace::At(0x2000), "the end");
        assert_eq!(pieces.find(0x8000, 0x9000), FilePlace::Nowhere);
        pieces.forget(0x4000, 0x5000, None);
        assert_eq!(pieces.find(0x3000, 0x6000), FilePlace::Partly, "something in the middle");
        assert_eq!(pieces.find(0x4000, 0x5000), FilePlace::Nowhere);
        assert_eq!(pieces.find(0x5000, 0x6000), FilePlace::At(0x5000));
        assert_eq!(parts(&pieces, 0x3000, 0x6000), [(0x3000, 0x1000), (0x5000, 0x1000), (0x4000, 0x1000)]);
        pieces.forget(0x2000, 0x8000, None);
        assert_eq!(pieces.len(), 0);
    }

    #[test]
    fn pieces_go_where_the_program_moves_them() {
        let mut pieces = pieces(&[(0x1000, 0x4000, 0x1000)]);
        pieces.relocate(0x3000, 0x10_0000, 0x2000, None);
        assert_eq!(pieces.find(0x10_0000, 0x10_2000), FilePlace::At(0x3000));
        assert_eq!(pieces.find(0x1000, 0x3000), FilePlace::At(0x1000));
        // A part that was made longer comes along.
        pieces.relocate(0x10_0000, 0x20_0000, 0x5000, None);
        assert_eq!(pieces.find(0x20_0000, 0x20_5000), FilePlace::At(0x3000));
        assert_eq!(pieces.len(), 2);
    }

    /// A drop of the place where a part was does not drop the part where it is by now.
    #[test]
    fn parts_that_change_places_keep_their_bytes() {
        let mut pieces = pieces(&[(0x1000, 0x6000, 0x1000)]);
        pieces.relocate(0x2000, 0x10_0000, 0x1000, None);
        assert_eq!(parts(&pieces, 0x2000, 0x3000), []);
        pieces.relocate(0x4000, 0x2000, 0x1000, None);
        pieces.relocate(0x10_0000, 0x4000, 0x1000, None);
        assert_eq!(parts(&pieces, 0x2000, 0x3000), [(0x4000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x4000, 0x5000), [(0x2000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x3000, 0x4000), [(0x3000, 0x1000)]);
    }

    #[test]
    fn pages_that_are_dropped_behind_a_piece_are_dropped_in_the_file() {
        let pieces = pieces(&[(0x1000, 0x2000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x1000, 0x2000), [(0x1000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x2000, 0x5000), [(0x2000, 0x1000), (0x3000, 0x2000)]);
        assert_eq!(parts(&pieces, 0, 0x1000), []);
    }

    #[test]
    fn there_is_an_end_to_the_pieces() {
        let mut pieces = Pieces::new();
        let piece = |at: usize| Piece { base: at << 13, length: 0x1000, offset: (at as u64) << 13 };
        assert_eq!((0..2 * MOST).filter(|at| pieces.add(piece(*at))).count(), MOST);
    }

    /// A piece without room is somewhere: no bytes count as gone from then on.
    #[test]
    fn no_bytes_count_as_gone_once_some_pieces_are_unknown() {
        let full = || {
            let mut pieces = Pieces::new();
            for at in 0..MOST {
                assert!(pieces.add(Piece { base: at << 16, length: 0x3000, offset: (at as u64) << 16 }));
            }
            assert!(!pieces.has_lost_some() && !pieces.has_any_near(1 << 40));
            pieces
        };
        let mut cut = full();
        cut.forget(0x1000, 0x2000, None);
        let mut moved = full();
        moved.relocate(0x1000, 1 << 40, 0x1000, None);
        let mut learned = full();
        learned.learn(1 << 40, (1 << 40) + 0x1000, Line::of(0, 1 << 50));
        let mut strange = full();
        strange.relocate(1 << 50, 1 << 51, 0x1000, None);
        for pieces in [cut, moved, learned, strange] {
            assert!(pieces.has_lost_some() && pieces.has_any_near(1 << 55));
            assert!(pieces.parts_of(0x4000, 0x5000).is_empty(), "what is behind a piece may be anybody's");
        }
    }

    #[test]
    fn pages_that_lie_together_are_one_piece() {
        let mut pieces = pieces(&[(0x1000, 0x1000, 0x1000), (0x3000, 0x1000, 0x3000)]);
        pieces.learn(0x2000, 0x3000, Line::of(0, 0));
        assert_eq!((pieces.len(), pieces.find(0x1000, 0x4000)), (1, FilePlace::At(0x1000)));
        pieces.learn(0x4000, 0x5000, Line::of(0, 0x10_0000));
        assert_eq!((pieces.len(), pieces.find(0x4000, 0x5000)), (2, FilePlace::At(0x10_4000)));
        pieces.forget(0, 0x10_0000, Some(Line::of(0, 0)));
        assert_eq!((pieces.len(), pieces.find(0x1000, 0x4000)), (1, FilePlace::At(0x1000)));
    }
}
