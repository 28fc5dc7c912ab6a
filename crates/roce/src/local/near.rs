//! The way of a connected queue pair to a peer whose process is on this host: by a [`Channel`], and in the
//! memory of that process.
//!
//! Its queue pair's [`Link`](crate::link::Link) has requester and responder, whose packets go by the channel.
//! One-sided requests need no packet as a rule: they are carried out here.

use super::carrier::Carrier;
use super::channel::Channel;
use super::straight::Posting;
use super::{Delivery, LONGEST_HERE, MTU};
use crate::endpoint::Endpoint;
use crate::lane::Lane;
use crate::link::ACKNOWLEDGE_EVERY;
use adverb_core::busy::Busy;
use adverb_core::memory::process;
use adverb_core::qp::{Queues, SendCursor, SendWork, Service, State};
use adverb_core::request::SendRequest;
use adverb_core::transport::{AtPost, OneSided};
use adverb_proto::ib::{CompletionStatus, Requester};
use adverb_samehost::{AtOnce, CopyProgress, Direct, LONG, Lending, PublishedPair, Step, Terms};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes that a thread copies to or from memory of the peer's process in one turn, and so in one post.
/// Other threads carry on with the rest.
const MOST_BYTES_AT_ONCE: u32 = 1 << 20;
/// Packets that are not answered before another long request follows. The peer acknowledges before it has
/// taken in all of them; and they leave room in the channel, since to wait for some costs more. One-sided
/// requests that have not begun may soon be carried out from here.
const AHEAD: u32 = ACKNOWLEDGE_EVERY + 16;

/// The way of a connected queue pair to a peer on this host: a channel, and the memory of the peer's process.
/// The queue pair's lock protects it.
pub(crate) struct Near {
    pub(super) channel: Arc<Channel>,
    pub(super) posting: Posting,
    service: Service,
    /// The peer's queue pair.
    peer: u32,
    /// The peer's rights: bits of [`adverb_core::memory::Access`].
    permitted: u32,
    /// Whether the queue pair may have reads under way.
    reads: bool,
    /// The operations that the queue pair carries out in memory of the peer's process by itself.
    direct: Direct,
    /// The entry by which the peer's process carries out operations here.
    published: Option<PublishedPair>,
    /// The memory that the queue pair sends from time and again, and whether that is to be looked at.
    lending: Lending,
    lends_often: bool,
}

/// The result of a request's turn at the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnOutcome {
    /// The request is carried out, or a part of it is: the next look finds the next step.
    On,
    /// Requests that were posted before come first.
    Later,
    /// The request goes on beside the lane.
    Beside,
    /// The request needs a packet.
    Packet,
}

/// Carries out one-sided requests as they are posted.
struct DirectPost {
    lane: Arc<Lane>,
    channel: Arc<Channel>,
    at_once: AtOnce,
}

impl OneSided for DirectPost {
    #[inline]
    fn carry_out(&mut self, queues: &Queues, request: &SendRequest<'_>) -> AtPost {
        // The request may be about a message that has come: the lane acknowledges that first.
        // PRACTICE-ORDER-1
        if self.lane.has_pending_acks() {
            return AtPost::No;
        }
        self.at_once.carry_out(&self.channel.neighbour, queues, request)
    }
}

impl Near {
    /// The way of a queue pair to queue pair `peer` at the other end of a channel.
    pub(super) fn new(queues: &Queues, peer: u32, channel: &Arc<Channel>) -> Self {
        let near = Self {
            channel: channel.clone(),
            posting: Posting::new(&queues.engine.keys),
            service: queues.service,
            peer,
            permitted: 0,
            reads: false,
            direct: Direct::default(),
            published: None,
            lending: Lending::default(),
            lends_often: false,
        };
        if near.is_reliable() {
            channel.traffic().count_reliable(true);
        }
        near
    }

    fn is_reliable(&self) -> bool {
        self.service != Service::Uc
    }

    /// Whether payload stays where it is until the receiver fetches it. An unacknowledged request is complete
    /// as soon as it is sent, and its memory is the program's again.
    fn fetches(&self) -> bool {
        self.is_reliable() && self.channel.neighbour.reads()
    }

    /// Bytes of payload in a packet.
    pub(crate) fn mtu(&self) -> u32 {
        if self.fetches() { MTU } else { LONGEST_HERE as u32 }
    }

