//! Which queue pair and which device a rule is about.

use crate::calls::Call;
use adverb_libibverbs::abi::{ibv_context, ibv_device, ibv_qp};
use adverb_libibverbs::seam::{self, Arguments};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard};

/// A queue pair, as a person names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pair {
    /// The Nth one that the process has made.
    Nth(u64),
    /// The queue pair with this number.
    Number(u32),
}

impl Pair {
    /// Out of `3` or `0x1a2b`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("0x") {
            Some(number) if !number.starts_with('+') => {
                u32::from_str_radix(number, 16).ok().filter(|number| *number < 1 << 24).map(Self::Number)
            }
            Some(_) => None,
            None => text.parse().ok().filter(|nth| *nth > 0 && !text.starts_with('+')).map(Self::Nth),
        }
    }
}

/// What a rule is about, of all queue pairs and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) pair: Option<Pair>,
    pub(super) device: Option<String>,
}

impl Scope {
    /// Whether the rule is about a queue pair.
    pub(super) fn has(&self, pairs: &Pairs, device: &str, number: u32) -> bool {
        self.has_device(device)
            && self.pair.is_none_or(|pair| match pair {
                Pair::Number(wanted) => wanted == number,
                Pair::Nth(nth) => pairs.place(device, number) == Some(nth),
            })
    }

    /// Whether the rule is about a device.
    pub(super) fn has_device(&self, device: &str) -> bool {
        self.device.as_deref().is_none_or(|wanted| wanted == device)
    }

    /// Whether the rule is about a call.
    ///
    /// # Safety
    /// The arguments are right for the call.
    pub(super) unsafe fn has_call(&self, pairs: &Pairs, call: &Call, arguments: &Arguments) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.pair.is_some() {
                let name = seam::name_of_pair(arguments[0] as *mut ibv_qp);
                return name.is_some_and(|(device, number)| self.has(pairs, &device, number));
            }
            self.device.is_none() || device_of(call, arguments).is_some_and(|device| self.has_device(device))
        }
    }
}

/// Whether a call is about a queue pair.
pub(super) fn is_of_pair(call: &Call) -> bool {
    call.arguments.first().is_some_and(|(name, _)| *name == "qp")
}

/// What the first argument of calls is that are about a device: the device, or something that begins with a
/// pointer to its context.
const OBJECTS: [&str; 10] = ["device", "context", "pd", "cq", "qp", "srq", "mr", "mw", "ah", "wq"];

/// Whether a call is about a device.
pub(super) fn is_of_device(call: &Call) -> bool {
    call.arguments.first().is_some_and(|(name, _)| OBJECTS.contains(name))
}

/// The name of the device that a call is about.
///
/// # Safety
/// The arguments are right for the call.
pub(super) unsafe fn device_of<'a>(call: &Call, arguments: &Arguments) -> Option<&'a str> {
    let (name, _) = call.arguments.first().filter(|_| is_of_device(call))?;
    let object = arguments[0];
    if object == 0 {
        return None;
    }
    // SAFETY: the caller's promise: a structure of verbs.h, of which each but the first two begins with its
    // context.
    unsafe {
        match *name {
            "device" => name_of(object as *const ibv_device),
            "context" => name_of_context(object as *const ibv_context),
            _ => name_of_context(*(object as *const *const ibv_context)),
        }
    }
}

/// The name of the device of a context.
///
/// # Safety
/// It is NULL or a context.
pub(super) unsafe fn name_of_context<'a>(context: *const ibv_context) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { name_of(context.as_ref()?.device) }
}

/// The name of a device.
///
/// # Safety
/// It is NULL or a device.
pub(super) unsafe fn name_of<'a>(device: *const ibv_device) -> Option<&'a str> {
    // SAFETY: the caller's promise: the name ends with a zero.
    unsafe { CStr::from_ptr(device.as_ref()?.name.as_ptr()).to_str().ok() }
}

/// The queue pairs of the process that rules name by their place.
#[derive(Default)]
pub(super) struct Pairs {
    wanted: Vec<u64>,
    made: Mutex<PairsMade>,
}

#[derive(Default)]
pub(super) struct PairsMade {
    count: u64,
    known: Vec<(String, u32, u64)>,
}

