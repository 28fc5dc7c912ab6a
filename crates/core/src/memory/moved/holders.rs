//! Whether the kernel or a device may keep pages of the process's memory, and write to them at any time: by
//! io_uring, by queues of asynchronous requests, by devices. Devices are not looked for by name: each counts
//! unless it is known to keep no pages.

use super::Refusal;
use super::maps;
use std::os::fd::RawFd;

/// Anonymous descriptors that keep no page. Others do, for all that is known.
const HARMLESS: [&[u8]; 12] = [
    b"[eventfd]",
    b"[eventpoll]",
    b"[timerfd]",
    b"[signalfd]",
    b"[pidfd]",
    b"inotify",
    b"[fanotify]",
    b"[userfaultfd]",
    b"[perf_event]",
    b"bpf-map",
    b"bpf-prog",
    b"bpf_link",
];

/// The cheapest look: no ring of io_uring is registered under a number of the calling thread's.
pub(super) fn has_no_ring() -> Result<(), Refusal> {
    if has_registered_ring() { Err(Refusal::Uring) } else { Ok(()) }
}

/// Nothing of the kind is there.
pub(super) fn check() -> Result<(), Refusal> {
    has_no_ring()?;
    let text = maps::read("/proc/thread-self/maps")?;
    let contains = |what: &[u8]| text.windows(what.len()).any(|part| part == what);
    if contains(b"anon_inode:[io_uring]") {
        return Err(Refusal::Uring);
    }
    // A mapping of a device whose descriptor is closed.
    let of_device = |line: &[u8]| {
        let path = line.split(|byte| *byte == b' ').next_back().unwrap_or_default();
        path.starts_with(b"/dev/") && !path.starts_with(b"/dev/shm/") && path != b"/dev/zero"
    };
    if contains(b"/[aio]") || contains(b"/dmabuf:") || text.split(|byte| *byte == b'\n').any(of_device) {
        return Err(Refusal::Pinned);
    }
    descriptors()
}

/// A ring may have no descriptor, but a number for the thread that made it. There are 16 such numbers.
fn has_registered_ring() -> bool {
    const ENTER_REGISTERED_RING: u32 = 1 << 4;
    for ring in 0..16 {
        // SAFETY: submits nothing, and waits for nothing; the pointer and the size are as wide as the kernel
        // reads them.
        let entered = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, ring, 0, 0, ENTER_REGISTERED_RING, 0_usize, 0_usize)
        };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if entered >= 0 => return true,
            Some(libc::EBADF) => {}
            // The thread has no such numbers, or the system no such thing.
            Some(libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EOPNOTSUPP) => {
                return false;
            }
            _ => return true,
        }
    }
    false
}

fn descriptors() -> Result<(), Refusal> {
    use std::os::unix::ffi::OsStrExt;
    let because = |error| Refusal::because("/proc/self/fd", &error);
    for entry in std::fs::read_dir("/proc/self/fd").map_err(because)? {
        let entry = entry.map_err(because)?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A descriptor that is closed meanwhile is one of ours.
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let target = target.as_os_str().as_bytes();
        if target.starts_with(b"anon_inode:[io_uring]") {
            return Err(Refusal::Uring);
        }
        let is_harmless = match target.strip_prefix(b"anon_inode:") {
            Some(name) => HARMLESS.iter().any(|harmless| name.starts_with(harmless)),
            None if target.starts_with(b"/dmabuf:") => false,
            None if target.starts_with(b"socket:") => !is_of_device(fd),
            None => is_harmless_file(fd),
        };
        if !is_harmless {
            return Err(Refusal::Pinned);
        }
    }
    Ok(())
}

/// AF_XDP gives packets their place in the program's memory.
fn is_of_device(socket: RawFd) -> bool {
    let (mut family, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: fills a live local of the length that it says.
    let asked = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut family).cast(), &raw mut length)
    };
    asked == 0 && places_data(family)
}

/// Whether sockets of a family give data its place in memory.
fn places_data(family: i32) -> bool {
    const AF_XDP: i32 = 44;
    matches!(family, AF_XDP | libc::AF_RDS)
}

/// Files, pipes, terminals, and the devices that every program has.
fn is_harmless_file(fd: RawFd) -> bool {
    // SAFETY: all zeros is a valid stat, filled by the call.
    let (asked, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut status), status)
    };
    if asked != 0 || status.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return true;
    }
    is_harmless_device(libc::major(status.st_rdev), libc::minor(status.st_rdev))
}

/// By the numbers of a character device.
fn is_harmless_device(major: u32, minor: u32) -> bool {
    match (major, minor) {
        // null, zero, full, random, urandom, kmsg.
        (1, minor) => matches!(minor, 3 | 5 | 7 | 8 | 9 | 11),
        // Terminals, of serial lines, USB and hypervisors as well.
        (4 | 5 | 136..=143 | 188 | 204 | 229, _) => true,
        // tun.
        (10, minor) => minor == 200,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn devices_that_are_not_known_hold_pages() {
        for path in ["/dev/null", "/dev/urandom", "/proc/self/maps"] {
            let file = std::fs::File::open(path).expect("every system has it");
            assert!(is_harmless_file(file.as_raw_fd()), "{path}");
        }
        // mem, SCSI devices as such (sg), video, graphics (dri), NVIDIA, verbs, VFIO, FUSE, KVM.
        let others =
            [(1, 1), (21, 0), (81, 0), (226, 128), (195, 255), (231, 192), (10, 196), (10, 229), (10, 232)];
        for (major, minor) in others {
            assert!(!is_harmless_device(major, minor), "{major}:{minor}");
        }
        for (major, minor) in [(1, 3), (4, 64), (5, 2), (136, 0), (10, 200)] {
            assert!(is_harmless_device(major, minor), "{major}:{minor}");
        }
    }

    #[test]
    fn sockets_that_place_data_in_memory_hold_pages() {
        assert!(places_data(44) && places_data(libc::AF_RDS));
        let others = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET];
        assert!(others.into_iter().all(|family| !places_data(family)));
    }
}
