//! Memory that the program shares already: of a memory descriptor, in `/dev/shm`, or whatever else is the kernel's shared memory.
//!
//! A peer of this host maps such pages as they are. Nothing is moved, so dropped pages, forks, futexes and pins stay what the program has made of them. All it takes is a
//! descriptor: one that the program has open, or the file by its name, or `/proc/self/map_files`, which is for privileged processes. The engine keeps one of its own for each
//! region, until that ends.

use super::moved::{self, Maps, Refusal, Vma, page_size};
use crate::descriptor::Own;
use crate::setting;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

/// The most descriptors of the program that are looked at.
const MOST_DESCRIPTORS: usize = 16 << 10;
/// Where programs have their shared memory by name. Files elsewhere are not opened: whoever serves them may take his time.
const NAMED: &[u8] = b"/dev/shm/";

/// Whole pages of a region that the program shares already, and where others map them. Thread-safe.
pub struct CommonPages {
    descriptor: Own,
    /// Where in the descriptor they begin.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
    /// Their first byte in this process.
    pub address: usize,
    users: Mutex<Users>,
}

type Farewell = Box<dyn FnOnce() + Send>;

/// Who is told of the end of the region.
enum Users {
    Known(Vec<Farewell>),
    Gone,
}

impl CommonPages {
    /// Where they are. Bytes in there that are not the region's belong to whoever shares the descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.descriptor()
    }

    /// Calls `farewell` when the region ends: at once, if it has ended.
    pub fn at_end(&self, farewell: impl FnOnce() + Send + 'static) {
        let mut users = self.users();
        if let Users::Known(known) = &mut *users {
            known.push(Box::new(farewell));
            return;
        }
        drop(users);
        farewell();
    }

    /// The region has ended, and nobody uses the pages by its key.
    pub(super) fn end(&self) {
        let users = std::mem::replace(&mut *self.users(), Users::Gone);
        if let Users::Known(known) = users {
            known.into_iter().for_each(|farewell| farewell());
        }
    }

    fn users(&self) -> std::sync::MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pages of [`start`, `end`), which may be written if `to_write`, as others can map them. Takes some ten microseconds, and more where the program has many descriptors.
///
/// # Errors
/// Why they cannot.
pub(super) fn find(start: usize, end: usize, to_write: bool) -> Result<Arc<CommonPages>, Refusal> {
    if setting::without("common-memory") {
        return Err(Refusal::Memory("ADVERB_WITHOUT names common-memory"));
    }
    let maps = Maps::open()?;
    let found = maps.within(start, end)?;
    let first = *found.first().ok_or(Refusal::Memory("it is not mapped"))?;
    check(&found, start, end, to_write)?;
    let file = open(&first).ok_or(Refusal::Memory("it is shared by what has no descriptor any more"))?;
    // What has been found by its descriptor is what is there still.
    check(&maps.within(start, end)?, start, end, to_write)?;
    Ok(Arc::new(CommonPages {
        descriptor: Own::new(file),
        offset: first.offset + (start - first.start) as u64,
        length: end - start,
        address: start,
        users: Mutex::new(Users::Known(Vec::new())),
    }))
}

/// Whether these mappings have all pages of [`start`, `end`), one after the other in one file.
fn check(found: &[Vma], start: usize, end: usize, to_write: bool) -> Result<(), Refusal> {
    let wanted = libc::PROT_READ | if to_write { libc::PROT_WRITE } else { 0 };
    let line = |vma: &Vma| (vma.file, (vma.start as u64).wrapping_sub(vma.offset));
    let mut reached = start;
    for vma in found {
        if vma.start > reached || !vma.is_shared || vma.file.inode == 0 || moved::is_own(vma.file) {
            return Err(Refusal::Memory("it is not shared by the program"));
        }
        if vma.protection & wanted != wanted || line(vma) != line(&found[0]) {
            return Err(Refusal::Memory("it is not one piece of a file, or protected"));
        }
        reached = vma.end;
    }
    if reached < end { Err(Refusal::Memory("a part of it is not mapped")) } else { Ok(()) }
}

/// A descriptor of our own for the file of a mapping.
fn open(vma: &Vma) -> Option<OwnedFd> {
    of_program(vma).or_else(|| by_name(vma)).or_else(|| {
        let link = format!("/proc/self/map_files/{:x}-{:x}", vma.start, vma.end);
        open_file(OsStr::new(&link), 0).filter(|file| is_of(file.as_raw_fd(), vma))
    })
}

