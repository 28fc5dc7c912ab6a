//! A run: Sends of one packet each that have all gone out, with no other request before or among them that is not complete. Most messages within a host
//! are of that kind, and there the requester keeps two numbers for all of them instead of an entry for each. As soon as anything else happens to
//! one of them, or a request of another kind follows, the run is [written out](Requester::write_out): its Sends become entries like all others.

use std::time::Duration;

use super::super::psn;
use super::super::request::Entry;
use super::{Cursor, Feedback, Requester, RequesterHost};

/// The Sends of a run. While there are any, there are no entries, and the cursor stands behind the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// The sequence number of the oldest one. The others have those behind it.
    pub(super) first: u64,
    pub(super) count: u32,
}

impl Requester {
    /// Whether a Send of one packet can go out now as part of a run.
    #[inline]
    pub fn may_run(&self) -> bool {
        self.entries.is_empty() && self.is_clear()
    }

    /// Whether there is a run. Then no request is [entered](Requester::push) before it is [written out](Requester::write_out).
    #[inline]
    pub fn runs(&self) -> bool {
        self.run.count > 0
    }

    /// A Send of one packet goes out now. Returns its packet sequence number. Its acknowledgement is to be asked for. Only where the requester
    /// [may run](Requester::may_run), for reliable services, and with the sequence number behind that of the last Send of the run. `now` is
    /// asked where timers are to be started.
    ///
    /// # Panics
    /// With debug assertions, if it is not so.
    #[inline]
    pub fn run(&mut self, sequence: u64, now: impl FnOnce() -> Duration) -> u32 {
        debug_assert!(self.may_run() && self.options.service.is_reliable() && self.has_room());
        // IB-RC-REQ-1
        let number = self.sent;
        if self.run.count == 0 {
            let now = now();
            self.run.first = sequence;
            self.restart(now);
            self.probes = 0;
            self.sample.get_or_insert((number, now));
        }
        debug_assert_eq!(sequence, self.run.first + u64::from(self.run.count));
        let next = psn::add(number, 1);
        self.run.count += 1;
        (self.sent, self.assigned) = (next, next);
        self.cursor = Cursor { index: 0, packet: 0, psn: next };
        self.next_ssn = psn::add(self.next_ssn, 1);
        self.unrequested = 0;
        number
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
            let entry = Entry {
                request: host.recall(first + u64::from(index)),
                first_psn: psn::add(self.oldest, index),
                packets: 1,
                ssn: psn::add(first_ssn, index),
                repeated: false,
                fault: None,
            };
            self.in_flight = self.in_flight.saturating_add(entry.cost(0, 1, self.options.mtu));
            self.entries.push_back(entry);
        }
        self.cursor.index = self.entries.len();
    }
}
