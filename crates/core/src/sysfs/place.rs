//! Where in the tree of devices an RDMA device stands, and which processors are near.
//!
//! A device without a place of its user's choice is part of a platform device of its own. That one has all
//! that programs look for in an adapter, and is none.

use crate::description::{Bus, Description, Slot, Tree, bus_name, bus_of};
use std::fs;

/// The first PCI domain that is used where the machine's own has no bus left.
const OWN_DOMAIN: u32 = 0x1000;

/// A place in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The folder of the adapter or platform device that the device is part of.
    pub(super) path: String,
    /// The folder of the PCI bus at the top.
    pub(super) root: String,
    /// The bridges below it, and the adapter; none of a device that is on no PCI bus.
    pub(super) slots: Vec<Slot>,
}

/// The places of devices, on a machine that has certain buses.
pub(super) fn of(devices: &[&Description], machine_has: &dyn Fn(Bus) -> bool) -> Vec<Place> {
    let mut tree = Tree::default();
    for device in devices.iter().filter(|device| !device.pci.is_empty()) {
        // The places that a list asks for were checked when it was read.
        let _ = tree.take(&device.pci);
    }
    devices
        .iter()
        .enumerate()
        .map(|(index, device)| match &device.pci[..] {
            [] if device.is_on_pci() => at(free(device.numa.unwrap_or_default(), &mut tree, machine_has)),
            // No digit at the end: NCCL takes devices whose names differ there alone for ports of one
            // adapter.
            [] => Place {
                path: format!("/sys/devices/platform/adverb.{index}.auto"),
                root: String::new(),
                slots: Vec::new(),
            },
            slots => at(slots.to_vec()),
        })
        .collect()
}

fn at(slots: Vec<Slot>) -> Place {
    let root = format!("/sys/devices/pci{}", bus_name(bus_of(&slots[0])));
    let path = slots.iter().fold(root.clone(), |path, slot| format!("{path}/{slot}"));
    Place { path, root, slots }
}

/// A slot below a root port, on buses that neither the machine nor the list has. In the first domain, 32
/// buses are for each of the first nodes; other nodes have a domain of our own.
fn free(node: u32, tree: &mut Tree, machine_has: &dyn Fn(Bus) -> bool) -> Vec<Slot> {
    let first = 0x11 + (node % 4) * 0x38;
    let domains = [0].into_iter().chain(OWN_DOMAIN..);
    let buses =
        domains.flat_map(|domain| (0..0x80).map(move |step| (domain, ((first + 2 * step) & 0xff | 1) as u8)));
    let slot = |domain, bus, device| Slot { domain, bus, device, function: 0 };
    let mut chains = buses.map(|(domain, bus)| vec![slot(domain, bus - 1, 1), slot(domain, bus, 0)]);
    let is_free = |slot: &Slot| !tree.has(bus_of(slot)) && !machine_has(bus_of(slot));
    let found = chains.find(|chain| chain.iter().all(is_free)).expect("there are more domains than devices");
    let _ = tree.take(&found);
    found
}

/// Processors, as the kernel writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Near {
    /// The processors as bits: `ff`.
    pub(super) mask: String,
    /// The processors as ranges: `0-7`.
    pub(super) list: String,
}

/// The processors of nodes that were asked for.
#[derive(Default)]
pub(super) struct Processors(Vec<(Option<u32>, Near)>);

impl Processors {
    /// The processors of a node, or all processors if the machine has no such node.
    pub(super) fn of(&mut self, node: Option<u32>) -> Near {
        if let Some((_, near)) = self.0.iter().find(|(known, _)| *known == node) {
            return near.clone();
        }
        let of_node = node
            .and_then(|node| fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).ok());
        let list = of_node.filter(|list| !list.trim().is_empty());
        let list =
            list.or_else(|| fs::read_to_string("/sys/devices/system/cpu/online").ok()).unwrap_or_default();
        let list = list.trim().to_owned();
        let near = Near { mask: mask(&list), list };
        self.0.push((node, near.clone()));
        near
    }
}

/// The bits of a list of ranges, in words of 32.
fn mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for number in first..=last.min(first.saturating_add(1 << 16)) {
            if words.len() <= number / 32 {
                words.resize(number / 32 + 1, 0);
            }
            words[number / 32] |= 1 << (number % 32);
        }
    }
    let mut text: Vec<_> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    if let Some(first) = words.last() {
        text[0] = format!("{first:x}");
    }
    text.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::parse;
    use std::collections::HashSet;

    #[test]
    fn processors_are_written_as_the_kernel_writes_them() {
        assert_eq!(mask("0-1"), "3");
        assert_eq!(mask("0-3,32-35"), "f,0000000f");
        assert_eq!(mask("63"), "80000000,00000000");
        assert_eq!(mask(""), "0");
    }

    fn places(list: &str, machine_has: &dyn Fn(Bus) -> bool) -> Vec<Place> {
        let found: Vec<_> = parse(list, &["roce0"]).into_iter().map(|one| one.expect("good")).collect();
        of(&found.iter().collect::<Vec<_>>(), machine_has)
    }

    #[test]
    fn every_device_has_a_place_of_its_own() {
        let list =
            "a@pci=17:00.[0-0] m[0-3]@numa=0 n[0-3]@numa=1 b@pci=0000:00:1f.6 c@pci=16:02.0/40:00.0 d@ e@";
        let places = places(list, &|_| false);
        let paths: HashSet<_> = places.iter().map(|place| &place.path).collect();
        assert_eq!(paths.len(), places.len());
        // c has bus 16 for its own bridge.
        assert_eq!(places[0].path, "/sys/devices/pci0000:15/0000:15:01.0/0000:17:00.0");
        assert_eq!(places[9].path, "/sys/devices/pci0000:00/0000:00:1f.6");
        assert_eq!(places[10].path, "/sys/devices/pci0000:16/0000:16:02.0/0000:40:00.0");
        assert_eq!(places[12].path, "/sys/devices/platform/adverb.12.auto");
    }

    #[test]
    fn a_place_that_nobody_has_named_is_on_buses_that_nobody_has() {
        // The list has the first buses that would be taken, one as a bus of bridges and one below.
        let named = "a@numa=0 b@pci=10:05.0/30:00.0 c@pci=05:01.0/13:00.0 d@pci=15:03.0";
        assert_eq!(places(named, &|_| false)[0].path, "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0");
        // So has the machine: a bus of bridges, or one below.
        let machine = [(0, 0x10), (0, 0x13)];
        let found = &places("a@numa=0", &|bus| machine.contains(&bus))[0];
        assert_eq!(found.path, "/sys/devices/pci0000:14/0000:14:01.0/0000:15:00.0");
        let found = &places("a@numa=0", &|(domain, _)| domain == 0)[0];
        assert_eq!(found.path, "/sys/devices/pci1000:10/1000:10:01.0/1000:11:00.0");
        let found = &places("m[00-31]@numa=0", &|(domain, _)| domain < 0x1005);
        assert!(found.iter().all(|place| place.path.contains("/pci1005:")));
    }
}
