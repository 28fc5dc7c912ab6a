//! The background thread: the one thread of an engine, which waits for descriptors and deadlines that no
//! program thread is serving.
//!
//! It starts with the first registration, blocks all signals (but those of its own faults), and sleeps in
//! epoll when nothing is to be done. Call-backs run on it without any lock of the reactor held.
//!
//! The descriptors at which messages arrive are a set of their own within its set. A thread of the program
//! may serve them in its place while that thread sleeps for an event ([`Reactor::begin_duty`], `duty`).

use crate::containment;
use crate::deadlines::Deadlines;
pub use crate::deadlines::Timer;
use crate::duty::{Arrivals, Duty, Turn, Waiter};
use crate::error::{Error, Result};
use crate::event::add_token;
use crate::fork::{self, ForkGeneration};
use crate::helpers::Helpers;
use crate::setting;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Readiness of a descriptor, and interest in it, in the bits of epoll(7).
pub type Readiness = u32;
/// There is something to read, or the peer closed.
pub const READABLE: Readiness = libc::EPOLLIN as u32;
/// There is room to write.
pub const WRITABLE: Readiness = libc::EPOLLOUT as u32;
/// The peer closed its direction: there is an end to be read behind the bytes that are there.
pub const PEER_CLOSED: Readiness = libc::EPOLLRDHUP as u32;
/// Report changes only: readiness that was reported, or came while it was not asked for, is not repeated
/// until [`Reactor::modify`].
pub const EDGE: Readiness = libc::EPOLLET as u32;
/// The descriptor failed or hung up; always reported.
pub const FAILED: Readiness = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Something that the background thread serves.
pub trait Source: Send + Sync {
    /// The descriptor is ready. May come once more after [`Reactor::remove`] from another thread.
    fn ready(self: Arc<Self>, readiness: Readiness);
    /// The descriptor is ready, in a thread of the program that has the background thread's duty
    /// ([`Reactor::begin_duty`]). The source must not leave the work to threads that poll: no other thread
    /// watches.
    fn ready_on_duty(self: Arc<Self>, readiness: Readiness) {
        self.ready(readiness);
    }
    /// A deadline set with [`Reactor::set_timer`] has passed.
    fn timeout(self: Arc<Self>) {}
}

/// Names a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    fn index(self) -> usize {
        ((self.0 & !ARRIVAL) >> 32) as usize
    }
}

/// Where deadlines are set: the background thread's, or a model's.
pub trait Timers: Send + Sync {
    /// Calls `source.timeout()` once `after` has passed.
    ///
    /// # Errors
    /// There is no thread that could.
    fn set_timer(&'static self, after: Duration, source: Arc<dyn Source>) -> Result<Timer>;
}

/// The background thread, its descriptors and its timers. Thread-safe.
pub struct Reactor {
    epoll: RawFd,
    /// The set within that set: the descriptors that threads of the program may serve.
    arrivals: RawFd,
    wake: RawFd,
    sources: Mutex<Sources>,
    deadlines: Deadlines<Arc<dyn Source>>,
    started: AtomicBool,
    duty: OnceLock<Arc<Duty>>,
    /// A task of the program has the [`TaskDutyGuard`].
    has_task_duty: AtomicBool,
    /// The engine's threads, of which this is the first.
    pub helpers: Helpers,
}

#[derive(Default)]
struct Sources {
    /// Each with a generation.
    all: Vec<(u32, Option<DescriptorEntry>)>,
    free: Vec<u32>,
}

/// A descriptor, and the source that serves it.
struct DescriptorEntry {
    source: Arc<dyn Source>,
    descriptor: RawFd,
}

const WAKE: u64 = u64::MAX;
const ARRIVALS: u64 = u64::MAX - 1;
/// In a [`Token`]: of a descriptor at which messages arrive.
const ARRIVAL: u64 = 1 << 63;
/// Descriptors at which messages have arrived that are served in a row.
const MOST_SERVED_AT_ONCE: usize = 16;
/// The name of the background thread.
const NAME: &str = "adverb";

impl Reactor {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: plain flags and numbers; each descriptor is fresh, and no other part of the process has it.
        let made = unsafe {
            [
                ("epoll_create1", libc::epoll_create1(libc::EPOLL_CLOEXEC)),
                ("epoll_create1", libc::epoll_create1(libc::EPOLL_CLOEXEC)),
                ("eventfd", libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)),
            ]
        };
        if let Some((call, _)) = made.iter().find(|(_, fd)| *fd < 0) {
            let error = Error::system(call);
            for (_, fd) in made {
                // SAFETY: ours, and no other thread has seen it; or none.
                unsafe { libc::close(fd) };
            }
            return Err(error);
        }
        let [epoll, arrivals, wake] = made.map(|(_, fd)| fd);
        for (fd, events, u64) in [(wake, READABLE | EDGE, WAKE), (arrivals, READABLE, ARRIVALS)] {
            let mut event = libc::epoll_event { events, u64 };
            // SAFETY: live descriptors and a live local.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        }
        [epoll, arrivals, wake].into_iter().for_each(fork::own_descriptor);
        Ok(Self {
            epoll,
            arrivals,
            wake,
            sources: Mutex::default(),
            deadlines: Deadlines::default(),
            started: AtomicBool::new(false),
            duty: OnceLock::new(),
            has_task_duty: AtomicBool::new(false),
            helpers: Helpers::default(),
        })
    }

