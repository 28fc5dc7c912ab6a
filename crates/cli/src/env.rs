//! `adverb env`: what `adverb run` sets, for doing the same by hand.

use crate::checkers::{self, Checker};
use crate::environment::{self, Front};
use crate::failure::{self, Failure};
use crate::files;
use crate::libraries;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the export lines that do by hand what `adverb run` does
///
/// For shells, debuggers, and service files: `eval "$(adverb env)"` makes every RDMA program that is started
/// from this shell use adverb. Setuid, static and musl programs ignore these variables; `adverb run` says so,
/// this does not.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) devices: environment::Devices,

    /// Make rsockets of programs' TCP and UDP sockets: they go over RDMA
    #[arg(long)]
    rsockets: bool,

    /// Write the files of the devices into this folder, where they stay, for programs that look for them
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,
}

/// What a shell takes for a remark.
const NO_FILES: &[u8] =
    b"# Programs that look for files of devices themselves find none: adverb env --files FOLDER writes them\n";

/// Prints the lines.
pub(crate) fn env(args: &Args) -> Result<ExitCode, Failure> {
    let folder = libraries::folder()?;
    let front = Front::new(&folder, args.rsockets)?;
    for warning in environment::warnings(&args.devices) {
        failure::say(format_args!("warning: {warning}"));
    }
    let mut lines = Vec::new();
    match &args.files {
        Some(place) => {
            let place = files::write(place, args.devices.list()).map_err(|e| {
                Failure::own(format!("cannot write the files of devices to {}: {e}", place.display()))
            })?;
            export(environment::FILES, place.as_os_str(), &mut lines);
        }
        None => lines.extend_from_slice(NO_FILES),
    }
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
    if let Some(devices) = args.devices.list() {
        export(environment::DEVICE, OsStr::new(devices), &mut lines);
    }
    io::stdout()
        .write_all(&lines)
        .map_err(|e| Failure::own(format!("cannot write to standard output: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Appends the line that sets a variable.
fn export(name: &str, value: &OsStr, to: &mut Vec<u8>) {
    to.extend_from_slice(format!("export {name}=").as_bytes());
    quote(value, to);
    to.push(b'\n');
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
