//! A thread that sleeps for an event takes in what arrives, in the background thread's place, and the
//! background thread does so whenever no thread can.
//!
//! What arrives here is a ring of an event descriptor, which stands for what a transport has there, and
//! completes in a queue. Signal handlers are the process's, so each case with such handlers is a process of
//! its own.

use adverb_core::conformance::{Site, TEST_TIMEOUT};
use adverb_core::cq::{CompletionChannel, CompletionQueue};
use adverb_core::engine;
use adverb_core::null;
use adverb_core::reactor::{EDGE, READABLE, Readiness, Source};
use adverb_core::request::Completion;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

/// Cases beside each other would have each other's threads on duty.
static ALONE: Mutex<()> = Mutex::new(());

/// What arrives.
struct Arrivals {
    bell: OwnedFd,
    queue: Arc<CompletionQueue>,
    /// The names of the threads that have taken it in.
    taken_in: Mutex<mpsc::Sender<String>>,
    /// The signal that comes to a waiter while it takes in what arrives next, which completes nothing then;
    /// 0: none.
    signal: AtomicI32,
}

impl Source for Arrivals {
    fn ready(self: Arc<Self>, _: Readiness) {
        let thread = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let thread = thread.trim();
        let signal = if thread == WAITER { self.signal.swap(0, Ordering::SeqCst) } else { 0 };
        if signal == 0 {
            self.queue.push(Completion::default(), false);
        } else {
            // SAFETY: a plain number. It comes to the calling thread.
            assert_eq!(unsafe { libc::raise(signal) }, 0);
        }
        self.taken_in.lock().unwrap().send(thread.into()).unwrap();
    }
}

/// A completion queue with a channel of its own, and what arrives there.
struct World {
    arrivals: Arc<Arrivals>,
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    takers: mpsc::Receiver<String>,
    _alone: MutexGuard<'static, ()>,
}

const BACKGROUND: &str = "adverb";
const WAITER: &str = "waiter";

impl World {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
        let context = Site::new(|| engine::install(&[null::FACTORY]), "null0", "127.0.0.1").open();
        let channel = CompletionChannel::new(&context).unwrap();
        let queue = CompletionQueue::new(&context, 16, Some(channel.clone())).unwrap();
        let (taken_in, takers) = mpsc::channel();
        // SAFETY: plain numbers; the descriptor is nobody else's.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
        let taken_in = Mutex::new(taken_in);
        let arrivals = Arc::new(Arrivals { bell, queue: queue.clone(), taken_in, signal: AtomicI32::new(0) });
        let reactor = &engine::engine().unwrap().reactor;
        reactor.add_arrival(arrivals.bell.as_raw_fd(), READABLE | EDGE, arrivals.clone()).unwrap();
        Self { arrivals, queue, channel, takers, _alone: alone }
    }

    fn arm(&self) {
        self.queue.poll(16, |_| ()).unwrap();
        self.queue.arm(false).unwrap();
    }

    fn arrive(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a live local.
        let written =
            unsafe { libc::write(self.arrivals.bell.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
        assert_eq!(written, 8);
    }

    /// Which thread takes it in.
    fn taker(&self) -> String {
        self.takers.recv_timeout(TEST_TIMEOUT).expect("nobody takes it in")
    }

    /// A thread that waits for an event, and says what has come of that.
    fn waiter(&self) -> Waiter {
        let channel = self.channel.clone();
        let (tell, told) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let wait = move || {
            // SAFETY: always permitted.
            tell.send(unsafe { (libc::gettid(), libc::pthread_self()) }).unwrap();
            let mask = own_mask();
            let ended = channel.wait().map(drop).map_err(|error| error.errno());
            assert_eq!(own_mask(), mask);
            end.send(ended).unwrap();
            // It stays, so that signals may still be sent to it.
            std::thread::park();
        };
        let thread = std::thread::Builder::new().name(WAITER.into()).spawn(wait).unwrap();
        let (number, id) = told.recv().unwrap();
        Waiter { thread: Some(thread), number, id, ends }
    }
}

/// The signals that the calling thread blocks.
fn own_mask() -> Vec<libc::c_int> {
    // SAFETY: a signal set is plain data, filled before use; the mask stays as it is.
    unsafe {
        let mut mask = std::mem::zeroed();
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask), 0);
        (1..=64).filter(|signal| libc::sigismember(&raw const mask, *signal) == 1).collect()
    }
}

struct Waiter {
    thread: Option<std::thread::JoinHandle<()>>,
    number: libc::pid_t,
    id: libc::pthread_t,
    ends: mpsc::Receiver<Result<(), i32>>,
}

