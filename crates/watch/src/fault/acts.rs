//! Faults at an instant: events, and what befalls the device or the process. After so much time a thread
//! carries them out, after so many posts or completions the thread of the program that made the last one.

use super::rule::{OfDevice, OfPeer, Subject};
use super::when::{Point, Span};
use super::{FAULTS, Faults, fork, restart};
use adverb_core::{clock, engine, log};
use adverb_libibverbs::abi::ibv_qp;
use adverb_libibverbs::device::devices;
use adverb_libibverbs::seam;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An end of what a rule says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Begins = 0,
    Ends = 1,
}

/// Something that befalls the process at a time.
type DueAct = (Duration, usize, Edge);

impl Faults {
    /// Both ends of a rule that have a point.
    fn edges(&self, place: usize) -> [Option<(Point, Edge)>; 2] {
        let rule = &self.rules[place].rule;
        let is_one = matches!(rule.subject, Subject::Event(_) | Subject::Device(_) | Subject::Peer(_));
        match rule.when.span {
            Span::From(begin, end) if is_one => {
                [Some((begin, Edge::Begins)), end.map(|end| (end, Edge::Ends))]
            }
            // The end of a time is known where it begins, or only then.
            Span::For(Point::Time(begin), time) => {
                let end = Point::Time(begin.saturating_add(time));
                [Some((Point::Time(begin), Edge::Begins)), Some((end, Edge::Ends))]
            }
            Span::For(begin, _) => [Some((begin, Edge::Begins)), None],
            _ => [None, None],
        }
    }

    /// Carries out the rules whose points these are. The queue pair is the one that posts, or NULL.
    ///
    /// # Safety
    /// `pair` is NULL or a queue pair.
    #[cold]
    pub(super) unsafe fn act(&self, pair: *mut ibv_qp, is_now: impl Fn(&Point) -> bool) {
        for place in 0..self.rules.len() {
            for (_, edge) in self.edges(place).into_iter().flatten().filter(|(point, _)| is_now(point)) {
                // SAFETY: the caller's promise.
                unsafe { self.carry_out(place, edge, pair) };
            }
        }
    }

