//! Pieces that the program has torn apart, by moving some of one elsewhere (mremap(2)).
//!
//! In the file they lie side by side still. So a piece that becomes longer in its place would go on with the bytes of the next, where private memory has zeros; and no event tells
//! that it becomes longer. So the last page of each piece that has another behind it in the file is *watched*: the page is a mapping of its own, and what becomes longer with it is watched,
//! too. Whoever touches a new page waits until the guard has given the new pages a place of their own in the file.
//!
//! A call that would make longer what is before the last page, too, spans two mappings, and so the kernel refuses it (EFAULT). The kernel does not wait for the guard: it refuses (EFAULT)
//! a system call that is the first to touch a new page, or the last page after it has been dropped.

use super::calls;
use super::effect::{Effect, line_of};
use super::file::GAP;
use super::ledger::{LEDGER, Line};
use super::mapped::Unknown;
use super::maps::Vma;
use super::userfault::Mode;

/// Where the program has the file mapped, in the order of the file.
pub(super) struct Views {
    /// Made once: the guard allocates nothing later.
    all: Box<[View]>,
    count: usize,
    /// Of as many threads at a time.
    leaving: [Leaving; Self::MOST_LEAVING],
    leaving_count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) offset: u64,
    pub(super) protection: i32,
}

impl View {
    fn of(vma: &Vma) -> Self {
        Self { start: vma.start, end: vma.end, offset: vma.offset, protection: vma.protection }
    }

    fn line(&self) -> Line {
        Line::of(self.start, self.offset)
    }

    /// Where in memory an offset is that it shows, or where it ends.
    fn at(&self, offset: u64) -> usize {
        self.start + (offset - self.offset) as usize
    }

    /// Where in the file it ends.
    fn behind(&self) -> u64 {
        self.line().offset(self.end)
    }
}

impl Views {
    const MOST: usize = 4096;
    const MOST_LEAVING: usize = 64;

    pub(super) fn none() -> Self {
        let view = View { start: 0, end: 0, offset: 0, protection: 0 };
        let leaving = [Leaving { line: Line::of(0, 0), start: 0, end: 0 }; Self::MOST_LEAVING];
        Self { all: vec![view; Self::MOST].into(), count: 0, leaving, leaving_count: 0 }
    }

    /// Memory that they use, as address and length.
    pub(super) fn own(&self) -> (usize, usize) {
        (self.all.as_ptr() as usize, size_of_val(&*self.all))
    }

    /// What there is no room for is left out.
    pub(super) fn add(&mut self, view: View) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = view;
            self.count += 1;
        }
    }

    fn leaves(&mut self, part: Leaving) {
        if let Some(place) = self.leaving.get_mut(self.leaving_count) {
            *place = part;
            self.leaving_count += 1;
        }
    }

    fn leaving(&self) -> &[Leaving] {
        self.leaving.get(..self.leaving_count).unwrap_or_default()
    }

    pub(super) fn sort(&mut self) {
        let used = self.all.get_mut(..self.count).unwrap_or_default();
        used.sort_unstable_by_key(|view| (view.offset, view.start));
    }

    fn used(&self) -> &[View] {
        self.all.get(..self.count).unwrap_or_default()
    }

    /// The new part of one that has become longer over what another shows. `is_own` says whether what is on a line at an offset belongs there.
    pub(super) fn grown(&self, is_own: impl Fn(Line, u64) -> bool) -> Option<View> {
        let used = self.used();
        used.iter().enumerate().find_map(|(at, one)| {
            let others = used.iter().skip(at + 1).filter(|other| other.start < other.end);
            let others = others.take_while(|other| other.offset < one.behind());
            others.map(|other| (other, other.offset)).find_map(|(other, offset)| {
                let grown = match [one, other].map(|view| is_own(view.line(), offset)) {
                    [false, true] => one,
                    [true, false] => other,
                    _ => return None,
                };
                let [start, end] = [offset, one.behind().min(other.behind())].map(|at| grown.at(at));
                Some(View { start, end, offset, ..*grown })
            })
        })
    }

    /// Leaves out what [`Views::grown`] has said, and what is behind that.
    fn cut(&mut self, grown: &View) {
        let mut used = self.all.iter_mut().take(self.count);
        if let Some(view) = used.find(|view| view.line() == grown.line() && view.end >= grown.end) {
            view.end = grown.start;
        }
    }

    /// Those that could become longer over what another shows.
    fn edges(&self) -> impl Iterator<Item = &View> {
        self.used().windows(2).filter_map(|two| {
            let [one, next] = two else { return None };
            let room = next.offset.checked_sub(one.behind())?;
            // On the same line, the next is in the way.
            (room < GAP && next.line() != one.line()).then_some(one)
        })
    }
}

