//! The addresses of this host's network interfaces, in its network namespace.

use crate::setting;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub interface: u32,
    /// Whether the interface leads to this host alone.
    pub loopback: bool,
    /// Whether the interface has a carrier: its cable is plugged in, and the other end is up.
    pub carrier: bool,
}

/// How the interfaces are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    /// The addresses of the interfaces that are up, in the order of [`addresses`].
    pub addresses: Vec<Address>,
    /// Whether all interfaces are down, so that nothing can be carried.
    pub all_down: bool,
    /// The index of every interface, up or down, by its name.
    pub indices: BTreeMap<String, u32>,
}

thread_local! {
    /// The interfaces as this thread sees them for now ([`seen_as`]).
    static SEEN: RefCell<Option<Interfaces>> = const { RefCell::new(None) };
}

/// Changes the interfaces that were found, for a device of this name, or with none for the process.
type Alters = dyn Fn(Option<&str>, &mut Interfaces) + Send + Sync;

/// The function that changes the interfaces that are found, in this process, if there is one.
static ALTERS: OnceLock<&'static Alters> = OnceLock::new();

/// Has the interfaces of the host appear as `alters` makes them, in this process (`adverb run --fault`). To
/// be called before any look at them; the first call counts.
pub fn alter(alters: &'static Alters) {
    let _ = ALTERS.set(alters);
}

/// Does the work while [`addresses`] and [`all_down`] answer this thread as `seen` says. Many questions then
/// take one look, and their answers agree.
pub fn seen_as<T>(seen: Interfaces, work: impl FnOnce() -> T) -> T {
    struct Forgets;
    impl Drop for Forgets {
        fn drop(&mut self) {
            SEEN.set(None);
        }
    }
    SEEN.set(Some(seen));
    let _forgets = Forgets;
    work()
}

/// A part of the interfaces as this thread sees them for now.
fn seen<T>(part: impl FnOnce(&Interfaces) -> T) -> Option<T> {
    SEEN.try_with(|seen| seen.borrow().as_ref().map(part)).ok().flatten()
}

/// Shows every entry of the interfaces, with its flags: one for each address, and one for an interface
/// without any (getifaddrs(3)). Nothing, if the system does not say.
fn each(mut look: impl FnMut(&libc::ifaddrs, i32)) {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list goes into a live local, and is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return;
    }
    let mut next = list;
    // SAFETY: a list of the C library, read before it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        look(entry, entry.ifa_flags as i32);
    }
    // SAFETY: the list from above, not used any more.
    unsafe { libc::freeifaddrs(list) };
}

