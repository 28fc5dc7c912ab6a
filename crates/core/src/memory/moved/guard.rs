//! The guard: a thread that keeps shared pages to what the program may expect of private ones.
//!
//! Shared pages are registered with userfaultfd(2) so that whoever takes some away, by madvise(2), munmap(2) or mremap(2), sleeps until the guard has heard of it.
//! Nothing is protected and nothing is missing there: no access ever waits. MADV_DONTNEED on private memory gives zeros, so the guard takes the pages
//! out of the file. It has to do so *before* it reads the event, for it is the reading that lets the caller go on; and an event that has not been read says nothing. So the
//! guard looks which system calls the threads sleep in ([`super::tasks`]): whoever is in such a call has given its bytes up.
//!
//! The sleeper may hold any lock of the program's, that of its allocator first of all. So the guard allocates nothing, and takes no lock but that of the ledger
//! ([`super::ledger`]), which nobody holds who could be waiting for the guard.

use super::Refusal;
use super::file::punch;
use super::ledger::{LEDGER, Piece, Pieces};
use super::tasks::{Call, Tasks};
use super::userfault::{Event, GUARD_FEATURES, Mode, Userfault};
use crate::engine::Engine;
use crate::memory::copy;
use crate::{failure, fork};
use std::os::fd::RawFd;
use std::sync::Arc;

/// The program's side of it. The thread stays as long as the process does.
pub(super) struct Guard {
    watch: Arc<Watch>,
}

struct Watch {
    faults: Userfault,
    tasks: Tasks,
    /// The memory descriptor.
    file: RawFd,
    page: usize,
}

impl Guard {
    pub(super) fn start(engine: &'static Engine, file: RawFd, page: usize) -> Result<Self, Refusal> {
        let faults = Userfault::open(GUARD_FEATURES)?;
        let watch = Arc::new(Watch { faults, tasks: Tasks::open()?, file, page });
        let theirs = watch.clone();
        let guard = move || {
            for _ in 0..2 {
                failure::contain("adverb-guard", || theirs.run());
            }
            // Without it, threads of the program would sleep for ever.
            std::process::abort();
        };
        let started = engine.reactor.helpers.spawn("adverb-guard", guard);
        started.map_err(|error| Refusal::because("a thread", &error))?;
        fork::own_descriptor(watch.faults.descriptor());
        Ok(Self { watch })
    }

    /// Guards a mapping of ours from now on, which may then be moved to where it belongs.
    pub(super) fn adopt(&self, base: usize, length: usize, offset: u64) -> Result<(), Refusal> {
        if !LEDGER.lock().add(Piece { base, length, offset, is_whole: true }) {
            return Err(Refusal::Small);
        }
        let registered = self.watch.faults.register(base, length, Mode::Protected);
        registered.map_err(|errno| {
            LEDGER.lock().forget(base, base + length);
            Refusal::System("guarding shared pages", errno)
        })
    }
}

/// What threads were seen to do to the program's memory when the guard looked.
struct Seen {
    all: [(What, usize, usize); Seen::MOST],
    count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Its bytes are dropped; and so they are in the file by now.
    Dropped,
    /// Unmapped, and dropped in the file.
    Unmapped,
    /// The kernel says no, or does by itself what is to be done.
    Kept,
}

impl Seen {
    const MOST: usize = 256;

    fn add(&mut self, what: What, start: usize, end: usize) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = (what, start, end);
        }
        self.count += 1;
    }

    /// Whether somebody was seen doing one of these to what begins at an address; or may have been, among so many.
    fn has(&self, at: usize, is: impl Fn(What) -> bool) -> bool {
        let known = self.all.get(..self.count);
        known.is_none_or(|all| all.iter().any(|(what, start, end)| is(*what) && (*start..*end).contains(&at)))
    }
}

