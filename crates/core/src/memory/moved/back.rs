//! Makes moved pages private again, in two steps.
//!
//! First the same pages of the file are mapped privately in the same place: one system call, which copies nothing and during which nothing is
//! lost. Later every page becomes the program's own by a copy, and the file gives its pages back; only then is the memory
//! as it was (MADV_DONTNEED makes zeros of it). In between, requests that had begun in the kernel have time to end: what
//! they write to the old page after the copy would be lost.

use super::Refusal;
use super::calls;
use super::file::Identity;
use super::install::populate;
use super::maps::{self, Maps, Vma};
use super::quiet;
use super::state::State;
use crate::engine;
use crate::reactor::Source;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// How long requests in the kernel have to end.
const GRACE: Duration = Duration::from_millis(20);
/// What the background thread copies at once.
const SLICE: u64 = 2 << 20;
/// How often a piece is tried whose pages cannot be made the program's own: it has made them read-only, for one.
const TRIES: u32 = 3;

/// Pages of the file that are mapped privately, and not copied yet.
pub(super) struct Piece {
    offset: u64,
    end: u64,
    tries: u32,
}

impl Piece {
    pub(super) fn has(&self, vma: &Vma) -> bool {
        vma.part(self.offset, self.end).is_some()
    }
}

/// Gives a range back to the program, wherever it has it by now.
pub(super) fn give_back(state: &mut State, base: usize, length: usize, offset: u64) -> Result<(), Refusal> {
    let Some(file) = &state.file else { return Ok(()) };
    let maps = Maps::open()?;
    let end = offset + length as u64;
    for vma in views(&maps, file.identity(), base, length, offset)? {
        if let Some((address, from, length)) = vma.part(offset, end) {
            make_private(file.descriptor(), address, from, length, vma.protection)?;
        }
    }
    state.pieces.push(Piece { offset, end, tries: 0 });
    let waits = quiet::may_be_in_use(&maps).unwrap_or(true) && arm(GRACE);
    if !waits {
        settle(state, u64::MAX);
    }
    Ok(())
}

/// Where the program has pages of the range: where they were put, unless it has moved, cut or unmapped them since.
pub(super) fn views(
    maps: &Maps,
    own: Identity,
    base: usize,
    length: usize,
    offset: u64,
) -> Result<Vec<Vma>, Refusal> {
    let found = maps.within(base, base + length)?;
    let is_whole = matches!(&found[..], [vma] if vma.file == own
        && vma.is_shared
        && vma.part(offset, offset + length as u64) == Some((base, offset, length)));
    if is_whole {
        return Ok(found);
    }
    let mut all = maps.of_file(own)?;
    all.retain(|vma| vma.is_shared && vma.part(offset, offset + length as u64).is_some());
    Ok(all)
}

fn make_private(
    descriptor: RawFd,
    address: usize,
    offset: u64,
    length: usize,
    protection: i32,
) -> Result<(), Refusal> {
    let locked = maps::locked_kib()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: these pages of the file are mapped there, as the caller has just seen; they stay, as a private view.
    let mapped =
        unsafe { calls::mmap(address as *mut _, length, protection, flags, descriptor, offset as i64) };
    if mapped == libc::MAP_FAILED {
        return Err(Refusal::system("mmap"));
    }
    // The program has locked them after they were moved.
    if locked > maps::locked_kib()? {
        // SAFETY: locks pages; changes no byte.
        unsafe { libc::mlock(address as *const _, length) };
    }
    Ok(())
}

/// Makes pages of returned pieces the program's own, about as many bytes as `most`. Whether some are left.
pub(super) fn settle(state: &mut State, most: u64) -> bool {
    let Some(file) = &state.file else { return false };
    let mut left = most;
    while let Some(piece) = state.pieces.last_mut() {
        if left == 0 {
            return true;
        }
        let from = piece.end.saturating_sub(left).max(piece.offset);
        left -= piece.end - from;
        if own_pages(file, from, piece.end).is_ok() {
            file.punch(from, piece.end - from);
            piece.end = from;
        } else {
            piece.tries += 1;
        }
        if piece.end == piece.offset || piece.tries == TRIES {
            state.pieces.pop();
        }
    }
    false
}

/// Has every page of a piece copied, in every private view.
fn own_pages(file: &super::file::SharedFile, from: u64, end: u64) -> Result<(), Refusal> {
    let maps = Maps::open()?;
    let views = || -> Result<Vec<Vma>, Refusal> {
        let mut all = maps.of_file(file.identity())?;
        all.retain(|vma| !vma.is_shared && vma.part(from, end).is_some());
        Ok(all)
    };
    let before = views()?;
    let mut at = from;
    while let Some((start, stop)) = file.data(at, end) {
        for vma in &before {
            if let Some((address, _, length)) = vma.part(start, stop) {
                populate(address, length)?;
            }
        }
        at = stop;
    }
    // A view that has gone elsewhere meanwhile (mremap(2)) may have been missed.
    if views()? == before { Ok(()) } else { Err(Refusal::Busy) }
}

/// Copies later, on the background thread.
struct Later;

impl Source for Later {
    fn ready(self: Arc<Self>, _: u32) {}

    fn timeout(self: Arc<Self>) {
        // A fork, or another move, goes first.
        let Some(mut state) = super::state::try_lock() else {
            arm(Duration::from_millis(1));
            return;
        };
        if settle(&mut state, SLICE) {
            arm(Duration::ZERO);
        }
    }
}

fn arm(after: Duration) -> bool {
    engine::existing().is_some_and(|engine| engine.reactor.set_timer(after, Arc::new(Later)).is_ok())
}
