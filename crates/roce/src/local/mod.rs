//! Connections within one host: packets between two processes of one user go through memory that they share,
//! without the network.
//!
//! The protocol is the same; only the [`carrier`] of packets differs. When a connected queue pair learns its
//! peer, this process looks whether that lives on this host ([`connect`]), and offers its process a
//! [`channel`] ([`adverb_samehost::Handshakes`]). Once the two have agreed, all of their reliable connections
//! go by it ([`carrier`], [`record`], [`straight`], [`delivery`]), and none otherwise: so both ends of a
//! connection decide alike. Nothing is sent before they have agreed. The parts of a queue pair are in
//! [`near`] and [`beside`]. Operations in the memory of such a process are the business of
//! [`adverb_samehost`].
//!
//! The process whose memory a request is about checks it, as one from the network. The other process of the
//! same user may write garbage into the shared memory. It is copied out, then checked, and does no more harm
//! than packets from a network.

mod beside;
mod carrier;
mod channel;
mod connect;
mod delivery;
mod near;
mod record;
mod straight;

pub(crate) use beside::Beside;
pub(crate) use carrier::{Carrier, PacketSink};
pub(crate) use channel::Channel;
use channel::Packets;
pub(crate) use delivery::{Delivery, WaitingSince};
pub(crate) use near::{Near, TurnOutcome};
use record::LONGEST_HERE;
pub(crate) use record::{LONGEST_DATAGRAM, ROUTING_HEADER};
pub(crate) use straight::{Head, Straight};

use crate::handover::{self, HandoverKind};
use crate::lock;
use crate::net::Net;
use crate::numbers::{self, block_of};
use crate::route::Route;
use crate::seqpacket::Connection;
use crate::socket::Arrival;
use crate::time;
use adverb_core::error::Result;
use adverb_core::reactor;
use adverb_samehost::{HandshakeVerdict, Hub, Parts, Side};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of payload in a packet of a channel whose ends fetch it.
const MTU: u32 = 256 << 10;

/// The channels as the polls of a lane look at them.
pub(crate) type ChannelSnapshot = adverb_samehost::ChannelSnapshot<Packets>;

/// The memory and the channels that this process shares with others. Thread-safe.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) hub: Hub<Net>,
    state: Mutex<State>,
    /// There is a channel that counts alone.
    counted: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Which process owns a block of queue pair numbers, as the kernel has said last; asked again when it has
    /// ended, or may have.
    owners: HashMap<u16, libc::pid_t>,
    /// Queue pairs of ours that ask once more in a moment: the process that they asked lets no connection in
    /// at present. How often they have, and whether they still wait.
    unheard: HashMap<u32, (u32, bool)>,
    /// Blocks whose owners could not be asked, for datagrams, and when.
    unreachable_owners: HashMap<u16, Duration>,
}

/// How long datagrams to an owner go by the network before the owner is asked again.
const UNREACHABLE_FOR: Duration = Duration::from_secs(1);
/// The most owners that are remembered.
const MOST_UNREACHABLE: usize = 4096;

/// How long such a queue pair waits at first. Each wait is twice as long as the one before, up to 64 times
/// this.
const AGAIN: Duration = Duration::from_millis(5);
/// How often a queue pair asks an owner that lets no connection in, for about five seconds in all. Then the
/// queue pair goes by the network.
const ATTEMPTS: u32 = 20;

/// Processes of RoCE find each other by queue pair numbers: the owner of a block of them has a socket of its
/// name, which also hands over packets ([`crate::handover`]).
impl Side for Net {
    type Traffic = Packets;

    fn hub(&self) -> &Hub<Self> {
        &self.local.hub
    }

    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> std::io::Result<()> {
        connection.send_with(&[&handover::head(HandoverKind::Channel, &NO_PACKET), message], descriptors)
    }

    fn hear(bytes: &[u8]) -> Option<&[u8]> {
        let (kind, arrival) = handover::parse(bytes)?;
        (kind == HandoverKind::Channel).then_some(arrival.bytes)
    }

    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel>> {
        Packets::open(self, parts)
    }

    /// Tells the `waiting` queue pairs how their packets to the process go: by this channel, or by the
    /// network. Only then may other threads poll the channel. So each packet from it finds a queue pair that
    /// knows the channel.
    fn decided(self: &Arc<Self>, process: libc::pid_t, waiting: &[u32], channel: Option<&Arc<Channel>>) {
        for endpoint in waiting.iter().filter_map(|asker| self.endpoint(*asker)) {
            self.local.decided(&endpoint, process, channel);
        }
        if let Some(channel) = channel {
            self.counters().local_channels.add(1);
            self.local.hub.enter(self, channel);
        }
    }

    fn forget(&self, channel: &Channel) {
        // At once: a queue pair that asks meanwhile would find the process without a verdict, and enter it
        // among the owners anew.
        self.local.hub.leave(channel, || {
            let mut state = lock(&self.local.state);
            state.owners.retain(|_, process| *process != channel.neighbour.process());
            state
        });
    }
}

