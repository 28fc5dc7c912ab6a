//! Faults of the device: what has become of its port, its addresses and itself.

use super::grammar::OfDevice;
use crate::calls::Call;
use adverb_core::event::AsyncEventKind;
use adverb_core::interfaces::{Address, Interfaces};
use adverb_core::{clock, engine};
use adverb_libibverbs::seam;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// What has become of it.
#[derive(Default)]
pub(super) struct Device {
    is_down: AtomicBool,
    is_broken: AtomicBool,
    is_gone: AtomicBool,
    /// Changes of the addresses, in their order.
    addresses: Mutex<Vec<Change>>,
}

/// A change of the addresses of the host, as this process finds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    removed: Option<IpAddr>,
    added: Option<IpAddr>,
}

impl Device {
    /// Whether nothing gets through the port.
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Something begins, or it ends. Where the engine is there, programs are told what a device tells.
    pub(super) fn set(&self, what: OfDevice, on: bool) {
        match what {
            OfDevice::PortDown => self.is_down.store(on, Ordering::SeqCst),
            OfDevice::GidRemoved(address) => self.change(address.into(), None, on),
            OfDevice::GidAdded(address) => self.change(None, address.into(), on),
            OfDevice::GidChanged(old, new) => self.change(old.into(), new.into(), on),
            OfDevice::Fatal => self.is_broken.store(on, Ordering::SeqCst),
            OfDevice::Gone => {
                self.is_broken.store(on, Ordering::SeqCst);
                self.is_gone.store(on, Ordering::SeqCst);
            }
            OfDevice::Speed(rate) => {
                let devices = adverb_libibverbs::device::devices().unwrap_or_default();
                return devices.iter().for_each(|device| device.set_rate(on.then_some(rate)));
            }
        }
        let Some(engine) = engine::existing() else { return };
        if matches!(what, OfDevice::Fatal | OfDevice::Gone) {
            if on {
                // SAFETY: no queue pair is named.
                unsafe { seam::break_pairs(null_mut()) };
                engine.devices().iter().for_each(|device| device.raise(AsyncEventKind::DeviceFatal));
            }
        } else {
            engine.ports.look();
        }
    }

