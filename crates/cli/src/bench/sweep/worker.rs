//! The process that posts, for one path: settings of the engine are of a process, so each path has its own
//! pair.

use crate::bench::latency::RoundTrip;
use crate::bench::session::{Place, Session, TargetIs, Times, times};
use crate::bench::stream::{Blocks, OneSided};
use crate::bench::target::Watching;
use crate::bench::yardstick::udp::LONGEST_DATAGRAM;
use crate::pair::child::{self, Child};
use crate::pair::link::{MESSAGE, PEER_TIMEOUT, Shape};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What is done with a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Operation {
    Send,
    Write,
    Read,
    FetchAdd,
    /// A message over raw TCP, as a yardstick.
    Tcp,
    /// A datagram over raw UDP, as a yardstick.
    Udp,
}

/// What is measured of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Quantity {
    /// Nanoseconds: one way for what goes one way, there and back for what asks for something.
    Latency,
    /// Bytes per second.
    Rate,
}

/// One thing to measure, and about how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) operation: Operation,
    pub(super) quantity: Quantity,
    pub(super) size: usize,
    pub(super) milliseconds: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Which device; says what carries what goes to the peer.
    Open(String),
    Measure(Task),
}

/// What carries messages to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Carrier {
    /// Memory, and nothing else.
    Memory,
    /// Memory, but the peer slept and had to be woken by system calls.
    MemoryAndCalls,
    /// The network.
    Network,
}

#[derive(Debug, Serialize, Deserialize)]
enum WorkerReport {
    Carrier(Carrier),
    /// Times, and how often each was met.
    Times(Vec<(u64, u64)>),
    Rate(f64),
}

/// What came of a task.
pub(super) enum Outcome {
    Times(Times),
    Rate(f64),
}

/// The process, as the one that directs it sees it.
pub(super) struct Worker(Child<Ask, WorkerReport>);

impl Worker {
    /// Starts it and its target. Also says what carries messages from one to the other.
    pub(super) fn start(device: &str, environment: &[(&str, &str)]) -> Result<(Self, Carrier), String> {
        let mut child = Child::start("measuring process", &["bench", "--worker"], environment)?;
        match child.ask(&Ask::Open(device.to_owned()), Instant::now() + 3 * PEER_TIMEOUT)? {
            WorkerReport::Carrier(carrier) => Ok((Self(child), carrier)),
            _ => Err("a wrong answer".into()),
        }
    }

    /// Measures.
    pub(super) fn measure(&mut self, task: Task) -> Result<Outcome, String> {
        match self.0.ask(&Ask::Measure(task), Instant::now() + 6 * PEER_TIMEOUT)? {
            WorkerReport::Times(found) => {
                let mut times = times();
                found.into_iter().for_each(|(time, count)| times.saturating_record_n(time, count));
                Ok(Outcome::Times(times))
            }
            WorkerReport::Rate(rate) => Ok(Outcome::Rate(rate)),
            WorkerReport::Carrier(_) => Err("a wrong answer".into()),
        }
    }
}

/// Measures what is asked for on standard input, until that closes.
pub(in crate::bench) fn serve(limit: Duration) {
    let (mut device, mut session) = (String::new(), None);
    child::serve(limit, |ask| match ask {
        Ask::Open(name) => {
            device = name;
            let session = opened(&mut session, &device, Shape::USUAL)?;
            carrier(session).map(WorkerReport::Carrier)
        }
        Ask::Measure(task) => {
            let sends = task.operation == Operation::Send;
            let shape = if sends && task.size > MESSAGE { Shape::LARGE } else { Shape::USUAL };
            measure(opened(&mut session, &device, shape)?, task)
        }
    });
}

/// The connection for messages of this shape: the one that there is, or a new one in its place.
fn opened<'a>(
    session: &'a mut Option<Session>,
    device: &str,
    shape: Shape,
) -> Result<&'a mut Session, String> {
    if session.as_ref().is_some_and(|session| session.link.shape != shape) {
        *session = None;
    }
    if session.is_none() {
        let mut fresh = Session::start_as(shape, device, Place::Here, false)?;
        fresh.start_tcp()?;
        fresh.start_udp(fresh.address.ip())?;
        fresh.keep_apart(true)?;
        *session = Some(fresh);
    }
    session.as_mut().ok_or_else(|| "no connection".to_owned())
}

