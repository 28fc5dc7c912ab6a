//! The ports of rdma_cm's port spaces, which are numbers of InfiniBand's service IDs and not ports of the
//! host. All processes of a network namespace share them: the holder of a port listens on an abstract Unix
//! socket named after port space, address and port. The holder of UDP 4791 hands a request for the port over
//! through that socket.

use crate::seqpacket::{Connection, Listener, Owner, name};
use adverb_core::cm::{AddressOptions, PortSpace};
use adverb_core::error::{Error, Result};
use adverb_core::interfaces;
use adverb_core::random;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Ports that are chosen for programs that do not choose one: the range of Linux.
const EPHEMERAL: std::ops::Range<u16> = 32768..61000;
const ATTEMPTS: u32 = 256;
/// Addresses of this host of which a wildcard holds the names: each takes a descriptor. Few hosts have more.
const MOST_EXACT: usize = 32;

/// A port that this process holds. Dropping it lets it go.
pub(crate) struct Claim {
    address: SocketAddr,
    /// One for each name; none if the port is shared by its holder's leave.
    sockets: Vec<Listener>,
}

impl Claim {
    /// Holds a port; port 0 chooses one. `is_local` says whether an address is one of this host, and `locals`
    /// lists them.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EMFILE.
    pub(crate) fn new(address: SocketAddr, options: &AddressOptions, locals: &[IpAddr]) -> Result<Self> {
        if !address.ip().is_unspecified() && !locals.contains(&address.ip()) {
            let text = format!(
                "{} is not an address of this host{}",
                address.ip(),
                interfaces::hint_for(address.ip())
            );
            return Err(Error::new(libc::EADDRNOTAVAIL, text));
        }
        if address.port() != 0 {
            return Self::hold(address, options, locals).map_err(|error| {
                let is_taken = error.raw_os_error() == Some(libc::EADDRINUSE);
                let wildcard = socket_name(options.port_space, wildcard_of(address));
                // PRACTICE-CALL-1
                if is_taken && !address.ip().is_unspecified() && is_held(&wildcard) {
                    return Error::new(
                        libc::EADDRNOTAVAIL,
                        format!("{address}: the port is held for all addresses"),
                    );
                }
                failed(address, &error)
            });
        }
        for _ in 0..ATTEMPTS {
            let port = EPHEMERAL.start + (random::word() % EPHEMERAL.len() as u64) as u16;
            let mut chosen = address;
            chosen.set_port(port);
            // A port that others share is for those who ask for it.
            let options = AddressOptions { reuse_address: false, ..*options };
            match Self::hold(chosen, &options, locals) {
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
                held => return held.map_err(|error| failed(chosen, &error)),
            }
        }
        Err(Error::new(libc::EADDRINUSE, "no port is free"))
    }

    fn hold(address: SocketAddr, options: &AddressOptions, locals: &[IpAddr]) -> io::Result<Self> {
        match claim_all(address, options, locals) {
            // Several may hold it with leave, but only one of them listens: then it is claimed again.
            Err(error) if options.reuse_address && error.raw_os_error() == Some(libc::EADDRINUSE) => {
                Ok(Self { address, sockets: Vec::new() })
            }
            claimed => Ok(Self { address, sockets: claimed? }),
        }
    }

    /// The address, with the port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The sockets on which requests are handed over. None if the port is held by leave of another holder.
    pub(crate) fn into_sockets(self) -> Vec<Listener> {
        self.sockets
    }
}

fn failed(address: SocketAddr, error: &io::Error) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("holding {address}: {error}"))
}

/// Claims the names of an address, unless a process holds one that overlaps. A wildcard holds the names of
/// this host's addresses, too: the first process to bind a name in the abstract namespace has it, and
/// requests go to the best name.
fn claim_all(address: SocketAddr, options: &AddressOptions, locals: &[IpAddr]) -> io::Result<Vec<Listener>> {
    let (space, port) = (options.port_space, address.port());
    // A wildcard IPv6 address is one of IPv4, too, unless the program says otherwise.
    let both = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && options.v6_only != Some(true);
    let mut own = vec![address];
    if both {
        own.push((Ipv4Addr::UNSPECIFIED, port).into());
    }
    if address.ip().is_unspecified() {
        let covered = |local: &&IpAddr| local.is_ipv4() == address.is_ipv4() || both;
        let mut exact: Vec<_> =
            locals.iter().filter(covered).map(|local| SocketAddr::new(*local, port)).collect();
        exact.sort_unstable();
        exact.dedup();
        own.extend(exact.into_iter().take(MOST_EXACT));
    }
    let sockets = own
        .iter()
        .map(|address| Listener::bind(&socket_name(space, *address)))
        .collect::<io::Result<Vec<_>>>()?;
    if !address.ip().is_unspecified() && is_held(&socket_name(space, wildcard_of(address))) {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    Ok(sockets)
}

/// Whether somebody listens under a name.
fn is_held(name: &[u8]) -> bool {
    match Connection::open(name) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::EAGAIN),
    }
}

/// The wildcard address of the same family and port.
fn wildcard_of(address: SocketAddr) -> SocketAddr {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, address.port())
}

fn socket_name(space: PortSpace, address: SocketAddr) -> Vec<u8> {
    name(&format!("port/{:04x}/{}/{}", space as u32, address.ip(), address.port()))
}

/// The names under which the holder of a port listens for what comes to a local address, best first.
pub(crate) fn names(space: PortSpace, address: SocketAddr) -> [Vec<u8>; 2] {
    [address, wildcard_of(address)].map(|address| socket_name(space, address))
}

