//! `adverb trace merge`: several files become one, with one clock.
//!
//! What is kept of each line is where it stands and its time; the lines are parsed one by one, when they are
//! written.

use super::source::{Clock, Source};
use adverb_watch::setting::Format;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

/// Files of one format that are to become one.
pub(super) struct MergedTrace {
    format: Format,
    sources: Vec<Source>,
    /// The instant from which the times count, and whether all files are of one machine.
    base: u64,
    is_one_machine: bool,
    /// New numbers of the processes of each file.
    renamed: Vec<HashMap<u64, u64>>,
    /// Each line by its time, file and number.
    order: Vec<(f64, u32, u32)>,
}

/// Puts files of one format together, in the order of their times, which count from the first of their
/// starts.
///
/// # Errors
/// What does not go together.
pub(super) fn merge(sources: Vec<Source>) -> Result<MergedTrace, String> {
    let formats: HashSet<_> = sources.iter().map(|source| source.format.name()).collect();
    if formats.len() > 1 {
        return Err("the files have several formats: trace all of them with one --trace-format, or as rings"
            .to_owned());
    }
    let format = sources.first().map_or(Format::Text, |source| source.format);
    let clocks: Vec<Clock> = sources.iter().flat_map(|source| source.clocks.values().cloned()).collect();
    if clocks.is_empty() || clocks.iter().any(|clock| clock.since == 0) {
        let is_vague = |source: &Source| {
            source.clocks.is_empty() || source.clocks.values().any(|clock| clock.since == 0)
        };
        let place = sources.iter().position(is_vague).unwrap_or(0) + 1;
        return Err(format!(
            "file {place} of {} does not say from when its times count: it is no trace, was put together before, or is of an older adverb",
            sources.len()
        ));
    }
    // The clock of the machine is exact. Those of several machines are as near as their times of day. Where a
    // system does not say which start of it this is, nobody knows whether two clocks are one.
    let boot = &clocks[0].boot;
    let is_one_machine =
        sources.len() == 1 || boot != "unknown" && clocks.iter().all(|clock| clock.boot == *boot);
    let mut merged =
        MergedTrace { format, sources, base: 0, is_one_machine, renamed: Vec::new(), order: Vec::new() };
    merged.base = clocks.iter().map(|clock| merged.start(clock)).min().unwrap_or(0);
    let mut taken = HashSet::new();
    for place in 0..merged.sources.len() {
        merged.renamed.push(rename(&merged.sources[place], &mut taken));
        for index in 0..merged.sources[place].lines.len() {
            let time = merged.line(place, index).0;
            merged.order.push((time, place as u32, index as u32));
        }
    }
    // Of one time, in the order of the files.
    merged.order.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(merged)
}

impl MergedTrace {
    fn start(&self, clock: &Clock) -> u64 {
        if self.is_one_machine { clock.since } else { clock.wall }
    }

    /// By how many seconds the times of a process are later.
    fn shift(&self, source: &Source, pid: u64) -> f64 {
        let clock =
            source.clocks.get(&pid).or_else(|| source.clocks.values().min_by_key(|clock| clock.since));
        (clock.map_or(self.base, |clock| self.start(clock)) - self.base) as f64 / 1e9
    }

    /// A line as it is in the result, and its time.
    fn line(&self, place: usize, index: usize) -> (f64, String) {
        let source = &self.sources[place];
        let shift = |pid| self.shift(source, pid);
        let mut object = match self.format {
            Format::Text | Format::Ring => return shifted_line(&source.lines[index], shift(0)),
            Format::Json | Format::Chrome => source.object(index),
        };
        let time = match self.format {
            Format::Chrome => shift_event(&mut object, shift),
            _ => shift_json(&mut object, shift),
        };
        for name in ["pid", "process"] {
            if let Some(new) = object[name].as_u64().and_then(|pid| self.renamed[place].get(&pid)) {
                object[name] = Value::from(*new);
                if name == "pid" {
                    rename_flow(&mut object, *new);
                }
            }
        }
        // Times now count from there.
        let said = if object.get("since").is_some() { Some(&mut object) } else { object.get_mut("args") };
        if let Some(said) = said.filter(|said| said.get("since").is_some()) {
            self.set_clock(said);
        }
        (time, object.to_string())
    }

    /// The clock of all: the result can be merged again.
    fn set_clock(&self, said: &mut Value) {
        let first = self.sources.iter().flat_map(|source| source.clocks.values());
        if let Some(clock) = first.min_by_key(|clock| self.start(clock)) {
            said["since"] = Value::from(clock.since);
            said["wall"] = Value::from(clock.wall);
            said["boot"] = Value::from(clock.boot.clone());
        }
    }

