//! The end of a connection: by an error, by either side, or with the process.

use super::{Cause, Endpoint, ReadSink, ReceivingThread, is_refusal};
use crate::behind::Wait;
use crate::receive::Rx;
use crate::{linger, lock};
use adverb_core::clock;
use adverb_core::cm::ConnectionEvent;
use adverb_core::event::AsyncEventKind;
use adverb_core::log;
use adverb_core::request::Status;
use adverb_proto::iwarp::{Fault, Terminate};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long an orderly disconnect may take to send the requests that were posted before it.
const DRAIN: Duration = Duration::from_secs(1);

impl Endpoint {
    /// Ends the connection, with the receive lock held. Afterwards call `report_end` without it.
    pub(super) fn end(&self, rx: &mut Option<Rx>, cause: Cause) {
        let Some(rx) = rx.take() else { return };
        let mut tx = lock(&self.tx).take();
        if let Some(tx) = &mut tx {
            tx.end(self);
        }
        self.goes_by_tcp();
        self.waits.store(false, Ordering::SeqCst);
        self.needs_socket.store(false, Ordering::Relaxed);
        self.is_copying.store(false, Ordering::SeqCst);
        self.is_full.store(false, Ordering::SeqCst);
        self.queues.enter_error();
        let number = self.queues.number;
        let counters = self.queues.counters;
        match &cause {
            Cause::Closed => log!(Info, "queue pair {number:#x}: the peer closed the connection"),
            Cause::Here => log!(Info, "queue pair {number:#x}: disconnected"),
            Cause::Request { status, .. } => {
                log!(Warn, "queue pair {number:#x}: a request failed: {status}")
            }
            Cause::Fault(fault, _) => log!(Warn, "queue pair {number:#x}: terminated: {fault}"),
            Cause::Terminated(terminate) => {
                log!(Warn, "queue pair {number:#x}: the peer terminated: {terminate}")
            }
            Cause::Lost(error) => log!(Warn, "queue pair {number:#x}: connection lost: {error}"),
        }
        // RFC5040-6.2.1-1, RFC5040-7.1-2, RFC5041-6.2.2-4, RFC5041-7.1-14
        let terminate = match &cause {
            Cause::Fault(fault, terminate) => {
                match fault {
                    Fault::Crc | Fault::Marker => counters.damaged.add(1),
                    fault if is_refusal(*fault) => counters.refused.add(1),
                    _ => {}
                }
                Some(*terminate)
            }
            Cause::Request { .. } => Some(Terminate::local(Fault::CatastrophicStream)),
            _ => None,
        };
        // In its place: a copy would need stack.
        if let (Some(tx), Some(terminate)) = (&mut tx, terminate) {
            counters.terminates_sent.add(1);
            tx.send_terminate(self, terminate);
        }
        drop(tx);
        let (socket, token, timers, place) = {
            let mut link = lock(&self.link);
            link.ended = Some(match &cause {
                Cause::Lost(error) => -error.raw_os_error().unwrap_or(libc::ECONNRESET),
                Cause::Here | Cause::Closed => 0,
                _ => -libc::ECONNRESET,
            });
            let timers = [link.drain.take(), link.first_frame_timer.take()];
            (link.socket.take(), link.token.take(), timers, link.place.take())
        };
        drop(place);
        if let Some(socket) = &socket {
            self.lane.quiet(socket.fd());
            if let Some(token) = token {
                self.queues.engine.reactor.remove(token, socket.fd());
            }
        }
        for timer in timers.into_iter().flatten() {
            self.queues.engine.reactor.cancel_timer(timer);
        }
        rx.give_up(self);
        self.end_requests(&cause);
        self.queues.flush();
        if !matches!(cause, Cause::Here | Cause::Closed) {
            counters.connections_lost.add(1);
        }
        match &cause {
            Cause::Fault(fault, _) if is_refusal(*fault) => self.queues.raise(AsyncEventKind::QpAccessError),
            Cause::Fault(..) => self.queues.raise(AsyncEventKind::QpRequestError),
            Cause::Terminated(_) | Cause::Request { .. } => self.queues.raise(AsyncEventKind::QpFatal),
            Cause::Lost(_) | Cause::Closed | Cause::Here => {}
        }
        if let Some(socket) = socket {
            // RFC5040-6.2.1-3, RFC5041-3-4, RFC5041-6.2.1-3
            linger::start(socket, &self.queues.engine.reactor);
        }
    }

