//! A connection as the program knows it: a sink for its events, and perhaps a queue pair that is taken to RTS
//! and to error with it.

use super::message::{Own, granted};
use super::{Manager, ManagerPeer};
use crate::endpoint::{Endpoint, Observer};
use crate::lock;
use crate::orphans::{Entry, Record};
use adverb_core::cm::{Agreement, ConnectionEvent, ConnectionSink, OutgoingConnection};
use adverb_core::engine;
use adverb_core::error::{Error, Result};
use adverb_core::qp::{AttributeMask, Attributes, QueuePair, State};
use adverb_core::reactor::{Readiness, Source};
use adverb_proto::cm;
use adverb_wire::ib::cm::{Rep, Req};
use adverb_wire::ib::mad::MAD_LEN;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// How often, and how many times, it is looked whether what was posted before a disconnect has arrived.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
const DRAIN_LOOKS: u32 = 500;

/// A connection as the program knows it: a sink for its events, and perhaps a queue pair that changes its
/// states with the connection.
pub(super) struct Link {
    pub(super) id: u32,
    sink: Arc<dyn ConnectionSink>,
    /// The queue pair, while the program manages it through us.
    queue_pair: Option<Weak<QueuePair>>,
    pub(super) peer: ManagerPeer,
    local: SocketAddr,
    own: Own,
    /// The request that we sent.
    request: Option<Box<Req>>,
    agreement: OnceLock<Agreement>,
    /// The peer's communication ID and queue pair; 0 while they are not known.
    remote_id: AtomicU32,
    pub(super) remote_number: AtomicU32,
    /// The UDP port where the peer's process hears messages, if it has said so; otherwise 0.
    pub(super) port: AtomicU16,
    /// The request as it was sent, while it has no answer.
    pub(super) asked: Mutex<Option<Box<[u8; MAD_LEN]>>>,
    /// Where the record for those who survive us has it; [`UNWRITTEN`] if it has not.
    place: AtomicU32,
    established: AtomicBool,
    /// The program has disconnected.
    ending: AtomicBool,
    /// The last event but the end of the timed wait was reported.
    ended: AtomicBool,
}

/// What a new link is made of.
pub(super) struct New {
    pub(super) id: u32,
    pub(super) sink: Arc<dyn ConnectionSink>,
    pub(super) queue_pair: Option<Weak<QueuePair>>,
    pub(super) peer: ManagerPeer,
    pub(super) local: SocketAddr,
    pub(super) own: Own,
    pub(super) request: Option<Box<Req>>,
    pub(super) agreement: Option<Agreement>,
    pub(super) remote_id: u32,
}

const UNWRITTEN: u32 = u32::MAX;

impl Link {
    pub(super) fn new(new: New) -> Arc<Self> {
        let remote_number = new.agreement.map_or(0, |agreement| agreement.destination);
        Arc::new(Self {
            id: new.id,
            sink: new.sink,
            queue_pair: new.queue_pair,
            peer: new.peer,
            local: new.local,
            own: new.own,
            request: new.request,
            agreement: new.agreement.map_or_else(OnceLock::new, OnceLock::from),
            remote_id: AtomicU32::new(new.remote_id),
            remote_number: AtomicU32::new(remote_number),
            port: AtomicU16::new(0),
            asked: Mutex::default(),
            place: AtomicU32::new(UNWRITTEN),
            established: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        })
    }

