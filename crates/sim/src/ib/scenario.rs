//! Scenarios of reliable and unreliable connections, drawn at random.

use std::time::Duration;

use adverb_proto::ib::{CompletionStatus, DeliveryKind, Service};

use super::pair::{
    COUNTERS, Expectations, Faults, Freeze, LONGEST, Nearness, Outage, QueuePairs, READABLE, Span, State,
    WRITABLE, load, options,
};
use crate::Random;
use crate::world::Shrink;

/// What two queue pairs do, and what happens to them.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    service: Service,
    /// Requests of each end.
    requests: usize,
    /// Whether requests are posted little by little.
    paced: bool,
    /// The end, and the number of its request, that its peer is to refuse.
    refused: Option<(usize, usize)>,
    faults: Faults,
    /// Packets that fit the buffer of a receiver.
    buffer: Option<u32>,
}

/// A number up to the limit, most often none.
fn sometimes(random: &mut Random, limit: usize) -> usize {
    if random.chance(3) { 1 + random.below(limit) } else { 0 }
}

fn span(random: &mut Random, longest_ms: usize) -> Span {
    let start = Duration::from_micros(random.below(20_000) as u64);
    Span { start, length: Duration::from_micros(1 + random.below(1000 * longest_ms) as u64) }
}

impl Scenario {
    pub(crate) fn new(service: Service, random: &mut Random) -> Scenario {
        let mut faults = Faults {
            lose: sometimes(random, 50),
            repeat: sometimes(random, 100),
            delay: sometimes(random, 100),
            late: sometimes(random, 20),
            damage: sometimes(random, 20),
            forge: sometimes(random, 100),
            ..Faults::default()
        };
        for _ in 0..sometimes(random, 3) {
            let from = [random.chance(2), random.chance(2)];
            faults.outages.push(Outage { span: span(random, 30), from });
        }
        for _ in 0..sometimes(random, 3) {
            faults.freezes.push(Freeze { span: span(random, 100), end: random.below(2) });
        }
        // Messages of an unreliable connection may overtake each other where the way changes.
        if service.is_reliable() && random.chance(3) {
            // Some are near from the start, and some for good.
            let start = if random.chance(3) { Duration::ZERO } else { span(random, 1).start };
            let length = if random.chance(3) { Duration::from_secs(1000) } else { span(random, 20).length };
            let span = Span { start, length };
            faults.nearness = Some(Nearness { span, loses: random.chance(2) });
        }
        let requests = 1 + random.below(40);
        let refused =
            (service.is_reliable() && random.chance(4)).then(|| (random.below(2), random.below(requests)));
        let buffer = random.chance(5).then(|| 20 + random.below(200) as u32);
        Scenario { service, requests, paced: random.chance(2), refused, faults, buffer }
    }

    /// Runs it. Returns how much happened.
    pub(crate) fn run(&self, random: &mut Random) -> u64 {
        let mut options = options(self.service, random);
        if self.refused.is_some() && options.timeout == 0 {
            // The end that has refused a request does not answer any more, and without a timeout its peer would ask for ever.
            options.timeout = 12;
        }
        let mut pair = QueuePairs::new(options, self.faults.clone(), random);
        pair.buffer = self.buffer;
        // The window is of peers by the network.
        pair.ends.iter_mut().for_each(|end| end.has_window = self.faults.nearness.is_none());
        pair.paced = self.paced;
        pair.refused = self.refused;
        let expected = [0, 1].map(|side| load(&mut pair, side, self.requests, random));
        if self.service.is_reliable() {
            run_reliable(&mut pair, &expected, self.requests, random);
        } else {
            run_unreliable(&mut pair, &expected, self.requests, random);
        }
        pair.events + 2 * self.requests as u64
    }
}

/// Runs a reliable connection whose ends have so many requests each, with a check after every step and at the end.
pub(super) fn run_reliable(
    pair: &mut QueuePairs,
    expected: &[Expectations; 2],
    requests: usize,
    random: &mut Random,
) {
    pair.run_with(random, |pair| pair.check(expected));
    for (side, expected) in expected.iter().enumerate() {
        judge(pair, side, requests, expected);
    }
}

/// Runs an unreliable connection whose ends have so many requests each, and checks that whole messages come in order, or nothing of them.
pub(super) fn run_unreliable(
    pair: &mut QueuePairs,
    expected: &[Expectations; 2],
    requests: usize,
    random: &mut Random,
) {
    for side in 0..2 {
        // Receives are taken in order, so each must do for any message.
        let count = pair.receives[side].len();
        pair.receives[side].clear();
        pair.ends[side].program.receives.extend(std::iter::repeat_n(LONGEST, 2 * count));
    }
    pair.run(random);
    for (side, expected) in expected.iter().enumerate() {
        let program = &pair.ends[side].program;
        let complete: Vec<u64> = program.completions.iter().map(|(sequence, ..)| *sequence).collect();
        assert_eq!(complete, Vec::from_iter(0..requests as u64));
        let peer = &pair.ends[1 - side].program;
        for (delivery, _) in &peer.deliveries {
            if delivery.kind == DeliveryKind::WriteWithImmediate {
                let (start, end) = expected.announced[&delivery.immediate.unwrap()];
                assert!(peer.regions[&WRITABLE].bytes[start..end] == expected.writable[start..end]);
            }
        }
        // The messages that came are some of those that were sent, in the order of sending. A repeated message of one packet counts as another one.
        let delivered = &peer.deliveries;
        if pair.faults.lets_all_through() && pair.buffer.is_none() {
            assert!(*delivered == expected.deliveries, "all delivered");
        } else if pair.faults.repeat == 0 && pair.faults.delay == 0 && pair.faults.late == 0 {
            let mut sent = expected.deliveries.iter();
            for delivery in delivered {
                assert!(sent.any(|sent| sent == delivery), "delivered in order");
            }
        } else {
            assert!(delivered.iter().all(|delivery| expected.deliveries.contains(delivery)));
        }
    }
}

