//! Where the peer of a connection lives, and by which way its packets go.

use super::{Endpoint, Kind};
use crate::batch::Way;
use crate::local::{self, Channel};
use crate::locate::{Known, Wanted};
use crate::lock;
use crate::route::Route;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Finds the way to the peer's queue pair `number`: nothing is sent before it is known. True if it leads to a process of our user on this host.
    pub(super) fn seek(&self, route: Route, number: u32) -> bool {
        match self.net.local.seek(&self.net, &route, number, self.number()) {
            local::Way::Undecided => {}
            local::Way::Unheard => return false,
            local::Way::Channel(channel) => self.bind(number, &channel),
            local::Way::Network => {
                self.locate(route, number);
                return false;
            }
        }
        true
    }

    pub(super) fn locate(&self, route: Route, number: u32) {
        // What is known from before may be somebody else's by now.
        let wanted = Wanted { local: route.source, peer: route.peer(), number };
        let known = self.net.locator.find(&self.net, &self.lane, wanted, self.number(), true);
        if let Known::At(place) = known {
            self.located(number, place);
        }
    }

    /// The way to the peer of a connection, and its number.
    fn peer(&self) -> Option<(Route, u32)> {
        match &self.lock().kind {
            Kind::Connected(link) => Some((link.way().route, link.destination())),
            _ => None,
        }
    }

    /// It is decided how connections with a process go, for which this queue pair has waited. It may have another peer by now, who is sought then.
    pub(crate) fn decided(&self, process: libc::pid_t, channel: Option<&Arc<Channel>>) {
        let Some((route, number)) = self.peer() else {
            return;
        };
        let owned = self.net.local.is_owned_by(&self.net, &route, number, process);
        match channel {
            Some(channel) if owned => self.bind(number, channel),
            None if owned => self.locate(route, number),
            _ => {
                self.seek(route, number);
            }
        }
        self.ring();
    }

    /// Asks for its peer once more.
    pub(crate) fn seek_again(&self) {
        if let Some((route, number)) = self.peer() {
            self.seek(route, number);
            self.ring();
        }
    }

    /// The connection goes by a channel from now on.
    fn bind(&self, number: u32, channel: &Arc<Channel>) {
        let mut inner = self.lock();
        if let Kind::Connected(link) = &mut inner.kind
            && link.bind(&self.queues, number, channel)
        {
            *lock(&self.channel) = Some(channel.clone());
            self.is_bound.store(true, Ordering::Relaxed);
            self.lane.count_network(false);
        }
    }

    /// Whether its connection goes by a channel.
    pub(crate) fn goes_by(&self, channel: &Channel) -> bool {
        lock(&self.channel).as_ref().is_some_and(|own| std::ptr::eq(&**own, channel))
    }

    /// The way to a peer from this queue pair's lane.
    pub(crate) fn way(&self, route: crate::route::Route) -> Way {
        self.lane.way(route)
    }
}
