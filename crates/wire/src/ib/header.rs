//! The base transport header and the extension headers behind it (volume 1, chapter 9; annex A19 for FLUSH).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::opcode::Opcode;

/// Bytes of a [`Bth`].
pub const BTH_LEN: usize = 12;
/// Bytes of the invariant CRC behind the payload.
pub const ICRC_LEN: usize = 4;
/// A buffer of this size has room for all headers of any packet, and for the eight bytes of an ATOMIC WRITE.
pub const MAX_HEADER: usize = 48;
/// The P_Key that everybody is a full member of.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// A number of 24 bits: a queue pair number, a packet sequence number, a message sequence number.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct U24([u8; 3]);

impl U24 {
    /// The lower 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> U24 {
        let [_, a, b, c] = value.to_be_bytes();
        U24([a, b, c])
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

impl core::fmt::Debug for U24 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.get().fmt(f)
    }
}

/// Base transport header (section 9.2).
// IB-PKT-1, IB-PKT-2, IB-PKT-5, IB-PKT-7, IB-PKT-9
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    congestion: u8,
    destination: U24,
    acknowledge: u8,
    psn: U24,
}

impl Bth {
    // IB-PKT-3
    const SOLICITED: u8 = 0x80;
    const MIGRATED: u8 = 0x40;
    const PAD_SHIFT: u32 = 4;
    const VERSION: u8 = 0x0f;
    // IB-PKT-6
    const FECN: u8 = 0x80;
    const BECN: u8 = 0x40;
    // IB-PKT-8
    const ACK_REQUEST: u8 = 0x80;

    /// A header without flags. The path is in the state MIGRATED, as adapters say when they do not migrate.
    #[inline]
    pub const fn new(opcode: Opcode, pkey: u16, destination: u32, psn: u32) -> Bth {
        Bth {
            opcode: opcode.to_u8(),
            // IB-PKT-10
            flags: Self::MIGRATED,
            pkey: U16::new(pkey),
            congestion: 0,
            destination: U24::new(destination),
            acknowledge: 0,
            psn: U24::new(psn),
        }
    }

    /// The header with the solicited-event bit as given.
    #[inline]
    pub const fn with_solicited(mut self, solicited: bool) -> Bth {
        self.flags = self.flags & !Self::SOLICITED | if solicited { Self::SOLICITED } else { 0 };
        self
    }

    /// The header with as many bytes of padding (0 to 3) as a payload of this length needs.
    #[inline]
    pub const fn with_pad_for(mut self, payload_len: usize) -> Bth {
        self.flags = self.flags & !0x30 | (padding(payload_len) as u8) << Self::PAD_SHIFT;
        self
    }

    /// The header with the request for an acknowledgement as given.
    #[inline]
    pub const fn with_ack_request(mut self, ack_request: bool) -> Bth {
        self.acknowledge = if ack_request { Self::ACK_REQUEST } else { 0 };
        self
    }

    /// The header with the backward congestion bit set.
    #[inline]
    pub const fn with_becn(mut self) -> Bth {
        self.congestion |= Self::BECN;
        self
    }

    /// The opcode, if there is one with this number.
    #[inline]
    pub const fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u8(self.opcode)
    }

    /// The number of the opcode, known or not.
    #[inline]
    pub const fn opcode_number(&self) -> u8 {
        self.opcode
    }

    /// SE: the completion of the receive is a solicited event.
    #[inline]
    pub const fn solicited(&self) -> bool {
        self.flags & Self::SOLICITED != 0
    }

    /// M: the path is in the state MIGRATED.
    #[inline]
    pub const fn migrated(&self) -> bool {
        self.flags & Self::MIGRATED != 0
    }

    /// Bytes of padding behind the payload, 0 to 3.
    #[inline]
    pub const fn pad(&self) -> usize {
        (self.flags >> Self::PAD_SHIFT & 3) as usize
    }

    /// TVer: version of the transport headers.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.flags & Self::VERSION
    }

    /// The partition key.
    #[inline]
    pub const fn pkey(&self) -> u16 {
        self.pkey.get()
    }

    /// F: the packet met congestion on its way.
    #[inline]
    pub const fn fecn(&self) -> bool {
        self.congestion & Self::FECN != 0
    }

    /// B: packets in the other direction met congestion.
    #[inline]
    pub const fn becn(&self) -> bool {
        self.congestion & Self::BECN != 0
    }

    /// The queue pair that the packet is for.
    #[inline]
    pub const fn destination(&self) -> u32 {
        self.destination.get()
    }

    /// A: the requester asks for an acknowledgement.
    #[inline]
    pub const fn ack_request(&self) -> bool {
        self.acknowledge & Self::ACK_REQUEST != 0
    }

    /// The packet sequence number.
    #[inline]
    pub const fn psn(&self) -> u32 {
        self.psn.get()
    }
}

