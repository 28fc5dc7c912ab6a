//! Puts pages of the file in the place of private ones: copied, and exchanged by one system call, piece by piece, so that nobody is kept
//! from them for long.
//!
//! Within a window nothing is allocated and no lock is taken: somebody who holds one may be waiting for the window's end.

use super::Refusal;
use super::calls;
use super::userfault::{Mode, Userfault};
use crate::memory::copy;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// What is moved at once.
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

/// What keeps everybody from the pages meanwhile.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// Nobody is there.
    Alone,
    /// The pages are taken away, which finds out whether somebody else uses them. Whoever touches them waits.
    Move(&'a Userfault),
    /// Whoever writes waits.
    Protect(&'a Userfault),
}

/// Moves the pages. On a failure the first bytes, as many as it says, have been moved.
pub(super) fn install(job: &Job, way: Way<'_>) -> Result<(), (usize, Refusal)> {
    let pages = Populated::of(job.page);
    let scratch = match way {
        Way::Move(_) => Some(Mapping::private(CHUNK).map_err(|refusal| (0, refusal))?),
        _ => None,
    };
    let mut done = 0;
    while done < job.length {
        let piece = Job {
            base: job.base + done,
            length: CHUNK.min(job.length - done),
            offset: job.offset + done as u64,
            ..*job
        };
        exchange(&piece, way, &pages, scratch.as_ref()).map_err(|refusal| (done, refusal))?;
        done += piece.length;
    }
    Ok(())
}

fn exchange(job: &Job, way: Way<'_>, pages: &Populated, scratch: Option<&Mapping>) -> Result<(), Refusal> {
    let has_data = pages.any(job.base, job.length);
    let alias = Mapping::shared(job)?;
    if has_data {
        populate(alias.address, job.length)?;
    }
    match (way, scratch) {
        (Way::Move(faults), Some(scratch)) => {
            if has_data {
                // Pages that a child of fork shares are copied now; others cannot be taken away.
                populate(job.base, job.length)?;
            }
            by_moving(job, faults, alias, scratch.address, pages)
        }
        (Way::Protect(faults), _) => by_protecting(job, faults, alias, has_data),
        _ => {
            if has_data {
                fill(alias.address, job.base, job.length)?;
            }
            alias.put(job.base).map_err(|(_, refusal)| refusal)
        }
    }
}

fn by_protecting(job: &Job, faults: &Userfault, alias: Mapping, has_data: bool) -> Result<(), Refusal> {
    let (base, length) = (job.base, job.length);
    let failed = |errno| Refusal::System("protecting pages", errno);
    faults.register(base, length, Mode::Protected).map_err(failed)?;
    let result = faults
        .protect(base, length)
        .map_err(failed)
        // A thread of the program may have written since it was looked.
        .and_then(|()| if has_data { Ok(false) } else { is_zero(base, length) })
        .and_then(|zero| if zero { Ok(()) } else { fill(alias.address, base, length) })
        .and_then(|()| alias.put(base).map_err(|(_, refusal)| refusal));
    if result.is_err() {
        faults.unregister(base, length);
    }
    // The exchange ends the registration, but wakes nobody.
    faults.wake(base, length);
    result
}

fn by_moving(
    job: &Job,
    faults: &Userfault,
    alias: Mapping,
    scratch: usize,
    pages: &Populated,
) -> Result<(), Refusal> {
    let (base, length) = (job.base, job.length);
    let failed = |errno| Refusal::System("taking pages away", errno);
    faults.register(scratch, length, Mode::Missing).map_err(failed)?;
    let registered = faults.register(base, length, Mode::Missing).map_err(failed);
    let result = registered.and_then(|()| {
        let (taken, result) = faults.move_pages(scratch, base, length);
        // From here on, what is missing there reads as zeros.
        faults.unregister(scratch, length);
        let result = result
            .map_err(|errno| if errno == libc::EBUSY { Refusal::Pinned } else { failed(errno) })
            .and_then(
                |()| if pages.any(scratch, length) { fill(alias.address, scratch, length) } else { Ok(()) },
            )
            .and_then(|()| alias.put(base).map_err(|(_, refusal)| refusal));
        if result.is_err() {
            put_back(faults, base, scratch, taken);
        }
        result
    });
    if result.is_err() {
        faults.unregister(scratch, length);
        faults.unregister(base, length);
    }
    faults.wake(base, length);
    // SAFETY: our own pages, whose content is elsewhere now.
    unsafe { calls::madvise(scratch as *mut _, length, libc::MADV_DONTNEED) };
    result
}

/// Brings pages that were taken away back to where they were.
fn put_back(faults: &Userfault, base: usize, scratch: usize, length: usize) {
    let (mut done, mut result) = faults.move_pages(base, scratch, length);
    if result.is_err() {
        let more;
        (more, result) = faults.copy_pages(base + done, scratch + done, length - done);
        done += more;
    }
    if let Err(error) = result {
        // Whoever goes on without these bytes computes nonsense.
        crate::log!(
            Error,
            "{} bytes at {:#x} cannot be brought back: {}",
            length - done,
            base + done,
            std::io::Error::from_raw_os_error(error)
        );
        std::process::abort();
    }
}

/// Copies a piece.
fn fill(target: usize, source: usize, length: usize) -> Result<(), Refusal> {
    // SAFETY: the target is our own mapping of this length, and the source what is to be moved; a bad address is an error.
    unsafe { copy::copy_between(target, source, length) }.map_err(fault)
}

/// Whether there is nothing in the pages but zeros.
fn is_zero(address: usize, length: usize) -> Result<bool, Refusal> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut part = [0u8; 4096];
    for at in (0..length).step_by(part.len()) {
        let part = &mut part[..(length - at).min(4096)];
        // SAFETY: what is to be moved; a bad address is an error.
        unsafe { copy::copy_from(part, address + at) }.map_err(fault)?;
        if *part != ZEROS[..part.len()] {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fault(_: copy::Fault) -> Refusal {
    Refusal::System("reading the pages", libc::EFAULT)
}

/// Brings the pages in, writable, as a write to each would.
pub(super) fn populate(address: usize, length: usize) -> Result<(), Refusal> {
    // SAFETY: this advice changes no byte.
    match unsafe { calls::madvise(address as *mut _, length, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(Refusal::system("MADV_POPULATE_WRITE")),
    }
}

/// A mapping of ours, until dropped.
struct Mapping {
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

    /// The part of the file that the piece becomes. Children of fork do not inherit it.
    fn shared(job: &Job) -> Result<Self, Refusal> {
        let mapping = Self::new(job.length, libc::MAP_SHARED, job.descriptor, job.offset)?;
        // SAFETY: our own mapping.
        match unsafe { calls::madvise(mapping.address as *mut _, job.length, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(Refusal::system("MADV_DONTFORK")),
        }
    }

    /// Takes the place of what is at `base`, in one step.
    fn put(self, base: usize) -> Result<(), (Self, Refusal)> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: what is at `base` has the same bytes, and the caller sees to it that nobody changes them meanwhile.
        let put =
            unsafe { calls::mremap(self.address as *mut _, self.length, self.length, how, base as *mut _) };
        if put == libc::MAP_FAILED {
            return Err((self, Refusal::system("mremap")));
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { calls::munmap(self.address as *mut _, self.length) };
    }
}

/// Which private pages there is anything in (`/proc/self/pagemap`), so that memory that nobody has touched stays so.
struct Populated {
    file: Option<File>,
    page: usize,
}

impl Populated {
    fn of(page: usize) -> Self {
        Self { file: File::open("/proc/thread-self/pagemap").ok(), page }
    }

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
