//! Waits that have no end: a thread looks after them, since the program itself makes no call meanwhile.
//!
//! A message waits for a receive, a destroying call for acknowledgements, or a thread for an event that will
//! not come.

use super::explain::{peer, remedy_of};
use super::finding::Kind;
use super::map::Map;
use super::objects::{Object, Objects};
use super::report::Finding;
use super::roles::Thing;
use super::site::Site;
use super::sleepers;
use super::{Check, State};
use crate::names;
use adverb_core::clock;
use adverb_core::cq::CompletionQueue;
use adverb_core::engine::Engine;
use adverb_core::heard::EngineFinding;
use adverb_core::helpers::Helpers;
use adverb_core::memory::{Access, AccessError};
use adverb_core::qp::QueuePair;
use adverb_libibverbs::abi::{ibv_comp_channel, ibv_cq, ibv_qp};
use adverb_libibverbs::cq::QueueObject;
use adverb_libibverbs::qp::PairObject;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

/// So long a wait is ordinary.
const SECOND: u64 = 1_000_000_000;
/// A call that only waits for a lock is over by then.
const MOMENT: u64 = 300_000_000;
/// The pause between two looks, while something waits and otherwise.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// What the engine has told. Its threads hold locks of the engine, so nothing else is done under these two.
/// A reader has one of the lists at a time: a thread of the engine takes the other one then, and never waits.
static TOLD: [Mutex<VecDeque<Entry>>; 2] = [const { Mutex::new(VecDeque::new()) }; 2];

/// Something that was told.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The queue pair.
    number: u32,
    told: EngineReport,
    /// When, in nanoseconds of the device's clock; if it was told again and again, the last time.
    when: u64,
}

/// Has `each` look at one list after the other. In a child of fork, a thread of the parent may have one of
/// them for ever: then that one is left out.
fn all_told<T>(mut each: impl FnMut(&mut VecDeque<Entry>) -> Option<T>) -> Option<T> {
    /// The longest wait for a list. Its holders do nothing that waits, but may be kept from their processor.
    const MOST_MS: u32 = 2000;
    let wait_for = |list: &'static Mutex<VecDeque<Entry>>| {
        for _ in 0..MOST_MS {
            match list.try_lock() {
                Ok(all) => return Some(all),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    };
    TOLD.iter().filter_map(wait_for).find_map(|mut all| each(&mut all))
}

/// Takes the oldest of those that are meant.
fn take(is_meant: impl Fn(&Entry) -> bool) -> Option<EngineReport> {
    all_told(|all| {
        let place = all.iter().position(&is_meant)?;
        all.remove(place).map(|entry| entry.told)
    })
}

/// A message that was told to the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EngineReport {
    Refused { why: String, error: Option<AccessError>, rights: Access },
    TooLong { message: u64, is_whole: bool, room: u64 },
    WrongQkey { has: u32, wanted: u32 },
    WrongPsn { has: u32, wanted: u32 },
    NoReceiveHere,
    NoReceiveThere,
    LastRetry { retries: u8, is_not_ready: bool },
}

/// Hears what the engine tells.
pub(super) fn hear(queue_pair: u32, heard: EngineFinding<'_>) {
    let told = match heard {
        EngineFinding::Refused { why, error, rights } => {
            EngineReport::Refused { why: why.to_owned(), error, rights }
        }
        EngineFinding::TooLong { message, is_whole, room } => {
            EngineReport::TooLong { message, is_whole, room }
        }
        EngineFinding::WrongQkey { has, wanted } => EngineReport::WrongQkey { has, wanted },
        EngineFinding::WrongPsn { has, wanted } => EngineReport::WrongPsn { has, wanted },
        EngineFinding::NoReceiveHere => EngineReport::NoReceiveHere,
        EngineFinding::NoReceiveThere => EngineReport::NoReceiveThere,
        EngineFinding::LastRetry { retries, is_not_ready } => {
            EngineReport::LastRetry { retries, is_not_ready }
        }
    };
    // In a child of fork, a thread of the parent may have either for ever.
    let Some(mut all) = TOLD.iter().find_map(|list| list.try_lock().ok()) else { return };
    /// The most reports that are kept. A queue pair may be told again and again.
    const MOST: usize = 1024;
    let when = clock::device();
    match all.back_mut() {
        Some(last) if last.number == queue_pair && last.told == told => last.when = when,
        _ => {
            if all.len() >= MOST {
                all.pop_front();
            }
            all.push_back(Entry { number: queue_pair, told, when });
        }
    }
}

