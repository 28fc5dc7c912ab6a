//! Connections in memory: a table of addresses in use, and requests that are handed over as objects.

use super::{Link, NullEndpoint, lock};
use crate::cm::{
    AddressOptions, ConnectRequest, ConnectionBackend, ConnectionEvent, ConnectionParameters, ConnectionSink,
    IncomingConnection, ListenSink, Listener, OutgoingConnection, PrivateDataLimits, Reservation,
};
use crate::error::{Error, Result};
use crate::qp::{QueuePair, State};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

#[derive(Default)]
pub(super) struct Switchboard(Arc<Table>);

#[derive(Default)]
struct Table {
    places: Mutex<Vec<Place>>,
    next: AtomicU64,
}

struct Place {
    id: u64,
    address: SocketAddr,
    options: AddressOptions,
    sink: Option<Arc<dyn ListenSink>>,
}

impl Place {
    fn overlaps(&self, other: SocketAddr) -> bool {
        let either_any = self.address.ip().is_unspecified() || other.ip().is_unspecified();
        self.address.port() == other.port()
            && self.address.is_ipv4() == other.is_ipv4()
            && (either_any || self.address.ip() == other.ip())
    }
}

/// An address in use, and perhaps listened on; let go of when dropped.
struct Holding {
    table: Arc<Table>,
    id: u64,
    address: SocketAddr,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut places = lock(&self.table.places);
        let gone = places.iter().position(|place| place.id == self.id).map(|index| places.swap_remove(index));
        drop(places);
        drop(gone);
    }
}

impl Reservation for Holding {
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    fn local(&self) -> SocketAddr {
        self.address
    }

    fn listen(self: Box<Self>, _backlog: u32, sink: Arc<dyn ListenSink>) -> Result<Box<dyn Listener>> {
        if let Some(place) = lock(&self.table.places).iter_mut().find(|place| place.id == self.id) {
            place.sink = Some(sink);
        }
        Ok(self)
    }
}

impl Listener for Holding {
    fn local(&self) -> SocketAddr {
        self.address
    }
}

impl ConnectionBackend for Switchboard {
    fn private_data_limits(&self) -> PrivateDataLimits {
        PrivateDataLimits { request: 196, accept: 128, reject: 64 }
    }

    fn reserve(&self, local: SocketAddr, options: AddressOptions) -> Result<Box<dyn Reservation>> {
        // The system says whether the address is one of this host; ports are counted here alone.
        UdpSocket::bind(SocketAddr::new(local.ip(), 0)).map_err(|error| {
            Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{local}: {error}"))
        })?;
        let mut places = lock(&self.0.places);
        let mut address = local;
        let taken = |address: SocketAddr| {
            places.iter().any(|place| {
                place.overlaps(address) && !(place.options.reuse_address && options.reuse_address)
            })
        };
        while local.port() == 0 && (address.port() == 0 || taken(address)) {
            address.set_port(32768 + (crate::random::word() % 28232) as u16);
        }
        if taken(address) {
            let for_all = !address.ip().is_unspecified()
                && places.iter().any(|place| place.overlaps(address) && place.address.ip().is_unspecified());
            let errno = if for_all { libc::EADDRNOTAVAIL } else { libc::EADDRINUSE };
            return Err(Error::new(errno, format!("{address} is in use")));
        }
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        places.push(Place { id, address, options, sink: None });
        Ok(Box::new(Holding { table: self.0.clone(), id, address }))
    }

    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let endpoint = endpoint_of(queue_pair)?;
        let listener = lock(&self.0.places)
            .iter()
            .find(|place| place.overlaps(request.destination) && place.sink.is_some())
            .and_then(|place| place.sink.clone());
        let source = request.source.as_ref().map(|source| source.local());
        let attempt = Arc::new(Attempt {
            endpoint: Arc::downgrade(&endpoint),
            sink,
            answered: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            initiator: source.unwrap_or(request.destination),
            responder: request.destination,
            parameters: request.parameters,
            private_data: request.private_data.to_vec(),
            _source: request.source,
        });
        match listener {
            Some(listener) => listener.request(Box::new(Incoming(attempt.clone()))),
            None => attempt.refuse(-libc::ECONNREFUSED, Vec::new()),
        }
        Ok(Box::new(Handle { local: source, attempt: Some(attempt), endpoint }))
    }
}

