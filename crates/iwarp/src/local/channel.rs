//! What two processes of one host have in common: each carries out operations in the other's memory.

use super::Host;
use adverb_core::engine;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::seqpacket::Connection;
use adverb_samehost::{Acquainted, Life, Neighbour, Parts};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// See the module.
pub(crate) struct Channel {
    this: Weak<Channel>,
    host: Weak<Host>,
    /// The other process, or this one.
    pub(crate) neighbour: Neighbour,
    connection: Option<Arc<Connection>>,
}

impl Channel {
    /// By itself: whoever makes it may have little stack.
    #[inline(never)]
    pub(super) fn new(host: Arc<Host>, parts: Parts) -> Result<Arc<Self>> {
        // Messages go by TCP: nothing is put into the rings, and nobody is rung for.
        let Parts { process, producer, announcer, witness, reads, connection, .. } = parts;
        let (keys, of) = (&engine::engine()?.keys, (process, connection.is_none()));
        let neighbour = Neighbour::new(of, reads, (announcer, witness), producer.loans(), keys);
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            host: Arc::downgrade(&host),
            neighbour,
            connection,
        }))
    }

    /// The number of the other process.
    pub(crate) fn process(&self) -> libc::pid_t {
        self.neighbour.process()
    }

    /// Whether that is this process itself.
    pub(crate) fn is_to_oneself(&self) -> bool {
        self.connection.is_none()
    }

    /// The descriptor that hangs up, if there is one.
    pub(super) fn connection(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.fd())
    }

    /// The other process has gone, or cannot be trusted: its memory is not used any more. What TCP says of its connections counts.
    pub(super) fn end(&self) {
        let before = self.neighbour.comes_to(Life::Ended);
        if before >= Life::Ended {
            return;
        }
        if before == Life::Distrusted {
            log!(Warn, "process {} has broken the rules of the memory shared with it", self.process());
        }
        if let Some(connection) = &self.connection {
            connection.hang_up();
        }
        if let Some(host) = self.host.upgrade() {
            host.forget(self);
        }
        self.neighbour.comes_to(Life::Dead);
        self.neighbour.forget();
    }
}

impl Acquainted for Channel {
    fn neighbour(&self) -> &Neighbour {
        &self.neighbour
    }

    fn this(&self) -> Weak<dyn Acquainted> {
        self.this.clone()
    }

    fn send(&self, descriptors: &[RawFd]) -> io::Result<()> {
        let (Some(connection), Some(host)) = (&self.connection, self.host.upgrade()) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        host.meetings.tell(connection, descriptors)
    }

    /// The background thread finds that the connection has hung up, and ends the channel.
    fn break_off(&self) {
        if self.neighbour.comes_to(Life::Distrusted) == Life::Here
            && let Some(connection) = &self.connection
        {
            connection.hang_up();
        }
    }
}
