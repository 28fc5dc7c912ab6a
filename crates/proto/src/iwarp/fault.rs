//! What can be wrong with a stream, and the Terminate message that says so (RFC 5040 section 4.8).

use std::fmt;

use adverb_wire::ddp::{Control, TAGGED_LEN, Tagged, UNTAGGED_LEN, Untagged};
use adverb_wire::rdmap::{self, Opcode, TerminateControl};
use adverb_wire::zerocopy::FromBytes;

use super::message::put;

/// A reason to end a stream.
///
/// The first group is for the user of this crate to report with
/// [`Arrival::terminate`](super::Arrival::terminate) or
/// [`InboundRequest::terminate`](super::InboundRequest::terminate); the rest is found here. Which layer is
/// said to have failed depends on the message too: a bad STag in an RDMA Write is an error of DDP, in a Read
/// Request one of RDMAP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No region has this STag (any more).
    #[error("invalid STag")]
    InvalidStag,
    /// The bytes are not all inside the region.
    #[error("base or bounds violation")]
    BaseBounds,
    /// The region does not grant the right.
    #[error("access rights violation")]
    AccessRights,
    /// The STag is for another stream or protection domain.
    #[error("STag not associated with this stream")]
    StagNotAssociated,
    /// Offset plus length exceeds 64 bits.
    #[error("tagged offset wraps")]
    ToWrap,
    /// The STag of a Send with Invalidate may not be invalidated by the peer.
    #[error("STag cannot be invalidated")]
    CannotInvalidate,
    /// No receive is posted for the message.
    #[error("no receive buffer available")]
    NoBuffer,
    /// The message is longer than its receive buffer.
    #[error("message too long for the receive buffer")]
    MessageTooLong,
    /// This end failed, for a reason that has nothing to do with a message of the peer.
    #[error("local catastrophic error")]
    LocalCatastrophic,
    /// The stream cannot go on: more reads than agreed, or a target of an atomic operation that is not
    /// aligned.
    #[error("catastrophic error, localized to the stream")]
    CatastrophicStream,
    /// This end cannot go on at all.
    #[error("catastrophic error, global")]
    CatastrophicGlobal,

    /// A protocol error without a code of its own, such as a length that does not fit the opcode.
    #[error("message malformed")]
    Malformed,
    /// Wrong version of RDMAP.
    #[error("invalid RDMAP version")]
    RdmapVersion,
    /// An opcode that does not exist, was not agreed on, or may not come here.
    #[error("unexpected opcode")]
    UnexpectedOpcode,
    /// Wrong version of DDP.
    #[error("invalid DDP version")]
    DdpVersion,
    /// A queue number that does not exist or does not fit the opcode.
    #[error("invalid queue number")]
    InvalidQueue,
    /// A message sequence number out of order.
    #[error("message sequence number out of range")]
    MsnRange,
    /// A message offset out of order.
    #[error("invalid message offset")]
    InvalidOffset,

    /// TCP closed or was lost in the middle of something.
    #[error("TCP connection closed or lost")]
    StreamLost,
    /// The CRC of an FPDU is wrong.
    #[error("MPA CRC error")]
    Crc,
    /// A marker does not point to the start of its FPDU.
    #[error("MPA marker and FPDU start disagree")]
    Marker,
    /// An MPA start-up frame is malformed.
    #[error("invalid MPA request or reply")]
    BadStart,
    /// MPA failed for a local reason.
    #[error("MPA local catastrophic error")]
    MpaLocal,
    /// The peer wants to have more reads outstanding here than there is room for.
    #[error("insufficient inbound read queue depth")]
    InsufficientIrd,
    /// The two ends have no ready-to-receive indication in common.
    #[error("no matching ready-to-receive option")]
    NoRtr,
}

const RDMAP: u8 = 0;
const DDP: u8 = 1;
const LLP: u8 = 2;

const RDMAP_LOCAL: u8 = 0;
const RDMAP_PROTECTION: u8 = 1;
const RDMAP_OPERATION: u8 = 2;
const DDP_LOCAL: u8 = 0;
const DDP_TAGGED: u8 = 1;
const DDP_UNTAGGED: u8 = 2;
const LLP_MPA: u8 = 0;

