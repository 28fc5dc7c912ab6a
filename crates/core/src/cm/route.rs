//! Which local address leads to a peer: the kernel's routing, asked without a packet.

use crate::error::{Error, Result};
use crate::interfaces;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The local address from which packets to `destination` leave; `source` if the program chose one. A datagram
/// socket is connected, which sends nothing, and asked for its name.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH without a route; EADDRNOTAVAIL if `source` is not an address of this host;
/// EINVAL if the two do not go together.
pub fn source_for(source: Option<SocketAddr>, destination: SocketAddr) -> Result<SocketAddr> {
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Error::new(
            errno,
            format!("no way to {destination}: {error}{}", interfaces::hint_for(destination.ip())),
        )
    };
    let local = source.unwrap_or_else(|| wildcard(&destination));
    let socket = UdpSocket::bind(with_port(local, 0)).map_err(failed)?;
    // A port is needed only for the system call: nothing is sent.
    match socket.connect(with_port(destination, 9)) {
        // A group needs no route where the program says which address it is sent from.
        Err(_) if destination.ip().is_multicast() && !local.ip().is_unspecified() => return Ok(local),
        connected => connected.map_err(failed)?,
    }
    let found = socket.local_addr().map_err(failed)?;
    Ok(with_port(found, local.port()))
}

/// The wildcard address of the same family.
pub(super) fn wildcard(like: &SocketAddr) -> SocketAddr {
    let ip = match like {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// `address` with the port `port`. The scope of a link-local address stays.
pub(super) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// EINVAL for a link-local IPv6 address that does not say which link.
pub(super) fn check_scope(address: &SocketAddr) -> Result<()> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(Error::invalid(format!("{v6} is link-local: say which link (fe80::1%eth0)")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_leads_to_itself() {
        let peer: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(source_for(None, peer).unwrap(), "127.0.0.1:0".parse().unwrap());
        let from = "127.0.0.2:77".parse().unwrap();
        assert_eq!(source_for(Some(from), peer).unwrap(), from);
    }

    #[test]
    fn a_foreign_source_is_refused() {
        // 192.0.2.0/24 is for documentation: no host has it.
        let foreign = "192.0.2.1:0".parse().unwrap();
        let error = source_for(Some(foreign), "127.0.0.1:7".parse().unwrap()).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    }

    #[test]
    fn link_local_needs_a_scope() {
        assert!(check_scope(&"[fe80::1]:5".parse().unwrap()).is_err());
        assert!(check_scope(&"[fe80::1%3]:5".parse().unwrap()).is_ok());
        assert!(check_scope(&"[::1]:5".parse().unwrap()).is_ok());
    }
}
