//! Listening and accepting (listen(2), accept(2)). The background thread takes connections in, as the kernel
//! does for TCP: when a program accepts one, it stands.

use super::{Phase, Stream, StreamLink, StreamState};
use crate::options::{Flags, Options};
use crate::process::{Process, Socket};
use adverb_core::cancel::CancellationGuard;
use adverb_core::cm::{
    ConnectionParameters, Event, EventChannel, EventKind, Identifier, MAX_BACKLOG, MAXIMUM, Parameters,
    first_to_go,
};
use adverb_core::engine::engine;
use adverb_core::error::{Error, Result};
use adverb_core::event::EventQueue;
use adverb_core::reactor::{READABLE, Readiness, Source, Token};
use adverb_proto::rsocket::Connect;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Connections that are being made, of one socket, at least; more if its backlog is larger. They are not part
/// of the backlog, so that peers that begin a connection and then say nothing take nobody's place there.
const MOST_MAKING: usize = 64;

/// A connection that nobody has accepted.
type Making = (Arc<Identifier>, StreamLink);

/// What takes connections in for a socket that listens.
pub(super) struct Listener {
    channel: Arc<EventChannel>,
    /// The options of the listening socket now. A connection has the sizes that are set when the peer asks
    /// for it.
    options: Mutex<Options>,
    /// Connections that stand and that nobody has accepted; None when no more will come.
    ready: EventQueue<Option<Making>>,
    waiting: AtomicUsize,
    backlog: usize,
    /// Connections that do not stand yet, oldest first. `None` once the listener has ended.
    making: Mutex<Option<Vec<Making>>>,
    token: Mutex<Option<Token>>,
}

impl Stream {
    /// Listens. While `backlog` connections wait to be accepted, further ones are refused. Again: no effect.
    ///
    /// # Errors
    /// As [`Identifier::listen`]; EINVAL on a socket that is connected.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        match inner.phase {
            Phase::Idle => {}
            Phase::Listening => return Ok(()),
            _ => return Err(Error::invalid("a socket that connects cannot listen")),
        }
        let listener = Arc::new(Listener {
            channel: self.channel.clone(),
            options: Mutex::new(inner.options.clone()),
            ready: EventQueue::new()?,
            waiting: AtomicUsize::new(0),
            backlog: usize::try_from(backlog).unwrap_or(0).clamp(1, MAX_BACKLOG as usize),
            making: Mutex::new(Some(Vec::new())),
            token: Mutex::new(None),
        });
        self.identifier.listen(backlog)?;
        let token = engine()?.reactor.add(self.channel.descriptor(), READABLE, listener.clone())?;
        *listener.token.lock().unwrap_or_else(|e| e.into_inner()) = Some(token);
        inner.listener = Some(listener);
        inner.phase = Phase::Listening;
        Ok(())
    }

    /// Takes the oldest connection: the number of its socket, and the socket.
    ///
    /// # Errors
    /// EINVAL if the socket does not listen; EAGAIN; EINTR.
    pub fn accept(&self) -> Result<(i32, Arc<Stream>)> {
        let (listener, (identifier, link)) = self.blocking(0, |inner| match &inner.listener {
            Some(listener) => Ok(listener.take()?.map(|taken| (listener.clone(), taken))),
            None => Err(Error::invalid("the socket does not listen")),
        })?;
        let _whole = CancellationGuard::new();
        let stream = listener.socket(identifier, link)?;
        let number = stream.number();
        Process::get().insert(number, Socket::Stream(stream.clone()));
        Ok((number, stream))
    }
}

impl StreamState {
    /// The options have changed.
    pub(crate) fn tell_listener(&self) {
        if let Some(listener) = &self.listener {
            *listener.options.lock().unwrap_or_else(|e| e.into_inner()) = self.options.clone();
        }
    }

    /// Ends listening: connections that nobody has accepted end, too.
    pub(super) fn stop_listening(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let token = listener.token.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let (Some(token), Ok(engine)) = (token, engine()) {
            engine.reactor.remove(token, listener.channel.descriptor());
        }
        let making = listener.making().take();
        for (identifier, link) in making.into_iter().flatten() {
            link.end(&identifier);
        }
        while let Ok(Some((identifier, link))) = listener.take() {
            link.end(&identifier);
        }
    }
}

