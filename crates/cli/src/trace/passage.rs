//! Which packets belong to which request, over both processes: a request says with which packet it begins,
//! and a packet has the same number where it leaves and where it arrives. A number is a sequence number of
//! packets to a queue pair, or an offset in a stream, or a count of messages beside a stream.

use super::record::{Parts, Queue, Trace, text};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};

/// A packet, by its flow (the queue pair that it goes to, or its stream) and its number there.
type Packet = (String, u64);
/// A queue pair of a process.
type Pair = Queue;

/// What is known so far, in the order of time.
#[derive(Default)]
pub(super) struct Passage {
    /// Requests whose first packet has left, by that packet.
    begun: HashMap<Packet, usize>,
    /// Requests whose last packet has left, by that packet.
    ended: HashMap<Packet, usize>,
    /// The last packet of a request that has left, by process, flow, and, where it is a datagram, its queue
    /// pair. Packets up to it leave once more.
    last: HashMap<(u64, String, Option<String>), u64>,
    /// The request whose packets leave now, by process and flow.
    leaving: HashMap<(u64, String), usize>,
    /// Requests of streams that wait for an answer, by their place: the answer names it.
    asked: HashMap<(Pair, u64), usize>,
    /// The queue pair at each end of a stream: where it comes from, and where it goes to.
    ends: HashMap<String, [Option<Pair>; 2]>,
    /// Requests of a queue pair that wait for an acknowledgement or an answer, with the number of their last
    /// packet.
    unanswered: HashMap<Pair, VecDeque<(u64, usize)>>,
    /// The last acknowledgement of a queue pair, and when it came: a thread may take it in before the one
    /// that sends has written down that it has sent.
    answered: HashMap<Pair, (u64, f64)>,
    /// Messages that have arrived, and have been polled nowhere yet: each is the queue pair's so many-th.
    waiting: HashMap<(Pair, u64), usize>,
}

/// How a packet, or the first one of a request, is named; and whether it is of a stream.
fn name(said: &Value) -> (Packet, bool) {
    let number = |key: &str| said[key].as_u64().unwrap_or(0);
    match (said["stream"].as_str(), said.get("message")) {
        (Some(stream), None) => ((stream.to_owned(), number("offset")), true),
        (Some(stream), Some(_)) => ((format!("{stream} beside"), number("message")), true),
        (None, _) => ((text(&said["to"]), number("psn")), false),
    }
}

/// Whether a number comes before another one, or is the same: they count modulo 2^24.
fn is_up_to(number: u64, limit: u64) -> bool {
    limit.wrapping_sub(number) & 0xff_ffff < 1 << 23
}

impl Passage {
    /// A packet, or the beginning of a request.
    pub(super) fn take(&mut self, trace: &mut Trace, pid: u64, parts: &Parts<'_>) {
        let said = parts.arguments;
        let (packet, is_of_stream) = name(said);
        if let Some(pair) = said["begun"].as_str() {
            let number = said["request"].as_u64().unwrap_or(0);
            if let Some(request) = trace.unbegun.remove(&(pid, number)) {
                let flow = (pid, packet.0.clone(), None);
                // The queue pair has begun anew.
                if self.last.get(&flow).is_some_and(|last| is_up_to(packet.1, *last)) {
                    self.last.remove(&flow);
                }
                self.leaving.insert((pid, packet.0.clone()), request);
                self.begun.insert(packet, request);
                if is_of_stream && trace.requests[request].is_read() {
                    let place = said["place"].as_u64().unwrap_or(0);
                    self.asked.insert(((pid, pair.to_owned()), place), request);
                }
            }
            return;
        }
        let part = said["part"].as_str().unwrap_or_default();
        let (begins, ends) = (matches!(part, "first" | "only"), matches!(part, "last" | "only"));
        let kind = said["kind"].as_str().unwrap_or_default();
        let is_request =
            matches!(kind, "SEND" | "RDMA_WRITE" | "RDMA_READ" | "ATOMIC" | "FLUSH" | "IMMEDIATE");
        let own = said["qp"].as_str().unwrap_or(&packet.0);
        let (pair, is_sent) = ((pid, own.to_owned()), said["packet"] == "out");
        if let Some(stream) = said["stream"].as_str() {
            let end = usize::from(!is_sent);
            self.ends.entry(stream.to_owned()).or_default()[end].get_or_insert_with(|| pair.clone());
        }
        if is_sent {
            trace.packets.entry(pid).or_default().sent += 1;
            // An indication at the start of a stream, or a fence within a host, is no request's. Immediate
            // data are the Write's before.
            if is_of_stream && begins && kind != "IMMEDIATE" && !self.begun.contains_key(&packet) {
                self.leaving.remove(&(pid, packet.0));
            } else if is_request && (is_of_stream || self.is_first(pid, &packet, &said["from"])) {
                self.leaves(trace, pid, (packet, is_of_stream), parts.time, (begins, ends));
            }
            return;
        }
        trace.packets.entry(pid).or_default().received += 1;
        if is_of_stream {
            let place = said["answers"].as_u64();
            let answered = place.and_then(|place| self.asked.remove(&(pair.clone(), place)));
            answered.inspect(|request| trace.requests[*request].answered = Some(parts.time));
        } else if let Some(acknowledged) = said["acknowledged"].as_u64() {
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
            if let Some(arrival) = said["arrival"].as_u64() {
                self.waiting.insert((pair, arrival), request);
            }
        }
    }