impl Fault {
    /// Layer, error type and error code, for a message that goes to a tagged buffer or not (RFC 5040 figure
    /// 9, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section 8).
    // RFC5040-4.8-2, RFC5041-7.2-1, RFC5041-7.2-2, RFC6581-8-1
    const fn codes(self, tagged: bool) -> (u8, u8, u8) {
        match (self, tagged) {
            // DDP has no code for a missing right.
            (Fault::InvalidStag | Fault::AccessRights, true) => (DDP, DDP_TAGGED, 0),
            (Fault::BaseBounds, true) => (DDP, DDP_TAGGED, 1),
            (Fault::StagNotAssociated, true) => (DDP, DDP_TAGGED, 2),
            (Fault::ToWrap, true) => (DDP, DDP_TAGGED, 3),
            (Fault::DdpVersion, true) => (DDP, DDP_TAGGED, 4),
            (Fault::InvalidStag, false) => (RDMAP, RDMAP_PROTECTION, 0),
            (Fault::BaseBounds, false) => (RDMAP, RDMAP_PROTECTION, 1),
            (Fault::AccessRights, false) => (RDMAP, RDMAP_PROTECTION, 2),
            (Fault::StagNotAssociated, false) => (RDMAP, RDMAP_PROTECTION, 3),
            (Fault::ToWrap, false) => (RDMAP, RDMAP_PROTECTION, 4),
            (Fault::CannotInvalidate, _) => (RDMAP, RDMAP_PROTECTION, 9),
            (Fault::RdmapVersion, _) => (RDMAP, RDMAP_OPERATION, 5),
            (Fault::UnexpectedOpcode, _) => (RDMAP, RDMAP_OPERATION, 6),
            (Fault::CatastrophicStream, _) => (RDMAP, RDMAP_OPERATION, 7),
            (Fault::CatastrophicGlobal, _) => (RDMAP, RDMAP_OPERATION, 8),
            (Fault::Malformed, _) => (RDMAP, RDMAP_OPERATION, 0xff),
            (Fault::LocalCatastrophic, _) => (RDMAP, RDMAP_LOCAL, 0),
            (Fault::InvalidQueue, _) => (DDP, DDP_UNTAGGED, 1),
            (Fault::NoBuffer, _) => (DDP, DDP_UNTAGGED, 2),
            (Fault::MsnRange, _) => (DDP, DDP_UNTAGGED, 3),
            (Fault::InvalidOffset, _) => (DDP, DDP_UNTAGGED, 4),
            (Fault::MessageTooLong, _) => (DDP, DDP_UNTAGGED, 5),
            (Fault::DdpVersion, false) => (DDP, DDP_UNTAGGED, 6),
            (Fault::StreamLost, _) => (LLP, LLP_MPA, 1),
            (Fault::Crc, _) => (LLP, LLP_MPA, 2),
            (Fault::Marker, _) => (LLP, LLP_MPA, 3),
            (Fault::BadStart, _) => (LLP, LLP_MPA, 4),
            (Fault::MpaLocal, _) => (LLP, LLP_MPA, 5),
            (Fault::InsufficientIrd, _) => (LLP, LLP_MPA, 6),
            (Fault::NoRtr, _) => (LLP, LLP_MPA, 7),
        }
    }
}

/// The headers of an offending segment, ready to be copied into a Terminate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeaderCopy {
    ddp: [u8; UNTAGGED_LEN],
    ddp_len: u8,
    segment_len: u16,
    read_request: Option<[u8; rdmap::READ_REQUEST_LEN]>,
}

impl HeaderCopy {
    /// Nothing is known of the segment.
    pub(crate) const NONE: HeaderCopy =
        HeaderCopy { ddp: [0; UNTAGGED_LEN], ddp_len: 0, segment_len: 0, read_request: None };

    pub(crate) fn tagged(header: &Tagged, payload_len: usize) -> HeaderCopy {
        let mut copy = HeaderCopy {
            ddp_len: TAGGED_LEN as u8,
            segment_len: (TAGGED_LEN + payload_len) as u16,
            ..HeaderCopy::NONE
        };
        put(&mut copy.ddp, header);
        copy
    }

