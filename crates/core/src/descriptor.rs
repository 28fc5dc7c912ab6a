//! The numbers of descriptors, and the lengths of their files.

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The engine's own descriptors have numbers from here on, where the limit of the process leaves room.
/// Programs with small tables of descriptors (netcat takes numbers below 16) find their own at the same
/// numbers as without us.
const OURS: RawFd = 512;

/// Gives a descriptor of the engine's a number that no program counts with, if there is one.
pub(crate) fn out_of_the_way(descriptor: OwnedFd) -> OwnedFd {
    if descriptor.as_raw_fd() >= OURS { descriptor } else { at_least(OURS, descriptor) }
}

/// Gives a descriptor a number that is greater than those of all that the program has open, if there is one.
///
/// For programs that take descriptors to be numbered as they are opened: one that the background thread
/// closes at that instant would leave a smaller number.
pub fn above_all(descriptor: OwnedFd) -> OwnedFd {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    match numbers.filter(|number| *number < OURS).max() {
        Some(greatest) if greatest > descriptor.as_raw_fd() => at_least(greatest + 1, descriptor),
        _ => descriptor,
    }
}

fn at_least(least: RawFd, descriptor: OwnedFd) -> OwnedFd {
    // SAFETY: a descriptor that is open, and plain numbers.
    let number = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    // SAFETY: it is fresh, and has no other owner.
    if number < 0 { descriptor } else { unsafe { OwnedFd::from_raw_fd(number) } }
}

/// Gives a file a length, unless it is more than files of this process may have: the attempt would raise
/// SIGXFSZ, which ends the process.
///
/// # Errors
/// EFBIG for such a length; the errors of ftruncate(2).
// A function by itself: a thread that opens a device has little of the stack left.
#[inline(never)]
pub fn set_length(descriptor: RawFd, length: usize) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a live local.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(Error::system("getrlimit"));
    }
    if limit.rlim_cur < length as u64 {
        return Err(Error::new(
            libc::EFBIG,
            format!("{length} bytes are more than files may have (RLIMIT_FSIZE)"),
        ));
    }
    // SAFETY: plain numbers.
    match unsafe { libc::ftruncate(descriptor, length as libc::off_t) } {
        0 => Ok(()),
        _ => Err(Error::system("ftruncate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn descriptors_of_the_engine_leave_the_small_numbers_to_the_program() {
        let open = || OwnedFd::from(File::open("/dev/null").unwrap());
        let ours = out_of_the_way(open());
        assert!(ours.as_raw_fd() >= OURS);
        // Tests beside this one have few descriptors.
        let theirs = above_all(open());
        assert!(theirs.as_raw_fd() < OURS, "what the engine has is not counted");
    }
}
