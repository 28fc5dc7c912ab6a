//! `adverb trace merge`: several files become one, with one clock.

use super::source::{Clock, Source};
use adverb_watch::setting::Format;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Puts files of one format together, in the order of their times, which count from the first of their starts.
///
/// # Errors
/// What does not go together.
pub(super) fn merge(sources: Vec<Source>) -> Result<String, String> {
    let formats: HashSet<_> = sources.iter().map(|source| source.format.name()).collect();
    if formats.len() > 1 {
        return Err("the files have several formats: trace all of them with one --trace-format".to_owned());
    }
    let format = sources.first().map_or(Format::Text, |source| source.format);
    let clocks: Vec<Clock> = sources.iter().flat_map(|source| source.clocks.values().cloned()).collect();
    if clocks.is_empty() || clocks.iter().any(|clock| clock.since == 0) {
        return Err("a file does not say from when its times count: it is of an older adverb".to_owned());
    }
    // The clock of the machine is exact. Those of several machines are as near as their times of day.
    let is_one_machine = clocks.iter().all(|clock| clock.boot == clocks[0].boot);
    let start = |clock: &Clock| if is_one_machine { clock.since } else { clock.wall };
    let base = clocks.iter().map(start).min().unwrap_or(0);
    let mut taken = HashSet::new();
    let mut all: Vec<(f64, String)> = Vec::new();
    for source in sources {
        let renamed = rename(&source, &mut taken);
        let shift = |pid: u64| {
            let clock = source.clocks.get(&pid).or_else(|| source.clocks.values().next());
            (clock.map_or(base, start) - base) as f64 / 1e9
        };
        for mut object in source.objects {
            let time = match format {
                Format::Text => {
                    let (time, line) = shifted_line(object.as_str().unwrap_or_default(), shift(0));
                    all.push((time, line));
                    continue;
                }
                Format::Json => shift_json(&mut object, shift),
                Format::Chrome => shift_event(&mut object, shift),
            };
            for name in ["pid", "process"] {
                if let Some(new) = object[name].as_u64().and_then(|pid| renamed.get(&pid)) {
                    object[name] = Value::from(*new);
                    if name == "pid" {
                        rename_flow(&mut object, *new);
                    }
                }
            }
            all.push((time, object.to_string()));
        }
    }
    // Of one time, in the order of the files.
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(joined(format, all))
}

fn joined(format: Format, all: Vec<(f64, String)>) -> String {
    let (begin, between, end) = match format {
        Format::Chrome => ("[\n", ",\n", "\n]\n"),
        Format::Text | Format::Json => ("", "\n", "\n"),
    };
    let mut text = begin.to_owned();
    for (place, (_, line)) in all.iter().enumerate() {
        let _ = write!(text, "{}{line}", if place > 0 { between } else { "" });
    }
    text + end
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
        Source { format, objects, clocks: HashMap::from([(pid, clock)]) }
    }

    #[test]
    fn times_of_one_machine_count_from_the_first_start() {
        let first =
            source(Format::Json, 1, 2_000_000_000, "a", vec![json!({"time": 0.5, "pid": 1, "call": "x"})]);
        let second =
            source(Format::Json, 2, 1_000_000_000, "a", vec![json!({"time": 0.7, "pid": 2, "call": "y"})]);
        let merged = merge(vec![first, second]).expect("they go together");
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
            merge(vec![first, second]).expect("they go together"),
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
        let merged = merge(vec![first, second]).expect("they go together");
        let events: Vec<Value> = serde_json::from_str(&merged).expect("a list");
        let times: Vec<_> = events.iter().map(|event| event["ts"].as_f64().expect("a time")).collect();
        assert_eq!(times, [1.0, 1.0, 1_000_001.0, 1_000_001.0]);
        assert_ne!(events[0]["pid"], events[2]["pid"]);
        assert_ne!(events[1]["id"], events[3]["id"]);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let one = source(Format::Json, 1, 1, "a", Vec::new());
        let other = source(Format::Chrome, 1, 1, "a", Vec::new());
        assert!(merge(vec![one, other]).is_err_and(|why| why.contains("several formats")));
        let old = source(Format::Json, 1, 0, "", Vec::new());
        assert!(merge(vec![old]).is_err_and(|why| why.contains("older")));
        assert!(merge(Vec::new()).is_err());
    }
}
