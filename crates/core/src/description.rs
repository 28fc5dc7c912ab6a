//! The devices that a run wants, described in words: their names, transports, addresses and places.
//!
//! A list has entries `NAME` or `NAME@key=value,key=value`, with a comma, a space or a new line between two.
//! The rest of a line behind `#` is a remark. A name alone is one of this build's own (`roce0`); with `@` it
//! is free. `[3-5]` in a name makes one device of each number, and in a value it gives each of them its own.
//! The list that verbs show and the files that programs find are both made of this.

use crate::interfaces::{self, Address};
use std::cell::LazyCell;
use std::collections::HashSet;
use std::net::IpAddr;

mod tree;

pub use tree::{Bus, Tree, bus_name, bus_of};

/// Most devices of one list.
pub const MOST: usize = 32;
/// Longest name, as in the kernel.
const LONGEST_NAME: usize = 63;
/// Most digits of a number in a range.
const MOST_DIGITS: usize = 8;
/// Highest number of a NUMA node.
const HIGHEST_NODE: u32 = 1023;

/// A device as a run wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The device's name: `mlx5_0`.
    pub name: String,
    /// The device of this build that it is like: `roce0`.
    pub like: String,
    /// The addresses of the host that are its own.
    pub addresses: Addresses,
    /// The NUMA node that it is said to be on.
    pub numa: Option<u32>,
    /// The place on the PCI bus that the device is to have, with all bridges above it, from the root port
    /// downwards. Empty if the files of the devices may choose one.
    pub pci: Vec<Slot>,
    /// The speed that it tells.
    pub rate: Rate,
    /// Numbers of a vendor and its part that it tells instead of none, for tests of discovery.
    pub identity: Option<(u32, u32)>,
}

/// Addresses of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All addresses of the host.
    All,
    /// The addresses of the interfaces with these names.
    Interfaces(Vec<String>),
    /// The addresses of this list.
    Listed(Vec<IpAddr>),
}

impl Addresses {
    /// Whether an address is one of them.
    pub fn has(&self, address: &Address) -> bool {
        match self {
            Self::All => true,
            Self::Interfaces(names) => names.contains(&address.name),
            Self::Listed(listed) => listed.contains(&address.address),
        }
    }

    /// The interface that is shown for a device, and its index: the first of its own that exists, as a
    /// kernel's device keeps the one that it stands on. A device without an interface of its own is shown
    /// that of its first address.
    // PRACTICE-FILES-2
    pub fn interface(&self, local: &[Address]) -> Option<(String, u32)> {
        if let Self::Interfaces(names) = self {
            return names.iter().find_map(|name| Some((name.clone(), interfaces::index(name)?)));
        }
        local
            .iter()
            .find(|address| self.has(address))
            .map(|address| (address.name.clone(), address.interface))
    }
}

/// The place of the first set of addresses that has an address of the host. `interfaces` says which
/// interfaces have that address, and is asked only where it matters.
pub fn first_with<'a>(
    mut sets: impl Iterator<Item = &'a Addresses>,
    address: IpAddr,
    interfaces: impl FnOnce(IpAddr) -> Vec<Address>,
) -> Option<usize> {
    // A socket for both families gives an IPv4 address in the form of IPv6.
    let address = address.to_canonical();
    let interfaces = LazyCell::new(|| interfaces(address));
    sets.position(|set| match set {
        Addresses::All => true,
        Addresses::Listed(listed) => listed.contains(&address),
        Addresses::Interfaces(_) => interfaces.iter().any(|one| set.has(one)),
    })
}

/// A place on a PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, up to 31.
    pub device: u8,
    /// The function, up to 7.
    pub function: u8,
}