/// Bytes of padding that fill a payload up to whole words.
// IB-PKT-35
#[inline]
pub const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// XRCETH, extended reliable connection (annex A14).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Xrceth {
    reserved: u8,
    shared_receive_queue: U24,
}

impl Xrceth {
    /// The header for this shared receive queue.
    pub const fn new(shared_receive_queue: u32) -> Xrceth {
        Xrceth { reserved: 0, shared_receive_queue: U24::new(shared_receive_queue) }
    }

    /// Number of the shared receive queue that takes the message.
    pub const fn shared_receive_queue(&self) -> u32 {
        self.shared_receive_queue.get()
    }
}

/// DETH, datagram (section 9.3.2).
// IB-PKT-22
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Deth {
    /// The Q_Key of the queue pair that the datagram is for.
    pub qkey: U32,
    reserved: u8,
    source: U24,
}

impl Deth {
    /// The header of a datagram from queue pair `source`.
    #[inline]
    pub const fn new(qkey: u32, source: u32) -> Deth {
        Deth { qkey: U32::new(qkey), reserved: 0, source: U24::new(source) }
    }

    /// The queue pair that sent the datagram.
    #[inline]
    pub const fn source(&self) -> u32 {
        self.source.get()
    }
}

/// RETH, remote memory (section 9.3.3).
// IB-PKT-23
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Reth {
    /// Where in the responder's memory.
    pub address: U64,
    /// The key that gives access to it.
    pub rkey: U32,
    /// Bytes of the whole message.
    pub length: U32,
}

impl Reth {
    /// The header for these bytes.
    #[inline]
    pub const fn new(address: u64, rkey: u32, length: u32) -> Reth {
        Reth { address: U64::new(address), rkey: U32::new(rkey), length: U32::new(length) }
    }
}

/// AtomicETH (section 9.3.4).
// IB-PKT-24
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AtomicEth {
    /// Where in the responder's memory; a multiple of eight.
    pub address: U64,
    /// The key that gives access to it.
    pub rkey: U32,
    /// What to add or to swap in.
    pub swap_or_add: U64,
    /// What to compare with.
    pub compare: U64,
}

/// What an AETH says (section 9.7.5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// All up to the packet's PSN has arrived; the code of the end-to-end credits.
    Ack {
        /// A code of [`CREDITS_UNLIMITED`] or below.
        credits: u8,
    },
    /// The receiver is not ready; the code of the time to wait.
    ReceiverNotReady {
        /// Five bits, an index of the timer table.
        timer: u8,
    },
    /// The request with the packet's PSN is refused.
    Nak(NakCode),
    /// A value that the standard reserves.
    Reserved(u8),
}

/// The credit code of a responder that does not count credits.
// IB-PKT-34
pub const CREDITS_UNLIMITED: u8 = 0x1f;

/// Why a request is refused (section 9.7.5.2.1, table 47).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before is missing.
    PsnSequenceError = 0,
    /// The request is not valid, or not of this length.
    InvalidRequest = 1,
    /// The memory may not be accessed like this.
    RemoteAccessError = 2,
    /// The responder could not complete the request.
    RemoteOperationalError = 3,
    /// Of the service RD only.
    InvalidRdRequest = 4,
}

