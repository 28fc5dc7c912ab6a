//! The responder of a connected queue pair: requests of the peer are checked, carried out and answered
//! (volume 1, sections 9.7.4, 9.7.5 and 9.8.2).
//!
//! A request is checked in the standard's order (sequence number, opcode sequence, validity, resources,
//! length, key) and nothing is touched before all of it holds. Answers go out in the order of the requests:
//! the responses to reads and atomics from a queue, and one cumulative acknowledgement behind them.
//!
//! Acknowledgements carry no end-to-end credits ("unlimited"), as those of the Linux kernel and of queue
//! pairs with a shared receive queue: a count would make each requester stop and ask wherever a program posts
//! receives just in time, and a receive that is missing is told by a NAK.

mod execute;
mod reply;

use std::collections::VecDeque;

use adverb_wire::ib::header::NakCode;
use adverb_wire::ib::opcode::Operation as Opcode;
use adverb_wire::ib::packet::{Packet, Payload};

use super::{Service, packets, psn};
use reply::{Nak, Response};
pub use reply::{ReadSource, Reply};

/// What the peer may do, by the attributes of the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Access {
    /// RDMA Write, and atomic write.
    pub write: bool,
    /// RDMA Read.
    pub read: bool,
    /// Atomic operations.
    pub atomic: bool,
    /// Flush.
    pub flush: bool,
}

/// Attributes of a responder.
#[derive(Clone, Copy, Debug)]
pub struct ResponderOptions {
    /// The service.
    pub service: Service,
    /// Bytes of payload in a packet: 256 to 4096 on a network.
    pub mtu: u32,
    /// The packet sequence number of the first request.
    pub expected_psn: u32,
    /// The peer's queue pair.
    pub destination: u32,
    /// The partition key that packets carry.
    pub pkey: u16,
    /// Most reads and atomics that the peer may have outstanding.
    pub max_reads: u8,
    /// Code of the time that the peer shall wait when there is no receive, see [`super::timer::not_ready`].
    pub min_rnr_timer: u8,
    /// What the peer may do.
    pub access: Access,
}

/// Why the user refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// The request is not valid.
    Invalid,
    /// Access to the memory is not allowed.
    Access,
    /// The request could not be carried out.
    Operational,
    /// The request's payload did not come with the packet and cannot be had. It counts as one that was lost:
    /// the peer is told nothing.
    Missing,
}

impl Refusal {
    fn code(self) -> NakCode {
        match self {
            Refusal::Invalid => NakCode::InvalidRequest,
            Refusal::Access => NakCode::RemoteAccessError,
            Refusal::Operational | Refusal::Missing => NakCode::RemoteOperationalError,
        }
    }
}

/// What a peer wants to do with memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Remote {
    /// Write to it.
    Write,
    /// Read from it.
    Read,
    /// Change it by an atomic operation.
    Atomic,
    /// Make what was written to it visible or durable.
    Flush {
        /// The placement type, as in [`adverb_wire::ib::header::Feth`].
        placement: u8,
        /// The selectivity level, as in [`adverb_wire::ib::header::Feth`].
        selectivity: u8,
    },
}

/// What kind of message a receive was taken for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeliveryKind {
    /// A Send; its payload is in the receive's buffers.
    Send,
    /// An RDMA Write with immediate data.
    WriteWithImmediate,
}

/// A message that has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The length of the message, in bytes.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The key that was invalidated.
    pub invalidated: Option<u32>,
    /// The kind of the message.
    pub kind: DeliveryKind,
    /// The completion is a solicited event.
    pub solicited: bool,
}

/// Why the message that a receive was taken for has failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReceiveFault {
    /// The message is longer than the receive's buffers (local length error).
    Length,
    /// The buffers could not be written (local protection error).
    Protection,
    /// The peer's message is not valid (remote invalid request error).
    InvalidRequest,
}