    /// Ends the requests that the cause itself explains; the flush ends the others.
    // RFC5041-6.2.2-3, RFC5041-3-1, RFC5040-5.4-5, RFC5040-6.2.1-2, RFC5040-7.1-1
    pub(super) fn end_requests(&self, cause: &Cause) {
        let mut reads = lock(&self.reads);
        match cause {
            Cause::Request { sequence, status } => self.queues.complete_send(*sequence, *status),
            Cause::Terminated(terminate) => {
                // A refused read is the one that the peer was answering: the oldest.
                if terminate.read_request().is_some()
                    && let Some(ReadSink { sequence: Some(sequence), .. }) = reads.front()
                {
                    self.queues.complete_send(*sequence, Status::RemoteAccess);
                }
            }
            _ => {}
        }
        while reads.pop().is_some() {}
        drop(reads);
        let mut inbound = lock(&self.inbound);
        while inbound.pop().is_some() {}
    }

    /// Tells the connection manager once that the connection is over.
    // RFC5041-6.2.2-1
    pub(super) fn report_end(&self) {
        let (sink, status, unreported) = {
            let mut link = lock(&self.link);
            if link.reporting {
                return;
            }
            let Some(status) = link.ended.take() else { return };
            (link.sink.take(), status, link.established.take().is_some())
        };
        if let Some(sink) = sink {
            sink.event(match status {
                _ if !unreported => ConnectionEvent::Disconnected,
                0 => ConnectionEvent::Failed { status: -libc::ECONNRESET },
                status if status == -libc::ETIMEDOUT => ConnectionEvent::Unreachable { status },
                status => ConnectionEvent::Failed { status },
            });
        }
    }

    /// Sending has failed, but bytes that came before are still in the socket: messages, perhaps the peer's
    /// Terminate. Takes them in. Returns the cause by which the connection ends, none while messages wait,
    /// and whether the first frame was among those bytes.
    // RFC5041-6.2.1-5
    pub(super) fn final_frames(&self, rx: &mut Rx, error: io::Error) -> (Option<Cause>, bool) {
        self.is_ending.store(true, Ordering::SeqCst);
        let mut first = false;
        // Bounded: TCP's buffers are far smaller than this.
        for _ in 0..64 {
            let taken = rx.take_in(self, ReceivingThread::Poll);
            first |= taken.first;
            if let Some(cause) = taken.cause {
                return (Some(cause), first);
            }
            if !taken.more {
                break;
            }
        }
        // Messages of a peer that breaks the rules are not waited for.
        if rx.has_final_frames() && error.raw_os_error() != Some(libc::EPROTO) {
            rx.loses(error);
            // The background thread looks whether they still wait.
            self.behind.look_soon(self, Wait::begin(clock::device()));
            return (None, first);
        }
        (Some(Cause::Lost(error)), first)
    }

    /// Ends the connection from this side, at once.
    pub(super) fn shut(&self, cause: Cause) {
        let mut guard = lock(&self.rx);
        let (cause, first) = match (cause, &mut *guard) {
            (Cause::Lost(error), Some(rx)) => self.final_frames(rx, error),
            (cause, _) => (Some(cause), false),
        };
        let goes_on = cause.is_none();
        if let Some(cause) = cause {
            self.end(&mut guard, cause);
        }
        drop(guard);
        if first {
            self.report_established();
        }
        if goes_on {
            return self.receive_what_was_missed();
        }
        self.report_end();
    }

    /// The process exits. Our direction closes. Bytes that have come are read and dropped: to close a socket
    /// with unread bytes would reset the connection.
    pub(crate) fn at_exit(&self) {
        let Some(socket) = self.link.try_lock().ok().and_then(|link| link.socket.clone()) else { return };
        if self.has_put_off() {
            let _ = self.transmit_until_idle(false);
        }
        socket.shut_down();
        // From here on no other thread reads; a thread that is reading now goes on alone.
        let Ok(mut rx) = self.rx.try_lock() else { return };
        *rx = None;
        let mut waste = vec![0; 16 << 10];
        for _ in 0..64 {
            if !socket.receive_into(&mut waste).is_ok_and(|count| count == waste.len()) {
                break;
            }
        }
    }

    /// Ends the connection in order: requests that were posted go out first (RFC5041-6.2.1-4), for at most
    /// [`DRAIN`].
    pub(crate) fn disconnect(self: &Arc<Self>) {
        {
            let mut guard = lock(&self.tx);
            let Some(tx) = &mut *guard else { return };
            tx.close_when_idle();
        }
        let timed = {
            let mut link = lock(&self.link);
            // Only while there is a connection to end, and once: a timer left over could end the next one.
            if link.socket.is_some() && link.drain.is_none() {
                link.drain = self.queues.engine.reactor.set_timer(DRAIN, self.clone()).ok();
            }
            link.drain.is_some()
        };
        if !timed {
            return self.shut(Cause::Here);
        }
        self.transmit_now();
    }
}
