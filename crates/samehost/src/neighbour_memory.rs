//! Memory of another process, as far as that has told of it: its key table, and the regions that are
//! published there, mapped.

use crate::bell::ForkClosedFd;
use crate::joined::{Joining, MappingState};
use crate::lock;
use crate::neighbour::Neighbour;
use crate::shown;
use adverb_core::engine;
use adverb_core::log;
use adverb_core::memory::common::Common;
use adverb_core::memory::moved::View;
use adverb_core::memory::process::Process;
use adverb_core::memory::{Access, PublishedBytes, key_number};
use adverb_core::qp::SendWork;
use adverb_local::{Foreign, Kind, Stamp};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What another process has told of its memory.
pub struct NeighbourMemory {
    pub(crate) table: Arc<Foreign>,
    /// The process as the kernel copies to and from its memory. None where the kernel does not.
    pub(crate) process: Option<Process>,
    /// What can be mapped, once that has been told.
    memory: OnceLock<(ForkClosedFd, OwnedFd)>,
    secret: [u32; 4],
    regions: Mutex<Regions>,
    /// A thread maps a region that its program shares by itself.
    is_joining: AtomicBool,
}

/// By key.
#[derive(Default)]
struct Regions {
    all: HashMap<u32, Arc<Region>>,
    /// When there are so many, those that are not published any more go.
    most: usize,
}

/// A region of another process.
pub struct Region {
    table: Arc<Foreign>,
    pub(crate) key: u32,
    pub(crate) number: u32,
    stamp: Stamp,
    opened: PublishedBytes,
    /// What peers call the first of the bytes that are mapped, and how many there are.
    inside: (u64, u64),
    view: Option<View>,
    /// The region was looked up before the process had told where it is to be mapped from.
    is_early: bool,
    /// The bytes, if their program shares them by itself.
    common: MappingState,
}

/// What another process says of a queue pair of its own.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// The entry of the queue pair in that process's table.
    pub(crate) index: u32,
    stamp: Stamp,
    /// The queue pair at the other end, as that process sees it.
    pub(crate) back: u32,
    /// The protection domain.
    pub(crate) domain: u64,
    /// The rights that the other end has.
    pub(crate) allowed: Access,
}

/// Where `length` bytes at `address` begin in all the bytes that have this name and length, if they are among
/// them.
#[inline]
fn offset_in((first, all): (u64, u64), address: u64, length: u32) -> Option<u64> {
    let at = address.checked_sub(first)?;
    at.checked_add(length.into()).is_some_and(|end| end <= all).then_some(at)
}

impl Region {
    /// Keeps the map of memory that its program shares by itself, if that is still used, and its key stands
    /// for it: else it is not mapped any more.
    pub(crate) fn tidy_common(&self) -> bool {
        self.common.tidy(self.is_published())
    }

    /// Whether the region's key stands for it now.
    #[inline(always)]
    pub fn is_published(&self) -> bool {
        self.table.stands(Kind::Key, self.number as usize, self.stamp)
    }

    /// The region's protection domain.
    #[inline]
    pub(crate) fn domain(&self) -> u64 {
        self.opened.domain.into()
    }

