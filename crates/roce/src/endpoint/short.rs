//! The way in of most messages between processes of one host: a short Send that comes next, for which there is a receive, on a queue pair where nothing else is under way. What
//! follows from it is what follows from any packet ([`Endpoint::take`]), and whatever is out of the ordinary is left to that.

use super::{Endpoint, Host, Inner, Kind};
use crate::sweep::Sweep;
use adverb_core::lock::Guard;
use adverb_core::qp::{Service, State};
use adverb_wire::ib::packet::Packet;
use std::time::Duration;

impl Endpoint {
    /// Takes in a packet that has come by a channel, if it is such a message. Otherwise it is still to be taken in, and the lock comes back.
    #[inline]
    pub(super) fn take_short<'a>(
        &'a self,
        mut inner: Guard<'a, Inner>,
        packet: &Packet<'_>,
        from: &Host<'_>,
        now: Duration,
        sweep: &mut Sweep,
    ) -> Option<Guard<'a, Inner>> {
        if self.queues.service != Service::Rc || !matches!(inner.state, State::Rtr | State::Rts | State::Sqd)
        {
            return Some(inner);
        }
        let has_work = self.queues.send.has_work(&inner.cursor);
        let Kind::Connected(link) = &mut inner.kind else {
            return Some(inner);
        };
        let Some(taken) = link.receive_short(self, packet, from, has_work, now, sweep) else {
            return Some(inner);
        };
        self.conclude(inner, taken, false, now, sweep);
        None
    }
}
