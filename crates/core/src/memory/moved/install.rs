//! Puts pages of the file in the place of private ones: taken away, copied, and exchanged by one system call.
//!
//! The attempt to take them away shows whether the kernel or a device has its hands on one. While they are
//! away, nothing is allocated and no lock is taken but the ledger's: the holder of another lock may be
//! waiting for the pages' return.

use super::Refusal;
use super::calls;
use super::guard::PageGuard;
use super::userfault::{Mode, Userfault};
use crate::memory::copy;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// The length of a look: memory that no thread has touched stays so, in pieces of this length.
const CHUNK: usize = 256 << 10;

/// Pages to be moved.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) base: usize,
    pub(super) length: usize,
    pub(super) descriptor: RawFd,
    pub(super) offset: u64,
    pub(super) page: usize,
}

/// Moves the pages, or leaves everything as it was. For the program's only thread ([`super::quiet::Alone`]).
pub(super) fn install(job: &Job, faults: &Userfault, guard: &PageGuard) -> Result<(), Refusal> {
    let pages = PageMap::of(job.page);
    let alias = Mapping::shared(job.length, job.descriptor, job.offset)?;
    guard.adopt(alias.address, job.length, job.offset)?;
    for (at, length) in chunks(job.length) {
        if pages.any(job.base + at, length) {
            populate(alias.address + at, length)?;
            // Pages that a child of fork shares are copied now; others cannot be taken away.
            populate(job.base + at, length)?;
        }
    }
    let mut scratch = Mapping::private(job.length)?;
    exchange(job, faults, alias, &mut scratch, &pages)
}

fn chunks(length: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(CHUNK).map(move |at| (at, CHUNK.min(length - at)))
}

fn exchange(
    job: &Job,
    faults: &Userfault,
    alias: Mapping,
    scratch: &mut Mapping,
    pages: &PageMap,
) -> Result<(), Refusal> {
    let (base, length, away) = (job.base, job.length, scratch.address);
    let failed = |errno| Refusal::System("taking pages away", errno);
    faults.register(away, length, Mode::Missing).map_err(failed)?;
    if let Err(errno) = faults.register(base, length, Mode::Missing) {
        faults.unregister(base, length);
        return Err(failed(errno));
    }
    let (taken, moved) = faults.move_pages(away, base, length);
    // From here on, pages that are missing there read as zeros.
    faults.unregister(away, length);
    let result = moved
        .map_err(|errno| if errno == libc::EBUSY { Refusal::Pinned } else { failed(errno) })
        .and_then(|()| fill(alias.address, away, length, pages))
        .and_then(|()| alias.put(base).map_err(|(_, refusal)| refusal));
    if result.is_err() {
        put_back(faults, job, scratch, taken);
    }
    // A helper of the engine's may have come by.
    faults.wake(base, length);
    result
}

/// Brings the first `length` bytes, which were taken away, back to where they were.
fn put_back(faults: &Userfault, job: &Job, scratch: &mut Mapping, length: usize) {
    let (base, away) = (job.base, scratch.address);
    let (mut done, _) = faults.move_pages(base, away, length);
    faults.unregister(base, job.length);
    while done < length {
        // Pages that cannot be moved are copied: into fresh pages, since nothing is there.
        let part = CHUNK.min(length - done);
        // SAFETY: the target is the program's memory, which has lost these very bytes; the source is our own
        // mapping.
        if unsafe { copy::copy_between(base + done, away + done, part) }.is_err() {
            return scratch.put_tail(done, length, base + done);
        }
        done += part;
    }
}

/// Copies the pages that there are.
fn fill(target: usize, source: usize, length: usize, pages: &PageMap) -> Result<(), Refusal> {
    for (at, length) in chunks(length) {
        if pages.any(source + at, length) {
            // SAFETY: both are our own mappings of this length.
            let copied = unsafe { copy::copy_between(target + at, source + at, length) };
            copied.map_err(|_| Refusal::System("copying the pages", libc::EFAULT))?;
        }
    }
    Ok(())
}

