//! What a run has done, when it is over: a line for people (`adverb run`), and a file for programs
//! (`adverb run --summary`).

use crate::failure::{self, Failure};
use crate::files::Files;
use adverb_core::counters::Counters;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The options of the summary.
#[derive(clap::Args)]
pub(crate) struct SummaryOptions {
    /// Leave out the line that says at the end, on a terminal, what went how
    #[arg(long, short)]
    quiet: bool,

    /// Write what went how into this file, at the end, as JSON
    #[arg(long, value_name = "FILE")]
    summary: Option<OsString>,
}

/// A run whose summary is wanted.
pub(crate) struct Summary {
    /// The program and its arguments.
    command: Vec<String>,
    begun: Instant,
    output: Option<Output>,
    /// Whether a person is to see a line.
    line: bool,
}

impl SummaryOptions {
    /// The summary of a run that begins now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(&self, command: &[OsString]) -> Result<Summary, Failure> {
        let create = |name: &OsString| {
            Output::begin(Path::new(name))
                .map_err(|e| Failure::own(format!("--summary {}: cannot be written: {e}", name.display())))
        };
        let output = self.summary.as_ref().map(create).transpose()?;
        let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        // A program's errors, where somebody else reads them, are the program's alone.
        let line = !self.quiet && std::io::stderr().is_terminal();
        Ok(Summary { command, begun: Instant::now(), output, line })
    }
}

impl Summary {
    /// The program cannot be started, and no device has been made for it.
    pub(crate) fn refuse(&mut self, why: &Failure) {
        self.write(&[], false, Err(why));
    }

    /// Says what the run has done; `status` is that of the program, or why there was none.
    pub(crate) fn end(&mut self, files: &Files, status: Result<&u8, &Failure>) {
        if !self.line && self.output.is_none() {
            return;
        }
        let totals = files.totals();
        self.write(&totals, files.count(), status);
        if let Some(line) = line(&totals).filter(|_| self.line) {
            failure::say(format_args!("{line}"));
        }
    }

    fn write(&mut self, totals: &[(String, Counters)], counted: bool, status: Result<&u8, &Failure>) {
        if let Some(output) = self.output.take() {
            let mut about = json!({
                "command": self.command,
                "status": status.ok(),
                "seconds": self.begun.elapsed().as_secs_f64(),
                "counted": counted,
            });
            if let Err(failure) = status {
                about["error"] = json!(failure.to_string());
            }
            // The program has ended, and nobody is left whose concern this is but the user.
            if let Err(e) = output.end(&format!("{:#}\n", value(about, totals))) {
                failure::say(format_args!("warning: --summary: cannot be written: {e}"));
            }
        }
    }
}

/// Where the summary goes.
struct Output {
    file: File,
    /// The file beside it in which it is written, and the place that this gets at the end. None: not a file
    /// that another one can take the place of.
    place: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// What is there stays until the end.
    fn begin(path: &Path) -> io::Result<Self> {
        // The name may be a link, as it may be one to a file that is yet to be made.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file()) {
            return Ok(Self { file: File::options().write(true).open(path)?, place: None });
        }
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}.new", std::process::id()));
        let file = File::create(&new)?;
        Ok(Self { file, place: Some((new.into(), path)) })
    }

    fn end(mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        match &self.place {
            Some((new, path)) => fs::rename(new, path),
            None => Ok(()),
        }
        .map(|()| self.place = None)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((new, _)) = &self.place {
            let _ = fs::remove_file(new);
        }
    }
}

/// How something went, in all.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ways {
    /// Packets and frames.
    network: u64,
    /// Packets through memory that two processes share.
    shared: u64,
    /// Operations in memory of another process that is mapped: shared by the program, or moved there.
    mapped: u64,
    /// Operations whose bytes the kernel copied.
    kernel: u64,
}

impl Ways {
    fn of(counters: &Counters) -> Self {
        let (frames, shared) = (counters.tx_frames.get(), counters.tx_local.get());
        let (direct, kernel) = (counters.tx_direct.get(), counters.tx_kernel.get());
        // Counters are read one after the other.
        Self { network: frames.saturating_sub(shared), shared, mapped: direct.saturating_sub(kernel), kernel }
    }

    fn json(&self) -> Value {
        json!({
            "network_packets": self.network,
            "shared_memory_packets": self.shared,
            "mapped_memory_operations": self.mapped,
            "kernel_copy_operations": self.kernel,
        })
    }
}