/// The sizes of a message that was too long for its receive, of this queue pair.
pub(super) fn too_long(queue_pair: u32) -> Option<(u64, bool, u64)> {
    match take(|entry| entry.number == queue_pair && matches!(entry.told, EngineReport::TooLong { .. }))? {
        EngineReport::TooLong { message, is_whole, room } => Some((message, is_whole, room)),
        _ => None,
    }
}

/// Why a request of the peer of this queue pair was refused, and what to do about it.
pub(super) fn refusal(queue_pair: u32) -> Option<(String, String)> {
    match take(|entry| entry.number == queue_pair && matches!(entry.told, EngineReport::Refused { .. }))? {
        EngineReport::Refused { why, error, rights } => Some((why, remedy_of(error, rights))),
        _ => None,
    }
}

/// Takes what was told of an access at this address by this key: why it was refused, and what to do about it.
pub(super) fn refusal_of(address: u64, key: u32) -> Option<(String, String)> {
    let words = format!(" at {address:#x} of key {key:#x} is refused: ");
    match take(|entry| matches!(&entry.told, EngineReport::Refused { why, .. } if why.contains(&words)))? {
        EngineReport::Refused { why, error, rights } => {
            why.split_once(&words).map(|(_, why)| (why.to_owned(), remedy_of(error, rights)))
        }
        _ => None,
    }
}

/// What was told, but for sizes, refusals and last retries, which are for completions that come later. At the
/// end of the process, refusals and last retries, too.
pub(super) fn told(is_end: bool) -> Vec<Entry> {
    let stays = |told: &EngineReport| match told {
        EngineReport::TooLong { .. } => true,
        EngineReport::Refused { .. } | EngineReport::LastRetry { .. } => !is_end,
        _ => false,
    };
    take_all(|entry| !stays(&entry.told))
}

/// Takes the last retries of queue pairs with a request under way, and those that are older than a second.
/// The others stay: the thread that has polled the request's completion may be about to explain it.
fn last_retries(is_under_way: impl Fn(u32) -> bool) -> Vec<Entry> {
    let now = clock::device();
    take_all(|entry| {
        let is_one = matches!(entry.told, EngineReport::LastRetry { .. });
        is_one && (is_under_way(entry.number) || now.saturating_sub(entry.when) > SECOND)
    })
}

/// Takes all that are meant.
fn take_all(is_meant: impl Fn(&Entry) -> bool) -> Vec<Entry> {
    let mut found = Vec::new();
    all_told(|all| {
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(&is_meant);
        *all = kept.into();
        found.extend(taken);
        None::<()>
    });
    found
}

/// What waits in this process.
#[derive(Default)]
pub(super) struct Waits {
    /// Messages without a receive: of a queue pair, here or at its peer; since when, and when it was told
    /// last.
    missing: Map<(u32, bool), (u64, u64)>,
    /// Destroying calls that wait for acknowledgements.
    endings: Vec<Ending>,
    /// Threads in ibv_get_cq_event, and the channels.
    sleepers: Map<i32, usize>,
    /// Events of rdma_cm that are not acknowledged: the identifier that waits for it, and the kind.
    events: Map<usize, (usize, u32)>,
    /// Asynchronous events that are not acknowledged, by object.
    asynchronous: Map<usize, u32>,
}

