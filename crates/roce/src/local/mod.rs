//! The same host: packets between two processes of one user go through memory that they share, without the network.
//!
//! The protocol is the same; what differs is the way. When a connected queue pair learns its peer, this process looks whether that lives on
//! this host ([`Local::seek`]), and offers its process a [`channel`] ([`meeting`]). Once the two have agreed, all of their reliable
//! connections go by it ([`outlet`], [`record`]), and none otherwise: so both ends of a connection decide alike. Nothing is sent while they
//! have not.
//!
//! Every request is checked by the process whose memory it is about, as one from the network is. The other process of the same user may
//! write garbage into the shared memory: it is copied out, then checked, and no worse than what comes from a network.

pub(crate) mod capture;
mod channel;
mod meeting;
mod outlet;
mod record;

pub(crate) use channel::Channel;
pub(crate) use outlet::Outlet;
pub(crate) use record::LONGEST_HERE;

use crate::lane::Lane;
use crate::lock;
use crate::net::Net;
use crate::numbers::block_of;
use crate::route::Route;
use crate::seqpacket::Connection;
use adverb_core::log;
use adverb_core::random;
use adverb_core::setting;
use adverb_local::{Doorbell, Segment};
use channel::{Identity, Parts};
use meeting::{Probe, Suitor};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Bytes of payload in a packet of a channel whose ends fetch it.
pub(crate) const MTU: u32 = 64 << 10;

/// The channels of this process. Thread-safe.
#[derive(Default)]
pub(crate) struct Local {
    nonce: OnceLock<u64>,
    off: OnceLock<bool>,
    state: Mutex<State>,
    channels: RwLock<Vec<Arc<Channel>>>,
    /// Whether there are channels.
    any: AtomicBool,
    open: meeting::Open,
}

#[derive(Default)]
struct State {
    /// By the block of queue pair numbers that another process owns.
    verdicts: HashMap<u16, Verdict>,
}

/// Whether connections with another process go by a channel. Once given, it stays.
enum Verdict {
    /// Not known yet; these queue pairs of ours wait for it. Until it is known who the other is, without a nonce.
    Pending { waiting: Vec<u32>, nonce: Option<u64>, offered: bool },
    /// They do.
    Channel(Arc<Channel>),
    /// They do not.
    Network,
}

/// How packets reach a queue pair.
pub(crate) enum Way {
    /// By the network.
    Network,
    /// By a channel.
    Channel(Arc<Channel>),
    /// It is not decided yet: the asker is told.
    Undecided,
}

impl Local {
    /// A random number by which other processes know this one.
    fn nonce(&self) -> u64 {
        *self.nonce.get_or_init(random::word)
    }

    /// Whether it is switched off: `ADVERB_LOCAL=off`.
    pub(crate) fn is_off(&self) -> bool {
        *self
            .off
            .get_or_init(|| setting::within_host() == setting::WithinHost::Off || setting::without("memfd"))
    }

    /// How queue pair `asker` of this process reaches queue pair `number` behind `route`. If that is not decided yet, the asker is told:
    /// [`crate::endpoint::Endpoint::decided`].
    pub(crate) fn seek(&self, net: &Arc<Net>, route: &Route, number: u32, asker: u32) -> Way {
        if self.is_off() || !net.gids.has(route.destination) {
            return Way::Network;
        }
        let block = block_of(number);
        let mut state = lock(&self.state);
        match state.verdicts.get_mut(&block) {
            Some(Verdict::Network) => return Way::Network,
            Some(Verdict::Channel(channel)) => return Way::Channel(channel.clone()),
            Some(Verdict::Pending { waiting, .. }) => {
                if !waiting.contains(&asker) {
                    waiting.push(asker);
                }
                return Way::Undecided;
            }
            None => {}
        }
        if net.owns(block) {
            return match self.to_oneself(net) {
                Some(channel) => {
                    state.verdicts.insert(block, Verdict::Channel(channel.clone()));
                    Way::Channel(channel)
                }
                None => {
                    state.verdicts.insert(block, Verdict::Network);
                    Way::Network
                }
            };
        }
        match Suitor::offer(net, block) {
            Ok(()) => {
                let pending = Verdict::Pending { waiting: vec![asker], nonce: None, offered: true };
                state.verdicts.insert(block, pending);
                Way::Undecided
            }
            // There is no such process, or it is another user's, or it does not accept: that may change.
            Err(error) => {
                log!(Info, "no memory is shared with the owner of queue pair {number:#x}: {error}");
                state.verdicts.insert(block, Verdict::Network);
                Way::Network
            }
        }
    }

