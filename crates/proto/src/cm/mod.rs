//! Connection management of InfiniBand and RoCE (volume 1, chapter 12), as the Linux kernel does it below
//! rdma_cm.
//!
//! A [`Manager`] keeps all connections of a program. Bytes of management datagrams and the time go in,
//! datagrams and events come out:
//!
//! * [`Manager::receive`] takes a datagram of the communication management class, with who sent it. `P` says
//!   who a peer is: two messages of one adapter come from equal peers, so an address, and not the port of a
//!   socket.
//! * After every call, [`Manager::poll_transmit`] and [`Manager::poll_event`] give what there is to send and
//!   to tell, until they give nothing; and [`Manager::handle_timeout`] is to be called at
//!   [`Manager::deadline`].
//!
//! A connection is known by its local communication ID. The messages themselves carry the parameters, so
//! calls and events have the structures of [`adverb_wire::ib::cm`]; what the manager knows better
//! (communication IDs, the adapter's GUID) it fills in itself, whatever the caller put there.
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
//! A connection ends with exactly one of [`Event::Rejected`], [`Event::TimedOut`], [`Event::Disconnected`]
//! and [`Event::DatagramReply`], or with a call of [`Manager::reject`], [`Manager::answer`] or
//! [`Manager::destroy`]. [`Event::TimewaitExit`] may follow; until then its queue pair must not be used
//! again.
//!
//! What the other side can make the manager keep is bounded: connections by [`Config::max_connections`],
//! unanswered requests by the backlog of their service, which its peers share out, and answers that may have
//! to be given again by a constant.

mod active;
mod connection;
mod passive;
mod release;
mod sidr;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use adverb_wire::ib::cm::{Message, Rej, Rep, Req, SidrRep, SidrReq};
use adverb_wire::ib::mad::{MAD_LEN, Mad};

use crate::keyed;
use connection::{Answer, Connection, Kind, Listener, Remote, State};

/// How often rdma_cm sends a message again: the value for [`Req::max_cm_retries`].
pub const MAX_RETRIES: u8 = 15;
/// How long rdma_cm takes to answer, as in [`adverb_wire::ib::cm::interval`]: about four seconds. The value
/// for [`Req::local_response_timeout`] and [`Req::remote_response_timeout`].
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How long MRA says that a program may take, as in [`interval`]: about a minute.
const SERVICE_TIMEOUT: u8 = 24;
/// The shortest time that a peer may ask to wait for its answer: about 70 milliseconds.
const SHORTEST_INTERVAL: u8 = 14;
/// The longest time that a peer may ask to wait for its answer or to keep a released connection: about nine
/// seconds.
const LONGEST_INTERVAL: u8 = 21;
/// How long an answer of the peer is awaited in all, where the peer has said how often and at what pauses it
/// wants to be asked: as long as it takes with rdma_cm's own choice. With its longest ones a peer could have
/// this side wait for many minutes.
// ROCE-40
const PEER_TIMEOUT: Duration = Duration::from_secs(69);
/// Answers that are kept in order to be given again.
// ROCE-40
const MAX_ANSWERS: usize = 128;
/// How long they are kept: as long as a peer that got an MRA may repeat its request.
const ANSWER_LIFETIME: Duration = Duration::from_secs(20 * 60);

/// What a manager is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The first bits of all local communication IDs.
    pub prefix: u32,
    /// How many bits these are, 0 to 24.
    pub prefix_bits: u32,
    /// Random bits, for communication IDs and transaction IDs that nobody guesses.
    pub key: keyed::Key,
    /// GUID of the adapter.
    pub ca_guid: u64,
    /// How many connections there can be, those that are being made or have just been released included.
    pub max_connections: usize,
    /// How long a service that nobody offers is asked for again, instead of telling that it was refused.
    ///
    /// Some programs tell their client to connect and only then listen, and rely on the time that an
    /// adapter's driver takes.
    pub patience: Duration,
}

/// What a manager tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<P> {
    /// Passive: a peer asks for a connection. To be answered with [`Manager::accept`] or [`Manager::reject`].
    Request {
        /// The new connection.
        connection: u32,
        /// The peer that asks.
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
    /// Passive: a peer asks for the queue pair of a datagram service. To be answered with
    /// [`Manager::answer`].
    DatagramRequest {
        /// Stands for the request until it is answered.
        connection: u32,
        /// The peer that asks.
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

/// The queue pairs of a connection that a message calls stale: it comes from the peer's queue pair, for
/// another connection.
///
/// Nothing in such a message is secret. So a process other than the peer may have sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleClaim {
    /// Our queue pair of the connection.
    pub local_qpn: u32,
    /// The peer's.
    pub remote_qpn: u32,
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
    /// Another listener has this service.
    #[error("the service is in use")]
    InUse,
}

/// Why a datagram has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IgnoreReason {
    /// The datagram is no message of connection management.
    Malformed,
    /// Nobody knows what it is about.
    Unknown,
    /// The datagram does not fit the state of its connection; mostly, it came twice.
    State,
    /// There is no room for another connection or unanswered request. The peer will ask again.
    Full,
    /// The claim that a connection is stale, which is not believed, or comes while the connection is about to
    /// end. The peer will ask again.
    Doubted,
}