    /// Whether a packet leaves for the first time.
    fn is_first(&mut self, pid: u64, packet: &Packet, source: &Value) -> bool {
        let key = (pid, packet.0.clone(), source.as_str().map(str::to_owned));
        let is_first = self.last.get(&key).is_none_or(|last| !is_up_to(packet.1, *last));
        if is_first {
            self.last.insert(key, packet.1);
        }
        is_first
    }

    fn leaves(
        &mut self,
        trace: &mut Trace,
        pid: u64,
        (packet, is_of_stream): (Packet, bool),
        time: f64,
        (begins, ends): (bool, bool),
    ) {
        let begun = if begins { self.begun.get(&packet).copied() } else { None };
        let request = begun.or_else(|| self.leaving.get(&(pid, packet.0.clone())).copied());
        let Some(request) = request else { return };
        let one = &mut trace.requests[request];
        one.left = Some((one.left.map_or(time, |(first, _)| first), time));
        if ends && !is_of_stream {
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
        }
        if ends {
            self.ended.insert(packet, request);
        }
    }

    /// The queue pairs that are the two ends of a stream.
    pub(super) fn connected(self) -> Vec<[Pair; 2]> {
        let both = |ends: [Option<Pair>; 2]| match ends {
            [Some(from), Some(to)] => Some([from, to]),
            _ => None,
        };
        let mut found: Vec<_> = self.ends.into_values().filter_map(both).collect();
        found.sort();
        found
    }

    /// All requests of a queue pair up to this packet are answered.
    fn answer(&mut self, trace: &mut Trace, pair: &Pair, number: u64, time: f64) {
        self.answered.insert(pair.clone(), (number, time));
        let Some(unanswered) = self.unanswered.get_mut(pair) else { return };
        while let Some((_, request)) = unanswered.pop_front_if(|(last, _)| is_up_to(*last, number)) {
            trace.requests[request].answered = Some(time);
        }
    }

