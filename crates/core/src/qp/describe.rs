//! The description of a queue pair for another process ([`crate::inspect`]).

use super::QueuePair;
use super::queues::Receives;
use crate::inspect::{AnswerLine, Kind};
use crate::request::Status;
use std::net::Ipv6Addr;
use std::sync::TryLockError;

/// The line of an answer about a queue pair, written in the background thread.
pub(super) fn queue_pair(pair: &QueuePair) -> String {
    let queues = pair.queues();
    let (posted, done) = queues.send.progress();
    let mut line = AnswerLine::of(Kind::QueuePair)
        .with("device", pair.context().device().name())
        .with("number", pair.number())
        .with("service", queues.service)
        .with("state", pair.state())
        .with("domain", queues.domain)
        .with("send_posted", posted)
        .with("send_done", done)
        .with("send_room", queues.send.capacity())
        .with("send_cq", queues.send_cq.number())
        .with("receive_cq", queues.receive_cq.number());
    line = match &queues.receives {
        Receives::Own(queue) => {
            let (posted, taken) = queue.progress();
            let line = line.with("receive_posted", posted).with("receive_taken", taken);
            line.with("receive_room", queue.capacity())
        }
        Receives::Shared { queue, held, .. } => {
            let (left, room) = queue.fill();
            let line = line.with("srq", queue.number()).with("srq_left", left).with("srq_room", room);
            line.with("receive_taken", held.in_all())
        }
        Receives::Extended(_) | Receives::Nowhere => line,
    };
    // A thread of the program that changes it may wait for this one.
    let control = match pair.control.try_lock() {
        Ok(control) => Some(*control),
        Err(TryLockError::Poisoned(poisoned)) => Some(*poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some(attributes) = control {
        line = line.with("sq_psn", attributes.sq_psn).with("rq_psn", attributes.rq_psn);
        if attributes.destination != 0 {
            line = line.with("peer", attributes.destination);
        }
        if attributes.path.gid != [0; 16] {
            line = line.with("peer_address", Ipv6Addr::from(attributes.path.gid).to_canonical());
        }
    }
    match queues.last_failure() {
        Some(status) => line.with("error", status).text(),
        None => line.text(),
    }
}

impl QueuePair {
    /// How many of its receives no message has taken. None: it has none of its own, and no shared receive
    /// queue.
    pub fn receives_left(&self) -> Option<u64> {
        match &self.queues().receives {
            Receives::Own(queue) => {
                let (posted, taken) = queue.progress();
                Some(posted.saturating_sub(taken))
            }
            Receives::Shared { queue, .. } => Some(u64::from(queue.fill().0)),
            Receives::Extended(_) | Receives::Nowhere => None,
        }
    }
}

/// The last status with which a request has failed, in one atomic byte; 0 for none.
#[derive(Default)]
pub(super) struct LastFailure(std::sync::atomic::AtomicU8);

impl LastFailure {
    /// A request has failed. That others were flushed follows from it.
    pub(super) fn note(&self, status: Status) {
        if status != Status::Flushed {
            self.0.store(status as u8, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The status of the last request that failed. None if there was none since the queue pair was made or
    /// reset.
    pub(super) fn get(&self) -> Option<Status> {
        let number = self.0.load(std::sync::atomic::Ordering::Relaxed);
        Status::from_number(number.into()).filter(|status| *status != Status::Success)
    }

    /// The queue pair begins anew.
    pub(super) fn forget(&self) {
        self.0.store(Status::Success as u8, std::sync::atomic::Ordering::Relaxed);
    }
}
