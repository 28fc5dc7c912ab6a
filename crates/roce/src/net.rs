//! All that a process has once for RoCE: its queue pairs by number, its lanes, and its place among the
//! processes of the network namespace.

use crate::contacts::Contacts;
use crate::endpoint::Endpoint;
use crate::gid::Gids;
use crate::gsi::Gsi;
use crate::handover::{self, HandoverKind, OwnedArrival};
use crate::handover_queue::{HandoverQueue, NoteOutcome};
use crate::lane::Lane;
use crate::local::Local;
use crate::locate::Locator;
use crate::lock;
use crate::management_queue::ManagementQueue;
use crate::manager::Notifier;
use crate::multicast::Groups;
use crate::numbers::{self, Numbers, block_of};
use crate::observer::Direction;
use crate::other_users::{self, OtherUsers, Purpose};
use crate::pace::Pace;
use crate::peer::Peers;
use crate::pending_acks;
use crate::raw::Steering;
use crate::rx_burst::RxBurst;
use crate::seqpacket::{Connection, Descriptors};
use crate::socket::{Arrival, Socket};
use crate::udp_port::{self, UdpPort};
use adverb_core::counters::Counters;
use adverb_core::cq::{self, CompletionQueue};
use adverb_core::engine::{self, Engine};
use adverb_core::error::Result;
use adverb_core::inlet::Inlet;
use adverb_core::qp::{Queues, Service};
use adverb_core::reactor::{PEER_CLOSED, READABLE, Readiness, Source, Token};
use adverb_core::watch;
use adverb_wire::ib::mad::{GSI_QPN, class};
use adverb_wire::ib::packet;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

/// The number to which multicast packets go (volume 1, section 10.5.2).
pub(crate) const MULTICAST: u32 = 0xff_ffff;
/// Lanes with a socket of their own; completion queues beyond share them.
const MOST_LANES: usize = pending_acks::PLACES;

/// Queue pairs by number.
pub(crate) type Table = HashMap<u32, Arc<Endpoint>, BuildHasherDefault<NumberHasher>>;

/// Hashes queue pair numbers, which are random already and chosen by this process.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// The state that a process has once for RoCE: its queue pairs by number, its lanes, and its place in the
/// network namespace.
pub(crate) struct Net {
    this: Weak<Net>,
    endpoints: RwLock<Table>,
    changes: AtomicU64,
    numbers: Mutex<Numbers>,
    lanes: Mutex<Lanes>,
    /// The lanes by their places, to be read without a lock.
    by_place: [OnceLock<Arc<Lane>>; MOST_LANES],
    /// The process has more lanes than one.
    has_lanes: AtomicBool,
    /// The lane of all extended reliable connections.
    extended_lane: Mutex<Option<Arc<Lane>>>,
    engine: OnceLock<&'static Engine>,
    counters: OnceLock<&'static Counters>,
    /// Names of the devices; the first one counts events that belong to none alone.
    names: Vec<String>,
    /// All addresses of the host.
    pub(crate) gids: Arc<Gids>,
    pub(crate) udp_port: UdpPort,
    pub(crate) gsi: Gsi,
    pub(crate) locator: Locator,
    /// Tells senders of requests for ports of this process where to ask.
    notifier: Notifier,
    pub(crate) local: Local,
    pub(crate) peers: Peers,
    pub(crate) pace: Pace,
    pub(crate) groups: Groups,
    pub(crate) steering: Steering,
    /// Packets for other processes.
    pub(crate) handover_queue: HandoverQueue,
    /// Management datagrams for the background thread.
    pub(crate) management_queue: ManagementQueue,
    /// Other processes of our user, by their blocks.
    block_owners: Mutex<Contacts<u16>>,
    /// Connections of other users' processes.
    pub(crate) other_users: OtherUsers,
}

#[derive(Default)]
struct Lanes {
    /// All lanes, the primary one first.
    all: Vec<Arc<Lane>>,
    /// By the address of their completion queue.
    by_queue: HashMap<usize, (Weak<CompletionQueue>, Arc<Lane>)>,
    /// How many of them each lane has, by its address.
    uses: HashMap<usize, usize>,
    /// Dead ones are looked for again when there are so many.
    look_at: usize,
}

