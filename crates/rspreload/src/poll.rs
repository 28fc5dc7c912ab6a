//! poll(2) and its relatives: lists with rsockets go to librdmacm, which waits for rsockets and ordinary
//! descriptors together.

use crate::barrier::Barrier;
use crate::{library, signals, table, transfer};
use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use std::slice;

/// The list, if it has an rsocket.
///
/// # Safety
/// As for poll(2).
unsafe fn with_rsockets<'a>(list: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if list.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { slice::from_raw_parts_mut(list, count as usize) };
    list.iter().any(|entry| table::find(entry.fd).is_some()).then_some(list)
}

/// Waits for a list that has rsockets.
///
/// # Safety
/// `mask` is NULL or valid.
pub(crate) unsafe fn wait(list: &mut [pollfd], milliseconds: c_int, mask: *const sigset_t) -> c_int {
    let number = |fd| table::find(fd).map_or(fd, |found| found.number());
    let mut numbers: Vec<_> = list.iter().map(|entry| pollfd { fd: number(entry.fd), ..*entry }).collect();
    // SAFETY: the caller's promise.
    let ready = unsafe { signals::wait(&mut numbers, milliseconds, mask) };
    if ready >= 0 {
        for (entry, found) in list.iter_mut().zip(&numbers) {
            entry.revents = found.revents;
        }
    }
    ready
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe {
        match with_rsockets(list, count) {
            Some(list) => wait(list, timeout, std::ptr::null()),
            None => library::poll(list, count, timeout),
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ppoll(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe {
        match with_rsockets(list, count) {
            Some(list) => wait(list, signals::milliseconds(timeout), mask),
            None => library::ppoll(list, count, timeout, mask),
        }
    }
}

/// What a compiler calls that knows how long the list is (_FORTIFY_SOURCE).
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    let _barrier = Barrier;
    if room / size_of::<pollfd>() < count as usize {
        transfer::overflow();
    }
    // SAFETY: the caller's arguments.
    unsafe { poll(list, count, timeout) }
}

/// The function that compilers call in place of ppoll(2), as with [`__poll_chk`].
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    let _barrier = Barrier;
    if room / size_of::<pollfd>() < count as usize {
        transfer::overflow();
    }
    // SAFETY: the caller's arguments.
    unsafe { ppoll(list, count, timeout, mask) }
}
