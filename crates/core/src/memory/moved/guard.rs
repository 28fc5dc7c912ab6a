//! The guard: a thread that keeps shared pages to what the program may expect of private ones.
//!
//! Shared pages are registered with userfaultfd(2) so that whoever takes some away, by madvise(2), munmap(2) or mremap(2), sleeps until the guard has heard of it.
//! Nothing is protected and nothing is missing there: no access ever waits. MADV_DONTNEED on private memory gives zeros, so the guard takes the pages
//! out of the file. It has to do so *before* it reads the event, for it is the reading that lets the caller go on; and an event that has not been read says nothing. So the
//! guard looks which system calls the threads sleep in ([`super::tasks`]): whoever is in such a call has given its bytes up. The kernel hands out the oldest event first.
//! The thread of that event sleeps, and the guard sees it. There is one exception: reading an event wakes all who wait, for the moment that each takes to see that it is not
//! its turn. So the guard waits for every thread that runs, until the thread sleeps or has run for longer than that moment ([`super::tasks::Runners`]).
//!
//! The sleeper may hold any lock of the program's, that of its allocator first of all. So the guard allocates nothing, and takes no lock but that of the ledger
//! ([`super::ledger`]), which nobody holds who could be waiting for the guard.

use super::Refusal;
use super::file::punch;
use super::ledger::{LEDGER, Piece, Pieces};
use super::tasks::{Call, Runners, Tasks};
use super::userfault::{Event, GUARD_FEATURES, Mode, Userfault};
use crate::engine::Engine;
use crate::memory::copy;
use crate::{failure, fork};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The program's side of it. The thread stays as long as the process does.
pub(super) struct Guard {
    watch: Arc<Watch>,
}

struct Watch {
    faults: Userfault,
    tasks: Tasks,
    pagemap: File,
    /// The memory descriptor.
    file: RawFd,
    page: usize,
}

impl Guard {
    pub(super) fn start(engine: &'static Engine, file: RawFd, page: usize) -> Result<Self, Refusal> {
        let faults = Userfault::open(GUARD_FEATURES)?;
        let pagemap = File::open("/proc/self/pagemap");
        let pagemap = pagemap.map_err(|error| Refusal::because("/proc/self/pagemap", &error))?;
        let watch = Arc::new(Watch { faults, tasks: Tasks::open()?, pagemap, file, page });
        let theirs = watch.clone();
        let guard = move || {
            let (mut seen, mut runners) = (Seen::nobody(), Runners::nobody());
            for _ in 0..2 {
                failure::contain("adverb-guard", || theirs.run(&mut seen, &mut runners));
            }
            // Without it, threads of the program would sleep for ever.
            std::process::abort();
        };
        let started = engine.reactor.helpers.spawn("adverb-guard", guard);
        started.map_err(|error| Refusal::because("a thread", &error))?;
        watch.descriptors().into_iter().for_each(fork::own_descriptor);
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

/// The threads that were seen to wait for the reading of an event, and what they do to the program's memory.
struct Seen {
    /// Made when the guard starts, which allocates nothing later.
    all: Box<[Caller]>,
    count: usize,
}

#[derive(Clone, Copy)]
struct Caller {
    what: What,
    start: usize,
    end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Its bytes are dropped; and so they are in the file by now.
    Dropped,
    /// Unmapped, and dropped in the file.
    Unmapped,
    /// The kernel says no, or does by itself what is to be done.
    Kept,
    /// Something else.
    Other,
}

impl Seen {
    const MOST: usize = 512;

    fn nobody() -> Self {
        Self { all: vec![Caller { what: What::Other, start: 0, end: 0 }; Self::MOST].into(), count: 0 }
    }

    fn add(&mut self, caller: Caller) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = caller;
            self.count += 1;
        }
    }

    fn callers(&self) -> &[Caller] {
        self.all.get(..self.count).unwrap_or_default()
    }

    /// Whether somebody does one of these to what begins at an address.
    fn has(&self, at: usize, is: impl Fn(What) -> bool) -> bool {
        self.callers().iter().any(|caller| is(caller.what) && (caller.start..caller.end).contains(&at))
    }
}

impl Watch {
    fn descriptors(&self) -> [RawFd; 2] {
        [self.faults.descriptor(), self.pagemap.as_raw_fd()]
    }

    fn run(&self, seen: &mut Seen, runners: &mut Runners) {
        loop {
            self.faults.wait();
            let mut pieces = LEDGER.lock();
            self.look_at_all(&mut pieces, seen, runners);
            if let Some(event) = self.faults.read_event() {
                self.apply(&mut pieces, event, seen);
            }
        }
    }

