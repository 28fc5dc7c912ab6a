//! Lanes: the connections whose receives complete on one completion queue, drained together by its polls.
//!
//! The background thread watches every connection, too, so that one-sided operations are served while the program does not poll.
//! But while a program polls busily and everything that arrives is two-sided, waking that thread for each message would only
//! cost: then the lane is *disarmed* (the thread's interest is switched off) and a short timer looks whether the polls go on.

use crate::endpoint::{By, Endpoint, Received};
use crate::socket::close;
use adverb_core::cq::{CompletionQueue, Lane as CqLane};
use adverb_core::fork::{self, Born};
use adverb_core::reactor::{Readiness, Source};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

/// Up to this many connections a poll asks each socket; beyond, it asks an epoll instance which ones are ready.
const ASK_EACH: usize = 4;
/// So many messages in a row must be found by polls, and be two-sided, before the lane is disarmed.
const STREAK: u32 = 32;
/// The first look after disarming, and the longest pause between looks.
const LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_micros(400);

/// The lanes of a device, one per completion queue.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<HashMap<usize, Weak<Lane>>>);

impl Lanes {
    /// The lane of a completion queue.
    pub(crate) fn of(&self, cq: &Arc<CompletionQueue>) -> Arc<Lane> {
        let mut lanes = self.0.lock().unwrap_or_else(|e| e.into_inner());
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let key = Arc::as_ptr(cq) as usize;
        if let Some(lane) = lanes.get(&key).and_then(Weak::upgrade) {
            return lane;
        }
        let lane = Arc::new_cyclic(|this| Lane {
            members: RwLock::default(),
            armed: AtomicBool::new(true),
            streak: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            watch: Mutex::new(Watch { seen: 0, pause: LOOK, looking: false }),
            this: this.clone(),
        });
        lanes.insert(key, Arc::downgrade(&lane));
        lane
    }
}

impl Lanes {
    /// The process exits: every connection closes its direction, so that what was sent arrives and the peer sees an orderly end.
    pub(crate) fn at_exit(&self) {
        // A thread that was ended while it held a lock keeps it for ever: only try.
        let Ok(lanes) = self.0.try_lock() else { return };
        for lane in lanes.values().filter_map(Weak::upgrade) {
            if let Ok(members) = lane.members.try_read() {
                members.list.iter().for_each(|member| member.at_exit());
            }
        }
    }
}

/// The connections of one completion queue.
pub(crate) struct Lane {
    members: RwLock<Members>,
    /// Whether the background thread watches the lane's sockets.
    armed: AtomicBool,
    /// Two-sided messages in a row that polls have found.
    streak: AtomicU32,
    /// Polls so far.
    polls: AtomicU32,
    watch: Mutex<Watch>,
    this: Weak<Lane>,
}

struct Watch {
    seen: u32,
    pause: Duration,
    /// Whether a timer runs: there is one at most.
    looking: bool,
}

#[derive(Default)]
struct Members {
    list: Vec<Arc<Endpoint>>,
    epoll: Option<Epoll>,
    /// The members by the number that their socket carries in the epoll instance.
    by_number: HashMap<u64, Arc<Endpoint>>,
}

impl Members {
    fn ask(&mut self, member: Arc<Endpoint>, fd: RawFd) {
        if let Some(epoll) = &self.epoll {
            let number = Arc::as_ptr(&member) as u64;
            if epoll.add(fd, number) {
                self.by_number.insert(number, member);
            } else {
                // Without it, every socket is asked: slower, but right.
                self.epoll = None;
                self.by_number.clear();
            }
        }
    }
}

impl Lane {
    /// A connection begins.
    pub(crate) fn add(self: &Arc<Self>, endpoint: &Arc<Endpoint>, fd: RawFd) {
        let mut members = self.members.write().unwrap_or_else(|e| e.into_inner());
        // It is there already if the queue pair had a connection before.
        if !members.list.iter().any(|member| Arc::ptr_eq(member, endpoint)) {
            members.list.push(endpoint.clone());
        }
        if members.epoll.is_none() && members.list.len() > ASK_EACH {
            members.epoll = Epoll::new();
            for member in members.list.clone() {
                if let Some(fd) = member.descriptor() {
                    members.ask(member, fd);
                }
            }
        }
        members.ask(endpoint.clone(), fd);
        drop(members);
        self.rearm();
    }

    /// A new member is watched as the others are, though the lane may have been disarmed, or armed, since it came.
    pub(crate) fn settle(&self, endpoint: &Endpoint) {
        let _unchanging = self.lock_watch();
        endpoint.watch(self.is_armed());
    }

    /// A connection has ended: its socket is not asked any more.
    pub(crate) fn quiet(&self, fd: RawFd) {
        // Called from within polls, so only a shared lock is taken; the member itself goes with its queue pair.
        if let Ok(members) = self.members.try_read()
            && let Some(epoll) = &members.epoll
        {
            epoll.remove(fd);
        }
    }

