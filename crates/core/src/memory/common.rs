//! Memory that a program of another process shares by itself: of a memory descriptor, in a file of a tmpfs
//! such as `/dev/shm`, or a System V segment. This process maps it as it is.
//!
//! Nothing is asked of the other process, and nothing of it changes. The list of its mappings
//! (`/proc/PID/maps`) says which file the bytes are of. That file is had by `/proc/PID/map_files`, which is
//! for privileged processes, by the number of the segment, or by a descriptor that the program has open for
//! it.
//!
//! The program may unmap the bytes at any time, put something else in their place, or protect them. So before
//! each use ([`Common::at`]) the list is asked whether they are still of the same place of the same file, and
//! may be used in this way. A file that is mapped here keeps its name in that list. If the answer is no, the
//! kernel copies. If a program changes its memory while a request of a peer is under way, the request uses
//! the old place or the new one.
//!
//! The descriptor is opened and closed by a thread that has a table of descriptors of its own ([`apart`]). To
//! close a descriptor of a file lets go of all locks that the process has on it (lockf(3)), and they are the
//! program's.

use super::moved::{self, Identity, Maps, Name, Refusal, View, Vma};
use super::process::Process;
use super::ways;
use crate::error::Error;
use crate::helpers;
use std::fs::{DirEntry, File, Metadata};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::{OnceLock, mpsc};

/// The most descriptors of the other program that are looked at.
const MOST_DESCRIPTORS: usize = 4096;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The file and the line of a mapping. All mappings of one file that lie in one line have both in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    file: Identity,
    /// Offset less address.
    line: u64,
}

impl Origin {
    fn of(vma: &Vma) -> Option<Self> {
        let line = vma.offset.wrapping_sub(vma.start as u64);
        (vma.is_shared && vma.file.inode != 0).then_some(Self { file: vma.file, line })
    }

    fn offset(self, address: usize) -> u64 {
        self.line.wrapping_add(address as u64)
    }
}

/// Whether these mappings have all bytes of [`start`, `end`), which is not empty, in one piece of one file
/// that may be used so.
fn one_piece(found: &[Vma], start: usize, end: usize, protection: i32) -> Result<Origin, Refusal> {
    let origin = found.first().and_then(Origin::of).ok_or(NOT_SHARED)?;
    let mut reached = start;
    for vma in found {
        if Origin::of(vma) != Some(origin) {
            return Err(NOT_SHARED);
        }
        if vma.protection & protection != protection {
            return Err(Refusal::Memory("it is protected"));
        }
        if vma.start > reached {
            break;
        }
        reached = vma.end;
    }
    if reached < end { Err(Refusal::Memory("a part of it is not mapped")) } else { Ok(origin) }
}

const NOT_SHARED: Refusal = Refusal::Memory("it is not shared by the program");

/// Whether peers may map these bytes of the program's as they are, as far as can be told without the file.
/// They must be shared memory of the kernel, in one piece of one file, which the program may read and write.
/// Takes some ten microseconds.
///
/// # Errors
/// Why not.
pub(crate) fn is_shared(address: usize, length: u64) -> Result<(), Refusal> {
    may_be_had()?;
    let end = usize::try_from(length).ok().and_then(|length| address.checked_add(length));
    let Some(end) = end.filter(|end| *end > address) else { return Err(NOT_SHARED) };
    let found = Maps::open()?.within(address, end)?;
    let origin = one_piece(&found, address, end, BOTH)?;
    if !moved::is_untouched(address, end) {
        return Err(Refusal::Overlap);
    }
    let (major, minor) = (origin.file.major, origin.file.minor);
    if is_unnamed(major, minor) || is_tmpfs(&moved::read("/proc/thread-self/mountinfo")?, major, minor) {
        Ok(())
    } else {
        Err(Refusal::Memory("it is of a file that is not in memory"))
    }
}

/// Whether the system can do it, and no setting has switched it off.
///
/// # Errors
/// Why not.
pub fn may_be_had() -> Result<(), Refusal> {
    if !ways::has_own_memory() {
        return Err(Refusal::Memory("ADVERB_WITHOUT names mapped-memory"));
    }
    if !moved::tells_mappings() {
        return Err(Refusal::System("PROCMAP_QUERY", libc::ENOTTY));
    }
    Ok(())
}

