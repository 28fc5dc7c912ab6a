//! How findings come out: each once, as text or JSON, and a line at the end.

use super::finding::Kind;
use super::objects::Object;
use super::roles::Thing;
use super::setting::FindingFormat;
use super::site::{Place, Site};
use super::suppress::{Origin, Suppressions};
use adverb_core::setting;
use adverb_core::signals::without_sigpipe;
use std::collections::{BTreeMap, HashSet};
use std::ffi::c_int;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// A finding.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) kind: Kind,
    /// A sentence that names the object.
    pub(super) text: String,
    /// Where the general remedy of the kind does not say enough.
    pub(super) remedy: Option<String>,
    /// Which object it is about: the same kind is said once of it.
    pub(super) object: u64,
    /// The number of the queue pair that it is about.
    queue_pair: Option<u32>,
    /// The request or receive that it is about.
    wr_id: Option<u64>,
    /// The number (`handle`) of the completion queue that it is about.
    completion_queue: Option<u32>,
    /// The call that shows it.
    pub(super) call: Option<&'static str>,
    /// Where that call was made, unless it is being made just now.
    pub(super) site: Option<Site>,
    /// Other places, each behind its words, such as `made at`.
    pub(super) places: Vec<(&'static str, Site)>,
}

impl Finding {
    pub(super) fn new(kind: Kind, object: u64, text: String) -> Self {
        Self {
            kind,
            text,
            remedy: None,
            object,
            queue_pair: None,
            wr_id: None,
            completion_queue: None,
            call: None,
            site: None,
            places: Vec::new(),
        }
    }

    /// About the queue pair of this number, of which it is said once; 0 is none.
    pub(super) fn of_pair(kind: Kind, number: u32, text: String) -> Self {
        Self::new(kind, number.into(), text).pair(number)
    }

    /// About an object of the program, of which it is said once.
    pub(super) fn of_object(kind: Kind, object: &Object, text: String) -> Self {
        let finding = Self::new(kind, object.serial, text);
        match object.thing {
            Thing::QueuePair => finding.pair(object.number),
            Thing::CompletionQueue => finding.queue(Some(object.number)),
            _ => finding,
        }
    }

    /// With the number of the queue pair; 0 is none.
    pub(super) fn pair(mut self, number: u32) -> Self {
        self.queue_pair = (number != 0).then_some(number);
        self
    }

    /// With the handle of the completion queue, if it is known.
    pub(super) fn queue(mut self, number: Option<u32>) -> Self {
        self.completion_queue = number;
        self
    }

    /// With the request or receive.
    pub(super) fn request(mut self, wr_id: u64) -> Self {
        self.wr_id = Some(wr_id);
        self
    }

    /// With a place, if it is known.
    pub(super) fn at(mut self, words: &'static str, site: Site) -> Self {
        if site.is_known() {
            self.places.push((words, site));
        }
        self
    }

    pub(super) fn remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy = Some(text.into());
        self
    }

    /// Says which call, made where, the finding is about.
    pub(super) fn of(mut self, call: &'static str, site: Site) -> Self {
        (self.call, self.site) = (Some(call), Some(site));
        self
    }
}

/// More findings are not shown.
const MOST: usize = 1000;

/// What has been found.
#[derive(Default)]
pub(super) struct Findings {
    seen: HashSet<(Kind, u64, usize)>,
    counts: BTreeMap<Kind, u32>,
    /// There were more than are shown.
    has_more: bool,
}

impl Findings {
    /// Whether a finding is new.
    pub(super) fn is_new(&mut self, finding: &Finding, site: Site) -> bool {
        let place = match finding.kind {
            // It may come to light in several places.
            Kind::CompletionQueueOverrun => 0,
            _ => site.address(),
        };
        let new = (finding.kind, finding.object, place);
        if self.seen.len() >= MOST {
            self.has_more |= !self.seen.contains(&new);
            return false;
        }
        self.seen.insert(new)
    }

    /// Whether something of this kind was found of an object.
    pub(super) fn has(&self, kind: Kind, object: u64) -> bool {
        self.seen.iter().any(|(known, of, _)| (*known, *of) == (kind, object))
    }

    pub(super) fn count(&mut self, kind: Kind) {
        *self.counts.entry(kind).or_default() += 1;
    }

    pub(super) fn total(&self) -> u32 {
        self.counts.values().sum()
    }

