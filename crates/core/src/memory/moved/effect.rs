//! The effects of the program's calls on shared pages, carried out by the guard in the file and in the
//! ledger.
//!
//! The system says at that instant where the file is in memory ([`super::mapped`]). Only the ledger knows
//! which bytes were in a place that is unmapped by now.

use super::calls;
use super::file::{Area, Identity, punch};
use super::ledger::{Line, Pieces};
use super::mapped::{ProgramMaps, UnreadableMaps};
use super::maps::Vma;
use super::tasks::Call;
use super::userfault::{Event, Userfault};
use crate::memory::copy;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// The threads that wait for the reading of an event, and the work that is done for them already.
pub(super) struct EventReaders {
    /// Made when the guard starts, which allocates nothing later.
    calls: Box<[Call]>,
    count: usize,
    done: Box<[DoneRange]>,
    done_count: usize,
}

/// A range for which all is done that the event says.
#[derive(Clone, Copy)]
struct DoneRange {
    kind: ChangeKind,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeKind {
    Dropped,
    Unmapped,
}

impl EventReaders {
    const MOST: usize = 2048;

    pub(super) fn nobody() -> Self {
        let call = Call { number: 0, arguments: [0; 6] };
        let done = DoneRange { kind: ChangeKind::Dropped, start: 0, end: 0 };
        Self {
            calls: vec![call; Self::MOST].into(),
            count: 0,
            done: vec![done; Self::MOST].into(),
            done_count: 0,
        }
    }

    /// Begins anew.
    pub(super) fn clear(&mut self) {
        (self.count, self.done_count) = (0, 0);
    }

    pub(super) fn add(&mut self, call: &Call) {
        if let Some(place) = self.calls.get_mut(self.count) {
            *place = *call;
            self.count += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory that it uses, as addresses and lengths.
    pub(super) fn own(&self) -> [(usize, usize); 2] {
        [
            (self.calls.as_ptr() as usize, size_of_val(&*self.calls)),
            (self.done.as_ptr() as usize, size_of_val(&*self.done)),
        ]
    }

    fn note(&mut self, kind: ChangeKind, start: usize, end: usize) {
        if let Some(place) = self.done.get_mut(self.done_count) {
            *place = DoneRange { kind, start, end };
            self.done_count += 1;
        }
    }

    fn has(&self, kind: ChangeKind, at: usize) -> bool {
        let done = self.done.get(..self.done_count).unwrap_or_default();
        done.iter().any(|done| done.kind == kind && (done.start..done.end).contains(&at))
    }
}

/// The file, and the means by which the guard works on it.
pub(super) struct Effect<'a> {
    pub(super) file: RawFd,
    pub(super) identity: Identity,
    pub(super) page: usize,
    pub(super) pagemap: &'a File,
    pub(super) faults: &'a Userfault,
    pub(super) mapped: &'a mut ProgramMaps,
    pub(super) pieces: &'a mut Pieces,
    pub(super) seen: &'a mut EventReaders,
}

/// The calls of which events may tell.
pub(super) const CALLS: [i64; 6] = [
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_munmap,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_brk,
];

impl Effect<'_> {
    /// For each thread that waits, does the work that must be done before its call returns. The work may be
    /// done again, with no other result.
    pub(super) fn before(&mut self) {
        for at in 0..self.seen.count {
            let Call { number, arguments } = self.seen.calls[at];
            let [first, second, third, fourth, ..] = arguments;
            let end = self.end_of(first, second);
            match number {
                libc::SYS_madvise => {
                    let _ = self.advised(first, end, third, true);
                }
                libc::SYS_process_madvise => self.advised_all(second, third, fourth),
                libc::SYS_munmap => self.unmapped_by_call(first, end),
                libc::SYS_mmap if fourth as i32 & libc::MAP_FIXED != 0 => self.unmapped_by_call(first, end),
                // It becomes shorter.
                libc::SYS_mremap if third < second => self.unmapped_by_call(self.end_of(first, third), end),
                libc::SYS_mremap if fourth as i32 & libc::MREMAP_DONTUNMAP != 0 => {
                    let _ = self.emptied(first, end);
                }
                _ => {}
            }
        }
    }

