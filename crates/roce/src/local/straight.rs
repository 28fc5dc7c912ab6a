//! A Send of one packet without the packet's headers: most messages between processes of one host. Three
//! words stand for the headers. The payload follows. All numbers are in the host's order.
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

use super::LONGEST_HERE;
use super::near::Near;
use crate::endpoint::Endpoint;
use crate::link::Tally;
use adverb_core::lock::LockGuard;
use adverb_core::memory::{Keys, Reader};
use adverb_core::qp::{Queues, SendCursor};
use adverb_core::request::{Data, SendRequest, Sge};
use adverb_core::transport::Takeover;
use adverb_core::watch;
use adverb_local::Slot;
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, HeaderWriter, MAX_HEADER};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};
use adverb_wire::zerocopy::byteorder::big_endian::U32;
use std::sync::atomic::{AtomicU64, Ordering};

/// A record of this kind.
pub(super) const STRAIGHT: u8 = 2;
const IMMEDIATE: u8 = 1;
const SOLICITED: u8 = 2;
const ACKNOWLEDGES: u8 = 4;

/// The opcodes in the headers of the packets that messages stand for.
const SEND: Opcode = Opcode::new(Service::Rc, Operation::SendOnly).expect("an opcode");
const SEND_IMMEDIATE: Opcode = Opcode::new(Service::Rc, Operation::SendOnlyImmediate).expect("an opcode");

/// Words before the payload.
pub(crate) const WORDS: usize = 3;
/// Bytes before the payload.
pub(crate) const START: usize = WORDS * 8;

/// The three words at the head of a Send that goes straight, taken apart. They stand for the headers of its
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Straight {
    /// The queue pair that it is for.
    pub(crate) destination: u32,
    /// The packet sequence number.
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

    /// The message of a record with so many bytes, by the record's first words. `None` if the record is of
    /// another kind, or not as long as it says.
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

    /// Writes the headers of the packet that the message stands for: functions that take packets only can
    /// take it in then. Returns how many bytes the headers have.
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

/// The bytes of a request that is being posted. Most requests have one element, or a few bytes that need no
/// key. Each of these two has a short path of its own.
trait Body {
    /// The place of the request's bytes, once the request has its place in the queue.
    type Placement;

    /// The length of the payload, in bytes.
    fn length(&self) -> usize;

    /// Writes the request to its place in the queue. Returns its number, too.
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, Self::Placement)>;

    /// Writes the bytes into a slot, behind its first words. False after a fault.
    fn fill(&self, placed: Self::Placement, slot: &mut Slot<'_>, reader: &mut Reader) -> bool;
}

/// One element.
struct Element<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
    sge: &'a Sge,
}

impl Body for Element<'_> {
    type Placement = ();

    #[inline(always)]
    fn length(&self) -> usize {
        self.sge.length as usize
    }

    #[inline(always)]
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, ())> {
        Some((self.queues.send.place_element(cursor, self.request, self.sge)?, ()))
    }

    #[inline(always)]
    fn fill(&self, (): (), slot: &mut Slot<'_>, reader: &mut Reader) -> bool {
        // SAFETY: the slot has room for so much behind the first words, and is written by pointer alone.
        let gathered = unsafe {
            let target = slot.as_mut_ptr().add(START);
            self.queues.gather_element_to(reader, self.sge, target)
        };
        gathered.is_ok()
    }
}

/// Bytes that need no key.
struct Bare<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
    address: usize,
    length: usize,
}

impl<'a> Body for Bare<'a> {
    type Placement = &'a [AtomicU64];

    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, &'a [AtomicU64])> {
        self.queues.send.place_bare(cursor, self.request, (self.address, self.length))
    }

    #[inline(always)]
    fn fill(&self, words: &'a [AtomicU64], slot: &mut Slot<'_>, _: &mut Reader) -> bool {
        match words {
            [word] => slot.write_word(WORDS, word.load(Ordering::Relaxed)),
            words => slot.write_words_from(WORDS, words.iter().map(|word| word.load(Ordering::Relaxed))),
        }
        true
    }
}

/// Several elements, or several slices.
struct Pieces<'a> {
    queues: &'a Queues,
    request: &'a SendRequest<'a>,
}

