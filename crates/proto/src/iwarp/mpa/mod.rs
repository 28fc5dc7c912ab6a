//! MPA start-up: one request, one reply (RFC 5044 section 7.1, RFC 6581).
//!
//! The [`Initiator`] speaks first, the [`Responder`] answers. Both are fed everything that has been received
//! so far and say how much more they need, or what the frame was and how many bytes it took; the bytes after
//! it are FPDUs.
//!
//! # Two flags of our own
//!
//! Nothing in the standards says whether a peer has the operations of RFC 7306. adverb uses two bits of the
//! flags that RFC 5044 reserves and receivers ignore: the request offers, the reply accepts. They are two
//! because the Linux siw driver builds its reply in the memory of the request, so that every flag comes back.

mod initiator;
mod responder;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use adverb_wire::mpa::{ControlFlags, ENHANCED_LEN, EnhancedData, Flags, MAX_PRIVATE_DATA, START_LEN, Start};
use adverb_wire::zerocopy::{FromBytes, IntoBytes};

pub use initiator::{Initiator, Reply};
pub use responder::{Offer, Request, Responder};

use super::fault::{Fault, Terminate};
use super::message::{Outbound, ReadRequest};
use super::sender::Sender;

/// Greatest number of bytes that a start-up frame can take.
pub const MAX_START_LEN: usize = START_LEN + MAX_PRIVATE_DATA;
/// Greatest private data of a program, when depths are negotiated.
pub const MAX_ENHANCED_PRIVATE_DATA: usize = MAX_PRIVATE_DATA - ENHANCED_LEN;
/// Greatest IRD and ORD that can be negotiated.
pub const MAX_DEPTH: u16 = EnhancedData::NOT_NEGOTIATED - 1;
/// The highest revision of MPA.
pub const MAX_REVISION: u8 = 2;

/// The revision of MPA that an initiator asks for. A responder answers with the revision of the request, 0
/// to 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Revision {
    /// RFC 5044: depths are not negotiated, the initiator must send first.
    One = 1,
    /// RFC 6581: IRD, ORD and a ready-to-receive indication are negotiated.
    #[default]
    Two = 2,
}

/// The message by which an initiator says that it is ready to receive (RFC 6581 section 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RtrKind {
    /// A zero-length Send. It takes no receive buffer.
    Send,
    /// A zero-length RDMA Write.
    Write,
    /// A zero-length RDMA Read.
    Read,
}

/// A set of [`RtrKind`]s.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RtrKinds {
    /// [`RtrKind::Send`] is in the set.
    pub send: bool,
    /// [`RtrKind::Write`] is in the set.
    pub write: bool,
    /// [`RtrKind::Read`] is in the set.
    pub read: bool,
}

impl RtrKinds {
    /// The empty set.
    pub const NONE: RtrKinds = RtrKinds { send: false, write: false, read: false };
    /// All three.
    pub const ALL: RtrKinds = RtrKinds { send: true, write: true, read: true };

    /// The set of one.
    pub const fn only(kind: RtrKind) -> RtrKinds {
        RtrKinds {
            send: matches!(kind, RtrKind::Send),
            write: matches!(kind, RtrKind::Write),
            read: matches!(kind, RtrKind::Read),
        }
    }

