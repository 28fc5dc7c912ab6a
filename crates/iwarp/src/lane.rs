//! Lanes: the connections whose receives complete on one completion queue, drained together by its polls.
//!
//! Whether the background thread watches them, too, is for the lane's [watch](adverb_core::lane_watch) to
//! say.

use crate::endpoint::{Endpoint, Receipt, ReceivingThread};
use crate::gather;
use crate::local::{ChannelSnapshot, LocalHost};
use crate::socket::close;
use adverb_core::cq::Lane as CqLane;
use adverb_core::fork::{self, ForkGeneration};
use adverb_core::gathering::{GatheredLane, Gathering};
use adverb_core::lane_watch::{LaneWatch, WatchedLane};
use adverb_core::lock::Lock;
use adverb_core::qp::Queues;
use adverb_core::reactor::Reactor;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Up to this many connections a poll asks each socket; beyond, it asks an epoll instance which ones are
/// ready.
const ASK_EACH: usize = 4;
/// After so many polls in a row that find the sockets empty, polls leave the sockets to the background
/// thread, if every peer sends messages through shared memory. To ask a socket takes a system call.
const IN_VAIN: u32 = 4096;

/// The lanes of a device, one per completion queue.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<HashMap<usize, Weak<Lane>>>);

impl Lanes {
    /// The lane of the completion queue of a queue pair's receives.
    pub(crate) fn of(&self, queues: &Queues, host: &Arc<LocalHost>) -> Arc<Lane> {
        let (cq, reactor): (_, &'static Reactor) = (&queues.receive_cq, &queues.engine.reactor);
        let mut lanes = self.0.lock().unwrap_or_else(|e| e.into_inner());
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let key = Arc::as_ptr(cq) as usize;
        if let Some(lane) = lanes.get(&key).and_then(Weak::upgrade) {
            return lane;
        }
        let lane = Arc::new_cyclic(|this: &Weak<Lane>| Lane {
            members: RwLock::default(),
            lane_watch: LaneWatch::new(this.clone(), reactor),
            gathering: Gathering::new(this.clone(), reactor, gather::LOOKS),
            host: host.clone(),
            seen: Lock::default(),
            in_vain: AtomicU32::new(0),
            leaves_sockets: AtomicBool::new(false),
            has_waiting: AtomicBool::new(false),
            has_sleepers: AtomicBool::new(false),
        });
        lanes.insert(key, Arc::downgrade(&lane));
        lane
    }
}

impl Lanes {
    /// The process exits: every connection closes its direction, so that all bytes sent arrive and the peer
    /// sees an orderly end.
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
    /// Decides whether the background thread watches the lane's sockets.
    lane_watch: Arc<LaneWatch>,
    /// Says whether posts wait to be gathered.
    gathering: Arc<Gathering>,
    /// Polls take turns in its long operations in memory of other processes, and drain its channels.
    host: Arc<LocalHost>,
    /// The channels as the lane's polls have last seen them.
    seen: Lock<ChannelSnapshot>,
    /// Polls in a row that have found the sockets empty.
    in_vain: AtomicU32,
    /// Polls do not ask the sockets: the background thread watches them alone.
    leaves_sockets: AtomicBool,
    /// Messages may wait in the inbox of a connection. A thread that puts one there sets this afterwards; a
    /// poll clears it and then looks.
    has_waiting: AtomicBool,
    /// Threads of the program sleep on the sockets themselves.
    has_sleepers: AtomicBool,
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

    /// Posts that wait to be gathered leave.
    #[cold]
    fn send_off(&self) {
        self.list.iter().filter(|member| member.has_put_off()).for_each(|member| member.send());
    }

    fn wait_for_room(&self) -> bool {
        self.list.iter().any(|member| member.is_full.load(Ordering::SeqCst))
    }
}

impl Lane {
    /// A connection begins.
    pub(crate) fn add(self: &Arc<Self>, endpoint: &Arc<Endpoint>, fd: RawFd) {
        let mut members = self.members.write().unwrap_or_else(|e| e.into_inner());
        // The endpoint is a member already if its queue pair had a connection before.
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
        self.asks_sockets();
        self.lane_watch.arm();
    }

    /// Polls ask the sockets again.
    fn asks_sockets(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
        self.leaves_sockets.store(false, Ordering::SeqCst);
    }

    /// A poll has found the sockets empty.
    fn found_nothing(&self) {
        let in_vain = self.in_vain.load(Ordering::Relaxed) + 1;
        self.in_vain.store(in_vain, Ordering::Relaxed);
        if in_vain < IN_VAIN {
            return;
        }
        self.in_vain.store(0, Ordering::Relaxed);
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        let leaves = members.list.iter().all(|member| !member.needs_socket());
        drop(members);
        if leaves {
            self.leaves_sockets.store(true, Ordering::SeqCst);
            self.lane_watch.arm();
        }
    }

    /// Whether threads of the program sleep on the sockets themselves. A message through shared memory would
    /// wake the background thread first, which would wake such a thread.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.has_sleepers.load(Ordering::SeqCst)
    }

    /// A message waits in the inbox of one of the connections.
    pub(crate) fn has_waiting(&self) {
        self.has_waiting.store(true, Ordering::SeqCst);
    }

    /// Looks at the connections at which messages wait. Returns whether any was taken in.
    #[cold]
    fn look_at_waiting(&self) -> bool {
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        let mut all = Receipt::default();
        for member in &members.list {
            if member.has_waiting() {
                all.add(member.receive(ReceivingThread::Poll));
                if member.has_waiting() {
                    self.has_waiting();
                }
            }
        }
        all.worked
    }

    /// A new member is watched as the others are, though the lane may have been disarmed, or armed, since it
    /// came.
    pub(crate) fn settle(&self, endpoint: &Endpoint) {
        self.lane_watch.hold(|armed| endpoint.watch(armed));
    }

