//! What a requester does about silence, loss and faults: timers, beginning anew, giving up.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::request::Answer;
use super::super::{CompletionStatus, Service, timer};
use super::{Cursor, Feedback, Loss, Requester, RequesterHost, RequesterOptions};

/// Below this, a timeout would rather find a busy machine than a lost packet: software clocks are coarse.
const LEAST_TIMEOUT: Duration = Duration::from_millis(4);
/// The standard lets timers run up to four times as long as asked for. That is made use of up to here: an
/// adapter answers at once, but the process of a software peer may be kept from its processor for longer than
/// all retries of a common timeout (67 ms) take. Probes find lost packets long before.
// IB-RC-REQ-40
const STRETCHED: Duration = Duration::from_millis(300);
/// How long a requester hears nothing, at least, before it sends a probe.
const LEAST_PROBE: Duration = Duration::from_millis(1);
/// How long a requester hears nothing before it sends a probe, while no round trip has been measured.
pub(super) const INITIAL_PROBE: Duration = Duration::from_millis(5);
/// Each probe without an answer doubles the time to the next, up to this many times.
const MAX_PROBE_DOUBLINGS: u32 = 8;
/// The longest time that a requester hears nothing before it sends the next probe.
const LONGEST_PROBE: Duration = Duration::from_secs(2);

impl Requester {
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
        let least = timer::acknowledgement(self.options.timeout)?;
        let stretched = (least * 4).min(STRETCHED).max(least);
        Some(self.progress + stretched.max(LEAST_TIMEOUT))
    }

    fn probe_at(&self) -> Duration {
        // A round trip may have been measured by a process that was stopped for a minute.
        let wait = self.round_trip.map_or(INITIAL_PROBE, |trip| (trip * 4).clamp(LEAST_PROBE, STRETCHED));
        self.heard + (wait * (1 << self.probes.min(MAX_PROBE_DOUBLINGS))).min(LONGEST_PROBE)
    }

    /// Does what is due. May be called at any time.
    pub fn handle_timeout(&mut self, now: Duration, host: &mut impl RequesterHost) -> Feedback {
        let mut feedback = Feedback::default();
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return feedback;
        }
        let is_late = self.timeout_at().is_some_and(|timeout| timeout <= now);
        if self.waiting_until.is_some() {
            self.stop_waiting(now);
        } else if self.restarted && (self.clock_lags || is_late) {
            // Nobody has looked since: when it was said to start, the time may have been an old one.
            self.restart(now);
        } else if is_late {
            self.write_out(host);
            feedback.loss = Loss::Timeout;
            self.retry(now, host, &mut feedback);
        } else {
            self.write_out(host);
            self.heard = now;
            self.probes += 1;
            self.probe = true;
            self.gap = None;
            self.sample = None;
        }
        self.restarted = false;
        feedback
    }

    pub(super) fn stop_waiting(&mut self, now: Duration) {
        self.waiting_until = None;
        self.restart(now);
    }

    /// Sends again from the oldest packet without an answer, unless that was done too often.
    pub(super) fn retry(&mut self, now: Duration, host: &mut impl RequesterHost, feedback: &mut Feedback) {
        // IB-RC-REQ-42
        if self.retries >= self.options.retry_count {
            self.fail_front(CompletionStatus::RetryExceeded, host, feedback);
            return;
        }
        self.retries += 1;
        self.rewind(now, feedback);
    }

    /// The number of retries, if the next one would be too many: of those after silence, or of those after
    /// the peer has had no receive.
    pub fn last_retry(&self, is_not_ready: bool) -> Option<u8> {
        let RequesterOptions { retry_count, rnr_retry, .. } = self.options;
        let (retries, most) = match is_not_ready {
            true if rnr_retry == timer::RETRY_FOREVER => return None,
            true => (self.not_ready_retries, rnr_retry),
            false => (self.retries, retry_count),
        };
        (retries >= most && most > 0).then_some(retries)
    }

    pub(super) fn rewind(&mut self, now: Duration, feedback: &mut Feedback) {
        feedback.rewound = feedback.rewound.saturating_add(self.in_flight);
        self.in_flight = 0;
        self.unrequested = 0;
        self.reads = 0;
        self.long_read = None;
        // IB-RC-REQ-6, IB-RC-REQ-46
        self.cursor = Cursor { index: 0, packet: self.answered, psn: self.oldest };
        self.gap = None;
        self.probe = false;
        self.sample = None;
        self.restart(now);
    }

    /// Completes the oldest request in error; that is the end of the requester.
    pub(super) fn fail_front(
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

    /// The user could not take a packet's payload from the program's memory, and has not sent the packet. The
    /// request completes with `status` when those before it are complete, which may be at once. The packet
    /// counts as one that was in flight, in the window too: its cost is part of what is rewound.
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
        self.write_out(host);
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
}