/// The address of an entry of an interface that is up; none where it has none.
fn address_of(entry: &libc::ifaddrs, flags: i32) -> Option<IpAddr> {
    if flags & libc::IFF_UP == 0 || entry.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: the entry's address is not null, and of the family that it names.
    unsafe {
        match i32::from((*entry.ifa_addr).sa_family) {
            libc::AF_INET => {
                let v4 = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let v6 = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// The index of an interface, in the entry that describes the interface itself. None in those of its
/// addresses.
fn index_of(entry: &libc::ifaddrs) -> Option<u32> {
    // SAFETY: an address that is not null is of the family that it names.
    unsafe {
        let family = i32::from(entry.ifa_addr.as_ref()?.sa_family);
        let index = || entry.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned().sll_ifindex as u32;
        (family == libc::AF_PACKET).then(index)
    }
}

/// The addresses of the interfaces that are up and that `wanted` wants, in the system's order; and whether
/// all interfaces are down.
fn listed(wanted: impl Fn(IpAddr) -> bool) -> Interfaces {
    let (mut addresses, mut known, mut up) = (Vec::new(), false, false);
    // By name. An interface without a hardware address has no entry that tells its index.
    let mut indices = BTreeMap::new();
    each(|entry, flags| {
        (known, up) = (true, up || flags & libc::IFF_UP != 0);
        // SAFETY: each entry has a name.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // An address may have a label: the interface's name, a colon and more.
        let name = name.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
        if let Some(index) = index_of(entry) {
            indices.insert(name, index);
            return;
        }
        // SAFETY: each entry has a name.
        let ask = || unsafe { libc::if_nametoindex(entry.ifa_name) };
        let interface = *indices.entry(name.clone()).or_insert_with(ask);
        let Some(address) = address_of(entry, flags).filter(|address| wanted(*address)) else { return };
        let loopback = flags & libc::IFF_LOOPBACK != 0;
        let carrier = flags & libc::IFF_LOWER_UP != 0;
        addresses.push(Address { address, name, interface, loopback, carrier });
    });
    Interfaces { addresses, all_down: known && !up, indices }
}

/// The interfaces that are up and have this address: mostly one. Empty, too, if the system does not say.
pub fn with_address(address: IpAddr) -> Vec<Address> {
    if ALTERS.get().is_some() {
        return look().addresses.into_iter().filter(|one| one.address == address).collect();
    }
    listed(|one| one == address).addresses
}

/// Whether the interfaces do not appear as they are: then they may appear to each device in another way.
pub fn are_altered() -> bool {
    ALTERS.get().is_some()
}

/// Looks at the interfaces once.
pub fn look() -> Interfaces {
    look_for(None)
}

fn look_for(device: Option<&str>) -> Interfaces {
    let mut found = listed(|_| true);
    if let Some(alters) = ALTERS.get() {
        alters(device, &mut found);
    }
    let first = default_source();
    found.addresses.sort_unstable_by_key(|local| (rank(local, first), local.interface, local.address));
    found
}

/// The addresses of the interfaces that are up, in the order in which programs should try them. That of the
/// default route comes first, then other global IPv4 addresses, global IPv6, link-local, loopback last. Empty
/// if the system does not say.
pub fn addresses() -> Vec<Address> {
    seen(|seen| seen.addresses.clone()).unwrap_or_else(|| look().addresses)
}

/// The addresses of the interfaces that are up, as they appear to the device of this name, in the order of
/// [`addresses`].
pub fn addresses_for(device: &str) -> Vec<Address> {
    if are_altered() { look_for(Some(device)).addresses } else { addresses() }
}

/// Whether all interfaces are down, as they appear to the device of this name.
pub fn all_down_for(device: &str) -> bool {
    if are_altered() { look_for(Some(device)).all_down } else { all_down() }
}

/// Whether all interfaces are down, so that nothing can be carried.
pub fn all_down() -> bool {
    seen(|seen| seen.all_down).unwrap_or_else(|| {
        if ALTERS.get().is_some() {
            return look().all_down;
        }
        let (mut known, mut up) = (false, false);
        each(|_, flags| (known, up) = (true, up || flags & libc::IFF_UP != 0));
        known && !up
    })
}

/// A hint for an error message about an address that is not there or not reached: the loopback is down, as in
/// a fresh network namespace. Empty unless the address is one of the loopback or no interface is up.
pub fn hint_for(address: IpAddr) -> &'static str {
    if address.is_loopback() || all_down() { hint() } else { "" }
}

/// A hint for an error message, if the loopback is down; else empty.
pub fn hint() -> &'static str {
    let mut down = false;
    each(|_, flags| down |= flags & libc::IFF_LOOPBACK != 0 && flags & libc::IFF_UP == 0);
    if down { " (the interface lo is down: ip link set lo up)" } else { "" }
}

fn rank(local: &Address, first: Option<IpAddr>) -> u8 {
    if Some(local.address) == first {
        return 0;
    }
    match local.address {
        IpAddr::V4(_) if local.loopback => 5,
        IpAddr::V6(_) if local.loopback => 6,
        IpAddr::V4(v4) if v4.is_link_local() => 3,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 4,
        IpAddr::V4(_) => 1,
        IpAddr::V6(_) => 2,
    }
}

/// The address from which packets leave by the default route: a socket is connected, which sends nothing, and
/// asked for its name.
fn default_source() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address for documentation (RFC 5737): no host has it, so only the default route leads there.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A netlink socket that becomes readable when an address or an interface may have changed (rtnetlink(7)).
/// With `routes`, also when a route may have, since the order of [`addresses`] depends on the default route.
///
/// # Errors
/// Where there is no netlink.
pub fn changes(routes: bool) -> io::Result<OwnedFd> {
    if setting::without("netlink") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    if routes {
        groups |= libc::RTMGRP_IPV4_ROUTE;
    }
    // SAFETY: plain numbers, and a zeroed address that is filled in; our own descriptor.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_nl = zeroed();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups as u32;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        match libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) {
            0 => Ok(fd),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Takes all messages out of such a socket. Their contents do not matter: the interfaces are asked.
pub fn take_changes(fd: RawFd) {
    let mut waste = vec![0u8; 8192];
    loop {
        // SAFETY: a live local of its length.
        let count = unsafe { libc::recv(fd, waste.as_mut_ptr().cast(), waste.len(), libc::MSG_DONTWAIT) };
        if count > 0 {
            continue;
        }
        // So much has happened that some of it is lost; the rest is still there.
        if count == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOBUFS) {
            return;
        }
    }
}

/// The index of the network interface with this name, up or down.
pub fn index(name: &str) -> Option<u32> {
    seen(|seen| seen.indices.get(name).copied()).unwrap_or_else(|| {
        let name = CString::new(name).ok()?;
        // SAFETY: a C string.
        Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|index| *index != 0)
    })
}

/// The name of the network interface with this index.
pub fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for a name.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the call has written a terminated string.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_those_of_the_system_and_one_look_answers_all() {
        let there = look();
        assert!(there.addresses.iter().any(|one| one.loopback), "{there:?}");
        for one in &there.addresses {
            assert_eq!(
                (Some(one.interface), there.indices[&one.name]),
                (index(&one.name), one.interface),
                "{one:?}"
            );
        }
        assert_eq!((index("none0"), index("a\0")), (None, None));
        // One without addresses is known, too.
        let none = Interfaces {
            addresses: Vec::new(),
            all_down: true,
            indices: BTreeMap::from([("none0".to_owned(), 7)]),
        };
        let seen = seen_as(none.clone(), || (addresses(), all_down(), index("none0"), index("lo")));
        assert_eq!(seen, (Vec::new(), true, Some(7), None));
        let panicked = std::panic::catch_unwind(|| seen_as(none, || panic!("within")));
        assert!(panicked.is_err() && !addresses().is_empty() && !all_down());
    }
}
