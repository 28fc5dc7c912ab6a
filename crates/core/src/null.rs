//! The null transport: queue pairs of one process that are connected in memory, for tests of what lies above transports.
//!
//! It has the whole set of operations and iWARP's rules of connecting. A request is executed within the call that posts it, by
//! whoever holds the queue pair's transmit lock; nothing is ever in flight. Locks are taken in the order transmit, receive, and no sink is
//! called while one is held.

mod connections;
mod execute;

use crate::attributes::{DeviceAttributes, Gid, GidKind, PortAttributes, TransportType, gid_of, node_guid};
use crate::cm::{ConnectionBackend, ConnectionEvent, ConnectionSink};
use crate::error::Result;
use crate::qp::{Attributes, QueuePairOptions, Queues, SendCursor, Service, State, Transition};
use crate::request::Opcode;
use crate::transport::{Endpoint, Transport, TransportFactory};
use connections::Switchboard;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The null transport, as device `null0`.
pub const FACTORY: TransportFactory =
    TransportFactory { device: "null0", default: true, create: || Ok(Arc::new(Null::default())) };

#[derive(Default)]
struct Null {
    next_number: AtomicU32,
    switchboard: Switchboard,
}

impl Transport for Null {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            transport: TransportType::Iwarp,
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
            max_mw: 0,
            max_pd: 1 << 16,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomics: true,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_ah: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            services: &[Service::Rc],
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
            ],
        }
    }

    fn port(&self) -> PortAttributes {
        PortAttributes {
            active: true,
            max_mtu: 4096,
            active_mtu: 4096,
            max_message: 1 << 30,
            gid_table_length: 1,
            pkey_table_length: 1,
        }
    }

    fn gids(&self) -> Vec<Gid> {
        let bytes = gid_of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        vec![Gid { index: 0, bytes, interface: 1, kind: GidKind::IbOrRoceV1 }]
    }

    fn allocate_number(&self, _: &QueuePairOptions) -> Result<u32> {
        Ok(self.next_number.fetch_add(1, Ordering::Relaxed) + 2)
    }

    fn release_number(&self, _: u32) {}

    fn create_endpoint(&self, queues: &Arc<Queues>) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new_cyclic(|this| NullEndpoint {
            this: this.clone(),
            queues: queues.clone(),
            transmit: Mutex::default(),
            receive: Mutex::default(),
            link: Mutex::default(),
        }))
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

    /// Into error: waits until nobody executes requests of or for this queue pair, then flushes it.
    fn stop(&self) {
        self.queues.enter_error();
        let transmit = lock(&self.transmit);
        let receive = lock(&self.receive);
        self.queues.flush();
        drop((transmit, receive));
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
        let mut broken = false;
        loop {
            let Ok(mut cursor) = self.transmit.try_lock() else { return };
            let link = self.link();
            while let Some(link) = &link
                && !broken
                && self.queues.state() == State::Rts
                && let Some(work) = self.queues.send.peek(&cursor)
            {
                cursor.advance();
                broken = !execute::execute(self, link.peer(self).as_deref(), &work);
            }
            let at = *cursor;
            drop(cursor);
            if broken {
                return self.end();
            }
            // Whoever posted while the lock was held has left it to us.
            if link.is_none() || self.queues.state() != State::Rts || !self.queues.send.has_work(&at) {
                return;
            }
        }
    }

    fn modify(&self, transition: Transition, _: &Attributes) -> Result<()> {
        if matches!(transition.to, State::Error | State::Reset) {
            self.end();
        }
        if transition.to == State::Reset {
            *lock(&self.link) = None;
            *lock(&self.transmit) = SendCursor::default();
        }
        Ok(())
    }

    fn is_connected_by_manager(&self) -> bool {
        true
    }

    fn close(&self) {
        self.end();
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::conformance::Site;
    use crate::transport::TransportFactory;

    /// A second device, for what depends on there being several. All tests of the crate share one engine.
    const SECOND: TransportFactory = TransportFactory { device: "null1", ..super::FACTORY };

    pub(crate) fn site() -> Site {
        Site::new(|| crate::engine::install(&[super::FACTORY, SECOND]), "null0", "127.0.0.1")
    }

    crate::conformance_tests!(site());
}
