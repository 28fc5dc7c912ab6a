//! Registered memory that a process of the same host reaches by loads and stores of its own.
//!
//! The pages inside of an ordinary region ([`share`]) are moved into a sealed memory descriptor, which a peer maps ([`View`]). The program
//! does not notice: the bytes stay where they are, and are private again when the region is deregistered. What is left of the region in its first and
//! last page stays as it is.
//!
//! Moving takes a copy, and so a moment in which nobody writes. What gives that moment, best first:
//!
//! 1. *userfaultfd(2) with faults of the kernel*, where the system permits it: whoever touches the pages waits for the exchange, system
//!    calls included. A thread that is made for it does the work: no completion of io_uring and no signal runs on it.
//! 2. *The program's only thread is the one that asks*, with its signals blocked and the engine's own threads held ([`crate::helpers`]).
//! 3. Neither: nothing is moved ([`Refusal`]), and peers go other ways. In particular nothing is ever copied beside running threads.
//!
//! Parts: [`file`] the descriptor, [`maps`] what is mapped, [`eligible`] what may be moved, [`quiet`] whether anybody else is there, [`userfault`] and
//! [`install`] the move, [`safe_point`] where a thread of the program does it, [`back`] the way back, [`fork`] what a child gets, [`state`] what has been moved, [`view`] the peer's side; [`calls`] is how they map.

mod back;
mod calls;
mod eligible;
mod file;
mod fork;
mod install;
mod maps;
mod quiet;
mod refusal;
mod safe_point;
mod state;
mod userfault;
mod view;

pub use refusal::Refusal;
pub use safe_point::{at_safe_point, safe_point};
pub use view::View;

use super::region::MemoryRegion;
use crate::cancel::Deferred;
use crate::fork::Born;
use crate::setting;
use crate::signals::Blocked;
use eligible::Kind;
use install::{Job, Way};
use maps::Maps;
use quiet::Alone;
use state::{Range, State};
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use userfault::{
    FEATURE_MOVE, FEATURE_PROTECT, FEATURE_PROTECT_FILES, FEATURE_PROTECT_UNPOPULATED, Userfault,
};

/// Where a peer finds the pages of a region. They stay there until the region is deregistered or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory descriptor, the engine's own: one for all regions of the process, sealed against becoming shorter.
    pub descriptor: RawFd,
    /// Where in it they begin.
    pub offset: u64,
    /// Bytes, whole pages.
    pub length: usize,
    /// Their first byte in this process, in the first or second page of the region.
    pub address: usize,
}

/// A region's part in moved pages, until dropped.
pub(super) struct Moved {
    place: Place,
    /// Address of the range that they are in.
    base: usize,
    born: Born,
}

/// The most ranges that are moved at once: each takes two of the mappings that the kernel allows a process (65,530 by default).
const MAX_RANGES: usize = 4096;

/// The most bytes that a thread of the program moves: about 25 ms.
const MOST_WAITED_FOR: usize = 64 << 20;

/// The least length that is worth one of the ranges, when so many are taken.
fn least(taken: usize, page: usize) -> Option<usize> {
    match taken {
        0..256 => Some(page),
        256..1024 => Some(16 << 10),
        1024..MAX_RANGES => Some(256 << 10),
        _ => None,
    }
}

/// Moves the pages inside of these regions to where a peer can map them; says of each where they are, or why they are not moved. Regions that have
/// been moved already, or whose bytes have been for another region, cost next to nothing.
///
/// To be called where a thread of the program has entered the engine, holds none of its locks and has no bytes of a region open (a *safe point*),
/// and at least one peer of the same host is worth it: it takes about 0.4 ms for each MiB. No other process may be writing to the bytes
/// meanwhile: a peer that does so through the kernel is to be told of a region after this. Does not change errno, and is no point of cancellation.
///
/// Deregistering or changing a region makes its pages private again. The caller sees to it that a peer has ended what it does there
/// *before* [`MemoryRegion::deregister`] or [`MemoryRegion::reregister`] goes past the removal of the key, and unmaps its [`View`] afterwards; what
/// it stores later is lost, no more.
pub fn share(regions: &[Arc<MemoryRegion>]) -> Vec<Result<Place, Refusal>> {
    share_if(regions, Mover::Program)
}

/// The same from any thread at any time, no matter what the program's threads do meanwhile: by faults of the kernel alone ([`moves_beside`]).
pub fn share_beside(regions: &[Arc<MemoryRegion>]) -> Vec<Result<Place, Refusal>> {
    share_if(regions, Mover::Beside)
}

/// The same, for memory that peers read alone, and nobody has said of that he wants others in it. It is moved only in the way that finds out whether a
/// device, or the kernel for one, is at work in a page: a program that sends may well read files into the same memory past the page cache.
pub fn share_read_beside(regions: &[Arc<MemoryRegion>]) -> Vec<Result<Place, Refusal>> {
    share_if(regions, Mover::BesideFindingPins)
}

/// Whether the system permits what [`share_read_beside`] does.
pub fn moves_read_beside() -> bool {
    let has_move = || Userfault::open(true, true).is_ok_and(|faults| faults.features() & FEATURE_MOVE != 0);
    moves_beside() && !Facilities::get().without_move && has_move()
}

