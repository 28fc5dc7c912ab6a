//! `rdma statistic` and `rdma resource` (rdma-statistic(8), rdma-resource(8)): what processes of this user do
//! on our devices, as they say it ([`adverb_core::inspect`]).

use super::{About, Description};
use crate::environment;
use crate::failure::Failure;
use adverb_core::attributes::TransportType;
use adverb_core::counters::{self, files};
use adverb_core::inspect::{self, Kind, Object};
use serde_json::{Value, json};

/// A device that is asked about.
pub(super) struct DeviceQuery<'a> {
    pub(super) index: usize,
    pub(super) name: &'a str,
    pub(super) transport: TransportType,
}

/// The objects of a process.
struct Process {
    id: u32,
    name: String,
    objects: Vec<Object>,
}

impl Process {
    /// The objects of this process of one kind on one device.
    fn of<'a>(&'a self, kind: Kind, device: &'a DeviceQuery<'a>) -> impl Iterator<Item = &'a Object> {
        self.objects
            .iter()
            .filter(move |object| object.kind == kind && object.text("device") == Some(device.name))
    }

    fn words(&self) -> [(&'static str, Value); 2] {
        [("pid", json!(self.id)), ("comm", json!(self.name))]
    }
}

/// This user's processes that answer. Standard error has those that do not.
fn processes(about: About) -> Result<Vec<Process>, Failure> {
    let mut all = Vec::new();
    let running = counters::running().into_iter();
    let running = running.filter(|process| !process.elsewhere && !inspect::is_stopped(process.id));
    let (processes, places): (Vec<_>, Vec<_>) =
        running.filter_map(|process| process.place.map(|place| (process, place))).unzip();
    for (process, answer) in processes.into_iter().zip(inspect::ask_all(&places, inspect::ANSWER_TIMEOUT)) {
        let objects = match answer {
            Ok(objects) => objects,
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let (id, name) = (process.id, process.name);
                eprintln!(
                    "adverb: warning: process {id} ({name}) does not answer, so its objects are missing"
                );
                continue;
            }
            // It has ended, or is another user's.
            Err(_) => continue,
        };
        let is_enough = match about {
            About::Regions | About::Summary => objects.is_whole,
            _ => objects.has_all_but_regions,
        };
        if !is_enough {
            let (id, name) = (process.id, process.name);
            return Err(Failure::own(format!("process {id} ({name}) has more objects than it can say")));
        }
        all.push(Process { id: process.id, name: process.name, objects: objects.all });
    }
    Ok(all)
}

