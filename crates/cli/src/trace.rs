//! `adverb run --trace`: where the calls of a program go, and what a file needs when the run begins and ends.
//! `adverb trace`: what becomes of such files.

mod merge;
mod page;
mod passage;
mod record;
mod source;

use crate::failure::{self, Failure};
use adverb_core::clock;
use adverb_watch::setting::{self, Format, Target};
use record::Trace as Recorded;
use source::Source;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;

/// The options of a trace.
#[derive(clap::Args)]
pub(crate) struct TraceOptions {
    /// Write every call of verbs and rdma_cm into this file, with arguments, result and times; %p is the
    /// process id
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,

    /// The format: lines for people, lines of JSON, events for Perfetto, or a ring; by default as the ending
    /// says (.jsonl: json, .json: chrome, .ring: ring)
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json", "chrome", "ring"], requires = "trace")]
    trace_format: Option<String>,

    /// The calls in it, with * at the end for all that begin so; packets means packets
    #[arg(long, value_name = "CALLS", value_parser = calls, requires = "trace")]
    trace_only: Option<String>,

    /// How large a ring is: its oldest records are overwritten [default: 64]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1 << 16), requires = "trace")]
    trace_size: Option<u32>,
}

fn calls(list: &str) -> Result<String, String> {
    setting::only(list).map(|_| list.to_owned())
}

/// Whether a name is that of a descriptor: what it stands for is another thing in each process, and would be
/// cut.
fn names_descriptor(file: &str) -> bool {
    let names = ["-", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
    names.contains(&file) || file.starts_with("/dev/fd/") || file.starts_with("/proc/")
}

impl TraceOptions {
    /// The trace of a run, whose file is empty now if its processes share it.
    pub(crate) fn begin(&self) -> Result<Option<Trace>, Failure> {
        let Some(file) = &self.trace else { return Ok(None) };
        let said = self.trace_format.as_deref().and_then(Format::from_name);
        let format = said.unwrap_or_else(|| Format::of_file(file));
        let folder = std::env::current_dir().unwrap_or_default();
        let target = Target { file: folder.join(file).display().to_string(), format };
        if let (Some(size), false) = (self.trace_size, format == Format::Ring) {
            return Err(Failure::usage(format!(
                "--trace-size {size}: only a ring has a size, and --trace {file} is {}; name the file FILE.ring, add --trace-format ring, or leave the size out",
                format.name()
            )));
        }
        if target.is_own() {
            let folder = Path::new(&target.file).parent().unwrap_or(Path::new("/"));
            if !folder.is_dir() {
                return Err(Failure::own(format!("--trace {file}: there is no folder {}", folder.display())));
            }
        } else if format == Format::Ring
            && Path::new(&target.file).exists()
            && !Path::new(&target.file).is_file()
        {
            return Err(Failure::own(format!("--trace {file}: a ring is a file")));
        } else if names_descriptor(file) {
            let why = "a trace goes into a file, not into what a process has open";
            return Err(Failure::own(format!("--trace {file}: {why}")));
        } else if std::fs::metadata(&target.file).map_or(true, |there| there.is_file() || there.is_dir()) {
            // A pipe or a device has nothing to cut, and opening it may wait for a reader.
            // A run that still writes into a ring of this name goes on with its own.
            if format == Format::Ring {
                let _ = std::fs::remove_file(&target.file);
            }
            File::create(&target.file)
                .map_err(|error| Failure::own(format!("--trace {file}: cannot be written: {error}")))?;
        }
        let (only, size) = (self.trace_only.clone(), self.trace_size);
        if only.as_deref().is_some_and(|only| only.split(',').all(|name| name.trim().is_empty())) {
            return Err(Failure::own(
                "--trace-only names nothing: it takes a comma list of calls, or packets",
            ));
        }
        Ok(Some(Trace { target, only, size, since: clock::device() }))
    }
}

/// The trace of a run.
pub(crate) struct Trace {
    target: Target,
    only: Option<String>,
    size: Option<u32>,
    since: u64,
}

impl Trace {
    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let only = self.only.clone().map(|only| (setting::ONLY, only));
        let size = self.size.map(|size| (setting::SIZE, size.to_string()));
        [(setting::TRACE, self.target.value()), (setting::SINCE, self.since.to_string())]
            .into_iter()
            .chain(only)
            .chain(size)
            .collect()
    }

    /// The run has ended: the list of events, which its processes have shared, ends, too. A process that goes
    /// on can still append to it, as readers of such files do without the end.
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
    /// Put files of one format together, in the order of time, with one clock; make another format of rings
    Merge {
        /// The format of what is made of rings; by default as the ending of the result says
        #[arg(long, value_name = "FORMAT", value_parser = ["text", "json", "chrome"])]
        format: Option<String>,

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

        /// A ring, or a trace of lines of JSON (.jsonl) or of events (.json)
        #[arg(value_name = "FILE")]
        file: String,
    },
}

