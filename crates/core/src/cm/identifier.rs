//! The identifier: its contents, its life, its place in an event channel.

use super::event::{Details, Event, EventChannel, EventKind, Pending};
use super::multicast::Membership;
use crate::cancel::CancellationGuard;
use crate::device::Device;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::failure::FailureListener;
use crate::fork::ForkGeneration;
use crate::inspect::{AnswerLine, Kind};
use crate::qp::{QueuePair, Service};
use crate::transport::connections::{
    AddressOptions, ConnectionParameters, IncomingConnection, Listener, OutgoingConnection, PortSpace,
    Reservation,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

/// Where an identifier stands, with the states of the kernel's connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentifierState {
    /// Fresh.
    Idle,
    /// Resolving the peer's address.
    AddressQuery,
    /// Peer's address and device known.
    AddressResolved,
    /// Resolving the route.
    RouteQuery,
    /// Ready to connect.
    RouteResolved,
    /// Connecting, connected, or a request that waits for an answer.
    Connect,
    /// Connected no more.
    Disconnect,
    /// Bound to an address.
    AddressBound,
    /// Listening.
    Listen,
    /// The device went away.
    DeviceRemoval,
    /// Being destroyed.
    Destroying,
}

impl IdentifierState {
    /// The state's name in the words of rdma(8).
    fn word(self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::AddressQuery => "ADDR_QUERY",
            Self::AddressResolved => "ADDR_RESOLVED",
            Self::RouteQuery => "ROUTE_QUERY",
            Self::RouteResolved => "ROUTE_RESOLVED",
            Self::Connect => "CONNECT",
            Self::Disconnect => "DISCONNECT",
            Self::AddressBound => "ADDR_BOUND",
            Self::Listen => "LISTEN",
            Self::DeviceRemoval => "DEVICE_REMOVAL",
            Self::Destroying => "DESTROYING",
        }
    }
}

/// A communication identifier (struct rdma_cm_id). Thread-safe.
pub struct Identifier {
    pub(super) this: Weak<Identifier>,
    pub(super) port_space: PortSpace,
    pub(super) service: Service,
    pub(super) born: ForkGeneration,
    cookie: AtomicU64,
    inner: Mutex<Inner>,
    acknowledged: Condvar,
}

pub(super) struct Inner {
    pub(super) state: IdentifierState,
    pub(super) channel: Arc<EventChannel>,
    /// The channel is the identifier's own, and the program wants blocking calls.
    pub(super) synchronous: bool,
    pub(super) device: Option<Arc<Device>>,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    pub(super) options: AddressOptions,
    /// One for each device that the address is held on.
    pub(super) reservations: Vec<(Arc<Device>, Box<dyn Reservation>)>,
    pub(super) listeners: Vec<Box<dyn Listener>>,
    /// Requests that may still wait to be fetched.
    pub(super) backlog: u32,
    pub(super) incoming: Option<Box<dyn IncomingConnection>>,
    pub(super) connection: Option<Arc<dyn OutgoingConnection>>,
    /// The transport is making `connection` at this instant.
    pub(super) connecting: bool,
    /// The program disconnected meanwhile.
    pub(super) disconnect_wanted: bool,
    pub(super) queue_pair: Option<Arc<QueuePair>>,
    pub(super) parameters: ConnectionParameters,
    /// Multicast groups that were joined.
    pub(super) memberships: Vec<Membership>,
    /// Goes in front of the private data of the next connect.
    pub(super) connect_data: Vec<u8>,
    /// The program has fetched the last event of its connection.
    pub(super) ended: bool,
    /// The program has asked for the end.
    pub(super) ending: bool,
    /// The event of the end waits (`super::ending`).
    pub(super) end_is_held: bool,
    /// Events fetched, and those of them that are acknowledged.
    reported: u64,
    completed: u64,
}

impl FailureListener for Identifier {
    /// Operations that were begun with the device will not end.
    fn engine_failed(&self) {
        let mut inner = self.lock();
        if !matches!(inner.state, IdentifierState::DeviceRemoval | IdentifierState::Destroying) {
            inner.state = IdentifierState::DeviceRemoval;
            self.push(&inner, EventKind::DeviceRemoval, -libc::EIO);
        }
    }

