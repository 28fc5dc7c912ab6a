//! The messages of RDMAP: what a sender is asked to send and what a receiver reports.

use adverb_wire::ddp::{self, Control, Tagged, Untagged};
use adverb_wire::rdmap::{self, Opcode};
use adverb_wire::zerocopy::IntoBytes;

use super::fault::{Fault, HeaderCopy, Terminate};

/// An RDMA Read Request (RFC 5040 section 4.4). All tags and offsets are in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// STag of the requester's buffer that the data go to.
    pub sink_stag: u32,
    /// Tagged offset in that buffer.
    pub sink_to: u64,
    /// Bytes to read. Zero is allowed; then neither buffer is looked at.
    // RFC5040-4.4-4, RFC5040-5.2.1-6
    // RFC5040-4.4-4, RFC5040-5.2.1-9
    pub len: u32,
    /// STag of the responder's buffer that the data come from.
    pub source_stag: u32,
    /// Tagged offset in that buffer.
    pub source_to: u64,
}

impl ReadRequest {
    pub(crate) fn to_wire(self) -> rdmap::ReadRequest {
        rdmap::ReadRequest {
            sink_stag: self.sink_stag.into(),
            sink_to: self.sink_to.into(),
            length: self.len.into(),
            source_stag: self.source_stag.into(),
            source_to: self.source_to.into(),
        }
    }

    pub(crate) fn from_wire(wire: &rdmap::ReadRequest) -> ReadRequest {
        ReadRequest {
            sink_stag: wire.sink_stag.get(),
            sink_to: wire.sink_to.get(),
            len: wire.length.get(),
            source_stag: wire.source_stag.get(),
            source_to: wire.source_to.get(),
        }
    }
}

/// A 64-bit atomic operation with its operands (RFC 7306 section 5.1).
///
/// There is no separate swap on the wire: the standard lists only these two, and a [`AtomicOperation::swap`]
/// is a comparison of no bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOperation {
    /// Adds to one or several fields of the target.
    FetchAdd {
        /// What to add.
        add: u64,
        /// A one at the most significant bit of each field; 0 for one field of 64 bits.
        mask: u64,
    },
    /// Replaces bits of the target if other bits have the given values.
    CompareSwap {
        /// What to compare the target with.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
        /// The new bits.
        swap: u64,
        /// The bits to replace.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// Unconditional exchange of all 64 bits.
    pub const fn swap(value: u64) -> AtomicOperation {
        AtomicOperation::CompareSwap { compare: 0, compare_mask: 0, swap: value, swap_mask: u64::MAX }
    }

    /// The value that the target holds after the operation, from the value before it (RFC 7306 sections
    /// 5.1.1, 5.1.2).
    // RFC7306-5-2, RFC7306-5.1.1-3, RFC7306-5.1.2-1
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            AtomicOperation::FetchAdd { add, mask } => {
                // Every masked bit is the top of a field and carries nothing out: add the other bits, in
                // which the top bits are clear and so absorb the carry from below, then put the top bits in
                // without carry.
                let top = mask;
                let low = (original & !top).wrapping_add(add & !top);
                low ^ (original & top) ^ (add & top)
            }
            AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (compare ^ original) & compare_mask == 0 {
                    original & !swap_mask | swap & swap_mask
                } else {
                    original
                }
            }
        }
    }
}

/// An Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// A number that the response repeats.
    pub id: u32,
    /// STag of the responder's buffer.
    pub stag: u32,
    /// Tagged offset of the eight bytes; the address that it means must be a multiple of eight
    /// ([`Fault::CatastrophicStream`] otherwise, RFC 7306 section 8.2).
    pub to: u64,
    /// The operation of the request.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    pub(crate) fn to_wire(self) -> rdmap::AtomicRequest {
        let mut wire = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => {
                let mut wire = rdmap::AtomicRequest::new(rdmap::AtomicRequest::FETCH_ADD);
                wire.data = add.into();
                wire.mask = mask.into();
                // RFC7306-5.2.1-9: compare data zero, compare mask all ones when not applicable.
                wire.compare_mask = u64::MAX.into();
                wire
            }
            AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                let mut wire = rdmap::AtomicRequest::new(rdmap::AtomicRequest::COMPARE_SWAP);
                wire.data = swap.into();
                wire.mask = swap_mask.into();
                wire.compare = compare.into();
                wire.compare_mask = compare_mask.into();
                wire
            }
        };
        wire.request_id = self.id.into();
        wire.stag = self.stag.into();
        wire.to = self.to.into();
        wire
    }

    /// `None` for an operation code that does not exist.
    pub(crate) fn from_wire(wire: &rdmap::AtomicRequest) -> Option<AtomicRequest> {
        let operation = match wire.operation() {
            rdmap::AtomicRequest::FETCH_ADD => {
                AtomicOperation::FetchAdd { add: wire.data.get(), mask: wire.mask.get() }
            }
            rdmap::AtomicRequest::COMPARE_SWAP => AtomicOperation::CompareSwap {
                compare: wire.compare.get(),
                compare_mask: wire.compare_mask.get(),
                swap: wire.data.get(),
                swap_mask: wire.mask.get(),
            },
            // RFC7306-5.2.1-5
            _ => return None,
        };
        Some(AtomicRequest { id: wire.request_id.get(), stag: wire.stag.get(), to: wire.to.get(), operation })
    }
}

