//! The null transport: queue pairs of one process that are connected in memory, for tests of the layers above
//! transports.
//!
//! There are two devices: `null0` with iWARP's rules of connecting, and `nullib0`, whose queue pairs
//! attributes connect, with the unreliable services and multicast beside. Both have the whole set of
//! operations. The thread that holds the queue pair's transmit lock executes a request within the call that
//! posts it; nothing is ever in flight. Locks are taken in the order transmit, receive, and no sink is called
//! while one is held.

mod connections;
mod execute;
mod fabric;
mod unreliable;

use crate::attributes::{DeviceAttributes, Gid, GidKind, PortAttributes, TransportType, gid_of, node_guid};
use crate::cm::{ConnectionBackend, ConnectionEvent, ConnectionSink};
use crate::description::Description;
use crate::error::Result;
use crate::qp::{Attributes, QueuePairOptions, Queues, SendCursor, SendWork, Service, State, Transition};
use crate::reactor::{Readiness, Source};
use crate::request::Opcode;
use crate::transport::{Endpoint, Transport, TransportFactory};
use connections::Switchboard;
use fabric::Fabric;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Bytes of payload in a packet, if there were any.
const MTU: u32 = 4096;

/// The null transport, as device `null0`.
pub const FACTORY: TransportFactory =
    TransportFactory { device: "null0", default: true, create: |wanted| many(wanted, None) };

/// The null transport with InfiniBand's rules, as device `nullib0`.
pub const IB_FACTORY: TransportFactory = TransportFactory {
    device: "nullib0",
    default: true,
    create: |wanted| many(wanted, Some(Arc::default())),
};

fn many(wanted: &[&Description], fabric: Option<Arc<Fabric>>) -> Result<Vec<Arc<dyn Transport>>> {
    let one = |_: &&Description| -> Arc<dyn Transport> {
        Arc::new(Null { fabric: fabric.clone(), ..Null::default() })
    };
    Ok(wanted.iter().map(one).collect())
}

#[derive(Default)]
struct Null {
    next_number: AtomicU32,
    switchboard: Switchboard,
    /// With InfiniBand's rules: where queue pairs find each other.
    fabric: Option<Arc<Fabric>>,
}

impl Transport for Null {
    fn attributes(&self) -> DeviceAttributes {
        let (transport, services, datagrams): (_, &[Service], _) = match &self.fabric {
            None => (TransportType::Iwarp, &[Service::Rc], 0),
            Some(_) => (TransportType::Ib, &[Service::Rc, Service::Uc, Service::Ud], 1),
        };
        DeviceAttributes {
            transport,
            node_guid: node_guid(),
            max_mr_size: 1 << 40,
            max_qp: 1 << 16,
            max_qp_wr: 1 << 12,
            max_sge: 8,
            max_sge_rd: 8,
            max_inline_data: 256,
            max_cq: 1 << 16,
            max_cqe: 1 << 16,
            max_mr: 1 << 16,
            max_mw: 1 << 10,
            max_dm_size: 1 << 20,
            max_pd: 1 << 16,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomics: true,
            max_srq: 1 << 10,
            max_srq_wr: 1 << 12,
            max_srq_sge: 8,
            max_ah: datagrams << 10,
            max_mcast_grp: datagrams << 10,
            max_mcast_qp_attach: datagrams << 10,
            max_message: 1 << 30,
            services,
            operations: &[
                Opcode::Write,
                Opcode::WriteWithImmediate,
                Opcode::Send,
                Opcode::SendWithImmediate,
                Opcode::Read,
                Opcode::CompareSwap,
                Opcode::FetchAdd,
                Opcode::LocalInvalidate,
                Opcode::SendWithInvalidate,
                Opcode::BindWindow,
            ],
        }
    }

    fn port(&self) -> PortAttributes {
        PortAttributes {
            active: true,
            max_mtu: MTU,
            active_mtu: MTU,
            gid_table_length: 1,
            pkey_table_length: 1,
        }
    }

    fn has_peers_that_map(&self) -> bool {
        true
    }

    fn gids(&self) -> Vec<Gid> {
        let bytes = gid_of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let kind = if self.fabric.is_some() { GidKind::RoceV2 } else { GidKind::IbOrRoceV1 };
        vec![Gid { index: 0, bytes, interface: 1, kind }]
    }

