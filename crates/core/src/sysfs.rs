//! The files in which the kernel shows RDMA devices, for the devices of this library
//! (Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-infiniband there).
//!
//! Counters belong to processes, so their files are there only where a process makes them anew
//! ([`crate::counters::files`]): a zero that stays would be a lie.

use crate::attributes::{Gid, GidKind, PortAttributes, TransportType, shown};
use crate::counters::files;
use crate::description::{Bus, Description, Slot, bus_name, bus_of};
use crate::interfaces::{self, Address};
use crate::transport::Transport;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;

mod place;

use place::{Place, Processors};

/// The kind of entry at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with this text, to which the kernel adds a newline.
    Text(String),
    /// A folder that may be empty.
    Folder,
    /// A character device.
    Device,
    /// A link with this text.
    Link(String),
}

/// The version of the interface of `/dev/infiniband/uverbs*`, of its devices, and of `/dev/infiniband/umad*`,
/// as the kernel has had them for years.
const VERBS_ABI: &str = "6";
const DEVICE_ABI: &str = "1";
const MAD_ABI: &str = "5";

/// The numbers of each [`Content::Device`]: those of `/dev/null`, which stands for it.
const NUMBERS: (u32, u32) = (1, 3);

/// The only P_Key: the default partition, full membership.
const PKEYS: &str = "0xffff";

/// The number of our first `uverbs` where the host's devices are shown, too: the kernel's own end before it
/// (RDMA_MAX_PORTS).
const BESIDE_HOST: usize = 1024;

/// The name of a device's file in `/dev/infiniband`, by its index; `beside_host`: the host's devices are
/// shown, too.
pub fn verbs_name(index: usize, beside_host: bool) -> String {
    format!("uverbs{}", index + if beside_host { BESIDE_HOST } else { 0 })
}

/// Everything that stands there for these devices, in the order of their indices: absolute paths and
/// contents. Folders that are not empty are not listed. `with_counters`: the files of counters, too.
/// `beside_host`: as of [`verbs_name`].
// PRACTICE-FILES-1, PRACTICE-FILES-2
pub fn entries(
    devices: &[(&Description, &dyn Transport)],
    with_counters: bool,
    beside_host: bool,
) -> Vec<(String, Content)> {
    let addresses = Vec::new();
    let mut list = List { entries: Vec::new(), shown: HashSet::new(), with_counters, addresses };
    list.put("/sys/class/infiniband", Content::Folder);
    list.put("/dev/infiniband/rdma_cm", Content::Device);
    list.text("/sys/class/infiniband_verbs/abi_version", VERBS_ABI);
    list.text("/sys/class/infiniband_mad/abi_version", MAD_ABI);
    if devices.is_empty() {
        return list.entries;
    }
    list.addresses = interfaces::addresses();
    let mut processors = Processors::default();
    let descriptions: Vec<_> = devices.iter().map(|(description, _)| *description).collect();
    let places = place::of(&descriptions, &machine_has_bus);
    for (index, ((description, transport), place)) in devices.iter().zip(places).enumerate() {
        let net = description.addresses.interface(&list.addresses).map(|(name, _)| name);
        let verbs = verbs_name(index, beside_host);
        let device = Device { description, transport: *transport, place, verbs, net };
        list.device(&device, &mut processors);
    }
    list.entries
}

/// Whether the machine has a PCI bus, also if this process is shown another tree.
pub fn machine_has_bus(bus: Bus) -> bool {
    let name = bus_name(bus);
    ["/sys/class/pci_bus/", "/sys/devices/pci"].iter().any(|place| machine_has(&format!("{place}{name}")))
}

/// Whether the machine has a PCI device, also if this process is shown another tree.
pub fn machine_has_slot(slot: &Slot) -> bool {
    machine_has(&format!("/sys/bus/pci/devices/{slot}"))
}

/// By a system call: the C library's functions may be replaced by ones that show our own files, too.
fn machine_has(path: &str) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: a C string and plain numbers.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 }
}

