//! How two processes of one host agree on a channel.
//!
//! The process that wants it connects to a Unix socket of the other, and sends an *offer*: the segment and
//! the two doorbells. The other *accepts*, *refuses*, or says that its own offer is under way and comes first
//! (*offer crossed*). An accepted offer is *confirmed*; then both use the channel. Each is told the address
//! of a probe in the other, tries to read it, and proves by the word there that it can. Only if both can,
//! long payload stays in its place until the receiver fetches it.
//!
//! The socket stays open: it hangs up when a process ends. An initiator that hears nothing for a while goes
//! by the network, and closes the socket, from which the other learns it. A process that has accepted waits
//! for the other's answer, or for its end, or until the other has had twenty seconds ([`unconfirmed`]); then
//! it hangs up. So both always decide alike, and once for all of their connections, since each knows the
//! other by the number that the kernel gives.

mod initiator;
mod message;
#[cfg(test)]
mod tests;
mod unconfirmed;

use crate::bell::Bell;
use crate::channel::{Channel, Traffic};
use crate::hub::Hub;
use crate::lock;
use crate::look::look;
use crate::parts::Parts;
use adverb_core::error::Result;
use adverb_core::log;
use adverb_core::memory::process;
use adverb_core::memory::ways::Together;
use adverb_core::random;
use adverb_core::seqpacket::{Connection, Descriptors};
use adverb_local::Segment;
use initiator::Initiator;
use message::{Message, What};
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock};
use unconfirmed::{TimePassed, UnconfirmedOffer};

#[cfg(any(test, fuzzing))]
pub(crate) use message::try_bytes;

/// Offers of others that wait for their confirmation at once.
const MOST_OPEN: usize = 1024;
/// The most processes that are remembered before it is looked which of them have ended.
const FEW: usize = 64;

/// A transport whose processes meet. It decides itself how it finds the others, and how it uses a channel.
pub trait Side: Send + Sync + Sized + 'static {
    /// The records that the channels of two processes carry.
    type Traffic: Traffic;
    /// The parts that all transports have in common.
    fn hub(&self) -> &Hub<Self>;
    /// Sends a message of a handshake, in the form that sockets of the transport carry.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn say(connection: &Connection, message: &[u8], descriptors: &[RawFd]) -> io::Result<()>;
    /// The message of a handshake that has come in this form, if it is one.
    fn hear(bytes: &[u8]) -> Option<&[u8]>;
    /// Makes a channel. No queue pair goes by it before [`Side::decided`].
    ///
    /// # Errors
    /// EMFILE and ENOMEM, as a rule.
    fn open(self: &Arc<Self>, parts: Parts) -> Result<Arc<Channel<Self::Traffic>>>;
    /// The handshake has decided how connections with a process go: by this channel, which is to
    /// [enter](Hub::enter), or by the network. Called once for each verdict; `waiting` are those who have
    /// asked. With no lock held.
    fn decided(
        self: &Arc<Self>,
        process: libc::pid_t,
        waiting: &[u32],
        channel: Option<&Arc<Channel<Self::Traffic>>>,
    );
    /// A channel has ended: it [leaves](Hub::leave).
    fn forget(&self, channel: &Channel<Self::Traffic>);
}

/// How connections with another process go.
pub enum HandshakeVerdict<C> {
    /// By the network.
    Network,
    /// By a channel.
    Channel(Arc<C>),
    /// The handshake is not over yet. Its askers are told later.
    Undecided,
}

/// Whether connections with another process go by a channel. Once given, it stays as long as that process.
enum Verdict<C> {
    /// Not known yet; these wait for it.
    Pending {
        waiting: Vec<u32>,
        /// We have made an offer, and not only got one.
        offered: bool,
    },
    /// Connections with this process go by a channel.
    Channel(Arc<C>),
    /// Connections with this process go by the network. The number says when the process began, as far as the
    /// system says: another one may get its number.
    Network(Option<u64>),
}

/// When a process began, in the unit of proc_pid_stat(5).
pub(crate) fn began(process: libc::pid_t) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, which may hold anything, ends with the last bracket; field 22 follows as the twentieth.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// By the number of the other process. The kernel says which process owns a Unix socket, so no process speaks
/// for another.
struct Verdicts<C>(HashMap<libc::pid_t, Verdict<C>>);

