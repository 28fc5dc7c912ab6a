//! The fixture of the cases: registered memory, connected pairs, bounded waiting.

use crate::attributes::gid_of;
use crate::cm::{
    ConnectionParameters, Event, EventChannel, EventKind, Identifier, MAXIMUM, Parameters, PortSpace,
};
use crate::cq::{CompletionChannel, CompletionQueue};
use crate::device::{Context, Device};
use crate::event::AsyncEventKind;
use crate::memory::Access;
use crate::qp::{AttributeMask, Attributes, Capabilities, Path, QueuePair, QueuePairOptions, Service, State};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::{Completion, Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Sge, Status};
use crate::srq::{SharedReceiveQueue, SharedReceiveQueueAttributes};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest that a case waits for anything.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the cases run: a device, and an address of this host that it serves.
#[derive(Clone, Debug)]
pub struct Site {
    device: &'static str,
    by_attributes: bool,
    /// The address.
    pub address: IpAddr,
}

impl Site {
    /// `install` makes the transport known ([`crate::engine::install`]).
    ///
    /// # Panics
    /// If `address` is none.
    pub fn new(install: fn(), device: &'static str, address: &str) -> Self {
        install();
        Self { device, by_attributes: false, address: address.parse().expect("an IP address") }
    }

    /// This site, where an exchange of attributes (number, GID, sequence numbers) connects pairs instead of
    /// the connection manager. Programs with a channel of their own connect their queue pairs so.
    #[must_use]
    pub fn by_attributes(self) -> Self {
        Self { by_attributes: true, ..self }
    }

    /// Opens the device.
    pub fn open(&self) -> Arc<Context> {
        let devices = Device::all().expect("the engine starts");
        let device = devices.iter().find(|device| device.name() == self.device);
        let device = device.unwrap_or_else(|| panic!("{} does not exist", self.device));
        device.open().expect("the device opens")
    }

    /// Whether the device takes these operations.
    pub fn can(&self, operations: &[Opcode]) -> bool {
        let attributes = self.open().attributes();
        operations.iter().all(|operation| attributes.operations.contains(operation))
    }

    /// The address with a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }
}

/// Memory that peers may change at any time, and its region.
pub struct Memory {
    words: Box<[AtomicU64]>,
    length: usize,
    /// The registration.
    pub region: Arc<MemoryRegion>,
}

impl Memory {
    /// `length` zero bytes.
    pub fn new(domain: &Arc<ProtectionDomain>, length: usize, access: Access) -> Self {
        let words: Box<[AtomicU64]> = (0..length.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let address = words.as_ptr() as usize;
        // SAFETY: the words live until `drop`, which deregisters first, and as atomics they tolerate any
        // change.
        let region =
            unsafe { MemoryRegion::register(domain, address, length as u64, address as u64, access) };
        Self { length, region: region.expect("memory registers"), words }
    }

    /// Memory with all rights, local and remote.
    pub fn open(domain: &Arc<ProtectionDomain>, length: usize) -> Self {
        Self::new(domain, length, Access::LOCAL_WRITE | Access::REMOTE)
    }

    /// A second registration of the same bytes.
    pub fn share(&self, domain: &Arc<ProtectionDomain>) -> Share<'_> {
        let (address, access) = (self.address(0), Access::LOCAL_WRITE | Access::REMOTE);
        // SAFETY: as in `new`: the share borrows the memory, and ends the registration when dropped.
        let region =
            unsafe { MemoryRegion::register(domain, address as usize, self.length as u64, address, access) };
        Share { region: region.expect("memory registers"), _memory: self }
    }

    /// The bytes of the memory, as they are now.
    pub fn bytes(&self) -> Vec<u8> {
        self.first(self.length)
    }

