//! What was measured, as a table for people and as JSON for programs.

use crate::pair::table::{self, Table};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// What a number counts.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Nanoseconds,
    BytesPerSecond,
    Bytes,
    Count,
    PerSecond,
}

/// What a number, or its ratio to the yardstick, has to be.
#[derive(Clone, Copy, Serialize)]
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

/// One quantity, measured once in each round.
struct Series {
    name: &'static str,
    size: usize,
    unit: Unit,
    yardstick: Option<(&'static str, usize)>,
    target: Option<Target>,
    samples: Vec<f64>,
    times: Option<Histogram<u64>>,
}

/// Everything that is measured of a device, in the order in which it first was.
pub(super) struct Results {
    device: String,
    setting: &'static str,
    series: Vec<Series>,
    notes: Vec<String>,
}

/// What is said about one sample of a quantity.
struct Sample {
    name: &'static str,
    size: usize,
    unit: Unit,
    value: f64,
    times: Option<Histogram<u64>>,
    /// Name and size of what it is compared with, round by round.
    yardstick: Option<(&'static str, usize)>,
    target: Option<Target>,
}

/// A row of the result.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    size: usize,
    unit: Unit,
    median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentiles: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    yardstick: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
    samples: Vec<f64>,
}

#[derive(Serialize)]
struct Percentiles {
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl Results {
    /// Nothing yet, of a device in a setting.
    pub(super) fn new(device: &str, setting: &'static str) -> Self {
        Self { device: device.to_owned(), setting, series: Vec::new(), notes: Vec::new() }
    }

    /// Adds what a reader has to know.
    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Adds the times of 8 bytes in this round.
    pub(super) fn times(
        &mut self,
        name: &'static str,
        times: Histogram<u64>,
        yardstick: Option<&'static str>,
        target: Option<Target>,
    ) {
        let value = times.value_at_quantile(0.5) as f64;
        let yardstick = yardstick.map(|name| (name, 8));
        self.add(Sample {
            name,
            size: 8,
            unit: Unit::Nanoseconds,
            value,
            times: Some(times),
            yardstick,
            target,
        });
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
        self.add(Sample { name, size, unit: Unit::BytesPerSecond, value, times: None, yardstick, target });
    }

    /// Adds a number of bytes.
    pub(super) fn bytes(&mut self, name: &'static str, value: f64, target: Option<Target>) {
        self.add(Sample { name, size: 0, unit: Unit::Bytes, value, times: None, yardstick: None, target });
    }

    /// Adds how often something happens in a second.
    pub(super) fn per_second(&mut self, name: &'static str, value: f64, target: Option<Target>) {
        self.add(Sample {
            name,
            size: 0,
            unit: Unit::PerSecond,
            value,
            times: None,
            yardstick: None,
            target,
        });
    }

    /// Adds a number for messages of this size.
    pub(super) fn count(&mut self, name: &'static str, size: usize, value: f64, target: Option<Target>) {
        self.add(Sample { name, size, unit: Unit::Count, value, times: None, yardstick: None, target });
    }

    fn add(&mut self, sample: Sample) {
        let Sample { name, size, unit, value, times, yardstick, target } = sample;
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
                self.series.push(Series { name, size, unit, yardstick, target, samples: vec![value], times })
            }
        }
    }

    fn rows(&self) -> Vec<Row> {
        self.series.iter().map(|series| self.row(series)).collect()
    }

    fn row(&self, series: &Series) -> Row {
        let yardstick = series.yardstick.and_then(|(name, size)| {
            self.series.iter().find(|other| other.name == name && other.size == size)
        });
        let ratio = yardstick.map(|yardstick| {
            median(series.samples.iter().zip(&yardstick.samples).map(|(value, unit)| value / unit))
        });
        let value = median(series.samples.iter().copied());
        Row {
            name: series.name,
            size: series.size,
            unit: series.unit,
            median: value,
            percentiles: series.times.as_ref().map(|times| Percentiles {
                p50: times.value_at_quantile(0.5),
                p90: times.value_at_quantile(0.9),
                p99: times.value_at_quantile(0.99),
                p999: times.value_at_quantile(0.999),
                max: times.max(),
            }),
            yardstick: yardstick.map(|yardstick| yardstick.name.to_owned()),
            ratio,
            target: series.target,
            met: series.target.map(|target| target.is_met(ratio.unwrap_or(value))),
            samples: series.samples.clone(),
        }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new(["What", "Size", "Median", "99 %", "Ratio", "to", "Target", ""]);
        for row in self.rows() {
            table.row(vec![
                row.name.into(),
                if row.size == 0 { String::new() } else { size(row.size) },
                show(row.unit, row.median),
                row.percentiles.map_or(String::new(), |p| show(Unit::Nanoseconds, p.p99 as f64)),
                row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                row.yardstick.unwrap_or_default(),
                match row.target {
                    None => String::new(),
                    Some(Target::AtMost(most)) => format!("at most {}", target(row.unit, row.ratio, most)),
                    Some(Target::AtLeast(least)) => {
                        format!("at least {}", target(row.unit, row.ratio, least))
                    }
                },
                match row.met {
                    None => "",
                    Some(true) => "met",
                    Some(false) => "MISSED",
                }
                .into(),
            ]);
        }
        let mut text = format!("{} {}\n\n{table}", self.device, self.setting);
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }

    /// For programs.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "device": self.device,
            "setting": self.setting,
            "notes": self.notes,
            "results": self.rows(),
        })
    }

    /// How many targets there are, and how many are met.
    pub(super) fn targets(&self) -> (usize, usize) {
        let rows = self.rows();
        let met: Vec<bool> = rows.iter().filter_map(|row| row.met).collect();
        (met.len(), met.iter().filter(|met| **met).count())
    }
}

fn target(unit: Unit, ratio: Option<f64>, limit: f64) -> String {
    if ratio.is_some() { format!("{limit}") } else { show(unit, limit) }
}

fn show(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Nanoseconds => table::time(Duration::from_nanos(value as u64)),
        Unit::BytesPerSecond => table::rate(value),
        Unit::Bytes => table::bytes(value),
        Unit::Count => format!("{value:.3}"),
        Unit::PerSecond => format!("{value:.0}/s"),
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
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

    fn sample(name: &'static str, value: f64, yardstick: Option<(&'static str, usize)>) -> Sample {
        let target = yardstick.map(|_| Target::AtMost(1.3));
        Sample { name, size: 8, unit: Unit::Nanoseconds, value, times: None, yardstick, target }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut results = Results::new("x", "y");
        for (ours, theirs) in [(10.0, 10.0), (24.0, 20.0), (90.0, 30.0)] {
            results.add(sample("tcp", theirs, None));
            results.add(sample("send", ours, Some(("tcp", 8))));
        }
        let rows = results.rows();
        assert_eq!((rows[1].median, rows[1].ratio, rows[1].met), (24.0, Some(1.2), Some(true)));
        assert_eq!(results.targets(), (1, 1));
        let json = results.json();
        assert_eq!(json["results"][1]["target"]["at_most"], 1.3);
    }
}
