//! Two managers that hear each other at once, for queue pairs that programs manage themselves.

use super::*;
use adverb_core::attributes::{GidKind, gid_of};
use adverb_core::cm::{Agreement, IncomingConnection, ListenSink, Listener, PortSpace};
use adverb_wire::ib::cm::{Message, service};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Instant;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

#[derive(Default)]
struct Wires {
    managers: Mutex<HashMap<IpAddr, Weak<Manager>>>,
    /// Datagrams so far.
    sent: AtomicUsize,
    /// Other processes that would hand something over.
    admitted: Mutex<Vec<Arc<Connection>>>,
}

type Network = Arc<Wires>;

struct Site {
    ip: IpAddr,
    block: u16,
    mtu: u32,
    network: Network,
    begun: Instant,
}

impl ManagerHost for Site {
    fn block(&self) -> Result<u16> {
        Ok(self.block)
    }

    fn open(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        self.network.sent.fetch_add(1, Ordering::SeqCst);
        let receiver = lock(&self.network.managers).get(&peer.ip()).and_then(Weak::upgrade);
        if let Some(receiver) = receiver {
            receiver.receive(mad, ManagerPeer::new(peer.ip(), local, 7), None);
        }
    }

    fn send_at_exit(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]) {
        self.send(local, peer, mad);
    }

    fn port_of(&self, _: IpAddr, _: u32) -> Option<u16> {
        None
    }

    fn believes_stale(&self, _: StaleClaim) -> bool {
        true
    }

    fn gids(&self) -> Vec<Gid> {
        vec![Gid { index: 2, bytes: gid_of(self.ip), interface: 1, kind: GidKind::RoceV2 }]
    }

    fn mtu_of(&self, local: IpAddr) -> Option<u32> {
        (local == self.ip).then_some(self.mtu)
    }

    fn admit(&self, connection: Connection) -> Result<Arc<Connection>> {
        let connection = Arc::new(connection);
        lock(&self.network.admitted).push(connection.clone());
        Ok(connection)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

#[derive(Default)]
struct EventLog {
    told: Mutex<Vec<ConnectionEvent>>,
    /// What comes half a second after the end.
    timewait_exits: AtomicU32,
}

impl ConnectionSink for EventLog {
    fn event(&self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::TimewaitExit => _ = self.timewait_exits.fetch_add(1, Ordering::SeqCst),
            event => lock(&self.told).push(event),
        }
    }
}

impl EventLog {
    /// The next event: mostly told already, but a service that nobody offers is asked for again for a while.
    #[track_caller]
    fn next(&self) -> ConnectionEvent {
        let begun = Instant::now();
        while self.is_empty() {
            assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "nothing was told");
            std::thread::yield_now();
        }
        lock(&self.told).remove(0)
    }

    fn is_empty(&self) -> bool {
        lock(&self.told).is_empty()
    }
}

#[derive(Default)]
struct Requests(Mutex<Vec<Box<dyn IncomingConnection>>>);

impl ListenSink for Requests {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        lock(&self.0).push(request);
    }
}

impl Requests {
    /// The next request: mostly told already, unless the background thread tells of it.
    #[track_caller]
    fn next(&self) -> Box<dyn IncomingConnection> {
        let begun = Instant::now();
        loop {
            if let Some(request) = lock(&self.0).pop() {
                return request;
            }
            assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "no request was told");
            std::thread::yield_now();
        }
    }
}

/// Takes requests, and the name of the thread that tells of each.
#[derive(Default)]
struct RequestWitness {
    requests: Requests,
    threads: Mutex<Vec<Option<String>>>,
}

impl ListenSink for RequestWitness {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        lock(&self.threads).push(std::thread::current().name().map(str::to_owned));
        self.requests.request(request);
    }
}

struct Pair {
    client: Arc<Manager>,
    server: Arc<Manager>,
    requests: Arc<Requests>,
    listener: Box<dyn Listener>,
    space: PortSpace,
    network: Network,
}

fn pair(space: PortSpace, mtu_of_server: u32) -> Pair {
    pair_between([CLIENT, SERVER], space, mtu_of_server)
}

