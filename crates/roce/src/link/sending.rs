//! Sending: which packets of which requests leave next, or which requests are carried out without a packet.

use super::request::{length, operation};
use super::{ACKNOWLEDGE_EVERY, Link, Whereabouts, requests};
use crate::batch::Batch;
use crate::endpoint::{Endpoint, Turn};
use crate::lane::Lane;
use crate::local::{Channel, Outlet};
use crate::observer;
use crate::peer::Sent;
use crate::{local, lock};
use adverb_core::busy::Busy;
use adverb_core::heard::{self, Heard};
use adverb_core::log;
use adverb_core::memory::process;
use adverb_core::qp::{Queues, SendCursor, SendWork, State};
use adverb_core::request::{SendFlags, SendRequest, Status};
use adverb_core::transport::{AtPost, OneSided};
use adverb_core::watch;
use adverb_proto::ib::{CompletionStatus, Feedback, Loss, Request, Requester};
use adverb_samehost::{AtOnce, Carried, Copier, LONG, Step};
use adverb_wire::ib::header::MAX_HEADER;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that are copied to or from memory of the peer's process before others get their turn: what a post does itself.
const TURN: u32 = 1 << 20;
/// Packets by a channel that are not answered before another long request follows. The peer acknowledges before it has taken in all of them; and they
/// leave room in the channel, since to wait for some costs more. One-sided requests that have not begun may soon be carried out from here.
const AHEAD: u32 = ACKNOWLEDGE_EVERY + 16;

/// Carries out one-sided requests as they are posted.
struct Posted {
    lane: Arc<Lane>,
    channel: Arc<Channel>,
    at_once: AtOnce,
}

impl OneSided for Posted {
    #[inline]
    fn carry_out(&mut self, queues: &Queues, request: &SendRequest<'_>) -> AtPost {
        // The request may be about a message that has come: the lane acknowledges that first.
        // PRACTICE-ORDER-1
        if self.lane.owes() {
            return AtPost::No;
        }
        self.at_once.carry_out(&self.channel.neighbour, queues, request)
    }
}

