//! Connection management of the device: rdma_cm's service over InfiniBand's management datagrams.
//!
//! What the messages mean is known to `adverb_proto::cm`; here it gets its time, its datagrams and its
//! sockets, and its events become those of the program's connections. After each change, a call of the
//! program runs [`Manager::send_out`], which sends the datagrams that are due. The background thread runs
//! [`Manager::pump`], which delivers the events, too: one thread at a time, so that the events of a
//! connection keep their order, and with no lock held.

mod elsewhere;
mod host;
mod incoming;
mod link;
mod listener;
mod message;
mod ports;
pub(crate) mod route;
#[cfg(test)]
mod tests;

pub(crate) use elsewhere::Notifier;
#[cfg(any(test, fuzzing))]
pub(crate) use elsewhere::{try_bytes as try_notice, try_effect as try_notices};
pub(crate) use host::attach;
#[cfg(any(test, fuzzing))]
pub(crate) use message::try_bytes as try_request;

use crate::lock;
use crate::seqpacket::Connection;
use adverb_core::attributes::{Gid, node_guid};
use adverb_core::cm::{
    AddressOptions, ConnectRequest, ConnectionBackend, ConnectionEvent, ConnectionParameters, ConnectionSink,
    OutgoingConnection, PrivateDataLimits, Reservation, source_for, subnet,
};
use adverb_core::engine;
use adverb_core::error::{Error, Result};
use adverb_core::fork::ForkGeneration;
use adverb_core::log;
use adverb_core::qp::{QueuePair, Service as Transport, State as PairState};
use adverb_core::random;
use adverb_core::reactor::{Readiness, Source, Timer};
use adverb_proto::cm::{self, Config, Event, StaleClaim};
use adverb_wire::ib::cm::{RejectReason, Rep, Req, SidrReq, gid, sidr_status};
use adverb_wire::ib::mad::MAD_LEN;
use incoming::{Incoming, IncomingRequest};
use link::{Handle, Link, New};
use listener::{HeldPort, Listening};
use message::{DATAGRAM_LIMITS, Ends, LIMITS, Own};
use route::Service;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::ThreadId;
use std::time::Duration;

/// Requests for one port that wait for their answers, whatever the program's backlog, which counts besides.
const MOST_UNANSWERED: usize = 4096;
/// How long a service that nobody offers is asked for again: perftest's server listens for the second
/// connection only after it has told its client to connect.
const SERVICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Connections, those included that are being made or have just ended.
const MOST_CONNECTIONS: usize = 1 << 18;
/// Senders of requests whose ports are remembered.
const MOST_ASKERS: usize = 4096;
/// Ports are written into requests even where nobody holds them.
const EPHEMERAL: u16 = 32768;

/// What the manager needs of the transport.
pub(crate) trait ManagerHost: Send + Sync {
    /// This process's number in the network namespace, which heads its communication IDs.
    fn block(&self) -> Result<u16>;
    /// Begins to hear management datagrams.
    fn open(&self) -> Result<()>;
    /// Sends one management datagram. Port 0 stands for 4791.
    fn send(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]);
    /// Sends one management datagram as [`ManagerHost::send`] does, while the process exits. It waits for no
    /// thread, since a thread may have been stopped.
    fn send_at_exit(&self, local: IpAddr, peer: SocketAddr, mad: &[u8; MAD_LEN]);
    /// The UDP port that leads directly to the process that owns a queue pair of a peer, if that is known.
    fn port_of(&self, address: IpAddr, queue_pair: u32) -> Option<u16>;
    /// Whether a message from the network may say that the peer has lost the connection of these queue pairs.
    /// Does not wait: the manager is locked.
    fn believes_stale(&self, claim: StaleClaim) -> bool;
    /// The GID table.
    fn gids(&self) -> Vec<Gid>;
    /// The path MTU that suits the interface of a local address.
    fn mtu_of(&self, local: IpAddr) -> Option<u32>;
    /// Takes in what another process hands over.
    fn admit(&self, connection: Connection) -> Result<Arc<Connection>>;
    /// The clock of the protocol.
    fn now(&self) -> Duration;
}

