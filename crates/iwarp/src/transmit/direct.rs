//! Requests that are carried out in the memory of the peer's process, which is on this host, instead of being
//! sent.
//!
//! That keeps the order: the peer must have taken in everything that was sent before. The peer publishes how
//! much it has ([`Direct::has_taken`]), and the answer to a Read says so of all before that Read. A request
//! for which it is too early goes by TCP as well. If many do, or a long one would, a Read of no bytes is sent
//! as a fence, and the request waits for its answer.

use super::Tx;
use crate::endpoint::{Cause, Endpoint, ReadSink};
use crate::local::{Channel, EndName, Inbox, published_name};
use crate::lock;
use crate::payload::Payload;
use crate::socket::Socket;
use crate::transmit::Then;
use adverb_core::memory::Reader;
use adverb_core::qp::SendWork;
use adverb_core::request::{Opcode, SendRequest, Sge, Status};
use adverb_core::transport::AtPost;
use adverb_proto::iwarp::{Outbound, ReadRequest};
use adverb_proto::keyed;
use adverb_samehost::{AtOnce, Copier, Direct, Step};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes that a thread copies in one turn, and so in one post. Polls and the background thread carry on
/// with the rest.
const MOST_BYTES_AT_ONCE: u32 = 1 << 20;
/// A request with so many bytes is worth a fence.
const LONG: u32 = 32 << 10;
/// More requests than this in a row are worth a fence, too, if each could have been carried out but for
/// others under way.
const FEW: u32 = 4;

/// The way into the peer's memory.
pub(super) struct Near {
    pub(super) channel: Arc<Channel>,
    pub(super) peer: EndName,
    /// The peer has been told that this end takes in messages through shared memory.
    pub(super) has_greeted: bool,
    /// The messages from there, and how much of those to there the peer has taken in.
    pub(super) inbox: Arc<Inbox>,
    /// The weight of all messages that have gone there, modulo 2^32.
    pub(super) sent: u32,
    /// So many messages more go by TCP, since the channel was full.
    pub(super) by_tcp: u32,
    /// This request's Write is carried out, and its immediate data follow.
    pub(super) written: Option<u64>,
    pub(super) direct: Direct,
    /// For short requests as they are posted.
    at_once: Option<AtOnce>,
    pub(super) reader: Reader,
    /// Requests in a row for which it was too early, and the last of them.
    early: u32,
    last_early: Option<u64>,
    /// Bytes that may be copied in this turn.
    left: u32,
}

/// How far this side has come with sending. Each word is a sum: the bytes of all frames so far, and one for
/// each message through shared memory.
#[derive(Default)]
pub(super) struct SendProgress {
    /// Bytes that frames have been made of.
    made: u64,
    /// Messages through shared memory.
    by_channel: u64,
    /// Behind the last frame of a request, or the last message.
    requested: u64,
    /// Behind the last request that is answered.
    asked: u64,
}

impl SendProgress {
    /// A frame has been made.
    pub(super) fn add(&mut self, length: usize, is_request: bool, is_asking: bool) {
        self.made += length as u64;
        if is_request {
            self.requested = self.made + self.by_channel;
        }
        if is_asking {
            self.asked = self.made + self.by_channel;
        }
    }

    /// A message has gone through shared memory.
    #[inline]
    pub(super) fn add_message(&mut self) {
        self.by_channel += 1;
        self.requested = self.made + self.by_channel;
    }

    /// Messages that have gone through shared memory.
    #[inline]
    pub(super) fn by_channel(&self) -> u64 {
        self.by_channel
    }

    /// Bytes that frames have been made of.
    #[inline]
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    /// Whether frames have been made.
    #[inline]
    pub(super) fn has_made(&self) -> bool {
        self.made > 0
    }
}

/// The way that a request takes.
pub(super) enum DirectOutcome {
    /// The request is carried out, or sent, without TCP.
    Done,
    /// The request goes by TCP.
    Tcp,
    /// The request's turn comes later.
    Later,
    /// A fence is to be sent, for whose answer it waits.
    Fence,
}

/// The part of a request that ends with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The request.
    Request,
    /// The first part of a request: immediate data follow.
    Part,
}

