//! Protection domains and memory regions.

mod advice;
mod backing;
mod pages;
mod window;

pub use advice::{Advice, advise};
pub use backing::{DeviceMemory, register_descriptor};
pub use pages::Pages;
pub use window::MemoryWindow;

use crate::counters::CounterLine;
use crate::device::{Context, Seat};
use crate::error::{Error, Result};
use crate::export::{Answering, Watch};
use crate::fork::ForkGeneration;
use crate::memory::moved::{self, Movable, MovedRegion, Place, Refusal, View, page_size};
use crate::memory::ways::{self, Choice, Memory};
use crate::memory::{self, Access, Entry, Kind, Mappings, common, make_null};
use crate::users::DependentCount;
use backing::Backing;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Regions by their keys.
type Regions = Mutex<HashMap<u32, Weak<MemoryRegion>>>;

/// A protection domain: queue pairs, regions and windows of one domain work together, those of two never
/// (ibv_alloc_pd(3)).
pub struct ProtectionDomain {
    seat: Seat,
    number: u32,
    users: DependentCount,
    streams: Arc<DependentCount>,
    regions: Arc<Regions>,
    /// The domain that this one was shared from.
    original: Option<Arc<ProtectionDomain>>,
}

impl ProtectionDomain {
    /// A new domain.
    ///
    /// # Errors
    /// ENOMEM when the device has `max_pd` of them.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        context.born.check()?;
        // RFC5042-6.4.1-1
        let most = context.attributes().max_pd;
        if !context.device().domains.enter_below(most) {
            return Err(Error::exhausted(format!("all {most} protection domains of the device are in use")));
        }
        let number = context.engine().next_domain();
        let domain = Self::of(context, number, Arc::new(DependentCount::new()), Arc::default(), None);
        context.shared().domains.insert(number, Arc::downgrade(&domain));
        Ok(domain)
    }

    fn of(
        context: &Arc<Context>,
        number: u32,
        streams: Arc<DependentCount>,
        regions: Arc<Regions>,
        original: Option<Arc<Self>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            seat: Seat::take(context),
            number,
            users: DependentCount::new(),
            streams,
            regions,
            original,
        })
    }

    /// This protection domain for use on another context of the device (ibv_import_pd(3)): keys of one work
    /// with queue pairs of the other. The original has a user more as long as the new one exists.
    ///
    /// # Errors
    /// EINVAL if the contexts are of two devices.
    pub fn share(self: &Arc<Self>, context: &Arc<Context>) -> Result<Arc<Self>> {
        context.born.check()?;
        if !Arc::ptr_eq(context.device(), self.context().device()) {
            return Err(Error::invalid("the protection domain belongs to another device"));
        }
        self.users.enter();
        let (streams, regions) = (self.streams.clone(), self.regions.clone());
        Ok(Self::of(context, self.number, streams, regions, Some(self.clone())))
    }

    /// Bytes of the region with this key, if there is one in this domain.
    pub fn region_length(&self, key: u32) -> Option<u64> {
        let (_, entry) = self.context().engine().keys.enter(key, self.number).ok()?;
        entry.window.is_none().then_some(entry.length)
    }

    /// The regions in it, of every context that shares it.
    pub fn regions(&self) -> Vec<Arc<MemoryRegion>> {
        if !self.context().is_here() {
            return Vec::new();
        }
        lock(&self.regions).values().filter_map(Weak::upgrade).collect()
    }

    /// The regions in it, if there are no more than `most`.
    pub fn regions_if_few(&self, most: usize) -> Option<Vec<Arc<MemoryRegion>>> {
        let count = lock(&self.regions).len();
        (count <= most).then(|| self.regions())
    }

    /// The region with this key, if there is one in this domain.
    pub fn region(&self, key: u32) -> Option<Arc<MemoryRegion>> {
        if !self.context().is_here() {
            return None;
        }
        lock(&self.regions).get(&key).and_then(Weak::upgrade)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.seat.context()
    }

    /// The domain's number in the engine, unique for ever.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Objects in it: deallocation is EBUSY while there are any.
    pub fn users(&self) -> &DependentCount {
        &self.users
    }

    /// The program ends the domain (ibv_dealloc_pd(3)): context and device may go, though a thread of the
    /// engine may hold the domain a little longer. Again: no effect.
    pub fn retire(&self) {
        if !self.seat.leave() {
            return;
        }
        match &self.original {
            Some(original) => original.users.leave(),
            None => {
                if self.context().is_here() {
                    self.context().shared().domains.remove(&self.number);
                }
                self.context().device().domains.leave();
            }
        }
    }

    /// The connected queue pairs of the domain.
    pub(crate) fn streams(&self) -> &Arc<DependentCount> {
        &self.streams
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        self.retire();
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(|e| e.into_inner())
}

