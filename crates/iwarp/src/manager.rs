//! Connection management over TCP: addresses, listeners, requests and answers. The MPA exchange itself is in
//! `startup`.

use crate::backlog::{Backlog, BacklogPlace};
use crate::device::{MAX_READS, endpoint_of};
use crate::endpoint::{Endpoint, Start};
use crate::socket::{Socket, is_local, would_block};
use crate::startup::{Connecting, Greeting};
use adverb_core::cm::{
    AddressOptions, ConnectRequest, ConnectionBackend, ConnectionParameters, ConnectionSink,
    IncomingConnection, ListenSink, Listener, OutgoingConnection, PrivateDataLimits, Reservation,
};
use adverb_core::engine;
use adverb_core::error::{Error, Result};
use adverb_core::log;
use adverb_core::qp::QueuePair;
use adverb_core::reactor::{READABLE, Reactor, Readiness, Source, Token};
use adverb_core::setting;
use adverb_proto::iwarp::mpa::{Config, Depths, Offer, Revision, RtrKinds};
use std::any::Any;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most bytes of a program's private data: as the Linux siw driver takes, less the four bytes of the depths.
const PRIVATE_DATA: usize = 252;
/// Most requests that wait for an answer, also if the program's backlog is larger.
const MAX_BACKLOG: u32 = 4096;

/// How long a listener rests when the process has no descriptor for another connection.
const REST: Duration = Duration::from_millis(100);

/// The connection management of the device.
pub(crate) struct Manager;

/// The terms that this side wants for a connection between these addresses.
fn config(local: Option<SocketAddr>, peer: SocketAddr, parameters: &ConnectionParameters) -> Config {
    // Within the host no byte is damaged on the way, so no checksum is asked for.
    // RFC5044-1.2-1, RFC5044-4.4-2
    let near = local.is_some_and(|local| local.ip() == peer.ip()) || is_local(peer.ip());
    let crc = setting::checksums().unwrap_or(!near);
    Config {
        revision: Revision::Two,
        crc,
        markers: false,
        ird: parameters.responder_resources.into(),
        ird_limit: parameters.responder_resources.into(),
        ord: parameters.initiator_depth.into(),
        rtr: RtrKinds::ALL,
        large_fpdu: !setting::without("large-fpdu"),
        extensions: !setting::without("iwarp-extensions"),
    }
}

/// The peer's depths in the terms of an event: how many reads it may have under way here, and we there.
pub(crate) fn depths_of(peer: Option<Depths>, ird: Option<u16>, ord: Option<u16>) -> ConnectionParameters {
    let clamp = |depth: Option<u16>| depth.unwrap_or(0).min(MAX_READS as u16) as u8;
    ConnectionParameters {
        responder_resources: clamp(peer.and_then(|depths| depths.ord).or(ird)),
        initiator_depth: clamp(peer.and_then(|depths| depths.ird).or(ord)),
        ..ConnectionParameters::default()
    }
}

impl ConnectionBackend for Manager {
    fn private_data_limits(&self) -> PrivateDataLimits {
        PrivateDataLimits { request: PRIVATE_DATA, accept: PRIVATE_DATA, reject: PRIVATE_DATA }
    }

    fn reserve(&self, local: SocketAddr, options: AddressOptions) -> Result<Box<dyn Reservation>> {
        let socket = Socket::tcp(&local)?;
        apply(&socket, &local, options);
        hold(&socket, &local).map_err(|error| {
            let is_taken = error.raw_os_error() == Some(libc::EADDRINUSE);
            // PRACTICE-CALL-1
            if is_taken && !local.ip().is_unspecified() && is_held_for_all(&local) {
                return Error::new(
                    libc::EADDRNOTAVAIL,
                    format!("{local}: the port is held for all addresses"),
                );
            }
            system(&error, format!("binding to {local}"))
        })?;
        Ok(Box::new(BoundSocket { socket }))
    }

    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let endpoint = endpoint_of(queue_pair)?;
        endpoint.check_unconnected()?;
        PrivateDataLimits::check(request.private_data, PRIVATE_DATA)?;
        let destination = unwildcard(request.destination);
        let local = request.source.as_ref().map(|source| source.local());
        // A bound socket of the other family is of no use. One of the same family has the port already. A
        // fresh one could have the port only after that one is closed, and another program could take the
        // port in between.
        let bound = request
            .source
            .filter(|source| source.local().is_ipv4() == destination.is_ipv4())
            .and_then(|source| source.into_any().downcast::<BoundSocket>().ok());
        let socket = match bound {
            Some(bound) => {
                let _ = bound.socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
                bound.socket
            }
            None => Socket::tcp(&destination)?,
        };
        apply(&socket, &destination, request.options);
        let config = config(local, destination, &request.parameters);
        let connecting = Connecting::start(
            socket,
            destination,
            endpoint.clone(),
            &config,
            request.parameters,
            request.private_data,
            sink,
        )?;
        Ok(Box::new(Outgoing { endpoint, connecting: Some(connecting) }))
    }
}

