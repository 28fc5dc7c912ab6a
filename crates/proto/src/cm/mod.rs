//! Connection management of InfiniBand and RoCE (volume 1, chapter 12), as the Linux kernel does it below rdma_cm.
//!
//! A [`Manager`] keeps all connections of a program. Bytes of management datagrams and the time go in, datagrams and
//! events come out:
//!
//! * [`Manager::receive`] takes a datagram of the communication management class, with who sent it. `P` says who a peer
//!   is: two messages of one adapter come from equal peers, so an address, and not the port of a socket.
//! * After every call, [`Manager::poll_transmit`] and [`Manager::poll_event`] give what there is to send and to tell,
//!   until they give nothing; and [`Manager::handle_timeout`] is to be called at [`Manager::deadline`].
//!
//! A connection is known by its local communication ID. The messages themselves carry the parameters, so calls and
//! events have the structures of [`adverb_wire::ib::cm`]; what the manager knows better (communication IDs, the
//! adapter's GUID) it fills in itself, whatever the caller put there.
//!
//! ```text
//! active                                       passive
//! connect(REQ)            -- REQ -->           Event::Request
//!                         <-- MRA --           (the program takes its time, and REQ came again)
//! Event::Reply            <-- REP --           accept(REP)            or: <-- REJ -- reject
//! ready, or reject        -- RTU -->           Event::Established     also by establish: data came first
//!
//! disconnect              -- DREQ -->          Event::Disconnected
//! Event::Disconnected     <-- DREP --          disconnect
//! Event::TimewaitExit                          Event::TimewaitExit
//!
//! resolve(SIDR_REQ)       -- SIDR_REQ -->      Event::DatagramRequest
//! Event::DatagramReply    <-- SIDR_REP --      answer(SIDR_REP)
//! ```
//!
//! A connection ends with exactly one of [`Event::Rejected`], [`Event::TimedOut`], [`Event::Disconnected`] and
//! [`Event::DatagramReply`], or with a call of [`Manager::reject`], [`Manager::answer`] or [`Manager::destroy`].
//! [`Event::TimewaitExit`] may follow; until then its queue pair must not be used again.
//!
//! What the other side can make the manager keep is bounded: connections by [`Config::max_connections`], unanswered
//! requests by the backlog of their service, and answers that may have to be given again by a constant.

mod active;
mod passive;
mod release;
mod sidr;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use adverb_wire::ib::cm::{Message, Rej, RejectReason, Rep, Req, SidrRep, SidrReq, about, interval};
use adverb_wire::ib::mad::{MAD_LEN, Mad};

/// How often rdma_cm sends a message again: the value for [`Req::max_cm_retries`].
pub const MAX_RETRIES: u8 = 15;
/// How long rdma_cm takes to answer, as in [`interval`]: about four seconds. The value for
/// [`Req::local_response_timeout`] and [`Req::remote_response_timeout`].
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How long MRA says that a program may take, as in [`interval`]: about a minute.
const SERVICE_TIMEOUT: u8 = 24;
/// The shortest time that a peer may ask to wait for its answer: about 70 milliseconds.
const SHORTEST_INTERVAL: u8 = 14;
/// The longest time that a peer may ask to wait for its answer or to keep a released connection: about nine seconds.
const LONGEST_INTERVAL: u8 = 21;
/// Answers that are kept in order to be given again.
// ROCE-40
const MAX_ANSWERS: usize = 128;
/// How long they are kept: as long as a peer may ask again, who has got MRA.
const ANSWER_LIFETIME: Duration = Duration::from_secs(20 * 60);

/// What a manager is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The first bits of all local communication IDs.
    pub prefix: u32,
    /// How many bits these are, 0 to 24.
    pub prefix_bits: u32,
    /// A random number, for communication IDs and transaction IDs that nobody guesses.
    pub seed: u64,
    /// GUID of the adapter.
    pub ca_guid: u64,
    /// How many connections there can be, those that are being made or have just been released included.
    pub max_connections: usize,
}