impl Watch {
    fn run(&self) {
        loop {
            self.faults.wait();
            let mut pieces = LEDGER.lock();
            let seen = self.look(&mut pieces);
            if let Some(event) = self.faults.read_event() {
                self.apply(&mut pieces, event, &seen);
            }
        }
    }

    /// Drops in the file what somebody is dropping in memory.
    fn look(&self, pieces: &mut Pieces) -> Seen {
        let mut seen = Seen { all: [(What::Kept, 0, 0); Seen::MOST], count: 0 };
        self.tasks.each(|call| self.heed(pieces, &mut seen, call));
        seen
    }

    fn heed(&self, pieces: &mut Pieces, seen: &mut Seen, call: &Call) {
        let [first, second, third, fourth, ..] = call.arguments;
        match call.number {
            libc::SYS_madvise => self.advised(pieces, seen, first, second, third),
            libc::SYS_process_madvise => {
                for at in 0..third.min(libc::UIO_MAXIOV as usize) {
                    let mut vector = [0; 16];
                    // SAFETY: the caller gave the kernel this memory to be read, and waits; a bad address is an error.
                    let read = unsafe { copy::copy_from(&mut vector, second.wrapping_add(at * 16)) };
                    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
                    if read.is_ok() {
                        let (start, length) = vector.split_at(8);
                        self.advised(pieces, seen, word(start), word(length), fourth);
                    }
                }
            }
            libc::SYS_munmap => self.unmapped(pieces, seen, first, self.end_of(first, second)),
            // It becomes shorter.
            libc::SYS_mremap if third < second => {
                self.unmapped(pieces, seen, self.end_of(first, third), self.end_of(first, second));
            }
            _ => {}
        }
    }

    fn end_of(&self, start: usize, length: usize) -> usize {
        start.saturating_add(length.checked_next_multiple_of(self.page).unwrap_or(usize::MAX))
    }

    fn advised(&self, pieces: &Pieces, seen: &mut Seen, start: usize, length: usize, advice: usize) {
        let end = self.end_of(start, length);
        match advice as i32 {
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED if start.is_multiple_of(self.page) => {
                self.drop_in_file(pieces, start, end);
                seen.add(What::Dropped, start, end);
            }
            libc::MADV_FREE | libc::MADV_REMOVE => seen.add(What::Kept, start, end),
            _ => {}
        }
    }

    /// Who is in munmap(2) may have been told that it cannot be; so it is looked at whether there is something.
    fn unmapped(&self, pieces: &mut Pieces, seen: &mut Seen, start: usize, end: usize) {
        if start < end && start.is_multiple_of(self.page) && !self.is_mapped(start) {
            self.drop_in_file(pieces, start, end);
            pieces.forget(start, end);
            seen.add(What::Unmapped, start, end);
        }
    }

    fn is_mapped(&self, address: usize) -> bool {
        let mut there = 0u8;
        // SAFETY: fills a live local, for one page.
        let result = unsafe { libc::syscall(libc::SYS_mincore, address, self.page, &raw mut there) };
        result == 0
    }

    fn drop_in_file(&self, pieces: &Pieces, start: usize, end: usize) {
        pieces.parts(start, end, |offset, length| punch(self.file, offset, length));
    }

    /// What an event says that has been read: its caller goes on already.
    fn apply(&self, pieces: &mut Pieces, event: Event, seen: &Seen) {
        match event {
            // Otherwise it was done before, or by a caller that no thread stands for (io_uring).
            Event::Removed { start, end } => {
                if !seen.has(start, |what| what != What::Unmapped) {
                    self.drop_in_file(pieces, start, end);
                }
            }
            Event::Unmapped { start, end } => {
                if !seen.has(start, |what| what == What::Unmapped) {
                    self.drop_in_file(pieces, start, end);
                }
                pieces.forget(start, end);
            }
            Event::Moved { from, to, length } => pieces.relocate(from, to, length),
            Event::Other => {}
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        fork::disown_descriptor(self.faults.descriptor());
    }
}
