//! Registered memory that a process of the same host reaches by loads and stores of its own.
//!
//! The pages inside of an ordinary region ([`share`]) are moved into a sealed memory descriptor, which a peer
//! maps ([`View`]). The rest of the region, in its first and last page, stays as it is. The pages stay there
//! when the region is deregistered, and serve the next registration of the same bytes. A copy back would cut
//! off any part of the kernel that has got hold of them meanwhile.
//!
//! The program does not notice. Moving takes a copy, so the program's only thread does it, in a verbs call.
//! Its signals are blocked and the engine's own threads held ([`crate::helpers`]). Nothing may be there by
//! which the kernel or a device could have pages in its hands. From then on a thread of ours *guards* the
//! pages: dropped pages read as zeros, and the guard knows those that are unmapped or moved. Where one of
//! these conditions does not hold, nothing is moved ([`Refusal`]), and peers go other ways.
//!
//! Parts: [`file`] has the descriptor. At a [`safe_point`], a thread of the program does the work; [`quiet`]
//! and [`holders`] look whether others could write, [`maps`] and [`eligible`] which memory may be moved.
//! [`userfault`] and [`install`] move it. Afterwards, [`guard`], [`tasks`], [`mapped`], [`effect`] and
//! [`ledger`] keep it. [`fork`] has the copies for a child, [`state`] the lock, [`view`] the peer's side, and
//! [`own`] the engine's own memory. [`calls`] has the system calls on mappings.

mod calls;
mod effect;
mod eligible;
mod file;
mod fork;
mod guard;
mod holders;
mod install;
mod ledger;
mod mapped;
mod maps;
mod own;
mod quiet;
mod refusal;
mod safe_point;
mod state;
mod tasks;
mod userfault;
mod view;

pub(in crate::memory) use file::Identity;
pub(crate) use fork::install_handlers;
pub(in crate::memory) use maps::{Maps, Name, Vma, mapping_at, nameless_at, next as next_mapping, read};
pub(crate) use own::{InChild, Own};
pub use refusal::Refusal;
pub use safe_point::{SafePoints, at_safe_point, safe_point};
pub use view::View;

use crate::cancel::CancellationGuard;
use crate::fork::ForkGeneration;
use crate::helpers;
use crate::setting;
use crate::signals::SignalMask;
use file::SharedFile;
use guard::PageGuard;
use install::Job;
use ledger::{FilePlace, LEDGER, Line};
use maps::FlaggedMappings;
use quiet::Alone;
use state::State;
use std::cell::LazyCell;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use userfault::{MOVE_FEATURES, Userfault};

/// Where a peer finds the pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory descriptor, the engine's own: one for all regions of the process, sealed against becoming
    /// shorter.
    pub descriptor: RawFd,
    /// Where in it they begin.
    pub offset: u64,
    /// Length in bytes of the moved pages, which are whole.
    pub length: usize,
    /// Address of the pages' first byte in this process, in the first or second page of the region.
    pub address: usize,
}

/// A region whose pages may be moved.
pub trait Movable {
    /// The whole pages in it, as addresses of the first and of the end.
    ///
    /// # Errors
    /// Why they are not such as might be moved.
    fn pages(&self) -> Result<(usize, usize), Refusal>;

    /// Where others can map its pages from, if they have been moved.
    fn place(&self) -> Option<Place>;

    /// Whether bytes of it are lent to a process that reads them at any time. For a caller that knows that no
    /// thread of the engine has any in use.
    fn is_lent(&self) -> bool;

    /// Gives it moved pages. False if it has ended.
    fn accept(&self, moved: MovedRegion) -> bool;
}

/// A region's part in moved pages, until dropped.
pub struct MovedRegion {
    place: Place,
    born: ForkGeneration,
}

/// The most pieces and bytes that are shared: a fork copies them, and all of `smaps` is read to share another
/// one.
const MOST_PIECES: usize = 256;
const MOST_BYTES: usize = 256 << 20;

