//! Faults that a run wants (`adverb run --fault`): calls that fail, completions with an error, packets that
//! are lost, events, and what befalls the device or the process.
//!
//! Each rule counts what it is about. The same calls in the same order get the same faults: chance is
//! computed from the seed, the place of the rule and the count.

mod acts;
mod chosen;
mod completions;
mod device;
mod fork;
mod grammar;
mod network;
mod restart;
mod rule;
mod run_devices;
mod when;
mod words;

pub use grammar::{FORM, check, check_rule};
pub use run_devices::{RunDevice, check_devices};
pub use words::{COMPLETION, DEVICE, EVENTS, PEER, STATUSES, WIRE, operation_names};

use crate::calls::{Call, Returns, Work};
use crate::names;
use adverb_core::{clock, interfaces, late, log, random, wire};
use adverb_libibverbs::abi::{ibv_qp, ibv_qp_ex};
use adverb_libibverbs::seam::{self, Answer, Arguments};
use chosen::Pairs;
use completions::FlushedPairs;
use network::Flows;
use rule::{OfCompletion, OfDevice, Rule, Subject};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use when::{MILLION, Point, Span};

/// Says which faults a run wants.
pub const FAULT: &str = "ADVERB_FAULT";
/// The number from which chance is computed.
pub const SEED: &str = "ADVERB_SEED";
/// What counts if no number is given.
pub const DEFAULT_SEED: u64 = 1;

/// Packets or completions of a rule of which the log has a line each.
const MOST_LINES: u64 = 1000;

/// The faults of this process.
pub(crate) struct Faults {
    rules: Vec<RuleCounter>,
    seed: u64,
    /// The first call, on the device's clock.
    began: u64,
    /// How many there have been.
    number: AtomicU64,
    /// The fork up to which there is a thread for what is due at times.
    forks: AtomicU32,
    has_completions: bool,
    /// Rules that strike after so many posts or completions.
    has_points: bool,
    posts: AtomicU64,
    completions: AtomicU64,
    broken: FlushedPairs,
    pairs: Pairs,
    device: device::Device,
    stall: device::Stall,
}

/// A rule, and how often what it is about has come.
struct RuleCounter {
    rule: Rule,
    count: AtomicU64,
    struck: AtomicU64,
    /// Events of the rule for which a line of the log was due. At most [`MOST_LINES`] of them have one.
    told: AtomicU64,
    flows: Mutex<Flows>,
    /// Whether the rule has begun, and whether it has ended, at its times.
    done: [AtomicBool; 2],
    /// Nanoseconds from the first call until it ends, where posts or completions began it.
    ends: AtomicU64,
}

impl RuleCounter {
    /// How often it has struck.
    fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// Notes that it has.
    fn strike(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
    }
}

static FAULTS: OnceLock<Faults> = OnceLock::new();

impl Faults {
    /// Out of the values of the variables.
    ///
    /// # Errors
    /// Where a rule is wrong, and what is allowed.
    fn begin(text: &str, seed: Option<&str>) -> Result<Self, String> {
        let rules = grammar::parse(text)?;
        let seed = match seed.map(str::trim).filter(|seed| !seed.is_empty()) {
            Some(seed) => seed.parse().map_err(|_| format!("{SEED}={seed}: wanted is a number"))?,
            None => DEFAULT_SEED,
        };
        let fails =
            |rule: &Rule| matches!(rule.subject, Subject::Completion { what: OfCompletion::Fails(_), .. });
        let has_completions = rules.iter().any(fails);
        let pairs = Pairs::of(rules.iter().map(|rule| &rule.of));
        let counts = |rule: &Rule| {
            let (begin, end) = match rule.when.span {
                Span::From(begin, end) => (Some(begin), end),
                Span::For(begin, _) => (Some(begin), None),
                Span::Always | Span::Counts(..) => (None, None),
            };
            let is_counted = |point: Point| matches!(point, Point::Posts(_) | Point::Completions(_));
            begin.is_some_and(is_counted) || end.is_some_and(is_counted)
        };
        let has_points = rules.iter().any(counts);
        let rules = rules.into_iter().map(|rule| RuleCounter {
            rule,
            count: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            told: AtomicU64::new(0),
            flows: Mutex::default(),
            done: [const { AtomicBool::new(false) }; 2],
            ends: AtomicU64::new(0),
        });
        Ok(Self {
            rules: rules.collect(),
            seed,
            began: clock::device(),
            number: AtomicU64::new(0),
            forks: AtomicU32::new(fork::forks()),
            has_completions,
            has_points,
            posts: AtomicU64::new(0),
            completions: AtomicU64::new(0),
            broken: FlushedPairs::new(),
            pairs,
            device: device::Device::default(),
            stall: device::Stall::default(),
        })
    }