/// Whether this device has the files without a name: memory descriptors, System V segments, shared anonymous
/// memory.
fn is_unnamed(major: u32, minor: u32) -> bool {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let look = || {
        // SAFETY: a C string and a flag that exists; a fresh descriptor has no other owner.
        let file = unsafe {
            let file = libc::memfd_create(c"adverb-look".as_ptr(), libc::MFD_CLOEXEC);
            (file >= 0).then(|| File::from_raw_fd(file))
        };
        let device = file?.metadata().ok()?.dev();
        Some((libc::major(device), libc::minor(device)))
    };
    *DEVICE.get_or_init(look) == Some((major, minor))
}

/// Whether a list of mounts (`/proc/PID/mountinfo`) has this device as a tmpfs:
/// `id parent major:minor root place options [fields] - type ...`.
fn is_tmpfs(mounts: &[u8], major: u32, minor: u32) -> bool {
    let device = format!("{major}:{minor}");
    let is_it = |line: &str| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').nth(2) == Some(&device) && kind == Some("tmpfs")
    };
    String::from_utf8_lossy(mounts).lines().any(is_it)
}

/// Memory that a program of another process shares by itself, mapped. Thread-safe.
pub struct Common {
    view: View,
    /// The address of the first byte in that process.
    address: usize,
    length: usize,
    origin: Origin,
}

impl Common {
    /// The bytes at `address` of another process, to be read and, if `to_write`, written. Takes some hundred
    /// microseconds, and waits for a thread that it starts.
    ///
    /// # Errors
    /// Why the kernel had better copy.
    pub fn open(process: &Process, address: u64, length: u64, to_write: bool) -> Result<Self, Refusal> {
        may_be_had()?;
        let number = process.number();
        let (address, length) = (address as usize, length as usize);
        let end = address.checked_add(length).filter(|end| *end > address).ok_or(NOT_SHARED)?;
        let maps = process.maps().ok_or(Refusal::System("/proc/PID/maps", libc::ESRCH))?;
        let mut found = Vec::new();
        let mut at = address;
        while at < end {
            match moved::next_mapping(maps, at)? {
                Some(vma) if vma.start < end => {
                    at = vma.end;
                    found.push(vma);
                }
                _ => break,
            }
        }
        let origin = one_piece(&found, address, end, BOTH)?;
        let wanted = MapRequest { number, first: found[0], offset: origin.offset(address), length, to_write };
        let view = apart(move || wanted.map())?;
        let common = Self { view, address, length, origin };
        // The file was found by its name, or by a descriptor. It counts if the program has it there still.
        common.at(process, 0, length, to_write).ok_or(Refusal::Busy)?;
        Ok(common)
    }

    /// Where `length` bytes at `at` of them are mapped, if the program has them there at this moment, and
    /// permits this. A system call. `process`: that of [`Common::open`].
    pub fn at(&self, process: &Process, at: usize, length: usize, to_write: bool) -> Option<(&View, usize)> {
        let end = at.checked_add(length).filter(|end| length > 0 && *end <= self.length)?;
        let protection = if to_write { BOTH } else { libc::PROT_READ };
        let maps = process.maps()?;
        let (mut next, end) = (self.address + at, self.address + end);
        while next < end {
            let vma = moved::nameless_at(maps, next).ok()??;
            let is_so = Origin::of(&vma) == Some(self.origin) && vma.protection & protection == protection;
            if !is_so {
                return None;
            }
            next = vma.end;
        }
        Some((&self.view, at))
    }
}

/// The mapping that is to be made.
struct MapRequest {
    number: libc::pid_t,
    /// The mapping that its first byte is in.
    first: Vma,
    /// In the file.
    offset: u64,
    length: usize,
    to_write: bool,
}

impl MapRequest {
    fn map(&self) -> Result<View, Refusal> {
        if let Some(file) = self.mapped_file() {
            return self.map_file(&file);
        }
        if self.first.name == Name::Segment { self.attach() } else { self.by_descriptor() }
    }

