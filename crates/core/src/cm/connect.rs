//! Listening, connecting, accepting, refusing, disconnecting.

use super::event::{Details, EventKind, Pending};
use super::failed;
use super::identifier::{Identifier, IdentifierState, Inner, queue_pair_to_error};
use super::path::{DatagramPeer, path_to};
use super::queue_pair::UDP_QKEY;
use crate::attributes::{TransportType, gid_of};
use crate::device::Device;
use crate::engine;
use crate::error::{Error, Result};
use crate::qp::{QueuePair, Service};
use crate::transport::connections::{
    ConnectRequest, ConnectionEvent, ConnectionParameters, ConnectionSink, IncomingConnection, ListenSink,
    OutgoingConnection, PrivateDataLimits,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};

/// As many reads and atomics as the device can, or for an answer as the peer asked (RDMA_MAX_RESP_RES,
/// RDMA_MAX_INIT_DEPTH).
pub const MAXIMUM: u8 = 0xff;

/// Connection requests that wait to be fetched, at most, and when the program does not say
/// (net.rdma_ucm.max_backlog).
pub const MAX_BACKLOG: u32 = 1024;

/// The parameters with which a program connects or accepts (struct rdma_conn_param).
#[derive(Clone, Copy, Default)]
pub struct Parameters<'a> {
    /// Depths, retries, flow control. [`MAXIMUM`] for a depth is the device's most, or when accepting, the
    /// depth that the peer asked for.
    pub connection: ConnectionParameters,
    /// For the peer.
    pub private_data: &'a [u8],
    /// The queue pair, if it is not the identifier's: in INIT. It comes first. On InfiniBand the program may
    /// also manage its queue pair itself: then there is none here and on the identifier, and `connection` has
    /// its number.
    pub queue_pair: Option<&'a Arc<QueuePair>>,
}

