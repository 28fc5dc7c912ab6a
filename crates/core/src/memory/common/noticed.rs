//! Tests of the effects that a program notices when a peer maps its shared memory: SECURITY.md lists them.

use super::tests::*;
use super::*;
use crate::conformance::{rounds, runs_again};
use std::os::fd::OwnedFd;

/// The count of shmctl(2).
fn attached(segment: i32) -> u64 {
    // SAFETY: all zeros is a valid structure, filled by the call.
    unsafe {
        let mut status: libc::shmid_ds = std::mem::zeroed();
        assert_eq!(libc::shmctl(segment, libc::IPC_STAT, &raw mut status), 0);
        status.shm_nattch as u64
    }
}

/// In a process of its own: a child of fork counts as attached, too, and tests beside this one have such
/// children.
#[test]
fn a_peer_counts_as_attached_and_memory_that_the_program_gives_up_stays() {
    if rounds().is_none() {
        let own =
            "memory::common::noticed::a_peer_counts_as_attached_and_memory_that_the_program_gives_up_stays";
        return runs_again(own, &[], 1);
    }
    if !is_asked() {
        return;
    }
    let address = segment();
    let here = wanted(address);
    let number = here.first.file.inode as i32;
    assert_eq!(attached(number), 1);
    let view = apart(move || here.attach()).unwrap();
    assert_eq!(attached(number), 2);
    view.write(3, b"stays").unwrap();
    // SAFETY: the test's own.
    assert_eq!(unsafe { libc::shmdt(address as *const _) }, 0);
    let mut found = [0; 5];
    view.read(3, &mut found).unwrap();
    assert_eq!((&found, attached(number)), (b"stays", 1));
    drop(view);
    // SAFETY: as in `attached`.
    let gone = unsafe {
        let mut status: libc::shmid_ds = std::mem::zeroed();
        libc::shmctl(number, libc::IPC_STAT, &raw mut status)
    };
    assert_eq!(gone, -1, "it goes with its last user");
}

#[test]
fn a_peer_opens_the_file_which_inotify_reports() {
    if !is_asked() {
        return;
    }
    let file = in_tmpfs();
    let address = shared(&file);
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    // SAFETY: plain numbers and a C string; a fresh descriptor.
    let watch = unsafe {
        let watch = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        assert!(watch >= 0 && libc::inotify_add_watch(watch, path.as_ptr(), libc::IN_OPEN) >= 0);
        OwnedFd::from_raw_fd(watch)
    };
    let is_told = || {
        let mut event = [0u8; 4096];
        // SAFETY: fills a live local.
        unsafe { libc::read(watch.as_raw_fd(), event.as_mut_ptr().cast(), event.len()) > 0 }
    };
    assert!(!is_told());
    let common = open(address, LENGTH).unwrap();
    assert!(is_told());
    // Uses of it do not open it again.
    is_the_same(&common, address);
    assert!(!is_told());
}

/// The system tells the program, and the kernel copies until the program has given its lease up. No thread
/// waits.
#[test]
fn a_lease_of_the_program_ends() {
    /// F_SETSIG of <linux/fcntl.h>.
    const SET_SIGNAL: i32 = 10;
    if !is_asked() {
        return;
    }
    let file = in_tmpfs();
    let (fd, address) = (file.as_raw_fd(), shared(&file));
    // SAFETY: plain numbers. The signal is ignored by default.
    unsafe {
        assert_eq!(libc::fcntl(fd, SET_SIGNAL, libc::SIGURG), 0);
        let leased = libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK);
        assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::fcntl(fd, libc::F_GETLEASE), libc::F_WRLCK);
        assert!(open(address, LENGTH).is_err());
        assert_eq!(libc::fcntl(fd, libc::F_GETLEASE), libc::F_UNLCK, "it is to end");
        assert_eq!(libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK), 0);
    }
    is_the_same(&open(address, LENGTH).unwrap(), address);
}

/// A guard page (MADV_GUARD_INSTALL) is one of the program's mapping, not of the file. A kernel before 6.15
/// has none in shared memory.
#[test]
fn a_peer_may_write_to_a_guard_page() {
    const INSTALL: i32 = 102;
    const REMOVE: i32 = 103;
    if !is_asked() {
        return;
    }
    let (process, file) = (own(), memfd(0));
    let address = shared(&file);
    let common = open(address, LENGTH).unwrap();
    // SAFETY: a page of the test's.
    let advise = |advice| unsafe { libc::madvise((address + PAGE) as *mut _, PAGE, advice) };
    let is_guarded = advise(INSTALL) == 0;
    let errno = std::io::Error::last_os_error().raw_os_error();
    assert!(is_guarded || errno == Some(libc::EINVAL), "{errno:?}");
    let mut byte = [0];
    // SAFETY: a page of the test's, or a fault.
    let is_missing = unsafe { crate::memory::copy_from(&mut byte, address + PAGE).is_err() };
    assert_eq!(is_missing, is_guarded);
    let (view, at) = common.at(&process, PAGE, 4, true).unwrap();
    view.write(at, b"peer").unwrap();
    if is_guarded {
        assert_eq!(advise(REMOVE), 0);
    }
    is_the_same(&common, address);
    assert_eq!(self::byte(address + PAGE), b'p');
}
