//! Scenarios of reliable and unreliable connections, drawn at random.

use std::time::Duration;

use adverb_proto::ib::{CompletionStatus, DeliveryKind, Operation, Service};
use adverb_wire::ib::header::{ICRC_LEN, MAX_HEADER};

use super::end::Options;
use super::faults::{FOR_GOOD, Faults, Freeze, Leap, Narrowing, Nearness, Outage, Span, Starvation, Turn};
use super::hosts::Hosts;
use super::pair::{COUNTERS, LONGEST, QueuePairs, READABLE, WRITABLE, options};
use super::work::{Expectations, State, load};
use crate::Random;
use crate::world::Shrink;

/// What queue pairs do, and what happens to them.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    services: Services,
    /// Requests of each end.
    requests: usize,
    /// Whether most requests are short Sends.
    talks: bool,
    /// The most microseconds between posts, if requests are posted little by little.
    pace: Option<usize>,
    /// The end, and the number of its request, that its peer is to refuse.
    refused: Option<(usize, usize)>,
    faults: Faults,
    /// Packets that fit the buffer of a receiver.
    buffer: Option<u32>,
}

/// The services of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Services {
    /// Two queue pairs that are connected.
    Pair(Service),
    /// So many pairs of queue pairs of all services, between two hosts.
    Many(usize),
}

/// A number up to the limit, most often none.
fn sometimes(random: &mut Random, limit: usize) -> usize {
    if random.chance(3) { 1 + random.below(limit) } else { 0 }
}

fn micros(random: &mut Random, limit: usize) -> Duration {
    Duration::from_micros(random.below(limit) as u64)
}

fn span(random: &mut Random, longest_ms: usize) -> Span {
    let start = micros(random, 20_000);
    Span { start, length: Duration::from_micros(1) + micros(random, 1000 * longest_ms) }
}

fn nearness(random: &mut Random) -> Nearness {
    // Some are near from the start, and some for good.
    let latest_start = [1, 1, 100, 20_000][random.below(4)];
    let start = micros(random, latest_start);
    let length = if random.chance(2) { FOR_GOOD } else { span(random, 20).length };
    Nearness {
        span: Span { start, length },
        loses: random.chance(2),
        wait: [0, 1000, 30_000, 200_000][random.below(4)],
        tick_lag: random.chance(2).then(|| {
            let longest_lag = [1, 10_000, 100_000][random.below(3)];
            micros(random, longest_lag)
        }),
        longest_kept: random.chance(2).then(|| [16, 16, 1000][random.below(3)]),
    }
}

