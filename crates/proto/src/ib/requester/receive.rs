//! What a requester makes of acknowledgements and responses.

use std::time::Duration;

use adverb_wire::ib::header::{Aeth, CREDITS_UNLIMITED, NakCode, Syndrome};
use adverb_wire::ib::opcode::Operation as Opcode;
use adverb_wire::ib::packet::Packet;

use super::super::request::Answer;
use super::super::{CompletionStatus, LocalFault, psn, timer};
use super::{Cursor, Feedback, Loss, Requester, RequesterHost};

/// How far an acknowledgement got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Everything it covers is acknowledged.
    All,
    /// The acknowledgement covers a read or atomic whose answer has not come: that answer is lost.
    Unanswered,
    /// A request that had failed at this end has completed.
    Failed,
}

impl Requester {
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        let number = packet.bth().psn();
        let ahead = psn::distance(self.oldest, number);
        // Anything else was answered long ago, or was never sent.
        // IB-RC-REQ-26, IB-RC-REQ-27
        if ahead >= psn::distance(self.oldest, self.sent) {
            self.take_credits_of_ghost(packet, number);
            return;
        }
        let operation = packet.opcode().operation();
        let syndrome = packet.aeth().map(Aeth::syndrome);
        if !matches!((operation, syndrome), (Opcode::Acknowledge, Some(Syndrome::Ack { .. }))) {
            self.write_out(host);
        }
        match (operation, syndrome) {
            (Opcode::Acknowledge, Some(Syndrome::Ack { .. })) => {
                self.take_credits(packet.aeth());
                self.take_acknowledgement(ahead, now, host, feedback);
            }
            (Opcode::Acknowledge, Some(Syndrome::ReceiverNotReady { timer })) => {
                match self.acknowledge(ahead, now, host, feedback) {
                    Progress::All => self.not_ready(timer, now, host, feedback),
                    Progress::Unanswered => self.implied_nak(now, host, feedback),
                    Progress::Failed => {}
                }
            }
            (Opcode::Acknowledge, Some(Syndrome::Nak(code))) => {
                match self.acknowledge(ahead, now, host, feedback) {
                    // IB-RC-REQ-34, IB-RC-REQ-35
                    Progress::All => self.refused(code, now, host, feedback),
                    Progress::Unanswered => self.implied_nak(now, host, feedback),
                    Progress::Failed => {}
                }
            }
            // IB-RC-REQ-37, IB-PKT-31
            (Opcode::Acknowledge, _) => self.fail_front(CompletionStatus::BadResponse, host, feedback),
            // IB-RC-REQ-23
            // All before a response is acknowledged by it.
            _ => match self.acknowledge(ahead, now, host, feedback) {
                Progress::All => self.take_response(packet, syndrome, now, host, feedback),
                Progress::Unanswered => self.implied_nak(now, host, feedback),
                Progress::Failed => {}
            },
        }
    }

    /// An acknowledgement of the packet that is `ahead` of the oldest, and of all before it.
    #[inline]
    pub(super) fn take_acknowledgement(
        &mut self,
        ahead: u32,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        // IB-RC-REQ-22
        if self.acknowledge(ahead + 1, now, host, feedback) == Progress::Unanswered {
            self.implied_nak(now, host, feedback);
        }
    }

    /// Takes `count` packets from the oldest on as acknowledged.
    fn acknowledge(
        &mut self,
        count: u32,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) -> Progress {
        if self.runs() {
            self.acknowledge_run(count, now, host, feedback);
            return Progress::All;
        }
        let mut left = count;
        let mut progress = Progress::All;
        while left != 0 && progress == Progress::All {
            let Some(front) = self.entries.front() else { break };
            if front.request.operation.answer() != Answer::Acknowledgement {
                // IB-RC-REQ-24
                progress = Progress::Unanswered;
                break;
            }
            let step = left.min(front.packets - self.answered);
            left -= step;
            self.count_answered(step, feedback);
            progress = self.finish_front(host, feedback);
        }
        if left != count {
            self.heard_answer(now, feedback);
        }
        progress
    }

    /// A packet of the front request is answered.
    fn arrived(&mut self, now: Duration, feedback: &mut Feedback) {
        self.count_answered(1, feedback);
        self.heard_answer(now, feedback);
    }

    /// Counts packets of the front request as answered.
    #[inline]
    fn count_answered(&mut self, step: u32, feedback: &mut Feedback) {
        let front = &self.entries[0];
        let before = self.answered;
        // What was lost and is not on its way again does not count as in flight, and lies behind what does.
        let cost = front.cost(before, before + step, self.options.mtu).min(self.in_flight);
        self.in_flight -= cost;
        feedback.acknowledged = feedback.acknowledged.saturating_add(cost);
        self.answered += step;
        self.oldest = psn::add(self.oldest, step);
        if self.cursor.index == 0 && self.cursor.packet < self.answered {
            self.cursor = Cursor { index: 0, packet: self.answered, psn: self.oldest };
        }
    }

    /// Something was answered, up to the oldest packet that is not.
    #[inline]
    pub(super) fn heard_answer(&mut self, now: Duration, feedback: &mut Feedback) {
        // IB-RC-REQ-43
        self.retries = 0;
        self.not_ready_retries = 0;
        self.gap = None;
        self.waiting_until = None;
        self.probe = false;
        self.probes = 0;
        self.restart(now);
        self.measure(psn::add(self.oldest, psn::MASK), now, feedback);
    }

    /// Completes the front request if all its packets are answered.
    #[inline]
    fn finish_front(&mut self, host: &mut impl RequesterHost, feedback: &mut Feedback) -> Progress {
        let front = &self.entries[0];
        if self.answered != front.packets {
            return Progress::All;
        }
        // IB-RC-REQ-25
        host.complete(front.request.sequence, CompletionStatus::Success);
        self.entries.pop_front();
        self.answered = 0;
        if self.cursor.index == 0 {
            self.cursor = Cursor { index: 0, packet: 0, psn: self.oldest };
        } else {
            self.cursor.index -= 1;
        }
        match self.entries.front().and_then(|entry| entry.fault) {
            Some(status) => {
                self.fail_front(status, host, feedback);
                Progress::Failed
            }
            None => Progress::All,
        }
    }

    /// The response that the oldest request waits for was lost, as a later answer shows. Only the first one
    /// says so.
    fn implied_nak(&mut self, now: Duration, host: &mut impl RequesterHost, feedback: &mut Feedback) {
        if self.gap == Some(self.oldest) || !self.is_in_flight() {
            return;
        }
        // IB-RC-REQ-28, IB-RC-REQ-47
        feedback.loss = Loss::Gap;
        self.retry(now, host, feedback);
        self.gap = Some(self.oldest);
    }

    /// A NAK for the oldest packet.
    fn refused(
        &mut self,
        code: NakCode,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        match code {
            NakCode::PsnSequenceError => {
                // Already being sent again, or about to be.
                if self.is_in_flight() && self.waiting_until.is_none() {
                    feedback.loss = Loss::Gap;
                    self.retry(now, host, feedback);
                }
            }
            // IB-RC-REQ-35
            NakCode::InvalidRequest => {
                self.fail_front(CompletionStatus::RemoteInvalidRequest, host, feedback);
            }
            NakCode::RemoteAccessError => self.fail_front(CompletionStatus::RemoteAccess, host, feedback),
            NakCode::RemoteOperationalError => {
                self.fail_front(CompletionStatus::RemoteOperation, host, feedback);
            }
            NakCode::InvalidRdRequest => self.fail_front(CompletionStatus::BadResponse, host, feedback),
        }
    }

    /// The responder has no receive for the oldest packet.
    fn not_ready(&mut self, code: u8, now: Duration, host: &mut impl RequesterHost, feedback: &mut Feedback) {
        // Nothing is on its way that this could answer: it repeats what was said before.
        if !self.is_in_flight() {
            return;
        }
        feedback.loss = Loss::NotReady;
        // IB-RC-REQ-44
        if self.options.rnr_retry != timer::RETRY_FOREVER {
            if self.not_ready_retries >= self.options.rnr_retry {
                self.fail_front(CompletionStatus::RnrRetryExceeded, host, feedback);
                return;
            }
            self.not_ready_retries += 1;
        }
        self.rewind(now, feedback);
        // The responder lives, so the count of its silences starts anew.
        self.retries = 0;
        // IB-RC-REQ-36, IB-RC-REQ-45
        let start = if self.clock_lags { now } else { self.progress };
        self.waiting_until = Some(start + timer::not_ready(code));
    }

    /// A response whose packet sequence number is the oldest one.
    fn take_response(
        &mut self,
        packet: &Packet<'_>,
        syndrome: Option<Syndrome>,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        if syndrome.is_some_and(|syndrome| !matches!(syndrome, Syndrome::Ack { .. })) {
            return self.fail_front(CompletionStatus::BadResponse, host, feedback);
        }
        let Some(front) = self.entries.front() else { return };
        let (sequence, mtu) = (front.request.sequence, self.options.mtu);
        let operation = packet.opcode().operation();
        let placed = match front.request.operation.answer() {
            Answer::Data if operation.is_read_response() => {
                let (chunk, number) = (self.chunk(), self.answered);
                let ends = number + 1 == front.packets || (number + 1) % chunk == 0;
                let position = packet.opcode().position();
                // A read that was repeated in part may be answered as a read of its own or as part of the old
                // one.
                let in_place = position.starts() == (number % chunk == 0) || front.repeated;
                let length = front.bytes(number, number + 1, mtu) as usize;
                // IB-RC-REQ-29
                if position.ends() != ends || !in_place || packet.payload().len() != length {
                    return self.fail_front(CompletionStatus::BadResponse, host, feedback);
                }
                // IB-RC-REQ-30
                host.place(sequence, number * mtu, packet.payload())
            }
            Answer::Original if operation == Opcode::AtomicAcknowledge => {
                host.place_atomic(sequence, packet.atomic_ack().unwrap_or_default())
            }
            // IB-RC-REQ-38
            Answer::Empty if operation == Opcode::ReadResponseOnly && packet.payload().is_empty() => Ok(()),
            // IB-RC-REQ-33
            _ => return self.fail_front(CompletionStatus::BadResponse, host, feedback),
        };
        // IB-RC-REQ-31
        if let Err(fault) = placed {
            let status = match fault {
                LocalFault::Protection => CompletionStatus::LocalProtection,
                LocalFault::Length => CompletionStatus::LocalLength,
                LocalFault::Gone => CompletionStatus::RemoteAccess,
                LocalFault::Lost => return,
            };
            return self.fail_front(status, host, feedback);
        }
        self.take_credits(packet.aeth());
        if packet.opcode().position().ends() {
            // After a loss there may be none that counts, and the answer comes all the same.
            self.reads = self.reads.saturating_sub(1);
        }
        self.arrived(now, feedback);
        self.finish_front(host, feedback);
    }

    /// The end-to-end credits of an acknowledgement. A responder that does not count says so in each.
    fn take_credits(&mut self, aeth: Option<&Aeth>) {
        let Some(aeth) = aeth else { return };
        if let Syndrome::Ack { credits } = aeth.syndrome() {
            // IB-RC-REQ-48, IB-RC-REQ-49
            self.credit_limit =
                (credits != CREDITS_UNLIMITED).then(|| psn::add(aeth.msn(), decode_credits(credits)));
        }
    }

    /// A responder may tell of new credits by repeating its last acknowledgement.
    fn take_credits_of_ghost(&mut self, packet: &Packet<'_>, number: u32) {
        if self.credit_limit.is_some() && psn::add(number, 1) == self.oldest {
            self.take_credits(packet.aeth());
        }
    }
}

/// The number of receives that a code of five bits means (volume 1, section 9.7.7.2.3, table 48).
// IB-PKT-34
fn decode_credits(code: u8) -> u32 {
    match u32::from(code & 0x1f) {
        code @ 0..=1 => code,
        // Two codes for each power of two: 2, 3, 4, 6, 8, 12, ...
        code => (2 + code % 2) << (code / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-PKT-34
    #[test]
    fn credits_are_those_of_the_table() {
        let expected = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
        for (code, expected) in expected.into_iter().enumerate() {
            assert_eq!(decode_credits(code as u8), expected, "code {code}");
        }
        assert_eq!(decode_credits(30), 32768);
    }
}
