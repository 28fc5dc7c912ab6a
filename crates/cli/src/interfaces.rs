//! The network interfaces of this namespace and their addresses.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The IP addresses of each interface that is up (getifaddrs(3)); empty if the system does not say.
pub(crate) fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut found: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is writable for the call, which stores a list that freeifaddrs below ends.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return found;
    }
    let mut next = list;
    // SAFETY: getifaddrs made the list: each entry is valid until freeifaddrs, or null at the end.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the address of an entry is null or a socket address of its family, valid until freeifaddrs.
        let address = unsafe {
            match entry.ifa_addr.as_ref().map(|address| i32::from(address.sa_family)) {
                Some(libc::AF_INET) => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
                }
                Some(libc::AF_INET6) => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        // SAFETY: the name of an entry is a C string, valid until freeifaddrs.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        found.entry(name.to_string_lossy().into_owned()).or_default().push(address);
    }
    // SAFETY: made by getifaddrs, ended once, not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    found
}
