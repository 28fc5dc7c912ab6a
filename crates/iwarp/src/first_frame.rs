//! The initiator's first frame. Until it has come, a responder that has answered may not send, and its
//! program is not told that the connection stands. A peer that asks and then says nothing would hold a queue
//! pair, and memory, for ever: so this has a time limit.

use crate::endpoint::Endpoint;
use crate::socket::Socket;
use crate::startup::REQUEST_TIMEOUT;
use adverb_core::error::Result;
use adverb_core::reactor::{Readiness, Source, Timer};
use std::sync::{Arc, Weak};

struct FirstFrame {
    endpoint: Weak<Endpoint>,
    /// Says which connection of the queue pair is meant.
    socket: Weak<Socket>,
}

/// Begins to wait for the first frame of the connection over `socket`. The timer is cancelled when it has
/// come.
pub(crate) fn expect(endpoint: &Arc<Endpoint>, socket: &Arc<Socket>) -> Result<Timer> {
    let (endpoint_, socket) = (Arc::downgrade(endpoint), Arc::downgrade(socket));
    let waiting = Arc::new(FirstFrame { endpoint: endpoint_, socket });
    endpoint.queues.engine.reactor.set_timer(REQUEST_TIMEOUT, waiting)
}

impl Source for FirstFrame {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let (Some(endpoint), Some(socket)) = (self.endpoint.upgrade(), self.socket.upgrade()) {
            endpoint.no_first_frame(&socket);
        }
    }
}
