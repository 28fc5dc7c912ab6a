//! Completions that come late, or after one of another queue pair (`adverb run --fault`). There is none of
//! this in processes without such faults.
//!
//! A completion that is late is in no completion queue yet: neither polls nor events tell of it. Those of one
//! work queue keep their order, as with adapters.

use crate::clock;
use crate::cq::CompletionQueue;
use crate::reactor::{Readiness, Source};
use crate::request::{Completion, CompletionOpcode, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

/// How late a completion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// Not at all.
    OnTime,
    /// By so much.
    After(Duration),
    /// Until one of another queue pair has gone into the same completion queue, and not longer than that.
    Overtaken(Duration),
}

/// Decides how late completions are. It is asked under locks of the engine, and calls nothing of it.
pub trait Completions: Send + Sync {
    /// The device with this name has a new queue pair, with this number.
    fn made(&self, device: &str, queue_pair: u32);

    /// A completion has come. `overtakes`: one of another queue pair waits for it.
    fn comes(&self, device: &str, completion: &Completion, overtakes: bool) -> Lateness;
}

static DECIDES: OnceLock<&'static dyn Completions> = OnceLock::new();

/// Has completion queues ask `decides` from now on. To be called before the first of them is there; the first
/// call counts.
pub fn install(decides: &'static dyn Completions) {
    let _ = DECIDES.set(decides);
}

/// The one that decides about late completions, if there is one.
pub(crate) fn get() -> Option<&'static dyn Completions> {
    DECIDES.get().copied()
}

/// The late completions of a completion queue.
pub(crate) struct Late {
    decides: &'static dyn Completions,
    held: Mutex<LateCompletions>,
}

/// A work queue: the number of the queue pair, and whether it is the one of receives.
type WorkQueue = (u32, bool);

#[derive(Default)]
struct LateCompletions {
    /// In the order in which they came. No list is empty.
    queues: BTreeMap<WorkQueue, VecDeque<Waiting>>,
    count: usize,
    /// When the next timer rings, on the device's clock.
    armed: Option<u64>,
}

struct Waiting {
    completion: Completion,
    solicited: bool,
    /// On the device's clock.
    until: u64,
    /// The completion goes as soon as one of another queue pair has gone.
    is_overtaken: bool,
}

fn work_queue(completion: &Completion) -> WorkQueue {
    let is_receive = completion.opcode as u8 & CompletionOpcode::Receive as u8 != 0;
    (completion.queue_pair, is_receive)
}

impl LateCompletions {
    fn add(&mut self, waiting: Waiting) {
        self.queues.entry(work_queue(&waiting.completion)).or_default().push_back(waiting);
        self.count += 1;
    }

    /// Whether a completion of this queue pair lets one of another go.
    fn is_waited_for(&self, queue_pair: u32) -> bool {
        let mut others = self.queues.iter().filter(|((other, _), _)| *other != queue_pair);
        others.any(|(_, list)| list.front().is_some_and(|first| first.is_overtaken))
    }

    /// Takes note that a completion of this queue pair has gone.
    fn overtakes(&mut self, queue_pair: u32) {
        for (_, list) in self.queues.iter_mut().filter(|((other, _), _)| *other != queue_pair) {
            if let Some(first) = list.front_mut().filter(|first| first.is_overtaken) {
                first.until = 0;
            }
        }
    }

    /// Takes the one that goes next, if it is due by now.
    fn take_due(&mut self, now: u64) -> Option<Waiting> {
        let first = |list: &VecDeque<Waiting>| list.front().map_or(u64::MAX, |waiting| waiting.until);
        let (queue, until) =
            self.queues.iter().map(|(queue, list)| (*queue, first(list))).min_by_key(|(_, until)| *until)?;
        if until > now {
            return None;
        }
        let list = self.queues.get_mut(&queue)?;
        let waiting = list.pop_front();
        if list.is_empty() {
            self.queues.remove(&queue);
        }
        self.count -= usize::from(waiting.is_some());
        waiting
    }

    fn next(&self) -> Option<u64> {
        self.queues.values().filter_map(|list| list.front()).map(|first| first.until).min()
    }

    fn withdraw(&mut self, wanted: &impl Fn(&Completion) -> bool, taken: &mut impl FnMut(&Completion)) {
        for list in self.queues.values_mut() {
            list.retain(|waiting| {
                let is_wanted = wanted(&waiting.completion);
                if is_wanted {
                    taken(&waiting.completion);
                }
                !is_wanted
            });
        }
        self.queues.retain(|_, list| !list.is_empty());
        self.count = self.queues.values().map(VecDeque::len).sum();
    }
}

