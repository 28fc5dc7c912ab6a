//! Which places on PCI buses a list of devices takes, so that no two of them need the same.

use super::Slot;
use std::collections::{HashMap, HashSet};

/// Most bridges and an adapter, one below the other.
const DEEPEST: usize = 16;

/// A PCI bus: its domain and its number.
pub type Bus = (u32, u8);

/// The bus that a slot is on.
pub fn bus_of(slot: &Slot) -> Bus {
    (slot.domain, slot.bus)
}

/// A bus as the kernel writes it.
pub fn bus_name((domain, bus): Bus) -> String {
    format!("{domain:04x}:{bus:02x}")
}

/// The contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotContents {
    Adapter,
    /// A bridge, with the bus below it.
    Bridge(Bus),
}

/// The buses and slots that are taken.
#[derive(Clone, Default)]
pub struct Tree {
    slots: HashMap<Slot, SlotContents>,
    /// The bridge above each bus, or none.
    above: HashMap<Bus, Option<Slot>>,
}

impl Tree {
    /// Whether something is on a bus.
    pub fn has(&self, bus: Bus) -> bool {
        self.above.contains_key(&bus)
    }

    /// The bridges above a bus, from the top downwards; none where nothing is on the bus.
    fn bridges(&self, bus: Bus) -> Option<Vec<Slot>> {
        let mut bridges = Vec::new();
        let mut above = *self.above.get(&bus)?;
        while let Some(bridge) = above {
            bridges.push(bridge);
            above = self.above.get(&bus_of(&bridge)).copied().flatten();
        }
        bridges.reverse();
        Some(bridges)
    }