impl Slot {
    fn parse(text: &str) -> Option<Self> {
        let hex = |text: &str, longest: usize| {
            let is_number =
                (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_number.then(|| u32::from_str_radix(text, 16).ok())?
        };
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Some(Self {
            domain: hex(domain, 8)?,
            bus: hex(bus, 2)? as u8,
            device: hex(device, 2).filter(|device| *device < 32)? as u8,
            function: hex(function, 1).filter(|function| *function < 8)? as u8,
        })
    }
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

/// The speed of a link, as verbs and files tell it. The network's own speed does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Gigabits in a second.
    pub gigabits: u32,
    /// `active_width` of ibv_query_port(3).
    pub width: u8,
    /// `active_speed` there.
    pub speed: u8,
    /// The words of a file for both.
    pub words: &'static str,
}

/// The speeds that the fields of ibv_query_port(3) can say.
const RATES: [Rate; 8] = [
    Rate { gigabits: 10, width: 2, speed: 1, words: "4X SDR" },
    Rate { gigabits: 25, width: 1, speed: 32, words: "1X EDR" },
    Rate { gigabits: 40, width: 2, speed: 4, words: "4X QDR" },
    Rate { gigabits: 50, width: 1, speed: 64, words: "1X HDR" },
    Rate { gigabits: 56, width: 2, speed: 16, words: "4X FDR" },
    Rate { gigabits: 100, width: 2, speed: 32, words: "4X EDR" },
    Rate { gigabits: 200, width: 2, speed: 64, words: "4X HDR" },
    Rate { gigabits: 400, width: 2, speed: 128, words: "4X NDR" },
];

impl Rate {
    /// The rate of so many gigabits in a second.
    ///
    /// # Errors
    /// All that there are.
    pub fn of(gigabits: &str) -> Result<Self, String> {
        RATES
            .iter()
            .find(|rate| rate.gigabits.to_string() == gigabits)
            .copied()
            .ok_or_else(|| RATES.iter().map(|rate| rate.gigabits.to_string()).collect::<Vec<_>>().join(", "))
    }
}

impl Default for Rate {
    /// Four lanes of 10 Gb/s: the nearest speed to the host's that all programs understand.
    fn default() -> Self {
        RATES[2]
    }
}

/// An error in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where in the text, in bytes.
    pub at: usize,
    /// The entry, or the part of it.
    pub what: String,
    /// The error, and the values that are allowed.
    pub why: String,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl Description {
    /// One of this build's own devices.
    pub fn of(device: &str) -> Self {
        Self {
            name: device.to_owned(),
            like: device.to_owned(),
            addresses: Addresses::All,
            numa: None,
            pci: Vec::new(),
            rate: Rate::default(),
            identity: None,
        }
    }

    /// Whether the device is shown as an adapter on a PCI bus.
    pub fn is_on_pci(&self) -> bool {
        self.numa.is_some() || !self.pci.is_empty()
    }

    fn set(&mut self, key: &str, value: &str, known: &[&str]) -> Result<(), String> {
        let wanted = |what: &str| Err(format!("{key}={value}: wanted is {what}"));
        match key {
            "transport" => match known.iter().find(|device| transport_of(device) == value) {
                Some(device) => self.like = (*device).to_owned(),
                None => {
                    let all: Vec<_> = known.iter().map(|device| transport_of(device)).collect();
                    return wanted(&format!("one of {}", all.join(", ")));
                }
            },
            "interface" => match value.split('+').all(|name| !name.is_empty() && name.len() < 16) {
                true => self.addresses = Addresses::Interfaces(value.split('+').map(str::to_owned).collect()),
                false => return wanted("names of network interfaces, with + between two"),
            },
            "address" => match value.split('+').map(str::parse).collect() {
                Ok(list) => self.addresses = Addresses::Listed(list),
                Err(_) => return wanted("IP addresses of this host, with + between two"),
            },
            "numa" => match value.parse().ok().filter(|node| *node <= HIGHEST_NODE) {
                Some(node) => self.numa = Some(node),
                None => return wanted(&format!("the number of a NUMA node, 0 to {HIGHEST_NODE}")),
            },
            "pci" => match value.split('/').map(Slot::parse).collect() {
                Some(slots) => self.pci = slots,
                None => {
                    return wanted(
                        "a PCI address, domain 0 to ffffffff, bus 0 to ff, device 0 to 1f, function 0 to 7, as in 0000:17:00.0, \
                         or the bridges above it, too: 0000:16:02.0/0000:17:00.0",
                    );
                }
            },
            "rate" => match Rate::of(value) {
                Ok(rate) => self.rate = rate,
                Err(all) => return wanted(&format!("a number of Gb/s: {all}")),
            },
            "vendor" | "part" => {
                let digits = value.strip_prefix("0x").unwrap_or(value);
                let Some(number) = u32::from_str_radix(digits, 16).ok().filter(|number| *number <= 0xffff)
                else {
                    return wanted("four hexadecimal digits, as in 0x15b3");
                };
                let (vendor, part) = self.identity.unwrap_or_default();
                self.identity = Some(if key == "vendor" { (number, part) } else { (vendor, number) });
            }
            _ => {
                return Err(format!(
                    "there is no '{key}'; a device has transport, interface, address, numa, pci, rate, vendor, part"
                ));
            }
        }
        Ok(())
    }
}

/// The transport of a device of this build: its name without the number.
fn transport_of(device: &str) -> &str {
    device.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

/// The devices of a list, in their order, or the error of an entry; `known` are those of this build. A name
/// alone may stand twice, and means the device once.
pub fn parse(text: &str, known: &[&str]) -> Vec<Result<Description, Wrong>> {
    parse_with_places(text, known).into_iter().map(|(_, one)| one).collect()
}

/// The devices of a list, as of [`parse`], each with the place in the text where its entry begins, in bytes.
pub fn parse_with_places(text: &str, known: &[&str]) -> Vec<(usize, Result<Description, Wrong>)> {
    let mut found: Vec<(usize, Result<Description, Wrong>)> = Vec::new();
    for entry in entries(text) {
        for one in entry.expand(known) {
            let named = |other: &&Description| one.as_ref().is_ok_and(|one| one.name == other.name);
            let again = found.iter().filter_map(|(_, other)| other.as_ref().ok()).find(named);
            let one = match again {
                None => one,
                Some(other) if one.as_ref() == Ok(other) && !entry.is_free => continue,
                Some(other) => {
                    Err(entry.wrong(entry.name, format!("there are two devices '{}'", other.name)))
                }
            };
            found.push((entry.at, one));
        }
    }
    if found.len() > MOST {
        found.truncate(MOST);
        let why = format!("too many devices: at most {MOST}");
        found.push((0, Err(Wrong { at: 0, what: text.to_owned(), why })));
    }
    take_places(&mut found);
    found
}

/// Gives each device its place on the PCI bus, with all bridges, if the list names one.
fn take_places(devices: &mut [(usize, Result<Description, Wrong>)]) {
    let named = devices.iter().filter_map(|(_, one)| one.as_ref().ok()).flat_map(|one| &one.pci);
    let named: HashSet<_> = named.map(bus_of).collect();
    let mut tree = Tree::default();
    // An entry with the bridges above a bus need not stand before others on the bus.
    for is_alone in [false, true] {
        for (at, one) in devices.iter_mut() {
            let Ok(device) = one else { continue };
            if device.pci.is_empty() || (device.pci.len() == 1) != is_alone {
                continue;
            }
            let taken = match device.pci[..] {
                [slot] => tree.take_alone(slot, &named),
                _ => tree.take(&device.pci).map(|()| device.pci.clone()),
            };
            match taken {
                Ok(chain) => device.pci = chain,
                Err(why) => {
                    let place: Vec<_> = device.pci.iter().map(Slot::to_string).collect();
                    let why = format!("{}: pci={}: {why}", device.name, place.join("/"));
                    *one = Err(Wrong { at: *at, what: device.name.clone(), why });
                }
            }
        }
    }
}

/// The list in one line, without remarks, as a variable holds it.
pub fn in_one_line(text: &str) -> String {
    tokens(text).map(|(_, token)| token).collect::<Vec<_>>().join(",")
}

/// Whether a list has any entry.
pub fn entries_in(text: &str) -> bool {
    tokens(text).next().is_some()
}

/// The line of a place in a text, from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The words of a list, each with its place.
fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let place = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    let lines = text.split('\n').map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([',', ' ', '\t', '\r']));
    words.filter(|word| !word.is_empty()).map(move |word| (place(word), word))
}