    fn allocate_number(&self, _: &QueuePairOptions) -> Result<u32> {
        Ok(self.next_number.fetch_add(1, Ordering::Relaxed) + 2)
    }

    fn release_number(&self, _: u32) {}

    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn Endpoint>> {
        let endpoint = Arc::new_cyclic(|this| NullEndpoint {
            this: this.clone(),
            queues: queues.clone(),
            transmit: Mutex::default(),
            receive: Mutex::default(),
            link: Mutex::default(),
            fabric: self.fabric.clone(),
            attributes: Mutex::default(),
        });
        if let Some(fabric) = &self.fabric {
            fabric.add(&endpoint);
        }
        Ok(endpoint)
    }

    fn connections(&self) -> &dyn ConnectionBackend {
        &self.switchboard
    }
}

struct NullEndpoint {
    this: Weak<NullEndpoint>,
    queues: Arc<Queues>,
    transmit: Mutex<SendCursor>,
    receive: Mutex<()>,
    link: Mutex<Option<Arc<Link>>>,
    fabric: Option<Arc<Fabric>>,
    attributes: Mutex<Attributes>,
}

/// How the execution of a request ended.
enum Execution {
    /// The next one may follow.
    Well,
    /// The queue pair stops, and with a peer that is named, that one, too.
    Broken(Option<Arc<NullEndpoint>>),
    /// The request is to be executed again later, and the next one behind it.
    Later,
    /// The peer alone stops.
    Delivered(Arc<NullEndpoint>),
}

/// A connection of two endpoints.
struct Link {
    ends: [(Weak<NullEndpoint>, Arc<dyn ConnectionSink>); 2],
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Link {
    /// The end that is not `own`.
    fn peer(&self, own: &NullEndpoint) -> Option<Arc<NullEndpoint>> {
        let other = self.ends.iter().find(|(end, _)| !Weak::ptr_eq(end, &own.this))?;
        other.0.upgrade()
    }

    /// Ends the connection on both sides.
    fn end(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        for (endpoint, _) in &self.ends {
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.stop();
            }
        }
        for (_, sink) in &self.ends {
            sink.event(ConnectionEvent::Disconnected);
        }
    }
}

impl NullEndpoint {
    fn link(&self) -> Option<Arc<Link>> {
        lock(&self.link).clone()
    }

    /// Into error: waits until no thread executes requests of or for this queue pair, then flushes it.
    fn stop(&self) {
        self.queues.enter_error();
        let transmit = lock(&self.transmit);
        let receive = lock(&self.receive);
        self.queues.flush();
        drop((transmit, receive));
    }

    /// Executes one request.
    fn execute(&self, cursor: &mut SendCursor, work: &SendWork) -> Execution {
        if work.opcode.is_local() {
            return execute::execute_locally(self, work);
        }
        let Some(fabric) = &self.fabric else {
            let peer = self.link().and_then(|link| link.peer(self));
            return execute::execute(self, peer, work);
        };
        match self.queues.service {
            Service::Rc => {
                let destination = lock(&self.attributes).destination;
                let peer = fabric.find(destination);
                let peer = peer.filter(|peer| lock(&peer.attributes).destination == self.queues.number);
                execute::execute(self, peer, work)
            }
            _ => unreliable::execute(self, fabric, cursor, work),
        }
    }

    fn may_send(&self) -> bool {
        self.queues.state() == State::Rts && (self.fabric.is_some() || self.link().is_some())
    }

    fn end(&self) {
        if let Some(link) = self.link() {
            link.end();
        }
        // Also if another thread is ending the link at this instant: our caller relies on it.
        self.stop();
    }
}

impl Endpoint for NullEndpoint {
    fn transmit(&self) {
        loop {
            let Ok(mut cursor) = self.transmit.try_lock() else { return };
            let mut executed = Execution::Well;
            while matches!(executed, Execution::Well)
                && self.may_send()
                && let Some(work) = self.queues.send.peek(&mut cursor)
            {
                let before = *cursor;
                cursor.advance();
                executed = self.execute(&mut cursor, &work);
                if matches!(executed, Execution::Later) {
                    *cursor = before;
                }
            }
            let at = *cursor;
            drop(cursor);
            match executed {
                Execution::Well => {}
                Execution::Broken(peer) => {
                    self.end();
                    if let Some(peer) = peer {
                        peer.end();
                    }
                    return;
                }
                Execution::Later => return,
                Execution::Delivered(peer) => peer.end(),
            }
            // A thread that posted while the lock was held has left its requests to this one.
            if !self.may_send() || !self.queues.send.has_work(&at) {
                return;
            }
        }
    }

