//! What a trace says, in the terms of the page: processes, calls, and requests from their post to their
//! completion.

use super::passage::Passage;
use super::source::Source;
use adverb_watch::setting::Format;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A queue pair, or a queue of receives for several.
pub(super) type Queue = (u64, String);

/// A call.
#[derive(Debug)]
pub(super) struct Call {
    /// In seconds.
    pub(super) time: f64,
    pub(super) duration: f64,
    pub(super) pid: u64,
    pub(super) tid: u64,
    pub(super) name: String,
    pub(super) errno: Option<String>,
    /// Polls in a row that found nothing.
    pub(super) times: u64,
    pub(super) fault: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) pid: u64,
    /// The queue pair, once it is known. A receive of a shared queue has it from its completion.
    pub(super) pair: String,
    /// Without `IBV_WR_`; `RECV` of a receive.
    pub(super) opcode: String,
    pub(super) length: u64,
    pub(super) posted: f64,
    /// When the request's completion was polled, and with which status. A request that reports no success is
    /// done with the next one that does.
    pub(super) done: Option<(f64, String)>,
    /// The request has a completion of its own.
    pub(super) is_reported: bool,
    /// When the request's first and its last packet left, and were taken in by the peer; and when an
    /// acknowledgement or an answer had come for all of it.
    pub(super) left: Option<(f64, f64)>,
    pub(super) arrived: Option<(f64, f64)>,
    pub(super) answered: Option<f64>,
    /// Of a message: the receive that it took. Of a receive: the message that came.
    pub(super) partner: Option<usize>,
}

/// Packets of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Request {
    pub(super) fn is_receive(&self) -> bool {
        self.opcode == "RECV"
    }

    /// Whether the request's bytes, if it has any, come from the peer.
    pub(super) fn is_read(&self) -> bool {
        self.opcode == "RDMA_READ"
            || self.opcode.starts_with("ATOMIC_CMP")
            || self.opcode.starts_with("ATOMIC_FETCH")
    }

    /// Whether the peer's program takes a receive for it.
    pub(super) fn is_send(&self) -> bool {
        self.opcode.starts_with("SEND") || self.opcode.ends_with("WITH_IMM")
    }
}

/// A whole trace.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Commands by process.
    pub(super) processes: BTreeMap<u64, String>,
    pub(super) calls: Vec<Call>,
    /// In the order in which they were posted.
    pub(super) requests: Vec<Request>,
    /// The other end of each queue pair, where both are in the trace.
    pub(super) peers: HashMap<Queue, Queue>,
    /// Packets of each process, those of connection management included.
    pub(super) packets: BTreeMap<u64, Packets>,
    /// How many records are missing.
    pub(super) missing: u64,
    /// Requests of send queues, of which some may never be reported.
    unreported: HashMap<Queue, VecDeque<usize>>,
    /// Requests of send queues of which no packet has left, by their process and number.
    pub(super) unbegun: HashMap<(u64, u64), usize>,
}

/// The parts of a call's object, which the two formats name in their own ways.
pub(super) struct Parts<'a> {
    pub(super) time: f64,
    duration: f64,
    name: &'a str,
    pub(super) arguments: &'a Value,
    outcome: &'a Value,
}

impl Parts<'_> {
    fn is_post(&self) -> bool {
        self.name.starts_with("ibv_post_") || self.name == "ibv_wr_complete"
    }

    /// A packet, or the beginning of a request.
    fn is_packet(&self) -> bool {
        self.name.is_empty()
    }
}

