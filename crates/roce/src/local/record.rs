//! A packet as it travels between processes of one host: its headers, and its payload or where that lies.
//!
//! There is no padding and no CRC: nothing on the way can damage it. Longer payload stays in the sender's
//! memory. The receiver copies it once, from there to its place: from its own map of that memory, if it has
//! one, else by the kernel. A record begins with eight bytes:
//!
//! | byte | |
//! |---|---|
//! | 0 | [`HERE`] or [`ELSEWHERE`]; a third kind has a form of its own ([`straight`]) |
//! | 1 | bytes of headers |
//! | 2, 3 | pieces of memory that the payload lies in |
//! | 4 to 7 | bytes of payload |
//!
//! The headers follow, then the payload, or the pieces, of 16 bytes each. A piece has an address (8 bytes), a
//! length (4), and the key of its region if that is published ([`adverb_samehost::Sharing`]), else 0 (4). All
//! numbers are in the host's order. The payload of a datagram begins with the global routing header that its
//! receiver finds in front of it.

#[cfg(any(test, fuzzing))]
use super::straight;
use super::straight::Straight;
use adverb_core::memory::moved::View;
use adverb_core::memory::{Claim, Missing, Piece, SharedBytes, Source};
use adverb_local::{Record, Withdrawal};
use adverb_samehost::Region;
use adverb_samehost::channel::{SHORT, Words, take_apart};
use adverb_wire::ib::header::MAX_HEADER;
#[cfg(any(test, fuzzing))]
use adverb_wire::ib::packet::Packet;
use adverb_wire::ib::packet::Payload;
use adverb_wire::zerocopy::IntoBytes;
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// The payload follows.
const HERE: u8 = 0;
/// The payload lies in memory of the sender's process.
const ELSEWHERE: u8 = 1;

/// Bytes of the beginning.
pub(crate) const START: usize = 8;
/// Payload of more bytes stays where it is, if it can be read there.
pub(crate) const LONGEST_HERE: usize = 4096;
/// Bytes of the routing header, which its receiver finds in front of a datagram, and which goes along with
/// it.
pub(crate) const ROUTING_HEADER: usize = 40;
/// Bytes of payload of the longest datagram, with its routing header. A record may say that it has more, as
/// its payload may lie elsewhere.
pub(crate) const LONGEST_DATAGRAM: usize = ROUTING_HEADER + LONGEST_HERE;
/// More pieces are not told: then the payload goes along.
pub(crate) const MOST_PIECES: usize = 64;
const PIECE: usize = 16;
/// Bytes of the longest record.
pub(super) const LONGEST: usize = START + MAX_HEADER + LONGEST_DATAGRAM;
const _: () = assert!(LONGEST <= adverb_local::MAX_RECORD && MOST_PIECES * PIECE <= LONGEST_HERE);

/// The beginning of a record whose payload follows its headers.
#[inline]
pub(crate) fn here(headers: usize, payload: usize) -> [u8; START] {
    start(HERE, headers, 0, payload)
}

/// The beginning of a record whose payload lies in so many pieces.
pub(super) fn elsewhere(headers: usize, pieces: usize, payload: usize) -> [u8; START] {
    start(ELSEWHERE, headers, pieces, payload)
}

#[inline]
fn start(kind: u8, headers: usize, pieces: usize, payload: usize) -> [u8; START] {
    let mut start = [0; START];
    start[0] = kind;
    start[1] = headers as u8;
    start[2..4].copy_from_slice(&(pieces as u16).to_ne_bytes());
    start[4..8].copy_from_slice(&(payload as u32).to_ne_bytes());
    start
}

/// A piece as it stands in a record, and the key by which its memory is published.
pub(super) fn piece(piece: Piece, key: Option<u32>) -> [u8; PIECE] {
    let mut bytes = [0; PIECE];
    bytes[..8].copy_from_slice(&piece.address.to_ne_bytes());
    bytes[8..12].copy_from_slice(&(piece.length as u32).to_ne_bytes());
    bytes[12..].copy_from_slice(&key.unwrap_or(0).to_ne_bytes());
    bytes
}

/// The right to the memory that a record speaks of.
pub(super) struct Lease<'a> {
    record: &'a Record<'a>,
    /// The mapped region with the memory, once it was looked for.
    region: OnceCell<Arc<Region>>,
    /// Bytes have come from there.
    is_used: Cell<bool>,
}

impl<'a> Lease<'a> {
    /// The right to the memory that this record speaks of. None of that memory has been looked for yet.
    #[inline]
    pub(super) fn new(record: &'a Record<'a>) -> Self {
        Self { record, region: OnceCell::new(), is_used: Cell::new(false) }
    }

    /// Whether the payload that it names was found mapped here, and was copied from there.
    #[inline]
    pub(super) fn was_mapped(&self) -> bool {
        self.is_used.get()
    }
}

impl std::fmt::Debug for Lease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lease")
    }
}

