//! The peer's side: memory of another process, mapped.

use super::calls;
use crate::error::{Error, Result};
use crate::fork::ForkGeneration;
use crate::memory::copy::{self, Fault};
use crate::memory::keys::Span;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most that is mapped of all peers' memory together: a quarter of the address space. Peers that lie
/// about how much they have leave the program enough.
const MOST: usize = 1 << 45;
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// The most views that are mapped of all peers' memory together: an eighth of the mappings that the kernel
/// allows a process by default.
const MOST_VIEWS: usize = 8192;
static VIEWS: AtomicUsize = AtomicUsize::new(0);

fn too_much() -> Error {
    Error::new(libc::ENOMEM, "peers have too much memory to be mapped")
}

/// Addresses that a view takes of [`MOST`], until dropped.
#[derive(Debug)]
struct AddressReservation(usize);

impl AddressReservation {
    fn new(length: usize) -> Option<Self> {
        let more = |mapped: usize| mapped.checked_add(length).filter(|mapped| *mapped <= MOST);
        let one_more = |views: usize| (views < MOST_VIEWS).then_some(views + 1);
        VIEWS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let taken = MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if taken.is_err() {
            VIEWS.fetch_sub(1, Ordering::Relaxed);
        }
        taken.ok().map(|_| Self(length))
    }
}

impl Drop for AddressReservation {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
        VIEWS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Pages of another process of this host, in use until dropped. Thread-safe. The other process may change or
/// drop them at any time: an access is at worst a [`Fault`]. A child of fork does not inherit them.
#[derive(Debug)]
pub struct View {
    address: usize,
    length: usize,
    /// The whole pages that are mapped.
    pages: (usize, usize),
    born: ForkGeneration,
    _taken: AddressReservation,
}

impl View {
    /// Maps the pages of `length` bytes at `offset` of a descriptor, in which a peer says to have its pages.
    /// They can be read and, if the peer's key permits it, written.
    ///
    /// # Errors
    /// EINVAL for no bytes, for a place that is not in the file, and for a descriptor of anything but memory
    /// that is sealed against becoming shorter. ENOMEM when too much is mapped already; the errors of
    /// mmap(2).
    pub fn map(descriptor: BorrowedFd<'_>, offset: u64, length: usize, is_writable: bool) -> Result<Self> {
        // SAFETY: asks for the seals; a file that cannot have any, such as one that a program serves, answers
        // with an error.
        let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(Error::invalid("a peer's descriptor is not of sealed memory"));
        }
        Self::map_unsealed(descriptor, offset, length, is_writable)
    }