    /// A longer read of the peer's need not be kept: its answer says where the bytes are.
    pub(crate) fn longest_kept(&self) -> u32 {
        if self.fetches() { LONGEST_HERE as u32 } else { u32::MAX }
    }

    /// The requester's packets go this way.
    pub(crate) fn fit(&self, requester: &mut Requester) {
        requester.set_mtu(self.mtu());
        // As times are taken there.
        requester.set_clock_lags();
        // The peer lends the bytes of its answers to longer reads; or could not keep all of them, where it
        // lends nothing.
        requester.set_longest_overtaken(LONGEST_HERE as u32);
    }

    /// The rights that the program gives its peer, and whether its queue pair may have reads under way.
    pub(crate) fn permit(&mut self, permitted: u32, reads: bool) {
        if self.permitted != permitted {
            self.published = None;
        }
        (self.permitted, self.reads) = (permitted, reads);
    }

    /// The carrier by which the packets leave.
    #[inline]
    pub(crate) fn carrier(&self) -> Carrier {
        Carrier::of(&self.channel)
    }

    /// Whether a delivery has come from the peer's process.
    pub(crate) fn has_sent(&self, delivery: &Delivery<'_>) -> bool {
        self.goes_by(delivery.channel)
    }

    /// Whether a channel is the one to the peer's process.
    #[inline]
    pub(super) fn goes_by(&self, channel: &Channel) -> bool {
        std::ptr::eq(&*self.channel, channel)
    }

    /// The queue pair has failed or goes: the peer's process fetches nothing of it any more.
    #[cold]
    pub(crate) fn take_back(&self, queues: &Queues) {
        self.channel.neighbour.loans().withdraw(queues.number);
    }

    /// Whether the process of the peer has gone: nothing will be answered any more.
    pub(crate) fn is_cut_off(&mut self) -> bool {
        let is_cut_off = self.is_reliable() && self.channel.is_dead();
        if is_cut_off {
            self.direct.forget();
        }
        is_cut_off
    }

    /// Once the result has been dropped, the peer's process carries out nothing here itself.
    pub(crate) fn keep_out(&mut self) -> Option<PublishedPair> {
        self.published.take()
    }

    /// The queue pair goes to error or away.
    pub(crate) fn end(&mut self, endpoint: &Endpoint) {
        self.posting.count(&endpoint.queues, false);
        self.published = None;
        self.direct.end(&endpoint.queues);
        if self.is_reliable() {
            self.channel.traffic().count_reliable(false);
        }
        self.channel.forget(endpoint);
        // Before the program hears that its requests are flushed.
        self.take_back(&endpoint.queues);
    }

    /// Whether so many packets are not answered that a request of `length` bytes waits.
    pub(crate) fn is_far_ahead(&self, unanswered: u32, length: u32) -> bool {
        unanswered >= AHEAD && length as usize > LONGEST_HERE && self.is_reliable()
    }

    /// Whether some of a request has been carried out.
    pub(crate) fn has_begun(&self) -> bool {
        self.direct.has_begun()
    }

    /// A request goes as a packet, all of it. Returns why it fails, if it was carried out and its result has
    /// found no place.
    pub(crate) fn leave_to_packets(&mut self, sequence: u64) -> Option<CompletionStatus> {
        self.direct.begin_anew();
        self.direct.has_failed(sequence).then_some(CompletionStatus::LocalProtection)
    }

    #[inline(always)]
    fn suits(&mut self, work: &SendWork) -> bool {
        self.service == Service::Rc
            && !self.direct.has_failed(work.sequence)
            && self.direct.suits(&self.channel.neighbour, self.peer, work, self.reads)
    }

    /// A step of a request. `busy`: by the kernel's copy, too.
    #[inline(always)]
    fn step(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        work: &SendWork,
        busy: Option<&Busy>,
    ) -> Step {
        let (queues, neighbour) = (&endpoint.queues, &self.channel.neighbour);
        let step = self.direct.execute(&mut self.posting.reader, neighbour, queues, work, busy);
        if step == Step::Done {
            cursor.advance();
            queues.complete_oldest_send(work);
            self.hasten(endpoint);
        }
        step
    }

