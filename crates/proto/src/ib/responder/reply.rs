//! What a responder sends.

use adverb_wire::ib::header::{
    Aeth, AtomicAckEth, Bth, CREDITS_UNLIMITED, HeaderWriter, ICRC_LEN, MAX_HEADER, NakCode, Syndrome,
    padding,
};
use adverb_wire::ib::opcode::{Operation as Opcode, Position};
use adverb_wire::ib::packet::Packet;

use super::super::{MAX_MESSAGE, Service, opcode, packets, psn};
use super::{DropReason, PendingReply, Refusal, Remote, Responder, ResponderHost, Verdict};

/// A packet of a responder: headers in the buffer, and what belongs behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Bytes at the start of the buffer.
    pub header: usize,
    /// What to copy behind them. If that fails, call [`Responder::read_failed`] instead of sending.
    pub payload: Option<ReadSource>,
    /// Bytes of zero behind the payload, 0 to 3. The invariant CRC follows.
    pub pad: usize,
    /// The packet's sequence number.
    pub psn: u32,
    /// The packet answers a duplicate request.
    pub repeated: bool,
}

impl Reply {
    /// Bytes from the base transport header to the invariant CRC.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header + self.payload.map_or(0, |source| source.length as usize) + self.pad + ICRC_LEN
    }
}

/// Memory that a read response takes its payload from. The key was checked when the request arrived, and has
/// to be checked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadSource {
    /// The key.
    pub key: u32,
    /// The address of the first byte.
    pub address: u64,
    /// The length in bytes.
    pub length: u32,
    /// XRC: the shared receive queue in whose protection domain the key is.
    pub shared_queue: u32,
    /// The place of the bytes, if they have been taken already ([`ResponderHost::keep`]).
    pub kept: Option<u32>,
}

/// An answer with a packet sequence number of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Response {
    /// Number of its next packet.
    psn: u32,
    msn: u32,
    kind: Kind,
    /// The answer is to a duplicate.
    repeated: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// What is left to be read.
    Read {
        rest: ReadSource,
        begun: bool,
        /// The number under which the user keeps the bytes, if it does.
        kept: Option<u32>,
    },
    Atomic(u64),
    Empty,
}

impl Response {
    pub(super) fn read(psn: u32, msn: u32, rest: ReadSource) -> Response {
        Response { psn, msn, kind: Kind::Read { rest, begun: false, kept: None }, repeated: false }
    }

    pub(super) fn atomic(psn: u32, msn: u32, original: u64) -> Response {
        Response { psn, msn, kind: Kind::Atomic(original), repeated: false }
    }

    /// The answer to a flush, or to an atomic write.
    pub(super) fn empty(psn: u32, msn: u32) -> Response {
        Response { psn, msn, kind: Kind::Empty, repeated: false }
    }

    /// What is left of a new read, as long as it has not been taken from memory, and where to note that it
    /// has.
    pub(super) fn unkept(&mut self) -> Option<(&ReadSource, &mut Option<u32>)> {
        match &mut self.kind {
            Kind::Read { rest, kept, .. } if kept.is_none() && rest.length > 0 && !self.repeated => {
                Some((rest, kept))
            }
            _ => None,
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self.kind, Kind::Read { kept: Some(_), .. })
    }

    /// Packets that are still to be sent.
    fn packets(&self, mtu: u32) -> u32 {
        match self.kind {
            Kind::Read { rest, .. } => packets(rest.length, mtu),
            Kind::Atomic(_) | Kind::Empty => 1,
        }
    }
}

/// What is to be told about the expected packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Nak {
    /// The expected packet is missing.
    Sequence,
    /// There is no receive for it.
    NotReady,
    /// A request is refused, at this packet.
    Refused(u32, NakCode),
}

impl Responder {
    /// Queues the answer to a request that was carried out. It acknowledges all before it.
    // IB-RC-RSP-44
    pub(super) fn queue_new(&mut self, response: Response) {
        self.pending_acknowledgement = PendingReply::Nothing;
        self.has_answered = true;
        self.new_responses += 1;
        self.responses.push_back(response);
    }