impl<C> Verdicts<C> {
    /// A verdict about a process that has ended does not count for the one that has got its number. Others
    /// are looked at when there are many.
    fn forget_ended(&mut self, process: libc::pid_t) {
        let is_other = |number, verdict: &Verdict<C>| matches!(verdict, Verdict::Network(known) if *known != began(number));
        if self.0.get(&process).is_some_and(|verdict| is_other(process, verdict)) {
            self.0.remove(&process);
        }
        if self.0.len() >= FEW && self.0.len().is_power_of_two() {
            self.0.retain(|number, verdict| !is_other(*number, verdict));
        }
    }

    /// How connections with a process go, or that `asker` is told when it is decided. None if no queue pair
    /// has asked.
    fn verdict(&mut self, process: libc::pid_t, asker: Option<u32>) -> Option<HandshakeVerdict<C>> {
        Some(match self.0.get_mut(&process)? {
            Verdict::Network(_) => HandshakeVerdict::Network,
            Verdict::Channel(channel) => HandshakeVerdict::Channel(channel.clone()),
            Verdict::Pending { waiting, .. } => {
                waiting.extend(asker.filter(|asker| !waiting.contains(asker)));
                HandshakeVerdict::Undecided
            }
        })
    }
}

/// An offer of another process, until it is confirmed.
struct OpenOffer {
    segment: Segment,
    ours: Bell,
    theirs: Bell,
    process: libc::pid_t,
    stage: OfferStage,
}

/// How far an offer of another process is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfferStage {
    /// A thread looks at the other's probe.
    Looking,
    /// This process has accepted. `found`: what we have read in the probe. `is_late`: the other has had half
    /// of its time.
    Accepted { found: Option<u64>, is_late: bool },
}

fn key(connection: &Arc<Connection>) -> usize {
    Arc::as_ptr(connection) as usize
}

/// Which processes this one has met, and how that has ended. Thread-safe.
pub struct Handshakes<S: Side> {
    /// The number by which other processes know this one.
    nonce: OnceLock<u64>,
    off: OnceLock<bool>,
    verdicts: Mutex<Verdicts<Channel<S::Traffic>>>,
    /// By connection.
    open: Mutex<HashMap<usize, OpenOffer>>,
}

impl<S: Side> Default for Handshakes<S> {
    fn default() -> Self {
        let verdicts = Mutex::new(Verdicts(HashMap::new()));
        Self { nonce: OnceLock::new(), off: OnceLock::new(), verdicts, open: Mutex::default() }
    }
}

impl<S: Side> Handshakes<S> {
    /// Whether no process is met: `ADVERB_LOCAL=off`.
    pub fn are_off(&self) -> bool {
        *self.off.get_or_init(|| !Together::now().shares())
    }

    fn nonce(&self) -> u64 {
        *self.nonce.get_or_init(random::word)
    }

    fn say(
        &self,
        connection: &Connection,
        what: What,
        proof: Option<u64>,
        descriptors: &[RawFd],
    ) -> io::Result<()> {
        S::say(connection, &Message::of_process(what, self.nonce(), proof).to_bytes(), descriptors)
    }

