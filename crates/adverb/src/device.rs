//! Devices, and the contexts that programs open on them.

use crate::completion_queue::{left_until, milliseconds};
use crate::event::AsyncEvent;
use crate::{CompletionQueue, Error, PrivateDataLimits, ProtectionDomain, Result, XrcDomain};
use adverb_core::attributes::{DeviceAttributes, Gid, GidKind, PortAttributes};
use adverb_core::engine;
use adverb_core::log;
use adverb_core::setting;
use adverb_core::transport::TransportFactory;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// The transports of this build, in the order in which programs see their devices.
static TRANSPORTS: &[TransportFactory] = &[adverb_roce::FACTORY, adverb_iwarp::FACTORY];

/// An RDMA device: what the environment variable `ADVERB_DEVICE` names, or by default what this build has.
///
/// ```
/// use adverb::Device;
///
/// # fn main() -> adverb::Result<()> {
/// for device in Device::all()? {
///     let context = device.open()?;
///     println!("{}: {} queue pairs at most", device.name(), context.attributes().max_qp);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device(Arc<adverb_core::device::Device>);

impl Device {
    /// All devices that this process sees, in the order of `ADVERB_DEVICE`.
    ///
    /// ```
    /// use adverb::Device;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// // A test on every device that the process sees:
    /// let devices = Device::all()?;
    /// assert!(!devices.is_empty());
    /// for device in devices {
    ///     assert!(device.open()?.attributes().max_qp > 0, "{}", device.name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the engine cannot start: out of descriptors (EMFILE, ENFILE).
    pub fn all() -> Result<Vec<Device>> {
        engine::install(TRANSPORTS);
        say_what_meets_no_fault();
        Ok(adverb_core::device::Device::all()?.into_iter().map(Device).collect())
    }

    /// Names of all devices that this build could offer, also those that `ADVERB_DEVICE` does not name.
    ///
    /// ```
    /// assert_eq!(adverb::Device::known(), ["roce0", "iwarp0"]);
    /// ```
    pub fn known() -> Vec<&'static str> {
        TRANSPORTS.iter().map(|transport| transport.device).collect()
    }

    /// The device's name, for instance `roce0`.
    ///
    /// ```
    /// use adverb::{Context, Device};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// // A program that lets its user choose shows the names, and opens the device of the chosen one.
    /// let names: Vec<_> = Device::all()?.iter().map(|device| device.name().to_owned()).collect();
    /// assert_eq!(Context::open(&names[0])?.device().name(), names[0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Opens it. A device may be opened many times; objects of different contexts do not work together.
    ///
    /// ```
    /// use adverb::{Context, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let device = Context::open_default()?.device();
    /// let (first, second) = (device.open()?, device.open()?);
    /// // A queue pair and its completion queue come from one context.
    /// let options = QueuePairOptions::new(&first.completion_queue(16)?);
    /// assert!(second.protection_domain()?.queue_pair(options.clone()).is_err());
    /// assert!(first.protection_domain()?.queue_pair(options).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self) -> Result<Context> {
        Ok(Context(self.0.open()?))
    }

    /// The device's work in this process: name, explanation and value of each counter.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// for device in adverb::Device::all()? {
    ///     for (name, meaning, value) in device.counters() {
    ///         println!("{} {name} = {value}: {meaning}", device.name());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
///
/// ```
/// use adverb::Context;
///
/// # fn main() -> adverb::Result<()> {
/// let context = Context::open_default()?;
/// let domain = context.protection_domain()?;
/// let completions = context.completion_queue(128)?;
/// assert!(completions.capacity() >= 128);
/// // Another name is an error, which says the names that there are.
/// let error = Context::open("no such device").unwrap_err();
/// assert!(error.to_string().contains(context.device().name()));
/// # drop(domain);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Context(pub(crate) Arc<adverb_core::device::Context>);

