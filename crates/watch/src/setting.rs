//! What `adverb run --trace` and its variables say.

use crate::calls::{self, CALLS};
use adverb_core::setting::trace_file;

/// Names the file of a trace: `ADVERB_TRACE=[FORMAT:]FILE`.
pub const TRACE: &str = "ADVERB_TRACE";
/// Names the calls of a trace.
pub const ONLY: &str = "ADVERB_TRACE_ONLY";
/// How large a ring is, in MiB.
pub const SIZE: &str = "ADVERB_TRACE_SIZE";
/// When the run began, on the clock of the machine: all processes of a run count from there.
pub const SINCE: &str = "ADVERB_TRACE_SINCE";

/// What a trace looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line for each call, for people.
    Text,
    /// A JSON object for each call, one a line.
    Json,
    /// Trace events of Chrome and Perfetto.
    Chrome,
    /// Records in a mapped file of a fixed size, of which the oldest are overwritten.
    Ring,
}

impl Format {
    /// All, by their names.
    pub const ALL: [(&'static str, Self); 4] =
        [("text", Self::Text), ("json", Self::Json), ("chrome", Self::Chrome), ("ring", Self::Ring)];

    /// The format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| *name)
    }

    /// The format that goes with the ending of a file's name.
    pub fn of_file(name: &str) -> Self {
        match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("jsonl" | "ndjson") => Self::Json,
            Some("json") => Self::Chrome,
            Some("ring") => Self::Ring,
            _ => Self::Text,
        }
    }
}

/// Where a trace goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name of the file, with `%p` for the process ID.
    pub file: String,
    /// What is written.
    pub format: Format,
}

impl Target {
    /// Out of the value of the variable.
    pub fn parse(text: &str) -> Self {
        let (format, file) = trace_file(text);
        let format = format.and_then(Format::from_name).unwrap_or_else(|| Format::of_file(file));
        Self { file: file.to_owned(), format }
    }

    /// The value of the variable.
    pub fn value(&self) -> String {
        format!("{}:{}", self.format.name(), self.file)
    }

    /// Whether each process has a file of its own.
    pub fn is_own(&self) -> bool {
        self.file.contains("%p")
    }
}

/// The word of a list of calls that means packets.
const PACKETS: &str = "packets";

/// Whether a trace has packets: those of an empty list in all formats but text, which is for calls.
pub(crate) fn has_packets(list: &str, format: Format) -> bool {
    let mut words = list.split(',').map(str::trim).filter(|word| !word.is_empty()).peekable();
    if words.peek().is_none() { format != Format::Text } else { words.any(|word| word == PACKETS) }
}

/// The calls of a list of names, each of which may end with a star: all if it is empty.
///
/// # Errors
/// A text for the user that names the entry that is no call.
pub fn only(list: &str) -> Result<Vec<bool>, String> {
    let patterns: Vec<_> = list.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).collect();
    for pattern in patterns.iter().filter(|pattern| **pattern != PACKETS) {
        if !CALLS.iter().any(|call| calls::matches(pattern, call.name)) {
            let meant = calls::meant(pattern);
            return Err(format!("there is no call {pattern}{meant}; ibv_* means all that begin so"));
        }
    }
    let is_chosen =
        |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| calls::matches(pattern, name));
    Ok(CALLS.iter().map(|call| is_chosen(call.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_said_or_goes_with_the_ending() {
        let target = |text| {
            let target = Target::parse(text);
            (target.format, target.file)
        };
        assert_eq!(target("a.txt"), (Format::Text, "a.txt".to_owned()));
        assert_eq!(target("a"), (Format::Text, "a".to_owned()));
        assert_eq!(target("/x/a.json"), (Format::Chrome, "/x/a.json".to_owned()));
        assert_eq!(target("a-%p.jsonl"), (Format::Json, "a-%p.jsonl".to_owned()));
        assert_eq!(target("text:a.json"), (Format::Text, "a.json".to_owned()));
        assert_eq!(target("other:a"), (Format::Text, "other:a".to_owned()));
        assert_eq!(target("a.ring"), (Format::Ring, "a.ring".to_owned()));
        for text in ["text:a", "json:b-%p", "chrome:c:d", "ring:e"] {
            assert_eq!(Target::parse(text).value(), text);
        }
    }

    #[test]
    fn packets_are_in_all_formats_but_text_unless_a_list_says_otherwise() {
        assert!(
            has_packets("", Format::Json)
                && has_packets(" , ", Format::Ring)
                && !has_packets("", Format::Text)
        );
        assert!(has_packets("ibv_post_send, packets", Format::Text) && !has_packets("ibv_*", Format::Json));
        let chosen = only("packets").expect("a word");
        assert!(chosen.iter().all(|chosen| !chosen));
    }

    #[test]
    fn a_list_of_calls_has_names_and_beginnings() {
        let chosen = |list| {
            let chosen = only(list).expect("calls");
            CALLS
                .iter()
                .zip(chosen)
                .filter(|(_, chosen)| *chosen)
                .map(|(call, _)| call.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen("ibv_reg_mr, rdma_li*"), ["ibv_reg_mr", "ibv_reg_mr_iova2", "rdma_listen"]);
        assert_eq!(chosen("").len(), CALLS.len());
        assert!(only("ibv_reg_mr,ibv_poll").is_err_and(|text| text.contains("ibv_poll_cq")));
    }
}
