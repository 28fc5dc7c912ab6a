//! Which packets belong to which request, over both processes: a request says with which packet it begins, and a packet has the same number where it leaves
//! and where it arrives.

use super::record::{Parts, Trace, text};
use std::collections::{HashMap, VecDeque};

/// A packet, by the queue pair that it goes to and its number there.
type Packet = (String, u64);
/// A queue pair of a process.
type Pair = (u64, String);

/// What is known so far, in the order of time.
#[derive(Default)]
pub(super) struct Passage {
    /// Requests by their queue pair and their place in its queue.
    places: HashMap<(Pair, u64), usize>,
    /// Requests whose first packet has left, by that packet.
    begun: HashMap<Packet, usize>,
    /// The same by their last packet.
    ended: HashMap<Packet, usize>,
    /// The request whose packets leave now, by process and destination.
    leaving: HashMap<Pair, usize>,
    /// Requests of a queue pair that wait for an acknowledgement or an answer, with the number of their last packet.
    unanswered: HashMap<Pair, VecDeque<(u64, usize)>>,
    /// The last acknowledgement of a queue pair, and when it came: a thread may take it in before the one that sends has written down that it has sent.
    answered: HashMap<Pair, (u64, f64)>,
    /// Messages that have arrived, and have been polled nowhere yet.
    waiting: HashMap<Pair, VecDeque<usize>>,
}

/// Whether a number comes before another one, or is the same: they count modulo 2^24.
fn is_up_to(number: u64, limit: u64) -> bool {
    limit.wrapping_sub(number) & 0xff_ffff < 1 << 23
}

impl Passage {
    /// Requests have been posted, from this one on; the first has this place in its queue.
    pub(super) fn posted(&mut self, trace: &Trace, first: usize, place: u64) {
        for (offset, request) in trace.requests[first..].iter().enumerate() {
            let pair = (request.pid, request.pair.clone());
            self.places.insert((pair, place + offset as u64), first + offset);
        }
    }

    /// A packet, or the beginning of a request.
    pub(super) fn take(&mut self, trace: &mut Trace, pid: u64, parts: &Parts<'_>) {
        let said = parts.arguments;
        let packet = (text(&said["to"]), said["psn"].as_u64().unwrap_or(0));
        if let Some(pair) = said["begun"].as_str() {
            let key = ((pid, pair.to_owned()), said["place"].as_u64().unwrap_or(0));
            if let Some(request) = self.places.remove(&key) {
                self.leaving.insert((pid, packet.0.clone()), request);
                self.begun.insert(packet, request);
            }
            return;
        }
        let part = said["part"].as_str().unwrap_or_default();
        let (begins, ends) = (matches!(part, "first" | "only"), matches!(part, "last" | "only"));
        let kind = said["kind"].as_str().unwrap_or_default();
        let is_request = matches!(kind, "SEND" | "RDMA_WRITE" | "RDMA_READ" | "ATOMIC" | "FLUSH");
        if said["packet"] == "out" {
            trace.packets.entry(pid).or_default().sent += 1;
            if is_request {
                self.leaves(trace, pid, packet, parts.time, (begins, ends));
            }
            return;
        }
        trace.packets.entry(pid).or_default().received += 1;
        let pair = (pid, packet.0.clone());
        if let Some(acknowledged) = said["acknowledged"].as_u64() {
            self.answer(trace, &pair, acknowledged, parts.time);
        } else if ends && matches!(kind, "READ_RESPONSE" | "ATOMIC_RESPONSE") {
            self.answer(trace, &pair, packet.1, parts.time);
        }
        if !is_request {
            return;
        }
        if begins && let Some(request) = self.begun.remove(&packet) {
            let arrived = &mut trace.requests[request].arrived;
            *arrived = arrived.or(Some((parts.time, parts.time)));
        }
        if ends && let Some(request) = self.ended.remove(&packet) {
            let arrived = &mut trace.requests[request].arrived;
            *arrived = Some((arrived.map_or(parts.time, |(first, _)| first), parts.time));
            if said["takes_receive"] == 1 {
                self.waiting.entry(pair).or_default().push_back(request);
            }
        }
    }

    fn leaves(
        &mut self,
        trace: &mut Trace,
        pid: u64,
        packet: Packet,
        time: f64,
        (begins, ends): (bool, bool),
    ) {
        let begun = if begins { self.begun.get(&packet).copied() } else { None };
        let request = begun.or_else(|| self.leaving.get(&(pid, packet.0.clone())).copied());
        let Some(request) = request else { return };
        let one = &mut trace.requests[request];
        one.left = Some((one.left.map_or(time, |(first, _)| first), time));
        if ends {
            let pair = (pid, one.pair.clone());
            let posted = one.posted;
            let early =
                self.answered.get(&pair).filter(|(number, at)| is_up_to(packet.1, *number) && *at >= posted);
            let unanswered = self.unanswered.entry(pair.clone()).or_default();
            if let Some((_, time)) = early {
                one.answered = one.answered.or(Some(*time));
            } else if unanswered.back().is_none_or(|(_, last)| *last != request) {
                unanswered.push_back((packet.1, request));
            }
            self.ended.insert(packet, request);
        }
    }

    /// All requests of a queue pair up to this packet are answered.
    fn answer(&mut self, trace: &mut Trace, pair: &Pair, number: u64, time: f64) {
        self.answered.insert(pair.clone(), (number, time));
        let Some(unanswered) = self.unanswered.get_mut(pair) else { return };
        while let Some((_, request)) = unanswered.pop_front_if(|(last, _)| is_up_to(*last, number)) {
            trace.requests[request].answered = Some(time);
        }
    }

    /// A receive is done: it has taken the message that had come before all others.
    pub(super) fn received(&mut self, trace: &mut Trace, receive: usize) {
        let request = &trace.requests[receive];
        let pair = (request.pid, request.pair.clone());
        if let Some(message) = self.waiting.get_mut(&pair).and_then(VecDeque::pop_front) {
            trace.requests[receive].partner = Some(message);
            trace.requests[message].partner = Some(receive);
        }
    }
}