    /// The rights that the region gives.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.opened.access
    }

    /// Whether any of it is mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.view.is_some()
    }

    /// The mapping, and where in it `length` bytes at `address` begin, as the other process calls them, if it
    /// has them.
    #[inline]
    pub(crate) fn inside(&self, address: u64, length: u32) -> Option<(&View, usize)> {
        let at = offset_in(self.inside, address, length)?;
        Some((self.view.as_ref()?, at as usize))
    }

    /// The mapping, and where in it the bytes of a request begin, if the region has them and gives the right
    /// `right`.
    #[inline]
    pub(crate) fn mapped(&self, work: &SendWork, right: Access) -> Option<(&View, usize)> {
        self.opened.access.contains(right).then(|| self.inside(work.remote_address, work.length)).flatten()
    }

    /// The address, in the other process, at which the bytes of a request begin, if the region has them and
    /// permits this.
    pub(crate) fn address(&self, work: &SendWork, right: Access) -> Option<u64> {
        let at = offset_in((self.opened.first, self.opened.length), work.remote_address, work.length)?;
        self.opened.access.contains(right).then_some(self.opened.address + at)
    }

    /// Whether the region would be mapped by now, if it were looked up anew.
    pub(crate) fn misses_view(&self, neighbour_memory: &NeighbourMemory) -> bool {
        self.is_early && self.opened.mapped.is_some() && neighbour_memory.maps()
    }

    /// Whether the memory file of its process may be used.
    pub(crate) fn by_file(&self) -> bool {
        self.opened.by_file
    }

    /// The bytes of a request where their program shares them by itself, if they are mapped, and it permits
    /// this.
    pub(crate) fn common(&self, work: &SendWork, right: Access) -> Option<(Arc<Common>, usize)> {
        if !self.opened.is_common {
            return None;
        }
        let at = offset_in((self.opened.first, self.opened.length), work.remote_address, work.length)?;
        let is_permitted = self.opened.access.contains(right);
        is_permitted.then(|| self.common.get()).flatten().map(|common| (common, at as usize))
    }

    /// A request has been carried out by the kernel: whether it is time to map the bytes, if their program
    /// shares them by itself.
    #[inline]
    pub(crate) fn asks_for_common(&self) -> bool {
        self.opened.is_common && self.common.asks()
    }

    /// The program has something else there by now.
    pub(crate) fn leave_common(&self) {
        self.common.leave();
    }

    /// No thread maps the bytes that their program shares by itself now: the next uses ask again.
    pub(crate) fn ask_again(&self) {
        self.common.ask_again();
    }

    /// Maps the bytes that their program shares by itself, if that can be. It may wait for a file system.
    pub(crate) fn join(&self, neighbour_memory: &NeighbourMemory) {
        let Some(process) = &neighbour_memory.process else { return };
        let PublishedBytes { address, length, access, .. } = self.opened;
        let to_write = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        // Withdrawn meanwhile, it is not worth it.
        let common = self.is_published().then(|| Common::open(process, address, length, to_write));
        if let Some(Err(refusal)) = &common {
            log!(
                Info,
                "{length} bytes at {address:#x} of another process are not mapped as they are: {refusal}"
            );
        }
        self.common.set(common.and_then(Result::ok).map(Arc::new));
    }

    /// The mapping, and the address of its first byte in the other process.
    pub fn by_address(&self) -> Option<(&View, u64)> {
        let mapped = self.opened.mapped?;
        Some((self.view.as_ref()?, self.opened.address + u64::from(mapped.skip)))
    }
}

impl Regions {
    /// Regions that are not published any more need not stay mapped.
    fn prune(&mut self) {
        self.all.retain(|_, region| region.is_published());
        self.most = (2 * self.all.len()).max(64);
    }
}

impl NeighbourMemory {
    /// The memory of a process, by its table, and by what the kernel does.
    pub(crate) fn new(table: OwnedFd, process: Option<Process>) -> io::Result<Self> {
        let table = Arc::new(Foreign::open(table)?);
        let secret = table.secrets().map(|word| word as u32);
        Ok(Self {
            table,
            process,
            memory: OnceLock::new(),
            secret,
            regions: Mutex::default(),
            is_joining: AtomicBool::new(false),
        })
    }

    /// Takes the descriptor in which the process's mappable memory lies. The first call counts.
    pub(crate) fn learn(&self, memory: OwnedFd) {
        let noted = ForkClosedFd::of(memory.as_raw_fd());
        let _ = self.memory.set((noted, memory));
    }

    /// Whether the descriptor of the process's mappable memory is known.
    pub(crate) fn maps(&self) -> bool {
        self.memory.get().is_some()
    }