/// A destroying call.
struct Ending {
    pointer: usize,
    call: &'static str,
    site: Site,
    since: u64,
}

/// What is known of a completion queue beside its object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    /// How many completions the program has asked it for.
    pub(super) asked: Option<u32>,
    was_armed: bool,
    is_armed: bool,
    only_solicited: bool,
    /// Completion events that are not acknowledged.
    unacknowledged: u32,
    /// How the queue was when it was armed, if completions waited then.
    late: Option<Before>,
    /// The number of polls, and since when it is the same while completions wait.
    polls: u32,
    stuck: u64,
}

/// How a completion queue is at a time: completions that wait, and the number of polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    waiting: u32,
    polls: u32,
}

impl Before {
    pub(super) fn of(queue: &CompletionQueue) -> Self {
        Self { waiting: queue.waiting(), polls: queue.polls() }
    }

    /// A program has waited for an event that adverb sends and no standard promises.
    pub(super) fn finding(object: &Object) -> Finding {
        let text = format!(
            "{} held completions when ibv_req_notify_cq armed it, and the program waited for its event without a poll: an adapter sends none",
            object.name
        );
        Finding::of_object(Kind::CompletionMissed, object, text).at("made at", object.made)
    }
}

impl Queue {
    pub(super) fn new(asked: Option<u32>) -> Self {
        Self { asked, ..Self::default() }
    }

    pub(super) fn arm(&mut self, only_solicited: bool, before: Option<Before>) {
        // An event may be under way if it was armed before.
        let is_late = before.is_some_and(|before| before.waiting > 0) && !self.is_armed && !only_solicited;
        self.late = before.filter(|_| is_late);
        (self.was_armed, self.is_armed, self.only_solicited) = (true, true, only_solicited);
    }

    /// An event of it was got. True if it was one of completions that had come before the queue was armed,
    /// and that were not polled since.
    pub(super) fn got_event(&mut self, now: Option<Before>) -> bool {
        self.is_armed = false;
        self.unacknowledged += 1;
        self.late.take().is_some_and(|before| now == Some(before))
    }

    pub(super) fn acknowledge(&mut self, count: u32) {
        self.unacknowledged = self.unacknowledged.saturating_sub(count);
    }
}

