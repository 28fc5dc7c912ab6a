//! Memory windows: keys that open a part of a region to peers, bound and taken back by work requests.
//!
//! The binding of a window stands in the key table, where requests of peers find it without a lock.
//! [`Windows`] is behind the one lock for binds and invalidations of windows. Under it, slots change and
//! loans are recalled; no thread waits.

use super::keys::{Access, AccessError, Binding, Entry, Keys, Kind};
use crate::error::Result;
use crate::sync::MutexGuard;
use std::collections::HashMap;

/// Kinds of memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Any peer of the protection domain may use it. Only a bind takes it back.
    One,
    /// Only the peer of the queue pair that it was bound on may use it. An invalidation takes it back.
    Two,
}

/// The parameters of a bind request (struct ibv_mw_bind_info, and the key).
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The window's key, with the lowest 8 bits that it is to have.
    pub key: u32,
    /// Key of the region.
    pub region: u32,
    /// The first byte's address in the region's own numbering (its iova).
    pub address: u64,
    /// The length in bytes. 0 unbinds a window of type 1.
    pub length: u64,
    /// The peer's rights.
    pub access: Access,
}

/// How a request to bind a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindOutcome {
    /// The window opens the bytes, or nothing after a bind with length 0. Its former bytes are not in use any
    /// more.
    Bound,
    /// The window's former bytes are still in use. The window opens nothing now. The bind is to be tried
    /// again when these uses have ended.
    InUse,
}

/// Every window of an engine, behind the one lock for binds and invalidations.
#[derive(Default)]
pub(crate) struct Windows {
    /// By the index in their keys, the upper 24 bits.
    all: HashMap<u32, Window>,
    /// How many are bound to the region with a key.
    bound: HashMap<u32, u32>,
}

struct Window {
    kind: WindowType,
    domain: u32,
    /// The key under which the window was bound last; the first one, if it never was.
    key: u32,
    /// The key of the region that the window is bound to.
    region: Option<u32>,
}

impl Windows {
    /// Counts a window out of its region.
    fn release(&mut self, index: u32) {
        let Some(region) = self.all.get_mut(&index).and_then(|window| window.region.take()) else { return };
        if let Some(count) = self.bound.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                self.bound.remove(&region);
            }
        }
    }
}

impl Keys {
    fn lock_windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a window, which is not bound. Returns its key.
    // IB-MW-1
    pub(crate) fn insert_window(&self, kind: WindowType, domain: u32) -> Result<u32> {
        let (_, key) = self.reserve()?;
        self.lock_windows().all.insert(key >> 8, Window { kind, domain, key, region: None });
        Ok(key)
    }

