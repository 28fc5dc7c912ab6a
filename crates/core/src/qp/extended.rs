//! The receiving side of queue pairs without a receive queue. Each message of XRC takes its receive from the
//! shared receive queue that it names. A queue pair that spreads frames (RSS) takes the receive of each from
//! the work queue that its hash chooses.
//!
//! Caller: functions that choose, take or complete a receive run with the transport's lock of the receiving
//! side, one thread at a time. Any thread may call those about handles.

use super::{Queues, ReceiveWork, Receives};
use crate::event::AsyncEventKind;
use crate::flow::Headers;
use crate::rss::{Hash, IndirectionTable};
use crate::srq::SharedReceiveQueue;
use crate::xrc::{Lists, XrcDomain};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};

/// The members that such a queue pair has instead of a receive queue.
pub(super) struct ExtendedTarget {
    choice: Choice,
    /// The queue that the last packet named, or that its hash has chosen. Its mutex and the next one are not
    /// contended: the transport's lock is around them.
    chosen: Mutex<Option<Arc<SharedReceiveQueue>>>,
    /// The queue of the receive in progress: taken, and not completed yet.
    in_progress: Mutex<Option<Arc<SharedReceiveQueue>>>,
    /// The handles of an XRC target: the word that events carry, and the domain that the handle was made or
    /// opened with. Empty with RSS.
    handles: Mutex<Vec<(u64, Arc<XrcDomain>)>>,
}

/// The queues from which a message or its hash chooses.
enum Choice {
    XrcDomain(Arc<XrcDomain>),
    Rss(Arc<IndirectionTable>, Hash),
}

/// The shared receive queues of a domain while packets are taken in. While this guard lives, no shared
/// receive queue of the domain is destroyed. A thread must not take a second one: a waiting writer would
/// deadlock it.
pub struct SharedQueues<'a>(RwLockReadGuard<'a, Lists>);

impl ExtendedTarget {
    pub(super) fn new(domain: &Arc<XrcDomain>) -> Self {
        Self::of(Choice::XrcDomain(domain.clone()))
    }

    pub(super) fn hashed(table: &Arc<IndirectionTable>, hash: Hash) -> Self {
        Self::of(Choice::Rss(table.clone(), hash))
    }

    fn of(choice: Choice) -> Self {
        Self { choice, chosen: Mutex::default(), in_progress: Mutex::default(), handles: Mutex::default() }
    }

    /// The XRC domain of a target queue pair. None with RSS.
    pub(super) fn domain(&self) -> Option<&Arc<XrcDomain>> {
        match &self.choice {
            Choice::XrcDomain(domain) => Some(domain),
            Choice::Rss(..) => None,
        }
    }

    /// Counts the queue pair as a user of the indirection table of RSS. Called once, as the queue pair is
    /// made.
    pub(super) fn begin(&self) {
        if let Choice::Rss(table, _) = &self.choice {
            table.users().enter();
        }
    }

    /// Releases the indirection table of RSS. Called once after [`ExtendedTarget::begin`], as the queue pair
    /// is destroyed. An XRC target releases its domain with each handle ([`ExtendedTarget::leave`]).
    pub(super) fn end(&self) {
        if let Choice::Rss(table, _) = &self.choice {
            table.users().leave();
        }
    }

    /// Adds a handle, which counts as a user of `domain`. `is_new`: the first handle, of the creator. Another
    /// one (ibv_open_qp(3)) fails with false once the last handle has gone.
    pub(super) fn enter(&self, cookie: u64, domain: &Arc<XrcDomain>, is_new: bool) -> bool {
        let mut handles = lock(&self.handles);
        if handles.is_empty() && !is_new {
            return false;
        }
        domain.users().enter();
        handles.push((cookie, domain.clone()));
        true
    }

    /// Takes a handle away, and its use of the domain. Returns whether none is left.
    pub(super) fn leave(&self, cookie: u64) -> bool {
        let mut handles = lock(&self.handles);
        if let Some(place) = handles.iter().position(|(known, _)| *known == cookie) {
            let (_, domain) = handles.swap_remove(place);
            domain.users().leave();
        }
        handles.is_empty()
    }

    /// Tells each handle's context of an event.
    pub(super) fn raise(&self, kind: AsyncEventKind) {
        for (cookie, domain) in lock(&self.handles).iter() {
            domain.context().raise(kind, *cookie);
        }
    }

    /// Takes a receive of the chosen queue. None if no queue is chosen, or the queue has no receive left.
    pub(super) fn take_receive(&self) -> Option<ReceiveWork> {
        let queue = lock(&self.chosen).clone()?;
        let work = queue.take()?;
        *lock(&self.in_progress) = Some(queue);
        Some(work)
    }

    /// The queue of the receive in progress: taken, and not completed yet. The caller that completes the
    /// receive takes the queue out.
    pub(super) fn queue_in_progress(&self) -> MutexGuard<'_, Option<Arc<SharedReceiveQueue>>> {
        lock(&self.in_progress)
    }
}

impl Queues {
    /// Of a target queue pair: the shared receive queues of its domain, to be held while a packet is taken
    /// in.
    pub fn shared_queues(&self) -> Option<SharedQueues<'_>> {
        match &self.receives {
            Receives::Extended(extended) => {
                extended.domain().map(|domain| SharedQueues(domain.members().hold()))
            }
            _ => None,
        }
    }

    /// The work queues of a queue pair that spreads its frames; none of another one.
    pub fn work_queues(&self) -> &[Arc<SharedReceiveQueue>] {
        match &self.receives {
            Receives::Extended(extended) => match &extended.choice {
                Choice::Rss(table, _) => table.queues(),
                Choice::XrcDomain(_) => &[],
            },
            _ => &[],
        }
    }

    /// Chooses the work queue for an incoming frame by its hash. No effect on queue pairs without RSS.
    pub fn choose_work_queue(&self, headers: &Headers) {
        if let Receives::Extended(extended) = &self.receives
            && let Choice::Rss(table, hash) = &extended.choice
        {
            *lock(&extended.chosen) = Some(table.choose(hash.of(headers)).clone());
        }
    }

    /// The protection domain of the queue with this number, in which a message that names it finds its keys.
    // IB-XRC-6
    pub fn shared_queue_domain(held: &SharedQueues<'_>, number: u32) -> Option<u32> {
        held.0.queue(number).map(|queue| queue.domain().number())
    }

    /// The message that is being taken in is for the queue with this number. Returns the protection domain of
    /// that queue. None, and no queue is chosen, if the XRC domain has none with this number.
    // IB-XRC-3, IB-XRC-4
    pub fn choose_shared_queue(&self, held: &SharedQueues<'_>, number: u32) -> Option<u32> {
        let Receives::Extended(extended) = &self.receives else { return None };
        let queue = held.0.queue(number);
        let domain = queue.as_ref().map(|queue| queue.domain().number());
        *lock(&extended.chosen) = queue;
        domain
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
