//! The decision when a queue pair connects: by the network, or within the host. It is the same for all
//! connections of two processes.

use super::Local;
use super::channel::Channel;
use super::near::Near;
use crate::endpoint::{Endpoint, EndpointKind};
use crate::numbers::block_of;
use crate::route::Route;
use adverb_core::memory::Access;
use adverb_core::qp::{Attributes, Service};
use adverb_samehost::HandshakeVerdict;
use std::sync::Arc;

impl Local {
    /// The queue pair connects to one behind `route`: nothing is sent before the way there is known.
    pub(crate) fn connect(&self, endpoint: &Endpoint, route: Route, attributes: &Attributes) {
        let lets_in = Access::from_bits_truncate(attributes.access).intersects(Access::REMOTE);
        if self.find_way(endpoint, route, attributes.destination)
            && lets_in
            && endpoint.queues.service == Service::Rc
            && !endpoint.net.owns(block_of(attributes.destination))
        {
            self.hub.sharing.foresee(&endpoint.queues);
        }
    }

    /// Finds the way to the peer's queue pair `number`. True if it leads to a process of our user on this
    /// host.
    fn find_way(&self, endpoint: &Endpoint, route: Route, number: u32) -> bool {
        match self.seek(&endpoint.net, &route, number, endpoint.number()) {
            None => return false,
            Some(HandshakeVerdict::Undecided) => {}
            Some(HandshakeVerdict::Channel(channel)) => go_by(endpoint, number, &channel),
            Some(HandshakeVerdict::Network) => {
                endpoint.locate(route, number);
                return false;
            }
        }
        true
    }

    /// The handshake has decided how connections with a process go, for which this queue pair has waited. The
    /// queue pair may have another peer by now, and looks for that one then.
    pub(super) fn decided(&self, endpoint: &Endpoint, process: libc::pid_t, channel: Option<&Arc<Channel>>) {
        let Some((route, number)) = endpoint.peer() else {
            return;
        };
        let owned = self.is_owned_by(&endpoint.net, &route, number, process);
        match channel {
            Some(channel) if owned => go_by(endpoint, number, channel),
            None if owned => endpoint.locate(route, number),
            _ => {
                self.find_way(endpoint, route, number);
            }
        }
        endpoint.ring();
    }

    /// The queue pair asks for its peer once more.
    pub(super) fn seek_again(&self, endpoint: &Endpoint) {
        if let Some((route, number)) = endpoint.peer() {
            self.find_way(endpoint, route, number);
            endpoint.ring();
        }
    }
}

/// The connection goes by a channel from now on, if its way is still sought.
fn go_by(endpoint: &Endpoint, number: u32, channel: &Arc<Channel>) {
    let mut inner = endpoint.lock();
    if let EndpointKind::Connected(link) = &mut inner.kind
        && link.seeks(number)
    {
        link.meets(&endpoint.queues, Near::new(&endpoint.queues, number, channel));
        endpoint.beside.begin(channel);
        endpoint.lane.count_network(false);
    }
}