impl Late {
    /// The late completions of a new completion queue: none yet. `None` where no completion may be late.
    pub(crate) fn of_queue() -> Option<Box<Self>> {
        Some(Box::new(Self { decides: get()?, held: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, LateCompletions> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A completion has come: it goes into the queue, or is kept for a while. As many are kept as the queue
    /// has room for: the rest overruns it.
    pub(crate) fn comes(&self, queue: &CompletionQueue, completion: Completion, solicited: bool) {
        let mut held = self.lock();
        let is_behind = held.queues.contains_key(&work_queue(&completion));
        let overtakes = !is_behind && held.is_waited_for(completion.queue_pair);
        let device = queue.context().device().name();
        let lateness = self.decides.comes(device, &completion, overtakes);
        let now = clock::device();
        let (time, is_overtaken) = match lateness {
            Lateness::OnTime if is_behind => (Duration::ZERO, false),
            Lateness::OnTime => {
                held.overtakes(completion.queue_pair);
                queue.give(completion, solicited);
                return self.give_due(queue, held, now);
            }
            Lateness::After(time) => (time, false),
            Lateness::Overtaken(time) => (time, true),
        };
        if held.count + queue.waiting() as usize >= queue.room() {
            drop(held);
            return queue.overrun();
        }
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        held.add(Waiting { completion, solicited, until: now.saturating_add(time), is_overtaken });
        self.give_due(queue, held, now);
    }

    /// Gives those that are due, and sees to it that the rest are given.
    fn give_due(&self, queue: &CompletionQueue, mut held: MutexGuard<'_, LateCompletions>, mut now: u64) {
        loop {
            while let Some(waiting) = held.take_due(now) {
                held.overtakes(waiting.completion.queue_pair);
                queue.give(waiting.completion, waiting.solicited);
            }
            let Some(next) = held.next() else { return };
            if held.armed.is_some_and(|armed| armed <= next) {
                return;
            }
            let alarm = Arc::new(Alarm(queue.this()));
            let wait = Duration::from_nanos(next.saturating_sub(now));
            if queue.context().engine().reactor.set_timer(wait, alarm).is_ok() {
                held.armed = Some(next);
                return;
            }
            // There is no thread that could give it later.
            now = u64::MAX;
        }
    }

    fn ring(&self, queue: &CompletionQueue) {
        let mut held = self.lock();
        held.armed = None;
        self.give_due(queue, held, clock::device());
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().count
    }

    /// Whether requests of a queue pair have succeeded whose completions are late.
    pub(crate) fn has_results_of(&self, queue_pair: u32) -> bool {
        let held = self.lock();
        let lists = [false, true].map(|is_receive| held.queues.get(&(queue_pair, is_receive)));
        lists.into_iter().flatten().flatten().any(|waiting| waiting.completion.status == Status::Success)
    }

    /// Takes out the completions that `wanted` picks.
    pub(crate) fn withdraw(
        &self,
        wanted: &impl Fn(&Completion) -> bool,
        taken: &mut impl FnMut(&Completion),
    ) {
        self.lock().withdraw(wanted, taken);
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        *self.lock() = LateCompletions::default();
    }
}

/// The time of a late completion has come.
struct Alarm(Weak<CompletionQueue>);

impl Source for Alarm {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(queue) = self.0.upgrade()
            && let Some(late) = queue.late()
        {
            late.ring(&queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(queue_pair: u32, wr_id: u64, until: u64, is_overtaken: bool) -> Waiting {
        let completion = Completion { queue_pair, wr_id, ..Completion::default() };
        Waiting { completion, solicited: false, until, is_overtaken }
    }

    fn due(held: &mut LateCompletions, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| held.take_due(now)).map(|waiting| waiting.completion.wr_id).collect()
    }

    #[test]
    fn those_of_a_work_queue_keep_their_order_and_others_go_by_their_times() {
        let mut held = LateCompletions::default();
        for one in [waiting(1, 10, 5, false), waiting(1, 11, 0, false), waiting(2, 20, 3, false)] {
            held.add(one);
        }
        assert_eq!((due(&mut held, 2), held.next()), (vec![], Some(3)));
        assert_eq!((due(&mut held, 4), held.next()), (vec![20], Some(5)));
        assert_eq!((due(&mut held, 5), held.next(), held.count), (vec![10, 11], None, 0));
    }

    #[test]
    fn one_that_is_overtaken_goes_after_another_queue_pairs() {
        let mut held = LateCompletions::default();
        held.add(waiting(1, 10, 100, true));
        assert!(held.is_waited_for(2) && !held.is_waited_for(1));
        held.overtakes(1);
        assert_eq!(due(&mut held, 50), [0_u64; 0]);
        held.overtakes(2);
        assert_eq!(due(&mut held, 50), [10]);
        assert!(!held.is_waited_for(2));
    }

    #[test]
    fn a_queue_pair_that_goes_takes_its_completions_along() {
        let mut held = LateCompletions::default();
        let receive = |mut one: Waiting| {
            one.completion.opcode = CompletionOpcode::Receive;
            one
        };
        for one in [waiting(1, 10, 5, false), receive(waiting(1, 11, 6, false)), waiting(2, 20, 7, false)] {
            held.add(one);
        }
        let mut taken = Vec::new();
        held.withdraw(&|completion| completion.queue_pair == 1, &mut |completion| {
            taken.push(completion.wr_id)
        });
        taken.sort_unstable();
        assert_eq!(taken, [10, 11]);
        assert_eq!((held.count, due(&mut held, 9)), (1, vec![20]));
    }
}
