//! Devices, and the contexts that programs open on them.

use crate::attributes::{DeviceAttributes, Gid, PortAttributes};
use crate::counters::Counters;
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, AsyncEventKind, EventQueue};
use crate::fork::Born;
use crate::transport::Transport;
use crate::users::Users;
use std::sync::Arc;

/// A device that a program sees.
pub struct Device {
    name: String,
    index: usize,
    transport: Arc<dyn Transport>,
    counters: &'static Counters,
    born: Born,
    /// Protection domains that exist.
    pub(crate) domains: Users,
    /// Completion queues that exist.
    pub(crate) completion_queues: Users,
}

impl Device {
    pub(crate) fn new(
        name: String,
        index: usize,
        transport: Arc<dyn Transport>,
        counters: &'static Counters,
    ) -> Self {
        Self {
            name,
            index,
            transport,
            counters,
            born: Born::now(),
            domains: Users::new(),
            completion_queues: Users::new(),
        }
    }

    /// All devices of this process (ibv_get_device_list(3)).
    pub fn all() -> Result<Vec<Arc<Device>>> {
        Ok(engine::engine()?.devices().to_vec())
    }

    /// Its name: `iwarp0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the list (ibv_get_device_index(3)).
    pub fn index(&self) -> usize {
        self.index
    }

    /// What carries its bytes.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// What it has done in this process.
    pub fn counters(&self) -> &'static Counters {
        self.counters
    }

    /// Opens the device (ibv_open_device(3)).
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>> {
        // A device list from before a fork names the parent's transports; the same device of this process takes its place.
        let engine = engine::engine()?;
        let device = if self.born.is_here() {
            self.clone()
        } else {
            let found = engine.devices().iter().find(|device| device.name == self.name);
            found.cloned().ok_or_else(|| {
                Error::new(libc::ENODEV, format!("{} does not exist in this process", self.name))
            })?
        };
        Ok(Arc::new(Context {
            device,
            engine,
            events: EventQueue::new()?,
            born: Born::now(),
            users: Users::new(),
        }))
    }
}

/// An opened device: the root of all objects (struct ibv_context).
pub struct Context {
    device: Arc<Device>,
    engine: &'static Engine,
    events: EventQueue<AsyncEvent>,
    pub(crate) born: Born,
    pub(crate) users: Users,
}

impl Context {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The engine of the process that opened it.
    pub fn engine(&self) -> &'static Engine {
        self.engine
    }

    /// The transport below.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.device.transport
    }

    /// Whether this process opened it (a child of fork did not).
    pub fn is_here(&self) -> bool {
        self.born.is_here()
    }

    /// Limits and abilities (ibv_query_device(3)).
    pub fn attributes(&self) -> DeviceAttributes {
        self.device.transport.attributes()
    }

    /// The port's state and limits (ibv_query_port(3)); `port` is 1.
    pub fn port(&self, port: u8) -> Result<PortAttributes> {
        self.check_port(port)?;
        Ok(self.device.transport.port())
    }

    /// The GID table (ibv_query_gid(3)).
    pub fn gids(&self) -> Vec<Gid> {
        self.device.transport.gids()
    }

    fn check_port(&self, port: u8) -> Result<()> {
        if port == 1 {
            Ok(())
        } else {
            Err(Error::invalid(format!("port {port} does not exist: the device has port 1")))
        }
    }

    /// The asynchronous events of this context's objects.
    pub fn events(&self) -> &EventQueue<AsyncEvent> {
        &self.events
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind, subject: u64) {
        if self.born.is_here() {
            self.events.push(AsyncEvent { kind, subject });
        }
    }

    /// Objects that still live on it.
    pub fn objects(&self) -> usize {
        self.users.count()
    }
}