    /// The file, as privileged processes have it.
    fn mapped_file(&self) -> Option<File> {
        let Vma { start, end, .. } = self.first;
        self.open(&format!("/proc/{}/map_files/{start:x}-{end:x}", self.number)).ok()
    }

    /// By a descriptor that the program has.
    fn by_descriptor(&self) -> Result<View, Refusal> {
        let missing = |error| Refusal::because("/proc/PID/fd", &error);
        let list = std::fs::read_dir(format!("/proc/{}/fd", self.number)).map_err(missing)?;
        for entry in list.take(MOST_DESCRIPTORS).flatten() {
            // Before the file system is asked, which may be one of a server that does not answer. This opens
            // nothing.
            if self.may_be(&entry)
                && std::fs::metadata(entry.path()).is_ok_and(|found| self.is_it(&found))
                && let Ok(file) = self.open_entry(&entry)
            {
                return self.map_file(&file);
            }
        }
        Err(Refusal::Memory("the program has no descriptor of it any more"))
    }

    /// Whether a descriptor may be of the file, as the kernel says by itself: proc_pid_fdinfo(5).
    fn may_be(&self, entry: &DirEntry) -> bool {
        let number = entry.file_name();
        let path = format!("/proc/{}/fdinfo/{}", self.number, number.to_string_lossy());
        let inode = format!("ino:\t{}\n", self.first.file.inode);
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(&inode))
    }

    fn open_entry(&self, entry: &DirEntry) -> std::io::Result<File> {
        self.open(entry.path().to_str().unwrap_or_default())
    }

    /// Opened anew: locks on the file (flock(2)) belong to the program's own open file.
    fn open(&self, path: &str) -> std::io::Result<File> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        File::options().read(true).write(self.to_write).custom_flags(flags).open(path)
    }

    fn is_it(&self, found: &Metadata) -> bool {
        let Identity { major, minor, inode } = self.first.file;
        let device = (libc::major(found.dev()), libc::minor(found.dev()));
        found.is_file() && found.ino() == inode && device == (major, minor)
    }

    fn map_file(&self, file: &File) -> Result<View, Refusal> {
        if !file.metadata().is_ok_and(|found| self.is_it(&found)) {
            return Err(Refusal::Memory("another file is in its place"));
        }
        is_memory(file)?;
        // SAFETY: asks for the seals.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 {
            return Err(Refusal::system("F_GET_SEALS"));
        }
        // As long as we map it for writing, the program could not seal it against that.
        if self.to_write && seals & libc::F_SEAL_SEAL == 0 {
            return Err(Refusal::Memory("the program may seal it yet"));
        }
        let view = View::map_unsealed(file.as_fd(), self.offset, self.length, self.to_write);
        view.map_err(|error| refused("mmap", &error))
    }

    fn attach(&self) -> Result<View, Refusal> {
        let namespace = |process: &str| {
            let found = std::fs::metadata(format!("/proc/{process}/ns/ipc"));
            found.map(|found| (found.dev(), found.ino())).ok()
        };
        let here = namespace("thread-self");
        if here.is_none() || here != namespace(&self.number.to_string()) {
            return Err(Refusal::Memory("the segment is of another ipc namespace"));
        }
        let file = self.first.file;
        if !is_unnamed(file.major, file.minor) {
            return Err(Refusal::Memory("its pages are large ones"));
        }
        let segment = i32::try_from(file.inode).map_err(|_| Refusal::Memory("it is no segment"))?;
        let is_it = |address: usize| {
            let maps = Maps::open().and_then(|maps| maps.within(address, address + 1));
            maps.is_ok_and(|found| {
                found.first().is_some_and(|vma| vma.file == file && vma.name == Name::Segment)
            })
        };
        let view = View::attach(segment, self.offset, self.length, self.to_write, is_it);
        view.map_err(|error| refused("shmat", &error))
    }
}

fn refused(what: &'static str, error: &Error) -> Refusal {
    Refusal::System(what, error.errno())
}

/// Whether a file is in memory, in pages of the usual size: no other file system has a say when it is used.
fn is_memory(file: &File) -> Result<(), Refusal> {
    // SAFETY: all zeros is a valid structure, filled by the call.
    let kind = unsafe {
        let mut status: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &raw mut status) != 0 {
            return Err(Refusal::system("fstatfs"));
        }
        status.f_type
    };
    if kind == libc::TMPFS_MAGIC {
        Ok(())
    } else {
        Err(Refusal::Memory("it is of a file that is not in memory"))
    }
}

