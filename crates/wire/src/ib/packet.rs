//! A whole packet, from the base transport header to the invariant CRC.

use core::fmt;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{
    Aeth, AtomicAckEth, AtomicEth, BTH_LEN, Bth, Deth, Feth, ICRC_LEN, Reth, Syndrome, U24, Xrceth,
};
use super::opcode::{Extensions, Opcode, Operation};

/// Why bytes are not a packet. Such a packet is dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PacketError {
    /// Shorter than a base transport header and an ICRC, or not a number of whole words.
    Length,
    /// The version of the transport headers is not zero.
    Version,
    /// No service of these has this opcode.
    Opcode,
    /// An extension header that the opcode wants is not all there.
    Extensions,
    /// The payload is shorter than its padding, or not of the length that the opcode has.
    Payload,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacketError::Length => "the packet's length is not one that packets have",
            PacketError::Version => "the transport header's version is unknown",
            PacketError::Opcode => "the opcode is unknown",
            PacketError::Extensions => "an extension header is cut off",
            PacketError::Payload => "the payload is not of the length that the headers say",
        })
    }
}

impl core::error::Error for PacketError {}

/// The payload of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// The bytes of the payload, which lie behind the headers.
    Here(&'a [u8]),
    /// The number of bytes. The caller can read them in another way: on one host they need not travel with
    /// the packet.
    Elsewhere(usize),
}

impl<'a> Payload<'a> {
    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Here(bytes) => bytes.len(),
            Payload::Elsewhere(length) => *length,
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the payload, if they are here.
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Payload::Here(bytes) => Some(bytes),
            Payload::Elsewhere(_) => None,
        }
    }
}

/// A packet as it lies in a buffer. Each extension header that its opcode has is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    bth: &'a Bth,
    opcode: Opcode,
    extensions: &'a [u8],
    payload: Payload<'a>,
}

