//! `ADVERB_LOG`: what the engine has to say, to standard error or a file. Silent unless asked, but for what is wrong with a
//! variable of ours or its name; never on the fast path.

use crate::cancel::Deferred;
use crate::setting;
use crate::signals::without_sigpipe;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing (the default).
    Off = 1,
    /// What stops something from working.
    Error,
    /// What is not as a user would expect, and why a queue pair's change was refused.
    Warn,
    /// Connections, why other verbs and posted requests were refused, and the counters at the end.
    Info,
    /// Each packet, and what is done in memory of another process in its place.
    Packets,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();

/// Whether messages of this level are written. Cheap.
#[inline]
pub fn enabled(level: Level) -> bool {
    let now = LEVEL.load(Ordering::Relaxed);
    (if now == 0 { read() } else { now }) >= level as u8
}

/// `ADVERB_LOG=LEVEL` or `LEVEL:FILE`.
#[cold]
fn read() -> u8 {
    let _whole = Deferred::new();
    let text = setting::variable("ADVERB_LOG").unwrap_or_default();
    let (level, file) = parse(&text);
    // A word that means nothing here was still meant to make us speak.
    let level = if text.trim().is_empty() { Level::Off } else { level.unwrap_or(Level::Info) };
    FILE.get_or_init(|| {
        let file = file.filter(|file| !file.is_empty())?;
        std::fs::File::options().append(true).create(true).open(setting::file(file)).ok()
    });
    LEVEL.store(level as u8, Ordering::Relaxed);
    level as u8
}

/// A level, if the word is one, and a file, if there is one.
pub(crate) fn parse(text: &str) -> (Option<Level>, Option<&str>) {
    let (level, file) = text.split_once(':').map_or((text, None), |(level, file)| (level, Some(file)));
    let level = match level.trim() {
        "error" => Level::Error,
        "warn" => Level::Warn,
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
    let _whole = Deferred::new();
    let line = format!("adverb[{}] {name}: {text}\n", std::process::id());
    // A log that cannot be written is not the program's concern.
    let _ = match FILE.get() {
        Some(Some(file)) => (&*file).write_all(line.as_bytes()),
        _ => write_to_stderr(line.as_bytes()),
    };
}

/// One system call without a lock, which a child of fork might find taken; a program may live longer than who reads its errors.
fn write_to_stderr(line: &[u8]) -> std::io::Result<()> {
    without_sigpipe(|| {
        // SAFETY: bytes that are borrowed.
        match unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        }
    })
}

/// Writes one line, whatever the level.
#[cold]
pub fn say(text: Arguments<'_>) {
    // Where it goes is known once the variable has been read.
    enabled(Level::Warn);
    write(Level::Warn, text);
}

/// `log!(Warn, "…", …)`: a line of the log, formatted only if somebody asked for that level.
#[macro_export]
macro_rules! log {
    ($level:ident, $($text:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, format_args!($($text)*));
        }
    };
}
