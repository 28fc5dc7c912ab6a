//! The same host: packets between two processes of one user go through memory that they share, without the network.
//!
//! The protocol is the same; what differs is the way. When a connected queue pair learns its peer, this process looks whether that lives on
//! this host ([`Local::seek`]), and offers its process a [`channel`] ([`Meetings`]). Once the two have agreed, all of their reliable
//! connections go by it ([`outlet`], [`record`]), and none otherwise: so both ends of a connection decide alike. Nothing is sent while they
//! have not. Operations in the memory of such a process are the business of [`adverb_samehost`].
//!
//! Every request is checked by the process whose memory it is about, as one from the network is. The other process of the same user may
//! write garbage into the shared memory: it is copied out, then checked, and no worse than what comes from a network.

mod channel;
mod outlet;
pub(crate) mod record;
pub(crate) mod straight;

pub(crate) use channel::Channel;
use channel::Packets;
pub(crate) use outlet::Outlet;
pub(crate) use record::{LONGEST_HERE, ROUTING_HEADER, take_straight};
pub(crate) use straight::Straight;

use crate::handover::{self, Kind};
use crate::lock;
use crate::net::Net;
use crate::numbers::{self, block_of};
use crate::route::Route;
use crate::seqpacket::{Connection, Descriptors};
use crate::socket::Arrival;
use crate::time;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::reactor;
use adverb_samehost::{Acquainted, Copies, Landmark, Life, Meetings, Parts, Sharing, Side};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Bytes of payload in a packet of a channel whose ends fetch it.
pub(crate) const MTU: u32 = 256 << 10;

/// All channels of this process.
pub(crate) type Channels = adverb_samehost::Channels<Packets>;
/// As the polls of a lane look at them.
pub(crate) type Seen = adverb_samehost::Seen<Packets>;

/// What this process shares with others. Thread-safe.
pub(crate) struct Local {
    pub(crate) meetings: Meetings<Net>,
    state: Mutex<State>,
    pub(crate) channels: Channels,
    /// The one to this process itself, if there could be one.
    own: OnceLock<Option<Arc<Channel>>>,
    /// There is a channel that counts alone.
    counted: AtomicBool,
    pub(crate) sharing: Arc<Sharing>,
    pub(crate) copies: Arc<Copies>,
}

impl Default for Local {
    fn default() -> Self {
        Self {
            meetings: Meetings::default(),
            state: Mutex::default(),
            channels: Channels::default(),
            own: OnceLock::new(),
            counted: AtomicBool::new(false),
            sharing: Sharing::of_process(),
            copies: Arc::default(),
        }
    }
}

#[derive(Default)]
struct State {
    /// Which process owns a block of queue pair numbers, as the kernel has said last; asked again when it has ended, or may have.
    owners: HashMap<u16, libc::pid_t>,
    /// Queue pairs of ours that ask once more in a moment: whom they asked lets nobody in at present. How often they have, and whether they still wait.
    unheard: HashMap<u32, (u32, bool)>,
    /// Blocks whose owners could not be asked, for datagrams, and when.
    strangers: HashMap<u16, Duration>,
}

/// How long datagrams go to somebody by the network before he is asked again.
const STRANGE_FOR: Duration = Duration::from_secs(1);
/// So many are remembered at most.
const MOST_STRANGERS: usize = 4096;

/// How long they wait at first, and each time twice as long, up to 64 times as long.
const AGAIN: Duration = Duration::from_millis(5);
/// So often they ask, for about five seconds: then it counts as if nobody were there, and they go by the network.
const ATTEMPTS: u32 = 20;

/// How packets reach a queue pair.
pub(crate) enum Way {
    /// By the network.
    Network,
    /// By a channel.
    Channel(Arc<Channel>),
    /// It is not decided yet, though there is a process of our user to share memory with: the asker is told.
    Undecided,
    /// The other process has not been reached yet: the asker asks again.
    Unheard,
}

