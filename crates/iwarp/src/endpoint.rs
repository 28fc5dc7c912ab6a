//! The endpoint: one queue pair's connection, from its start to its end.
//!
//! Two locks: `tx` is held while sending, `rx` while receiving. On the fast path both are only tried. Whoever ends the connection takes
//! `rx` first, then `tx`, and waits for them; a holder of `tx` never waits for `rx`.

use crate::device::{BASIC, EXTENDED};
use crate::first_frame;
use crate::gather::Posts;
use crate::lane::Lane;
use crate::linger;
use crate::lock;
use crate::nudge;
use crate::receive::Rx;
use crate::socket::{Socket, name};
use crate::transmit::Tx;
use adverb_core::cm::{ConnectionEvent, ConnectionParameters, ConnectionSink};
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::{Error, Result};
use adverb_core::event::AsyncEventKind;
use adverb_core::log;
use adverb_core::qp::{Attributes, Queues, State, Transition};
use adverb_core::reactor::{EDGE, FAILED, PEER_CLOSED, READABLE, Readiness, Source, Timer, Token, WRITABLE};
use adverb_core::request::{Sge, Status};
use adverb_core::rings::{Missed, Rings, Rounds};
use adverb_proto::iwarp::mpa::{Parameters, RtrKind};
use adverb_proto::iwarp::{Fault, InboundReads, OutstandingReads, Receiver, Sender, Terminate};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long an orderly disconnect may take to send what was posted before it.
const DRAIN: Duration = Duration::from_secs(1);

/// What the background thread watches for while a lane is armed.
const WATCHED: Readiness = READABLE | PEER_CLOSED | WRITABLE | EDGE;

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A poll of a completion queue.
    Poll,
    /// The background thread.
    Background,
}

/// What a receive brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// Something.
    pub(crate) worked: bool,
    /// A one-sided request, or anything else that the peer's program expects to be served without ours.
    pub(crate) one_sided: bool,
}

