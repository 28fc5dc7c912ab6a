//! How two processes of one host agree on a channel.
//!
//! The one that wants it connects to the Unix socket by which the other owns its queue pair numbers, and sends an *offer*: the segment and the
//! two doorbells. The other *accepts*, *refuses*, or says that its own offer is under way and comes first (*mine first*). What is accepted is *confirmed*; then both use it. Each looks whether it can read the other's memory, in a
//! probe there whose address it is told, and proves it by what it has found: only if both can, long payload stays in its place until the receiver fetches it.
//!
//! The socket stays open: it hangs up when a process ends. Whoever hears nothing for a while goes by the network, and closes the socket, by which the
//! other learns it; whoever has accepted waits for what the other says, or for its end. So both always decide alike, and once for all of their
//! connections, since each knows the other by the number that the kernel gives.

use super::channel::{Channel, Parts};
use super::{Local, Verdict, began};
use crate::handover::{self, Kind};
use crate::lock;
use crate::net::Net;
use crate::seqpacket::{Connection, Descriptors};
use crate::socket::Arrival;
use adverb_core::log;
use adverb_core::memory::process;
use adverb_core::reactor::{FAILED, PEER_CLOSED, READABLE, Readiness, Source, Token};
use adverb_local::Segment;
use adverb_samehost::{Bell, Landmark, Probe};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long an offer waits for an answer: as long as a process may get no processor on a busy machine. One that is stopped would not answer by the
/// network either.
const PATIENCE: Duration = Duration::from_secs(1);
/// Offers of others that wait for their confirmation at once.
const MOST_OPEN: usize = 1024;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum What {
    Offer = 1,
    Accept = 2,
    Confirm = 3,
    MineFirst = 4,
    Refuse = 5,
    /// Descriptors come with it: of the table of keys, and, if some of it can be mapped, of the memory that they open.
    Memory = 6,
}

/// A message of this meeting: all numbers in the host's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    what: What,
    /// The sender's own random number: of two offers that cross, that of the smaller one comes first.
    nonce: u64,
    /// Where the sender has its [`Probe`], and the word by which that is recognized.
    address: u64,
    mark: u64,
    /// What the sender has read in the receiver's probe, behind that word; 0: nothing. In a message about memory, where the sender has its gate
    /// ([`process::gate`]).
    proof: u64,
}

const LENGTH: usize = 33;

impl Message {
    fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = self.what as u8;
        bytes[1..9].copy_from_slice(&self.nonce.to_ne_bytes());
        bytes[9..17].copy_from_slice(&self.address.to_ne_bytes());
        bytes[17..25].copy_from_slice(&self.mark.to_ne_bytes());
        bytes[25..33].copy_from_slice(&self.proof.to_ne_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kinds = [What::Offer, What::Accept, What::Confirm, What::MineFirst, What::Refuse, What::Memory];
        Some(Self {
            what: kinds.into_iter().find(|what| *what as u8 == bytes[0])?,
            nonce: word(1),
            address: word(9),
            mark: word(17),
            proof: word(25),
        })
    }

    /// What the receiver reads in the sender's probe.
    fn look(&self, process: libc::pid_t) -> Option<u64> {
        Probe::read(process, self.address, self.mark)
    }

    /// Where a message about memory says that things are.
    fn landmark(&self) -> Landmark {
        Landmark { mark: (self.address, self.mark), gate: self.proof }
    }

    /// Whether the sender can read our memory: it has read there what nobody has told it.
    fn proves(&self) -> bool {
        Probe::of_process().is_secret(self.proof)
    }
}

fn head() -> [u8; handover::HEAD] {
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let arrival = Arrival {
        source: nobody,
        source_port: 0,
        local: nobody,
        local_port: 0,
        interface: 0,
        class: 0,
        hops: 0,
        bytes: &[],
    };
    handover::head(Kind::Channel, &arrival)
}

/// What this process says of itself.
fn message(net: &Arc<Net>, what: What, proof: Option<u64>) -> Message {
    let probe = Probe::of_process();
    let (address, mark, proof) = (probe.address(), probe.mark(), proof.unwrap_or(0));
    Message { what, nonce: net.local.nonce(), address, mark, proof }
}

fn say(connection: &Connection, message: Message, descriptors: &[RawFd]) -> io::Result<()> {
    connection.send_with(&[&head(), &message.to_bytes()], descriptors)
}

/// Tells the process at the other end of our memory.
pub(super) fn tell(net: &Arc<Net>, connection: &Connection, descriptors: &[RawFd]) -> io::Result<()> {
    say(connection, message(net, What::Memory, Some(process::gate())), descriptors)
}

/// An offer of ours, until it is answered, and the watch over the other process after that.
pub(super) struct Suitor {
    net: Arc<Net>,
    /// Whom it is made.
    process: libc::pid_t,
    connection: Arc<Connection>,
    /// Taken by the answer.
    offered: Mutex<Option<(Segment, Bell, Bell)>>,
    token: OnceLock<Token>,
}