impl Waits {
    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.endings.is_empty() && self.sleepers.is_empty()
    }

    /// Whether a destroying call is under way.
    pub(super) fn has_endings(&self) -> bool {
        !self.endings.is_empty()
    }

    pub(super) fn begin_ending(&mut self, pointer: usize, call: &'static str, site: Site) {
        self.endings.push(Ending { pointer, call, site, since: clock::device() });
    }

    pub(super) fn finish_ending(&mut self, pointer: usize) {
        self.endings.retain(|ending| ending.pointer != pointer);
    }

    pub(super) fn sleep(&mut self, channel: usize) {
        self.sleepers.insert(sleepers::thread(), channel);
    }

    pub(super) fn wake(&mut self) {
        self.sleepers.remove(&sleepers::thread());
    }

    /// Forgets threads that have gone: a call that waits for an event is a point of cancellation.
    fn forget_sleepers(&mut self) {
        self.sleepers.retain(|thread, _| sleepers::is_there(*thread));
    }

    pub(super) fn got_manager_event(&mut self, event: usize, identifier: usize, kind: u32) {
        self.events.insert(event, (identifier, kind));
    }

    pub(super) fn acknowledge_manager_event(&mut self, event: usize) {
        self.events.remove(&event);
    }

    pub(super) fn got_asynchronous(&mut self, object: usize) {
        *self.asynchronous.entry(object).or_default() += 1;
    }

    pub(super) fn acknowledge_asynchronous(&mut self, object: usize) {
        if let Some(count) = self.asynchronous.get_mut(&object) {
            *count = count.saturating_sub(1);
        }
    }

    /// An object is gone.
    pub(super) fn forget(&mut self, pointer: usize) {
        self.asynchronous.remove(&pointer);
        self.finish_ending(pointer);
    }

    /// A receive was posted for messages of these queue pairs: how long the first of them has waited.
    pub(super) fn receive_posted(&mut self, numbers: &[u32]) -> Option<(u32, u64)> {
        let mut longest = None;
        for number in numbers {
            if let Some((since, _)) = self.missing.remove(&(*number, true)) {
                let time = clock::device().saturating_sub(since);
                longest = longest.max((time >= SECOND).then_some((*number, time)));
            }
        }
        longest
    }

    /// A request of a queue pair has succeeded: its messages do find receives.
    pub(super) fn has_progress(&mut self, number: u32) {
        self.missing.remove(&(number, false));
    }

    pub(super) fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    /// What is not acknowledged of an object, in words.
    fn unacknowledged(&self, pointer: usize, queues: &Map<usize, Queue>) -> Option<String> {
        let kinds: Vec<_> = self
            .events
            .values()
            .filter(|(identifier, _)| *identifier == pointer)
            .map(|(_, kind)| names::of(names::CM_EVENT, (*kind).into()).unwrap_or("an event"))
            .collect();
        if !kinds.is_empty() {
            return Some(format!("{} was got by rdma_get_cm_event and is", kinds.join(", ")));
        }
        let plural = |count: u32, what: &str, call: &str| match count {
            1 => format!("1 {what} was got by {call} and is"),
            count => format!("{count} {what}s were got by {call} and are"),
        };
        let events = queues.get(&pointer).map_or(0, |queue| queue.unacknowledged);
        if events > 0 {
            return Some(plural(events, "event", "ibv_get_cq_event"));
        }
        let events = self.asynchronous.get(&pointer).copied().unwrap_or(0);
        (events > 0).then(|| plural(events, "asynchronous event", "ibv_get_async_event"))
    }

    /// The sentence about a message that waits here.
    pub(super) fn no_receive(number: u32, time: u64) -> Finding {
        let text = format!(
            "a message has waited for {}.{} s at queue pair {number:#x}, which has no receive posted",
            time / SECOND,
            time % SECOND / (SECOND / 10)
        );
        Finding::of_pair(Kind::NoReceive, number, text)
    }
}

/// How often the last request of this queue pair was sent again to a peer without a receive, if the engine
/// has told of its last retry and the thread for waits has not come to it.
pub(super) fn unheard_last_retry(queue_pair: u32) -> Option<u8> {
    let is_one = |entry: &Entry| {
        let is_last = matches!(entry.told, EngineReport::LastRetry { is_not_ready: true, .. });
        is_last && entry.number == queue_pair
    };
    match take_all(is_one).pop()?.told {
        EngineReport::LastRetry { retries, .. } => Some(retries),
        _ => None,
    }
}

/// The sentence about a request that is sent for the last time.
pub(super) fn sent_last(number: u32, wr_id: u64, retries: u8, is_not_ready: bool) -> Finding {
    let (why, limit) = match is_not_ready {
        true => ("the peer had no receive for it each time", "rnr_retry"),
        false => ("the peer has not answered", "retry_cnt"),
    };
    let text = format!(
        "request {wr_id:#x} of queue pair {number:#x} is sent for the last time after {retries} retries ({limit} {retries}): {why}"
    );
    let finding = Finding::of_pair(Kind::RetriesRunOut, number, text).request(wr_id);
    if is_not_ready {
        finding.remedy("post receives before the peer sends; rnr_retry 7 waits without end, and a longer min_rnr_timer at the receiver gives it time")
    } else {
        finding
    }
}

