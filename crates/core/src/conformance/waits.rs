//! Threads that wait for events of completion channels.

use super::fixture::{Pair, Site, TEST_TIMEOUT, in_a_child};
use crate::cq::CompletionQueue;
use crate::request::{Completion, Opcode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The next completion of a queue, for which the thread sleeps in [`crate::cq::CompletionChannel::wait`].
fn wait_for(queue: &CompletionQueue) -> Completion {
    let mut found = None;
    loop {
        for armed in [false, true] {
            if armed {
                queue.arm(false).unwrap();
            }
            queue.poll(1, |entry| found = Some(*entry)).unwrap();
            if let Some(entry) = found {
                return entry;
            }
        }
        queue.channel().unwrap().wait().unwrap();
    }
}

/// Runs these beside each other, and returns when all are done. They are not scoped: the case reports a
/// thread that is not woken.
fn beside(parts: Vec<Box<dyn FnOnce() + Send>>) {
    let (done, ends) = mpsc::channel();
    let count = parts.len();
    for part in parts {
        let done = done.clone();
        std::thread::spawn(move || {
            part();
            let _ = done.send(());
        });
    }
    drop(done);
    for _ in 0..count {
        ends.recv_timeout(2 * TEST_TIMEOUT).expect("a thread has failed, or sleeps for ever");
    }
}

/// Two threads wait for each other's messages, alone or while the other waits, too; for completions of their
/// own in the same way, or with poll(2). Each is woken, whether it or the other takes in the packets.
pub fn awaited(site: &Site) {
    const ROUNDS: u64 = 400;
    let pair = Arc::new(Pair::connect(site));
    for wr_id in 0..2 {
        pair.client.post_receive(wr_id, &[]);
        pair.server.post_receive(wr_id, &[]);
    }
    let parts = [false, true].map(|serves| {
        let pair = pair.clone();
        Box::new(move || {
            let me = if serves { &pair.server } else { &pair.client };
            for round in 0..ROUNDS {
                if !serves {
                    me.post(round, Opcode::Send, &[], (0, 0));
                }
                assert_eq!(wait_for(&me.receives).wr_id, round);
                me.post_receive(round + 2, &[]);
                if serves {
                    me.post(round, Opcode::Send, &[], (0, 0));
                }
                match round / 16 % 3 {
                    0 => drop(me.sent_well(round)),
                    1 => assert_eq!(wait_for(&me.sends).wr_id, round),
                    _ => while me.sends.poll(1, |entry| assert_eq!(entry.wr_id, round)).unwrap() == 0 {},
                }
            }
        }) as Box<dyn FnOnce() + Send>
    });
    beside(parts.into());
}

/// Cases with signal handlers run one after the other. The handlers are the process's: a wait that began
/// before one of another kind came may end by it.
static HANDLERS: Mutex<()> = Mutex::new(());

/// Has a handler called at a signal that no other code uses. Returns the signal's number.
fn handle(signal: libc::c_int, flags: libc::c_int, handler: extern "C" fn(libc::c_int)) -> libc::c_int {
    let signal = libc::SIGRTMIN() + signal;
    // SAFETY: all zeros is an empty mask and no flags; the handlers here make no calls but such as a handler
    // may make.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
    signal
}

/// A thread that waits for events of a queue.
struct Waiter {
    thread: Option<JoinHandle<()>>,
    id: libc::pthread_t,
    /// The outcome of each wait; the next one begins when that is permitted.
    ends: mpsc::Receiver<std::result::Result<(), i32>>,
    permit: Option<mpsc::Sender<()>>,
}

impl Waiter {
    fn new(queue: &Arc<CompletionQueue>) -> Self {
        let channel = queue.channel().unwrap().clone();
        let (tell, told) = mpsc::channel();
        let (end, ends) = mpsc::channel();
        let (permit, permitted) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: always permitted.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            while permitted.recv().is_ok() {
                end.send(channel.wait().map(drop).map_err(|error| error.errno())).unwrap();
            }
        });
        Self { thread: Some(thread), id: told.recv().unwrap(), ends, permit: Some(permit) }
    }

    /// Lets it wait once.
    fn permit(&self) {
        self.permit.as_ref().unwrap().send(()).unwrap();
    }

    fn interrupt(&self, signal: libc::c_int) {
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_kill(self.id, signal) }, 0);
    }

    fn ended(&self) -> std::result::Result<(), i32> {
        self.ends.recv_timeout(TEST_TIMEOUT).expect("nobody wakes it")
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.permit = None;
        // The case reports a thread that is not woken.
        if !std::thread::panicking() {
            self.thread.take().unwrap().join().unwrap();
        }
    }
}