    /// Carries out an event that has been read: its caller goes on already.
    pub(super) fn after(&mut self, event: Event) {
        match event {
            // Otherwise the work was done before the event was read. Or its caller is no thread that can be
            // seen (io_uring).
            Event::Removed { start, end } => {
                if !self.seen.has(ChangeKind::Dropped, start) {
                    let _ = self.drop_late(start, end);
                }
            }
            Event::Unmapped { start, end } => {
                if !self.seen.has(ChangeKind::Unmapped, start) {
                    let _ = self.unmapped(start, end);
                }
            }
            Event::Moved { from, to, length } => {
                // If a thread has moved it again since, another event waits.
                let (mut line, identity) = (None, self.identity);
                let looked = self.mapped.each(to, to.saturating_add(length), |vma| {
                    line = line_of(vma, identity);
                    false
                });
                let line = line.filter(|_| looked.is_ok());
                self.pieces.relocate(from, to, length, line);
                let _ = self.learn(from.saturating_add(length));
            }
            Event::Other => {}
        }
    }

    fn end_of(&self, start: usize, length: usize) -> usize {
        start.saturating_add(length.checked_next_multiple_of(self.page).unwrap_or(usize::MAX))
    }

    /// Whether the kernel goes on behind it without an error. `waits`: a thread waits in there, and not in
    /// another range of the same call.
    fn advised(
        &mut self,
        start: usize,
        end: usize,
        advice: usize,
        waits: bool,
    ) -> Result<bool, UnreadableMaps> {
        let with_locked = match advice as i32 {
            libc::MADV_DONTNEED => false,
            libc::MADV_DONTNEED_LOCKED => true,
            // The kernel refuses the call, or itself does all that is to be done.
            _ => {
                self.seen.note(ChangeKind::Dropped, start, end);
                return Ok(true);
            }
        };
        let reached = self.mapped.may_be_dropped(self.identity, start, end, with_locked, waits)?;
        let (file, identity) = (self.file, self.identity);
        self.mapped.each(start, reached, |vma| {
            if line_of(vma, identity).is_some() {
                let (from, to) = (vma.start.max(start), vma.end.min(reached));
                punch(file, vma.offset + (from - vma.start) as u64, (to - from) as u64);
            }
            true
        })?;
        self.seen.note(ChangeKind::Dropped, start, reached);
        Ok(reached == end && !self.mapped.has_hole(start, end)?)
    }

    /// One range after the other, up to one that the kernel says no to.
    fn advised_all(&mut self, vector: usize, count: usize, advice: usize) {
        for at in 0..count.min(libc::UIO_MAXIOV as usize) {
            let mut part = [0; 16];
            // SAFETY: the caller gave the kernel this memory to be read, and waits; a bad address is an
            // error.
            let read = unsafe { copy::copy_from(&mut part, vector.wrapping_add(at * 16)) };
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
            let (start, length) = part.split_at(8);
            let (start, end) = (word(start), self.end_of(word(start), word(length)));
            let is_valid = read.is_ok() && start.is_multiple_of(self.page) && end < usize::MAX;
            if !is_valid || self.advised(start, end, advice, false) != Ok(true) {
                return;
            }
        }
    }

    /// The ledger still has pieces that a thread is moving away at this instant: their move comes first.
    fn unmapped_by_call(&mut self, start: usize, end: usize) {
        let calls = self.seen.calls.get(..self.seen.count).unwrap_or_default();
        let moves_some = |call: &Call| {
            let [from, length, ..] = call.arguments;
            call.number == libc::SYS_mremap && from < end && self.end_of(from, length) > start
        };
        let shrinks = |call: &Call| call.arguments[2] < call.arguments[1];
        if calls.iter().any(|call| moves_some(call) && !shrinks(call)) {
            return;
        }
        if self.unmapped(start, end).is_ok() {
            self.seen.note(ChangeKind::Unmapped, start, end);
        }
    }

