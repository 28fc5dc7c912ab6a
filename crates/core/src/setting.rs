//! The environment variables of the project, read once per engine. All are ignored in setuid programs.

use crate::description;
use crate::log;
use crate::wire;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The value of an environment variable, unless the program runs with more rights than its user
/// (secure_getenv(3)).
pub fn variable(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: a valid C string; the result is read at once, before anything could change the environment in
    // this thread.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_string_lossy().into_owned()) }
    }
}

/// A variable that users set, and the parser by which the engine reads it, too. To the engine, a value that
/// it does not know means that the variable is not set, or as much as can be made of it. The engine says so,
/// once; the command refuses the value ([`wrong`]).
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// The form of the variable's values, for a line of help.
    pub form: &'static str,
    /// The effect of the variable, for the same line.
    pub meaning: &'static str,
    /// The value that counts where it is not set, in words.
    pub default: &'static str,
    /// Every value that it may have, in words; `{devices}` and `{features}` stand for their names.
    allowed: &'static str,
    /// Whether a value means something where there are these devices.
    is_known: fn(&str, &[&str]) -> bool,
}

/// All settings. The manual page and docs/settings.md say more of each.
pub static SETTINGS: [Setting; 17] = [
    Setting {
        name: "ADVERB_DEVICE",
        form: "NAME[@KEY=VALUE,...],...",
        meaning: "the devices that a program sees (--device sets it)",
        default: "roce0",
        allowed: "a comma list of devices: {devices}, or names of your choice with @ and what they are",
        is_known: |text, devices| {
            description::entries_in(text) && description::parse(text, devices).iter().all(Result::is_ok)
        },
    },
    Setting {
        name: "ADVERB_LOG",
        form: "off|error|warn|info|packets",
        meaning: "what the engine says on standard error; LEVEL:FILE to a file (%p: process id)",
        default: "warn in programs of adverb run, else off",
        allowed: "error, warn, info, packets or off, or LEVEL:FILE with a file that can be written",
        is_known: |text, _| {
            let (level, file) = log::parse(text);
            level.is_some() && file.is_none_or(|file| file.is_empty() || can_be_written(file))
        },
    },
    Setting {
        name: "ADVERB_LOCAL",
        form: "auto|strict|off",
        meaning: "how connections go within this host: auto and strict through shared memory, off by the network",
        default: "auto",
        allowed: "auto, strict or off",
        is_known: |text, _| within(text).is_some(),
    },
    Setting {
        name: "ADVERB_PCAP",
        form: "FILE",
        meaning: "everything sent and received, for Wireshark (pcapng); %p is the process id",
        default: "no capture",
        allowed: "a file that can be written",
        is_known: |text, _| can_be_written(text),
    },
    Setting {
        name: "ADVERB_TRACE",
        form: "[text:|json:|chrome:|ring:]FILE",
        meaning: "every call of verbs and rdma_cm (--trace sets it); %p is the process id",
        default: "no trace",
        allowed: "a file that can be written, behind text:, json:, chrome: or ring: if its ending does not say what it is",
        is_known: |text, _| can_be_written(trace_file(text).1),
    },
    Setting {
        name: "ADVERB_TRACE_ONLY",
        form: "CALL[,CALL]",
        meaning: "the calls that a trace has, with * at the end for all that begin so (--trace-only sets it)",
        default: "all calls",
        allowed: "a comma list of calls, as in ibv_post_*,rdma_connect",
        is_known: |text, _| list(text).next().is_some(),
    },
    Setting {
        name: "ADVERB_TRACE_SIZE",
        form: "NUMBER",
        meaning: "MiB of a trace that is a ring (--trace-size sets it)",
        default: "64",
        allowed: "a number from 1 to 65536",
        is_known: |text, _| text.trim().parse().is_ok_and(|size| (1..=1 << 16).contains(&size)),
    },
    Setting {
        name: "ADVERB_FAULT",
        form: "RULE[,RULE]",
        meaning: "calls, completions, packets and more that fail (--fault sets it; adverb fault list has the rules)",
        default: "no faults",
        allowed: "a comma list of rules, as in ibv_reg_mr:ENOMEM@3,completion:RETRY_EXC_ERR@10",
        is_known: |text, _| list(text).next().is_some(),
    },
    Setting {
        name: "ADVERB_SEED",
        form: "NUMBER",
        meaning: "the number from which faults by chance are drawn (--seed sets it)",
        default: "1",
        allowed: "a number from 0 to 18446744073709551615",
        is_known: |text, _| text.trim().parse::<u64>().is_ok(),
    },
    Setting {
        name: "ADVERB_CHECK",
        form: "on|off|PROFILE",
        meaning: "look for mistakes in the use of verbs and rdma_cm (--check sets it; adverb check list has all)",
        default: "off",
        allowed: "on, off, or a profile: mlx5, efa, rxe, siw, strict",
        is_known: |text, _| list(text).next().is_some(),
    },
    Setting {
        name: "ADVERB_CHECK_SUPPRESS",
        form: "FILE",
        meaning: "findings of the check that are not shown (--check-suppress sets it)",
        default: "all are shown",
        allowed: "a file that can be read",
        is_known: |text, _| Path::new(text).is_file(),
    },
    Setting {
        name: "ADVERB_CHECK_FORMAT",
        form: "text|json",
        meaning: "the format of findings (--check-format sets it)",
        default: "text",
        allowed: "text or json",
        is_known: |text, _| ["text", "json"].contains(&text.trim()),
    },
    Setting {
        name: "ADVERB_CHECK_FILE",
        form: "FILE",
        meaning: "the file for findings (--check-file sets it); %p is the process id",
        default: "standard error",
        allowed: "a file that can be written",
        is_known: |text, _| can_be_written(text),
    },
    Setting {
        name: "ADVERB_SPIN",
        form: "MICROSECONDS",
        meaning: "how long a thread may spin after real work",
        default: "0 on up to two processors, else 20",
        allowed: "a number of microseconds",
        is_known: |text, _| microseconds(text).is_some(),
    },
    Setting {
        name: "ADVERB_CRC",
        form: "on|off",
        meaning: "whether iwarp0 asks for checksums",
        default: "on, but not within a host",
        allowed: "on or off",
        is_known: |text, _| switch(text).is_some(),
    },
    Setting {
        name: "ADVERB_WITHOUT",
        form: "FEATURE[,FEATURE]",
        meaning: "what to do without, to test the fallbacks",
        default: "nothing",
        allowed: "a comma list of {features}",
        is_known: |text, _| list(text).all(|name| FEATURES.contains(&name)),
    },
    Setting {
        name: HOST_DEVICES,
        form: "LIBRARY",
        meaning: "the host's libibverbs, whose devices a program sees, too (--with-host-devices sets it)",
        default: "only adverb's devices",
        allowed: "the absolute name of the host's libibverbs.so.1",
        is_known: |text, _| text.starts_with('/') && Path::new(text).is_file(),
    },
];