impl Waiter {
    /// Returns once it sleeps, for an event, most probably.
    fn sleeps(&self) {
        let stat = PathBuf::from(format!("/proc/self/task/{}/stat", self.number));
        let end = Instant::now() + TEST_TIMEOUT;
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            assert!(Instant::now() < end, "it does not sleep");
            std::thread::yield_now();
        }
    }

    fn ended(&self) -> Result<(), i32> {
        self.ends.recv_timeout(TEST_TIMEOUT).expect("nobody wakes it")
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_kill(self.id, signal) }, 0);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let thread = self.thread.take().unwrap();
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_thread_that_sleeps_for_an_event_takes_in_arrivals() {
    let world = World::new();
    let end = Instant::now() + TEST_TIMEOUT;
    let mut by_waiter = 0;
    // Most of the time. It is not on duty yet, or no more, where it has no processor for a while.
    while by_waiter < 20 {
        assert!(Instant::now() < end, "the background thread takes in what is the waiter's: {by_waiter}");
        world.arm();
        let waiter = world.waiter();
        waiter.sleeps();
        world.arrive();
        by_waiter += u32::from(world.taker() == WAITER);
        assert_eq!(waiter.ended(), Ok(()));
    }
}

#[test]
fn the_background_thread_takes_it_in_when_nobody_sleeps_for_an_event() {
    let world = World::new();
    for _ in 0..10 {
        world.arm();
        let waiter = world.waiter();
        waiter.sleeps();
        // It is woken by something else.
        world.queue.push(Completion::default(), false);
        assert_eq!(waiter.ended(), Ok(()));
        world.arrive();
        assert_eq!(world.taker(), BACKGROUND);
    }
}

/// Whether the descriptor is readable.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut entry = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry; no waiting.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

#[test]
fn a_task_on_duty_takes_in_what_arrives() {
    let world = World::new();
    let reactor = &engine::engine().unwrap().reactor;
    let mut task_duty = reactor.begin_task_duty().unwrap();
    assert!(reactor.begin_task_duty().is_none(), "one task at a time");
    let descriptor = task_duty.descriptor().unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    let mut by_task = 0;
    // Most of the time. The background thread looks where this one has no processor for a while.
    while by_task < 20 {
        assert!(Instant::now() < end, "the background thread takes in what is the task's: {by_task}");
        task_duty.serve_before_wait();
        world.arrive();
        // The background thread may have been there before.
        while !is_readable(&descriptor) && world.queue.waiting() == 0 {
            std::thread::yield_now();
        }
        // A background thread on duty would take it in within this time, as a rule. It looks after a task
        // four times as long.
        let woken = Instant::now();
        while woken.elapsed() < Duration::from_micros(100) {
            std::hint::spin_loop();
        }
        task_duty.serve_before_wait();
        by_task += u32::from(world.taker() != BACKGROUND);
        world.queue.poll(16, |_| ()).unwrap();
    }
    drop(task_duty);
    assert!(reactor.begin_task_duty().is_some(), "another task's turn");
}

#[test]
fn the_background_thread_takes_in_what_a_task_does_not_come_back_for() {
    let world = World::new();
    let reactor = &engine::engine().unwrap().reactor;
    let mut task_duty = reactor.begin_task_duty().unwrap();
    for _ in 0..10 {
        task_duty.serve_before_wait();
        world.arrive();
        assert_eq!(world.taker(), BACKGROUND);
    }
}

// PRACTICE-EVENT-2
#[test]
fn the_descriptor_is_readable_only_while_an_event_waits() {
    let world = World::new();
    for _ in 0..10 {
        // Nothing is armed, so what arrives is no event.
        world.queue.poll(16, |_| ()).unwrap();
        world.arrive();
        world.taker();
        assert!(!world.channel.ready(0).unwrap());
        world.arm();
        world.arrive();
        world.taker();
        assert!(world.channel.ready(0).unwrap());
        assert!(world.channel.wait().is_ok());
    }
}

#[test]
fn one_of_several_that_sleep_takes_it_in_and_each_has_its_event() {
    let world = World::new();
    for _ in 0..10 {
        let waiters = [world.waiter(), world.waiter(), world.waiter()];
        waiters.iter().for_each(Waiter::sleeps);
        for _ in &waiters {
            world.arm();
            world.arrive();
            world.taker();
            // Before it is armed again: an event that has not come yet counts.
            assert!(world.takers.try_recv().is_err(), "it is taken in twice");
        }
        waiters.iter().for_each(|waiter| assert_eq!(waiter.ended(), Ok(())));
    }
}

