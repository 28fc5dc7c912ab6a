//! Sleeping until something happens to sockets.
//!
//! A thread sleeps in poll(2), on the descriptors of the sockets that it waits for: where things arrive, if
//! that is a descriptor, and what becomes readable with the next event once the socket is armed; and on one
//! of its own. Of two threads that wait for one socket, one takes the event away before the other has seen
//! it, so the thread that takes an event wakes the others by their own descriptors.

use crate::process::Process;
use adverb_core::cancel::CancellationGuard;
use adverb_core::cq::SleepGuard;
use adverb_core::error::{Error, Result};
use adverb_core::fork::ForkGeneration;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// What poll(2) calls readable and writable, in both words that it has for each.
pub(crate) const CAN_READ: i16 = libc::POLLIN | libc::POLLRDNORM;
pub(crate) const CAN_WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// Something to wait for.
pub(crate) trait Waitable {
    /// Takes in what has come, and says which of `events` (and of errors) are there, in the words of poll(2).
    fn look(&self, events: i16) -> i16;
    /// From now on the descriptors tell of what comes, until the guard is dropped.
    fn arm(&self) -> Option<SleepGuard>;
    /// The descriptors that become ready with the next event.
    fn descriptors(&self, list: &mut Vec<libc::pollfd>);
    /// Takes the event away, since some of the descriptors are ready.
    fn take_event(&self, ready: &[libc::pollfd]);
    /// The last look has left something: what is told by the descriptors may have been told already.
    fn has_more(&self) -> bool;
    /// The threads that wait for it.
    fn waiters(&self) -> &Waiters;
}

/// Calls `one`, which takes in a part of what has come and says whether there may be more, so often that a
/// queue is emptied, and not for as long as a peer goes on. Whether there may be more.
pub(crate) fn in_turn(mut one: impl FnMut() -> bool) -> bool {
    const MOST: usize = 256;
    (0..MOST).all(|_| one())
}

/// A thread that waits, by a descriptor of its own.
pub(crate) struct Waiter {
    wake: OwnedFd,
    born: ForkGeneration,
}

impl Waiter {
    fn new() -> Result<Arc<Self>> {
        // SAFETY: plain numbers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(Error::system("eventfd"));
        }
        // SAFETY: just made, and nobody else's.
        Ok(Arc::new(Self { wake: unsafe { OwnedFd::from_raw_fd(wake) }, born: ForkGeneration::now() }))
    }

    /// The waiter of the calling thread, made by its first call.
    fn current() -> Result<Arc<Self>> {
        thread_local! {
            static CURRENT: RefCell<Option<Arc<Waiter>>> = const { RefCell::new(None) };
        }
        let known = CURRENT
            .try_with(|current| current.borrow().as_ref().filter(|waiter| waiter.born.is_here()).cloned());
        match known {
            Ok(Some(waiter)) => Ok(waiter),
            // The thread is ending: one for this call alone.
            Err(_) => Self::new(),
            Ok(None) => {
                let made = Self::new()?;
                let _ = CURRENT.try_with(|current| *current.borrow_mut() = Some(made.clone()));
                Ok(made)
            }
        }
    }

    fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a live local. As a plain system call it is no cancellation point.
        unsafe { libc::syscall(libc::SYS_write, self.wake.as_raw_fd(), &raw const one, 8usize) };
    }

    fn reset(&self) {
        let mut count = 0u64;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_read, self.wake.as_raw_fd(), &raw mut count, 8usize) };
    }
}

/// The threads that wait for a socket.
#[derive(Default)]
pub(crate) struct Waiters(Mutex<Vec<Arc<Waiter>>>);

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Wakes them all.
    pub(crate) fn wake(&self) {
        self.lock().iter().for_each(|waiter| waiter.wake());
    }

    fn wake_others(&self, me: &Arc<Waiter>) {
        self.lock().iter().filter(|waiter| !Arc::ptr_eq(waiter, me)).for_each(|waiter| waiter.wake());
    }

    fn enter(&self, waiter: &Arc<Waiter>) {
        self.lock().push(waiter.clone());
    }

    fn leave(&self, waiter: &Arc<Waiter>) {
        let mut all = self.lock();
        if let Some(place) = all.iter().position(|other| Arc::ptr_eq(other, waiter)) {
            all.swap_remove(place);
        }
    }
}

/// A thread's stay among the waiters of some sockets.
struct Stay<'a, W: Waitable> {
    on: &'a [W],
    waiter: Arc<Waiter>,
    sleeps: Vec<SleepGuard>,
}

impl<'a, W: Waitable> Stay<'a, W> {
    fn begin(on: &'a [W]) -> Result<Self> {
        let waiter = Waiter::current()?;
        on.iter().for_each(|socket| socket.waiters().enter(&waiter));
        Ok(Self { on, waiter, sleeps: Vec::with_capacity(on.len()) })
    }
}

impl<W: Waitable> Drop for Stay<'_, W> {
    fn drop(&mut self) {
        self.on.iter().for_each(|socket| socket.waiters().leave(&self.waiter));
    }
}

/// Functions of libc in which a thread may be cancelled, which unwinds through the caller.
mod cancellable {
    unsafe extern "C-unwind" {
        pub(super) fn poll(list: *mut libc::pollfd, count: libc::nfds_t, milliseconds: i32) -> i32;
    }
}

