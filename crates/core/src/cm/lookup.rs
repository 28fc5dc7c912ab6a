//! Names to addresses (rdma_getaddrinfo(3)), over the host's getaddrinfo(3).

use super::identifier::Identifier;
use crate::error::{Error, Result};
use crate::qp::Service;
use crate::transport::connections::PortSpace;
use bitflags::bitflags;
use std::ffi::CStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

bitflags! {
    /// Flags of a look-up (`RAI_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AddressFlags: u32 {
        /// The address is to listen on.
        const PASSIVE = 1;
        /// The node is a numeric address.
        const NUMERIC_HOST = 2;
        /// Do not resolve a route. It never is, here.
        const NO_ROUTE = 4;
        /// The family of the hints counts.
        const FAMILY = 8;
    }
}

/// The wanted result of a look-up (the `hints` of rdma_getaddrinfo(3)). None and 0 leave it open.
#[derive(Clone, Debug, Default)]
pub struct AddressHints {
    /// Flags.
    pub flags: AddressFlags,
    /// AF_INET, AF_INET6, or 0.
    pub family: i32,
    /// The service of the queue pair.
    pub service: Option<Service>,
    /// The port space.
    pub port_space: Option<PortSpace>,
    /// The local address, taken over where the look-up finds none.
    pub source: Option<SocketAddr>,
    /// The peer's address, taken over when neither node nor service is given.
    pub destination: Option<SocketAddr>,
}

/// A result of a look-up (struct rdma_addrinfo). It has neither a route nor connection data: IP needs none.
#[derive(Clone, Debug, Default)]
pub struct AddressInfo {
    /// [`AddressFlags::PASSIVE`] if the address is to listen on.
    pub flags: AddressFlags,
    /// AF_INET or AF_INET6.
    pub family: i32,
    /// The service of the queue pair.
    pub service: Option<Service>,
    /// The port space.
    pub port_space: Option<PortSpace>,
    /// The local address.
    pub source: Option<SocketAddr>,
    /// The peer's address.
    pub destination: Option<SocketAddr>,
}

/// Why a look-up failed.
#[derive(Clone, Debug)]
pub enum LookupError {
    /// A number of getaddrinfo(3) (`EAI_*`), which rdma_getaddrinfo(3) returns as it is.
    Resolver(i32),
    /// Something else, with an errno.
    Other(Error),
}

impl From<LookupError> for Error {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Other(error) => error,
            LookupError::Resolver(libc::EAI_SYSTEM) => Error::system("getaddrinfo"),
            LookupError::Resolver(number) => {
                // SAFETY: gai_strerror gives a static string for every number.
                let text = unsafe { CStr::from_ptr(libc::gai_strerror(number)) };
                Error::new(libc::EADDRNOTAVAIL, format!("looking up the address: {}", text.to_string_lossy()))
            }
        }
    }
}

/// Looks up `node` and `service` (rdma_getaddrinfo(3)); the first answer counts.
///
/// # Errors
/// EINVAL if there is neither node, service nor hints; the errors of getaddrinfo(3).
pub fn lookup(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&AddressHints>,
) -> std::result::Result<AddressInfo, LookupError> {
    if node.is_none() && service.is_none() && hints.is_none() {
        return Err(LookupError::Other(Error::invalid("neither node, service nor hints")));
    }
    let wanted = hints.cloned().unwrap_or_default();
    let mut info = if node.is_some() || service.is_some() {
        ask(node, service, hints)?
    } else {
        AddressInfo {
            flags: wanted.flags,
            family: wanted.family,
            service: wanted.service,
            port_space: wanted.port_space,
            source: None,
            destination: wanted.destination,
        }
    };
    info.source = info.source.or(wanted.source);
    Ok(info)
}

