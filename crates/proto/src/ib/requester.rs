//! The requester of a connected queue pair: requests into packets, and what comes back (volume 1, sections
//! 9.7.3 to 9.7.7 for RC, 9.8.2 for UC).
//!
//! Each request takes consecutive packet sequence numbers, a read one for each packet of its response. What
//! has been sent and not been answered is remembered as a range of these numbers. When something is lost,
//! sending simply begins anew at the oldest number without an answer ("go back n"), so there is one cursor
//! and no list of packets.

mod receive;
mod recovery;
mod run;
mod transmit;

use std::collections::VecDeque;
use std::time::Duration;

use adverb_wire::ib::header::ICRC_LEN;
use adverb_wire::ib::packet::{Packet, Payload};

use super::request::{Answer, Entry, Outbound, Request};
use super::window::smooth;
use super::{CompletionStatus, LocalFault, Service, psn};
use run::Run;

/// Attributes of a requester.
#[derive(Clone, Copy, Debug)]
pub struct RequesterOptions {
    /// The service.
    pub service: Service,
    /// Bytes of payload in a packet: 256 to 4096 on a network.
    pub mtu: u32,
    /// The first packet sequence number.
    pub first_psn: u32,
    /// The peer's queue pair.
    pub destination: u32,
    /// The partition key that packets carry.
    pub pkey: u16,
    /// Code of the local acknowledgement timeout, see [`super::timer::acknowledgement`].
    pub timeout: u8,
    /// How often something is repeated without progress.
    pub retry_count: u8,
    /// How often something is repeated when the responder is not ready; [`super::timer::RETRY_FOREVER`]:
    /// without a limit.
    pub rnr_retry: u8,
    /// Most reads and atomics outstanding. Zero counts as one: the responder will refuse it.
    pub max_reads: u8,
    /// Most requests that are entered and not complete.
    pub room: u32,
    /// A longer read goes out as several read requests of at most this many bytes (rounded down to whole
    /// packets), so that the responses come at the pace of the window. On the wire and to the responder they
    /// are separate reads.
    pub read_chunk: u32,
}

/// What a requester needs of its user.
pub trait RequesterHost {
    /// Puts a part of a read's data in its place.
    ///
    /// # Errors
    /// The request then completes with the fault's status, and the requester has failed.
    fn place(&mut self, sequence: u64, offset: u32, payload: Payload<'_>) -> Result<(), LocalFault>;
    /// Puts in its place what the target of an atomic operation held before.
    ///
    /// # Errors
    /// As of [`RequesterHost::place`].
    fn place_atomic(&mut self, sequence: u64, original: u64) -> Result<(), LocalFault>;
    /// The request is complete. Requests complete once each, in their order.
    fn complete(&mut self, sequence: u64, status: CompletionStatus);
    /// So many requests from `first` on have succeeded: [`RequesterHost::complete`] for each, in their order.
    fn complete_run(&mut self, first: u64, count: u32) {
        (first..first + u64::from(count))
            .for_each(|sequence| self.complete(sequence, CompletionStatus::Success));
    }
    /// The Send with this number, which went out by [`Requester::send_at_once`] and is not complete.
    ///
    /// # Panics
    /// Without an implementation, which a user that never calls [`Requester::send_at_once`] does not need.
    fn recall(&mut self, sequence: u64) -> Request {
        unreachable!("request {sequence} did not go out at once");
    }
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
    /// A request has failed. The queue pair is in error; nothing more comes from this requester, and the
    /// requests behind the failed one are the user's to flush.
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
    /// In place of entries.
    run: Run,
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
    /// What is heard, and what is sent first, has the time of a clock that lags: it counts from when a
    /// deadline is first looked at.
    clock_lags: bool,
    /// The timers have been started since a deadline was last looked at.
    restarted: bool,
    /// Behind reads of more bytes nothing is sent that changes memory, before they are answered.
    longest_overtaken: u32,
    /// The sequence number of the last such read before the cursor; it may be complete.
    long_read: Option<u64>,
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
            run: Run::default(),
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
            clock_lags: false,
            restarted: false,
            longest_overtaken: u32::MAX,
            long_read: None,
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
    /// If the last one had a larger sequence number, or there is a [run](Requester::runs) (with debug
    /// assertions). If the service does not have the operation, when it is to be sent.
    #[inline]
    pub fn push(&mut self, request: Request) {
        debug_assert!(self.entries.back().is_none_or(|last| last.request.sequence < request.sequence));
        debug_assert!(!self.runs(), "a run is written out before another request follows");
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

    /// Packets carry so many bytes from now on. While no request is entered only.
    ///
    /// # Panics
    /// If it is zero, or a request is entered.
    pub fn set_mtu(&mut self, mtu: u32) {
        assert!(mtu != 0 && self.is_idle(), "an MTU, before the first request");
        self.options.mtu = mtu;
    }

    /// From now on, `now` may be older than the true time, except in [`Requester::handle_timeout`].
    pub fn set_clock_lags(&mut self) {
        self.clock_lags = true;
    }

    /// The responder answers reads of more than `longest` bytes by saying where they are: nothing that
    /// changes memory is sent behind such a read before it is answered. Of reads that are sent from now on.
    // PRACTICE-ORDER-2
    pub fn set_longest_overtaken(&mut self, longest: u32) {
        self.longest_overtaken = longest;
    }

    /// The oldest request that is not complete.
    pub fn oldest(&self) -> Option<u64> {
        if self.runs() {
            return Some(self.run.first);
        }
        Some(self.entries.front()?.request.sequence)
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

    /// Packets without an answer of requests that are entered, whether they have been sent or not; modulo the
    /// sequence numbers that there are.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        psn::distance(self.oldest, self.assigned)
    }

    /// No request is entered that is not complete.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && !self.runs()
    }

    /// The first packet sequence number, if not even that has been acknowledged since it was sent.
    pub fn never_acknowledged(&self) -> Option<u32> {
        let first = self.options.first_psn & psn::MASK;
        (self.oldest == first).then_some(first)
    }

    /// Requests are entered that have not all been sent, or are to be sent again.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.cursor.index < self.entries.len()
    }

