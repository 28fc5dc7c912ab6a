//! What a requester sends: the packet at its cursor, or a probe.

use std::time::Duration;

use adverb_wire::ib::header::{Bth, HeaderWriter, MAX_HEADER, Xrceth, padding};

use super::super::request::{Answer, Entry, Operation, Outbound, Source};
use super::super::{Service, opcode, psn};
use super::{Requester, Suspension};

/// An acknowledgement is asked for at least when so much has gone out without.
const ACKNOWLEDGE_EVERY: u32 = 256 * 1024;

impl Requester {
    /// The next packet that may go out now, its headers written to the buffer. `None` if there is none:
    /// nothing is entered, or a fence, the limit of reads, credits, a receiver that is not ready, or a
    /// suspension hold it back.
    ///
    /// `room` is what the congestion window still has for this packet and those behind it; a packet goes out
    /// if there is any, and the room decides when an acknowledgement is asked for. Without room there is
    /// still a probe, when one is due: it is what brings room again.
    pub fn poll_transmit(
        &mut self,
        now: Duration,
        room: u32,
        buffer: &mut [u8; MAX_HEADER],
    ) -> Option<Outbound> {
        if self.failed {
            return None;
        }
        if let Some(until) = self.waiting_until {
            if now < until {
                return None;
            }
            self.stop_waiting(now);
        }
        if self.probe {
            self.probe = false;
            if self.is_in_flight() {
                return Some(self.write_probe(buffer));
            }
        }
        if room == 0 {
            return None;
        }
        let entry = self.entries.get(self.cursor.index)?;
        let (answer, number) = (entry.request.operation.answer(), self.cursor.packet);
        if (number == 0 && !self.may_begin(entry)) || entry.fault.is_some() {
            return None;
        }
        let (end, asks) = match answer {
            Answer::Acknowledgement => (number + 1, number + 1 == entry.packets),
            // IB-RC-REQ-14
            _ if self.reads >= self.options.max_reads.max(1) => return None,
            Answer::Data => {
                ((number / self.chunk() + 1).saturating_mul(self.chunk()).min(entry.packets), true)
            }
            Answer::Original | Answer::Empty => (1, true),
        };
        let outstanding = psn::distance(self.oldest, self.cursor.psn);
        // IB-RC-REQ-4
        if outstanding + (end - number) > psn::WINDOW {
            return None;
        }
        let cost = entry.cost(number, end, self.options.mtu);
        let unrequested = self.unrequested.saturating_add(cost);
        // Asking at half of what is left, and again and again, keeps acknowledgements coming before the
        // window is full. IB-RC-REQ-13, IB-UC-5
        let asks = self.options.service.is_reliable()
            && (asks || unrequested >= room.saturating_sub(cost) || unrequested >= ACKNOWLEDGE_EVERY);
        let mut outbound = self.write(self.cursor.index, number, end, asks, buffer);
        outbound.cost = cost;
        outbound.repeated = self.cursor.psn != self.sent;
        self.advance(now, end, cost, asks, answer != Answer::Acknowledgement, &mut outbound);
        Some(outbound)
    }

    /// Whether the receiver needs a receive for the next packet: the first of a Send, the last of a Write
    /// with immediate data.
    #[inline]
    pub fn is_to_take_receive(&self) -> bool {
        let number = self.cursor.packet;
        self.entries.get(self.cursor.index).is_some_and(|entry| match entry.request.operation {
            Operation::Send { .. } => number == 0,
            Operation::Write { immediate: Some(_), .. } => number + 1 == entry.packets,
            _ => false,
        })
    }

    /// Whether the request that the cursor stands before may begin.
    #[inline]
    fn may_begin(&self, entry: &Entry) -> bool {
        let begun = self.cursor.psn != self.sent;
        // IB-RC-REQ-50
        if self.suspension != Suspension::No && !begun {
            return false;
        }
        // IB-RC-REQ-15
        if entry.request.fence && self.reads != 0 {
            return false;
        }
        // PRACTICE-ORDER-2
        if entry.request.operation.changes_memory() && self.has_long_read() {
            return false;
        }
        match self.credit_limit {
            // With nothing on its way, one message may always go: its answer brings the credits of now.
            // IB-RC-REQ-48
            Some(limit) if entry.request.operation.takes_receive() && self.is_in_flight() => {
                !psn::precedes(limit, entry.ssn)
            }
            _ => true,
        }
    }

    /// Whether a read is under way that nothing overtakes.
    #[inline]
    pub(super) fn has_long_read(&self) -> bool {
        self.long_read.is_some_and(|read| self.oldest().is_some_and(|oldest| read >= oldest))
    }

