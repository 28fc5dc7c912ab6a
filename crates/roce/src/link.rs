//! A connected queue pair (RC, UC): its requester and responder, the way to its peer ([`route`]), and what is
//! told to whom. What leaves is in [`sending`]. What comes in is in [`receive`], and the answers to it in
//! [`responding`]; what waits there for reads before it, in [`held`]; what most messages between processes of
//! one host are, in [`straight`]. [`ending`] has what fails.

mod ending;
mod held;
mod receive;
mod request;
mod requesting;
mod responding;
mod route;
mod sending;
mod straight;
mod tally;

use crate::batch::PacketRoute;
use crate::endpoint::Endpoint;
use crate::host::{KeptReads, NOWHERE, Requests};
use crate::lane::Lane;
use crate::local::{Carrier, Near};
use crate::peer::Peer;
use crate::route::Route;
use adverb_core::event::AsyncEventKind;
use adverb_core::memory;
use adverb_core::memory::Reader;
use adverb_core::qp::{Attributes, Path, Queues, ReceiveWork, Service, State, Transition};
use adverb_proto::ib::{Access, Requester, RequesterOptions, Responder, ResponderOptions};
use adverb_wire::ib::header::{DEFAULT_PKEY, MAX_HEADER};
use held::HeldPackets;
use requesting::Requesting;

pub(crate) use tally::Tally;

use route::{Incoming, PeerLocation, incoming, marked};
use std::sync::Arc;
use std::time::Duration;

/// A longer read goes out as several, so that its responses come at the pace of the window; within the host,
/// in packets of that.
const READ_CHUNK: u32 = 64 << 10;
/// The explicit congestion notification bits of a traffic class (RFC 3168 section 5).
const ECN: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;

/// What a packet has brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketEffect {
    /// There is something to send now.
    pub(crate) transmit: bool,
    /// An acknowledgement is pending, and may be delayed.
    pub(crate) delays_ack: bool,
    /// The queue pair is in error.
    pub(crate) failed: bool,
    /// The packet was the first one of the peer.
    pub(crate) first: bool,
    /// No deadline has come closer.
    pub(crate) brings_no_deadline: bool,
    /// The packet took a receive for an unreliable message, and cost so much of a window.
    pub(crate) took_receive: Option<u32>,
}

/// A connected queue pair (RC, UC): its requester and responder, and the way to its peer.
pub(crate) struct Link {
    requester: Requesting,
    responder: Responder,
    /// The path as the program gave it.
    path: Path,
    packet_route: PacketRoute,
    peer: Arc<Peer>,
    /// Where the peer is. Nothing is sent before it is known: later packets could overtake earlier ones.
    location: PeerLocation,
    /// The reader that opens the memory of receives.
    receives: Reader,
    /// What the peer may do: bits of [`memory::Access`].
    permitted: u32,
    /// Whether the queue pair may have a read of its own under way.
    reads: bool,
    /// The peer's queue pair.
    destination: u32,
    incoming: Incoming,
    /// The receive that the message now coming in has taken.
    taken: Option<ReceiveWork>,
    /// Copies of the bytes of the peer's reads, taken before a later request changes them.
    kept: KeptReads,
    /// Requests behind those of which nothing more can be kept.
    held: HeldPackets,
    mtu: u32,
    service: adverb_proto::ib::Service,
    reliable: bool,
    heard: bool,
    /// A request of the peer was refused: once the NAK has left, the queue pair is in error, and the program
    /// is told this.
    refused: Option<AsyncEventKind>,
    /// Packets that came in without an acknowledgement going out.
    unacknowledged: u32,
    notified: Duration,
    notify: bool,
}

/// A packet that leaves after its queue pair has gone.
pub(crate) struct FinalReply {
    packet_route: PacketRoute,
    carrier: Carrier,
    packet: [u8; MAX_HEADER],
    length: usize,
}

impl FinalReply {
    /// Sends it. It may wait for the lane.
    pub(crate) fn send(&self, lane: &Lane) {
        lane.send_packet(&self.packet_route, &self.carrier, &self.packet[..self.length]);
    }
}

/// The most packets of one acknowledgement.
pub(crate) const ACKNOWLEDGE_EVERY: u32 = 64;

fn access(attributes: &Attributes) -> Access {
    let bits = memory::Access::from_bits_truncate(attributes.access);
    Access {
        write: bits.contains(memory::Access::REMOTE_WRITE),
        read: bits.contains(memory::Access::REMOTE_READ),
        atomic: bits.contains(memory::Access::REMOTE_ATOMIC),
        flush: bits.intersects(memory::Access::FLUSH_GLOBAL | memory::Access::FLUSH_PERSISTENT),
    }
}

