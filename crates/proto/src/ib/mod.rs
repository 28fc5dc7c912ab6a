//! InfiniBand's transport: requester and responder of RC and UC, and UD.
//!
//! A connected queue pair is a [`Requester`] and a [`Responder`] that share nothing, so each may live under
//! its own lock. Packets of the peer go to one of them: acknowledgements and the responses to reads and
//! atomics to the requester ([`goes_to_requester`]), everything else to the responder. The caller has found
//! the queue pair, and has checked its state, the service, the P_Key, the peer's address and the invariant
//! CRC.
//!
//! Both ask their user, through [`RequesterHost`] and [`ResponderHost`], to move bytes and to complete
//! requests, and say by `poll_transmit` what goes out: headers in a buffer, and which payload belongs behind
//! them. How fast packets may go out is for a [`Window`], shared by all queue pairs with one peer.

mod datagram;
pub mod psn;
mod request;
mod requester;
mod responder;
pub mod timer;
mod window;

use adverb_wire::ib::opcode::{Operation as Opcode, Service as WireService};
use adverb_wire::ib::packet::Packet;

pub use datagram::{Datagram, DatagramHeader, check_datagram, write_datagram};
pub use request::{Operation, Outbound, PACKET_COST, Request, Source};
pub use requester::{Feedback, Loss, Requester, RequesterHost, RequesterOptions};
pub use responder::{
    Access, Delivery, DeliveryKind, DropReason, Keep, PendingReply, ReadSource, ReceiveFault, Refusal,
    Remote, Reply, Responder, ResponderHost, ResponderOptions, Verdict,
};
pub use window::Window;

/// Longest message, in bytes (volume 1, section 9.4.3).
// IB-PKT-45
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The service of a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection (annex A14): a connection in one direction, whose messages name the
    /// shared receive queue that they are for. One end has only a requester, the other only a responder.
    Xrc,
}

impl Service {
    fn wire(self) -> WireService {
        match self {
            Service::Rc => WireService::Rc,
            Service::Uc => WireService::Uc,
            Service::Xrc => WireService::Xrc,
        }
    }

    /// Whether what is sent is acknowledged.
    pub fn is_reliable(self) -> bool {
        self != Service::Uc
    }
}

/// How a request ended.
// IB-RC-REQ-55
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompletionStatus {
    /// The request is done.
    Success,
    /// The payload, or the place for a response, could not be accessed in the program's own memory.
    LocalProtection,
    /// A response is longer than the place for it.
    LocalLength,
    /// The request could not be made for another reason of this end.
    LocalOperation,
    /// The peer sent what does not answer the request.
    BadResponse,
    /// The responder found the request invalid.
    RemoteInvalidRequest,
    /// The responder refused access to its memory.
    RemoteAccess,
    /// The responder could not carry the request out.
    RemoteOperation,
    /// Nothing was heard, however often the request was repeated.
    RetryExceeded,
    /// The responder had no receive for it, however often the request was repeated.
    RnrRetryExceeded,
}

/// Why a response could not be placed in the program's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LocalFault {
    /// The memory may not be written, or is not there any more.
    Protection,
    /// There is not enough of it.
    Length,
    /// The data did not come with the packet and cannot be had: it counts as one that was lost.
    Lost,
    /// The data did not come with the packet and cannot be had, and the peer cannot have it either.
    Gone,
}

/// True for packets that go to the requester of a queue pair; all others go to its responder.
#[inline]
pub fn goes_to_requester(packet: &Packet<'_>) -> bool {
    packet.opcode().operation().is_response()
}

/// Packets that a message of this length takes: at least one.
// IB-RC-REQ-2, IB-RC-REQ-8, IB-RC-REQ-9
#[inline]
pub(crate) fn packets(length: u32, mtu: u32) -> u32 {
    // Most messages are short, and a division is not.
    if length <= mtu { 1 } else { length.div_ceil(mtu) }
}

/// The opcode's number for an operation that the service is known to have.
#[inline]
pub(crate) fn opcode(service: Service, operation: Opcode) -> adverb_wire::ib::opcode::Opcode {
    adverb_wire::ib::opcode::Opcode::new(service.wire(), operation).expect("the service has the operation")
}
