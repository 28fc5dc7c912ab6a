//! What was measured: the only thing that outputs know.

use hdrhistogram::Histogram;
use serde::Serialize;

/// What a number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Nanoseconds,
    BytesPerSecond,
    Bytes,
    Count,
    PerSecond,
}

impl Unit {
    /// Whether a smaller number is the better one.
    pub(super) fn less_is_better(self) -> bool {
        matches!(self, Self::Nanoseconds | Self::Bytes | Self::Count)
    }
}

/// What a number, or its ratio to the yardstick, has to be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

/// How the rows of a section belong together, and so how they are best shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Layout {
    /// Quantities of their own, with their yardsticks among them.
    List,
    /// One quantity: a line for each name, over sizes.
    Curves,
    /// Each row against its yardstick and target; the yardsticks are in the rows.
    Comparison,
}

/// The owner of a number: this project, or what it is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// What this project does.
    Measured,
    /// A number that this project's numbers are compared with.
    Yardstick,
}

/// One quantity, measured once in each round.
struct Series {
    name: String,
    size: usize,
    unit: Unit,
    role: Role,
    yardstick: Option<(String, usize)>,
    target: Option<Target>,
    samples: Vec<f64>,
    times: Option<Histogram<u64>>,
}

/// Rows that belong together, in the order in which they were first measured.
pub(super) struct Section {
    pub(super) name: String,
    pub(super) setting: String,
    pub(super) layout: Layout,
    series: Vec<Series>,
    pub(super) notes: Vec<String>,
}

/// What is said about one sample of a quantity.
pub(super) struct Sample {
    pub(super) name: String,
    /// Bytes of a message or a transfer; 0 where there are none.
    pub(super) size: usize,
    pub(super) unit: Unit,
    pub(super) role: Role,
    pub(super) value: f64,
    /// All the times of which `value` is the median.
    pub(super) times: Option<Histogram<u64>>,
    /// Name and size of what it is compared with, round by round.
    pub(super) yardstick: Option<(String, usize)>,
    pub(super) target: Option<Target>,
}

impl Sample {
    /// A number and what it is.
    pub(super) fn new(name: impl Into<String>, size: usize, unit: Unit, value: f64) -> Self {
        let name = name.into();
        Self { name, size, unit, role: Role::Measured, value, times: None, yardstick: None, target: None }
    }

    /// Times, of which the median is the number.
    pub(super) fn of_times(name: impl Into<String>, size: usize, times: Histogram<u64>) -> Self {
        let value = times.value_at_quantile(0.5) as f64;
        Self { times: Some(times), ..Self::new(name, size, Unit::Nanoseconds, value) }
    }

    /// Makes this sample a yardstick, with which other samples are compared.
    pub(super) fn into_yardstick(self) -> Self {
        Self { role: Role::Yardstick, ..self }
    }

    /// Compared with the row of this name and size.
    pub(super) fn against(self, name: &str, size: usize) -> Self {
        Self { yardstick: Some((name.to_owned(), size)), ..self }
    }

    /// With a target: for the ratio to the yardstick, or for the number itself without one.
    pub(super) fn target(self, target: Option<Target>) -> Self {
        Self { target, ..self }
    }
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) size: usize,
    pub(super) unit: Unit,
    pub(super) role: Role,
    pub(super) median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) percentiles: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) yardstick: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) yardstick_median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) met: Option<bool>,
    pub(super) samples: Vec<f64>,
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) min: u64,
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
    pub(super) count: u64,
}

impl Percentiles {
    /// Each with the part of the times that are at most that long, where there are enough of them to say.
    pub(super) fn points(&self) -> Vec<(f64, u64)> {
        let all = [(0.5, self.p50), (0.9, self.p90), (0.99, self.p99), (0.999, self.p999)];
        all.into_iter().filter(|(part, _)| (1.0 - part) * self.count as f64 >= 1.0).collect()
    }
}

impl Section {
    /// A section without any values yet.
    pub(super) fn new(name: impl Into<String>, setting: impl Into<String>, layout: Layout) -> Self {
        Self { name: name.into(), setting: setting.into(), layout, series: Vec::new(), notes: Vec::new() }
    }

    /// Adds what a reader has to know.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds the times of 8 bytes in this round.
    pub(super) fn times(
        &mut self,
        name: &'static str,
        times: Histogram<u64>,
        yardstick: Option<&'static str>,
        target: Option<Target>,
    ) {
        let sample = Sample::of_times(name, 8, times).target(target);
        self.add(Sample { yardstick: yardstick.map(|name| (name.to_owned(), 8)), ..sample });
    }