impl Tx {
    /// The connection's peer is `peer` of the process of `channel`.
    pub(crate) fn meets(
        &mut self,
        endpoint: &Endpoint,
        socket: &Arc<Socket>,
        channel: &Arc<Channel>,
        peer: EndName,
    ) {
        let Some(inbox) = self.inbox.clone() else { return };
        if self.near.is_none() && Arc::ptr_eq(&self.socket, socket) {
            self.near = Some(Box::new(Near {
                channel: channel.clone(),
                peer,
                has_greeted: false,
                inbox,
                sent: 0,
                by_tcp: 0,
                written: None,
                direct: Direct::default(),
                at_once: None,
                reader: Reader::new(&endpoint.queues.engine.keys),
                early: 0,
                last_early: None,
                left: 0,
            }));
        }
    }

    /// A turn of the thread with the transmit lock begins. `carries_on`: it is one of the turns in which long
    /// operations go on.
    pub(super) fn begin_turn(&mut self, endpoint: &Endpoint, carries_on: bool) {
        self.copies = false;
        if let Some(near) = &mut self.near {
            near.greet(endpoint);
            near.left = if carries_on || !endpoint.is_copying() { MOST_BYTES_AT_ONCE } else { 0 };
        }
    }

    /// A turn of the thread with the transmit lock ends.
    pub(super) fn end_turn(&mut self, endpoint: &Endpoint) {
        if self.near.is_some() {
            self.begins_to_copy |= self.copies && !endpoint.is_copying();
            endpoint.set_copying(self.copies);
        }
    }

    /// Whether polls and the background thread are to carry on with long operations from now on. The caller
    /// has them do so.
    pub(crate) fn begins_to_copy(&mut self) -> bool {
        std::mem::take(&mut self.begins_to_copy)
    }

    /// The connection ends.
    pub(crate) fn end(&mut self, endpoint: &Endpoint) {
        if let Some(mut near) = self.near.take() {
            near.direct.end(&endpoint.queues);
            near.channel.forget(endpoint);
        }
    }

    /// Whether the peer has taken in all requests that were sent.
    fn is_quiet(progress: &SendProgress, near: &mut Near, endpoint: &Endpoint) -> bool {
        lock(&endpoint.reads).is_empty()
            && (progress.asked >= progress.requested
                || near.direct.has_taken(&near.channel.neighbour, near.published(), progress.requested))
    }

    /// Carries out a request, if it needs no TCP.
    pub(super) fn go_direct(
        &mut self,
        endpoint: &Endpoint,
        work: &SendWork,
        extent: Extent,
    ) -> Result<DirectOutcome, Cause> {
        let Self { near, progress, may_read, closing, copies, .. } = self;
        let Some(near) = near else { return Ok(DirectOutcome::Tcp) };
        let queues = &endpoint.queues;
        let is_read = work.opcode.is_read_or_atomic();
        // The peer waits for a first frame, which goes by TCP.
        let may = progress.requested > 0 && !(is_read && work.sges > 1);
        if !may || !near.direct.suits(&near.channel.neighbour, near.published(), work, *may_read) {
            endpoint.goes_by_tcp();
            near.direct.begin_anew();
            return Ok(DirectOutcome::Tcp);
        }
        // A Read whose answer has come may not be complete yet: the receiving thread completes it, under the
        // receive lock.
        if !Self::is_quiet(progress, near, endpoint) || !queues.send.is_oldest(work.sequence) {
            if extent == Extent::Part {
                // A fence is answered once the messages before it have their receives. A message must not
                // wait for the receives of others.
                near.direct.begin_anew();
                endpoint.goes_by_tcp();
                return Ok(DirectOutcome::Tcp);
            }
            return Ok(near.too_early(endpoint, work, progress, *may_read, *closing));
        }
        (near.early, near.last_early) = (0, None);
        // The peer's answer is taken in after the completion is reported.
        // PRACTICE-ORDER-1
        let round = endpoint.rounds.begin();
        let step = loop {
            if near.left == 0 {
                break Step::More;
            }
            near.left = near.left.saturating_sub(near.direct.left(work));
            let (neighbour, busy) = (&near.channel.neighbour, Some(&endpoint.busy));
            match near.direct.execute(&mut near.reader, neighbour, queues, work, busy) {
                Step::More => {}
                step => break step,
            }
        };
        if step == Step::Done && extent == Extent::Request {
            self.cursor.advance();
            queues.complete_oldest_send(work);
        }
        endpoint.rounds.end(round);
        if near.direct.has_failed(work.sequence) {
            return Err(Cause::Request { sequence: work.sequence, status: Status::LocalProtection });
        }
        let is_direct = step != Step::Packet;
        endpoint.is_direct.store(is_direct, Ordering::Relaxed);
        Ok(match step {
            Step::Done => DirectOutcome::Done,
            Step::More | Step::Kernel => {
                *copies = true;
                DirectOutcome::Later
            }
            Step::Packet => DirectOutcome::Tcp,
        })
    }