/// poll(2), a cancellation point: how many are ready.
pub(crate) fn system_poll(list: &mut [libc::pollfd], milliseconds: i32) -> Result<usize> {
    // SAFETY: a live slice.
    match unsafe { cancellable::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, milliseconds) } {
        n if n < 0 => Err(Error::system("poll")),
        n => Ok(n as usize),
    }
}

/// Milliseconds until `deadline`, rounded up; for ever without one.
pub(crate) fn milliseconds_until(deadline: Option<Instant>) -> i32 {
    deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        left.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32
    })
}

/// Sleeps until `done` says something, asking it whenever something has happened to one of `sockets`, or one
/// of `others` is ready, and once at first. Nothing at the deadline. With no lock held: the sleep is a
/// cancellation point.
///
/// # Errors
/// EINTR when a signal handler ran.
pub(crate) fn sleep_until<W: Waitable, T>(
    sockets: &[W],
    others: &mut [libc::pollfd],
    deadline: Option<Instant>,
    mut done: impl FnMut(&mut [libc::pollfd]) -> Option<T>,
) -> Result<Option<T>> {
    let mut stay = Stay::begin(sockets)?;
    let mut list = Vec::with_capacity(sockets.len() + others.len() + 1);
    // Where the descriptors of each socket end.
    let mut ends = Vec::with_capacity(sockets.len());
    loop {
        {
            let _whole = CancellationGuard::new();
            stay.sleeps.extend(sockets.iter().filter_map(Waitable::arm));
            if let Some(found) = done(others) {
                return Ok(Some(found));
            }
            list.clear();
            ends.clear();
            for socket in sockets {
                socket.descriptors(&mut list);
                ends.push(list.len());
            }
            list.push(pollfd(stay.waiter.wake.as_raw_fd()));
            list.extend_from_slice(others);
        }
        let milliseconds = milliseconds_until(deadline);
        let has_more = sockets.iter().any(Waitable::has_more);
        if milliseconds == 0
            || system_poll(&mut list, if has_more { 0 } else { milliseconds })? == 0 && !has_more
        {
            return Ok(None);
        }
        let _whole = CancellationGuard::new();
        // What comes in now is taken in here: no event need tell of it.
        stay.sleeps.clear();
        let mut start = 0;
        for (socket, end) in sockets.iter().zip(&ends) {
            let own = &list[start..*end];
            if own.iter().any(|entry| entry.revents != 0) {
                socket.take_event(own);
                socket.waiters().wake_others(&stay.waiter);
            }
            start = *end;
        }
        // Behind those of the sockets.
        if list[start].revents != 0 {
            stay.waiter.reset();
        }
        others.copy_from_slice(&list[start + 1..]);
        if let Some(found) = done(others) {
            return Ok(Some(found));
        }
    }
}

/// Tries `attempt` until it says something; sleeps in between, unless it is not to wait.
///
/// # Errors
/// Those of `attempt`; EAGAIN instead of waiting; EINTR.
pub(crate) fn blocking<W: Waitable, T>(
    socket: W,
    nonblocking: bool,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut once = || {
        let _whole = CancellationGuard::new();
        attempt().transpose()
    };
    if let Some(outcome) = once() {
        return outcome;
    }
    if nonblocking {
        return Err(Error::new(libc::EAGAIN, "the call would have to wait"));
    }
    let start = Instant::now();
    while start.elapsed() < Process::get().configuration.polling {
        if let Some(outcome) = once() {
            return outcome;
        }
    }
    loop {
        if let Some(outcome) = sleep_until(std::slice::from_ref(&socket), &mut [], None, |_| once())? {
            return outcome;
        }
    }
}

/// An entry of poll(2) that waits for something to read.
pub(crate) fn pollfd(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    /// A socket whose peer never stops.
    #[derive(Default)]
    struct Busy {
        looks: Cell<u32>,
        waiters: Waiters,
    }

    impl Waitable for Busy {
        fn look(&self, _: i16) -> i16 {
            in_turn(|| true);
            self.looks.set(self.looks.get() + 1);
            0
        }

        fn arm(&self) -> Option<SleepGuard> {
            None
        }

        fn descriptors(&self, _: &mut Vec<libc::pollfd>) {}

        fn take_event(&self, _: &[libc::pollfd]) {}

        fn has_more(&self) -> bool {
            true
        }

        fn waiters(&self) -> &Waiters {
            &self.waiters
        }
    }

    #[test]
    fn a_peer_that_never_stops_keeps_nobody_beyond_his_time() {
        let busy = [Busy::default()];
        let deadline = Some(Instant::now() + Duration::from_millis(20));
        let found = sleep_until(&busy, &mut [], deadline, |_| {
            busy[0].look(CAN_READ);
            None::<()>
        });
        assert!(matches!(found, Ok(None)), "the time is over");
        // Nothing tells of what is left, so nobody sleeps before it is taken in.
        let found = sleep_until(&busy, &mut [], None, |_| {
            (busy[0].look(CAN_READ) == 0 && busy[0].looks.get() > 10_000).then_some(())
        });
        assert!(matches!(found, Ok(Some(()))));
    }

    #[test]
    fn a_queue_is_emptied_and_nothing_is_left() {
        let mut left = 100;
        let mut one = || {
            left -= 1;
            left > 0
        };
        assert!(!in_turn(&mut one));
        assert_eq!(left, 0);
    }
}