/// The address of a lane, as a key: lanes live as long as their process.
fn address(lane: &Arc<Lane>) -> usize {
    Arc::as_ptr(lane) as usize
}

impl Lanes {
    /// Forgets the completion queues that are gone: at each call while there are few, else whenever their
    /// number has doubled.
    fn forget_dead_queues(&mut self) {
        const FEW: usize = 64;
        if self.by_queue.len() < self.look_at {
            return;
        }
        let Self { by_queue, uses, .. } = self;
        by_queue.retain(|_, (queue, lane)| {
            let lives = queue.strong_count() > 0;
            if !lives && let Some(count) = uses.get_mut(&address(lane)) {
                *count -= 1;
            }
            lives
        });
        self.look_at = if self.by_queue.len() < FEW { 0 } else { 2 * self.by_queue.len() };
    }
}

/// What has become of a message to the process that owns a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TellOutcome {
    Told,
    /// The process does not keep up, or is another user's, or cannot be reached now.
    NotTaken,
    /// Nobody owns the block.
    Nobody,
}

impl Net {
    pub(crate) fn new(names: Vec<String>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            endpoints: RwLock::default(),
            changes: AtomicU64::new(0),
            numbers: Mutex::default(),
            lanes: Mutex::default(),
            by_place: [const { OnceLock::new() }; MOST_LANES],
            has_lanes: AtomicBool::new(false),
            extended_lane: Mutex::default(),
            engine: OnceLock::new(),
            counters: OnceLock::new(),
            names,
            gids: Arc::default(),
            udp_port: UdpPort::default(),
            gsi: Gsi::default(),
            locator: Locator::default(),
            notifier: Notifier::default(),
            local: Local::default(),
            peers: Peers::default(),
            pace: Pace::default(),
            groups: Groups::default(),
            steering: Steering::default(),
            handover_queue: HandoverQueue::default(),
            management_queue: ManagementQueue::default(),
            block_owners: Mutex::default(),
            other_users: OtherUsers::default(),
        })
    }

    pub(crate) fn this(&self) -> Arc<Net> {
        self.this.upgrade().expect("the transport lives as long as its process")
    }

    /// The engine of this process.
    pub(crate) fn engine(&self) -> Result<&'static Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = engine::engine()?;
        Ok(self.engine.get_or_init(|| engine))
    }

    /// The counters that belong to no device alone: packets, and system calls.
    pub(crate) fn counters(&self) -> &'static Counters {
        self.counters.get_or_init(|| {
            let devices = self.engine().map(|engine| engine.devices()).unwrap_or_default();
            let own = devices.iter().find(|device| self.names.iter().any(|name| name == device.name()));
            match own {
                Some(device) => device.counters(),
                None => Box::leak(Box::new(Counters::private())),
            }
        })
    }

    /// The queue pairs. While the guard lives none of them is destroyed.
    pub(crate) fn endpoints(&self) -> RwLockReadGuard<'_, Table> {
        self.endpoints.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Counts the changes of that table. A thread that keeps a queue pair out of it may still use it for an
    /// instant after it was destroyed. The queue pair's own state then says that it takes in nothing.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// A new queue pair's packets are taken in from now on.
    pub(crate) fn enter(&self, endpoint: Arc<Endpoint>) {
        let number = endpoint.number();
        let mut table = self.endpoints.write().unwrap_or_else(|e| e.into_inner());
        table.insert(number, endpoint);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A queue pair goes: when this returns no packet reaches it any more.
    pub(crate) fn leave(&self, number: u32) {
        let mut table = self.endpoints.write().unwrap_or_else(|e| e.into_inner());
        let removed = table.remove(&number);
        self.changes.fetch_add(1, Ordering::Release);
        drop(table);
        drop(removed);
    }

    /// The endpoint that has this number in this process.
    pub(crate) fn endpoint(&self, number: u32) -> Option<Arc<Endpoint>> {
        self.endpoints().get(&number).cloned()
    }

    /// A number for a new queue pair.
    pub(crate) fn take_number(&self) -> Result<u32> {
        loop {
            let mut numbers = lock(&self.numbers);
            if let Some(number) = numbers.take() {
                return Ok(number);
            }
            let (_, fd) = numbers.claim()?;
            drop(numbers);
            self.serve_inlet(fd, Purpose::Asks)?;
        }
    }

    /// The number is free again.
    pub(crate) fn release_number(&self, number: u32) {
        lock(&self.numbers).release(number);
    }

    /// Queue pair numbers in use.
    pub(crate) fn numbers_in_use(&self) -> usize {
        lock(&self.numbers).count()
    }

    /// Whether this process owns a block of queue pair numbers.
    pub(crate) fn owns(&self, block: u16) -> bool {
        lock(&self.numbers).owns(block)
    }

    /// This process's number in the network namespace: its first block of queue pair numbers.
    pub(crate) fn block(&self) -> Result<u16> {
        let mut numbers = lock(&self.numbers);
        if let Some(block) = numbers.first_block() {
            return Ok(block);
        }
        let (block, fd) = numbers.claim()?;
        drop(numbers);
        self.serve_inlet(fd, Purpose::Asks)?;
        Ok(block)
    }

    /// The first lane, made by the first call: on UDP port 4791 if that is free. Management datagrams leave
    /// by it.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub(crate) fn primary(&self) -> Result<Arc<Lane>> {
        let mut lanes = lock(&self.lanes);
        self.primary_of(&mut lanes)
    }

    fn primary_of(&self, lanes: &mut Lanes) -> Result<Arc<Lane>> {
        if let Some(lane) = lanes.all.first() {
            return Ok(lane.clone());
        }
        let lane = self.udp_port.open(&self.this())?;
        self.locator.listen(&self.this());
        self.enter_lane(lanes, &lane);
        Ok(lane)
    }

    fn enter_lane(&self, lanes: &mut Lanes, lane: &Arc<Lane>) {
        let place = lanes.all.len();
        lane.enter(place);
        let _ = self.by_place[place].set(lane.clone());
        lanes.all.push(lane.clone());
        if place > 0 {
            cq::tell_of_finds();
            self.has_lanes.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is more than one lane.
    #[inline]
    pub(crate) fn has_lanes(&self) -> bool {
        self.has_lanes.load(Ordering::Relaxed)
    }

    /// This thread is about to send by a lane: acknowledgements of messages that it has received by other
    /// lanes leave before.
    // PRACTICE-ORDER-1
    #[inline]
    pub(crate) fn settle_others(&self, lane: &Lane) {
        if self.has_lanes() {
            let others = pending_acks::take_others(lane.place());
            if others != 0 {
                self.settle(others);
            }
        }
    }

    #[cold]
    fn settle(&self, places: u32) {
        let lanes = self.by_place.iter().enumerate().filter(|(place, _)| places & 1 << place != 0);
        lanes.filter_map(|(_, lane)| lane.get()).for_each(|lane| lane.settle_first());
    }

    /// The lane of a queue pair. Extended reliable connections (XRC) share one: one queue pair receives a
    /// message, and another one answers it. The acknowledgement and the answer are to go by one socket, where
    /// their order is known.
    // PRACTICE-ORDER-1
    pub(crate) fn lane_for(&self, queues: &Queues) -> Result<Arc<Lane>> {
        if !matches!(queues.service, Service::XrcSend | Service::XrcReceive) {
            return self.lane_of(&queues.receive_cq);
        }
        let mut lane = lock(&self.extended_lane);
        if lane.is_none() {
            *lane = Some(self.lane_of(&queues.receive_cq)?);
        }
        Ok(lane.clone().expect("set above"))
    }

    /// The lane of a completion queue.
    fn lane_of(&self, cq: &Arc<CompletionQueue>) -> Result<Arc<Lane>> {
        let mut lanes = lock(&self.lanes);
        // The entry's weak reference keeps the address from being used again.
        let key = Arc::as_ptr(cq) as usize;
        if let Some((_, lane)) = lanes.by_queue.get(&key) {
            return Ok(lane.clone());
        }
        lanes.forget_dead_queues();
        let primary = self.primary_of(&mut lanes)?;
        let used = |lane: &Arc<Lane>| lanes.uses.get(&address(lane)).copied().unwrap_or(0);
        let free = lanes.all.iter().find(|lane| used(lane) == 0).cloned();
        let lane = match free {
            Some(lane) => lane,
            None if lanes.all.len() < MOST_LANES => match Socket::bind(0) {
                Ok(socket) => {
                    let lane = Lane::new(&self.this(), socket)?;
                    self.enter_lane(&mut lanes, &lane);
                    lane
                }
                // Out of descriptors: sharing a lane is slower, and right.
                Err(_) => primary,
            },
            None => lanes.all.iter().min_by_key(|lane| used(lane)).cloned().unwrap_or(primary),
        };
        lanes.by_queue.insert(key, (Arc::downgrade(cq), lane.clone()));
        *lanes.uses.entry(address(&lane)).or_default() += 1;
        Ok(lane)
    }

    /// All lanes. Takes no lock and allocates nothing: the background thread asks for them where a program
    /// was kept from its processor.
    pub(crate) fn all_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.by_place.iter().filter_map(OnceLock::get)
    }

    /// Takes in a datagram that has come: by its queue pair, or noted for the end of the burst. Cheap checks
    /// come first.
    #[inline]
    pub(crate) fn arrived(&self, table: &Table, arrival: &Arrival<'_>, now: Duration, burst: &mut RxBurst) {
        let number = packet::destination(arrival.bytes);
        // A packet for another process is captured by that process.
        if watch::packets() && number.is_none_or(|number| !self.is_for_another_process(number)) {
            arrival.show();
        }
        let Some(number) = number else {
            self.counters().damaged.add(1);
            return;
        };
        if let Some(endpoint) = table.get(&number) {
            endpoint.arrived(arrival, now, burst);
        } else {
            self.arrived_elsewhere(table, number, arrival, now, burst);
        }
    }

    /// Whether this process holds the port, and the queue pair is another process's.
    pub(crate) fn is_for_another_process(&self, number: u32) -> bool {
        !matches!(number, GSI_QPN | MULTICAST) && self.udp_port.is_held() && !self.owns(block_of(number))
    }

    #[cold]
    fn arrived_elsewhere(
        &self,
        table: &Table,
        number: u32,
        arrival: &Arrival<'_>,
        now: Duration,
        burst: &mut RxBurst,
    ) {
        match number {
            // IB-PKT-53
            GSI_QPN if arrival.local.is_multicast() => self.counters().misaddressed.add(1),
            MULTICAST if !arrival.local.is_multicast() => self.counters().misaddressed.add(1),
            // IB-PKT-51
            GSI_QPN => burst.management.push(OwnedArrival::of(arrival)),
            MULTICAST => {
                // IB-UD-23, IB-UD-25
                for member in self.groups.members(arrival.local) {
                    if let Some(endpoint) = table.get(&member) {
                        endpoint.arrived(arrival, now, burst);
                    }
                }
                if self.udp_port.is_held() {
                    self.udp_port.forward_multicast(arrival);
                }
            }
            // ROCE-39
            _ if self.is_for_another_process(number) => self.queue_handover(arrival),
            _ => self.counters().unknown.add(1),
        }
    }

    fn queue_handover(&self, arrival: &Arrival<'_>) {
        match self.handover_queue.note(arrival) {
            NoteOutcome::Kept => {}
            NoteOutcome::Damaged => self.counters().damaged.add(1),
            NoteOutcome::TooMany => self.counters().dropped.add(1),
        }
    }

    /// Takes note of an arrival that is to be handed over to another process, and of nothing else.
    pub(crate) fn note_handover(&self, arrival: &Arrival<'_>) {
        if packet::destination(arrival.bytes).is_some_and(|number| self.is_for_another_process(number)) {
            self.queue_handover(arrival);
        }
    }

    // IB-PKT-46
    /// Finishes the work that a burst has left on the lane that it came by, apart from management datagrams
    /// and packets for other processes.
    pub(crate) fn follow_up(&self, burst: &mut RxBurst, lane: &Lane) {
        let mut here = false;
        for endpoint in burst.ready.drain(..) {
            let other = !std::ptr::eq(&*endpoint.lane, lane);
            endpoint.enqueue();
            if other {
                endpoint.lane.transmit();
            } else {
                here = true;
            }
        }
        if here {
            lane.transmit();
        }
    }

    /// Whether messages go to the process that owns a block by a connection that is kept.
    pub(crate) fn knows(&self, block: u16) -> bool {
        lock(&self.block_owners).get(&block).is_some()
    }

    /// Sends a message to the process that owns a block. False if there is none, or if it does not keep up. A
    /// process of another user is only asked where a queue pair or service lives: for any other message,
    /// false.
    pub(crate) fn tell(&self, block: u16, kind: HandoverKind, arrival: &Arrival<'_>) -> bool {
        self.tell_owner(block, kind, arrival) == TellOutcome::Told
    }

    /// Sends a message as [`Net::tell`] does, and says why it was not sent.
    pub(crate) fn tell_owner(&self, block: u16, kind: HandoverKind, arrival: &Arrival<'_>) -> TellOutcome {
        let message = [&handover::head(kind, arrival)[..], arrival.bytes];
        let known = lock(&self.block_owners).get(&block);
        if let Some(known) = known {
            match known.send(&message) {
                Ok(()) => return TellOutcome::Told,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return TellOutcome::NotTaken,
                Err(_) => {}
            }
        }
        // None yet, or the process that owned the block before is gone.
        lock(&self.block_owners).forget(&block);
        let owners = match numbers::owners(block, numbers::FRESH) {
            Ok(owners) => owners,
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => return TellOutcome::Nobody,
            Err(_) => return TellOutcome::NotTaken,
        };
        let mut told = false;
        for connection in owners {
            let trusted = connection.is_same_user();
            told |= (trusted || kind == HandoverKind::Locate) && connection.send(&message).is_ok();
            if trusted {
                lock(&self.block_owners).keep(block, connection);
                break;
            }
        }
        if told { TellOutcome::Told } else { TellOutcome::NotTaken }
    }

    /// Serves a socket by which other processes hand packets over to this one, or watch it.
    pub(crate) fn serve_inlet(&self, listener: RawFd, purpose: Purpose) -> Result<Arc<Inlet>> {
        let net = self.this();
        // One too many is closed at once.
        Inlet::serve(listener, move |connection| drop(net.serve_connection(connection, purpose)))
    }

    /// Serves a connection from which messages come.
    pub(crate) fn serve_connection(
        &self,
        connection: Connection,
        purpose: Purpose,
    ) -> Result<Arc<Connection>> {
        let trusted = connection.is_same_user();
        let connection = Arc::new(connection);
        let feed = Arc::new(Feed {
            net: self.this(),
            connection: Mutex::new(Some(connection.clone())),
            trusted,
            token: OnceLock::new(),
        });
        if !trusted {
            other_users::admit(&feed.net, &connection, purpose)?;
        }
        let added = self
            .engine()
            .and_then(|engine| engine.reactor.add(connection.fd(), READABLE | PEER_CLOSED, feed.clone()));
        let token = added.inspect_err(|_| self.other_users.leave(&connection))?;
        let _ = feed.token.set(token);
        Ok(connection)
    }

    /// A message of another process.
    pub(crate) fn message(
        &self,
        message: &[u8],
        descriptors: Descriptors,
        trusted: bool,
        from: &Arc<Connection>,
    ) {
        let parsed = handover::parse(message);
        if let Some((HandoverKind::Management | HandoverKind::Locate, arrival)) = &parsed
            && watch::packets()
        {
            self.gsi.show(Direction::From(arrival.source), arrival);
        }
        match parsed {
            Some((HandoverKind::Channel, arrival)) => {
                self.local.hub.handshakes.message(&self.this(), arrival.bytes, descriptors, trusted, from);
            }
            Some((kind @ (HandoverKind::Packet | HandoverKind::Management), arrival))
                if self.loses(kind, &arrival) => {}
            Some((HandoverKind::Packet, arrival)) if trusted => self.handed_in(&arrival),
            Some((HandoverKind::Locate, arrival)) => {
                if let Some((mad, source)) = Gsi::handed_over(&arrival) {
                    if mad[1] == class::COMMUNICATION {
                        return self.notifier.tell_where(&self.this(), mad, source);
                    }
                    self.locator.answer_here(&self.this(), mad, source);
                }
            }
            Some((HandoverKind::Management, arrival)) if trusted => {
                if let Some((mad, source)) = Gsi::handed_over(&arrival) {
                    // Datagrams that threads of the program have received and queued came before this one.
                    self.handle_management();
                    self.gsi.deliver(mad, source);
                }
            }
            Some((kind @ (HandoverKind::Join | HandoverKind::Leave), arrival)) if trusted => {
                let join = kind == HandoverKind::Join;
                self.udp_port.member_asks(&self.groups, join, arrival.local, arrival.interface, from);
            }
            Some((kind @ (HandoverKind::Joined | HandoverKind::NotJoined), arrival)) if trusted => {
                let joined = kind == HandoverKind::Joined;
                let answer = if joined { Ok(()) } else { udp_port::refusal(arrival.source_port) };
                self.udp_port.holder_answers(&self.groups, arrival.local, arrival.interface, answer, from);
            }
            _ => self.counters().unknown.add(1),
        }
    }

    /// Whether a fault of the wire takes a packet that another process hands over.
    fn loses(&self, kind: HandoverKind, arrival: &Arrival<'_>) -> bool {
        let impaired = self.by_place[0].get().and_then(|lane| lane.impaired.as_ref());
        impaired.is_some_and(|impaired| impaired.loses(arrival, kind == HandoverKind::Management))
    }

    /// A packet that another process has received for this one.
    fn handed_in(&self, arrival: &Arrival<'_>) {
        let mut burst = RxBurst::default();
        {
            let table = self.endpoints();
            self.arrived(&table, arrival, crate::time::now(), &mut burst);
        }
        let management = std::mem::take(&mut burst.management);
        if let Ok(lane) = self.primary() {
            self.follow_up(&mut burst, &lane);
        }
        // Pending acknowledgements leave with the next packets on their lane, or soon: a peer that sends
        // through a holder is in no hurry.
        self.all_lanes().for_each(|lane| lane.settle());
        self.manage(management);
    }
}