/// A signal ends the wait for an event, unless its handler is to restart system calls.
pub fn awaited_with_signals(site: &Site) {
    extern "C" fn nothing(_: libc::c_int) {}
    let _alone = HANDLERS.lock().unwrap_or_else(|e| e.into_inner());
    let ends = handle(7, 0, nothing);
    let restarts = handle(8, libc::SA_RESTART, nothing);
    let pair = Pair::connect(site);
    pair.server.post_receive(0, &[]);
    let queue = &pair.server.receives;
    queue.arm(false).unwrap();
    let waiter = Waiter::new(queue);
    waiter.permit();
    let end = Instant::now() + TEST_TIMEOUT;
    let interrupted = loop {
        // The first may come before it waits.
        waiter.interrupt(ends);
        if let Ok(interrupted) = waiter.ends.recv_timeout(Duration::from_millis(1)) {
            break interrupted;
        }
        assert!(Instant::now() < end, "a signal does not end the wait");
    };
    assert_eq!(interrupted, Err(libc::EINTR));
    waiter.permit();
    for _ in 0..20 {
        waiter.interrupt(restarts);
        std::thread::yield_now();
    }
    pair.client.post(0, Opcode::Send, &[], (0, 0));
    pair.client.sent_well(0);
    assert_eq!(waiter.ended(), Ok(()), "a signal ends the wait though its handler restarts system calls");
    // The thread goes first, and with it the signals that it has not seen.
    drop(waiter);
    for signal in [ends, restarts] {
        // SAFETY: a plain number.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Packets that come while a signal handler keeps the waiting thread are taken in: the peer notices nothing.
pub fn awaited_by_one_who_is_kept(site: &Site) {
    const ROUNDS: u64 = 8;
    static IS_KEPT: AtomicBool = AtomicBool::new(false);
    static MAY_GO: AtomicBool = AtomicBool::new(false);
    extern "C" fn keep(_: libc::c_int) {
        IS_KEPT.store(true, Ordering::SeqCst);
        while !MAY_GO.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        IS_KEPT.store(false, Ordering::SeqCst);
    }
    /// Lets it go, however the case ends.
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            MAY_GO.store(true, Ordering::SeqCst);
        }
    }
    let _alone = HANDLERS.lock().unwrap_or_else(|e| e.into_inner());
    let keeps = handle(9, libc::SA_RESTART, keep);
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let waiter = Waiter::new(queue);
    for round in 0..ROUNDS {
        pair.server.post_receive(round, &[]);
        queue.arm(false).unwrap();
        waiter.permit();
        // Not before it waits, most of the time.
        (0..round * 8).for_each(|_| std::thread::yield_now());
        MAY_GO.store(false, Ordering::SeqCst);
        let release = Release;
        waiter.interrupt(keeps);
        while !IS_KEPT.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        pair.client.post(round, Opcode::Send, &[], (0, 0));
        pair.client.sent_well(round);
        drop(release);
        assert_eq!(waiter.ended(), Ok(()));
        pair.server.received_well(round);
    }
}

/// A child of fork that closes its copy of the channel disturbs no thread of the parent that waits there, and
/// cannot wait itself.
pub fn awaited_beside_a_fork(site: &Site) {
    const ROUNDS: u64 = 3;
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let waiter = Waiter::new(queue);
    for round in 0..ROUNDS {
        pair.server.post_receive(round, &[]);
        queue.arm(false).unwrap();
        waiter.permit();
        in_a_child(|| {
            let channel = queue.channel().unwrap();
            assert_eq!(channel.wait().err().map(|error| error.errno()), Some(libc::ENODEV));
            pair.server.queue_pair.destroy();
            // SAFETY: this process uses its copy no more.
            assert_eq!(unsafe { libc::close(channel.descriptor()) }, 0);
        });
        pair.client.post(round, Opcode::Send, &[], (0, 0));
        pair.client.sent_well(round);
        assert_eq!(waiter.ended(), Ok(()));
        pair.server.received_well(round);
    }
}

