//! The GID table: the addresses of this host, in the order in which programs should try them.
//!
//! Index 0 is the address of the default route. Then come the other global IPv4 addresses, global IPv6,
//! link-local, loopback last. While a program has the device open an index keeps its meaning. An address that
//! goes leaves its place empty, and has it again when it comes back. A new one is appended, and gets the
//! place of one that has gone only when there is no other.

use adverb_core::attributes::{Gid, GidKind, gid_of};
use adverb_core::description::{Addresses, Description};
use adverb_core::interfaces::{Address, addresses, addresses_for};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};

/// The table's size.
pub(crate) const LENGTH: u32 = 128;
/// Most bytes of a packet's headers, by which an MTU is shortened (the kernel's rxe does the same).
const HEADERS: u32 = 80;

/// An address of an interface that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Local {
    address: IpAddr,
    interface: u32,
    mtu: u32,
    loopback: bool,
    carrier: bool,
}

/// The table of a device. Thread-safe.
pub(crate) struct Gids {
    /// The addresses that are in it.
    addresses: Addresses,
    /// The device, of one that may have them in a way of its own.
    device: Option<String>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By index.
    places: Vec<Place>,
    filled: bool,
    changes: u64,
}

struct Place {
    local: Local,
    /// The address has gone.
    empty: bool,
}

impl Table {
    /// The addresses that are there, with their indices.
    fn entries(&self) -> impl Iterator<Item = (usize, &Local)> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, place)| !place.empty).map(|(index, place)| (index, &place.local))
    }

    fn locals(&self) -> impl Iterator<Item = &Local> {
        self.entries().map(|(_, local)| local)
    }

    /// Takes in the addresses that there are now. Returns whether the table has changed.
    fn update(&mut self, found: Vec<Local>) -> bool {
        let mut changed = false;
        let same =
            |one: &Local, other: &Local| one.address == other.address && one.interface == other.interface;
        for place in &mut self.places {
            let new = found.iter().find(|new| same(new, &place.local));
            changed |= place.empty == new.is_some();
            place.empty = new.is_none();
            place.local = new.copied().unwrap_or(place.local);
        }
        for new in found {
            if self.locals().any(|local| same(local, &new)) {
                continue;
            }
            let place = Place { local: new, empty: false };
            // ROCE-20
            if self.places.len() < LENGTH as usize {
                self.places.push(place);
            } else if let Some(free) = self.places.iter_mut().find(|place| place.empty) {
                *free = place;
            } else {
                continue;
            }
            changed = true;
        }
        self.filled = true;
        changed
    }
}

impl Default for Gids {
    /// The GIDs of all addresses of the host.
    fn default() -> Self {
        Self { addresses: Addresses::All, device: None, table: Mutex::default() }
    }
}

impl Gids {
    /// The GIDs of a device.
    pub(crate) fn of(wanted: &Description) -> Self {
        let (addresses, device) = (wanted.addresses.clone(), Some(wanted.name.clone()));
        Self { addresses, device, table: Mutex::default() }
    }

    /// The entries.
    pub(crate) fn all(&self) -> Vec<Gid> {
        let table = self.filled();
        table
            .entries()
            .map(|(index, local)| Gid {
                index: index as u32,
                bytes: gid_of(local.address),
                interface: local.interface,
                // ROCE-21
                kind: GidKind::RoceV2,
            })
            .collect()
    }

    /// The address at an index, and its interface.
    pub(crate) fn at(&self, index: u8) -> Option<(IpAddr, u32)> {
        let table = self.filled();
        let place = table.places.get(usize::from(index)).filter(|place| !place.empty)?;
        Some((place.local.address, place.local.interface))
    }

