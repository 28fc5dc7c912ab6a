//! Connections within one host: one-sided operations between two processes of one user need no TCP.
//!
//! A connection stands by TCP alone, as between hosts. Then the side that began it looks whether a process of
//! this host has the other end. It asks the process that holds the [`door`] of the address which it has
//! connected to, and names the connection by its two addresses ([`question`]). So each side learns in which
//! process the other end is, and by which number. Processes that have not met yet do so now
//! ([`adverb_samehost::Handshakes`]). From then on each side carries out one-sided operations in memory of
//! the other ([`adverb_samehost`]), as far as that lets it and nothing before them is under way. Neither side
//! waits for the other: each one knows enough for its own operations. Short messages go through memory that
//! both have ([`channel`]), as soon as the other side has said there that it knows this one. All else goes by
//! TCP, and so does everything until then.
//!
//! The bytes by TCP are unchanged, and tell nothing of this. Each message through shared memory says how many
//! bytes of the stream come before it ([`record`]). So its receiver takes in everything in the order in which
//! it was sent.

mod channel;
mod door;
mod inbox;
mod question;
pub(crate) mod record;

pub(crate) use channel::{Channel, Messages, RecordOutcome, tell};
pub(crate) use inbox::{Inbox, weight};
#[cfg(any(test, fuzzing))]
pub(crate) use question::try_bytes as try_question;
#[cfg(any(test, fuzzing))]
pub(crate) use record::try_bytes as try_record;

use crate::endpoint::Endpoint;
use crate::lock;
use crate::socket::{Socket, is_local};
use adverb_core::counters::Counters;
use adverb_core::error::Result;
use adverb_core::fork::ForkGeneration;
use adverb_core::memory::ways::Together;
use adverb_core::seqpacket::Connection;
use adverb_samehost::{HandshakeVerdict, Hub, Parts, Side};
use door::Door;
use question::Question;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Tells queue pairs from those of other transports where they are published: their numbers have 24 bits.
const IWARP: u32 = 1 << 31;

/// The name under which a queue pair is published.
pub(crate) fn published_name(number: u32) -> u32 {
    number | IWARP
}

/// A connection, as one of its ends knows it. Within a network namespace no two that stand have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Ends {
    /// The ends of a socket. None for addresses that need an interface beside them: no other process is asked
    /// by these.
    fn of(socket: &Socket) -> Option<Self> {
        let plain = |address: SocketAddr| {
            let is_scoped = matches!(address, SocketAddr::V6(address) if address.scope_id() != 0);
            // An IPv4 connection may come to a socket of IPv6.
            (!is_scoped).then(|| SocketAddr::new(address.ip().to_canonical(), address.port()))
        };
        Some(Self { local: plain(socket.local()?)?, peer: plain(socket.peer()?)? })
    }

    /// The addresses of the connection as the other end knows them.
    fn reversed(self) -> Self {
        Self { local: self.peer, peer: self.local }
    }
}

/// The channels as the polls of a lane look at them.
pub(crate) type ChannelSnapshot = adverb_samehost::ChannelSnapshot<Messages>;

/// The other end of a connection, as another process has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteEnd {
    process: libc::pid_t,
    pub(crate) end: EndName,
}

/// The names by which the other process knows an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndName {
    /// Number of the end's queue pair.
    pub(crate) number: u32,
    /// Number of the end itself, which no other connection of its process has ([`Inbox::number`]).
    pub(crate) serial: u32,
}

/// An end of a connection within this host.
struct Member {
    endpoint: Weak<Endpoint>,
    inbox: Arc<Inbox>,
    socket: Arc<Socket>,
    peer: Option<RemoteEnd>,
    /// The door by which the other end finds this one.
    _door: Option<Arc<Door>>,
}

#[derive(Default)]
struct Members {
    all: HashMap<Ends, Member>,
    /// The addresses of each end, by the number of the end ([`Inbox::number`]).
    by_number: HashMap<u32, Ends>,
    /// The doors that are open, by their names.
    doors: HashMap<Vec<u8>, Weak<Door>>,
}

/// The connections within the host of all devices of this process. Thread-safe.
pub(crate) struct LocalHost {
    this: Weak<LocalHost>,
    pub(crate) hub: Hub<LocalHost>,
    members: Mutex<Members>,
    /// Counts the ends that have come and gone.
    changes: AtomicU64,
    serials: AtomicU32,
    counters: OnceLock<&'static Counters>,
}

