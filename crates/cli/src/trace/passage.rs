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

#[cfg(test)]
mod tests {
    use super::super::record::Trace;
    use super::super::source::Source;
    use adverb_watch::setting::Format;
    use serde_json::{Value, json};
    use std::collections::HashMap;

    fn trace(lines: Vec<Value>) -> Trace {
        let lines = lines.iter().map(Value::to_string).collect();
        let source = Source { format: Format::Json, lines, clocks: HashMap::new(), missing: 0 };
        Trace::of(&source).expect("objects")
    }

    fn packet(time: f64, pid: u64, way: &str, kind: &str, part: &str, to: &str, psn: u64) -> Value {
        json!({"time": time, "pid": pid, "packet": way, "kind": kind, "part": part, "to": to, "psn": psn, "length": 8})
    }

    fn post(time: f64, opcode: &str, number: u64, place: u64) -> Value {
        json!({
            "time": time, "duration": 0.001, "pid": 1, "tid": 1, "call": "ibv_post_send", "requests": [number], "place": place,
            "arguments": {"qp": "0x11", "wr": [{"opcode": opcode, "sg_list": [{"length": 8}]}]}
        })
    }

    #[test]
    fn a_message_is_followed_from_its_post_to_the_poll_of_its_receive() {
        let mut arrives = packet(0.6, 2, "in", "SEND", "last", "0x22", 0);
        arrives["takes_receive"] = json!(1);
        let mut answered = packet(0.8, 1, "in", "ACK", "only", "0x11", 0);
        answered["acknowledged"] = json!(0);
        let found = trace(vec![
            json!({"time": 0.1, "duration": 0.001, "pid": 2, "tid": 2, "call": "ibv_post_recv", "requests": [7], "arguments": {"qp": "0x22", "wr": [{"sg_list": [{"length": 64}]}]}}),
            post(0.2, "IBV_WR_SEND", 1, 5),
            json!({"time": 0.3, "pid": 1, "begun": "0x11", "place": 5, "to": "0x22", "psn": 0xff_ffff}),
            packet(0.4, 1, "out", "SEND", "first", "0x22", 0xff_ffff),
            // It goes round to 0. An older one that comes again is nobody's.
            packet(0.41, 1, "out", "SEND", "last", "0x22", 0),
            packet(0.5, 2, "in", "SEND", "first", "0x22", 0xff_ffff),
            packet(0.55, 2, "in", "SEND", "last", "0x22", 0xff_fff0),
            arrives,
            answered,
            json!({"time": 0.7, "duration": 0.01, "pid": 2, "tid": 2, "call": "ibv_poll_cq", "requests": [7], "arguments": {"wc": [{"status": "IBV_WC_SUCCESS", "byte_len": 8, "qp_num": "0x22"}]}}),
        ]);
        let message = found.requests.iter().position(|one| !one.is_receive()).expect("a message");
        let one = &found.requests[message];
        assert_eq!((one.left, one.arrived, one.answered), (Some((0.4, 0.41)), Some((0.5, 0.6)), Some(0.8)));
        let receive = one.partner.expect("its receive");
        assert!(found.requests[receive].is_receive() && found.requests[receive].partner == Some(message));
        let counted = [1, 2].map(|pid| (found.packets[&pid].sent, found.packets[&pid].received));
        assert_eq!(counted, [(2, 1), (0, 3)]);
    }

    #[test]
    fn requests_without_packets_are_left_out_and_acknowledgements_may_be_early() {
        let mut answered = packet(0.5, 1, "in", "ACK", "only", "0x11", 9);
        answered["acknowledged"] = json!(9);
        let found = trace(vec![
            // It was carried out in the peer's memory.
            post(0.1, "IBV_WR_RDMA_WRITE", 1, 0),
            post(0.2, "IBV_WR_RDMA_WRITE", 2, 1),
            json!({"time": 0.3, "pid": 1, "begun": "0x11", "place": 1, "to": "0x22", "psn": 9}),
            answered,
            // The thread that sends was late to write that down.
            packet(0.6, 1, "out", "RDMA_WRITE", "only", "0x22", 9),
        ]);
        let said: Vec<_> = found.requests.iter().map(|one| (one.left, one.answered)).collect();
        assert_eq!(said, [(None, None), (Some((0.6, 0.6)), Some(0.5))]);
    }
}