/// What becomes of the bytes of a read before something behind it is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The bytes are kept, the first one at this place among all kept bytes. The others have the places
    /// behind it, modulo 2^32.
    At(u32),
    /// The bytes cannot be kept: the read is answered first.
    Later,
    /// The bytes need not be kept: the peer sends nothing behind such a read.
    Needless,
}

/// What a responder needs of its user.
pub trait ResponderHost {
    /// Of XRC: the packet is for the shared receive queue with this number. Until the next call receives are
    /// taken from that queue, and keys are those of its protection domain.
    ///
    /// # Errors
    /// What the peer is told: [`Refusal::Invalid`] if the domain has no such queue.
    fn choose_queue(&mut self, _number: u32) -> Result<(), Refusal> {
        Err(Refusal::Invalid)
    }
    /// Takes the next receive and returns the bytes that its buffers hold; `None` if there is none. Called
    /// once for a message that needs one.
    fn take_receive(&mut self) -> Option<u64>;
    /// Takes what a read that is not answered yet wants, since what comes behind it may change it. It is kept
    /// until it has been sent.
    fn keep(&mut self, source: &ReadSource) -> Keep;
    /// Puts a part of a Send into the buffers of the receive that was taken; it lies within the bytes they
    /// hold.
    ///
    /// # Errors
    /// The receive then fails with [`ReceiveFault::Protection`], and the peer is told that the operation
    /// failed here; unless the payload is [missing](Refusal::Missing).
    fn place_receive(&mut self, offset: u32, payload: Payload<'_>) -> Result<(), Refusal>;
    /// The receive that was taken completes.
    fn complete_receive(&mut self, delivered: Delivery);
    /// The queue pair does not permit what the packet asks for, whatever the memory does: the peer is told
    /// that its request is invalid.
    fn forbidden(&mut self, _access: Remote) {}
    /// The message has more bytes than the receive that was taken: so many, or, if it is not whole yet, at
    /// least so many.
    fn too_long(&mut self, _message: u32, _is_whole: bool) {}
    /// The receive that was taken completes in error, and the queue pair is in error.
    fn fail_receive(&mut self, fault: ReceiveFault);
    /// Whether all these bytes exist under the key and may be accessed like this. Called before any is
    /// touched, and not for zero bytes.
    ///
    /// # Errors
    /// What the peer is told.
    fn check_remote(&mut self, key: u32, address: u64, length: u32, access: Remote) -> Result<(), Refusal>;
    /// A Read of so many bytes is accepted. A duplicate of it is answered without another call.
    fn accept_read(&mut self, _length: u32) {}
    /// Writes a part of a message. All of it has been checked, but the key may have been revoked since.
    ///
    /// # Errors
    /// What the peer is told.
    fn write(&mut self, key: u32, address: u64, payload: Payload<'_>) -> Result<(), Refusal>;
    /// Adds to eight bytes at a multiple of eight and returns what was there. Has been checked.
    ///
    /// # Errors
    /// What the peer is told.
    fn fetch_add(&mut self, key: u32, address: u64, add: u64) -> Result<u64, Refusal>;
    /// Replaces eight bytes at a multiple of eight if they are as expected, and returns what was there. Has
    /// been checked.
    ///
    /// # Errors
    /// What the peer is told.
    fn compare_swap(&mut self, key: u32, address: u64, compare: u64, swap: u64) -> Result<u64, Refusal>;
    /// Writes eight bytes at a multiple of eight in one piece. Has been checked.
    ///
    /// # Errors
    /// What the peer is told.
    fn atomic_write(&mut self, key: u32, address: u64, value: [u8; 8]) -> Result<(), Refusal>;
    /// Makes earlier writes visible or durable. Has been checked.
    ///
    /// # Errors
    /// What the peer is told.
    fn flush(
        &mut self,
        key: u32,
        address: u64,
        length: u32,
        placement: u8,
        selectivity: u8,
    ) -> Result<(), Refusal>;
    /// Invalidates a key at the end of a Send.
    ///
    /// # Errors
    /// What the peer is told; the receive fails with [`ReceiveFault::InvalidRequest`].
    fn invalidate(&mut self, key: u32) -> Result<(), Refusal>;
}

/// Why a packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The packet is of no request that the service has.
    Opcode,
    /// The packet's Q_Key is not the queue pair's.
    QueueKey,
    /// The responder has refused a request and is in error.
    Failed,
    /// A duplicate read or atomic whose answer is not known any more, or is about to go out anyway.
    Unanswerable,
    /// The packet's payload cannot be had.
    Missing,
    /// Unreliable connection: packets before it are missing, or the rest of its message was dropped.
    Gap,
    /// Unreliable connection: there was no receive, or one that is too small.
    NoReceive,
    /// Unreliable connection: the request is not valid.
    Invalid,
    /// Unreliable connection: access to memory is not allowed.
    Access,
}

/// What has become of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// The packet was carried out.
    Accepted,
    /// The packet had been carried out before, and is answered again.
    Duplicate,
    /// A packet before it is missing.
    OutOfSequence,
    /// There is no receive for it; the peer is to try again.
    NotReady,
    /// Reads before it have to be answered first, and nothing has happened. Its user takes it, and what
    /// follows it, once more when some answers have gone out; or else has the peer send it again
    /// ([`Responder::ask_again`]).
    Postponed,
    /// The packet is refused, and the queue pair is in error once the NAK, of which an unreliable connection
    /// has none, has gone out. An invalid request is an asynchronous "request error", a remote access error
    /// an "access error"; an operational error was this end's.
    Refused(NakCode),
    /// The packet was dropped without an answer.
    Dropped(DropReason),
}