#[test]
fn nobody_sleeps_at_a_descriptor_that_does_not_block() {
    let world = World::new();
    world.arm();
    // SAFETY: fcntl(2) on a descriptor of the channel's.
    unsafe { libc::fcntl(world.channel.descriptor(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(world.channel.wait().err().map(|error| error.errno()), Some(libc::EAGAIN));
    world.arrive();
    assert_eq!(world.taker(), BACKGROUND);
    assert!(world.channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap());
    assert!(world.channel.wait().is_ok());
}

/// The test of this name in a process of its own: true there.
fn in_a_process(test: &str) -> bool {
    const HERE: &str = "ADVERB_TEST_DUTY";
    if std::env::var_os(HERE).is_some() {
        return true;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", test, "--nocapture"]).env(HERE, "1").output().unwrap();
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    false
}

fn handle(signal: libc::c_int, flags: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: all zeros is an empty mask and no flags; the handlers here make no calls but such as a handler
    // may make.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// Many signals come to a thread that waits, which waits on.
fn outlasts(world: &World, signal: libc::c_int) {
    world.arm();
    let waiter = world.waiter();
    waiter.sleeps();
    for _ in 0..200 {
        waiter.signal(signal);
        let ended = waiter.ends.recv_timeout(Duration::from_millis(1));
        assert!(ended.is_err(), "signal {signal} ends the wait: {ended:?}");
    }
    // Nothing has been lost.
    world.arrive();
    world.taker();
    assert_eq!(waiter.ended(), Ok(()));
}

/// Signals come to a thread that waits, until it does no more. Their handler has these flags.
fn ends_by(world: &World, signal: libc::c_int, flags: libc::c_int) {
    handle(signal, flags, nothing);
    world.arm();
    let waiter = world.waiter();
    waiter.sleeps();
    let end = Instant::now() + TEST_TIMEOUT;
    let ended = loop {
        waiter.signal(signal);
        // The thread may have no processor for a while.
        if let Ok(ended) = waiter.ends.recv_timeout(Duration::from_millis(1)) {
            break ended;
        }
        assert!(Instant::now() < end, "signal {signal} does not end the wait");
        // A handler for one signal is gone, also where the thread was not asleep for the event yet.
        handle(signal, flags, nothing);
    };
    assert_eq!(ended, Err(libc::EINTR));
}

// PRACTICE-EVENT-1
#[test]
fn a_handler_that_restarts_calls_does_not_end_the_wait() {
    if in_a_process("a_handler_that_restarts_calls_does_not_end_the_wait") {
        handle(libc::SIGUSR1, libc::SA_RESTART, nothing);
        outlasts(&World::new(), libc::SIGUSR1);
    }
}

// PRACTICE-EVENT-1
#[test]
fn a_handler_that_does_not_restart_calls_ends_the_wait() {
    if in_a_process("a_handler_that_does_not_restart_calls_ends_the_wait") {
        ends_by(&World::new(), libc::SIGUSR1, 0);
    }
}

// PRACTICE-EVENT-1
#[test]
fn each_handler_has_its_own_effect_on_the_wait() {
    if in_a_process("each_handler_has_its_own_effect_on_the_wait") {
        handle(libc::SIGUSR1, 0, nothing);
        handle(libc::SIGUSR2, libc::SA_RESTART, nothing);
        handle(libc::SIGWINCH, libc::SA_RESETHAND, nothing);
        let world = World::new();
        outlasts(&world, libc::SIGUSR2);
        ends_by(&world, libc::SIGUSR1, 0);
        outlasts(&world, libc::SIGUSR2);
        ends_by(&world, libc::SIGWINCH, libc::SA_RESETHAND);
    }
}

// PRACTICE-EVENT-1
#[test]
fn a_signal_that_comes_while_the_thread_takes_in_what_arrives_ends_the_wait() {
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
    if in_a_process("a_signal_that_comes_while_the_thread_takes_in_what_arrives_ends_the_wait") {
        handle(libc::SIGUSR1, 0, count);
        let world = World::new();
        let end = Instant::now() + TEST_TIMEOUT;
        let mut signals = 0;
        while signals < 10 {
            assert!(Instant::now() < end, "the background thread takes in what is the waiter's: {signals}");
            world.arm();
            let waiter = world.waiter();
            waiter.sleeps();
            world.arrivals.signal.store(libc::SIGUSR1, Ordering::SeqCst);
            world.arrive();
            if world.taker() == WAITER {
                signals += 1;
                assert_eq!(waiter.ended(), Err(libc::EINTR));
            } else {
                assert_eq!(waiter.ended(), Ok(()));
            }
            assert_eq!(HANDLED.load(Ordering::SeqCst), signals);
        }
    }
}

// PRACTICE-EVENT-1
#[test]
fn no_signal_waits_for_what_arrives_to_cease() {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    extern "C" fn handled(_: libc::c_int) {
        HANDLED.store(true, Ordering::SeqCst);
    }
    /// A source that has always more to take in.
    struct Endless(OwnedFd, AtomicBool);
    impl Source for Endless {
        fn ready(self: Arc<Self>, _: Readiness) {
            self.1.store(true, Ordering::SeqCst);
        }
    }
    if in_a_process("no_signal_waits_for_what_arrives_to_cease") {
        handle(libc::SIGUSR1, 0, handled);
        let world = World::new();
        world.arm();
        // SAFETY: plain numbers; the descriptor is nobody else's.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(1, libc::EFD_CLOEXEC)) };
        let endless = Arc::new(Endless(bell, AtomicBool::new(false)));
        let reactor = &engine::engine().unwrap().reactor;
        let token = reactor.add_arrival(endless.0.as_raw_fd(), READABLE, endless.clone()).unwrap();
        let waiter = world.waiter();
        let end = Instant::now() + TEST_TIMEOUT;
        while !endless.1.load(Ordering::SeqCst) {
            assert!(Instant::now() < end, "nobody takes it in");
            std::thread::yield_now();
        }
        // Not before it waits, in the end.
        let ended = loop {
            waiter.signal(libc::SIGUSR1);
            if let Ok(ended) = waiter.ends.recv_timeout(Duration::from_millis(1)) {
                break ended;
            }
            assert!(Instant::now() < end, "its signals wait");
        };
        assert_eq!((ended, HANDLED.load(Ordering::SeqCst)), (Err(libc::EINTR), true));
        reactor.remove(token, endless.0.as_raw_fd());
    }
}

// PRACTICE-EVENT-1
#[test]
fn one_wait_at_most_ends_by_mistake_when_a_handler_of_the_other_kind_comes() {
    if in_a_process("one_wait_at_most_ends_by_mistake_when_a_handler_of_the_other_kind_comes") {
        let world = World::new();
        ends_by(&world, libc::SIGUSR1, 0);
        ends_by(&world, libc::SIGUSR2, libc::SA_RESTART);
        outlasts(&world, libc::SIGUSR2);
        ends_by(&world, libc::SIGUSR1, 0);
    }
}

#[test]
fn arrivals_are_taken_in_while_a_handler_keeps_the_thread() {
    static MAY_GO: AtomicBool = AtomicBool::new(false);
    extern "C" fn keep(_: libc::c_int) {
        while !MAY_GO.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
    if in_a_process("arrivals_are_taken_in_while_a_handler_keeps_the_thread") {
        handle(libc::SIGUSR1, libc::SA_RESTART, keep);
        let world = World::new();
        for _ in 0..3 {
            MAY_GO.store(false, Ordering::SeqCst);
            world.arm();
            let waiter = world.waiter();
            waiter.sleeps();
            waiter.signal(libc::SIGUSR1);
            world.arrive();
            // Its signal may come after it has taken it in.
            world.taker();
            MAY_GO.store(true, Ordering::SeqCst);
            assert_eq!(waiter.ended(), Ok(()));
        }
    }
}

#[test]
fn a_thread_that_is_cancelled_leaves_the_background_thread_on_duty() {
    /// A thread of the C library's: those of the standard library do not permit it.
    extern "C-unwind" fn wait(channel: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: of the function below, which joins this thread before it drops it.
        let channel = unsafe { &*channel.cast::<Arc<CompletionChannel>>() };
        channel.wait().ok();
        std::ptr::null_mut()
    }
    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
    }
    let world = World::new();
    for round in 0..50 {
        world.arm();
        let (mut thread, mut result) = (0, std::ptr::null_mut());
        // SAFETY: the ABI is that of C, but for the unwinding, which the thread's own end takes up; the
        // channel lives until the thread is joined.
        unsafe {
            let routine: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void =
                std::mem::transmute(wait as extern "C-unwind" fn(_) -> _);
            let argument = (&raw const world.channel).cast_mut().cast();
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), routine, argument), 0);
            (0..round % 8 * 4).for_each(|_| std::thread::yield_now());
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
        world.arrive();
        assert_eq!(world.taker(), BACKGROUND);
        // The event that it has not taken.
        assert!(world.channel.wait().is_ok());
    }
}