    fn queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.queue_pair.as_ref().and_then(Weak::upgrade)
    }

    pub(super) fn report(&self, event: ConnectionEvent) {
        self.sink.event(event);
    }

    /// The last event but the end of the timed wait; there is one at most.
    pub(super) fn finish(&self, event: ConnectionEvent) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            self.strike_out();
            if matches!(event, ConnectionEvent::Disconnected) {
                self.take_in();
                self.fail_queue_pair();
            }
            self.sink.event(event);
        }
    }

    pub(super) fn is_established(&self) -> bool {
        self.established.load(Ordering::Acquire)
    }

    pub(super) fn set_established(&self) {
        if self.established.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(record) = Record::inherited() else { return };
        let entry = Entry {
            local_id: self.id,
            remote_id: self.remote_id.load(Ordering::Acquire),
            remote_number: self.remote_number.load(Ordering::Acquire),
            local: self.peer.local,
            peer: self.peer.address,
            scope: self.peer.scope,
        };
        if let Some(place) = record.note(&entry) {
            self.place.store(place, Ordering::SeqCst);
            // A thread that has ended the connection meanwhile may have looked for the place before it was
            // there.
            if self.ended.load(Ordering::SeqCst) {
                self.strike_out();
            }
        }
    }

    /// The connection has ended: nobody need say so in our name.
    pub(super) fn strike_out(&self) {
        let place = self.place.swap(UNWRITTEN, Ordering::SeqCst);
        if let (Some(record), true) = (Record::inherited(), place != UNWRITTEN) {
            record.forget(place);
        }
    }

    /// The peer has accepted (IB-CM-19): the queue pair is made ready and the peer told, or the program has
    /// to do so.
    pub(super) fn accepted(&self, manager: &Manager, reply: &Rep) {
        let Some(request) = &self.request else { return };
        *lock(&self.asked) = None;
        self.remote_id.store(reply.local_communication_id, Ordering::Release);
        self.remote_number.store(reply.queue_pair(), Ordering::Release);
        let gids = manager.host.gids();
        let (parameters, private_data) = (granted(reply), reply.private_data.to_vec());
        let agreed = super::message::agreement_of_reply(request, reply, self.own, &self.peer, &gids)
            .and_then(|agreement| {
                let _ = self.agreement.set(agreement);
                match &self.queue_pair {
                    Some(queue_pair) => make_ready(manager, self.id, queue_pair, &agreement).map(|()| true),
                    None => Ok(false),
                }
            });
        match agreed {
            Ok(true) => {
                self.set_established();
                // The peer may have given up meanwhile: then that is an event of its own.
                if manager.with(|cm, _| cm.ready(self.id)).is_ok_and(|ready| ready.is_ok()) {
                    self.report(ConnectionEvent::Established { parameters, private_data });
                }
            }
            Ok(false) => self.report(ConnectionEvent::Response { parameters, private_data }),
            Err(error) => {
                manager.drop_link(self);
                // IB-CM-24
                self.finish(ConnectionEvent::Failed { status: -error.errno() });
            }
        }
    }

    /// Takes in what has arrived for the queue pair: it came another way than the peer's disconnect request,
    /// and may say why there is one.
    fn take_in(&self) {
        let endpoint = self.queue_pair().map(|queue_pair| queue_pair.endpoint().clone().as_any());
        if let Some(Ok(endpoint)) = endpoint.map(|endpoint| endpoint.downcast::<Endpoint>()) {
            endpoint.lane.receive_all();
            endpoint.net.local.hub.channels.receive_all();
        }
    }

    fn fail_queue_pair(&self) {
        if let Some(queue_pair) = self.queue_pair() {
            let attributes = Attributes { state: Some(State::Error), ..Attributes::default() };
            // It may be in error, reset or destroyed already.
            let _ = queue_pair.modify(&attributes, AttributeMask::STATE);
        }
    }

    /// Whether something that was posted has not arrived yet, and still may.
    fn has_sends(&self) -> bool {
        self.queue_pair().is_some_and(|queue_pair| {
            queue_pair.state() == State::Rts && queue_pair.queues().send.outstanding() > 0
        })
    }

    /// Ends the connection, or the attempt to make one (IB-CM-40).
    fn release(&self, manager: &Manager) {
        if self.is_established() {
            self.fail_queue_pair();
            // It may have ended meanwhile.
            let _ = manager.with(|cm, now| cm.disconnect(self.id, now));
        } else {
            manager.drop_link(self);
            self.finish(ConnectionEvent::Failed { status: -libc::ECONNABORTED });
        }
        manager.send_out();
    }
}

/// Takes a queue pair in INIT to RTS, and hears from then on what happens to it.
pub(super) fn make_ready(
    manager: &Manager,
    id: u32,
    queue_pair: &Weak<QueuePair>,
    agreement: &Agreement,
) -> Result<()> {
    let Some(queue_pair) = queue_pair.upgrade() else {
        return Err(Error::invalid("the queue pair is gone"));
    };
    let limits = queue_pair.context().attributes();
    let clamp = |depth: u8, most: u32| u32::from(depth).min(most) as u8;
    let agreement = Agreement {
        responder_resources: clamp(agreement.responder_resources, limits.max_qp_rd_atom),
        initiator_depth: clamp(agreement.initiator_depth, limits.max_qp_init_rd_atom),
        path: agreement.path.in_table(&manager.host.gids(), &queue_pair.context().gids())?,
        ..*agreement
    };
    if let Ok(endpoint) = queue_pair.endpoint().clone().as_any().downcast::<Endpoint>() {
        endpoint.observe(Arc::new(Notes { manager: Arc::downgrade(&manager.this()), id }));
    }
    for state in [State::Rtr, State::Rts] {
        let (attributes, mask) = agreement.attributes(state)?;
        queue_pair.modify(&attributes, mask)?;
    }
    Ok(())
}

