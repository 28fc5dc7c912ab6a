//! `ADVERB_LOG`: lines of the engine, to standard error or a file. Silent unless asked, except about a
//! variable of ours with a wrong value or name. Never on the fast path.
//!
//! In a program of `adverb run` the engine warns where the user has set no level ([`UNASKED`]). Such a
//! program may know nothing of us, so it must not notice more than lines among its errors. A line never waits
//! for room, goes only to the standard error of the first verbs call, and there are few ([`WarningOutput`]).

use crate::cancel::CancellationGuard;
use crate::setting;
use crate::signals::without_sigpipe;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

mod unasked;

use unasked::WarningOutput;

/// The value of `ADVERB_LOG` that `adverb run` sets where the user has set no level. Behind it and a colon
/// stands which file is the standard error of `adverb run`.
pub const UNASKED: &str = "unasked";

/// The value of `ADVERB_LOG` for a process whose user has set no level, and whose standard error is that of
/// this process ([`UNASKED`]).
pub fn unasked() -> String {
    match unasked::name(libc::STDERR_FILENO) {
        Some(name) => format!("{UNASKED}:{name}"),
        None => UNASKED.to_owned(),
    }
}

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing (the default).
    Off = 1,
    /// Failures that stop something from working.
    Error,
    /// Surprises for a user, and why a queue pair's change was refused.
    Warn,
    /// Connections, why other verbs and posted requests were refused, and the counters at the end.
    Info,
    /// Each packet, and each operation in memory of another process in its place.
    Packets,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
static PLACE: OnceLock<Place> = OnceLock::new();

/// Where lines go.
enum Place {
    /// Standard error.
    Errors,
    /// Standard error of a program whose user has not asked for the lines.
    Unasked(WarningOutput),
    File(LogFile),
}

/// A file of the user's for the lines.
struct LogFile {
    file: std::fs::File,
    name: String,
    /// Standard error, for the one line that says that the file cannot be written.
    errors: WarningOutput,
    is_broken: AtomicBool,
}

impl LogFile {
    fn open(name: &str) -> std::io::Result<Self> {
        let name = setting::file(name);
        let file = std::fs::File::options().append(true).create(true).open(&name)?;
        let errors = WarningOutput::new(libc::STDERR_FILENO, None);
        Ok(Self { file, name, errors, is_broken: AtomicBool::new(false) })
    }

    /// Writes a line. The first that finds no place is told of.
    fn write(&self, line: &str) -> std::io::Result<()> {
        without_sigpipe(|| (&self.file).write_all(line.as_bytes())).inspect_err(|error| {
            if !self.is_broken.swap(true, Ordering::Relaxed) {
                let text = format!(
                    "adverb[{}] warning: ADVERB_LOG: {} cannot be written: {error}; lines of the log are lost\n",
                    std::process::id(),
                    self.name
                );
                // A program without standard error is not told.
                let _ = self.errors.write_one_more(&text);
            }
        })
    }
}

/// Whether messages of this level are written. Cheap.
#[inline]
pub fn enabled(level: Level) -> bool {
    let now = LEVEL.load(Ordering::Relaxed);
    (if now == 0 { read() } else { now }) >= level as u8
}

/// `ADVERB_LOG=LEVEL` or `LEVEL:FILE`.
#[cold]
fn read() -> u8 {
    let _whole = CancellationGuard::new();
    let text = setting::variable("ADVERB_LOG").unwrap_or_default();
    let (level, file) = parse(&text);
    // A word that means nothing here was still meant to make us speak.
    let level = if text.trim().is_empty() { Level::Off } else { level.unwrap_or(Level::Info) };
    PLACE.get_or_init(|| {
        if text.split(':').next().is_some_and(|level| level.trim() == UNASKED) {
            return Place::Unasked(WarningOutput::new(libc::STDERR_FILENO, file));
        }
        let file = file.filter(|file| !file.is_empty()).and_then(|file| LogFile::open(file).ok());
        file.map_or(Place::Errors, Place::File)
    });
    LEVEL.store(level as u8, Ordering::Relaxed);
    level as u8
}

/// A level, if the word is one, and a file, if there is one.
pub(crate) fn parse(text: &str) -> (Option<Level>, Option<&str>) {
    let (level, file) = text.split_once(':').map_or((text, None), |(level, file)| (level, Some(file)));
    let level = match level.trim() {
        "error" => Level::Error,
        "warn" | UNASKED => Level::Warn,
        "info" => Level::Info,
        "packets" => Level::Packets,
        "off" => Level::Off,
        _ => return (None, file),
    };
    (Some(level), file)
}

/// Writes one line. Call it through [`log!`](crate::log!), which looks at the level first.
#[cold]
pub fn write(level: Level, text: Arguments<'_>) {
    let name = match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info | Level::Off => "info",
        Level::Packets => "packet",
    };
    put(name, text, WarningOutput::write);
}

fn put(name: &str, text: Arguments<'_>, unasked: fn(&WarningOutput, &str) -> std::io::Result<()>) {
    let _whole = CancellationGuard::new();
    let line = format!("adverb[{}] {name}: {text}\n", std::process::id());
    // A log that cannot be written is not the program's concern.
    let _ = match PLACE.get() {
        Some(Place::File(to)) => to.write(&line),
        Some(Place::Unasked(to)) => unasked(to, &line),
        Some(Place::Errors) | None => write_to(libc::STDERR_FILENO, line.as_bytes()),
    };
}

/// One system call without a lock, which a child of fork might find taken; a program may live longer than the
/// process that reads its errors.
fn write_to(fd: libc::c_int, line: &[u8]) -> std::io::Result<()> {
    without_sigpipe(|| {
        // SAFETY: bytes that are borrowed.
        match unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    })
}

/// Writes one line, at any level of the log.
#[cold]
pub fn say(text: Arguments<'_>) {
    // Where it goes is known once the variable has been read.
    enabled(Level::Warn);
    put("warning", text, WarningOutput::write_one_more);
}

/// `log!(Warn, "…", …)`: a line of the log, formatted only if the log has that level.
#[macro_export]
macro_rules! log {
    ($level:ident, $($text:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_log_on_a_full_disk_is_told_of_once() {
        let (mut reader, writer) = pipe().unwrap();
        let errors = WarningOutput::new(writer.as_raw_fd(), None);
        let log = LogFile { errors, ..LogFile::open("/dev/full").unwrap() };
        for _ in 0..3 {
            assert_eq!(log.write("lost\n").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        }
        drop((log, writer));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("warning: ADVERB_LOG: /dev/full cannot be written: No space left"), "{text}");
    }
}
