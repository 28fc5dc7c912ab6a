//! Two queue pairs of one process, connected over TCP on loopback, through the transport interface alone.

use adverb_core::cm::*;
use adverb_core::cq::CompletionQueue;
use adverb_core::device::{Context, Device};
use adverb_core::memory::{Access, MemoryRegion, ProtectionDomain};
use adverb_core::qp::*;
use adverb_core::request::*;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

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

struct Side {
    domain: Arc<ProtectionDomain>,
    cq: Arc<CompletionQueue>,
    queue_pair: Arc<QueuePair>,
    _connection: Box<dyn OutgoingConnection>,
    events: Receiver<ConnectionEvent>,
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

fn connect(address: SocketAddr) -> (Side, Side) {
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
    let incoming = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(incoming.private_data(), b"hello");
    let (server_domain, server_cq, server) = queue_pair(&context);
    let (sink, server_events) = channel();
    let accepted =
        incoming.accept(&server, parameters, b"welcome", Arc::new(Events(Mutex::new(sink)))).unwrap();
    match client_events.recv_timeout(PATIENCE).unwrap() {
        ConnectionEvent::Established { private_data, .. } => assert_eq!(private_data, b"welcome"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(server_events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Established { .. }));
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

fn poll(side: &Side) -> Completion {
    let until = Instant::now() + PATIENCE;
    let mut found = None;
    while found.is_none() {
        side.cq.poll(1, |completion| found = Some(*completion)).unwrap();
        assert!(Instant::now() < until, "no completion");
    }
    found.unwrap()
}

struct Memory {
    bytes: Vec<u8>,
    region: Arc<MemoryRegion>,
}

fn memory(side: &Side, length: usize, access: Access) -> Memory {
    let mut bytes = vec![0u8; length];
    let address = bytes.as_mut_ptr() as usize;
    let region =
        // SAFETY: the vector lives beside the region and is not moved or grown; peers write to it only while the test waits.
        unsafe { MemoryRegion::register(&side.domain, address, length as u64, address as u64, access) }
            .unwrap();
    Memory { bytes, region }
}

impl Memory {
    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: (self.bytes.as_ptr() as usize + offset) as u64,
            length: length as u32,
            lkey: self.region.key(),
        }
    }
}

fn request<'a>(opcode: Opcode, data: Data<'a>) -> SendRequest<'a> {
    SendRequest { wr_id: 7, opcode, data, ..SendRequest::default() }
}

fn fill(memory: &mut Memory, seed: u8) {
    for (index, byte) in memory.bytes.iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add(seed);
    }
}

#[test]
fn every_operation_moves_the_right_bytes() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (client, server) = connect(address.parse().unwrap());
        for length in [0usize, 1, 8, 255, 256, 257, 4096, 65536, 100_000, 3_000_001] {
            let mut source = memory(&client, length.max(1), Access::LOCAL_WRITE | Access::REMOTE);
            let target = memory(&server, length.max(1), Access::LOCAL_WRITE | Access::REMOTE);
            fill(&mut source, 3);
            // Send.
            let half = length / 2;
            let sges = [target.sge(0, half), target.sge(half, length - half)];
            server.queue_pair.post_receive(&ReceiveRequest { wr_id: 9, sges: &sges }).unwrap();
            let sges = [source.sge(0, length)];
            client.queue_pair.post_send(&request(Opcode::Send, Data::Registered(&sges))).unwrap();
            let received = poll(&server);
            assert_eq!((received.status, received.byte_length), (Status::Success, length as u32));
            assert_eq!(poll(&client).status, Status::Success);
            assert_eq!(source.bytes[..length], target.bytes[..length]);
            // Write.
            fill(&mut source, 5);
            let mut write = request(Opcode::Write, Data::Registered(&sges));
            (write.remote_address, write.rkey) = (target.bytes.as_ptr() as u64, target.region.key());
            client.queue_pair.post_send(&write).unwrap();
            assert_eq!(poll(&client).status, Status::Success);
            // Read back over the same stream: it comes after the write.
            let back = memory(&client, length.max(1), Access::LOCAL_WRITE);
            let sges = [back.sge(0, length)];
            let mut read = request(Opcode::Read, Data::Registered(&sges));
            (read.remote_address, read.rkey) = (target.bytes.as_ptr() as u64, target.region.key());
            client.queue_pair.post_send(&read).unwrap();
            assert_eq!(poll(&client).status, Status::Success);
            assert_eq!(source.bytes[..length], back.bytes[..length]);
        }
        client.queue_pair.destroy();
        assert!(matches!(client.events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Disconnected));
        assert!(matches!(server.events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Disconnected));
    }
}

#[test]
fn a_wrong_key_is_refused_and_nothing_is_touched() {
    let (client, server) = connect("127.0.0.1:0".parse().unwrap());
    let source = memory(&client, 64, Access::LOCAL_WRITE);
    let target = memory(&server, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let sges = [source.sge(0, 64)];
    let mut read = request(Opcode::Read, Data::Registered(&sges));
    (read.remote_address, read.rkey) = (target.bytes.as_ptr() as u64 + 1, target.region.key());
    client.queue_pair.post_send(&read).unwrap();
    assert_eq!(poll(&client).status, Status::RemoteAccess);
    assert!(matches!(client.events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Disconnected));
    assert!(matches!(server.events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Disconnected));
    assert_eq!(client.queue_pair.state(), State::Error);
}

/// A thread that sleeps on the connection's descriptors has asked for what arrives alone: nobody but the background thread waits for room.
#[test]
fn what_another_thread_sends_leaves_while_one_sleeps() {
    const LENGTH: usize = 1 << 20;
    let (client, server) = connect("127.0.0.1:0".parse().unwrap());
    let mut source = memory(&client, LENGTH, Access::LOCAL_WRITE);
    let target = memory(&server, LENGTH, Access::LOCAL_WRITE | Access::REMOTE);
    client.cq.serve();
    for round in 0..4 {
        source.bytes.fill(round + 1);
        let sleeper = client.cq.attend().unwrap();
        let sges = [source.sge(0, LENGTH)];
        let mut write = request(Opcode::Write, Data::Registered(&sges));
        (write.remote_address, write.rkey) = (target.bytes.as_ptr() as u64, target.region.key());
        for _ in 0..32 {
            client.queue_pair.post_send(&write).unwrap();
        }
        // Another sleeper comes, knows of the full socket, and goes.
        drop(client.cq.attend().unwrap());
        // Behind them: nothing here polls, and all the same it leaves.
        let last = [source.sge(0, 8)];
        let mut send = request(Opcode::Send, Data::Registered(&last));
        send.wr_id = 8;
        let room = [target.sge(0, 8)];
        server.queue_pair.post_receive(&ReceiveRequest { wr_id: 9, sges: &room }).unwrap();
        client.queue_pair.post_send(&send).unwrap();
        assert_eq!(poll(&server).status, Status::Success);
        assert_eq!(target.bytes, source.bytes);
        drop(sleeper);
        for _ in 0..33 {
            assert_eq!(poll(&client).status, Status::Success);
        }
    }
    client.queue_pair.destroy();
    assert!(matches!(server.events.recv_timeout(PATIENCE).unwrap(), ConnectionEvent::Disconnected));
}