struct Entry<'a> {
    at: usize,
    name: &'a str,
    is_free: bool,
    values: Vec<&'a str>,
}

/// A word with `=` and without `@` goes on with the entry before.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut all: Vec<Entry<'_>> = Vec::new();
    for (at, word) in tokens(text) {
        let (name, first) = word.split_once('@').map_or((word, None), |(name, first)| (name, Some(first)));
        match all.last_mut() {
            Some(entry) if first.is_none() && word.contains('=') => entry.values.push(word),
            _ => {
                let values = first.into_iter().filter(|first| !first.is_empty()).collect();
                all.push(Entry { at, name, is_free: first.is_some(), values });
            }
        }
    }
    all
}

impl Entry<'_> {
    fn wrong(&self, what: &str, why: String) -> Wrong {
        Wrong { at: self.at, what: what.to_owned(), why }
    }

    fn expand(&self, known: &[&str]) -> Vec<Result<Description, Wrong>> {
        if !self.is_free {
            return vec![self.own(known)];
        }
        let names = match numbered(self.name, 10) {
            Ok(names) => names,
            Err(why) => return vec![Err(self.wrong(self.name, why))],
        };
        let count = names.len();
        names.iter().enumerate().map(|(index, name)| self.one(name, index, count, known)).collect()
    }

    fn own(&self, known: &[&str]) -> Result<Description, Wrong> {
        if !known.contains(&self.name) {
            let why = format!(
                "there is no device '{}'; devices: {}, or a name of your choice with @ and what it is: {}@rate=100",
                self.name,
                known.join(", "),
                self.name
            );
            return Err(self.wrong(self.name, why));
        }
        match self.values.first() {
            None => Ok(Description::of(self.name)),
            Some(value) => Err(self.wrong(self.name, format!("{}: @ is wanted before {value}", self.name))),
        }
    }

    fn one(&self, name: &str, index: usize, count: usize, known: &[&str]) -> Result<Description, Wrong> {
        let is_name = |letter: u8| letter.is_ascii_alphanumeric() || b"_-.".contains(&letter);
        if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.bytes().all(is_name)
        {
            let why = format!(
                "'{name}' is no name of a device: wanted are 1 to {LONGEST_NAME} letters, digits, '_', '-' and '.'"
            );
            return Err(self.wrong(self.name, why));
        }
        let default = known.first().copied().unwrap_or_default();
        let like = known.iter().find(|device| **device == name).copied().unwrap_or(default);
        let mut made = Description { name: name.to_owned(), ..Description::of(like) };
        for (number, value) in self.values.iter().enumerate() {
            let wrong = |why| self.wrong(value, format!("{}@{value}: {why}", self.name));
            let Some((key, value)) = value.split_once('=') else {
                return Err(wrong("wanted is key=value".to_owned()));
            };
            let before = self.values.iter().take(number).filter_map(|value| value.split_once('='));
            for (other, _) in before {
                if other == key {
                    return Err(wrong(format!("{key} is given twice")));
                }
                if ["interface", "address"].contains(&other) && ["interface", "address"].contains(&key) {
                    return Err(wrong("wanted is interface or address, not both".to_owned()));
                }
            }
            let each = numbered(value, if key == "pci" { 16 } else { 10 }).map_err(wrong)?;
            let value = match each.len() {
                1 => &each[0],
                many if many == count => &each[index],
                many => return Err(wrong(format!("{many} values for {count} devices"))),
            };
            made.set(key, value, known).map_err(|why| self.wrong(value, format!("{}: {why}", self.name)))?;
        }
        Ok(made)
    }
}