impl Identifier {
    /// Listens for connections (rdma_listen(3)), on a wildcard IPv4 address if it is not bound. At most
    /// `backlog` requests wait to be fetched; further ones are refused. 0 and less, and more than
    /// [`MAX_BACKLOG`], is [`MAX_BACKLOG`].
    ///
    /// # Errors
    /// EINVAL in a wrong state; EADDRINUSE; ENOSYS for datagrams on a device that has none.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.state == IdentifierState::Idle {
            self.bind_locked(&mut inner, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        if inner.state != IdentifierState::AddressBound {
            return Err(Error::invalid(format!("an identifier in {:?} cannot listen", inner.state)));
        }
        self.ensure_reserved(&mut inner)?;
        if inner.reservations.is_empty() {
            return Err(Error::new(libc::ENOSYS, format!("no device listens for {}", self.service)));
        }
        let backlog = u32::try_from(backlog).ok().filter(|n| (1..=MAX_BACKLOG).contains(n));
        inner.backlog = backlog.unwrap_or(MAX_BACKLOG);
        inner.state = IdentifierState::Listen;
        let waiting = inner.backlog;
        let reservations = std::mem::take(&mut inner.reservations);
        drop(inner);
        // Without the lock: a request may come before the transport returns.
        let mut listeners = Vec::new();
        for (device, reservation) in reservations {
            let sink = Arc::new(Requests { listener: self.this.clone(), device: device.clone() });
            match reservation.listen(waiting, sink) {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    drop(listeners);
                    let mut inner = self.lock();
                    if inner.state == IdentifierState::Listen {
                        inner.state = IdentifierState::AddressBound;
                    }
                    return Err(error.context(&format!("listening on {}", device.name())));
                }
            }
        }
        let mut inner = self.lock();
        if inner.state == IdentifierState::Listen {
            inner.listeners = std::mem::take(&mut listeners);
        }
        drop(inner);
        Ok(())
    }

    /// Connects to the resolved peer (rdma_connect(3)). Without parameters: as many reads and atomics as the
    /// device can, 7 retries. The outcome is an event: [`EventKind::Established`], [`EventKind::Rejected`],
    /// [`EventKind::Unreachable`] or [`EventKind::ConnectError`]; where the program manages its queue pair
    /// itself, [`EventKind::ConnectResponse`] instead of the first. For datagrams it asks for the queue pair
    /// that serves at the peer's port.
    ///
    /// # Errors
    /// EINVAL before the route is resolved, without a queue pair, for depths beyond the device's, and for
    /// private data that is too long. ENOSYS for datagrams on a device that has none.
    pub fn connect(&self, parameters: Option<&Parameters<'_>>) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.state != IdentifierState::RouteResolved {
            return Err(Error::invalid(format!(
                "an identifier in {:?} cannot connect: resolve address and route first",
                inner.state
            )));
        }
        let (Some(device), Some(destination)) = (inner.device.clone(), inner.destination) else {
            return Err(Error::invalid("the identifier has no peer"));
        };
        if !self.can_use(&device) {
            return Err(Error::new(libc::ENOSYS, format!("{} has no datagrams", device.name())));
        }
        let queue_pair = self.choose_queue_pair(&inner, &device, parameters)?;
        let offered = Depths::of_device(&device);
        let mut connection = offered.settle(parameters, offered, self.service)?;
        queue_pair.name_in(&mut connection);
        let mut private_data = inner.connect_data.clone();
        private_data.extend_from_slice(parameters.map_or(&[], |parameters| parameters.private_data));
        let backend = device.transport().connections();
        PrivateDataLimits::check(&private_data, self.private_data_limits(&device).request)?;
        self.ensure_reserved(&mut inner)?;
        let request = ConnectRequest {
            source: inner.reservations.pop().map(|(_, reservation)| reservation),
            destination,
            options: inner.options,
            parameters: connection,
            private_data: &private_data,
        };
        inner.parameters = connection;
        inner.connect_data.clear();
        inner.state = IdentifierState::Connect;
        inner.connecting = true;
        drop(inner);
        let sink = Arc::new(Connection(self.this.clone()));
        let made = match &queue_pair {
            ConnectTarget::Managed(queue_pair) => backend.connect(queue_pair, request, sink),
            ConnectTarget::Number(_) => backend.connect_unmanaged(self.service, request, sink),
        };
        if made.is_err() {
            let mut inner = self.lock();
            if inner.state == IdentifierState::Connect {
                inner.state = IdentifierState::RouteResolved;
            }
        }
        self.keep_connection(made).map_err(|error| error.context(&format!("connecting to {destination}")))
    }

    /// Private data that goes in front of that of the next [`Identifier::connect`] (`ai_connect` of
    /// rdma_getaddrinfo(3)).
    pub fn set_connect_data(&self, data: Vec<u8>) -> Result<()> {
        self.enter()?.connect_data = data;
        Ok(())
    }

    fn private_data_limits(&self, device: &Device) -> PrivateDataLimits {
        let backend = device.transport().connections();
        let datagram = if self.service == Service::Ud { backend.datagram_limits() } else { None };
        datagram.unwrap_or_else(|| backend.private_data_limits())
    }

    /// The queue pair to connect, or where the program manages it itself or none is connected (datagrams),
    /// its number.
    fn choose_queue_pair(
        &self,
        inner: &Inner,
        device: &Device,
        parameters: Option<&Parameters<'_>>,
    ) -> Result<ConnectTarget> {
        let given = parameters.and_then(|parameters| parameters.queue_pair);
        let managed = given.or(inner.queue_pair.as_ref());
        let number = parameters.map_or(0, |parameters| parameters.connection.qp_number);
        if self.service == Service::Ud {
            return Ok(ConnectTarget::Number(managed.map_or(number, |queue_pair| queue_pair.number())));
        }
        match managed {
            Some(queue_pair) => Ok(ConnectTarget::Managed(queue_pair.clone())),
            None if number != 0 && device.transport().attributes().transport == TransportType::Ib => {
                Ok(ConnectTarget::Number(number))
            }
            None => Err(Error::invalid(
                "there is no queue pair: create one on the identifier, or name one in the parameters",
            )),
        }
    }

    /// Accepts a request (rdma_accept(3)). Without parameters: as many reads and atomics as the peer asked
    /// for and the device can. [`EventKind::Established`] follows, but for datagrams: there the peer is told
    /// the queue pair, and nothing follows.
    ///
    /// # Errors
    /// EINVAL if it is no request that waits, without a queue pair, for depths beyond the device's, and for
    /// private data that is too long. When the transport cannot accept, the request is refused and the queue
    /// pair goes to error.
    pub fn accept(&self, parameters: Option<&Parameters<'_>>) -> Result<()> {
        let mut inner = self.enter()?;
        let device = waiting_request(&inner)?;
        let queue_pair = self.choose_queue_pair(&inner, &device, parameters)?;
        let device_can = Depths::of_device(&device);
        // IB-CM-25, IB-CM-59
        let asked = Depths {
            responder_resources: inner.parameters.responder_resources.min(device_can.responder_resources),
            initiator_depth: inner.parameters.initiator_depth.min(device_can.initiator_depth),
        };
        let mut connection = device_can.settle(parameters, asked, self.service)?;
        queue_pair.name_in(&mut connection);
        let private_data = parameters.map_or(&[][..], |parameters| parameters.private_data);
        PrivateDataLimits::check(private_data, self.private_data_limits(&device).accept)?;
        let Some(incoming) = inner.incoming.take() else { return Err(not_waiting()) };
        inner.parameters = connection;
        inner.connecting = true;
        drop(inner);
        let sink = Arc::new(Connection(self.this.clone()));
        let made = match &queue_pair {
            ConnectTarget::Managed(queue_pair) => incoming.accept(queue_pair, connection, private_data, sink),
            ConnectTarget::Number(_) => incoming.accept_unmanaged(connection, private_data, sink),
        };
        self.keep_connection(made).map_err(|error| {
            if let ConnectTarget::Managed(queue_pair) = &queue_pair {
                queue_pair_to_error(queue_pair);
            }
            error.context("accepting a connection")
        })
    }

    /// Refuses a request (rdma_reject(3)). EINVAL if it is no request that waits, or the private data is too
    /// long.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let mut inner = self.enter()?;
        let device = waiting_request(&inner)?;
        PrivateDataLimits::check(private_data, self.private_data_limits(&device).reject)?;
        let Some(incoming) = inner.incoming.take() else { return Err(not_waiting()) };
        drop(inner);
        incoming.reject(private_data)
    }

    /// Ends the connection (rdma_disconnect(3)): the queue pair goes to error, both sides get
    /// [`EventKind::Disconnected`]. Once it has ended: no effect.
    ///
    /// # Errors
    /// EINVAL if there was no connection. Also on a synchronous identifier whose last event was fetched, so
    /// that no thread waits for a second event.
    pub fn disconnect(&self) -> Result<()> {
        let mut inner = self.enter()?;
        if inner.ended && inner.synchronous {
            return Err(Error::invalid("the connection has ended already"));
        }
        if self.service == Service::Ud {
            return Err(Error::invalid("datagrams have no connection to end"));
        }
        if inner.connecting {
            inner.disconnect_wanted = true;
            return Ok(());
        }
        let Some(connection) = inner.connection.clone() else {
            return Err(Error::invalid("the identifier has no connection"));
        };
        inner.ending = true;
        drop(inner);
        connection.disconnect()
    }

    /// Keeps the connection that the transport has made of a connect or accept. Its events may have been
    /// fetched already, and the program may have disconnected or destroyed the identifier in another thread.
    fn keep_connection(&self, made: Result<Box<dyn OutgoingConnection>>) -> Result<()> {
        let mut inner = self.lock();
        inner.connecting = false;
        let disconnect = std::mem::take(&mut inner.disconnect_wanted);
        let connection: Arc<dyn OutgoingConnection> = Arc::from(made?);
        if inner.state != IdentifierState::Destroying {
            inner.connection = Some(connection.clone());
        }
        drop(inner);
        if disconnect {
            connection.disconnect()?;
        }
        Ok(())
    }

    fn report(&self, event: ConnectionEvent) {
        let mut inner = self.lock();
        if !matches!(inner.state, IdentifierState::Connect | IdentifierState::Disconnect) {
            return;
        }
        match event {
            // IB-CM-62
            ConnectionEvent::Response { parameters, private_data } => {
                let details = Details { parameters, private_data, ..Details::default() };
                self.push_with(&inner, EventKind::ConnectResponse, 0, details);
            }
            ConnectionEvent::Established { parameters, private_data } => {
                let details = Details { parameters, private_data, ..Details::default() };
                self.push_established(&inner, details);
            }
            ConnectionEvent::Rejected { status, private_data, .. } => {
                let details = Details { private_data, ..Details::default() };
                self.push_with(&inner, EventKind::Rejected, status, details);
            }
            ConnectionEvent::Unreachable { status } => {
                failed::say(inner.destination, status);
                self.push(&inner, EventKind::Unreachable, status);
            }
            ConnectionEvent::Failed { status } => {
                failed::say(inner.destination, status);
                self.push(&inner, EventKind::ConnectError, status);
            }
            ConnectionEvent::Disconnected => {
                inner.state = IdentifierState::Disconnect;
                self.push_ended(&mut inner);
            }
            ConnectionEvent::TimewaitExit => {
                self.push_held_end(&mut inner);
                self.push(&inner, EventKind::TimewaitExit, 0);
            }
        }
    }

    /// Datagrams are then sent to the queue pair that the peer named.
    fn push_established(&self, inner: &Inner, mut details: Details) {
        if self.service == Service::Ud
            && let (Some(device), Some(local), Some(peer)) = (&inner.device, inner.source, inner.destination)
        {
            let traffic_class = inner.options.type_of_service.unwrap_or(0);
            let path = path_to(&device.transport().gids(), local, gid_of(peer.ip()), traffic_class);
            let named = details.parameters;
            match path {
                Ok(path) => {
                    let peer = DatagramPeer { path, queue_pair: named.qp_number, qkey: named.qkey };
                    // IB-SIDR-8
                    details.datagram = Some(Box::new(peer));
                }
                Err(error) => return self.push(inner, EventKind::ConnectError, -error.errno()),
            }
        }
        self.push_with(inner, EventKind::Established, 0, details);
    }

    /// The device that receives a request for a local address: the one that the program has fixed, or the
    /// first like the listening one that has the address. None: as in the kernel, no identifier listens for
    /// the request.
    // PRACTICE-DEVICES-3
    fn receiver(&self, listening: &Arc<Device>, local: IpAddr) -> Option<Arc<Device>> {
        if self.lock().device.is_some() {
            return Some(listening.clone());
        }
        let like = |other: &&Arc<Device>| other.description().like == listening.description().like;
        let devices = engine::existing()?.devices().iter().filter(like);
        let able: Vec<_> = devices.filter(|other| self.can_use(other)).cloned().collect();
        Device::first_with(&able, local).cloned()
    }

    fn request(&self, device: &Arc<Device>, incoming: Box<dyn IncomingConnection>) {
        let owner = self.receiver(device, incoming.local().ip());
        let mut inner = self.lock();
        // IB-CM-36
        let full = inner.state != IdentifierState::Listen || inner.backlog == 0;
        let is_served = incoming.service() == self.service;
        let Some(owner) = owner.filter(|_| !full && is_served) else {
            let (peer, local, asked) = (incoming.peer(), incoming.local(), incoming.service());
            if full {
                crate::log!(Info, "a connection request from {peer} is refused: the backlog is full");
            } else if is_served {
                crate::log!(
                    Info,
                    "a connection request from {peer} is refused: no device has the address {}",
                    local.ip()
                );
            } else {
                crate::log!(Info, "{peer} asks for {} where {} is served", asked, self.service);
            }
            drop(inner);
            drop(incoming);
            return;
        };
        inner.backlog -= 1;
        let (parameters, private_data) = (incoming.parameters(), incoming.private_data().to_vec());
        let new = Identifier::make(inner.channel.clone(), false, self.port_space, self.service);
        // The one that listens is told if it is so already.
        let _ = engine::existing().map(|engine| new.needs(engine));
        {
            let mut new = new.lock();
            new.state = IdentifierState::Connect;
            new.device = Some(owner);
            new.source = Some(incoming.local());
            new.destination = Some(incoming.peer());
            new.options = inner.options;
            new.parameters = parameters;
            new.incoming = Some(incoming);
        }
        inner.channel.queue.push(Pending {
            kind: EventKind::ConnectRequest,
            status: 0,
            subject: self.this.clone(),
            request: Some(new),
            details: Details { parameters, private_data, ..Details::default() },
        });
    }
}

