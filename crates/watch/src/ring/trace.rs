//! The trace of a process in a ring: a call becomes one record. Posts and polls are copied as they are; what
//! they mean is found by those that read the ring.

use super::record::{self, CallRecord, PostEnd, PostHead, RecordKind, Words};
use super::{Ring, release};
use crate::calls::{Call, Work};
use crate::decode;
use crate::format::{self, TransportEvent};
use crate::output::forks;
use crate::requests::Queue;
use crate::trace::{Inside, thread};
use crate::writer::{Style, Writer};
use adverb_core::cancel::CancellationGuard;
use adverb_core::clock;
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::{self, Answer, Arguments, PostedRequest};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::OnceLock;

/// Longer lists of requests are written as their lengths say, and not copied.
const MOST_COPIED: usize = 64;
/// The number of queues that a thread may poll in turn.
const RUNS: usize = 4;
/// Polls are written after so many nanoseconds, whatever comes.
const LONG: u64 = 1_000_000_000;
/// Marks the word of a poll: the rest is when it began. Words of other calls are addresses.
const POLL: usize = 4;

/// A call that has begun.
struct Pending {
    index: usize,
    start: u64,
    /// The record of a post, as far as it is known, with so many requests.
    post: Option<(RecordKind, usize)>,
    bytes: Vec<u8>,
    /// Arguments of other calls, of which so many are written.
    writer: Writer,
    written: usize,
    posted: Vec<PostedRequest>,
    queue: Option<Queue>,
    place: Option<u64>,
    fault: u64,
}

/// Polls in a row that have found nothing.
#[derive(Clone, Copy)]
struct Run {
    index: usize,
    queue: usize,
    handle: u32,
    second: usize,
    value: usize,
    start: u64,
    end: u64,
    times: u64,
}

#[derive(Default)]
struct Thread {
    /// The number of forks with which this is so.
    born: Cell<u32>,
    runs: RefCell<Vec<Run>>,
    bytes: RefCell<Vec<u8>>,
    spare: Cell<Option<Box<Pending>>>,
    /// A fault in the poll that is under way.
    fault: Cell<u64>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(ring) = RING.get() {
            let runs = std::mem::take(&mut *self.runs.borrow_mut());
            let mut bytes = Vec::new();
            runs.iter().for_each(|run| write_run(ring, run, &mut bytes));
        }
    }
}

thread_local! {
    static THREAD: Thread = Thread::default();
}

static RING: OnceLock<&'static Ring> = OnceLock::new();

fn write_run(ring: &Ring, run: &Run, bytes: &mut Vec<u8>) {
    let second = run.second as u64;
    record::write_run(
        bytes,
        run.index,
        (run.start, run.end),
        (run.handle, second),
        run.times,
        run.value as u64,
    );
    ring.append(thread(), bytes);
}

/// The trace of this process.
pub(crate) struct RingTrace {
    ring: &'static Ring,
    chosen: Vec<bool>,
}