    /// Looks until no thread is left that could wait for an event and was not seen to.
    fn look_at_all(&self, pieces: &mut Pieces, seen: &mut Seen, runners: &mut Runners) {
        // A second or so: a thread that gets no processor for that long is not to keep others from theirs.
        const MOST_LOOKS: u32 = 10_000;
        runners.clear();
        let mut looks = 0;
        loop {
            self.look(pieces, seen, runners);
            looks += 1;
            if !runners.may_wait() || looks == MOST_LOOKS {
                return;
            }
            nap();
        }
    }

    /// Drops in the file what somebody is dropping in memory.
    fn look(&self, pieces: &mut Pieces, seen: &mut Seen, runners: &mut Runners) {
        const CALLS: [i64; 6] = [
            libc::SYS_madvise,
            libc::SYS_process_madvise,
            libc::SYS_munmap,
            libc::SYS_mmap,
            libc::SYS_mremap,
            libc::SYS_brk,
        ];
        seen.count = 0;
        self.tasks.each(|number| CALLS.contains(&number), |call| self.heed(pieces, seen, call), runners);
    }

    fn heed(&self, pieces: &mut Pieces, seen: &mut Seen, call: &Call) {
        let [first, second, third, fourth, ..] = call.arguments;
        let mut add = |what, start, end| seen.add(Caller { what, start, end });
        let mut unmapped = |start, end| {
            self.drop_in_file(pieces, start, end);
            pieces.forget(start, end);
            add(What::Unmapped, start, end);
        };
        match call.number {
            libc::SYS_madvise => {
                let end = self.end_of(first, second);
                add(self.advised(pieces, first, end, third), first, end);
            }
            libc::SYS_process_madvise => {
                for at in 0..third.min(libc::UIO_MAXIOV as usize) {
                    let mut vector = [0; 16];
                    // SAFETY: the caller gave the kernel this memory to be read, and waits; a bad address is an error.
                    let read = unsafe { copy::copy_from(&mut vector, second.wrapping_add(at * 16)) };
                    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
                    if read.is_ok() {
                        let (start, length) = vector.split_at(8);
                        let (start, end) = (word(start), self.end_of(word(start), word(length)));
                        add(self.advised(pieces, start, end, fourth), start, end);
                    }
                }
            }
            libc::SYS_munmap => unmapped(first, self.end_of(first, second)),
            libc::SYS_mmap if fourth as i32 & libc::MAP_FIXED != 0 => {
                unmapped(first, self.end_of(first, second));
            }
            // It becomes shorter.
            libc::SYS_mremap if third < second => {
                unmapped(self.end_of(first, third), self.end_of(first, second));
            }
            _ => add(What::Other, first, self.end_of(first, second)),
        }
    }

    fn end_of(&self, start: usize, length: usize) -> usize {
        start.saturating_add(length.checked_next_multiple_of(self.page).unwrap_or(usize::MAX))
    }

    fn advised(&self, pieces: &Pieces, start: usize, end: usize, advice: usize) -> What {
        match advice as i32 {
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => {
                self.drop_in_file(pieces, start, end);
                What::Dropped
            }
            libc::MADV_FREE | libc::MADV_REMOVE => What::Kept,
            _ => What::Other,
        }
    }

    fn drop_in_file(&self, pieces: &Pieces, start: usize, end: usize) {
        pieces.parts(start, end, |offset, length| punch(self.file, offset, length));
    }

    /// Drops pages whose owner goes on already: none that has been used again since. Those that the kernel has yet to drop in memory are waited for, a little.
    fn drop_late(&self, pieces: &Pieces, start: usize, end: usize) {
        const TRIES: u32 = 50;
        for _ in 0..TRIES {
            let mut left = false;
            for page in (start..end).step_by(self.page) {
                if self.is_present(page) {
                    left = true;
                } else {
                    self.drop_in_file(pieces, page, page + self.page);
                }
            }
            if !left {
                return;
            }
            nap();
        }
    }

    /// Whether the program has a page in its tables.
    fn is_present(&self, page: usize) -> bool {
        let mut entry = [0; 8];
        let read = self.pagemap.read_at(&mut entry, (page / self.page * 8) as u64);
        read.is_err() || u64::from_ne_bytes(entry) >> 63 == 1
    }

    /// What an event says that has been read: its caller goes on already.
    fn apply(&self, pieces: &mut Pieces, event: Event, seen: &Seen) {
        match event {
            // Otherwise it was done before; or by a caller whom no thread stands for (io_uring).
            Event::Removed { start, end } => {
                if !seen.has(start, |what| matches!(what, What::Dropped | What::Kept)) {
                    self.drop_late(pieces, start, end);
                }
            }
            Event::Unmapped { start, end } => {
                if !seen.has(start, |what| what == What::Unmapped) {
                    self.drop_in_file(pieces, start, end);
                    pieces.forget(start, end);
                }
            }
            Event::Moved { from, to, length } => pieces.relocate(from, to, length),
            Event::Other => {}
        }
    }
}

fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: sleeps; a live structure.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const moment, 0) };
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.descriptors().into_iter().for_each(fork::disown_descriptor);
    }
}