/// The peer of a queue pair begins with another packet sequence number than the queue pair expects.
fn wrong_psn(number: u32, has: u32, wanted: u32) -> Finding {
    // Sequence numbers have 24 bits, and go round.
    let taken_for = if has.wrapping_sub(wanted) & 0xff_ffff >= 1 << 23 {
        "one that has come before"
    } else {
        "one behind others that are lost"
    };
    let text = format!(
        "the peer of queue pair {number:#x} begins with PSN {has:#x}, and rq_psn of the queue pair is {wanted:#x}: the request is taken for {taken_for}"
    );
    Finding::of_pair(Kind::WrongPsn, number, text)
}

impl State {
    /// Whether an object that is about to be destroyed has events that are not acknowledged.
    pub(super) fn must_wait(&self, pointer: usize) -> bool {
        self.waits.unacknowledged(pointer, &self.queues).is_some()
    }

    /// Destroying calls that wait for acknowledgements for longer than this.
    pub(super) fn endings(&mut self, longer: u64) -> Vec<Finding> {
        let now = clock::device();
        let mut findings = Vec::new();
        for ending in &self.waits.endings {
            if now.saturating_sub(ending.since) < longer {
                continue;
            }
            let Some(object) = self.objects.get(ending.pointer) else { continue };
            let Some(events) = self.waits.unacknowledged(ending.pointer, &self.queues) else { continue };
            let text = format!("{} of {} waits: {events} not acknowledged", ending.call, object.name);
            let finding = Finding::of_object(Kind::EventNotAcknowledged, object, text)
                .of(ending.call, ending.site)
                .at("made at", object.made);
            findings.push(finding);
        }
        findings
    }

    /// Takes in what was told, and says which messages have waited for too long. The completion of a refused
    /// request says more, if both ends are of this process: `both_ends` has these queue pairs.
    pub(super) fn messages(&mut self, told: Vec<Entry>, both_ends: &[u32]) -> Vec<Finding> {
        let now = clock::device();
        let mut findings = Vec::new();
        for Entry { number, told, when } in told {
            let is_here = match told {
                EngineReport::LastRetry { retries, is_not_ready } => {
                    findings.extend(self.last_retry(number, retries, is_not_ready));
                    continue;
                }
                EngineReport::NoReceiveHere => true,
                EngineReport::NoReceiveThere => false,
                EngineReport::Refused { why: text, error, rights } => {
                    if !both_ends.contains(&number) {
                        let text = format!("queue pair {number:#x}: {text}");
                        let finding = Finding::of_pair(Kind::AccessRefused, number, text);
                        findings.push(finding.remedy(remedy_of(error, rights)));
                    }
                    continue;
                }
                EngineReport::WrongQkey { has, wanted } => {
                    let text = format!(
                        "a datagram for queue pair {number:#x} has the Q_Key {has:#x} and is dropped: the Q_Key of the queue pair is {wanted:#x}"
                    );
                    findings.push(Finding::of_pair(Kind::WrongQkey, number, text));
                    continue;
                }
                EngineReport::WrongPsn { has, wanted } => {
                    findings.push(wrong_psn(number, has, wanted));
                    continue;
                }
                EngineReport::TooLong { .. } => continue,
            };
            // A receive may have been posted since, or it has succeeded.
            let waits = if is_here {
                self.flight.last_receive(number) <= when
            } else {
                self.flight.oldest_send(number).is_some()
            };
            if waits {
                self.waits.missing.entry((number, is_here)).or_insert((when, now)).1 = now;
            }
        }
        // RoCE tells again and again while it lasts. iWARP tells once, and waits for a receive for two
        // seconds.
        self.waits.missing.retain(|(_, is_here), (_, last)| {
            now.saturating_sub(*last) < if *is_here { 2 * SECOND } else { SECOND }
        });
        for ((number, is_here), (since, _)) in &self.waits.missing {
            let time = now.saturating_sub(*since);
            if time < SECOND {
                continue;
            }
            let other =
                self.waits.missing.get(&(*number, !is_here)).map(|(since, _)| now.saturating_sub(*since));
            if other.is_some_and(|time| time < SECOND) {
                continue;
            }
            let sent = self
                .flight
                .oldest_send(*number)
                .filter(|(_, posted, _)| now.saturating_sub(*posted) >= SECOND);
            // Neither can go on: the request that waits here is of the peer, which waits for a receive as
            // well.
            if let (Some(_), Some((wr_id, _, site))) = (other, sent) {
                let text = format!(
                    "queue pair {number:#x} and its peer wait for each other: its request {wr_id:#x} finds no receive at the peer, and a message of the peer has waited for {}.{} s for a receive here",
                    time / SECOND,
                    time % SECOND / (SECOND / 10)
                );
                findings.push(
                    Finding::of_pair(Kind::Deadlock, *number, text).request(wr_id).at("posted at", site),
                );
            } else if *is_here {
                findings.push(Waits::no_receive(*number, time));
            } else if let Some((wr_id, _, site)) = sent {
                let text = format!(
                    "request {wr_id:#x} of queue pair {number:#x} waits, since the peer has no receive posted"
                );
                findings.push(
                    Finding::of_pair(Kind::NoReceive, *number, text).request(wr_id).at("posted at", site),
                );
            }
        }
        findings
    }