fn missing(why: Withdrawal) -> Missing {
    match why {
        Withdrawal::Lost => Missing::Lost,
        Withdrawal::Revoked => Missing::Gone,
    }
}

impl Claim for Lease<'_> {
    fn begin(&self) -> Result<(), Missing> {
        self.record.claim().map_err(missing)
    }

    fn check(&self) -> Result<(), Missing> {
        self.record.check_claim().map_err(missing)
    }

    fn end(&self) {
        self.record.end_claim();
    }

    fn mapped(&self) -> Option<(&View, u64)> {
        // While this process has the claim, the owner still lends the memory. So the key stands now for the
        // same memory as when the record was written.
        self.region.get().filter(|region| region.is_published()).and_then(|region| region.by_address())
    }

    fn came_from_mapping(&self) {
        self.is_used.set(true);
    }
}

/// The parts of a record.
pub(super) struct Parts<'a> {
    /// The headers of a packet.
    pub(super) head: &'a [u8],
    pub(super) payload: Payload<'a>,
    /// Where the payload is that does not lie behind the headers.
    pub(super) source: Source<'a>,
}

/// A message that comes straight, with its payload. `None` if the record is of another kind.
#[inline(always)]
pub(crate) fn take_straight<'a>(record: &'a Record<'_>) -> Option<(Straight, Source<'a>)> {
    let (first, payload) = take_apart(record)?;
    Some((Straight::parse(&first, record.len())?, payload))
}

/// Room for the words that are copied out of a record before they are judged.
pub(super) struct RecordCopy {
    words: Words,
    pieces: [Piece; MOST_PIECES],
}

impl RecordCopy {
    pub(super) fn new() -> Self {
        Self { words: [0; SHORT / 8], pieces: [Piece::default(); MOST_PIECES] }
    }

    /// Takes a record apart. None if it is not one. `process` is whose memory the pieces are of; none if
    /// nothing is read there; `lease` is the right to them, and `map` finds the region with a key.
    #[inline]
    pub(super) fn parse<'a>(
        &'a mut self,
        lease: &'a Lease<'_>,
        process: Option<libc::pid_t>,
        map: impl FnOnce(u32) -> Option<Arc<Region>>,
    ) -> Option<Parts<'a>> {
        let record = lease.record;
        let length = record.len();
        record.read_words(&mut self.words);
        let (start, rest) = self.words.as_bytes()[..length.min(SHORT)].split_first_chunk::<START>()?;
        let headers = usize::from(start[1]);
        let pieces = usize::from(u16::from_ne_bytes([start[2], start[3]]));
        let payload = u32::from_ne_bytes([start[4], start[5], start[6], start[7]]) as usize;
        let behind = START + headers;
        if headers > MAX_HEADER {
            return None;
        }
        match start[0] {
            HERE if length == behind + payload => {
                let (head, body) = rest.split_at_checked(headers)?;
                if length <= SHORT {
                    let (payload, source) = (Payload::Here(body), Source::Buffer(body));
                    return Some(Parts { head, payload, source });
                }
                // SAFETY: the record's bytes stay mapped as long as it lives, and these lie within its
                // length.
                let shared = unsafe { SharedBytes::new(record.as_ptr().add(behind), payload) };
                let (payload, source) = (Payload::Elsewhere(payload), Source::Shared(shared));
                Some(Parts { head, payload, source })
            }
            ELSEWHERE if pieces <= MOST_PIECES && length == behind + pieces * PIECE => {
                let process = process?;
                let (mut sum, mut common) = (0u64, None);
                for (index, piece) in self.pieces[..pieces].iter_mut().enumerate() {
                    let mut bytes = [0; PIECE];
                    record.read_at(behind + index * PIECE, &mut bytes).ok()?;
                    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
                    let address = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
                    let key = half(12);
                    *piece = Piece { address, length: half(8).into() };
                    sum = sum.checked_add(piece.length)?;
                    if *common.get_or_insert(key) != key {
                        common = Some(0);
                    }
                }
                if sum != payload as u64 {
                    return None;
                }
                if let Some(key) = common.filter(|key| *key != 0)
                    && let Some(region) = map(key)
                {
                    let _ = lease.region.set(region);
                }
                let source = Source::Process { process, pieces: &self.pieces[..pieces], claim: lease };
                let (head, payload) = (rest.get(..headers)?, Payload::Elsewhere(payload));
                Some(Parts { head, payload, source })
            }
            _ => None,
        }
    }
}

