//! The trace of a process: from the beginning of a call to the line about it.
//!
//! Arguments are written when a call begins, as it may free what they point to; what the function fills in,
//! when it has ended. A program that polls makes one line of all polls in a row that find nothing, with their
//! number; of up to [`RUNS`] queues that it polls in turn.

use crate::calls::{CALLS, Call, Work};
use crate::decode::CallOutcome;
use crate::format::{self, CompletedCall, Effects, Flow, Place};
use crate::output::{Output, forks};
use crate::requests::{Links, Queue};
use crate::setting::{Format, Target};
use crate::writer::{Style, Writer};
use adverb_core::cancel::CancellationGuard;
use adverb_core::clock;
use adverb_libibverbs::abi::{ibv_cq_ex, ibv_qp, ibv_qp_ex, ibv_recv_wr, ibv_send_wr, ibv_wc};
use adverb_libibverbs::seam::{self, Answer, Arguments, PostedRequest};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::OnceLock;

/// A call that has begun.
struct Record {
    writer: Writer,
    /// How many arguments are written.
    written: usize,
    start: u64,
    effects: Effects,
    /// The queue that it posts to, and its first request.
    queue: Option<(Queue, u64)>,
    fault: Option<u64>,
}

/// The number of queues that a thread may poll in turn.
const RUNS: usize = 4;
/// Polls are written after so many nanoseconds, whatever comes: a program that is killed shows them.
const LONG: u64 = 1_000_000_000;

/// Polls in a row that have found nothing.
struct Run {
    call: usize,
    queue: usize,
    arguments: Vec<u8>,
    answer: Answer,
    start: u64,
    end: u64,
    times: u64,
}

/// What a thread of the program keeps.
#[derive(Default)]
struct Thread {
    /// The thread's number, and in which child of fork that is so.
    number: Cell<(u32, u32)>,
    /// The handler of a signal may find it borrowed, and then its line is lost.
    runs: RefCell<Vec<Run>>,
    /// A record that is not used.
    spare: Cell<Option<Box<Record>>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        let (runs, number) = (self.take_runs(), self.number());
        if let Some(output) = TRACE.get() {
            let trace = LineTrace { output, chosen: Vec::new() };
            runs.iter().for_each(|run| trace.write_run(run, number));
        }
    }
}

impl Thread {
    fn take_runs(&self) -> Vec<Run> {
        self.runs.try_borrow_mut().map(|mut runs| std::mem::take(&mut *runs)).unwrap_or_default()
    }

    fn number(&self) -> u32 {
        let (number, born) = self.number.get();
        if number != 0 && born == forks() {
            return number;
        }
        // SAFETY: no arguments.
        let number = unsafe { libc::gettid() } as u32;
        self.number.set((number, forks()));
        // What the parent had polled is the parent's.
        if born != forks() {
            self.take_runs();
        }
        number
    }
}