impl core::fmt::Display for NakCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "a packet before it is missing",
            Self::InvalidRequest => "it is not valid, or not of this length",
            Self::RemoteAccessError => "the memory may not be accessed like this",
            Self::RemoteOperationalError => "it could not be completed",
            Self::InvalidRdRequest => "it is of the service RD",
        })
    }
}

impl Syndrome {
    /// The syndrome that a byte of the wire means. The highest bit is reserved and not looked at.
    // IB-PKT-31, IB-PKT-32
    #[inline]
    pub const fn from_u8(value: u8) -> Syndrome {
        let low = value & 0x1f;
        match (value >> 5 & 3, low) {
            (0, _) => Syndrome::Ack { credits: low },
            (1, _) => Syndrome::ReceiverNotReady { timer: low },
            (3, 0) => Syndrome::Nak(NakCode::PsnSequenceError),
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccessError),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperationalError),
            (3, 4) => Syndrome::Nak(NakCode::InvalidRdRequest),
            _ => Syndrome::Reserved(value & 0x7f),
        }
    }

    /// The byte of the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::ReceiverNotReady { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(value) => value,
        }
    }
}

/// AETH, acknowledge (section 9.3.5).
// IB-PKT-25
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Aeth {
    syndrome: u8,
    msn: U24,
}

impl Aeth {
    /// The header with this syndrome and message sequence number.
    #[inline]
    pub const fn new(syndrome: Syndrome, msn: u32) -> Aeth {
        Aeth { syndrome: syndrome.to_u8(), msn: U24::new(msn) }
    }

    /// Acknowledgement, not ready, or refused.
    #[inline]
    pub const fn syndrome(&self) -> Syndrome {
        Syndrome::from_u8(self.syndrome)
    }

    /// The number of messages that the responder has completed, modulo 2^24.
    #[inline]
    pub const fn msn(&self) -> u32 {
        self.msn.get()
    }
}

/// AtomicAckETH (section 9.3.5.3).
// IB-PKT-26
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct AtomicAckEth {
    /// What the target held before the operation.
    pub original: U64,
}

/// FETH, flush (annex A19).
// IB-PKT-29
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Feth(U32);

impl Feth {
    /// Placement type: the data become visible to everybody.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement type: the data survive a loss of power.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity: the range that the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region.
    pub const REGION: u8 = 1;

    /// The header with this placement type (four bits) and selectivity level (two bits).
    #[inline]
    pub const fn new(placement: u8, selectivity: u8) -> Feth {
        Feth(U32::new((selectivity as u32 & 3) << 4 | placement as u32 & 0x0f))
    }

    /// The placement type, four bits.
    #[inline]
    pub const fn placement(&self) -> u8 {
        self.0.get() as u8 & 0x0f
    }

    /// The selectivity level, two bits.
    #[inline]
    pub const fn selectivity(&self) -> u8 {
        (self.0.get() >> 4) as u8 & 3
    }
}

/// Writes headers one behind the other.
#[derive(Debug)]
pub struct HeaderWriter<'a> {
    buffer: &'a mut [u8; MAX_HEADER],
    len: usize,
}

