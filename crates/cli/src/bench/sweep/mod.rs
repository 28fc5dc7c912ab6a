//! Every operation of every path over sizes, beside what else moves as many bytes on this host.

mod charts;
mod here;
mod path;
mod worker;

pub(super) use charts::Charts;
pub(super) use here::here;
pub(super) use worker::serve;

use super::progress::Progress;
use super::result::Section;
use super::stream::Blocks;
use super::yardstick::{libfabric, memory, ucx};
use charts::{FETCH_ADD, MEMORY, READ, SEND, TCP, UDP, WRITE};
use path::Path;
use worker::{Carrier, Operation, Outcome, Quantity, Task, Worker};

/// What is swept, and how long.
pub(super) struct Plan<'a> {
    pub(super) devices: &'a [&'a str],
    pub(super) sizes: &'a [usize],
    pub(super) rounds: u16,
    /// About how long each point takes in a round.
    pub(super) milliseconds: u64,
}

/// The operations, with the section that each belongs to.
const OPERATIONS: [(Operation, &str); 4] = [
    (Operation::Send, SEND),
    (Operation::Write, WRITE),
    (Operation::Read, READ),
    (Operation::FetchAdd, FETCH_ADD),
];
const WORD: usize = 8;

/// How often a path is tried that nothing but shared memory must carry: on a busy machine it may fail.
const TRIES: u32 = 5;

/// Runs it all. Also says which paths could not be measured, and why.
pub(super) fn run(plan: &Plan) -> Result<(Vec<Section>, Vec<String>), String> {
    let mut charts = Charts::new();
    let mut missing = Vec::new();
    let mut workers = start(plan, &mut missing)?;
    let mut others = Others::find(&mut charts);
    let each = workers.len() + 1;
    let steps = plan.sizes.len() * each + usize::from(others.ucx) + usize::from(others.libfabric);
    let mut progress = Progress::new(usize::from(plan.rounds) * steps);
    for round in 1..=plan.rounds {
        let mut say = |what: String| progress.step(&format!("round {round} of {}: {what}", plan.rounds));
        for &size in plan.sizes {
            say(format!("memory, TCP and UDP, {size} bytes"));
            yardsticks(plan, size, &mut workers[0].1, &mut charts)?;
            for (path, worker) in &mut workers {
                say(format!("{}, {size} bytes", path.name));
                operations(plan, size, path, worker, &mut charts)?;
            }
        }
        others.run(plan, &mut say, &mut charts);
    }
    Ok((charts.finish(), missing))
}

/// A pair of processes for each path that this build and this host have.
fn start(plan: &Plan, missing: &mut Vec<String>) -> Result<Vec<(Path, Worker)>, String> {
    let mut workers = Vec::new();
    for path in path::ALL.into_iter().filter(|path| plan.devices.contains(&path.device)) {
        match start_one(&path)? {
            Ok(worker) => workers.push((path, worker)),
            Err(why) => missing.push(not_measured(&path, why)),
        }
    }
    if workers.is_empty() { Err("no path to measure".into()) } else { Ok(workers) }
}

fn not_measured(path: &Path, why: &str) -> String {
    format!("Not measured, though tried {TRIES} times: {}. {why}", path.name)
}

/// A pair of processes for one path, or why there is none.
fn start_one(path: &Path) -> Result<Result<Worker, &'static str>, String> {
    let mut carrier = Carrier::Network;
    for _ in 0..TRIES {
        let (worker, found) = Worker::start(path.device, &path.environment())?;
        if found == Carrier::Memory || !path.shared_memory {
            return Ok(Ok(worker));
        }
        carrier = found;
    }
    Ok(Err(match carrier {
        Carrier::Network => {
            "The two processes shared no memory: the machine is too busy, or the system does not let them (ADVERB_LOG=info says why)."
        }
        _ => {
            "The other process slept and had to be woken for most messages: the machine is too busy. Try again when it is not."
        }
    }))
}