    /// A connection has ended: its socket is not asked any more.
    pub(crate) fn quiet(&self, fd: RawFd) {
        // Called from within polls, so only a shared lock is taken; the member itself goes with its queue
        // pair.
        if let Ok(members) = self.members.try_read()
            && let Some(epoll) = &members.epoll
        {
            epoll.remove(fd);
        }
    }

    /// A member's socket is full. Not within polls, which hold the members.
    pub(crate) fn waits_for_room(&self) {
        self.lane_watch.waits_for_room();
    }

    /// The queue pair is gone.
    pub(crate) fn remove(&self, endpoint: &Endpoint) {
        let mut members = self.members.write().unwrap_or_else(|e| e.into_inner());
        members.list.retain(|member| !std::ptr::eq(&**member, endpoint));
        members.by_number.remove(&(std::ptr::from_ref(endpoint) as u64));
    }

    /// The background thread has received for a member.
    pub(crate) fn received_in_background(&self) {
        self.asks_sockets();
        self.lane_watch.received_in_background();
    }

    /// Says whether posts wait to be gathered.
    #[inline]
    pub(crate) fn gathering(&self) -> &Arc<Gathering> {
        &self.gathering
    }

    /// The program is about to sleep: posts that wait to be gathered leave, and posts leave at once until the
    /// program polls again.
    fn rest(&self) {
        if self.gathering.rest() {
            self.send_off();
        }
    }

    /// Whether the background thread watches.
    pub(crate) fn is_armed(&self) -> bool {
        self.lane_watch.is_armed()
    }
}

impl Lane {
    /// Drains the channels, by which messages come without TCP.
    #[inline]
    fn poll_channels(&self) -> bool {
        let channels = &self.host.hub.channels;
        // If another thread has the snapshot, that thread polls the channels.
        channels.any()
            && self
                .seen
                .try_lock()
                .is_some_and(|mut seen| seen.poll(channels, std::ptr::from_ref(self) as usize))
    }
}

impl CqLane for Lane {
    #[inline]
    fn poll(&self) -> bool {
        let takes = self.gathering.polled();
        let mut worked = self.poll_channels();
        if self.has_waiting.load(Ordering::Relaxed) && self.has_waiting.swap(false, Ordering::SeqCst) {
            worked |= self.look_at_waiting();
        }
        if self.leaves_sockets.load(Ordering::Relaxed) {
            if takes {
                self.send_off();
            }
            return worked | self.host.hub.copies.poll();
        }
        self.lane_watch.polled();
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        if takes {
            members.send_off();
        }
        let mut all = Receipt::default();
        if let Some(epoll) = &members.epoll {
            let mut ready = [libc::epoll_event { events: 0, u64: 0 }; 16];
            for event in epoll.ready(&mut ready) {
                if let Some(member) = members.by_number.get(&{ event.u64 }) {
                    all.add(member.receive(ReceivingThread::Poll));
                }
            }
        } else {
            for member in &members.list {
                all.add(member.receive(ReceivingThread::Poll));
            }
        }
        let full = members.wait_for_room();
        drop(members);
        if all.worked {
            self.in_vain.store(0, Ordering::Relaxed);
        } else if self.host.hub.channels.any() {
            self.found_nothing();
        }
        if all.worked {
            self.lane_watch.weigh(all.one_sided);
        }
        if full {
            self.lane_watch.waits_for_room();
        }
        worked | all.worked | self.host.hub.copies.poll()
    }

    fn arm(&self) {
        self.rest();
        self.lane_watch.arm();
        self.host.hub.channels.arm();
    }

    fn serve(&self) {
        self.has_sleepers.store(true, Ordering::SeqCst);
        self.lane_watch.serve();
    }

    fn begin_sleep(&self) {
        self.rest();
        self.asks_sockets();
        self.lane_watch.begin_sleep();
        // Channels have no descriptors for the program: the background thread takes in their messages.
        self.host.hub.channels.arm();
    }

    fn end_sleep(&self) {
        self.lane_watch.end_sleep();
    }

    fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        for member in &self.members.read().unwrap_or_else(|e| e.into_inner()).list {
            if let Some(fd) = member.descriptor() {
                let full = member.is_full.load(Ordering::SeqCst);
                let events = libc::POLLIN | if full { libc::POLLOUT } else { 0 };
                list.push(libc::pollfd { fd, events, revents: 0 });
            }
        }
    }
}

impl GatheredLane for Lane {
    // Not within polls, which hold the members.
    fn send_off(&self) {
        let members = self.members.read().unwrap_or_else(|e| e.into_inner());
        members.send_off();
        let full = members.wait_for_room();
        drop(members);
        if full {
            self.lane_watch.waits_for_room();
        }
    }
}

impl WatchedLane for Lane {
    fn watch(&self, on: bool) {
        for member in &self.members.read().unwrap_or_else(|e| e.into_inner()).list {
            member.watch(on);
        }
    }

    fn may_rest(&self) -> bool {
        (1..=ASK_EACH).contains(&self.members.read().unwrap_or_else(|e| e.into_inner()).list.len())
    }

    fn waits_for_room(&self) -> bool {
        self.members.read().unwrap_or_else(|e| e.into_inner()).wait_for_room()
    }
}

/// An epoll instance over the lane's sockets.
struct Epoll(RawFd, ForkGeneration);

impl Epoll {
    fn new() -> Option<Self> {
        // SAFETY: a plain flag.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        fork::own_descriptor(fd);
        Some(Self(fd, ForkGeneration::now()))
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
        // SAFETY: a live slice; no waiting, no signal mask. No cancellation point, as this is called in
        // polls.
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
