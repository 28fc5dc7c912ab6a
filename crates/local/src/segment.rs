//! The memory that two processes share.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::layout::{MAGIC, SIZE, Shared, VERSION, Which};
use crate::membarrier::Registration;
use crate::ring::{Consumer, Producer};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::view::View;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// One process's share of a segment, before it is taken apart into its halves. The memory goes when both of these are gone, in both processes.
pub struct Segment {
    memory: Arc<Memory>,
    which: Which,
    registration: Registration,
}

impl Segment {
    /// Bytes of shared memory that a segment takes.
    pub const SIZE: usize = SIZE;

    /// A new segment, and the descriptor by which one other process opens it.
    pub fn create() -> io::Result<(Segment, OwnedFd)> {
        Self::create_with(Registration::take())
    }

    /// As [`create`](Self::create), by a process with this registration for membarrier(2).
    pub fn create_with(registration: Registration) -> io::Result<(Segment, OwnedFd)> {
        let file = memfd()?;
        file.set_len(SIZE as u64)?;
        // SAFETY: fcntl(2) on a descriptor of ours with an integer.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let memory = Memory::map(&file)?;
        memory.shared().version.store(VERSION, Relaxed);
        memory.shared().magic.store(MAGIC, Release);
        Ok((Segment { memory: Arc::new(memory), which: Which::Creator, registration }, file.into()))
    }

    /// The other side of a segment that another process has created. An error of the kind `InvalidData` if the descriptor is not that of a segment
    /// of this version which nobody has opened so far.
    pub fn open(descriptor: OwnedFd) -> io::Result<Segment> {
        Self::open_with(descriptor, Registration::take())
    }

    /// As [`open`](Self::open), by a process with this registration for membarrier(2).
    pub fn open_with(descriptor: OwnedFd, registration: Registration) -> io::Result<Segment> {
        let file = File::from(descriptor);
        // Seals first: a file that nobody can make shorter does not become so after its length has been looked at.
        // SAFETY: fcntl(2) on a descriptor of ours.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(invalid("the descriptor is not that of sealed memory"));
        }
        if file.metadata()?.len() != SIZE as u64 {
            return Err(invalid("the memory is not as large as a segment"));
        }
        let memory = Memory::map(&file)?;
        let shared = memory.shared();
        if shared.magic.load(Acquire) != MAGIC || shared.version.load(Relaxed) != VERSION {
            return Err(invalid("the memory is no segment, or one of another version"));
        }
        if shared.opened.swap(1, Relaxed) != 0 {
            return Err(invalid("the segment has been opened before"));
        }
        Ok(Segment { memory: Arc::new(memory), which: Which::Opener, registration })
    }

    /// The two halves that this side has. They share no state: each may be behind a lock of its own.
    pub fn split(self) -> (Producer, Consumer) {
        let view = |producer| View::new(&self.memory, self.which, producer, self.registration);
        (Producer::new(view(self.which)), Consumer::new(view(self.which.other())))
    }
}

/// A segment mapped into this process.
pub(crate) struct Memory {
    shared: NonNull<Shared>,
    /// The process that it is mapped in: a child of fork has nothing there.
    process: u32,
}

// SAFETY: what is mapped is atomic words, for any thread; it is unmapped once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps a file of `SIZE` bytes, which cannot become shorter.
    fn map(file: &File) -> io::Result<Memory> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever the system likes; the arguments are plain values.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let shared = NonNull::new(address.cast()).expect("mmap(2) does not return the null page");
        let memory = Memory { shared, process: std::process::id() };
        // A child of fork that used it would be a third party on the rings.
        // SAFETY: the mapping is ours.
        check(unsafe { libc::madvise(address, SIZE, libc::MADV_DONTFORK) })?;
        Ok(memory)
    }

    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: `SIZE` bytes are mapped there, page-aligned, until `self` goes; every bit pattern is valid for atomic integers, which also
        // bear that other processes change them. The file's seals keep the pages from going away.
        unsafe { self.shared.as_ref() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // After a fork something else may be mapped there in the child.
        if std::process::id() == self.process {
            // SAFETY: mapped by `map`, and nobody borrows from us.
            unsafe { libc::munmap(self.shared.as_ptr().cast(), SIZE) };
        }
    }
}

/// Memory without a name, closed on exec, that takes seals.
fn memfd() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Some systems allow only memory that cannot be executed (sysctl vm.memfd_noexec); older kernels do not know the flag.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: a literal name and plain flags.
        let fd = unsafe { libc::memfd_create(c"adverb-local".as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: a descriptor that was just made, owned by nobody else.
            return Ok(unsafe { File::from_raw_fd(fd) });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn kind(result: io::Result<Segment>) -> io::ErrorKind {
        result.err().expect("it is refused").kind()
    }

    #[test]
    fn only_a_sealed_segment_is_opened_and_once() {
        let (segment, descriptor) = Segment::create().unwrap();
        let again = descriptor.as_fd().try_clone_to_owned().unwrap();
        Segment::open(descriptor).unwrap();
        assert_eq!(kind(Segment::open(again)), io::ErrorKind::InvalidData);
        drop(segment);

        let mut file = memfd().unwrap();
        file.set_len(SIZE as u64).unwrap();
        let open = |file: &File| kind(Segment::open(file.as_fd().try_clone_to_owned().unwrap()));
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "not sealed");
        let seal = |file: &File| {
            // SAFETY: a descriptor of ours.
            check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }).unwrap();
        };
        seal(&file);
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "without a header");

        file = memfd().unwrap();
        file.set_len(SIZE as u64 / 2).unwrap();
        seal(&file);
        assert_eq!(open(&file), io::ErrorKind::InvalidData, "too short");
        assert_eq!(open(&File::open("/dev/zero").unwrap()), io::ErrorKind::InvalidData, "no memory");
    }

    #[test]
    fn nobody_can_make_it_shorter() {
        let (_segment, descriptor) = Segment::create().unwrap();
        let file = File::from(descriptor);
        assert_eq!(file.metadata().unwrap().len(), SIZE as u64);
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(2 * SIZE as u64).is_err());
    }

    #[test]
    fn it_is_unmapped_with_its_last_half() {
        let (segment, descriptor) = Segment::create().unwrap();
        use std::os::unix::fs::MetadataExt;
        let inode = format!(" {} ", File::from(descriptor).metadata().unwrap().ino());
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.contains("adverb-local") && line.contains(&inode))
        };
        let (producer, consumer) = segment.split();
        drop(producer);
        assert!(mapped());
        drop(consumer);
        assert!(!mapped());
    }
}