    /// Closes a reactor whose thread never started.
    pub(crate) fn discard(&self) {
        for fd in [self.epoll, self.arrivals, self.wake] {
            fork::disown_descriptor(fd);
            // SAFETY: ours; no thread waits on it.
            unsafe { libc::close(fd) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Serves `fd` when it is ready for `interest` (level-triggered, unless with [`EDGE`]; 0: only when it
    /// fails), until removed.
    pub fn add(&'static self, fd: RawFd, interest: Readiness, source: Arc<dyn Source>) -> Result<Token> {
        self.register(fd, interest, source, 0)
    }

    /// Serves `fd`, at which messages arrive, when it is ready for `interest`, as [`Reactor::add`] does.
    /// Threads of the program that sleep for an event may serve it, too, by [`Source::ready_on_duty`].
    pub fn add_arrival(
        &'static self,
        fd: RawFd,
        interest: Readiness,
        source: Arc<dyn Source>,
    ) -> Result<Token> {
        self.register(fd, interest, source, ARRIVAL)
    }

    fn register(
        &'static self,
        fd: RawFd,
        interest: Readiness,
        source: Arc<dyn Source>,
        kind: u64,
    ) -> Result<Token> {
        self.start()?;
        let token = {
            let mut sources = self.lock();
            let index = sources.free.pop().unwrap_or_else(|| {
                sources.all.push((0, None));
                (sources.all.len() - 1) as u32
            });
            let (generation, place) = &mut sources.all[index as usize];
            *generation = generation.wrapping_add(1);
            *place = Some(DescriptorEntry { source, descriptor: fd });
            Token(kind | u64::from(index) << 32 | u64::from(*generation))
        };
        match self.control(libc::EPOLL_CTL_ADD, fd, interest, token) {
            Ok(()) => Ok(token),
            Err(error) => {
                self.forget(token);
                Err(error)
            }
        }
    }

    /// Changes the events that the registration waits for. Events that are there already are reported anew.
    pub fn modify(&self, token: Token, fd: RawFd, interest: Readiness) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    /// Takes the descriptor out of the background thread's sight until [`Reactor::resume`]: then its arrivals
    /// cost nothing.
    pub fn suspend(&self, token: Token, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, token);
    }

    /// Watches a descriptor again. Events that are there already are reported.
    pub fn resume(&self, token: Token, fd: RawFd, interest: Readiness) -> Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Ends the registration; call it before closing the descriptor.
    pub fn remove(&self, token: Token, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, token);
        self.forget(token);
    }

    fn forget(&self, token: Token) {
        let mut sources = self.lock();
        let index = token.index();
        let dropped = match sources.all.get_mut(index) {
            Some((generation, place)) if *generation == token.0 as u32 => place.take(),
            _ => None,
        };
        if dropped.is_some() {
            sources.free.push(index as u32);
        }
        drop(sources);
    }

    /// The source of a registration, and the descriptor, unless it has ended.
    fn find(&self, token: Token) -> Option<(Arc<dyn Source>, RawFd)> {
        match self.lock().all.get(token.index()) {
            Some((generation, Some(known))) if *generation == token.0 as u32 => {
                Some((known.source.clone(), known.descriptor))
            }
            _ => None,
        }
    }

    fn control(&self, operation: i32, fd: RawFd, interest: Readiness, token: Token) -> Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token.0 };
        let set = if token.0 & ARRIVAL == 0 { self.epoll } else { self.arrivals };
        // SAFETY: live descriptors of this process and a live local.
        match unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::system("epoll_ctl")),
        }
    }

    /// The calling thread of the program is about to sleep for an event, and takes in packets in the
    /// background thread's place. None: another thread does, or no packets can arrive.
    pub fn begin_duty(&'static self) -> Option<DutyGuard> {
        if !self.started.load(Ordering::Relaxed) {
            return None;
        }
        let turn = self.duty().take(Waiter::Thread)?;
        Some(DutyGuard { reactor: self, turn: Some(turn), born: ForkGeneration::now() })
    }

    /// The calling task of an async program is to take in packets in the background thread's place, whenever
    /// it waits. None: another task does, or no packets can arrive.
    pub fn begin_task_duty(&'static self) -> Option<TaskDutyGuard> {
        let is_free = self.started.load(Ordering::Relaxed)
            && !self.has_task_duty.load(Ordering::Relaxed)
            && !self.has_task_duty.swap(true, Ordering::AcqRel);
        is_free.then(|| TaskDutyGuard { reactor: self, turn: None, born: ForkGeneration::now() })
    }

    fn duty(&'static self) -> &'static Arc<Duty> {
        self.duty.get_or_init(|| Duty::new(self, self))
    }

    /// Calls `serve` for each descriptor with events at this moment, or for [`MOST_SERVED_AT_ONCE`] of them.
    /// How many there were.
    fn serve_arrivals(&self, serve: impl Fn(Token, RawFd, Arc<dyn Source>, Readiness)) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST_SERVED_AT_ONCE];
        let (room, now) = (events.len(), 0);
        // SAFETY: a live slice; no signal mask. As a plain system call it is no cancellation point.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                self.arrivals,
                events.as_mut_ptr(),
                room,
                now,
                0usize,
                8usize,
            )
        };
        let count = count.max(0) as usize;
        for event in &events[..count] {
            let token = Token(event.u64);
            if let Some((source, descriptor)) = self.find(token) {
                serve(token, descriptor, source, event.events);
            }
        }
        count
    }

    /// Calls `source.timeout()` once `after` has passed.
    pub fn set_timer(&'static self, after: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        self.start()?;
        let (timer, wakes) = self.deadlines.set(Instant::now() + after, source);
        if wakes {
            self.wake();
        }
        Ok(timer)
    }

    /// Forgets a deadline. It may be passing at this instant.
    pub fn cancel_timer(&self, timer: Timer) {
        drop(self.deadlines.cancel(timer));
    }

    fn wake(&self) {
        add_token(self.wake);
    }

    fn start(&'static self) -> Result<()> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Asked here: it opens files, and the thread is to open none behind a program's back.
        let spin = Duration::from_micros(setting::spin_microseconds().into());
        self.helpers.spawn(NAME, move || self.run(spin)).map_err(|error| {
            self.started.store(false, Ordering::Release);
            Error::new(
                error.raw_os_error().unwrap_or(libc::EAGAIN),
                format!("starting the background thread: {error}"),
            )
        })
    }

    fn run(&self, spin: Duration) {
        let mut last_work = None::<Instant>;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let mut due = Vec::with_capacity(64);
        let mut worked = false;
        loop {
            let spinning = last_work.is_some_and(|at| at.elapsed() < spin);
            let deadline = if spinning || worked { Some(Instant::now()) } else { self.deadlines.sleep() };
            let looked = Instant::now();
            let count = wait(self.epoll, &mut events, deadline);
            if !spinning {
                self.deadlines.awake();
            }
            if count > 0 {
                if !spin.is_zero() {
                    last_work = Some(Instant::now());
                }
                self.serve(&events[..count]);
            }
            // A deadline waits for a look at the descriptors that begins behind it: where this thread had no
            // processor for a while, the answer that the deadline is for may have arrived.
            self.deadlines.take_due(&mut due, || looked);
            worked = !due.is_empty();
            if worked {
                let _work = self.helpers.work();
                for source in due.drain(..) {
                    containment::contain(NAME, || source.timeout());
                }
            }
        }
    }

    /// Serves descriptors that are ready.
    fn serve(&self, events: &[libc::epoll_event]) {
        let _work = self.helpers.work();
        for event in events {
            if event.u64 == WAKE {
                continue;
            }
            let serve = |token, descriptor, source: Arc<dyn Source>, readiness| {
                if !containment::contain(NAME, || source.ready(readiness)) {
                    // It would be reported without end. The program gets its errors from elsewhere.
                    self.suspend(token, descriptor);
                }
            };
            if event.u64 == ARRIVALS {
                self.serve_arrivals(serve);
            } else if let Some((source, descriptor)) = self.find(Token(event.u64)) {
                serve(Token(event.u64), descriptor, source, event.events);
            }
        }
    }
}