    /// Whether an address is one of this host.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.filled().locals().any(|local| local.address == address)
    }

    /// Whether the port is active: packets leave by one of its interfaces.
    // PRACTICE-DEVICES-6
    pub(crate) fn is_active(&self) -> bool {
        self.filled().locals().any(|local| local.carrier)
    }

    /// The path MTU of a port: the most that every interface to other hosts takes, or the loopback if there
    /// is no other interface.
    pub(crate) fn active_mtu(&self) -> Option<u32> {
        let table = self.filled();
        let outward = table.locals().filter(|local| !local.loopback).map(|local| local.mtu).min();
        outward.or_else(|| table.locals().map(|local| local.mtu).max()).map(path_mtu)
    }

    /// The path MTU that suits the interface of a local address.
    pub(crate) fn mtu_of(&self, address: IpAddr) -> Option<u32> {
        let table = self.filled();
        table.locals().find(|local| local.address == address).map(|local| path_mtu(local.mtu))
    }

    /// Looks at the interfaces again.
    pub(crate) fn refresh(&self) {
        let found = interfaces(&self.addresses, self.device.as_deref());
        let mut table = self.lock();
        let has_changed = table.update(found);
        table.changes += u64::from(has_changed);
    }

    /// How often the table has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.filled().changes
    }

    fn filled(&self) -> MutexGuard<'_, Table> {
        let table = self.lock();
        if table.filled {
            return table;
        }
        drop(table);
        self.refresh();
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The largest path MTU that fits an interface; the smallest one that exists if none does.
// ROCE-10
fn path_mtu(mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|size| size + HEADERS <= mtu).unwrap_or(256)
}

/// The addresses of the interfaces that are up, best first.
fn interfaces(own: &Addresses, device: Option<&str>) -> Vec<Local> {
    let found = device.map_or_else(addresses, addresses_for).into_iter();
    let mut mtus = BTreeMap::new();
    let mut mtu = |local: &Address| {
        let ask = || mtu_of_interface(&local.name).unwrap_or(1500);
        *mtus.entry(local.interface).or_insert_with(ask)
    };
    found
        .filter(|local| own.has(local))
        .map(|local| Local {
            address: local.address,
            interface: local.interface,
            mtu: mtu(&local),
            loopback: local.loopback,
            carrier: local.carrier,
        })
        .collect()
}

fn mtu_of_interface(name: &str) -> Option<u32> {
    // SAFETY: all zero is a valid request, and the name is copied so that a zero stays behind it.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if name.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return None;
        }
        let result = libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request);
        libc::syscall(libc::SYS_close, fd);
        (result == 0).then_some(request.ifr_ifru.ifru_mtu as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::address_of;

    // ROCE-20
    #[test]
    fn the_loopback_is_there_and_last() {
        let gids = Gids::default();
        let all = gids.all();
        let address: IpAddr = "127.0.0.1".parse().unwrap();
        let loopback =
            all.iter().find(|gid| address_of(&gid.bytes) == address).expect("a loopback address").index;
        assert_eq!(gids.at(loopback as u8).unwrap().0, address);
        let behind = all.iter().filter(|gid| gid.index > loopback);
        assert!(behind.into_iter().all(|gid| address_of(&gid.bytes).is_loopback()));
        let changes = gids.changes();
        gids.refresh();
        assert_eq!(gids.changes(), changes, "nothing has changed");
        assert_eq!(gids.at(255), None);
    }

    // ROCE-20
    #[test]
    fn an_address_that_comes_back_has_its_index_again() {
        let local = |number: u32| Local {
            address: IpAddr::from([10, 0, (number >> 8) as u8, number as u8]),
            interface: 1,
            mtu: 1500,
            loopback: false,
            carrier: true,
        };
        let mut table = Table::default();
        let indices = |table: &Table| -> Vec<(usize, IpAddr)> {
            table.entries().map(|(index, local)| (index, local.address)).collect()
        };
        assert!(table.update(vec![local(1), local(2)]));
        assert!(table.update(vec![local(2)]));
        assert!(table.update(vec![local(3), local(2)]));
        assert_eq!(indices(&table), [(1, local(2).address), (2, local(3).address)]);
        assert!(table.update(vec![local(1), local(2), local(3)]));
        assert!(!table.update(vec![local(3), local(2), local(1)]));
        assert_eq!(indices(&table)[0], (0, local(1).address));
        // However many have come and gone, a new one finds a place.
        for number in 4..4 * LENGTH {
            assert!(table.update(vec![local(2), local(number)]));
            assert_eq!(indices(&table).len(), 2, "{number}");
        }
        assert_eq!(indices(&table).into_iter().find(|(index, _)| *index == 1), Some((1, local(2).address)));
    }

    // ROCE-10, IB-PKT-44
    #[test]
    fn path_mtus() {
        assert_eq!(
            [path_mtu(1500), path_mtu(9000), path_mtu(4200), path_mtu(65536)],
            [1024, 4096, 4096, 4096]
        );
        assert_eq!([path_mtu(576), path_mtu(68)], [256, 256]);
    }
}