    /// The faults of this process, which begin now.
    ///
    /// # Errors
    /// Where a rule is wrong, and what is allowed; or there is no thread for times.
    pub(crate) fn start(text: &str, seed: Option<&str>) -> Result<&'static Self, String> {
        let new = Self::begin(text, seed)?;
        let faults = FAULTS.get_or_init(|| new);
        log!(Warn, "faults: {text}, seed {}", faults.seed);
        let is_of_packets = |subject: &Subject| {
            use OfDevice::{Fatal, Gone, PortDown};
            matches!(subject, Subject::Wire { .. } | Subject::Device(PortDown | Fatal | Gone))
        };
        if faults.has(is_of_packets) {
            log!(Warn, "faults: packets within this host go by the network, as with ADVERB_LOCAL=off");
            wire::install(faults);
        }
        let is_late = |subject: &Subject| {
            use OfCompletion::{Delay, Reorder};
            matches!(subject, Subject::Completion { what: Delay { .. } | Reorder(_), .. })
        };
        if faults.pairs.are_wanted() || faults.has(is_late) {
            late::install(faults);
        }
        if faults.has(|subject| matches!(subject, Subject::Device(_))) {
            let alter = |device: Option<&str>, found: &mut interfaces::Interfaces| {
                faults.device.alter(device, found);
            };
            interfaces::alter(Box::leak(Box::new(alter)));
        }
        Self::survive_forks();
        faults.act_in_time()?;
        // SAFETY: a static function; the libraries that hold it are never unloaded.
        unsafe { libc::atexit(at_exit) };
        Ok(faults)
    }

    fn has(&self, is_it: impl Fn(&Subject) -> bool) -> bool {
        self.rules.iter().any(|counted| is_it(&counted.rule.subject))
    }

    /// Counts for a rule, and says which number it is if it is to strike.
    fn strikes(&self, place: usize) -> Option<u64> {
        self.strikes_at(place, 0)
    }

    /// Counts for a rule at the time `now`, and says which number it is if it is to strike. A time of 0 is
    /// looked up.
    fn strikes_at(&self, place: usize, now: u64) -> Option<u64> {
        let counted = &self.rules[place];
        let count = counted.count.fetch_add(1, Ordering::Relaxed) + 1;
        let when = &counted.rule.when;
        let is_in_span = match when.span {
            Span::Always => true,
            Span::Counts(first, last) => (first..=last).contains(&count),
            Span::From(Point::Time(begin), end) => {
                let now = if now == 0 { clock::device() } else { now };
                let passed = u128::from(now.saturating_sub(self.began));
                let is_over = matches!(end, Some(Point::Time(end)) if passed >= end.as_nanos());
                passed >= begin.as_nanos() && !is_over
            }
            Span::From(..) | Span::For(..) => false,
        };
        let strikes =
            is_in_span && (when.chance == MILLION || self.drawn(place, count) % MILLION < when.chance);
        strikes.then(|| {
            counted.strike();
            count
        })
    }

    /// The number that is drawn for the rule at this place and what it counts.
    fn drawn(&self, place: usize, count: u64) -> u64 {
        // Two steps, so that neighbours have nothing in common.
        random::next(random::next(self.seed ^ (place as u64) << 56) ^ count)
    }

    /// A line of the log for a rule about many things. Of one about each of them, only the first one.
    fn say_some(&self, counted: &RuleCounter, say: impl FnOnce(u64, &str)) {
        let lines = if counted.rule.when.is_steady() { 1 } else { MOST_LINES };
        let (told, text) = (counted.told.fetch_add(1, Ordering::Relaxed) + 1, &counted.rule.text);
        if told <= lines {
            say(self.next_number(), text);
        }
        if told == MOST_LINES && lines == MOST_LINES {
            log!(Warn, "faults: further ones of the rule {text} have no lines");
        }
    }

    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A call begins: what it answers if it fails, and the number of the fault.
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(crate) unsafe fn instead(
        &self,
        index: usize,
        call: &Call,
        arguments: &Arguments,
    ) -> Option<(Answer, u64)> {
        if self.forks.load(Ordering::Relaxed) != fork::forks() {
            self.go_on_after_fork();
        }
        if self.has_points && matches!(call.work, Work::Sends | Work::Builders) {
            let posts = self.posts.fetch_add(1, Ordering::Relaxed) + 1;
            // SAFETY: the caller's promise.
            unsafe { self.act(arguments[0] as *mut ibv_qp, |point| *point == Point::Posts(posts)) };
        }
        if !self.stall.is_idle() {
            self.stall.wait();
        }
        let mut found = None;
        // Each rule counts, whether another one strikes or not.
        for (place, counted) in self.rules.iter().enumerate() {
            if let Subject::Calls { chosen, errno } = &counted.rule.subject
                && chosen[index]
                // SAFETY: the caller's promise.
                && unsafe { counted.rule.of.has_call(&self.pairs, call, arguments) }
                && let Some(count) = self.strikes(place)
            {
                found = found.or(Some((*errno, count, &counted.rule.text)));
            }
        }
        let answer = match found {
            Some((errno, count, text)) => {
                let number = self.next_number();
                let name = names::of_errno(errno).unwrap_or("an error");
                log!(Warn, "fault {number}: {}, call {count}, fails with {name} ({text})", call.name);
                (errno, number)
            }
            // SAFETY: the caller's promise.
            None => (unsafe { self.device.refuses(call, arguments) }?, self.number.load(Ordering::Relaxed)),
        };
        // SAFETY: the caller's promise.
        Some((unsafe { refuse(call, arguments, answer.0) }, answer.1))
    }

    /// A call has ended. Gives completions that it hands out another status: the number of the last fault, if
    /// there is one.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so.
    pub(crate) unsafe fn ended(&self, call: &Call, arguments: &Arguments, answer: Answer) -> Option<u64> {
        // SAFETY: the caller's promise.
        unsafe {
            self.device.hide(call, arguments, answer);
            let number = self.completions(call, arguments, answer);
            if self.has_points {
                self.count_completions(call, answer);
            }
            number
        }
    }

    /// Counts the completions of a call.
    fn count_completions(&self, call: &Call, answer: Answer) {
        let more = match call.work {
            Work::Completions => u64::try_from(answer.value as i32).unwrap_or(0),
            Work::Cursor => u64::from(answer.value as i32 == 0),
            _ => 0,
        };
        if more > 0 {
            let before = self.completions.fetch_add(more, Ordering::Relaxed);
            let come = before + 1..=before + more;
            let is_it = |point: &Point| matches!(point, Point::Completions(count) if come.contains(count));
            // SAFETY: no queue pair is named.
            unsafe { self.act(null_mut(), is_it) };
            if !self.stall.is_idle() {
                self.stall.wait();
            }
        }
    }
}

