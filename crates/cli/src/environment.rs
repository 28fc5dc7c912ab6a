//! The environment variables that put our libraries in front of a program's own.

use crate::failure::{self, Failure};
use crate::libraries;
use adverb_core::description::{self, Addresses, Bus, Description, Slot, Wrong};
use adverb_core::interfaces;
use adverb_core::log;
use adverb_core::setting;
use adverb_core::sysfs;
use adverb_core::transport::TransportFactory;
use adverb_core::wire::Medium;
use adverb_watch::fault::RunDevice;
use adverb_watch::{check, fault, setting as watch};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Names the devices that a program sees.
pub(crate) const DEVICE: &str = "ADVERB_DEVICE";
/// Folders that the dynamic linker searches first.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Libraries that the dynamic linker loads before all others; beats a program's own DT_RPATH.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// Names the folder with the devices' files to the preloaded library.
pub(crate) const FILES: &str = adverb_core::setting::COUNTER_FILES;

/// The transports of this version.
pub(crate) const TRANSPORTS: &[TransportFactory] = &[adverb_roce::FACTORY, adverb_iwarp::FACTORY];

/// What to put in front of [`LIBRARY_PATH`] and [`PRELOAD`].
#[derive(Debug)]
pub(crate) struct Front {
    /// The library folder.
    pub(crate) library_path: OsString,
    /// The libraries.
    pub(crate) preload: Vec<OsString>,
}

impl Front {
    /// For the libraries in `folder`; with the one that makes rsockets of sockets if `rsockets` says so.
    ///
    /// # Errors
    /// When `folder` contains a character that the dynamic linker takes for a separator in LD_LIBRARY_PATH.
    pub(crate) fn new(folder: &Path, rsockets: bool) -> Result<Self, Failure> {
        let bytes = folder.as_os_str().as_bytes();
        if bytes.iter().any(|byte| b":;".contains(byte)) {
            return Err(Failure::own(format!(
                "the library folder {} has a colon or semicolon in its name, which LD_LIBRARY_PATH cannot express: \
                 move it",
                folder.display()
            )));
        }
        // LD_PRELOAD knows no quoting; where the path has a space, the bare name is found through
        // LD_LIBRARY_PATH.
        let spaced = bytes.contains(&b' ');
        let place =
            |name: &&str| if spaced { OsString::from(name) } else { folder.join(name).into_os_string() };
        let mut names = vec![libraries::VERBS, libraries::CM, libraries::PRELOAD];
        names.extend(rsockets.then_some(libraries::RSOCKETS));
        let preload = names.iter().map(place).collect();
        Ok(Self { library_path: folder.as_os_str().to_owned(), preload })
    }

    /// The value of LD_LIBRARY_PATH, given the present one.
    pub(crate) fn library_path_before(&self, present: Option<&OsStr>) -> OsString {
        prepend(std::slice::from_ref(&self.library_path), present, |byte| byte == b':' || byte == b';')
    }

    /// The value of LD_PRELOAD, given the present one.
    pub(crate) fn preload_before(&self, present: Option<&OsStr>) -> OsString {
        prepend(&self.preload, present, |byte| byte == b':' || byte == b' ')
    }
}

/// `front`, then what `present` has beside it. Empty entries of `present` go: in LD_LIBRARY_PATH they would
/// mean the current folder.
fn prepend(front: &[OsString], present: Option<&OsStr>, separator: fn(u8) -> bool) -> OsString {
    let present = present.map(OsStr::as_bytes).unwrap_or_default();
    let rest = present
        .split(|&byte| separator(byte))
        .filter(|entry| !entry.is_empty() && !front.iter().any(|ours| ours.as_bytes() == *entry));
    let all: Vec<&[u8]> = front.iter().map(|entry| entry.as_bytes()).chain(rest).collect();
    OsString::from_vec(all.join(&b':'))
}

fn devices() -> Vec<&'static str> {
    TRANSPORTS.iter().map(|transport| transport.device).collect()
}

