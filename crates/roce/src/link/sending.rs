//! Sending: which packets of which requests leave next.

use super::request::{length, operation};
use super::{Link, PeerLocation, requests};
use crate::batch::Batch;
use crate::endpoint::{Endpoint, TryAgain, Turn};
use crate::local::{Near, TurnOutcome};
use crate::lock;
use crate::observer;
use crate::peer::SentTotals;
use adverb_core::busy::Busy;
use adverb_core::heard::{self, EngineFinding};
use adverb_core::log;
use adverb_core::qp::{LocalOutcome, SendCursor, State};
use adverb_core::request::{SendFlags, Status};
use adverb_core::watch;
use adverb_proto::ib::{CompletionStatus, Feedback, Loss, Request, Requester};
use adverb_samehost::CopyProgress;
use adverb_wire::ib::header::MAX_HEADER;
use std::sync::Arc;
use std::time::Duration;

impl Link {
    /// Enters what the program has posted before `until`, as far as it may begin.
    pub(super) fn enter(&mut self, endpoint: &Endpoint, cursor: &mut SendCursor, until: u64) -> Turn {
        let queues = &endpoint.queues;
        let mut turn = Turn::default();
        let mut copied = 0;
        // PRACTICE-ORDER-1
        while let Some(work) = queues.send.peek(cursor).filter(|work| work.sequence < until) {
            let Some(requester) = &mut *self.requester else { return turn };
            if let PeerLocation::Near(near) = &mut self.location {
                match near.enter(endpoint, cursor, &work, requester.is_idle(), &mut copied) {
                    TurnOutcome::On => continue,
                    TurnOutcome::Later => break,
                    TurnOutcome::Beside => {
                        turn.goes_on_beside = true;
                        break;
                    }
                    TurnOutcome::Packet => {}
                }
            }
            if !requester.has_room()
                || self
                    .location
                    .near()
                    .is_some_and(|near| near.is_far_ahead(requester.unanswered(), work.length))
            {
                break;
            }
            if work.opcode.is_local() {
                // An earlier request may still be retransmitted from memory of this key.
                // IB-RC-REQ-54, IB-QP-46
                if !queues.send.is_oldest(work.sequence) {
                    break;
                }
                let again = || TryAgain::of(endpoint);
                let LocalOutcome::Done(end) = queues.execute_locally(&work, again) else {
                    endpoint.tries_again();
                    break;
                };
                cursor.advance();
                queues.complete_send(work.sequence, end);
                if end != Status::Success {
                    turn.failed = true;
                    return turn;
                }
                continue;
            }
            cursor.advance();
            let (operation, fault) = operation(endpoint, &work);
            let fault = match &mut self.location {
                PeerLocation::Near(near) => near.leave_to_packets(work.sequence).or(fault),
                _ => fault,
            };
            requester.write_out(&mut requests(queues, self.location.near()));
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
        !self.near().is_some_and(Near::has_begun) && self.requester.as_ref().is_none_or(Requester::is_idle)
    }

    /// Carries out what has been posted, as far as it needs no packet and nothing is before it. `busy`: by
    /// the kernel's copy, too.
    #[inline]
    pub(crate) fn carry_out(
        &mut self,
        endpoint: &Endpoint,
        cursor: &mut SendCursor,
        busy: Option<&Busy>,
    ) -> CopyProgress {
        match &mut self.location {
            PeerLocation::Near(near) if self.requester.as_ref().is_some_and(Requester::is_idle) => {
                near.carry_out(endpoint, cursor, busy)
            }
            _ => CopyProgress::Packets,
        }
    }

    /// Whether the process of the peer has gone: nothing will be answered any more.
    fn is_cut_off(&mut self) -> bool {
        let PeerLocation::Near(near) = &mut self.location else { return false };
        near.is_cut_off()
    }

    /// Packets are on their way to the peer.
    #[inline]
    pub(super) fn charge(&self, endpoint: &Endpoint, batch: &mut Batch, sent: SentTotals, now: Duration) {
        if self.near().is_some() {
            // The sink says when it is full.
        } else if self.reliable {
            lock(&self.peer.window).sent(sent.cost);
        } else {
            self.peer.charge(&endpoint.net, batch, &self.packet_route, sent, now);
        }
    }

    /// What may be in flight to the peer now.
    pub(super) fn room(&self) -> u32 {
        if self.near().is_some() {
            u32::MAX
        } else if self.reliable {
            lock(&self.peer.window).room()
        } else {
            self.peer.unreliable_room()
        }
    }

    /// Sends up to `most` packets of requests, of those that were posted before `until`. A function of its
    /// own: a thread that only sends acknowledgements, which may be deep in a call, takes less of the stack.
    #[inline(never)]
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
        let mut full = false;
        if matches!(self.location, PeerLocation::Sought) {
            return turn;
        }
        self.is_cut_off();
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
        let (mut spent, mut sent) = (SentTotals::default(), 0);
        let counts_receives = !self.reliable && self.near().is_none();
        turn.more = true;
        let carrier = self.location.carrier();
        let mut sink = carrier.sink(batch);
        // What does not fit is lost, then.
        let lossy = !self.reliable && sink.loses();
        for _ in 0..most {
            if !sink.has_room() && !lossy {
                full = true;
                break;
            }
            let Some(requester) = &mut *self.requester else { break };
            // Nobody would tell that a message has found no receive: the packet that takes one leaves when
            // there is one ([`crate::pace`]).
            let begins = counts_receives && room > 0 && requester.is_to_take_receive();
            let has_begun = begins && self.peer.begin();
            let waits = room == 0 || begins && !has_begun;
            // Without room, too: a probe goes in any case.
            let Some(outbound) = requester.poll_transmit(now, if waits { 0 } else { room }, space) else {
                if has_begun {
                    self.peer.not_begun(endpoint, self.packet_route.route);
                }
                turn.more = false;
                if !waits {
                    break;
                }
                self.peer.wait(endpoint, self.packet_route.route);
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
                None => sink.add(&self.packet_route, head, 0, |_| Ok(())),
                Some(source) => {
                    let work = queues.send.read(source.sequence);
                    let length = source.length as usize;
                    if let PeerLocation::Near(near) = &mut self.location {
                        near.note_payload(queues, &work, source.length, outbound.repeated);
                    }
                    // The receiver may have failed to read payload that is sent again.
                    let look = outbound.repeated;
                    sink.add_payload(
                        queues,
                        (&self.packet_route, head, length),
                        |target| queues.gather(&work, source.offset, target),
                        |take| queues.locate(&work, source.offset, source.length, look, take),
                    )
                }
            };
            spent.cost += outbound.cost;
            spent.begun += u32::from(has_begun);
            if added.is_err() {
                drop(sink);
                self.charge(endpoint, batch, std::mem::take(&mut spent), now);
                sink = carrier.sink(batch);
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
        drop(sink);
        self.charge(endpoint, batch, spent, now);
        if let PeerLocation::Near(near) = &mut self.location {
            near.has_left(endpoint, sent);
        }
        // Its turn comes when there is room again.
        if full && carrier.waits(endpoint, self.reliable) {
            turn.more = false;
        }
        queues.counters.tx_frames.add(sent);
        // Without acknowledgements nothing else will say that a request about keys, which waited for those
        // before it, can be carried out.
        turn.more |= !self.reliable
            && !turn.stopped
            && queues.state() == State::Rts
            && self.requester.as_ref().is_some_and(Requester::is_idle)
            && queues.send.has_work(cursor)
            && !queues.waits_for_uses();
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
                heard::tell(queues.number, EngineFinding::NoReceiveThere);
            }
        }
        if matches!(feedback.loss, Loss::Timeout | Loss::NotReady) && !feedback.failed {
            let is_not_ready = feedback.loss == Loss::NotReady;
            let last = self.requester.as_ref().and_then(|requester| requester.last_retry(is_not_ready));
            if let Some(retries) = last {
                heard::tell(queues.number, EngineFinding::LastRetry { retries, is_not_ready });
            }
        }
        if self.near().is_none() {
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
            let peer = self.packet_route.route.destination;
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