impl Received {
    pub(crate) fn add(&mut self, other: Received) {
        self.worked |= other.worked;
        self.one_sided |= other.one_sided;
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Cause {
    /// A request of ours failed on its way out.
    Request {
        /// Which.
        sequence: u64,
        /// How.
        status: Status,
    },
    /// The peer broke a rule, or asked for what it may not have.
    Fault(Fault, Terminate),
    /// The peer ended the connection with an error.
    Terminated(Terminate),
    /// TCP failed.
    Lost(io::Error),
    /// The peer closed in order.
    Closed,
    /// This side ends it.
    Here,
}

/// What a read or atomic brings back, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSink {
    /// The request; None for the indication that we sent as the initiator.
    pub(crate) sequence: Option<u64>,
    /// Where the bytes go.
    pub(crate) sge: Sge,
}

/// See the module.
pub(crate) struct Endpoint {
    pub(crate) queues: Arc<Queues>,
    pub(crate) lane: Arc<Lane>,
    tx: Mutex<Option<Tx>>,
    rx: Mutex<Option<Rx>>,
    /// Reads and atomics that we wait for.
    pub(crate) reads: Mutex<OutstandingReads<ReadSink>>,
    /// Reads and atomics that the peer waits for.
    pub(crate) inbound: Mutex<InboundReads>,
    /// Whether there may be any: spares the sender the lock.
    pub(crate) has_inbound: AtomicBool,
    /// Bytes of them may not have been taken from memory.
    pub(crate) has_untaken: AtomicBool,
    /// Bytes that our own reads wait for.
    pub(crate) reading: AtomicU64,
    /// Each time that something is handed to the system is a round, which ends when what that completes is told. What is received meanwhile is put off.
    // PRACTICE-ORDER-1
    pub(crate) rounds: Rounds,
    /// Counts the calls of `transmit`: each is followed by a look at the queues by whoever sends.
    rings: Rings,
    posts: Posts,
    /// Whether this side may send: a responder waits for the initiator's first frame (RFC5044-7.1.2-8).
    pub(crate) may_send: AtomicBool,
    /// Whether the peer has sent a frame.
    heard: AtomicBool,
    /// Whether requests wait for room in the socket.
    pub(crate) is_full: AtomicBool,
    /// The background thread found the receive lock taken: its holder looks again.
    missed: Missed,
    /// The peer has closed its direction, or TCP failed: a short read does not say that nothing follows, and no other edge will come.
    pub(crate) is_ending: AtomicBool,
    /// False once the queue pair is being destroyed. Held while a connection begins.
    usable: Mutex<bool>,
    link: Mutex<Link>,
}

/// What belongs to the connection but not to the fast path.
#[derive(Default)]
struct Link {
    socket: Option<Arc<Socket>>,
    token: Option<Token>,
    watched: bool,
    drain: Option<Timer>,
    sink: Option<Arc<dyn ConnectionSink>>,
    /// What to report as established once the initiator's first frame has come.
    established: Option<ConnectionParameters>,
    /// How long that is waited for.
    patience: Option<Timer>,
    /// Somebody is reporting that at this instant; then he reports the end, too, so that they come in order.
    reporting: bool,
    ended: Option<i32>,
}

/// How a connection starts: what the start-up has agreed on.
pub(crate) struct Start {
    pub(crate) socket: Arc<Socket>,
    pub(crate) parameters: Parameters,
    /// Bytes that came behind the start-up frame.
    pub(crate) early: Vec<u8>,
    /// Our depths where they were not negotiated.
    pub(crate) depths: ConnectionParameters,
    pub(crate) sink: Arc<dyn ConnectionSink>,
    /// The peer's answer, for the initiator's event.
    pub(crate) peer: ConnectionParameters,
    pub(crate) private_data: Vec<u8>,
}

/// Whether the peer asked for memory that it may not have.
fn is_refusal(fault: Fault) -> bool {
    use Fault::{AccessRights, BaseBounds, InvalidStag, StagNotAssociated, ToWrap};
    matches!(fault, InvalidStag | BaseBounds | AccessRights | StagNotAssociated | ToWrap)
}

impl Endpoint {
    pub(crate) fn new(queues: Arc<Queues>, lane: Arc<Lane>) -> Arc<Self> {
        let as_lane: Arc<dyn CqLane> = lane.clone();
        for cq in [&queues.send_cq, &queues.receive_cq] {
            cq.attach_lane(&as_lane);
        }
        Arc::new(Self {
            queues,
            lane,
            tx: Mutex::new(None),
            rx: Mutex::new(None),
            reads: Mutex::new(OutstandingReads::new(0)),
            inbound: Mutex::new(InboundReads::new(0)),
            has_inbound: AtomicBool::new(false),
            has_untaken: AtomicBool::new(false),
            reading: AtomicU64::new(0),
            rounds: Rounds::default(),
            rings: Rings::default(),
            posts: Posts::default(),
            may_send: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            missed: Missed::default(),
            is_ending: AtomicBool::new(false),
            usable: Mutex::new(true),
            link: Mutex::default(),
        })
    }