impl RingTrace {
    /// Begins it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn begin(file: &str, chosen: Vec<bool>) -> io::Result<Self> {
        let _whole = CancellationGuard::new();
        format::base();
        let ring: &'static Ring = Box::leak(Box::new(Ring::open(file)?));
        if RING.set(ring).is_ok() {
            crate::output::count_forks();
            // SAFETY: a static function that may run at exit.
            unsafe { libc::atexit(at_exit) };
        }
        Ok(Self { ring, chosen })
    }

    /// A call begins: the word that is handed to [`Trace::ended`], 0 if it is not shown.
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(crate) unsafe fn begins(&self, index: usize, call: &'static Call, arguments: &Arguments) -> usize {
        if !self.chosen[index] {
            return 0;
        }
        if call.work == Work::Completions {
            return (clock::device() as usize) << 3 | POLL;
        }
        let Some(_inside) = Inside::enter() else { return 0 };
        let spare = THREAD.try_with(|thread| thread.spare.take()).ok().flatten();
        let mut pending = spare.unwrap_or_else(|| {
            Box::new(Pending {
                index,
                start: 0,
                post: None,
                bytes: Vec::with_capacity(1024),
                writer: Writer::new(Style::Tokens),
                written: 0,
                posted: Vec::new(),
                queue: None,
                place: None,
                fault: 0,
            })
        });
        (pending.index, pending.fault, pending.written) = (index, 0, 0);
        (pending.post, pending.queue, pending.place) = (None, None, None);
        pending.posted.clear();
        pending.start = clock::device();
        // SAFETY: the caller's promise.
        let is_copied = unsafe {
            match call.work {
                Work::Sends => copy_sends(&mut pending, arguments),
                Work::Receives => copy_receives(&mut pending, call, arguments),
                _ => false,
            }
        };
        if !is_copied {
            let seen = decode::CallOutcome { arguments, value: 0, failed: false };
            let Pending { writer, written, .. } = &mut *pending;
            writer.bytes.clear();
            for ((name, form), word) in call.arguments.iter().zip(arguments) {
                if form.is_result() {
                    break;
                }
                form.write(writer.key(name.trim_start_matches("r#")), *word, seen);
                *written += 1;
            }
            // SAFETY: the caller's promise.
            unsafe { requests(&mut pending, call, arguments) };
        }
        Box::into_raw(pending) as usize
    }

    /// The call, or one of its completions, is a fault.
    pub(crate) fn injected(&self, word: usize, number: u64) {
        if word & POLL != 0 {
            let _ = THREAD.try_with(|thread| thread.fault.set(number));
        // SAFETY: the word of a call that has begun and not ended.
        } else if let Some(pending) = unsafe { (word as *mut Pending).as_mut() } {
            pending.fault = number;
        }
    }

    /// The call has ended.
    ///
    /// # Safety
    /// As of [`RingTrace::begins`], whose word this is.
    pub(crate) unsafe fn ended(
        &self,
        index: usize,
        call: &'static Call,
        arguments: &Arguments,
        word: usize,
        answer: Answer,
    ) {
        if word == 0 {
            return;
        }
        if word & POLL != 0 {
            let Some(_inside) = Inside::enter() else { return };
            let start = (word >> 3) as u64;
            if answer.value as i32 == 0 && prolongs_run(index, arguments[0], start) {
                return;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.polled(index, call, arguments, (start, clock::device()), answer) };
        }
        let end = clock::device();
        let Some(_inside) = Inside::enter() else { return };
        // SAFETY: made by `begins`, and given back once.
        let mut pending = unsafe { Box::from_raw(word as *mut Pending) };
        let failed = format::failure(call, answer);
        let is_empty = call.work == Work::Cursor && failed == Some(libc::ENOENT) && pending.fault == 0;
        // SAFETY: the caller's promise.
        if is_empty && unsafe { self.counts(index, arguments, (pending.start, end), answer) } {
            return self.keep(pending);
        }
        self.end_runs();
        // SAFETY: the caller's promise.
        unsafe {
            match pending.post {
                Some((_, count)) => {
                    let (taken, bad) = refused(call, arguments, count, failed.is_some());
                    let fault = pending.fault;
                    let end = PostEnd { end, answer, taken, fault, bad };
                    record::end_post(&mut pending.bytes, count, &end);
                }
                None => finish(&mut pending, call, arguments, end, answer),
            }
        }
        self.ring.append(thread(), &pending.bytes);
        self.keep(pending);
    }

    fn keep(&self, pending: Box<Pending>) {
        let _ = THREAD.try_with(|thread| thread.spare.set(Some(pending)));
    }

    /// A poll has ended.
    ///
    /// # Safety
    /// As of [`RingTrace::ended`].
    unsafe fn polled(
        &self,
        index: usize,
        call: &'static Call,
        arguments: &Arguments,
        times: (u64, u64),
        answer: Answer,
    ) {
        let found = answer.value as i32;
        let fault = THREAD.try_with(|thread| thread.fault.take()).unwrap_or(0);
        // SAFETY: the caller's promise.
        unsafe {
            if found == 0 && fault == 0 && self.counts(index, arguments, times, answer) {
                return;
            }
            self.end_runs();
            let number = found.max(0) as usize;
            if found < 0 || fault != 0 || number > MOST_COPIED {
                return self.write_poll(index, call, arguments, times, answer, fault);
            }
            let list = std::slice::from_raw_parts(arguments[2] as *const ibv_wc, number);
            let most = arguments[1] as u32;
            self.with_bytes(|bytes| {
                record::write_completions(bytes, index, times, (handle(arguments[0]), most), list);
            });
        }
    }

    /// Writes a poll that failed, that is a fault, or that found a lot.
    ///
    /// # Safety
    /// As of [`RingTrace::ended`].
    unsafe fn write_poll(
        &self,
        index: usize,
        call: &Call,
        arguments: &Arguments,
        times: (u64, u64),
        answer: Answer,
        fault: u64,
    ) {
        let failed = format::failure(call, answer).is_some();
        let mut writer = Writer::new(Style::Tokens);
        let seen = decode::CallOutcome { arguments, value: answer.value, failed };
        for ((name, form), word) in call.arguments.iter().zip(arguments) {
            form.write(writer.key(name), *word, seen);
        }
        let mut one = CallRecord::of_tokens(index, times, answer, &writer.bytes);
        one.fault = (fault != 0).then_some(fault);
        if !failed {
            let list = arguments[2] as *const ibv_wc;
            // SAFETY: the caller's promise.
            unsafe {
                seam::completed(list, answer.value as u32 as usize, |found| one.completed.push(*found))
            };
        }
        self.with_bytes(|bytes| record::write_call(bytes, &one));
    }

    fn with_bytes(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let _ = THREAD.try_with(|local| {
            if let Ok(mut bytes) = local.bytes.try_borrow_mut() {
                write(&mut bytes);
                self.ring.append(thread(), &bytes);
            }
        });
    }

    /// Counts a poll that has found nothing with those before it. False if it is to be written by itself.
    ///
    /// # Safety
    /// As of [`RingTrace::ended`].
    unsafe fn counts(
        &self,
        index: usize,
        arguments: &Arguments,
        (start, end): (u64, u64),
        answer: Answer,
    ) -> bool {
        let old = THREAD.try_with(|thread| {
            let mut runs = thread.runs.borrow_mut();
            if thread.born.replace(forks()) != forks() {
                runs.clear();
            }
            if let Some(place) = runs.iter().position(|run| (run.index, run.queue) == (index, arguments[0])) {
                let run = &mut runs[place];
                (run.end, run.times) = (end, run.times + 1);
                return (end.saturating_sub(run.start) >= LONG).then(|| runs.remove(place));
            }
            let oldest = (0..runs.len()).min_by_key(|place| runs[*place].end);
            let old = oldest.filter(|_| runs.len() >= RUNS).map(|place| runs.remove(place));
            // SAFETY: the caller's promise: it has polled the queue.
            let handle = unsafe { handle(arguments[0]) };
            let (queue, second, value) = (arguments[0], arguments[1], answer.value);
            runs.push(Run { index, queue, handle, second, value, start, end, times: 1 });
            old
        });
        if let Ok(Some(run)) = &old {
            write_run(self.ring, run, &mut Vec::new());
        }
        old.is_ok()
    }

    /// Polls that have found nothing become records.
    fn end_runs(&self) {
        let _ = THREAD.try_with(|thread| {
            let (mut runs, mut bytes) = (thread.runs.borrow_mut(), thread.bytes.borrow_mut());
            if thread.born.get() == forks() {
                runs.iter().for_each(|run| write_run(self.ring, run, &mut bytes));
            }
            runs.clear();
        });
    }

    /// A transport has shown something.
    pub(crate) fn seen(&self, time: u64, seen: &TransportEvent) {
        let Some(_inside) = Inside::enter() else { return };
        self.with_bytes(|bytes| record::write_seen(bytes, time, seen));
    }
}