/// Carries the command out.
pub(crate) fn trace(args: &Args) -> Result<ExitCode, Failure> {
    let read = |file: &String, wanted| {
        let source = Source::read(file, wanted)?;
        if source.missing > 0 {
            failure::say(format_args!(
                "warning: {file}: records that found no place or are cut, and so are missing: {}",
                source.missing
            ));
        }
        Ok(source)
    };
    match &args.action {
        Action::Merge { format, output, files } => {
            let said = match format.as_deref().and_then(Format::from_name) {
                Some(said) => Some(said),
                None => output.as_deref().map_or(Ok(None), format_of).map_err(Failure::own)?,
            };
            refuse_to_overwrite(output.as_deref(), files)?;
            let wanted = said.unwrap_or(Format::Text);
            let sources: Result<Vec<_>, _> = files.iter().map(|file| read(file, wanted)).collect();
            let sources = sources.map_err(Failure::own)?;
            if let Some(said) = said
                && let Some((file, source)) =
                    files.iter().zip(&sources).find(|(_, source)| source.format != said)
            {
                let (is, wanted) = (source.format.name(), said.name());
                return Err(Failure::own(format!(
                    "{file} is {is}, and the result would be {wanted}: only a ring becomes another format"
                )));
            }
            let merged = merge::merge(sources).map_err(Failure::own)?;
            write(output.as_deref(), |output| merged.write(output))
        }
        Action::View { output, file } => {
            refuse_to_overwrite(output.as_deref(), std::slice::from_ref(file))?;
            let recorded = read(file, Format::Json)
                .and_then(|source| Recorded::of(&source).map_err(|why| format!("{file}: {why}")));
            let page = page::page(file, &recorded.map_err(Failure::own)?);
            write(output.as_deref(), |output| output.write_all(page.as_bytes()))
        }
    }
}

/// The format of a result, by its name; none of a name that tells of none.
fn format_of(name: &str) -> Result<Option<Format>, String> {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match (Format::of_file(name), ending) {
        (Format::Ring, _) => {
            Err(format!("{name}: only a run writes a ring; a result is .txt, .jsonl or .json"))
        }
        (_, "html" | "htm") => Err(format!("{name}: adverb trace view makes a page")),
        (Format::Text, "txt") => Ok(Some(Format::Text)),
        (Format::Text, _) => Ok(None),
        (format, _) => Ok(Some(format)),
    }
}

/// Refuses a result that would take the place of one of `files`, which are read.
fn refuse_to_overwrite(output: Option<&str>, files: &[String]) -> Result<(), Failure> {
    match output.filter(|name| files.iter().any(|file| is_one_file(file, name))) {
        None => Ok(()),
        Some(name) => Err(Failure::own(format!(
            "{name} is one of the files that are read: give the result another name"
        ))),
    }
}

/// Whether two names are of one file.
fn is_one_file(one: &str, other: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let [one, other] = [one, other].map(|name| std::fs::metadata(name).ok());
    one.zip(other)
        .is_some_and(|(one, other)| one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Writes a result into a file, or to standard output.
fn write(
    file: Option<&str>,
    work: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> std::io::Result<()>,
) -> Result<ExitCode, Failure> {
    let (name, output): (_, Box<dyn Write>) = match file {
        None => ("standard output", Box::new(std::io::stdout().lock())),
        Some(name) => {
            let file = File::create(name).map_err(|error| Failure::own(format!("{name}: {error}")))?;
            (name, Box::new(file))
        }
    };
    let mut output = BufWriter::with_capacity(1 << 20, output);
    let written = work(&mut output).and_then(|()| output.flush());
    written
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| Failure::own(format!("cannot write to {name}: {error}")))
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
    fn the_name_of_a_result_says_its_format() {
        let of = |name| format_of(name).map(|format| format.map(Format::name));
        assert_eq!(of("a.json"), Ok(Some("chrome")));
        assert_eq!(of("a.jsonl"), Ok(Some("json")));
        assert_eq!([of("a.txt"), of("/dev/stdout")], [Ok(Some("text")), Ok(None)]);
        assert!(of("a.ring").is_err_and(|why| why.contains("only a run")));
        assert!(of("a.html").is_err_and(|why| why.contains("trace view")));
    }

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
