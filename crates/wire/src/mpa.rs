//! MPA: start-up frames, FPDU framing and markers (RFC 5044 sections 4 and 7.1.1, RFC 6581 sections 6 and 9).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Key of an MPA Request Frame.
// RFC5044-7.1.1-1
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// Key of an MPA Reply Frame.
// RFC5044-7.1.1-3
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

/// Bytes of a start-up frame before its private data.
pub const START_LEN: usize = 20;
/// Greatest length of the private data of a start-up frame, the four bytes of [`EnhancedData`] included.
// RFC5044-7.1.1-14
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes of the enhanced connection data in front of the private data of a revision 2 frame.
pub const ENHANCED_LEN: usize = 4;

/// Bytes of the ULPDU length in front of every FPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field at the end of every FPDU.
pub const CRC_LEN: usize = 4;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;
/// Distance from the first byte of one marker to that of the next, in bytes of the TCP stream.
// RFC5044-4.3-2
pub const MARKER_INTERVAL: usize = 512;
/// Greatest ULPDU that the 16-bit length can express.
pub const MAX_ULPDU: usize = u16::MAX as usize;

/// Number of padding bytes (0 to 3) that follow a ULPDU of `ulpdu_len` bytes.
#[inline]
// RFC5044-4.1-2
pub const fn padding(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Bytes of a whole FPDU without markers: length, ULPDU, padding, CRC.
#[inline]
// RFC5044-4.1-1
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    LENGTH_LEN + ulpdu_len + padding(ulpdu_len) + CRC_LEN
}

/// Flags of a start-up frame, with the revision in the low byte.
///
/// M, C and R are those of RFC 5044, S that of RFC 6581. The other three are in the field that both RFCs
/// reserve, set to zero there and ignored on receipt: the first is the Linux siw driver's, the last two are
/// adverb's.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Flags(U16);

impl Flags {
    /// M: the sender of this frame requires markers in the FPDUs that it receives.
    // RFC5044-7.1.1-5
    pub const MARKERS: u16 = 0x8000;
    /// C: the sender of this frame requires CRCs, in both directions.
    pub const CRC: u16 = 0x4000;
    /// R, in a reply: the connection is rejected.
    pub const REJECT: u16 = 0x2000;
    /// S: the private data begins with [`EnhancedData`].
    pub const ENHANCED: u16 = 0x1000;
    /// The sender takes FPDUs larger than the EMSS (siw's private flag for segmentation offload).
    pub const LARGE_FPDU: u16 = 0x0800;
    /// In a request: the sender has the operations of RFC 7306. Always zero in a reply of adverb: siw copies
    /// the flags of the request into its reply, so an echo of this bit means nothing.
    pub const EXTENSIONS_OFFERED: u16 = 0x0400;
    /// In a reply: the sender has the operations of RFC 7306 too. Always zero in a request.
    pub const EXTENSIONS_ACCEPTED: u16 = 0x0200;

    /// Flags from the bits named above, and a revision.
    #[inline]
    // RFC5044-7.1.1-9, RFC5044-7.1.1-10
    pub const fn new(bits: u16, revision: u8) -> Flags {
        Flags(U16::new(bits & 0xff00 | revision as u16))
    }

    /// True if all the given bits are set.
    #[inline]
    pub const fn has(self, bits: u16) -> bool {
        self.0.get() & bits == bits
    }

    /// The revision of MPA.
    #[inline]
    pub const fn revision(self) -> u8 {
        self.0.get() as u8
    }

    /// The whole field.
    #[inline]
    pub const fn bits(self) -> u16 {
        self.0.get()
    }
}

/// An MPA Request or Reply Frame without its private data (RFC 5044 section 7.1.1).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Start {
    /// [`REQUEST_KEY`] or [`REPLY_KEY`].
    pub key: [u8; 16],
    /// Flags and revision.
    pub flags: Flags,
    /// Bytes of private data that follow, [`EnhancedData`] included.
    pub private_data_len: U16,
}

/// Enhanced connection data, at the start of the private data when [`Flags::ENHANCED`] is set (RFC 6581
/// section 9).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC6581-9-1
pub struct EnhancedData {
    ird: U16,
    ord: U16,
}

impl EnhancedData {
    /// The depth that says "not negotiated here" (all 14 bits set).
    pub const NOT_NEGOTIATED: u16 = 0x3fff;
    /// A: the connection follows the peer-to-peer model. Bit of the first half.
    const PEER_TO_PEER: u16 = 0x8000;
    /// B: a zero-length Send may be the ready-to-receive indication. Bit of the first half.
    const RTR_SEND: u16 = 0x4000;
    /// C: a zero-length RDMA Write may be it. Bit of the second half.
    const RTR_WRITE: u16 = 0x8000;
    /// D: a zero-length RDMA Read may be it. Bit of the second half.
    const RTR_READ: u16 = 0x4000;

    /// Connection data from depths and control flags. Depths above 14 bits become [`Self::NOT_NEGOTIATED`].
    pub fn new(ird: u16, ord: u16, control: ControlFlags) -> EnhancedData {
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        EnhancedData {
            ird: U16::new(
                ird.min(Self::NOT_NEGOTIATED)
                    | bit(control.peer_to_peer, Self::PEER_TO_PEER)
                    | bit(control.send, Self::RTR_SEND),
            ),
            ord: U16::new(
                ord.min(Self::NOT_NEGOTIATED)
                    | bit(control.write, Self::RTR_WRITE)
                    | bit(control.read, Self::RTR_READ),
            ),
        }
    }