    /// The first bytes of the memory, as they are now.
    pub fn first(&self, length: usize) -> Vec<u8> {
        assert!(length <= self.length);
        let words = self.words[..length.div_ceil(8)].iter();
        let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes()).collect();
        bytes.truncate(length);
        bytes
    }

    /// Writes bytes from the start on; the bytes behind them become zero.
    pub fn set(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length);
        for (index, word) in self.words.iter().enumerate() {
            let mut value = [0; 8];
            let from = bytes.len().min(index * 8);
            let part = &bytes[from..bytes.len().min(from + 8)];
            value[..part.len()].copy_from_slice(part);
            word.store(u64::from_ne_bytes(value), Ordering::Release);
        }
    }

    /// Fills it with bytes that depend on `seed`, and returns them.
    pub fn fill(&self, seed: u64) -> Vec<u8> {
        self.fill_first(self.length, seed)
    }

    /// Fills the words of the first bytes as [`Memory::fill`] does, and returns these bytes.
    pub fn fill_first(&self, length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        for word in &self.words[..length.div_ceil(8)] {
            state = crate::random::next(state);
            word.store(state, Ordering::Release);
        }
        self.first(length)
    }

    /// The address of the byte at `offset`.
    pub fn address(&self, offset: usize) -> u64 {
        self.words.as_ptr() as u64 + offset as u64
    }

    /// A part of the memory.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.address(offset), length: length as u32, lkey: self.region.key() }
    }

    /// All of the memory.
    pub fn all(&self) -> Sge {
        self.sge(0, self.length)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.region.deregister();
    }
}

/// A second registration of some [`Memory`].
pub struct Share<'a> {
    region: Arc<MemoryRegion>,
    _memory: &'a Memory,
}

impl Share<'_> {
    /// The key of the second registration.
    pub fn key(&self) -> u32 {
        self.region.key()
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.region.deregister();
    }
}

/// Sizes of the queues of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sends, and entries of their completion queue.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Entries of the receives' completion queue.
    pub receive_completions: u32,
    /// Scatter/gather elements.
    pub sges: u32,
    /// Sends and receives complete in one queue.
    pub one_queue: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { sends: 16, receives: 16, receive_completions: 16, sges: 2, one_queue: false }
    }
}

/// The objects that a side is made with.
#[derive(Clone)]
pub struct Home {
    /// The context.
    pub context: Arc<Context>,
    /// The protection domain.
    pub domain: Arc<ProtectionDomain>,
    /// The shared receive queue of its queue pairs, if they have one.
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// Where all their receives complete. None: each has a queue of its own.
    pub receives: Option<Arc<CompletionQueue>>,
}

impl Home {
    /// A context and a domain of their own.
    pub fn new(site: &Site) -> Self {
        let context = site.open();
        let domain = ProtectionDomain::new(&context).unwrap();
        Self { context, domain, srq: None, receives: None }
    }

    /// A context and a domain of their own, with a shared receive queue of `max_wr` receives.
    pub fn sharing(site: &Site, max_wr: u32) -> Self {
        let home = Self::new(site);
        let sizes = SharedReceiveQueueAttributes { max_wr, max_sge: 2, limit: 0 };
        Self { srq: Some(SharedReceiveQueue::new(&home.domain, sizes).unwrap()), ..home }
    }
}

/// One side: objects of a context of its own.
pub struct Side {
    /// The identifier. It is connected to nothing where attributes connect.
    pub id: Arc<Identifier>,
    /// The side's channel of events.
    pub channel: Arc<EventChannel>,
    /// The context.
    pub context: Arc<Context>,
    /// The protection domain.
    pub domain: Arc<ProtectionDomain>,
    /// The queue pair.
    pub queue_pair: Arc<QueuePair>,
    /// Where sends complete.
    pub sends: Arc<CompletionQueue>,
    /// Where receives complete.
    pub receives: Arc<CompletionQueue>,
    by_attributes: bool,
}

impl Side {
    /// A side with a queue pair that is not connected and, unless `attach`, not the identifier's.
    pub fn new(
        site: &Site,
        shape: Shape,
        id: Arc<Identifier>,
        channel: Arc<EventChannel>,
        attach: bool,
    ) -> Self {
        let side = Self::at(&Home::new(site), shape, Service::Rc, id, channel);
        if attach {
            side.id.attach_queue_pair(&side.queue_pair).unwrap();
            assert_eq!(side.queue_pair.state(), State::Init);
        }
        side
    }

    /// A side that attributes will connect.
    pub fn unconnected(home: &Home, shape: Shape, service: Service) -> Self {
        let channel = EventChannel::new().unwrap();
        let id = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
        let mut side = Self::at(home, shape, service, id, channel);
        side.by_attributes = true;
        side
    }