/// An Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The number of the request.
    pub id: u32,
    /// What the target held before.
    pub original: u64,
}

/// A message to send. The payload of those with a `len` is not part of it: the caller sends its bytes where
/// the [`Fpdu`](super::Fpdu)s say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outbound {
    /// A Send in one of its four forms.
    Send {
        /// Bytes of payload.
        len: u32,
        /// STag that the receiver shall invalidate.
        invalidate: Option<u32>,
        /// Whether the receiver shall raise an event.
        solicited: bool,
    },
    /// An RDMA Write.
    Write {
        /// STag of the peer's buffer.
        stag: u32,
        /// Tagged offset in it.
        to: u64,
        /// Bytes of payload.
        len: u32,
    },
    /// An RDMA Read Request. The caller keeps it in [`OutstandingReads`](super::OutstandingReads).
    ReadRequest(ReadRequest),
    /// The response to a Read Request, with its sink tag and offset.
    ReadResponse {
        /// Sink STag of the request.
        sink_stag: u32,
        /// Sink tagged offset of the request.
        sink_to: u64,
        /// Bytes of payload, as asked for.
        len: u32,
    },
    /// A Terminate: the last message of the stream.
    Terminate(Terminate),
    /// Immediate Data (needs [`extensions`](super::mpa::Parameters::extensions)).
    Immediate {
        /// The data.
        data: [u8; rdmap::IMMEDIATE_LEN],
        /// Whether the receiver shall raise an event.
        solicited: bool,
    },
    /// An Atomic Request (needs [`extensions`](super::mpa::Parameters::extensions)).
    AtomicRequest(AtomicRequest),
    /// An Atomic Response (needs [`extensions`](super::mpa::Parameters::extensions)).
    AtomicResponse(AtomicResponse),
}

impl Outbound {
    /// The RDMAP opcode of the message.
    // RFC5040-4.1-4, RFC7306-4.1-1
    pub const fn opcode(&self) -> Opcode {
        match self {
            Outbound::Send { invalidate, solicited, .. } => send_opcode(invalidate.is_some(), *solicited),
            Outbound::Write { .. } => Opcode::Write,
            Outbound::ReadRequest(_) => Opcode::ReadRequest,
            Outbound::ReadResponse { .. } => Opcode::ReadResponse,
            Outbound::Terminate(_) => Opcode::Terminate,
            Outbound::Immediate { solicited: false, .. } => Opcode::Immediate,
            Outbound::Immediate { solicited: true, .. } => Opcode::ImmediateSolicited,
            Outbound::AtomicRequest(_) => Opcode::AtomicRequest,
            Outbound::AtomicResponse(_) => Opcode::AtomicResponse,
        }
    }

    /// Bytes of payload that the caller has to supply.
    pub const fn payload_len(&self) -> u32 {
        match self {
            Outbound::Send { len, .. } | Outbound::Write { len, .. } | Outbound::ReadResponse { len, .. } => {
                *len
            }
            _ => 0,
        }
    }
}

const fn send_opcode(invalidate: bool, solicited: bool) -> Opcode {
    match (invalidate, solicited) {
        (false, false) => Opcode::Send,
        (true, false) => Opcode::SendInvalidate,
        (false, true) => Opcode::SendSolicited,
        (true, true) => Opcode::SendSolicitedInvalidate,
    }
}