fn not_waiting() -> Error {
    Error::invalid("the identifier is not a connection request that waits for an answer")
}

/// The device of a request that waits for an answer.
fn waiting_request(inner: &Inner) -> Result<Arc<Device>> {
    match (&inner.incoming, &inner.device) {
        (Some(_), Some(device)) if inner.state == IdentifierState::Connect => Ok(device.clone()),
        _ => Err(not_waiting()),
    }
}

/// The queue pair that is connected.
enum ConnectTarget {
    /// A queue pair that the transport takes to RTS.
    Managed(Arc<QueuePair>),
    /// The number of one that the program takes there, or that serves datagrams.
    Number(u32),
}

impl ConnectTarget {
    /// Writes the values by which the peer learns of it.
    fn name_in(&self, parameters: &mut ConnectionParameters) {
        parameters.qp_number = match self {
            Self::Managed(queue_pair) => queue_pair.number(),
            Self::Number(number) => *number,
        };
        parameters.qkey = UDP_QKEY;
    }
}

/// Reads and atomics outstanding, in both directions.
#[derive(Clone, Copy)]
struct Depths {
    responder_resources: u8,
    initiator_depth: u8,
}

impl Depths {
    fn of_device(device: &Device) -> Self {
        let attributes = device.transport().attributes();
        let clamp = |n: u32| n.min(u32::from(MAXIMUM) - 1) as u8;
        Self {
            responder_resources: clamp(attributes.max_qp_rd_atom),
            initiator_depth: clamp(attributes.max_qp_init_rd_atom),
        }
    }