    pub(crate) fn untagged(header: &Untagged, payload_len: usize) -> HeaderCopy {
        let mut copy = HeaderCopy {
            ddp_len: UNTAGGED_LEN as u8,
            segment_len: (UNTAGGED_LEN + payload_len) as u16,
            ..HeaderCopy::NONE
        };
        put(&mut copy.ddp, header);
        copy
    }

    pub(crate) fn with_read_request(mut self, request: rdmap::ReadRequest) -> HeaderCopy {
        let mut bytes = [0; rdmap::READ_REQUEST_LEN];
        put(&mut bytes, &request);
        self.read_request = Some(bytes);
        self
    }

    fn is_tagged(&self) -> bool {
        self.ddp_len as usize == TAGGED_LEN
    }
}

/// A Terminate message (RFC 5040 section 4.8): the error that ends a stream, and the headers of the segment
/// that caused it as far as they are included.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    layer: u8,
    error_type: u8,
    code: u8,
    segment_len: Option<u16>,
    ddp: [u8; UNTAGGED_LEN],
    ddp_len: u8,
    rdmap: Option<[u8; rdmap::READ_REQUEST_LEN]>,
}

impl Terminate {
    /// Greatest length of a Terminate header.
    pub(crate) const MAX_BODY: usize = rdmap::TERMINATE_CONTROL_LEN
        + rdmap::TERMINATE_SEGMENT_LEN_LEN
        + UNTAGGED_LEN
        + rdmap::READ_REQUEST_LEN;

    /// The Terminate for a fault that no message of the peer has caused.
    // RFC5040-7.1-2, RFC7306-8.1-1
    pub fn local(fault: Fault) -> Terminate {
        Terminate::new(fault, &HeaderCopy::NONE)
    }

    pub(crate) fn new(fault: Fault, headers: &HeaderCopy) -> Terminate {
        let (layer, error_type, code) = fault.codes(headers.is_tagged());
        // RFC5040-4.8-7: figure 10 says which error comes with which headers.
        let with_ddp = headers.ddp_len != 0
            && match layer {
                RDMAP => error_type != RDMAP_LOCAL,
                DDP => error_type != DDP_LOCAL,
                _ => false,
            };
        // RFC5040-4.8-6, RFC5040-7.1-4
        let with_rdmap = with_ddp && layer == RDMAP && error_type == RDMAP_PROTECTION;
        Terminate {
            layer,
            error_type,
            code,
            // RFC5040-4.8-4, RFC5040-4.8-5, RFC5041-7.1-13
            segment_len: with_ddp.then_some(headers.segment_len),
            ddp: headers.ddp,
            ddp_len: if with_ddp { headers.ddp_len } else { 0 },
            rdmap: if with_rdmap { headers.read_request } else { None },
        }
    }

    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 MPA.
    pub const fn layer(&self) -> u8 {
        self.layer
    }

    /// The type of error, in the meaning of the layer.
    pub const fn error_type(&self) -> u8 {
        self.error_type
    }

    /// The error code, in the meaning of layer and type.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// Bytes of the DDP segment that caused the error, if known.
    pub const fn segment_len(&self) -> Option<u16> {
        self.segment_len
    }

    /// The opcode of the message that caused the error, if its header is included.
    pub fn opcode(&self) -> Option<Opcode> {
        let (control, _) = Control::ref_from_prefix(self.ddp_header()?).ok()?;
        Opcode::from_u8(control.opcode())
    }

    /// The DDP header of the segment that caused the error, if included: 14 or 18 bytes.
    pub fn ddp_header(&self) -> Option<&[u8]> {
        (self.ddp_len != 0).then(|| &self.ddp[..self.ddp_len as usize])
    }

    /// The Read Request that caused the error, if included. Its addresses and length are what had not been
    /// read yet.
    pub fn read_request(&self) -> Option<super::ReadRequest> {
        let bytes = self.rdmap.as_ref()?;
        Some(super::ReadRequest::from_wire(rdmap::ReadRequest::ref_from_bytes(bytes).ok()?))
    }

    /// Bytes of the Terminate header.
    pub(crate) const fn body_len(&self) -> usize {
        rdmap::TERMINATE_CONTROL_LEN
            + if self.segment_len.is_some() { rdmap::TERMINATE_SEGMENT_LEN_LEN } else { 0 }
            + self.ddp_len as usize
            + if self.rdmap.is_some() { rdmap::READ_REQUEST_LEN } else { 0 }
    }

