//! Files of traces, as `adverb run --trace` writes them.

use adverb_watch::setting::Format;
use serde_json::Value;
use std::collections::HashMap;

/// The instant from which the times of a process count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// On the clock of its machine, in nanoseconds.
    pub(super) since: u64,
    /// In nanoseconds since 1970.
    pub(super) wall: u64,
    /// Names the start of the machine.
    pub(super) boot: String,
}

/// A file of a trace.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) format: Format,
    /// Of JSON and of events: the objects. Of text: strings, a line each.
    pub(super) objects: Vec<Value>,
    /// By process; of text, those of all under 0.
    pub(super) clocks: HashMap<u64, Clock>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// The line, and what is wrong there.
    pub(super) fn read(name: &str) -> Result<Self, String> {
        let bytes = std::fs::read(name).map_err(|error| format!("{name}: {error}"))?;
        Self::parse(&String::from_utf8_lossy(&bytes)).map_err(|why| format!("{name}: {why}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim_start().bytes().next() {
            Some(b'[') => Self::events(text),
            Some(b'{') => Self::lines(text),
            Some(b'#') => Self::text(text),
            _ => Err("this is no trace: adverb run --trace writes one".to_owned()),
        }
    }

    /// A list of events. Its end may be missing, as after a killed program.
    fn events(text: &str) -> Result<Self, String> {
        let objects = match serde_json::from_str(text) {
            Ok(Value::Array(objects)) => objects,
            _ => {
                let inner = text.trim_start().trim_start_matches('[').trim_end().trim_end_matches(']');
                let lines = inner
                    .lines()
                    .map(|line| line.trim().trim_end_matches(','))
                    .filter(|line| !line.is_empty());
                objects(lines)?
            }
        };
        let head = |event: &Value| {
            let is_head = event["ph"] == "M" && event["name"] == "process_name";
            is_head.then(|| (event["pid"].as_u64().unwrap_or(0), clock(&event["args"])))
        };
        let clocks = objects.iter().filter_map(head).collect();
        Ok(Self { format: Format::Chrome, objects, clocks })
    }

    fn lines(text: &str) -> Result<Self, String> {
        let objects = objects(text.lines().filter(|line| !line.trim().is_empty()))?;
        let head = |line: &Value| line["process"].as_u64().map(|pid| (pid, clock(line)));
        let clocks = objects.iter().filter_map(head).collect();
        Ok(Self { format: Format::Json, objects, clocks })
    }

    fn text(text: &str) -> Result<Self, String> {
        let mut found: Option<Clock> = None;
        let mut objects = Vec::new();
        for line in text.lines() {
            let Some(said) = line.strip_prefix("# process clock ") else {
                objects.push(Value::from(line));
                continue;
            };
            let words: Vec<_> = said.split(' ').collect();
            let [since, wall, boot] = words[..] else { return Err(format!("this line is cut: {line}")) };
            let number = |word: &str| word.parse().map_err(|_| format!("this line is cut: {line}"));
            let clock = Clock { since: number(since)?, wall: number(wall)?, boot: boot.to_owned() };
            if found.as_ref().is_some_and(|found| found.since != clock.since) {
                return Err("the lines are of several runs, and do not say of which: trace into a file that ends with .jsonl".to_owned());
            }
            found = Some(clock);
        }
        let clocks = found.into_iter().map(|clock| (0, clock)).collect();
        Ok(Self { format: Format::Text, objects, clocks })
    }
}

fn objects<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<Value>, String> {
    let mut found = Vec::new();
    for (number, line) in lines.enumerate() {
        match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => found.push(value),
            Ok(_) => return Err(format!("line {}: wanted is an object", number + 1)),
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(found)
}

fn clock(said: &Value) -> Clock {
    Clock {
        since: said["since"].as_u64().unwrap_or(0),
        wall: said["wall"].as_u64().unwrap_or(0),
        boot: said["boot"].as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_known_by_its_beginning_and_has_clocks() {
        let clock = Clock { since: 5, wall: 7, boot: "b".to_owned() };
        for (text, format, count, pid) in [
            ("# process 3: x\n# process clock 5 7 b\n0.1 3 ibv_a() = 0 <0.1>\n", Format::Text, 2, 0),
            (
                "{\"process\":3,\"command\":\"x\",\"since\":5,\"wall\":7,\"boot\":\"b\"}\n{\"time\":1}\n",
                Format::Json,
                2,
                3,
            ),
            (
                "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":3,\"args\":{\"name\":\"x\",\"since\":5,\"wall\":7,\"boot\":\"b\"}},\n{\"ph\":\"X\"},\n",
                Format::Chrome,
                2,
                3,
            ),
        ] {
            let source = Source::parse(text).expect(text);
            assert_eq!((source.format, source.objects.len()), (format, count));
            assert_eq!(source.clocks.get(&pid), Some(&clock));
        }
        let whole = Source::parse("[\n{\"ph\":\"X\"}\n]\n").expect("a list");
        assert_eq!(whole.objects.len(), 1);
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        for (text, why) in [
            ("", "no trace"),
            ("hello", "no trace"),
            ("{\"a\":1}\n{\"a\":\n", "line 2"),
            ("[\n{\"a\":1},\n{\"a\n", "line 2"),
            ("# process clock 5\n", "cut"),
            ("# process clock 5 7 b\n# process clock 6 7 b\n", "several runs"),
        ] {
            assert!(Source::parse(text).is_err_and(|said| said.contains(why)), "{text}");
        }
    }
}
