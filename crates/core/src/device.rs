//! Devices, and the contexts that programs open on them.

use crate::attributes::{DeviceAttributes, Gid, PortAttributes, TransportType};
use crate::counters::Counters;
use crate::description::{self, Description, Rate};
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, AsyncEventKind, EventQueue};
use crate::fork::ForkGeneration;
use crate::interfaces;
use crate::qp::Path;
use crate::region::{DeviceMemory, ProtectionDomain};
use crate::registry::Registry;
use crate::transport::Transport;
use crate::users::DependentCount;
use crate::xrc::Members;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A device that a program sees.
pub struct Device {
    description: Description,
    index: usize,
    transport: Arc<dyn Transport>,
    counters: &'static Counters,
    born: ForkGeneration,
    /// Protection domains that exist.
    pub(crate) domains: DependentCount,
    /// Memory windows that exist.
    pub(crate) windows: DependentCount,
    /// Bytes of device memory that are taken.
    pub(crate) device_memory: AtomicU64,
    /// Completion queues that exist.
    pub(crate) completion_queues: DependentCount,
    /// Shared receive queues that exist.
    pub(crate) shared_receive_queues: DependentCount,
    /// Address handles that exist.
    pub(crate) address_handles: DependentCount,
    /// XRC domains that some context has open.
    pub(crate) xrc_domains: Mutex<Vec<Weak<Members>>>,
    /// Whether a queue pair has the right to count posts in the cheap way.
    pub(crate) counting: Arc<AtomicBool>,
    contexts: Registry<Context>,
    /// The speed that programs are told from now on, in place of the one in the description.
    rate: Mutex<Option<Rate>>,
    /// The device has been taken away: it serves no address.
    is_gone: AtomicBool,
}

impl Device {
    pub(crate) fn new(
        description: Description,
        index: usize,
        transport: Arc<dyn Transport>,
        counters: &'static Counters,
    ) -> Self {
        Self {
            description,
            index,
            transport,
            counters,
            born: ForkGeneration::now(),
            domains: DependentCount::new(),
            windows: DependentCount::new(),
            device_memory: AtomicU64::new(0),
            completion_queues: DependentCount::new(),
            shared_receive_queues: DependentCount::new(),
            address_handles: DependentCount::new(),
            xrc_domains: Mutex::default(),
            counting: Arc::default(),
            contexts: Registry::default(),
            rate: Mutex::default(),
            is_gone: AtomicBool::new(false),
        }
    }

    /// All devices of this process (ibv_get_device_list(3)).
    pub fn all() -> Result<Vec<Arc<Device>>> {
        Ok(engine::engine()?.devices().to_vec())
    }

    /// The device's name: `iwarp0`.
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// The description of the device, as the run wants it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The first of some devices that has an address of the host, in their order. Costs no system call where
    /// no device is described by its interfaces.
    // PRACTICE-DEVICES-2
    pub fn first_with(devices: &[Arc<Device>], address: IpAddr) -> Option<&Arc<Device>> {
        let there: Vec<_> = devices.iter().filter(|device| !device.is_gone.load(Ordering::Relaxed)).collect();
        let own = there.iter().map(|device| &device.description.addresses);
        let index = description::first_with(own, address, interfaces::with_address)?;
        there.get(index).copied()
    }

    /// The speed of its link.
    pub fn rate(&self) -> Rate {
        self.rate.lock().unwrap_or_else(|e| e.into_inner()).unwrap_or(self.description.rate)
    }

    /// Tells programs another speed from now on; with none, the one in the description.
    pub fn set_rate(&self, rate: Option<Rate>) {
        *self.rate.lock().unwrap_or_else(|e| e.into_inner()) = rate;
    }

    /// Takes the device away, as its driver might, or brings it back. Connection management does not find a
    /// device that is away.
    pub fn set_gone(&self, is_gone: bool) {
        self.is_gone.store(is_gone, Ordering::Relaxed);
    }

