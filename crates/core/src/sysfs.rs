//! What the kernel shows of RDMA devices in its file systems, for the devices of this library
//! (Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-infiniband there).
//!
//! Counters are left out: they belong to processes here, and a file of zeros would be a lie.

use crate::attributes::{Gid, GidKind, PortAttributes, TransportType};
use crate::interfaces;
use crate::transport::Transport;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with this text, to which the kernel adds a newline.
    Text(String),
    /// A folder that may be empty.
    Folder,
    /// A character device.
    Device,
}

/// The version of the interface of `/dev/infiniband/uverbs*`, of its devices, and of `/dev/infiniband/umad*`, as the kernel has had them for years.
const VERBS_ABI: &str = "6";
const DEVICE_ABI: &str = "1";
const MAD_ABI: &str = "5";

/// The only P_Key: the default partition, full membership.
const PKEYS: &str = "0xffff";

/// Everything that stands there for devices with these names and transports, in the order of their indices: absolute paths and
/// contents. Folders that are not empty are not listed.
pub fn entries<'a>(
    devices: impl IntoIterator<Item = (&'a str, &'a dyn Transport)>,
) -> Vec<(String, Content)> {
    let mut list = List(Vec::new());
    list.put("/sys/class/infiniband", Content::Folder);
    list.put("/dev/infiniband/rdma_cm", Content::Device);
    list.text("/sys/class/infiniband_verbs/abi_version", VERBS_ABI);
    list.text("/sys/class/infiniband_mad/abi_version", MAD_ABI);
    for (index, (name, transport)) in devices.into_iter().enumerate() {
        let verbs = format!("uverbs{index}");
        list.put(&format!("/dev/infiniband/{verbs}"), Content::Device);
        list.text(&format!("/sys/class/infiniband_verbs/{verbs}/ibdev"), name);
        list.text(&format!("/sys/class/infiniband_verbs/{verbs}/abi_version"), DEVICE_ABI);
        list.device(&format!("/sys/class/infiniband/{name}"), name, &verbs, transport);
    }
    list.0
}

struct List(Vec<(String, Content)>);

impl List {
    fn put(&mut self, path: &str, content: Content) {
        self.0.push((path.to_owned(), content));
    }

    fn text(&mut self, path: &str, text: impl Into<String>) {
        self.put(path, Content::Text(text.into()));
    }

    fn device(&mut self, at: &str, name: &str, verbs: &str, transport: &dyn Transport) {
        let attributes = transport.attributes();
        let (port, gids) = (transport.port(), transport.gids());
        let guid = words(&attributes.node_guid.to_be_bytes());
        let kind = match attributes.transport {
            TransportType::Ib => "1: CA",
            TransportType::Iwarp => "4: RNIC",
        };
        self.text(&format!("{at}/node_type"), kind);
        self.text(&format!("{at}/node_guid"), &*guid);
        self.text(&format!("{at}/sys_image_guid"), guid);
        self.text(&format!("{at}/node_desc"), name);
        self.text(&format!("{at}/fw_ver"), env!("CARGO_PKG_VERSION"));
        if let Some(net) = interfaces::parent() {
            let net = net.name;
            self.text(&format!("{at}/parent"), &*net);
            self.put(&format!("{at}/device/net/{net}"), Content::Folder);
        }
        self.put(&format!("{at}/device/infiniband/{name}"), Content::Folder);
        self.put(&format!("{at}/device/infiniband_verbs/{verbs}"), Content::Folder);
        self.port(&format!("{at}/ports/1"), &port, &gids);
    }

    fn port(&mut self, at: &str, port: &PortAttributes, gids: &[Gid]) {
        let (state, physical) =
            if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        for (file, text) in [
            ("state", state),
            ("phys_state", physical),
            ("link_layer", "Ethernet"),
            ("rate", "40 Gb/sec (4X QDR)"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x00010000"),
        ] {
            self.text(&format!("{at}/{file}"), text);
        }
        for index in 0..port.pkey_table_length {
            self.text(&format!("{at}/pkeys/{index}"), PKEYS);
        }
        for index in 0..port.gid_table_length {
            let gid = gids.iter().find(|gid| gid.index == index);
            self.text(&format!("{at}/gids/{index}"), words(&gid.map_or([0; 16], |gid| gid.bytes)));
        }
        for gid in gids {
            let kind = match gid.kind {
                GidKind::RoceV2 => "RoCE v2",
                GidKind::IbOrRoceV1 => "IB/RoCE v1",
            };
            self.text(&format!("{at}/gid_attrs/types/{}", gid.index), kind);
            if let Some(net) = interfaces::name_of(gid.interface) {
                self.text(&format!("{at}/gid_attrs/ndevs/{}", gid.index), net);
            }
        }
    }
}

/// Bytes in groups of two, as the kernel prints GUIDs and GIDs.
pub fn words(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}