/// Names the host's libibverbs.
pub const HOST_DEVICES: &str = "ADVERB_HOST_DEVICES";

/// The names that `ADVERB_WITHOUT` may have.
pub const FEATURES: [&str; 15] = [
    "gso",
    "gro",
    "ipv6",
    "netlink",
    "large-fpdu",
    "iwarp-extensions",
    "memfd",
    "cma",
    "kernel-copy",
    "memory-file",
    "mapped-memory",
    "moved-pages",
    "userfaultfd",
    "procmap-query",
    "wchan",
];

/// Each variable whose value means nothing, and a line about it with the values that are allowed; `devices`
/// are those of this build.
pub fn wrong(devices: &[&str]) -> Vec<(&'static str, String)> {
    let look = |setting: &Setting| {
        let text = variable(setting.name).filter(|text| !text.trim().is_empty())?;
        if (setting.is_known)(&text, devices) {
            return None;
        }
        // Of a list of devices, the entry that is wrong.
        let listed = setting.name == "ADVERB_DEVICE";
        if let Some(wrong) =
            description::parse(&text, devices).into_iter().filter(|_| listed).find_map(Result::err)
        {
            return Some((setting.name, format!("{}={text}: {wrong}", setting.name)));
        }
        Some((setting.name, format!("{}={text}: {}", setting.name, setting.wanted(devices))))
    };
    SETTINGS.iter().filter_map(look).collect()
}

