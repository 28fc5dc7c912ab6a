//! Two queue pairs of one process, connected over TCP on loopback, through the transport interface alone.

#![allow(dead_code)]

use adverb_core::cm::*;
use adverb_core::cq::CompletionQueue;
use adverb_core::device::{Context, Device};
use adverb_core::memory::Access;
use adverb_core::qp::*;
use adverb_core::region::{MemoryRegion, ProtectionDomain};
use adverb_core::request::*;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

struct Events(Mutex<Sender<ConnectionEvent>>);
impl ConnectionSink for Events {
    fn event(&self, event: ConnectionEvent) {
        let _ = self.0.lock().unwrap().send(event);
    }
}
struct Requests(Mutex<Sender<Box<dyn IncomingConnection>>>);
impl ListenSink for Requests {
    fn request(&self, request: Box<dyn IncomingConnection>) {
        let _ = self.0.lock().unwrap().send(request);
    }
}

pub(crate) struct Side {
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) cq: Arc<CompletionQueue>,
    pub(crate) queue_pair: Arc<QueuePair>,
    _connection: Box<dyn OutgoingConnection>,
    pub(crate) events: Receiver<ConnectionEvent>,
}

fn open() -> Arc<Context> {
    adverb_core::engine::install(&[adverb_core::transport::TransportFactory {
        default: true,
        ..adverb_iwarp::FACTORY
    }]);
    Device::all().unwrap()[0].open().unwrap()
}

fn queue_pair(context: &Arc<Context>) -> (Arc<ProtectionDomain>, Arc<CompletionQueue>, Arc<QueuePair>) {
    let domain = ProtectionDomain::new(context).unwrap();
    let cq = CompletionQueue::new(context, 256, None).unwrap();
    let capabilities = Capabilities {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let options = QueuePairOptions {
        send_cq: cq.clone(),
        receive_cq: cq.clone(),
        srq: None,
        capabilities,
        service: Service::Rc,
        signal_all: true,
    };
    let queue_pair = QueuePair::new(&domain, options).unwrap();
    let attributes = Attributes {
        state: Some(State::Init),
        access: Access::REMOTE.bits(),
        port: 1,
        ..Attributes::default()
    };
    queue_pair
        .modify(&attributes, AttributeMask::STATE | AttributeMask::ACCESS_FLAGS | AttributeMask::PORT)
        .unwrap();
    (domain, cq, queue_pair)
}

pub(crate) fn connect(address: SocketAddr) -> (Side, Side) {
    let context = open();
    let backend = context.transport().connections();
    let (send, requests) = channel();
    let listener = backend
        .reserve(address, AddressOptions::default())
        .unwrap()
        .listen(8, Arc::new(Requests(Mutex::new(send))))
        .unwrap();
    let parameters =
        ConnectionParameters { responder_resources: 4, initiator_depth: 4, ..Default::default() };
    let (domain, cq, client) = queue_pair(&context);
    let (sink, client_events) = channel();
    let request = ConnectRequest {
        source: None,
        destination: listener.local(),
        options: AddressOptions::default(),
        parameters,
        private_data: b"hello",
    };
    let handle = backend.connect(&client, request, Arc::new(Events(Mutex::new(sink)))).unwrap();
    let incoming = requests.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(incoming.private_data(), b"hello");
    let (server_domain, server_cq, server) = queue_pair(&context);
    let (sink, server_events) = channel();
    let accepted =
        incoming.accept(&server, parameters, b"welcome", Arc::new(Events(Mutex::new(sink)))).unwrap();
    match client_events.recv_timeout(TEST_TIMEOUT).unwrap() {
        ConnectionEvent::Established { private_data, .. } => assert_eq!(private_data, b"welcome"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(server_events.recv_timeout(TEST_TIMEOUT).unwrap(), ConnectionEvent::Established { .. }));
    (
        Side { domain, cq, queue_pair: client, _connection: handle, events: client_events },
        Side {
            domain: server_domain,
            cq: server_cq,
            queue_pair: server,
            _connection: accepted,
            events: server_events,
        },
    )
}

pub(crate) fn poll(side: &Side) -> Completion {
    let until = Instant::now() + TEST_TIMEOUT;
    let mut found = None;
    while found.is_none() {
        side.cq.poll(1, |completion| found = Some(*completion)).unwrap();
        assert!(Instant::now() < until, "no completion");
    }
    found.unwrap()
}

pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    pub(crate) region: Arc<MemoryRegion>,
}

pub(crate) fn memory(side: &Side, length: usize, access: Access) -> Memory {
    let mut bytes = vec![0u8; length];
    let address = bytes.as_mut_ptr() as usize;
    let region =
        // SAFETY: the vector lives beside the region and is not moved or grown; peers write to it only while
        // the test waits.
        unsafe { MemoryRegion::register(&side.domain, address, length as u64, address as u64, access) }
            .unwrap();
    Memory { bytes, region }
}

impl Memory {
    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: (self.bytes.as_ptr() as usize + offset) as u64,
            length: length as u32,
            lkey: self.region.key(),
        }
    }
}

pub(crate) fn request<'a>(opcode: Opcode, data: Data<'a>) -> SendRequest<'a> {
    SendRequest { wr_id: 7, opcode, data, ..SendRequest::default() }
}

pub(crate) fn fill(memory: &mut Memory, seed: u8) {
    for (index, byte) in memory.bytes.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add(seed);
    }
}