    /// True if the set is empty.
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// What both sets have.
    pub const fn and(self, other: RtrKinds) -> RtrKinds {
        RtrKinds {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// The kind to use: a Write costs least, then a Read; a Send comes last because few peers have it.
    pub const fn preferred(self) -> Option<RtrKind> {
        match self {
            RtrKinds { write: true, .. } => Some(RtrKind::Write),
            RtrKinds { read: true, .. } => Some(RtrKind::Read),
            RtrKinds { send: true, .. } => Some(RtrKind::Send),
            _ => None,
        }
    }

    const fn control(self, peer_to_peer: bool) -> ControlFlags {
        // RFC6581-9.2-7: without flag A the others are zero.
        ControlFlags {
            peer_to_peer,
            send: peer_to_peer && self.send,
            write: peer_to_peer && self.write,
            read: peer_to_peer && self.read,
        }
    }

    const fn from_control(control: ControlFlags) -> RtrKinds {
        RtrKinds { send: control.send, write: control.write, read: control.read }
    }
}

/// What an end wants of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Revision to ask for, as initiator.
    pub revision: Revision,
    /// Require CRCs. They are used in both directions if either end requires them.
    pub crc: bool,
    /// Require markers in what this end receives. siw rejects this.
    pub markers: bool,
    /// Inbound read depth to announce, at most [`MAX_DEPTH`]; anything above means "do not negotiate".
    pub ird: u16,
    /// How far this end may raise its IRD when the peer asks for more reads.
    pub ird_limit: u16,
    /// Outbound read depth wanted, at most [`MAX_DEPTH`]; anything above means "do not negotiate". It is
    /// lowered to what the peer has room for.
    pub ord: u16,
    /// As initiator with revision 2: the ready-to-receive indications offered; none for the client-server
    /// model, where the program of the initiator sends first. As responder: those acceptable (none counts as
    /// Write).
    pub rtr: RtrKinds,
    /// Take FPDUs larger than the EMSS, and send them if the peer takes them too.
    pub large_fpdu: bool,
    /// Have the operations of RFC 7306.
    pub extensions: bool,
}

impl Default for Config {
    /// Revision 2, CRCs required, no markers, 16 reads each way, no indication, large FPDUs, RFC 7306.
    // RFC5044-4.4-2: the default is to use CRCs.
    fn default() -> Config {
        Config {
            revision: Revision::Two,
            crc: true,
            markers: false,
            ird: 16,
            ird_limit: 128,
            ord: 16,
            rtr: RtrKinds::NONE,
            large_fpdu: true,
            extensions: true,
        }
    }
}

/// The IRD and ORD of one end, as it sent them. `None` where it did not want to negotiate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// How many reads and atomic operations of its peer it takes at a time.
    pub ird: Option<u16>,
    /// How many it wants to have outstanding.
    pub ord: Option<u16>,
}

impl Depths {
    fn from_wire(data: &EnhancedData) -> Depths {
        let negotiated = |depth: u16| (depth != EnhancedData::NOT_NEGOTIATED).then_some(depth);
        Depths { ird: negotiated(data.ird()), ord: negotiated(data.ord()) }
    }
}

/// What two ends have agreed on, from the view of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// This end is the initiator, which must send first.
    pub initiator: bool,
    /// Revision of MPA in use.
    // RFC5044-3-6
    pub revision: u8,
    /// CRCs are generated and checked in both directions.
    pub crc: bool,
    /// The peer requires markers in what this end sends.
    pub markers_tx: bool,
    /// This end has required markers in what it receives.
    pub markers_rx: bool,
    /// How many reads and atomic operations of the peer must be accepted at a time. `None`: not negotiated,
    /// so that programs agree on it some other way.
    pub ird: Option<u16>,
    /// How many may be outstanding at the peer. `None`: not negotiated.
    pub ord: Option<u16>,
    /// The indication that the initiator sends before anything else, and that the responder waits for.
    /// `None`: the first message of the program takes its place.
    pub rtr: Option<RtrKind>,
    /// FPDUs may be as large as their 16-bit length allows, whatever the EMSS.
    pub large_fpdu: bool,
    /// The operations of RFC 7306 may be used.
    pub extensions: bool,
}

impl Parameters {
    /// The ready-to-receive indication that this end has to send before anything else; none at a responder. A
    /// Read has to be kept in [`OutstandingReads`](super::OutstandingReads) like any other: its response
    /// comes.
    pub fn rtr_message(&self) -> Option<Outbound> {
        if !self.initiator {
            return None;
        }
        // The tags of zero-length messages are not looked at (RFC 5041 section 5.2, RFC 5040 section 5.2.1).
        Some(match self.rtr? {
            RtrKind::Send => Outbound::Send { len: 0, invalidate: None, solicited: false },
            RtrKind::Write => Outbound::Write { stag: 0, to: 0, len: 0 },
            RtrKind::Read => Outbound::ReadRequest(ReadRequest {
                sink_stag: 0,
                sink_to: 0,
                len: 0,
                source_stag: 0,
                source_to: 0,
            }),
        })
    }
}