    /// As the kernel's connection manager: the program is to destroy the identifier. One that is bound to no
    /// device stays.
    fn device_removed(&self, device: &str) {
        let mut inner = self.lock();
        let is_on_it = inner.device.as_ref().is_some_and(|own| own.name() == device);
        if is_on_it && !matches!(inner.state, IdentifierState::DeviceRemoval | IdentifierState::Destroying) {
            self.push_held_end(&mut inner);
            inner.state = IdentifierState::DeviceRemoval;
            self.push(&inner, EventKind::DeviceRemoval, 0);
        }
    }

    fn describe(&self) -> Option<String> {
        // A thread of the program that has it may wait for this one.
        let inner = self.inner.try_lock().ok()?;
        if inner.state == IdentifierState::Destroying {
            return None;
        }
        let mut line = AnswerLine::of(Kind::Identifier)
            .with("state", inner.state.word())
            .with("port_space", self.port_space.word())
            .with("service", self.service);
        if let Some(device) = &inner.device {
            line = line.with("device", device.name());
        }
        if let Some(pair) = &inner.queue_pair {
            line = line.with("queue_pair", pair.number());
        }
        for (key, address) in [("source", inner.source), ("destination", inner.destination)] {
            if let Some(address) = address {
                line = line.with(key, address);
            }
        }
        Some(line.text())
    }
}

impl Identifier {
    /// Something has begun that needs the engine's threads.
    pub(super) fn needs(&self, engine: &Engine) -> Result<()> {
        engine.failure.concerns(self.this.clone())
    }

    /// A new identifier that reports on `channel` (rdma_create_id(3)). Without one it is a synchronous
    /// identifier with a channel of its own: the front end then waits for the outcome of each call with
    /// [`Identifier::wait_event`].
    ///
    /// # Errors
    /// EMFILE when no channel can be made; ENODEV for a channel of the parent process.
    pub fn new(channel: Option<&Arc<EventChannel>>, port_space: PortSpace) -> Result<Arc<Self>> {
        Self::with_service(channel, port_space, port_space.service())
    }

    /// A new identifier, as of [`Identifier::new`], whose queue pairs have the service `service`.
    /// EINVAL if that is not the port space's own service, and the port space is not [`PortSpace::Ib`].
    pub fn with_service(
        channel: Option<&Arc<EventChannel>>,
        port_space: PortSpace,
        service: Service,
    ) -> Result<Arc<Self>> {
        if port_space != PortSpace::Ib && service != port_space.service() {
            return Err(Error::invalid(format!("port space {port_space:?} has no {service} queue pairs")));
        }
        let synchronous = channel.is_none();
        let channel = match channel {
            Some(channel) => channel.clone(),
            None => EventChannel::new()?,
        };
        Ok(Self::make(channel, synchronous, port_space, service))
    }

    pub(super) fn make(
        channel: Arc<EventChannel>,
        synchronous: bool,
        port_space: PortSpace,
        service: Service,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            port_space,
            service,
            born: ForkGeneration::now(),
            cookie: AtomicU64::new(0),
            acknowledged: Condvar::new(),
            inner: Mutex::new(Inner {
                state: IdentifierState::Idle,
                channel,
                synchronous,
                device: None,
                source: None,
                destination: None,
                options: AddressOptions { port_space, ..AddressOptions::default() },
                reservations: Vec::new(),
                listeners: Vec::new(),
                backlog: 0,
                incoming: None,
                connection: None,
                connecting: false,
                disconnect_wanted: false,
                queue_pair: None,
                parameters: ConnectionParameters::default(),
                memberships: Vec::new(),
                connect_data: Vec::new(),
                ended: false,
                ending: false,
                end_is_held: false,
                reported: 0,
                completed: 0,
            }),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The lock, for a call: an error in a child of fork, whose copy of the lock may be held for ever.
    pub(super) fn enter(&self) -> Result<MutexGuard<'_, Inner>> {
        self.born.check()?;
        Ok(self.lock())
    }