/// An end of a connection is known as long as this lives.
pub(crate) struct EndPlace {
    born: ForkGeneration,
    host: Arc<LocalHost>,
    ends: Ends,
    inbox: Arc<Inbox>,
}

impl EndPlace {
    /// The connection.
    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }

    /// The messages for this end that come through shared memory.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }
}

impl Drop for EndPlace {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return;
        }
        let mut members = lock(&self.host.members);
        members.by_number.remove(&self.inbox.number);
        let is_here = |member: &Member| Arc::ptr_eq(&member.inbox, &self.inbox);
        let gone = if members.all.get(&self.ends).is_some_and(is_here) {
            members.all.remove(&self.ends)
        } else {
            None
        };
        self.host.changes.fetch_add(1, Ordering::AcqRel);
        // A door may close.
        drop(members);
        drop(gone);
    }
}

impl LocalHost {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            hub: Hub::default(),
            members: Mutex::default(),
            changes: AtomicU64::new(0),
            serials: AtomicU32::new(0),
            counters: OnceLock::new(),
        })
    }

    fn this(&self) -> Arc<LocalHost> {
        self.this.upgrade().expect("it lives as long as its devices")
    }

    /// The connection over a socket is about to stand. If both of its ends are on this host, the other one
    /// finds ours from now on. `accepts`: by this side's door, before the other side can ask.
    pub(crate) fn expect(
        &self,
        endpoint: &Arc<Endpoint>,
        socket: &Arc<Socket>,
        accepts: bool,
    ) -> Option<EndPlace> {
        if self.hub.handshakes.are_off() || !Together::now().is_straight() {
            return None;
        }
        let ends = Ends::of(socket)?;
        if ends.local.ip() != ends.peer.ip() && !is_local(ends.peer.ip()) {
            return None;
        }
        let _ = self.counters.set(endpoint.queues.counters);
        let mut members = lock(&self.members);
        let number = self.free_number(&members);
        let inbox = Arc::new(Inbox::new(number));
        let _door = if accepts { members.door(&self.this(), ends) } else { None };
        let endpoint = Arc::downgrade(endpoint);
        let member = Member { endpoint, inbox: inbox.clone(), socket: socket.clone(), peer: None, _door };
        let before = members.all.insert(ends, member);
        members.by_number.insert(number, ends);
        self.changes.fetch_add(1, Ordering::AcqRel);
        drop(members);
        drop(before);
        Some(EndPlace { born: ForkGeneration::now(), host: self.this(), ends, inbox })
    }

    /// A number that no end has.
    fn free_number(&self, members: &Members) -> u32 {
        loop {
            let number = self.serials.fetch_add(1, Ordering::Relaxed);
            if !members.by_number.contains_key(&number) {
                return number;
            }
        }
    }

    /// Changes when an end of a connection comes or goes.
    #[inline]
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The endpoint and the inbox of the end with this number.
    fn end_of(&self, number: u32) -> Option<channel::End> {
        let members = lock(&self.members);
        let member = members.all.get(members.by_number.get(&number)?)?;
        let is_it = member.inbox.number == number;
        Some((member.endpoint.clone(), member.inbox.clone())).filter(|_| is_it)
    }

    /// The endpoints that have a connection within this host.
    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        lock(&self.members).all.values().filter_map(|member| member.endpoint.upgrade()).collect()
    }

    /// The counters for events that belong to no queue pair: those of the device that has had a connection
    /// first.
    fn counters(&self) -> &'static Counters {
        self.counters.get_or_init(|| Box::leak(Box::new(Counters::private())))
    }

    /// A member whose connection stands: its endpoint, its socket, and its peer.
    fn member(&self, ends: Ends) -> Option<(Arc<Endpoint>, Arc<Socket>, Option<RemoteEnd>)> {
        let members = lock(&self.members);
        let member = members.all.get(&ends)?;
        Some((member.endpoint.upgrade()?, member.socket.clone(), member.peer))
    }

    /// The connection stands, and this side has begun it (`asks`) or not.
    pub(crate) fn begin(&self, ends: Ends, asks: bool) {
        if !asks {
            // The other side may have asked before.
            if let Some((_, _, Some(peer))) = self.member(ends) {
                self.join(ends, peer);
            }
            return;
        }
        let Some((endpoint, socket, _)) = self.member(ends) else { return };
        let Some(own) = self.named(ends) else { return };
        let (Some((other, other_socket, _)), Some(theirs)) =
            (self.member(ends.reversed()), self.named(ends.reversed()))
        else {
            return Question::ask(&self.this(), ends, own);
        };
        if let Some(channel) = self.hub.to_oneself(&self.this()) {
            endpoint.meets(&socket, &channel, theirs);
            other.meets(&other_socket, &channel, own);
            // The other side may begin later.
            let process = channel.neighbour.process();
            self.note(ends.reversed(), RemoteEnd { process, end: own });
        }
    }

    /// The names by which others know an end of a connection.
    fn named(&self, ends: Ends) -> Option<EndName> {
        let members = lock(&self.members);
        let member = members.all.get(&ends)?;
        let number = member.endpoint.upgrade()?.queues.number;
        Some(EndName { number, serial: member.inbox.number })
    }

    /// Notes which process has the other end of a connection. Returns the names by which others know this
    /// one; none if there is no such connection here.
    fn note(&self, ends: Ends, peer: RemoteEnd) -> Option<EndName> {
        {
            let mut members = lock(&self.members);
            members.all.get_mut(&ends)?.peer = Some(peer);
        }
        self.named(ends)
    }

    /// The process at the other end has memory in common with this one, perhaps.
    fn join(&self, ends: Ends, peer: RemoteEnd) {
        let channel = match peer.process == std::process::id() as libc::pid_t {
            true => self.hub.to_oneself(&self.this()),
            false => match self.hub.handshakes.verdict(peer.process, None) {
                Some(HandshakeVerdict::Channel(channel)) => Some(channel),
                _ => None,
            },
        };
        if let (Some(channel), Some((endpoint, socket, _))) = (channel, self.member(ends)) {
            endpoint.meets(&socket, &channel, peer.end);
        }
    }
}

