//! Where shared pages are in the program's memory. The guard goes by it ([`super::guard`]), so it is a fixed table under a lock of its own: whoever
//! holds that lock allocates nothing and makes no system call that could wait for the guard.

use super::file::GAP;
use crate::signals::Blocked;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most pieces: what may be shared, and what a program makes of it by moving parts elsewhere.
const MOST: usize = 1024;

/// Pages of the file, in one piece of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) base: usize,
    pub(super) length: usize,
    /// Of the first page in the file.
    pub(super) offset: u64,
    /// False if the program has taken some of it away, where there was no room for another piece.
    pub(super) is_whole: bool,
}

impl Piece {
    fn end(&self) -> usize {
        self.base + self.length
    }

    fn has_any(&self, start: usize, end: usize) -> bool {
        self.base < end && self.end() > start
    }
}

/// Where a range of the program's memory is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nowhere: none of it is shared.
    Nowhere,
    /// All of it, from this offset on.
    At(u64),
    /// Some of it, or what was there has been taken away by the program.
    Partly,
}

/// All pieces.
pub(super) struct Pieces {
    count: usize,
    all: [Piece; MOST],
}

const NONE: Piece = Piece { base: 0, length: 0, offset: 0, is_whole: false };

impl Pieces {
    const fn new() -> Self {
        Self { count: 0, all: [NONE; MOST] }
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

    /// Whether something of the range of the file that begins at `offset`, or was cut from it, is still there.
    pub(super) fn has_any_near(&self, offset: u64) -> bool {
        self.used().iter().any(|piece| piece.offset.abs_diff(offset) < GAP)
    }

    /// False if there is no room.
    pub(super) fn add(&mut self, piece: Piece) -> bool {
        let Some(place) = self.all.get_mut(self.count) else { return false };
        *place = piece;
        self.count += 1;
        true
    }

    pub(super) fn find(&self, start: usize, end: usize) -> Found {
        let whole = |piece: &&Piece| piece.is_whole && piece.base <= start && piece.end() >= end;
        match self.used().iter().find(whole) {
            Some(piece) => Found::At(piece.offset + (start - piece.base) as u64),
            None if self.used().iter().any(|piece| piece.has_any(start, end)) => Found::Partly,
            None => Found::Nowhere,
        }
    }

    /// Calls `each` with the parts of the file, as offset and length, that memory in [`start`, `end`) shows. What a program has made longer goes on behind its
    /// piece in the file, up to what another piece shows; so where it has not done that, such a part is empty.
    pub(super) fn parts(&self, start: usize, end: usize, mut each: impl FnMut(u64, u64)) {
        let mut left = end.saturating_sub(start);
        let mut part = |piece: &Piece, from: usize, to: usize| {
            let (from, to) = (from.max(start), to.min(end));
            if from < to {
                each(piece.offset + (from - piece.base) as u64, (to - from) as u64);
                left = left.saturating_sub(to - from);
            }
            left > 0
        };
        let is_more = self.used().iter().fold(true, |_, piece| part(piece, piece.base, piece.end()));
        if is_more {
            self.used().iter().for_each(|piece| {
                part(piece, piece.end(), piece.end().saturating_add(self.room_behind(piece)));
            });
        }
    }

    /// How much of the file nobody else shows behind a piece.
    fn room_behind(&self, piece: &Piece) -> usize {
        let behind = piece.offset + piece.length as u64;
        let others = self.used().iter().map(|other| other.offset).filter(|offset| *offset >= behind);
        others.map(|offset| offset - behind).min().unwrap_or(GAP).min(GAP) as usize
    }

    /// The program has nothing of it in [`start`, `end`) any more.
    pub(super) fn forget(&mut self, start: usize, end: usize) {
        let mut at = 0;
        while let Some(piece) = self.all.get_mut(at).filter(|_| at < self.count) {
            match (start <= piece.base, end >= piece.end()) {
                _ if !piece.has_any(start, end) => {}
                (true, true) => {
                    self.count -= 1;
                    self.all.swap(at, self.count);
                    continue;
                }
                (true, false) => {
                    let gone = end - piece.base;
                    *piece = Piece {
                        base: end,
                        length: piece.length - gone,
                        offset: piece.offset + gone as u64,
                        ..*piece
                    };
                }
                (false, true) => piece.length = start - piece.base,
                (false, false) => {
                    let whole = *piece;
                    let gone = end - whole.base;
                    let rest = Piece {
                        base: end,
                        length: whole.length - gone,
                        offset: whole.offset + gone as u64,
                        ..whole
                    };
                    piece.length = start - whole.base;
                    if !self.add(rest) {
                        self.all[at] = Piece { is_whole: false, ..whole };
                    }
                }
            }
            at += 1;
        }
    }

    /// The program has moved `length` bytes elsewhere.
    pub(super) fn relocate(&mut self, from: usize, to: usize, length: usize) {
        let end = from.saturating_add(length);
        // A piece whose own pages are there, else one that the program has made longer.
        let of = |piece: &&Piece| piece.has_any(from, end);
        let behind = |piece: &&Piece| piece.end() <= from && from - piece.end() < GAP as usize;
        let nearest = || self.used().iter().filter(behind).max_by_key(|piece| piece.end());
        let Some(piece) = self.used().iter().find(of).or_else(nearest).copied() else { return };
        self.forget(from, end);
        let first = from.max(piece.base);
        self.add(Piece {
            base: to + (first - from),
            length: end - first,
            offset: piece.offset + (first - piece.base) as u64,
            is_whole: piece.is_whole,
        });
    }
}

/// See the module.
pub(super) struct Ledger {
    is_locked: AtomicBool,
    pieces: UnsafeCell<Pieces>,
}

// SAFETY: the pieces are touched by the holder of the lock alone.
unsafe impl Sync for Ledger {}

pub(super) static LEDGER: Ledger =
    Ledger { is_locked: AtomicBool::new(false), pieces: UnsafeCell::new(Pieces::new()) };

impl Ledger {
    /// No signal comes to its holder: a handler may do what waits for the guard.
    pub(super) fn lock(&self) -> Locked<'_> {
        let signals = Blocked::new();
        while self.is_locked.swap(true, Ordering::Acquire) {
            let moment = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
            // SAFETY: sleeps; a live structure.
            unsafe { libc::syscall(libc::SYS_nanosleep, &raw const moment, 0) };
        }
        Locked { ledger: self, _signals: signals }
    }

