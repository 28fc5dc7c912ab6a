//! Devices, and the contexts that programs open on them.

use crate::{CompletionQueue, Error, PrivateDataLimits, ProtectionDomain, Result};
use adverb_core::attributes::{DeviceAttributes, PortAttributes};
use adverb_core::engine;
use adverb_core::log;
use adverb_core::setting;
use adverb_core::transport::TransportFactory;
use std::fmt;
use std::sync::{Arc, Once};

/// The transports of this build, in the order in which programs see their devices.
static TRANSPORTS: &[TransportFactory] = &[adverb_roce::FACTORY, adverb_iwarp::FACTORY];

/// An RDMA device: what the environment variable `ADVERB_DEVICE` names, or by default what this build has.
#[derive(Clone)]
pub struct Device(Arc<adverb_core::device::Device>);

impl Device {
    /// All devices that this process sees, in the order of `ADVERB_DEVICE`.
    ///
    /// # Errors
    /// When the engine cannot start: out of descriptors (EMFILE, ENFILE).
    pub fn all() -> Result<Vec<Device>> {
        engine::install(TRANSPORTS);
        say_what_meets_no_fault();
        Ok(adverb_core::device::Device::all()?.into_iter().map(Device).collect())
    }

    /// Names of all devices that this build could offer, also those that `ADVERB_DEVICE` does not name.
    pub fn known() -> Vec<&'static str> {
        TRANSPORTS.iter().map(|transport| transport.device).collect()
    }

    /// Its name, for instance `roce0`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Opens it. A device may be opened many times; objects of different contexts do not work together.
    pub fn open(&self) -> Result<Context> {
        Ok(Context(self.0.open()?))
    }

    /// Its work in this process: name, explanation and value of each counter.
    pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.0.counters().all()
    }
}

/// Rules of faults are about programs of the C libraries: who wants some here is told, once.
fn say_what_meets_no_fault() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if setting::variable("ADVERB_FAULT").is_some_and(|rules| !rules.trim().is_empty()) {
            log!(Warn, "ADVERB_FAULT: the program uses the Rust API, which meets no rule");
        }
    });
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

/// An opened device: where all other objects come from. Cheap to clone, thread-safe.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<adverb_core::device::Context>);

impl Context {
    /// Opens the first device that this process sees: `roce0`, unless `ADVERB_DEVICE` says otherwise.
    ///
    /// # Errors
    /// ENODEV when there is none, with the reason for each one that `ADVERB_DEVICE` asks for.
    pub fn open_default() -> Result<Context> {
        match Device::all()?.first() {
            Some(device) => device.open(),
            None => Err(Error::new(libc::ENODEV, format!("this process sees no RDMA device{}", reasons()?))),
        }
    }

    /// Opens the device of this name.
    ///
    /// # Errors
    /// ENODEV when this process does not see it, with the names that it sees.
    pub fn open(name: &str) -> Result<Context> {
        let devices = Device::all()?;
        match devices.iter().find(|device| device.name() == name) {
            Some(device) => device.open(),
            None => {
                let seen: Vec<_> = devices.iter().map(Device::name).collect();
                let text = format!(
                    "this process sees no device {name:?}; it sees: {}{}",
                    if seen.is_empty() { "none".to_owned() } else { seen.join(", ") },
                    reasons()?
                );
                Err(Error::new(libc::ENODEV, text))
            }
        }
    }

    /// The device.
    pub fn device(&self) -> Device {
        Device(self.0.device().clone())
    }

    /// Its limits and abilities.
    pub fn attributes(&self) -> DeviceAttributes {
        self.0.attributes()
    }

    /// State and limits of its port.
    pub fn port(&self) -> Result<PortAttributes> {
        Ok(self.0.port(1)?)
    }

    /// Bytes of private data that a connection of the device can carry: with the request, the answer, and a refusal. On `roce0` 56, 196 and 148;
    /// on `iwarp0` more.
    pub fn private_data_limits(&self) -> PrivateDataLimits {
        self.0.transport().connections().private_data_limits()
    }

    /// A new protection domain.
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// A new completion queue for at least `capacity` requests in flight; see [`CompletionQueue`].
    pub fn completion_queue(&self, capacity: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(self, capacity)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.device().name()).finish()
    }
}

/// Why devices that were asked for are missing, ready to be appended to a sentence.
fn reasons() -> Result<String> {
    Ok(engine::engine()?.missing().iter().map(|(name, reason)| format!("; {name}: {reason}")).collect())
}
