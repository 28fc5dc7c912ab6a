//! The guard: a thread that has shared pages behave as the program may expect of private ones.
//!
//! Shared pages are registered with userfaultfd(2). A thread that takes some away, by madvise(2), munmap(2)
//! or mremap(2), then sleeps until the guard has heard of it. Nothing is protected and nothing is missing
//! there: no access ever waits. MADV_DONTNEED on private memory gives zeros, so the guard takes the pages out
//! of the file. It has to do so *before* it reads the event: to read the event lets the caller go on. An
//! event that has not been read says nothing. So the guard looks which system calls the threads sleep in
//! ([`super::tasks`]), and where in the file their bytes are at that instant ([`super::mapped`]). A thread in
//! such a call has given its bytes up ([`super::effect`]). The kernel hands out the oldest event first. The
//! thread of that event sleeps, and the guard sees it. There is one exception. To read an event wakes all
//! threads that wait, for the moment that each takes to see that it is not its turn. So the guard waits for
//! every thread that runs, until the thread sleeps or has run for longer than that moment
//! ([`super::tasks::Runners`]).
//!
//! The sleeper may hold any lock of the program's, that of its allocator first of all. So the guard allocates
//! nothing, and takes no lock but that of the ledger ([`super::ledger`]), which no thread holds that could be
//! waiting for the guard.

use super::effect::{CALLS, Effect, EventReaders, nap};
use super::file::{Identity, SharedFile};
use super::install::Mapping;
use super::ledger::{LEDGER, Piece};
use super::mapped::ProgramMaps;
use super::tasks::{Entries, Runners, Tasks, entries};
use super::userfault::{GUARD_FEATURES, Mode, Userfault};
use super::{Facilities, Refusal, thread_data};
use crate::helpers::Helpers;
use crate::{containment, fork};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// The program's side of it. The thread stays as long as the process does.
pub(super) struct PageGuard {
    watch: Arc<Watch>,
    own: Vec<(usize, usize)>,
}

struct Watch {
    faults: Userfault,
    /// The memory descriptor.
    file: RawFd,
    identity: Identity,
    page: usize,
    /// An event came of a thread that was not seen.
    is_blind: AtomicBool,
}

/// The memory and the files that the thread works with: all of it is made when it starts.
struct Room {
    tasks: Tasks,
    entries: Entries,
    mapped: ProgramMaps,
    pagemap: File,
    seen: EventReaders,
    runners: Runners,
}

impl PageGuard {
    /// Starts the thread, and tries whether it sees all that it has to: else it is blind.
    pub(super) fn start(
        helpers: &'static Helpers,
        file: &mut SharedFile,
        page: usize,
    ) -> Result<Self, Refusal> {
        let faults = Userfault::open(GUARD_FEATURES)?;
        fork::own_descriptor(faults.descriptor());
        let (identity, is_blind) = (file.identity(), AtomicBool::new(false));
        let watch = Arc::new(Watch { faults, file: file.descriptor(), identity, page, is_blind });
        let theirs = watch.clone();
        let (tell, told) = mpsc::channel();
        let guard = move || {
            let mut room = match Room::new() {
                Ok(room) => room,
                Err(refusal) => return drop(tell.send(Err(refusal))),
            };
            let _ = tell.send(Ok(room.own()));
            drop(tell);
            containment::insist("adverb-guard", || theirs.run(&mut room));
        };
        let started = helpers.spawn("adverb-guard", guard);
        started.map_err(|error| Refusal::because("a thread", &error))?;
        let own = told.recv().unwrap_or(Err(Refusal::Ended))?;
        let guard = Self { watch, own };
        // It is not started again and again where it sees nothing.
        let is_blind = guard.prove(file).is_err();
        guard.watch.is_blind.fetch_or(is_blind, Ordering::SeqCst);
        Ok(guard)
    }