fn parts<'a>(format: Format, object: &'a Value) -> Option<Parts<'a>> {
    let is_packet = |said: &Value| said.get("packet").is_some() || said.get("begun").is_some();
    match format {
        Format::Json if is_packet(object) => Some(Parts {
            time: object["time"].as_f64()?,
            duration: 0.0,
            name: "",
            arguments: object,
            outcome: object,
        }),
        Format::Chrome if is_packet(&object["args"]) => Some(Parts {
            time: object["ts"].as_f64()? / 1e6,
            duration: 0.0,
            name: "",
            arguments: &object["args"],
            outcome: &object["args"],
        }),
        Format::Json => Some(Parts {
            time: object["time"].as_f64()?,
            duration: object["duration"].as_f64()?,
            name: object["call"].as_str()?,
            arguments: &object["arguments"],
            outcome: object,
        }),
        Format::Chrome if object["ph"] == "X" => Some(Parts {
            time: object["ts"].as_f64()? / 1e6,
            duration: object["dur"].as_f64()? / 1e6,
            name: object["name"].as_str()?,
            arguments: &object["args"],
            outcome: &object["args"],
        }),
        _ => None,
    }
}

impl Trace {
    /// Out of a file.
    ///
    /// # Errors
    /// It has no objects.
    pub(super) fn of(source: &Source) -> Result<Self, String> {
        if source.format == Format::Text {
            return Err(
                "a page is made of .ring, .jsonl and .json alone: trace into a file that ends so".to_owned()
            );
        }
        let mut trace = Self { missing: source.missing, ..Self::default() };
        let mut under_way = HashMap::new();
        let mut destinations = HashMap::new();
        // Where each line stands in the order of time. Another thread may find a completion before the post
        // has returned: all posts are taken in before.
        let mut order = Vec::with_capacity(source.lines.len());
        for index in 0..source.lines.len() {
            let object = source.object(index);
            if let Some(pid) = object["process"].as_u64() {
                trace.processes.insert(pid, text(&object["command"]));
            } else if object["ph"] == "M" {
                let pid = object["pid"].as_u64().unwrap_or(0);
                trace.processes.insert(pid, text(&object["args"]["name"]));
            } else if let Some(parts) = parts(source.format, &object) {
                // What a call finds, it has found at its end at the latest: it may have begun before that
                // came.
                let time = if parts.is_packet() { parts.time } else { parts.time + parts.duration };
                order.push((!parts.is_post(), time, index as u32));
            }
        }
        order.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let mut passage = Passage::default();
        for (_, _, index) in order {
            let object = source.object(index as usize);
            let Some(parts) = parts(source.format, &object) else { continue };
            let pid = object["pid"].as_u64().unwrap_or(0);
            if parts.is_packet() {
                passage.take(&mut trace, pid, &parts);
                continue;
            }
            trace.calls.push(Call {
                time: parts.time,
                duration: parts.duration,
                pid,
                tid: object["tid"].as_u64().unwrap_or(0),
                name: parts.name.to_owned(),
                errno: parts.outcome["errno"].as_str().map(str::to_owned),
                times: parts.outcome["times"].as_u64().unwrap_or(1),
                fault: parts.outcome.get("fault").is_some(),
            });
            if parts.name == "ibv_modify_qp"
                && let Some(peer) = parts.arguments["attr"]["dest_qp_num"].as_str()
            {
                destinations.insert((pid, text(&parts.arguments["qp"])), peer.to_owned());
            }
            let received = trace.take_requests(pid, &parts, &mut under_way);
            received
                .into_iter()
                .for_each(|(receive, arrival)| passage.received(&mut trace, receive, arrival));
        }
        trace.calls.sort_by(|one, other| one.time.total_cmp(&other.time));
        trace.pair_up(&destinations, passage.connected());
        Ok(trace)
    }

