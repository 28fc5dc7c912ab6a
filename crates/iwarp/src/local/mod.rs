//! The same host: one-sided operations between two processes of one user need no TCP.
//!
//! A connection stands by TCP alone, as between hosts. Then the side that began it looks whether a process of this host has the other end: it asks the process that
//! holds the [`door`] of the address which it has connected to, and names the connection by its two addresses ([`question`]). So each side learns in which process the other
//! end is, and by which number. Processes that have not met yet do so now ([`Meetings`]). From then on each side carries out
//! one-sided operations in memory of the other ([`adverb_samehost`]), as far as that lets it and nothing before them is under way. All else goes by TCP,
//! and so does everything until then. Neither side waits for the other: what one of them knows is enough for its own operations.
//!
//! What comes by TCP is unchanged, and nothing of this is said there.

mod channel;
mod door;
mod question;

pub(crate) use channel::Channel;
#[cfg(any(test, fuzzing))]
pub(crate) use question::try_bytes as try_question;

use crate::endpoint::Endpoint;
use crate::lock;
use crate::socket::{Socket, is_local};
use adverb_core::error::Result;
use adverb_core::fork::Born;
use adverb_core::log;
use adverb_core::memory::ways::Together;
use adverb_core::seqpacket::{Connection, Descriptors};
use adverb_samehost::{Copies, Landmark, Life, Meetings, Parts, Sharing, Side, Way};
use door::Door;
use question::Question;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Tells queue pairs from those of other transports where they are published: their numbers have 24 bits.
const IWARP: u32 = 1 << 31;

/// By which name a queue pair is published.
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
    /// None of addresses that are one only with an interface: nobody else is asked by them.
    fn of(socket: &Socket) -> Option<Self> {
        let plain = |address: SocketAddr| {
            let is_scoped = matches!(address, SocketAddr::V6(address) if address.scope_id() != 0);
            // An IPv4 connection may come to a socket of IPv6.
            (!is_scoped).then(|| SocketAddr::new(address.ip().to_canonical(), address.port()))
        };
        Some(Self { local: plain(socket.local()?)?, peer: plain(socket.peer()?)? })
    }

    /// The same connection, as the other end knows it.
    fn reversed(self) -> Self {
        Self { local: self.peer, peer: self.local }
    }
}

/// What another process has of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    process: libc::pid_t,
    /// Of its queue pair.
    number: u32,
}

/// An end of a connection within this host.
struct Member {
    serial: u64,
    endpoint: Weak<Endpoint>,
    socket: Arc<Socket>,
    peer: Option<Peer>,
    /// By which the other end finds this one.
    _door: Option<Arc<Door>>,
}

#[derive(Default)]
struct Members {
    all: HashMap<Ends, Member>,
    /// The doors that are open, by their names.
    doors: HashMap<Vec<u8>, Weak<Door>>,
}

/// What the devices of this process have together. Thread-safe.
pub(crate) struct Host {
    this: Weak<Host>,
    meetings: Meetings<Host>,
    members: Mutex<Members>,
    serials: AtomicU64,
    channels: Mutex<Vec<Arc<Channel>>>,
    /// The one to this process itself, if there could be one.
    own: OnceLock<Option<Arc<Channel>>>,
    pub(crate) sharing: Arc<Sharing>,
    pub(crate) copies: Arc<Copies>,
}

/// An end of a connection is known as long as this lives.
pub(crate) struct Place {
    born: Born,
    host: Arc<Host>,
    ends: Ends,
    serial: u64,
}

impl Place {
    /// The connection.
    pub(crate) fn ends(&self) -> Ends {
        self.ends
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return;
        }
        let mut members = lock(&self.host.members);
        if members.all.get(&self.ends).is_some_and(|member| member.serial == self.serial) {
            let gone = members.all.remove(&self.ends);
            // A door may close.
            drop(members);
            drop(gone);
        }
    }
}