/// What somebody who waits has just moved away, and the line that it was on.
#[derive(Clone, Copy)]
struct Leaving {
    line: Line,
    start: usize,
    end: usize,
}

impl Leaving {
    fn has(&self, offset: u64) -> bool {
        (self.line.offset(self.start)..self.line.offset(self.end)).contains(&offset)
    }
}

impl Effect<'_> {
    /// Gives what has become longer over another piece a place of its own, and watches where that may happen. Again and again without a difference.
    pub(super) fn set_apart(&mut self) -> Result<(), Unknown> {
        self.find_leaving()?;
        let leaves = self.views.leaving();
        if leaves.iter().any(|part| self.pieces.would_tear(part.line, part.start, part.end)) {
            self.pieces.tear();
        }
        // A call that unmaps many mappings waits for an event of each.
        if !self.pieces.is_torn() || self.seen.is_as_before() {
            return Ok(());
        }
        self.look()?;
        let mut last = None;
        while let Some(grown) = self.views.grown(|line, offset| self.is_own(line, offset)) {
            // Nothing can be done.
            if last.replace(grown) == Some(grown) {
                break;
            }
            self.renew(&grown);
            self.look()?;
        }
        // What else has become longer the ledger has to know, or it would be taken for what another may go on with.
        for view in self.views.used() {
            self.pieces.learn_more(view.start, view.end, view.line());
        }
        for edge in self.views.edges() {
            let _ = self.faults.register(edge.end - self.page, self.page, Mode::Watched);
        }
        Ok(())
    }

    /// A thread waits for a page that is watched. If that is no new one, it was dropped.
    pub(super) fn touched(&mut self, at: usize) -> Result<(), Unknown> {
        self.set_apart()?;
        let (page, identity) = (at / self.page * self.page, self.identity);
        let mut is_ours = false;
        self.mapped.each(page, page + 1, |vma| {
            is_ours = line_of(vma, identity).is_some();
            false
        })?;
        if is_ours {
            self.faults.bring(page, self.page);
        } else {
            self.faults.wake(page, self.page);
        }
        Ok(())
    }

    /// What those who wait have just moved away, as far as the ledger does not know of it.
    fn find_leaving(&mut self) -> Result<(), Unknown> {
        self.views.leaving_count = 0;
        for at in 0..self.seen.count() {
            let Some((start, length)) = self.seen.moved(at) else { continue };
            let end = self.end_of(start, length);
            // What was made longer the ledger does not know; but what is before it.
            let line = match self.pieces.line_in(start, end) {
                Some(line) => Some(line),
                None => self.line_at(start.saturating_sub(1))?,
            };
            if let Some(line) = line {
                self.views.leaves(Leaving { line, start, end });
            }
        }
        Ok(())
    }

    /// What the program has of the file. Not what a peer of the same process has mapped of it.
    fn look(&mut self) -> Result<(), Unknown> {
        let (identity, pieces, views) = (self.identity, &*self.pieces, &mut *self.views);
        views.count = 0;
        self.mapped.each(0, usize::MAX, |vma| {
            let arrives = || views.leaving().iter().any(|part| part.has(vma.offset));
            if line_of(vma, identity).is_some_and(|line| pieces.has_line(line) || arrives()) {
                views.add(View::of(vma));
            }
            true
        })?;
        views.sort();
        Ok(())
    }

    /// Whether what is on this line at an offset belongs there.
    fn is_own(&self, line: Line, offset: u64) -> bool {
        match self.views.leaving().iter().find(|part| part.has(offset)) {
            Some(part) => part.line != line,
            None => self.pieces.shows(line, offset),
        }
    }

    /// Zeros, at a place of the file that nobody else has. Whoever waits for a page there goes on.
    fn renew(&mut self, grown: &View) {
        let (start, length) = (grown.start, grown.end - grown.start);
        let place = self.places.allocate(length).ok().filter(|offset| {
            let number = (*offset / self.page as u64) as usize;
            // SAFETY: the program has touched nothing there, or waits; and nobody waits for this thread.
            unsafe { calls::remap_file_pages(start as *mut _, length, number) == 0 }
        });
        match place {
            Some(offset) => {
                // SAFETY: advice that changes no byte.
                unsafe { calls::madvise(start as *mut _, length, libc::MADV_DONTFORK) };
                let _ = self.faults.register(start, length, Mode::Protected);
                self.pieces.learn(start, grown.end, Line::of(start, offset));
            }
            // Where the program has forbidden itself the call (seccomp(2)).
            None => {
                self.faults.unregister(start, length);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
                // SAFETY: as above.
                unsafe { calls::mmap(start as *mut _, length, grown.protection, flags, -1, 0) };
            }
        }
        self.faults.wake(start, length);
    }
}