/// Any bytes are a record whose parts lie within it, or none. Nothing is read where it says that payload
/// lies.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let (here, descriptor) = adverb_local::Segment::create().expect("memory");
    let there = adverb_local::Segment::open(descriptor).expect("the same memory");
    let (mut producer, mut consumer) = (here.split().0, there.split().1);
    let mut slot = producer.reserve(bytes.len()).expect("room");
    slot.write_at(0, bytes);
    let _ = slot.publish_loan();
    let record = consumer.peek().expect("a ring").expect("a record");
    if let Some((straight, payload)) = take_straight(&record) {
        let mut copy = vec![0; payload.len()];
        assert!(payload.read(&mut copy).is_ok());
        assert_eq!(copy, &bytes[straight::START..]);
        let mut space = [0; MAX_HEADER];
        let headers = straight.write_headers(&mut space);
        assert!(Packet::assemble(&space[..headers], Payload::Elsewhere(copy.len())).is_ok());
    }
    for process in [None, Some(1)] {
        let (lease, mut copied) = (Lease::new(&record), RecordCopy::new());
        let Some(parts) = copied.parse(&lease, process, |_| None) else { continue };
        assert!(parts.head.len() <= MAX_HEADER);
        assert_eq!(parts.head, &bytes[START..START + parts.head.len()]);
        assert_eq!(parts.payload.len(), parts.source.len());
        match &parts.source {
            Source::Process { pieces, .. } => {
                assert!(process.is_some() && pieces.len() <= MOST_PIECES);
                let sum: u64 = pieces.iter().map(|piece| piece.length).sum();
                assert_eq!(sum, parts.payload.len() as u64);
            }
            source => {
                let mut payload = vec![0; source.len()];
                assert!(source.read(&mut payload).is_ok());
                assert_eq!(payload, &bytes[START + parts.head.len()..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_local::{Consumer, Producer, Segment};

    /// The two ends of one direction.
    fn ends() -> (Producer, Consumer) {
        let (here, descriptor) = Segment::create().unwrap();
        let there = Segment::open(descriptor).unwrap();
        (here.split().0, there.split().1)
    }

    fn put(producer: &mut Producer, bytes: &[u8]) {
        let mut slot = producer.reserve(bytes.len()).unwrap();
        slot.write_at(0, bytes);
        let _ = slot.publish_loan();
    }

    /// The contents of a record: headers, bytes of payload, and these bytes, if they can be had.
    fn parsed(bytes: &[u8], process: Option<libc::pid_t>) -> Option<(Vec<u8>, usize, Option<Vec<u8>>)> {
        let (mut producer, mut consumer) = ends();
        put(&mut producer, bytes);
        let record = consumer.peek().unwrap().unwrap();
        let (lease, mut copied) = (Lease::new(&record), RecordCopy::new());
        let Parts { head: headers, payload, source } = copied.parse(&lease, process, |_| None)?;
        let mut bytes = vec![0; payload.len()];
        assert_eq!(source.len(), payload.len());
        let read = source.read(&mut bytes).is_ok();
        Some((headers.to_vec(), payload.len(), read.then_some(bytes)))
    }

    #[test]
    fn a_packet_comes_out_of_a_record_as_it_was_put_in() {
        for length in [0, 1, 80, 81, 4096] {
            let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let record = [&here(28, length)[..], &[9; 28], &payload].concat();
            assert_eq!(parsed(&record, None), Some((vec![9; 28], length, Some(payload))));
        }
        let bytes = [1u8, 2, 3, 4, 5];
        let part = |range: std::ops::Range<usize>| {
            let bytes = &bytes[range];
            piece(Piece { address: bytes.as_ptr() as u64, length: bytes.len() as u64 }, None)
        };
        let record = [&elsewhere(28, 2, 4)[..], &[9; 28], &part(0..1), &part(2..5)].concat();
        let own = Some(std::process::id() as libc::pid_t);
        assert_eq!(parsed(&record, own), Some((vec![9; 28], 4, Some(vec![1, 3, 4, 5]))));
        assert_eq!(parsed(&record, None), None, "nothing is fetched from who cannot be read");
    }

    #[test]
    fn garbage_is_no_packet_and_no_harm() {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word
        };
        for _ in 0..5_000 {
            let length = random() as usize % 300;
            let mut record: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            // Nearly right more often than by chance.
            if let Some(first) = record.first_mut() {
                *first %= 3;
            }
            if random() % 2 == 0 && record.len() > START {
                record[1] %= 80;
                record[2..4].copy_from_slice(&(random() as u16 % 70).to_ne_bytes());
                record[4..8].copy_from_slice(&(random() as u32 % 300).to_ne_bytes());
            }
            if let Some((headers, _, _)) = parsed_without_reading(&record) {
                assert!(headers.len() <= MAX_HEADER);
            }
        }
        assert!(
            parsed_without_reading(&[]).is_none()
                && parsed_without_reading(&here(0, 0)[..START - 1]).is_none()
        );
    }

    fn parsed_without_reading(bytes: &[u8]) -> Option<(Vec<u8>, usize, usize)> {
        let (mut producer, mut consumer) = ends();
        put(&mut producer, bytes);
        let record = consumer.peek().unwrap().unwrap();
        let (lease, mut copied) = (Lease::new(&record), RecordCopy::new());
        let Parts { head: headers, payload, source } = copied.parse(&lease, Some(1), |_| None)?;
        Some((headers.to_vec(), payload.len(), source.len()))
    }
}
