//! How a command fails: a text that helps, and the exit status that `env`, `nice` and `timeout` use too.

use std::fmt;

/// Exit status when the command was called wrongly, as of a wrong option.
const USAGE: u8 = 2;
/// Exit status when the command itself failed, before any program was started.
const OWN_FAILURE: u8 = 125;
/// Exit status when the program was found but cannot be run.
const CANNOT_RUN: u8 = 126;
/// Exit status when there is no such program.
const NOT_FOUND: u8 = 127;

/// Why a command ended without doing its work.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status of this process.
    pub(crate) status: u8,
    message: String,
}

impl Failure {
    /// The command itself failed.
    pub(crate) fn own(message: impl Into<String>) -> Self {
        Self { status: OWN_FAILURE, message: message.into() }
    }

    /// The command was called wrongly.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { status: USAGE, message: message.into() }
    }

    /// The program exists but cannot be run.
    pub(crate) fn cannot_run(message: impl Into<String>) -> Self {
        Self { status: CANNOT_RUN, message: message.into() }
    }

    /// There is no such program.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { status: NOT_FOUND, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
