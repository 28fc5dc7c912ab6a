//! Faults of packets (`adverb run --fault`): a [`Wire`] loses, delays, repeats or damages packets of a
//! transport before they leave, and before they are taken in when they have come. A process without one has
//! no such faults.
//!
//! The transports ask at the place where packets meet the network, so a capture shows packets as they were on
//! the wire. Connections within the host go by the network then, too.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// This process sends it.
    Out,
    /// The packet has come to this process.
    In,
}

/// The kind of a packet, in any transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of a Send.
    Send,
    /// A part of an RDMA Write.
    Write,
    /// A request for an RDMA Read.
    Read,
    /// A part of the answer to a Read.
    ReadResponse,
    /// A request for an atomic operation.
    Atomic,
    /// The answer to an atomic operation.
    AtomicResponse,
    /// A request to flush memory.
    Flush,
    /// An acknowledgement, or a complaint in its place.
    Acknowledgement,
    /// A datagram of connection management.
    Management,
    /// Anything else.
    Other,
    /// Immediate data that follow their RDMA Write (iWARP).
    Immediate,
    /// The end of a connection, with its reason (iWARP).
    Terminate,
}

impl Kind {
    /// All, by their names. Rings of traces have the place of a kind in this list: new kinds come last.
    pub const ALL: [(&'static str, Self); 12] = [
        ("SEND", Self::Send),
        ("RDMA_WRITE", Self::Write),
        ("RDMA_READ", Self::Read),
        ("READ_RESPONSE", Self::ReadResponse),
        ("ATOMIC", Self::Atomic),
        ("ATOMIC_RESPONSE", Self::AtomicResponse),
        ("FLUSH", Self::Flush),
        ("ACK", Self::Acknowledgement),
        ("CM", Self::Management),
        ("OTHER", Self::Other),
        ("IMMEDIATE", Self::Immediate),
        ("TERMINATE", Self::Terminate),
    ];

    /// The kind's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| *name)
    }
}

/// The medium that carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Each packet goes by itself, and the transport repeats lost ones.
    Datagrams,
    /// TCP, which itself repeats and puts in order: bytes behind a packet wait for it.
    Stream,
}

/// A packet that is about to leave, or to be taken in.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// Which way.
    pub direction: Direction,
    /// The other host.
    pub peer: IpAddr,
    /// The kind of the packet.
    pub kind: Kind,
    /// The address of this process that it leaves from, or comes to; unspecified where that is not known.
    pub local: IpAddr,
    /// The length of the packet in bytes, without the headers of the network below.
    pub length: usize,
    /// The medium that carries it.
    pub medium: Medium,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The packet never arrives. Not of a stream.
    pub is_lost: bool,
    /// So many more copies of the packet arrive. Not of a stream.
    pub copies: u32,
    /// A bit of it is another, which this number chooses. Its checksum is wrong then.
    pub damage: Option<u64>,
    /// The packet goes on so much later. [`Duration::MAX`]: never.
    pub wait: Duration,
    /// Of a stream: the transport asks about it once more after that time.
    pub asks_again: bool,
    /// Of a stream: the connection is cut.
    pub is_cut: bool,
}

/// Decides the fate of packets. It is asked under locks of the transport, and calls nothing of it.
pub trait Wire: Send + Sync {
    /// A packet passes.
    fn pass(&self, passing: &Passing) -> Fate;

    /// Whether the faults damage packets: transports that can do without checksums have them then.
    fn damages(&self) -> bool;
}

static WIRE: OnceLock<&'static dyn Wire> = OnceLock::new();

/// Has all transports ask `wire` from now on. To be called before the first of them is there; the first call
/// counts.
pub fn install(wire: &'static dyn Wire) {
    let _ = WIRE.set(wire);
}

/// The object that decides the fate of packets, if there is one.
pub fn get() -> Option<&'static dyn Wire> {
    WIRE.get().copied()
}
