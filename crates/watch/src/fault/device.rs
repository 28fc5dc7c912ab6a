//! Faults of the device: what has become of its port, its addresses and itself.

use super::chosen;
use super::rule::OfDevice;
use crate::calls::Call;
use adverb_core::attributes::TransportType;
use adverb_core::event::AsyncEventKind;
use adverb_core::interfaces::{self, Address, Interfaces};
use adverb_core::wire::{Medium, Passing};
use adverb_core::{clock, engine};
use adverb_libibverbs::abi::{ibv_context, ibv_device};
use adverb_libibverbs::seam::{self, Answer, Arguments};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// What has become of the devices.
#[derive(Default)]
pub(super) struct Device {
    states: Mutex<Vec<State>>,
    /// Whether anything is in that list that concerns packets ([`PACKETS`]), calls ([`CALLS`]) or lists of
    /// devices ([`LISTS`]).
    concerns: AtomicU8,
    /// What the devices are that rules name, as packets know them.
    carriers: Mutex<Carriers>,
}

const PACKETS: u8 = 1;
const CALLS: u8 = 2;
const LISTS: u8 = 4;

/// Something that has become of devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    what: OfDevice,
    /// The name of the device; none of all devices.
    device: Option<String>,
}

impl State {
    fn is_of(&self, device: Option<&str>) -> bool {
        self.device.is_none() || self.device.as_deref() == device
    }

    fn concerns(&self) -> u8 {
        match self.what {
            OfDevice::PortDown => PACKETS,
            OfDevice::Fatal => PACKETS | CALLS,
            OfDevice::Gone => PACKETS | CALLS | LISTS,
            _ => 0,
        }
    }
}

type Carriers = HashMap<String, Arc<Carrier>>;

/// By what packets are known to be a device's.
pub(super) struct Carrier {
    medium: Medium,
    addresses: Vec<IpAddr>,
}

impl Device {
    /// Whether nothing gets through for a packet.
    pub(super) fn is_down(&self, passing: &Passing) -> bool {
        if !self.does_concern(PACKETS) {
            return false;
        }
        // Without the lock: what the devices are is found by their addresses, which are altered by the same
        // states.
        let states = self.states().clone();
        states
            .iter()
            .filter(|state| state.concerns() & PACKETS != 0)
            .any(|state| state.device.as_ref().is_none_or(|device| self.carries(device, passing)))
    }

    /// Whether a packet is of the device with this name: of its transport, with one of its addresses.
    pub(super) fn carries(&self, device: &str, passing: &Passing) -> bool {
        let mut carriers = self.carriers();
        let carrier = match carriers.get(device) {
            Some(known) => known.clone(),
            None => {
                let Some(new) = carrier(device) else { return false };
                let new = Arc::new(new);
                carriers.insert(device.to_owned(), new.clone());
                new
            }
        };
        carrier.medium == passing.medium && carrier.addresses.contains(&passing.local.to_canonical())
    }

    fn does_concern(&self, what: u8) -> bool {
        self.concerns.load(Ordering::Relaxed) & what != 0
    }

    /// Something begins, or it ends. Where the engine is there, programs are told what a device tells.
    pub(super) fn set(&self, what: OfDevice, device: Option<&str>, on: bool) {
        self.begin(what, device, on);
        self.show(what, device, on);
    }

    /// Something begins, or ends, and nobody is told.
    fn begin(&self, what: OfDevice, device: Option<&str>, on: bool) {
        let state = State { what, device: device.map(str::to_owned) };
        let mut states = self.states();
        states.retain(|known| *known != state);
        if on {
            states.push(state);
        }
        let concerns = states.iter().fold(0, |bits, state| bits | state.concerns());
        self.concerns.store(concerns, Ordering::SeqCst);
        drop(states);
        self.carriers().clear();
    }