    /// Maps a peer's pages, as [`View::map`] does, in memory that may become shorter. An access to pages that
    /// are gone is a [`Fault`].
    pub(in crate::memory) fn map_unsealed(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        is_writable: bool,
    ) -> Result<Self> {
        let fd = descriptor.as_raw_fd();
        // SAFETY: all zeros is a valid stat, filled by the call.
        let size = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut status) != 0 {
                return Err(Error::system("fstat"));
            }
            status.st_size as u64
        };
        let page = super::page_size();
        let before = (offset % page as u64) as usize;
        let end = offset.checked_add(length as u64).and_then(|end| end.checked_next_multiple_of(page as u64));
        if length == 0 || end.is_none_or(|end| end > size) {
            return Err(Error::invalid(format!("a peer's {length} bytes at {offset:#x} of {size:#x}")));
        }
        let (from, whole) = (offset - before as u64, (before + length).next_multiple_of(page));
        let taken = AddressReservation::new(whole).ok_or_else(too_much)?;
        let write = if is_writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address = unsafe {
            let address = calls::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | write,
                libc::MAP_SHARED,
                fd,
                from as i64,
            );
            if address == libc::MAP_FAILED {
                return Err(Error::system("mmap"));
            }
            address as usize
        };
        Ok(Self::of((address, whole), before, length, taken))
    }

    /// Attaches a System V segment, of which `length` bytes at `offset` are meant. `is_it` says of the
    /// address where it is whether it is the right one.
    ///
    /// # Errors
    /// As [`View::map_unsealed`], and EINVAL for another segment.
    pub(in crate::memory) fn attach(
        segment: i32,
        offset: u64,
        length: usize,
        is_writable: bool,
        is_it: impl FnOnce(usize) -> bool,
    ) -> Result<Self> {
        // SAFETY: all zeros is a valid structure, filled by the call.
        let size = unsafe {
            let mut status: libc::shmid_ds = std::mem::zeroed();
            if libc::shmctl(segment, libc::IPC_STAT, &raw mut status) != 0 {
                return Err(Error::system("shmctl"));
            }
            status.shm_segsz
        };
        let before = usize::try_from(offset).unwrap_or(usize::MAX);
        if length == 0 || before.checked_add(length).is_none_or(|end| end > size) {
            return Err(Error::invalid(format!("a peer's {length} bytes at {offset:#x} of {size:#x}")));
        }
        let whole = size.next_multiple_of(super::page_size());
        let taken = AddressReservation::new(whole).ok_or_else(too_much)?;
        let flags = if is_writable { 0 } else { libc::SHM_RDONLY };
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address = unsafe { libc::shmat(segment, std::ptr::null(), flags) };
        if address.addr() == usize::MAX {
            return Err(Error::system("shmat"));
        }
        if !is_it(address as usize) {
            // SAFETY: our own fresh mapping.
            unsafe { libc::shmdt(address) };
            return Err(Error::invalid("it is another segment"));
        }
        Ok(Self::of((address as usize, whole), before, length, taken))
    }

    /// A view of `length` bytes, `before` bytes behind the beginning of these pages, which are mapped for it.
    fn of(pages: (usize, usize), before: usize, length: usize, taken: AddressReservation) -> Self {
        // SAFETY: our own fresh mapping.
        unsafe {
            calls::madvise(pages.0 as *mut _, pages.1, libc::MADV_DONTFORK);
            // It is not for a dump of this process's memory.
            calls::madvise(pages.0 as *mut _, pages.1, libc::MADV_DONTDUMP);
        }
        Self { address: pages.0 + before, length, pages, born: ForkGeneration::now(), _taken: taken }
    }

    /// Maps a peer's pages, as [`View::map`] does, in memory of which nothing but whole pages can be had.
    ///
    /// # Errors
    /// As [`View::map`], and EINVAL if `offset` or `length` is not of whole pages.
    pub fn map_whole(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        is_writable: bool,
    ) -> Result<Self> {
        let page = super::page_size();
        if !offset.is_multiple_of(page as u64) || !length.is_multiple_of(page) {
            return Err(Error::invalid(format!("a peer's {length} bytes at {offset:#x} are no whole pages")));
        }
        Self::map(descriptor, offset, length, is_writable)
    }

    /// The address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: it has a byte at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Address of `length` bytes at `at`.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize, length: usize) -> std::result::Result<usize, Fault> {
        let inside = at.checked_add(length).is_some_and(|end| end <= self.length);
        if inside { Ok(self.address + at) } else { Err(Fault) }
    }

    /// Copies `source` to the bytes from `at` on, in ascending order; the last word becomes visible last.
    ///
    /// # Errors
    /// Bytes that are not there, or may not be written.
    pub fn write(&self, at: usize, source: &[u8]) -> std::result::Result<(), Fault> {
        // SAFETY: inside of our own mapping, which is memory that both processes write to.
        unsafe { copy::copy_to(self.at(at, source.len())?, source) }
    }

    /// Copies `length` bytes of the program's memory, at `from` of `source`, to the bytes from `at` on, as
    /// [`View::write`] does.
    ///
    /// # Errors
    /// As [`View::write`], or bytes of the program's that cannot be read.
    #[inline(always)]
    pub fn write_from(
        &self,
        at: usize,
        source: &Span<'_>,
        from: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        let source = part(source, from, length)?;
        // SAFETY: as in `write`; a key opened the source.
        unsafe { copy::copy_between(self.at(at, length)?, source, length) }
    }

    /// Copies `length` bytes at `source` to the bytes from `at` on, in ascending order, the last word last.
    ///
    /// # Errors
    /// As [`View::write`], or a bad address.
    ///
    /// # Safety
    /// As of [`copy::copy_from`].
    #[inline(always)]
    pub(crate) unsafe fn copy_in(
        &self,
        at: usize,
        source: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        // SAFETY: the target is inside of our own mapping; the source is the caller's promise.
        unsafe { copy::copy_between(self.at(at, length)?, source, length) }
    }

    /// Copies the bytes from `at` on into `target`.
    ///
    /// # Errors
    /// Bytes that are not there.
    pub fn read(&self, at: usize, target: &mut [u8]) -> std::result::Result<(), Fault> {
        // SAFETY: inside of our own mapping.
        unsafe { copy::copy_from(target, self.at(at, target.len())?) }
    }

    /// Copies `length` bytes from `at` on to `target`, in ascending order, the last word last.
    ///
    /// # Errors
    /// As [`View::read`], or a bad address.
    ///
    /// # Safety
    /// As of [`copy::copy_to`].
    #[inline(always)]
    pub(crate) unsafe fn copy_out(
        &self,
        at: usize,
        target: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        // SAFETY: the source is inside of our own mapping; the target is the caller's promise.
        unsafe { copy::copy_between(target, self.at(at, length)?, length) }
    }

    /// Copies `length` bytes from `at` on to the program's memory at `to` of `target`, which was opened for
    /// writing.
    ///
    /// # Errors
    /// As [`View::read`], or bytes of the program's that cannot be written.
    #[inline(always)]
    pub fn read_into(
        &self,
        at: usize,
        target: &Span<'_>,
        to: usize,
        length: usize,
    ) -> std::result::Result<(), Fault> {
        let target = part(target, to, length)?;
        // SAFETY: a key opened the target for writing.
        unsafe { self.copy_out(at, target, length) }
    }

    /// Adds to 8 aligned bytes, atomically for every process and for the program there; returns the value
    /// before.
    ///
    /// # Errors
    /// Bytes that are not there, not aligned, or may not be written.
    pub fn fetch_add(&self, at: usize, value: u64) -> std::result::Result<u64, Fault> {
        // SAFETY: as in `write`.
        unsafe { copy::fetch_add(self.word(at)?, value) }
    }

    /// Replaces 8 aligned bytes by `swap` if they equal `compare`, as atomically; returns the value before.
    ///
    /// # Errors
    /// As [`View::fetch_add`].
    pub fn compare_swap(&self, at: usize, compare: u64, swap: u64) -> std::result::Result<u64, Fault> {
        // SAFETY: as in `write`.
        unsafe { copy::compare_swap(self.word(at)?, compare, swap) }
    }

    fn word(&self, at: usize) -> std::result::Result<usize, Fault> {
        self.at(at, 8).ok().filter(|address| address.is_multiple_of(8)).ok_or(Fault)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // In a child of fork something else may be there.
        if self.born.is_here() {
            let (start, length) = self.pages;
            // SAFETY: our own mapping, which no thread uses any more.
            unsafe { calls::munmap(start as *mut _, length) };
        }
    }
}