fn faults(random: &mut Random) -> Faults {
    let nearness = random.chance(3).then(|| nearness(random));
    // Some checks are possible only where nothing else happens.
    if random.chance(4) {
        return Faults { nearness, ..Faults::default() };
    }
    let mut faults = Faults {
        nearness,
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
    for _ in 0..sometimes(random, 3) {
        let of = [Turn::Send, Turn::Receive, Turn::Timers][random.below(3)];
        faults.starvations.push(Starvation { span: span(random, 400), end: random.below(2), of });
    }
    for _ in 0..sometimes(random, 3) {
        let (at, by) = (micros(random, 20_000), micros(random, 20_000_000));
        faults.leaps.push(Leap { at, by, end: random.below(2) });
    }
    if random.chance(6) {
        faults.narrowings.push(Narrowing { span: span(random, 30), longest: 100 + random.below(4000) });
    }
    if random.chance(12) {
        faults.other_mtu = Some([256, 512, 1024, 2048, 4096][random.below(5)]);
    }
    if random.chance(4) {
        return only_one_kind(faults, random);
    }
    faults
}

/// Leaves faults of one kind: where others excuse nothing, checks find more.
fn only_one_kind(faults: Faults, random: &mut Random) -> Faults {
    let Faults { freezes, starvations, leaps, narrowings, .. } = faults;
    let nothing = Faults::default();
    match random.below(4) {
        0 => Faults { freezes, ..nothing },
        1 => Faults { starvations, ..nothing },
        2 => Faults { leaps, ..nothing },
        _ => Faults { narrowings, ..nothing },
    }
}

impl Scenario {
    /// Two queue pairs of a service.
    pub(crate) fn new(service: Service, random: &mut Random) -> Scenario {
        let faults = faults(random);
        let requests = 1 + random.below(40);
        let refused =
            (service.is_reliable() && random.chance(4)).then(|| (random.below(2), random.below(requests)));
        let buffer = random.chance(5).then(|| 20 + random.below(200) as u32);
        Scenario {
            services: Services::Pair(service),
            requests,
            talks: random.chance(4),
            pace: random.chance(2).then(|| [10, 500][random.below(2)]),
            refused,
            faults,
            buffer,
        }
    }

    /// Many pairs of queue pairs, whose peer refuses a request of the first one.
    pub(crate) fn many(random: &mut Random) -> Scenario {
        let services = Services::Many(2 + random.below(11));
        let requests = 1 + random.below(10);
        Scenario { services, requests, ..Scenario::new(Service::Rc, random) }.with_refused_in_range()
    }

    fn with_refused_in_range(mut self) -> Scenario {
        self.refused = self.refused.map(|(side, number)| (side, number % self.requests));
        self
    }

    /// Queue pair number `number` of each end, before it has anything to do.
    fn pair(&self, number: usize, service: Service, random: &mut Random) -> QueuePairs {
        let mut options = Options { number: 100 + 2 * number as u32, ..options(service, random) };
        let refused = self.refused.filter(|_| number == 0);
        let may_be_refused = refused.is_some() || self.faults.other_mtu.is_some();
        if may_be_refused && options.timeout == 0 {
            // The end that has refused a request does not answer any more, and without a timeout its peer
            // would ask for ever.
            options.timeout = 12;
        }
        let mut pair = QueuePairs::new(options, self.faults.clone(), random);
        pair.buffer = self.buffer;
        for end in &mut pair.ends {
            // The window is of peers by the network.
            end.has_window = self.faults.nearness.is_none() && service.is_reliable();
            if let Some(nearness) = self.faults.nearness {
                end.tick_lag = nearness.tick_lag;
                end.program.longest_kept = nearness.longest_kept;
                if let Some(longest) = nearness.longest_kept {
                    end.requester.set_longest_overtaken(longest);
                }
                if nearness.tick_lag.is_some() {
                    end.requester.set_clock_lags();
                }
            }
        }
        (pair.talks, pair.pace) = (self.talks, self.pace);
        pair.refused = refused;
        pair
    }

    /// Runs it. Returns how much happened.
    pub(crate) fn run(&self, random: &mut Random) -> u64 {
        let requests = self.requests;
        match self.services {
            Services::Pair(service) => {
                let mut pair = self.pair(0, service, random);
                let expected = [0, 1].map(|side| load(&mut pair, side, requests, random));
                if service.is_reliable() {
                    run_reliable(&mut pair, &expected, requests, random);
                } else {
                    run_unreliable(&mut pair, &expected, requests, random);
                }
                pair.events + 2 * requests as u64
            }
            Services::Many(count) => {
                let services = [Service::Rc, Service::Xrc, Service::Uc].into_iter().cycle();
                let pairs = services.take(count).enumerate();
                let mut pairs: Vec<_> =
                    pairs.map(|(number, service)| self.pair(number, service, random)).collect();
                let mut load = |pair: &mut QueuePairs| {
                    let expected = [0, 1].map(|side| load(pair, side, requests, random));
                    if !pair.options.service.is_reliable() {
                        prepare_unreliable(pair);
                    }
                    expected
                };
                let expected: Vec<_> = pairs.iter_mut().map(&mut load).collect();
                let mut hosts = Hosts::new(pairs);
                hosts.run(&expected, random);
                for (pair, expected) in hosts.pairs().iter().zip(&expected) {
                    judge_pair(pair, expected, requests);
                }
                hosts.pairs().iter().map(|pair| pair.events + 2 * requests as u64).sum()
            }
        }
    }
}

/// Runs a reliable connection whose ends have so many requests each, with a check after every step and at the
/// end.
pub(super) fn run_reliable(
    pair: &mut QueuePairs,
    expected: &[Expectations; 2],
    requests: usize,
    random: &mut Random,
) {
    pair.run_with(random, |pair| pair.check(expected));
    judge_pair(pair, expected, requests);
}

/// Runs an unreliable connection whose ends have so many requests each, and checks that whole messages come
/// in order, or nothing of them.
pub(super) fn run_unreliable(
    pair: &mut QueuePairs,
    expected: &[Expectations; 2],
    requests: usize,
    random: &mut Random,
) {
    prepare_unreliable(pair);
    pair.run(random);
    judge_pair(pair, expected, requests);
}

/// Posts receives for an unreliable connection. They are taken in order, so each must do for any message.
fn prepare_unreliable(pair: &mut QueuePairs) {
    for (receives, end) in pair.receives.iter_mut().zip(&mut pair.ends) {
        end.program.receives.extend(std::iter::repeat_n(LONGEST, 2 * receives.len()));
        receives.clear();
    }
}

/// Checks how both ends have ended.
fn judge_pair(pair: &QueuePairs, expected: &[Expectations; 2], requests: usize) {
    for (side, expected) in expected.iter().enumerate() {
        if pair.options.service.is_reliable() {
            judge(pair, side, requests, expected);
        } else {
            judge_unreliable(pair, side, requests, expected);
        }
    }
}

/// Checks that whole messages of an unreliable end have come in order, or nothing of them.
fn judge_unreliable(pair: &QueuePairs, side: usize, requests: usize, expected: &Expectations) {
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
    // The messages that came are some of those that were sent, in the order of sending. A repeated message of
    // one packet counts as another one.
    let delivered = &peer.deliveries;
    if pair.faults.lets_all_through() && pair.buffer.is_none() {
        assert!(*delivered == expected.deliveries, "all delivered");
    } else if pair.keeps_order() {
        let mut sent = expected.deliveries.iter();
        for delivery in delivered {
            assert!(sent.any(|sent| sent == delivery), "delivered in order");
        }
    } else {
        assert!(delivered.iter().all(|delivery| expected.deliveries.contains(delivery)));
    }
    assert!(
        delivered.iter().all(|(delivery, _)| pair.fits_both(delivery.length)),
        "a message of another MTU"
    );
}

// IB-RC-REQ-7, IB-RC-REQ-25, IB-RC-REQ-46, IB-RC-RSP-8, IB-RC-RSP-11, IB-RC-RSP-32, IB-RC-RSP-33,
// IB-RC-RSP-39
/// Checks how the requests of a reliable end have ended: well, or well up to one that was refused, or one for
/// which the network was down for too long. The peer is as after one of the requests that may have been
/// carried out.
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
        Some(CompletionStatus::RemoteInvalidRequest) if pair.shorter_mtu().is_some() => {
            assert!(!pair.fits_both(expected.length(done)), "request {done} fits a packet of both ends");
        }
        Some(status) => {
            // A receive that is missing is waited for without end (`rnr_retry` is 7).
            assert!(status == CompletionStatus::RetryExceeded, "request {done}: {status:?}");
            // A responder cuts what is read into packets of its own MTU.
            let is_read = matches!(pair.operations[side][done], Operation::Read { .. });
            let mtu = if is_read { pair.longer_mtu() } else { end.mtu };
            let longest_payload = expected.length(done).min(mtu) as usize;
            let longest = MAX_HEADER + longest_payload + ICRC_LEN;
            let is_cut = pair.faults.may_silence(side, longest);
            // A responder that has refused a request does not answer any more.
            let is_gone = pair.ends[1 - side].responder.has_failed();
            // Without a window, a sender repeats more than the receiver's buffer takes, and each packet that
            // finds the buffer full counts as a retry.
            let is_flooded = pair.overrun > usize::from(pair.options.retry_count) && !end.has_window;
            assert!(
                is_cut || is_gone || is_flooded,
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
    let mut carried_out = (0..done).filter(|number| refused != Some(*number));
    assert!(carried_out.all(|number| pair.fits_both(expected.length(number))), "a request of another MTU");
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
        if let Services::Many(count) = self.services
            && count > 1
        {
            for count in [count / 2, count - 1] {
                add(&|smaller| smaller.services = Services::Many(count));
            }
        }
        macro_rules! drop_one_of {
            ($($list:ident),*) => {$(
                for number in 0..self.faults.$list.len() {
                    add(&|smaller| {
                        smaller.faults.$list.remove(number);
                    });
                }
            )*};
        }
        drop_one_of!(outages, narrowings, freezes, starvations, leaps);
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
        if self.faults.other_mtu.is_some() {
            add(&|smaller| smaller.faults.other_mtu = None);
        }
        if let Some(nearness) = self.faults.nearness {
            add(&|smaller| smaller.faults.nearness = None);
            if nearness.wait > 0 {
                add(&|smaller| smaller.faults.nearness = Some(Nearness { wait: 0, ..nearness }));
            }
            if nearness.longest_kept.is_some() {
                add(&|smaller| smaller.faults.nearness = Some(Nearness { longest_kept: None, ..nearness }));
            }
            if nearness.tick_lag.is_some() {
                add(&|smaller| smaller.faults.nearness = Some(Nearness { tick_lag: None, ..nearness }));
            }
        }
        if self.refused.is_some() {
            add(&|smaller| smaller.refused = None);
        }
        if self.buffer.is_some() {
            add(&|smaller| smaller.buffer = None);
        }
        if self.talks {
            add(&|smaller| smaller.talks = false);
        }
        if self.pace.is_some() {
            add(&|smaller| smaller.pace = None);
        }
        all
    }
}