impl From<adverb_samehost::Way<Channel>> for Way {
    fn from(way: adverb_samehost::Way<Channel>) -> Self {
        match way {
            adverb_samehost::Way::Network => Self::Network,
            adverb_samehost::Way::Channel(channel) => Self::Channel(channel),
            adverb_samehost::Way::Undecided => Self::Undecided,
        }
    }
}

/// Processes of RoCE find each other by queue pair numbers: who owns a block of them has a socket of its name, which also hands over packets ([`crate::handover`]).
impl Side for Net {
    type Channel = Channel;

    fn meetings(&self) -> &Meetings<Self> {
        &self.local.meetings
    }

    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> std::io::Result<()> {
        connection.send_with(&[&handover::head(Kind::Channel, &NOBODY), message], descriptors)
    }

    fn hear(bytes: &[u8]) -> Option<&[u8]> {
        let (kind, arrival) = handover::parse(bytes)?;
        (kind == Kind::Channel).then_some(arrival.bytes)
    }

    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel>> {
        Packets::open(self, parts)
    }

    fn end(channel: &Arc<Channel>) {
        channel.end();
    }

    /// Those who wait are told before others can poll the channel: so nothing that comes by it finds a queue pair which does not know it yet.
    fn decided(self: &Arc<Self>, process: libc::pid_t, waiting: &[u32], channel: Option<&Arc<Channel>>) {
        for endpoint in waiting.iter().filter_map(|asker| self.endpoint(*asker)) {
            endpoint.decided(process, channel);
        }
        if let Some(channel) = channel {
            self.counters().local_channels.add(1);
            self.local.enter(channel);
            // It may have ended before: a peer that breaks the rules at once is found out by whoever looks first.
            if channel.neighbour.life() >= Life::Ended {
                self.local.forget(channel);
            }
        }
    }

    fn told(&self, connection: RawFd, descriptors: Descriptors, of: Landmark) {
        self.local.told(connection, descriptors, of);
    }

    fn hung_up(self: &Arc<Self>, connection: &Arc<Connection>) {
        self.local.hung_up(self, connection);
    }
}

/// What stands in place of an address in messages that are about no packet.
const NOBODY: Arrival<'static> = Arrival {
    source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    source_port: 0,
    local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    local_port: 0,
    interface: 0,
    class: 0,
    hops: 0,
    bytes: &[],
};

impl State {
    /// How connections with the owner of a block go. If it is not decided yet, an offer has been made, and `asker` is told when it is.
    ///
    /// # Errors
    /// Those of connect(2).
    fn ask(&mut self, net: &Arc<Net>, block: u16, asker: Option<u32>) -> std::io::Result<Way> {
        let known = self.owners.get(&block).copied();
        let meetings = &net.local.meetings;
        let before = known.and_then(|process| meetings.way(process, asker)).map(Way::from);
        if let Some(way @ (Way::Channel(_) | Way::Undecided)) = before {
            return Ok(way);
        }
        // Nothing tells of the end of those with whom no memory is shared: the block may be somebody else's by now, who will share it.
        let owners = match numbers::owners(block, Duration::ZERO) {
            // Without a descriptor, or while he lets nobody in, it counts how it was before.
            Err(_) if before.is_some() => return Ok(Way::Network),
            found => found?,
        };
        // It may be another user's.
        let Some(connection) = owners.into_iter().find(Connection::may_share) else {
            self.owners.remove(&block);
            return Ok(Way::Network);
        };
        self.owners.insert(block, connection.process());
        Ok(meetings.meet(net, connection, asker).into())
    }
}

