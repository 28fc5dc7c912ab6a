//! A rule of faults, as the grammar reads it: a subject, the objects that it is about, and when.

use super::chosen::Scope;
use super::when::{Wants, When};
use adverb_core::description::Rate;
use adverb_core::event::AsyncEventKind;
use adverb_core::request::Status;
use adverb_core::wire::{Direction, Kind, Passing};
use std::net::IpAddr;
use std::time::Duration;

/// A fault that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The rule as the user has written it.
    pub(super) text: String,
    /// Behind how many letters of the list it stands.
    pub(super) at: usize,
    pub(super) subject: Subject,
    /// The queue pair and the device that it is about.
    pub(super) of: Scope,
    pub(super) when: When,
}

/// What fails.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Calls { chosen: Vec<bool>, errno: i32 },
    Completion { what: OfCompletion, opcode: Option<u32> },
    Wire { what: OnWire, of: Packets },
    Event(AsyncEventKind),
    Device(OfDevice),
    Peer(OfPeer),
}

/// What happens to a completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OfCompletion {
    Fails(Status),
    Delay {
        time: Duration,
        jitter: Duration,
    },
    /// The completion waits for one of another queue pair, not longer than that.
    Reorder(Duration),
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnWire {
    Loss,
    Partition,
    Delay {
        time: Duration,
        jitter: Duration,
    },
    Reorder(Duration),
    Duplicate(u32),
    Corrupt,
    /// Bits in a second.
    Rate(f64),
    Cut,
}

/// Which packets a rule is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packets {
    pub(super) direction: Option<Direction>,
    /// An address, and how many of its bits count.
    pub(super) peer: Option<(IpAddr, u8)>,
    pub(super) kind: Option<Kind>,
}

impl Packets {
    pub(super) fn has(&self, passing: &Passing) -> bool {
        self.direction.is_none_or(|direction| direction == passing.direction)
            && self.kind.is_none_or(|kind| kind == passing.kind)
            && self.peer.is_none_or(|(address, bits)| is_within(passing.peer, address, bits))
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let keep = |length: u32| length.saturating_sub(bits.into());
    match (address.to_canonical(), network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (one.to_bits() ^ other.to_bits()).checked_shr(keep(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (one.to_bits() ^ other.to_bits()).checked_shr(keep(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// What happens to the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OfDevice {
    PortDown,
    GidRemoved(IpAddr),
    GidAdded(IpAddr),
    GidChanged(IpAddr, IpAddr),
    Speed(Rate),
    Fatal,
    Gone,
}

/// What happens to the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OfPeer {
    /// For so long, or for ever.
    Stall(Option<Duration>),
    Kill,
    Restart,
    Cut,
}

impl Subject {
    /// What a rule counts, for a person.
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Self::Calls { .. } => "calls",
            Self::Completion { .. } => "completions",
            Self::Wire { .. } => "packets",
            Self::Event(_) | Self::Device(_) | Self::Peer(_) => "times at which it was due",
        }
    }

    pub(super) fn wants(&self) -> Wants {
        match self {
            Self::Calls { .. } | Self::Completion { .. } | Self::Wire { .. } => Wants::Many,
            Self::Event(_) | Self::Peer(_) => Wants::Point,
            Self::Device(OfDevice::Fatal) => Wants::Point,
            Self::Device(_) => Wants::State,
        }
    }
}