impl Host {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            meetings: Meetings::default(),
            members: Mutex::default(),
            serials: AtomicU64::new(0),
            channels: Mutex::default(),
            own: OnceLock::new(),
            sharing: Sharing::of_process(),
            copies: Arc::default(),
        })
    }

    fn this(&self) -> Arc<Host> {
        self.this.upgrade().expect("it lives as long as its devices")
    }

    /// The connection over a socket is about to stand. If both of its ends are on this host, the other one finds ours from now on. `accepts`: by this side's
    /// door, before the other side can ask.
    pub(crate) fn expect(
        &self,
        endpoint: &Arc<Endpoint>,
        socket: &Arc<Socket>,
        accepts: bool,
    ) -> Option<Place> {
        if self.meetings.are_off() || !Together::now().is_straight() {
            return None;
        }
        let ends = Ends::of(socket)?;
        if ends.local.ip() != ends.peer.ip() && !is_local(ends.peer.ip()) {
            return None;
        }
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
        let mut members = lock(&self.members);
        let _door = if accepts { members.door(&self.this(), ends) } else { None };
        let endpoint = Arc::downgrade(endpoint);
        let member = Member { serial, endpoint, socket: socket.clone(), peer: None, _door };
        let before = members.all.insert(ends, member);
        drop(members);
        drop(before);
        Some(Place { born: Born::now(), host: self.this(), ends, serial })
    }

    /// A member whose connection stands: its endpoint, its socket, and its peer.
    fn member(&self, ends: Ends) -> Option<(Arc<Endpoint>, Arc<Socket>, Option<Peer>)> {
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
        let Some((other, other_socket, _)) = self.member(ends.reversed()) else {
            return Question::ask(&self.this(), ends, endpoint.queues.number);
        };
        if let Some(channel) = self.to_oneself() {
            endpoint.meets(&socket, &channel, other.queues.number);
            other.meets(&other_socket, &channel, endpoint.queues.number);
            // The other side may begin later.
            let process = channel.process();
            self.note(ends.reversed(), Peer { process, number: endpoint.queues.number });
        }
    }

    /// Who has the other end of a connection. None if there is no such connection here.
    fn note(&self, ends: Ends, peer: Peer) -> Option<Arc<Endpoint>> {
        let mut members = lock(&self.members);
        let member = members.all.get_mut(&ends)?;
        member.peer = Some(peer);
        member.endpoint.upgrade()
    }

    /// The process at the other end has memory in common with this one, perhaps.
    fn join(&self, ends: Ends, peer: Peer) {
        let channel = match peer.process == std::process::id() as libc::pid_t {
            true => self.to_oneself(),
            false => match self.meetings.way(peer.process, None) {
                Some(Way::Channel(channel)) => Some(channel),
                _ => None,
            },
        };
        if let (Some(channel), Some((endpoint, socket, _))) = (channel, self.member(ends)) {
            endpoint.meets(&socket, &channel, peer.number);
        }
    }

    /// The channel from this process to itself.
    fn to_oneself(&self) -> Option<Arc<Channel>> {
        let make = || {
            let made = Parts::to_oneself().map_err(|error| error.to_string());
            let made = made.and_then(|parts| Channel::new(self.this(), *parts).map_err(|e| e.to_string()));
            match made {
                Ok(channel) => {
                    self.enter(&channel);
                    Some(channel)
                }
                Err(error) => {
                    log!(Warn, "no memory for connections within this process: {error}");
                    None
                }
            }
        };
        self.own.get_or_init(make).clone()
    }

    fn enter(&self, channel: &Arc<Channel>) {
        self.sharing.enter(adverb_samehost::Acquainted::this(&**channel));
        lock(&self.channels).push(channel.clone());
    }

    /// A channel has ended.
    fn forget(&self, channel: &Channel) {
        self.sharing.leave(channel);
        lock(&self.channels).retain(|known| !std::ptr::eq(&**known, channel));
        self.meetings.forget(channel);
    }

    fn by_connection(&self, connection: RawFd) -> Option<Arc<Channel>> {
        let channels = lock(&self.channels);
        channels.iter().find(|channel| channel.connection() == Some(connection)).cloned()
    }
}

impl Members {
    /// The door for the other end of a connection: that of our address, or, where another process has its name, one for this connection alone.
    fn door(&mut self, host: &Arc<Host>, ends: Ends) -> Option<Arc<Door>> {
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

/// Processes find each other by the addresses of a connection, and what they say of a meeting begins with a byte that says so.
impl Side for Host {
    type Channel = Channel;

    fn meetings(&self) -> &Meetings<Self> {
        &self.meetings
    }

    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
        connection.send_with(&[&[question::MEETING], message], descriptors)
    }

    fn hear(bytes: &[u8]) -> Option<&[u8]> {
        bytes.split_first().filter(|(kind, _)| **kind == question::MEETING).map(|(_, message)| message)
    }

    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel>> {
        Channel::new(self.clone(), parts)
    }

    fn end(channel: &Arc<Channel>) {
        channel.end();
    }

    fn decided(self: &Arc<Self>, process: libc::pid_t, _: &[u32], channel: Option<&Arc<Channel>>) {
        let Some(channel) = channel else { return };
        self.enter(channel);
        let with_it: Vec<_> = {
            let members = lock(&self.members);
            let with_it = members.all.values().filter_map(|member| {
                let peer = member.peer.filter(|peer| peer.process == process)?;
                Some((member.endpoint.upgrade()?, member.socket.clone(), peer.number))
            });
            with_it.collect()
        };
        if let Some((endpoint, ..)) = with_it.first() {
            endpoint.queues.counters.local_channels.add(1);
        }
        for (endpoint, socket, number) in with_it {
            endpoint.meets(&socket, channel, number);
        }
        // It may have ended before.
        if channel.neighbour.life() >= Life::Ended {
            self.forget(channel);
        }
    }

    fn told(&self, connection: RawFd, descriptors: Descriptors, of: Landmark) {
        if let Some(channel) = self.by_connection(connection) {
            channel.neighbour.told(descriptors, of);
        }
    }

    fn hung_up(self: &Arc<Self>, connection: &Arc<Connection>) {
        self.meetings.withdrawn(self, connection);
        if let Some(channel) = self.by_connection(connection.fd()) {
            channel.end();
        }
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
