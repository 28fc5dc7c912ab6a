//! The requester of a connected queue pair: requests into packets, and what comes back (volume 1, sections 9.7.3 to
//! 9.7.7 for RC, 9.8.2 for UC).
//!
//! Each request takes consecutive packet sequence numbers, a read one for each packet of its response. What has been
//! sent and not been answered is remembered as a range of these numbers. When something is lost, sending simply begins
//! anew at the oldest number without an answer ("go back n"), so there is one cursor and no list of packets.

mod receive;

use std::collections::VecDeque;
use std::time::Duration;

use adverb_wire::ib::header::{Bth, HeaderWriter, ICRC_LEN, MAX_HEADER, padding};
use adverb_wire::ib::packet::Packet;

use super::request::{Answer, Entry, Outbound, Request, Source};
use super::window::smooth;
use super::{CompletionStatus, LocalFault, Service, opcode, psn, timer};

/// Below this, a timeout would rather find a busy machine than a lost packet. The standard lets timers run up to four
/// times as long as asked for, and software clocks are coarse.
// IB-RC-REQ-40
const LEAST_TIMEOUT: Duration = Duration::from_millis(4);
/// How long a requester hears nothing, at least, before it sends a probe.
const LEAST_PROBE: Duration = Duration::from_millis(1);
/// The same while no round trip has been measured.
const INITIAL_PROBE: Duration = Duration::from_millis(5);
/// Each probe without an answer doubles the time to the next, up to this many times.
const MAX_PROBE_DOUBLINGS: u32 = 8;
/// An acknowledgement is asked for at least when so much has gone out without.
const ACKNOWLEDGE_EVERY: u32 = 256 * 1024;

/// Attributes of a requester.
#[derive(Clone, Copy, Debug)]
pub struct RequesterOptions {
    /// The service.
    pub service: Service,
    /// Bytes of payload in a packet, 256 to 4096.
    pub mtu: u32,
    /// The first packet sequence number.
    pub first_psn: u32,
    /// The peer's queue pair.
    pub destination: u32,
    /// The partition key that packets carry.
    pub pkey: u16,
    /// Code of the local acknowledgement timeout, see [`timer::acknowledgement`].
    pub timeout: u8,
    /// How often something is repeated without progress.
    pub retry_count: u8,
    /// The same when the responder is not ready; [`timer::RETRY_FOREVER`].
    pub rnr_retry: u8,
    /// Most reads and atomics outstanding. Zero counts as one: the responder will refuse it.
    pub max_reads: u8,
    /// Most requests that are entered and not complete.
    pub room: u32,
    /// A longer read goes out as several read requests of at most this many bytes (rounded down to whole packets), so
    /// that the responses come at the pace of the window. On the wire and to the responder they are separate reads.
    pub read_chunk: u32,
}

/// What a requester needs of its user.
pub trait RequesterHost {
    /// Puts a part of a read's data in its place.
    ///
    /// # Errors
    /// The request then completes with the fault's status, and the requester has failed.
    fn place(&mut self, sequence: u64, offset: u32, payload: &[u8]) -> Result<(), LocalFault>;
    /// Puts in its place what the target of an atomic operation held before.
    ///
    /// # Errors
    /// As of [`RequesterHost::place`].
    fn place_atomic(&mut self, sequence: u64, original: u64) -> Result<(), LocalFault>;
    /// The request is complete. Requests complete once each, in their order.
    fn complete(&mut self, sequence: u64, status: CompletionStatus);
}

/// What sort of trouble a requester has met.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// A packet was lost, and the peer's packets show it.
    Gap,
    /// Nothing came back in time.
    Timeout,
    /// The responder had no receive.
    NotReady,
}

/// What a packet or the time has brought.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct Feedback {
    /// What has left the network by arriving, in the unit of [`Outbound::cost`].
    pub acknowledged: u32,
    /// A sample of the round trip time.
    pub round_trip: Option<Duration>,
    /// What counts as lost and will be sent again, or never: it is not in flight any more.
    pub rewound: u32,
    /// Trouble.
    pub loss: Loss,
    /// A request has failed. The queue pair is in error; nothing more comes from this requester, and the requests
    /// behind the failed one are the user's to flush.
    pub failed: bool,
    /// [`Requester::suspend`] has been asked for and everything begun is complete. Said once.
    pub drained: bool,
}

/// Where sending goes on: a request and one of its packets.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    index: usize,
    packet: u32,
    psn: u32,
}

/// Why sending is held back by the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Suspension {
    No,
    /// Requests that have begun go on.
    Draining,
    Drained,
}