/// Does something in a thread that has no descriptors but those that it opens, and waits for it. They go with
/// the thread.
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let helpers = helpers::CURRENT.get().ok_or(Refusal::Ended)?;
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        const UNSHARE: usize = 2;
        // SAFETY: from then on the thread has a table of descriptors of its own, of which all is closed. No
        // other thread uses that table.
        let has_own =
            unsafe { libc::syscall(libc::SYS_close_range, 0usize, u32::MAX as usize, UNSHARE) } == 0;
        let done = if has_own { work() } else { Err(Refusal::system("close_range")) };
        let _ = sender.send(done);
    };
    let spawned = helpers.spawn("adverb-map", run);
    spawned.map_err(|error| Refusal::because("starting a thread", &error))?;
    receiver.recv().unwrap_or(Err(Refusal::Ended))
}

#[cfg(test)]
mod noticed;

#[cfg(test)]
mod tests {
    use super::super::process;
    use super::*;
    use crate::memory::far::far_address;
    use std::os::fd::OwnedFd;

    pub(super) const PAGE: usize = 4096;
    const PAGES: usize = 8;
    pub(super) const LENGTH: usize = PAGES * PAGE;

    /// This process, as another one sees it.
    pub(super) fn own() -> Process {
        crate::null::tests::install();
        assert!(crate::engine::engine().is_ok());
        crate::memory::install_fault_handler();
        let mark = crate::random::word();
        let number = std::process::id() as libc::pid_t;
        Process::open(number, (&raw const mark as u64, mark), process::gate()).unwrap()
    }

    pub(super) fn memfd(flags: u32) -> OwnedFd {
        // SAFETY: a C string and plain numbers; a fresh descriptor.
        unsafe {
            let file = libc::memfd_create(c"common".as_ptr(), libc::MFD_CLOEXEC | flags);
            assert!(file >= 0 && libc::ftruncate(file, 2 * LENGTH as i64) == 0);
            OwnedFd::from_raw_fd(file)
        }
    }

    fn place(at: usize, file: i32, offset: usize, flags: i32, protection: i32) -> usize {
        let at = if at == 0 { far_address() } else { at as *mut _ };
        // SAFETY: a new mapping, or one in place of the test's own.
        let found = unsafe { libc::mmap(at, LENGTH, protection, flags, file, offset as i64) };
        assert_ne!(found, libc::MAP_FAILED);
        found as usize
    }

    pub(super) fn shared(file: &impl AsRawFd) -> usize {
        place(0, file.as_raw_fd(), 0, libc::MAP_SHARED, BOTH)
    }

    /// A file in a tmpfs, which has a name for a moment only.
    pub(super) fn in_tmpfs() -> File {
        let path = format!("/dev/shm/adverb-common-{}-{:?}", std::process::id(), std::thread::current().id());
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(2 * LENGTH as u64).unwrap();
        file
    }

