//! DDP segment headers (RFC 5041 section 4), with the octet that RDMAP keeps in them (RFC 5040 section 4.1).

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of DDP.
// RFC5041-4.1-6
pub const DDP_VERSION: u8 = 1;
/// The version of RDMAP (0 would be that of the RDMA Consortium).
// RFC5040-4.1-5
pub const RDMAP_VERSION: u8 = 1;

/// Bytes of a [`Tagged`] header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an [`Untagged`] header.
pub const UNTAGGED_LEN: usize = 18;

/// The untagged queue of Sends and immediate data.
// RFC5040-3.1-1
pub const QUEUE_SEND: u32 = 0;
/// The untagged queue of Read Requests and Atomic Requests.
pub const QUEUE_READ_REQUEST: u32 = 1;
/// The untagged queue of Terminates.
pub const QUEUE_TERMINATE: u32 = 2;
/// The untagged queue of Atomic Responses (RFC 7306).
// RFC7306-5.2-2
pub const QUEUE_ATOMIC_RESPONSE: u32 = 3;
/// The message sequence number of the first message of each untagged queue.
// RFC5041-4.3-5
pub const FIRST_MSN: u32 = 1;

/// The control fields of DDP and RDMAP, the first two octets of every segment.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Control {
    ddp: u8,
    rdmap: u8,
}

impl Control {
    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;

    /// Control fields with the current versions and all reserved bits zero. Only the low four bits of
    /// `opcode` count.
    #[inline]
    // RFC5041-4.1-5, RFC5041-4.1-6, RFC5040-4.1-1, RFC5040-4.1-5, RFC5040-4.1-6
    pub const fn new(tagged: bool, last: bool, opcode: u8) -> Control {
        let flags = if tagged { Self::TAGGED } else { 0 } | if last { Self::LAST } else { 0 };
        Control { ddp: flags | DDP_VERSION, rdmap: RDMAP_VERSION << 6 | opcode & 0x0f }
    }

    /// T: the segment goes to a tagged buffer.
    #[inline]
    // RFC5041-4.1-1
    pub const fn tagged(self) -> bool {
        self.ddp & Self::TAGGED != 0
    }

    /// L: the segment is the last of its message.
    #[inline]
    pub const fn last(self) -> bool {
        self.ddp & Self::LAST != 0
    }

    /// The version of DDP, two bits.
    #[inline]
    pub const fn ddp_version(self) -> u8 {
        self.ddp & 0x03
    }

    /// The version of RDMAP, two bits.
    #[inline]
    pub const fn rdmap_version(self) -> u8 {
        self.rdmap >> 6
    }

    /// The RDMAP opcode, four bits.
    #[inline]
    pub const fn opcode(self) -> u8 {
        self.rdmap & 0x0f
    }
}

/// Header of a segment for a tagged buffer (RFC 5041 section 4.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC5041-4.2-1
pub struct Tagged {
    /// Control fields, with T set.
    pub control: Control,
    /// Steering tag of the buffer.
    pub stag: U32,
    /// Tagged offset: where in the buffer the payload of this segment belongs.
    pub to: U64,
}

/// Header of a segment for an untagged buffer (RFC 5041 section 4.3).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC5041-4.3-1
pub struct Untagged {
    /// Control fields, with T clear.
    pub control: Control,
    /// The steering tag to invalidate in Sends that do so; zero and ignored in everything else.
    // RFC5040-4.1-2
    pub invalidate: U32,
    /// Queue number.
    pub queue: U32,
    /// Message sequence number in that queue, from [`FIRST_MSN`], wrapping to 0.
    pub msn: U32,
    /// Message offset of the payload of this segment.
    pub mo: U32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    // RFC5041-4.3-1, RFC5041-4.3-5, RFC5041-4.1-5, RFC5040-4.1-1, RFC5040-4.1-6
    fn the_send_of_rfc_5044_figure_5() {
        let header = Untagged {
            control: Control::new(false, true, 3),
            invalidate: U32::ZERO,
            queue: U32::new(QUEUE_SEND),
            msn: U32::new(FIRST_MSN),
            mo: U32::ZERO,
        };
        let bytes = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(header.as_bytes(), bytes);
        assert_eq!(size_of::<Untagged>(), UNTAGGED_LEN);
        assert_eq!(size_of::<Tagged>(), TAGGED_LEN);
    }

    #[test]
    // RFC5041-4.2-1
    fn a_tagged_header_is_laid_out_as_in_figure_4() {
        let header = Tagged {
            control: Control::new(true, false, 2),
            stag: U32::new(0x0102_0304),
            to: U64::new(0x1112_1314_1516_1718),
        };
        let bytes = [0x81, 0x42, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        assert_eq!(header.as_bytes(), bytes);
    }

    // RFC5041-4.1-5, RFC5040-4.1-6
    #[test]
    fn reserved_bits_are_not_looked_at() {
        let (plain, noisy) = (Control::new(true, false, 2), Control { ddp: 0x81 | 0x3c, rdmap: 0x42 | 0x30 });
        let fields = |c: Control| (c.tagged(), c.last(), c.ddp_version(), c.rdmap_version(), c.opcode());
        assert_eq!(fields(noisy), fields(plain));
    }

    proptest! {
        #[test]
        fn fields_are_independent(tagged: bool, last: bool, opcode in 0u8..16) {
            let control = Control::new(tagged, last, opcode);
            prop_assert_eq!(control.tagged(), tagged);
            prop_assert_eq!(control.last(), last);
            prop_assert_eq!(control.opcode(), opcode);
            // RFC5041-4.1-6, RFC5040-4.1-5
            prop_assert_eq!(control.ddp_version(), DDP_VERSION);
            prop_assert_eq!(control.rdmap_version(), RDMAP_VERSION);
        }

        #[test]
        fn any_bytes_are_a_header_and_read_back(bytes: [u8; UNTAGGED_LEN]) {
            let header = Untagged::ref_from_bytes(&bytes).unwrap();
            let copy = Untagged { ..*header };
            prop_assert_eq!(copy.as_bytes(), &bytes);
            let (tagged, rest) = Tagged::ref_from_prefix(&bytes).unwrap();
            prop_assert_eq!(rest.len(), UNTAGGED_LEN - TAGGED_LEN);
            prop_assert_eq!(tagged.as_bytes(), &bytes[..TAGGED_LEN]);
            prop_assert!(control_is_total(header.control));
        }
    }

    fn control_is_total(control: Control) -> bool {
        control.opcode() < 16 && control.ddp_version() < 4 && control.rdmap_version() < 4
    }
}