    /// Tells the process at the other end of our memory, by a message.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn tell(&self, connection: &Connection, descriptors: &[RawFd]) -> io::Result<()> {
        self.say(connection, What::Memory, Some(process::gate()), descriptors)
    }

    /// How connections with a process go, or that `asker` is told when it is decided. None if no queue pair
    /// has asked.
    pub fn verdict(
        &self,
        process: libc::pid_t,
        asker: Option<u32>,
    ) -> Option<HandshakeVerdict<Channel<S::Traffic>>> {
        lock(&self.verdicts).verdict(process, asker)
    }

    /// How connections with the process at the other end go. If it is not decided yet, an offer has been
    /// made, and `asker` is told when it is.
    pub fn meet(
        &self,
        side: &Arc<S>,
        connection: Connection,
        asker: Option<u32>,
    ) -> HandshakeVerdict<Channel<S::Traffic>> {
        let process = connection.process();
        let mut verdicts = lock(&self.verdicts);
        verdicts.forget_ended(process);
        if let Some(verdict) = verdicts.verdict(process, asker) {
            return verdict;
        }
        // With the lock: the answer finds the verdict.
        let (kept, verdict) = match Initiator::offer(side, connection) {
            Ok(()) => {
                let waiting = asker.into_iter().collect();
                (Verdict::Pending { waiting, offered: true }, HandshakeVerdict::Undecided)
            }
            Err(error) => {
                log!(Warn, "no memory is shared with process {process}: {error}");
                (Verdict::Network(began(process)), HandshakeVerdict::Network)
            }
        };
        verdicts.0.insert(process, kept);
        verdict
    }

    /// A channel has ended.
    pub(crate) fn forget(&self, channel: &Channel<S::Traffic>) {
        let is_it = |known: &Arc<Channel<S::Traffic>>| std::ptr::eq(&**known, channel);
        lock(&self.verdicts)
            .0
            .retain(|_, verdict| !matches!(verdict, Verdict::Channel(known) if is_it(known)));
    }

    /// Processes of which it is known how they are reached, or is to be; and offers that wait for their
    /// confirmation.
    pub fn sizes(&self) -> (usize, usize) {
        (lock(&self.verdicts).0.len(), lock(&self.open).len())
    }

    /// Forgets what is known of all processes. For tests.
    #[doc(hidden)]
    pub fn forget_all(&self) {
        lock(&self.verdicts).0.clear();
    }

    /// Connections with a process that began then go by the network. For tests.
    #[doc(hidden)]
    pub fn assume(&self, process: libc::pid_t, began: Option<u64>) {
        lock(&self.verdicts).0.insert(process, Verdict::Network(began));
    }

    /// When a process began. For tests.
    #[doc(hidden)]
    pub fn began(process: libc::pid_t) -> Option<u64> {
        began(process)
    }

    /// A message by a connection that another process has opened.
    pub fn message(
        &self,
        side: &Arc<S>,
        bytes: &[u8],
        descriptors: Descriptors,
        trusted: bool,
        from: &Arc<Connection>,
    ) {
        let Some(said) = Message::parse(bytes) else { return };
        match said.what {
            What::Offer => {
                let answer = match trusted {
                    true => self.offered(side, said, descriptors, from),
                    false => Some(What::Refuse),
                };
                if let Some(answer) = answer
                    && self.say(from, answer, None, &[]).is_err()
                {
                    self.withdrawn(side, from);
                }
            }
            What::Confirm => {
                let Some((offer, found)) = self.take_accepted(from) else { return };
                let OpenOffer { segment, ours, theirs, process, .. } = offer;
                let reads = found.is_some() && said.proves();
                let parts = Parts::new(from.clone(), segment, (ours, theirs), reads);
                match side.open(parts) {
                    Ok(channel) => self.decide(side, process, Some(&channel)),
                    Err(error) => {
                        log!(Error, "a channel to process {process} cannot be used: {error}");
                        // The other learns it by this.
                        from.hang_up();
                        self.decide(side, process, None);
                    }
                }
            }
            What::Memory => side.hub().told(from.fd(), descriptors, said.landmark()),
            _ => {}
        }
    }

    /// Judges an offer. Returns the answer, if it is known: none while a thread looks at the probe.
    fn offered(
        &self,
        side: &Arc<S>,
        offer: Message,
        descriptors: Descriptors,
        from: &Arc<Connection>,
    ) -> Option<What> {
        let process = from.process();
        // One channel with each process, and one thread that looks at its probe.
        if self.are_off() || !from.may_share() || self.has_offer_of(process) {
            return Some(What::Refuse);
        }
        let mut verdicts = lock(&self.verdicts);
        verdicts.forget_ended(process);
        match verdicts.0.get(&process) {
            Some(Verdict::Network(_) | Verdict::Channel(_)) => return Some(What::Refuse),
            Some(Verdict::Pending { offered: true, .. }) if self.nonce() < offer.nonce => {
                return Some(What::OfferCrossed);
            }
            Some(Verdict::Pending { .. }) | None => {}
        }
        let open_offer = || -> Option<OpenOffer> {
            let [memory, ours, theirs] = descriptors.into_inner().ok()?;
            Some(OpenOffer {
                segment: Segment::open(memory.into_memory()?).ok()?,
                ours: Bell::from_descriptor(ours.into_event()?)?,
                theirs: Bell::from_descriptor(theirs.into_event()?)?,
                process,
                stage: OfferStage::Looking,
            })
        };
        let mut open = lock(&self.open);
        match open_offer().filter(|_| open.len() < MOST_OPEN) {
            Some(offered) => {
                let pending = || Verdict::Pending { waiting: Vec::new(), offered: false };
                verdicts.0.entry(process).or_insert_with(pending);
                open.insert(key(from), offered);
                drop((open, verdicts));
                let (side, from) = (side.clone(), from.clone());
                let accept = move |found| {
                    side.hub().handshakes.accept(&side, &from, found);
                };
                look(process, move || offer.look(process), accept);
                None
            }
            None => {
                drop((open, verdicts));
                self.decide(side, process, None);
                Some(What::Refuse)
            }
        }
    }

    /// Accepts the offer that has come by this connection, unless that has hung up. `found`: what was read in
    /// the other's probe.
    fn accept(&self, side: &Arc<S>, from: &Arc<Connection>, found: Option<u64>) {
        match lock(&self.open).get_mut(&key(from)) {
            Some(offer) if offer.stage == OfferStage::Looking => {
                offer.stage = OfferStage::Accepted { found, is_late: false };
            }
            _ => return,
        }
        let is_bounded = UnconfirmedOffer::watch(side, from).is_ok();
        if !is_bounded || self.say(from, What::Accept, found, &[]).is_err() {
            from.hang_up();
            self.withdrawn(side, from);
        }
    }

    /// The offer that has come by this connection, and what was read in the other's probe, if it has been
    /// accepted.
    fn take_accepted(&self, from: &Arc<Connection>) -> Option<(OpenOffer, Option<u64>)> {
        let mut open = lock(&self.open);
        let OfferStage::Accepted { found, .. } = open.get(&key(from))?.stage else { return None };
        Some((open.remove(&key(from))?, found))
    }

    /// A part of the time for the confirmation of an offer has passed. An offer whose time has passed is
    /// void.
    fn time_passes(&self, connection: &Arc<Connection>) -> TimePassed {
        let mut open = lock(&self.open);
        match open.get_mut(&key(connection)) {
            Some(OpenOffer { stage: OfferStage::Accepted { is_late: true, .. }, process, .. }) => {
                let process = *process;
                open.remove(&key(connection));
                TimePassed::All { process }
            }
            Some(OpenOffer { stage: OfferStage::Accepted { is_late, .. }, .. }) => {
                *is_late = true;
                TimePassed::Half
            }
            Some(OpenOffer { stage: OfferStage::Looking, .. }) | None => TimePassed::Needless,
        }
    }

    /// Whether an offer of this process is looked at, or waits for its confirmation.
    fn has_offer_of(&self, process: libc::pid_t) -> bool {
        lock(&self.open).values().any(|offer| offer.process == process)
    }

    /// A connection by which another process came has hung up: what it offered is void.
    pub(crate) fn withdrawn(&self, side: &Arc<S>, connection: &Arc<Connection>) {
        let offer = lock(&self.open).remove(&key(connection));
        if let Some(offer) = offer {
            self.decide(side, offer.process, None);
        }
    }

    /// Whether connections with a process go by a channel, unless that is decided already. Those who wait are
    /// told before others can poll the channel: so nothing that comes by it finds a queue pair which does not
    /// know it yet.
    fn decide(&self, side: &Arc<S>, process: libc::pid_t, channel: Option<&Arc<Channel<S::Traffic>>>) {
        let waiting = {
            let mut verdicts = lock(&self.verdicts);
            if matches!(verdicts.0.get(&process), Some(Verdict::Channel(_) | Verdict::Network(_))) {
                return;
            }
            let verdict = match channel {
                Some(channel) => Verdict::Channel(channel.clone()),
                None => Verdict::Network(began(process)),
            };
            match verdicts.0.insert(process, verdict) {
                Some(Verdict::Pending { waiting, .. }) => waiting,
                _ => Vec::new(),
            }
        };
        if channel.is_some() {
            log!(Info, "memory is shared with process {process}");
        }
        side.decided(process, &waiting, channel);
    }
}