    /// Adds the bytes per second in blocks of this size in this round.
    pub(super) fn rate(
        &mut self,
        name: &'static str,
        size: usize,
        value: f64,
        yardstick: Option<(&'static str, usize)>,
        target: Option<Target>,
    ) {
        let sample = Sample::new(name, size, Unit::BytesPerSecond, value).target(target);
        self.add(Sample { yardstick: yardstick.map(|(name, size)| (name.to_owned(), size)), ..sample });
    }

    /// Adds a number of bytes.
    pub(super) fn bytes(&mut self, name: &'static str, value: f64, target: Option<Target>) {
        self.add(Sample::new(name, 0, Unit::Bytes, value).target(target));
    }

    /// Adds how often something happens in a second.
    pub(super) fn per_second(&mut self, name: &'static str, value: f64, target: Option<Target>) {
        self.add(Sample::new(name, 0, Unit::PerSecond, value).target(target));
    }

    /// Adds a number for messages of this size.
    pub(super) fn count(&mut self, name: &'static str, size: usize, value: f64, target: Option<Target>) {
        self.add(Sample::new(name, size, Unit::Count, value).target(target));
    }

    /// Adds a sample to those of its name and size.
    pub(super) fn add(&mut self, sample: Sample) {
        let Sample { name, size, unit, role, value, times, yardstick, target } = sample;
        let known = self.series.iter_mut().find(|series| series.name == name && series.size == size);
        match known {
            Some(series) => {
                series.samples.push(value);
                if let (Some(all), Some(times)) = (&mut series.times, times) {
                    // The bounds of all histograms are the same.
                    let _ = all.add(times);
                }
            }
            None => {
                let samples = vec![value];
                self.series.push(Series { name, size, unit, role, yardstick, target, samples, times });
            }
        }
    }

    /// The rows of the section, with their results.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let yardstick = series.yardstick.as_ref().and_then(|(name, size)| {
            self.series.iter().find(|other| other.name == *name && other.size == *size)
        });
        let ratio = yardstick.map(|yardstick| {
            median(series.samples.iter().zip(&yardstick.samples).map(|(value, unit)| value / unit))
        });
        let value = median(series.samples.iter().copied());
        let times = series.times.as_ref();
        let rate = series.unit == Unit::BytesPerSecond && series.size > 0;
        Row {
            name: series.name.clone(),
            size: series.size,
            unit: series.unit,
            role: series.role,
            median: value,
            per_second: rate.then(|| value / series.size as f64),
            percentiles: times.map(|times| Percentiles {
                min: times.min(),
                p50: times.value_at_quantile(0.5),
                p90: times.value_at_quantile(0.9),
                p99: times.value_at_quantile(0.99),
                p999: times.value_at_quantile(0.999),
                max: times.max(),
                count: times.len(),
            }),
            yardstick: yardstick.map(|yardstick| yardstick.name.clone()),
            yardstick_median: yardstick.map(|yardstick| median(yardstick.samples.iter().copied())),
            ratio,
            target: series.target,
            met: series.target.map(|target| target.is_met(ratio.unwrap_or(value))),
            samples: series.samples.clone(),
        }
    }

    /// How many targets there are, and how many are met.
    pub(super) fn targets(&self) -> (usize, usize) {
        let rows = self.rows();
        let met: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
        (met.len(), met.iter().filter(|met| **met).count())
    }
}

/// Everything that one run has measured.
pub(super) struct Document {
    pub(super) machine: Machine,
    pub(super) rounds: u16,
    /// Too short to be more than rough numbers.
    pub(super) quick: bool,
    /// A sentence, on a busy machine: it had too much else to do for figures to mean much. Targets are not
    /// judged then.
    pub(super) busy: Option<String>,
    /// What should be there and is not, and why, in sentences.
    pub(super) missing: Vec<String>,
    pub(super) sections: Vec<Section>,
}

/// What a target is, for readers of a result.
const TARGET: &str = "A target is a ratio that adverb is to reach on a machine that does nothing else. A path that misses its target is slower than that; it works.";

impl Document {
    /// What became of the targets, in sentences; none if there are none.
    pub(super) fn verdict(&self) -> Option<String> {
        match (self.targets(), &self.busy) {
            ((0, _), _) => None,
            ((targets, _), Some(_)) => {
                Some(format!("{targets} targets, not judged: the machine is busy. {TARGET}"))
            }
            ((targets, met), None) => Some(format!("{met} of {targets} targets met. {TARGET}")),
        }
    }

    /// How many targets there are, and how many are met.
    pub(super) fn targets(&self) -> (usize, usize) {
        let each = self.sections.iter().map(Section::targets);
        each.fold((0, 0), |(targets, met), (more, well)| (targets + more, met + well))
    }
}

/// The machine on which the measurement was made.
#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) processors: usize,
    pub(super) processor: String,
    pub(super) kernel: String,
    pub(super) version: &'static str,
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let model = read("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            processor: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut section = Section::new("x", "y", Layout::List);
        for (ours, theirs) in [(10.0, 10.0), (24.0, 20.0), (90.0, 30.0)] {
            let sample = |name, value| Sample::new(name, 8, Unit::Nanoseconds, value);
            section.add(sample("tcp", theirs).into_yardstick());
            section.add(sample("send", ours).against("tcp", 8).target(Some(Target::AtMost(1.3))));
        }
        let rows = section.rows();
        assert_eq!((rows[1].median, rows[1].ratio, rows[1].met), (24.0, Some(1.2), Some(true)));
        assert_eq!(rows[1].yardstick_median, Some(20.0));
        assert_eq!(section.targets(), (1, 1));
    }

    #[test]
    fn percentiles_need_enough_times() {
        let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000, 3).expect("good bounds");
        (1..=100).for_each(|time| times.saturating_record(time));
        let mut section = Section::new("x", "y", Layout::List);
        section.add(Sample::of_times("send", 8, times));
        let percentiles = section.rows()[0].percentiles.expect("times were given");
        assert_eq!((percentiles.min, percentiles.p99, percentiles.max), (1, 99, 100));
        assert_eq!(percentiles.points().len(), 3);
    }
}
