//! Files of traces, as `adverb run --trace` writes them. A file is kept as its bytes, and its lines are
//! parsed one at a time.

use adverb_watch::ring::read::{Rings, is_ring};
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
    /// Of JSON and of events: an object in each line. Of text: any lines.
    pub(super) lines: Vec<String>,
    /// By process; of text, those of all under 0.
    pub(super) clocks: HashMap<u64, Clock>,
    /// How many records the file does not have, as far as it says so.
    pub(super) missing: u64,
}

impl Source {
    /// Reads a file. A ring is read as if it were of the format `wanted`.
    ///
    /// # Errors
    /// The line, and what is wrong there.
    pub(super) fn read(name: &str, wanted: Format) -> Result<Self, String> {
        let bytes = std::fs::read(name).map_err(|error| format!("{name}: {error}"))?;
        Self::of_bytes(bytes, wanted).map_err(|why| format!("{name}: {why}"))
    }

    fn of_bytes(bytes: Vec<u8>, wanted: Format) -> Result<Self, String> {
        if !is_ring(&bytes) {
            return Self::parse(&String::from_utf8_lossy(&bytes));
        }
        let ring = Rings::read(bytes)?;
        let mut text = Vec::new();
        if wanted == Format::Chrome {
            text.extend_from_slice(b"[\n");
        }
        let Ok(()) = ring.write(wanted, |lines| -> Result<(), std::convert::Infallible> {
            text.extend_from_slice(lines);
            Ok(())
        });
        if text.len() <= 2 {
            return Err("nothing has been written into this ring".to_owned());
        }
        Ok(Self { missing: ring.missing(), ..Self::parse(&String::from_utf8_lossy(&text))? })
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim_start().bytes().next() {
            Some(b'[') => Self::events(text),
            Some(b'{') => Self::json(text),
            Some(b'#') => Self::text(text),
            _ => Err("this is no trace: adverb run --trace writes one".to_owned()),
        }
    }

    /// A list of events. Its end may be missing, as after a killed program.
    fn events(text: &str) -> Result<Self, String> {
        let inner = text.trim_start().trim_start_matches('[').trim_end().trim_end_matches(']');
        let lines =
            inner.lines().map(|line| line.trim().trim_end_matches(',')).filter(|line| !line.is_empty());
        let (lines, missing) = match whole(lines) {
            Ok(found) => found,
            // Another program may have written the list in other lines.
            Err(why) => match serde_json::from_str(text) {
                Ok(Value::Array(objects)) if objects.iter().all(Value::is_object) => {
                    (objects.iter().map(Value::to_string).collect(), 0)
                }
                _ => return Err(why),
            },
        };
        let head = |line: &String| {
            let event = of_head(line, "process_name")?;
            let is_head = event["ph"] == "M" && event["name"] == "process_name";
            is_head.then(|| (event["pid"].as_u64().unwrap_or(0), clock(&event["args"])))
        };
        let clocks = lines.iter().filter_map(head).collect();
        Ok(Self { format: Format::Chrome, lines, clocks, missing })
    }

    fn json(text: &str) -> Result<Self, String> {
        let (lines, missing) = whole(text.lines().filter(|line| !line.trim().is_empty()))?;
        let head = |line: &String| {
            let object = of_head(line, "\"process\"")?;
            object["process"].as_u64().map(|pid| (pid, clock(&object)))
        };
        let clocks = lines.iter().filter_map(head).collect();
        Ok(Self { format: Format::Json, lines, clocks, missing })
    }

    fn text(text: &str) -> Result<Self, String> {
        let mut found: Option<Clock> = None;
        let mut lines = Vec::new();
        for line in text.lines() {
            let Some(said) = line.strip_prefix("# process clock ") else {
                lines.push(line.to_owned());
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
        Ok(Self { format: Format::Text, lines, clocks, missing: 0 })
    }

    /// The object of a line. The lines have been looked at.
    pub(super) fn object(&self, index: usize) -> Value {
        serde_json::from_str(&self.lines[index]).unwrap_or(Value::Null)
    }
}

/// The object of a line, if it may be the head of a process: most lines need not be parsed for that.
fn of_head(line: &str, word: &str) -> Option<Value> {
    line.contains(word).then(|| serde_json::from_str(line).ok()).flatten()
}

/// The lines that are objects, and how many are not: a process that is killed while it writes leaves a part
/// of a line, and another one goes on behind it.
///
/// # Errors
/// A line that nobody has left so.
fn whole<'a>(lines: impl Iterator<Item = &'a str>) -> Result<(Vec<String>, u64), String> {
    let (mut found, mut missing) = (Vec::new(), 0);
    for (number, line) in lines.enumerate() {
        match serde_json::from_str(line) {
            Ok(Value::Object(_)) => found.push(line.to_owned()),
            Err(_) if number > 0 && line.starts_with('{') => missing += 1,
            Ok(_) => return Err(format!("line {}: wanted is an object", number + 1)),
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        }
    }
    Ok((found, missing))
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
            assert_eq!((source.format, source.lines.len()), (format, count));
            assert_eq!(source.clocks.get(&pid), Some(&clock));
        }
        let whole = Source::parse("[\n{\"ph\":\"X\"}\n]\n").expect("a list");
        assert_eq!(whole.lines.len(), 1);
    }

    #[test]
    fn a_line_that_a_killed_process_has_left_cut_is_counted() {
        for text in
            ["{\"a\":1}\n{\"a\":{\"b\":2}\n{\"c\":3}\n", "[\n{\"a\":1},\n{\"a\":{\"b\":2}\n{\"c\":3},\n"]
        {
            let source = Source::parse(text).expect("two whole lines");
            assert_eq!((source.lines.len(), source.missing), (2, 1), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_with_its_line() {
        for (text, why) in [
            ("", "no trace"),
            ("hello", "no trace"),
            ("{\"a\":\n", "line 1"),
            ("{\"a\":1}\n[]\n", "line 2"),
            ("[\n{\"a\":1},\n7,\n", "line 2"),
            ("# process clock 5\n", "cut"),
            ("# process clock 5 7 b\n# process clock 6 7 b\n", "several runs"),
        ] {
            assert!(Source::parse(text).is_err_and(|said| said.contains(why)), "{text}");
        }
    }
}