    /// The line at the end of a process.
    fn summary(&self, process: &str, leaks: LeakSearch) -> String {
        let names: Vec<_> = self
            .counts
            .iter()
            .map(
                |(kind, count)| {
                    if *count == 1 { kind.name().to_owned() } else { format!("{count} {}", kind.name()) }
                },
            )
            .collect();
        let mut more = if self.has_more { ", and more that are not shown" } else { "" }.to_owned();
        let why = match leaks {
            LeakSearch::Made => None,
            LeakSearch::ProgramFailed(status) => Some(format!("the program ended with status {status}")),
            LeakSearch::CallUnseen => {
                Some("a handler of a signal made calls that the check has not seen".to_owned())
            }
            LeakSearch::DestroyUnfinished => {
                Some("the program ended while a call was destroying an object".to_owned())
            }
        };
        if let Some(why) = why {
            let _ = write!(
                more,
                "; {why}, so objects and requests that it left are no findings, but for objects that kept others from being destroyed"
            );
        }
        match self.total() {
            0 => format!("no findings in {process}{more}"),
            1 => format!("1 finding ({}) in {process}{more}", names.join(", ")),
            total => format!("{total} findings ({}) in {process}{more}", names.join(", ")),
        }
    }
}

/// Whether objects and requests that the program has left are findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeakSearch {
    /// What is left is a finding.
    Made,
    /// The program has failed, with this status.
    ProgramFailed(i32),
    /// The check has not seen all calls, as the handler of a signal made some while the thread was busy with
    /// the check.
    CallUnseen,
    /// A call that destroys an object has not ended: the handler of a signal or another thread has ended the
    /// program.
    DestroyUnfinished,
}

/// Where findings go, and which do not.
pub(super) struct Report {
    pub(super) format: FindingFormat,
    pub(super) file: Option<String>,
    /// The file for the command.
    pub(super) count: Option<String>,
    pub(super) suppressions: Suppressions,
    pub(super) program: String,
    pub(super) errors: Errors,
}

/// Standard error as it was when the check began. The program may close the descriptor, and open a file of
/// its data by the same number.
#[derive(Default)]
pub(super) struct Errors {
    /// Device and number of the file.
    file: Option<(u64, u64)>,
}

impl Errors {
    pub(super) fn now() -> Self {
        Self { file: identity(libc::STDERR_FILENO) }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() || identity(libc::STDERR_FILENO) != self.file {
            return Err(io::ErrorKind::NotFound.into());
        }
        write_to_stderr(bytes)
    }
}

/// The file that a descriptor leads to.
fn identity(descriptor: c_int) -> Option<(u64, u64)> {
    // SAFETY: plain data that the call fills.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
    }
}

impl Report {
    /// Shows a finding, unless that is not wanted: whether it counts.
    pub(super) fn show(&self, finding: &Finding, site: Site) -> bool {
        if self.is_suppressed(finding, site) {
            return false;
        }
        let place = site.places();
        let places: Vec<_> = finding.places.iter().map(|(words, site)| (*words, site.places())).collect();
        let line = match self.format {
            FindingFormat::Text => self.text(finding, &place, &places),
            FindingFormat::Json => self.json(finding, &place, &places),
        };
        self.write(&line);
        if let Some(count) = &self.count {
            // A run that cannot count ends with the status of its program.
            let _ = append(count, b".");
        }
        true
    }

    fn is_suppressed(&self, finding: &Finding, site: Site) -> bool {
        // Of what is left there is no call, or one that has nothing to do with it, as ibv_close_device.
        let is_left = matches!(finding.kind, Kind::ObjectLeaked | Kind::InFlightAtExit);
        let (mut call, mut made) = (Vec::new(), Vec::new());
        if self.suppressions.ask_origin() {
            call = site.all_places();
            if is_left {
                made = finding.places.iter().flat_map(|(_, site)| site.all_places()).collect();
            }
        }
        self.suppressions.has(finding.kind, &self.program, Origin { call: &call, made: &made })
    }

    /// Writes the line at the end.
    pub(super) fn end(&self, found: &Findings, leaks: LeakSearch) {
        let line = match self.format {
            FindingFormat::Text => format!("adverb check: {}\n", found.summary(&self.process(), leaks)),
            FindingFormat::Json => {
                let mut names = String::new();
                for (kind, count) in &found.counts {
                    let comma = if names.is_empty() { "" } else { "," };
                    let _ = write!(names, "{comma}\"{}\":{count}", kind.name());
                }
                format!(
                    "{{\"summary\":true,\"findings\":{},\"whole\":{},\"leaks_looked_for\":{},\"names\":{{{names}}},\"process\":{},\"program\":{}}}\n",
                    found.total(),
                    !found.has_more,
                    leaks == LeakSearch::Made,
                    std::process::id(),
                    quoted(&self.program)
                )
            }
        };
        self.write(&line);
    }