/// What a manager tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<P> {
    /// Passive: a peer asks for a connection. To be answered with [`Manager::accept`] or [`Manager::reject`].
    Request {
        /// The new connection.
        connection: u32,
        /// Who asks.
        peer: P,
        /// The message; all is seen from the sender's side.
        request: Box<Req>,
    },
    /// Active: the peer accepts. To be answered with [`Manager::ready`] or [`Manager::reject`].
    Reply {
        /// The connection.
        connection: u32,
        /// The message; all is seen from the sender's side.
        reply: Box<Rep>,
    },
    /// Passive: the peer is ready to use the connection.
    Established {
        /// The connection.
        connection: u32,
    },
    /// The peer refuses.
    Rejected {
        /// The connection.
        connection: u32,
        /// The message.
        rejection: Box<Rej>,
    },
    /// The peer does not answer: no connection, or no queue pair of a datagram service.
    TimedOut {
        /// The connection.
        connection: u32,
    },
    /// The connection is released, by either side.
    Disconnected {
        /// The connection.
        connection: u32,
        /// The peer asks for it: to be answered with [`Manager::disconnect`].
        asked: bool,
    },
    /// No packet of the connection is under way any more: its queue pair may be used again.
    TimewaitExit {
        /// The connection, which is forgotten now.
        connection: u32,
    },
    /// Passive: a peer asks for the queue pair of a datagram service. To be answered with [`Manager::answer`].
    DatagramRequest {
        /// Stands for the request until it is answered.
        connection: u32,
        /// Who asks.
        peer: P,
        /// The message.
        request: Box<SidrReq>,
    },
    /// Active: the answer to [`Manager::resolve`].
    DatagramReply {
        /// The request, which is forgotten now.
        connection: u32,
        /// The message.
        reply: Box<SidrRep>,
    },
}

/// Why a call cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// There are as many connections as there can be.
    #[error("too many connections")]
    Full,
    /// There is no such connection.
    #[error("no such connection")]
    Unknown,
    /// The connection is in no state for this.
    #[error("the connection is in another state")]
    State,
    /// Somebody listens already.
    #[error("the service is in use")]
    InUse,
}

/// Why a datagram has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ignored {
    /// It is no message of connection management.
    Malformed,
    /// Nobody knows what it is about.
    Unknown,
    /// It does not fit the state of its connection; mostly, it came twice.
    State,
    /// There is no room for another connection or unanswered request. The peer will ask again.
    Full,
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// REQ is sent.
    ReqSent,
    /// REQ has come; the program has to answer.
    ReqReceived,
    /// REP is sent.
    RepSent,
    /// REP has come; the program has to answer.
    RepReceived,
    Established,
    /// DREQ is sent.
    DreqSent,
    /// DREQ has come; the program has to answer.
    DreqReceived,
    /// Released, but old packets may still come.
    Timewait,
    /// SIDR_REQ is sent.
    SidrSent,
    /// SIDR_REQ has come; the program has to answer.
    SidrReceived,
}

/// A connection.
#[derive(Debug)]
struct Connection<P> {
    state: State,
    peer: P,
    /// Of the messages that make the connection.
    transaction_id: u64,
    /// Of those that release it.
    release_transaction_id: u64,
    service_id: u64,
    /// The peer has asked for the connection, and may do it again: its message may still be under way.
    requested: bool,
    /// The peer's communication ID, or 0 if it is not known yet.
    remote_id: u32,
    remote_guid: u64,
    local_qpn: u32,
    remote_qpn: u32,
    /// Time from a message to the same message again.
    timeout: Duration,
    max_retries: u8,
    retries: u8,
    /// That time, when the peer has said that its answer will take longer.
    delay: Option<Duration>,
    /// How long a packet and its acknowledgement take at most.
    round_trip: Duration,
    deadline: Option<Duration>,
    /// The message that is sent until it is answered.
    message: Option<Box<Mad>>,
    /// The program has no interest any more.
    destroyed: bool,
}

impl<P> Connection<P> {
    fn new(peer: P, state: State, service_id: u64) -> Connection<P> {
        Connection {
            state,
            peer,
            transaction_id: 0,
            release_transaction_id: 0,
            service_id,
            requested: false,
            remote_id: 0,
            remote_guid: 0,
            local_qpn: 0,
            remote_qpn: 0,
            timeout: interval(RESPONSE_TIMEOUT),
            max_retries: MAX_RETRIES,
            retries: 0,
            delay: None,
            round_trip: Duration::ZERO,
            deadline: None,
            message: None,
            destroyed: false,
        }
    }
}