fn ask(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&AddressHints>,
) -> std::result::Result<AddressInfo, LookupError> {
    // SAFETY: all zero is a valid addrinfo: null pointers and numbers.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    if let Some(hints) = hints {
        if hints.flags.contains(AddressFlags::PASSIVE) {
            wanted.ai_flags |= libc::AI_PASSIVE;
        }
        if hints.flags.contains(AddressFlags::NUMERIC_HOST) {
            wanted.ai_flags |= libc::AI_NUMERICHOST;
        }
        wanted.ai_family = hints.family;
        wanted.ai_socktype = match hints.service {
            Some(Service::Rc | Service::Uc | Service::XrcSend | Service::XrcReceive) => libc::SOCK_STREAM,
            Some(Service::Ud) => libc::SOCK_DGRAM,
            Some(Service::RawPacket) | None => 0,
        };
        wanted.ai_protocol = match (hints.port_space, wanted.ai_socktype) {
            (Some(PortSpace::Tcp), _) | (Some(PortSpace::Ib), libc::SOCK_STREAM) => libc::IPPROTO_TCP,
            (Some(PortSpace::Udp | PortSpace::Ipoib), _) | (Some(PortSpace::Ib), libc::SOCK_DGRAM) => {
                libc::IPPROTO_UDP
            }
            _ => 0,
        };
    }
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let mut found: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: C strings or null, and live locals.
    let code = unsafe { libc::getaddrinfo(text(node), text(service), &raw const wanted, &raw mut found) };
    if code != 0 {
        return Err(LookupError::Resolver(code));
    }
    // SAFETY: success means a list of at least one entry, freed once and not used after.
    let (first, address) = unsafe {
        let first = *found;
        let address = from_raw(first.ai_addr, first.ai_addrlen);
        libc::freeaddrinfo(found);
        (first, address)
    };
    let mut info = AddressInfo {
        family: first.ai_family,
        service: hints.and_then(|hints| hints.service).or(match first.ai_socktype {
            libc::SOCK_STREAM => Some(Service::Rc),
            libc::SOCK_DGRAM => Some(Service::Ud),
            _ => None,
        }),
        port_space: hints.and_then(|hints| hints.port_space).or(match first.ai_protocol {
            libc::IPPROTO_TCP => Some(PortSpace::Tcp),
            libc::IPPROTO_UDP => Some(PortSpace::Udp),
            _ => None,
        }),
        ..AddressInfo::default()
    };
    if wanted.ai_flags & libc::AI_PASSIVE != 0 {
        info.flags = AddressFlags::PASSIVE;
        info.source = address;
    } else {
        info.destination = address;
    }
    Ok(info)
}

/// # Safety
/// `address` is null or points to `length` readable bytes.
unsafe fn from_raw(address: *const libc::sockaddr, length: libc::socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (length as usize) < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller's promise; the family says which structure it is, and the length is checked for the
    // longer one.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(address.cast::<libc::sockaddr_in>());
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 if length as usize >= size_of::<libc::sockaddr_in6>() => {
                let v6 = ptr::read_unaligned(address.cast::<libc::sockaddr_in6>());
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let flow = u32::from_be(v6.sin6_flowinfo);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), flow, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

impl Identifier {
    /// A synchronous identifier for a result of a look-up, bound if it is to listen, otherwise with address
    /// and route resolved (rdma_create_ep(3), without the queue pair).
    ///
    /// # Errors
    /// EINVAL without an address; the errors of [`Identifier::bind`] and [`Identifier::resolve_address`].
    pub fn for_address(info: &AddressInfo) -> Result<Arc<Self>> {
        const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
        let port_space = info.port_space.unwrap_or(PortSpace::Tcp);
        let service = info.service.unwrap_or(port_space.service());
        let identifier = Self::with_service(None, port_space, service)?;
        if info.flags.contains(AddressFlags::PASSIVE) {
            let address = info.source.ok_or_else(|| Error::invalid("no address to listen on"))?;
            identifier.bind(address)?;
        } else {
            let peer = info.destination.ok_or_else(|| Error::invalid("no address to connect to"))?;
            identifier.resolve_address(info.source, peer, RESOLVE_TIMEOUT)?;
            identifier.wait_event()?.outcome()?;
            identifier.resolve_route(RESOLVE_TIMEOUT)?;
            identifier.wait_event()?.outcome()?;
        }
        Ok(identifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passive_and_active() {
        let hints = AddressHints {
            flags: AddressFlags::PASSIVE | AddressFlags::NUMERIC_HOST,
            port_space: Some(PortSpace::Tcp),
            ..AddressHints::default()
        };
        let info = lookup(Some(c"127.0.0.1"), Some(c"7174"), Some(&hints)).unwrap();
        assert_eq!(info.source, Some("127.0.0.1:7174".parse().unwrap()));
        assert_eq!((info.destination, info.service), (None, Some(Service::Rc)));
        let hints = AddressHints {
            flags: AddressFlags::NUMERIC_HOST,
            source: Some("[::1]:0".parse().unwrap()),
            port_space: Some(PortSpace::Udp),
            ..AddressHints::default()
        };
        let info = lookup(Some(c"::1"), Some(c"9"), Some(&hints)).unwrap();
        assert_eq!(info.destination, Some("[::1]:9".parse().unwrap()));
        assert_eq!((info.source, info.service), (hints.source, Some(Service::Ud)));
    }

    #[test]
    fn a_name_that_cannot_be_found_is_an_error() {
        assert!(
            matches!(lookup(None, None, None), Err(LookupError::Other(error)) if error.errno() == libc::EINVAL)
        );
        let hints = AddressHints { flags: AddressFlags::NUMERIC_HOST, ..AddressHints::default() };
        let missing = lookup(Some(c"no.such.host.invalid"), None, Some(&hints));
        assert!(matches!(missing, Err(LookupError::Resolver(libc::EAI_NONAME))));
        let taken_over = lookup(
            None,
            None,
            Some(&AddressHints { destination: Some("1.2.3.4:5".parse().unwrap()), ..hints }),
        );
        assert_eq!(taken_over.unwrap().destination, Some("1.2.3.4:5".parse().unwrap()));
    }
}
