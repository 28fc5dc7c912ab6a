//! The device `iwarp0`: its abilities, and its queue pair numbers.

use crate::endpoint::Endpoint;
use crate::lane::Lanes;
use crate::local::LocalHost;
use crate::manager;
use adverb_core::attributes::{
    DeviceAttributes, Gid, GidKind, PortAttributes, TransportType, guid_salt, node_guid,
};
use adverb_core::cm::ConnectionBackend;
use adverb_core::description::{Addresses, Description};
use adverb_core::device::Device;
use adverb_core::engine;
use adverb_core::error::{Error, Result};
use adverb_core::event::AsyncEventKind;
use adverb_core::interfaces;
use adverb_core::ports::{Activity, Port};
use adverb_core::qp::{QueuePairOptions, Queues, Service};
use adverb_core::random;
use adverb_core::request::Opcode;
use adverb_core::transport::{Transport, TransportFactory};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// How the front ends find this transport.
pub const FACTORY: TransportFactory = TransportFactory {
    device: "iwarp0",
    default: false,
    create: |wanted| {
        let host = LocalHost::new();
        Ok(wanted.iter().map(|wanted| Iwarp::create(wanted, &host)).collect())
    },
};

/// Deepest queue of inbound or outbound reads, as the Linux siw driver offers.
pub(crate) const MAX_READS: u32 = 128;
/// Most scatter/gather elements of a request.
pub(crate) const MAX_SGES: u32 = 32;
const MAX_QUEUE_PAIRS: usize = 1 << 16;
/// Longest message: as adapters have it.
const MAX_MESSAGE: u32 = 1 << 31;

/// Operations that every iWARP peer has.
pub(crate) const BASIC: &[Opcode] = &[
    Opcode::Write,
    Opcode::Send,
    Opcode::SendWithInvalidate,
    Opcode::Read,
    Opcode::LocalInvalidate,
    Opcode::BindWindow,
];
/// Operations of a peer that has the extensions of RFC 7306, with those that every iWARP peer has.
pub(crate) const EXTENDED: &[Opcode] = &[
    Opcode::Write,
    Opcode::WriteWithImmediate,
    Opcode::Send,
    Opcode::SendWithInvalidate,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
    Opcode::LocalInvalidate,
    Opcode::BindWindow,
];

pub(crate) struct Iwarp {
    numbers: Mutex<HashSet<u32>>,
    host: Arc<LocalHost>,
    lanes: Lanes,
    name: String,
    addresses: Addresses,
    salt: u64,
}

impl Transport for Iwarp {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            transport: TransportType::Iwarp,
            node_guid: node_guid() ^ self.salt,
            max_mr_size: u64::MAX,
            max_qp: MAX_QUEUE_PAIRS as u32,
            max_qp_wr: 1 << 15,
            max_sge: MAX_SGES,
            // One sink STag per Read Request, so one element.
            max_sge_rd: 1,
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
            max_srq_sge: MAX_SGES,
            max_ah: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_message: MAX_MESSAGE,
            services: &[Service::Rc],
            operations: EXTENDED,
        }
    }

    fn port(&self) -> PortAttributes {
        PortAttributes {
            active: is_up(&self.name, &self.addresses),
            max_mtu: 4096,
            active_mtu: 1024,
            gid_table_length: 1,
            pkey_table_length: 1,
        }
    }

    fn gids(&self) -> Vec<Gid> {
        // An iWARP port has one GID: its hardware address, or a number in place of one, then zeros.
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&(node_guid() ^ self.salt).to_be_bytes()[..6]);
        vec![Gid { index: 0, bytes, interface: 0, kind: GidKind::IbOrRoceV1 }]
    }

    fn allocate_number(&self, _: &QueuePairOptions) -> Result<u32> {
        let mut numbers = self.lock();
        if numbers.len() >= MAX_QUEUE_PAIRS {
            return Err(Error::exhausted(format!(
                "all {MAX_QUEUE_PAIRS} queue pairs of the device are in use"
            )));
        }
        loop {
            // Numbers 0 and 1 are special in every transport of the family.
            let number = random::word() as u32 & 0xff_ffff;
            if number > 1 && numbers.insert(number) {
                return Ok(number);
            }
        }
    }

    fn release_number(&self, number: u32) {
        self.lock().remove(&number);
    }

    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn adverb_core::transport::Endpoint>> {
        let endpoint: Arc<dyn adverb_core::transport::Endpoint> =
            Endpoint::new(queues.clone(), self.lanes.of(queues, &self.host), self.host.clone());
        Ok(endpoint)
    }

    fn has_peers_that_map(&self) -> bool {
        true
    }

    fn connections(&self) -> &dyn ConnectionBackend {
        &manager::Manager
    }

    fn opened(&self, device: &Arc<Device>) {
        let Ok(engine) = engine::engine() else { return };
        engine.ports.watch(device, || {
            let (name, addresses) = (self.name.clone(), self.addresses.clone());
            let activity = Activity::new(is_up(&name, &addresses));
            Box::new(TcpPort { name, addresses, activity })
        });
    }

    fn at_exit(&self) {
        self.lanes.at_exit();
    }
}

impl Iwarp {
    fn create(wanted: &Description, host: &Arc<LocalHost>) -> Arc<dyn Transport> {
        let (name, addresses) = (wanted.name.clone(), wanted.addresses.clone());
        let (salt, host) = (guid_salt(wanted), host.clone());
        Arc::new(Self { numbers: Mutex::default(), host, lanes: Lanes::default(), name, addresses, salt })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<u32>> {
        self.numbers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Whether one of a device's interfaces is.
fn is_up(device: &str, addresses: &Addresses) -> bool {
    match addresses {
        Addresses::All => !interfaces::all_down_for(device),
        some => interfaces::addresses_for(device).iter().any(|local| local.carrier && some.has(local)),
    }
}

/// A port, which is active while one of its interfaces is up. Its GID is no address.
struct TcpPort {
    name: String,
    addresses: Addresses,
    activity: Activity,
}

impl Port for TcpPort {
    fn look(&mut self) -> Vec<AsyncEventKind> {
        self.activity.becomes(is_up(&self.name, &self.addresses)).into_iter().collect()
    }
}

/// The endpoint of a queue pair, if it is one of this transport.
pub(crate) fn endpoint_of(queue_pair: &adverb_core::qp::QueuePair) -> Result<Arc<Endpoint>> {
    queue_pair
        .endpoint()
        .clone()
        .as_any()
        .downcast::<Endpoint>()
        .map_err(|_| Error::invalid("the queue pair belongs to a device of another transport"))
}