/// By a descriptor that the program has.
fn of_program(vma: &Vma) -> Option<OwnedFd> {
    let list = std::fs::read_dir("/proc/self/fd").ok()?.take(MOST_DESCRIPTORS).flatten();
    let mut numbers = list.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let known = numbers.find_map(|number| {
        if !is_of(number, vma) {
            return None;
        }
        // The program may close it at any time.
        // SAFETY: plain numbers.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        // SAFETY: fresh and nobody else's.
        let copy = (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })?;
        is_of(copy.as_raw_fd(), vma).then_some(copy)
    })?;
    // Opened anew: locks on the file (flock(2)) belong to what the program has opened.
    open_file(OsStr::new(&format!("/proc/self/fd/{}", known.as_raw_fd())), 0)
        .filter(|file| is_of(file.as_raw_fd(), vma))
}

/// By the name of the file, if it still has that.
fn by_name(vma: &Vma) -> Option<OwnedFd> {
    let text = std::fs::read("/proc/thread-self/maps").ok()?;
    let start = format!("{:x}-", vma.start).into_bytes();
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(&start))?;
    let at = line.windows(NAMED.len()).position(|part| part == NAMED)?;
    open_file(OsStr::from_bytes(&line[at..]), libc::O_NOFOLLOW).filter(|file| is_of(file.as_raw_fd(), vma))
}

fn open_file(path: &OsStr, flags: libc::c_int) -> Option<OwnedFd> {
    let path = CString::new(path.as_bytes()).ok()?;
    let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string and plain numbers.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    // SAFETY: fresh and nobody else's.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) })
}

/// Whether a descriptor is of the kernel's shared memory, and the file of this mapping.
fn is_of(descriptor: RawFd, vma: &Vma) -> bool {
    // Asked first: only shared memory has seals, and no server of a file system answers for it.
    // SAFETY: plain numbers.
    if unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) } < 0 {
        return false;
    }
    // SAFETY: all zeros is a valid stat, filled by the call.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor, &raw mut status) == 0
            && status.st_ino == vma.file.inode
            && (libc::major(status.st_dev), libc::minor(status.st_dev)) == (vma.file.major, vma.file.minor)
    }
}

