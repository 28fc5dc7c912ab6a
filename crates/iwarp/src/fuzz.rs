//! The fuzz target for placement, and the test of every run with random bytes: a queue pair of the device,
//! with memory and keys, and a peer that sends any frames. A model says which change each frame makes;
//! everything else stays as it was.

use crate::device::endpoint_of;
use crate::endpoint::{Endpoint, Start};
use crate::lock;
use crate::socket::Socket;
use adverb_core::cm::{ConnectionEvent, ConnectionParameters, ConnectionSink};
use adverb_core::cq::CompletionQueue;
use adverb_core::device::Device;
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask, Attributes, Capabilities, QueuePair, QueuePairOptions, Service, State};
use adverb_core::region::{MemoryRegion, ProtectionDomain};
use adverb_core::request::{Data, Opcode, ReceiveRequest, SendFlags, SendRequest, Sge, Status};
use adverb_core::transport::TransportFactory;
use adverb_proto::iwarp::mpa::Parameters;
use adverb_proto::iwarp::{
    AtomicOperation, AtomicRequest, AtomicResponse, Outbound, ReadRequest, Receiver, Segment, Sender, Step,
};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

static TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..crate::FACTORY }];

/// The most that may be under way in each direction.
const ORD: u8 = 4;
const IRD: u8 = 4;
/// Receives, and reads and atomics, that are posted at once at most; bytes of each.
const SLOTS: usize = 8;
const SLOT: usize = 64;

/// The memory of the program, and the rights of its registered bytes. No request may touch the bytes between
/// the regions.
const ARENA: usize = 4096;
const WRITABLE: Range<usize> = 256..768;
const READABLE: Range<usize> = 1024..1280;
const COUNTED: Range<usize> = 1536..1600;
/// In another protection domain, and not registered any more.
const FOREIGN: Range<usize> = 1792..2048;
const GONE: Range<usize> = 2176..2304;
/// For receives and for the answers of reads. No peer has their key.
const INBOX: Range<usize> = 2560..2560 + SLOTS * SLOT;
const SINK: Range<usize> = 3328..3328 + SLOTS * SLOT;

/// How long anything may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(9);

/// The device, and the objects that all runs use.
struct Home {
    domain: Arc<ProtectionDomain>,
    cq: Arc<CompletionQueue>,
    arena: &'static [AtomicU64],
    writable: Arc<MemoryRegion>,
    readable: Arc<MemoryRegion>,
    counted: Arc<MemoryRegion>,
    foreign: Arc<MemoryRegion>,
    gone: u32,
    inbox: Arc<MemoryRegion>,
    sink: Arc<MemoryRegion>,
}

