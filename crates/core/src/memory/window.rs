//! Memory windows: keys that open a part of a region to peers, bound and taken back by work requests.
//!
//! The binding of a window stands in the key table, where requests of peers find it without a lock. Binding and taking back go through
//! [`Windows`], one at a time.

use super::keys::{Access, AccessError, Binding, Entry, Keys, Kind, Slot};
use crate::error::Result;
use crate::sync::MutexGuard;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a bind waits for uses of the window's former bytes. They last for microseconds, unless a thread copies to or from a page that a peer withholds.
const OLD_USE_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// First byte, as the region calls it.
    pub address: u64,
    /// The length in bytes. None of type 1: it opens nothing afterwards.
    pub length: u64,
    /// The peer's rights.
    pub access: Access,
}

/// Every window of an engine.
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
    key: u32,
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

    /// Binds a window on queue pair `queue_pair` of protection domain `domain`, or says why not. The window opens nothing new while the bytes of before are
    /// in use: a bind that has waited for them for [`OLD_USE_TIMEOUT`] fails, and the window opens nothing then.
    pub(crate) fn bind(
        &self,
        domain: u32,
        queue_pair: u32,
        bind: &Bind,
    ) -> std::result::Result<(), &'static str> {
        self.bind_within(domain, queue_pair, bind, OLD_USE_TIMEOUT)
    }

    fn bind_within(
        &self,
        domain: u32,
        queue_pair: u32,
        bind: &Bind,
        limit: Duration,
    ) -> std::result::Result<(), &'static str> {
        let mut until = None;
        while let Some(used) = self.try_to_bind(domain, queue_pair, bind)? {
            // Without the lock: other windows are bound meanwhile, and this one may be, or may go.
            let until = *until.get_or_insert_with(|| Instant::now() + limit);
            if !self.wait_for_users_until(used, until) {
                return Err("bytes that the window opened before are still in use");
            }
        }
        Ok(())
    }

    /// Binds a window, or says why not. Some if its former bytes are still in use: no new use can begin, and the bind is to be tried again without these uses.
    fn try_to_bind(
        &self,
        domain: u32,
        queue_pair: u32,
        bind: &Bind,
    ) -> std::result::Result<Option<&Slot>, &'static str> {
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
            (0, WindowType::Two) => return Err("a window of type 2 cannot be bound to no bytes"),
            _ => Some(self.bound_entry(domain, queue_pair, kind, bind)?),
        };
        let Some(slot) = self.slot(old) else { return Err("there is no such window") };
        self.invalidate(old);
        windows.release(index);
        let Some(entry) = entry else { return Ok(None) };
        if slot.is_used() {
            return Ok(Some(slot));
        }
        *windows.bound.entry(bind.region).or_default() += 1;
        if let Some(window) = windows.all.get_mut(&index) {
            (window.key, window.region) = (bind.key, Some(bind.region));
        }
        // SAFETY: invalidated above, and filled under the lock of all windows. It has no users, so this does not wait.
        unsafe { self.fill(slot, bind.key, entry) };
        Ok(None)
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
            return Err("windows cannot be bound to a region that counts from zero");
        }
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !access.contains(Access::LOCAL_WRITE) {
            return Err("a window that peers may write needs a region with local write access");
        }
        // IB-MW-13
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        if zero_based && kind == WindowType::One {
            return Err("a window of type 1 cannot count from zero");
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

    /// Invalidates a window on behalf of queue pair `queue_pair` or its peer.
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

    /// Ends a window. When it returns, no thread uses its bytes through it any more.
    // IB-MW-11
    pub(crate) fn remove_window(&self, key: u32) {
        let mut windows = self.lock_windows();
        windows.release(key >> 8);
        let key = windows.all.remove(&(key >> 8)).map_or(key, |window| window.key);
        drop(windows);
        self.remove(key);
    }

    /// Invalidates the key of a region unless windows are bound to it; returns whether none are. A bind that comes later finds no region.
    pub(crate) fn invalidate_unbound(&self, region: u32) -> bool {
        let windows = self.lock_windows();
        let unbound = !windows.bound.contains_key(&region);
        if unbound {
            self.invalidate(region);
        }
        unbound
    }

    /// Unbinds all windows of a region that goes in spite of them, lest they open the next one with its key.
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

    /// As where a peer withholds the page to which a thread copies the bytes.
    #[test]
    fn a_bind_waits_a_bounded_time_for_old_uses_and_without_the_lock() {
        const LONG: Duration = Duration::from_secs(600);
        let keys = Keys::new();
        let memory = [const { AtomicU64::new(0) }; 4];
        let region = region(&keys, &memory);
        let [window, other] = [WindowType::One; 2].map(|kind| keys.insert_window(kind, DOMAIN).unwrap());
        keys.bind(DOMAIN, PAIR, &bind(window, region)).unwrap();
        let mut key = window;
        for limit in [OLD_USE_TIMEOUT, LONG] {
            let span = keys.open_for_peer(key, 0x1000, 8, Access::REMOTE_READ, DOMAIN, PAIR).ok();
            assert!(span.is_some());
            let again = bind(key ^ 1, region);
            let (sender, told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let keys = &keys;
                let mut span = span;
                let binds = scope.spawn(move || keys.bind_within(DOMAIN, PAIR, &again, limit));
                let waits = until(|| !opens(keys, key));
                // It waits now. Other windows are bound, and end.
                scope.spawn(move || {
                    let third = keys.insert_window(WindowType::Two, DOMAIN).unwrap();
                    for key in [other, third] {
                        keys.bind(DOMAIN, PAIR, &bind(key, region)).unwrap();
                    }
                    keys.unbind(third, PAIR).unwrap();
                    keys.remove_window(third);
                    sender.send(()).unwrap();
                });
                let are_free = told.recv_timeout(LONG / 10);
                let is_shut = !opens(keys, again.key);
                if limit == LONG || are_free.is_err() || !waits {
                    drop(span.take());
                }
                let bound = binds.join().unwrap();
                assert!(waits && are_free.is_ok() && is_shut);
                assert_eq!((bound.is_ok(), opens(keys, again.key)), (limit == LONG, limit == LONG));
                if limit == OLD_USE_TIMEOUT {
                    // The window has stayed unbound, and the old use is waited for again.
                    assert!(!opens(keys, key) && keys.bind(DOMAIN, PAIR, &again).is_err());
                    drop(span.take());
                    keys.bind(DOMAIN, PAIR, &again).unwrap();
                }
            });
            key = again.key;
        }
        assert!(opens(&keys, key));
        assert!(opens(&keys, other));
    }

    /// Whoever finds a window open finds it whole, whatever happens to it at the same time.
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
                keys.bind(DOMAIN, PAIR, &Bind { address, ..bind(key, region) }).unwrap();
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
