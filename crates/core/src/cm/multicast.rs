//! Multicast groups of a datagram identifier (rdma_join_multicast(3)).

use super::event::{Details, EventKind};
use super::identifier::{Identifier, IdentifierState};
use super::path::{DatagramPeer, multicast_gid, path_to};
use super::queue_pair::UDP_QKEY;
use crate::error::{Error, Result};
use crate::qp::{QueuePair, Service};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// The queue pair number that stands for every member of a group.
// IB-UD-24, IB-PKT-53
pub const MULTICAST_QUEUE_PAIR: u32 = 0xff_ffff;

/// A group that an identifier has joined. Dropping it leaves the group.
pub(super) struct Membership {
    group: IpAddr,
    gid: [u8; 16],
    context: u64,
    attached: Weak<QueuePair>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(queue_pair) = self.attached.upgrade() {
            // It may be in the course of being destroyed, which leaves all groups.
            let _ = queue_pair.detach_multicast(&self.gid);
        }
    }
}

impl Identifier {
    /// Joins a multicast group (rdma_join_multicast(3)); `context` comes back in the event,
    /// [`EventKind::MulticastJoin`] with where to send to, or [`EventKind::MulticastError`]. The identifier's
    /// queue pair, if it has one, receives what is sent to the group from the time when the event is fetched.
    ///
    /// # Errors
    /// EINVAL before an address of the host is bound or a peer resolved, for a service without datagrams, and
    /// for an address that is no group. ENOSYS on a device without multicast.
    pub fn join_multicast(&self, group: IpAddr, context: u64) -> Result<()> {
        let mut inner = self.enter()?;
        if !matches!(inner.state, IdentifierState::AddressBound | IdentifierState::AddressResolved) {
            return Err(Error::invalid("bind or resolve an address before joining a group"));
        }
        if self.service != Service::Ud {
            // IB-UD-22
            return Err(Error::invalid("only datagram queue pairs join multicast groups"));
        }
        let (Some(device), Some(source)) = (inner.device.clone(), inner.source) else {
            return Err(Error::invalid("bind to one address of the host before joining a group"));
        };
        if device.transport().attributes().max_mcast_grp == 0 {
            return Err(Error::new(libc::ENOSYS, format!("{} has no multicast", device.name())));
        }
        let gid = multicast_gid(group)?;
        let traffic_class = inner.options.type_of_service.unwrap_or(0);
        let path = path_to(&device.transport().gids(), source, gid, traffic_class)?;
        let datagram = DatagramPeer { path, queue_pair: MULTICAST_QUEUE_PAIR, qkey: UDP_QKEY };
        inner.memberships.push(Membership { group, gid, context, attached: Weak::new() });
        let details = Details { datagram: Some(Box::new(datagram)), context, ..Details::default() };
        self.push_with(&inner, EventKind::MulticastJoin, 0, details);
        Ok(())
    }

    /// Leaves a multicast group (rdma_leave_multicast(3)). EADDRNOTAVAIL if it was not joined.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<()> {
        let mut inner = self.enter()?;
        let joined = inner.memberships.iter().position(|membership| membership.group == group);
        let Some(place) = joined else {
            return Err(Error::new(libc::EADDRNOTAVAIL, format!("{group} was not joined")));
        };
        let left = inner.memberships.swap_remove(place);
        drop(inner);
        // Without the lock: the transport does the rest.
        drop(left);
        Ok(())
    }

    /// Takes the queue pair into the groups that were joined with this context, in the thread that fetches
    /// the event.
    pub(super) fn complete_join(&self, context: u64) -> Result<()> {
        let mut inner = self.enter()?;
        let Some(queue_pair) = inner.queue_pair.clone() else { return Ok(()) };
        let waiting = inner
            .memberships
            .iter()
            .position(|membership| membership.context == context && membership.attached.strong_count() == 0);
        // It was left meanwhile: nothing to do.
        let Some(place) = waiting else { return Ok(()) };
        let gid = inner.memberships[place].gid;
        inner.memberships[place].attached = Arc::downgrade(&queue_pair);
        drop(inner);
        queue_pair.attach_multicast(&gid).inspect_err(|_| {
            let mut inner = self.lock();
            let failed = inner.memberships.iter().position(|membership| membership.gid == gid);
            let failed = failed.map(|place| inner.memberships.swap_remove(place));
            drop(inner);
            if let Some(mut membership) = failed {
                membership.attached = Weak::new();
            }
        })
    }
}
