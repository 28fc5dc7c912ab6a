//! A request that is next in sequence: checked, then carried out.

use adverb_wire::ib::header::{Feth, NakCode};
use adverb_wire::ib::opcode::{Operation as Opcode, Position};
use adverb_wire::ib::packet::Packet;

use super::super::{MAX_MESSAGE, packets, psn};
use super::reply::Response;
use super::{
    Delivery, DeliveryKind, Message, ReadSource, ReceiveFault, Refusal, Remote, Responder, ResponderHost,
};

/// Why a request is not carried out. Nothing has been touched, and the request is still the next one.
pub(super) enum Failure {
    /// There is no receive.
    NotReady,
    /// The request's payload cannot be had.
    Missing,
    /// What the peer is told, and how a receive that was taken ends.
    Refused(NakCode, Option<ReceiveFault>),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Missing => Failure::Missing,
            _ => Failure::Refused(refusal.code(), Some(ReceiveFault::InvalidRequest)),
        }
    }
}

/// A request that is against the rules.
const INVALID: Failure = Failure::Refused(NakCode::InvalidRequest, Some(ReceiveFault::InvalidRequest));

fn valid(condition: bool) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(INVALID) }
}

fn permitted(is: bool, access: Remote, host: &mut impl ResponderHost) -> Result<(), Failure> {
    if !is {
        host.forbidden(access);
    }
    valid(is)
}