    fn change(&self, removed: Option<IpAddr>, added: Option<IpAddr>, on: bool) {
        let change = Change { removed, added };
        let mut changes = self.addresses();
        changes.retain(|known| *known != change);
        if on {
            changes.push(change);
        }
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<Change>> {
        self.addresses.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What the process finds of the interfaces.
    pub(super) fn alter(&self, found: &mut Interfaces) {
        for change in self.addresses().iter() {
            // A new address is on the interface of the one that it replaces, or on one that leads to others.
            let replaced = found.addresses.iter().find(|one| Some(one.address) == change.removed).cloned();
            found.addresses.retain(|one| Some(one.address) != change.removed);
            let place = replaced.or_else(|| {
                let leads_out = |one: &&Address| !one.loopback;
                found.addresses.iter().find(leads_out).or(found.addresses.first()).cloned()
            });
            if let (Some(address), Some(place)) = (change.added, place) {
                found.addresses.push(Address { address, ..place });
            }
        }
        if self.is_down() {
            found.all_down = true;
            found.addresses.iter_mut().for_each(|one| one.carrier = false);
        }
    }

    /// The error number with which a call fails on a device that has failed or gone.
    pub(super) fn refuses(&self, call: &Call) -> Option<i32> {
        if self.is_gone.load(Ordering::Relaxed)
            && matches!(call.name, "ibv_open_device" | "rdma_resolve_addr")
        {
            return Some(libc::ENODEV);
        }
        // What ends objects or takes what there is goes on, so that programs can leave.
        const GO_ON: [&str; 12] = [
            "ibv_destroy_",
            "ibv_dealloc_",
            "ibv_dereg_",
            "ibv_close_",
            "ibv_free_",
            "ibv_get_",
            "ibv_poll_",
            "ibv_start_poll",
            "ibv_next_poll",
            "ibv_ack_",
            "ibv_unimport_",
            "rdma_",
        ];
        let fails = self.is_broken.load(Ordering::Relaxed)
            && call.can_fail()
            && !GO_ON.iter().any(|beginning| call.name.starts_with(beginning));
        fails.then_some(libc::EIO)
    }

    /// Whether a list of devices is empty.
    pub(super) fn hides(&self, call: &Call) -> bool {
        self.is_gone.load(Ordering::Relaxed)
            && matches!(call.name, "ibv_get_device_list" | "rdma_get_devices")
    }
}

/// The time until which the calls of the process do not return.
#[derive(Default)]
pub(super) struct Stall(AtomicU64);

impl Stall {
    pub(super) fn begin(&self, time: Option<Duration>) {
        let until = time.map_or(u64::MAX, |time| {
            clock::device().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        });
        self.0.fetch_max(until, Ordering::SeqCst);
    }

    /// The thread stays here while the process is stalled.
    #[inline]
    pub(super) fn wait(&self) {
        while self.0.load(Ordering::Relaxed) > clock::device() {
            let time = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            // SAFETY: a live local, and nothing is written. As a plain system call it is no cancellation point.
            unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, null_mut::<libc::timespec>()) };
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{CALLS, find};
    use std::collections::BTreeMap;

    fn interfaces(addresses: &[&str]) -> Interfaces {
        let address = |text: &&str| Address {
            address: text.parse().expect("an address"),
            name: "e0".to_owned(),
            interface: 3,
            loopback: text.starts_with("127"),
            carrier: true,
        };
        let addresses = addresses.iter().map(address).collect();
        Interfaces { addresses, all_down: false, indices: BTreeMap::new() }
    }

    fn found(device: &Device) -> Vec<String> {
        let mut found = interfaces(&["127.0.0.1", "10.0.0.1", "fe80::1"]);
        device.alter(&mut found);
        assert!(found.addresses.iter().all(|one| one.interface == 3 && one.carrier != device.is_down()));
        assert_eq!(found.all_down, device.is_down());
        found.addresses.iter().map(|one| one.address.to_string()).collect()
    }

    #[test]
    fn addresses_come_and_go() {
        let device = Device::default();
        let all = ["127.0.0.1", "10.0.0.1", "fe80::1"];
        assert_eq!(found(&device), all);
        let (one, nine) = ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        device.set(OfDevice::GidRemoved(one), true);
        assert_eq!(found(&device), ["127.0.0.1", "fe80::1"]);
        device.set(OfDevice::GidRemoved(one), false);
        device.set(OfDevice::GidAdded(nine), true);
        assert_eq!(found(&device), ["127.0.0.1", "10.0.0.1", "fe80::1", "10.0.0.9"]);
        device.set(OfDevice::GidAdded(nine), false);
        device.set(OfDevice::GidChanged(one, nine), true);
        assert_eq!(found(&device), ["127.0.0.1", "fe80::1", "10.0.0.9"]);
        device.set(OfDevice::GidChanged(one, nine), false);
        device.set(OfDevice::PortDown, true);
        assert_eq!(found(&device), all);
        device.set(OfDevice::PortDown, false);
        assert_eq!(found(&device), all);
    }

    #[test]
    fn a_device_that_has_failed_refuses_what_makes_something() {
        let device = Device::default();
        let refuses = |name: &str| device.refuses(&CALLS[find(name).expect("a call")]);
        assert_eq!(refuses("ibv_create_qp"), None);
        device.set(OfDevice::Fatal, true);
        assert_eq!((refuses("ibv_create_qp"), refuses("ibv_post_send")), (Some(libc::EIO), Some(libc::EIO)));
        assert_eq!((refuses("ibv_destroy_qp"), refuses("ibv_get_async_event")), (None, None));
        assert_eq!((refuses("ibv_poll_cq"), refuses("rdma_disconnect")), (None, None));
        device.set(OfDevice::Gone, true);
        assert_eq!(
            (refuses("ibv_open_device"), refuses("ibv_query_port")),
            (Some(libc::ENODEV), Some(libc::EIO))
        );
        assert!(device.hides(&CALLS[find("ibv_get_device_list").expect("a call")]));
        device.set(OfDevice::Gone, false);
        assert_eq!(refuses("ibv_open_device"), None);
    }

    #[test]
    fn a_stall_ends() {
        let stall = Stall::default();
        assert!(stall.is_idle());
        stall.wait();
        let before = clock::device();
        stall.begin(Some(Duration::from_millis(30)));
        stall.wait();
        assert!(clock::device() - before >= 30_000_000);
    }
}
