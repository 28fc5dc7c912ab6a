//! The receiving side of queue pairs without a receive queue. Each message of XRC takes its receive from the shared receive queue that it names. A queue
//! pair that spreads frames takes the receive of each from the work queue that its hash chooses.

use super::{Queues, ReceiveWork, Receives};
use crate::event::AsyncEventKind;
use crate::flow::Headers;
use crate::rss::{Hash, IndirectionTable};
use crate::srq::SharedReceiveQueue;
use crate::xrc::{Lists, XrcDomain};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};

/// The members that a target queue pair has instead of queues.
pub(super) struct ExtendedTarget {
    from: From,
    /// The queue that the last packet named, or that its hash has chosen.
    chosen: Mutex<Option<Arc<SharedReceiveQueue>>>,
    /// Where the receive was taken that is not complete.
    taken: Mutex<Option<Arc<SharedReceiveQueue>>>,
    /// The handles of the queue pair: the word that events carry, and the domain that the handle was made or opened with.
    handles: Mutex<Vec<(u64, Arc<XrcDomain>)>>,
}

/// Which queues there are to choose from.
enum From {
    Domain(Arc<XrcDomain>),
    Table(Arc<IndirectionTable>, Hash),
}

/// The shared receive queues of a domain while packets are taken in: none of them goes meanwhile. A thread has one at a time.
pub struct SharedQueues<'a>(RwLockReadGuard<'a, Lists>);

impl ExtendedTarget {
    pub(super) fn new(domain: &Arc<XrcDomain>) -> Self {
        Self::from(From::Domain(domain.clone()))
    }

    pub(super) fn hashed(table: &Arc<IndirectionTable>, hash: Hash) -> Self {
        Self::from(From::Table(table.clone(), hash))
    }

    fn from(from: From) -> Self {
        Self { from, chosen: Mutex::default(), taken: Mutex::default(), handles: Mutex::default() }
    }

    /// The XRC domain of a target queue pair.
    pub(super) fn domain(&self) -> Option<&Arc<XrcDomain>> {
        match &self.from {
            From::Domain(domain) => Some(domain),
            From::Table(..) => None,
        }
    }

    /// The queue pair is made: its table of work queues has a user more.
    pub(super) fn begin(&self) {
        if let From::Table(table, _) = &self.from {
            table.users().enter();
        }
    }

    /// The queue pair is destroyed.
    pub(super) fn end(&self) {
        if let From::Table(table, _) = &self.from {
            table.users().leave();
        }
    }

    /// Adds a handle. False if the queue pair ends at this moment, since it has no handle any more.
    pub(super) fn enter(&self, cookie: u64, domain: &Arc<XrcDomain>, is_new: bool) -> bool {
        let mut handles = lock(&self.handles);
        if handles.is_empty() && !is_new {
            return false;
        }
        domain.users().enter();
        handles.push((cookie, domain.clone()));
        true
    }

    /// Takes a handle away. Returns whether none is left.
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

    pub(super) fn take(&self) -> Option<ReceiveWork> {
        let queue = lock(&self.chosen).clone()?;
        let work = queue.take()?;
        *lock(&self.taken) = Some(queue);
        Some(work)
    }

    /// Where the receive was taken that is not complete.
    pub(super) fn taken(&self) -> MutexGuard<'_, Option<Arc<SharedReceiveQueue>>> {
        lock(&self.taken)
    }
}

impl Queues {
    /// Of a target queue pair: the shared receive queues of its domain, to be held while a packet is taken in.
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
            Receives::Extended(extended) => match &extended.from {
                From::Table(table, _) => table.queues(),
                From::Domain(_) => &[],
            },
            _ => &[],
        }
    }

    /// A frame comes: where frames are spread over work queues, its hash chooses the one whose receive it takes.
    pub fn choose_work_queue(&self, headers: &Headers) {
        if let Receives::Extended(extended) = &self.receives
            && let From::Table(table, hash) = &extended.from
        {
            *lock(&extended.chosen) = Some(table.choose(hash.of(headers)).clone());
        }
    }

    /// The protection domain of the queue with this number, in which a message that names it finds its keys.
    // IB-XRC-6
    pub fn shared_queue_domain(held: &SharedQueues<'_>, number: u32) -> Option<u32> {
        held.0.queue(number).map(|queue| queue.domain().number())
    }

    /// The message that is being taken in is for the queue with this number. Returns that one's protection domain; None if the XRC domain
    /// has no such queue.
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