    fn show(&self, what: OfDevice, device: Option<&str>, on: bool) {
        mark(what, device, on);
        if matches!(what, OfDevice::Speed(_)) {
            return;
        }
        let is_it =
            |other: &&Arc<adverb_core::device::Device>| device.is_none_or(|name| name == other.name());
        let Some(engine) = engine::existing() else { return };
        if matches!(what, OfDevice::Fatal | OfDevice::Gone) {
            if on {
                let affected: Vec<_> = engine.devices().iter().filter(is_it).collect();
                // First, so that no identifier hears of the end of its connection instead.
                affected.iter().for_each(|device| engine.failure.device_removed(device.name()));
                seam::break_pairs(|other, _| device.is_none_or(|name| name == other));
                affected.iter().for_each(|device| device.raise(AsyncEventKind::DeviceFatal));
            }
        } else {
            engine.ports.look();
        }
    }

    /// Both locks, in the order in which threads take them.
    pub(super) fn locks(&self) -> (MutexGuard<'_, Carriers>, MutexGuard<'_, Vec<State>>) {
        (self.carriers(), self.states())
    }

    fn carriers(&self) -> MutexGuard<'_, Carriers> {
        self.carriers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A child of fork has devices of its own, which know of nothing.
    pub(super) fn go_on_after_fork(&self) {
        let states = self.states().clone();
        states.iter().for_each(|state| mark(state.what, state.device.as_deref(), true));
    }

    fn states(&self) -> MutexGuard<'_, Vec<State>> {
        self.states.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What a device of the process, or with no name the process itself, finds of the interfaces.
    pub(super) fn alter(&self, device: Option<&str>, found: &mut Interfaces) {
        for state in self.states().iter().filter(|state| state.is_of(device)) {
            match state.what {
                OfDevice::GidRemoved(address) => change(found, Some(address), None),
                OfDevice::GidAdded(address) => change(found, None, Some(address)),
                OfDevice::GidChanged(old, new) => change(found, Some(old), Some(new)),
                OfDevice::PortDown => {
                    found.all_down = true;
                    found.addresses.iter_mut().for_each(|one| one.carrier = false);
                }
                OfDevice::Speed(_) | OfDevice::Fatal | OfDevice::Gone => {}
            }
        }
    }

    /// The error number with which a call fails on a device that has failed or gone.
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(super) unsafe fn refuses(&self, call: &Call, arguments: &Arguments) -> Option<i32> {
        if !self.does_concern(CALLS) || !call.can_fail() {
            return None;
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
        if GO_ON.iter().any(|beginning| call.name.starts_with(beginning)) {
            return None;
        }
        // SAFETY: the caller's promise.
        let device = unsafe { chosen::device_of(call, arguments) };
        let states = self.states();
        let mut of_it = states.iter().filter(|state| state.is_of(device));
        if call.name == "ibv_open_device" && of_it.clone().any(|state| state.what == OfDevice::Gone) {
            return Some(libc::ENODEV);
        }
        of_it.any(|state| state.concerns() & CALLS != 0).then_some(libc::EIO)
    }

    /// Takes devices that are gone out of a list that a call has answered.
    ///
    /// # Safety
    /// The arguments are right for the call, which has answered so.
    pub(super) unsafe fn hide(&self, call: &Call, arguments: &Arguments, answer: Answer) {
        if !self.does_concern(LISTS) || answer.value == 0 {
            return;
        }
        let name_of: unsafe fn(usize) -> Option<&'static str> = match call.name {
            // SAFETY: entries of this list are devices.
            "ibv_get_device_list" => |entry| unsafe { chosen::name_of(entry as *const ibv_device) },
            // SAFETY: entries of this list are contexts.
            "rdma_get_devices" => |entry| unsafe { chosen::name_of_context(entry as *const ibv_context) },
            _ => return,
        };
        let states = self.states();
        let is_gone = |entry: usize| {
            // SAFETY: an entry of the list.
            let device = unsafe { name_of(entry) };
            states.iter().any(|state| state.what == OfDevice::Gone && state.is_of(device))
        };
        let (list, count) = (answer.value as *mut usize, arguments[0] as *mut i32);
        // SAFETY: the caller's promise: an array that ends with NULL, and room for the number, or NULL.
        unsafe {
            let (mut from, mut to) = (0, 0);
            while *list.add(from) != 0 {
                let entry = *list.add(from);
                if !is_gone(entry) {
                    *list.add(to) = entry;
                    to += 1;
                }
                from += 1;
            }
            *list.add(to) = 0;
            if let Some(count) = count.as_mut() {
                *count = to as i32;
            }
        }
    }
}

