//! The process's engine: everything hangs on one pointer, which a child of fork clears.

use crate::barrier;
use crate::counters::Page;
use crate::device::Device;
use crate::error::Result;
use crate::export::Exporter;
use crate::failure::Failure;
use crate::inspect::Inspection;
use crate::memory::moved::SafePoints;
use crate::memory::{Keys, Mappings};
use crate::ports::Ports;
use crate::reactor::Reactor;
use crate::transport::{self, TransportFactory};
use crate::{closing, containment, failure, fork, helpers, log, memory, setting};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// The objects that one process has once: keys, the background thread, devices, counters.
pub struct Engine {
    /// The page of counters, which other processes may read.
    pub(crate) page: &'static Page,
    /// The memory keys of all devices.
    pub keys: Keys,
    /// The program's mappings of memory.
    pub mappings: Mappings,
    /// The background thread.
    pub reactor: Reactor,
    /// Lets other processes import objects.
    pub exporter: Exporter,
    /// Where other processes ask for its objects.
    pub(crate) inspection: Inspection,
    /// Whether one of its threads has failed.
    pub failure: Failure,
    /// Work that waits for a thread of the program.
    pub safe_points: SafePoints,
    /// The ports of open devices.
    pub ports: Ports,
    devices: Vec<Arc<Device>>,
    /// Why a device that `ADVERB_DEVICE` names does not exist: name and reason.
    missing: Vec<(String, String)>,
    next_domain: AtomicU32,
    next_shared_receive_queue: AtomicU32,
}

static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static TRANSPORTS: OnceLock<&'static [TransportFactory]> = OnceLock::new();

/// Says which transports this build has, in their default order. The first call counts; every front end makes
/// it before anything else.
pub fn install(transports: &'static [TransportFactory]) {
    TRANSPORTS.get_or_init(|| transports);
}

/// The transports that were installed.
pub fn transports() -> &'static [TransportFactory] {
    TRANSPORTS.get().copied().unwrap_or(&[])
}

/// The engine of this process, built by the first call.
///
/// # Errors
/// EMFILE or ENFILE when descriptors have run out.
pub fn engine() -> Result<&'static Engine> {
    match existing() {
        Some(engine) => Ok(engine),
        None => first(),
    }
}

/// The engine, built here unless another thread is first. By itself: callers are everywhere, and many have
/// little stack.
#[cold]
#[inline(never)]
fn first() -> Result<&'static Engine> {
    let built = Box::into_raw(Box::new(Engine::build()?));
    match ENGINE.compare_exchange(std::ptr::null_mut(), built, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked above, and never freed.
        Ok(_) => Ok(unsafe { &*built }.published()),
        Err(other) => {
            // Another thread was first. Ours has no thread and no user yet. SAFETY: `built` came from
            // Box::into_raw and no other thread has seen it; `other` is published and never freed.
            unsafe {
                (*built).reactor.discard();
                drop(Box::from_raw(built));
                Ok(&*other)
            }
        }
    }
}

/// The engine, if there is one already.
pub fn existing() -> Option<&'static Engine> {
    // SAFETY: the pointer is null or a leaked engine that is never freed.
    unsafe { ENGINE.load(Ordering::Acquire).as_ref() }
}

/// In a child of fork: stores alone.
pub(crate) fn forget() {
    ENGINE.store(std::ptr::null_mut(), Ordering::Release);
    helpers::CURRENT.forget();
    closing::forget();
    memory::forget_copies();
    SafePoints::forget();
}

impl Engine {
    #[inline(never)]
    fn build() -> Result<Self> {
        // Memory first: the earlier, the sooner a child has its memory, and the later it is copied.
        memory::moved::install_handlers();
        fork::install_handler(forget);
        containment::tell_of_panics(failure::fail);
        memory::install_fault_handler();
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            // SAFETY: a static function; the libraries that hold it are never unloaded (-z nodelete).
            unsafe { libc::atexit(at_exit) };
        });
        // Lines of the log may go to standard error as it is at this moment.
        log::enabled(log::Level::Warn);
        setting::say_wrong(&transports().iter().map(|transport| transport.device).collect::<Vec<_>>());
        let all = transport::make(transports(), setting::devices().as_deref());
        let names: Vec<_> = all.iter().flatten().map(|(description, _)| description.name.as_str()).collect();
        let page = Page::create(&names);
        let (mut devices, mut missing) = (Vec::new(), Vec::new());
        for made in all {
            match made {
                Ok((description, transport)) => {
                    let counters = page.set(devices.len());
                    devices.push(Arc::new(Device::new(description, devices.len(), transport, counters)));
                }
                Err((name, error)) => {
                    log!(Warn, "device {name} is missing: {error}");
                    missing.push((name, error.to_string()));
                }
            }
        }
        let keys = Keys::new();
        if barrier::set_up() {
            keys.set_barrier(barrier::barrier);
        }
        Ok(Self {
            page,
            keys,
            mappings: Mappings::open(),
            inspection: Inspection::default(),
            failure: Failure::default(),
            safe_points: SafePoints::default(),
            ports: Ports::default(),
            reactor: Reactor::new()?,
            devices,
            missing,
            exporter: Exporter::new(),
            next_domain: AtomicU32::new(1),
            next_shared_receive_queue: AtomicU32::new(1),
        })
    }

    /// The engine has been published in `ENGINE`; now code below finds its parts. Between the two, another
    /// thread may have found the engine and not yet its parts: it moves no pages then, and the kernel copies.
    fn published(&'static self) -> &'static Self {
        helpers::CURRENT.set(&self.reactor.helpers);
        self.safe_points.begin();
        self
    }

    /// The devices of this process, in the order of `ADVERB_DEVICE`.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// Devices that were asked for and do not exist, with the reason.
    pub fn missing(&self) -> &[(String, String)] {
        &self.missing
    }

    /// A number for a protection domain: never used twice in the life of the engine.
    pub(crate) fn next_domain(&self) -> u32 {
        self.next_domain.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a shared receive queue.
    pub(crate) fn next_shared_receive_queue(&self) -> u32 {
        self.next_shared_receive_queue.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }
}

extern "C" fn at_exit() {
    let Some(engine) = existing() else { return };
    for device in &engine.devices {
        device.transport().at_exit();
        if log::enabled(log::Level::Info) {
            let mut counters: Vec<String> = device
                .counters()
                .all()
                .into_iter()
                .filter(|(_, _, value)| *value != 0)
                .map(|(name, _, value)| format!("{name}={value}"))
                .collect();
            if counters.is_empty() {
                counters.push("none".to_owned());
            }
            log!(Info, "counters {}: {}", device.name(), counters.join(" "));
        }
    }
}
