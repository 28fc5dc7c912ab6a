//! What the cases stand on: pages, regions of them, and children.

use adverb_core::device::Device;
use adverb_core::memory::Access;
use adverb_core::memory::moved::{Place, Refusal, View, share};
use adverb_core::region::{MemoryRegion, ProtectionDomain};
use adverb_core::{engine, null};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

pub(crate) const PAGE: usize = 4096;

/// What a peer may do to everything here.
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A protection domain of a device in memory.
pub(crate) fn domain() -> Arc<ProtectionDomain> {
    engine::install(&[null::FACTORY]);
    let devices = Device::all().expect("the engine starts");
    ProtectionDomain::new(&devices[0].open().expect("the device opens")).expect("a domain")
}

/// Fresh private pages.
pub(crate) fn pages(count: usize) -> usize {
    map(count, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
}

pub(crate) fn map(count: usize, protection: i32, flags: i32) -> usize {
    // SAFETY: a new mapping.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), count * PAGE, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address as usize
}

/// A word of our own pages, which others write, too.
pub(crate) fn word(address: usize) -> &'static std::sync::atomic::AtomicU64 {
    // SAFETY: the tests give addresses of aligned words in pages that are mapped.
    unsafe { &*(address as *const std::sync::atomic::AtomicU64) }
}

pub(crate) fn get(address: usize) -> u64 {
    word(address).load(std::sync::atomic::Ordering::SeqCst)
}

pub(crate) fn set(address: usize, value: u64) {
    word(address).store(value, std::sync::atomic::Ordering::SeqCst);
}

/// Writes each word's distance to the first, plus `seed`.
pub(crate) fn write_pattern(address: usize, length: usize, seed: u64) {
    (0..length).step_by(8).for_each(|at| set(address + at, at as u64 + seed));
}

/// Whether the memory has the pattern of [`write_pattern`].
pub(crate) fn has_pattern(address: usize, length: usize, seed: u64) -> bool {
    (0..length).step_by(8).all(|at| get(address + at) == at as u64 + seed)
}

pub(crate) fn region(domain: &Arc<ProtectionDomain>, address: usize, length: usize) -> Arc<MemoryRegion> {
    // SAFETY: pages of the test.
    unsafe { MemoryRegion::register(domain, address, length as u64, address as u64, ALL) }.expect("a region")
}

pub(crate) fn share_one(region: &Arc<MemoryRegion>) -> Result<Place, Refusal> {
    let [answer] = share(std::slice::from_ref(region))[..] else { panic!("one answer") };
    answer
}

/// Registers and shares.
pub(crate) fn shared(
    domain: &Arc<ProtectionDomain>,
    address: usize,
    length: usize,
) -> (Arc<MemoryRegion>, Place) {
    let region = region(domain, address, length);
    let place = share_one(&region).expect("it is shared");
    (region, place)
}

/// A descriptor of the same file that children keep.
pub(crate) fn duplicate(place: &Place) -> OwnedFd {
    // SAFETY: a live descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::dup(place.descriptor)) }
}

/// What a peer has.
pub(crate) fn view(place: &Place) -> View {
    View::map(duplicate(place).as_fd(), place.offset, place.length, true).expect("it can be mapped")
}

/// Bytes that the file has pages for, in the place.
pub(crate) fn bytes_in_file(file: &OwnedFd, place: &Place) -> u64 {
    use std::os::fd::AsRawFd;
    let (mut at, end, mut sum) = (place.offset as i64, place.offset as i64 + place.length as i64, 0);
    loop {
        // SAFETY: moves the position of a live descriptor.
        let (from, to) = unsafe {
            let from = libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA);
            if from < 0 || from >= end {
                return sum;
            }
            (from, libc::lseek(file.as_raw_fd(), from, libc::SEEK_HOLE).min(end))
        };
        sum += (to - from) as u64;
        at = to;
    }
}

/// Waits for what a thread of the engine does soon; whoever starts the case bounds it.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

/// How a child ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Status(i32),
    Signal(i32),
}

/// Forks a child that does `work` and ends with status 0 if that is true.
pub(crate) fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child does what may be done in a child of a process with one thread, or nothing that takes
    // a lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // It does not outlive a case that fails while it waits.
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    child
}

pub(crate) fn wait(child: libc::pid_t) -> End {
    let mut status = 0;
    // SAFETY: our own child and a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Status(libc::WEXITSTATUS(status))
    }
}

/// For a child that shares its parent's memory (clone(2)): waits for a byte from a descriptor.
pub(crate) extern "C" fn hear_raw(from: *mut libc::c_void) -> i32 {
    let mut byte = 0u8;
    // SAFETY: a number, so that it ends with the test; then waits for a byte in a live local.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::syscall(libc::SYS_read, from as usize, &raw mut byte, 1);
    }
    0
}

/// A pipe: one side says a byte, the other waits for it.
pub(crate) struct Pipe([i32; 2]);

impl Pipe {
    pub(crate) fn new() -> Self {
        let mut ends = [0; 2];
        // SAFETY: fills a live local.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        Self(ends)
    }

    /// The end at which bytes come out.
    pub(crate) fn from(&self) -> i32 {
        self.0[0]
    }

    pub(crate) fn say(&self) {
        // SAFETY: a live byte.
        assert_eq!(unsafe { libc::write(self.0[1], [1u8].as_ptr().cast(), 1) }, 1);
    }

    pub(crate) fn hear(&self) {
        let mut byte = 0u8;
        // SAFETY: a live byte.
        assert_eq!(unsafe { libc::read(self.0[0], (&raw mut byte).cast(), 1) }, 1);
    }
}