    fn at(
        home: &Home,
        shape: Shape,
        service: Service,
        id: Arc<Identifier>,
        channel: Arc<EventChannel>,
    ) -> Self {
        let Home { context, domain, srq, receives } = home.clone();
        let queue = |entries| {
            let channel = CompletionChannel::new(&context).unwrap();
            CompletionQueue::new(&context, entries, Some(channel)).unwrap()
        };
        let (sends, receives) = if shape.one_queue {
            let one = queue(shape.sends + shape.receive_completions);
            (one.clone(), one)
        } else {
            (queue(shape.sends), receives.unwrap_or_else(|| queue(shape.receive_completions)))
        };
        let queue_pair = QueuePair::new(
            &domain,
            QueuePairOptions {
                send_cq: sends.clone(),
                receive_cq: receives.clone(),
                srq,
                capabilities: Capabilities {
                    max_send_wr: shape.sends,
                    max_recv_wr: shape.receives,
                    max_send_sge: shape.sges,
                    max_recv_sge: shape.sges,
                    max_inline_data: context.attributes().max_inline_data.min(64),
                },
                service,
                signal_all: false,
            },
        )
        .unwrap();
        Self { id, channel, context, domain, queue_pair, sends, receives, by_attributes: false }
    }

    /// Takes the queue pair to INIT, or of datagrams to RTS.
    pub fn begin(&self) {
        let port = AttributeMask::STATE | AttributeMask::PKEY_INDEX | AttributeMask::PORT;
        let init = Attributes {
            state: Some(State::Init),
            port: 1,
            access: Access::REMOTE.bits(),
            qkey: QKEY,
            ..Attributes::default()
        };
        if self.queue_pair.queues().service != Service::Ud {
            return self.queue_pair.modify(&init, port | AttributeMask::ACCESS_FLAGS).unwrap();
        }
        self.queue_pair.modify(&init, port | AttributeMask::QKEY).unwrap();
        self.to(State::Rtr, AttributeMask::empty(), &Attributes::default());
        let first = Attributes { sq_psn: FIRST, ..Attributes::default() };
        self.to(State::Rts, AttributeMask::SQ_PSN, &first);
    }

    /// Takes the queue pair, which is in INIT, to RTS with this peer.
    pub fn join(&self, peer: &Side, site: &Site) {
        let limits = self.context.attributes();
        let reliable = self.queue_pair.queues().service == Service::Rc;
        let deepest = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX);
        let attributes = Attributes {
            path: path(&self.context, site.address),
            path_mtu: self.context.port(1).unwrap().active_mtu,
            destination: peer.queue_pair.number(),
            // A number that differs from one queue pair to the other, and wraps around soon.
            rq_psn: FIRST - (peer.queue_pair.number() & 0xf),
            sq_psn: FIRST - (self.queue_pair.number() & 0xf),
            max_rd_atomic: deepest(limits.max_qp_init_rd_atom.min(limits.max_qp_rd_atom)),
            max_dest_rd_atomic: deepest(limits.max_qp_rd_atom),
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            // As over iWARP, a message without a receive breaks the connection.
            rnr_retry: 0,
            ..Attributes::default()
        };
        let (mut to_receive, mut to_send) = (
            AttributeMask::AV | AttributeMask::PATH_MTU | AttributeMask::DEST_QPN | AttributeMask::RQ_PSN,
            AttributeMask::SQ_PSN,
        );
        if reliable {
            to_receive |= AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER;
            to_send |= AttributeMask::TIMEOUT
                | AttributeMask::RETRY_COUNT
                | AttributeMask::RNR_RETRY
                | AttributeMask::MAX_QP_RD_ATOMIC;
        }
        self.to(State::Rtr, to_receive, &attributes);
        self.to(State::Rts, to_send, &attributes);
    }

    /// Changes the state, and the attributes of the mask.
    #[track_caller]
    pub fn to(&self, state: State, mask: AttributeMask, attributes: &Attributes) {
        let attributes = Attributes { state: Some(state), ..*attributes };
        self.queue_pair.modify(&attributes, mask | AttributeMask::STATE).unwrap();
    }

    /// The next asynchronous event of the context, which must be of this kind and about the object with this
    /// cookie.
    #[track_caller]
    pub fn raised(&self, kind: AsyncEventKind, subject: u64) {
        let events = self.context.events();
        assert!(events.ready(TEST_TIMEOUT.as_millis() as i32).unwrap(), "{kind:?} does not come");
        let event = events.wait().unwrap();
        assert_eq!((event.kind, event.subject), (kind, subject));
    }

    /// The next event, which must be of this kind.
    #[track_caller]
    pub fn expect(&self, kind: EventKind) -> Event {
        expect(&self.channel, kind)
    }

    /// Waits until the connection has ended: the event, and the state of the queue pair.
    #[track_caller]
    pub fn ended(&self) {
        if self.by_attributes {
            // The transport does not tell: a program that knows does this.
            self.to(State::Error, AttributeMask::empty(), &Attributes::default());
            return;
        }
        let event = self.expect(EventKind::Disconnected);
        assert_eq!(event.status, 0);
        assert_eq!(self.queue_pair.state(), State::Error);
    }

    /// The next completion of a send.
    #[track_caller]
    pub fn sent(&self) -> Completion {
        completion(&self.sends)
    }

    /// The next completion of a send, which must be this one and have succeeded.
    #[track_caller]
    pub fn sent_well(&self, wr_id: u64) -> Completion {
        let done = self.sent();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        assert_eq!(done.queue_pair, self.queue_pair.number());
        done
    }

    /// The next completion of a receive.
    #[track_caller]
    pub fn received(&self) -> Completion {
        completion(&self.receives)
    }

    /// The next completion of a receive, which must be this one and have succeeded.
    #[track_caller]
    pub fn received_well(&self, wr_id: u64) -> Completion {
        let done = self.received();
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
        assert_eq!(done.queue_pair, self.queue_pair.number());
        done
    }

    /// Posts a signalled request.
    #[track_caller]
    pub fn post(&self, wr_id: u64, opcode: Opcode, sges: &[Sge], remote: (u64, u32)) {
        let request = SendRequest { wr_id, opcode, ..signalled(sges, remote) };
        self.queue_pair.post_send(&request).unwrap();
    }

    /// Posts a receive.
    #[track_caller]
    pub fn post_receive(&self, wr_id: u64, sges: &[Sge]) {
        self.queue_pair.post_receive(&ReceiveRequest { wr_id, sges }).unwrap();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.id.detach_queue_pair();
        self.queue_pair.destroy();
    }
}