impl Home {
    fn new() -> Self {
        adverb_core::engine::install(TRANSPORTS);
        let device = Device::all().unwrap().into_iter().find(|device| device.name() == "iwarp0").unwrap();
        let context = device.open().unwrap();
        let [domain, other] = [(); 2].map(|()| ProtectionDomain::new(&context).unwrap());
        let cq = CompletionQueue::new(&context, 256, None).unwrap();
        let arena = Vec::leak((0..ARENA / 8).map(|_| AtomicU64::new(0)).collect());
        let first = arena.as_ptr() as usize;
        let region = |domain: &Arc<ProtectionDomain>, bytes: Range<usize>, access| {
            let address = first + bytes.start;
            // SAFETY: a part of leaked memory, which is used as atomic words alone.
            unsafe { MemoryRegion::register(domain, address, bytes.len() as u64, address as u64, access) }
                .unwrap()
        };
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        let gone = region(&domain, GONE, all);
        gone.deregister();
        Self {
            writable: region(&domain, WRITABLE, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            readable: region(&domain, READABLE, Access::REMOTE_READ),
            counted: region(&domain, COUNTED, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
            foreign: region(&other, FOREIGN, all),
            gone: gone.key(),
            inbox: region(&domain, INBOX, Access::LOCAL_WRITE),
            sink: region(&domain, SINK, Access::LOCAL_WRITE),
            domain,
            cq,
            arena,
        }
    }

    fn address(&self, at: usize) -> u64 {
        self.arena.as_ptr() as u64 + at as u64
    }

    fn bytes(&self) -> Vec<u8> {
        self.arena.iter().flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes()).collect()
    }

    fn queue_pair(&self) -> Arc<QueuePair> {
        let capabilities = Capabilities {
            max_send_wr: SLOTS as u32,
            max_recv_wr: SLOTS as u32,
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline_data: 0,
        };
        let options = QueuePairOptions {
            send_cq: self.cq.clone(),
            receive_cq: self.cq.clone(),
            srq: None,
            capabilities,
            service: Service::Rc,
            signal_all: true,
        };
        let queue_pair = QueuePair::new(&self.domain, options).unwrap();
        let access = (Access::REMOTE | Access::LOCAL_WRITE).bits();
        let attributes = Attributes { state: Some(State::Init), port: 1, access, ..Attributes::default() };
        use AttributeMask as M;
        queue_pair.modify(&attributes, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS).unwrap();
        queue_pair
    }
}

/// A sink that no part of the test listens to.
struct Nobody;

impl ConnectionSink for Nobody {
    fn event(&self, _: ConnectionEvent) {}
}

/// A read or an atomic operation of ours: its number, where its result goes, and how much of that has come.
struct PendingRequest {
    wr_id: u64,
    slot: usize,
    length: u32,
    is_read: bool,
    come: u32,
}

/// The form of such a request on its way.
enum PeerRequest {
    Read(ReadRequest),
    Atomic(u32),
}

/// The answer that the peer waits for: the rest of a read, or the word before an atomic.
enum PeerWait {
    Read { stag: u32, to: u64, rest: Range<usize> },
    Atomic { id: u32, original: u64 },
}

/// The effect of frames on the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The queue pair goes on.
    Lives,
    /// The queue pair is in error.
    Dies,
    /// The model does not foretell whether the queue pair goes on.
    Open,
}

/// A connection, its peer, and the expected memory and completions.
struct Run<'a> {
    home: &'a Home,
    queue_pair: Arc<QueuePair>,
    endpoint: Arc<Endpoint>,
    peer: UnixStream,
    sender: Sender,
    receiver: Receiver,
    /// Bytes that the peer has got and not taken apart.
    got: Vec<u8>,
    is_closed: bool,
    memory: Vec<u8>,
    fate: Fate,
    receives: VecDeque<(u64, usize)>,
    asked: VecDeque<PendingRequest>,
    heard: VecDeque<PeerRequest>,
    awaited: VecDeque<PeerWait>,
    /// Requests that are posted and not complete, with the status and the bytes that are foretold.
    pending: HashMap<u64, Option<(Status, Option<u32>)>>,
    numbers: u64,
}

/// Questions between processes of this host about a connection.
pub fn question(bytes: &[u8]) {
    crate::local::try_question(bytes);
}

/// Messages from a process of this host through shared memory.
pub fn beside(bytes: &[u8]) {
    crate::local::try_record(bytes);
}

fn home() -> &'static Mutex<Home> {
    static HOME: OnceLock<Mutex<Home>> = OnceLock::new();
    HOME.get_or_init(|| Mutex::new(Home::new()))
}

/// A connection with a receive, for tests of parts of one.
#[cfg(test)]
pub(crate) fn connected(test: impl FnOnce(&Endpoint)) {
    let home = lock(home());
    let mut run = Run::new(&home, 0);
    run.receive(8);
    test(&run.endpoint);
}

/// Frames of a peer to a queue pair with registered memory.
pub fn effect(bytes: &[u8]) {
    let home = lock(home());
    let Some((options, steps)) = bytes.split_first() else { return };
    let mut run = Run::new(&home, *options);
    for step in steps.as_chunks::<8>().0 {
        if run.fate != Fate::Lives {
            break;
        }
        run.step(step);
    }
    run.end();
}