/// The handle of a completion queue.
///
/// # Safety
/// It is one.
unsafe fn handle(queue: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (&raw const (*(queue as *const ibv_cq)).handle).read_unaligned() }
}

/// The number of a queue pair, or 0 of NULL.
///
/// # Safety
/// It is one, or NULL.
unsafe fn number(pair: usize) -> u32 {
    // SAFETY: the caller's promise.
    if pair == 0 { 0 } else { unsafe { (&raw const (*(pair as *const ibv_qp)).qp_num).read_unaligned() } }
}

/// Copies the requests of an `ibv_post_send`. False if they are written in another way.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn copy_sends(pending: &mut Pending, arguments: &Arguments) -> bool {
    let pair = arguments[0] as *mut ibv_qp;
    // SAFETY: the caller's promise.
    let (queue, place, reports_all) =
        unsafe { (number(arguments[0]), seam::posted(pair).unwrap_or(0), seam::reports_all(pair)) };
    let mut words = Words::begin(&mut pending.bytes, RecordKind::Sends, pending.index);
    let start = pending.start;
    record::begin_post(&mut words, &PostHead { start, queue, address: 0, reports_all, place });
    let (mut next, mut count) = (arguments[1] as *const ibv_send_wr, 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller's promise.
        if count == MOST_COPIED || !unsafe { record::write_send(&mut words, wr) } {
            return false;
        }
        (next, count) = (wr.next.cast_const(), count + 1);
    }
    words.end();
    pending.post = Some((RecordKind::Sends, count));
    true
}