impl Timers for Reactor {
    fn set_timer(&'static self, after: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        Reactor::set_timer(self, after, source)
    }
}

impl Arrivals for Reactor {
    fn watch(&self, on: bool) {
        let mut event = libc::epoll_event { events: if on { READABLE } else { 0 }, u64: ARRIVALS };
        // SAFETY: live descriptors of this process and a live local.
        unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_MOD, self.arrivals, &raw mut event) };
    }
}

/// A thread's stay on duty, until dropped.
pub struct DutyGuard {
    reactor: &'static Reactor,
    turn: Option<Turn>,
    born: ForkGeneration,
}

impl DutyGuard {
    /// The descriptor that is readable while something has arrived; none (-1) where that is another thread's
    /// duty.
    pub fn descriptor(&self) -> RawFd {
        if self.turn.is_some() { self.reactor.arrivals } else { -1 }
    }

    /// The descriptor has woken the thread, which takes in all packets that have arrived. With no lock held.
    pub fn serve(&self) {
        self.reactor.serve_arrivals(|_, _, source, readiness| source.ready_on_duty(readiness));
    }

    /// The thread is about to sleep again: on duty, unless another thread of the program is by now.
    pub fn go_on(&mut self) {
        self.turn = self.turn.take().and_then(|turn| self.reactor.duty().go_on(turn, Waiter::Thread));
    }
}