    /// Whether a connection can begin on it.
    pub(crate) fn check_unconnected(&self) -> Result<()> {
        match self.queues.state() {
            State::Init if lock(&self.link).socket.is_none() => Ok(()),
            State::Init => Err(Error::new(libc::EISCONN, "the queue pair has a connection already")),
            state => {
                Err(Error::invalid(format!("the queue pair is in {state}: a connection begins in INIT")))
            }
        }
    }

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
            // Before the connection stands, so that nothing fails afterwards. What comes meanwhile is reported anew below.
            let reactor = &self.queues.engine.reactor;
            let patience = if waits { Some(first_frame::expect(self, &socket)?) } else { None };
            let begun = reactor.add(socket.fd(), EDGE, self.clone()).and_then(|token| {
                let begun = self.establish(start, token, waits, patience);
                begun.inspect_err(|_| reactor.remove(token, socket.fd()))
            });
            if let Err(error) = begun {
                patience.inspect(|timer| reactor.cancel_timer(*timer));
                return Err(error);
            }
            self.lane.add(self, socket.fd());
        }
        if !waits {
            sink.event(ConnectionEvent::Established { parameters: peer, private_data });
            self.end_reporting();
        }
        self.lane.settle(self);
        self.report_again();
        if has_early {
            self.receive(By::Background);
        }
        self.transmit_now();
        // Peers that have our extensions are adverb, which does not miss it.
        if parameters.initiator && parameters.rtr == Some(RtrKind::Write) && !parameters.extensions {
            nudge::start(self);
        }
        Ok(())
    }

    /// From here on the connection stands, and whoever wants to may end it.
    // RFC5044-7.1-1, RFC5044-7.1-2, RFC5040-6.1-1
    fn establish(&self, start: Start, token: Token, waits: bool, patience: Option<Timer>) -> Result<()> {
        let Start { socket, parameters, early, depths, sink, peer, .. } = start;
        let ird = parameters.ird.unwrap_or(depths.responder_resources.into());
        let ord = parameters.ord.unwrap_or(depths.initiator_depth.into());
        let mut tx = Tx::new(socket.clone(), Sender::new(&parameters, socket.emss()), ord != 0);
        self.queues.allow(if parameters.extensions { EXTENDED } else { BASIC });
        // Whoever takes the queue pair out of INIT ends its connection afterwards, under this lock.
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
        *rx = Some(Rx::new(socket.clone(), Receiver::new(&parameters), &early));
        *lock(&self.tx) = Some(tx);
        *lock(&self.link) = Link {
            socket: Some(socket),
            token: Some(token),
            watched: true,
            drain: None,
            sink: Some(sink),
            established: waits.then_some(peer),
            patience,
            reporting: !waits,
            ended: None,
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

    /// The socket, while connected.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        lock(&self.link).socket.as_ref().map(|socket| socket.fd())
    }

    /// Our address, while connected.
    pub(crate) fn local(&self) -> Option<std::net::SocketAddr> {
        lock(&self.link).socket.as_ref().and_then(|socket| socket.local())
    }

    /// Puts the socket into the background thread's sight, or out of it.
    pub(crate) fn watch(&self, on: bool) {
        let mut link = lock(&self.link);
        if let (Some(socket), Some(token)) = (&link.socket, link.token)
            && link.watched != on
        {
            let reactor = &self.queues.engine.reactor;
            if on {
                if let Err(error) = reactor.resume(token, socket.fd(), WATCHED) {
                    log!(
                        Error,
                        "queue pair {:#x}: the background thread cannot watch it: {error}",
                        self.queues.number
                    );
                }
            } else {
                reactor.suspend(token, socket.fd());
            }
            link.watched = on;
        }
    }

    /// Has the background thread look again at what is ready already.
    fn report_again(&self) {
        let link = lock(&self.link);
        if let (Some(socket), Some(token), true) = (&link.socket, link.token, link.watched) {
            let _ = self.queues.engine.reactor.modify(token, socket.fd(), WATCHED);
        }
    }

    /// Takes in what has arrived, unless somebody else is doing it: then he looks again afterwards.
    #[inline]
    pub(crate) fn receive(&self, by: By) -> Received {
        let mut all = Received::default();
        loop {
            if by == By::Background {
                self.missed.note();
            }
            let Ok(mut guard) = self.rx.try_lock() else { return all };
            self.missed.begin();
            let Some(rx) = &mut *guard else { return all };
            let taken = rx.take_in(self, by);
            let failed = taken.cause.is_some();
            if let Some(cause) = taken.cause {
                self.end(&mut guard, cause);
            }
            drop(guard);
            all.add(taken.received);
            if taken.first {
                self.heard.store(true, Ordering::Relaxed);
                self.report_established();
            }
            if failed {
                self.report_end();
                return all;
            }
            let mut sent = taken.transmit;
            if sent {
                self.send_alone();
            } else if by == By::Poll && self.is_full.load(Ordering::Relaxed) {
                // A program that polls for room anyway need not leave the sending to the background thread.
                sent = self.transmit_again();
            }
            if taken.more && (by == By::Background || self.lane.is_armed()) {
                // Others get their turn first; the rest is reported anew.
                self.report_again();
            }
            let is_noted = self.missed.is_noted();
            let goes_on = sent && self.rounds.go_on(&self.missed);
            if !goes_on && !is_noted {
                return all;
            }
        }
    }

    /// The socket may have room again. Returns whether it has tried.
    fn transmit_again(&self) -> bool {
        {
            let Ok(mut guard) = self.tx.try_lock() else { return false };
            let Some(tx) = &mut *guard else { return false };
            tx.has_room();
        }
        self.send_alone();
        true
    }

    /// A responder has the initiator's first frame.
    fn report_established(&self) {
        let (sink, parameters, patience) = {
            let mut link = lock(&self.link);
            let Some(parameters) = link.established.take() else { return };
            link.reporting = true;
            (link.sink.clone(), parameters, link.patience.take())
        };
        if let Some(patience) = patience {
            self.queues.engine.reactor.cancel_timer(patience);
        }
        if let Some(sink) = sink {
            sink.event(ConnectionEvent::Established { parameters, private_data: Vec::new() });
        }
        self.end_reporting();
    }

    /// The initiator has had its time to send its first frame over `socket`.
    pub(crate) fn no_first_frame(&self, socket: &Arc<Socket>) {
        // It may be there, unread, where this host has been without a processor.
        self.receive(By::Background);
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
    fn end_reporting(&self) {
        lock(&self.link).reporting = false;
        self.report_end();
    }

    /// Sends what can be sent now, and goes on with what has been received meanwhile and had to wait for that.
    #[inline]
    pub(crate) fn send(&self) {
        self.send_alone();
        if self.rounds.go_on(&self.missed) {
            self.receive(By::Background);
        }
    }

    /// Takes the bytes of the peer's reads that are not answered yet, before something behind them changes them. False if somebody is sending: he
    /// goes on with what was received. With the receive lock. `transmit` becomes true if the caller is to send: whoever posted meanwhile relies on the
    /// holder of the transmit lock.
    // PRACTICE-ORDER-2
    pub(crate) fn take_reads(&self, transmit: &mut bool) -> bool {
        if !self.has_untaken.load(Ordering::Relaxed) {
            return true;
        }
        let mut take = || {
            let Ok(mut guard) = self.tx.try_lock() else { return false };
            if let Some(tx) = &mut *guard {
                tx.keep_reads(self);
            }
            self.has_untaken.store(false, Ordering::Relaxed);
            *transmit = true;
            true
        };
        take() || {
            self.rounds.put_off();
            take()
        }
    }

    /// Sends what can be sent now.
    #[inline]
    fn send_alone(&self) {
        self.rings.ring();
        if let Err(cause) = self.transmit_until_idle() {
            self.shut(cause);
        }
    }

    #[inline]
    fn transmit_now(&self) {
        self.send();
        self.tell_if_full();
    }

    /// Whether posts wait for company, or for room in the socket, or for reads.
    #[inline]
    pub(crate) fn has_put_off(&self) -> bool {
        self.posts.wait(&self.queues.send)
    }

    /// Where the lane is not being polled: threads that sleep on it may not know yet that the socket is full.
    #[inline]
    fn tell_if_full(&self) {
        if self.is_full.load(Ordering::SeqCst) {
            self.lane.waits_for_room();
        }
    }

    fn transmit_until_idle(&self) -> std::result::Result<(), Cause> {
        loop {
            let Ok(mut guard) = self.tx.try_lock() else { return Ok(()) };
            let seen = self.rings.heard();
            if let Some(tx) = &mut *guard {
                let outcome = tx.run(self);
                self.posts.begun(tx.next());
                outcome?;
            }
            drop(guard);
            // Whoever rang while we held the lock found it taken: look again for him.
            if !self.rings.since(seen) {
                return Ok(());
            }
        }
    }

    /// Ends the connection, with the receive lock held. Afterwards call `report_end` without it.
    fn end(&self, rx: &mut Option<Rx>, cause: Cause) {
        let Some(rx) = rx.take() else { return };
        let tx = lock(&self.tx).take();
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
        if let (Some(mut tx), Some(terminate)) = (tx, terminate) {
            counters.terminates_sent.add(1);
            tx.send_terminate(self, terminate);
        }
        let (socket, token, timers) = {
            let mut link = lock(&self.link);
            link.ended = Some(match &cause {
                Cause::Lost(error) => -error.raw_os_error().unwrap_or(libc::ECONNRESET),
                Cause::Here | Cause::Closed => 0,
                _ => -libc::ECONNRESET,
            });
            (link.socket.take(), link.token.take(), [link.drain.take(), link.patience.take()])
        };
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
    fn end_requests(&self, cause: &Cause) {
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

    /// Tells the connection manager that it is over, once.
    // RFC5041-6.2.2-1
    fn report_end(&self) {
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

    /// Sending has failed, but what came before is still there: messages, perhaps the peer's reason. Returns why the connection ends,
    /// and whether the first frame was among it.
    // RFC5041-6.2.1-5
    fn last_words(&self, rx: &mut Rx, error: io::Error) -> (Cause, bool) {
        self.is_ending.store(true, Ordering::SeqCst);
        let mut first = false;
        // Bounded: TCP's buffers are far smaller than this.
        for _ in 0..64 {
            let taken = rx.take_in(self, By::Poll);
            first |= taken.first;
            if let Some(cause) = taken.cause {
                return (cause, first);
            }
            if !taken.more {
                break;
            }
        }
        (Cause::Lost(error), first)
    }

    /// Ends the connection from this side, at once.
    fn shut(&self, cause: Cause) {
        let mut guard = lock(&self.rx);
        let (cause, first) = match (cause, &mut *guard) {
            (Cause::Lost(error), Some(rx)) => self.last_words(rx, error),
            (cause, _) => (cause, false),
        };
        self.end(&mut guard, cause);
        drop(guard);
        if first {
            self.report_established();
        }
        self.report_end();
    }

    /// The process exits: what has come is read, since closing a socket with unread bytes resets the connection, and our direction closes.
    pub(crate) fn at_exit(&self) {
        let Some(socket) = self.link.try_lock().ok().and_then(|link| link.socket.clone()) else { return };
        if self.has_put_off() {
            let _ = self.transmit_until_idle();
        }
        socket.shut_down();
        // From here on nobody else reads; whoever is reading now goes on alone.
        let Ok(mut rx) = self.rx.try_lock() else { return };
        *rx = None;
        let mut waste = vec![0; 16 << 10];
        for _ in 0..64 {
            if !socket.receive_into(&mut waste).is_ok_and(|count| count == waste.len()) {
                break;
            }
        }
    }

    /// Ends it in order: what was posted goes out first (RFC5041-6.2.1-4), for at most [`DRAIN`].
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

impl adverb_core::transport::Endpoint for Endpoint {
    #[inline]
    fn transmit(&self) {
        if !self.posts.put_off(&self.queues, self.lane.gathering()) {
            self.transmit_now();
        }
    }

    fn send_off(&self) {
        if self.has_put_off() {
            self.transmit_now();
        }
    }

    fn modify(&self, transition: Transition, _: &Attributes) -> Result<()> {
        match transition.to {
            State::Error | State::Reset => self.shut(Cause::Here),
            _ => {}
        }
        Ok(())
    }

    fn query(&self, attributes: &mut Attributes) {
        // The states of iWARP begin with one, Idle, which adapters report as INIT whether or not INIT was asked for.
        if attributes.state == Some(State::Reset) {
            attributes.state = Some(State::Init);
        }
    }

    fn is_connected_by_manager(&self) -> bool {
        true
    }

    fn close(&self) {
        *lock(&self.usable) = false;
        self.shut(Cause::Here);
        self.lane.remove(self);
        let lane: Arc<dyn CqLane> = self.lane.clone();
        for cq in [&self.queues.send_cq, &self.queues.receive_cq] {
            cq.detach_lane(&lane);
        }
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

impl Source for Endpoint {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        if readiness & WRITABLE != 0 && self.is_full.load(Ordering::SeqCst) {
            if let Some(tx) = &mut *lock(&self.tx) {
                tx.has_room();
            }
            // In any case: whoever has posted while we held the lock relies on it.
            self.transmit_now();
        }
        if readiness & (PEER_CLOSED | FAILED) != 0 {
            self.is_ending.store(true, Ordering::SeqCst);
        }
        if readiness & (READABLE | PEER_CLOSED | FAILED) != 0 && self.receive(By::Background).worked {
            self.lane.received_in_background();
        }
        self.tell_if_full();
    }

    /// An orderly end has taken too long.
    fn timeout(self: Arc<Self>) {
        if lock(&self.link).drain.is_some() {
            self.shut(Cause::Here);
        }
    }
}
