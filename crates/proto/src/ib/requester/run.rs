//! Sends of one packet that go out at once: most messages within a host. As long as there is nothing else
//! that is not complete, they form a run: two numbers stand for all of them instead of an entry for each. As
//! soon as anything else happens to one of them, or a request of another kind follows, the run is [written
//! out](Requester::write_out): its Sends become entries like all others.

use std::time::Duration;

use super::super::psn;
use super::super::request::{Entry, Request};
use super::{Cursor, Feedback, Requester, RequesterHost};

/// The Sends of a run. While there are any, there are no entries, and the cursor stands behind the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// The sequence number of the oldest one. The others have those behind it.
    pub(super) first: u64,
    pub(super) count: u32,
}

impl Requester {
    /// Whether there is a run. Then no request is [entered](Requester::push) before it is [written
    /// out](Requester::write_out).
    #[inline]
    pub fn runs(&self) -> bool {
        self.run.count > 0
    }

    /// A Send of one packet goes out now, as it would by [`Requester::push`] and
    /// [`Requester::poll_transmit`]. Returns its packet sequence number. Its acknowledgement is to be asked
    /// for. Only where the requester [is clear](Requester::is_clear), of reliable services, and with the
    /// sequence number that follows the last request's. `now` and `request` are asked only where that is
    /// needed.
    ///
    /// # Panics
    /// With debug assertions, if it is not so.
    #[inline(always)]
    pub fn send_at_once(
        &mut self,
        sequence: u64,
        now: impl FnOnce() -> Duration,
        request: impl FnOnce() -> Request,
    ) -> u32 {
        debug_assert!(self.is_clear() && self.options.service.is_reliable() && self.has_room());
        // IB-RC-REQ-1
        let number = self.sent;
        if self.cursor.psn == self.oldest {
            let now = now();
            self.restart(now);
            self.probes = 0;
            self.sample.get_or_insert((number, now));
        }
        let next = psn::add(number, 1);
        if self.entries.is_empty() {
            if self.run.count == 0 {
                self.run.first = sequence;
            }
            debug_assert_eq!(sequence, self.run.first + u64::from(self.run.count));
            self.run.count += 1;
            self.cursor.psn = next;
        } else {
            self.enter_sent(request());
        }
        (self.sent, self.assigned) = (next, next);
        self.next_ssn = psn::add(self.next_ssn, 1);
        self.unrequested = 0;
        number
    }

    /// How many Sends may follow by [`Requester::send_next`], as long as nothing else is asked of the
    /// requester. None without a run.
    #[inline]
    pub fn may_follow(&self) -> u32 {
        if !self.runs() || !self.is_clear() {
            return 0;
        }
        psn::WINDOW - psn::distance(self.oldest, self.sent)
    }

    /// Sends a Send of one packet that follows the last one of the run, as [`Requester::send_at_once`] does.
    /// Returns its packet sequence number. The caller may do so as often as [`Requester::may_follow`] has
    /// said, with nothing else asked of the requester since.
    ///
    /// # Panics
    /// With debug assertions, if no Send may follow, or `sequence` is not the next one.
    #[inline(always)]
    pub fn send_next(&mut self, sequence: u64) -> u32 {
        debug_assert!(self.may_follow() > 0);
        debug_assert_eq!(sequence, self.run.first + u64::from(self.run.count));
        // IB-RC-REQ-1
        let number = self.sent;
        let next = psn::add(number, 1);
        self.run.count += 1;
        (self.cursor.psn, self.sent, self.assigned) = (next, next, next);
        self.next_ssn = psn::add(self.next_ssn, 1);
        number
    }

    #[cold]
    fn enter_sent(&mut self, request: Request) {
        self.enter_packet(request, self.sent, self.next_ssn);
        self.cursor = Cursor { index: self.entries.len(), packet: 0, psn: psn::add(self.sent, 1) };
    }

    /// A Send of one packet, which has been sent, becomes an entry.
    fn enter_packet(&mut self, request: Request, first_psn: u32, ssn: u32) {
        let entry = Entry { request, first_psn, packets: 1, ssn, repeated: false, fault: None };
        self.in_flight = self.in_flight.saturating_add(entry.cost(0, 1, self.options.mtu));
        self.entries.push_back(entry);
    }

    /// The oldest `count` Sends of the run are acknowledged.
    pub(super) fn acknowledge_run(
        &mut self,
        count: u32,
        now: Duration,
        host: &mut impl RequesterHost,
        feedback: &mut Feedback,
    ) {
        let Run { first, count: all } = self.run;
        let count = count.min(all);
        self.run = Run { first: first + u64::from(count), count: all - count };
        self.oldest = psn::add(self.oldest, count);
        // IB-RC-REQ-25
        host.complete_run(first, count);
        self.heard_answer(now, feedback);
    }

    /// Makes entries of the Sends of the run, if there is one.
    #[inline]
    pub fn write_out(&mut self, host: &mut impl RequesterHost) {
        if self.run.count > 0 {
            self.write_out_all(host);
        }
    }

    #[cold]
    fn write_out_all(&mut self, host: &mut impl RequesterHost) {
        let Run { first, count } = std::mem::take(&mut self.run);
        let first_ssn = psn::add(self.next_ssn, psn::MASK + 1 - count);
        for index in 0..count {
            let request = host.recall(first + u64::from(index));
            self.enter_packet(request, psn::add(self.oldest, index), psn::add(first_ssn, index));
        }
        self.cursor.index = self.entries.len();
    }
}
