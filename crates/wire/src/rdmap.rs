//! RDMAP opcodes and the headers that some messages carry behind the DDP header (RFC 5040 section 4, RFC
//! 7306).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RDMAP message opcodes (RFC 5040 figure 4, RFC 7306 figure 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
// RFC5040-4.1-4, RFC7306-4.1-1
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSolicited = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
}

impl Opcode {
    /// The opcode with this number, if there is one.
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Opcode> {
        Some(match value {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            8 => Opcode::Immediate,
            9 => Opcode::ImmediateSolicited,
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            _ => return None,
        })
    }

    /// True for the messages that go to tagged buffers.
    #[inline]
    // RFC5040-4.1-3
    pub const fn is_tagged(self) -> bool {
        matches!(self, Opcode::Write | Opcode::ReadResponse)
    }

    /// True for the messages that only RFC 7306 defines.
    #[inline]
    pub const fn is_extension(self) -> bool {
        self as u8 >= Opcode::Immediate as u8
    }

    /// The field's name for the message.
    pub const fn name(self) -> &'static str {
        match self {
            Opcode::Write => "RDMA Write",
            Opcode::ReadRequest => "RDMA Read Request",
            Opcode::ReadResponse => "RDMA Read Response",
            Opcode::Send => "Send",
            Opcode::SendInvalidate => "Send with Invalidate",
            Opcode::SendSolicited => "Send with Solicited Event",
            Opcode::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Opcode::Terminate => "Terminate",
            Opcode::Immediate => "Immediate Data",
            Opcode::ImmediateSolicited => "Immediate Data with Solicited Event",
            Opcode::AtomicRequest => "Atomic Request",
            Opcode::AtomicResponse => "Atomic Response",
        }
    }
}

/// Bytes of a [`ReadRequest`].
pub const READ_REQUEST_LEN: usize = 28;
/// Bytes of a [`TerminateControl`].
pub const TERMINATE_CONTROL_LEN: usize = 4;
/// Bytes of the DDP segment length in a Terminate.
pub const TERMINATE_SEGMENT_LEN_LEN: usize = 2;
/// Bytes of immediate data.
pub const IMMEDIATE_LEN: usize = 8;
/// Bytes of an [`AtomicRequest`].
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Bytes of an [`AtomicResponse`].
pub const ATOMIC_RESPONSE_LEN: usize = 12;

/// RDMA Read Request header (RFC 5040 section 4.4).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC5040-4.4-1
pub struct ReadRequest {
    /// Steering tag of the buffer of the requester that the data go to.
    pub sink_stag: U32,
    /// Tagged offset in that buffer.
    pub sink_to: U64,
    /// The number of bytes to read.
    pub length: U32,
    /// Steering tag of the buffer of the responder that the data come from.
    pub source_stag: U32,
    /// Tagged offset in that buffer.
    pub source_to: U64,
}

/// Terminate Control, the first four octets of a Terminate header (RFC 5040 section 4.8).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC5040-4.8-1
pub struct TerminateControl {
    layer_type: u8,
    /// Error code, in the meaning of its layer and type.
    pub code: u8,
    headers: U16,
}

impl TerminateControl {
    const SEGMENT_LEN: u16 = 0x8000;
    const DDP_HEADER: u16 = 0x4000;
    const RDMAP_HEADER: u16 = 0x2000;

    /// Control field for an error and the parts that follow it. Layer and type are four bits each.
    pub const fn new(layer: u8, error_type: u8, code: u8, segment_len: bool, ddp: bool, rdmap: bool) -> Self {
        let headers = if segment_len { Self::SEGMENT_LEN } else { 0 }
            | if ddp { Self::DDP_HEADER } else { 0 }
            | if rdmap { Self::RDMAP_HEADER } else { 0 };
        // RFC5040-4.8-3
        Self { layer_type: layer << 4 | error_type & 0x0f, code, headers: U16::new(headers) }
    }

    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 the transport below.
    pub const fn layer(&self) -> u8 {
        self.layer_type >> 4
    }

    /// The type of error, in the meaning of its layer.
    pub const fn error_type(&self) -> u8 {
        self.layer_type & 0x0f
    }

    /// M: the length of the offending DDP segment follows.
    pub const fn has_segment_len(&self) -> bool {
        self.headers.get() & Self::SEGMENT_LEN != 0
    }

    /// D: the DDP header of the offending segment follows.
    pub const fn has_ddp_header(&self) -> bool {
        self.headers.get() & Self::DDP_HEADER != 0
    }

    /// R: the RDMAP header of the offending message follows.
    pub const fn has_rdmap_header(&self) -> bool {
        self.headers.get() & Self::RDMAP_HEADER != 0
    }
}

/// Atomic Request header (RFC 7306 section 5.2.1).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC7306-5.2.1-1
pub struct AtomicRequest {
    /// 28 reserved bits and the operation code.
    operation: U32,
    /// A number of the requester's choice, returned in the response.
    pub request_id: U32,
    /// Steering tag of the target buffer.
    pub stag: U32,
    /// Tagged offset in that buffer; the address that it means must be a multiple of eight.
    pub to: U64,
    /// What to add, or what to swap in.
    pub data: U64,
    /// FetchAdd: the most significant bit of each field. CmpSwap: the bits to swap.
    pub mask: U64,
    /// CmpSwap: what to compare with.
    pub compare: U64,
    /// CmpSwap: the bits to compare.
    pub compare_mask: U64,
}

