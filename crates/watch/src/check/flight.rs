//! Requests in flight: what was posted to each queue, in order, and what a polled completion frees.
//!
//! An adapter frees slots of a send queue when a signalled completion is polled: its own slot, and those of
//! all requests before it.

use super::few::Few;
use super::map::Map;
use super::site::Site;
use adverb_core::request::Sge;
use adverb_libibverbs::seam::{PostedRequest, Role};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A request that was posted, and whose completion was not polled.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// No two requests have the same; later ones have greater ones.
    pub(super) serial: u64,
    pub(super) posted: PostedRequest,
    pub(super) elements: Few<Sge>,
    /// Where the bytes of receives and the results of Reads arrive, in memory of the process.
    pub(super) arrives: Few<(u64, u64)>,
    /// The checksum of the bytes, when the request was posted.
    pub(super) checksum: Option<u64>,
    pub(super) site: Site,
    /// The time, in nanoseconds of the device's clock.
    pub(super) when: u64,
}

/// A queue of requests.
#[derive(Debug, Default)]
pub(super) struct Queue {
    requests: VecDeque<Request>,
    /// Threads that are just posting.
    posting: u32,
    /// Several threads have posted at a time: the order is not known.
    is_unordered: bool,
    /// A completion came of a request that nobody knows.
    is_lost: bool,
    /// When the last request was posted.
    last_post: u64,
}

/// More requests of a queue are not kept: no device has more slots.
const MOST: usize = 1 << 17;

impl Queue {
    /// A thread begins to post requests. Those come back that are no longer kept.
    #[must_use]
    pub(super) fn begin(&mut self, requests: impl IntoIterator<Item = Request>) -> Vec<Request> {
        self.posting += 1;
        self.is_unordered |= self.posting > 1;
        self.requests.extend(requests);
        self.last_post = self.requests.back().map_or(self.last_post, |request| request.when);
        if self.requests.len() <= MOST {
            return Vec::new();
        }
        self.is_lost = true;
        self.requests.drain(..self.requests.len() - MOST).collect()
    }

    /// A call that posts is done. The requests from a serial on up to another one were not taken.
    pub(super) fn end(&mut self, untaken: std::ops::Range<u64>) -> Vec<Request> {
        self.posting = self.posting.saturating_sub(1);
        let mut refused = Vec::new();
        if !untaken.is_empty() {
            let all = std::mem::take(&mut self.requests);
            for request in all {
                if untaken.contains(&request.serial) {
                    refused.push(request);
                } else {
                    self.requests.push_back(request);
                }
            }
        }
        refused
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Request> {
        self.requests.iter()
    }

    /// Whether what is known of it is all there is.
    pub(super) fn is_certain(&self) -> bool {
        !self.is_lost
    }

    /// Nothing is in flight any more: the queue pair was reset. What is known of it from now on is all there
    /// is.
    pub(super) fn clear(&mut self) -> Vec<Request> {
        self.is_lost = false;
        self.is_unordered = self.posting > 1;
        std::mem::take(&mut self.requests).into()
    }

    /// A completion of a send queue was polled. The requests that it frees go to the end of `freed`, and the
    /// last one is that of the completion. An error is reported of a request that asked for no report, too.
    pub(super) fn complete_send(&mut self, wr_id: u64, is_error: bool, freed: &mut Vec<Request>) {
        let is_its =
            |request: &Request| request.posted.wr_id == wr_id && (request.posted.is_reported || is_error);
        let Some(place) = self.requests.iter().position(is_its) else {
            self.is_lost = true;
            return;
        };
        let passes = self.requests.iter().take(place).any(|request| request.posted.is_reported);
        if !passes || is_error {
            return freed.extend(self.requests.drain(..=place));
        }
        // Of two threads that posted at a time, the other was first. Or a completion was missed.
        self.is_lost |= !self.is_unordered;
        freed.extend(self.requests.remove(place));
    }

    fn has_receive(&self, wr_id: u64) -> bool {
        self.requests.iter().any(|request| request.posted.wr_id == wr_id)
    }

    /// From now on, what is known of it is not all there is.
    fn lose(&mut self) {
        self.is_lost = true;
    }

    /// A completion of a receive was polled.
    pub(super) fn complete_receive(&mut self, wr_id: u64) -> Option<Request> {
        let place = self.requests.iter().position(|request| request.posted.wr_id == wr_id)?;
        self.requests.remove(place)
    }
}

/// Ranges of memory, each of a request: the first byte, the byte behind the last, and the serial.
type Range = (u64, u64, u64);

/// Ranges by their length, each class twice as long as the one before: those that share a byte with another
/// range are found without a look at all.
#[derive(Debug, Default)]
struct Ranges {
    classes: BTreeMap<u32, BTreeSet<Range>>,
}

impl Ranges {
    fn class((start, end, _): &Range) -> u32 {
        (end - start).checked_ilog2().unwrap_or(0)
    }

