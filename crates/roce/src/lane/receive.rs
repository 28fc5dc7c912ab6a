//! A lane takes in packets: from its socket, and those that a faulty wire has kept.

use super::{LAST, Lane, ReceivingThread, Rx};
use crate::endpoint::Endpoint;
use crate::handover::OwnedArrival;
use crate::impaired::LaneFaults;
use crate::net::Table;
use crate::rx_burst::RxBurst;
use crate::socket::{Buffers, TrainReceipt};
use crate::{lock_until, order, time};
use adverb_core::reactor::{EDGE, READABLE};
use adverb_wire::ib::packet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bursts that one poll takes in at most, so that a poll ends.
const BURSTS: usize = 4;

impl Lane {
    /// Takes in packets that have arrived. Returns whether any had, unless another thread takes them in: then
    /// that thread looks again afterwards.
    pub(crate) fn receive(&self, by: ReceivingThread) -> bool {
        self.receive_and(by, |management| self.net.manage(management))
    }

    /// Takes in packets that have arrived, as [`Lane::receive`] does. `manage` takes the management
    /// datagrams that have come, with no lock held.
    pub(super) fn receive_and(&self, by: ReceivingThread, manage: impl Fn(Vec<OwnedArrival>)) -> bool {
        let mut worked = false;
        loop {
            if by == ReceivingThread::Background {
                self.missed.note();
            }
            let Ok(mut rx) = self.rx.try_lock() else { return worked };
            self.missed.begin();
            let Rx { buffers, burst } = &mut *rx;
            let mut more = true;
            for _ in 0..if by == ReceivingThread::Post { 1 } else { BURSTS } {
                let received = self.receive_burst(buffers, burst, by);
                worked |= received.trains > 0;
                more = received.more;
                // Answers that are due go out between bursts, so that the peers go on.
                self.net.follow_up(burst, self);
                if !more {
                    break;
                }
            }
            let one_sided = std::mem::take(&mut burst.one_sided);
            burst.overflowed = false;
            let management = std::mem::take(&mut burst.management);
            drop(rx);
            self.net.handover_queue.hand_over(&self.net);
            if !management.is_empty() {
                manage(management);
            }
            if worked && by != ReceivingThread::Background {
                self.lane_watch().weigh(one_sided);
            }
            if more && self.lane_watch().is_armed() {
                // Others get their turn first; the rest is reported anew.
                self.set_interest(READABLE | EDGE);
            }
            if !self.missed.is_noted() {
                return worked;
            }
        }
    }

    /// The calling thread has posted a whole train to `endpoint`: it sends that, and takes in packets that
    /// have arrived, as a poll does.
    pub(crate) fn transmit_train(&self, endpoint: &Endpoint) {
        // The background thread is not to take in meanwhile the packets that this thread is about to.
        self.is_being_polled.store(true, Ordering::Relaxed);
        self.transmit_for(endpoint);
        self.visit(ReceivingThread::Post);
    }

    /// A thread of the program visits the lane: it sends posts that wait to be gathered, and takes in packets
    /// that have arrived. Returns whether there were any.
    #[inline]
    pub(super) fn visit(&self, by: ReceivingThread) -> bool {
        self.is_being_polled.store(true, Ordering::Relaxed);
        self.lane_watch().polled();
        if self.gathering().polled() {
            self.transmit();
        }
        let worked = self.receive(by);
        self.is_being_polled.store(false, Ordering::Relaxed);
        worked
    }

    /// Takes in all that has arrived before this call, even if another thread takes packets in, too. That can
    /// last while that thread has no processor. Only with no lock held.
    pub(crate) fn receive_all(&self) {
        self.receive_all_and(|management| self.net.manage(management));
    }

    /// Takes in everything that has arrived before this call, and leaves the management datagrams to the
    /// background thread. Called by a thread that is about to send a management datagram.
    pub(crate) fn receive_all_but_management(&self) {
        self.receive_all_and(|management| self.net.manage_later(management));
    }

    pub(super) fn receive_all_and(&self, manage: impl Fn(Vec<OwnedArrival>)) {
        let until = time::now() + LAST;
        loop {
            self.receive_and(ReceivingThread::Background, &manage);
            drop(lock_until(&self.rx, until));
            // Another thread has taken the note of this one: it has looked since, or is about to, with the
            // lock.
            if !self.missed.is_noted() || time::now() >= until {
                return self.wait_for_receiver(until, manage);
            }
        }
    }

    /// Returns when the packets that another thread is taking in at this instant are taken in, at the latest
    /// at `until`.
    pub(super) fn wait_for_receiver(&self, until: Duration, manage: impl Fn(Vec<OwnedArrival>)) {
        drop(lock_until(&self.rx, until));
        // The background thread may have found the lock taken by this thread, which has to look for it.
        if self.missed.is_noted() {
            self.receive_and(ReceivingThread::Background, manage);
        }
    }

    /// One system call's worth.
    pub(super) fn receive_burst(
        &self,
        buffers: &mut Buffers,
        burst: &mut RxBurst,
        by: ReceivingThread,
    ) -> TrainReceipt {
        let table = self.net.endpoints();
        let mut received = self.socket.receive(buffers);
        if let Some(impaired) = &self.impaired {
            self.take_in_impaired(impaired, &table, buffers, &mut received, burst);
        } else if received.as_ref().is_ok_and(|received| received.trains > 0) {
            let now = time::now();
            order::take_in(|| buffers.arrivals(), |arrival| self.net.arrived(&table, arrival, now, burst));
        }
        drop(table);
        let counters = self.net.counters();
        match received {
            Ok(received) => {
                counters.rx_calls.add(1);
                match by {
                    ReceivingThread::Poll | ReceivingThread::Post => counters.rx_by_polls.add(1),
                    ReceivingThread::Background => counters.rx_by_background.add(1),
                }
                if received.overflowed > 0 {
                    counters.overflowed.add(received.overflowed.into());
                    burst.overflowed = true;
                }
                received
            }
            Err(_) => TrainReceipt::default(),
        }
    }

    /// Takes in the received packets that the wire lets through, and those that it has kept.
    #[cold]
    pub(super) fn take_in_impaired(
        &self,
        impaired: &LaneFaults,
        table: &Table,
        buffers: &Buffers,
        received: &mut io::Result<TrainReceipt>,
        burst: &mut RxBurst,
    ) {
        let now = time::now();
        if received.is_ok() {
            for arrival in buffers.arrivals() {
                let is_ours =
                    packet::destination(arrival.bytes).is_none_or(|to| !self.net.is_for_another_process(to));
                impaired.comes(self, &arrival, is_ours, now);
            }
        }
        let due = impaired.due(now);
        order::take_in(
            || due.iter().map(OwnedArrival::arrival),
            |arrival| self.net.arrived(table, arrival, now, burst),
        );
        if let (false, Err(_)) = (due.is_empty(), &received) {
            *received = Ok(TrainReceipt { trains: due.len(), ..TrainReceipt::default() });
        }
    }
}