/// What a responder has to say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PendingReply {
    /// No reply is pending.
    Nothing,
    /// An acknowledgement, which may wait a little and cover more.
    Acknowledgement,
    /// Something that the peer waits for.
    Response,
}

/// The message that is being received.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    Send { offset: u32, room: u64 },
    Write { key: u32, address: u64, length: u32, remaining: u32 },
}

/// What the peer has been told of the expected packet.
#[derive(Clone, Copy, Debug)]
enum SentNak {
    /// The packet is missing. `highest`: the highest number of those dropped since this was told.
    Missing { highest: u32 },
    /// There is no receive for it.
    NotReady,
}

/// The responder of a connected queue pair. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Responder {
    options: ResponderOptions,
    /// The packet sequence number of the next request.
    expected: u32,
    /// Messages completed, modulo 2^24.
    msn: u32,
    message: Message,
    /// XRC: the shared receive queue that the last packet named.
    shared_queue: u32,
    /// A receive that was taken for a message that was dropped; the next one gets it.
    spare_receive: Option<u64>,
    /// Unreliable connection: the rest of a message is being dropped.
    dropping: bool,
    /// Answers to reads and atomics, in the order of their packet sequence numbers.
    responses: VecDeque<Response>,
    /// How many of the answers to reads and atomics are to new requests.
    new_responses: u8,
    /// Results of the last atomics, by packet sequence number, for duplicates.
    atomics: VecDeque<(u32, u64)>,
    nak: Option<Nak>,
    /// What has been told of the expected packet; those after it are dropped silently then.
    told: Option<SentNak>,
    pending_acknowledgement: PendingReply,
    /// Whether a read or an atomic was carried out.
    has_answered: bool,
    failed: bool,
}

impl Responder {
    /// A responder that has received nothing.
    ///
    /// # Panics
    /// If the MTU is zero.
    pub fn new(options: ResponderOptions) -> Responder {
        assert!(options.mtu != 0, "an MTU");
        Responder {
            // IB-RC-RSP-1
            expected: options.expected_psn & psn::MASK,
            options,
            msn: 0,
            message: Message::None,
            shared_queue: 0,
            spare_receive: None,
            dropping: false,
            responses: VecDeque::new(),
            new_responses: 0,
            atomics: VecDeque::new(),
            nak: None,
            told: None,
            pending_acknowledgement: PendingReply::Nothing,
            has_answered: false,
            failed: false,
        }
    }

