//! epoll(7) with rsockets.
//!
//! Every set that the program makes is known here, and has a list of its rsockets. As long as that is empty,
//! the kernel waits alone; else librdmacm does, for the rsockets and for the kernel's set together. Edges are
//! found by what the program does: what it has been told is news again after it has received or sent, so now
//! and then it is told once too often, never too seldom. A set with rsockets may not be waited for by poll or
//! another set.

mod interest;
mod set;

use crate::barrier::Barrier;
use crate::{errno, library, signals, table};
use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};
use set::Set;
use std::collections::HashMap;
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

type Sets = RwLock<HashMap<c_int, Arc<Set>>>;

/// By their descriptors. Null before the first; never freed.
static SETS: AtomicPtr<Sets> = AtomicPtr::new(null_mut());

fn sets() -> &'static Sets {
    let known = SETS.load(Ordering::Acquire);
    if known.is_null() {
        let made = Box::into_raw(Box::default());
        match SETS.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked, and never freed.
            Ok(_) => return unsafe { &*made },
            // SAFETY: nobody has seen it.
            Err(_) => drop(unsafe { Box::from_raw(made) }),
        }
    }
    // SAFETY: leaked above, and never freed.
    unsafe { &*SETS.load(Ordering::Acquire) }
}

/// A child of fork begins with none: locks of the parent's threads may be held for ever.
pub(crate) fn forget() {
    SETS.store(null_mut(), Ordering::Release);
}

fn find(fd: c_int) -> Option<Arc<Set>> {
    if !table::is_epoll(fd) {
        return None;
    }
    sets().read().unwrap_or_else(|e| e.into_inner()).get(&fd).cloned()
}

fn know(fd: c_int) -> Arc<Set> {
    table::set_epoll(fd);
    sets().write().unwrap_or_else(|e| e.into_inner()).entry(fd).or_default().clone()
}

/// A set's descriptor is nothing any more.
pub(crate) fn closed(fd: c_int) {
    sets().write().unwrap_or_else(|e| e.into_inner()).remove(&fd);
}

/// A descriptor is a copy of a set's now.
pub(crate) fn copied(from: c_int, to: c_int) {
    if let Some(set) = find(from) {
        table::set_epoll(to);
        sets().write().unwrap_or_else(|e| e.into_inner()).insert(to, set);
    }
}

/// The program has done with an rsocket what may change the edges that it is told.
pub(crate) fn touched(fd: c_int, events: u32) {
    for set in sets().read().unwrap_or_else(|e| e.into_inner()).values() {
        set.lock().touched(fd, events);
    }
}

/// What stood for an rsocket is an ordinary socket from now on.
pub(crate) fn hand_over(fd: c_int, found: table::Rsocket) {
    for (set, known) in sets().read().unwrap_or_else(|e| e.into_inner()).iter() {
        known.lock().hand_over(*set, fd, found.generation());
    }
}

/// A thread's wait for a set.
struct Wait<'a> {
    set: &'a Set,
    version: u64,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.set.lock().end(self.version);
    }
}

/// epoll_wait(2).
///
/// # Safety
/// `mask` is NULL or valid.
unsafe fn wait(
    fd: c_int,
    set: &Set,
    room: &mut [epoll_event],
    milliseconds: c_int,
    mask: *const sigset_t,
) -> c_int {
    let whole = u64::try_from(milliseconds).ok().map(Duration::from_millis);
    let end = whole.map(|whole| Instant::now() + whole);
    loop {
        let left = end.map_or(-1, |end| {
            let left = end.saturating_duration_since(Instant::now());
            left.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int
        });
        let (version, mut list, descriptors) = set.lock().begin();
        let stay = Wait { set, version };
        let mut found = if list.is_empty() {
            // SAFETY: the caller's promise; a live slice.
            let found =
                unsafe { library::epoll_pwait(fd, room.as_mut_ptr(), room.len() as c_int, left, mask) };
            set::without_bell(room, found)
        } else {
            list.push(pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: the caller's promise.
            unsafe { signals::wait(&mut list, left, mask) }
        };
        drop(stay);
        if found > 0 && !descriptors.is_empty() {
            found = set.lock().collect(fd, &list, &descriptors, room) as c_int;
        }
        // Woken for a change, or for what another thread has been told.
        if found != 0 || left == 0 {
            return found;
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let fd = unsafe { library::epoll_create(size) };
    if fd >= 0 {
        // A set of before, which was closed where nobody was asked.
        closed(fd);
        know(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    let _barrier = Barrier;
    // SAFETY: plain numbers.
    let fd = unsafe { library::epoll_create1(flags) };
    if fd >= 0 {
        // A set of before, which was closed where nobody was asked.
        closed(fd);
        know(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let _barrier = Barrier;
    let Some(found) = table::find(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { library::epoll_ctl(set, operation, fd, event) };
    };
    // Also one that was made where nobody was asked: before a fork, or by a system call.
    let known = find(set).unwrap_or_else(|| know(set));
    // SAFETY: NULL or the caller's.
    match known.lock().control(set, operation, fd, found, unsafe { event.as_ref() }) {
        0 => 0,
        number => errno::fail(number),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let _barrier = Barrier;
    match find(set) {
        Some(known) if most > 0 && !events.is_null() => {
            // SAFETY: the caller's room for as many events.
            let room = unsafe { slice::from_raw_parts_mut(events, most as usize) };
            // SAFETY: the caller's arguments.
            unsafe { wait(set, &known, room, timeout, mask) }
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { library::epoll_pwait(set, events, most, timeout, mask) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe { epoll_pwait(set, events, most, timeout, null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let _barrier = Barrier;
    // SAFETY: the caller's arguments.
    unsafe {
        match find(set) {
            Some(_) => epoll_pwait(set, events, most, signals::milliseconds(timeout), mask),
            None => library::epoll_pwait2(set, events, most, timeout, mask),
        }
    }
}