    /// Writes the Terminate header to the start of `out`, which has room for [`Self::body_len`] bytes.
    // RFC5040-4.8-1, RFC5040-4.8-3
    pub(crate) fn write(&self, out: &mut [u8]) {
        let control = TerminateControl::new(
            self.layer,
            self.error_type,
            self.code,
            self.segment_len.is_some(),
            self.ddp_len != 0,
            self.rdmap.is_some(),
        );
        let mut out = put(out, &control);
        if let Some(len) = self.segment_len {
            out = put(out, &len.to_be_bytes());
        }
        if let Some(header) = self.ddp_header() {
            let (head, rest) = out.split_at_mut(header.len());
            head.copy_from_slice(header);
            out = rest;
        }
        if let Some(header) = &self.rdmap {
            put(out, header);
        }
    }

    /// Reads a Terminate header. `None` if it is too short for the parts that it says it has.
    pub(crate) fn parse(body: &[u8]) -> Option<Terminate> {
        let (control, mut rest) = TerminateControl::ref_from_prefix(body).ok()?;
        let mut terminate = Terminate {
            layer: control.layer(),
            error_type: control.error_type(),
            code: control.code,
            segment_len: None,
            ddp: [0; UNTAGGED_LEN],
            ddp_len: 0,
            rdmap: None,
        };
        if control.has_segment_len() {
            let (len, after) = rest.split_first_chunk::<{ rdmap::TERMINATE_SEGMENT_LEN_LEN }>()?;
            terminate.segment_len = Some(u16::from_be_bytes(*len));
            rest = after;
        }
        if control.has_ddp_header() {
            let (ddp, _) = Control::ref_from_prefix(rest).ok()?;
            let len = if ddp.tagged() { TAGGED_LEN } else { UNTAGGED_LEN };
            let (header, after) = rest.split_at_checked(len)?;
            terminate.ddp[..len].copy_from_slice(header);
            terminate.ddp_len = len as u8;
            rest = after;
        }
        if control.has_rdmap_header() {
            terminate.rdmap = Some(*rest.first_chunk::<{ rdmap::READ_REQUEST_LEN }>()?);
        }
        Some(terminate)
    }