/// What a DDP segment is. Order has been checked; tags, bounds and rights have not: they are the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// Payload for a region of ours. With a payload of zero bytes, tag and offset mean nothing and are not to
    /// be checked.
    Write {
        /// STag of the region.
        stag: u32,
        /// Tagged offset of the payload.
        to: u64,
        /// The message ends here.
        last: bool,
    },
    /// Payload for the read at the front of [`OutstandingReads`](super::OutstandingReads), which checks it.
    ReadResponse {
        /// Sink STag.
        stag: u32,
        /// Tagged offset of the payload.
        to: u64,
        /// The message ends here.
        last: bool,
    },
    /// Payload for a posted receive buffer. A message without payload has one segment and takes a buffer too.
    Send {
        /// Number of the message, from 1, wrapping.
        msn: u32,
        /// Offset of the payload in the message.
        mo: u32,
        /// The message starts here.
        first: bool,
        /// The message ends here; its length is `mo` plus the payload of this segment.
        // RFC5041-5.4-2
        last: bool,
        /// STag to invalidate before the message is delivered.
        invalidate: Option<u32>,
        /// Raise an event.
        solicited: bool,
    },
    /// A request to read from a region of ours.
    ReadRequest {
        /// Number of the message in its queue.
        msn: u32,
        /// The request.
        request: ReadRequest,
    },
    /// The peer ends the stream with an error; nothing follows.
    Terminate(Terminate),
    /// Immediate Data. It takes a receive buffer as a Send does, but leaves the buffer untouched.
    Immediate {
        /// Number of the message in the queue of Sends.
        msn: u32,
        /// The data.
        data: [u8; rdmap::IMMEDIATE_LEN],
        /// Raise an event.
        solicited: bool,
    },
    /// A request for an atomic operation on a region of ours.
    AtomicRequest {
        /// Number of the message in the queue of Read Requests.
        msn: u32,
        /// The request.
        request: AtomicRequest,
    },
    /// The response to the atomic operation at the front of [`OutstandingReads`](super::OutstandingReads).
    AtomicResponse {
        /// Number of the message in its queue.
        msn: u32,
        /// The response.
        response: AtomicResponse,
    },
    /// The initiator is ready to receive: the zero-length Send agreed in start-up. It takes no receive
    /// buffer.
    ReadyToReceive,
}

impl Segment {
    /// The RDMAP opcode of the message.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Segment::Write { .. } => Opcode::Write,
            Segment::ReadResponse { .. } => Opcode::ReadResponse,
            Segment::Send { invalidate, solicited, .. } => send_opcode(invalidate.is_some(), *solicited),
            Segment::ReadRequest { .. } => Opcode::ReadRequest,
            Segment::Terminate(_) => Opcode::Terminate,
            Segment::Immediate { solicited: false, .. } => Opcode::Immediate,
            Segment::Immediate { solicited: true, .. } => Opcode::ImmediateSolicited,
            Segment::AtomicRequest { .. } => Opcode::AtomicRequest,
            Segment::AtomicResponse { .. } => Opcode::AtomicResponse,
            Segment::ReadyToReceive => Opcode::Send,
        }
    }

    /// The headers of this segment as they were on the wire, reserved bits aside.
    fn headers(&self, payload_len: usize) -> HeaderCopy {
        let opcode = self.opcode() as u8;
        let tagged = |stag: u32, to: u64, last| {
            HeaderCopy::tagged(
                &Tagged { control: Control::new(true, last, opcode), stag: stag.into(), to: to.into() },
                payload_len,
            )
        };
        let untagged = |queue: u32, msn: u32, mo: u32, last, invalidate: Option<u32>, body_len: usize| {
            HeaderCopy::untagged(
                &Untagged {
                    control: Control::new(false, last, opcode),
                    invalidate: invalidate.unwrap_or(0).into(),
                    queue: queue.into(),
                    msn: msn.into(),
                    mo: mo.into(),
                },
                body_len,
            )
        };
        match *self {
            Segment::Write { stag, to, last } | Segment::ReadResponse { stag, to, last } => {
                tagged(stag, to, last)
            }
            Segment::Send { msn, mo, last, invalidate, .. } => {
                untagged(ddp::QUEUE_SEND, msn, mo, last, invalidate, payload_len)
            }
            Segment::ReadRequest { msn, request } => {
                untagged(ddp::QUEUE_READ_REQUEST, msn, 0, true, None, rdmap::READ_REQUEST_LEN)
                    .with_read_request(request.to_wire())
            }
            Segment::Terminate(terminate) => {
                untagged(ddp::QUEUE_TERMINATE, ddp::FIRST_MSN, 0, true, None, terminate.body_len())
            }
            Segment::Immediate { msn, .. } => {
                untagged(ddp::QUEUE_SEND, msn, 0, true, None, rdmap::IMMEDIATE_LEN)
            }
            Segment::AtomicRequest { msn, .. } => {
                untagged(ddp::QUEUE_READ_REQUEST, msn, 0, true, None, rdmap::ATOMIC_REQUEST_LEN)
            }
            Segment::AtomicResponse { msn, .. } => {
                untagged(ddp::QUEUE_ATOMIC_RESPONSE, msn, 0, true, None, rdmap::ATOMIC_RESPONSE_LEN)
            }
            Segment::ReadyToReceive => untagged(ddp::QUEUE_SEND, ddp::FIRST_MSN, 0, true, None, 0),
        }
    }

    /// The Terminate for a fault that the caller has found with this segment, with the headers that RFC 5040
    /// section 4.8 asks for. `payload_len` is that of the segment.
    // RFC5040-7.1-3, RFC5040-7.1-4, RFC7306-8.1-2
    pub fn terminate(&self, fault: Fault, payload_len: usize) -> Terminate {
        Terminate::new(fault, &self.headers(payload_len))
    }
}