impl Context {
    /// Opens the first device that this process sees: `roce0`, unless `ADVERB_DEVICE` says otherwise.
    ///
    /// ```
    /// use adverb::{Context, Device};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// // For programs that run on any device. `ADVERB_DEVICE` chooses it without a change of the program.
    /// let context = Context::open_default()?;
    /// assert_eq!(context.device().name(), Device::all()?[0].name());
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let error = adverb::Context::open("mlx5_0").unwrap_err();
    /// assert!(error.to_string().contains("it sees: "));
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// # let completions = context.completion_queue(16)?;
    /// // The name for a log, and the counters:
    /// let device = context.device();
    /// println!("{}: {} counters", device.name(), device.counters().len());
    /// assert!(!device.name().is_empty() && !device.counters().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(&self) -> Device {
        Device(self.0.device().clone())
    }

    /// The device's limits and abilities.
    ///
    /// ```
    /// use adverb::Service;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// let attributes = context.attributes();
    /// assert!(attributes.services.contains(&Service::Rc));
    /// println!("messages of up to {} bytes, {} regions", attributes.max_message, attributes.max_mr);
    /// # Ok(())
    /// # }
    /// ```
    pub fn attributes(&self) -> DeviceAttributes {
        self.0.attributes()
    }

    /// State and limits of its port.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// let port = adverb::Context::open_default()?.port()?;
    /// println!("packets with up to {} bytes of payload", port.active_mtu);
    /// # Ok(())
    /// # }
    /// ```
    pub fn port(&self) -> Result<PortAttributes> {
        Ok(self.0.port(1)?)
    }

    /// The GIDs of its port: the addresses by which peers reach it.
    ///
    /// ```
    /// use std::net::Ipv6Addr;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// for gid in adverb::Context::open_default()?.gids() {
    ///     println!("{}: {}", gid.index, Ipv6Addr::from(gid.bytes).to_canonical());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn gids(&self) -> Vec<Gid> {
        self.0.gids()
    }

    /// Index of the GID.
    pub(crate) fn gid_index(&self, gid: &[u8; 16]) -> Result<u8> {
        let gids = self.0.gids();
        let fits = |entry: &&Gid| entry.bytes == *gid;
        let best = gids.iter().filter(fits).find(|entry| entry.kind == GidKind::RoceV2);
        let index = best.or_else(|| gids.iter().find(fits)).and_then(|entry| u8::try_from(entry.index).ok());
        index.ok_or_else(|| {
            let ip = Ipv6Addr::from(*gid).to_canonical();
            let text = format!("{} has no address {ip}", self.0.device().name());
            Error::new(libc::EADDRNOTAVAIL, text)
        })
    }

    /// The oldest event of this context that is not about one request, if there is one. Waits for it, at most
    /// `timeout`.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// use std::time::Duration;
    /// let context = adverb::Context::open_default()?;
    /// while let Some(event) = context.next_event(Duration::ZERO)? {
    ///     eprintln!("{event}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENODEV in a child of fork.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.0.events().try_next()? {
                return Ok(Some(AsyncEvent::from(event)));
            }
            let left = left_until(deadline);
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            match self.0.events().ready(milliseconds(left)) {
                Err(error) if error.errno() != libc::EINTR => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// A descriptor that is readable while an event waits ([`Context::next_event`]). Only for poll(2) and its
    /// like.
    ///
    /// ```
    /// use std::os::fd::AsRawFd;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// let events = context.event_descriptor().as_raw_fd();
    /// let mut entry = libc::pollfd { fd: events, events: libc::POLLIN, revents: 0 };
    /// // SAFETY: poll(2) reads and writes one live entry.
    /// let readable = unsafe { libc::poll(&mut entry, 1, 0) };
    /// // A new context has no event.
    /// assert_eq!(readable, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue, and so its descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.events().descriptor()) }
    }

    /// Bytes of private data that a connection of the device can carry: with the request, the answer, and a
    /// refusal. On `roce0` 56, 196 and 148; on `iwarp0` more.
    ///
    /// ```
    /// use adverb::RemoteMemory;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// // A token fits on every device.
    /// assert!(context.private_data_limits().request >= RemoteMemory::BYTES);
    /// # Ok(())
    /// # }
    /// ```
    pub fn private_data_limits(&self) -> PrivateDataLimits {
        self.0.transport().connections().private_data_limits()
    }

    /// A new protection domain.
    ///
    /// ```
    /// use adverb::{PostError, QueuePairOptions};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// # let completions = context.completion_queue(16)?;
    /// // Clients that must not reach each other's memory get a domain each.
    /// let (one, other) = (context.protection_domain()?, context.protection_domain()?);
    /// let queue_pair = one.queue_pair(QueuePairOptions::new(&completions))?;
    /// let refused = queue_pair.post_receive(0, other.buffer(64)?).unwrap_err();
    /// assert_eq!(refused.reason, PostError::OtherDomain);
    /// # Ok(())
    /// # }
    /// ```
    pub fn protection_domain(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// A new XRC domain, which no other process knows.
    ///
    /// ```
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// # if !domain.context().attributes().services.contains(&adverb::Service::XrcSend) {
    /// #     return Ok(());
    /// # }
    /// # let context = domain.context();
    /// # let receives = context.completion_queue(64)?;
    /// // A shared receive queue for each kind of message; all of them behind one connection.
    /// let xrc = context.xrc_domain()?;
    /// let (orders, questions) =
    ///     (xrc.receive_queue(&domain, &receives, 16, 1)?, xrc.receive_queue(&domain, &receives, 16, 1)?);
    /// assert_ne!(orders.number(), questions.number());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EOPNOTSUPP on a device without the service, as `iwarp0`.
    pub fn xrc_domain(&self) -> Result<XrcDomain> {
        XrcDomain::new(self)
    }

    /// A new completion queue for at least `capacity` requests in flight; see [`CompletionQueue`].
    ///
    /// ```
    /// use adverb::QueuePairOptions;
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let context = adverb::Context::open_default()?;
    /// // For two queue pairs, each with 128 sends and 128 receives:
    /// let completions = context.completion_queue(2 * (128 + 128))?;
    /// let domain = context.protection_domain()?;
    /// let pairs = [(); 2].map(|()| domain.queue_pair(QueuePairOptions::new(&completions)));
    /// assert!(pairs.iter().all(|pair| pair.is_ok()) && completions.poll()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
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