/// The requester of a connected queue pair. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Requester {
    options: RequesterOptions,
    /// Requests in order, from the oldest that is not complete.
    entries: VecDeque<Entry>,
    /// Packets of the front request that are acknowledged or answered.
    answered: u32,
    /// The oldest packet sequence number without an answer.
    oldest: u32,
    cursor: Cursor,
    /// Behind the last number that has ever been sent.
    sent: u32,
    /// Behind the last number that has been given to a request.
    assigned: u32,
    /// Send sequence number of the next message.
    next_ssn: u32,
    /// The last send sequence number that the responder has receives for, if it counts them.
    credit_limit: Option<u32>,
    /// Cost of what lies between `oldest` and the cursor.
    in_flight: u32,
    /// Cost of what has gone out since an acknowledgement was asked for.
    unrequested: u32,
    /// Reads and atomics before the cursor without an answer.
    reads: u8,
    retries: u8,
    not_ready_retries: u8,
    /// The number whose loss has been reacted to, so that what follows the gap is not taken for another.
    gap: Option<u32>,
    /// The responder was not ready; nothing goes out before this time.
    waiting_until: Option<Duration>,
    /// When the retransmission timer was last started.
    progress: Duration,
    /// When something was last heard or probed for.
    heard: Duration,
    probes: u32,
    probe: bool,
    round_trip: Option<Duration>,
    /// A packet whose answer measures the round trip, and when it went out.
    sample: Option<(u32, Duration)>,
    suspension: Suspension,
    failed: bool,
}

impl Requester {
    /// A requester that has sent nothing.
    ///
    /// # Panics
    /// If the MTU is zero.
    pub fn new(options: RequesterOptions) -> Requester {
        assert!(options.mtu != 0, "an MTU");
        let first = options.first_psn & psn::MASK;
        Requester {
            options,
            entries: VecDeque::new(),
            answered: 0,
            oldest: first,
            cursor: Cursor { index: 0, packet: 0, psn: first },
            sent: first,
            assigned: first,
            next_ssn: 1,
            credit_limit: None,
            in_flight: 0,
            unrequested: 0,
            reads: 0,
            retries: 0,
            not_ready_retries: 0,
            gap: None,
            waiting_until: None,
            progress: Duration::ZERO,
            heard: Duration::ZERO,
            probes: 0,
            probe: false,
            round_trip: None,
            sample: None,
            suspension: Suspension::No,
            failed: false,
        }
    }

    /// True if another request may be entered.
    #[inline]
    pub fn has_room(&self) -> bool {
        (self.entries.len() as u32) < self.options.room && !self.failed
    }

    /// Enters a request, in the order of posting. Its service must have the operation: of UC, Send and Write.
    ///
    /// # Panics
    /// If the last one had a larger sequence number (with debug assertions). If the service does not have the operation,
    /// when it is to be sent.
    #[inline]
    pub fn push(&mut self, request: Request) {
        debug_assert!(self.entries.back().is_none_or(|last| last.request.sequence < request.sequence));
        if self.failed {
            return;
        }
        let packets = Entry::count(&request, self.options.mtu);
        let entry = Entry {
            request,
            // IB-RC-REQ-1, IB-RC-REQ-7
            first_psn: self.assigned,
            packets,
            ssn: self.next_ssn,
            repeated: false,
            fault: None,
        };
        let messages = match entry.request.operation.answer() {
            Answer::Data => packets.div_ceil(self.chunk()),
            _ => 1,
        };
        self.assigned = psn::add(self.assigned, packets);
        self.next_ssn = psn::add(self.next_ssn, messages);
        self.entries.push_back(entry);
    }

    /// Response packets of one read request, at most.
    #[inline]
    fn chunk(&self) -> u32 {
        (self.options.read_chunk / self.options.mtu).max(1)
    }

