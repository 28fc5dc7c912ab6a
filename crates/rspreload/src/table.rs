//! Which descriptors of the program are rsockets, or epoll sets that we know.
//!
//! A word for each descriptor there can be, in memory that the kernel provides when it is first used. Looking
//! takes no lock, so it may happen anywhere. A word has the rsocket's number and a generation, which tells it
//! from another that has had the same descriptor.

use libc::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Descriptors that can be known: what the kernel allows a process unless it is told otherwise. Those beyond
/// are ordinary ones.
const MOST: usize = 1 << 20;

static BEHIND: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How many descriptors stand for an rsocket, by its number.
static NAMES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The highest descriptor that has ever stood for one.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// The process whose memory this is: not that of a child of vfork, which has no business here.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The number and one, in the lowest bits.
const NUMBER: u64 = (1 << 24) - 1;
/// The rsocket's address was chosen by the program.
const BOUND: u64 = 1 << 24;
/// An epoll set waits for its edges.
const EDGE: u64 = 1 << 25;
/// An epoll set that may have rsockets.
const SET: u64 = 1 << 26;

/// An rsocket, as a descriptor showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rsocket(u64);

impl Rsocket {
    /// The rsocket's number for librdmacm.
    pub(crate) fn number(self) -> c_int {
        (self.0 & NUMBER) as c_int - 1
    }

    /// Whether the program has bound it.
    pub(crate) fn is_bound(self) -> bool {
        self.0 & BOUND != 0
    }

    /// Whether an epoll set waits for its edges.
    pub(crate) fn is_edge(self) -> bool {
        self.0 & EDGE != 0
    }

    /// Tells it from others that have had the descriptor.
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    BEHIND.get(usize::try_from(fd).ok()?)
}

/// The rsocket behind a descriptor, if there is one.
pub(crate) fn find(fd: c_int) -> Option<Rsocket> {
    let found = Rsocket(word(fd)?.load(Ordering::Acquire));
    (found.0 & NUMBER != 0).then_some(found)
}

/// From now on a descriptor stands for an rsocket. `false` if there is no room for it.
pub(crate) fn insert(fd: c_int, number: c_int) -> bool {
    let (Some(word), Some(names)) = (word(fd), usize::try_from(number).ok().and_then(|n| NAMES.get(n)))
    else {
        return false;
    };
    names.fetch_add(1, Ordering::AcqRel);
    HIGHEST.fetch_max(fd, Ordering::AcqRel);
    let generation = u64::from(GENERATION.fetch_add(1, Ordering::Relaxed));
    word.store(generation << 32 | (number as u64 + 1), Ordering::Release);
    true
}

/// A further descriptor for the same.
pub(crate) fn copy(found: Rsocket, fd: c_int) -> bool {
    let is_so = insert(fd, found.number());
    if is_so && found.is_bound() {
        mark(fd, BOUND);
    }
    is_so
}

/// A descriptor stands for nothing any more. The number of the rsocket that nothing stands for now.
pub(crate) fn remove(fd: c_int) -> Option<c_int> {
    let found = Rsocket(word(fd)?.swap(0, Ordering::AcqRel));
    (found.0 & NUMBER != 0 && NAMES[found.number() as usize].fetch_sub(1, Ordering::AcqRel) == 1)
        .then(|| found.number())
}

fn mark(fd: c_int, bit: u64) {
    if let Some(word) = word(fd) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// The program has bound it.
pub(crate) fn set_bound(fd: c_int) {
    mark(fd, BOUND);
}

/// An epoll set waits for its edges.
pub(crate) fn set_edge(fd: c_int) {
    mark(fd, EDGE);
}

/// Marks a descriptor as that of an epoll set.
pub(crate) fn set_epoll(fd: c_int) {
    mark(fd, SET);
}

/// Whether a descriptor is that of an epoll set.
pub(crate) fn is_epoll(fd: c_int) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Acquire) & SET != 0)
}

/// This process owns the table.
pub(crate) fn own() {
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Release);
}

/// Whether this process owns the table. A child that only borrows its parent's memory does not.
pub(crate) fn is_owner() -> bool {
    // SAFETY: no arguments.
    OWNER.load(Ordering::Acquire) == unsafe { libc::getpid() }
}

/// The descriptors that stand for rsockets.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    below(c_int::MAX)
}

/// The descriptors less than `end` that stand for rsockets.
pub(crate) fn below(end: c_int) -> impl Iterator<Item = c_int> {
    (0..end.min(HIGHEST.load(Ordering::Acquire) + 1)).filter(|fd| find(*fd).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rsocket_lives_as_long_as_its_names() {
        assert!(find(-1).is_none() && find(c_int::MAX).is_none() && !insert(-1, 5) && !insert(5, -1));
        assert!(insert(700_000, 5));
        let first = find(700_000).unwrap();
        assert_eq!((first.number(), first.is_bound(), first.is_edge()), (5, false, false));
        set_bound(700_000);
        assert!(copy(find(700_000).unwrap(), 700_001));
        let second = find(700_001).unwrap();
        assert!(second.is_bound() && second.number() == 5 && second.generation() != first.generation());
        assert_eq!((remove(700_000), find(700_000), remove(700_000)), (None, None, None));
        assert_eq!((remove(700_001), remove(700_001)), (Some(5), None));
    }
}
