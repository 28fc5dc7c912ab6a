//! The GID table: the addresses of this host, in the order in which programs should try them.
//!
//! Index 0 is the address of the default route; then the other global IPv4 addresses, global IPv6, link-local, loopback last. While a
//! program has the device open an index never changes its meaning: an address that goes leaves its place empty, a new one is appended.

use adverb_core::attributes::{Gid, GidKind, gid_of};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};

/// The table's size.
pub(crate) const LENGTH: u32 = 128;
/// What the headers of a packet take at most, by which an MTU is shortened (the kernel's rxe does the same).
const HEADERS: u32 = 80;

/// An address of an interface that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Local {
    address: IpAddr,
    interface: u32,
    mtu: u32,
    loopback: bool,
}

/// The table. Thread-safe.
#[derive(Default)]
pub(crate) struct Gids(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By index; None where an address has gone.
    places: Vec<Option<Local>>,
    filled: bool,
}

impl Gids {
    /// The entries.
    pub(crate) fn all(&self) -> Vec<Gid> {
        let table = self.filled();
        let entries = table.places.iter().enumerate();
        entries
            .filter_map(|(index, local)| {
                let local = local.as_ref()?;
                Some(Gid {
                    index: index as u32,
                    bytes: gid_of(local.address),
                    interface: local.interface,
                    // ROCE-21
                    kind: GidKind::RoceV2,
                })
            })
            .collect()
    }

    /// The address at an index, and its interface.
    pub(crate) fn at(&self, index: u8) -> Option<(IpAddr, u32)> {
        let table = self.filled();
        let local = (*table.places.get(usize::from(index))?)?;
        Some((local.address, local.interface))
    }

    /// Whether an address is one of this host.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.filled().places.iter().flatten().any(|local| local.address == address)
    }

    /// The path MTU of a port: what every interface takes that leads to other hosts, or the loopback if that is all there is.
    pub(crate) fn active_mtu(&self) -> Option<u32> {
        let table = self.filled();
        let places = || table.places.iter().flatten();
        let outward = places().filter(|local| !local.loopback).map(|local| local.mtu).min();
        outward.or_else(|| places().map(|local| local.mtu).max()).map(path_mtu)
    }

    /// The path MTU that suits the interface of a local address.
    pub(crate) fn mtu_of(&self, address: IpAddr) -> Option<u32> {
        let table = self.filled();
        table.places.iter().flatten().find(|local| local.address == address).map(|local| path_mtu(local.mtu))
    }

    /// Looks at the interfaces again. Returns whether the table has changed.
    pub(crate) fn refresh(&self) -> bool {
        let found = interfaces();
        let mut table = self.lock();
        let mut changed = false;
        for place in &mut table.places {
            if let Some(local) = place {
                match found
                    .iter()
                    .find(|new| new.address == local.address && new.interface == local.interface)
                {
                    Some(new) => *local = *new,
                    None => {
                        *place = None;
                        changed = true;
                    }
                }
            }
        }
        for new in found {
            let known = table
                .places
                .iter()
                .flatten()
                .any(|local| local.address == new.address && local.interface == new.interface);
            // ROCE-20
            if !known && table.places.len() < LENGTH as usize {
                table.places.push(Some(new));
                changed = true;
            }
        }
        table.filled = true;
        changed
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
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The largest path MTU that fits an interface; the smallest one that exists if none does.
// ROCE-10
fn path_mtu(mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|size| size + HEADERS <= mtu).unwrap_or(256)
}

/// The addresses of the interfaces that are up, best first.
fn interfaces() -> Vec<Local> {
    let found = adverb_core::interfaces::addresses().into_iter();
    found
        .map(|local| Local {
            address: local.address,
            interface: local.interface,
            mtu: mtu_of_interface(&local.name).unwrap_or(1500),
            loopback: local.loopback,
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
        assert!(!gids.refresh(), "nothing has changed");
        assert_eq!(gids.at(255), None);
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