impl<'a> HeaderWriter<'a> {
    /// A writer at the start of the buffer.
    #[inline]
    pub fn new(buffer: &'a mut [u8; MAX_HEADER]) -> HeaderWriter<'a> {
        HeaderWriter { buffer, len: 0 }
    }

    /// Appends a header: any of this module, the bytes of immediate data, or an rkey as [`U32`].
    ///
    /// # Panics
    /// If more is written than a packet can have.
    #[inline]
    pub fn put<H: IntoBytes + Immutable>(&mut self, header: &H) -> &mut Self {
        let end = self.len + size_of::<H>();
        self.buffer[self.len..end].copy_from_slice(header.as_bytes());
        self.len = end;
        self
    }

    /// The number of bytes that have been written.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing has been written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::opcode::{Operation, Service};
    use super::*;
    use proptest::prelude::*;

    // IB-PKT-1, IB-PKT-22, IB-PKT-23, IB-PKT-24, IB-PKT-25, IB-PKT-26
    #[test]
    fn sizes_are_those_of_the_standard() {
        assert_eq!(size_of::<Bth>(), BTH_LEN);
        assert_eq!([size_of::<Xrceth>(), size_of::<Deth>(), size_of::<Reth>()], [4, 8, 16]);
        assert_eq!([size_of::<AtomicEth>(), size_of::<Aeth>(), size_of::<AtomicAckEth>()], [28, 4, 8]);
        assert_eq!(size_of::<Feth>(), 4);
    }

    // IB-PKT-2, IB-PKT-3, IB-PKT-5, IB-PKT-6, IB-PKT-7, IB-PKT-8, IB-PKT-9
    #[test]
    fn a_base_transport_header_is_laid_out_as_in_the_standard() {
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let bth = Bth::new(opcode, 0x8001, 0x01_0203, 0x0a_0b0c).with_solicited(true).with_pad_for(1);
        let bth = bth.with_ack_request(true).with_becn();
        assert_eq!(bth.as_bytes(), [0x04, 0xf0, 0x80, 0x01, 0x40, 1, 2, 3, 0x80, 0x0a, 0x0b, 0x0c]);
        assert!(bth.migrated() && bth.becn() && !bth.fecn());
        assert_eq!((bth.opcode(), bth.version()), (Some(opcode), 0));
    }

    // IB-PKT-35
    #[test]
    fn padding_fills_words() {
        assert_eq!([0, 1, 2, 3, 4, 4095].map(padding), [0, 3, 2, 1, 0, 1]);
    }

    #[test]
    fn flush_fields_are_where_the_annex_has_them() {
        assert_eq!(Feth::new(Feth::PERSISTENCE, Feth::REGION).as_bytes(), [0, 0, 0, 0x12]);
    }

    // IB-PKT-31, IB-PKT-32
    #[test]
    fn headers_are_written_one_behind_the_other() {
        let mut buffer = [0; MAX_HEADER];
        let mut writer = HeaderWriter::new(&mut buffer);
        assert!(writer.is_empty());
        writer.put(&Aeth::new(Syndrome::Nak(NakCode::RemoteAccessError), 7)).put(&U32::new(5));
        assert_eq!(writer.len(), 8);
        assert_eq!(buffer[..9], [0x62, 0, 0, 7, 0, 0, 0, 5, 0]);
    }

    proptest! {
        #[test]
        fn a_base_transport_header_reads_back(
            pkey: u16, destination in 0u32..1 << 24, psn in 0u32..1 << 24, se: bool, a: bool, len in 0usize..4096,
        ) {
            let opcode = Opcode::new(Service::Uc, Operation::WriteOnly).unwrap();
            let bth = Bth::new(opcode, pkey, destination, psn).with_solicited(se).with_ack_request(a);
            let bth = bth.with_pad_for(len);
            prop_assert_eq!((bth.pkey(), bth.destination(), bth.psn()), (pkey, destination, psn));
            prop_assert_eq!((bth.solicited(), bth.ack_request()), (se, a));
            prop_assert_eq!((len + bth.pad()) % 4, 0);
        }

        // IB-PKT-31
        #[test]
        fn syndromes_read_back(value: u8) {
            prop_assert_eq!(Syndrome::from_u8(value).to_u8(), value & 0x7f);
            prop_assert_eq!(Aeth::new(Syndrome::from_u8(value), 0xff_ffff).msn(), 0xff_ffff);
        }

        #[test]
        fn small_headers_read_back(a in 0u32..1 << 24, b: u32, placement in 0u8..16, selectivity in 0u8..4) {
            prop_assert_eq!(Xrceth::new(a).shared_receive_queue(), a);
            let deth = Deth::new(b, a);
            prop_assert_eq!((deth.source(), deth.qkey.get()), (a, b));
            let feth = Feth::new(placement, selectivity);
            prop_assert_eq!((feth.placement(), feth.selectivity()), (placement, selectivity));
        }
    }
}
