//! The start of a connection, once its start-up frames have been exchanged, until the peer has spoken.

use super::{Cause, Endpoint, Link, ReceivingThread, Start};
use crate::device::{BASIC, EXTENDED};
use crate::local::EndPlace;
use crate::receive::Rx;
use crate::socket::{Socket, name};
use crate::transmit::Tx;
use crate::{first_frame, lock, rtr_retransmit};
use adverb_core::cm::ConnectionEvent;
use adverb_core::error::{Error, Result};
use adverb_core::log;
use adverb_core::memory::Reader;
use adverb_core::reactor::{EDGE, Timer, Token};
use adverb_proto::iwarp::mpa::RtrKind;
use adverb_proto::iwarp::{InboundReads, OutstandingReads, Receiver, Sender};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// The start-up is over: full operation begins.
    ///
    /// # Errors
    /// None of it has happened then, and `start.sink` hears nothing.
    pub(crate) fn start(self: &Arc<Self>, start: Start) -> Result<()> {
        // Kept to the end, so that the descriptor stays ours though the connection may end any time.
        let socket = start.socket.clone();
        let (sink, parameters) = (start.sink.clone(), start.parameters);
        let (peer, private_data) = (start.peer, start.private_data.clone());
        let waits = !parameters.initiator && parameters.rtr.is_some();
        let has_early = !start.early.is_empty();
        {
            let usable = lock(&self.usable);
            if !*usable {
                return Err(Error::invalid("the queue pair is being destroyed"));
            }
            self.check_unconnected()?;
            // Before the connection stands, so that nothing fails afterwards. Events of the time in between
            // are reported anew below.
            let reactor = &self.queues.engine.reactor;
            let first_frame_timer = if waits { Some(first_frame::expect(self, &socket)?) } else { None };
            let begun = reactor.add_arrival(socket.fd(), EDGE, self.clone()).and_then(|token| {
                let begun = self.establish(start, token, waits, first_frame_timer);
                begun.inspect_err(|_| reactor.remove(token, socket.fd()))
            });
            if let Err(error) = begun {
                first_frame_timer.inspect(|timer| reactor.cancel_timer(*timer));
                return Err(error);
            }
            self.lane.add(self, socket.fd());
        }
        if !waits {
            sink.event(ConnectionEvent::Established { parameters: peer, private_data });
            self.end_reporting();
        }
        let ends = lock(&self.link).place.as_ref().map(EndPlace::ends);
        if let Some(ends) = ends {
            self.host.begin(ends, parameters.initiator);
        }
        self.lane.settle(self);
        self.report_again();
        if has_early {
            self.receive(ReceivingThread::Background);
        }
        self.transmit_now();
        // Peers that have our extensions are adverb, which does not miss it.
        if parameters.initiator && parameters.rtr == Some(RtrKind::Write) && !parameters.extensions {
            rtr_retransmit::start(self);
        }
        Ok(())
    }

    /// From here on the connection stands, and any thread may end it.
    // RFC5044-7.1-1, RFC5044-7.1-2, RFC5040-6.1-1
    pub(super) fn establish(
        &self,
        start: Start,
        token: Token,
        waits: bool,
        first_frame_timer: Option<Timer>,
    ) -> Result<()> {
        let Start { socket, parameters, early, depths, sink, peer, place, .. } = start;
        let ird = parameters.ird.unwrap_or(depths.responder_resources.into());
        let ord = parameters.ord.unwrap_or(depths.initiator_depth.into());
        let inbox = place.as_ref().map(|place| place.inbox().clone());
        let sender = Sender::new(&parameters, socket.emss());
        let mut tx = Tx::new(socket.clone(), sender, ord != 0, inbox.clone());
        self.queues.allow(if parameters.extensions { EXTENDED } else { BASIC });
        // A thread that takes the queue pair out of INIT ends its connection afterwards, under this lock.
        let mut rx = lock(&self.rx);
        if !self.queues.connected() {
            return Err(Error::invalid("the queue pair has left Init while it was being connected"));
        }
        // An indication in form of a read takes a place of its own.
        *lock(&self.reads) = OutstandingReads::new(usize::from(ord).max(1));
        self.reading.store(0, Ordering::Relaxed);
        self.has_untaken.store(false, Ordering::Relaxed);
        *lock(&self.inbound) = InboundReads::new(usize::from(ird).max(1));
        self.may_send.store(parameters.initiator, Ordering::SeqCst);
        self.heard.store(false, Ordering::Relaxed);
        self.is_ending.store(false, Ordering::SeqCst);
        if let Some(message) = parameters.rtr_message() {
            // RFC6581-5-1
            tx.indicate(message, &mut lock(&self.reads));
        }
        log!(
            Info,
            "queue pair {:#x}: connected {} to {}, {parameters}",
            self.queues.number,
            name(socket.local()),
            name(socket.peer())
        );
        self.queues.counters.connections.add(1);
        self.posts.begun(tx.next());
        self.refuses_peer.store(false, Ordering::SeqCst);
        self.needs_socket.store(true, Ordering::Relaxed);
        let reader = Reader::new(&self.queues.engine.keys);
        *rx = Some(Rx::new(socket.clone(), Receiver::new(&parameters), &early, inbox, reader));
        *lock(&self.tx) = Some(tx);
        *lock(&self.link) = Link {
            socket: Some(socket),
            token: Some(token),
            watched: true,
            drain: None,
            sink: Some(sink),
            established: waits.then_some(peer),
            first_frame_timer,
            reporting: !waits,
            ended: None,
            place,
        };
        Ok(())
    }

    /// Sends the initiator's indication once more; false if the peer has spoken, or the connection has ended.
    pub(crate) fn repeat_indication(&self) -> bool {
        if self.heard.load(Ordering::Relaxed) {
            return false;
        }
        match &mut *lock(&self.tx) {
            Some(tx) => tx.indicate_again(),
            None => return false,
        }
        self.transmit_now();
        true
    }

    /// A responder has the initiator's first frame.
    pub(super) fn report_established(&self) {
        let (sink, parameters, first_frame_timer) = {
            let mut link = lock(&self.link);
            let Some(parameters) = link.established.take() else { return };
            link.reporting = true;
            (link.sink.clone(), parameters, link.first_frame_timer.take())
        };
        if let Some(first_frame_timer) = first_frame_timer {
            self.queues.engine.reactor.cancel_timer(first_frame_timer);
        }
        if let Some(sink) = sink {
            sink.event(ConnectionEvent::Established { parameters, private_data: Vec::new() });
        }
        self.end_reporting();
    }

    /// The initiator has had its time to send its first frame over `socket`.
    pub(crate) fn no_first_frame(&self, socket: &Arc<Socket>) {
        // It may be there, unread, where this host has been without a processor.
        self.receive(ReceivingThread::Background);
        let link = lock(&self.link);
        let waits =
            link.established.is_some() && link.socket.as_ref().is_some_and(|own| Arc::ptr_eq(own, socket));
        drop(link);
        if waits {
            log!(Warn, "{} asked for a connection and sent nothing more", name(socket.peer()));
            self.shut(Cause::Lost(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
        }
    }

    /// The connection is reported as established. If it has ended meanwhile, that comes next.
    pub(super) fn end_reporting(&self) {
        lock(&self.link).reporting = false;
        self.report_end();
    }
}