/// The thread is busy with its trace. A call that the handler of a signal makes meanwhile is not in it: it
/// would find memory half allocated.
pub(crate) struct Inside;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Inside {
    /// From now on, unless it is so already.
    pub(crate) fn enter() -> Option<Self> {
        (!INSIDE.replace(true)).then(|| Self)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// The number of the calling thread, also while it ends.
pub(crate) fn thread() -> u32 {
    // SAFETY: no arguments.
    THREAD.try_with(Thread::number).unwrap_or_else(|_| unsafe { libc::gettid() } as u32)
}

thread_local! {
    static THREAD: Thread = Thread::default();
}

static TRACE: OnceLock<&'static Output> = OnceLock::new();

/// The trace of this process.
pub(crate) struct LineTrace {
    output: &'static Output,
    /// Which calls are shown.
    chosen: Vec<bool>,
}

impl LineTrace {
    /// Begins it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn begin(target: Target, chosen: Vec<bool>) -> io::Result<Self> {
        let _whole = CancellationGuard::new();
        format::base();
        let output: &'static Output = Box::leak(Box::new(Output::open(target)?));
        if TRACE.set(output).is_ok() {
            output.survive_forks();
            // SAFETY: a static function that may run at exit.
            unsafe { libc::atexit(at_exit) };
        }
        Ok(Self { output, chosen })
    }

    fn is_json(&self) -> bool {
        self.output.format() != Format::Text
    }

    fn style(&self) -> Style {
        if self.is_json() { Style::Json } else { Style::Text }
    }

    /// A call begins: the word that is handed to [`LineTrace::ended`], 0 if it is not shown.
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(crate) unsafe fn begins(&self, index: usize, call: &'static Call, arguments: &Arguments) -> usize {
        if !self.chosen[index] {
            return 0;
        }
        let _whole = CancellationGuard::new();
        let Some(_inside) = Inside::enter() else { return 0 };
        let spare = THREAD.try_with(|thread| thread.spare.take()).ok().flatten();
        let mut record = spare.unwrap_or_else(|| {
            Box::new(Record {
                writer: Writer::new(self.style()),
                written: 0,
                start: 0,
                effects: Effects::default(),
                queue: None,
                fault: None,
            })
        });
        let seen = CallOutcome { arguments, value: 0, failed: false };
        record.writer.begin();
        for ((name, form), word) in call.arguments.iter().zip(arguments) {
            if form.is_result() {
                break;
            }
            form.write(record.writer.key(name.trim_start_matches("r#")), *word, seen);
            record.written += 1;
        }
        if self.is_json() {
            // SAFETY: the caller's promise.
            unsafe { self.post(&mut record, call, arguments) };
        } else if call.work == Work::Builders {
            // SAFETY: the caller's promise: the thread has the builders.
            unsafe {
                seam::gathered(arguments[0] as *mut ibv_qp_ex, |posted, _| {
                    record.effects.posted.push(*posted)
                })
            };
        }
        // Last, so that the time is that of the call.
        record.start = clock::device();
        Box::into_raw(record) as usize
    }

    /// Takes down the requests that a call is about to post: a completion may come before it returns.
    ///
    /// # Safety
    /// The arguments are right for the call.
    unsafe fn post(&self, record: &mut Record, call: &Call, arguments: &Arguments) {
        let mut posted: Vec<PostedRequest> = Vec::new();
        // SAFETY: the caller's promise.
        let queue = unsafe {
            let number = || {
                let pair = arguments[0] as *const ibv_qp;
                if pair.is_null() { 0 } else { (&raw const (*pair).qp_num).read_unaligned() }
            };
            match call.work {
                Work::Sends => {
                    let list = arguments[1] as *const ibv_send_wr;
                    seam::sends(arguments[0] as *mut ibv_qp, list, |request, _| posted.push(*request));
                    Queue::Sends(number())
                }
                Work::Receives => {
                    seam::receives(arguments[1] as *const ibv_recv_wr, |request, _| posted.push(*request));
                    match call.name {
                        "ibv_post_recv" => Queue::Receives(number()),
                        _ => Queue::Shared(arguments[0]),
                    }
                }
                Work::Builders => {
                    seam::gathered(arguments[0] as *mut ibv_qp_ex, |request, _| posted.push(*request));
                    record.effects.posted.clone_from(&posted);
                    Queue::Sends(number())
                }
                _ => {
                    if call.name == "ibv_destroy_qp" {
                        let number = number();
                        self.output.with(|state| state.requests.forget(number));
                    }
                    return;
                }
            }
        };
        let effects = &mut record.effects;
        // SAFETY: the caller's promise: it is a queue pair.
        let place = matches!(queue, Queue::Sends(_))
            .then(|| unsafe { seam::posted(arguments[0] as *mut ibv_qp) })
            .flatten();
        effects.place = place;
        self.output.with(|state| {
            for (index, request) in posted.iter().enumerate() {
                let name = format::request_name(request.role, request.opcode);
                let place = place.map(|place| place + index as u64);
                let number = state.requests.post(queue, request.wr_id, request.is_reported, name, place);
                effects.numbers.push(number);
                effects.flows.push(Flow { number, name, begins: true });
            }
        });
        record.queue = effects.numbers.first().map(|first| (queue, *first));
    }

    /// The call, or one of its completions, is a fault.
    pub(crate) fn injected(&self, word: usize, number: u64) {
        // SAFETY: the word of a call that has begun and not ended.
        if let Some(record) = unsafe { (word as *mut Record).as_mut() } {
            record.fault = Some(number);
        }
    }

    /// The call has ended.
    ///
    /// # Safety
    /// As of [`LineTrace::begins`], whose word this is.
    pub(crate) unsafe fn ended(
        &self,
        index: usize,
        call: &'static Call,
        arguments: &Arguments,
        word: usize,
        answer: Answer,
    ) {
        let end = clock::device();
        if word == 0 {
            return;
        }
        let _whole = CancellationGuard::new();
        let Some(_inside) = Inside::enter() else { return };
        // SAFETY: made by `begins`, and given back once.
        let mut record = unsafe { Box::from_raw(word as *mut Record) };
        let failure = format::failure(call, answer);
        let is_empty = call.is_poll()
            && match call.work {
                Work::Completions => answer.value as i32 == 0,
                _ => failure == Some(libc::ENOENT),
            };
        let seen = CallOutcome { arguments, value: answer.value, failed: failure.is_some() };
        for ((name, form), word) in call.arguments.iter().zip(arguments).skip(record.written) {
            form.write(record.writer.key(name.trim_start_matches("r#")), *word, seen);
        }
        let thread = thread();
        let is_taken =
            is_empty && record.fault.is_none() && self.takes_run(index, arguments, &record, answer, end);
        if !is_taken {
            self.end_run(thread);
            if self.is_json() {
                // SAFETY: the caller's promise.
                unsafe { self.effects(&mut record, call, arguments, answer, failure.is_some()) };
            } else if call.work == Work::Cursor && failure.is_none() {
                // SAFETY: the caller's promise: the thread has the cursor now.
                record.effects.completed = unsafe { seam::under_cursor(arguments[0] as *mut ibv_cq_ex) };
            }
            let ended = CompletedCall {
                place: Place::own(),
                result: None,
                call,
                answer,
                arguments: &record.writer.bytes,
                start: record.start,
                end,
                times: 1,
                thread,
                fault: record.fault,
            };
            self.output.append(&format::write(self.output.format(), &ended, &record.effects), end);
        }
        record.writer.bytes.clear();
        (record.written, record.queue, record.fault) = (0, None, None);
        record.effects.numbers.clear();
        record.effects.flows.clear();
        record.effects.arrivals.clear();
        record.effects.posted.clear();
        record.effects.completed = None;
        record.effects.place = None;
        let _ = THREAD.try_with(|thread| thread.spare.set(Some(record)));
    }

    /// Finds the requests of completions, and takes back those that were not posted.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so.
    unsafe fn effects(
        &self,
        record: &mut Record,
        call: &Call,
        arguments: &Arguments,
        answer: Answer,
        failed: bool,
    ) {
        let effects = &mut record.effects;
        if let (Some((queue, first)), true) = (record.queue, failed) {
            let mut taken = 0;
            if matches!(call.work, Work::Sends | Work::Receives) && arguments[2] != 0 {
                // SAFETY: the call has written there which request was the first that it did not take; the
                // list is as it was.
                unsafe {
                    let bad = *(arguments[2] as *const usize);
                    let mut next = arguments[1];
                    while next != 0 && next != bad && taken < effects.numbers.len() {
                        taken += 1;
                        next = match call.work {
                            Work::Sends => (*(next as *const ibv_send_wr)).next as usize,
                            _ => (*(next as *const ibv_recv_wr)).next as usize,
                        };
                    }
                }
            }
            effects.numbers.truncate(taken);
            effects.flows.truncate(taken);
            self.output.with(|state| state.requests.refuse(queue, first + taken as u64));
        }
        let mut found = Vec::new();
        // SAFETY: the caller's promise.
        unsafe {
            match call.work {
                Work::Completions if !failed => {
                    let list = arguments[2] as *const ibv_wc;
                    seam::completed(list, answer.value as u32 as usize, |completion| found.push(*completion));
                }
                Work::Cursor if !failed => {
                    effects.completed = seam::under_cursor(arguments[0] as *mut ibv_cq_ex);
                    found.extend(effects.completed);
                }
                _ => return,
            }
        }
        self.output.with(|state| {
            for completion in &found {
                let number = state.requests.find(completion, |number, name| {
                    effects.flows.push(Flow { number, name, begins: false });
                });
                effects.numbers.push(number.unwrap_or(0));
                let is_message = completion.is_receive() && completion.status == 0;
                let arrival =
                    is_message.then(|| state.requests.take_arrival(completion.queue_pair)).flatten();
                effects.arrivals.push(arrival.map(|arrival| (completion.queue_pair, arrival)));
            }
        });
    }

    /// Counts a poll that has found nothing with those before it. False if it is to be written by itself.
    fn takes_run(
        &self,
        call: usize,
        arguments: &Arguments,
        record: &Record,
        answer: Answer,
        end: u64,
    ) -> bool {
        let key = (call, arguments[0]);
        let old = THREAD.try_with(|thread| {
            let Ok(mut runs) = thread.runs.try_borrow_mut() else { return None };
            if let Some(place) = runs.iter().position(|run| (run.call, run.queue) == key) {
                let run = &mut runs[place];
                (run.end, run.times) = (end, run.times + 1);
                let is_long = end.saturating_sub(run.start) >= LONG;
                return is_long.then(|| (runs.remove(place), thread.number()));
            }
            // The one that was polled least lately makes room.
            let oldest = (0..runs.len()).min_by_key(|place| runs[*place].end);
            let old = oldest.filter(|_| runs.len() >= RUNS).map(|place| runs.remove(place));
            runs.push(Run {
                call,
                queue: arguments[0],
                arguments: record.writer.bytes.clone(),
                answer,
                start: record.start,
                end,
                times: 1,
            });
            old.map(|run| (run, thread.number()))
        });
        // Not while they are borrowed: the handler of a signal may come in between.
        if let Ok(Some((run, thread))) = &old {
            self.write_run(run, *thread);
        }
        old.is_ok()
    }

    /// Polls that have found nothing become a line.
    fn end_run(&self, thread: u32) {
        let runs = THREAD.try_with(Thread::take_runs).unwrap_or_default();
        runs.iter().for_each(|run| self.write_run(run, thread));
    }

    /// A transport has shown something.
    pub(crate) fn seen(&self, time: u64, seen: &format::TransportEvent) {
        let _whole = CancellationGuard::new();
        let Some(_inside) = Inside::enter() else { return };
        let format = self.output.format();
        let links = match format {
            Format::Text => Links::default(),
            _ => self.output.with(|state| state.requests.link(seen)),
        };
        let lines = format::seen(format, Place::own(), (time, thread()), seen, links);
        if !lines.is_empty() {
            self.output.append(&lines, time);
        }
    }

    fn write_run(&self, run: &Run, thread: u32) {
        let ended = CompletedCall {
            place: Place::own(),
            result: None,
            call: &CALLS[run.call],
            answer: run.answer,
            arguments: &run.arguments,
            start: run.start,
            end: run.end,
            times: run.times,
            thread,
            fault: None,
        };
        let line = format::write(self.output.format(), &ended, &Effects::default());
        self.output.append(&line, run.end);
    }
}

extern "C" fn at_exit() {
    let Some(output) = TRACE.get() else { return };
    // The handler of a signal may end the program.
    let Some(_inside) = Inside::enter() else { return output.break_off() };
    let trace = LineTrace { output, chosen: Vec::new() };
    trace.end_run(thread());
    output.end();
}
