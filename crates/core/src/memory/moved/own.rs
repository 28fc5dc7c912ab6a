//! Memory of the engine's own, in the same file as the moved pages: peers map it as it is. Only the engine
//! maps or unmaps it, so there is nothing to guard.

use super::calls;
use super::file::{self, Area};
use super::state;
use super::{InterruptionGuard, Place, is_strict, maps, page_size};
use crate::fork::ForkGeneration;
use crate::memory::ways;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// The bytes of it in a child of fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InChild {
    /// A copy, as of the time immediately before the fork.
    Copy,
    /// The pages of the parent process themselves.
    Same,
}

/// The most bytes that a fork copies of it: the forking thread waits for the copy, which takes memory of its
/// own.
const MOST_COPIED: usize = 64 << 20;
/// The most pieces. Each is a mapping of its own, of which the kernel allows a process 65,530 by default.
const MOST_PIECES: usize = 1024;

/// The pieces of it in this process, under the lock of the state.
pub(super) struct Pieces {
    count: usize,
    /// The pieces that a fork copies.
    copied: Vec<Piece>,
}

/// A piece that a fork copies: no thread moves it, cuts it or changes its protection.
pub(super) struct Piece {
    pub(super) address: usize,
    pub(super) length: usize,
    pub(super) offset: u64,
}

impl Pieces {
    pub(super) const fn new() -> Self {
        Self { count: 0, copied: Vec::new() }
    }

    pub(super) fn copied(&self) -> &[Piece] {
        &self.copied
    }

    /// Whether there may be one more of `length` bytes.
    fn has_room(&self, length: usize, in_child: InChild) -> bool {
        let copied: usize = self.copied.iter().map(|piece| piece.length).sum();
        let is_copied = in_child == InChild::Copy;
        self.count < MOST_PIECES
            && (!is_copied || copied.checked_add(length).is_some_and(|copied| copied <= MOST_COPIED))
    }

    fn add(&mut self, own: &Own) {
        let Own { address, length, offset, in_child, .. } = *own;
        self.count += 1;
        if in_child == InChild::Copy {
            self.copied.push(Piece { address, length, offset });
        }
    }

    fn remove(&mut self, own: &Own) {
        self.count -= 1;
        self.copied.retain(|piece| piece.address != own.address);
    }
}

/// Pages of the engine's own, all zero at first, until dropped.
pub(crate) struct Own {
    address: usize,
    /// Whole pages.
    length: usize,
    descriptor: RawFd,
    offset: u64,
    in_child: InChild,
    born: ForkGeneration,
    /// The process that made it: a child that was made without the handlers of fork (by a raw clone(2))
    /// counts as born here.
    process: u32,
}

impl Own {
    /// Pages for `length` bytes, which are registered with a device that has such peers or not. None where no
    /// peer would map them, where the system does not give them in this way, where there are too many, or
    /// where a fork would copy too much. Ordinary memory serves then.
    pub(crate) fn new(has_peers_that_map: bool, length: usize, in_child: InChild) -> Option<Self> {
        if length == 0 || !has_peers_that_map || !ways::has_own_memory() {
            return None;
        }
        let length = length.checked_next_multiple_of(page_size())?;
        let _here = InterruptionGuard::new();
        // A fork waits for this lock: so a child has the pieces, and the copies, of one moment.
        let mut state = state::lock()?;
        // A page of the file could be refused later, when a thread stores there.
        if !state.own.has_room(length, in_child)
            || is_strict(&maps::read("/proc/sys/vm/overcommit_memory").ok()?)
        {
            return None;
        }
        let area = match in_child {
            InChild::Copy => Area::Own,
            InChild::Same => Area::Inherited,
        };
        let file = state.file().ok()?;
        if !file.is_open() {
            return None;
        }
        let (descriptor, offset) = (file.descriptor(), file.allocate_in(area, length).ok()?);
        let address = map(descriptor, offset, length, in_child)?;
        let (born, process) = (ForkGeneration::now(), std::process::id());
        let own = Self { address, length, descriptor, offset, in_child, born, process };
        state.own.add(&own);
        Some(own)
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Where peers map `length` bytes at `address` from, if they are in it. None in a child of fork, whose
    /// peers are its own.
    pub(crate) fn place(&self, address: usize, length: usize) -> Option<Place> {
        let at = address.checked_sub(self.address)?;
        let is_inside = length > 0 && at.checked_add(length).is_some_and(|end| end <= self.length);
        let is_ours = is_inside && self.born.is_here();
        is_ours.then_some(Place {
            descriptor: self.descriptor,
            offset: self.offset + at as u64,
            length,
            address,
        })
    }

    fn unmap(&self) {
        // SAFETY: our own mapping, which no thread uses any more.
        unsafe { calls::munmap(self.address as *mut _, self.length) };
    }
}

fn map(descriptor: RawFd, offset: u64, length: usize, in_child: InChild) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at a place that the kernel chooses, of a place in the file that nothing has ever
    // been at.
    unsafe {
        let address =
            calls::mmap(null_mut(), length, protection, libc::MAP_SHARED, descriptor, offset as i64);
        if address == libc::MAP_FAILED {
            return None;
        }
        if in_child == InChild::Copy && calls::madvise(address, length, libc::MADV_DONTFORK) != 0 {
            calls::munmap(address, length);
            return None;
        }
        Some(address as usize)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _here = InterruptionGuard::new();
        if !self.born.is_here() || self.process != std::process::id() {
            // A child: the file is its parent's, which may be using it. Where there was no room for a copy,
            // something else may be in that place.
            if self.in_child == InChild::Same {
                self.unmap();
            }
            return;
        }
        // A fork that has made a copy for the child puts it here, so nothing else takes the place meanwhile.
        // In the middle of a fork of this very thread the mapping stays for good.
        if let Some(mut state) = state::lock() {
            state.own.remove(self);
            self.unmap();
        }
        // A peer, or a child with the same pages, that still maps it finds zeros.
        file::punch(self.descriptor, self.offset, self.length as u64);
    }
}
