//! The device `roce0`, and others like it: their abilities, their ports, and their place in the host.
//!
//! The devices of a process share sockets, queue pair numbers and connection management; each has addresses
//! of the host, and its own GID table of them.

use crate::endpoint::Endpoint;
use crate::gid::{self, Gids};
use crate::manager::{self, Manager};
use crate::net::Net;
use crate::raw::RawEndpoint;
use crate::route::PORT;
use adverb_core::attributes::{DeviceAttributes, Gid, PortAttributes, TransportType, guid_salt, node_guid};
use adverb_core::cm::ConnectionBackend;
use adverb_core::description::{Addresses, Description};
use adverb_core::device::Device;
use adverb_core::error::{Error, Result};
use adverb_core::interfaces::are_altered;
use adverb_core::qp::{Path, QueuePairOptions, Queues, Service};
use adverb_core::request::Opcode;
use adverb_core::transport::{self, Transport, TransportFactory};
use std::sync::Arc;

/// The name of the device.
pub(crate) const NAME: &str = "roce0";

/// How the front ends find this transport.
pub const FACTORY: TransportFactory = TransportFactory { device: NAME, default: true, create };

/// Most reads and atomics outstanding, inbound and outbound. As many as the kernel's rxe: perftest takes its
/// peer's number.
pub(crate) const MAX_READS: u32 = 128;
const MAX_QUEUE_PAIRS: u32 = 1 << 16;
/// Longest message (volume 1, section 9.4.3).
const MAX_MESSAGE: u32 = 1 << 31;
const MAX_GROUPS: u32 = 4096;

/// Operations of reliable connections; those of the other services are fewer.
pub(crate) const RELIABLE: &[Opcode] = &[
    Opcode::Write,
    Opcode::WriteWithImmediate,
    Opcode::Send,
    Opcode::SendWithImmediate,
    Opcode::SendWithInvalidate,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
    Opcode::LocalInvalidate,
    Opcode::AtomicWrite,
    Opcode::Flush,
    Opcode::BindWindow,
];
const UNRELIABLE: &[Opcode] = &[
    Opcode::Write,
    Opcode::WriteWithImmediate,
    Opcode::Send,
    Opcode::SendWithImmediate,
    Opcode::LocalInvalidate,
    Opcode::BindWindow,
];
const DATAGRAM: &[Opcode] = &[Opcode::Send, Opcode::SendWithImmediate];

/// The operations that queue pairs of a service take.
pub(crate) fn operations(service: Service) -> &'static [Opcode] {
    match service {
        Service::Rc => RELIABLE,
        Service::Uc => UNRELIABLE,
        Service::Ud => DATAGRAM,
        Service::RawPacket => &[Opcode::Send],
        Service::XrcSend => RELIABLE,
        Service::XrcReceive => &[],
    }
}

fn create(wanted: &[&Description]) -> Result<Vec<Arc<dyn Transport>>> {
    let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
    let net = Net::new(names);
    let manager = manager::attach(&net);
    let one = |wanted: &&Description| -> Arc<dyn Transport> {
        let gids = match &wanted.addresses {
            Addresses::All if !are_altered() => net.gids.clone(),
            _ => Arc::new(Gids::of(wanted)),
        };
        Arc::new(Roce { net: net.clone(), manager: manager.clone(), gids, salt: guid_salt(wanted) })
    };
    Ok(wanted.iter().map(one).collect())
}

/// The transport.
pub(crate) struct Roce {
    pub(crate) net: Arc<Net>,
    manager: Arc<Manager>,
    gids: Arc<Gids>,
    salt: u64,
}

impl Transport for Roce {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            transport: TransportType::Ib,
            node_guid: node_guid() ^ self.salt,
            max_mr_size: u64::MAX,
            max_qp: MAX_QUEUE_PAIRS,
            max_qp_wr: 1 << 15,
            max_sge: 32,
            max_sge_rd: 32,
            max_inline_data: 1024,
            max_cq: 1 << 16,
            max_cqe: 1 << 20,
            max_mr: 1 << 20,
            max_mw: 1 << 20,
            max_dm_size: 1 << 20,
            max_pd: 1 << 20,
            max_qp_rd_atom: MAX_READS,
            max_qp_init_rd_atom: MAX_READS,
            atomics: true,
            max_srq: 1 << 16,
            max_srq_wr: 1 << 15,
            max_srq_sge: 32,
            max_ah: 1 << 20,
            max_mcast_grp: MAX_GROUPS,
            max_mcast_qp_attach: MAX_GROUPS,
            max_message: MAX_MESSAGE,
            services: &[
                Service::Rc,
                Service::Uc,
                Service::Ud,
                Service::RawPacket,
                Service::XrcSend,
                Service::XrcReceive,
            ],
            operations: RELIABLE,
        }
    }

    fn port(&self) -> PortAttributes {
        PortAttributes {
            active: self.gids.is_active(),
            max_mtu: 4096,
            active_mtu: self.gids.active_mtu().unwrap_or(1024),
            gid_table_length: gid::LENGTH,
            pkey_table_length: 1,
        }
    }

    fn has_peers_that_map(&self) -> bool {
        true
    }

    fn gids(&self) -> Vec<Gid> {
        self.gids.all()
    }

    fn allocate_number(&self, _: &QueuePairOptions) -> Result<u32> {
        if self.net.numbers_in_use() >= MAX_QUEUE_PAIRS as usize {
            return Err(Error::exhausted(format!(
                "all {MAX_QUEUE_PAIRS} queue pairs of the device are in use"
            )));
        }
        self.net.take_number()
    }

    fn release_number(&self, number: u32) {
        self.net.release_number(number);
    }

    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn transport::Endpoint>> {
        queues.allow(operations(queues.service));
        if queues.service == Service::RawPacket {
            let endpoint: Arc<dyn transport::Endpoint> =
                RawEndpoint::new(&self.net, &self.gids, queues.clone())?;
            return Ok(endpoint);
        }
        let lane = self.net.lane_for(queues)?;
        let endpoint: Arc<dyn transport::Endpoint> =
            Endpoint::new(&self.net, &self.gids, queues.clone(), lane);
        Ok(endpoint)
    }

    fn connections(&self) -> &dyn ConnectionBackend {
        &*self.manager
    }

    fn check_path(&self, path: &Path) -> Result<()> {
        self.gids.route_of(path).map(drop)
    }

    fn opened(&self, device: &Arc<Device>) {
        self.net.watch_addresses(device, &self.gids);
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("UDP port {PORT} is {}", self.net.udp_port.describe())]
    }

    fn at_exit(&self) {
        // Acknowledgements go before disconnects: PRACTICE-ORDER-1.
        self.net.all_lanes().for_each(|lane| lane.at_exit());
        if let Some(lane) = self.net.udp_port.lane_at_exit() {
            lane.hand_over_last();
        }
        self.manager.at_exit();
    }
}
