//! `adverb env`: what `adverb run` sets, for doing the same by hand.

use crate::checkers::{self, Checker};
use crate::environment::{self, Front};
use crate::failure::Failure;
use crate::libraries;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

/// Prints the export lines that do by hand what `adverb run` does
///
/// For shells, debuggers, and service files: `eval "$(adverb env)"` makes every RDMA program that is started from
/// this shell use adverb. Setuid, static and musl programs ignore these variables; `adverb run` says so, this does not.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The devices that programs see, as a comma list (roce0, iwarp0)
    #[arg(long, short, value_name = "DEVICE", value_parser = environment::device_list)]
    pub(crate) device: Option<String>,

    /// Make rsockets of programs' TCP and UDP sockets: they go over RDMA
    #[arg(long)]
    rsockets: bool,
}

/// Prints the lines.
pub(crate) fn env(args: &Args) -> Result<ExitCode, Failure> {
    let folder = libraries::folder()?;
    let front = Front::new(&folder, args.rsockets)?;
    let mut lines = Vec::new();
    for (name, entries) in [
        (environment::LIBRARY_PATH, std::slice::from_ref(&front.library_path)),
        (environment::PRELOAD, &front.preload),
    ] {
        let value: Vec<&[u8]> = entries.iter().map(|entry| entry.as_bytes()).collect();
        lines.extend_from_slice(format!("export {name}=").as_bytes());
        quote(OsStr::from_bytes(&value.join(&b':')), &mut lines);
        lines.extend_from_slice(format!("${{{name}:+:${name}}}\n").as_bytes());
    }
    for Checker { variable, option, separator } in checkers::all(&folder) {
        lines.extend_from_slice(format!("export {variable}=").as_bytes());
        quote(&option, &mut lines);
        let separator = char::from(separator);
        lines.extend_from_slice(format!("\"${{{variable}:+{separator}${variable}}}\"\n").as_bytes());
    }
    if let Some(devices) = &args.device {
        lines.extend_from_slice(format!("export {}={devices}\n", environment::DEVICE).as_bytes());
    }
    io::stdout()
        .write_all(&lines)
        .map_err(|e| Failure::own(format!("cannot write to standard output: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Appends `value` in single quotes, as a POSIX shell reads it.
fn quote(value: &OsStr, to: &mut Vec<u8>) {
    to.push(b'\'');
    for &byte in value.as_bytes() {
        match byte {
            b'\'' => to.extend_from_slice(b"'\\''"),
            other => to.push(other),
        }
    }
    to.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_image_has_the_same_environment() {
        let image = include_str!("../../../packaging/Containerfile");
        let folder = Path::new("/usr/lib/adverb");
        let front = Front::new(folder, false).expect("a plain path");
        let mut expected = vec![
            (environment::LIBRARY_PATH, front.library_path_before(None)),
            (environment::PRELOAD, front.preload_before(None)),
        ];
        let mut all = checkers::all(folder);
        // Its file is there in the image alone.
        if all.iter().all(|checker| checker.variable != "VALGRIND_OPTS") {
            let option = "--suppressions=/usr/share/adverb/valgrind.supp".into();
            all.push(Checker { variable: "VALGRIND_OPTS", option, separator: b' ' });
        }
        expected.extend(all.into_iter().map(|checker| (checker.variable, checker.option)));
        for (name, value) in expected {
            let set = format!("{name}={}", value.to_str().expect("text"));
            assert!(image.split_whitespace().any(|word| word == set), "the image lacks {set}");
        }
    }

    #[test]
    fn quotes_survive_a_shell() {
        let mut text = Vec::new();
        quote(OsStr::new("it's $HOME"), &mut text);
        assert_eq!(text, b"'it'\\''s $HOME'");
    }
}
