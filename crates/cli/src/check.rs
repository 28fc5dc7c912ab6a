//! `adverb run --check` and `adverb check list`: what a program does wrong with verbs.

use crate::failure::Failure;
use adverb_watch::check::setting::{self, FindingFormat};
use adverb_watch::check::{list, suppressions};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

/// The options of a check.
#[derive(clap::Args)]
pub(crate) struct CheckOptions {
    /// Look for mistakes in the use of verbs and rdma_cm, and say each on standard error ('adverb check list'
    /// has all)
    #[arg(long, value_name = "WORDS", value_parser = words, num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    check: Option<String>,

    /// End with this status if there are findings
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u8), requires = "check")]
    check_exit: Option<u8>,

    /// The file with findings that are not shown: a line each, NAME [PROGRAM] [FUNCTION or LIBRARY], with *
    /// for any. Leaks go by where the object was made
    #[arg(long, value_name = "FILE", value_parser = suppressed, requires = "check")]
    check_suppress: Option<String>,

    /// The format of findings: text for people, or a JSON object in each line
    #[arg(long, value_name = "FORMAT", value_parser = FindingFormat::NAMES, requires = "check")]
    check_format: Option<String>,

    /// Write findings into this file in place of standard error; %p is the process id
    #[arg(long, value_name = "FILE", requires = "check")]
    check_file: Option<String>,
}

fn words(list: &str) -> Result<String, String> {
    setting::words(list).map(|_| list.to_owned())
}

fn suppressed(file: &str) -> Result<String, String> {
    suppressions(file).map(|_| file.to_owned())
}

impl CheckOptions {
    /// What to say where there is no program of this name: it may be a profile.
    pub(crate) fn meant(&self, name: &OsStr) -> Option<Failure> {
        let profile = name.to_str().filter(|name| setting::words(name).is_ok())?;
        let is_alone = self.check.as_deref() == Some("on");
        is_alone.then(|| {
            Failure::usage(format!(
                "there is no program {profile:?}; the profile is --check={profile}, with the sign ="
            ))
        })
    }

    /// The check of a run, whose file is empty now if its processes share it.
    pub(crate) fn begin(&self) -> Result<Option<Check>, Failure> {
        let Some(words) = &self.check else { return Ok(None) };
        let folder = std::env::current_dir().unwrap_or_default();
        let absolute = |file: &String| folder.join(file).display().to_string();
        let mut variables = vec![(setting::CHECK, words.clone())];
        if let Some(file) = &self.check_file {
            let whole = absolute(file);
            let is_shared = !whole.contains("%p");
            if is_shared && std::fs::metadata(&whole).map_or(true, |there| there.is_file() || there.is_dir())
            {
                File::create(&whole).map_err(|error| {
                    Failure::own(format!("--check-file {file}: cannot be written: {error}"))
                })?;
            }
            variables.push((setting::FILE, whole));
        }
        variables.extend(self.check_suppress.as_ref().map(|file| (setting::SUPPRESS, absolute(file))));
        variables.extend(self.check_format.clone().map(|format| (setting::FORMAT, format)));
        let exit = match self.check_exit {
            Some(code) => {
                let count = Count::new().map_err(|error| {
                    Failure::own(format!("--check-exit: findings cannot be counted: {error}"))
                })?;
                variables.push((setting::COUNT, count.name()));
                Some((code, count))
            }
            None => None,
        };
        Ok(Some(Check { variables, exit }))
    }
}

/// The check of a run.
pub(crate) struct Check {
    variables: Vec<(&'static str, String)>,
    exit: Option<(u8, Count)>,
}

impl Check {
    /// What the program finds in its environment.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        self.variables.clone()
    }

    /// The status of the run, if it is another than that of the program.
    pub(crate) fn status(&self) -> Option<u8> {
        self.exit.as_ref().filter(|(_, count)| count.has_findings()).map(|(code, _)| *code)
    }
}

/// A file in memory with a byte for each finding of any process of the run.
struct Count(File);

impl Count {
    fn new() -> io::Result<Self> {
        // SAFETY: a constant C string, and a flag.
        let descriptor = unsafe { libc::memfd_create(c"adverb-findings".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }.into()))
    }

    /// The name by which other processes open it.
    fn name(&self) -> String {
        Path::new("/proc")
            .join(std::process::id().to_string())
            .join("fd")
            .join(self.0.as_raw_fd().to_string())
            .display()
            .to_string()
    }

    fn has_findings(&self) -> bool {
        self.0.metadata().is_ok_and(|status| status.len() > 0)
    }
}

/// Explain the findings that `adverb run --check` can make
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the findings by name: their meanings and remedies
    List,
}

/// Carries the command out.
pub(crate) fn check(args: &Args) -> Result<ExitCode, Failure> {
    let Action::List = args.action;
    io::stdout()
        .write_all(list().as_bytes())
        .map_err(|error| Failure::own(format!("cannot write to standard output: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_processes_count_by_the_name() {
        let count = Count::new().expect("a file in memory");
        assert!(!count.has_findings());
        let mut other =
            File::options().append(true).create(true).open(count.name()).expect("it can be opened");
        other.write_all(b".").expect("it can be written");
        assert!(count.has_findings());
    }
}