impl Link {
    /// Enters what the program has posted before `until`, as far as it may begin.
    pub(super) fn enter(&mut self, endpoint: &Endpoint, cursor: &mut SendCursor, until: u64) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        let mut copied = 0;
        // PRACTICE-ORDER-1
        while let Some(work) = queues.send.peek(cursor).filter(|work| work.sequence < until) {
            let Some(requester) = &mut *self.requester else { return turn };
            if self.service == adverb_proto::ib::Service::Rc
                && let Some(channel) = &self.channel
                && !self.direct.has_failed(work.sequence)
                && self.direct.suits(&channel.neighbour, self.destination, &work, self.reads)
            {
                endpoint.is_direct.store(true, Ordering::Relaxed);
                // In order: what was posted before comes first.
                if !requester.is_idle() {
                    break;
                }
                if copied >= TURN || endpoint.is_copying() {
                    turn.copies = true;
                    break;
                }
                copied += self.direct.left(&work);
                // Others wait for the lane: long copies go on beside it.
                let busy = (work.length as usize <= process::SHORT).then_some(&endpoint.busy);
                match self.direct.execute(&mut self.reader, &channel.neighbour, queues, &work, busy) {
                    Step::Done => {
                        carried_out(queues, cursor, &work);
                        self.hasten(endpoint, channel);
                        continue;
                    }
                    Step::More => continue,
                    Step::Kernel => {
                        turn.copies = true;
                        break;
                    }
                    Step::Packet => {}
                }
            }
            if !requester.has_room() {
                break;
            }
            if requester.unanswered() >= AHEAD
                && work.length as usize > local::LONGEST_HERE
                && self.reliable
                && self.channel.is_some()
            {
                break;
            }
            if work.opcode.is_local() {
                // What was posted before may still be sent again, out of the memory that the key opens.
                // IB-RC-REQ-54, IB-QP-46
                if !queues.send.is_oldest(work.sequence) {
                    break;
                }
                cursor.advance();
                let end = queues.execute_locally(&work);
                queues.complete_send(work.sequence, end);
                if end != Status::Success {
                    turn.failed = true;
                    return turn;
                }
                continue;
            }
            cursor.advance();
            self.direct.begin_anew();
            let (operation, fault) = operation(endpoint, &work);
            let fault = if self.direct.has_failed(work.sequence) {
                Some(CompletionStatus::LocalProtection)
            } else {
                fault
            };
            requester.write_out(&mut requests(queues, self.channel.as_deref()));
            requester.push(Request {
                sequence: work.sequence,
                operation,
                length: length(&work),
                solicited: work.flags.contains(SendFlags::SOLICITED),
                fence: work.flags.contains(SendFlags::FENCE),
                shared_queue: work.shared_queue,
            });
            queues.counters.tx_messages.add(1);
            if !work.opcode.is_read_or_atomic() {
                queues.counters.tx_bytes.add(work.length.into());
            }
            if let Some(fault) = fault {
                turn.failed |= self.fail(endpoint, cursor, work.sequence, fault, &mut turn);
            }
        }
        turn
    }

    /// Whether no request is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.direct.has_begun() && self.requester.as_ref().is_none_or(Requester::is_idle)
    }

    /// Carries out what has been posted, as far as it needs no packet and nothing is before it. `busy`: by the kernel's copy, too.
    #[inline]
    pub(crate) fn carry_out(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        busy: Option<&Busy>,
    ) -> Carried {
        let queues = &endpoint.queues;
        let Some(channel) = &self.channel else { return Carried::Packets };
        if self.requester.as_ref().is_none_or(|requester| !requester.is_idle()) {
            return Carried::Packets;
        }
        let (mut copied, mut shared) = (0, None);
        while let Some(work) = queues.send.peek(cursor) {
            // IB-QP-7
            if queues.state() == State::Sqd && !self.direct.has_begun() {
                queues.send_queue_drained();
                return Carried::All;
            }
            if self.service != adverb_proto::ib::Service::Rc
                || self.direct.has_failed(work.sequence)
                || !self.direct.suits(&channel.neighbour, self.destination, &work, self.reads)
            {
                return Carried::Packets;
            }
            // It may be about a message that has come since, to whichever thread has posted it: the lane acknowledges that first.
            // PRACTICE-ORDER-1
            if endpoint.lane.owes() && !self.direct.has_begun() {
                return Carried::Packets;
            }
            // A post may leave most of a long operation to another thread.
            if work.length >= LONG && busy.is_none() && shared.is_none() && !self.direct.has_begun() {
                let (will_sleep, copies) = (queues.send_cq.is_armed(), &endpoint.net.local.copies);
                let share = copies.takes(|| endpoint.this(), (work.length, TURN), will_sleep);
                shared = share.map(|share| copied + share);
            }
            if shared.is_some_and(|most| copied >= most) {
                return Carried::Shared;
            }
            if copied >= TURN {
                return Carried::Part;
            }
            copied += self.direct.left(&work);
            match self.direct.execute(&mut self.reader, &channel.neighbour, queues, &work, busy) {
                Step::Done => {
                    carried_out(queues, cursor, &work);
                    self.hasten(endpoint, channel);
                }
                Step::More => {}
                Step::Kernel if shared.is_some() => return Carried::Shared,
                Step::Kernel => return Carried::Kernel,
                Step::Packet => return Carried::Packets,
            }
        }
        Carried::All
    }

    /// From now on short requests of one element are carried out as they are posted, if those before them were.
    fn hasten(&self, endpoint: &Endpoint, channel: &Arc<Channel>) {
        endpoint.queues.send.install(|| {
            let at_once = self.direct.at_once(&channel.neighbour, &endpoint.queues, self.reads)?;
            Some(Box::new(Posted { lane: endpoint.lane.clone(), channel: channel.clone(), at_once }))
        });
    }

    /// Packets are on their way to the peer.
    #[inline]
    pub(super) fn charge(&self, endpoint: &Endpoint, batch: &mut Batch, sent: Sent, now: Duration) {
        if self.channel.is_some() {
            // The channel itself says when it is full.
        } else if self.reliable {
            lock(&self.peer.window).sent(sent.cost);
        } else {
            self.peer.charge(&endpoint.net, batch, &self.way, sent, now);
        }
    }

    /// What may be in flight to the peer now.
    pub(super) fn room(&self) -> u32 {
        if self.channel.is_some() {
            u32::MAX
        } else if self.reliable {
            lock(&self.peer.window).room()
        } else {
            self.peer.unreliable_room()
        }
    }

    /// Sends up to `most` packets of requests, of those that were posted before `until`.
    #[inline]
    pub(crate) fn send(
        &mut self,
        endpoint: &Endpoint,
        (cursor, until): (&mut SendCursor, u64),
        batch: &mut Batch,
        most: usize,
        now: Duration,
        space: &mut [u8; MAX_HEADER],
    ) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        let (mut full, mut lends_often) = (false, false);
        if self.whereabouts == Whereabouts::Sought {
            return turn;
        }
        if self.is_cut_off() {
            self.direct.forget();
        }
        if queues.state() != State::Sqd {
            turn = self.enter(endpoint, cursor, until);
            if turn.failed || turn.stopped {
                return turn;
            }
        }
        if self.requester.as_ref().is_none_or(Requester::is_idle) {
            return turn;
        }
        if self.is_cut_off() {
            return self.give_up(endpoint, turn);
        }
        let mut room = self.room();
        let (mut spent, mut sent) = (Sent::default(), 0);
        let counts_receives = !self.reliable && self.channel.is_none();
        turn.more = true;
        let channel = self.channel.clone();
        let mut outlet = Outlet::new(batch, channel.as_ref());
        // What does not fit is lost, then.
        let stuck = channel.as_ref().filter(|channel| !self.reliable && channel.is_stuck());
        let lossy = stuck.is_some_and(|channel| {
            let has_room = outlet.has_room();
            if has_room {
                channel.is_moving();
            }
            !has_room
        });
        for _ in 0..most {
            if !outlet.has_room() && !lossy {
                full = outlet.is_channel();
                break;
            }
            let Some(requester) = &mut *self.requester else { break };
            // Nobody would tell that a message has found no receive: the packet that takes one leaves when there is one ([`crate::pace`]).
            let begins = counts_receives && room > 0 && requester.is_to_take_receive();
            let has_begun = begins && self.peer.begin();
            let waits = room == 0 || begins && !has_begun;
            // Without room, too: a probe goes in any case.
            let Some(outbound) = requester.poll_transmit(now, if waits { 0 } else { room }, space) else {
                if has_begun {
                    self.peer.not_begun(endpoint, self.way.route);
                }
                turn.more = false;
                if !waits {
                    break;
                }
                self.peer.wait(endpoint, self.way.route);
                // An acknowledgement that came meanwhile has found nobody waiting.
                room = self.room().saturating_sub(spent.cost);
                if room == 0 || begins && !self.peer.may_begin() {
                    break;
                }
                turn.more = true;
                continue;
            };
            let head = &space[..outbound.header];
            if !outbound.repeated && watch::packets() {
                observer::begun(queues.number, outbound.sequence, head);
            }
            let added = match outbound.payload {
                None => outlet.add(&self.way, head, 0, |_| Ok(())),
                Some(source) => {
                    let work = queues.send.read(source.sequence);
                    let length = source.length as usize;
                    if length > local::LONGEST_HERE {
                        // What is sent again may be what the receiver could not read.
                        let look = outbound.repeated;
                        lends_often |=
                            !look && self.lending.count(queues.send.sge(&work, 0).lkey, source.length);
                        outlet.refer(queues, &self.way, head, length, |take| {
                            queues.locate(&work, source.offset, source.length, look, take)
                        })
                    } else {
                        outlet.add(&self.way, head, length, |target| {
                            queues.gather(&work, source.offset, target)
                        })
                    }
                }
            };
            spent.cost += outbound.cost;
            spent.begun += u32::from(has_begun);
            if added.is_err() {
                drop(outlet);
                self.charge(endpoint, batch, std::mem::take(&mut spent), now);
                outlet = Outlet::new(batch, channel.as_ref());
                let end = CompletionStatus::LocalProtection;
                turn.failed |= self.fail(endpoint, cursor, outbound.sequence, end, &mut turn);
                if turn.failed || turn.stopped {
                    break;
                }
                continue;
            }
            sent += 1;
            room = room.saturating_sub(outbound.cost);
            if outbound.repeated {
                queues.counters.tx_repeated.add(1);
            }
            if outbound.finished {
                // IB-UC-3
                queues.complete_send(outbound.sequence, Status::Success);
            }
        }
        if !self.reliable
            && queues.state() == State::Sqd
            && self.requester.as_mut().is_some_and(Requester::drain)
        {
            // What was under way is complete as soon as it is sent.
            // IB-QP-7
            queues.send_queue_drained();
        }
        drop(outlet);
        self.charge(endpoint, batch, spent, now);
        if let Some(channel) = &channel {
            queues.counters.tx_local.add(sent);
            if lends_often {
                self.lending.look(&endpoint.net.local.sharing, &**channel, queues);
            }
            // Its turn comes when there is room again.
            let wait = if self.reliable { Channel::wait } else { Channel::wait_briefly };
            if full && wait(channel, endpoint) {
                turn.more = false;
            }
        }
        queues.counters.tx_frames.add(sent);
        // Without acknowledgements nothing else will say that a request about keys, which waited for those before it, can be carried out.
        turn.more |= !self.reliable
            && !turn.stopped
            && queues.state() == State::Rts
            && self.requester.as_ref().is_some_and(Requester::is_idle)
            && queues.send.has_work(cursor);
        turn
    }

    /// Acts on what the requester has learnt.
    #[inline]
    pub(super) fn learn(
        &mut self,
        endpoint: &Endpoint,
        feedback: Feedback,
        now: Duration,
        ready: &mut Vec<Arc<Endpoint>>,
    ) {
        let queues = &endpoint.queues;
        let counters = queues.counters;
        match feedback.loss {
            Loss::None => {}
            Loss::Gap => counters.naks_received.add(1),
            Loss::Timeout => counters.timeouts.add(1),
            Loss::NotReady => {
                counters.not_ready_received.add(1);
                heard::tell(queues.number, Heard::NoReceiveThere);
            }
        }
        if matches!(feedback.loss, Loss::Timeout | Loss::NotReady) && !feedback.failed {
            let is_not_ready = feedback.loss == Loss::NotReady;
            let last = self.requester.as_ref().and_then(|requester| requester.last_retry(is_not_ready));
            if let Some(retries) = last {
                heard::tell(queues.number, Heard::LastRetry { retries, is_not_ready });
            }
        }
        if self.channel.is_none() {
            lock(&self.peer.window).learn(&feedback, now);
            if feedback.acknowledged > 0 || feedback.rewound > 0 {
                self.peer.wake(ready);
            }
        }
        if feedback.drained {
            queues.send_queue_drained();
        }
        if feedback.failed {
            let why = match feedback.loss {
                Loss::None => "",
                Loss::Gap => ": packets were lost again and again",
                Loss::Timeout => ": nobody answered in time, however often it was repeated",
                Loss::NotReady => ": the peer had no receive ready, however often it was repeated",
            };
            let peer = self.way.route.destination;
            // What was never acknowledged was not lost: the two do not fit.
            let first = self.requester.as_ref().and_then(Requester::never_acknowledged);
            let never = first.filter(|_| matches!(feedback.loss, Loss::Gap | Loss::Timeout));
            let destination = self.destination;
            let hint = never.map_or_else(String::new, |first| {
                format!(
                    "; the peer has never acknowledged anything: is its queue pair {destination:#x} (dest_qp_num), does that name {:#x}, \
                     and is its rq_psn {first:#x}, as sq_psn is here?",
                    queues.number
                )
            });
            log!(Warn, "queue pair {:#x}: a request to {peer} failed{why}{hint}", queues.number);
        }
    }
}

/// A request has been carried out in memory of the peer's process.
#[inline]
pub(super) fn carried_out(queues: &Queues, cursor: &mut SendCursor, work: &SendWork) {
    cursor.advance();
    queues.complete_oldest_send(work);
}