fn value(about: Value, totals: &[(String, Counters)]) -> Value {
    let device = |(name, counters): &(String, Counters)| {
        let all: Map<_, _> =
            counters.all().into_iter().map(|(name, _, value)| (name.to_owned(), value.into())).collect();
        let retries = json!({
            "packets_sent_again": counters.tx_repeated.get(),
            "timeouts": counters.timeouts.get(),
            "receiver_not_ready": counters.not_ready_received.get(),
        });
        let value = json!({
            "queue_pairs": counters.queue_pairs.get(),
            "messages_sent": counters.tx_messages.get(),
            "bytes_sent": counters.tx_bytes.get(),
            "messages_received": counters.rx_messages.get(),
            "bytes_received": counters.rx_bytes.get(),
            "ways": Ways::of(counters).json(),
            "retries": retries,
            "counters": all,
        });
        (name.clone(), value)
    };
    let mut about = about;
    about["devices"] = Value::Object(totals.iter().map(device).collect());
    about
}

/// The line; none where nothing used verbs.
fn line(totals: &[(String, Counters)]) -> Option<String> {
    let sum = |of: fn(&Counters) -> u64| totals.iter().map(|(_, counters)| of(counters)).sum::<u64>();
    let pairs = sum(|counters| counters.queue_pairs.get());
    if pairs == 0 {
        return None;
    }
    let (sent, received) = (sum(|counters| counters.tx_bytes.get()), sum(|counters| counters.rx_bytes.get()));
    let ways = [
        (sum(|counters| Ways::of(counters).network), "packet", "by the network"),
        (sum(|counters| Ways::of(counters).shared), "packet", "through shared memory"),
        (sum(|counters| Ways::of(counters).mapped), "operation", "in mapped memory of the peer"),
        (sum(|counters| Ways::of(counters).kernel), "operation", "by copies of the kernel"),
    ];
    let ways: Vec<_> = ways
        .into_iter()
        .filter(|(count, _, _)| *count > 0)
        .map(|(count, what, how)| format!("{} {how}", counted(count, what)))
        .collect();
    let retries = [
        (sum(|counters| counters.tx_repeated.get()), "packet", " sent again"),
        (sum(|counters| counters.timeouts.get()), "timeout", ""),
        (sum(|counters| counters.not_ready_received.get()), "message", " before their receives"),
    ];
    let retries: Vec<_> = retries
        .into_iter()
        .filter(|(count, _, _)| *count > 0)
        .map(|(count, what, how)| counted(count, what) + how)
        .collect();
    let join = |parts: Vec<String>, none: &str| match parts.is_empty() {
        true => none.to_owned(),
        false => parts.join(", "),
    };
    Some(format!(
        "{}, {} sent, {} received: {}; {}",
        counted(pairs, "queue pair"),
        bytes(sent),
        bytes(received),
        join(ways, "no packets"),
        join(retries, "no retries"),
    ))
}

fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// In the largest unit that it has one of.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return counted(number, "byte");
    }
    let mut value = number as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(bytes(1023), "1,023 bytes");
        assert_eq!(bytes(327_680_000), "312.5 MiB");
    }

    #[test]
    fn a_line_where_something_used_verbs() {
        let counters = Counters::private();
        let total = || counters.all().iter().map(|(_, _, value)| value).sum::<u64>();
        assert_eq!((total(), line(&[])), (0, None));
        counters.queue_pairs.add(2);
        counters.tx_bytes.add(2048);
        counters.tx_frames.add(5);
        counters.tx_local.add(4);
        counters.tx_direct.add(1000);
        counters.tx_kernel.add(1);
        counters.timeouts.add(1);
        let totals = [("a0".to_owned(), counters)];
        assert_eq!(
            line(&totals).as_deref(),
            Some(
                "2 queue pairs, 2.0 KiB sent, 0 bytes received: 1 packet by the network, 4 packets through shared memory, \
                 999 operations in mapped memory of the peer, 1 operation by copies of the kernel; 1 timeout"
            )
        );
        let said = value(json!({"status": 0}), &totals);
        assert_eq!(said["devices"]["a0"]["ways"]["mapped_memory_operations"], 999);
        assert_eq!(said["devices"]["a0"]["counters"]["tx_frames"], 5);
        assert_eq!(said["status"], 0);
    }
}