    fn get<T>(&self, read: impl FnOnce(&Inner) -> T) -> Option<T> {
        self.enter().ok().map(|inner| read(&inner))
    }

    /// A word of the front end: the C library keeps the address of its structure here. 0 in a new identifier.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    /// Sets [`Identifier::cookie`].
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Release);
    }

    /// The identifier's port space.
    pub fn port_space(&self) -> PortSpace {
        self.port_space
    }

    /// The service of its queue pairs.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The identifier's state.
    pub fn state(&self) -> IdentifierState {
        self.get(|inner| inner.state).unwrap_or(IdentifierState::DeviceRemoval)
    }

    /// The channel it reports on.
    pub fn channel(&self) -> Result<Arc<EventChannel>> {
        Ok(self.enter()?.channel.clone())
    }

    /// Whether the identifier has a channel of its own and blocking calls are expected.
    pub fn is_synchronous(&self) -> bool {
        self.get(|inner| inner.synchronous).unwrap_or(false)
    }

    /// The device, once one is fixed by binding to an address of the host, resolving a peer, or by a request.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.get(|inner| inner.device.clone()).flatten()
    }

    /// The local address, with the port (rdma_get_local_addr(3), rdma_get_src_port(3)).
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.get(|inner| inner.source).flatten()
    }

    /// The peer's address (rdma_get_peer_addr(3), rdma_get_dst_port(3)).
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.get(|inner| inner.destination).flatten()
    }

    /// The queue pair that is attached to it.
    pub fn queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.get(|inner| inner.queue_pair.clone()).flatten()
    }

    /// Waits for the next event of a synchronous identifier. [`Event::outcome`] tells how the call that
    /// caused it ended.
    ///
    /// # Errors
    /// EINVAL if the identifier is not synchronous; as [`EventChannel::get`].
    pub fn wait_event(&self) -> Result<Event> {
        let channel = {
            let inner = self.enter()?;
            if !inner.synchronous {
                return Err(Error::invalid("the identifier reports on a channel of the program"));
            }
            inner.channel.clone()
        };
        channel.get()
    }

    /// Waits for the next connection request of a synchronous listener (rdma_get_request(3)).
    ///
    /// # Errors
    /// The event and its errno if it is another one: EINVAL, or as [`Event::outcome`]; without an event, as
    /// [`Identifier::wait_event`].
    pub fn get_request(&self) -> std::result::Result<Event, (Error, Option<Event>)> {
        let event = self.wait_event().map_err(|error| (error, None))?;
        match event.outcome() {
            Ok(()) if event.kind == EventKind::ConnectRequest => Ok(event),
            Ok(()) => {
                let error = Error::invalid(format!("{} instead of a request", event.kind.name()));
                Err((error, Some(event)))
            }
            Err(error) => Err((error, Some(event))),
        }
    }

    /// Puts an event of this identifier into its channel. `inner` is its own, locked.
    pub(super) fn push(&self, inner: &Inner, kind: EventKind, status: i32) {
        self.push_with(inner, kind, status, Details::default());
    }

    pub(super) fn push_with(&self, inner: &Inner, kind: EventKind, status: i32, details: Details) {
        inner.channel.queue.push(Pending {
            kind,
            status,
            subject: self.this.clone(),
            request: None,
            details,
        });
    }

    /// Makes a fetched event of a waiting one, unless its identifier is gone.
    pub(super) fn deliver(mut pending: Pending) -> Option<Event> {
        let subject = pending.subject.upgrade()?;
        if pending.kind == EventKind::MulticastJoin
            && let Err(error) = subject.complete_join(pending.details.context)
        {
            (pending.kind, pending.status) = (EventKind::MulticastError, -error.errno());
        }
        let mut inner = subject.enter().ok()?;
        if inner.state == IdentifierState::Destroying {
            return None;
        }
        // A refused queue pair flushes the requests that were posted on it; here, in a thread of the program.
        let refused =
            matches!(pending.kind, EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError);
        if refused || pending.kind == EventKind::Disconnected {
            inner.ended = true;
        }
        let to_error = inner.queue_pair.clone().filter(|_| refused);
        if pending.request.is_some() {
            inner.backlog += 1;
            if inner.synchronous {
                let own = EventChannel::new().inspect_err(|error| {
                    crate::log!(Warn, "a connection request is refused: {error}");
                });
                pending.request.as_ref()?.use_own_channel(own.ok()?);
            }
        }
        inner.reported += 1;
        drop(inner);
        if let Some(queue_pair) = to_error {
            queue_pair_to_error(&queue_pair);
        }
        let (identifier, listener) = match pending.request {
            Some(new) => (new, Some(subject)),
            None => (subject, None),
        };
        Some(Event {
            kind: pending.kind,
            status: pending.status,
            identifier,
            listener,
            parameters: pending.details.parameters,
            private_data: pending.details.private_data,
            datagram: pending.details.datagram,
            context: pending.details.context,
        })
    }

    fn use_own_channel(&self, own: Arc<EventChannel>) {
        let mut inner = self.lock();
        self.move_events(&inner, &own);
        inner.channel = own;
        inner.synchronous = true;
    }

    fn move_events(&self, inner: &Inner, to: &Arc<EventChannel>) {
        let mine = inner.channel.queue.withdraw(|pending| pending.subject.ptr_eq(&self.this));
        for pending in mine {
            if let Some(request) = &pending.request {
                request.lock().channel = to.clone();
            }
            to.queue.push(pending);
        }
    }

    /// Moves the identifier to another channel, or to one of its own (rdma_migrate_id(3)). Events that wait
    /// move along, in order. Waits until those that were fetched are acknowledged.
    pub fn migrate(&self, channel: Option<&Arc<EventChannel>>) -> Result<()> {
        self.born.check()?;
        let synchronous = channel.is_none();
        let channel = match channel {
            Some(channel) => channel.clone(),
            None => EventChannel::new()?,
        };
        let mut inner = self.lock();
        if !Arc::ptr_eq(&inner.channel, &channel) {
            self.move_events(&inner, &channel);
            inner.channel = channel;
        }
        inner.synchronous = synchronous;
        self.wait_acknowledged(inner);
        Ok(())
    }

    pub(super) fn acknowledge(&self) {
        if !self.born.is_here() {
            return;
        }
        self.lock().completed += 1;
        self.acknowledged.notify_all();
    }

    fn wait_acknowledged(&self, mut inner: MutexGuard<'_, Inner>) {
        let reported = inner.reported;
        while inner.completed < reported {
            inner = self.acknowledged.wait(inner).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Ends the identifier (rdma_destroy_id(3)): cancels what is under way, ends a connection, refuses
    /// requests that wait, withdraws events, and waits until those that were fetched are acknowledged. Its
    /// queue pair stays as it is. Again: no effect.
    pub fn destroy(&self) {
        self.release();
        if self.born.is_here() {
            self.wait_acknowledged(self.lock());
        }
    }

    fn release(&self) {
        if !self.born.is_here() {
            return;
        }
        let mut inner = self.lock();
        if inner.state == IdentifierState::Destroying {
            return;
        }
        inner.state = IdentifierState::Destroying;
        let events = inner.channel.queue.withdraw(|pending| pending.subject.ptr_eq(&self.this));
        let held = (
            std::mem::take(&mut inner.memberships),
            std::mem::take(&mut inner.listeners),
            std::mem::take(&mut inner.reservations),
            inner.incoming.take(),
            inner.connection.take(),
            inner.queue_pair.take(),
        );
        drop(inner);
        // Without the lock: the transport may call back while it lets go.
        drop(held);
        drop(events);
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        if self.born.is_here() {
            self.release();
            return;
        }
        // The parent's transport holds objects that are not ours to close.
        let inner = self.inner.get_mut().unwrap_or_else(|e| e.into_inner());
        std::mem::forget((
            std::mem::take(&mut inner.memberships),
            std::mem::take(&mut inner.listeners),
            std::mem::take(&mut inner.reservations),
            inner.incoming.take(),
            inner.connection.take(),
            inner.queue_pair.take(),
        ));
    }
}

pub(super) fn queue_pair_to_error(queue_pair: &QueuePair) {
    // In a call that waits for events, too.
    let _whole = CancellationGuard::new();
    queue_pair.to_error();
}