/// The listener that a request goes to, of those who listen for it, the best name first. Two users never do
/// where all keep the rules; else our own user is preferred, and root to others.
pub(crate) fn choose<C: std::ops::Deref<Target = Connection>>(
    listeners: impl Iterator<Item = C>,
) -> Option<C> {
    preferred(listeners.map(|listener| (listener.owner(), listener)))
}

fn preferred<C>(listeners: impl Iterator<Item = (Owner, C)>) -> Option<C> {
    let mut best: Option<(Owner, C)> = None;
    for (owner, listener) in listeners {
        if best.as_ref().is_none_or(|(known, _)| owner < *known) {
            best = Some((owner, listener));
        }
        if owner == Owner::Ourselves {
            break;
        }
    }
    best.map(|(_, listener)| listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::conformance::fixture::TEST_TIMEOUT;
    use std::time::Instant;

    fn errno<T>(result: Result<T>) -> i32 {
        result.err().map_or(0, |error| error.errno())
    }

    fn at(text: &str, port: u16) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), port)
    }

    const LOCALS: [IpAddr; 3] = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];

    fn claim(address: SocketAddr, options: AddressOptions) -> Result<Claim> {
        Claim::new(address, &options, &LOCALS)
    }

    /// Claims a port that was let go. A process that another test starts has copies of the sockets until its
    /// program begins.
    #[track_caller]
    fn claim_again(address: SocketAddr, options: AddressOptions) -> Claim {
        let begun = Instant::now();
        loop {
            match claim(address, options) {
                Ok(claimed) => return claimed,
                Err(error) => assert!(begun.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    /// A wildcard holds the names of so many addresses, and no more.
    #[test]
    fn a_wildcard_takes_a_bounded_number_of_names() {
        let locals: Vec<IpAddr> = (1..=40).map(|host| Ipv4Addr::new(127, 0, 7, host).into()).collect();
        let options = AddressOptions::default();
        let held = Claim::new(at("0.0.0.0", 0), &options, &locals).unwrap();
        let name_of = |host: usize| SocketAddr::new(locals[host], held.address().port());
        let taken = |host| Listener::bind(&socket_name(options.port_space, name_of(host))).is_err();
        assert_eq!(MOST_EXACT, 32, "SECURITY.md says so");
        assert_eq!((0..40).filter(|host| taken(*host)).count(), MOST_EXACT);
        // adverb's own processes take none of the other names.
        let beside = Claim::new(name_of(39), &options, &locals);
        assert_eq!(errno(beside), libc::EADDRNOTAVAIL);
    }

    #[test]
    fn a_port_is_held_once() {
        let options = AddressOptions::default();
        let held = claim(at("127.0.0.1", 0), options).unwrap();
        let port = held.address().port();
        assert!(EPHEMERAL.contains(&port));
        assert_eq!(errno(claim(held.address(), options)), libc::EADDRINUSE);
        assert_eq!(errno(claim(at("0.0.0.0", port), options)), libc::EADDRINUSE);
        assert_eq!(errno(claim(at("::", port), options)), libc::EADDRINUSE);
        // Another address, another port space, the other family.
        assert!(claim(at("127.0.0.2", port), options).is_ok());
        assert!(claim(held.address(), AddressOptions { port_space: PortSpace::Udp, ..options }).is_ok());
        assert!(claim(at("::", port), AddressOptions { v6_only: Some(true), ..options }).is_ok());
        drop(held);
        let everywhere = claim_again(at("0.0.0.0", port), options);
        assert_eq!(errno(claim(at("127.0.0.1", port), options)), libc::EADDRNOTAVAIL);
        let found =
            |space| names(space, at("127.0.0.1", port)).iter().any(|name| Connection::open(name).is_ok());
        assert!(found(PortSpace::Tcp) && !found(PortSpace::Udp));
        // Nobody can put himself between the service and who asks for it.
        for local in ["127.0.0.1", "127.0.0.2"] {
            let name = socket_name(PortSpace::Tcp, at(local, port));
            let taken = Listener::bind(&name).err().and_then(|error| error.raw_os_error());
            assert_eq!(taken, Some(libc::EADDRINUSE), "{local}");
        }
        drop(everywhere);
        assert!(!found(PortSpace::Tcp));
        assert_eq!(errno(claim(at("192.0.2.1", 0), options)), libc::EADDRNOTAVAIL);
    }

    #[test]
    fn requests_go_to_our_own_user_then_to_root_then_to_the_best_name() {
        use Owner::{Other, Ourselves, Root};
        for (owners, expected) in [
            (&[][..], None),
            (&[Other, Other], Some(0)),
            (&[Other, Root], Some(1)),
            (&[Root, Ourselves], Some(1)),
            (&[Other, Ourselves], Some(1)),
            (&[Root, Root], Some(0)),
            (&[Ourselves, Ourselves], Some(0)),
        ] {
            assert_eq!(preferred(owners.iter().copied().zip(0..)), expected, "{owners:?}");
        }
    }

    #[test]
    fn a_shared_port_has_one_listener() {
        let options = AddressOptions { reuse_address: true, ..AddressOptions::default() };
        let first = claim(at("127.0.0.1", 0), options).unwrap();
        let second = claim(first.address(), options).unwrap();
        let unwilling = AddressOptions { reuse_address: false, ..options };
        assert_eq!(errno(claim(first.address(), unwilling)), libc::EADDRINUSE);
        let address = second.address();
        let listening = first.into_sockets();
        assert_eq!((listening.len(), second.into_sockets().len()), (1, 0));
        assert_eq!(errno(claim(address, unwilling)), libc::EADDRINUSE);
        drop(listening);
        claim_again(address, unwilling);
    }
}