    /// Returns the receives that are done, each with the message that it has taken: it is the queue pair's so
    /// many-th.
    fn take_requests(
        &mut self,
        pid: u64,
        parts: &Parts<'_>,
        under_way: &mut HashMap<(u64, u64), usize>,
    ) -> Vec<(usize, u64)> {
        let mut received = Vec::new();
        let Some(numbers) = parts.outcome["requests"].as_array() else { return received };
        let lists = [&parts.arguments["wr"], &parts.outcome["posted"], &parts.arguments["wc"]];
        let list = lists.into_iter().find_map(Value::as_array);
        let at = |place: usize| list.and_then(|list| list.get(place)).unwrap_or(&parts.outcome["completion"]);
        let is_post = parts.is_post();
        for (place, number) in numbers.iter().enumerate() {
            let Some(number) = number.as_u64() else { continue };
            let said = at(place);
            if is_post {
                let parts_of = said["sg_list"].as_array();
                let sum = |list: &Vec<Value>| list.iter().filter_map(|sge| sge["length"].as_u64()).sum();
                let opcode = said["opcode"].as_str().map(|opcode| opcode.trim_start_matches("IBV_WR_"));
                under_way.insert((pid, number), self.requests.len());
                if !parts.name.contains("recv") {
                    let pair = (pid, text(&parts.arguments["qp"]));
                    self.unreported.entry(pair).or_default().push_back(self.requests.len());
                    self.unbegun.insert((pid, number), self.requests.len());
                }
                self.requests.push(Request {
                    pid,
                    pair: text(&parts.arguments["qp"]),
                    opcode: if parts.name.contains("recv") { "RECV" } else { opcode.unwrap_or("?") }
                        .to_owned(),
                    length: said["length"].as_u64().or(parts_of.map(sum)).unwrap_or(0),
                    posted: parts.time,
                    done: None,
                    is_reported: false,
                    left: None,
                    arrived: None,
                    answered: None,
                    partner: None,
                });
            } else if let Some(index) = under_way.remove(&(pid, number)) {
                let end = parts.time + parts.duration;
                self.end_before(index, end);
                let request = &mut self.requests[index];
                let status = said["status"].as_str().unwrap_or("?").trim_start_matches("IBV_WC_").to_owned();
                (request.done, request.is_reported) = (Some((end, status)), true);
                if request.pair.is_empty() {
                    request.pair = text(&said["qp_num"]);
                }
                if let Some(bytes) = said["byte_len"].as_u64().filter(|_| request.is_receive()) {
                    request.length = bytes;
                }
                received.extend(parts.outcome["arrivals"][place].as_u64().map(|arrival| (index, arrival)));
            }
        }
        received
    }

    /// Requests of a send queue that were posted before this one, and are not done, are done now.
    fn end_before(&mut self, index: usize, end: f64) {
        let request = &self.requests[index];
        if request.is_receive() {
            return;
        }
        let waiting = self.unreported.entry((request.pid, request.pair.clone())).or_default();
        while let Some(before) = waiting.pop_front_if(|before| *before < index) {
            let before = &mut self.requests[before];
            before.done.get_or_insert_with(|| (end, "SUCCESS".to_owned()));
        }
    }

    /// Finds the other end of each queue pair: by the stream that both have segments of, by what the program
    /// has said, or because there are only two.
    fn pair_up(&mut self, destinations: &HashMap<Queue, String>, connected: Vec<[Queue; 2]>) {
        for [from, to] in connected {
            self.peers.entry(from).or_insert(to);
        }
        let mut pairs: Vec<Queue> = self.requests.iter().map(|one| (one.pid, one.pair.clone())).collect();
        // A target of Writes posts nothing, and is known from its connection alone.
        pairs.extend(destinations.keys().cloned());
        pairs.retain(|(_, pair)| !pair.is_empty());
        pairs.sort();
        pairs.dedup();
        for pair in &pairs {
            let Some(wanted) = destinations.get(pair).filter(|_| !self.peers.contains_key(pair)) else {
                continue;
            };
            let is_it = |other: &&Queue| {
                other.1 == *wanted && destinations.get(*other).is_none_or(|back| *back == pair.1)
            };
            if let Some(peer) = pairs.iter().find(is_it) {
                self.peers.insert(pair.clone(), peer.clone());
            }
        }
        if let ([one, other], true) = (&pairs[..], self.peers.is_empty()) {
            self.peers.insert(one.clone(), other.clone());
            self.peers.insert(other.clone(), one.clone());
        }
    }

    /// How a process is called in the page.
    pub(super) fn process(&self, pid: u64) -> String {
        let command = self.processes.get(&pid).map_or("", String::as_str);
        let words: Vec<_> = command.split(' ').collect();
        let name = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        format!("{name} [{pid}]")
    }
}