    fn insert(&mut self, range: Range) {
        self.classes.entry(Self::class(&range)).or_default().insert(range);
    }

    fn remove(&mut self, range: &Range) {
        let class = Self::class(range);
        if let Some(set) = self.classes.get_mut(&class) {
            set.remove(range);
            if set.is_empty() {
                self.classes.remove(&class);
            }
        }
    }

    /// A range that shares a byte with these, and is not the very same.
    fn other(&self, start: u64, end: u64, takes_same: bool) -> Option<Range> {
        self.classes.iter().find_map(|(class, set)| {
            let longest = 2_u64.saturating_pow(class + 1);
            let mut from = (start.saturating_sub(longest), 0, 0);
            loop {
                let found = *set.range(from..(end, 0, 0)).find(|(_, other, _)| *other > start)?;
                if takes_same || (found.0, found.1) != (start, end) {
                    return Some(found);
                }
                // Programs that throw messages away post the very same range many times.
                from = (start, end, u64::MAX);
            }
        })
    }
}

/// The memory where bytes arrive: of all receives, and of the results of Reads, in flight; and of those that
/// were done last.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    receives: Ranges,
    /// Of Reads, and of Writes to memory of this process.
    others: Ranges,
    done: VecDeque<Range>,
    /// The serial of the last request whose end is forgotten.
    forgotten: u64,
}

/// The most ranges that are kept when they are done.
const MOST_DONE: usize = 1 << 12;

impl Arrivals {
    fn of(&mut self, is_receive: bool) -> &mut Ranges {
        if is_receive { &mut self.receives } else { &mut self.others }
    }

    pub(super) fn add(&mut self, serial: u64, ranges: &[(u64, u64)], is_receive: bool) {
        for (start, end) in ranges {
            self.of(is_receive).insert((*start, *end, serial));
        }
    }

    /// A request is done, at the time of this serial.
    pub(super) fn remove(&mut self, serial: u64, ranges: &[(u64, u64)], is_receive: bool, now: u64) {
        for (start, end) in ranges {
            self.of(is_receive).remove(&(*start, *end, serial));
            self.done.push_back((*start, *end, now));
            if self.done.len() > MOST_DONE
                && let Some((_, _, when)) = self.done.pop_front()
            {
                self.forgotten = when;
            }
        }
    }

    /// The range and serial of a receive that shares a part of this range.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> Option<Range> {
        self.receives.other(start, end, false)
    }

    /// Whether bytes may have arrived in this range since a request was posted.
    pub(super) fn may_have_changed(&self, start: u64, end: u64, since: u64) -> bool {
        self.forgotten >= since
            || self.receives.other(start, end, true).is_some()
            || self.others.other(start, end, true).is_some()
            || self.done.iter().any(|(first, last, when)| *when >= since && *first < end && *last > start)
    }

    /// How many ranges are in flight.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        [&self.receives, &self.others]
            .map(|all| all.classes.values().map(BTreeSet::len).sum::<usize>())
            .iter()
            .sum()
    }
}