/// The most bytes that a thread of the program moves at once: about 50 ms.
const MOST_AT_ONCE: usize = 64 << 20;

/// The least length that is worth one of the pieces, when so many are taken.
fn least(taken: usize, page: usize) -> Option<usize> {
    match taken {
        0..128 => Some(page),
        128..MOST_PIECES => Some(64 << 10),
        _ => None,
    }
}

/// Whether [`share`] would have a chance, as far as a look at the process tells, which takes some
/// microseconds. To be asked before any other process is troubled.
///
/// # Errors
/// Why it would not.
pub fn might<R: Movable>(region: &Arc<R>) -> Result<(), Refusal> {
    let _here = InterruptionGuard::new();
    let look = || {
        let (start, end) = region.pages()?;
        Facilities::get().check()?;
        match LEDGER.lock().find(start, end) {
            FilePlace::At(_) => return Ok(()),
            FilePlace::Partly => return Err(Refusal::Overlap),
            FilePlace::Nowhere => {}
        }
        has_room(end - start)?;
        quiet::may_be_alone()?;
        holders::has_no_ring()?;
        // Where the call is filtered, no thread gets a descriptor.
        Userfault::open(MOVE_FEATURES).map(drop)
    };
    look()
}

/// Whether the system has all that moving needs.
pub(super) fn may_be_had() -> Result<(), Refusal> {
    is_wanted()?;
    Userfault::open(MOVE_FEATURES).map(drop)
}

/// Whether anything is moved in this process, as it is set and run.
pub(crate) fn is_wanted() -> Result<(), Refusal> {
    Facilities::get().check()
}

/// Whether the kernel has a call that tells of a process's mappings (PROCMAP_QUERY).
pub(super) fn tells_mappings() -> bool {
    Facilities::get().procmap_query
}

/// Whether none of these bytes are in memory of the engine's that has taken the place of the program's.
pub(super) fn is_untouched(start: usize, end: usize) -> bool {
    LEDGER.lock().find(start, end) == FilePlace::Nowhere
}

/// Whether so many bytes more may be shared.
fn has_room(length: usize) -> Result<(), Refusal> {
    if length > MOST_AT_ONCE {
        return Err(Refusal::Memory("it is so long that the program would notice the move"));
    }
    let (pieces, bytes, has_lost_some) = {
        let ledger = LEDGER.lock();
        (ledger.len(), ledger.bytes(), ledger.has_lost_some())
    };
    if has_lost_some {
        return Err(Refusal::Memory(
            "the program has cut what is shared into more pieces than are kept in mind",
        ));
    }
    if least(pieces, page_size()).is_none_or(|least| length < least) || bytes + length > MOST_BYTES {
        return Err(Refusal::Small);
    }
    Ok(())
}

/// Moves the pages inside of these regions to where a peer can map them. Returns, for each region, where they
/// are, or why they are not moved. Regions whose bytes have been moved already cost next to nothing.
///
/// A thread of the program calls it at a *safe point*: it has entered the engine, holds none of its locks and
/// has no bytes of a region open. A peer of the same host may reach the bytes. The move takes about 0.8 ms
/// for each MiB. No other process may be writing to the bytes meanwhile: a peer that does so through the
/// kernel is to be told of a region after this. Does not change errno, and is no point of cancellation.
///
/// The pages stay where they are when a region is deregistered or changed. The caller makes sure that a peer
/// has ended its use of them *before* the region's key goes, and unmaps its [`View`] afterwards.
pub fn share<R: Movable>(regions: &[Arc<R>]) -> Vec<Result<Place, Refusal>> {
    let _here = InterruptionGuard::new();
    let Some(mut state) = state::lock() else { return vec![Err(Refusal::Busy); regions.len()] };
    // Looks that are made once for all of them.
    let until = regions.iter().filter_map(|region| region.pages().ok()).map(|(_, end)| end).max();
    let look = || FlaggedMappings::below(until.unwrap_or(0));
    let flagged: Flags<'_> = LazyCell::new(&look);
    // Where the process is refused, the others need no look.
    let mut for_all: Option<Refusal> = None;
    let mut answers = Vec::with_capacity(regions.len());
    for region in regions {
        let answer = for_all.map_or_else(|| state.share(region, &flagged), Err);
        for_all = for_all.or(answer.err().filter(Refusal::is_for_all));
        answers.push(answer);
    }
    answers
}