fn pair_between([client, server]: [IpAddr; 2], space: PortSpace, mtu_of_server: u32) -> Pair {
    engine::install(&[crate::FACTORY]);
    let network = Network::default();
    let manager = |ip, block, mtu| {
        let site = Site { ip, block, mtu, network: network.clone(), begun: Instant::now() };
        let manager = Manager::new(Arc::new(site));
        lock(&network.managers).insert(ip, Arc::downgrade(&manager));
        manager
    };
    let at = SocketAddr::new(server, 0);
    let (client, server) = (manager(client, 5, 4096), manager(server, 6, mtu_of_server));
    let requests = Arc::new(Requests::default());
    let options = AddressOptions { port_space: space, ..AddressOptions::default() };
    let held = server.reserve(at, options).unwrap();
    let listener = held.listen(4, requests.clone()).unwrap();
    Pair { client, server, requests, listener, space, network }
}

impl Pair {
    fn connect(
        &self,
        kind: Transport,
        number: u32,
        port: u16,
    ) -> (Box<dyn OutgoingConnection>, Arc<EventLog>) {
        let told = Arc::new(EventLog::default());
        let connection = self
            .client
            .connect_unmanaged(
                kind,
                ConnectRequest {
                    source: None,
                    destination: SocketAddr::new(SERVER, port),
                    options: AddressOptions { port_space: self.space, ..AddressOptions::default() },
                    parameters: ConnectionParameters {
                        qp_number: number,
                        responder_resources: 3,
                        initiator_depth: 4,
                        retry_count: 200,
                        rnr_retry_count: 5,
                        ..ConnectionParameters::default()
                    },
                    private_data: b"hello",
                },
                told.clone(),
            )
            .unwrap();
        (connection, told)
    }

    fn port(&self) -> u16 {
        self.listener.local().port()
    }
}

fn answer(number: u32) -> ConnectionParameters {
    ConnectionParameters {
        qp_number: number,
        qkey: 9,
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 6,
        ..ConnectionParameters::default()
    }
}

// IB-CM-19, IB-CM-25, IB-CM-38, IB-CM-40, IB-CM-41, IB-CM-54, IB-CM-56, IB-CM-60, IB-CM-62
#[test]
fn a_connection_comes_and_goes() {
    let pair = pair(PortSpace::Tcp, 4096);
    let (client, told) = pair.connect(Transport::Rc, 50, pair.port());
    let request = pair.requests.next();
    assert_eq!(request.local(), pair.listener.local());
    assert_eq!((request.peer().ip(), request.service()), (CLIENT, Transport::Rc));
    assert_eq!(request.peer(), client.local().unwrap());
    // IB-CM-57, IB-CM-58
    assert_eq!((request.private_data().len(), &request.private_data()[..6]), (56, &b"hello\0"[..]));
    let asked = request.parameters();
    assert_eq!((asked.responder_resources, asked.initiator_depth, asked.retry_count), (4, 3, 7));
    let passive = request.agreement().unwrap();
    assert!(client.agreement().is_none() && client.establish().is_err());
    let server_told = Arc::new(EventLog::default());
    let server = request.accept_unmanaged(answer(60), b"welcome", server_told.clone()).unwrap();
    let ConnectionEvent::Response { parameters, private_data } = told.next() else { panic!() };
    assert_eq!(
        (parameters.qp_number, parameters.initiator_depth, parameters.responder_resources),
        (60, 2, 1)
    );
    assert_eq!((private_data.len(), &private_data[..8]), (196, &b"welcome\0"[..]));
    let active = client.agreement().unwrap();
    let expected = Agreement {
        destination: 60,
        rq_psn: passive.sq_psn,
        sq_psn: passive.rq_psn,
        responder_resources: 1,
        initiator_depth: 2,
        rnr_retry_count: 6,
        path: active.path,
        ..passive
    };
    assert_eq!(active, expected);
    assert_eq!((passive.destination, passive.path.gid), (50, gid_of(CLIENT)));
    assert_eq!((active.path.gid, active.path.source_gid_index), (gid_of(SERVER), 2));
    assert!(server_told.is_empty());
    client.establish().unwrap();
    assert!(matches!(server_told.next(), ConnectionEvent::Established { .. }));
    assert!(client.establish().is_err() && told.is_empty());
    client.disconnect().unwrap();
    assert!(matches!(told.next(), ConnectionEvent::Disconnected));
    assert!(matches!(server_told.next(), ConnectionEvent::Disconnected));
    for end in [&client, &server] {
        end.disconnect().unwrap();
    }
    assert!(told.is_empty() && server_told.is_empty());
    // Its number may be used again.
    let begun = Instant::now();
    while told.timewait_exits.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "nothing was told");
        std::thread::yield_now();
    }
    assert!(told.is_empty() && told.timewait_exits.load(Ordering::SeqCst) == 1);
}

