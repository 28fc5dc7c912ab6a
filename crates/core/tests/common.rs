//! Memory that a program shares by itself is mapped and given up again and again, and nothing stays.

use adverb_core::memory::common::{self, Common};
use adverb_core::memory::process::{self, Process};
use adverb_core::{engine, null};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const LENGTH: usize = 4 << 12;
const TIMES: usize = 10_000;

/// Descriptors, mappings and threads of this process.
fn counts() -> [usize; 3] {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    [entries("/proc/self/fd"), mappings, entries("/proc/self/task")]
}

#[test]
fn nothing_grows_with_the_number_of_registrations() {
    engine::install(&[null::FACTORY]);
    assert!(engine::engine().is_ok());
    let mark = 0x1234_5678_9abc_def0u64;
    let number = std::process::id() as libc::pid_t;
    let process = Process::open(number, (&raw const mark as u64, mark), process::gate()).unwrap();
    // SAFETY: a C string and plain numbers; fresh, and nobody else's.
    let address = unsafe {
        let file = OwnedFd::from_raw_fd(libc::memfd_create(c"common".as_ptr(), libc::MFD_CLOEXEC));
        assert_eq!(libc::ftruncate(file.as_raw_fd(), LENGTH as i64), 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let address =
            libc::mmap(std::ptr::null_mut(), LENGTH, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(address, libc::MAP_FAILED);
        // It stays open, for those who have no right to /proc/PID/map_files.
        std::mem::forget(file);
        address as u64
    };
    let use_once = || {
        let common = Common::open(&process, address, LENGTH as u64, true).unwrap();
        let (view, at) = common.at(&process, 8, 8, true).unwrap();
        view.fetch_add(at, 1).unwrap();
    };
    if common::may_be_had().is_err() {
        return assert!(Common::open(&process, address, LENGTH as u64, true).is_err());
    }
    (0..100).for_each(|_| use_once());
    let before = counts();
    (0..TIMES).for_each(|_| use_once());
    let after = counts();
    for (before, after) in before.iter().zip(after) {
        assert!(after <= before + 16, "{before} before, {after} after");
    }
    // SAFETY: memory of the test.
    assert_eq!(unsafe { *(address as *const u64).add(1) }, (TIMES + 100) as u64);
}