    /// The channel from this process to itself.
    fn to_oneself(&self, net: &Arc<Net>) -> Option<Arc<Channel>> {
        let own = self.nonce();
        if let Some(channel) = self.channel_of(own) {
            return Some(channel);
        }
        // One direction is enough: what goes in at one end comes out of the other.
        let parts = || -> std::io::Result<Parts> {
            let (here, descriptor) = Segment::create()?;
            let there = Segment::open(descriptor)?;
            let ours = Doorbell::new()?;
            let theirs = Doorbell::from_descriptor(ours.as_fd().try_clone_to_owned()?);
            let process = std::process::id() as libc::pid_t;
            let peer = Identity { nonce: own, process };
            let (producer, consumer) = (here.split().0, there.split().1);
            Ok(Parts {
                peer,
                producer,
                consumer,
                theirs,
                ours,
                fetches: Probe::new().is_seen_by_us(),
                connection: None,
            })
        };
        match parts()
            .map_err(|error| error.to_string())
            .and_then(|parts| Channel::new(net, parts).map_err(|error| error.to_string()))
        {
            Ok(channel) => {
                self.enter(&channel);
                Some(channel)
            }
            Err(error) => {
                log!(Warn, "no memory for connections within this process: {error}");
                None
            }
        }
    }

    fn channel_of(&self, nonce: u64) -> Option<Arc<Channel>> {
        let channels = self.channels.read().unwrap_or_else(|e| e.into_inner());
        channels.iter().find(|channel| channel.peer.nonce == nonce).cloned()
    }

    fn enter(&self, channel: &Arc<Channel>) {
        self.channels.write().unwrap_or_else(|e| e.into_inner()).push(channel.clone());
        self.any.store(true, Ordering::Release);
    }

    /// A channel has ended.
    fn forget(&self, channel: &Channel) {
        self.channels
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .retain(|known| !std::ptr::eq(&**known, channel));
        lock(&self.state).verdicts.retain(
            |_, verdict| !matches!(verdict, Verdict::Channel(known) if std::ptr::eq(&**known, channel)),
        );
    }

    /// A poll of a lane looks at all channels. Returns whether anything had come.
    #[inline]
    pub(crate) fn poll(&self, lane: &Lane) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let channels = self.channels.read().unwrap_or_else(|e| e.into_inner());
        let mut worked = false;
        for channel in channels.iter() {
            worked |= channel.poll(lane);
        }
        worked
    }

    /// Takes in whatever has come before this call. With no lock held.
    pub(crate) fn receive_all(&self) {
        let channels = self.channels.read().unwrap_or_else(|e| e.into_inner()).clone();
        channels.iter().for_each(|channel| channel.receive_all());
    }

    /// The program is about to sleep: the background thread is on guard everywhere.
    pub(crate) fn arm(&self) {
        if self.any.load(Ordering::Acquire) {
            let channels = self.channels.read().unwrap_or_else(|e| e.into_inner());
            channels.iter().for_each(|channel| channel.arm());
        }
    }

    /// A connection by which another process came has hung up.
    pub(crate) fn hung_up(&self, net: &Arc<Net>, connection: &Arc<Connection>) {
        self.withdrawn(net, connection);
        let channel = {
            let channels = self.channels.read().unwrap_or_else(|e| e.into_inner());
            channels.iter().find(|channel| channel.connection() == Some(connection.fd())).cloned()
        };
        if let Some(channel) = channel {
            channel.end();
        }
    }
}
