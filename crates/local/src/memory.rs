//! Memory without a name that processes share: how it is made, what is checked before another process's is
//! used, and how it is mapped.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// No process can make it shorter under its users, or longer, or take more seals.
pub(crate) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// What memory that others change may be looked at as.
///
/// # Safety
/// Made of atomic integers and padding: every bit pattern is valid, and another process's store is no data
/// race.
pub(crate) unsafe trait Words {}

/// Fresh memory of the size of a `T`, all zeros, not sealed yet, closed on exec.
pub(crate) fn create<T: Words>(name: &CStr) -> io::Result<File> {
    #[cfg(miri)]
    return crate::ordinary::create::<T>();
    #[cfg(not(miri))]
    {
        let file = memfd(name)?;
        set_len(&file, size_of::<T>() as u64)?;
        Ok(file)
    }
}

/// Puts seals on a file.
pub(crate) fn seal(file: &File, seals: libc::c_int) -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: fcntl(2) on a descriptor of ours with an integer.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })
}

/// Opens another process's file of a `T` with these seals. An error of the kind `InvalidData` if it is not
/// sealed like that, or has another size.
pub(crate) fn open<T: Words>(descriptor: OwnedFd, seals: libc::c_int) -> io::Result<File> {
    let file = File::from(descriptor);
    // Seals first: a file that no process can make shorter does not become so after its length has been
    // looked at. SAFETY: fcntl(2) on a descriptor of ours.
    let found = if cfg!(miri) { seals } else { unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } };
    if found < 0 || found & seals != seals {
        return Err(invalid("the descriptor is not that of sealed memory"));
    }
    if file.metadata()?.len() != size_of::<T>() as u64 {
        return Err(invalid("the memory has another size"));
    }
    Ok(file)
}

/// The error for a descriptor or memory that is not as it should be.
pub(crate) fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// A `T` in shared memory, mapped into this process.
pub(crate) struct MappedMemory<T: Words> {
    at: NonNull<T>,
    /// The process that it is mapped in: a child of fork has nothing there.
    process: u32,
}

// SAFETY: what is mapped is atomic words, for any thread; it is unmapped once.
unsafe impl<T: Words> Send for MappedMemory<T> {}
// SAFETY: as above.
unsafe impl<T: Words> Sync for MappedMemory<T> {}

impl<T: Words> MappedMemory<T> {
    /// Maps a file of the size of a `T`, which cannot become shorter. `protection` and `flags` are those of
    /// mmap(2); what is mapped without `PROT_WRITE` is only to be read.
    pub(crate) fn new(file: &File, protection: libc::c_int, flags: libc::c_int) -> io::Result<Self> {
        #[cfg(miri)]
        return Ok(MappedMemory { at: crate::ordinary::find::<T>(file)?, process: std::process::id() });
        #[cfg(not(miri))]
        Self::map(file, protection, flags)
    }

    #[cfg(not(miri))]
    fn map(file: &File, protection: libc::c_int, flags: libc::c_int) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | flags;
        let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping, wherever the system likes; the arguments are plain values.
        let address = unsafe { libc::mmap(anywhere, size_of::<T>(), protection, flags, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(address.cast()).expect("mmap(2) does not return the null page");
        let mapping = MappedMemory { at, process: std::process::id() };
        // A child of fork that used it would be a third party. A core dump would fill its holes.
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: the mapping is ours.
            check(unsafe { libc::madvise(address, size_of::<T>(), advice) })?;
        }
        Ok(mapping)
    }
}

impl<T: Words> Deref for MappedMemory<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as many bytes are mapped there, page-aligned, until `self` goes; `T` is atomic words, which
        // may have any value, and which other processes may change. The file's seals keep the pages from
        // going away.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Words> Drop for MappedMemory<T> {
    fn drop(&mut self) {
        // After a fork something else may be mapped there in the child.
        if !cfg!(miri) && std::process::id() == self.process {
            // SAFETY: mapped by `new`, and no borrow of it is left.
            unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
        }
    }
}

/// Memory without a name, closed on exec, that takes seals.
fn memfd(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Some systems allow only memory that cannot be executed (sysctl vm.memfd_noexec); older kernels do not
    // know the flag.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: a live string and plain flags.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: a descriptor that was just made, and that has no other owner.
            return Ok(unsafe { File::from_raw_fd(fd) });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

/// Sets its size, unless that is more than files of this process may have: the attempt would raise SIGXFSZ.
fn set_len(file: &File, size: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live local.
    check(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) })?;
    if limit.rlim_cur < size {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    file.set_len(size)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