    /// The oldest request of a queue pair is sent for the last time.
    fn last_retry(&self, number: u32, retries: u8, is_not_ready: bool) -> Option<Finding> {
        let (wr_id, _, site) = self.flight.oldest_send(number)?;
        Some(sent_last(number, wr_id, retries, is_not_ready).at("posted at", site))
    }

    /// Queues that hold completions which nobody takes: the descriptors of their channels.
    fn stuck(&mut self) -> Vec<(usize, i32, usize)> {
        let now = clock::device();
        let mut armed_channels = Vec::new();
        let mut stuck = Vec::new();
        for (pointer, queue) in &mut self.queues {
            let is_there = self.objects.get(*pointer).is_some_and(|object| !object.ending);
            if !queue.was_armed || !is_there {
                continue;
            }
            // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
            let (core, channel) = unsafe {
                let Some(object) = QueueObject::get(*pointer as *mut ibv_cq) else { continue };
                let channel = (&raw const (*(*pointer as *const ibv_cq)).channel).read() as usize;
                (object.inner.core.clone(), channel)
            };
            if core.waiting() == 0 || core.polls() != queue.polls || queue.stuck == 0 {
                (queue.polls, queue.stuck) = (core.polls(), now);
            }
            let is_stuck = core.waiting() > 0 && now.saturating_sub(queue.stuck) >= SECOND;
            if queue.is_armed && !is_stuck {
                armed_channels.push(channel);
            }
            if is_stuck && channel != 0 && !(queue.is_armed && queue.only_solicited) {
                stuck.push((*pointer, channel, queue.is_armed));
            }
        }
        // A queue that is not armed may be polled when another one of its channel has an event.
        stuck.retain(|(_, channel, is_armed)| *is_armed || !armed_channels.contains(channel));
        let is_there = |channel: usize| self.objects.get(channel).is_some_and(|object| !object.ending);
        stuck
            .into_iter()
            .filter(|(_, channel, _)| is_there(*channel))
            .map(|(pointer, channel, _)| {
                // SAFETY: a channel that has not been destroyed.
                let fd = unsafe { (*(channel as *const ibv_comp_channel)).fd };
                (pointer, fd, channel)
            })
            .collect()
    }

    /// Completion queues that nobody polls, and that hold more than they were made for.
    pub(super) fn overruns(&self) -> Vec<Finding> {
        let waiting = |pointer: usize| {
            self.objects.get(pointer).filter(|object| !object.ending)?;
            // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
            let object = unsafe { QueueObject::get(pointer as *mut ibv_cq) }?;
            self.overrun(pointer, object.inner.core.waiting() as usize)
        };
        self.queues.keys().filter_map(|pointer| waiting(*pointer)).collect()
    }