impl Drop for DutyGuard {
    fn drop(&mut self) {
        // In a child of fork the descriptors are closed, and another thread may have had the lock.
        if let (Some(turn), true) = (self.turn, self.born.is_here()) {
            self.reactor.duty().end(turn);
        }
    }
}

/// The role of the one task of an async program that takes in packets in the background thread's place while
/// it waits. Until dropped.
///
/// The task watches [`TaskDutyGuard::descriptor`] by its runtime. Woken, it looks for what it waits for, and
/// then [serves the rest](TaskDutyGuard::serve_before_wait) before it waits again. A task that is woken and
/// does not come back loses the duty after a moment, as one does that waits long.
pub struct TaskDutyGuard {
    reactor: &'static Reactor,
    turn: Option<Turn>,
    born: ForkGeneration,
}

impl TaskDutyGuard {
    /// A descriptor that becomes readable when something arrives, whoever is on duty. To be watched for
    /// changes: it may stay readable.
    ///
    /// # Errors
    /// EMFILE.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        // SAFETY: the reactor's, which lives as long as the process.
        let arrivals = unsafe { BorrowedFd::borrow_raw(self.reactor.arrivals) };
        arrivals.try_clone_to_owned().map_err(|error| {
            let text = format!("a descriptor for what arrives: {error}");
            Error::new(error.raw_os_error().unwrap_or(libc::EIO), text)
        })
    }

    /// The task is about to wait: it takes in all packets that have arrived, and is on duty from now on,
    /// unless another thread of the program is. With no lock held that a transport knows.
    pub fn serve_before_wait(&mut self) {
        // So many that others get their turn. What is left then is the background thread's.
        const TURNS: usize = 8;
        if !self.born.is_here() {
            return;
        }
        // Before it takes the duty: what arrives later makes the descriptor readable anew.
        let serve = || self.reactor.serve_arrivals(|_, _, source, readiness| source.ready_on_duty(readiness));
        let is_done = (0..TURNS).any(|_| serve() < MOST_SERVED_AT_ONCE);
        let duty = self.reactor.duty();
        match (self.turn.take(), is_done) {
            (Some(turn), true) => self.turn = duty.go_on(turn, Waiter::Task),
            (None, true) => self.turn = duty.take(Waiter::Task),
            (turn, false) => turn.into_iter().for_each(|turn| duty.end(turn)),
        }
    }
}

