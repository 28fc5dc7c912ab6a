//! What is put beside what: a section for each operation and quantity, with lines of the same kind in each.

use super::path::Path;
use super::worker::Outcome;
use crate::bench::result::{Layout, Sample, Section, Unit};
use crate::bench::session::{Times, times};
use crate::bench::yardstick::ucx;

pub(super) const SEND: &str = "Send";
pub(super) const WRITE: &str = "Write";
pub(super) const READ: &str = "Read";
pub(super) const FETCH_ADD: &str = "Fetch and add";

/// The lines of the yardsticks.
pub(super) const MEMORY: &str = "memory alone";
pub(super) const TCP: &str = "raw TCP";
pub(super) const UDP: &str = "raw UDP";
const UCX: &str = "UCX in shared memory";
const LIBFABRIC: &str = "libfabric in shared memory";

/// A test of UCX, and which section of ours it belongs to.
#[derive(Clone, Copy)]
pub(super) struct UcxTest {
    pub(super) name: &'static str,
    section: &'static str,
    latency: bool,
    rate: bool,
    pub(super) words_only: bool,
}

const fn test(name: &'static str, section: &'static str, latency: bool, rate: bool) -> UcxTest {
    UcxTest { name, section, latency, rate, words_only: false }
}

/// All that have a counterpart among verbs.
pub(super) const UCX_TESTS: [UcxTest; 6] = [
    test("tag_lat", SEND, true, false),
    test("tag_bw", SEND, false, true),
    test("ucp_put_lat", WRITE, true, false),
    test("ucp_put_bw", WRITE, false, true),
    test("ucp_get", READ, true, true),
    UcxTest { words_only: true, ..test("ucp_fadd", FETCH_ADD, true, true) },
];

/// The section of an operation's latency, and that of its throughput.
struct Pair {
    operation: &'static str,
    latency: Section,
    rate: Section,
    /// Whether the operation's latency is that of there and back.
    there_and_back: bool,
}

/// All sections of a sweep.
pub(in crate::bench) struct Charts {
    pairs: [Pair; 4],
}

impl Charts {
    pub(super) fn new() -> Self {
        let pair = |operation: &'static str, there_and_back| {
            let way = if there_and_back { "there and back" } else { "one way" };
            let section =
                |what, setting: String| Section::new(format!("{operation}: {what}"), setting, Layout::Curves);
            Pair {
                operation,
                latency: section("latency", format!("{way}, two processes of one host, both polling")),
                rate: section("throughput", "one stream, as much in flight as may be".into()),
                there_and_back,
            }
        };
        let pairs = [pair(SEND, false), pair(WRITE, false), pair(READ, true), pair(FETCH_ADD, true)];
        Self { pairs }
    }

    /// Says something of all of them, in the first.
    pub(super) fn note(&mut self, text: &str) {
        self.pairs[0].latency.note(text);
    }

    /// Does something, or notes why it cannot; whether it was done.
    pub(super) fn or_note(&mut self, work: impl FnOnce(&mut Self) -> Result<(), String>) -> bool {
        work(self).map_err(|why| self.note(&format!("Left out: {why}."))).is_ok()
    }

    fn pair(&mut self, operation: &str) -> &mut Pair {
        let place = self.pairs.iter().position(|pair| pair.operation == operation);
        &mut self.pairs[place.expect("all operations have a pair")]
    }

    /// Adds what is a yardstick for all operations.
    pub(super) fn yardstick(&mut self, line: &'static str, size: usize, outcome: &Outcome) {
        for pair in self.pairs.iter_mut().filter(|pair| size == super::WORD || pair.operation != FETCH_ADD) {
            match outcome {
                Outcome::Times(times) => {
                    let times = if pair.there_and_back { doubled(times) } else { times.clone() };
                    pair.latency.add(Sample::of_times(line, size, times).into_yardstick());
                }
                Outcome::Rate(rate) => {
                    pair.rate.add(Sample::new(line, size, Unit::BytesPerSecond, *rate).into_yardstick());
                }
            }
        }
    }

    /// Adds what an operation of ours did.
    pub(super) fn measured(&mut self, operation: &str, path: &Path, size: usize, outcome: Outcome) {
        let yardstick = match path.shared_memory {
            true if ucx::missing().is_none() => UCX,
            true => MEMORY,
            false => TCP,
        };
        let pair = self.pair(operation);
        let (section, sample) = match outcome {
            Outcome::Times(times) => (&mut pair.latency, Sample::of_times(path.name, size, times)),
            Outcome::Rate(rate) => (&mut pair.rate, Sample::new(path.name, size, Unit::BytesPerSecond, rate)),
        };
        section.add(sample.against(yardstick, size));
    }

    /// Adds what UCX did.
    pub(super) fn ucx(&mut self, test: &UcxTest, found: &ucx::UcxResult) {
        let (size, pair) = (found.test.size, self.pair(test.section));
        if test.latency {
            pair.latency.add(Sample::new(UCX, size, Unit::Nanoseconds, found.latency).into_yardstick());
        }
        if test.rate {
            let rate = found.rate * size as f64;
            pair.rate.add(Sample::new(UCX, size, Unit::BytesPerSecond, rate).into_yardstick());
        }
    }

    /// Adds what libfabric did.
    pub(super) fn libfabric(&mut self, size: usize, latency: f64) {
        let sample = Sample::new(LIBFABRIC, size, Unit::Nanoseconds, latency).into_yardstick();
        self.pair(SEND).latency.add(sample);
    }

    /// The finished charts.
    pub(super) fn finish(self) -> Vec<Section> {
        let sections = self.pairs.into_iter().flat_map(|pair| [pair.latency, pair.rate]);
        sections.filter(|section| !section.rows().is_empty()).collect()
    }
}

/// The times of there and back, each twice that of one way.
pub(super) fn doubled(one_way: &Times) -> Times {
    let mut both = times();
    for value in one_way.iter_recorded() {
        both.saturating_record_n(2 * value.value_iterated_to(), value.count_at_value());
    }
    both
}