    /// A System V segment, which goes with its last user.
    pub(super) fn segment() -> usize {
        // SAFETY: plain numbers; a fresh segment.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, LENGTH, 0o600);
            assert!(id >= 0);
            let address = libc::shmat(id, std::ptr::null(), 0);
            assert_ne!(address.addr(), usize::MAX);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            address as usize
        }
    }

    /// Whether the kernel has the question (6.11 and newer). Where it has not, nothing is mapped.
    pub(super) fn is_asked() -> bool {
        own();
        if moved::tells_mappings() {
            return true;
        }
        let file = memfd(0);
        let refusal = Some(Refusal::System("PROCMAP_QUERY", libc::ENOTTY));
        assert_eq!(open(shared(&file), LENGTH).err(), refusal);
        assert_eq!(is_shared(shared(&file), LENGTH as u64).err(), refusal);
        false
    }

    pub(super) fn open(address: usize, length: usize) -> Result<Common, Refusal> {
        Common::open(&own(), address as u64, length as u64, true)
    }

    pub(super) fn byte(address: usize) -> u8 {
        let mut byte = [0];
        // SAFETY: memory of the test, or none, which is an error.
        unsafe { crate::memory::copy_from(&mut byte, address).unwrap() };
        byte[0]
    }

    pub(super) fn wanted(address: usize) -> MapRequest {
        let first = Maps::open().unwrap().within(address, address + 1).unwrap()[0];
        let number = std::process::id() as libc::pid_t;
        let offset = first.offset + (address - first.start) as u64;
        MapRequest { number, first, offset, length: LENGTH / 2, to_write: true }
    }

    /// The program sees a peer's stores, and the peer the program's.
    #[track_caller]
    pub(super) fn is_the_same(common: &Common, address: usize) {
        let process = own();
        let (view, at) = common.at(&process, 9, 4, true).unwrap();
        view.write(at, b"peer").unwrap();
        assert_eq!(byte(address + 9), b'p');
        // SAFETY: memory of the test.
        unsafe { crate::memory::copy_to(address + 16, &7u64.to_ne_bytes()).unwrap() };
        let (view, at) = common.at(&process, 16, 8, true).unwrap();
        assert_eq!(view.fetch_add(at, 2), Ok(7));
        assert_eq!(byte(address + 16), 9);
    }

    #[test]
    fn each_kind_of_shared_memory_is_mapped_as_it_is() {
        if !is_asked() {
            return;
        }
        let (file, other) = (memfd(0), in_tmpfs());
        for address in [shared(&file), shared(&other), segment()] {
            // Not at the beginning of a page, nor at the end of one.
            for (from, length) in [(0, LENGTH), (PAGE + 40, LENGTH - 2 * PAGE), (104, 200)] {
                assert_eq!(is_shared(address + from, length as u64), Ok(()));
                let common = open(address + from, length).unwrap();
                is_the_same(&common, address + from);
                let process = own();
                assert!(common.at(&process, 0, length, true).is_some());
                for (at, length) in [(0, 0), (0, length + 1), (length, 1), (usize::MAX, 2)] {
                    assert!(common.at(&process, at, length, true).is_none());
                }
            }
        }
    }

    /// Both ways are tried, whether this test has the rights for them or not.
    #[test]
    fn the_file_is_had_by_a_descriptor_or_by_the_number_of_a_segment() {
        if !is_asked() {
            return;
        }
        own();
        let file = memfd(0);
        let address = shared(&file) + PAGE;
        let here = wanted(address);
        let view = apart(move || here.by_descriptor()).unwrap();
        view.write(3, b"x").unwrap();
        assert_eq!(byte(address + 3), b'x');
        let address = segment() + PAGE;
        let here = wanted(address);
        assert_eq!(here.first.name, Name::Segment);
        let view = apart(move || here.attach()).unwrap();
        view.write(3, b"y").unwrap();
        assert_eq!(byte(address + 3), b'y');
        // Without a descriptor only privileged processes have it.
        let closed = memfd(0);
        let address = shared(&closed);
        drop(closed);
        let here = wanted(address);
        let missing = Refusal::Memory("the program has no descriptor of it any more");
        assert_eq!(apart(move || here.by_descriptor()).err(), Some(missing));
        assert_eq!(open(address, LENGTH).is_ok(), wanted(address).mapped_file().is_some());
    }

    #[test]
    fn memory_that_is_not_shared_is_refused() {
        if !is_asked() {
            return;
        }
        let (file, sealable, sealed) =
            (memfd(0), memfd(libc::MFD_ALLOW_SEALING), memfd(libc::MFD_ALLOW_SEALING));
        let refusal = |address: usize| {
            let common = open(address, LENGTH).err();
            // The owner finds the same, as far as it looks.
            assert!(common.is_some() || is_shared(address, LENGTH as u64).is_ok());
            common
        };
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        assert_eq!(refusal(place(0, -1, 0, anonymous, BOTH)), Some(NOT_SHARED));
        assert_eq!(refusal(place(0, file.as_raw_fd(), 0, libc::MAP_PRIVATE, BOTH)), Some(NOT_SHARED));
        let protected = Refusal::Memory("it is protected");
        assert_eq!(
            refusal(place(0, file.as_raw_fd(), 0, libc::MAP_SHARED, libc::PROT_READ)),
            Some(protected)
        );
        let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(
            refusal(place(0, read_only.as_raw_fd(), 0, libc::MAP_SHARED, libc::PROT_READ)),
            Some(protected)
        );
        let may_seal = Refusal::Memory("the program may seal it yet");
        assert_eq!(refusal(shared(&sealable)), Some(may_seal));
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SEAL) }, 0);
        assert_eq!(refusal(shared(&sealed)), None);
        // Past its end nothing is there.
        let behind = place(0, file.as_raw_fd(), LENGTH + PAGE, libc::MAP_SHARED, BOTH);
        assert!(matches!(refusal(behind), Some(Refusal::System("mmap", libc::EINVAL))));
        let on_disk = std::env::current_exe().unwrap().with_extension("common");
        let disk = File::options().read(true).write(true).create(true).truncate(true).open(&on_disk).unwrap();
        std::fs::remove_file(&on_disk).unwrap();
        disk.set_len(LENGTH as u64).unwrap();
        let address = shared(&disk);
        assert_eq!(refusal(address).is_none(), is_memory(&disk).is_ok());
        assert_eq!(is_shared(address, LENGTH as u64).is_ok(), is_memory(&disk).is_ok());
        // SAFETY: a C string and plain numbers. No page of it is there, nor will be.
        unsafe {
            let huge = libc::memfd_create(c"huge".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_HUGETLB);
            if huge >= 0 && libc::ftruncate(huge, 2 << 20) == 0 {
                let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
                let address = libc::mmap(std::ptr::null_mut(), 2 << 20, BOTH, flags, huge, 0);
                if address != libc::MAP_FAILED {
                    let not_in_memory = Some(Refusal::Memory("it is of a file that is not in memory"));
                    assert_eq!(refusal(address as usize), not_in_memory);
                    assert_eq!(is_shared(address as usize, LENGTH as u64).err(), not_in_memory);
                }
            }
        }
        // Two pieces of one file that do not go together, and a hole.
        let address = shared(&file);
        // SAFETY: pages of the test's.
        unsafe { libc::munmap((address + PAGE) as *mut _, PAGE) };
        assert_eq!(refusal(address), Some(Refusal::Memory("a part of it is not mapped")));
        let (at, flags) = (address + 4 * PAGE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: as above.
        let placed =
            unsafe { libc::mmap(at as *mut _, 4 * PAGE, BOTH, flags, file.as_raw_fd(), PAGE as i64) };
        assert_eq!(placed as usize, at);
        assert_eq!(open(address + 2 * PAGE, 4 * PAGE).err(), Some(NOT_SHARED));
    }

    /// A peer never uses pages of the file as the bytes of the region when the program has something else
    /// there.
    #[test]
    fn memory_that_replaces_shared_pages_is_not_taken_for_them() {
        if !is_asked() {
            return;
        }
        let process = own();
        let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let (file, other) = (memfd(0), memfd(0));
        let (this, another) = (file.as_raw_fd(), other.as_raw_fd());
        let after = |change: &dyn Fn(usize)| {
            let address = shared(&file);
            let common = open(address, LENGTH).unwrap();
            change(address);
            let is_there = |at, length, to_write| common.at(&process, at, length, to_write).is_some();
            [is_there(0, LENGTH, true), is_there(0, LENGTH, false), is_there(0, PAGE, true)]
        };
        // SAFETY: pages of the test's, in all of these.
        unsafe {
            assert_eq!(after(&|_| ()), [true; 3]);
            assert_eq!(after(&|at| assert_eq!(libc::munmap(at as *mut _, LENGTH), 0)), [false; 3]);
            let last = LENGTH - PAGE;
            let of_last = |at: usize| (at + last) as *mut libc::c_void;
            assert_eq!(after(&|at| assert_eq!(libc::munmap(of_last(at), PAGE), 0)), [false, false, true]);
            assert_eq!(after(&|at| _ = place(at, another, 0, fixed, BOTH)), [false; 3], "another file");
            assert_eq!(
                after(&|at| _ = place(at, this, PAGE, fixed, BOTH)),
                [false; 3],
                "another place in it"
            );
            assert_eq!(after(&|at| _ = place(at, -1, 0, private, BOTH)), [false; 3], "memory of its own");
            let copy = libc::MAP_PRIVATE | libc::MAP_FIXED;
            assert_eq!(after(&|at| _ = place(at, this, 0, copy, BOTH)), [false; 3], "a copy");
            assert_eq!(after(&|at| _ = place(at, this, 0, fixed, BOTH)), [true; 3], "the same again");
            let move_away = |at: usize| {
                let aside = place(0, -1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, 0);
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                assert_eq!(libc::mremap(at as *mut _, LENGTH, LENGTH, flags, aside) as usize, aside);
            };
            assert_eq!(after(&move_away), [false; 3], "moved");
            let read_only = |at: usize| assert_eq!(libc::mprotect(at as *mut _, LENGTH, libc::PROT_READ), 0);
            assert_eq!(after(&read_only), [false, true, false]);
            let none = |at: usize| assert_eq!(libc::mprotect(of_last(at), PAGE, libc::PROT_NONE), 0);
            assert_eq!(after(&none), [false, false, true]);
        }
    }

    /// Both see the program's changes to the file.
    #[test]
    fn changes_of_the_program_to_the_file_hold_for_the_peer() {
        if !is_asked() {
            return;
        }
        let process = own();
        let file = memfd(0);
        let address = shared(&file);
        let common = open(address, LENGTH).unwrap();
        let (view, _) = common.at(&process, 0, LENGTH, true).unwrap();
        view.write(PAGE, b"once").unwrap();
        // SAFETY: pages of the test's.
        unsafe { assert_eq!(libc::madvise((address + PAGE) as *mut _, PAGE, libc::MADV_DONTNEED), 0) };
        assert_eq!(byte(address + PAGE), b'o', "dropped from the mapping, not from the file");
        is_the_same(&common, address);
        // SAFETY: as above.
        unsafe { assert_eq!(libc::madvise((address + PAGE) as *mut _, PAGE, libc::MADV_REMOVE), 0) };
        let mut found = [1; 4];
        view.read(PAGE, &mut found).unwrap();
        assert_eq!((found, byte(address + PAGE)), ([0; 4], 0), "gone from the file");
        view.write(PAGE, b"twice").unwrap();
        assert_eq!(byte(address + PAGE), b't');
        // SAFETY: a descriptor of the test's.
        unsafe { assert_eq!(libc::ftruncate(file.as_raw_fd(), 2 * PAGE as i64), 0) };
        assert!(common.at(&process, 4 * PAGE, 8, true).is_some(), "the mapping is as it was");
        assert!(view.write(4 * PAGE, b"never").is_err() && view.read(4 * PAGE, &mut found).is_err());
        assert!(view.fetch_add(4 * PAGE, 1).is_err());
        is_the_same(&common, address);
    }

    /// The program's locks on the file stay, though a descriptor of it is opened and closed (fcntl(2)).
    #[test]
    fn locks_of_the_program_stay() {
        if !is_asked() {
            return;
        }
        let file = memfd(0);
        let address = shared(&file);
        let lock = libc::flock {
            l_type: libc::F_WRLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        // SAFETY: a live structure.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) }, 0);
        // The list of all locks (/proc/locks) may leave one out while others go.
        let is_locked = || {
            let mut found = lock;
            // SAFETY: fills a live structure. A lock of the open file would meet that of the process.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) }, 0);
            found.l_type != libc::F_UNLCK as i16
        };
        assert!(is_locked());
        let common = open(address, LENGTH).unwrap();
        assert!(is_locked());
        drop(common);
        let here = wanted(address);
        drop(apart(move || here.by_descriptor()).unwrap());
        assert!(is_locked());
    }

    #[test]
    fn the_list_of_mounts_is_read() {
        let text = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            25 22 0:21 / /dev/shm rw,nosuid shared:3 master:1 - tmpfs tmpfs rw,inode64\n\
            26 22 0:22 / /huge rw - hugetlbfs none rw\n30 22 0:3 / /a - tmpfs\nnothing\n\xff";
        let is = |minor| is_tmpfs(text, 0, minor);
        assert!(is(21) && is(3) && !is(22) && !is(2) && !is_tmpfs(text, 254, 0) && !is_tmpfs(b"", 0, 21));
    }
}
