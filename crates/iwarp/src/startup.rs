//! MPA start-up on a fresh TCP connection, by the background thread: one request, one reply, bounded in time.

use crate::backlog::Backlog;
use crate::endpoint::{Endpoint, Start};
use crate::impaired::wait_of_startup;
use crate::lock;
use crate::manager::{WaitingRequest, depths_of};
use crate::socket::{Socket, name, would_block};
use adverb_core::clock;
use adverb_core::cm::{
    ConnectionEvent, ConnectionParameters, ConnectionSink, IncomingConnection, ListenSink,
};
use adverb_core::error::{Error, Result};
use adverb_core::log;
use adverb_core::reactor::{READABLE, Reactor, Readiness, Source, Timer, Token, WRITABLE};
use adverb_proto::iwarp::mpa::{Config, Initiator, MAX_START_LEN, Reply, Request, Responder, StartError};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long a peer may take to answer, TCP's handshake included (siw waits as long for a reply).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often TCP may refuse the connection before the program is told: after pauses of 5, 10, 20, 40 and 80
/// ms.
const MOST_REFUSALS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// How long an accepted connection may take to send its request (RFC5044-7.1.2-11, and siw's figure). Also
/// how long a peer that has its answer may take to send its first frame.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket in start-up, as the background thread watches it.
struct WatchedSocket {
    socket: Arc<Socket>,
    token: Option<Token>,
    timer: Option<Timer>,
}

impl WatchedSocket {
    fn begin(
        socket: Arc<Socket>,
        interest: Readiness,
        timeout: Duration,
        reactor: &'static Reactor,
        source: Arc<dyn Source>,
        place: &Mutex<Option<Self>>,
    ) -> Result<()> {
        let fd = socket.fd();
        let mut guard = lock(place);
        // The lock is held over the registration, so that the first event finds everything in place.
        let token = reactor.add(fd, interest, source.clone())?;
        let timer = reactor.set_timer(timeout, source).ok();
        *guard = Some(Self { socket, token: Some(token), timer });
        Ok(())
    }

    /// Takes the socket back from the background thread.
    fn end(self, reactor: &'static Reactor) -> Arc<Socket> {
        if let Some(token) = self.token {
            reactor.remove(token, self.socket.fd());
        }
        if let Some(timer) = self.timer {
            reactor.cancel_timer(timer);
        }
        self.socket
    }
}

/// The initiator's side: connects, asks, and waits for the answer.
pub(crate) struct Connecting {
    this: Weak<Connecting>,
    endpoint: Arc<Endpoint>,
    destination: SocketAddr,
    initiator: Initiator,
    depths: ConnectionParameters,
    sink: Arc<dyn ConnectionSink>,
    reactor: &'static Reactor,
    watched: Mutex<Option<WatchedSocket>>,
    /// The program has given up, perhaps at the instant at which the connection came to stand.
    given_up: AtomicBool,
    /// The program has given up, and also wants to hear nothing more.
    silent: AtomicBool,
    /// How often TCP has refused the connection.
    refusals: AtomicU32,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The wire keeps the request until then, in nanoseconds of the device's clock.
    kept_until: Option<u64>,
    asked: bool,
    received: Vec<u8>,
}

