//! The endpoint: one queue pair's connection, from its start to its end.
//!
//! Two locks: `tx` is held while sending, `rx` while receiving. On the fast path both are only tried. The
//! thread that ends the connection takes `rx` first, then `tx`, and waits for them; a holder of `tx` never
//! waits for `rx`.

mod by_channel;
mod ending;
mod starting;

use crate::behind::Behind;
use crate::gather::Posts;
use crate::lane::Lane;
use crate::local::{Channel, EndName, EndPlace, LocalHost};
use crate::lock;
use crate::receive::Rx;
use crate::socket::Socket;
use crate::transmit::Tx;
use adverb_core::busy::Busy;
use adverb_core::cm::{ConnectionParameters, ConnectionSink};
use adverb_core::cq::Lane as CqLane;
use adverb_core::error::{Error, Result};
use adverb_core::log;
use adverb_core::memory::Access;
use adverb_core::qp::{Attributes, Queues, State, Transition};
use adverb_core::reactor::{EDGE, FAILED, PEER_CLOSED, READABLE, Readiness, Source, Timer, Token, WRITABLE};
use adverb_core::request::{Opcode, SendRequest, Sge, Status};
use adverb_core::transport::Takeover;
use adverb_core::work_notes::{Rounds, WorkCount, WorkNote};
use adverb_proto::iwarp::mpa::Parameters;
use adverb_proto::iwarp::{Fault, InboundReads, OutstandingReads, Terminate};
use adverb_samehost::{Copier, CopyProgress};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The events of a socket that the background thread waits for while the lane is armed.
const WATCHED: Readiness = READABLE | PEER_CLOSED | WRITABLE | EDGE;

/// The thread that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivingThread {
    /// A poll of a completion queue.
    Poll,
    /// The background thread.
    Background,
}

/// The outcome of a receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receipt {
    /// Bytes or messages have been taken in.
    pub(crate) worked: bool,
    /// A one-sided request, or anything else that the peer's program expects to be served without ours.
    pub(crate) one_sided: bool,
}

