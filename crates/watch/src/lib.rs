//! Traces of the calls of verbs and rdma_cm, faults in them, and the check of programs: what watches a
//! process through [`adverb_libibverbs::seam`].
//!
//! Nothing here runs, and no variable is read twice, in a process that nobody watches.

mod calls;
pub mod check;
mod decode;
pub mod fault;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod names;
mod output;
mod requests;
pub mod ring;
pub mod setting;
mod trace;
mod writer;

use adverb_core::setting::variable;
use adverb_core::watch::{self, Packet, Packets, RequestStart};
use adverb_core::{clock, log};
use adverb_libibverbs::seam::{Answer, Arguments, Function, Watcher};
use calls::{CALLS, Call};
use check::Check;
use fault::Faults;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use trace::LineTrace;

/// The watchers of this process.
struct Watch {
    trace: Option<RunningTrace>,
    faults: Option<&'static Faults>,
    check: Option<&'static Check>,
}

/// A trace: in lines, or in a ring.
enum RunningTrace {
    Lines(LineTrace),
    Ring(ring::trace::RingTrace),
}

macro_rules! either {
    ($traced:expr, $trace:ident => $work:expr) => {
        match $traced {
            RunningTrace::Lines($trace) => $work,
            RunningTrace::Ring($trace) => $work,
        }
    };
}

static WATCH: OnceLock<Option<Watch>> = OnceLock::new();

/// Hands on what transports show.
struct PacketForwarder;

impl PacketForwarder {
    fn seen(&self, time: u64, seen: &format::TransportEvent) {
        if let Some(trace) = WATCH.get().and_then(|watch| watch.as_ref()?.trace.as_ref()) {
            either!(trace, trace => trace.seen(time, seen));
        }
    }
}

impl Packets for PacketForwarder {
    fn packet(&self, time: u64, packet: &Packet) {
        self.seen(time, &format::TransportEvent::Packet(*packet));
    }

    fn begun(&self, begun: &RequestStart) {
        self.seen(clock::device(), &format::TransportEvent::RequestStart(*begun));
    }
}

/// The trace that the variables want.
fn traced() -> Option<RunningTrace> {
    let text = variable(setting::TRACE).filter(|text| !text.trim().is_empty())?;
    let target = setting::Target::parse(&text);
    let list = variable(setting::ONLY).unwrap_or_default();
    let chosen = setting::only(&list).unwrap_or_else(|why| {
        log::say(format_args!("{}: {why}", setting::ONLY));
        vec![true; CALLS.len()]
    });
    let has_packets = setting::has_packets(&list, target.format);
    let begun = match target.format {
        setting::Format::Ring => ring::trace::RingTrace::begin(&target.file, chosen).map(RunningTrace::Ring),
        _ => LineTrace::begin(target, chosen).map(RunningTrace::Lines),
    };
    let traced = begun
        .inspect_err(|error| log::say(format_args!("{}={text} cannot be written: {error}", setting::TRACE)))
        .ok()?;
    if has_packets {
        watch::install(&PacketForwarder);
    }
    Some(traced)
}

/// The word of a function that is no call.
const NONE: usize = usize::MAX;

/// Which call a function is: its place in the list.
fn call(function: &Function) -> Option<(usize, &'static Call)> {
    let mut mark = function.mark.load(Ordering::Relaxed);
    if mark == 0 {
        mark = calls::find(function.name).map_or(NONE, |index| index + 1);
        function.mark.store(mark, Ordering::Relaxed);
    }
    CALLS.get(mark.wrapping_sub(1)).map(|call| (mark - 1, call))
}

/// What the trace and the check keep from the beginning of a call to its end.
struct Words {
    record: usize,
    checked: usize,
}

impl Words {
    /// Marks of a word. The words of both are addresses, which have zeros there.
    const CHECKED: usize = 1;
    const BOTH: usize = 2;

    /// One word for both.
    fn join(record: usize, checked: usize) -> usize {
        match (record, checked) {
            (record, 0) => record,
            (0, checked) => checked | Self::CHECKED,
            (record, checked) => Box::into_raw(Box::new(Self { record, checked })) as usize | Self::BOTH,
        }
    }

    /// Both words of one.
    ///
    /// # Safety
    /// It is of [`Words::join`], and comes here once.
    unsafe fn split(word: usize) -> Self {
        match word & (Self::CHECKED | Self::BOTH) {
            Self::CHECKED => Self { record: 0, checked: word & !Self::CHECKED },
            // SAFETY: the caller's promise.
            Self::BOTH => *unsafe { Box::from_raw((word & !Self::BOTH) as *mut Self) },
            _ => Self { record: word, checked: 0 },
        }
    }
}

/// Starts the watcher of this process, if the environment asks for one.
pub fn start() -> Option<&'static dyn Watcher> {
    let watch = WATCH.get_or_init(|| {
        let trace = traced();
        let faults = variable(fault::FAULT).filter(|text| !text.trim().is_empty()).and_then(|text| {
            Faults::start(&text, variable(fault::SEED).as_deref())
                .inspect_err(|why| log::say(format_args!("{}: {why}", fault::FAULT)))
                .ok()
        });
        let check = Check::begin();
        (trace.is_some() || faults.is_some() || check.is_some()).then_some(Watch { trace, faults, check })
    });
    watch.as_ref().map(|watch| watch as &dyn Watcher)
}

impl Watcher for Watch {
    unsafe fn begins(&self, function: &'static Function, arguments: &Arguments) -> (usize, Option<Answer>) {
        let Some((index, call)) = call(function) else { return (0, None) };
        let record = self.trace.as_ref().map_or(0, |trace| {
            // SAFETY: the caller's promise.
            unsafe { either!(trace, trace => trace.begins(index, call, arguments)) }
        });
        // Before a fault takes back what builders have gathered.
        let checked = self.check.map_or(0, |check| {
            // SAFETY: the caller's promise.
            unsafe { check.begins(index, call, arguments) }
        });
        // SAFETY: the caller's promise.
        let injected = self.faults.and_then(|faults| unsafe { faults.instead(index, call, arguments) });
        if let Some((_, number)) = injected {
            if let Some(trace) = &self.trace {
                either!(trace, trace => trace.injected(record, number));
            }
            if let Some(check) = self.check {
                // SAFETY: of `begins`, and the call has not ended.
                unsafe { check.injected(checked) };
            }
        }
        (Words::join(record, checked), injected.map(|(answer, _)| answer))
    }

    unsafe fn ended(
        &self,
        function: &'static Function,
        arguments: &Arguments,
        word: usize,
        answer: Answer,
    ) -> Answer {
        let Some((index, call)) = call(function) else { return answer };
        // SAFETY: of `begins`.
        let Words { record, checked } = unsafe { Words::split(word) };
        let mut injected = None;
        if let Some(faults) = self.faults {
            // SAFETY: the caller's promise.
            injected = unsafe { faults.ended(call, arguments, answer) };
            if let (Some(number), Some(trace)) = (injected, &self.trace) {
                either!(trace, trace => trace.injected(record, number));
            }
        }
        if let Some(check) = self.check {
            // SAFETY: the caller's promise.
            unsafe { check.ended(index, call, arguments, checked, (answer, injected.is_some())) };
        }
        if let Some(trace) = &self.trace {
            // SAFETY: the caller's promise.
            unsafe { either!(trace, trace => trace.ended(index, call, arguments, record, answer)) };
        }
        answer
    }
}
