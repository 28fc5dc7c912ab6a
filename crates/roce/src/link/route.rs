//! How packets go to the peer: by the network, or by a channel to its process.

use super::{ECN, Link, Whereabouts};
use crate::batch::Way;
use crate::endpoint::Endpoint;
use crate::local::Channel;
use crate::locate::Place;
use crate::route::Route;
use crate::{local, lock};
use adverb_core::error::Result;
use adverb_core::memory::Reader;
use adverb_core::qp::{Path, Queues};
use adverb_proto::ib::Requester;
use adverb_wire::ib::icrc::{Flow, FlowCrc};
use std::sync::Arc;

/// "Not yet said."
const ECN_CAPABLE: u8 = 2;

impl Link {
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// The peer's queue pair.
    pub(crate) fn destination(&self) -> u32 {
        self.destination
    }

    /// Packets go by a channel from now on. False if it is known already how they go, or the peer is another one.
    pub(crate) fn bind(&mut self, queues: &Queues, number: u32, channel: &Arc<Channel>) -> bool {
        if self.whereabouts != Whereabouts::Sought || number != self.destination {
            return false;
        }
        self.whereabouts = Whereabouts::Channel;
        self.channel = Some(channel.clone());
        let keys = &queues.engine.keys;
        (self.reader, self.receives) = (Reader::new(keys), Reader::new(keys));
        if self.reliable {
            channel.traffic().count_reliable(true);
        }
        // What is not acknowledged is complete as soon as it is sent, and its memory the program's again.
        let fetches = self.reliable && channel.neighbour.reads();
        self.mtu = if fetches { local::MTU } else { local::LONGEST_HERE as u32 };
        self.responder.set_mtu(self.mtu);
        if fetches {
            // Longer payloads are lent.
            self.kept.longest = local::LONGEST_HERE as u32;
        }
        if let Some(requester) = &mut *self.requester {
            requester.set_mtu(self.mtu);
            follow_channel(requester);
        }
        true
    }

    /// Whether the peer receives in one train what leaves here in one.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.whereabouts, Whereabouts::Network(place) if place.is_whole())
    }

    /// Whether packets go by a channel.
    pub(crate) fn goes_by_channel(&self) -> bool {
        self.channel.is_some()
    }

    /// The channel by which packets go, if there is one.
    pub(crate) fn channel(&self) -> Option<Arc<Channel>> {
        self.channel.clone()
    }

    /// Whether packets go by this channel.
    pub(crate) fn goes_by(&self, channel: &Channel) -> bool {
        self.channel.as_ref().is_some_and(|own| std::ptr::eq(&**own, channel))
    }

    /// The program may have changed the path. Returns whether the peer is to be located anew. `ready`: others that may send now.
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
        // A channel leads to a process, whatever its address.
        let moved = self.channel.is_none() && route.destination != self.way.route.destination;
        if moved {
            self.whereabouts = Whereabouts::Sought;
        } else {
            route.port = self.way.route.port;
        }
        self.incoming = incoming(endpoint, &route);
        self.go_by(endpoint, route, ready);
        Ok(moved)
    }

    /// Packets take this way from now on; what is in flight counts in the window of whoever is at its end.
    pub(super) fn go_by(&mut self, endpoint: &Endpoint, route: Route, ready: &mut Vec<Arc<Endpoint>>) {
        self.way = endpoint.way(route);
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
        if number != self.destination || self.channel.is_some() {
            return;
        }
        self.whereabouts = Whereabouts::Network(place);
        if self.way.route.port != place.port {
            self.responder.repeat_acknowledgement();
            self.go_by(endpoint, Route { port: place.port, ..self.way.route }, ready);
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

/// A requester's packets go by a channel.
pub(super) fn follow_channel(requester: &mut Requester) {
    // As times are taken there.
    requester.set_clock_lags();
    // The peer lends what it answers longer reads with; or could not keep all of them, where it lends nothing.
    requester.set_longest_overtaken(local::LONGEST_HERE as u32);
}

/// The flow that packets last came by, with its CRC, and the identification that the next one is expected to have.
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