impl Body for Pieces<'_> {
    type Placement = u64;

    fn length(&self) -> usize {
        match self.request.data {
            Data::Registered(sges) | Data::InlineAt(sges) => {
                sges.iter().fold(0, |sum, sge| sge.length as usize + sum)
            }
            Data::Inline(slices) => slices.iter().fold(0, |sum, slice| slice.len() + sum),
        }
    }

    fn place(&self, cursor: &mut SendCursor) -> Option<(u64, u64)> {
        let sequence = self.queues.send.place(cursor, self.request)?;
        Some((sequence, sequence))
    }

    fn fill(&self, sequence: u64, slot: &mut Slot<'_>, reader: &mut Reader) -> bool {
        // SAFETY: as for one element.
        let gathered = unsafe {
            let target = slot.as_mut_ptr().add(START);
            self.queues.gather_to(reader, &self.queues.send.read(sequence), target)
        };
        gathered.is_ok()
    }
}

/// The state with which a queue pair posts messages straight.
pub(super) struct Posting {
    /// The reader for memory that the queue pair sends from.
    pub(super) reader: Reader,
    /// Messages that have gone straight, and are not counted yet.
    sent: Tally,
}

impl Posting {
    pub(super) fn new(keys: &'static Keys) -> Self {
        Self { reader: Reader::new(keys), sent: Tally::default() }
    }

    /// Counts the messages that have been sent. `alone`: as of [`adverb_core::counters::Counter::count`].
    #[inline]
    pub(super) fn count(&mut self, queues: &Queues, alone: bool) {
        self.sent.count_sent(queues.counters, alone);
    }
}

/// Has the requester count a Send. A trait, since a closure that is called in several places is a function of
/// its own there.
pub(crate) trait Head {
    /// The head of the request with this number in the queue and this length.
    fn make(self, sequence: u64, length: u32) -> Option<Straight>;
}

impl Near {
    /// Sends a request that is being posted, if the channel has room. The posting thread has the posts' lock.
    /// `head` has the requester count the request, by its number in the queue and its length. `follows` in
    /// the result: the peer sleeps, and this thread alone is told, so it is to ring.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
        head: impl Head,
    ) -> Takeover {
        let queues = &*endpoint.queues;
        let (address, length) = match request.data {
            Data::Registered([sge]) => {
                return self.put((queues, cursor, request), Element { queues, request, sge }, head);
            }
            Data::InlineAt([Sge { address, length, .. }]) => (*address as usize, *length as usize),
            Data::Inline([bytes]) => (bytes.as_ptr() as usize, bytes.len()),
            Data::Inline([]) | Data::InlineAt([]) | Data::Registered([]) => (0, 0),
            _ => return self.post_pieces((queues, cursor, request), head),
        };
        self.put((queues, cursor, request), Bare { queues, request, address, length }, head)
    }

    /// Sends a request of several elements, or several slices, that is being posted, if it has room. Called
    /// by [`Near::post`].
    #[inline(never)]
    fn post_pieces(
        &mut self,
        posted: (&Queues, &mut SendCursor, &SendRequest<'_>),
        head: impl Head,
    ) -> Takeover {
        let pieces = Pieces { queues: posted.0, request: posted.2 };
        self.put(posted, pieces, head)
    }

    #[inline(always)]
    fn put(
        &mut self,
        (queues, cursor, request): (&Queues, &mut SendCursor, &SendRequest<'_>),
        body: impl Body,
        head: impl Head,
    ) -> Takeover {
        let Self { channel, posting, .. } = self;
        let length = body.length();
        if length > LONGEST_HERE || channel.is_dead() || watch::packets() && watch::frames() {
            return Takeover::No;
        }
        let Some((sequence, placed)) = body.place(cursor) else { return Takeover::No };
        let mut tx = channel.tx.lock();
        let Some(mut slot) = tx.producer.reserve(START + length) else { return Takeover::No };
        // A fault is not reported here: the request is queued, and the way of all packets finds and reports
        // the fault.
        if length > 0 && !body.fill(placed, &mut slot, &mut posting.reader) {
            return Takeover::No;
        }
        let Some(straight) = head.make(sequence, length as u32) else { return Takeover::No };
        slot.write_words(straight.words());
        slot.publish();
        let follows = tx.producer.peer_sleeps();
        if posting.sent.add(length as u32) || queues.reports(request.flags) {
            posting.count(queues, channel.counts_alone());
        }
        LockGuard::release(tx);
        queues.send.enter_sent(cursor);
        Takeover::Sent { follows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::packet::{Packet, Payload};

    #[test]
    fn a_straight_send_is_read_back_with_the_headers_of_its_packet() {
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