// IB-CM-26, IB-CM-37, IB-CM-39
// IB-CM-61
#[test]
fn refusals() {
    let pair = pair(PortSpace::Tcp, 4096);
    let status = |told: &EventLog| match told.next() {
        ConnectionEvent::Rejected { status, private_data, .. } => (status, private_data),
        other => panic!("{other:?}"),
    };
    let (_client, told) = pair.connect(Transport::Uc, 50, pair.port());
    let request = pair.requests.next();
    assert_eq!((request.service(), request.agreement().unwrap().service), (Transport::Uc, Transport::Uc));
    request.reject(b"no").unwrap();
    let (reason, data) = status(&told);
    assert_eq!((reason, data.len(), &data[..3]), (28, 148, &b"no\0"[..]));
    let (_client, told) = pair.connect(Transport::Rc, 50, pair.port() ^ 1);
    assert_eq!(status(&told).0, 8);
    let (_client, told) = pair.connect(Transport::Rc, 50, pair.port());
    drop(pair.requests.next());
    assert_eq!(status(&told).0, 28);
    let port = pair.port();
    let Pair { client, server, requests, listener, space, network } = pair;
    drop(listener);
    let options = AddressOptions { port_space: space, ..AddressOptions::default() };
    // A process that another test starts has a copy of the port's socket until its program begins.
    let begun = Instant::now();
    let held = loop {
        match server.reserve(SocketAddr::new(SERVER, port), options) {
            Ok(held) => break held,
            Err(error) => assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "{error}"),
        }
        std::thread::yield_now();
    };
    let listener = held.listen(4, requests.clone()).unwrap();
    let pair = Pair { client, server, requests, listener, space, network };
    let (client, _told) = pair.connect(Transport::Rc, 51, port);
    let request = pair.requests.next();
    drop(client);
    assert!(request.accept_unmanaged(answer(61), b"", Arc::new(EventLog::default())).is_err(), "it gave up");
}

/// Has each request refused by another thread, and returns when that has sent something, or not for long.
struct Impatient {
    network: Network,
    in_time: AtomicUsize,
}

impl ListenSink for Impatient {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        // What is sent goes nowhere: here, managers would wait for each other.
        lock(&self.network.managers).clear();
        let (before, begun) = (self.network.sent.load(Ordering::SeqCst), Instant::now());
        let other = std::thread::spawn(move || request.reject(b"no").is_ok());
        while self.network.sent.load(Ordering::SeqCst) == before {
            if begun.elapsed() > SERVICE_TIMEOUT * 20 {
                return;
            }
            std::thread::yield_now();
        }
        self.in_time.fetch_add(1, Ordering::SeqCst);
        drop(other);
    }
}

#[test]
fn a_message_leaves_while_another_thread_calls_the_program() {
    let mut pair = pair(PortSpace::Tcp, 4096);
    let impatient = Arc::new(Impatient { network: pair.network.clone(), in_time: AtomicUsize::new(0) });
    let options = AddressOptions { port_space: pair.space, ..AddressOptions::default() };
    let held = pair.server.reserve(SocketAddr::new(SERVER, 0), options).unwrap();
    pair.listener = held.listen(4, impatient.clone()).unwrap();
    let (_client, _told) = pair.connect(Transport::Rc, 50, pair.port());
    assert_eq!(impatient.in_time.load(Ordering::SeqCst), 1);
}

