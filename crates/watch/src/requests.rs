//! Requests that are under way: which of them a completion ends, and which of them a packet belongs to.

use crate::format::TransportEvent;
use adverb_core::watch::Flow;
use adverb_core::wire::Direction;
use adverb_libibverbs::seam::PolledCompletion;
use std::collections::{HashMap, VecDeque};

/// The queue that a request is posted to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Queue {
    /// The sends of the queue pair of this number.
    Sends(u32),
    /// The receives of the queue pair of this number.
    Receives(u32),
    /// A shared receive queue, or a work queue, by its address.
    Shared(usize),
}

struct UnderWay {
    number: u64,
    wr_id: u64,
    is_reported: bool,
    name: &'static str,
    /// How many requests were posted to the queue before it, where that is known.
    place: Option<u64>,
}

/// Requests that are under way, by the queues that they were posted to.
#[derive(Default)]
pub(crate) struct Requests {
    last: u64,
    queues: HashMap<Queue, VecDeque<UnderWay>>,
    /// Requests whose first packet is about to leave, by that packet.
    begun: HashMap<(Flow, u64), u64>,
    /// Messages that have come for a queue pair, with the number of the last one's last packet; and those of
    /// them whose receives have been polled.
    arrived: HashMap<u32, (Option<u64>, u64)>,
    polled: HashMap<u32, u64>,
}

/// What an event that a transport shows belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// The request that begins.
    pub(crate) request: Option<u64>,
    /// The message that has come: it is the queue pair's so many-th.
    pub(crate) arrival: Option<u64>,
}

impl Requests {
    /// A request is about to be posted: its number.
    pub(crate) fn post(
        &mut self,
        queue: Queue,
        wr_id: u64,
        is_reported: bool,
        name: &'static str,
        place: Option<u64>,
    ) -> u64 {
        /// More are not kept of a queue: no device has more.
        const MOST: usize = 1 << 20;
        self.last += 1;
        let requests = self.queues.entry(queue).or_default();
        if requests.len() == MOST {
            requests.pop_front();
        }
        requests.push_back(UnderWay { number: self.last, wr_id, is_reported, name, place });
        self.last
    }

    /// The number of the request that stands at this place of its queue.
    pub(crate) fn at(&self, queue: Queue, place: u64) -> Option<u64> {
        let requests = self.queues.get(&queue)?;
        let (first, last) = (requests.front()?.place?, requests.back()?.place?);
        // As a rule they stand in a row.
        let guess = usize::try_from(place.checked_sub(first)?).ok().and_then(|index| requests.get(index));
        let found = guess.filter(|request| request.place == Some(place)).or_else(|| {
            let is_there = place <= last;
            is_there.then(|| requests.iter().find(|request| request.place == Some(place))).flatten()
        });
        found.map(|request| request.number)
    }

    /// Finds what an event of a transport belongs to.
    pub(crate) fn link(&mut self, seen: &TransportEvent) -> Links {
        /// More are not kept: packets that are announced leave soon.
        const MOST: usize = 1 << 16;
        match seen {
            TransportEvent::RequestStart(begun) => {
                let request = self.at(Queue::Sends(begun.queue_pair), begun.place);
                if let Some(request) = request {
                    if self.begun.len() >= MOST {
                        self.begun.clear();
                    }
                    self.begun.insert((begun.flow, begun.number), request);
                }
                Links { request, arrival: None }
            }
            TransportEvent::Packet(packet) if packet.direction == Direction::Out => {
                let key = (packet.flow, packet.number);
                let request = if packet.begins { self.begun.remove(&key) } else { None };
                Links { request, arrival: None }
            }
            TransportEvent::Packet(packet) if packet.takes_receive => {
                let Some(pair) = packet.queue_pair else { return Links::default() };
                let (last, count) = self.arrived.entry(pair).or_default();
                // A packet that comes again brings no new message. Datagrams of several senders are numbered
                // by each, and nothing of a stream comes again.
                let is_new = packet.source.is_some()
                    || !matches!(packet.flow, Flow::Pair(_))
                    || last.is_none_or(|last| {
                        (1..1 << 23).contains(&(packet.number.wrapping_sub(last) & 0xff_ffff))
                    });
                if is_new {
                    (*last, *count) = (Some(packet.number), *count + 1);
                }
                Links { request: None, arrival: is_new.then_some(*count) }
            }
            TransportEvent::Packet(_) => Links::default(),
        }
    }