/// The text of the file at an absolute path, links followed; none if there is none.
pub fn text<'a>(entries: &'a [(String, Content)], path: &str) -> Option<&'a str> {
    let by_path: HashMap<&str, &Content> =
        entries.iter().map(|(path, content)| (path.as_str(), content)).collect();
    let mut here = String::new();
    let mut rest: Vec<&str> = path.split('/').rev().collect();
    // Every link leads in the end to an entry that is no link.
    let mut links = 0;
    while let Some(part) = rest.pop() {
        match part {
            "" | "." => {}
            ".." => here.truncate(here.rfind('/').unwrap_or_default()),
            name => {
                let before = here.len();
                here = format!("{here}/{name}");
                if let Some(Content::Link(target)) = by_path.get(here.as_str()) {
                    links += 1;
                    if links > 8 || target.starts_with('/') {
                        return None;
                    }
                    here.truncate(before);
                    rest.extend(target.split('/').rev());
                }
            }
        }
    }
    match by_path.get(here.as_str()) {
        Some(Content::Text(text)) => Some(text),
        _ => None,
    }
}

struct Device<'a> {
    description: &'a Description,
    transport: &'a dyn Transport,
    place: Place,
    verbs: String,
    /// The network interface that it stands on.
    net: Option<String>,
}

struct List {
    entries: Vec<(String, Content)>,
    /// Folders that several devices have above them.
    shown: HashSet<String>,
    with_counters: bool,
    /// The host's.
    addresses: Vec<Address>,
}

impl List {
    fn put(&mut self, path: &str, content: Content) {
        self.entries.push((path.to_owned(), content));
    }

    fn text(&mut self, path: &str, text: impl Into<String>) {
        self.put(path, Content::Text(text.into()));
    }

    /// A link to an absolute path, with a relative text.
    fn link(&mut self, path: &str, to: &str) {
        self.put(path, Content::Link(relative(path, to)));
    }

