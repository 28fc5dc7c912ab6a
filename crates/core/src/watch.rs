//! Whether each packet is to be shown: to a capture (`ADVERB_PCAP`), the log (`ADVERB_LOG=packets`), or a
//! watcher that has been installed here (a trace). All are behind one look, so that the fast path pays for
//! one branch. No transport knows which of them there are.

use crate::log::{self, Level};
use crate::pcap;
use crate::wire::{Direction, Kind};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// One direction of a TCP connection. Both ends give it the same name, unless a translation of addresses lies
/// between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The address that bytes come from.
    pub from: SocketAddr,
    /// The address that they go to.
    pub to: SocketAddr,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

/// Packets that are numbered together. Both ends know which they are, and number them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Packets to the queue pair of this number. They have sequence numbers, modulo 2^24.
    Pair(u32),
    /// Segments of a TCP connection. The number of a segment is its offset from the first one, in bytes.
    Stream(Stream),
    /// Messages of such a connection that go by shared memory instead. They are counted from 0.
    Beside(Stream),
}

/// Which requests of the receiver's queue pair a packet answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The packet answers no request.
    Nothing,
    /// The requests whose packets have this sequence number, or an earlier one.
    UpTo(u32),
    /// The request that was posted behind so many others.
    Place(u64),
}

/// A packet that has left or has come: of a stream, a segment. Within a host, it may be a record in its
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which way.
    pub direction: Direction,
    /// The other host.
    pub peer: IpAddr,
    /// The kind of the packet.
    pub kind: Kind,
    /// The packet begins its message.
    pub begins: bool,
    /// The packet ends its message.
    pub ends: bool,
    /// The packet ends a message that takes a receive.
    pub takes_receive: bool,
    /// The queue pair that it comes from, where the packet says so.
    pub source: Option<u32>,
    /// This process's queue pair, where that is known.
    pub queue_pair: Option<u32>,
    /// The packets that it is one of.
    pub flow: Flow,
    /// The packet's number in its flow.
    pub number: u64,
    /// The packets or messages that the packet answers.
    pub answers: Answers,
    /// The length of the packet's payload, in bytes.
    pub length: u32,
    /// The packet goes by memory that two processes share.
    pub is_within: bool,
}

/// The first packet of a request is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStart {
    /// The queue pair that the request was posted to.
    pub queue_pair: u32,
    /// How many requests were posted to it before.
    pub place: u64,
    /// The packets that the first one is one of.
    pub flow: Flow,
    /// The number of the first packet there.
    pub number: u64,
}

/// Sees packets. It is called under locks of the transport, and calls nothing of it.
pub trait Packets: Send + Sync {
    /// A packet passes, at this time of the device's clock. A packet that leaves has not arrived before that
    /// time.
    fn packet(&self, time: u64, packet: &Packet);

    /// A request begins.
    fn begun(&self, begun: &RequestStart);
}

static WATCHER: OnceLock<&'static dyn Packets> = OnceLock::new();

/// 0: not found out yet.
static STATE: AtomicU8 = AtomicU8::new(0);
const NO_OBSERVER: u8 = 1;
/// A capture, or the log: they want bytes.
const FRAMES: u8 = 2;
const WATCHER_ALONE: u8 = 3;

/// Shows all packets to `watcher` from now on. To be called before the first transport is there; the first
/// call counts.
pub fn install(watcher: &'static dyn Packets) {
    if WATCHER.set(watcher).is_ok() {
        look();
    }
}

/// Whether packets are to be shown at all. Cheap.
#[inline]
pub fn packets() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => look() != NO_OBSERVER,
        state => state != NO_OBSERVER,
    }
}

/// Whether the capture or the log wants the bytes of packets, so that messages without packets must become
/// packets.
#[inline]
pub fn frames() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => look() == FRAMES,
        state => state == FRAMES,
    }
}

/// The watcher, which sees the kinds and lengths of packets, if there is one.
pub fn watcher() -> Option<&'static dyn Packets> {
    WATCHER.get().copied()
}

#[cold]
fn look() -> u8 {
    // Both are asked here, also if the first says yes.
    let (captured, logged) = (pcap::enabled(), log::enabled(Level::Packets));
    let state = match () {
        () if captured || logged => FRAMES,
        () if watcher().is_some() => WATCHER_ALONE,
        () => NO_OBSERVER,
    };
    STATE.store(state, Ordering::Relaxed);
    state
}