/// The arrival in messages that are about no packet.
const NO_PACKET: Arrival<'static> = Arrival {
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
    /// How connections with the owner of a block go. If it is not decided yet, an offer has been made, and
    /// `asker` is told when it is.
    ///
    /// # Errors
    /// Those of connect(2).
    fn ask(
        &mut self,
        net: &Arc<Net>,
        block: u16,
        asker: Option<u32>,
    ) -> std::io::Result<HandshakeVerdict<Channel>> {
        let known = self.owners.get(&block).copied();
        let handshakes = &net.local.hub.handshakes;
        let before = known.and_then(|process| handshakes.verdict(process, asker));
        if let Some(verdict @ (HandshakeVerdict::Channel(_) | HandshakeVerdict::Undecided)) = before {
            return Ok(verdict);
        }
        // No event tells of the end of a process with which no memory is shared: the block may belong to
        // another one by now, which will share it.
        let owners = match numbers::owners(block, Duration::ZERO) {
            // Without a descriptor, or while the owner lets no connection in, the earlier verdict counts.
            Err(_) if before.is_some() => return Ok(HandshakeVerdict::Network),
            found => found?,
        };
        // It may be another user's.
        let Some(connection) = owners.into_iter().find(Connection::may_share) else {
            self.owners.remove(&block);
            return Ok(HandshakeVerdict::Network);
        };
        self.owners.insert(block, connection.process());
        Ok(handshakes.meet(net, connection, asker))
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
            self.0.local.seek_again(&endpoint);
        }
        // A queue pair that does not wait again has its answer, or is gone.
        lock(&self.0.local.state).unheard.retain(|_, (_, waits)| *waits);
    }
}

impl Local {
    /// How queue pair `asker` of this process reaches queue pair `number` behind `route`. If that is not
    /// decided yet, the asker is told: [`Local::decided`]. None: the other process has not been reached yet,
    /// and the asker asks again.
    fn seek(
        &self,
        net: &Arc<Net>,
        route: &Route,
        number: u32,
        asker: u32,
    ) -> Option<HandshakeVerdict<Channel>> {
        if self.hub.handshakes.are_off() || !net.gids.has(route.destination) {
            return Some(HandshakeVerdict::Network);
        }
        let block = block_of(number);
        if net.owns(block) {
            return Some(
                self.hub.to_oneself(net).map_or(HandshakeVerdict::Network, HandshakeVerdict::Channel),
            );
        }
        let mut state = lock(&self.state);
        match state.ask(net, block, Some(asker)) {
            Ok(verdict) => Some(verdict),
            // There may be no such process, or it is not ours to ask.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::EACCES | libc::EPERM)) =>
            {
                Some(HandshakeVerdict::Network)
            }
            // Its queue is full, or we have no descriptor. It may come to us meanwhile, so we cannot go
            // another way by ourselves.
            Err(_) if state.ask_again(net, asker) => None,
            Err(_) => Some(HandshakeVerdict::Network),
        }
    }

    /// The channel by which datagrams reach queue pair `number` behind `route`, if one is agreed on.
    /// Otherwise they go by the network until one is, which this sees to.
    pub(crate) fn reach(&self, net: &Arc<Net>, route: &Route, number: u32) -> Option<Carrier> {
        if self.hub.handshakes.are_off() || !net.gids.has(route.destination) {
            return None;
        }
        let block = block_of(number);
        if net.owns(block) {
            return self.hub.to_oneself(net).as_ref().map(Carrier::of);
        }
        let mut state = lock(&self.state);
        let now = time::now();
        if state.unreachable_owners.get(&block).is_some_and(|since| now < *since + UNREACHABLE_FOR) {
            return None;
        }
        match state.ask(net, block, None) {
            Ok(HandshakeVerdict::Channel(channel)) => return Some(Carrier::of(&channel)),
            Ok(HandshakeVerdict::Undecided) => {}
            Ok(HandshakeVerdict::Network) | Err(_) => {
                if state.unreachable_owners.len() >= MOST_UNREACHABLE {
                    state.unreachable_owners.clear();
                }
                state.unreachable_owners.insert(block, now);
            }
        }
        None
    }

    /// Whether a new channel counts alone: the first does.
    fn counts_alone(&self) -> bool {
        !self.counted.swap(true, Ordering::Relaxed)
    }

    /// Whether queue pair `number` behind `route` belongs to this process of this host.
    fn is_owned_by(&self, net: &Net, route: &Route, number: u32, process: libc::pid_t) -> bool {
        net.gids.has(route.destination)
            && lock(&self.state).owners.get(&block_of(number)).is_some_and(|owner| *owner == process)
    }