/// Copies the requests of an `ibv_post_recv` or `ibv_post_srq_recv`. False if they are written in another
/// way.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn copy_receives(pending: &mut Pending, call: &Call, arguments: &Arguments) -> bool {
    // SAFETY: the caller's promise.
    let (queue, address) = unsafe {
        match call.name {
            "ibv_post_recv" => (number(arguments[0]), 0),
            "ibv_post_srq_recv" if arguments[0] != 0 => {
                let handle = (&raw const (*(arguments[0] as *const ibv_srq)).handle).read_unaligned();
                (handle, arguments[0] as u64)
            }
            _ => return false,
        }
    };
    let mut words = Words::begin(&mut pending.bytes, RecordKind::Receives, pending.index);
    let start = pending.start;
    record::begin_post(&mut words, &PostHead { start, queue, address, reports_all: true, place: 0 });
    let (mut next, mut count) = (arguments[1] as *const ibv_recv_wr, 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the caller's promise.
        if count == MOST_COPIED || !unsafe { record::write_receive(&mut words, wr) } {
            return false;
        }
        (next, count) = (wr.next.cast_const(), count + 1);
    }
    words.end();
    pending.post = Some((RecordKind::Receives, count));
    true
}

/// The requests of a post that is not copied, and the queue pair that ends.
///
/// # Safety
/// The arguments are right for the call.
unsafe fn requests(pending: &mut Pending, call: &Call, arguments: &Arguments) {
    let pair = arguments[0] as *mut ibv_qp;
    let posted = &mut pending.posted;
    // SAFETY: the caller's promise.
    unsafe {
        match call.work {
            Work::Sends => {
                let list = arguments[1] as *const ibv_send_wr;
                seam::sends(pair, list, |request, _| posted.push(*request));
                (pending.queue, pending.place) =
                    (Some(Queue::Sends(number(arguments[0]))), seam::posted(pair));
            }
            Work::Receives => {
                seam::receives(arguments[1] as *const ibv_recv_wr, |request, _| posted.push(*request));
                pending.queue = Some(match call.name {
                    "ibv_post_recv" => Queue::Receives(number(arguments[0])),
                    _ => Queue::Shared(arguments[0]),
                });
            }
            Work::Builders => {
                seam::gathered(arguments[0] as *mut ibv_qp_ex, |request, _| posted.push(*request));
                (pending.queue, pending.place) =
                    (Some(Queue::Sends(number(arguments[0]))), seam::posted(pair));
            }
            _ if call.name == "ibv_destroy_qp" => pending.queue = Some(Queue::Sends(number(arguments[0]))),
            _ => {}
        }
    }
}

