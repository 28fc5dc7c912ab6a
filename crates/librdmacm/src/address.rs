//! Socket addresses of C.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// The address behind a pointer; `None` for NULL and for families other than IPv4 and IPv6.
///
/// # Safety
/// `address` is NULL or points to a socket address of the size of its family. It need not be aligned.
pub(crate) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; the family says which structure it is.
    unsafe {
        match i32::from(ptr::read_unaligned(&raw const (*address).sa_family)) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(address.cast::<sockaddr_in>());
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = ptr::read_unaligned(address.cast::<sockaddr_in6>());
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let (port, flow) = (u16::from_be(v6.sin6_port), u32::from_be(v6.sin6_flowinfo));
                Some(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// The C structure of an address, and how long it is.
pub(crate) fn storage(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all zero is a valid, unspecified address.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let target = &raw mut storage;
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage has room and alignment for every family.
            let c = unsafe { &mut *target.cast::<sockaddr_in>() };
            c.sin_family = libc::AF_INET as u16;
            c.sin_port = v4.port().to_be();
            c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let c = unsafe { &mut *target.cast::<sockaddr_in6>() };
            c.sin6_family = libc::AF_INET6 as u16;
            c.sin6_port = v6.port().to_be();
            c.sin6_flowinfo = v6.flowinfo().to_be();
            c.sin6_addr.s6_addr = v6.ip().octets();
            c.sin6_scope_id = v6.scope_id();
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["192.0.2.7:4791", "[2001:db8::5]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().expect("an address");
            let (storage, length) = storage(address);
            assert_eq!(length as usize, if address.is_ipv4() { 16 } else { 28 });
            // SAFETY: a local variable.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Some(address));
        }
        // SAFETY: NULL, and a local variable of no family.
        unsafe {
            assert_eq!(read(ptr::null()), None);
            let nowhere = std::mem::zeroed::<sockaddr_storage>();
            assert_eq!(read((&raw const nowhere).cast()), None);
        }
    }
}
