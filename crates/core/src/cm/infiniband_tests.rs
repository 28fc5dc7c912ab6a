//! Tests of the generic part on InfiniBand alone, over a transport that only writes down its calls.

use super::*;
use crate::attributes::{DeviceAttributes, Gid, GidKind, PortAttributes, TransportType, gid_of};
use crate::conformance::fixture::expect;
use crate::cq::CompletionQueue;
use crate::description::Description;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::null::tests::site;
use crate::qp::{
    AttributeMask as M, Attributes, Capabilities, Path, QueuePair, QueuePairOptions, Queues, Service, State,
    Transition,
};
use crate::region::ProtectionDomain;
use crate::transport::{Endpoint, Transport};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const OWN: &str = "127.0.0.1:5";
const PEER: &str = "127.0.0.9:7";
const LIMITS: PrivateDataLimits = PrivateDataLimits { request: 10, accept: 11, reject: 12 };

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

fn agreement(service: Service) -> Agreement {
    let local = Gid { index: 3, bytes: gid_of(address(OWN).ip()), interface: 1, kind: GidKind::RoceV2 };
    Agreement {
        service,
        path: path_to(&[local], address(OWN), gid_of(address(PEER).ip()), 8).unwrap(),
        path_mtu: 1024,
        destination: 77,
        rq_psn: 100,
        sq_psn: 200,
        responder_resources: 3,
        initiator_depth: 4,
        ack_timeout: 17,
        retry_count: 6,
        rnr_retry_count: 5,
    }
}

/// The calls to the transport.
#[derive(Default)]
struct TransportCalls {
    calls: Vec<String>,
    sink: Option<Arc<dyn ConnectionSink>>,
    listener: Option<Arc<dyn ListenSink>>,
    groups: Vec<[u8; 16]>,
}

#[derive(Clone, Default)]
struct Journal(Arc<Mutex<TransportCalls>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, TransportCalls> {
        self.0.lock().unwrap()
    }

    fn write(&self, call: String) {
        self.lock().calls.push(call);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Reports as the transport does.
    fn report(&self, event: ConnectionEvent) {
        let sink = self.lock().sink.clone().expect("a connection is being made");
        sink.event(event);
    }
}

struct Fake {
    journal: Journal,
    null: Arc<dyn Transport>,
}

fn device() -> (Arc<Device>, Journal) {
    let _ = site();
    let journal = Journal::default();
    let null = (crate::null::FACTORY.create)(&[&Description::of("null0")]).unwrap().remove(0);
    let transport = Arc::new(Fake { journal: journal.clone(), null });
    let counters = Device::all().unwrap()[0].counters();
    (Arc::new(Device::new(Description::of("fake0"), 7, transport, counters)), journal)
}

impl Transport for Fake {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            transport: TransportType::Ib,
            services: &[Service::Rc, Service::Uc, Service::Ud],
            max_ah: 1,
            max_mcast_grp: 1,
            max_mcast_qp_attach: 1,
            ..self.null.attributes()
        }
    }

    fn port(&self) -> PortAttributes {
        self.null.port()
    }

    fn gids(&self) -> Vec<Gid> {
        vec![Gid { index: 3, bytes: gid_of(address(OWN).ip()), interface: 1, kind: GidKind::RoceV2 }]
    }

    fn allocate_number(&self, options: &QueuePairOptions) -> Result<u32> {
        self.null.allocate_number(options)
    }

    fn release_number(&self, _: u32) {}

    fn create_endpoint(&self, _: &Arc<Queues>) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(Idle(self.journal.clone())))
    }

    fn connections(&self) -> &dyn ConnectionBackend {
        self
    }
}

/// An endpoint that moves nothing.
struct Idle(Journal);

impl Endpoint for Idle {
    fn transmit(&self) {}

    fn modify(&self, _: Transition, _: &Attributes) -> Result<()> {
        Ok(())
    }

    fn is_connected_by_manager(&self) -> bool {
        false
    }

    fn close(&self) {}

    fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        if group[15] == 0 {
            return Err(Error::new(libc::ENOMEM, "no more groups"));
        }
        self.0.lock().groups.push(*group);
        Ok(())
    }

    fn detach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        self.0.lock().groups.retain(|joined| joined != group);
        Ok(())
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

struct Port(SocketAddr, Journal);

impl Reservation for Port {
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }

    fn local(&self) -> SocketAddr {
        self.0
    }

    fn listen(self: Box<Self>, _: u32, sink: Arc<dyn ListenSink>) -> Result<Box<dyn Listener>> {
        self.1.lock().listener = Some(sink);
        Ok(self)
    }
}