impl State {
    /// A queue pair asks once more in a moment. False if that cannot be had.
    fn ask_again(&mut self, net: &Arc<Net>, asker: u32) -> bool {
        let attempts = self.unheard.get(&asker).map_or(0, |(attempts, _)| *attempts);
        let pause = AGAIN * (1 << attempts.min(6));
        let again =
            || net.engine().and_then(|engine| engine.reactor.set_timer(pause, Arc::new(Again(net.clone()))));
        let is_timed = self.unheard.values().any(|(_, waits)| *waits);
        let asks = attempts < ATTEMPTS && (is_timed || again().is_ok());
        if asks {
            self.unheard.insert(asker, (attempts + 1, true));
        } else {
            self.unheard.remove(&asker);
        }
        asks
    }
}

/// The moment has come.
struct Again(Arc<Net>);

impl reactor::Source for Again {
    fn ready(self: Arc<Self>, _: reactor::Readiness) {}

    fn timeout(self: Arc<Self>) {
        let askers: Vec<u32> = {
            let mut state = lock(&self.0.local.state);
            state.unheard.values_mut().for_each(|(_, waits)| *waits = false);
            state.unheard.keys().copied().collect()
        };
        for endpoint in askers.into_iter().filter_map(|asker| self.0.endpoint(asker)) {
            endpoint.seek_again();
        }
        // Who does not wait again has heard, or is gone.
        lock(&self.0.local.state).unheard.retain(|_, (_, waits)| *waits);
    }
}

impl Local {
    /// How queue pair `asker` of this process reaches queue pair `number` behind `route`. If that is not decided yet, the asker is told:
    /// [`crate::endpoint::Endpoint::decided`].
    pub(crate) fn seek(&self, net: &Arc<Net>, route: &Route, number: u32, asker: u32) -> Way {
        if self.meetings.are_off() || !net.gids.has(route.destination) {
            return Way::Network;
        }
        let block = block_of(number);
        if net.owns(block) {
            return self.to_oneself(net).map_or(Way::Network, Way::Channel);
        }
        let mut state = lock(&self.state);
        match state.ask(net, block, Some(asker)) {
            Ok(way) => way,
            // There may be no such process, or it is not ours to ask.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EACCES | libc::EPERM)) =>
            {
                Way::Network
            }
            // Its queue is full, or we have no descriptor. It may come to us meanwhile, so we cannot go another way by ourselves.
            Err(_) if state.ask_again(net, asker) => Way::Unheard,
            Err(_) => Way::Network,
        }
    }

    /// The channel by which datagrams reach queue pair `number` behind `route`, if one is agreed on. Otherwise they go by the network until one is,
    /// which this sees to.
    pub(crate) fn reach(&self, net: &Arc<Net>, route: &Route, number: u32) -> Option<Arc<Channel>> {
        if self.meetings.are_off() || !net.gids.has(route.destination) {
            return None;
        }
        let block = block_of(number);
        if net.owns(block) {
            return self.to_oneself(net);
        }
        let mut state = lock(&self.state);
        let now = time::now();
        if state.strangers.get(&block).is_some_and(|since| now < *since + STRANGE_FOR) {
            return None;
        }
        match state.ask(net, block, None) {
            Ok(Way::Channel(channel)) => return Some(channel),
            Ok(Way::Undecided | Way::Unheard) => {}
            Ok(Way::Network) | Err(_) => {
                if state.strangers.len() >= MOST_STRANGERS {
                    state.strangers.clear();
                }
                state.strangers.insert(block, now);
            }
        }
        None
    }

    /// Whether a new channel counts alone: the first does.
    fn counts_alone(&self) -> bool {
        !self.counted.swap(true, Ordering::Relaxed)
    }

    /// Whether queue pair `number` behind `route` belongs to this process of this host.
    pub(crate) fn is_owned_by(&self, net: &Net, route: &Route, number: u32, process: libc::pid_t) -> bool {
        net.gids.has(route.destination)
            && lock(&self.state).owners.get(&block_of(number)).is_some_and(|owner| *owner == process)
    }