    /// Changes attributes of a queue pair in use; they hold from now on.
    pub fn reconfigure(&mut self, access: Access, max_reads: u8, min_rnr_timer: u8) {
        self.options = ResponderOptions { access, max_reads, min_rnr_timer, ..self.options };
    }

    /// Packets carry so many bytes from now on. Before the first one only.
    ///
    /// # Panics
    /// If it is zero.
    pub fn set_mtu(&mut self, mtu: u32) {
        assert!(mtu != 0, "an MTU");
        self.options.mtu = mtu;
    }

    /// Whether a request with this packet sequence number shows that the two sides have not agreed on the
    /// first one: no request has been carried out, and this is not one of the first that a requester sends.
    #[cold]
    pub fn has_wrong_start(&self, number: u32) -> bool {
        /// No requester has so many packets under way. A gap of fewer may be a loss.
        const MOST_UNDER_WAY: u32 = 1 << 16;
        let is_unused = self.msn == 0
            && matches!(self.message, Message::None)
            && self.expected == self.options.expected_psn & psn::MASK;
        is_unused && psn::distance(self.expected, number) >= MOST_UNDER_WAY
    }

    /// The packet sequence number of the next request.
    pub fn expected_psn(&self) -> u32 {
        self.expected
    }

    /// True once a request has been refused.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// True while a receive is taken and not completed: between the first and the last packet of a message,
    /// or when one waits for the next message. A queue pair that goes away has to flush it.
    pub fn holds_receive(&self) -> bool {
        self.spare_receive.is_some() || matches!(self.message, Message::Send { .. })
    }

    /// Whether a Send of one packet with this packet sequence number is the next request, and nothing before
    /// it is under way, refused or unanswered: its user may carry it out by itself, and say so
    /// ([`Responder::took_send`]). Of reliable connections.
    #[inline]
    pub fn is_clear_for(&self, number: u32, length: u32) -> bool {
        number == self.expected
            && matches!(self.message, Message::None)
            && self.spare_receive.is_none()
            && self.responses.is_empty()
            && self.nak.is_none()
            && !self.failed
            && length <= self.options.mtu
    }

    /// The user of the responder has carried out a Send [that it might](Responder::is_clear_for), whose
    /// sender asks for an acknowledgement.
    // IB-RC-RSP-50
    #[inline]
    pub fn took_send(&mut self) {
        self.told = None;
        // IB-RC-RSP-1, IB-RC-RSP-32
        self.expected = psn::add(self.expected, 1);
        // IB-RC-RSP-55
        self.msn = psn::add(self.msn, 1);
        self.pending_acknowledgement = self.pending_acknowledgement.max(PendingReply::Acknowledgement);
    }

    /// The user of the responder has taken a receive of `room` bytes: the next message that takes one gets
    /// it.
    pub fn give_receive(&mut self, room: u64) {
        self.spare_receive = Some(room);
    }