    /// A duplicate read. Reading again needs no memory of the first time, only that all of it lies in the
    /// past.
    pub(super) fn repeat_read(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl ResponderHost,
    ) -> Option<Response> {
        let (number, reth) = (packet.bth().psn(), packet.reth()?);
        let (key, address, length) = (reth.rkey.get(), reth.address.get(), reth.length.get());
        let past = psn::distance(number, self.expected);
        // IB-RC-RSP-6, IB-RC-RSP-7
        if !self.options.access.read || length > MAX_MESSAGE || packets(length, self.options.mtu) > past {
            return None;
        }
        let shared_queue = packet.xrceth().map(|header| header.shared_receive_queue());
        // Not refused: it may be a late copy, made by the network, of a request that was answered long ago.
        if shared_queue.is_some_and(|number| host.choose_queue(number).is_err()) {
            return None;
        }
        if length != 0 && host.check_remote(key, address, length, Remote::Read).is_err() {
            return None;
        }
        let rest = ReadSource { key, address, length, shared_queue: shared_queue.unwrap_or(0), kept: None };
        Some(Response::read(number, self.msn, rest))
    }

    pub(super) fn repeat_atomic(&self, number: u32) -> Option<Response> {
        // IB-RC-RSP-8, IB-RC-RSP-9
        let &(_, original) = self.atomics.iter().rev().find(|(known, _)| *known == number)?;
        Some(Response::atomic(number, self.msn, original))
    }

    /// Queues the answer to a duplicate in its place. False if it is about to go out anyway, or if there are
    /// too many.
    pub(super) fn queue_repeated(&mut self, mut response: Response) -> bool {
        let mtu = self.options.mtu;
        let covered =
            self.responses.iter().any(|queued| psn::within(response.psn, queued.psn, queued.packets(mtu)));
        if covered {
            return false;
        }
        // A response that was sent in part and is requested again is sent once, not twice.
        let (first, count) = (response.psn, response.packets(mtu));
        let new = &mut self.new_responses;
        self.responses.retain(|queued| {
            let replaced = psn::within(queued.psn, first, count);
            if replaced && !queued.repeated {
                *new -= 1;
            }
            !replaced
        });
        let repeats = self.responses.len() - usize::from(self.new_responses);
        if repeats > usize::from(self.options.max_reads) {
            return false;
        }
        response.repeated = true;
        // IB-RC-RSP-51
        let place = self.responses.iter().position(|queued| psn::precedes(first, queued.psn));
        self.responses.insert(place.unwrap_or(self.responses.len()), response);
        true
    }

    /// The next packet, its headers written to the buffer; `None` if there is nothing to say. Read responses
    /// come a packet at a time, so the user decides how fast.
    #[inline]
    pub fn poll_transmit(&mut self, buffer: &mut [u8; MAX_HEADER]) -> Option<Reply> {
        // IB-RC-RSP-51, IB-RC-RSP-53
        if !self.responses.is_empty() {
            return Some(self.write_response(buffer));
        }
        // A NAK acknowledges all before the packet that it is about.
        let (number, syndrome) = match self.nak.take() {
            // IB-RC-RSP-58
            Some(Nak::Sequence) => (self.expected, Syndrome::Nak(NakCode::PsnSequenceError)),
            Some(Nak::NotReady) => {
                (self.expected, Syndrome::ReceiverNotReady { timer: self.options.min_rnr_timer })
            }
            Some(Nak::Refused(number, code)) => (number, Syndrome::Nak(code)),
            None if self.pending_acknowledgement != PendingReply::Nothing => {
                // IB-RC-RSP-48, IB-RC-RSP-57, IB-SRQ-12
                (psn::add(self.expected, psn::MASK), Syndrome::Ack { credits: CREDITS_UNLIMITED })
            }
            None => return None,
        };
        self.pending_acknowledgement = PendingReply::Nothing;
        let header = self.write_headers(Opcode::Acknowledge, number, 0, buffer, |writer| {
            // IB-RC-RSP-56
            writer.put(&Aeth::new(syndrome, self.msn));
        });
        Some(Reply { header, payload: None, pad: 0, psn: number, repeated: false })
    }

    /// The packet sequence number of an acknowledgement that is due and tells nothing else, if that is all
    /// that there is to say: it then counts as sent. Its user brings it to the peer's
    /// [`Requester::acknowledged`](super::super::Requester::acknowledged).
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<u32> {
        if self.pending_acknowledgement == PendingReply::Nothing
            || self.nak.is_some()
            || !self.responses.is_empty()
        {
            return None;
        }
        self.pending_acknowledgement = PendingReply::Nothing;
        // IB-RC-RSP-48, IB-RC-RSP-57, IB-SRQ-12
        Some(psn::add(self.expected, psn::MASK))
    }

