//! The environment variables of the project, read once per engine. All are ignored in setuid programs.

use crate::log;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The value of an environment variable, unless the program runs with more rights than its user (secure_getenv(3)).
pub fn variable(name: &str) -> Option<String> {
    let name = CString::new(name).ok()?;
    // SAFETY: a valid C string; the result is read at once, before anything could change the environment in this thread.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        if value.is_null() { None } else { Some(CStr::from_ptr(value).to_string_lossy().into_owned()) }
    }
}

/// A variable that users set, and the parser by which the engine reads it, too. A value that it does not know means to the engine that the
/// variable is not set, or as much as can be made of it; the command refuses it ([`wrong`]).
struct Setting {
    name: &'static str,
    allowed: &'static str,
    is_known: fn(&str) -> bool,
}

/// All of them but `ADVERB_DEVICE`, whose values depend on the build.
const SETTINGS: [Setting; 6] = [
    Setting {
        name: "ADVERB_LOG",
        allowed: "error, warn, info, packets or off, or LEVEL:FILE with a file that can be written",
        is_known: |text| {
            let (level, file) = log::parse(text);
            level.is_some() && file.is_none_or(is_file_name)
        },
    },
    Setting { name: "ADVERB_PCAP", allowed: "a file that can be written", is_known: is_file_name },
    Setting {
        name: "ADVERB_SPIN",
        allowed: "a number of microseconds",
        is_known: |text| microseconds(text).is_some(),
    },
    Setting { name: "ADVERB_CRC", allowed: "on or off", is_known: |text| switch(text).is_some() },
    Setting { name: "ADVERB_LOCAL", allowed: "auto, strict or off", is_known: |text| within(text).is_some() },
    Setting {
        name: "ADVERB_WITHOUT",
        allowed: "a comma list of gso, gro, ipv6, netlink, large-fpdu, iwarp-extensions, memfd, cma, moved-pages, userfaultfd, \
                  userfaultfd-kernel, userfaultfd-move, procmap-query",
        is_known: |text| list(text).all(|name| FEATURES.contains(&name)),
    },
];

/// What `ADVERB_WITHOUT` may name.
const FEATURES: [&str; 13] = [
    "gso",
    "gro",
    "ipv6",
    "netlink",
    "large-fpdu",
    "iwarp-extensions",
    "memfd",
    "cma",
    "moved-pages",
    "userfaultfd",
    "userfaultfd-kernel",
    "userfaultfd-move",
    "procmap-query",
];

/// Says which variable of the project has a value that means nothing, and what is allowed; `devices` are those of this build. None if all is well.
pub fn wrong(devices: &[&str]) -> Option<String> {
    let value = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
    let refused = |name: &str, text: &str, allowed: &str| format!("{name}={text}: wanted is {allowed}");
    if let Some(text) = value("ADVERB_DEVICE")
        && (list(&text).next().is_none() || list(&text).any(|name| !devices.contains(&name)))
    {
        let allowed = format!("a comma list of devices: {}", devices.join(", "));
        return Some(refused("ADVERB_DEVICE", &text, &allowed));
    }
    SETTINGS.iter().find_map(|setting| {
        let text = value(setting.name)?;
        (!(setting.is_known)(&text)).then(|| refused(setting.name, &text, setting.allowed))
    })
}

/// The entries of a comma list.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Whether a file of this name could be written, as far as a look at its folder tells.
fn is_file_name(name: &str) -> bool {
    let path = Path::new(name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    !path.is_dir() && folder.is_none_or(Path::is_dir)
}

fn microseconds(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn within(text: &str) -> Option<WithinHost> {
    match text {
        "auto" => Some(WithinHost::Auto),
        "strict" => Some(WithinHost::Strict),
        "off" => Some(WithinHost::Off),
        _ => None,
    }
}

/// How connections and datagrams of RoCE between processes of one host and user go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithinHost {
    /// Through shared memory where that can be.
    Auto,
    /// The same, with every check in the process whose memory it is.
    Strict,
    /// By the network.
    Off,
}

/// `ADVERB_LOCAL`; by default [`WithinHost::Auto`].
pub fn within_host() -> WithinHost {
    variable("ADVERB_LOCAL").and_then(|text| within(&text)).unwrap_or(WithinHost::Auto)
}

/// The devices that a program sees: `ADVERB_DEVICE`, a comma list, in its order.
pub fn devices() -> Option<Vec<String>> {
    let text = variable("ADVERB_DEVICE")?;
    let names: Vec<String> = list(&text).map(str::to_owned).collect();
    if names.is_empty() { None } else { Some(names) }
}

/// How long a thread may spin after real work, in microseconds: `ADVERB_SPIN`; by default 0 on up to two processors, else 20.
pub fn spin_microseconds() -> u32 {
    variable("ADVERB_SPIN").and_then(|text| microseconds(&text)).unwrap_or_else(|| {
        if std::thread::available_parallelism().map_or(1, |n| n.get()) <= 2 { 0 } else { 20 }
    })
}

/// Whether checksums are asked for: `ADVERB_CRC`. None if that is left to the engine.
pub fn checksums() -> Option<bool> {
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
    fn every_parser_knows_its_values() {
        for (name, known, unknown) in [
            (
                "ADVERB_LOG",
                &["info", "Packets", "warn:/tmp/x", "off"][..],
                &["loud", "info:/no/such/x", ":x"][..],
            ),
            ("ADVERB_PCAP", &["x.pcapng", "/tmp/%p.pcapng"], &["/no/such/x", "/tmp"]),
            ("ADVERB_SPIN", &["0", " 20 "], &["-1", "fast"]),
            ("ADVERB_CRC", &["on", "off"], &["1", "On"]),
            ("ADVERB_LOCAL", &["auto", "strict", "off"], &["on"]),
            ("ADVERB_WITHOUT", &["gso", "gro, netlink"], &["gso,lro"]),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
            assert!(known.iter().all(|text| (setting.is_known)(text)), "{name}");
            assert!(!unknown.iter().any(|text| (setting.is_known)(text)), "{name}");
        }
        assert!(FEATURES.iter().all(|feature| SETTINGS[5].allowed.contains(feature)));
    }
}
