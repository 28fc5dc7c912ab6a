//! Which queue pairs of this process are in which multicast groups.

use crate::lock;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

/// The multicast groups of this process: which of its queue pairs are in which group. Thread-safe.
#[derive(Default)]
pub(crate) struct Groups {
    members: Mutex<HashMap<(IpAddr, u32), Vec<u32>>>,
    any: AtomicBool,
    /// Groups that a thread joins or leaves at this instant, each with its interface.
    changing: Mutex<HashSet<(IpAddr, u32)>>,
    changed: Condvar,
}

/// While this lives, no other thread joins or leaves a group on an interface.
pub(crate) struct Change<'a> {
    groups: &'a Groups,
    group: (IpAddr, u32),
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(&self.groups.changing).remove(&self.group);
        self.groups.changed.notify_all();
    }
}

impl Groups {
    /// A thread is about to join or leave a group. Waits until no other thread is, so that the outcome of the
    /// others is known.
    pub(crate) fn change(&self, group: IpAddr, interface: u32) -> Change<'_> {
        let group = (group, interface);
        let changing = lock(&self.changing);
        let others = self.changed.wait_while(changing, |changing| changing.contains(&group));
        others.unwrap_or_else(|poisoned| poisoned.into_inner()).insert(group);
        Change { groups: self, group }
    }

    /// A queue pair joins a group on an interface. Returns whether it is the first one there.
    pub(crate) fn join(&self, group: IpAddr, interface: u32, number: u32) -> bool {
        let mut members = lock(&self.members);
        self.any.store(true, Ordering::Release);
        let list = members.entry((group, interface)).or_default();
        let first = list.is_empty();
        list.push(number);
        first
    }

    /// A queue pair leaves a group on an interface. Returns whether no queue pair is left there.
    pub(crate) fn leave(&self, group: IpAddr, interface: u32, number: u32) -> bool {
        let mut members = lock(&self.members);
        let Some(list) = members.get_mut(&(group, interface)) else { return false };
        list.retain(|member| *member != number);
        let empty = list.is_empty();
        if empty {
            members.remove(&(group, interface));
        }
        empty
    }

    /// The numbers of the queue pairs in a group, each once.
    pub(crate) fn members(&self, group: IpAddr) -> Vec<u32> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let members = lock(&self.members);
        let here = members.iter().filter(|((address, _), _)| *address == group);
        let mut numbers: Vec<u32> = here.flat_map(|(_, list)| list.iter().copied()).collect();
        numbers.sort_unstable();
        // IB-UD-22
        numbers.dedup();
        numbers
    }

    /// All groups with members, and their interfaces.
    pub(crate) fn all(&self) -> Vec<(IpAddr, u32)> {
        lock(&self.members).keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-UD-22, IB-UD-27
    #[test]
    fn the_first_joins_and_the_last_leaves() {
        let groups = Groups::default();
        let group: IpAddr = "224.5.6.7".parse().unwrap();
        assert!(groups.members(group).is_empty());
        assert!(groups.join(group, 1, 7));
        assert!(!groups.join(group, 1, 9));
        assert!(groups.join(group, 2, 9));
        assert_eq!(groups.members(group), [7, 9]);
        assert!(!groups.leave(group, 1, 7));
        assert!(groups.leave(group, 1, 9));
        assert_eq!((groups.members(group), groups.all()), (vec![9], vec![(group, 2)]));
        assert!(groups.leave(group, 2, 9) && !groups.leave(group, 2, 9));
    }

    /// A thread that finds a group being joined learns first whether that has gone well.
    #[test]
    fn one_joins_after_the_other() {
        let groups = Groups::default();
        let group: IpAddr = "224.5.6.7".parse().unwrap();
        let change = groups.change(group, 1);
        assert!(groups.join(group, 1, 7));
        // Another group has nothing to do with it.
        drop(groups.change(group, 2));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let _change = groups.change(group, 1);
                groups.join(group, 1, 9)
            });
            // The first one fails.
            groups.leave(group, 1, 7);
            drop(change);
            assert!(second.join().unwrap(), "the second one asks for itself");
        });
        assert_eq!(groups.members(group), [9]);
    }
}
