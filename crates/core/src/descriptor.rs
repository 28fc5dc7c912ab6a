//! The numbers of descriptors.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Gives a descriptor a number that is greater than those of all that are open in the process, if there is one.
///
/// For programs that take descriptors to be numbered as they are opened: one that the background thread closes at that instant would leave a
/// smaller number.
pub fn above_all(descriptor: OwnedFd) -> OwnedFd {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let greatest = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok()).max();
    let Some(greatest) = greatest.filter(|greatest| *greatest > descriptor.as_raw_fd()) else {
        return descriptor;
    };
    // SAFETY: a descriptor that is open, and plain numbers.
    let number = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, greatest + 1) };
    // SAFETY: it is fresh and nobody else's.
    if number < 0 { descriptor } else { unsafe { OwnedFd::from_raw_fd(number) } }
}