/// Whether a variable may have this value, for an option that sets it. Of lists of devices this says nothing.
///
/// # Errors
/// The values that are allowed, in words.
pub fn check(name: &str, text: &str) -> Result<(), String> {
    let setting = SETTINGS.iter().find(|setting| setting.name == name);
    match setting.filter(|setting| !(setting.is_known)(text, &[])) {
        Some(setting) => Err(setting.wanted(&[])),
        None => Ok(()),
    }
}

impl Setting {
    /// The values that the variable may have, where there are these devices.
    fn wanted(&self, devices: &[&str]) -> String {
        let allowed = self
            .allowed
            .replace("{devices}", &devices.join(", "))
            .replace("{features}", &FEATURES.join(", "));
        format!("wanted is {allowed}")
    }
}

/// The beginning of the names of all variables of the project.
const PREFIX: &str = "ADVERB_";

/// Names the folder with the files of a run, which the command makes. The preloaded library knows the
/// variable by the same name.
pub const COUNTER_FILES: &str = "ADVERB_FILES";

/// Variables that the command sets for the programs that it starts.
const FROM_COMMAND: [&str; 4] = [COUNTER_FILES, "ADVERB_RECORD", "ADVERB_TRACE_SINCE", "ADVERB_CHECK_COUNT"];

/// The beginning of the names of variables by which tests instruct their children.
const OF_TESTS: &str = "ADVERB_TEST_";

/// A line for each variable of the environment whose name begins as ours do and is none of ours: it may be
/// mistyped. The line names the nearest variable of ours, or all of them.
pub fn unknown() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mistyped = names.filter_map(|name| unknown_name(&name).filter(|_| variable(&name).is_some()));
    mistyped.collect()
}

fn unknown_name(name: &str) -> Option<String> {
    let known = SETTINGS.iter().map(|setting| setting.name);
    let is_ours = FROM_COMMAND.contains(&name) || name.starts_with(OF_TESTS);
    if !name.starts_with(PREFIX) || is_ours || known.clone().any(|known| known == name) {
        return None;
    }
    // More letters are not mistyped in one word.
    const MOST: usize = 2;
    let nearest = known.clone().min_by_key(|known| distance(known, name));
    let meant = match nearest.filter(|nearest| distance(nearest, name) <= MOST) {
        Some(nearest) => format!("is {nearest} meant?"),
        None => format!("there are {}", known.collect::<Vec<_>>().join(", ")),
    };
    Some(format!("{name} is no variable of adverb and does nothing; {meant}"))
}

/// How many letters have to be put in, left out or replaced to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (place, theirs) in other.bytes().enumerate() {
            let replaced = before + usize::from(letter != theirs);
            before = row[place + 1];
            row[place + 1] = replaced.min(before + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

/// Reports wrong variables once per process, at any level of the log: a variable is set for an effect.
pub(crate) fn say_wrong(devices: &[&str]) {
    // Nothing that a child of fork could find half done.
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        wrong(devices).iter().for_each(|(_, text)| log::say(format_args!("{text}")));
        unknown().iter().for_each(|text| log::say(format_args!("{text}")));
    }
}

/// The entries of a comma list.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The name of a file that this process writes, from the value of a variable: `%p` is the process id. A
/// relative name counts from the folder that the program is in at its first verbs call. In programs of
/// `adverb run`, which makes it absolute, it counts from the folder of the command.
pub fn file(name: &str) -> String {
    name.replace("%p", &std::process::id().to_string())
}

/// The value of a variable of ours for programs that may change their folder: with absolute names of files.
/// None if it has none that is relative.
pub fn with_absolute_file(name: &str, value: &str, folder: &Path) -> Option<String> {
    let (before, file) = match name {
        "ADVERB_LOG" => value.split_once(':').map(|(level, file)| (format!("{level}:"), file))?,
        "ADVERB_PCAP" | "ADVERB_CHECK_FILE" | "ADVERB_CHECK_SUPPRESS" => (String::new(), value),
        "ADVERB_TRACE" => {
            let (format, file) = trace_file(value);
            (format.map_or(String::new(), |format| format!("{format}:")), file)
        }
        _ => return None,
    };
    let is_relative = !file.is_empty() && Path::new(file).is_relative();
    is_relative.then(|| format!("{before}{}", folder.join(file).display()))
}