    /// Inbound read queue depth of the sender, 14 bits.
    pub fn ird(&self) -> u16 {
        self.ird.get() & Self::NOT_NEGOTIATED
    }

    /// Outbound read queue depth of the sender, 14 bits.
    pub fn ord(&self) -> u16 {
        self.ord.get() & Self::NOT_NEGOTIATED
    }

    /// The control flags.
    pub fn control(&self) -> ControlFlags {
        let (ird, ord) = (self.ird.get(), self.ord.get());
        ControlFlags {
            peer_to_peer: ird & Self::PEER_TO_PEER != 0,
            send: ird & Self::RTR_SEND != 0,
            write: ord & Self::RTR_WRITE != 0,
            read: ord & Self::RTR_READ != 0,
        }
    }
}

/// The control flags A to D of [`EnhancedData`] (RFC 6581 section 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControlFlags {
    /// A: peer-to-peer model, in which the initiator sends a ready-to-receive indication first.
    pub peer_to_peer: bool,
    /// B: the indication may be a zero-length Send.
    pub send: bool,
    /// C: the indication may be a zero-length RDMA Write.
    pub write: bool,
    /// D: the indication may be a zero-length RDMA Read.
    pub read: bool,
}

/// A marker (RFC 5044 section 4.2).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
// RFC5044-4.2-1
pub struct Marker {
    reserved: U16,
    pointer: U16,
}

impl Marker {
    /// A marker `distance` bytes of TCP stream after the length field of its FPDU; 0 when it stands before
    /// the FPDU.
    #[inline]
    pub const fn new(distance: u16) -> Marker {
        // RFC5044-4.2-2, RFC5044-4.2-3
        Marker { reserved: U16::new(0), pointer: U16::new(distance & !3) }
    }

    /// FPDUPTR, its two low bits taken as zero.
    #[inline]
    pub const fn distance(&self) -> u16 {
        // RFC5044-4.2-3
        self.pointer.get() & !3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_those_of_the_figures() {
        assert_eq!(size_of::<Start>(), START_LEN);
        assert_eq!(size_of::<EnhancedData>(), ENHANCED_LEN);
        assert_eq!(size_of::<Marker>(), MARKER_LEN);
    }

    #[test]
    // RFC5044-4.1-1, RFC5044-4.1-2
    fn padding_makes_an_fpdu_a_multiple_of_four() {
        for len in 0..=MAX_ULPDU {
            assert!(padding(len) < 4);
            assert_eq!(fpdu_len(len) % 4, 0);
        }
        // RFC 5044 figure 5: 42 octets of ULPDU, no padding.
        assert_eq!(padding(42), 0);
        // Figure 4: 16 octets, two of padding.
        assert_eq!(padding(16), 2);
    }

    #[test]
    // RFC5044-7.1.1-1, RFC5044-7.1.1-12, RFC6581-6-1
    fn a_request_is_laid_out_as_in_figure_8() {
        let start = Start {
            key: REQUEST_KEY,
            flags: Flags::new(Flags::CRC | Flags::ENHANCED, 2),
            private_data_len: U16::new(4),
        };
        assert_eq!(start.as_bytes(), b"MPA ID Req Frame\x50\x02\x00\x04");
    }

    #[test]
    // RFC6581-9-1
    fn enhanced_data_is_laid_out_as_in_rfc_6581() {
        let control = ControlFlags { peer_to_peer: true, send: false, write: true, read: false };
        assert_eq!(EnhancedData::new(128, 16, control).as_bytes(), [0x80, 128, 0x80, 16]);
        let control = ControlFlags { peer_to_peer: false, send: true, write: false, read: true };
        assert_eq!(EnhancedData::new(0xffff, 1, control).as_bytes(), [0x7f, 0xff, 0x40, 1]);
    }

    // RFC5044-4.2-1, RFC5044-4.2-2, RFC5044-4.2-3
    #[test]
    fn a_marker_is_laid_out_as_in_figure_3() {
        assert_eq!(Marker::new(0x17).as_bytes(), [0, 0, 0, 0x14]);
        assert_eq!(Marker::ref_from_bytes(&[0xff, 0xff, 0x01, 0x17]).unwrap().distance(), 0x114);
    }

    proptest! {
        #[test]
        fn every_frame_reads_back_to_the_same_bytes(bytes: [u8; START_LEN], v2: [u8; ENHANCED_LEN], m: [u8; MARKER_LEN]) {
            let start = Start::ref_from_bytes(&bytes).unwrap();
            prop_assert_eq!(Flags::new(start.flags.bits(), start.flags.revision()), start.flags);
            prop_assert_eq!(start.as_bytes(), &bytes);
            let enhanced = EnhancedData::ref_from_bytes(&v2).unwrap();
            prop_assert_eq!(EnhancedData::new(enhanced.ird(), enhanced.ord(), enhanced.control()), *enhanced);
            let marker = Marker::ref_from_bytes(&m).unwrap();
            // RFC5044-4.2-1, RFC5044-4.2-3
            prop_assert_eq!(marker.distance() % 4, 0);
            prop_assert_eq!(Marker::new(marker.distance()).distance(), marker.distance());
        }

        #[test]
        fn short_input_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..START_LEN)) {
            prop_assert!(Start::ref_from_prefix(&bytes).is_err());
        }
    }
}