/// Who moves, and how carefully.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mover {
    /// A thread of the program, or faults of the kernel.
    Program,
    Beside,
    BesideFindingPins,
}

/// Whether the system permits moves beside running threads.
pub fn moves_beside() -> bool {
    Facilities::get().kernel_faults
}

fn share_if(regions: &[Arc<MemoryRegion>], mover: Mover) -> Vec<Result<Place, Refusal>> {
    let _here = Uninterrupted::new();
    let Some(mut state) = state::lock() else { return vec![Err(Refusal::Busy); regions.len()] };
    fork::install_handlers();
    let stack = &raw const state as usize;
    let mut answers: Vec<_> = regions.iter().map(|region| state.known(region)).collect();
    if answers.iter().any(Option::is_none) {
        move_all(&mut state, regions, &mut answers, stack, mover);
    }
    drop(state);
    let answers = regions.iter().zip(answers);
    answers
        .map(|(region, answer)| {
            let answer = answer.unwrap_or(Err(Refusal::Threads));
            if let Err(refusal) = &answer {
                crate::log!(
                    Info,
                    "{} bytes at {:#x} are not shared with peers of this host: {refusal}",
                    region.length(),
                    region.address()
                );
            }
            answer
        })
        .collect()
}

type Answer = Option<Result<Place, Refusal>>;

/// Answers for every region that has no answer yet.
fn move_all(
    state: &mut State,
    regions: &[Arc<MemoryRegion>],
    answers: &mut [Answer],
    stack: usize,
    mover: Mover,
) {
    let facilities = Facilities::get();
    // Another region of the same call may have brought an answer.
    let each = |state: &mut State, answers: &mut [Answer], ways: &Ways<'_>| {
        for (region, answer) in regions.iter().zip(answers) {
            if answer.is_none() {
                *answer = state.known(region).or_else(|| Some(state.move_region(region, ways, stack)));
            }
        }
    };
    if let Some(faults) =
        facilities.kernel_faults.then(|| Userfault::open(true, !facilities.without_move).ok()).flatten()
    {
        let ways = Ways::of(&faults, mover == Mover::BesideFindingPins);
        // It inherits the signal mask. Where it cannot be started, the next way is tried.
        std::thread::scope(|scope| {
            let work = || each(state, &mut *answers, &ways);
            let builder = std::thread::Builder::new().name("adverb-move".into()).stack_size(128 << 10);
            let _ = builder.spawn_scoped(scope, work).map(|thread| thread.join());
        });
    }
    if mover != Mover::Program || answers.iter().all(Option::is_some) {
        return;
    }
    let faults = facilities.moves_alone.then(|| Userfault::open(false, true).ok()).flatten();
    let alone = Maps::open().and_then(|maps| Alone::new(&maps, faults.is_some()));
    match alone {
        Ok(_alone) => {
            let anonymous = faults.as_ref().map_or(Way::Alone, Way::Move);
            let (anonymous, returned) = (Some(anonymous), Some(Way::Alone));
            each(state, answers, &Ways { anonymous, returned, is_by_program: true });
        }
        Err(refusal) => {
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = Some(Err(refusal));
            }
        }
    }
}

/// How to move memory of each kind.
struct Ways<'a> {
    /// The program's thread does it: it waits meanwhile, and the kernel, reading for a peer, would find no page for a moment.
    is_by_program: bool,
    anonymous: Option<Way<'a>>,
    returned: Option<Way<'a>>,
}

impl<'a> Ways<'a> {
    /// By faults of the kernel. Protection does not find pages that a device has.
    fn of(faults: &'a Userfault, finds_pins: bool) -> Self {
        let has = |features| faults.features() & features == features;
        let protects = !finds_pins && has(FEATURE_PROTECT | FEATURE_PROTECT_UNPOPULATED);
        let protects = protects.then_some(Way::Protect(faults));
        Self {
            is_by_program: false,
            anonymous: if has(FEATURE_MOVE) { Some(Way::Move(faults)) } else { protects },
            returned: protects.filter(|_| has(FEATURE_PROTECT_FILES)),
        }
    }
}

impl State {
    /// The answer for a region that takes no move.
    fn known(&mut self, region: &MemoryRegion) -> Answer {
        let (start, end) = match region.pages() {
            Ok(range) => range,
            Err(refusal) => return Some(Err(refusal)),
        };
        if let Some(place) = region.moved(|moved| moved.as_ref().map(|moved| moved.place)) {
            return Some(Ok(place));
        }
        if !Facilities::get().any {
            return Some(Err(Refusal::Off));
        }
        let Some((base, range)) = self.covering(start, end) else {
            return self.overlaps(start, end).then_some(Err(Refusal::Overlap));
        };
        Some(self.use_range(region, base, range, start, end))
    }