/// One FPDU that has arrived: what it is and where its parts are.
///
/// The FPDU takes `head_len + payload_len + trailer_len` bytes of the stream, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The segment in the FPDU.
    pub segment: Segment,
    /// Bytes before the payload.
    pub head_len: usize,
    /// Bytes of payload: of [`Segment::Write`], [`Segment::ReadResponse`] and [`Segment::Send`]; 0 for the
    /// others.
    pub payload_len: usize,
    /// Bytes after the payload that belong to this FPDU, to be skipped.
    pub trailer_len: usize,
}

impl Arrival {
    /// Bytes of the stream that the FPDU takes.
    pub const fn total_len(&self) -> usize {
        self.head_len + self.payload_len + self.trailer_len
    }

    /// The Terminate for a fault that the caller has found with this segment.
    pub fn terminate(&self, fault: Fault) -> Terminate {
        self.segment.terminate(fault, self.payload_len)
    }
}

/// Copies a header into the first bytes of `out` and returns what is left.
pub(crate) fn put<'a>(
    out: &'a mut [u8],
    header: &(impl IntoBytes + adverb_wire::zerocopy::Immutable),
) -> &'a mut [u8] {
    let bytes = header.as_bytes();
    let (head, rest) = out.split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The pseudocode of RFC 7306 section 5.1.1, bit by bit.
    fn fetch_add(original: u64, add: u64, mask: u64) -> u64 {
        let (mut carry, mut result) = (0, 0);
        for bit in 0..64 {
            let sum = carry + (original >> bit & 1) + (add >> bit & 1);
            result |= (sum & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { sum >> 1 };
        }
        result
    }

    // RFC7306-5-2, RFC7306-5.1.1-3, RFC7306-5.1.2-1
    #[test]
    fn known_results() {
        let add = |add, mask| AtomicOperation::FetchAdd { add, mask };
        assert_eq!(add(1, 0).apply(41), 42);
        assert_eq!(add(1, 0).apply(u64::MAX), 0);
        // Two fields of 32 bits: nothing is carried from the lower to the upper.
        assert_eq!(add(1, 1 << 31 | 1 << 63).apply(0xffff_ffff), 0);
        let swap = |compare, swap| AtomicOperation::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        };
        assert_eq!(swap(5, 9).apply(5), 9);
        assert_eq!(swap(5, 9).apply(6), 6);
        assert_eq!(AtomicOperation::swap(3).apply(77), 3);
    }

    proptest! {
        #[test]
        fn masked_addition_is_that_of_the_standard(original: u64, operand: u64, mask: u64) {
            let operation = AtomicOperation::FetchAdd { add: operand, mask };
            prop_assert_eq!(operation.apply(original), fetch_add(original, operand, mask));
        }

        #[test]
        fn masked_swap_touches_the_masked_bits_only(original: u64, compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) {
            let operation = AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
            let result = operation.apply(original);
            prop_assert_eq!(result & !swap_mask, original & !swap_mask);
            let equal = original & compare_mask == compare & compare_mask;
            prop_assert_eq!(result & swap_mask, if equal { swap } else { original } & swap_mask);
        }
    }
}
