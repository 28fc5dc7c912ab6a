//! An offer of this process, and its answer.

use super::message::{Message, What};
use super::{Handshakes, Side};
use crate::bell::Bell;
use crate::lock;
use crate::look::look;
use crate::parts::Parts;
use adverb_core::engine;
use adverb_core::error::Error;
use adverb_core::log;
use adverb_core::reactor::{FAILED, PEER_CLOSED, READABLE, Readiness, Source, Token};
use adverb_core::seqpacket::{Connection, Descriptors};
use adverb_local::Segment;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long an offer waits for an answer: as long as a process may get no processor on a busy machine. One
/// that is stopped would not answer by the network either.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);

/// An offer of ours, until it is answered, and the watch over the other process after that.
pub(super) struct Initiator<S: Side> {
    side: Arc<S>,
    /// The process that the offer is made to.
    process: libc::pid_t,
    connection: Arc<Connection>,
    stage: Mutex<Stage>,
    token: OnceLock<Token>,
}

/// What both processes share, and the two doorbells: of this process, and of the other.
type SharedParts = (Segment, Bell, Bell);

/// How far an offer of this process is.
enum Stage {
    /// The other process has not answered.
    Offered(SharedParts),
    /// The other process has accepted, and a thread looks at its probe.
    Looking(SharedParts),
    /// The offer is decided, or the other process's own comes first.
    Over,
}

impl Stage {
    /// The offer is over. Returns whether it was under way.
    fn end(&mut self) -> bool {
        !matches!(std::mem::replace(self, Self::Over), Self::Over)
    }
}

impl<S: Side> Initiator<S> {
    /// Offers a channel to the process at the other end.
    pub(super) fn offer(side: &Arc<S>, connection: Connection) -> io::Result<()> {
        let (segment, memory) = Segment::create()?;
        let (ours, theirs) = (Bell::new()?, Bell::new()?);
        let fd = connection.fd();
        let initiator = Arc::new(Self {
            side: side.clone(),
            process: connection.process(),
            connection: Arc::new(connection),
            stage: Mutex::new(Stage::Offered((segment, ours, theirs))),
            token: OnceLock::new(),
        });
        let failed = |error: Error| io::Error::other(error.to_string());
        let reactor = &engine::engine().map_err(failed)?.reactor;
        let token = reactor.add(fd, READABLE | PEER_CLOSED, initiator.clone()).map_err(failed)?;
        let _ = initiator.token.set(token);
        let timer = reactor.set_timer(OFFER_TIMEOUT, initiator.clone()).map_err(failed);
        // Last, since the other process acts on it: an error after that would be known on one side alone.
        let said = timer.and_then(|timer| {
            initiator.say_offer(&memory).inspect_err(|_| {
                reactor.cancel_timer(timer);
            })
        });
        said.inspect_err(|_| {
            lock(&initiator.stage).end();
            initiator.leave();
            initiator.connection.hang_up();
        })
    }

    fn say_offer(&self, memory: &OwnedFd) -> io::Result<()> {
        // Held, so that the descriptors stay open: the background thread drops them when the other process
        // has gone.
        let stage = lock(&self.stage);
        let Stage::Offered((_, ours, theirs)) = &*stage else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // In the receiver's order: its own doorbell first, then ours.
        let descriptors = [memory.as_raw_fd(), theirs.as_fd().as_raw_fd(), ours.as_fd().as_raw_fd()];
        self.handshakes().say(&self.connection, What::Offer, None, &descriptors)
    }

    fn handshakes(&self) -> &Handshakes<S> {
        &self.side.hub().handshakes
    }

    /// The socket is not looked at any more; it closes with the last who has it, which tells the other.
    fn leave(&self) {
        if let (Some(token), Ok(engine)) = (self.token.get(), engine::engine()) {
            engine.reactor.remove(*token, self.connection.fd());
        }
    }

    /// There will be no channel by this offer.
    fn give_up(&self) {
        self.leave();
        self.connection.hang_up();
        self.handshakes().decide(&self.side, self.process, None);
    }

    fn answered(self: &Arc<Self>, answer: Message, descriptors: Descriptors) {
        if answer.what == What::Memory {
            return self.side.hub().told(self.connection.fd(), descriptors, answer.landmark());
        }
        {
            let mut stage = lock(&self.stage);
            let Stage::Offered(shared) = std::mem::replace(&mut *stage, Stage::Over) else {
                return;
            };
            if answer.what == What::Accept {
                *stage = Stage::Looking(shared);
            }
        }
        match answer.what {
            What::Accept => {
                let (this, process) = (self.clone(), self.process);
                look(process, move || answer.look(process), move |found| this.confirm(answer, found));
            }
            // It decides with the other's offer.
            What::OfferCrossed => {}
            _ => self.give_up(),
        }
    }

    /// The other process has accepted. `found`: what was read in its probe.
    fn confirm(&self, answer: Message, found: Option<u64>) {
        let mut stage = lock(&self.stage);
        let Stage::Looking((segment, ours, theirs)) = std::mem::replace(&mut *stage, Stage::Over) else {
            return;
        };
        drop(stage);
        let reads = found.is_some() && answer.proves();
        let parts = Parts::new(self.connection.clone(), segment, (ours, theirs), reads);
        let Ok(channel) = self.side.open(parts) else { return self.give_up() };
        if self.handshakes().say(&self.connection, What::Confirm, found, &[]).is_err() {
            channel.end();
            return self.give_up();
        }
        self.handshakes().decide(&self.side, self.process, Some(&channel));
    }
}

impl<S: Side> Source for Initiator<S> {
    fn ready(self: Arc<Self>, readiness: Readiness) {
        let mut buffer = [0; 256];
        loop {
            match self.connection.receive_with(&mut buffer) {
                Ok(([], _)) => break,
                Ok((bytes, along)) => {
                    if let Some(answer) = S::hear(bytes).and_then(Message::parse) {
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
        if lock(&self.stage).end() {
            self.handshakes().decide(&self.side, self.process, None);
        }
        self.side.hub().hung_up(&self.side, &self.connection);
    }

    /// The other process has not answered, or its own offer was to come first. An accepted offer of that
    /// process is decided when it is confirmed. An answer that is looked at has its own limit.
    fn timeout(self: Arc<Self>) {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Looking(_)) {
            return;
        }
        let unanswered = stage.end();
        drop(stage);
        if unanswered {
            log!(Warn, "process {} does not answer: no memory is shared with it", self.process);
            self.leave();
            self.connection.hang_up();
        }
        if !self.handshakes().has_offer_of(self.process) {
            self.handshakes().decide(&self.side, self.process, None);
        }
    }
}
