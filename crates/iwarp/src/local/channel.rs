//! The messages that a channel ([`adverb_samehost::Channel`]) carries: those of all connections between two
//! processes of this host.

use super::LocalHost;
use super::inbox::Inbox;
use super::record::{self, RecordHead, RecordKind};
use crate::endpoint::{Endpoint, ReceivingThread};
use adverb_core::counters::Counters;
use adverb_core::engine::{self, Engine};
use adverb_core::error::Result;
use adverb_core::seqpacket::Connection;
use adverb_local::Consumer;
use adverb_samehost::{Intake, LookupCache, Parts, Side, Traffic};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Records that are taken in at most before others get their turn.
const MOST_RECORDS_AT_ONCE: usize = 64;

/// The channel that two processes of one host share: memory for messages without TCP.
pub(crate) type Channel = adverb_samehost::Channel<Messages>;

/// The traffic of iWARP in a channel ([`adverb_samehost::Channel`]): the messages of all connections between
/// two processes of this host.
pub(crate) struct Messages {
    host: Weak<LocalHost>,
    counters: &'static Counters,
}

/// The state under the channel's receiving lock.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Ends that messages were for.
    known: LookupCache<End>,
    /// Connections for which a thread is to call [`Endpoint::receive`], once it has let go of the channel's
    /// lock.
    looking: Vec<Arc<Endpoint>>,
    is_poll: bool,
}

/// An end of a connection, and the inbox of its messages.
pub(crate) type End = (Weak<Endpoint>, Arc<Inbox>);

/// The end with this number.
#[inline]
fn find<'a>(
    known: &'a mut LookupCache<End>,
    host: &LocalHost,
    number: u32,
) -> Option<(Arc<Endpoint>, &'a Arc<Inbox>)> {
    let (endpoint, inbox) = known.find(host.changes(), number, || host.end_of(number))?;
    Some((endpoint.upgrade()?, inbox))
}

/// The outcome of an attempt to put a record without a message into the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordOutcome {
    /// The record is in the channel. The other side looks by itself.
    Polls,
    /// The record is in the channel, and the other side sleeps. The caller is to [ring](Channel::ring), best
    /// without a lock, since that takes a system call.
    Sleeps,
    /// The channel has no room.
    Full,
}

/// Tells the other end, by its number `to`, how much has been taken in, and nothing else but `what` this is.
#[cold]
pub(crate) fn tell(channel: &Channel, kind: RecordKind, to: u32, inbox: &Inbox) -> RecordOutcome {
    let mut tx = channel.tx.lock();
    let Some(mut slot) = tx.producer.reserve(record::START) else { return RecordOutcome::Full };
    slot.write_words(RecordHead::bare(kind, to, inbox.tell()).words());
    slot.publish();
    if tx.producer.peer_sleeps() { RecordOutcome::Sleeps } else { RecordOutcome::Polls }
}

impl Messages {
    /// A channel, watched by the background thread from now on.
    pub(super) fn open(host: &Arc<LocalHost>, parts: Parts) -> Result<Arc<Channel>> {
        let messages = Self { host: Arc::downgrade(host), counters: host.counters() };
        Channel::new(messages, ((), Box::default()), parts, false)
    }
}

impl Traffic for Messages {
    type Sender = Endpoint;
    type Outgoing = ();
    type Incoming = Incoming;
    /// Connections for which the thread is to call [`Endpoint::receive`], and whether it is a poll.
    type Rest = (Vec<Arc<Endpoint>>, ReceivingThread);
    const LONGEST: usize = record::LONGEST;

    fn engine(&self) -> Result<&'static Engine> {
        engine::engine()
    }

    fn counters(&self) -> &'static Counters {
        self.counters
    }

    #[inline]
    fn take_in(channel: &Channel, consumer: &mut Consumer, incoming: &mut Incoming, lane: usize) -> Intake {
        let Self { host, counters } = channel.traffic();
        let Incoming { known, looking, is_poll } = incoming;
        *is_poll = lane != 0;
        let (mut taken, process) = (0, channel.neighbour.process());
        let Some(host) = host.upgrade() else { return Intake::default() };
        while taken < MOST_RECORDS_AT_ONCE {
            let record = match consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(_) => {
                    channel.break_off();
                    break;
                }
            };
            match record::parse(&record) {
                None => counters.damaged.add(1),
                Some((said, payload)) => match find(known, &host, said.to) {
                    // The connection has ended here.
                    None => {}
                    // The peer's process may not be known yet.
                    Some((_, inbox)) if said.kind == RecordKind::Greeting => inbox.greet(process),
                    // The connection's peer is in another process.
                    Some((_, inbox)) if !inbox.is_from(process) => counters.damaged.add(1),
                    Some((endpoint, inbox)) => {
                        inbox.peer_took(said.taken);
                        let looks =
                            said.kind != RecordKind::Progress && endpoint.arrived(inbox, &said, &payload);
                        let is_last = |last: &Arc<Endpoint>| Arc::ptr_eq(last, &endpoint);
                        if looks && !looking.last().is_some_and(is_last) {
                            looking.push(endpoint);
                        }
                    }
                },
            }
            record.consume();
            taken += 1;
        }
        Intake { worked: taken > 0, ..Intake::default() }
    }

    #[inline]
    fn settle(&self, incoming: &mut Incoming) -> Self::Rest {
        let by = if incoming.is_poll { ReceivingThread::Poll } else { ReceivingThread::Background };
        (std::mem::take(&mut incoming.looking), by)
    }

    #[inline]
    fn finish(&self, (looking, by): Self::Rest) {
        for endpoint in looking {
            endpoint.receive(by);
        }
    }

    /// The thread has the receive lock of this connection.
    fn put_off(&self, (looking, _): Self::Rest, reads: &Endpoint) {
        let others = looking.iter().filter(|endpoint| !std::ptr::eq(&***endpoint, reads));
        others.for_each(|endpoint| endpoint.look_soon());
    }

    fn tell(&self, connection: &Connection, descriptors: &[RawFd]) -> io::Result<()> {
        match self.host.upgrade() {
            Some(host) => host.hub.handshakes.tell(connection, descriptors),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The connections of an ended channel go on by TCP, unless messages of the channel may have been lost.
    fn ended(channel: &Channel, is_distrusted: bool) {
        let Some(host) = channel.traffic().host.upgrade() else { return };
        host.forget(channel);
        for endpoint in host.endpoints() {
            endpoint.channel_ended(channel, is_distrusted);
        }
    }

    fn forget(&self, _: &mut Incoming) {}

    fn failed(_: &Channel) {}
}