    /// A child of fork has nothing that is shared, and none of the threads that may have held the lock.
    pub(super) fn reset(&self) {
        // SAFETY: the only thread of the child.
        unsafe { (*self.pieces.get()).count = 0 };
        self.is_locked.store(false, Ordering::Release);
    }
}

/// The lock, held.
pub(super) struct Locked<'a> {
    ledger: &'a Ledger,
    _signals: Blocked,
}

impl Deref for Locked<'_> {
    type Target = Pieces;
    fn deref(&self) -> &Pieces {
        // SAFETY: the lock is held.
        unsafe { &*self.ledger.pieces.get() }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Pieces {
        // SAFETY: the lock is held.
        unsafe { &mut *self.ledger.pieces.get() }
    }
}

impl Drop for Locked<'_> {
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
            assert!(pieces.add(Piece { base, length, offset, is_whole: true }));
        }
        pieces
    }

    fn parts(pieces: &Pieces, start: usize, end: usize) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        pieces.parts(start, end, |offset, length| found.push((offset, length)));
        found
    }

    #[test]
    fn what_is_shared_is_found_and_nothing_else() {
        let pieces = pieces(&[(0x1000, 0x2000, 0), (0x4000, 0x2000, 1 << 40)]);
        assert_eq!(pieces.find(0x1000, 0x3000), Found::At(0));
        assert_eq!(pieces.find(0x5000, 0x6000), Found::At((1 << 40) + 0x1000));
        assert_eq!(pieces.find(0x5000, 0x6001), Found::Partly);
        assert_eq!(pieces.find(0x2000, 0x5000), Found::Partly);
        assert_eq!(pieces.find(0x3000, 0x4000), Found::Nowhere);
        assert_eq!((pieces.len(), pieces.bytes()), (2, 0x4000));
    }

    #[test]
    fn what_the_program_takes_away_is_shared_no_more() {
        let mut pieces = pieces(&[(0x1000, 0x8000, 0x1000)]);
        pieces.forget(0, 0x2000);
        assert_eq!(pieces.find(0x2000, 0x9000), Found::At(0x2000), "the beginning");
        pieces.forget(0x8000, 0xf000);
        assert_eq!(pieces.find(0x2000, 0x8000), Found::At(0x2000), "the end");
        assert_eq!(pieces.find(0x8000, 0x9000), Found::Nowhere);
        pieces.forget(0x4000, 0x5000);
        assert_eq!(pieces.find(0x3000, 0x6000), Found::Partly, "something in the middle");
        assert_eq!(pieces.find(0x4000, 0x5000), Found::Nowhere);
        assert_eq!(pieces.find(0x5000, 0x6000), Found::At(0x5000));
        assert_eq!(parts(&pieces, 0x3000, 0x6000), [(0x3000, 0x1000), (0x5000, 0x1000), (0x4000, 0x1000)]);
        pieces.forget(0x2000, 0x8000);
        assert_eq!(pieces.len(), 0);
    }

    #[test]
    fn pieces_go_where_the_program_moves_them() {
        let mut pieces = pieces(&[(0x1000, 0x4000, 0x1000)]);
        pieces.relocate(0x3000, 0x10_0000, 0x2000);
        assert_eq!(pieces.find(0x10_0000, 0x10_2000), Found::At(0x3000));
        assert_eq!(pieces.find(0x1000, 0x3000), Found::At(0x1000));
        // What was made longer comes along.
        pieces.relocate(0x10_0000, 0x20_0000, 0x5000);
        assert_eq!(pieces.find(0x20_0000, 0x20_5000), Found::At(0x3000));
        assert_eq!(pieces.len(), 2);
    }

    /// What is dropped where a part was is not dropped where the part is by now.
    #[test]
    fn parts_that_change_places_keep_their_bytes() {
        let mut pieces = pieces(&[(0x1000, 0x6000, 0x1000)]);
        pieces.relocate(0x2000, 0x10_0000, 0x1000);
        assert_eq!(parts(&pieces, 0x2000, 0x3000), []);
        pieces.relocate(0x4000, 0x2000, 0x1000);
        pieces.relocate(0x10_0000, 0x4000, 0x1000);
        assert_eq!(parts(&pieces, 0x2000, 0x3000), [(0x4000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x4000, 0x5000), [(0x2000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x3000, 0x4000), [(0x3000, 0x1000)]);
    }

    #[test]
    fn what_is_dropped_behind_a_piece_is_dropped_in_the_file() {
        let pieces = pieces(&[(0x1000, 0x2000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x1000, 0x2000), [(0x1000, 0x1000)]);
        assert_eq!(parts(&pieces, 0x2000, 0x5000), [(0x2000, 0x1000), (0x3000, 0x2000)]);
        assert_eq!(parts(&pieces, 0, 0x1000), []);
    }

    #[test]
    fn there_is_an_end_to_the_pieces() {
        let mut pieces = Pieces::new();
        let piece = Piece { base: 0x1000, length: 0x1000, offset: 0, is_whole: true };
        assert_eq!((0..2 * MOST).filter(|_| pieces.add(piece)).count(), MOST);
    }
}