/// Why a start-up failed. Except for [`StartError::PrivateDataTooLong`], the TCP connection is to be closed,
/// after sending [`StartError::terminate_frame`] if there is one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The private data of this end do not fit the frame.
    #[error("private data of {len} bytes: at most {max} fit an MPA start-up frame")]
    PrivateDataTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The peer has sent something that is not MPA.
    #[error("the peer does not speak MPA: its first bytes are {0}")]
    NotMpa(Snippet),
    /// Both ends are initiators, or both responders.
    #[error("the peer is an MPA {peer} too: one end must connect and the other accept")]
    SameRole {
        /// What the peer is: "initiator" or "responder".
        peer: &'static str,
    },
    /// The peer wants a revision that does not exist here.
    #[error("MPA revision {0} of the peer is not supported (0 to 2 are)")]
    Revision(u8),
    /// The reply is not of the enhanced form that the request asked for.
    #[error(
        "the peer answered an enhanced MPA request with a plain reply of revision {revision}: try MPA revision 1"
    )]
    NotEnhanced {
        /// Revision of the reply.
        revision: u8,
    },
    /// The private data length of the peer is over the limit, or too short for enhanced data.
    #[error(
        "MPA private data length {0} of the peer: 512 is the limit, and 4 the minimum of an enhanced frame"
    )]
    PrivateDataLength(u16),
    /// The peer wants more reads outstanding at this end than it may have.
    #[error("the peer wants {wanted} outstanding reads, at most {limit} are possible here")]
    InsufficientIrd {
        /// ORD of the peer.
        wanted: u16,
        /// Limit of this end.
        limit: u16,
        /// CRC and markers in use for the Terminate.
        parameters: Parameters,
    },
    /// The peer accepts none of the offered ready-to-receive indications.
    #[error("the peer accepts none of the offered ready-to-receive indications")]
    NoRtr {
        /// CRC and markers in use for the Terminate.
        parameters: Parameters,
    },
    /// The frame of the peer did not come in time.
    #[error("no complete MPA start-up frame from the peer in time")]
    Timeout,
    /// The peer closed the connection before its frame was complete.
    #[error("the peer closed the connection during MPA start-up")]
    Closed,
}

impl StartError {
    /// The FPDU that tells the peer, to be sent before closing. Only an initiator that has got an accepting
    /// reply sends one: before that, the peer would not understand it (RFC 6581 section 9).
    pub fn terminate_frame(&self) -> Option<Vec<u8>> {
        let (fault, parameters) = match self {
            StartError::InsufficientIrd { parameters, .. } => (Fault::InsufficientIrd, parameters),
            StartError::NoRtr { parameters } => (Fault::NoRtr, parameters),
            _ => return None,
        };
        Some(terminate_frame(fault, parameters))
    }

    /// The MPA fault that this is, for logs and counters.
    pub fn fault(&self) -> Fault {
        match self {
            StartError::InsufficientIrd { .. } => Fault::InsufficientIrd,
            StartError::NoRtr { .. } => Fault::NoRtr,
            StartError::Timeout | StartError::Closed => Fault::StreamLost,
            StartError::PrivateDataTooLong { .. } => Fault::MpaLocal,
            // RFC5044-8-4
            _ => Fault::BadStart,
        }
    }
}

/// A whole FPDU with a Terminate, for an initiator that has to give up right after the reply, for instance
/// because something failed locally ([`Fault::MpaLocal`]).
// RFC6581-8-1, RFC6581-9.3-1
pub fn terminate_frame(fault: Fault, parameters: &Parameters) -> Vec<u8> {
    let mut sender = Sender::new(parameters, 0);
    let mut frame = Vec::new();
    if sender.begin(Outbound::Terminate(Terminate::local(fault))).is_ok()
        && let Some(fpdu) = sender.next_fpdu()
    {
        sender.seal(&fpdu, &[], &mut frame);
    }
    frame
}

