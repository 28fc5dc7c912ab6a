//! The lanes of a completion queue: the receiving sides that its polls drive.

use super::CompletionQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The receiving side of the queue pairs that complete on a completion queue, which its polls drive.
///
/// The thread that gets a lane's try-lock drains it. While no thread of the program drains it, the background
/// thread does.
pub trait Lane: Send + Sync {
    /// Takes in packets that have arrived and sends those that are due, without ever waiting. Returns whether
    /// anything was done.
    fn poll(&self) -> bool;
    /// A poll gives the program completions of a queue of this lane. Any thread may have taken in their
    /// packets. Only after [`tell_of_finds`].
    fn found(&self) {}
    /// A poll has done something, and the program gets no completion for it. The program may not poll again
    /// soon, so posts that wait to be gathered leave.
    fn settle(&self) {}
    /// Whether the lane lives as long as its process: then completion queues may keep it, and poll it when no
    /// queue pair needs it any more.
    fn lasts(&self) -> bool {
        false
    }
    /// A completion queue of the lane was armed: the program is about to sleep, so the background thread must
    /// watch the lane.
    fn arm(&self);
    /// Threads that poll the queue from now on serve one-sided requests, too: the background thread keeps off
    /// while polls go on.
    fn serve(&self) {}
    /// A thread is about to sleep until one of the lane's descriptors is ready, and polls then. Where there
    /// are none, it is as good as armed.
    fn begin_sleep(&self) {
        self.arm();
    }
    /// A thread that slept on the lane sleeps no more.
    fn end_sleep(&self) {}
    /// Appends the descriptors of the lane, each with the events to wait for.
    fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        let _ = list;
    }
}

/// Lanes are told when polls find something.
static FINDS: AtomicBool = AtomicBool::new(false);

/// From now on [`Lane::found`] is called. Programs whose transports have no need of it are spared that.
pub fn tell_of_finds() {
    FINDS.store(true, Ordering::Relaxed);
}

/// Whether lanes are told when polls find something. If not, no thread has found anything by a lane that it
/// does not post to.
#[inline]
pub(crate) fn are_finds_told() -> bool {
    FINDS.load(Ordering::Relaxed)
}

impl CompletionQueue {
    #[inline]
    pub(super) fn settle(&self) {
        self.each_lane(|lane| lane.settle());
    }

    /// Tells the lanes that a poll gives the program completions. Out of line: where no transport has asked
    /// for that, a poll pays for one look at a flag.
    #[cold]
    #[inline(never)]
    pub(crate) fn found(&self) {
        self.each_lane(|lane| lane.found());
    }

    #[inline]
    pub(super) fn only_lane(&self) -> Option<&Arc<dyn Lane>> {
        if self.is_alone.load(Ordering::Acquire) { self.first.get() } else { None }
    }

    /// Drives the lanes once.
    #[inline(always)]
    pub fn progress(&self) -> bool {
        match self.only_lane() {
            Some(lane) => lane.poll(),
            None => self.drive_all(),
        }
    }

    #[inline(never)]
    pub(super) fn drive_all(&self) -> bool {
        let lanes = self.lanes.read().unwrap_or_else(|e| e.into_inner());
        let mut worked = false;
        for (lane, _) in lanes.iter() {
            worked |= lane.poll();
        }
        worked
    }

    #[inline]
    pub(super) fn each_lane(&self, mut act: impl FnMut(&dyn Lane)) {
        if let Some(lane) = self.only_lane() {
            return act(&**lane);
        }
        for (lane, _) in self.lanes.read().unwrap_or_else(|e| e.into_inner()).iter() {
            act(&**lane);
        }
    }

    /// Attaches a lane, once for each queue pair that uses it here.
    pub fn attach_lane(&self, lane: &Arc<dyn Lane>) {
        let mut lanes = self.lanes.write().unwrap_or_else(|e| e.into_inner());
        match lanes.iter_mut().find(|(known, _)| Arc::ptr_eq(known, lane)) {
            Some((_, uses)) => *uses += 1,
            None => lanes.push((lane.clone(), 1)),
        }
        self.look_who_is_alone(&lanes);
    }

    /// Detaches it again. Not from within [`Lane::poll`].
    pub fn detach_lane(&self, lane: &Arc<dyn Lane>) {
        let mut lanes = self.lanes.write().unwrap_or_else(|e| e.into_inner());
        if let Some(place) = lanes.iter().position(|(known, _)| Arc::ptr_eq(known, lane)) {
            lanes[place].1 -= 1;
            if lanes[place].1 == 0 {
                lanes.remove(place);
            }
        }
        self.look_who_is_alone(&lanes);
    }

    pub(super) fn look_who_is_alone(&self, lanes: &[(Arc<dyn Lane>, usize)]) {
        let alone = match lanes {
            [(lane, _)] if lane.lasts() => Arc::ptr_eq(self.first.get_or_init(|| lane.clone()), lane),
            _ => false,
        };
        self.is_alone.store(alone, Ordering::Release);
    }
}