impl Members {
    /// The door for the other end of a connection: that of our address, or, where another process has its
    /// name, one for this connection alone.
    fn door(&mut self, host: &Arc<LocalHost>, ends: Ends) -> Option<Arc<Door>> {
        self.doors.retain(|_, door| door.strong_count() > 0);
        for name in [door::name(ends.local), door::name_of_one(ends)] {
            if let Some(door) = self.doors.get(&name).and_then(Weak::upgrade) {
                return Some(door);
            }
            if let Some(door) = Door::open(host, &name) {
                self.doors.insert(name, Arc::downgrade(&door));
                return Some(door);
            }
        }
        None
    }
}

/// Processes find each other by the addresses of a connection. A first byte tells messages of a handshake
/// from questions.
impl Side for LocalHost {
    type Traffic = Messages;

    fn hub(&self) -> &Hub<Self> {
        &self.hub
    }

    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        connection.send_with(&[&[question::HANDSHAKE], message], descriptors)
    }

    fn hear(bytes: &[u8]) -> Option<&[u8]> {
        bytes.split_first().filter(|(kind, _)| **kind == question::HANDSHAKE).map(|(_, message)| message)
    }

    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel>> {
        Messages::open(self, parts)
    }

    fn decided(self: &Arc<Self>, process: libc::pid_t, _: &[u32], channel: Option<&Arc<Channel>>) {
        let Some(channel) = channel else { return };
        let with_it: Vec<_> = {
            let members = lock(&self.members);
            let with_it = members.all.values().filter_map(|member| {
                let peer = member.peer.filter(|peer| peer.process == process)?;
                Some((member.endpoint.upgrade()?, member.socket.clone(), peer.end))
            });
            with_it.collect()
        };
        if let Some((endpoint, ..)) = with_it.first() {
            endpoint.queues.counters.local_channels.add(1);
        }
        self.hub.enter(self, channel);
        for (endpoint, socket, end) in with_it {
            endpoint.meets(&socket, channel, end);
        }
    }

    fn forget(&self, channel: &Channel) {
        self.hub.leave(channel, || ());
    }
}

/// The bytes that stand for an address: sixteen, and the port.
const ADDRESS: usize = 18;

fn to_bytes(address: SocketAddr) -> [u8; ADDRESS] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn from_bytes(bytes: &[u8; ADDRESS]) -> SocketAddr {
    let (ip, port) = bytes.split_first_chunk::<16>().expect("there are more");
    SocketAddr::new(IpAddr::from(*ip).to_canonical(), u16::from_be_bytes([port[0], port[1]]))
}
