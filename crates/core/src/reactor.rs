//! The background thread: the one thread of an engine, which waits for descriptors and deadlines that no program thread is serving.
//!
//! It starts with the first registration, blocks all signals (but those of its own faults), and sleeps in epoll when nothing is
//! to be done. Call-backs run on it without any lock of the reactor held.

use crate::deadlines::Deadlines;
pub use crate::deadlines::Timer;
use crate::error::{Error, Result};
use crate::event::add_token;
use crate::failure;
use crate::fork;
use crate::helpers::Helpers;
use crate::setting;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Readiness of a descriptor, and interest in it, in the bits of epoll(7).
pub type Readiness = u32;
/// There is something to read, or the peer closed.
pub const READABLE: Readiness = libc::EPOLLIN as u32;
/// There is room to write.
pub const WRITABLE: Readiness = libc::EPOLLOUT as u32;
/// The peer closed its direction: there is an end to be read behind whatever is there.
pub const PEER_CLOSED: Readiness = libc::EPOLLRDHUP as u32;
/// Report changes only: readiness that was reported, or came while nobody asked for it, is not repeated until [`Reactor::modify`].
pub const EDGE: Readiness = libc::EPOLLET as u32;
/// The descriptor failed or hung up; always reported.
pub const FAILED: Readiness = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Something that the background thread serves.
pub trait Source: Send + Sync {
    /// The descriptor is ready. May come once more after [`Reactor::remove`] from another thread.
    fn ready(self: Arc<Self>, readiness: Readiness);
    /// A deadline set with [`Reactor::set_timer`] has passed.
    fn timeout(self: Arc<Self>) {}
}

/// Names a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

/// Where deadlines are set: the background thread's, or a model's.
pub trait Timers: Send + Sync {
    /// Calls `source.timeout()` once `after` has passed.
    ///
    /// # Errors
    /// There is no thread that could.
    fn set_timer(&'static self, after: Duration, source: Arc<dyn Source>) -> Result<Timer>;
}

/// The background thread and what it waits for. Thread-safe.
pub struct Reactor {
    epoll: RawFd,
    wake: RawFd,
    sources: Mutex<Sources>,
    deadlines: Deadlines<Arc<dyn Source>>,
    started: AtomicBool,
    /// The engine's threads, of which this is the first.
    pub helpers: Helpers,
}

#[derive(Default)]
struct Sources {
    /// Each with a generation.
    all: Vec<(u32, Option<Registered>)>,
    free: Vec<u32>,
}

/// Who serves a descriptor.
struct Registered {
    source: Arc<dyn Source>,
    descriptor: RawFd,
}

const WAKE: u64 = u64::MAX;
/// What the background thread is called.
const NAME: &str = "adverb";

impl Reactor {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: plain flags.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(Error::system("epoll_create1"));
        }
        // SAFETY: plain numbers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            let error = Error::system("eventfd");
            // SAFETY: ours, and nobody has seen it.
            unsafe { libc::close(epoll) };
            return Err(error);
        }
        let mut event = libc::epoll_event { events: READABLE | libc::EPOLLET as u32, u64: WAKE };
        // SAFETY: live descriptors and a live local.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, wake, &raw mut event) };
        fork::own_descriptor(epoll);
        fork::own_descriptor(wake);
        Ok(Self {
            epoll,
            wake,
            sources: Mutex::default(),
            deadlines: Deadlines::default(),
            started: AtomicBool::new(false),
            helpers: Helpers::default(),
        })
    }

    /// Closes a reactor whose thread never started.
    pub(crate) fn discard(&self) {
        for fd in [self.epoll, self.wake] {
            fork::disown_descriptor(fd);
            // SAFETY: ours; no thread waits on it.
            unsafe { libc::close(fd) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Serves `fd` when it is ready for `interest` (level-triggered, unless with [`EDGE`]; 0: only when it fails), until removed.
    pub fn add(&'static self, fd: RawFd, interest: Readiness, source: Arc<dyn Source>) -> Result<Token> {
        self.start()?;
        let token = {
            let mut sources = self.lock();
            let index = sources.free.pop().unwrap_or_else(|| {
                sources.all.push((0, None));
                (sources.all.len() - 1) as u32
            });
            let (generation, place) = &mut sources.all[index as usize];
            *generation = generation.wrapping_add(1);
            *place = Some(Registered { source, descriptor: fd });
            Token(u64::from(index) << 32 | u64::from(*generation))
        };
        match self.control(libc::EPOLL_CTL_ADD, fd, interest, token) {
            Ok(()) => Ok(token),
            Err(error) => {
                self.forget(token);
                Err(error)
            }
        }
    }

    /// Changes what the registration waits for. What is ready already is reported anew.
    pub fn modify(&self, token: Token, fd: RawFd, interest: Readiness) -> Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    /// Takes the descriptor out of the background thread's sight until [`Reactor::resume`]: then its arrivals cost nothing.
    pub fn suspend(&self, token: Token, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, token);
    }

    /// Puts it back. What is ready already is reported.
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
        let index = (token.0 >> 32) as usize;
        let dropped = match sources.all.get_mut(index) {
            Some((generation, place)) if *generation == token.0 as u32 => place.take(),
            _ => None,
        };
        if dropped.is_some() {
            sources.free.push(index as u32);
        }
        drop(sources);
    }

    fn control(&self, operation: i32, fd: RawFd, interest: Readiness, token: Token) -> Result<()> {
        let mut event = libc::epoll_event { events: interest, u64: token.0 };
        // SAFETY: live descriptors of this process and a live local.
        match unsafe { libc::epoll_ctl(self.epoll, operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::system("epoll_ctl")),
        }
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
        loop {
            self.deadlines.take_due(&mut due, Instant::now);
            let worked = !due.is_empty();
            if worked {
                let _work = self.helpers.work();
                for source in due.drain(..) {
                    failure::contain(NAME, || source.timeout());
                }
            }
            let spinning = last_work.is_some_and(|at| at.elapsed() < spin);
            let deadline = if spinning || worked { Some(Instant::now()) } else { self.deadlines.sleep() };
            let count = wait(self.epoll, &mut events, deadline);
            if !spinning {
                self.deadlines.awake();
            }
            if count > 0 && !spin.is_zero() {
                last_work = Some(Instant::now());
            }
            if count == 0 {
                continue;
            }
            let _work = self.helpers.work();
            for event in &events[..count] {
                if event.u64 == WAKE {
                    continue;
                }
                let (source, descriptor) = match self.lock().all.get((event.u64 >> 32) as usize) {
                    Some((generation, Some(known))) if *generation == event.u64 as u32 => {
                        (known.source.clone(), known.descriptor)
                    }
                    _ => continue,
                };
                if !failure::contain(NAME, || source.ready(event.events)) {
                    // It would be reported without end. The program gets its errors from elsewhere.
                    self.suspend(Token(event.u64), descriptor);
                }
            }
        }
    }
}

impl Timers for Reactor {
    fn set_timer(&'static self, after: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        Reactor::set_timer(self, after, source)
    }
}

/// epoll_pwait2(2) up to `deadline`, or epoll_wait(2) in whole milliseconds where the kernel has no such call.
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
}