impl Pairs {
    /// The pairs that these rules choose.
    pub(super) fn of<'a>(chosen: impl Iterator<Item = &'a Scope>) -> Self {
        let place = |chosen: &Scope| match chosen.pair {
            Some(Pair::Nth(nth)) => Some(nth),
            _ => None,
        };
        Self { wanted: chosen.filter_map(place).collect(), made: Mutex::default() }
    }

    /// Whether anything is to be known of them.
    pub(super) fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Adds a queue pair that the process has made.
    pub(super) fn add(&self, device: &str, number: u32) {
        let mut made = self.lock();
        made.count += 1;
        // The number of one that has gone comes again.
        made.known.retain(|(one, other, _)| (one.as_str(), *other) != (device, number));
        let count = made.count;
        if self.wanted.contains(&count) {
            made.known.push((device.to_owned(), number, count));
        }
    }

    /// Which one this is; the first is 1.
    fn place(&self, device: &str, number: u32) -> Option<u64> {
        let made = self.lock();
        let found = made.known.iter().find(|(one, other, _)| (one.as_str(), *other) == (device, number));
        found.map(|(_, _, place)| *place)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PairsMade> {
        self.made.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{CALLS, find};

    #[test]
    fn queue_pairs_are_named_by_place_or_number() {
        for (text, pair) in [
            ("1", Some(Pair::Nth(1))),
            ("0x1a2b", Some(Pair::Number(0x1a2b))),
            ("0", None),
            ("+1", None),
            ("0x+1", None),
            ("0x1000000", None),
            ("1a", None),
            ("", None),
            ("0x", None),
        ] {
            assert_eq!(Pair::parse(text), pair, "{text}");
        }
        let wanted = [1, 2, 3, 4].map(|nth| Scope { pair: Some(Pair::Nth(nth)), device: None });
        let pairs = Pairs::of(wanted.iter());
        assert!(pairs.are_wanted() && !Pairs::of([Scope::default()].iter()).are_wanted());
        pairs.add("roce0", 17);
        pairs.add("roce0", 18);
        pairs.add("iwarp0", 17);
        let chosen = |pair, device: Option<&str>| Scope { pair, device: device.map(str::to_owned) };
        assert!(chosen(None, None).has(&pairs, "roce0", 99));
        assert!(chosen(Some(Pair::Nth(2)), None).has(&pairs, "roce0", 18));
        assert!(chosen(Some(Pair::Nth(3)), None).has(&pairs, "iwarp0", 17));
        assert!(!chosen(Some(Pair::Nth(1)), None).has(&pairs, "iwarp0", 17));
        assert!(!chosen(Some(Pair::Number(17)), Some("roce0")).has(&pairs, "iwarp0", 17));
        // The system gives a number again.
        pairs.add("roce0", 17);
        assert!(chosen(Some(Pair::Nth(4)), None).has(&pairs, "roce0", 17));
        assert!(!chosen(Some(Pair::Nth(1)), None).has(&pairs, "roce0", 17));
    }

    #[test]
    fn calls_have_the_device_of_their_first_argument() {
        let call = |name: &str| &CALLS[find(name).expect("a call")];
        assert!(is_of_pair(call("ibv_post_send")) && !is_of_pair(call("ibv_post_srq_recv")));
        assert!(is_of_device(call("ibv_open_device")) && !is_of_device(call("rdma_listen")));
        let mut device = ibv_device::zeroed();
        for (place, letter) in device.name.iter_mut().zip(*b"mlx5_1") {
            *place = letter as _;
        }
        let mut context = ibv_context::zeroed();
        context.device = &raw mut device;
        let mut domain = [&raw mut context];
        let of = |name: &str, object: usize| {
            // SAFETY: what the call has first, or NULL.
            unsafe { device_of(call(name), &[object, 0, 0, 0, 0, 0]) }
        };
        assert_eq!(of("ibv_open_device", &raw mut device as usize), Some("mlx5_1"));
        assert_eq!(of("ibv_alloc_pd", &raw mut context as usize), Some("mlx5_1"));
        assert_eq!(of("ibv_reg_mr", domain.as_mut_ptr() as usize), Some("mlx5_1"));
        assert_eq!((of("ibv_reg_mr", 0), of("rdma_listen", 1)), (None, None));
    }
}