    /// A receive is done: it has taken this message, the queue pair's so many-th.
    pub(super) fn received(&mut self, trace: &mut Trace, receive: usize, arrival: u64) {
        let request = &trace.requests[receive];
        let pair = (request.pid, request.pair.clone());
        if let Some(message) = self.waiting.remove(&(pair, arrival)) {
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

    const STREAM: &str = "127.0.0.1:4000>127.0.0.1:5000";
    const BACK: &str = "127.0.0.1:5000>127.0.0.1:4000";

    /// A segment of a stream, at the queue pair of its process.
    fn segment(time: f64, pid: u64, way: &str, (kind, part): (&str, &str), offset: u64) -> Value {
        let (qp, own, other) = if pid == 1 { ("0x11", STREAM, BACK) } else { ("0x22", BACK, STREAM) };
        let stream = if way == "out" { own } else { other };
        json!({"time": time, "pid": pid, "packet": way, "kind": kind, "part": part, "qp": qp, "stream": stream, "offset": offset, "length": 8})
    }

    /// The beginning of the request that has this number and place.
    fn begins(time: f64, (number, place): (u64, u64), offset: u64) -> Value {
        json!({"time": time, "pid": 1, "begun": "0x11", "request": number, "place": place, "stream": STREAM, "offset": offset})
    }

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

    /// The post of these receives.
    fn receives(requests: &[u64]) -> Value {
        let list = vec![json!({"sg_list": [{"length": 64}]}); requests.len()];
        json!({"time": 0.1, "duration": 0.001, "pid": 2, "tid": 2, "call": "ibv_post_recv", "requests": requests, "arguments": {"qp": "0x22", "wr": list}})
    }

    /// A poll that finds these receives, which have taken these messages.
    fn polled(time: f64, duration: f64, requests: &[u64], arrivals: &[u64]) -> Value {
        let list = vec![json!({"status": "IBV_WC_SUCCESS", "byte_len": 8, "qp_num": "0x22"}); requests.len()];
        json!({"time": time, "duration": duration, "pid": 2, "tid": 2, "call": "ibv_poll_cq", "requests": requests, "arrivals": arrivals, "arguments": {"wc": list}})
    }

    #[test]
    fn a_message_is_followed_from_its_post_to_the_poll_of_its_receive() {
        let mut arrives = packet(0.6, 2, "in", "SEND", "last", "0x22", 0);
        arrives["arrival"] = json!(1);
        let mut answered = packet(0.8, 1, "in", "ACK", "only", "0x11", 0);
        answered["acknowledged"] = json!(0);
        let found = trace(vec![
            receives(&[7]),
            post(0.2, "IBV_WR_SEND", 1, 5),
            json!({"time": 0.3, "pid": 1, "begun": "0x11", "request": 1, "place": 5, "to": "0x22", "psn": 0xff_ffff}),
            packet(0.4, 1, "out", "SEND", "first", "0x22", 0xff_ffff),
            // It goes round to 0. An older one that comes again is nobody's.
            packet(0.41, 1, "out", "SEND", "last", "0x22", 0),
            packet(0.5, 2, "in", "SEND", "first", "0x22", 0xff_ffff),
            packet(0.55, 2, "in", "SEND", "last", "0x22", 0xff_fff0),
            arrives,
            answered,
            polled(0.7, 0.01, &[7], &[1]),
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
            json!({"time": 0.3, "pid": 1, "begun": "0x11", "request": 2, "place": 1, "to": "0x22", "psn": 9}),
            answered,
            // The thread that sends was late to write that down.
            packet(0.6, 1, "out", "RDMA_WRITE", "only", "0x22", 9),
        ]);
        let said: Vec<_> = found.requests.iter().map(|one| (one.left, one.answered)).collect();
        assert_eq!(said, [(None, None), (Some((0.6, 0.6)), Some(0.5))]);
    }

    #[test]
    fn a_packet_that_goes_again_changes_nothing_and_a_poll_may_have_begun_before_it() {
        let arrives = |time, psn, arrival: Option<u64>| {
            let mut packet = packet(time, 2, "in", "SEND", "only", "0x22", psn);
            packet["arrival"] = json!(arrival);
            packet
        };
        let begun = |time: f64, place: u64, psn: u64| json!({"time": time, "pid": 1, "begun": "0x11", "request": place + 1, "place": place, "to": "0x22", "psn": psn});
        let found = trace(vec![
            receives(&[7, 8]),
            post(0.1, "IBV_WR_SEND", 1, 0),
            post(0.1, "IBV_WR_SEND", 2, 1),
            begun(0.2, 0, 5),
            packet(0.2, 1, "out", "SEND", "only", "0x22", 5),
            // It finds the message, which comes meanwhile.
            polled(0.25, 0.1, &[7], &[1]),
            arrives(0.3, 5, Some(1)),
            packet(0.4, 1, "out", "SEND", "only", "0x22", 5),
            arrives(0.5, 5, None),
            begun(0.6, 1, 6),
            packet(0.6, 1, "out", "SEND", "only", "0x22", 6),
            arrives(0.7, 6, Some(2)),
            polled(0.8, 0.1, &[8], &[2]),
        ]);
        let sends: Vec<_> = found.requests.iter().filter(|one| !one.is_receive()).collect();
        let said: Vec<_> = sends.iter().map(|one| (one.left, one.arrived)).collect();
        let both = |time| Some((time, time));
        assert_eq!(said, [(both(0.2), both(0.3)), (both(0.6), both(0.7))]);
        let receives: Vec<_> =
            (0..found.requests.len()).filter(|place| found.requests[*place].is_receive()).collect();
        assert_eq!(
            sends.iter().map(|one| one.partner).collect::<Vec<_>>(),
            [Some(receives[0]), Some(receives[1])]
        );
    }

    /// The first message came from a process without a trace: the receive that has taken it is nobody's
    /// partner.
    #[test]
    fn a_poll_names_the_message_that_its_receive_has_taken() {
        let mut arrives = packet(0.5, 2, "in", "SEND", "only", "0x22", 5);
        arrives["arrival"] = json!(2);
        let found = trace(vec![
            receives(&[7, 8]),
            post(0.2, "IBV_WR_SEND", 1, 0),
            json!({"time": 0.3, "pid": 1, "begun": "0x11", "request": 1, "place": 0, "to": "0x22", "psn": 5}),
            packet(0.4, 1, "out", "SEND", "only", "0x22", 5),
            arrives,
            polled(0.6, 0.01, &[7, 8], &[1, 2]),
        ]);
        let message = found.requests.iter().position(|one| !one.is_receive()).expect("a message");
        let receives: Vec<_> =
            (0..found.requests.len()).filter(|place| found.requests[*place].is_receive()).collect();
        assert_eq!(
            receives.iter().map(|place| found.requests[*place].partner).collect::<Vec<_>>(),
            [None, Some(message)]
        );
    }

    /// Of a stream: a Write with immediate data, a Read that is answered, an indication that is no request's,
    /// and a message beside the stream.
    #[test]
    fn segments_are_followed_by_their_offsets() {
        let mut data = segment(0.6, 2, "in", ("IMMEDIATE", "only"), 200);
        data["arrival"] = json!(1);
        let mut answer = segment(0.9, 1, "in", ("READ_RESPONSE", "last"), 90);
        answer["answers"] = json!(6);
        let beside = |mut value: Value| {
            value["message"] = json!(0);
            value.as_object_mut().expect("an object").remove("offset");
            value
        };
        let mut came = beside(segment(1.2, 2, "in", ("SEND", "only"), 0));
        came["arrival"] = json!(2);
        let found = trace(vec![
            receives(&[7, 8]),
            post(0.1, "IBV_WR_RDMA_WRITE_WITH_IMM", 1, 5),
            post(0.2, "IBV_WR_RDMA_READ", 2, 6),
            post(0.3, "IBV_WR_SEND", 3, 7),
            begins(0.3, (1, 5), 0),
            segment(0.4, 1, "out", ("RDMA_WRITE", "first"), 0),
            segment(0.41, 1, "out", ("RDMA_WRITE", "last"), 100),
            segment(0.42, 1, "out", ("IMMEDIATE", "only"), 200),
            segment(0.5, 2, "in", ("RDMA_WRITE", "first"), 0),
            segment(0.51, 2, "in", ("RDMA_WRITE", "last"), 100),
            data,
            // A fence: nobody's.
            segment(0.65, 1, "out", ("RDMA_READ", "only"), 230),
            segment(0.66, 2, "in", ("RDMA_READ", "only"), 230),
            begins(0.7, (2, 6), 260),
            segment(0.71, 1, "out", ("RDMA_READ", "only"), 260),
            segment(0.72, 2, "in", ("RDMA_READ", "only"), 260),
            // The same offsets in the other direction are others.
            segment(0.8, 2, "out", ("READ_RESPONSE", "first"), 0),
            segment(0.81, 2, "out", ("READ_RESPONSE", "last"), 90),
            segment(0.85, 1, "in", ("READ_RESPONSE", "first"), 0),
            answer,
            beside(begins(1.0, (3, 7), 0)),
            beside(segment(1.1, 1, "out", ("SEND", "only"), 0)),
            came,
            polled(1.3, 0.01, &[7, 8], &[1, 2]),
        ]);
        let said: Vec<_> = found
            .requests
            .iter()
            .filter(|one| !one.is_receive())
            .map(|one| (one.left, one.arrived, one.answered, one.partner))
            .collect();
        let receives: Vec<_> =
            (0..found.requests.len()).filter(|place| found.requests[*place].is_receive()).collect();
        assert_eq!(
            said,
            [
                (Some((0.4, 0.42)), Some((0.5, 0.6)), None, Some(receives[0])),
                (Some((0.71, 0.71)), Some((0.72, 0.72)), Some(0.9), None),
                (Some((1.1, 1.1)), Some((1.2, 1.2)), None, Some(receives[1])),
            ]
        );
        let [one, other] = [(1, "0x11".to_owned()), (2, "0x22".to_owned())];
        assert_eq!(found.peers.get(&one), Some(&other));
        assert_eq!(found.peers.get(&other), Some(&one));
    }
}
