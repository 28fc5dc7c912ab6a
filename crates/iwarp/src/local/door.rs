//! Doors: abstract Unix sockets by which the other ends of connections find the process that has accepted
//! them.
//!
//! A door has the name of the address that the other end has connected to. Where another process holds that
//! name, perhaps another user's, a connection has a door of its own, with both addresses in its name. Only
//! processes of our user are let in.

use super::question::{self, QuestionMessage};
use super::{Ends, LocalHost, RemoteEnd};
use crate::lock;
use adverb_core::engine;
use adverb_core::inlet::Inlet;
use adverb_core::reactor::{FAILED, PEER_CLOSED, READABLE, Readiness, Source, Token};
use adverb_core::seqpacket::{self, Connection, Listener};
use adverb_samehost::Side;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The name of the door of an address.
pub(super) fn name(address: SocketAddr) -> Vec<u8> {
    seqpacket::name(&format!("iwarp/{}/{}", address.ip(), address.port()))
}

/// The name of a door for one connection.
pub(super) fn name_of_one(Ends { local, peer }: Ends) -> Vec<u8> {
    seqpacket::name(&format!("iwarp/{}/{}/{}/{}", local.ip(), local.port(), peer.ip(), peer.port()))
}

/// A door: an abstract Unix socket by which the other ends of connections find this process. It closes when
/// this is dropped.
pub(super) struct Door {
    // Ends before the descriptor is closed.
    inlet: Arc<Inlet>,
    _listener: Arc<Listener>,
}

impl Door {
    /// Opens the door. None if another process holds the name, or there is no descriptor: then the connection
    /// goes by TCP.
    pub(super) fn open(host: &Arc<LocalHost>, name: &[u8]) -> Option<Arc<Self>> {
        let listener = Arc::new(Listener::bind_for_descriptors(name).ok()?);
        let host = Arc::downgrade(host);
        // The background thread may be accepting while the door closes. So it keeps the listener until it is
        // done, and no other descriptor gets that number before.
        let open = listener.clone();
        let let_in = move |connection| {
            let _held = &open;
            Visitor::let_in(&host, connection);
        };
        let inlet = Inlet::serve(listener.fd(), let_in).ok()?;
        Some(Arc::new(Self { inlet, _listener: listener }))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.inlet.end();
    }
}

/// A process that has come by a door.
struct Visitor {
    host: Arc<LocalHost>,
    connection: Mutex<Option<Arc<Connection>>>,
    token: OnceLock<Token>,
}

impl Visitor {
    /// Another user's is turned away: its connection closes.
    fn let_in(host: &Weak<LocalHost>, connection: Connection) {
        let Some(host) = host.upgrade().filter(|_| connection.may_share()) else { return };
        let fd = connection.fd();
        let connection = Mutex::new(Some(Arc::new(connection)));
        let visitor = Arc::new(Self { host, connection, token: OnceLock::new() });
        let added = engine::engine()
            .and_then(|engine| engine.reactor.add(fd, READABLE | PEER_CLOSED, visitor.clone()));
        if let Ok(token) = added {
            let _ = visitor.token.set(token);
        }
    }

    fn end(&self, connection: &Arc<Connection>) {
        if let (Some(token), Ok(engine)) = (self.token.get(), engine::engine()) {
            engine.reactor.remove(*token, connection.fd());
        }
        self.host.hub.hung_up(&self.host, connection);
        *lock(&self.connection) = None;
    }

    /// Answers a visitor that asks for the end of a connection.
    fn asked(&self, asked: QuestionMessage, connection: &Connection) {
        let QuestionMessage { ends, end } = asked;
        let peer = RemoteEnd { process: connection.process(), end };
        let own = self.host.note(ends, peer);
        let _ = connection.send(&[&question::answer(own)]);
        self.host.join(ends, peer);
    }
}

impl Source for Visitor {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        let Some(connection) = lock(&self.connection).clone() else { return };
        let mut buffer = [0; 256];
        // Bounded: other sources get their turn, and the reactor reports the rest again.
        for _ in 0..64 {
            match connection.receive_with(&mut buffer) {
                Ok(([], _)) => return self.end(&connection),
                // It may be another user's than when it connected.
                Ok((bytes, along)) if along.is_same_user => {
                    if let Some(message) = LocalHost::hear(bytes) {
                        let (host, descriptors) = (&self.host, along.descriptors);
                        host.hub.handshakes.message(host, message, descriptors, true, &connection);
                    } else if let Some(asked) = question::parse(bytes) {
                        self.asked(asked, &connection);
                    }
                }
                Ok(_) => return self.end(&connection),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if readiness & (PEER_CLOSED | FAILED) != 0 {
                        self.end(&connection);
                    }
                    return;
                }
                Err(_) => return self.end(&connection),
            }
        }
    }
}