    /// The next request that is entered goes out at once, if the sequence numbers allow it: all before it
    /// have been sent, and nothing holds it back.
    #[inline]
    pub fn is_clear(&self) -> bool {
        !self.has_unsent()
            && !self.failed
            && !self.probe
            && self.waiting_until.is_none()
            && self.credit_limit.is_none()
            && self.suspension == Suspension::No
            && (self.reads == 0 || self.longest_overtaken == u32::MAX)
            && self.cursor.psn == self.sent
            && psn::distance(self.oldest, self.sent) < psn::WINDOW
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

    /// Begins no more requests (state SQD). True if everything begun is already complete; otherwise a
    /// [`Feedback`] will say so.
    pub fn suspend(&mut self) -> bool {
        self.suspension = Suspension::Draining;
        self.drain()
    }

    /// Goes on after [`Requester::suspend`].
    pub fn resume(&mut self) {
        self.suspension = Suspension::No;
    }

    /// True when a suspended requester has become quiet, once. [`Feedback::drained`] says the same; of an
    /// unreliable connection, ask after the last packet of a request.
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

    /// Takes a packet of the peer; [`super::goes_to_requester`] must hold. What is no answer to anything
    /// outstanding is ignored.
    pub fn receive(&mut self, packet: &Packet<'_>, now: Duration, host: &mut impl RequesterHost) -> Feedback {
        let mut feedback = Feedback::default();
        if !self.failed && self.options.service.is_reliable() {
            self.take(packet, now, host, &mut feedback);
            feedback.drained = self.suspension != Suspension::No && self.drain();
        }
        feedback
    }

    /// Whether a packet of the peer answers something outstanding: only those can change anything but
    /// credits.
    pub fn expects(&self, packet: &Packet<'_>) -> bool {
        self.is_outstanding(packet.bth().psn())
    }

    // IB-RC-REQ-26, IB-RC-REQ-27
    fn is_outstanding(&self, number: u32) -> bool {
        psn::distance(self.oldest, number) < psn::distance(self.oldest, self.sent)
    }

    /// The peer acknowledges all packets up to `number`, without any limit of credits; it has said so beside
    /// something else.
    #[inline]
    pub fn acknowledged(&mut self, number: u32, now: Duration, host: &mut impl RequesterHost) -> Feedback {
        let mut feedback = Feedback::default();
        if !self.failed && self.options.service.is_reliable() {
            let ahead = psn::distance(self.oldest, number);
            // IB-RC-REQ-26, IB-RC-REQ-27
            if ahead < psn::distance(self.oldest, self.sent) {
                self.credit_limit = None;
                self.take_acknowledgement(ahead, now, host, &mut feedback);
            }
            feedback.drained = self.suspension != Suspension::No && self.drain();
        }
        feedback
    }

    /// Starts the timers: something was heard, or the first packet goes out. Never moves a timer back: the
    /// calling thread may have read the clock long before another thread did, and timers in the past would
    /// run out at once, again and again.
    #[inline]
    fn restart(&mut self, now: Duration) {
        self.progress = self.progress.max(now);
        self.heard = self.heard.max(now);
        self.restarted = true;
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