impl Receipt {
    pub(crate) fn add(&mut self, other: Receipt) {
        self.worked |= other.worked;
        self.one_sided |= other.one_sided;
    }
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Cause {
    /// A request of ours failed on its way out.
    Request {
        /// Number of the request in the send queue.
        sequence: u64,
        /// The status that the request completes with.
        status: Status,
    },
    /// The peer broke a rule, or asked for memory that it may not have.
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

/// Where the bytes of a read's or atomic's answer go, and which request they complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSink {
    /// The request; None for the indication that we sent as the initiator.
    pub(crate) sequence: Option<u64>,
    /// Where the bytes go.
    pub(crate) sge: Sge,
}

/// The transport's half of one queue pair: its connection, from its start to its end.
pub(crate) struct Endpoint {
    pub(crate) queues: Arc<Queues>,
    pub(crate) lane: Arc<Lane>,
    tx: Mutex<Option<Tx>>,
    rx: Mutex<Option<Rx>>,
    /// Reads and atomics that we wait for.
    pub(crate) reads: Mutex<OutstandingReads<ReadSink>>,
    /// Reads and atomics that the peer waits for.
    pub(crate) inbound: Mutex<InboundReads>,
    /// Whether `inbound` may have some, so that the sending thread need not take its lock. The receiving
    /// thread sets it after one is queued. The sending thread clears it with that lock, when none is left.
    pub(crate) has_inbound: AtomicBool,
    /// Bytes of the peer's reads may not have been taken from memory yet. Changes with the receive lock
    /// alone.
    pub(crate) has_untaken: AtomicBool,
    /// Bytes that our own reads wait for. The sending thread adds a read's, the receiving thread subtracts
    /// them.
    pub(crate) reading: AtomicU64,
    /// A round begins before the sending thread hands bytes to the system or to the peer's memory, and ends
    /// once their completions are reported. A receiving thread puts off bytes that come meanwhile, so that an
    /// answer is never seen before its request's completion.
    // PRACTICE-ORDER-1
    pub(crate) rounds: Rounds,
    /// Counts the calls of `transmit`. A thread calls, counts, and then tries `tx`. The thread that has `tx`
    /// looks at the count again after it lets go.
    work_count: WorkCount,
    posts: Posts,
    /// Whether this side may send: a responder waits for the initiator's first frame (RFC5044-7.1.2-8).
    pub(crate) may_send: AtomicBool,
    /// Whether the peer has sent a frame.
    heard: AtomicBool,
    /// Whether requests wait for room in the socket, or for uses of the bytes of a key. The sending thread
    /// sets it before the attempt that finds no room, so that the background thread, at the edge that tells
    /// of room, finds it set.
    pub(crate) is_full: AtomicBool,
    /// This process's connections within the host.
    pub(crate) host: Arc<LocalHost>,
    /// The rights that the program gives peers: bits of [`adverb_core::memory::Access`].
    pub(crate) permitted: AtomicU32,
    /// The last one-sided request that was sent needed no TCP.
    pub(crate) is_direct: AtomicBool,
    /// The last message needed no TCP.
    pub(crate) is_by_channel: AtomicBool,
    /// Channels whose other ends sleep. The posting thread wakes them once it has let go of its locks.
    to_ring: Mutex<Vec<Arc<Channel>>>,
    /// The peer has sent more through shared memory than it may: the connection ends.
    refuses_peer: AtomicBool,
    /// Messages through shared memory may wait in the inbox. A thread that puts one in sets this afterwards.
    /// A thread with the receive lock clears it and then looks into the inbox.
    waits: AtomicBool,
    /// There is a connection, and its peer sends all messages by TCP: polls must look at its socket.
    needs_socket: AtomicBool,
    /// Long operations in the peer's memory are under way: polls and the background thread carry them on in
    /// turns. Changes with the transmit lock.
    is_copying: AtomicBool,
    /// No thread that posts or polls waits for the transmit lock, so none leaves notes here.
    pub(crate) busy: Busy,
    /// Has the background thread send and receive for threads that found a lock taken by a post that carries
    /// its request out at once.
    catches_up: Arc<CatchUp>,
    this: Weak<Endpoint>,
    /// Looks after messages that wait for their receives.
    behind: Arc<Behind>,
    /// The background thread found the receive lock taken: its holder looks again.
    missed: WorkNote,
    /// The peer has closed its direction, or TCP failed: a short read does not say that nothing follows, and
    /// no other edge will come.
    pub(crate) is_ending: AtomicBool,
    /// False once the queue pair is being destroyed. Held while a connection begins.
    usable: Mutex<bool>,
    link: Mutex<Link>,
}

/// Parts of the connection that the fast path does not need.
#[derive(Default)]
struct Link {
    socket: Option<Arc<Socket>>,
    token: Option<Token>,
    watched: bool,
    drain: Option<Timer>,
    sink: Option<Arc<dyn ConnectionSink>>,
    /// The parameters to report as established once the initiator's first frame has come.
    established: Option<ConnectionParameters>,
    /// Ends the wait for that frame.
    first_frame_timer: Option<Timer>,
    /// A thread is reporting the establishment at this instant. The same thread then reports the end, too, so
    /// that they come in order.
    reporting: bool,
    ended: Option<i32>,
    /// Where processes of this host find the connection.
    place: Option<EndPlace>,
}

/// The start of a connection: its socket, and the terms that both sides have agreed on.
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
    /// Where processes of this host find the connection, if both ends are here.
    pub(crate) place: Option<EndPlace>,
}

/// Whether the peer asked for memory that it may not have.
fn is_refusal(fault: Fault) -> bool {
    use Fault::{AccessRights, BaseBounds, InvalidStag, StagNotAssociated, ToWrap};
    matches!(fault, InvalidStag | BaseBounds | AccessRights | StagNotAssociated | ToWrap)
}