    /// Writes the result.
    ///
    /// # Errors
    /// Those of `output`.
    pub(super) fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let (begin, between, end) = match self.format {
            Format::Chrome => ("[\n", ",\n", "\n]\n"),
            _ => ("", "\n", "\n"),
        };
        output.write_all(begin.as_bytes())?;
        for (number, (_, place, index)) in self.order.iter().enumerate() {
            if number > 0 {
                output.write_all(between.as_bytes())?;
            }
            output.write_all(self.line(*place as usize, *index as usize).1.as_bytes())?;
        }
        output.write_all(end.as_bytes())
    }

    #[cfg(test)]
    fn text(&self) -> String {
        let mut bytes = Vec::new();
        let _ = self.write(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A line of text with its time later by so many seconds. Remarks go in front.
fn shifted_line(line: &str, by: f64) -> (f64, String) {
    match line.split_once(' ').map(|(time, rest)| (time.parse::<f64>(), rest)) {
        Some((Ok(time), rest)) => (time + by, format!("{:.9} {rest}", time + by)),
        _ => (-1.0, line.to_owned()),
    }
}

/// Nanoseconds are exact enough.
fn rounded(seconds: f64, digits: f64) -> Value {
    Value::from((seconds * digits).round() / digits)
}

fn shift_json(object: &mut Value, shift: impl Fn(u64) -> f64) -> f64 {
    let Some(time) = object["time"].as_f64() else { return -1.0 };
    let time = time + shift(object["pid"].as_u64().unwrap_or(0));
    object["time"] = rounded(time, 1e9);
    time
}

fn shift_event(object: &mut Value, shift: impl Fn(u64) -> f64) -> f64 {
    let Some(time) = object["ts"].as_f64() else { return -1.0 };
    let time = time + shift(object["pid"].as_u64().unwrap_or(0)) * 1e6;
    object["ts"] = rounded(time, 1e3);
    time
}

/// New numbers for processes whose numbers another file has, too: two machines count by themselves.
fn rename(source: &Source, taken: &mut HashSet<u64>) -> HashMap<u64, u64> {
    /// Beyond the numbers that Linux gives.
    const FIRST: u64 = 1 << 22;
    let mut renamed = HashMap::new();
    for pid in source.clocks.keys().copied().filter(|pid| *pid != 0) {
        if !taken.insert(pid) {
            let free = (FIRST..).find(|free| !taken.contains(free)).unwrap_or(pid);
            taken.insert(free);
            renamed.insert(pid, free);
        }
    }
    renamed
}

/// An arrow has the number of its process in its name.
fn rename_flow(object: &mut Value, pid: u64) {
    if let Some(id) = object["id"].as_str().filter(|id| id.starts_with('a')) {
        object["id"] = Value::from(format!("{id}-{pid}"));
        return;
    }
    let number =
        object["id"].as_str().and_then(|id| u64::from_str_radix(id.trim_start_matches("0x"), 16).ok());
    if let Some(number) = number {
        object["id"] = Value::from(format!("{:#x}-{pid}", number & ((1 << 42) - 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source(format: Format, pid: u64, since: u64, boot: &str, objects: Vec<Value>) -> Source {
        let clock = Clock { since, wall: 1_000_000_000 * since, boot: boot.to_owned() };
        let pid = if format == Format::Text { 0 } else { pid };
        Source {
            format,
            lines: objects
                .iter()
                .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
                .collect(),
            clocks: HashMap::from([(pid, clock)]),
            missing: 0,
        }
    }

    #[test]
    fn times_of_one_machine_count_from_the_first_start() {
        let first =
            source(Format::Json, 1, 2_000_000_000, "a", vec![json!({"time": 0.5, "pid": 1, "call": "x"})]);
        let second =
            source(Format::Json, 2, 1_000_000_000, "a", vec![json!({"time": 0.7, "pid": 2, "call": "y"})]);
        let merged = merge(vec![first, second]).expect("they go together").text();
        let lines: Vec<Value> =
            merged.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((&lines[0]["call"], &lines[0]["time"]), (&json!("y"), &json!(0.7)));
        assert_eq!((&lines[1]["call"], &lines[1]["time"]), (&json!("x"), &json!(1.5)));
    }

    #[test]
    fn lines_of_text_are_sorted_and_remarks_go_in_front() {
        let text = |lines: &[&str]| lines.iter().map(|line| Value::from(*line)).collect();
        let first = source(
            Format::Text,
            1,
            3_000_000_000,
            "a",
            text(&["# process 1: one", "0.250000000 1 b() = 0 <1>"]),
        );
        let second = source(
            Format::Text,
            2,
            2_000_000_000,
            "a",
            text(&["# process 2: two", "1.000000000 2 a() = 0 <1>"]),
        );
        assert_eq!(
            merge(vec![first, second]).expect("they go together").text(),
            "# process 1: one\n# process 2: two\n1.000000000 2 a() = 0 <1>\n1.250000000 1 b() = 0 <1>\n"
        );
    }

    #[test]
    fn processes_of_two_machines_keep_apart() {
        let event = |name| {
            vec![
                json!({"ph": "X", "ts": 1.0, "pid": 7, "name": name}),
                json!({"ph": "s", "ts": 1.0, "pid": 7, "id": "0x1c0000000003"}),
            ]
        };
        // The second machine's clock is far from the first one's, its time of day is 1 s later.
        let first = source(Format::Chrome, 7, 5, "a", event("x"));
        let mut second = source(Format::Chrome, 7, 900, "b", event("y"));
        second.clocks.get_mut(&7).expect("it is there").wall = 6_000_000_000;
        let merged = merge(vec![first, second]).expect("they go together").text();
        let events: Vec<Value> = serde_json::from_str(&merged).expect("a list");
        let times: Vec<_> = events.iter().map(|event| event["ts"].as_f64().expect("a time")).collect();
        assert_eq!(times, [1.0, 1.0, 1_000_001.0, 1_000_001.0]);
        assert_ne!(events[0]["pid"], events[2]["pid"]);
        assert_ne!(events[1]["id"], events[3]["id"]);
    }

    #[test]
    fn traces_that_do_not_go_together_are_refused() {
        let one = source(Format::Json, 1, 1, "a", Vec::new());
        let other = source(Format::Chrome, 1, 1, "a", Vec::new());
        assert!(merge(vec![one, other]).err().is_some_and(|why| why.contains("several formats")));
        let old = source(Format::Json, 1, 0, "", Vec::new());
        assert!(merge(vec![old]).err().is_some_and(|why| why.contains("older")));
        assert!(merge(Vec::new()).is_err());
    }
}