/// What a call that fails answers, and does.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn refuse(call: &Call, arguments: &Arguments, errno: i32) -> Answer {
    match call.work {
        // The first request of the list is the one that is not taken.
        Work::Sends | Work::Receives if arguments[2] != 0 => {
            // SAFETY: the caller's promise.
            unsafe { *(arguments[2] as *mut usize) = arguments[1] };
        }
        Work::None if call.name == "ibv_get_device_list" && arguments[0] != 0 => {
            // SAFETY: the caller's promise: the number of devices goes there.
            unsafe { *(arguments[0] as *mut i32) = 0 };
        }
        // SAFETY: the caller's promise: the thread has the builders, and gives them up.
        Work::Builders => unsafe { seam::abandon(arguments[0] as *mut ibv_qp_ex) },
        _ => {}
    }
    let value = match call.returns {
        Returns::Object(_) | Returns::Pointer | Returns::Value(_) | Returns::Nothing => 0,
        Returns::Number | Returns::Poll => errno as usize,
        Returns::MinusOne => -1_isize as usize,
        Returns::Count | Returns::WideCount => -(errno as isize) as usize,
    };
    Answer { value, errno }
}

/// The process ends: the rules that did nothing are said.
extern "C" fn at_exit() {
    let Some(faults) = FAULTS.get() else { return };
    for (place, counted) in faults.rules.iter().enumerate() {
        let (text, came) = (&counted.rule.text, counted.count.load(Ordering::Relaxed));
        match counted.struck() {
            0 => log!(
                Warn,
                "faults: rule {}, {text}, has never struck; {} so far: {came}",
                place + 1,
                counted.rule.subject.noun()
            ),
            struck => log!(Info, "faults: rule {}, {text}, has struck {struck} of {came} times", place + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{CALLS, find};

    fn faults(text: &str, seed: &str) -> Faults {
        Faults::begin(text, Some(seed)).expect("rules")
    }

    /// Which of the calls fail, and with what.
    fn failing(faults: &Faults, name: &str, calls: u64) -> Vec<u64> {
        let index = find(name).expect("a call");
        // SAFETY: the call has no results that are written.
        let fails = |_: &u64| unsafe { faults.instead(index, &CALLS[index], &[0; 6]) }.is_some();
        (1..=calls).filter(fails).collect()
    }

    #[test]
    fn a_rule_strikes_always_once_or_from_a_call_on() {
        assert_eq!(failing(&faults("ibv_reg_mr:ENOMEM", "1"), "ibv_reg_mr", 3), [1, 2, 3]);
        assert_eq!(failing(&faults("ibv_reg_mr:ENOMEM@3", "1"), "ibv_reg_mr", 5), [3]);
        assert_eq!(failing(&faults("ibv_reg_mr:ENOMEM@3+", "1"), "ibv_reg_mr", 5), [3, 4, 5]);
        assert_eq!(failing(&faults("ibv_reg_mr:ENOMEM", "1"), "ibv_alloc_pd", 3), [0_u64; 0]);
        assert_eq!(failing(&faults("ibv_reg_*:ENOMEM@2", "1"), "ibv_reg_mr_iova2", 3), [2]);
        assert_eq!(failing(&faults("ibv_reg_mr:EIO@1,ibv_reg_mr:EPERM@2", "1"), "ibv_reg_mr", 3), [1, 2]);
    }

    #[test]
    fn chance_is_the_seeds_and_about_as_often_as_it_says() {
        let strikes = |seed| failing(&faults("ibv_post_send:ENOMEM%5", seed), "ibv_post_send", 10_000);
        let one = strikes("7");
        assert_eq!(one, strikes("7"));
        assert_ne!(one, strikes("8"));
        assert!((400..600).contains(&one.len()), "{}", one.len());
        let both = faults("ibv_post_send:ENOMEM%50,ibv_post_recv:ENOMEM%50", "7");
        assert_ne!(failing(&both, "ibv_post_send", 100), failing(&both, "ibv_post_recv", 100));
        assert_eq!(failing(&faults("ibv_post_send:ENOMEM%100", "1"), "ibv_post_send", 50).len(), 50);
    }

    #[test]
    fn each_kind_of_function_fails_in_its_own_way() {
        let answer = |name: &str| {
            let index = find(name).expect("a call");
            let faults = faults(&format!("{name}:EIO"), "1");
            // SAFETY: the calls have no results that are written.
            let (answer, number) = unsafe { faults.instead(index, &CALLS[index], &[0; 6]) }.expect("a fault");
            assert_eq!(number, 1);
            (answer.value as isize, answer.errno)
        };
        assert_eq!(answer("ibv_alloc_pd"), (0, libc::EIO));
        assert_eq!(answer("ibv_destroy_qp").0, libc::EIO as isize);
        assert_eq!(answer("rdma_listen"), (-1, libc::EIO));
        assert_eq!(answer("ibv_poll_cq").0, -libc::EIO as isize);
        assert_eq!(answer("ibv_post_send").0, libc::EIO as isize);
    }
}