    /// The channel from this process to itself.
    fn to_oneself(&self, net: &Arc<Net>) -> Option<Arc<Channel>> {
        let make = || {
            let made = Parts::to_oneself().map_err(|error| error.to_string());
            let made = made.and_then(|parts| Packets::open(net, *parts).map_err(|error| error.to_string()));
            match made {
                Ok(channel) => {
                    self.enter(&channel);
                    Some(channel)
                }
                Err(error) => {
                    log!(Warn, "no memory for connections within this process: {error}");
                    None
                }
            }
        };
        self.own.get_or_init(make).clone()
    }

    /// Another process tells of its memory by this connection.
    fn told(&self, connection: RawFd, descriptors: Descriptors, of: Landmark) {
        if let Some(channel) = self.channels.by_connection(connection) {
            channel.neighbour.told(descriptors, of);
        }
    }

    fn enter(&self, channel: &Arc<Channel>) {
        self.sharing.enter(Acquainted::this(&**channel));
        self.channels.enter(channel);
    }

    /// Processes of which it is known how they are reached, or is to be; offers that wait for their confirmation; and channels.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let (verdicts, open) = self.meetings.sizes();
        (verdicts, open, self.channels.all().len())
    }

    /// A channel has ended.
    fn forget(&self, channel: &Channel) {
        self.sharing.leave(channel);
        // At once: whoever asks meanwhile would find the process without a verdict, and enter it among the owners anew.
        let mut state = lock(&self.state);
        self.meetings.forget(channel);
        state.owners.retain(|_, process| *process != channel.neighbour.process());
        // Last: a sender that sees that the channels have changed finds what else has.
        self.channels.leave(channel);
    }

    /// A connection by which another process came has hung up.
    pub(crate) fn hung_up(&self, net: &Arc<Net>, connection: &Arc<Connection>) {
        self.meetings.withdrawn(net, connection);
        if let Some(channel) = self.channels.by_connection(connection.fd()) {
            channel.end();
        }
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) use record::try_bytes as try_record;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::Numbers;

    #[test]
    fn a_process_is_not_judged_by_what_was_decided_about_the_one_that_had_its_number_before() {
        adverb_core::engine::install(&[adverb_core::null::FACTORY]);
        let net = Net::new(Vec::new());
        let mut numbers = Numbers::default();
        let (block, _) = numbers.claim().unwrap();
        let mut state = State::default();
        let process = std::process::id() as libc::pid_t;
        let begun = Meetings::<Net>::began(process).unwrap();
        net.local.meetings.assume(process, Some(begun));
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(Way::Network)));
        net.local.meetings.assume(process, Some(begun - 1));
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(Way::Undecided)));
    }

    #[test]
    fn who_lets_nobody_in_is_asked_a_bounded_number_of_times() {
        adverb_core::engine::install(&[adverb_core::null::FACTORY]);
        let net = Net::new(Vec::new());
        let mut state = State::default();
        let mut attempts = 0;
        while state.ask_again(&net, 7) {
            attempts += 1;
            assert!(attempts <= ATTEMPTS);
            state.unheard.values_mut().for_each(|(_, waits)| *waits = false);
        }
        assert!(attempts == ATTEMPTS && state.unheard.is_empty());
    }

    #[test]
    fn a_block_is_not_taken_for_that_of_the_process_that_had_it_before() {
        adverb_core::engine::install(&[adverb_core::null::FACTORY]);
        let net = Net::new(Vec::new());
        let mut numbers = Numbers::default();
        let (block, _) = numbers.claim().unwrap();
        let mut state = State::default();
        // Of somebody who has ended long ago, and shared nothing.
        let before = libc::pid_t::MAX;
        state.owners.insert(block, before);
        net.local.meetings.assume(before, None);
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(Way::Undecided)));
        let now = std::process::id() as libc::pid_t;
        assert_eq!(state.owners.get(&block), Some(&now));
        assert!(matches!(net.local.meetings.way(now, None), Some(adverb_samehost::Way::Undecided)));
    }
}
