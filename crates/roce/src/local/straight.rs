//! A Send of one packet without the packet's headers: most of what travels between processes of one host. Three words say what the headers would say. The
//! payload follows. All numbers are in the host's order.
//!
//! | byte | |
//! |---|---|
//! | 0 | [`STRAIGHT`] |
//! | 1 | [`IMMEDIATE`], [`SOLICITED`], [`ACKNOWLEDGES`] |
//! | 4 to 7 | bytes of payload |
//! | 8 to 11 | its packet sequence number |
//! | 12 to 15 | the queue pair that it is for |
//! | 16 to 19 | with [`ACKNOWLEDGES`], a packet sequence number: that packet and all before it are acknowledged to the queue pair that it is for |
//! | 20 to 23 | with [`IMMEDIATE`], the immediate data as the program gave it |
//!
//! Its sender asks for an acknowledgement.

use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, MAX_HEADER};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use adverb_wire::zerocopy::byteorder::big_endian::U32;

/// A record of this kind.
pub(super) const STRAIGHT: u8 = 2;
const IMMEDIATE: u8 = 1;
const SOLICITED: u8 = 2;
const ACKNOWLEDGES: u8 = 4;

/// What the headers of the packet say that it stands for.
const SEND: Opcode = Opcode::new(Service::Rc, Operation::SendOnly).expect("an opcode");
const SEND_IMMEDIATE: Opcode = Opcode::new(Service::Rc, Operation::SendOnlyImmediate).expect("an opcode");

/// Words before the payload.
pub(crate) const WORDS: usize = 3;
/// The same in bytes.
pub(crate) const START: usize = WORDS * 8;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Straight {
    /// The queue pair that it is for.
    pub(crate) destination: u32,
    /// Its packet sequence number.
    pub(crate) number: u32,
    /// Bytes of payload.
    pub(crate) length: u32,
    /// Immediate data as the program gave it.
    pub(crate) immediate: Option<u32>,
    pub(crate) solicited: bool,
    /// This packet of the receiver's, and all before it, are acknowledged.
    pub(crate) acknowledged: Option<u32>,
}

impl Straight {
    /// The words before the payload.
    #[inline]
    pub(crate) fn words(&self) -> [u64; WORDS] {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.immediate.is_some(), IMMEDIATE)
            | flag(self.solicited, SOLICITED)
            | flag(self.acknowledged.is_some(), ACKNOWLEDGES);
        [
            u64::from(STRAIGHT) | u64::from(flags) << 8 | u64::from(self.length) << 32,
            u64::from(self.number) | u64::from(self.destination) << 32,
            u64::from(self.acknowledged.unwrap_or(0)) | u64::from(self.immediate.unwrap_or(0)) << 32,
        ]
    }

    /// What the first words of a record say that has so many bytes. `None` if the record is of another kind, or not as long as it says.
    #[inline]
    pub(super) fn parse(&[first, second, third]: &[u64; WORDS], length: usize) -> Option<Self> {
        let flags = (first >> 8) as u8;
        let straight = Self {
            destination: (second >> 32) as u32,
            number: second as u32,
            length: (first >> 32) as u32,
            immediate: (flags & IMMEDIATE != 0).then_some((third >> 32) as u32),
            solicited: flags & SOLICITED != 0,
            acknowledged: (flags & ACKNOWLEDGES != 0).then_some(third as u32 & 0xff_ffff),
        };
        (first as u8 == STRAIGHT && length.checked_sub(START) == Some(straight.length as usize))
            .then_some(straight)
    }

    /// Writes the headers of the packet that the message stands for: functions that take packets only can take it in then. Returns how many bytes the headers have.
    #[cold]
    pub(crate) fn write_headers(&self, space: &mut [u8; MAX_HEADER]) -> usize {
        let opcode = if self.immediate.is_some() { SEND_IMMEDIATE } else { SEND };
        let bth = Bth::new(opcode, DEFAULT_PKEY, self.destination & 0xff_ffff, self.number & 0xff_ffff)
            .with_solicited(self.solicited)
            .with_pad_for(self.length as usize)
            .with_ack_request(true);
        let mut writer = HeaderWriter::new(space);
        writer.put(&bth);
        if let Some(immediate) = self.immediate {
            writer.put(&U32::new(u32::from_be(immediate)));
        }
        writer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::packet::{Packet, Payload};

    #[test]
    fn what_is_said_is_understood() {
        for (immediate, acknowledged) in [(None, None), (Some(0), Some(0xff_ffff)), (Some(u32::MAX), None)] {
            for solicited in [false, true] {
                let straight = Straight {
                    destination: 0xabcdef,
                    number: 0xff_fffe,
                    length: 7,
                    immediate,
                    solicited,
                    acknowledged,
                };
                assert_eq!(Straight::parse(&straight.words(), START + 7), Some(straight));
                for length in [0, START, START + 6, START + 8] {
                    assert_eq!(Straight::parse(&straight.words(), length), None);
                }
                let mut space = [0; MAX_HEADER];
                let headers = straight.write_headers(&mut space);
                let packet = Packet::assemble(&space[..headers], Payload::Here(&[1; 7])).unwrap();
                let bth = packet.bth();
                assert_eq!((bth.destination(), bth.psn(), bth.ack_request()), (0xabcdef, 0xff_fffe, true));
                assert_eq!((bth.solicited(), bth.pkey()), (solicited, DEFAULT_PKEY));
                assert_eq!(packet.immediate().map(u32::to_be), immediate);
            }
        }
        let other = [u64::from(STRAIGHT) + 1, 0, 0];
        assert_eq!(Straight::parse(&other, START), None);
    }
}
