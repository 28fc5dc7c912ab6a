//! The ports of open devices, while interfaces of the host come, go and change: programs hear of it by
//! asynchronous events.
//!
//! One netlink socket tells the background thread of a change. Each transport looks for itself at the effect
//! on its ports.

use crate::device::Device;
use crate::engine;
use crate::event::AsyncEventKind;
use crate::fork;
use crate::interfaces;
use crate::log;
use crate::reactor::{READABLE, Readiness, Source};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

/// The port of one of a transport's devices, as the transport sees it.
pub trait Port: Send {
    /// Interfaces have changed, perhaps this port's. Returns the events for the programs of the device, in
    /// order. Called by one thread at a time; devices and queue pairs are not to be destroyed here.
    fn look(&mut self) -> Vec<AsyncEventKind>;
}

/// The ports of the devices that are open. Thread-safe.
#[derive(Default)]
pub struct Ports(Mutex<Watch>);

#[derive(Default)]
struct Watch {
    /// The descriptor that tells of changes.
    fd: Option<RawFd>,
    ports: Vec<(Arc<Device>, Box<dyn Port>)>,
}

impl Ports {
    /// Looks at a device's port after each change from now on; once for each device. `port` says how, and is
    /// asked for only if that can be had.
    pub fn watch(&self, device: &Arc<Device>, port: impl FnOnce() -> Box<dyn Port>) {
        let Ok(engine) = engine::engine() else { return };
        let mut watch = self.lock();
        if watch.ports.iter().any(|(known, _)| Arc::ptr_eq(known, device)) {
            return;
        }
        if watch.fd.is_none() {
            let Ok(fd) = interfaces::changes(false) else {
                log!(Info, "changes of addresses are not noticed: netlink is missing");
                return;
            };
            let fd = fd.into_raw_fd();
            fork::own_descriptor(fd);
            if engine.reactor.add(fd, READABLE, Arc::new(Watcher(fd))).is_err() {
                return;
            }
            watch.fd = Some(fd);
        }
        watch.ports.push((device.clone(), port()));
    }

    /// Interfaces have changed: tells the programs of devices whose ports have changed, too.
    pub fn look(&self) {
        let mut news = Vec::new();
        for (device, port) in &mut self.lock().ports {
            news.extend(port.look().into_iter().map(|kind| (device.clone(), kind)));
        }
        // With no lock: the program may be woken, and open a device.
        news.into_iter().for_each(|(device, kind)| device.raise(kind));
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The state of a port, as programs have been told of it.
pub struct Activity(bool);

impl Activity {
    /// The state of a port that is active (`true`) or not.
    pub fn new(active: bool) -> Self {
        Self(active)
    }

    /// The port is active or not. Returns the events for the programs.
    // IB-QP-40
    pub fn becomes(&mut self, active: bool) -> Option<AsyncEventKind> {
        let kind = if active { AsyncEventKind::PortActive } else { AsyncEventKind::PortError };
        (std::mem::replace(&mut self.0, active) != active).then_some(kind)
    }
}

struct Watcher(RawFd);

impl Source for Watcher {
    fn ready(self: Arc<Self>, _: Readiness) {
        interfaces::take_changes(self.0);
        if let Ok(engine) = engine::engine() {
            engine.ports.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_stays_as_it_is_is_no_news() {
        let mut activity = Activity::new(true);
        assert_eq!(activity.becomes(true), None);
        assert_eq!(activity.becomes(false), Some(AsyncEventKind::PortError));
        assert_eq!(activity.becomes(false), None);
        assert_eq!(activity.becomes(true), Some(AsyncEventKind::PortActive));
    }
}