/// A call of the program sends, and leaves to the background thread what has happened meanwhile: queue pairs
/// may be made ready for it or ended, and for that the stack of the program's thread can be too small.
#[test]
fn a_call_of_the_program_tells_of_no_event() {
    let mut pair = pair(PortSpace::Tcp, 4096);
    let witness = Arc::new(RequestWitness::default());
    let options = AddressOptions { port_space: pair.space, ..AddressOptions::default() };
    let held = pair.server.reserve(SocketAddr::new(SERVER, 0), options).unwrap();
    pair.listener = held.listen(4, witness.clone()).unwrap();
    let (_client, _told) = pair.connect(Transport::Rc, 50, pair.port());
    let first = witness.requests.next();
    // The next request comes, and nobody is told of it yet.
    let ends = Ends { local: SocketAddr::new(CLIENT, 9), peer: pair.listener.local() };
    let service = Service { space: pair.space, port: pair.port() }.id();
    let (own, options) = (Own { psn: 1, mtu: 1024 }, AddressOptions::default());
    let request = message::request(service, Transport::Rc, &ends, own, &options, &answer(70), b"");
    let request = Req { local_communication_id: 1000, local_qpn: 70, ..request };
    let mad = Message::from(request).to_mad(1).to_bytes();
    let from = ManagerPeer::new(SERVER, CLIENT, 0);
    let taken = pair.server.with(|cm, now| cm.receive_if(&mad, from, now, &|_| true));
    assert!(matches!(taken, Ok(Ok(_))));
    first.reject(b"no").unwrap();
    drop(witness.requests.next());
    assert_eq!(lock(&witness.threads)[1].as_deref(), Some("adverb"));
}

// IB-CM-35
// IB-CM-55
#[test]
fn requests_that_cannot_be_served() {
    let pair = pair(PortSpace::Tcp, 1024);
    let (_client, told) = pair.connect(Transport::Rc, 50, pair.port());
    assert!(matches!(told.next(), ConnectionEvent::Rejected { status: 26, .. }));
    let ends = Ends { local: SocketAddr::new(CLIENT, 9), peer: pair.listener.local() };
    let good = message::request(
        Service { space: PortSpace::Tcp, port: pair.port() }.id(),
        Transport::Rc,
        &ends,
        Own { psn: 1, mtu: 1024 },
        &AddressOptions::default(),
        &answer(70),
        b"",
    );
    let from = ManagerPeer::new(SERVER, CLIENT, 0);
    let mut next = 1000;
    let mut ask = |request: Req| {
        next += 1;
        let request = Req { local_communication_id: next, local_qpn: next, ..request };
        pair.server.receive(&Message::from(request).to_mad(next.into()).to_bytes(), from, None);
        lock(&pair.requests.0).pop().is_some()
    };
    assert!(ask(good));
    let mut elsewhere = good;
    elsewhere.primary.local_gid[15] ^= 1;
    assert!(!ask(elsewhere));
    let mut spoofed = good;
    spoofed.private_data[19] ^= 1;
    assert!(!ask(spoofed));
    assert!(!ask(Req { private_data: [0; _], ..good }), "no addresses");
    assert!(!ask(Req { path_mtu: 6, ..good }));
    assert!(!ask(Req { transport_service: service::RD, ..good }));
    assert!(ask(good));
}

/// Sends requests from any address to a service, none of which the program answers.
struct Askers {
    pair: Pair,
    number: u32,
}

impl Askers {
    fn new() -> Self {
        Self { pair: pair_between([IpAddr::V6(Ipv6Addr::LOCALHOST); 2], PortSpace::Tcp, 1024), number: 1000 }
    }

    /// Whether the program is told of a request from the host of that number in a subnet.
    fn is_told(&mut self, subnet: u16, host: u16) -> bool {
        let from = Ipv6Addr::new(0x2001, 0xdb8, 0, subnet, 0, 0, 0, host);
        let to = self.pair.listener.local();
        let ends = Ends { local: (from, 9).into(), peer: to };
        let service = Service { space: self.pair.space, port: to.port() }.id();
        let (own, options) = (Own { psn: 1, mtu: 1024 }, AddressOptions::default());
        self.number += 1;
        let number = self.number;
        let request = message::request(service, Transport::Rc, &ends, own, &options, &answer(number), b"");
        let request = Req { local_communication_id: number, local_qpn: number, ..request };
        let mad = Message::from(request).to_mad(number.into()).to_bytes();
        let before = lock(&self.pair.requests.0).len();
        self.pair.server.receive(&mad, ManagerPeer::new(to.ip(), from.into(), 0), None);
        lock(&self.pair.requests.0).len() > before
    }
}

/// A host has many addresses of one IPv6 subnet. They are one peer where peers share out the places of a
/// service.
// IB-CM-36, ROCE-40
#[test]
fn a_subnet_that_asks_for_everything_keeps_nobody_out() {
    let mut askers = Askers::new();
    let most = MOST_UNANSWERED as u16;
    assert!((0..most).all(|host| askers.is_told(1, host)));
    assert!(!askers.is_told(1, most), "there is a place after all");
    assert!(askers.is_told(2, 0), "another subnet has none");
}

