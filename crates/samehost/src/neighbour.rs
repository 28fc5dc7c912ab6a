//! Another process of this host, as far as the two use each other's memory.

use crate::landmark::Landmark;
use crate::loans::Loans;
use crate::lock;
use crate::look::look;
use crate::neighbour_memory::NeighbourMemory;
use adverb_core::log;
use adverb_core::memory::Keys;
use adverb_core::memory::moved::Place;
use adverb_core::memory::process::Process;
use adverb_core::memory::ways::Together;
use adverb_core::seqpacket::{Descriptors, PassedFd};
use adverb_local::{HazardSlots, HazardView, Table};
use arrayvec::ArrayVec;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The other process knows our table.
const TABLE: u8 = 1;
/// The other process has the descriptor of the memory of ours that it can map.
const MEMORY: u8 = 2;

/// How a transport is acquainted with another process: how that is told of our memory.
pub trait NeighbourLink: Send + Sync {
    /// The neighbour behind this link.
    fn neighbour(&self) -> &Neighbour;
    /// This link, for a caller that keeps it.
    fn this(&self) -> Weak<dyn NeighbourLink>;
    /// Sends the other process descriptors: of our table, and perhaps of those parts of our memory that can
    /// be mapped. It learns as this process does, when it is told.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn send(&self, descriptors: &[RawFd]) -> io::Result<()>;
    /// The other process has broken the rules: this process has no more to do with it.
    fn break_off(&self);
}

/// The stages of the other process's life, as known here. They only go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Life {
    /// The process is there. No queue pair here goes by its channel yet, so nothing is taken out.
    Arriving,
    /// The process is there, and every queue pair that waited for its channel goes by it.
    Here,
    /// The process has broken the rules: its words do not count any more.
    Distrusted,
    /// The process has gone, or is to be nothing to us.
    Ended,
    /// The process ended some time ago: it answers nothing any more.
    Dead,
}

impl Life {
    #[inline]
    fn of(word: u8) -> Self {
        match word {
            0 => Self::Arriving,
            1 => Self::Here,
            2 => Self::Distrusted,
            3 => Self::Ended,
            _ => Self::Dead,
        }
    }
}

/// Whether this process knows where the other one has its memory.
#[derive(Default)]
enum NeighbourMemoryState {
    /// The process has not said it.
    #[default]
    Unknown,
    /// The process has said it, and a thread looks whether it is the right one.
    Looking {
        table: OwnedFd,
        memory: Option<OwnedFd>,
    },
    Known(Arc<NeighbourMemory>),
}

/// Another process of this host, or this one itself: how this process reaches its memory, and which of ours
/// it knows. Thread-safe.
pub struct Neighbour {
    process: libc::pid_t,
    is_oneself: bool,
    reads: bool,
    shares: bool,
    hazard_slots: Arc<HazardSlots>,
    hazard_view: HazardView,
    loans: Arc<Loans>,
    memory: Mutex<NeighbourMemoryState>,
    /// The news of our memory that the other process has got: [`TABLE`], [`MEMORY`].
    told: AtomicU8,
    delays: AtomicU32,
    life: AtomicU8,
}

impl Neighbour {
    /// The process with this number, or (`is_oneself`) this one. `reads`: whether each reads the other's
    /// memory. The rest is of the memory that both share.
    pub fn new(
        (process, is_oneself): (libc::pid_t, bool),
        reads: bool,
        (hazard_slots, hazard_view): (HazardSlots, HazardView),
        loans: adverb_local::Loans,
        keys: &'static Keys,
    ) -> Self {
        let loans = Arc::new(Loans::new(loans, keys));
        let lender: Weak<Loans> = Arc::downgrade(&loans);
        keys.add_lender(lender);
        Self {
            process,
            is_oneself,
            reads,
            // Each process itself checks the bytes that go into a capture. And no process is told of memory
            // that it could not read anyway.
            shares: reads && Together::now().is_straight(),
            hazard_slots: Arc::new(hazard_slots),
            hazard_view,
            loans,
            memory: Mutex::default(),
            told: AtomicU8::new(0),
            delays: AtomicU32::new(0),
            life: AtomicU8::new(Life::Arriving as u8),
        }
    }

    /// The number of the process.
    #[inline]
    pub fn process(&self) -> libc::pid_t {
        self.process
    }

    /// Whether each of the two reads the other's memory: longer payload stays where it is until the receiver
    /// fetches it.
    #[inline]
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Whether operations may be carried out in the memory of the other, on either side.
    #[inline]
    pub fn may_share(&self) -> bool {
        self.shares
    }

    /// Whether the other process knows which of our memory it may use.
    #[inline]
    pub fn has_been_told(&self) -> bool {
        self.told.load(Ordering::SeqCst) != 0
    }

    /// Whether the other process knows what of our memory can be mapped, too.
    #[inline]
    pub fn knows_what_to_map(&self) -> bool {
        self.told.load(Ordering::SeqCst) & MEMORY != 0
    }

    /// Memory of ours that it may read.
    #[inline]
    pub fn loans(&self) -> &Arc<Loans> {
        &self.loans
    }

    /// The hazard words by which this process says which keys and queue pairs of the other one it is going to
    /// use.
    #[inline]
    pub(crate) fn hazard_slots(&self) -> &Arc<HazardSlots> {
        &self.hazard_slots
    }

    /// The hazard words of the other process: what it uses of our memory.
    pub(crate) fn hazard_view(&self) -> &HazardView {
        &self.hazard_view
    }

    /// The memory of the other process, if that is in reach.
    pub fn memory(&self) -> Option<Arc<NeighbourMemory>> {
        match &*lock(&self.memory) {
            NeighbourMemoryState::Known(neighbour_memory) => Some(neighbour_memory.clone()),
            NeighbourMemoryState::Unknown | NeighbourMemoryState::Looking { .. } => None,
        }
    }