    /// Another region of bytes that have been moved, if they are still there.
    fn use_range(
        &mut self,
        region: &MemoryRegion,
        base: usize,
        range: Range,
        start: usize,
        end: usize,
    ) -> Result<Place, Refusal> {
        let file = self.file()?;
        let (own, descriptor) = (file.identity(), file.descriptor());
        let offset = range.offset + (start - base) as u64;
        let found = Maps::open()?.within(start, end)?;
        let is_there = |vma: &maps::Vma| {
            vma.file == own
                && vma.is_shared
                && vma.offset.wrapping_sub(vma.start as u64) == offset.wrapping_sub(start as u64)
        };
        let bytes: usize = found.iter().map(|vma| vma.end.min(end) - vma.start.max(start)).sum();
        if bytes != end - start || !found.iter().all(is_there) {
            return Err(Refusal::Overlap);
        }
        self.hand_to(region, base, Place { descriptor, offset, length: end - start, address: start })
    }

    /// Makes a region a user of a range.
    fn hand_to(&mut self, region: &MemoryRegion, base: usize, place: Place) -> Result<Place, Refusal> {
        if let Some(range) = self.ranges.get_mut(&base) {
            range.users += 1;
        }
        if region.accept(Moved { place, base, born: Born::now() }) {
            Ok(place)
        } else {
            self.leave(base);
            Err(Refusal::Ended)
        }
    }

    /// Moves the pages inside of a region that no other has moved.
    fn move_region(
        &mut self,
        region: &MemoryRegion,
        ways: &Ways<'_>,
        stack: usize,
    ) -> Result<Place, Refusal> {
        let (start, end) = region.pages()?;
        if ways.is_by_program && region.is_lent() {
            return Err(Refusal::Busy);
        }
        if ways.is_by_program && end - start > MOST_WAITED_FOR {
            return Err(Refusal::Memory("it is so long that the program would notice the move"));
        }
        let page = page_size();
        if least(self.ranges.len(), page).is_none_or(|least| end - start < least) {
            return Err(Refusal::Small);
        }
        let own = self.file()?.identity();
        let (kind, found) = eligible::check(&Maps::open()?, start, end, own, stack)?;
        // Its pages are still in the file where they were.
        if found.iter().any(|vma| vma.file == own && self.pieces.iter().any(|piece| piece.has(vma))) {
            return Err(Refusal::Busy);
        }
        let way = match kind {
            Kind::Anonymous => ways.anonymous,
            Kind::Returned => ways.returned,
        };
        let way = way.ok_or(Refusal::System("userfaultfd", libc::EOPNOTSUPP))?;
        let file = self.file()?;
        let (descriptor, length) = (file.descriptor(), end - start);
        let offset = file.allocate(length)?;
        let job = Job { base: start, length, descriptor, offset, page };
        if let Err((done, refusal)) = install::install(&job, way) {
            if done > 0 {
                self.ranges.insert(start, Range { length: done, offset, users: 1 });
                self.leave(start);
            }
            return Err(refusal);
        }
        self.ranges.insert(start, Range { length, offset, users: 0 });
        self.hand_to(region, start, Place { descriptor, offset, length, address: start })
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        // A child of fork has copies of its own.
        if !self.born.is_here() {
            return;
        }
        let _here = Uninterrupted::new();
        // In the middle of a fork by this thread they stay shared.
        if let Some(mut state) = state::lock() {
            state.leave(self.base);
        }
    }
}

/// What the system has for this, asked once.
struct Facilities {
    any: bool,
    kernel_faults: bool,
    /// userfaultfd(2) for faults of user code alone can move pages.
    moves_alone: bool,
    procmap_query: bool,
    without_move: bool,
    without_memfd: bool,
}

impl Facilities {
    fn get() -> &'static Self {
        static FACILITIES: OnceLock<Facilities> = OnceLock::new();
        FACILITIES.get_or_init(|| {
            let with = |feature| !setting::without(feature);
            let (faults, without_move) = (with("userfaultfd"), !with("userfaultfd-move"));
            // Protection alone finds nobody out.
            let moves_alone = faults
                && !without_move
                && Userfault::open(false, true).is_ok_and(|faults| faults.features() & FEATURE_MOVE != 0);
            Self {
                any: with("moved-pages"),
                kernel_faults: faults && with("userfaultfd-kernel") && Userfault::open(true, true).is_ok(),
                moves_alone,
                procmap_query: with("procmap-query") && maps::probe_query(),
                without_move,
                without_memfd: !with("memfd"),
            }
        })
    }
}

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: sysconf takes a plain number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// No signal and no cancellation comes to the calling thread while it lives, and errno is afterwards as it was.
struct Uninterrupted {
    errno: i32,
    _signals: Blocked,
    _cancellation: Deferred,
}

impl Uninterrupted {
    fn new() -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self { errno, _signals: Blocked::new(), _cancellation: Deferred::new() }
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_ranges_there_are_the_longer_they_must_be() {
        let all: Vec<_> = (0..=MAX_RANGES).map(|taken| least(taken, 4096)).collect();
        assert_eq!((all[0], all[255], all[256]), (Some(4096), Some(4096), Some(16 << 10)));
        assert!(all.windows(2).all(|two| two[1].unwrap_or(usize::MAX) >= two[0].unwrap_or(usize::MAX)));
        assert_eq!(all[MAX_RANGES], None);
    }
}