    fn missed(&self, pointer: usize) -> Option<Finding> {
        let (object, queue) = (self.objects.get(pointer)?, self.queues.get(&pointer)?);
        let why = if queue.is_armed {
            "they came before ibv_req_notify_cq, so no event tells of them"
        } else {
            "the queue is not armed, so no event tells of them"
        };
        let text = format!("{} holds completions while a thread sleeps for its event: {why}", object.name);
        let finding = Finding::of_object(Kind::CompletionMissed, object, text).at("made at", object.made);
        Some(if queue.is_armed {
            finding
        } else {
            finding
                .remedy("call ibv_req_notify_cq after each event, then poll the queue, and only then sleep")
        })
    }
}

impl Objects {
    /// The queue pair of a number.
    fn core(&self, number: u32) -> Option<Arc<QueuePair>> {
        self.all(Thing::QueuePair).find_map(|pointer| {
            let is_live = self.get(pointer).is_some_and(|object| !object.ending);
            // SAFETY: it lives: no thread has begun to destroy it, and none begins while the mutex is held.
            let pair = unsafe { PairObject::get(pointer as *mut ibv_qp) }.filter(|_| is_live)?;
            (pair.inner.core.number() == number).then(|| pair.inner.core.clone())
        })
    }
}

impl Check {
    /// The queue pairs of which something was told, and whose peers are of this process. The engine's locks
    /// are taken without the mutex.
    pub(super) fn both_ends(&self, told: &[Entry]) -> Vec<u32> {
        let refused = told.iter().filter(|entry| matches!(entry.told, EngineReport::Refused { .. }));
        refused
            .map(|entry| entry.number)
            .filter(|number| {
                self.with(|state| state.objects.core(*number)).is_some_and(|core| peer(&core).is_some())
            })
            .collect()
    }

    /// Starts the thread that looks after waits. It is one of the engine's: as a thread of the program, it
    /// would keep the pages of regions from being moved.
    pub(super) fn start_looking(&'static self, engine: &'static Engine) {
        let helpers = &engine.reactor.helpers;
        let look_after = move || {
            let mut pause = PAUSES[0];
            loop {
                std::thread::sleep(pause);
                match self.look(helpers) {
                    Some(next) => pause = next,
                    None => return,
                }
            }
        };
        // Without it, or after a panic in it, waits are not looked after. The engine goes on.
        let work = move || drop(catch_unwind(AssertUnwindSafe(look_after)));
        let _ = helpers.spawn("adverb-check", work);
    }