    /// The queue pair is gone.
    pub(crate) fn remove(&self, endpoint: &Endpoint) {
        let mut members = self.members.write().unwrap_or_else(|e| e.into_inner());
        members.list.retain(|member| !std::ptr::eq(&**member, endpoint));
        members.by_number.remove(&(std::ptr::from_ref(endpoint) as u64));
    }

    /// The background thread has received for a member.
    pub(crate) fn received_in_background(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Weighs what a poll has found: one-sided requests want the background thread, a streak of two-sided ones does not.
    fn weigh(&self, received: Received) {
        if received.one_sided {
            self.streak.store(0, Ordering::Relaxed);
            if !self.armed.load(Ordering::Relaxed) {
                self.rearm();
            }
        } else if self.armed.load(Ordering::Relaxed)
            && self.streak.fetch_add(1, Ordering::Relaxed) + 1 >= STREAK
        {
            self.disarm();
        }
    }

    fn disarm(&self) {
        let mut watch = self.lock_watch();
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        let Some(reactor) = members.list.first().map(|member| &member.queues.engine.reactor) else { return };
        if members.list.len() > ASK_EACH || !self.armed.load(Ordering::SeqCst) {
            return;
        }
        watch.seen = self.polls.load(Ordering::Relaxed);
        watch.pause = LOOK;
        if !watch.looking {
            let Some(this) = self.this.upgrade() else { return };
            if reactor.set_timer(LOOK, this).is_err() {
                return;
            }
            watch.looking = true;
        }
        self.armed.store(false, Ordering::SeqCst);
        for member in &members.list {
            member.watch(false);
        }
    }

    fn rearm(&self) {
        self.rearm_locked(&self.lock_watch());
    }

    /// The lock keeps two threads from arming and disarming the members in different orders.
    fn rearm_locked(&self, _: &Watch) {
        self.streak.store(0, Ordering::Relaxed);
        if self.armed.swap(true, Ordering::SeqCst) {
            return;
        }
        for member in &self.members.read().unwrap_or_else(|e| e.into_inner()).list {
            member.watch(true);
        }
    }

    /// Whether the background thread watches.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst)
    }

    fn lock_watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl CqLane for Lane {
    #[inline]
    fn poll(&self) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        let mut all = Received::default();
        if let Some(epoll) = &members.epoll {
            let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 16];
            for event in epoll.ready(&mut ready) {
                if let Some(member) = members.by_number.get(&{ event.u64 }) {
                    all.add(member.receive(By::Poll));
                }
            }
        } else {
            for member in &members.list {
                all.add(member.receive(By::Poll));
            }
        }
        drop(members);
        if all.worked {
            self.weigh(all);
        }
        all.worked
    }

    fn arm(&self) {
        if !self.armed.load(Ordering::SeqCst) {
            self.rearm();
        }
    }
}

impl Source for Lane {
    fn ready(self: Arc<Self>, _: Readiness) {}

    /// Looks whether the program still polls.
    fn timeout(self: Arc<Self>) {
        let mut watch = self.lock_watch();
        watch.looking = false;
        if self.armed.load(Ordering::SeqCst) {
            return;
        }
        let polls = self.polls.load(Ordering::Relaxed);
        if watch.seen == polls {
            return self.rearm_locked(&watch);
        }
        watch.seen = polls;
        watch.pause = (watch.pause * 2).min(LONGEST_LOOK);
        let reactor = {
            let members = self.members.read().unwrap_or_else(|e| e.into_inner());
            members.list.first().map(|member| &member.queues.engine.reactor)
        };
        if reactor.is_some_and(|reactor| reactor.set_timer(watch.pause, self.clone()).is_ok()) {
            watch.looking = true;
        } else {
            self.rearm_locked(&watch);
        }
    }
}

/// An epoll instance over the lane's sockets.
struct Epoll(RawFd, Born);

impl Epoll {
    fn new() -> Option<Self> {
        // SAFETY: a plain flag.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        fork::own_descriptor(fd);
        Some(Self(fd, Born::now()))
    }

    /// Whether the socket is among them now. It may have been before.
    fn add(&self, fd: RawFd, data: u64) -> bool {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data };
        // SAFETY: live descriptors and a live local.
        let added = unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        added == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
    }

    fn remove(&self, fd: RawFd) {
        // SAFETY: live descriptors; DEL reads no event.
        unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    fn ready<'a>(&self, events: &'a mut [libc::epoll_event]) -> &'a [libc::epoll_event] {
        // SAFETY: a live slice; no waiting, no signal mask. No cancellation point, as this is called in polls.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                self.0,
                events.as_mut_ptr(),
                events.len() as i32,
                0,
                0usize,
                8usize,
            )
        };
        &events[..count.max(0) as usize]
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        if !self.1.is_here() {
            return;
        }
        close(self.0);
    }
}