/// The whole pages in these bytes.
pub(super) fn whole_pages(address: usize, length: u64) -> Result<(usize, usize), Refusal> {
    let page = page_size();
    let start = address.checked_next_multiple_of(page);
    let end = address.saturating_add(usize::try_from(length).unwrap_or(usize::MAX)) & !(page - 1);
    start.filter(|start| *start < end).map(|start| (start, end)).ok_or(Refusal::Small)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::moved::{Origin, View};
    use std::sync::atomic::{AtomicU32, Ordering};

    const PAGE: usize = 4096;

    fn memory(length: usize) -> OwnedFd {
        // SAFETY: a C string and plain numbers; a fresh descriptor.
        unsafe {
            let fd = libc::memfd_create(c"common".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0 && libc::ftruncate(fd, length as i64) == 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    fn map(file: RawFd, length: usize, offset: usize, flags: i32, protection: i32) -> usize {
        // SAFETY: a new mapping.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, offset as i64) };
        assert_ne!(address, libc::MAP_FAILED);
        address as usize
    }

    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn is_common(pages: &CommonPages) {
        crate::memory::install_fault_handler();
        let view = View::map(pages.descriptor(), pages.offset, pages.length, true, Origin::Program).unwrap();
        view.write(8, b"peer").unwrap();
        let mut found = [0; 4];
        // SAFETY: pages of the test.
        unsafe { crate::memory::copy_from(&mut found, pages.address + 8).unwrap() };
        assert_eq!(&found, b"peer");
    }

    #[test]
    fn a_memory_descriptor_that_the_program_has_open_is_found() {
        let file = memory(8 * PAGE);
        let address = map(file.as_raw_fd(), 6 * PAGE, 2 * PAGE, libc::MAP_SHARED, BOTH);
        let pages = find(address + PAGE, address + 4 * PAGE, true).unwrap();
        assert_eq!((pages.offset, pages.length, pages.address), (3 * PAGE as u64, 3 * PAGE, address + PAGE));
        assert_ne!(pages.descriptor().as_raw_fd(), file.as_raw_fd());
        is_common(&pages);
    }

    #[test]
    fn a_file_of_shared_memory_is_found_by_its_name() {
        let path = format!("/dev/shm/adverb-common-{}", std::process::id());
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        let address = map(file.as_raw_fd(), 4 * PAGE, 0, libc::MAP_SHARED, BOTH);
        drop(file);
        let pages = find(address, address + 4 * PAGE, true);
        let renamed = path.clone() + "-";
        // Another file has the name.
        std::fs::rename(&path, &renamed).unwrap();
        std::fs::write(&path, [0; 64]).unwrap();
        let other = by_name(&Maps::open().unwrap().within(address, address + PAGE).unwrap()[0]);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&renamed).unwrap();
        is_common(&pages.unwrap());
        assert!(other.is_none_or(|file| file.metadata_len() == 4 * PAGE as u64));
    }

    trait Length {
        fn metadata_len(self) -> u64;
    }

    impl Length for OwnedFd {
        fn metadata_len(self) -> u64 {
            std::fs::File::from(self).metadata().unwrap().len()
        }
    }

    #[test]
    fn what_is_private_or_protected_or_in_pieces_is_not() {
        let (file, other) = (memory(8 * PAGE), memory(8 * PAGE));
        let no = |address: usize, to_write| find(address, address + 2 * PAGE, to_write).err().unwrap();
        let none = Refusal::Memory("it is not shared by the program");
        assert_eq!(no(map(-1, 2 * PAGE, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, BOTH), true), none);
        assert_eq!(no(map(file.as_raw_fd(), 2 * PAGE, 0, libc::MAP_PRIVATE, BOTH), true), none);
        let read = map(file.as_raw_fd(), 2 * PAGE, 0, libc::MAP_SHARED, libc::PROT_READ);
        assert_eq!(no(read, true), Refusal::Memory("it is not one piece of a file, or protected"));
        find(read, read + 2 * PAGE, false).unwrap();
        let pieces = map(file.as_raw_fd(), 4 * PAGE, 0, libc::MAP_SHARED, BOTH);
        for (descriptor, offset) in [(&other, PAGE), (&file, 0)] {
            // SAFETY: in place of a page of the test's.
            let placed = unsafe {
                let (at, flags) = ((pieces + PAGE) as *mut _, libc::MAP_SHARED | libc::MAP_FIXED);
                libc::mmap(at, PAGE, BOTH, flags, descriptor.as_raw_fd(), offset as i64)
            };
            assert_eq!(placed as usize, pieces + PAGE);
            assert_eq!(no(pieces, true), Refusal::Memory("it is not one piece of a file, or protected"));
        }
        // SAFETY: a page of the test's.
        unsafe { libc::mprotect((pieces + PAGE) as *mut _, PAGE, libc::PROT_NONE) };
        assert_eq!(no(pieces, true), Refusal::Memory("it is not one piece of a file, or protected"));
    }

    #[test]
    fn a_file_on_disk_is_not_shared_memory() {
        let path = std::env::temp_dir().join(format!("adverb-common-{}", std::process::id()));
        std::fs::write(&path, [0; 2 * PAGE]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // SAFETY: asks for a number.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } >= 0 {
            return assert!(path.starts_with("/tmp"), "where /tmp is in memory, it is");
        }
        let address = map(file.as_raw_fd(), 2 * PAGE, 0, libc::MAP_SHARED, BOTH);
        let refusal = find(address, address + 2 * PAGE, true).err();
        assert_eq!(refusal, Some(Refusal::Memory("it is shared by what has no descriptor any more")));
    }

    #[test]
    fn the_end_is_told_once_to_all() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let file = memory(PAGE);
        let address = map(file.as_raw_fd(), PAGE, 0, libc::MAP_SHARED, BOTH);
        let pages = find(address, address + PAGE, true).unwrap();
        let count = || {
            TOLD.fetch_add(1, Ordering::SeqCst);
        };
        pages.at_end(count);
        pages.at_end(count);
        assert_eq!(TOLD.load(Ordering::SeqCst), 0);
        pages.end();
        pages.end();
        assert_eq!(TOLD.load(Ordering::SeqCst), 2);
        pages.at_end(count);
        assert_eq!(TOLD.load(Ordering::SeqCst), 3);
    }
}