impl Suitor {
    /// Offers a channel to the process at the other end.
    pub(super) fn offer(net: &Arc<Net>, connection: Connection) -> io::Result<()> {
        let (segment, memory) = Segment::create()?;
        let (ours, theirs) = (Bell::new()?, Bell::new()?);
        // The receiver's point of view: what rings it, and what rings us.
        let descriptors = [memory.as_raw_fd(), theirs.as_fd().as_raw_fd(), ours.as_fd().as_raw_fd()];
        say(&connection, message(net, What::Offer, None), &descriptors)?;
        let fd = connection.fd();
        let suitor = Arc::new(Self {
            net: net.clone(),
            process: connection.process(),
            connection: Arc::new(connection),
            offered: Mutex::new(Some((segment, ours, theirs))),
            token: OnceLock::new(),
        });
        let failed = |error: adverb_core::error::Error| io::Error::other(error.to_string());
        let reactor = &net.engine().map_err(failed)?.reactor;
        let token = reactor.add(fd, READABLE | PEER_CLOSED, suitor.clone()).map_err(failed)?;
        let _ = suitor.token.set(token);
        reactor.set_timer(PATIENCE, suitor).map_err(failed)?;
        Ok(())
    }

    /// The socket is not looked at any more; it closes with the last who has it, which tells the other.
    fn leave(&self) {
        if let (Some(token), Ok(engine)) = (self.token.get(), self.net.engine()) {
            engine.reactor.remove(*token, self.connection.fd());
        }
    }

    /// There will be no channel by this offer.
    fn give_up(&self) {
        self.leave();
        self.connection.hang_up();
        self.net.local.decide(&self.net, self.process, None);
    }

    fn answered(self: &Arc<Self>, answer: Message, descriptors: Descriptors) {
        if answer.what == What::Memory {
            return self.net.local.told(self.connection.fd(), descriptors, answer.landmark());
        }
        let Some((segment, ours, theirs)) = lock(&self.offered).take() else { return };
        match answer.what {
            What::Accept => {
                let found = answer.look(self.process);
                let adverb_local::Parts { producer, consumer, announcer, witness } = segment.parts();
                let parts = Parts {
                    process: self.process,
                    producer,
                    consumer,
                    announcer,
                    witness,
                    theirs,
                    ours,
                    fetches: found.is_some() && answer.proves(),
                    connection: Some(self.connection.clone()),
                };
                let Ok(channel) = Channel::new(&self.net, parts) else { return self.give_up() };
                if say(&self.connection, message(&self.net, What::Confirm, found), &[]).is_err() {
                    channel.end();
                    return self.give_up();
                }
                self.net.local.decide(&self.net, self.process, Some(&channel));
            }
            // It decides with the other's offer.
            What::MineFirst => {}
            _ => self.give_up(),
        }
    }
}

impl Source for Suitor {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        let mut buffer = [0; 256];
        loop {
            match self.connection.receive_with(&mut buffer) {
                Ok(([], _)) => break,
                Ok((bytes, along)) => {
                    if let Some((Kind::Channel, arrival)) = handover::parse(bytes)
                        && let Some(answer) = Message::parse(arrival.bytes)
                    {
                        self.answered(answer, along.descriptors);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    if readiness & (PEER_CLOSED | FAILED) != 0 {
                        break;
                    }
                    return;
                }
                Err(_) => break,
            }
        }
        self.leave();
        if lock(&self.offered).take().is_some() {
            self.net.local.decide(&self.net, self.process, None);
        }
        self.net.local.hung_up(&self.net, &self.connection);
    }

    /// Nobody has answered, or the other's own offer was to come first. What has been accepted of that decides when it is confirmed.
    fn timeout(self: Arc<Self>) {
        let unanswered = lock(&self.offered).take().is_some();
        if unanswered {
            log!(Warn, "process {} does not answer: no memory is shared with it", self.process);
            self.leave();
            self.connection.hang_up();
        }
        if !self.net.local.has_accepted(self.process) {
            self.net.local.decide(&self.net, self.process, None);
        }
    }
}

/// Offers of others that we have accepted, until they are confirmed.
#[derive(Default)]
pub(super) struct Open(Mutex<HashMap<usize, Accepted>>);

