//! The way between two processes of this host that programs take if nothing else is set: a few numbers,
//! beside memory itself.

use super::charts::doubled;
use super::path::{self, Path};
use super::worker::{Operation, Outcome, Quantity, Task, Worker};
use crate::bench::processors;
use crate::bench::progress::Progress;
use crate::bench::result::{Layout, Sample, Section, Unit};
use crate::bench::stream::Blocks;
use crate::bench::yardstick::memory;

/// What is measured, and what it is compared with.
const ROWS: [(&str, Operation, Quantity, usize, &str); 7] = [
    ("send, one way", Operation::Send, Quantity::Latency, WORD, ONE_WAY),
    ("write, one way", Operation::Write, Quantity::Latency, WORD, ONE_WAY),
    ("read, there and back", Operation::Read, Quantity::Latency, WORD, THERE_AND_BACK),
    ("fetch-and-add, there and back", Operation::FetchAdd, Quantity::Latency, WORD, THERE_AND_BACK),
    ("send stream", Operation::Send, Quantity::Rate, BLOCK, COPY),
    ("write stream", Operation::Write, Quantity::Rate, BLOCK, COPY),
    ("read stream", Operation::Read, Quantity::Rate, BLOCK, COPY),
];
const WORD: usize = 8;
const BLOCK: usize = 64 << 10;
const ONE_WAY: &str = "a word in memory of both";
const THERE_AND_BACK: &str = "the same, there and back";
const COPY: &str = "memory copy";
/// Words of the yardstick in a round.
const WORDS: usize = 10_000;
/// Bytes of its copy.
const BYTES: usize = 128 << 20;

/// The section, or a sentence that says why there is none: on a very busy machine one process may wait too
/// long for the other. The targets are measured all the same.
pub(in crate::bench) fn here(rounds: u16, quick: bool) -> Result<Section, String> {
    let path = path::ALL.into_iter().find(|path| path.shared_memory).expect("there is such a path");
    let worker = super::start_one(&path).map_err(|error| failed(&path, &error))?;
    let mut worker = worker.map_err(|why| super::not_measured(&path, why))?;
    section(&path, &mut worker, rounds, quick).map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &str) -> String {
    format!("Not measured: {}. {error}.", path.name)
}

fn section(path: &Path, worker: &mut Worker, rounds: u16, quick: bool) -> Result<Section, String> {
    let setting = format!("{}, two processes of this host that poll", path.name);
    let mut section = Section::new("Within this host:", setting, Layout::List);
    let mut progress = Progress::new(usize::from(rounds));
    for round in 1..=rounds {
        progress.step(&format!("within this host: round {round} of {rounds}"));
        yardsticks(&mut section)?;
        measure(worker, quick, &mut section)?;
    }
    Ok(section)
}

fn yardsticks(section: &mut Section) -> Result<(), String> {
    let times = memory::ping_pong(WORD, WORDS)?;
    section.add(Sample::of_times(THERE_AND_BACK, WORD, doubled(&times)).into_yardstick());
    section.add(Sample::of_times(ONE_WAY, WORD, times).into_yardstick());
    processors::keep(Some(0));
    let rate = memory::copy(Blocks::near(BLOCK, BYTES / BLOCK));
    processors::keep(None);
    section.add(Sample::new(COPY, BLOCK, Unit::BytesPerSecond, rate).into_yardstick());
    Ok(())
}

fn measure(worker: &mut Worker, quick: bool, section: &mut Section) -> Result<(), String> {
    let milliseconds = if quick { 2 } else { 40 };
    for (name, operation, quantity, size, yardstick) in ROWS {
        let task = Task { operation, quantity, size, milliseconds };
        let sample = match worker.measure(task)? {
            Outcome::Times(times) => Sample::of_times(name, size, times),
            Outcome::Rate(rate) => Sample::new(name, size, Unit::BytesPerSecond, rate),
        };
        section.add(sample.against(yardstick, size));
    }
    Ok(())
}