impl Connecting {
    /// Starts; the outcome comes to `sink`.
    pub(crate) fn start(
        socket: Socket,
        destination: SocketAddr,
        endpoint: Arc<Endpoint>,
        config: &Config,
        depths: ConnectionParameters,
        private_data: &[u8],
        sink: Arc<dyn ConnectionSink>,
    ) -> Result<Arc<Self>> {
        let initiator = Initiator::new(config, private_data, Duration::ZERO, CONNECT_TIMEOUT)
            .map_err(|error| Error::invalid(error.to_string()))?;
        let reactor = &endpoint.queues.engine.reactor;
        let failed = socket.connect(&destination).err();
        let this = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            endpoint,
            destination,
            initiator,
            depths,
            sink,
            reactor,
            watched: Mutex::new(None),
            given_up: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            progress: Mutex::default(),
        });
        this.clone().tried(Arc::new(socket), failed)?;
        Ok(this)
    }

    /// TCP has been asked to connect. An error that it returns at once is treated as one that comes later.
    fn tried(self: Arc<Self>, socket: Arc<Socket>, failed: Option<io::Error>) -> Result<()> {
        match failed {
            None => {
                let (reactor, this) = (self.reactor, self.clone());
                WatchedSocket::begin(socket, WRITABLE, CONNECT_TIMEOUT, reactor, this, &self.watched)?;
                if self.silent.load(Ordering::SeqCst) {
                    self.cancel();
                } else if self.given_up.load(Ordering::SeqCst) {
                    self.abandon();
                }
            }
            Some(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => self.refused(socket, &error),
            Some(error) => self.sink.event(event_of(&error)),
        }
        Ok(())
    }

    /// No socket listens at the destination. Asks again some times before the program is told. Drivers need
    /// milliseconds to connect, so in some programs (perftest) a server listens for the next connection only
    /// after it has told the client to connect.
    fn refused(self: Arc<Self>, socket: Arc<Socket>, error: &io::Error) {
        let refusals = self.refusals.fetch_add(1, Ordering::Relaxed);
        let (reactor, sink, destination) = (self.reactor, self.sink.clone(), self.destination);
        let pause = FIRST_PAUSE * (1 << refusals.min(MOST_REFUSALS));
        let retry = Arc::new(Retry { connecting: self, socket });
        if refusals + 1 >= MOST_REFUSALS || reactor.set_timer(pause, retry).is_err() {
            log!(
                Warn,
                "nobody listens at {destination} for iWARP: a server on another device, such as roce0, is not reached from iwarp0 (ADVERB_DEVICE names \
                 the device, on both sides)"
            );
            sink.event(event_of(error));
        }
    }

    /// Gives up because the program disconnects; unless the connection comes to stand at this instant, it
    /// failed.
    pub(crate) fn abandon(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.fail(ConnectionEvent::Failed { status: -libc::ECONNABORTED });
    }

    /// Gives up, without a word.
    pub(crate) fn cancel(&self) {
        self.silent.store(true, Ordering::SeqCst);
        self.given_up.store(true, Ordering::SeqCst);
        if let Some(watched) = lock(&self.watched).take() {
            watched.end(self.reactor);
        }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        lock(&self.watched).as_ref().and_then(|watched| watched.socket.local())
    }

    fn fail(&self, event: ConnectionEvent) {
        let Some(watched) = lock(&self.watched).take() else { return };
        watched.end(self.reactor);
        log!(
            Info,
            "queue pair {:#x}: no connection to {}: {}",
            self.endpoint.queues.number,
            self.destination,
            event.failure()
        );
        self.sink.event(event);
    }

    /// Whether the wire keeps the request.
    fn is_kept(&self, progress: &mut Progress) -> bool {
        let now = clock::device();
        let until = *progress.kept_until.get_or_insert_with(|| {
            let wait = wait_of_startup(self.local(), self.destination.ip(), self.initiator.request().len());
            if !wait.is_zero()
                && wait != Duration::MAX
                && let Some(connecting) = self.this.upgrade()
            {
                let _ = self.reactor.set_timer(wait, Arc::new(AskLater(connecting)));
            }
            now.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
        });
        now < until
    }

    fn step(&self) -> std::result::Result<Option<(Start, Arc<Socket>)>, Step> {
        let Some((socket, token)) =
            lock(&self.watched).as_ref().map(|watched| (watched.socket.clone(), watched.token))
        else {
            return Ok(None);
        };
        let mut progress = lock(&self.progress);
        if !progress.asked {
            if let Some(error) = socket.take_error() {
                return Err(Step::System(error));
            }
            // RFC5044-5.1-2
            let _ = socket.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            if !self.is_kept(&mut progress) {
                socket.send_all(self.initiator.request()).map_err(Step::System)?;
                progress.asked = true;
            }
            if let Some(token) = token {
                let _ = self.reactor.modify(token, socket.fd(), READABLE);
            }
            return Ok(None);
        }
        let mut buffer = [0; MAX_START_LEN];
        match socket.receive_into(&mut buffer) {
            Ok(0) => return Err(Step::Start(StartError::Closed)),
            Ok(count) => progress.received.extend_from_slice(&buffer[..count]),
            Err(error) if would_block(&error) => return Ok(None),
            Err(error) => return Err(Step::System(error)),
        }
        match self.initiator.receive(&progress.received).map_err(Step::Start)? {
            Reply::Need(_) => Ok(None),
            // RFC5044-7.1.2-7
            Reply::Rejected { private_data, .. } => Err(Step::Rejected(private_data.to_vec())),
            Reply::Accepted { parameters, peer, private_data, consumed } => {
                let start = Start {
                    socket: socket.clone(),
                    parameters,
                    early: progress.received[consumed..].to_vec(),
                    depths: self.depths,
                    sink: self.sink.clone(),
                    peer: depths_of(peer, parameters.ird, parameters.ord),
                    private_data: private_data.to_vec(),
                    place: self.endpoint.host.expect(&self.endpoint, &socket, false),
                };
                Ok(Some((start, socket)))
            }
        }
    }
}

