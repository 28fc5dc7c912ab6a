//! The end of a connection: our direction is closed, and bytes that the peer still sends are read and thrown
//! away until it closes too. To close at once would reset the connection and could take our last message, a
//! Terminate, from the peer (RFC5040-6.2.1-3).

use crate::socket::{Socket, would_block};
use adverb_core::reactor::{READABLE, Reactor, Readiness, Source, Timer, Token};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a peer may take to close its direction.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

struct Linger {
    reactor: &'static Reactor,
    state: Mutex<Option<State>>,
}

struct State {
    socket: Arc<Socket>,
    token: Option<Token>,
    timer: Option<Timer>,
}

/// Closes our direction of `socket` and, in the background, the rest.
pub(crate) fn start(socket: Arc<Socket>, reactor: &'static Reactor) {
    socket.shut_down();
    let fd = socket.fd();
    let linger =
        Arc::new(Linger { reactor, state: Mutex::new(Some(State { socket, token: None, timer: None })) });
    let mut state = linger.lock();
    let token = reactor.add(fd, READABLE, linger.clone());
    let timer = reactor.set_timer(LINGER_TIMEOUT, linger.clone());
    // Without a timer, nothing would bound the wait.
    let is_bounded = timer.is_ok();
    if let Some(state) = &mut *state {
        (state.token, state.timer) = (token.ok(), timer.ok());
    }
    drop(state);
    if !is_bounded {
        linger.end();
    }
}

impl Linger {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn end(&self) {
        let Some(state) = self.lock().take() else { return };
        if let Some(token) = state.token {
            self.reactor.remove(token, state.socket.fd());
        }
        if let Some(timer) = state.timer {
            self.reactor.cancel_timer(timer);
        }
    }
}

impl Source for Linger {
    fn ready(self: Arc<Self>, _: Readiness) {
        let Some(socket) = self.lock().as_ref().map(|state| state.socket.clone()) else { return };
        let mut waste = vec![0; 4096];
        // Bounded: a peer that keeps sending comes back through the background thread, until the timer ends
        // it.
        for _ in 0..16 {
            match socket.receive_into(&mut waste) {
                Ok(0) => return self.end(),
                Ok(_) => {}
                Err(error) if would_block(&error) => return,
                Err(_) => return self.end(),
            }
        }
    }

    fn timeout(self: Arc<Self>) {
        self.end();
    }
}