    /// Queues the last acknowledgement again, if there was one. For a user whose packets take another way
    /// from now on: a later packet could overtake the acknowledgement that is under way on the old one. The
    /// peer takes no notice of a second one. Nothing is repeated once a read or an atomic was answered: to a
    /// peer that misses the answer, an acknowledgement of what came later says that the answer is lost.
    // PRACTICE-ORDER-1
    pub fn repeat_acknowledgement(&mut self) {
        let has_received = self.expected != self.options.expected_psn & psn::MASK;
        if has_received && !self.has_answered && !self.failed && self.options.service != Service::Uc {
            self.pending_acknowledgement = PendingReply::Response;
        }
    }

    fn write_headers(
        &self,
        operation: Opcode,
        number: u32,
        payload: usize,
        buffer: &mut [u8; MAX_HEADER],
        extensions: impl FnOnce(&mut HeaderWriter<'_>),
    ) -> usize {
        let opcode = opcode(self.options.service, operation);
        // IB-RC-RSP-59
        let bth = Bth::new(opcode, self.options.pkey, self.options.destination, number).with_pad_for(payload);
        let mut writer = HeaderWriter::new(buffer);
        writer.put(&bth);
        extensions(&mut writer);
        writer.len()
    }

    /// The next packet of the response at the front.
    fn write_response(&mut self, buffer: &mut [u8; MAX_HEADER]) -> Reply {
        let front = &self.responses[0];
        let (number, kind, repeated) = (front.psn, front.kind, front.repeated);
        let aeth = Aeth::new(Syndrome::Ack { credits: CREDITS_UNLIMITED }, front.msn);
        let mut payload = None;
        let (header, done) = match kind {
            Kind::Read { rest, begun, kept } => {
                let length = rest.length.min(self.options.mtu);
                let ends = length == rest.length;
                // IB-RC-RSP-52, IB-PKT-25
                let (operation, has_aeth) = match Position::new(!begun, ends) {
                    Position::First => (Opcode::ReadResponseFirst, true),
                    Position::Middle => (Opcode::ReadResponseMiddle, false),
                    Position::Last => (Opcode::ReadResponseLast, true),
                    Position::Only => (Opcode::ReadResponseOnly, true),
                };
                let header = self.write_headers(operation, number, length as usize, buffer, |writer| {
                    if has_aeth {
                        writer.put(&aeth);
                    }
                });
                payload = (length != 0).then_some(ReadSource { length, kept, ..rest });
                let front = &mut self.responses[0];
                front.psn = psn::add(number, 1);
                let address = rest.address.wrapping_add(u64::from(length));
                let rest = ReadSource { address, length: rest.length - length, ..rest };
                front.kind =
                    Kind::Read { rest, begun: true, kept: kept.map(|place| place.wrapping_add(length)) };
                (header, ends)
            }
            Kind::Atomic(original) => {
                let header = self.write_headers(Opcode::AtomicAcknowledge, number, 0, buffer, |writer| {
                    // IB-RC-RSP-60
                    writer.put(&aeth).put(&AtomicAckEth { original: original.into() });
                });
                (header, true)
            }
            Kind::Empty => {
                let header = self.write_headers(Opcode::ReadResponseOnly, number, 0, buffer, |writer| {
                    writer.put(&aeth);
                });
                (header, true)
            }
        };
        if done {
            self.drop_front();
        }
        let pad = payload.map_or(0, |source| padding(source.length as usize));
        Reply { header, payload, pad, psn: number, repeated }
    }

    /// The payload of a read response could not be taken from memory, and the packet has not been sent: the
    /// key has been revoked, or the memory is gone. The peer is told, unless it has had an answer before.
    pub fn read_failed(&mut self, reply: &Reply, refusal: Refusal) -> Verdict {
        let rest = psn::add(reply.psn, 1);
        if reply.repeated {
            self.responses.retain(|response| !(response.repeated && response.psn == rest));
            return Verdict::Dropped(DropReason::Unanswerable);
        }
        self.responses.clear();
        self.new_responses = 0;
        // A receive that was taken for a message in progress stays taken: it is flushed with the queue pair.
        // IB-RC-RSP-54
        self.nak = Some(Nak::Refused(reply.psn, refusal.code()));
        self.failed = true;
        Verdict::Refused(refusal.code())
    }

    fn drop_front(&mut self) {
        if let Some(response) = self.responses.pop_front()
            && !response.repeated
        {
            self.new_responses -= 1;
        }
    }
}