// IB-RC-REQ-7, IB-RC-REQ-25, IB-RC-REQ-46, IB-RC-RSP-8, IB-RC-RSP-11, IB-RC-RSP-32, IB-RC-RSP-33, IB-RC-RSP-39
/// Checks how the requests of a reliable end have ended: well, or well up to one that was refused, or one for which the network was down for too long.
/// The peer is as after one of the requests that may have been carried out.
fn judge(pair: &QueuePairs, side: usize, requests: usize, expected: &Expectations) {
    let (end, peer) = (&pair.ends[side], &pair.ends[1 - side].program);
    let completions = &end.program.completions;
    let refused = pair.refused.filter(|(of, _)| *of == side).map(|(_, number)| number);
    let done = completions.iter().take_while(|(_, status, _)| *status == CompletionStatus::Success).count();
    let limit = refused.unwrap_or(requests);
    assert!(done <= limit, "request {done} was not refused");
    match completions.get(done).map(|(_, status, _)| *status) {
        None => {
            assert_eq!(done, requests, "a request has no end");
            assert!(end.requester.is_idle() && end.requester.in_flight() == 0);
        }
        Some(CompletionStatus::RemoteAccess) => assert_eq!(refused, Some(done), "a request was refused"),
        Some(status) => {
            let is_late =
                matches!(status, CompletionStatus::RetryExceeded | CompletionStatus::RnrRetryExceeded);
            assert!(is_late, "request {done}: {status:?}");
            let is_cut = !pair.faults.outages.is_empty() || !pair.faults.freezes.is_empty();
            // A peer whose own request was refused, or has failed, does not answer any more.
            let is_gone =
                pair.ends[1 - side].requester.has_failed() || pair.ends[1 - side].responder.has_failed();
            assert!(
                is_cut || is_gone,
                "{status:?} of request {done} without a reason, {:?} after the start, {} packets, {} overrun, {} repeated, {} losses, {:?}",
                pair.passed(),
                pair.launched,
                pair.overrun,
                end.repeated,
                end.losses,
                pair.options
            );
        }
    }
    assert!(!end.has_window || done < requests || end.window.in_flight() == 0, "the window is not empty");
    assert!(completions.len() <= done + 1, "something completes by itself after a failure");
    let written = &peer.regions[&WRITABLE].bytes;
    let is_after = |state: &State| {
        state.deliveries == peer.deliveries.len()
            && state.counters == peer.regions[&COUNTERS].bytes
            && (state.invalidated, state.flushes) == (peer.invalidated.len(), peer.flushes)
            && written[..state.written] == expected.writable[..state.written]
    };
    assert!(
        expected.states[done..=limit].iter().any(is_after),
        "the peer is not as after any of requests {done} to {limit}"
    );
    let beyond = expected.states[limit].written;
    assert!(
        written[beyond..].iter().all(|byte| *byte == 0),
        "a request behind a refused one was carried out"
    );
    let mut places = written.iter().zip(&expected.writable);
    assert!(places.all(|(found, wanted)| found == wanted || *found == 0), "bytes that nobody wrote");
    assert!(peer.regions[&READABLE].bytes == pair.readable[1 - side], "memory without a right to write");
}

impl Shrink for Scenario {
    fn smaller(&self) -> Vec<Scenario> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Scenario)| {
            let mut smaller = self.clone();
            change(&mut smaller);
            all.push(smaller);
        };
        for requests in [self.requests / 2, self.requests - 1] {
            if (1..self.requests).contains(&requests) {
                add(&|smaller| smaller.requests = requests);
            }
        }
        for number in 0..self.faults.outages.len() {
            add(&|smaller| {
                smaller.faults.outages.remove(number);
            });
        }
        for number in 0..self.faults.freezes.len() {
            add(&|smaller| {
                smaller.faults.freezes.remove(number);
            });
        }
        let mut drop_number = |of: fn(&mut Faults) -> &mut usize| {
            if *of(&mut self.faults.clone()) > 0 {
                add(&|smaller| *of(&mut smaller.faults) = 0);
            }
        };
        drop_number(|faults| &mut faults.lose);
        drop_number(|faults| &mut faults.repeat);
        drop_number(|faults| &mut faults.delay);
        drop_number(|faults| &mut faults.late);
        drop_number(|faults| &mut faults.damage);
        drop_number(|faults| &mut faults.forge);
        if self.faults.nearness.is_some() {
            add(&|smaller| smaller.faults.nearness = None);
        }
        if self.refused.is_some() {
            add(&|smaller| smaller.refused = None);
        }
        if self.buffer.is_some() {
            add(&|smaller| smaller.buffer = None);
        }
        if self.paced {
            add(&|smaller| smaller.paced = false);
        }
        all
    }
}
