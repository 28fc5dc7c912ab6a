//! `adverb run --trace`: where the calls of a program go, and what a file needs when the run begins and ends. `adverb trace`: what becomes of such files.

mod merge;
mod page;
mod record;
mod source;

use crate::failure::Failure;
use adverb_core::clock;
use adverb_watch::setting::{self, Format, Target};
use record::Trace as Recorded;
use source::Source;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;

/// The options of a trace.
#[derive(clap::Args)]
pub(crate) struct Traced {
    /// Write every call of verbs and rdma_cm into this file, with arguments, result and times; %p is the process id
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,

    /// The format: lines for people, lines of JSON, or events for Perfetto; by default as the ending says (.jsonl: json, .json: chrome)
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json", "chrome"], requires = "trace")]
    trace_format: Option<String>,

    /// The calls in it, with * at the end for all that begin so
    #[arg(long, value_name = "CALLS", value_parser = calls, requires = "trace")]
    trace_only: Option<String>,
}

fn calls(list: &str) -> Result<String, String> {
    setting::only(list).map(|_| list.to_owned())
}

/// Whether a name is that of a descriptor: what it stands for is another thing in each process, and would be cut.
fn names_descriptor(file: &str) -> bool {
    let names = ["-", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    names.contains(&file) || file.starts_with("/dev/fd/") || file.starts_with("/proc/")
}

impl Traced {
    /// The trace of a run, whose file is empty now if its processes share it.
    pub(crate) fn begin(&self) -> Result<Option<Trace>, Failure> {
        let Some(file) = &self.trace else { return Ok(None) };
        let said = self.trace_format.as_deref().and_then(Format::from_name);
        let format = said.unwrap_or_else(|| Format::of_file(file));
        let folder = std::env::current_dir().unwrap_or_default();
        let target = Target { file: folder.join(file).display().to_string(), format };
        if target.is_own() {
            let folder = Path::new(&target.file).parent().unwrap_or(Path::new("/"));
            if !folder.is_dir() {
                return Err(Failure::own(format!("--trace {file}: there is no folder {}", folder.display())));
            }
        } else if names_descriptor(file) {
            let why = "a trace goes into a file, not into what a process has open";
            return Err(Failure::own(format!("--trace {file}: {why}")));
        } else if std::fs::metadata(&target.file).map_or(true, |status| status.is_file()) {
            // A pipe or a device has nothing to cut, and opening it may wait for a reader.
            File::create(&target.file)
                .map_err(|error| Failure::own(format!("--trace {file}: cannot be written: {error}")))?;
        }
        Ok(Some(Trace { target, only: self.trace_only.clone(), since: clock::device() }))
    }
}

/// The trace of a run.
pub(crate) struct Trace {
    target: Target,
    only: Option<String>,
    since: u64,
}

impl Trace {
    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let only = self.only.clone().map(|only| (setting::ONLY, only));
        [(setting::TRACE, self.target.value()), (setting::SINCE, self.since.to_string())]
            .into_iter()
            .chain(only)
            .collect()
    }

    /// The run has ended: the list of events, which its processes have shared, ends, too. A process that goes on can still append to it, as readers
    /// of such files do without the end.
    pub(crate) fn end(&self) {
        if self.target.format == Format::Chrome && !self.target.is_own() {
            // A file that nobody can end is read as well.
            let _ = end_list(&self.target.file);
        }
    }
}

/// Put traces together, or show them in a browser
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Put files of one format together, in the order of time, with one clock
    Merge {
        /// Where the result goes: standard output if it is not given
        #[arg(short, long, value_name = "FILE")]
        output: Option<String>,

        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// Make a page of HTML: the sequence of requests, latencies, and who waited for whom
    View {
        /// Where the page goes: standard output if it is not given
        #[arg(short, long, value_name = "FILE")]
        output: Option<String>,

        /// A trace of lines of JSON (.jsonl) or of events (.json)
        #[arg(value_name = "FILE")]
        file: String,
    },
}

/// Carries the command out.
pub(crate) fn trace(args: &Args) -> Result<ExitCode, Failure> {
    let (text, output) = match &args.action {
        Action::Merge { output, files } => {
            let sources: Result<Vec<_>, _> = files.iter().map(|file| Source::read(file)).collect();
            (sources.and_then(merge::merge).map_err(Failure::own)?, output)
        }
        Action::View { output, file } => {
            let recorded = Source::read(file)
                .and_then(|source| Recorded::of(&source).map_err(|why| format!("{file}: {why}")));
            (page::page(file, &recorded.map_err(Failure::own)?), output)
        }
    };
    let written = match output {
        Some(file) => std::fs::write(file, text).map_err(|error| format!("{file}: {error}")),
        None => std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| format!("cannot write to standard output: {error}")),
    };
    written.map(|()| ExitCode::SUCCESS).map_err(Failure::own)
}

/// Ends a list of events, whose last one has a comma behind it.
fn end_list(name: &str) -> std::io::Result<()> {
    let mut file = File::options().read(true).write(true).open(name)?;
    let length = file.metadata()?.len();
    if length == 0 {
        return file.write_all(b"[]\n");
    }
    let mut end = [0; 2];
    file.seek(SeekFrom::Start(length.saturating_sub(2)))?;
    file.read_exact(&mut end)?;
    if &end == b",\n" {
        file.seek(SeekFrom::Start(length - 2))?;
        file.write_all(b"\n]\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_events_ends_once() {
        let name = std::env::temp_dir().join(format!("adverb-trace-{}.json", std::process::id()));
        let name = name.to_str().expect("text");
        for (before, after) in
            [("", "[]\n"), ("[\n{},\n{},\n", "[\n{},\n{}\n]\n"), ("[\n{}\n]\n", "[\n{}\n]\n")]
        {
            std::fs::write(name, before).expect("a file");
            end_list(name).expect("it can be written");
            assert_eq!(std::fs::read_to_string(name).expect("a file"), after);
        }
        std::fs::remove_file(name).expect("it is there");
    }
}
