//! The guard: a thread that keeps shared pages to what the program may expect of private ones.
//!
//! Shared pages are registered with userfaultfd(2) so that whoever takes some away, by madvise(2), munmap(2) or mremap(2), sleeps until the guard has heard of it.
//! Nothing is protected and nothing is missing there: no access ever waits. MADV_DONTNEED on private memory gives zeros, so the guard takes the pages
//! out of the file. It has to do so *before* it reads the event, for it is the reading that lets the caller go on; and an event that has not been read says nothing. So the
//! guard looks which system calls the threads sleep in ([`super::tasks`]): whoever is in such a call has given its bytes up. The kernel hands out the latest event first. So the
//! guard looks again if one has come while it looked, until it has seen all who wait: they become no more than there are threads.
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
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The program's side of it. The thread stays as long as the process does.
pub(super) struct Guard {
    watch: Arc<Watch>,
}

struct Watch {
    faults: Userfault,
    tasks: Tasks,
    /// Whether an event has come.
    news: OwnedFd,
    pagemap: File,
    /// The memory descriptor.
    file: RawFd,
    page: usize,
}

impl Guard {
    pub(super) fn start(engine: &'static Engine, file: RawFd, page: usize) -> Result<Self, Refusal> {
        let faults = Userfault::open(GUARD_FEATURES)?;
        let news = edges_of(faults.descriptor())?;
        let pagemap = File::open("/proc/self/pagemap");
        let pagemap = pagemap.map_err(|error| Refusal::because("/proc/self/pagemap", &error))?;
        let watch = Arc::new(Watch { faults, tasks: Tasks::open()?, news, pagemap, file, page });
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
    all: [Caller; Seen::MOST],
    count: usize,
}

#[derive(Clone, Copy)]
struct Caller {
    thread: libc::pid_t,
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

    const fn nobody() -> Self {
        Self { all: [Caller { thread: 0, what: What::Other, start: 0, end: 0 }; Self::MOST], count: 0 }
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

    /// Who does one of these to what begins at an address.
    fn who(&self, at: usize, is: impl Fn(What) -> bool) -> Option<libc::pid_t> {
        let does = |caller: &&Caller| is(caller.what) && (caller.start..caller.end).contains(&at);
        self.callers().iter().find(does).map(|caller| caller.thread)
    }

    fn has_all_of(&self, others: &Self) -> bool {
        others.callers().iter().all(|other| self.callers().iter().any(|caller| caller.thread == other.thread))
    }

    /// One of them goes on.
    fn release(&mut self, thread: libc::pid_t) {
        let mut at = 0;
        while let Some(caller) = self.callers().get(at) {
            if caller.thread == thread {
                self.count -= 1;
                self.all.swap(at, self.count);
            } else {
                at += 1;
            }
        }
    }
}

/// A descriptor that tells of each event once.
fn edges_of(faults: RawFd) -> Result<OwnedFd, Refusal> {
    // SAFETY: plain flags.
    let news = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if news < 0 {
        return Err(Refusal::system("epoll_create1"));
    }
    // SAFETY: a fresh descriptor.
    let news = unsafe { OwnedFd::from_raw_fd(news) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: live descriptors and a live structure.
    match unsafe { libc::epoll_ctl(news.as_raw_fd(), libc::EPOLL_CTL_ADD, faults, &raw mut event) } {
        0 => Ok(news),
        _ => Err(Refusal::system("epoll_ctl")),
    }
}

impl Watch {
    fn descriptors(&self) -> [RawFd; 3] {
        [self.faults.descriptor(), self.news.as_raw_fd(), self.pagemap.as_raw_fd()]
    }

    fn run(&self) {
        let mut waiting = Seen::nobody();
        loop {
            self.faults.wait();
            let mut pieces = LEDGER.lock();
            waiting = self.look_at_all(&mut pieces, &waiting);
            if let Some(event) = self.faults.read_event()
                && let Some(thread) = self.apply(&mut pieces, event, &waiting)
            {
                waiting.release(thread);
            }
        }
    }

    /// Looks until it has seen all who wait. The reading of an event wakes the others for a moment, too, in which they are not seen to wait: those of
    /// the last time are waited for.
    fn look_at_all(&self, pieces: &mut Pieces, before: &Seen) -> Seen {
        const TRIES: u32 = 20_000;
        self.has_news();
        let mut tries = 0;
        loop {
            let seen = self.look(pieces);
            // They do come, but if one was taken for another: not for ever.
            let is_all = seen.has_all_of(before) || tries == TRIES;
            // Nothing comes between the last look for news and the reading of an event but what comes in that very moment.
            // SAFETY: lets others run.
            unsafe { libc::syscall(libc::SYS_sched_yield) };
            if is_all && !self.has_news() {
                return seen;
            }
            if !is_all {
                tries += 1;
                nap();
            }
        }
    }

    /// Whether an event has come since this was asked last.
    fn has_news(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: fills one live structure, and does not wait.
        let count = unsafe {
            libc::syscall(libc::SYS_epoll_pwait, self.news.as_raw_fd(), &raw mut event, 1, 0, 0, 8)
        };
        count > 0
    }

    /// Drops in the file what somebody is dropping in memory.
    fn look(&self, pieces: &mut Pieces) -> Seen {
        const CALLS: [i64; 6] = [
            libc::SYS_madvise,
            libc::SYS_process_madvise,
            libc::SYS_munmap,
            libc::SYS_mmap,
            libc::SYS_mremap,
            libc::SYS_brk,
        ];
        let mut seen = Seen::nobody();
        self.tasks.each(|number| CALLS.contains(&number), |call| self.heed(pieces, &mut seen, call));
        seen
    }

    fn heed(&self, pieces: &mut Pieces, seen: &mut Seen, call: &Call) {
        let [first, second, third, fourth, ..] = call.arguments;
        let mut add = |what, start, end| seen.add(Caller { thread: call.thread, what, start, end });
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

    /// What an event says that has been read: its caller goes on already. Who that is, if it was seen.
    fn apply(&self, pieces: &mut Pieces, event: Event, seen: &Seen) -> Option<libc::pid_t> {
        match event {
            // Otherwise it was done before; or by a caller who came after the last look, or whom no thread stands for (io_uring).
            Event::Removed { start, end } => {
                let who = seen.who(start, |what| matches!(what, What::Dropped | What::Kept));
                if who.is_none() {
                    self.drop_late(pieces, start, end);
                }
                who
            }
            Event::Unmapped { start, end } => {
                let who = seen.who(start, |what| what == What::Unmapped);
                if who.is_none() {
                    self.drop_in_file(pieces, start, end);
                    pieces.forget(start, end);
                }
                who
            }
            Event::Moved { from, to, length } => {
                pieces.relocate(from, to, length);
                seen.who(from, |what| what == What::Other)
            }
            Event::Other => None,
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
