//! The queue pair of an identifier (rdma_create_qp(3), rdma_init_qp_attr(3)).

use super::identifier::Identifier;
use super::path::{PathRecord, gid_entry};
use crate::attributes::TransportType;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::qp::{AttributeMask, Attributes, QueuePair, Service, State};
use crate::transport::connections::Agreement;
use std::sync::Arc;

/// The Q_Key of datagram queue pairs that the connection manager sets up (RDMA_UDP_QKEY).
// IB-SIDR-9
pub const UDP_QKEY: u32 = 0x0123_4567;

impl Identifier {
    /// Makes `queue_pair`, fresh and in RESET, the identifier's, and moves it to INIT, so that receives can
    /// be posted; a datagram queue pair goes on to RTS (rdma_create_qp(3)).
    ///
    /// # Errors
    /// EINVAL if there is one already, no device is fixed yet, or it belongs to another device or service.
    pub fn attach_queue_pair(&self, queue_pair: &Arc<QueuePair>) -> Result<()> {
        let taken = || Error::invalid("the identifier has a queue pair already");
        let device = self.fixed_device()?;
        if self.enter()?.queue_pair.is_some() {
            return Err(taken());
        }
        if !Arc::ptr_eq(&device, queue_pair.context().device()) {
            return Err(Error::invalid(format!(
                "the queue pair belongs to {}, the identifier to {}",
                queue_pair.context().device().name(),
                device.name()
            )));
        }
        if queue_pair.queues().service != self.service {
            return Err(Error::invalid(format!(
                "a queue pair of {} on an identifier for {}",
                queue_pair.queues().service,
                self.service
            )));
        }
        let steps: &[State] = match self.service {
            Service::Ud => &[State::Init, State::Rtr, State::Rts],
            _ => &[State::Init],
        };
        for step in steps {
            let (attributes, mask) = self.attributes_for(*step, device.transport().attributes().transport)?;
            queue_pair.modify(&attributes, mask)?;
        }
        let mut inner = self.enter()?;
        if inner.queue_pair.is_some() {
            return Err(taken());
        }
        inner.queue_pair = Some(queue_pair.clone());
        Ok(())
    }

    fn fixed_device(&self) -> Result<Arc<Device>> {
        self.enter()?.device.clone().ok_or_else(|| {
            Error::invalid("the identifier has no device yet: bind to an address of the host, or resolve one")
        })
    }

    /// Takes the queue pair back, to be destroyed (rdma_destroy_qp(3)).
    pub fn detach_queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.enter().ok()?.queue_pair.take()
    }

    /// The attributes that a program which manages its queue pair itself passes to ibv_modify_qp(3) to reach
    /// `state` (rdma_init_qp_attr(3)).
    ///
    /// # Errors
    /// EINVAL without a device, for a state other than INIT, RTR and RTS, and, where the peer has a say, for
    /// the last two before it has spoken.
    pub fn queue_pair_attributes(&self, state: State) -> Result<(Attributes, AttributeMask)> {
        let device = self.fixed_device()?;
        self.attributes_for(state, device.transport().attributes().transport)
    }

    fn attributes_for(&self, state: State, transport: TransportType) -> Result<(Attributes, AttributeMask)> {
        use AttributeMask as M;
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let attributes = Attributes {
            state: Some(state),
            port: 1,
            qkey: UDP_QKEY,
            access: if self.service == Service::Ud { 0 } else { access.bits() },
            ..Attributes::default()
        };
        let mask = match (state, self.service, transport) {
            (State::Init, Service::Ud, _) => M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY,
            (State::Rtr, Service::Ud, _) => M::STATE,
            (State::Rts, Service::Ud, _) => M::STATE | M::SQ_PSN,
            (State::Init, _, TransportType::Ib) => M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (State::Rtr | State::Rts, _, TransportType::Ib) => return self.agreement()?.attributes(state),
            // As the kernel: on iWARP there is nothing to say about a path, and the connection takes it to
            // RTS.
            (State::Init | State::Rtr, _, TransportType::Iwarp) => M::STATE | M::ACCESS_FLAGS | M::PORT,
            (State::Rts, _, TransportType::Iwarp) => M::PORT,
            _ => {
                return Err(Error::invalid(format!(
                    "there are no attributes for {state}: it must be INIT, RTR or RTS"
                )));
            }
        };
        Ok((attributes, mask))
    }

    /// The terms of both sides, from the peer's request or answer on.
    fn agreement(&self) -> Result<Agreement> {
        let inner = self.enter()?;
        let asked = inner.incoming.as_ref().and_then(|incoming| incoming.agreement());
        let agreed = asked.or_else(|| inner.connection.as_ref().and_then(|made| made.agreement()));
        let mut agreed =
            agreed.ok_or_else(|| Error::invalid("the peer has not said yet what it connects"))?;
        // The transport counts by a table of all its devices, the program by its device's.
        if let (Some(device), Some(local)) = (&inner.device, inner.source)
            && let Some(own) = gid_entry(&device.transport().gids(), local)
        {
            agreed.path.source_gid_index = own.index as u8;
        }
        Ok(agreed)
    }

    /// The path between the identifier's addresses (`route` of struct rdma_cm_id), on a transport that has
    /// such paths.
    pub fn path_record(&self) -> Option<PathRecord> {
        let inner = self.enter().ok()?;
        let (device, local, peer) = (inner.device.clone()?, inner.source?, inner.destination?);
        let mtu = device.transport().connections().path_mtu(local.ip())?;
        Some(PathRecord::between(local, peer, mtu, &inner.options))
    }
}
