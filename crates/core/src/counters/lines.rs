//! Lines of text in a process's page of counters, about its memory, for `adverb devices -v`.

use super::Page;
use crate::fork::ForkGeneration;
use crate::inspect::plain;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The number of lines that there are.
const LINES: usize = 32;
/// Bytes of each; longer text is cut.
const TEXT: usize = 256;

/// Lines, of which some say something.
#[repr(C)]
pub(crate) struct Lines {
    /// A bit for each that is taken.
    taken: AtomicU32,
    _unused: AtomicU32,
    /// Texts that have found no line.
    more: AtomicU64,
    /// Zero-padded; of a line that says nothing, the first byte is zero.
    text: [[AtomicU8; TEXT]; LINES],
}

/// A line, until dropped.
pub(crate) struct CounterLine {
    lines: &'static Lines,
    /// The place of the line. None: there was no room.
    place: Option<usize>,
    born: ForkGeneration,
}

impl Page {
    /// Says something, as long as the line is kept.
    pub(crate) fn say(&'static self, text: &str) -> CounterLine {
        let lines = &self.lines;
        let free = |taken: u32| (taken != u32::MAX).then(|| taken | 1 << taken.trailing_ones());
        let before = lines.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, free);
        let place = before.ok().map(|taken| taken.trailing_ones() as usize);
        match place {
            Some(place) => write(&lines.text[place], text),
            None => drop(lines.more.fetch_add(1, Ordering::Relaxed)),
        }
        CounterLine { lines, place, born: ForkGeneration::now() }
    }

    /// Clears the lines of the process before.
    pub(super) fn be_silent(&self) {
        let Lines { taken, more, text, .. } = &self.lines;
        text.iter().for_each(|line| line[0].store(0, Ordering::Relaxed));
        taken.store(0, Ordering::Relaxed);
        more.store(0, Ordering::Relaxed);
    }
}

impl CounterLine {
    /// Says something else.
    pub(crate) fn change(&self, text: &str) {
        if let Some(place) = self.place.filter(|_| self.born.is_here()) {
            write(&self.lines.text[place], text);
        }
    }
}

impl Drop for CounterLine {
    fn drop(&mut self) {
        // A child of fork may have its parent's page.
        if !self.born.is_here() {
            return;
        }
        match self.place {
            Some(place) => {
                self.lines.text[place][0].store(0, Ordering::Release);
                self.lines.taken.fetch_and(!(1 << place), Ordering::AcqRel);
            }
            None => drop(self.lines.more.fetch_sub(1, Ordering::Relaxed)),
        }
    }
}

/// Writes a text into a line. Another process that reads meanwhile finds nothing, or parts of the old and the
/// new text.
fn write(cells: &[AtomicU8; TEXT], text: &str) {
    let Some((first, rest)) = cells.split_first() else { return };
    first.store(0, Ordering::Release);
    // The last byte stays zero.
    let bytes = text.bytes().skip(1).chain(std::iter::repeat(0));
    rest.iter().take(TEXT - 2).zip(bytes).for_each(|(cell, byte)| cell.store(byte, Ordering::Relaxed));
    first.store(text.bytes().next().unwrap_or(0), Ordering::Release);
}

/// The texts in the bytes of a [`Lines`], in the order of the lines and as plain text, and the count of those
/// that have found no line.
pub(super) fn parse(bytes: &[u8]) -> (Vec<String>, u64) {
    const MORE: usize = std::mem::offset_of!(Lines, more);
    const START: usize = std::mem::offset_of!(Lines, text);
    let said = bytes.get(START..).unwrap_or_default().chunks_exact(TEXT).take(LINES).filter_map(|line| {
        let length = line.iter().position(|byte| *byte == 0).unwrap_or(TEXT);
        (length > 0).then(|| plain(&String::from_utf8_lossy(&line[..length])))
    });
    let more = bytes.get(MORE..MORE + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes);
    (said.collect(), more)
}

/// There are no more lines than there is room for, and each is as `is_plain` says of a text of at most so
/// many bytes.
#[cfg(any(test, fuzzing))]
pub(super) fn check(said: &[String], is_plain: impl Fn(&str, usize) -> bool) {
    assert!(said.len() <= LINES && said.iter().all(|line| is_plain(line, TEXT)), "{said:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(page: &Page) -> (Vec<String>, u64) {
        // SAFETY: the bytes of the page's lines, which no other thread writes.
        parse(unsafe { std::slice::from_raw_parts((&raw const page.lines).cast::<u8>(), size_of::<Lines>()) })
    }

    #[test]
    fn lines_are_said_as_long_as_they_are_kept() {
        let page = Page::create(&["lines0"]);
        let first = page.say("one");
        let second = page.say("two");
        assert_eq!(said(page), (vec!["one".into(), "two".into()], 0));
        first.change("a longer one");
        drop(second);
        assert_eq!(said(page), (vec!["a longer one".into()], 0));
        let long = page.say(&"x".repeat(2 * TEXT));
        assert_eq!(said(page).0[1], "x".repeat(TEXT - 1));
        let many: Vec<_> = (0..LINES).map(|at| page.say(&at.to_string())).collect();
        assert_eq!((said(page).0.len(), said(page).1), (LINES, 2));
        drop((many, long, first));
        assert_eq!(said(page), (vec![], 0));
        let _again = page.say("again");
        page.be_silent();
        assert_eq!(said(page), (vec![], 0));
        assert_eq!(parse(&[]), (vec![], 0));
    }
}