    /// Binds a window on queue pair `queue_pair` of protection domain `domain`, or says why not. Does not
    /// wait: while the window's former bytes are in use, it answers [`BindOutcome::InUse`], and the window
    /// opens nothing. The old key is invalid in both cases.
    ///
    /// Caller: tries again after [`BindOutcome::InUse`], or fails the request.
    pub(crate) fn bind(
        &self,
        domain: u32,
        queue_pair: u32,
        bind: &Bind,
    ) -> std::result::Result<BindOutcome, &'static str> {
        let index = bind.key >> 8;
        let mut windows = self.lock_windows();
        let Some(window) = windows.all.get(&index) else { return Err("there is no such window") };
        let (kind, old) = (window.kind, window.key);
        // IB-MW-2
        if window.domain != domain {
            return Err("the window belongs to another protection domain than the queue pair");
        }
        // IB-MW-4
        if kind == WindowType::Two && window.region.is_some() {
            return Err("a window of type 2 is bound already: it must be invalidated first");
        }
        // IB-MW-5
        let entry = match (bind.length, kind) {
            (0, WindowType::One) => None,
            (0, WindowType::Two) => return Err("a window of type 2 cannot be bound to 0 bytes"),
            _ => Some(self.bound_entry(domain, queue_pair, kind, bind)?),
        };
        let Some(slot) = self.slot(old) else { return Err("there is no such window") };
        self.invalidate(old);
        windows.release(index);
        // `is_used_still` recalls loans without waiting, so the lock is held briefly.
        if self.is_used_still(slot) {
            return Ok(BindOutcome::InUse);
        }
        let Some(entry) = entry else { return Ok(BindOutcome::Bound) };
        *windows.bound.entry(bind.region).or_default() += 1;
        if let Some(window) = windows.all.get_mut(&index) {
            (window.key, window.region) = (bind.key, Some(bind.region));
        }
        // SAFETY: invalidated above, and filled under the lock of all windows. It has no users, so this does
        // not wait.
        unsafe { self.fill(slot, bind.key, entry) };
        Ok(BindOutcome::Bound)
    }

    /// The entry of the window once it is bound.
    fn bound_entry(
        &self,
        domain: u32,
        queue_pair: u32,
        kind: WindowType,
        bind: &Bind,
    ) -> std::result::Result<Entry, &'static str> {
        // IB-MW-2
        let (region, access) = match self.enter(bind.region, domain) {
            Ok((span, Entry { window: None, access, .. })) => {
                drop(span);
                (bind.region, access)
            }
            _ => return Err("the key of the region is not one of the protection domain"),
        };
        // IB-MW-3
        if !access.contains(Access::MW_BIND) {
            return Err("the region was registered without the right to bind windows");
        }
        if access.contains(Access::ZERO_BASED) {
            return Err("windows cannot be bound to a zero-based region");
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !access.contains(Access::LOCAL_WRITE) {
            return Err("a window that peers may write needs a region with local write access");
        }
        // IB-MW-13
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        if zero_based && kind == WindowType::One {
            return Err("a window of type 1 cannot be zero-based");
        }
        let span = self
            .open_span(region, bind.address, bind.length, Access::empty(), domain)
            .map_err(|_| "the bytes do not lie within the region")?;
        Ok(Entry {
            address: span.address(),
            length: bind.length,
            iova: if zero_based { 0 } else { bind.address },
            access: bind.access.intersection(Access::REMOTE | Access::FLUSH_GLOBAL),
            domain,
            window: Some(Binding { region, queue_pair: (kind == WindowType::Two).then_some(queue_pair) }),
            kind: Kind::Program,
        })
    }

    /// Invalidates a window on behalf of queue pair `queue_pair` or its peer. No use begins from now on. Does
    /// not wait for uses that go on: the caller asks [`Keys::has_uses_left`].
    // IB-MW-9
    pub(super) fn unbind(&self, key: u32, queue_pair: u32) -> std::result::Result<(), AccessError> {
        let mut windows = self.lock_windows();
        let window = windows.all.get(&(key >> 8)).ok_or(AccessError::Key)?;
        if window.kind == WindowType::One {
            return Err(AccessError::Rights);
        }
        let (span, entry) = self.enter(key, window.domain)?;
        drop(span);
        if entry.window.is_some_and(|binding| binding.queue_pair != Some(queue_pair)) {
            return Err(AccessError::ProtectionDomain);
        }
        self.invalidate(key);
        windows.release(key >> 8);
        Ok(())
    }

    /// Ends a window. Waits for its uses: afterwards no thread uses bytes through its key.
    ///
    /// Caller: holds no open [`Span`](super::Span) of the window, for whose end it would wait for ever.
    // IB-MW-11
    pub(crate) fn remove_window(&self, key: u32) {
        let mut windows = self.lock_windows();
        windows.release(key >> 8);
        let key = windows.all.remove(&(key >> 8)).map_or(key, |window| window.key);
        drop(windows);
        self.remove(key);
    }

    /// Invalidates the key of a region unless windows are bound to it. Returns whether none is. No window can
    /// be bound to the region afterwards. Does not wait for uses: the caller does ([`Keys::remove`]).
    pub(crate) fn invalidate_unbound(&self, region: u32) -> bool {
        let windows = self.lock_windows();
        let unbound = !windows.bound.contains_key(&region);
        if unbound {
            self.invalidate(region);
        }
        unbound
    }

    /// Unbinds all windows of a region that is deregistered by force. Otherwise they would open a later
    /// region with the same key.
    ///
    /// Caller: has invalidated the key of the region, and waits for uses afterwards ([`Keys::remove`]).
    pub(crate) fn release_windows(&self, region: u32) {
        let mut windows = self.lock_windows();
        if windows.bound.remove(&region).is_none() {
            return;
        }
        for window in windows.all.values_mut().filter(|window| window.region == Some(region)) {
            window.region = None;
            self.invalidate(window.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::until::until;
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const DOMAIN: u32 = 7;
    const PAIR: u32 = 3;

    fn region(keys: &Keys, memory: &[AtomicU64]) -> u32 {
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let (address, length) = (memory.as_ptr() as usize, size_of_val(memory) as u64);
        keys.insert(Entry {
            address,
            length,
            iova: 0x1000,
            access,
            domain: DOMAIN,
            window: None,
            kind: Kind::Program,
        })
        .unwrap()
    }

    fn bind(key: u32, region: u32) -> Bind {
        Bind { key, region, address: 0x1000, length: 8, access: Access::REMOTE_READ }
    }

    fn opens(keys: &Keys, key: u32) -> bool {
        keys.open_for_peer(key, 0x1000, 8, Access::REMOTE_READ, DOMAIN, PAIR).is_ok()
    }

    // IB-MW-10
    #[test]
    fn the_end_of_a_region_waits_for_uses_through_its_windows() {
        let keys = Keys::new();
        let memory = [const { AtomicU64::new(0) }; 4];
        let region = region(&keys, &memory);
        let window = keys.insert_window(WindowType::Two, DOMAIN).unwrap();
        keys.bind(DOMAIN, PAIR, &bind(window, region)).unwrap();
        let span = keys.open_for_peer(window, 0x1000, 8, Access::REMOTE_READ, DOMAIN, PAIR).ok().unwrap();
        assert!(!keys.invalidate_unbound(region) && opens(&keys, window));
        // The use outlives the binding, and the region waits for it.
        keys.unbind(window, PAIR).unwrap();
        assert!(!opens(&keys, window));
        assert!(keys.invalidate_unbound(region));
        assert!(keys.bind(DOMAIN, PAIR, &bind(window, region)).is_err());
        let removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                keys.remove(region);
                removed.store(true, Ordering::SeqCst);
            });
            let is_shut = until(|| keys.open_span(region, 0x1000, 8, Access::empty(), DOMAIN).is_err());
            let is_early = removed.load(Ordering::SeqCst);
            drop(span);
            assert!(is_shut && !is_early);
        });
        assert!(removed.load(Ordering::SeqCst));
    }

    #[test]
    fn a_region_that_goes_by_force_takes_its_windows_along() {
        let keys = Keys::new();
        let memory = [const { AtomicU64::new(0) }; 4];
        let first = region(&keys, &memory);
        let windows =
            [WindowType::One, WindowType::Two].map(|kind| keys.insert_window(kind, DOMAIN).unwrap());
        for window in windows {
            keys.bind(DOMAIN, PAIR, &bind(window, first)).unwrap();
            assert!(opens(&keys, window));
        }
        keys.release_windows(first);
        keys.remove(first);
        assert!(windows.iter().all(|window| !opens(&keys, *window)));
        // They can be bound again, and their keys come back when they go.
        let second = region(&keys, &memory);
        for window in windows {
            keys.bind(DOMAIN, PAIR, &bind(window ^ 1, second)).unwrap();
            assert!(opens(&keys, window ^ 1) && !opens(&keys, window));
            keys.remove_window(window);
            assert!(!opens(&keys, window ^ 1));
        }
        assert!(keys.invalidate_unbound(second));
    }

    /// The use lasts, as if a peer withheld the page to which the bytes are copied.
    #[test]
    fn a_window_whose_former_bytes_are_in_use_is_bound_later_and_stops_no_other() {
        let keys = Keys::new();
        let memory = [const { AtomicU64::new(0) }; 4];
        let region = region(&keys, &memory);
        let [window, other] = [WindowType::One; 2].map(|kind| keys.insert_window(kind, DOMAIN).unwrap());
        let binds = |key| keys.bind(DOMAIN, PAIR, &bind(key, region)).unwrap();
        assert_eq!(binds(window), BindOutcome::Bound);
        let span = keys.open_for_peer(window, 0x1000, 8, Access::REMOTE_READ, DOMAIN, PAIR).ok();
        assert!(span.is_some());
        let nothing = Bind { length: 0, ..bind(window ^ 1, region) };
        for _ in 0..3 {
            assert_eq!(keys.bind(DOMAIN, PAIR, &nothing).unwrap(), BindOutcome::InUse);
            assert_eq!(binds(window ^ 1), BindOutcome::InUse);
            assert!(!opens(&keys, window) && !opens(&keys, window ^ 1));
        }
        let third = keys.insert_window(WindowType::Two, DOMAIN).unwrap();
        for key in [other, third] {
            assert_eq!(binds(key), BindOutcome::Bound);
        }
        keys.unbind(third, PAIR).unwrap();
        keys.remove_window(third);
        drop(span);
        assert_eq!(binds(window ^ 1), BindOutcome::Bound);
        assert!(opens(&keys, window ^ 1) && opens(&keys, other));
    }

    /// A thread that finds a window open finds it whole, though other threads change it at the same time.
    #[test]
    fn windows_are_bound_and_taken_back_while_peers_use_them() {
        const ROUNDS: u32 = 3000;
        let keys = Keys::new();
        let memory = [const { AtomicU64::new(0) }; 2];
        let region = region(&keys, &memory);
        let window = keys.insert_window(WindowType::Two, DOMAIN).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let uses = scope.spawn(|| {
                let mut uses = 0u32;
                while !done.load(Ordering::Acquire) {
                    for tag in 0..=0xff {
                        let key = window & !0xff | tag;
                        let opened = keys.open_for_peer(
                            key,
                            0x1000 + u64::from(tag % 2) * 8,
                            8,
                            Access::REMOTE_READ,
                            DOMAIN,
                            PAIR,
                        );
                        if let Ok(span) = opened {
                            // An even key opens the first word, an odd one the second.
                            assert_eq!(span.address(), memory.as_ptr() as usize + tag as usize % 2 * 8);
                            uses += 1;
                        }
                    }
                }
                uses
            });
            for round in 0..ROUNDS {
                let key = window & !0xff | round & 0xff;
                let address = 0x1000 + u64::from(round % 2) * 8;
                let bind = Bind { address, ..bind(key, region) };
                assert!(until(|| keys.bind(DOMAIN, PAIR, &bind) == Ok(BindOutcome::Bound)));
                if round % 16 == 0 {
                    std::thread::yield_now();
                }
                keys.unbind(key, PAIR).unwrap();
            }
            done.store(true, Ordering::Release);
            uses.join().unwrap();
        });
        keys.remove_window(window);
        assert!(keys.invalidate_unbound(region));
        keys.remove(region);
    }
}