    /// Takes out of the file the bytes that were there and are not any more. A call that failed has unmapped
    /// nothing.
    fn unmapped(&mut self, start: usize, end: usize) -> Result<(), UnreadableMaps> {
        self.learn(end)?;
        let (file, identity, pieces) = (self.file, self.identity, &mut *self.pieces);
        let mut gone = |from: usize, to: usize, but: Option<Line>| {
            pieces.parts(from, to, but, |offset, length| punch(file, offset, length));
            pieces.forget(from, to, but);
        };
        let mut reached = start;
        self.mapped.each(start, end, |vma| {
            let (from, to) = (vma.start.max(start), vma.end.min(end));
            gone(reached, from, None);
            gone(from, to, line_of(vma, identity));
            reached = to;
            true
        })?;
        gone(reached, end, None);
        Ok(())
    }

    /// A part that the program has made longer is behind the part that it takes away. The ledger hears of it
    /// now, since no event tells of it later.
    fn learn(&mut self, at: usize) -> Result<(), UnreadableMaps> {
        let (identity, pieces) = (self.identity, &mut *self.pieces);
        self.mapped.each(at, at.saturating_add(1), |vma| {
            if let Some(line) = line_of(vma, identity).filter(|_| vma.start <= at) {
                pieces.learn(vma.start, vma.end, line);
            }
            false
        })
    }

    /// MREMAP_DONTUNMAP: the old place of private memory is empty afterwards. Of shared memory it would show
    /// the same pages, so private memory takes their place.
    fn emptied(&mut self, start: usize, end: usize) -> Result<(), UnreadableMaps> {
        let identity = self.identity;
        let mut there = None;
        self.mapped.each(start, end, |vma| {
            there = line_of(vma, identity).map(|line| (line.offset(start), vma.protection));
            false
        })?;
        let Some((offset, protection)) = there else { return Ok(()) };
        // The call may have failed.
        let mut is_moved = false;
        self.mapped.each(0, usize::MAX, |vma| {
            let shows = |from: u64| offset >= from && offset - from < (vma.end - vma.start) as u64;
            let is_there = (vma.start..vma.end).contains(&start);
            is_moved |= line_of(vma, identity).is_some() && !is_there && shows(vma.offset);
            !is_moved
        })?;
        if is_moved {
            self.faults.unregister(start, end - start);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the caller has given up these bytes, and waits. The call makes no event, for which this
            // thread would wait in vain.
            unsafe { calls::mmap(start as *mut _, end - start, protection, flags, -1, 0) };
        }
        Ok(())
    }

    /// Drops pages whose owner goes on already: none that has been used again since. Those that the kernel
    /// has yet to drop in memory are waited for, a little.
    fn drop_late(&mut self, start: usize, end: usize) -> Result<(), UnreadableMaps> {
        const TRIES: u32 = 50;
        let (file, identity, size, pagemap) = (self.file, self.identity, self.page, self.pagemap);
        for _ in 0..TRIES {
            let mut left = false;
            self.mapped.each(start, end, |vma| {
                let own = if line_of(vma, identity).is_some() {
                    vma.start.max(start)..vma.end.min(end)
                } else {
                    0..0
                };
                for page in own.step_by(size) {
                    if is_present(pagemap, page / size) {
                        left = true;
                    } else {
                        punch(file, vma.offset + (page - vma.start) as u64, size as u64);
                    }
                }
                true
            })?;
            if !left {
                break;
            }
            nap();
        }
        Ok(())
    }
}

/// The line that a mapping is on, if it is of the file.
pub(super) fn line_of(vma: &Vma, file: Identity) -> Option<Line> {
    let is_moved = vma.is_shared && vma.file == file && Area::at(vma.offset) == Area::Moved;
    is_moved.then(|| Line::of(vma.start, vma.offset))
}

/// Whether the program has a page, of this number, in its tables.
fn is_present(pagemap: &File, number: usize) -> bool {
    let mut entry = [0; 8];
    let read = pagemap.read_at(&mut entry, (number * 8) as u64);
    read.is_err() || u64::from_ne_bytes(entry) >> 63 == 1
}

pub(super) fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: sleeps; a live structure.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const moment, 0) };
}
