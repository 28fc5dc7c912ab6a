//! What running programs do: their counters, and their objects as they answer ([`adverb_core::inspect`]).
//! Rates come from two looks.

use adverb_core::counters::{self, Counters, Looker};
use adverb_core::inspect::{self, Kind, Object, Objects};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A look at all processes.
pub(super) struct Sample {
    at: Instant,
    processes: Vec<counters::Process>,
    /// By process. None: it does not answer.
    objects: HashMap<u32, Objects>,
}

impl Sample {
    /// Looks at the processes that this user may look at. `patience`: how long they may take to answer, all
    /// together.
    pub(super) fn take(looker: &mut Looker, patience: Duration) -> Self {
        let processes = looker.look();
        let asked = processes.iter().filter(|process| !process.elsewhere && !inspect::is_stopped(process.id));
        let (ids, places): (Vec<_>, Vec<_>) =
            asked.filter_map(|process| Some((process.id, process.place?))).unzip();
        let answers = ids.into_iter().zip(inspect::ask_all(&places, patience));
        let objects = answers.filter_map(|(id, answer)| Some((id, answer.ok()?))).collect();
        Self { at: Instant::now(), processes, objects }
    }

    fn counters(&self, process: u32, device: &str) -> Option<&Counters> {
        let process = self.processes.iter().find(|known| known.id == process)?;
        process.devices.iter().find(|(name, _)| name == device).map(|(_, counters)| counters)
    }

    /// The objects of a kind by process, device and number: processes have many, and a hostile one as many as
    /// an answer has room for.
    fn by_number(&self, kind: Kind) -> HashMap<(u32, &str, u64), &Object> {
        let all = self.objects.iter().flat_map(|(id, objects)| objects.all.iter().map(move |one| (*id, one)));
        all.filter(|(_, object)| object.kind == kind)
            .filter_map(|(id, object)| Some(((id, object.text("device")?, object.number("number")?), object)))
            .collect()
    }
}

/// A number, and by how much it has grown in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct GrowingCount {
    pub(super) total: u64,
    pub(super) rate: f64,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) waiting: u64,
    pub(super) room: u64,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pair {
    pub(super) number: u64,
    pub(super) service: String,
    pub(super) state: String,
    /// The peer's queue pair and address, where they are known.
    pub(super) peer: Option<u64>,
    pub(super) address: Option<String>,
    /// Requests posted, and done.
    pub(super) requests: GrowingCount,
    /// Receives that messages have taken.
    pub(super) receives: GrowingCount,
    pub(super) send: Fill,
    /// Receives that wait for messages; of a shared receive queue, where it has one. None where it has none.
    pub(super) receive: Option<Fill>,
    pub(super) send_completions: Fill,
    pub(super) receive_completions: Fill,
    pub(super) error: Option<String>,
}

/// What a process does on a device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Use {
    pub(super) process: u32,
    pub(super) name: String,
    pub(super) device: String,
    /// Whether the process is in another network namespace.
    pub(super) elsewhere: bool,
    /// Whether the process has said what objects it has.
    pub(super) answers: bool,
    /// Whether all its queue pairs are here.
    pub(super) is_whole: bool,
    pub(super) sent: GrowingCount,
    pub(super) received: GrowingCount,
    pub(super) messages_sent: GrowingCount,
    pub(super) messages_received: GrowingCount,
    /// Packets sent again, times without an answer, messages before their receives.
    pub(super) retries: [GrowingCount; 3],
    pub(super) connections_lost: u64,
    pub(super) pairs: Vec<Pair>,
}

impl Use {
    /// All that had to be tried again.
    pub(super) fn retried(&self) -> u64 {
        // The processes themselves say how often.
        self.retries.iter().fold(0, |sum, retries| sum.saturating_add(retries.total))
    }
}

/// What happens now, as two looks show it.
pub(super) fn uses(before: &Sample, now: &Sample) -> Vec<Use> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let grown = |total: u64, before: Option<u64>| {
        let more = before.map_or(0, |before| total.saturating_sub(before)) as f64;
        GrowingCount { total, rate: if seconds > 0.0 { more / seconds } else { 0.0 } }
    };
    let (queues, earlier_pairs) = (now.by_number(Kind::CompletionQueue), before.by_number(Kind::QueuePair));
    let each = |process: &counters::Process, device: &str, counters: &Counters| {
        let earlier = before.counters(process.id, device);
        let since = |of: fn(&Counters) -> u64| grown(of(counters), earlier.map(of));
        let objects = now.objects.get(&process.id);
        let queue = |number: Option<u64>| {
            let found = number.and_then(|number| queues.get(&(process.id, device, number)));
            let number = |key| found.and_then(|queue| queue.number(key)).unwrap_or_default();
            Fill { waiting: number("waiting"), room: number("room") }
        };
        let pair = |object: &Object| {
            let number = object.number("number").unwrap_or_default();
            let earlier = earlier_pairs.get(&(process.id, device, number));
            let value = |key| object.number(key).unwrap_or_default();
            let since = |key| grown(value(key), earlier.and_then(|earlier| earlier.number(key)));
            let left = |more, less| value(more).saturating_sub(value(less));
            let receive = match (object.number("receive_room"), object.number("srq_room")) {
                (Some(room), _) => Some(Fill { waiting: left("receive_posted", "receive_taken"), room }),
                (None, Some(room)) => Some(Fill { waiting: value("srq_left"), room }),
                (None, None) => None,
            };
            let text = |key| object.text(key).map(str::to_owned);
            Pair {
                number,
                service: text("service").unwrap_or_default(),
                state: text("state").unwrap_or_default(),
                peer: object.number("peer"),
                address: text("peer_address"),
                requests: since("send_done"),
                receives: since("receive_taken"),
                send: Fill { waiting: left("send_posted", "send_done"), room: value("send_room") },
                receive,
                send_completions: queue(object.number("send_cq")),
                receive_completions: queue(object.number("receive_cq")),
                error: text("error"),
            }
        };
        let pairs = objects
            .into_iter()
            .flat_map(|objects| &objects.all)
            .filter(|object| object.kind == Kind::QueuePair && object.text("device") == Some(device));
        Use {
            process: process.id,
            name: process.name.clone(),
            device: device.to_owned(),
            elsewhere: process.elsewhere,
            answers: objects.is_some() || process.place.is_none(),
            is_whole: objects.is_none_or(|objects| objects.has_all_but_regions),
            sent: since(|counters| counters.tx_bytes.get()),
            received: since(|counters| counters.rx_bytes.get()),
            messages_sent: since(|counters| counters.tx_messages.get()),
            messages_received: since(|counters| counters.rx_messages.get()),
            retries: [
                since(|counters| counters.tx_repeated.get()),
                since(|counters| counters.timeouts.get()),
                since(|counters| counters.not_ready_received.get()),
            ],
            connections_lost: counters.connections_lost.get(),
            pairs: pairs.map(pair).collect(),
        }
    };
    now.processes
        .iter()
        .flat_map(|process| process.devices.iter().map(|(device, counters)| each(process, device, counters)))
        .collect()
}