/// What a peer calls one of its things.
// IB-CM-15
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Remote<P> {
    kind: Kind,
    peer: P,
    ca_guid: u64,
    number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    CommunicationId,
    QueuePair,
    SidrRequest,
}

/// The answer to a request that is forgotten. It is given again if the same request comes again.
#[derive(Debug)]
struct Answer<P> {
    to: Remote<P>,
    until: Duration,
    mad: Mad,
}

/// A service that somebody listens for.
#[derive(Debug)]
struct Listener {
    backlog: usize,
    /// Requests that the program has not answered.
    unanswered: usize,
}

/// All connections of a program.
#[derive(Debug)]
pub struct Manager<P> {
    config: Config,
    next_id: u32,
    connections: BTreeMap<u32, Connection<P>>,
    remotes: BTreeMap<Remote<P>, u32>,
    listeners: BTreeMap<u64, Listener>,
    answers: VecDeque<Answer<P>>,
    deadlines: BTreeSet<(Duration, u32)>,
    transmissions: VecDeque<(P, Mad)>,
    events: VecDeque<Event<P>>,
}

impl<P: Copy + Ord> Manager<P> {
    /// A manager without connections.
    ///
    /// # Panics
    /// If there are more than 24 prefix bits.
    pub fn new(config: Config) -> Manager<P> {
        assert!(config.prefix_bits <= 24, "too many prefix bits");
        // At most half of the IDs are in use, so that a free one is found soon.
        let max_connections = config.max_connections.min(1 << (31 - config.prefix_bits));
        Manager {
            config: Config { max_connections, ..config },
            next_id: config.seed as u32,
            connections: BTreeMap::new(),
            remotes: BTreeMap::new(),
            listeners: BTreeMap::new(),
            answers: VecDeque::new(),
            deadlines: BTreeSet::new(),
            transmissions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Takes requests for a service, as many unanswered ones as `backlog` at a time, at least one. Both REQ and SIDR_REQ
    /// are requests.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> Result<(), Error> {
        if self.listeners.contains_key(&service_id) {
            return Err(Error::InUse);
        }
        self.listeners.insert(service_id, Listener { backlog: backlog.max(1), unanswered: 0 });
        Ok(())
    }

    /// Takes no requests any more. What is unanswered can still be answered.
    pub fn unlisten(&mut self, service_id: u64) {
        self.listeners.remove(&service_id);
    }

    /// Takes a datagram of the communication management class.
    pub fn receive(&mut self, bytes: &[u8], from: P, now: Duration) -> Result<(), Ignored> {
        let mad = Mad::parse(bytes).ok_or(Ignored::Malformed)?;
        // IB-CM-10
        let message = Message::parse(mad).map_err(|_| Ignored::Malformed)?;
        let transaction_id = mad.header.transaction_id.get();
        match &message {
            Message::Req(req) => self.receive_req(req, transaction_id, from, now),
            Message::Mra(mra) => self.receive_mra(mra, from, now),
            Message::Rej(rej) => self.receive_rej(rej, from, now),
            Message::Rep(rep) => self.receive_rep(rep, transaction_id, from, now),
            Message::Rtu(rtu) => self.receive_rtu(rtu, from),
            Message::Dreq(dreq) => self.receive_dreq(dreq, transaction_id, from, now),
            Message::Drep(drep) => self.receive_drep(drep, from, now),
            Message::SidrReq(req) => self.receive_sidr_req(req, transaction_id, from, now),
            Message::SidrRep(rep) => self.receive_sidr_rep(rep, from, now),
            // A RoCE port has no alternate path.
            // IB-CM-49
            Message::Lap(_) | Message::Apr(_) => Err(Ignored::Unknown),
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Sends again what was not answered, gives up, and forgets released connections.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            let connection = self.connections.get_mut(&id).expect("a deadline belongs to a connection");
            connection.deadline = None;
            if connection.state == State::Timewait {
                self.tell(id, Event::TimewaitExit { connection: id });
                self.forget(id, now);
            // IB-CM-16, IB-CM-30, IB-CM-40, IB-SIDR-2
            } else if connection.retries < connection.max_retries {
                connection.retries += 1;
                self.transmit_message(id, now);
            } else {
                self.give_up(id, now);
            }
        }
    }

    /// The next datagram to send, and whom to send it to.
    pub fn poll_transmit(&mut self) -> Option<(P, [u8; MAD_LEN])> {
        self.transmissions.pop_front().map(|(peer, mad)| (peer, mad.to_bytes()))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    /// How many connections there are, those that are being made or have just been released included.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// True if there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// No answer has come.
    fn give_up(&mut self, id: u32, now: Duration) {
        let connection = &self.connections[&id];
        match connection.state {
            State::DreqSent => {
                self.tell(id, Event::Disconnected { connection: id, asked: false });
                self.enter_timewait(id, now);
            }
            state => {
                if state != State::SidrSent {
                    // The answer may have been lost on its way, and the peer wait for more.
                    // IB-CM-16, IB-CM-30
                    self.send_rej(id, about::OTHER, RejectReason::TIMEOUT, &Rej::default());
                }
                self.tell(id, Event::TimedOut { connection: id });
                self.forget(id, now);
            }
        }
    }

    /// A new connection; `make` is told its communication ID.
    // IB-CM-11, IB-CM-14
    fn insert(&mut self, connection: Connection<P>) -> Result<u32, Error> {
        if self.connections.len() >= self.config.max_connections {
            return Err(Error::Full);
        }
        let rest = u32::MAX >> self.config.prefix_bits;
        let prefix = self.config.prefix.checked_shl(32 - self.config.prefix_bits).unwrap_or(0);
        let id = loop {
            // A linear congruence: every ID comes before any comes again.
            self.next_id = self.next_id.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = prefix | self.next_id & rest;
            if id != 0 && !self.connections.contains_key(&id) {
                break id;
            }
        };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// The transaction ID of what begins with this connection.
    fn transaction_id(&self, id: u32) -> u64 {
        self.config.seed & 0xffff_ffff_0000_0000 | u64::from(id)
    }

    /// A connection that the caller knows.
    fn known(&mut self, id: u32) -> Result<&mut Connection<P>, Error> {
        self.connections.get_mut(&id).filter(|connection| !connection.destroyed).ok_or(Error::Unknown)
    }

    /// A connection that a message belongs to, by both communication IDs and the sender.
    // IB-CM-12, IB-CM-13
    fn addressed(&mut self, id: u32, remote_id: u32, from: P) -> Result<&mut Connection<P>, Ignored> {
        let connection = self.connections.get_mut(&id).ok_or(Ignored::Unknown)?;
        let belongs = connection.remote_id == remote_id && connection.peer == from;
        if belongs { Ok(connection) } else { Err(Ignored::Unknown) }
    }

    /// Forgets a connection.
    fn forget(&mut self, id: u32, now: Duration) {
        self.stop(id);
        let connection = &self.connections[&id];
        if connection.requested {
            // A request that is late must not make another connection.
            let rej = Rej {
                remote_communication_id: connection.remote_id,
                message: about::REQ,
                reason: RejectReason::STALE_CONNECTION,
                ..Rej::default()
            };
            let mad = Message::from(rej).to_mad(connection.transaction_id);
            self.keep_answer(self.remote(id, Kind::CommunicationId), mad, now);
        }
        self.unregister(id, Kind::CommunicationId);
        self.unregister(id, Kind::QueuePair);
        self.unregister(id, Kind::SidrRequest);
        self.connections.remove(&id);
    }

    fn remote(&self, id: u32, kind: Kind) -> Remote<P> {
        let connection = &self.connections[&id];
        let number = if kind == Kind::QueuePair { connection.remote_qpn } else { connection.remote_id };
        Remote { kind, peer: connection.peer, ca_guid: connection.remote_guid, number }
    }

    fn register(&mut self, id: u32, kind: Kind) {
        self.remotes.insert(self.remote(id, kind), id);
    }

    fn unregister(&mut self, id: u32, kind: Kind) {
        let remote = self.remote(id, kind);
        if self.remotes.get(&remote) == Some(&id) {
            self.remotes.remove(&remote);
        }
    }

    /// The request has got its answer: there is room for another one.
    fn answered(&mut self, id: u32) {
        if let Some(listener) = self.listeners.get_mut(&self.connections[&id].service_id) {
            // The listener may be another than the one that counted the request.
            listener.unanswered = listener.unanswered.saturating_sub(1);
        }
    }

    /// Tells an event, if anybody is interested.
    fn tell(&mut self, id: u32, event: Event<P>) {
        if !self.connections[&id].destroyed {
            self.events.push_back(event);
        }
    }

    fn set_deadline(&mut self, id: u32, at: Duration) {
        self.stop(id);
        self.connections.get_mut(&id).expect("a connection").deadline = Some(at);
        self.deadlines.insert((at, id));
    }

    /// Sends nothing again.
    fn stop(&mut self, id: u32) {
        let connection = self.connections.get_mut(&id).expect("a connection");
        if let Some(at) = connection.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Sends a message until it is answered.
    fn start(&mut self, id: u32, transaction_id: u64, message: impl Into<Message>, now: Duration) {
        let connection = self.connections.get_mut(&id).expect("a connection");
        connection.message = Some(Box::new(message.into().to_mad(transaction_id)));
        connection.retries = 0;
        connection.delay = None;
        self.transmit_message(id, now);
    }

    /// Sends the message that is to be answered, and waits again.
    fn transmit_message(&mut self, id: u32, now: Duration) {
        let connection = &self.connections[&id];
        let mad = **connection.message.as_ref().expect("what waits for an answer has a message");
        let at = now + connection.delay.unwrap_or(connection.timeout);
        self.transmissions.push_back((connection.peer, mad));
        self.set_deadline(id, at);
    }

    /// The message is answered.
    fn finish(&mut self, id: u32, state: State) {
        self.stop(id);
        let connection = self.connections.get_mut(&id).expect("a connection");
        connection.message = None;
        connection.state = state;
    }

    /// Sends a message once.
    fn send(&mut self, peer: P, transaction_id: u64, message: impl Into<Message>) {
        self.transmissions.push_back((peer, message.into().to_mad(transaction_id)));
    }

    /// Sends REJ for a connection.
    fn send_rej(&mut self, id: u32, message: u8, reason: RejectReason, rej: &Rej) {
        let connection = &self.connections[&id];
        let mut rej = Rej {
            local_communication_id: id,
            remote_communication_id: connection.remote_id,
            message,
            reason,
            ..*rej
        };
        if reason == RejectReason::TIMEOUT {
            // The peer may know this side's communication ID without having told its own.
            let guid = self.config.ca_guid.to_be_bytes();
            rej.additional_information_len = guid.len() as u8;
            rej.additional_information[..guid.len()].copy_from_slice(&guid);
        }
        self.send(connection.peer, connection.transaction_id, rej);
    }

    /// Gives an answer, and keeps it.
    fn send_answer(&mut self, to: Remote<P>, mad: Mad, now: Duration) {
        self.keep_answer(to, mad, now);
        self.transmissions.push_back((to.peer, mad));
    }

    fn keep_answer(&mut self, to: Remote<P>, mad: Mad, now: Duration) {
        // IB-PKT-60
        self.answers.truncate(MAX_ANSWERS - 1);
        self.answers.push_front(Answer { to, until: now + ANSWER_LIFETIME, mad });
    }

    /// Gives an answer again; true if there is one.
    // IB-CM-28, IB-SIDR-5
    fn repeat_answer(&mut self, to: Remote<P>, transaction_id: u64, now: Duration) -> bool {
        while self.answers.back().is_some_and(|answer| answer.until <= now) {
            self.answers.pop_back();
        }
        let same =
            |answer: &&Answer<P>| answer.to == to && answer.mad.header.transaction_id.get() == transaction_id;
        let answer = self.answers.iter().find(same).map(|answer| answer.mad);
        self.transmissions.extend(answer.map(|mad| (to.peer, mad)));
        answer.is_some()
    }
}
