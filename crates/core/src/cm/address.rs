//! Binding to addresses and resolving peers (rdma_bind_addr(3), rdma_resolve_addr(3), rdma_resolve_route(3)).

use super::event::EventKind;
use super::identifier::{Identifier, IdentifierState, Inner};
use super::route::{check_scope, source_for, wildcard, with_port};
use crate::device::Device;
use crate::engine;
use crate::error::{Error, Result};
use crate::qp::Service;
use crate::transport::connections::Reservation;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

type Reservations = Vec<(Arc<Device>, Box<dyn Reservation>)>;

/// The first device that has an address, as in the kernel.
// PRACTICE-DEVICES-2
fn with_address(devices: &[Arc<Device>], address: IpAddr) -> Result<Arc<Device>> {
    Device::first_with(devices, address).cloned().ok_or_else(|| {
        let names: Vec<_> = devices.iter().map(|device| device.name()).collect();
        Error::new(
            libc::ENODEV,
            format!("none of the devices {} has the address {address}", names.join(", ")),
        )
    })
}

impl Identifier {
    /// Binds to a local address (rdma_bind_addr(3)); port 0 chooses one. An address of the host fixes the
    /// device, the first listed one that has it. A wildcard or loopback address fixes none, as in the kernel,
    /// and is held on every listed device.
    ///
    /// # Errors
    /// EINVAL if it is bound already, or link-local without a scope; EADDRINUSE, EADDRNOTAVAIL, EACCES;
    /// ENODEV without a device that has the address.
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.state != IdentifierState::Idle {
            return Err(Error::invalid(format!("{address}: the identifier is bound already")));
        }
        self.bind_locked(&mut inner, address)
    }

    pub(super) fn bind_locked(&self, inner: &mut Inner, address: SocketAddr) -> Result<()> {
        check_scope(&address)?;
        let devices = self.candidates()?;
        // PRACTICE-DEVICES-5
        let everywhere = address.ip().is_unspecified() || address.ip().is_loopback();
        let fixed = match everywhere {
            true => None,
            false => Some(with_address(&devices, address.ip())?),
        };
        let (held, port) =
            self.reserve(inner, fixed.as_ref().map_or(&devices[..], std::slice::from_ref), address)?;
        inner.reservations = held;
        inner.source = Some(with_port(address, port));
        inner.device = fixed;
        inner.state = IdentifierState::AddressBound;
        Ok(())
    }

    /// The devices that can serve the identifier, in their order. Where none has datagrams, one is still
    /// fixed for a datagram identifier, as in the kernel: then the queue pair cannot be made.
    fn candidates(&self) -> Result<Vec<Arc<Device>>> {
        let engine = engine::engine()?;
        self.needs(engine)?;
        let all = engine.devices().to_vec();
        let able: Vec<_> = all.iter().filter(|device| self.can_use(device)).cloned().collect();
        let devices = if able.is_empty() { all } else { able };
        if devices.is_empty() {
            return Err(Error::new(libc::ENODEV, "there is no RDMA device"));
        }
        Ok(devices)
    }

    /// Whether connections of the identifier's service exist on the device.
    pub(super) fn can_use(&self, device: &Device) -> bool {
        match self.service {
            Service::Rc => true,
            Service::Ud => device.transport().connections().datagram_limits().is_some(),
            other => device.transport().attributes().services.contains(&other),
        }
    }

    /// Holds the same address and port on each of the devices; also returns the port.
    fn reserve(
        &self,
        inner: &Inner,
        devices: &[Arc<Device>],
        address: SocketAddr,
    ) -> Result<(Reservations, u16)> {
        // A port that the first device chooses may be taken on the next: then another one is chosen.
        let mut attempts = if address.port() == 0 && devices.len() > 1 { 32 } else { 1 };
        'again: loop {
            let (mut held, mut port) = (Reservations::new(), address.port());
            let mut like: Vec<&str> = Vec::new();
            for device in devices.iter().filter(|device| self.can_use(device)) {
                // Devices of one transport have their ports in common.
                if like.contains(&device.description().like.as_str()) {
                    continue;
                }
                like.push(&device.description().like);
                let connections = device.transport().connections();
                match connections.reserve(with_port(address, port), inner.options) {
                    Ok(reservation) => {
                        port = reservation.local().port();
                        held.push((device.clone(), reservation));
                    }
                    Err(error) => {
                        attempts -= 1;
                        if attempts > 0 && error.errno() == libc::EADDRINUSE {
                            continue 'again;
                        }
                        // PRACTICE-CALL-1
                        let taken = error.errno() == libc::EADDRINUSE && address.ip().is_unspecified();
                        let error =
                            if taken { Error::new(libc::EADDRNOTAVAIL, error.to_string()) } else { error };
                        return Err(error.context(&format!("binding to {address} on {}", device.name())));
                    }
                }
            }
            if port == 0 {
                // No device holds ports for this service; the number is for the program to see.
                port = 32768 + (crate::random::word() % 28232) as u16;
            }
            return Ok((held, port));
        }
    }

    /// Holds the bound address again, if a failed attempt to listen or connect has let go of it.
    pub(super) fn ensure_reserved(&self, inner: &mut Inner) -> Result<()> {
        if let (true, Some(address)) = (inner.reservations.is_empty(), inner.source) {
            let devices = match &inner.device {
                Some(device) => vec![device.clone()],
                None => self.candidates()?,
            };
            inner.reservations = self.reserve(inner, &devices, address)?.0;
        }
        Ok(())
    }

    /// Finds out how `destination` is reached, and from which device and address (rdma_resolve_addr(3));
    /// reports [`EventKind::AddressResolved`], or [`EventKind::AddressError`] with the status -ENODEV where
    /// no device serves it. The answer comes from the host's routing table without a packet, so it is there
    /// when this returns, and `_timeout` never passes.
    ///
    /// # Errors
    /// EINVAL in a wrong state, for addresses of two families, or link-local without a scope; ENETUNREACH or
    /// EHOSTUNREACH without a route; the errors of [`Identifier::bind`] for `source`.
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        _timeout: Duration,
    ) -> Result<()> {
        let mut inner = self.enter()?;
        if !matches!(inner.state, IdentifierState::Idle | IdentifierState::AddressBound) {
            return Err(Error::invalid(format!(
                "an address is resolved once, before the route: the identifier is in {:?}",
                inner.state
            )));
        }
        check_scope(&destination)?;
        let bound = if inner.state == IdentifierState::Idle { source } else { inner.source };
        if bound.is_some_and(|bound| bound.is_ipv4() != destination.is_ipv4()) {
            return Err(Error::invalid(format!("{destination} is of another family than the local address")));
        }
        if let (IdentifierState::Idle, Some(source)) = (inner.state, source) {
            self.bind_locked(&mut inner, source)?;
        }
        let destination = match destination.ip() {
            // As in the kernel: the unspecified address stands for this host.
            IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, destination.port()).into(),
            IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, destination.port()).into(),
            _ => destination,
        };
        inner.state = IdentifierState::AddressQuery;
        let resolved = self.resolve_locked(&mut inner, destination);
        inner.state = match &resolved {
            Ok(()) => IdentifierState::AddressResolved,
            Err(_) => IdentifierState::AddressBound,
        };
        match resolved {
            Ok(()) => self.push(&inner, EventKind::AddressResolved, 0),
            Err(error) if error.errno() == libc::ENODEV => {
                super::failed::say(Some(destination), -libc::ENODEV);
                self.push(&inner, EventKind::AddressError, -libc::ENODEV);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn resolve_locked(&self, inner: &mut Inner, destination: SocketAddr) -> Result<()> {
        let bound = inner.source.unwrap_or_else(|| wildcard(&destination));
        let local = source_for(Some(bound), destination)?;
        let device = match &inner.device {
            Some(device) => device.clone(),
            None => with_address(&self.candidates()?, local.ip())?,
        };
        if local.port() == 0 {
            let (held, port) = self.reserve(inner, std::slice::from_ref(&device), local)?;
            inner.reservations = held;
            inner.source = Some(with_port(local, port));
        } else {
            let like = &device.description().like;
            inner.reservations.retain(|(other, _)| other.description().like == *like);
            inner.source = Some(local);
        }
        inner.destination = Some(destination);
        inner.device = Some(device);
        Ok(())
    }

    /// Resolves the route (rdma_resolve_route(3)); reports [`EventKind::RouteResolved`]. IP routes by itself,
    /// so there is nothing to wait for, and `_timeout` never passes.
    ///
    /// # Errors
    /// EINVAL unless the address is resolved and the route is not.
    pub fn resolve_route(&self, _timeout: Duration) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.state != IdentifierState::AddressResolved {
            return Err(Error::invalid(format!(
                "a route is resolved after the address and before connecting: the identifier is in {:?}",
                inner.state
            )));
        }
        inner.state = IdentifierState::RouteResolved;
        self.push(&inner, EventKind::RouteResolved, 0);
        Ok(())
    }
}
