//! `adverb run --log` and `--pcap`: what the engine says of itself in the programs of a run, and what it
//! writes down.

use adverb_core::{log, setting};
use std::path::{Path, PathBuf};

const LOG: &str = "ADVERB_LOG";
const PCAP: &str = "ADVERB_PCAP";

/// The options of the log and of the capture.
#[derive(clap::Args)]
pub(crate) struct LogOptions {
    /// The level of the engine's log on standard error: off, error, warn, info or packets; LEVEL:FILE says it
    /// to a file (%p: process id). Default: ADVERB_LOG, else warn, with --rsockets off
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    log: Option<String>,

    /// Write everything sent and received into this file, for Wireshark (pcapng); %p is the process id
    #[arg(long, value_name = "FILE", value_parser = capture)]
    pcap: Option<String>,

    /// Keep the files of devices in this folder, where they stay: for programs that make system calls
    /// themselves, as node_exporter --path.sysfs=FOLDER/sys
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
}

fn level(text: &str) -> Result<String, String> {
    setting::check(LOG, text).map(|()| text.to_owned())
}

fn capture(text: &str) -> Result<String, String> {
    setting::check(PCAP, text).map(|()| text.to_owned())
}

impl LogOptions {
    /// Where the files of devices are to be.
    pub(crate) fn files(&self) -> Option<&Path> {
        self.files.as_deref()
    }

    /// What the program finds in its environment. With rsockets, nobody is warned unasked: where a peer has
    /// none, sockets are ordinary ones, and that is no failure.
    pub(crate) fn variables(&self, with_rsockets: bool, with_faults: bool) -> Vec<(&'static str, String)> {
        let folder = std::env::current_dir().unwrap_or_default();
        let is_set = setting::variable(LOG).is_some_and(|value| !value.trim().is_empty());
        // Faults that the user has asked for are to be seen, each of them.
        // Else a request that fails is to have a reason.
        let default = match (is_set || with_rsockets, with_faults) {
            (true, _) => None,
            (false, true) => Some("warn".to_owned()),
            (false, false) => Some(log::unasked()),
        };
        let level = self.log.as_deref().map(|level| absolute(LOG, level, &folder)).or(default);
        let capture = self.pcap.as_deref().map(|file| absolute(PCAP, file, &folder));
        [(LOG, level), (PCAP, capture)].into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn absolute(name: &str, value: &str, folder: &Path) -> String {
    setting::with_absolute_file(name, value, folder).unwrap_or_else(|| value.to_owned())
}