    /// The receive of a message has been polled: which message of the queue pair that was, if packets are
    /// shown.
    pub(crate) fn take_arrival(&mut self, queue_pair: u32) -> Option<u64> {
        let (_, arrived) = self.arrived.get(&queue_pair)?;
        let polled = self.polled.entry(queue_pair).or_default();
        (*polled < *arrived).then(|| {
            *polled += 1;
            *polled
        })
    }

    /// Finds the request that a completion reports, and does what [`Requests::complete`] does. After an error
    /// the completion does not name the operation, so both kinds of queues are looked at.
    pub(crate) fn find(
        &mut self,
        completion: &PolledCompletion,
        mut each: impl FnMut(u64, &'static str),
    ) -> Option<u64> {
        let is_error = completion.status != 0;
        let kinds = if is_error { &[false, true][..] } else { &[completion.is_receive()][..] };
        let (pair, wr_id) = (completion.queue_pair, completion.wr_id);
        kinds.iter().find_map(|is_receive| self.complete(pair, *is_receive, wr_id, is_error, &mut each))
    }

    /// The requests from this number on were not posted.
    pub(crate) fn refuse(&mut self, queue: Queue, from: u64) {
        if let Some(requests) = self.queues.get_mut(&queue) {
            requests.retain(|request| request.number < from);
        }
    }

    /// A completion: calls `each` with the requests that are done with it, the one that is reported last, and
    /// returns its number.
    pub(crate) fn complete(
        &mut self,
        queue_pair: u32,
        is_receive: bool,
        wr_id: u64,
        is_error: bool,
        mut each: impl FnMut(u64, &'static str),
    ) -> Option<u64> {
        if !is_receive {
            let requests = self.queues.get_mut(&Queue::Sends(queue_pair))?;
            // An error is reported of a request that asked for no report, too.
            let place = requests
                .iter()
                .position(|request| request.wr_id == wr_id && (request.is_reported || is_error))?;
            let mut last = None;
            for request in requests.drain(..=place) {
                each(request.number, request.name);
                last = Some(request.number);
            }
            return last;
        }
        let own = Queue::Receives(queue_pair);
        let shared = self.queues.keys().copied().filter(|queue| matches!(queue, Queue::Shared(_)));
        for queue in std::iter::once(own).chain(shared.collect::<Vec<_>>()) {
            let Some(requests) = self.queues.get_mut(&queue) else { continue };
            let place = requests.iter().position(|request| request.wr_id == wr_id);
            if let Some(request) = place.and_then(|place| requests.remove(place)) {
                each(request.number, request.name);
                return Some(request.number);
            }
        }
        None
    }

    /// A queue pair is no more.
    pub(crate) fn forget(&mut self, queue_pair: u32) {
        self.queues.remove(&Queue::Sends(queue_pair));
        self.queues.remove(&Queue::Receives(queue_pair));
        self.arrived.remove(&queue_pair);
        self.polled.remove(&queue_pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::watch::{Answers, Packet, RequestStart, Stream};
    use adverb_core::wire::Kind;

    fn done(
        requests: &mut Requests,
        pair: u32,
        receive: bool,
        wr_id: u64,
        error: bool,
    ) -> (Option<u64>, Vec<u64>) {
        let mut all = Vec::new();
        let found = requests.complete(pair, receive, wr_id, error, |number, _| all.push(number));
        (found, all)
    }

    #[test]
    fn a_completion_is_that_of_the_first_reported_request_of_its_name_and_ends_those_before() {
        let mut requests = Requests::default();
        let queue = Queue::Sends(7);
        for (wr_id, reported) in [(5, false), (5, false), (5, true), (5, true)] {
            requests.post(queue, wr_id, reported, "", None);
        }
        assert_eq!(done(&mut requests, 7, false, 5, false), (Some(3), vec![1, 2, 3]));
        assert_eq!(done(&mut requests, 8, false, 5, false), (None, vec![]), "another queue pair");
        assert_eq!(done(&mut requests, 7, false, 6, false), (None, vec![]), "another name");
        assert_eq!(done(&mut requests, 7, false, 5, false), (Some(4), vec![4]));
        assert_eq!(done(&mut requests, 7, false, 5, false), (None, vec![]), "all are done");
    }

    #[test]
    fn an_error_is_reported_of_requests_that_asked_for_nothing() {
        let mut requests = Requests::default();
        requests.post(Queue::Sends(7), 1, false, "", None);
        requests.post(Queue::Sends(7), 2, true, "", None);
        assert_eq!(done(&mut requests, 7, false, 1, true), (Some(1), vec![1]));
    }

    #[test]
    fn receives_are_found_in_shared_queues_too_and_refused_requests_nowhere() {
        let mut requests = Requests::default();
        let first = requests.post(Queue::Shared(0x100), 1, true, "", None);
        let second = requests.post(Queue::Shared(0x100), 2, true, "", None);
        let own = requests.post(Queue::Receives(7), 2, true, "", None);
        assert_eq!(done(&mut requests, 7, true, 2, false), (Some(own), vec![own]));
        assert_eq!(done(&mut requests, 7, true, 2, false), (Some(second), vec![second]));
        requests.refuse(Queue::Shared(0x100), first);
        assert_eq!(done(&mut requests, 7, true, 1, false), (None, vec![]));
        requests.post(Queue::Receives(7), 3, true, "", None);
        requests.forget(7);
        assert_eq!(done(&mut requests, 7, true, 3, false), (None, vec![]));
    }

    /// A packet with a whole message, which takes a receive.
    fn send(
        direction: Direction,
        source: Option<u32>,
        pair: u32,
        (flow, number): (Flow, u64),
    ) -> TransportEvent {
        TransportEvent::Packet(Packet {
            direction,
            peer: [127, 0, 0, 1].into(),
            kind: Kind::Send,
            begins: true,
            ends: true,
            takes_receive: true,
            source,
            queue_pair: Some(pair),
            flow,
            number,
            answers: Answers::Nothing,
            length: 8,
            is_within: false,
        })
    }

    #[test]
    fn packets_belong_to_requests_by_their_place_and_to_receives_by_their_order() {
        let flow = Flow::Pair(0x22);
        let packet = |direction, number, source| send(direction, source, 0x22, (flow, number));
        let mut requests = Requests::default();
        let numbers: Vec<_> =
            (40..43).map(|place| requests.post(Queue::Sends(7), 1, true, "", Some(place))).collect();
        assert_eq!(requests.at(Queue::Sends(7), 41), Some(numbers[1]));
        assert_eq!((requests.at(Queue::Sends(7), 39), requests.at(Queue::Sends(7), 43)), (None, None));
        let begun = TransportEvent::RequestStart(RequestStart {
            queue_pair: 7,
            place: 42,
            flow: Flow::Pair(0x22),
            number: 5,
        });
        assert_eq!(requests.link(&begun).request, Some(numbers[2]));
        let sent = packet(Direction::Out, 5, None);
        assert_eq!(requests.link(&sent).request, Some(numbers[2]));
        assert_eq!(requests.link(&sent).request, None, "it is sent again");
        let arrivals: Vec<_> = [0xff_ffff, 0, 0, 0xff_ffff, 1]
            .map(|number| requests.link(&packet(Direction::In, number, None)).arrival)
            .into();
        assert_eq!(arrivals, [Some(1), Some(2), None, None, Some(3)]);
        assert_eq!([0; 4].map(|_| requests.take_arrival(0x22)), [Some(1), Some(2), Some(3), None]);
        assert_eq!(requests.take_arrival(0x33), None);
        // Datagrams of several senders are numbered by each.
        let datagrams = [9, 3].map(|number| requests.link(&packet(Direction::In, number, Some(1))).arrival);
        assert_eq!(datagrams, [Some(4), Some(5)]);
    }

    /// Segments and messages beside them have numbers of their own, and none comes again.
    #[test]
    fn segments_belong_to_requests_by_their_offset_and_to_receives_by_their_order() {
        let address = |port| ([127, 0, 0, 1], port).into();
        let stream = Stream { from: address(1), to: address(2) };
        let packet = |direction, flow, number| send(direction, None, 7, (flow, number));
        let mut requests = Requests::default();
        let mut begin = |place, flow| {
            let number = requests.post(Queue::Sends(7), 1, true, "", Some(place));
            requests.link(&TransportEvent::RequestStart(RequestStart {
                queue_pair: 7,
                place,
                flow,
                number: 5,
            }));
            number
        };
        let (sent, beside) = (begin(0, Flow::Stream(stream)), begin(1, Flow::Beside(stream)));
        let mut link = |flow| requests.link(&packet(Direction::Out, flow, 5)).request;
        assert_eq!([link(Flow::Beside(stream)), link(Flow::Stream(stream))], [Some(beside), Some(sent)]);
        let back = Stream { from: stream.to, to: stream.from };
        let flows = [(Flow::Stream(back), 1 << 32), (Flow::Beside(back), 0), (Flow::Beside(back), 1)];
        let arrivals =
            flows.map(|(flow, number)| requests.link(&packet(Direction::In, flow, number)).arrival);
        assert_eq!(arrivals, [Some(1), Some(2), Some(3)]);
        assert_eq!(requests.take_arrival(7), Some(1));
    }
}