/// Of the mappings of the file, where begins what a child of fork is to find empty, up to the end of each: what the program has made longer over another piece, and has not touched since.
pub(super) fn untouched(all: &[Vma]) -> Vec<usize> {
    if !LEDGER.lock().is_torn() {
        return Vec::new();
    }
    // Nothing is allocated under the lock.
    let (mut views, mut found) = (Views::none(), Vec::with_capacity(all.len()));
    let pieces = LEDGER.lock();
    for vma in all {
        if pieces.has_line(Line::of(vma.start, vma.offset)) {
            views.add(View::of(vma));
        }
    }
    views.sort();
    while found.len() < all.len()
        && let Some(grown) = views.grown(|line, offset| pieces.shows(line, offset))
    {
        found.push(grown.start);
        views.cut(&grown);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(all: &[(usize, usize, u64)]) -> Views {
        let mut views = Views::none();
        for (start, end, offset) in all {
            views.add(View { start: *start, end: *end, offset: *offset, protection: 3 });
        }
        views.sort();
        views
    }

    fn edges(all: &[(usize, usize, u64)]) -> Vec<usize> {
        views(all).edges().map(|view| view.end).collect()
    }

    #[test]
    fn what_could_become_longer_over_another_piece_is_watched() {
        assert_eq!(edges(&[(0x1000, 0x5000, 0)]), [0; 0]);
        // The rest of it, cut at its last page, and behind a hole.
        assert_eq!(edges(&[(0x1000, 0x2000, 0), (0x2000, 0x5000, 0x1000), (0x8000, 0x9000, 0x7000)]), [0; 0]);
        // Elsewhere: right behind it in the file, and behind a hole.
        assert_eq!(edges(&[(0x1000, 0x5000, 0), (0x10_0000, 0x10_1000, 0x4000)]), [0x5000]);
        assert_eq!(edges(&[(0x1000, 0x4000, 0), (0x10_0000, 0x10_1000, 0x4000)]), [0x4000]);
        assert_eq!(edges(&[(0x1000, 0x4000, 0), (0x10_0000, 0x10_1000, 0x3000 + GAP)]), [0; 0]);
    }

    #[test]
    fn who_has_become_longer_is_told_by_what_was_known() {
        let both = [(0x1000, 0x6000, 0), (0x10_0000, 0x10_2000, 0x4000)];
        let (longer, moved) = (Line::of(0x1000, 0), Line::of(0x10_0000, 0x4000));
        let part = |own: Line| views(&both).grown(|line, _| line == own).map(|view| (view.start, view.end));
        assert_eq!(part(moved), Some((0x5000, 0x6000)));
        // The old place of what was moved has what it had before and behind.
        let old = [(0x1000, 0x9000, 0), both[1]];
        let part_of_old = views(&old).grown(|line, _| line == moved).map(|view| (view.start, view.end));
        assert_eq!(part_of_old, Some((0x5000, 0x7000)));
        assert_eq!(part(longer), Some((0x10_0000, 0x10_1000)));
        assert_eq!(views(&both).grown(|_, _| false), None);
        assert_eq!(views(&both).grown(|_, _| true), None);
        assert_eq!(views(&both[..1]).grown(|_, _| false), None);
    }
}