type Flags<'a> = LazyCell<Result<FlaggedMappings, Refusal>, &'a dyn Fn() -> Result<FlaggedMappings, Refusal>>;

impl State {
    fn share<R: Movable>(&mut self, region: &Arc<R>, flagged: &Flags<'_>) -> Result<Place, Refusal> {
        let (start, end) = region.pages()?;
        if let Some(place) = region.place() {
            return Ok(place);
        }
        Facilities::get().check()?;
        let found = LEDGER.lock().find(start, end);
        let offset = match found {
            FilePlace::At(offset) if is_there(self.file()?.identity(), start, end, offset)? => offset,
            FilePlace::At(_) | FilePlace::Partly => return Err(Refusal::Overlap),
            FilePlace::Nowhere => self.move_region(region, start, end, flagged)?,
        };
        let descriptor = self.file()?.descriptor();
        let place = Place { descriptor, offset, length: end - start, address: start };
        if region.accept(MovedRegion { place, born: ForkGeneration::now() }) {
            Ok(place)
        } else {
            Err(Refusal::Ended)
        }
    }

    /// Moves the pages inside of a region. Where they are then.
    fn move_region<R: Movable>(
        &mut self,
        region: &Arc<R>,
        start: usize,
        end: usize,
        flagged: &Flags<'_>,
    ) -> Result<u64, Refusal> {
        let (length, page) = (end - start, page_size());
        if region.is_lent() {
            return Err(Refusal::Busy);
        }
        has_room(length)?;
        if is_strict(&maps::read("/proc/sys/vm/overcommit_memory")?) {
            return Err(Refusal::Memory("the system keeps account of all memory (vm.overcommit_memory)"));
        }
        let faults = Userfault::open(MOVE_FEATURES)?;
        quiet::may_be_alone()?;
        self.guard(page)?;
        let _alone = Alone::new()?;
        // The memory that this thread looks at while the pages are away.
        let own = [
            (&raw const faults as usize, size_of::<Userfault>()),
            (Arc::as_ptr(region) as usize, size_of::<R>()),
        ];
        let own = own.into_iter().chain(thread_data()).chain(self.guard(page)?.own());
        eligible::check(&Maps::open()?, start, end, own)?;
        flagged.as_ref().map_err(|refusal| *refusal)?.check(start, end)?;
        let file = self.file()?;
        let (descriptor, offset) = (file.descriptor(), file.allocate(length)?);
        let job = Job { base: start, length, descriptor, offset, page };
        install::install(&job, &faults, self.guard(page)?)?;
        // The guard has heard of it.
        match LEDGER.lock().find(start, end) {
            FilePlace::At(found) if found == offset => Ok(offset),
            _ => Err(Refusal::Overlap),
        }
    }

    /// The guard, from the first use on.
    fn guard(&mut self, page: usize) -> Result<&PageGuard, Refusal> {
        let helpers = helpers::CURRENT.get().ok_or(Refusal::Ended)?;
        let guard = match &mut self.guard {
            Some(guard) => guard,
            none => {
                let file = match &mut self.file {
                    Some(file) => file,
                    none => none.insert(SharedFile::new()?),
                };
                none.insert(PageGuard::start(helpers, file, page)?)
            }
        };
        if guard.is_blind() { Err(guard.refusal()) } else { Ok(guard) }
    }
}

/// Whether the system grants memory with its addresses: a page of the file could be refused later, when the
/// program stores there.
fn is_strict(overcommit: &[u8]) -> bool {
    overcommit.trim_ascii() == b"2"
}