    fn device(&mut self, device: &Device<'_>, processors: &mut Processors) {
        let (parent, name, verbs) = (&device.place.path, &device.description.name, &device.verbs);
        self.parent(device, processors);
        let at = format!("{parent}/infiniband/{name}");
        self.verbs(device, &at);
        self.port(device, &format!("{at}/ports/1"));
        let verbs_at = format!("{parent}/infiniband_verbs/{verbs}");
        self.text(&format!("{verbs_at}/ibdev"), &**name);
        self.text(&format!("{verbs_at}/abi_version"), DEVICE_ABI);
        let (major, minor) = NUMBERS;
        self.text(&format!("{verbs_at}/dev"), format!("{major}:{minor}"));
        let file = format!("infiniband/{verbs}");
        self.text(&format!("{verbs_at}/uevent"), format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={file}"));
        self.link(&format!("{verbs_at}/device"), parent);
        self.link(&format!("{verbs_at}/subsystem"), "/sys/class/infiniband_verbs");
        self.link(&format!("/sys/class/infiniband/{name}"), &at);
        self.link(&format!("/sys/class/infiniband_verbs/{verbs}"), &verbs_at);
        self.put(&format!("/dev/infiniband/{verbs}"), Content::Device);
    }

    /// The entry above the device: the adapter, or the folder in place of one.
    fn parent(&mut self, device: &Device<'_>, processors: &mut Processors) {
        let path = &device.place.path;
        match device.place.slots.split_last() {
            None => self.platform(path),
            Some((slot, bridges)) => {
                self.bridges(device, bridges);
                // Functions of an adapter may be devices of their own; a place is one function.
                let (vendor, part) = device.description.identity.unwrap_or_default();
                self.pci(path, *slot, 0x02_0000, (vendor, part));
            }
        }
        let node = device.description.numa;
        self.node(path, node);
        let processors = processors.of(node);
        self.text(&format!("{path}/local_cpus"), &*processors.mask);
        self.text(&format!("{path}/local_cpulist"), &*processors.list);
        if let Some(net) = &device.net {
            // The system's own: it says more than could be said here.
            self.put(&format!("{path}/net/{net}"), Content::Link(format!("/sys/class/net/{net}")));
        }
    }

    fn platform(&mut self, path: &str) {
        self.link(&format!("{path}/subsystem"), "/sys/bus/platform");
        self.text(&format!("{path}/modalias"), "platform:adverb");
        self.text(&format!("{path}/uevent"), "MODALIAS=platform:adverb");
        if self.shown.insert("/sys/bus/platform".to_owned()) {
            self.put("/sys/bus/platform", Content::Link("/sys/bus/platform".to_owned()));
        }
    }

    fn bridges(&mut self, device: &Device<'_>, bridges: &[Slot]) {
        let mut path = device.place.root.clone();
        let mut slots = bridges.iter().chain(device.place.slots.last());
        let Some(mut above) = slots.next() else { return };
        for below in slots {
            path = format!("{path}/{above}");
            if self.shown.insert(path.clone()) {
                self.pci(&path, *above, 0x06_0400, (0, 0));
                self.node(&path, device.description.numa);
                let bus = bus_name(bus_of(below));
                let at = format!("{path}/pci_bus/{bus}");
                self.put(&at, Content::Folder);
                self.link(&format!("/sys/class/pci_bus/{bus}"), &at);
            }
            above = below;
        }
    }

    fn node(&mut self, path: &str, node: Option<u32>) {
        self.text(&format!("{path}/numa_node"), node.map_or("-1".to_owned(), |node| node.to_string()));
    }

    fn pci(&mut self, path: &str, slot: Slot, class: u32, (vendor, part): (u32, u32)) {
        let alias = format!(
            "pci:v{vendor:08X}d{part:08X}sv00000000sd00000000bc{:02x}sc{:02x}i{:02x}",
            class >> 16,
            class >> 8 & 0xff,
            class & 0xff
        );
        for (file, text) in [
            ("vendor", format!("{vendor:#06x}")),
            ("device", format!("{part:#06x}")),
            ("subsystem_vendor", "0x0000".to_owned()),
            ("subsystem_device", "0x0000".to_owned()),
            ("revision", "0x00".to_owned()),
            ("class", format!("{class:#08x}")),
            ("max_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("current_link_speed", "32.0 GT/s PCIe".to_owned()),
            ("max_link_width", "16".to_owned()),
            ("current_link_width", "16".to_owned()),
            (
                "uevent",
                format!(
                    "PCI_CLASS={class:X}\nPCI_ID={vendor:04X}:{part:04X}\nPCI_SUBSYS_ID=0000:0000\nPCI_SLOT_NAME={slot}\nMODALIAS={alias}"
                ),
            ),
            ("modalias", alias.clone()),
        ] {
            self.text(&format!("{path}/{file}"), text);
        }
        self.link(&format!("{path}/subsystem"), "/sys/bus/pci");
        self.link(&format!("/sys/bus/pci/devices/{slot}"), path);
    }

    fn verbs(&mut self, device: &Device<'_>, at: &str) {
        let attributes = device.transport.attributes();
        let guid = words(&attributes.node_guid.to_be_bytes());
        let kind = match attributes.transport {
            TransportType::Ib => "1: CA",
            TransportType::Iwarp => "4: RNIC",
        };
        let name = &device.description.name;
        self.text(&format!("{at}/node_type"), kind);
        self.text(&format!("{at}/node_guid"), &*guid);
        self.text(&format!("{at}/sys_image_guid"), guid);
        self.text(&format!("{at}/node_desc"), &**name);
        self.text(&format!("{at}/fw_ver"), env!("CARGO_PKG_VERSION"));
        self.text(&format!("{at}/uevent"), format!("NAME={name}"));
        if let (Some(net), true) = (&device.net, device.place.slots.is_empty()) {
            self.text(&format!("{at}/parent"), &**net);
        }
        self.link(&format!("{at}/device"), &device.place.path);
        self.link(&format!("{at}/subsystem"), "/sys/class/infiniband");
    }

    fn port(&mut self, device: &Device<'_>, at: &str) {
        let (port, gids): (PortAttributes, Vec<Gid>) =
            (device.transport.port(), shown(device.transport.gids()));
        let (state, physical) =
            if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        // As rxe and siw have it. Verbs add that GIDs are IP addresses; the kernel keeps that elsewhere.
        let capabilities = match device.transport.attributes().transport {
            TransportType::Ib => "0x00010000",
            TransportType::Iwarp => "0x00090000",
        };
        let rate = device.description.rate;
        for (file, text) in [
            ("state", state),
            ("phys_state", physical),
            ("link_layer", "Ethernet"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", capabilities),
        ] {
            self.text(&format!("{at}/{file}"), text);
        }
        if self.with_counters {
            for file in files::names(device.transport.attributes().transport) {
                self.text(&format!("{at}/{file}"), "0");
            }
        }
        self.text(&format!("{at}/rate"), format!("{} Gb/sec ({})", rate.gigabits, rate.words));
        for index in 0..port.pkey_table_length {
            self.text(&format!("{at}/pkeys/{index}"), PKEYS);
        }
        for index in 0..port.gid_table_length {
            let gid = gids.iter().find(|gid| gid.index == index);
            self.text(&format!("{at}/gids/{index}"), words(&gid.map_or([0; 16], |gid| gid.bytes)));
        }
        for gid in &gids {
            let kind = match gid.kind {
                GidKind::RoceV2 => "RoCE v2",
                GidKind::IbOrRoceV1 => "IB/RoCE v1",
            };
            self.text(&format!("{at}/gid_attrs/types/{}", gid.index), kind);
            let known = self.addresses.iter().find(|address| address.interface == gid.interface);
            let net = known.map(|address| address.name.clone());
            if let Some(net) = net.or_else(|| interfaces::name_of(gid.interface)) {
                self.text(&format!("{at}/gid_attrs/ndevs/{}", gid.index), net);
            }
        }
    }
}

/// The text of a link at `path` that leads to `to`, both absolute.
fn relative(path: &str, to: &str) -> String {
    let (from, to): (Vec<_>, Vec<_>) = (path.split('/').collect(), to.split('/').collect());
    // The kernel goes up as far as both share a folder; the link's own name is none.
    let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count().min(to.len() - 1);
    let mut parts = vec![".."; from.len() - 1 - shared.min(from.len() - 1)];
    parts.extend(&to[shared..]);
    parts.join("/")
}

/// Bytes in groups of two, as the kernel prints GUIDs and GIDs.
pub fn words(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn links_are_those_of_the_kernel() {
        let adapter = "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0";
        for (path, to, text) in [
            (
                "/sys/class/infiniband/mlx5_0",
                format!("{adapter}/infiniband/mlx5_0"),
                "../../devices/pci0000:16/0000:16:02.0/0000:17:00.0/infiniband/mlx5_0",
            ),
            (&*format!("{adapter}/infiniband/mlx5_0/device"), adapter.to_owned(), "../../../0000:17:00.0"),
            (
                &format!("{adapter}/infiniband/mlx5_0/subsystem"),
                "/sys/class/infiniband".to_owned(),
                "../../../../../../class/infiniband",
            ),
            (&format!("{adapter}/subsystem"), "/sys/bus/pci".to_owned(), "../../../../bus/pci"),
            (
                "/sys/bus/pci/devices/0000:17:00.0",
                adapter.to_owned(),
                "../../../devices/pci0000:16/0000:16:02.0/0000:17:00.0",
            ),
        ] {
            assert_eq!(relative(path, &to), text);
        }
    }
}