    /// Whether nothing is being sent, or is to be.
    #[inline]
    pub(super) fn is_idle(&self, endpoint: &Endpoint) -> bool {
        self.unsent.is_none()
            && !self.sender.is_busy()
            && self.immediate.is_none()
            && !(self.full || self.closing || self.indicate_again || endpoint.is_copying())
            && endpoint.may_send.load(Ordering::SeqCst)
    }

    /// Carries out a request that is being posted, if it needs no TCP and everything before it is complete.
    #[inline]
    pub(crate) fn carry_out_at_once(&mut self, endpoint: &Endpoint, request: &SendRequest<'_>) -> bool {
        let queues = &endpoint.queues;
        let is_idle = self.is_idle(endpoint) && self.progress.requested > 0;
        let Some(near) = self.near.as_mut().filter(|_| is_idle) else { return false };
        // To wake a thread that waits for the completion takes a system call, for which no other poster is to
        // wait.
        let wakes = queues.send_cq.is_armed() && queues.reports(request.flags);
        let may = (request.opcode == Opcode::Write || self.may_read) && !wakes;
        if !may || !queues.send.is_drained() || !Self::is_quiet(&self.progress, near, endpoint) {
            return false;
        }
        let neighbour = &near.channel.neighbour;
        if near.at_once.is_none() {
            near.at_once = near.direct.at_once(neighbour, queues, true);
        }
        let Some(at_once) = &mut near.at_once else { return false };
        // PRACTICE-ORDER-1
        let round = endpoint.rounds.begin();
        let step = at_once.carry_out(neighbour, queues, request);
        match step {
            AtPost::Done(length) => {
                (near.early, near.last_early) = (0, None);
                queues.pass_send(&mut self.cursor, request, length);
            }
            AtPost::No => {}
            AtPost::Over => near.at_once = None,
        }
        endpoint.rounds.end(round);
        matches!(step, AtPost::Done(_))
    }

    /// Sends a Read of no bytes, whose answer says that everything before it has been taken in.
    pub(super) fn begin_fence(&mut self, endpoint: &Endpoint) -> Result<bool, Cause> {
        self.sinks += 1;
        let nonce = keyed::word(self.sink_key, self.sinks);
        let request = ReadRequest {
            sink_stag: nonce as u32,
            sink_to: nonce >> 32,
            len: 0,
            source_stag: 0,
            source_to: 0,
        };
        let sink = ReadSink { sequence: None, sge: Sge::default() };
        if lock(&endpoint.reads).push_read(&request, sink).is_err() {
            return Ok(false);
        }
        self.begin(endpoint, Outbound::ReadRequest(request), Payload::None, Then::Nothing)
    }
}

impl Near {
    /// The peer's queue pair, as it is published.
    #[inline]
    fn published(&self) -> u32 {
        published_name(self.peer.number)
    }

    /// Something that was sent before a request may be under way.
    fn too_early(
        &mut self,
        endpoint: &Endpoint,
        work: &SendWork,
        progress: &SendProgress,
        may_read: bool,
        closing: bool,
    ) -> DirectOutcome {
        if self.direct.has_begun() {
            // The first part was carried out, and nothing has been sent since. So the peer has taken back its
            // word on how much it has taken in.
            self.direct.begin_anew();
        }
        if self.last_early != Some(work.sequence) {
            (self.early, self.last_early) = (self.early.saturating_add(1), Some(work.sequence));
        }
        let is_worth_it = work.length >= LONG || self.early > FEW;
        if !is_worth_it || closing {
            return DirectOutcome::Tcp;
        }
        let reads = lock(&endpoint.reads);
        match () {
            // The answer to come tells that the peer has taken in all requests.
            () if !reads.is_empty() && progress.asked >= progress.requested => DirectOutcome::Later,
            () if may_read && !reads.is_full() => DirectOutcome::Fence,
            () => DirectOutcome::Tcp,
        }
    }
}
