//! The management datagrams of a vendor class of ours: questions and answers about where a queue pair lives,
//! marks, and their echoes.

use super::Place;
use adverb_wire::ib::mad::{Header, MAD_LEN, Mad, Vendor, method};

/// The management class: one that vendors divide among themselves by OUI.
pub(crate) const CLASS: u8 = 0x3d;
/// An OUI of our own: locally administered, so nobody else's.
const OUI: [u8; 3] = [0x02, 0xad, 0x7b];
/// Attributes.
pub(super) const QUEUE_PAIR: u16 = 1;
/// The attribute of a mark ([`crate::peer`]).
pub(super) const MARK: u16 = 2;

pub(super) fn datagram(method: u8, transaction: u64, number: u32, place: Place) -> [u8; MAD_LEN] {
    with_attribute(QUEUE_PAIR, method, transaction, number, place, 0)
}

/// Asks where a queue pair lives; the one that asks is `asker`, or 0, and lives at `place`.
pub(crate) fn question(transaction: u64, number: u32, asker: u32, place: Place) -> [u8; MAD_LEN] {
    // Its port is the one that the question comes from.
    with_attribute(QUEUE_PAIR, method::GET, transaction, number, Place { port: 0, ..place }, asker)
}

/// The transaction and the queue pair that an answer is about, and the port where it lives.
pub(crate) fn answer(mad: &[u8; MAD_LEN]) -> Option<(u64, u32, u16)> {
    let answer = parse(mad).filter(|mad| mad.method == method::GET_RESPONSE && !mad.mark && !mad.refused)?;
    (answer.port != 0).then_some((answer.transaction, answer.number, answer.port))
}

pub(super) fn with_attribute(
    attribute: u16,
    method: u8,
    transaction: u64,
    number: u32,
    place: Place,
    asker: u32,
) -> [u8; MAD_LEN] {
    let Place { port, room, host } = place;
    let mut data = Vendor::new(OUI, [0; _]);
    data.data[..4].copy_from_slice(&number.to_be_bytes());
    data.data[4..6].copy_from_slice(&port.to_be_bytes());
    data.data[6..10].copy_from_slice(&room.unwrap_or(0).to_be_bytes());
    data.data[10..14].copy_from_slice(&asker.to_be_bytes());
    data.data[14..22].copy_from_slice(&host.to_be_bytes());
    data.with_header(Header::new(CLASS, 1, method, transaction, attribute)).to_bytes()
}

/// What an echo says.
#[cfg(any(test, fuzzing))]
pub(crate) fn echo_of(mark: u64, port: u16, receives: u32) -> Message {
    let place = Place { port, room: Some(receives), host: 0 };
    parse(&with_attribute(MARK, method::GET_RESPONSE, mark, 0, place, 0)).expect("it is one of ours")
}

/// A mark for the process behind a UDP port.
pub(crate) fn mark(mark: u64, port: u16) -> [u8; MAD_LEN] {
    with_attribute(MARK, method::GET, mark, 0, Place { port, room: None, host: 0 }, 0)
}

/// Whether a datagram is a mark, or the echo of one.
pub(crate) fn is_mark(mad: &[u8; MAD_LEN]) -> bool {
    parse(mad).is_some_and(|message| message.mark)
}

/// What a datagram of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The datagram is a mark, and not about a queue pair.
    pub(super) mark: bool,
    pub(super) method: u8,
    pub(crate) transaction: u64,
    pub(super) number: u32,
    pub(crate) port: u16,
    /// What may be in flight, in the unit of the congestion window (zero: nothing is said); of the echo of a
    /// mark, how many receives are left.
    pub(crate) room: u32,
    /// The queue pair that asks, or 0.
    pub(super) asker: u32,
    /// The number of the host, as in [`Place::host`].
    pub(super) host: u64,
    /// The answer says that the method is unknown.
    pub(super) refused: bool,
}

pub(super) fn parse(bytes: &[u8; MAD_LEN]) -> Option<Message> {
    let mad = Mad::parse(bytes)?;
    let vendor = mad.vendor()?;
    let attribute = mad.header.attribute_id.get();
    if vendor.oui != OUI || !matches!(attribute, QUEUE_PAIR | MARK) {
        return None;
    }
    Some(Message {
        mark: attribute == MARK,
        method: mad.header.method,
        transaction: mad.header.transaction_id.get(),
        number: u32::from_be_bytes(vendor.data[..4].try_into().ok()?),
        port: u16::from_be_bytes(vendor.data[4..6].try_into().ok()?),
        room: u32::from_be_bytes(vendor.data[6..10].try_into().ok()?),
        asker: u32::from_be_bytes(vendor.data[10..14].try_into().ok()?),
        host: u64::from_be_bytes(vendor.data[14..22].try_into().ok()?),
        refused: mad.header.status.get() != 0,
    })
}

/// An answer: the queue pair lives behind `port`.
#[cfg(any(test, fuzzing))]
pub(crate) fn answer_for(transaction: u64, number: u32, port: u16) -> [u8; MAD_LEN] {
    datagram(method::GET_RESPONSE, transaction, number, Place { port, room: Some(1), host: 0 })
}

/// Any bytes are a datagram of ours that reads the same when it is made again, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8; MAD_LEN]) {
    let Some(message) = parse(bytes) else { return assert!(answer(bytes).is_none()) };
    let Message { mark, method, transaction, number, port, room, asker, host, refused } = message;
    let place = Place { port, room: Some(room), host };
    let attribute = if mark { MARK } else { QUEUE_PAIR };
    let again = with_attribute(attribute, method, transaction, number, place, asker);
    assert_eq!(parse(&again), Some(Message { refused: false, ..message }));
    let is_answer = method == method::GET_RESPONSE && !mark && !refused && port != 0;
    assert_eq!(answer(bytes), is_answer.then_some((transaction, number, port)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let place = Place { port: 9, room: Some(70_000), host: 0x0102_0304_0506_0708 };
        let bytes = datagram(method::GET, 77, 0x12_3456, place);
        let message = Message {
            mark: false,
            method: method::GET,
            transaction: 77,
            number: 0x12_3456,
            port: 9,
            room: 70_000,
            asker: 0,
            host: place.host,
            refused: false,
        };
        assert_eq!(parse(&bytes), Some(message));
        let asked = Message { port: 0, asker: 0x65_4321, ..message };
        assert_eq!(parse(&question(77, 0x12_3456, 0x65_4321, place)), Some(asked));
        let mut foreign = bytes;
        foreign[37] ^= 1;
        assert_eq!(parse(&foreign), None, "another vendor");
    }
}