impl Listener for Port {
    fn local(&self) -> SocketAddr {
        self.0
    }
}

impl ConnectionBackend for Fake {
    fn private_data_limits(&self) -> PrivateDataLimits {
        PrivateDataLimits { request: 56, accept: 196, reject: 148 }
    }

    fn datagram_limits(&self) -> Option<PrivateDataLimits> {
        Some(LIMITS)
    }

    fn reserve(&self, local: SocketAddr, _: AddressOptions) -> Result<Box<dyn Reservation>> {
        let port = if local.port() == 0 { 5 } else { local.port() };
        Ok(Box::new(Port(SocketAddr::new(local.ip(), port), self.journal.clone())))
    }

    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        assert_eq!(request.parameters.qp_number, queue_pair.number());
        self.journal.write("connect".into());
        self.journal.lock().sink = Some(sink);
        Ok(Box::new(FakeConnection(self.journal.clone(), Service::Rc)))
    }

    fn connect_unmanaged(
        &self,
        service: Service,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        self.journal.write(format!("connect {service:?} {}", request.parameters.qp_number));
        self.journal.lock().sink = Some(sink);
        Ok(Box::new(FakeConnection(self.journal.clone(), service)))
    }

    fn path_mtu(&self, local: IpAddr) -> Option<u32> {
        assert_eq!(local, address(OWN).ip());
        Some(2048)
    }
}

struct FakeConnection(Journal, Service);

impl OutgoingConnection for FakeConnection {
    fn local(&self) -> Option<SocketAddr> {
        Some(address(OWN))
    }

    fn disconnect(&self) -> Result<()> {
        self.0.write("disconnect".into());
        Ok(())
    }

    fn agreement(&self) -> Option<Agreement> {
        Some(agreement(self.1))
    }

    fn establish(&self) -> Result<()> {
        self.0.write("establish".into());
        Ok(())
    }

    fn notify(&self) -> Result<()> {
        self.0.write("notify".into());
        Ok(())
    }
}

struct Asking(Journal, Service);

impl IncomingConnection for Asking {
    fn local(&self) -> SocketAddr {
        address(OWN)
    }

    fn peer(&self) -> SocketAddr {
        address(PEER)
    }

    fn parameters(&self) -> ConnectionParameters {
        ConnectionParameters { responder_resources: 3, initiator_depth: 4, ..ConnectionParameters::default() }
    }

    fn private_data(&self) -> &[u8] {
        b"please"
    }

    fn service(&self) -> Service {
        self.1
    }

    fn agreement(&self) -> Option<Agreement> {
        Some(agreement(self.1))
    }

    fn accept(
        self: Box<Self>,
        _: &Arc<QueuePair>,
        _: ConnectionParameters,
        _: &[u8],
        _: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        panic!("there is no queue pair");
    }

    fn accept_unmanaged(
        self: Box<Self>,
        parameters: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let text = String::from_utf8_lossy(private_data).into_owned();
        self.0.write(format!("accept {} {:#x} {text}", parameters.qp_number, parameters.qkey));
        self.0.lock().sink = Some(sink);
        Ok(Box::new(FakeConnection(self.0.clone(), self.1)))
    }

    fn reject(self: Box<Self>, private_data: &[u8]) -> Result<()> {
        self.0.write(format!("reject {}", private_data.len()));
        Ok(())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.write(format!("end of {:?}", self.1));
    }
}

/// Binds to our address on the device, which is not in the engine's list.
fn bound(id: &Identifier, device: &Arc<Device>) {
    let mut inner = id.lock();
    inner.device = Some(device.clone());
    inner.source = Some(address(OWN));
    inner.state = IdentifierState::AddressBound;
}

/// An identifier that has resolved the peer's address.
fn identifier(device: &Arc<Device>, space: PortSpace) -> (Arc<Identifier>, Arc<EventChannel>) {
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), space).unwrap();
    bound(&id, device);
    id.resolve_address(None, address(PEER), SECOND).unwrap_or_else(|error| panic!("{error}"));
    expect(&channel, EventKind::AddressResolved);
    (id, channel)
}

fn resolved(device: &Arc<Device>, space: PortSpace) -> (Arc<Identifier>, Arc<EventChannel>) {
    let (id, channel) = identifier(device, space);
    id.resolve_route(SECOND).unwrap();
    expect(&channel, EventKind::RouteResolved);
    (id, channel)
}

fn listening(device: &Arc<Device>, space: PortSpace) -> (Arc<Identifier>, Arc<EventChannel>) {
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), space).unwrap();
    bound(&id, device);
    id.listen(4).unwrap();
    (id, channel)
}

