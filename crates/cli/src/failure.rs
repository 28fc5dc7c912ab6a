//! How a command fails: a text that helps, and an exit status.
//!
//! 2 when the command was called wrongly, 1 when it failed. `run` ends with the status of its program, which
//! may be any; so what it has to say for itself is as of `env`, `nice` and `timeout`.

use std::fmt;
use std::io::{self, Write};

/// A line of the command's own on standard error. The terminal may be gone: that is no failure of the
/// command.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "adverb: {text}");
}

/// Why a command ended without doing its work.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Called wrongly, as with a wrong option.
    Usage,
    /// The command itself failed, before any program was started.
    Own,
    /// The program was found but cannot be run.
    CannotRun,
    /// There is no such program.
    NotFound,
}

impl Failure {
    /// The command itself failed.
    pub(crate) fn own(message: impl Into<String>) -> Self {
        Self { kind: Kind::Own, message: message.into() }
    }

    /// The command was called wrongly.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, message: message.into() }
    }

    /// The program exists but cannot be run.
    pub(crate) fn cannot_run(message: impl Into<String>) -> Self {
        Self { kind: Kind::CannotRun, message: message.into() }
    }

    /// There is no such program.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { kind: Kind::NotFound, message: message.into() }
    }

    /// The exit status of this process; `runs` says whether it runs a program and ends as that does.
    pub(crate) fn status(&self, runs: bool) -> u8 {
        match (self.kind, runs) {
            (Kind::Usage, _) => 2,
            (_, false) => 1,
            (Kind::Own, true) => 125,
            (Kind::CannotRun, true) => 126,
            (Kind::NotFound, true) => 127,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