    /// Carries out what is due at times: what is due at once, now, and the rest in a thread.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn act_in_time(&'static self) -> Result<(), String> {
        let (now, later): (Vec<_>, Vec<_>) = self.timed().into_iter().partition(|(time, place, _)| {
            time.is_zero() && matches!(self.rules[*place].rule.subject, Subject::Device(_))
        });
        for (_, place, edge) in now {
            // SAFETY: no queue pair is named.
            unsafe { self.carry_out(place, edge, null_mut()) };
        }
        self.act_later(later)
    }

    /// What is due at times, in its order.
    fn timed(&self) -> Vec<DueAct> {
        let mut all: Vec<DueAct> = Vec::new();
        for place in 0..self.rules.len() {
            for (point, edge) in self.edges(place).into_iter().flatten() {
                if let Point::Time(time) = point {
                    all.push((time, place, edge));
                }
            }
        }
        all.sort_by_key(|(time, ..)| *time);
        all
    }

    /// The first call in a child of fork: the parent's thread is not there.
    #[cold]
    pub(super) fn go_on_after_fork(&self) {
        let (Some(faults), forks) = (FAULTS.get(), fork::forks()) else { return };
        if faults.forks.swap(forks, Ordering::SeqCst) == forks {
            return;
        }
        faults.device.go_on_after_fork();
        let is_open =
            |(_, place, edge): &DueAct| !faults.rules[*place].done[*edge as usize].load(Ordering::Relaxed);
        let begun = faults.rules.iter().enumerate().filter_map(|(place, counted)| {
            let ends = counted.ends.load(Ordering::Relaxed);
            (ends > 0).then_some((Duration::from_nanos(ends), place, Edge::Ends))
        });
        let mut later: Vec<_> = faults.timed().into_iter().chain(begun).filter(is_open).collect();
        later.sort_by_key(|(time, ..)| *time);
        if let Err(why) = faults.act_later(later) {
            log!(Warn, "faults: {why}");
        }
    }

    /// Since the first call.
    fn passed(&self) -> Duration {
        Duration::from_nanos(clock::device().saturating_sub(self.began))
    }

    /// Carries out what is due at times, which have an order, in a thread. It is one of the engine's: as a
    /// thread of the program, it would keep the pages of regions from being moved.
    fn act_later(&'static self, later: Vec<DueAct>) -> Result<(), String> {
        if later.is_empty() {
            return Ok(());
        }
        // The first call may have made no engine yet.
        devices().map_err(|error| format!("no engine for faults at times: {error}"))?;
        let engine = engine::existing().ok_or("no engine for faults at times")?;
        let helpers = &engine.reactor.helpers;
        let act = move || {
            for (time, place, edge) in later {
                std::thread::sleep(time.saturating_sub(self.passed()));
                let _quiet = helpers.work();
                // SAFETY: no queue pair is named.
                unsafe { self.carry_out(place, edge, null_mut()) };
            }
        };
        // After a panic in it, nothing more is due. The engine goes on.
        let work = move || drop(catch_unwind(AssertUnwindSafe(act)));
        helpers.spawn("adverb-fault", work).map_err(|error| format!("no thread for faults at times: {error}"))
    }

    /// # Safety
    /// `pair` is NULL or a queue pair.
    unsafe fn carry_out(&self, place: usize, edge: Edge, pair: *mut ibv_qp) {
        let counted = &self.rules[place];
        let text = &counted.rule.text;
        counted.done[edge as usize].store(true, Ordering::Relaxed);
        if edge == Edge::Ends {
            log!(Warn, "fault of {text} ends");
            if let Subject::Device(what) = counted.rule.subject {
                self.device.set(what, counted.rule.of.device.as_deref(), false);
            }
            return;
        }
        counted.count.fetch_add(1, Ordering::Relaxed);
        counted.strike();
        let number = self.next_number();
        let say = |what: &str| log!(Warn, "fault {number}: {what} ({text})");
        let of = &counted.rule.of;
        // The one that posts, unless the rule says which.
        // SAFETY: the caller's promise.
        let posting = if of.pair.is_some() { None } else { unsafe { seam::name_of_pair(pair) } };
        let is_pair = |device: &str, number: u32| {
            of.has(&self.pairs, device, number)
                && posting.as_ref().is_none_or(|(other, its)| other == device && *its == number)
        };
        match &counted.rule.subject {
            Subject::Event(kind) if super::words::is_of_pair(*kind) => {
                say("an event of queue pairs");
                seam::raise_for_pairs(is_pair, *kind);
            }
            Subject::Event(kind) => {
                say("an event of the devices");
                let devices = devices().unwrap_or_default();
                let devices = devices.iter().filter(|device| of.has_device(device.name()));
                devices.for_each(|device| device.raise(*kind));
            }
            Subject::Device(what) => {
                say(match what {
                    OfDevice::PortDown => "the port is down",
                    OfDevice::GidRemoved(_) | OfDevice::GidAdded(_) | OfDevice::GidChanged(..) => {
                        "the table of GIDs is as the rule says"
                    }
                    OfDevice::Speed(_) => "the speed of the link is another",
                    OfDevice::Fatal => "the device has failed",
                    OfDevice::Gone => "the device is gone",
                });
                self.device.set(*what, of.device.as_deref(), true);
                if let (Span::For(Point::Posts(_) | Point::Completions(_), time), Some(faults)) =
                    (counted.rule.when.span, FAULTS.get())
                {
                    let end = self.passed().saturating_add(time);
                    let nanoseconds = u64::try_from(end.as_nanos()).unwrap_or(u64::MAX);
                    counted.ends.store(nanoseconds, Ordering::Relaxed);
                    if let Err(why) = faults.act_later(vec![(end, place, Edge::Ends)]) {
                        log!(Warn, "faults: {why}");
                    }
                }
            }
            Subject::Peer(OfPeer::Stall(time)) => {
                say("the program stalls");
                self.stall.begin(*time);
            }
            Subject::Peer(OfPeer::Kill) => {
                say("the program is killed");
                // SAFETY: plain numbers.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            Subject::Peer(OfPeer::Restart) => {
                say("the program starts again");
                let others = self.rules.iter().enumerate().filter(|(other, _)| *other != place);
                let rules: Vec<_> = others.map(|(_, other)| other.rule.text.as_str()).collect();
                if let Err(error) = restart::restart(&rules.join(",")) {
                    log!(Warn, "faults: the program cannot start again: {error}");
                }
            }
            Subject::Peer(OfPeer::Cut) => {
                say("queue pairs go into error");
                seam::break_pairs(is_pair);
            }
            Subject::Calls { .. } | Subject::Completion { .. } | Subject::Wire { .. } => {}
        }
    }
}