/// The wildcard as a destination means this host, as it does to connect(2).
fn unwildcard(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn apply(socket: &Socket, address: &SocketAddr, options: AddressOptions) {
    // Hints, or refused where they have no meaning: connecting works without them.
    if let Some(tos) = options.type_of_service {
        let _ = match address {
            SocketAddr::V4(_) => socket.set(libc::IPPROTO_IP, libc::IP_TOS, tos.into()),
            SocketAddr::V6(_) => socket.set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos.into()),
        };
    }
    if options.reuse_address {
        let _ = socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    }
    if let (SocketAddr::V6(_), Some(only)) = (address, options.v6_only) {
        let _ = socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only.into());
    }
}

/// Binds a socket. Fails if another socket holds the port, but not because of connections of an earlier
/// listener in TIME-WAIT.
fn hold(socket: &Socket, local: &SocketAddr) -> io::Result<()> {
    match socket.bind(local) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            let before = socket.get(libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
            socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            let bound = socket.bind(local);
            // Switched off again at once: two holders that both permit reuse would not be in each other's
            // way.
            socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, before)?;
            bound
        }
        bound => bound,
    }
}

/// Whether a port that is held for an address is held for another one, too: for the wildcard, most likely.
fn is_held_for_all(address: &SocketAddr) -> bool {
    let mut other = *address;
    other.set_ip(match address.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv4Addr::new(127, 255, 255, 254).into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) | IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    });
    let held = Socket::tcp(&other).map(|socket| hold(&socket, &other));
    matches!(held, Ok(Err(error)) if error.raw_os_error() == Some(libc::EADDRINUSE))
}

fn system(error: &io::Error, doing: String) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{doing}: {error}"))
}

/// A bound socket.
struct BoundSocket {
    socket: Socket,
}

impl Reservation for BoundSocket {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn local(&self) -> SocketAddr {
        self.socket.local().unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))
    }

    fn listen(self: Box<Self>, backlog: u32, sink: Arc<dyn ListenSink>) -> Result<Box<dyn Listener>> {
        let local = self.local();
        let backlog = if backlog == 0 { 128 } else { backlog.min(MAX_BACKLOG) };
        // Connections inherit it, so that those in TIME-WAIT are not in the way of the next listener (see
        // `hold`).
        let _ = self.socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        self.socket.listen(backlog).map_err(|error| system(&error, format!("listening on {local}")))?;
        let reactor = &engine::engine()?.reactor;
        let listening = Arc::new(Listening {
            socket: self.socket,
            local,
            sink,
            reactor,
            backlog: Arc::new(Backlog::new(backlog as usize)),
            token: Mutex::new(None),
        });
        let token = reactor.add(listening.socket.fd(), READABLE, listening.clone())?;
        *listening.lock() = Some(token);
        Ok(Box::new(ListenHandle(listening)))
    }
}

/// A listening socket, served by the background thread.
struct Listening {
    socket: Socket,
    local: SocketAddr,
    sink: Arc<dyn ListenSink>,
    reactor: &'static Reactor,
    backlog: Arc<Backlog>,
    token: Mutex<Option<Token>>,
}

impl Listening {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Looks away for a while: the connection that cannot be taken now would be reported again and again.
    fn rest(self: &Arc<Self>) {
        if let Some(token) = *self.lock()
            && self.reactor.set_timer(REST, self.clone()).is_ok()
        {
            let _ = self.reactor.modify(token, self.socket.fd(), 0);
        }
    }
}

impl Source for Listening {
    fn ready(self: Arc<Self>, _: Readiness) {
        // Bounded: the rest comes with the next turn of the background thread.
        for _ in 0..64 {
            let socket = match self.socket.accept() {
                Ok(socket) => socket,
                Err(error) if would_block(&error) || error.raw_os_error() == Some(libc::ECONNABORTED) => {
                    return;
                }
                Err(error) => {
                    // Out of descriptors: the connection stays in the kernel's queue. Nothing can be told to
                    // the program.
                    log!(Error, "accepting a connection on {}: {error}", self.local);
                    return self.rest();
                }
            };
            if let Err(error) = Greeting::start(socket, self.sink.clone(), self.reactor, self.backlog.clone())
            {
                log!(Error, "accepting a connection on {}: {error}", self.local);
            }
        }
    }

    /// Rested enough.
    fn timeout(self: Arc<Self>) {
        if let Some(token) = *self.lock() {
            let _ = self.reactor.modify(token, self.socket.fd(), READABLE);
        }
    }
}

