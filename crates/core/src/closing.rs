//! Descriptors whose close(2) may wait as long as another process wishes: a TCP socket lingers (`SO_LINGER`),
//! a file of a FUSE file system asks its server.
//!
//! Other processes pass such descriptors by the sockets of [`crate::seqpacket`]. A thread of its own closes
//! them, and it may hang. No other thread does.

use crate::fork;
use crate::helpers::{self, Helpers};
use crate::log;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// While so many descriptors wait for their close, no process is let in that may bring more. Those of the
/// processes that are in come on top.
const MOST_WAITING: usize = 128;

/// The closing thread, and the descriptors that it closes. Lives for ever.
#[derive(Default)]
struct Closer {
    state: Mutex<State>,
    more: Condvar,
    /// Descriptors in the queue, and the one that the thread closes at this instant.
    waiting: AtomicUsize,
    /// Stands in for those of the engine in a process without one.
    helpers: Helpers,
    has_warned: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<RawFd>,
    thread: ThreadState,
}

/// Whether the closing thread exists.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ThreadState {
    /// Nothing was to be closed yet, or the system has refused the thread.
    #[default]
    Absent,
    /// The thread closes, or waits for more.
    Running,
}

static CLOSER: AtomicPtr<Closer> = AtomicPtr::new(std::ptr::null_mut());

/// Forgets the closing thread, in a child of fork, which has none: a store alone.
pub(crate) fn forget() {
    CLOSER.store(std::ptr::null_mut(), Ordering::Release);
}

fn existing() -> Option<&'static Closer> {
    // SAFETY: the pointer is null or a leaked closer that is never freed.
    unsafe { CLOSER.load(Ordering::Acquire).as_ref() }
}

fn closer() -> &'static Closer {
    existing().unwrap_or_else(|| {
        let made = Box::into_raw(Box::<Closer>::default());
        match CLOSER.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked above, and never freed.
            Ok(_) => unsafe { &*made },
            // SAFETY: `made` came from Box::into_raw and no other thread has seen it; `other` is never freed.
            Err(other) => unsafe {
                drop(Box::from_raw(made));
                &*other
            },
        }
    })
}

/// How many descriptors wait for their close.
pub(crate) fn waiting() -> usize {
    existing().map_or(0, |closer| closer.waiting.load(Ordering::Relaxed))
}

/// Whether so many descriptors wait for their close that this process takes no more.
pub(crate) fn is_full() -> bool {
    waiting() >= MOST_WAITING
}

/// Gives a descriptor that no other part of the process uses any more to the closing thread. Never waits for
/// its close.
#[cold]
#[inline(never)]
pub(crate) fn hand_over(fd: RawFd) {
    let closer = closer();
    let waiting = closer.waiting.fetch_add(1, Ordering::Relaxed) + 1;
    let mut state = closer.state();
    state.queue.push_back(fd);
    if state.thread == ThreadState::Absent {
        state.thread = ThreadState::Running;
        drop(state);
        let helpers = helpers::CURRENT.get().unwrap_or(&closer.helpers);
        if helpers.spawn("adverb-close", || closer.run()).is_err() {
            // The next descriptor has it tried again.
            closer.state().thread = ThreadState::Absent;
        }
    } else {
        drop(state);
        closer.more.notify_one();
    }
    if waiting >= MOST_WAITING && !closer.has_warned.swap(true, Ordering::Relaxed) {
        log!(
            Warn,
            "{waiting} descriptors that other processes have passed do not close: until they do, processes of this host are not let in"
        );
    }
}

impl Closer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            let Some(fd) = state.queue.pop_front() else {
                state = self.more.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            drop(state);
            fork::disown_descriptor(fd);
            // SAFETY: it was handed over, and no other thread uses it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            state = self.state();
        }
    }
}

/// A descriptor that another process has passed, of any kind. The closing thread closes it, unless its close
/// cannot wait.
#[derive(Debug)]
pub struct PassedFd(RawFd);

impl PassedFd {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into_raw_fd())
    }

    /// The descriptor, if it is one of memory: a memfd, or a file of a tmpfs. Its close does not wait.
    pub fn into_memory(self) -> Option<OwnedFd> {
        self.is_memory().then(|| self.into_owned())
    }

    /// The descriptor, if it is an eventfd(2). Its close does not wait.
    pub fn into_event(self) -> Option<OwnedFd> {
        self.is_event().then(|| self.into_owned())
    }

    fn into_owned(self) -> OwnedFd {
        let fd = self.0;
        std::mem::forget(self);
        // SAFETY: it was ours alone, and is forgotten.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// Only such files have seals.
    fn is_memory(&self) -> bool {
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(self.0, libc::F_GET_SEALS) >= 0 }
    }

    /// The kernel alone gives a name without a slash in front.
    fn is_event(&self) -> bool {
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", self.0));
        kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]")
    }
}

impl AsFd for PassedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for PassedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for PassedFd {
    fn drop(&mut self) {
        if self.is_memory() || self.is_event() {
            // SAFETY: ours alone; no other thread uses it any more.
            unsafe { libc::syscall(libc::SYS_close, self.0) };
        } else {
            hand_over(self.0);
        }
    }
}