    /// The parameters for the peer: the program's, checked against the device (`self`), or `default`.
    fn settle(
        self,
        parameters: Option<&Parameters<'_>>,
        default: Depths,
        service: Service,
    ) -> Result<ConnectionParameters> {
        let Some(parameters) = parameters else {
            return Ok(ConnectionParameters {
                responder_resources: default.responder_resources,
                initiator_depth: default.initiator_depth,
                retry_count: 7,
                rnr_retry_count: 7,
                ..ConnectionParameters::default()
            });
        };
        let choose = |what: &str, asked: u8, most: u8, default: u8| match asked {
            // IB-CM-59
            MAXIMUM => Ok(default),
            // Only reliable connections have any.
            _ if matches!(service, Service::Uc | Service::Ud) => Ok(0),
            asked if asked <= most => Ok(asked),
            asked => Err(Error::invalid(format!("{what} {asked}: the device allows {most}, or 255 for all"))),
        };
        let asked = parameters.connection;
        Ok(ConnectionParameters {
            responder_resources: choose(
                "responder_resources",
                asked.responder_resources,
                self.responder_resources,
                default.responder_resources,
            )?,
            initiator_depth: choose(
                "initiator_depth",
                asked.initiator_depth,
                self.initiator_depth,
                default.initiator_depth,
            )?,
            ..asked
        })
    }
}

/// Takes the events of a connection for its identifier, as long as that lives.
struct Connection(Weak<Identifier>);

impl ConnectionSink for Connection {
    fn event(&self, event: ConnectionEvent) {
        if let Some(identifier) = self.0.upgrade() {
            identifier.report(event);
        }
    }
}

/// Takes the requests of one device for a listener, as long as that lives.
struct Requests {
    listener: Weak<Identifier>,
    device: Arc<Device>,
}

impl ListenSink for Requests {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        if let Some(listener) = self.listener.upgrade() {
            listener.request(&self.device, request);
        }
    }
}