/// The queues of the process.
#[derive(Debug, Default)]
pub(super) struct Flight {
    last: u64,
    /// By the address of the queue pair.
    pub(super) pairs: Map<usize, Pair>,
    /// Addresses by numbers.
    numbers: Map<u32, usize>,
    /// Shared receive queues and work queues, by address.
    pub(super) shared: Map<usize, Queue>,
    pub(super) arrivals: Arrivals,
    /// Counts calls that are no posts and polls: what was known of peers before may be wrong.
    pub(super) epoch: u64,
}

/// A queue pair.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) number: u32,
    /// The queue pair's protection domain, by number.
    pub(super) domain: u32,
    /// The receives of the queue pair begin with room for a header.
    pub(super) is_datagram: bool,
    /// The queue pair is the target of an XRC connection.
    pub(super) is_extended: bool,
    /// Slots of the send queue.
    pub(super) slots: usize,
    /// The shared receive queue, or 0.
    pub(super) shared: usize,
    /// Where sends and receives complete.
    pub(super) completes_on: [usize; 2],
    pub(super) sends: Queue,
    pub(super) receives: Queue,
    /// Whether the peer is of this process, and in which epoch that was found.
    pub(super) peer_here: Option<(u64, bool)>,
    /// When the program began to end, it worked, and had so many requests that were not done.
    pub(super) left: Option<usize>,
    /// A change of its state that failed and was not repeated.
    pub(super) failed_change: Option<(i32, Site)>,
}