/// Brings the pages in, writable, as a write to each would.
fn populate(address: usize, length: usize) -> Result<(), Refusal> {
    // SAFETY: this advice changes no byte.
    match unsafe { calls::madvise(address as *mut _, length, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(Refusal::system("MADV_POPULATE_WRITE")),
    }
}

/// A mapping of ours, until dropped.
pub(super) struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    fn new(length: usize, flags: i32, descriptor: RawFd, offset: u64) -> Result<Self, Refusal> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address = unsafe {
            calls::mmap(std::ptr::null_mut(), length, protection, flags, descriptor, offset as i64)
        };
        if address == libc::MAP_FAILED {
            return Err(Refusal::system("mmap"));
        }
        Ok(Self { address: address as usize, length })
    }

    fn private(length: usize) -> Result<Self, Refusal> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::new(length, flags, -1, 0)
    }

    /// A part of the file. Children of fork do not inherit it, and it is not locked, even if the program has
    /// all that is new locked.
    pub(super) fn shared(length: usize, descriptor: RawFd, offset: u64) -> Result<Self, Refusal> {
        let mapping = Self::new(length, libc::MAP_SHARED, descriptor, offset)?;
        let at = mapping.address as *mut _;
        // SAFETY: our own mapping.
        match unsafe { calls::madvise(at, length, libc::MADV_DONTFORK) | libc::munlock(at, length) } {
            0 => Ok(mapping),
            _ => Err(Refusal::system("MADV_DONTFORK")),
        }
    }

    pub(super) fn address(&self) -> usize {
        self.address
    }

    /// Writes to it, drops it (MADV_DONTNEED), and says whether that has been heeded.
    pub(super) fn is_dropped(&self) -> bool {
        let mut word = [0xff; 8];
        // SAFETY: our own mapping, of a page at least.
        unsafe {
            copy::copy_to(self.address, &word).is_ok()
                && calls::madvise(self.address as *mut _, self.length, libc::MADV_DONTNEED) == 0
                && copy::copy_from(&mut word, self.address).is_ok()
                && word == [0; 8]
        }
    }

    /// Takes the place of the pages at `base`, in one step, of which the guard hears.
    fn put(self, base: usize) -> Result<(), (Self, Refusal)> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the bytes at `base` were the same, and have been taken away from there. No other thread
        // runs that could have put others there.
        let put =
            unsafe { calls::mremap(self.address as *mut _, self.length, self.length, how, base as *mut _) };
        if put == libc::MAP_FAILED {
            return Err((self, Refusal::system("mremap")));
        }
        std::mem::forget(self);
        Ok(())
    }

    /// The pages from `from` to `to` take the place of those at `base`. They are the only copy of the
    /// program's bytes: where even that cannot be had, the program ends, and does not go on without them.
    fn put_tail(&mut self, from: usize, to: usize, base: usize) {
        let (at, length, how) = (self.address + from, to - from, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: part of our own mapping; the pages at `base` have lost these very bytes, and belong to no
        // other mapping.
        let put = unsafe { calls::mremap(at as *mut _, length, length, how, base as *mut _) };
        if put == libc::MAP_FAILED {
            crate::log::say(format_args!(
                "{length} bytes of the program at {base:#x} cannot be brought back after a move, so the process ends"
            ));
            std::process::abort();
        }
        // Pages behind them were never there, and any code may have mapped others there by now.
        if to < self.length {
            // SAFETY: our own mapping, of which nothing is left but this and the beginning.
            unsafe { calls::munmap((self.address + to) as *mut _, self.length - to) };
        }
        self.length = from;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone, or nothing. If the guard knows of it, it forgets it.
        unsafe { calls::munmap(self.address as *mut _, self.length) };
    }
}

/// Which private pages there is anything in (`/proc/self/pagemap`), so that memory that no thread has touched
/// stays so.
struct PageMap {
    file: Option<File>,
    page: usize,
}

impl PageMap {
    fn of(page: usize) -> Self {
        Self { file: File::open("/proc/thread-self/pagemap").ok(), page }
    }

    /// Whether any page of at most a [`CHUNK`] is there.
    fn any(&self, address: usize, length: usize) -> bool {
        // Present, or swapped out.
        const THERE: u64 = 3 << 62;
        let mut entries = [0u8; CHUNK / 4096 * 8];
        let Some(entries) = entries.get_mut(..length / self.page * 8) else { return true };
        let Some(file) = &self.file else { return true };
        if file.read_exact_at(entries, (address / self.page * 8) as u64).is_err() {
            return true;
        }
        entries.chunks_exact(8).any(|entry| {
            let entry = entry.try_into().map_or(THERE, u64::from_ne_bytes);
            entry & THERE != 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const LENGTH: usize = 3 * CHUNK;

    /// Bytes that can be neither moved nor copied to where they were are reachable there all the same, those
    /// before them, too.
    #[test]
    fn bytes_that_cannot_be_copied_back_are_not_lost() {
        let pattern: Vec<u8> = (0..LENGTH).map(|at| (at / 64) as u8 ^ 0x5a).collect();
        for taken in [LENGTH, LENGTH - PAGE] {
            let place = Mapping::private(LENGTH).unwrap();
            let mut scratch = Mapping::private(LENGTH).unwrap();
            // SAFETY: our own mappings; those that were not taken away have stayed.
            unsafe {
                copy::copy_to(scratch.address, &pattern[..taken]).unwrap();
                copy::copy_to(place.address + taken, &pattern[taken..]).unwrap();
                // From its second chunk on, the place takes nothing; without a registration, no pages are
                // moved.
                let at = (place.address + CHUNK) as *mut _;
                assert_eq!(libc::mprotect(at, taken - CHUNK, libc::PROT_READ), 0);
            }
            let faults = Userfault::open(0).expect("userfaultfd");
            let job = Job { base: place.address, length: LENGTH, descriptor: -1, offset: 0, page: PAGE };
            put_back(&faults, &job, &mut scratch, taken);
            drop(scratch);
            let mut there = vec![0; LENGTH];
            // SAFETY: our own mapping.
            unsafe { copy::copy_from(&mut there, place.address) }.unwrap();
            assert!(there == pattern, "{taken} bytes were taken away");
            // SAFETY: as above: it may be written again.
            unsafe { copy::copy_to(place.address, &pattern) }.unwrap();
        }
    }
}