/// A string, or what a value is as one.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// A client that sends, and a server that receives.
    pub(in crate::trace) fn two_processes(format: Format) -> Source {
        let calls = vec![
            (1, 0.001, "ibv_modify_qp", json!({"qp": "0x11", "attr": {"dest_qp_num": "0x22"}}), json!({})),
            (2, 0.001, "ibv_modify_qp", json!({"qp": "0x22", "attr": {"dest_qp_num": "0x11"}}), json!({})),
            (
                2,
                0.002,
                "ibv_post_recv",
                json!({"qp": "0x22", "wr": [{"sg_list": [{"length": 64}]}]}),
                json!({"requests": [1]}),
            ),
            (
                1,
                0.003,
                "ibv_post_send",
                json!({"qp": "0x11", "wr": [{"opcode": "IBV_WR_SEND", "sg_list": [{"length": 30}, {"length": 2}]}, {"opcode": "IBV_WR_RDMA_WRITE", "sg_list": []}]}),
                json!({"requests": [1, 2]}),
            ),
            (1, 0.004, "ibv_poll_cq", json!({"cq": 1, "wc": []}), json!({"times": 7})),
            (
                2,
                0.005,
                "ibv_poll_cq",
                json!({"wc": [{"status": "IBV_WC_SUCCESS", "byte_len": 32, "qp_num": "0x22"}]}),
                json!({"requests": [1]}),
            ),
            (
                1,
                0.006,
                "ibv_start_poll",
                json!({}),
                json!({"requests": [1], "completion": {"status": "IBV_WC_SUCCESS", "qp_num": "0x11"}}),
            ),
        ];
        let object = |(pid, time, name, arguments, outcome): (u64, f64, &str, Value, Value)| {
            let mut object = match format {
                Format::Json => {
                    json!({"time": time, "duration": 0.0001, "pid": pid, "tid": pid, "call": name, "arguments": arguments})
                }
                _ => {
                    json!({"ph": "X", "ts": time * 1e6, "dur": 100.0, "pid": pid, "tid": pid, "name": name, "args": arguments})
                }
            };
            let target = if format == Format::Json { &mut object } else { &mut object["args"] };
            for (name, value) in outcome.as_object().expect("an object") {
                target[name] = value.clone();
            }
            object
        };
        let mut objects = match format {
            Format::Json => vec![
                json!({"process": 1, "command": "/bin/client <x>"}),
                json!({"process": 2, "command": "server"}),
            ],
            _ => vec![
                json!({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/bin/client <x>"}}),
                json!({"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "server"}}),
            ],
        };
        objects.extend(calls.into_iter().map(object));
        Source {
            format,
            lines: objects.iter().map(Value::to_string).collect(),
            clocks: HashMap::new(),
            missing: 0,
        }
    }

    #[test]
    fn both_formats_say_the_same() {
        for format in [Format::Json, Format::Chrome] {
            let trace = Trace::of(&two_processes(format)).expect("objects");
            assert_eq!(trace.process(1), "client [1]");
            let said: Vec<_> = trace
                .requests
                .iter()
                .map(|one| (one.pid, one.opcode.as_str(), one.length, one.done.is_some()))
                .collect();
            assert_eq!(said, [(2, "RECV", 32, true), (1, "SEND", 32, true), (1, "RDMA_WRITE", 0, false)]);
            let one = (1, "0x11".to_owned());
            assert_eq!(trace.peers.get(&one), Some(&(2, "0x22".to_owned())));
            assert!(trace.calls.windows(2).all(|two| two[0].time <= two[1].time));
            assert_eq!(trace.calls.iter().map(|call| call.times).max(), Some(7));
        }
        let text = Source { format: Format::Text, lines: Vec::new(), clocks: HashMap::new(), missing: 0 };
        assert!(Trace::of(&text).is_err_and(|why| why.contains(".jsonl")));
    }
}
