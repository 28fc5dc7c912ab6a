//! Records, by which one end of a connection talks to the other through shared memory. A record begins with
//! four words, in the host's order of bytes:
//!
//! | byte | |
//! |---|---|
//! | 0 | [`RecordKind`] |
//! | 1 | [`SOLICITED`], [`INVALIDATES`] |
//! | 4 to 7 | bytes of payload, which follow |
//! | 8 to 11 | the end that it is for, by the number that this end has told ([`super::question`]) |
//! | 12 to 15 | the key that a Send invalidates, or immediate data |
//! | 16 to 23 | bytes of the stream by TCP that come before the message |
//! | 24 to 27 | how much of what the receiver of this has sent through shared memory has been taken in ([`super::Inbox`]) |
//! | 28 to 31 | of immediate data: bytes of the Write before |

use adverb_core::memory::Source;
use adverb_local::Record;
use adverb_proto::iwarp::{Arrival, Segment};
use adverb_samehost::channel::take_apart;

/// Words before the payload.
pub(crate) const WORDS: usize = 4;
/// Bytes before the payload.
pub(crate) const START: usize = WORDS * 8;
/// Longer messages go by TCP.
pub(crate) const LONGEST_HERE: usize = 4096;
/// Bytes of the longest record.
pub(super) const LONGEST: usize = START + LONGEST_HERE;
const _: () = assert!(LONGEST <= adverb_local::MAX_RECORD);

const SOLICITED: u8 = 1;
const INVALIDATES: u8 = 2;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The sender takes in messages through shared memory from now on.
    Greeting = 1,
    /// A Send.
    Send = 2,
    /// Immediate data.
    Immediate = 3,
    /// Nothing but how much has been taken in.
    Progress = 4,
}

/// The head of a record, taken apart: the four words before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) kind: RecordKind,
    pub(crate) to: u32,
    pub(crate) length: u32,
    pub(crate) solicited: bool,
    pub(crate) invalidates: bool,
    pub(crate) data: u32,
    pub(crate) behind: u64,
    pub(crate) taken: u32,
    pub(crate) written: u32,
}

impl RecordHead {
    /// The head of a record without a message: its kind, the end that it is for, and how much has been taken
    /// in.
    pub(crate) fn bare(kind: RecordKind, to: u32, taken: u32) -> Self {
        let (length, solicited, invalidates, data, behind, written) = (0, false, false, 0, 0, 0);
        Self { kind, to, length, solicited, invalidates, data, behind, taken, written }
    }

    /// The words before the payload.
    #[inline]
    pub(crate) fn words(&self) -> [u64; WORDS] {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.solicited, SOLICITED) | flag(self.invalidates, INVALIDATES);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.kind as u32 | u32::from(flags) << 8, self.length),
            pair(self.to, self.data),
            self.behind,
            pair(self.taken, self.written),
        ]
    }

    /// The head of a record with so many bytes of payload. `None` if its first words do not fit.
    #[inline]
    fn parse(&[first, second, behind, last]: &[u64; WORDS], payload: usize) -> Option<Self> {
        let flags = (first >> 8) as u8;
        let kinds = [RecordKind::Greeting, RecordKind::Send, RecordKind::Immediate, RecordKind::Progress];
        let said = Self {
            kind: kinds.into_iter().find(|kind| *kind as u8 == first as u8)?,
            to: second as u32,
            length: (first >> 32) as u32,
            solicited: flags & SOLICITED != 0,
            invalidates: flags & INVALIDATES != 0,
            data: (second >> 32) as u32,
            behind,
            taken: last as u32,
            written: (last >> 32) as u32,
        };
        let longest = if said.kind == RecordKind::Send { LONGEST_HERE } else { 0 };
        (said.length as usize == payload && payload <= longest).then_some(said)
    }

    /// The message, as if it had come by TCP.
    #[inline]
    pub(crate) fn arrival(&self) -> Arrival {
        // No messages are counted here: none gets lost. The number is for the peer's log.
        let (msn, solicited) = (0, self.solicited);
        let segment = match self.kind {
            RecordKind::Immediate => {
                let mut data = [0; 8];
                data[..4].copy_from_slice(&self.data.to_ne_bytes());
                Segment::Immediate { msn, data, solicited }
            }
            _ => Segment::Send {
                msn,
                mo: 0,
                first: true,
                last: true,
                invalidate: self.invalidates.then_some(self.data),
                solicited,
            },
        };
        Arrival { segment, head_len: 0, payload_len: self.length as usize, trailer_len: 0 }
    }
}

/// A record with its payload. `None` if it is none.
#[inline]
pub(super) fn parse<'a>(record: &'a Record<'_>) -> Option<(RecordHead, Source<'a>)> {
    let (first, payload) = take_apart(record)?;
    Some((RecordHead::parse(&first, payload.len())?, payload))
}

/// Any bytes are a record that is the same when it is made again, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(LONGEST + 8)];
    let (here, descriptor) = adverb_local::Segment::create().expect("memory");
    let there = adverb_local::Segment::open(descriptor).expect("the same memory");
    let (mut producer, mut consumer) = (here.split().0, there.split().1);
    let mut slot = producer.reserve(bytes.len()).expect("room");
    slot.write_at(0, bytes);
    slot.publish();
    let record = consumer.peek().expect("a ring").expect("a record");
    if let Some((said, payload)) = parse(&record) {
        let mut copy = vec![0; payload.len()];
        assert!(payload.read(&mut copy).is_ok());
        assert_eq!(copy, &bytes[START..]);
        assert_eq!(RecordHead::parse(&said.words(), copy.len()), Some(said));
        assert_eq!(said.arrival().payload_len, copy.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = RecordHead> {
        let kinds = [RecordKind::Greeting, RecordKind::Send, RecordKind::Immediate, RecordKind::Progress];
        kinds.into_iter().flat_map(|kind| {
            [false, true].into_iter().map(move |set| RecordHead {
                kind,
                to: 0xffff_fffe,
                length: if kind == RecordKind::Send { 4096 } else { 0 },
                solicited: set,
                invalidates: !set,
                data: 0x0102_0304,
                behind: u64::MAX - 1,
                taken: u32::MAX,
                written: 7,
            })
        })
    }

    #[test]
    fn a_record_head_is_read_back_and_a_wrong_one_is_refused() {
        for said in all() {
            assert_eq!(RecordHead::parse(&said.words(), said.length as usize), Some(said));
            assert_eq!(RecordHead::parse(&said.words(), said.length as usize + 1), None);
        }
        assert_eq!(RecordHead::parse(&[5, 0, 0, 0], 0), None);
        assert_eq!(RecordHead::parse(&[0, 0, 0, 0], 0), None);
        let long = RecordHead { length: 4097, ..RecordHead::bare(RecordKind::Send, 1, 0) };
        assert_eq!(RecordHead::parse(&long.words(), 4097), None);
    }

    #[test]
    fn garbage_is_no_record_and_no_harm() {
        let mut state = 1;
        for length in (0..200).cycle().take(3000) {
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = adverb_core::random::next(state);
                (state >> 32) as u8
            })
            .take(length)
            .collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 6;
            }
            if length > START {
                bytes[4..8].copy_from_slice(&(length as u32 - START as u32).to_ne_bytes());
            }
            try_bytes(&bytes);
        }
    }
}
