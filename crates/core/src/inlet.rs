//! Listening sockets by which other processes reach this one.

use crate::engine;
use crate::error::Result;
use crate::log;
use crate::reactor::{READABLE, Readiness, Source, Token};
use crate::seqpacket::{self, Connection};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long no connection is let in after the system has had no descriptor or memory for another one.
const REST: Duration = Duration::from_millis(100);

/// A [listening socket](seqpacket::Listener), while the background thread serves it. Thread-safe.
pub struct Inlet {
    take: Box<dyn Fn(Connection) + Send + Sync>,
    listener: RawFd,
    /// The registration with the background thread. None once the listener has ended: the number may be
    /// another file's by then.
    token: Mutex<Option<Token>>,
}

impl Inlet {
    /// Gives each connection to `take`, which the background thread calls.
    ///
    /// # Errors
    /// As of epoll_ctl(2), and where there is no engine.
    pub fn serve(listener: RawFd, take: impl Fn(Connection) + Send + Sync + 'static) -> Result<Arc<Self>> {
        let inlet = Arc::new(Self { take: Box::new(take), listener, token: Mutex::default() });
        let mut token = inlet.token();
        *token = Some(engine::engine()?.reactor.add(listener, READABLE, inlet.clone())?);
        drop(token);
        Ok(inlet)
    }

    /// Ends it; call it before closing the descriptor.
    pub fn end(&self) {
        if let (Some(token), Ok(engine)) = (self.token().take(), engine::engine()) {
            engine.reactor.remove(token, self.listener);
        }
    }

    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets no connection in for [`REST`]. Connections that wait stay in the queue of the socket, and the
    /// reactor would report them without end.
    fn rest(self: Arc<Self>) {
        let (Some(token), Ok(engine)) = (*self.token(), engine::engine()) else { return };
        if engine.reactor.set_timer(REST, self.clone()).is_ok() {
            engine.reactor.suspend(token, self.listener);
        }
    }
}

impl Source for Inlet {
    fn ready(self: Arc<Self>, _: Readiness) {
        // Bounded: other connections that wait come with the next turn of the background thread.
        for _ in 0..64 {
            match seqpacket::accept(self.listener) {
                Ok(connection) => (self.take)(connection),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    // The closing thread has said why.
                    Some(libc::ENOBUFS) => return self.rest(),
                    _ => {
                        log!(Warn, "another process on this host cannot be let in: {error}");
                        return self.rest();
                    }
                },
            }
        }
    }

    fn timeout(self: Arc<Self>) {
        let token = self.token();
        if let (Some(token), Ok(engine)) = (*token, engine::engine()) {
            let _ = engine.reactor.resume(token, self.listener, READABLE);
        }
    }
}
