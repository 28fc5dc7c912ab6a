//! How packets go to the peer: by the network, or within the host.

use super::{ECN, Link};
use crate::batch::PacketRoute;
use crate::endpoint::Endpoint;
use crate::local::{Carrier, Near};
use crate::locate::Place;
use crate::lock;
use crate::route::Route;
use adverb_core::error::Result;
use adverb_core::memory::Reader;
use adverb_core::qp::{Path, Queues};
use adverb_proto::ib::Requester;
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use std::sync::Arc;

/// "Not yet said."
const ECN_CAPABLE: u8 = 2;

/// Where the peer is, as packets go there.
#[allow(
    clippy::large_enum_variant,
    reason = "a link lies on the heap, and the way within the host is to be short"
)]
pub(super) enum PeerLocation {
    /// Nobody knows yet: the queue pair is looking for its peer.
    Sought,
    /// To a UDP port of the peer's address.
    Network(Place),
    /// To the peer's process on this host.
    Near(Near),
}

impl PeerLocation {
    #[inline]
    pub(super) fn near(&self) -> Option<&Near> {
        match self {
            Self::Near(near) => Some(near),
            _ => None,
        }
    }

    /// Whether the peer is no adverb: a kernel or an adapter, or a process that nobody has told of.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self, Self::Network(place) if place.room.is_none())
    }

    /// The carrier by which packets leave.
    #[inline]
    pub(super) fn carrier(&self) -> Carrier {
        self.near().map(Near::carrier).unwrap_or_default()
    }

    /// Whether packets that come by the network from this UDP port may be the peer's. Kernels and adapters
    /// send from whatever port they like.
    pub(super) fn admits(&self, port: u16) -> bool {
        match self {
            Self::Sought => true,
            Self::Network(place) => place.room.is_none() || place.port == port,
            Self::Near(_) => false,
        }
    }
}

impl Link {
    pub(crate) fn packet_route(&self) -> &PacketRoute {
        &self.packet_route
    }

    /// Whether the peer is known to be no adverb.
    pub(crate) fn is_foreign(&self) -> bool {
        self.location.is_foreign()
    }

    /// The peer's queue pair.
    pub(crate) fn destination(&self) -> u32 {
        self.destination
    }

    /// Whether the peer's queue pair has this number, and the link does not know yet where it is.
    pub(crate) fn seeks(&self, number: u32) -> bool {
        matches!(self.location, PeerLocation::Sought) && number == self.destination
    }

    /// The peer's process is on this host: packets go there from now on, and as little as possible by
    /// packets.
    pub(crate) fn meets(&mut self, queues: &Queues, mut near: Near) {
        near.permit(self.permitted, self.reads);
        self.receives = Reader::new(&queues.engine.keys);
        self.mtu = near.mtu();
        self.responder.set_mtu(self.mtu);
        self.kept.longest = near.longest_kept();
        if let Some(requester) = &mut *self.requester {
            near.fit(requester);
        }
        self.location = PeerLocation::Near(near);
    }

    /// Whether the peer receives in one train what leaves here in one.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.location, PeerLocation::Network(place) if place.is_whole())
    }

    /// The way within the host, if packets go there.
    #[inline]
    pub(crate) fn near(&self) -> Option<&Near> {
        self.location.near()
    }

    /// The program may have changed the path. Returns whether the peer is to be located anew. `ready`: others
    /// that may send now.
    ///
    /// # Errors
    /// When the path leads nowhere.
    // IB-QP-18
    pub(crate) fn redirect(
        &mut self,
        endpoint: &Endpoint,
        path: &Path,
        ready: &mut Vec<Arc<Endpoint>>,
    ) -> Result<bool> {
        if self.path == *path {
            return Ok(false);
        }
        let mut route = marked(endpoint.gids.route_of(path)?, self.reliable);
        self.path = *path;
        // Within the host they go to a process, whatever its address.
        let moved = self.near().is_none() && route.destination != self.packet_route.route.destination;
        if moved {
            self.location = PeerLocation::Sought;
        } else {
            route.port = self.packet_route.route.port;
        }
        self.incoming = incoming(endpoint, &route);
        self.go_by(endpoint, route, ready);
        Ok(moved)
    }

    /// Packets take this way from now on; packets in flight count in the window of the new destination.
    pub(super) fn go_by(&mut self, endpoint: &Endpoint, route: Route, ready: &mut Vec<Arc<Endpoint>>) {
        self.packet_route = endpoint.lane.packet_route(route);
        let peer = endpoint.net.peers.of(route.destination, route.port);
        if Arc::ptr_eq(&peer, &self.peer) {
            return;
        }
        let in_flight = self.requester.as_ref().map_or(0, Requester::in_flight);
        lock(&self.peer.window).released(in_flight);
        lock(&peer.window).sent(in_flight);
        self.peer.forget(endpoint);
        self.peer.wake(ready);
        self.peer = peer;
    }

    /// The peer's queue pair lives here. `ready`: others that may send now.
    pub(crate) fn located(
        &mut self,
        endpoint: &Endpoint,
        number: u32,
        place: Place,
        ready: &mut Vec<Arc<Endpoint>>,
    ) {
        if number != self.destination || self.near().is_some() {
            return;
        }
        self.location = PeerLocation::Network(place);
        if self.packet_route.route.port != place.port {
            self.responder.repeat_acknowledgement();
            self.go_by(endpoint, Route { port: place.port, ..self.packet_route.route }, ready);
        }
        self.peer.learn_place(place);
    }
}

/// Routers may mark what is answered instead of dropping it: marks come back as notifications.
pub(super) fn marked(mut route: Route, reliable: bool) -> Route {
    // ROCE-32
    if reliable && route.class & ECN == 0 {
        route.class |= ECN_CAPABLE;
    }
    route
}

/// The flow that packets last came by, with its CRC, and the identification that the next one is expected to
/// have.
pub(super) struct Incoming {
    pub(super) flow: Flow,
    pub(super) crc: FlowCrc,
    pub(super) guess: u16,
}

/// The flow by which packets of the peer are expected first.
pub(super) fn incoming(endpoint: &Endpoint, route: &Route) -> Incoming {
    let flow = Flow {
        source: route.destination,
        destination: route.source,
        source_port: route.port,
        destination_port: endpoint.lane.socket.port(),
    };
    Incoming { flow, crc: FlowCrc::new(&flow), guess: 0 }
}
