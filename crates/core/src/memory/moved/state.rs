//! What of the process's memory has been moved, under one lock that a fork takes, too.

use super::Refusal;
use super::back::{self, Piece};
use super::file::SharedFile;
use super::fork::Copy;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Pages that have been moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) length: usize,
    pub(super) offset: u64,
    /// Registrations that they were moved for.
    pub(super) users: usize,
}

/// All of it.
pub(super) struct State {
    pub(super) file: Option<SharedFile>,
    /// By the address that they were moved at. They do not overlap.
    pub(super) ranges: BTreeMap<usize, Range>,
    /// What has been given back, and is a private view yet.
    pub(super) pieces: Vec<Piece>,
    /// What a child is to have, while a fork is under way.
    pub(super) copies: Vec<Copy>,
}

static STATE: Mutex<State> = Mutex::new(State::new());
/// The thread that holds the lock.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// The lock, held.
pub(super) struct Locked(MutexGuard<'static, State>);

fn me() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() }
}

/// Waits for the lock. None if this very thread holds it: it is in the middle of a fork.
pub(super) fn lock() -> Option<Locked> {
    if HOLDER.load(Ordering::Relaxed) == me() {
        return None;
    }
    let guard = STATE.lock().unwrap_or_else(|e| e.into_inner());
    HOLDER.store(me(), Ordering::Relaxed);
    Some(Locked(guard))
}

/// The lock, if it is free.
pub(super) fn try_lock() -> Option<Locked> {
    let guard = match STATE.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    HOLDER.store(me(), Ordering::Relaxed);
    Some(Locked(guard))
}

impl Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        HOLDER.store(0, Ordering::Relaxed);
    }
}

impl State {
    pub(super) const fn new() -> Self {
        Self { file: None, ranges: BTreeMap::new(), pieces: Vec::new(), copies: Vec::new() }
    }

    /// The file, made when it is needed.
    pub(super) fn file(&mut self) -> Result<&mut SharedFile, Refusal> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(SharedFile::new()?)),
        }
    }

    /// The range that has all of [`start`, `end`).
    pub(super) fn covering(&self, start: usize, end: usize) -> Option<(usize, Range)> {
        let (base, range) = self.ranges.range(..=start).next_back()?;
        (base + range.length >= end).then_some((*base, *range))
    }

    /// Whether a range has any of [`start`, `end`).
    pub(super) fn overlaps(&self, start: usize, end: usize) -> bool {
        self.ranges.range(..end).next_back().is_some_and(|(base, range)| base + range.length > start)
    }

    /// A use of a range ends; with the last the program has its pages back.
    pub(super) fn leave(&mut self, base: usize) {
        let Some(range) = self.ranges.get_mut(&base) else { return };
        range.users -= 1;
        let range = *range;
        if range.users > 0 {
            return;
        }
        match back::give_back(self, base, range.length, range.offset) {
            Ok(()) => {
                self.ranges.remove(&base);
            }
            // They stay where they are, and serve the next registration of the same bytes.
            Err(refusal) => crate::log!(Warn, "{} bytes at {base:#x} stay shared: {refusal}", range.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found() {
        let mut state = State::new();
        for base in [0x1000, 0x4000, 0x9000] {
            state.ranges.insert(base, Range { length: 0x2000, offset: 0, users: 1 });
        }
        let covering = |start, end| state.covering(start, end).map(|(base, _)| base);
        assert_eq!(covering(0x1000, 0x3000), Some(0x1000));
        assert_eq!(covering(0x5000, 0x6000), Some(0x4000));
        assert_eq!(covering(0x5000, 0x6001), None);
        assert_eq!(covering(0x3000, 0x3001), None);
        assert_eq!(covering(0, 0x100), None);
        for (start, end, expected) in [
            (0, 0x1000, false),
            (0, 0x1001, true),
            (0x3000, 0x4000, false),
            (0x2fff, 0x3000, true),
            (0, 0xf000, true),
            (0xb000, 0xc000, false),
        ] {
            assert_eq!(state.overlaps(start, end), expected, "{start:#x}..{end:#x}");
        }
    }
}
