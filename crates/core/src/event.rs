//! Queues of events that a program waits for on a real descriptor: completion channels, asynchronous events,
//! connection events.

use crate::descriptor::above_all;
use crate::error::{Error, Result};
use crate::fork::ForkGeneration;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};

/// Functions of libc in which a thread may be cancelled: the cancellation unwinds through the caller, which
/// only this ABI permits.
mod cancellable {
    use core::ffi::{c_int, c_void};

    // Newer compilers want `read` as the standard library declares it, which says that it never unwinds.
    #[allow(unknown_lints, invalid_runtime_symbol_definitions)]
    unsafe extern "C-unwind" {
        pub(super) fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
        pub(super) fn poll(list: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
        pub(super) fn ppoll(
            list: *mut libc::pollfd,
            count: libc::nfds_t,
            time: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
    }
}

/// A queue of events whose descriptor is readable while events wait.
///
/// The descriptor is an eventfd in semaphore mode, one token for each event; a program may poll it, put it
/// into epoll or make it non-blocking with fcntl(2). It stays open in a child of fork, as the kernel's does.
/// Thread-safe.
pub struct EventQueue<T> {
    tokens: OwnedFd,
    waiting: Mutex<Waiting<T>>,
    born: ForkGeneration,
}

/// The events that wait. All have a token but those that are withheld.
struct Waiting<T> {
    events: VecDeque<T>,
    /// Threads in [`EventQueue::take_after`], which need no token to find an event.
    takers: usize,
    /// Tokens that are not there for their sake: one for each of them at most.
    withheld: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { events: VecDeque::new(), takers: 0, withheld: 0 }
    }
}

impl<T> EventQueue<T> {
    /// An empty queue. Fails when the process is out of descriptors (EMFILE).
    pub fn new() -> Result<Self> {
        // SAFETY: eventfd(2) takes plain numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Error::system("eventfd"));
        }
        // SAFETY: `fd` is fresh, and has no other owner.
        let tokens = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { tokens, waiting: Mutex::default(), born: ForkGeneration::now() })
    }

    /// An empty queue whose descriptor has a greater number than all open descriptors, if there is such a
    /// number ([`above_all`]). Fails when the process is out of descriptors (EMFILE).
    pub fn new_above_all() -> Result<Self> {
        let queue = Self::new()?;
        Ok(Self { tokens: above_all(queue.tokens), ..queue })
    }

    /// The descriptor that is readable while an event waits.
    pub fn descriptor(&self) -> RawFd {
        self.tokens.as_raw_fd()
    }

    /// Adds an event and wakes one waiter. No cancellation point: it is called with locks held.
    pub fn push(&self, event: T) {
        let mut waiting = self.lock();
        waiting.events.push_back(event);
        if waiting.withheld < waiting.takers {
            waiting.withheld += 1;
            return;
        }
        // Under the lock: a thread that withdraws the event withdraws its token, too.
        // The counter cannot overflow: one token for each event in memory.
        add_token(self.descriptor());
    }

    /// Takes the oldest event; waits for one unless the program made the descriptor non-blocking (then
    /// EAGAIN). The wait is a read(2), so it is a cancellation point and a signal handler ends it with EINTR.
    pub fn wait(&self) -> Result<T> {
        self.wait_with(|_| ())
    }

    /// Takes the oldest event, as [`EventQueue::wait`] does, and calls `taken` at the instant when the event
    /// can no longer be withdrawn. If `taken` counts events, a thread that withdraws an object's events and
    /// then reads the count knows of every event that is out. `taken` must not drop an object that withdraws
    /// events.
    pub fn wait_with(&self, mut taken: impl FnMut(&T)) -> Result<T> {
        self.born.check()?;
        loop {
            let mut token = 0u64;
            // SAFETY: eight bytes of a live local.
            if unsafe { cancellable::read(self.descriptor(), (&raw mut token).cast(), 8) } != 8 {
                return Err(Error::system("waiting for an event"));
            }
            if let Err(error) = self.born.check() {
                // A signal handler has forked: in the child, the wait went on, and took a token that is its
                // parent's.
                add_token(self.descriptor());
                return Err(error);
            }
            // The event of this token may have been withdrawn between the read and the lock.
            let mut waiting = self.lock();
            if let Some(event) = waiting.events.pop_front() {
                taken(&event);
                return Ok(event);
            }
        }
    }

    /// Whether none waits. No system call.
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }

    /// Whether a wait is to sleep: the program has not made the descriptor non-blocking.
    pub fn blocks(&self) -> bool {
        // SAFETY: an open descriptor.
        let flags = unsafe { libc::fcntl(self.descriptor(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK == 0
    }

    /// Has `bring` add events, or none, and takes the oldest if it has: that event needs no token. Whether
    /// there was one; others may wait, with tokens.
    pub fn take_after(&self, bring: impl FnOnce(), taken: impl FnMut(&T)) -> bool {
        let taker = Taker::new(self);
        bring();
        let mut waiting = taker.0.lock();
        let event = if waiting.withheld > 0 {
            waiting.withheld -= 1;
            waiting.events.pop_front()
        } else {
            None
        };
        event.iter().for_each(taken);
        drop(waiting);
        event.is_some()
    }

    /// Sleeps until an event waits or `other` is readable, if that is a descriptor. Which of them. Meanwhile
    /// the thread's signal mask is `mask`. As for [`EventQueue::wait`], a cancellation point that a signal
    /// handler ends with EINTR, though one with SA_RESTART, too. A signal that is let in by `mask` and has
    /// come before ends it likewise, unless one of the two is ready.
    pub fn sleep_beside(&self, other: RawFd, mask: &libc::sigset_t) -> Result<WakeCause> {
        let mut list =
            [self.descriptor(), other].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        self.sleep(&mut list, None, mask)?;
        Ok(WakeCause { by_event: list[0].revents != 0, by_other: list[1].revents != 0 })
    }

    /// Lets in the signals that have come and that `mask` lets in.
    ///
    /// # Errors
    /// EINTR: a signal handler has run.
    pub fn heed_signals(&self, mask: &libc::sigset_t) -> Result<()> {
        self.sleep(&mut [], Some(libc::timespec { tv_sec: 0, tv_nsec: 0 }), mask)
    }

    fn sleep(
        &self,
        list: &mut [libc::pollfd],
        time: Option<libc::timespec>,
        mask: &libc::sigset_t,
    ) -> Result<()> {
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: live entries, so many; a live time, or none; a mask that has been filled.
        let slept = unsafe { cancellable::ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, time, mask) };
        let slept = if slept < 0 { Err(Error::system("waiting for an event")) } else { Ok(()) };
        // A signal handler may have forked.
        self.born.check()?;
        slept
    }

    /// Takes the oldest event if there is one, as [`EventQueue::wait_with`] does. Whether there was.
    ///
    /// # Errors
    /// Before Linux 5.8 it cannot be done without waiting.
    pub fn take_with(&self, taken: impl FnMut(&T)) -> Result<bool> {
        match self.take_token() {
            Err(error) if error.errno() == libc::EAGAIN => Ok(false),
            Err(error) => Err(error),
            // The event of this token may have been withdrawn between the read and the lock.
            Ok(()) => {
                let mut waiting = self.lock();
                let event = waiting.events.pop_front();
                event.iter().for_each(taken);
                Ok(event.is_some())
            }
        }
    }

    /// Waits until an event is there, without taking it, at most `milliseconds` (negative: for ever). Returns
    /// whether one is.
    pub fn ready(&self, milliseconds: i32) -> Result<bool> {
        self.born.check()?;
        let mut poll = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, a live local.
        match unsafe { cancellable::poll(&raw mut poll, 1, milliseconds) } {
            n if n < 0 => Err(Error::system("waiting for an event")),
            n => Ok(n > 0),
        }
    }

    /// Takes the oldest event if there is one. Never waits, though other threads take events, too.
    pub fn try_next(&self) -> Result<Option<T>> {
        while self.ready(0)? {
            match self.take_token() {
                Ok(()) => {
                    if let Some(event) = self.lock().events.pop_front() {
                        return Ok(Some(event));
                    }
                }
                Err(error) if error.errno() == libc::EAGAIN => {}
                // Before Linux 5.8 there is no such read. An ordinary one takes the token that is there,
                // which may be that of an event that has been withdrawn. It waits only if a thread in `wait`
                // has taken the token since the look.
                Err(_) => {
                    let mut waiting = self.lock();
                    if self.has_token() {
                        let mut token = 0u64;
                        // SAFETY: eight bytes of a live local.
                        unsafe { libc::syscall(libc::SYS_read, self.descriptor(), &raw mut token, 8usize) };
                        if let Some(event) = waiting.events.pop_front() {
                            return Ok(Some(event));
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Whether a token is there. No cancellation point.
    fn has_token(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: live structures, and no signal mask.
        unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, &raw const now, 0, 0) == 1 }
    }

    /// Takes a token without waiting, also from a descriptor in blocking mode. No cancellation point.
    fn take_token(&self) -> Result<()> {
        let mut token = 0u64;
        let into = libc::iovec { iov_base: (&raw mut token).cast(), iov_len: 8 };
        let (descriptor, parts, here) = (self.descriptor(), 1 as libc::c_long, -1 as libc::c_long);
        // SAFETY: one iovec over a live local.
        let count = unsafe {
            libc::syscall(libc::SYS_preadv2, descriptor, &raw const into, parts, here, here, libc::RWF_NOWAIT)
        };
        if count == 8 { Ok(()) } else { Err(Error::system("taking an event")) }
    }

    /// Withdraws the events that `gone` picks: their object is being destroyed. Returns them.
    pub fn withdraw(&self, mut gone: impl FnMut(&T) -> bool) -> Vec<T> {
        if !self.born.is_here() {
            return Vec::new();
        }
        let mut waiting = self.lock();
        let (mut out, mut keep) = (Vec::new(), VecDeque::with_capacity(waiting.events.len()));
        let tokens = waiting.events.len().saturating_sub(waiting.withheld);
        for event in waiting.events.drain(..) {
            if gone(&event) { out.push(event) } else { keep.push_back(event) }
        }
        waiting.events = keep;
        waiting.withheld = waiting.withheld.min(waiting.events.len());
        for _ in waiting.events.len() - waiting.withheld..tokens {
            // Without waiting: a reader may hold the token already; it will find the queue empty and read
            // again.
            let _ = self.take_token();
        }
        out
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The cause of the end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeCause {
    /// An event waits, or did a moment ago.
    pub by_event: bool,
    /// The other descriptor is ready.
    pub by_other: bool,
}

/// A thread in [`EventQueue::take_after`].
struct Taker<'a, T>(&'a EventQueue<T>);

impl<'a, T> Taker<'a, T> {
    fn new(queue: &'a EventQueue<T>) -> Self {
        queue.lock().takers += 1;
        Self(queue)
    }
}

impl<T> Drop for Taker<'_, T> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.takers -= 1;
        if waiting.withheld > waiting.takers {
            waiting.withheld -= 1;
            add_token(self.0.descriptor());
        }
    }
}

/// Waits for an event that never comes: until the thread is cancelled, or a signal handler ends the wait, as
/// in [`EventQueue::wait`].
pub fn wait_in_vain() -> Error {
    static NEVER: OnceLock<Option<EventQueue<()>>> = OnceLock::new();
    match NEVER.get_or_init(|| EventQueue::new().ok()).as_ref().map(EventQueue::wait) {
        Some(Err(error)) => error,
        _ => Error::new(libc::EBADF, "the event channel is destroyed"),
    }
}

/// Adds one to the counter of an eventfd that is never full. Unlike write(2) of the C library it is no
/// cancellation point.
pub(crate) fn add_token(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a live local.
    unsafe { libc::syscall(libc::SYS_write, fd, &raw const one, 8usize) };
}

/// The kind of an event outside of any call (ibv_get_async_event(3)), with the values of
/// `enum ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncEventKind {
    /// A completion queue overran.
    CqError = 0,
    /// A queue pair failed on its own.
    QpFatal = 1,
    /// A request was malformed.
    QpRequestError = 2,
    /// A peer broke an access rule.
    QpAccessError = 3,
    /// The first message arrived before the connection was reported established.
    CommunicationEstablished = 4,
    /// The send queue of a queue pair in SQD is drained.
    SendQueueDrained = 5,
    /// Path migrated.
    PathMigrated = 6,
    /// Path migration failed.
    PathMigrationError = 7,
    /// The device failed.
    DeviceFatal = 8,
    /// The port became active.
    PortActive = 9,
    /// The port went down.
    PortError = 10,
    /// The LID changed.
    LidChange = 11,
    /// The P_Key table changed.
    PkeyChange = 12,
    /// The subnet manager changed.
    SmChange = 13,
    /// A shared receive queue failed.
    SrqError = 14,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// The last receive of a queue pair on a shared receive queue was consumed.
    QpLastWqeReached = 16,
    /// Clients should register again.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
    /// A work queue failed.
    WqFatal = 19,
}

/// An asynchronous event and the object that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of the event.
    pub kind: AsyncEventKind,
    /// The cookie of the queue pair, completion queue or shared receive queue, or the port number.
    pub subject: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_and_withdrawn_ones_never() {
        let queue = EventQueue::new().unwrap();
        assert_eq!(queue.try_next().unwrap(), None);
        for n in 0..6 {
            queue.push(n);
        }
        assert_eq!(queue.withdraw(|n| n % 2 == 1), [1, 3, 5]);
        assert_eq!([queue.wait().unwrap(), queue.wait().unwrap(), queue.wait().unwrap()], [0, 2, 4]);
        assert!(!queue.ready(0).unwrap());
    }

    #[test]
    fn a_withdrawn_event_leaves_no_token_behind() {
        const EVENTS: usize = 2000;
        let queue = EventQueue::new().unwrap();
        let start = std::sync::Barrier::new(2);
        let mut left = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for event in 0..EVENTS {
                    start.wait();
                    queue.push(event);
                    start.wait();
                }
            });
            for _ in 0..EVENTS {
                start.wait();
                while queue.withdraw(|_| true).is_empty() {
                    std::thread::yield_now();
                }
                start.wait();
                left += usize::from(queue.ready(0).unwrap());
            }
        });
        assert_eq!(left, 0, "descriptors readable without an event");
    }

    #[test]
    fn looking_for_an_event_never_waits() {
        const EVENTS: usize = 300;
        let queue = EventQueue::new().unwrap();
        let taken = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while taken.load(std::sync::atomic::Ordering::Relaxed) < EVENTS {
                        if queue.try_next().unwrap().is_some() {
                            taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
            for event in 0..EVENTS {
                queue.push(event);
                std::thread::yield_now();
            }
        });
        assert_eq!(queue.try_next().unwrap(), None);
    }

    #[test]
    fn an_event_that_its_taker_brings_needs_no_token() {
        let queue = EventQueue::new().unwrap();
        let mut found = Vec::new();
        let bring = || {
            queue.push(1);
            assert!(!queue.ready(0).unwrap());
            queue.push(2);
            assert!(queue.ready(0).unwrap());
        };
        assert!(queue.take_after(bring, |event| found.push(*event)));
        assert_eq!(found, [1]);
        assert!(!queue.take_after(|| (), |_| ()), "it has its token, for whoever waits");
        assert_eq!(queue.try_next().unwrap(), Some(2));
        queue.push(3);
        assert!(queue.take_after(|| queue.push(4), |event| found.push(*event)));
        assert_eq!((found, queue.wait().unwrap()), (vec![1, 3], 4));
        assert!(!queue.ready(0).unwrap());
    }

    #[test]
    fn events_withdrawn_while_they_are_brought_leave_no_token_behind() {
        for gone in 1..=3 {
            let queue = EventQueue::new().unwrap();
            let bring = || {
                (1..=3).for_each(|event| queue.push(event));
                assert_eq!(queue.withdraw(|event| *event <= gone).len(), gone);
            };
            assert_eq!(queue.take_after(bring, |_| ()), gone < 3);
            let left = std::iter::from_fn(|| queue.try_next().unwrap()).count();
            assert_eq!(left, 3 - gone.min(2) - 1);
            assert!(!queue.ready(0).unwrap());
        }
    }

    #[test]
    fn no_event_is_lost_when_several_threads_take_events() {
        const EVENTS: usize = 3000;
        let queue = EventQueue::new().unwrap();
        let taken = std::sync::atomic::AtomicUsize::new(0);
        let count = |_: &usize| {
            taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let all = || taken.load(std::sync::atomic::Ordering::Relaxed) >= EVENTS;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for event in 0..EVENTS / 3 {
                        queue.take_after(|| queue.push(event), count);
                    }
                });
            }
            scope.spawn(|| (0..EVENTS / 3).for_each(|event| queue.push(event)));
            scope.spawn(|| {
                while !all() {
                    if queue.ready(1).unwrap() {
                        queue.take_with(count).unwrap();
                    }
                }
            });
        });
        assert!(queue.is_empty() && !queue.ready(0).unwrap());
    }

    #[test]
    fn a_non_blocking_descriptor_says_again() {
        let queue = EventQueue::<u8>::new().unwrap();
        // SAFETY: fcntl(2) on our own descriptor.
        unsafe { libc::fcntl(queue.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.wait().unwrap_err().errno(), libc::EAGAIN);
    }
}