    /// The region with this key, if it is published; mapped, as far as that can be.
    #[cold]
    pub(crate) fn region(&self, key: u32) -> Option<Arc<Region>> {
        let number = key_number(self.secret, key);
        let (stamp, words) = self.table.get(Kind::Key, number as usize, key)?;
        let mut regions = lock(&self.regions);
        // One that could not be mapped when it was looked up can be by now.
        let stands = |region: &&Arc<Region>| region.stamp == stamp && !region.misses_view(self);
        if let Some(region) = regions.all.get(&key).filter(stands) {
            return Some(region.clone());
        }
        if regions.all.len() >= regions.most {
            regions.prune();
        }
        let opened = shown::from_words(&words)?;
        let is_early = !self.maps();
        let view = self.map(&opened, &mut regions);
        let mapped = opened.mapped.filter(|_| view.is_some());
        let inside = mapped.map_or((0, 0), |mapped| (opened.first + u64::from(mapped.skip), mapped.length));
        let (table, common) = (self.table.clone(), MappingState::default());
        let region = Region { table, key, number, stamp, opened, inside, view, is_early, common };
        let region = Arc::new(region);
        regions.all.insert(key, region.clone());
        Some(region)
    }

    fn map(&self, opened: &PublishedBytes, regions: &mut Regions) -> Option<View> {
        let (mapped, (_, memory)) = (opened.mapped?, self.memory.get()?);
        let writable = opened.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let length = usize::try_from(mapped.length).ok()?;
        let map = || View::map(memory.as_fd(), mapped.offset, length, writable);
        let view = map().or_else(|_| {
            regions.prune();
            map()
        });
        view.ok()
    }

    /// Has another thread map the bytes of a region that their program shares by itself.
    #[cold]
    pub(crate) fn join(self: &Arc<Self>, region: &Arc<Region>) {
        let joining = Arc::new(Joining { neighbour_memory: self.clone(), region: region.clone() });
        let called = engine::engine().and_then(|engine| engine.reactor.set_timer(Duration::ZERO, joining));
        if called.is_err() {
            region.common.set(None);
        }
    }

    /// Whether the caller is to map a region that its program shares by itself: one at a time.
    /// [`NeighbourMemory::has_joined`] follows.
    pub(crate) fn begins_to_join(&self) -> bool {
        !self.is_joining.swap(true, Ordering::AcqRel)
    }

    /// Another region may be mapped.
    pub(crate) fn has_joined(&self) {
        self.is_joining.store(false, Ordering::Release);
    }

    /// The published entry of a queue pair.
    #[cold]
    pub(crate) fn pair(&self, number: u32) -> Option<Pair> {
        let index = self.table.find(number)?;
        let (stamp, [back, domain, allowed, ..]) = self.table.get(Kind::Pair, index, number)?;
        let allowed = Access::from_bits_truncate(allowed as u32);
        Some(Pair { index: index as u32, stamp, back: back as u32, domain, allowed })
    }

    /// Whether the process still publishes this of the queue pair.
    #[inline(always)]
    pub(crate) fn says(&self, pair: &Pair) -> bool {
        self.table.stands(Kind::Pair, pair.index as usize, pair.stamp)
    }

    /// The region with this key, if it has been looked up before, and nobody looks another one up at this
    /// instant.
    #[cold]
    pub(crate) fn known(&self, key: u32) -> Option<Arc<Region>> {
        self.regions.try_lock().ok()?.all.get(&key).cloned()
    }
}

/// Records that go by before a region is looked for again that could not be had.
const PAUSE: u32 = 64;

/// The region that records have spoken of last.
#[derive(Default)]
pub struct LastRegion {
    region: Option<Arc<Region>>,
    pause: u32,
}

impl LastRegion {
    /// The region with a key that a record names.
    #[inline]
    pub fn find(&mut self, neighbour: &Neighbour, key: u32) -> Option<Arc<Region>> {
        if let Some(region) = self.region.as_ref().filter(|region| region.key == key && region.is_published())
        {
            return Some(region.clone());
        }
        self.look_for(neighbour, key)
    }

    #[cold]
    fn look_for(&mut self, neighbour: &Neighbour, key: u32) -> Option<Arc<Region>> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        self.region = neighbour.memory().and_then(|neighbour_memory| neighbour_memory.region(key));
        if self.region.is_none() {
            self.pause = PAUSE;
        }
        self.region.clone()
    }

    /// The other process has gone.
    pub fn forget(&mut self) {
        self.region = None;
    }
}
