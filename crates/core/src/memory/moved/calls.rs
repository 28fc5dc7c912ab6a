//! System calls on mappings, made without libc's functions, since programs put their own in the place of
//! those. UCX does, to hear of memory that goes away. It would take a page that we exchange for one that the
//! program has unmapped, and its `mremap` forgets the fifth argument.
//!
//! All are as their namesakes of libc, down to errno.

use std::ffi::c_void;

/// mmap(2).
///
/// # Safety
/// As there: a mapping that was at a fixed address is gone.
pub(super) unsafe fn mmap(
    address: *mut c_void,
    length: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: i64,
) -> *mut c_void {
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, descriptor, offset) as *mut _ }
}

/// mremap(2) to a place of the caller's choice.
///
/// # Safety
/// As there: a mapping that was at `target` is gone.
pub(super) unsafe fn mremap(
    address: *mut c_void,
    length: usize,
    new_length: usize,
    flags: i32,
    target: *mut c_void,
) -> *mut c_void {
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_mremap, address, length, new_length, flags, target) as *mut _ }
}

/// munmap(2).
///
/// # Safety
/// As there: no thread uses these bytes any more.
pub(super) unsafe fn munmap(address: *mut c_void, length: usize) -> i32 {
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_munmap, address, length) as i32 }
}

/// madvise(2).
///
/// # Safety
/// As there: some advice changes bytes.
pub(super) unsafe fn madvise(address: *mut c_void, length: usize, advice: i32) -> i32 {
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) as i32 }
}