    /// Takes the place of an adapter above which no bridge was named. It is on a bus that there is already,
    /// or below a root port of its own, on a bus that is not `reserved`. Bus 0 has none. Returns the bridges
    /// and the adapter.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_alone(&mut self, slot: Slot, reserved: &HashSet<Bus>) -> Result<Vec<Slot>, String> {
        let bridges = self.bridges(bus_of(&slot)).unwrap_or_else(|| {
            let is_free = |bus: &Bus| !self.has(*bus) && !reserved.contains(bus);
            let below = (1..=u8::MAX).map(|step| (slot.domain, slot.bus.wrapping_sub(step))).find(is_free);
            let port = |(domain, bus)| Slot { domain, bus, device: 1, function: 0 };
            below.filter(|_| slot.bus != 0).map(port).into_iter().collect()
        });
        let chain: Vec<_> = bridges.into_iter().chain([slot]).collect();
        self.take(&chain)?;
        Ok(chain)
    }

    /// Takes the slots of an adapter: the bridges above it, and its own place.
    ///
    /// # Errors
    /// The obstacle, in words; then nothing has been taken.
    pub fn take(&mut self, chain: &[Slot]) -> Result<(), String> {
        if chain.len() > DEEPEST {
            return Err(format!("at most {DEEPEST} PCI addresses may stand one below the other"));
        }
        let mut with = self.clone();
        let mut above = None;
        for (index, slot) in chain.iter().enumerate() {
            with.put(*slot, above, chain.get(index + 1).map(bus_of))?;
            above = Some(*slot);
        }
        *self = with;
        Ok(())
    }

    fn put(&mut self, slot: Slot, above: Option<Slot>, below: Option<Bus>) -> Result<(), String> {
        let bus = bus_of(&slot);
        let known = *self.above.entry(bus).or_insert(above);
        if known != above {
            let place =
                |above: Option<Slot>| above.map_or("at the top".to_owned(), |slot| format!("below {slot}"));
            let bus = bus_name(bus);
            return Err(format!("bus {bus} is {} already, not {}", place(known), place(above)));
        }
        if below.is_some_and(|(domain, _)| domain != slot.domain) {
            return Err(format!("{slot} is a bridge to another domain"));
        }
        let contents = below.map_or(SlotContents::Adapter, SlotContents::Bridge);
        match self.slots.insert(slot, contents) {
            None => Ok(()),
            Some(SlotContents::Adapter) if contents == SlotContents::Adapter => {
                Err(format!("there are two devices at {slot}"))
            }
            Some(SlotContents::Bridge(bus)) if contents != SlotContents::Adapter => {
                match below == Some(bus) {
                    true => Ok(()),
                    false => Err(format!("{slot} is a bridge to bus {} already", bus_name(bus))),
                }
            }
            Some(_) => Err(format!("{slot} is a bridge, and a device")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::description::{Wrong, parse};

    fn first_wrong(list: &str) -> Option<Wrong> {
        parse(list, &["roce0"]).into_iter().find_map(Result::err)
    }

    #[test]
    fn devices_that_need_the_same_place_are_refused() {
        let endless = (0..17).map(|bus| format!("{bus:02x}:00.0")).collect::<Vec<_>>().join("/");
        for (list, why) in [
            ("m[0-3]@pci=17:00.0", "m1: pci=0000:17:00.0: there are two devices at 0000:17:00.0"),
            ("a@pci=17:00.0 b@pci=0:17:0.0", "there are two devices at 0000:17:00.0"),
            (
                "a@pci=16:02.0/17:00.0 b@pci=16:03.0/17:01.0",
                "bus 0000:17 is below 0000:16:02.0 already, not below 0000:16:03.0",
            ),
            (
                "a@pci=16:01.0/17:00.0 b@pci=16:01.0/18:00.0",
                "0000:16:01.0 is a bridge to bus 0000:17 already",
            ),
            ("a@pci=17:00.0/18:00.0 b@pci=17:00.0", "0000:17:00.0 is a bridge, and a device"),
            ("a@pci=17:00.0 b@pci=17:00.0/18:00.0", "0000:17:00.0 is a bridge, and a device"),
            ("a@pci=16:01.0/17:00.0 b@pci=0:16:01.0", "0000:16:01.0 is a bridge, and a device"),
            ("a@pci=00:01.0 b@pci=00:01.0/01:00.0", "0000:00:01.0 is a bridge, and a device"),
            ("a@pci=16:02.0/16:02.0", "bus 0000:16 is at the top already, not below 0000:16:02.0"),
            ("a@pci=16:02.0/17:00.0/16:02.0", "bus 0000:16 is at the top already"),
            ("a@pci=0:16:02.0/1:17:00.0", "0000:16:02.0 is a bridge to another domain"),
            (&*format!("a@pci={endless}"), "at most 16 PCI addresses"),
        ] {
            let said = first_wrong(list).expect(list);
            assert!(said.why.contains(why), "{list}: {}", said.why);
        }
        let list = "a@rate=40\nb@pci=17:00.0\nc@pci=17:00.0";
        assert_eq!(crate::description::line_of(list, first_wrong(list).expect(list).at), 3);
    }

    #[test]
    fn each_bus_has_a_root_port_unless_its_bridges_are_named() {
        for (list, chains) in [
            ("a@pci=0:0:1f.6", vec!["0000:00:1f.6"]),
            ("m[0-1]@pci=17:00.[0-1]", vec!["0000:16:01.0/0000:17:00.0", "0000:16:01.0/0000:17:00.1"]),
            (
                "m[0-2]@pci=[17-19]:00.0",
                vec!["0000:16:01.0/0000:17:00.0", "0000:15:01.0/0000:18:00.0", "0000:14:01.0/0000:19:00.0"],
            ),
            // In any order of the list.
            (
                "a@pci=17:01.0 b@pci=18:00.0 c@pci=15:02.0/16:01.0/17:00.0",
                vec![
                    "0000:15:02.0/0000:16:01.0/0000:17:01.0",
                    "0000:14:01.0/0000:18:00.0",
                    "0000:15:02.0/0000:16:01.0/0000:17:00.0",
                ],
            ),
            ("a@pci=01:00.0 b@pci=00:00.0", vec!["0000:ff:01.0/0000:01:00.0", "0000:00:00.0"]),
        ] {
            let found = parse(list, &["roce0"]).into_iter().map(|one| one.expect(list));
            let found =
                found.map(|one| one.pci.iter().map(ToString::to_string).collect::<Vec<_>>().join("/"));
            assert_eq!(found.collect::<Vec<_>>(), chains, "{list}");
        }
    }
}