fn endpoint_of(queue_pair: &QueuePair) -> Result<Arc<NullEndpoint>> {
    if queue_pair.state() != State::Init {
        return Err(Error::invalid(format!("a queue pair in {:?} connects nothing", queue_pair.state())));
    }
    let endpoint = queue_pair.endpoint().clone().as_any().downcast::<NullEndpoint>();
    endpoint.map_err(|_| Error::invalid("the queue pair is of another transport"))
}

/// The initiator's side of a connection that is being made.
struct Attempt {
    endpoint: Weak<NullEndpoint>,
    sink: Arc<dyn ConnectionSink>,
    answered: AtomicBool,
    abandoned: AtomicBool,
    initiator: SocketAddr,
    responder: SocketAddr,
    parameters: ConnectionParameters,
    private_data: Vec<u8>,
    _source: Option<Box<dyn Reservation>>,
}

impl Attempt {
    fn refuse(&self, status: i32, private_data: Vec<u8>) {
        if !self.answered.swap(true, Ordering::AcqRel) {
            // As on iWARP.
            let nobody_listens = status == -libc::ECONNREFUSED && private_data.is_empty();
            self.sink.event(ConnectionEvent::Rejected { nobody_listens, status, private_data });
        }
    }
}

/// The responder's view of it.
struct Incoming(Arc<Attempt>);

/// The parameters of one side, as the other side's event shows them.
fn mirrored(parameters: ConnectionParameters) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: parameters.initiator_depth,
        initiator_depth: parameters.responder_resources,
        ..parameters
    }
}

impl IncomingConnection for Incoming {
    fn local(&self) -> SocketAddr {
        self.0.responder
    }

    fn peer(&self) -> SocketAddr {
        self.0.initiator
    }

    fn parameters(&self) -> ConnectionParameters {
        mirrored(self.0.parameters)
    }

    fn private_data(&self) -> &[u8] {
        &self.0.private_data
    }

    fn accept(
        self: Box<Self>,
        queue_pair: &Arc<QueuePair>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let attempt = &self.0;
        let own = endpoint_of(queue_pair)?;
        let gone = || Error::new(libc::ECONNRESET, "the peer has given up");
        if attempt.abandoned.load(Ordering::Acquire) {
            return Err(gone());
        }
        let initiator = attempt.endpoint.upgrade().ok_or_else(gone)?;
        if initiator.queues.state() != State::Init {
            return Err(gone());
        }
        attempt.answered.store(true, Ordering::Release);
        let link = Arc::new(Link {
            ends: [(Arc::downgrade(&own), sink.clone()), (Arc::downgrade(&initiator), attempt.sink.clone())],
            ended: AtomicBool::new(false),
        });
        let mut stands = true;
        for endpoint in [&own, &initiator] {
            *lock(&endpoint.link) = Some(link.clone());
            stands &= endpoint.queues.connected();
            endpoint.queues.counters.connections.add(1);
        }
        let to_initiator = ConnectionEvent::Established {
            parameters: mirrored(parameters),
            private_data: private_data.to_vec(),
        };
        let to_responder = ConnectionEvent::Established {
            parameters: mirrored(attempt.parameters),
            private_data: Vec::new(),
        };
        sink.event(to_responder);
        attempt.sink.event(to_initiator);
        if !stands {
            link.end();
        }
        Ok(Box::new(Handle { local: Some(attempt.responder), attempt: None, endpoint: own }))
    }

    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()> {
        self.0.refuse(-libc::ECONNRESET, private_data.to_vec());
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.0.refuse(-libc::ECONNRESET, Vec::new());
    }
}

struct Handle {
    local: Option<SocketAddr>,
    attempt: Option<Arc<Attempt>>,
    endpoint: Arc<NullEndpoint>,
}

impl OutgoingConnection for Handle {
    fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    fn disconnect(&self) -> Result<()> {
        self.endpoint.end();
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(attempt) = &self.attempt {
            attempt.abandoned.store(true, Ordering::Release);
        }
        // A queue pair that was never connected stays as it is.
        if let Some(link) = self.endpoint.link() {
            link.end();
        }
    }
}