/// Tells devices what has become of them, before any program has asked for them, too.
fn mark(what: OfDevice, device: Option<&str>, on: bool) {
    if !matches!(what, OfDevice::Speed(_) | OfDevice::Gone) {
        return;
    }
    let devices = adverb_libibverbs::device::devices().unwrap_or_default();
    for one in devices.iter().filter(|one| device.is_none_or(|name| name == one.name())) {
        match what {
            OfDevice::Speed(rate) => one.set_rate(on.then_some(rate)),
            _ => one.set_gone(on),
        }
    }
}

/// Changes the addresses of the host.
fn change(found: &mut Interfaces, removed: Option<IpAddr>, added: Option<IpAddr>) {
    // A new address is on the interface of the one that it replaces, or on one that leads to others.
    let replaced = found.addresses.iter().find(|one| Some(one.address) == removed).cloned();
    found.addresses.retain(|one| Some(one.address) != removed);
    let place = replaced.or_else(|| {
        let leads_out = |one: &&Address| !one.loopback;
        found.addresses.iter().find(leads_out).or(found.addresses.first()).cloned()
    });
    if let (Some(address), Some(place)) = (added, place) {
        found.addresses.push(Address { address, ..place });
    }
}

/// What the device with this name is.
fn carrier(device: &str) -> Option<Carrier> {
    let devices = engine::existing()?.devices();
    let device = devices.iter().find(|other| other.name() == device)?;
    let medium = match device.transport().attributes().transport {
        TransportType::Iwarp => Medium::Stream,
        _ => Medium::Datagrams,
    };
    let own = &device.description().addresses;
    let locals = interfaces::look().addresses.into_iter().filter(|local| own.has(local));
    Some(Carrier { medium, addresses: locals.map(|local| local.address.to_canonical()).collect() })
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
            // SAFETY: a live local, and nothing is written. As a plain system call it is no cancellation
            // point.
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
        let is_down = device.does_concern(PACKETS);
        let mut found = interfaces(&["127.0.0.1", "10.0.0.1", "fe80::1"]);
        device.alter(None, &mut found);
        assert!(found.addresses.iter().all(|one| one.interface == 3 && one.carrier != is_down));
        assert_eq!(found.all_down, is_down);
        found.addresses.iter().map(|one| one.address.to_string()).collect()
    }

    #[test]
    fn a_device_alone_has_what_a_rule_says_of_it() {
        let device = Device::default();
        device.set(OfDevice::PortDown, Some("mlx5_1"), true);
        let is_down = |name: Option<&str>| {
            let mut found = interfaces(&["10.0.0.1"]);
            device.alter(name, &mut found);
            found.all_down
        };
        assert_eq!((is_down(Some("mlx5_1")), is_down(Some("mlx5_0")), is_down(None)), (true, false, false));
        device.set(OfDevice::PortDown, Some("mlx5_0"), false);
        assert!(is_down(Some("mlx5_1")));
        device.set(OfDevice::PortDown, Some("mlx5_1"), false);
        assert!(!is_down(Some("mlx5_1")));
    }

    #[test]
    fn a_device_that_is_gone_is_in_no_list() {
        let mut objects = ["mlx5_0", "mlx5_1", "mlx5_2"].map(|name| {
            let mut object = ibv_device::zeroed();
            for (place, letter) in object.name.iter_mut().zip(name.bytes()) {
                *place = letter as _;
            }
            object
        });
        let device = Device::default();
        let mut look = |device: &Device| {
            let mut list: Vec<usize> =
                objects.iter_mut().map(|object| &raw mut *object as usize).chain([0]).collect();
            let mut count = 3;
            let call = &CALLS[find("ibv_get_device_list").expect("a call")];
            let answer = Answer { value: list.as_mut_ptr() as usize, errno: 0 };
            // SAFETY: a list that ends with NULL, and a number.
            unsafe { device.hide(call, &[&raw mut count as usize, 0, 0, 0, 0, 0], answer) };
            let length = list.iter().position(|entry| *entry == 0).expect("an end");
            assert_eq!(length as i32, count);
            // SAFETY: devices.
            list[..length]
                .iter()
                .map(|entry| unsafe { chosen::name_of(*entry as *const ibv_device) })
                .collect()
        };
        let of = |names: &[&'static str]| -> Vec<_> { names.iter().map(|name| Some(*name)).collect() };
        let all: Vec<_> = look(&device);
        assert_eq!(all, of(&["mlx5_0", "mlx5_1", "mlx5_2"]));
        device.begin(OfDevice::Gone, Some("mlx5_1"), true);
        assert_eq!(look(&device), of(&["mlx5_0", "mlx5_2"]));
        device.begin(OfDevice::Gone, None, true);
        assert_eq!(look(&device), of(&[]));
        device.begin(OfDevice::Gone, None, false);
        device.begin(OfDevice::Gone, Some("mlx5_1"), false);
        assert_eq!(look(&device), all);
    }

    #[test]
    fn addresses_come_and_go() {
        let device = Device::default();
        let all = ["127.0.0.1", "10.0.0.1", "fe80::1"];
        assert_eq!(found(&device), all);
        let (one, nine) = ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        device.set(OfDevice::GidRemoved(one), None, true);
        assert_eq!(found(&device), ["127.0.0.1", "fe80::1"]);
        device.set(OfDevice::GidRemoved(one), None, false);
        device.set(OfDevice::GidAdded(nine), None, true);
        assert_eq!(found(&device), ["127.0.0.1", "10.0.0.1", "fe80::1", "10.0.0.9"]);
        device.set(OfDevice::GidAdded(nine), None, false);
        device.set(OfDevice::GidChanged(one, nine), None, true);
        assert_eq!(found(&device), ["127.0.0.1", "fe80::1", "10.0.0.9"]);
        device.set(OfDevice::GidChanged(one, nine), None, false);
        device.set(OfDevice::PortDown, None, true);
        assert_eq!(found(&device), all);
        device.set(OfDevice::PortDown, None, false);
        assert_eq!(found(&device), all);
    }

    #[test]
    fn a_device_that_has_failed_refuses_what_makes_something() {
        let device = Device::default();
        // SAFETY: no argument is looked at but NULL.
        let refuses = |name: &str| unsafe { device.refuses(&CALLS[find(name).expect("a call")], &[0; 6]) };
        assert_eq!(refuses("ibv_create_qp"), None);
        device.begin(OfDevice::Fatal, None, true);
        assert_eq!((refuses("ibv_create_qp"), refuses("ibv_post_send")), (Some(libc::EIO), Some(libc::EIO)));
        assert_eq!((refuses("ibv_destroy_qp"), refuses("ibv_get_async_event")), (None, None));
        assert_eq!((refuses("ibv_poll_cq"), refuses("rdma_disconnect")), (None, None));
        device.begin(OfDevice::Gone, None, true);
        assert_eq!(
            (refuses("ibv_open_device"), refuses("ibv_query_port")),
            (Some(libc::ENODEV), Some(libc::EIO))
        );
        device.begin(OfDevice::Gone, None, false);
        assert_eq!(
            (refuses("ibv_open_device"), refuses("ibv_query_port")),
            (Some(libc::EIO), Some(libc::EIO))
        );
        device.begin(OfDevice::Fatal, None, false);
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