#[cfg(any(test, fuzzing))]
impl Open {
    pub(super) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

struct Accepted {
    segment: Segment,
    ours: Bell,
    theirs: Bell,
    /// What we have read in the other's probe.
    found: Option<u64>,
    process: libc::pid_t,
}

fn key(connection: &Arc<Connection>) -> usize {
    Arc::as_ptr(connection) as usize
}

impl Local {
    /// A message by a connection that another process has opened.
    pub(crate) fn message(
        &self,
        net: &Arc<Net>,
        bytes: &[u8],
        descriptors: Descriptors,
        trusted: bool,
        from: &Arc<Connection>,
    ) {
        let Some(said) = Message::parse(bytes) else { return };
        match said.what {
            What::Offer => {
                let what = match trusted {
                    true => self.offered(net, said, descriptors, from),
                    false => What::Refuse,
                };
                let found = lock(&self.open.0).get(&key(from)).and_then(|accepted| accepted.found);
                if say(from, message(net, what, found), &[]).is_err() {
                    self.withdrawn(net, from);
                }
            }
            What::Confirm => {
                let Some(accepted) = lock(&self.open.0).remove(&key(from)) else { return };
                let Accepted { segment, ours, theirs, found, process } = accepted;
                let adverb_local::Parts { producer, consumer, announcer, witness } = segment.parts();
                let fetches = found.is_some() && said.proves();
                let connection = Some(from.clone());
                let parts = Parts {
                    process,
                    producer,
                    consumer,
                    announcer,
                    witness,
                    theirs,
                    ours,
                    fetches,
                    connection,
                };
                match Channel::new(net, parts) {
                    Ok(channel) => self.decide(net, process, Some(&channel)),
                    Err(error) => {
                        log!(Error, "a channel to process {process} cannot be used: {error}");
                        // The other learns it by this.
                        from.hang_up();
                        self.decide(net, process, None);
                    }
                }
            }
            What::Memory => self.told(from.fd(), descriptors, said.landmark()),
            _ => {}
        }
    }

    /// Judges an offer.
    fn offered(
        &self,
        net: &Arc<Net>,
        offer: Message,
        descriptors: Descriptors,
        from: &Arc<Connection>,
    ) -> What {
        let process = from.process();
        // One channel by each connection, and with each process.
        if self.is_off() || !from.may_share() || lock(&self.open.0).contains_key(&key(from)) {
            return What::Refuse;
        }
        let mut state = lock(&self.state);
        state.forget_ended(process);
        match state.verdicts.get(&process) {
            Some(Verdict::Network(_) | Verdict::Channel(_)) => return What::Refuse,
            Some(Verdict::Pending { offered: true, .. }) if self.nonce() < offer.nonce => {
                return What::MineFirst;
            }
            Some(Verdict::Pending { .. }) | None => {}
        }
        let accepted = || -> Option<Accepted> {
            let [memory, ours, theirs] = descriptors.into_inner().ok()?;
            Some(Accepted {
                segment: Segment::open(memory).ok()?,
                ours: Bell::from_descriptor(ours)?,
                theirs: Bell::from_descriptor(theirs)?,
                found: offer.look(process),
                process,
            })
        };
        let mut open = lock(&self.open.0);
        match accepted().filter(|_| open.len() < MOST_OPEN) {
            Some(accepted) => {
                let pending = || Verdict::Pending { waiting: Vec::new(), offered: false };
                state.verdicts.entry(process).or_insert_with(pending);
                open.insert(key(from), accepted);
                What::Accept
            }
            None => {
                drop((open, state));
                self.decide(net, process, None);
                What::Refuse
            }
        }
    }

    /// Whether an offer of this process is accepted and waits for its confirmation.
    fn has_accepted(&self, process: libc::pid_t) -> bool {
        lock(&self.open.0).values().any(|accepted| accepted.process == process)
    }

    /// A connection by which another process came has hung up: what it offered is void.
    pub(super) fn withdrawn(&self, net: &Arc<Net>, connection: &Arc<Connection>) {
        let accepted = lock(&self.open.0).remove(&key(connection));
        if let Some(accepted) = accepted {
            self.decide(net, accepted.process, None);
        }
    }

    /// Whether connections with a process go by a channel, unless that is decided already. Those who wait are told before others can poll the
    /// channel: so nothing that comes by it finds a queue pair which does not know it yet.
    fn decide(&self, net: &Arc<Net>, process: libc::pid_t, channel: Option<&Arc<Channel>>) {
        let waiting = {
            let mut state = lock(&self.state);
            if matches!(state.verdicts.get(&process), Some(Verdict::Channel(_) | Verdict::Network(_))) {
                return;
            }
            let verdict = match channel {
                Some(channel) => Verdict::Channel(channel.clone()),
                None => Verdict::Network(began(process)),
            };
            match state.verdicts.insert(process, verdict) {
                Some(Verdict::Pending { waiting, .. }) => waiting,
                _ => Vec::new(),
            }
        };
        for asker in waiting {
            if let Some(endpoint) = net.endpoint(asker) {
                endpoint.decided(process, channel);
            }
        }
        if let Some(channel) = channel {
            log!(Info, "memory is shared with process {process}");
            net.counters().local_channels.add(1);
            self.enter(channel);
        }
    }
}

/// Any bytes are a message that is the same when it is made again, or none.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_bytes(bytes: &[u8]) {
    if let Some(message) = Message::parse(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
}