impl Responder {
    #[inline]
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl ResponderHost,
    ) -> Result<(), Failure> {
        let operation = packet.opcode().operation();
        // IB-RC-RSP-13
        let in_order = match self.message {
            Message::None => packet.opcode().position().starts(),
            Message::Send { .. } => operation.is_send() && !packet.opcode().position().starts(),
            Message::Write { .. } => operation.is_write() && !packet.opcode().position().starts(),
        };
        valid(in_order)?;
        if let Some(header) = packet.xrceth() {
            let number = header.shared_receive_queue();
            // A message is for one queue.
            // IB-XRC-5
            valid(matches!(self.message, Message::None) || number == self.shared_queue)?;
            // IB-XRC-4
            host.choose_queue(number)?;
            self.shared_queue = number;
        }
        if operation.is_send() {
            self.take_send(packet, host)
        } else if operation.is_write() {
            self.take_write(packet, host)
        } else {
            match operation {
                Opcode::ReadRequest => self.read(packet, host),
                Opcode::CompareSwap | Opcode::FetchAdd => self.atomic(packet, host),
                Opcode::AtomicWrite => self.atomic_write(packet, host),
                Opcode::Flush => self.flush(packet, host),
                _ => Err(INVALID),
            }
        }
    }

    /// The length that a packet of a message may have.
    #[inline]
    fn check_length(&self, packet: &Packet<'_>) -> Result<u32, Failure> {
        let (length, mtu) = (packet.payload().len(), self.options.mtu as usize);
        valid(match packet.opcode().position() {
            // IB-RC-RSP-15, IB-PKT-39, IB-PKT-40
            Position::First | Position::Middle => length == mtu,
            Position::Last => (1..=mtu).contains(&length),
            Position::Only => length <= mtu,
        })?;
        Ok(length as u32)
    }

    #[inline]
    fn take_send(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        let (offset, room) = match self.message {
            Message::Send { offset, room } => (offset, room),
            // There may be one left of a message that was dropped.
            _ => match self.spare_receive.take().or_else(|| host.take_receive()) {
                Some(room) => {
                    self.message = Message::Send { offset: 0, room };
                    (0, room)
                }
                // IB-RC-RSP-35, IB-RC-RSP-33
                None => return Err(Failure::NotReady),
            },
        };
        let length = self.check_length(packet)?;
        // Both are at most 2^31.
        let end = offset + length;
        valid(end <= MAX_MESSAGE)?;
        // IB-RC-RSP-26
        if u64::from(end) > room {
            host.too_long(end, packet.opcode().position().ends());
            return Err(Failure::Refused(NakCode::InvalidRequest, Some(ReceiveFault::Length)));
        }
        // IB-RC-RSP-27
        if length != 0 {
            match host.place_receive(offset, packet.payload()) {
                Ok(()) => {}
                Err(Refusal::Missing) => {
                    // The packet may come once more.
                    if offset == 0 {
                        self.abandon_message();
                    }
                    return Err(Failure::Missing);
                }
                Err(_) => {
                    let fault = Some(ReceiveFault::Protection);
                    return Err(Failure::Refused(NakCode::RemoteOperationalError, fault));
                }
            }
        }
        if packet.opcode().position().ends() {
            let invalidated = packet.ieth();
            if let Some(key) = invalidated {
                // IB-RC-RSP-39, IB-RC-RSP-40
                host.invalidate(key)?;
            }
            self.message = Message::None;
            // IB-RC-RSP-37, IB-UC-15
            host.complete_receive(Delivery {
                length: end,
                immediate: packet.immediate(),
                invalidated,
                kind: DeliveryKind::Send,
                solicited: packet.bth().solicited(),
            });
        } else {
            self.message = Message::Send { offset: end, room };
        }
        self.accept(packet, 1);
        Ok(())
    }

    fn take_write(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        // IB-RC-RSP-19
        permitted(self.options.access.write, Remote::Write, host)?;
        let (key, address, total, remaining) = match (self.message, packet.reth()) {
            (Message::Write { key, address, length, remaining }, _) => (key, address, length, remaining),
            (_, Some(reth)) => {
                let length = reth.length.get();
                (reth.rkey.get(), reth.address.get(), length, length)
            }
            _ => return Err(INVALID),
        };
        let immediate = packet.immediate();
        // The receive is taken with the last packet, but before anything else of it can fail for good.
        if immediate.is_some() && self.spare_receive.is_none() {
            self.spare_receive = Some(host.take_receive().ok_or(Failure::NotReady)?);
        }
        let length = self.check_length(packet)?;
        let (starts, ends) = (packet.opcode().position().starts(), packet.opcode().position().ends());
        // IB-RC-RSP-16, IB-RC-RSP-17
        valid(total <= MAX_MESSAGE && if ends { length == remaining } else { length < remaining })?;
        // IB-RC-RSP-21, IB-RC-RSP-22
        if starts && total != 0 {
            host.check_remote(key, address, total, Remote::Write)?;
        }
        if length != 0 {
            // IB-RC-RSP-25, IB-RC-RSP-31
            host.write(key, address, packet.payload())?;
        }
        self.message = if ends {
            Message::None
        } else {
            let address = address.wrapping_add(u64::from(length));
            Message::Write { key, address, length: total, remaining: remaining - length }
        };
        if immediate.is_some() {
            // IB-RC-RSP-34
            self.spare_receive = None;
            host.complete_receive(Delivery {
                length: total,
                immediate,
                invalidated: None,
                // IB-RC-RSP-38, IB-UC-13
                kind: DeliveryKind::WriteWithImmediate,
                solicited: packet.bth().solicited(),
            });
        }
        self.accept(packet, 1);
        Ok(())
    }

    fn read(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        permitted(self.options.access.read, Remote::Read, host)?;
        self.check_resources()?;
        let reth = packet.reth().ok_or(INVALID)?;
        let (key, address, length) = (reth.rkey.get(), reth.address.get(), reth.length.get());
        valid(length <= MAX_MESSAGE)?;
        if length != 0 {
            host.check_remote(key, address, length, Remote::Read)?;
        }
        host.accept_read(length);
        let number = self.expected;
        self.accept(packet, packets(length, self.options.mtu));
        let rest = ReadSource { key, address, length, shared_queue: self.shared_queue, kept: None };
        self.queue_new(Response::read(number, self.msn, rest));
        Ok(())
    }

    fn atomic(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        permitted(self.options.access.atomic, Remote::Atomic, host)?;
        self.check_resources()?;
        let header = packet.atomic_eth().ok_or(INVALID)?;
        let (key, address) = (header.rkey.get(), header.address.get());
        // IB-RC-RSP-24
        valid(address % 8 == 0)?;
        host.check_remote(key, address, 8, Remote::Atomic)?;
        let original = if packet.opcode().operation() == Opcode::FetchAdd {
            host.fetch_add(key, address, header.swap_or_add.get())?
        } else {
            host.compare_swap(key, address, header.compare.get(), header.swap_or_add.get())?
        };
        let number = self.expected;
        self.accept(packet, 1);
        if self.atomics.len() >= usize::from(self.options.max_reads) {
            // IB-RC-RSP-9, IB-RC-RSP-10
            self.atomics.pop_front();
        }
        self.atomics.push_back((number, original));
        self.queue_new(Response::atomic(number, self.msn, original));
        Ok(())
    }

    fn atomic_write(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        permitted(self.options.access.write, Remote::Write, host)?;
        self.check_resources()?;
        let reth = packet.reth().ok_or(INVALID)?;
        let value = packet.payload().bytes().and_then(|bytes| bytes.try_into().ok()).ok_or(INVALID)?;
        let (key, address) = (reth.rkey.get(), reth.address.get());
        // IB-RC-RSP-47
        valid(reth.length.get() == 8 && address % 8 == 0)?;
        host.check_remote(key, address, 8, Remote::Write)?;
        host.atomic_write(key, address, value)?;
        self.accept_empty(packet);
        Ok(())
    }

    fn flush(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) -> Result<(), Failure> {
        let (Some(feth), Some(reth)) = (packet.feth(), packet.reth()) else { return Err(INVALID) };
        let (placement, selectivity) = (feth.placement(), feth.selectivity());
        permitted(self.options.access.flush, Remote::Flush { placement, selectivity }, host)?;
        self.check_resources()?;
        // IB-RC-RSP-46
        let placements = Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE;
        valid(placement != 0 && placement & !placements == 0 && selectivity <= Feth::REGION)?;
        let (key, address, length) = (reth.rkey.get(), reth.address.get(), reth.length.get());
        host.check_remote(key, address, length, Remote::Flush { placement, selectivity })?;
        host.flush(key, address, length, placement, selectivity)?;
        self.accept_empty(packet);
        Ok(())
    }

    /// More reads and atomics than agreed on are against the rules; the agreed ones always fit.
    fn check_resources(&self) -> Result<(), Failure> {
        // IB-RC-RSP-20
        valid(self.new_responses < self.options.max_reads)
    }

    fn accept_empty(&mut self, packet: &Packet<'_>) {
        let number = self.expected;
        self.accept(packet, 1);
        self.queue_new(Response::empty(number, self.msn));
    }

    /// Goes on to the next request. Reads count as messages when they are accepted.
    #[inline]
    pub(super) fn accept(&mut self, packet: &Packet<'_>, count: u32) {
        // IB-RC-RSP-1, IB-RC-RSP-32
        self.expected = psn::add(self.expected, count);
        // IB-RC-RSP-55
        self.msn = psn::add(self.msn, u32::from(packet.opcode().position().ends()));
    }
}