struct ListenHandle(Arc<Listening>);

impl Listener for ListenHandle {
    fn local(&self) -> SocketAddr {
        self.0.local
    }
}

impl Drop for ListenHandle {
    fn drop(&mut self) {
        if let Some(token) = self.0.lock().take() {
            self.0.reactor.remove(token, self.0.socket.fd());
        }
    }
}

/// A request that waits for the program's answer.
pub(crate) struct WaitingRequest {
    socket: Arc<Socket>,
    local: SocketAddr,
    peer: SocketAddr,
    offer: Offer,
    private_data: Vec<u8>,
    early: Vec<u8>,
    answered: bool,
    _place: BacklogPlace,
}

impl WaitingRequest {
    /// Takes over a request. None if the peer has gone already.
    pub(crate) fn new(
        socket: Arc<Socket>,
        offer: Offer,
        private_data: Vec<u8>,
        early: Vec<u8>,
        place: BacklogPlace,
    ) -> Option<Self> {
        let (local, peer) = (socket.local()?, socket.peer()?);
        Some(Self { socket, local, peer, offer, private_data, early, answered: false, _place: place })
    }
}

impl IncomingConnection for WaitingRequest {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn parameters(&self) -> ConnectionParameters {
        depths_of(self.offer.depths, None, None)
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn accept(
        mut self: Box<Self>,
        queue_pair: &Arc<QueuePair>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let endpoint = endpoint_of(queue_pair)?;
        endpoint.check_unconnected()?;
        PrivateDataLimits::check(private_data, PRIVATE_DATA)?;
        let mut config = config(Some(self.local), self.peer, &parameters);
        // The program's depth is the limit, though the peer may ask for more.
        config.ird_limit = config.ird;
        let (reply, agreed) =
            self.offer.accept(&config, private_data).map_err(|error| Error::invalid(error.to_string()))?;
        self.answered = true;
        // Before the peer has the answer, and asks.
        let place = endpoint.host.expect(&endpoint, &self.socket, true);
        self.socket.send_all(&reply).map_err(|error| system(&error, format!("answering {}", self.peer)))?;
        endpoint.start(Start {
            socket: self.socket.clone(),
            parameters: agreed,
            early: std::mem::take(&mut self.early),
            depths: parameters,
            sink,
            peer: depths_of(self.offer.depths, agreed.ird, agreed.ord),
            private_data: Vec::new(),
            place,
        })?;
        Ok(Box::new(Outgoing { endpoint, connecting: None }))
    }

    // RFC5044-7.1.2-4
    fn reject(mut self: Box<Self>, private_data: &[u8]) -> Result<()> {
        PrivateDataLimits::check(private_data, PRIVATE_DATA)?;
        self.answered = true;
        let reply = self.offer.reject(private_data).map_err(|error| Error::invalid(error.to_string()))?;
        self.socket.send_all(&reply).map_err(|error| system(&error, format!("answering {}", self.peer)))?;
        crate::linger::start(self.socket.clone(), &engine::engine()?.reactor);
        Ok(())
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        if !self.answered
            && let Ok(reply) = self.offer.reject(&[])
        {
            let _ = self.socket.send_all(&reply);
        }
    }
}

/// A connection that we started or accepted.
struct Outgoing {
    endpoint: Arc<Endpoint>,
    connecting: Option<Arc<Connecting>>,
}

impl OutgoingConnection for Outgoing {
    fn local(&self) -> Option<SocketAddr> {
        self.connecting.as_ref().and_then(|connecting| connecting.local()).or_else(|| self.endpoint.local())
    }

    fn disconnect(&self) -> Result<()> {
        if let Some(connecting) = &self.connecting {
            connecting.abandon();
        }
        self.endpoint.disconnect();
        Ok(())
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if let Some(connecting) = &self.connecting {
            connecting.cancel();
        }
        self.endpoint.disconnect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC5044-1.2-1, RFC5044-4.4-2
    #[test]
    fn checksums_are_asked_for_outside_the_host() {
        let parameters = ConnectionParameters::default();
        let asked = |local: Option<&str>, peer: &str| {
            config(local.map(|local| local.parse().unwrap()), peer.parse().unwrap(), &parameters).crc
        };
        // The addresses for examples in documents (RFC 5737, RFC 3849) belong to no host.
        assert!(asked(None, "192.0.2.1:7"));
        assert!(asked(Some("192.0.2.7:8"), "192.0.2.1:7"));
        assert!(asked(None, "[2001:db8::1]:7"));
        assert!(!asked(None, "127.0.0.1:7"));
        assert!(!asked(None, "[::1]:7"));
        assert!(!asked(Some("192.0.2.1:8"), "192.0.2.1:7"));
    }
}