/// A registered range of this process's memory (ibv_reg_mr(3)). Nothing is pinned: the program may even unmap
/// it, and requests that name it then fail; or find zeros, if its pages are shared with another process
/// ([`moved`]).
pub struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    address: usize,
    length: u64,
    iova: u64,
    access: Access,
    key: u32,
    ended: AtomicBool,
    /// A peer of this host may reach the region, as a thread has seen.
    foreseen: AtomicBool,
    born: ForkGeneration,
    backing: Backing,
    /// The region's pages, if they have been moved for peers of this host.
    moved: Mutex<Option<MovedRegion>>,
    /// Which way peers of this host reach it, once one has asked.
    choice: Mutex<Option<(Choice, CounterLine)>>,
    /// Other processes that have imported it.
    importers: Mutex<Vec<Weak<Answering>>>,
}

/// The changes to a region (ibv_rereg_mr(3)).
#[derive(Default)]
pub struct Reregistration {
    /// Another protection domain.
    pub domain: Option<Arc<ProtectionDomain>>,
    /// Other bytes: address, which is also what peers call the first one by, and length.
    pub bytes: Option<(usize, u64)>,
    /// Other rights.
    pub access: Option<Access>,
}

impl MemoryRegion {
    /// Registers `length` bytes at `address`, which peers and scatter/gather elements call by `iova` on.
    ///
    /// # Errors
    /// EINVAL for an empty or wrapping range, for remote write or atomics without local write, and for
    /// flushes to persistence. EFAULT for a range that is not mapped, or (from Linux 6.11 on) whose mapping
    /// lacks a right that the region gives. ENOMEM when the device's keys have run out.
    ///
    /// # Safety
    /// Until deregistration, the caller answers for all uses of these bytes by local requests, and by peers
    /// as far as `access` permits.
    // RFC5041-8.3-1, RFC5041-8.3.1-1
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        address: usize,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Self>> {
        memory::look_again();
        Self::backed(domain, address, length, iova, access, Backing::Program)
    }

    /// Registers memory that `backing` keeps.
    pub(super) fn backed(
        domain: &Arc<ProtectionDomain>,
        address: usize,
        length: u64,
        iova: u64,
        access: Access,
        backing: Backing,
    ) -> Result<Arc<Self>> {
        domain.context().born.check()?;
        // Device memory may be registered without a byte of it, as with adapters.
        let entry = if length == 0 && matches!(backing, Backing::Device(_)) {
            Entry { length, ..Self::check(domain, address, 1, iova, access)? }
        } else {
            let kind = if matches!(backing, Backing::Immutable) { Kind::Immutable } else { Kind::Program };
            Entry { kind, ..Self::check(domain, address, length, iova, access)? }
        };
        // Memory that the engine has mapped is there, with the rights that it is mapped for.
        if matches!(backing, Backing::Program) {
            domain.context().engine().mappings.check(&entry)?;
        }
        Self::insert(domain, entry, backing)
    }

