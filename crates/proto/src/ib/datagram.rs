//! Unreliable datagrams: one packet each, without state (volume 1, section 9.8.3).

use adverb_wire::ib::header::{Bth, Deth, HeaderWriter, MAX_HEADER};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use adverb_wire::ib::packet::{Packet, Payload};
use adverb_wire::zerocopy::byteorder::big_endian::U32;

/// Everything that stands in the headers of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramHeader {
    /// The queue pair that it is for.
    pub destination: u32,
    /// The queue pair that sends it.
    pub source: u32,
    /// The Q_Key of the destination.
    pub qkey: u32,
    /// The partition key.
    pub pkey: u16,
    /// Packet sequence number; nobody looks at it.
    pub psn: u32,
    /// The receive's completion is a solicited event.
    pub solicited: bool,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Bytes of payload.
    pub length: usize,
}

/// Writes the headers and returns their length. The payload and its padding
/// ([`adverb_wire::ib::header::padding`]) follow.
// IB-UD-1, IB-UD-5
pub fn write_datagram(header: &DatagramHeader, buffer: &mut [u8; MAX_HEADER]) -> usize {
    let operation = match header.immediate {
        Some(_) => Operation::SendOnlyImmediate,
        None => Operation::SendOnly,
    };
    let opcode = Opcode::new(Service::Ud, operation).expect("both are of the service");
    let bth = Bth::new(opcode, header.pkey, header.destination, header.psn)
        .with_solicited(header.solicited)
        .with_pad_for(header.length);
    let mut writer = HeaderWriter::new(buffer);
    writer.put(&bth).put(&Deth::new(header.qkey, header.source));
    if let Some(data) = header.immediate {
        writer.put(&U32::new(data));
    }
    writer.len()
}

/// A datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The queue pair that sent it.
    pub source: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The receive's completion is a solicited event.
    pub solicited: bool,
    /// The payload.
    pub payload: Payload<'a>,
}

/// The datagram in a packet, if it is one and has the queue pair's Q_Key. Otherwise the packet is dropped:
/// silently, but for a counter of wrong Q_Keys.
///
/// # Errors
/// [`super::DropReason::Opcode`], [`super::DropReason::QueueKey`].
pub fn check_datagram<'a>(packet: &Packet<'a>, qkey: u32) -> Result<Datagram<'a>, super::DropReason> {
    let deth = packet.deth().ok_or(super::DropReason::Opcode)?;
    // IB-UD-10
    if deth.qkey.get() != qkey {
        return Err(super::DropReason::QueueKey);
    }
    Ok(Datagram {
        source: deth.source(),
        immediate: packet.immediate(),
        solicited: packet.bth().solicited(),
        payload: packet.payload(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::DropReason;
    use super::*;
    use adverb_wire::ib::header::{DEFAULT_PKEY, ICRC_LEN, padding};

    fn packet(header: &DatagramHeader, payload: &[u8]) -> Vec<u8> {
        let mut buffer = [0; MAX_HEADER];
        let len = write_datagram(header, &mut buffer);
        let mut bytes = buffer[..len].to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + padding(payload.len()) + ICRC_LEN, 0);
        bytes
    }

    // IB-UD-5, IB-UD-10
    #[test]
    fn datagrams_read_back() {
        for immediate in [None, Some(7)] {
            let header = DatagramHeader {
                destination: 2,
                source: 3,
                qkey: 0x8001_0000,
                pkey: DEFAULT_PKEY,
                psn: 9,
                solicited: true,
                immediate,
                length: 5,
            };
            let bytes = packet(&header, b"hello");
            let parsed = Packet::parse(&bytes).unwrap();
            assert_eq!((parsed.bth().destination(), parsed.bth().psn()), (2, 9));
            let expected =
                Datagram { source: 3, immediate, solicited: true, payload: Payload::Here(b"hello") };
            assert_eq!(check_datagram(&parsed, 0x8001_0000), Ok(expected));
            assert_eq!(check_datagram(&parsed, 1), Err(DropReason::QueueKey));
        }
    }

    // IB-PKT-47
    #[test]
    fn packets_of_other_services_are_no_datagrams() {
        let opcode = Opcode::new(Service::Uc, Operation::SendOnly).unwrap();
        let mut buffer = [0; MAX_HEADER];
        let len = HeaderWriter::new(&mut buffer).put(&Bth::new(opcode, 0, 1, 2)).put(&[0u8; ICRC_LEN]).len();
        let parsed = Packet::parse(&buffer[..len]).unwrap();
        assert_eq!(check_datagram(&parsed, 0), Err(DropReason::Opcode));
    }
}