/// Looks at the variables that the user has set, and warns of those whose names mean nothing.
///
/// `starts` is of a command that starts programs, prepares that, or shows what they would see: what it says
/// of devices overrides one of the variables, and the machine must have nothing where they are to stand.
///
/// # Errors
/// Names the first whose value means nothing, and what is allowed.
pub(crate) fn check(starts: Option<&Devices>) -> Result<(), Failure> {
    setting::unknown().iter().for_each(|text| failure::say(format_args!("warning: {text}")));
    let overridden = starts.and_then(Devices::list).map(|_| DEVICE);
    let wrong = setting::wrong(&devices()).into_iter().find(|(name, _)| Some(*name) != overridden);
    if let Some((_, text)) = wrong {
        return Err(Failure::usage(text));
    }
    let checks = [
        (watch::ONLY, watch::only as fn(&str) -> Result<Vec<bool>, String>),
        (fault::FAULT, |text| fault::check(text).map(|()| Vec::new())),
        (check::setting::CHECK, |text| check::setting::words(text).map(|_| Vec::new())),
        (check::setting::SUPPRESS, |text| check::suppressions(text).map(|_| Vec::new())),
    ];
    for (name, check) in checks {
        if let Some(text) = setting::variable(name).filter(|text| !text.trim().is_empty()) {
            check(&text).map_err(|why| Failure::usage(format!("{name}={text}: {why}")))?;
        }
    }
    match setting::devices().filter(|_| starts.is_some() && overridden.is_none()) {
        Some(list) => device_list(&list).map(drop).map_err(|why| Failure::usage(format!("{DEVICE}: {why}"))),
        None => Ok(()),
    }
}

/// The devices that a program of such a command sees.
pub(crate) fn seen(starts: &Devices) -> Vec<RunDevice> {
    let set = setting::devices();
    match starts.list().or(set.as_deref()) {
        Some(list) => {
            let found = description::parse(list, &devices()).into_iter().flatten();
            found.map(|device| RunDevice { name: device.name, medium: medium(&device.like) }).collect()
        }
        None => {
            let usual = TRANSPORTS.iter().filter(|transport| transport.default);
            let seen = |name: &str| RunDevice { name: name.to_owned(), medium: medium(name) };
            usual.map(|transport| seen(transport.device)).collect()
        }
    }
}

/// What carries the packets of a device that is like this one of the build.
fn medium(like: &str) -> Medium {
    if like == adverb_iwarp::FACTORY.device { Medium::Stream } else { Medium::Datagrams }
}

/// What the user should know of the devices of such a command: what they are to stand on and is not here. It
/// may come, or be in the network namespace that the program goes to (`ip netns exec`), and until then a
/// device is what a kernel's is without its interface.
pub(crate) fn warnings(starts: &Devices) -> Vec<String> {
    let set = setting::devices();
    let Some(list) = starts.list().or(set.as_deref()).filter(|list| list.contains('=')) else {
        return Vec::new();
    };
    let machine = Machine::this();
    description::parse(list, &devices())
        .iter()
        .flatten()
        .filter_map(|device| machine.missing(device))
        .collect()
}

/// The variables that name a file relative to this folder, with its absolute name: a program, or a child of
/// it, may go elsewhere before it writes.
pub(crate) fn absolute_files() -> Vec<(&'static str, String)> {
    let Ok(folder) = std::env::current_dir() else { return Vec::new() };
    let absolute = |name| {
        let value = setting::variable(name).filter(|value| !value.starts_with(log::UNASKED))?;
        Some((name, setting::with_absolute_file(name, &value, &folder)?))
    };
    setting::SETTINGS.iter().filter_map(|setting| absolute(setting.name)).collect()
}

/// Checks a list of devices, and makes one line of it.
///
/// # Errors
/// A text for the user that names the wrong entry and what is allowed.
pub(crate) fn device_list(list: &str) -> Result<String, String> {
    if !description::entries_in(list) {
        return Err(format!("an empty device name; devices: {}", devices().join(", ")));
    }
    checked(list, &Machine::this()).map_err(|wrong| wrong.why)
}

/// Profiles that are always there: names and lists.
const PROFILES: [(&str, &str); 3] = [
    ("dgx", include_str!("../profiles/dgx")),
    ("cloud", include_str!("../profiles/cloud")),
    ("laptop", include_str!("../profiles/laptop")),
];

/// The list of a profile, of one of the names or in a file, in one line.
///
/// # Errors
/// A text for the user with the file, the line, and what is allowed.
pub(crate) fn profile(name: &str) -> Result<String, String> {
    let text = match PROFILES.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => (*text).to_owned(),
        None => read(name).map_err(|e| {
            let known: Vec<_> = PROFILES.iter().map(|(known, _)| *known).collect();
            format!("{e}; a profile is a file of up to 1 MiB, or one of {}", known.join(", "))
        })?,
    };
    if !description::entries_in(&text) {
        return Err(format!("{name} names no device"));
    }
    checked(&text, &Machine::this())
        .map_err(|wrong| format!("{name}:{}: {}", description::line_of(&text, wrong.at), wrong.why))
}