    /// A region of another process: pages of it that are mapped here.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    pub(crate) fn imported(
        domain: &Arc<ProtectionDomain>,
        pages: View,
        iova: u64,
        access: Access,
        watch: Arc<Watch>,
    ) -> Result<Arc<Self>> {
        let (address, length) = (pages.address(), pages.len() as u64);
        Self::backed(domain, address, length, iova, access, Backing::Imported(pages, watch))
    }

    /// A region that no address is outside of: reads find zeros, and writes have no effect
    /// (ibv_alloc_null_mr(3)).
    ///
    /// # Errors
    /// ENOMEM when the device's keys, or the address space, have run out.
    pub fn null(domain: &Arc<ProtectionDomain>) -> Result<Arc<Self>> {
        domain.context().born.check()?;
        make_null()?;
        let (length, access) = (u64::MAX, Access::LOCAL_WRITE);
        let (domain_number, window) = (domain.number, None);
        let entry =
            Entry { address: 0, length, iova: 0, access, domain: domain_number, window, kind: Kind::Null };
        Self::insert(domain, entry, Backing::Null)
    }

    fn insert(domain: &Arc<ProtectionDomain>, entry: Entry, backing: Backing) -> Result<Arc<Self>> {
        let key = domain.context().engine().keys.insert(entry)?;
        domain.users.enter();
        if let Backing::Device(memory) = &backing {
            memory.users().enter();
        }
        Ok(Self::of(domain, &entry, key, backing))
    }

    fn of(domain: &Arc<ProtectionDomain>, entry: &Entry, key: u32, backing: Backing) -> Arc<Self> {
        let region = Arc::new(Self {
            backing,
            domain: domain.clone(),
            address: entry.address,
            length: entry.length,
            iova: entry.iova,
            access: entry.access,
            key,
            ended: AtomicBool::new(false),
            foreseen: AtomicBool::new(false),
            born: ForkGeneration::now(),
            moved: Mutex::default(),
            choice: Mutex::default(),
            importers: Mutex::default(),
        });
        lock(&domain.regions).insert(key, Arc::downgrade(&region));
        region
    }

    /// The entry of such a region's key, if there can be such a region.
    fn check(
        domain: &ProtectionDomain,
        address: usize,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Entry> {
        let unknown = access.bits() & !Access::all().bits();
        if unknown != 0 {
            return Err(Error::invalid(format!("access flags {unknown:#x} are not known")));
        }
        // IB-QP-43
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(Error::invalid("remote write and remote atomic access need local write access, too"));
        }
        // IB-RC-RSP-46
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(Error::invalid(
                "ordinary memory is not persistent: peers cannot flush it to persistence",
            ));
        }
        let most = domain.context().attributes().max_mr_size;
        if length == 0 || length > most {
            return Err(Error::invalid(format!(
                "a memory region of {length} bytes: 1 to {most} are allowed"
            )));
        }
        // IB-QP-48
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if (address as u64).checked_add(length - 1).is_none() || iova.checked_add(length - 1).is_none() {
            return Err(Error::invalid(format!(
                "{length} bytes at {address:#x} pass the end of the address space"
            )));
        }
        Ok(Entry { address, length, iova, access, domain: domain.number, window: None, kind: Kind::Program })
    }

    /// Changes the region in place (ibv_rereg_mr(3)); its key stays. When it returns, no thread and no peer
    /// uses the old bytes or rights any more. This handle is as if deregistered: the new one stands for the
    /// region. On an error nothing has changed.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`]; EBUSY while windows are bound to it.
    ///
    /// # Safety
    /// As [`MemoryRegion::register`].
    // IB-MR-1, IB-MR-2
    pub unsafe fn reregister(&self, change: &Reregistration) -> Result<Arc<Self>> {
        self.born.check()?;
        if !matches!(self.backing, Backing::Program) {
            return Err(Error::unsupported("only regions of ordinary memory can be changed"));
        }
        let domain = change.domain.as_ref().unwrap_or(&self.domain);
        let (address, length, iova) = match change.bytes {
            Some((address, length)) => (address, length, address as u64),
            None => (self.address, self.length, self.iova),
        };
        let access = change.access.unwrap_or(self.access);
        let entry = Self::check(domain, address, length, iova, access)?;
        // The program may have protected its pages since, and the region stays as it is.
        if change.bytes.is_some() || Mappings::wants_more(self.access, access) {
            domain.context().engine().mappings.check(&entry)?;
        }
        let keys = &self.domain.context().engine().keys;
        self.close()?;
        if self.ended.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("the memory region is not registered any more"));
        }
        // SAFETY: the thread that sets `ended` owns the key; it goes on to the new handle.
        unsafe { keys.replace(self.key, entry) };
        self.end_move();
        lock(&self.domain.regions).remove(&self.key);
        domain.users.enter();
        self.domain.users.leave();
        Ok(Self::of(domain, &entry, self.key, Backing::Program))
    }

    /// The kind of the region's memory, and whether its pages have been moved, as far as can be told without
    /// a look at them.
    pub fn memory(&self) -> Memory {
        if matches!(self.backing, Backing::Immutable | Backing::Null) {
            return Memory::Closed;
        }
        let own = match &self.backing {
            Backing::Own(place) => Some(*place).filter(|_| self.born.is_here()),
            Backing::Device(memory) => memory.lends(self.address, self.length as usize),
            _ => None,
        };
        if let Some(memory) = own.map(Memory::Own).or_else(|| self.place().map(Memory::Moved)) {
            return memory;
        }
        let refusal = self.pages().and_then(|_| moved::is_wanted()).err();
        Memory::Unmoved(refusal.unwrap_or(Refusal::Later))
    }

    /// The kind of the region's memory, as of [`MemoryRegion::memory`], after a look whether the program
    /// itself shares it. The look takes some ten microseconds.
    pub fn look_at_memory(&self) -> Memory {
        match self.memory() {
            Memory::Unmoved(_)
                if ways::by_common(self.access, false, || {
                    common::is_shared(self.address, self.length).is_ok()
                }) =>
            {
                Memory::Common
            }
            memory => memory,
        }
    }

    /// Whether pages of it might be moved to where others can map them, as far as can be told without a look
    /// at them.
    pub fn may_be_moved(&self) -> bool {
        self.memory() == Memory::Unmoved(Refusal::Later)
    }

    /// Takes note of the way by which peers reach the region. The log says so when that is news, and
    /// `adverb devices -v` as long as the region is registered.
    pub fn settle(&self, choice: Choice) {
        // In a child of fork another thread of the parent may have the lock.
        if !self.born.is_here() {
            return;
        }
        let mut known = lock(&self.choice);
        if known.as_ref().is_some_and(|(before, _)| *before == choice) {
            return;
        }
        let text = format!("{} bytes at {:#x}: {choice}", self.length, self.address);
        crate::log!(Info, "{text}");
        match &mut *known {
            Some((before, line)) => {
                line.change(&text);
                *before = choice;
            }
            // The thread that ends the region sets `ended` first, and takes the line back afterwards, under
            // this lock.
            None if self.ended.load(Ordering::SeqCst) => {}
            none => *none = Some((choice, self.domain.context().engine().page.say(&text))),
        }
    }

    /// A peer of this host may reach the region. True for the first call.
    pub fn foresee(&self) -> bool {
        !self.foreseen.swap(true, Ordering::Relaxed)
    }

    /// Where others can map its pages from, if they have been moved.
    pub fn place(&self) -> Option<Place> {
        self.moved(|moved| moved.as_ref().map(MovedRegion::place))
    }

    /// Looks at its moved pages.
    pub(super) fn moved<T>(&self, look: impl FnOnce(&Option<MovedRegion>) -> T) -> T {
        look(&lock(&self.moved))
    }

    /// Has its pages moved to where an importer can map them, while no thread and no peer uses them. At a
    /// safe point ([`moved::at_safe_point`]).
    pub(crate) fn move_for_importer(self: &Arc<Self>) -> std::result::Result<Place, Refusal> {
        let keys = &self.domain.context().engine().keys;
        // First the cheap look. To have the pages alone takes them back from peers for that time.
        let answer = moved::might(self).and_then(|()| {
            keys.alone(self.address, self.length, || {
                moved::share(std::slice::from_ref(self)).pop().unwrap_or(Err(Refusal::Busy))
            })
        });
        answer.inspect_err(|refusal| {
            let (length, address) = (self.length, self.address);
            crate::log!(Info, "{length} bytes at {address:#x} are not moved for an importer: {refusal}");
        })
    }

    /// Another process imports it, and is told of its end.
    pub(crate) fn add_importer(&self, importer: &Arc<Answering>) {
        let mut importers = lock(&self.importers);
        importers.retain(|known| known.strong_count() > 0);
        importers.push(Arc::downgrade(importer));
        drop(importers);
        if self.ended.load(Ordering::SeqCst) {
            self.tell_importers();
        }
    }

    /// Tells processes that have imported the region that their keys open nothing any more. Waits for none of
    /// them.
    fn tell_importers(&self) {
        for importer in std::mem::take(&mut *lock(&self.importers)).iter().filter_map(Weak::upgrade) {
            importer.tell_end();
        }
    }

    /// Ends the region's part in moved pages.
    fn end_move(&self) {
        self.tell_importers();
        let line = lock(&self.choice).take();
        drop(line);
        let moved = lock(&self.moved).take();
        drop(moved);
    }

    /// Whether the region has been deregistered, or changed: its key may stand for something else then.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The region's key, both lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The address by which peers and scatter/gather elements name the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    /// The address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The rights that the region gives.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The region's protection domain.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Ends the registration as [`MemoryRegion::deregister`] does, unless windows are bound to it.
    ///
    /// # Errors
    /// EBUSY while they are.
    pub fn try_deregister(&self) -> Result<()> {
        self.close()?;
        self.deregister();
        Ok(())
    }

    /// Makes the key useless, unless windows are bound to the region; none is bound to it from then on.
    // IB-MW-10
    fn close(&self) -> Result<()> {
        let ended = self.ended.load(Ordering::Acquire) || !self.born.is_here();
        if ended || self.domain.context().engine().keys.invalidate_unbound(self.key) {
            return Ok(());
        }
        Err(Error::busy("memory windows are bound to the region: unbind them first"))
    }

    /// Ends the registration (ibv_dereg_mr(3)). When it returns, no thread and no peer touches the bytes any
    /// more. Windows that are bound to it open nothing from then on. Again: no effect.
    // RFC5041-8.3-2, RFC5041-8.3.1-2
    pub fn deregister(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.born.is_here() {
            // First: its key is this region's no longer than this.
            if let Backing::Imported(_, watch) = &self.backing {
                watch.end();
            }
            lock(&self.domain.regions).remove(&self.key);
            let keys = &self.domain.context().engine().keys;
            // In this order: no window is bound to it any more once it is invalid.
            keys.invalidate(self.key);
            keys.release_windows(self.key);
            keys.remove(self.key);
            self.end_move();
        }
        if let Backing::Device(memory) = &self.backing {
            memory.users().leave();
        }
        self.domain.users.leave();
    }
}