impl Endpoint {
    pub(crate) fn new(queues: Arc<Queues>, lane: Arc<Lane>, host: Arc<LocalHost>) -> Arc<Self> {
        let as_lane: Arc<dyn CqLane> = lane.clone();
        for cq in [&queues.send_cq, &queues.receive_cq] {
            cq.attach_lane(&as_lane);
        }
        Arc::new_cyclic(|this| Self {
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
            work_count: WorkCount::default(),
            posts: Posts::default(),
            may_send: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            host,
            permitted: AtomicU32::new(0),
            is_direct: AtomicBool::new(false),
            is_by_channel: AtomicBool::new(false),
            to_ring: Mutex::default(),
            refuses_peer: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            needs_socket: AtomicBool::new(false),
            is_copying: AtomicBool::new(false),
            busy: Busy::default(),
            catches_up: Arc::new(CatchUp(this.clone())),
            this: this.clone(),
            behind: Behind::new(this.clone()),
            missed: WorkNote::default(),
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

    /// Has the background thread be told again of events that are there already.
    fn report_again(&self) {
        let link = lock(&self.link);
        if let (Some(socket), Some(token), true) = (&link.socket, link.token, link.watched) {
            let _ = self.queues.engine.reactor.modify(token, socket.fd(), WATCHED);
        }
    }

    /// Takes in the bytes and messages that have arrived. If another thread has the receive lock, this one
    /// goes away. The background thread leaves a note before it tries the lock, and the holder looks for
    /// notes after it lets go. A poll leaves none: the next poll looks again.
    #[inline]
    pub(crate) fn receive(&self, by: ReceivingThread) -> Receipt {
        let mut all = Receipt::default();
        loop {
            if by == ReceivingThread::Background {
                self.missed.note();
            }
            let Ok(mut guard) = self.rx.try_lock() else { return all };
            self.missed.begin();
            let Some(rx) = &mut *guard else {
                // A thread may have brought a message while another one ended the connection. No message
                // waits for that connection any more.
                self.waits.store(false, Ordering::SeqCst);
                return all;
            };
            let taken = rx.take_in(self, by);
            if self.waits.load(Ordering::Relaxed) {
                // Clear first, then look: a thread that brings a message puts it into the inbox first, and
                // then sets `waits`. So the message is seen here, or `waits` is set after it was cleared.
                self.waits.store(false, Ordering::SeqCst);
                if rx.has_waiting() {
                    self.waits.store(true, Ordering::SeqCst);
                }
            }
            let failed = taken.cause.is_some();
            if let Some(cause) = taken.cause {
                self.end(&mut guard, cause);
            }
            drop(guard);
            if let Some(channel) = taken.ring {
                channel.ring();
            }
            all.add(taken.received);
            if taken.first {
                self.heard.store(true, Ordering::Relaxed);
                self.report_established();
            }
            if failed {
                self.report_end();
                return all;
            }
            if let Some(wait) = taken.behind {
                self.behind.look_soon(self, wait);
            }
            let mut sent = taken.transmit;
            if sent {
                self.send_alone();
            } else if by == ReceivingThread::Poll && self.is_full.load(Ordering::Relaxed) {
                // A program that polls for room anyway need not leave the sending to the background thread.
                sent = self.transmit_again();
            }
            if taken.more && (by == ReceivingThread::Background || self.lane.is_armed()) {
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

    /// Whether nothing is left in the socket, and nothing waits behind it.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_taken_all(&self) -> bool {
        let socket = lock(&self.link).socket.clone();
        let is_empty = socket.is_none_or(|socket| {
            let mut left = 0;
            // SAFETY: the kernel writes one number to a live local.
            unsafe { libc::ioctl(socket.fd(), libc::FIONREAD, &raw mut left) };
            left == 0
        });
        is_empty && lock(&self.rx).as_ref().is_none_or(|rx| !rx.has_postponed())
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

    /// Sends all that can be sent now. Then goes on with bytes that another thread has received meanwhile and
    /// put off.
    #[inline]
    pub(crate) fn send(&self) {
        self.send_alone();
        if self.rounds.go_on(&self.missed) {
            self.receive(ReceivingThread::Background);
        }
    }

    /// Copies the bytes of the peer's reads that are not answered yet, before a later segment changes them.
    /// The caller has the receive lock. False if another thread has the transmit lock: the bytes that came
    /// are put off, and that thread goes on with them after it lets go. `transmit` becomes true if the caller
    /// is to send: threads that posted while this one had the transmit lock rely on it.
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

    /// Sends all that can be sent now. If another thread has the transmit lock, that thread finds the note
    /// and sends.
    #[inline]
    fn send_alone(&self) {
        self.work_count.note();
        if let Err(cause) = self.transmit_until_idle(false) {
            self.shut(cause);
        }
    }

    pub(crate) fn this(&self) -> Weak<Endpoint> {
        self.this.clone()
    }

    /// Whether the peer has sent a frame.
    #[inline]
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// A request goes by TCP. Those behind it may have to, so posts do not try the other ways first.
    #[inline]
    pub(crate) fn goes_by_tcp(&self) {
        self.is_direct.store(false, Ordering::Relaxed);
        self.is_by_channel.store(false, Ordering::Relaxed);
    }

    /// The peer is `peer` of the process of `channel`, which is on this host, and which the connection over
    /// `socket` leads to.
    pub(crate) fn meets(&self, socket: &Arc<Socket>, channel: &Arc<Channel>, peer: EndName) {
        // First the receiving side: as soon as the sending side has greeted the peer, messages come.
        let is_new = match &mut *lock(&self.rx) {
            Some(rx) => rx.meets(socket, channel, peer),
            None => false,
        };
        if let Some(tx) = &mut *lock(&self.tx) {
            tx.meets(self, socket, channel, peer);
        }
        if is_new {
            // On a lane whose threads sleep on the sockets, peers are not told that messages may come by
            // shared memory: so all come by TCP.
            if !self.lane.has_sleepers() {
                self.needs_socket.store(false, Ordering::Relaxed);
            }
            let (own, process, number) = (self.queues.number, channel.neighbour.process(), peer.number);
            log!(
                Info,
                "queue pair {own:#x}: its peer is {number:#x} of process {process}, in whose memory operations need no TCP"
            );
            let permitted = Access::from_bits_truncate(self.permitted.load(Ordering::SeqCst));
            if !channel.is_to_oneself() && permitted.intersects(Access::REMOTE) {
                self.host.hub.sharing.foresee(&self.queues);
            }
        }
        self.transmit_now();
        self.receive_what_was_missed();
    }

    /// The calling thread has held the receive lock without receiving. The background thread may have found
    /// it taken and left a note.
    pub(self) fn receive_what_was_missed(&self) {
        if self.missed.is_noted() {
            self.receive(ReceivingThread::Background);
        }
    }

    /// Says whether long operations in the peer's memory are under way. With the transmit lock.
    pub(crate) fn set_copying(&self, on: bool) {
        if self.is_copying.load(Ordering::Relaxed) != on {
            self.is_copying.store(on, Ordering::SeqCst);
        }
    }

    #[cold]
    fn catch_up(&self) {
        let _ = self.queues.engine.reactor.set_timer(Duration::ZERO, self.catches_up.clone());
    }

    /// Has the background thread send and receive, when it calls this.
    pub(crate) fn catches_up(&self) -> Arc<dyn Source> {
        self.catches_up.clone()
    }

    #[inline]
    fn transmit_now(&self) {
        self.send();
        self.tell_if_full();
    }

    /// Whether posts wait to be gathered, or for room in the socket, or for reads.
    #[inline]
    pub(crate) fn has_put_off(&self) -> bool {
        self.posts.wait(&self.queues.send)
    }

    /// If the socket is full, tells the lane's watch: threads that sleep on the lane's descriptors may not
    /// wait for room yet. Not from polls.
    #[inline]
    fn tell_if_full(&self) {
        if self.is_full.load(Ordering::SeqCst) {
            self.lane.waits_for_room();
        }
    }

    fn transmit_until_idle(&self, carries_on: bool) -> std::result::Result<(), Cause> {
        let begins = &mut false;
        let outcome = self.transmit_turns(carries_on, begins);
        if *begins && let Some(this) = self.this.upgrade() {
            self.host.hub.copies.add(this);
        }
        outcome
    }

    #[inline]
    fn transmit_turns(&self, carries_on: bool, begins_to_copy: &mut bool) -> std::result::Result<(), Cause> {
        loop {
            let Ok(mut guard) = self.tx.try_lock() else { return Ok(()) };
            let seen = self.work_count.noted();
            if let Some(tx) = &mut *guard {
                tx.heard = seen;
                let outcome = tx.run(self, carries_on);
                *begins_to_copy |= tx.begins_to_copy();
                self.posts.begun(tx.next());
                outcome?;
            }
            drop(guard);
            // A thread that noted work while this one had the lock found it taken: send for it.
            if !self.work_count.since(seen) {
                return Ok(());
            }
        }
    }
}

impl adverb_core::transport::Endpoint for Endpoint {
    #[inline]
    fn transmit(&self) {
        // Posts that need no system call are not gathered.
        let needs_no_call =
            self.is_direct.load(Ordering::Relaxed) || self.is_by_channel.load(Ordering::Relaxed);
        if needs_no_call || !self.posts.put_off(&self.queues, self.lane.gathering()) {
            self.transmit_now();
        }
    }

    #[inline]
    fn take_over(&self, request: &SendRequest<'_>) -> Takeover {
        let is_message = request.opcode == Opcode::Send;
        let may = match request.opcode {
            Opcode::Write | Opcode::Read => self.is_direct.load(Ordering::Relaxed),
            _ => is_message && self.is_by_channel.load(Ordering::Relaxed),
        };
        if !may {
            return Takeover::No;
        }
        let Ok(mut guard) = self.tx.try_lock() else { return Takeover::No };
        let Some(tx) = &mut *guard else { return Takeover::No };
        // The count of notes when a thread last looked for all there is to send. A thread that has noted work
        // since then may find the lock taken by this one.
        let seen = tx.heard;
        let taken_over = match is_message {
            true => tx.send_at_once(self, request),
            false if tx.carry_out_at_once(self, request) => Takeover::Done,
            false => Takeover::No,
        };
        let is_done = taken_over != Takeover::No;
        if is_done {
            self.posts.begun(tx.next());
        }
        if taken_over == (Takeover::Sent { follows: true }) {
            lock(&self.to_ring).extend(tx.channel());
        }
        drop(guard);
        // First the count of notes: `since` has the full fence between the end of the lock and both looks.
        let has_more = self.work_count.since(seen);
        // The background thread sends and receives for those threads. This thread may not: it has its queue's
        // lock.
        if self.rounds.go_on(&self.missed) || has_more {
            self.catch_up();
        }
        taken_over
    }

    fn follow_up(&self) {
        // One at a time, without the lock: the list keeps its memory, and a post allocates none.
        let next = || lock(&self.to_ring).pop();
        while let Some(channel) = next() {
            channel.ring();
        }
    }

    fn send_off(&self) {
        if self.has_put_off() {
            self.transmit_now();
        }
    }

    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()> {
        if self.permitted.swap(attributes.access, Ordering::SeqCst) != attributes.access {
            let published = lock(&self.rx).as_mut().and_then(Rx::unpublish);
            self.receive_what_was_missed();
            // The drop waits for the peer's threads in the middle of an operation.
            drop(published);
        }
        match transition.to {
            State::Error | State::Reset => self.shut(Cause::Here),
            _ => {}
        }
        Ok(())
    }

    fn query(&self, attributes: &mut Attributes) {
        // The states of iWARP begin with one, Idle, which adapters report as INIT whether or not INIT was
        // asked for.
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
        self.host.hub.copies.forget(self);
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

impl Copier for Endpoint {
    fn carry_on(&self) -> Option<CopyProgress> {
        if self.tx.try_lock().is_err() {
            return None;
        }
        self.work_count.note();
        if let Err(cause) = self.transmit_until_idle(true) {
            self.shut(cause);
        } else if self.rounds.go_on(&self.missed) {
            self.receive(ReceivingThread::Background);
        }
        Some(if self.is_copying() { CopyProgress::Part } else { CopyProgress::All })
    }

    fn is_copying(&self) -> bool {
        self.is_copying.load(Ordering::SeqCst)
    }
}

/// The background thread sends and receives for other threads, which found the transmit lock taken.
struct CatchUp(Weak<Endpoint>);

impl Source for CatchUp {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(endpoint) = self.0.upgrade() {
            if endpoint.refuses_peer.swap(false, Ordering::SeqCst) {
                return endpoint.shut(Cause::Lost(io::Error::from_raw_os_error(libc::EPROTO)));
            }
            endpoint.transmit_now();
            endpoint.receive(ReceivingThread::Background);
        }
    }
}

impl Source for Endpoint {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        if readiness & WRITABLE != 0 && self.is_full.load(Ordering::SeqCst) {
            if let Some(tx) = &mut *lock(&self.tx) {
                tx.has_room();
            }
            // In any case: a thread that has posted while this one had the lock relies on it.
            self.transmit_now();
        }
        if readiness & (PEER_CLOSED | FAILED) != 0 {
            self.is_ending.store(true, Ordering::SeqCst);
        }
        if readiness & (READABLE | PEER_CLOSED | FAILED) != 0
            && self.receive(ReceivingThread::Background).worked
        {
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