/// The formats of a trace.
const TRACE_FORMATS: [&str; 4] = ["text", "json", "chrome", "ring"];

/// The format of a trace, where the value of `ADVERB_TRACE` says it, and the file.
pub fn trace_file(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':').filter(|(format, _)| TRACE_FORMATS.contains(format)) {
        Some((format, file)) => (Some(format), file),
        None => (None, text),
    }
}

/// Whether a file of this name could be written, as far as a look at it, or at its folder, tells.
fn can_be_written(name: &str) -> bool {
    let path = Path::new(name);
    let folder = || path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if path.exists() { path } else { folder() };
    // SAFETY: a valid C string.
    let may = |place: &CStr| unsafe {
        libc::faccessat(libc::AT_FDCWD, place.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0
    };
    !path.is_dir() && CString::new(place.as_os_str().as_bytes()).is_ok_and(|place| may(&place))
}

fn microseconds(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

fn switch(text: &str) -> Option<bool> {
    match text.trim() {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn within(text: &str) -> Option<WithinHost> {
    match text.trim() {
        "auto" => Some(WithinHost::Auto),
        "strict" => Some(WithinHost::Strict),
        "off" => Some(WithinHost::Off),
        _ => None,
    }
}

/// How connections and datagrams of RoCE between processes of one host and user go, as the user wants it
/// ([`crate::memory::ways`] decides).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithinHost {
    /// Through shared memory where that can be.
    Auto,
    /// Through shared memory where that can be, with every check in the process whose memory it is.
    Strict,
    /// By the network.
    Off,
}

/// `ADVERB_LOCAL`; by default [`WithinHost::Auto`]. With faults of the wire, there is only the network.
pub(crate) fn within_host() -> WithinHost {
    if wire::get().is_some() {
        return WithinHost::Off;
    }
    variable("ADVERB_LOCAL").and_then(|text| within(&text)).unwrap_or(WithinHost::Auto)
}

/// The devices that a program sees: `ADVERB_DEVICE`, a list ([`description`]).
pub fn devices() -> Option<String> {
    variable("ADVERB_DEVICE").filter(|text| description::entries_in(text))
}

/// The host's libibverbs, whose devices a program sees beside ours: `ADVERB_HOST_DEVICES`, an absolute name.
pub fn host_library() -> Option<String> {
    variable(HOST_DEVICES).filter(|text| text.starts_with('/'))
}

/// How long a thread may spin after real work, in microseconds: `ADVERB_SPIN`; by default 0 on up to two
/// processors, else 20.
pub fn spin_microseconds() -> u32 {
    variable("ADVERB_SPIN").and_then(|text| microseconds(&text)).unwrap_or_else(|| {
        if std::thread::available_parallelism().map_or(1, |n| n.get()) <= 2 { 0 } else { 20 }
    })
}

/// Whether checksums are asked for: `ADVERB_CRC`. None if that is left to the engine. Always, if packets are
/// damaged on purpose.
pub fn checksums() -> Option<bool> {
    if wire::get().is_some_and(|wire| wire.damages()) {
        return Some(true);
    }
    variable("ADVERB_CRC").and_then(|text| switch(&text))
}

/// Whether `feature` is switched off by `ADVERB_WITHOUT`, a comma list, so that tests cover the fallbacks.
pub fn without(feature: &str) -> bool {
    debug_assert!(FEATURES.contains(&feature));
    variable("ADVERB_WITHOUT").is_some_and(|text| list(&text).any(|name| name == feature))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_files_are_made_absolute_and_nothing_else_changes() {
        let made = |name, value| with_absolute_file(name, value, Path::new("/a"));
        assert_eq!(made("ADVERB_LOG", "info:x-%p").as_deref(), Some("info:/a/x-%p"));
        assert_eq!(made("ADVERB_PCAP", "b/x").as_deref(), Some("/a/b/x"));
        assert_eq!(made("ADVERB_TRACE", "json:b/x").as_deref(), Some("json:/a/b/x"));
        assert_eq!(made("ADVERB_TRACE", "b:x").as_deref(), Some("/a/b:x"));
        for (name, value) in [
            ("ADVERB_LOG", "info"),
            ("ADVERB_LOG", "info:"),
            ("ADVERB_LOG", "info:/x"),
            ("ADVERB_PCAP", "/x"),
        ] {
            assert_eq!(made(name, value), None, "{name}={value}");
        }
        assert_eq!(file("x-%p"), format!("x-{}", std::process::id()));
    }

    #[test]
    fn a_mistyped_name_is_told_with_the_one_that_is_meant() {
        for (name, meant) in [
            ("ADVERB_LOCL", "is ADVERB_LOCAL meant?"),
            ("ADVERB_DEVICES", "is ADVERB_DEVICE meant?"),
            ("ADVERB_LGO", "is ADVERB_LOG meant?"),
            ("ADVERB_TRACES", "is ADVERB_TRACE meant?"),
            ("ADVERB_FAULTS", "is ADVERB_FAULT meant?"),
            ("ADVERB_ANYTHING_ELSE", "there are ADVERB_DEVICE, ADVERB_LOG, "),
            ("ADVERB_SPIN\u{e9}", "is ADVERB_SPIN meant?"),
        ] {
            let said = unknown_name(name).unwrap();
            assert!(said.starts_with(name) && said.contains(meant), "{said}");
        }
        let ours = SETTINGS.iter().map(|setting| setting.name).chain(FROM_COMMAND);
        for name in ours.chain(["ADVERB_TEST_CHILD", "ADVERBS", "adverb_local", "HOME", ""]) {
            assert_eq!(unknown_name(name), None);
        }
    }

    #[test]
    fn every_parser_knows_its_values() {
        for (name, known, unknown) in [
            (
                "ADVERB_DEVICE",
                &["a0", "b0, a0", "c[0-1]@rate=100"][..],
                &["c0", "a0,c0", ",", "c0@rate=1"][..],
            ),
            (
                "ADVERB_LOG",
                &["info", "packets", "warn:/tmp/x-%p", "warn:", "off"],
                &["loud", "INFO", "debug", "trace", "none", "info:/no/such/x", ":x"],
            ),
            ("ADVERB_PCAP", &["x.pcapng", "/tmp/%p.pcapng"], &["/no/such/x", "/tmp"]),
            (
                "ADVERB_TRACE",
                &["x.txt", "json:/tmp/%p", "chrome:x"],
                &["/no/such/x", "text:/tmp", "text:/no/such/x"],
            ),
            ("ADVERB_TRACE_ONLY", &["ibv_post_*"], &[","]),
            ("ADVERB_TRACE_SIZE", &["1", " 64 ", "65536"], &["0", "65537", "64M", "-1", "x"]),
            ("ADVERB_FAULT", &["ibv_reg_mr:ENOMEM@3"], &[","]),
            ("ADVERB_SEED", &["0", " 7 "], &["-1", "x"]),
            ("ADVERB_CHECK", &["on", "off"], &[","]),
            ("ADVERB_CHECK_SUPPRESS", &["/proc/self/status"], &["/no/such", "/tmp"]),
            ("ADVERB_CHECK_FORMAT", &["text", "json"], &["chrome"]),
            ("ADVERB_CHECK_FILE", &["x", "/tmp/%p"], &["/no/such/x", "/tmp"]),
            ("ADVERB_SPIN", &["0", " 20 "], &["-1", "fast"]),
            ("ADVERB_CRC", &["on", " off"], &["1", "On"]),
            ("ADVERB_LOCAL", &["auto", "strict", "off"], &["on"]),
            ("ADVERB_WITHOUT", &["gso", "gro, netlink"], &["gso,lro"]),
            ("ADVERB_HOST_DEVICES", &["/proc/self/exe"], &["libibverbs.so.1", "/no/such", "/tmp"]),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
            assert!(known.iter().all(|text| (setting.is_known)(text, &["a0", "b0"])), "{name}");
            assert!(!unknown.iter().any(|text| (setting.is_known)(text, &["a0", "b0"])), "{name}");
        }
    }
}