/// A peer's adapter, and our address that it talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ManagerPeer {
    local: IpAddr,
    address: IpAddr,
    /// Index of the interface, where the addresses are link-local; otherwise 0.
    scope: u32,
}

impl ManagerPeer {
    /// A peer from whom something has come by this interface.
    pub(crate) fn new(local: IpAddr, address: IpAddr, interface: u32) -> Self {
        let scope = match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => interface,
            _ => 0,
        };
        Self { local, address, scope }
    }

    /// How peers share out the places of a service, to whatever address of ours they have come: subnets
    /// first, then the addresses of one subnet.
    fn groups(self) -> [Self; 2] {
        [subnet(self.address), self.address.to_canonical()].map(|from| Self {
            local: from,
            address: from,
            ..self
        })
    }

    fn at(ip: IpAddr, port: u16, scope: u32) -> SocketAddr {
        match ip {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        }
    }

    fn local(&self) -> SocketAddr {
        Self::at(self.local, 0, self.scope)
    }

    fn remote(&self, port: u16) -> SocketAddr {
        Self::at(self.address, port, self.scope)
    }
}

/// The connection management of the device: the protocol's state, and the program's connections and
/// listeners.
pub(crate) struct Manager {
    this: Weak<Manager>,
    host: Arc<dyn ManagerHost>,
    born: ForkGeneration,
    state: Mutex<State>,
    /// Nobody sends any more.
    sent: Condvar,
}

#[derive(Default)]
struct State {
    /// The state machine of connections. None before the first use.
    cm: Option<cm::Manager<ManagerPeer>>,
    links: HashMap<u32, Arc<Link>>,
    listeners: HashMap<Service, Vec<Arc<Listening>>>,
    /// UDP ports where those hear answers who have asked us directly, by what they call their requests.
    askers: HashMap<(ManagerPeer, u32), u16>,
    timer: Option<(Duration, Timer)>,
    /// The thread that sends: one at a time, so that datagrams leave in their order.
    sender: Option<ThreadId>,
    /// A thread tells of events.
    pumping: bool,
}