impl<'a> Packet<'a> {
    /// Takes apart what stood behind the UDP header: base transport header to ICRC, and the four bytes of the
    /// latter, which is not verified here.
    ///
    /// # Errors
    /// See [`PacketError`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        // IB-PKT-38
        let (bth, rest) = Bth::ref_from_prefix(bytes).map_err(|_| PacketError::Length)?;
        let body = rest.len().checked_sub(ICRC_LEN).ok_or(PacketError::Length)?;
        // IB-PKT-37
        if body % 4 != 0 {
            return Err(PacketError::Length);
        }
        if bth.version() != 0 {
            // IB-PKT-4
            return Err(PacketError::Version);
        }
        // IB-PKT-20, IB-RC-RSP-14
        let opcode = bth.opcode().ok_or(PacketError::Opcode)?;
        let (extensions, padded) =
            rest[..body].split_at_checked(opcode.extensions().len()).ok_or(PacketError::Extensions)?;
        let len = padded.len().checked_sub(bth.pad()).ok_or(PacketError::Payload)?;
        // IB-PKT-41, IB-RC-RSP-18
        if opcode.operation().fixed_payload().is_some_and(|fixed| fixed != len || bth.pad() != 0) {
            return Err(PacketError::Payload);
        }
        Ok(Packet { bth, opcode, extensions, payload: Payload::Here(&padded[..len]) })
    }

    /// Takes apart the headers of a packet that comes over no network, and so has no padding and no ICRC.
    /// The payload is `payload` or, if that is empty, the rest of these bytes behind the headers.
    ///
    /// # Errors
    /// See [`PacketError`].
    #[inline]
    pub fn assemble(headers: &'a [u8], payload: Payload<'a>) -> Result<Packet<'a>, PacketError> {
        let (bth, extensions) = Bth::ref_from_prefix(headers).map_err(|_| PacketError::Length)?;
        if bth.version() != 0 {
            return Err(PacketError::Version);
        }
        let opcode = bth.opcode().ok_or(PacketError::Opcode)?;
        let (extensions, rest) =
            extensions.split_at_checked(opcode.extensions().len()).ok_or(PacketError::Extensions)?;
        let payload = match (rest.is_empty(), payload.is_empty()) {
            (true, _) => payload,
            (false, true) => Payload::Here(rest),
            (false, false) => return Err(PacketError::Extensions),
        };
        if opcode.operation().fixed_payload().is_some_and(|fixed| fixed != payload.len()) {
            return Err(PacketError::Payload);
        }
        Ok(Packet { bth, opcode, extensions, payload })
    }

    /// The headers as they lie in the buffer: the base transport header, and the extensions behind it.
    pub fn headers(&self) -> [&'a [u8]; 2] {
        [self.bth.as_bytes(), self.extensions]
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        self.bth
    }

    /// The opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The payload, without padding.
    #[inline]
    pub fn payload(&self) -> Payload<'a> {
        self.payload
    }

    /// Bytes from the base transport header to the ICRC, padding and ICRC included.
    #[inline]
    pub fn wire_len(&self) -> usize {
        BTH_LEN + self.extensions.len() + self.payload.len() + self.bth.pad() + ICRC_LEN
    }

    #[inline]
    fn extension<T>(&self, which: Extensions) -> Option<&'a T>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let offset = self.opcode.extensions().offset_of(which)?;
        T::ref_from_prefix(self.extensions.get(offset..)?).ok().map(|(header, _)| header)
    }

    /// XRCETH, of packets that have it.
    #[inline]
    pub fn xrceth(&self) -> Option<&'a Xrceth> {
        self.extension(Extensions::XRC)
    }

    /// DETH, of packets that have it.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extension(Extensions::DATAGRAM)
    }

    /// FETH, of packets that have it.
    #[inline]
    pub fn feth(&self) -> Option<&'a Feth> {
        self.extension(Extensions::FLUSH)
    }

    /// RETH, of packets that have it.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extension(Extensions::RDMA)
    }

    /// AtomicETH, of packets that have it.
    #[inline]
    pub fn atomic_eth(&self) -> Option<&'a AtomicEth> {
        self.extension(Extensions::ATOMIC)
    }

    /// AETH, of packets that have it.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extension(Extensions::ACKNOWLEDGE)
    }

    /// What an atomic acknowledgement says that the target held before.
    #[inline]
    pub fn atomic_ack(&self) -> Option<u64> {
        self.extension::<AtomicAckEth>(Extensions::ATOMIC_ACKNOWLEDGE).map(|header| header.original.get())
    }

    /// Immediate data, of packets that have them. The first byte on the wire is the most significant one.
    // IB-PKT-27
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        self.extension::<U32>(Extensions::IMMEDIATE).map(|data| data.get())
    }

    /// IETH: the key to invalidate, of packets that have it.
    // IB-PKT-28
    #[inline]
    pub fn ieth(&self) -> Option<u32> {
        self.extension::<U32>(Extensions::INVALIDATE).map(|key| key.get())
    }
}

/// The queue pair that a packet is for, as far as the first bytes tell: for sorting packets before they are
/// looked at.
#[inline]
pub fn destination(bytes: &[u8]) -> Option<u32> {
    let (number, _) = U24::read_from_prefix(bytes.get(5..)?).ok()?;
    Some(number.get())
}

/// Which half of a queue pair a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The requester: an acknowledgement that says nothing else.
    Acknowledgement,
    /// The requester: an answer of another kind.
    Response,
    /// The responder, or no packet at all.
    Request,
}

