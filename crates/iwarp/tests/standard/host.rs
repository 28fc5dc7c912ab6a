//! This end: a queue pair of the device under test, its memory, and its connection.

use crate::peer::{Peer, TEST_TIMEOUT};
use adverb_core::cm::{
    ConnectRequest, ConnectionEvent, ConnectionParameters, ConnectionSink, IncomingConnection, ListenSink,
    Listener, OutgoingConnection,
};
use adverb_core::cq::{CompletionChannel, CompletionQueue};
use adverb_core::device::{Context, Device};
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State};
use adverb_core::region::{MemoryRegion, ProtectionDomain};
use adverb_core::request::{Completion, Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Sge, Status};
use adverb_core::transport::TransportFactory;
use adverb_proto::iwarp::Segment;
use adverb_proto::iwarp::mpa::Config;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

static TRANSPORTS: &[TransportFactory] =
    &[adverb_core::transport::TransportFactory { default: true, ..adverb_iwarp::FACTORY }];

/// The reads that both sides allow, unless a test says otherwise.
pub(crate) const DEPTHS: ConnectionParameters = ConnectionParameters {
    responder_resources: 8,
    initiator_depth: 8,
    flow_control: false,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: false,
    qp_number: 0,
    qkey: 0,
};

pub(crate) struct Host {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) cq: Arc<CompletionQueue>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with_queue(256, false)
    }

    /// With a completion queue of so many entries, and perhaps a channel.
    pub(crate) fn with_queue(entries: u32, channel: bool) -> Host {
        adverb_core::engine::install(TRANSPORTS);
        let device = Device::all().unwrap().into_iter().find(|device| device.name() == "iwarp0").unwrap();
        let context = device.open().unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        let channel = channel.then(|| CompletionChannel::new(&context).unwrap());
        let cq = CompletionQueue::new(&context, entries, channel).unwrap();
        Host { context, domain, cq }
    }

    /// A queue pair that waits for its connection.
    pub(crate) fn queue_pair(&self) -> Arc<QueuePair> {
        let options = QueuePairOptions {
            send_cq: self.cq.clone(),
            receive_cq: self.cq.clone(),
            srq: None,
            capabilities: Capabilities {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            service: Service::Rc,
            signal_all: true,
        };
        let queue_pair = QueuePair::new(&self.domain, options).unwrap();
        let access = (Access::REMOTE | Access::LOCAL_WRITE).bits();
        let attributes = Attributes { state: Some(State::Init), port: 1, access, ..Attributes::default() };
        let mask = AttributeMask::STATE
            | AttributeMask::PORT
            | AttributeMask::PKEY_INDEX
            | AttributeMask::ACCESS_FLAGS;
        queue_pair.modify(&attributes, mask).unwrap();
        queue_pair
    }

    /// Registered memory.
    pub(crate) fn region(&self, length: usize, access: Access) -> Region {
        region(&self.domain, length, access)
    }

    /// Takes the next completion.
    pub(crate) fn completion(&self) -> Completion {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let mut found = None;
            self.cq.poll(1, |completion| found = Some(*completion)).unwrap();
            if let Some(completion) = found {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion came");
            std::thread::yield_now();
        }
    }

    /// The number and status of the next completions.
    pub(crate) fn completions<const N: usize>(&self) -> [(u64, Status); N] {
        std::array::from_fn(|_| self.completion()).map(|completion| (completion.wr_id, completion.status))
    }

    /// Polls many times and finds nothing.
    pub(crate) fn stays_idle(&self) {
        for _ in 0..1000 {
            assert_eq!(self.cq.poll(1, |completion| panic!("{completion:?}")).unwrap(), 0);
        }
    }

    /// A connection that the peer began.
    pub(crate) fn passive(&self, config: &Config) -> (Connection, Peer) {
        self.passive_with(config, DEPTHS)
    }

    pub(crate) fn passive_with(&self, config: &Config, depths: ConnectionParameters) -> (Connection, Peer) {
        let listening = self.listen();
        let config = *config;
        let peer = std::thread::spawn(move || Peer::connect(listening.address, &config));
        let request = listening.requests.recv_timeout(TEST_TIMEOUT).unwrap();
        assert_eq!(request.private_data(), b"peer");
        let queue_pair = self.queue_pair();
        let (sink, events) = Events::new();
        let handle = request.accept(&queue_pair, depths, b"host", sink).unwrap();
        let peer = peer.join().unwrap();
        (Connection { queue_pair, handle, events }, peer)
    }

    /// A connection that this end began.
    pub(crate) fn active(&self, config: &Config) -> (Connection, Peer) {
        self.active_with(config, DEPTHS)
    }

    pub(crate) fn active_with(&self, config: &Config, depths: ConnectionParameters) -> (Connection, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = self.connect(listener.local_addr().unwrap(), depths);
        let mut peer = Peer::accept(&listener, config);
        assert_eq!(peer.private_data, b"host");
        connection.established();
        // The initiator's word that it is ready.
        let (segment, payload) = peer.segment();
        assert!(matches!(segment, Segment::Write { last: true, .. }), "{segment:?}");
        assert_eq!(payload, b"");
        (connection, peer)
    }

    /// Starts connecting.
    pub(crate) fn connect(&self, destination: SocketAddr, parameters: ConnectionParameters) -> Connection {
        let queue_pair = self.queue_pair();
        let (sink, events) = Events::new();
        let request = ConnectRequest {
            source: None,
            destination,
            options: Default::default(),
            parameters,
            private_data: b"host",
        };
        let handle = self.context.transport().connections().connect(&queue_pair, request, sink).unwrap();
        Connection { queue_pair, handle, events }
    }

    pub(crate) fn listen(&self) -> Listening {
        let connections = self.context.transport().connections();
        let reservation = connections.reserve("127.0.0.1:0".parse().unwrap(), Default::default()).unwrap();
        let (sender, requests) = mpsc::channel();
        let listener = reservation.listen(8, Arc::new(Requests(Mutex::new(sender)))).unwrap();
        Listening { address: listener.local(), requests, _listener: listener }
    }
}

pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    pub(crate) requests: mpsc::Receiver<Box<dyn IncomingConnection>>,
    _listener: Box<dyn Listener>,
}

struct Requests(Mutex<mpsc::Sender<Box<dyn IncomingConnection>>>);

impl ListenSink for Requests {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        let _ = self.0.lock().unwrap().send(request);
    }
}

pub(crate) struct Events(Mutex<mpsc::Sender<ConnectionEvent>>);

impl Events {
    pub(crate) fn new() -> (Arc<Events>, mpsc::Receiver<ConnectionEvent>) {
        let (sender, events) = mpsc::channel();
        (Arc::new(Events(Mutex::new(sender))), events)
    }
}

impl ConnectionSink for Events {
    fn event(&self, event: ConnectionEvent) {
        let _ = self.0.lock().unwrap().send(event);
    }
}

pub(crate) struct Connection {
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(crate) handle: Box<dyn OutgoingConnection>,
    events: mpsc::Receiver<ConnectionEvent>,
}

impl Connection {
    /// The next event.
    pub(crate) fn event(&self) -> ConnectionEvent {
        self.events.recv_timeout(TEST_TIMEOUT).unwrap()
    }

    pub(crate) fn established(&self) {
        let event = self.event();
        assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
    }

    /// The connection has ended, and the queue pair is in error.
    pub(crate) fn ended(&self) {
        let mut event = self.event();
        if matches!(event, ConnectionEvent::Established { .. }) {
            event = self.event();
        }
        assert!(matches!(event, ConnectionEvent::Disconnected), "{event:?}");
        assert_eq!(self.queue_pair.state(), State::Error);
    }

    /// Posts a request with its number.
    pub(crate) fn post(&self, wr_id: u64, opcode: Opcode, at: &Target, sges: &[Sge]) {
        self.post_with(wr_id, opcode, at, sges, SendFlags::empty());
    }

    pub(crate) fn post_with(&self, wr_id: u64, opcode: Opcode, at: &Target, sges: &[Sge], flags: SendFlags) {
        let request = SendRequest {
            wr_id,
            opcode,
            flags,
            data: Data::Registered(sges),
            remote_address: at.address,
            rkey: at.key,
            immediate: at.immediate,
            compare_add: at.compare_add,
            swap: at.swap,
            shared_queue: 0,
            datagram: None,
        };
        self.queue_pair.post_send(&request).unwrap();
    }

    pub(crate) fn receive(&self, wr_id: u64, sges: &[Sge]) {
        self.queue_pair.post_receive(&ReceiveRequest { wr_id, sges }).unwrap();
    }
}

/// What a request names at the peer.
#[derive(Clone, Copy, Default)]
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) immediate: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
}

/// Registered memory, aligned to 8 bytes, which is never freed: whatever goes wrong, a late write harms
/// nobody.
pub(crate) struct Region {
    first: *mut u8,
    length: usize,
    pub(crate) region: Arc<MemoryRegion>,
}

pub(crate) fn region(domain: &Arc<ProtectionDomain>, length: usize, access: Access) -> Region {
    let first = vec![0u64; length.div_ceil(8)].leak().as_mut_ptr().cast::<u8>();
    // SAFETY: leaked memory that only the accessors below touch, each access on its own.
    let region =
        unsafe { MemoryRegion::register(domain, first as usize, length as u64, first as u64, access) };
    Region { first, length, region: region.unwrap() }
}

impl Region {
    pub(crate) fn key(&self) -> u32 {
        self.region.key()
    }

    pub(crate) fn address(&self) -> u64 {
        self.first as u64
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.address() + offset as u64, length: length as u32, lkey: self.key() }
    }

    /// The bytes of the region, as they are now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: leaked memory of this length.
        (0..self.length).map(|at| unsafe { self.first.add(at).read_volatile() }).collect()
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: leaked memory, and the index is inside.
            unsafe { self.first.add(at).write_volatile(*byte) };
        }
    }
}