    /// Carries out a request in its turn at the lane, if it needs no packet and everything before it is
    /// complete (`is_first`). `copied`: bytes in this turn.
    pub(crate) fn enter(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        work: &SendWork,
        is_first: bool,
        copied: &mut u32,
    ) -> TurnOutcome {
        if !self.suits(work) {
            return TurnOutcome::Packet;
        }
        endpoint.beside.is_direct.store(true, Ordering::Relaxed);
        if !is_first {
            return TurnOutcome::Later;
        }
        if *copied >= MOST_BYTES_AT_ONCE || endpoint.beside.copying.go_on() {
            return TurnOutcome::Beside;
        }
        *copied += self.direct.left(work);
        // Others wait for the lane: long copies go on beside it.
        let busy = (work.length as usize <= process::SHORT).then_some(&endpoint.busy);
        match self.step(endpoint, cursor, work, busy) {
            Step::Done | Step::More => TurnOutcome::On,
            Step::Kernel => TurnOutcome::Beside,
            Step::Packet => TurnOutcome::Packet,
        }
    }

    /// Carries out posted requests, as far as they need no packet; everything before them must be complete.
    /// `busy`: by the kernel's copy, too.
    #[inline]
    pub(crate) fn carry_out(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        busy: Option<&Busy>,
    ) -> CopyProgress {
        let queues = &endpoint.queues;
        let (mut copied, mut shared) = (0, None);
        while let Some(work) = queues.send.peek(cursor) {
            // IB-QP-7
            if queues.state() == State::Sqd && !self.direct.has_begun() {
                queues.send_queue_drained();
                return CopyProgress::All;
            }
            if !self.suits(&work) {
                return CopyProgress::Packets;
            }
            // The request may be about a message that has come since, to the thread that posted it or to
            // another one. The lane acknowledges that message first. PRACTICE-ORDER-1
            if endpoint.lane.has_pending_acks() && !self.direct.has_begun() {
                return CopyProgress::Packets;
            }
            // A post may leave most of a long operation to another thread.
            if work.length >= LONG && busy.is_none() && shared.is_none() && !self.direct.has_begun() {
                let (will_sleep, copies) = (queues.send_cq.is_armed(), &endpoint.net.local.hub.copies);
                let share = copies.takes(|| endpoint.this(), (work.length, MOST_BYTES_AT_ONCE), will_sleep);
                shared = share.map(|share| copied + share);
            }
            if shared.is_some_and(|most| copied >= most) {
                return CopyProgress::Shared;
            }
            if copied >= MOST_BYTES_AT_ONCE {
                return CopyProgress::Part;
            }
            copied += self.direct.left(&work);
            match self.step(endpoint, cursor, &work, busy) {
                Step::Done | Step::More => {}
                Step::Kernel if shared.is_some() => return CopyProgress::Shared,
                Step::Kernel => return CopyProgress::Kernel,
                Step::Packet => return CopyProgress::Packets,
            }
        }
        CopyProgress::All
    }

    /// From now on short requests of one element are carried out as they are posted, if those before them
    /// were.
    fn hasten(&self, endpoint: &Endpoint) {
        let (lane, channel) = (&endpoint.lane, &self.channel);
        endpoint.queues.send.install(|| {
            let at_once = self.direct.at_once(&channel.neighbour, &endpoint.queues, self.reads)?;
            Some(Box::new(DirectPost { lane: lane.clone(), channel: channel.clone(), at_once }))
        });
    }

    /// Takes note that so many bytes of a request are about to leave. The receiver may have been unable to
    /// read bytes that are sent again.
    #[inline]
    pub(crate) fn note_payload(&mut self, queues: &Queues, work: &SendWork, length: u32, is_repeated: bool) {
        if length as usize > LONGEST_HERE && !is_repeated {
            self.lends_often |= self.lending.count(queues.send.sge(work, 0).lkey, length);
        }
    }

    /// Takes note that so many packets of requests have left in this turn.
    pub(crate) fn has_left(&mut self, endpoint: &Endpoint, packets: u64) {
        endpoint.queues.counters.tx_local.add(packets);
        if std::mem::take(&mut self.lends_often) {
            self.lending.look(&endpoint.net.local.hub.sharing, &*self.channel, &endpoint.queues);
        }
    }

    /// The peer has used memory of ours by packets: before long it does so without us.
    #[inline]
    pub(crate) fn used(&mut self, endpoint: &Endpoint, key: u32) {
        if self.service != Service::Rc {
            return;
        }
        let (queues, sharing) = (&endpoint.queues, &endpoint.net.local.hub.sharing);
        let (peer, access) = (self.peer, self.permitted);
        let terms = || Terms { number: queues.number, peer, domain: queues.domain, access };
        sharing.served(&*self.channel, queues, key, &mut self.published, terms);
    }
}
