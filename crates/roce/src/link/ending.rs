//! Requests that fail, what is sent again, and the end.

use super::{Link, PeerLocation, READ_CHUNK, requests};
use crate::endpoint::{Endpoint, Turn};
use crate::host::{NOWHERE, Responses, status};
use crate::lock;
use adverb_core::event::AsyncEventKind;
use adverb_core::qp::SendCursor;
use adverb_core::request::Status;
use adverb_proto::ib::{CompletionStatus, Requester, RequesterOptions};
use adverb_wire::ib::header::DEFAULT_PKEY;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Link {
    /// A request fails on this side. Returns whether the queue pair is in error.
    pub(super) fn fail(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        sequence: u64,
        end: CompletionStatus,
        turn: &mut Turn,
    ) -> bool {
        let queues = &endpoint.queues;
        let Some(requester) = &mut *self.requester else { return false };
        if !self.reliable {
            queues.fail_send(cursor, sequence, status(end));
            turn.stopped = true;
            // Back in RTS it begins anew, behind what it has sent.
            let psn = requester.next_psn();
            *self.requester = None;
            self.restart(psn);
            return false;
        }
        let feedback = requester.fail(sequence, end, &mut requests(queues, self.location.near()));
        if self.near().is_none() {
            lock(&self.peer.window).released(feedback.rewound);
        }
        feedback.failed
    }

    /// The oldest unanswered request fails with the status of exhausted retries.
    #[cold]
    pub(super) fn give_up(&mut self, endpoint: &Endpoint, mut turn: Turn) -> Turn {
        if let Some(requester) = &mut *self.requester
            && let Some(sequence) = requester.oldest()
        {
            let mut host = requests(&endpoint.queues, self.location.near());
            let feedback = requester.fail(sequence, CompletionStatus::RetryExceeded, &mut host);
            turn.failed |= feedback.failed;
        }
        turn.more = false;
        turn
    }

    pub(super) fn restart(&mut self, psn: u32) {
        *self.requester = Some(Requester::new(RequesterOptions {
            service: adverb_proto::ib::Service::Uc,
            mtu: self.mtu,
            first_psn: psn,
            destination: self.destination,
            pkey: DEFAULT_PKEY,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_reads: 0,
            room: u32::MAX,
            read_chunk: READ_CHUNK,
        }));
    }

    /// A deadline has passed. Returns whether the queue pair is in error.
    pub(crate) fn handle_timeout(
        &mut self,
        endpoint: &Endpoint,
        now: Duration,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> bool {
        let Some(requester) = &mut *self.requester else { return false };
        let mut host = requests(&endpoint.queues, self.location.near());
        let feedback = requester.handle_timeout(now, &mut host);
        self.learn(endpoint, feedback, now, ready);
        feedback.failed
    }

    /// The peer's process does nothing here by itself any more, once what this returns has been dropped.
    pub(crate) fn keep_out(&mut self) -> Option<impl Sized + use<>> {
        match &mut self.location {
            PeerLocation::Near(near) => near.keep_out(),
            _ => None,
        }
    }

    /// The queue pair goes to error or away: nothing is sent or taken in any more. Returns what the program
    /// is to be told when it is there. `ready`: others that may send now.
    pub(crate) fn stop(
        &mut self,
        endpoint: &Endpoint,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> Option<AsyncEventKind> {
        self.peer.forget(endpoint);
        if let PeerLocation::Near(near) = &mut self.location {
            near.end(endpoint);
            *self.requester = None;
        }
        if let Some(requester) = self.requester.take() {
            lock(&self.peer.window).released(requester.in_flight());
            self.peer.wake(ready);
        }
        let mut host =
            Responses::new(&endpoint.queues, &NOWHERE, &mut self.taken, &mut self.receives, &mut self.kept);
        host.give_up(Status::Flushed);
        drop(host);
        // Nobody waits for the rest of a message.
        endpoint.is_receiving.store(false, Ordering::SeqCst);
        self.refused.take()
    }
}
