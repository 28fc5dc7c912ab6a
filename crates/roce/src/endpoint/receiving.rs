//! Receiving: the effect of a packet, from the network or from a process of this host, on the queue pair, and
//! the steps that follow.

use super::{Endpoint, EndpointKind, EndpointState, MOST_PACKETS_AT_ONCE, Via};
use crate::link::PacketEffect;
use crate::lock;
use crate::rx_burst::RxBurst;
use crate::socket::Arrival;
use adverb_core::lock::LockGuard;
use adverb_core::qp::{Service, State};
use adverb_proto::ib::{PACKET_COST, goes_to_requester};
use adverb_wire::ib::opcode::Service as WireService;
use adverb_wire::ib::packet::Packet;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Endpoint {
    /// A datagram for this queue pair has come.
    // The order of checks: number (the caller), service and state, partition, address, CRC, then the
    // protocol's own.
    #[inline]
    pub(crate) fn arrived(&self, arrival: &Arrival<'_>, now: Duration, burst: &mut RxBurst) {
        // IB-PKT-38
        let Ok(packet) = Packet::parse(arrival.bytes) else {
            self.queues.counters.damaged.add(1);
            return;
        };
        // While the kernel copies for this queue pair, its packets are lost, as in a full socket. The thread
        // that takes in packets for all queue pairs waits for no memory.
        let Some(inner) = self.lock_unless_busy() else {
            return self.queues.counters.dropped.add(1);
        };
        self.take(inner, &packet, Via::Network(arrival), now, burst);
    }

    #[inline]
    pub(crate) fn take(
        &self,
        mut inner: LockGuard<'_, EndpointState>,
        packet: &Packet<'_>,
        via: Via<'_>,
        now: Duration,
        burst: &mut RxBurst,
    ) {
        let counters = self.queues.counters;
        counters.rx_frames.count(1, burst.counts_alone);
        // IB-PKT-47
        let fits = match (packet.opcode().service(), self.queues.service) {
            (WireService::Rc, Service::Rc)
            | (WireService::Uc, Service::Uc)
            | (WireService::Ud, Service::Ud)
            | (WireService::Congestion, Service::Rc | Service::Uc | Service::XrcSend | Service::XrcReceive) => {
                true
            }
            // IB-XRC-7, IB-XRC-8
            (WireService::Xrc, Service::XrcSend) => goes_to_requester(packet),
            (WireService::Xrc, Service::XrcReceive) => !goes_to_requester(packet),
            _ => false,
        };
        // IB-PKT-52
        if !fits {
            counters.dropped.add(1);
            return;
        }
        // The one partition that there is (volume 1, section 10.9.3): at least one side is a full member, and
        // we are. IB-PKT-49
        if packet.bth().pkey() & 0x7fff != 0x7fff {
            counters.wrong_pkey.add(1);
            return;
        }
        // IB-PKT-48, IB-QP-5
        if !matches!(inner.state, State::Rtr | State::Rts | State::Sqd | State::Sqe) {
            counters.dropped.add(1);
            return;
        }
        let has_work = self.queues.send.has_work(&inner.cursor);
        let taken = match &mut inner.kind {
            EndpointKind::Nothing => {
                counters.dropped.add(1);
                return;
            }
            EndpointKind::Datagram(link) => {
                link.receive(self, packet, via);
                if matches!(via, Via::Network(_)) {
                    self.net.pace.took_receive(self, packet.payload().len() as u32 + PACKET_COST, now);
                }
                return;
            }
            EndpointKind::Connected(link) => link.receive(self, packet, via, has_work, now, burst),
        };
        self.conclude(inner, taken, matches!(via, Via::Network(_)), now, burst);
    }

    /// Takes in requests that waited for reads before them, as far as those have been answered. Returns
    /// whether there may be more to send then.
    // PRACTICE-ORDER-2
    #[cold]
    pub(super) fn take_held(&self, now: Duration) -> bool {
        let mut burst = RxBurst::default();
        let mut goes_on = true;
        for _ in 0..MOST_PACKETS_AT_ONCE {
            let Some(mut inner) = self.lock_unless_busy() else {
                break;
            };
            let EndpointKind::Connected(link) = &mut inner.kind else {
                break;
            };
            let Some(taken) = link.receive_held(self, now, &mut burst) else {
                goes_on = link.has_pending_reply();
                break;
            };
            self.conclude(inner, taken, true, now, &mut burst);
        }
        burst.ready.iter().for_each(|other| other.ring());
        goes_on
    }

    /// Takes the steps that follow from a packet for a connection.
    #[inline]
    pub(crate) fn conclude(
        &self,
        inner: LockGuard<'_, EndpointState>,
        taken: PacketEffect,
        by_network: bool,
        now: Duration,
        burst: &mut RxBurst,
    ) {
        if taken.first {
            // Before anything that this packet brings about is told.
            // IB-RC-RSP-61, IB-QP-38
            self.queues.communication_established();
        }
        if taken.failed {
            self.fail(inner, &mut burst.ready);
            return;
        }
        // Within a host a request brings no deadline closer, nor does the acknowledgement beside it.
        let same = self.is_timed() && taken.brings_no_deadline;
        if !same
            && let EndpointKind::Connected(link) = &inner.kind
            && let Some(deadline) = link.deadline()
        {
            self.expect(deadline);
        }
        // A poll of another lane may have taken in a packet from this host: then its acknowledgement does not
        // wait for a poll of this lane. A target queue pair never sends anything by itself. The reply comes
        // from another queue pair, and is not to arrive before the acknowledgement.
        if by_network && let EndpointKind::Connected(link) = &inner.kind {
            self.gather.learn(link);
        }
        let is_delayed =
            by_network || burst.polled == self.lane.address() && self.queues.service != Service::XrcReceive;
        // A thread is about to send for a queued endpoint, unless it is queued because posts wait.
        let sends = (taken.transmit || taken.delays_ack && !is_delayed)
            && (!self.is_queued.load(Ordering::SeqCst) || self.gather.is_put_off());
        if taken.delays_ack && !sends {
            self.delay_ack();
        } else if !sends && let EndpointKind::Connected(link) = &inner.kind {
            self.settled(link);
        }
        drop(inner);
        if let Some(cost) = taken.took_receive
            && by_network
        {
            self.net.pace.took_receive(self, cost, now);
        }
        if taken.first {
            self.heard();
        }
        if sends {
            burst.ready.push(self.this());
        }
    }

    /// An acknowledgement is delayed. With the lock.
    #[inline]
    pub(crate) fn delay_ack(&self) {
        if !self.is_listed.load(Ordering::Relaxed) {
            self.is_listed.store(true, Ordering::Relaxed);
            self.lane.list_ack_candidate(self.this());
        }
        self.set_pending_ack(true);
    }

    /// The first packet of a connection has come.
    #[cold]
    pub(super) fn heard(&self) {
        let observer = lock(&self.observer).clone();
        if let Some(observer) = observer {
            observer.heard();
        }
    }
}