/// What carries messages to the peer: the best of a few tries, since the peer of a busy machine sleeps now
/// and then.
fn carrier(session: &mut Session) -> Result<Carrier, String> {
    const MESSAGES: u64 = 100;
    session.send_latency(8, 10)?;
    let mut found = Carrier::Network;
    for _ in 0..3 {
        let before = [counter(session, "tx_calls"), counter(session, "tx_local")];
        session.send_latency(8, MESSAGES as usize)?;
        let (calls, local) = (counter(session, "tx_calls"), counter(session, "tx_local"));
        if calls - before[0] < MESSAGES / 2 {
            return Ok(Carrier::Memory);
        }
        if local - before[1] >= MESSAGES {
            found = Carrier::MemoryAndCalls;
        }
    }
    Ok(found)
}

fn counter(session: &Session, wanted: &str) -> u64 {
    let counters = session.context.device().counters();
    counters.iter().find(|(name, ..)| *name == wanted).map_or(0, |(.., value)| *value)
}

/// The most messages of a stream.
const MOST: usize = 1 << 20;

fn measure(session: &mut Session, task: Task) -> Result<WorkerReport, String> {
    let Task { operation, quantity, size, milliseconds } = task;
    if operation == Operation::Udp && size > LONGEST_DATAGRAM {
        return Err(format!("no datagram of {size} bytes"));
    }
    let time = Duration::from_millis(milliseconds);
    match quantity {
        Quantity::Latency => {
            let first = latency(session, operation, size, 16)?;
            let each = Duration::from_nanos(2 * first.value_at_quantile(0.5) + 1);
            let count = time.as_nanos() / each.as_nanos();
            let times = latency(session, operation, size, (count as usize).clamp(16, 20_000))?;
            let found =
                times.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value()));
            Ok(WorkerReport::Times(found.collect()))
        }
        Quantity::Rate => {
            // More and more, until the start of it no longer matters.
            let step = if size > MESSAGE { Shape::LARGE.receives } else { Shape::USUAL.receives };
            let mut blocks = Blocks::near(size, step);
            loop {
                let found = rate(session, operation, blocks)?;
                let took = (size * blocks.count) as f64 / found;
                let factor = time.as_secs_f64() / took;
                if factor < 2.0 || blocks.count >= MOST {
                    return Ok(WorkerReport::Rate(found));
                }
                let more = blocks.count as f64 * factor.min(20.0);
                blocks.count = (more as usize).clamp(step, MOST).next_multiple_of(step);
            }
        }
    }
}

fn latency(session: &mut Session, operation: Operation, size: usize, count: usize) -> Result<Times, String> {
    match operation {
        Operation::Send => session.send_latency(size, count),
        Operation::Write => session.write_latency(Watching::Both, size, count),
        Operation::Read => session.round_trip(RoundTrip::Read, TargetIs::Polling, size, count),
        Operation::FetchAdd => session.round_trip(RoundTrip::FetchAdd, TargetIs::Polling, size, count),
        Operation::Tcp => session.tcp_latency(size, count).map(|(one_way, _)| one_way),
        Operation::Udp => session.datagram_latency(size, count),
    }
}

fn rate(session: &mut Session, operation: Operation, blocks: Blocks) -> Result<f64, String> {
    match operation {
        Operation::Send => session.send_stream(blocks),
        Operation::Write => session.one_sided_stream(OneSided::Write, TargetIs::Polling, blocks),
        Operation::Read => session.one_sided_stream(OneSided::Read, TargetIs::Polling, blocks),
        Operation::FetchAdd => session.one_sided_stream(OneSided::FetchAdd, TargetIs::Polling, blocks),
        Operation::Tcp => session.tcp_stream(blocks),
        Operation::Udp => session.udp_stream(blocks.size, blocks.size * blocks.count),
    }
}