/// The role of a packet, as far as the first bytes tell: for sorting packets before they are looked at.
#[inline]
pub fn role(bytes: &[u8]) -> Role {
    let operation = bytes.first().and_then(|byte| Opcode::from_u8(*byte)).map(Opcode::operation);
    match operation {
        Some(Operation::Acknowledge) => match bytes.get(BTH_LEN).map(|byte| Syndrome::from_u8(*byte)) {
            Some(Syndrome::Ack { .. }) => Role::Acknowledgement,
            _ => Role::Response,
        },
        Some(operation) if operation.is_response() => Role::Response,
        _ => Role::Request,
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{
        CREDITS_UNLIMITED, DEFAULT_PKEY, HeaderWriter, MAX_HEADER, Syndrome, padding,
    };
    use super::super::opcode::{Operation, Service};
    use super::*;
    use proptest::prelude::*;

    /// A packet with this payload, its extension headers filled with this byte.
    fn packet(value: u8, fill: u8, payload: &[u8]) -> Vec<u8> {
        let opcode = Opcode::from_u8(value).unwrap();
        let mut buffer = [fill; MAX_HEADER];
        let bth = Bth::new(opcode, DEFAULT_PKEY, 0x12_3456, 0x65_4321).with_pad_for(payload.len());
        let mut writer = HeaderWriter::new(&mut buffer);
        writer.put(&bth);
        let mut bytes = buffer[..BTH_LEN + opcode.extensions().len()].to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + padding(payload.len()) + ICRC_LEN, 0);
        bytes
    }

    #[test]
    fn headers_and_payload_that_lie_apart() {
        let opcode = Opcode::new(Service::Rc, Operation::AtomicWrite).unwrap();
        let whole = packet(opcode.to_u8(), 7, b"eight by");
        let (headers, payload) = whole[..whole.len() - ICRC_LEN].split_at(whole.len() - ICRC_LEN - 8);
        let apart = Packet::assemble(headers, Payload::Here(payload)).unwrap();
        let behind = Packet::assemble(&whole[..whole.len() - ICRC_LEN], Payload::Here(&[])).unwrap();
        let parsed = Packet::parse(&whole).unwrap();
        assert_eq!((apart, behind), (parsed, parsed));
        assert_eq!(Packet::assemble(headers, Payload::Elsewhere(8)).unwrap().payload().bytes(), None);
        assert_eq!(Packet::assemble(headers, Payload::Elsewhere(9)), Err(PacketError::Payload));
        assert_eq!(
            Packet::assemble(&whole[..whole.len() - ICRC_LEN], Payload::Elsewhere(8)),
            Err(PacketError::Extensions)
        );
        assert_eq!(
            Packet::assemble(&headers[..headers.len() - 1], Payload::Elsewhere(8)),
            Err(PacketError::Extensions)
        );
    }

    // IB-PKT-21, IB-PKT-22, IB-PKT-23, IB-PKT-25, IB-PKT-27, IB-PKT-28, IB-PKT-30, IB-PKT-35
    #[test]
    fn every_opcode_gives_its_headers_and_no_others() {
        for value in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_u8(value) else { continue };
            let payload = vec![7; opcode.operation().fixed_payload().unwrap_or(5)];
            let bytes = packet(value, 9, &payload);
            let found = Packet::parse(&bytes).unwrap();
            assert_eq!((found.payload(), found.opcode()), (Payload::Here(&payload[..]), opcode));
            assert_eq!(found.wire_len(), bytes.len());
            assert_eq!(destination(&bytes), Some(0x12_3456));
            let has = opcode.extensions();
            let wants = |which| has.offset_of(which).is_some();
            assert_eq!(found.xrceth().is_some(), wants(Extensions::XRC));
            assert_eq!(found.deth().is_some(), wants(Extensions::DATAGRAM));
            assert_eq!(found.feth().is_some(), wants(Extensions::FLUSH));
            assert_eq!(found.reth().is_some(), wants(Extensions::RDMA));
            assert_eq!(found.atomic_eth().is_some(), wants(Extensions::ATOMIC));
            assert_eq!(found.aeth().is_some(), wants(Extensions::ACKNOWLEDGE));
            assert_eq!(found.atomic_ack().is_some(), wants(Extensions::ATOMIC_ACKNOWLEDGE));
            assert_eq!(found.immediate(), wants(Extensions::IMMEDIATE).then_some(0x0909_0909));
            assert_eq!(found.ieth(), wants(Extensions::INVALIDATE).then_some(0x0909_0909));
        }
    }

    // IB-PKT-21, IB-PKT-26
    #[test]
    fn headers_are_found_in_their_order() {
        let opcode = Opcode::new(Service::Uc, Operation::WriteOnlyImmediate).unwrap();
        let mut buffer = [0; MAX_HEADER];
        let mut writer = HeaderWriter::new(&mut buffer);
        writer.put(&Bth::new(opcode, DEFAULT_PKEY, 5, 6)).put(&Reth::new(1, 2, 0)).put(&U32::new(3));
        writer.put(&[0u8; ICRC_LEN]);
        let len = writer.len();
        let found = Packet::parse(&buffer[..len]).unwrap();
        assert_eq!((found.reth(), found.immediate()), (Some(&Reth::new(1, 2, 0)), Some(3)));

        let opcode = Opcode::new(Service::Rc, Operation::AtomicAcknowledge).unwrap();
        let aeth = Aeth::new(Syndrome::Ack { credits: CREDITS_UNLIMITED }, 8);
        let mut writer = HeaderWriter::new(&mut buffer);
        writer
            .put(&Bth::new(opcode, DEFAULT_PKEY, 5, 6))
            .put(&aeth)
            .put(&AtomicAckEth { original: 9.into() });
        writer.put(&[0u8; ICRC_LEN]);
        let len = writer.len();
        let found = Packet::parse(&buffer[..len]).unwrap();
        assert_eq!((found.aeth(), found.atomic_ack()), (Some(&aeth), Some(9)));
    }

    // IB-PKT-4, IB-PKT-20, IB-PKT-37, IB-PKT-38, IB-PKT-41, IB-RC-RSP-14, IB-RC-RSP-18
    #[test]
    fn a_packet_that_is_cut_off_or_too_long_is_malformed() {
        let read = packet(0x0c, 0, &[]);
        assert_eq!(Packet::parse(&read[..8]), Err(PacketError::Length));
        assert_eq!(Packet::parse(&read[..12]), Err(PacketError::Length));
        assert_eq!(Packet::parse(&read[..read.len() - 1]), Err(PacketError::Length));
        assert_eq!(Packet::parse(&read[..read.len() - 4]), Err(PacketError::Extensions));
        assert_eq!(Packet::parse(&packet(0x0c, 0, &[0; 4])), Err(PacketError::Payload));
        assert_eq!(Packet::parse(&packet(0x1d, 0, &[0; 7])), Err(PacketError::Payload));
        let mut send = packet(0x04, 0, &[]);
        send[1] |= 0x10;
        assert_eq!(Packet::parse(&send), Err(PacketError::Payload));
        send[1] = 0x01;
        assert_eq!(Packet::parse(&send), Err(PacketError::Version));
        send[1] = 0;
        send[0] = 0x15;
        assert_eq!(Packet::parse(&send), Err(PacketError::Opcode));
        assert!(!PacketError::Opcode.to_string().is_empty());
    }

    proptest! {
        // IB-PKT-38, ROCE-40
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert_eq!(packet.wire_len(), bytes.len());
            }
            destination(&bytes);
        }

        #[test]
        fn packets_read_back(payload in proptest::collection::vec(any::<u8>(), 0..40), fill: u8) {
            for value in [0x00, 0x02, 0x05, 0x06, 0x0b, 0x0d, 0x17, 0x28, 0x64, 0x65, 0xa4] {
                let bytes = packet(value, fill, &payload);
                let found = Packet::parse(&bytes).unwrap();
                prop_assert_eq!(found.payload(), Payload::Here(&payload[..]));
                prop_assert_eq!((found.bth().psn(), found.bth().destination()), (0x65_4321, 0x12_3456));
            }
        }
    }
}