    /// The next packet that may go out now, its headers written to the buffer. `None` if there is none: nothing is
    /// entered, or a fence, the limit of reads, credits, a receiver that is not ready, or a suspension hold it back.
    ///
    /// `room` is what the congestion window still has for this packet and those behind it; a packet goes out if there
    /// is any, and the room decides when an acknowledgement is asked for. Without room there is still a probe, when one
    /// is due: it is what brings room again.
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
        // Asking at half of what is left, and again and again, keeps acknowledgements coming before the window is full.
        // IB-RC-REQ-13, IB-UC-5
        let asks = self.options.service == Service::Rc
            && (asks || unrequested >= room.saturating_sub(cost) || unrequested >= ACKNOWLEDGE_EVERY);
        let mut outbound = self.write(self.cursor.index, number, end, asks, buffer);
        outbound.cost = cost;
        outbound.repeated = self.cursor.psn != self.sent;
        self.advance(now, end, cost, asks, answer != Answer::Acknowledgement, &mut outbound);
        Some(outbound)
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
        match self.credit_limit {
            // With nothing on its way, one message may always go: its answer brings the credits of now.
            // IB-RC-REQ-48
            Some(limit) if entry.request.operation.takes_receive() && self.is_in_flight() => {
                !psn::precedes(limit, entry.ssn)
            }
            _ => true,
        }
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
            self.progress = now;
            self.heard = now;
            self.probes = 0;
        }
        if asks && !repeated && self.sample.is_none() {
            self.sample = Some((first, now));
        }
    }

    /// A packet that asks what has arrived. The last one, if it is lost, or lost with some before it, is then answered
    /// by an acknowledgement or a NAK. A read or atomic is asked for again itself; and so is, in turn, the oldest
    /// packet, since a responder says only once that something is missing.
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

    /// When [`Requester::handle_timeout`] wants to be called, if nothing happens before.
    #[inline]
    pub fn deadline(&self) -> Option<Duration> {
        if self.failed {
            return None;
        }
        // IB-RC-REQ-45
        if self.waiting_until.is_some() {
            return self.waiting_until;
        }
        if !self.is_in_flight() || self.options.service == Service::Uc {
            return None;
        }
        let probe = self.probe_at();
        Some(self.timeout_at().map_or(probe, |timeout| timeout.min(probe)))
    }

    // IB-RC-REQ-40, IB-RC-REQ-41
    fn timeout_at(&self) -> Option<Duration> {
        Some(self.progress + timer::acknowledgement(self.options.timeout)?.max(LEAST_TIMEOUT))
    }

    fn probe_at(&self) -> Duration {
        let wait = self.round_trip.map_or(INITIAL_PROBE, |round_trip| (round_trip * 4).max(LEAST_PROBE));
        self.heard + wait * (1 << self.probes.min(MAX_PROBE_DOUBLINGS))
    }

    /// Does what is due. May be called at any time.
    pub fn handle_timeout(&mut self, now: Duration, host: &mut impl RequesterHost) -> Feedback {
        let mut feedback = Feedback::default();
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return feedback;
        }
        if self.waiting_until.is_some() {
            self.stop_waiting(now);
        } else if self.timeout_at().is_some_and(|timeout| timeout <= now) {
            feedback.loss = Loss::Timeout;
            self.retry(now, host, &mut feedback);
        } else {
            self.heard = now;
            self.probes += 1;
            self.probe = true;
            self.gap = None;
            self.sample = None;
        }
        feedback
    }

    fn stop_waiting(&mut self, now: Duration) {
        self.waiting_until = None;
        self.progress = now;
        self.heard = now;
    }

    /// Sends again from the oldest packet without an answer, unless that was done too often.
    fn retry(&mut self, now: Duration, host: &mut impl RequesterHost, feedback: &mut Feedback) {
        // IB-RC-REQ-42
        if self.retries >= self.options.retry_count {
            self.fail_front(CompletionStatus::RetryExceeded, host, feedback);
            return;
        }
        self.retries += 1;
        self.rewind(now, feedback);
    }

    fn rewind(&mut self, now: Duration, feedback: &mut Feedback) {
        feedback.rewound = feedback.rewound.saturating_add(self.in_flight);
        self.in_flight = 0;
        self.unrequested = 0;
        self.reads = 0;
        // IB-RC-REQ-6, IB-RC-REQ-46
        self.cursor = Cursor { index: 0, packet: self.answered, psn: self.oldest };
        self.gap = None;
        self.probe = false;
        self.sample = None;
        self.progress = now;
        self.heard = now;
    }

    /// Completes the oldest request in error; that is the end of the requester.
    fn fail_front(
        &mut self,
        status: CompletionStatus,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        if let Some(entry) = self.entries.front() {
            host.complete(entry.request.sequence, status);
        }
        feedback.failed = true;
        feedback.rewound = feedback.rewound.saturating_add(self.in_flight);
        self.failed = true;
        self.in_flight = 0;
        self.waiting_until = None;
        self.entries = VecDeque::new();
    }

    /// The user could not take a packet's payload from the program's memory, and has not sent the packet. The request
    /// completes with `status` when those before it are complete, which may be at once. The packet counts as one that
    /// was in flight, in the window too: its cost is part of what is rewound.
    // IB-RC-REQ-18
    pub fn fail(
        &mut self,
        sequence: u64,
        status: CompletionStatus,
        host: &mut impl RequesterHost,
    ) -> Feedback {
        let mut feedback = Feedback::default();
        if self.failed {
            return feedback;
        }
        let found = self.entries.iter().position(|entry| entry.request.sequence == sequence);
        match found {
            Some(0) => self.fail_front(status, host, &mut feedback),
            Some(index) => {
                while (self.cursor.index, self.cursor.packet) > (index, 0) {
                    self.retreat(&mut feedback);
                }
                self.entries[index].fault = Some(status);
            }
            // A request of an unreliable connection is forgotten with its last packet.
            None if self.options.service == Service::Uc => {
                host.complete(sequence, status);
                feedback.failed = true;
                self.failed = true;
                self.entries = VecDeque::new();
            }
            None => {}
        }
        feedback
    }

    /// Takes the cursor back to the beginning of its request, or of the one before.
    fn retreat(&mut self, feedback: &mut Feedback) {
        if self.cursor.packet == 0 {
            self.cursor.index -= 1;
            self.cursor.packet = self.entries[self.cursor.index].packets;
        }
        let entry = &self.entries[self.cursor.index];
        let cost = entry.cost(0, self.cursor.packet, self.options.mtu);
        if entry.request.operation.answer() != Answer::Acknowledgement {
            let requests = self.cursor.packet.div_ceil(self.chunk());
            self.reads = self.reads.saturating_sub(requests.min(u32::from(u8::MAX)) as u8);
        }
        self.cursor.packet = 0;
        self.cursor.psn = entry.first_psn;
        self.in_flight = self.in_flight.saturating_sub(cost);
        feedback.rewound = feedback.rewound.saturating_add(cost);
    }

    /// What is in flight, in the unit of [`Outbound::cost`].
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    #[inline]
    fn is_in_flight(&self) -> bool {
        self.cursor.psn != self.oldest
    }

    /// No request is entered that is not complete.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// True once a request has failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The packet sequence number that comes after all that have been sent.
    pub fn next_psn(&self) -> u32 {
        self.sent
    }

    /// The smoothed round trip time, once one has been measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Changes attributes of a queue pair in use; they hold from now on.
    pub fn reconfigure(&mut self, timeout: u8, retry_count: u8, rnr_retry: u8, max_reads: u8) {
        self.options = RequesterOptions { timeout, retry_count, rnr_retry, max_reads, ..self.options };
    }

    /// Begins no more requests (state SQD). True if everything begun is already complete; otherwise a [`Feedback`]
    /// will say so.
    pub fn suspend(&mut self) -> bool {
        self.suspension = Suspension::Draining;
        self.drain()
    }

    /// Goes on after [`Requester::suspend`].
    pub fn resume(&mut self) {
        self.suspension = Suspension::No;
    }

    /// True when a suspended requester has become quiet, once. [`Feedback::drained`] says the same; of an unreliable
    /// connection, ask after the last packet of a request.
    pub fn drain(&mut self) -> bool {
        let quiet =
            self.suspension == Suspension::Draining && self.oldest == self.sent && !self.mid_message();
        if quiet {
            self.suspension = Suspension::Drained;
        }
        quiet
    }

    /// A message has begun and not all of it has been sent.
    fn mid_message(&self) -> bool {
        self.cursor.packet != 0
    }

    /// Takes a packet of the peer; [`super::goes_to_requester`] must hold. What is no answer to anything outstanding
    /// is ignored.
    pub fn receive(&mut self, packet: &Packet<'_>, now: Duration, host: &mut impl RequesterHost) -> Feedback {
        let mut feedback = Feedback::default();
        if !self.failed && self.options.service == Service::Rc {
            self.take(packet, now, host, &mut feedback);
            feedback.drained = self.suspension != Suspension::No && self.drain();
        }
        feedback
    }

    fn measure(&mut self, acknowledged: u32, now: Duration, feedback: &mut Feedback) {
        if let Some((number, sent)) = self.sample
            && !psn::precedes(acknowledged, number)
        {
            let sample = now.saturating_sub(sent);
            self.sample = None;
            self.round_trip = Some(smooth(self.round_trip, sample));
            feedback.round_trip = Some(sample);
        }
    }
}

impl Outbound {
    /// Bytes from the base transport header to the invariant CRC.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header + self.payload.map_or(0, |source| source.length as usize) + self.pad + ICRC_LEN
    }
}

#[cfg(test)]
mod tests;