impl std::fmt::Display for IgnoreReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Malformed => "it is no message of connection management",
            Self::Unknown => "nobody knows what it is about",
            Self::State => "it does not fit the state of its connection",
            Self::Full => "there is no room for another connection",
            Self::Doubted => "its queue pair still has a connection",
        })
    }
}

/// All connections of a program.
#[derive(Debug)]
pub struct Manager<P> {
    config: Config,
    /// The peers that stand for all of a group, and for all that are one member of it.
    group: fn(P) -> [P; 2],
    /// Counts the communication IDs, and the transactions.
    ids: u32,
    transactions: u64,
    connections: BTreeMap<u32, Connection<P>>,
    remotes: BTreeMap<Remote<P>, u32>,
    listeners: BTreeMap<u64, Listener<P>>,
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
            group: |peer| [peer; 2],
            ids: 0,
            transactions: 0,
            connections: BTreeMap::new(),
            remotes: BTreeMap::new(),
            listeners: BTreeMap::new(),
            answers: VecDeque::new(),
            deadlines: BTreeSet::new(),
            transmissions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// This manager with peers in groups, which share out the backlog of a service. The members of a group
    /// share out its part. `group` gives two peers for a peer: one stands for its whole group, and one for
    /// the member of the group that it is. Holds for services that are listened for afterwards.
    #[must_use]
    pub fn grouped(self, group: fn(P) -> [P; 2]) -> Manager<P> {
        Manager { group, ..self }
    }

    /// Takes requests for a service, as many unanswered ones as `backlog` at a time, at least one. Both REQ
    /// and SIDR_REQ are requests. Where there are so many, a peer that has fewer than another takes the place
    /// of that one's oldest: this is refused, and an answer of the program's comes too late.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> Result<(), Error> {
        if self.listeners.contains_key(&service_id) {
            return Err(Error::InUse);
        }
        self.listeners.insert(service_id, Listener::new(backlog, self.group));
        Ok(())
    }

    /// Takes no requests any more. What is unanswered can still be answered.
    pub fn unlisten(&mut self, service_id: u64) {
        self.listeners.remove(&service_id);
    }

    /// Takes a datagram of the communication management class. Each claim that a connection is stale is
    /// believed, as between adapters.
    pub fn receive(&mut self, bytes: &[u8], from: P, now: Duration) -> Result<(), IgnoreReason> {
        self.receive_if(bytes, from, now, &|_| true)
    }

    /// Takes a datagram as [`Manager::receive`] does, where the caller may know better than a message whether
    /// a connection still stands.
    ///
    /// The manager calls `believes` before it releases a connection that the message calls stale. If the
    /// answer is no, the message has no effect, and no answer: a genuine one comes again, and is served once
    /// the old connection has ended.
    pub fn receive_if(
        &mut self,
        bytes: &[u8],
        from: P,
        now: Duration,
        believes: &dyn Fn(StaleClaim) -> bool,
    ) -> Result<(), IgnoreReason> {
        let mad = Mad::parse(bytes).ok_or(IgnoreReason::Malformed)?;
        // IB-CM-10
        let message = Message::parse(mad).map_err(|_| IgnoreReason::Malformed)?;
        let transaction_id = mad.header.transaction_id.get();
        match &message {
            Message::Req(req) => self.receive_req(req, transaction_id, from, now, believes),
            Message::Mra(mra) => self.receive_mra(mra, transaction_id, from, now),
            Message::Rej(rej) => self.receive_rej(rej, transaction_id, from, now),
            Message::Rep(rep) => self.receive_rep(rep, transaction_id, from, now, believes),
            Message::Rtu(rtu) => self.receive_rtu(rtu, from),
            Message::Dreq(dreq) => self.receive_dreq(dreq, transaction_id, from, now),
            Message::Drep(drep) => self.receive_drep(drep, from, now),
            Message::SidrReq(req) => self.receive_sidr_req(req, transaction_id, from, now),
            Message::SidrRep(rep) => self.receive_sidr_rep(rep, transaction_id, from, now),
            // A RoCE port has no alternate path.
            // IB-CM-49
            Message::Lap(_) | Message::Apr(_) => Err(IgnoreReason::Unknown),
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
            } else if connection.retries < connection.max_retries && now < connection.until {
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

    /// Whether there is an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
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
}