/// Several threads wait on one channel, and one more with poll(2) on another: each event has one of them, and
/// none is missed.
pub fn awaited_by_several(site: &Site) {
    const ROUNDS: u64 = 200;
    const THREADS: u64 = 3;
    /// The end of a thread.
    const LAST: u64 = u64::MAX;
    let pair = Arc::new(Pair::connect(site));
    let (tell, told) = mpsc::channel();
    let server = |_| {
        let (pair, tell) = (pair.clone(), tell.clone());
        Box::new(move || {
            let side = &pair.server;
            loop {
                let entry = wait_for(&side.receives);
                if entry.wr_id == LAST {
                    // For the other threads, which have slept since they armed it.
                    side.receives.arm(false).unwrap();
                    return tell.send(LAST).unwrap();
                }
                tell.send(entry.wr_id).unwrap();
                side.post(entry.wr_id, Opcode::Send, &[], (0, 0));
            }
        }) as Box<dyn FnOnce() + Send>
    };
    let mut parts: Vec<_> = (0..THREADS).map(server).collect();
    let client = pair.clone();
    parts.push(Box::new(move || {
        let (client, server) = (&client.client, &client.server);
        let told = || told.recv_timeout(TEST_TIMEOUT).expect("nobody wakes");
        for round in 0..ROUNDS {
            server.post_receive(round, &[]);
            client.post_receive(round, &[]);
            client.post(round, Opcode::Send, &[], (0, 0));
            // The helper of the other cases: it sleeps on the descriptor.
            client.received_well(round);
            client.sent_well(round);
            server.sent_well(round);
            assert_eq!(told(), round);
        }
        for _ in 0..THREADS {
            server.post_receive(LAST, &[]);
            client.post(0, Opcode::Send, &[], (0, 0));
            client.sent_well(0);
            assert_eq!(told(), LAST);
        }
    }));
    beside(parts);
}

/// A thread that waits is cancelled, and takes no event with it: another one gets it.
pub fn awaited_with_cancellations(site: &Site) {
    const ROUNDS: u64 = 60;
    /// A thread of the C library's: those of the standard library do not permit it.
    extern "C-unwind" fn waiter(queue: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: of the function below, which joins this thread before it drops it.
        let queue = unsafe { &*queue.cast::<CompletionQueue>() };
        let event = queue.channel().map(|channel| channel.wait().is_ok());
        usize::from(event == Some(true)) as *mut libc::c_void
    }
    let pair = Pair::connect(site);
    let queue = &pair.server.receives;
    let start = || {
        let mut thread = 0;
        // SAFETY: the ABI is that of C, but for the unwinding, which the thread's own end takes up.
        let routine: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void =
            unsafe { std::mem::transmute(waiter as extern "C-unwind" fn(_) -> _) };
        let argument = Arc::as_ptr(queue).cast_mut().cast();
        // SAFETY: a live local, the usual attributes, and a routine that takes this argument.
        let error = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), routine, argument) };
        assert_eq!(error, 0);
        thread
    };
    let join = |thread| {
        let mut result = std::ptr::null_mut();
        // SAFETY: a thread that has not been joined.
        assert_eq!(unsafe { libc::pthread_join(thread, &raw mut result) }, 0);
        result as isize
    };
    const CANCELED: isize = -1;
    for round in 0..ROUNDS {
        pair.server.post_receive(round, &[]);
        queue.arm(false).unwrap();
        let first = start();
        for _ in 0..round % 8 * 20 {
            std::thread::yield_now();
        }
        // SAFETY: a thread that has not been joined.
        assert_eq!(unsafe { libc::pthread_cancel(first) }, 0);
        assert_eq!(join(first), CANCELED);
        let second = (round % 2 == 0).then(start);
        pair.client.post(round, Opcode::Send, &[], (0, 0));
        assert_eq!(join(second.unwrap_or_else(start)), 1);
        pair.server.received_well(round);
        pair.client.sent_well(round);
    }
}