fn numbered(number: u32) -> Parameters<'static> {
    let connection = ConnectionParameters { qp_number: number, ..ConnectionParameters::default() };
    Parameters { connection, private_data: b"hello", queue_pair: None }
}

fn datagram_pair(device: &Arc<Device>) -> Arc<QueuePair> {
    let context = device.open().unwrap();
    let domain = ProtectionDomain::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 4, None).unwrap();
    let capabilities = Capabilities { max_send_wr: 1, max_recv_wr: 1, ..Capabilities::default() };
    let options = QueuePairOptions {
        send_cq: cq.clone(),
        receive_cq: cq,
        srq: None,
        capabilities,
        service: Service::Ud,
        signal_all: false,
    };
    QueuePair::new(&domain, options).unwrap()
}

// IB-CM-62
#[test]
fn the_active_side_manages_its_queue_pair() {
    let (device, journal) = device();
    let (id, channel) = resolved(&device, PortSpace::Tcp);
    let (attributes, mask) = id.queue_pair_attributes(State::Init).unwrap();
    assert_eq!(mask, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS);
    assert_eq!((attributes.state, attributes.port), (Some(State::Init), 1));
    assert_eq!(errno(id.queue_pair_attributes(State::Rtr)), libc::EINVAL);
    assert_eq!(errno(id.connect(None)), libc::EINVAL, "no queue pair at all");
    id.connect(Some(&numbered(42))).unwrap();
    assert_eq!(journal.take(), ["connect Rc 42"]);
    let parameters = ConnectionParameters { qp_number: 77, ..ConnectionParameters::default() };
    journal.report(ConnectionEvent::Response { parameters, private_data: b"well".to_vec() });
    let event = expect(&channel, EventKind::ConnectResponse);
    assert_eq!((event.parameters.qp_number, &event.private_data[..]), (77, &b"well"[..]));
    let (attributes, mask) = id.queue_pair_attributes(State::Rtr).unwrap();
    let common = M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    assert_eq!(mask, common | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
    assert_eq!((attributes.destination, attributes.rq_psn, attributes.path_mtu), (77, 100, 1024));
    assert_eq!(attributes.max_dest_rd_atomic, 3);
    let path = Path {
        gid: gid_of(address(PEER).ip()),
        source_gid_index: 3,
        hop_limit: 64,
        traffic_class: 8,
        is_global: true,
        port: 1,
        ..Path::default()
    };
    assert_eq!(attributes.path, path);
    let (attributes, mask) = id.queue_pair_attributes(State::Rts).unwrap();
    let reliable = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    assert_eq!(mask, M::STATE | M::SQ_PSN | reliable);
    assert_eq!((attributes.sq_psn, attributes.timeout, attributes.max_rd_atomic), (200, 17, 4));
    assert_eq!((attributes.retry_count, attributes.rnr_retry), (6, 5));
    assert_eq!(agreement(Service::Uc).attributes(State::Rtr).unwrap().1, common);
    assert_eq!(agreement(Service::Uc).attributes(State::Rts).unwrap().1, M::STATE | M::SQ_PSN);
    assert_eq!(errno(agreement(Service::Rc).attributes(State::Error)), libc::EINVAL);
    id.establish().unwrap();
    assert_eq!(journal.take(), ["establish"]);
    journal.report(ConnectionEvent::Disconnected);
    expect(&channel, EventKind::Disconnected);
    journal.report(ConnectionEvent::TimewaitExit);
    expect(&channel, EventKind::TimewaitExit);
}

// IB-CM-63
#[test]
fn the_passive_side_manages_its_queue_pair() {
    let (device, journal) = device();
    let (_listener, channel) = listening(&device, PortSpace::Tcp);
    let listener = journal.lock().listener.clone().unwrap();
    listener.request(Box::new(Asking(journal.clone(), Service::Uc)));
    assert_eq!(journal.take(), ["end of Uc"], "another service than the listener's");
    listener.request(Box::new(Asking(journal.clone(), Service::Rc)));
    let id = expect(&channel, EventKind::ConnectRequest).identifier.clone();
    assert_eq!(id.queue_pair_attributes(State::Rtr).unwrap().0.destination, 77);
    id.notify().unwrap();
    assert_eq!(errno(id.establish()), libc::EINVAL);
    id.accept(Some(&numbered(43))).unwrap();
    assert_eq!(journal.take(), ["accept 43 0x1234567 hello", "end of Rc"]);
    assert_eq!(id.queue_pair_attributes(State::Rts).unwrap().0.sq_psn, 200);
    id.notify().unwrap();
    id.disconnect().unwrap();
    assert_eq!(journal.take(), ["notify", "disconnect"]);
}

// IB-SIDR-8, IB-SIDR-9
#[test]
fn datagrams_are_looked_up() {
    let (device, journal) = device();
    let (id, channel) = resolved(&device, PortSpace::Udp);
    let record = id.path_record().unwrap();
    assert_eq!((record.mtu, record.life_time, record.pkey), (2048, PACKET_LIFE_TIME, DEFAULT_PKEY));
    assert_eq!(record.destination, gid_of(address(PEER).ip()));
    let too_long = Parameters { private_data: &[0; 11], ..Parameters::default() };
    assert_eq!(errno(id.connect(Some(&too_long))), libc::EINVAL);
    let queue_pair = datagram_pair(&device);
    id.attach_queue_pair(&queue_pair).unwrap();
    assert_eq!((queue_pair.state(), queue_pair.attributes().qkey), (State::Rts, UDP_QKEY));
    id.connect(None).unwrap();
    assert_eq!(journal.take(), [format!("connect Ud {}", queue_pair.number())]);
    let parameters = ConnectionParameters { qp_number: 99, qkey: 5, ..ConnectionParameters::default() };
    journal.report(ConnectionEvent::Established { parameters, private_data: b"here".to_vec() });
    let event = expect(&channel, EventKind::Established);
    let peer = event.datagram.as_deref().unwrap();
    assert_eq!((peer.queue_pair, peer.qkey, peer.path.source_gid_index), (99, 5, 3));
    assert_eq!(peer.path.gid, gid_of(address(PEER).ip()));
    assert_eq!(errno(id.disconnect()), libc::EINVAL);
}

#[test]
fn datagram_services_answer_with_a_queue_pair() {
    let (device, journal) = device();
    let (_listener, channel) = listening(&device, PortSpace::Udp);
    let listener = journal.lock().listener.clone().unwrap();
    for _ in 0..2 {
        listener.request(Box::new(Asking(journal.clone(), Service::Ud)));
    }
    let id = expect(&channel, EventKind::ConnectRequest).identifier.clone();
    assert_eq!(id.service(), Service::Ud);
    id.accept(Some(&numbered(44))).unwrap();
    assert_eq!(journal.take(), ["accept 44 0x1234567 hello", "end of Ud"]);
    let id = expect(&channel, EventKind::ConnectRequest).identifier.clone();
    assert_eq!(errno(id.reject(&[0; 13])), libc::EINVAL);
    id.reject(&[0; 12]).unwrap();
    assert_eq!(journal.take(), ["reject 12", "end of Ud"]);
}

#[test]
fn multicast_groups() {
    let (device, journal) = device();
    let (id, channel) = identifier(&device, PortSpace::Udp);
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    assert_eq!(errno(id.join_multicast(address(PEER).ip(), 0)), libc::EINVAL);
    assert_eq!(errno(id.leave_multicast(group)), libc::EADDRNOTAVAIL);
    // A program that only sends needs no queue pair yet.
    id.join_multicast(group, 10).unwrap();
    let event = expect(&channel, EventKind::MulticastJoin);
    let everybody = event.datagram.as_deref().unwrap();
    assert_eq!((everybody.queue_pair, everybody.qkey), (MULTICAST_QUEUE_PAIR, UDP_QKEY));
    assert_eq!(everybody.path.gid, gid_of(group));
    assert_eq!(event.context, 10);
    drop(event);
    id.leave_multicast(group).unwrap();
    let queue_pair = datagram_pair(&device);
    id.attach_queue_pair(&queue_pair).unwrap();
    let other: IpAddr = "ff05::77".parse().unwrap();
    for (address, context) in [(group, 11), (other, 12)] {
        id.join_multicast(address, context).unwrap();
        assert_eq!(expect(&channel, EventKind::MulticastJoin).context, context);
    }
    assert_eq!(journal.lock().groups, [gid_of(group), gid_of(other)]);
    id.leave_multicast(group).unwrap();
    assert_eq!(journal.lock().groups, [gid_of(other)]);
    // The transport refuses this one.
    id.join_multicast("239.1.2.0".parse().unwrap(), 13).unwrap();
    let event = expect(&channel, EventKind::MulticastError);
    assert_eq!((event.context, event.status), (13, -libc::ENOMEM));
    drop(event);
    assert_eq!(id.lock().memberships.len(), 1);
    id.destroy();
    assert_eq!(journal.lock().groups, [] as [[u8; 16]; 0]);
}