/// A connection of another process.
pub(crate) struct Feed {
    net: Arc<Net>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Whether the other process ran as our user when it connected.
    trusted: bool,
    token: OnceLock<Token>,
}

impl Source for Feed {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        let Some(connection) = lock(&self.connection).clone() else { return };
        let mut buffer = vec![0; handover::LONGEST];
        // Bounded: others get their turn, and messages that are left are reported again.
        for _ in 0..64 {
            match connection.receive_with(&mut buffer) {
                Ok(([], _)) => return self.end(&connection),
                Ok((message, along)) => {
                    if !self.trusted {
                        self.net.other_users.heard(&connection);
                    }
                    // It may have connected as another user than it is now.
                    let trusted = self.trusted && along.is_same_user;
                    self.net.message(message, along.descriptors, trusted, &connection);
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if readiness & (PEER_CLOSED | adverb_core::reactor::FAILED) != 0 {
                        self.end(&connection);
                    }
                    return;
                }
                Err(_) => return self.end(&connection),
            }
        }
    }
}

impl Feed {
    /// A feed that the background thread does not watch.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(net: &Arc<Net>, connection: Arc<Connection>, trusted: bool) -> Arc<Self> {
        if !trusted {
            net.other_users.enter_unwatched(&connection);
        }
        let connection = Mutex::new(Some(connection));
        Arc::new(Self { net: net.clone(), connection, trusted, token: OnceLock::new() })
    }

    pub(crate) fn end(&self, connection: &Arc<Connection>) {
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            engine.reactor.remove(*token, connection.fd());
        }
        self.net.udp_port.member_left(&self.net.groups, connection);
        self.net.local.hub.hung_up(&self.net, connection);
        self.net.other_users.leave(connection);
        *lock(&self.connection) = None;
    }
}