impl Listener {
    pub(super) fn descriptor(&self) -> i32 {
        self.ready.descriptor()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.ready(0).unwrap_or(true)
    }

    fn options(&self) -> Options {
        self.options.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn take(&self) -> Result<Option<Making>> {
        let Some(found) = self.ready.try_next()? else { return Ok(None) };
        if found.is_none() {
            // Other threads that wait, or that come later, get the error, too.
            self.ready.push(None);
            return Err(Error::new(libc::EIO, "the device has gone"));
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        Ok(found)
    }

    fn making(&self) -> MutexGuard<'_, Option<Vec<Making>>> {
        self.making.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn handle(&self, event: Event, making: &mut Vec<Making>) {
        let identifier = event.identifier.clone();
        let kind = event.kind;
        if kind == EventKind::ConnectRequest {
            if self.waiting.load(Ordering::Acquire) >= self.backlog {
                adverb_core::log!(Info, "a connection is refused: {} wait to be accepted", self.backlog);
            } else {
                self.make_room(making);
                match self.accept(&event) {
                    Ok(link) => return making.push((identifier, link)),
                    Err(error) => adverb_core::log!(Warn, "an rsocket refuses a connection: {error}"),
                }
            }
            // It may have gone already.
            let _ = identifier.reject(&[]);
            identifier.detach_queue_pair();
            return;
        }
        drop(event);
        if kind == EventKind::DeviceRemoval {
            return self.ready.push(None);
        }
        let Some(place) = making.iter().position(|(known, _)| Arc::ptr_eq(known, &identifier)) else {
            return;
        };
        match kind {
            EventKind::Established => {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                self.ready.push(Some(making.remove(place)));
            }
            EventKind::Rejected
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::Disconnected => {
                let (identifier, link) = making.remove(place);
                link.end(&identifier);
            }
            _ => {}
        }
    }

    /// Makes room for one more connection that is being made: if there are too many, the oldest of the peer
    /// that has the most ends.
    fn make_room(&self, making: &mut Vec<Making>) {
        if making.len() < self.backlog.max(MOST_MAKING) {
            return;
        }
        let peer_of = |(identifier, _): &Making| identifier.peer_address().map(|peer| peer.ip());
        // One whose peer is not known any more is ending anyway.
        let gone = making.iter().position(|one| peer_of(one).is_none());
        if let Some(gone) = gone.or_else(|| first_to_go(making.iter().filter_map(peer_of))) {
            let (identifier, link) = making.remove(gone);
            adverb_core::log!(Info, "a connection that did not come to stand gives way to another one");
            link.end(&identifier);
        }
    }

    /// Accepts a request.
    fn accept(&self, event: &Event) -> Result<StreamLink> {
        let peer = Connect::read(&event.private_data);
        let peer = peer.map_err(|bad| Error::new(libc::ENOTSUP, bad.to_string()))?;
        let mut link = StreamLink::new(&event.identifier, &self.options())?;
        let introduction = link.introduce().bytes();
        link.stream.meet(&peer);
        // As the peer wishes, as far as the device can.
        let connection = ConnectionParameters {
            responder_resources: MAXIMUM,
            initiator_depth: MAXIMUM,
            ..event.parameters
        };
        let parameters = Parameters { connection, private_data: &introduction, queue_pair: None };
        event.identifier.accept(Some(&parameters))?;
        Ok(link)
    }

    /// The socket of a connection that stands. It gets its number only now: librspreload of rdma-core 44
    /// takes it for granted that the number of a socket is greater than its own one, which it takes before;
    /// its select(2) confuses them otherwise.
    fn socket(&self, identifier: Arc<Identifier>, link: StreamLink) -> Result<Arc<Stream>> {
        let channel = EventChannel::new_above_all()?;
        identifier.migrate(Some(&channel))?;
        let (flags, options) = (Flags::new(0), self.options().inherited());
        Ok(Stream::make(channel, identifier, flags, options, Phase::Open, Some(link)))
    }
}

impl Source for Listener {
    fn ready(self: Arc<Self>, _: Readiness) {
        let mut making = self.making();
        // Otherwise the socket was closed at this instant.
        let Some(making) = &mut *making else { return };
        while let Ok(Some(event)) = self.channel.try_get() {
            self.handle(event, making);
        }
    }
}
