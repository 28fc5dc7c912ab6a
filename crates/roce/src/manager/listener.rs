//! Ports that are held, and listened on.

use super::Manager;
use super::ports::Claim;
use super::route::Service;
use crate::lock;
use crate::seqpacket::{self, Connection};
use adverb_core::cm::{AddressOptions, ListenSink, Listener, Reservation};
use adverb_core::error::Result;
use adverb_core::inlet::Inlet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

/// A port that is held. Requests for it that other processes hand over are taken from the beginning: they are
/// refused until the program listens.
pub(super) struct HeldPort {
    manager: Arc<Manager>,
    address: SocketAddr,
    options: AddressOptions,
    inlets: Inlets,
}

impl HeldPort {
    pub(super) fn new(manager: Arc<Manager>, address: SocketAddr, options: AddressOptions) -> Result<Self> {
        manager.start()?;
        let claim = Claim::new(address, &options, &manager.addresses())?;
        let address = claim.address();
        let inlets = Inlets::serve(&manager, claim.into_sockets())?;
        Ok(Self { manager, address, options, inlets })
    }
}

impl Reservation for HeldPort {
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    fn local(&self) -> SocketAddr {
        self.address
    }

    fn listen(self: Box<Self>, _: u32, sink: Arc<dyn ListenSink>) -> Result<Box<dyn Listener>> {
        let Self { manager, address, options, mut inlets } = *self;
        if inlets.0.is_empty() {
            // The port is shared with a process that may have ended. Only one process listens.
            let exclusive = AddressOptions { reuse_address: false, ..options };
            let claim = Claim::new(address, &exclusive, &manager.addresses())?;
            inlets = Inlets::serve(&manager, claim.into_sockets())?;
        }
        let service = Service { space: options.port_space, port: address.port() };
        let listening =
            Arc::new(Listening { service, address, v6_only: options.v6_only == Some(true), sink });
        manager.listen(&listening)?;
        Ok(Box::new(Handle { manager, listening, _inlets: inlets }))
    }
}

/// A listener as the manager knows it.
pub(super) struct Listening {
    pub(super) service: Service,
    address: SocketAddr,
    v6_only: bool,
    pub(super) sink: Arc<dyn ListenSink>,
}

impl Listening {
    /// Whether the listener takes what was sent to a local address (IB-CM-39).
    pub(super) fn takes(&self, local: IpAddr) -> bool {
        let own = self.address.ip();
        match own.is_unspecified() {
            true => own.is_ipv4() == local.is_ipv4() || own.is_ipv6() && !self.v6_only,
            false => own == local,
        }
    }
}

struct Handle {
    manager: Arc<Manager>,
    listening: Arc<Listening>,
    _inlets: Inlets,
}

impl Listener for Handle {
    fn local(&self) -> SocketAddr {
        self.listening.address
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.manager.unlisten(&self.listening);
    }
}

/// Sockets by which other processes hand requests over.
struct Inlets(Vec<Door>);

/// A socket by which other processes hand requests over.
struct Door {
    inlet: Arc<Inlet>,
    _socket: seqpacket::Listener,
    admitted: Arc<AdmittedConnections>,
}

/// The connections of those who have come; None when nobody is let in any more.
struct AdmittedConnections(Mutex<Option<Vec<Weak<Connection>>>>);

impl Inlets {
    fn serve(manager: &Manager, sockets: Vec<seqpacket::Listener>) -> Result<Self> {
        let mut inlets = Self(Vec::new());
        for socket in sockets {
            let admitted = Arc::new(AdmittedConnections(Mutex::new(Some(Vec::new()))));
            let (host, list) = (Arc::downgrade(&manager.host), admitted.clone());
            let inlet = Inlet::serve(socket.fd(), move |connection| {
                // One too many is closed at once.
                if let Some(Ok(connection)) = host.upgrade().map(|host| host.admit(connection)) {
                    list.enter(&connection);
                }
            })?;
            inlets.0.push(Door { inlet, _socket: socket, admitted });
        }
        Ok(inlets)
    }
}

impl AdmittedConnections {
    fn enter(&self, connection: &Arc<Connection>) {
        match &mut *lock(&self.0) {
            Some(list) => {
                list.retain(|known| known.strong_count() > 0);
                list.push(Arc::downgrade(connection));
            }
            None => connection.hang_up(),
        }
    }
}

impl Drop for Door {
    /// The connections end, too. A process with a connection would keep it, and send requests here after the
    /// port has another owner.
    fn drop(&mut self) {
        self.inlet.end();
        let admitted = lock(&self.admitted.0).take();
        admitted.iter().flatten().filter_map(Weak::upgrade).for_each(|connection| connection.hang_up());
    }
}