enum Step {
    System(io::Error),
    Start(StartError),
    Rejected(Vec<u8>),
}

impl Source for Connecting {
    fn ready(self: Arc<Self>, _: Readiness) {
        match self.step() {
            Ok(None) => {}
            Ok(Some((start, socket))) => {
                let Some(watched) = lock(&self.watched).take() else { return };
                watched.end(self.reactor);
                if let Err(error) = self.endpoint.start(start) {
                    log!(Warn, "connecting to {}: {error}", self.destination);
                    drop(socket);
                    self.sink.event(ConnectionEvent::Failed { status: -error.errno() });
                } else if self.given_up.load(Ordering::SeqCst) {
                    self.endpoint.disconnect();
                }
            }
            Err(Step::System(error)) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
                let Some(watched) = lock(&self.watched).take() else { return };
                let socket = watched.end(self.reactor);
                self.refused(socket, &error);
            }
            Err(Step::System(error)) => self.fail(event_of(&error)),
            Err(Step::Rejected(private_data)) => {
                let status = -libc::ECONNREFUSED;
                self.fail(ConnectionEvent::Rejected { nobody_listens: false, status, private_data });
            }
            Err(Step::Start(error)) => {
                log!(Warn, "connecting to {}: {error}", self.destination);
                // RFC5044-7.1.2-6, RFC6581-9.1-4, RFC6581-9.2-6
                if let (Some(frame), Some(watched)) = (error.terminate_frame(), &*lock(&self.watched)) {
                    let _ = watched.socket.send_all(&frame);
                }
                self.fail(match error {
                    StartError::Closed => {
                        let (status, private_data) = (-libc::ECONNRESET, Vec::new());
                        ConnectionEvent::Rejected { nobody_listens: false, status, private_data }
                    }
                    _ => ConnectionEvent::Failed { status: -libc::EPROTO },
                });
            }
        }
    }

    fn timeout(self: Arc<Self>) {
        self.fail(ConnectionEvent::Unreachable { status: -libc::ETIMEDOUT });
    }
}

/// The wire has kept the request.
struct AskLater(Arc<Connecting>);

impl Source for AskLater {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.clone().ready(WRITABLE);
    }
}

/// Asks TCP once more after a pause.
struct Retry {
    connecting: Arc<Connecting>,
    socket: Arc<Socket>,
}

impl Source for Retry {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let connecting = &self.connecting;
        if connecting.given_up.load(Ordering::SeqCst) {
            if !connecting.silent.load(Ordering::SeqCst) {
                connecting.sink.event(ConnectionEvent::Failed { status: -libc::ECONNABORTED });
            }
            return;
        }
        let mut failed = self.socket.connect(&connecting.destination).err();
        if failed.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::ECONNABORTED)) {
            // The kernel's last word about the attempt before; the next call begins a new one.
            failed = self.socket.connect(&connecting.destination).err();
        }
        if let Err(error) = connecting.clone().tried(self.socket.clone(), failed) {
            connecting.sink.event(ConnectionEvent::Failed { status: -error.errno() });
        }
    }
}