    fn modify(&self, transition: Transition, attributes: &Attributes) -> Result<()> {
        *lock(&self.attributes) = *attributes;
        match (transition.from, transition.to) {
            (_, State::Error | State::Reset) => self.end(),
            (_, State::Sqd) => {
                // A thread that executes requests holds this lock.
                drop(lock(&self.transmit));
                self.queues.send_queue_drained();
            }
            (State::Sqe, State::Rts) => *lock(&self.transmit) = self.queues.send.resume_at(),
            _ => {}
        }
        if transition.to == State::Reset {
            *lock(&self.link) = None;
            *lock(&self.transmit) = SendCursor::default();
        }
        Ok(())
    }

    fn is_connected_by_manager(&self) -> bool {
        self.fabric.is_none()
    }

    fn close(&self) {
        self.end();
        if let Some(fabric) = &self.fabric {
            fabric.remove(self.queues.number);
        }
    }

    fn attach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        if let Some(fabric) = &self.fabric {
            fabric.attach(group, &self.this);
        }
        Ok(())
    }

    fn detach_multicast(&self, group: &[u8; 16]) -> Result<()> {
        if let Some(fabric) = &self.fabric {
            fabric.detach(group, &self.this);
        }
        Ok(())
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

impl Source for NullEndpoint {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        // The thread that has left a request for later does not look again: it may still have the lock.
        drop(lock(&self.transmit));
        self.transmit();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::conformance::Site;
    use crate::conformance::fixture::{Memory, Pair};
    use crate::event::{AsyncEvent, AsyncEventKind};
    use crate::qp::{AttributeMask, Attributes, State};
    use crate::request::{Opcode, Status};
    use crate::transport::TransportFactory;

    /// A second device, for tests that need several. All tests of the crate share one engine.
    const SECOND: TransportFactory = TransportFactory { device: "null1", ..super::FACTORY };

    /// To be called by each test that needs the engine: only the first call counts, from any test.
    pub(crate) fn install() {
        crate::engine::install(&[super::FACTORY, SECOND, super::IB_FACTORY]);
    }

    pub(crate) fn site() -> Site {
        Site::new(install, "null0", "127.0.0.1")
    }

    crate::conformance_tests!(site());

    /// Causes that depend on the instant or on services that no transport has: the transport says how the
    /// request ended, and the memory is fine when it is looked at.
    #[test]
    fn the_status_that_a_transport_gives_becomes_the_cause() {
        for (status, cause) in [
            (Status::LocalQpOperation, 0x107),
            (Status::LocalProtection, 0x108),
            (Status::RemoteAborted, 0x304),
            (Status::BadResponse, 0x305),
            (Status::ResponseTimeout, 0x403),
        ] {
            let Pair { client, server: _server } = Pair::connect(&site());
            let memory = Memory::open(&client.domain, 8);
            // Requests that are posted now wait.
            client.to(State::Sqd, AttributeMask::empty(), &Attributes::default());
            client.post(5, Opcode::Send, &[memory.all()], (0, 0));
            client.queue_pair.queues().complete_send(0, status);
            let done = client.sent();
            assert_eq!((done.wr_id, done.status, done.vendor_error), (5, status, cause));
        }
    }

    #[test]
    fn events_of_the_port_come_to_all_contexts() {
        site();
        let devices = crate::device::Device::all().unwrap();
        // A device whose contexts no other test listens to.
        let device = devices.iter().find(|device| device.name() == "null1").unwrap();
        let contexts = [device.open().unwrap(), device.open().unwrap()];
        drop(device.open().unwrap());
        device.raise(AsyncEventKind::GidChange);
        for context in contexts {
            let event = context.events().try_next().unwrap();
            assert_eq!(event, Some(AsyncEvent { kind: AsyncEventKind::GidChange, subject: 1 }));
        }
    }

    mod ib {
        use crate::conformance::Site;

        fn site() -> Site {
            super::site();
            Site::new(|| (), "nullib0", "127.0.0.1").by_attributes()
        }

        crate::conformance_tests_by_attributes!(site());
    }
}