/// What needs nothing but the system.
fn yardsticks(plan: &Plan, size: usize, worker: &mut Worker, charts: &mut Charts) -> Result<(), String> {
    let few = memory::ping_pong(size, 16)?;
    let each = 2 * few.value_at_quantile(0.5) + 1;
    let rounds = (plan.milliseconds * 1_000_000 / each).clamp(16, 100_000);
    charts.yardstick(MEMORY, size, &Outcome::Times(memory::ping_pong(size, rounds as usize)?));
    super::processors::keep(Some(0));
    let bytes = if plan.milliseconds < 10 { 16 << 20 } else { 256 << 20 };
    let rate = memory::copy(Blocks::near(size, (bytes / size).clamp(16, 1 << 20)));
    super::processors::keep(None);
    charts.yardstick(MEMORY, size, &Outcome::Rate(rate));
    for (operation, name) in [(Operation::Tcp, TCP), (Operation::Udp, UDP)] {
        for quantity in [Quantity::Latency, Quantity::Rate] {
            let task = Task { operation, quantity, size, milliseconds: plan.milliseconds };
            match worker.measure(task) {
                Ok(outcome) => charts.yardstick(name, size, &outcome),
                // Datagrams are not that long, or have all been lost.
                Err(_) if operation == Operation::Udp => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn operations(
    plan: &Plan,
    size: usize,
    path: &Path,
    worker: &mut Worker,
    charts: &mut Charts,
) -> Result<(), String> {
    let which =
        OPERATIONS.into_iter().filter(|(operation, _)| *operation != Operation::FetchAdd || size == WORD);
    for (operation, section) in which {
        for quantity in [Quantity::Latency, Quantity::Rate] {
            let task = Task { operation, quantity, size, milliseconds: plan.milliseconds };
            let outcome = worker.measure(task).map_err(|error| format!("{}: {error}", path.name))?;
            charts.measured(section, path, size, outcome);
        }
    }
    Ok(())
}

/// Programs of others, as long as they work.
struct Others {
    ucx: bool,
    libfabric: bool,
}

impl Others {
    fn find(charts: &mut Charts) -> Self {
        let mut is_there = |missing: Option<&str>| {
            missing.into_iter().for_each(|missing| charts.note(&format!("{missing}.")));
            missing.is_none()
        };
        Self { ucx: is_there(ucx::missing()), libfabric: is_there(libfabric::missing()) }
    }

    fn run(&mut self, plan: &Plan, say: &mut dyn FnMut(String), charts: &mut Charts) {
        if self.ucx {
            say("UCX".into());
            self.ucx = charts.or_note(|charts| sweep_ucx(plan, charts));
        }
        if self.libfabric {
            say("libfabric".into());
            self.libfabric = charts.or_note(|charts| sweep_libfabric(plan, charts));
        }
    }
}

/// About how many messages fit into the time of a point, for programs that cannot be asked to try a few
/// first.
fn count(plan: &Plan, size: usize) -> usize {
    let nanoseconds = 500 + size as u64 / 5;
    (plan.milliseconds * 1_000_000 / nanoseconds).clamp(20, 20_000) as usize
}

fn sweep_ucx(plan: &Plan, charts: &mut Charts) -> Result<(), String> {
    let tests: Vec<_> =
        plan.sizes.iter().flat_map(|&size| charts::UCX_TESTS.map(|test| (size, test))).collect();
    let tests: Vec<_> = tests.into_iter().filter(|(size, test)| !test.words_only || *size == WORD).collect();
    let as_told: Vec<_> = tests
        .iter()
        .map(|(size, test)| ucx::Test { name: test.name, size: *size, count: count(plan, *size) })
        .collect();
    for (found, (_, test)) in ucx::run(&as_told)?.into_iter().zip(&tests) {
        charts.ucx(test, &found);
    }
    Ok(())
}

fn sweep_libfabric(plan: &Plan, charts: &mut Charts) -> Result<(), String> {
    plan.sizes.iter().try_for_each(|&size| {
        let latency = libfabric::latency(size, count(plan, size).min(2000))?;
        charts.libfabric(size, latency);
        Ok(())
    })
}