/// The event by which the kernel's connection manager reports an error of TCP.
fn event_of(error: &io::Error) -> ConnectionEvent {
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    match code {
        libc::ECONNREFUSED | libc::ECONNRESET => {
            let nobody_listens = code == libc::ECONNREFUSED;
            ConnectionEvent::Rejected { nobody_listens, status: -code, private_data: Vec::new() }
        }
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            ConnectionEvent::Unreachable { status: -code }
        }
        _ => ConnectionEvent::Failed { status: -code },
    }
}

/// The responder's side until the program is asked: reads the request.
pub(crate) struct Greeting {
    responder: Responder,
    sink: Arc<dyn ListenSink>,
    reactor: &'static Reactor,
    watched: Mutex<Option<WatchedSocket>>,
    received: Mutex<Vec<u8>>,
    backlog: Arc<Backlog>,
}

impl Greeting {
    pub(crate) fn start(
        socket: Socket,
        sink: Arc<dyn ListenSink>,
        reactor: &'static Reactor,
        backlog: Arc<Backlog>,
    ) -> Result<()> {
        let Some(peer) = socket.peer() else { return Ok(()) };
        let _ = socket.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        let this = Arc::new(Self {
            responder: Responder::new(Duration::ZERO, REQUEST_TIMEOUT),
            sink,
            reactor,
            watched: Mutex::new(None),
            received: Mutex::default(),
            backlog,
        });
        WatchedSocket::begin(
            Arc::new(socket),
            READABLE,
            REQUEST_TIMEOUT,
            reactor,
            this.clone(),
            &this.watched,
        )?;
        this.backlog.add_silent(peer.ip(), &this);
        Ok(())
    }

    /// Ends a connection that has sent no request, since another one needs its place.
    pub(crate) fn give_way(&self) {
        if let Some(socket) = self.end() {
            log!(Info, "a connection from {} sent no request and gives way", name(socket.peer()));
        }
    }

    fn end(&self) -> Option<Arc<Socket>> {
        let watched = lock(&self.watched).take()?;
        Some(watched.end(self.reactor))
    }
}

impl Source for Greeting {
    fn ready(self: Arc<Self>, _: Readiness) {
        let Some(socket) = lock(&self.watched).as_ref().map(|watched| watched.socket.clone()) else { return };
        let mut received = lock(&self.received);
        let mut buffer = [0; MAX_START_LEN];
        match socket.receive_into(&mut buffer) {
            Ok(0) => return drop(self.end()),
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if would_block(&error) => return,
            Err(_) => return drop(self.end()),
        }
        let incoming = match self.responder.receive(&received) {
            Ok(Request::Need(_)) => return,
            Err(error) => {
                // RFC5044-7.1.2-3, RFC5044-8-4: a malformed request is not answered.
                log!(Warn, "connection from {}: {error}", name(socket.peer()));
                return drop(self.end());
            }
            Ok(Request::Complete { offer, private_data, consumed }) => WaitingRequest::new(
                socket.clone(),
                offer,
                private_data.to_vec(),
                received[consumed..].to_vec(),
                self.backlog.place(),
            ),
        };
        drop(received);
        if self.end().is_some()
            && let Some(incoming) = incoming
        {
            if self.backlog.is_full() {
                log!(
                    Warn,
                    "{} refuses a connection from {}: too many wait",
                    incoming.local(),
                    incoming.peer()
                );
                // Dropped without an answer of the program, it is answered with a refusal.
                return drop(incoming);
            }
            self.sink.request(Box::new(incoming));
        }
    }

    fn timeout(self: Arc<Self>) {
        log!(Warn, "a connection sent no request within {REQUEST_TIMEOUT:?}");
        self.end();
    }
}
