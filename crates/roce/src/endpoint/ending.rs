//! The end of a queue pair's work: by an error, or by its program.

use super::{Endpoint, EndpointKind, EndpointState};
use crate::link::FinalReply;
use crate::lock;
use adverb_core::event::AsyncEventKind;
use adverb_core::lock::LockGuard;
use adverb_core::qp::State;
use std::sync::Arc;

impl Endpoint {
    pub(super) fn tell_end(&self) {
        let observer = lock(&self.observer).take();
        if let Some(observer) = observer {
            observer.ended();
        }
    }

    /// The queue pair goes to error because of an event on it; its requests are flushed. `ready`: others that
    /// may send now.
    #[cold]
    pub(super) fn fail(&self, mut inner: LockGuard<'_, EndpointState>, ready: &mut Vec<Arc<Endpoint>>) {
        inner.state = State::Error;
        let kept_out = match &mut inner.kind {
            EndpointKind::Connected(link) => link.keep_out(),
            _ => None,
        };
        let event = self.stop(&mut inner, ready);
        // With the lock: the program may reset the queue pair as soon as it is free, and an error after that
        // would be a new one.
        self.queues.enter_error();
        // A thread of the peer's process in the middle of an operation here ends it before the program is
        // told, and before the queue pair can begin anew.
        drop(kept_out);
        self.queues.counters.connections_lost.add(1);
        // With the lock, too: requests that are posted after a reset are not to be flushed.
        self.queues.flush();
        drop(inner);
        // IB-QP-39
        if let Some(event) = event {
            self.queues.raise(event);
        }
        self.tell_end();
    }

    /// Takes the queue pair to error as [`Endpoint::fail`] does, and rings the other queue pairs that may
    /// send now.
    #[cold]
    pub(super) fn fail_and_ring(&self, inner: LockGuard<'_, EndpointState>) {
        let mut ready = Vec::new();
        self.fail(inner, &mut ready);
        ready.iter().for_each(|other| other.ring());
    }

    /// Nothing is sent or taken in any more. Returns the event for the program when the queue pair is in
    /// error. `ready`: others that may send now.
    pub(super) fn stop(
        &self,
        inner: &mut EndpointState,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> Option<AsyncEventKind> {
        self.set_pending_ack(false);
        self.gather.forget();
        match std::mem::replace(&mut inner.kind, EndpointKind::Nothing) {
            EndpointKind::Nothing => None,
            EndpointKind::Connected(mut link) => {
                // Otherwise nothing comes by the network.
                if !self.beside.end() {
                    self.lane.count_network(false);
                }
                link.stop(self, ready)
            }
            EndpointKind::Datagram(link) => {
                self.lane.count_network(false);
                link.stop(self);
                None
            }
        }
    }

    /// Stops the queue pair as [`Endpoint::stop`] does, because its program ends it. Returns also the last
    /// answers to the peer. Without them the peer would repeat its requests in vain, until it fails.
    // IB-RC-RSP-49
    pub(super) fn end(
        &self,
        inner: &mut EndpointState,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> (Option<AsyncEventKind>, Vec<FinalReply>) {
        let words = match &mut inner.kind {
            EndpointKind::Connected(link) => link.final_replies(),
            _ => Vec::new(),
        };
        (self.stop(inner, ready), words)
    }

    /// Sends the last answers to the peer. Afterwards the process may vanish.
    pub(super) fn say(&self, words: &[FinalReply]) {
        words.iter().for_each(|word| word.send(&self.lane));
        if words.is_empty() {
            // Another thread may have taken the acknowledgement over, and be about to send it.
            self.lane.wait_for_sender();
        }
    }
}