    /// Drops a page of ours, as the program may do with its own.
    fn prove(&self, file: &mut SharedFile) -> Result<(), Refusal> {
        let page = self.watch.page;
        let offset = file.allocate(page)?;
        let mapping = Mapping::shared(page, file.descriptor(), offset)?;
        self.adopt(mapping.address(), page, offset)?;
        if self.is_blind() || !mapping.is_dropped() { Err(self.refusal()) } else { Ok(()) }
    }

    /// Whether the guard has missed something: then it is not to be relied on any more.
    pub(super) fn is_blind(&self) -> bool {
        self.watch.is_blind.load(Ordering::SeqCst)
    }

    pub(super) fn refusal(&self) -> Refusal {
        Refusal::System("seeing what threads wait for", libc::EOPNOTSUPP)
    }

    /// Memory that the thread works with, as addresses and lengths: it is not to be moved.
    pub(super) fn own(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let watch = (Arc::as_ptr(&self.watch) as usize, size_of::<Watch>());
        self.own.iter().copied().chain([watch])
    }

    /// Guards a mapping of ours from now on, which may then be moved to where it belongs.
    pub(super) fn adopt(&self, base: usize, length: usize, offset: u64) -> Result<(), Refusal> {
        if !LEDGER.lock().add(Piece { base, length, offset }) {
            return Err(Refusal::Small);
        }
        let registered = self.watch.faults.register(base, length, Mode::Protected);
        registered.map_err(|errno| {
            LEDGER.lock().forget(base, base + length, None);
            Refusal::System("guarding shared pages", errno)
        })
    }
}

impl Room {
    /// For the calling thread.
    fn new() -> Result<Self, Refusal> {
        let pagemap = File::open("/proc/thread-self/pagemap");
        let pagemap = pagemap.map_err(|error| Refusal::because("/proc/thread-self/pagemap", &error))?;
        let mapped = ProgramMaps::open(Facilities::get().procmap_query)?;
        let tasks = Tasks::open()?;
        let (entries, seen, runners) = (entries(), EventReaders::nobody(), Runners::nobody());
        let room = Self { tasks, entries, mapped, pagemap, seen, runners };
        room.descriptors().for_each(fork::own_descriptor);
        Ok(room)
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.mapped.descriptors().into_iter().chain([self.pagemap.as_raw_fd()])
    }

    /// Memory that the thread works with.
    fn own(&self) -> Vec<(usize, usize)> {
        let here = (&raw const *self as usize, size_of::<Self>());
        let entries = (self.entries.as_ptr() as usize, self.entries.len());
        let some = [here, entries, self.mapped.own(), self.runners.own()];
        some.into_iter().chain(self.seen.own()).chain(thread_data()).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.descriptors().for_each(fork::disown_descriptor);
    }
}

impl Watch {
    fn run(&self, room: &mut Room) {
        loop {
            let is_there = self.faults.wait();
            let mut pieces = LEDGER.lock();
            self.look_at_all(room);
            let Room { mapped, pagemap, seen, .. } = room;
            // A thread that has done something to the pages waits until the event is read.
            if is_there && seen.is_empty() {
                self.is_blind.store(true, Ordering::SeqCst);
            }
            let (file, identity, page, faults) = (self.file, self.identity, self.page, &self.faults);
            let pieces = &mut pieces;
            let mut effect = Effect { file, identity, page, pagemap, faults, mapped, pieces, seen };
            effect.before();
            if let Some(event) = faults.read_event() {
                effect.after(event);
            }
        }
    }

    /// Looks until no thread is left that could wait for an event and was not seen to.
    fn look_at_all(&self, room: &mut Room) {
        // A second or so: a thread that gets no processor for that long is not to keep others from theirs.
        const MOST_LOOKS: u32 = 10_000;
        let Room { tasks, entries, seen, runners, .. } = room;
        runners.clear();
        let mut looks = 0;
        loop {
            seen.clear();
            tasks.each(entries, |number| CALLS.contains(&number), |call| seen.add(call), runners);
            looks += 1;
            if !runners.may_wait() || looks == MOST_LOOKS {
                return;
            }
            nap();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        fork::disown_descriptor(self.faults.descriptor());
    }
}