impl Movable for MemoryRegion {
    fn pages(&self) -> std::result::Result<(usize, usize), Refusal> {
        if self.ended.load(Ordering::Acquire) || !self.born.is_here() {
            return Err(Refusal::Ended);
        }
        if !matches!(self.backing, Backing::Program) {
            return Err(Refusal::Memory("it is memory of the engine"));
        }
        // The program may put other memory there while it is registered.
        if self.access.contains(Access::ON_DEMAND) {
            return Err(Refusal::Memory("it pages on demand"));
        }
        let page = page_size();
        let start = self.address.checked_next_multiple_of(page);
        let end = self.address.saturating_add(self.length as usize) & !(page - 1);
        start.filter(|start| *start < end).map(|start| (start, end)).ok_or(Refusal::Small)
    }

    fn place(&self) -> Option<Place> {
        self.place()
    }

    fn is_lent(&self) -> bool {
        self.domain.context().engine().keys.is_in_use(self.key)
    }

    fn accept(&self, moved: MovedRegion) -> bool {
        let mut place = lock(&self.moved);
        if self.ended.load(Ordering::Acquire) {
            return false;
        }
        *place = Some(moved);
        true
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.deregister();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::CompletionQueue;
    use crate::device::Device;
    use crate::memory::permitted::Permission;
    use crate::memory::permitted::tests::{PAGE, area};
    use std::os::fd::{AsRawFd, FromRawFd};

    // PRACTICE-CALL-5
    #[test]
    fn memory_is_registered_for_what_it_is_mapped_for() {
        crate::null::tests::install();
        let context = Device::all().unwrap()[0].open().unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let area = area(1);
        let register = |from: usize, length: u64, access| {
            // SAFETY: no request uses the region.
            let region = unsafe { MemoryRegion::register(&domain, area + from, length, 0, access) };
            region.map(drop).map_err(|error| error.errno())
        };
        let (read, write) = (Access::REMOTE_READ, Access::LOCAL_WRITE);
        assert_eq!((register(0, 4096, write), register(0, 8192, read)), (Ok(()), Ok(())));
        assert_eq!(register(3 * PAGE, 4096, read), Ok(()));
        assert_eq!(register(3 * PAGE, 4097, read), Err(libc::EFAULT), "a hole");
        assert_eq!(register(4 * PAGE, 1, read), Err(libc::EFAULT), "nothing else");
        let last = usize::MAX - PAGE + 1;
        assert_eq!(
            register(last - area, PAGE as u64, read),
            Err(libc::EFAULT),
            "the end of the address space"
        );
        let is_told = context.engine().mappings.look(area, area + 1, true) == Permission::Permitted;
        let refused = if is_told { Err(libc::EFAULT) } else { Ok(()) };
        for access in [write, write | Access::REMOTE_WRITE, Access::MW_BIND] {
            assert_eq!(register(1, 4096, access), refused, "{access:?}");
        }
        assert_eq!(register(PAGE, 4097, read), refused);
        // Pages on demand are found when they are used.
        assert_eq!(register(PAGE, 4096, write | Access::ON_DEMAND), Ok(()));
    }

    // PRACTICE-CALL-5
    #[test]
    fn pages_are_looked_at_again_when_a_region_gets_others_or_is_to_write_them() {
        crate::null::tests::install();
        let context = Device::all().unwrap()[0].open().unwrap();
        let [domain, other] = [(); 2].map(|()| ProtectionDomain::new(&context).unwrap());
        let area = area(2);
        let is_told = context.engine().mappings.look(area, area + 1, true) == Permission::Permitted;
        let refused = if is_told { Err(libc::EFAULT) } else { Ok(()) };
        let writable = |address: usize, access| {
            // SAFETY: no request uses the region, and the page is this test's.
            unsafe {
                libc::mprotect(address as *mut _, PAGE, libc::PROT_READ | libc::PROT_WRITE);
                let region = MemoryRegion::register(&domain, address, PAGE as u64, 0, access).unwrap();
                libc::mprotect(address as *mut _, PAGE, libc::PROT_READ);
                region
            }
        };
        // SAFETY: as above.
        let change = |region: &MemoryRegion, change| unsafe {
            region.reregister(&change).map(drop).map_err(|error| error.errno())
        };
        let to = |access| Reregistration { access: Some(access), ..Reregistration::default() };
        let (read, write) = (Access::REMOTE_READ, Access::LOCAL_WRITE);
        let domain_alone = || Reregistration { domain: Some(other.clone()), ..Reregistration::default() };
        assert_eq!(change(&writable(area, write), domain_alone()), Ok(()));
        assert_eq!(change(&writable(area, write), to(write | Access::REMOTE_WRITE)), Ok(()));
        assert_eq!(change(&writable(area, read), to(write)), refused, "it begins to write");
        assert_eq!(
            change(&writable(area, write | Access::ON_DEMAND), to(write)),
            refused,
            "no more on demand"
        );
        let bytes = Reregistration { bytes: Some((area, 1)), ..Reregistration::default() };
        assert_eq!(change(&writable(area, write), bytes), refused, "other bytes");
    }

    #[test]
    fn a_read_only_region_of_a_descriptor_may_have_windows_for_reads() {
        crate::null::tests::install();
        let domain = ProtectionDomain::new(&Device::all().unwrap()[0].open().unwrap()).unwrap();
        // SAFETY: a C string; the descriptor is this test's.
        let file = unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
        // SAFETY: the descriptor from above.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), PAGE as i64) }, 0);
        for access in [Access::MW_BIND, Access::MW_BIND | Access::REMOTE_READ] {
            let region = register_descriptor(&domain, file.as_raw_fd(), 0, PAGE as u64, 0, access);
            assert_eq!(region.map(drop).map_err(|error| error.errno()), Ok(()), "{access:?}");
        }
    }

    // RFC5042-6.4.1-1, RFC5040-8.1.2-1
    #[test]
    fn limits_are_limits() {
        crate::null::tests::install();
        // A device of its own, so that no other test is in the way.
        let device = &Device::all().unwrap()[0];
        let counters = device.counters();
        let device = Device::new(
            crate::description::Description::of("null0"),
            0,
            device.transport().clone(),
            counters,
        );
        let context = Arc::new(device).open().unwrap();
        let limits = context.attributes();
        let mut domains: Vec<_> =
            (0..limits.max_pd).map(|_| ProtectionDomain::new(&context).unwrap()).collect();
        assert_eq!(ProtectionDomain::new(&context).err().unwrap().errno(), libc::ENOMEM);
        domains.pop();
        assert!(ProtectionDomain::new(&context).is_ok());

        let mut queues: Vec<_> =
            (0..limits.max_cq).map(|_| CompletionQueue::new(&context, 1, None).unwrap()).collect();
        assert_eq!(CompletionQueue::new(&context, 1, None).err().unwrap().errno(), libc::ENOMEM);
        queues.pop();
        for entries in [0, limits.max_cqe + 1, u32::MAX] {
            assert_eq!(CompletionQueue::new(&context, entries, None).err().unwrap().errno(), libc::EINVAL);
        }
        let queue = CompletionQueue::new(&context, limits.max_cqe, None).unwrap();
        assert_eq!(queue.resize(limits.max_cqe + 1).err().unwrap().errno(), libc::EINVAL);
    }
}