impl<'a> Run<'a> {
    fn new(home: &'a Home, options: u8) -> Self {
        for (index, word) in home.arena.iter().enumerate() {
            word.store((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Release);
        }
        let ours = Parameters {
            initiator: false,
            revision: 2,
            crc: options & 1 != 0,
            markers_tx: options & 2 != 0,
            markers_rx: options & 2 != 0,
            ird: Some(IRD.into()),
            ord: Some(ORD.into()),
            rtr: None,
            large_fpdu: false,
            extensions: true,
        };
        let theirs = Parameters { initiator: true, ..ours };
        let queue_pair = home.queue_pair();
        let endpoint = endpoint_of(&queue_pair).unwrap();
        let (own, peer) = UnixStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        let depths = ConnectionParameters {
            responder_resources: IRD,
            initiator_depth: ORD,
            ..ConnectionParameters::default()
        };
        let start = Start {
            socket: Arc::new(Socket::own(own.into_raw_fd())),
            parameters: ours,
            early: Vec::new(),
            depths,
            sink: Arc::new(Nobody),
            peer: depths,
            private_data: Vec::new(),
            place: None,
        };
        endpoint.start(start).unwrap();
        let mut run = Self {
            home,
            queue_pair,
            endpoint,
            peer,
            // Small frames: a long message comes in several.
            sender: Sender::new(&theirs, 128 + usize::from(options >> 4) * 16),
            receiver: Receiver::new(&theirs),
            got: Vec::new(),
            is_closed: false,
            memory: home.bytes(),
            fate: Fate::Lives,
            receives: VecDeque::new(),
            asked: VecDeque::new(),
            heard: VecDeque::new(),
            awaited: VecDeque::new(),
            pending: HashMap::new(),
            numbers: 0,
        };
        // A responder sends nothing before the initiator's first frame.
        run.say(Outbound::Write { stag: 0, to: 0, len: 0 }, &[], None);
        run.settle();
        run
    }

    fn step(&mut self, step: &[u8; 8]) {
        let [choice, which, at, length, damage, rest @ ..] = *step;
        let word = u32::from_le_bytes([at, rest[0], rest[1], rest[2]]);
        let damage = (damage & 0x87 == 0x87).then_some((damage >> 3 & 15, rest[0] | 1));
        match choice & 15 {
            0 | 1 => self.receive(length),
            2 => self.read(length),
            3 => self.count(),
            4 | 5 => {
                let (stag, to) = self.place(which, at, WRITABLE);
                let payload: Vec<u8> =
                    (0..u16::from(length) * 3).map(|at| at as u8 ^ choice ^ which).collect();
                self.say(Outbound::Write { stag, to, len: payload.len() as u32 }, &payload, damage);
            }
            6 | 7 => {
                let payload = vec![which ^ choice; usize::from(length) * usize::from(1 + (which >> 7))];
                // A key that no peer may invalidate. Those that give it rights it may, and they would be gone
                // for every run that follows.
                let keys =
                    [self.home.foreign.key(), self.home.gone, self.home.inbox.key(), self.home.sink.key()];
                let invalidate = (which & 15 == 15).then(|| keys[usize::from(at) % keys.len()]);
                let len = payload.len() as u32;
                let send = Outbound::Send { len, solicited: which & 16 != 0, invalidate };
                self.say(send, &payload, damage);
            }
            8 => self.say(Outbound::Immediate { data: [which; 8], solicited: false }, &[], damage),
            9 | 10 => {
                let (source_stag, source_to) = self.place(which, at, READABLE);
                let len = u32::from(length);
                let read = ReadRequest { sink_stag: word, sink_to: word.into(), len, source_stag, source_to };
                if choice & 0xf0 == 0xf0 {
                    return self.ask_too_often(read);
                }
                self.say(Outbound::ReadRequest(read), &[], damage);
            }
            11 => {
                let (stag, to) = self.place(which, at, COUNTED);
                let (value, mask) = (u64::from(word) << 13 | 5, u64::from(length) * 0x0101_0101_0101_0101);
                let operation = match choice >> 4 & 3 {
                    0 => AtomicOperation::FetchAdd { add: value, mask: 0 },
                    1 => AtomicOperation::FetchAdd { add: value, mask },
                    2 => AtomicOperation::swap(value),
                    _ => AtomicOperation::CompareSwap {
                        compare: 0,
                        compare_mask: mask,
                        swap: value,
                        swap_mask: u64::MAX,
                    },
                };
                let request = AtomicRequest { id: word, stag, to, operation };
                self.say(Outbound::AtomicRequest(request), &[], damage);
            }
            12..=14 => self.answer(which, word, length, damage),
            _ if choice & 0xf0 == 0xf0 => {
                // In the middle of a frame, or between two.
                let (stag, to) = self.place(0, at, WRITABLE);
                let frames = self.frames(Outbound::Write { stag, to, len: 100 }, &[which; 100]);
                self.fate = Fate::Open;
                self.send(&frames[..usize::from(length) % frames.len()]);
                let _ = self.peer.shutdown(Shutdown::Write);
            }
            _ => {}
        }
        self.settle();
    }

    /// A key and an address: right ones mostly.
    fn place(&self, which: u8, at: u8, of: Range<usize>) -> (u32, u64) {
        let home = self.home;
        let right = match of {
            WRITABLE => home.writable.key(),
            READABLE => home.readable.key(),
            _ => home.counted.key(),
        };
        let to = home.address(of.start) + u64::from(at);
        match which & 0x1f {
            1 => (home.writable.key(), to),
            2 => (home.readable.key(), to),
            3 => (home.counted.key(), to),
            4 => (home.foreign.key(), home.address(FOREIGN.start)),
            5 => (home.gone, home.address(GONE.start)),
            6 => (home.inbox.key(), home.address(INBOX.start)),
            7 => (home.sink.key(), home.address(SINK.start)),
            8 => (right ^ 1 << (at & 31), to),
            9 => (right, home.address(of.start) - u64::from(at)),
            10 => (right, home.address(of.end) - u64::from(at & 15)),
            11 => (right, u64::MAX - u64::from(at)),
            12 => (right, to << (at & 31)),
            _ => (right, if of == COUNTED { to & !7 } else { to }),
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.pending.insert(self.numbers, None);
        self.numbers
    }

    fn receive(&mut self, split: u8) {
        if self.receives.len() == SLOTS {
            return;
        }
        let wr_id = self.number();
        // The one behind those that wait.
        let slot = self.receives.back().map_or(0, |(_, slot)| (slot + 1) % SLOTS);
        let start = INBOX.start + slot * SLOT;
        let first = usize::from(split) % SLOT;
        let sges = [start..start + first, start + first..start + SLOT].map(|part| Sge {
            address: self.home.address(part.start),
            length: part.len() as u32,
            lkey: self.home.inbox.key(),
        });
        self.queue_pair.post_receive(&ReceiveRequest { wr_id, sges: &sges }).unwrap();
        self.receives.push_back((wr_id, slot));
    }

    fn ask(&mut self, opcode: Opcode, length: u32) {
        if self.asked.len() == SLOTS {
            return;
        }
        let wr_id = self.number();
        let slot = self.asked.back().map_or(0, |asked| (asked.slot + 1) % SLOTS);
        let address = self.home.address(SINK.start + slot * SLOT);
        let sges = [Sge { address, length, lkey: self.home.sink.key() }];
        let request = SendRequest {
            wr_id,
            opcode,
            flags: SendFlags::empty(),
            data: Data::Registered(&sges),
            remote_address: wr_id * 8,
            rkey: 77,
            immediate: 0,
            compare_add: 1,
            swap: 0,
            shared_queue: 0,
            datagram: None,
        };
        self.queue_pair.post_send(&request).unwrap();
        self.asked.push_back(PendingRequest {
            wr_id,
            slot,
            length,
            is_read: opcode == Opcode::Read,
            come: 0,
        });
    }

    fn read(&mut self, length: u8) {
        self.ask(Opcode::Read, u32::from(length) % SLOT as u32 + 1);
    }

    fn count(&mut self) {
        self.ask(Opcode::FetchAdd, 8);
    }

    /// An answer to the oldest request, or to none: near to the right one.
    fn answer(&mut self, which: u8, word: u32, length: u8, damage: Option<(u8, u8)>) {
        let wrong = if which & 0x80 == 0 { 0 } else { which & 7 };
        let message = match self.heard.front() {
            Some(PeerRequest::Read(read)) if wrong & 4 == 0 => Outbound::ReadResponse {
                sink_stag: if wrong & 1 == 0 { read.sink_stag } else { word },
                sink_to: if wrong & 2 == 0 { read.sink_to } else { read.sink_to ^ u64::from(word) },
                len: if wrong == 3 { length.into() } else { read.len },
            },
            Some(PeerRequest::Atomic(id)) if wrong & 4 == 0 => Outbound::AtomicResponse(AtomicResponse {
                id: if wrong & 1 == 0 { *id } else { word },
                original: u64::from(word) << 7,
            }),
            _ if wrong & 1 == 0 => {
                let (sink_stag, sink_to) = self.place(which >> 3, length, WRITABLE);
                Outbound::ReadResponse { sink_stag, sink_to, len: length.into() }
            }
            _ => Outbound::AtomicResponse(AtomicResponse { id: word, original: 1 }),
        };
        let payload = vec![which ^ length; message.payload_len() as usize];
        self.say(message, &payload, damage);
    }

    /// More reads at once than was agreed: all are answered, as far as they come one by one, or the
    /// connection ends.
    fn ask_too_often(&mut self, read: ReadRequest) {
        let mut frames = Vec::new();
        for _ in 0..3 * IRD {
            frames.extend(self.frames(Outbound::ReadRequest(read), &[]));
        }
        self.fate = Fate::Open;
        self.send(&frames);
    }

    fn frames(&mut self, message: Outbound, payload: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        self.sender.begin(message).unwrap();
        while let Some(fpdu) = self.sender.next_fpdu() {
            let part = fpdu.payload().start as usize..fpdu.payload().end as usize;
            self.sender.seal(&fpdu, &payload[part], &mut frames);
        }
        frames
    }

    /// Sends a message, and foretells what its frames do.
    fn say(&mut self, message: Outbound, payload: &[u8], damage: Option<(u8, u8)>) {
        let mut frames = Vec::new();
        self.sender.begin(message).unwrap();
        while let Some(fpdu) = self.sender.next_fpdu() {
            let part = fpdu.payload().start as usize..fpdu.payload().end as usize;
            let from = frames.len();
            self.sender.seal(&fpdu, &payload[part.clone()], &mut frames);
            if let Some((at, bits)) = damage {
                // Behind the length, so that the frame stays one.
                let at = from + 2 + usize::from(at) % (frames.len() - from - 2);
                frames[at] ^= bits;
                self.fate = Fate::Open;
            }
            if self.fate == Fate::Lives {
                self.foretell(message, part, payload, fpdu.is_last());
            }
        }
        self.send(&frames);
    }

    fn send(&mut self, frames: &[u8]) {
        // In two pieces, each taken in by itself. The socket has room: all that was sent before has been
        // taken in.
        let (one, two) = frames.split_at(frames.len() / 2);
        for piece in [one, two] {
            if let Err(error) = self.peer.write_all(piece) {
                assert!(self.fate != Fate::Lives, "{error}");
            }
            let limit = Instant::now() + TEST_TIMEOUT;
            while !self.endpoint.has_taken_all() {
                self.look();
                assert!(Instant::now() < limit, "{:?}", self.fate);
            }
        }
    }

    /// Whether bytes lie within a region.
    fn within(&self, to: u64, length: u64, region: Range<usize>) -> Option<Range<usize>> {
        let start = to.checked_sub(self.home.address(0)).filter(|start| *start < ARENA as u64)? as usize;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        (region.start <= start && end <= region.end).then_some(start..end)
    }

    /// The effect of a frame without an error.
    fn foretell(&mut self, message: Outbound, part: Range<usize>, payload: &[u8], is_last: bool) {
        let length = part.len() as u64;
        let home = self.home;
        let fate = match message {
            Outbound::Write { stag, to, .. } => {
                let place = self.within(to.wrapping_add(part.start as u64), length, WRITABLE);
                match place.filter(|_| stag == home.writable.key()) {
                    _ if length == 0 => Fate::Lives,
                    Some(place) => {
                        self.memory[place].copy_from_slice(&payload[part]);
                        Fate::Lives
                    }
                    None => Fate::Dies,
                }
            }
            Outbound::Send { invalidate, len, .. } => match self.receives.front().copied() {
                None => Fate::Dies,
                Some((wr_id, _)) if part.end > SLOT => {
                    self.expect(wr_id, Status::LocalLength, None);
                    self.receives.pop_front();
                    Fate::Dies
                }
                Some((wr_id, slot)) => {
                    let start = INBOX.start + slot * SLOT;
                    self.memory[start + part.start..start + part.end].copy_from_slice(&payload[part]);
                    if is_last {
                        self.receives.pop_front();
                        let refused = invalidate.is_some();
                        let status = if refused { Status::RemoteInvalidRequest } else { Status::Success };
                        self.expect(wr_id, status, (!refused).then_some(len));
                        if refused { Fate::Dies } else { Fate::Lives }
                    } else {
                        Fate::Lives
                    }
                }
            },
            Outbound::Immediate { .. } => match self.receives.pop_front() {
                Some((wr_id, _)) => {
                    self.expect(wr_id, Status::Success, None);
                    Fate::Lives
                }
                None => Fate::Dies,
            },
            Outbound::ReadRequest(read) => {
                let place = self.within(read.source_to, read.len.into(), READABLE);
                match place.filter(|_| read.source_stag == home.readable.key()) {
                    _ if read.len == 0 => {
                        let (stag, to) = (read.sink_stag, read.sink_to);
                        self.awaited.push_back(PeerWait::Read { stag, to, rest: 0..0 });
                        Fate::Lives
                    }
                    Some(rest) => {
                        let (stag, to) = (read.sink_stag, read.sink_to);
                        self.awaited.push_back(PeerWait::Read { stag, to, rest });
                        Fate::Lives
                    }
                    None => Fate::Dies,
                }
            }
            Outbound::AtomicRequest(AtomicRequest { id, stag, to, operation }) => {
                let place = self.within(to, 8, COUNTED).filter(|place| place.start.is_multiple_of(8));
                match place.filter(|_| stag == home.counted.key()) {
                    Some(place) => {
                        let word = &mut self.memory[place];
                        let original = u64::from_ne_bytes((&*word).try_into().unwrap());
                        word.copy_from_slice(&operation.apply(original).to_ne_bytes());
                        self.awaited.push_back(PeerWait::Atomic { id, original });
                        Fate::Lives
                    }
                    None => Fate::Dies,
                }
            }
            Outbound::ReadResponse { sink_stag, sink_to, .. } => {
                let to = sink_to.wrapping_add(part.start as u64);
                match (self.heard.front(), self.asked.front_mut()) {
                    (Some(PeerRequest::Read(read)), Some(asked))
                        if (length == 0
                            || sink_stag == read.sink_stag
                                && to == read.sink_to.wrapping_add(asked.come.into()))
                            && length <= u64::from(asked.length - asked.come)
                            && is_last == (length == u64::from(asked.length - asked.come)) =>
                    {
                        let start = SINK.start + asked.slot * SLOT + asked.come as usize;
                        self.memory[start..start + part.len()].copy_from_slice(&payload[part]);
                        asked.come += length as u32;
                        if is_last {
                            self.answered();
                        }
                        Fate::Lives
                    }
                    _ => Fate::Dies,
                }
            }
            Outbound::AtomicResponse(response) => match (self.heard.front(), self.asked.front()) {
                (Some(PeerRequest::Atomic(id)), Some(asked)) if *id == response.id => {
                    let start = SINK.start + asked.slot * SLOT;
                    self.memory[start..start + 8].copy_from_slice(&response.original.to_ne_bytes());
                    self.answered();
                    Fate::Lives
                }
                _ => Fate::Dies,
            },
            Outbound::Terminate(_) => Fate::Dies,
        };
        self.fate = fate;
    }

    /// The oldest request is complete.
    fn answered(&mut self) {
        self.heard.pop_front();
        let asked = self.asked.pop_front().expect("it was asked for");
        self.expect(asked.wr_id, Status::Success, None);
    }

    fn expect(&mut self, wr_id: u64, status: Status, length: Option<u32>) {
        *self.pending.get_mut(&wr_id).expect("it is pending") = Some((status, length));
    }

    /// Polls, and takes the peer's frames. Returns whether there was anything.
    fn look(&mut self) -> bool {
        let (pending, fate) = (&mut self.pending, self.fate);
        let mut found = self
            .home
            .cq
            .poll(64, |done| {
                let foretold = pending.remove(&done.wr_id).expect("complete once");
                match foretold {
                    Some((status, length)) => {
                        assert_eq!(done.status, status, "{done:?}");
                        assert!(length.is_none_or(|length| length == done.byte_length), "{done:?}");
                    }
                    None if fate == Fate::Dies => assert_ne!(done.status, Status::Success, "{done:?}"),
                    None => assert_eq!(fate, Fate::Open, "{done:?}"),
                }
            })
            .unwrap()
            > 0;
        let mut buffer = [0; 4096];
        loop {
            match self.peer.read(&mut buffer) {
                Ok(0) => {
                    self.is_closed = true;
                    break;
                }
                Ok(count) => {
                    found = true;
                    self.got.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        while self.hear() {}
        found
    }

    /// Takes a frame that the peer has got.
    fn hear(&mut self) -> bool {
        let Step::Segment(arrival) = self.receiver.next_checked(&mut self.got).unwrap() else { return false };
        let payload = self.got[arrival.head_len..][..arrival.payload_len].to_vec();
        self.got.drain(..arrival.total_len());
        let sure = self.fate != Fate::Open;
        match arrival.segment {
            Segment::ReadRequest { request, .. } => {
                if sure {
                    let asked = &self.asked[self.heard.len()];
                    assert_eq!((asked.is_read, asked.length), (true, request.len));
                    assert_eq!((request.source_stag, request.source_to), (77, asked.wr_id * 8));
                }
                self.heard.push_back(PeerRequest::Read(request));
            }
            Segment::AtomicRequest { request, .. } => {
                assert!(!sure || !self.asked[self.heard.len()].is_read);
                self.heard.push_back(PeerRequest::Atomic(request.id));
            }
            Segment::ReadResponse { stag, to, last } => {
                if let (true, Some(PeerWait::Read { stag: wanted, to: at, rest })) =
                    (sure, self.awaited.front_mut())
                {
                    assert!(payload.is_empty() || (stag, to) == (*wanted, *at));
                    assert_eq!(payload, self.memory[rest.start..rest.start + payload.len()]);
                    rest.start += payload.len();
                    *at += payload.len() as u64;
                    assert_eq!(last, rest.start == rest.end);
                } else {
                    assert!(!sure, "nobody asked");
                    // Any request may be meant. The bytes of its answer may be read.
                    let may = &self.memory[READABLE];
                    assert!(payload.is_empty() || may.windows(payload.len()).any(|part| part == payload));
                }
                if last {
                    self.awaited.pop_front();
                }
            }
            Segment::AtomicResponse { response, .. } => {
                let awaited = self.awaited.pop_front();
                assert!(
                    !sure
                        || matches!(awaited, Some(PeerWait::Atomic { id, original })
                            if (id, original) == (response.id, response.original))
                );
            }
            Segment::Terminate(_) => assert_ne!(self.fate, Fate::Lives),
            other => panic!("nobody posted {other:?}"),
        }
        true
    }

    /// Waits until all that was sent is taken in, and all that follows from it has happened.
    fn settle(&mut self) {
        let limit = Instant::now() + TEST_TIMEOUT;
        loop {
            let found = self.look();
            let is_quiet = !found && self.endpoint.has_taken_all();
            let there = match self.fate {
                Fate::Dies => self.is_closed && self.queue_pair.state() == State::Error,
                Fate::Lives => {
                    self.heard.len() == self.asked.len().min(ORD.into())
                        && self.awaited.is_empty()
                        && self.pending.values().all(Option::is_none)
                }
                Fate::Open => true,
            };
            if is_quiet && there {
                break;
            }
            assert!(Instant::now() < limit, "{:?}, quiet: {is_quiet}", self.fate);
            std::thread::yield_now();
        }
        assert!(lock(&self.endpoint.reads).len() <= ORD.into());
        assert!(lock(&self.endpoint.inbound).len() <= IRD.into());
        self.check();
    }

    /// Memory is as the model says.
    fn check(&self) {
        let is = self.home.bytes();
        if self.fate != Fate::Open {
            let differs = (0..ARENA).find(|at| is[*at] != self.memory[*at]);
            assert_eq!(differs, None, "{:?}", self.fate);
            return;
        }
        let mut may = vec![false; ARENA];
        may[WRITABLE].fill(true);
        may[COUNTED].fill(true);
        let received = self.receives.iter().map(|(_, slot)| INBOX.start + slot * SLOT..SLOT);
        let read = self.asked.iter().map(|asked| SINK.start + asked.slot * SLOT..asked.length as usize);
        for Range { start, end: length } in received.chain(read) {
            may[start..start + length].fill(true);
        }
        let differs = (0..ARENA).find(|at| is[*at] != self.memory[*at] && !may[*at]);
        assert_eq!(differs, None);
    }

    /// Everything that was posted completes, and after that no byte changes.
    fn end(mut self) {
        let at_end = self.fate;
        if at_end == Fate::Lives {
            self.fate = Fate::Dies;
        }
        let error = Attributes { state: Some(State::Error), ..Attributes::default() };
        self.queue_pair.modify(&error, AttributeMask::STATE).unwrap();
        let limit = Instant::now() + TEST_TIMEOUT;
        while !self.pending.is_empty() {
            self.look();
            assert!(Instant::now() < limit, "{} requests are not complete", self.pending.len());
            std::thread::yield_now();
        }
        assert!(lock(&self.endpoint.reads).is_empty() && lock(&self.endpoint.inbound).is_empty());
        self.queue_pair.destroy();
        self.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_core::random;

    /// All that can be said, and a few answers more.
    #[test]
    fn frames_of_a_peer_make_only_the_changes_that_the_model_allows() {
        let mut posted = vec![0];
        for choice in [0, 0, 2, 3, 2, 4, 6, 9, 11, 12, 12, 12, 8] {
            posted.extend_from_slice(&[choice, 0, 8, 40, 0, 0, 0, 0]);
        }
        effect(&posted);
        // Writes, reads and atomic operations with each key and at each place.
        for place in 0..32 {
            for choice in [4, 9, 11] {
                effect(&[0, choice, place, 3, 40, 0, 0, 0, 0]);
            }
        }
        for round in 0..400 {
            let mut bytes: Vec<u8> = (0..1 + random::word() % 160).map(|_| random::word() as u8).collect();
            for step in bytes[1..].chunks_mut(8).filter(|step| step.len() == 8) {
                // Mostly right keys, short messages, and no damage: an error ends the connection.
                if round % 4 != 0 && random::word() & 7 != 0 {
                    step[1] &= 0x10;
                    step[3] &= 63;
                    step[4] = 0;
                }
            }
            effect(&bytes);
        }
    }
}