/// A signalled Send, to be modified.
pub fn signalled(sges: &[Sge], remote: (u64, u32)) -> SendRequest<'_> {
    SendRequest {
        flags: SendFlags::SIGNALED,
        data: Data::Registered(sges),
        remote_address: remote.0,
        rkey: remote.1,
        ..SendRequest::default()
    }
}

/// The next event of a channel, which must be of this kind.
#[track_caller]
pub fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    assert!(channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap(), "{kind:?} does not come");
    let event = channel.get().unwrap();
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

/// The next completion of a queue: polls, and sleeps on the channel while there is none.
#[track_caller]
pub fn completion(queue: &CompletionQueue) -> Completion {
    let channel = queue.channel().expect("a queue with a channel");
    loop {
        for step in ["poll", "arm"] {
            if step == "arm" {
                queue.arm(false).unwrap();
            }
            let mut found = None;
            queue.poll(1, |entry| found = Some(*entry)).unwrap();
            if let Some(found) = found {
                return found;
            }
        }
        assert!(channel.ready(TEST_TIMEOUT.as_millis() as i32).unwrap(), "a completion does not come");
        channel.wait().unwrap();
    }
}

/// Depths as large as possible. As over iWARP, a message without a receive breaks the connection; a thread
/// that gets no processor for a while does not.
pub fn parameters() -> Parameters<'static> {
    Parameters {
        connection: ConnectionParameters {
            responder_resources: MAXIMUM,
            initiator_depth: MAXIMUM,
            retry_count: 7,
            ..ConnectionParameters::default()
        },
        ..Parameters::default()
    }
}

/// Calls `act` in a child of fork, where it succeeds unless it panics, and waits for that one's end.
pub fn in_a_child(act: impl FnOnce()) {
    // SAFETY: the child calls nothing that another thread of this process could have left locked. Allocation
    // is safe after fork with the C library's allocator, and the cases are about the rest. It leaves through
    // _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: plain numbers; the alarm bounds the child's time.
        unsafe { libc::alarm(TEST_TIMEOUT.as_secs() as u32 * 2) };
        let code = i32::from(catch_unwind(AssertUnwindSafe(act)).is_err());
        // SAFETY: ends this process at once, without the test harness's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: our own child and a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
}