/// What a peer may do without a packet.
fn permitted(attributes: &Attributes) -> u32 {
    let access = memory::Access::from_bits_truncate(attributes.access) & memory::Access::REMOTE;
    // Without room for reads there are none.
    let reads = memory::Access::REMOTE_READ | memory::Access::REMOTE_ATOMIC;
    (if attributes.max_dest_rd_atomic == 0 { access - reads } else { access }).bits()
}

fn service(service: Service) -> adverb_proto::ib::Service {
    match service {
        Service::Uc => adverb_proto::ib::Service::Uc,
        Service::Rc | Service::Ud | Service::RawPacket => adverb_proto::ib::Service::Rc,
        Service::XrcSend | Service::XrcReceive => adverb_proto::ib::Service::Xrc,
    }
}

impl Link {
    pub(crate) fn new(endpoint: &Endpoint, attributes: &Attributes, route: Route) -> Self {
        let (service, reliable) = (service(endpoint.queues.service), endpoint.queues.service != Service::Uc);
        let route = marked(route, reliable);
        Self {
            requester: Requesting::default(),
            responder: Responder::new(ResponderOptions {
                service,
                mtu: attributes.path_mtu.max(256),
                expected_psn: attributes.rq_psn,
                destination: attributes.destination,
                pkey: DEFAULT_PKEY,
                max_reads: attributes.max_dest_rd_atomic,
                min_rnr_timer: attributes.min_rnr_timer,
                access: access(attributes),
            }),
            path: attributes.path,
            // ROCE-3
            packet_route: endpoint.lane.packet_route(route),
            peer: endpoint.net.peers.of(route.destination, route.port),
            location: PeerLocation::Sought,
            receives: Reader::default(),
            permitted: permitted(attributes),
            reads: false,
            destination: attributes.destination,
            incoming: incoming(endpoint, &route),
            taken: None,
            kept: KeptReads::new(),
            held: HeldPackets::default(),
            mtu: attributes.path_mtu.max(256),
            service,
            reliable,
            heard: false,
            refused: None,
            unacknowledged: 0,
            notified: Duration::ZERO,
            notify: false,
        }
    }

    /// Packets of requests without an answer, whether they have been sent or not. None where they do not go
    /// by the network, or are not acknowledged.
    #[inline]
    pub(crate) fn unanswered_by_network(&self) -> Option<u32> {
        let requester = self.requester.as_ref().filter(|_| self.reliable && self.near().is_none())?;
        Some(requester.unanswered())
    }

    /// The program moves the queue pair from state to state. Returns whether its send queue is drained.
    pub(crate) fn modify(&mut self, transition: Transition, attributes: &Attributes) -> bool {
        self.responder.reconfigure(
            access(attributes),
            attributes.max_dest_rd_atomic,
            attributes.min_rnr_timer,
        );
        (self.permitted, self.reads) = (permitted(attributes), attributes.max_rd_atomic > 0);
        if let PeerLocation::Near(near) = &mut self.location {
            near.permit(self.permitted, self.reads);
        }
        let (timeout, retries) = (attributes.timeout, attributes.retry_count);
        let (rnr_retries, reads) = (attributes.rnr_retry, attributes.max_rd_atomic);
        match (transition.to, &mut *self.requester) {
            (State::Rts, None) => {
                let mut requester = Requester::new(RequesterOptions {
                    service: self.service,
                    mtu: self.mtu,
                    first_psn: attributes.sq_psn,
                    destination: self.destination,
                    pkey: DEFAULT_PKEY,
                    timeout,
                    retry_count: retries,
                    rnr_retry: rnr_retries,
                    max_reads: reads,
                    room: u32::MAX,
                    read_chunk: READ_CHUNK,
                });
                if let PeerLocation::Near(near) = &self.location {
                    near.fit(&mut requester);
                }
                *self.requester = Some(requester);
                false
            }
            (State::Rts, Some(requester)) => {
                requester.reconfigure(timeout, retries, rnr_retries, reads);
                requester.resume();
                false
            }
            (State::Sqd, Some(requester)) => {
                requester.reconfigure(timeout, retries, rnr_retries, reads);
                // A request that has begun ends before the queue is drained.
                // IB-QP-7
                let has_begun = matches!(&self.location, PeerLocation::Near(near) if near.has_begun());
                transition.from != State::Sqd && requester.suspend() && !has_begun
            }
            _ => false,
        }
    }

    /// The sequence numbers that are next.
    pub(crate) fn query(&self, attributes: &mut Attributes) {
        attributes.rq_psn = self.responder.expected_psn();
        if let Some(requester) = &*self.requester {
            attributes.sq_psn = requester.next_psn();
        }
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.requester.as_ref()?.deadline()
    }
}

/// What a requester needs where nothing has come in.
fn requests<'a>(queues: &'a Queues, near: Option<&'a Near>) -> Requests<'a> {
    Requests { queues, elsewhere: &NOWHERE, near }
}