    /// Writes the headers of packet `number` of a request; a read asks for its packets up to `end`.
    fn write(
        &self,
        index: usize,
        number: u32,
        end: u32,
        asks: bool,
        buffer: &mut [u8; MAX_HEADER],
    ) -> Outbound {
        let (entry, mtu) = (&self.entries[index], self.options.mtu);
        let has_payload = entry.request.operation.answer() == Answer::Acknowledgement;
        let length = if has_payload { entry.bytes(number, number + 1, mtu) } else { 0 };
        let opcode = opcode(self.options.service, entry.opcode(number));
        let last = number + 1 == entry.packets;
        // IB-RC-REQ-16, IB-PKT-11
        let solicited = entry.request.solicited && last && entry.request.operation.takes_receive();
        let bth =
            // IB-RC-REQ-17, IB-PKT-39
            Bth::new(opcode, self.options.pkey, self.options.destination, psn::add(entry.first_psn, number))
                .with_solicited(solicited)
                .with_pad_for(length as usize)
                .with_ack_request(asks);
        let mut writer = HeaderWriter::new(buffer);
        writer.put(&bth);
        // IB-XRC-1, IB-XRC-2
        if self.options.service == Service::Xrc {
            writer.put(&Xrceth::new(entry.request.shared_queue));
        }
        entry.write_extensions(number, end, mtu, &mut writer);
        let sequence = entry.request.sequence;
        let source = Source { sequence, offset: number.saturating_mul(mtu), length };
        Outbound {
            header: writer.len(),
            payload: (length != 0).then_some(source),
            pad: padding(length as usize),
            sequence,
            cost: 0,
            repeated: true,
            finished: false,
        }
    }

    /// Moves the cursor behind the packets that go out.
    #[inline]
    fn advance(
        &mut self,
        now: Duration,
        end: u32,
        cost: u32,
        asks: bool,
        read: bool,
        outbound: &mut Outbound,
    ) {
        let was_in_flight = self.is_in_flight();
        let repeated = outbound.repeated;
        let entry = &mut self.entries[self.cursor.index];
        entry.repeated |= repeated;
        let (first, count) = (self.cursor.psn, end - self.cursor.packet);
        self.cursor.psn = psn::add(first, count);
        self.cursor.packet = end;
        if end == entry.packets {
            self.cursor.index += 1;
            self.cursor.packet = 0;
            if entry.request.operation.answer() == Answer::Data
                && entry.request.length > self.longest_overtaken
            {
                self.long_read = Some(entry.request.sequence);
            }
        }
        // Of what is sent again, a read may reach further than before.
        if !repeated || psn::distance(self.oldest, self.cursor.psn) > psn::distance(self.oldest, self.sent) {
            self.sent = self.cursor.psn;
        }
        // IB-UC-3, IB-UC-4
        if self.options.service == Service::Uc {
            self.oldest = self.cursor.psn;
            if self.cursor.index == 1 {
                self.entries.pop_front();
                self.cursor.index = 0;
                outbound.finished = true;
            }
            return;
        }
        self.in_flight = self.in_flight.saturating_add(cost);
        self.unrequested = if asks { 0 } else { self.unrequested.saturating_add(cost) };
        self.reads += u8::from(read);
        if !was_in_flight {
            self.restart(now);
            self.probes = 0;
        }
        if asks && !repeated && self.sample.is_none() {
            self.sample = Some((first, now));
        }
    }

    /// A packet that asks what has arrived. The last one, if it is lost, or lost with some before it, is then
    /// answered by an acknowledgement or a NAK. A read or atomic is asked for again itself; and so is, in
    /// turn, the oldest packet, since a responder says only once that something is missing.
    fn write_probe(&mut self, buffer: &mut [u8; MAX_HEADER]) -> Outbound {
        let front = &self.entries[0];
        let (mut index, mut number) = (0, self.answered);
        if front.request.operation.answer() == Answer::Acknowledgement && self.probes % 2 == 1 {
            (index, number) = match self.cursor.packet.checked_sub(1) {
                Some(number) => (self.cursor.index, number),
                None => (self.cursor.index - 1, self.entries[self.cursor.index - 1].packets - 1),
            };
            // The last packet that went out may be one of a read request: then its first.
            if self.entries[index].request.operation.answer() == Answer::Data {
                number -= number % self.chunk();
            }
        }
        let chunk = self.chunk();
        let entry = &mut self.entries[index];
        entry.repeated = true;
        let end = (number / chunk + 1).saturating_mul(chunk).min(entry.packets);
        self.write(index, number, end, true, buffer)
    }
}