impl AtomicRequest {
    /// Operation code of FetchAdd.
    pub const FETCH_ADD: u8 = 0;
    /// Operation code of CmpSwap.
    pub const COMPARE_SWAP: u8 = 2;

    /// A request whose other fields are zero.
    pub const fn new(operation: u8) -> AtomicRequest {
        AtomicRequest {
            operation: U32::new((operation & 0x0f) as u32),
            request_id: U32::ZERO,
            stag: U32::ZERO,
            to: U64::ZERO,
            data: U64::ZERO,
            mask: U64::ZERO,
            compare: U64::ZERO,
            compare_mask: U64::ZERO,
        }
    }

    /// The operation code, four bits.
    pub const fn operation(&self) -> u8 {
        self.operation.get() as u8 & 0x0f
    }
}

/// Atomic Response header (RFC 7306 section 5.2.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC7306-5.2.2-1
pub struct AtomicResponse {
    /// The number given in the request.
    pub request_id: U32,
    /// What the target held before the operation.
    pub original: U64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_those_of_the_figures() {
        assert_eq!(size_of::<ReadRequest>(), READ_REQUEST_LEN);
        assert_eq!(size_of::<TerminateControl>(), TERMINATE_CONTROL_LEN);
        assert_eq!(size_of::<AtomicRequest>(), ATOMIC_REQUEST_LEN);
        assert_eq!(size_of::<AtomicResponse>(), ATOMIC_RESPONSE_LEN);
    }

    #[test]
    // RFC5040-4.1-3, RFC5040-4.1-4, RFC7306-4.1-1
    fn opcodes_are_total() {
        for value in 0..=u8::MAX {
            match Opcode::from_u8(value) {
                Some(opcode) => {
                    assert_eq!(opcode as u8, value);
                    assert!(!opcode.name().is_empty());
                    assert_eq!(opcode.is_extension(), value > 7);
                    assert_eq!(opcode.is_tagged(), value == 0 || value == 2);
                }
                None => assert!(value > 11),
            }
        }
    }

    #[test]
    // RFC5040-4.8-1, RFC5040-4.8-3
    fn a_terminate_control_is_laid_out_as_in_figure_8() {
        let control = TerminateControl::new(1, 2, 3, true, true, false);
        assert_eq!(control.as_bytes(), [0x12, 3, 0xc0, 0]);
        let control = TerminateControl::new(0, 1, 9, false, false, true);
        assert_eq!(control.as_bytes(), [0x01, 9, 0x20, 0]);
    }

    // RFC5040-4.4-1
    #[test]
    fn a_read_request_is_laid_out_as_in_figure_6() {
        let request = ReadRequest {
            sink_stag: U32::new(0x0101_0101),
            sink_to: U64::new(0x0202_0202_0202_0202),
            length: U32::new(0x0303_0303),
            source_stag: U32::new(0x0404_0404),
            source_to: U64::new(0x0505_0505_0505_0505),
        };
        let parts = [(1, 4), (2, 8), (3, 4), (4, 4), (5, 8)];
        assert_eq!(request.as_bytes(), parts.map(|(byte, len)| vec![byte; len]).concat());
    }

    // RFC7306-5.2.1-1, RFC7306-5.2.2-1
    #[test]
    fn atomics_are_laid_out_as_in_rfc_7306() {
        let request = AtomicRequest {
            request_id: U32::new(0x0101_0101),
            stag: U32::new(0x0202_0202),
            to: U64::new(0x0303_0303_0303_0303),
            data: U64::new(0x0404_0404_0404_0404),
            mask: U64::new(0x0505_0505_0505_0505),
            compare: U64::new(0x0606_0606_0606_0606),
            compare_mask: U64::new(0x0707_0707_0707_0707),
            ..AtomicRequest::new(AtomicRequest::COMPARE_SWAP)
        };
        let parts = [(0, 3), (2, 1), (1, 4), (2, 4), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8)];
        assert_eq!(request.as_bytes(), parts.map(|(byte, len)| vec![byte; len]).concat());
        let response =
            AtomicResponse { request_id: U32::new(0x0101_0101), original: U64::new(0x0202_0202_0202_0202) };
        assert_eq!(response.as_bytes(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        // The reserved bits are not looked at.
        let noisy = AtomicRequest { operation: U32::new(0xffff_fff2), ..request };
        assert_eq!(noisy.operation(), AtomicRequest::COMPARE_SWAP);
    }

    proptest! {
        #[test]
        fn terminate_control_reads_back(layer in 0u8..16, kind in 0u8..16, code: u8, m: bool, d: bool, r: bool) {
            let control = TerminateControl::new(layer, kind, code, m, d, r);
            prop_assert_eq!((control.layer(), control.error_type(), control.code), (layer, kind, code));
            prop_assert_eq!((control.has_segment_len(), control.has_ddp_header()), (m, d));
            prop_assert_eq!(control.has_rdmap_header(), r);
        }

        #[test]
        fn any_bytes_are_a_header(bytes: [u8; ATOMIC_REQUEST_LEN]) {
            let request = AtomicRequest::ref_from_bytes(&bytes).unwrap();
            prop_assert!(request.operation() < 16);
            prop_assert_eq!(request.as_bytes(), &bytes);
            prop_assert!(ReadRequest::ref_from_prefix(&bytes).is_ok());
            prop_assert!(TerminateControl::ref_from_prefix(&bytes).is_ok());
        }
    }
}
