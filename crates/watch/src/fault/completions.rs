//! Faults of completions: those that get an error status as a call hands them out, and those that come late.

use super::Faults;
use super::rule::{OfCompletion, Subject};
use crate::calls::{Call, Work};
use crate::names;
use adverb_core::late::{Completions, Lateness};
use adverb_core::request::{Cause, Completion, Status};
use adverb_core::{log, random};
use adverb_libibverbs::abi::{IBV_WC_SUCCESS, ibv_cq, ibv_cq_ex, ibv_wc};
use adverb_libibverbs::seam::{self, Answer, Arguments, PolledCompletion};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

impl Faults {
    /// Gives completions that a call hands out another status: the number of the last fault, if there is one.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so.
    pub(super) unsafe fn completions(
        &self,
        call: &Call,
        arguments: &Arguments,
        answer: Answer,
    ) -> Option<u64> {
        if !self.has_completions {
            return None;
        }
        let mut last = None;
        let queue = arguments[0] as *mut ibv_cq;
        match call.work {
            Work::Completions => {
                let list = arguments[2] as *mut ibv_wc;
                for index in 0..usize::try_from(answer.value as i32).unwrap_or(0) {
                    // SAFETY: the call has written as many.
                    let wc = unsafe { &mut *list.add(index) };
                    // SAFETY: the caller's promise.
                    if let Some((status, number)) = unsafe { self.look(queue, &PolledCompletion::from(&*wc)) }
                    {
                        (wc.status, wc.vendor_err) = (status as u32, Cause::from(status) as u32);
                        last = number.or(last);
                    }
                }
            }
            Work::Cursor if answer.value as i32 == 0 => {
                let queue_ex = arguments[0] as *mut ibv_cq_ex;
                // SAFETY: the caller's promise: the thread has the cursor.
                unsafe {
                    let completion = seam::under_cursor(queue_ex)?;
                    if let Some((status, number)) = self.look(queue, &completion) {
                        seam::change_status(queue_ex, status, Cause::from(status) as u32);
                        last = number;
                    }
                }
            }
            _ => {}
        }
        last
    }

    /// The status that a completion gets in place of its own, and the number of the fault; none if it is
    /// flushed after one.
    ///
    /// # Safety
    /// `queue` is the completion queue.
    unsafe fn look(
        &self,
        queue: *mut ibv_cq,
        completion: &PolledCompletion,
    ) -> Option<(Status, Option<u64>)> {
        if completion.status != IBV_WC_SUCCESS {
            return None;
        }
        let key = FlushedPairs::key(completion.queue_pair, completion.is_receive());
        if self.broken.has(key) {
            // SAFETY: the caller's promise.
            if unsafe { seam::is_in_error(queue, completion.queue_pair) } {
                return Some((Status::Flushed, None));
            }
            self.broken.remove(key);
        }
        // SAFETY: the caller's promise.
        let device = unsafe { seam::device_of_queue(queue) }.unwrap_or_default();
        let mut found = None;
        for (place, counted) in self.rules.iter().enumerate() {
            if let Subject::Completion { what: OfCompletion::Fails(status), opcode } = counted.rule.subject
                && opcode.is_none_or(|opcode| opcode == completion.opcode)
                && counted.rule.of.has(&self.pairs, device, completion.queue_pair)
                && let Some(count) = self.strikes(place)
            {
                found = found.or(Some((status, count, &counted.rule.text)));
            }
        }
        let (status, count, text) = found?;
        let number = self.next_number();
        // SAFETY: the caller's promise.
        unsafe { seam::enter_error(queue, completion.queue_pair) };
        // Then only: another thread takes a queue back that is in the table and in no error.
        self.broken.add(key);
        log!(
            Warn,
            "fault {number}: queue pair {:#x}: completion {count}, of request {:#x}, has {} ({text})",
            completion.queue_pair,
            completion.wr_id,
            names::of(names::WC_STATUS, status as u64).unwrap_or("an error")
        );
        Some((status, Some(number)))
    }
}

impl Completions for Faults {
    fn made(&self, device: &str, queue_pair: u32) {
        self.pairs.add(device, queue_pair);
    }

