//! The memory descriptor that moved pages belong to: one sparse, sealed file of a process.

use super::{Facilities, Refusal};
use crate::fork;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the file. Nearly all of it is never there.
const SIZE: u64 = 1 << 56;
/// The least distance between two ranges: a range that the program makes longer (mremap(2)) goes on with
/// zeros.
pub(super) const GAP: u64 = 1 << 32;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Pages that are moved: the guard looks after them.
    Moved,
    /// The engine's own.
    Own,
    /// The engine's own, which a child of fork has as well.
    Inherited,
}

impl Area {
    const ALL: [Self; 3] = [Self::Moved, Self::Own, Self::Inherited];

    /// The offsets at which the area begins and ends.
    const fn bounds(self) -> (u64, u64) {
        const OWN: u64 = SIZE / 4 * 3;
        const INHERITED: u64 = SIZE / 8 * 7;
        match self {
            Self::Moved => (0, OWN),
            Self::Own => (OWN, INHERITED),
            Self::Inherited => (INHERITED, SIZE),
        }
    }

    /// The area that has this offset.
    pub(super) fn at(offset: u64) -> Self {
        let begins = |area: &Self| area.bounds().0 <= offset;
        Self::ALL.into_iter().rfind(begins).unwrap_or(Self::Moved)
    }
}

/// Ranges begin at multiples of this: the longest pages.
const HUGE: u64 = 2 << 20;

/// Which file a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) struct Identity {
    pub(in crate::memory) major: u32,
    pub(in crate::memory) minor: u32,
    pub(in crate::memory) inode: u64,
}

/// The file. An offset is used once: a peer may have mapped the bytes that were there.
pub(super) struct SharedFile {
    descriptor: OwnedFd,
    identity: Identity,
    /// The first place of each [`Area`] that nothing has been at.
    next: [u64; 3],
}

impl SharedFile {
    /// Makes the file; no process can make it shorter or longer from then on.
    pub(super) fn new() -> Result<Self, Refusal> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: fills a live local.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
        // Asked first, since ftruncate(2) answers with a signal.
        if limit.rlim_cur < SIZE {
            return Err(Refusal::System("the limit on the size of files", libc::EFBIG));
        }
        if Facilities::get().without_memfd {
            return Err(Refusal::System("memfd_create", libc::EPERM));
        }
        // SAFETY: a C string, and flags that exist.
        let descriptor =
            unsafe { libc::memfd_create(c"adverb".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if descriptor < 0 {
            return Err(Refusal::system("memfd_create"));
        }
        // SAFETY: a fresh descriptor.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let fd = descriptor.as_raw_fd();
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: all zeros is a valid stat; the calls change our own file and fill a live local.
        let status = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            if libc::ftruncate(fd, SIZE as i64) != 0
                || libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0
                || libc::fstat(fd, &raw mut status) != 0
            {
                return Err(Refusal::system("sealing a memory descriptor"));
            }
            status
        };
        let (major, minor) = (libc::major(status.st_dev), libc::minor(status.st_dev));
        fork::own_descriptor(fd);
        DEVICE.store(status.st_dev, Ordering::Relaxed);
        INODE.store(status.st_ino, Ordering::Relaxed);
        let identity = Identity { major, minor, inode: status.st_ino };
        Ok(Self { descriptor, identity, next: Area::ALL.map(|area| area.bounds().0) })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// A place for `length` bytes that nothing has ever been at.
    pub(super) fn allocate(&mut self, length: usize) -> Result<u64, Refusal> {
        self.allocate_in(Area::Moved, length)
    }

    /// A place in `area` for `length` bytes that nothing has ever been at.
    pub(super) fn allocate_in(&mut self, area: Area, length: usize) -> Result<u64, Refusal> {
        let (place, gap) = (&mut self.next[area as usize], if area == Area::Moved { GAP } else { 0 });
        let end = place.checked_add(length as u64).and_then(|end| end.checked_add(gap));
        let next = end.and_then(|end| end.checked_next_multiple_of(HUGE));
        let next = next.filter(|next| *next <= area.bounds().1);
        let next = next.ok_or(Refusal::System("offsets of the memory descriptor", libc::ENOSPC))?;
        Ok(std::mem::replace(place, next))
    }

    /// Whether the program has not closed it.
    pub(super) fn is_open(&self) -> bool {
        is_ours(self.descriptor())
    }

    /// The first piece of [`from`, `end`) that the file has pages for.
    pub(super) fn data(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        data(self.descriptor(), from, end)
    }
}

fn data(fd: RawFd, from: u64, end: u64) -> Option<(u64, u64)> {
    // SAFETY: moves the position of our own file, which nothing depends on.
    let (start, stop) = unsafe {
        let start = libc::syscall(libc::SYS_lseek, fd, from, libc::SEEK_DATA);
        if start < 0 || start as u64 >= end {
            return None;
        }
        (start as u64, libc::syscall(libc::SYS_lseek, fd, start, libc::SEEK_HOLE))
    };
    Some((start, if stop < 0 { end } else { end.min(stop as u64) }))
}

/// File system and inode of the file of this process, or of its parent at the fork.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Gives the pages of a piece of the file back; a process that still maps it finds zeros. Does nothing if the
/// program has closed the descriptor: its number may be that of a file of the program's by now.
pub(super) fn punch(descriptor: RawFd, offset: u64, length: u64) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    if !is_ours(descriptor) {
        return;
    }
    // SAFETY: changes our own file, where no byte of use is left, as the caller knows.
    if unsafe { libc::syscall(libc::SYS_fallocate, descriptor, how, offset, length) } != 0 {
        write_zeros(descriptor, offset, offset + length);
    }
}

