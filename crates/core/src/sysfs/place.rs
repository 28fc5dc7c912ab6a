//! Where in the tree of devices an RDMA device stands, and which processors are near.
//!
//! A device that nobody has given a place is part of a platform device of its own: it has all that programs look for in an adapter, and is none.

use crate::description::{Description, Slot};
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// A place in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The folder of what the device is part of.
    pub(super) path: String,
    /// The folder of the PCI bus at the top.
    pub(super) root: String,
    /// The bridges below it, and the adapter; none of a device that is on no PCI bus.
    pub(super) slots: Vec<Slot>,
}

/// The places of devices.
pub(super) fn of(devices: &[&Description]) -> Vec<Place> {
    let mut taken: HashSet<Slot> = devices.iter().flat_map(|device| device.pci.iter().copied()).collect();
    devices
        .iter()
        .enumerate()
        .map(|(index, device)| match &device.pci[..] {
            [] if device.is_on_pci() => below_port(free(device.numa.unwrap_or_default(), &mut taken)),
            // No digit at the end: NCCL takes devices whose names differ there alone for ports of one adapter.
            [] => Place {
                path: format!("/sys/devices/platform/adverb.{index}.auto"),
                root: String::new(),
                slots: Vec::new(),
            },
            [alone] => below_port(*alone),
            slots => at(slots.to_vec()),
        })
        .collect()
}

/// An adapter below a root port, as all are but those of bus 0.
fn below_port(slot: Slot) -> Place {
    match slot.bus.checked_sub(1) {
        None => at(vec![slot]),
        Some(bus) => at(vec![Slot { domain: slot.domain, bus, device: 1, function: 0 }, slot]),
    }
}

fn at(slots: Vec<Slot>) -> Place {
    let top = slots[0];
    let root = format!("/sys/devices/pci{:04x}:{:02x}", top.domain, top.bus);
    let path = slots.iter().fold(root.clone(), |path, slot| format!("{path}/{slot}"));
    Place { path, root, slots }
}

/// A slot that neither the machine nor the list has: of 32 buses for each of the first nodes.
fn free(node: u32, taken: &mut HashSet<Slot>) -> Slot {
    let first = 0x11 + (node % 4) * 0x38;
    let buses = (0..0x100).map(|step| ((first + 2 * step) & 0xff | 1) as u8);
    let slots = buses.map(|bus| Slot { domain: 0, bus, device: 0, function: 0 });
    let is_free = |slot: &Slot| {
        let root = format!("/sys/devices/pci0000:{:02x}", slot.bus - 1);
        !taken.contains(slot) && !Path::new(&root).exists()
    };
    let found = slots.into_iter().find(is_free);
    let slot = found.unwrap_or(Slot { domain: 0x1000 + taken.len() as u32, bus: 1, device: 0, function: 0 });
    taken.insert(slot);
    slot
}

/// Processors, as the kernel writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Near {
    /// As bits: `ff`.
    pub(super) mask: String,
    /// As ranges: `0-7`.
    pub(super) list: String,
}

/// The processors of nodes that were asked for.
#[derive(Default)]
pub(super) struct Processors(Vec<(Option<u32>, Near)>);

impl Processors {
    /// Those of a node; all, if the machine has no such node.
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

    #[test]
    fn processors_are_written_as_the_kernel_writes_them() {
        assert_eq!(mask("0-1"), "3");
        assert_eq!(mask("0-3,32-35"), "f,0000000f");
        assert_eq!(mask("63"), "80000000,00000000");
        assert_eq!(mask(""), "0");
    }

    #[test]
    fn every_device_has_a_place_of_its_own() {
        let list =
            "a@pci=17:00.[0-0] m[0-3]@numa=0 n[0-3]@numa=1 b@pci=0000:00:1f.6 c@pci=16:02.0/40:00.0 d@ e@";
        let found: Vec<_> = parse(list, &["roce0"]).into_iter().map(|one| one.expect("good")).collect();
        let places = of(&found.iter().collect::<Vec<_>>());
        let paths: HashSet<_> = places.iter().map(|place| &place.path).collect();
        assert_eq!(paths.len(), found.len());
        assert_eq!(places[0].path, "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0");
        assert_eq!(places[9].path, "/sys/devices/pci0000:00/0000:00:1f.6");
        assert_eq!(places[10].path, "/sys/devices/pci0000:16/0000:16:02.0/0000:40:00.0");
        assert_eq!(places[12].path, "/sys/devices/platform/adverb.12.auto");
    }
}