    /// The device's place in the list, and its number among the files of devices.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The transport that carries its bytes.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The counters of the device's work in this process.
    pub fn counters(&self) -> &'static Counters {
        self.counters
    }

    /// Opens the device (ibv_open_device(3)).
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>> {
        // A device list from before a fork names the parent's transports; the same device of this process
        // takes its place.
        let engine = engine::engine()?;
        engine.failure.check()?;
        let device = if self.born.is_here() {
            self.clone()
        } else {
            let found = engine.devices().iter().find(|device| device.name() == self.name());
            found.cloned().ok_or_else(|| {
                Error::new(libc::ENODEV, format!("{} does not exist in this process", self.name()))
            })?
        };
        let context = Arc::new(Context {
            device: device.clone(),
            engine,
            events: EventQueue::new()?,
            born: ForkGeneration::now(),
            users: DependentCount::new(),
            shared: Mutex::default(),
            identity: AtomicU64::new(0),
            secret: crate::random::word(),
        });
        device.contexts.add(Arc::downgrade(&context));
        device.transport.opened(&device);
        Ok(context)
    }

    /// The contexts that are open.
    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        self.contexts.all()
    }

    /// Raises an event about the port in all contexts that are open.
    pub fn raise(&self, kind: AsyncEventKind) {
        for context in self.contexts.all() {
            context.raise(kind, 1);
        }
    }

    /// The open context that the front end has given this identity.
    pub fn context_with_identity(&self, identity: u64) -> Option<Arc<Context>> {
        self.contexts.all().into_iter().find(|context| context.identity.load(Ordering::Acquire) == identity)
    }

    /// The open context with this secret.
    pub(crate) fn context_with_secret(&self, secret: u64) -> Option<Arc<Context>> {
        self.contexts.all().into_iter().find(|context| context.secret == secret)
    }
}

/// An opened device: the root of all objects (struct ibv_context).
pub struct Context {
    device: Arc<Device>,
    engine: &'static Engine,
    events: EventQueue<AsyncEvent>,
    pub(crate) born: ForkGeneration,
    pub(crate) users: DependentCount,
    shared: Mutex<ImportableObjects>,
    identity: AtomicU64,
    secret: u64,
}

/// Objects of a context that another context can import, by their numbers.
#[derive(Default)]
pub(crate) struct ImportableObjects {
    pub(crate) domains: HashMap<u32, Weak<ProtectionDomain>>,
    pub(crate) device_memory: HashMap<u32, Weak<DeviceMemory>>,
}

impl Context {
    pub(crate) fn shared(&self) -> MutexGuard<'_, ImportableObjects> {
        self.shared.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The number that a process must know to import from this context ([`crate::export`]).
    pub(crate) fn secret(&self) -> u64 {
        self.secret
    }

    /// Sets the word, not 0, by which [`Device::context_with_identity`] finds this context.
    pub fn set_identity(&self, identity: u64) {
        self.identity.store(identity, Ordering::Release);
    }

    /// The protection domains in it, in the order of their numbers.
    pub(crate) fn protection_domains(&self) -> Vec<Arc<ProtectionDomain>> {
        let mut domains: Vec<_> = self.shared().domains.values().filter_map(Weak::upgrade).collect();
        domains.sort_unstable_by_key(|domain| domain.number());
        domains
    }

    /// The protection domain with this number, for import.
    pub fn protection_domain(&self, number: u32) -> Option<Arc<ProtectionDomain>> {
        self.shared().domains.get(&number).and_then(Weak::upgrade)
    }

    /// The device memory with this number, for import.
    pub fn device_memory(&self, number: u32) -> Option<Arc<DeviceMemory>> {
        self.shared().device_memory.get(&number).and_then(Weak::upgrade)
    }

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

    /// Whether this process opened the context (a child of fork did not).
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

    /// Whether packets can be sent along `path` (ibv_create_ah(3), the address vector of ibv_modify_qp(3)).
    ///
    /// # Errors
    /// EINVAL for a field that is out of range; the transport's errors.
    pub fn check_path(&self, path: &Path) -> Result<()> {
        self.check_port(path.port)?;
        if self.attributes().transport == TransportType::Ib {
            // Ethernet has no LIDs, so GIDs alone say where to.
            if !path.is_global {
                return Err(Error::invalid(
                    "the path has no GIDs (is_global is 0), and there is no other address: ibv_*_pingpong want -g 0 on both sides",
                ));
            }
            if path.gid == [0; 16] {
                return Err(Error::invalid("the destination GID is zero"));
            }
            let source = u32::from(path.source_gid_index);
            if !self.gids().iter().any(|gid| gid.index == source) {
                return Err(Error::invalid(format!(
                    "source GID index {source}: the table has no such entry"
                )));
            }
        }
        self.transport().check_path(path)
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

    /// Objects that the program has on it.
    pub fn objects(&self) -> usize {
        self.users.count()
    }
}

/// The place of an object among those of its context: from when the program makes it until the program
/// destroys it. A thread of the engine may keep the object longer than that, and the context is closed
/// meanwhile.
pub(crate) struct Seat {
    context: Arc<Context>,
    is_left: AtomicBool,
}

impl Seat {
    /// The context has an object more.
    pub(crate) fn take(context: &Arc<Context>) -> Self {
        context.users.enter();
        Self { context: context.clone(), is_left: AtomicBool::new(false) }
    }

    /// The context.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether the program has the object no more.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// The program does not have the object any more. False if that has been said before.
    pub(crate) fn leave(&self) -> bool {
        let is_first = !self.is_left.swap(true, Ordering::AcqRel);
        if is_first {
            self.context.users.leave();
        }
        is_first
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}