    /// Names of layer and type, and of the error code.
    fn names(&self) -> (&'static str, &'static str) {
        match (self.layer, self.error_type) {
            (RDMAP, RDMAP_LOCAL) => ("RDMAP local catastrophic error", "no details"),
            (RDMAP, kind @ (RDMAP_PROTECTION | RDMAP_OPERATION)) => (
                if kind == RDMAP_PROTECTION {
                    "RDMAP remote protection error"
                } else {
                    "RDMAP remote operation error"
                },
                match self.code {
                    0 => "invalid STag",
                    1 => "base or bounds violation",
                    2 => "access rights violation",
                    3 => "STag not associated with the stream",
                    4 => "tagged offset wraps",
                    5 => "invalid RDMAP version",
                    6 => "unexpected opcode",
                    7 => "catastrophic error, localized to the stream",
                    8 => "catastrophic error, global",
                    9 => "STag cannot be invalidated",
                    0xff => "unspecified error",
                    _ => "unknown error code",
                },
            ),
            (DDP, DDP_LOCAL) => ("DDP local catastrophic error", "no details"),
            (DDP, DDP_TAGGED) => (
                "DDP tagged buffer error",
                match self.code {
                    0 => "invalid STag",
                    1 => "base or bounds violation",
                    2 => "STag not associated with the stream",
                    3 => "tagged offset wraps",
                    4 => "invalid DDP version",
                    _ => "unknown error code",
                },
            ),
            (DDP, DDP_UNTAGGED) => (
                "DDP untagged buffer error",
                match self.code {
                    1 => "invalid queue number",
                    2 => "no receive buffer available",
                    3 => "message sequence number out of range",
                    4 => "invalid message offset",
                    5 => "message too long for the receive buffer",
                    6 => "invalid DDP version",
                    _ => "unknown error code",
                },
            ),
            (LLP, LLP_MPA) => (
                "MPA error",
                match self.code {
                    1 => "TCP connection closed or lost",
                    2 => "CRC error",
                    3 => "marker and FPDU start disagree",
                    4 => "invalid request or reply frame",
                    5 => "local catastrophic error",
                    6 => "insufficient inbound read queue depth",
                    7 => "no matching ready-to-receive option",
                    _ => "unknown error code",
                },
            ),
            _ => ("unknown error type", "unknown error code"),
        }
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = self.names();
        write!(
            f,
            "{kind}: {code} (layer {}, type {}, code {:#04x})",
            self.layer, self.error_type, self.code
        )?;
        let Some(header) = self.ddp_header() else { return Ok(()) };
        match self.opcode() {
            Some(opcode) => write!(f, ", caused by {}", opcode.name())?,
            None => write!(f, ", caused by an unknown message")?,
        }
        if let Ok(tagged) = Tagged::ref_from_bytes(header) {
            write!(f, " to STag {:#x} at offset {:#x}", tagged.stag.get(), tagged.to.get())?;
        } else if let Ok(untagged) = Untagged::ref_from_bytes(header) {
            write!(f, " number {} in queue {}", untagged.msn.get(), untagged.queue.get())?;
        }
        if let Some(len) = self.segment_len {
            write!(f, " in a segment of {len} bytes")?;
        }
        if let Some(request) = self.read_request() {
            write!(
                f,
                " for {} bytes from STag {:#x} at offset {:#x}",
                request.len, request.source_stag, request.source_to
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Terminate({self})")
    }
}

/// The peer has broken a rule: the stream must end. No later byte of it may be used; what was reported before
/// stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{fault}")]
pub struct StreamError {
    /// What was wrong.
    pub fault: Fault,
    /// The message that tells the peer, to be sent as the last one.
    pub terminate: Terminate,
}

impl StreamError {
    pub(crate) fn new(fault: Fault, headers: &HeaderCopy) -> StreamError {
        StreamError { fault, terminate: Terminate::new(fault, headers) }
    }
}

const _: () = assert!(Terminate::MAX_BODY == 52);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::{ReadRequest, Segment};
    use proptest::prelude::*;

    const READ: Segment = Segment::ReadRequest {
        msn: 7,
        request: ReadRequest { sink_stag: 1, sink_to: 2, len: 3, source_stag: 4, source_to: 5 },
    };
    const WRITE: Segment = Segment::Write { stag: 0x1234, to: 0x5678, last: true };
    const SEND: Segment =
        Segment::Send { msn: 9, mo: 10, first: false, last: true, invalidate: Some(11), solicited: false };

    fn codes(segment: &Segment, fault: Fault) -> (u8, u8, u8) {
        let terminate = segment.terminate(fault, 100);
        (terminate.layer(), terminate.error_type(), terminate.code())
    }

    // RFC5040-4.8-2, RFC5041-7.2-1, RFC5041-7.2-2
    #[test]
    fn codes_are_those_of_the_tables() {
        for (fault, tagged, untagged) in [
            (Fault::InvalidStag, (1, 1, 0), (0, 1, 0)),
            (Fault::BaseBounds, (1, 1, 1), (0, 1, 1)),
            (Fault::AccessRights, (1, 1, 0), (0, 1, 2)),
            (Fault::StagNotAssociated, (1, 1, 2), (0, 1, 3)),
            (Fault::ToWrap, (1, 1, 3), (0, 1, 4)),
            (Fault::DdpVersion, (1, 1, 4), (1, 2, 6)),
        ] {
            assert_eq!(codes(&WRITE, fault), tagged, "{fault}");
            assert_eq!(codes(&READ, fault), untagged, "{fault}");
        }
        for (fault, expected) in [
            (Fault::CannotInvalidate, (0, 1, 9)),
            (Fault::RdmapVersion, (0, 2, 5)),
            (Fault::UnexpectedOpcode, (0, 2, 6)),
            (Fault::CatastrophicStream, (0, 2, 7)),
            (Fault::CatastrophicGlobal, (0, 2, 8)),
            (Fault::Malformed, (0, 2, 0xff)),
            (Fault::LocalCatastrophic, (0, 0, 0)),
            (Fault::InvalidQueue, (1, 2, 1)),
            (Fault::NoBuffer, (1, 2, 2)),
            (Fault::MsnRange, (1, 2, 3)),
            (Fault::InvalidOffset, (1, 2, 4)),
            (Fault::MessageTooLong, (1, 2, 5)),
            (Fault::StreamLost, (2, 0, 1)),
            (Fault::Crc, (2, 0, 2)),
            (Fault::Marker, (2, 0, 3)),
            (Fault::BadStart, (2, 0, 4)),
            (Fault::MpaLocal, (2, 0, 5)),
            (Fault::InsufficientIrd, (2, 0, 6)),
            (Fault::NoRtr, (2, 0, 7)),
        ] {
            assert_eq!(codes(&SEND, fault), expected, "{fault}");
        }
    }

    // RFC5040-4.8-4, RFC5040-4.8-5, RFC5040-4.8-6, RFC5040-4.8-7, RFC5040-7.1-2, RFC5040-7.1-3, RFC5040-7.1-4
    #[test]
    fn headers_are_included_as_figure_10_says() {
        let parts = |terminate: Terminate| {
            (terminate.segment_len(), terminate.ddp_header().map(<[u8]>::len), terminate.read_request())
        };
        let Segment::ReadRequest { request, .. } = READ else { unreachable!() };
        assert_eq!(parts(READ.terminate(Fault::BaseBounds, 0)), (Some(46), Some(18), Some(request)));
        assert_eq!(parts(READ.terminate(Fault::UnexpectedOpcode, 0)), (Some(46), Some(18), None));
        assert_eq!(parts(WRITE.terminate(Fault::BaseBounds, 100)), (Some(114), Some(14), None));
        assert_eq!(parts(SEND.terminate(Fault::CannotInvalidate, 100)), (Some(118), Some(18), None));
        assert_eq!(parts(SEND.terminate(Fault::NoBuffer, 0)), (Some(18), Some(18), None));
        assert_eq!(parts(SEND.terminate(Fault::LocalCatastrophic, 0)), (None, None, None));
        assert_eq!(parts(SEND.terminate(Fault::Crc, 0)), (None, None, None));
        // RFC7306-8.1-1
        assert_eq!(parts(Terminate::local(Fault::BaseBounds)), (None, None, None));
    }

    // RFC5040-4.8-1, RFC5040-4.8-3
    #[test]
    fn a_terminate_is_laid_out_as_in_figure_7() {
        let terminate = READ.terminate(Fault::AccessRights, 0);
        let mut bytes = [0xee; Terminate::MAX_BODY];
        terminate.write(&mut bytes);
        let expected = [
            &[0x01, 0x02, 0xe0, 0x00, 0, 46][..],
            &[0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5],
        ]
        .concat();
        assert_eq!(bytes[..], expected[..]);
        assert_eq!(Terminate::parse(&bytes), Some(terminate));
    }

    #[test]
    fn a_terminate_reads_well() {
        assert_eq!(
            READ.terminate(Fault::AccessRights, 0).to_string(),
            "RDMAP remote protection error: access rights violation (layer 0, type 1, code 0x02), caused by RDMA Read \
             Request number 7 in queue 1 in a segment of 46 bytes for 3 bytes from STag 0x4 at offset 0x5"
        );
        assert_eq!(
            WRITE.terminate(Fault::BaseBounds, 100).to_string(),
            "DDP tagged buffer error: base or bounds violation (layer 1, type 1, code 0x01), caused by RDMA Write to \
             STag 0x1234 at offset 0x5678 in a segment of 114 bytes"
        );
        assert_eq!(
            Terminate::local(Fault::Crc).to_string(),
            "MPA error: CRC error (layer 2, type 0, code 0x02)"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(terminate) = Terminate::parse(&bytes) {
                prop_assert!(!terminate.to_string().is_empty());
                // What it says about itself is what is written again, reserved bits aside.
                let mut out = [0; Terminate::MAX_BODY];
                terminate.write(&mut out);
                let len = terminate.body_len();
                prop_assert!(len <= bytes.len());
                prop_assert_eq!(&out[..2], &bytes[..2]);
                prop_assert_eq!(out[2], bytes[2] & 0xe0);
                prop_assert_eq!(&out[4..len], &bytes[4..len]);
                prop_assert_eq!(Terminate::parse(&out[..len]), Some(terminate));
            }
        }
    }
}