    /// Takes a packet of the peer; [`super::goes_to_requester`] must not hold.
    #[inline]
    pub fn receive(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Verdict {
        let opcode = packet.opcode();
        // IB-PKT-47
        if opcode.service() != self.options.service.wire() || opcode.operation().is_response() {
            return Verdict::Dropped(DropReason::Opcode);
        }
        if self.failed {
            return Verdict::Dropped(DropReason::Failed);
        }
        match self.options.service {
            Service::Rc | Service::Xrc => self.receive_reliable(packet, host),
            Service::Uc => self.receive_unreliable(packet, host),
        }
    }

    #[inline]
    fn receive_reliable(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Verdict {
        let number = packet.bth().psn();
        // IB-RC-RSP-2
        if number != self.expected {
            return if psn::precedes(number, self.expected) {
                self.duplicate(packet, host)
            } else {
                self.out_of_sequence(number, packet.bth().ack_request())
            };
        }
        self.told = None;
        self.nak = None;
        if !self.responses.is_empty() && changes_memory(packet) && !self.keep_reads(host) {
            return Verdict::Postponed;
        }
        match self.execute(packet, host) {
            // IB-RC-RSP-50
            Ok(()) => {
                let operation = packet.opcode().operation();
                if packet.bth().ack_request() && (operation.is_send() || operation.is_write()) {
                    // Asked for amid a message, an acknowledgement is one that the requester's window waits
                    // for.
                    let reply = if packet.opcode().position().ends() {
                        PendingReply::Acknowledgement
                    } else {
                        PendingReply::Response
                    };
                    self.pending_acknowledgement = self.pending_acknowledgement.max(reply);
                }
                Verdict::Accepted
            }
            Err(execute::Failure::NotReady) => {
                self.nak = Some(Nak::NotReady);
                self.told = Some(SentNak::NotReady);
                // IB-RC-RSP-36
                Verdict::NotReady
            }
            Err(execute::Failure::Missing) => Verdict::Dropped(DropReason::Missing),
            Err(execute::Failure::Refused(code, fault)) => {
                // IB-RC-RSP-28
                if let (true, Some(fault)) = (self.holds_receive(), fault) {
                    host.fail_receive(fault);
                }
                self.refuse(number, code)
            }
        }
    }

    /// The expected packet has come and was not kept: the peer is told to send it again, behind the answers
    /// that are to go out. That costs the peer one of its retries. Where it is told already that there is no
    /// receive for that packet, it will send it again anyway.
    pub fn ask_again(&mut self) {
        if matches!(self.told, Some(SentNak::NotReady)) {
            return;
        }
        self.nak = Some(Nak::Sequence);
        self.told = Some(SentNak::Missing { highest: self.expected });
    }

    /// Whether a request comes before the expected one: it was carried out before.
    #[inline]
    pub fn is_past(&self, packet: &Packet<'_>) -> bool {
        psn::precedes(packet.bth().psn(), self.expected)
    }

    /// Whether a request is the next one.
    #[inline]
    pub fn is_next(&self, packet: &Packet<'_>) -> bool {
        packet.bth().psn() == self.expected
    }

    /// The packet sequence number of what follows a request: a read takes as many as its answer has packets.
    pub fn number_behind(&self, packet: &Packet<'_>) -> u32 {
        let is_read = packet.opcode().operation() == Opcode::ReadRequest;
        let read = packet.reth().filter(|_| is_read);
        psn::add(packet.bth().psn(), read.map_or(1, |reth| packets(reth.length.get(), self.options.mtu)))
    }

    fn refuse(&mut self, number: u32, code: NakCode) -> Verdict {
        self.message = Message::None;
        self.spare_receive = None;
        self.nak = Some(Nak::Refused(number, code));
        // IB-RC-RSP-12, IB-RC-RSP-29
        self.failed = true;
        Verdict::Refused(code)
    }

    /// A packet after the expected one. That one is missing is told once, and again each time that the
    /// requester repeats packets and asks: then what was told is lost, or what was sent for it.
    fn out_of_sequence(&mut self, number: u32, asks: bool) -> Verdict {
        // IB-RC-RSP-3, IB-RC-RSP-4
        match self.told {
            None => {
                self.nak = Some(Nak::Sequence);
                self.told = Some(SentNak::Missing { highest: number });
            }
            Some(SentNak::Missing { highest }) if psn::precedes(highest, number) => {
                self.told = Some(SentNak::Missing { highest: number });
            }
            Some(SentNak::Missing { .. }) if asks => {
                // Once in a round of repetition: the packets behind it were under way before the requester
                // hears this.
                self.nak = Some(Nak::Sequence);
                self.told = Some(SentNak::Missing { highest: number });
            }
            Some(SentNak::Missing { .. } | SentNak::NotReady) => {}
        }
        Verdict::OutOfSequence
    }

    /// A packet that was carried out before. Sends and writes are only acknowledged; reads read again; of
    /// atomics the result is known.
    fn duplicate(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Verdict {
        let number = packet.bth().psn();
        let response = match packet.opcode().operation() {
            Opcode::ReadRequest => self.repeat_read(packet, host),
            Opcode::CompareSwap | Opcode::FetchAdd => self.repeat_atomic(number),
            // IB-RC-RSP-47
            Opcode::Flush | Opcode::AtomicWrite => Some(Response::empty(number, self.msn)),
            _ => {
                // IB-RC-RSP-5, IB-RC-RSP-11
                self.pending_acknowledgement = PendingReply::Response;
                return Verdict::Duplicate;
            }
        };
        match response {
            Some(response) if self.queue_repeated(response) => Verdict::Duplicate,
            _ => Verdict::Dropped(DropReason::Unanswerable),
        }
    }

    /// The state of an unreliable connection: a gap drops the message, and the next one begins anew.
    fn receive_unreliable(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Verdict {
        let (number, starts) = (packet.bth().psn(), packet.opcode().position().starts());
        // IB-UC-6, IB-UC-7, IB-UC-8
        if number != self.expected || starts {
            self.abandon_message();
            self.dropping = !starts;
        }
        self.expected = number;
        if self.dropping {
            self.expected = psn::add(number, 1);
            return Verdict::Dropped(DropReason::Gap);
        }
        match self.execute(packet, host) {
            Ok(()) => Verdict::Accepted,
            // Left to the next message, a receive that cannot be written would swallow that and every other.
            // IB-UC-14
            Err(execute::Failure::Refused(code, Some(fault @ ReceiveFault::Protection))) => {
                host.fail_receive(fault);
                self.message = Message::None;
                self.failed = true;
                Verdict::Refused(code)
            }
            // IB-UC-2, IB-UC-10, IB-UC-11, IB-UC-12
            Err(failure) => {
                self.abandon_message();
                self.dropping = true;
                self.expected = psn::add(number, 1);
                Verdict::Dropped(match failure {
                    execute::Failure::NotReady | execute::Failure::Refused(_, Some(ReceiveFault::Length)) => {
                        DropReason::NoReceive
                    }
                    execute::Failure::Missing => DropReason::Missing,
                    execute::Failure::Refused(NakCode::RemoteAccessError, _) => DropReason::Access,
                    execute::Failure::Refused(..) => DropReason::Invalid,
                })
            }
        }
    }

    /// Forgets the message that has begun, but not the receive that was taken for it.
    fn abandon_message(&mut self) {
        if let Message::Send { room, .. } = self.message {
            // IB-UC-9
            self.spare_receive = Some(room);
        }
        self.message = Message::None;
    }

    /// Takes the bytes of reads that are not answered before anything behind them changes them, as adapters
    /// do, which answer a read when it arrives. False if they have to be answered first. Reads that are
    /// repeated read again anyway.
    // PRACTICE-ORDER-2
    fn keep_reads(&mut self, host: &mut impl ResponderHost) -> bool {
        self.responses.iter_mut().filter_map(Response::unkept).all(|(source, kept)| match host.keep(source) {
            Keep::At(place) => {
                *kept = Some(place);
                true
            }
            Keep::Later => false,
            Keep::Needless => true,
        })
    }

    /// Whether anything that its user keeps is still to be sent.
    pub fn keeps(&self) -> bool {
        self.responses.iter().any(Response::is_kept)
    }

    /// What the responder has to say.
    #[inline]
    pub fn pending_reply(&self) -> PendingReply {
        if self.nak.is_some() || !self.responses.is_empty() {
            PendingReply::Response
        } else {
            self.pending_acknowledgement
        }
    }
}

/// Whether a request changes memory, or lets the program do so, since it is told.
fn changes_memory(packet: &Packet<'_>) -> bool {
    !matches!(packet.opcode().operation(), Opcode::ReadRequest | Opcode::Flush)
}

#[cfg(test)]
mod tests;