/// The first bytes that a peer sent, for an error message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snippet {
    bytes: [u8; 16],
    len: u8,
}

impl Snippet {
    fn new(input: &[u8]) -> Snippet {
        let mut bytes = [0; 16];
        let len = input.len().min(bytes.len());
        bytes[..len].copy_from_slice(&input[..len]);
        Snippet { bytes, len: len as u8 }
    }
}

impl fmt::Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes[..self.len as usize].escape_ascii())
    }
}

/// The instant until which a start-up frame must be complete.
#[derive(Clone, Copy, Debug)]
struct Deadline(Duration);

impl Deadline {
    // RFC5044-7.1.2-11
    fn check(self, now: Duration) -> Result<(), StartError> {
        if now >= self.0 { Err(StartError::Timeout) } else { Ok(()) }
    }
}

/// A start-up frame taken apart.
struct Frame<'a> {
    flags: Flags,
    private_data: &'a [u8],
    len: usize,
}

impl<'a> Frame<'a> {
    /// Reads the frame at the start of `input`. `Err(Ok(n))`: not complete, `n` bytes in all are needed.
    fn parse(
        input: &'a [u8],
        key: &[u8; 16],
        other_key: &[u8; 16],
    ) -> Result<Self, Result<usize, StartError>> {
        // A stranger is recognised by the first byte that differs, not only when 20 have arrived.
        let seen = input.len().min(key.len());
        // RFC5044-7.1.2-9
        if input[..seen] != key[..seen] {
            if seen == other_key.len() && input[..seen] == other_key[..] {
                let peer =
                    if *other_key == adverb_wire::mpa::REQUEST_KEY { "initiator" } else { "responder" };
                return Err(Err(StartError::SameRole { peer }));
            }
            if input[..seen] != other_key[..seen] {
                return Err(Err(StartError::NotMpa(Snippet::new(input))));
            }
        }
        let Ok((start, rest)) = Start::ref_from_prefix(input) else { return Err(Ok(START_LEN)) };
        let len = start.private_data_len.get();
        // RFC5044-7.1.1-13, RFC5044-7.1.2-10
        if len as usize > MAX_PRIVATE_DATA {
            return Err(Err(StartError::PrivateDataLength(len)));
        }
        // RFC5044-7.1.1-11
        if start.flags.revision() > MAX_REVISION {
            return Err(Err(StartError::Revision(start.flags.revision())));
        }
        match rest.get(..len as usize) {
            Some(private_data) => {
                Ok(Frame { flags: start.flags, private_data, len: START_LEN + len as usize })
            }
            None => Err(Ok(START_LEN + len as usize)),
        }
    }

    /// Takes the enhanced data off the private data.
    fn take_enhanced(&mut self) -> Result<EnhancedData, StartError> {
        let (enhanced, rest) = EnhancedData::ref_from_prefix(self.private_data)
            .map_err(|_| StartError::PrivateDataLength(self.private_data.len() as u16))?;
        self.private_data = rest;
        Ok(*enhanced)
    }
}

/// Builds a start-up frame.
fn build(
    key: [u8; 16],
    flags: Flags,
    enhanced: Option<EnhancedData>,
    private_data: &[u8],
) -> Result<Vec<u8>, StartError> {
    let extra = if enhanced.is_some() { ENHANCED_LEN } else { 0 };
    // RFC5044-7.1.1-14
    let max = MAX_PRIVATE_DATA - extra;
    if private_data.len() > max {
        return Err(StartError::PrivateDataTooLong { len: private_data.len(), max });
    }
    // RFC5044-7.1.1-12, RFC6581-6-4
    let len = extra + private_data.len();
    let start = Start { key, flags, private_data_len: (len as u16).into() };
    let mut frame = Vec::with_capacity(START_LEN + len);
    frame.extend_from_slice(start.as_bytes());
    if let Some(enhanced) = enhanced {
        frame.extend_from_slice(enhanced.as_bytes());
    }
    frame.extend_from_slice(private_data);
    Ok(frame)
}

fn bit(set: bool, bit: u16) -> u16 {
    if set { bit } else { 0 }
}