/// A text with a range of numbers, as one text for each of them; their digits are as many as the first one's.
fn numbered(text: &str, radix: u32) -> Result<Vec<String>, String> {
    let Some((before, rest)) = text.split_once('[') else { return Ok(vec![text.to_owned()]) };
    let range = || {
        let (range, after) = rest.split_once(']')?;
        let (first, last) = range.split_once('-')?;
        let is_number = |text: &str| {
            (1..=MOST_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let number = |text: &str| is_number(text).then(|| u32::from_str_radix(text, radix).ok())?;
        (!after.contains('[')).then_some((number(first)?, number(last)?, first.len(), after))
    };
    let Some((low, high, width, after)) = range() else {
        let kind = if radix == 16 { "hexadecimal" } else { "decimal" };
        return Err(format!(
            "'{text}': wanted is one range of {kind} numbers of 1 to {MOST_DIGITS} digits, as in [0-3]"
        ));
    };
    let most = MOST as u32;
    if !(low..=low.saturating_add(most - 1)).contains(&high) {
        let range = &rest[..rest.len() - after.len() - 1];
        return Err(format!(
            "'{text}': [{range}] is no range that goes up and has at most {most} numbers, as [0-{}] does",
            most - 1
        ));
    }
    let numbers = low..=high;
    let make = |number| match radix {
        16 => format!("{before}{number:0width$x}{after}"),
        _ => format!("{before}{number:0width$}{after}"),
    };
    Ok(numbers.map(make).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 2] = ["roce0", "iwarp0"];

    fn good(text: &str) -> Vec<Description> {
        parse(text, &KNOWN).into_iter().map(|one| one.expect(text)).collect()
    }

    fn wrong(text: &str) -> Wrong {
        parse(text, &KNOWN).into_iter().find_map(Result::err).expect(text)
    }

    #[test]
    fn names_alone_are_devices_of_this_build_each_once() {
        assert_eq!(good("iwarp0, roce0,iwarp0"), ["iwarp0", "roce0"].map(Description::of));
        assert!(
            wrong("rcoe0").why.starts_with("there is no device 'rcoe0'; devices: roce0, iwarp0, or a name")
        );
        assert!(good("").is_empty());
    }

    #[test]
    fn a_range_is_a_device_for_each_number() {
        let list = "mlx5_[0-3]@numa=0,rate=400,pci=0000:[18-1b]:00.0,interface=eth[0-3] x@transport=iwarp # a remark";
        let found = good(list);
        assert_eq!(in_one_line(list), list[..list.len() - 11].replace(' ', ","));
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "x"]);
        assert_eq!((found[2].pci[1].to_string().as_str(), found[2].rate.gigabits), ("0000:1a:00.0", 400));
        assert_eq!(found[3].addresses, Addresses::Interfaces(vec!["eth3".to_owned()]));
        assert_eq!((found[3].like.as_str(), found[4].like.as_str()), ("roce0", "iwarp0"));
        assert!(found[0].is_on_pci() && !found[4].is_on_pci());
        let more = good("rdmap[08-10]@address=127.0.0.1+::1,pci=16:02.0/17:00.[1-3],vendor=0x1d0f,part=efa2");
        assert_eq!((more.len(), more[0].name.as_str(), more[2].name.as_str()), (3, "rdmap08", "rdmap10"));
        assert_eq!(more[0].pci.len(), 2);
        assert_eq!(more[0].identity, Some((0x1d0f, 0xefa2)));
    }

    #[test]
    fn a_wrong_description_is_refused_with_its_place() {
        for (text, why) in [
            ("a@numa=x", "a: numa=x: wanted is the number of a NUMA node"),
            ("a@numa=1024", "0 to 1023"),
            ("a@rate=41", "wanted is a number of Gb/s: 10, 25, 40"),
            ("a@pci=17:20.0", "wanted is a PCI address"),
            ("a@pci=", "wanted is a PCI address"),
            ("a@colour=red", "there is no 'colour'; a device has transport,"),
            ("a@transport=ib", "wanted is one of roce, iwarp"),
            ("a@address=here", "wanted is IP addresses"),
            ("a@interface=", "wanted is names of network interfaces"),
            ("a@vendor=mellanox", "four hexadecimal digits"),
            ("a/b@rate=40", "no name of a device"),
            ("..@rate=40", "no name of a device"),
            ("@rate=40", "no name of a device"),
            ("a@pci=17:20.0", "device 0 to 1f"),
            ("a[3-1]@rate=40", "'a[3-1]': [3-1] is no range that goes up"),
            (
                "a[0-9999]@rate=40",
                "[0-9999] is no range that goes up and has at most 32 numbers, as [0-31] does",
            ),
            ("a[0-x]@rate=40", "one range of decimal numbers of 1 to 8 digits"),
            (
                "a[0-1]@pci=[1g-20]:00.0",
                "a[0-1]@pci=[1g-20]:00.0: '[1g-20]:00.0': wanted is one range of hexadecimal numbers",
            ),
            ("a[0-1]@pci=17:00.[0-2]", "3 values for 2 devices"),
            ("a@rate=40,a@rate=40", "two devices 'a'"),
            ("roce0,numa=0", "roce0: @ is wanted before numa=0"),
            ("a@b", "wanted is key=value"),
            ("a@rate=40,numa=0,rate=100", "a@rate=100: rate is given twice"),
            ("a@interface=lo,address=::1", "a@address=::1: wanted is interface or address, not both"),
            ("a[+0-+1]@rate=40", "one range"),
            (&*format!("a[{}1-2]@rate=40", "0".repeat(70_000)), "one range"),
        ] {
            let said = wrong(text).why;
            assert!(said.contains(why), "{text}: {said}");
        }
        let file = "# ours\na@rate=40\n  b@rate=41\n";
        assert_eq!(line_of(file, wrong(file).at), 3);
        let many: Vec<_> = (0..2 * MOST).map(|number| format!("d{number}@rate=40")).collect();
        assert!(wrong(&many.join(" ")).why.contains("at most 32"));
    }

    // PRACTICE-DEVICES-2
    #[test]
    fn interfaces_are_asked_once_and_only_where_they_matter() {
        let sets: Vec<_> = ["a@address=::1", "b@interface=x0", "c@interface=y0+y1", "d@interface=y1", "e@"]
            .map(|text| good(text)[0].addresses.clone())
            .into();
        let find = |sets: &[Addresses], address: &str, on: &str| {
            let mut asked = 0;
            let address: IpAddr = address.parse().unwrap();
            let found = first_with(sets.iter(), address, |wanted| {
                assert_eq!(wanted, address.to_canonical());
                asked += 1;
                vec![Address { address, name: on.to_owned(), interface: 1, loopback: false, carrier: true }]
            });
            (found, asked)
        };
        assert_eq!(find(&sets, "::1", "y1"), (Some(0), 0));
        assert_eq!(find(&sets, "10.0.0.1", "y1"), (Some(2), 1));
        assert_eq!(find(&sets, "10.0.0.1", "z0"), (Some(4), 1));
        assert_eq!(find(&sets[..4], "10.0.0.1", "z0"), (None, 1));
        assert_eq!(find(&sets[..1], "10.0.0.1", "y1"), (None, 0));
        let listed = [good("f@address=10.0.0.1")[0].addresses.clone()];
        assert_eq!(find(&listed, "::ffff:10.0.0.1", "y1"), (Some(0), 0));
        assert_eq!(find(&sets[..4], "::ffff:10.0.0.1", "y1"), (Some(2), 1));
    }

    #[test]
    fn an_address_belongs_to_whom_it_is_given() {
        let lo = Address {
            address: "127.0.0.1".parse().unwrap(),
            name: "lo".to_owned(),
            interface: 1,
            loopback: true,
            carrier: true,
        };
        for (text, has) in
            [("a@", true), ("a@interface=lo", true), ("a@interface=eth0", false), ("a@address=::1", false)]
        {
            assert_eq!(good(text)[0].addresses.has(&lo), has, "{text}");
        }
    }
}
