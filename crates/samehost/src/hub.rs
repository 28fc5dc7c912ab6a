//! All that a transport has in common with other processes of this host.

use crate::channel::{Channel, Channels};
use crate::copies::Copies;
use crate::handshake::{Handshakes, Side};
use crate::landmark::Landmark;
use crate::neighbour::{Life, NeighbourLink};
use crate::parts::Parts;
use crate::sharing::Sharing;
use adverb_core::log;
use adverb_core::seqpacket::{Connection, Descriptors};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};

/// All that a transport has in common with other processes of this host: handshakes, channels, and memory
/// that is shared. Thread-safe.
pub struct Hub<S: Side> {
    /// Which processes this one has met.
    pub handshakes: Handshakes<S>,
    /// The channels to other processes.
    pub channels: Channels<S::Traffic>,
    /// The channel to this process itself, if there could be one.
    own: OnceLock<Option<Arc<Channel<S::Traffic>>>>,
    /// The memory and queue pairs of this process that the others may use.
    pub sharing: Arc<Sharing>,
    /// Long operations in the memory of other processes.
    pub copies: Arc<Copies>,
}

impl<S: Side> Default for Hub<S> {
    fn default() -> Self {
        Self {
            handshakes: Handshakes::default(),
            channels: Channels::default(),
            own: OnceLock::new(),
            sharing: Sharing::of_process(),
            copies: Arc::default(),
        }
    }
}

impl<S: Side> Hub<S> {
    /// The channel from this process to itself.
    pub fn to_oneself(&self, side: &Arc<S>) -> Option<Arc<Channel<S::Traffic>>> {
        let make = || {
            let made = Parts::to_oneself().and_then(|parts| Self::open_to_oneself(side, parts));
            let failed =
                |error: &io::Error| log!(Warn, "no memory for connections within this process: {error}");
            made.inspect_err(failed).ok().inspect(|channel| self.enter(side, channel))
        };
        self.own.get_or_init(make).clone()
    }

    /// A function of its own: its frame is large, and a thread of the program may have a small stack, on
    /// which that of [`Parts::to_oneself`] stands before.
    #[inline(never)]
    fn open_to_oneself(side: &Arc<S>, parts: Box<Parts>) -> io::Result<Arc<Channel<S::Traffic>>> {
        side.open(*parts).map_err(|error| io::Error::other(error.to_string()))
    }

    /// Polls look at a channel from now on, and memory is shared with its process.
    pub fn enter(&self, side: &Arc<S>, channel: &Arc<Channel<S::Traffic>>) {
        self.sharing.enter(NeighbourLink::this(&**channel));
        self.channels.enter(channel);
        channel.begin();
        // It may have ended before: the first thread that looks finds out a peer that breaks the rules at
        // once.
        if channel.neighbour.life() >= Life::Ended {
            side.forget(channel);
        }
    }

    /// A channel has ended. `before`: what is to be forgotten before it is forgotten that the processes have
    /// met; what it returns is held until all is.
    pub fn leave<G>(&self, channel: &Channel<S::Traffic>, before: impl FnOnce() -> G) {
        self.sharing.leave(channel);
        let _held = before();
        self.handshakes.forget(channel);
        // Last: a sender that sees that the channels have changed finds what else has.
        self.channels.leave(channel);
    }

    /// Another process tells of its memory by this connection.
    pub(crate) fn told(&self, connection: RawFd, descriptors: Descriptors, of: Landmark) {
        if let Some(channel) = self.channels.by_connection(connection) {
            (&*channel as &dyn NeighbourLink).told(descriptors, of);
        }
    }

    /// A connection by which another process came has hung up.
    pub fn hung_up(&self, side: &Arc<S>, connection: &Arc<Connection>) {
        self.handshakes.withdrawn(side, connection);
        if let Some(channel) = self.channels.by_connection(connection.fd()) {
            channel.end();
        }
    }
}