    /// The other process has its memory there. `process`: how the kernel copies to and from it, if it does.
    ///
    /// # Errors
    /// Those of mmap(2).
    fn learn(&self, table: OwnedFd, memory: Option<OwnedFd>, process: Option<Process>) -> io::Result<()> {
        let neighbour_memory = Arc::new(NeighbourMemory::new(table, process)?);
        if let Some(memory) = memory {
            neighbour_memory.learn(memory);
        }
        log!(Info, "memory of process {} is in reach", self.process);
        *lock(&self.memory) = NeighbourMemoryState::Known(neighbour_memory);
        Ok(())
    }

    /// Takes note of memory of this process itself.
    fn learn_own(&self, table: OwnedFd, memory: Option<OwnedFd>) -> io::Result<()> {
        if !self.shares {
            return Ok(());
        }
        match self.memory() {
            Some(neighbour_memory) => {
                memory.into_iter().for_each(|memory| neighbour_memory.learn(memory));
                Ok(())
            }
            None => self.learn(table, memory, Landmark::own().find(self.process)),
        }
    }

    /// A thread has looked at the landmark of the other process, and has found this.
    fn has_looked(&self, process: Option<Process>) {
        let mut state = lock(&self.memory);
        let NeighbourMemoryState::Looking { table, memory } = std::mem::take(&mut *state) else { return };
        drop(state);
        let learned = if self.has_ended() { Ok(()) } else { self.learn(table, memory, process) };
        self.warn_unless(learned);
    }

    fn warn_unless(&self, learned: io::Result<()>) {
        if let Err(error) = learned {
            log!(Warn, "memory of process {} is not in reach: {error}", self.process);
        }
    }

    /// How often the process has exceeded a time limit.
    pub(crate) fn delays(&self) -> u32 {
        self.delays.load(Ordering::Relaxed)
    }

    /// Counts that the process has exceeded a time limit. Returns how often by now.
    pub(crate) fn delay(&self) -> u32 {
        self.delays.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The stage of its life.
    #[inline]
    pub fn life(&self) -> Life {
        Life::of(self.life.load(Ordering::Acquire))
    }

    /// Moves the process's life on to this point, unless it has been further. Returns where it was before.
    pub fn comes_to(&self, life: Life) -> Life {
        Life::of(self.life.fetch_max(life as u8, Ordering::SeqCst))
    }

    /// Whether the process has gone, or broke the rules.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.life() > Life::Here
    }

    /// Forgets a process that has gone for good: it neither reads our memory, nor have we anything of its
    /// own.
    pub fn forget(&self) {
        self.loans.end();
        *lock(&self.memory) = NeighbourMemoryState::Unknown;
    }
}

impl dyn NeighbourLink + '_ {
    /// The other process has said, by a message that has come, where its memory is.
    pub(crate) fn told(&self, descriptors: Descriptors, of: Landmark) {
        let neighbour = self.neighbour();
        let mut descriptors = descriptors.into_iter();
        let (Some(table), memory, None) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
            return;
        };
        if !neighbour.shares || neighbour.has_ended() {
            return;
        }
        let memory_of = |passed: PassedFd| {
            passed.into_memory().ok_or_else(|| io::Error::other("a descriptor is not one of memory"))
        };
        let all = || io::Result::Ok((memory_of(table)?, memory.map(memory_of).transpose()?));
        let (table, memory) = match all() {
            Ok(all) => all,
            Err(error) => return neighbour.warn_unless(Err(error)),
        };
        let mut state = lock(&neighbour.memory);
        // The table that it has told of first counts.
        match &mut *state {
            NeighbourMemoryState::Known(neighbour_memory) => {
                let neighbour_memory = neighbour_memory.clone();
                drop(state);
                memory.into_iter().for_each(|memory| neighbour_memory.learn(memory));
            }
            NeighbourMemoryState::Looking { memory: known, .. } => {
                *known = known.take().or(memory);
            }
            NeighbourMemoryState::Unknown => {
                *state = NeighbourMemoryState::Looking { table, memory };
                drop(state);
                let (this, process) = (self.this(), neighbour.process);
                look(
                    process,
                    move || of.find(process),
                    move |found| {
                        if let Some(this) = this.upgrade() {
                            this.neighbour().has_looked(found);
                        }
                    },
                );
            }
        }
    }

    /// Tells the other process of our memory, and where what can be mapped of it is, unless it knows. For one
    /// thread at a time.
    pub(crate) fn tell(&self, table: &Table, place: Option<&Place>) {
        let neighbour = self.neighbour();
        let news = if place.is_some() { TABLE | MEMORY } else { TABLE };
        let before = neighbour.told.fetch_or(news, Ordering::SeqCst);
        if before | news == before || neighbour.has_ended() {
            return;
        }
        let memory = place.map(|place| place.descriptor);
        let told = if neighbour.is_oneself {
            let copied = || {
                // SAFETY: the engine's own descriptor, which it never closes.
                let memory = memory.map(|memory| unsafe { BorrowedFd::borrow_raw(memory) });
                let memory = memory.map(|memory| memory.try_clone_to_owned()).transpose()?;
                io::Result::Ok((table.descriptor().try_clone_to_owned()?, memory))
            };
            copied().and_then(|(table, memory)| neighbour.learn_own(table, memory))
        } else {
            let descriptors: ArrayVec<RawFd, 2> =
                [Some(table.descriptor().as_raw_fd()), memory].into_iter().flatten().collect();
            self.send(&descriptors)
        };
        if let Err(error) = told {
            log!(Warn, "process {} cannot be told of memory: {error}", neighbour.process);
            neighbour.told.store(before, Ordering::SeqCst);
        }
    }
}