/// How long the peer is left alone after a queue pair has failed: what the queue pair itself has told it says
/// more.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// What happens to the queue pair of a connection. It is acted upon by the background thread.
struct Notes {
    manager: Weak<Manager>,
    id: u32,
}

impl Notes {
    fn act(&self, after: Duration, what: fn(&Link, &Manager)) {
        if let (Some(manager), Ok(engine)) = (self.manager.upgrade(), engine::engine())
            && let Some(link) = manager.link(self.id)
        {
            let _ = engine.reactor.set_timer(after, Arc::new(Note { manager, link, what }));
        }
    }
}

impl Observer for Notes {
    // IB-CM-30
    fn heard(&self) {
        self.act(Duration::ZERO, |link, manager| {
            // The active side knows already.
            let _ = manager.with(|cm, _| cm.establish(link.id));
            manager.pump();
        });
    }

    /// A connection without a queue pair is of no use: the peer is told, as with other transports. The
    /// program does not wait for the peer's answer, which may never come: more often than not the queue pair
    /// has failed because the peer is silent.
    fn ended(&self) {
        self.act(AFTER_FAILURE, |link, manager| {
            if link.is_established() && !link.ended.load(Ordering::Acquire) {
                link.release(manager);
                link.finish(ConnectionEvent::Disconnected);
            }
        });
    }
}

struct Note {
    manager: Arc<Manager>,
    link: Arc<Link>,
    what: fn(&Link, &Manager),
}

impl Source for Note {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        (self.what)(&self.link, &self.manager);
    }
}

/// The program's handle on a link.
pub(super) struct Handle {
    pub(super) manager: Arc<Manager>,
    pub(super) link: Arc<Link>,
}

impl OutgoingConnection for Handle {
    fn local(&self) -> Option<SocketAddr> {
        Some(self.link.local)
    }

    /// What was posted before goes out first, as far as that does not take long.
    fn disconnect(&self) -> Result<()> {
        let link = &self.link;
        if link.ended.load(Ordering::Acquire) || link.ending.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if link.has_sends() {
            let drain = Arc::new(Drain {
                manager: self.manager.clone(),
                link: link.clone(),
                looks: AtomicU32::new(DRAIN_LOOKS),
            });
            if drain.wait() {
                return Ok(());
            }
        }
        link.release(&self.manager);
        Ok(())
    }

    fn agreement(&self) -> Option<Agreement> {
        self.link.agreement.get().copied()
    }

    fn establish(&self) -> Result<()> {
        let late = |error: cm::Error| Error::invalid(format!("establishing the connection: {error}"));
        self.manager.with(|cm, _| cm.ready(self.link.id))?.map_err(late)?;
        self.link.set_established();
        self.manager.send_out();
        Ok(())
    }

    fn notify(&self) -> Result<()> {
        // On the active side, and afterwards, there is nothing to be told.
        let _ = self.manager.with(|cm, _| cm.establish(self.link.id))?;
        self.manager.send_out();
        Ok(())
    }
}

impl Drop for Handle {
    // IB-CM-48
    fn drop(&mut self) {
        let link = &self.link;
        link.ended.store(true, Ordering::SeqCst);
        if link.is_established() {
            link.fail_queue_pair();
        }
        self.manager.drop_link(link);
        self.manager.send_out();
        link.strike_out();
    }
}

/// Waits until what was posted before a disconnect has arrived.
struct Drain {
    manager: Arc<Manager>,
    link: Arc<Link>,
    looks: AtomicU32,
}

impl Drain {
    fn wait(self: &Arc<Self>) -> bool {
        engine::engine().and_then(|engine| engine.reactor.set_timer(DRAIN_PAUSE, self.clone())).is_ok()
    }
}

impl Source for Drain {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let looks = self.looks.fetch_sub(1, Ordering::Relaxed);
        if looks > 1 && !self.link.ended.load(Ordering::Acquire) && self.link.has_sends() && self.wait() {
            return;
        }
        self.link.release(&self.manager);
    }
}