    /// A look at everything that waits: the pause until the next one, none at the end.
    fn look(&self, helpers: &Helpers) -> Option<Duration> {
        let _inside = super::lock::Inside::enter()?;
        let quiet = helpers.work();
        let told = told(false);
        let both_ends = self.both_ends(&told);
        let (mut findings, stuck, is_idle, asleep) = self.with(|state| {
            let retries = last_retries(|number| state.flight.oldest_send(number).is_some());
            let mut findings = state.messages(told.into_iter().chain(retries).collect(), &both_ends);
            findings.extend(state.endings(MOMENT));
            findings.extend(state.overruns());
            state.waits.forget_sleepers();
            let asleep: Vec<usize> = state.waits.sleepers.values().copied().collect();
            (findings, state.stuck(), state.waits.is_empty(), asleep)
        });
        for (queue, descriptor, channel) in stuck {
            if asleep.contains(&channel) || sleepers::waits_for(descriptor) {
                findings.extend(self.with(|state| state.missed(queue)));
            }
        }
        drop(quiet);
        if self.with(|state| state.ended) {
            return None;
        }
        self.emit("", findings);
        Some(PAUSES[usize::from(is_idle)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists are the process's: tests that expect a place in one of them, or that fill them, take turns.
    static LISTS_IN_USE: Mutex<()> = Mutex::new(());

    fn turn() -> std::sync::MutexGuard<'static, ()> {
        LISTS_IN_USE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[test]
    fn sizes_are_kept_for_the_completion_of_their_queue_pair() {
        let _turn = turn();
        hear(0x0f00_0001, EngineFinding::TooLong { message: 200, is_whole: true, room: 64 });
        assert_eq!(too_long(0x0f00_0002), None);
        assert_eq!(too_long(0x0f00_0001), Some((200, true, 64)));
        assert_eq!(too_long(0x0f00_0001), None);
        // Those of many take a bounded place in each list: the oldest goes.
        for number in 0..5000 {
            hear(0x0e00_0000 + number, EngineFinding::TooLong { message: 2, is_whole: true, room: 1 });
        }
        assert_eq!(all_told(|all| (all.len() > 1024).then_some(())), None);
        assert_eq!(too_long(0x0e00_0000 + 4999), Some((2, true, 1)));
    }

    #[test]
    fn a_report_finds_its_place_while_one_list_is_read() {
        let _turn = turn();
        let number = 0x0d00_0001;
        let reader = TOLD[0].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        hear(number, EngineFinding::TooLong { message: 9, is_whole: true, room: 8 });
        drop(reader);
        assert_eq!(too_long(number), Some((9, true, 8)));
    }

    #[test]
    fn a_last_retry_stays_for_the_completion_unless_its_request_is_under_way() {
        let _turn = turn();
        let number = 0x0c00_0001;
        let retry = |retries| hear(number, EngineFinding::LastRetry { retries, is_not_ready: true });
        retry(2);
        hear(number, EngineFinding::NoReceiveThere);
        retry(3);
        assert!(last_retries(|_| false).iter().all(|entry| entry.number != number));
        assert_eq!(unheard_last_retry(number), Some(3), "the newest");
        assert_eq!(unheard_last_retry(number), None);
        retry(4);
        assert_eq!(last_retries(|other| other == number).len(), 1);
        assert_eq!(unheard_last_retry(number), None);
    }

    #[test]
    fn a_thread_that_has_gone_sleeps_no_more() {
        let mut waits = Waits::default();
        let gone = std::thread::spawn(sleepers::thread).join().expect("a thread");
        waits.sleepers.insert(gone, 16);
        waits.sleep(32);
        let began = std::time::Instant::now();
        // A thread stays for an instant after it was joined.
        while waits.sleepers.len() > 1 {
            assert!(began.elapsed().as_secs() < 60, "the thread is taken for one that sleeps");
            waits.forget_sleepers();
        }
        assert_eq!(waits.sleepers.values().collect::<Vec<_>>(), [&32]);
    }

    #[test]
    fn a_wrong_first_psn_is_taken_for_an_old_one_or_for_one_behind_a_loss() {
        let said = |has, wanted| wrong_psn(0x12, has, wanted).text;
        assert!(said(0xff_fff0, 5).ends_with("one that has come before"), "{}", said(0xff_fff0, 5));
        assert!(said(5, 0xff_fff0).ends_with("one behind others that are lost"), "{}", said(5, 0xff_fff0));
    }

    #[test]
    fn events_are_told_with_their_number_or_name() {
        let mut waits = Waits::default();
        let mut queue = Queue::default();
        assert!(!queue.got_event(None));
        let mut queues = [(16, queue)].into_iter().collect::<Map<_, _>>();
        let text = waits.unacknowledged(16, &queues).expect("an event");
        assert!(text.starts_with("1 event was got by ibv_get_cq_event"), "{text}");
        queues.get_mut(&16).expect("a queue").acknowledge(1);
        assert_eq!(waits.unacknowledged(16, &queues), None);
        waits.got_manager_event(64, 32, 0);
        let text = waits.unacknowledged(32, &queues).expect("an event");
        assert!(text.starts_with("RDMA_CM_EVENT_ADDR_RESOLVED was got"), "{text}");
        waits.acknowledge_manager_event(64);
        assert_eq!(waits.unacknowledged(32, &queues), None);
    }
}