/// Nor does one address of a subnet keep the others out.
// IB-CM-36, ROCE-40
#[test]
fn an_address_that_asks_for_everything_keeps_no_neighbour_out() {
    let mut askers = Askers::new();
    assert!((0..MOST_UNANSWERED).all(|_| askers.is_told(1, 1)));
    assert!(!askers.is_told(1, 1), "there is a place after all");
    assert!(askers.is_told(1, 2), "a neighbour has none");
    assert!(askers.is_told(2, 1), "another subnet has none");
}

// IB-CM-48, IB-CM-47
#[test]
fn the_peer_is_told_when_nobody_is_left() {
    let pair = pair(PortSpace::Tcp, 4096);
    let told: Vec<_> = (0..3)
        .map(|number| {
            let (client, _) = pair.connect(Transport::Rc, 50 + number, pair.port());
            let told = Arc::new(EventLog::default());
            let request = pair.requests.next();
            let server = request.accept_unmanaged(answer(60 + number), b"", told.clone()).unwrap();
            client.establish().unwrap();
            assert!(matches!(told.next(), ConnectionEvent::Established { .. }));
            (client, server, told)
        })
        .collect();
    let mut told = told.into_iter();
    let (client, _server, first) = told.next().unwrap();
    drop(client);
    assert!(matches!(first.next(), ConnectionEvent::Disconnected));
    pair.client.at_exit();
    for (_client, _server, told) in told {
        assert!(matches!(told.next(), ConnectionEvent::Disconnected));
    }
}

// IB-SIDR-3, IB-SIDR-4
// IB-SIDR-7, IB-SIDR-8
#[test]
fn datagram_services() {
    let pair = pair(PortSpace::Udp, 4096);
    let (_client, told) = pair.connect(Transport::Ud, 50, pair.port());
    let request = pair.requests.next();
    assert_eq!((request.service(), request.private_data().len()), (Transport::Ud, 180));
    assert!(request.agreement().is_none());
    request.accept_unmanaged(answer(66), b"here", Arc::new(EventLog::default())).unwrap();
    let ConnectionEvent::Established { parameters, private_data } = told.next() else { panic!() };
    assert_eq!((parameters.qp_number, parameters.qkey), (66, 9));
    assert_eq!((private_data.len(), &private_data[..5]), (136, &b"here\0"[..]));
    for (port, status) in [(pair.port(), 2), (pair.port() ^ 1, 1)] {
        let (_client, told) = pair.connect(Transport::Ud, 50, port);
        lock(&pair.requests.0).clear();
        let ConnectionEvent::Unreachable { status: found } = told.next() else { panic!() };
        assert_eq!(found, status);
    }
}

// IB-CM-63
#[test]
fn the_first_packet_establishes() {
    let pair = pair(PortSpace::Ib, 4096);
    let (_client, _) = pair.connect(Transport::Rc, 50, pair.port());
    let told = Arc::new(EventLog::default());
    let server = pair.requests.next().accept_unmanaged(answer(60), b"", told.clone()).unwrap();
    server.notify().unwrap();
    assert!(matches!(told.next(), ConnectionEvent::Established { .. }));
    server.notify().unwrap();
    assert!(told.is_empty());
}

#[test]
fn the_holder_of_the_port_learns_that_a_listener_is_gone() {
    let pair = pair(PortSpace::Tcp, 4096);
    let service = Service { space: pair.space, port: pair.port() };
    let [name, _] = service.names(SocketAddr::new(SERVER, 0));
    let holder = Connection::open(&name).unwrap();
    let begun = Instant::now();
    while lock(&pair.network.admitted).is_empty() {
        assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "nobody is let in");
        std::thread::yield_now();
    }
    let mut buffer = [0; 8];
    let errno = |result: std::io::Result<&[u8]>| result.err().and_then(|error| error.raw_os_error());
    assert_eq!(errno(holder.receive(&mut buffer)), Some(libc::EAGAIN));
    // The port may go to another process, while this one lives on.
    drop(pair.listener);
    // The background thread may have let the holder in a moment ago, and finds only now that nobody listens.
    while !holder.has_hung_up() {
        assert!(begun.elapsed() < SERVICE_TIMEOUT * 20, "the connection stays");
        std::thread::yield_now();
    }
    assert_eq!(errno(holder.send(&[b"request"]).map(|()| &[][..])), Some(libc::EPIPE));
    assert!(Connection::open(&name).is_err());
}