    fn comes(&self, device: &str, completion: &Completion, overtakes: bool) -> Lateness {
        let mut late = Lateness::OnTime;
        for (place, counted) in self.rules.iter().enumerate() {
            let Subject::Completion { what, opcode } = counted.rule.subject else { continue };
            let is_it = !matches!(what, OfCompletion::Fails(_))
                && opcode.is_none_or(|opcode| opcode == completion.opcode as u32)
                && counted.rule.of.has(&self.pairs, device, completion.queue_pair);
            if !is_it {
                continue;
            }
            let Some(count) = self.strikes(place) else { continue };
            let (new, says) = match what {
                OfCompletion::Delay { time, jitter } => {
                    let drawn = random::next(self.drawn(place, count));
                    (Lateness::After(time.saturating_add(part_of(jitter, drawn))), "comes late")
                }
                // One that others wait for does not wait itself.
                OfCompletion::Reorder(_) if overtakes => continue,
                OfCompletion::Reorder(time) => {
                    (Lateness::Overtaken(time), "waits for one of another queue pair")
                }
                OfCompletion::Fails(_) => continue,
            };
            if late == Lateness::OnTime {
                late = new;
            }
            self.say_some(counted, |number, text| {
                log!(
                    Warn,
                    "fault {number}: queue pair {:#x}: completion {count}, of request {:#x}, {says} ({text})",
                    completion.queue_pair,
                    completion.wr_id
                );
            });
        }
        late
    }
}

/// A part of a time, by a number that is drawn.
pub(super) fn part_of(time: Duration, drawn: u64) -> Duration {
    Duration::from_nanos((time.as_nanos() as f64 * (drawn >> 11) as f64 / (1u64 << 53) as f64) as u64)
}

/// Queues whose requests are flushed after a fault. The newest of more than there is room for takes the place
/// of the oldest, whose requests that were done before stay so.
pub(super) struct FlushedPairs {
    slots: [AtomicU64; 64],
    oldest: AtomicUsize,
}

impl FlushedPairs {
    pub(super) fn new() -> Self {
        Self { slots: [const { AtomicU64::new(0) }; 64], oldest: AtomicUsize::new(0) }
    }

    /// A queue of a queue pair; never 0.
    fn key(queue_pair: u32, is_receive: bool) -> u64 {
        1 << 40 | u64::from(queue_pair) << 1 | u64::from(is_receive)
    }

    fn has(&self, key: u64) -> bool {
        self.slots.iter().any(|slot| slot.load(Ordering::Acquire) == key)
    }

    fn add(&self, key: u64) {
        if self.has(key) {
            return;
        }
        let mut slots = self.slots.iter();
        let is_free =
            |slot: &AtomicU64| slot.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !slots.any(is_free) {
            let oldest = self.oldest.fetch_add(1, Ordering::Relaxed) % self.slots.len();
            self.slots[oldest].store(key, Ordering::Release);
        }
    }

    fn remove(&self, key: u64) {
        for slot in &self.slots {
            let _ = slot.compare_exchange(key, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_queue_stays_so_until_it_is_taken_back() {
        let broken = FlushedPairs::new();
        let key = FlushedPairs::key(0, false);
        assert!(!broken.has(key) && key != FlushedPairs::key(0, true));
        broken.add(key);
        assert!(broken.has(key) && !broken.has(FlushedPairs::key(0, true)));
        broken.remove(key);
        assert!(!broken.has(key));
        let keys: Vec<_> = (0..66).map(|number| FlushedPairs::key(number, false)).collect();
        keys.iter().for_each(|key| broken.add(*key));
        let known: Vec<_> = keys.iter().map(|key| broken.has(*key)).collect();
        assert_eq!((&known[..2], known[2..].contains(&false)), (&[false, false][..], false));
    }

    #[test]
    fn completions_are_late_by_rules() {
        let faults = |text| Faults::begin(text, Some("1")).expect("rules");
        let of = |queue_pair| Completion { queue_pair, ..Completion::default() };
        let after = |milliseconds| Lateness::After(Duration::from_millis(milliseconds));
        let delays = faults("completion:delay=5ms:opcode=SEND:qp=2@2");
        delays.made("roce0", 7);
        delays.made("roce0", 8);
        let late = [7, 8, 8, 8].map(|pair| delays.comes("roce0", &of(pair), false));
        assert_eq!(late, [Lateness::OnTime, Lateness::OnTime, after(5), Lateness::OnTime]);
        let reorders = faults("completion:reorder=2ms:device=roce0");
        let overtaken = Lateness::Overtaken(Duration::from_millis(2));
        assert_eq!(reorders.comes("roce0", &of(7), false), overtaken);
        assert_eq!(reorders.comes("roce0", &of(8), true), Lateness::OnTime);
        assert_eq!(reorders.comes("iwarp0", &of(7), false), Lateness::OnTime);
        let jitter = |seed: &str| {
            let faults = Faults::begin("completion:delay=5ms:jitter=5ms", Some(seed)).expect("rules");
            [0; 9].map(|_| faults.comes("roce0", &of(7), false))
        };
        assert_eq!(jitter("3"), jitter("3"));
        assert_ne!(jitter("3"), jitter("4"));
        let bounds = after(5)..=after(10);
        assert!(jitter("3").iter().all(|late| match (late, bounds.start(), bounds.end()) {
            (Lateness::After(time), Lateness::After(from), Lateness::After(to)) =>
                (from..=to).contains(&time),
            _ => false,
        }));
    }
}