    /// Processes of which it is known how they are reached, or is to be; offers that wait for their
    /// confirmation; and channels.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let (verdicts, open) = self.hub.handshakes.sizes();
        (verdicts, open, self.hub.channels.all().len())
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) use record::try_bytes as try_record;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::numbers::Numbers;
    use adverb_core::conformance::fixture::{Home, Memory, QKEY, Shape, Side, TEST_TIMEOUT};
    use adverb_core::conformance::{Site, rounds, runs_again};
    use adverb_core::memory::Piece;
    use adverb_core::qp::Service;
    use adverb_proto::ib::{DatagramHeader, write_datagram};
    use adverb_wire::ib::header::{DEFAULT_PKEY, MAX_HEADER};
    use std::time::Instant;

    #[test]
    fn a_process_is_not_judged_by_what_was_decided_about_the_one_that_had_its_number_before() {
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let mut numbers = Numbers::default();
        let (block, _) = numbers.claim().unwrap();
        let mut state = State::default();
        let process = std::process::id() as libc::pid_t;
        let begun = adverb_samehost::Handshakes::<Net>::began(process).unwrap();
        net.local.hub.handshakes.assume(process, Some(begun));
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(HandshakeVerdict::Network)));
        net.local.hub.handshakes.assume(process, Some(begun - 1));
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(HandshakeVerdict::Undecided)));
    }

    #[test]
    fn a_process_that_lets_no_peer_in_is_asked_a_bounded_number_of_times() {
        adverb_core::engine::install(&[crate::FACTORY]);
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
        adverb_core::engine::install(&[crate::FACTORY]);
        let net = Net::new(Vec::new());
        let mut numbers = Numbers::default();
        let (block, _) = numbers.claim().unwrap();
        let mut state = State::default();
        // Of a process that has ended long ago, and shared nothing.
        let before = libc::pid_t::MAX;
        state.owners.insert(block, before);
        net.local.hub.handshakes.assume(before, None);
        assert!(matches!(state.ask(&net, block, Some(7)), Ok(HandshakeVerdict::Undecided)));
        let now = std::process::id() as libc::pid_t;
        assert_eq!(state.owners.get(&block), Some(&now));
        assert!(matches!(net.local.hub.handshakes.verdict(now, None), Some(HandshakeVerdict::Undecided)));
    }

    /// The process's size may grow by so much, which is less than the longest length that a record can say.
    fn limit_memory(bytes: u64) {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        // SAFETY: no memory.
        let most = pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64 + bytes;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a live local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    }

    #[test]
    fn long_datagrams() {
        if rounds().is_none() {
            return;
        }
        let site = Site::new(|| adverb_core::engine::install(&[crate::FACTORY]), "roce0", "127.0.0.1");
        let side = Side::unconnected(&Home::new(&site.by_attributes()), Shape::default(), Service::Ud);
        side.begin();
        let memory = Memory::open(&side.domain, 2 * LONGEST_DATAGRAM);
        let endpoint = side.queue_pair.endpoint().clone().as_any().downcast::<Endpoint>();
        let endpoint = endpoint.expect("it is of this transport");
        let channel = endpoint.net.local.hub.to_oneself(&endpoint.net).expect("memory");
        let (number, counters) = (side.queue_pair.number(), endpoint.queues.counters);
        let bytes = vec![0; 2 * LONGEST_DATAGRAM];
        let send = |length: usize| {
            let header = DatagramHeader {
                destination: number,
                source: number,
                qkey: QKEY,
                pkey: DEFAULT_PKEY,
                psn: 1,
                solicited: false,
                immediate: None,
                length: 0,
            };
            let mut space = [0; MAX_HEADER];
            let headers = write_datagram(&header, &mut space);
            let head = &space[..headers];
            let record = if length == LONGEST_DATAGRAM {
                [&record::here(headers, length)[..], head, &bytes[..length]].concat()
            } else {
                let piece = Piece { address: bytes.as_ptr() as u64, length: length as u64 };
                let start = record::elsewhere(headers, 1, length);
                [&start[..], head, &record::piece(piece, None)].concat()
            };
            let mut tx = channel.tx.lock();
            let mut slot = tx.producer.reserve(record.len()).expect("room");
            slot.write_at(0, &record);
            let _ = slot.publish_loan();
            drop(tx);
            channel.ring();
        };
        side.post_receive(1, &[memory.all()]);
        limit_memory(1 << 30);
        for length in [ROUTING_HEADER - 1, LONGEST_DATAGRAM + 1, 1 << 31, u32::MAX as usize] {
            let before = counters.damaged.get();
            send(length);
            let start = Instant::now();
            while counters.damaged.get() == before {
                assert_eq!(side.receives.poll(1, |done| panic!("{length} bytes: {done:?}")).unwrap(), 0);
                assert!(start.elapsed() < TEST_TIMEOUT, "{length} bytes");
                std::thread::yield_now();
            }
        }
        send(LONGEST_DATAGRAM);
        assert_eq!(side.received_well(1).byte_length as usize, LONGEST_DATAGRAM);
    }

    /// No memory is taken for the length that the other process says, also where packets are shown.
    #[test]
    fn a_record_says_a_length_that_no_datagram_has() {
        for environment in [&[("ADVERB_LOG", "packets")][..], &[]] {
            runs_again("local::tests::long_datagrams", environment, 1);
        }
    }
}