impl Flight {
    pub(super) fn next_serial(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The serial of the request that was posted last.
    pub(super) fn now(&self) -> u64 {
        self.last
    }

    /// A queue pair that posts for the first time, or one that is known.
    pub(super) fn pair(&mut self, pointer: usize, make: impl FnOnce() -> Pair) -> &mut Pair {
        self.pairs.entry(pointer).or_insert_with(|| {
            let pair = make();
            self.numbers.insert(pair.number, pointer);
            pair
        })
    }

    /// Whether the peer of a queue pair is of this process, if that is known.
    pub(super) fn has_peer_here(&self, pointer: usize) -> Option<bool> {
        let (epoch, is_here) = self.pairs.get(&pointer)?.peer_here?;
        (epoch == self.epoch).then_some(is_here)
    }

    /// Takes note of whether the peer is of this process.
    pub(super) fn found_peer(&mut self, pointer: usize, is_here: bool) {
        let epoch = self.epoch;
        if let Some(pair) = self.pairs.get_mut(&pointer) {
            pair.peer_here = Some((epoch, is_here));
        }
    }

    pub(super) fn by_number(&mut self, number: u32) -> Option<(usize, &mut Pair)> {
        let pointer = *self.numbers.get(&number)?;
        Some((pointer, self.pairs.get_mut(&pointer)?))
    }

    /// When a receive was posted for a queue pair the last time; 0 for never.
    pub(super) fn last_receive(&self, number: u32) -> u64 {
        let pair = self.numbers.get(&number).and_then(|pointer| self.pairs.get(pointer));
        let shared = pair.and_then(|pair| self.shared.get(&pair.shared));
        let of = |queue: &Queue| queue.last_post;
        pair.map_or(0, |pair| of(&pair.receives)).max(shared.map_or(0, of))
    }

    /// The request of a queue pair that was posted first: `wr_id`, time and place.
    pub(super) fn oldest_send(&self, number: u32) -> Option<(u64, u64, Site)> {
        let pair = self.pairs.get(self.numbers.get(&number)?)?;
        pair.sends.iter().next().map(|request| (request.posted.wr_id, request.when, request.site))
    }

    /// Whether a request is in flight that completes on this completion queue.
    pub(super) fn completes_on(&self, queue: usize) -> bool {
        self.pairs.values().any(|pair| {
            let [sends, receives] = pair.completes_on;
            let shared = self.shared.get(&pair.shared).map_or(0, Queue::len);
            sends == queue && pair.sends.len() > 0 || receives == queue && pair.receives.len() + shared > 0
        })
    }

    /// A queue pair is gone.
    pub(super) fn forget(&mut self, pointer: usize) {
        let Some(mut pair) = self.pairs.remove(&pointer) else { return };
        if self.numbers.get(&pair.number) == Some(&pointer) {
            self.numbers.remove(&pair.number);
        }
        let all = pair.sends.clear().into_iter().chain(pair.receives.clear());
        self.finish(all);
    }

    /// A shared queue is gone.
    pub(super) fn forget_shared(&mut self, pointer: usize) {
        if let Some(mut queue) = self.shared.remove(&pointer) {
            let all = queue.clear();
            self.finish(all);
        }
    }

    /// Nothing arrives for these requests any more.
    pub(super) fn finish(&mut self, requests: impl IntoIterator<Item = Request>) {
        for request in requests {
            let is_receive = request.posted.role == Role::Receive;
            self.arrivals.remove(request.serial, &request.arrives, is_receive, self.last);
        }
    }

    /// The completion of a receive of this queue pair was polled.
    pub(super) fn complete_receive(&mut self, number: u32, wr_id: u64) -> Option<Request> {
        let pair = self.numbers.get(&number).and_then(|pointer| self.pairs.get_mut(pointer))?;
        let found = match self.shared.get_mut(&pair.shared) {
            Some(queue) => queue.complete_receive(wr_id),
            None => pair.receives.complete_receive(wr_id).or_else(|| {
                // Messages of XRC say themselves to which shared queue they go.
                let mut found = self.shared.values_mut().filter(|queue| queue.has_receive(wr_id));
                let first = found.next()?;
                match found.next() {
                    None => first.complete_receive(wr_id),
                    Some(second) => {
                        [first, second].into_iter().chain(found).for_each(Queue::lose);
                        None
                    }
                }
            }),
        };
        if let Some(request) = &found {
            self.arrivals.remove(request.serial, &request.arrives, true, self.last);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(serial: u64, is_reported: bool) -> Request {
        let posted = PostedRequest {
            wr_id: serial * 10,
            role: Role::Send,
            opcode: 0,
            flags: 0,
            length: 0,
            remote_address: 0,
            rkey: 0,
            is_reported,
        };
        Request {
            serial,
            posted,
            elements: Few::default(),
            arrives: Few::default(),
            checksum: None,
            site: Site::default(),
            when: 0,
        }
    }

    fn queue(requests: &[(u64, bool)]) -> Queue {
        let mut queue = Queue::default();
        for (serial, is_reported) in requests {
            assert!(queue.begin([request(*serial, *is_reported)]).is_empty());
            queue.end(0..0);
        }
        queue
    }

    /// The serials of the requests that a completion frees.
    fn freed(queue: &mut Queue, wr_id: u64, is_error: bool) -> Vec<u64> {
        let mut freed = Vec::new();
        queue.complete_send(wr_id, is_error, &mut freed);
        freed.iter().map(|request| request.serial).collect()
    }

    #[test]
    fn a_signalled_completion_frees_all_requests_before_it() {
        let mut queue = queue(&[(1, false), (2, false), (3, true), (4, false)]);
        assert_eq!(freed(&mut queue, 30, false), [1, 2, 3]);
        assert_eq!((queue.len(), queue.is_certain()), (1, true));
        assert_eq!(freed(&mut queue, 40, true), [4], "an error is always reported");
        assert!(freed(&mut queue, 50, false).is_empty());
        assert!(!queue.is_certain());
    }

    #[test]
    fn requests_of_two_threads_have_no_order() {
        let mut queue = Queue::default();
        let posted = [1, 2].map(|serial| queue.begin([request(serial, true)]).len());
        assert_eq!(posted, [0, 0]);
        queue.end(0..0);
        queue.end(0..0);
        assert_eq!(freed(&mut queue, 20, false), [2]);
        assert_eq!(freed(&mut queue, 10, false), [1]);
        assert!(queue.is_certain());
    }

    #[test]
    fn requests_that_were_not_taken_are_gone() {
        let mut queue = Queue::default();
        assert!(queue.begin([1, 2, 3].map(|serial| request(serial, true))).is_empty());
        let refused: Vec<_> = queue.end(2..4).iter().map(|request| request.serial).collect();
        assert_eq!((refused, queue.len()), (vec![2, 3], 1));
    }

    #[test]
    fn receives_that_share_a_part_are_found_and_equal_ones_are_not() {
        let mut arrivals = Arrivals::default();
        arrivals.add(1, &[(100, 200)], true);
        arrivals.add(2, &[(1000, 5000)], true);
        assert_eq!(arrivals.overlapping(100, 200), None);
        assert_eq!(arrivals.overlapping(200, 300), None);
        assert_eq!(arrivals.overlapping(150, 250), Some((100, 200, 1)));
        assert_eq!(arrivals.overlapping(4999, 6000), Some((1000, 5000, 2)));
        assert_eq!(arrivals.overlapping(50, 101), Some((100, 200, 1)));
        arrivals.remove(1, &[(100, 200)], true, 7);
        assert_eq!(arrivals.overlapping(150, 250), None);
        arrivals.add(3, &[(150, 250)], false);
        assert_eq!(arrivals.overlapping(160, 250), None, "a Read brings it");
        arrivals.remove(3, &[(150, 250)], false, 0);
        assert!(arrivals.may_have_changed(150, 160, 7) && !arrivals.may_have_changed(150, 160, 8));
        assert!(arrivals.may_have_changed(2000, 2001, 8) && !arrivals.may_have_changed(200, 300, 0x8));
    }

    #[test]
    fn ranges_of_any_length_are_found_behind_many_that_are_the_same() {
        let mut arrivals = Arrivals::default();
        for serial in 1..=1000 {
            arrivals.add(serial, &[(1 << 20, (1 << 20) + 64)], true);
        }
        assert_eq!(arrivals.overlapping(1 << 20, (1 << 20) + 64), None);
        arrivals.add(2000, &[((1 << 20) + 63, (1 << 20) + 80)], true);
        let other = Some(((1 << 20) + 63, (1 << 20) + 80, 2000));
        assert_eq!(arrivals.overlapping(1 << 20, (1 << 20) + 64), other);
        arrivals.add(3000, &[(0, 1 << 30)], true);
        arrivals.add(3001, &[(u64::MAX - 9, u64::MAX)], true);
        assert_eq!(arrivals.overlapping(5000, 5001), Some((0, 1 << 30, 3000)));
        assert_eq!(arrivals.overlapping(1 << 31, 1 << 32), None);
        assert_eq!(arrivals.overlapping(u64::MAX - 1, u64::MAX), Some((u64::MAX - 9, u64::MAX, 3001)));
        for serial in 1..=1000 {
            arrivals.remove(serial, &[(1 << 20, (1 << 20) + 64)], true, serial);
        }
        assert_eq!(arrivals.len(), 3);
    }

    #[test]
    fn requests_that_no_completion_frees_take_a_bounded_place() {
        let mut flight = Flight::default();
        let pair = flight.pair(16, Pair::default);
        pair.slots = 4;
        for _ in 0..=MOST + 10 {
            let serial = flight.next_serial();
            let arrives: Few<_> = [(serial * 8, serial * 8 + 8)].into_iter().collect();
            flight.arrivals.add(serial, &arrives, false);
            let pair = flight.pairs.get_mut(&16).expect("a queue pair");
            let forgotten = pair.sends.begin([Request { arrives, ..request(serial, false) }]);
            pair.sends.end(0..0);
            flight.finish(forgotten);
        }
        assert_eq!((flight.pairs[&16].sends.len(), flight.arrivals.len()), (MOST, MOST));
        assert!(!flight.pairs[&16].sends.is_certain());
    }
}