/// Whether the program's memory is as the ledger has it: no event tells of some calls (shmat(2) with
/// SHM_REMAP).
fn is_there(file: Identity, start: usize, end: usize, offset: u64) -> Result<bool, Refusal> {
    let line = Line::of(start, offset);
    let mut reached = start;
    for vma in Maps::open()?.within(start, end)? {
        if vma.start > reached || effect::line_of(&vma, file) != Some(line) {
            return Ok(false);
        }
        reached = vma.end;
    }
    Ok(reached >= end)
}

/// Addresses, and lengths, of the calling thread's data that the C library and the kernel (rseq(2)) keep, and
/// of ours.
fn thread_data() -> [(usize, usize); 3] {
    // SAFETY: asks where they are.
    let [errno, thread] = unsafe { [libc::__errno_location() as usize, libc::pthread_self() as usize] };
    [(errno, size_of::<i32>()), (thread, size_of::<usize>()), helpers::thread_data()]
}

impl MovedRegion {
    /// The place of the region's pages in the file of moved memory.
    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

impl Drop for MovedRegion {
    fn drop(&mut self) {
        // A child of fork has copies of its own.
        if !self.born.is_here() {
            return;
        }
        let _here = InterruptionGuard::new();
        let Place { length, offset, descriptor, .. } = self.place;
        // Bytes that a peer wrote to pages that the program had unmapped belong to no region.
        if !LEDGER.lock().has_any_near(offset) {
            file::punch(descriptor, offset, length as u64);
        }
    }
}

/// The facilities of the system for this, asked for once.
struct Facilities {
    any: bool,
    /// A tool runs one thread of the program at a time: a thread that unmaps pages would wait for the guard,
    /// and the guard for that thread.
    is_serialized: bool,
    procmap_query: bool,
    without_userfaultfd: bool,
    without_memfd: bool,
}

impl Facilities {
    fn get() -> &'static Self {
        static FACILITIES: OnceLock<Facilities> = OnceLock::new();
        let with = |feature| !setting::without(feature);
        FACILITIES.get_or_init(|| Self {
            any: with("moved-pages"),
            is_serialized: is_serialized(),
            procmap_query: with("procmap-query") && maps::probe_query(),
            without_userfaultfd: !with("userfaultfd"),
            without_memfd: !with("memfd"),
        })
    }
}

impl Facilities {
    fn check(&self) -> Result<(), Refusal> {
        match self {
            Self { any: false, .. } => Err(Refusal::Off),
            Self { is_serialized: true, .. } => {
                Err(Refusal::Memory("a tool (valgrind, rr) runs one thread of the program at a time"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the program runs under valgrind, which has a library of its own in every program, or under rr,
/// which sets a variable.
fn is_serialized() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.contains("/vgpreload_") || setting::variable("RUNNING_UNDER_RR").is_some()
}

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf takes a plain number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// No signal and no cancellation comes to the calling thread while it lives, and errno is afterwards as it
/// was.
struct InterruptionGuard {
    errno: i32,
    _signals: SignalMask,
    _cancellation: CancellationGuard,
}

impl InterruptionGuard {
    fn new() -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self { errno, _signals: SignalMask::new(), _cancellation: CancellationGuard::new() }
    }
}

impl Drop for InterruptionGuard {
    fn drop(&mut self) {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_granted_beforehand_stays_where_it_is() {
        assert!(is_strict(b"2\n") && !is_strict(b"0\n") && !is_strict(b"1\n") && !is_strict(b""));
    }

    #[test]
    fn the_more_pieces_there_are_the_longer_they_must_be() {
        let all: Vec<_> = (0..=MOST_PIECES).map(|taken| least(taken, 4096)).collect();
        assert_eq!((all[0], all[127], all[128]), (Some(4096), Some(4096), Some(64 << 10)));
        assert!(all.windows(2).all(|two| two[1].unwrap_or(usize::MAX) >= two[0].unwrap_or(usize::MAX)));
        assert_eq!(all[MOST_PIECES], None);
    }
}