/// The text of a file that may be any, such as `/dev/zero`.
fn read(name: &str) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    let length = File::open(name)?.take(MOST + 1).read_to_string(&mut text)? as u64;
    if length > MOST { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

/// What devices are to stand on, and where they cannot stand.
struct Machine {
    addresses: Vec<interfaces::Address>,
    has_bus: fn(Bus) -> bool,
    has_slot: fn(&Slot) -> bool,
}

impl Machine {
    fn this() -> Self {
        Self {
            addresses: interfaces::addresses(),
            has_bus: sysfs::machine_has_bus,
            has_slot: sysfs::machine_has_slot,
        }
    }

    /// What a device is to stand on and is not there; none if all is.
    fn missing(&self, device: &Description) -> Option<String> {
        let all = |what: fn(&interfaces::Address) -> String| {
            let mut all: Vec<_> = self.addresses.iter().map(what).collect();
            let mut seen = HashSet::new();
            all.retain(|one| seen.insert(one.clone()));
            all.join(", ")
        };
        let lacks = |test: &dyn Fn(&interfaces::Address) -> bool| !self.addresses.iter().any(test);
        let why = match &device.addresses {
            Addresses::All => None,
            Addresses::Interfaces(names) => {
                let name = names.iter().find(|name| lacks(&|address| address.name == **name))?;
                let there = all(|address| address.name.clone());
                Some(format!(
                    "interface={name}: no such interface is up with an address here; there are: {there}"
                ))
            }
            Addresses::Listed(listed) => {
                let one = listed.iter().find(|one| lacks(&|address| address.address == **one))?;
                let there = all(|address| address.address.to_string());
                Some(format!("address={one}: no interface has it here; there are: {there}"))
            }
        };
        let is_down = !self.addresses.iter().any(|address| device.addresses.has(address));
        let port = if is_down { "; its port is down until then" } else { "" };
        why.map(|why| format!("{}: {why}{port}", device.name))
    }

    /// Whether there is nothing where a device is to stand.
    fn suits(&self, device: &Description) -> Result<(), String> {
        for slot in &device.pci {
            let bus = description::bus_of(slot);
            let what = if (self.has_slot)(slot) {
                format!("a device at {slot}")
            } else if (self.has_bus)(bus) {
                format!("a bus {}", description::bus_name(bus))
            } else {
                continue;
            };
            return Err(format!(
                "pci: this machine has {what} itself; a domain of its own is free: 1000:17:00.0"
            ));
        }
        Ok(())
    }
}

fn checked(list: &str, machine: &Machine) -> Result<String, Wrong> {
    for (at, one) in description::parse_with_places(list, &devices()) {
        let one = one?;
        if let Err(why) = machine.suits(&one) {
            return Err(Wrong { at, why: format!("{}: {why}", one.name), what: one.name });
        }
    }
    Ok(description::in_one_line(list))
}

/// Checks the name of one of this build's devices.
///
/// # Errors
/// As [`device_list`].
pub(crate) fn device(name: &str) -> Result<String, String> {
    let known = devices();
    if known.contains(&name) {
        return Ok(name.to_owned());
    }
    let known = known.join(", ");
    Err(match name {
        "" => format!("an empty device name; devices: {known}"),
        _ => format!("there is no device '{name}'; devices: {known}"),
    })
}

/// The options by which commands take devices.
#[derive(clap::Args)]
pub(crate) struct Devices {
    /// The devices that the program sees: names (roce0, iwarp0), or descriptions as in
    /// 'mlx5_[0-3]@numa=0,rate=400' (adverb(1))
    #[arg(long, short, visible_alias = "devices", value_name = "LIST", value_parser = device_list)]
    device: Option<String>,

    /// The devices that the program sees, from a file, or one of: dgx, cloud, laptop
    #[arg(long, value_name = "FILE", value_parser = profile, conflicts_with = "device")]
    profile: Option<String>,
}

impl Devices {
    /// The list, in one line; none if nothing was said.
    pub(crate) fn list(&self) -> Option<&str> {
        self.device.as_deref().or(self.profile.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_first_and_the_rest_stays() {
        let front = Front::new(Path::new("/a/libs"), false).expect("plain path");
        assert_eq!(front.library_path_before(None), "/a/libs");
        assert_eq!(front.library_path_before(Some(OsStr::new("/x::/y"))), "/a/libs:/x:/y");
        assert_eq!(
            front.preload_before(Some(OsStr::new("one.so two.so"))),
            "/a/libs/libibverbs.so.1:/a/libs/librdmacm.so.1:/a/libs/libadverb_preload.so:one.so:two.so"
        );
    }

    #[test]
    fn nesting_adds_nothing() {
        let front = Front::new(Path::new("/a/libs"), false).expect("plain path");
        let once = front.preload_before(Some(OsStr::new("one.so")));
        assert_eq!(front.preload_before(Some(&once)), once);
        let once = front.library_path_before(Some(OsStr::new("/x")));
        assert_eq!(front.library_path_before(Some(&once)), once);
    }

    #[test]
    fn paths_that_the_linker_cannot_express() {
        let front = Front::new(Path::new("/a b/libs"), true).expect("a space is fine in LD_LIBRARY_PATH");
        assert_eq!(
            front.preload_before(None),
            "libibverbs.so.1:librdmacm.so.1:libadverb_preload.so:librspreload.so"
        );
        assert!(Front::new(Path::new("/a:b"), false).is_err());
    }

    #[test]
    fn device_lists() {
        assert_eq!(device_list("iwarp0").as_deref(), Ok("iwarp0"));
        let why = device_list("iwarp0,mlx5_0").expect_err("unknown");
        assert!(
            why.starts_with("there is no device 'mlx5_0'; devices: roce0, iwarp0, or a name of your choice"),
            "{why}"
        );
        assert!(device_list("").expect_err("empty").starts_with("an empty device name"));
        assert_eq!(
            device_list("a@interface=lo b@address=127.0.0.1").as_deref(),
            Ok("a@interface=lo,b@address=127.0.0.1")
        );
        for (list, why, is_down) in [
            (
                "a@interface=nowhere0",
                "a: interface=nowhere0: no such interface is up with an address here",
                true,
            ),
            ("a@interface=lo+nowhere0", "a: interface=nowhere0: no such interface", false),
            (
                "b@rate=40 a@address=192.0.2.1",
                "a: address=192.0.2.1: no interface has it here; there are: ",
                true,
            ),
        ] {
            let list = Devices { device: Some(device_list(list).expect("a list")), profile: None };
            let said = warnings(&list);
            assert!(said.len() == 1 && said[0].starts_with(why), "{said:?}");
            assert_eq!(said[0].ends_with("; its port is down until then"), is_down, "{said:?}");
        }
    }

    /// A machine without addresses, that has every bus of the first domain.
    const FULL: Machine =
        Machine { addresses: Vec::new(), has_bus: |(domain, _)| domain == 0, has_slot: |_| false };

    #[test]
    fn profiles_are_lists_that_suit_any_host() {
        for (name, text) in PROFILES {
            assert_eq!(checked(text, &FULL), Ok(description::in_one_line(text)), "{name}");
        }
        let why = profile("/no/such/profile").expect_err("missing");
        assert!(why.ends_with("a profile is a file of up to 1 MiB, or one of dgx, cloud, laptop"), "{why}");
        let file = std::env::temp_dir().join(format!("adverb-profile-{}", std::process::id()));
        let name = file.to_str().expect("text");
        for (text, why) in [
            ("# none\n", " names no device"),
            ("a@rate=40\n\nb@rate=4\n", ":3: b: rate=4: wanted is a number"),
            ("\na@pci=1000:17:00.0\nb@pci=1000:17:00.0\n", ":3: b: pci=1000:17:00.0: there are two devices"),
        ] {
            std::fs::write(&file, text).expect("a file");
            let said = profile(name).expect_err(text);
            assert!(said.starts_with(&format!("{name}{why}")), "{said}");
        }
        std::fs::remove_file(file).expect("removed");
    }

    #[test]
    fn devices_do_not_stand_where_the_machine_has_something() {
        let has_root = Machine { has_bus: |bus| bus == (0, 0x16), ..FULL };
        let has_bus = Machine { has_bus: |bus| bus == (0, 0x17), ..FULL };
        let has_slot =
            Machine { has_bus: |_| false, has_slot: |slot| (slot.bus, slot.device) == (0x17, 0), ..FULL };
        for (list, machine, why) in [
            ("a@pci=17:00.0", &has_root, "a: pci: this machine has a bus 0000:16 itself"),
            ("a@rate=40 b@pci=16:02.0/18:00.0", &has_root, "b: pci: this machine has a bus 0000:16 itself"),
            ("m[0-3]@pci=17:00.[0-3]", &has_bus, "m0: pci: this machine has a bus 0000:17 itself"),
            ("a@pci=17:00.0/18:00.0", &has_slot, "a: pci: this machine has a device at 0000:17:00.0 itself"),
        ] {
            let said = checked(list, machine).expect_err(list).why;
            assert!(said.starts_with(why), "{list}: {said}");
        }
        assert!(checked("a@numa=0 b@pci=19:00.0 c@pci=1:17:00.0", &has_root).is_ok());
    }
}
