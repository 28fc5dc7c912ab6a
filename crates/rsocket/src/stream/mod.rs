//! Stream sockets.

mod accept;
mod close;
mod connect;
mod keepalive;
mod link;
mod mapping;
mod transfer;

use crate::options::{Flags, Options};
use crate::process::Process;
use crate::wait::{CAN_READ, CAN_WRITE, Waitable, Waiters, blocking, pollfd};
use accept::Listener;
use adverb_core::cancel::CancellationGuard;
use adverb_core::cm::{EventChannel, Identifier, PortSpace};
use adverb_core::cq::SleepGuard;
use adverb_core::error::{Error, Result};
use keepalive::Keepalive;
use link::StreamLink;
pub(crate) use link::queue_pair;
use mapping::MappedRegion;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A stream socket. Thread-safe: nothing is locked while a call waits.
pub struct Stream {
    /// The channel of events, whose descriptor is the socket's number.
    channel: Arc<EventChannel>,
    identifier: Arc<Identifier>,
    pub(crate) flags: Flags,
    waiters: Waiters,
    keepalive: Keepalive,
    inner: Mutex<StreamState>,
    this: Weak<Stream>,
}

/// What the lock of a stream guards.
pub(crate) struct StreamState {
    pub(crate) phase: Phase,
    pub(crate) options: Options,
    /// From the attempt to connect on.
    pub(crate) link: Option<StreamLink>,
    listener: Option<Arc<Listener>>,
    mapped: Vec<MappedRegion>,
    /// For SO_ERROR.
    pub(crate) error: i32,
    /// Not all that has come has been taken in.
    has_more: bool,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Fresh, or bound.
    Idle,
    /// Takes connections.
    Listening,
    /// Waits for the peer's answer.
    Connecting,
    /// There was no connection to be had.
    Refused,
    /// Connected.
    Open,
    /// Connected no more, in order.
    Disconnected,
    /// Connected no more, because something failed.
    Failed,
}

impl Stream {
    /// A new socket.
    pub(crate) fn new(domain: i32, flags: i32) -> Result<Arc<Self>> {
        // As in `Listener::socket`.
        let channel = EventChannel::new_above_all()?;
        let identifier = Identifier::new(Some(&channel), PortSpace::Tcp)?;
        if adverb_core::device::Device::all()?.is_empty() {
            return Err(Error::new(libc::ENODEV, "there is no RDMA device"));
        }
        let options = Options::new(domain, &Process::get().configuration);
        Ok(Self::make(channel, identifier, Flags::new(flags), options, Phase::Idle, None))
    }

    fn make(
        channel: Arc<EventChannel>,
        identifier: Arc<Identifier>,
        flags: Flags,
        options: Options,
        phase: Phase,
        link: Option<StreamLink>,
    ) -> Arc<Self> {
        let (listener, mapped) = (None, Vec::new());
        let inner = StreamState { phase, options, link, listener, mapped, error: 0, has_more: false };
        Arc::new_cyclic(|this| Self {
            channel,
            identifier,
            flags,
            waiters: Waiters::default(),
            keepalive: Keepalive::default(),
            inner: Mutex::new(inner),
            this: this.clone(),
        })
    }

    /// The number by which the program knows it.
    pub(crate) fn number(&self) -> i32 {
        self.channel.descriptor()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn identifier(&self) -> &Arc<Identifier> {
        &self.identifier
    }

    /// Binds to an address (bind(2)).
    ///
    /// # Errors
    /// As [`Identifier::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        let _whole = CancellationGuard::new();
        self.identifier.bind(address)
    }

    /// The socket's own address (getsockname(2)).
    pub fn local_address(&self) -> SocketAddr {
        let _whole = CancellationGuard::new();
        let domain = self.lock().options.domain;
        self.identifier.local_address().unwrap_or_else(|| nowhere(domain))
    }

    /// The peer's address (getpeername(2)). ENOTCONN without a peer.
    pub fn peer_address(&self) -> Result<SocketAddr> {
        let _whole = CancellationGuard::new();
        self.identifier.peer_address().ok_or_else(not_connected)
    }

    /// Tries `attempt` until it says something; sleeps in between, unless the socket or the call is not to
    /// block: EAGAIN.
    fn blocking<T>(
        &self,
        flags: i32,
        mut attempt: impl FnMut(&mut StreamState) -> Result<Option<T>>,
    ) -> Result<T> {
        let nonblocking = self.flags.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        blocking(self, nonblocking, || attempt(&mut self.lock()))
    }
}

fn not_connected() -> Error {
    Error::new(libc::ENOTCONN, "the socket is not connected")
}

/// The unspecified address of a family.
fn nowhere(domain: i32) -> SocketAddr {
    if domain == libc::AF_INET6 {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

impl Waitable for &Stream {
    fn look(&self, events: i16) -> i16 {
        Stream::look(self, events)
    }

    fn arm(&self) -> Option<SleepGuard> {
        Stream::arm(self)
    }

    fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        Stream::descriptors(self, list);
    }

    fn take_event(&self, ready: &[libc::pollfd]) {
        Stream::take_event(self, ready);
    }

    fn has_more(&self) -> bool {
        Stream::has_more(self)
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl Stream {
    pub(crate) fn has_more(&self) -> bool {
        self.lock().has_more
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub(crate) fn look(&self, events: i16) -> i16 {
        let mut inner = self.lock();
        if inner.phase == Phase::Connecting {
            self.progress_connect(&mut inner);
        }
        let asked = |wanted: i16, is_so: bool| if is_so { events & wanted } else { 0 };
        match inner.phase {
            Phase::Idle | Phase::Connecting => 0,
            Phase::Listening => asked(CAN_READ, inner.listener.as_ref().is_some_and(|l| l.is_ready())),
            Phase::Refused => events & (CAN_READ | CAN_WRITE | libc::POLLRDHUP) | libc::POLLERR,
            Phase::Open | Phase::Disconnected | Phase::Failed => {
                inner.process();
                let Some(link) = &inner.link else { return libc::POLLERR };
                let stream = &link.stream;
                let ended = match inner.phase {
                    Phase::Failed => libc::POLLERR,
                    // The peer's end of stream stands behind its data. A program that waits for data reads
                    // the data first.
                    Phase::Disconnected if events & CAN_READ == 0 || stream.unread() == 0 => libc::POLLHUP,
                    _ => 0,
                };
                asked(CAN_READ, stream.unread() > 0 || !stream.reads())
                    | asked(libc::POLLRDHUP, !stream.reads())
                    | asked(CAN_WRITE, stream.can_send())
                    | ended
            }
        }
    }

    pub(crate) fn arm(&self) -> Option<SleepGuard> {
        // In a child of fork nothing comes any more, and looking says so.
        self.lock().link.as_ref().and_then(|link| link.queue.begin_sleep().ok())
    }

    pub(crate) fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        let inner = self.lock();
        match (&inner.listener, &inner.link, inner.phase) {
            (Some(listener), ..) => list.push(pollfd(listener.descriptor())),
            (None, Some(link), Phase::Open | Phase::Disconnected | Phase::Failed) => {
                list.push(pollfd(link.events.descriptor()));
                link.queue.descriptors(list);
            }
            _ => list.push(pollfd(self.channel.descriptor())),
        }
    }

    pub(crate) fn take_event(&self, ready: &[libc::pollfd]) {
        if let Some(link) = &self.lock().link
            && ready.iter().any(|entry| entry.revents != 0 && entry.fd == link.events.descriptor())
        {
            // The descriptor does not block: there may be none, as the event may have been that of the other
            // channel.
            let _ = link.events.wait();
        }
    }
}
