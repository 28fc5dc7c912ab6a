//! Whether anybody wants to see each packet: a capture (`ADVERB_PCAP`), the log (`ADVERB_LOG=packets`), or a watcher that has been installed here (a
//! trace). All are behind one look, so that the fast path pays for one branch. No transport knows who watches.

use crate::log::{self, Level};
use crate::pcap;
use crate::wire::{Direction, Kind};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// A packet that has left or has come; or a record in its place, within a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which way.
    pub direction: Direction,
    /// The other host.
    pub peer: IpAddr,
    /// What it is.
    pub kind: Kind,
    /// It begins its message.
    pub begins: bool,
    /// It ends its message.
    pub ends: bool,
    /// It ends a message that takes a receive.
    pub takes_receive: bool,
    /// The queue pair that it comes from, where the packet says so.
    pub source: Option<u32>,
    /// The queue pair that it goes to.
    pub destination: u32,
    /// Its sequence number.
    pub sequence: u32,
    /// The packet of this number, and all before it, are acknowledged.
    pub acknowledged: Option<u32>,
    /// Its payload, in bytes.
    pub length: u32,
    /// It goes by memory that two processes share.
    pub is_within: bool,
}

/// The first packet of a request is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The queue pair that the request was posted to.
    pub queue_pair: u32,
    /// How many requests were posted to it before.
    pub place: u64,
    /// The queue pair that the packet goes to.
    pub destination: u32,
    /// The packet's sequence number.
    pub sequence: u32,
}

/// Sees packets. It is called under locks of the transport, and calls nothing of it.
pub trait Packets: Send + Sync {
    /// A packet passes.
    fn packet(&self, packet: &Packet);

    /// A request begins.
    fn begun(&self, begun: &Begun);
}

static WATCHER: OnceLock<&'static dyn Packets> = OnceLock::new();

/// 0: not found out yet.
static STATE: AtomicU8 = AtomicU8::new(0);
const NOBODY: u8 = 1;
/// A capture, or the log: they want bytes.
const FRAMES: u8 = 2;
const WATCHER_ALONE: u8 = 3;

/// Shows all packets to `watcher` from now on. To be called before the first transport is there; the first call counts.
pub fn install(watcher: &'static dyn Packets) {
    if WATCHER.set(watcher).is_ok() {
        look();
    }
}

/// Whether packets are to be shown to anybody. Cheap.
#[inline]
pub fn packets() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => look() != NOBODY,
        state => state != NOBODY,
    }
}

/// Whether somebody wants the bytes of packets, so that what has none must become packets.
#[inline]
pub fn frames() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => look() == FRAMES,
        state => state == FRAMES,
    }
}

/// Who sees what packets are.
pub fn watcher() -> Option<&'static dyn Packets> {
    WATCHER.get().copied()
}

#[cold]
fn look() -> u8 {
    // Both are found out here, whatever the first says.
    let (captured, logged) = (pcap::enabled(), log::enabled(Level::Packets));
    let state = match () {
        () if captured || logged => FRAMES,
        () if watcher().is_some() => WATCHER_ALONE,
        () => NOBODY,
    };
    STATE.store(state, Ordering::Relaxed);
    state
}