#[inline(always)]
fn part(span: &Span<'_>, from: usize, length: usize) -> std::result::Result<usize, Fault> {
    let inside = from.checked_add(length).is_some_and(|end| end <= span.len());
    if inside { Ok(span.address() + from) } else { Err(Fault) }
}

#[cfg(test)]
mod tests {
    use super::super::file::SharedFile;
    use super::*;
    use crate::conformance::{rounds, runs_again};
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    fn file() -> OwnedFd {
        let file = SharedFile::new().unwrap();
        crate::fork::disown_descriptor(file.descriptor());
        // SAFETY: a copy of a live descriptor.
        unsafe { OwnedFd::from_raw_fd(libc::dup(file.descriptor())) }
    }

    #[test]
    fn bytes_and_words_are_written_and_read_and_nothing_beyond() {
        copy::install_handler();
        let file = file();
        let view = View::map(file.as_fd(), 1 << 30, 8192, true).unwrap();
        let other = View::map(file.as_fd(), 1 << 30, 8192, false).unwrap();
        view.write(8191, &[7]).unwrap();
        let mut byte = [0];
        other.read(8191, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert_eq!(view.fetch_add(8, 5), Ok(0));
        assert_eq!(view.compare_swap(8, 5, 9), Ok(5));
        assert_eq!(view.fetch_add(8, 0), Ok(9));
        for (at, length) in [(8192, 1), (8190, 3), (usize::MAX, 2), (0, 8193)] {
            assert_eq!(view.write(at, &vec![1; length]), Err(Fault), "{length} at {at}");
            assert_eq!(view.read(at, &mut vec![1; length]), Err(Fault), "{length} at {at}");
        }
        for at in [4, 8192, 8185, usize::MAX - 7] {
            assert_eq!(view.fetch_add(at, 1), Err(Fault), "{at}");
            assert_eq!(view.compare_swap(at, 0, 1), Err(Fault), "{at}");
        }
        assert_eq!(other.write(0, &[1]), Err(Fault), "it may only be read");
        assert_eq!(other.fetch_add(0, 1), Err(Fault));
    }

    #[test]
    fn bytes_that_are_no_whole_pages_are_those_and_no_others() {
        copy::install_handler();
        let file = file();
        let whole = View::map(file.as_fd(), 0, 8192, true).unwrap();
        let part = View::map(file.as_fd(), 4090, 12, true).unwrap();
        assert_eq!(part.len(), 12);
        for (offset, length) in [(4090, 4096), (0, 100)] {
            assert!(View::map_whole(file.as_fd(), offset, length, true).is_err());
        }
        assert!(View::map_whole(file.as_fd(), 4096, 4096, true).is_ok());
        part.write(0, &[7; 12]).unwrap();
        assert_eq!(part.write(1, &[7; 12]), Err(Fault));
        let mut found = [1; 14];
        whole.read(4089, &mut found).unwrap();
        assert_eq!(found, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(part.fetch_add(0, 1), Err(Fault), "a word that is none in memory");
        assert!(part.fetch_add(6, 1).is_err(), "it does not end in there");
        let aligned = View::map(file.as_fd(), 4088, 8, true).unwrap();
        assert!(aligned.fetch_add(0, 0).is_ok());
        drop((part, aligned));
        whole.read(4089, &mut found).unwrap();
    }

    /// In a process of its own: tests beside this one map views, too, and find no room while it has all.
    #[test]
    fn addresses_are_left_for_the_program() {
        if rounds().is_none() {
            let own = "memory::moved::view::tests::addresses_are_left_for_the_program";
            return runs_again(own, &[], 1);
        }
        let file = file();
        let mut views = Vec::new();
        let refused = loop {
            match View::map(file.as_fd(), 0, 1 << 40, true) {
                Ok(view) => views.push(view),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.errno(), libc::ENOMEM);
        assert!((1..=32).contains(&views.len()), "{}", views.len());
        views.pop();
        View::map(file.as_fd(), 0, 1 << 40, true).unwrap();
    }

    #[test]
    fn only_sealed_memory_is_mapped() {
        let file = file();
        let errno = |offset, length| View::map(file.as_fd(), offset, length, true).err().map(|e| e.errno());
        assert_eq!(errno(0, 4096), None);
        for (offset, length) in [
            (0, 0),
            (1 << 56, 4096),
            ((1 << 56) - 4095, 4096),
            (u64::MAX - 4095, 4096),
            (0, usize::MAX - 4095),
            (9, usize::MAX),
        ] {
            assert_eq!(errno(offset, length), Some(libc::EINVAL), "{length} at {offset}");
        }
        // SAFETY: fresh descriptors.
        let others = unsafe {
            let memory =
                libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            libc::ftruncate(memory, 4096);
            [memory, libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)]
                .map(|fd| OwnedFd::from_raw_fd(fd))
        };
        for other in others {
            let error = View::map(other.as_fd(), 0, 4096, false).err().map(|error| error.errno());
            assert_eq!(error, Some(libc::EINVAL));
        }
    }
}