/// Two sides that are, or may become, connected.
pub struct Pair {
    /// The initiator.
    pub client: Side,
    /// The responder.
    pub server: Side,
}

impl Pair {
    /// A connected pair with queues of the default sizes.
    pub fn connect(site: &Site) -> Self {
        Self::shaped(site, Shape::default())
    }

    /// A connected pair.
    pub fn shaped(site: &Site, shape: Shape) -> Self {
        Self::to_home(site, shape, &Home::new(site))
    }

    /// A connected pair of a service that attributes connect.
    pub fn of(site: &Site, service: Service, shape: Shape, home: &Home) -> Self {
        let client = Side::unconnected(&Home::new(site), shape, service);
        let server = Side::unconnected(home, shape, service);
        for side in [&client, &server] {
            side.begin();
        }
        if service != Service::Ud {
            client.join(&server, site);
            server.join(&client, site);
        }
        Self { client, server }
    }

    /// A connected pair, the server's objects at `home`.
    pub fn to_home(site: &Site, shape: Shape, home: &Home) -> Self {
        if site.by_attributes {
            return Self::of(site, Service::Rc, shape, home);
        }
        let (listener, channel) = listener(site);
        let client = resolved(site, shape, listener.local_address().unwrap());
        client.id.connect(Some(&parameters())).unwrap();
        let event = expect(&channel, EventKind::ConnectRequest);
        let server = Side::at(home, shape, Service::Rc, event.identifier.clone(), channel);
        drop(event);
        server.id.attach_queue_pair(&server.queue_pair).unwrap();
        server.id.accept(Some(&parameters())).unwrap();
        server.expect(EventKind::Established);
        client.expect(EventKind::Established);
        Self { client, server }
    }

    /// Waits until both sides have seen the end of the connection.
    #[track_caller]
    pub fn ended(&self) {
        self.client.ended();
        self.server.ended();
    }
}

/// The Q_Key of all queue pairs of datagrams here.
pub const QKEY: u32 = 0x1234_5678;

/// Sequence numbers begin here or a little before.
const FIRST: u32 = 0xff_fff0;

/// The path to an address of this host, from the same address.
pub fn path(context: &Context, address: IpAddr) -> Path {
    let gid = gid_of(address);
    let own = context.gids().into_iter().find(|entry| entry.bytes == gid).expect("a GID for the address");
    Path {
        gid,
        source_gid_index: own.index as u8,
        hop_limit: 64,
        is_global: true,
        port: 1,
        ..Path::default()
    }
}

/// A listener on the site's address with a channel of its own.
pub fn listener(site: &Site) -> (Arc<Identifier>, Arc<EventChannel>) {
    let channel = EventChannel::new().unwrap();
    let listener = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    listener.bind(site.at(0)).unwrap();
    listener.listen(0).unwrap();
    assert_ne!(listener.local_address().unwrap().port(), 0);
    (listener, channel)
}

/// A side that has resolved address and route of `peer`, with a queue pair in INIT.
#[track_caller]
pub fn resolved(site: &Site, shape: Shape, peer: SocketAddr) -> Side {
    let (id, channel) = resolved_identifier(peer);
    Side::new(site, shape, id, channel, true)
}

/// An identifier that has resolved address and route of `peer`.
#[track_caller]
pub fn resolved_identifier(peer: SocketAddr) -> (Arc<Identifier>, Arc<EventChannel>) {
    let channel = EventChannel::new().unwrap();
    let id = Identifier::new(Some(&channel), PortSpace::Tcp).unwrap();
    id.resolve_address(None, peer, TEST_TIMEOUT).unwrap();
    expect(&channel, EventKind::AddressResolved);
    id.resolve_route(TEST_TIMEOUT).unwrap();
    expect(&channel, EventKind::RouteResolved);
    (id, channel)
}

/// The side of the next connection request, with a queue pair in INIT.
#[track_caller]
pub fn request(site: &Site, shape: Shape, channel: &Arc<EventChannel>) -> Side {
    let event = expect(channel, EventKind::ConnectRequest);
    Side::new(site, shape, event.identifier.clone(), channel.clone(), true)
}