/// The rows of an answer.
///
/// # Errors
/// A process has more objects than it can say.
pub(super) fn rows(about: About, devices: &[DeviceQuery<'_>]) -> Result<Vec<Description>, Failure> {
    if about == About::Statistics {
        return Ok(devices.iter().filter_map(statistics).collect());
    }
    let processes = processes(about)?;
    let all = devices.iter().map(|device| match about {
        About::Summary => vec![summary(device, &processes)],
        _ => each(about, device, &processes),
    });
    Ok(all.flatten().collect())
}

/// What the files `hw_counters` of the run say; none of a device that has no such files.
fn statistics(device: &DeviceQuery<'_>) -> Option<Description> {
    let folder = std::env::var(environment::FILES).ok()?;
    let totals = files::totals(&folder);
    let counted = totals.iter().find(|(name, _)| name == device.name).map(|(_, counters)| counters);
    let mut row = vec![("ifname", json!(device.name)), ("port", json!(1))];
    let before = row.len();
    row.extend(files::names(device.transport).filter_map(|name| {
        let short = name.strip_prefix("hw_counters/")?;
        let value = counted.and_then(|counters| files::value(name, counters)).unwrap_or_default();
        Some((short, json!(value)))
    }));
    (row.len() > before).then_some(row)
}

fn summary(device: &DeviceQuery<'_>, processes: &[Process]) -> Description {
    let count = |kind| json!(processes.iter().map(|process| process.of(kind, device).count()).sum::<usize>());
    let contexts = processes.iter().flat_map(|process| process.of(Kind::Device, device));
    // The processes themselves say how many.
    let contexts = contexts.filter_map(|device| device.number("contexts")).fold(0, u64::saturating_add);
    vec![
        ("ifindex", json!(device.index)),
        ("ifname", json!(device.name)),
        ("pd", count(Kind::Domain)),
        ("cq", count(Kind::CompletionQueue)),
        ("qp", count(Kind::QueuePair)),
        ("cm_id", count(Kind::Identifier)),
        ("mr", count(Kind::Region)),
        ("ctx", json!(contexts)),
    ]
}

fn each(about: About, device: &DeviceQuery<'_>, processes: &[Process]) -> Vec<Description> {
    let (kind, describe): (_, fn(&Object) -> Description) = match about {
        About::Pairs => (Kind::QueuePair, pair),
        About::PairStatistics => (Kind::QueuePair, pair_statistics),
        About::Queues => (Kind::CompletionQueue, queue),
        About::Regions => (Kind::Region, region),
        About::Domains => (Kind::Domain, domain),
        About::Identifiers => (Kind::Identifier, identifier),
        About::Link | About::Device | About::Statistics | About::Summary => return Vec::new(),
    };
    let has_port = about.is_of_link();
    let mut rows = Vec::new();
    for process in processes {
        for object in process.of(kind, device) {
            let mut row = vec![("ifindex", json!(device.index)), ("ifname", json!(device.name))];
            row.extend(has_port.then(|| ("port", json!(1))));
            row.extend(describe(object));
            // The real command has these behind the process.
            let behind = row.iter().position(|(key, _)| BEHIND.contains(key)).unwrap_or(row.len());
            row.splice(behind..behind, process.words());
            rows.push(row);
        }
    }
    rows
}

/// What stands behind the process in a row.
const BEHIND: [&str; 4] = ["src-addr", "dst-addr", "requests", "receives"];

/// A field of an object that is a number; none if it has none.
fn number(object: &Object, key: &str, name: &'static str) -> Option<(&'static str, Value)> {
    Some((name, json!(object.number(key)?)))
}

fn text(object: &Object, key: &str, name: &'static str) -> Option<(&'static str, Value)> {
    Some((name, json!(object.text(key)?)))
}

/// In hexadecimal, as the real command says keys.
fn key(object: &Object, key: &str, name: &'static str) -> Option<(&'static str, Value)> {
    Some((name, json!(format!("{:x}", object.number(key)?))))
}

/// The service of a queue pair in the command's words.
fn service(object: &Object, name: &'static str) -> (&'static str, Value) {
    let word = match object.text("service").unwrap_or_default() {
        "raw packet" => "RAW_PACKET",
        "XRC initiator" => "XRC_INI",
        "XRC target" => "XRC_TGT",
        other => other,
    };
    (name, json!(word))
}

fn pair(object: &Object) -> Description {
    let state = match object.text("state").unwrap_or_default() {
        "ERROR" => "ERR",
        other => other,
    };
    let fields = [
        number(object, "number", "lqpn"),
        number(object, "peer", "rqpn"),
        Some(service(object, "type")),
        Some(("state", json!(state))),
        number(object, "rq_psn", "rq-psn"),
        number(object, "sq_psn", "sq-psn"),
        Some(("path-mig-state", json!("MIGRATED"))),
        number(object, "domain", "pdn"),
    ];
    fields.into_iter().flatten().collect()
}

fn pair_statistics(object: &Object) -> Description {
    let numbers = object.number("number").into_iter().collect::<Vec<_>>();
    let fields = [
        number(object, "number", "cntn"),
        Some(service(object, "qp-type")),
        number(object, "send_done", "requests"),
        number(object, "receive_taken", "receives"),
        Some(("lqpn", json!(numbers))),
    ];
    fields.into_iter().flatten().collect()
}

fn queue(object: &Object) -> Description {
    let fields =
        [number(object, "number", "cqn"), number(object, "room", "cqe"), number(object, "users", "users")];
    fields.into_iter().flatten().collect()
}

fn region(object: &Object) -> Description {
    let fields = [
        number(object, "key", "mrn"),
        key(object, "key", "rkey"),
        key(object, "key", "lkey"),
        key(object, "address", "iova"),
        number(object, "length", "mrlen"),
        number(object, "domain", "pdn"),
    ];
    fields.into_iter().flatten().collect()
}

fn domain(object: &Object) -> Description {
    [number(object, "number", "pdn"), number(object, "users", "users")].into_iter().flatten().collect()
}

fn identifier(object: &Object) -> Description {
    let fields = [
        number(object, "queue_pair", "lqpn"),
        Some(service(object, "qp-type")),
        text(object, "state", "state"),
        text(object, "port_space", "ps"),
        text(object, "source", "src-addr"),
        text(object, "destination", "dst-addr"),
    ];
    fields.into_iter().flatten().collect()
}