/// How many requests of a post were taken, and the address of the first that was not.
///
/// # Safety
/// The arguments are right for the call, which has ended.
unsafe fn refused(call: &Call, arguments: &Arguments, count: usize, failed: bool) -> (usize, u64) {
    if !failed || arguments[2] == 0 || !matches!(call.work, Work::Sends | Work::Receives) {
        return (if failed { 0 } else { count }, 0);
    }
    let mut taken = 0;
    // SAFETY: the call has written there which request was the first that it did not take; the list is as it
    // was.
    unsafe {
        let bad = *(arguments[2] as *const usize);
        let mut next = arguments[1];
        while next != 0 && next != bad && taken < count {
            taken += 1;
            next = match call.work {
                Work::Sends => (*(next as *const ibv_send_wr)).next as usize,
                _ => (*(next as *const ibv_recv_wr)).next as usize,
            };
        }
        (taken, bad as u64)
    }
}

/// Writes a call that is neither a copied post nor a poll.
///
/// # Safety
/// The arguments are right for the call, which has answered so.
unsafe fn finish(pending: &mut Pending, call: &Call, arguments: &Arguments, end: u64, answer: Answer) {
    let failed = format::failure(call, answer).is_some();
    let seen = decode::CallOutcome { arguments, value: answer.value, failed };
    for ((name, form), word) in call.arguments.iter().zip(arguments).skip(pending.written) {
        form.write(pending.writer.key(name.trim_start_matches("r#")), *word, seen);
    }
    let arguments_end = pending.writer.bytes.len();
    format::result(&mut pending.writer, call, answer);
    let tokens = std::mem::take(&mut pending.writer.bytes);
    let (tokens_of_arguments, result) = tokens.split_at(arguments_end);
    let mut one = CallRecord::of_tokens(pending.index, (pending.start, end), answer, tokens_of_arguments);
    one.result = result;
    one.fault = (pending.fault != 0).then_some(pending.fault);
    one.shows_work = matches!(call.work, Work::Builders | Work::Cursor);
    (one.queue, one.place) = (pending.queue, pending.place);
    one.posted = std::mem::take(&mut pending.posted);
    // SAFETY: the caller's promise.
    unsafe {
        one.taken = refused(call, arguments, one.posted.len(), failed).0;
        if call.work == Work::Cursor && !failed {
            one.completed.extend(seam::under_cursor(arguments[0] as *mut ibv_cq_ex));
        }
    }
    record::write_call(&mut pending.bytes, &one);
    pending.posted = std::mem::take(&mut one.posted);
    pending.writer.bytes = tokens;
}

/// Counts a poll that has found nothing with those before it, without another look at the clock: the run ends
/// when its last poll begins. False if the poll is the first, or a fault, or if the run is to be written.
fn prolongs_run(index: usize, queue: usize, start: u64) -> bool {
    let prolong = |thread: &Thread| {
        if thread.fault.get() != 0 || thread.born.get() != forks() {
            return false;
        }
        let mut runs = thread.runs.borrow_mut();
        let Some(run) = runs.iter_mut().find(|run| (run.index, run.queue) == (index, queue)) else {
            return false;
        };
        let is_short = start.saturating_sub(run.start) < LONG;
        if is_short {
            (run.end, run.times) = (run.end.max(start), run.times + 1);
        }
        is_short
    };
    THREAD.try_with(prolong).unwrap_or(false)
}

extern "C" fn at_exit() {
    let Some(ring) = RING.get() else { return };
    // The handler of a signal may end the program in the middle of a record.
    let Some(_inside) = Inside::enter() else { return };
    RingTrace { ring, chosen: Vec::new() }.end_runs();
    release();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_after_an_empty_one_is_counted_by_its_beginning() {
        THREAD.with(|thread| {
            let first =
                Run { index: 1, queue: 2, handle: 3, second: 4, value: 0, start: 100, end: 150, times: 1 };
            thread.born.set(forks());
            thread.runs.borrow_mut().push(first);
            assert!(prolongs_run(1, 2, 140), "it begins before the end that is known");
            assert!(prolongs_run(1, 2, 170));
            assert!(!prolongs_run(1, 9, 180), "another queue");
            assert!(!prolongs_run(1, 2, 100 + LONG), "the run is to be written");
            thread.fault.set(1);
            assert!(!prolongs_run(1, 2, 190), "a fault is a record of its own");
            thread.fault.set(0);
            let run = thread.runs.borrow_mut().pop().expect("the run");
            assert_eq!((run.start, run.end, run.times), (100, 170, 3));
        });
    }
}