/// Whether a descriptor is of the file of this process, or of its parent's at the fork.
fn is_ours(descriptor: RawFd) -> bool {
    is_of(descriptor, DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed))
}

/// Whether a descriptor is of the file with this inode of this file system. Each file system counts its
/// inodes by itself.
fn is_of(descriptor: RawFd, device: u64, inode: u64) -> bool {
    // SAFETY: all zeros is a valid stat, and the call fills a live local.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor, &raw mut status) == 0 && (status.st_dev, status.st_ino) == (device, inode)
    }
}

/// Where the program has forbidden itself the call (seccomp(2)): the pages stay, and are zero.
#[cold]
fn write_zeros(descriptor: RawFd, mut at: u64, end: u64) {
    static ZEROS: [u8; 4096] = [0; 4096];
    while let Some((from, to)) = data(descriptor, at, end) {
        let length = ((to - from) as usize).min(ZEROS.len());
        // SAFETY: as above; the source is a static.
        let written = unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, ZEROS.as_ptr(), length, from) };
        if written <= 0 {
            return;
        }
        at = from + written as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_may_not_be_removed_from_the_file_become_zeros() {
        let mut file = SharedFile::new().unwrap();
        let (fd, place) = (file.descriptor(), file.allocate(1 << 20).unwrap());
        let ones = [1u8; 3 * 4096];
        let mut back = [1u8; 5 * 4096];
        // SAFETY: live locals, and our own file.
        unsafe {
            assert_eq!(libc::pwrite(fd, ones.as_ptr().cast(), ones.len(), place as i64), ones.len() as isize);
            write_zeros(fd, place + 4096, place + (1 << 20));
            assert_eq!(
                libc::pread(fd, back.as_mut_ptr().cast(), back.len(), place as i64),
                back.len() as isize
            );
        }
        assert!(back[..4096].iter().all(|byte| *byte == 1) && back[4096..].iter().all(|byte| *byte == 0));
        assert_eq!(file.data(place, place + (1 << 20)), Some((place, place + ones.len() as u64)));
        crate::fork::disown_descriptor(fd);
    }

    #[test]
    fn a_file_of_another_file_system_is_not_ours_whatever_its_inode() {
        let file = SharedFile::new().unwrap();
        let Identity { major, minor, inode } = file.identity();
        let device = libc::makedev(major, minor);
        assert!(is_of(file.descriptor(), device, inode));
        assert!(!is_of(file.descriptor(), device, inode + 1));
        assert!(!is_of(file.descriptor(), device ^ 1, inode));
        crate::fork::disown_descriptor(file.descriptor());
        assert!(!is_of(-1, device, inode));
    }

    #[test]
    fn a_file_is_sealed_sparse_and_gives_each_place_once() {
        let mut file = SharedFile::new().unwrap();
        let fd = file.descriptor();
        // SAFETY: plain calls on our own descriptor.
        unsafe {
            assert_ne!(libc::ftruncate(fd, 4096), 0, "it cannot be made shorter");
            assert_eq!(
                libc::fcntl(fd, libc::F_GET_SEALS),
                libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL
            );
        }
        let places: Vec<u64> = (0..4).map(|_| file.allocate(3 << 30).unwrap()).collect();
        assert!(places.windows(2).all(|two| two[1] >= two[0] + (3 << 30) + GAP), "{places:?}");
        assert!(file.allocate(1 << 57).is_err() && file.allocate(usize::MAX).is_err());
        assert!(places.iter().all(|place| Area::at(*place) == Area::Moved));
        for area in Area::ALL {
            let place = file.allocate_in(area, 1).unwrap();
            let next = file.allocate_in(area, 1).unwrap();
            assert!(next > place && Area::at(place) == area && Area::at(next) == area);
            let (start, end) = area.bounds();
            assert!(file.allocate_in(area, (end - start) as usize).is_err(), "each keeps to its own");
        }
        assert_eq!(file.data(0, SIZE), None);
        // SAFETY: writes a live byte to our own file.
        assert_eq!(unsafe { libc::pwrite(fd, [1u8].as_ptr().cast(), 1, (places[1] + 4096) as i64) }, 1);
        assert_eq!(file.data(0, SIZE), Some((places[1] + 4096, places[1] + 8192)));
        assert_eq!(file.data(places[1], places[1] + 4096), None);
        punch(fd, places[1], 3 << 30);
        assert_eq!(file.data(0, SIZE), None);
        crate::fork::disown_descriptor(fd);
    }
}
