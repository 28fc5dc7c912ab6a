//! Listening sockets by which other processes reach this one.

use crate::lock;
use crate::seqpacket::{self, Connection};
use adverb_core::engine;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::reactor::{READABLE, Readiness, Source, Token};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long nobody is let in after the system has had no descriptor or memory for another connection.
const REST: Duration = Duration::from_millis(100);

/// The listening socket of a block, of the holder of the port, or of a service, while the background thread serves it.
pub(crate) struct Inlet {
    take: Box<dyn Fn(Connection) + Send + Sync>,
    listener: RawFd,
    /// None once it has ended: the descriptor may be somebody else's by then.
    token: Mutex<Option<Token>>,
}

impl Inlet {
    /// Gives each connection to `take`.
    pub(crate) fn serve(
        listener: RawFd,
        take: impl Fn(Connection) + Send + Sync + 'static,
    ) -> Result<Arc<Self>> {
        let inlet = Arc::new(Self { take: Box::new(take), listener, token: Mutex::default() });
        let mut token = lock(&inlet.token);
        *token = Some(engine::engine()?.reactor.add(listener, READABLE, inlet.clone())?);
        drop(token);
        Ok(inlet)
    }

    /// Ends it; call it before closing the descriptor.
    pub(crate) fn end(&self) {
        if let (Some(token), Ok(engine)) = (lock(&self.token).take(), engine::engine()) {
            engine.reactor.remove(token, self.listener);
        }
    }

    /// Those who wait stay in the queue of the socket, and would be reported without end.
    fn rest(self: Arc<Self>) {
        let (Some(token), Ok(engine)) = (*lock(&self.token), engine::engine()) else { return };
        if engine.reactor.set_timer(REST, self.clone()).is_ok() {
            engine.reactor.suspend(token, self.listener);
        }
    }
}

impl Source for Inlet {
    fn ready(self: Arc<Self>, _: Readiness) {
        loop {
            match seqpacket::accept(self.listener) {
                Ok(connection) => (self.take)(connection),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    _ => {
                        log!(Warn, "another process on this host cannot be let in: {error}");
                        return self.rest();
                    }
                },
            }
        }
    }

    fn timeout(self: Arc<Self>) {
        let token = lock(&self.token);
        if let (Some(token), Ok(engine)) = (*token, engine::engine()) {
            let _ = engine.reactor.resume(token, self.listener, READABLE);
        }
    }
}