impl Manager {
    pub(crate) fn new(host: Arc<dyn ManagerHost>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            host,
            born: ForkGeneration::now(),
            state: Mutex::default(),
            sent: Condvar::new(),
        })
    }

    fn this(&self) -> Arc<Manager> {
        self.this.upgrade().expect("whoever calls holds it")
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        // In a child of fork the lock may be held for ever.
        self.born.check()?;
        Ok(lock(&self.state))
    }

    /// Makes ready for the first use.
    fn start(&self) -> Result<()> {
        if self.lock()?.cm.is_some() {
            return Ok(());
        }
        self.host.open()?;
        let config = Config {
            prefix: self.host.block()?.into(),
            prefix_bits: u32::BITS - route::COUNTED,
            key: [random::word(), random::word()],
            ca_guid: node_guid(),
            max_connections: MOST_CONNECTIONS,
            patience: SERVICE_TIMEOUT,
        };
        self.lock()?.cm.get_or_insert_with(|| cm::Manager::new(config).grouped(ManagerPeer::groups));
        Ok(())
    }

    /// Works on the connections. Call [`Manager::send_out`] or [`Manager::pump`] afterwards.
    fn with<T>(&self, work: impl FnOnce(&mut cm::Manager<ManagerPeer>, Duration) -> T) -> Result<T> {
        let mut state = self.lock()?;
        match &mut state.cm {
            Some(cm) => Ok(work(cm, self.host.now())),
            None => Err(Error::invalid("there is no connection")),
        }
    }

    /// A datagram of connection management has come.
    /// It came to a port of this process alone from the port `direct`.
    pub(crate) fn receive(&self, mad: &[u8; MAD_LEN], peer: ManagerPeer, direct: Option<u16>) {
        // Starts the manager: a request for a service is answered even if this process has served none.
        if let Err(error) = self.start() {
            return log!(Info, "a message from {} has no effect: {error}", peer.address);
        }
        if let (Some(port), Some(name)) = (direct, elsewhere::name_of(mad))
            && let Ok(mut state) = self.lock()
        {
            if state.askers.len() >= MOST_ASKERS {
                state.askers.clear();
            }
            state.askers.insert((peer, name), port);
        }
        let believes = |claim| self.host.believes_stale(claim);
        if let Ok(Err(why)) = self.with(|cm, now| cm.receive_if(mad, peer, now, &believes)) {
            log!(Info, "a message from {} has no effect: {why}", peer.address);
        }
        self.pump();
    }

    /// Sends the datagrams that are due. They have left when this returns, for the process may end in the
    /// next instant. The background thread tells of events, soon: an event may make a queue pair ready or end
    /// it, and the stack of a program's thread can be too small for that.
    fn send_out(&self) {
        self.transmit();
        let Ok(mut guard) = self.lock() else { return };
        let State { cm: Some(cm), timer, pumping: false, .. } = &mut *guard else { return };
        let now = self.host.now();
        match timer {
            // The background thread is about to look.
            Some((at, _)) if *at <= now => {}
            _ if cm.has_events() => self.set_timer(timer, Some(now)),
            _ => self.set_timer(timer, cm.deadline()),
        }
    }

    /// Sends the datagrams that are due, and tells of events, in the background thread. If another thread is
    /// telling, that thread tells of these events, too.
    fn pump(&self) {
        let mut mine = false;
        loop {
            self.transmit();
            let Some(event) = self.next_event(&mut mine) else { return };
            self.handle(event);
        }
    }

    fn transmit(&self) {
        let me = std::thread::current().id();
        let Ok(mut state) = self.lock() else { return };
        while let Some(sender) = state.sender {
            // Further down on this thread, where it is sent next.
            if sender == me {
                return;
            }
            state = self.sent.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.sender = Some(me);
        while let State { cm: Some(cm), links, askers, .. } = &mut *state {
            let Some((peer, mad)) = cm.poll_transmit() else { break };
            let port = self.port_for(links, askers, &peer, &mad);
            drop(state);
            self.host.send(peer.local, peer.remote(port), &mad);
            state = lock(&self.state);
        }
        state.sender = None;
        self.sent.notify_all();
    }

    fn next_event(&self, mine: &mut bool) -> Option<Event<ManagerPeer>> {
        let mut guard = self.lock().ok()?;
        let State { cm, timer, pumping, .. } = &mut *guard;
        if *pumping && !*mine {
            return None;
        }
        let cm = cm.as_mut()?;
        let event = cm.poll_event();
        *mine = event.is_some();
        *pumping = *mine;
        if event.is_none() {
            self.set_timer(timer, cm.deadline());
        }
        event
    }

    /// Where the process hears that a message is for: directly, if its queue pair is known to live at a port
    /// of its own.
    fn port_for(
        &self,
        links: &HashMap<u32, Arc<Link>>,
        askers: &HashMap<(ManagerPeer, u32), u16>,
        peer: &ManagerPeer,
        mad: &[u8; MAD_LEN],
    ) -> u16 {
        // Messages begin with our communication ID and the peer's; an answer about datagrams, with the peer's
        // alone.
        let word = |at: usize| u32::from_be_bytes([mad[at], mad[at + 1], mad[at + 2], mad[at + 3]]);
        let Some(link) = links.get(&word(24)) else {
            let asker = |at: usize| askers.get(&(*peer, word(at))).copied();
            return asker(28).or_else(|| asker(24)).unwrap_or(0);
        };
        let number = link.remote_number.load(Ordering::Acquire);
        if number == 0 {
            *lock(&link.asked) = Some(Box::new(*mad));
        }
        let said = link.port.load(Ordering::Acquire);
        if said != 0 {
            return said;
        }
        let located = (number != 0).then(|| self.host.port_of(peer.address, number)).flatten();
        located.or_else(|| askers.get(&(*peer, word(28))).copied()).unwrap_or(0)
    }

    /// A process has said that it hears requests at this UDP port. Believed from the one who was asked, about
    /// what it was asked: it knows the request's transaction.
    fn ask_at(&self, transaction: u64, name: u32, peer: &ManagerPeer, port: u16) {
        let Some(link) = self.link(name).filter(|link| link.peer == *peer) else { return };
        let asked = lock(&link.asked).clone();
        if let Some(mad) = asked.filter(|mad| elsewhere::transaction_of(mad) == Some(transaction))
            && link.port.swap(port, Ordering::AcqRel) != port
        {
            self.host.send(peer.local, peer.remote(port), &mad);
        }
    }

    /// Has [`Manager::timeout`] called at `deadline`, and at no other time.
    fn set_timer(&self, timer: &mut Option<(Duration, Timer)>, deadline: Option<Duration>) {
        if deadline == timer.as_ref().map(|(at, _)| *at) {
            return;
        }
        let Ok(engine) = engine::engine() else { return };
        if let Some((_, old)) = timer.take() {
            engine.reactor.cancel_timer(old);
        }
        if let Some(at) = deadline {
            let after = at.saturating_sub(self.host.now());
            if let Ok(new) = engine.reactor.set_timer(after, self.this()) {
                *timer = Some((at, new));
            }
        }
    }

    fn link(&self, id: u32) -> Option<Arc<Link>> {
        self.lock().ok()?.links.get(&id).cloned()
    }

    /// Nothing more happens on the connection.
    fn forget_link(&self, id: u32) -> Option<Arc<Link>> {
        self.lock().ok()?.links.remove(&id)
    }

    /// The program has no interest in the connection any more.
    fn drop_link(&self, link: &Link) {
        let now = self.host.now();
        let Ok(mut state) = self.lock() else { return };
        let own = |known: &Arc<Link>| std::ptr::eq(&**known, link);
        // The ID may belong to another connection by now.
        if state.links.get(&link.id).is_some_and(own) {
            let dropped = state.links.remove(&link.id);
            if let Some(cm) = &mut state.cm {
                cm.destroy(link.id, now);
            }
            drop(state);
            drop(dropped);
        }
    }

    /// Accepts, and from then on tells the link.
    fn accept(&self, link: &Arc<Link>, reply: &Rep) -> Result<()> {
        let now = self.host.now();
        let mut state = self.lock()?;
        let State { cm, links, .. } = &mut *state;
        let Some(cm) = cm else { return Err(gone(&cm::Error::Unknown)) };
        cm.accept(link.id, reply, now).map_err(|error| gone(&error))?;
        links.insert(link.id, link.clone());
        Ok(())
    }

    fn handle(&self, event: Event<ManagerPeer>) {
        match event {
            Event::Request { connection, peer, request } => self.requested(connection, peer, request),
            Event::DatagramRequest { connection, peer, request } => {
                self.looked_up(connection, peer, &request);
            }
            Event::Reply { connection, reply } => match self.link(connection) {
                Some(link) => link.accepted(self, &reply),
                None => drop(self.with(|cm, now| cm.destroy(connection, now))),
            },
            Event::Established { connection } => {
                if let Some(link) = self.link(connection) {
                    link.set_established();
                    let parameters = ConnectionParameters::default();
                    link.report(ConnectionEvent::Established { parameters, private_data: Vec::new() });
                }
            }
            // IB-CM-61
            Event::Rejected { connection, rejection } => {
                let Some(link) = self.link(connection) else { return };
                if link.is_established() {
                    // IB-CM-46
                    return link.finish(ConnectionEvent::Disconnected);
                }
                self.forget_link(connection);
                let status = i32::from(rejection.reason.0);
                log!(Info, "{} refuses the connection: {}", link.peer.address, rejection.reason);
                if rejection.reason == RejectReason::INVALID_SERVICE_ID {
                    log!(
                        Warn,
                        "nobody listens at {} for RoCE at that port: a server on another device, such as iwarp0, is not reached from roce0 \
                         (ADVERB_DEVICE names the device, on both sides)",
                        link.peer.address
                    );
                }
                let private_data = rejection.private_data.to_vec();
                let nobody_listens = rejection.reason == RejectReason::INVALID_SERVICE_ID;
                link.finish(ConnectionEvent::Rejected { nobody_listens, status, private_data });
            }
            Event::TimedOut { connection } => {
                if let Some(link) = self.forget_link(connection) {
                    link.finish(ConnectionEvent::Unreachable { status: -libc::ETIMEDOUT });
                }
            }
            Event::Disconnected { connection, asked } => {
                if asked {
                    // IB-CM-41: the peer need not wait for the program.
                    let _ = self.with(|cm, now| cm.disconnect(connection, now));
                }
                if let Some(link) = self.link(connection) {
                    link.finish(ConnectionEvent::Disconnected);
                }
            }
            Event::TimewaitExit { connection } => {
                if let Some(link) = self.forget_link(connection) {
                    link.report(ConnectionEvent::TimewaitExit);
                }
            }
            Event::DatagramReply { connection, reply } => {
                let Some(link) = self.forget_link(connection) else { return };
                if reply.status != sidr_status::SUCCESS {
                    let status = reply.status.into();
                    return link.finish(ConnectionEvent::Unreachable { status });
                }
                let parameters = ConnectionParameters {
                    qp_number: reply.qpn,
                    qkey: reply.qkey,
                    ..ConnectionParameters::default()
                };
                let private_data = reply.private_data.to_vec();
                link.report(ConnectionEvent::Established { parameters, private_data });
            }
        }
    }

    /// The listener for a service at a local address.
    fn listener(&self, service_id: u64, local: IpAddr) -> Option<Arc<Listening>> {
        let service = Service::of(service_id)?;
        let state = self.lock().ok()?;
        state.listeners.get(&service)?.iter().find(|listening| listening.takes(local)).cloned()
    }

    /// Whether this process serves a port at a local address.
    fn serves(&self, service: Service, local: IpAddr) -> bool {
        self.listener(service.id(), local).is_some()
    }

    /// A peer asks for a connection.
    fn requested(&self, id: u32, peer: ManagerPeer, request: Box<Req>) {
        match self.examine(id, peer, request) {
            Ok((listening, incoming)) => listening.sink.request(Box::new(incoming)),
            Err(reason) => {
                log!(Info, "a connection request from {} is refused: {reason}", peer.address);
                let rejection = message::rejection(reason, &[]);
                let _ = self.with(|cm, now| cm.reject(id, &rejection, now));
            }
        }
    }

    fn examine(
        &self,
        id: u32,
        peer: ManagerPeer,
        request: Box<Req>,
    ) -> std::result::Result<(Arc<Listening>, Incoming), RejectReason> {
        let listening =
            self.listener(request.service_id, peer.local).ok_or(RejectReason::INVALID_SERVICE_ID)?;
        // IB-CM-55
        let (addresses, data) =
            message::split_addresses(&request.private_data).ok_or(RejectReason::UNSUPPORTED)?;
        // IB-CM-35: packets go to the address that the request came from, so it must say so.
        let path = &request.primary;
        if path.local_gid != gid(peer.address)
            || path.remote_gid != gid(peer.local)
            || addresses.source != peer.address
        {
            return Err(RejectReason::INVALID_GID);
        }
        let most = self.host.mtu_of(peer.local).ok_or(RejectReason::INVALID_GID)?;
        let mtu = message::mtu_of_code(request.path_mtu).filter(|mtu| *mtu <= most);
        let own = Own { psn: random_psn(), mtu: mtu.ok_or(RejectReason::INVALID_MTU)? };
        let agreement = message::agreement_of_request(&request, own, &peer, &self.host.gids())
            .map_err(|_| RejectReason::INVALID_GID)?;
        let ends = Ends {
            local: ManagerPeer::at(peer.local, listening.service.port, peer.scope),
            // IB-CM-56
            peer: peer.remote(addresses.source_port),
        };
        let private_data = data.to_vec();
        let incoming = Incoming {
            manager: self.this(),
            id,
            peer,
            ends,
            own,
            asked: IncomingRequest::Connection { request, agreement },
            private_data,
            answered: false,
        };
        Ok((listening, incoming))
    }

    /// A peer asks for the queue pair of a datagram service.
    fn looked_up(&self, id: u32, peer: ManagerPeer, request: &SidrReq) {
        let listening = self.listener(request.service_id, peer.local);
        let addresses = message::split_addresses(&request.private_data);
        let (Some(listening), Some((addresses, data))) = (listening, addresses) else {
            let none = ConnectionParameters::default();
            let answer = message::found(sidr_status::UNSUPPORTED, &none, &[]);
            let _ = self.with(|cm, now| cm.answer(id, &answer, now));
            return;
        };
        let incoming = Incoming {
            manager: self.this(),
            id,
            peer,
            ends: Ends {
                local: ManagerPeer::at(peer.local, listening.service.port, peer.scope),
                peer: peer.remote(addresses.source_port),
            },
            own: Own { psn: 0, mtu: 0 },
            asked: IncomingRequest::Datagrams,
            private_data: data.to_vec(),
            answered: false,
        };
        listening.sink.request(Box::new(incoming));
    }

    fn listen(&self, listening: &Arc<Listening>) -> Result<()> {
        let mut state = self.lock()?;
        let State { cm, listeners, .. } = &mut *state;
        let Some(cm) = cm else { return Err(Error::invalid("nothing can be heard yet")) };
        let same = listeners.entry(listening.service).or_default();
        same.push(listening.clone());
        if same.len() == 1 {
            // Nobody else has it: the entry is new.
            let _ = cm.listen(listening.service.id(), MOST_UNANSWERED);
        }
        Ok(())
    }

    fn unlisten(&self, listening: &Arc<Listening>) {
        let Ok(mut state) = self.lock() else { return };
        let State { cm, listeners, .. } = &mut *state;
        let Some(same) = listeners.get_mut(&listening.service) else { return };
        same.retain(|known| !Arc::ptr_eq(known, listening));
        if same.is_empty() {
            listeners.remove(&listening.service);
            if let Some(cm) = cm {
                cm.unlisten(listening.service.id());
            }
        }
    }

    /// Addresses of this host.
    fn addresses(&self) -> Vec<IpAddr> {
        self.host.gids().iter().map(|gid| crate::route::address_of(&gid.bytes)).collect()
    }

    /// Asks a peer for a connection, or for a queue pair.
    fn ask(
        &self,
        queue_pair: Option<&Arc<QueuePair>>,
        kind: Transport,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let limits = if kind == Transport::Ud { DATAGRAM_LIMITS } else { LIMITS };
        PrivateDataLimits::check(request.private_data, limits.request)?;
        self.start()?;
        let destination = unwildcard(request.destination);
        let bound = request.source.as_ref().map(|source| source.local());
        let mut local = source_for(bound.filter(|bound| !bound.ip().is_unspecified()), destination)?;
        let chosen = || EPHEMERAL + (random::word() % 28232) as u16;
        local.set_port(bound.map_or(0, |bound| bound.port()));
        if local.port() == 0 {
            local.set_port(chosen());
        }
        // The port counts for those who listen; a connection is known by its communication ID.
        drop(request.source);
        let scope = match destination {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let peer = ManagerPeer::new(local.ip(), destination.ip(), scope);
        let mtu = self.host.mtu_of(local.ip()).ok_or_else(|| {
            Error::new(libc::EADDRNOTAVAIL, format!("the device has no GID for the address {}", local.ip()))
        })?;
        let mtu = request.options.path_mtu.map_or(mtu, |most| mtu.min(most));
        let own = Own { psn: random_psn(), mtu };
        let ends = Ends { local, peer: destination };
        let service_id = Service { space: request.options.port_space, port: destination.port() }.id();
        let message = match kind {
            Transport::Ud => None,
            _ => Some(Box::new(message::request(
                service_id,
                kind,
                &ends,
                own,
                &request.options,
                &request.parameters,
                request.private_data,
            ))),
        };
        let now = self.host.now();
        let mut state = self.lock()?;
        let State { cm, links, .. } = &mut *state;
        let Some(cm) = cm else { return Err(Error::invalid("nothing can be asked yet")) };
        let begun = match &message {
            Some(message) => cm.connect(peer, message, now),
            None => cm.resolve(peer, &message::look_up(service_id, &ends, request.private_data), now),
        };
        let id = begun.map_err(|error| Error::exhausted(format!("asking {destination}: {error}")))?;
        let new = New {
            id,
            sink,
            queue_pair: queue_pair.map(Arc::downgrade),
            peer,
            local,
            own,
            request: message,
            agreement: None,
            remote_id: 0,
        };
        let link = Link::new(new);
        links.insert(id, link.clone());
        drop(state);
        self.send_out();
        Ok(Box::new(Handle { manager: self.this(), link }))
    }

    /// The process exits: every peer is told (IB-CM-47).
    pub(crate) fn at_exit(&self) {
        // The lock may belong to a thread that was stopped.
        let now = self.host.now();
        let Ok(mut state) = self.state.try_lock() else { return };
        if !self.born.is_here() {
            return;
        }
        let State { cm, links, askers, .. } = &mut *state;
        let Some(cm) = cm else { return };
        // Those of connections that the program has dropped, whose peers have not answered yet.
        cm.repeat_releases(now);
        for id in links.keys() {
            cm.destroy(*id, now);
        }
        let mut datagrams = Vec::new();
        while let Some((peer, mad)) = cm.poll_transmit() {
            datagrams.push((peer, self.port_for(links, askers, &peer, &mad), mad));
        }
        let links: Vec<_> = links.values().cloned().collect();
        drop(state);
        for (peer, port, mad) in datagrams {
            self.host.send_at_exit(peer.local, peer.remote(port), &mad);
        }
        links.iter().for_each(|link| link.strike_out());
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

fn gone(error: &cm::Error) -> Error {
    Error::new(libc::ECONNRESET, format!("the peer has given up: {error}"))
}

// ROCE-41
fn random_psn() -> u32 {
    random::word() as u32 & 0xff_ffff
}

impl ConnectionBackend for Manager {
    fn private_data_limits(&self) -> PrivateDataLimits {
        LIMITS
    }

    fn datagram_limits(&self) -> Option<PrivateDataLimits> {
        Some(DATAGRAM_LIMITS)
    }

    fn reserve(&self, local: SocketAddr, options: AddressOptions) -> Result<Box<dyn Reservation>> {
        Ok(Box::new(HeldPort::new(self.this(), local, options)?))
    }

    fn connect(
        &self,
        queue_pair: &Arc<QueuePair>,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        let state = queue_pair.state();
        if state != PairState::Init {
            return Err(Error::invalid(format!("a queue pair in {state} connects nothing: INIT is needed")));
        }
        let kind = queue_pair.queues().service;
        let parameters = ConnectionParameters { qp_number: queue_pair.number(), ..request.parameters };
        self.ask(Some(queue_pair), kind, ConnectRequest { parameters, ..request }, sink)
    }

    fn connect_unmanaged(
        &self,
        service: Transport,
        request: ConnectRequest<'_>,
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Box<dyn OutgoingConnection>> {
        self.ask(None, service, request, sink)
    }

    fn path_mtu(&self, local: IpAddr) -> Option<u32> {
        self.host.mtu_of(local)
    }
}

impl Source for Manager {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        // A call of the program may have set another deadline since this one passed.
        if let Ok(mut state) = self.lock()
            && let Some((_, timer)) = state.timer.take()
            && let Ok(engine) = engine::engine()
        {
            engine.reactor.cancel_timer(timer);
        }
        let _ = self.with(|cm, now| cm.handle_timeout(now));
        self.pump();
    }
}
