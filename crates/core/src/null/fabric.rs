//! Where queue pairs that attributes connect find each other: by number, or as members of a multicast group.

use super::{NullEndpoint, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

#[derive(Default)]
pub(super) struct Fabric {
    endpoints: Mutex<HashMap<u32, Weak<NullEndpoint>>>,
    groups: Mutex<HashMap<[u8; 16], Vec<Weak<NullEndpoint>>>>,
}

impl Fabric {
    pub(super) fn add(&self, endpoint: &Arc<NullEndpoint>) {
        lock(&self.endpoints).insert(endpoint.queues.number, Arc::downgrade(endpoint));
    }

    pub(super) fn remove(&self, number: u32) {
        lock(&self.endpoints).remove(&number);
    }

    pub(super) fn find(&self, number: u32) -> Option<Arc<NullEndpoint>> {
        lock(&self.endpoints).get(&number).and_then(Weak::upgrade)
    }

    pub(super) fn attach(&self, group: &[u8; 16], endpoint: &Weak<NullEndpoint>) {
        lock(&self.groups).entry(*group).or_default().push(endpoint.clone());
    }

    pub(super) fn detach(&self, group: &[u8; 16], endpoint: &Weak<NullEndpoint>) {
        if let Some(members) = lock(&self.groups).get_mut(group) {
            members.retain(|member| !Weak::ptr_eq(member, endpoint));
        }
    }

    pub(super) fn members(&self, group: &[u8; 16]) -> Vec<Arc<NullEndpoint>> {
        lock(&self.groups).get(group).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }
}