    fn write(&self, line: &str) {
        static IS_LOST: AtomicBool = AtomicBool::new(false);
        if let Some(name) = self.file.as_deref().map(setting::file) {
            let Err(error) = append(&name, line.as_bytes()) else { return };
            if !IS_LOST.swap(true, Ordering::Relaxed) {
                let why = format!("adverb check: {name} cannot be written ({error}); findings follow here\n");
                let _ = self.errors.write(why.as_bytes());
            }
        }
        // Findings that cannot be written are not the program's concern.
        let _ = self.errors.write(line.as_bytes());
    }

    fn json(&self, finding: &Finding, place: &[Place], places: &[(&'static str, Vec<Place>)]) -> String {
        let mut line = format!(
            "{{\"finding\":{},\"text\":{},\"remedy\":{}",
            quoted(finding.kind.name()),
            quoted(&finding.text),
            quoted(finding.remedy.as_deref().unwrap_or(finding.kind.remedy()))
        );
        let numbers = [
            ("queue_pair", finding.queue_pair.map(u64::from)),
            ("wr_id", finding.wr_id),
            ("completion_queue", finding.completion_queue.map(u64::from)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                let _ = write!(line, ",\"{name}\":{number}");
            }
        }
        if let Some(call) = finding.call {
            let _ = write!(line, ",\"call\":{}", quoted(call));
        }
        for (words, places) in
            [("at", place)].into_iter().chain(places.iter().map(|(words, all)| (*words, all.as_slice())))
        {
            if !places.is_empty() {
                let all: Vec<_> = places.iter().map(json_place).collect();
                let _ = write!(line, ",{}:[{}]", quoted(&words.replace(' ', "_")), all.join(","));
            }
        }
        let _ = write!(line, ",\"process\":{},\"program\":{}}}", std::process::id(), quoted(&self.program));
        line.push('\n');
        line
    }

    fn text(&self, finding: &Finding, place: &[Place], places: &[(&'static str, Vec<Place>)]) -> String {
        let mut text = format!("adverb check: {}: {}\n", finding.kind.name(), finding.text);
        let _ = writeln!(text, "    remedy: {}", finding.remedy.as_deref().unwrap_or(finding.kind.remedy()));
        match finding.call {
            Some(call) if place.is_empty() => {
                let _ = writeln!(text, "    at {call}");
            }
            Some(call) => {
                let _ = writeln!(text, "    at {call} called from {}", chain(place));
            }
            None => {}
        }
        for (words, places) in places {
            let _ = writeln!(text, "    {words} {}", chain(places));
        }
        let _ = writeln!(text, "    in {}", self.process());
        text
    }

    /// This process, for a person: the processes of a run may write to one place.
    fn process(&self) -> String {
        format!("process {} ({})", std::process::id(), self.program)
    }
}

/// A place, and those from where it was called.
fn chain(places: &[Place]) -> String {
    places.iter().map(Place::text).collect::<Vec<_>>().join(", called from ")
}

fn json_place(place: &Place) -> String {
    let mut text = format!("{{\"module\":{},\"offset\":{}", quoted(&place.module), place.offset);
    for (name, value) in [("function", &place.function), ("file", &place.file)] {
        if let Some(value) = value {
            let _ = write!(text, ",\"{name}\":{}", quoted(value));
        }
    }
    if let Some(line) = place.line {
        let _ = write!(text, ",\"line\":{line}");
    }
    text.push('}');
    text
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut line = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            letter if u32::from(letter) < 0x20 => {
                let _ = write!(line, "\\u{:04x}", u32::from(letter));
            }
            letter => line.push(letter),
        }
    }
    line.push('"');
    line
}

/// Opens the file each time: a program may close descriptors that are not its own.
fn append(name: &str, bytes: &[u8]) -> io::Result<()> {
    without_sigpipe(|| File::options().append(true).create(true).open(name)?.write_all(bytes))
}

/// In as few system calls as it takes, without a lock: a line is whole also beside those of the program.
fn write_to_stderr(mut bytes: &[u8]) -> io::Result<()> {
    without_sigpipe(|| {
        while !bytes.is_empty() {
            // SAFETY: bytes that are borrowed.
            match unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) } {
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                count => bytes = &bytes[count as usize..],
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        let mut finding = Finding::new(Kind::WrongState, 1, "queue pair 0x12 is in \"INIT\"".to_owned());
        finding.call = Some("ibv_post_send");
        finding
    }

    fn place() -> Place {
        Place { function: Some("main".to_owned()), module: "a".to_owned(), offset: 16, ..Place::default() }
    }

    fn report(format: FindingFormat, program: &str) -> Report {
        Report {
            format,
            file: None,
            count: None,
            suppressions: Suppressions::default(),
            program: program.to_owned(),
            errors: Errors::default(),
        }
    }

    #[test]
    fn a_finding_has_its_parts_in_lines() {
        let report = report(FindingFormat::Text, "server");
        let text = report.text(&finding().remedy("wait"), &[place()], &[("made at", vec![place(), place()])]);
        let process = std::process::id();
        assert_eq!(
            text,
            format!(
                "adverb check: wrong-state: queue pair 0x12 is in \"INIT\"\n    remedy: wait\n    \
                 at ibv_post_send called from main (a+0x10)\n    made at main (a+0x10), called from main (a+0x10)\n    \
                 in process {process} (server)\n"
            )
        );
    }

    #[test]
    fn a_leak_is_suppressed_by_a_function_on_the_way_to_where_it_was_made() {
        #[inline(never)]
        fn make_leaked() -> Site {
            std::hint::black_box(Site::through(&[make_leaked as *const () as usize + 1]))
        }
        let mut report = report(FindingFormat::Text, "server");
        let name = make_leaked().all_places()[0].function.clone().expect("a name");
        let leak = Finding::new(Kind::ObjectLeaked, 1, "a region".to_owned()).at("made at", make_leaked());
        assert!(!report.is_suppressed(&leak, Site::default()));
        report.suppressions = Suppressions::parse(&format!("object-leaked * {name}")).expect("a rule");
        assert!(report.is_suppressed(&leak, Site::default()), "{name}");
        let other = Finding { kind: Kind::BufferChanged, ..leak };
        assert!(!report.is_suppressed(&other, Site::default()));
        report.suppressions = Suppressions::parse(&format!("buffer-changed * {name}")).expect("a rule");
        assert!(!report.is_suppressed(&other, Site::default()), "not made, but posted there");
        assert!(report.is_suppressed(&other, make_leaked()));
    }

    #[test]
    fn the_same_is_said_once_and_counted() {
        let mut found = Findings::default();
        assert_eq!(found.summary("it", LeakSearch::Made), "no findings in it");
        let site = Site::default();
        assert!(found.is_new(&finding(), site) && !found.is_new(&finding(), site));
        let other = Finding { object: 2, ..finding() };
        assert!(found.is_new(&other, site));
        found.count(Kind::WrongState);
        assert_eq!(found.summary("it", LeakSearch::Made), "1 finding (wrong-state) in it");
        found.count(Kind::WrongState);
        found.count(Kind::SlotReused);
        assert_eq!(found.summary("it", LeakSearch::Made), "3 findings (slot-reused, 2 wrong-state) in it");
    }

    #[test]
    fn the_last_line_says_why_leaks_were_not_looked_for() {
        let found = Findings::default();
        for (leaks, why) in [
            (LeakSearch::ProgramFailed(3), "status 3"),
            (LeakSearch::CallUnseen, "has not seen"),
            (LeakSearch::DestroyUnfinished, "destroying"),
        ] {
            let line = found.summary("it", leaks);
            assert!(line.contains(why) && line.contains("it left are no findings"), "{line}");
        }
    }

    #[test]
    fn more_than_are_shown_are_said_to_be_there() {
        let mut found = Findings::default();
        for object in 0..MOST as u64 {
            assert!(found.is_new(&Finding { object, ..finding() }, Site::default()));
        }
        assert!(!found.is_new(&Finding { object: 1, ..finding() }, Site::default()));
        assert_eq!(found.summary("it", LeakSearch::Made), "no findings in it");
        assert!(!found.is_new(&Finding { object: 1 << 40, ..finding() }, Site::default()));
        assert_eq!(found.summary("it", LeakSearch::Made), "no findings in it, and more that are not shown");
    }

    #[test]
    fn a_line_of_json_can_be_read() {
        let report = report(FindingFormat::Json, "a\n\"b\"");
        let line = report.json(&finding().pair(0x12).request(7), &[place()], &[("made at", vec![place()])]);
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&value["finding"], &value["call"]), (&"wrong-state".into(), &"ibv_post_send".into()));
        assert_eq!(
            (&value["at"][0]["function"], &value["made_at"][0]["offset"]),
            (&"main".into(), &16.into())
        );
        assert_eq!(value["program"], "a\n\"b\"");
        assert_eq!((&value["queue_pair"], &value["wr_id"]), (&0x12.into(), &7.into()));
        assert!(value.get("completion_queue").is_none(), "it is about none: {line}");
    }
}