impl Drop for TaskDutyGuard {
    fn drop(&mut self) {
        // In a child of fork another thread may have had the lock. The engine of the child is a new one.
        if !self.born.is_here() {
            return;
        }
        if let Some(turn) = self.turn {
            self.reactor.duty().end(turn);
        }
        self.reactor.has_task_duty.store(false, Ordering::Release);
    }
}

/// epoll_pwait2(2) up to `deadline`, or epoll_wait(2) in whole milliseconds where the kernel has no such
/// call.
fn wait(epoll: RawFd, events: &mut [libc::epoll_event], deadline: Option<Instant>) -> usize {
    static OLD_KERNEL: AtomicBool = AtomicBool::new(false);
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if let Some(left) = left
        && !left.is_zero()
        && !OLD_KERNEL.load(Ordering::Relaxed)
    {
        let time = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: a live slice and a live local; no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll,
                events.as_mut_ptr(),
                events.len() as i32,
                &raw const time,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if count >= 0 {
            return count as usize;
        }
        if matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
            OLD_KERNEL.store(true, Ordering::Relaxed);
        } else {
            return 0;
        }
    }
    let milliseconds = left.map_or(-1, |left| {
        left.as_millis().min(60_000) as i32 + i32::from(left.subsec_nanos() % 1_000_000 != 0)
    });
    // SAFETY: a live slice.
    let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, milliseconds) };
    count.max(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Probe(Mutex<mpsc::Sender<&'static str>>);
    impl Source for Probe {
        fn ready(self: Arc<Self>, _: Readiness) {
            let _ = self.0.lock().unwrap().send("ready");
        }
        fn timeout(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().send("timeout");
        }
    }

    #[test]
    fn descriptors_and_deadlines() {
        let reactor: &'static Reactor = Box::leak(Box::new(Reactor::new().unwrap()));
        let (send, receive) = mpsc::channel();
        let probe = Arc::new(Probe(Mutex::new(send)));
        let second = Duration::from_secs(20);
        let far = reactor.set_timer(Duration::from_secs(3600), probe.clone()).unwrap();
        reactor.set_timer(Duration::from_millis(1), probe.clone()).unwrap();
        assert_eq!(receive.recv_timeout(second), Ok("timeout"));
        reactor.cancel_timer(far);
        let queue = crate::event::EventQueue::<()>::new().unwrap();
        let token = reactor.add(queue.descriptor(), READABLE, probe).unwrap();
        queue.push(());
        assert_eq!(receive.recv_timeout(second), Ok("ready"));
        reactor.remove(token, queue.descriptor());
    }

    /// Keeps the background thread until the test goes on.
    struct Busy(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);
    impl Source for Busy {
        fn ready(self: Arc<Self>, _: Readiness) {
            let _ = self.0.send(());
            let _ = self.1.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
    }

    #[test]
    fn a_thread_that_was_held_up_serves_descriptors_before_deadlines() {
        let reactor: &'static Reactor = Box::leak(Box::new(Reactor::new().unwrap()));
        let second = Duration::from_secs(20);
        let ((begun, begins), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        let bell = crate::event::EventQueue::<()>::new().unwrap();
        // Each is reported once, since nothing is taken out of it.
        let busy = Arc::new(Busy(begun, Mutex::new(goes_on)));
        let held = reactor.add(bell.descriptor(), READABLE | EDGE, busy).unwrap();
        bell.push(());
        begins.recv_timeout(second).unwrap();
        let (send, receive) = mpsc::channel();
        let probe = Arc::new(Probe(Mutex::new(send)));
        reactor.set_timer(Duration::ZERO, probe.clone()).unwrap();
        let queue = crate::event::EventQueue::<()>::new().unwrap();
        let token = reactor.add(queue.descriptor(), READABLE | EDGE, probe).unwrap();
        queue.push(());
        go_on.send(()).unwrap();
        assert_eq!(
            [receive.recv_timeout(second), receive.recv_timeout(second)],
            [Ok("ready"), Ok("timeout")]
        );
        reactor.remove(token, queue.descriptor());
        reactor.remove(held, bell.descriptor());
    }
}
